"""Exact environments: values against hand arithmetic and naive enumeration, critics, batches, bad settings."""

import itertools
import math

import pytest
import torch

from outdo.core import returns
from outdo.lab.exact import tabular
from outdo.lab.exact.bandit import Bandit
from outdo.lab.exact.chain import Chain
from outdo.lab.exact.grid import GridWorld
from outdo.lab.exact.sequences import Sequences
from outdo.lab.exact.tabular import Misjudged, gradient, logits_of

ALL = [
    Bandit((1.0, 3.0, 2.0), noise=0.5),
    Chain(4, noise=0.2),
    GridWorld(),
    GridWorld(horizon=3),
    Sequences(((0, 1), (2, 0)), actions=3),
]


def slanted(environment, seed=0):
    """Logits that treat no two actions alike."""
    shape = (environment.states, environment.actions)
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


# -- values by hand --------------------------------------------------------------------------------------


def test_bandit_by_hand():
    # J = (10 + 11)/2; dJ/dlogit = π(a)(m_a − J) = ½ (±½).
    bandit = Bandit((10.0, 11.0))
    assert float(bandit.value(logits_of(bandit))) == pytest.approx(10.5)
    assert bandit.gradient(logits_of(bandit)).tolist() == [pytest.approx([-0.25, 0.25])]


def test_chain_by_hand():
    # π(1) = 3/4 on the first of two steps, 1/2 on the second: J = 2·(3/4 + 1/2); dJ/dlogit_1 = 2·π(1)π(0).
    logits = torch.tensor([[0.0, math.log(3)], [0.0, 0.0]], dtype=torch.float64)
    chain = Chain(2, gain=2.0)
    assert float(chain.value(logits)) == pytest.approx(2.5)
    assert chain.gradient(logits)[:, 1].tolist() == pytest.approx([2 * 3 / 16, 2 / 4])


@pytest.mark.parametrize(
    ("cells", "gamma", "value"),
    [
        (("SG",), 1.0, 0.6),  # one move in four ends it: 4 steps on average, −0.4 + 1
        (("XSG",), 1.0, -0.2),  # two in four: 2 steps, goal as likely as pit
        (("SG",), 0.9, 0.15 / 0.325),  # V = ¼·0.9 + ¾·(−0.1 + 0.9 V)
        (("S#G", "..."), 1.0, None),
    ],
)
def test_grid_world_by_hand(cells, gamma, value):
    world = GridWorld(cells, gamma=gamma)
    found = float(world.value(logits_of(world)))
    if value is not None:
        assert found == pytest.approx(value)
    else:
        # Cells 0 S, 1, 2, 3 below it and beyond. A step pays −0.1 until the goal: J = 1 − 0.1·h_0, with
        # h_0 = 1 + ¾h_0 + ¼h_1, h_1 = 1 + ½h_1 + ¼h_0 + ¼h_2, h_2 = 1 + ½h_2 + ¼h_1 + ¼h_3,
        # h_3 = 1 + ½h_3 + ¼h_2: h_0 = h_1 + 4, h_1 = h_2 + 8, h_2 = h_3 + 12, 2h_3 = 4 + h_2 → h_3 = 16.
        assert found == pytest.approx(1 - 0.1 * (16 + 12 + 8 + 4))


def test_sequences_by_hand():
    # Prompt 0 wants (0, 1), prompt 1 (2, 0); uniform over three tokens: every token matches one time in three.
    task = Sequences(((0, 1), (2, 0)), actions=3)
    assert float(task.value(logits_of(task))) == pytest.approx(1 / 3)
    # dJ/dlogit of the target: π(1 − π)/(P·T) = (2/9)/4.
    assert float(task.gradient(logits_of(task))[0, 0]) == pytest.approx(2 / 36)


# -- values by naive enumeration --------------------------------------------------------------------------


def walk(cells, place, moves):
    """Rewards, and the cells in which moves were made, by walking over the text of the map."""
    paid, visited = [], []
    for move in moves:
        visited.append(place)
        r, c = (
            place[0] + ((-1, 0), (0, 1), (1, 0), (0, -1))[move][0],
            place[1] + ((-1, 0), (0, 1), (1, 0), (0, -1))[move][1],
        )
        cell = cells[r][c] if 0 <= r < len(cells) and 0 <= c < len(cells[0]) else "#"
        paid.append(-0.1 + {"G": 1.0, "X": -1.0}.get(cell, 0.0))
        if cell in "GX":
            break
        place = place if cell == "#" else (r, c)
    return paid, visited


