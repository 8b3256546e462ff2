"""Returns and lengths of episodes as they finish, across windows."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outdo.control import snapshot

RECENT = 100
"""Finished episodes that the running figures are means over."""


class Tally:
    """Counts the episodes of N environments; rewards as the environments paid them, before any scaling."""

    def __init__(self, envs: int) -> None:
        self.returns, self.lengths = np.zeros(envs), np.zeros(envs, dtype=np.int64)
        self.recent: deque[tuple[float, int]] = deque(maxlen=RECENT)

    def record(
        self, reward: NDArray[np.float64], ended: NDArray[np.bool_], valid: NDArray[np.bool_]
    ) -> list[tuple[float, int]]:
        """Return and length of the episodes that end in a window `[T, N]`, in order of time."""
        finished: list[tuple[float, int]] = []
        total = np.cumsum(np.where(valid, reward, 0.0), axis=0) + self.returns
        count = np.cumsum(valid, axis=0) + self.lengths
        paid, passed = np.zeros_like(self.returns), np.zeros_like(self.lengths)
        for step, env in np.argwhere(ended & valid):
            finished.append((float(total[step, env] - paid[env]), int(count[step, env] - passed[env])))
            paid[env], passed[env] = total[step, env], count[step, env]
        self.returns, self.lengths = total[-1] - paid, count[-1] - passed
        self.recent.extend(finished)
        return finished

    def metrics(self) -> dict[str, float]:
        """Means over the last 100 episodes; nothing before the first has ended."""
        if not self.recent:
            return {}
        returns, lengths = zip(*self.recent, strict=True)
        return {"episode/return": float(np.mean(returns)), "episode/length": float(np.mean(lengths))}

    def restart(self) -> None:
        """Forget the episodes that are running."""
        self.returns, self.lengths = np.zeros_like(self.returns), np.zeros_like(self.lengths)

    def state_dict(self) -> dict[str, Any]:
        """Running episodes and the recent ones."""
        recent = [list(pair) for pair in self.recent]
        return snapshot.encode({"returns": self.returns, "lengths": self.lengths, "recent": recent})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo `state_dict`."""
        saved = snapshot.decode(state)
        self.returns, self.lengths = saved["returns"], saved["lengths"]
        self.recent = deque([(value, length) for value, length in saved["recent"]], maxlen=RECENT)
