"""Roads and actors that the situations are built from.

A road has a base line; places on it are `s` metres along and `d` metres to the left. `time` [T] are the seconds of a
draft's steps (`clock`). Axes: T steps, P points.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from outdo.driving.dynamics import wrap
from outdo.driving.packing import arc_length
from outdo.driving.scene import DT, HISTORY, HORIZON, Kind, Lane, Light, Scene, Signal

LANE = 3.5  # m
CAR = (4.6, 1.9)  # m
BACK, FRONT = -90.0, 220.0  # m of road behind and ahead of where the ego starts, the latter for 8 s
FASTEST = 17.0  # m/s, for the road that is needed for more

Floats = NDArray[np.float64]


def clock(future: int = HORIZON) -> Floats:
    """Seconds `time` [T] of the steps of a draft, `future` of them after `now`."""
    steps = HISTORY + future
    return np.linspace(0.0, (steps - 1) * DT, steps)


def reach(time: Floats) -> float:
    """Metres of road ahead that a drive as long as `time` needs."""
    return FRONT + FASTEST * DT * max(len(time) - HISTORY - HORIZON, 0)


@dataclass(slots=True)
class Draft:
    """A situation before anybody has driven: the ego stands for itself at s = 0 of the route with `speed`.

    `time` [T]; `logs` [T, 4] of the others with `kinds` and `sizes`; the rest as in `Scene`.
    """

    time: Floats
    lanes: dict[str, Lane]
    drivable: list[Floats]
    route: Floats
    route_lanes: tuple[str, ...]
    speed: float
    start: tuple[float, float, float]
    logs: list[Floats] = field(default_factory=list[Floats])
    kinds: list[Kind] = field(default_factory=list[Kind])
    sizes: list[tuple[float, float]] = field(default_factory=list[tuple[float, float]])
    signals: list[Signal] = field(default_factory=list[Signal])

    def add(self, log: Floats, kind: Kind = Kind.VEHICLE, size: tuple[float, float] = CAR) -> None:
        """Add an actor."""
        self.logs.append(log)
        self.kinds.append(kind)
        self.sizes.append(size)

    def scene(self, name: str, situation: str, *, mirrored: bool) -> Scene:
        """The scene with `now` = 0, in which the ego's own log is a placeholder for what it will drive.

        `mirrored` swaps left and right.
        """
        ego = np.tile([*self.start, self.speed], (len(self.time), 1))
        scene = Scene(
            id=name,
            situation=situation,
            now=0,
            state=np.stack([ego, *self.logs]),
            valid=np.ones((len(self.logs) + 1, len(self.time)), np.bool_),
            size=np.array([CAR, *self.sizes], np.float64),
            kind=np.array([Kind.VEHICLE, *self.kinds], np.int8),
            lanes=self.lanes,
            drivable=tuple(self.drivable),
            route=self.route,
            route_lanes=self.route_lanes,
            signals=tuple(self.signals),
        )
        return _mirror(scene) if mirrored else scene


def _mirror(scene: Scene) -> Scene:
    """The scene with y and −y swapped, left and right neighbours with them."""
    flip = np.array([1.0, -1.0])
    lanes = {
        name: replace(lane, centre=lane.centre * flip, left=lane.right, right=lane.left)
        for name, lane in scene.lanes.items()
    }
    return replace(
        scene,
        state=scene.state * np.array([1.0, -1.0, -1.0, 1.0]),
        lanes=lanes,
        drivable=tuple(area * flip for area in scene.drivable),
        route=scene.route * flip,
        signals=tuple(replace(sign, stop_line=sign.stop_line * flip) for sign in scene.signals),
    )


@dataclass(frozen=True, slots=True)
class Base:
    """A line of constant curvature `bend` (1/m) that passes the origin along x, to `front` m ahead of it."""

    bend: float = 0.0
    front: float = FRONT

    def at(self, s: Floats, d: Floats) -> Floats:
        """Points [..., 3] x, y, heading of the line's direction."""
        theta = self.bend * s
        if self.bend:
            x, y = np.sin(theta) / self.bend, (1 - np.cos(theta)) / self.bend
        else:
            x, y = s, np.zeros_like(s)
        return np.stack([x - d * np.sin(theta), y + d * np.cos(theta), theta], -1)

    def line(self, d: float, start: float = BACK, end: float | None = None) -> Floats:
        """The line [P, 2] `d` m to the left, to its front or to `end`."""
        end = self.front if end is None else end
        s = np.linspace(start, end, max(2, round((end - start) / 8) + 1) if self.bend else 2)
        return self.at(s, np.full_like(s, d))[:, :2]

    def area(self, right: float, left: float, start: float = BACK, end: float | None = None) -> Floats:
        """The polygon between two offsets."""
        return np.concatenate([self.line(right, start, end), self.line(left, start, end)[::-1]])

    def log(self, s: Floats, d: Floats | float) -> Floats:
        """The states [T, 4] of something that is at `s` [T], `d` [T]."""
        across = np.broadcast_to(np.asarray(d, np.float64), s.shape)
        place = self.at(s, across)
        ahead, aside = np.gradient(s, DT), np.gradient(across, DT)
        moves = np.hypot(ahead, aside) > 0.2
        turned = np.where(moves, np.arctan2(aside, ahead), 0.0)
        if not moves.any() or ahead[moves][0] < 0:
            turned = np.where(moves, turned, np.pi if moves.any() else 0.0)
        return np.concatenate(
            [place[:, :2], wrap(place[:, 2] + turned)[:, None], np.hypot(ahead, aside)[:, None]], 1
        )


