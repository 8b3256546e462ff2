"""What there is to learn from: scene states with what is seen, a flawed demonstration, and the flawless reference.

Axes: S scene states, H steps of a trajectory.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

import numpy as np

from outdo.driving.expert import Demonstration, Flaws, demonstrate, run
from outdo.driving.generator import generate
from outdo.driving.measures import measure
from outdo.driving.observation import Observation
from outdo.driving.outcomes import Reference
from outdo.driving.scene import HORIZON, Scene, SceneError
from outdo.driving.scenes import disturbed, later
from outdo.driving.simulator import Drive, Simulator
from outdo.driving.way import Way, ways
from outdo.language.environment import stream_key

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, eq=False)
class Examples:
    """S scene states: what is `seen` there, what is `shown` to imitate, and the `references` for rewards.

    A demonstration has flaws, a reference none: it is the expert's own drive from the same state, with its reasons.
    """

    seen: Observation
    shown: tuple[Demonstration, ...]
    references: tuple[Reference, ...]

    def __len__(self) -> int:
        """Number of scene states S."""
        return len(self.shown)

    def scene(self, index: int) -> Scene:
        """The scene of a state; its `now` is where the answer begins."""
        return self.shown[index].scene


def joined(parts: Iterable[Examples | None], states: int) -> Examples:
    """The examples that are left of so many scene states; how many were left out is logged.

    Raises:
        SceneError: none is left.
    """
    there = [part for part in parts if part is not None]
    if not there:
        raise SceneError(f"the expert fails in all {states} scenes: there is nothing to learn from")
    shown = tuple(demo for part in there for demo in part.shown)
    if len(shown) < states:
        logger.info("%d of %d states left out: the expert fails there", states - len(shown), states)
    references = tuple(reference for part in there for reference in part.references)
    return Examples(stacked([part.seen for part in there]), shown, references)


def collect_examples(scenes: Sequence[Scene], seed: int, flaws: Flaws | None = None) -> Examples | None:
    """Let the expert drive all scenes together from their `now` on, without flaws and with; wrong reasons are swapped.

    A state in which even the flawless expert touches something or leaves the road shows nothing worth having: it is
    left out, and None is returned where none is left.

    Raises:
        SceneError: a log that ends before its trajectory.
    """
    way = ways(scenes, HORIZON)
    found = references(scenes, way)
    sound = [n for n, reference in enumerate(found) if reference is not None]
    if not sound:
        return None
    demos = demonstrate(scenes, seed, flaws=flaws, way=way)
    return Examples(
        Simulator([scenes[n] for n in sound]).observe(),
        tuple(demos[n] for n in sound),
        tuple(reference for reference in found if reference is not None),
    )


def references(scenes: Sequence[Scene], way: Way | None = None) -> list[Reference | None]:
    """The flawless expert's drive from each state; None where even it touches something or leaves the road.

    `way` as for `outdo.driving.expert.run`. Raises SceneError as `outdo.driving.simulator.drive`.
    """
    record, traces = run(scenes, way=way)
    return [
        Reference(record.state[n, :, 0].copy(), trace) if _sound(record, n) else None
        for n, trace in enumerate(traces)
    ]


def _sound(record: Drive, n: int) -> bool:
    found = measure(record.scenes[n], record.state[n], record.valid[n], record.size[n])
    return not (found.contact.any() or found.off_road.any() or found.overlaps_at_start)


def make_examples(
    scenes: int | Sequence[Scene],
    first: int,
    seed: int,
    states: int,
    situations: Sequence[str],
    flaws: Flaws,
) -> Examples | None:
    """Examples of training scenes from the index `first` on: so many to generate, or these; None if none is sound.

    Of each scene come `states` moments, in turn of its own log and of a drive by a flawed driver with unsteady hands
    (`outdo.driving.scenes.disturbed`). What is drawn depends on `seed` and `first` alone.

    Raises:
        SceneError: a log that is too short.
    """
    if isinstance(scenes, int):
        scenes = generate("train", scenes, seed=seed, first=first, situations=situations, future=2 * HORIZON)
    rng = np.random.default_rng([seed, stream_key(seed, f"states/{first}")])
    driven = disturbed(scenes, rng, flaws)
    moments = [scene for k in range(states) for scene in later(driven if k % 2 else scenes, rng)]
    return collect_examples(moments, stream_key(seed, f"demonstrations/{first}"), flaws)


def select(seen: Observation, rows: Sequence[int]) -> Observation:
    """What is seen in the given scenes, in this order."""
    return Observation(**{item.name: getattr(seen, item.name)[list(rows)] for item in fields(seen)})


def stacked(parts: Sequence[Observation]) -> Observation:
    """Several observations as one [S, …], padded with absent actors to the most of any."""
    most = max(part.kind.shape[1] for part in parts)
    columns = {}
    for item in fields(Observation):
        arrays = [getattr(part, item.name) for part in parts]
        if item.name in ("agents", "present", "size", "kind"):
            fill = 1.0 if item.name == "size" else 0
            arrays = [
                np.pad(
                    array,
                    [(0, 0), (0, most - array.shape[1])] + [(0, 0)] * (array.ndim - 2),
                    constant_values=fill,
                )
                for array in arrays
            ]
        columns[item.name] = np.concatenate(arrays)
    return Observation(**columns)
