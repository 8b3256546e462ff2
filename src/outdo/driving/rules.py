"""The expert's rules, compiled: one acceleration and one curvature per scene, and which rule decided.

Each rule proposes an acceleration, the smallest is taken. Along the route the rules are: the Intelligent Driver
Model towards the limit, before slower stretches, behind what is ahead, before stop lines, before whoever crosses
first, and behind who comes first at a merge. Across it the ego keeps to the route or to an offset from it: around
what stands at the side, or in the neighbour lane to pass. Axes: S scenes, A actors.
"""

from __future__ import annotations

import math
from enum import IntEnum
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from outdo.driving import kernels
from outdo.driving.traffic import Idm, idm

DT = 0.1
SIGHT = 70.0  # m of the route that are searched
STANDS = 0.3  # m/s
HARDEST = 8.0  # m/s²

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Rule(IntEnum):
    """What decided about the acceleration."""

    FREE = 0
    WORKS = 1
    CURVE = 2
    LIMIT = 3
    LEAD = 4
    BRAKING = 5
    CUT_IN = 6
    STOPPED = 7
    PEDESTRIAN = 8
    ONCOMING = 9
    CROSSING = 10
    CYCLIST = 11
    RED = 12
    YELLOW = 13
    STOP_SIGN = 14
    MERGE = 15
    OBSTACLE = 16


class Drivers(NamedTuple):
    """Habits of the drivers, each [S], as in `outdo.driving.expert.Driver`."""

    headway: Floats
    gap: Floats
    notice: Floats
    clearance: Floats
    margin: Floats


class Memory(NamedTuple):
    """What the drivers keep, each [S].

    Wanted `offset` m from the route, last controls `a` and `kappa`, whether it is `passing`, `target` m that the
    offset moves to, `blocked` by oncoming traffic; `served` [S, K] stop signs.
    """

    offset: Floats
    a: Floats
    kappa: Floats
    passing: Ints
    served: Ints
    target: Floats
    blocked: Ints


@numba.njit(cache=True, inline="always")
def _wrap(angle: float) -> float:
    return angle - 2 * math.pi * math.floor(angle / (2 * math.pi) + 0.5)


@numba.njit(cache=True, inline="always")
def _follow(v: float, v0: float, gap: float, closing: float, n: int, p: Any) -> float:
    """IDM behind something, or no opinion (∞) as long as this driver does not notice it.

    It brakes by at most 2 m/s² more than 1.5 times what is needed to close the gap: a short gap alone is no emergency.
    """
    needed = closing * closing / (2 * max(gap, 0.1)) if closing > 0 else 0.0
    if needed < p.notice[n] and gap > 1.0 + 0.3 * v:
        return math.inf
    floor = max(-2.0 - 1.5 * needed, -HARDEST)
    return max(idm(v, v0, gap, closing, Idm(p.headway[n], p.gap[n], 1.5, 2.0)), floor)


@numba.njit(cache=True)
def _ahead(v: float, s: float, first: int, count: int, w: Any) -> tuple[float, int]:
    """The rule for slower stretches: brake so that each is entered at its speed."""
    best, rule = math.inf, 0
    for k in range(int(s) + 1, min(int(s + SIGHT), count)):
        bend = abs(w.bend[first + k])
        turn = math.sqrt(2.0 / bend) if bend > 0.002 else math.inf
        allowed = min(w.limit[first + k], turn)
        reach = math.sqrt(allowed * allowed + 2 * 1.2 * max(k - s - 1, 0.0))
        if (reach - v) / 0.8 < best:
            best = (reach - v) / 0.8
            rule = 2 if turn < w.limit[first + k] else (1 if w.works[first + k] > 0 else 3)
    return max(best, -4.0), rule


