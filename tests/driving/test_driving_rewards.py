"""The terms of the driving reward: by hand, beside closed forms, and each found by its known best and worst."""

from __future__ import annotations

import numpy as np
import pytest
from roads import HORIZON, NOW, box, moving, road

from outdo.core.rewards import RewardTerm, score
from outdo.driving import dynamics, rewards
from outdo.driving.meta_actions import Across, Along, Segment
from outdo.driving.outcomes import Reference, outcomes_of
from outdo.driving.reasoning import Lateral, Longitudinal, Side, parse
from outdo.driving.rewards import INTENT, TERMS, falling, terms
from outdo.driving.scene import SceneError
from outdo.driving.tokens import Answer, Fault

STRAIGHT = "track set speed because speed limit; keep lane because route ahead."


def controls(*parts):
    """Controls [64, 2] of (ticks, acceleration, curvature) one after the other."""
    return np.concatenate([np.tile([a, kappa], (ticks, 1)) for ticks, a, kappa in parts]).astype(float)


def said(text, *parts):
    """An answer of this text (None: unparseable) that drives these parts (none: no trajectory)."""
    control = controls(*parts) if parts else None
    return Answer(
        text or "?", parse(text) if text else None, control, () if parts else ((Fault.EMPTY, "none"),)
    )


def expert(scene, text=STRAIGHT):
    """The ego's log as the reference."""
    return Reference(scene.state[0, NOW : NOW + HORIZON + 1], parse(text) if text else None)


def values(term, scene, *answers, **settings):
    return TERMS[term].function(outcomes_of(scene, answers, expert(scene)), **settings)


# --- consistency ---


def go(*actions):
    return [Segment(action, 10 * i, 10 * i + 10) for i, action in enumerate(actions)]


@pytest.mark.parametrize(
    ("decision", "fits", "clashes"),
    [
        (
            "track set speed",
            [["maintain speed"], ["gentle acceleration"]],
            [["stop"], ["maintain speed", "stop"]],
        ),
        ("follow lead", [["stop"], ["maintain speed", "strong deceleration"]], [["strong acceleration"]]),
        (
            "adapt speed",
            [["maintain speed", "gentle deceleration"]],
            [["maintain speed"], ["gentle acceleration"]],
        ),
        ("search gap", [["gentle acceleration"], ["strong deceleration"]], [["stop", "gentle acceleration"]]),
        ("accelerate to pass", [["strong acceleration"]], [["maintain speed"], ["gentle deceleration"]]),
        (
            "yield",
            [["gentle deceleration", "stop", "gentle acceleration"], ["stop"]],
            [["gentle acceleration", "gentle deceleration"], ["maintain speed"]],
        ),
        ("stop", [["strong deceleration", "stop"]], [["gentle acceleration"], ["maintain speed"]]),
    ],
)
def test_longitudinal_intent(decision, fits, clashes):
    decision = Longitudinal(decision)
    for actions in fits:
        assert rewards.longitudinal_matches(decision, go(*map(Along, actions)))
        assert not rewards.longitudinal_matches(decision, go(*map(Along, actions), Along.REVERSE))
    for actions in clashes:
        assert not rewards.longitudinal_matches(decision, go(*map(Along, actions)))


def test_every_decision_has_an_intent():
    assert set(INTENT) == set(Longitudinal)


@pytest.mark.parametrize("side", Side)
def test_lateral_intent(side):
    left = {"left": Across.LEFT, "right": Across.RIGHT}[side]
    right = {"left": Across.RIGHT, "right": Across.LEFT}[side]
    straight = Across.STRAIGHT
    shifts = (Lateral.MERGE, Lateral.NUDGE_IN, Lateral.NUDGE_OUT, Lateral.CHANGE_LANE, Lateral.PULL_OVER)
    for decision in shifts:
        assert rewards.lateral_matches(decision, side, go(straight), go(straight, left, right))
        assert not rewards.lateral_matches(decision, side, go(left), go(straight, right, left))
        assert rewards.lateral_matches(decision, side, go(left), go(straight)) == (decision is Lateral.MERGE)
        # under way: the heading leans to the side at the start, and what is left to do is to straighten
        lean = {"left": 0.015, "right": -0.015}[side]
        assert rewards.lateral_matches(decision, side, go(straight), go(right, straight), lean)
        assert not rewards.lateral_matches(decision, side, go(straight), go(right, straight), lean * 0.9)
        assert not rewards.lateral_matches(decision, side, go(straight), go(left, straight), -lean)
    assert rewards.lateral_matches(Lateral.TURN, side, go(right, left, left), go(straight))
    assert not rewards.lateral_matches(Lateral.TURN, side, go(left, right), go(straight))
    assert rewards.lateral_matches(Lateral.ABORT, None, go(straight), go(straight, left))
    assert not rewards.lateral_matches(Lateral.ABORT, None, go(left), go(straight), 0.1)
    assert rewards.lateral_matches(Lateral.KEEP_LANE, None, go(left), go(straight, left))
    assert not rewards.lateral_matches(Lateral.KEEP_LANE, None, go(straight), go(straight, left, right))
    assert not rewards.lateral_matches(Lateral.KEEP_LANE, None, go(straight), go(straight, Across.SHARP_LEFT))


