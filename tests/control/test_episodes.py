"""Whole episodes, alone and in groups, by hand in both autoreset modes."""

from __future__ import annotations

import json

import numpy as np
import pytest
import torch
from stand_in import Coin, Memory, Scripted, Table, scripted

from outdo.control.episodes import EpisodeEnvironment, EpisodeSettings
from outdo.control.vector import VectorError, make_vector
from outdo.core.presets import preset
from outdo.core.returns import gae, reward_to_go

MODES = ["NextStep", "SameStep"]
# Three environments: one dies after 1 step, one is truncated after 3, one goes on for ever.
SHORT = [(1, [(2, -5, "terminated")])]
MIDDLE = [(3, [(4, 1, "on"), (5, 2, "on"), (6, 3, "truncated")])]
LONG = [(7, [(8, 1, "on")] * 50)]
VALUES = {float(x): float(x) for x in range(1, 9)}


@pytest.mark.parametrize("mode", MODES)
def test_each_row_is_one_episode(mode):
    """T is the longest, and the last environment is cut at max_steps = 4. V(x) = x, γ = .5."""
    env = scripted(mode, SHORT, MIDDLE, LONG)
    settings = EpisodeSettings(gamma=0.5, max_steps=4)
    policy = Table(VALUES)
    batch = EpisodeEnvironment(env, settings).collect(policy, 0)
    assert batch.valid.tolist() == [[True] + [False] * 3, [True] * 3 + [False], [True] * 4]
    assert batch.reward[batch.valid].tolist() == [-5, 1, 2, 3, 1, 1, 1, 1]
    assert batch.discount[batch.valid].tolist() == [0, *[0.5] * 7]
    assert batch.cut[batch.valid].tolist() == [True, False, False, True, False, False, False, True]
    assert batch.value[batch.valid].tolist() == [1, 3, 4, 5, 7, 8, 8, 8]
    # 0 where dead; V(6), the final observation, where truncated; V(8) at max_steps
    assert batch.next_value[batch.valid].tolist() == [0, 4, 5, 6, 8, 8, 8, 8]
    assert [row["return"] for row in batch.info] == [-5, 6, 4]
    assert [row["length"] for row in batch.info] == [1, 3, 4]
    assert [row["end"] for row in batch.info] == ["terminated", "truncated", "max_steps"]
    assert sorted(policy.seen) == [1, 3, 4, 5, 7, 8, 8, 8]  # what comes after an end is not observed
    # δ of the last two steps of the truncated episode, λ = 1: 3 + .5·6 − 5 = 1; 2 + .5·5 − 4 + .5·1 = 1
    advantage = gae(batch.reward, batch.value, batch.next_value, batch.discount, batch.cut, batch.valid, 1.0)
    assert advantage[1, 1:3].tolist() == [1, 1]
    # without bootstrap, REINFORCE: 3; 2 + 1.5 = 3.5; 1 + 1.75 = 2.75
    to_go = reward_to_go(batch.reward, batch.discount, batch.cut, batch.valid)
    assert to_go[1, :3].tolist() == [2.75, 3.5, 3]


@pytest.mark.parametrize("mode", MODES)
def test_the_figures_are_those_of_the_batch(mode):
    environment = EpisodeEnvironment(scripted(mode, SHORT, MIDDLE), EpisodeSettings())
    environment.collect(Table(), 0)
    assert environment.metrics() == {
        "environment_steps": 4, "episodes": 2, "episode/return": 0.5, "episode/length": 2,
    }  # fmt: skip


def test_the_next_batch_begins_anew_whatever_the_last_one_left():
    environment = EpisodeEnvironment(scripted("NextStep", SHORT, MIDDLE), EpisodeSettings())
    first, second = (environment.collect(Memory(), step) for step in (0, 1))
    assert first.reward[first.valid].tolist() == second.reward[second.valid].tolist()
    assert second.obs["first"][:, 0].tolist() == [True, True]
    assert second.value[second.valid].tolist() == [0, 0, 1, 2]


@pytest.mark.parametrize("mode", MODES)
def test_groups_begin_in_one_state_and_are_told_apart_by_it(mode):
    env = make_vector("CartPole-v1", 6, backend="sync", vector={"autoreset_mode": mode})
    environment = EpisodeEnvironment(env, EpisodeSettings(group=3))
    batch = environment.collect(Coin(), 0)
    assert batch.group.tolist() == [0, 0, 0, 1, 1, 1]
    start = batch.obs[:, 0]
    assert (start[:3] == start[0]).all()
    assert (start[3:] == start[3]).all()
    assert (start[0] != start[3]).any()
    assert (batch.action[0] != batch.action[1]).any()  # the same state, other actions
    assert (environment.collect(Coin(), 1).obs[0, 0] != start[0]).any()  # another update, other states
    assert batch.valid.sum(dim=1).tolist() == [row["length"] for row in batch.info]


def test_grpo_takes_such_a_batch():
    """Group (−5, −5) and group (6, 6) teach nothing; a mixed one gives ±1 by the population s.d."""
    mixed = EpisodeEnvironment(scripted("NextStep", SHORT, MIDDLE, SHORT, SHORT), EpisodeSettings())
    batch = mixed.collect(Table(), 0).with_(group=torch.tensor([0, 0, 1, 1]))
    prepared, _ = preset("grpo").algorithm.prepare(batch)
    assert prepared.advantage[:, 0].tolist() == pytest.approx([-1, 1, 0, 0], abs=1e-3)


class Restless(Scripted):
    """Begins elsewhere each time, whatever the seed."""

    begun = 0

    def reset(self, *, seed=None, options=None):
        Restless.begun += 1
        return super().reset(seed=seed)[0] + Restless.begun, {}


def test_groups_that_cannot_begin_alike_are_refused():
    env = make_vector(lambda: Restless(LONG), 4)
    with pytest.raises(VectorError, match="do not begin alike"):
        EpisodeEnvironment(env, EpisodeSettings(group=2)).collect(Coin(), 0)
    with pytest.raises(VectorError, match="backend 'sync'"):
        EpisodeEnvironment(make_vector("CartPole-v1", 4), EpisodeSettings(group=2)).collect(Coin(), 0)
    with pytest.raises(ValueError, match="multiple of the group"):
        EpisodeEnvironment(env, EpisodeSettings(group=3))
    for wrong in ({"group": 0}, {"max_steps": 0}, {"gamma": -1}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            EpisodeSettings(**wrong)


def test_groups_of_composite_observations_are_compared_part_by_part():
    """Blackjack observes a tuple."""
    env = make_vector("Blackjack-v1", 4)

    class Stick(Coin):
        def act(self, obs, state, first, stream, *, deterministic=False, mask=None):
            return super().act(np.stack(obs, axis=1), state, first, stream)

        def value(self, obs, state, first):
            return None

    batch = EpisodeEnvironment(env, EpisodeSettings(group=2)).collect(Stick(), 0)
    assert (batch.obs[0, 0] == batch.obs[1, 0]).all()


def test_resume_is_exact():
    def make():
        return EpisodeEnvironment(make_vector("LunarLander-v3", 2), EpisodeSettings(group=2, max_steps=20))

    pytest.importorskip("Box2D")
    whole, resumed = make(), make()
    whole.collect(Coin(), 0)
    resumed.load_state_dict(json.loads(json.dumps(whole.state_dict())))
    one, two = whole.collect(Coin(), 1), resumed.collect(Coin(), 1)
    assert torch.equal(one.obs, two.obs)
    assert torch.equal(one.reward, two.reward)
    assert whole.metrics() == resumed.metrics()
