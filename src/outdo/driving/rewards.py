"""The reward of a driving answer: named terms, each a function of `outcomes` as `outdo.core.rewards` calls it.

Terms follow Alpamayo-R1 (arXiv 2511.00088, §5.3): reasoning quality, consistency of words and trajectory, trajectory
quality and safety. Their weights and scales are unstated there. An answer that is not well-formed gets the worst
value of every term, whatever its words or its trajectory are worth. Axes: A actors, H ticks.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from outdo.core.calls import nearest
from outdo.core.rewards import RewardTerm, Score, score_term
from outdo.driving import comfort, critic, dynamics, kernels
from outdo.driving.measures import Measures
from outdo.driving.meta_actions import Across, Along, Segment
from outdo.driving.metrics import progress_ratio
from outdo.driving.outcomes import Outcome
from outdo.driving.packing import arc_length
from outdo.driving.reasoning import Lateral, Longitudinal, Side, Trace

Floats = NDArray[np.float64]

LEANS = 0.015  # rad
GRIP = 8.8  # m/s²: about 0.9 g, what tyres can give in any direction


# --- words against trajectory ---

_SLOWER = frozenset({Along.GENTLE_DECELERATION, Along.STRONG_DECELERATION})
_FASTER = frozenset({Along.GENTLE_ACCELERATION, Along.STRONG_ACCELERATION})
_BRAKES = frozenset({Along.STOP, Along.STRONG_DECELERATION})

INTENT: dict[Longitudinal, tuple[frozenset[Along], frozenset[Along]]] = {
    Longitudinal.TRACK_SPEED: (_FASTER | {Along.MAINTAIN, Along.GENTLE_DECELERATION}, _BRAKES),
    Longitudinal.FOLLOW: (_SLOWER | {Along.MAINTAIN, Along.GENTLE_ACCELERATION, Along.STOP}, frozenset()),
    Longitudinal.ADAPT_SPEED: (_SLOWER, frozenset({Along.STOP})),
    Longitudinal.SEARCH_GAP: (_SLOWER | _FASTER | {Along.MAINTAIN}, frozenset()),
    Longitudinal.PASS: (_FASTER, _BRAKES),
    Longitudinal.YIELD: (_SLOWER | {Along.STOP}, frozenset()),
    Longitudinal.STOP: (_SLOWER | {Along.STOP}, frozenset()),
}
"""What the first action other than maintaining may be, and what none may be; no decision goes backwards."""

_SIDES = {
    Across.LEFT: Side.LEFT,
    Across.SHARP_LEFT: Side.LEFT,
    Across.REVERSE_LEFT: Side.LEFT,
    Across.RIGHT: Side.RIGHT,
    Across.SHARP_RIGHT: Side.RIGHT,
    Across.REVERSE_RIGHT: Side.RIGHT,
}
_SHARP = frozenset(_SIDES) - {Across.LEFT, Across.RIGHT}


def longitudinal_matches(decision: Longitudinal, segments: Sequence[Segment[Along]]) -> bool:
    """Whether a decision fits longitudinal meta-actions (`INTENT`)."""
    actions = [segment.action for segment in segments]
    first = next((action for action in actions if action is not Along.MAINTAIN), Along.MAINTAIN)
    may_begin, never = INTENT[decision]
    return first in may_begin and not (never | {Along.REVERSE}) & set(actions)


def lateral_matches(
    decision: Lateral,
    side: Side | None,
    segments: Sequence[Segment[Across]],
    along_route: Sequence[Segment[Across]],
    lean: float = 0.0,
) -> bool:
    """Whether a decision fits lateral meta-actions.

    Turn: `segments` steer longer to its side than to the other. All others are judged `along_route`, so that a bend
    is no steering. Keep lane: straight for at least half of the time, nowhere sharp. Abort: steers. The rest: the
    first steering is to their side (merge: or there is none, for ramps lead into their lane); a heading that leans
    by `lean` ≥ 0.015 rad to the left of the route at the start (≤ −0.015 to the right) is one under way.
    """
    if decision is Lateral.TURN:
        steers = [(_SIDES[s.action], s.end - s.start) for s in segments if s.action in _SIDES]
        return sum(ticks if to == side else -ticks for to, ticks in steers) > 0
    if decision is Lateral.KEEP_LANE:
        straight = sum(s.end - s.start for s in along_route if s.action is Across.STRAIGHT)
        return 2 * straight >= along_route[-1].end and not any(s.action in _SHARP for s in along_route)
    sides = [_SIDES[s.action] for s in along_route if s.action in _SIDES]
    if decision is Lateral.ABORT:
        return bool(sides)
    if abs(lean) >= LEANS:
        sides.insert(0, Side.LEFT if lean > 0 else Side.RIGHT)
    return sides[0] == side if sides else decision is Lateral.MERGE


def consistency(outcomes: Sequence[Outcome]) -> list[float]:
    """1 where trajectory and words say the same on both axes, else 0; so is a trace that leaves an axis open."""
    return [float(_consistent(outcome)) for outcome in outcomes]


def _consistent(outcome: Outcome) -> bool:
    trace, actions, kept = outcome.answer.trace, outcome.actions, outcome.along_route
    if trace is None or actions is None or kept is None:
        return False
    if trace.longitudinal is None or trace.lateral is None:
        return False
    return longitudinal_matches(trace.longitudinal, actions.longitudinal) and lateral_matches(
        trace.lateral, trace.side, actions.lateral, kept.lateral, outcome.lean
    )


def quality(outcomes: Sequence[Outcome], endpoint: critic.Endpoint | None = None) -> list[Any]:
    """Reasoning quality 0 to 5 by rules, or by an `endpoint`; None without a reference trace.

    An endpoint's error stands in the row's place, so that the term's `on_error` decides and counts it.
    """
    grades: list[float | Exception | None] = [None if o.reference.trace is None else 0.0 for o in outcomes]
    at: list[int] = []
    pairs: list[tuple[Trace, Trace]] = []
    for i, o in enumerate(outcomes):
        said, right = o.answer.trace, o.reference.trace
        if said is None or right is None or o.path is None:
            continue
        if endpoint is None:
            grades[i] = float(critic.grade(said, right, o.scene))
        else:
            at.append(i)
            pairs.append((said, right))
    if endpoint is not None:
        for i, grade in zip(at, endpoint.grades(pairs), strict=True):
            grades[i] = grade
    return grades


# --- trajectory and safety: 0 is best, 1 is worst ---


def l2(outcomes: Sequence[Outcome], scale: float = 2.0) -> list[float]:
    """d/(d + scale) of the mean distance d in m from the expert's path, over the ticks after the start."""
    return [1.0 if o.path is None else _share(_distance(o.path, o.reference.path), scale) for o in outcomes]