def test_a_limited_grid_world_against_walking_every_way():
    cells, gamma = ("S.G", ".SX"), 0.9
    world = GridWorld(cells, gamma=gamma, horizon=4)
    places = [(0, 0), (0, 1), (1, 0), (1, 1)]
    logits = slanted(world).requires_grad_()
    policy = torch.softmax(logits, dim=-1)
    total = torch.zeros((), dtype=torch.float64)
    ways = {}
    for start in ((0, 0), (1, 1)):
        for moves in itertools.product(range(4), repeat=4):
            paid, visited = walk(cells, start, moves)
            ways[(start, moves[: len(paid)])] = (paid, visited)
    for (_, moves), (paid, visited) in ways.items():
        chance = torch.tensor(0.5, dtype=torch.float64)
        for place, move in zip(visited, moves, strict=True):
            chance = chance * policy[places.index(place), move]
        total = total + chance * sum(gamma**k * reward for k, reward in enumerate(paid))
    total.backward()
    assert float(world.value(logits.detach())) == pytest.approx(float(total.detach()))
    torch.testing.assert_close(world.gradient(logits.detach()), logits.grad)
    batch, probability = world.trajectories(logits.detach())
    assert len(batch) == len(ways)
    assert float(probability.sum()) == pytest.approx(1)


def test_the_linear_solve_is_the_limit_of_long_horizons():
    endless = GridWorld(gamma=0.95)
    logits = slanted(endless)
    limited = GridWorld(gamma=0.95, horizon=600)
    assert float(endless.value(logits)) == pytest.approx(float(limited.value(logits)))
    torch.testing.assert_close(endless.gradient(logits), limited.gradient(logits))


# -- critics ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [Chain(4), GridWorld(horizon=4), GridWorld(gamma=0.8, horizon=3)])
def test_the_critic_is_right_so_td_errors_have_mean_zero_in_every_state_and_step(world):
    logits = slanted(world)
    batch, probability = world.trajectories(logits)
    error = returns.td_error(batch.reward, batch.value, batch.next_value, batch.discount, batch.valid)
    weighted = probability[:, None] * error
    for t in range(error.shape[1]):
        for state in range(world.states):
            here = batch.valid[:, t] & (batch.obs[:, t] == state)
            assert abs(float(weighted[here, t].sum())) < 1e-12
    start = (probability * batch.value[:, 0]).sum()
    assert float(start) == pytest.approx(float(world.value(logits)))


def test_the_critic_of_sequences_knows_what_was_written():
    task = Sequences(((0, 1, 1), (1, 1, 0)), actions=2)
    logits = slanted(task)
    policy = torch.softmax(logits, dim=-1)
    tokens = torch.tensor(list(itertools.product(range(2), repeat=3)))
    prompt = torch.ones(len(tokens), dtype=torch.int64)
    batch = task.batch(logits, prompt, tokens)
    # Of the second prompt, after one token: mean of the final reward over all ways to go on.
    for row, first in ((0, 0), (4, 1)):
        expected = sum(
            float(policy[4, second] * policy[5, third])
            * sum(a == b for a, b in zip((first, second, third), (1, 1, 0), strict=True))
            / 3
            for second in range(2)
            for third in range(2)
        )
        assert float(batch.value[row, 1]) == pytest.approx(expected)
    # TD error of the last step: reward − V.
    assert batch.next_value[:, -1].tolist() == [0.0] * 8
    assert batch.reward.sum(dim=1).tolist() == pytest.approx([1 / 3, 0, 2 / 3, 1 / 3, 2 / 3, 1 / 3, 1, 2 / 3])


def test_a_misjudging_critic_is_off_by_its_error_and_knows_the_end():
    chain = Chain(3, gain=0.0)
    batch = chain.batch(logits_of(chain), torch.zeros(1, 3, dtype=torch.int64))
    wrong = tabular.misjudged(batch, torch.tensor([0.0, -0.3, -0.2], dtype=torch.float64))
    assert wrong.value.tolist() == [[0.0, -0.3, -0.2]]
    assert wrong.next_value.tolist() == [[-0.3, -0.2, 0.0]]
    with pytest.raises(ValueError, match="no critic"):
        tabular.misjudged(batch.with_(value=None, next_value=None), torch.zeros(3))


# -- samples ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("world", [*ALL, Misjudged(GridWorld(), (0.5, 0.5, 0.5, 0.5))], ids=repr)
def test_samples_have_the_exact_value_and_gradient(world):
    logits = slanted(world, seed=1)
    batch = world.sample(logits, 2_000, 2, torch.Generator().manual_seed(0))
    total = returns.episode_return(batch.reward, batch.discount, batch.cut, batch.valid)
    earned = total[:, 0]
    error = float(earned.std()) / len(earned) ** 0.5
    assert abs(float(earned.mean() - world.value(logits))) < 5 * error
    each = tabular.reinforce_gradients(logits, batch.with_(advantage=total))
    deviates = (each.mean(dim=0) - gradient(world, logits)) / (each.std(dim=0) / len(each) ** 0.5)
    assert float(deviates.abs().max()) < 5
    torch.testing.assert_close(tabular.logp(logits, batch), batch.logp)


