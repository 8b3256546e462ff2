"""Decoding: token ids in, token ids with log-probabilities out.

A prompt is computed once however many answers it gets; the key/value cache is allocated once; rows that are
finished leave the batch. Every row draws from a random stream of its own, keyed by the caller, so what else is
in the batch does not change what a row samples.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F
from transformers import DynamicCache

from outdo.language.head import Head, restrict
from outdo.language.llama import LlamaDecoder
from outdo.language.packing import pack
from outdo.language.sampling import Completion, Sampling, StopReason

MAX_ROWS = 256
"""Rows decoded together; more are decoded in turn."""
BLOCK = 256
"""Tokens are summed in blocks of this many, so that the cumulative distribution is formed inside one block alone."""
LEAVE_SHARE = 0.75
"""Finished rows leave the batch once at most this share of it is still running (leaving costs a cache copy)."""


class PromptTooLongError(ValueError):
    """A prompt leaves no room for an answer in the model's context."""


class Decoding(Protocol):
    """The state of one batch being decoded: what the engine asks of a model."""

    def prefill(self, prompts: Sequence[tuple[int, ...]], rows: Tensor, room: int) -> Tensor:
        """Compute the prompts, start row i from prompt `rows[i]` with space for `room` tokens; hidden [R, D]."""
        ...

    def step(self, tokens: Tensor) -> Tensor:
        """Feed one token per row [R]; hidden states [R, D] that predict the next."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Go on with these rows only, in this order."""
        ...


def check_prompts(prompts: Sequence[Sequence[int]], context: int) -> None:
    """Raise if a prompt is empty or leaves no room in the context for a single token."""
    for index, prompt in enumerate(prompts):
        if not len(prompt):
            raise ValueError(f"prompt {index} has no tokens")
        if len(prompt) + 1 > context:
            raise PromptTooLongError(
                f"prompt {index} has {len(prompt)} tokens, the model's context holds {context} and an answer needs"
                " at least one: shorten the prompt or use a model with a longer context"
            )


def generate(
    start: Any,
    head: Head,
    prompts: Sequence[Sequence[int]],
    copies: int,
    sampling: Sampling,
    streams: Sequence[tuple[int, ...]],
    stop_tokens: tuple[int, ...],
    context: int,
) -> list[list[Completion]]:
    """`copies` completions for each prompt; `start()` gives a fresh `Decoding`.

    Copy j of prompt i draws one uniform number per token from the stream keyed `(*streams[i], j)` and takes the
    token whose slice of the cumulative distribution it falls in. Greedy completions have log-probability 0.
    Raises `PromptTooLongError`; an answer that reaches the end of the context ends with `StopReason.LENGTH`.
    """
    check_prompts(prompts, context)
    if len(streams) != len(prompts):
        raise ValueError(f"{len(prompts)} prompts need as many stream keys, got {len(streams)}")
    result: list[list[Completion]] = [[] for _ in prompts]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    jobs = [(i, j) for i in order for j in range(copies)]
    for first in range(0, len(jobs), MAX_ROWS):
        piece = jobs[first : first + MAX_ROWS]
        used = sorted({i for i, _ in piece}, key=order.index) if len(piece) < len(jobs) else order
        place = {i: k for k, i in enumerate(used)}
        rows = torch.tensor([place[i] for i, _ in piece])
        keys = [(*streams[i], j) for i, j in piece]
        limits = [min(sampling.max_tokens, context - len(prompts[i])) for i, _ in piece]
        done = _decode(
            start(), head, [tuple(prompts[i]) for i in used], rows, keys, limits, sampling, stop_tokens
        )
        for (i, _), completion in zip(piece, done, strict=True):
            result[i].append(completion)
    return result


