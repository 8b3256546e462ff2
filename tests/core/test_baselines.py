"""Baselines and scales: hand arithmetic, exact expectations over all samples, polgrad."""

import itertools

import numpy as np
import polgrad
import pytest
import torch
from batches import batch_of, with_junk

from outdo.core import baselines
from outdo.core.parts import ExponentialWeights, GroupMean, LeaveOneOut, Return

GROUP_PARTS = [GroupMean(), GroupMean("batch"), GroupMean("none"), LeaveOneOut(), ExponentialWeights(2.0)]


def column(*numbers):
    return torch.tensor(numbers, dtype=torch.float64)


def rows(scores, group, lengths=None, **fields):
    """A batch whose rows score `scores`."""
    batch = batch_of(lengths or (2,) * len(scores), reward=list(scores), group=list(group))
    return batch.with_(**fields) if fields else batch


def per_row(part, batch):
    """Advantage of each row's first step."""
    return part.compute(batch, {})[0].advantage[:, 0]


@pytest.mark.parametrize(("ddof", "right", "wrong"), [(0, 1.29, -0.77), (1, 1.21, -0.72)])
def test_f12_three_of_eight(ddof, right, wrong):
    # mean .375, population s.d. √(.375·.625) = .484; with n − 1: .5175.
    scores = [1.0] * 3 + [0.0] * 5
    advantage = per_row(GroupMean(ddof=ddof, eps=0.0), rows(scores, [7] * 8))
    assert advantage[0].item() == pytest.approx(right, abs=5e-3)
    assert advantage[7].item() == pytest.approx(wrong, abs=5e-3)


def test_equal_rewards_give_exactly_zeros():
    for value in (0.1, 0.7, 1 / 3, -1e8):
        batch = rows([value] * 7, [0] * 7)
        for part in (GroupMean(eps=1e-8), GroupMean("none"), LeaveOneOut()):
            for dtype in (torch.float32, torch.float64):
                cast = batch.with_(reward=batch.reward.to(dtype), logp=batch.logp.to(dtype))
                assert (per_row(part, cast) == 0).all()


def test_leave_one_out_by_hand_and_against_the_group_mean():
    # (1, 0, 0, 5): the others' means are 5/3, 2, 2, 1/3.
    batch = rows([1.0, 0.0, 0.0, 5.0], [0] * 4)
    torch.testing.assert_close(per_row(LeaveOneOut(), batch), column(-2 / 3, -2, -2, 14 / 3))
    torch.testing.assert_close(per_row(LeaveOneOut(), batch), 4 / 3 * per_row(GroupMean("none"), batch))


def test_std_branches():
    batch = rows([0.0, 1.0, 0.0, 10.0], [0, 0, 1, 1])
    torch.testing.assert_close(per_row(GroupMean("none"), batch), column(-0.5, 0.5, -5, 5))
    torch.testing.assert_close(per_row(GroupMean("group", eps=0.0), batch), column(-1, 1, -1, 1))
    # s.d. of (0, 1, 0, 10): mean 2.75, √((7.5625 + 3.0625 + 7.5625 + 52.5625)/4) = 4.2058.
    spread = 17.6875**0.5
    torch.testing.assert_close(per_row(GroupMean("batch", eps=0.0), batch), column(-0.5, 0.5, -5, 5) / spread)
    corrected = per_row(GroupMean("batch", ddof=1, eps=0.0), batch)
    torch.testing.assert_close(corrected, column(-0.5, 0.5, -5, 5) / (17.6875 * 4 / 3) ** 0.5)


def test_f14_division_inflates_a_nearly_constant_group_and_eps_tames_it():
    batch = rows([0.5, 0.5 + 1e-6], [0, 0])
    assert per_row(GroupMean(eps=0.0), batch)[1].item() == pytest.approx(1)
    assert per_row(GroupMean(eps=1e-2), batch)[1].item() == pytest.approx(5e-7 / (1e-2 + 5e-7))
    assert per_row(GroupMean("none"), batch)[1].item() == pytest.approx(5e-7)


