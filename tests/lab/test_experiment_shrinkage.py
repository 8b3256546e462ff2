"""F13: the table digit for digit, its closed forms by enumeration, and broken baselines."""

import itertools
import statistics

import pytest
import torch
from outcomes import names, outcome, outside, run

from outdo.core import baselines, objectives
from outdo.lab.experiments import shrinkage


def test_all_figures_agree():
    assert outside(outcome("shrinkage").figures) == set()


def test_the_published_figures_come_out_digit_for_digit():
    figures = [figure for figure in outcome("shrinkage").figures if figure.published is not None]
    assert len(figures) == 28
    for figure in figures:
        assert f"{figure.measured:.3f}" == f"{figure.published:.3f}", figure.name


def estimate(pulls, baseline):
    """The estimate of one group from its definition; a pull is an arm and a coin for the noise."""
    means = (0.2, 0.5, 0.8, 0.3)
    rewards = [means[arm] + 0.3 * coin for arm, coin in pulls]
    total = 0.0
    for i, (arm, _) in enumerate(pulls):
        others = [reward for j, reward in enumerate(rewards) if j != i]
        level = {
            "none": 0.0,
            "group mean": statistics.fmean(rewards),
            "leave one out": statistics.fmean(others),
            "expected reward": 0.45,
        }[baseline]
        total += (rewards[i] - level) * ((arm == 2) - 0.25)
    return total / len(pulls)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("baseline", shrinkage.BASELINES)
def test_the_closed_forms_by_enumeration_of_all_groups(size, baseline):
    pulls = list(itertools.product(range(4), (-1, 1)))
    every = [estimate(group, baseline) for group in itertools.product(pulls, repeat=size)]
    mean, spread = shrinkage.exact(size, baseline)
    assert mean == pytest.approx(statistics.fmean(every))
    assert spread == pytest.approx(statistics.pstdev(every))


def test_the_true_gradient_by_hand():
    # π(best) (m_best − J) = ¼ (0.8 − 0.45) = 0.0875; half of it with the mean of two.
    assert shrinkage.exact(2, "none")[0] == pytest.approx(0.0875)
    assert shrinkage.exact(2, "group mean")[0] == pytest.approx(0.04375)


def test_the_wrong_divisor_of_leave_one_out_turns_its_column_red(monkeypatch):
    # The mean of the group where the mean of the others belongs: divided by G, not by G − 1.
    monkeypatch.setattr(baselines, "leave_one_out", baselines.group_mean)
    figures = run("shrinkage").figures
    assert outside(figures) == names(figures, "leave one out")


def test_a_flipped_gradient_turns_every_mean_red(monkeypatch):
    right = objectives.reinforce
    monkeypatch.setattr(objectives, "reinforce", lambda *args: -right(*args))
    figures = run("shrinkage").figures
    assert outside(figures) == names(figures, "mean, G")


def test_a_group_by_position_is_noticed(monkeypatch):
    monkeypatch.setattr(baselines, "group_mean", lambda s, g, m: s - s.mean())
    assert names(outcome("shrinkage").figures, "group mean", "mean, G = 2") <= outside(
        run("shrinkage").figures
    )


def test_draws_are_arms_first_then_noise():
    # The seed's first arms, from torch itself.
    first = torch.randint(4, (20_000, 2), generator=torch.Generator().manual_seed(0))
    assert shrinkage.draws(2, 20_000).action.flatten().tolist() == first.flatten().tolist()
