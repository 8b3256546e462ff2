"""The loss of a step-by-step policy in one compiled pass with its derivative, where that gives the same numbers.

Small policies spend their time on the overhead of operators: the torch form of `Algorithm.loss` takes about a
hundred, most of them for figures. `Algorithm.loss` comes here for what `suits` accepts.
"""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

Sums = np.ndarray[Any, np.dtype[np.float64]]


class Settings(NamedTuple):
    """A loss as `kernels.surrogate` and the sums around it take it.

    | field | meaning |
    |---|---|
    | `clips`, `low`, `high` | PPO's clipped surrogate, or −A·log π |
    | `mean` | objective and entropy are means over the steps of the minibatch, else sums |
    | `entropy` | weight of the entropy bonus |
    | `critic`, `value`, `value_clip` | there is a critic's loss (a mean over steps), its weight, its clip (0: none) |
    | `standardises`, `ddof`, `eps` | advantages are standardised over the minibatch (`parts.standardised`) |
    """

    clips: bool
    low: float
    high: float
    mean: bool
    entropy: float
    critic: bool
    value: float
    value_clip: float
    standardises: bool
    ddof: int
    eps: float

    def total(self, sums: Sums, steps: int) -> float:
        """The loss of a minibatch of `steps` steps from sums over all or some of them."""
        mean = 1 / max(steps, 1)
        objective = sums[1] - self.entropy * sums[7]
        return float(objective * (mean if self.mean else 1.0) + self.value * mean * sums[8])


def suits(*tensors: Tensor | None) -> bool:
    """CPU tensors of one shape and one float type (float32 or float64); None entries are skipped."""
    first = tensors[0]
    if first is None or first.dtype not in (torch.float32, torch.float64):
        return False
    return all(
        each is None or (each.is_cpu and each.dtype is first.dtype and each.shape == first.shape)
        for each in tensors
    )


@cache
def _kernel() -> Any:
    """The compiled kernel, imported at its first use: numba takes a while to import."""
    from outdo.core import kernels

    return kernels.surrogate


def _flat(tensor: Tensor | None, like: Sums) -> Any:
    """The numbers of a tensor in one row; an empty row of the kind of `like` for None."""
    return like.reshape(-1)[:0] if tensor is None else tensor.detach().numpy().reshape(-1)


class _Total(torch.autograd.Function):
    """A scalar whose derivatives are known."""

    @staticmethod
    def forward(ctx: Any, total: float, *scores: Any) -> Tensor:
        """Remember the derivatives and give the number; `scores`: log-probability, entropy, value, derivatives."""
        ctx.derivatives = scores[3]
        return scores[0].new_tensor(total)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator hides its name
        ctx: Any, *outputs: Any
    ) -> tuple[Tensor | None, ...]:
        """Times the derivative of whatever was made of the scalar."""
        return None, *(None if each is None else each * outputs[0] for each in ctx.derivatives), None


def loss(
    logp: Tensor,
    old_logp: Tensor,
    sampled_logp: Tensor,
    advantage: Tensor,
    entropy: Tensor | None,
    value: Tensor | None,
    old_value: Tensor | None,
    target: Tensor | None,
    mask: Tensor,
    settings: Settings,
    steps: int,
) -> tuple[Tensor, Sums]:
    """The loss of a minibatch of `steps` steps, or of a piece of it, `[B, T]`, for autograd; and its sums.

    w · Σ objective − w · entropy · Σ H + value · Σ critic's loss / steps, w = 1/steps for a mean, else 1. The sums, in
    this order: steps, policy loss, clipped steps, ρ, k1, k3, sampler gap, entropy, value loss, largest ρ. Equations:
    `objectives.clipped`, `objectives.reinforce`, `objectives.value_clipped`. Advantages are taken as they come.
    """
    d_logp = np.empty(logp.shape, logp.detach().numpy().dtype)
    d_value = np.empty_like(d_logp) if value is not None else d_logp[:0]
    sums: Sums = np.zeros(10)
    kind, mean = d_logp.dtype.type, 1 / max(steps, 1)
    _kernel()(
        *(_flat(each, d_logp) for each in (logp, old_logp, sampled_logp, advantage, entropy)),
        *(_flat(each, d_logp) for each in (value, old_value, target)),
        mask.numpy().reshape(-1),
        settings.clips,
        kind(settings.low),
        kind(settings.high),
        kind(settings.value_clip),
        d_logp.reshape(-1),
        d_value.reshape(-1),
        sums,
    )
    weight = mean if settings.mean else 1.0
    d_entropy = None
    if entropy is not None and settings.entropy:
        d_entropy = mask.to(logp.dtype).mul_(-settings.entropy * weight)
    d_logp *= weight
    d_value *= settings.value * mean
    derivatives = torch.from_numpy(d_logp), d_entropy, None if value is None else torch.from_numpy(d_value)
    total = settings.total(sums, steps)
    return _Total.apply(total, logp, entropy, value, derivatives), sums
