"""A bandit: one decision, and a payout with or without Gaussian noise."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outdo.core.batch import Batch
from outdo.lab.exact import tabular


@dataclass(frozen=True, slots=True)
class Bandit:
    """Arm a pays `payouts[a]` + `noise` · N(0, 1). One state; J = Σ_a π(a) payouts[a]."""

    payouts: tuple[float, ...]
    noise: float = 0.0

    def __post_init__(self) -> None:
        """Refuse fewer than two arms and negative noise."""
        if len(self.payouts) < 2:
            raise ValueError(f"a bandit needs at least 2 arms, got {len(self.payouts)}")
        if self.noise < 0:
            raise ValueError(f"noise must be >= 0, got {self.noise}")

    @property
    def states(self) -> int:
        """One."""
        return 1

    @property
    def actions(self) -> int:
        """Number of arms."""
        return len(self.payouts)

    @property
    def means(self) -> Tensor:
        """Expected payouts, `[A]` float64."""
        return torch.tensor(self.payouts, dtype=torch.float64)

    def value(self, logits: Tensor) -> Tensor:
        """J = Σ_a π(a) payouts[a], a scalar, differentiable in `logits` `[1, A]`."""
        return (torch.softmax(logits[0], dim=-1, dtype=torch.float64) * self.means).sum()

    def gradient(self, logits: Tensor) -> Tensor:
        """∂J/∂logit_a = π(a) (payouts[a] − J), `[1, A]`."""
        return tabular.gradient(self, logits)

    def batch(self, logits: Tensor, arms: Tensor, noise: Tensor | None = None, group: int = 1) -> Batch:
        """The batch of given `arms` `[B]` and standard normal draws `noise` `[B]` (None: the mean is paid).

        `logits` `[1, A]`, or `[B, 1, A]` with a policy for each row. Rows 0 … group−1 are group 0, and so on.
        `value` is J: a critic that is right.
        """
        tables = (
            torch.log_softmax(logits.detach(), dim=-1, dtype=torch.float64)
            .reshape(-1, self.actions)
            .expand(len(arms), -1)
        )
        reward = self.means[arms] if noise is None else self.means[arms] + self.noise * noise.double()
        zero = torch.zeros(len(arms), 1, dtype=torch.float64)
        mask = torch.ones(len(arms), 1, dtype=torch.bool)
        return Batch(
            obs=torch.zeros(len(arms), 1, dtype=torch.int64),
            action=arms[:, None],
            logp=tables.gather(1, arms[:, None]),
            reward=reward[:, None],
            discount=zero,
            cut=mask,
            valid=mask,
            group=tabular.group_ids(len(arms), group),
            value=(tables.exp() @ self.means)[:, None],
            next_value=zero,
        )

    def sample(self, logits: Tensor, groups: int, group: int, generator: torch.Generator) -> Batch:
        """`groups` · `group` pulls: arms drawn first, then noise. `logits` as in `batch`."""
        arms = tabular.draw(logits.reshape(-1, self.actions).expand(groups * group, -1), generator)
        noise = torch.randn(len(arms), dtype=torch.float64, generator=generator)
        return self.batch(logits, arms, noise, group)
