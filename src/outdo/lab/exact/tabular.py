"""What the exact environments share: policies that are tables of logits, gradients, and batches in float64.

Axes: B rows, T steps, S states, A actions. `Batch.obs` holds states and `Batch.action` actions, `[B, T]` int64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from outdo.core import objectives, returns
from outdo.core.batch import Batch
from outdo.core.checks import only


class Exact(Protocol):
    """An environment that knows the value of every tabular policy."""

    @property
    def states(self) -> int:
        """Number of states S."""
        ...

    @property
    def actions(self) -> int:
        """Number of actions A."""
        ...

    def value(self, logits: Tensor) -> Tensor:
        """Expected return J of the policy, a scalar, differentiable in `logits` `[S, A]`."""
        ...

    def sample(self, logits: Tensor, groups: int, group: int, generator: torch.Generator) -> Batch:
        """`groups` · `group` episodes of the policy; those of one group share their start and their id."""
        ...


def logits_of(environment: Exact) -> Tensor:
    """Logits `[S, A]` of the uniform policy."""
    return torch.zeros(environment.states, environment.actions, dtype=torch.float64)


def gradient(environment: Exact, logits: Tensor) -> Tensor:
    """Exact ∇J `[S, A]`: the derivative of `value`, which knows nothing of samples or log-probabilities."""
    table = logits.detach().clone().requires_grad_()
    environment.value(table).backward()
    assert table.grad is not None
    return table.grad


def logp(logits: Tensor, batch: Batch) -> Tensor:
    """Log π(a_t|s_t) `[B, T]`, differentiable; `logits` `[S, A]`, or `[B, S, A]` with a table for each row.

    0 at invalid steps.
    """
    table = torch.log_softmax(logits, dim=-1, dtype=torch.float64)
    row = torch.arange(len(batch))[:, None]
    chosen = table[batch.obs, batch.action] if logits.ndim == 2 else table[row, batch.obs, batch.action]
    return only(batch.valid, chosen)


def row_gradients(logits: Tensor, batch: Batch, loss: Callable[[Tensor], Tensor]) -> Tensor:
    """What each row adds to the ascent direction, `[B, S, A]`: −∂(Σ_t loss_bt)/∂logits.

    `logits` `[S, A]`, or `[B, S, A]` with a table for each row. `loss` maps log-probabilities `[B, T]` to
    per-step losses `[B, T]`, such as `lambda logp: objectives.reinforce(logp, advantage, batch.valid)`.
    """
    tables = logits.detach().expand(len(batch), *logits.shape[-2:]).clone().requires_grad_()
    loss(logp(tables, batch)).sum().backward()
    assert tables.grad is not None
    return -tables.grad


def reinforce_gradients(logits: Tensor, batch: Batch) -> Tensor:
    """`row_gradients` of REINFORCE with `batch.advantage`, `[B, S, A]`."""
    advantage = batch.advantage
    if advantage is None:
        raise ValueError("Batch.advantage is empty: let an advantage part compute it first")
    return row_gradients(logits, batch, lambda logp: objectives.reinforce(logp, advantage, batch.valid))


def draw(logits: Tensor, generator: torch.Generator) -> Tensor:
    """One action for each row of `logits` `[..., A]`, int64 `[...]`."""
    probability = torch.softmax(logits.detach(), dim=-1, dtype=torch.float64)
    flat = torch.multinomial(probability.reshape(-1, probability.shape[-1]), 1, generator=generator)
    return flat.reshape(probability.shape[:-1])


def sequences(steps: int, choices: int) -> Tensor:
    """All `choices`^`steps` sequences of choices, `[N, steps]` int64."""
    return torch.cartesian_prod(*[torch.arange(choices)] * steps).reshape(-1, steps)


def group_ids(rows: int, group: int) -> Tensor:
    """Ids `[rows]` int64 of groups of `group` rows: 0 … 0, 1 … 1, and so on.

    Raises ValueError where the rows are not a whole number of groups.
    """
    if group < 1 or rows % group:
        raise ValueError(f"{rows} rows are not a whole number of groups of {group}")
    return torch.arange(rows // group).repeat_interleave(group)


def misjudged(batch: Batch, error: Tensor) -> Batch:
    """The batch with a critic that is off by `error[s]`, `[S]`; at the end of an episode it knows that V = 0."""
    if batch.value is None:
        raise ValueError("the batch has no critic to be misled: Batch.value is None")
    value = only(batch.valid, batch.value + error[batch.obs])
    following = returns.next_values(value, torch.zeros_like(value), batch.cut, batch.valid)
    return batch.with_(value=value, next_value=following)


@dataclass(frozen=True, slots=True)
class Misjudged:
    """An environment whose critic is off by `error[s]`; otherwise it is the same."""

    environment: Exact
    error: tuple[float, ...]

    @property
    def states(self) -> int:
        """Those of the environment."""
        return self.environment.states

    @property
    def actions(self) -> int:
        """Those of the environment."""
        return self.environment.actions

    def value(self, logits: Tensor) -> Tensor:
        """The true value."""
        return self.environment.value(logits)

    def sample(self, logits: Tensor, groups: int, group: int, generator: torch.Generator) -> Batch:
        """Episodes with the wrong critic in `value` and `next_value`."""
        error = torch.tensor(self.error, dtype=torch.float64)
        return misjudged(self.environment.sample(logits, groups, group, generator), error)
