"""Reactive traffic: vehicles that keep to the path of their log and hold the distance of the Intelligent Driver Model.

A vehicle wants the speed of its log (so that a scripted braking or cut-in still happens),

    a_log + (v_log − v)/τ,   τ = 1 s,

and takes the smaller of this and the IDM accelerations behind the nearest actor on its path, the ego or another, and
before the line of a red light. Without interference the log comes back. It never drives beyond its logged path.
Axes: S scenes, A actors, T simulated steps + 1, Q points of all paths.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from outdo.driving import kernels
from outdo.driving.dynamics import wrap
from outdo.driving.packing import arc_length, resample
from outdo.driving.scene import Kind, Light, Scene, Signal

SPACING = 1.0  # m between the points of a path
BEYOND = 20.0  # m that a path is continued straight
HARDEST = 8.0  # m/s², the hardest braking
SIDE = 0.2  # m beside its own body that a vehicle keeps free

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]
Ints = NDArray[np.int64]


class Idm(NamedTuple):
    """Parameters: `headway` T in s, `gap` s0 in m, `acceleration` a and comfortable `deceleration` b in m/s²."""

    headway: float = 1.5
    gap: float = 2.0
    acceleration: float = 1.5
    deceleration: float = 2.0


@numba.njit(cache=True)
def idm(speed: float, desired: float, gap: float, closing: float, p: Any) -> float:
    """Acceleration in m/s² of the Intelligent Driver Model, with parameters `p` of `Idm`.

    a·(1 − (v/v0)⁴ − (s*/s)²),   s* = s0 + max(0, v·T + v·Δv/(2√(ab)))

    `gap` s in m between bumpers (∞ without a leader), `closing` Δv = v − v_leader. Treiber, Hennecke and Helbing
    2000 (Phys. Rev. E 62). A gap under 0.1 m counts as 0.1 m.
    """
    wanted = speed * p.headway + speed * closing / (2 * math.sqrt(p.acceleration * p.deceleration))
    ratio = (p.gap + max(0.0, wanted)) / max(gap, 0.1)
    return p.acceleration * (1 - (speed / desired) ** 4 - ratio * ratio)


class Rails(NamedTuple):
    """What reactive vehicles follow; flat arrays with `first` and `points` per vehicle [S, A].

    `path` [Q, 3] x, y, heading every metre, `slope` [S, A] how far sideways it can turn per metre ahead; `reacts`
    [S, A]; `s` [S, A] metres driven; `wanted` [S, A, T] logged speeds; `desired` [S, A] v0 of the IDM. Stops on
    the paths: `stop_s` m, `stop_light` the signal, `served` whether a stop sign has been obeyed, with `stop_first`
    and `stop_count` [S, A]; `lights` [S, signals, T].
    """

    path: Floats
    first: Ints
    points: Ints
    reacts: Mask
    s: Floats
    wanted: Floats
    desired: Floats
    slope: Floats
    stop_s: Floats
    stop_light: Ints
    served: Mask
    stop_first: Ints
    stop_count: Ints
    lights: NDArray[np.int8]


def rails(scenes: Sequence[Scene], actors: int, steps: int) -> Rails:
    """Paths of all vehicles that can react: seen at `now`, going forwards from there on; the ego is none."""
    shape = (len(scenes), actors)
    first, count, stop_first, stop_count = (np.zeros(shape, np.int64) for _ in range(4))
    reacts, wanted = np.zeros(shape, np.bool_), np.zeros((*shape, steps + 1))
    slope = np.zeros(shape)
    paths: list[Floats] = []
    stops: list[tuple[float, int]] = []
    points = 0
    for n, scene in enumerate(scenes):
        for i in range(1, scene.actors):
            valid, log = scene.valid[i, scene.now :], scene.state[i, scene.now :]
            if scene.kind[i] != Kind.VEHICLE or not valid[0] or log[valid, 3].min() < -0.3:
                continue
            path = _path(log[valid])
            first[n, i], count[n, i], reacts[n, i] = points, len(path), True
            points += len(path)
            slope[n, i] = _slope(path)
            paths.append(path)
            wanted[n, i] = np.interp(np.arange(steps + 1), np.flatnonzero(valid), log[valid, 3])
            crossed = [(s, k) for k, sign in enumerate(scene.signals) for s in crossings(path, sign, scene)]
            stop_first[n, i], stop_count[n, i] = len(stops), len(crossed)
            stops.extend(sorted((s * SPACING, k) for s, k in crossed))
    return Rails(
        path=np.concatenate(paths) if paths else np.zeros((0, 3)),
        first=first,
        points=count,
        reacts=reacts,
        s=np.zeros(shape),
        wanted=wanted,
        desired=np.maximum(1.2 * wanted.max(2), 5.0),
        slope=slope,
        stop_s=np.array([s for s, _ in stops], np.float64),
        stop_light=np.array([k for _, k in stops], np.int64),
        served=np.zeros(len(stops), np.bool_),
        stop_first=stop_first,
        stop_count=stop_count,
        lights=lights(scenes, steps),
    )


def lights(scenes: Sequence[Scene], steps: int) -> NDArray[np.int8]:
    """States [S, signals, steps + 1] from `now` on, padded with `Light.DARK`."""
    most = max((len(scene.signals) for scene in scenes), default=0)
    out = np.full((len(scenes), most, steps + 1), Light.DARK, np.int8)
    for n, scene in enumerate(scenes):
        for k, signal in enumerate(scene.signals):
            out[n, k] = signal.states[scene.now : scene.now + steps + 1]
    return out


def _path(log: Floats) -> Floats:
    """Points [P, 3] every metre through the states [T, 4] of a log, steps under 0.5 m left out, and straight on."""
    kept = [log[0]]
    for state in log[1:]:
        if math.hypot(state[0] - kept[-1][0], state[1] - kept[-1][1]) >= 0.5:
            kept.append(state)
    line = np.array(kept)[:, :3]
    line[:, 2] = np.unwrap(line[:, 2])
    x, y, theta = line[-1]
    end = [x + BEYOND * math.cos(theta), y + BEYOND * math.sin(theta), theta]
    return resample(np.concatenate([line, [end]]), SPACING)


def _slope(path: Floats) -> float:
    """Largest tangent between any two directions of a path [P, 3], ∞ where it turns by 1.2 rad or more."""
    step = np.diff(path[:, :2], axis=0)
    directions = np.concatenate([np.arctan2(step[:, 1], step[:, 0]), path[:, 2]])
    directions = path[0, 2] + wrap(directions - path[0, 2])
    spread = float(np.ptp(directions))
    return math.tan(spread) if spread < 1.2 else math.inf


def crossings(path: Floats, signal: Signal, scene: Scene) -> list[float]:
    """Where a path [P, ≥ 2] crosses the stop line of a signal in the direction of its lane, counted in points."""
    a, b = signal.stop_line
    step, line = np.diff(path[:, :2], axis=0), b - a
    cross = step[:, 0] * line[1] - step[:, 1] * line[0]
    to = a - path[:-1, :2]
    with np.errstate(divide="ignore", invalid="ignore"):
        along = (to[:, 0] * line[1] - to[:, 1] * line[0]) / cross
        across = (to[:, 0] * step[:, 1] - to[:, 1] * step[:, 0]) / cross
    centre = scene.lanes[signal.lane].centre
    length = arc_length(centre)
    middle = (a + b) / 2
    heading = kernels.project(centre, length, middle[0], middle[1])[2]
    forwards = step[:, 0] * math.cos(heading) + step[:, 1] * math.sin(heading) > 0
    hit = (cross != 0) & (along >= 0) & (along < 1) & (across >= 0) & (across <= 1) & forwards
    return [float(k + along[k]) for k in np.flatnonzero(hit)]


@numba.njit(cache=True, inline="always")
def _at(path: Floats, first: int, count: int, s: float) -> tuple[float, float, float]:
    """x, y, heading at `s` m of a path; beyond its end straight on."""
    k = min(max(int(s / SPACING), 0), count - 2)
    f = s / SPACING - k
    p, q = path[first + k], path[first + k + 1]
    return p[0] + f * (q[0] - p[0]), p[1] + f * (q[1] - p[1]), p[2] + min(f, 1.0) * (q[2] - p[2])


@numba.njit(cache=True, inline="always")
def _leader(
    n: int,
    i: int,
    state: Floats,
    axis: Floats,
    size: Floats,
    valid: Mask,
    radius: Floats,
    path: Floats,
    way: Any,
) -> tuple[float, float]:
    """Gap in m to the nearest actor on the path of vehicle `i`, ∞ where none is in reach, and closing speed.

    `radius` [A] is half the diagonal of each box; `way` holds `first`, `points`, `s` and `slope` of `Rails`.
    """
    first, points, s0, slope = way
    v = state[n, i, 3]
    end = min((points - 1) * SPACING, s0 + 10 + 6 * v)
    nearest, closing, reach = math.inf, 0.0, end - s0 + 10
    for j in range(state.shape[1]):
        if j == i or not valid[n, j]:
            continue
        dx, dy = state[n, j, 0] - state[n, i, 0], state[n, j, 1] - state[n, i, 1]
        ahead = dx * axis[n, i, 0] + dy * axis[n, i, 1]
        if ahead < 0 or dx * dx + dy * dy > reach * reach:
            continue
        if ahead - radius[j] - size[n, i, 0] / 2 >= nearest:
            continue
        far = radius[j] + size[n, i, 1] / 2 + SIDE
        if abs(dy * axis[n, i, 0] - dx * axis[n, i, 1]) > far + ahead * slope:
            continue
        s, cos, sin, across = min(s0 + ahead, end), 1.0, 0.0, 0.0
        for _ in range(3):  # foot of the perpendicular, by Newton's method
            k = first + min(max(int(s / SPACING), 0), points - 2)
            cos, sin = (
                (path[k + 1, 0] - path[k, 0]) / SPACING,
                (path[k + 1, 1] - path[k, 1]) / SPACING,
            )
            back = s - (k - first) * SPACING
            ex, ey = state[n, j, 0] - path[k, 0] - back * cos, state[n, j, 1] - path[k, 1] - back * sin
            shift, across = ex * cos + ey * sin, abs(ey * cos - ex * sin)
            s = min(max(s + shift, s0), end + 10)
            if across - 0.1 * shift * shift > far:  # no bend of 5 m radius or more leads there
                break
        if across > far or s <= s0:
            continue
        turn = axis[n, j, 0] * cos + axis[n, j, 1] * sin
        cross = abs(axis[n, j, 1] * cos - axis[n, j, 0] * sin)
        half_along = (abs(turn) * size[n, j, 0] + cross * size[n, j, 1]) / 2
        half_across = (cross * size[n, j, 0] + abs(turn) * size[n, j, 1]) / 2
        gap = s - s0 - half_along - size[n, i, 0] / 2
        if across <= half_across + size[n, i, 1] / 2 + SIDE and s <= end + half_along and gap < nearest:
            nearest, closing = gap, v - state[n, j, 3] * turn
    return nearest, closing


@numba.njit(cache=True, inline="always")
def _at_lights(n: int, i: int, t: int, v: float, half: float, r: Any, p: Any) -> float:
    """Smallest IDM acceleration of vehicle `i` before the lines that hold it."""
    best = math.inf
    for k in range(r.stop_first[n, i], r.stop_first[n, i] + r.stop_count[n, i]):
        light = r.lights[n, r.stop_light[k], t]
        gap = r.stop_s[k] - r.s[n, i] - half
        if gap < -0.5 or light == 0 or light == 4 or (light == 3 and r.served[k]):
            continue
        needed = v * v / (2 * max(gap, 0.1))
        if light == 3 and v < 0.3 and gap < p.gap + 1:
            r.served[k] = True
        elif needed <= (p.deceleration if light == 1 else HARDEST):
            best = min(best, idm(v, r.desired[n, i], gap, v, p))
    return best


@numba.njit(cache=True)
def react(
    state: Floats, axis: Floats, size: Floats, valid: Mask, r: Any, t: int, dt: float, p: Any, a: Floats
) -> None:
    """Accelerations `a` [S, A] at step `t` of the vehicles that react; nothing moves yet."""
    # Arrays are taken out of `r` here: each reading in a loop would count references.
    radius, reacts, stops, wanted, desired = (
        np.empty(state.shape[1]),
        r.reacts,
        r.stop_count,
        r.wanted,
        r.desired,
    )
    path, first, points, slope, driven = r.path, r.first, r.points, r.slope, r.s
    for n in range(state.shape[0]):
        for j in range(state.shape[1]):
            radius[j] = math.sqrt(size[n, j, 0] ** 2 + size[n, j, 1] ** 2) / 2
        for i in range(1, state.shape[1]):
            if not reacts[n, i]:
                continue
            v, now, soon = state[n, i, 3], wanted[n, i, t], wanted[n, i, t + 1]
            best = (soon - now) / dt + (now - v)
            way = (first[n, i], points[n, i], driven[n, i], slope[n, i])
            gap, closing = _leader(n, i, state, axis, size, valid, radius, path, way)
            if gap < math.inf:
                best = min(best, idm(v, desired[n, i], gap, closing, p))
            if stops[n, i]:
                best = min(best, _at_lights(n, i, t, v, size[n, i, 0] / 2, r, p))
            a[n, i] = max(best, -HARDEST)


@numba.njit(cache=True)
def move(state: Floats, axis: Floats, r: Any, dt: float, a: Floats) -> None:
    """Move the vehicles that react along their paths, with accelerations `a` [S, A], never backwards."""
    for n in range(state.shape[0]):
        for i in range(1, state.shape[1]):
            if not r.reacts[n, i]:
                continue
            v = state[n, i, 3]
            v1 = max(v + a[n, i] * dt, 0.0)
            r.s[n, i] += dt / 2 * (v + v1)
            x, y, theta = _at(r.path, r.first[n, i], r.points[n, i], r.s[n, i])
            state[n, i, 0], state[n, i, 1], state[n, i, 2], state[n, i, 3] = x, y, theta, v1
            axis[n, i, 0], axis[n, i, 1] = math.cos(theta), math.sin(theta)


@numba.njit(cache=True)
def replay(
    state: Floats, axis: Floats, valid: Mask, history: Floats, present: Mask, column: int, replayed: Mask
) -> None:
    """Set the `replayed` actors to their log in column `column`, and write there where all others are."""
    for n in range(state.shape[0]):
        for i in range(state.shape[1]):
            valid[n, i] = present[n, i, column]
            if replayed[n, i]:
                state[n, i] = history[n, i, column]
                if valid[n, i]:
                    axis[n, i, 0], axis[n, i, 1] = math.cos(state[n, i, 2]), math.sin(state[n, i, 2])
            else:
                history[n, i, column] = state[n, i]
