"""Builds the parts of a control run from plain settings: what a recipe holds, section by section."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from outdo.control.environment import ControlEnvironment, WindowSettings
from outdo.control.episodes import EpisodeEnvironment, EpisodeSettings
from outdo.control.evaluation import Returns, Video
from outdo.control.policy import ControlPolicy
from outdo.control.vector import Vector, make_vector

Env = Mapping[str, Any]
"""The table `[env]` of a recipe."""


def _vector(env: Env, envs: int) -> Vector:
    """`envs` copies of the environment."""
    return make_vector(
        env["id"], envs, arguments=env["arguments"], backend=env["backend"], vector=env["vector"]
    )


def policy(env: Env, *, seed: int, path: str, **settings: Any) -> ControlPolicy:
    """The policy of a recipe's `[policy]` for the spaces of the environment; with `path`, begun from a saved one."""
    one = _vector(env, 1)
    made = ControlPolicy(one.single_observation_space, one.single_action_space, seed=seed, **settings)
    one.close()
    if path:
        made.load(Path(path))
    return made


def rollouts(
    env: Env, *, seed: int, gamma: float, envs: int, horizon: int, episodes: int, group: int
) -> ControlEnvironment | EpisodeEnvironment:
    """The environment of an `rl` stage: windows of `horizon` steps, or whole episodes, one of each copy."""
    if episodes:
        return EpisodeEnvironment(_vector(env, episodes), EpisodeSettings(group, gamma, seed))
    settings = WindowSettings(
        horizon, gamma, seed, scale_reward=env["scale_reward"], clip_reward=env["clip_reward"]
    )
    return ControlEnvironment(_vector(env, envs), settings)


def evaluator(
    env: Env,
    *,
    seed: int,
    folder: Path | None,
    episodes: int,
    envs: int,
    sampled: bool,
    arguments: Mapping[str, Any],
    video: int,
) -> Returns:
    """The evaluation of a recipe's `[evaluation]`; videos go into `folder`, where there is one."""
    env = {**env, "arguments": {**env["arguments"], **arguments}}
    camera: Video | None = None
    if video and folder is not None:
        camera = Video(env["id"], folder, video, env["arguments"])
    return Returns(
        _vector(env, min(envs, episodes)), episodes=episodes, seed=seed, sampled=sampled, video=camera
    )
