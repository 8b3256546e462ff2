"""`check_estimator` finds the faults that theory says are there, passes what is right, refuses what is neither."""

from functools import partial

import pytest
import torch

from outdo import lab
from outdo.core import objectives, returns
from outdo.core.parts import ExponentialWeights, Gae, GroupMean, LeaveOneOut, Return
from outdo.lab import check

QUICK = {"batches": 1_000}
BANDIT = {"bandit": check.exact_environments()["bandit"]}


def to_go(batch):
    return returns.reward_to_go(batch.reward, batch.discount, batch.cut, batch.valid)


def less_the_critic(batch):
    return to_go(batch) - batch.value


def flipped(batch):
    return -to_go(batch)


def by_numpy(batch):
    return to_go(batch).numpy()


def climb(loss, logits):
    return -torch.autograd.grad(loss.sum(dim=1).mean(), logits)[0]


def gradient(batch, logits):
    return climb(objectives.reinforce(lab.logp(logits, batch), to_go(batch), batch.valid), logits)


def descends(batch, logits):
    return -gradient(batch, logits)


def halved(batch, logits):
    return gradient(batch, logits) / 2


def live_advantage(batch, logits):
    """The advantage holds log π and is not held constant: its own derivative joins in."""
    logp = lab.logp(logits, batch)
    return climb(-(to_go(batch) - 0.5 * logp) * logp, logits)


def live_in_batch(batch):
    return to_go(batch) * (batch.logp - batch.logp + 1)


def ignores_groups(batch):
    """The mean of the whole batch, prompts of all kinds."""
    score = batch.reward.sum(dim=1, keepdim=True)
    return (score - score.mean()).expand_as(batch.logp)


# -- what is right passes ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "estimator",
    [LeaveOneOut(), Return(), Return("episode"), Gae(1.0), less_the_critic, by_numpy, gradient],
    ids=lambda each: getattr(each, "__name__", repr(each)),
)
def test_unbiased_estimators_pass(estimator):
    report = lab.check_estimator(estimator, **QUICK)
    assert report.ok, str(report)
    assert len(report.cases) == 4
    for case in report.cases:
        assert case.verdict == "unbiased within the interval"
        assert case.scale.low <= 1 <= case.scale.high
        assert case.wrong == 0
        assert case.cosine.value > 0.98
    assert str(report).endswith("ok: unbiased within the intervals")


def test_false_alarms_are_as_rare_as_said():
    # 1 % each: two among twelve would happen once in 160 times.
    reports = [lab.check_estimator(LeaveOneOut(), environments=BANDIT, seed=s, **QUICK) for s in range(12)]
    assert sum(not report.ok for report in reports) <= 1


# -- what is wrong is found -------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [2, 4])
def test_the_group_mean_shrinks_by_g_minus_1_over_g(size):
    report = lab.check_estimator(GroupMean(scale="none"), group=size, **QUICK)
    assert not report.ok
    for case in report.cases:
        assert not case.ok
        assert case.scale.low <= (size - 1) / size <= case.scale.high
        assert f"(G − 1)/G = {(size - 1) / size:.3g}" in case.verdict


@pytest.mark.parametrize("estimator", [flipped, descends])
def test_a_flipped_sign_is_named_everywhere(estimator):
    report = lab.check_estimator(estimator, **QUICK)
    for case in report.cases:
        assert case.verdict.startswith("wrong sign")
        assert case.scale.low <= -1 <= case.scale.high
        assert case.right == 0
        assert case.wrong > 0
        assert case.cosine.high < -0.9
    assert not report.ok


def test_gae_is_biased_where_the_critic_is_wrong_and_only_there():
    report = lab.check_estimator(Gae(0.5), **QUICK)
    assert [case.ok for case in report.cases] == [True, True, True, False]
    assert "it trusts the critic" in report.cases[-1].verdict
    assert str(report).endswith("NOT ok: grid world, wrong critic")


def test_a_missing_detach_turns_the_gradient():
    report = lab.check_estimator(live_advantage, **QUICK)
    assert not report.ok
    assert all(case.verdict.startswith("biased: it points elsewhere") for case in report.cases[1:])


def test_advantages_that_carry_a_gradient_are_noted_though_their_values_are_right():
    report = lab.check_estimator(live_in_batch, environments=BANDIT, **QUICK)
    assert all(case.ok for case in report.cases)
    assert not report.ok
    assert "detach" in str(report)


def test_a_factor_is_told():
    report = lab.check_estimator(halved, environments=BANDIT, group=1, seed=1, **QUICK)
    assert report.cases[0].verdict == f"right direction, shrunk by {report.cases[0].scale.value:.3g}"
    assert report.cases[0].scale.low <= 0.5 <= report.cases[0].scale.high
    tripled = lab.check_estimator(lambda batch: 3 * to_go(batch), environments=BANDIT, **QUICK)
    assert "stretched by" in tripled.cases[0].verdict
    assert tripled.cases[0].scale.low <= 3 <= tripled.cases[0].scale.high


def test_no_signal_is_told():
    report = lab.check_estimator(lambda batch: torch.ones_like(batch.logp), environments=BANDIT, **QUICK)
    assert report.cases[0].verdict.startswith("no gradient")
    report = lab.check_estimator(lambda batch: torch.zeros_like(batch.logp), environments=BANDIT, **QUICK)
    assert report.cases[0].verdict.startswith("no gradient")


