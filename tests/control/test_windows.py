"""Ends of episodes, by hand, in both autoreset modes; the numbers of cases.md."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from stand_in import Memory, Table, scripted

from outdo.control import windows
from outdo.control.environment import ControlEnvironment, WindowSettings
from outdo.control.vector import VectorError
from outdo.core.returns import gae

MODES = ["NextStep", "SameStep"]
ON, DEAD, LIMIT = "on", "terminated", "truncated"


def collect(mode, scripts, values, steps, gamma=0.99, policy=None):
    """The first window of scripted environments with a table of values."""
    environment = ControlEnvironment(scripted(mode, *scripts), WindowSettings(steps=steps, gamma=gamma))
    return environment.collect(policy or Table(values), 0)


def advantages(batch, lam):
    return gae(batch.reward, batch.value, batch.next_value, batch.discount, batch.cut, batch.valid, lam)


# One environment. Episode A starts at observation 10, goes on to 11 (reward 1), and is truncated in 12 (reward 2).
# Episode B starts at 20, goes on to 21 (reward 3), and terminates in 22 (reward -5). Episode C starts at 30 and goes
# on to 31, 32, … with reward 4 each. V is a tenth of the observation.
SCRIPT = [
    (10, [(11, 1, ON), (12, 2, LIMIT)]),
    (20, [(21, 3, ON), (22, -5, DEAD)]),
    (30, [(31, 4, ON), (32, 4, ON), (33, 4, ON), (34, 4, ON)]),
]
VALUES = {float(x): x / 10 for x in (10, 11, 12, 20, 21, 22, 30, 31, 32, 33, 34)}


def test_next_step_trajectory_by_hand():
    """Rows: A0, A1, reset, B0, B1, reset, C0. Reset rows see the final observations 12 and 22 and pay 0."""
    batch = collect("NextStep", [SCRIPT], VALUES, steps=7)
    assert batch.obs[0, :, 0].tolist() == [10, 11, 12, 20, 21, 22, 30]
    assert batch.reward[0].tolist() == [1, 2, 0, 3, -5, 0, 4]
    assert batch.valid[0].tolist() == [True, True, False, True, True, False, True]
    valid = batch.valid[0]
    assert batch.cut[0][valid].tolist() == [False, True, False, True, True]  # the last one: end of the window
    assert batch.discount[0][valid].tolist() == pytest.approx([0.99, 0.99, 0.99, 0, 0.99])
    # V(11); V(12), the final observation, not V(20) of the next episode; V(21); 0 where dead; V(31) after the window
    assert batch.next_value[0][valid].tolist() == pytest.approx([1.1, 1.2, 2.1, 0, 3.1])
    assert batch.value[0][valid].tolist() == pytest.approx([1.0, 1.1, 2.0, 2.1, 3.0])


def test_same_step_trajectory_by_hand():
    """Rows: A0, A1, B0, B1, C0: no reset rows, the final observation comes from info["final_obs"]."""
    batch = collect("SameStep", [SCRIPT], VALUES, steps=5)
    assert batch.obs[0, :, 0].tolist() == [10, 11, 20, 21, 30]
    assert batch.reward[0].tolist() == [1, 2, 3, -5, 4]
    assert batch.valid.all()
    assert batch.cut[0].tolist() == [False, True, False, True, True]
    assert batch.discount[0].tolist() == pytest.approx([0.99, 0.99, 0.99, 0, 0.99])
    assert batch.next_value[0].tolist() == pytest.approx([1.1, 1.2, 2.1, 0, 3.1])


def test_both_modes_give_the_same_advantages_and_they_are_these():
    """γ = 0.5, λ = 0.5; by hand, from the end of each episode back:

    A1: 2 + .5·1.2 − 1.1 = 1.5;         A0: (1 + .5·1.1 − 1.0) + .25·1.5 = .55 + .375 = .925
    B1: −5 − 2.1 = −7.1;                B0: (3 + .5·2.1 − 2.0) + .25·(−7.1) = 2.05 − 1.775 = .275
    C0: 4 + .5·3.1 − 3.0 = 2.55
    """
    expected = [0.925, 1.5, 0.275, -7.1, 2.55]
    later = collect("NextStep", [SCRIPT], VALUES, steps=7, gamma=0.5)
    same = collect("SameStep", [SCRIPT], VALUES, steps=5, gamma=0.5)
    assert advantages(later, 0.5)[later.valid].tolist() == pytest.approx(expected)
    assert advantages(same, 0.5)[0].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("split", range(1, 7))
def test_windows_that_begin_anywhere_join_to_the_same_steps(split):
    """Two windows of `split` and 7 − split steps hold the rows of the one window of 7: also when the second one
    begins with a reset row."""
    whole = collect("NextStep", [SCRIPT], VALUES, steps=7)
    env = scripted("NextStep", SCRIPT)
    one = ControlEnvironment(env, WindowSettings(steps=split))
    policy = Table(VALUES)
    first = one.collect(policy, 0)
    two = ControlEnvironment(env, WindowSettings(steps=7 - split))
    two._now = one._now
    second = two.collect(policy, 1)
    for name in ("reward", "valid", "value", "discount"):
        joined = torch.cat([getattr(first, name), getattr(second, name)], dim=1)
        assert torch.equal(joined, getattr(whole, name)), name
    joined = torch.cat([first.next_value, second.next_value], dim=1)
    assert torch.equal(joined[whole.valid], whole.next_value[whole.valid])


@pytest.mark.parametrize("mode", MODES)
def test_time_limit_is_not_death(mode):
    """γ=.99, λ=.95, r=1, V=10 up to the cut at t=1, V(final)=10, V(reset)=0.

    t=1: 1 + .99·10 − 10 = .9;  t=0: .9 + .99·.95·.9 = 1.74645. (Taken for death: 1 − 10 = −9 and −7.564.)
    """
    script = [(1, [(2, 1, ON), (3, 1, LIMIT)]), (4, [(4, 1, ON)] * 9)]
    batch = collect(mode, [script], {1.0: 10, 2.0: 10, 3.0: 10, 4.0: 0}, steps=4)
    assert advantages(batch, 0.95)[0, :2].tolist() == pytest.approx([1.74645, 0.9], abs=1e-5)


@pytest.mark.parametrize("mode", MODES)
def test_the_bootstrap_is_v_of_the_final_observation(mode):
    """V(s_t)=4, V(final)=10, r=1, γ=.99: 1 + 9.9 − 4 = 6.9."""
    script = [(1, [(2, 1, LIMIT)]), (3, [(3, 0, ON)] * 9)]
    batch = collect(mode, [script], {1.0: 4, 2.0: 10, 3.0: 77}, steps=3)
    assert advantages(batch, 0.95)[0, 0].item() == pytest.approx(6.9)


@pytest.mark.parametrize("mode", MODES)
def test_an_end_belongs_to_its_own_step(mode):
    """3 steps, death at t=1 with reward −5, V(reset)=100, V=0 elsewhere: −5 at t=1, and −4.7025 = .99·.95·(−5) at 0."""
    script = [(1, [(2, 0, ON), (3, -5, DEAD)]), (4, [(4, 0, ON)] * 9)]
    batch = collect(mode, [script], {1.0: 0, 2.0: 0, 3.0: 0, 4.0: 100}, steps=3)
    assert advantages(batch, 0.95)[0, :2].tolist() == pytest.approx([-4.7025, -5.0])


@pytest.mark.parametrize("mode", MODES)
def test_nothing_leaks_back_across_a_truncation_in_mid_batch(mode):
    """Whatever the second episode pays and is worth, the first one's advantages stay."""
    before = []
    for reward, worth in ((1, 0), (1e6, -1e6)):
        script = [(1, [(2, 1, ON), (3, 1, LIMIT)]), (4, [(4, reward, ON)] * 9)]
        batch = collect(mode, [script], {1.0: 1, 2.0: 2, 3.0: 3, 4.0: worth}, steps=6)
        before.append(advantages(batch, 0.95)[0, :2])
    assert torch.equal(before[0], before[1])


