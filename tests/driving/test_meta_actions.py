"""Meta-actions: each rule at its threshold, the segmentation by hand, and mirror images."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest

from outdo.driving import dynamics
from outdo.driving.meta_actions import (
    Across,
    Along,
    Segment,
    lateral_action,
    longitudinal_action,
    meta_actions,
)
from outdo.driving.scene import HORIZON


@pytest.mark.parametrize(
    ("speed", "acceleration", "change", "action"),
    [  # the table of driving.md, each threshold from both sides
        (-0.12, 0, 0, Along.REVERSE),
        (-0.12, 3, 3, Along.REVERSE),
        (-0.119, 3, 3, Along.STOP),
        (0.12, 2, 2, Along.STOP),
        (0.121, 1.4, 0.8, Along.STRONG_ACCELERATION),
        (5, 1.4, 0.79, Along.MAINTAIN),
        (5, 1.399, 0.8, Along.GENTLE_ACCELERATION),
        (5, 0.15, 0.8, Along.GENTLE_ACCELERATION),
        (5, 0.149, 0.8, Along.MAINTAIN),
        (5, -1.4, -0.8, Along.STRONG_DECELERATION),
        (5, -1.4, -0.79, Along.MAINTAIN),
        (5, -1.399, -0.8, Along.GENTLE_DECELERATION),
        (5, -0.15, -0.8, Along.GENTLE_DECELERATION),
        (5, -0.149, -0.8, Along.MAINTAIN),
        (5, 0, 0, Along.MAINTAIN),
    ],
)
def test_longitudinal_rules(speed, acceleration, change, action):
    assert longitudinal_action(speed, acceleration, change) is action


@pytest.mark.parametrize(
    ("speed", "rate", "turn", "left", "right"),
    [
        (-0.1, 0.002, 0.2, Across.REVERSE_LEFT, Across.REVERSE_RIGHT),
        (-0.1, 0.06, 0.2, Across.REVERSE_LEFT, Across.REVERSE_RIGHT),
        (-0.099, 0.002, 0.2, Across.LEFT, Across.RIGHT),
        (-0.1, 0.0019, 0.2, Across.LEFT, Across.RIGHT),
        (-0.1, 0.002, 0.19, Across.LEFT, Across.RIGHT),
        (5, 0.05, 0.2, Across.SHARP_LEFT, Across.SHARP_RIGHT),
        (5, 0.049, 0.2, Across.LEFT, Across.RIGHT),
        (5, 0.05, 0.199, Across.LEFT, Across.RIGHT),
        (5, 0.0015, 0.015, Across.LEFT, Across.RIGHT),
        (5, 0.0014, 0.015, Across.STRAIGHT, Across.STRAIGHT),
        (5, 0.0015, 0.0149, Across.STRAIGHT, Across.STRAIGHT),
    ],
)
def test_lateral_rules_and_their_mirror(speed, rate, turn, left, right):
    assert lateral_action(speed, rate, turn) is left
    assert lateral_action(speed, -rate, -turn) is right


def path(speed, *parts):
    """States under (ticks, acceleration, curvature) one after the other."""
    control = np.concatenate([np.tile([a, kappa], (ticks, 1)) for ticks, a, kappa in parts]).astype(float)
    assert len(control) == HORIZON
    return dynamics.rollout(np.array([0.0, 0.0, 0.3, speed]), control)


def longitudinal(speed, *parts):
    return [tuple(s) for s in meta_actions(path(speed, *parts)).longitudinal]


def lateral(speed, *parts):
    return [tuple(s) for s in meta_actions(path(speed, *parts)).lateral]


def test_three_phases_by_hand():
    # −2 m/s² for 2 s: Δv = −4 m/s, strong; +1 for 2.4 s: Δv = 2.4, gentle
    assert longitudinal(10, (20, 0, 0), (20, -2, 0), (24, 1, 0)) == [
        (Along.MAINTAIN, 0, 20),
        (Along.STRONG_DECELERATION, 20, 40),
        (Along.GENTLE_ACCELERATION, 40, 64),
    ]


def test_a_short_segment_between_equal_ones_is_absorbed():
    # −1 m/s² for 7 ticks: Δv = −0.7, so still maintain; and shorter than 8
    assert longitudinal(10, (30, 0, 0), (7, -1, 0), (27, 0, 0)) == [(Along.MAINTAIN, 0, 64)]
    # 8 ticks of −1.5: Δv = −1.2, strong, and long enough to stay
    assert longitudinal(10, (30, 0, 0), (8, -1.5, 0), (26, 0, 0)) == [
        (Along.MAINTAIN, 0, 30),
        (Along.STRONG_DECELERATION, 30, 38),
        (Along.MAINTAIN, 38, 64),
    ]


def test_a_short_segment_between_different_ones_is_split():
    # 10 ticks of maintain (< 12) between strong acceleration and strong deceleration: five each.
    # (2·2.0)/(2.5) = 1.6 and (−2·2.9)/(3.4) = −1.7: both stay strong
    assert longitudinal(10, (20, 2, 0), (10, 0, 0), (34, -2, 0)) == [
        (Along.STRONG_ACCELERATION, 0, 25),
        (Along.STRONG_DECELERATION, 25, 64),
    ]
    # 12 ticks are long enough to maintain
    assert longitudinal(10, (20, 2, 0), (12, 0, 0), (32, -2, 0))[1] == (Along.MAINTAIN, 20, 32)


def test_a_short_segment_at_an_end_goes_to_its_only_neighbour():
    assert longitudinal(10, (7, 0, 0), (57, -2, 0)) == [(Along.STRONG_DECELERATION, 0, 64)]
    assert longitudinal(10, (57, -1.5, 0), (7, 0, 0)) == [
        (Along.GENTLE_DECELERATION, 0, 64)
    ]  # −8.55/6.4 = −1.34


def test_lateral_segments_need_ten_ticks():
    # κ = 0.01 at 10 m/s: 0.1 rad/s; 9 ticks turn 0.09 rad and are split, 10 stay
    assert lateral(10, (30, 0, 0), (10, 0, 0.01), (24, 0, -0.01)) == [
        (Across.STRAIGHT, 0, 30),
        (Across.LEFT, 30, 40),
        (Across.RIGHT, 40, 64),
    ]
    assert lateral(10, (30, 0, 0), (9, 0, 0.01), (25, 0, -0.01)) == [
        (Across.STRAIGHT, 0, 35),
        (Across.RIGHT, 35, 64),
    ]


def test_sharp_and_gentle_steering_are_cut_apart():
    # κ = 0.1 for 2 s at 5 m/s: 1 rad at 0.1 rad/m, sharp; κ = 0.01 for 4.4 s: 0.22 rad at 0.01 rad/m
    assert lateral(5, (20, 0, -0.1), (44, 0, -0.01)) == [(Across.SHARP_RIGHT, 0, 20), (Across.RIGHT, 20, 64)]


def test_standing_and_reversing():
    assert longitudinal(0, (64, 0, 0.2)) == [(Along.STOP, 0, 64)]
    assert lateral(0, (64, 0, 0.2)) == [(Across.STRAIGHT, 0, 64)]
    # backwards with κ > 0 the heading falls: the car turns clockwise, right
    assert longitudinal(-1, (64, 0, 0.1)) == [(Along.REVERSE, 0, 64)]
    assert lateral(-1, (64, 0, 0.1)) == [(Across.REVERSE_RIGHT, 0, 64)]


def test_braking_to_a_stop_then_standing():
    # from 4 m/s at −2 m/s² it stands after 20 ticks; below 0.3 m/s (the last two) a cut, absorbed or split
    (first, second) = longitudinal(4, (20, -2, 0), (44, 0, 0))
    assert first[0] is Along.STRONG_DECELERATION
    assert second[0] is Along.STOP
    assert abs(first[2] - 20) <= 2


def test_alternating_tokens_are_named_by_what_they_add_up_to():
    # 1.1 and 1.5 m/s² in turn cross 1.25 at every tick: mean 1.3, gentle; the same for curvatures around 0
    control = np.zeros((HORIZON, 2))
    control[:, 0] = np.where(np.arange(HORIZON) % 2, 1.1, 1.5)
    control[:, 1] = np.where(np.arange(HORIZON) % 2, 0.003, -0.003)
    found = meta_actions(dynamics.rollout(np.array([0.0, 0.0, 0.0, 5.0]), control))
    assert found.longitudinal == (Segment(Along.GENTLE_ACCELERATION, 0, 64),)
    assert found.lateral == (Segment(Across.STRAIGHT, 0, 64),)


MIRROR = {
    Across.LEFT: Across.RIGHT,
    Across.SHARP_LEFT: Across.SHARP_RIGHT,
    Across.REVERSE_LEFT: Across.REVERSE_RIGHT,
    Across.STRAIGHT: Across.STRAIGHT,
}
MIRROR |= {b: a for a, b in MIRROR.items()}


def random_paths(count):
    rng = np.random.default_rng(0)
    for _ in range(count):
        hold = int(rng.choice([1, 2, 4, 8, 16]))
        control = rng.normal(size=(HORIZON // hold, 2)).repeat(hold, 0) * [1.5, 0.03]
        start = np.array([0.0, 0.0, rng.uniform(-4, 4), rng.uniform(0, 15)])
        yield start, control


def test_segments_cover_all_ticks_and_satisfy_the_rules():
    shortest = {Along.MAINTAIN: 12, **dict.fromkeys(MIRROR, 10)}
    for start, control in random_paths(100):
        states = dynamics.rollout(start, control)
        found = meta_actions(states)
        for axis in (found.longitudinal, found.lateral):
            assert [s.start for s in axis] == [0, *(s.end for s in axis[:-1])]
            assert axis[-1].end == HORIZON
            assert all(one.action != two.action for one, two in pairwise(axis))
            assert len(axis) == 1 or all(s.end - s.start >= shortest.get(s.action, 8) for s in axis)
        for action, begin, end in found.longitudinal:
            piece = control[begin:end, 0]
            mean_speed = (states[begin:end, 3] + states[begin + 1 : end + 1, 3]).mean() / 2
            assert longitudinal_action(mean_speed, piece.mean(), piece.sum() * 0.1) is action


def test_mirrored_paths_have_mirrored_actions():
    for start, control in random_paths(50):
        there = meta_actions(dynamics.rollout(start, control))
        mirrored = meta_actions(dynamics.rollout(start * [1, 1, -1, 1], control * [1, -1]))
        assert mirrored.longitudinal == there.longitudinal
        assert mirrored.lateral == tuple(s._replace(action=MIRROR[s.action]) for s in there.lateral)


def test_wrapped_headings_change_nothing():
    states = path(8, (64, 0.5, 0.05))
    wrapped = states.copy()
    wrapped[:, 2] = dynamics.wrap(states[:, 2] + 1.5)  # from 1.8 rad across π
    assert np.ptp(wrapped[:, 2]) > 6
    assert meta_actions(wrapped) == meta_actions(states)


def test_what_is_no_path_is_refused():
    with pytest.raises(ValueError, match="state 3"):
        meta_actions(np.where(np.arange(5)[:, None] == 3, np.nan, np.zeros((5, 4))))
    with pytest.raises(ValueError, match="H \\+ 1"):
        meta_actions(np.zeros((1, 4)))


def test_in_words():
    assert str(meta_actions(path(10, (20, 0, 0), (44, -2, 0)))) == (
        "maintain speed 0.0–2.0 s, strong deceleration 2.0–6.4 s\ngo straight 0.0–6.4 s"
    )
