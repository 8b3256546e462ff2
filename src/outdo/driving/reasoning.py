"""The reasoning trace: at most one decision an axis, each with its cause, in a fixed grammar.

    trace    = decision [ "; " decision ] "."          longitudinal before lateral
    decision = behaviour [ " " side ] [ " because " cause ]

For example `yield because crossing pedestrian; nudge in lane left because parked vehicle.` Decisions and components
after Alpamayo-R1 (arXiv 2511.00088, Tables 1 and 2); the wording, and the list of causes, are ours. Writing and
parsing are inverse to each other: `parse(str(trace)) == trace`, and `str(parse(text)) == text` where it parses.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeVar

import numpy as np

from outdo.core.calls import nearest
from outdo.driving.scene import HISTORY, Kind, Light, Scene

STANDS = 0.5  # m/s: what moves slower may be called stopped or parked


class TraceError(ValueError):
    """A text that is no trace; the message says where and why."""


class Longitudinal(StrEnum):
    """What the ego does along its path."""

    TRACK_SPEED = "track set speed"  # nothing is in the way: keep or reach the set speed
    FOLLOW = "follow lead"
    ADAPT_SPEED = "adapt speed"  # slow down for a road event
    SEARCH_GAP = "search gap"  # fit the speed to a gap in another lane
    PASS = "accelerate to pass"
    YIELD = "yield"  # slow down for somebody who goes first
    STOP = "stop"  # for a static constraint: a light, a line, what stands there


class Lateral(StrEnum):
    """What the ego does across its path; those in `SIDED` have a side."""

    KEEP_LANE = "keep lane"
    MERGE = "merge"  # or split: onto another road
    NUDGE_OUT = "nudge out of lane"
    NUDGE_IN = "nudge in lane"
    CHANGE_LANE = "change lane"
    PULL_OVER = "pull over"
    TURN = "turn"
    ABORT = "abort manoeuvre"  # back to the lane it was leaving


SIDED = frozenset(Lateral) - {Lateral.KEEP_LANE, Lateral.ABORT}


class Side(StrEnum):
    """The side of a lateral decision, seen from the driver."""

    LEFT = "left"
    RIGHT = "right"


class Component(StrEnum):
    """The kinds of critical components a cause may belong to."""

    OBJECT = "object"
    LIGHT = "light"
    CONTROL = "stop or yield control"
    ROAD_EVENT = "road event"
    LANE_LINES = "lane lines"
    ROUTE = "routing intent"


class Cause(StrEnum):
    """Why; each belongs to one `Component`."""

    LEAD_VEHICLE = "lead vehicle"
    BRAKING_LEAD = "braking lead"
    SLOW_LEAD = "slow lead"
    STOPPED_VEHICLE = "stopped vehicle"
    PARKED_VEHICLE = "parked vehicle"
    CUTTING_IN = "vehicle cutting in"
    ONCOMING_VEHICLE = "oncoming vehicle"
    CROSSING_VEHICLE = "crossing vehicle"
    MERGING_VEHICLE = "merging vehicle"
    VEHICLE_BESIDE = "vehicle beside"
    PEDESTRIAN = "crossing pedestrian"
    CYCLIST = "cyclist"
    OBSTACLE = "obstacle"
    RED_LIGHT = "red light"
    YELLOW_LIGHT = "yellow light"
    GREEN_LIGHT = "green light"
    STOP_SIGN = "stop sign"
    YIELD_SIGN = "yield sign"
    ROAD_WORKS = "road works"
    CURVE = "curve"
    SPEED_LIMIT = "speed limit"
    LANE_ENDS = "lane ends"
    LANE_CLEAR = "lane clear"
    LANE_LINES = "lane lines"
    ROUTE_AHEAD = "route ahead"
    ROUTE_LEFT = "route left"
    ROUTE_RIGHT = "route right"

    @property
    def component(self) -> Component:
        """The component it belongs to."""
        return _COMPONENTS.get(self, Component.OBJECT)


_COMPONENTS = {
    Cause.RED_LIGHT: Component.LIGHT,
    Cause.YELLOW_LIGHT: Component.LIGHT,
    Cause.GREEN_LIGHT: Component.LIGHT,
    Cause.STOP_SIGN: Component.CONTROL,
    Cause.YIELD_SIGN: Component.CONTROL,
    Cause.ROAD_WORKS: Component.ROAD_EVENT,
    Cause.CURVE: Component.ROAD_EVENT,
    Cause.SPEED_LIMIT: Component.ROAD_EVENT,
    Cause.LANE_ENDS: Component.LANE_LINES,
    Cause.LANE_CLEAR: Component.LANE_LINES,
    Cause.LANE_LINES: Component.LANE_LINES,
    Cause.ROUTE_AHEAD: Component.ROUTE,
    Cause.ROUTE_LEFT: Component.ROUTE,
    Cause.ROUTE_RIGHT: Component.ROUTE,
}


@dataclass(frozen=True, slots=True)
class Trace:
    """At most one decision an axis, each with its cause or without; `str(trace)` writes it.

    Raises:
        TraceError: no decision at all, a side too many or missing, a cause without a decision.
    """

    longitudinal: Longitudinal | None = None
    longitudinal_cause: Cause | None = None
    lateral: Lateral | None = None
    side: Side | None = None
    lateral_cause: Cause | None = None

    def __post_init__(self) -> None:
        """Refuse what the grammar cannot say."""
        if self.longitudinal is None and self.lateral is None:
            raise TraceError("a trace needs a decision on at least one axis")
        if self.longitudinal is None and self.longitudinal_cause is not None:
            raise TraceError(f"cause {self.longitudinal_cause!r} without a longitudinal decision")
        if self.lateral is None and (self.lateral_cause or self.side) is not None:
            raise TraceError("a side or a cause without a lateral decision")
        if self.lateral is not None and (self.side is None) == (self.lateral in SIDED):
            raise TraceError(
                f"{str(self.lateral)!r} {'needs a' if self.lateral in SIDED else 'has no'} side, left or right"
            )

    def __str__(self) -> str:
        """The trace in words."""
        axes = (
            (self.longitudinal, None, self.longitudinal_cause),
            (self.lateral, self.side, self.lateral_cause),
        )
        parts = [_clause(*axis) for axis in axes if axis[0] is not None]
        return "; ".join(parts) + "."


def _clause(decision: str | None, side: Side | None, cause: Cause | None) -> str:
    words = [decision or "", *([side] if side else []), *(["because", cause] if cause else [])]
    return " ".join(words)


_PHRASES = (*Longitudinal, *Lateral, *Side, *Cause)
WORDS = (";", ".", "because", *sorted({word for phrase in _PHRASES for word in phrase.split()}))
"""All tokens of the grammar, whole words; the first two stick to the word before them in a text."""


def words(text: str) -> list[str]:
    """A text as tokens: `; ` and the final `.` apart, the rest at single spaces; unknown words stay as they are."""
    return [] if not text else text.replace(";", " ;").replace(".", " .").split(" ")


def text_of(tokens: Iterable[str]) -> str:
    """Tokens as a text; the inverse of `words`."""
    return " ".join(tokens).replace(" ;", ";").replace(" .", ".")


def parse(text: str) -> Trace:
    """The trace that `text` writes; strict, down to each space.

    Raises:
        TraceError: the text is no sentence of the grammar; the message gives the reason and, for an unknown
            phrase, the nearest known one.
    """
    if not text:
        raise TraceError("empty text")
    if not text.endswith("."):
        raise TraceError(f"no full stop at the end of {text[-40:]!r}")
    clauses = text[:-1].split("; ")
    if len(clauses) > 2:
        raise TraceError(f"{len(clauses)} decisions; at most one an axis")
    found: dict[str, StrEnum | None] = {}
    for clause in clauses:
        read = _read_clause(clause)
        axis = next(iter(read))
        if axis in found:
            raise TraceError(f"two {axis} decisions; at most one an axis")
        if axis == "longitudinal" and "lateral" in found:
            raise TraceError("the longitudinal decision comes first")
        found |= read
    return Trace(**found)  # pyright: ignore[reportArgumentType]


def _read_clause(clause: str) -> dict[str, StrEnum | None]:
    """Fields of `Trace` that one clause fills, the axis first."""
    head, because, tail = clause.partition(" because ")
    cause = _look_up(Cause, tail, "cause") if because else None
    if head in _LONGITUDINAL:
        return {"longitudinal": Longitudinal(head), "longitudinal_cause": cause}
    stem, _, last = head.rpartition(" ")
    side = Side(last) if last in tuple(Side) else None
    behaviour = stem if side else head
    if behaviour not in _LATERAL:
        known = _LONGITUDINAL | _LATERAL
        raise TraceError(f"unknown decision {head[:60]!r}; {nearest(head[:60], known)}")
    return {"lateral": Lateral(behaviour), "side": side, "lateral_cause": cause}


_LONGITUDINAL, _LATERAL = frozenset(map(str, Longitudinal)), frozenset(map(str, Lateral))
Phrase = TypeVar("Phrase", bound=StrEnum)


def _look_up(kind: type[Phrase], phrase: str, what: str) -> Phrase:
    try:
        return kind(phrase)
    except ValueError:
        raise TraceError(f"unknown {what} {phrase[:60]!r}; {nearest(phrase[:60], map(str, kind))}") from None


_LIGHTS = {
    Cause.RED_LIGHT: Light.RED,
    Cause.YELLOW_LIGHT: Light.YELLOW,
    Cause.GREEN_LIGHT: Light.GREEN,
    Cause.STOP_SIGN: Light.STOP_SIGN,
}
_STANDING = frozenset({Cause.STOPPED_VEHICLE, Cause.PARKED_VEHICLE, Cause.OBSTACLE})


def observed(cause: Cause, scene: Scene) -> bool:
    """Whether a cause can be seen in the 1.6 s up to now: its actor was there, its light showed that state.

    A necessary condition, not more: of an actor only its kind is checked, and for what stands its speed; what
    belongs to the map (road events, lane lines, route, yield signs) is always in sight.
    """
    seen = slice(max(scene.now - HISTORY + 1, 0), scene.now + 1)
    if cause in _LIGHTS:
        return any((signal.states[seen] == _LIGHTS[cause]).any() for signal in scene.signals)
    if cause.component is not Component.OBJECT:
        return True
    there = scene.valid[1:, seen]
    if cause in _STANDING:
        speed = np.where(there, scene.state[1:, seen, 3], np.inf)
        there = there & (np.abs(speed) < STANDS)
    kinds = _kinds(cause)
    return bool((there.any(1) & np.isin(scene.kind[1:], kinds)).any())


def _kinds(cause: Cause) -> list[Kind]:
    if cause is Cause.PEDESTRIAN:
        return [Kind.PEDESTRIAN]
    if cause is Cause.CYCLIST:
        return [Kind.CYCLIST]
    if cause in _STANDING:
        return [Kind.VEHICLE, Kind.STATIC]
    return [Kind.VEHICLE]
