"""The fast path beside autograd, and beside the plain path of the same policy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from acting import rollout
from gymnasium import spaces

from outdo.control import perceptron
from outdo.control.policy import ControlPolicy
from outdo.core.algorithm import Algorithm
from outdo.core.batch import Batch
from outdo.core.parts import Clipped, Gae, KlInLoss, NoKl, Return, Update
from outdo.training.optim import OptimiserSettings, adamw
from outdo.training.update import Updater

BOX, DISCRETE = spaces.Box(-1, 1, (4,)), spaces.Discrete(3)
COMBINED = spaces.Dict(
    {
        "a": DISCRETE,
        "b": spaces.Tuple((spaces.Box(-2, 1, (2,)), spaces.MultiBinary(2))),
        "c": spaces.MultiDiscrete([2, 3]),
    }
)
CASES = {
    "categorical": (BOX, DISCRETE, {}, None),
    "masked": (BOX, DISCRETE, {}, np.array([[1, 0, 1]] * 5)),
    "gaussian": (BOX, BOX, {"activation": "relu", "hidden": (7, 5, 6)}, None),
    "squashed": (BOX, BOX, {"box": "tanh", "critic": "shared"}, None),
    "combined": (COMBINED, COMBINED, {"box": "tanh"}, None),
    "linear": (BOX, COMBINED, {"hidden": (), "critic": "none"}, None),
}


def pair(name: str) -> tuple[ControlPolicy, ControlPolicy, object, object]:
    """The fast policy and the plain one with equal weights away from their initial values."""
    observation, action, settings, mask = CASES[name]
    made = [ControlPolicy(observation, action, fast=fast, **settings) for fast in (True, False)]
    for policy in made:
        generator = torch.Generator().manual_seed(1)
        with torch.no_grad():
            for parameter in policy.network.parameters():
                parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator))
    assert made[0].fast is not None
    assert made[1].fast is None
    return made[0], made[1], observation, mask


def relative(got: torch.Tensor, expected: torch.Tensor) -> float:
    return float((got - expected).detach().norm() / expected.detach().norm())


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_autograd(name):
    fast, plain, space, mask = pair(name)
    batch = rollout(plain, space, rows=5, steps=9, mask=mask)
    valid = torch.rand(5, 9, generator=torch.Generator().manual_seed(2)) < 0.8
    batch = batch.with_(valid=valid)
    found = []
    for policy in (fast, plain):
        evaluation = policy.evaluate(batch, entropy=True)
        weights = torch.randn(3, 5, 9, generator=torch.Generator().manual_seed(3))
        total = (weights[0] * evaluation.logp + weights[1] * evaluation.entropy).sum()
        if evaluation.value is not None:
            total = total + (weights[2] * evaluation.value).sum()
        total.backward()
        found.append((evaluation, policy.matrices.grad, policy.vectors.grad))
    (one, *gradients), (other, *expected) = found
    for field in ("logp", "entropy", "value"):
        if getattr(other, field) is not None:
            assert relative(getattr(one, field), getattr(other, field)) < 1e-6
    for got, right in zip(gradients, expected, strict=True):
        assert relative(got, right) < 1e-6


def learnt_from(policy: ControlPolicy, space: object, mask: object, rows: int, steps: int) -> Batch:
    """Steps with advantages and targets at random, whose old log-probabilities are near the policy's."""
    batch = rollout(policy, space, rows=rows, steps=steps, mask=mask)
    advantage, target, near = torch.randn(3, rows, steps, generator=torch.Generator().manual_seed(4))
    batch = batch.with_(old_logp=batch.logp + 0.2 * near, advantage=1 + advantage)
    return (batch if batch.value is None else batch.with_(target=target)).steps()


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("count", [1, 3, 150])
def test_the_gradient_of_a_minibatch_is_that_of_autograd(name, count):
    """Blocks of 64 rows and a rest, a few rows, and a single one, which has nothing to be standardised by."""
    fast, plain, space, mask = pair(name)
    steps = learnt_from(plain, space, mask, 5, 40)
    advantage = Return(scale="minibatch") if steps.value is None else Gae(scale="minibatch")
    algorithm = Algorithm(advantage, Clipped(0.1, 0.3), value_clip=0.2, entropy_coefficient=0.02)
    chosen = torch.randperm(200, generator=torch.Generator().manual_seed(5))[:count]
    made = [Updater(policy, algorithm, None, 1 << 20, torch.Generator()) for policy in (fast, plain)]
    direct = made[0]._direct(steps)
    assert direct is not None
    assert made[1]._direct(steps) is None
    made[0]._zero()
    sums = direct(chosen)
    figures, loss, _ = made[1].gradient(steps.select(chosen))
    assert relative(fast.matrices.grad, plain.matrices.grad) < 1e-6
    assert relative(fast.vectors.grad, plain.vectors.grad) < 1e-6
    assert algorithm.compiled.total(sums, count) == pytest.approx(loss, rel=1e-5, abs=1e-6)
    means, maxima = algorithm.figures(sums, gap=True)
    for key, (total, of) in figures.means.items():
        assert float(means[key][0]) == pytest.approx(float(total), rel=1e-4, abs=1e-4), key
        assert means[key][1] == of
    assert maxima["ratio_max"] == pytest.approx(float(figures.maxima["ratio_max"]), rel=1e-5)


