"""Shape checks and masking that open every estimator, objective and reduction."""

from __future__ import annotations

import torch
from torch import Tensor


def require_same_shape(**tensors: Tensor | None) -> None:
    """Refuse tensors whose shapes differ: `[B]` against `[B, 1]` broadcasts silently and is always a mistake.

    Raises ValueError naming every tensor and its shape. None entries are skipped.
    """
    shapes = {name: tuple(tensor.shape) for name, tensor in tensors.items() if tensor is not None}
    if len(set(shapes.values())) > 1:
        listed = ", ".join(f"{name} {shape}" for name, shape in shapes.items())
        raise ValueError(f"tensors must have equal shapes, got {listed}")


def only(mask: Tensor, tensor: Tensor) -> Tensor:
    """`tensor` where `mask` is True, else 0: junk and NaN elsewhere reach neither value nor gradient."""
    return torch.where(mask, tensor, torch.zeros((), dtype=tensor.dtype, device=tensor.device))
