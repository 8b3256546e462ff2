"""States that a policy drives to: by hand for a driver who brakes, and where there is nothing to visit."""

from __future__ import annotations

import numpy as np
import pytest
from fake_driver import FakeDriver
from roads import HORIZON, NOW, moving, road

from outdo.driving.expert import run
from outdo.driving.generator import generate
from outdo.driving.reasoning import parse
from outdo.driving.tokens import END
from outdo.driving.visited import EVERY, visited

STEPS = NOW + 1 + 2 * HORIZON
KEEP = parse("track set speed; keep lane.")


def braking(a):
    """A driver who plans a constant acceleration at every plan."""

    def answer(policy, seen, n, key):
        control = np.tile([a, 0.0], (1, HORIZON, 1))
        speed = np.array([float(seen.agents[n, 0, -1, 3])])
        return policy.vocabulary.write(KEEP, policy.vocabulary.code.encode(speed, control)[0])

    return FakeDriver(answer)


def alone(speed=10.0, steps=STEPS, **changes):
    return road(moving(0, 0, speed, steps=steps), **changes)


def test_the_state_is_where_the_policy_got_to_by_hand():
    scenes = [alone()] * 40
    found = visited(braking(-0.8), scenes, np.random.default_rng(0))
    steps = set()
    for scene, reference in found:
        t = (scene.now - NOW) * 0.1
        steps.add(scene.now - NOW)
        x, _, _, v = scene.state[0, scene.now]
        assert v == pytest.approx(10 - 0.8 * t)
        assert x == pytest.approx(10 * t - 0.4 * t * t)
        np.testing.assert_array_equal(scene.state[0, : NOW + 1], scenes[0].state[0, : NOW + 1])
        assert scene.future >= HORIZON
        # the expert starts from there, and gets faster again
        np.testing.assert_array_equal(reference.path[0], scene.state[0, scene.now])
        assert reference.path[-1, 3] > v
        assert reference.trace is not None
    assert steps <= set(range(EVERY, HORIZON + 1, EVERY))
    assert len(steps) > 8  # of 12


def test_the_reference_is_the_experts_drive_from_that_state():
    scenes = generate("train", 6, seed=1, future=2 * HORIZON)
    found = [each for each in visited(braking(-0.4), scenes, np.random.default_rng(1)) if each is not None]
    assert len(found) >= 3
    record, traces = run([scene for scene, _ in found])
    for n, (_, reference) in enumerate(found):
        np.testing.assert_array_equal(reference.path, record.state[n, :, 0])
        assert reference.trace == traces[n]


def test_the_last_plan_is_made_at_the_last_state():
    policy = braking(0.0)
    found = visited(policy, [alone()] * 3, np.random.default_rng(3), seed=7, first=4)
    last = max(scene.now - NOW for scene, _ in found)
    keys = [streams for _, _, _, streams in policy.calls]
    assert keys == [[(7, 4 + n, t) for n in range(3)] for t in range(0, last + 1, EVERY)]
    assert all(sampling.temperature == 0 for _, _, sampling, _ in policy.calls)


def test_others_keep_what_they_did_in_the_drive():
    """A reactive vehicle behind the braking ego brakes too, and the state's log says so."""
    behind = moving(-25, 0, 10, steps=STEPS)
    scene = road(moving(0, 0, 10, steps=STEPS), behind)
    (found,) = visited(braking(-0.8), [scene], np.random.default_rng(2))
    at = found[0].now + HORIZON
    assert found[0].state[1, at, 3] < 8


def test_nothing_is_visited_where_there_is_no_time_or_no_ego():
    short = alone(steps=NOW + 1 + HORIZON + EVERY - 1)
    valid = np.ones((1, STEPS), np.bool_)
    valid[0, NOW] = False
    absent = alone(valid=valid, now=NOW + 20)
    policy = braking(0.0)
    assert visited(policy, [short, absent], np.random.default_rng(0)) == [None, None]
    assert not policy.calls
    assert visited(policy, [], np.random.default_rng(0)) == []
    first, second = visited(policy, [absent, alone()], np.random.default_rng(0))
    assert first is None
    assert second is not None


def test_a_short_log_is_just_long_enough():
    (found,) = visited(braking(0.0), [alone(steps=NOW + 1 + HORIZON + EVERY)], np.random.default_rng(0))
    assert (found[0].now, found[0].future) == (NOW + EVERY, HORIZON)


def test_logs_of_different_lengths_are_driven_as_far_as_the_shortest():
    scenes = [alone(), alone(steps=NOW + 1 + HORIZON + EVERY)] * 5
    found = visited(braking(0.0), scenes, np.random.default_rng(0))
    assert {scene.now for scene, _ in found} == {NOW + EVERY}


def test_what_comes_after_trouble_is_not_visited():
    """A wall of a vehicle 30 m ahead: at 10 m/s it is hit after 2.6 s, and half a second before is the last state."""
    wall = moving(30, 0, 0, steps=STEPS)
    scenes = [road(moving(0, 0, 10, steps=STEPS), wall)] * 30
    found = visited(braking(0.0), scenes, np.random.default_rng(0))
    kept = [scene.now - NOW for each in found if each is not None for scene in [each[0]]]
    assert 0 < len(kept) < 20
    assert max(kept) <= 21


def test_a_policy_that_says_nothing_is_driven_by_its_fallback():
    silent = FakeDriver(lambda policy, seen, n, key: [END])
    (found,) = visited(silent, [alone()], np.random.default_rng(0))
    assert found[0].state[0, found[0].now, 3] < 10
