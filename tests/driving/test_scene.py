"""What makes a scene, and that every mistake is named with its place."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from roads import STEPS, box, light, moving, road

from outdo.driving.scene import Lane, Scene, SceneError


def test_a_scene_knows_its_size():
    scene = road(moving(0, 0, 10), moving(30, 0, 10))
    assert (scene.actors, scene.steps, scene.now, scene.future) == (2, 80, 15, 64)


def holes(actor, step):
    valid = np.ones((2, STEPS), np.bool_)
    valid[actor, step] = False
    return valid


def test_gaps_in_a_log_are_no_mistake():
    scene = road(moving(0, 0, 10), moving(30, 0, 10), valid=holes(1, 20))
    assert np.isnan(scene.state[1, 20]).all()


def change(**changes) -> Scene:
    return dataclasses.replace(road(moving(0, 0, 10), moving(30, 0, 10)), **changes)


def nan_at(actor, step):
    state = np.stack([moving(0, 0, 10), moving(30, 0, 10)])
    state[actor, step, 1] = np.nan
    return state


LANE = Lane("c", box(0, 0, 1, 1), 3.5, 10.0)
MISTAKES = {
    "NaN in the log": (
        lambda: change(state=nan_at(1, 33)),
        r"'straight': actor 1, step 33: .*not finite but valid",
    ),
    "no ego": (lambda: change(valid=holes(0, 15)), "ego .* missing at step now = 15"),
    "no route": (lambda: change(route=np.zeros((0, 2))), "no route: give the polyline"),
    "route of a point": (lambda: change(route=np.zeros((1, 2))), "route: needs at least 2 points"),
    "route twice in a place": (lambda: change(route=np.zeros((2, 2))), "route: points 0 and 1 are equal"),
    "route lane": (lambda: change(route_lanes=("x",)), "route_lanes names lane 'x'"),
    "now": (lambda: change(now=80), "now = 80 is no step of a log of 80 steps"),
    "float32": (lambda: change(state=np.zeros((2, 80, 4), np.float32)), "state must be float64"),
    "valid": (lambda: change(valid=np.ones((2, 79), np.bool_)), r"valid has shape \[2, 79\]"),
    "size": (
        lambda: change(size=np.array([[4.0, 2], [0, 2]])),
        r"actor 1: size \[0.0, 2.0\] must be positive",
    ),
    "kind": (lambda: change(kind=np.array([0, 9], np.int8)), "actor 1: kind 9"),
    "33 actors": (
        lambda: road(*[moving(0, 0, 1)] * 33),
        "33 actors; 1 to 32 can be simulated",
    ),
    "lane's name": (lambda: change(lanes={"a": LANE}, route_lanes=()), "lane 'a' calls itself 'c'"),
    "successor": (
        lambda: change(lanes={"c": dataclasses.replace(LANE, successors=("d",))}, route_lanes=()),
        "lane 'c' names lane 'd', which is not in the scene",
    ),
    "width": (
        lambda: change(lanes={"c": dataclasses.replace(LANE, width=0.0)}, route_lanes=()),
        "lane 'c': width 0.0",
    ),
    "polygon": (
        lambda: change(drivable=(box(0, 0, 1, 1)[:2],)),
        "drivable polygon 0: needs at least 3 points",
    ),
    "signal's lane": (lambda: change(signals=(light(5, lane="z"),)), "signal 0 is for lane 'z'"),
    "signal's states": (
        lambda: change(signals=(dataclasses.replace(light(5), states=np.zeros(3, np.int8)),)),
        "signal 0 has 3 states, the log 80 steps",
    ),
    "signal's state": (lambda: change(signals=(light(5, 7),)), "signal 0: states must be of"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_named(name):
    make, message = MISTAKES[name]
    with pytest.raises(SceneError, match=message):
        make()
