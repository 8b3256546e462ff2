"""A policy in the loop: its plans are driven as written, and what is no plan never is."""

from __future__ import annotations

import numpy as np
import pytest
from answering import Reciting, Scripted, holding
from roads import moving, road

from outdo.driving import kernels
from outdo.driving.expert import NO_FLAWS, demonstrate
from outdo.driving.generator import generate
from outdo.driving.packing import arc_length
from outdo.driving.planning import PolicyPlanner, drive_scene, without_plan
from outdo.driving.reasoning import parse
from outdo.driving.scene import HORIZON
from outdo.driving.simulator import drive
from outdo.driving.tokens import END, Fault
from outdo.language.sampling import Sampling

SAID = parse("track set speed because speed limit; keep lane because lane lines.")


def garbage(vocabulary, _, __):
    return [*vocabulary.write(SAID, [])[:-2], END]  # words, no trajectory


def test_plans_are_driven_as_written_and_texts_kept():
    policy = Scripted(lambda vocabulary, k, v: holding(vocabulary, v, SAID, a=0.2 * k))
    record, texts = drive_scene(policy, road(moving(0, 0, 10)), every=4)
    assert texts == [str(SAID)] * 16
    # question k is asked at step 4k and says 0.2·k m/s², which the code can say exactly
    np.testing.assert_allclose(record.control[0, :, 0], np.repeat(0.2 * np.arange(16), 4), atol=1e-9)


def test_without_any_plan_the_ego_brakes_to_a_standstill():
    planner = PolicyPlanner(Scripted(garbage))
    record = drive([road(moving(0, 0, 10)), road(moving(0, 0, 4))], planner, every=5)
    assert planner.fallback.tolist() == [13, 13]
    assert planner.texts[0] == [str(SAID)] * 13
    assert {fault for fault, _ in planner.answers[0][0].faults} == {Fault.NO_TRAJECTORY}
    # v²/2a = 100/6 and 16/6 m; the last step stops within 0.1 s: less than 0.1·0.3/2 m apart
    np.testing.assert_allclose(record.state[:, -1, 0, 0], [100 / 6, 16 / 6], atol=0.02)
    np.testing.assert_allclose(record.state[:, -1, 0, 3], 0, atol=1e-12)
    assert record.control[0, :33, 0] == pytest.approx(-3.0)


def test_an_ego_that_goes_backwards_is_braked_too():
    control = without_plan(road(moving(0, 0, 0)), np.array([0.0, 0.0, 0.0, -1.0]), np.zeros((0, 2)))
    assert control[:3, 0].tolist() == [3.0, 3.0, 3.0]
    assert control[:, 0].sum() * 0.1 == pytest.approx(1.0)


def test_the_rest_of_the_last_plan_goes_on():
    def once(vocabulary, k, v):
        return holding(vocabulary, v, SAID, a=0.4, kappa=0.001) if k == 2 else garbage(vocabulary, k, v)

    planner = PolicyPlanner(Scripted(once))
    record = drive([road(moving(0, 0, 10))], planner, every=3)
    assert planner.fallback.tolist() == [21]  # of 22 questions at steps 0, 3, …, 63
    # braked for 6 steps, then the plan of step 6 until the end: 58 of its 64 steps
    np.testing.assert_allclose(record.control[0, :6], np.tile([-3.0, 0.0], (6, 1)))
    np.testing.assert_allclose(record.control[0, 6:], np.tile([0.4, 0.001], (58, 1)), atol=1e-9)


def test_a_plan_that_is_used_up_is_followed_by_braking():
    rest = np.tile([1.0, 0.0], (10, 1))
    control = without_plan(road(moving(0, 0, 5)), np.array([0.0, 0.0, 0.0, 5.0]), rest)
    np.testing.assert_array_equal(control[:10], rest)
    # 5 + 1 m/s, then 20 steps of −3 m/s²
    np.testing.assert_allclose(control[10:, 0], np.r_[np.full(20, -3.0), np.zeros(34)], atol=1e-9)


def test_braking_follows_the_route():
    turn = np.linspace(0, 2, 100)
    route = 40 * np.stack([np.sin(turn), 1 - np.cos(turn)], -1)
    scene = road(
        moving(0, 0, 12), route=route, drivable=(np.array([[-99.0, -99], [99, -99], [99, 99], [-99, 99]]),)
    )
    path = drive([scene], PolicyPlanner(Scripted(garbage)), every=5).state[0, :, 0]
    length = arc_length(route)
    away = [kernels.project(route, length, x, y)[3] for x, y in path[:, :2]]
    assert max(away) < 1  # straight on for 12²/6 = 24 m would be 24²/80 = 7.2 m
    assert np.hypot(*path[-1, :2]) > 20


def test_unparseable_words_before_a_trajectory_are_no_fallback():
    def mute(vocabulary, _, v):
        return holding(vocabulary, v, None, a=0.2)

    planner = PolicyPlanner(Scripted(mute))
    record = drive([road(moving(0, 0, 10))], planner)
    assert planner.fallback.tolist() == [0]
    np.testing.assert_allclose(record.control[0, :, 0], 0.2)


def test_each_question_has_a_stream_of_its_own():
    scenes = generate("test", 3)
    policy = Reciting(demonstrate(scenes, 0, flaws=NO_FLAWS))
    drive(scenes, PolicyPlanner(policy, seed=7), every=5)
    asked = [stream for _, streams in policy.asked for stream in streams]
    assert asked == [(7, n, t) for t in range(0, HORIZON, 5) for n in range(3)]
    assert all(sampling.greedy for sampling, _ in policy.asked)
    assert policy.asked[0][0].max_tokens == policy.vocabulary.longest
    hot = Sampling(temperature=0.7, max_tokens=50)
    policy.asked.clear()
    drive(scenes[1:], PolicyPlanner(policy, sampling=hot, first=1), every=5)
    assert policy.asked[0] == (hot, [(0, 1, 0), (0, 2, 0)])


def test_a_policy_that_recites_the_expert_drives_as_the_expert():
    scenes = generate("test", 10)
    demos = demonstrate(scenes, 0, flaws=NO_FLAWS)
    record = drive(scenes, PolicyPlanner(Reciting(demos)), every=5)
    states = np.stack([demo.states for demo in demos])
    # bins of 0.2 m/s² and 0.001 1/m round each step, but speed and heading are held
    assert np.linalg.norm(record.state[:, :, 0, :2] - states[:, :, :2], axis=-1).max() < 0.5


def test_ids_outside_the_vocabulary_are_no_plan():
    planner = PolicyPlanner(Scripted(lambda vocabulary, _, __: [10**6, -1, vocabulary.size]))
    drive([road(moving(0, 0, 10))], planner, steps=5)
    assert planner.fallback.tolist() == [1]
