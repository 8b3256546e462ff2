"""Situations among moving vehicles: a braking lead, a cut-in, a cut-out, a merge, a slow leader."""

from __future__ import annotations

import numpy as np
from numpy.random import Generator

from outdo.driving.scene import Lane
from outdo.driving.situations.roads import (
    LANE,
    Base,
    Draft,
    Floats,
    constant,
    oncoming,
    one_way,
    ramp,
    reach,
    swerve,
    travelled,
    two_way,
)


def lead_braking(rng: Generator, time: Floats) -> Draft:
    """The vehicle ahead brakes, some to a stop, some go on later."""
    road, draft = two_way(rng, time, float(rng.uniform(10, 15)))
    v = draft.speed
    speed = ramp(time, rng.uniform(0.4, 1.3), rng.uniform(2.0, 4.5), v, v * rng.choice([0.0, 0.2, 0.4]))
    if rng.random() < 0.5:
        speed = np.maximum(speed, ramp(time, rng.uniform(4, 5.5), 1.5, 0.0, v))
    draft.add(road.log(rng.uniform(0.9, 1.6) * v + 6 + travelled(speed), 0.0))
    oncoming(rng, road, draft, 0.5)
    return draft


def cut_in(rng: Generator, time: Floats) -> Draft:
    """A slower vehicle of the neighbour lane moves over close ahead."""
    road, draft = one_way(rng, time, float(rng.uniform(11, 16)))
    v = draft.speed
    speed = v * rng.uniform(0.65, 0.9)
    ahead = rng.uniform(8, 14) + (v - speed) * 1.5
    offset = swerve(time, rng.uniform(0.3, 1.2), rng.uniform(2.5, 3.5), LANE, 0.0)
    draft.add(road.log(constant(time, speed, ahead), offset))
    draft.add(road.log(constant(time, speed, ahead - rng.uniform(16, 24)), LANE))
    if rng.random() < 0.5:
        draft.add(road.log(constant(time, v, ahead + rng.uniform(28, 45)), 0.0))
    return draft


def cut_out(rng: Generator, time: Floats) -> Draft:
    """The vehicle ahead changes lanes late and reveals one that stands."""
    road, draft = one_way(rng, time, float(rng.uniform(10, 14)))
    v = draft.speed
    ahead = rng.uniform(1.2, 1.7) * v + 5
    stands = ahead + rng.uniform(3.6, 4.6) * v
    offset = swerve(time, rng.uniform(0.5, 1.2), rng.uniform(2.2, 2.8), 0.0, LANE)
    draft.add(road.log(constant(time, v, ahead), offset))
    draft.add(road.log(constant(time, 0.0, stands), 0.0))
    draft.add(road.log(constant(time, v, -rng.uniform(0, 6)), LANE))
    return draft


def merge(rng: Generator, time: Floats) -> Draft:
    """The ego's lane joins a road with traffic that has the right of way."""
    limit, road = float(rng.uniform(11, 15)), Base(front=reach(time))
    v = limit * rng.uniform(0.7, 0.9)
    meet = rng.uniform(45, 65)
    x = np.linspace(-90, meet, 60)
    u = np.clip((x + 10) / (meet + 10), 0, 1)
    own = np.stack([x, -6.0 * (1 - u * u * (3 - 2 * u))], -1)
    after = np.array([[meet, 0.0], [road.front, 0.0]])
    lanes = {
        "ramp": Lane("ramp", own, LANE, limit, successors=("main",)),
        "before": Lane("before", np.array([[-90.0, 0.0], [meet, 0.0]]), LANE, limit, successors=("main",)),
        "main": Lane("main", after, LANE, limit),
    }
    edge = np.array([0.0, LANE / 2 + 0.4])
    ramp_area = np.concatenate([own - edge, (own + edge)[::-1]])
    areas = [road.area(-LANE / 2 - 0.4, LANE / 2 + 0.4), ramp_area]
    route = np.concatenate([own, after[1:]])
    start = (0.0, float(np.interp(0.0, x, own[:, 1])), 0.0)
    draft = Draft(time, lanes, areas, route, ("ramp", "main"), float(v), start)
    speed = limit * rng.uniform(0.85, 1.0)
    place = meet - meet / v * speed + rng.uniform(-12, 10)  # beside the ego at the merge
    for _ in range(int(rng.integers(1, 4))):
        draft.add(road.log(constant(time, speed, place), 0.0))
        place -= rng.uniform(18, 40)
    return draft


def slow_leader(rng: Generator, time: Floats) -> Draft:
    """A vehicle ahead is much slower than the limit; the lane beside is free, or will be."""
    road, draft = one_way(rng, time, float(rng.uniform(11, 15)))
    slow = rng.uniform(3.5, 6.5)
    draft.speed = float(slow + rng.uniform(0.0, 3.0))
    draft.add(road.log(constant(time, slow, rng.uniform(22, 36)), 0.0))
    if rng.random() < 0.4:
        v = rng.uniform(0.9, 1.0) * draft.lanes["own"].speed_limit
        draft.add(road.log(constant(time, v, -rng.uniform(0, 25)), LANE))
    return draft
