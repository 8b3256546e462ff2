"""Two-player board games as vector environments: won 1, lost −1, drawn 0, and nothing in between.

Axes: N boards that are played side by side.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space
from numpy.typing import NDArray

from outdo.control.boards import Boards, PettingZoo
from outdo.control.connect_four import ConnectFour
from outdo.control.opponents import Frozen, Minimax, Opponent, Random
from outdo.control.vector import VectorError

GAMES = {"connect_four": 5, "tictactoe": 3}
"""The games, and the longest opening after which an opponent's move cannot end one yet: the first player's fourth
stone is move 7, the third one move 5.

Connect Four is compiled (`outdo.control.connect_four`), others have the names of PettingZoo's modules."""


def _boards(game: str, count: int) -> Boards:
    """`count` boards of a game."""
    if game not in GAMES:
        raise VectorError(f"game must be one of {', '.join(GAMES)}, got {game!r}")
    return ConnectFour(count) if game == "connect_four" else PettingZoo(game, count)


class BoardGame(VectorEnv[Any, Any, Any]):
    """N boards of a game, each against one of `opponents`, drawn anew for every game.

    The learner has the first seat with probability ½. It observes the board from its own side and finds the
    allowed moves in `info["action_mask"]`; its move and the opponent's answer are one step. A game that ends
    begins anew in the same step. A game opens with 0 to `opening` random moves of both sides, each number as likely,
    so that games differ. All chance comes from the seed of `reset`.
    """

    def __init__(self, game: str, num_envs: int, opponents: Sequence[Opponent], opening: int = 0) -> None:
        if not opponents:
            raise VectorError("a game needs at least one opponent")
        self.boards = _boards(game, num_envs)
        if not 0 <= opening <= GAMES[game]:
            raise VectorError(f"an opening of {game} has 0 to {GAMES[game]} moves, got {opening}")
        self.num_envs, self.opponents, self.opening = num_envs, list(opponents), opening
        self.metadata = {"autoreset_mode": AutoresetMode.SAME_STEP}
        self.single_observation_space = self.boards.observation_space
        self.single_action_space = self.boards.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.all = np.arange(num_envs)
        self.seats = np.zeros(num_envs, dtype=np.int64)
        """Whether the learner moves first (0) or second (1)."""
        self.against = np.zeros(num_envs, dtype=np.int64)
        """Index of the opponent."""
        self._allowed: Any = None

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin a new game on every board."""
        super().reset(seed=seed)
        self._begin(self.all)
        obs, self._allowed = self.boards.look(self.all, self.seats)
        return obs, {"action_mask": self._allowed}

    def step(self, actions: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """The learner's moves, then the opponents'. Raises ValueError for a move that is not allowed."""
        moves = np.asarray(actions, dtype=np.int64)
        forbidden = np.flatnonzero(self._allowed[self.all, moves] == 0)
        if len(forbidden):
            board = forbidden[0]
            raise ValueError(
                f"move {moves[board]} is not allowed on board {board}: choose among info['action_mask']"
            )
        self.boards.play(self.all, moves)
        self._answer(np.flatnonzero(~self.boards.over))
        over = self.boards.over.copy()
        reward = np.where(self.seats == 0, self.boards.result, -self.boards.result).astype(np.float64)
        infos: dict[str, Any] = {}
        if over.any():
            infos["final_obs"] = self.boards.look(self.all, self.seats)[0]
            self._begin(np.flatnonzero(over))
        obs, self._allowed = self.boards.look(self.all, self.seats)
        infos["action_mask"] = self._allowed
        return obs, reward, over, np.zeros_like(over), infos

    def _begin(self, boards: NDArray[np.int64]) -> None:
        """New games: their openings, then the opponents' moves where it is their turn."""
        self.seats[boards] = self.np_random.integers(2, size=len(boards))
        self.against[boards] = self.np_random.integers(len(self.opponents), size=len(boards))
        self.boards.reset(boards)
        moves = self.np_random.integers(self.opening + 1, size=len(boards))
        for move in range(self.opening):
            opened = boards[moves > move]
            if len(opened):
                seen, masks = self.boards.look(opened, np.full(len(opened), move % 2))
                self.boards.play(opened, Random().choose(seen, masks, self.np_random))
        self._answer(boards[moves % 2 != self.seats[boards]])

    def _answer(self, boards: NDArray[np.int64]) -> None:
        """The opponents' moves on boards where it is their turn."""
        for index, opponent in enumerate(self.opponents):
            theirs = boards[self.against[boards] == index]
            if len(theirs):
                seen, masks = self.boards.look(theirs, 1 - self.seats[theirs])
                self.boards.play(theirs, opponent.choose(seen, masks, self.np_random))

    def get_state(self) -> dict[str, Any]:
        """The running games, who plays whom, and the generator."""
        return {
            "boards": self.boards.get_state(),
            "seats": self.seats,
            "against": self.against,
            "generator": self.np_random,
        }

    def set_state(self, state: dict[str, Any]) -> None:
        """Undo `get_state`."""
        self.seats, self.against, self.np_random = state["seats"], state["against"], state["generator"]
        self.boards.set_state(state["boards"])
        self._allowed = self.boards.look(self.all, self.seats)[1]


