"""Compiled decoding of a Llama-shaped model in float32: from the first hidden states to the last tokens, in one call.

Rows are independent: each has its own place in the cache and leaves the loop when it ends, so what a row samples
depends on nothing else in the call. Products are written out for four rows and four outputs at a time, whose
sixteen sums stay in registers. Nothing is checked here; `outdo.language.compiled` builds the arguments.

Axes: R rows, D hidden, H query heads, K key/value heads, E head size, F feed-forward units, V vocabulary, S slots of
the cache, T longest answer.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
ORDERED: dict[str, Any] = {"cache": True, "nogil": True, "error_model": "numpy", "fastmath": {"contract"}}
"""How functions are compiled; numpy's error model divides without a test that would keep loops from vectorising."""
SUMS: dict[str, Any] = {**ORDERED, "fastmath": {"contract", "reassoc", "nsz", "arcp"}}
"""The same where sums may be taken in any order, so that they are vectorised; inf and NaN still count."""
NORM1, QKV, QKV_BIAS, Q_NORM, K_NORM, OUT, NORM2, GATE_UP, DOWN = range(9)
"""Columns of `Model.places`."""


class Model(NamedTuple):
    """The weights as flat buffers, and where each layer's begin in them (-1 for what the model lacks)."""

    matrices: Floats
    vectors: Floats
    places: NDArray[np.int64]  # [layers, 9]
    embedding: Floats  # [V, D]
    norm: Floats  # [D]
    head: Floats  # [V, D]
    cos: Floats  # [S, E / 2]
    sin: Floats
    eps: np.float32
    heads: int
    kv_heads: int
    units: int  # F


class Draw(NamedTuple):
    """How tokens are drawn, as in `Sampling`; temperature 0 takes the most likely."""

    temperature: np.float32
    top_k: int
    top_p: float


@numba.njit(**ORDERED)
def exp(x: Any) -> Any:
    """e^x in float32 to about one unit in the last place, in operations that vectorise; 0 below -87, NaN stays.

    x = n ln 2 + r with |r| <= ln 2 / 2, a polynomial in r (Cephes' expf), and 2^n from the bits of n.
    """
    bounded = min(max(x, np.float32(-87)), np.float32(88))
    n = np.floor(bounded * np.float32(1.44269504) + np.float32(0.5))
    r = (bounded - n * np.float32(0.693359375)) + n * np.float32(2.12194440e-4)
    p = np.float32(1.9875691e-4) * r + np.float32(1.3981999e-3)
    p = p * r + np.float32(8.3334519e-3)
    p = p * r + np.float32(4.1665796e-2)
    p = p * r + np.float32(1.6666665e-1)
    p = p * r + np.float32(5.0000001e-1)
    p = p * r * r + r + np.float32(1)
    power = np.int32((np.int32(n) + np.int32(127)) << np.int32(23)).view(np.float32)
    return np.float32(0) if x < np.float32(-87) else (p * power if x == x else x)


