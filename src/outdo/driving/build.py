"""Builds the parts of a driving run from plain settings: what a recipe holds, section by section."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from transformers.utils.logging import disable_progress_bar

from outdo.driving.critic import Endpoint
from outdo.driving.demonstrations import Examples, collect_examples
from outdo.driving.environment import DrivingDemonstrations, DrivingEnvironment, DrivingSettings
from outdo.driving.evaluation import ClosedLoop
from outdo.driving.expert import Flaws
from outdo.driving.generator import generate
from outdo.driving.policy import DrivingPolicy
from outdo.driving.rewards import terms
from outdo.driving.scene import HORIZON, Scene
from outdo.driving.scenes import disturbed, later, of_files, scenes_of
from outdo.driving.situations import SITUATIONS
from outdo.driving.tokens import ControlCode
from outdo.language.environment import stream_key

SCENES_AT_ONCE = 250
"""Scenes generated between two signs of progress."""


class Shown(Protocol):
    """Where a person sees how far something is; `outdo.training.display.Display` is one."""

    def stage(self, name: str, steps: int, done: int) -> None:
        """What is done now, in so many steps."""
        ...

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """So many steps are done."""
        ...

    def close(self) -> None:
        """All is done."""
        ...


@dataclass(frozen=True, eq=False)
class Task:
    """Where scenes to learn from and held-out ones come from, and the flaws of the demonstrations."""

    seed: int
    scenes: int
    states: int
    situations: tuple[str, ...]
    files: tuple[Path, ...]
    held_out_files: tuple[Path, ...]
    flaws: Flaws
    display: Callable[[], Shown]

    @cached_property
    def examples(self) -> Examples:
        """What to learn from: `states` moments of each training scene. It takes a while, so it shows how far it is.

        In turn they are moments of the scene's own log and of a drive by a flawed driver with unsteady hands
        (`outdo.driving.scenes.disturbed`).

        Raises:
            SceneError: a file that cannot be read, or scenes that the expert cannot drive.
        """
        rng, shown = np.random.default_rng([self.seed, stream_key(self.seed, "states")]), self.display()
        made: list[Scene] = []
        driven: list[Scene] = []
        real = of_files(self.files)[: self.scenes]
        shown.stage("training scenes", len(real) or self.scenes, 0)
        for part in [[scene] for scene in real] or self._generated():
            made += part
            driven += disturbed(part, rng, self.flaws)
            shown.update(len(made), {})
        moments = [scene for k in range(self.states) for scene in later(driven if k % 2 else made, rng)]
        shown.stage("demonstrations", len(moments), 0)
        examples = collect_examples(
            moments, seed=self.seed, flaws=self.flaws, said=lambda done: shown.update(done, {})
        )
        shown.close()
        return examples

    def _generated(self) -> Iterator[list[Scene]]:
        """Generated training scenes in parts."""
        for first in range(0, self.scenes, SCENES_AT_ONCE):
            part = min(SCENES_AT_ONCE, self.scenes - first)
            yield generate(
                "train", part, seed=self.seed, first=first, situations=self.situations, future=2 * HORIZON
            )


def policy(
    *,
    seed: int,
    path: str,
    hidden: int,
    layers: int,
    heads: int,
    hold: int,
    acceleration_bins: int,
    curvature_bins: int,
    **settings: Any,
) -> DrivingPolicy:
    """The policy of a recipe's `[policy]`; with `path`, begun from a saved one.

    Raises ValueError for sizes that cannot be, ModelError for a folder that holds no driving policy.
    """
    disable_progress_bar()
    if path:
        return DrivingPolicy.load_from(path, seed=seed, **settings)
    code = ControlCode(hold, acceleration_bins, curvature_bins)
    return DrivingPolicy.new(seed=seed, code=code, hidden=hidden, layers=layers, heads=heads, **settings)


def task(
    *,
    seed: int,
    scenes: int,
    states: int,
    situations: Sequence[str],
    files: Sequence[str],
    held_out_files: Sequence[str],
    flaws: Mapping[str, float],
    display: Callable[[], Shown],
) -> Task:
    """Where the scenes of a recipe's `[task]` come from; nothing is generated or read yet."""
    return Task(
        seed=seed,
        scenes=scenes,
        states=states,
        situations=tuple(situations) or tuple(SITUATIONS),
        files=tuple(Path(each) for each in files),
        held_out_files=tuple(Path(each) for each in held_out_files),
        flaws=Flaws(**flaws),
        display=display,
    )


def demonstrations(task: Task, *, seed: int, batch: int) -> DrivingDemonstrations:
    """The environment of an `sft` stage."""
    return DrivingDemonstrations(task.examples, batch, seed)


def rollouts(
    task: Task, weights: Mapping[str, float], judge: Mapping[str, Any] | None, *, seed: int, **settings: Any
) -> DrivingEnvironment:
    """The environment of an `rl` stage; `weights` are the table `[reward]`, `judge` that of the critic."""
    endpoint = None
    if judge is not None:
        own = {key: judge[key] for key in ("model", "key_variable", "seconds", "parallel")}
        endpoint = Endpoint(judge["base_url"], **own)
    return DrivingEnvironment(
        task.examples, terms(weights, endpoint=endpoint), DrivingSettings(seed=seed, **settings)
    )


def evaluator(task: Task, *, seed: int, scenes: int, split: str, replan: int, **settings: Any) -> ClosedLoop:
    """The closed-loop evaluation of a recipe's `[evaluation]`."""
    held_out = scenes_of(split, scenes, seed=task.seed, situations=task.situations, files=task.held_out_files)
    return ClosedLoop(held_out, every=replan, seed=seed, **settings)


def demonstrated(task: Task, evaluator: ClosedLoop, *, seed: int) -> dict[str, dict[str, float]]:
    """The evaluation of the demonstrations and of the flawless expert on the held-out scenes."""
    return {
        "demonstrations": evaluator.expert_figures(task.flaws, seed).metrics,
        "expert": evaluator.expert_figures().metrics,
    }
