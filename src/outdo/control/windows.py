"""What ends where: the one builder of `discount`, `cut`, `next_value` and `valid` for step-by-step environments.

Axes: T steps of a window, N environments; arrays are `[T, N]`, time first, as they are collected.

Gymnasium's vector environments begin an ended episode anew in one of two ways, which they declare:

| mode | the step that ends an episode returns | the step after it |
|---|---|---|
| next step | the final observation | ignores the action, pays 0, returns the first observation (reset row) |
| same step | the next first observation; the final one in `info["final_obs"]` | is the new episode's first |
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from outdo.control.storage import Columns, rows
from outdo.core.batch import Batch

Bools = NDArray[np.bool_]
Floats = NDArray[np.floating]


@dataclass(frozen=True, slots=True)
class Window:
    """Ends of a window as the estimators read them, `[T, N]`: see `Batch` for each field's meaning."""

    discount: Floats
    cut: Bools
    valid: Bools
    next_value: Floats | None


def reset_rows(ended: Bools, before: Bools) -> Bools:
    """Rows `[T, N]` that a next-step environment spends on a reset: the one after each end.

    `ended` `[T, N]`: terminated or truncated; `before` `[N]`: an episode ended with the step before the window.
    """
    rows = np.empty_like(ended)
    rows[0], rows[1:] = before, ended[:-1]
    return rows


def build(
    terminated: Bools,
    truncated: Bools,
    before: Bools,
    gamma: float,
    *,
    next_step: bool,
    value: Floats | None = None,
    after: Floats | None = None,
    final_value: Floats | None = None,
) -> Window:
    """The ends of a window.

    discount_t = γ·(1 − terminated_t); cut_t = terminated_t or truncated_t or t = T − 1; next_value_t = 0 where
    terminated, V(final observation) where truncated, V(s_{t+1}) elsewhere, at the window's end too.

    | argument | shape | meaning |
    |---|---|---|
    | `terminated`, `truncated` | [T, N] | as `step` returned them |
    | `before` | [N] | the episode had ended with the step before the window |
    | `next_step` | | there are reset rows: they are invalid, and their value is that of the final observation |
    | `value` | [T, N] | V of the observation that the action of the step was chosen on; None without a critic |
    | `after` | [N] | V of the observation after the window |
    | `final_value` | [T, N] | V(final observation), read where truncated with same-step autoreset only |

    Raises ValueError where a reset row ends an episode (the environment resets otherwise than it declares), and
    for a critic without `after`, or without the `final_value` that same-step autoreset needs.
    """
    ended = terminated | truncated
    if next_step:
        skipped = reset_rows(ended, before)
        wrong = np.argwhere(skipped & ended)
        if len(wrong):
            raise ValueError(
                f"environment {wrong[0][1]} declares next-step autoreset, but its step after an end of an episode "
                "ended one again: correct metadata['autoreset_mode'] of the vector environment"
            )
        valid = ~skipped
    else:
        valid = np.ones_like(ended)
    cut = ended.copy()
    cut[-1] = True
    discount = np.where(terminated, 0.0, gamma).astype(np.float32)
    if value is None:
        return Window(discount, cut, valid, None)
    if after is None:
        raise ValueError("a critic's window needs V of the observation after it")
    following = np.empty_like(value)
    following[:-1], following[-1] = value[1:], after
    if not next_step and truncated.any():
        if final_value is None:
            raise ValueError(
                "same-step autoreset needs V of the final observations where episodes are truncated"
            )
        following = np.where(truncated, final_value, following)
    following[terminated] = 0.0
    return Window(discount, cut, valid, following)


def of_columns(columns: Columns, before: Bools, after: Any, gamma: float, *, next_step: bool) -> Window:
    """`build` of what `stepping.take_step` wrote; `after` None without a critic."""
    return build(
        columns["terminated"],
        columns["truncated"],
        before,
        gamma,
        next_step=next_step,
        value=columns.get("value"),
        after=None if after is None else np.asarray(after),
        final_value=columns.get("final_value"),
    )


def batch(
    columns: Columns,
    window: Window,
    *,
    reward: Floats,
    valid: Bools,
    group: torch.Tensor,
    stepwise: bool,
    info: tuple[dict[str, Any], ...] = (),
) -> Batch:
    """What `stepping.take_step` wrote, as the core reads it: `[T, N]` becomes `[N, T]`."""
    critic = window.next_value is not None
    return Batch(
        obs=columns.tensors("features"),
        action=columns.tensors("raw"),
        logp=columns.tensors("logp"),
        reward=rows(reward),
        discount=rows(window.discount),
        cut=rows(window.cut),
        valid=rows(valid),
        group=group,
        value=columns.tensors("value") if critic else None,
        next_value=rows(window.next_value) if critic else None,
        info=info,
        stepwise=stepwise,
    )
