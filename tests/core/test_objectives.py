"""Objectives against hand arithmetic, five-line float64 references, finite differences and polgrad."""

import math

import polgrad
import pytest
import torch
from batches import batch_of, with_junk
from polgrad import Aggregation, ClipConfig, ISCorrectionConfig, PolicyLossConfig, RatioKind, SurrogateKind

from outdo.core import objectives

ONE = torch.ones(1, 1, dtype=torch.bool)


def clip_at(rho, advantage, **settings):
    """Surrogate (not negated) and its derivative in ρ, at one step."""
    logp = torch.tensor([[math.log(rho)]], dtype=torch.float64, requires_grad=True)
    fixed = torch.tensor([[advantage]], dtype=torch.float64)
    loss, flat = objectives.clipped(logp, torch.zeros_like(fixed), fixed, ONE, **settings)
    loss.sum().backward()
    return -loss.item(), -logp.grad.item() / rho, bool(flat.item())


def case(seed=0):
    """logp with gradient, old, advantage, mask from a ragged batch; ratios well off 1."""
    batch = batch_of(seed=seed)
    generator = torch.Generator().manual_seed(seed + 50)
    logp = batch.old_logp + 0.4 * torch.randn(batch.logp.shape, generator=generator, dtype=torch.float64)
    advantage = torch.randn(batch.logp.shape, generator=generator, dtype=torch.float64)
    return logp.requires_grad_(), batch.old_logp, advantage, batch.valid


@pytest.mark.parametrize(
    ("advantage", "rho", "surrogate"),
    [(2, 1.1, 2.2), (2, 1.5, 2.4), (-2, 0.9, -1.8), (-2, 0.5, -1.6), (3, 1.3, 3.6), (3, 0.7, 2.1)],
)
def test_f8_values(advantage, rho, surrogate):
    assert clip_at(rho, advantage)[0] == pytest.approx(surrogate)


@pytest.mark.parametrize(
    ("advantage", "rho", "is_flat"), [(1, 1.3, True), (1, 0.7, False), (-1, 0.7, True), (-1, 1.3, False)]
)
def test_f9_where_the_gradient_is_zero(advantage, rho, is_flat):
    _, slope, flat = clip_at(rho, advantage)
    assert flat is is_flat
    assert slope == pytest.approx(0 if is_flat else advantage)


def test_a_zero_advantage_is_not_counted_as_clipped():
    assert clip_at(3.0, 0.0) == (0, 0, False)


def test_asymmetric_clip():
    # DAPO: 1.25 is inside 1.28; 1.3 is cut at 1.28; below, 0.7 is cut at 0.8.
    assert clip_at(1.25, 1, low=0.2, high=0.28)[:2] == pytest.approx((1.25, 1))
    assert clip_at(1.3, 1, low=0.2, high=0.28)[:2] == pytest.approx((1.28, 0))
    assert clip_at(0.7, -1, low=0.2, high=0.28)[:2] == pytest.approx((-0.8, 0))


def test_dual_clip_bounds_a_negative_advantage():
    # ρ=5, A=−2: −10 without, max(−10, 3·−2) = −6 with c=3, and no gradient; ρ=2 and A>0 are untouched.
    assert clip_at(5.0, -2)[0] == pytest.approx(-10)
    assert clip_at(5.0, -2, dual=3.0) == (pytest.approx(-6), pytest.approx(0), True)
    assert clip_at(2.0, -2, dual=3.0) == (pytest.approx(-4), pytest.approx(-2), False)
    assert clip_at(5.0, 2, dual=3.0)[0] == pytest.approx(2.4)


def test_f17_a_sample_past_the_clip_gets_no_gradient():
    logp, old, advantage, mask = case()
    loss, flat = objectives.clipped(logp, old, advantage, mask)
    loss.sum().backward()
    assert 0 < flat.sum() < mask.sum()
    assert (logp.grad[flat] == 0).all()
    assert (logp.grad[mask & ~flat] != 0).all()


def test_sequence_ratios_by_hand():
    # log ρ = (0.1, 0.2) and (0.4): sums 0.3 and 0.4, means 0.15 and 0.4, the same on every step of a row.
    logp = torch.tensor([[0.1, 0.2], [0.4, 9.0]])
    mask = torch.tensor([[True, True], [True, False]])
    zero = torch.zeros_like(logp)
    expected = {
        "token": [[0.1, 0.2], [0.4, 0]],
        "sequence": [[0.3, 0.3], [0.4, 0]],
        "length_normalised": [[0.15, 0.15], [0.4, 0]],
    }
    for kind, numbers in expected.items():
        torch.testing.assert_close(objectives.log_ratio(logp, zero, mask, kind), torch.tensor(numbers))
    with pytest.raises(ValueError, match="length_normalised"):
        objectives.log_ratio(logp, zero, mask, "sentence")


