"""What a Llama-shaped layer does beside products and attention: norms and gated activation.

Each function has a plain form in torch and, for small float32 tensors on a CPU, a compiled one that makes a single
pass over them: there the passes of the plain form, one for each of its operations, are what takes the time.

Axes: N tokens, D hidden, F feed-forward units.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

LARGEST = 1 << 20
"""Tensors of more elements are left to torch and its threads."""


@cache
def _kernels() -> Any:
    """The compiled kernels, imported at their first use: numba takes a while, and memory."""
    from outdo.language import kernels

    return kernels


def _compiled(*tensors: Tensor) -> bool:
    return tensors[0].numel() <= LARGEST and all(
        x.dtype == torch.float32 and x.device.type == "cpu" and x.ndim > 1 and x.is_contiguous()
        for x in tensors
    )


def rms_norm(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    """Root-mean-square norm x / sqrt(mean(x^2) + eps) * weight over the last axis, in float32, given in `dtype`."""
    if dtype == torch.float32 and x.ndim == 2 and _compiled(x):
        out = torch.empty_like(x)
        _kernels().rows_norm(x.numpy(), weight.numpy(), np.float32(eps), out.numpy())
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
        _kernels().rows_norm_backward(
            x.numpy(), weight.numpy(), np.float32(eps), grad.numpy(), add_to.numpy(), out.numpy()
        )
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
        _kernels().gated(gate_up.numpy(), out.numpy())
        return out
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def gated_backward(gate_up: Tensor, grad: Tensor) -> tuple[Tensor, Tensor]:
    """`gated` again, and the gradient [N, 2F] by `gate_up`, given `grad` [N, F]."""
    change = torch.empty_like(gate_up)
    if _compiled(gate_up, grad):
        out = torch.empty_like(grad)
        _kernels().gated_backward(gate_up.numpy(), grad.numpy(), out.numpy(), change.numpy())
        return out, change
    gate, up = gate_up.chunk(2, dim=-1)
    active = F.silu(gate)
    torch.mul(grad, active, out=change[:, gate.shape[1] :])
    change[:, : gate.shape[1]] = torch.ops.aten.silu_backward(grad * up, gate)
    return active * up, change