@numba.njit(**SUMS)
def _product(x: Any, w: Any, rows: int, out: Any) -> None:
    """Product x w^T of the first `rows` of x [., A] and w [B, A] into `out`; x and out hold a multiple of four rows."""
    zero = np.float32(0)
    outputs, size = w.shape
    for block in range((outputs + 3) // 4):
        o = min(4 * block, outputs - 4)  # the last block overlaps the one before
        w0, w1, w2, w3 = w[o], w[o + 1], w[o + 2], w[o + 3]
        for r in range(0, rows, 4):
            x0, x1, x2, x3 = x[r], x[r + 1], x[r + 2], x[r + 3]
            a00 = a01 = a02 = a03 = a10 = a11 = a12 = a13 = zero
            a20 = a21 = a22 = a23 = a30 = a31 = a32 = a33 = zero
            for d in range(size):
                p0, p1, p2, p3 = w0[d], w1[d], w2[d], w3[d]
                q0, q1, q2, q3 = x0[d], x1[d], x2[d], x3[d]
                a00, a01, a02, a03 = a00 + q0 * p0, a01 + q0 * p1, a02 + q0 * p2, a03 + q0 * p3
                a10, a11, a12, a13 = a10 + q1 * p0, a11 + q1 * p1, a12 + q1 * p2, a13 + q1 * p3
                a20, a21, a22, a23 = a20 + q2 * p0, a21 + q2 * p1, a22 + q2 * p2, a23 + q2 * p3
                a30, a31, a32, a33 = a30 + q3 * p0, a31 + q3 * p1, a32 + q3 * p2, a33 + q3 * p3
            y0, y1, y2, y3 = out[r], out[r + 1], out[r + 2], out[r + 3]
            y0[o], y0[o + 1], y0[o + 2], y0[o + 3] = a00, a01, a02, a03
            y1[o], y1[o + 1], y1[o + 2], y1[o + 3] = a10, a11, a12, a13
            y2[o], y2[o + 1], y2[o + 2], y2[o + 3] = a20, a21, a22, a23
            y3[o], y3[o + 1], y3[o + 2], y3[o + 3] = a30, a31, a32, a33


@numba.njit(**SUMS)
def norm(x: Any, weight: Any, eps: Any, out: Any) -> None:
    """Root-mean-square norm of one vector."""
    total = np.float32(0)
    for d in range(x.size):
        total += x[d] * x[d]
    scale = np.float32(1) / np.sqrt(total / np.float32(x.size) + eps)
    for d in range(x.size):
        out[d] = x[d] * scale * weight[d]


@numba.njit(**SUMS)
def _add_and_norm(x: Any, change: Any, rows: int, weight: Any, eps: Any, out: Any) -> None:
    """Add `change` to x in place, and norm the sum into `out`."""
    for r in range(rows):
        a, b = x[r], change[r]
        for d in range(a.size):
            a[d] += b[d]
        norm(a, weight, eps, out[r])


@numba.njit(**SUMS)
def _gate(gate_up: Any, rows: int, out: Any) -> None:
    """silu(gate) * up of [R, 2F]."""
    units = out.shape[1]
    for r in range(rows):
        gate, up, y = gate_up[r, :units], gate_up[r, units:], out[r]
        for f in range(units):
            y[f] = gate[f] / (np.float32(1) + exp(-gate[f])) * up[f]


@numba.njit(**SUMS)
def _rotate(head: Any, cos: Any, sin: Any) -> None:
    """Rotary embedding of one head in place."""
    first, second = head[: cos.size], head[cos.size :]
    for e in range(cos.size):
        a, b = first[e], second[e]
        first[e], second[e] = a * cos[e] - b * sin[e], b * cos[e] + a * sin[e]


@numba.njit(**SUMS)
def _weights(q: Any, keys: Any, count: int, scores: Any) -> Any:
    """Scores e^(q k / sqrt(E) - largest) of the first `count` keys [E, S]; returns their sum."""
    size = q.size
    scale = np.float32(1) / np.sqrt(np.float32(size))
    for s in range(count):
        scores[s] = np.float32(0)
    for e in range(0, size, 4):
        k0, k1, k2, k3 = keys[e], keys[e + 1], keys[e + 2], keys[e + 3]
        q0, q1, q2, q3 = q[e] * scale, q[e + 1] * scale, q[e + 2] * scale, q[e + 3] * scale
        for s in range(count):
            scores[s] += q0 * k0[s] + q1 * k1[s] + q2 * k2[s] + q3 * k3[s]
    largest = scores[0]
    for s in range(count):
        largest = max(largest, scores[s])
    total = np.float32(0)
    for s in range(count):
        scores[s] = exp(scores[s] - largest)
        total += scores[s]
    return total


@numba.njit(**SUMS)
def _attend(qkv: Any, keys: Any, values: Any, at: int, shape: Any, scores: Any, out: Any) -> None:
    """Store the key and value of one row at slot `at` of its keys [K, E, S] and values [K, S, E], and attend."""
    heads, kv_heads, size = shape
    group = heads // kv_heads
    for k in range(kv_heads):
        key, value = qkv[heads + k], qkv[heads + kv_heads + k]
        for e in range(size):
            keys[k, e, at] = key[e]
            values[k, at, e] = value[e]
        for h in range(k * group, (k + 1) * group):
            total, y = _weights(qkv[h], keys[k], at + 1, scores), out[h * size : (h + 1) * size]
            _mix(scores, total, values[k], at + 1, y)


@numba.njit(**SUMS)
def _mix(scores: Any, total: Any, values: Any, count: int, out: Any) -> None:
    """Sum the first `count` values [S, E] into `out`, weighted by scores / total."""
    for e in range(out.size):
        out[e] = np.float32(0)
    fours = count // 4 * 4
    for s in range(0, fours, 4):
        v0, v1, v2, v3 = values[s], values[s + 1], values[s + 2], values[s + 3]
        p0, p1, p2, p3 = scores[s], scores[s + 1], scores[s + 2], scores[s + 3]
        for e in range(out.size):
            out[e] += p0 * v0[e] + p1 * v1[e] + p2 * v2[e] + p3 * v3[e]
    for s in range(fours, count):
        for e in range(out.size):
            out[e] += scores[s] * values[s, e]
    for e in range(out.size):
        out[e] /= total


@numba.njit(**ORDERED)
def _matrix(model: Any, place: int, outputs: int, inputs: int) -> Any:
    """The matrix [outputs, inputs] that begins at `place`."""
    return model.matrices[place : place + outputs * inputs].reshape(outputs, inputs)


@numba.njit(**ORDERED)
def _layer(model: Any, layer: int, live: Any, slots: Any, keys: Any, values: Any, work: Any) -> None:
    """One layer for the live rows: from their residual stream and its pending change to the next change."""
    x, change, normed, qkv, attended, gate_up, active, scores, _ = work
    rows, hidden, place = live.size, x.shape[1], model.places[layer]
    shape = (model.heads, model.kv_heads, keys.shape[3])
    size, turned = shape[2], model.heads + model.kv_heads
    vectors = model.vectors
    _add_and_norm(x, change, rows, vectors[place[NORM1] : place[NORM1] + hidden], model.eps, normed)
    _product(normed, _matrix(model, place[QKV], qkv.shape[1], hidden), rows, qkv)
    for r in range(rows):
        row, at = live[r], slots[r]
        if place[QKV_BIAS] >= 0:
            bias = vectors[place[QKV_BIAS] : place[QKV_BIAS] + qkv.shape[1]]
            for o in range(bias.size):
                qkv[r, o] += bias[o]
        parts = qkv[r].reshape(-1, size)
        for h in range(turned):
            if place[Q_NORM] >= 0:
                own = place[Q_NORM] if h < model.heads else place[K_NORM]
                norm(parts[h], vectors[own : own + size], model.eps, parts[h])
            _rotate(parts[h], model.cos[at], model.sin[at])
        _attend(parts, keys[row, layer], values[row, layer], at, shape, scores, attended[r])
    _product(attended, _matrix(model, place[OUT], hidden, attended.shape[1]), rows, change)
    _add_and_norm(x, change, rows, vectors[place[NORM2] : place[NORM2] + hidden], model.eps, normed)
    _product(normed, _matrix(model, place[GATE_UP], gate_up.shape[1], hidden), rows, gate_up)
    _gate(gate_up, rows, active)
    _product(active, _matrix(model, place[DOWN], hidden, model.units), rows, change)


@numba.njit(**ORDERED)
def _cut(z: Any, top_k: int, top_p: float) -> None:
    """Set the scores outside top-k and top-p to -inf, in place; see `head.restrict`."""
    order = np.argsort(-z)
    if top_k and top_k < z.size:
        threshold = z[order[top_k - 1]]
        for v in range(z.size):
            if z[v] < threshold:
                z[v] = -np.inf
    if top_p < 1.0:
        total, before = 0.0, 0.0
        for v in range(z.size):
            total += math.exp(z[v] - z[order[0]])
        for i in range(z.size):
            mass = math.exp(z[order[i]] - z[order[0]]) / total
            if before >= top_p:
                z[order[i]] = -np.inf
            before += mass


@numba.njit(**ORDERED)
def choose(z: Any, draw: Any, uniform: float) -> tuple[int, float]:
    """Token and log-probability by logits [V] (overwritten): the argmax, or whose slice of the mass holds `uniform`."""
    best = 0
    for v in range(z.size):
        if z[v] > z[best]:
            best = v
    if draw.temperature == 0:
        return best, 0.0
    if draw.temperature != 1:
        for v in range(z.size):
            z[v] /= draw.temperature
    if draw.top_k or draw.top_p < 1.0:
        _cut(z, draw.top_k, draw.top_p)
    largest = z[best]
    for v in range(z.size):
        z[v] = exp(z[v] - largest)
    total = 0.0
    for v in range(z.size):
        total += z[v]
    target, mass, token = uniform * total, 0.0, best
    for v in range(z.size):
        mass += z[v]
        if z[v] > 0:
            token = v
            if mass > target:
                break
    return token, math.log(z[token] / total)


@numba.njit(**ORDERED)
def decode(
    model: Any,
    hidden: Floats,
    keys: Floats,
    values: Floats,
    filled: NDArray[np.int64],
    limits: NDArray[np.int64],
    uniforms: NDArray[np.float64],
    draw: Any,
    stops: NDArray[np.int64],
    tokens: NDArray[np.int64],
    logps: Floats,
    lengths: NDArray[np.int64],
    stopped: NDArray[np.bool_],
) -> None:
    """Decode rows to their ends: `hidden` [R, D] predicts their first tokens, the rest is filled in.

    `keys` [R, layers, K, E, S] and `values` [R, layers, K, S, E] hold `filled` [R] tokens of each row; `limits` [R]
    bounds the answers. Written are `tokens` and `logps` [R, T], `lengths` and `stopped` [R].
    """
    count, size = hidden.shape
    room = (count + 3) // 4 * 4
    inner, outer = model.heads * keys.shape[3], (model.heads + 2 * model.kv_heads) * keys.shape[3]
    x, change = np.zeros((room, size), np.float32), np.zeros((room, size), np.float32)
    normed = np.zeros((room, size), np.float32)
    qkv, attended = np.zeros((room, outer), np.float32), np.zeros((room, inner), np.float32)
    gate_up = np.zeros((room, 2 * model.units), np.float32)
    active, logits = np.zeros((room, model.units), np.float32), np.zeros((room, len(model.head)), np.float32)
    scores = np.zeros(keys.shape[4], np.float32)
    work = (x, change, normed, qkv, attended, gate_up, active, scores, logits)
    live, slots = np.arange(count), filled.copy()
    normed[:count] = hidden
    for step in range(tokens.shape[1]):
        _product(normed, model.head, live.size, logits)
        going = 0
        for r in range(live.size):
            row = live[r]
            token, logp = choose(logits[r], draw, uniforms[row, step])
            tokens[row, step], logps[row, step], lengths[row] = token, logp, step + 1
            for stop in stops:
                stopped[row] = stopped[row] or token == stop
            if not stopped[row] and step + 1 < limits[row]:
                live[going], slots[going], x[going] = row, filled[row] + step, model.embedding[token]
                going += 1
        live, slots = live[:going], slots[:going]
        if not going:
            break
        change[:] = 0
        for layer in range(len(model.places)):
            _layer(model, layer, live, slots, keys, values, work)
        _add_and_norm(x, change, going, model.norm, model.eps, normed)


@numba.njit(**SUMS)
def rows_norm(x: Any, weight: Any, eps: Any, out: Any) -> None:
    """`norm` of every row of x [N, D]."""
    for n in range(len(x)):
        norm(x[n], weight, eps, out[n])


@numba.njit(**SUMS)
def rows_norm_backward(x: Any, weight: Any, eps: Any, grad: Any, add_to: Any, out: Any) -> None:
    """Gradient [N, D] of `rows_norm`; the weight's is added to `add_to` [D]."""
    size = np.float32(weight.size)
    for n in range(len(x)):
        a, g, y = x[n], grad[n], out[n]
        squares = along = np.float32(0)
        for d in range(weight.size):
            squares += a[d] * a[d]
            along += a[d] * g[d] * weight[d]
        scale = np.float32(1) / np.sqrt(squares / size + eps)
        back = along * scale * scale / size
        for d in range(weight.size):
            y[d] = (g[d] * weight[d] - a[d] * back) * scale
        for d in range(weight.size):
            add_to[d] += g[d] * a[d] * scale


@numba.njit(**SUMS)
def gated(gate_up: Any, out: Any) -> None:
    """silu(gate) * up [N, F] of both side by side [N, 2F]."""
    units = out.shape[1]
    for n in range(len(out)):
        gate, up, y = gate_up[n, :units], gate_up[n, units:], out[n]
        for f in range(units):
            y[f] = gate[f] / (np.float32(1) + exp(-gate[f])) * up[f]


@numba.njit(**SUMS)
def gated_backward(gate_up: Any, grad: Any, out: Any, change: Any) -> None:
    """`gated` again, and its gradient by `gate_up` [N, 2F]."""
    one, units = np.float32(1), out.shape[1]
    for n in range(len(out)):
        gate, up, g, y = gate_up[n, :units], gate_up[n, units:], grad[n], out[n]
        by_gate, by_up = change[n, :units], change[n, units:]
        for f in range(units):
            share = one / (one + exp(-gate[f]))
            active = gate[f] * share
            y[f] = active * up[f]
            by_up[f] = g[f] * active
            by_gate[f] = g[f] * up[f] * (share + active * (one - share))