def reference(name, logp, old, advantage, mask):
    """Each loss summed over the mask in plain float64 arithmetic, and its gradient in logp by formula."""
    total, gradient = 0.0, torch.zeros_like(logp)
    for i in range(len(logp)):
        steps = [t for t in range(logp.shape[1]) if mask[i, t]]
        row = math.exp(sum(float(logp[i, t] - old[i, t]) for t in steps))
        for t in steps:
            x, a = float(logp[i, t]), float(advantage[i, t])
            rho = math.exp(x - float(old[i, t]))
            if name == "reinforce":
                total, gradient[i, t] = total - a * x, -a
            elif name == "nll":
                total, gradient[i, t] = total - x, -1
            elif name == "cispo":
                total, gradient[i, t] = total - min(rho, 1.3) * a * x, -min(rho, 1.3) * a
            else:
                low, high = (0.2, 0.28) if name in ("clipped", "dual") else (0.1, 0.15)
                ratio = {"sequence": row, "gspo": row ** (1 / len(steps))}.get(name, rho)
                bounded = min(max(ratio, 1 - low), 1 + high)
                value = min(ratio * a, bounded * a)
                if name == "dual" and a < 0:
                    value = max(value, 1.4 * a)
                total -= value
                if value == ratio * a:
                    if name in ("clipped", "dual"):
                        gradient[i, t] -= ratio * a
                    else:
                        for s in steps:
                            gradient[i, s] -= ratio * a / (len(steps) if name == "gspo" else 1)
    return total, gradient


LOSSES = {
    "reinforce": lambda x, o, a, m: objectives.reinforce(x, a, m),
    "nll": lambda x, o, a, m: objectives.negative_log_likelihood(x, m),
    "clipped": lambda x, o, a, m: objectives.clipped(x, o, a, m, 0.2, 0.28)[0],
    "dual": lambda x, o, a, m: objectives.clipped(x, o, a, m, 0.2, 0.28, 1.4)[0],
    "sequence": lambda x, o, a, m: objectives.clipped(x, o, a, m, 0.1, 0.15, None, "sequence")[0],
    "gspo": lambda x, o, a, m: objectives.clipped(x, o, a, m, 0.1, 0.15, None, "length_normalised")[0],
    "cispo": lambda x, o, a, m: objectives.cispo(x, o, a, m, None, 0.3)[0],
}


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_value_and_gradient_equal_a_plain_reference(name, seed):
    logp, old, advantage, mask = case(seed)
    loss = LOSSES[name](logp, old, advantage, mask).sum()
    loss.backward()
    total, gradient = reference(name, logp.detach(), old, advantage, mask)
    assert loss.item() == pytest.approx(total)
    torch.testing.assert_close(logp.grad, gradient)


@pytest.mark.parametrize("name", ["reinforce", "nll", "clipped", "dual", "sequence", "gspo"])
def test_gradients_equal_finite_differences(name):
    logp, old, advantage, mask = case(4)
    torch.autograd.gradcheck(lambda x: LOSSES[name](x, old, advantage, mask), (logp,))


@pytest.mark.parametrize("name", LOSSES)
def test_advantage_and_old_logp_are_constants(name):
    # A forgotten detach would give them a gradient, and the policy one through them.
    logp, old, advantage, mask = case()
    old, advantage = old.clone().requires_grad_(), advantage.clone().requires_grad_()
    LOSSES[name](logp, old, advantage, mask).sum().backward()
    assert old.grad is None
    assert advantage.grad is None


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("junk", [float("nan"), float("inf"), 1e30])
def test_junk_under_the_mask_has_no_influence(name, junk):
    logp, old, advantage, mask = case()
    clean = LOSSES[name](logp, old, advantage, mask)
    (wanted,) = torch.autograd.grad(clean.sum(), logp)
    dirty = torch.where(mask, logp.detach(), junk).requires_grad_()
    got = LOSSES[name](dirty, torch.where(mask, old, junk), torch.where(mask, advantage, junk), mask)
    (gradient,) = torch.autograd.grad(got.sum(), dirty)
    torch.testing.assert_close(got, clean, rtol=0, atol=0)
    torch.testing.assert_close(gradient, wanted, rtol=0, atol=0)
    assert (got[~mask] == 0).all()