def base(rng: Generator, time: Floats) -> Base:
    """A straight base line, or in one of five a bend with a radius of 400 to 1000 m."""
    bend = float(rng.choice([-1, 1]) / rng.uniform(400, 1000)) if rng.random() < 0.2 else 0.0
    return Base(bend, reach(time))


def travelled(speed: Floats) -> Floats:
    """Metres [T] from the speeds [T], by the trapezoidal rule."""
    return np.concatenate([[0.0], np.cumsum((speed[1:] + speed[:-1]) / 2 * DT)])


def constant(time: Floats, speed: float, start: float) -> Floats:
    """`s` [T] at constant speed."""
    return start + speed * time


def ramp(time: Floats, begin: float, rate: float, first: float, last: float) -> Floats:
    """Speeds [T] that change from `first` to `last` from `begin` s on with `rate` m/s²."""
    change = rate * np.maximum(time - begin, 0.0)
    return np.maximum(first - change, last) if last < first else np.minimum(first + change, last)


def swerve(time: Floats, begin: float, duration: float, first: float, last: float) -> Floats:
    """Offsets [T] that change smoothly from `first` to `last` within `duration` s."""
    u = np.clip((time - begin) / duration, 0.0, 1.0)
    return first + (last - first) * u * u * (3 - 2 * u)


def along(path: Floats, s: Floats) -> Floats:
    """States [T, 4] of something at arc `s` [T] of a polyline [P, 2]."""
    length = arc_length(path)
    x, y = np.interp(s, length, path[:, 0]), np.interp(s, length, path[:, 1])
    step = np.gradient(path, axis=0)
    theta = np.interp(s, length, np.unwrap(np.arctan2(step[:, 1], step[:, 0])))
    return np.stack([x, y, wrap(theta), np.gradient(s, DT)], -1)


def two_way(rng: Generator, time: Floats, limit: float, shoulder: float = 0.4) -> tuple[Base, Draft]:
    """One lane in each direction; the ego in lane `own`."""
    road, speed = base(rng, time), limit * rng.uniform(0.8, 1.0)
    lanes = {
        "own": Lane("own", road.line(0.0), LANE, limit),
        "oncoming": Lane("oncoming", road.line(LANE)[::-1], LANE, limit),
    }
    area = road.area(-LANE / 2 - shoulder, 1.5 * LANE + 0.4)
    return road, Draft(time, lanes, [area], road.line(0.0), ("own",), float(speed), (0.0, 0.0, 0.0))


def one_way(rng: Generator, time: Floats, limit: float) -> tuple[Base, Draft]:
    """Two lanes in the same direction; the ego in lane `own`, with `beside` to its left."""
    road, speed = base(rng, time), limit * rng.uniform(0.8, 1.0)
    lanes = {
        "own": Lane("own", road.line(0.0), LANE, limit, left="beside"),
        "beside": Lane("beside", road.line(LANE), LANE, limit, right="own"),
    }
    area = road.area(-LANE / 2 - 0.4, 1.5 * LANE + 0.4)
    return road, Draft(time, lanes, [area], road.line(0.0), ("own",), float(speed), (0.0, 0.0, 0.0))


def oncoming(rng: Generator, road: Base, draft: Draft, chance: float) -> None:
    """Vehicles in the oncoming lane, each with `chance`."""
    for start in (rng.uniform(40, 90), rng.uniform(110, 180)):
        if rng.random() < chance:
            draft.add(road.log(constant(draft.time, -rng.uniform(7, 12), start), LANE))


def light(time: Floats, lane: str, line: Floats, states: list[tuple[float, Light]]) -> Signal:
    """A signal with the `states` from the given times (s) on."""
    shown = np.full(len(time), states[0][1], np.int8)
    for begin, state in states:
        shown[begin <= time] = state
    return Signal(lane, line, shown)
