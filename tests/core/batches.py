"""Small batches with padding, cuts and groups, filled with seeded noise."""

from __future__ import annotations

import torch
from torch import Tensor

from outdo.core.batch import Batch

LENGTHS = (1, 2, 7, 10)


def mask_of(lengths: tuple[int, ...], steps: int | None = None) -> Tensor:
    """Right-padded mask `[B, T]`."""
    return torch.arange(steps or max(lengths)) < torch.tensor(lengths)[:, None]


def batch_of(
    lengths: tuple[int, ...] = LENGTHS,
    seed: int = 0,
    reward: list[float] | None = None,
    group: list[int] | None = None,
) -> Batch:
    """A float64 batch of completions: reward on the last token, every optional field filled."""
    generator = torch.Generator().manual_seed(seed)
    valid = mask_of(lengths)
    rows, steps = valid.shape

    def noise(scale: float = 1.0) -> Tensor:
        return torch.where(
            valid, scale * torch.randn(rows, steps, generator=generator, dtype=torch.float64), 0.0
        )

    last = torch.zeros_like(valid)
    last[torch.arange(rows), torch.tensor(lengths) - 1] = True
    scores = torch.tensor(reward, dtype=torch.float64) if reward else noise()[:, 0]
    logp = -noise().abs() - 0.1 * valid
    return Batch(
        obs=torch.arange(rows),
        action=torch.arange(rows),
        logp=logp,
        reward=torch.where(last, scores[:, None], torch.zeros(())),
        discount=torch.where(valid & ~last, 0.97, 0.0).double(),
        cut=last,
        valid=valid,
        group=torch.tensor(group if group else [i // 2 for i in range(rows)]),
        value=noise(),
        next_value=noise(),
        ref_logp=logp + noise(0.3),
        old_logp=logp + noise(0.05),
    )


def with_junk(batch: Batch, junk: float = float("nan")) -> Batch:
    """The batch with `junk` in every invalid position of every float field."""
    changes = {}
    for name in (
        "logp",
        "reward",
        "discount",
        "value",
        "next_value",
        "ref_logp",
        "old_logp",
        "advantage",
        "target",
    ):
        tensor = getattr(batch, name)
        if tensor is not None:
            changes[name] = torch.where(batch.valid, tensor, junk)
    return batch.with_(**changes)
