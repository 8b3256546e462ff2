"""Algorithms as values: the whole loss against a plain reference, splits, masks, placement, refusals."""

import math

import pytest
import torch
from batches import LENGTHS, batch_of, with_junk

from outdo.core.algorithm import Algorithm, explained_variance, nonfinite_rows
from outdo.core.parts import (
    Clipped,
    Gae,
    GroupMean,
    KlInLoss,
    KlInReward,
    LeaveOneOut,
    NegativeLogLikelihood,
    Ones,
    Reinforce,
    Return,
    Update,
)
from outdo.core.presets import PRESETS, preset
from outdo.core.protocols import Evaluation
from outdo.core.reduce import Counts

NAMES = list(PRESETS)
EVERYTHING = Algorithm(
    Gae(0.9, scale="batch"),
    Clipped(0.1, 0.1),
    KlInLoss("k3", 0.3, times_ratio=True),
    Update(importance_cap=1.02),
    value_coefficient=0.7,
    value_clip=0.2,
    entropy_coefficient=0.05,
)


def evaluation_of(batch, seed=9, offset=0.3):
    """Leaves of a policy's answer: logp near old, entropy, value."""
    generator = torch.Generator().manual_seed(seed)

    def noise():
        return torch.randn(batch.logp.shape, generator=generator, dtype=torch.float64)

    logp = (batch.old_logp + offset * noise()).requires_grad_()
    return Evaluation(logp, noise().abs().requires_grad_(), (batch.value + noise()).requires_grad_())


def gradients(loss, evaluation):
    leaves = [evaluation.logp, evaluation.entropy, evaluation.value]
    found = torch.autograd.grad(loss, leaves, allow_unused=True)
    return [torch.zeros_like(leaf) if g is None else g for leaf, g in zip(leaves, found, strict=True)]


def piece_of(evaluation, rows):
    return Evaluation(evaluation.logp[rows], evaluation.entropy[rows], evaluation.value[rows])


@pytest.mark.parametrize("name", [*NAMES, "everything"])
@pytest.mark.parametrize("pieces", [[[0, 3], [2, 1]], [[3], [0], [2], [1]]])
def test_micro_batches_and_ranks_change_no_gradient(name, pieces):
    algorithm = EVERYTHING if name == "everything" else preset(name).algorithm
    batch, _ = algorithm.prepare(batch_of(LENGTHS))
    evaluation = evaluation_of(batch)
    whole = algorithm.loss(batch, evaluation, algorithm.counts(batch))
    counts = Counts(0, 0)
    for rows in pieces:
        counts = counts + algorithm.counts(batch.select(torch.tensor(rows)))
    assert counts == algorithm.counts(batch)
    parts = [
        algorithm.loss(batch.select(torch.tensor(rows)), piece_of(evaluation, torch.tensor(rows)), counts)
        for rows in pieces
    ]
    total = sum(part.total for part in parts)
    torch.testing.assert_close(total, whole.total)
    for got, wanted in zip(gradients(total, evaluation), gradients(whole.total, evaluation), strict=True):
        torch.testing.assert_close(got, wanted)
    for key, (value, steps) in whole.metrics.items():
        torch.testing.assert_close(sum(part.metrics[key][0] for part in parts), value)
        assert sum(int(part.metrics[key][1]) for part in parts) == int(steps)
    assert max(float(part.maxima["ratio_max"]) for part in parts) == float(whole.maxima["ratio_max"])


@pytest.mark.parametrize("name", [*NAMES, "everything"])
def test_junk_in_padding_changes_nothing(name):
    algorithm = EVERYTHING if name == "everything" else preset(name).algorithm
    clean = batch_of(LENGTHS)
    batch, state = algorithm.prepare(clean)
    dirty, dirty_state = algorithm.prepare(with_junk(clean))
    assert state == dirty_state
    evaluation = evaluation_of(batch)
    first = algorithm.loss(batch, evaluation, algorithm.counts(batch))
    leaves = [
        torch.where(batch.valid, leaf.detach(), float("nan")).requires_grad_()
        for leaf in (evaluation.logp, evaluation.entropy, evaluation.value)
    ]
    second = algorithm.loss(with_junk(dirty), Evaluation(*leaves), algorithm.counts(dirty))
    torch.testing.assert_close(second.total, first.total, rtol=0, atol=0)
    again = gradients(second.total, Evaluation(*leaves))
    for got, wanted in zip(again, gradients(first.total, evaluation), strict=True):
        torch.testing.assert_close(got, wanted, rtol=0, atol=0)
    for key, pair in first.metrics.items():
        torch.testing.assert_close(second.metrics[key], pair, rtol=0, atol=0)


