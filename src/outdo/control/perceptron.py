"""Compiled perceptrons of the fast path: acting, scoring, and the gradient of a loss, each in one call.

Rows are computed in blocks, so that all that a block needs stays in the cache. Nothing is checked here;
`outdo.control.fast` builds the arguments. `plan` `[G, L + 1, 4]` says of each layer, the last one being the head, where
its weight `[inputs, units]` and its bias begin in the flat buffers `matrices` and `vectors`, its inputs and its units.

Axes: M rows, G towers (policy, critic), L hidden layers, F features, I inputs and U units of a layer, K outputs.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np

from outdo.control.kernels import COMPILE, sample, score, score_backward
from outdo.core.kernels import surrogate

BLOCK = 64
"""Rows that are computed together, and whose sums are rounded on their own."""
WEIGHT, BIAS, INPUTS, UNITS = range(4)
"""Columns of the plan."""


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
def _add_product(x: Any, w: Any, out: Any) -> None:
    """Add x `[M, I]` · w `[I, U]` to `out` `[M, U]`, four rows and four inputs at a time."""
    (rows, inputs), units = x.shape, w.shape[1]
    whole = inputs - inputs % 4
    for m in range(0, rows - rows % 4, 4):
        o, p, q, r = out[m], out[m + 1], out[m + 2], out[m + 3]
        for i in range(0, whole, 4):
            w0, w1, w2, w3 = w[i], w[i + 1], w[i + 2], w[i + 3]
            a0, a1, a2, a3 = x[m, i], x[m, i + 1], x[m, i + 2], x[m, i + 3]
            b0, b1, b2, b3 = x[m + 1, i], x[m + 1, i + 1], x[m + 1, i + 2], x[m + 1, i + 3]
            c0, c1, c2, c3 = x[m + 2, i], x[m + 2, i + 1], x[m + 2, i + 2], x[m + 2, i + 3]
            d0, d1, d2, d3 = x[m + 3, i], x[m + 3, i + 1], x[m + 3, i + 2], x[m + 3, i + 3]
            for j in range(units):
                e0, e1, e2, e3 = w0[j], w1[j], w2[j], w3[j]
                o[j] = o[j] + a0 * e0 + a1 * e1 + a2 * e2 + a3 * e3
                p[j] = p[j] + b0 * e0 + b1 * e1 + b2 * e2 + b3 * e3
                q[j] = q[j] + c0 * e0 + c1 * e1 + c2 * e2 + c3 * e3
                r[j] = r[j] + d0 * e0 + d1 * e1 + d2 * e2 + d3 * e3
        for i in range(whole, inputs):
            w0, a0, b0, c0, d0 = w[i], x[m, i], x[m + 1, i], x[m + 2, i], x[m + 3, i]
            for j in range(units):
                o[j] += a0 * w0[j]
                p[j] += b0 * w0[j]
                q[j] += c0 * w0[j]
                r[j] += d0 * w0[j]
    for m in range(rows - rows % 4, rows):
        o = out[m]
        for i in range(0, whole, 4):
            w0, w1, w2, w3 = w[i], w[i + 1], w[i + 2], w[i + 3]
            a0, a1, a2, a3 = x[m, i], x[m, i + 1], x[m, i + 2], x[m, i + 3]
            for j in range(units):
                o[j] = o[j] + a0 * w0[j] + a1 * w1[j] + a2 * w2[j] + a3 * w3[j]
        for i in range(whole, inputs):
            w0, a0 = w[i], x[m, i]
            for j in range(units):
                o[j] += a0 * w0[j]


@numba.njit(**COMPILE)
def _activate(x: Any, tanh: bool) -> None:
    """The activation of hidden layers in place, `[n]`."""
    if tanh:
        _tanh(x)
    else:
        for i in range(x.size):
            x[i] = max(x[i], np.float32(0))


@numba.njit(**COMPILE, fastmath={"contract"})
def _activate_backward(y: Any, tanh: bool, g_y: Any, g_bias: Any) -> None:
    """Turn ∂loss/∂y `[M, U]` into that by what became y; its sum over M is added to `g_bias` `[U]`."""
    one, zero, total = np.float32(1), np.float32(0), np.zeros_like(g_bias)
    for m in range(y.shape[0]):
        for j in range(y.shape[1]):
            g_y[m, j] *= one - y[m, j] * y[m, j] if tanh else (one if y[m, j] > zero else zero)
            total[j] += g_y[m, j]
    g_bias += total


@numba.njit(**COMPILE, fastmath={"contract", "reassoc"})
def _head(x: Any, weight: Any, bias: Any, outputs: Any, column: Any) -> None:
    """Write x `[M, I]` · weight `[I, K]` + bias `[K]` into K columns of `outputs`: K is small, so sums run over I."""
    turned = np.ascontiguousarray(weight.T)
    for m in range(x.shape[0]):
        for k in range(bias.size):
            total = bias[k]
            for i in range(x.shape[1]):
                total += x[m, i] * turned[k, i]
            outputs[m, column + k] = total


@numba.njit(**COMPILE, fastmath={"contract"})
def _head_backward(
    x: Any, weight: Any, g_outputs: Any, column: Any, g_weight: Any, g_bias: Any, g_x: Any
) -> None:
    """Add ∂loss by weight and bias of `_head`, write that by x."""
    turned = np.ascontiguousarray(weight.T)
    part, total = np.zeros_like(turned), np.zeros_like(g_bias)
    g_x[:] = np.float32(0)
    for m in range(x.shape[0]):
        for k in range(g_bias.size):
            each = g_outputs[m, column + k]
            total[k] += each
            for i in range(x.shape[1]):
                g_x[m, i] += each * turned[k, i]
                part[k, i] += each * x[m, i]
    g_weight += part.T
    g_bias += total


@numba.njit(**COMPILE)
def _layer(plan: Any, g: Any, n: Any, matrices: Any, vectors: Any) -> tuple[Any, Any]:
    """Weight `[I, U]` and bias `[U]` of layer n of tower g."""
    m, v, inputs, units = plan[g, n, WEIGHT], plan[g, n, BIAS], plan[g, n, INPUTS], plan[g, n, UNITS]
    return matrices[m : m + inputs * units].reshape(inputs, units), vectors[v : v + units]


@numba.njit(**COMPILE)
def _hidden(plan: Any, g: Any, n: Any, room: Any, rows: Any) -> Any:
    """Where `room` `[G, ≥M·ΣU]` holds the outputs `[M, U]` of hidden layer n of tower g."""
    start = 0
    for before in range(n):
        start += rows * plan[g, before, UNITS]
    units = plan[g, n, UNITS]
    return room[g, start : start + rows * units].reshape(rows, units)


@numba.njit(**COMPILE)
def _room(plan: Any, rows: Any) -> Any:
    """Room for the hidden layers of all towers."""
    return np.empty((plan.shape[0], rows * plan[0, : plan.shape[1] - 1, UNITS].sum()), np.float32)


@numba.njit(**COMPILE)
def forward(flat: Any, matrices: Any, vectors: Any, plan: Any, tanh: bool, room: Any, outputs: Any) -> None:
    """Write the outputs of all towers side by side into `outputs` `[M, ΣK]`, from features `[M, F]`; fills `room`."""
    last, column = plan.shape[1] - 1, 0
    for g in range(plan.shape[0]):
        x = flat
        for n in range(last):
            weight, bias = _layer(plan, g, n, matrices, vectors)
            y = _hidden(plan, g, n, room, len(flat))
            for m in range(len(flat)):
                for j in range(bias.size):  # a loop is compiled in a tenth of the time of y[:] = bias
                    y[m, j] = bias[j]
            _add_product(x, weight, y)
            _activate(y.reshape(-1), tanh)
            x = y
        weight, bias = _layer(plan, g, last, matrices, vectors)
        _head(x, weight, bias, outputs, column)
        column += bias.size


@numba.njit(**COMPILE)
def backward(
    flat: Any,
    matrices: Any,
    vectors: Any,
    plan: Any,
    tanh: bool,
    room: Any,
    g_outputs: Any,
    g_room: Any,
    g_matrices: Any,
    g_vectors: Any,
) -> None:
    """Add ∂loss by the parameters, given that by the outputs; `room` as `forward` left it, `g_room` is overwritten."""
    last, column = plan.shape[1] - 1, 0
    for g in range(plan.shape[0]):
        x = _hidden(plan, g, last - 1, room, len(flat)) if last else flat
        g_x = _hidden(plan, g, last - 1, g_room, len(flat)) if last else np.empty_like(flat)
        weight, bias = _layer(plan, g, last, matrices, vectors)
        g_weight, g_bias = _layer(plan, g, last, g_matrices, g_vectors)
        _head_backward(x, weight, g_outputs, column, g_weight, g_bias, g_x)
        column += bias.size
        for n in range(last - 1, -1, -1):
            y, g_y = x, g_x
            weight, _ = _layer(plan, g, n, matrices, vectors)
            g_weight, g_bias = _layer(plan, g, n, g_matrices, g_vectors)
            x = _hidden(plan, g, n - 1, room, len(flat)) if n else flat
            _activate_backward(y, tanh, g_y, g_bias)
            part = np.zeros_like(g_weight)
            _add_product(x.T, g_y, part)
            g_weight += part
            if n:
                g_x = _hidden(plan, g, n - 1, g_room, len(flat))
                g_x[:] = np.float32(0)
                _add_product(g_y, np.ascontiguousarray(weight.T), g_x)


@numba.njit(**COMPILE)
def act(
    flat: Any,
    matrices: Any,
    vectors: Any,
    plan: Any,
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
    forward(flat, matrices, vectors, plan, tanh, _room(plan, len(flat)), outputs)
    sample(outputs, table, std, noise, mode, allowed, raw)
    valid, entropy, value = np.ones(len(flat), np.bool_), np.empty_like(logp), np.empty(0, np.float32)
    score(outputs, table, std, log_half, raw, allowed, valid, logp, entropy, value)


@numba.njit(**COMPILE)
def evaluate(
    flat: Any,
    raw: Any,
    allowed: Any,
    valid: Any,
    matrices: Any,
    vectors: Any,
    plan: Any,
    tanh: bool,
    table: Any,
    std: Any,
    log_half: Any,
    logp: Any,
    entropy: Any,
    value: Any,
) -> None:
    """Write the scores `[M]` of raw actions (`kernels.score`); `value` may be empty."""
    room, outputs = _room(plan, BLOCK), np.empty((BLOCK, plan[:, -1, UNITS].sum()), np.float32)
    for start in range(0, len(flat), BLOCK):
        b = slice(start, min(start + BLOCK, len(flat)))
        made = outputs[: b.stop - start]
        forward(flat[b], matrices, vectors, plan, tanh, room, made)
        score(made, table, std, log_half, raw[b], allowed[b], valid[b], logp[b], entropy[b], value[b])


@numba.njit(**COMPILE)
def pull(
    flat: Any,
    raw: Any,
    allowed: Any,
    valid: Any,
    matrices: Any,
    vectors: Any,
    plan: Any,
    tanh: bool,
    table: Any,
    std: Any,
    g_logp: Any,
    g_entropy: Any,
    g_value: Any,
    g_matrices: Any,
    g_vectors: Any,
    g_std: Any,
) -> None:
    """Add ∂loss by the parameters and σ, given that by the scores of `evaluate` (`[0]`: 0)."""
    room, g_room = _room(plan, BLOCK), _room(plan, BLOCK)
    outputs = np.empty((BLOCK, plan[:, -1, UNITS].sum()), np.float32)
    for start in range(0, len(flat), BLOCK):
        b = slice(start, min(start + BLOCK, len(flat)))
        made, g_made = outputs[: b.stop - start], np.empty_like(outputs[: b.stop - start])
        forward(flat[b], matrices, vectors, plan, tanh, room, made)
        score_backward(
            made, table, std, raw[b], allowed[b], valid[b], g_logp[b], g_entropy[b], g_value[b], g_made, g_std
        )
        backward(flat[b], matrices, vectors, plan, tanh, room, g_made, g_room, g_matrices, g_vectors)


@numba.njit(**COMPILE)
def _standard(advantage: Any, chosen: Any, ddof: Any, eps: Any) -> tuple[Any, Any]:
    """Mean of the chosen advantages and 1/(σ + eps); the factor is 0 for fewer than two (`parts.standardised`)."""
    mean, squares = 0.0, 0.0
    for i in chosen:
        mean += advantage[i]
    mean /= max(len(chosen), 1)
    for i in chosen:
        squares += (advantage[i] - mean) ** 2
    return mean, 1 / (np.sqrt(squares / (len(chosen) - ddof)) + eps) if len(chosen) > 1 else 0.0


@numba.njit(**COMPILE)
def learn(
    chosen: Any,
    flat: Any,
    raw: Any,
    allowed: Any,
    old: Any,
    sampled: Any,
    advantage: Any,
    old_value: Any,
    target: Any,
    settings: Any,
    matrices: Any,
    vectors: Any,
    plan: Any,
    tanh: bool,
    table: Any,
    std: Any,
    log_half: Any,
    g_matrices: Any,
    g_vectors: Any,
    g_std: Any,
    sums: Any,
) -> None:
    """Add ∂loss by the parameters and σ of a minibatch, the `chosen` rows, and fill `sums` (`core.kernels.surrogate`).

    `settings`: `core.fused.Settings`. An empty `old` stands for the log-probabilities of this very pass.
    """
    f, rows = np.float32, len(chosen)
    mean, scale = (
        _standard(advantage, chosen, settings.ddof, settings.eps) if settings.standardises else (0.0, 1.0)
    )
    by_step = 1 / max(rows, 1)
    weight = by_step if settings.mean else 1.0
    room, g_room = _room(plan, BLOCK), _room(plan, BLOCK)
    for start in range(0, rows, BLOCK):
        b = chosen[start : start + BLOCK]
        x, taken, mask, valid = (
            flat[b],
            raw[b],
            allowed[b] if allowed.size else allowed,
            np.ones(len(b), np.bool_),
        )
        outputs = np.empty((len(b), plan[:, -1, UNITS].sum()), np.float32)
        g_outputs = np.empty_like(outputs)
        logp, entropy, g_logp = np.empty(len(b), f), np.empty(len(b), f), np.empty(len(b), f)
        value = np.empty(len(b) if settings.critic else 0, f)
        g_value, g_entropy = (
            np.empty_like(value),
            np.full(len(b) if settings.entropy else 0, -settings.entropy * weight, f),
        )
        forward(x, matrices, vectors, plan, tanh, room, outputs)
        score(outputs, table, std, log_half, taken, mask, valid, logp, entropy, value)
        surrogate(
            logp,
            old[b] if old.size else logp,
            sampled[b],
            ((advantage[b] - mean) * scale).astype(f),
            entropy,
            value,
            old_value[b] if settings.critic else value,
            target[b] if settings.critic else value,
            valid,
            settings.clips,
            f(settings.low),
            f(settings.high),
            f(settings.value_clip),
            g_logp,
            g_value,
            sums,
        )
        g_logp *= f(weight)
        g_value *= f(settings.value * by_step)
        score_backward(outputs, table, std, taken, mask, valid, g_logp, g_entropy, g_value, g_outputs, g_std)
        backward(x, matrices, vectors, plan, tanh, room, g_outputs, g_room, g_matrices, g_vectors)
