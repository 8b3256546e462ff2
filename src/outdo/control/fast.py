"""The fast path of perceptron policies on a CPU: forward and a hand-written backward pass on flat parameters.

Autograd spends most of its time on some 500 operator calls for each step of so small a network. Here all layers of
both towers are about 25 products and element-wise operations on preallocated views, distributions are compiled
(`outdo.control.kernels`). The derivative is there for autograd, as one function from the parameters to the scores,
and without it (`evaluate_with_pullback`).

Axes: M rows, G towers (policy, critic), F features, U units of a layer, K network outputs, W columns of a raw action.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from outdo.control import kernels
from outdo.control.distributions import SMALLEST_STD, Distribution
from outdo.control.networks import Dense, Network, Tower
from outdo.core.protocols import Derivatives, Pullback

Array = NDArray[Any]
Scores = tuple[Tensor, Tensor, Tensor]
"""Log-probability, entropy and value; the last empty without a critic."""
ONCE = "this evaluation was differentiated already: evaluate the batch again"
NOTHING = np.zeros(0, np.float32)
"""Stands for a gradient that is 0."""
TANH_BACKWARD = torch.ops.aten.tanh_backward.grad_input
RELU_BACKWARD = torch.ops.aten.threshold_backward.grad_input


@dataclass(frozen=True, slots=True)
class Layer:
    """A linear layer of all towers: `weight` `[G, inputs, U]`, `bias` `[G, 1, U]`; views of the flat buffers."""

    weight: Tensor
    bias: Tensor


def supports(network: Network, device: torch.device) -> bool:
    """Whether the fast path computes this network: perceptrons on a CPU."""
    return not network.memory and not network.sees and device.type == "cpu"


class FastNetwork:
    """A network of perceptrons whose parameters lie in the flat buffers `matrices` and `vectors`."""

    def __init__(
        self, network: Network, matrices: nn.Parameter, vectors: nn.Parameter, distribution: Distribution
    ) -> None:
        self.matrices, self.vectors = matrices, vectors
        self.outputs, self.has_critic = network.outputs, network.critic != "none"
        self.tanh = network.activation == "tanh"
        self.table = kernels.table_of(distribution)
        self.log_half = kernels.log_half_of(distribution)
        self.width = distribution.width
        towers: list[Tower] = list(network.towers)  # type: ignore[arg-type]
        self.layers, self.heads, self.log_std = _views(towers, matrices.data.view(-1), vectors.data)
        self.g_matrices, self.g_vectors = torch.zeros_like(matrices), torch.zeros_like(vectors)
        self.g_layers, self.g_heads, self.g_log_std = _views(towers, self.g_matrices.view(-1), self.g_vectors)
        self.sizes = np.array([layer.bias.shape[2] for layer in self.layers], np.int64)
        self.head_sizes = np.array([head.bias.shape[2] for head in self.heads], np.int64)
        self.rooms: dict[int, list[Room]] = {}
        self.buffers = matrices.data.view(-1).numpy(), vectors.data.numpy()

    # -- acting: one compiled call ---------------------------------------------------------------------------

    def act(
        self, flat: Array, noise: Array | None, allowed: Array | None
    ) -> tuple[Array, Array, Array | None]:
        """Raw actions `[M, W]`, their log-probability `[M]` and the value `[M]`; the mode without `noise`."""
        outputs, logp = self._outputs(flat), np.empty(len(flat), np.float32)
        raw = np.empty((len(flat), self.width), np.float32)
        kernels.act(
            flat,
            *self.buffers,
            self.sizes,
            self.head_sizes,
            self.tanh,
            self.table,
            self.std(),
            self.log_half,
            raw if noise is None else noise,
            noise is None,
            kernels.NO_MASK if allowed is None else allowed,
            outputs,
            raw,
            logp,
        )
        return raw, logp, outputs[:, self.outputs] if self.has_critic else None

    def value(self, flat: Array) -> Array:
        """The value `[M]` of features `[M, F]`."""
        outputs = self._outputs(flat)
        kernels.forward(flat, *self.buffers, self.sizes, self.head_sizes, self.tanh, outputs)
        return outputs[:, self.outputs]

    def _outputs(self, flat: Array) -> Array:
        return np.empty((len(flat), self.outputs + self.has_critic), np.float32)

    def std(self) -> Array:
        """Standard deviations `[S]` as they are now, in float64."""
        if not self.log_half.size:
            return self.log_half
        return np.exp(self.log_std.numpy().astype(np.float64)) + SMALLEST_STD

    # -- learning: torch, whose products are faster for hundreds of rows ---------------------------------------

    def evaluate(self, rows: Rows, shape: torch.Size) -> Scores:
        """Log-probability, entropy and value of `rows`, in `shape`, for autograd; a graph can be differentiated once.

        The value is empty without a critic.
        """
        if torch.is_grad_enabled() and self.matrices.requires_grad:
            return cast("Scores", _Evaluate.apply(self.matrices, self.vectors, self, rows, shape))
        room = self.take(len(rows.flat))
        found = self.scores(rows, shape, room)
        self.give(room)
        return found

    def evaluate_with_pullback(self, rows: Rows, shape: torch.Size) -> tuple[Scores, Pullback]:
        """The same without a graph, and the derivative."""
        kept = [self.take(len(rows.flat))]

        def pullback(derivatives: Derivatives) -> None:
            if not kept:
                raise RuntimeError(ONCE)
            room = kept.pop()
            self.gradients(rows, room, derivatives)
            self.give(room)
            for parameter, gradient in ((self.matrices, self.g_matrices), (self.vectors, self.g_vectors)):
                if parameter.grad is None:
                    parameter.grad = gradient.clone()
                else:
                    parameter.grad.add_(gradient)

        return self.scores(rows, shape, kept[0]), pullback

    def scores(self, rows: Rows, shape: torch.Size, room: Room) -> Scores:
        """Log-probability, entropy and value (empty without a critic) in `shape`; fills `room`."""
        self._forward(rows.flat, room)
        logp, entropy, value = (
            torch.empty(shape),
            torch.empty(shape),
            torch.empty(shape if self.has_critic else 0),
        )
        kernels.score(
            room.outputs.numpy(),
            self.table,
            self.std(),
            self.log_half,
            rows.raw,
            rows.allowed,
            rows.valid,
            *(each.view(-1).numpy() for each in (logp, entropy, value)),
        )
        return logp, entropy, value

    def gradients(self, rows: Rows, room: Room, derivatives: Derivatives) -> None:
        """Fill `g_matrices` and `g_vectors` from the derivatives by the scores; uses up `room`."""
        std, g_std = self.std(), np.zeros(len(self.log_half))
        g_logp, g_entropy, g_value = (
            NOTHING if each is None else _array(each.reshape(-1)) for each in derivatives
        )
        kernels.score_backward(
            room.outputs.numpy(),
            self.table,
            std,
            rows.raw,
            rows.allowed,
            rows.valid,
            g_logp,
            g_entropy,
            g_value,
            room.g_outputs.numpy(),
            g_std,
        )
        self._backward(rows.flat, room)
        if len(g_std):  # σ = exp(ρ) + SMALLEST_STD, so dσ/dρ = σ − SMALLEST_STD
            self.g_log_std.copy_(torch.from_numpy(g_std * (std - SMALLEST_STD)))

    def _forward(self, flat: Tensor, room: Room) -> None:
        """Fill `hidden` and `outputs` of `room` from features `[M, F]`."""
        groups = len(self.heads)
        x = flat.expand(groups, *flat.shape)
        for layer, y in zip(self.layers, room.hidden, strict=True):
            torch.baddbmm(layer.bias, x, layer.weight, out=y)
            x = y.tanh_() if self.tanh else y.relu_()
        for g, (head, y) in enumerate(zip(self.heads, self._columns(room.outputs), strict=True)):
            torch.addmm(head.bias[0], x[g], head.weight[0], out=y)

    def _backward(self, flat: Tensor, room: Room) -> None:
        """Fill the gradient buffers from `room.g_outputs`."""
        groups = len(self.heads)
        inputs = [flat.expand(groups, *flat.shape), *room.hidden]
        for g, own in enumerate(self.g_heads):
            mine = self._columns(room.g_outputs)[g]
            torch.mm(inputs[-1][g].t(), mine, out=own.weight[0])
            torch.sum(mine, 0, keepdim=True, out=own.bias[0])
            if self.layers:
                torch.mm(mine, self.heads[g].weight[0].t(), out=room.g_hidden[-1][g])
        for depth in reversed(range(len(self.layers))):
            own, output, upstream = self.g_layers[depth], room.hidden[depth], room.g_hidden[depth]
            if self.tanh:
                TANH_BACKWARD(upstream, output, grad_input=upstream)
            else:
                RELU_BACKWARD(upstream, output, 0, grad_input=upstream)
            torch.sum(upstream, 1, keepdim=True, out=own.bias)
            torch.bmm(inputs[depth].transpose(1, 2), upstream, out=own.weight)
            if depth:
                torch.bmm(upstream, self.layers[depth].weight.transpose(1, 2), out=room.g_hidden[depth - 1])

    def _columns(self, outputs: Tensor) -> list[Tensor]:
        """The columns of each head."""
        return [outputs] if len(self.heads) == 1 else [outputs[:, : self.outputs], outputs[:, self.outputs :]]

    def take(self, rows: int) -> Room:
        """A room that nobody uses: memory that is fresh from the system costs more than the work in it."""
        free = self.rooms.setdefault(rows, [])
        if free:
            return free.pop()
        columns = self.outputs + self.has_critic
        return Room.new(rows, len(self.heads), self.sizes.tolist(), columns)

    def give(self, room: Room) -> None:
        """Take back a room that is used no more."""
        self.rooms[len(room.outputs)].append(room)


class Rows(NamedTuple):
    """What is scored: features `[M, F]`, raw actions `[M, W]`, mask `[M, K]` or `NO_MASK`, valid `[M]`."""

    flat: Tensor
    raw: Array
    allowed: Array
    valid: Array

    @classmethod
    def of(cls, flat: Tensor, raw: Tensor, allowed: Tensor | None, valid: Tensor) -> Rows:
        """The steps of `[..., F]`, `[..., W]`, `[..., K]` and `[...]` as rows."""
        return cls(
            flat.reshape(-1, flat.shape[-1]),
            _array(raw.reshape(-1, raw.shape[-1])),
            kernels.NO_MASK if allowed is None else _array(allowed.reshape(-1, allowed.shape[-1])),
            _array(valid.reshape(-1)),
        )


class Room(NamedTuple):
    """What the backward pass needs of the forward pass, and room for its own: `[G, M, U]` a layer, `[M, K (+ 1)]`."""

    hidden: list[Tensor]
    g_hidden: list[Tensor]
    outputs: Tensor
    g_outputs: Tensor

    @classmethod
    def new(cls, rows: int, groups: int, sizes: list[int], outputs: int) -> Room:
        """Room for M = `rows`."""
        hidden, g_hidden = ([torch.empty(groups, rows, units) for units in sizes] for _ in range(2))
        return cls(hidden, g_hidden, torch.empty(rows, outputs), torch.empty(rows, outputs))


class _Evaluate(torch.autograd.Function):
    """From the flat parameters to log-probability, entropy and value; the backward pass of `FastNetwork`."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Scores:
        """Arguments: matrices, vectors, network, rows, shape."""
        network: FastNetwork = arguments[2]
        rows: Rows = arguments[3]
        ctx.kept = network, rows, network.take(len(rows.flat))
        ctx.set_materialize_grads(False)
        return network.scores(rows, arguments[4], ctx.kept[2])

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *outputs: Any) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Gradients of logp, entropy and value, in their shape, or None."""
        if ctx.kept is None:
            raise RuntimeError(ONCE)
        network, rows, room = ctx.kept
        ctx.kept = None
        network.gradients(rows, room, outputs)
        network.give(room)
        return network.g_matrices.clone(), network.g_vectors.clone(), None, None, None


def _array(tensor: Tensor) -> Array:
    """Contiguous, so that the kernels are compiled for one layout only."""
    return tensor.contiguous().numpy()


def _views(towers: list[Tower], matrices: Tensor, vectors: Tensor) -> tuple[list[Layer], list[Layer], Tensor]:
    """Hidden layers of all towers together, the head of each tower, and what is left of `vectors`: log σ.

    The buffers hold one layer after another, each for all towers (`Network.ordered`).
    """
    sizes = [module.weight.shape for module in towers[0].body if isinstance(module, Dense)]
    m = v = 0
    layers: list[Layer] = []
    heads: list[Layer] = []
    for groups, (inputs, units) in [
        *((len(towers), size) for size in sizes),
        *((1, tower.head.weight.shape) for tower in towers),
    ]:
        weight = matrices[m : m + groups * units * inputs].view(groups, inputs, units)
        bias = vectors[v : v + groups * units].view(groups, 1, units)
        (layers if len(layers) < len(sizes) else heads).append(Layer(weight, bias))
        m, v = m + weight.numel(), v + bias.numel()
    return layers, heads, vectors[v:]