class SelfPlay(BoardGame):
    """The learner against earlier snapshots of itself: `meet`, called before every window, takes them.

    Every `every` windows the policy as it is then takes the place of the oldest of `size` snapshots, also in
    games that are running against that one. Each game's opponent is drawn from all of them; until the first `meet`
    it moves at random. Snapshots draw their moves, or play the likeliest ones if they are `greedy`: these punish what
    the policy knows how to punish, however much it still explores.
    """

    def __init__(
        self,
        game: str,
        num_envs: int,
        *,
        every: int = 10,
        size: int = 5,
        opening: int = 0,
        greedy: bool = False,
    ) -> None:
        if every < 1 or size < 1:
            raise VectorError(f"every and size must be at least 1, got {every} and {size}")
        super().__init__(game, num_envs, [Random()], opening)
        self.every, self.size, self.greedy, self.taken = every, size, greedy, 0
        self._files: list[dict[str, NDArray[np.uint8]]] = []
        self._snapshots: list[Frozen] = []

    def meet(self, policy: Any, step: int) -> None:
        """Take a snapshot of `policy` where one is due; after a resume, make those of the checkpoint.

        Raises VectorError for a policy with a memory.
        """
        if policy.recurrent:
            raise VectorError("snapshots play without memory: self-play needs a feed-forward policy")
        if len(self._snapshots) != len(self._files):
            self._snapshots = [Frozen(_thawed(policy, files), self.greedy) for files in self._files]
        if step % self.every == 0:
            slot = self.taken % self.size
            self._files[slot : slot + 1] = [_files(policy)]
            self._snapshots[slot : slot + 1] = [Frozen(policy.reference(), self.greedy)]
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


def _thawed(policy: Any, files: dict[str, NDArray[np.uint8]]) -> Any:
    """A frozen policy from saved files; `policy` gives the make."""
    frozen = policy.reference()
    with tempfile.TemporaryDirectory() as folder:
        for name, content in files.items():
            path = Path(folder) / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.tobytes())
        frozen.load(Path(folder))
    return frozen


Kind = Literal["self", "random", "scripted", "minimax"]


def connect_four(
    num_envs: int,
    opponent: Kind = "self",
    *,
    depth: int = 4,
    every: int = 10,
    size: int = 5,
    opening: int = 0,
    greedy: bool = False,
) -> BoardGame:
    """Connect Four against past snapshots (`self`) or a fixed opponent; for `env.id` of a recipe.

    `random` moves at random, `scripted` wins where it can and else prevents a loss where it can (search of 2
    moves), `minimax` searches `depth` moves. `every`, `size`, `greedy` as in `SelfPlay`, `opening` as in `BoardGame`.
    """
    if opponent == "self":
        return SelfPlay("connect_four", num_envs, every=every, size=size, opening=opening, greedy=greedy)
    fixed: dict[str, Opponent] = {"random": Random(), "scripted": Minimax(2), "minimax": Minimax(depth)}
    return BoardGame("connect_four", num_envs, [_chosen(opponent, fixed)], opening)


def tic_tac_toe(
    num_envs: int,
    opponent: Literal["self", "random"] = "self",
    *,
    every: int = 10,
    size: int = 5,
    opening: int = 0,
    greedy: bool = False,
) -> BoardGame:
    """Tic-tac-toe against past snapshots or random moves; arguments as `connect_four`."""
    if opponent == "self":
        return SelfPlay("tictactoe", num_envs, every=every, size=size, opening=opening, greedy=greedy)
    return BoardGame("tictactoe", num_envs, [_chosen(opponent, {"random": Random()})], opening)


def _chosen(opponent: str, fixed: dict[str, Opponent]) -> Opponent:
    """The fixed opponent of a name."""
    if opponent not in fixed:
        raise VectorError(f"opponent must be one of self, {', '.join(fixed)}, got {opponent!r}")
    return fixed[opponent]
