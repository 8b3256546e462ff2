"""From per-step losses `[B, T]` to one number, with denominators counted once for the whole minibatch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from outdo.core.checks import only, require_same_shape

Reduction = Literal[
    "token_mean", "token_sum", "sequence_mean_token_mean", "sequence_mean_token_sum", "fixed_length"
]


@dataclass(frozen=True, slots=True)
class Counts:
    """Denominators of a reduction: `steps` that carry loss and `rows` with at least one such step.

    Count once over the whole minibatch (`count` per rank, then `+`), and pass the same value with every
    micro-batch: the micro-batches' losses then add up to the loss of the whole.
    """

    steps: int
    rows: int

    def __add__(self, other: Counts) -> Counts:
        """Counts of two disjoint pieces (micro-batches, ranks) together."""
        return Counts(self.steps + other.steps, self.rows + other.rows)


def count(mask: Tensor) -> Counts:
    """Counts of one piece from its `mask` `[B, T]` bool."""
    return Counts(int(mask.sum()), int(mask.any(dim=1).sum()))


def reduce(
    loss: Tensor, mask: Tensor, counts: Counts, how: Reduction = "token_mean", length: int = 1
) -> Tensor:
    """Sum `loss` `[B, T]` over the steps of `mask` and divide as `how` says; a scalar.

    | how | value |
    |---|---|
    | `token_mean` | Σ_{i,t} l_it / Σ_i n_i (DAPO, arXiv 2503.14476 eq. 8) |
    | `token_sum` | Σ_{i,t} l_it |
    | `sequence_mean_token_mean` | (1/N) Σ_i (1/n_i) Σ_t l_it (GRPO, arXiv 2402.03300 eq. 3) |
    | `sequence_mean_token_sum` | (1/N) Σ_i Σ_t l_it (the score-function estimator of whole sequences) |
    | `fixed_length` | (1/(N·length)) Σ_i Σ_t l_it (Dr. GRPO, arXiv 2503.20783) |

    n_i counts the row's steps under the mask, N = `counts.rows` the rows that have any. With nothing under
    the mask the value is 0 with zero gradient. Raises ValueError on unequal shapes or an unknown `how`.
    """
    require_same_shape(loss=loss, mask=mask)
    loss = only(mask, loss)
    if how == "token_mean":
        return loss.sum() / max(counts.steps, 1)
    if how == "token_sum":
        return loss.sum()
    rows = max(counts.rows, 1)
    if how == "sequence_mean_token_mean":
        return (loss.sum(dim=1) / mask.sum(dim=1).clamp(min=1)).sum() / rows
    if how == "sequence_mean_token_sum":
        return loss.sum() / rows
    if how == "fixed_length":
        return loss.sum() / (rows * length)
    raise ValueError(f"unknown reduction {how!r}: choose one of {', '.join(Reduction.__args__)}")
