"""What a person sees while a run is on: a progress bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column

SHOWN: tuple[tuple[str, str, str], ...] = (
    ("reward", "reward", ".3f"),
    ("episode/return", "return", ".1f"),
    ("grad_norm", "grad", ".3g"),
    ("groups_without_signal", "no signal", ".0%"),
    ("kl_reference", "KL", ".2g"),
    ("kl_old_k3", "KL(old)", ".2g"),
    ("entropy_sampled", "entropy", ".3f"),
    ("clip_share", "clipped", ".1%"),
    ("nll", "nll", ".3f"),
    ("time/tokens_per_second", "tok/s", ".0f"),
    ("time/steps_per_second", "steps/s", ".0f"),
)
"""Metric, label and format of the figures in the progress line; those a stage does not have are left out."""

SURROGATE_NOTE = (
    "the surrogate loss says nothing about learning (with centred advantages and ratios near 1 it is about 0 by "
    "construction). Watch the reward, the gradient norm, the share of groups without signal and the held-out score"
)
"""Said at the start of every stage whose loss is a surrogate."""


class Display(Protocol):
    """Where the loop reports what it does."""

    def stage(self, name: str, steps: int, done: int) -> None:
        """A stage of `steps` updates begins, `done` of them already made."""
        ...

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """`step` updates of the stage are done; `metrics` are those of the last."""
        ...

    def say(self, text: str) -> None:
        """A line that stays."""
        ...

    def close(self) -> None:
        """The run is over."""
        ...


def figures(metrics: Mapping[str, float]) -> str:
    """The shown metrics in one line."""
    return "  ".join(f"{label} {metrics[name]:{form}}" for name, label, form in SHOWN if name in metrics)


class Bar:
    """A live progress bar with the figures and the time left."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[figures]}", table_column=Column(ratio=1, no_wrap=True)),
            console=console,
        )
        self._progress.start()

    def stage(self, name: str, steps: int, done: int) -> None:
        """Begin a new bar."""
        self._task = self._progress.add_task(name, total=steps, completed=done, figures="")

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Move the bar."""
        self._progress.update(self._task, completed=step, figures=figures(metrics))

    def say(self, text: str) -> None:
        """Print above the bar."""
        self._progress.console.print(text, markup=False, highlight=False)

    def close(self) -> None:
        """Leave the bar as it stands."""
        self._progress.stop()


class Lines:
    """A plain line per update, one every `every` seconds at most, and the first and last of a stage."""

    def __init__(self, console: Console, every: float = 5.0) -> None:
        self._console = console
        self._every = every
        self._steps = 0
        self._begin = 0
        self._started = self._printed = 0.0
        self._name = ""

    def stage(self, name: str, steps: int, done: int) -> None:
        """Remember what the steps are counted against."""
        self._name, self._steps, self._begin = name, steps, done
        self._started = time.monotonic()
        self._printed = 0.0

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Print, if it is time."""
        now = time.monotonic()
        if now - self._printed < self._every and step < self._steps:
            return
        self._printed = now
        left = (now - self._started) / max(1, step - self._begin) * (self._steps - step)
        minutes, seconds = divmod(round(left), 60)
        self.say(f"{self._name} {step}/{self._steps}  {figures(metrics)}  left {minutes}:{seconds:02}")

    def say(self, text: str) -> None:
        """Print a line."""
        self._console.print(text, markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Nothing to leave."""


class Quiet:
    """Says nothing: for use as a library."""

    def stage(self, name: str, steps: int, done: int) -> None:
        """Nothing."""

    def update(self, step: int, metrics: Mapping[str, float]) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


def display(console: Console | None = None) -> Display:
    """A progress bar where standard error is a terminal, plain lines otherwise."""
    console = console or Console(stderr=True)
    return Bar(console) if console.is_terminal else Lines(console)