def test_the_whole_loss_equals_a_plain_reference():
    # Token means of clipped surrogate · importance weight + .3 ρ k3 − .05 H, and of .7 clipped value loss.
    batch, _ = EVERYTHING.prepare(batch_of(LENGTHS))
    evaluation = evaluation_of(batch)
    total, n = 0.0, int(batch.valid.sum())
    for i, t in batch.valid.nonzero().tolist():
        logp, old, a = (float(x[i, t].detach()) for x in (evaluation.logp, batch.old_logp, batch.advantage))
        rho = math.exp(logp - old)
        surrogate = min(rho * a, min(max(rho, 0.9), 1.1) * a) * min(
            math.exp(old - float(batch.logp[i, t])), 1.02
        )
        r = math.exp(float(batch.ref_logp[i, t]) - logp)
        v, v_old, goal = (float(x[i, t].detach()) for x in (evaluation.value, batch.value, batch.target))
        near = v_old + min(max(v - v_old, -0.2), 0.2)
        total += (
            -surrogate + 0.3 * rho * (r - 1 - math.log(r)) - 0.05 * float(evaluation.entropy[i, t].detach())
        )
        total += 0.7 * max((v - goal) ** 2, (near - goal) ** 2)
    loss = EVERYTHING.loss(batch, evaluation, EVERYTHING.counts(batch))
    assert loss.total.item() == pytest.approx(total / n)


def test_gradients_of_the_whole_loss_equal_finite_differences():
    batch, _ = EVERYTHING.prepare(batch_of((2, 3)))
    evaluation = evaluation_of(batch, offset=0.02)

    def total(logp, entropy, value):
        return EVERYTHING.loss(batch, Evaluation(logp, entropy, value), EVERYTHING.counts(batch)).total

    torch.autograd.gradcheck(total, (evaluation.logp, evaluation.entropy, evaluation.value))


def test_an_entropy_bonus_raises_entropy_and_a_value_loss_moves_the_critic_to_its_target():
    batch, _ = EVERYTHING.prepare(batch_of(LENGTHS))
    evaluation = evaluation_of(batch)
    algorithm = Algorithm(Gae(0.9), Reinforce(), entropy_coefficient=0.1)
    loss = algorithm.loss(batch, evaluation, algorithm.counts(batch))
    _, entropy, value = gradients(loss.total, evaluation)
    torch.testing.assert_close(entropy[batch.valid], torch.full_like(entropy[batch.valid], -0.1 / 20))
    assert ((value * (evaluation.value - batch.target))[batch.valid] >= 0).all()


def test_rows_that_are_not_kept_count_for_the_group_and_carry_no_loss():
    keep = torch.tensor([True, False, True, True])
    algorithm = preset("grpo").algorithm
    full, _ = algorithm.prepare(batch_of(LENGTHS))
    batch, _ = algorithm.prepare(batch_of(LENGTHS).with_(keep=keep))
    torch.testing.assert_close(batch.advantage, full.advantage)
    # 20 steps, 2 of them in the row that is dropped.
    assert algorithm.counts(batch) == Counts(18, 3)
    evaluation = evaluation_of(batch)
    loss = algorithm.loss(batch, evaluation, algorithm.counts(batch))
    assert (gradients(loss.total, evaluation)[0][1] == 0).all()
    rows = torch.tensor([0, 2, 3])
    alone = algorithm.loss(full.select(rows), piece_of(evaluation, rows), Counts(18, 3))
    torch.testing.assert_close(loss.total, alone.total)


@pytest.mark.parametrize("name", [*NAMES, "everything"])
def test_no_row_kept_gives_zero_loss_and_finite_gradient(name):
    algorithm = EVERYTHING if name == "everything" else preset(name).algorithm
    batch, _ = algorithm.prepare(batch_of(LENGTHS).with_(keep=torch.zeros(4, dtype=torch.bool)))
    evaluation = evaluation_of(batch)
    loss = algorithm.loss(batch, evaluation, algorithm.counts(batch))
    assert loss.total.item() == 0
    assert all((g == 0).all() for g in gradients(loss.total, evaluation))


def test_filtered_rows_keep_their_fields_and_the_advantage_of_the_full_group():
    algorithm = preset("grpo").algorithm
    batch, _ = algorithm.prepare(batch_of(LENGTHS, reward=[1.0, 3.0, 0.0, 8.0]))
    rows = torch.tensor([0, 2, 3])
    small = batch.select(rows)
    for name in ("logp", "old_logp", "ref_logp", "reward", "advantage", "valid", "group"):
        torch.testing.assert_close(getattr(small, name), getattr(batch, name)[rows])
    # Row 0 keeps (1 − 2)/(1 + 1e−4), though its partner is gone.
    assert small.advantage[0, 0].item() == pytest.approx(-1 / 1.0001)