NUDGE = ((10, 0, 0), (15, 0, 0.006), (15, 0, -0.006), (24, 0, 0))  # 0.09 rad to the left and back
BRAKES = ((10, 0, 0), (40, -2, 0), (14, 0, 0))


@pytest.mark.parametrize(
    ("text", "parts", "consistent"),
    [
        ("track set speed; keep lane.", ((64, 0, 0),), 1),
        ("track set speed; nudge in lane left.", NUDGE, 1),
        ("track set speed; nudge in lane right.", NUDGE, 0),
        ("stop; nudge in lane left.", NUDGE, 0),  # one axis alone is not enough
        ("stop; keep lane.", BRAKES, 1),
        ("track set speed; keep lane.", BRAKES, 0),
        ("accelerate to pass; keep lane.", BRAKES, 0),
        ("track set speed.", ((64, 0, 0),), 0),  # leaves an axis open
        ("keep lane.", ((64, 0, 0),), 0),
        (None, ((64, 0, 0),), 0),  # unparseable
        ("track set speed; keep lane.", (), 0),  # no trajectory
    ],
)
def test_words_and_trajectory(text, parts, consistent):
    assert values("consistency", road(moving(0, 0, 10)), said(text, *parts)) == [consistent]


def bend(radius=50.0):
    """A left bend: a quarter of a circle after 10 m, with an ego that drives at 10 m/s."""
    angle = np.linspace(0, np.pi / 2, 40)
    arc = np.stack([10 + radius * np.sin(angle), radius - radius * np.cos(angle)], -1)
    route = np.concatenate(
        [[[-20.0, 0.0], [-10.0, 0.0], [0.0, 0.0]], arc, arc[-1:] + np.array([[0.0, 60.0]])]
    )
    return road(moving(0, 0, 10), route=route, drivable=(box(-300, -300, 700, 300),))


def test_keeping_a_lane_that_bends_is_no_steering():
    # 1 s straight, then κ = 1/50 as the road has it: a turn by the table, and lane keeping along the route
    follows, straight_on = ((10, 0, 0), (54, 0, 0.02)), ((64, 0, 0),)
    keep = "track set speed; keep lane."
    outcome = outcomes_of(bend(), [said(keep, *follows)], expert(bend()))[0]
    assert outcome.actions.lateral[-1].action is Across.LEFT
    assert [s.action for s in outcome.along_route.lateral] == [Across.STRAIGHT]
    assert values("consistency", bend(), said(keep, *follows), said(keep, *straight_on)) == [1, 0]


# --- trajectory quality ---


def test_l2_by_hand():
    # 1 m/s² too much: apart by t²/2, mean over t = 0.1 … 6.4 of 0.005·k²: 0.005·65·129/6 = 6.9875 m
    scene = road(moving(0, 0, 10))
    best, worse, broken = values(
        "l2", scene, said(STRAIGHT, (64, 0, 0)), said(STRAIGHT, (64, 1, 0)), said(None)
    )
    assert best == pytest.approx(0, abs=1e-12)
    assert worse == pytest.approx(6.9875 / (6.9875 + 2))
    assert broken == 1


def test_jerk_by_hand():
    # constant controls: none. A ramp of 0.1 m/s² a tick is a jerk of 1 m/s³ wherever the filter looks.
    scene = road(moving(0, 0, 10))
    ramp = Answer("", None, np.stack([np.arange(64) * 0.1, np.zeros(64)], -1))
    smooth, rough, broken = values("jerk", scene, said(STRAIGHT, (64, 1, 0)), ramp, said(None), scale=1.0)
    assert smooth == pytest.approx(0, abs=1e-9)
    assert rough == pytest.approx(0.5, abs=0.01)  # the first tick of the last window is repeated
    assert broken == 1