@pytest.mark.parametrize("mode", MODES)
def test_death_and_time_limit_in_one_step_is_death(mode):
    both = np.ones((1, 1), bool)
    window = windows.build(
        both, both, np.zeros(1, bool), 0.99, next_step=mode == "NextStep",
        value=np.ones((1, 1), np.float32), after=np.full(1, 9, np.float32), final_value=np.full((1, 1), 7.0),
    )  # fmt: skip
    assert window.discount.item() == 0
    assert window.next_value.item() == 0


def test_a_reset_row_weighs_nothing_and_is_not_observed():
    """Statistics of observations, figures and advantages leave it out; the policy acts on it and is ignored."""
    policy = Table(VALUES)
    environment = ControlEnvironment(scripted("NextStep", SCRIPT), WindowSettings(steps=7))
    batch = environment.collect(policy, 0)
    assert policy.seen == [10, 11, 20, 21, 30]  # not 12 and 22
    assert environment.env.envs[0].taken == [0, 1, 3, 4, 6]  # actions 2 and 5 went nowhere
    assert environment.metrics()["environment_steps"] == 5
    assert environment.metrics()["reset_rows"] == 2
    assert advantages(batch, 0.95)[~batch.valid].tolist() == [0, 0]


def test_episode_figures_by_hand_across_windows():
    """A: return 3, length 2; B: −2, 2. Windows of 2 steps end inside the episodes."""
    environment = ControlEnvironment(scripted("NextStep", SCRIPT), WindowSettings(steps=2))
    policy, seen = Table(VALUES), []
    for step in range(3):
        environment.collect(policy, step)
        seen.append(environment.metrics())
    assert [m["episodes"] for m in seen] == [1, 0, 1]
    assert [m["episode/return"] for m in seen] == [3, 3, 0.5]  # (3 − 2) / 2
    assert seen[2]["episode/length"] == 2


