"""Rewards that check an answer: exact text, regular expression, JSON, number, mathematics, length.

Each is a reward function as `outdo.core.rewards` calls them, usable in a recipe as
'outdo.language.verifiers:number'; its keyword settings are the term's `arguments`. All return 1.0 for right
and 0.0 for wrong unless they say otherwise. The text of a completion is hostile: what could hang on it runs
in another process with a time limit of its own (`limit` seconds a completion), and what could not be
checked in time is wrong, with a warning.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from typing import Any

from outdo.language import verify_process

Completions = Sequence[str] | Sequence[Sequence[Mapping[str, Any]]]

_DIGITS = r"(?:(?:[0-9]{1,3}(?:,[0-9]{3})+|[0-9]{1,60})(?:\.[0-9]{1,60})?|(?<![0-9])\.[0-9]{1,60})"
_ONE_NUMBER = re.compile(rf"\$?([+-]?{_DIGITS})\.?")
_LAST_NUMBER = re.compile(rf"(?:(?<![0-9.])[+-])?{_DIGITS}")


def completion_text(completion: str | Sequence[Mapping[str, Any]]) -> str:
    """The text of a completion: itself, or its last message's content if the prompt is a chat, as in TRL."""
    return completion if isinstance(completion, str) else str(completion[-1]["content"])


def final_answer(text: str, marker: str | None) -> str | None:
    """What follows the last `marker` in `text`, stripped; None if absent; the whole text if `marker` is None.

    Of several answers only the last counts, so listing guesses gains nothing.
    """
    if marker is None:
        return text.strip()
    _, found, answer = text.rpartition(marker)
    return answer.strip() if found else None


def exact(completions: Completions, answer: Sequence[Any], marker: str | None = None) -> list[float]:
    """1 where the final answer equals `answer` as text, outer space aside."""
    return [
        float(final_answer(completion_text(c), marker) == str(a).strip())
        for c, a in zip(completions, answer, strict=True)
    ]


def parse_number(text: str) -> Decimal | None:
    """The number that `text` is, thousands commas and a final full stop allowed; None if anything else."""
    match = _ONE_NUMBER.fullmatch(text.strip().replace("−", "-"))
    return Decimal(match.group(1).replace(",", "")) if match else None


def last_number(text: str) -> Decimal | None:
    """The last number in `text`; a sign belongs to it unless a digit stands before (`5-3` ends in 3)."""
    found = _LAST_NUMBER.findall(text.replace("−", "-"))
    return Decimal(found[-1].replace(",", "")) if found else None


def number(
    completions: Completions,
    answer: Sequence[Any],
    marker: str = "Answer:",
    lenient: bool = False,
    tolerance: float = 0.0,
) -> list[float]:
    """1 where |stated − answer| <= tolerance, in exact decimal arithmetic.

    Strict: what follows the last `marker` is one number and nothing else. Lenient: the last number of the
    text, wherever it stands.

    Raises:
        ValueError: an `answer` of the data set is no number.
    """
    scores: list[float] = []
    for completion, expected in zip(completions, answer, strict=True):
        text = completion_text(completion)
        final = final_answer(text, marker)
        stated = last_number(text) if lenient else None if final is None else parse_number(final)
        difference = None if stated is None else abs(stated - _expected_number(expected))
        scores.append(float(difference is not None and difference <= Decimal(str(tolerance))))
    return scores


def _expected_number(answer: Any) -> Decimal:
    try:
        value = Decimal(str(answer).replace(",", "").strip())
    except InvalidOperation:
        raise ValueError(
            f"the expected answer {answer!r} is not a number; use another verifier for it"
        ) from None
    if not value.is_finite():
        raise ValueError(f"the expected answer {answer!r} is not a finite number")
    return value


