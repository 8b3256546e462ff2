"""Schedules as closed forms, decay, clipping, moments."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from outdo.training.optim import (
    OptimiserSettings,
    adamw,
    clip_gradient,
    gradient_norm,
    learning_rate,
    load_moments,
    moments,
    set_learning_rate,
    step,
)


class Two:
    """A matrix and a vector, named as given."""

    def __init__(self, **parameters: torch.Tensor) -> None:
        self.named = {name: nn.Parameter(value.clone()) for name, value in parameters.items()}

    def named_parameters(self):
        return iter(self.named.items())


def test_constant_linear_and_cosine_by_hand():
    def rates(schedule, warmup=0, final=0.0):
        settings = OptimiserSettings(learning_rate=1.0, warmup=warmup, schedule=schedule, final_share=final)
        return [learning_rate(settings, step, 5) for step in range(5)]

    assert rates("constant") == [1.0] * 5
    assert rates("linear") == [1.0, 0.75, 0.5, 0.25, 0.0]
    assert rates("linear", final=0.2) == pytest.approx([1.0, 0.8, 0.6, 0.4, 0.2])
    # 0.5 (1 + cos(pi k / 4)) for k = 0 … 4
    assert rates("cosine") == pytest.approx([1.0, 0.5 + math.sqrt(2) / 4, 0.5, 0.5 - math.sqrt(2) / 4, 0.0])
    # Two steps of warm-up, 1/2 and 1; then three steps from 1 to 0.
    assert rates("linear", warmup=2) == [0.5, 1.0, 1.0, 0.5, 0.0]
    assert rates("constant", warmup=4) == [0.25, 0.5, 0.75, 1.0, 1.0]


def test_a_stage_of_one_step_trains():
    assert learning_rate(OptimiserSettings(learning_rate=1.0, schedule="cosine"), 0, 1) == 1.0


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("learning_rate", -1.0),
        ("learning_rate", math.nan),
        ("betas", (0.9, 1.0)),
        ("eps", 0.0),
        ("weight_decay", -0.1),
        ("warmup", -1),
        ("final_share", 1.5),
    ],
)
def test_settings_that_mean_nothing_are_refused(field, value):
    with pytest.raises(ValueError, match=field):
        OptimiserSettings(**{field: value})


@pytest.mark.parametrize("matrix", ["weight", "matrices"])
def test_weight_decay_touches_matrices_only(matrix):
    flat = torch.ones(4) if matrix == "matrices" else torch.ones(2, 2)
    policy = Two(**{matrix: flat, "bias": torch.ones(2)})
    optimiser = adamw(policy, OptimiserSettings(learning_rate=0.1, weight_decay=0.5))
    for parameter in policy.named.values():
        parameter.grad = torch.zeros_like(parameter)
    optimiser.step()
    # Decoupled: w <- w (1 - lr * decay) = 0.95; gradients are zero, so nothing else moves.
    assert torch.allclose(policy.named[matrix], torch.tensor(0.95))
    assert torch.equal(policy.named["bias"], torch.ones(2))


def test_the_first_step_of_adam_is_the_learning_rate():
    policy = Two(weight=torch.zeros(1, 2))
    optimiser = adamw(policy, OptimiserSettings(learning_rate=123.0, eps=1e-12))
    set_learning_rate(optimiser, 0.1)
    policy.named["weight"].grad = torch.tensor([[3.0, -0.5]])
    optimiser.step()
    assert torch.allclose(policy.named["weight"], torch.tensor([[-0.1, 0.1]]))


@pytest.mark.parametrize("more", [1, 9])  # few tensors are handled one by one
def test_norm_and_clip(more):
    parameters = [nn.Parameter(torch.zeros(2)), *(nn.Parameter(torch.zeros(1)) for _ in range(1 + more))]
    parameters[0].grad, parameters[1].grad = torch.tensor([3.0, 0.0]), torch.tensor([4.0])
    assert gradient_norm(parameters) == 5.0
    clip_gradient(parameters, 5.0, 10.0)
    clip_gradient(parameters, 5.0, None)
    assert parameters[0].grad.tolist() == [3.0, 0.0]
    clip_gradient(parameters, 5.0, 1.0)
    torch.testing.assert_close(parameters[0].grad, torch.tensor([0.6, 0.0]))
    torch.testing.assert_close(parameters[1].grad, torch.tensor([0.8]))


def test_moments_survive_the_trip_and_strangers_are_refused():
    def stepped() -> tuple[Two, torch.optim.AdamW]:
        policy = Two(weight=torch.ones(2, 2), bias=torch.ones(2))
        return policy, adamw(policy, OptimiserSettings(learning_rate=0.1))

    def step(policy, optimiser, value):
        for parameter in policy.named.values():
            parameter.grad = torch.full_like(parameter, value)
        optimiser.step()

    policy, optimiser = stepped()
    step(policy, optimiser, 0.3)
    saved = {key: tensor.clone() for key, tensor in moments(policy, optimiser).items()}
    assert set(saved) == {f"{p}/{f}" for p in ("weight", "bias") for f in ("step", "exp_avg", "exp_avg_sq")}
    other, fresh = stepped()
    for name, parameter in other.named.items():
        parameter.data.copy_(policy.named[name])
    load_moments(other, fresh, saved)
    step(policy, optimiser, -0.7)
    step(other, fresh, -0.7)
    assert torch.equal(policy.named["weight"], other.named["weight"])
    with pytest.raises(ValueError, match="no parameter 'head'"):
        load_moments(other, fresh, {"head/exp_avg": torch.ones(1)})


def test_nothing_to_train_is_an_error():
    with pytest.raises(ValueError, match="no trainable parameters"):
        adamw(Two(), OptimiserSettings())


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_a_step_is_bitwise_that_of_torch(decay):
    """The first, which makes the moments, and those that follow; with another rate, and with a gradient missing."""
    generator = torch.Generator().manual_seed(0)
    values = {"matrix": torch.randn(7, 5, generator=generator), "vector": torch.randn(9, generator=generator)}
    made = [Two(**values), Two(**values)]
    optimisers = [adamw(policy, OptimiserSettings(0.01, weight_decay=decay)) for policy in made]
    for number in range(5):
        gradients = {name: torch.randn(value.shape, generator=generator) for name, value in values.items()}
        for policy, optimiser in zip(made, optimisers, strict=True):
            set_learning_rate(optimiser, 0.01 / (1 + number))
            for name, parameter in policy.named.items():
                parameter.grad = None if number == 3 and name == "vector" else gradients[name].clone()
        step(optimisers[0])
        optimisers[1].step()
        for name, parameter in made[0].named.items():
            assert torch.equal(parameter, made[1].named[name])
    mine, other = (moments(policy, optimiser) for policy, optimiser in zip(made, optimisers, strict=True))
    assert mine.keys() == other.keys()
    assert all(torch.equal(mine[name], other[name]) for name in mine)
    assert float(mine["matrix/step"]) == 5
    assert float(mine["vector/step"]) == 4
