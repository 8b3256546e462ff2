"""Closed loop: many scenes at once, the ego under control, the others replayed from their logs or reacting.

Axes: S scenes, A actors (0 is the ego; padded to the most of any scene), T simulated steps, H steps of a plan.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outdo.driving import kernels, traffic
from outdo.driving.observation import Observation, Surroundings, observe, surroundings
from outdo.driving.scene import DT, HISTORY, HORIZON, Scene, SceneError

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True, eq=False)
class Drive:
    """What happened: `state` [S, T + 1, A, 4] from step `now` on, `valid` [S, T + 1, A], `size` [S, A, 2].

    `control` [S, T, 2] was applied to the ego; `plans` [S, replans, H, 2] are all the policy gave, one every
    `every` steps; both are empty for a replayed log. Where `valid` is False the state is NaN.
    """

    scenes: tuple[Scene, ...]
    state: Floats
    valid: Mask
    size: Floats
    control: Floats
    plans: Floats
    every: int


class Simulator:
    """Scenes that are stepped together at 10 Hz.

    `reactive` vehicles keep to the path of their log and brake for what lies on it (`outdo.driving.traffic`);
    all other actors, and all of them where it is False, are replayed: absent wherever their log is.

    Raises:
        SceneError: no scenes, or a log shorter than `steps` after its `now`.
    """

    def __init__(
        self,
        scenes: Sequence[Scene],
        *,
        steps: int = HORIZON,
        reactive: bool = True,
        idm: traffic.Idm | None = None,
    ) -> None:
        self.scenes, self.steps, self.t = tuple(scenes), steps, 0
        self.size, self.kind = _boxes(scenes, steps)
        actors = self.kind.shape[1]
        self._history = np.full((len(scenes), actors, HISTORY + steps, 4), np.nan)
        self._present = np.zeros(self._history.shape[:3], np.bool_)
        for n, scene in enumerate(scenes):
            self._read(n, scene)
        self._idm = idm or traffic.Idm()
        self._rails = traffic.rails(scenes, actors, steps)
        if not reactive:
            self._rails.reacts[:] = False
        self._present[:, :, HISTORY:][self._rails.reacts] = True
        self._around: Surroundings | None = None  # what is seen of the map, collected when somebody looks
        self.state = self._history[:, :, HISTORY - 1].copy()
        self.valid = self._present[:, :, HISTORY - 1].copy()
        self._axis = np.full((*self.valid.shape, 2), np.nan)
        kernels.axes(self.state, self.valid, self._axis)
        self._ego = np.zeros(self.valid.shape, np.bool_)
        self._ego[:, 0] = True
        self._replayed = ~(self._ego | self._rails.reacts)
        self._control = np.zeros((*self.valid.shape, 2))
        self._applied = np.zeros((len(scenes), steps, 2))

    def _read(self, n: int, scene: Scene) -> None:
        """Copy a log into the records: column HISTORY − 1 is its `now`."""
        a, first = scene.actors, max(scene.now - HISTORY + 1, 0)
        columns = slice(HISTORY - 1 - (scene.now - first), HISTORY + self.steps)
        steps = slice(first, scene.now + self.steps + 1)
        valid = scene.valid[:, steps]
        self._present[n, :a, columns] = valid
        self._history[n, :a, columns] = np.where(valid[..., None], scene.state[:, steps], np.nan)
        self._present[n, 0, HISTORY:] = True

    def observe(self) -> Observation:
        """What the policy sees now."""
        self._around = self._around or surroundings(self.scenes, self.steps)
        return observe(self.t, self._history, self._present, self.size, self.kind, self._around)

    def step(self, control: Floats) -> None:
        """Move all actors by 0.1 s, the egos by `control` [S, 2] (m/s², 1/m), which is applied as it is.

        Raises:
            ValueError: controls that are not finite or have another shape. RuntimeError: all steps are done.
        """
        if control.shape != (len(self.scenes), 2) or not np.isfinite(control).all():
            raise ValueError(
                f"control must be finite [{len(self.scenes)}, 2], got shape {list(control.shape)}"
            )
        if self.t == self.steps:
            raise RuntimeError(f"the simulation ended after its {self.steps} steps")
        state, axis, acceleration = self.state, self._axis, self._control[:, :, 0]
        self._control[:, 0] = 0.0
        traffic.react(state, axis, self.size, self.valid, self._rails, self.t, DT, self._idm, acceleration)
        traffic.move(state, axis, self._rails, DT, acceleration)
        self._control[:, 0] = self._applied[:, self.t] = control
        kernels.advance(state, axis, self._control, self._ego, DT)
        self.t += 1
        column = HISTORY - 1 + self.t
        traffic.replay(state, axis, self.valid, self._history, self._present, column, self._replayed)

    def record(self, plans: Floats | None = None, every: int = 1) -> Drive:
        """What happened so far."""
        columns = slice(HISTORY - 1, HISTORY + self.t)
        return Drive(
            scenes=self.scenes,
            state=np.ascontiguousarray(self._history[:, :, columns].transpose(0, 2, 1, 3)),
            valid=np.ascontiguousarray(self._present[:, :, columns].transpose(0, 2, 1)),
            size=self.size,
            control=self._applied[:, : self.t].copy(),
            plans=np.zeros((len(self.scenes), 0, 0, 2)) if plans is None else plans,
            every=every,
        )


def _boxes(scenes: Sequence[Scene], steps: int) -> tuple[Floats, NDArray[np.int8]]:
    """Sizes [S, A, 2] and kinds [S, A] of scenes whose logs last for `steps`."""
    if not scenes or steps < 1:
        raise SceneError(f"nothing to simulate: {len(scenes)} scenes, {steps} steps")
    actors = max(scene.actors for scene in scenes)
    size, kind = np.ones((len(scenes), actors, 2)), np.zeros((len(scenes), actors), np.int8)
    for n, scene in enumerate(scenes):
        if scene.future < steps:
            raise SceneError(
                f"scene {scene.id!r}: its log has {scene.future} steps after now, {steps} are simulated: "
                "choose an earlier now or fewer steps"
            )
        size[n, : scene.actors], kind[n, : scene.actors] = scene.size, scene.kind
    return size, kind


Planner = Callable[[Simulator], Floats]


def drive(
    scenes: Sequence[Scene], plan: Planner, *, every: int = 5, steps: int = HORIZON, reactive: bool = True
) -> Drive:
    """Drive `steps` of all scenes; `plan` gives controls [S, H, 2], H ≥ `every`, each `every` steps (1 to 5).

    Replanning at 10 Hz / `every`: 2 to 10 Hz.

    Raises:
        SceneError, ValueError: as `Simulator`, or a plan of another shape.
    """
    if not 1 <= every <= 5:
        raise ValueError(f"every must be 1 to 5 steps (10 to 2 Hz), got {every}")
    simulator, plans = Simulator(scenes, steps=steps, reactive=reactive), list[Floats]()
    for t in range(steps):
        if t % every == 0:
            controls = plan(simulator)
            if controls.ndim != 3 or controls.shape[::2] != (len(scenes), 2) or controls.shape[1] < every:
                raise ValueError(
                    f"a plan must be [{len(scenes)}, H >= {every}, 2], got {list(controls.shape)}"
                )
            plans.append(controls)
        simulator.step(plans[-1][:, t % every])
    return simulator.record(np.stack(plans, 1), every)


def logged(scenes: Sequence[Scene], *, steps: int = HORIZON) -> Drive:
    """The logs themselves as if they had been driven, for figures of the human or the expert.

    Raises:
        SceneError: as `Simulator`, or the ego's log has a gap.
    """
    size, _ = _boxes(scenes, steps)
    state = np.full((len(scenes), steps + 1, size.shape[1], 4), np.nan)
    valid = np.zeros(state.shape[:3], np.bool_)
    for n, scene in enumerate(scenes):
        cut = slice(scene.now, scene.now + steps + 1)
        if not scene.valid[0, cut].all():
            gap = scene.now + int(np.argmin(scene.valid[0, cut]))
            raise SceneError(f"scene {scene.id!r}: the ego's log has a gap at step {gap}")
        valid[n, :, : scene.actors] = scene.valid[:, cut].T
        state[n, :, : scene.actors] = scene.state[:, cut].transpose(1, 0, 2)
    state[~valid] = np.nan
    control, plans = np.zeros((len(scenes), 0, 2)), np.zeros((len(scenes), 0, 0, 2))
    return Drive(tuple(scenes), state, valid, size, control, plans, 1)