@torch.no_grad()
def _decode(
    decoding: Decoding,
    head: Head,
    prompts: list[tuple[int, ...]],
    rows: Tensor,
    keys: list[tuple[int, ...]],
    limits: list[int],
    sampling: Sampling,
    stop_tokens: tuple[int, ...],
) -> list[Completion]:
    device = head.weight.device
    longest = max(limits)
    uniforms = None if sampling.greedy else torch.from_numpy(_uniforms(keys, longest)).to(device)
    limit = torch.tensor(limits)
    stops = torch.tensor(stop_tokens, dtype=torch.long)
    tokens = torch.zeros(len(keys), longest, dtype=torch.long)
    logps = torch.zeros(len(keys), longest)
    lengths = torch.zeros(len(keys), dtype=torch.long)
    stopped = torch.zeros(len(keys), dtype=torch.bool)
    alive = torch.arange(len(keys))  # rows still in the batch; some may be finished and waiting to leave
    running = torch.ones(len(keys), dtype=torch.bool)
    hidden = decoding.prefill(prompts, rows, longest)
    for step in range(longest):
        draw = None if uniforms is None else uniforms[alive.to(device), step]
        token, logp = choose(head.logits(hidden), sampling, draw)
        token_cpu, going = token.cpu(), running[alive]
        tokens[alive[going], step], logps[alive[going], step] = token_cpu[going], logp.cpu()[going]
        lengths[alive[going]] += 1
        ended = torch.isin(token_cpu, stops)
        stopped[alive[going & ended]] = True
        running[alive] = going & ~ended & (lengths[alive] < limit[alive])
        left = running[alive].nonzero().squeeze(-1)
        if not len(left):
            break
        if len(left) <= LEAVE_SHARE * len(alive):
            decoding.keep(left)
            alive, token = alive[left], token[left.to(device)]
        hidden = decoding.step(token)
    return [
        Completion(t[:n], p[:n], StopReason.STOP if stop else StopReason.LENGTH)
        for t, p, n, stop in zip(
            tokens.tolist(), logps.tolist(), lengths.tolist(), stopped.tolist(), strict=True
        )
    ]


