"""Connect Four on N boards side by side, compiled: a column of seven takes six stones, four in a row win.

A side's stones on a board are one number: bit 7·column + height, from the bottom left. The seventh bit of a column
stays free, so that shifts do not join columns. Observations are those of PettingZoo's `connect_four`.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from gymnasium.spaces import Box, Discrete
from numpy.typing import NDArray

Ints = NDArray[np.int64]
FULL = sum(63 << 7 * column for column in range(7))
"""All 42 places taken."""


@numba.njit(cache=True)
def won(stones: int) -> bool:
    """Whether four stones lie in a row: up (1), across (7), or along a diagonal (6, 8)."""
    for step in (1, 7, 6, 8):
        pairs = stones & (stones >> step)
        if pairs & (pairs >> (2 * step)):
            return True
    return False


@numba.njit(cache=True)
def dropped(taken: int, column: int) -> int:
    """The bit where a stone falls in a column, 0 where it is full; `taken`: all stones."""
    bit = (taken + (1 << (7 * column))) & (63 << (7 * column))
    return bit & ~taken


def bitboard(stones: NDArray[Any]) -> Ints:
    """Stones `[K, 6, 7]`, top row first, as one number each."""
    weights = np.int64(1) << (7 * np.arange(7)[None, :] + np.arange(6)[::-1, None]).astype(np.int64)
    return (stones.astype(np.int64) * weights).sum(axis=(1, 2))


class ConnectFour:
    """N boards; implements `Boards`."""

    observation_space = Box(0, 1, (6, 7, 2), np.int8)
    """Own stones, then the other's, top row first."""
    action_space = Discrete(7)
    """The column."""

    def __init__(self, count: int) -> None:
        self.stones = np.zeros((count, 2), dtype=np.int64)
        """Of the first and the second player."""
        self.turn = np.zeros(count, dtype=np.int64)
        self.over = np.zeros(count, dtype=np.bool_)
        self.result = np.zeros(count, dtype=np.int64)

    def reset(self, boards: Ints) -> None:
        """See `Boards.reset`."""
        self.stones[boards] = 0
        self.turn[boards], self.over[boards], self.result[boards] = 0, False, 0

    def play(self, boards: Ints, moves: Ints) -> None:
        """See `Boards.play`."""
        _play(self.stones, self.turn, self.over, self.result, boards, moves)

    def look(self, boards: Ints, seats: Ints) -> tuple[NDArray[np.int8], NDArray[np.int8]]:
        """See `Boards.look`."""
        seen = np.zeros((len(boards), 6, 7, 2), dtype=np.int8)
        masks = np.zeros((len(boards), 7), dtype=np.int8)
        _look(self.stones, boards, seats, seen, masks)
        return seen, masks

    def get_state(self) -> dict[str, Any]:
        """Every array."""
        return dict(vars(self))

    def set_state(self, state: dict[str, Any]) -> None:
        """Undo `get_state`."""
        vars(self).update(state)


@numba.njit(cache=True)
def _play(stones: Any, turn: Any, over: Any, result: Any, boards: Any, moves: Any) -> None:
    """Drop the stones of the sides whose turn it is, and see whether the game ends."""
    for k in range(len(boards)):
        board = boards[k]
        side = turn[board]
        stones[board, side] |= dropped(stones[board, 0] | stones[board, 1], moves[k])
        turn[board] = 1 - side
        if won(stones[board, side]):
            result[board] = 1 - 2 * side
            over[board] = True
        else:
            over[board] = (stones[board, 0] | stones[board, 1]) == FULL


@numba.njit(cache=True)
def _look(stones: Any, boards: Any, seats: Any, seen: Any, masks: Any) -> None:
    """Write the observations `[K, 6, 7, 2]` from `seats`, and which columns `[K, 7]` are free."""
    for k in range(len(boards)):
        own, other = stones[boards[k], seats[k]], stones[boards[k], 1 - seats[k]]
        for column in range(7):
            masks[k, column] = dropped(own | other, column) != 0
            for height in range(6):
                bit, place = 7 * column + height, seen[k, 5 - height, column]
                place[0] = own >> bit & 1
                place[1] = other >> bit & 1
