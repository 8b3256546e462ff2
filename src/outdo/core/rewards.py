"""Rewards: named weighted terms, each a function of completions and dataset columns.

A reward function is called as users of TRL know it, once for all completions of a step::

    def correct(completions, answer, **columns) -> list[float | None]: ...

It receives, by keyword and only as far as its signature accepts them, `prompts`, `completions`,
`completion_ids`, every dataset column, and the term's own `arguments`; each but the last is a list with one
entry per completion. It may be async. It returns one number per completion; `None` says "not scorable". 0.0
is a reward.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from outdo.core.calls import accepted, call_together, load_object, nearest

Score = float | None


class RewardError(RuntimeError):
    """A reward function failed; the message names the function, the row and what it did."""


class NoSignalWarning(UserWarning):
    """Every completion of a step got the same reward, so that the step teaches nothing."""


@dataclass(frozen=True, slots=True)
class RewardTerm:
    """One named, weighted part of the reward.

    `arguments` are passed to the function on every call; `time_limit` is in seconds a call, `on_error` says
    what a failure does. A call that raises or runs out of time is made again row by row, all rows at once
    in threads, so that only the rows at fault are reported: a function must not count its calls.
    """

    name: str
    function: Callable[..., Any]
    weight: float = 1.0
    arguments: Mapping[str, Any] = field(default_factory=dict[str, Any])
    time_limit: float = 60.0
    on_error: Literal["stop", "skip"] = "stop"

    def __post_init__(self) -> None:
        """Refuse settings that are no such thing, and arguments the function does not take."""
        if not math.isfinite(self.weight):
            raise ValueError(f"reward {self.name!r}: weight must be finite, got {self.weight}")
        if not 0 < self.time_limit < 1e6:
            raise ValueError(f"reward {self.name!r}: time_limit must be in (0, 1e6) s, got {self.time_limit}")
        if self.on_error not in ("stop", "skip"):
            raise ValueError(
                f"reward {self.name!r}: on_error must be 'stop' or 'skip', got {self.on_error!r}"
            )
        parameters = inspect.signature(self.function).parameters
        if any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
            return
        for key in self.arguments:
            if key not in parameters:
                raise ValueError(
                    f"reward {self.name!r}: its function takes no {key!r}; {nearest(key, parameters)}"
                )

    @classmethod
    def load(cls, name: str, function: str, **settings: Any) -> RewardTerm:
        """The term whose function is written 'module:function'; `settings` are the other fields.

        Raises:
            ValueError: no such function, or settings that cannot be.
        """
        return cls(name, load_object(function), **settings)

    @property
    def label(self) -> str:
        """How messages name the term: its name and its function."""
        module = getattr(self.function, "__module__", "?")
        return f"reward {self.name!r} ({module}:{getattr(self.function, '__name__', repr(self.function))})"


@dataclass(frozen=True, slots=True)
class Failure:
    """One row that a term could not score, and why."""

    term: str
    row: int
    reason: str


@dataclass(frozen=True, slots=True)
class Rewards:
    """Raw `terms` by name, their weighted `total` per row (None: left out), and the skipped failures."""

    total: list[Score]
    terms: dict[str, list[Score]]
    failures: tuple[Failure, ...] = ()


def score(
    terms: Sequence[RewardTerm],
    rows: Mapping[str, Sequence[Any]],
    groups: Sequence[int],
) -> Rewards:
    """Call every term on `rows` (column name → one entry per completion) and add up.

    `rows` holds `prompts`, `completions`, `completion_ids` and the dataset columns; `groups` is the group
    of each row.

    Raises:
        RewardError: a term failed and `on_error` is "stop", or it returned something that is no list of
            that length. ValueError: a function asks for a column that is not there.
    """
    values: dict[str, list[Score]] = {}
    failures: list[Failure] = []
    for term in terms:
        values[term.name], failed = score_term(term, rows, len(groups))
        failures += failed
    weights = {term.name: term.weight for term in terms}
    total = weighted_sum(values, weights, groups)
    for failure in failures:
        if weights[failure.term] != 0:
            total[failure.row] = None
    _warn_without_signal(total)
    return Rewards(total, values, tuple(failures))


def weighted_sum(
    terms: Mapping[str, Sequence[Score]], weights: Mapping[str, float], groups: Sequence[int]
) -> list[Score]:
    """total_i = Σ_k w_k r_ki over the terms that apply to the group of row i; None: not scorable.

    A term that is None for a whole group does not apply to it (a data set may mix tasks, each with its own
    reward). A row that is None where the term applies, or to which no term applies, has no total: rewards
    within a group would not be comparable. Terms of weight 0 are for the log and decide nothing.
    """
    weighted = [name for name in terms if weights[name] != 0]
    applies = {
        (name, group)
        for name in weighted
        for group, value in zip(groups, terms[name], strict=True)
        if value is not None
    }
    total: list[Score] = []
    for row, group in enumerate(groups):
        parts = [(weights[name], terms[name][row]) for name in weighted if (name, group) in applies]
        known = [weight * value for weight, value in parts if value is not None]
        total.append(math.fsum(known) if known and len(known) == len(parts) else None)
    return total


def score_term(
    term: RewardTerm, rows: Mapping[str, Sequence[Any]], count: int
) -> tuple[list[Score], list[Failure]]:
    """The raw values of one term, `count` of them, and the rows it failed on (if `on_error` is "skip").

    Raises:
        RewardError: as `score`.
    """
    columns = accepted(term.function, {**rows, **term.arguments}, term.label)

    def call(at: slice) -> Any:
        return term.function(**{k: v if k in term.arguments else list(v)[at] for k, v in columns.items()})

    outcome = call_together([partial(call, slice(None))], term.time_limit)[0]
    if isinstance(outcome, BaseException):
        pieces = call_together([partial(call, slice(i, i + 1)) for i in range(count)], term.time_limit)
        raw = [p if isinstance(p, BaseException) else _list(p, 1, term)[0] for p in pieces]
    else:
        raw = _list(outcome, count, term)
    values: list[Score] = []
    failures: list[Failure] = []
    for row, item in enumerate(raw):
        value, problem = _number(item)
        if problem is not None and term.on_error == "stop":
            cause = item if isinstance(item, BaseException) else None
            raise RewardError(
                f"{term.label} failed on row {row}: {problem}; completion: {_shown(rows, row)}. "
                "Return None for what cannot be scored, or set on_error = 'skip' to leave such rows out"
            ) from cause
        values.append(value)
        if problem is not None:
            failures.append(Failure(term.name, row, problem))
    return values, failures


def _list(result: Any, count: int, term: RewardTerm) -> list[Any]:
    """The returned values as a list of `count`: a list, tuple, array or tensor."""
    if hasattr(result, "tolist"):
        result = result.tolist()
    if not isinstance(result, list | tuple):
        raise RewardError(
            f"{term.label} must return a list of {count} numbers, got {type(result).__name__}: {result!r:.80}"
        )
    if len(result) != count:
        raise RewardError(f"{term.label} returned {len(result)} values for {count} completions")
    return list(result)


def _number(item: Any) -> tuple[Score, str | None]:
    """A returned value as a float or None, else what is wrong with it."""
    if isinstance(item, BaseException):
        return None, f"{type(item).__name__}: {item}"
    if item is None:
        return None, None
    if hasattr(item, "item"):
        item = item.item()
    if not isinstance(item, int | float):
        return None, f"returned {type(item).__name__} {item!r:.80}, not a number"
    return (float(item), None) if math.isfinite(item) else (None, f"returned {item}")


def _shown(rows: Mapping[str, Sequence[Any]], row: int) -> str:
    completions = rows.get("completions")
    return repr(completions[row])[:200] if completions else "unknown"


def _warn_without_signal(total: Sequence[Score]) -> None:
    known = {value for value in total if value is not None}
    if len(total) > 1 and len(known) <= 1:
        said = f"the same reward, {known.pop():g}" if known else "no reward at all"
        warnings.warn(
            f"no signal: all {len(total)} completions got {said}; these teach nothing. If it goes on, "
            "read some rollouts: the reward must be within reach, and not always reached",
            NoSignalWarning,
            stacklevel=3,
        )
