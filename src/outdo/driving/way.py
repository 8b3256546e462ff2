"""What the rules of the expert read of a scene: its route metre by metre, stop lines, merges and neighbours.

Axes: S scenes, Q points of all routes (1 m apart), A actors, K stop lines of a route.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from outdo.driving import kernels, traffic
from outdo.driving.packing import arc_length, pack_polygons, resample
from outdo.driving.scene import HISTORY, Kind, Scene

COMFORTABLE_TURN = 2.0  # m/s² lateral
WIDEST = 6.0  # m to each side that are searched for room

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


class Way(NamedTuple):
    """Flat routes: `line` [Q, 2], `length`, `bend` (1/m), `limit` (m/s), `works` (1 at road works) [Q].

    `room` [Q, 2] metres to the left and right of the route that may be driven on; `first`, `points` [S]. `stop_s`
    [S, K] (∞ where there are fewer), `stop_light` [S, K], `lights` [S, signals, T]. `merge_s` [S] where another
    lane joins (∞), with that lane `rival` and its arc lengths, `rival_first`, `rival_count`, `rival_s` [S].
    `aside` [S] offset of the neighbour lane for passing (0: none), `half_lane` [S]. `early_d`, `early_v` [S, A]:
    offset and speed of actors when they were first seen.
    """

    line: Floats
    length: Floats
    bend: Floats
    limit: Floats
    works: Floats
    room: Floats
    first: Ints
    points: Ints
    stop_s: Floats
    stop_light: Ints
    lights: NDArray[np.int8]
    merge_s: Floats
    rival: Floats
    rival_length: Floats
    rival_first: Ints
    rival_count: Ints
    rival_s: Floats
    aside: Floats
    half_lane: Floats
    early_d: Floats
    early_v: Floats


def ways(scenes: Sequence[Scene], steps: int) -> Way:
    """Collect `Way` for scenes that are driven for `steps`."""
    size, actors = len(scenes), max(scene.actors for scene in scenes)
    lines = [resample(scene.route, 1.0) for scene in scenes]
    count = np.array([len(line) for line in lines], np.int64)
    limits = [_limits(scene, line) for scene, line in zip(scenes, lines, strict=True)]
    stops = [_stops(scene, line) for scene, line in zip(scenes, lines, strict=True)]
    most = max(len(found) for found in stops)
    stop_s, stop_light = np.full((size, most), np.inf), np.zeros((size, most), np.int64)
    rivals = [_rival(scene, line) for scene, line in zip(scenes, lines, strict=True)]
    rival_count = np.array([len(rival) for rival, _, _ in rivals], np.int64)
    early = np.zeros((2, size, actors))
    for n, (scene, line) in enumerate(zip(scenes, lines, strict=True)):
        for k, (s, light) in enumerate(stops[n]):
            stop_s[n, k], stop_light[n, k] = s, light
        early[:, n, : scene.actors] = _early(scene, line)
    return Way(
        line=np.concatenate(lines),
        length=np.concatenate([arc_length(line) for line in lines]),
        bend=np.concatenate([bends(line) for line in lines]),
        limit=np.concatenate(limits),
        works=np.concatenate([_works(scene, line) for scene, line in zip(scenes, lines, strict=True)]),
        room=np.concatenate([_room(scene, line) for scene, line in zip(scenes, lines, strict=True)]),
        first=np.cumsum(count) - count,
        points=count,
        stop_s=stop_s,
        stop_light=stop_light,
        lights=traffic.lights(scenes, steps),
        merge_s=np.array([s for _, s, _ in rivals]),
        rival=np.concatenate([rival for rival, _, _ in rivals]),
        rival_length=np.concatenate([arc_length(rival) for rival, _, _ in rivals if len(rival)] or [[]]),
        rival_first=np.cumsum(rival_count) - rival_count,
        rival_count=rival_count,
        rival_s=np.array([s for _, _, s in rivals]),
        aside=np.array([_aside(scene) for scene in scenes]),
        half_lane=np.array([_half_lane(scene) for scene in scenes]),
        early_d=early[0],
        early_v=early[1],
    )


def _headings(line: Floats) -> Floats:
    step = np.gradient(line, axis=0)
    return np.unwrap(np.arctan2(step[:, 1], step[:, 0]))


def bends(line: Floats) -> Floats:
    """Curvature [Q], a mean over 5 m."""
    padded = np.pad(np.gradient(_headings(line)), 2, mode="edge")
    return np.convolve(padded, np.full(5, 0.2), "valid")


def _limits(scene: Scene, line: Floats) -> Floats:
    """Speed limit [Q] of the nearest lane of the route (of all lanes where the route names none)."""
    lanes = [scene.lanes[name] for name in scene.route_lanes] or list(scene.lanes.values())
    nearest, limit = np.full(len(line), np.inf), np.full(len(line), np.inf)
    for lane in lanes:
        apart = np.empty(len(line))
        _nearest(line, resample(lane.centre, 1.0), apart)
        limit = np.where(apart < nearest - 1e-6, lane.speed_limit, limit)
        nearest = np.minimum(nearest, apart)
    return np.minimum(limit, 40.0)


@numba.njit(cache=True)
def _nearest(line: Floats, points: Floats, out: Floats) -> None:
    """Distance `out` [Q] of each point of `line` from the nearest of `points` [P, 2]."""
    for q in range(line.shape[0]):
        best = np.inf
        for p in range(points.shape[0]):
            dx, dy = line[q, 0] - points[p, 0], line[q, 1] - points[p, 1]
            best = min(best, dx * dx + dy * dy)
        out[q] = np.sqrt(best)


def _works(scene: Scene, line: Floats) -> Floats:
    """1 where a static object lies within 15 m of the route."""
    static = scene.state[scene.kind == Kind.STATIC, scene.now, :2]
    static = static[np.isfinite(static).all(1)]
    if not len(static):
        return np.zeros(len(line))
    return (np.linalg.norm(line[:, None] - static[None], axis=-1).min(1) < 15).astype(np.float64)


def _room(scene: Scene, line: Floats) -> Floats:
    """Metres [Q, 2] to the left and right of the route, in steps of ¼ m, until the drivable area ends."""
    theta, room = _headings(line), np.zeros((len(line), 2))
    normal = np.stack([-np.sin(theta), np.cos(theta)], -1)
    _widths(line, normal, *pack_polygons(scene.drivable), room)
    return room


@numba.njit(cache=True)
def _widths(line: Floats, normal: Floats, points: Floats, starts: Ints, boxes: Floats, room: Floats) -> None:
    for q in range(line.shape[0]):
        for side in range(2):
            wide, sign = 0.25, 1 - 2 * side
            while wide <= WIDEST:
                x, y = line[q, 0] + sign * wide * normal[q, 0], line[q, 1] + sign * wide * normal[q, 1]
                if not kernels.inside(points, starts, boxes, x, y):
                    break
                room[q, side] = wide
                wide += 0.25


def _stops(scene: Scene, line: Floats) -> list[tuple[float, int]]:
    found = [(s, k) for k, sign in enumerate(scene.signals) for s in traffic.crossings(line, sign, scene)]
    return sorted(found)


def _rival(scene: Scene, line: Floats) -> tuple[Floats, float, float]:
    """A lane that joins the route from beside: its line, and where along route and line they come within 3.5 m.

    Lanes that meet in an intersection are no merge.
    """
    for name in scene.route_lanes:
        for other in scene.lanes.values():
            shared = set(other.successors) & set(scene.lanes[name].successors) & set(scene.route_lanes)
            known = other.id == name or other.id in scene.route_lanes
            if known or not shared or scene.lanes[name].intersection:
                continue
            meet = scene.lanes[shared.pop()].centre
            rival = resample(np.concatenate([other.centre, meet[1:]]), 1.0)
            length = arc_length(rival)
            near = [kernels.project(rival, length, x, y) for x, y in line]
            first = next((k for k, found in enumerate(near) if found[3] < 3.5), len(line) - 1)
            return rival, float(first), near[first][0]
    return np.zeros((0, 2)), np.inf, np.inf


def _half_lane(scene: Scene) -> float:
    names = scene.route_lanes or tuple(scene.lanes)
    return min((scene.lanes[name].width for name in names), default=3.5) / 2


def _aside(scene: Scene) -> float:
    """Offset of the neighbour in driving direction, the left one if there are both; 0 without one."""
    for name in scene.route_lanes:
        lane = scene.lanes[name]
        if lane.left is not None:
            return (lane.width + scene.lanes[lane.left].width) / 2
        if lane.right is not None:
            return -(lane.width + scene.lanes[lane.right].width) / 2
    return 0.0


def _early(scene: Scene, line: Floats) -> Floats:
    """Offset from the route and speed [2, A] of each actor at its first step of the observed history."""
    start = max(scene.now - HISTORY + 1, 0)
    out, length = np.zeros((2, scene.actors)), arc_length(line)
    for i in range(scene.actors):
        seen = np.flatnonzero(scene.valid[i, start : scene.now + 1])
        if len(seen):
            x, y, _, v = scene.state[i, start + seen[0]]
            out[:, i] = kernels.project(line, length, x, y)[1], v
    return out
