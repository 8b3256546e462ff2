"""Rolls a control policy through random observations: a batch as an environment would collect it."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from gymnasium.vector.utils import batch_space

from outdo.control.policy import ControlPolicy
from outdo.core.batch import Batch


def rollout(policy: ControlPolicy, space: Any, *, rows: int = 5, steps: int = 7, mask: Any = None) -> Batch:
    """`rows` environments of random observations from `space`; episodes begin at random."""
    rng = np.random.default_rng(0)
    several = batch_space(space, rows)
    several.seed(0)
    state, acts = policy.initial_state(rows), []
    for step in range(steps):
        first = np.ones(rows, bool) if step == 0 else rng.random(rows) < 0.2
        acts.append(policy.act(several.sample(), state, first, rng, mask=mask))
        state = acts[-1].state
    zeros = torch.zeros(rows, steps)
    value = None if acts[0].value is None else columns([act.value for act in acts])
    return Batch(
        obs=columns([act.features for act in acts]),
        action=columns([act.raw for act in acts]),
        logp=columns([act.logp for act in acts]),
        reward=zeros,
        discount=zeros,
        cut=zeros.bool(),
        valid=torch.ones(rows, steps, dtype=torch.bool),
        group=torch.arange(rows),
        value=value,
        next_value=None if value is None else zeros,
        stepwise=not policy.recurrent,
    )


def columns(steps: list[Any]) -> Any:
    """Arrays `[N, ...]` of T steps, or dicts of them, as tensors `[N, T, ...]`."""
    if isinstance(steps[0], dict):
        return {key: columns([step[key] for step in steps]) for key in steps[0]}
    return torch.from_numpy(np.stack(steps, axis=1))