def test_without_old_log_probabilities_the_ratio_is_one():
    fast, plain, space, mask = pair("categorical")
    steps = learnt_from(plain, space, mask, 4, 20).with_(old_logp=None)
    algorithm = Algorithm(Gae(), Clipped(), update=Update(1, 1))
    figures = Updater(fast, algorithm, adamw(fast, OptimiserSettings()), 1, torch.Generator())(steps)
    assert figures["ratio"] == figures["ratio_max"] == 1
    assert figures["kl_old_k3"] == 0
    assert "sampler_gap" not in figures


def test_other_losses_are_left_to_autograd():
    fast, plain, space, mask = pair("categorical")
    steps = learnt_from(plain, space, mask, 2, 3)
    for algorithm in (Algorithm(Gae(), Clipped(dual=3.0)), Algorithm(Gae(), Clipped(), KlInLoss("k3", 0.5))):
        assert Updater(fast, algorithm, None, 1, torch.Generator())._direct(steps) is None
    assert Updater(fast, Algorithm(Gae(), Clipped()), None, 1, torch.Generator())._direct(steps) is not None


def test_a_graph_whose_weights_have_changed_is_refused():
    fast, _, space, _ = pair("categorical")
    evaluation = fast.evaluate(rollout(fast, space))
    with torch.no_grad():
        fast.matrices.mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        evaluation.logp.sum().backward()


