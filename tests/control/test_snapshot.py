"""Environments come back exactly where they were, or say that they cannot."""

from __future__ import annotations

import json
import logging

import gymnasium
import numpy as np
import pytest
import torch
from stand_in import Coin, Table, scripted

from outdo.control import snapshot
from outdo.control.environment import ControlEnvironment, WindowSettings
from outdo.control.protocol import Act
from outdo.control.vector import make_vector
from outdo.training.checkpoint import pack, unpack


class Drawn(Coin):
    """Random actions of any space, drawn from the stream."""

    def __init__(self, space):
        super().__init__(critic=False)
        self.space = space

    def act(self, obs, state, first, stream, *, deterministic=False, mask=None):
        self.space.seed(int(stream.integers(2**31)))
        action = self.space.sample()
        return Act(action, action, obs, np.zeros(len(first), np.float32), None, None)


def through_a_file(state):
    """As a checkpoint writes and reads it."""
    tensors = {}
    packed = json.loads(json.dumps(pack(state, tensors)))
    return unpack(packed, tensors)


EXACT = [
    ("CartPole-v1", {}),
    ("CartPole-v1", {"backend": "sync"}),
    ("CartPole-v1", {"vector": {"autoreset_mode": "SameStep"}}),
    ("Pendulum-v1", {}),
    ("Acrobot-v1", {}),
    ("MountainCarContinuous-v0", {}),
    ("FrozenLake-v1", {}),
    ("Blackjack-v1", {}),
    ("Hopper-v5", {}),
    ("Ant-v5", {}),
]


@pytest.mark.parametrize(("name", "more"), EXACT, ids=lambda part: str(part))
def test_a_resumed_environment_goes_on_with_the_same_batches(name, more):
    """Windows 0, 1, 2, 3 in one go, and 0, 1, file, 2, 3: equal in every number."""
    if name in ("Hopper-v5", "Ant-v5"):
        pytest.importorskip("mujoco")
    settings = WindowSettings(steps=25, scale_reward=True)
    whole = ControlEnvironment(make_vector(name, 2, **more), settings)
    policy = Drawn(whole.env.action_space)
    for step in range(2):
        whole.collect(policy, step)
    assert whole.exact_resume
    resumed = ControlEnvironment(make_vector(name, 2, **more), settings)
    resumed.load_state_dict(through_a_file(whole.state_dict()))
    for step in (2, 3):
        one, two = whole.collect(policy, step), resumed.collect(policy, step)
        for field in ("obs", "action", "reward", "discount", "cut", "valid"):
            mine, other = getattr(one, field), getattr(two, field)
            if isinstance(mine, tuple):
                assert all((a == b).all() for a, b in zip(mine, other, strict=True))
            else:
                assert torch.equal(mine, other), field
        times = {"time/environment"}
        mine, other = whole.metrics(), resumed.metrics()
        assert {k: v for k, v in mine.items() if k not in times} == {
            k: v for k, v in other.items() if k not in times
        }


def test_what_cannot_be_saved_begins_anew_and_says_so(caplog):
    """Box2D's world lives in C++: the resumed run resets with seeds of seed and step, the same at every try."""
    pytest.importorskip("Box2D")
    settings = WindowSettings(steps=20)
    whole = ControlEnvironment(make_vector("LunarLander-v3", 2), settings)
    policy = Drawn(whole.env.action_space)
    first = whole.collect(policy, 0)
    assert not whole.exact_resume
    state = through_a_file(whole.state_dict())
    begun = []
    for _ in range(2):
        resumed = ControlEnvironment(make_vector("LunarLander-v3", 2), settings)
        with caplog.at_level(logging.WARNING):
            resumed.load_state_dict(state)
        assert "LunarLander.world holds a b2World): the resumed run begins new episodes" in caplog.text
        begun.append(resumed.collect(policy, 1).obs)
        assert resumed.metrics()["environment_steps"] == 80
    assert torch.equal(begun[0], begun[1])
    assert not torch.equal(begun[0][:, 0], first.obs[:, 0])


def test_before_the_first_batch_there_is_nothing_to_restore():
    fresh = ControlEnvironment(make_vector("CartPole-v1", 2), WindowSettings(steps=5))
    state = through_a_file(fresh.state_dict())
    other = ControlEnvironment(make_vector("CartPole-v1", 2), WindowSettings(steps=5))
    other.load_state_dict(state)
    assert torch.equal(fresh.collect(Coin(), 0).obs, other.collect(Coin(), 0).obs)


class Holder(gymnasium.Env):
    """Has whatever a test gives it."""

    observation_space = gymnasium.spaces.Box(0, 1)
    action_space = gymnasium.spaces.Discrete(2)


@pytest.mark.parametrize(
    "value",
    [
        3,
        2.5,
        "word",
        None,
        True,
        [1, (2, {"a": np.arange(3)})],
        {3: "keys that are no strings", (0, 1): [1.5]},
        np.float32(2),
        np.array([[1, 0]], dtype=bool),
        np.arange(4, dtype=np.uint8),
        np.array([b"SF", b"G"]),
        np.array("H"),
    ],
    ids=str,
)
def test_data_comes_back_as_it_was(value):
    env, other = Holder(), Holder()
    env.thing = value
    snapshot.restore(other, through_a_file(snapshot.take(env)))
    assert type(other.thing) is type(value)
    np.testing.assert_equal(other.thing, value)
    if isinstance(value, np.ndarray):
        assert other.thing.dtype == value.dtype


def test_generators_go_on_where_they_were():
    env, other = Holder(), Holder()
    env.reset(seed=5)
    env.np_random.normal(size=3)
    snapshot.restore(other, through_a_file(snapshot.take(env)))
    assert (env.np_random.normal(size=5) == other.np_random.normal(size=5)).all()


def test_objects_and_shared_parts_are_not_guessed():
    env = Holder()
    env.world = object()
    with pytest.raises(snapshot.Unsupported, match=r"Holder\.world holds a object"):
        snapshot.take(env)
    env.world = np.zeros(3)
    snapshot.take(env)
    env.alias = env.world
    with pytest.raises(snapshot.Unsupported, match="'world' and 'alias' are one object"):
        snapshot.take(env)


def test_an_environments_own_way_is_used():
    class Own(Holder):
        world = 0

        def get_state(self):
            return {"world": self.world}

        def set_state(self, state):
            self.world = state["world"]

    env, other = Own(), Own()
    env.world, env.thing = 4, object()
    snapshot.restore(other, through_a_file(snapshot.take(env)))
    assert other.world == 4


def test_scripted_environments_resume_in_mid_episode():
    script = [(10, [(11, 1, "on"), (12, 2, "truncated")]), (20, [(21, 3, "on")] * 9)]
    table = {float(x): x for x in (10, 11, 12, 20, 21)}
    whole = ControlEnvironment(scripted("NextStep", script), WindowSettings(steps=2))
    whole.collect(Table(table), 0)  # stopped just before the reset row
    resumed = ControlEnvironment(scripted("NextStep", script), WindowSettings(steps=2))
    resumed.load_state_dict(through_a_file(whole.state_dict()))
    assert resumed.collect(Table(table), 1).valid.tolist() == [[False, True]]