def test_collision_and_close_encounter():
    # a lead 30 m ahead at 5 m/s (boxes of 4 m): at 10 m/s the gap of 26 m closes in 5.2 s
    scene = road(moving(0, 0, 10), moving(30, 0, 5))
    hit, brake, broken = said(STRAIGHT, (64, 0, 0)), said(STRAIGHT, (25, -2, 0), (39, 0, 0)), said(None)
    assert values("collision", scene, hit, brake, broken) == [1, 0, 1]
    assert values("close_encounter", scene, hit, brake, broken) == [1, 0, 1]
    # lane b is 3.5 m away; moving over 1.2 m leaves a gap of 3.5 − 1.2 − 2 = 0.3 m: close, no contact
    beside = road(moving(0, 0, 10), moving(0, 3.5, 10))
    swerve = said(STRAIGHT, (10, 0, 0.012), (10, 0, -0.012), (44, 0, 0))
    path = dynamics.rollout(np.array([0.0, 0, 0, 10]), swerve.control)
    assert 1.0 < path[-1, 1] < 1.5
    assert values("collision", beside, swerve, hit) == [0, 0]
    assert values("close_encounter", beside, swerve, hit) == [1, 0]


def test_lag_is_the_missing_share_of_the_experts_way():
    # the expert keeps 10 m/s for 6.4 s: 64 m. Braking at 1 m/s² to 5 m/s and going on there: 37.5 m in 5 s, then 7 m.
    scene = road(moving(0, 0, 10))
    shares = values(
        "lag",
        scene,
        said(STRAIGHT, (64, 0, 0)),
        said(STRAIGHT, (64, 3, 0)),
        said(STRAIGHT, (50, -1, 0), (14, 0, 0)),
        said(STRAIGHT, (64, -9.8, 0)),  # brakes, then backwards
        said(None),
    )
    assert shares == pytest.approx([0, 0, 1 - 44.5 / 64, 1, 1])
    parked = road(moving(0, 0, 0))
    assert values("lag", parked, said(STRAIGHT, (64, 0, 0))) == [0]  # where nobody gets on, nobody lags


def test_hesitation_is_the_speed_that_is_missing_when_the_next_plan_is_due():
    # the expert keeps 10 m/s; after 0.8 s it is at 10 − 0.8·a
    scene = road(moving(0, 0, 10))
    braking, late = said(STRAIGHT, (8, -1, 0), (56, 1, 0)), said(STRAIGHT, (8, 0, 0), (56, -1, 0))
    found = values("hesitation", scene, braking, late, said(STRAIGHT, (64, 2, 0)), said(None))
    assert found == pytest.approx([0.8 / 2.8, 0, 0, 1])
    # the first goes further than the expert in the end: no lag
    assert values("lag", scene, braking) == [0]


def test_off_road():
    # the right edge is at −1.75 m, the car 2 m wide: 0.75 m to the right of the centre is the last that is on it
    scene = road(moving(0, 0, 10))
    over = said(STRAIGHT, (10, 0, -0.01), (10, 0, 0.01), (44, 0, 0))
    assert dynamics.rollout(np.array([0.0, 0, 0, 10]), over.control)[-1, 1] < -0.8
    assert values("off_road", scene, over, said(STRAIGHT, (64, 0, 0)), said(None)) == [1, 0, 1]


def test_infeasible_is_the_share_of_ticks_beyond_grip():
    # 10 m/s and κ = 0.1: 10 m/s² across > 8.8, for 16 of 64 ticks. With 4 m/s² of braking the friction circle is
    # left too: hypot(8, 4) = 8.94 for κ = 0.08 at the first tick; then the speed falls: 8·(9.6/10)² = 7.37, fine.
    scene = road(moving(0, 0, 10))
    shares = values(
        "infeasible",
        scene,
        said(STRAIGHT, (16, 0, 0.1), (48, 0, 0)),
        said(STRAIGHT, (1, -4, 0.08), (1, -4, 0.08), (62, 0, 0)),
        said(STRAIGHT, (64, 9.8, 0)),
        said(STRAIGHT, (63, 0, 0), (1, 0, 0.3)),
        said(None),
    )
    assert shares == [16 / 64, 1 / 64, 1, 1 / 64, 1]


# --- the terms together ---


def test_terms_know_their_sign_and_are_switched_one_by_one():
    for name, term in TERMS.items():
        chosen = {t.name: t.weight for t in terms({name: 2.0})}
        assert set(chosen) == set(TERMS)
        assert chosen.pop(name) == (2.0 if term.better == "higher" else -2.0)
        assert not any(chosen.values())
    assert {t.name: abs(t.weight) for t in terms()} == {name: term.weight for name, term in TERMS.items()}


