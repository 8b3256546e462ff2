"""Log-probabilities and entropies beside torch.distributions, closed forms, quadrature and finite differences."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import distributions as reference

from outdo.control.distributions import (
    SMALLEST_STD,
    Distribution,
    Part,
    bernoulli,
    categorical,
    gaussian,
    standard_deviation,
    tanh_gaussian,
)

DOUBLE = torch.float64


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def test_categorical_beside_torch():
    logits, index = numbers(20, 5), torch.arange(20) % 5
    other = reference.Categorical(logits=logits)
    logp, entropy = categorical(logits, index)
    torch.testing.assert_close(logp, other.log_prob(index))
    torch.testing.assert_close(entropy, other.entropy())


def test_forbidden_actions_are_not_there():
    # logits (0, log 3, junk) with the third forbidden: π = (1/4, 3/4)
    logits = torch.tensor([[0.0, math.log(3), 50.0]], requires_grad=True)
    allowed = torch.tensor([[True, True, False]])
    logp, entropy = categorical(logits, torch.tensor([1]), allowed)
    assert logp.item() == pytest.approx(math.log(0.75), abs=1e-6)
    assert entropy.item() == pytest.approx(-(0.25 * math.log(0.25) + 0.75 * math.log(0.75)), abs=1e-6)
    (logp + entropy).sum().backward()
    assert logits.grad is not None
    assert torch.isfinite(logits.grad).all()
    assert logits.grad[0, 2] == 0


def test_bernoulli_beside_torch():
    logits = numbers(20, 3)
    bits = (numbers(20, 3, seed=1) > 0).to(DOUBLE)
    other = reference.Independent(reference.Bernoulli(logits=logits), 1)
    logp, entropy = bernoulli(logits, bits)
    torch.testing.assert_close(logp, other.log_prob(bits))
    torch.testing.assert_close(entropy, other.entropy())


def test_gaussian_beside_torch():
    mean, log_std, x = numbers(20, 3), numbers(3, seed=1), numbers(20, 3, seed=2)
    other = reference.Independent(reference.Normal(mean, log_std.exp() + SMALLEST_STD), 1)
    logp, entropy = gaussian(mean, log_std, x)
    torch.testing.assert_close(logp, other.log_prob(x))
    torch.testing.assert_close(entropy, other.entropy())


def test_squashed_gaussian_beside_torch():
    mean, log_std, u = numbers(20, 2), numbers(2, seed=1), numbers(20, 2, seed=2)
    half, centre = torch.tensor([3.0, 0.5], dtype=DOUBLE), torch.tensor([1.0, 0.5], dtype=DOUBLE)
    transforms = [reference.TanhTransform(), reference.AffineTransform(centre, half)]
    base = reference.Normal(mean, standard_deviation(log_std))
    other = reference.Independent(reference.TransformedDistribution(base, transforms), 1)
    logp, _ = tanh_gaussian(mean, log_std, u, half)
    torch.testing.assert_close(logp, other.log_prob(centre + half * torch.tanh(u)), rtol=1e-9, atol=1e-9)


def test_squashed_gaussian_at_saturation():
    # u = 10: log(1 - tanh² u) = log 4 - 2u - 2 log(1 + e^(-2u)), here 1.3862944 - 20 - 4e-9
    u = torch.tensor([[10.0]])
    logp, _ = tanh_gaussian(u, torch.zeros(1), u, torch.ones(1))
    std = 1 + SMALLEST_STD
    expected = -math.log(std) - 0.5 * math.log(2 * math.pi) - (math.log(4) - 20)
    assert logp.item() == pytest.approx(expected, rel=1e-6)
    extreme, _ = tanh_gaussian(100 * u, torch.zeros(1), 100 * u, torch.ones(1))
    assert torch.isfinite(extreme).all()


def test_entropy_of_a_squashed_gaussian_and_its_gradient():
    """By quadrature over z: H = H[N] + ∫ φ(z) log(da/du)(μ + σz) dz, and its numerical derivatives."""
    z = torch.linspace(-8, 8, 4001, dtype=DOUBLE)
    weight = torch.exp(-0.5 * z**2) / math.sqrt(2 * math.pi) * (z[1] - z[0])

    def exact(mu: float, rho: float) -> float:
        std = math.exp(rho) + SMALLEST_STD
        u = mu + std * z
        slope = 2 * (math.log(2) - u - torch.nn.functional.softplus(-2 * u))
        return 0.5 + 0.5 * math.log(2 * math.pi) + math.log(std) + float((weight * slope).sum())

    mean = torch.full((len(z), 1), 0.7, dtype=DOUBLE, requires_grad=True)
    log_std = torch.tensor([-0.3], dtype=DOUBLE, requires_grad=True)
    u = (mean + standard_deviation(log_std) * z[:, None]).detach()
    _, entropy = tanh_gaussian(mean, log_std, u, torch.ones(1, dtype=DOUBLE))
    average = (weight * entropy).sum()
    average.backward()
    assert average.item() == pytest.approx(exact(0.7, -0.3), abs=1e-8)
    assert mean.grad is not None
    assert log_std.grad is not None
    h = 1e-5
    slope_mu = (exact(0.7 + h, -0.3) - exact(0.7 - h, -0.3)) / (2 * h)
    slope_rho = (exact(0.7, -0.3 + h) - exact(0.7, -0.3 - h)) / (2 * h)
    assert mean.grad.sum().item() == pytest.approx(slope_mu, abs=1e-7)
    assert log_std.grad.item() == pytest.approx(slope_rho, abs=1e-7)


def test_no_gradient_makes_the_standard_deviation_vanish():
    rho = torch.nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.SGD([rho], lr=50.0)
    for _ in range(100):
        optimiser.zero_grad()
        logp, _ = gaussian(torch.zeros(1, 1), rho, torch.zeros(1, 1))
        (-logp).sum().backward()  # the sample is the mean: the narrower, the likelier
        optimiser.step()
    std = standard_deviation(rho)
    assert torch.isfinite(rho).all()
    assert std.item() == pytest.approx(SMALLEST_STD, rel=1e-3)


def combined() -> Distribution:
    low, high = np.array([-1.0, -2.0], np.float32), np.array([1.0, 3.0], np.float32)
    return Distribution(
        (
            Part("categorical", 3),
            Part("gaussian", 2, low, high),
            Part("bernoulli", 2),
            Part("tanh_gaussian", 2, low, high),
            Part("categorical", 2),
        )
    )


def test_log_probabilities_of_parts_add_up():
    joint = combined()
    assert (joint.outputs, joint.width, joint.stds) == (11, 8, 4)
    outputs, log_std = numbers(6, 11), numbers(4, seed=1)
    noise = joint.noise(6, np.random.default_rng(0))
    raw = joint.sample(outputs, log_std, noise)
    logp, entropy = joint.score(outputs, log_std, raw)
    half = torch.tensor([1.0, 2.5], dtype=DOUBLE)
    parts = [
        categorical(outputs[:, :3], raw[:, 0].long()),
        gaussian(outputs[:, 3:5], log_std[:2], raw[:, 1:3]),
        bernoulli(outputs[:, 5:7], raw[:, 3:5]),
        tanh_gaussian(outputs[:, 7:9], log_std[2:], raw[:, 5:7], half),
        categorical(outputs[:, 9:], raw[:, 7].long()),
    ]
    torch.testing.assert_close(logp, sum(part[0] for part in parts))
    torch.testing.assert_close(entropy, sum(part[1] for part in parts))


def test_samples_have_the_probabilities_that_are_scored():
    """Frequencies of 40,000 draws beside exp(logp), within 5 standard errors."""
    joint = Distribution((Part("categorical", 4), Part("bernoulli", 1)))
    draws, rng = 40_000, np.random.default_rng(1)
    outputs = torch.tensor([[0.0, 1.0, -1.0, 2.0, 0.7]]).expand(draws, 5)
    mask = torch.tensor([[True, False, True, True, True]]).expand(draws, 5)
    raw = joint.sample(outputs, torch.zeros(0), joint.noise(draws, rng), mask)
    probability = joint.score(outputs, torch.zeros(0), raw, mask)[0].exp()
    for index in range(4):
        for bit in range(2):
            same = (raw[:, 0] == index) & (raw[:, 1] == bit)
            if index == 1:
                assert not same.any()
                continue
            expected = probability[same][0].item()
            error = math.sqrt(expected * (1 - expected) / draws)
            assert abs(same.float().mean().item() - expected) < 5 * error


def test_gaussian_samples_have_the_mean_and_deviation():
    joint = Distribution((Part("gaussian", 1),))
    draws = 40_000
    outputs, log_std = torch.full((draws, 1), 2.0), torch.tensor([math.log(0.5)])
    raw = joint.sample(outputs, log_std, joint.noise(draws, np.random.default_rng(0)))
    assert raw.mean().item() == pytest.approx(2, abs=5 * 0.5 / math.sqrt(draws))
    assert raw.std().item() == pytest.approx(0.5 + SMALLEST_STD, rel=5 / math.sqrt(2 * draws))


def test_the_mode_is_the_most_likely_action():
    joint = combined()
    outputs, log_std = numbers(50, 11), torch.zeros(4, dtype=DOUBLE)
    mode = joint.sample(outputs, log_std, None)
    other = joint.sample(outputs, log_std, joint.noise(50, np.random.default_rng(0)))
    discrete = Distribution((Part("categorical", 3),))
    best = discrete.score(outputs[:, :3], log_std, mode[:, :1])[0]
    assert (best >= discrete.score(outputs[:, :3], log_std, other[:, :1])[0]).all()
    torch.testing.assert_close(mode[:, 1:3], outputs[:, 3:5])
    assert torch.equal(mode[:, 3:5] == 1, outputs[:, 5:7] > 0)


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-24])
def test_a_forbidden_action_is_never_drawn_at_the_edges(uniform):
    joint = Distribution((Part("categorical", 3),))
    outputs = torch.zeros(1, 3)
    for only in range(3):
        mask = torch.zeros(1, 3, dtype=torch.bool)
        mask[0, only] = True
        noise = np.array([[uniform]], np.float32)
        assert joint.sample(outputs, torch.zeros(0), noise, mask).item() == only
