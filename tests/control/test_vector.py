"""Vector environments from ids, factories, environments; declared autoreset modes; seeds; action masks."""

from __future__ import annotations

import importlib

import gymnasium
import numpy as np
import pytest
from gymnasium.envs.classic_control.cartpole import CartPoleVectorEnv
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv
from stand_in import Coin, Scripted, Table, scripted

from outdo.control import stepping
from outdo.control.environment import ControlEnvironment, WindowSettings
from outdo.control.vector import VectorError, make_vector, resets_on_next_step

ONE = [(0, [(1, 1, "on")] * 50)]


def single(start: float = 0.0):
    """A factory for one environment, as a user writes it."""
    return Scripted([(start, [(1, 1, "on")] * 50)])


def several(num_envs: int, start: float = 0.0):
    """A factory for a vector environment."""
    return scripted("SameStep", *[[(start, [(1, 1, "on")] * 50)]] * num_envs)


def nothing():
    return 3


def test_an_id_gives_its_own_vector_environment_or_copies():
    assert isinstance(make_vector("CartPole-v1", 3).unwrapped, CartPoleVectorEnv)
    assert isinstance(make_vector("CartPole-v1", 3, backend="sync").unwrapped, SyncVectorEnv)
    env = make_vector("Pendulum-v1", 2, arguments={"g": 1.5})
    assert [each.unwrapped.g for each in env.envs] == [1.5, 1.5]


def test_a_process_per_copy():
    env = make_vector("CartPole-v1", 2, backend="async", vector={"autoreset_mode": "SameStep"})
    assert isinstance(env.unwrapped, AsyncVectorEnv)
    batch = ControlEnvironment(env, WindowSettings(steps=40)).collect(Coin(), 0)
    same = make_vector("CartPole-v1", 2, vector={"autoreset_mode": "SameStep"})
    assert (
        batch.reward == ControlEnvironment(same, WindowSettings(steps=40)).collect(Coin(), 0).reward
    ).all()
    env.close()


@pytest.mark.parametrize("env", [single, "test_vector:single", several, "test_vector:several"])
def test_a_users_factory(env):
    made = make_vector(env, 2, arguments={"start": 4.0})
    assert made.reset(seed=0)[0].tolist() == [[4.0], [4.0]]
    assert resets_on_next_step(made) == ("single" in str(env))


def test_an_environment_or_a_vector_environment_as_it_is():
    env = single()
    assert make_vector(env, 1).envs[0] is env
    vector = several(3)
    assert make_vector(vector, 3) is vector


@pytest.mark.parametrize(
    ("env", "envs", "more", "says"),
    [
        ("CartPol-v1", 1, {}, "CartPole"),
        ("ALE/Nothing-v5", 1, {}, "ALE"),
        ("CartPole-v1", 0, {}, "envs must be at least 1"),
        ("CartPole-v1", 1, {"backend": "threads"}, "backend must be one of gymnasium, sync, async, envpool"),
        ("CartPole-v1", 1, {"arguments": {"wind": 3}}, "wind"),
        ("test_vector:singel", 1, {}, "did you mean 'single'"),
        (single(), 2, {}, "has 1 copies, 2 were asked for"),
        (single(), 1, {"arguments": {"start": 1}}, "made already"),
        (several(2), 3, {}, "has 2 copies, 3 were asked for"),
        (nothing, 1, {}, "nothing must return a gymnasium.Env, got int"),
        (single, 1, {"backend": "envpool"}, "envpool"),
        (17, 1, {}, "got int"),
    ],
)
def test_mistakes_say_what_to_do(env, envs, more, says):
    with pytest.raises(ValueError, match=says):
        make_vector(env, envs, **more)


@pytest.mark.parametrize("mode", [None, AutoresetMode.DISABLED, "Sometimes"])
def test_the_autoreset_mode_must_be_declared(mode):
    env = several(1)
    env.metadata = {} if mode is None else {"autoreset_mode": mode}
    with pytest.raises(VectorError, match="autoreset_mode"):
        resets_on_next_step(env)
    with pytest.raises(VectorError, match="autoreset_mode"):
        make_vector(env, 1)


def test_a_missing_library_names_its_extra(monkeypatch):
    def missing(name, *_):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr("outdo.control.vector.import_module", missing)
    with pytest.raises(VectorError, match=r"outdo\[control\]"):
        make_vector("CartPole-v1", 1)
    monkeypatch.setattr(
        "outdo.control.vector.import_module",
        lambda name: missing(name) if name == "envpool" else importlib.import_module(name),
    )
    with pytest.raises(VectorError, match=r"outdo\[envpool\]"):
        make_vector("CartPole-v1", 1, backend="envpool")

    def absent(*_, **__):
        raise gymnasium.error.DependencyNotInstalled("MuJoCo is not installed")

    monkeypatch.setattr(gymnasium, "make_vec", absent)
    with pytest.raises(VectorError, match=r"outdo\[mujoco\]"):
        make_vector("Hopper-v5", 1)


def first_obs(seed: int, backend: str = "gymnasium"):
    env = make_vector("CartPole-v1", 4, backend=backend)
    return ControlEnvironment(env, WindowSettings(steps=1, seed=seed)).collect(Coin(), 0).obs[:, 0]


