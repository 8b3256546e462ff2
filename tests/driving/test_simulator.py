"""Closed loop: replayed and reactive actors, signals, what is seen; against closed forms and hand arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest
from roads import NOW, STEPS, light, moving, road

from outdo.driving import dynamics
from outdo.driving.scene import HISTORY, HORIZON, Kind, Light, SceneError
from outdo.driving.simulator import Simulator, drive, logged
from outdo.driving.traffic import Idm, idm


def keep(simulator):
    """A plan that keeps the speed."""
    return np.zeros((len(simulator.scenes), HORIZON, 2))


def test_the_ego_is_a_unicycle_and_the_others_are_replayed():
    scene = road(moving(0, 0, 10), moving(30, 3.5, 5), moving(60, 0, 1))
    control = np.random.default_rng(0).uniform([-2, -0.02], [2, 0.02], (1, HORIZON, 2))
    record = drive([scene], lambda s: control[:, s.t : s.t + 1], every=1, reactive=False)
    want = dynamics.rollout(scene.state[0, NOW], control[0])
    np.testing.assert_allclose(record.state[0, :, 0], want, atol=1e-9)
    np.testing.assert_array_equal(record.state[0, :, 1:], scene.state[1:, NOW:].transpose(1, 0, 2))
    np.testing.assert_array_equal(record.control, control)


def test_plans_are_held_between_replans():
    scene = road(moving(0, 0, 10))
    plans = np.arange(13 * HORIZON).reshape(13, HORIZON) * 1e-3
    calls = iter(plans)
    record = drive([scene], lambda _: np.stack([next(calls), np.zeros(HORIZON)], -1)[None], every=5)
    assert record.plans.shape == (1, 13, HORIZON, 2)
    np.testing.assert_array_equal(record.control[0, :, 0], [plans[t // 5, t % 5] for t in range(HORIZON)])


def test_scenes_of_different_size_do_not_touch_each_other():
    one = road(moving(0, 0, 10), moving(20, 0, 4))
    two = road(moving(0, 0, 8), moving(30, 0, 4), moving(50, 0, 4), moving(20, 3.5, 9), signals=(light(80),))
    both = drive([one, two], keep)
    for n, scene in enumerate((one, two)):
        alone = drive([scene], keep)
        np.testing.assert_array_equal(both.state[n, :, : scene.actors], alone.state[0])
        assert both.valid[n, :, : scene.actors].all()
    assert not both.valid[0, :, 2:].any()
    assert np.isnan(both.state[0, :, 2:]).all()


def test_actors_with_gaps():
    # Actor 1 is missing at steps 30 to 39 of the log: replayed it is absent then, reacting it drives on.
    valid = np.ones((2, STEPS), np.bool_)
    valid[1, 30:40] = False
    scene = road(moving(0, 0, 10), moving(40, 0, 10), valid=valid)
    record = drive([scene], keep, reactive=False)
    np.testing.assert_array_equal(record.valid[0, :, 1], valid[1, NOW:])
    record = drive([scene], keep)
    assert record.valid[0, :, 1].all()
    np.testing.assert_allclose(record.state[0, :, 1, 0], 40 + np.arange(HORIZON + 1), atol=1e-6)


def test_reactive_vehicles_alone_drive_their_log():
    # A bend of radius 50 m while braking from 12 to about 4 m/s; nothing else within reach.
    control = np.tile([-1.2, 0.02], (STEPS - 1, 1))
    log = dynamics.rollout(np.array([0.0, 100.0, 0.3, 13.0]), control)
    record = drive([road(moving(0, 0, 10), log)], keep)
    np.testing.assert_allclose(record.state[0, :, 1], log[NOW:], atol=0.02)


def test_idm_by_hand():
    # v = 10, v0 = 20, gap 25, Δv = 2, T = 1.5, s0 = 2, a = 1.5, b = 2: 2√(ab) = 3.46410
    # s* = 2 + 15 + 20/3.46410 = 22.77350; 1.5·(1 − 1/16 − (22.77350/25)²) = 1.5·(0.9375 − 0.829812) = 0.161532
    assert idm(10.0, 20.0, 25.0, 2.0, Idm()) == pytest.approx(0.161532, abs=1e-6)
    assert idm(10.0, 20.0, math.inf, 0.0, Idm()) == pytest.approx(1.5 * 15 / 16)


def test_a_follower_settles_at_the_equilibrium_gap():
    # Behind an ego at 8 m/s, wanting 10 m/s (v0 = 12): v = 8 asks for
    # s = (s0 + vT)/√(1 − (v/v0)⁴) = 14/√(1 − 0.197531) = 15.6286 m between bumpers. Long log: 60 s.
    steps = 600
    t = np.arange(steps + HISTORY) - NOW

    def log(x, v):
        return np.stack([x + v * t * 0.1, 0 * t, 0 * t, v + 0 * t], -1)

    scene = road(log(0.0, 8.0), log(-30.0, 10.0))
    record = drive([scene], lambda s: np.zeros((1, 5, 2)), steps=steps)
    end = record.state[0, -1]
    assert end[1, 3] == pytest.approx(8.0, abs=0.02)
    assert end[0, 0] - end[1, 0] - 4.0 == pytest.approx(15.6286, abs=0.3)


def test_reactive_vehicles_do_not_run_into_a_standing_ego_replayed_ones_do():
    scene = road(moving(0, 0, 0), moving(-60, 0, 12))
    gap = 60 - (drive([scene], keep).state[0, :, 1, 0] + 60) - 4
    assert 1 < gap.min() < 8
    assert drive([scene], keep, reactive=False).state[0, -1, 1, 0] > 0


def test_reactive_vehicles_see_round_the_bend():
    # A half circle of radius 15 m at 8 m/s; the ego stands on it, a third (36 m of arc) or two thirds of the way on.
    log = dynamics.rollout(np.array([0.0, 0.0, 0.0, 8.0]), np.tile([0.0, 1 / 15], (STEPS - 1, 1)))
    log[:, :2] -= log[NOW, :2]
    for step in (NOW + 35, NOW + 50):
        ego = np.tile(log[step], (STEPS, 1))
        ego[:, 3] = 0.0
        path = drive([road(ego, log)], keep).state[0, :, 1]
        assert 4.0 < np.hypot(*(path[:, :2] - log[step, :2]).T).min() < 9


def test_reactive_vehicles_pass_the_ego_in_the_next_lane():
    scene = road(moving(0, 0, 0), moving(-60, 3.5, 12))
    np.testing.assert_allclose(drive([scene], keep).state[0, :, 1], scene.state[1, NOW:], atol=1e-6)


@pytest.mark.parametrize(
    ("state", "stops"), [(Light.RED, True), (Light.GREEN, False), (Light.DARK, False), (Light.YELLOW, True)]
)
def test_lights(state, stops):
    # The actor's front bumper is 48 m before the line, at 10 m/s: 100/96 = 1.04 m/s² is a comfortable stop.
    scene = road(moving(-100, 3.5, 0), moving(0, 0, 10), signals=(light(50, state),))
    front = drive([scene], keep).state[0, -1, 1, 0] + 2
    assert (front < 50) if stops else front == pytest.approx(66)


def test_yellow_is_passed_where_stopping_is_too_hard():
    # 8 m at 10 m/s would need 6.25 m/s²
    scene = road(moving(-100, 3.5, 0), moving(0, 0, 10), signals=(light(10, Light.YELLOW),))
    assert drive([scene], keep).state[0, -1, 1, 0] == pytest.approx(64)


def test_a_stop_sign_is_obeyed_once():
    steps = 200
    t = np.arange(steps + HISTORY) - NOW
    logs = [
        np.stack([x + v * t * 0.1, y + 0 * t, 0 * t, v + 0 * t], -1)
        for x, y, v in ((-100, 3.5, 0), (0, 0, 8))
    ]
    sign = light(40, Light.STOP_SIGN)
    sign = type(sign)(sign.lane, sign.stop_line, np.full(len(t), Light.STOP_SIGN, np.int8))
    path = drive([road(*logs, signals=(sign,))], keep, steps=steps).state[0, :, 1]
    assert path[:, 3].min() < 0.3
    assert 36 < path[np.argmin(path[:, 3]), 0] + 2 < 40  # where it stood
    assert path[-1, 0] > 60


def test_a_light_for_the_other_direction_is_ignored():
    scene = road(moving(-100, 3.5, 0), moving(50, 0, 10, math.pi), signals=(light(20),))
    assert drive([scene], keep).state[0, -1, 1, 0] == pytest.approx(50 - 64)


def test_pedestrians_are_replayed():
    scene = road(moving(0, 0, 0), moving(-20, 0, 5), kinds=[Kind.VEHICLE, Kind.PEDESTRIAN])
    np.testing.assert_array_equal(drive([scene], keep).state[0, :, 1], scene.state[1, NOW:])


def test_observation_is_in_the_frame_of_the_ego():
    # The ego at (10, 3.5) looks along +y; (12, 8.5) is 5 m ahead and 2 m to the right.
    ego, other = moving(10, 3.5, 2, math.pi / 2), moving(12, 8.5, 3, -math.pi / 2)
    scene = road(ego, other, signals=(light(50),))
    seen = Simulator([scene]).observe()
    assert seen.agents.shape == (1, 2, HISTORY, 4)
    np.testing.assert_allclose(seen.agents[0, 0, -1], [0, 0, 0, 2], atol=1e-6)
    np.testing.assert_allclose(seen.agents[0, 1, -1], [5, -2, -math.pi, 3], atol=1e-5)
    # 1.5 s earlier the ego was 3 m behind, the other 4.5 m further ahead
    np.testing.assert_allclose(seen.agents[0, 0, 0, :2], [-3, 0], atol=1e-5)
    np.testing.assert_allclose(seen.agents[0, 1, 0, :2], [9.5, -2], atol=1e-5)
    assert seen.offset[0] == pytest.approx(3.5)
    assert seen.speed_limit[0] == 15
    # The route is the x axis: points at x = 4k − 200, the first beyond x = 10 is 12, 2 m right and 3.5 m behind.
    np.testing.assert_allclose(seen.route[0, 0], [-3.5, -2], atol=1e-5)
    assert seen.stop_distance[0] == pytest.approx(50 - 10 - 2)
    assert seen.light[0] == Light.RED
    there = seen.lane_present[0]
    world = seen.lanes[0, there].reshape(-1, 2)
    x, y = 10 - world[:, 1], 3.5 + world[:, 0]
    assert np.isin(np.round(y, 3), [0.0, 3.5]).all()
    assert (np.abs(x) < 620).all()


def test_what_is_absent_is_zero_and_marked():
    valid = np.ones((2, STEPS), np.bool_)
    valid[1, :10] = False
    seen = Simulator([road(moving(0, 0, 5), moving(9, 0, 5), valid=valid), road(moving(0, 0, 5))]).observe()
    np.testing.assert_array_equal(seen.present[0, 1], valid[1, : NOW + 1])
    assert not seen.present[1, 1].any()
    assert (seen.agents[~seen.present] == 0).all()
    for name in ("agents", "lanes", "route", "offset", "stop_distance"):
        assert np.isfinite(getattr(seen, name)).all()
    assert seen.light.tolist() == [Light.DARK, Light.DARK]


def test_observations_follow_the_drive():
    simulator = Simulator([road(moving(0, 0, 10))])
    for _ in range(20):
        simulator.step(np.array([[0.0, 0.0]]))
    np.testing.assert_allclose(simulator.observe().agents[0, 0, :, 0], np.arange(-15, 1), atol=1e-4)


def test_bad_use_is_named():
    scene = road(moving(0, 0, 10))
    with pytest.raises(SceneError, match="'straight': its log has 64 steps after now, 65 are simulated"):
        Simulator([scene], steps=65)
    with pytest.raises(SceneError, match="nothing to simulate"):
        Simulator([])
    simulator = Simulator([scene], steps=1)
    with pytest.raises(ValueError, match="control must be finite"):
        simulator.step(np.array([[np.nan, 0]]))
    simulator.step(np.zeros((1, 2)))
    with pytest.raises(RuntimeError, match="ended after its 1 steps"):
        simulator.step(np.zeros((1, 2)))
    with pytest.raises(ValueError, match=r"a plan must be \[1, H >= 5, 2\]"):
        drive([scene], lambda _: np.zeros((1, 4, 2)))
    with pytest.raises(ValueError, match="every must be 1 to 5"):
        drive([scene], keep, every=6)


def test_logs_as_drives():
    scene = road(moving(0, 0, 10), moving(30, 0, 5))
    record = logged([scene])
    np.testing.assert_array_equal(record.state[0], scene.state[:, NOW:].transpose(1, 0, 2))
    valid = np.ones((1, STEPS), np.bool_)
    valid[0, 50] = False
    with pytest.raises(SceneError, match="the ego's log has a gap at step 50"):
        logged([road(moving(0, 0, 10), valid=valid)])
