"""The environments of driving: answers to scenes with rewards, and demonstrations to clone."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal, get_args

import numpy as np

from outdo.core.batch import Batch
from outdo.core.rewards import RewardError, Rewards, RewardTerm, score
from outdo.driving.demonstrations import Examples, select
from outdo.driving.encoder import SceneObs
from outdo.driving.observation import Observation
from outdo.driving.outcomes import Outcome, Reference, outcomes_together
from outdo.driving.policy import DrivingPolicy
from outdo.driving.scene import Scene
from outdo.driving.selection import SceneChoice, divergence
from outdo.driving.simulator import Simulator
from outdo.driving.tokens import count_faults
from outdo.driving.visited import visited
from outdo.language.data import Stream
from outdo.language.environment import stream_key
from outdo.language.rollouts import Row, pack_rows, sampled_figures, with_values
from outdo.language.sampling import Completion, Sampling, StopReason

logger = logging.getLogger(__name__)


def _batch(rows: Sequence[Row], sampling: Sampling, gamma: float, seen: Observation) -> Batch:
    """The rows as a batch whose prompts name places of the scenes in `seen`."""
    batch = pack_rows(rows, sampling, gamma)
    return batch.with_(obs=SceneObs(batch.obs.prompts, sampling, seen))


class DrivingDemonstrations:
    """Demonstrations to clone; implements `Environment`. The position in the shuffled scenes is the only state.

    The actions are the tokens of the answer that the demonstration is, trace and trajectory. `logp` and `reward` are
    0 and each row is its own group.
    """

    def __init__(self, examples: Examples, batch: int = 32, seed: int = 0) -> None:
        if batch < 1:
            raise ValueError(f"batch must be at least 1, got {batch}")
        self._examples, self._batch = examples, batch
        self._stream = Stream(len(examples), seed, "demonstrations")
        self._position = 0
        self._metrics: dict[str, float] = {}

    def collect(self, policy: DrivingPolicy, step: int) -> Batch:
        """The next `batch` demonstrations."""
        indices = self._stream.take(self._position, self._batch)
        seen = select(self._examples.seen, indices)
        shown = [self._examples.shown[index] for index in indices]
        speeds, controls = np.array([each.states[0, 3] for each in shown]), [each.control for each in shown]
        tokens = policy.vocabulary.code.encode(speeds, np.stack(controls))
        rows: list[Row] = []
        for n, prompt in enumerate(policy.prompts(seen)):
            ids = policy.vocabulary.write(shown[n].trace, tokens[n].tolist())
            info = {
                "scene": shown[n].scene.id,
                "situation": shown[n].scene.situation,
                "text": str(shown[n].trace),
                "flaws": list(shown[n].flaws),
            }
            completion = Completion(ids, [0.0] * len(ids), StopReason.STOP)
            rows.append(Row(prompt, completion, 0.0, self._position + n, keep=True, info=info))
        self._position += self._batch
        lengths = [len(row.completion.tokens) for row in rows]
        self._metrics = {
            "length": fmean(lengths),
            "flawed": fmean(bool(each.flaws) for each in shown),
        }
        return _batch(rows, Sampling(max_tokens=max(lengths)), 1.0, seen)

    def metrics(self) -> dict[str, float]:
        """Mean length of the last demonstrations, and the share of them that has a flaw."""
        return dict(self._metrics)

    def state_dict(self) -> dict[str, Any]:
        """The position in the scenes."""
        return {"position": self._position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Undo `state_dict`."""
        self._position = int(state["position"])


