"""The environment of the control wing: windows of steps of Gymnasium environments that run side by side.

Axes: N environments (rows of the batch), T steps of a window.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from outdo.control import seeding, snapshot, windows
from outdo.control.normalise import RewardScale
from outdo.control.protocol import Actor
from outdo.control.stepping import Now, begin, take_step
from outdo.control.storage import Columns
from outdo.control.tally import Tally
from outdo.control.vector import Vector, VectorError, meet, resets_on_next_step
from outdo.core.batch import Batch

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class WindowSettings:
    """How a window is collected.

    | field | meaning |
    |---|---|
    | `steps` | T, steps of each environment per batch |
    | `gamma` | discount factor of the algorithm; `Batch.discount` is γ·(1 − terminated) |
    | `seed` | names the environments' seeds and the stream of actions |
    | `scale_reward` | divide rewards by the spread of the discounted return (`RewardScale`); training only |
    | `clip_reward` | bound of the scaled reward's size; None: none |
    """

    steps: int = 128
    gamma: float = 0.99
    seed: int = 0
    scale_reward: bool = False
    clip_reward: float | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        if self.steps < 1:
            raise ValueError(f"steps must be at least 1, got {self.steps}")
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma must be in [0, 1], got {self.gamma}")
        if self.clip_reward is not None and not self.scale_reward:
            raise ValueError("clip_reward bounds scaled rewards: set scale_reward too, or leave it out")


class ControlEnvironment:
    """Collects `[N, T]` batches from a vector environment; implements `Environment`.

    Episodes go on from one window to the next. Actions are drawn from a stream that seed and step name, so with
    equal state, policy and step a batch is the same batch. `state_dict` holds the environments' own state where
    `snapshot` can read it. Where it cannot (`exact_resume` False: Box2D, EnvPool, processes), a resumed run begins
    new episodes, seeded by seed and step, and a warning says so.
    """

    def __init__(self, env: Vector, settings: WindowSettings | None = None) -> None:
        self.env, self.settings = env, settings or WindowSettings()
        self.next_step = resets_on_next_step(env)
        self.scale = (
            RewardScale(env.num_envs, self.settings.gamma, self.settings.clip_reward)
            if self.settings.scale_reward
            else None
        )
        self.tally = Tally(env.num_envs)
        self._now: Now | None = None
        self._steps = 0
        self._metrics: dict[str, float] = {}

    @property
    def exact_resume(self) -> bool:
        """Whether the environments' state can be saved; known once they have been reset."""
        return isinstance(self._snapshot(), dict)

    def _snapshot(self) -> dict[str, Any] | str:
        """Environments and where they stand, or why it cannot be saved."""
        now = {} if self._now is None else self._now.as_dict()
        try:
            return {"env": snapshot.take(self.env), "now": snapshot.encode(now)}
        except snapshot.Unsupported as reason:
            return str(reason)

    def collect(self, policy: Actor, step: int) -> Batch:
        """The window of update `step`: T steps of each environment, acted by `policy`.

        Statistics that the policy observed until now come to count first, and stand still until the next call.
        Raises `VectorError` where the environments do not behave as they declare.
        """
        policy.settle()
        meet(self.env, policy, step)
        if self._now is None:
            self._now = begin(self.env, policy, seeding.derive(self.settings.seed, "reset", step))
        now, before = self._now, self._now.ended
        stream = seeding.stream(self.settings.seed, "actions", step)
        columns, seconds = Columns(self.settings.steps), 0.0
        for _ in range(self.settings.steps):
            real = ~now.ended if self.next_step else np.ones_like(now.ended)
            outcome = take_step(self.env, policy, now, stream, columns, next_step=self.next_step, real=real)
            seconds += outcome.seconds
        after = policy.value(now.obs, now.state, now.first)
        window = windows.of_columns(columns, before, after, self.settings.gamma, next_step=self.next_step)
        self._count(columns, window, seconds)
        return windows.batch(
            columns,
            window,
            reward=self._scaled(columns, window),
            valid=window.valid,
            group=torch.arange(self.env.num_envs),
            stepwise=not policy.recurrent,
        )

    def _count(self, columns: Columns, window: windows.Window, seconds: float) -> None:
        """Episodes that ended, figures for the log; refuses rewards on reset rows."""
        reward, valid = columns["reward"], window.valid
        wrong = np.argwhere((reward != 0) & ~valid)
        if len(wrong):
            raise VectorError(
                f"environment {wrong[0][1]} declares next-step autoreset, but its step after an end of an episode "
                "paid a reward: correct metadata['autoreset_mode'] of the vector environment"
            )
        finished = self.tally.record(reward, columns["terminated"] | columns["truncated"], valid)
        steps = int(valid.sum())
        self._steps += steps
        self._metrics = {
            "environment_steps": float(self._steps),
            "episodes": float(len(finished)),
            "reset_rows": float(valid.size - steps),
            **self.tally.metrics(),
            "time/environment": seconds,
        }

    def _scaled(self, columns: Columns, window: windows.Window) -> NDArray[np.float64]:
        """The rewards that are learnt from."""
        reward = columns["reward"]
        if self.scale is None:
            return reward
        scaled = self.scale(reward, columns["terminated"] | columns["truncated"], window.valid)
        self._metrics["reward_spread"] = float(np.sqrt(self.scale.statistics.variance))
        return scaled

    def metrics(self) -> dict[str, float]:
        """Figures of the last `collect`: steps so far, episodes finished, means over the last 100 of them."""
        return dict(self._metrics)

    def state_dict(self) -> dict[str, Any]:
        """Environments, running episodes, reward statistics; the streams of actions need no state."""
        state: dict[str, Any] = {"steps": self._steps, "tally": self.tally.state_dict()}
        if self.scale is not None:
            state["scale"] = self.scale.state_dict()
        if self._now is not None:
            state["environment"] = self._snapshot()
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo `state_dict`; environments that could not be saved are reset at the next `collect`."""
        self._steps = state["steps"]
        self.tally.load_state_dict(state["tally"])
        if self.scale is not None:
            self.scale.load_state_dict(state["scale"])
        self._now = None
        saved = cast("dict[str, Any] | str | None", state.get("environment"))
        if isinstance(saved, dict):
            self.env.reset(seed=0)  # what a first reset makes must be there before it is overwritten
            snapshot.restore(self.env, saved["env"])
            self._now = Now(**snapshot.decode(saved["now"]))
        elif saved is not None:
            self.tally.restart()
            if self.scale is not None:
                self.scale.restart()
            logger.warning("%s cannot be saved (%s): the resumed run begins new episodes", self.env, saved)
