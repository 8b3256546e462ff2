"""The one data contract between environments, estimators, objectives and policies.

Axes: B rows (a completion, a driving answer, one environment's window), T steps (tokens or environment steps).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Batch:
    """Trajectories, or pieces of them, as `[B, T]` tensors.

    | field | shape | meaning |
    |---|---|---|
    | `obs`, `action` | opaque | owned by the policy; indexed by row with `take` |
    | `logp` | [B, T] | log-probability of the action under the distribution that sampled it, float32 |
    | `reward` | [B, T] | reward received for the step |
    | `discount` | [B, T] | gamma * (1 - terminated) |
    | `cut` | [B, T] bool | the recursion stops after this step: terminated, truncated or end of window |
    | `valid` | [B, T] bool | False for padding and rows to skip: no influence on anything |
    | `group` | [B] int64 | id of the prompt, scene or start state |
    | `value`, `next_value` | [B, T] | critic at s_t and s_{t+1}; None without a critic |
    | `ref_logp` | [B, T] | log-probability under the reference; None where no KL asks for it |
    | `old_logp` | [B, T] | the trainer's own log-probability before the first update; None means `logp` |
    | `advantage`, `target` | [B, T] | filled by the algorithm: advantage, and regression target of the critic |
    | `keep` | [B] bool | False: counts in group statistics, carries no loss (over-long completions) |
    | `info` | B dicts | what a person wants to read about the row (texts, raw reward terms, stop reason) |
    | `stepwise` | bool | `obs` and `action` are `[B, T, ...]` and every step stands by itself (`steps`) |
    """

    obs: Any
    action: Any
    logp: Tensor
    reward: Tensor
    discount: Tensor
    cut: Tensor
    valid: Tensor
    group: Tensor
    value: Tensor | None = None
    next_value: Tensor | None = None
    ref_logp: Tensor | None = None
    old_logp: Tensor | None = None
    advantage: Tensor | None = None
    target: Tensor | None = None
    keep: Tensor | None = None
    info: tuple[dict[str, Any], ...] = field(default=())
    stepwise: bool = False

    def __post_init__(self) -> None:
        """Refuse fields whose shapes or types disagree; errors name the field."""
        shape = self.logp.shape
        if len(shape) != 2:
            raise ValueError(f"Batch.logp must be [B, T], got shape {tuple(shape)}")
        for name in (
            "reward",
            "discount",
            "cut",
            "valid",
            "value",
            "next_value",
            "ref_logp",
            "old_logp",
            "advantage",
            "target",
        ):
            tensor = getattr(self, name)
            if tensor is not None and tensor.shape != shape:
                raise ValueError(
                    f"Batch.{name} must have the shape {tuple(shape)} of logp, got {tuple(tensor.shape)}"
                )
        for name in ("group", "keep"):
            tensor = getattr(self, name)
            if tensor is not None and tensor.shape != shape[:1]:
                raise ValueError(f"Batch.{name} must have shape ({shape[0]},), got {tuple(tensor.shape)}")
        for name in ("cut", "valid", "keep"):
            tensor = getattr(self, name)
            if tensor is not None and tensor.dtype != torch.bool:
                raise ValueError(f"Batch.{name} must be bool, got {tensor.dtype}")
        if (self.value is None) != (self.next_value is None):
            raise ValueError("Batch.value and Batch.next_value come together: give both or neither")
        if self.info and len(self.info) != shape[0]:
            raise ValueError(f"Batch.info must hold {shape[0]} dicts or none, got {len(self.info)}")

    def __len__(self) -> int:
        """Number of rows B."""
        return self.logp.shape[0]

    @property
    def lengths(self) -> Tensor:
        """Valid steps per row, `[B]` int64."""
        return self.valid.sum(dim=1)

    @property
    def loss_mask(self) -> Tensor:
        """Steps that carry loss, `[B, T]` bool: valid and in a row that is kept."""
        return self.valid if self.keep is None else self.valid & self.keep[:, None]

    def select(self, rows: Tensor | slice) -> Batch:
        """The batch of the given rows, `[N]` int64 or a slice; every field follows, `obs` and `action` by `take`."""
        changed: dict[str, Any] = {}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name == "info":
                changed["info"] = take(value, rows) if value else ()
            elif item.name != "stepwise" and value is not None:
                changed[item.name] = take(value, rows)
        return replace(self, **changed)

    def steps(self) -> Batch:
        """The N steps that carry loss, row after row, as N rows of one step each: `[B, T]` to `[N, 1]`.

        For a loss that is a sum over steps and a policy that remembers nothing; advantages come first, for the
        result has no neighbours to estimate them from. `keep` and `info` speak of rows and stay behind.
        Raises ValueError unless `stepwise`.
        """
        if not self.stepwise:
            raise ValueError("the steps of this batch do not stand by themselves: Batch.stepwise is False")
        index = self.loss_mask.flatten().nonzero().flatten()
        changed: dict[str, Any] = {"keep": None, "info": ()}
        for item in fields(self):
            value = getattr(self, item.name)
            if item.name == "group":
                changed["group"] = value.repeat_interleave(self.logp.shape[1])[index]
            elif item.name not in (*changed, "stepwise") and value is not None:
                changed[item.name] = _steps(value, index)
        return replace(self, **changed)

    def with_(self, **changes: Any) -> Batch:
        """A copy with some fields replaced."""
        return replace(self, **changes)


def take(value: Any, rows: Tensor | slice) -> Any:
    """Index `value` by rows: tensors, sequences, mappings of these, or any object with `select(rows)`."""
    if isinstance(value, Tensor):
        return value[rows] if isinstance(rows, slice) else value[rows.to(value.device)]
    if hasattr(value, "select"):
        return value.select(rows)
    if isinstance(value, dict):
        return {key: take(item, rows) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return value[rows] if isinstance(rows, slice) else type(value)(value[i] for i in rows.tolist())
    raise TypeError(
        f"cannot index {type(value).__name__} by row: give a tensor, list, tuple, dict or an object with select(rows)"
    )


def _steps(value: Any, index: Tensor) -> Any:
    """Steps `index` of tensors `[B, T, ...]`, or of a mapping of these, as `[N, 1, ...]`."""
    if isinstance(value, dict):
        return {key: _steps(item, index) for key, item in value.items()}
    return value.flatten(0, 1)[index.to(value.device)][:, None]
