"""Packs rows into one token sequence without padding; what rows have in common is stored and computed once.

Axes: N packed tokens, R rows (a prompt and its completion), G roots, P longest root, C longest branch, M scored
tokens.

Rows are laid out as a root and a branch. Either every distinct prompt is a root, shared by the completions of its
group, or the tokens that all prompts begin with are the one root and each row's branch is the rest of its prompt
and its completion (demonstrations, whose prompts differ). Whichever makes fewer tokens is taken.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import pairwise

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Packed:
    """Index tensors of one packed piece: all roots, one after another, then all branches.

    | field | shape | meaning |
    |---|---|---|
    | `tokens`, `positions` | [N] | ids, and positions for the rotary embedding |
    | `root` | [G, P] | packed index of every root token; `N` (one past the end) is padding |
    | `root_lengths` | [G] | |
    | `branch` | [R, C] | packed index of every branch token; `N` is padding |
    | `row_root` | [R] | the root that a row's branch continues |
    | `whole` | [R, L] | packed index of every token of a row, prompt and fed completion; `N` is padding |
    | `scored` | [M] | packed index of the hidden state that predicts each completion token |
    | `target` | [M] | the completion token it predicts |
    | `row`, `step` | [M] | where that token stands in the batch |
    """

    tokens: Tensor
    positions: Tensor
    root: Tensor
    root_lengths: Tensor
    branch: Tensor
    row_root: Tensor
    whole: Tensor
    scored: Tensor
    target: Tensor
    row: Tensor
    step: Tensor

    def to(self, device: torch.device) -> Packed:
        """The same on another device."""
        return Packed(*(getattr(self, item.name).to(device) for item in fields(self)))

    @property
    def max_position(self) -> int:
        """Largest position plus one."""
        return self.whole.shape[1]


def distinct_rows(
    prompts: Sequence[tuple[int, ...]], action: Tensor, lengths: Tensor
) -> tuple[Tensor, Tensor]:
    """The first of all rows that are alike in prompt and completion [U], and where among those each row's is [R]."""
    places: dict[tuple[tuple[int, ...], tuple[int, ...]], int] = {}
    first, place = list[int](), list[int]()
    for i, (prompt, answer, n) in enumerate(zip(prompts, action.tolist(), lengths.tolist(), strict=True)):
        place.append(places.setdefault((prompt, tuple(answer[:n])), len(places)))
        if len(places) > len(first):
            first.append(i)
    return torch.tensor(first), torch.tensor(place)


def shared_length(prompts: Sequence[tuple[int, ...]]) -> int:
    """How many tokens all prompts begin with."""
    first, last = min(prompts), max(prompts)
    return next((i for i, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))


def pack(prompts: Sequence[tuple[int, ...]], action: Tensor, lengths: Tensor) -> Packed:
    """Pack rows: `prompts` one per row, `action` [R, T] completion ids, `lengths` [R] valid ones.

    A completion's last token is not fed: nothing scored follows it. Raises ValueError for an empty prompt.
    """
    if not all(prompts):
        raise ValueError("a prompt is empty: the first token needs a state to be predicted from")
    action, lengths = action.cpu(), lengths.cpu()
    prompt_lengths = torch.tensor([len(prompt) for prompt in prompts])
    fed = (lengths - 1).clamp(min=0)
    roots: dict[tuple[int, ...], int] = {}
    shared = shared_length(prompts)
    by_prompt = sum(len(prompt) for prompt in set(prompts))
    if shared and shared + int((prompt_lengths - shared).sum()) < by_prompt:
        roots[prompts[0][:shared]] = 0
        row_root = torch.zeros(len(prompts), dtype=torch.long)
    else:
        row_root = torch.tensor([roots.setdefault(prompt, len(roots)) for prompt in prompts])
    root_lengths = torch.tensor([len(root) for root in roots])
    row_tokens = [
        [*prompt[int(root_lengths[r]) :], *answer[:n]]
        for prompt, r, answer, n in zip(
            prompts, row_root.tolist(), action.tolist(), fed.tolist(), strict=True
        )
    ]
    branch_lengths = prompt_lengths + fed - root_lengths[row_root]
    total = int(root_lengths.sum() + branch_lengths.sum())
    root_starts = root_lengths.cumsum(0) - root_lengths
    branch_starts = int(root_lengths.sum()) + branch_lengths.cumsum(0) - branch_lengths
    at = torch.arange(int((prompt_lengths + fed).max()))
    own = root_lengths[row_root][:, None]
    whole = torch.where(at < own, root_starts[row_root][:, None] + at, branch_starts[:, None] + at - own)
    whole = whole.masked_fill(at >= (prompt_lengths + fed)[:, None], total)
    positions = torch.empty(total + 1, dtype=torch.long)
    positions[whole] = at.expand_as(whole)
    step = torch.arange(action.shape[1]).expand_as(action)
    row, step = (step < lengths[:, None]).nonzero(as_tuple=True)
    return Packed(
        tokens=torch.tensor(
            [t for root in roots for t in root] + [t for tokens in row_tokens for t in tokens]
        ),
        positions=positions[:total],
        root=_spread(root_starts, root_lengths, total),
        root_lengths=root_lengths,
        branch=_spread(branch_starts, branch_lengths, total),
        row_root=row_root,
        whole=whole,
        scored=whole[row, prompt_lengths[row] + step - 1],
        target=action[row, step],
        row=row,
        step=step,
    )


def _spread(starts: Tensor, lengths: Tensor, padding: int) -> Tensor:
    """Indices [rows, longest] of pieces that start at `starts`; `padding` beyond each length."""
    steps = torch.arange(int(lengths.max()))
    return torch.where(steps < lengths[:, None], starts[:, None] + steps, padding)


def packed_rows(prompts: Sequence[tuple[int, ...]], lengths: Sequence[int], budget: int) -> list[Tensor]:
    """Rows in as few pieces of at most `budget` tokens as will do (one row at least), the largest as small as can be.

    Rows of one prompt are next to each other.
    """
    order = sorted(range(len(prompts)), key=lambda i: (prompts[i], -lengths[i]))
    cost = [lengths[i] + len(prompts[i]) for i in order]
    common = [0, *(shared_length([prompts[a], prompts[b]]) for a, b in pairwise(order))]
    fewest = len(_filled(cost, common, budget))
    least = bisect_left(range(budget), -fewest, key=lambda limit: -len(_filled(cost, common, limit)))
    return [torch.tensor([order[at] for at in piece]) for piece in _filled(cost, common, least)]


def _filled(cost: Sequence[int], common: Sequence[int], limit: int) -> list[list[int]]:
    """Items in turn, a new piece wherever one more would exceed `limit`; each saves `common` beside the one before."""
    pieces: list[list[int]] = []
    used = 0
    for i, (own, saved) in enumerate(zip(cost, common, strict=True)):
        if not pieces or used + own - saved > limit:
            pieces.append([])
            used = saved = 0
        pieces[-1].append(i)
        used += own - saved
    return pieces


def spread(values: Tensor, row: Tensor, step: Tensor, shape: torch.Size) -> Tensor:
    """Put values [M] at their places in [B, T], 0 elsewhere."""
    out = values.new_zeros(shape)
    return out.index_put((row, step), values)
