"""Evaluation by whole episodes: how many each environment plays is fixed beforehand; the policy learns nothing from it.

Episodes that are taken as they finish favour short ones: here each of N environments plays its own first ones, to
their ends, whatever the others do.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np

from outdo.control import seeding
from outdo.control.protocol import Actor
from outdo.control.stepping import begin, choose, move
from outdo.control.vector import EnvLike, Vector, VectorError, library, make_single, resets_on_next_step
from outdo.core.protocols import Report
from outdo.core.statistics import mean_interval


@dataclass(frozen=True, slots=True)
class Episode:
    """A finished episode: the sum of its rewards as the environment paid them, its steps, and how it ended."""

    value: float
    length: int
    end: Literal["terminated", "truncated"]


def play(
    env: Vector,
    policy: Actor,
    episodes: int,
    *,
    seed: int,
    deterministic: bool,
    max_steps: int = 1_000_000,
) -> list[Episode]:
    """`episodes` whole episodes, as even a share as can be of each of N environments, first environment first.

    Environment i plays its first ⌊episodes/N⌋ episodes, one more if i < episodes mod N. Environments are reset
    and actions drawn by `seed`, so the same policy plays the same episodes. The policy's statistics stay as they are.
    Raises `VectorError` where they have not all ended after `max_steps` steps of each environment.
    """
    envs, next_step = env.num_envs, resets_on_next_step(env)
    due = episodes // envs + (np.arange(envs) < episodes % envs)
    played: list[list[Episode]] = [[] for _ in range(envs)]
    now = begin(env, policy, seeding.derive(seed, "evaluation"))
    stream = seeding.stream(seed, "evaluation")
    value, length = np.zeros(envs), np.zeros(envs, dtype=np.int64)
    for _ in range(max_steps):
        if not due.any():
            return [episode for several in played for episode in several]
        real = ~now.ended if next_step else np.ones(envs, dtype=np.bool_)
        outcome = move(
            env, now, choose(policy, now, stream, deterministic=deterministic), next_step=next_step
        )
        value[real] += outcome.reward[real]
        length[real] += 1
        for i in np.flatnonzero(now.ended & real):
            if due[i]:
                end = "terminated" if outcome.terminated[i] else "truncated"
                played[i].append(Episode(float(value[i]), int(length[i]), end))
                due[i] -= 1
            value[i], length[i] = 0.0, 0
    raise VectorError(
        f"{int(due.sum())} of {episodes} episodes had not ended after {max_steps} steps: give the environment a time "
        "limit (max_episode_steps), or raise max_steps"
    )


@dataclass(frozen=True, slots=True)
class Video:
    """Records evaluation episodes of an environment that can render, into `folder` (extra `video`).

    `env`: a Gymnasium id, or a factory of one environment that takes `render_mode`; `arguments` go to it.
    """

    env: EnvLike
    folder: Path
    episodes: int = 1
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __call__(self, policy: Actor, seed: int) -> list[Path]:
        """Play `episodes` deterministic episodes; the videos `evaluation-…-episode-….mp4` that came of them."""
        gym = library("gymnasium", "control")
        library("moviepy", "video")
        number = len({path.name.split("-")[1] for path in self.folder.glob("evaluation-*")})
        single = make_single(self.env, {**self.arguments, "render_mode": "rgb_array"})
        before = set(self.folder.glob("*"))
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*Overwriting existing videos")  # names are new ones
            recorder = gym.wrappers.RecordVideo(
                single,
                str(self.folder),
                episode_trigger=lambda _: True,
                name_prefix=f"evaluation-{number:04d}",
                disable_logger=True,
            )
        vector = gym.vector.SyncVectorEnv([lambda: recorder])
        play(vector, policy, self.episodes, seed=seed, deterministic=True)
        vector.close()
        return sorted(set(self.folder.glob("*")) - before)


@dataclass(frozen=True, slots=True)
class Returns:
    """Evaluates a policy by the return of whole episodes; implements `Evaluator`.

    | field | meaning |
    |---|---|
    | `env` | environments of its own, never those of the training: rewards are as they pay them, unscaled |
    | `episodes` | how many, of each kind; each environment plays its share (`play`) |
    | `seed` | names start states and actions: the same at every evaluation |
    | `deterministic`, `sampled` | play the most likely actions, play actions drawn from the policy |
    | `video` | records episodes besides, which count nowhere |

    Metrics, for `deterministic/…` and `sampled/…`: `return` (mean) with `return/low` and `return/high` (95 %
    interval of the mean), `return/std` over episodes, `length`, `truncated` (share that ended by a time limit).
    """

    env: Vector
    episodes: int = 100
    seed: int = 0
    deterministic: bool = True
    sampled: bool = True
    video: Video | None = None

    def __post_init__(self) -> None:
        """Refuse an evaluation that could say nothing."""
        if self.episodes < 2:
            raise ValueError(f"an evaluation needs at least 2 episodes for an interval, got {self.episodes}")
        if not (self.deterministic or self.sampled):
            raise ValueError("an evaluation plays deterministic or sampled actions, or both: both are off")
        resets_on_next_step(self.env)

    def __call__(self, policy: Actor) -> Report:
        """Play all episodes; the same policy gives the same report."""
        metrics: dict[str, float] = {}
        samples: list[dict[str, Any]] = []
        for kind in ("deterministic", "sampled"):
            if getattr(self, kind):
                played = play(
                    self.env, policy, self.episodes, seed=self.seed, deterministic=kind == "deterministic"
                )
                metrics |= {f"{kind}/{name}": value for name, value in figures(played).items()}
                returns, lengths = [e.value for e in played], [e.length for e in played]
                samples.append({"played": kind, "returns": returns, "lengths": lengths})
        if self.video is not None:
            samples.append({"videos": [str(path) for path in self.video(policy, self.seed)]})
        return Report(metrics, samples)


def figures(episodes: list[Episode]) -> dict[str, float]:
    """What a set of episodes shows, by the names of `Returns`."""
    values = [episode.value for episode in episodes]
    mean, low, high = mean_interval(values)
    return {
        "return": mean,
        "return/low": low,
        "return/high": high,
        "return/std": float(np.std(values, ddof=1)),
        "length": float(np.mean([episode.length for episode in episodes])),
        "truncated": float(np.mean([episode.end == "truncated" for episode in episodes])),
    }
