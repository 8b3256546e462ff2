"""Decoding: token ids in, token ids with log-probabilities out.

A prompt is computed once however many answers it gets, and so is every token that answers have in common: rows
that are alike so far are one state, until they draw different tokens. Finished rows leave the batch. Every row
draws from a random stream of its own, keyed by the caller, so what else is in the batch does not change what a
row samples.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from transformers import DynamicCache

from outdo.language.head import Head, restrict
from outdo.language.llama import LlamaDecoder
from outdo.language.packing import pack
from outdo.language.sampling import Completion, Sampling, StopReason

MAX_ROWS = 512
"""Rows decoded together; more are decoded in turn."""
BLOCK = 256
"""Tokens are summed in blocks of this many, so that the cumulative distribution is formed inside one block alone."""
LEAVE_SHARE = 0.75
"""Finished rows leave the batch once at most this share of it is still running (leaving costs a cache copy)."""


class PromptTooLongError(ValueError):
    """A prompt leaves no room for an answer in the model's context."""


class Decoding(Protocol):
    """The state of one batch being decoded: what the engine asks of a model."""

    def prefill(self, prompts: Sequence[tuple[int, ...]], room: int, prefix: Tensor | None = None) -> Tensor:
        """Compute the prompts, a state each, with space for `room` tokens; hidden [S, D]."""
        ...

    def step(self, tokens: Tensor) -> Tensor:
        """Feed one token per state [S]; hidden [S, D] that predicts the next."""
        ...

    def keep(self, rows: Tensor) -> None:
        """Go on with these states only, in this order; one that is named several times is copied."""
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


@dataclass(frozen=True, slots=True)
class Job:
    """Rows to decode together: row r answers `prompts[rows[r]]` with at most `limits[r]` tokens.

    `uniforms` [R, T] are its random numbers, one a token; T is the largest limit. Greedy decoding ignores them.
    Ids beyond the vocabulary are rows of `prefix` [P, D] (`LlamaDecoder.embed`).
    """

    prompts: list[tuple[int, ...]]
    rows: list[int]
    limits: list[int]
    uniforms: NDArray[np.float64]
    sampling: Sampling
    stop_tokens: tuple[int, ...]
    prefix: Tensor | None = None


class Answers:
    """What a job's rows have become: `tokens` and `logps` [R, T], of which `lengths` [R] count; `stopped` [R]."""

    def __init__(self, rows: int, longest: int) -> None:
        self.tokens = np.zeros((rows, longest), np.int64)
        self.logps = np.zeros((rows, longest), np.float32)
        self.lengths = np.zeros(rows, np.int64)
        self.stopped = np.zeros(rows, np.bool_)

    def completions(self) -> list[Completion]:
        """One for each row."""
        columns = (self.tokens.tolist(), self.logps.tolist(), self.lengths.tolist(), self.stopped.tolist())
        return [
            Completion(tokens[:n], logps[:n], StopReason.STOP if stopped else StopReason.LENGTH)
            for tokens, logps, n, stopped in zip(*columns, strict=True)
        ]


Decode = Callable[[Job], Answers]
"""A way to decode: `decode_stepwise` over a `Decoding`, or `outdo.language.compiled.decode`."""


def generate(
    decode: Decode,
    prompts: Sequence[Sequence[int]],
    copies: int,
    sampling: Sampling,
    streams: Sequence[tuple[int, ...]],
    stop_tokens: tuple[int, ...],
    context: int,
    prefix: Tensor | None = None,
) -> list[list[Completion]]:
    """`copies` completions for each prompt.

    Copy j of prompt i draws one uniform number per token from the stream keyed `(*streams[i], j)` and takes the
    token whose slice of the cumulative distribution it falls in. Greedy completions have log-probability 0.
    `prefix` [P, D]: embeddings that prompts name by ids beyond the vocabulary.
    Raises `PromptTooLongError`; an answer that reaches the end of the context ends with `StopReason.LENGTH`.
    """
    check_prompts(prompts, context)
    if len(streams) != len(prompts):
        raise ValueError(f"{len(prompts)} prompts need as many stream keys, got {len(streams)}")
    result: list[list[Completion]] = [[] for _ in prompts]
    order = sorted(range(len(prompts)), key=lambda i: len(prompts[i]))
    wanted = [(i, j) for i in order for j in range(copies)]
    for first in range(0, len(wanted), MAX_ROWS):
        piece = wanted[first : first + MAX_ROWS]
        used = list(dict.fromkeys(i for i, _ in piece))
        place = {i: k for k, i in enumerate(used)}
        limits = [min(sampling.max_tokens, context - len(prompts[i])) for i, _ in piece]
        job = Job(
            prompts=[tuple(prompts[i]) for i in used],
            rows=[place[i] for i, _ in piece],
            limits=limits,
            uniforms=_uniforms([(*streams[i], j) for i, j in piece], max(limits)),
            sampling=sampling,
            stop_tokens=stop_tokens,
            prefix=prefix,
        )
        for (i, _), completion in zip(piece, decode(job).completions(), strict=True):
            result[i].append(completion)
    return result


