"""Opponents of board games: they see the board from their own side and choose an allowed move.

Axes: K boards, A moves. Boards are `[K, rows, columns, 2]`: own stones, then the other's, as PettingZoo shows them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numba
import numpy as np
from numpy.typing import NDArray

from outdo.control.connect_four import bitboard, dropped, won
from outdo.control.protocol import Actor

Boards = NDArray[Any]
Moves = NDArray[np.int64]
Masks = NDArray[Any]
_LOST = -1000
"""Below every value of a move."""


class Opponent(Protocol):
    """Chooses moves."""

    def choose(self, boards: Boards, masks: Masks, stream: np.random.Generator) -> Moves:
        """A move `[K]` for each board, among those where `masks` `[K, A]` is not 0."""
        ...


@dataclass(frozen=True, slots=True)
class Random:
    """Every allowed move is as likely."""

    def choose(self, boards: Boards, masks: Masks, stream: np.random.Generator) -> Moves:
        """See `Opponent.choose`."""
        return np.where(masks, stream.random(masks.shape), -1.0).argmax(axis=1)


@dataclass(frozen=True, slots=True)
class Frozen:
    """A policy as it was when it was frozen; it draws its moves, or plays the likeliest, and learns nothing."""

    policy: Actor
    greedy: bool = False

    def choose(self, boards: Boards, masks: Masks, stream: np.random.Generator) -> Moves:
        """See `Opponent.choose`."""
        first = np.ones(len(boards), dtype=np.bool_)
        act = self.policy.act(boards, None, first, stream, deterministic=self.greedy, mask=masks)
        return np.asarray(act.action)


@dataclass(frozen=True, slots=True)
class Minimax:
    """Connect Four by search `depth` moves ahead, beyond which a position counts as even; equals are drawn.

    Depth 1 takes a win, 2 also prevents one, 4 sees double threats. Quicker wins and later losses are better.
    """

    depth: int = 4

    def __post_init__(self) -> None:
        """Refuse a search that sees nothing."""
        if self.depth < 1:
            raise ValueError(f"depth must be at least 1, got {self.depth}")

    def choose(self, boards: Boards, masks: Masks, stream: np.random.Generator) -> Moves:
        """See `Opponent.choose`. Raises ValueError for boards that are not Connect Four's 6 × 7."""
        if boards.shape[1:] != (6, 7, 2):
            raise ValueError(f"minimax plays Connect Four on [K, 6, 7, 2], got {boards.shape}")
        own, other = (bitboard(boards[..., side]) for side in (0, 1))
        scores = _scores(own, other, self.depth)
        best = scores == np.where(masks, scores, _LOST).max(axis=1, keepdims=True)
        return np.where(best & (masks != 0), stream.random(masks.shape), -1.0).argmax(axis=1)


@numba.njit("int64(int64, int64, int64, int64, int64)", cache=True)
def _negamax(own: int, other: int, depth: int, low: int, high: int) -> int:
    """Value of a position for the side to move, exact within (low, high): a win counts the depth that is left."""
    taken = own | other
    full = True
    for column in range(7):
        stone = dropped(taken, column)
        if stone:
            full = False
            if won(own | stone):
                return depth
    if full or depth == 1:
        return 0
    for turn in range(7):
        column = 3 + (turn + 1) // 2 * (1 if turn % 2 else -1)  # the middle first: it wins most
        stone = dropped(taken, column)
        if stone:
            value = -_negamax(other, own | stone, depth - 1, -high, -low)
            if value >= high:
                return value
            low = max(low, value)
    return low


@numba.njit(cache=True)
def _scores(own: Any, other: Any, depth: int) -> Any:
    """Value `[K, 7]` of each move on boards `[K]`; a full column counts as lost."""
    values = np.full((len(own), 7), _LOST, dtype=np.int64)
    for k in range(len(own)):
        for column in range(7):
            stone = dropped(own[k] | other[k], column)
            if stone:
                after = own[k] | stone
                if won(after):
                    values[k, column] = depth
                elif depth > 1:
                    values[k, column] = -_negamax(other[k], after, depth - 1, _LOST, -_LOST)
                else:
                    values[k, column] = 0
    return values
