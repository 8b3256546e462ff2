"""Running statistics that stand still while a batch is collected and learnt from."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Moments = tuple[float, Floats, Floats]
"""Count n, mean and sum of squared deviations from it."""


def _merged(one: Moments, other: Moments) -> Moments:
    """Moments of both samples together: Chan, Golub & LeVeque 1979, eq. 2.1."""
    count = one[0] + other[0]
    if not other[0]:
        return one
    delta = other[1] - one[1]
    mean = one[1] + delta * (other[0] / count)
    return count, mean, one[2] + other[2] + delta**2 * (one[0] * other[0] / count)


class RunningStatistics:
    """Mean and variance of all values seen, per entry of `shape`, in float64.

    `observe` collects; nothing changes until `settle` makes what was collected count. So a rollout and the
    update that follows it see the same statistics, whatever is observed in between.
    """

    def __init__(self, shape: tuple[int, ...] = ()) -> None:
        self.shape = shape
        self._settled = self._nothing()
        self._pending = self._nothing()

    def _nothing(self) -> Moments:
        return 0.0, np.zeros(self.shape), np.zeros(self.shape)

    @property
    def count(self) -> float:
        """Number of settled values."""
        return self._settled[0]

    @property
    def mean(self) -> Floats:
        """Mean of the settled values, `shape`; 0 before the first."""
        return self._settled[1]

    @property
    def variance(self) -> Floats:
        """Variance of the settled values with divisor n, `shape`; 1 before the second."""
        count, _, squares = self._settled
        return squares / count if count > 1 else np.ones(self.shape)

    def observe(self, values: ArrayLike) -> None:
        """Collect `values` `[n, *shape]`; they count from the next `settle` on.

        Raises ValueError where the shape does not fit.
        """
        sample = np.asarray(values, dtype=np.float64)
        if sample.shape[1:] != self.shape:
            raise ValueError(f"values must be [n, {self.shape}], got {sample.shape}")
        if len(sample):
            mean = sample.mean(axis=0)
            squares = np.square(sample - mean).sum(axis=0)
            self._pending = _merged(self._pending, (float(len(sample)), mean, squares))

    def settle(self) -> None:
        """Make what was collected count."""
        self._settled = _merged(self._settled, self._pending)
        self._pending = self._nothing()

    def state_dict(self) -> dict[str, Any]:
        """Settled and pending moments."""
        return {
            name: {"count": count, "mean": _tensor(mean), "squares": _tensor(squares)}
            for name, (count, mean, squares) in (("settled", self._settled), ("pending", self._pending))
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo `state_dict`. Raises ValueError where the saved shape is another one."""
        parts: list[Moments] = []
        for name in ("settled", "pending"):
            saved = state[name]
            mean, squares = saved["mean"].numpy().copy(), saved["squares"].numpy().copy()
            if mean.shape != self.shape:
                raise ValueError(f"saved statistics have shape {mean.shape}, these have {self.shape}")
            parts.append((float(saved["count"]), mean, squares))
        self._settled, self._pending = parts


def _tensor(array: Floats) -> torch.Tensor:
    return torch.from_numpy(np.array(array))


class RewardScale:
    """Divides rewards by the standard deviation of the running discounted return; the mean stays.

    R_t = γ·R_{t−1} + r_t within an episode, r̂_t = r_t / √(Var R + ε), with Var over all steps so far, those
    of the window included: one scale for the whole window, taken before anything is learnt from it.
    Engstrom et al. 2020 (arXiv 2005.12729), §2; departures: rewards are not clipped unless `clip` is given,
    and the scale is one per window instead of one per step.
    """

    def __init__(self, envs: int, gamma: float, clip: float | None = None, eps: float = 1e-8) -> None:
        if clip is not None and clip <= 0:
            raise ValueError(f"clip must be > 0 or left out, got {clip}")
        self.gamma, self.clip, self.eps = gamma, clip, eps
        self.statistics = RunningStatistics()
        self.returns = np.zeros(envs)

    def __call__(self, reward: Floats, ended: NDArray[np.bool_], valid: NDArray[np.bool_]) -> Floats:
        """Scaled rewards `[T, N]` of a window `[T, N]`; rows that are not `valid` count nowhere.

        `ended`: the episode ends with this step, so the next one starts from R = 0.
        """
        seen = np.empty_like(reward)
        for step in range(len(reward)):
            self.returns = np.where(valid[step], self.gamma * self.returns + reward[step], self.returns)
            seen[step] = self.returns
            self.returns[ended[step]] = 0.0
        self.statistics.observe(seen[valid])
        self.statistics.settle()
        scaled = reward / np.sqrt(self.statistics.variance + self.eps)
        return scaled if self.clip is None else np.clip(scaled, -self.clip, self.clip)

    def restart(self) -> None:
        """Forget the returns of running episodes: all environments begin anew."""
        self.returns = np.zeros_like(self.returns)

    def state_dict(self) -> dict[str, Any]:
        """Statistics and running returns."""
        return {"statistics": self.statistics.state_dict(), "returns": _tensor(self.returns)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo `state_dict`."""
        self.statistics.load_state_dict(state["statistics"])
        self.returns = state["returns"].numpy().copy()
