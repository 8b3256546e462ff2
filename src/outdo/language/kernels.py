"""Compiled decoding of a Llama-shaped model in float32: from the first hidden states to the last tokens, in one call.

Rows are independent: each has its own place in the cache and leaves the loop when it ends, so what a row samples
depends on nothing else in the call. The threads of a team share the rows for all that is done row by row, and the
outputs of each product: they meet wherever one needs what another computed. What is little work, the norms and the
layout of the products' inputs, each does for itself. Nothing is checked here; `outdo.language.compiled` builds the
arguments.

Axes: R rows, D hidden, H query heads, K key/value heads, E head size, F feed-forward units, V vocabulary, S slots of
the cache, T longest answer.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from outdo.language.columns import LANES, lay_out, meet, product, share

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


class Shared(NamedTuple):
    """What the threads of a team write for each other."""

    qkv: Floats  # [R, (H + 2K) E]
    attended: Floats  # [R, H E]
    change: Floats  # [R, D], to be added to the residual stream
    gate_up: Floats  # [R, 2F]
    active: Floats  # [R, F]
    logits: (
        Floats  # [R, V], and a line more: rows a multiple of a page apart would meet in the same cache lines
    )


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
def _gate(gate_up: Any, rows: int, low: int, high: int, out: Any) -> None:
    """Units `low` to `high` of silu(gate) * up [R, F], for [R, 2F]."""
    units = out.shape[1]
    for r in range(rows):
        gate, up, y = gate_up[r, :units], gate_up[r, units:], out[r]
        for f in range(low, high):
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
def _layer(
    model: Any, team: Any, layer: int, live: Any, slots: Any, keys: Any, values: Any, shared: Any, own: Any
) -> None:
    """One layer for the live rows: from their residual stream and its pending change to the next change."""
    x, normed, columns, scores = own
    rows, hidden, place, vectors = live.size, x.shape[1], model.places[layer], model.vectors
    outputs, inner = shared.qkv.shape[1], shared.attended.shape[1]
    _add_and_norm(x, shared.change, rows, vectors[place[NORM1] : place[NORM1] + hidden], model.eps, normed)
    lay_out(normed, rows, hidden, columns)
    low, high = share(team, outputs)
    product(columns, rows, _matrix(model, place[QKV], outputs, hidden), low, high, shared.qkv)
    meet(team)
    low, high = share(team, rows)
    for r in range(low, high):
        row, parts = live[r], _rotated(model, place, shared.qkv[r], slots[r], keys.shape[3])
        shape = (model.heads, model.kv_heads, keys.shape[3])
        _attend(parts, keys[row, layer], values[row, layer], slots[r], shape, scores, shared.attended[r])
    meet(team)
    lay_out(shared.attended, rows, inner, columns)
    low, high = share(team, hidden)
    product(columns, rows, _matrix(model, place[OUT], hidden, inner), low, high, shared.change)
    meet(team)
    _add_and_norm(x, shared.change, rows, vectors[place[NORM2] : place[NORM2] + hidden], model.eps, normed)
    lay_out(normed, rows, hidden, columns)
    low, high = share(team, model.units)
    w = _matrix(model, place[GATE_UP], 2 * model.units, hidden)
    product(columns, rows, w, low, high, shared.gate_up)
    product(columns, rows, w, model.units + low, model.units + high, shared.gate_up)
    _gate(shared.gate_up, rows, low, high, shared.active)
    meet(team)
    lay_out(shared.active, rows, model.units, columns)
    low, high = share(team, hidden)
    product(columns, rows, _matrix(model, place[DOWN], hidden, model.units), low, high, shared.change)
    meet(team)


@numba.njit(**ORDERED)
def _rotated(model: Any, place: Any, qkv: Any, at: int, size: int) -> Any:
    """Query, key and value heads [H + 2K, E] of one row in place, with bias and norms, rotated for position `at`."""
    if place[QKV_BIAS] >= 0:
        for o in range(qkv.size):
            qkv[o] += model.vectors[place[QKV_BIAS] + o]
    parts = qkv.reshape(-1, size)
    for h in range(model.heads + model.kv_heads):
        if place[Q_NORM] >= 0:
            own = place[Q_NORM] if h < model.heads else place[K_NORM]
            norm(parts[h], model.vectors[own : own + size], model.eps, parts[h])
        _rotate(parts[h], model.cos[at], model.sin[at])
    return parts


@numba.njit(**ORDERED)
def _cut(z: Any, top_k: int, top_p: float) -> None:
    """Set the scores outside top-k and top-p to -inf, in place; see `head.restrict`."""
    if top_k and top_k < z.size:
        threshold = -np.partition(-z, top_k - 1)[top_k - 1]
        for v in range(z.size):
            if z[v] < threshold:
                z[v] = -np.inf
    if top_p < 1.0:
        kept = np.nonzero(z != -np.inf)[0]
        order = kept[np.argsort(-z[kept])]
        total, before = 0.0, 0.0
        for v in order:
            total += math.exp(z[v] - z[order[0]])
        for v in order:
            mass = math.exp(z[v] - z[order[0]]) / total
            if before >= top_p:
                z[v] = -np.inf
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
    team: Any,
    shared: Any,
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
    """One thread's part in decoding rows to their ends: `hidden` [R, D] predicts their first tokens.

    `keys` [R, layers, K, E, S] and `values` [R, layers, K, S, E] hold `filled` [R] tokens of each row; `limits` [R]
    bounds the answers. Written are `tokens` and `logps` [R, T], `lengths` and `stopped` [R].
    """
    count, size = hidden.shape
    x, normed = np.zeros((count, size), np.float32), hidden.copy()
    widest = max(size, shared.attended.shape[1], model.units)
    own = (x, normed, np.zeros((count + LANES) * widest, np.float32), np.zeros(keys.shape[4], np.float32))
    live, slots = np.arange(count), filled.copy()
    for step in range(tokens.shape[1]):
        lay_out(normed, live.size, size, own[2])
        low, high = share(team, len(model.head))
        product(own[2], live.size, model.head, low, high, shared.logits)
        meet(team)
        low, high = share(team, live.size)
        for r in range(low, high):
            row, scores = live[r], shared.logits[r, : len(model.head)]
            tokens[row, step], logps[row, step] = choose(scores, draw, uniforms[row, step])
            lengths[row] = step + 1
            for stop in stops:
                stopped[row] = stopped[row] or tokens[row, step] == stop
        meet(team)
        going = 0
        for row in live:
            if not stopped[row] and step + 1 < limits[row]:
                live[going], slots[going], x[going] = (
                    row,
                    filled[row] + step,
                    model.embedding[tokens[row, step]],
                )
                going += 1
        live, slots = live[:going], slots[:going]
        if not going:
            break
        low, high = share(team, count)
        shared.change[low:high] = 0
        meet(team)
        for layer in range(len(model.places)):
            _layer(model, team, layer, live, slots, keys, values, shared, own)
        _add_and_norm(x, shared.change, going, model.norm, model.eps, normed)


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
    _gate(gate_up, len(out), 0, out.shape[1], out)


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
