"""Comfort: Savitzky–Golay against polynomials, limits by hand, human logs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from outdo.driving import comfort, dynamics

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "argoverse2"
T = np.arange(65) * 0.1


@pytest.mark.parametrize("window", [5, 8, 15])
def test_parabolas_come_back_exactly(window):
    values = 3 - 2 * T + 0.7 * T**2
    np.testing.assert_allclose(comfort.savitzky_golay(values, window), values, atol=1e-10)
    np.testing.assert_allclose(comfort.savitzky_golay(values, window, 1), -2 + 1.4 * T, atol=1e-9)
    np.testing.assert_allclose(comfort.savitzky_golay(values, window, 2), 1.4, atol=1e-8)


def test_weights_of_the_paper():
    # Savitzky and Golay 1964, table I: five points, quadratic: (−3, 12, 17, 12, −3)/35; first derivative (−2 … 2)/10
    middle = np.zeros(11)
    middle[5] = 1.0
    np.testing.assert_allclose(
        comfort.savitzky_golay(middle, 5)[3:8], np.array([-3, 12, 17, 12, -3]) / 35, atol=1e-12
    )
    slope = comfort.savitzky_golay(middle, 5, 1, dt=1.0)[3:8]
    np.testing.assert_allclose(slope, np.array([2, 1, 0, -1, -2]) / 10, atol=1e-12)


def test_short_series_use_all_there_is():
    np.testing.assert_allclose(comfort.savitzky_golay(np.array([1.0, 3.0]), 15, 1), 20.0)
    assert comfort.savitzky_golay(np.array([1.0, 3.0]), 15, 2).tolist() == [0, 0]


def circle(speed, yaw_rate):
    heading = yaw_rate * T
    return np.stack([0 * T, 0 * T, heading, speed + 0 * T], -1)[None]


@pytest.mark.parametrize(
    ("state", "fine"),
    [
        (circle(10, 0.48), True),  # lateral 4.8 < 4.89
        (circle(10, 0.50), False),  # lateral 5.0
        (circle(1, 0.94), True),
        (circle(1, 0.96), False),  # yaw rate
        (np.stack([0 * T, 0 * T, 0 * T, 5 + 2.3 * T], -1)[None], True),
        (np.stack([0 * T, 0 * T, 0 * T, 5 + 2.5 * T], -1)[None], False),  # acceleration 2.5 > 2.40
        (np.stack([0 * T, 0 * T, 0 * T, 30 - 4.0 * T], -1)[None], True),
        (np.stack([0 * T, 0 * T, 0 * T, 30 - 4.1 * T], -1)[None], False),  # −4.1 < −4.05
        (np.stack([0 * T, 0 * T, T**2 - 6 * T, 0.01 + 0 * T], -1)[None], False),  # yaw acceleration 2 > 1.93
    ],
)
def test_limits(state, fine):
    assert comfort.comfortable(state).tolist() == [fine]


def test_longitudinal_jerk():
    # a = j·(t − 3.2) with |a| < 2.4: j = 0.7 passes; a square wave of ±2 within 0.4 s is a jerk over 4.13
    gentle = 10 + 0.7 * (T - 3.2) ** 2 / 2
    assert comfort.comfortable(np.stack([0 * T, 0 * T, 0 * T, gentle], -1)[None])[0]
    wave = 2.0 * np.sign(np.sin(2 * np.pi * T / 2.4 + 0.01))
    control = np.stack([wave[:-1], np.zeros(64)], -1)[None]
    state = dynamics.rollout(np.array([[0.0, 0, 0, 10]]), control)
    assert not comfort.comfortable(state, control)[0]


def test_plans_that_follow_each_other_agree():
    rng = np.random.default_rng(0)
    whole = np.stack([np.sin(T), 0.02 * np.cos(T)], -1)[None]
    every, plans = 5, np.stack([whole[:, 5 * r : 5 * r + 30] for r in range(5)], 1)
    states = dynamics.rollout(np.array([[0.0, 0, 0, 10]]), whole)
    starts = states[:, : 5 * every : every]
    assert comfort.plans_agree(starts, plans, every).tolist() == [1.0]
    # one plan of five brakes 0.8 m/s² harder: RMS 0.8 > 0.7 with both neighbours, so 2 of 4 pairs differ
    odd = plans.copy()
    odd[0, 2, :, 0] -= 0.8
    assert comfort.plans_agree(starts, odd, every).tolist() == [0.5]
    odd[0, 2, :, 0] += 0.2  # 0.6 is within
    assert comfort.plans_agree(starts, odd, every).tolist() == [1.0]
    assert comfort.plans_agree(starts[:, :1], plans[:, :1], every).tolist() == [1.0]
    assert comfort.plans_agree(starts, plans + rng.normal(size=plans.shape), every)[0] == 0


def human_logs():
    feather = pytest.importorskip("pyarrow.feather", reason="needs pyarrow")
    files = sorted(DATA.glob("*/city_SE3_egovehicle.feather"))
    if not files:
        pytest.skip("no shared/data beside the repository")
    for file in files:
        table = {
            name: column.to_numpy() for name, column in zip(*columns(feather.read_table(file)), strict=True)
        }
        t = (table["timestamp_ns"] - table["timestamp_ns"][0]) / 1e9
        qw, qx, qy, qz = (table[name] for name in ("qw", "qx", "qy", "qz"))
        yaw = np.unwrap(np.arctan2(2 * (qw * qz + qx * qy), 1 - 2 * (qy**2 + qz**2)))
        at = np.arange(0, t[-1], 0.1)
        x, y, heading = (np.interp(at, t, values) for values in (table["tx_m"], table["ty_m"], yaw))
        yield np.stack([x, y, heading, np.hypot(np.gradient(x, 0.1), np.gradient(y, 0.1))], -1)


def columns(table):
    return table.column_names, table.columns


def test_human_logs_are_comfortable():
    """But for one start at 3.1 m/s² (3.4 at the end of a window): that log goes from 0.9 to 4.4 m/s in 1.2 s."""
    for log, most in zip(human_logs(), (3.5, 2.4), strict=True):
        starts = range(0, len(log) - 65, 10)
        for name, values in comfort.quantities(np.stack([log[s : s + 65] for s in starts])).items():
            low, high = comfort.LIMITS[name]
            if name == "longitudinal acceleration":
                assert low < values.min() < values.max() < most, name
            else:
                assert low < values.min() < values.max() < high, name
        raw = np.diff(log[:, 3], n=2) / 0.01  # raw differences fail, which is why nothing here uses them
        assert np.abs(raw).max() > 4.13
