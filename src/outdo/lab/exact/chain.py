"""A chain: a fixed number of steps, each with a payout of its own."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outdo.core import returns
from outdo.core.batch import Batch
from outdo.lab.exact import tabular


@dataclass(frozen=True, slots=True)
class Chain:
    """Step t pays `gain` · a_t + `noise` · N(0, 1), a_t ∈ {0, 1}, and leads to step t + 1; γ = 1.

    State t is the t-th step. J = gain · Σ_t π(1|t). With `gain` 0 every true value is 0.
    """

    steps: int = 20
    noise: float = 0.0
    gain: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a chain without steps and negative noise."""
        if self.steps < 1:
            raise ValueError(f"steps must be >= 1, got {self.steps}")
        if self.noise < 0:
            raise ValueError(f"noise must be >= 0, got {self.noise}")

    @property
    def states(self) -> int:
        """Number of steps."""
        return self.steps

    @property
    def actions(self) -> int:
        """Two."""
        return 2

    def value(self, logits: Tensor) -> Tensor:
        """J, a scalar, differentiable in `logits` `[steps, 2]`."""
        return self.gain * torch.softmax(logits, dim=-1, dtype=torch.float64)[:, 1].sum()

    def gradient(self, logits: Tensor) -> Tensor:
        """Exact ∇J, `[steps, 2]`."""
        return tabular.gradient(self, logits)

    def batch(self, logits: Tensor, action: Tensor, noise: Tensor | None = None, group: int = 1) -> Batch:
        """The batch of given `action` `[B, T]` and standard normal draws `noise` `[B, T]` (None: none).

        `value` is exact: V(t) = gain · Σ_{k≥t} π(1|k).
        """
        count = len(action)
        reward = self.gain * action.double()
        if noise is not None:
            reward = reward + self.noise * noise
        pays = self.gain * torch.softmax(logits.detach(), dim=-1, dtype=torch.float64)[:, 1]
        value = pays.flip(0).cumsum(0).flip(0).expand(count, -1)
        last = torch.zeros(count, self.steps, dtype=torch.bool)
        last[:, -1] = True
        valid = torch.ones_like(last)
        state = torch.arange(self.steps).expand(count, -1)
        return Batch(
            obs=state,
            action=action,
            logp=torch.log_softmax(logits.detach(), dim=-1, dtype=torch.float64)[state, action],
            reward=reward,
            discount=(~last).double(),
            cut=last,
            valid=valid,
            group=tabular.group_ids(count, group),
            value=value,
            next_value=returns.next_values(value, torch.zeros_like(value), last, valid),
        )

    def sample(self, logits: Tensor, groups: int, group: int, generator: torch.Generator) -> Batch:
        """`groups` · `group` episodes: actions drawn first, then noise."""
        action = tabular.draw(logits.expand(groups * group, -1, -1), generator)
        noise = torch.randn(action.shape, dtype=torch.float64, generator=generator)
        return self.batch(logits, action, noise, group)

    def trajectories(self, logits: Tensor) -> tuple[Batch, Tensor]:
        """All 2^T episodes without noise, and the probability of each, `[N]`.

        Raises ValueError with noise: its episodes cannot be counted.
        """
        if self.noise:
            raise ValueError("episodes with noise cannot be enumerated: set noise = 0")
        batch = self.batch(logits, tabular.sequences(self.steps, 2))
        return batch, batch.logp.sum(dim=1).exp()