@numba.njit(cache=True)
def _crossing(n: int, j: int, s: float, state: Any, size: Any, half_w: float, w: Any) -> Any:
    """Where and when actor `j`, keeping its velocity, is on the route ahead: (from m, to m, from s, to s)."""
    first = w.first[n] + int(s)
    last = min(w.first[n] + int(s + SIGHT), w.first[n] + w.points[n])
    near, far, enter, leave = math.inf, -math.inf, math.inf, -math.inf
    if last - first < 2:
        return near, far, enter, leave
    line, length = w.line[first:last], w.length[first:last]
    x, y, theta, vj = state[n, j, 0], state[n, j, 1], state[n, j, 2], state[n, j, 3]
    for q in range(28):
        tau = 0.25 * q
        px, py = x + vj * tau * math.cos(theta), y + vj * tau * math.sin(theta)
        sc, dc, heading, distance = kernels.project(line, length, px, py)
        turn = abs(math.sin(theta - heading))
        if turn < 0.39 or distance > abs(dc) + 0.1:
            continue
        along = (abs(math.cos(theta - heading)) * size[n, j, 0] + turn * size[n, j, 1]) / 2
        across = (turn * size[n, j, 0] + abs(math.cos(theta - heading)) * size[n, j, 1]) / 2
        if abs(dc) < across + half_w + 0.4:
            near, far = min(near, sc - along), max(far, sc + along)
            enter, leave = min(enter, tau), max(leave, tau)
    return near, far, enter, leave


@numba.njit(cache=True)
def _give_way(
    n: int, s: float, v: float, v0: float, state: Any, size: Any, valid: Any, kind: Any, w: Any, p: Any
) -> tuple[float, int]:
    """The rule for whoever crosses the route first: stop before where they cross."""
    best, rule, half = math.inf, 0, size[n, 0, 0] / 2
    for j in range(1, state.shape[1]):
        if not valid[n, j] or state[n, j, 3] < STANDS:
            continue
        if math.hypot(state[n, j, 0] - state[n, 0, 0], state[n, j, 1] - state[n, 0, 1]) > 90:
            continue
        near, far, enter, leave = _crossing(n, j, s, state, size, size[n, 0, 1] / 2, w)
        reach = near - s - half
        if not math.isfinite(enter) or reach < -1.0:
            continue
        clear = far + half - s
        cleared = (-v + math.sqrt(v * v + 2 * 1.0 * max(clear, 0.0))) / 1.0  # going on with 1 m/s²
        arrives = max(reach, 0.0) / max(v, 0.5)
        if cleared + p.margin[n] < enter or leave + 0.6 * p.margin[n] < arrives:
            continue
        gap = reach - 0.5
        if v * v / (2 * max(gap, 0.1)) > HARDEST:
            continue
        a = _follow(v, v0, max(gap, 0.1), v, n, p)
        if a < best:
            opposite = math.cos(state[n, j, 2] - state[n, 0, 2]) < -0.5
            best = a
            rule = 8 if kind[n, j] == 1 else 11 if kind[n, j] == 2 else 9 if opposite else 10
    return best, rule


@numba.njit(cache=True)
def _at_lines(n: int, t: int, s: float, v: float, v0: float, half: float, w: Any, m: Any, p: Any) -> Any:
    """The rule for lights and stop signs; a stop sign is served once the ego has stood before it."""
    best, rule = math.inf, 0
    for k in range(w.stop_s.shape[1]):
        gap = w.stop_s[n, k] - s - half
        if not -0.5 < gap < SIGHT:
            continue
        light = w.lights[n, w.stop_light[n, k], t]
        if light == 0 or light == 4 or (light == 3 and m.served[n, k] > 0):
            continue
        if light == 3 and v < STANDS and gap < 4.0:
            m.served[n, k] = 1
            continue
        if v * v / (2 * max(gap, 0.1)) > (3.0 if light == 1 else HARDEST):
            continue
        a = _follow(v, v0, gap, v, n, p)
        if a < best:
            best, rule = a, 12 if light == 2 else 13 if light == 1 else 14
    return best, rule


