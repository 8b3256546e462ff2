"""Closed-loop figures on drives whose right answer is plain, and on the ways such figures are hacked."""

from __future__ import annotations

import math

import numpy as np
import pytest
from roads import NOW, STEPS, box, light, moving, road

from outdo.driving import kernels, metrics
from outdo.driving.measures import at_fault, measure
from outdo.driving.scene import HORIZON, Kind, Lane, Light
from outdo.driving.simulator import drive, logged


def hold(a=0.0, kappa=0.0):
    return lambda simulator: np.tile([a, kappa], (len(simulator.scenes), HORIZON, 1))


def figures(scene, plan=None, **settings):
    """Terms and scores of one scene, driven or (without a plan) as logged."""
    record = logged([scene]) if plan is None else drive([scene], plan, **settings)
    return {name: float(values[0]) for name, values in metrics.evaluate(record).items()}


def measured(scene):
    record = logged([scene])
    return measure(scene, record.state[0], record.valid[0], record.size[0])


def test_a_quiet_drive_scores_full():
    got = figures(road(moving(0, 0, 10), moving(40, 0, 10)))
    for name in ("pdms", "epdms", "nuplan", "alpasim", "ep", "lk"):
        assert got[name] == 1.0, name
    assert got["progress"] == pytest.approx(64.0)
    assert got["l2"] == 0
    assert sum(got[name] for name in (*metrics.RATES, "faulty")) == 0


def test_running_into_a_slower_leader_is_at_fault():
    got = figures(road(moving(0, 0, 10), moving(15, 0, 5)))
    assert (got["collision"], got["at_fault"], got["nc"], got["close_encounter"], got["ttc"]) == (
        1,
        1,
        0,
        1,
        0,
    )
    assert got["pdms"] == got["nuplan"] == got["alpasim"] == 0
    assert got["epdms"] == 1  # the human did it too


def test_running_into_a_leader_that_the_human_did_not_hit():
    log = moving(0, 0, 10)
    log[NOW:, 0], log[NOW:, 3] = np.arange(HORIZON + 1) * 0.5, 5.0
    log[NOW, 3] = 10.0
    got = figures(road(log, moving(15, 0, 5)), hold(), every=5)
    assert (got["at_fault"], got["epdms"]) == (1, 0)


def test_being_run_into_is_not():
    got = figures(road(moving(0, 0, 5), moving(-15, 0, 10)))
    assert (got["collision"], got["at_fault"], got["nc"], got["ttc"]) == (1, 0, 1, 1)


def test_a_standing_ego_is_not_at_fault():
    got = figures(road(moving(0, 0, 0.04), moving(15, 0, 5, math.pi)))
    assert (got["collision"], got["at_fault"], got["close_encounter"]) == (1, 0, 0)


def test_fast_cars_and_small_actors():
    # 30 m/s is 3 m a step, more than a pedestrian is long: the bumper is past it when boxes first overlap.
    for start in np.arange(30, 33, 0.5):
        walker = road(
            moving(0, 0, 30),
            moving(start, 0, 1, math.pi / 2),
            kinds=[0, Kind.PEDESTRIAN],
            sizes=[[4, 2], [0.5, 0.5]],
        )
        walker.state[1, :, 1] = 0.0
        got = figures(walker)
        assert (got["collision"], got["at_fault"], got["nc"]) == (1, 1, 0)


def test_reversing_into_a_follower_is_at_fault():
    got = figures(road(moving(0, 0, -3), moving(-15, 0, 1)))
    assert (got["collision"], got["at_fault"]) == (1, 1)


def sliding(x, y0, y1, speed):
    """Along x, from y0 to y1 within the horizon, always heading along x."""
    log = moving(x, y0, speed)
    t = np.clip((np.arange(STEPS) - NOW) / HORIZON, 0, 1)
    log[:, 1] = y0 + (y1 - y0) * t
    return log


def test_lateral_contact_is_at_fault_only_off_lane():
    assert (
        figures(road(moving(0, 0, 10), sliding(-0.5, 3.5, 0, 10)))["at_fault"] == 0
    )  # cut into the ego's lane
    got = figures(road(sliding(0, 0, 3.5, 10), moving(-0.5, 3.5, 10)))  # the ego drifts into the other lane
    assert (got["collision"], got["at_fault"]) == (1, 1)


def test_objects_cost_half():
    scene = road(
        moving(0, 0, 10), moving(40, 1.5, 0), kinds=[Kind.VEHICLE, Kind.STATIC], sizes=[[4, 2], [1, 1.5]]
    )
    assert at_fault(measured(scene), scene) == 0.5
    assert figures(scene)["nc"] == 0.5


