"""Others along the ego's route, by hand and against the compiled projection."""

import numpy as np
import pytest
import torch

from outdo.driving import kernels
from outdo.driving.generator import generate
from outdo.driving.observation import ROUTE_SPACING
from outdo.driving.packing import arc_length, resample
from outdo.driving.relations import relations
from outdo.driving.simulator import Simulator

SIZE = torch.tensor([[[4.0, 2.0], [6.0, 2.0]]])


def of_one(other, ego=(0.0, 0.0, 0.0, 8.0), route=((2.0, 0.0), (6.0, 0.0), (10.0, 0.0)), points=None):
    """The numbers of one actor beside an ego, both given as x, y, heading, speed."""
    line = torch.tensor([route])
    there = torch.arange(line.shape[1])[None] < (line.shape[1] if points is None else points)
    return relations(torch.tensor([[ego, other]]), SIZE, line, there)[0, 1]


def test_a_slower_one_ahead_by_hand():
    # 9 m ahead, so 9 - (4 + 6)/2 = 4 m apart, 5 m/s slower: 25/(2 * 4) m/s^2
    assert of_one((9.0, 1.0, 0.0, 3.0)).tolist() == pytest.approx([9, 1, 3, 0, 5, 25 / 8], abs=1e-5)


def test_one_that_falls_behind_comes_no_nearer():
    assert of_one((-20.0, 0.0, 0.0, 3.0)).tolist() == pytest.approx([-20, 0, 3, 0, -5, 0], abs=1e-5)


def test_a_faster_one_behind_comes_nearer():
    assert of_one((-20.0, 0.0, 0.0, 11.0)).tolist() == pytest.approx([-20, 0, 11, 0, 3, 9 / 30], abs=1e-5)


def test_one_that_crosses_from_the_left():
    found = of_one((6.0, 5.0, -np.pi / 2, 2.0))
    assert found.tolist() == pytest.approx([6, 5, 0, -2, 8, 10], abs=1e-5)  # 64/2 m/s^2, cut off at 10


def test_the_route_bends_to_the_left():
    bend = ((2.0, 0.0), (6.0, 0.0), (6.0, 4.0), (6.0, 8.0))
    found = of_one((5.0, 7.0, np.pi / 2, 8.0), route=bend)
    assert found.tolist() == pytest.approx([13, 1, 8, 0, 0, 0], abs=1e-5)


@pytest.mark.parametrize("points", [0, 1])
def test_without_a_route_it_leads_straight_on(points):
    ahead = of_one((9.0, 1.0, 0.0, 3.0), points=points)
    assert ahead.tolist() == pytest.approx([9, 1, 3, 0, 5, 25 / 8], abs=1e-5)


def test_absent_points_of_the_route_do_not_count():
    route = ((2.0, 0.0), (6.0, 0.0), (0.0, 0.0), (0.0, 0.0))
    assert of_one((1.0, 3.0, 0.0, 8.0), route=route, points=2)[:2].tolist() == pytest.approx([1, 3])


def test_as_the_compiled_projection_in_generated_scenes():
    scenes = generate("train", 20, seed=3)
    seen = Simulator(scenes).observe()
    arrays = (seen.agents[:, :, -1], seen.size, seen.route, seen.route_present)
    found = relations(*(torch.from_numpy(each) for each in arrays)).numpy()
    compared = 0
    for n, scene in enumerate(scenes):
        line = resample(scene.route, ROUTE_SPACING)
        length = arc_length(line)
        start = kernels.project(line, length, *scene.state[0, scene.now, :2])[0]
        for i in range(1, scene.actors):
            x, y, heading, speed = scene.state[i, scene.now]
            s, d, direction, distance = kernels.project(line, length, x, y)
            seen_part = 0 < s - start < ROUTE_SPACING * (seen.route_present[n].sum() - 1)
            if not scene.valid[i, scene.now] or not seen_part or distance > abs(d) + 1e-6:
                continue
            along, across = speed * np.cos(heading - direction), speed * np.sin(heading - direction)
            np.testing.assert_allclose(found[n, i, :4], [s - start, d, along, across], atol=2e-2)
            compared += 1
    assert compared > 20