@pytest.mark.parametrize("backend", ["gymnasium", "sync"])
def test_every_environment_has_its_seed(backend):
    """The same run begins the same, another seed otherwise, and no two copies begin alike."""
    assert (first_obs(1, backend) == first_obs(1, backend)).all()
    assert (first_obs(1, backend) != first_obs(2, backend)).any(dim=1).all()
    assert len({tuple(row) for row in first_obs(1, backend).tolist()}) == 4


def test_the_same_step_gives_the_same_actions_and_another_step_others():
    def actions(step):
        env = ControlEnvironment(make_vector("CartPole-v1", 2), WindowSettings(steps=30))
        return env.collect(Coin(), step).action

    assert (actions(3) == actions(3)).all()
    assert (actions(3) != actions(4)).any()


def test_envpool_behind_the_same_interface():
    pytest.importorskip("envpool")
    env = make_vector("CartPole-v1", 3, backend="envpool")
    assert resets_on_next_step(env)
    batch = ControlEnvironment(env, WindowSettings(steps=60)).collect(Coin(), 0)
    again = make_vector("CartPole-v1", 3, backend="envpool")
    assert (batch.obs == ControlEnvironment(again, WindowSettings(steps=60)).collect(Coin(), 0).obs).all()
    assert not batch.valid.all()
    assert (batch.obs[:, 0][0] != batch.obs[:, 0][1]).any()
    env.reset(seed=[7, 7, 8])
    obs, _ = env.reset(seed=[7, 7, 8])
    assert (obs[0] == obs[1]).all()
    assert (obs[0] != obs[2]).any()
    with pytest.raises(VectorError, match="list_all_envs"):
        make_vector("CartPol-v1", 1, backend="envpool")


def test_masks_come_from_infos_or_from_the_observation():
    """Taxi gives info["action_mask"]: the policy sees it at every step."""

    masks = []

    class Masked(Coin):
        def act(self, obs, state, first, stream, *, deterministic=False, mask=None):
            masks.append(mask)
            chosen = np.array([np.flatnonzero(row)[0] for row in mask])
            act = super().act(obs[:, None], state, first, stream)
            return stepping.Act(chosen, chosen, obs, act.logp, None, None)

        def value(self, obs, state, first):
            return None

    env = make_vector("Taxi-v4", 2)
    ControlEnvironment(env, WindowSettings(steps=5)).collect(Masked(), 0)
    assert [mask.shape for mask in masks] == [(2, 6)] * 5
    assert any((mask == 0).any() for mask in masks)

    free = np.array([False, True])
    given = {"action_mask": np.array([[1, 0], [0, 0]])}
    assert stepping.action_mask(given, {}, free).tolist() == [[True, False], [True, True]]
    assert stepping.action_mask(np.zeros(2), {}, free) is None
    nested = {"action_mask": (np.zeros((2, 2)), {"a": np.zeros((2, 1))})}
    pair = stepping.action_mask(None, nested, free)
    assert pair[0].tolist() == [[False, False], [True, True]]
    assert pair[1]["a"].tolist() == [[False], [True]]
    rows = np.empty(2, dtype=object)  # as Gymnasium batches tuples
    rows[:] = [(np.array([1, 0]), {"a": np.array([0])}), (np.array([0, 1]), {"a": np.array([0])})]
    pair = stepping.action_mask(None, {"action_mask": rows}, np.zeros(2, bool))
    assert pair[0].tolist() == [[1, 0], [0, 1]]
    assert pair[1]["a"].tolist() == [[0], [0]]
    with pytest.raises(VectorError, match=r"environments \[1\] gave no action_mask"):
        stepping.action_mask(None, {**given, "_action_mask": np.array([True, False])}, free)


def test_final_observations_of_composite_spaces():
    """Dict and Tuple observations: rows are replaced part by part, the rest stays, nothing is changed in place."""
    obs = {"a": np.zeros((3, 2)), "b": (np.zeros(3), np.ones((3, 1)))}
    final = np.full(3, None, dtype=object)
    final[1] = {"a": np.array([5.0, 6.0]), "b": (7.0, np.array([8.0]))}
    put = stepping.with_rows(obs, final, np.array([1]))
    assert put["a"].tolist() == [[0, 0], [5, 6], [0, 0]]
    assert put["b"][0].tolist() == [0, 7, 0]
    assert put["b"][1].tolist() == [[1], [8], [1]]
    assert obs["a"].sum() == 0
    batched = {"a": np.full((3, 2), 4.0), "b": (np.full(3, 5.0), np.full((3, 1), 6.0))}
    put = stepping.with_rows(obs, batched, np.array([2]))
    assert put["a"].tolist() == [[0, 0], [0, 0], [4, 4]]
    assert put["b"][1].tolist() == [[1], [1], [6]]


def test_observations_that_the_environment_overwrites_are_kept():
    """SyncVectorEnv(copy=False) gives one buffer again and again."""
    script = [(10, [(11, 1, "on"), (12, 1, "on"), (13, 1, "on")])]
    values = {10.0: 0, 11.0: 0, 12.0: 0, 13.0: 0}
    env = SyncVectorEnv([lambda: Scripted(script)], copy=False)
    batch = ControlEnvironment(env, WindowSettings(steps=3)).collect(Table(values), 0)
    assert batch.obs[0, :, 0].tolist() == [10, 11, 12]


def test_one_seed_where_seeds_for_each_copy_are_impossible():
    with pytest.raises(VectorError, match="backend 'sync'"):
        stepping.begin(make_vector("CartPole-v1", 2), Coin(), [1, 2])
