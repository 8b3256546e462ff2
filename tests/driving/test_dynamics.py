"""The unicycle and its inverse, against hand arithmetic, a circle, and trajectories with known controls."""

from __future__ import annotations

import numpy as np
import pytest

from outdo.driving import dynamics
from outdo.driving.scene import DT, HORIZON


def test_one_step_by_hand():
    # v' = 10 + 2·0.1 = 10.2; θ' = 0 + 0.05·(10·0.1 + 2·0.01/2) = 0.05·1.01 = 0.0505
    # x' = 0.05·(10·1 + 10.2·cos 0.0505) = 0.05·(10 + 10.18700) = 1.0093499; y' = 0.05·10.2·sin 0.0505 = 0.0257440
    state = dynamics.advance(np.array([0.0, 0.0, 0.0, 10.0]), np.array([2.0, 0.05]))
    np.testing.assert_allclose(state, [1.0093499, 0.0257440, 0.0505, 10.2], atol=2e-7)


def test_constant_curvature_stays_on_a_circle():
    # κ = 0.1: radius 10 m around (0, 10); the trapezoid keeps chords, whose ends lie on the circle up to O(dt²).
    control = np.tile([0.0, 0.1], (HORIZON, 1))
    path = dynamics.rollout(np.array([0.0, 0.0, 0.0, 5.0]), control)
    radius = np.hypot(path[:, 0], path[:, 1] - 10)
    np.testing.assert_allclose(radius, 10, atol=0.01)
    assert path[-1, 2] == pytest.approx(0.1 * 5 * HORIZON * DT)


def smooth_controls(rng, n):
    """Sums of slow sines within the limits."""
    t = np.arange(HORIZON) * DT
    wave = np.sin(t * rng.uniform(0.2, 1.5, (n, 2, 1)) + rng.uniform(0, 6, (n, 2, 1)))
    return (wave * rng.uniform(0.2, 1, (n, 2, 1)) * np.array([[1.5], [0.08]])).transpose(0, 2, 1)


def test_inverse_gives_the_controls_back():
    rng = np.random.default_rng(0)
    control = smooth_controls(rng, 16)
    start = np.stack(
        [rng.normal(size=16), rng.normal(size=16), rng.uniform(-9, 9, 16), np.full(16, 12.0)], -1
    )
    path = dynamics.rollout(start, control)
    path[:, :, 2] = dynamics.wrap(path[:, :, 2])  # logs have wrapped headings
    found = dynamics.inverse(path, jerk=1e-8, bend=1e-8)
    assert (np.abs(found - control).max((0, 1)) < [5e-3, 1e-4]).all()  # the last a moves the path by dt²/2 a
    again = dynamics.rollout(start, dynamics.inverse(path))
    assert np.abs(again - path)[..., :2].max() < 0.02  # with the default smoothing


def test_inverse_smooths_noise_and_stays_near():
    rng = np.random.default_rng(1)
    control = smooth_controls(rng, 8)
    start = np.tile([0.0, 0.0, 0.5, 10.0], (8, 1))
    path = dynamics.rollout(start, control)
    noisy = path.copy()
    noisy[:, 1:, :2] += rng.normal(scale=0.03, size=noisy[:, 1:, :2].shape)
    noisy[:, 1:, 2] += rng.normal(scale=0.005, size=noisy[:, 1:, 2].shape)
    found = dynamics.inverse(noisy)
    raw = np.diff(np.diff(noisy[:, :, 0], axis=1), axis=1) / DT**2  # raw finite differences of x
    assert np.abs(found[..., 0] - control[..., 0]).max() < 1.0 < np.abs(raw).max()
    assert np.hypot(*np.moveaxis((dynamics.rollout(start, found) - path)[..., :2], -1, 0)).max() < 0.1


def test_standing_still_has_zero_controls():
    path = np.tile([3.0, -2.0, 1.0, 0.0], (1, HORIZON + 1, 1))
    assert np.abs(dynamics.inverse(path)).max() < 1e-6


def test_reversing_is_recovered():
    control = np.tile([-1.0, 0.05], (1, HORIZON, 1))
    path = dynamics.rollout(np.array([[0.0, 0.0, 0.0, 1.0]]), control)
    assert path[0, -1, 3] < -5
    np.testing.assert_allclose(dynamics.inverse(path), control, atol=0.01)


def test_a_gap_is_named():
    path = np.zeros((2, 5, 4))
    path[1, 3] = np.nan
    with pytest.raises(ValueError, match="trajectory 1 is not finite at step 3"):
        dynamics.inverse(path)


def test_feasible():
    control = np.array([[9.8, 0.2], [-9.81, 0.0], [0.0, 0.21], [np.nan, 0.0]])
    assert dynamics.feasible(control).tolist() == [True, False, False, False]