def _uniforms(keys: list[tuple[int, ...]], count: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    return np.stack([np.random.default_rng(key).random(count) for key in keys])


def choose(logits: Tensor, sampling: Sampling, uniform: Tensor | None) -> tuple[Tensor, Tensor]:
    """Next token [R] and its log-probability [R]: the argmax, or the token whose slice of the mass holds `uniform`."""
    if uniform is None:
        token = logits.argmax(dim=-1)
        return token, torch.zeros_like(token, dtype=torch.float32)
    p = restrict(logits, sampling).softmax(dim=-1, dtype=torch.float32)
    blocks = F.pad(p, (0, -p.shape[-1] % BLOCK)).unflatten(-1, (-1, BLOCK))
    before = blocks.sum(dim=-1).double().cumsum(dim=-1)
    target = uniform[:, None] * before[:, -1:]
    block = _first_above(before, target)
    rest = target - torch.where(block > 0, before.gather(-1, (block - 1).clamp(min=0)), 0.0)
    within = blocks.take_along_dim(block[:, :, None], dim=1).squeeze(1).double().cumsum(dim=-1)
    token = block * BLOCK + _first_above(within, rest)
    return token.squeeze(-1), p.gather(-1, token).squeeze(-1).log()


def _first_above(mass: Tensor, target: Tensor) -> Tensor:
    """First index [R, 1] whose cumulative `mass` [R, N] exceeds `target` [R, 1], or the last that has any mass."""
    last = torch.searchsorted(mass, mass[:, -1:].contiguous())
    return torch.minimum(torch.searchsorted(mass, target, right=True), last)


class LlamaDecoding:
    """`Decoding` on the fast path: prompts left-padded into one cache [L, 2, R, K, slots, E], rows in lockstep."""

    def __init__(self, decoder: LlamaDecoder) -> None:
        self.decoder = decoder

    def prefill(self, prompts: Sequence[tuple[int, ...]], rows: Tensor, room: int) -> Tensor:
        """Compute each distinct prompt once and copy its keys and values to its rows."""
        d, device = self.decoder, self.decoder.embedding.device
        none = torch.zeros(len(prompts), dtype=torch.long)
        packed = pack(prompts, none[:, None], none).to(device)
        x, _, qkvs = d.forward(packed)
        lengths = torch.tensor([len(prompt) for prompt in prompts])[rows]
        longest = int(lengths.max())
        slots = torch.arange(longest) - (longest - lengths)[:, None]  # negative before the prompt begins
        index = packed.whole[rows[:, None], slots.clamp(min=0)]
        shape = (len(qkvs), 2, len(rows), d.kv_heads, longest + room - 1, d.head_size)
        self.cache = torch.empty(shape, dtype=qkvs[0].dtype, device=device)
        for layer, qkv in enumerate(qkvs):
            kv = qkv[:, d.heads :].unflatten(1, (2, d.kv_heads))[index]  # [R, P, 2, K, E]
            self.cache[layer, ..., :longest, :] = kv.permute(2, 0, 3, 1, 4)
        self.filled, self.positions = longest, lengths.to(device)
        padded = bool((lengths < longest).any())
        reach = torch.ones(len(rows), shape[4], dtype=torch.bool, device=device)
        reach[:, :longest] = (slots >= 0).to(device)
        self.mask = reach[:, None, None] if padded else None
        return d.final_norm(x[index[:, -1]])

    def step(self, tokens: Tensor) -> Tensor:
        """Feed one token per row, writing its key and value into the next slot."""
        d, slot = self.decoder, self.filled
        self.filled += 1
        cos, sin = d.angles(self.positions, slot + 1)
        self.positions = self.positions + 1
        mask = None if self.mask is None else self.mask[..., : self.filled]
        grouped = (len(tokens), d.kv_heads, d.heads // d.kv_heads, d.head_size)
        x = d.embedding[tokens].float().t().contiguous()  # [D, R]: a few rows are fastest as columns
        for w, layer in zip(d.weights, self.cache, strict=True):
            qkv = d.column_qkv(w, x, cos, sin)
            layer[:, :, :, slot] = qkv[:, d.heads :].unflatten(1, (2, d.kv_heads)).transpose(0, 1)
            keys, values = layer[0, :, :, : self.filled], layer[1, :, :, : self.filled]
            # The query heads that share a key/value head are taken as query positions: nothing is repeated.
            attended = F.scaled_dot_product_attention(
                qkv[:, : d.heads].reshape(grouped), keys, values, attn_mask=mask
            )
            x = d.column_feed_forward(w, x + w.o @ attended.reshape(len(tokens), -1).t())
        return d.final_norm(x.t())

    def keep(self, rows: Tensor) -> None:
        """Copy the cache of the rows that stay."""
        rows = rows.to(self.cache.device)
        smaller = self.cache.new_empty(*self.cache.shape[:2], len(rows), *self.cache.shape[3:])
        smaller[..., : self.filled, :] = self.cache[:, :, rows, :, : self.filled]
        self.cache, self.positions = smaller, self.positions[rows]
        self.mask = None if self.mask is None else self.mask[rows]


class TransformersDecoding:
    """`Decoding` on any causal model of transformers, with the library's own cache."""

    def __init__(self, body: Any, pad: int, autocast: torch.dtype | None) -> None:
        self.body, self.pad, self.autocast = body, pad, autocast
        self.cache = DynamicCache(config=body.config)
        # transformers 5.24 renamed the argument.
        self.argument = (
            "cache" if "cache" in inspect.signature(body.forward).parameters else "past_key_values"
        )

    def _forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        given = {
            "attention_mask": self.mask,
            "position_ids": positions,
            self.argument: self.cache,
            "use_cache": True,
        }
        with torch.autocast(ids.device.type, self.autocast, enabled=self.autocast is not None):
            return self.body(input_ids=ids, **given).last_hidden_state[:, -1]

    def prefill(self, prompts: Sequence[tuple[int, ...]], rows: Tensor, room: int) -> Tensor:
        """Left-padded forward pass over the distinct prompts, its cache repeated to the rows."""
        device = next(self.body.parameters()).device
        longest = max(len(prompt) for prompt in prompts)
        ids = torch.full((len(prompts), longest), self.pad)
        mask = torch.zeros(len(prompts), longest, dtype=torch.long)
        for i, prompt in enumerate(prompts):
            ids[i, longest - len(prompt) :] = torch.tensor(prompt)
            mask[i, longest - len(prompt) :] = 1
        self.mask = mask.to(device)
        positions = (self.mask.cumsum(dim=1) - 1).clamp(min=0)
        hidden = self._forward(ids.to(device), positions)
        self.keep(rows)
        return hidden[rows.to(device)]

    def step(self, tokens: Tensor) -> Tensor:
        """Feed one token per row."""
        self.mask = F.pad(self.mask, (0, 1), value=1)
        return self._forward(tokens[:, None], self.mask.sum(dim=1, keepdim=True) - 1)

    def keep(self, rows: Tensor) -> None:
        """Select rows of the library's cache (prompts repeat when rows repeat)."""
        rows = rows.to(self.mask.device)
        self.cache.batch_select_indices(rows)
        self.mask = self.mask[rows]
