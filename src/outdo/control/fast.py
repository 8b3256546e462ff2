"""The fast path of perceptron policies on a CPU: forward and a hand-written backward pass on flat parameters.

Autograd spends most of its time on some 500 operator calls for each step of so small a network. Here acting, scoring
and the gradient of a loss are one call each of compiled code (`outdo.control.perceptron`). The derivative is there for
autograd, as one function from the parameters to the scores, and without it for the losses that `core.fused` knows
(`gradient_of`).

Axes: M rows, G towers (policy, critic), F features, K network outputs, W columns of a raw action.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from outdo.control import kernels, perceptron
from outdo.control.distributions import SMALLEST_STD, Distribution
from outdo.control.networks import Dense, Network, Tower
from outdo.core.batch import Batch
from outdo.core.fused import Settings, Sums

Array = NDArray[Any]
Scores = tuple[Tensor, Tensor, Tensor]
"""Log-probability, entropy and value; the last empty without a critic."""
NOTHING = np.zeros(0, np.float32)
"""Stands for what is not there."""


def supports(network: Network, device: torch.device) -> bool:
    """Whether the fast path computes this network: perceptrons on a CPU."""
    return not network.memory and not network.sees and device.type == "cpu"


class Rows(NamedTuple):
    """What is scored: features `[M, F]`, raw actions `[M, W]`, mask `[M, K]` or `NO_MASK`, valid `[M]`."""

    flat: Array
    raw: Array
    allowed: Array
    valid: Array

    @classmethod
    def of(cls, flat: Tensor, raw: Tensor, allowed: Tensor | None, valid: Tensor) -> Rows:
        """The steps of `[..., F]`, `[..., W]`, `[..., K]` and `[...]` as rows."""
        return cls(
            _array(flat.reshape(-1, flat.shape[-1])),
            _array(raw.reshape(-1, raw.shape[-1])),
            kernels.NO_MASK if allowed is None else _array(allowed.reshape(-1, allowed.shape[-1])),
            _array(valid.reshape(-1)),
        )


class FastNetwork:
    """A network of perceptrons whose parameters lie in the flat buffers `matrices` and `vectors`."""

    def __init__(
        self, network: Network, matrices: nn.Parameter, vectors: nn.Parameter, distribution: Distribution
    ) -> None:
        self.matrices, self.vectors = matrices, vectors
        self.outputs, self.has_critic = network.outputs, network.critic != "none"
        self.width, self.stds = distribution.width, distribution.stds
        self.table, self.log_half = kernels.table_of(distribution), kernels.log_half_of(distribution)
        towers: list[Tower] = list(network.towers)  # type: ignore[arg-type]
        buffers = matrices.data.view(-1).numpy(), vectors.data.numpy()
        self.perceptron = (*buffers, plan_of(towers), network.activation == "tanh")
        self.log_std = buffers[1][len(buffers[1]) - self.stds :]

    # -- acting ------------------------------------------------------------------------------------------------

    def act(
        self, flat: Array, noise: Array | None, allowed: Array | None
    ) -> tuple[Array, Array, Array | None]:
        """Raw actions `[M, W]`, their log-probability `[M]` and the value `[M]`; the mode without `noise`."""
        outputs = np.empty((len(flat), self.outputs + self.has_critic), np.float32)
        logp, raw = np.empty(len(flat), np.float32), np.empty((len(flat), self.width), np.float32)
        perceptron.act(
            flat,
            *self.perceptron,
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

    def std(self) -> Array:
        """Standard deviations `[S]` as they are now, in float64."""
        return np.exp(self.log_std.astype(np.float64)) + SMALLEST_STD if self.stds else self.log_half

    # -- learning ----------------------------------------------------------------------------------------------

    def evaluate(self, rows: Rows, shape: torch.Size) -> Scores:
        """Log-probability, entropy and value (empty without a critic) of `rows`, in `shape`, for autograd."""
        if torch.is_grad_enabled() and self.matrices.requires_grad:
            return cast("Scores", _Evaluate.apply(self.matrices, self.vectors, self, rows, shape))
        return self.scores(rows, shape)

    def scores(self, rows: Rows, shape: torch.Size) -> Scores:
        """`evaluate` without a graph."""
        found = torch.empty(shape), torch.empty(shape), torch.empty(shape if self.has_critic else 0)
        perceptron.evaluate(
            *rows,
            *self.perceptron,
            self.table,
            self.std(),
            self.log_half,
            *(each.view(-1).numpy() for each in found),
        )
        return found

    def pull(self, rows: Rows, derivatives: tuple[Tensor | None, ...]) -> tuple[Tensor, Tensor]:
        """The gradients of matrices and vectors from the derivatives by the scores; None stands for 0."""
        gradients = torch.zeros_like(self.matrices), torch.zeros_like(self.vectors)
        std, g_std = self.std(), np.zeros(self.stds)
        g_logp, g_entropy, g_value = (
            NOTHING if each is None else _array(each.reshape(-1)) for each in derivatives
        )
        g_vectors = gradients[1].numpy()
        perceptron.pull(
            *rows,
            *self.perceptron,
            self.table,
            std,
            g_logp,
            g_entropy,
            g_value,
            gradients[0].view(-1).numpy(),
            g_vectors,
            g_std,
        )
        self._add_log_std(g_vectors, std, g_std)
        return gradients

    def gradient_of(self, rows: Rows, steps: Batch, settings: Settings) -> Callable[[Tensor], Sums]:
        """The gradient of a compiled loss over some of `rows`; see `SelfDifferentiating`."""
        old, sampled, advantage, value, target = (
            NOTHING if each is None else _array(each.reshape(-1))
            for each in (steps.old_logp, steps.logp, steps.advantage, steps.value, steps.target)
        )

        def gradient(chosen: Tensor) -> Sums:
            assert self.matrices.grad is not None
            assert self.vectors.grad is not None
            g_vectors, std = self.vectors.grad.numpy(), self.std()
            g_std, sums = np.zeros(self.stds), np.zeros(10)
            perceptron.learn(
                chosen.numpy(),
                *rows[:3],
                old,
                sampled,
                advantage,
                value,
                target,
                settings,
                *self.perceptron,
                self.table,
                std,
                self.log_half,
                self.matrices.grad.view(-1).numpy(),
                g_vectors,
                g_std,
                sums,
            )
            self._add_log_std(g_vectors, std, g_std)
            return sums

        return gradient

    def _add_log_std(self, g_vectors: Array, std: Array, g_std: Array) -> None:
        """Add ∂loss/∂ρ where the parameters ρ = log σ lie: σ = exp(ρ) + SMALLEST_STD, so dσ/dρ = σ − SMALLEST_STD."""
        if self.stds:
            g_vectors[-self.stds :] += g_std * (std - SMALLEST_STD)


def plan_of(towers: list[Tower]) -> Array:
    """Where the layers lie in the flat buffers (`Network.ordered`): `[G, L + 1, 4]` as `perceptron` reads it."""
    shapes = [
        [module.weight.shape for module in (*tower.body, tower.head) if isinstance(module, Dense)]
        for tower in towers
    ]
    plan, m, v = np.zeros((len(towers), len(shapes[0]), 4), np.int64), 0, 0
    for n in range(len(shapes[0])):
        for g, tower in enumerate(shapes):
            inputs, units = tower[n]
            plan[g, n] = m, v, inputs, units
            m, v = m + inputs * units, v + units
    return plan


class _Evaluate(torch.autograd.Function):
    """From the flat parameters to log-probability, entropy and value; the backward pass computes them again."""

    @staticmethod
    def forward(ctx: Any, *arguments: Any) -> Scores:
        """Arguments: matrices, vectors, network, rows, shape."""
        matrices, vectors, network, rows, shape = arguments
        ctx.save_for_backward(matrices, vectors)  # so that autograd notices where they have changed since
        ctx.kept = network, rows
        ctx.set_materialize_grads(False)
        return network.scores(rows, shape)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *outputs: Any) -> tuple[Any, ...]:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Gradients of logp, entropy and value, in their shape, or None."""
        assert ctx.saved_tensors
        network, rows = ctx.kept
        return *network.pull(rows, outputs), None, None, None


def _array(tensor: Tensor) -> Array:
    """Contiguous, so that the kernels are compiled for one layout only."""
    return tensor.contiguous().numpy()
