"""Board games: seats, rewards and masks against PettingZoo itself; opponents against enumeration; self-play."""

from __future__ import annotations

import json
from functools import cache

import numpy as np
import pytest
import torch
from stand_in import Coin

pytest.importorskip("pettingzoo")
pytest.importorskip("pygame")

from pettingzoo.classic.connect_four.connect_four import raw_env

from outdo.control import snapshot
from outdo.control.environment import ControlEnvironment, WindowSettings
from outdo.control.evaluation import Returns, play
from outdo.control.games import SelfPlay, connect_four, tic_tac_toe
from outdo.control.opponents import Minimax, Random
from outdo.control.policy import ControlPolicy
from outdo.control.vector import VectorError, make_vector
from outdo.training.checkpoint import pack, unpack


class Player(Coin):
    """Moves as an opponent does."""

    def __init__(self, opponent):
        super().__init__(critic=False)
        self.opponent = opponent

    def act(self, obs, state, first, stream, *, deterministic=False, mask=None):
        act = super().act(obs, state, first, stream)
        moves = self.opponent.choose(obs, mask, stream)
        return type(act)(moves, moves, obs, act.logp, None, None)


def board(*moves):
    """PettingZoo's Connect Four after these columns."""
    game = raw_env()
    game.reset()
    for move in moves:
        game.step(move)
    return game


def choices(depth, *moves):
    """The moves that a search of `depth` chooses in 40 tries."""
    seen = board(*moves).observe(board(*moves).agent_selection)
    stones, masks = (np.repeat(seen[key][None], 40, axis=0) for key in ("observation", "action_mask"))
    return set(Minimax(depth).choose(stones, masks, np.random.default_rng(0)).tolist())


def test_minimax_takes_a_win_prevents_one_and_sees_a_double_threat():
    three_up = (0, 1, 0, 1, 0)  # the first player has three stones in column 0; the second is to move
    assert choices(1, *three_up, 2) == {0}  # the first player's turn again: wins
    assert choices(2, *three_up) == {0}  # the second player must stop it
    assert choices(1, *three_up) == set(range(7))  # one move ahead sees nothing of it
    # the first player has 2 and 3 of the bottom row, both neighbours free: after 1 or 4 nothing helps
    assert choices(3, 3, 3, 2, 2) == {1, 4}
    assert choices(4, 3, 3, 2) <= {1, 4, 0, 5}  # so the second player stops it one move before


def test_minimax_equals_plain_search_on_full_windows():
    """Against a search without pruning that plays PettingZoo's rules on an array."""

    def wins(cells, who):
        lines = [
            [(r + i * dr, c + i * dc) for i in range(4)]
            for r in range(6)
            for c in range(7)
            for dr, dc in ((0, 1), (1, 0), (1, 1), (1, -1))
            if 0 <= r + 3 * dr < 6 and 0 <= c + 3 * dc < 7
        ]
        return any(all(cells[r][c] == who for r, c in line) for line in lines)

    @cache
    def best(cells, who, depth):
        values = [value(cells, who, column, depth) for column in range(7)]
        possible = [v for v in values if v is not None]
        return max(possible) if possible else 0

    def value(cells, who, column, depth):
        free = [r for r in range(6) if cells[r][column] == 0]
        if not free:
            return None
        after = [list(row) for row in cells]
        after[max(free)][column] = who
        if wins(after, who):
            return depth
        return 0 if depth == 1 else -best(tuple(map(tuple, after)), 3 - who, depth - 1)

    rng = np.random.default_rng(2)
    for _ in range(6):
        moves = []
        while len(moves) < 14 and not all(board(*moves).terminations.values()):
            game = board(*moves)
            moves.append(int(rng.choice(np.flatnonzero(game.observe(game.agent_selection)["action_mask"]))))
        game = board(*moves)
        if all(game.terminations.values()):
            continue
        cells = tuple(map(tuple, np.array(game.board).reshape(6, 7).tolist()))
        who = 1 + game.possible_agents.index(game.agent_selection)
        values = [value(cells, who, column, 3) for column in range(7)]
        top = max(v for v in values if v is not None)
        assert choices(3, *moves) <= {c for c in range(7) if values[c] == top}