def lag(outcomes: Sequence[Outcome]) -> list[float]:
    """Share of the expert's progress along the route that is missing; going further earns nothing.

    0 where the expert makes 5 m or less (`metrics.progress_ratio`). Against the caution that a sampled policy learns
    from the other terms: slower is safer while its own noise is what makes it unsafe.
    """
    return [1.0 if o.measures is None else 1 - progress_ratio(o.measures.progress, _way(o)) for o in outcomes]


def hesitation(outcomes: Sequence[Outcome], ticks: int = 8, scale: float = 2.0) -> list[float]:
    """u/(u + scale) of the speed u in m/s that the ego lacks after `ticks` to that of the expert; being faster is free.

    Only the beginning of a plan is driven before the next is made. One that is slower there and makes up for it later
    loses nothing by `lag`, and never makes up for it.
    """
    return [
        1.0 if o.path is None else _share(max(o.reference.path[ticks, 3] - o.path[ticks, 3], 0.0), scale)
        for o in outcomes
    ]


def jerk(outcomes: Sequence[Outcome], scale: float = 4.13) -> list[float]:
    """j/(j + scale) of the mean jerk j in m/s³, longitudinal and lateral, smoothed as in `outdo.driving.comfort`."""
    return [1.0 if o.path is None else _share(_mean_jerk(o.path), scale) for o in outcomes]


def collision(outcomes: Sequence[Outcome]) -> list[Score]:
    """1 if the ego's box touches that of another actor, whosever fault it is."""
    return [_event(o, lambda m: m.contact.any()) for o in outcomes]


def close_encounter(outcomes: Sequence[Outcome]) -> list[Score]:
    """1 if the ego, moving, comes within 0.5 m of a box or 0.9 s of a contact at constant velocities."""
    return [_event(o, lambda m: m.close.any()) for o in outcomes]


def off_road(outcomes: Sequence[Outcome]) -> list[Score]:
    """1 if a corner of the ego leaves the drivable area."""
    return [_event(o, lambda m: m.off_road.any()) for o in outcomes]


def infeasible(outcomes: Sequence[Outcome], grip: float = GRIP) -> list[float]:
    """Share of ticks that no car could drive: controls beyond their limits, or √(a² + (κv²)²) > `grip` m/s²."""
    return [1.0 if o.path is None or o.answer.control is None else _beyond(o, grip) for o in outcomes]


