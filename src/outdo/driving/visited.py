"""States that the policy itself drives to, so that it learns where it will be and not only where others have been.

Axes: S scenes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.random import Generator
from numpy.typing import NDArray

from outdo.driving.demonstrations import references
from outdo.driving.outcomes import Reference
from outdo.driving.planning import Answering, PolicyPlanner
from outdo.driving.scene import HISTORY, HORIZON, Scene
from outdo.driving.scenes import relogged
from outdo.driving.simulator import Drive, Simulator, drive

EVERY = 5
"""Steps between two plans: 2 Hz, as evaluations have it by default."""


def visited(
    policy: Answering, scenes: Sequence[Scene], rng: Generator, *, seed: int = 0, first: int = 0
) -> list[tuple[Scene, Reference] | None]:
    """For each scene a state that the policy gets into, and what the flawless expert does from there on.

    The policy drives the scene greedily among vehicles that react, from the first step with a whole history on, and
    the state is a random one of those in which it would plan anew: on-policy states with an expert beside them, as
    in DAgger (Ross et al. 2011, arXiv 1011.0686), which imitates the expert there; here they are where answers are
    sampled and scored. None where the log leaves no time for that, the drive was in trouble before, or the expert
    gets into it. Random streams are those of `PolicyPlanner`.

    Raises:
        SceneError: as `outdo.driving.simulator.drive`.
    """
    begun = {n: replace(scene, now=HISTORY - 1) for n, scene in enumerate(scenes) if _begins(scene)}
    found: list[tuple[Scene, Reference] | None] = [None] * len(scenes)
    if not begun:
        return found
    room = min(scene.future - HORIZON for scene in begun.values()) // EVERY
    steps = EVERY * rng.integers(1, room + 1, len(begun))
    driven = relogged(_driven(policy, list(begun.values()), int(steps.max()), seed, first))
    states = {
        n: replace(scene, now=scene.now + int(step))
        for n, scene, step in zip(begun, driven, steps, strict=True)
        if scene.valid[0, scene.now + step]
    }
    if states:
        for (n, scene), reference in zip(states.items(), references(list(states.values())), strict=True):
            found[n] = None if reference is None else (scene, reference)
    return found


def _begins(scene: Scene) -> bool:
    """Whether there is a first step with a whole history and time for two plans after it."""
    return scene.steps >= HISTORY + EVERY + HORIZON and bool(scene.valid[0, HISTORY - 1])


def _driven(policy: Answering, scenes: Sequence[Scene], last: int, seed: int, first: int) -> Drive:
    """The policy's drive with its last plan at step `last`, which is driven to its end."""
    planner = PolicyPlanner(policy, seed=seed, first=first)
    plans = np.zeros((len(scenes), HORIZON, 2))

    def plan(simulator: Simulator) -> NDArray[np.float64]:
        nonlocal plans
        if simulator.t <= last:
            plans = planner(simulator)
        rest = plans[:, max(simulator.t - last, 0) :]
        return np.pad(rest, ((0, 0), (0, HORIZON - rest.shape[1]), (0, 0)))

    return drive(scenes, plan, every=EVERY, steps=last + HORIZON)