@pytest.mark.parametrize("name", LOSSES)
def test_equal_shapes_are_demanded(name):
    logp, old, advantage, mask = case()
    for wrong in range(4):
        args = [x[:, :1] if i == wrong else x for i, x in enumerate((logp, old, advantage, mask))]
        if (name in ("reinforce", "nll") and wrong == 1) or (name == "nll" and wrong == 2):
            continue
        with pytest.raises(ValueError, match="equal shapes"):
            LOSSES[name](*args)


def polgrad_loss(config, logp, old, advantage, mask, **more):
    tensors = {"logprobs": logp, "old_logprobs": old, "advantages": advantage, "response_mask": mask}
    return polgrad.policy_loss(config, **tensors, **more).loss


def test_a_nan_is_never_hidden_by_the_clip():
    # ρ = ∞ with A = 0 is 0·∞: a minimum that ignores NaN would answer 0.
    logp = torch.tensor([[1000.0, float("nan"), 0.0]])
    advantage = torch.tensor([[0.0, 1.0, float("nan")]])
    mask = torch.ones(1, 3, dtype=torch.bool)
    for dual in (None, 3.0):
        loss, _ = objectives.clipped(logp, torch.zeros(1, 3), advantage, mask, dual=dual)
        assert loss.isnan().all()


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("reinforce", {"surrogate": SurrogateKind.REINFORCE, "clip": None}),
        ("clipped", {"surrogate": SurrogateKind.PG_CLIP, "clip": ClipConfig(eps_low=0.2, eps_high=0.28)}),
        (
            "dual",
            {
                "surrogate": SurrogateKind.PG_CLIP,
                "clip": ClipConfig(eps_low=0.2, eps_high=0.28, ratio_cap=1.4),
            },
        ),
        ("cispo", {"surrogate": SurrogateKind.CISPO, "clip": ClipConfig(eps_low=None, eps_high=0.3)}),
        (
            "gspo",
            {
                "surrogate": SurrogateKind.PG_CLIP,
                "clip": ClipConfig(eps_low=0.1, eps_high=0.15),
                "ratio": RatioKind.SEQUENCE,
            },
        ),
    ],
)
def test_equal_to_polgrad(name, config):
    logp, old, advantage, mask = case(3)
    settings = PolicyLossConfig(
        **({"ratio": RatioKind.TOKEN, "aggregation": Aggregation.TOKEN_MEAN} | config)
    )
    theirs = polgrad_loss(settings, logp, old, advantage, mask)
    ours = LOSSES[name](logp, old, advantage, mask).sum() / mask.sum()
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(torch.autograd.grad(ours, logp), torch.autograd.grad(theirs, logp))


def test_f18_a_step_on_reinforce_raises_the_probability_of_a_good_action():
    logits = torch.zeros(1, 2, dtype=torch.float64, requires_grad=True)
    logp = torch.log_softmax(logits, dim=-1)[:, :1]
    objectives.reinforce(logp, torch.ones_like(logp), ONE).sum().backward()
    torch.testing.assert_close(-logits.grad, torch.tensor([[0.5, -0.5]], dtype=torch.float64))


def test_importance_weight_by_hand():
    # log(trainer/sampler) = log 1.5, log 4, log 0.5 with cap 2: 1.5, 2, 0.5; 1 outside the mask.
    trainer = torch.tensor([[1.5, 4.0, 0.5, 7.0]], dtype=torch.float64).log().requires_grad_()
    mask = torch.tensor([[True, True, True, False]])
    weight = objectives.importance_weight(trainer, torch.zeros_like(trainer), mask, 2.0)
    torch.testing.assert_close(weight, torch.tensor([[1.5, 2, 0.5, 1]], dtype=torch.float64))
    assert not weight.requires_grad


def test_importance_weight_equals_polgrads_truncated_correction():
    logp, old, advantage, mask = case(5)
    sampler = batch_of(seed=5).logp + 0.3
    config = PolicyLossConfig(
        ratio=RatioKind.TOKEN,
        surrogate=SurrogateKind.PG_CLIP,
        clip=ClipConfig(eps_low=0.2, eps_high=0.2),
        aggregation=Aggregation.TOKEN_MEAN,
        is_correction=ISCorrectionConfig(cap=0.9),
    )
    theirs = polgrad_loss(config, logp, old, advantage, mask, rollout_logprobs=sampler)
    terms = objectives.clipped(logp, old, advantage, mask)[0]
    ours = (terms * objectives.importance_weight(old, sampler, mask, 0.9)).sum() / mask.sum()
    torch.testing.assert_close(ours, theirs)