def _event(outcome: Outcome, happened: Callable[[Measures], Any]) -> Score:
    """None where the scene is at fault, for the whole group: the term does not apply to it."""
    if outcome.scene_fault is not None:
        return None
    return 1.0 if outcome.measures is None else float(happened(outcome.measures))


def _share(value: float, scale: float) -> float:
    """Strictly rising from 0 to 1, ½ at `scale`: no value is ever as bad as a missing one."""
    return value / (value + scale)


def _distance(path: Floats, truth: Floats) -> float:
    return float(np.linalg.norm((path - truth)[1:, :2], axis=1).mean())


def _way(outcome: Outcome) -> float:
    """Progress of the reference along the route in m."""
    route, path = outcome.scene.route, outcome.reference.path
    length = arc_length(route)
    start, end = (kernels.project(route, length, *path[k, :2])[0] for k in (0, -1))
    return end - start


def _mean_jerk(path: Floats) -> float:
    known = np.diff(path[:, 3]) / dynamics.DT
    values = comfort.quantities(path[None], np.append(known, known[-1])[None])["jerk"]
    return float(np.abs(values).mean())


def _beyond(outcome: Outcome, grip: float) -> float:
    control, path = outcome.answer.control, outcome.path
    assert control is not None
    assert path is not None
    across = control[:, 1] * path[:-1, 3] ** 2
    fine = dynamics.feasible(control) & (np.hypot(control[:, 0], across) <= grip)
    return float(1 - fine.mean())


# --- the terms together ---


@dataclass(frozen=True, slots=True)
class Term:
    """A term of the reward: its `function`, the range of its values, which of them is `better`, its default weight."""

    function: Callable[..., Any]
    low: float
    high: float
    better: Literal["higher", "lower"]
    weight: float


TERMS = {
    "quality": Term(quality, 0, critic.BEST, "higher", 0.2),
    "consistency": Term(consistency, 0, 1, "higher", 1.0),
    "l2": Term(l2, 0, 1, "lower", 1.0),
    "lag": Term(lag, 0, 1, "lower", 1.0),
    "hesitation": Term(hesitation, 0, 1, "lower", 1.0),
    "collision": Term(collision, 0, 1, "lower", 1.0),
    "jerk": Term(jerk, 0, 1, "lower", 0.2),
    "close_encounter": Term(close_encounter, 0, 1, "lower", 1.0),
    "off_road": Term(off_road, 0, 1, "lower", 1.0),
    "infeasible": Term(infeasible, 0, 1, "lower", 1.0),
}


def terms(
    weights: Mapping[str, float] | None = None, *, endpoint: critic.Endpoint | None = None
) -> list[RewardTerm]:
    """All terms with the given weights (≥ 0), those not named switched off; None: all at their defaults.

    A term whose lower values are better enters with the opposite sign. One that is switched off is still computed,
    for the log; an endpoint's critic only where it is weighted, and a row that it cannot grade is left out.

    Raises:
        ValueError: an unknown term (nearest named), or a negative weight.
    """
    chosen = {name: term.weight for name, term in TERMS.items()} if weights is None else dict(weights)
    for name, weight in chosen.items():
        if name not in TERMS:
            raise ValueError(f"no driving reward is called {name!r}; {nearest(name, TERMS)}")
        if not weight >= 0:
            raise ValueError(f"weight of {name!r} must be >= 0, got {weight}: the term knows its own sign")
    result: list[RewardTerm] = []
    for name, term in TERMS.items():
        weight = chosen.get(name, 0.0) * (1 if term.better == "higher" else -1)
        if name == "quality" and endpoint is not None and weight:
            judged = partial(quality, endpoint=endpoint)
            result.append(RewardTerm(name, judged, weight, time_limit=3600.0, on_error="skip"))
        else:
            result.append(RewardTerm(name, term.function, weight))
    return result


def falling(term: RewardTerm, rows: Mapping[str, Sequence[Any]], quality: Sequence[float]) -> list[str]:
    """The check of a reward's direction: where a term's share of the reward falls as the known quality rises.

    `rows` are examples as for `outdo.core.rewards.score`, `quality` what each is truly worth to this term. A gate
    such as 0.3·(s − 1)/(−0.4) for s in (0.6, 1] is found so: it pays most for the worst that it accepts.

    Raises:
        RewardError: the term fails on an example.
    """
    values, _ = score_term(term, rows, len(quality))
    known = sorted((q, term.weight * v) for q, v in zip(quality, values, strict=True) if v is not None)
    return [
        f"reward {term.name!r} falls from {a:.4g} to {b:.4g} as quality rises from {worse:.4g} to {better:.4g}"
        for (worse, a), (better, b) in pairwise(known)
        if better > worse and b < a
    ]
