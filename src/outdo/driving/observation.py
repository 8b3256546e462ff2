"""What a policy sees: 1.6 s of all actors, the map, the route and what holds the ego, in the frame of the ego now.

Axes: S scenes, A actors, M pieces of lanes, P points of a piece, R points of the route.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from outdo.driving import kernels
from outdo.driving.packing import arc_length, resample
from outdo.driving.scene import DT, HISTORY, Light, Scene
from outdo.driving.traffic import crossings, lights

PIECES = 48
POINTS = 10
PIECE_SPACING = 2.0  # m
AHEAD = 32
ROUTE_SPACING = 4.0  # m

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]
Singles = NDArray[np.float32]


@dataclass(frozen=True, slots=True, eq=False)
class Observation:
    """Float32 arrays in m, rad and m/s; places where something is absent hold 0.

    `agents` [S, A, 16, 4] x, y, heading in [−π, π), speed at the last 16 steps, the ego first, with `present`
    [S, A, 16]; `size` [S, A, 2], `kind` [S, A]. `lanes` [S, M, 10, 2] pieces of centrelines, those nearest to the
    route, with `lane_facts` [S, M, 3] (width, speed limit or 0 where there is none, in an intersection) and
    `lane_present` [S, M]. `route` [S, 32, 2] every 4 m ahead with `route_present`; `offset` [S] of the ego to its
    left. `speed_limit` [S], 0 where there is none. `stop_distance` [S] m along the route from the front bumper to
    the next stop line and its `light`, a `Light`; 0 and `DARK` where none follows.
    """

    agents: Singles
    present: Mask
    size: Singles
    kind: NDArray[np.int8]
    lanes: Singles
    lane_facts: Singles
    lane_present: Mask
    route: Singles
    route_present: Mask
    offset: Singles
    speed_limit: Singles
    stop_distance: Singles
    light: NDArray[np.int8]


class Surroundings(NamedTuple):
    """What of a scene stays: lane pieces as in `Observation`, and flat routes `first`, `points` [S].

    `route` [Q, 2] every 4 m with arc `length` [Q] and speed `limit` [Q]; `stop_s`, `stop_light` [S, stops] in order
    along the route (∞ and 0 where there are fewer); `lights` [S, signals, T].
    """

    pieces: Floats
    facts: Singles
    there: Mask
    route: Floats
    length: Floats
    limit: Floats
    first: Ints
    points: Ints
    stop_s: Floats
    stop_light: Ints
    lights: NDArray[np.int8]


def surroundings(scenes: Sequence[Scene], steps: int) -> Surroundings:
    """Collect `Surroundings` of scenes that are simulated for `steps`."""
    size = len(scenes)
    pieces, facts = np.zeros((size, PIECES, POINTS, 2)), np.zeros((size, PIECES, 3), np.float32)
    there = np.zeros((size, PIECES), np.bool_)
    routes, limits, stops = [], [], []
    for n, scene in enumerate(scenes):
        route = _reachable(scene, steps)
        routes.append(route)
        limits.append(_limits(scene, route))
        found = [(s, k) for k, sign in enumerate(scene.signals) for s in crossings(route, sign, scene)]
        stops.append(sorted((s * ROUTE_SPACING, k) for s, k in found))
        near, about = _pieces(scene, route)
        pieces[n, : len(near)], facts[n, : len(near)], there[n, : len(near)] = near, about, True
    most = max(len(found) for found in stops)
    stop_s, stop_light = np.full((size, most), np.inf), np.zeros((size, most), np.int64)
    for n, found in enumerate(stops):
        for k, (s, light) in enumerate(found):
            stop_s[n, k], stop_light[n, k] = s, light
    count = np.array([len(route) for route in routes], np.int64)
    return Surroundings(
        pieces=pieces,
        facts=facts,
        there=there,
        route=np.concatenate(routes),
        length=np.concatenate([arc_length(route) for route in routes]),
        limit=np.concatenate(limits),
        first=np.cumsum(count) - count,
        points=count,
        stop_s=stop_s,
        stop_light=stop_light,
        lights=lights(scenes, steps),
    )


def _reachable(scene: Scene, steps: int) -> Floats:
    """The part of the route that can be seen within `steps` at up to 50 m/s, and 40 m behind: points every 4 m."""
    route = resample(scene.route, ROUTE_SPACING)
    at = kernels.project(route, arc_length(route), *scene.state[0, scene.now, :2])[0]
    first = max(0, int((at - 40) / ROUTE_SPACING))
    last = int((at + 50 * DT * steps) / ROUTE_SPACING) + AHEAD + 2
    return route[min(first, len(route) - 2) : last]


def _limits(scene: Scene, route: Floats) -> Floats:
    """Speed limit [R] at each point of the route: that of the nearest of its lanes, else of all; 0 is none."""
    names = scene.route_lanes or tuple(scene.lanes)
    if not names:
        return np.zeros(len(route))
    lanes = [scene.lanes[name] for name in names]
    limit = np.array([lane.speed_limit if math.isfinite(lane.speed_limit) else 0.0 for lane in lanes])
    return limit[np.argmin([_apart(lane.centre, route) for lane in lanes], axis=0)]


def _apart(line: Floats, points: Floats) -> Floats:
    """Distance [P] of points [P, 2] from a polyline."""
    out = np.empty(len(points))
    _distances(line, arc_length(line), points, out)
    return out


@numba.njit(cache=True)
def _distances(line: Floats, length: Floats, points: Floats, out: Floats) -> None:
    """Write `_apart` into `out`."""
    for k in range(points.shape[0]):
        out[k] = kernels.project(line, length, points[k, 0], points[k, 1])[3]


def _pieces(scene: Scene, route: Floats) -> tuple[Floats, Floats]:
    """The pieces [≤ M, P, 2] of lanes that come nearest to the route and the ego, and their facts [≤ M, 3]."""
    found: list[tuple[Floats, tuple[float, float, float]]] = []
    for lane in scene.lanes.values():
        line = resample(lane.centre, PIECE_SPACING)
        limit = lane.speed_limit if math.isfinite(lane.speed_limit) else 0.0
        for start in range(0, len(line) - 1, POINTS - 1):
            piece = line[start : start + POINTS]
            piece = np.concatenate([piece, np.repeat(piece[-1:], POINTS - len(piece), 0)])
            found.append((piece, (lane.width, limit, float(lane.intersection))))
    if not found:
        return np.zeros((0, POINTS, 2)), np.zeros((0, 3))
    points, facts = np.stack([piece for piece, _ in found]), np.array([about for _, about in found])
    off = _apart(route, points.reshape(-1, 2)).reshape(len(points), POINTS).min(1)
    ego = np.linalg.norm(points - scene.state[0, scene.now, :2], axis=-1).min(1)
    order = np.argsort(off + 0.2 * ego, kind="stable")[:PIECES]
    return points[order], facts[order]


@numba.njit(cache=True, inline="always")
def _see_agents(n: int, c: int, state: Floats, valid: Mask, cos: float, sin: float, o: Any) -> None:
    """Histories of all actors up to column `c`, in the frame of the ego there."""
    x0, y0, theta0 = state[n, 0, c, 0], state[n, 0, c, 1], state[n, 0, c, 2]
    agents, present = o.agents, o.present
    for i in range(state.shape[1]):
        for h in range(HISTORY):
            k = c - HISTORY + 1 + h
            present[n, i, h] = valid[n, i, k]
            if valid[n, i, k]:
                dx, dy = state[n, i, k, 0] - x0, state[n, i, k, 1] - y0
                turn = state[n, i, k, 2] - theta0
                agents[n, i, h, 0], agents[n, i, h, 1] = dx * cos + dy * sin, dy * cos - dx * sin
                agents[n, i, h, 2] = turn - 2 * math.pi * math.floor(turn / (2 * math.pi) + 0.5)
                agents[n, i, h, 3] = state[n, i, k, 3]
            else:
                agents[n, i, h, :] = 0.0


@numba.njit(cache=True, inline="always")
def _see_route(
    n: int, t: int, x0: float, y0: float, half: float, cos: float, sin: float, m: Any, o: Any
) -> None:
    """The route ahead, the speed limit, and the next stop line."""
    first, count = m.first[n], m.points[n]
    line, length = m.route[first : first + count], m.length[first : first + count]
    s, offset, _, _ = kernels.project(line, length, x0, y0)
    o.offset[n] = offset
    here = min(int(s / ROUTE_SPACING), count - 1)
    o.speed_limit[n] = m.limit[first + here]
    route, present = o.route, o.route_present
    for k in range(AHEAD):
        present[n, k] = here + 1 + k < count
        route[n, k, 0], route[n, k, 1] = 0.0, 0.0
        if present[n, k]:
            dx, dy = line[here + 1 + k, 0] - x0, line[here + 1 + k, 1] - y0
            route[n, k, 0], route[n, k, 1] = dx * cos + dy * sin, dy * cos - dx * sin
    o.light[n], o.stop_distance[n] = 4, 0.0
    for k in range(m.stop_s.shape[1]):
        distance = m.stop_s[n, k] - s - half
        if -half < distance < math.inf:
            o.light[n], o.stop_distance[n] = m.lights[n, m.stop_light[n, k], t], distance
            break


class _Seen(NamedTuple):
    """The arrays of `Observation` that are written at every step."""

    agents: Singles
    present: Mask
    lanes: Singles
    route: Singles
    route_present: Mask
    offset: Singles
    speed_limit: Singles
    stop_distance: Singles
    light: NDArray[np.int8]


@numba.njit(cache=True)
def _observe(t: int, state: Floats, valid: Mask, size: Floats, m: Any, o: Any) -> None:
    """Write `o` (`_Seen`) at step `t` of the records `state` [S, A, 15 + T, 4] and `valid`."""
    c = HISTORY - 1 + t
    pieces, there, lanes = m.pieces, m.there, o.lanes
    for n in range(state.shape[0]):
        x0, y0, theta0 = state[n, 0, c, 0], state[n, 0, c, 1], state[n, 0, c, 2]
        cos, sin = math.cos(theta0), math.sin(theta0)
        _see_agents(n, c, state, valid, cos, sin, o)
        _see_route(n, t, x0, y0, size[n, 0, 0] / 2, cos, sin, m, o)
        for k in range(pieces.shape[1]):
            for p in range(POINTS):
                if there[n, k]:
                    dx, dy = pieces[n, k, p, 0] - x0, pieces[n, k, p, 1] - y0
                    lanes[n, k, p, 0], lanes[n, k, p, 1] = dx * cos + dy * sin, dy * cos - dx * sin
                else:
                    lanes[n, k, p, 0], lanes[n, k, p, 1] = 0.0, 0.0


def observe(
    t: int, state: Floats, valid: Mask, size: Floats, kind: NDArray[np.int8], around: Surroundings
) -> Observation:
    """What is seen at step `t` of the records `state` [S, A, 15 + T, 4] and `valid` [S, A, 15 + T]."""
    s, a = state.shape[:2]
    seen = _Seen(
        agents=np.empty((s, a, HISTORY, 4), np.float32),
        present=np.empty((s, a, HISTORY), np.bool_),
        lanes=np.empty((s, PIECES, POINTS, 2), np.float32),
        route=np.empty((s, AHEAD, 2), np.float32),
        route_present=np.empty((s, AHEAD), np.bool_),
        offset=np.empty(s, np.float32),
        speed_limit=np.empty(s, np.float32),
        stop_distance=np.empty(s, np.float32),
        light=np.full(s, Light.DARK, np.int8),
    )
    _observe(t, state, valid, size, around, seen)
    return Observation(
        **seen._asdict(),
        size=size.astype(np.float32),
        kind=kind,
        lane_facts=around.facts,
        lane_present=around.there,
    )
