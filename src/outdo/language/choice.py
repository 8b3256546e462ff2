"""Which prompts come next: an endless shuffle, and if wished more of what is not yet solved."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from outdo.language.data import Stream

RATE_STEP = 0.5
"""Weight of the newest group in a prompt's running solve rate."""


class PromptChoice:
    """Chooses prompts: fresh ones from an endless shuffle and, for the share `focus`, unsolved ones again.

    A prompt is unsolved while its running solve rate (share of its completions that were right, averaged over
    visits with weight 1/2 for the newest) is below 1. Unsolved prompts are drawn with weight 1 − rate, none
    twice in a call. The state is the position in the shuffle, a counter of draws, and the rates of prompts
    seen and unsolved.
    """

    def __init__(self, size: int, seed: int, focus: float = 0.0) -> None:
        if not 0 <= focus <= 1:
            raise ValueError(f"focus must be in [0, 1], got {focus}")
        self._stream = Stream(size, seed)
        self._focus = focus
        self._position = 0
        self.drawn = 0
        """Prompts chosen so far; a prompt's place in this count names its occurrence for ever."""
        self._rates: dict[int, float] = {}

    def choose(self, count: int) -> list[int]:
        """The next `count` indices."""
        rng = random.Random(f"{self._stream.seed}/focus/{self.drawn}")
        again = self._draw_unsolved(sum(rng.random() < self._focus for _ in range(count)), rng)
        fresh = self._stream.take(self._position, count - len(again))
        self._position += len(fresh)
        self.drawn += count
        return again + fresh

    def _draw_unsolved(self, count: int, rng: random.Random) -> list[int]:
        """`count` unsolved indices, or all: those of largest u^(1/w) (Efraimidis and Spirakis 2006)."""
        keys = {i: rng.random() ** (1 / (1 - rate)) for i, rate in sorted(self._rates.items())}
        return sorted(keys, key=lambda i: (-keys[i], i))[:count]

    def observe(self, index: int, rate: float) -> None:
        """Note that the share `rate` of the last completions for prompt `index` was right."""
        if not self._focus:
            return
        before = self._rates.get(index, rate)
        now = before + RATE_STEP * (rate - before)
        if now < 0.99:
            self._rates[index] = now
        else:
            self._rates.pop(index, None)

    def state_dict(self) -> dict[str, Any]:
        """Position, counter and rates; JSON-able."""
        return {
            "position": self._position,
            "drawn": self.drawn,
            "rates": {str(index): rate for index, rate in self._rates.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Undo `state_dict`."""
        self._position, self.drawn = int(state["position"]), int(state["drawn"])
        self._rates = {int(index): float(rate) for index, rate in state["rates"].items()}