@torch.no_grad()
def decode_stepwise(start: Callable[[], Decoding], head: Head, job: Job) -> Answers:
    """Decode with a fresh `Decoding`, one token of every row at a time; rows that are alike so far share a state."""
    decoding, device = start(), head.weight.device
    limits, stops = np.array(job.limits), np.array(job.stop_tokens, np.int64)
    uniforms = torch.from_numpy(job.uniforms).to(device)
    answers = Answers(len(limits), job.uniforms.shape[1])
    rows, state = np.arange(len(limits)), np.array(job.rows)  # rows that go on, and the state of each
    hidden = decoding.prefill(job.prompts, job.uniforms.shape[1], job.prefix)
    for step in range(job.uniforms.shape[1]):
        draw = None if job.sampling.greedy else uniforms[torch.from_numpy(rows).to(device), step]
        token, logp = choose(head.logits(hidden), job.sampling, draw, torch.from_numpy(state).to(device))
        new = token.cpu().numpy()
        answers.tokens[rows, step], answers.logps[rows, step] = new, logp.cpu().numpy()
        answers.lengths[rows] = step + 1
        answers.stopped[rows] = np.isin(new, stops)
        going = ~answers.stopped[rows] & (step + 1 < limits[rows])
        if not going.any():
            break
        rows = rows[going]
        parents, tokens, state = _fork(state[going], new[going])
        if len(parents) <= LEAVE_SHARE * len(hidden) or len(np.unique(parents)) < len(parents):
            decoding.keep(torch.from_numpy(parents))
        else:  # no state is needed twice: the few that nobody needs any more stay, and are fed anything
            fed = np.zeros(len(hidden), np.int64)
            fed[parents], tokens, state = tokens, fed, parents[state]
        hidden = decoding.step(torch.from_numpy(tokens).to(device))
    return answers


