"""Closed-loop evaluation of a driving policy, with the expert, demonstrations and logs as rows beside it.

Nothing here is the training reward: what happens is measured on drives in which the policy replans from where it
got to (`outdo.driving.metrics`). Axes: S scenes, H steps of a plan, K plans sampled for one scene.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outdo.core.protocols import Report
from outdo.core.statistics import Interval
from outdo.driving import dynamics, expert, metrics, rewards
from outdo.driving.meta_actions import meta_actions
from outdo.driving.outcomes import Reference, outcomes_together
from outdo.driving.planning import Answering, PolicyPlanner, greedy, without_plan
from outdo.driving.scene import HORIZON, Scene
from outdo.driving.simulator import Drive, Simulator, drive, logged
from outdo.driving.tokens import Answer
from outdo.language.sampling import Sampling

Floats = NDArray[np.float64]
Figures = dict[str, Floats]

HEADLINE = (
    *(f"drive/{name}" for name in ("close_encounter", "at_fault", "off_road", "ep", "pdms")),
    *(f"plan/{name}" for name in ("ade", "quality", "consistency")),
)
"""What an evaluation says in a line."""
PLAN_RATES = ("consistency", "malformed", "close_encounter")


@dataclass(frozen=True, eq=False)
class ClosedLoop:
    """Drives a policy through `scenes`; implements `Evaluator`.

    | field | meaning |
    |---|---|
    | `scenes` | held-out scenes, each driven for 6.4 s from its `now` |
    | `every` | steps between two plans: 1 to 5, 10 to 2 Hz |
    | `reactive` | other vehicles react to the ego; else they are replayed |
    | `temperature` | of the plans that are driven; 0: the most likely ones |
    | `samples` | plans sampled at `now` for `plan/min_ade`, at temperature 1; 0: none |
    | `shown` | scenes that are given to read, each with its `figures`: the metrics of that scene alone |
    | `at_once` | scenes that are driven together: a matter of memory |
    | `seed` | names the random streams of what is sampled: the same at every evaluation |

    Metrics, each with `/low` and `/high` (95 %: Wilson's interval for shares, the normal one for means), over the
    scenes that are not at fault themselves: `drive/…` for each figure of `outdo.driving.metrics.evaluate`, for
    `fallback` (share of plans without a trajectory, see `PolicyPlanner`) and `faulty` (share of scenes left out);
    and of the plan made at `now`, driven to its end without another, against the flawless expert who
    starts from the same state: `plan/ade` m (mean distance over 6.4 s), `plan/min_ade`, `plan/quality` (0 to 5, the
    rules of `outdo.driving.critic`), `plan/consistency`, `plan/close_encounter`, `plan/malformed` (share with any
    fault of format). An answer without a trajectory has quality and consistency 0, and the rest from what is
    driven in its stead. `drive/scenes` is their number.
    """

    scenes: Sequence[Scene]
    every: int = 5
    reactive: bool = True
    temperature: float = 0.0
    samples: int = 0
    shown: int = 5
    at_once: int = 100
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse an evaluation that could say nothing."""
        if len(self.scenes) < 2:
            raise ValueError(f"an evaluation needs at least 2 scenes for an interval, got {len(self.scenes)}")
        if not 1 <= self.every <= 5:
            raise ValueError(f"every must be 1 to 5 steps (10 to 2 Hz), got {self.every}")
        if self.samples < 0 or self.at_once < 1 or self.temperature < 0:
            raise ValueError(
                f"need samples >= 0, at_once >= 1 and temperature >= 0, got {self.samples}, {self.at_once}, "
                f"{self.temperature}"
            )

    def __call__(self, policy: Answering) -> Report:
        """Drive all scenes; the same policy gives the same report.

        Raises:
            ValueError: all scenes are at fault themselves.
        """
        sampling = replace(greedy(policy.vocabulary), temperature=self.temperature)
        figures: list[tuple[Figures, Figures]] = []
        samples: list[dict[str, Any]] = []
        for first, scenes in self._pieces():
            planner = PolicyPlanner(policy, sampling=sampling, seed=self.seed, first=first)
            record = drive(scenes, planner, every=self.every, reactive=self.reactive)
            driven = self._driven(record, first) | {"fallback": planner.fallback / record.plans.shape[1]}
            said = [answers[0] for answers in planner.answers]
            planned = self._planned(scenes, said, record.plans[:, 0], first)
            if self.samples:
                planned["min_ade"] = self._min_ade(policy, scenes, first)
            figures.append((driven, planned))
            samples += self._samples(record, said, driven, planned, first)
        return self._report(figures, samples)

    def expert_figures(self, flaws: expert.Flaws = expert.NO_FLAWS, seed: int = 0) -> Report:
        """The same figures of the expert, by default without flaws: what demonstrations score.

        It decides at each step, not by plans: `plan/…` are those of what it drives.
        """
        demos = expert.demonstrate(self.scenes, seed, flaws=flaws, reactive=self.reactive)
        figures: list[tuple[Figures, Figures]] = []
        samples: list[dict[str, Any]] = []
        for first, scenes in self._pieces():
            piece = demos[first : first + len(scenes)]
            control = np.stack([demo.control for demo in piece])
            record = drive(scenes, _steps(control), every=1, reactive=self.reactive)
            driven = self._driven(record, first)
            said = [Answer(str(demo.trace), demo.trace, demo.control) for demo in piece]
            planned = self._planned(scenes, said, control, first)
            figures.append((driven, planned))
            samples += self._samples(record, said, driven, planned, first)
        return self._report(figures, samples)

    def log_figures(self) -> Report:
        """`drive/…` of the logs themselves: the human, or in generated scenes the expert who drove them.

        Raises:
            SceneError: the ego's log has a gap.
        """
        return self._report([(self._driven(logged(self.scenes), 0), {})], [])

    @cached_property
    def _truth(self) -> list[Reference]:
        """What the flawless expert does and says from each `now` on."""
        record, traces = expert.run(self.scenes, reactive=self.reactive)
        return [Reference(path, trace) for path, trace in zip(record.state[:, :, 0], traces, strict=True)]

    @cached_property
    def _human(self) -> Figures:
        """Terms of the logs, against which progress and EPDMS are measured."""
        return metrics.terms(logged(self.scenes))

    def _pieces(self) -> Iterator[tuple[int, Sequence[Scene]]]:
        for first in range(0, len(self.scenes), self.at_once):
            yield first, self.scenes[first : first + self.at_once]

    def _driven(self, record: Drive, first: int) -> Figures:
        """Figures of a drive of the scenes from `first` on."""
        cut = slice(first, first + len(record.scenes))
        return metrics.evaluate(record, {name: values[cut] for name, values in self._human.items()})

    def _planned(self, scenes: Sequence[Scene], said: Sequence[Answer], plans: Floats, first: int) -> Figures:
        """Figures of the answers at `now` of the scenes from `first` on, and of the `plans` [S, H, 2] driven."""
        groups = [
            [replace(answer, control=plan, faults=())] for answer, plan in zip(said, plans, strict=True)
        ]
        truth = self._truth[first : first + len(scenes)]
        driven = outcomes_together(scenes, groups, truth, reactive=self.reactive)
        outcomes = [outcome for (outcome,) in driven]
        whole = np.array([answer.control is not None for answer in said])
        paths = np.stack([outcome.path for outcome in outcomes if outcome.path is not None])
        expert_paths = np.stack([one.path for one in truth])
        close = [o.measures.close.any() for o in outcomes if o.measures is not None]
        return {
            "ade": metrics.min_ade(paths[:, None, 1:], expert_paths[:, 1:]),
            "quality": np.where(whole, rewards.quality(outcomes), 0.0),
            "consistency": np.where(whole, rewards.consistency(outcomes), 0.0),
            "close_encounter": np.array(close, np.float64),
            "malformed": np.array([bool(answer.faults) for answer in said], np.float64),
        }

    def _samples(
        self, record: Drive, said: Sequence[Answer], driven: Figures, planned: Figures, first: int
    ) -> list[dict[str, Any]]:
        """Those of the scenes from `first` on that are among the first `shown`."""
        scenes = range(len(record.scenes))[: max(self.shown - first, 0)]
        return [_sample(record, n, said[n].text, driven, planned, self._truth[first + n]) for n in scenes]

    def _min_ade(self, policy: Answering, scenes: Sequence[Scene], first: int) -> Floats:
        """Distance [S] in m of the nearest of the sampled plans from the expert's path."""
        sampling = Sampling(max_tokens=policy.vocabulary.longest)
        streams = [(self.seed, first + n, 0) for n in range(len(scenes))]
        seen = Simulator(scenes, reactive=self.reactive).observe()
        written = policy.answers(seen, self.samples, sampling, streams)
        start = np.stack([scene.state[0, scene.now] for scene in scenes])
        plans = np.empty((len(scenes), self.samples, HORIZON, 2))
        for n, (scene, completions) in enumerate(zip(scenes, written, strict=True)):
            for k, completion in enumerate(completions):
                control = policy.vocabulary.read(completion.tokens).control
                plans[n, k] = without_plan(scene, start[n], np.zeros((0, 2))) if control is None else control
        paths = dynamics.rollout(np.repeat(start[:, None], self.samples, 1), plans)
        truth = np.stack([one.path for one in self._truth[first : first + len(scenes)]])
        return metrics.min_ade(paths[:, :, 1:], truth[:, 1:])

    def _report(self, pieces: Sequence[tuple[Figures, Figures]], samples: list[dict[str, Any]]) -> Report:
        driven, planned = (_joined([piece[k] for piece in pieces]) for k in (0, 1))
        result = _named("drive", metrics.summary(driven))
        if planned:
            found = metrics.summary(planned | {"faulty": driven["faulty"]}, rates=PLAN_RATES)
            del found["faulty"]
            result |= _named("plan", found)
        return Report(result | {"drive/scenes": float(len(self.scenes))}, samples, HEADLINE)


def _steps(control: Floats) -> Any:
    """A planner that gives the controls [S, T, 2], one at a time."""
    return lambda simulator: control[:, simulator.t : simulator.t + 1]


def _joined(pieces: Sequence[Figures]) -> Figures:
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def _named(group: str, found: Mapping[str, Interval]) -> dict[str, float]:
    result: dict[str, float] = {}
    for name, interval in found.items():
        place = f"{group}/{name}"
        result |= {place: interval.value, f"{place}/low": interval.low, f"{place}/high": interval.high}
    return result


def _sample(
    record: Drive, n: int, text: str, driven: Figures, planned: Figures, truth: Reference
) -> dict[str, Any]:
    """One scene to read: what was said and done, what the expert would have said, what happened, all figures."""
    figures = {f"drive/{name}": float(values[n]) for name, values in driven.items()}
    figures |= {f"plan/{name}": float(values[n]) for name, values in planned.items()}
    scene, actions = record.scenes[n], meta_actions(record.state[n, :, 0])
    return {
        "scene": scene.id,
        "situation": scene.situation,
        "text": text,
        "expert": str(truth.trace),
        "actions": [str(s.action) for s in (*actions.longitudinal, *actions.lateral)],
        "happened": [name for name in metrics.RATES if driven[name][n]],
        "progress": float(driven["progress"][n]),
        "faults": list(scene.faults),
        "figures": figures,
    }
