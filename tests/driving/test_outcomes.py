"""What becomes of answers: beside the dynamics, alone and together, among logs and among traffic."""

from __future__ import annotations

import numpy as np
import pytest
from roads import HORIZON, NOW, moving, road

from outdo.driving import dynamics
from outdo.driving.outcomes import Reference, outcomes_of, outcomes_together
from outdo.driving.reasoning import parse
from outdo.driving.rewards import collision
from outdo.driving.tokens import Answer, Fault

KEEP = parse("track set speed; keep lane.")


def reference(scene):
    return Reference(scene.state[0, NOW : NOW + HORIZON + 1], KEEP)


def drives(a=0.0, kappa=0.0, faults=()):
    return Answer(str(KEEP), KEEP, np.tile([a, kappa], (HORIZON, 1)), faults)


NONE = Answer("", faults=((Fault.EMPTY, "no tokens"),))


def test_answers_of_several_groups_are_driven_as_each_alone():
    scenes = [road(moving(0, 0, 10), moving(40, 0, 10)), road(moving(5, 0, 8))]
    groups = [[drives(-1), NONE, drives(0.5)], [drives(0, 0.001)]]
    for reactive in (False, True):
        together = outcomes_together(scenes, groups, [reference(s) for s in scenes], reactive=reactive)
        assert [len(group) for group in together] == [3, 1]
        for scene, answers, found in zip(scenes, groups, together, strict=True):
            for answer, outcome in zip(answers, found, strict=True):
                assert outcome.answer is answer
                assert outcome.scene is scene
                if answer.control is None:
                    assert outcome.path is outcome.actions is outcome.measures is None
                    continue
                (alone,) = outcomes_of(scene, [answer], reference(scene), reactive=reactive)
                assert np.array_equal(outcome.path, alone.path)
                assert np.array_equal(outcome.measures.gap, alone.measures.gap)
                path = dynamics.rollout(scene.state[0, NOW], answer.control)
                assert np.allclose(outcome.path, path, atol=1e-9)


def test_one_who_is_slower_than_in_the_log_is_hit_from_behind_unless_others_react():
    # the ego brakes to a standstill; the log of the car 15 m behind goes on at 10 m/s
    scene = road(moving(0, 0, 10), moving(-15, 0, 10))
    stops = Answer(str(KEEP), KEEP, np.concatenate([np.tile([-2.5, 0.0], (40, 1)), np.zeros((24, 2))]))
    replayed = outcomes_of(scene, [stops], reference(scene))
    reacting = outcomes_of(scene, [stops], reference(scene), reactive=True)
    assert collision(replayed) == [1.0]
    assert collision(reacting) == [0.0]
    assert reacting[0].measures.gap.min() > 0.5
    # where nobody is in the way of anybody, both are the same
    free = road(moving(0, 0, 10), moving(-60, 3.5, 10))
    one, two = (outcomes_of(free, [drives()], reference(free), reactive=reactive)[0] for reactive in (0, 1))
    assert np.allclose(one.measures.gap, two.measures.gap)


def test_an_answer_that_is_not_well_formed_does_not_drive():
    scene = road(moving(0, 0, 10))
    fault = ((Fault.TRACE, "unknown decision"),)
    for reactive in (False, True):
        found = outcomes_of(scene, [drives(faults=fault), drives()], reference(scene), reactive=reactive)
        assert found[0].path is None
        assert found[1].path is not None
    assert outcomes_of(scene, [NONE, NONE], reference(scene), reactive=True)[1].path is None


def test_the_log_is_left_as_it_was():
    scene = road(moving(0, 0, 10), moving(40, 0, 10))
    before = scene.state.copy()
    outcomes_of(scene, [drives(-3), drives(2, 0.01)], reference(scene))
    assert np.array_equal(scene.state, before)


@pytest.mark.parametrize("reactive", [False, True])
def test_the_ego_drives_on_where_its_log_has_a_gap(reactive):
    standing = moving(30, 0, 0)
    valid = np.ones((2, 80), bool)
    valid[0, NOW + 5 :] = False
    scene = road(moving(0, 0, 10), standing, valid=valid)
    truth = Reference(dynamics.rollout(scene.state[0, NOW], np.zeros((HORIZON, 2))), KEEP)
    (outcome,) = outcomes_of(scene, [drives()], truth, reactive=reactive)
    assert outcome.measures.contact.tolist() == [False, True]
    assert np.isfinite(outcome.measures.gap).all()


@pytest.mark.parametrize("reactive", [False, True])
def test_actors_that_are_not_there_are_never_hit(reactive):
    valid = np.ones((2, 80), bool)
    valid[1, NOW - 3 :] = False
    scene = road(moving(0, 0, 10), moving(20, 0, 0), valid=valid)
    (outcome,) = outcomes_of(scene, [drives()], reference(scene), reactive=reactive)
    assert not outcome.measures.contact.any()
    assert np.isinf(outcome.measures.gap).all()
