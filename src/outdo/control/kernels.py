"""Compiled distributions of the fast path: sampling, scores and their gradients, row by row.

Parts of rows are passed as row, first column and size: slices would cost more than the arithmetic. Nothing is checked
here; `outdo.control.fast` builds the arguments. Sums are taken in float64, results are float32. `distributions` has
the formulas; tests hold the two equal.

Axes: M rows, K network outputs (further columns are left alone), W columns of a raw action, S standard deviations,
P parts.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from outdo.control.distributions import Distribution

COMPILE: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy"}
KIND, OUTPUT, SIZE, RAW, STD = range(5)
"""Columns of the table of parts: kind, first output, size, first raw column, first standard deviation."""
CATEGORICAL, BERNOULLI, GAUSSIAN, TANH_GAUSSIAN = range(4)
KINDS = {
    "categorical": CATEGORICAL,
    "bernoulli": BERNOULLI,
    "gaussian": GAUSSIAN,
    "tanh_gaussian": TANH_GAUSSIAN,
}
NO_MASK = np.ones((0, 0), dtype=np.bool_)
"""Stands for a mask that forbids nothing."""


def table_of(distribution: Distribution) -> NDArray[np.int64]:
    """The parts as rows `[P, 5]`."""
    rows = [
        (KINDS[part.kind], outputs.start, part.size, raw.start, stds.start)
        for part, outputs, raw, stds in distribution.places
    ]
    return np.array(rows, dtype=np.int64)


def log_half_of(distribution: Distribution) -> NDArray[np.float64]:
    """log((high − low)/2) `[S]` of squashed dimensions, 0 for the others."""
    result = np.zeros(distribution.stds)
    for part, _, _, stds in distribution.places:
        if part.kind == "tanh_gaussian":
            assert part.low is not None
            assert part.high is not None
            result[stds] = np.log((part.high.astype(np.float64) - part.low) / 2)
    return result


@numba.njit(**COMPILE)
def _softplus(x: Any) -> Any:
    return max(x, 0.0) + math.log1p(math.exp(-abs(x)))


@numba.njit(**COMPILE)
def _open(allowed: Any, m: Any, j: Any) -> Any:
    """Whether output j of row m may be chosen; an empty mask forbids nothing."""
    return allowed.size == 0 or allowed[m, j]


@numba.njit(**COMPILE)
def _largest(outputs: Any, allowed: Any, m: Any, k: Any, n: Any) -> Any:
    """Column of the largest logit that is allowed, of the n from column k on."""
    best = -1
    for j in range(k, k + n):
        if _open(allowed, m, j) and (best < 0 or outputs[m, j] > outputs[m, best]):
            best = j
    return best


@numba.njit(**COMPILE)
def _draw(outputs: Any, allowed: Any, m: Any, k: Any, n: Any, uniform: Any) -> Any:
    """The first allowed index whose cumulative weight exceeds `uniform` times the total weight."""
    most = outputs[m, _largest(outputs, allowed, m, k, n)]
    total = 0.0
    for j in range(k, k + n):
        if _open(allowed, m, j):
            total += math.exp(outputs[m, j] - most)
    left, last = uniform * total, 0
    for j in range(k, k + n):
        if _open(allowed, m, j):
            weight = math.exp(outputs[m, j] - most)
            if weight > 0:
                last = j - k
                left -= weight
                if left < 0:
                    break
    return last


@numba.njit(**COMPILE)
def sample(outputs: Any, table: Any, std: Any, noise: Any, mode: bool, allowed: Any, raw: Any) -> None:
    """Write raw actions `[M, W]` from `outputs` `[M, ≥K]` and `noise` `[M, W]`; the mode if `mode`."""
    for m in range(outputs.shape[0]):
        for p in range(table.shape[0]):
            kind, k, n = table[p, KIND], table[p, OUTPUT], table[p, SIZE]
            w, s = table[p, RAW], table[p, STD]
            if kind == CATEGORICAL:
                if mode:
                    raw[m, w] = _largest(outputs, allowed, m, k, n) - k
                else:
                    raw[m, w] = _draw(outputs, allowed, m, k, n, noise[m, w])
            elif kind == BERNOULLI:
                for j in range(n):
                    chance = 1 / (1 + math.exp(-outputs[m, k + j]))
                    bit = chance > 0.5 if mode else noise[m, w + j] < chance
                    raw[m, w + j] = bit and _open(allowed, m, k + j)
            else:
                for j in range(n):
                    mean = outputs[m, k + j]
                    raw[m, w + j] = mean if mode else mean + std[s + j] * noise[m, w + j]


@numba.njit(**COMPILE)
def _shares(outputs: Any, allowed: Any, m: Any, k: Any, n: Any) -> tuple[Any, Any, Any]:
    """The largest logit, Σ_j e^(l_j − largest), and Σ_j π_j (l_j − largest) over what is allowed."""
    most = outputs[m, _largest(outputs, allowed, m, k, n)]
    total, weighted = 0.0, 0.0
    for j in range(k, k + n):
        if _open(allowed, m, j):
            weight = math.exp(outputs[m, j] - most)
            total += weight
            weighted += weight * (outputs[m, j] - most)
    return most, total, weighted / total


@numba.njit(**COMPILE)
def score(
    outputs: Any,
    table: Any,
    std: Any,
    log_half: Any,
    raw: Any,
    allowed: Any,
    valid: Any,
    logp: Any,
    entropy: Any,
    value: Any,
) -> None:
    """Write log-probability and entropy `[M]` of `raw` `[M, W]`, and the last output as value `[M]` (or `[0]`).

    All are 0 where `valid` `[M]` is False.
    """
    for m in range(outputs.shape[0]):
        a, h = 0.0, 0.0
        if value.size:
            value[m] = outputs[m, outputs.shape[1] - 1] if valid[m] else 0
        for p in range(table.shape[0] if valid[m] else 0):
            kind, k, n = table[p, KIND], table[p, OUTPUT], table[p, SIZE]
            w, s = table[p, RAW], table[p, STD]
            if kind == CATEGORICAL:
                most, total, mean = _shares(outputs, allowed, m, k, n)
                taken, log_total = k + int(raw[m, w]), math.log(total)
                a += outputs[m, taken] - most - log_total if _open(allowed, m, taken) else -math.inf
                h += log_total - mean
            elif kind == BERNOULLI:
                for j in range(n):
                    if _open(allowed, m, k + j):
                        logit = outputs[m, k + j]
                        total = _softplus(logit)
                        a += raw[m, w + j] * logit - total
                        h += total - logit / (1 + math.exp(-logit))
            else:
                for j in range(n):
                    u = raw[m, w + j]
                    z = (u - outputs[m, k + j]) / std[s + j]
                    log = math.log(std[s + j]) + 0.5 * math.log(2 * math.pi)
                    a += -0.5 * z * z - log
                    h += log + 0.5
                    if kind == TANH_GAUSSIAN:
                        slope = log_half[s + j] + 2 * (math.log(2.0) - u - _softplus(-2.0 * u))
                        a -= slope
                        h += slope
        logp[m], entropy[m] = a, h


@numba.njit(**COMPILE)
def score_backward(
    outputs: Any,
    table: Any,
    std: Any,
    raw: Any,
    allowed: Any,
    valid: Any,
    g_logp: Any,
    g_entropy: Any,
    g_value: Any,
    g_outputs: Any,
    g_std: Any,
) -> None:
    """Write ∂loss/∂outputs `[M, ≥K]` and add ∂loss/∂std `[S]`, given those of the scores `[M]` (`[0]`: 0)."""
    columns = outputs.shape[1]
    for m in range(outputs.shape[0]):
        g_outputs[m, columns - 1] = g_value[m] if g_value.size and valid[m] else 0
        a = float(g_logp[m]) if g_logp.size else 0.0
        h = float(g_entropy[m]) if g_entropy.size else 0.0
        for p in range(table.shape[0]):
            kind, k, n = table[p, KIND], table[p, OUTPUT], table[p, SIZE]
            w, s = table[p, RAW], table[p, STD]
            if not valid[m]:
                for j in range(k, k + n):
                    g_outputs[m, j] = 0
            elif kind == CATEGORICAL:
                _categorical_backward(outputs, allowed, m, k, n, k + int(raw[m, w]), a, h, g_outputs)
            elif kind == BERNOULLI:
                for j in range(n):
                    logit = outputs[m, k + j]
                    chance = 1 / (1 + math.exp(-logit))
                    each = a * (raw[m, w + j] - chance) - h * logit * chance * (1 - chance)
                    g_outputs[m, k + j] = each if _open(allowed, m, k + j) else 0
            else:
                for j in range(n):
                    u, scale = raw[m, w + j], std[s + j]
                    z = (u - outputs[m, k + j]) / scale
                    bend = -2 * math.tanh(u) if kind == TANH_GAUSSIAN else 0.0
                    g_outputs[m, k + j] = a * z / scale + h * bend
                    g_std[s + j] += a * (z * z - 1) / scale + h * (1 / scale + bend * z)


@numba.njit(**COMPILE)
def _categorical_backward(
    outputs: Any, allowed: Any, m: Any, k: Any, n: Any, taken: Any, a: Any, h: Any, g_outputs: Any
) -> None:
    """∂(a·log π(taken) + h·H)/∂l_j = a(δ_j − π_j) − h·π_j(log π_j + H)."""
    most, total, mean = _shares(outputs, allowed, m, k, n)
    for j in range(k, k + n):
        g_outputs[m, j] = 0
        if _open(allowed, m, j):
            share = math.exp(outputs[m, j] - most) / total
            g_outputs[m, j] = -a * share - h * share * (outputs[m, j] - most - mean)
    g_outputs[m, taken] += a
