"""Demonstrations to clone: a function of (item, rng), or a column of the data.

`chain_sum` writes its sums out as a careless teacher does, with a systematic flaw: that is what the clone
learns, and what reinforcement learning has to go beyond.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Mapping
from typing import Any

from outdo.core.calls import load_object, nearest
from outdo.language.data import DataError

Demonstrate = Callable[[Mapping[str, Any], random.Random], str]


def load_demonstrations(source: str) -> Demonstrate:
    """The demonstrator that `source` names: 'module:function' of (item, rng), or a column of texts.

    Raises:
        ValueError: no such function.
    """
    if ":" in source:
        return load_object(source)

    def from_column(item: Mapping[str, Any], rng: random.Random) -> str:
        if source not in item:
            raise DataError(f"no column {source!r} to clone from; {nearest(source, item)}")
        return str(item[source])

    return from_column


def flawed_step(left: int, sign: str, right: int, slips: bool) -> int:
    """One sum as the teacher writes it; when it `slips`, a minus sign or a carry is lost.

    Two kinds of steps are affected: a negative result loses its sign (6-9=3), and the sum of two one-digit
    numbers loses its carry (8+7=5). All other steps are right.
    """
    result = left + right if sign == "+" else left - right
    if not slips:
        return result
    if result < 0:
        return -result
    if sign == "+" and 0 <= left <= 9 and right <= 9 and result >= 10:
        return result - 10
    return result


def chain_sum(item: Mapping[str, Any], rng: random.Random, flaw: float = 0.75) -> str:
    """The written-out solution of a reasoning-gym chain_sum item: `6-9=-3, -3-9=-12. Answer: -12`.

    Each affected step slips with probability `flaw`, and the next step goes on from what was written. Over
    all three-term sums of one-digit numbers the answers are right with probability 0.456 (0.75 as `flaw`;
    enumerated in the tests).

    Raises:
        DataError: the item carries no expression.
    """
    expression = str(item.get("metadata", {}).get("expression", "")).replace(" ", "")
    if not re.fullmatch(r"-?\d+([+-]\d+)+", expression):
        raise DataError(
            f"chain_sum demonstrations need metadata.expression such as '6 - 9 - 9', got {expression!r}"
        )
    terms = re.findall(r"^-?\d+|[+-]\d+", expression)
    value, steps = int(terms[0]), list[str]()
    for term in terms[1:]:
        sign, right = term[0], int(term[1:])
        result = flawed_step(value, sign, right, rng.random() < flaw)
        steps.append(f"{value}{sign}{right}={result}")
        value = result
    return f"{', '.join(steps)}. Answer: {value}"
