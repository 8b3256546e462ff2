"""The expert: drives by rules, says what it decided and why, and demonstrates both with flaws at stated rates.

Axes: S scenes, H steps of a demonstration.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from outdo.driving import kernels
from outdo.driving.packing import arc_length
from outdo.driving.reasoning import Cause, Lateral, Longitudinal, Side, Trace, observed
from outdo.driving.rules import Drivers, Memory, Rule, decide
from outdo.driving.scene import HORIZON, Kind, Scene
from outdo.driving.simulator import Drive, Simulator, drive
from outdo.driving.way import Way, ways

Floats = NDArray[np.float64]

SAID = {
    Rule.FREE: (Longitudinal.TRACK_SPEED, Cause.SPEED_LIMIT),
    Rule.WORKS: (Longitudinal.ADAPT_SPEED, Cause.ROAD_WORKS),
    Rule.CURVE: (Longitudinal.ADAPT_SPEED, Cause.CURVE),
    Rule.LIMIT: (Longitudinal.ADAPT_SPEED, Cause.SPEED_LIMIT),
    Rule.LEAD: (Longitudinal.FOLLOW, Cause.LEAD_VEHICLE),
    Rule.BRAKING: (Longitudinal.FOLLOW, Cause.BRAKING_LEAD),
    Rule.CUT_IN: (Longitudinal.FOLLOW, Cause.CUTTING_IN),
    Rule.STOPPED: (Longitudinal.STOP, Cause.STOPPED_VEHICLE),
    Rule.OBSTACLE: (Longitudinal.STOP, Cause.OBSTACLE),
    Rule.PEDESTRIAN: (Longitudinal.YIELD, Cause.PEDESTRIAN),
    Rule.ONCOMING: (Longitudinal.YIELD, Cause.ONCOMING_VEHICLE),
    Rule.CROSSING: (Longitudinal.YIELD, Cause.CROSSING_VEHICLE),
    Rule.CYCLIST: (Longitudinal.YIELD, Cause.CYCLIST),
    Rule.RED: (Longitudinal.STOP, Cause.RED_LIGHT),
    Rule.YELLOW: (Longitudinal.STOP, Cause.YELLOW_LIGHT),
    Rule.STOP_SIGN: (Longitudinal.STOP, Cause.STOP_SIGN),
    Rule.MERGE: (Longitudinal.SEARCH_GAP, Cause.MERGING_VEHICLE),
}
MATTERS = 1.5  # m/s that a rule must take off the free speed within the drive to be the reason
ASIDE = 0.25  # m off the route that count as a nudge


@dataclass(frozen=True, slots=True)
class Driver:
    """Habits of one driver; the defaults are the expert without flaws.

    `headway` s and `gap` m are those of the IDM; `notice`: m/s² of braking that must be needed before anything is
    done; `clearance` m beside what is passed; `margin` s between two who cross.
    """

    headway: float = 1.4
    gap: float = 2.5
    notice: float = 0.0
    clearance: float = 0.9
    margin: float = 1.5


@dataclass(frozen=True, slots=True)
class Flaws:
    """Share of demonstrations with each flaw, drawn independently.

    `late_braking`: nothing is done until 2.5 to 4.5 m/s² are needed. `small_gaps`: headway 0.3 to 0.7 s, gap 0.6
    to 1.2 m, clearance 0.15 to 0.35 m, margin 0.1 to 0.5 s. `wrong_reason`: on one axis the decision and its cause
    are those of another demonstration. `missing_reason`: the decisions are given without causes.
    """

    late_braking: float = 0.35
    small_gaps: float = 0.3
    wrong_reason: float = 0.2
    missing_reason: float = 0.1

    def __post_init__(self) -> None:
        """Refuse what is no share."""
        for name in ("late_braking", "small_gaps", "wrong_reason", "missing_reason"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} = {getattr(self, name)} must be a share, 0 to 1")


NO_FLAWS = Flaws(0.0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class Demonstration:
    """One drive from `scene.now` on: `states` [H + 1, 4], `control` [H, 2] that led there, and what was said.

    `truth` is the trace that fits the drive, `trace` what the demonstration says, with its flaws named in `flaws`.
    """

    scene: Scene
    states: Floats
    control: Floats
    trace: Trace
    truth: Trace
    flaws: tuple[str, ...]


class Expert:
    """A planner for `outdo.driving.simulator.drive` with `every` = 1; keeps the rules that decided for the traces.

    `drivers`, one a scene, default to `Driver()`; `way` is `ways(scenes, steps)`, where that is known already.
    """

    def __init__(
        self,
        scenes: Sequence[Scene],
        steps: int = HORIZON,
        drivers: Sequence[Driver] | None = None,
        way: Way | None = None,
    ) -> None:
        self.way = ways(scenes, steps) if way is None else way
        size, lines = self.way.stop_s.shape
        self._drivers = _columns(drivers or [Driver()] * size)
        start = np.array([_offset(scene) for scene in scenes])
        zeros = [np.zeros(size) for _ in range(3)]
        self.memory = Memory(
            offset=start,
            a=zeros[0],
            kappa=zeros[1],
            passing=np.zeros(size, np.int64),
            served=np.zeros((size, lines), np.int64),
            target=zeros[2],
            blocked=np.zeros(size, np.int64),
        )
        self.lost = np.zeros((size, len(Rule)))
        """m/s [S, rules] that each rule has taken off the free speed."""
        self.most = np.zeros(size)
        """m [S] of the largest offset that was aimed at, with its sign."""

    def __call__(self, simulator: Simulator) -> Floats:
        """Controls [S, 1, 2] for the next step."""
        control, lost = np.zeros((len(simulator.scenes), 2)), np.zeros(len(simulator.scenes))
        rules = np.zeros(len(lost), np.int64)
        decide(
            simulator.t,
            simulator.state,
            simulator.size,
            simulator.valid,
            simulator.kind,
            self.way,
            self.memory,
            self._drivers,
            control,
            rules,
            lost,
        )
        self.lost[np.arange(len(lost)), rules] += 0.1 * lost
        further = np.abs(self.memory.target) > np.abs(self.most)
        self.most[further] = self.memory.target[further]
        return control[:, None]

    def traces(self, record: Drive) -> list[Trace]:
        """What was decided in each scene of the drive, from what took the most speed and where the ego went."""
        return [self._trace(n, scene, record.state[n, :, 0]) for n, scene in enumerate(record.scenes)]

    def _trace(self, n: int, scene: Scene, states: Floats) -> Trace:
        lateral, side, cause = self._lateral(n, scene, states)
        longitudinal, because = SAID[Rule.FREE]
        if lateral is Lateral.CHANGE_LANE and states[-1, 3] > states[0, 3] + 0.5:
            longitudinal, because = Longitudinal.PASS, Cause.SLOW_LEAD
        else:
            for rule in np.argsort(-self.lost[n], kind="stable"):
                if self.lost[n, rule] > MATTERS and observed(SAID[Rule(rule)][1], scene):
                    longitudinal, because = SAID[Rule(rule)]
                    break
        return Trace(longitudinal, because, lateral, side, cause)

    def _lateral(self, n: int, scene: Scene, states: Floats) -> tuple[Lateral, Side | None, Cause]:
        length = arc_length(scene.route)
        s, d = np.array([kernels.project(scene.route, length, x, y)[:2] for x, y in states[:, :2]]).T
        side = Side.LEFT if self.most[n] > 0 else Side.RIGHT
        if self.memory.passing[n] and abs(d[-1]) > 1.0:
            return Lateral.CHANGE_LANE, side, Cause.SLOW_LEAD
        if s[0] < self.way.merge_s[n] < s[-1] + 10:
            first, count = self.way.rival_first[n], self.way.rival_count[n]
            rival = slice(first, first + count)
            beside = kernels.project(self.way.rival[rival], self.way.rival_length[rival], *states[0, :2])[1]
            return Lateral.MERGE, Side.RIGHT if beside > 0 else Side.LEFT, Cause.LANE_ENDS
        if abs(self.most[n]) > ASIDE and np.abs(d - d[0]).max() > ASIDE:
            outside = abs(self.most[n]) + scene.size[0, 1] / 2 > self.way.half_lane[n]
            standing = scene.kind[self._beside(n, scene)] == Kind.STATIC
            cause = Cause.OBSTACLE if standing else Cause.PARKED_VEHICLE
            return Lateral.NUDGE_OUT if outside else Lateral.NUDGE_IN, side, cause
        turned = float(np.unwrap(states[:, 2])[-1] - states[0, 2])
        if abs(turned) > 0.35:
            route = Cause.ROUTE_LEFT if turned > 0 else Cause.ROUTE_RIGHT
            return Lateral.TURN, Side.LEFT if turned > 0 else Side.RIGHT, route
        return Lateral.KEEP_LANE, None, Cause.LANE_LINES

    def _beside(self, n: int, scene: Scene) -> int:
        """The standing actor that takes most of the lane; the ego itself where there is none."""
        stands = (self.way.early_v[n, : scene.actors] < 0.5) & (np.arange(scene.actors) > 0)
        apart = np.where(stands, np.abs(self.way.early_d[n, : scene.actors]), np.inf)
        return int(apart.argmin()) if stands.any() else 0


def _columns(drivers: Sequence[Driver]) -> Drivers:
    names = ("headway", "gap", "notice", "clearance", "margin")
    return Drivers(*(np.array([getattr(driver, name) for driver in drivers]) for name in names))


def _offset(scene: Scene) -> float:
    x, y = scene.state[0, scene.now, :2]
    return kernels.project(scene.route, arc_length(scene.route), x, y)[1]


def run(
    scenes: Sequence[Scene],
    drivers: Sequence[Driver] | None = None,
    *,
    steps: int = HORIZON,
    reactive: bool = True,
    way: Way | None = None,
) -> tuple[Drive, list[Trace]]:
    """Let the expert drive the scenes among reactive (or replayed) traffic: the record and one trace a scene."""
    expert = Expert(scenes, steps, drivers, way)
    record = drive(scenes, expert, every=1, steps=steps, reactive=reactive)
    return record, expert.traces(record)


def demonstrate(
    scenes: Sequence[Scene],
    seed: int,
    *,
    flaws: Flaws | None = None,
    steps: int = HORIZON,
    reactive: bool = True,
    way: Way | None = None,
) -> list[Demonstration]:
    """One demonstration a scene, with flaws at the rates of `flaws` (default `Flaws()`)."""
    flaws, rng = flaws or Flaws(), np.random.default_rng([seed, 0x0F1A])
    drawn = [draw_driver(rng, flaws) for _ in scenes]
    record, truths = run(scenes, [driver for driver, _ in drawn], steps=steps, reactive=reactive, way=way)
    out: list[Demonstration] = []
    for n, (scene, (_, found), truth) in enumerate(zip(scenes, drawn, truths, strict=True)):
        trace, said = _say(rng, flaws, truth, truths)
        states = record.state[n, :, 0].copy()
        out.append(Demonstration(scene, states, record.control[n], trace, truth, (*found, *said)))
    return out


def draw_driver(rng: Generator, flaws: Flaws) -> tuple[Driver, tuple[str, ...]]:
    """A driver with flaws drawn at their rates, and the names of those it has."""
    driver, found = Driver(), list[str]()
    late, small = rng.random(2) < (flaws.late_braking, flaws.small_gaps)
    notice, headway, gap, clearance, margin = rng.uniform(
        [2.5, 0.3, 0.6, 0.15, 0.1], [4.5, 0.7, 1.2, 0.35, 0.5]
    )
    if late:
        driver, found = replace(driver, notice=float(notice)), [*found, "late_braking"]
    if small:
        near = {"headway": headway, "gap": gap, "clearance": clearance, "margin": margin}
        driver = replace(driver, **{name: float(value) for name, value in near.items()})
        found.append("small_gaps")
    return driver, tuple(found)


def _say(
    rng: Generator, flaws: Flaws, truth: Trace, others: Sequence[Trace]
) -> tuple[Trace, tuple[str, ...]]:
    wrong, missing, along = rng.random(3) < (flaws.wrong_reason, flaws.missing_reason, 0.5)
    order = rng.permutation(len(others))
    trace, found = truth, list[str]()
    if wrong:
        swapped = (_swap(truth, others[k], longitudinal=bool(along)) for k in order)
        trace = next((other for other in swapped if other != truth), truth)
        found += ["wrong_reason"] if trace != truth else []
    if missing:
        trace = replace(trace, longitudinal_cause=None, lateral_cause=None)
        found.append("missing_reason")
    return trace, tuple(found)


def _swap(truth: Trace, other: Trace, *, longitudinal: bool) -> Trace:
    """`truth` with one axis of `other`."""
    if longitudinal:
        return replace(truth, longitudinal=other.longitudinal, longitudinal_cause=other.longitudinal_cause)
    return replace(truth, lateral=other.lateral, side=other.side, lateral_cause=other.lateral_cause)
