"""Statistics stand still between rollout and update and in evaluation, with a real policy in real environments."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

from outdo.control.environment import ControlEnvironment, WindowSettings
from outdo.control.episodes import EpisodeEnvironment, EpisodeSettings
from outdo.control.evaluation import Returns
from outdo.control.policy import ControlPolicy
from outdo.control.vector import make_vector

MODES = ["NextStep", "SameStep"]


class Composite(gymnasium.Env):
    """Observes a Dict, takes a Tuple, masks a part of it; truncated after 5 steps, terminated by chance."""

    observation_space = spaces.Dict(
        {"place": spaces.Box(-1, 1, (3,)), "more": spaces.Tuple((spaces.Discrete(4), spaces.MultiBinary(2)))}
    )
    action_space = spaces.Tuple(
        (spaces.Discrete(3), spaces.Box(-1, 1, (2,)), spaces.MultiDiscrete([2, 3]), spaces.MultiBinary(2))
    )

    def answer(self):
        place = self.np_random.uniform(-1, 1, 3).astype(np.float32)
        bits = self.np_random.integers(2, size=2).astype(np.int8)
        obs = {"place": place, "more": (int(self.np_random.integers(4)), bits)}
        ones = np.ones
        allowed = np.array([1, 0, 1], np.int8)
        return obs, {"action_mask": (allowed, ones(2, np.int8), ones(5, np.int8), ones(2, np.int8))}

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self.answer()

    def step(self, action):
        assert self.action_space.contains(action)
        assert action[0] != 1  # the masked one
        self.steps += 1
        obs, infos = self.answer()
        return obs, float(action[1].sum()), bool(self.np_random.random() < 0.2), self.steps == 5, infos


def parts(mode, kind="mlp", name="CartPole-v1"):
    env = make_vector(name, 4, vector={"autoreset_mode": mode})
    policy = ControlPolicy(
        env.single_observation_space,
        env.single_action_space,
        kind=kind,
        hidden=(16,),
        memory=8,
        normalise=True,
    )
    return ControlEnvironment(env, WindowSettings(steps=60, scale_reward=True)), policy


def files(policy, folder):
    policy.save(folder)
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["mlp", "gru"])
@pytest.mark.parametrize("name", ["CartPole-v1", "Pendulum-v1"])
def test_before_any_update_the_ratio_is_one_and_the_value_the_same(mode, kind, name):
    """Over three windows, so that statistics have moved, with ends of episodes inside."""
    environment, policy = parts(mode, kind, name)
    for step in range(3):
        batch = environment.collect(policy, step)
        scored = policy.evaluate(batch)
        torch.testing.assert_close(scored.logp[batch.valid], batch.logp[batch.valid], rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(scored.value[batch.valid], batch.value[batch.valid], rtol=1e-4, atol=1e-5)
    if name == "CartPole-v1":
        assert (batch.valid & (batch.discount == 0)).any()
        assert batch.valid.all() == (mode == "SameStep")


def test_statistics_move_at_the_next_collect_and_not_before(tmp_path):
    environment, policy = parts("NextStep")
    environment.collect(policy, 0)
    before = files(policy, tmp_path / "a")
    policy.observe(environment._now.obs * 100, ~environment._now.ended)
    assert policy.value(environment._now.obs, None, environment._now.first) is not None
    probe = torch.from_numpy(policy.value(environment._now.obs, None, environment._now.first))
    policy.settle()
    after = torch.from_numpy(policy.value(environment._now.obs, None, environment._now.first))
    assert not torch.equal(probe, after)
    assert files(policy, tmp_path / "b") != before  # they are part of the checkpoint


def test_evaluation_leaves_the_policy_as_it_is(tmp_path):
    environment, policy = parts("NextStep")
    for step in range(2):
        environment.collect(policy, step)
    before = files(policy, tmp_path / "a")
    evaluator = Returns(make_vector("CartPole-v1", 4), episodes=4)
    one = evaluator(policy)
    assert evaluator(policy) == one
    assert files(policy, tmp_path / "b") == before


def test_whole_episodes_too():
    env = make_vector("CartPole-v1", 4, backend="sync")
    policy = ControlPolicy(
        env.single_observation_space, env.single_action_space, critic="none", normalise=True
    )
    environment = EpisodeEnvironment(env, EpisodeSettings(group=2))
    for step in range(2):
        batch = environment.collect(policy, step)
        scored = policy.evaluate(batch)
        torch.testing.assert_close(scored.logp[batch.valid], batch.logp[batch.valid], rtol=1e-4, atol=1e-5)
    assert batch.value is None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("kind", ["mlp", "gru"])
def test_composite_spaces_with_masks_from_end_to_end(mode, kind):
    env = make_vector(Composite, 3, vector={"autoreset_mode": mode})
    policy = ControlPolicy(
        env.single_observation_space,
        env.single_action_space,
        kind=kind,
        hidden=(8,),
        memory=4,
        normalise=True,
    )
    environment = ControlEnvironment(env, WindowSettings(steps=40))
    for step in range(2):
        batch = environment.collect(policy, step)
        scored = policy.evaluate(batch)
        torch.testing.assert_close(scored.logp[batch.valid], batch.logp[batch.valid], rtol=1e-4, atol=1e-5)
        ended = batch.valid & batch.cut
        ended[:, -1] = False
        limit = ended & (batch.discount > 0)
        assert limit.any()
        assert (batch.next_value[ended & (batch.discount == 0)] == 0).all()
        assert (batch.next_value[limit] != 0).all()
