"""Where a model computes, and in which precision."""

from __future__ import annotations

from typing import Literal

import torch

Precision = Literal["auto", "float32", "bfloat16"]


def compute_dtype(precision: Precision, device: torch.device, width: int) -> torch.dtype:
    """Dtype of matrix products: `auto` is bfloat16 where that is faster (AMX, a GPU that has it; not a tiny model)."""
    if precision != "auto":
        return torch.float32 if precision == "float32" else torch.bfloat16
    if width < 256:
        return torch.float32
    has = (
        torch.cuda.is_bf16_supported()
        if device.type == "cuda"
        else torch.cpu.get_capabilities().get("amx_tile", False)
    )
    return torch.bfloat16 if has else torch.float32


def choose_device(device: str) -> torch.device:
    """`auto` is the first GPU, else the CPU. Raises ValueError for a device this machine does not have."""
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        chosen = torch.device(device)
        torch.empty(0, device=chosen)
    except (RuntimeError, AssertionError) as error:
        raise ValueError(
            f"device {device!r} cannot be used here: {str(error).splitlines()[0]}; try 'cpu'"
        ) from error
    return chosen
