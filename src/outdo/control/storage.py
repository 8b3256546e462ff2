"""Columns of a rollout: written step by step, read as `[N, T, ...]` tensors. N environments, T steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

Tree = Any
"""A NumPy array (or what `np.asarray` makes one of), or a dict of trees."""


class Columns:
    """Named columns whose shapes and types are those of the first step; they grow beyond `capacity` steps.

    `put` fills cells of the current step (at once: what is given may be overwritten afterwards), `close` ends it.
    """

    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"a rollout needs at least one step, got {capacity}")
        self._capacity = capacity
        self._step = 0
        self._columns: dict[str, Tree] = {}

    def __len__(self) -> int:
        """Steps that were closed."""
        return self._step

    def __getitem__(self, name: str) -> Tree:
        """The column as written so far, `[T, N, ...]`."""
        return _each(self._columns[name], lambda column: column[: self._step])

    def get(self, name: str) -> Tree | None:
        """The column, or None where it was never written."""
        return self[name] if name in self._columns else None

    def put(self, **values: Tree) -> None:
        """Write cells of the current step; each step gives the same names, shapes and types."""
        if self._step == self._capacity:
            self._columns = {name: _each(column, _doubled) for name, column in self._columns.items()}
            self._capacity *= 2
        for name, value in values.items():
            if name not in self._columns:
                if self._step:
                    raise ValueError(f"{name!r} comes at step {self._step} and did not at the first")
                self._columns[name] = _allocate(value, self._capacity)
            column = self._columns[name]
            if isinstance(column, dict):
                _write(column, self._step, value)
            else:
                column[self._step] = value

    def close(self) -> None:
        """End the current step."""
        self._step += 1

    def tensors(self, name: str) -> Any:
        """The column as tensor or dict of tensors `[N, T, ...]`, contiguous."""
        return _each(self[name], rows)


def rows(array: Any) -> torch.Tensor:
    """`[T, N, ...]` NumPy to `[N, T, ...]` tensor, contiguous; float64 becomes float32."""
    turned = np.ascontiguousarray(np.swapaxes(array, 0, 1))
    return torch.from_numpy(turned.astype(np.float32) if turned.dtype == np.float64 else turned)


def _each(tree: Tree, function: Callable[[Any], Any]) -> Any:
    if isinstance(tree, dict):
        return {name: _each(part, function) for name, part in tree.items()}
    return function(tree)


def _allocate(value: Tree, capacity: int) -> Tree:
    if isinstance(value, dict):
        return {name: _allocate(part, capacity) for name, part in value.items()}
    example = np.asarray(value)
    return np.empty((capacity, *example.shape), example.dtype)


def _doubled(column: Any) -> Any:
    return np.concatenate([column, np.empty_like(column)])


def _write(column: dict[str, Tree], step: int, value: Tree) -> None:
    for name, part in column.items():
        if isinstance(part, dict):
            _write(part, step, value[name])
        else:
            part[step] = value[name]