@pytest.mark.parametrize("part", GROUP_PARTS)
def test_grouping_is_by_id_not_by_position(part):
    scores, group = [1.0, 4.0, 2.0, 0.0, 7.0, 5.0], [3, 9, 3, 9, 9, 3]
    mixed = per_row(part, rows(scores, group))
    order = [0, 2, 5, 1, 3, 4]
    sorted_ = per_row(part, rows([scores[i] for i in order], [group[i] for i in order]))
    torch.testing.assert_close(mixed[order], sorted_)


def test_the_same_prompt_twice_stays_two_groups():
    # Equal texts, two ids: each pair is centred by itself.
    batch = rows([0.0, 1.0, 4.0, 6.0], [0, 0, 1, 1])
    torch.testing.assert_close(per_row(GroupMean("none"), batch), column(-0.5, 0.5, -1, 1))


@pytest.mark.parametrize("part", GROUP_PARTS)
def test_a_group_of_one_is_an_error(part):
    with pytest.raises(ValueError, match="group 5 has a single row"):
        part.compute(rows([1.0, 2.0, 3.0], [0, 0, 5]), {})


@pytest.mark.parametrize("part", GROUP_PARTS)
def test_a_row_without_a_score_counts_nowhere(part):
    # Row 1 could not be scored (no valid step): the others get what they get without it.
    whole = rows([1.0, 99.0, 3.0, 4.0], [0, 0, 0, 0])
    valid = whole.valid.clone()
    valid[1] = False
    got = part.compute(whole.with_(valid=valid), {})[0].advantage
    alone = part.compute(rows([1.0, 3.0, 4.0], [0, 0, 0]), {})[0].advantage
    torch.testing.assert_close(got[[0, 2, 3]], alone)
    assert (got[1] == 0).all()


@pytest.mark.parametrize("part", GROUP_PARTS[:4])
def test_the_only_scored_row_of_a_group_learns_nothing(part):
    batch = rows([1.0, 2.0, 0.0, 1.0], [0, 0, 1, 1])
    valid = batch.valid.clone()
    valid[0] = False
    assert (part.compute(batch.with_(valid=valid), {})[0].advantage[:2] == 0).all()


def test_zero_is_a_score():
    torch.testing.assert_close(per_row(GroupMean("none"), rows([0.0, 0.0, 3.0], [0] * 3)), column(-1, -1, 2))


PARTS = [*GROUP_PARTS, Return(), Return("episode"), Return(baseline="batch", scale="batch")]


@pytest.mark.parametrize("part", PARTS)
def test_padding_has_no_influence(part):
    batch = batch_of(reward=[1.0, 2.0, 5.0, 3.0])
    clean = part.compute(batch, {})[0].advantage
    for junk in (float("nan"), float("inf"), -1e30):
        torch.testing.assert_close(
            part.compute(with_junk(batch, junk), {})[0].advantage, clean, rtol=0, atol=0
        )
    assert (clean[~batch.valid] == 0).all()


def test_row_score_is_the_sum_over_valid_steps():
    valid = torch.tensor([[True, False, True]])
    assert baselines.score(torch.tensor([[1.0, float("nan"), 2.0]]), valid).item() == 3


def test_equal_to_polgrad():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randn(12, generator=generator, dtype=torch.float64)
    group = torch.tensor([0, 1, 2] * 4)
    batch = rows(scores.tolist(), group.tolist())
    for ddof in (0, 1):
        config = polgrad.GroupNormConfig(scale="std", center=True, unbiased=bool(ddof), eps=1e-4)
        theirs = polgrad.grpo_advantages(scores, group, config)
        torch.testing.assert_close(per_row(GroupMean(ddof=ddof), batch), theirs)
    torch.testing.assert_close(per_row(LeaveOneOut(), batch), polgrad.rloo_advantages(scores, group))
    whitened = polgrad.reinforce_pp_advantages(scores, config=polgrad.ReinforcePPConfig(batch_norm=True))
    one_step = batch_of((1,) * 12, reward=scores.tolist(), group=group.tolist())
    ours = per_row(Return(baseline="batch", scale="batch", ddof=1, eps=1e-8), one_step)
    torch.testing.assert_close(ours, whitened)


