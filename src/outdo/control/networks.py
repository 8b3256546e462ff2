"""Networks of control policies: perceptron, small convolutional network, recurrent network.

A network is one tower (shared by policy and critic) or two (separate). Its parameters lie in two flat buffers, so that
one optimiser step and one gradient norm touch two tensors instead of dozens.

Axes: B rows, T steps, F flat features, K outputs, H units of memory.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor, nn

Activation = Literal["tanh", "relu"]
Critic = Literal["separate", "shared", "none"]
ACTIVATIONS: dict[str, type[nn.Module]] = {"tanh": nn.Tanh, "relu": nn.ReLU}
HIDDEN_GAIN, POLICY_GAIN, VALUE_GAIN = math.sqrt(2), 0.01, 1.0
"""Gains of the orthogonal initialisation: a nearly uniform policy at first, values of order 1
(Andrychowicz et al., What matters in on-policy reinforcement learning, arXiv 2006.05990, section 3.2)."""


class Dense(nn.Module):
    """A linear layer with `weight` `[inputs, units]`, so that the outputs of one input are neighbours.

    Orthogonal weights times `gain`, zero biases. `gains` gives each unit its own; units of one gain, which are
    neighbours, are orthogonal among themselves.
    """

    def __init__(self, inputs: int, gains: Sequence[float], chance: Generator) -> None:
        super().__init__()
        blocks: list[Tensor] = []
        for gain in dict.fromkeys(gains):
            block = torch.empty(inputs, sum(each == gain for each in gains))
            blocks.append(nn.init.orthogonal_(block, gain, generator=chance))
        self.weight = nn.Parameter(torch.cat(blocks, dim=1))
        self.bias = nn.Parameter(torch.zeros(len(gains)))

    def forward(self, x: Tensor) -> Tensor:
        """x·W + b, `[..., units]`."""
        return F.linear(x, self.weight.t(), self.bias)


class Pixels(nn.Module):
    """A small convolutional network: the image `[M, C, H, W]` (8-bit divided by 255) becomes `units` features.

    From 36 pixels on the one of Mnih et al. 2015 (8×8/4, 4×4/2, 3×3/1), below two layers of 3×3.
    """

    def __init__(self, shape: tuple[int, int, int], units: int, chance: Generator) -> None:
        super().__init__()
        channels, height, width = shape
        if min(height, width) >= 36:
            layers = [(32, 8, 4, 0), (64, 4, 2, 0), (64, 3, 1, 0)]
        else:
            layers = [(16, 3, 1, 1), (32, 3, 1, 1)]
        modules: list[nn.Module] = []
        for count, kernel, stride, padding in layers:
            conv = nn.Conv2d(channels, count, kernel, stride, padding)
            nn.init.orthogonal_(conv.weight, HIDDEN_GAIN, generator=chance)
            assert conv.bias is not None
            nn.init.zeros_(conv.bias)
            modules += [conv, nn.ReLU()]
            channels = count
            height = (height + 2 * padding - kernel) // stride + 1
            width = (width + 2 * padding - kernel) // stride + 1
        head = Dense(channels * height * width, [HIDDEN_GAIN] * units, chance)
        self.layers = nn.Sequential(*modules, nn.Flatten(), head, nn.ReLU())

    def forward(self, image: Tensor) -> Tensor:
        """Features `[M, units]`."""
        return self.layers(image.float() / 255 if image.dtype == torch.uint8 else image)


class Memory(nn.Module):
    """A GRU layer whose state is set to 0 before each step that begins an episode."""

    def __init__(self, inputs: int, units: int, chance: Generator) -> None:
        super().__init__()
        self.gru = nn.GRU(inputs, units, batch_first=True)
        for name, parameter in self.gru.named_parameters():
            if "weight" in name:
                for gate in parameter.data.chunk(3):
                    nn.init.orthogonal_(gate, generator=chance)
            else:
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor, state: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
        """Outputs `[B, T, H]` and last state `[B, H]` from inputs `[B, T, F]`, `state` `[B, H]`, `first` `[B, T]`.

        The steps between two resets run in one call, whatever row is reset; the result is that of one step at
        a time.
        """
        starts = [0, *(t for t in first.any(dim=0).nonzero().flatten().tolist() if t > 0)]
        outputs: list[Tensor] = []
        for start, end in zip(starts, [*starts[1:], x.shape[1]], strict=True):
            state = torch.where(first[:, start, None], 0.0, state)
            output, last = self.gru(x[:, start:end].contiguous(), state[None].contiguous())
            outputs.append(output)
            state = last[0]
        return torch.cat(outputs, dim=1), state


class Tower(nn.Module):
    """Eyes (for images), memory (if any), hidden layers and a linear layer with `gains` outputs."""

    def __init__(
        self,
        features: int,
        image: tuple[int, int, int] | None,
        memory: int,
        hidden: Sequence[int],
        activation: Activation,
        gains: Sequence[float],
        chance: Generator,
    ) -> None:
        super().__init__()
        units = 512 if image is not None and min(image[1:]) >= 36 else 128
        self.eyes = None if image is None else Pixels(image, units, chance)
        width = features + (0 if image is None else units)
        self.memory = Memory(width, memory, chance) if memory else None
        width = memory or width
        layers: list[nn.Module] = []
        for size in hidden:
            layers += [Dense(width, [HIDDEN_GAIN] * size, chance), ACTIVATIONS[activation]()]
            width = size
        self.body = nn.Sequential(*layers)
        self.head = Dense(width, gains, chance)

    def forward(
        self, flat: Tensor, image: Tensor | None, state: Tensor | None, first: Tensor | None
    ) -> tuple[Tensor, Tensor | None]:
        """Outputs `[B, T, K]` and the memory after the last step, from features `[B, T, F]`."""
        x = flat
        if self.eyes is not None:
            assert image is not None
            x = torch.cat((self.eyes(image.flatten(0, 1)).unflatten(0, image.shape[:2]), flat), dim=2)
        if self.memory is not None:
            assert state is not None
            assert first is not None
            x, state = self.memory(x, state, first)
        return self.head(self.body(x)), state


class Network(nn.Module):
    """Distribution parameters and value of a state; `log_std` `[S]` beside, the same in every state."""

    def __init__(
        self,
        outputs: int,
        stds: int,
        *,
        features: int,
        image: tuple[int, int, int] | None = None,
        memory: int = 0,
        hidden: Sequence[int] = (64, 64),
        activation: Activation = "tanh",
        critic: Critic = "separate",
        log_std: float = 0.0,
        seed: int = 0,
    ) -> None:
        super().__init__()
        chance = Generator().manual_seed(seed)
        gains = [[POLICY_GAIN] * outputs]
        if critic == "separate":
            gains.append([VALUE_GAIN])
        elif critic == "shared":
            gains[0].append(VALUE_GAIN)
        self.outputs, self.critic, self.memory, self.activation = outputs, critic, memory, activation
        self.sees = image is not None
        self.towers = nn.ModuleList(
            Tower(features, image, memory, hidden, activation, each, chance) for each in gains
        )
        self.log_std = nn.Parameter(torch.full((stds,), log_std))

    @property
    def state_size(self) -> int:
        """Numbers in the memory of one environment: H for each tower."""
        return self.memory * len(self.towers)

    def ordered(self) -> list[nn.Parameter]:
        """All parameters, layer by layer with the towers side by side, then `log_std`."""
        layers = zip(*(tower.parameters() for tower in self.towers), strict=True)
        return [*(parameter for layer in layers for parameter in layer), self.log_std]

    def forward(
        self,
        flat: Tensor,
        image: Tensor | None = None,
        state: Tensor | None = None,
        first: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Outputs `[B, T, K]`, value `[B, T]` or None, and memory `[B, state_size]` after the last step.

        `flat` `[B, T, F]`, `image` `[B, T, C, H, W]`, `state` the memory before the first step, `first` `[B, T]`
        True where an episode begins, so that memory is 0 before the step.
        """
        states = [None] * len(self.towers) if state is None else state.chunk(len(self.towers), dim=1)
        results = [
            tower(flat, image, before, first) for tower, before in zip(self.towers, states, strict=True)
        ]
        joined = torch.cat([outputs for outputs, _ in results], dim=-1)
        value = None if self.critic == "none" else joined[..., self.outputs]
        after = None if state is None else torch.cat([after for _, after in results], dim=1)
        return joined[..., : self.outputs], value, after


def flatten(parameters: Sequence[nn.Parameter]) -> tuple[nn.Parameter, nn.Parameter]:
    """Lay parameters out, in their order, in two flat float32 buffers: matrices `[1, n]` and vectors `[n]`.

    Every parameter becomes a view into its buffer and its gradient a view into the buffer's gradient, so the
    module, its `state_dict` and autograd see nothing of it. Matrices keep two axes, as weight decay tells them
    from vectors by these.
    """
    matrices, m_grad = _lay_out([p for p in parameters if p.ndim >= 2])
    vectors, v_grad = _lay_out([p for p in parameters if p.ndim < 2])
    flat = nn.Parameter(matrices.view(1, -1)), nn.Parameter(vectors)
    flat[0].grad, flat[1].grad = m_grad.view(1, -1), v_grad
    return flat


def _lay_out(parameters: list[nn.Parameter]) -> tuple[Tensor, Tensor]:
    data = torch.cat([p.data.reshape(-1) for p in parameters])
    grad = torch.zeros_like(data)
    start = 0
    for parameter in parameters:
        end = start + parameter.numel()
        parameter.data = data[start:end].view(parameter.shape)
        parameter.grad = grad[start:end].view(parameter.shape)
        start = end
    return data, grad
