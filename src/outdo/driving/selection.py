"""Choosing training scenes by disagreement (Alpamayo-R1, arXiv 2511.00088, §5.3): where policy and reward differ most.

Each scene that is trained on measures itself, at no cost: its group was sampled and scored for the update anyhow. A
running table keeps the newest divergence of each; scenes are drawn again from its top. So random choice and choice by
disagreement generate the same answers per update, learn from all of them, and compare at equal cost. The paper
selects once, from samples made for that alone.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from typing import Any

from outdo.language.data import Stream


def divergence(
    logp: Sequence[float],
    lengths: Sequence[int],
    rewards: Sequence[float],
    *,
    beta: float = 1.0,
    by_length: bool = True,
) -> float:
    """How much the policy disagrees with the reward about a group of its answers, in nats, at least 0.

        KL(q ‖ p) = Σ_i q_i log(q_i/p_i),   q = softmax(β·r),   p = softmax(ℓ)

    over answers i with log-likelihoods `logp` log π(τ_i) and `lengths` n_i in tokens; ℓ_i = log π(τ_i)/n_i with
    `by_length`, else log π(τ_i). This direction because exponentially weighted GRPO descends on −Σ_i q_i log π(τ_i):
    up to the entropy of q, the group's share of what is left to gain. The reverse is largest where the policy is
    sure of what the reward rejects, whether or not it ever says anything better. A group whose rewards are all equal
    has 0: it teaches nothing, however uneven its likelihoods are. β and the normalisation are unstated in the source.

    Raises:
        ValueError: no answers, or lists of different lengths.
    """
    if not rewards or not len(logp) == len(lengths) == len(rewards):
        raise ValueError(f"need one entry per answer: {len(logp)}, {len(lengths)}, {len(rewards)}")
    if len(set(rewards)) == 1:
        return 0.0
    own = _log_softmax([value / n if by_length else value for value, n in zip(logp, lengths, strict=True)])
    wanted = _log_softmax([beta * reward for reward in rewards])
    return math.fsum(math.exp(q) * (q - p) for q, p in zip(wanted, own, strict=True))


def _log_softmax(values: Sequence[float]) -> list[float]:
    most = max(values)
    total = most + math.log(math.fsum(math.exp(value - most) for value in values))
    return [value - total for value in values]


class SceneChoice:
    """Chooses scenes: the share `share` by disagreement, as soon as there are measured ones, the others at random.

    Random ones come from an endless shuffle. For k by disagreement, `candidates`·k of all measured scenes are drawn
    at random and the k with the largest divergence are kept, so that a scene that stays hard does not crowd out the
    others. The state is the position in the shuffle, the counter of draws and the table.
    """

    def __init__(self, size: int, seed: int, share: float = 0.0, candidates: int = 4) -> None:
        if not 0 <= share <= 1:
            raise ValueError(f"share must be in [0, 1], got {share}")
        if candidates < 1:
            raise ValueError(f"candidates must be at least 1, got {candidates}")
        self._stream = Stream(size, seed, "scenes")
        self._share, self._candidates = share, candidates
        self._position = 0
        self.drawn = 0
        """Scenes chosen so far; a scene's place in this count names its occurrence for ever."""
        self._table: dict[int, float] = {}

    def choose(self, count: int) -> tuple[list[int], list[int]]:
        """The next `count` indices: those by disagreement, and the random ones."""
        rng = random.Random(f"{self._stream.seed}/candidates/{self.drawn}")
        wanted = round(self._share * count)
        pool = rng.sample(sorted(self._table), min(len(self._table), wanted * self._candidates))
        again = sorted(pool, key=lambda index: (-self._table[index], index))[:wanted]
        fresh = self._stream.take(self._position, count - len(again))
        self._position += len(fresh)
        self.drawn += count
        return again, fresh

    def observe(self, index: int, value: float) -> None:
        """Note the divergence of a scene's newest group."""
        if self._share:
            self._table[index] = value

    def state_dict(self) -> dict[str, Any]:
        """Position, counter and table; JSON-able."""
        table = {str(index): value for index, value in self._table.items()}
        return {"position": self._position, "drawn": self.drawn, "table": table}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Undo `state_dict`."""
        self._position, self.drawn = int(state["position"]), int(state["drawn"])
        self._table = {int(index): float(value) for index, value in state["table"].items()}
