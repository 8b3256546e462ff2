"""Meta-actions: what a trajectory does, in words, on both axes.

Rules and segmentation of Alpamayo-R1 (arXiv 2511.00088). A tick t leads from state t to state t + 1; over it
v = (v_t + v_{t+1})/2 (m/s, negative backwards), a = (v_{t+1} − v_t)/dt, Δθ = θ_{t+1} − θ_t, and the turn rate is Δθ
per metre of path. Axes: H ticks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from itertools import pairwise
from typing import Generic, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from outdo.driving.dynamics import wrap
from outdo.driving.scene import DT

Floats = NDArray[np.float64]

ACCELERATION_CUTS = (0.1, 1.25)  # m/s², either sign, as the next two
SPEED_CUTS = (0.3,)  # m/s
TURN_CUTS = (0.001, 0.05)  # rad/m
SHORTEST, SHORTEST_MAINTAIN, SHORTEST_LATERAL = 8, 12, 10  # ticks
_STANDS = 0.05  # m/s: below, a tick has no turn rate
_EPS = 1e-9  # a threshold that is met counts, whatever the last bit of the sums


class Along(StrEnum):
    """Longitudinal meta-actions."""

    REVERSE = "reverse"
    STOP = "stop"
    STRONG_ACCELERATION = "strong acceleration"
    GENTLE_ACCELERATION = "gentle acceleration"
    STRONG_DECELERATION = "strong deceleration"
    GENTLE_DECELERATION = "gentle deceleration"
    MAINTAIN = "maintain speed"


class Across(StrEnum):
    """Lateral meta-actions."""

    REVERSE_LEFT = "reverse left"
    REVERSE_RIGHT = "reverse right"
    SHARP_LEFT = "sharp steer left"
    SHARP_RIGHT = "sharp steer right"
    LEFT = "steer left"
    RIGHT = "steer right"
    STRAIGHT = "go straight"


Action = TypeVar("Action", Along, Across)


class Segment(NamedTuple, Generic[Action]):
    """One action from tick `start` up to, not including, tick `end`."""

    action: Action
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class MetaActions:
    """What a trajectory does: segments that cover its ticks without a gap, neighbours different."""

    longitudinal: tuple[Segment[Along], ...]
    lateral: tuple[Segment[Across], ...]

    def __str__(self) -> str:
        """Both axes in words, with times in seconds."""
        return "\n".join(
            ", ".join(f"{s.action} {s.start * DT:.1f}–{s.end * DT:.1f} s" for s in axis)
            for axis in (self.longitudinal, self.lateral)
        )


def longitudinal_action(speed: float, acceleration: float, change: float) -> Along:
    """The first rule that matches mean speed (m/s), mean acceleration (m/s²) and change of speed (m/s)."""
    if speed <= -0.12 + _EPS:
        return Along.REVERSE
    if speed <= 0.12 + _EPS:
        return Along.STOP
    if change >= 0.8 - _EPS and acceleration >= 0.15 - _EPS:
        return Along.STRONG_ACCELERATION if acceleration >= 1.4 - _EPS else Along.GENTLE_ACCELERATION
    if change <= -0.8 + _EPS and acceleration <= -0.15 + _EPS:
        return Along.STRONG_DECELERATION if acceleration <= -1.4 + _EPS else Along.GENTLE_DECELERATION
    return Along.MAINTAIN


def lateral_action(speed: float, rate: float, turn: float) -> Across:
    """The first rule that matches mean speed (m/s), turn rate (rad/m) and change of heading (rad, left positive)."""
    left, rate, turn = turn > 0, abs(rate) + _EPS, abs(turn) + _EPS
    if speed <= -0.1 + _EPS and rate >= 0.002 and turn >= 0.2:
        return Across.REVERSE_LEFT if left else Across.REVERSE_RIGHT
    if rate >= 0.05 and turn >= 0.2:
        return Across.SHARP_LEFT if left else Across.SHARP_RIGHT
    if rate >= 0.0015 and turn >= 0.015:
        return Across.LEFT if left else Across.RIGHT
    return Across.STRAIGHT


def meta_actions(path: Floats, dt: float = DT) -> MetaActions:
    """Meta-actions of the states `path` [H + 1, 4] x, y, heading, speed.

    Each axis is cut where its quantities cross the thresholds: acceleration and speed, turn rate and speed.
    Then, until nothing changes: equal neighbours merge; if none are, the shortest segment that is too short is
    split between its neighbours. What a segment is called is decided anew when its ends move (unstated in the
    source), so that every result satisfies the rules. Speeds and headings are taken as they are: a noisy log is
    fitted first (`dynamics.inverse`).

    Raises:
        ValueError: fewer than two states, or a state that is not finite.
    """
    if path.ndim != 2 or path.shape[1] != 4 or len(path) < 2:
        raise ValueError(f"path must be [H + 1 >= 2, 4], got {list(path.shape)}")
    if not np.isfinite(path).all():
        step = int(np.argmin(np.isfinite(path).all(1)))
        raise ValueError(f"state {step} of the path is not finite")
    speed, acceleration = (path[1:, 3] + path[:-1, 3]) / 2, np.diff(path[:, 3]) / dt
    turn, metres = wrap(np.diff(path[:, 2])), np.abs(speed) * dt
    rate = np.where(np.abs(speed) > _STANDS, turn / np.where(metres > 0, metres, 1.0), 0.0)
    moves = _bands(speed, SPEED_CUTS)
    speeds, turned, way = (np.concatenate([[0.0], np.cumsum(x)]).tolist() for x in (speed, turn, metres))
    v: list[float] = path[:, 3].tolist()

    @cache
    def along(start: int, end: int) -> Along:
        ticks, change = end - start, v[end] - v[start]
        return longitudinal_action((speeds[end] - speeds[start]) / ticks, change / (ticks * dt), change)

    @cache
    def across(start: int, end: int) -> Across:
        ticks, by, over = end - start, turned[end] - turned[start], way[end] - way[start]
        mean = by / over if over > _STANDS * dt * ticks else 0.0
        return lateral_action((speeds[end] - speeds[start]) / ticks, mean, by)

    return MetaActions(
        longitudinal=_segments(
            _bands(acceleration, ACCELERATION_CUTS) * 3 + moves,
            along,
            lambda action: SHORTEST_MAINTAIN if action is Along.MAINTAIN else SHORTEST,
        ),
        lateral=_segments(_bands(rate, TURN_CUTS) * 3 + moves, across, lambda _: SHORTEST_LATERAL),
    )


def _bands(values: Floats, cuts: tuple[float, ...]) -> NDArray[np.intp]:
    """Between which thresholds each value lies, with its sign: 0 is below all of them."""
    return np.digitize(np.abs(values) + _EPS, cuts) * np.sign(values).astype(np.intp)


def _segments(
    bands: NDArray[np.intp],
    name: Callable[[int, int], Action],
    shortest: Callable[[Action], int],
) -> tuple[Segment[Action], ...]:
    """Segments of one axis from the `bands` [H] of its ticks; `name` applies the rules to a segment."""
    edges = [0, *(np.flatnonzero(np.diff(bands)) + 1).tolist(), len(bands)]
    while True:
        segments = [Segment(name(*ends), *ends) for ends in pairwise(edges)]
        kept = [one.end for one, two in pairwise(segments) if one.action != two.action]
        if len(kept) < len(segments) - 1:
            edges = [0, *kept, len(bands)]
            continue
        short = [(s.end - s.start, i) for i, s in enumerate(segments) if s.end - s.start < shortest(s.action)]
        if len(segments) == 1 or not short:
            return tuple(segments)
        _, i = min(short)
        first, last = i == 0, i == len(segments) - 1
        middle = [] if first or last else [(edges[i] + edges[i + 1] + 1) // 2]
        edges = [0, *edges[1:i], *middle, *edges[i + 2 : -1], len(bands)]
