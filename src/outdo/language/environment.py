"""The environments of language: completions with rewards, and demonstrations to clone."""

from __future__ import annotations

import hashlib
import logging
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

from outdo.core.batch import Batch
from outdo.core.rewards import RewardError, Rewards, RewardTerm, score
from outdo.language.choice import PromptChoice
from outdo.language.data import DataError, Item, Stream
from outdo.language.demonstrations import Demonstrate
from outdo.language.protocol import LanguagePolicy, encode_prompt, prompt_text
from outdo.language.rollouts import (
    RESERVED,
    Row,
    pack_rows,
    reward_columns,
    sampled_figures,
    with_values,
)
from outdo.language.sampling import Completion, Sampling, StopReason

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """How a step's completions are sampled and what becomes of special ones.

    | field | meaning |
    |---|---|
    | `prompts`, `group` | prompts a step, completions a prompt |
    | `sampling` | temperature, top-k, top-p, token budget |
    | `gamma` | discount per token |
    | `overlong` | answers that ran out of budget are kept, masked or penalised (below) |
    | `penalty` | what "penalise" takes off the reward |
    | `filter_groups`, `max_rounds` | replace groups whose rewards are all equal (below) |
    | `focus` | share of prompts drawn again from those not yet solved, 0 is off |
    | `solved_at` | total reward from which a completion counts as solved; None: the sum of positive weights |
    | `seed` | names the order of prompts and every completion's random stream |

    A masked answer counts in its group's statistics but carries no loss. With `filter_groups` up to
    `max_rounds` times `prompts` prompts are sampled until `prompts` groups have a signal (DAPO, arXiv
    2503.14476, §3.2); if they do not suffice, groups without signal fill the batch up, and what is too many
    is left out.
    """

    prompts: int = 8
    group: int = 8
    sampling: Sampling = field(default_factory=Sampling)
    gamma: float = 1.0
    overlong: Literal["keep", "mask", "penalise"] = "keep"
    penalty: float = 1.0
    filter_groups: bool = False
    max_rounds: int = 4
    focus: float = 0.0
    solved_at: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse what cannot be."""
        for name in ("prompts", "group", "max_rounds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.overlong not in ("keep", "mask", "penalise"):
            raise ValueError(f"overlong must be 'keep', 'mask' or 'penalise', got {self.overlong!r}")
        if self.filter_groups and self.group < 2:
            raise ValueError("filter_groups compares completions of one prompt: it needs group >= 2")


@dataclass(slots=True)
class _Tally:
    """Counts over all rounds of one `collect`."""

    rows: list[tuple[Completion, float | None]] = field(default_factory=list[tuple[Completion, float | None]])
    terms: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    groups: int = 0
    silent: int = 0
    dropped: int = 0
    rounds: int = 0
    generation: float = 0.0
    reward: float = 0.0


class LanguageEnvironment:
    """Samples completions for prompts and scores them; implements `Environment`.

    Every occurrence of a prompt is a group of its own, also when two have the same text. Completions that
    cannot be scored are left out of the batch; a group left with a single row goes too. Nothing but the
    chosen prompts is state: with the same state and policy `collect` gives the same batch.
    """

    def __init__(
        self, items: Sequence[Item], terms: Sequence[RewardTerm], settings: RolloutSettings | None = None
    ) -> None:
        self._items = items
        self._terms = tuple(terms)
        self.settings = settings or RolloutSettings()
        if not self._terms:
            raise ValueError("a language environment needs at least one reward term")
        if len({term.name for term in self._terms}) < len(self._terms):
            raise ValueError("two reward terms have the same name")
        for name in RESERVED:
            if any(name in item for item in items):
                raise DataError(
                    f"the data has a column {name!r}, which reward functions get from the run: rename it"
                )
        self._choice = PromptChoice(len(items), self.settings.seed, self.settings.focus)
        self._metrics: dict[str, float] = {}

    def collect(self, policy: LanguagePolicy, step: int) -> Batch:
        """The batch of the next prompts; see `rollouts.pack_rows` for its conventions.

        Raises:
            RewardError: a reward failed, or no completion could be scored.
            DataError: a prompt is longer than the context.
        """
        settings, tally = self.settings, _Tally()
        telling: list[list[Row]] = []
        silent: list[list[Row]] = []
        for _ in range(settings.max_rounds if settings.filter_groups else 1):
            for group in self._round(policy, tally):
                (telling if len({row.reward for row in group}) > 1 else silent).append(group)
            if len(telling) >= settings.prompts:
                break
        if settings.filter_groups:
            chosen = (telling + silent)[: settings.prompts]
        else:
            chosen = sorted(telling + silent, key=lambda group: group[0].group)
        if not chosen:
            raise RewardError(f"step {step}: none of the {len(tally.rows)} completions could be scored")
        self._metrics = self._summary(tally, used=len(chosen), telling=len(telling))
        batch = pack_rows([row for group in chosen for row in group], settings.sampling, settings.gamma)
        return with_values(batch, policy) if policy.has_critic else batch

    def _round(self, policy: LanguagePolicy, tally: _Tally) -> list[list[Row]]:
        """Sample and score `prompts` prompts: the groups that could be scored."""
        settings, first = self.settings, self._choice.drawn
        chosen = self._choice.choose(settings.prompts)
        items = [self._items[i] for i in chosen]
        prompts = [encode_prompt(policy, item) for item in items]
        start = time.perf_counter()
        key = stream_key(settings.seed, "rollouts")
        streams = [(key, first + i) for i in range(len(items))]
        completions = policy.generate(prompts, settings.group, settings.sampling, streams)
        generated = time.perf_counter()
        texts = [[policy.decode(c.tokens) for c in group] for group in completions]
        rewards = self._score(items, completions, texts, first)
        for failure in rewards.failures:
            text = texts[failure.row // settings.group][failure.row % settings.group]
            logger.warning("reward %r: %s; left out: %.200r", failure.term, failure.reason, text)
        tally.generation += generated - start
        tally.reward += time.perf_counter() - generated
        tally.rounds += 1
        groups: list[list[Row]] = []
        for i, item in enumerate(items):
            at = range(i * settings.group, (i + 1) * settings.group)
            rows = [
                self._row(item, prompts[i], completions[i][j], texts[i][j], rewards, row, first + i)
                for j, row in enumerate(at)
            ]
            tally.rows += [
                (c, None if row is None else row.reward) for c, row in zip(completions[i], rows, strict=True)
            ]
            self._observe(chosen[i], rewards.total[at.start : at.stop])
            kept = [row for row in rows if row is not None]
            if len(kept) >= min(2, settings.group):
                groups.append(kept)
                tally.silent += len({row.reward for row in kept}) == 1
            else:
                tally.dropped += 1
        tally.groups += len(groups)
        for name, values in rewards.terms.items():
            tally.terms.setdefault(name, []).extend(value for value in values if value is not None)
        return groups

    def _score(
        self, items: list[Item], completions: list[list[Completion]], texts: list[list[str]], first: int
    ) -> Rewards:
        """Call the reward terms on all completions, prompt by prompt."""
        repeated = [item for item in items for _ in range(self.settings.group)]
        flat = [text for group in texts for text in group]
        columns = reward_columns(repeated, flat, [c.tokens for group in completions for c in group])
        groups = [first + i for i in range(len(items)) for _ in range(self.settings.group)]
        return score(self._terms, columns, groups)

    def _row(
        self,
        item: Item,
        prompt: tuple[int, ...],
        completion: Completion,
        text: str,
        rewards: Rewards,
        row: int,
        group: int,
    ) -> Row | None:
        """The row of one completion, or None if it has no reward."""
        total = rewards.total[row]
        if total is None:
            return None
        terms: dict[str, float | None] = {name: values[row] for name, values in rewards.terms.items()}
        truncated = completion.stop is StopReason.LENGTH
        if truncated and self.settings.overlong == "penalise":
            terms["overlong"] = -self.settings.penalty
            total -= self.settings.penalty
        info = {
            "prompt": prompt_text(item),
            "completion": text,
            "answer": item.get("answer"),
            "reward": total,
            "terms": terms,
            "stop": completion.stop.value,
            "group": group,
        }
        keep = not (truncated and self.settings.overlong == "mask")
        return Row(prompt, completion, total, group, keep, info)

    def _observe(self, index: int, totals: Sequence[float | None]) -> None:
        known = [total for total in totals if total is not None]
        if known:
            bar = self.settings.solved_at
            if bar is None:
                bar = sum(max(0.0, term.weight) for term in self._terms)
            self._choice.observe(index, sum(total >= bar - 1e-9 for total in known) / len(known))

    def _summary(self, tally: _Tally, used: int, telling: int) -> dict[str, float]:
        """Figures over everything that was sampled, also what was filtered out."""
        figures = {
            **sampled_figures(tally.rows, tally.terms),
            "groups_dropped": float(tally.dropped),
            "time/generation": tally.generation,
            "time/reward": tally.reward,
        }
        if self.settings.group > 1 and tally.groups:
            figures["groups_without_signal"] = tally.silent / tally.groups
        if self.settings.filter_groups:
            figures["filter/rounds"] = float(tally.rounds)
            figures["filter/groups_left_out"] = float(tally.groups - used)
            figures["filter/groups_short"] = float(max(0, self.settings.prompts - telling))
        return figures

    def metrics(self) -> dict[str, float]:
        """Figures of the last `collect`."""
        return dict(self._metrics)

    def state_dict(self) -> dict[str, Any]:
        """Which prompts come next."""
        return {"choice": self._choice.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Undo `state_dict`."""
        self._choice.load_state_dict(state["choice"])


