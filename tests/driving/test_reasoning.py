"""The grammar of traces: every trace survives writing and parsing, every other text is refused with its reason."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from roads import NOW, light, moving, road

from outdo.driving.reasoning import (
    SIDED,
    WORDS,
    Cause,
    Component,
    Lateral,
    Longitudinal,
    Side,
    Trace,
    TraceError,
    observed,
    parse,
    text_of,
    words,
)
from outdo.driving.scene import Kind, Light


def every_clause():
    """All (longitudinal, cause) and all (lateral, side, cause), each with and without a cause, and none at all."""
    causes = [None, *Cause]
    along = [(None, None), *itertools.product(Longitudinal, causes)]
    sides = [(a, s) for a in Lateral for s in (Side if a in SIDED else [None])]
    across = [(None, None, None), *((a, s, c) for a, s in sides for c in causes)]
    return along, across


def test_numbers_of_decisions_and_components():
    assert (len(Longitudinal), len(Lateral), len(Component)) == (7, 8, 6)  # driving.md
    assert {cause.component for cause in Cause} == set(Component)


def test_every_trace_survives():
    along, across = every_clause()
    seen = set()
    for a, b in itertools.product(along, across):
        if a[0] is None and b[0] is None:
            continue
        trace = Trace(*a, *b)
        text = str(trace)
        assert parse(text) == trace
        assert text_of(words(text)) == text
        seen.add(text)
    # 7·28 + 1 = 197 ways along, (6·2 + 2)·28 + 1 = 393 across, less the empty one: no two share a text
    assert len(seen) == 197 * 393 - 1


def test_a_text_by_hand():
    trace = parse("yield because crossing pedestrian; nudge in lane left because parked vehicle.")
    assert trace == Trace(
        Longitudinal.YIELD, Cause.PEDESTRIAN, Lateral.NUDGE_IN, Side.LEFT, Cause.PARKED_VEHICLE
    )


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("stop", "full stop"),
        ("stop. ", "full stop"),
        (".", "unknown decision ''"),
        ("stop because red lamp.", "unknown cause 'red lamp'; did you mean 'red light'"),
        ("stop because.", "unknown decision 'stop because'"),
        ("stop because red light because red light.", "unknown cause"),
        ("stop because red light and stop sign.", "unknown cause"),
        ("stop; yield.", "two longitudinal"),
        ("keep lane; turn left.", "two lateral"),
        ("keep lane; stop.", "comes first"),
        ("stop; keep lane; yield.", "3 decisions"),
        ("turn.", "needs a side"),
        ("keep lane left.", "has no side"),
        ("abort manoeuvre right.", "has no side"),
        ("left.", "unknown decision"),
        ("Stop.", "unknown decision"),
        ("stop;keep lane.", "unknown decision"),
        ("stop ; keep lane.", "unknown decision"),
        ("stop  because red light.", "unknown decision"),
        ("stop.\n", "full stop"),
        ("stop..", "unknown decision"),
        ("<trajectory>.", "unknown decision"),
    ],
)
def test_other_texts_are_refused_with_a_reason(text, reason):
    with pytest.raises(TraceError, match=reason.replace(".", r"\.")):
        parse(text)


def test_random_words_never_parse_to_something_else():
    chance = random.Random(0)
    parsed = 0
    for _ in range(20_000):
        text = text_of([*chance.choices(WORDS, k=chance.randint(1, 6)), "."])
        try:
            trace = parse(text)
        except TraceError:
            continue
        parsed += 1
        assert str(trace) == text
    assert parsed > 20


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"longitudinal_cause": Cause.RED_LIGHT},
        {"longitudinal": Longitudinal.STOP, "side": Side.LEFT},
        {"longitudinal": Longitudinal.STOP, "lateral_cause": Cause.RED_LIGHT},
        {"lateral": Lateral.TURN},
        {"lateral": Lateral.KEEP_LANE, "side": Side.LEFT},
    ],
)
def test_what_the_grammar_cannot_say_is_no_trace(fields):
    with pytest.raises(TraceError):
        Trace(**fields)


def test_causes_lie_in_the_observed_history():
    valid = np.ones((3, 80), np.bool_)
    valid[1, : NOW + 1] = False  # a pedestrian who appears after now
    scene = road(
        moving(0, 0, 10),
        moving(30, 2, 1),
        moving(40, 0, 10),
        kinds=[Kind.VEHICLE, Kind.PEDESTRIAN, Kind.VEHICLE],
        valid=valid,
        signals=(light(60, Light.GREEN),),
    )
    assert not observed(Cause.PEDESTRIAN, scene)
    assert observed(Cause.LEAD_VEHICLE, scene)
    assert not observed(Cause.STOPPED_VEHICLE, scene)  # it drives at 10 m/s
    assert not observed(Cause.CYCLIST, scene)
    assert observed(Cause.GREEN_LIGHT, scene)
    assert not observed(Cause.RED_LIGHT, scene)
    assert observed(Cause.ROUTE_LEFT, scene)
    valid[1, NOW] = True
    assert observed(
        Cause.PEDESTRIAN,
        road(moving(0, 0, 10), moving(30, 2, 1), moving(40, 0, 10), kinds=[0, 1, 0], valid=valid),
    )


def test_a_light_that_turns_red_later_is_no_cause_now():
    late = light(60, Light.GREEN)
    late.states[NOW + 1 :] = Light.RED
    early = light(60, Light.GREEN)
    early.states[:NOW] = Light.RED
    assert not observed(Cause.RED_LIGHT, road(moving(0, 0, 10), signals=(late,)))
    assert observed(Cause.RED_LIGHT, road(moving(0, 0, 10), signals=(early,)))


def test_parked_means_standing_and_the_ego_is_no_cause():
    assert observed(Cause.PARKED_VEHICLE, road(moving(0, 0, 10), moving(30, 2, 0)))
    assert not observed(Cause.PARKED_VEHICLE, road(moving(0, 0, 0)))