def test_absent_actors_are_no_collision():
    valid = np.ones((2, STEPS), np.bool_)
    valid[1] = False
    scene = road(moving(0, 0, 10), moving(10, 0, 0), valid=valid)
    got = figures(scene)
    assert (got["collision"], got["close_encounter"], got["faulty"]) == (0, 0, 0)
    assert figures(road(moving(0, 0, 10), moving(30, 0, 0)))["collision"] == 1  # the same, present


def test_close_encounters():
    # Passing a parked car: sides at y = 1 and y = 2.6 − w/2; the gap is under 0.5 m for w > 2.2.
    def passing(width, speed=8):
        return road(moving(0, 0, speed), moving(30, 2.6, 0), sizes=[[4, 2], [4, width]])

    assert not measured(passing(2.1)).close.any()  # 0.55 m
    assert measured(passing(2.3)).close.any()  # 0.45 m
    # Time to contact: behind a car at equal speed none; 8 m/s faster it is gap/8: first under 0.9 s below 7.2 m.
    far = road(moving(0, 0, 10), moving(4 + 7.2 + 0.8 + 0.1, 0, 2))
    close = measured(far).close
    assert close[1] == np.False_  # 7.3 m: 0.9125 s
    assert close[2] == np.True_  # 6.5 m


def test_contact_time_against_stepping():
    rng = np.random.default_rng(0)
    size = np.array([4.0, 2.0])
    hits = 0
    for _ in range(200):
        dx, dy, vx, vy = rng.uniform([-15, -15, -15, -15], [15, 15, 15, 15])
        one, two = rng.uniform(-4, 4, 2)
        c = math.cos(one), math.sin(one), math.cos(two), math.sin(two)
        found = kernels.contact_time(dx, dy, vx, vy, *c, size, size)
        times = np.arange(0, 3, 1e-3)
        touching = [kernels.overlap(dx + vx * t, dy + vy * t, *c, size, size) for t in times]
        if found < 2.9:
            hits += 1
            assert times[np.argmax(touching)] == pytest.approx(found, abs=2e-3)
            assert any(touching)
        elif found > 3:
            assert sum(touching) <= 1
    assert hits > 20


def test_off_road_from_the_first_step_is_the_scenes_fault():
    got = figures(road(moving(0, -1.0, 10)))  # its right side is at y = −2, the road ends at −1.75
    assert got["faulty"] == 1
    leaves = figures(road(sliding(0, 0, -2, 10)))
    assert (leaves["faulty"], leaves["off_road"], leaves["dac"], leaves["alpasim"]) == (0, 1, 0, 0)
    assert figures(road(moving(0, 0, 10), moving(2, 0, 10)))["faulty"] == 1  # boxes overlap in the log
    assert figures(road(moving(0, 0, 10), faults=("the map is wrong",)))["faulty"] == 1


def test_red_lights():
    assert figures(road(moving(0, 0, 10), signals=(light(30.5),)))["red_light"] == 1
    assert figures(road(moving(0, 0, 10), signals=(light(30, Light.GREEN),)))["red_light"] == 0
    assert figures(road(moving(0, 0, 10), signals=(light(80),)))["red_light"] == 0  # not reached
    turns = light(30.5)
    turns.states[NOW + 20 :] = Light.GREEN  # the bumper is at 2 + 10·t: it passes 30.5 after step 28
    assert figures(road(moving(0, 0, 10), signals=(turns,)))["red_light"] == 0
    turns.states[NOW + 28 :] = Light.RED
    assert figures(road(moving(0, 0, 10), signals=(turns,)))["red_light"] == 1


def test_standing_still_scores_low():
    scene = road(moving(0, 0, 10), moving(40, 0, 10))
    stops = figures(scene, hold(-9.8), every=1, steps=10)
    assert stops["collision"] == 0
    parked = road(moving(0, 0, 10), moving(40, 0, 10), route=np.array([[0.0, 0], [400, 0]]))
    record = drive([parked], hold(), reactive=False)
    record.state[0, :, 0] = record.state[0, 0, 0]
    record.state[0, :, 0, 3] = 0.0
    got = metrics.evaluate(record)
    assert got["ep"][0] == got["alpasim"][0] == got["nuplan"][0] == 0
    assert got["pdms"][0] == pytest.approx(7 / 12)


def test_progress_can_not_be_had_by_going_further_or_back():
    assert metrics.progress_ratio(80.0, 64.0) == 1.0
    assert metrics.progress_ratio(32.0, 64.0) == 0.5
    assert metrics.progress_ratio(-10.0, 64.0) == 0.0
    assert metrics.progress_ratio(0.0, 5.0) == 1.0  # the reference makes no more than 5 m
    scene = road(moving(0, 0, 10), route=np.array([[0.0, 0], [40, 0]]))
    assert figures(scene)["progress"] == pytest.approx(40.0)  # past the end of the route nothing is added
    back = figures(road(moving(0, 0, 10)), hold(-6.0), every=5)
    assert back["progress"] < 0
    assert back["ep"] == 0