def test_rows_are_environments_and_do_not_touch_each_other():
    other = [(20, [(21, 7, ON)] * 20)]
    batch = collect("NextStep", [SCRIPT, other, SCRIPT], {**VALUES, 21.0: 2.1}, steps=7)
    alone = collect("NextStep", [SCRIPT], VALUES, steps=7)
    assert torch.equal(batch.next_value[0], alone.next_value[0])
    assert torch.equal(batch.next_value[2], alone.next_value[0])
    assert batch.valid[1].all()
    assert batch.group.tolist() == [0, 1, 2]


def test_memory_of_a_recurrent_policy_at_both_ends():
    """V = steps since the episode began. Final observations are seen with the memory of their own episode: V = 2
    after two steps; the next episode starts from 0."""
    later = collect("NextStep", [SCRIPT], None, steps=7, policy=Memory())
    assert later.value[0][later.valid[0]].tolist() == [0, 1, 0, 1, 0]
    assert later.next_value[0][later.valid[0]].tolist() == [1, 2, 1, 0, 1]
    assert later.obs["first"][0].tolist() == [True, False, False, True, False, False, True]
    same = collect("SameStep", [SCRIPT], None, steps=5, policy=Memory())
    assert same.value[0].tolist() == [0, 1, 0, 1, 0]
    assert same.next_value[0].tolist() == [1, 2, 1, 0, 1]
    assert same.obs["first"][0].tolist() == [True, False, True, False, True]


def test_without_a_critic_there_are_no_values():
    batch = collect("SameStep", [SCRIPT], None, steps=5)
    assert batch.value is None
    assert batch.next_value is None


class Liar:
    """A vector environment that declares next-step autoreset and resets in the same step."""

    def __new__(cls, *scripts):
        env = scripted("SameStep", *scripts)
        env.metadata = {**env.metadata, "autoreset_mode": "NextStep"}
        return env


def test_an_environment_that_resets_otherwise_than_it_declares_is_refused():
    env = Liar([(1, [(2, 1, DEAD)])])
    with pytest.raises(ValueError, match="environment 0 declares next-step autoreset"):
        ControlEnvironment(env, WindowSettings(steps=4)).collect(Table({1.0: 0, 2.0: 0}), 0)
    env = Liar([(1, [(2, 1, ON), (3, 1, DEAD)])])
    with pytest.raises(VectorError, match=r"paid a reward: correct metadata\['autoreset_mode'\]"):
        ControlEnvironment(env, WindowSettings(steps=3)).collect(Table({1.0: 0, 2.0: 0, 3.0: 0}), 0)


def test_same_step_without_final_observation_is_refused():
    class Forgets(type(scripted("SameStep", SCRIPT))):
        def step(self, actions):
            *rest, infos = super().step(actions)
            infos.pop("final_obs", None)
            return *rest, infos

    env = scripted("SameStep", SCRIPT)
    env.__class__ = Forgets
    with pytest.raises(VectorError, match="final_obs"):
        ControlEnvironment(env, WindowSettings(steps=4)).collect(Table(VALUES), 0)


def test_bad_windows_are_refused():
    shape = np.zeros((2, 1), bool)
    with pytest.raises(ValueError, match="V of the observation after it"):
        windows.build(shape, shape, shape[0], 0.9, next_step=True, value=np.zeros((2, 1)))
    with pytest.raises(ValueError, match="final observations"):
        windows.build(
            shape, ~shape, shape[0], 0.9, next_step=False, value=np.zeros((2, 1)), after=np.zeros(1)
        )
    for wrong in ({"steps": 0}, {"gamma": 1.1}, {"clip_reward": 5.0}):
        with pytest.raises(ValueError, match=next(iter(wrong))):
            WindowSettings(**wrong)
