"""A scene: a log of up to 32 actors at 10 Hz with its map, its signals and the route of the ego.

SI units, headings in rad counter-clockwise from x. Axes: A actors (0 is the ego), T steps of the log, P points.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

DT = 0.1
HISTORY = 16
HORIZON = 64
MAX_ACTORS = 32

Floats = NDArray[np.float64]


class SceneError(ValueError):
    """A scene that cannot be simulated; the message names the scene, the place and what to do."""


class Kind(IntEnum):
    """What an actor is; only vehicles react (`outdo.driving.simulator`)."""

    VEHICLE = 0
    PEDESTRIAN = 1
    CYCLIST = 2
    STATIC = 3


class Light(IntEnum):
    """State of a signal at one step; a stop sign has `STOP_SIGN` at all of them, one that is off `DARK`."""

    GREEN = 0
    YELLOW = 1
    RED = 2
    STOP_SIGN = 3
    DARK = 4


@dataclass(frozen=True, slots=True, eq=False)
class Lane:
    """One lane: `centre` [P, 2] in driving direction (m), `width` (m), `speed_limit` (m/s, may be infinite).

    `left` and `right` are neighbours with the same driving direction; `intersection` says that it lies in one.
    """

    id: str
    centre: Floats
    width: float
    speed_limit: float
    successors: tuple[str, ...] = ()
    left: str | None = None
    right: str | None = None
    intersection: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Signal:
    """A light or a stop sign: `lane` it holds for, `stop_line` [2, 2] (two ends, m), `states` [T] of `Light`."""

    lane: str
    stop_line: Floats
    states: NDArray[np.int8]


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """A log with its map; step `now` is the first that a policy controls, what lies before is observed.

    `state` [A, T, 4] x, y, heading, speed (signed, along the heading) of the boxes' centres, NaN where `valid`
    [A, T] is False; `size` [A, 2] length, width; `kind` [A] of `Kind`. `lanes` by id; `drivable` polygons [P, 2],
    whose union may be driven on; `route` [P, 2] is the way the ego should take, along `route_lanes` where they
    are known. `faults` are mistakes of the scene itself, such as a log that is off the road at step `now`.

    Raises:
        SceneError: fields that contradict each other or cannot be simulated.
    """

    id: str
    situation: str
    now: int
    state: Floats
    valid: NDArray[np.bool_]
    size: Floats
    kind: NDArray[np.int8]
    lanes: dict[str, Lane]
    drivable: tuple[Floats, ...]
    route: Floats
    route_lanes: tuple[str, ...] = ()
    signals: tuple[Signal, ...] = ()
    faults: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        """Refuse what cannot be simulated; the first mistake is the message."""
        for problem in self._problems():
            raise SceneError(f"scene {self.id!r}: {problem}")

    @property
    def actors(self) -> int:
        """Number of actors A, the ego included."""
        return self.state.shape[0]

    @property
    def steps(self) -> int:
        """Number of steps T of the log."""
        return self.state.shape[1]

    @property
    def future(self) -> int:
        """Steps of the log after `now`."""
        return self.steps - 1 - self.now

    def _problems(self) -> Iterator[str]:
        yield from self._shape_problems()
        yield from self._log_problems()
        for name, lane in self.lanes.items():
            yield from self._lane_problems(name, lane)
        for i, polygon in enumerate(self.drivable):
            yield from _points(f"drivable polygon {i}", polygon, 3)
        yield from self._route_problems()
        for i, signal in enumerate(self.signals):
            yield from self._signal_problems(f"signal {i}", signal)

    def _shape_problems(self) -> Iterator[str]:
        if self.state.ndim != 3 or self.state.shape[2] != 4 or self.state.dtype != np.float64:
            yield f"state must be float64 [A, T, 4], got {self.state.dtype} {list(self.state.shape)}"
        a, t, _ = self.state.shape
        if not 1 <= a <= MAX_ACTORS:
            yield f"{a} actors; 1 to {MAX_ACTORS} can be simulated: keep those nearest to the ego"
        for name, array, shape in (
            ("valid", self.valid, (a, t)),
            ("size", self.size, (a, 2)),
            ("kind", self.kind, (a,)),
        ):
            if array.shape != shape:
                yield f"{name} has shape {list(array.shape)}, state asks for {list(shape)}"
        if self.valid.dtype != np.bool_:
            yield f"valid must be bool, got {self.valid.dtype}"
        if not 0 <= self.now < t:
            yield f"now = {self.now} is no step of a log of {t} steps"

    def _log_problems(self) -> Iterator[str]:
        if not self.valid[0, self.now]:
            yield f"the ego (actor 0) is missing at step now = {self.now}: choose a step where it was seen"
        bad = self.valid & ~np.isfinite(self.state).all(-1)
        if bad.any():
            actor, step = np.argwhere(bad)[0]
            yield f"actor {actor}, step {step}: state {self.state[actor, step].tolist()} is not finite but valid"
        wrong = ~np.isfinite(self.size) | (self.size <= 0)
        if wrong.any():
            actor = int(np.argwhere(wrong)[0, 0])
            yield f"actor {actor}: size {self.size[actor].tolist()} must be positive (length, width in m)"
        unknown = ~np.isin(self.kind, list(Kind))
        if unknown.any():
            actor = int(np.argmax(unknown))
            yield f"actor {actor}: kind {self.kind[actor]} is none of {[int(kind) for kind in Kind]}"

    def _lane_problems(self, name: str, lane: Lane) -> Iterator[str]:
        place = f"lane {name!r}"
        if lane.id != name:
            yield f"{place} calls itself {lane.id!r}"
        yield from _points(place, lane.centre, 2)
        if not (0 < lane.width < np.inf and lane.speed_limit > 0):
            yield f"{place}: width {lane.width} m and speed limit {lane.speed_limit} m/s must be positive"
        for other in (*lane.successors, lane.left, lane.right):
            if other is not None and other not in self.lanes:
                yield f"{place} names lane {other!r}, which is not in the scene: drop the name or add the lane"

    def _route_problems(self) -> Iterator[str]:
        if self.route.size == 0:
            yield "no route: give the polyline [P, 2] that the ego should follow"
        yield from _points("route", self.route, 2)
        for lane in self.route_lanes:
            if lane not in self.lanes:
                yield f"route_lanes names lane {lane!r}, which is not in the scene"

    def _signal_problems(self, place: str, signal: Signal) -> Iterator[str]:
        if signal.lane not in self.lanes:
            yield f"{place} is for lane {signal.lane!r}, which is not in the scene"
        yield from _points(f"stop line of {place}", signal.stop_line, 2)
        if signal.stop_line.shape != (2, 2):
            yield f"stop line of {place}: needs two ends, got {len(signal.stop_line)} points"
        if signal.states.shape != (self.steps,):
            yield f"{place} has {signal.states.size} states, the log {self.steps} steps"
        if not np.isin(signal.states, list(Light)).all():
            yield f"{place}: states must be of {[int(light) for light in Light]}"


def _points(place: str, points: Floats, least: int) -> Iterator[str]:
    """Problems of a polyline or polygon: [P, 2], finite, `least` points, none equal to the one before."""
    if points.ndim != 2 or points.shape[1] != 2 or len(points) < least:
        yield f"{place}: needs at least {least} points [P, 2], got shape {list(points.shape)}"
    elif not np.isfinite(points).all():
        yield f"{place}: point {int(np.argmax(~np.isfinite(points).all(1)))} is not finite"
    elif (np.diff(points, axis=0) == 0).all(1).any():
        row = int(np.argmax((np.diff(points, axis=0) == 0).all(1)))
        yield f"{place}: points {row} and {row + 1} are equal; drop one"
