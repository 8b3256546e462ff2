"""Initialisation, memory and the flat layout of networks."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from outdo.control.networks import Dense, Memory, Network, Pixels, flatten


def chance() -> torch.Generator:
    return torch.Generator().manual_seed(0)


def test_weights_are_orthogonal_with_their_gain():
    network = Network(3, 0, features=4, hidden=(16, 16))
    first, second = (m.weight for m in network.towers[0].body if isinstance(m, Dense))
    torch.testing.assert_close(first @ first.t(), 2 * torch.eye(4))  # gain √2: W·Wᵀ = 2
    torch.testing.assert_close(second @ second.t(), 2 * torch.eye(16))
    policy, value = network.towers[0].head.weight, network.towers[1].head.weight
    torch.testing.assert_close(policy.t() @ policy, 1e-4 * torch.eye(3))
    torch.testing.assert_close(value.t() @ value, torch.eye(1))
    assert all(not b.any() for name, b in network.named_parameters() if name.endswith("bias"))


def test_a_shared_head_has_both_gains():
    head = Network(3, 0, features=4, critic="shared").towers[0].head.weight
    torch.testing.assert_close(head[:, :3].norm(dim=0), torch.full((3,), 0.01))
    assert head[:, 3].norm().item() == pytest.approx(1)


def test_a_dense_layer_is_a_linear_layer():
    dense = Dense(5, [1.0] * 3, chance())
    linear = nn.Linear(5, 3)
    linear.weight.data, linear.bias.data = dense.weight.data.t(), torch.arange(3.0)
    dense.bias.data = torch.arange(3.0)
    x = torch.randn(7, 5, generator=chance())
    torch.testing.assert_close(dense(x), linear(x))


def test_seeds_and_only_seeds_decide_the_weights():
    torch.manual_seed(1)
    one = Network(2, 1, features=4, memory=8, seed=3)
    torch.manual_seed(2)
    other, third = Network(2, 1, features=4, memory=8, seed=3), Network(2, 1, features=4, memory=8, seed=4)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    assert not torch.equal(one.towers[0].head.weight, third.towers[0].head.weight)


def test_a_sequence_equals_one_step_at_a_time():
    memory = Memory(3, 6, chance())
    x = torch.randn(4, 9, 3, generator=chance())
    first = torch.rand(4, 9, generator=chance()) < 0.3
    state = torch.randn(4, 6, generator=chance())
    outputs, last = memory(x, state, first)
    for t in range(9):
        one, state = memory(x[:, t : t + 1], state, first[:, t : t + 1])
        torch.testing.assert_close(outputs[:, t], one[:, 0])
    torch.testing.assert_close(last, state)


def test_memory_is_a_gru_that_forgets_where_an_episode_begins():
    memory = Memory(3, 6, chance())
    cell = nn.GRUCell(3, 6)
    for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh"):
        getattr(cell, name).data = getattr(memory.gru, f"{name}_l0").data
    x, state = torch.randn(2, 2, 3, generator=chance()), torch.ones(2, 6)
    outputs, _ = memory(x, state, torch.tensor([[False, True], [True, False]]))
    torch.testing.assert_close(outputs[0, 0], cell(x[0, 0], torch.ones(6)))
    torch.testing.assert_close(outputs[0, 1], cell(x[0, 1], torch.zeros(6)))
    torch.testing.assert_close(outputs[1, 0], cell(x[1, 0], torch.zeros(6)))
    torch.testing.assert_close(outputs[1, 1], cell(x[1, 1], outputs[1, 0]))


def test_nothing_flows_back_across_a_reset():
    memory = Memory(3, 6, chance())
    x = torch.randn(1, 4, 3, generator=chance(), requires_grad=True)
    first = torch.tensor([[False, False, True, False]])
    memory(x, torch.zeros(1, 6), first)[0][0, 3].sum().backward()
    assert x.grad is not None
    assert not x.grad[0, :2].any()
    assert x.grad[0, 2:].abs().sum(dim=1).gt(0).all()


@pytest.mark.parametrize("shape", [(3, 36, 40), (1, 10, 7)])
def test_eyes_see_images_of_any_size_and_bytes_as_fractions(shape):
    eyes = Pixels(shape, 12, chance())
    image = torch.randint(0, 256, (2, *shape), dtype=torch.uint8, generator=chance())
    seen = eyes(image)
    assert seen.shape == (2, 12)
    torch.testing.assert_close(seen, eyes(image.float() / 255))


@pytest.mark.parametrize("critic", ["separate", "shared"])
def test_parameters_are_views_of_two_buffers(critic):
    network = Network(2, 1, features=4, critic=critic, memory=5, hidden=(6,))
    before = network(
        torch.ones(1, 1, 4), None, torch.zeros(1, network.state_size), torch.ones(1, 1, dtype=torch.bool)
    )
    matrices, vectors = flatten(network.ordered())
    assert matrices.numel() + vectors.numel() == sum(p.numel() for p in network.parameters())
    arguments = (
        torch.ones(1, 1, 4),
        None,
        torch.zeros(1, network.state_size),
        torch.ones(1, 1, dtype=torch.bool),
    )
    outputs, value, _ = network(*arguments)
    torch.testing.assert_close(outputs, before[0])
    (outputs.sum() + value.sum()).backward()
    squares = sum(float(p.grad.square().sum()) for p in network.parameters())
    assert matrices.grad is not None
    assert vectors.grad is not None
    flat = float(matrices.grad.square().sum() + vectors.grad.square().sum())
    assert flat == pytest.approx(squares, rel=1e-5)
    assert math.sqrt(flat) > 0
    matrices.data.zero_()
    vectors.data.zero_()
    assert not network(*arguments)[0].any()
