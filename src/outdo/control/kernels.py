"""Compiled parts of the fast path: perceptrons, sampling, scores and their gradients, row by row.

Parts of rows are passed as row, first column and size: slices would cost more than the arithmetic. Nothing is checked
here; `outdo.control.fast` builds the arguments. Sums are taken in float64, results are float32. `distributions` has the
formulas; tests hold the two equal.

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


@numba.njit(**COMPILE, fastmath={"contract"})
def _tanh(x: Any) -> None:
    """Hyperbolic tangent in place, in float32 to some units in the last place, in operations that vectorise.

    A ratio of polynomials in x², odd over even, on |x| ≤ 7.9, where float32 has reached 1 (Eigen's coefficients).
    """
    f = np.float32
    for i in range(x.size):
        a = min(max(x[i], f(-7.90531110763549805)), f(7.90531110763549805))
        b = a * a
        top = f(-2.76076847742355e-16)
        top = top * b + f(2.00018790482477e-13)
        top = top * b + f(-8.60467152213735e-11)
        top = top * b + f(5.12229709037114e-08)
        top = top * b + f(1.48572235717979e-05)
        top = top * b + f(6.37261928875436e-04)
        top = top * b + f(4.89352455891786e-03)
        under = f(1.19825839466702e-06)
        under = under * b + f(1.18534705686654e-04)
        under = under * b + f(2.26843463243900e-03)
        under = under * b + f(4.89352518554385e-03)
        x[i] = a * top / under


@numba.njit(**COMPILE, fastmath={"contract"})
def _affine(x: Any, weight: Any, bias: Any, out: Any) -> None:
    """Write out `[M, U]` = x `[M, I]` · weight `[I, U]` + bias `[U]`; four inputs at a time."""
    inputs, units = weight.shape
    whole = inputs - inputs % 4
    for m in range(x.shape[0]):
        o = out[m]
        for j in range(units):
            o[j] = bias[j]
        for i in range(0, whole, 4):
            a, b, c, d = x[m, i], x[m, i + 1], x[m, i + 2], x[m, i + 3]
            w0, w1, w2, w3 = weight[i], weight[i + 1], weight[i + 2], weight[i + 3]
            for j in range(units):
                o[j] += (a * w0[j] + b * w1[j]) + (c * w2[j] + d * w3[j])
        for i in range(whole, inputs):
            a, w0 = x[m, i], weight[i]
            for j in range(units):
                o[j] += a * w0[j]


@numba.njit(**COMPILE)
def forward(flat: Any, matrices: Any, vectors: Any, sizes: Any, heads: Any, tanh: bool, outputs: Any) -> None:
    """Write the outputs of all towers side by side into `outputs` `[M, ΣU]`, from features `[M, F]`.

    `sizes` are the units of the hidden layers, `heads` those of each tower's last layer. The buffers hold one
    layer after another, each for all towers (`Network.ordered`), matrices as `[inputs, units]`.
    """
    rows, towers, column = flat.shape[0], heads.size, 0
    for g in range(towers):
        x, m, v = flat, 0, 0
        for units in sizes:
            n, y = x.shape[1] * units, np.empty((rows, units), np.float32)
            w = matrices[m + g * n : m + (g + 1) * n].reshape(x.shape[1], units)
            _affine(x, w, vectors[v + g * units : v + (g + 1) * units], y)
            if tanh:
                _tanh(y.reshape(-1))
            else:
                for i in range(rows):
                    for j in range(units):
                        y[i, j] = max(y[i, j], np.float32(0))
            x, m, v = y, m + towers * n, v + towers * units
        inputs = x.shape[1]
        m, v = m + inputs * column, v + column
        w = matrices[m : m + inputs * heads[g]].reshape(inputs, heads[g])
        y = np.empty((rows, heads[g]), np.float32)
        _affine(x, w, vectors[v : v + heads[g]], y)
        outputs[:, column : column + heads[g]] = y
        column += heads[g]


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


@numba.njit(**COMPILE)
def act(
    flat: Any,
    matrices: Any,
    vectors: Any,
    sizes: Any,
    heads: Any,
    tanh: bool,
    table: Any,
    std: Any,
    log_half: Any,
    noise: Any,
    mode: bool,
    allowed: Any,
    outputs: Any,
    raw: Any,
    logp: Any,
) -> None:
    """`forward`, `sample` and `score` in one call."""
    forward(flat, matrices, vectors, sizes, heads, tanh, outputs)
    sample(outputs, table, std, noise, mode, allowed, raw)
    valid, entropy, value = np.ones(len(flat), np.bool_), np.empty_like(logp), np.empty(0, np.float32)
    score(outputs, table, std, log_half, raw, allowed, valid, logp, entropy, value)
