"""Boards of two-player games that are played side by side, as the games of `outdo.control.games` use them.

Axes: N boards, K of them, A moves.
"""

from __future__ import annotations

import os
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from outdo.control.vector import library

Ints = NDArray[np.int64]


class Boards(Protocol):
    """N boards. Seat 0 moves first, seat 1 second.

    `over` `[N]`: the game has ended; `result` `[N]`: 1 where the first player has won it, −1 where the second has,
    else 0. Spaces are those of one board.
    """

    observation_space: Any
    action_space: Any
    over: NDArray[np.bool_]
    result: Ints

    def reset(self, boards: Ints) -> None:
        """Clear the boards `[K]`."""
        ...

    def play(self, boards: Ints, moves: Ints) -> None:
        """Make the allowed moves `[K]` on boards whose games go on, for the sides whose turn it is."""
        ...

    def look(self, boards: Ints, seats: Ints) -> tuple[NDArray[Any], NDArray[Any]]:
        """Observations `[K, …]` from the seats `[K]`, and where it is their turn the allowed moves `[K, A]`."""
        ...

    def get_state(self) -> dict[str, Any]:
        """The running games as plain data."""
        ...

    def set_state(self, state: dict[str, Any]) -> None:
        """Undo `get_state`."""
        ...


class PettingZoo:
    """Boards of a game of PettingZoo's `classic` (extra `games`); implements `Boards`."""

    def __init__(self, game: str, count: int) -> None:
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        made = library(f"pettingzoo.classic.{game}.{game}", "games")
        self.games: list[Any] = [made.raw_env() for _ in range(count)]
        self.players: list[str] = self.games[0].possible_agents
        self.observation_space = self.games[0].observation_space(self.players[0])["observation"]
        self.action_space = self.games[0].action_space(self.players[0])
        self.moves: list[list[int]] = [[] for _ in range(count)]
        self.over = np.zeros(count, dtype=np.bool_)
        self.result = np.zeros(count, dtype=np.int64)

    def reset(self, boards: Ints) -> None:
        """See `Boards.reset`."""
        for board in boards:
            self.games[board].reset()
            self.moves[board] = []
        self.over[boards], self.result[boards] = False, 0

    def play(self, boards: Ints, moves: Ints) -> None:
        """See `Boards.play`."""
        for board, move in zip(boards.tolist(), moves.tolist(), strict=True):
            game = self.games[board]
            game.step(move)
            self.moves[board].append(move)
            self.over[board] = all(game.terminations.values())
            self.result[board] = game.rewards[self.players[0]] if self.over[board] else 0

    def look(self, boards: Ints, seats: Ints) -> tuple[NDArray[Any], NDArray[Any]]:
        """See `Boards.look`."""
        looks = [
            self.games[board].observe(self.players[seat]) for board, seat in zip(boards, seats, strict=True)
        ]
        return np.stack([x["observation"] for x in looks]), np.stack([x["action_mask"] for x in looks])

    def get_state(self) -> dict[str, Any]:
        """The moves of the running games."""
        return {"moves": self.moves}

    def set_state(self, state: dict[str, Any]) -> None:
        """Undo `get_state`: the moves are played again."""
        for board, moves in enumerate(state["moves"]):
            self.reset(np.array([board]))
            for move in moves:
                self.play(np.array([board]), np.array([move]))