@pytest.mark.parametrize("name", NAMES)
def test_before_any_update_the_ratio_is_one_and_the_kl_zero(name):
    algorithm = preset(name).algorithm
    batch = batch_of(LENGTHS)
    batch, _ = algorithm.prepare(batch.with_(ref_logp=batch.old_logp))
    loss = algorithm.loss(batch, evaluation_of(batch, offset=0.0), algorithm.counts(batch))
    figures = {key: float(total / steps) for key, (total, steps) in loss.metrics.items()}
    assert (figures["ratio"], float(loss.maxima["ratio_max"])) == (1, 1)
    assert (figures["kl_old_k1"], figures["kl_old_k3"], figures["kl_reference"]) == (0, 0, 0)
    assert figures.get("clip_share", 0) == 0


def test_figures_by_hand():
    # ρ = 2, ½ with advantages +1, +1: the first is past the clip.
    # k1 = (−log 2 + log 2)/2 = 0, k3 = (1 − log 2 − ½ + log 2)/2 = ¼.
    batch = batch_of((2, 2), reward=[1.0, 1.0], group=[0, 0]).select(torch.tensor([0]))
    batch = batch.with_(advantage=torch.ones_like(batch.logp), old_logp=torch.zeros_like(batch.logp))
    batch = batch.with_(logp=torch.tensor([[0.1, -0.3]], dtype=torch.float64))
    logp = torch.tensor([[2.0, 0.5]], dtype=torch.float64).log()
    algorithm = Algorithm(GroupMean(), Clipped())
    loss = algorithm.loss(
        batch, Evaluation(logp, entropy=torch.full_like(logp, 0.4)), algorithm.counts(batch)
    )
    figures = {key: float(total / steps) for key, (total, steps) in loss.metrics.items()}
    assert figures["clip_share"] == 0.5
    assert figures["ratio"] == 1.25
    assert float(loss.maxima["ratio_max"]) == 2
    assert figures["kl_old_k1"] == pytest.approx(0, abs=1e-12)
    assert figures["kl_old_k3"] == pytest.approx(0.25)
    assert figures["sampler_gap"] == pytest.approx(0.2)
    assert figures["entropy"] == pytest.approx(0.4)
    assert figures["policy_loss"] == pytest.approx(-(1.2 + 0.5) / 2)


def test_without_old_logp_the_samplers_log_probabilities_are_the_old_ones():
    algorithm = preset("dapo").algorithm
    batch, _ = algorithm.prepare(batch_of(LENGTHS))
    evaluation = evaluation_of(batch)
    given = algorithm.loss(batch.with_(old_logp=batch.logp), evaluation, algorithm.counts(batch))
    left_out = algorithm.loss(batch.with_(old_logp=None), evaluation, algorithm.counts(batch))
    torch.testing.assert_close(given.total, left_out.total)


def test_kl_in_the_reward_enters_returns_and_row_scores():
    batch = batch_of(LENGTHS)
    penalty = torch.where(batch.valid, 0.5 * (batch.old_logp - batch.ref_logp), 0.0)
    algorithm = Algorithm(LeaveOneOut(), Reinforce(), KlInReward("k1", 0.5))
    prepared, _ = algorithm.prepare(batch)
    torch.testing.assert_close(prepared.reward, batch.reward - penalty)
    score = (batch.reward - penalty).sum(dim=1)
    torch.testing.assert_close(prepared.advantage[2, 0], score[2] - score[3])
    plain, _ = Algorithm(Return(), Reinforce()).prepare(batch.with_(reward=batch.reward - penalty))
    to_go, _ = Algorithm(Return(), Reinforce(), KlInReward("k1", 0.5)).prepare(batch)
    torch.testing.assert_close(to_go.advantage, plain.advantage)
    assert algorithm.kl_in_reward
    assert not Algorithm(LeaveOneOut(), Reinforce(), KlInReward("k1", 0.0)).needs_reference


def test_gae_fills_advantage_and_target():
    batch, _ = Algorithm(Gae(0.9), Clipped()).prepare(batch_of(LENGTHS))
    raw = batch.advantage
    torch.testing.assert_close(batch.target, raw + batch.value)
    scaled, _ = Algorithm(Gae(0.9, scale="batch", ddof=1, eps=0.0), Clipped()).prepare(batch_of(LENGTHS))
    steps = raw[batch.valid]
    torch.testing.assert_close(scaled.advantage[batch.valid], (steps - steps.mean()) / steps.std())
    torch.testing.assert_close(scaled.target, batch.target)
    expected = 1 - (batch.target - batch.value)[batch.valid].var() / batch.target[batch.valid].var()
    assert explained_variance(batch) == pytest.approx(expected.item())


