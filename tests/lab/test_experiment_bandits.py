"""F15 and F16: the published digits, the statements on group sizes, and broken scales and signs."""

import math

import pytest
import torch
from outcomes import outcome, outside, run

from outdo.core import baselines, objectives
from outdo.lab.exact.bandit import Bandit
from outdo.lab.experiments import group_size, grpo_bandit


@pytest.mark.parametrize("name", ["grpo_bandit", "group_size"])
def test_all_figures_agree(name):
    assert outside(outcome(name).figures) == set()


def test_the_published_digits():
    path = grpo_bandit.learn()
    assert [round(p, 2) for p in path[20].tolist()] == [0.02, 0.04, 0.91, 0.02]
    assert [round(p, 2) for p in path[50].tolist()] == [0, 0.01, 0.99, 0]
    assert [round(p, 2) for p in path[200].tolist()] == [0, 0, 1, 0]


def test_the_other_divisor_is_red(monkeypatch):
    # With n − 1 the run passes 0.915 at step 20 instead of 0.91.
    right = baselines.group_std
    monkeypatch.setattr(baselines, "group_std", lambda s, g, m, ddof=0: right(s, g, m, 1))
    figures = run("grpo_bandit").figures
    assert outside(figures) != set()
    assert all("step 20" in name for name in outside(figures))


def test_a_flipped_sign_is_red(monkeypatch):
    right = objectives.reinforce
    monkeypatch.setattr(objectives, "reinforce", lambda *args: -right(*args))
    assert "π(arm 3) at step 200" in outside(run("grpo_bandit").figures)
    assert outside([group_size.first_step(Bandit(group_size.PAYOUTS, 0.1))]) != set()


def test_the_first_move_of_a_pair_without_noise():
    # Nearly no noise: the better arm always wins. One of the pair is the best arm and the other is not in
    # 2 · ¼ · ¾ of the groups, and then its logit moves by 0.5 · ½ · (1 · ¾ + 1 · ¼) = ¼: 0.375 · ¼.
    bandit = Bandit(group_size.PAYOUTS, 0.001)
    assert group_size.first_step(bandit).exact == pytest.approx(0.375 / 4)


def test_the_endless_group_by_hand():
    # Variance of the four means 0.0525, plus 0.1² = 0.25²; moves 0.5 · ¼ (m − 0.45)/0.25 = ½ (m − 0.45).
    moves = [0.5 * (mean - 0.45) for mean in (0.2, 0.5, 0.8, 0.3)]
    total = sum(math.exp(move) for move in moves)
    curve = group_size.limit(Bandit(group_size.PAYOUTS, 0.1))
    assert curve[0] == pytest.approx(0.25)
    assert curve[1] == pytest.approx(math.exp(moves[2]) / total)


def test_large_groups_follow_the_endless_one():
    bandit = Bandit(group_size.PAYOUTS, 0.1)
    many = group_size.learn(bandit, 256, 4).mean(dim=0)
    assert (many - torch.tensor(group_size.limit(bandit))).abs().max() < 0.02
