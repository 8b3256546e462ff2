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


@numba.njit(cache=True)
def surrogate(
    logp: Any,
    old: Any,
    sampled: Any,
    advantage: Any,
    entropy: Any,
    value: Any,
    old_value: Any,
    target: Any,
    mask: Any,
    clips: bool,
    low: Any,
    high: Any,
    value_clip: Any,
    d_logp: Any,
    d_value: Any,
    sums: Any,
) -> None:
    """Token sums of the clipped (or plain) score-function loss, of the critic's loss and of all figures, `[N]`.

    `d_logp` and `d_value` get the derivatives of the two sums, 0 outside the mask. `entropy`, and the three of
    the critic, may be empty; `value_clip` ≤ 0 stands for none. `sums` (float64): steps, policy loss, clipped
    steps, ρ, −log ρ, k3 of ρ, |log π_old − log π_sampler|, entropy, value loss, largest ρ. A NaN stays a NaN.
    """
    zero = logp.dtype.type(0)
    one = logp.dtype.type(1)
    for i in range(logp.size):
        d_logp[i] = zero
        if not mask[i]:
            continue
        a = advantage[i]
        log_rho = logp[i] - old[i]
        rho = np.exp(log_rho)
        if clips:
            free = rho * a
            held = min(max(rho, one - low), one + high) * a
            flat = (a > 0 and rho > one + high) or (a < 0 and rho < one - low)
            sums[1] -= held if flat else free
            if flat:
                sums[2] += 1
            else:
                d_logp[i] = -free
        else:
            sums[1] -= a * logp[i]
            d_logp[i] = -a
        sums[0] += 1
        sums[3] += rho
        sums[4] -= log_rho
        sums[5] += np.expm1(log_rho) - log_rho
        sums[6] += abs(old[i] - sampled[i])
        if rho > sums[9] or rho != rho:
            sums[9] = rho
        if entropy.size:
            sums[7] += entropy[i]
    for i in range(value.size):
        d_value[i] = zero
        if not mask[i]:
            continue
        error = value[i] - target[i]
        loss, moves = error * error, True
        if value_clip > 0:
            moved = value[i] - old_value[i]
            near = old_value[i] + min(max(moved, -value_clip), value_clip) - target[i]
            if near * near > loss:
                loss, moves = near * near, abs(moved) <= value_clip
        sums[8] += loss
        if moves:
            d_value[i] = error + error
