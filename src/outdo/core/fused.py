"""The loss of a step-by-step policy in one compiled pass with its derivative, where that gives the same numbers.

Small policies spend their time on the overhead of operators: the torch form of `Algorithm.loss` takes about a
hundred, most of them for figures. `Algorithm.loss` comes here for what `suits` accepts.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outdo.core.protocols import Derivatives

Sums = np.ndarray[Any, np.dtype[np.float64]]


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


def _flat(tensor: Tensor | None, like: Tensor) -> Any:
    """The numbers of a tensor in one row; an empty row for None."""
    return like.new_empty(0).numpy() if tensor is None else tensor.detach().reshape(-1).numpy()


class _Total(torch.autograd.Function):
    """A scalar whose derivatives are known."""

    @staticmethod
    def forward(
        ctx: Any,
        total: float,
        logp: Tensor,
        entropy: Tensor | None,
        value: Tensor | None,
        derivatives: Derivatives,
    ) -> Tensor:
        """Remember the derivatives and give the number."""
        ctx.derivatives = derivatives
        return logp.new_tensor(total)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(  # pyright: ignore[reportIncompatibleMethodOverride]  # the decorator hides its name
        ctx: Any, *outputs: Any
    ) -> tuple[Tensor | None, ...]:
        """Times the derivative of whatever was made of the scalar."""
        if float(outputs[0]) == 1:
            return None, *ctx.derivatives, None
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
    *,
    clip: tuple[float, float] | None,
    value_clip: float | None,
    policy_weight: float,
    entropy_weight: float,
    value_weight: float,
) -> tuple[Tensor, Derivatives, Sums]:
    """policy_weight · Σ objective − entropy_weight · Σ H + value_weight · Σ critic's loss, derivatives, sums.

    The objective is PPO's clipped surrogate with `clip` = (low, high), −A·log π without. All `[B, T]`;
    the sums, in this order: steps, policy loss, clipped steps, ρ, k1, k3, sampler gap, entropy, value loss,
    largest ρ. Equations: `objectives.clipped`, `objectives.reinforce`, `objectives.value_clipped`.
    """
    kind = logp.detach().numpy().dtype.type
    d_logp = torch.empty_like(logp, requires_grad=False, memory_format=torch.contiguous_format)
    d_value = None if value is None else torch.empty_like(d_logp)
    sums: Sums = np.zeros(10)
    low, high = clip or (0.0, 0.0)
    _kernel()(
        *(_flat(each, d_logp) for each in (logp, old_logp, sampled_logp, advantage, entropy)),
        *(_flat(each, d_logp) for each in (value, old_value, target)),
        mask.reshape(-1).numpy(),
        clip is not None,
        kind(low),
        kind(high),
        kind(value_clip or 0.0),
        _flat(d_logp, d_logp),
        _flat(d_value, d_logp),
        sums,
    )
    total = policy_weight * sums[1] - entropy_weight * sums[7] + value_weight * sums[8]
    d_entropy = None
    if entropy is not None and entropy_weight:
        d_entropy = mask.to(logp.dtype).mul_(-entropy_weight)
    if d_value is not None:
        d_value.mul_(value_weight)
    derivatives = (d_logp.mul_(policy_weight), d_entropy, d_value)
    if not torch.is_grad_enabled() or not logp.requires_grad:  # whoever scored goes on with the derivatives
        return logp.new_tensor(total), derivatives, sums
    return _Total.apply(float(total), logp, entropy, value, derivatives), derivatives, sums