def _fork(
    state: NDArray[np.int64], token: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """States that rows at `state` [R] reach by `token` [R]: parent and token of each [S], and the place of each row."""
    pairs, place = np.unique(np.stack((state, token)), axis=1, return_inverse=True)
    return pairs[0], pairs[1], place.reshape(-1)


def _uniforms(keys: list[tuple[int, ...]], count: int) -> NDArray[np.float64]:
    return np.stack([np.random.default_rng(key).random(count) for key in keys])


def choose(
    logits: Tensor, sampling: Sampling, uniform: Tensor | None, rows: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Next token [R] and its log-probability [R]: the argmax, or the token whose slice of the mass holds `uniform`.

    Result i draws from `logits[rows[i]]`; without `rows`, from `logits[i]`.
    """
    rows = torch.arange(len(logits), device=logits.device) if rows is None else rows
    if uniform is None:
        token = logits.argmax(dim=-1)[rows]
        return token, torch.zeros_like(token, dtype=torch.float32)
    p = restrict(logits, sampling).softmax(dim=-1, dtype=torch.float32)
    blocks = F.pad(p, (0, -p.shape[-1] % BLOCK)).unflatten(-1, (-1, BLOCK))
    before = blocks.sum(dim=-1).double().cumsum(dim=-1)[rows]
    target = uniform[:, None] * before[:, -1:]
    block = _first_above(before, target)
    rest = target - torch.where(block > 0, before.gather(-1, (block - 1).clamp(min=0)), 0.0)
    within = blocks[rows, block.squeeze(-1)].double().cumsum(dim=-1)
    token = (block * BLOCK + _first_above(within, rest)).squeeze(-1)
    return token, p[rows, token].log()


def _first_above(mass: Tensor, target: Tensor) -> Tensor:
    """First index [R, 1] whose cumulative `mass` [R, N] exceeds `target` [R, 1], or the last that has any mass."""
    last = torch.searchsorted(mass, mass[:, -1:].contiguous())
    return torch.minimum(torch.searchsorted(mass, target, right=True), last)


class LlamaDecoding:
    """`Decoding` on the fast path: prompts left-padded into one cache [L, 2, S, K, slots, E], states in lockstep."""

    def __init__(self, decoder: LlamaDecoder) -> None:
        self.decoder = decoder

    def prefill(self, prompts: Sequence[tuple[int, ...]], room: int, prefix: Tensor | None = None) -> Tensor:
        """Compute the prompts packed and spread their keys and values."""
        d, device = self.decoder, self.decoder.embedding.device
        none = torch.zeros(len(prompts), dtype=torch.long)
        packed = pack(prompts, none[:, None], none).to(device)
        x, _, qkvs = d.forward(packed, prefix)
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        longest = int(lengths.max())
        slots = torch.arange(longest) - (longest - lengths)[:, None]  # negative before the prompt begins
        index = packed.whole.gather(1, slots.clamp(min=0))
        shape = (len(qkvs), 2, len(prompts), d.kv_heads, longest + room - 1, d.head_size)
        self.cache = torch.empty(shape, dtype=qkvs[0].dtype, device=device)
        for layer, qkv in enumerate(qkvs):
            kv = qkv[:, d.heads :].unflatten(1, (2, d.kv_heads))[index]  # [S, P, 2, K, E]
            self.cache[layer, ..., :longest, :] = kv.permute(2, 0, 3, 1, 4)
        self.filled, self.positions = longest, lengths.to(device)
        padded = bool((lengths < longest).any())
        reach = torch.ones(len(prompts), shape[4], dtype=torch.bool, device=device)
        reach[:, :longest] = (slots >= 0).to(device)
        self.mask = reach[:, None, None] if padded else None
        return d.final_norm(x[index[:, -1]])

    def step(self, tokens: Tensor) -> Tensor:
        """Feed one token per state, writing its key and value into the next slot."""
        d, slot = self.decoder, self.filled
        self.filled += 1
        cos, sin = d.angles(self.positions, slot + 1)
        self.positions = self.positions + 1
        mask = None if self.mask is None else self.mask[..., : self.filled]
        grouped = (len(tokens), d.kv_heads, d.heads // d.kv_heads, d.head_size)
        x = d.embedding[tokens].float().t().contiguous()  # [D, S]: a few rows are fastest as columns
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
        """Copy the filled part of the cache."""
        rows = rows.to(self.cache.device)
        copy = self.cache.new_empty(*self.cache.shape[:2], len(rows), *self.cache.shape[3:])
        copy[..., : self.filled, :] = self.cache[:, :, rows, :, : self.filled]
        self.cache, self.positions = copy, self.positions[rows]
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

    def prefill(self, prompts: Sequence[tuple[int, ...]], room: int, prefix: Tensor | None = None) -> Tensor:
        """Left-padded forward pass over the prompts; a `prefix` needs the fast path."""
        assert prefix is None
        device = next(self.body.parameters()).device
        longest = max(len(prompt) for prompt in prompts)
        ids = torch.full((len(prompts), longest), self.pad)
        mask = torch.zeros(len(prompts), longest, dtype=torch.long)
        for i, prompt in enumerate(prompts):
            ids[i, longest - len(prompt) :] = torch.tensor(prompt)
            mask[i, longest - len(prompt) :] = 1
        self.mask = mask.to(device)
        positions = (self.mask.cumsum(dim=1) - 1).clamp(min=0)
        return self._forward(ids.to(device), positions)

    def step(self, tokens: Tensor) -> Tensor:
        """Feed one token per state."""
        self.mask = F.pad(self.mask, (0, 1), value=1)
        return self._forward(tokens[:, None], self.mask.sum(dim=1, keepdim=True) - 1)

    def keep(self, rows: Tensor) -> None:
        """Select states of the library's cache."""
        rows = rows.to(self.mask.device)
        self.cache.batch_select_indices(rows)
        self.mask = self.mask[rows]