class DemonstrationEnvironment:
    """Demonstrations to clone; implements `Environment`. The position in the data is the only state.

    The answer's tokens, and the policy's first stop token after them, are the actions: the first answer token
    is trained too, prompt tokens are not. `logp` and `reward` are 0 and each row is its own group.
    """

    def __init__(
        self, items: Sequence[Item], demonstrate: Demonstrate, batch: int = 32, seed: int = 0
    ) -> None:
        if batch < 1:
            raise ValueError(f"batch must be at least 1, got {batch}")
        self._items = items
        self._demonstrate = demonstrate
        self._batch = batch
        self._seed = seed
        self._stream = Stream(len(items), seed, "demonstrations")
        self._position = 0
        self._metrics: dict[str, float] = {}

    def collect(self, policy: LanguagePolicy, step: int) -> Batch:
        """The next `batch` demonstrations.

        Raises:
            DataError: a demonstration is empty, or with its prompt longer than the context.
        """
        indices = self._stream.take(self._position, self._batch)
        rows = [self._row(policy, self._items[i], self._position + n) for n, i in enumerate(indices)]
        self._position += self._batch
        longest = max(len(row.completion.tokens) for row in rows)
        self._metrics = {"length": fmean(len(row.completion.tokens) for row in rows)}
        return pack_rows(rows, Sampling(max_tokens=longest), gamma=1.0)

    def _row(self, policy: LanguagePolicy, item: Item, position: int) -> Row:
        text = self._demonstrate(item, random.Random(f"{self._seed}/demonstration/{position}"))
        prompt = encode_prompt(policy, item)
        ids = policy.encode(text)
        if not ids:
            raise DataError(f"the demonstration for {prompt_text(item)!r:.80} is empty")
        tokens = [*ids, policy.stop_tokens[0]]
        if len(prompt) + len(tokens) > policy.context:
            raise DataError(
                f"the prompt {prompt_text(item)!r:.80} and its demonstration have {len(prompt)} + "
                f"{len(tokens)} "
                f"tokens, more than the model's context of {policy.context}"
            )
        info = {"prompt": prompt_text(item), "completion": text, "answer": item.get("answer")}
        completion = Completion(tokens, [0.0] * len(tokens), StopReason.STOP)
        return Row(prompt, completion, 0.0, position, keep=True, info=info)

    def metrics(self) -> dict[str, float]:
        """Mean length of the last demonstrations."""
        return dict(self._metrics)

    def state_dict(self) -> dict[str, Any]:
        """The position in the data."""
        return {"position": self._position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Undo `state_dict`."""
        self._position = int(state["position"])


def stream_key(seed: int, name: str) -> int:
    """A number from 0 to 2^63 − 1 for the random stream `name` of `seed`; other names, other streams."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{name}".encode()).digest()[:8], "big") >> 1
