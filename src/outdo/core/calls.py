"""Calling functions that others wrote: found by name, given what they accept, given up when they hang."""

from __future__ import annotations

import asyncio
import difflib
import importlib
import inspect
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any


def nearest(name: str, known: Iterable[str]) -> str:
    """A hint for error messages: the known name closest to `name`, else the list of known names."""
    names = sorted(known)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    return f"did you mean {close[0]!r}?" if close else f"known: {', '.join(names) or 'none'}"


def load_object(path: str) -> Any:
    """The object that `path`, written 'module:name', stands for.

    Raises:
        ValueError: the path is not 'module:name', the module cannot be imported or has no such name
            (nearest named).
    """
    module_name, _, name = path.partition(":")
    if not module_name or not name:
        raise ValueError(f"{path!r} must be written 'module:name', for example 'my_package.rewards:correct'")
    try:
        module = importlib.import_module(module_name)
    except ImportError as error:
        raise ValueError(f"{path!r}: the module {module_name!r} cannot be imported: {error}") from error
    if not hasattr(module, name):
        raise ValueError(f"{path!r}: {module_name} has no {name!r}; {nearest(name, vars(module))}")
    return getattr(module, name)


def accepted(function: Callable[..., Any], offered: Mapping[str, Any], what: str) -> dict[str, Any]:
    """The part of `offered` that `function` takes by keyword; all of it if the function has `**kwargs`.

    Raises:
        ValueError: the function needs a parameter that is not offered; `what` names the function in the
            message.
    """
    parameters = inspect.signature(function).parameters.values()
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return dict(offered)
    named = [p for p in parameters if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    for parameter in named:
        if parameter.default is parameter.empty and parameter.name not in offered:
            raise ValueError(
                f"{what} needs {parameter.name!r}, which the data lacks; {nearest(parameter.name, offered)}"
            )
    return {p.name: offered[p.name] for p in named if p.name in offered}


def call_together(calls: list[Callable[[], Any]], seconds: float) -> list[Any]:
    """Run `calls` at once, each in a thread of its own; the result of each, or the exception it ended with.

    A coroutine is awaited. A call that has not ended after `seconds` is given up and stands as a
    `TimeoutError`. What this can stop: the waiting. What it cannot: the work. Python cannot end a thread,
    so a call that was given up goes on in the background until it returns or the process exits (the threads
    are daemons and never hold it open), and one that holds the interpreter lock for minutes (a runaway
    regular expression) holds the waiting too. `Worker` runs such functions in a process that can be killed.
    """
    outcomes: list[Any] = [TimeoutError(f"no result within {seconds:g} s")] * len(calls)

    def run(index: int) -> None:
        try:
            result = calls[index]()
            outcomes[index] = asyncio.run(_resolved(result)) if inspect.isawaitable(result) else result
        except BaseException as error:  # handed to the caller, who names function and row
            outcomes[index] = error

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(calls))]
    for thread in threads:
        thread.start()
    end = time.monotonic() + seconds
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return list(outcomes)


async def _resolved(awaitable: Any) -> Any:
    return await awaitable
