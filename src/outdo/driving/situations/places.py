"""Situations made by places and rules: a turn, a crossing, lights and stop signs, parked vehicles, road works."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from outdo.driving.scene import Kind, Lane, Light
from outdo.driving.situations.roads import (
    LANE,
    Base,
    Draft,
    Floats,
    along,
    constant,
    light,
    oncoming,
    reach,
    two_way,
)


def unprotected_turn(rng: Generator, time: Floats) -> Draft:
    """A turn across the oncoming lane, without a light."""
    limit, centre = 11.0, float(rng.uniform(32, 45))
    apart = 9.0  # m from the middle of the junction to where the turn begins
    turn = np.linspace(0, np.pi / 2, 16)
    radius = apart + LANE / 2
    bow = np.stack([centre - apart + radius * np.sin(turn), radius * (1 - np.cos(turn))], -1)
    out = centre + LANE / 2
    enter = np.array([[-90.0, 0.0], [centre - apart, 0.0]])
    end = reach(time) - 100.0
    leave = np.array([[out, radius], [out, end]])
    far, back = np.array([centre + 150, LANE]), np.array([-90.0, LANE])
    edge_in, edge_out = np.array([centre + apart, LANE]), np.array([centre - apart, LANE])
    lanes = {
        "enter": Lane("enter", enter, LANE, limit, successors=("turn",)),
        "turn": Lane("turn", bow, LANE, limit, successors=("leave",), intersection=True),
        "leave": Lane("leave", leave, LANE, limit),
        "oncoming": Lane("oncoming", np.stack([far, edge_in]), LANE, limit, successors=("across",)),
        "across": Lane("across", np.stack([edge_in, edge_out]), LANE, limit, ("on",), intersection=True),
        "on": Lane("on", np.stack([edge_out, back]), LANE, limit),
    }
    middle = LANE / 2
    areas = [
        Base().area(-LANE / 2 - 0.4, 1.5 * LANE + 0.4, -90, centre + 150),
        _box(centre - LANE - 0.4, middle - 60, centre + LANE + 0.4, end + 5.0),
        _box(centre - apart, middle - apart, centre + apart, middle + apart),
    ]
    route = np.concatenate([enter, bow[1:], leave[1:]])
    v = rng.uniform(6.0, 9.0)
    draft = Draft(time, lanes, areas, route, ("enter", "turn", "leave"), float(v), (0.0, 0.0, 0.0))
    speed = rng.uniform(7, 11)
    place = centre + speed * rng.uniform(2.5, 5.0)
    for _ in range(int(rng.integers(1, 3))):
        draft.add(Base().log(constant(time, -speed, place), LANE))
        place += rng.uniform(18, 45)
    return draft


def pedestrian(rng: Generator, time: Floats) -> Draft:
    """Somebody crosses the road."""
    road, draft = two_way(rng, time, float(rng.uniform(9, 13)))
    at, walk = rng.uniform(32, 48), rng.uniform(1.0, 1.8)
    meets = at / draft.speed + rng.uniform(-0.8, 1.2)  # s when both would be there
    if rng.random() < 0.5:
        offset, theta = -walk * (meets - time), 0.5 * np.pi
    else:
        offset, theta = walk * (meets - time), -0.5 * np.pi
    place = road.at(constant(time, 0.0, at), offset)
    log = np.stack([place[:, 0], place[:, 1], place[:, 2] + theta, np.full_like(time, walk)], -1)
    draft.add(log, Kind.PEDESTRIAN, (0.6, 0.6))
    oncoming(rng, road, draft, 0.4)
    return draft


def stop_line(rng: Generator, time: Floats) -> Draft:
    """A red light, some of which turn green, or a stop sign."""
    road, draft = two_way(rng, time, float(rng.uniform(9, 14)))
    at = rng.uniform(30, 60)
    line = road.at(np.array([at, at]), np.array([-LANE / 2, LANE / 2]))[:, :2]
    kind = rng.choice(["red", "green later", "yellow first", "sign"], p=[0.3, 0.2, 0.15, 0.35])
    states = {
        "red": [(0.0, Light.RED)],
        "green later": [(0.0, Light.RED), (float(rng.uniform(4.5, 6.5)), Light.GREEN)],
        "yellow first": [(0.0, Light.GREEN), (0.3, Light.YELLOW), (1.2, Light.RED)],
        "sign": [(0.0, Light.STOP_SIGN)],
    }[str(kind)]
    if kind == "yellow first":
        line += draft.speed * 0.8 * np.array([np.cos(road.bend * at), np.sin(road.bend * at)])
    draft.signals.append(light(time, "own", line, states))
    if kind != "sign" and rng.random() < 0.3:
        gap = at - rng.uniform(4, 5)
        draft.add(road.log(constant(time, 0.0, gap), 0.0))
    oncoming(rng, road, draft, 0.4)
    return draft


def parked_vehicle(rng: Generator, time: Floats) -> Draft:
    """One or two vehicles stand at the edge of the lane and take a part of it."""
    road, draft = two_way(rng, time, float(rng.uniform(8, 12)), shoulder=2.4)
    at, into = rng.uniform(32, 46), rng.uniform(0.2, 1.3)  # m of the lane that is taken
    offset = -LANE / 2 + into - 0.95
    for k in range(int(rng.integers(1, 3))):
        draft.add(road.log(constant(time, 0.0, at + 7.0 * k), offset + rng.uniform(-0.1, 0.1)))
    oncoming(rng, road, draft, 0.4)
    return draft


def road_works(rng: Generator, time: Floats) -> Draft:
    """Cones narrow the road, and the limit is lower there."""
    limit, slow = float(rng.uniform(11, 15)), float(rng.uniform(5, 8))
    road, draft = two_way(rng, time, limit)
    begin, end = float(rng.uniform(42, 55)), float(rng.uniform(85, 110))
    draft.lanes["own"] = Lane("own", road.line(0.0, end=begin), LANE, limit, successors=("works",))
    draft.lanes["works"] = Lane("works", road.line(0.0, begin, end), LANE, slow, successors=("after",))
    draft.lanes["after"] = Lane("after", road.line(0.0, start=end), LANE, limit)
    draft.route_lanes = ("own", "works", "after")
    for at in np.arange(begin, end, 7.0):
        draft.add(road.log(constant(time, 0.0, at), -LANE / 2 - 0.2), Kind.STATIC, (0.4, 0.4))
    if rng.random() < 0.4:
        draft.add(along(draft.route, constant(time, 0.6 * draft.speed, 90.0 + 3 * draft.speed)))
    oncoming(rng, road, draft, 0.4)
    return draft


def _box(x0: float, y0: float, x1: float, y1: float) -> Floats:
    return np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1]], np.float64)