@pytest.mark.parametrize("world", ALL, ids=repr)
def test_a_group_shares_its_start_and_every_row_ends(world):
    batch = world.sample(slanted(world), 50, 3, torch.Generator().manual_seed(0))
    assert batch.group.tolist() == [k for k in range(50) for _ in range(3)]
    starts = batch.obs[:, 0].view(50, 3)
    assert bool((starts == starts[:, :1]).all())
    assert bool((batch.cut & batch.valid).any(dim=1).all())
    assert float(batch.discount[batch.cut].abs().sum()) == 0
    assert batch.logp.dtype == torch.float64


@pytest.mark.parametrize("world", ALL, ids=repr)
def test_one_seed_one_batch(world):
    first, again, other = (
        world.sample(slanted(world), 20, 2, torch.Generator().manual_seed(s)) for s in (3, 3, 4)
    )
    assert torch.equal(first.action, again.action)
    assert torch.equal(first.reward, again.reward)
    assert first.action.shape != other.action.shape or not torch.equal(first.action, other.action)


def test_given_arms_and_draws_are_paid_as_they_are():
    bandit = Bandit((5.0, 6.0), noise=2.0)
    batch = bandit.batch(logits_of(bandit), torch.tensor([1, 0]), torch.tensor([0.5, -1.0]), group=2)
    assert batch.reward[:, 0].tolist() == [7.0, 3.0]
    assert batch.group.tolist() == [0, 0]


def test_every_row_may_have_a_policy_of_its_own():
    bandit = Bandit((0.0, 1.0))
    tables = torch.tensor([[[0.0, 0.0]], [[0.0, math.log(3)]]], dtype=torch.float64)
    batch = bandit.batch(tables, torch.tensor([1, 1]))
    assert batch.logp.exp()[:, 0].tolist() == pytest.approx([0.5, 0.75])
    assert batch.value[:, 0].tolist() == pytest.approx([0.5, 0.75])
    # ∇ log π(1) = 1 − π(1), times the reward 1.
    rows = tabular.reinforce_gradients(tables, batch.with_(advantage=batch.reward))
    assert rows[:, 0, 1].tolist() == pytest.approx([0.5, 0.25])
    assert bool((bandit.sample(tables, 2, 1, torch.Generator()).logp <= 0).all())


# -- mistakes ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Bandit((1.0,)), "at least 2 arms"),
        (lambda: Bandit((1.0, 2.0), noise=-1.0), "noise"),
        (lambda: Chain(0), "steps"),
        (lambda: Chain(noise=-1.0), "noise"),
        (lambda: GridWorld(("S.", "G")), "equal length"),
        (lambda: GridWorld(("S?G",)), r"'\?'"),
        (lambda: GridWorld((".G",)), "no start"),
        (lambda: GridWorld(("S#G",)), "no end can be reached"),
        (lambda: GridWorld(gamma=1.5), "gamma"),
        (lambda: GridWorld(horizon=0), "horizon"),
        (lambda: Sequences(((0, 1), (0,)), 2), "one length"),
        (lambda: Sequences(((0, 2),), 2), "tokens must lie in"),
        (lambda: Chain(noise=1.0).trajectories(torch.zeros(20, 2)), "noise = 0"),
        (lambda: GridWorld().trajectories(torch.zeros(4, 4)), "set a horizon"),
        (lambda: tabular.group_ids(5, 2), "whole number of groups"),
        (
            lambda: tabular.reinforce_gradients(
                torch.zeros(1, 2), Bandit((0.0, 1.0)).batch(torch.zeros(1, 2), torch.tensor([0]))
            ),
            "advantage is empty",
        ),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_policy_that_never_ends_is_given_up(monkeypatch):
    monkeypatch.setattr("outdo.lab.exact.grid.LONGEST", 50)
    world = GridWorld(("SG",))
    stuck = torch.tensor([[50.0, -50.0, 50.0, 50.0]], dtype=torch.float64)
    with pytest.raises(ValueError, match="no end within 50 steps"):
        world.sample(stuck, 4, 1, torch.Generator())


def test_an_endless_map_is_fine_with_a_horizon():
    assert float(
        GridWorld(("S#G",), horizon=3).value(torch.zeros(1, 4, dtype=torch.float64))
    ) == pytest.approx(-0.3)
