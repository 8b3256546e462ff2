"""Returns, TD errors, GAE and λ-returns on `[B, T]` tensors.

No function takes γ or `done`: `discount` is γ·(1 − terminated) and `cut` says where a recursion stops.
Invalid steps are stepped over: a recursion goes from the last valid step before a gap to the first one after
it, whatever stands in between.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from outdo.core.checks import only, require_same_shape


def td_error(reward: Tensor, value: Tensor, next_value: Tensor, discount: Tensor, valid: Tensor) -> Tensor:
    """δ_t = r_t + discount_t · V(s_{t+1}) − V(s_t), `[B, T]`; 0 at invalid steps.

    Raises ValueError on unequal shapes. Source: Sutton & Barto, Reinforcement Learning, eq. 6.5.
    """
    require_same_shape(reward=reward, value=value, next_value=next_value, discount=discount, valid=valid)
    return only(valid, reward) + only(valid, discount) * only(valid, next_value) - only(valid, value)


def gae(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    discount: Tensor,
    cut: Tensor,
    valid: Tensor,
    lam: float,
) -> Tensor:
    """Generalised advantage A_t = δ_t + discount_t · λ · (1 − cut_t) · A_{t+1}, `[B, T]`; 0 at invalid steps.

    λ = 0 is the one-step TD error, λ = 1 the return minus V(s_t). A numba kernel serves CPU tensors without
    gradient; every other tensor takes the torch form, which gives the same numbers.
    Raises ValueError on unequal shapes. Source: arXiv 1506.02438 eq. 16.
    """
    tensors = (reward, value, next_value, discount, cut, valid)
    if not _suits_kernel(tensors):
        return gae_torch(*tensors, lam)
    arrays = [(tensor if tensor.is_contiguous() else tensor.contiguous()).numpy() for tensor in tensors]
    out = np.empty_like(arrays[0])
    if out.size:
        _kernel()(*arrays, out.dtype.type(lam), out)
    return torch.from_numpy(out)


def _suits_kernel(tensors: tuple[Tensor, ...]) -> bool:
    """Four tensors of one float type, then two of bool: all of one shape, on the CPU, without gradient."""
    shape, floating = tensors[0].shape, tensors[0].dtype
    if floating not in (torch.float32, torch.float64):
        return False
    kinds = (floating, floating, floating, floating, torch.bool, torch.bool)
    for tensor, kind in zip(tensors, kinds, strict=True):
        if tensor.dtype is not kind or tensor.shape != shape or tensor.requires_grad or not tensor.is_cpu:
            return False
    return True


@cache
def _kernel() -> Any:
    """The compiled kernel, imported at its first use: numba takes a while to import."""
    from outdo.core import kernels

    return kernels.gae


def gae_torch(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    discount: Tensor,
    cut: Tensor,
    valid: Tensor,
    lam: float,
) -> Tensor:
    """`gae` by doubling in ⌈log2 T⌉ passes: differentiable, on any device. Arguments and errors as `gae`.

    An invalid step is the identity of the recursion x_t = b_t + c_t · x_{t+1}: b = 0, c = 1.
    """
    require_same_shape(reward=reward, cut=cut)
    total = td_error(reward, value, next_value, discount, valid)
    carry = torch.where(valid, only(valid & ~cut, discount) * lam, torch.ones_like(discount))
    span, steps = 1, reward.shape[1]
    while span < steps:
        rest = torch.zeros_like(total[:, :span])
        total = total + carry * torch.cat([total[:, span:], rest], dim=1)
        carry = carry * torch.cat([carry[:, span:], rest], dim=1)
        span *= 2
    return only(valid, total)


def lambda_return(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    discount: Tensor,
    cut: Tensor,
    valid: Tensor,
    lam: float,
) -> Tensor:
    """G_t = r_t + discount_t · [(1 − λ)·V(s_{t+1}) + λ·G_{t+1}] = A_t + V(s_t), `[B, T]`; 0 at invalid steps.

    At a cut G_t = r_t + discount_t · V(s_{t+1}). It is the target of the critic.
    Raises ValueError on unequal shapes. Source: Sutton & Barto, eq. 12.3.
    """
    return gae(reward, value, next_value, discount, cut, valid, lam) + only(valid, value)


def reward_to_go(
    reward: Tensor, discount: Tensor, cut: Tensor, valid: Tensor, next_value: Tensor | None = None
) -> Tensor:
    """Discounted return from step t, G_t = r_t + discount_t · (1 − cut_t) · G_{t+1}, `[B, T]`; 0 if invalid.

    With `next_value` a cut bootstraps: G_t = r_t + discount_t · V(s_{t+1}) there.
    Raises ValueError on unequal shapes.
    """
    zero = torch.zeros_like(reward)
    after = zero if next_value is None else only(cut, next_value)
    return gae(reward, zero, after, discount, cut, valid, 1.0)


def episode_return(reward: Tensor, discount: Tensor, cut: Tensor, valid: Tensor) -> Tensor:
    """G_0 of the step's own episode on each of its steps, `[B, T]`; 0 at invalid steps.

    An episode starts at the row's first valid step and after every cut. Raises ValueError on unequal shapes.
    """
    to_go = reward_to_go(reward, discount, cut, valid)
    step = torch.arange(reward.shape[1], device=reward.device).expand_as(cut)
    before = torch.where(valid, step, torch.full_like(step, -1)).cummax(dim=1).values.roll(1, dims=1)
    first = valid & ((step == 0) | (before < 0) | cut.gather(1, before.clamp(min=0)))
    start = only(first, step).cummax(dim=1).values
    return only(valid, to_go.gather(1, start))


def next_values(value: Tensor, final_value: Tensor, cut: Tensor, valid: Tensor) -> Tensor:
    """V(s_{t+1}) of each valid step, `[B, T]`: value of the row's next valid step; `final_value` at a cut.

    `final_value` `[B, T]` is read at cuts and at the last valid step of a row.
    Raises ValueError on unequal shapes.
    """
    require_same_shape(value=value, final_value=final_value, cut=cut, valid=valid)
    steps = value.shape[1]
    step = torch.arange(steps, device=value.device).expand_as(cut)
    following = torch.where(valid, step, torch.full_like(step, steps)).flip(1).cummin(dim=1).values.flip(1)
    following = torch.cat([following[:, 1:], torch.full_like(following[:, :1], steps)], dim=1)
    stop = cut | (following == steps)
    return only(valid, torch.where(stop, final_value, value.gather(1, following.clamp(max=steps - 1))))