@numba.njit(cache=True)
def _at_merge(n: int, s: float, v: float, state: Any, size: Any, valid: Any, w: Any, p: Any) -> float:
    """The rule for a lane that joins: those who would be there first go first.

    The ego aims to be there T = 1 s after each of them has passed, by 2·(s − v·T)/T², or stops before.
    """
    own = w.merge_s[n] - s - size[n, 0, 0] / 2
    if not 0 < own < SIGHT:
        return math.inf
    first, count = w.rival_first[n], w.rival_count[n]
    line, length = w.rival[first : first + count], w.rival_length[first : first + count]
    best, arrives = math.inf, (-v + math.sqrt(v * v + 2 * 1.0 * own)) / 1.0
    for j in range(1, state.shape[1]):
        if not valid[n, j]:
            continue
        sj, dj, _, distance = kernels.project(line, length, state[n, j, 0], state[n, j, 1])
        other, vj = w.rival_s[n] - sj + size[n, j, 0] / 2, max(state[n, j, 3], 1.0)
        if abs(dj) > 1.75 or distance > 2.0 or other < 0 or other / vj > arrives + p.margin[n]:
            continue
        passed = other / vj + 0.7 * p.headway[n]
        a = 2 * (own - v * passed) / (passed * passed)
        if v + a * passed < 0:
            a = -v * v / (2 * own)
        best = min(best, max(a, -4.0))
    return best


@numba.njit(cache=True)
def _around(
    n: int, s: float, d: float, v: float, state: Any, size: Any, valid: Any, w: Any, m: Any, p: Any, seen: Any
) -> float:
    """Offset that passes what stands at the side (0: none); notes in `m` whether oncoming traffic blocks it."""
    target, m.blocked[n] = 0.0, 0
    half, half_w = size[n, 0, 0] / 2, size[n, 0, 1] / 2
    for j in range(1, state.shape[1]):
        if not valid[n, j] or state[n, j, 3] > STANDS:
            continue
        sj, dj, across, along = seen[j, 0], seen[j, 1], seen[j, 3], seen[j, 2]
        if sj + along + half + 1.0 < s or sj - s > 12 + 2.5 * v or seen[j, 5] > 0:
            continue
        reach = across + half_w + p.clearance[n]
        if abs(dj) > reach + 0.05 or abs(dj) < 0.9:
            continue
        shift = dj + reach if dj < 0 else dj - reach
        k = w.first[n] + min(int(max(sj, 0.0)), w.points[n] - 1)
        room = w.room[k, 0] if shift > 0 else w.room[k, 1]
        if abs(shift) > 2.6 or abs(shift) + half_w + 0.1 > room or abs(shift) < abs(target):
            continue
        if abs(shift) + half_w > w.half_lane[n] and abs(d) < 0.4:
            for i in range(1, state.shape[1]):
                if not valid[n, i] or seen[i, 4] > -0.8 or state[n, i, 3] < STANDS or seen[i, 0] < s:
                    continue
                needs = (sj + along + half + 12 - s) / max(v, 4.0)
                meets = (seen[i, 0] - sj - along) / state[n, i, 3]
                if abs(seen[i, 1] - shift) < half_w + seen[i, 3] + 0.8 and meets < needs + p.margin[n]:
                    m.blocked[n] = 1
        target = shift
    return 0.0 if m.blocked[n] else target


@numba.njit(cache=True)
def _see(n: int, state: Any, size: Any, valid: Any, w: Any, seen: Any) -> None:
    """`seen` [A, 6]: arc, offset, half extents along and across the route, cosine to it, 1 where not beside it."""
    first, count = w.first[n], w.points[n]
    line, length = w.line[first : first + count], w.length[first : first + count]
    for j in range(state.shape[1]):
        if not valid[n, j]:
            continue
        s, d, heading, distance = kernels.project(line, length, state[n, j, 0], state[n, j, 1])
        cos, sin = math.cos(state[n, j, 2] - heading), abs(math.sin(state[n, j, 2] - heading))
        seen[j, 0], seen[j, 1], seen[j, 4] = s, d, cos
        seen[j, 2] = (abs(cos) * size[n, j, 0] + sin * size[n, j, 1]) / 2
        seen[j, 3] = (sin * size[n, j, 0] + abs(cos) * size[n, j, 1]) / 2
        seen[j, 5] = 1.0 if distance > abs(d) + 0.5 else 0.0


