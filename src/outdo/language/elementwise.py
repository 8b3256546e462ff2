"""What a Llama-shaped layer does beside products and attention: norms and gated activation.

Each function has a plain form in torch and, for small float32 tensors on a CPU, a compiled one that makes a single
pass over them: there the passes of the plain form, one for each of its operations, are what takes the time.

Axes: N tokens, D hidden, F feed-forward units.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from outdo.language.kernels import SUMS, exp, norm

LARGEST = 1 << 20
"""Tensors of more elements are left to torch and its threads."""


def _compiled(*tensors: Tensor) -> bool:
    return tensors[0].numel() <= LARGEST and all(
        x.dtype == torch.float32 and x.device.type == "cpu" and x.ndim > 1 and x.is_contiguous()
        for x in tensors
    )


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """Root-mean-square norm x / sqrt(mean(x^2) + eps) * weight over the last axis, in float32, given in `dtype`."""
    if dtype == torch.float32 and x.ndim == 2 and _compiled(x):
        out = torch.empty_like(x)
        _norm(x.numpy(), weight.numpy(), np.float32(eps), out.numpy())
        return out
    scale = torch.rsqrt(x.square().mean(dim=-1, keepdim=True).add_(eps))
    return (x * scale).mul_(weight).to(dtype)


def column_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """`rms_norm` of the columns of x [D, N]."""
    scale = torch.rsqrt(x.square().mean(dim=0).add_(eps))
    return (x * scale).mul_(weight[:, None]).to(dtype)


def rms_norm_backward(x: Tensor, weight: Tensor, eps: float, grad: Tensor, add_to: Tensor) -> Tensor:
    """Gradient of `rms_norm` by x; the weight's gradient is added to `add_to`."""
    if x.ndim == 2 and _compiled(x, grad):
        out = torch.empty_like(x)
        _norm_backward(x.numpy(), weight.numpy(), np.float32(eps), grad.numpy(), add_to.numpy(), out.numpy())
        return out
    scale = torch.rsqrt(x.square().mean(dim=-1, keepdim=True).add_(eps))
    normed = x * scale
    add_to.add_((grad * normed).flatten(0, -2).sum(dim=0))
    g = grad * weight
    return (g - normed * (g * normed).mean(dim=-1, keepdim=True)).mul_(scale)


def gated(gate_up: Tensor) -> Tensor:
    """silu(gate) * up [N, F], for both side by side [N, 2F]."""
    if _compiled(gate_up):
        out = gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2)
        _gated(gate_up.numpy(), out.numpy())
        return out
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def gated_backward(gate_up: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """`gated` again, and the gradient [N, 2F] by `gate_up`, given `grad` [N, F]."""
    change = torch.empty_like(gate_up)
    if _compiled(gate_up, grad):
        out = torch.empty_like(grad)
        _gated_backward(gate_up.numpy(), grad.numpy(), out.numpy(), change.numpy())
        return out, change
    gate, up = gate_up.chunk(2, dim=-1)
    active = F.silu(gate)
    torch.mul(grad, active, out=change[:, gate.shape[1] :])
    change[:, : gate.shape[1]] = torch.ops.aten.silu_backward(grad * up, gate)
    return active * up, change


@numba.njit(**SUMS)
def _norm(x: Any, weight: Any, eps: Any, out: Any) -> None:
    for n in range(len(x)):
        norm(x[n], weight, eps, out[n])


@numba.njit(**SUMS)
def _norm_backward(x: Any, weight: Any, eps: Any, grad: Any, add_to: Any, out: Any) -> None:
    size = np.float32(weight.size)
    for n in range(len(x)):
        a, g, y = x[n], grad[n], out[n]
        squares = along = np.float32(0)
        for d in range(weight.size):
            squares += a[d] * a[d]
            along += a[d] * g[d] * weight[d]
        scale = np.float32(1) / np.sqrt(squares / size + eps)
        back = along * scale * scale / size
        for d in range(weight.size):
            y[d] = (g[d] * weight[d] - a[d] * back) * scale
        for d in range(weight.size):
            add_to[d] += g[d] * a[d] * scale


@numba.njit(**SUMS)
def _gated(gate_up: Any, out: Any) -> None:
    units = out.shape[1]
    for n in range(len(out)):
        gate, up, y = gate_up[n, :units], gate_up[n, units:], out[n]
        for f in range(units):
            y[f] = gate[f] / (np.float32(1) + exp(-gate[f])) * up[f]


@numba.njit(**SUMS)
def _gated_backward(gate_up: Any, grad: Any, out: Any, change: Any) -> None:
    one, units = np.float32(1), out.shape[1]
    for n in range(len(out)):
        gate, up, g, y = gate_up[n, :units], gate_up[n, units:], grad[n], out[n]
        by_gate, by_up = change[n, :units], change[n, units:]
        for f in range(units):
            share = one / (one + exp(-gate[f]))
            active = gate[f] * share
            y[f] = active * up[f]
            by_up[f] = g[f] * active
            by_gate[f] = g[f] * up[f] * (share + active * (one - share))
