"""What happened to the ego at each step: contacts and whose fault, close encounters, lanes, road, lights.

One drive of one scene: T steps (the first is the start), A actors with the ego as 0, K lanes.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from outdo.driving import kernels
from outdo.driving.packing import Polygons, arc_length, pack_polygons
from outdo.driving.scene import DT, Kind, Light, Scene
from outdo.driving.traffic import crossings

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]

STANDS = 0.05  # m/s
CLOSE_GAP = 0.5  # m
CLOSE_TIME = 0.9  # s


class Lanes(NamedTuple):
    """Flat centrelines `points` [Q, 2] with arc `length` [Q]; lane k is `first[k]:first[k + 1]`.

    `facts` [K, 3]: width m, speed limit m/s, 1 in an intersection.
    """

    points: Floats
    length: Floats
    first: NDArray[np.int64]
    facts: Floats


@dataclass(frozen=True, slots=True, eq=False)
class Measures:
    """One drive, step by step; the first step is the start, which no policy has chosen.

    `contact`, `fault` [A]: the ego touched the actor; it did so by its own fault. `gap` [T] m between the ego and
    the nearest other (∞ where it is alone). `close`, `ahead` [T]: close encounter; constant velocities lead into an
    actor ahead within 0.9 s. `off_road` [T]. `centre` [T] m off the centre of the lane (∞ outside all lanes),
    `intersection` [T], `oncoming` [T] in lanes of the other direction alone, `limit` [T] m/s (∞ where there is
    none). `progress` m along the route from start to end; `red` the number of red lights passed.
    `overlaps_at_start`: the ego's box overlaps another at the first step.
    """

    contact: Mask
    fault: Mask
    gap: Floats
    close: Mask
    ahead: Mask
    off_road: Mask
    centre: Floats
    intersection: Mask
    oncoming: Mask
    limit: Floats
    progress: float
    red: int
    overlaps_at_start: bool


@numba.njit(cache=True)
def _lane_facts(
    state: Floats,
    size: Floats,
    lanes: Any,
    centre: Floats,
    inter: Mask,
    against: Mask,
    limit: Floats,
    kept: Mask,
) -> None:
    """Per step the nearest lane of the ego's direction that holds its centre; `kept`: it holds all its corners."""
    for t in range(state.shape[0]):
        cos, sin = math.cos(state[t, 2]), math.sin(state[t, 2])
        best, chosen, other = math.inf, -1, False
        for k in range(lanes.facts.shape[0]):
            line = lanes.points[lanes.first[k] : lanes.first[k + 1]]
            length = lanes.length[lanes.first[k] : lanes.first[k + 1]]
            _, _, heading, distance = kernels.project(line, length, state[t, 0], state[t, 1])
            if distance > lanes.facts[k, 0] / 2:
                continue
            inter[t] |= lanes.facts[k, 2] > 0
            if cos * math.cos(heading) + sin * math.sin(heading) <= 0:
                other = True
            elif distance < best:
                best, chosen = distance, k
        against[t] = other and chosen < 0 and not inter[t]
        if chosen < 0:
            continue
        centre[t], limit[t], kept[t] = best, lanes.facts[chosen, 1], True
        line = lanes.points[lanes.first[chosen] : lanes.first[chosen + 1]]
        length = lanes.length[lanes.first[chosen] : lanes.first[chosen + 1]]
        for k in range(4):
            along = size[0] / 2 * (1 if k < 2 else -1)
            across = size[1] / 2 * (1 if k % 2 else -1)
            x, y = state[t, 0] + along * cos - across * sin, state[t, 1] + along * sin + across * cos
            _, offset, _, _ = kernels.project(line, length, x, y)
            kept[t] &= abs(offset) <= lanes.facts[chosen, 0] / 2


@numba.njit(cache=True)
def _encounters(
    state: Floats,
    axis: Floats,
    size: Floats,
    valid: Mask,
    kept: Mask,
    gaps: Floats,
    dt: float,
    touched: Mask,
    fault: Mask,
    close: Mask,
    ahead: Mask,
) -> None:
    """Contacts `touched` and `fault` [A], close encounters and dangers ahead [T], from the second step on."""
    bumper = np.zeros(2)
    bumper[1] = size[0, 1]
    for t in range(1, state.shape[0]):
        c0, s0, v0 = axis[t, 0, 0], axis[t, 0, 1], state[t, 0, 3]
        for j in range(1, state.shape[1]):
            if not valid[t, j]:
                continue
            dx, dy = state[t, j, 0] - state[t, 0, 0], state[t, j, 1] - state[t, 0, 1]
            c, s, v = axis[t, j, 0], axis[t, j, 1], state[t, j, 3]
            reach = 0.5 * (size[0, 0] + size[0, 1] + size[j, 0] + size[j, 1]) + (abs(v) + abs(v0)) * 0.9 + 1.0
            if dx * dx + dy * dy > reach * reach or touched[j]:
                continue
            along, across = dx * c0 + dy * s0, dy * c0 - dx * s0
            cone = along / max(math.hypot(along, across), 1e-9)  # cosine of the bearing
            moves = abs(v0) > STANDS
            vx, vy = v * c - v0 * c0, v * s - v0 * s0
            until = kernels.contact_time(dx, dy, vx, vy, c0, s0, c, s, size[0], size[j])
            if moves and (until < CLOSE_TIME or gaps[t, j] < CLOSE_GAP):
                close[t] = True
            if moves and until <= CLOSE_TIME and (cone > 0.866 or (not kept[t] and cone > -0.866)):
                for k in range(4):
                    x, y = dx + vx * 0.3 * k, dy + vy * 0.3 * k
                    if kernels.overlap(x, y, c0, s0, c, s, size[0], size[j]):
                        ahead[t] = True
            if until > 0:
                continue
            touched[j] = True
            # The bumper that leads, and the way it came against the other within this step.
            sign = 1 if v0 >= 0 else -1
            bumper[0] = min(max(-(vx * c0 + vy * s0) * sign * dt, 0.0), size[0, 0])
            edge = sign * (size[0, 0] - bumper[0]) / 2
            front = kernels.overlap(dx - edge * c0, dy - edge * s0, c0, s0, c, s, bumper, size[j])
            rear = cone * sign < -0.866
            fault[j] = moves and (abs(v) <= STANDS or front or (not rear and not kept[t]))


