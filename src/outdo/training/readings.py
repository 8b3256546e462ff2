"""What is read off a batch and an evaluation for the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from outdo.core.baselines import groups_without_signal, scored_rows
from outdo.core.baselines import score as row_score
from outdo.core.batch import Batch


def collected_metrics(batch: Batch, surrogate: bool) -> dict[str, float]:
    """What a collected batch shows by itself: mean length of a row; for sampled rows also reward and signal.

    `entropy_sampled` is the mean of −log π over sampled steps, an unbiased estimate of the entropy of the
    sampled distribution over all rows, silent ones included.
    """
    metrics = {"length": float(batch.lengths.float().mean())}
    if surrogate:
        steps = batch.valid.sum().clamp(min=1)
        scored = scored_rows(batch)
        metrics["reward"] = float(row_score(batch.reward, batch.valid)[scored].mean())
        silent, groups = groups_without_signal(batch)
        if int(groups) < int(scored.sum()):
            metrics["groups_without_signal"] = float(silent / groups)
        metrics["entropy_sampled"] = float(-torch.where(batch.valid, batch.logp, 0.0).sum() / steps)
    return metrics


def rollout_rows(batch: Batch, advantage: Tensor | None, stage: str, total: int) -> list[dict[str, Any]]:
    """One dict per row with something to read: group, total reward, mean of `advantage` [B, T], `info`."""
    if not batch.info:
        return []
    rewards = row_score(batch.reward, batch.valid).tolist()
    advantage = torch.zeros_like(batch.reward) if advantage is None else advantage
    advantages = (torch.where(batch.valid, advantage, 0.0).sum(dim=1) / batch.lengths.clamp(min=1)).tolist()
    place = {"kind": "rollout", "stage": stage, "total": total}
    return [
        {
            **place,
            "row": row,
            "group": int(batch.group[row]),
            "reward": rewards[row],
            "advantage": advantages[row],
            **info,
        }
        for row, info in enumerate(batch.info)
    ]


def interval_text(metrics: Mapping[str, float], headline: Sequence[str] = ()) -> str:
    """Scores of an evaluation in a line, `name value [low, high]`; all metrics where none has an interval.

    `headline` names those that are given, in its order; empty: all with an interval.

    The ends of a figure are called as `greedy/low` of `greedy/accuracy`, or `deterministic/return/low`.
    """
    parts: list[str] = []
    for name in headline or metrics:
        value = metrics[name]
        for place in (name.removesuffix("/accuracy"), name):
            if f"{place}/low" in metrics:
                low, high = metrics[f"{place}/low"], metrics[f"{place}/high"]
                parts.append(f"{place} {value:.3f} [{low:.3f}, {high:.3f}]")
                break
    return "  ".join(parts or (f"{name} {value:.3f}" for name, value in metrics.items()))
