"""Baselines and scales: what is subtracted from a score, and what the difference is divided by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from outdo.core.batch import Batch
from outdo.core.checks import only, require_same_shape

Scale = Literal["group", "batch", "none"]


@dataclass(frozen=True, slots=True)
class Grouping:
    """Rows by group id: `index` `[B]` (0 … N−1, by id, never by position) and `size` `[N]` of scored rows."""

    index: Tensor
    size: Tensor

    def sum(self, row: Tensor) -> Tensor:
        """Sum of `row` `[B]` per group, `[N]`."""
        return row.new_zeros(len(self.size)).index_add(0, self.index, row)

    def lowest(self, row: Tensor, scored: Tensor) -> Tensor:
        """Smallest scored entry of `row` per group, `[N]`; 0 in a group without scored rows."""
        filled = torch.where(scored, row, torch.full_like(row, torch.inf))
        low = row.new_full((len(self.size),), torch.inf).scatter_reduce(0, self.index, filled, "amin")
        return only(self.size > 0, low)


def grouping(group: Tensor, scored: Tensor) -> Grouping:
    """Group the rows by id, `group` `[B]` int64; rows with `scored` False belong to a group but do not count.

    Raises ValueError when a group has a single row: its mean is the row itself and it can teach nothing.
    A group of several rows of which one was scored stays, and its row gets advantage 0.
    """
    require_same_shape(group=group, scored=scored)
    ids, index, rows = torch.unique(group, return_inverse=True, return_counts=True)
    size = torch.zeros(len(ids), dtype=torch.int64, device=group.device).index_add(0, index, scored.long())
    single = (rows == 1) & (size == 1)
    if bool(single.any()):
        raise ValueError(
            f"group {int(ids[single][0])} has a single row: a group baseline needs at least 2 samples "
            "of every prompt (set group >= 2, or choose a running or batch baseline)"
        )
    return Grouping(index, size)


def score(reward: Tensor, valid: Tensor) -> Tensor:
    """Σ_t r_t over the valid steps, `[B, T]` to `[B]`. Raises ValueError on unequal shapes."""
    require_same_shape(reward=reward, valid=valid)
    return only(valid, reward).sum(dim=1)


def group_mean(score: Tensor, group: Tensor, scored: Tensor) -> Tensor:
    """r_i − mean of the group, `[B]`; exactly 0 in a group of equal scores, 0 where `scored` is False.

    Shrinks the expected gradient to (G−1)/G of its size, because r_i is part of its own baseline.
    Source: GRPO, arXiv 2402.03300. Raises ValueError on unequal shapes and on a group of one.
    """
    require_same_shape(score=score, group=group, scored=scored)
    groups = grouping(group, scored)
    shifted = only(scored, score - groups.lowest(score, scored)[groups.index])
    mean = groups.sum(shifted) / groups.size.clamp(min=1)
    return only(scored, shifted - mean[groups.index])


def leave_one_out(score: Tensor, group: Tensor, scored: Tensor) -> Tensor:
    """r_i − mean of the other scores of the group = G/(G−1)·(r_i − mean), `[B]`: unbiased.

    Source: RLOO, arXiv 2402.14740 eq. 8. Raises ValueError on unequal shapes and on a group of one.
    """
    groups = grouping(group, scored)
    size = groups.size[groups.index].to(score.dtype)
    return group_mean(score, group, scored) * size / (size - 1).clamp(min=1)


def group_std(score: Tensor, group: Tensor, scored: Tensor, ddof: int = 0) -> Tensor:
    """√(Σ (r_i − mean)² / (G − ddof)) of the row's group, `[B]`; 0 where fewer than 2 scores stand.

    Raises ValueError on unequal shapes and on a group of one.
    """
    groups = grouping(group, scored)
    squares = groups.sum(group_mean(score, group, scored).square())
    return (squares / (groups.size - ddof).clamp(min=1)).sqrt()[groups.index]


def masked_mean(tensor: Tensor, mask: Tensor) -> Tensor:
    """Mean over the mask, a scalar; 0 under an empty mask. Raises ValueError on unequal shapes."""
    require_same_shape(tensor=tensor, mask=mask)
    return only(mask, tensor).sum() / mask.sum().clamp(min=1)


def masked_std(tensor: Tensor, mask: Tensor, ddof: int = 0) -> Tensor:
    """Standard deviation over the mask, divisor n − ddof, a scalar; 0 where fewer than 2 entries stand."""
    centred = only(mask, tensor - masked_mean(tensor, mask))
    return (centred.square().sum() / (mask.sum() - ddof).clamp(min=1)).sqrt()


def exponential_weights(score: Tensor, group: Tensor, scored: Tensor, beta: float) -> Tensor:
    """G · softmax over the group of β·(r_i − mean), `[B]`, mean 1 in every group; 0 where `scored` is False.

    β = 0 weighs every sample 1; a large β imitates the best of the group.
    Source: Alpamayo-R1, arXiv 2511.00088. Departure: times G, so that the mean over rows is the paper's sum.
    Raises ValueError on unequal shapes and on a group of one.
    """
    require_same_shape(score=score, group=group, scored=scored)
    groups = grouping(group, scored)
    below = only(scored, beta * score + groups.lowest(-beta * score, scored)[groups.index])
    weight = only(scored, below.exp())
    return weight * (groups.size / groups.sum(weight).clamp(min=1e-30))[groups.index]


def scored_rows(batch: Batch) -> Tensor:
    """Rows with at least one valid step, `[B]` bool: others (a reward that failed, padding) count nowhere."""
    return batch.valid.any(dim=1)


def groups_without_signal(batch: Batch) -> tuple[Tensor, Tensor]:
    """(groups whose scores are all equal, groups with a score): the share without signal as a pair.

    Call it on the raw reward, before a KL is put into it.
    """
    scored = scored_rows(batch)
    total = score(batch.reward, batch.valid)
    _, index = torch.unique(batch.group, return_inverse=True)
    count = int(index.max()) + 1 if len(index) else 0
    high = total.new_full((count,), -torch.inf).scatter_reduce(
        0, index, torch.where(scored, total, torch.full_like(total, -torch.inf)), "amax"
    )
    low = total.new_full((count,), torch.inf).scatter_reduce(
        0, index, torch.where(scored, total, torch.full_like(total, torch.inf)), "amin"
    )
    return (high == low).sum(), (high >= low).sum()