def test_a_switched_off_term_is_logged_and_decides_nothing():
    scene = road(moving(0, 0, 10), moving(30, 0, 5))
    group = outcomes_of(
        scene, [said(STRAIGHT, (64, 0, 0)), said(STRAIGHT, (25, -2, 0), (39, 0, 0))], expert(scene)
    )
    result = score(terms({"collision": 1.0}), {"outcomes": group}, [0, 0])
    assert set(result.terms) == set(TERMS)
    assert result.total == [-1.0, 0.0]
    assert result.terms["consistency"] == [1.0, 0.0]


def test_weights_that_cannot_be():
    with pytest.raises(ValueError, match="did you mean 'collision'"):
        terms({"colision": 1.0})
    for weight in (-1.0, float("nan")):
        with pytest.raises(ValueError, match=">= 0"):
            terms({"l2": weight})


def test_values_stay_in_their_ranges():
    rng = np.random.default_rng(0)
    scene = road(moving(0, 0, 10), moving(30, 0, 5), moving(-10, 3.5, 12))
    answers = [said(None), said(STRAIGHT, (64, -9.8, 0.2)), said(STRAIGHT, (64, 9.8, -0.2))]
    answers += [
        Answer(STRAIGHT, parse(STRAIGHT), rng.uniform(-1, 1, (64, 2)) * [9.8, 0.2]) for _ in range(20)
    ]
    for term in TERMS.values():
        found = term.function(outcomes_of(scene, answers, expert(scene)))
        assert all(term.low <= value <= term.high for value in found)


def test_without_a_reference_trace_quality_does_not_apply():
    scene = road(moving(0, 0, 10))
    group = outcomes_of(scene, [said(STRAIGHT, (64, 0, 0)), said(None)], expert(scene, None))
    assert rewards.quality(group) == [None, None]
    result = score(terms({"quality": 1, "consistency": 1}), {"outcomes": group}, [0, 0])
    assert result.total == [1.0, 0.0]


def test_a_log_that_is_too_short_is_named():
    scene = road(moving(0, 0, 10), now=NOW + 1)
    with pytest.raises(SceneError, match="63 steps after now"):
        outcomes_of(scene, [said(STRAIGHT, (64, 0, 0))], expert(scene))


# --- the check of a reward's direction ---


def graded(scene, *answers, text=STRAIGHT):
    return {"outcomes": outcomes_of(scene, answers, expert(scene, text))}


def ladders():
    """For each term, examples from the worst to the best of what it is about."""
    free, lead = road(moving(0, 0, 10)), road(moving(0, 0, 10), moving(30, 0, 5))
    keep, none = "track set speed because speed limit; keep lane because route ahead.", said(None)
    steady, brake = said(keep, (64, 0, 0)), said(keep, (25, -2, 0), (39, 0, 0))
    texts = [
        "yield because cyclist; turn left.",
        "track set speed; turn left.",
        "track set speed; keep lane.",
        keep,
    ]
    yield "quality", graded(free, none, *(said(text, (64, 0, 0)) for text in texts))
    yield "consistency", graded(free, none, said("stop; turn left.", (64, 0, 0)), steady)
    yield "l2", graded(free, none, *(said(keep, (64, a, 0)) for a in (9.8, 3, 1, 0.2, 0)))
    yield "lag", graded(free, none, *(said(keep, (64, a, 0)) for a in (-1.5, -1, -0.5, 0)))
    yield "hesitation", graded(free, none, *(said(keep, (64, a, 0)) for a in (-1.5, -1, -0.5, 0)))
    yield "jerk", graded(free, none, *(said(keep, (32, a, 0), (32, -a, 0)) for a in (9, 3, 1, 0)))
    yield "collision", graded(lead, none, steady, brake)
    yield "close_encounter", graded(lead, none, steady, brake)
    yield "off_road", graded(free, none, said(keep, (64, 0, 0.1)), steady)
    yield (
        "infeasible",
        graded(free, none, *(said(keep, (n, 0, 0.2), (64 - n, 0, 0)) for n in (60, 30, 4)), steady),
    )


@pytest.mark.parametrize("name", TERMS)
def test_every_term_rises_with_what_it_is_about(name):
    rows = dict(ladders())[name]
    (term,) = (t for t in terms() if t.name == name)
    ladder = range(len(rows["outcomes"]))
    assert falling(term, rows, ladder) == []
    upside_down = RewardTerm(term.name, term.function, -term.weight)
    assert falling(upside_down, rows, ladder)
    worst, *_, best = term.function(rows["outcomes"])
    assert term.weight * best > term.weight * worst
