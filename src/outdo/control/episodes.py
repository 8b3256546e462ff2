"""Whole episodes: one a row, begun anew for every batch, alone or in groups that share their start state.

Axes: N environments (rows), T steps of the longest episode.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from outdo.control import seeding, windows
from outdo.control.protocol import Actor
from outdo.control.stepping import Now, begin, take_step
from outdo.control.storage import Columns
from outdo.control.vector import Vector, VectorError, meet, resets_on_next_step
from outdo.core.batch import Batch


@dataclass(frozen=True, slots=True)
class EpisodeSettings:
    """How episodes are collected.

    | field | meaning |
    |---|---|
    | `group` | episodes that share a start state, and so a group; it divides the number of environments |
    | `gamma` | discount factor of the algorithm |
    | `seed` | names start states and the stream of actions |
    | `max_steps` | an episode is cut there, as by a time limit |
    """

    group: int = 1
    gamma: float = 1.0
    seed: int = 0
    max_steps: int = 10_000

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        for name in ("group", "max_steps"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma must be in [0, 1], got {self.gamma}")


class EpisodeEnvironment:
    """Collects one whole episode of each environment per batch; implements `Environment`.

    For REINFORCE on complete episodes and, with `group` above 1, for GRPO: environments of a group are reset
    with one seed, so they begin in the same state (and meet the same chance, where they draw from the generator
    that the seed made). Every batch begins anew, with seeds made from seed, step and group, so there is nothing
    to save but counts, and a resumed run is exactly the run that was not stopped.
    """

    def __init__(self, env: Vector, settings: EpisodeSettings | None = None) -> None:
        self.env, self.settings = env, settings or EpisodeSettings()
        self.next_step = resets_on_next_step(env)
        if env.num_envs % self.settings.group:
            raise ValueError(
                f"{env.num_envs} environments do not divide into groups of {self.settings.group}: make the number "
                "of episodes a multiple of the group"
            )
        self._steps = 0
        self._metrics: dict[str, float] = {}

    def collect(self, policy: Actor, step: int) -> Batch:
        """One episode a row, `[N, T]`; steps after an episode's end are not valid.

        Raises `VectorError` where environments of a group do not begin alike.
        """
        policy.settle()
        meet(self.env, policy, step)
        now, running = self._begin(policy, step), np.ones(self.env.num_envs, dtype=np.bool_)
        stream = seeding.stream(self.settings.seed, "actions", step)
        columns = Columns(min(128, self.settings.max_steps))
        while running.any() and len(columns) < self.settings.max_steps:
            take_step(self.env, policy, now, stream, columns, next_step=self.next_step, real=running)
            running = running & ~now.ended
        after = policy.value(now.obs, now.state, now.first)
        window = windows.of_columns(
            columns, np.zeros_like(running), after, self.settings.gamma, next_step=self.next_step
        )
        return self._batch(columns, window, stepwise=not policy.recurrent)

    def _begin(self, policy: Actor, step: int) -> Now:
        """All environments at the start of their episodes."""
        group, seed = self.settings.group, self.settings.seed
        if group == 1:
            return begin(self.env, policy, seeding.derive(seed, "episodes", step))
        starts = range(self.env.num_envs // group)
        seeds = [seeding.derive(seed, "episodes", step, start) for start in starts for _ in range(group)]
        now = begin(self.env, policy, seeds)
        if not _alike(now.obs, group):
            raise VectorError(
                f"environments of {self.env} that were reset with one seed do not begin alike: their start states "
                "must come from the generator that reset(seed=...) makes"
            )
        return now

    def _batch(self, columns: Columns, window: windows.Window, *, stepwise: bool) -> Batch:
        """The episodes as the core reads them, figures for the log beside."""
        valid, reward = columns["real"], columns["reward"]
        paid = np.where(valid, reward, 0.0).sum(axis=0)
        lengths = valid.sum(axis=0)
        self._steps += int(lengths.sum())
        self._metrics = {
            "environment_steps": float(self._steps),
            "episodes": float(len(paid)),
            "episode/return": float(paid.mean()),
            "episode/length": float(lengths.mean()),
        }
        ends = _ends(columns, lengths)
        return windows.batch(
            columns,
            window,
            reward=reward,
            valid=valid,
            group=torch.arange(len(paid)) // self.settings.group,
            info=tuple(
                {"return": float(value), "length": int(length), "end": end}
                for value, length, end in zip(paid, lengths, ends, strict=True)
            ),
            stepwise=stepwise,
        )

    def metrics(self) -> dict[str, float]:
        """Figures of the last `collect`: steps so far, and means over its episodes."""
        return dict(self._metrics)

    def state_dict(self) -> dict[str, Any]:
        """The count of steps."""
        return {"steps": self._steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo `state_dict`."""
        self._steps = state["steps"]


def _ends(columns: Columns, lengths: Any) -> list[str]:
    """How each episode ended: terminated, truncated, or cut by `max_steps`."""
    last, row = lengths - 1, np.arange(len(lengths))
    dead, over = columns["terminated"][last, row], columns["truncated"][last, row]
    return ["terminated" if d else "truncated" if o else "max_steps" for d, o in zip(dead, over, strict=True)]


def _alike(obs: Any, group: int) -> bool:
    """Whether the rows of a batched observation are equal within groups of `group` rows."""
    if isinstance(obs, dict):
        return all(_alike(part, group) for part in obs.values())
    if isinstance(obs, tuple):
        return all(_alike(part, group) for part in obs)
    grouped = np.asarray(obs).reshape(-1, group, *np.asarray(obs).shape[1:])
    return bool((grouped == grouped[:, :1]).all())
