"""What an experiment of the lab is: figures to compare, plots to draw, and the text that explains both."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["line", "points", "bars", "steps"]


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured number beside what was published and what is exact.

    `error` is the standard error of `measured` (0 for a value without chance), `published_error` that of the
    published value where it was itself measured on a sample, `rounding` half a unit of its last digit.
    `same_draws`: the published number came from the very same draws, so only its rounding is allowed for.
    """

    name: str
    measured: float
    published: float | None = None
    exact: float | None = None
    rounding: float = 0.0
    error: float = 0.0
    published_error: float = 0.0
    same_draws: bool = False

    def tolerance(self, z: float) -> float:
        """How far `measured` may lie from `published`: rounding + z·√(error² + published_error²)."""
        if self.same_draws:
            return self.rounding
        return self.rounding + z * math.hypot(self.error, self.published_error)

    def exact_tolerance(self, z: float) -> float:
        """How far `measured` may lie from `exact`: z·error, and float64 arithmetic."""
        reference = max(1.0, abs(self.exact or 0.0))
        return z * self.error + 1e-9 * reference

    def within(self, z: float) -> bool:
        """Whether the measured value agrees with every reference that it has; a NaN agrees with none."""
        checks: list[bool] = []
        if self.published is not None:
            # Published digits are decimal: 1e-9 lets 0.125 count as within 0.005 of 0.13.
            checks.append(abs(self.measured - self.published) <= self.tolerance(z) + 1e-9)
        if self.exact is not None:
            checks.append(abs(self.measured - self.exact) <= self.exact_tolerance(z))
        if not checks:
            raise ValueError(f"figure {self.name!r} has neither a published nor an exact value")
        return all(checks)


@dataclass(frozen=True, slots=True)
class Series:
    """One curve, set of points or set of bars of a panel; `low` and `high` are a band or error bars."""

    label: str
    x: list[float]
    y: list[float]
    low: list[float] | None = None
    high: list[float] | None = None
    kind: Kind = "line"
    dashed: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes. `ticks` names the places 0, 1, … of the x axis where it has no numbers."""

    x_label: str
    y_label: str
    series: list[Series]
    title: str = ""
    ticks: list[str] | None = None
    log_x: bool = False


@dataclass(frozen=True, slots=True)
class Plot:
    """One picture: panels side by side."""

    name: str
    title: str
    panels: list[Panel]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What an experiment found."""

    figures: list[Figure]
    plots: list[Plot] = field(default_factory=list[Plot])


@dataclass(frozen=True, slots=True)
class Scale:
    """How much to run: `seeds` where the user asked for a number, `full` for the long version."""

    seeds: int | None = None
    full: bool = False

    def count(self, default: int, full: int | None = None) -> int:
        """Number of seeds: the user's, else `full` in the long version, else `default`."""
        if self.seeds is not None:
            return self.seeds
        return full if self.full and full is not None else default


@dataclass(frozen=True, slots=True)
class Experiment:
    """A measured fact: its name on the command line, which facts it serves, what it says, and how it is run.

    `text` is paragraphs in plain words, separated by empty lines; `formula` is what is computed, in plain
    Unicode, one equation a line; `settings` says sample sizes, seeds and what had to be reconstructed.
    `live`: it trains for minutes, so it is run only where it is named or the long version is asked for.
    """

    name: str
    facts: tuple[str, ...]
    title: str
    formula: str
    text: str
    settings: str
    run: Callable[[Scale], Outcome]
    live: bool = False


def digits(text: str) -> tuple[float, float]:
    """A published number and its rounding, half a unit of the last digit shown: '0.31' gives (0.31, 0.005)."""
    value = text.strip().replace("−", "-").lstrip("+")
    mantissa, _, exponent = value.lower().partition("e")
    places = len(mantissa.partition(".")[2])
    return float(value), 0.5 * 10.0 ** (int(exponent or 0) - places)


def holds(statement: str, difference: float, error: float) -> Figure:
    """A published statement without a number as a figure: 1 where `difference` > 0 beyond chance, else 0.

    Beyond chance: more than 3.29 standard errors, a false positive in 2,000 (one-sided).
    """
    return Figure(f"{statement} (1: yes)", float(difference > 3.29 * error), published=1.0)
