"""Two-player board games of PettingZoo as vector environments: won 1, lost −1, drawn 0, and nothing in between.

Axes: N boards that are played side by side.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from outdo.control.opponents import Frozen, Minimax, Opponent, Random
from outdo.control.vector import VectorError, library

GAMES = ("connect_four", "tictactoe")
"""Names of PettingZoo's modules."""


class BoardGame(VectorEnv[Any, Any, Any]):
    """N boards of a game of PettingZoo, each against one of `opponents`, drawn anew for every game.

    The learner begins every game with probability ½. It observes the board from its own side and finds the
    allowed moves in `info["action_mask"]`; its move and the opponent's answer are one step. A game that ends
    begins anew in the same step. All chance comes from the seed of `reset`.
    """

    def __init__(self, game: str, num_envs: int, opponents: Sequence[Opponent]) -> None:
        if game not in GAMES:
            raise VectorError(f"game must be one of {', '.join(GAMES)}, got {game!r}")
        if not opponents:
            raise VectorError("a game needs at least one opponent")
        os.environ.setdefault("PYGAME_HIDE_SUPPORT_PROMPT", "1")
        made = library(f"pettingzoo.classic.{game}.{game}", "games")
        self.boards: list[Any] = [made.raw_env() for _ in range(num_envs)]
        self.num_envs, self.opponents = num_envs, list(opponents)
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        player = self.boards[0].possible_agents[0]
        self.single_observation_space = self.boards[0].observation_space(player)["observation"]
        self.single_action_space = self.boards[0].action_space(player)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self._allowed: Any = None
        self.moves: list[list[int]] = [[] for _ in range(num_envs)]
        self.seats = np.zeros(num_envs, dtype=np.int64)
        """Whether the learner moves first (0) or second (1)."""
        self.against = np.zeros(num_envs, dtype=np.int64)
        """Index of the opponent."""

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin a new game on every board."""
        super().reset(seed=seed)
        self._begin(np.arange(self.num_envs))
        obs, self._allowed = self._seen()
        return obs, {"action_mask": self._allowed}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """The learner's moves, then the opponents'. Raises ValueError for a move that is not allowed."""
        for board, move in enumerate(np.asarray(actions).tolist()):
            if not self._allowed[board][move]:
                raise ValueError(
                    f"move {move} is not allowed on board {board}: choose among info['action_mask']"
                )
            self._move(board, move)
        running = np.array([not self._over(board) for board in range(self.num_envs)])
        self._answer(np.flatnonzero(running))
        over = np.array([self._over(board) for board in range(self.num_envs)])
        reward = np.array([self._paid(board) if over[board] else 0.0 for board in range(self.num_envs)])
        infos: dict[str, Any] = {}
        if over.any():
            infos["final_obs"] = self._seen()[0]
            self._begin(np.flatnonzero(over))
        obs, self._allowed = self._seen()
        infos["action_mask"] = self._allowed
        return obs, reward, over, np.zeros_like(over), infos

    def _begin(self, boards: NDArray[np.intp]) -> None:
        """New games, with the opponents' first moves where they begin."""
        self.seats[boards] = self.np_random.integers(2, size=len(boards))
        self.against[boards] = self.np_random.integers(len(self.opponents), size=len(boards))
        for board in boards:
            self.boards[board].reset()
            self.moves[board] = []
        self._answer(boards[self.seats[boards] == 1])

    def _answer(self, boards: NDArray[np.intp]) -> None:
        """The opponents' moves on boards where it is their turn."""
        for index, opponent in enumerate(self.opponents):
            theirs = boards[self.against[boards] == index]
            if len(theirs):
                seen = [self._look(board, 1 - int(self.seats[board])) for board in theirs]
                stones, masks = (
                    np.stack([look[part] for look in seen]) for part in ("observation", "action_mask")
                )
                for board, move in zip(theirs, opponent.choose(stones, masks, self.np_random), strict=True):
                    self._move(board, int(move))

    def _move(self, board: int, move: int) -> None:
        self.boards[board].step(move)
        self.moves[board].append(move)

    def _over(self, board: int) -> bool:
        return all(self.boards[board].terminations.values())

    def _paid(self, board: int) -> float:
        """What the game paid the learner at its end."""
        game = self.boards[board]
        return float(game.rewards[game.possible_agents[self.seats[board]]])

    def _look(self, board: int, seat: int) -> dict[str, Any]:
        game = self.boards[board]
        return game.observe(game.possible_agents[seat])

    def _seen(self) -> tuple[Any, Any]:
        """Boards and allowed moves as the learner sees them."""
        looks = [self._look(board, int(self.seats[board])) for board in range(self.num_envs)]
        return np.stack([x["observation"] for x in looks]), np.stack([x["action_mask"] for x in looks])

    def get_state(self) -> dict[str, Any]:
        """The moves of the running games, who plays whom, and the generator."""
        return {
            "moves": self.moves,
            "seats": self.seats,
            "against": self.against,
            "generator": self.np_random,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Undo `get_state`: the moves are played again."""
        self.seats, self.against, self.np_random = state["seats"], state["against"], state["generator"]
        for board, moves in enumerate(state["moves"]):
            self.boards[board].reset()
            self.moves[board] = []
            for move in moves:
                self._move(board, move)
        self._allowed = self._seen()[1]


class SelfPlay(BoardGame):
    """The learner against earlier snapshots of itself: `meet`, called before every window, takes them.

    Every `every` windows the policy as it is then takes the place of the oldest of `size` snapshots, also in
    games that are running against that one. Each game's opponent is drawn from all of them; until the first `meet`
    it moves at random.
    """

    def __init__(self, game: str, num_envs: int, *, every: int = 10, size: int = 5) -> None:
        if every < 1 or size < 1:
            raise VectorError(f"every and size must be at least 1, got {every} and {size}")
        super().__init__(game, num_envs, [Random()])
        self.every, self.size, self.taken = every, size, 0
        self._files: list[dict[str, NDArray[np.uint8]]] = []
        self._snapshots: list[Frozen] = []

    def meet(self, policy: Any, step: int) -> None:
        """Take a snapshot of `policy` where one is due; after a resume, make those of the checkpoint.

        Raises VectorError for a policy with a memory.
        """
        if policy.recurrent:
            raise VectorError("snapshots play without memory: self-play needs a feed-forward policy")
        if len(self._snapshots) != len(self._files):
            self._snapshots = [_thawed(policy, files) for files in self._files]
        if step % self.every == 0:
            slot = self.taken % self.size
            self._files[slot : slot + 1] = [_files(policy)]
            self._snapshots[slot : slot + 1] = [Frozen(policy.reference())]
            self.taken += 1
        if self._snapshots:
            self.opponents = list[Opponent](self._snapshots)

    def get_state(self) -> dict[str, Any]:
        """The games, and the snapshots as the files that the policy writes."""
        return {**super().get_state(), "taken": self.taken, "snapshots": self._files}

    def set_state(self, state: dict[str, Any]) -> None:
        """Undo `get_state`; the snapshots become opponents at the next `meet`."""
        super().set_state(state)
        self.taken, self._files, self._snapshots = state["taken"], state["snapshots"], []


def _files(policy: Any) -> dict[str, NDArray[np.uint8]]:
    """The files that a policy saves, by name, as bytes."""
    with tempfile.TemporaryDirectory() as folder:
        policy.save(Path(folder))
        return {
            str(path.relative_to(folder)): np.frombuffer(path.read_bytes(), dtype=np.uint8)
            for path in sorted(Path(folder).rglob("*"))
            if path.is_file()
        }


def _thawed(policy: Any, files: dict[str, NDArray[np.uint8]]) -> Frozen:
    """An opponent from saved files; `policy` gives the make."""
    frozen = policy.reference()
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.tobytes())
        frozen.load(Path(folder))
    return Frozen(frozen)


Kind = Literal["self", "random", "scripted", "minimax"]


def connect_four(
    num_envs: int, opponent: Kind = "self", *, depth: int = 4, every: int = 10, size: int = 5
) -> BoardGame:
    """Connect Four against past snapshots (`self`) or a fixed opponent; for `env.id` of a recipe.

    `random` moves at random, `scripted` wins where it can and else prevents a loss where it can (search of 2
    moves), `minimax` searches `depth` moves. `every` and `size` as in `SelfPlay`.
    """
    return _game("connect_four", num_envs, opponent, depth, every, size)


def tic_tac_toe(
    num_envs: int, opponent: Literal["self", "random"] = "self", *, every: int = 10, size: int = 5
) -> BoardGame:
    """Tic-tac-toe against past snapshots or random moves; arguments as `connect_four`."""
    return _game("tictactoe", num_envs, opponent, 1, every, size)


def _game(game: str, num_envs: int, opponent: str, depth: int, every: int, size: int) -> BoardGame:
    if opponent == "self":
        return SelfPlay(game, num_envs, every=every, size=size)
    fixed: dict[str, Opponent] = {"random": Random(), "scripted": Minimax(2), "minimax": Minimax(depth)}
    if opponent not in fixed:
        raise VectorError(f"opponent must be one of self, {', '.join(fixed)}, got {opponent!r}")
    return BoardGame(game, num_envs, [fixed[opponent]])
