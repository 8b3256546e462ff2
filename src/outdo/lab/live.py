"""Driving policies trained live: one clone of an imperfect expert, then short runs from it, each by another reward."""

from __future__ import annotations

import math
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from transformers.utils.logging import disable_progress_bar

from outdo.core.presets import PRESETS
from outdo.core.rewards import RewardTerm
from outdo.driving.demonstrations import joined, make_examples
from outdo.driving.environment import DrivingDemonstrations, DrivingEnvironment, DrivingSettings
from outdo.driving.evaluation import ClosedLoop
from outdo.driving.expert import Flaws
from outdo.driving.generator import generate
from outdo.driving.policy import DrivingPolicy
from outdo.driving.situations import SITUATIONS
from outdo.driving.tokens import ControlCode
from outdo.training.loop import train
from outdo.training.optim import OptimiserSettings
from outdo.training.plan import Settings, Stage
from outdo.training.record import read_metrics, read_rollouts

CLONE = "clone"
TEMPERATURE = 0.7
"""Of all answers, in training and in the measures: at 1 a sixth of the clone's are malformed, which hides the rest."""
CODE = ControlCode(hold=16, acceleration_bins=49, curvature_bins=201)
"""Four pairs of controls in 6.4 s, in steps of 0.4 m/s² and 0.002 1/m: little to learn."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """How much is trained and measured.

    | field | meaning |
    |---|---|
    | `scenes`, `held_out` | training scenes, with two moments of each; scenes of the closed loop |
    | `hidden`, `layers` | of the policy |
    | `cloning` | updates of the clone, of 32 demonstrations each |
    | `updates`, `every` | of each run from it; from one measurement to the next |
    | `states`, `group` | scene states of an update, answers to each |
    """

    scenes: int = 300
    held_out: int = 300
    hidden: int = 48
    layers: int = 2
    cloning: int = 700
    updates: int = 50
    every: int = 10
    states: int = 16
    group: int = 8


@dataclass(frozen=True, slots=True)
class Curve:
    """Values over scenes at numbers of updates; `same`: each time of the same scenes, in the same order."""

    updates: list[float]
    values: list[list[float]]
    same: bool

    @property
    def mean(self) -> list[float]:
        """Mean over scenes, at each number of updates."""
        return [fmean(values) for values in self.values]

    @property
    def error(self) -> list[float]:
        """Standard error of each mean."""
        return [stdev(values) / math.sqrt(len(values)) for values in self.values]

    @property
    def rise(self) -> tuple[float, float]:
        """Last mean − first, and its standard error: of the differences where the scenes are the same."""
        first, last = self.values[0], self.values[-1]
        if self.same:
            return above(last, first)
        return fmean(last) - fmean(first), math.hypot(self.error[0], self.error[-1])


def above(one: Sequence[float], other: Sequence[float]) -> tuple[float, float]:
    """Mean difference of values of the same scenes, and its standard error."""
    apart = [a - b for a, b in zip(one, other, strict=True)]
    return fmean(apart), stdev(apart) / math.sqrt(len(apart))


@dataclass(frozen=True, slots=True)
class Course:
    """What happened in a run: `reward` of the answers it learned from, and `measures` of the closed loop by name."""

    reward: Curve
    measures: dict[str, Curve]


def train_live(
    rewards: Mapping[str, Sequence[RewardTerm]], measures: Sequence[str], sizes: Sizes, seed: int
) -> dict[str, Course]:
    """Clone demonstrations once, then train from the clone by each of the `rewards`; vehicles react to what is tried.

    `measures` are figures of `outdo.driving.evaluation.ClosedLoop`, on scenes that no run has seen.
    Raises KeyError for one that it does not report, KeyboardInterrupt where a signal ended the training.
    """
    disable_progress_bar()
    policy = DrivingPolicy.new(
        seed=seed, code=CODE, hidden=sizes.hidden, layers=sizes.layers, heads=2, device="cpu"
    )
    scenes = generate("test", sizes.held_out, seed=seed)
    evaluator = ClosedLoop(scenes, temperature=TEMPERATURE, shown=len(scenes))
    with tempfile.TemporaryDirectory() as temporary:
        folder, settings = Path(temporary), Settings(seed=seed, evaluate_every=sizes.every)
        result = train(policy, _stages(rewards, sizes, seed), folder, settings=settings, evaluator=evaluator)
        if not result.finished:
            raise KeyboardInterrupt(result.interrupted_by)
        return {
            name: Course(
                reward_curve(folder, name, sizes.every),
                {measure: measure_curve(folder, name, measure) for measure in measures},
            )
            for name in rewards
        }


def _stages(rewards: Mapping[str, Sequence[RewardTerm]], sizes: Sizes, seed: int) -> list[Stage]:
    """Cloning, and a run for each reward that begins from the clone."""
    moments = 2  # of each scene: one of its log, one of an unsteady drive
    made = make_examples(sizes.scenes, 0, seed, moments, tuple(SITUATIONS), Flaws())
    examples = joined([made], moments * sizes.scenes)
    imitation = OptimiserSettings(
        learning_rate=4e-3, schedule="cosine", final_share=0.1, warmup=min(10, sizes.cloning)
    )
    cloning = DrivingDemonstrations(examples, 32, seed)
    stages = [Stage(CLONE, cloning, PRESETS["sft"].algorithm, sizes.cloning, imitation)]
    settings = DrivingSettings(
        scenes=sizes.states, group=sizes.group, temperature=TEMPERATURE, reactive=True, seed=seed
    )
    reinforcement = OptimiserSettings(
        learning_rate=2e-3, schedule="linear", final_share=0.1, warmup=min(3, sizes.updates)
    )
    for name, terms in rewards.items():
        environment, algorithm = DrivingEnvironment(examples, terms, settings), PRESETS["grpo"].algorithm
        stages.append(Stage(name, environment, algorithm, sizes.updates, reinforcement, start=CLONE))
    return stages


def reward_curve(folder: Path, stage: str, every: int) -> Curve:
    """Training reward of a stage in pieces of `every` updates, at their middles; a value is the mean of a group."""
    groups: defaultdict[tuple[int, int], list[float]] = defaultdict(list)
    for row in read_rollouts(folder):
        if row["kind"] == "rollout" and row["stage"] == stage:
            groups[row["total"], row["group"]].append(row["reward"])
    first = min(total for total, _ in groups)
    pieces: defaultdict[int, list[float]] = defaultdict(list)
    for (total, _), rewards in groups.items():
        pieces[(total - first) // every].append(fmean(rewards))
    middles = [every * k + (every + 1) / 2 for k in sorted(pieces)]
    return Curve(middles, [pieces[k] for k in sorted(pieces)], same=False)


def measure_curve(folder: Path, stage: str, name: str) -> Curve:
    """A figure of the closed loop scene by scene: of the clone, then at the evaluations of a stage."""
    values: defaultdict[tuple[str, int], list[float]] = defaultdict(list)
    for row in read_rollouts(folder):
        if row["kind"] == "evaluation":
            values[row["stage"], row["total"]].append(row["figures"][name])
    begin = max(total for of, total in values if of == CLONE)
    steps = {
        line["total"]: float(line["step"])
        for line in read_metrics(folder)
        if line["kind"] == "evaluation" and line["stage"] == stage and line["step"]
    }
    return Curve(
        [0.0, *steps.values()],
        [values[CLONE, begin], *(values[stage, total] for total in steps)],
        same=True,
    )


def pooled(curves: Sequence[Curve]) -> Curve:
    """The scenes of independent seeds together."""
    values = [
        [value for part in parts for value in part] for parts in zip(*(c.values for c in curves), strict=True)
    ]
    return Curve(curves[0].updates, values, curves[0].same)
