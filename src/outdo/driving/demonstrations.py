"""What there is to learn from: scene states with what is seen, a flawed demonstration, and the flawless reference.

Axes: S scene states, H steps of a trajectory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields

import numpy as np

from outdo.driving.expert import Demonstration, Flaws, demonstrate, run
from outdo.driving.measures import measure
from outdo.driving.observation import Observation
from outdo.driving.outcomes import Reference
from outdo.driving.scene import HORIZON, Scene, SceneError
from outdo.driving.simulator import Drive, Simulator
from outdo.driving.way import ways
from outdo.language.environment import stream_key

logger = logging.getLogger(__name__)

AT_ONCE = 256
"""Scene states that are driven together; wrong reasons are swapped among them."""


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


def collect_examples(
    scenes: Sequence[Scene],
    *,
    seed: int,
    flaws: Flaws | None = None,
    said: Callable[[int], None] | None = None,
) -> Examples:
    """Let the expert drive all scenes from their `now` on, without flaws and with.

    A state in which even the flawless expert touches something or leaves the road shows nothing worth having: it is
    left out, and how many were is logged. `said` is told how many states are done.

    Raises:
        SceneError: no state is left, or a log that ends before its trajectory.
    """
    seen: list[Observation] = []
    shown: list[Demonstration] = []
    references: list[Reference] = []
    for first in range(0, len(scenes), AT_ONCE):
        part = scenes[first : first + AT_ONCE]
        way = ways(part, HORIZON)
        record, traces = run(part, way=way)
        sound = [n for n in range(len(part)) if _sound(record, n)]
        if sound:
            references += [Reference(record.state[n, :, 0].copy(), traces[n]) for n in sound]
            demos = demonstrate(part, stream_key(seed, f"demonstrations/{first}"), flaws=flaws, way=way)
            shown += [demos[n] for n in sound]
            seen.append(Simulator([part[n] for n in sound]).observe())
        if said is not None:
            said(first + len(part))
    if not seen:
        raise SceneError(f"the expert fails in all {len(scenes)} scenes: there is nothing to learn from")
    if len(shown) < len(scenes):
        logger.info("%d of %d states left out: the expert fails there", len(scenes) - len(shown), len(scenes))
    return Examples(stacked(seen), tuple(shown), tuple(references))


def _sound(record: Drive, n: int) -> bool:
    found = measure(record.scenes[n], record.state[n], record.valid[n], record.size[n])
    return not (found.contact.any() or found.off_road.any() or found.overlaps_at_start)


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
