"""Generated scenes: ten situations, seeded, driven by the expert without flaws.

The random stream of a scene is named by (split, seed, index, attempt), so that splits never share one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from outdo.core.calls import nearest
from outdo.driving.expert import run
from outdo.driving.measures import measure
from outdo.driving.scene import HISTORY, HORIZON, Scene
from outdo.driving.simulator import Drive
from outdo.driving.situations import SITUATIONS
from outdo.driving.situations.roads import Floats, clock

SPLITS = ("train", "validation", "test")
ATTEMPTS = 20
MIRRORED = 0.5


def generate(
    split: str,
    count: int,
    *,
    seed: int = 0,
    first: int = 0,
    situations: Sequence[str] = tuple(SITUATIONS),
    future: int = HORIZON,
) -> list[Scene]:
    """Scenes `first` … `first + count − 1` of a split, the situations in turn, half of all scenes mirrored.

    A scene has 16 steps up to `now` and `future` steps after it; the ego's log is the flawless expert's own drive
    among reactive traffic. A draft in which that drive touches something, leaves the road or starts in contact is
    drawn again, so that a longer future may hold other scenes than a shorter one.

    Raises:
        ValueError: unknown split or situation, too short a future, or a situation that failed 20 times in a row.
    """
    if split not in SPLITS:
        raise ValueError(f"unknown split {split!r}; {nearest(split, SPLITS)}")
    for situation in situations:
        if situation not in SITUATIONS:
            raise ValueError(f"unknown situation {situation!r}; {nearest(situation, SITUATIONS)}")
    if not situations or count < 1 or first < 0:
        raise ValueError(
            f"nothing to generate: {count} scenes from {first} on of {len(situations)} situations"
        )
    if future < HORIZON:
        raise ValueError(f"future must be at least the {HORIZON} steps of a trajectory, got {future}")
    scenes: dict[int, Scene] = {}
    time = clock(future)
    wanted = list(range(first, first + count))
    for attempt in range(ATTEMPTS):
        drafts = [_draft(split, seed, k, attempt, situations[k % len(situations)], time) for k in wanted]
        record, _ = run(drafts, steps=len(time) - 1)
        for n, k in enumerate(wanted):
            if _sound(record, n):
                scenes[k] = _finish(record, n)
        wanted = [k for k in wanted if k not in scenes]
        if not wanted:
            return [scenes[k] for k in sorted(scenes)]
    names = sorted({situations[k % len(situations)] for k in wanted})
    raise ValueError(f"no sound scene in {ATTEMPTS} attempts: {', '.join(names)} (scene {wanted[0]})")


def _draft(split: str, seed: int, index: int, attempt: int, situation: str, time: Floats) -> Scene:
    rng = np.random.default_rng([SPLITS.index(split), seed, index, attempt])
    mirrored = bool(rng.random() < MIRRORED)
    name = f"{split}-{seed}-{index}-{situation.replace(' ', '-')}"
    return SITUATIONS[situation](rng, time).scene(name, situation, mirrored=mirrored)


def _sound(record: Drive, n: int) -> bool:
    """Whether the drive of scene `n` touched nothing and stayed on the road from its first step on."""
    found = measure(record.scenes[n], record.state[n], record.valid[n], record.size[n])
    return not (found.contact.any() or found.off_road.any() or found.overlaps_at_start)


def _finish(record: Drive, n: int) -> Scene:
    """The scene with the logs as they were driven."""
    scene = record.scenes[n]
    state = np.ascontiguousarray(record.state[n, :, : scene.actors].transpose(1, 0, 2))
    return replace(scene, now=HISTORY - 1, state=state, valid=record.valid[n, :, : scene.actors].T.copy())
