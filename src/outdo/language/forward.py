"""Hidden states of a piece with gradient: on the fast path, or through transformers with length-sorted padding."""

# torch calls the two methods of an autograd function with its own signature.
# pyright: reportMissingParameterType=false, reportIncompatibleMethodOverride=false
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from outdo.language.head import Head, Sink, score, score_backward, score_kept
from outdo.language.llama import LlamaDecoder
from outdo.language.packing import Packed
from outdo.language.sampling import Sampling


class _Fast(torch.autograd.Function):
    """Body, final norm and head of a Llama-shaped model; the backward pass adds to the flat gradients itself.

    `anchor` is a parameter that ties the result into the autograd graph; it gets no gradient here. `prefix` gets its.
    """

    @staticmethod
    def forward(ctx, anchor, prefix, decoder, head_name, piece, sampling, entropy):  # noqa: ANN001, ANN205
        states, saved, _ = decoder.forward(piece, prefix, save=ctx.needs_input_grad[0])
        hidden = decoder.final_norm(states[piece.scored])
        head, ctx.kept = Head(decoder.flat.weight(head_name)), None
        if ctx.needs_input_grad[0] and not entropy and head.keeps(len(hidden)):
            logp, h, ctx.kept = score_kept(hidden, head, piece.target, sampling)
        else:
            logp, h = score(hidden, head, piece.target, sampling)
        ctx.decoder, ctx.head_name, ctx.piece, ctx.sampling, ctx.entropy = (
            decoder,
            head_name,
            piece,
            sampling,
            entropy,
        )
        ctx.saved, ctx.shape = saved, states.shape
        ctx.prefix_shape = None if prefix is None else prefix.shape
        ctx.states, ctx.hidden = states[piece.scored], hidden
        if not entropy:
            ctx.mark_non_differentiable(h)
        return logp, h, hidden

    @staticmethod
    def backward(ctx, grad_logp, grad_entropy, grad_hidden):  # noqa: ANN001, ANN205
        decoder, piece = ctx.decoder, ctx.piece
        if ctx.saved is None:
            raise RuntimeError("the graph of a piece is used up by its first backward pass: evaluate again")
        saved, ctx.saved = ctx.saved, None
        head = Head(decoder.flat.weight(ctx.head_name))
        grad = score_backward(
            ctx.hidden,
            head,
            piece.target,
            ctx.sampling,
            grad_logp,
            grad_entropy if ctx.entropy else None,
            Sink(decoder.flat.grad(ctx.head_name)),
            ctx.kept,
        )
        ctx.kept = None  # makes room for the backward pass of the body
        grad = decoder.final_norm_backward(ctx.states, grad.add_(grad_hidden))
        whole = torch.zeros(ctx.shape, dtype=torch.float32, device=grad.device)
        whole.index_add_(0, piece.scored, grad)
        by_prefix = None if ctx.prefix_shape is None else whole.new_zeros(ctx.prefix_shape)
        decoder.backward(piece, saved, whole, by_prefix)
        return None, by_prefix, None, None, None, None, None


def fast_forward(
    decoder: LlamaDecoder,
    head_name: str,
    piece: Packed,
    sampling: Sampling,
    *,
    entropy: bool,
    prefix: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probability [M], entropy [M], hidden states [M, D] of the scored tokens; gradients go to the flat buffers."""
    logp, h, hidden = _Fast.apply(decoder.flat.matrices, prefix, decoder, head_name, piece, sampling, entropy)
    return logp, h, hidden


def padded_forward(
    body: Any,
    prompts: Sequence[tuple[int, ...]],
    action: Tensor,
    lengths: Tensor,
    piece: Packed,
    autocast: torch.dtype | None,
) -> Tensor:
    """Hidden states [M, D] of the scored tokens through transformers; rows are padded on the right to the longest."""
    device = piece.target.device
    starts = torch.tensor([len(prompt) for prompt in prompts])
    total = starts + lengths.cpu() - 1
    ids = torch.zeros(len(prompts), int(total.max()), dtype=torch.long)
    mask = torch.arange(ids.shape[1]) < total[:, None]
    for i, prompt in enumerate(prompts):
        row = torch.cat((torch.tensor(prompt, dtype=torch.long), action[i, : int(lengths[i])].cpu()))
        ids[i, : int(total[i])] = row[: int(total[i])]
    positions = torch.arange(ids.shape[1]).expand_as(ids)
    with torch.autocast(device.type, autocast, enabled=autocast is not None):
        hidden = body(
            input_ids=ids.to(device),
            attention_mask=mask.long().to(device),
            position_ids=positions.to(device),
            use_cache=False,
        ).last_hidden_state
    return hidden[piece.row, starts.to(device)[piece.row] + piece.step - 1]


def padded_rows(costs: Sequence[int], budget: int) -> list[Tensor]:
    """Rows in pieces, longest first, so that rows times their longest stays within `budget` (one row at least)."""
    pieces: list[list[int]] = []
    longest = 0
    for i in sorted(range(len(costs)), key=lambda i: -costs[i]):
        if not pieces or (len(pieces[-1]) + 1) * longest > budget:
            pieces.append([])
            longest = costs[i]
        pieces[-1].append(i)
    return [torch.tensor(piece) for piece in pieces]
