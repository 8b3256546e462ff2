"""Runs experiments once, and says which of their figures lie outside."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from outdo.lab.experiment import Figure, Outcome, Scale
from outdo.lab.registry import deviate

Z = deviate(300)
"""About as many figures as the whole lab has."""


@cache
def outcome(name: str) -> Outcome:
    """What the experiment finds with the library as it is."""
    return run(name)


def run(name: str) -> Outcome:
    """What the experiment finds now."""
    return import_module(f"outdo.lab.experiments.{name}").EXPERIMENT.run(Scale())


def outside(figures: list[Figure]) -> set[str]:
    """Names of the figures that disagree with a reference."""
    return {figure.name for figure in figures if not figure.within(Z)}


def names(figures: list[Figure], *parts: str) -> set[str]:
    """Names that hold every one of the parts."""
    return {figure.name for figure in figures if all(part in figure.name for part in parts)}
