"""What an environment of the control wing knows of a policy: it acts, it values, it keeps statistics.

Axes: N environments that step together.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

Mask = NDArray[np.bool_]
Array = NDArray[Any]


@dataclass(frozen=True, slots=True)
class Act:
    """One step's decision for N environments; NumPy arrays, or dicts of them for composite spaces.

    | field | shape | meaning |
    |---|---|---|
    | `action` | as the action space | what goes into the environment: scaled and clipped to its bounds |
    | `raw` | [N, ...] | what was sampled (before tanh, unclipped); becomes `Batch.action` |
    | `features` | [N, ...] | what `evaluate` needs of the observation, normalised already; becomes `Batch.obs` |
    | `logp` | [N] float32 | log-probability of `raw`, summed over the parts of a composite action |
    | `value` | [N] float32 | V of the observation; None without a critic |
    | `state` | opaque | recurrent state after this step; None for a feed-forward policy |
    """

    action: Any
    raw: Any
    features: Any
    logp: Array
    value: Array | None
    state: Any


@runtime_checkable
class Actor(Protocol):
    """A policy as an environment sees it."""

    @property
    def recurrent(self) -> bool:
        """Whether `state` means anything; then minibatches keep rows whole."""
        ...

    def initial_state(self, envs: int) -> Any:
        """State of `envs` environments whose episodes begin; None for a feed-forward policy."""
        ...

    def act(
        self,
        obs: Any,
        state: Any,
        first: Mask,
        stream: np.random.Generator,
        *,
        deterministic: bool = False,
        mask: Any = None,
    ) -> Act:
        """Choose actions. `first` [N]: the step begins an episode, so `state` is reset before it is used.

        `mask` (as the action space's parts, True = allowed) forbids discrete actions.
        """
        ...

    def value(self, obs: Any, state: Any, first: Mask) -> Array | None:
        """V [N] float32 of observations that are bootstrapped from; None without a critic. Changes nothing."""
        ...

    def observe(self, obs: Any, real: Mask) -> None:
        """Count the observations of rows where `real` [N] into the pending statistics of the normaliser."""
        ...

    def settle(self) -> None:
        """Make the pending statistics count; called where a collect starts, never between rollout and update."""
        ...
