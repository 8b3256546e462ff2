"""Geometry against shapely, `outdo.driving.dynamics` (plain NumPy float64) and hand arithmetic."""

from __future__ import annotations

import math

import numpy as np
import pytest
from shapely import LineString, MultiPolygon, Point, Polygon, affinity, box

from outdo.driving import dynamics, kernels
from outdo.driving.packing import pack_polygons

NAN = float("nan")


def crowd(seed, scenes=60, actors=16):
    """Boxes in a place small enough that many touch: state, axis, size, valid with NaN where absent."""
    rng = np.random.default_rng(seed)
    state = rng.uniform([0, 0, -9, -3], [40, 40, 9, 25], (scenes, actors, 4))
    size = rng.uniform([0.5, 0.4], [12, 2.6], (scenes, actors, 2))
    valid = rng.random((scenes, actors)) < 0.8
    state[~valid] = NAN
    axis = np.full((scenes, actors, 2), NAN)
    kernels.axes(state, valid, axis)
    return state, axis, size, valid


def shape(state, size):
    x, y, heading, _ = state
    upright = box(-size[0] / 2, -size[1] / 2, size[0] / 2, size[1] / 2)
    return affinity.translate(affinity.rotate(upright, heading, origin=(0, 0), use_radians=True), x, y)


def test_advance_is_the_unicycle():
    rng = np.random.default_rng(0)
    state, axis, _, valid = crowd(1)
    control = rng.uniform([-9.8, -0.2], [9.8, 0.2], (*state.shape[:2], 2))
    want, got = state.copy(), state.copy()
    for _ in range(64):
        want = np.where(valid[..., None], dynamics.advance(want, control), want)
        kernels.advance(got, axis, control, valid, 0.1)
    np.testing.assert_allclose(got, want, rtol=1e-12, atol=1e-9)


def test_contacts_are_those_of_shapely():
    state, axis, size, valid = crowd(2)
    hit = np.zeros(valid.shape, np.bool_)
    kernels.contacts(state, axis, size, valid, hit)
    want = np.zeros_like(hit)
    for n in range(len(state)):
        there = [i for i in range(state.shape[1]) if valid[n, i]]
        shapes = {i: shape(state[n, i], size[n, i]) for i in there}
        for i in there:
            want[n, i] = any(shapes[i].intersects(shapes[j]) for j in there if j != i)
    assert 0.2 < want.mean() < 0.8
    np.testing.assert_array_equal(hit, want)


def test_gaps_are_those_of_shapely():
    state, axis, size, valid = crowd(3)
    valid[:, 0] = True
    state[:, 0] = np.random.default_rng(4).uniform([0, 0, -9, 0], [40, 40, 9, 9], (len(state), 4))
    kernels.axes(state, valid, axis)
    gaps = np.empty(valid.shape)
    kernels.ego_gaps(state, axis, size, valid, gaps)
    for n in range(len(state)):
        ego = shape(state[n, 0], size[n, 0])
        for j in range(state.shape[1]):
            if j == 0 or not valid[n, j]:
                assert gaps[n, j] == math.inf
            else:
                want = ego.distance(shape(state[n, j], size[n, j]))
                assert gaps[n, j] == pytest.approx(want, abs=1e-9)


def test_gap_by_hand():
    # 4 × 2 boxes, the second turned by 90°: half length 2, half width 1, so the gap is 6 − 2 − 1 = 3
    size = np.array([4.0, 2.0])
    assert kernels.gap(6.0, 0.0, 1.0, 0.0, 0.0, 1.0, size, size) == pytest.approx(3.0)
    # diagonal: corners (2, 1) and (5 − 2, 4 − 1) = (3, 3) are √(1 + 4) apart
    assert kernels.gap(5.0, 4.0, 1.0, 0.0, 1.0, 0.0, size, size) == pytest.approx(math.sqrt(5))


def test_absent_actors_never_touch():
    # Same place, valid and not; NaN and zeros both.
    for junk in (NAN, 0.0):
        state, size = np.zeros((1, 3, 4)), np.full((1, 3, 2), 2.0)
        state[0, 1] = junk
        state[0, 2, 0] = 10.0
        valid = np.array([[True, False, True]])
        axis, hit, gaps = np.full((1, 3, 2), NAN), np.ones((1, 3), np.bool_), np.empty((1, 3))
        kernels.axes(state, valid, axis)
        kernels.contacts(state, axis, size, valid, hit)
        kernels.ego_gaps(state, axis, size, valid, gaps)
        assert not hit.any()
        assert gaps[0].tolist() == [math.inf, math.inf, 8.0]


def test_projection_is_that_of_shapely():
    rng = np.random.default_rng(5)
    line = np.cumsum(rng.uniform([1, -2], [4, 2], (30, 2)), 0)
    length = np.concatenate([[0.0], np.cumsum(np.hypot(*np.diff(line, axis=0).T))])
    reference = LineString(line)
    for x, y in rng.uniform(line.min(0), line.max(0), (200, 2)):
        s, offset, heading, distance = kernels.project(line, length, x, y)
        assert distance == pytest.approx(reference.distance(Point(x, y)), abs=1e-9)
        assert s == pytest.approx(reference.project(Point(x, y)), abs=1e-9)
        k = min(np.searchsorted(length, s, side="right") - 1, len(line) - 2)
        direction = line[k + 1] - line[k]
        near = reference.interpolate(s)
        if length[k] + 1e-6 < s < length[k + 1] - 1e-6:
            assert heading == pytest.approx(math.atan2(direction[1], direction[0]))
            left = direction[0] * (y - near.y) - direction[1] * (x - near.x) > 0
            assert offset == pytest.approx(reference.distance(Point(x, y)) * (1 if left else -1), abs=1e-9)


def test_drivable_area_is_that_of_shapely():
    # An L and a square that share an edge, and a hole between them at (6..8, 2..4).
    polygons = (
        np.array([[0.0, 0], [10, 0], [10, 2], [2, 2], [2, 10], [0, 10]]),
        np.array([[2.0, 4], [10, 4], [10, 10], [2, 10]]),
    )
    union = MultiPolygon([Polygon(p) for p in polygons]).buffer(0)
    packed = pack_polygons(polygons)
    rng = np.random.default_rng(6)
    for x, y in rng.uniform(-1, 11, (500, 2)):
        assert kernels.inside(*packed, x, y) == union.contains(Point(x, y))
    assert kernels.inside(*packed, 2.0, 5.0)  # on the shared edge
    assert not kernels.inside(*packed, 7.0, 3.0)


def test_off_road_looks_at_corners():
    road = pack_polygons((np.array([[0.0, 0], [20, 0], [20, 4], [0, 4]]),))
    size = np.array([4.0, 2.0])
    # inside; corner at y = −0.1; turned by 45° its corner lies 1.5·√2 = 2.12 m from the centre, so y = 2 is off
    state = np.array([[10.0, 2, 0, 0], [10, 0.9, 0, 0], [10, 2, math.pi / 4, 0], [10, 2, math.pi, 0]])
    out = np.zeros(4, np.bool_)
    kernels.off_road(state, size, *road, out)
    assert out.tolist() == [False, True, True, False]