@numba.njit(cache=True)
def _lead(
    n: int, s: float, d: float, v: float, v0: float, state: Any, size: Any, valid: Any, kind: Any, w: Any,
    m: Any, p: Any, seen: Any,
) -> tuple[float, int, int]:  # fmt: skip
    """The rule for what is ahead on the way, with its rule and actor."""
    best, rule, who = math.inf, 0, 0
    half, half_w = size[n, 0, 0] / 2, size[n, 0, 1] / 2
    low, high = min(d, m.offset[n]), max(d, m.offset[n])
    if m.passing[n] > 0:
        low, high = d, d
    for j in range(1, state.shape[1]):
        ds, vj = seen[j, 0] - s, state[n, j, 3]
        if not valid[n, j] or seen[j, 5] > 0 or not 0 < ds < SIGHT:
            continue
        if -0.95 < seen[j, 4] < 0.6 and vj > STANDS:
            continue  # crosses: another rule
        drift = vj * _wrap(state[n, j, 2] - _heading_at(n, seen[j, 0], w)) * 1.5 if seen[j, 4] > 0.8 else 0.0
        a, b = min(seen[j, 1], seen[j, 1] + drift), max(seen[j, 1], seen[j, 1] + drift)
        reach = half_w + seen[j, 3] + 0.2
        side = abs(m.target[n]) > 0 and vj < STANDS and abs(seen[j, 1] - m.target[n]) > half_w + seen[j, 3]
        if b < low - reach or a > high + reach or (side and ds > 6 + half):
            continue
        gap = ds - seen[j, 2] - half
        if m.blocked[n] > 0 and vj < STANDS:
            gap -= 5.0  # room to swing out later
        if side and abs(seen[j, 1] - d) > half_w + seen[j, 3] + 0.1:
            continue
        acceleration = _follow(v, v0, gap, v - vj * seen[j, 4], n, p)
        if acceleration < best:
            best, who = acceleration, j
            rule = 4
            if m.blocked[n] > 0 and vj < STANDS:
                rule = 9
            elif w.early_v[n, j] < 0.5 and vj < 0.5:
                rule = 16 if kind[n, j] == 3 else 7
            elif abs(w.early_d[n, j]) > 1.2 and abs(seen[j, 1]) < 3.5:
                rule = 15 if w.merge_s[n] < math.inf else 6
            elif vj < w.early_v[n, j] - 1.0:
                rule = 5
    return best, rule, who


@numba.njit(cache=True, inline="always")
def _heading_at(n: int, s: float, w: Any) -> float:
    """Heading of the route of scene `n` at `s`."""
    k = w.first[n] + min(max(int(s), 0), w.points[n] - 2)
    return math.atan2(w.line[k + 1, 1] - w.line[k, 1], w.line[k + 1, 0] - w.line[k, 0])


@numba.njit(cache=True)
def _worth_passing(
    n: int, s: float, v: float, v0: float, who: int, state: Any, size: Any, valid: Any, w: Any, seen: Any
) -> bool:
    """Whether the leader `who` is slow without braking and the neighbour lane is free."""
    aside, vl = w.aside[n], state[n, who, 3]
    if who == 0 or aside == 0 or vl < 1.0 or vl > 0.7 * v0 or vl < w.early_v[n, who] - 0.8:
        return False
    if seen[who, 0] - s > 45 or abs(w.early_d[n, who]) > 1.2 or w.merge_s[n] < math.inf:
        return False
    for j in range(1, state.shape[1]):
        if not valid[n, j] or abs(seen[j, 1] - aside) > 2.2 or seen[j, 5] > 0:
            continue
        ds, vj = seen[j, 0] - s, state[n, j, 3] * seen[j, 4]
        if -(9 + 4.0 * max(vj - v, 0.0)) < ds < 9 + 4.0 * max(max(v, 8.0) - vj, 0.0):
            return False
    return True


