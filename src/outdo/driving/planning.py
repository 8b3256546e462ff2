"""A policy that writes answers as a planner of the simulator, with what it wrote and where it had to be replaced.

Axes: S scenes, H steps of a plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from outdo.driving import kernels
from outdo.driving.dynamics import MAX_CURVATURE
from outdo.driving.observation import Observation
from outdo.driving.packing import arc_length, resample
from outdo.driving.scene import DT, HORIZON, Scene
from outdo.driving.simulator import Drive, Simulator, drive
from outdo.driving.tokens import Answer, Vocabulary
from outdo.driving.way import bends
from outdo.language.sampling import Completion, Sampling

BRAKING = 3.0  # m/s², comfortable

Floats = NDArray[np.float64]


class Answering(Protocol):
    """What is asked of a driving policy: answers in tokens of its vocabulary."""

    vocabulary: Vocabulary

    def answers(
        self, seen: Observation, copies: int, sampling: Sampling, streams: Sequence[tuple[int, ...]]
    ) -> list[list[Completion]]:
        """`copies` completions for each of the S scenes that are `seen`, with the random stream of each."""
        ...


def greedy(vocabulary: Vocabulary) -> Sampling:
    """The most likely answer, as long as a well-formed one can be."""
    return Sampling(temperature=0.0, max_tokens=vocabulary.longest)


class PolicyPlanner:
    """A planner for `outdo.driving.simulator.drive`: the policy's plan at each replanning.

    An answer without a trajectory is never driven as controls of zero: the rest of the last plan goes on, and after
    it, or where there is none, the ego brakes by 3 m/s² to a standstill with the curvature of the route. Scene i
    at step t is answered from the random stream (`seed`, `first` + i, t).

    | attribute | what it holds |
    |---|---|
    | `answers` | for each scene the answers in the order they were written |
    | `fallback` | [S] how many of them had no trajectory |
    """

    def __init__(
        self, policy: Answering, *, sampling: Sampling | None = None, seed: int = 0, first: int = 0
    ) -> None:
        self._policy, self._seed, self._first = policy, seed, first
        self._sampling = sampling or greedy(policy.vocabulary)
        self.answers: list[list[Answer]] = []
        self.fallback = np.zeros(0, np.int64)
        self._last = np.zeros((0, 0, 2))
        self._made = 0

    @property
    def texts(self) -> list[list[str]]:
        """The reasoning of each scene, one text a plan."""
        return [[answer.text for answer in answers] for answers in self.answers]

    def __call__(self, simulator: Simulator) -> Floats:
        """Plans [S, 64, 2] from where the scenes are now."""
        t, scenes = simulator.t, simulator.scenes
        if t == 0:
            self.answers, self.fallback = [[] for _ in scenes], np.zeros(len(scenes), np.int64)
            self._last = np.zeros((len(scenes), 0, 2))
        streams = [(self._seed, self._first + n, t) for n in range(len(scenes))]
        written = self._policy.answers(simulator.observe(), 1, self._sampling, streams)
        plans = np.empty((len(scenes), HORIZON, 2))
        for n, (completion,) in enumerate(written):
            answer = self._policy.vocabulary.read(completion.tokens)
            self.answers[n].append(answer)
            if answer.control is not None:
                plans[n] = answer.control
                continue
            self.fallback[n] += 1
            rest = self._last[n, t - self._made :]
            plans[n] = without_plan(scenes[n], simulator.state[n, 0], rest)
        self._last, self._made = plans, t
        return plans


def without_plan(scene: Scene, ego: Floats, rest: Floats) -> Floats:
    """Controls [64, 2] of an ego [4] that has no plan: the `rest` [H, 2] of its last one, then braking to a standstill.

    While it brakes its curvature is that of the route where it would be, if it kept to it.
    """
    controls = np.zeros((HORIZON, 2))
    controls[: len(rest)] = rest
    line = resample(scene.route, 1.0)
    s = kernels.project(line, arc_length(line), ego[0], ego[1])[0]
    bend, v = np.clip(bends(line), -MAX_CURVATURE, MAX_CURVATURE), float(ego[3])
    for t in range(HORIZON):
        if t >= len(rest):
            controls[t] = np.clip(-v / DT, -BRAKING, BRAKING), bend[min(max(int(s), 0), len(bend) - 1)]
        s += v * DT
        v += controls[t, 0] * DT
    return controls


def drive_scene(
    policy: Answering,
    scene: Scene,
    *,
    every: int = 5,
    reactive: bool = True,
    sampling: Sampling | None = None,
    seed: int = 0,
) -> tuple[Drive, list[str]]:
    """Let a policy drive one scene, by default greedily: the record, and its texts, one a plan.

    Raises:
        SceneError, ValueError: as `outdo.driving.simulator.drive`.
    """
    planner = PolicyPlanner(policy, sampling=sampling, seed=seed)
    record = drive([scene], planner, every=every, reactive=reactive)
    return record, planner.texts[0]