def regex(
    completions: Completions,
    pattern: str | Sequence[str],
    answer: Sequence[Any] | None = None,
    full: bool = False,
    compare: bool = False,
    limit: float = 2.0,
) -> list[float]:
    """1 where `pattern` (an argument, or a column) is found in the text, or is all of it with `full`.

    With `compare` the first group of the match, or the match if there is no group, must equal `answer` too.

    Raises:
        WorkerError: the pattern is no regular expression.
        ValueError: `compare` without a column `answer`.
    """
    if compare and answer is None:
        raise ValueError("regex with compare = true needs a column 'answer'")
    scores: list[float] = []
    for row, completion in enumerate(completions):
        expression = pattern if isinstance(pattern, str) else pattern[row]
        found = verify_process.run("regex", expression, completion_text(completion), full, limit=limit)
        right = found is not None and (
            not compare or answer is None or found[0].strip() == str(answer[row]).strip()
        )
        scores.append(float(right))
    return scores


def json_object(
    completions: Completions,
    answer: Sequence[Any] | None = None,
    keys: Sequence[str] | None = None,
    compare: bool = True,
) -> list[float]:
    """1 where the text (or its one ```json block) is JSON, has `keys`, and equals `answer` in them.

    `answer` (a value, or JSON text of it) is compared whole, or only in `keys` where these are given; 1
    equals 1.0 but not true. Without `answer`, or without `compare`, the form alone is checked. NaN and
    Infinity are no JSON.

    Raises:
        ValueError: an `answer` given as text is not JSON.
    """
    return [
        float(_json_right(completion_text(c), None if answer is None or not compare else [answer[row]], keys))
        for row, c in enumerate(completions)
    ]


def _json_right(text: str, expected: list[Any] | None, keys: Sequence[str] | None) -> bool:
    blocks = re.findall(r"```(?:json)?\n(.*?)```", text, re.DOTALL)
    try:
        value = json.loads(blocks[0] if len(blocks) == 1 else text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        return False
    if keys is not None and not (isinstance(value, dict) and all(key in value for key in keys)):
        return False
    if expected is None:
        return True
    wanted = json.loads(expected[0]) if isinstance(expected[0], str) else expected[0]
    if keys is None:
        return _same_json(value, wanted)
    return all(_same_json(value[key], wanted[key]) for key in keys)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _same_json(a: Any, b: Any) -> bool:
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same_json(a[key], b[key]) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(_same_json, a, b))
    return isinstance(a, bool) == isinstance(b, bool) and a == b


def math(completions: Completions, answer: Sequence[Any], limit: float = 3.0) -> list[float]:
    """1 where math-verify finds the text's answer (boxed, LaTeX or plain) equal to `answer` (LaTeX or plain).

    Raises:
        WorkerError: math-verify cannot read an `answer` of the data set.
    """
    return [
        float(bool(verify_process.run("math", str(a), completion_text(c), limit=limit)))
        for c, a in zip(completions, answer, strict=True)
    ]


def reasoning_gym(
    completions: Completions,
    question: Sequence[str],
    answer: Sequence[Any],
    metadata: Sequence[Mapping[str, Any]],
    marker: str | None = "Answer:",
    limit: float = 3.0,
) -> list[float]:
    """The score, from 0 to 1, that the item's own reasoning-gym data set gives the final answer."""
    scores: list[float] = []
    for completion, q, a, m in zip(completions, question, answer, metadata, strict=True):
        final = final_answer(completion_text(completion), marker)
        entry = {"question": q, "answer": a, "metadata": dict(m)}
        scores.append(verify_process.run("reasoning_gym", final, entry, limit=limit) or 0.0)
    return scores


def soft_length(completion_ids: Sequence[Sequence[int]], maximum: int, buffer: int) -> list[float]:
    """0 up to maximum − buffer tokens, then falling in a straight line to −1 at `maximum` and beyond.

    r = clip((maximum − buffer − n) / buffer, −1, 0). DAPO, arXiv 2503.14476, equation 13.

    Raises:
        ValueError: not 1 <= buffer <= maximum.
    """
    if not 1 <= buffer <= maximum:
        raise ValueError(f"soft_length needs 1 <= buffer <= maximum, got buffer {buffer}, maximum {maximum}")
    return [max(-1.0, min(0.0, (maximum - buffer - len(ids)) / buffer)) for ids in completion_ids]