def test_value_losses_by_hand():
    value = torch.tensor([[3.0, 1.0, 2.0]], requires_grad=True)
    target, old = torch.tensor([[1.0, 1.5, 9.0]]), torch.tensor([[2.0, 1.0, 2.0]])
    mask = torch.tensor([[True, True, False]])
    # (3−1)² = 4, (1−1.5)² = .25.
    torch.testing.assert_close(objectives.value_mse(value, target, mask), torch.tensor([[4.0, 0.25, 0]]))
    # Near V: 2 + .5 = 2.5 → 2.25 < 4, so 4; the second stays.
    clipped = objectives.value_clipped(value, old, target, mask, 0.5)
    torch.testing.assert_close(clipped, torch.tensor([[4.0, 0.25, 0]]))
    # A value that moved to the target past the width is held: V=3, old=5, target=1: (4.5−1)² = 12.25, flat.
    far = objectives.value_clipped(value, torch.full_like(old, 5.0), target, mask, 0.5)
    assert far[0, 0].item() == pytest.approx(12.25)
    (gradient,) = torch.autograd.grad(far[0, 0], value)
    assert gradient[0, 0] == 0


@pytest.mark.parametrize("clip", [None, 0.2])
def test_value_losses_are_twice_polgrads_and_mask_junk(clip):
    batch = batch_of(seed=6)
    value = (batch.value + 0.5 * batch.next_value).requires_grad_()

    def ours(v, old, target):
        if clip is None:
            return objectives.value_mse(v, target, batch.valid)
        return objectives.value_clipped(v, old, target, batch.valid, clip)

    theirs = polgrad.value_loss(
        value, batch.value, batch.logp, batch.valid, clip_eps=clip, aggregation=Aggregation.TOKEN_MEAN
    ).loss
    loss = ours(value, batch.value, batch.logp).sum() / batch.valid.sum()
    torch.testing.assert_close(loss, 2 * theirs)
    wanted = torch.autograd.grad(loss, value)
    torch.testing.assert_close(wanted, torch.autograd.grad(2 * theirs, value))
    junk = with_junk(batch)
    dirty = torch.where(batch.valid, value.detach(), float("nan")).requires_grad_()
    again = ours(dirty, junk.value, junk.logp).sum() / batch.valid.sum()
    torch.testing.assert_close(torch.autograd.grad(again, dirty), wanted)
    target = batch.logp.clone().requires_grad_()
    old = batch.value.clone().requires_grad_()
    ours(value, old, target).sum().backward()
    assert target.grad is None
    assert old.grad is None


def test_dpo_closed_form_and_gradient():
    # h = .1·[(−1 + 2) − (−3 + 2.5)] = .15; −log σ(.15); dh/dchosen = β: gradient −β·σ(−h).
    chosen = torch.tensor([-1.0], dtype=torch.float64, requires_grad=True)
    rejected = torch.tensor([-3.0], dtype=torch.float64, requires_grad=True)
    reference = [torch.tensor([x], dtype=torch.float64, requires_grad=True) for x in (-2.0, -2.5)]
    loss = objectives.dpo(chosen, rejected, *reference, beta=0.1)
    assert loss.item() == pytest.approx(math.log1p(math.exp(-0.15)))
    loss.sum().backward()
    slope = 0.1 / (1 + math.exp(0.15))
    assert chosen.grad.item() == pytest.approx(-slope)
    assert rejected.grad.item() == pytest.approx(slope)
    assert reference[0].grad is None
    assert reference[1].grad is None
    smooth = objectives.dpo(chosen, rejected, *reference, beta=0.1, label_smoothing=0.2).item()
    assert smooth == pytest.approx(0.8 * math.log1p(math.exp(-0.15)) + 0.2 * math.log1p(math.exp(0.15)))
    with pytest.raises(ValueError, match="equal shapes"):
        objectives.dpo(chosen, rejected[:, None], *reference)


def test_dpo_of_equal_policies_is_log_two():
    logp = torch.randn(5, dtype=torch.float64)
    loss = objectives.dpo(logp, logp - 1, logp, logp - 1)
    torch.testing.assert_close(loss, torch.full_like(logp, math.log(2)))