@dataclass(frozen=True, slots=True)
class DrivingSettings:
    """How a step's answers are sampled, and for which scenes.

    | field | meaning |
    |---|---|
    | `scenes`, `group` | scene states a step, answers a state |
    | `temperature` | of the sampling |
    | `max_tokens` | longest answer; 0: the longest that is well-formed |
    | `gamma` | discount per token |
    | `reactive` | whether other vehicles react to an answer, or are replayed |
    | `visited` | share of the scenes whose state is one the policy drives to (`outdo.driving.visited`) |
    | `choose` | "random", or a `share` of the scenes by "disagreement" (`outdo.driving.selection`) |
    | `candidates` | disagreement: measured scenes from which each is chosen |
    | `beta`, `by_length` | disagreement: of `outdo.driving.selection.divergence` |
    | `seed` | names the order of scenes and every answer's random stream |
    """

    scenes: int = 16
    group: int = 8
    temperature: float = 1.0
    max_tokens: int = 0
    gamma: float = 1.0
    reactive: bool = False
    visited: float = 0.0
    choose: Literal["random", "disagreement"] = "random"
    share: float = 0.5
    candidates: int = 4
    beta: float = 1.0
    by_length: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        for name in ("scenes", "group"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.choose not in ("random", "disagreement"):
            raise ValueError(f"choose must be 'random' or 'disagreement', got {self.choose!r}")
        if not 0 <= self.visited <= 1:
            raise ValueError(f"visited must be a share, 0 to 1, got {self.visited}")
        if self.temperature <= 0:
            raise ValueError(f"temperature must be positive, got {self.temperature}")


How = Literal["disagreement", "random", "visited"]
"""How a state was chosen; a visited one is in the scene of a random one."""


@dataclass(frozen=True, slots=True)
class _State:
    """Where a group of answers begins: at the scene's `now`. `index` is the example the scene is of."""

    scene: Scene
    reference: Reference
    how: How
    index: int


@dataclass(slots=True)
class _Step:
    """What one `collect` did, state after state."""

    states: list[_State]
    completions: list[list[Completion]]
    outcomes: list[list[Outcome]]
    rewards: Rewards
    divergences: list[float] = field(default_factory=list[float])

    def group(self, n: int) -> slice:
        """The rows of scene `n`."""
        size = len(self.completions[n])
        return slice(n * size, (n + 1) * size)


class DrivingEnvironment:
    """Samples answers to scenes, drives and scores them; implements `Environment`.

    Every occurrence of a scene is a group of its own. An answer that is not well-formed earns the floor and is
    counted. Answers that cannot be scored are left out, and a group left with a single row goes too. Nothing but the
    chosen scenes is state: with the same state and policy `collect` gives the same batch.
    """

    def __init__(
        self, examples: Examples, terms: Sequence[RewardTerm], settings: DrivingSettings | None = None
    ) -> None:
        self._examples, self._terms = examples, tuple(terms)
        self.settings = settings or DrivingSettings()
        if not any(term.weight for term in self._terms):
            raise ValueError("a driving environment needs at least one reward term with a weight")
        share = self.settings.share if self.settings.choose == "disagreement" else 0.0
        self._choice = SceneChoice(len(examples), self.settings.seed, share, self.settings.candidates)
        self._metrics: dict[str, float] = {}

    def collect(self, policy: DrivingPolicy, step: int) -> Batch:
        """The batch of the next scenes; see `outdo.language.rollouts.pack_rows` for its conventions.

        Raises:
            RewardError: a reward failed, or no answer could be scored.
        """
        settings, first, start = self.settings, self._choice.drawn, time.perf_counter()
        states, seen = self._states(policy)
        found = time.perf_counter()
        longest = settings.max_tokens or policy.vocabulary.longest
        sampling = Sampling(temperature=settings.temperature, max_tokens=longest)
        key = stream_key(settings.seed, "rollouts")
        streams = [(key, first + n) for n in range(settings.scenes)]
        completions = policy.answers(seen, settings.group, sampling, streams)
        generated = time.perf_counter()
        done = self._score(policy, states, completions)
        groups = [self._rows(done, n, prompt, first + n) for n, prompt in enumerate(policy.prompts(seen))]
        kept = [group for group in groups if len(group) >= min(2, settings.group)]
        if not kept:
            raise RewardError(
                f"step {step}: none of {settings.scenes * settings.group} answers could be scored"
            )
        self._metrics = {
            **self._summary(done, kept),
            "time/scenes": found - start,
            "time/generation": generated - found,
            "time/reward": time.perf_counter() - generated,
        }
        batch = _batch([row for group in kept for row in group], sampling, settings.gamma, seen)
        return with_values(batch, policy) if policy.has_critic else batch

    def _states(self, policy: DrivingPolicy) -> tuple[list[_State], Observation]:
        """The next states and what is seen there: those by disagreement first, visited ones last."""
        settings, first = self.settings, self._choice.drawn
        again, fresh = self._choice.choose(settings.scenes)
        chosen = [*again, *fresh]
        states: list[_State] = []
        for n, index in enumerate(chosen):
            how: How = "disagreement" if n < len(again) else "random"
            states.append(_State(self._examples.scene(index), self._examples.references[index], how, index))
        wanted = min(round(settings.visited * settings.scenes), len(fresh))
        if not wanted:
            return states, select(self._examples.seen, chosen)
        key = stream_key(settings.seed, "visited")
        rng = np.random.default_rng([key, first])
        begun = [state.scene for state in states[-wanted:]]
        for n, got in enumerate(visited(policy, begun, rng, seed=key, first=first), len(states) - wanted):
            if got is not None:
                states[n] = _State(*got, "visited", chosen[n])
        return states, Simulator([state.scene for state in states]).observe()

    def _score(
        self, policy: DrivingPolicy, states: list[_State], completions: list[list[Completion]]
    ) -> _Step:
        """Read, drive and score all answers, and measure each state's divergence."""
        answers = [[policy.vocabulary.read(each.tokens) for each in group] for group in completions]
        outcomes = outcomes_together(
            [state.scene for state in states],
            answers,
            [state.reference for state in states],
            reactive=self.settings.reactive,
        )
        flat = [outcome for group in outcomes for outcome in group]
        columns = {"completions": [outcome.answer.text for outcome in flat], "outcomes": flat}
        groups = [n for n, group in enumerate(outcomes) for _ in group]
        rewards = score(self._terms, columns, groups)
        for failure in rewards.failures:
            text = flat[failure.row].answer.text
            logger.warning("reward %r: %s; left out: %.200r", failure.term, failure.reason, text)
        done = _Step(states, completions, outcomes, rewards)
        for n, state in enumerate(states):
            done.divergences.append(self._divergence(completions[n], rewards.total[done.group(n)]))
            if state.how != "visited":
                self._choice.observe(state.index, done.divergences[-1])
        return done

    def _divergence(self, completions: Sequence[Completion], totals: Sequence[float | None]) -> float:
        known = [(each, total) for each, total in zip(completions, totals, strict=True) if total is not None]
        if not known:
            return 0.0
        return divergence(
            [sum(each.logp) for each, _ in known],
            [len(each.tokens) for each, _ in known],
            [total for _, total in known],
            beta=self.settings.beta,
            by_length=self.settings.by_length,
        )

    def _rows(self, done: _Step, n: int, prompt: tuple[int, ...], group: int) -> list[Row]:
        """The rows of scene `n` that have a reward."""
        rows: list[Row] = []
        first = done.group(n).start
        for j, (completion, outcome) in enumerate(zip(done.completions[n], done.outcomes[n], strict=True)):
            total = done.rewards.total[first + j]
            if total is None:
                continue
            info = {
                "scene": outcome.scene.id,
                "situation": outcome.scene.situation,
                "chosen": done.states[n].how,
                "text": outcome.answer.text,
                "expert": None if outcome.reference.trace is None else str(outcome.reference.trace),
                "actions": None if outcome.actions is None else str(outcome.actions),
                "faults": [f"{fault}: {why}" for fault, why in outcome.answer.faults],
                "scene_fault": outcome.scene_fault,
                "reward": total,
                "terms": {name: values[first + j] for name, values in done.rewards.terms.items()},
                "stop": completion.stop.value,
                "group": group,
            }
            rows.append(Row(prompt, completion, total, group, keep=True, info=info))
        return rows

    def _summary(self, done: _Step, kept: Sequence[Sequence[Row]]) -> dict[str, float]:
        """Figures over everything that was sampled."""
        totals = done.rewards.total
        flat = [completion for group in done.completions for completion in group]
        known = {
            name: [value for value in values if value is not None]
            for name, values in done.rewards.terms.items()
        }
        answers = [outcome.answer for group in done.outcomes for outcome in group]
        figures = {
            **sampled_figures(list(zip(flat, totals, strict=True)), known),
            "groups_dropped": float(len(done.states) - len(kept)),
            "malformed": fmean(bool(answer.faults) for answer in answers),
            **{f"fault/{kind}": float(count) for kind, count in count_faults(answers).items()},
            "scene_faults": float(sum(group[0].scene_fault is not None for group in done.outcomes)),
        }
        if self.settings.group > 1:
            figures["groups_without_signal"] = fmean(
                len({row.reward for row in group}) == 1 for group in kept
            )
        for how in get_args(How):
            figures |= _part(how, done, [n for n, state in enumerate(done.states) if state.how == how])
        return figures

    def metrics(self) -> dict[str, float]:
        """Figures of the last `collect`."""
        return dict(self._metrics)

    def state_dict(self) -> dict[str, Any]:
        """Which scenes come next."""
        return {"choice": self._choice.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Undo `state_dict`."""
        self._choice.load_state_dict(state["choice"])


def _part(name: How, done: _Step, scenes: Sequence[int]) -> dict[str, float]:
    """Figures of the states that were chosen in one way: their number, mean reward and divergence, and tokens."""
    totals = [total for n in scenes for total in done.rewards.total[done.group(n)] if total is not None]
    figures = {
        "scenes": float(len(scenes)),
        "generated_tokens": float(sum(len(each.tokens) for n in scenes for each in done.completions[n])),
    }
    if totals:
        figures |= {"reward": fmean(totals), "divergence": fmean(done.divergences[n] for n in scenes)}
    return {f"{name}/{key}": value for key, value in figures.items()}
