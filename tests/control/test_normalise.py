"""Running statistics against NumPy, and that they stand still until settled; scaled rewards by hand."""

from __future__ import annotations

import numpy as np
import pytest
from stand_in import Table, scripted

from outdo.control.environment import ControlEnvironment, WindowSettings
from outdo.control.normalise import RewardScale, RunningStatistics


@pytest.mark.parametrize("pieces", [[100], [1, 99], [3, 0, 50, 47]])
def test_pieces_add_up_to_numpys_mean_and_variance(pieces):
    values = np.random.default_rng(0).normal(1e6, 2, size=(100, 3))  # far from 0: naive sums of squares fail
    statistics = RunningStatistics((3,))
    at = 0
    for size in pieces:
        statistics.observe(values[at : at + size])
        at += size
        if size % 2:
            statistics.settle()
    statistics.settle()
    assert statistics.count == 100
    np.testing.assert_allclose(statistics.mean, values.mean(axis=0))
    np.testing.assert_allclose(statistics.variance, values.var(axis=0))


def test_nothing_counts_before_it_is_settled():
    statistics = RunningStatistics((1,))
    statistics.observe([[4.0], [6.0]])
    assert (statistics.count, statistics.mean[0], statistics.variance[0]) == (0, 0, 1)
    statistics.settle()
    assert (statistics.count, statistics.mean[0], statistics.variance[0]) == (2, 5, 1)
    statistics.observe([[100.0]])
    assert statistics.mean[0] == 5


def test_statistics_resume_with_what_is_pending():
    one, two = RunningStatistics((2,)), RunningStatistics((2,))
    rng = np.random.default_rng(1)
    one.observe(rng.normal(size=(7, 2)))
    one.settle()
    one.observe(rng.normal(size=(5, 2)))
    two.load_state_dict(one.state_dict())
    one.settle()
    two.settle()
    assert (one.mean == two.mean).all()
    assert (one.variance == two.variance).all()
    with pytest.raises(ValueError, match="shape"):
        RunningStatistics((3,)).load_state_dict(one.state_dict())
    with pytest.raises(ValueError, match="values must be"):
        one.observe(np.zeros((4, 3)))


def test_rewards_are_divided_by_the_spread_of_the_discounted_return():
    """γ = .5, rewards 2, 4 | end | 8: returns 2, .5·2 + 4 = 5, then anew 8. Var(2, 5, 8) = 6."""
    scale = RewardScale(1, 0.5, eps=0.0)
    reward = np.array([[2.0], [4.0], [8.0]])
    ended = np.array([[False], [True], [False]])
    scaled = scale(reward, ended, np.ones_like(ended))
    np.testing.assert_allclose(scaled, reward / np.sqrt(6))
    # the next window goes on from R = 8: .5·8 + 0 = 4; Var(2, 5, 8, 4) = 4.6875 with the mean at 4.75
    scaled = scale(np.zeros((1, 1)), np.zeros((1, 1), bool), np.ones((1, 1), bool))
    np.testing.assert_allclose(scale.statistics.variance, 4.6875)


def test_reset_rows_and_bounds():
    """A row that is not valid neither decays the return nor counts."""
    scale = RewardScale(1, 0.5, clip=1.0, eps=0.0)
    valid = np.array([[True], [False], [True]])
    reward = np.array([[2.0], [99.0], [3.0]])
    scaled = scale(reward, np.zeros_like(valid), valid)
    assert scale.statistics.count == 2  # returns 2 and .5·2 + 3 = 4: variance 1
    assert scaled.ravel().tolist() == [1, 1, 1]
    with pytest.raises(ValueError, match="clip"):
        RewardScale(1, 0.5, clip=0.0)


def test_scaled_rewards_train_and_plain_ones_are_reported():
    """Var of the discounted returns 3, 3 + .99·… is not 1, so the batch differs from what the tally says."""
    script = [(1, [(2, 10, "on"), (3, 20, "terminated")])]
    table = Table({1.0: 0, 2.0: 0, 3.0: 0})
    environment = ControlEnvironment(scripted("NextStep", script), WindowSettings(steps=2, scale_reward=True))
    batch = environment.collect(table, 0)
    spread = np.std([10, 0.99 * 10 + 20])
    assert batch.reward[0].tolist() == pytest.approx([10 / spread, 20 / spread])
    assert environment.metrics()["episode/return"] == 30
    assert environment.metrics()["reward_spread"] == pytest.approx(spread)


def test_the_policys_statistics_settle_once_a_window_and_before_it():
    table = Table({1.0: 0, 2.0: 0})
    environment = ControlEnvironment(scripted("NextStep", [(1, [(2, 1, "on")] * 9)]), WindowSettings(steps=3))
    order = []
    table.settle = lambda: order.append("settle")
    table.observe = lambda obs, real: order.append("observe")
    environment.collect(table, 0)
    environment.collect(table, 1)
    assert order == ["settle", *["observe"] * 3] * 2