def test_random_moves_are_allowed_and_even():
    masks = np.tile(np.array([0, 1, 1, 0, 1], np.int8), (3000, 1))
    moves = Random().choose(np.zeros((3000, 1)), masks, np.random.default_rng(0))
    counts = np.bincount(moves, minlength=5)
    assert counts[[0, 3]].sum() == 0
    assert counts[[1, 2, 4]].min() > 900  # 1000 ± 26 each


def test_games_are_paid_as_they_end_and_both_seats_are_played():
    """A searching player against random moves wins nearly always; rewards lie at the ends alone."""
    env = connect_four(8, "random")
    batch = ControlEnvironment(env, WindowSettings(steps=60)).collect(Player(Minimax(2)), 0)
    paid = batch.reward[batch.discount == 0]
    assert set(batch.reward.unique().tolist()) <= {-1, 0, 1}
    assert (batch.reward[batch.discount > 0] == 0).all()
    assert len(paid) > 20
    assert (paid == 1).float().mean() > 0.9
    assert batch.cut[:, :-1].logical_xor(batch.discount[:, :-1] == 0).sum() == 0
    # stones on the board where a game begins: none if the learner moves first, one if second
    starts = torch.cat([batch.obs[:, :1], batch.obs[:, 1:][batch.cut[:, :-1]][None].transpose(0, 1)])
    stones = starts.flatten(1).sum(dim=1)
    assert set(stones.tolist()) == {0, 1}
    assert 0.2 < stones.float().mean() < 0.8


def test_turned_round_the_result_is_turned_round():
    """What wins from one side loses from the other: minimax as the opponent, random moves as the learner."""
    played = play(connect_four(8, "minimax", depth=2), Player(Random()), 40, seed=0, deterministic=True)
    assert np.mean([e.value == -1 for e in played]) > 0.8
    even = play(connect_four(8, "random"), Player(Random()), 400, seed=0, deterministic=True)
    assert abs(np.mean([e.value for e in even])) < 0.2  # 4 standard errors


def test_the_stronger_search_wins():
    played = play(connect_four(8, "scripted"), Player(Minimax(5)), 40, seed=0, deterministic=True)
    assert np.mean([e.value for e in played]) > 0.5


@pytest.mark.parametrize(("make", "longest"), [(connect_four, 5), (tic_tac_toe, 3)])
def test_openings_are_random_moves_of_both_sides(make, longest):
    """0 to `longest` stones, each number as often, in turns; then the learner moves first or answers."""
    env = make(700, "random", opening=longest)
    obs, info = env.reset(seed=0)
    own, other = (obs[..., side].reshape(700, -1).sum(axis=1) for side in (0, 1))
    # it is the learner's turn: the first player has as many stones as the second, the second one fewer than the first
    assert (other - own == env.seats).all()
    assert info["action_mask"].any(axis=1).all()
    assert not env.boards.over.any()
    # k moves and, if the turn was then not the learner's, one more of the opponent: s stones are k = s or k = s − 1,
    # each of them with probability ½ · 1/(longest + 1)
    counts = np.bincount(own + other, minlength=longest + 2)
    expected = np.array([0.5, *[1.0] * longest, 0.5]) * 700 / (longest + 1)
    assert (np.abs(counts - expected) < 5 * np.sqrt(expected)).all()
    assert len(np.unique(obs, axis=0)) > 100
    without = make(8, "random").reset(seed=0)[0]
    assert (without.reshape(8, -1).sum(axis=1) <= 1).all()


def test_a_forbidden_move_is_refused():
    env = connect_four(1, "random")
    env.reset(seed=0)
    env.boards.reset(np.array([0]))
    for _ in range(6):  # six stones by turns: column 3 is full
        env.boards.play(np.array([0]), np.array([3]))
    env.set_state(env.get_state())
    with pytest.raises(ValueError, match="move 3 is not allowed on board 0: choose among"):
        env.step(np.array([3]))


def small_policy(env, seed=0):
    return ControlPolicy(env.single_observation_space, env.single_action_space, hidden=(16,), seed=seed)


