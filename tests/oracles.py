"""Exact truth for tests: enumeration of a small MDP, and straightforward recursions in float64."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor


@dataclass(frozen=True)
class Mdp:
    """Finite-horizon MDP with deterministic moves, a random start and a reward per state and action."""

    start: Tensor  # [S] start distribution
    move: Tensor  # [S, A] next state
    reward: Tensor  # [S, A]
    horizon: int


def grid_world() -> Mdp:
    """A corridor of three cells: left, right; the goal pays, the walls cost; two start cells; three steps."""
    return Mdp(
        start=torch.tensor([0.6, 0.4, 0.0], dtype=torch.float64),
        move=torch.tensor([[0, 1], [0, 2], [1, 2]]),
        reward=torch.tensor([[-1.0, 0.5], [0.2, 2.0], [-0.3, 1.0]], dtype=torch.float64),
        horizon=3,
    )


@dataclass(frozen=True)
class Trajectories:
    """All N trajectories: states, actions, rewards `[N, T]`, and the start's probability `[N]`."""

    state: Tensor
    action: Tensor
    reward: Tensor
    start: Tensor

    def logp(self, logits: Tensor) -> Tensor:
        """log π(a_t|s_t) `[N, T]` of a table of logits `[S, A]`."""
        return torch.log_softmax(logits, dim=-1)[self.state, self.action]

    def probability(self, logits: Tensor) -> Tensor:
        """P(τ) `[N]`, differentiable in the logits."""
        return self.start * self.logp(logits).sum(dim=1).exp()


def enumerate_trajectories(mdp: Mdp) -> Trajectories:
    """Every start state with probability > 0 and every action sequence."""
    states, actions, rewards, start = [], [], [], []
    for first in range(len(mdp.start)):
        if mdp.start[first] == 0:
            continue
        for choice in itertools.product(range(mdp.move.shape[1]), repeat=mdp.horizon):
            path, state = [], first
            for action in choice:
                path.append(state)
                state = int(mdp.move[state, action])
            states.append(path)
            actions.append(list(choice))
            rewards.append([float(mdp.reward[s, a]) for s, a in zip(path, choice, strict=True)])
            start.append(float(mdp.start[first]))
    return Trajectories(
        torch.tensor(states),
        torch.tensor(actions),
        torch.tensor(rewards, dtype=torch.float64),
        torch.tensor(start, dtype=torch.float64),
    )


def exact_gradient(mdp: Mdp, logits: Tensor, gamma: float) -> Tensor:
    """∇ Σ_τ P(τ) Σ_t γ^t r_t by automatic differentiation of the enumerated sum, `[S, A]`."""
    every = enumerate_trajectories(mdp)
    table = logits.detach().clone().requires_grad_()
    powers = gamma ** torch.arange(mdp.horizon, dtype=torch.float64)
    (every.probability(table) * (every.reward * powers).sum(dim=1)).sum().backward()
    assert table.grad is not None
    return table.grad


def values(mdp: Mdp, logits: Tensor) -> Tensor:
    """Undiscounted V_t(s) `[T + 1, S]` by backward induction."""
    policy = torch.softmax(logits, dim=-1)
    value = torch.zeros(mdp.horizon + 1, len(mdp.start), dtype=torch.float64)
    for t in range(mdp.horizon - 1, -1, -1):
        value[t] = (policy * (mdp.reward + value[t + 1][mdp.move])).sum(dim=1)
    return value


def gae_by_loop(
    reward: np.ndarray,
    value: np.ndarray,
    next_value: np.ndarray,
    discount: np.ndarray,
    cut: np.ndarray,
    valid: np.ndarray,
    lam: float,
) -> np.ndarray:
    """GAE from its definition, row by row, on the list of the row's valid steps only; float64."""
    out = np.zeros(reward.shape)
    for b in range(reward.shape[0]):
        steps = [t for t in range(reward.shape[1]) if valid[b, t]]
        for i in range(len(steps)):
            weight = 1.0
            for t in steps[i:]:
                delta = float(reward[b, t]) + float(discount[b, t]) * float(next_value[b, t])
                out[b, steps[i]] += weight * (delta - float(value[b, t]))
                weight *= float(discount[b, t]) * lam
                if cut[b, t]:
                    break
    return out
