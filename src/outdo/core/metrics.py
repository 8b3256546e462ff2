"""Figures of a loss as additive statistics: micro-batches and ranks add up to exactly the figure of the whole."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

Pair = tuple[Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class Metrics:
    """Named statistics: `means` hold (sum, count), `maxima` hold a maximum, `variances` (Σx, Σx², count) of scalars."""

    means: dict[str, Pair] = field(default_factory=dict)
    maxima: dict[str, Tensor] = field(default_factory=dict)
    moments: dict[str, tuple[Tensor, Tensor, Tensor]] = field(default_factory=dict)

    def __add__(self, other: Metrics) -> Metrics:
        """Statistics of two disjoint pieces together; a name only one of them has is kept."""
        means = dict(self.means)
        for name, (total, count) in other.means.items():
            old = means.get(name)
            means[name] = (total, count) if old is None else (old[0] + total, old[1] + count)
        maxima = dict(self.maxima)
        for name, value in other.maxima.items():
            maxima[name] = torch.maximum(maxima[name], value) if name in maxima else value
        moments = dict(self.moments)
        for name, (one, two, count) in other.moments.items():
            old = moments.get(name)
            moments[name] = (one, two, count) if old is None else (old[0] + one, old[1] + two, old[2] + count)
        return Metrics(means, maxima, moments)

    def values(self) -> dict[str, float]:
        """The figures: means (left out where nothing was counted), maxima, and `explained_variance` of the critic.

        explained_variance = 1 − Var(target − V) / Var(target); left out where the target does not vary.
        """
        figures = {name: float(total) / float(n) for name, (total, n) in self.means.items() if float(n) > 0}
        figures |= {name: float(value) for name, value in self.maxima.items()}
        if "target" in self.moments:
            target, residual = _variance(*self.moments["target"]), _variance(*self.moments["residual"])
            if target > 0:
                figures["explained_variance"] = 1 - residual / target
        return figures


def _variance(total: Tensor, squares: Tensor, count: Tensor) -> float:
    """Population variance from moments: E[x²] − E[x]²; 0 of nothing."""
    n = max(float(count), 1.0)
    return float(squares) / n - (float(total) / n) ** 2