def pack_lanes(scene: Scene) -> Lanes:
    """The lanes of a scene as flat arrays."""
    lines = [lane.centre for lane in scene.lanes.values()]
    facts = [(lane.width, lane.speed_limit, float(lane.intersection)) for lane in scene.lanes.values()]
    return Lanes(
        points=np.concatenate(lines) if lines else np.zeros((0, 2)),
        length=np.concatenate([arc_length(line) for line in lines]) if lines else np.zeros(0),
        first=np.cumsum([0, *map(len, lines)], dtype=np.int64),
        facts=np.array(facts, np.float64).reshape(-1, 3),
    )


@functools.lru_cache(maxsize=1024)
def _still(scene: Scene) -> tuple[Polygons, Lanes, Floats]:
    """Drivable polygons, lanes and arc length of the route, the same in every drive of a scene."""
    return pack_polygons(scene.drivable), pack_lanes(scene), arc_length(scene.route)


def measure(scene: Scene, state: Floats, valid: Mask, size: Floats) -> Measures:
    """Measure the drive `state` [T, A, 4], `valid` [T, A] in `scene` with sizes [A, 2].

    An actor that overlaps the ego at the first step is the scene's fault (`overlaps_at_start`).
    """
    steps, actors = valid.shape
    axis = np.full((steps, actors, 2), np.nan)
    kernels.axes(state, valid, axis)
    ego = np.ascontiguousarray(state[:, 0])
    sizes = np.broadcast_to(size, (steps, actors, 2)).copy()
    gaps = np.empty((steps, actors))
    kernels.ego_gaps(state, axis, sizes, valid, gaps)
    overlaps = np.empty((1, actors), np.bool_)
    kernels.contacts(state[:1], axis[:1], sizes[:1], valid[:1], overlaps)
    off_road = np.zeros(steps, np.bool_)
    polygons, lanes, length = _still(scene)
    kernels.off_road(ego, size[0], *polygons, off_road)
    centre, limit = np.full(steps, np.inf if scene.lanes else 0.0), np.full(steps, np.inf)
    intersection, oncoming, kept = (np.zeros(steps, np.bool_) for _ in range(3))
    _lane_facts(ego, size[0], lanes, centre, intersection, oncoming, limit, kept)
    kept &= ~off_road
    touched, fault = np.zeros(actors, np.bool_), np.zeros(actors, np.bool_)
    close, ahead = np.zeros(steps, np.bool_), np.zeros(steps, np.bool_)
    _encounters(state, axis, size, valid, kept, gaps, DT, touched, fault, close, ahead)
    way = [kernels.project(scene.route, length, x, y)[0] for x, y in ego[[0, -1], :2]]
    return Measures(
        contact=touched,
        fault=fault,
        gap=gaps.min(1),
        close=close,
        ahead=ahead,
        off_road=off_road,
        centre=centre,
        intersection=intersection,
        oncoming=oncoming,
        limit=limit,
        progress=way[1] - way[0],
        red=_red_lights(scene, ego, size[0, 0] / 2),
        overlaps_at_start=bool(overlaps[0, 0]),
    )


def _red_lights(scene: Scene, ego: Floats, half: float) -> int:
    """How often the front bumper crosses a line in the direction of its lane while its light is red."""
    front = ego[:, :2] + half * np.stack([np.cos(ego[:, 2]), np.sin(ego[:, 2])], -1)
    passed = 0
    for signal in scene.signals:
        for at in crossings(front, signal, scene):
            passed += int(signal.states[scene.now + int(at)] == Light.RED)
    return passed


def at_fault(measures: Measures, scene: Scene) -> float:
    """NC of NAVSIM: 0 after an at-fault contact with a road user, ½ with objects alone, else 1."""
    hit = measures.fault[: scene.actors]
    if (hit & (scene.kind != Kind.STATIC)).any():
        return 0.0
    return 0.5 if hit.any() else 1.0