@numba.njit(cache=True)
def decide(
    t: int, state: Floats, size: Floats, valid: Any, kind: Any, w: Any, m: Any, p: Any, control: Floats,
    rules: Ints, lost: Floats,
) -> None:  # fmt: skip
    """Controls [S, 2] of all egos at step `t`, the rule [S] of each, and m/s² `lost` [S] to it."""
    seen = np.zeros((state.shape[1], 6))
    for n in range(state.shape[0]):
        _see(n, state, size, valid, w, seen)
        s, d, v, half = seen[0, 0], seen[0, 1], state[n, 0, 3], size[n, 0, 0] / 2
        first, count = w.first[n], w.points[n]
        v0 = w.limit[first + min(int(s), count - 1)] * (1.05 if m.passing[n] > 0 else 1.0)
        free = 1.5 * (1 - (v / v0) ** 4) if v <= v0 else max((v0 - v) / 1.0, -2.0)
        if m.passing[n] == 0:
            m.target[n] = _around(n, s, d, v, state, size, valid, w, m, p, seen)
        a, rule, who = _lead(n, s, d, v, v0, state, size, valid, kind, w, m, p, seen)
        if m.passing[n] == 0 and _worth_passing(n, s, v, v0, who, state, size, valid, w, seen):
            m.passing[n], m.target[n] = 1, w.aside[n]
        slow, why = _ahead(v, s, first, count, w)
        if slow < a and slow < free:
            a, rule = slow, why
        way, why = _give_way(n, s, v, v0, state, size, valid, kind, w, p)
        if way < a:
            a, rule = way, why
        line, why = _at_lines(n, t, s, v, v0, half, w, m, p)
        if line < a:
            a, rule = line, why
        merge = _at_merge(n, s, v, state, size, valid, w, p)
        if merge < a:
            a, rule = merge, 15
        if free <= a:
            a, rule = free, 0
        rules[n], lost[n] = rule, max(min(free, 1.5) - a, 0.0)
        control[n, 0] = _pedals(n, a, v, m)
        control[n, 1] = _steering(n, s, d, v, state, w, m)


@numba.njit(cache=True, inline="always")
def _pedals(n: int, a: float, v: float, m: Any) -> float:
    """The wanted acceleration, its change limited to 4 m/s³ unless it is urgent, never into reverse."""
    step = 0.35 if a > -4.0 else 1.5
    a = min(max(a, m.a[n] - step), m.a[n] + 0.35)
    a = max(a, -v / DT)
    m.a[n] = a
    return a


@numba.njit(cache=True, inline="always")
def _steering(n: int, s: float, d: float, v: float, state: Any, w: Any, m: Any) -> float:
    """Curvature that brings the offset to the wanted one, which moves at 1.2 m/s at most.

    κ = κ_route − (d − d*)/L² − (1.7/L)·(ψ − d*'/v),   L = max(4, 0.9 s·v).
    """
    rate = 1.2 * min(max(v, 2.0) / 5, 1.0) * DT
    change = min(max(m.target[n] - m.offset[n], -rate), rate)
    m.offset[n] += change
    psi = _wrap(state[n, 0, 2] - _heading_at(n, s + 0.5, w))
    reach = max(4.0, 0.9 * v)
    bend = w.bend[w.first[n] + min(int(s + 0.3 * v + 0.5), w.points[n] - 1)]
    kappa = bend - (d - m.offset[n]) / (reach * reach) - 1.7 / reach * (psi - change / DT / max(v, 2.0))
    limit = 0.12 / max(v, 2.0)
    kappa = min(max(kappa, m.kappa[n] - limit, -0.2), m.kappa[n] + limit, 0.2)
    m.kappa[n] = kappa
    return kappa
