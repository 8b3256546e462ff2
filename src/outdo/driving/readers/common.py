"""What both readers share: actors to arrays, routes over lanes, faults of the finished scene."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from outdo.driving import kernels
from outdo.driving.comfort import savitzky_golay
from outdo.driving.dynamics import wrap
from outdo.driving.packing import arc_length, pack_polygons, resample
from outdo.driving.scene import MAX_ACTORS, Kind, Lane, Scene

AHEAD = 120.0  # m that a route is continued over lanes

Floats = NDArray[np.float64]


@dataclass(slots=True)
class Track:
    """One actor of a log: `state` [T, 4], NaN at the steps where it was not seen."""

    kind: Kind
    size: tuple[float, float]
    state: Floats
    name: str = field(default="")


def speeds(state: Floats) -> Floats:
    """Speed along the heading [T] from the positions of `state` [T, ≥ 3]: a parabola fitted over 0.7 s.

    Each run without a gap is fitted for itself; a single step has speed 0.
    """
    out = np.full(len(state), np.nan)
    seen = np.isfinite(state[:, :3]).all(1)
    edges = np.flatnonzero(np.diff(np.concatenate([[False], seen, [False]]).astype(np.int8)))
    for start, end in edges.reshape(-1, 2):
        run = state[start:end]
        if end - start == 1:
            out[start] = 0.0
            continue
        rate = savitzky_golay(run[:, :2].T, 7, 1)
        out[start:end] = rate[0] * np.cos(run[:, 2]) + rate[1] * np.sin(run[:, 2])
    return out


def distinct(points: Floats) -> Floats:
    """A polyline [P, 2] without points that equal the one before."""
    keep = np.concatenate([[True], (np.diff(points, axis=0) != 0).any(1)])
    return points[keep]


def middle(left: Floats, right: Floats) -> tuple[Floats, float]:
    """Centre line [P, 2] between two boundaries, and the mean width in m."""
    count = max(len(left), len(right), 5)
    share = np.linspace(0, 1, count)
    sides: list[Floats] = []
    for side in (left, right):
        length = arc_length(side)
        sides.append(np.stack([np.interp(share * length[-1], length, column) for column in side.T], -1))
    width = float(np.linalg.norm(sides[0] - sides[1], axis=1).mean())
    return distinct((sides[0] + sides[1]) / 2), width


def lanes_at(lanes: Mapping[str, Lane], x: float, y: float, heading: float) -> list[str]:
    """Lanes that hold the place and lead within 60° of `heading`, the nearest and best aligned first."""
    found: list[tuple[float, str]] = []
    for name, lane in lanes.items():
        _, _, direction, distance = kernels.project(lane.centre, arc_length(lane.centre), x, y)
        turn = abs(float(wrap(np.array(direction - heading))))
        if distance <= lane.width / 2 + 0.3 and turn < np.pi / 3:
            found.append((distance + 3 * turn, name))
    return [name for _, name in sorted(found)]


def way_over(lanes: Mapping[str, Lane], starts: Collection[str], goals: Collection[str]) -> tuple[str, ...]:
    """The shortest sequence of lanes from one of `starts` to one of `goals`, () where none leads there."""
    before: dict[str, str | None] = dict.fromkeys(starts)
    queue = deque(starts)
    while queue:
        name = queue.popleft()
        if name in goals:
            way = [name]
            while (last := before[way[-1]]) is not None:
                way.append(last)
            return tuple(reversed(way))
        lane = lanes[name]
        for other in (*lane.successors, lane.left, lane.right):
            if other is not None and other not in before:
                before[other] = name
                queue.append(other)
    return ()


def onward(lanes: Mapping[str, Lane], name: str, metres: float = AHEAD) -> tuple[str, ...]:
    """`name` and the lanes after it, the straightest at each fork, until `metres` are covered."""
    way, covered = [name], float(arc_length(lanes[name].centre)[-1])
    while covered < metres:
        ahead = [other for other in lanes[way[-1]].successors if other not in way]
        if not ahead:
            break
        way.append(min(ahead, key=lambda other: _turn(lanes[other].centre)))
        covered += float(arc_length(lanes[way[-1]].centre)[-1])
    return tuple(way)


def _turn(line: Floats) -> float:
    first, last = line[1] - line[0], line[-1] - line[-2]
    return abs(float(wrap(np.arctan2(*last[::-1]) - np.arctan2(*first[::-1]))))


def centre_of(lanes: Mapping[str, Lane], way: tuple[str, ...]) -> Floats:
    """The centre line [P, 2] over a sequence of lanes; neighbours are changed within the middle of their lane."""
    pieces: list[Floats] = []
    for k, name in enumerate(way):
        line = resample(lanes[name].centre, 2.0)
        beside = (lanes[name].left, lanes[name].right)
        start, end = 0, len(line)
        if k + 1 < len(way) and way[k + 1] in beside:
            end = max(len(line) // 3, 1)
        if k > 0 and way[k - 1] in beside:
            start = min(2 * len(line) // 3, len(line) - 1)
        pieces.append(line[start:end])
    return distinct(np.concatenate(pieces))


def keep_nearest(tracks: list[Track], now: int) -> list[Track]:
    """The ego (first) and those of the others that come nearest to it from `now` on, at most 31."""
    ego = tracks[0].state
    away: list[tuple[float, int]] = []
    for k, track in enumerate(tracks[1:], 1):
        apart = np.linalg.norm(track.state[now:, :2] - ego[now:, :2], axis=1)
        here = np.linalg.norm(track.state[now:, :2] - ego[now, :2], axis=1)
        both = np.concatenate([apart, here])
        both = both[np.isfinite(both)]
        if len(both):
            away.append((float(both.min()), k))
    chosen = sorted(k for _, k in sorted(away)[: MAX_ACTORS - 1])
    return [tracks[0], *(tracks[k] for k in chosen)]


def build(
    name: str, situation: str, now: int, tracks: list[Track], lanes: dict[str, Lane],
    drivable: tuple[Floats, ...], route: Floats, route_lanes: tuple[str, ...], **fields: object,
) -> Scene:  # fmt: skip
    """The scene with the actors nearest to the ego; a log that is off the road at `now` becomes its fault."""
    if 0 <= now < len(tracks[0].state):
        tracks = keep_nearest(tracks, now)
    state = np.stack([track.state for track in tracks])
    scene = Scene(
        id=name,
        situation=situation,
        now=now,
        state=state,
        valid=np.asarray(np.isfinite(state).all(-1)),
        size=np.array([track.size for track in tracks], np.float64),
        kind=np.array([track.kind for track in tracks], np.int8),
        lanes=lanes,
        drivable=drivable,
        route=route,
        route_lanes=route_lanes,
        **fields,  # pyright: ignore[reportArgumentType]
    )
    return replace(scene, faults=(*scene.faults, *faults_of(scene)))


def faults_of(scene: Scene) -> list[str]:
    """Mistakes of the scene that are no driver's: the ego off the road, or in contact, at its first step."""
    found: list[str] = []
    ego, off = scene.state[0, scene.now : scene.now + 1], np.zeros(1, np.bool_)
    kernels.off_road(ego, scene.size[0], *pack_polygons(scene.drivable), off)
    if off[0]:
        x, y = ego[0, :2]
        found.append(
            f"the ego is off the road at step now = {scene.now} (x {x:.1f}, y {y:.1f}): wrong map or pose"
        )
    state, valid = scene.state[None, :, scene.now], scene.valid[None, :, scene.now]
    axis, gaps = np.full((*valid.shape, 2), np.nan), np.full(valid.shape, np.inf)
    kernels.axes(state, valid, axis)
    kernels.ego_gaps(state, axis, scene.size[None], valid, gaps)
    found += [f"the ego overlaps actor {k} at step now = {scene.now}" for k in np.flatnonzero(gaps[0] == 0)]
    return found
