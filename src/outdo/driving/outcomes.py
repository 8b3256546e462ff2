"""What becomes of driving answers in their scenes: trajectory, meta-actions, contacts; what rewards are functions of.

Axes: A actors (0 is the ego), H ticks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outdo.driving import dynamics, kernels
from outdo.driving.measures import Measures, measure
from outdo.driving.meta_actions import MetaActions, meta_actions
from outdo.driving.packing import arc_length
from outdo.driving.reasoning import Trace
from outdo.driving.scene import HORIZON, Scene, SceneError
from outdo.driving.simulator import Simulator
from outdo.driving.tokens import Answer

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Reference:
    """What the expert did in a scene: `path` [H + 1, 4] from its `now` on, and why; no `trace` where unknown."""

    path: Floats
    trace: Trace | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Outcome:
    """An answer in its scene.

    Of an answer that is not well-formed `path` [H + 1, 4], `actions` and `measures` are None. `along_route` are the
    meta-actions with headings relative to the route, `lean` that heading at the start in rad. `scene_fault` says why
    neither contacts nor the road can be judged here: it is the scene's, whatever the policy does.
    """

    scene: Scene
    answer: Answer
    reference: Reference
    path: Floats | None = None
    actions: MetaActions | None = None
    along_route: MetaActions | None = None
    lean: float = 0.0
    measures: Measures | None = None
    scene_fault: str | None = None


def outcomes_of(
    scene: Scene, answers: Sequence[Answer], reference: Reference, *, reactive: bool = False
) -> list[Outcome]:
    """Drive each answer of a group in its scene; `outcomes_together` for one group."""
    return outcomes_together([scene], [answers], [reference], reactive=reactive)[0]


def outcomes_together(
    scenes: Sequence[Scene],
    groups: Sequence[Sequence[Answer]],
    references: Sequence[Reference],
    *,
    reactive: bool = False,
) -> list[list[Outcome]]:
    """Drive the answers of several groups, each group in its scene, without replanning.

    The other actors are replayed from the log; `reactive` vehicles brake for the ego (`outdo.driving.simulator`), so
    that one that is slower than in the log is not hit from behind.

    Raises:
        SceneError: a log ends before the trajectories do.
    """
    for scene in scenes:
        if scene.future < HORIZON:
            raise SceneError(
                f"scene {scene.id!r}: its log has {scene.future} steps after now, a trajectory {HORIZON}: choose an "
                "earlier now"
            )
    drive = _among_traffic if reactive else _among_logs
    results: list[list[Outcome]] = []
    driven = iter(drive(scenes, groups))
    for scene, answers, reference in zip(scenes, groups, references, strict=True):
        fault = scene_fault(scene)
        results.append(
            [
                _outcome(scene, answer, reference, fault, *next(driven))
                if _drives(answer)
                else Outcome(scene, answer, reference, scene_fault=fault)
                for answer in answers
            ]
        )
    return results


def _drives(answer: Answer) -> bool:
    """Whether an answer is well-formed: one that is not earns the floor of every term, however good its parts are."""
    return answer.control is not None and not answer.faults


def _among_logs(
    scenes: Sequence[Scene], groups: Sequence[Sequence[Answer]]
) -> Iterator[tuple[Floats, Mask, Floats]]:
    """States [H + 1, A, 4], validity [H + 1, A] and sizes [A, 2] for each answer that drives, all others as logged."""
    for scene, answers in zip(scenes, groups, strict=True):
        cut = slice(scene.now, scene.now + HORIZON + 1)
        valid = scene.valid[:, cut].T.copy()
        valid[:, 0] = True
        controls = [answer.control for answer in answers if answer.control is not None and _drives(answer)]
        start = np.broadcast_to(scene.state[0, scene.now], (len(controls), 4))
        for path in dynamics.rollout(start, np.stack(controls)) if controls else ():
            state = scene.state[:, cut].transpose(1, 0, 2).copy()
            state[:, 0] = path
            yield state, valid, scene.size


def _among_traffic(
    scenes: Sequence[Scene], groups: Sequence[Sequence[Answer]]
) -> Iterator[tuple[Floats, Mask, Floats]]:
    """The same with vehicles that react, all answers at once."""
    rows = [
        (scene, answer.control)
        for scene, answers in zip(scenes, groups, strict=True)
        for answer in answers
        if answer.control is not None and _drives(answer)
    ]
    if not rows:
        return
    simulator = Simulator([scene for scene, _ in rows])
    controls = np.stack([control for _, control in rows])
    for t in range(HORIZON):
        simulator.step(controls[:, t])
    record = simulator.record()
    yield from zip(record.state, record.valid, record.size, strict=True)


def _outcome(
    scene: Scene,
    answer: Answer,
    reference: Reference,
    fault: str | None,
    state: Floats,
    valid: Mask,
    size: Floats,
) -> Outcome:
    path = np.ascontiguousarray(state[:, 0])
    driven = measure(scene, state, valid, size)
    straight = _straightened(path, scene.route)
    lean = float(dynamics.wrap(straight[0, 2]))
    return Outcome(
        scene, answer, reference, path, meta_actions(path), meta_actions(straight), lean, driven, fault
    )


def scene_fault(scene: Scene) -> str | None:
    """Why contacts and road cannot be judged in a scene: its own faults, or a start that is one already."""
    now = slice(scene.now, scene.now + 1)
    start = measure(
        scene, scene.state[:, now].transpose(1, 0, 2).copy(), scene.valid[:, now].T.copy(), scene.size
    )
    if scene.faults:
        return "; ".join(scene.faults)
    if start.off_road[0]:
        return "the ego is off the road at the first step: the map is wrong, or misses a piece"
    return "the ego overlaps an actor at the first step" if start.overlaps_at_start else None


def _straightened(path: Floats, route: Floats) -> Floats:
    """`path` with headings relative to the route's, which turns evenly between the middles of its segments."""
    length = arc_length(route)
    step = np.diff(route, axis=0)
    heading = np.unwrap(np.arctan2(step[:, 1], step[:, 0]))
    s = np.array([kernels.project(route, length, x, y)[0] for x, y in path[:, :2]])
    result = path.copy()
    result[:, 2] -= np.interp(s, (length[1:] + length[:-1]) / 2, heading)
    return result