@pytest.mark.parametrize("name", ["categorical", "squashed"])
@pytest.mark.parametrize("kl", [NoKl(), KlInLoss("k3", 0.5)])
def test_an_update_is_that_of_the_plain_path(name, kl):
    """With a loss that knows its derivatives, and with one that autograd takes from the scores on."""
    after = []
    for policy in pair(name)[:2]:
        batch = rollout(pair(name)[1], CASES[name][0], rows=4, steps=6)
        chance = torch.Generator().manual_seed(1)
        advantage, target = torch.randn(2, 4, 6, generator=chance)
        batch = batch.with_(
            advantage=advantage, target=target, old_logp=batch.logp, ref_logp=batch.logp - 0.1 * advantage
        )
        if isinstance(kl, NoKl):
            batch = batch.with_(ref_logp=None)
        algorithm = Algorithm(Gae(), Clipped(), kl, Update(2, 3), entropy_coefficient=0.02)
        optimiser = adamw(policy, OptimiserSettings(1e-3))
        figures = Updater(policy, algorithm, optimiser, 8, torch.Generator().manual_seed(0))(batch)
        after.append((policy.matrices.detach(), policy.vectors.detach(), figures))
    assert relative(after[0][0], after[1][0]) < 1e-5
    assert relative(after[0][1], after[1][1]) < 1e-5
    for key, value in after[1][2].items():
        if not key.startswith("time/"):
            assert after[0][2][key] == pytest.approx(value, rel=1e-4, abs=1e-5), key


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("deterministic", [False, True])
def test_it_takes_the_same_actions(name, deterministic):
    fast, plain, space, mask = pair(name)
    from gymnasium.vector.utils import batch_space

    several = batch_space(space, 5)
    several.seed(0)
    for seed in range(20):
        obs, first = several.sample(), np.zeros(5, bool)
        acts = [
            policy.act(obs, None, first, np.random.default_rng(seed), deterministic=deterministic, mask=mask)
            for policy in (fast, plain)
        ]
        np.testing.assert_allclose(acts[0].raw, acts[1].raw, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(
            acts[0].logp, acts[1].logp, rtol=1e-5, atol=1e-5
        )  # sums of squares in float32
        if acts[1].value is not None:
            np.testing.assert_allclose(acts[0].value, acts[1].value, rtol=1e-5, atol=1e-6)
            values = fast.value(obs, None, first)
            np.testing.assert_allclose(values, acts[1].value, rtol=1e-5, atol=1e-6)


def test_one_backward_pass_does_not_spoil_another():
    fast, _, space, _ = pair("categorical")
    batch = rollout(fast, space)
    apart = []
    for part in ("logp", "value"):
        fast.matrices.grad.zero_()
        getattr(fast.evaluate(batch), part).sum().backward()
        apart.append(fast.matrices.grad.clone())
    fast.matrices.grad.zero_()
    two = [fast.evaluate(batch), fast.evaluate(batch)]  # both graphs at once, also from different batches
    (two[0].logp.sum() + two[1].value.sum()).backward()
    torch.testing.assert_close(fast.matrices.grad, apart[0] + apart[1])


def test_without_entropy_none_of_its_gradient_arrives():
    fast, _, space, _ = pair("categorical")
    evaluation = fast.evaluate(rollout(fast, space))
    assert evaluation.entropy is not None
    assert not evaluation.entropy.requires_grad
    assert fast.evaluate(rollout(fast, space), entropy=True).entropy.requires_grad


def test_weights_are_seen_as_soon_as_they_change():
    fast, plain, space, _ = pair("gaussian")
    batch = rollout(plain, space)
    for policy in (fast, plain):
        optimiser = torch.optim.AdamW([p for _, p in policy.named_parameters()], lr=0.1, fused=True)
        policy.evaluate(batch).logp.sum().backward()
        optimiser.step()
        policy.updated()
    obs, first = np.ones((2, 4), np.float32), np.zeros(2, bool)
    acts = [policy.act(obs, None, first, np.random.default_rng(0)) for policy in (fast, plain)]
    np.testing.assert_allclose(acts[0].raw, acts[1].raw, rtol=1e-4)
    np.testing.assert_allclose(acts[0].value, acts[1].value, rtol=1e-4)


def test_images_and_memory_take_the_plain_path():
    image = spaces.Box(0, 255, (8, 8, 3), np.uint8)
    assert ControlPolicy(image, DISCRETE, kind="cnn").fast is None
    assert ControlPolicy(BOX, DISCRETE, kind="gru").fast is None


def test_tanh_to_a_few_units_in_the_last_place():
    x = np.concatenate([np.linspace(-20, 20, 100_001), [0.0, -0.0, 1e-30, np.inf, -np.inf]]).astype(
        np.float32
    )
    got = x.copy()
    perceptron._tanh(got)
    np.testing.assert_allclose(got, np.tanh(x.astype(np.float64)), rtol=6e-7, atol=0)
    spoiled = np.array([np.nan], np.float32)
    perceptron._tanh(spoiled)
    assert np.isnan(spoiled[0])
