"""Held-out evaluation: greedy and sampled accuracy, pass@k, intervals, and samples to read.

The score is a `RewardTerm` of its own, made for the evaluation; it is never the training reward (it may be
the same verifier, configured strictly). A problem is passed where it gives at least `pass_at`.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

from outdo.core.protocols import Report
from outdo.core.rewards import RewardTerm, score_term
from outdo.core.statistics import Interval, cluster_rate_interval, pass_at_k, wilson_interval
from outdo.language.data import Item
from outdo.language.demonstrations import Demonstrate
from outdo.language.environment import stream_key
from outdo.language.protocol import LanguagePolicy, encode_prompt, prompt_text
from outdo.language.rollouts import reward_columns
from outdo.language.sampling import Completion, Sampling, StopReason

PROMPTS_AT_ONCE = 64
"""Prompts handed to the policy in one call."""


@dataclass(frozen=True, slots=True)
class HeldOut:
    """Evaluates a policy on held-out `items`; implements `Evaluator`.

    | field | meaning |
    |---|---|
    | `items` | held-out problems |
    | `scorer` | says whether an answer is right; not the training reward |
    | `sampling` | temperature, top-k, top-p of the sampled answers, token budget of all |
    | `samples` | sampled answers a problem; 0: greedy only |
    | `pass_at` | score from which an answer counts as right |
    | `shown` | problems whose answers are given to read |
    | `seed` | names the random streams of the sampled answers: the same at every evaluation |

    Metrics: `greedy/accuracy`, `/low`, `/high` (Wilson, 95 %), `/length`, `/truncated` (share), `/unscored`
    (count: the scorer gave None; they count as wrong); likewise `sampled/…` with intervals that count
    problems, not answers, and `sampled/pass@k` with `/low` and `/high` for k = 2, 4, … and `samples`.
    """

    items: Sequence[Item]
    scorer: RewardTerm
    sampling: Sampling = field(default_factory=Sampling)
    samples: int = 0
    pass_at: float = 1.0
    shown: int = 10
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse an evaluation that could say nothing."""
        if len(self.items) < 2:
            raise ValueError(f"an evaluation needs at least two problems, got {len(self.items)}")
        if self.samples < 0:
            raise ValueError(f"samples must be at least 0, got {self.samples}")
        if self.samples and self.sampling.greedy:
            raise ValueError("sampled answers need a temperature above 0")

    def __call__(self, policy: LanguagePolicy) -> Report:
        """Answer and score every problem.

        Raises:
            RewardError: the scorer failed.
            DataError: a prompt is longer than the context.
        """
        greedy = self._answers(policy, Sampling(temperature=0.0, max_tokens=self.sampling.max_tokens), 1)
        right = [answers[0].right for answers in greedy]
        metrics = {
            **_named("greedy/accuracy", wilson_interval(sum(right), len(right))),
            **_shape("greedy", greedy),
        }
        sampled: list[list[_Answer]] = [[] for _ in self.items]
        if self.samples:
            sampled = self._answers(policy, self.sampling, self.samples)
            metrics |= {
                **sampled_metrics([[a.right for a in answers] for answers in sampled]),
                **_shape("sampled", sampled),
            }
        shown = [
            {
                "prompt": prompt_text(item),
                "answer": item.get("answer"),
                "greedy": once[0].text,
                "right": once[0].right,
                **(
                    {"sampled": several[0].text, "sampled_right": fmean(a.right for a in several)}
                    if several
                    else {}
                ),
            }
            for item, once, several in zip(self.items[: self.shown], greedy, sampled, strict=False)
        ]
        return Report(metrics, shown)

    def _answers(self, policy: LanguagePolicy, sampling: Sampling, copies: int) -> list[list[_Answer]]:
        """`copies` scored answers for every problem."""
        key = stream_key(self.seed, "evaluation")
        completions: list[list[Completion]] = []
        for first in range(0, len(self.items), PROMPTS_AT_ONCE):
            piece = self.items[first : first + PROMPTS_AT_ONCE]
            streams = [(key, first + i) for i in range(len(piece))]
            completions += policy.generate(
                [encode_prompt(policy, item) for item in piece], copies, sampling, streams
            )
        texts = [[policy.decode(c.tokens) for c in answers] for answers in completions]
        ids = [[c.tokens for c in answers] for answers in completions]
        values = iter(_scores(self.items, self.scorer, texts, ids))
        return [
            [_Answer(text, c, next(values), self.pass_at) for text, c in zip(said, answers, strict=True)]
            for said, answers in zip(texts, completions, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class _Answer:
    text: str
    completion: Completion
    score: float | None
    pass_at: float

    @property
    def right(self) -> bool:
        return self.score is not None and self.score >= self.pass_at


def sampled_metrics(right: Sequence[Sequence[bool]]) -> dict[str, float]:
    """Accuracy and pass@k, with intervals over problems, from which of each problem's answers are right."""
    metrics = _named("sampled/accuracy", cluster_rate_interval(right))
    samples = len(right[0])
    ks = {2**i for i in range(1, samples.bit_length()) if 2**i <= samples} | ({samples} - {1})
    for k in sorted(ks):
        passed = [[pass_at_k(samples, sum(answers), k)] for answers in right]
        metrics |= _named(f"sampled/pass@{k}", cluster_rate_interval(passed))
    return metrics


def score_demonstrations(
    items: Sequence[Item],
    demonstrate: Demonstrate,
    scorer: RewardTerm,
    seed: int,
    repeats: int = 8,
    pass_at: float = 1.0,
) -> Report:
    """How right demonstrations are on `items`: `demonstrations/accuracy`, with an interval over problems.

    Raises:
        RewardError: the scorer failed.
    """
    texts = [
        [demonstrate(item, random.Random(f"{seed}/scored-demonstration/{i}/{j}")) for j in range(repeats)]
        for i, item in enumerate(items)
    ]
    values = _scores(items, scorer, texts, [[[] for _ in said] for said in texts])
    right = [value is not None and value >= pass_at for value in values]
    clusters = [right[i * repeats : (i + 1) * repeats] for i in range(len(items))]
    return Report(_named("demonstrations/accuracy", cluster_rate_interval(clusters)))


def _scores(
    items: Sequence[Item],
    scorer: RewardTerm,
    texts: Sequence[Sequence[str]],
    ids: Sequence[Sequence[list[int]]],
) -> list[float | None]:
    repeated = [item for item, said in zip(items, texts, strict=True) for _ in said]
    flat = [text for said in texts for text in said]
    columns = reward_columns(repeated, flat, [tokens for several in ids for tokens in several])
    return score_term(scorer, columns, len(flat))[0]


def _named(name: str, interval: Interval) -> dict[str, float]:
    place = name.removesuffix("/accuracy")
    return {name: interval.value, f"{place}/low": interval.low, f"{place}/high": interval.high}


def _shape(name: str, answers: Sequence[Sequence[_Answer]]) -> dict[str, float]:
    flat = [answer for several in answers for answer in several]
    return {
        f"{name}/length": fmean(len(a.completion.tokens) for a in flat),
        f"{name}/truncated": fmean(a.completion.stop is StopReason.LENGTH for a in flat),
        f"{name}/unscored": float(sum(a.score is None for a in flat)),
    }