def test_running_baseline_by_hand():
    # rate .5: b = 0 for the first batch (mean 3), 1.5 for the second (mean 5), then 3.25.
    part = Return(baseline="running", rate=0.5)
    first, state = part.compute(batch_of((1, 1), reward=[2.0, 4.0]), {"baseline": 0.0})
    assert first.advantage.flatten().tolist() == [2, 4]
    second, later = part.compute(batch_of((1, 1), reward=[5.0, 5.0]), state)
    assert second.advantage.flatten().tolist() == [3.5, 3.5]
    assert (state, later) == ({"baseline": 1.5}, {"baseline": 3.25})


def test_exponential_weights_by_hand():
    # scores (0, log 2, log 2) with β=1: softmax (1, 2, 2)/5, times 3.
    scores = [0.0, np.log(2), np.log(2)]
    batch = rows([*scores, 700.0, 0.0], [0, 0, 0, 1, 1])
    weight = per_row(ExponentialWeights(1.0), batch)
    torch.testing.assert_close(weight, column(0.6, 1.2, 1.2, 2, 0))
    torch.testing.assert_close(per_row(ExponentialWeights(0.0), batch), column(1, 1, 1, 1, 1))
    sharp = per_row(ExponentialWeights(2.0), batch)
    torch.testing.assert_close(sharp[:3], column(1, 4, 4) / 3)


def test_groups_without_signal():
    batch = rows([1.0, 1.0, 0.0, 1.0, 2.0, 2.0], [0, 0, 1, 1, 2, 2])
    assert [int(x) for x in baselines.groups_without_signal(batch)] == [2, 3]
    valid = batch.valid.clone()
    valid[4:] = False
    assert [int(x) for x in baselines.groups_without_signal(with_junk(batch.with_(valid=valid)))] == [1, 2]


ARMS = np.array([0.2, 0.5, 0.8, 0.3])


def expected_gradient(part, size):
    """E over all 4^G action tuples of mean_i A_i·(1[a_i = 2] − 1/4), scores at their means (A is linear)."""
    total = 0.0
    for actions in itertools.product(range(4), repeat=size):
        advantage = per_row(part, rows(ARMS[list(actions)].tolist(), [0] * size)).numpy()
        total += float(np.mean(advantage * ((np.array(actions) == 2) - 0.25))) / 4**size
    return total


@pytest.mark.parametrize("size", [2, 3, 4])
def test_f13_shrinkage_of_the_group_mean(size):
    # True gradient on the best arm's logit: ¼(.8 − .45) = .0875.
    assert expected_gradient(GroupMean("none"), size) == pytest.approx(0.0875 * (size - 1) / size)
    assert expected_gradient(LeaveOneOut(), size) == pytest.approx(0.0875)


def test_shapes_must_agree():
    score, group = torch.ones(4), torch.zeros(4, dtype=torch.int64)
    scored = torch.ones(4, dtype=torch.bool)
    for function in (baselines.group_mean, baselines.leave_one_out, baselines.group_std):
        with pytest.raises(ValueError, match="equal shapes"):
            function(score[:, None], group, scored)
    with pytest.raises(ValueError, match="equal shapes"):
        baselines.score(torch.ones(2, 3), torch.ones(2, 1, dtype=torch.bool))
    with pytest.raises(ValueError, match="equal shapes"):
        baselines.masked_mean(torch.ones(2, 3), torch.ones(2, 1, dtype=torch.bool))
    with pytest.raises(ValueError, match="equal shapes"):
        baselines.exponential_weights(score[:, None], group, scored, 1.0)
