"""Compiled recursions on contiguous arrays `[B, T]`; `outdo.core.returns` chooses them where they apply."""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32] | NDArray[np.float64]
Mask = NDArray[np.bool_]


@numba.njit(cache=True, inline="always", fastmath={"contract"})
def _coefficients(
    reward: Any, value: Any, next_value: Any, discount: Any, cut: Any, valid: Any, lam: Any, b: Any, c: Any
) -> None:
    """One row of x_t = b_t + c_t · x_{t+1}; an invalid step is the identity b = 0, c = 1.

    Three loops, because each then has few enough arrays for the compiler to vectorise it.
    """
    zero = lam * 0
    for t in range(reward.size):
        b[t] = reward[t] + discount[t] * next_value[t] - value[t]
    for t in range(reward.size):
        c[t] = zero if cut[t] else discount[t] * lam
    for t in range(reward.size):
        if not valid[t]:
            b[t] = zero
            c[t] = zero + 1


@numba.njit(cache=True, inline="always", fastmath={"contract"})
def _scan4(b: Any, c: Any, zero: Any) -> None:
    """Solve x_t = b_t + c_t · x_{t+1} for four rows `[4, T]`, in place in `b`; the four chains overlap."""
    b0, b1, b2, b3 = b[0], b[1], b[2], b[3]
    c0, c1, c2, c3 = c[0], c[1], c[2], c[3]
    x0, x1, x2, x3 = zero, zero, zero, zero
    for back in range(b0.size):
        t = b0.size - 1 - back
        x0 = b0[t] + c0[t] * x0
        b0[t] = x0
        x1 = b1[t] + c1[t] * x1
        b1[t] = x1
        x2 = b2[t] + c2[t] * x2
        b2[t] = x2
        x3 = b3[t] + c3[t] * x3
        b3[t] = x3


@numba.njit(cache=True, inline="always", fastmath={"contract"})
def _scan(b: Any, c: Any, zero: Any) -> None:
    """Solve x_t = b_t + c_t · x_{t+1} for one row `[T]`, in place in `b`."""
    x = zero
    for back in range(b.size):
        t = b.size - 1 - back
        x = b[t] + c[t] * x
        b[t] = x


@numba.njit(cache=True, fastmath={"contract"})
def gae(
    reward: Floats,
    value: Floats,
    next_value: Floats,
    discount: Floats,
    cut: Mask,
    valid: Mask,
    lam: Any,
    out: Floats,
) -> None:
    """Write `returns.gae` into `out` `[B, T]`; C-contiguous arrays of equal shape, `lam` of their float type.

    Nothing is checked here. Junk in invalid steps has no influence.
    """
    rows, steps = reward.shape
    zero = lam * 0
    c = np.empty((4, steps), reward.dtype)
    for first in range(0, rows, 4):
        last = min(first + 4, rows)
        for row in range(first, last):
            _coefficients(
                reward[row],
                value[row],
                next_value[row],
                discount[row],
                cut[row],
                valid[row],
                lam,
                out[row],
                c[row - first],
            )
        if last - first == 4:
            _scan4(out[first:last], c, zero)
        else:
            for row in range(first, last):
                _scan(out[row], c[row - first], zero)
        for row in range(first, last):
            x, keep = out[row], valid[row]
            for t in range(steps):
                if not keep[t]:
                    x[t] = zero