def test_self_play_meets_snapshots_of_the_past():
    """Every 2 windows one, at most 2: after windows 0, 2, 4 the oldest is gone."""
    env = tic_tac_toe(4, every=2, size=2)
    policy = small_policy(env)
    environment = ControlEnvironment(env, WindowSettings(steps=6))
    weights = []
    for step in range(5):
        environment.collect(policy, step)
        weights.append(policy.matrices.detach().clone())
        with torch.no_grad():
            policy.matrices.add_(0.1)
    assert env.taken == 3
    held = [opponent.policy.matrices for opponent in env.opponents]
    assert torch.equal(held[0], weights[4])
    assert torch.equal(held[1], weights[2])


@pytest.mark.parametrize("greedy", [True, False])
def test_greedy_snapshots_play_their_likeliest_moves(greedy):
    """A policy that has learnt nothing is nearly even: drawn moves are all of them, the likeliest is one."""
    env = tic_tac_toe(1, every=1, size=1, greedy=greedy)
    env.reset(seed=0)
    policy = small_policy(env)
    env.meet(policy, 0)
    obs = np.zeros((300, 3, 3, 2), np.int8)
    masks = np.ones((300, 9), np.int8)
    likeliest = policy.act(
        obs, None, np.ones(300, bool), np.random.default_rng(0), deterministic=True, mask=masks
    )
    moves = env.opponents[0].choose(obs, masks, np.random.default_rng(0))
    assert (moves == likeliest.action).all() == greedy
    assert len(set(moves.tolist())) == (1 if greedy else 9)


def test_self_play_resumes_exactly():
    def make():
        return ControlEnvironment(tic_tac_toe(3, every=2, size=2), WindowSettings(steps=7))

    whole, resumed = make(), make()
    policy = small_policy(whole.env)
    for step in range(3):
        whole.collect(policy, step)
        with torch.no_grad():
            policy.matrices.add_(0.1 * (step + 1))
    tensors = {}
    state = json.loads(json.dumps(pack(whole.state_dict(), tensors)))
    resumed.load_state_dict(unpack(state, tensors))
    for step in (3, 4, 5):
        one, two = whole.collect(policy, step), resumed.collect(policy, step)
        for field in ("action", "logp", "reward", "value"):
            assert torch.equal(getattr(one, field), getattr(two, field)), field


@pytest.mark.parametrize("make", [connect_four, tic_tac_toe])
def test_games_go_on_where_they_were(make):
    env, other = make(2, "random"), make(2, "random")
    masks = env.reset(seed=3)[1]["action_mask"]
    for _ in range(2):
        masks = env.step(masks.argmax(axis=1))[-1]["action_mask"]
    snapshot.restore(other, snapshot.take(env))
    for _ in range(12):  # into the next games
        moves = masks.argmax(axis=1)
        one, two = env.step(moves), other.step(moves)
        for mine, same in zip(one[:4], two[:4], strict=True):
            np.testing.assert_array_equal(mine, same)
        masks = one[-1]["action_mask"]


def test_recipes_name_it_and_mistakes_are_explained():
    env = make_vector("outdo.control.games:connect_four", 3, arguments={"opponent": "scripted"})
    metrics = Returns(env, episodes=6)(Player(Random())).metrics
    assert -1 <= metrics["sampled/return"] <= 1
    for make, says in (
        (lambda: connect_four(1, "me"), "opponent must be one of"),
        (lambda: SelfPlay("chess_v6", 1), "game must be one of"),
        (lambda: SelfPlay("tictactoe", 1, every=0), "every"),
        (lambda: connect_four(1, opening=6), "an opening of connect_four has 0 to 5 moves, got 6"),
        (lambda: Minimax(0), "depth"),
    ):
        with pytest.raises(ValueError, match=says):
            make()
    stones = np.zeros((1, 3, 3, 2))
    with pytest.raises(ValueError, match="6, 7"):
        Minimax(2).choose(stones, np.ones((1, 9)), np.random.default_rng(0))
    recurrent = Coin()
    recurrent.recurrent = True
    with pytest.raises(VectorError, match="feed-forward"):
        tic_tac_toe(1).meet(recurrent, 0)
