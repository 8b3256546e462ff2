"""Checks that a hostile completion could keep busy for ever: they run in a process that can be killed.

What is here is called by `verifiers` through `Worker`, by name and with a time limit; it may hang, explode
or crash.
"""

from __future__ import annotations

import atexit
import functools
import logging
import re
from typing import Any

from outdo.core.worker import Worker, WorkerDiedError

logger = logging.getLogger(__name__)

MEMORY = 4 * 2**30
"""Address space of the process, in bytes."""
PREPARATION = 120.0
"""Seconds in which a check must be ready."""


@functools.cache
def worker() -> Worker:
    """The one process that all verifiers of a run share; started by the first check."""
    made = Worker(MEMORY)
    atexit.register(made.close)
    return made


def run(name: str, *arguments: Any, limit: float) -> Any:
    """Run a check of this module in the process: its value, or None if a completion held it up or killed it.

    None after `limit` seconds, or when the process died; either is logged with the arguments at fault.

    Raises:
        WorkerError: the check raised.
        TimeoutError: what it needs is not imported within `PREPARATION` seconds.
    """
    worker().call(f"{__name__}:prepare", name, limit=PREPARATION)
    try:
        return worker().call(f"{__name__}:{name}", *arguments, limit=limit)
    except (TimeoutError, WorkerDiedError) as error:
        logger.warning("%s; scored as wrong: %.300r", error, arguments)
        return None


@functools.cache
def prepare(name: str) -> None:
    """Import what a check needs and use it once, in the process, so that a time limit is for the text alone."""
    if name == "math":
        math("1/2", "$0.5$")
    elif name == "reasoning_gym":
        import reasoning_gym  # noqa: F401  # pyright: ignore[reportUnusedImport]


def regex(pattern: str, text: str, full: bool) -> list[str] | None:
    """Groups of the match (the whole match, if there are none), else None."""
    expression = re.compile(pattern, re.DOTALL)
    match = expression.fullmatch(text) if full else expression.search(text)
    if match is None:
        return None
    return [group or "" for group in match.groups()] or [match.group()]


def math(gold: str, text: str) -> bool:
    """Whether math-verify finds an expression in `text` that equals the one in `gold`."""
    from math_verify import parse, verify

    logging.getLogger("math_verify").setLevel(logging.CRITICAL)  # its own time limits are off: ours kills it
    expected = parse(gold, parsing_timeout=0)
    if not expected:
        raise ValueError(f"math-verify cannot read the expected answer {gold!r}")
    try:
        return bool(verify(expected, parse(text, parsing_timeout=0), timeout_seconds=0))
    except (MemoryError, RecursionError):
        return False


def reasoning_gym(answer: str | None, entry: dict[str, Any]) -> float:
    """The score that the reasoning-gym data set `entry` came from gives `answer`."""
    from reasoning_gym import get_score_answer_fn

    scorer: Any = get_score_answer_fn(entry["metadata"]["source_dataset"])
    try:
        return float(scorer(answer, entry))
    except (MemoryError, RecursionError):
        return 0.0
