"""Builds the parts of a driving run from plain settings: what a recipe holds, section by section."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol

from transformers.utils.logging import disable_progress_bar

from outdo.core.worker import Worker, WorkerError
from outdo.driving.critic import Endpoint
from outdo.driving.demonstrations import Examples, joined, make_examples
from outdo.driving.environment import DrivingDemonstrations, DrivingEnvironment, DrivingSettings
from outdo.driving.evaluation import ClosedLoop
from outdo.driving.expert import Flaws
from outdo.driving.policy import DrivingPolicy
from outdo.driving.rewards import terms
from outdo.driving.scene import SceneError
from outdo.driving.scenes import of_files, scenes_of
from outdo.driving.situations import SITUATIONS
from outdo.driving.tokens import ControlCode

PART = 50
"""Training scenes that are made together, with random streams of their own."""
MOST_PROCESSES = 8
"""Processes that make training scenes, where there are cores for them: each takes half a GiB."""
LONGEST = 3600.0
"""Seconds after which a process that makes scenes is taken for one that hangs."""


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
        """What to learn from; see `make_examples`. It takes a while, so it shows how far it is.

        Raises:
            SceneError: a file that cannot be read, or scenes that the expert cannot drive.
        """
        real = of_files(self.files)[: self.scenes]
        total, shown = len(real) or self.scenes, self.display()
        own = (self.seed, self.states, self.situations, self.flaws)
        jobs = [
            (real[first : first + PART] if real else min(PART, total - first), first, *own)
            for first in range(0, total, PART)
        ]
        parts: list[Examples | None] = []
        shown.stage("training scenes", total, 0)
        for part in _made(jobs):
            parts.append(part)
            shown.update(min(len(parts) * PART, total), {})
        shown.close()
        return joined(parts, total * self.states)


def _made(jobs: Sequence[tuple[Any, ...]]) -> Iterator[Examples | None]:
    """`make_examples` of each job, in their order, by a process for each core where there is more than one job.

    Raises:
        SceneError: as `make_examples`.
    """
    count = min(os.cpu_count() or 1, MOST_PROCESSES, len(jobs))
    if count == 1:
        yield from (make_examples(*job) for job in jobs)
        return
    free = SimpleQueue[Worker]()
    workers = [Worker() for _ in range(count)]
    for worker in workers:
        free.put(worker)

    def call(job: tuple[Any, ...]) -> Examples | None:
        worker = free.get()
        try:
            return worker.call(f"{make_examples.__module__}:{make_examples.__name__}", *job, limit=LONGEST)
        finally:
            free.put(worker)

    pool = ThreadPoolExecutor(count)
    try:
        yield from pool.map(call, jobs)
    except WorkerError as error:
        raise SceneError(str(error)) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for worker in workers:
            worker.close()


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