def test_preparing_is_pure_and_keeps_no_gradient():
    batch = batch_of(LENGTHS)
    before = batch.reward.clone()
    batch.value.requires_grad_()
    algorithm = Algorithm(Gae(0.9), Clipped(), KlInReward("k1", 0.1))
    prepared, _ = algorithm.prepare(batch)
    torch.testing.assert_close(batch.reward, before)
    assert not prepared.advantage.requires_grad
    running = preset("reinforce_baseline").algorithm
    state = running.initial_state()
    _, later = running.prepare(batch, state)
    assert state == {"baseline": 0.0}
    assert later["baseline"] != 0


def test_sft_ignores_the_reward():
    algorithm = preset("sft").algorithm
    batch, _ = algorithm.prepare(batch_of(LENGTHS))
    evaluation = evaluation_of(batch)
    loss = algorithm.loss(batch, evaluation, algorithm.counts(batch))
    assert loss.total.item() == pytest.approx(-evaluation.logp[batch.valid].mean().item())
    assert not algorithm.is_surrogate
    assert preset("grpo").algorithm.is_surrogate


def test_nonfinite_numbers_name_their_rows():
    batch, _ = preset("grpo").algorithm.prepare(batch_of(LENGTHS))
    evaluation = evaluation_of(batch)
    assert nonfinite_rows(with_junk(batch), evaluation) == {}
    reward, logp = batch.reward.clone(), evaluation.logp.detach().clone()
    reward[2, 3] = float("nan")
    logp[3, 0], logp[0, 0] = 1e6, float("nan")
    found = nonfinite_rows(batch.with_(reward=reward), Evaluation(logp))
    assert found == {"reward": [2], "evaluation.logp": [0], "ratio": [0, 3]}


def test_what_can_never_run_is_refused():
    for name in ("grpo", "rloo", "dr_grpo", "exponential"):
        with pytest.raises(ValueError, match="group >= 2"):
            preset(name).algorithm.check(group=1, has_critic=True)
        preset(name).algorithm.check(group=2, has_critic=False)
    with pytest.raises(ValueError, match="critic"):
        preset("ppo").algorithm.check(group=1, has_critic=False)
    preset("ppo").algorithm.check(group=1, has_critic=True)
    preset("reinforce").algorithm.check(group=1, has_critic=False)


def test_missing_fields_are_named():
    batch, algorithm = batch_of(LENGTHS), preset("grpo").algorithm
    evaluation = evaluation_of(batch)
    with pytest.raises(ValueError, match="prepare"):
        algorithm.loss(batch, evaluation, algorithm.counts(batch))
    prepared, _ = algorithm.prepare(batch)
    with pytest.raises(ValueError, match="ref_logp"):
        algorithm.loss(prepared.with_(ref_logp=None), evaluation, algorithm.counts(batch))
    with pytest.raises(ValueError, match="ref_logp"):
        preset("rloo").algorithm.prepare(batch.with_(ref_logp=None))
    critic = preset("a2c").algorithm
    with pytest.raises(ValueError, match="critic"):
        critic.prepare(batch.with_(value=None, next_value=None))
    prepared, _ = critic.prepare(batch)
    with pytest.raises(ValueError, match="entropy=True"):
        critic.loss(prepared, Evaluation(evaluation.logp, value=evaluation.value), critic.counts(batch))
    with pytest.raises(ValueError, match="critic"):
        critic.loss(prepared, Evaluation(evaluation.logp, evaluation.entropy), critic.counts(batch))
    with pytest.raises(ValueError, match="prepare with a critic"):
        explained_variance(batch)


@pytest.mark.parametrize(
    "build",
    [
        lambda: Clipped(low=-0.1),
        lambda: Clipped(high=-0.1),
        lambda: Clipped(dual=1.0),
        lambda: Clipped(ratio="row"),
        lambda: Clipped(reduce="mean"),
        lambda: Clipped(length=0),
        lambda: GroupMean(scale="std"),
        lambda: GroupMean(ddof=2),
        lambda: GroupMean(eps=-1.0),
        lambda: Gae(lam=1.1),
        lambda: Return(reach="all"),
        lambda: Return(baseline="group"),
        lambda: Return(rate=0.0),
        lambda: KlInLoss("k1"),
        lambda: KlInLoss("k2", times_ratio=True),
        lambda: KlInLoss("k5"),
        lambda: KlInReward("k1", -1.0),
        lambda: Update(epochs=0),
        lambda: Update(minibatches=0),
        lambda: Update(kl_stop=0.0),
        lambda: Update(importance_cap=-1.0),
        lambda: Algorithm(Ones(), NegativeLogLikelihood(), gamma=1.5),
        lambda: Algorithm(Ones(), NegativeLogLikelihood(), value_coefficient=-1.0),
        lambda: Algorithm(Ones(), NegativeLogLikelihood(), value_clip=0.0),
    ],
)
def test_settings_out_of_range_are_refused(build):
    with pytest.raises(ValueError, match=r"must be|zero expected|biased"):
        build()
