"""EnvPool's environments behind Gymnasium's vector interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from gymnasium.vector import VectorEnv
from gymnasium.vector.utils import batch_space

from outdo.control.vector import VectorError, library


class Pool(VectorEnv[Any, Any, Any]):
    """`envs` copies of EnvPool's environment `name`; `settings` go to `envpool.make`.

    EnvPool takes seeds only where a pool is made, so `reset(seed=…)` makes a new one: one seed per copy, or an
    int s for s, s + 1, … as Gymnasium's own vector environments read it. The autoreset mode is EnvPool's.
    """

    def __init__(self, name: str, envs: int, settings: Mapping[str, Any]) -> None:
        self._name, self._settings, self.num_envs = name, dict(settings), envs
        self._pool = self._make(range(envs))
        self.metadata = dict(self._pool.metadata)
        self.single_observation_space = self._pool.single_observation_space
        self.single_action_space = self._pool.single_action_space
        self.observation_space = batch_space(self.single_observation_space, envs)
        self.action_space = batch_space(self.single_action_space, envs)

    def _make(self, seeds: Sequence[int]) -> Any:
        envpool = library("envpool", "envpool")
        if self._name not in envpool.list_all_envs():
            raise VectorError(f"EnvPool has no {self._name!r}; `envpool.list_all_envs()` has their names")
        return envpool.make(
            self._name, env_type="gymnasium", num_envs=self.num_envs, seed=list(seeds), **self._settings
        )

    def reset(
        self, *, seed: int | Sequence[int] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset all copies, anew with `seed` where one is given."""
        if seed is not None:
            seeds = range(seed, seed + self.num_envs) if isinstance(seed, int) else seed
            self._pool.close()
            self._pool = self._make(seeds)
        return self._pool.reset(options=options)

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Step all copies."""
        return self._pool.step(np.asarray(actions))

    def close_extras(self, **kwargs: Any) -> None:
        """Close the pool."""
        self._pool.close()