def test_oncoming_lanes():
    ends = np.array([[-200.0, 0.0], [600.0, 0.0]])
    lanes = {
        "a": Lane("a", ends, 3.5, 15.0),
        "o": Lane("o", ends[::-1] + np.array([0, 3.5]), 3.5, 15.0),
    }
    inter = {**lanes, "o": Lane("o", ends[::-1] + np.array([0, 3.5]), 3.5, 15.0, intersection=True)}
    assert figures(road(moving(0, 0, 10), lanes=lanes))["ddc"] == 1
    assert figures(road(moving(0, 3.5, 10), lanes=lanes))["ddc"] == 0  # 10 m in 1 s
    assert figures(road(moving(0, 3.5, 5), lanes=lanes))["ddc"] == 0.5  # 5 m
    assert figures(road(moving(0, 3.5, 1.9), lanes=lanes))["ddc"] == 1
    assert figures(road(moving(0, 3.5, 10), lanes=inter))["ddc"] == 1


def test_lane_keeping_needs_two_seconds():
    off, on, no = np.full(19, 0.6), np.zeros(1), np.zeros(40, np.bool_)
    assert metrics.lane_keeping(np.concatenate([off, on, off, on]), no) == 1
    assert metrics.lane_keeping(np.concatenate([off, [0.6], off, on]), no) == 0
    assert metrics.lane_keeping(np.full(40, 0.6), ~no) == 1
    assert figures(road(moving(0, 0.6, 10)), hold(), every=5)["lk"] == 0


def test_speeding():
    # Limit 15 m/s: at 16.115 the excess is 1.115 = 2.23/2
    assert figures(road(moving(0, 0, 16.115)))["speed"] == pytest.approx(0.5)
    assert figures(road(moving(0, 0, 15)))["speed"] == 1


def test_scores_by_hand():
    one = {name: np.array([value]) for name, value in
           {"nc": 0.5, "dac": 1, "ddc": 0.5, "tlc": 1, "ep": 0.6, "ttc": 1, "lk": 0, "comfort": 0, "ec": 0.5,
            "speed": 0.5, "at_fault": 0, "off_road": 0}.items()}  # fmt: skip
    human = {name: np.ones(1) for name in one}
    # PDMS: ½·(5·0.6 + 5 + 0)/12 = 8/24; EPDMS: ½·½·(3 + 5 + 0 + 0 + 1)/16; nuPlan: ½·½·(3 + 5 + 2 + 0)/16
    assert metrics.pdms(one)[0] == pytest.approx(8 / 24)
    assert metrics.epdms(one, human)[0] == pytest.approx(9 / 64)
    assert metrics.nuplan(one)[0] == pytest.approx(10 / 64)
    assert metrics.alpasim(one)[0] == pytest.approx(0.75)
    # the human fails lane keeping and comfort too: ½·½·(3 + 5 + 2 + 2 + 1)/16
    assert metrics.epdms(one, human | {"lk": np.zeros(1), "comfort": np.zeros(1)})[0] == pytest.approx(
        13 / 64
    )
    assert metrics.nuplan(one | {"ep": np.array([0.19])})[0] == 0


def test_min_ade():
    truth = np.zeros((1, 4, 2))
    shifts = np.array([3.0, -1.0, 2.0])
    candidates = np.zeros((1, 3, 4, 2))
    candidates[..., 0] = shifts[None, :, None]
    assert metrics.min_ade(candidates, truth).tolist() == [1.0]
    mixed = candidates.copy()
    mixed[0, 0, :, 0] = [0, 0, 0, 2]  # mean 0.5
    assert metrics.min_ade(mixed, truth).tolist() == [0.5]


def test_summary_leaves_faulty_scenes_out():
    scenes = [road(moving(0, 0, 10), moving(15, 0, 5)), road(moving(0, 0, 10)), road(moving(0, -1, 10))]
    got = metrics.summary(metrics.evaluate(logged(scenes)))
    assert got["collision"].value == 0.5
    assert got["off_road"].value == 0
    assert got["faulty"].value == pytest.approx(1 / 3)
    assert got["pdms"].value == 0.5
    # Wilson, 1 of 2 at 95 %: 0.5 ± 0.4055
    assert got["collision"].low == pytest.approx(0.0945, abs=1e-3)
    with pytest.raises(ValueError, match="all 1 scenes are at fault"):
        metrics.summary(metrics.evaluate(logged(scenes[2:])))


def test_polygons_can_be_many():
    halves = (box(-200, -1.75, 100, 5.25), box(100, -1.75, 600, 5.25))
    assert figures(road(moving(60, 0, 10), drivable=halves))["off_road"] == 0