def test_a_baseline_of_the_batch_shrinks_by_its_own_share():
    # One group of four rows: the row's own score is a quarter of the baseline.
    report = lab.check_estimator(ignores_groups, environments=BANDIT, group=4, groups=1, **QUICK)
    assert report.cases[0].scale.low <= 0.75 <= report.cases[0].scale.high
    assert not report.ok


def test_weights_that_imitate_the_best_point_elsewhere_or_stretch():
    assert not lab.check_estimator(ExponentialWeights(5.0), **QUICK).ok


# -- the numbers ------------------------------------------------------------------------------------------


def test_variance_and_errors_of_known_noise():
    """A gradient that is exact but for a fair coin of ±1 in one parameter: variance 1 there, 0 elsewhere."""
    coins = iter(torch.randint(2, (4_000,), generator=torch.Generator().manual_seed(0)).tolist())
    world = BANDIT["bandit"]

    def noisy(batch, logits):
        estimate = world.gradient(logits)
        estimate[0, 2] += 2 * next(coins) - 1
        return estimate

    (case,) = lab.check_estimator(noisy, environments=BANDIT, batches=4_000).cases
    assert case.ok
    assert case.variance[0].tolist() == pytest.approx([0, 0, 1, 0], abs=1e-3)
    assert case.total_variance.low <= 1.001
    assert case.total_variance.value == pytest.approx(1, abs=1e-3)
    assert float(case.error[0, 2]) == pytest.approx(4_000**-0.5, rel=1e-3)
    assert float(case.bias[0, 0]) == pytest.approx(0, abs=1e-12)


def test_the_variance_of_reinforce_by_hand():
    # One pull, no noise: estimate r·(1[a = i] − π_i). Variance Σ_i Σ_a π_a r_a² (1[a=i] − π_i)² − |∇J|².
    world = lab.Bandit((1.0, 3.0))
    generator = torch.Generator().manual_seed(0)
    policy = torch.softmax(0.5 * torch.randn(1, 2, dtype=torch.float64, generator=generator), dim=-1)[
        0
    ].tolist()
    squares = sum(
        policy[a] * (1.0, 3.0)[a] ** 2 * ((a == i) - policy[i]) ** 2 for a in range(2) for i in range(2)
    )
    slope = 2 * (policy[0] * policy[1] * 2.0) ** 2
    report = lab.check_estimator(to_go, environments={"two arms": world}, group=1, groups=1, batches=4_000)
    assert report.cases[0].total_variance.low <= squares - slope <= report.cases[0].total_variance.high


# -- what is no estimator ---------------------------------------------------------------------------------


def raises(batch):
    raise ZeroDivisionError("on purpose")


def holes(batch):
    return torch.where(batch.valid & (batch.reward > batch.reward.min()), torch.nan, to_go(batch))


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (raises, "raised ZeroDivisionError on the bandit: on purpose"),
        (lambda batch: None, "lack a return"),
        (lambda batch: "much", "returned str on the bandit"),
        (lambda batch: to_go(batch)[:, 0], r"shape \[B, T\] = \(8, 1\) on the bandit, got \(8,\)"),
        (holes, r"returned nan on the bandit: row \d, step 0, rewards"),
        (lambda batch: to_go(batch) / 0, "returned -?inf on the bandit"),
        (lambda batch, logits: logits[0], r"shape \[S, A\] = \(1, 4\)"),
        (lambda batch, logits: logits * torch.inf, "state 0, action 0"),
        (Gae(1.0), None),
    ],
)
def test_what_is_no_estimate_is_refused_with_the_place(estimator, message):
    if message is None:
        assert lab.check_estimator(estimator, environments=BANDIT, batches=50).kind == "advantage"
        return
    with pytest.raises(lab.EstimatorError, match=message):
        lab.check_estimator(estimator, **QUICK)


@pytest.mark.parametrize(
    ("estimator", "message"),
    [
        (3, "got int"),
        (None, "got NoneType"),
        (lambda: 1, "needs 0 arguments"),
        (lambda a, b, c: 1, "needs 3 arguments"),
        (max, "kind="),
    ],
)
def test_what_is_no_function_is_refused(estimator, message):
    with pytest.raises(TypeError, match=message):
        lab.check_estimator(estimator)


def test_functions_with_settings_of_their_own():
    def scaled(batch, factor=1.0, *, shift=0.0):
        return factor * to_go(batch) + shift

    assert lab.check_estimator(scaled, environments=BANDIT, **QUICK).ok
    assert lab.check_estimator(partial(scaled, factor=1.0), environments=BANDIT, **QUICK).name == "partial"
    many = lab.check_estimator(lambda *given: to_go(given[0]), kind="advantage", environments=BANDIT, **QUICK)
    assert many.ok


@pytest.mark.parametrize(
    "settings", [{"group": 0}, {"groups": 0}, {"batches": 1}, {"confidence": 1.0}, {"environments": {}}]
)
def test_settings_that_cannot_be(settings):
    with pytest.raises(ValueError, match="check_estimator needs"):
        lab.check_estimator(to_go, **settings)


def test_what_a_function_does_to_its_batch_stays_with_it():
    def clobbers(batch):
        advantage = to_go(batch)
        batch.reward.zero_()
        batch.value.fill_(torch.nan)
        return advantage

    assert lab.check_estimator(clobbers, environments=BANDIT, **QUICK).ok
