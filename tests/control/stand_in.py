"""A scripted environment whose every number is known, and a policy that values observations by a table."""

from __future__ import annotations

import gymnasium
import numpy as np
from gymnasium.vector import SyncVectorEnv

from outdo.control.protocol import Act


class Scripted(gymnasium.Env):
    """Plays `episodes` in turn: each a list of (observation, reward, how it goes on), the first step's first.

    `how` is "on", "terminated" or "truncated"; the first observation of an episode is `starts`. Actions are kept.
    """

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (1,), np.float64)
    action_space = gymnasium.spaces.Discrete(1000)

    def __init__(self, episodes):
        self.episodes, self.number, self.at, self.taken = episodes, -1, 0, []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.number, self.at = self.number + 1, 0
        return np.array([self.episodes[self.number % len(self.episodes)][0]]), {}

    def step(self, action):
        observation, reward, how = self.episodes[self.number % len(self.episodes)][1][self.at]
        self.at += 1
        self.taken.append(int(action))
        return np.array([observation]), reward, how == "terminated", how == "truncated", {}


def scripted(mode: str, *scripts) -> SyncVectorEnv:
    """A vector of scripted environments, one for each script, in the given autoreset mode."""
    return SyncVectorEnv([lambda s=script: Scripted(s) for script in scripts], autoreset_mode=mode)


class Table:
    """V(observation) from a table (without one: no critic); acts 0, 1, 2, … by the count of its calls."""

    recurrent = False

    def __init__(self, values=None):
        self.values, self.calls, self.seen, self.settled = values, 0, [], 0

    def initial_state(self, envs):
        return None

    def act(self, obs, state, first, stream, *, deterministic=False, mask=None):
        chosen = np.full(len(first), self.calls)
        self.calls += 1
        return Act(
            chosen, chosen, obs, np.full(len(first), -0.5, np.float32), self.value(obs, state, first), None
        )

    def value(self, obs, state, first):
        if self.values is None:
            return None
        return np.array([self.values[float(x)] for x in obs[:, 0]], np.float32)

    def observe(self, obs, real):
        self.seen += obs[real, 0].tolist()

    def settle(self):
        self.settled += 1


class Memory(Table):
    """Recurrent: its state counts the steps since the episode began; it values a state by that count."""

    recurrent = True

    def initial_state(self, envs):
        return np.zeros(envs, np.float32)

    def act(self, obs, state, first, stream, *, deterministic=False, mask=None):
        before = np.where(first, 0, state).astype(np.float32)
        features = {"flat": obs, "first": np.array(first), "state": np.array(state)}
        zeros = np.zeros(len(first), np.int64)
        return Act(zeros, zeros, features, zeros.astype(np.float32), before, before + 1)

    def value(self, obs, state, first):
        return np.where(first, 0, state).astype(np.float32)


class Coin:
    """Left or right (0 or 1) by a coin from the stream; deterministic: always `side`."""

    recurrent = False

    def __init__(self, side=0, critic=True):
        self.side, self.critic = side, critic

    def initial_state(self, envs):
        return None

    def act(self, obs, state, first, stream, *, deterministic=False, mask=None):
        drawn = stream.integers(2, size=len(first))
        chosen = np.full(len(first), self.side) if deterministic else drawn
        logp = np.full(len(first), -np.log(2), np.float32)
        return Act(chosen, chosen, obs, logp, self.value(obs, state, first), None)

    def value(self, obs, state, first):
        return obs.astype(np.float32).sum(axis=1) if self.critic else None

    def observe(self, obs, real):
        pass

    def settle(self):
        pass
