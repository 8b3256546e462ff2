"""The experiments by name, and how many standard errors a figure may be off."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Sequence
from statistics import NormalDist

from outdo.core.calls import nearest
from outdo.lab import experiments as package
from outdo.lab.experiment import Experiment

FALSE_ALARMS = 1e-3
"""Chance that a lab in which everything is right reports at least one figure outside."""


def experiments() -> dict[str, Experiment]:
    """Every experiment of `lab/experiments/` by name, in the order of the facts that they serve."""
    modules = [
        importlib.import_module(f"{package.__name__}.{each.name}")
        for each in pkgutil.iter_modules(package.__path__)
    ]
    found = sorted((module.EXPERIMENT for module in modules), key=lambda each: (_number(each), each.name))
    return {each.name: each for each in found}


def _number(experiment: Experiment) -> int:
    """Number of the first fact: 7 of 'F7'."""
    return int(experiment.facts[0].removeprefix("F"))


def select(names: Sequence[str]) -> list[Experiment]:
    """The experiments of these names, each once, in the order asked for; all where no name is given.

    Raises ValueError for an unknown name, with the nearest one.
    """
    known = experiments()
    for name in names:
        if name not in known:
            raise ValueError(f"unknown experiment {name!r}; {nearest(name, known)}")
    return [known[name] for name in dict.fromkeys(names)] if names else list(known.values())


def deviate(count: int) -> float:
    """Standard errors z that `count` normal figures all stay within, but for a chance of `FALSE_ALARMS`.

    P(|N(0, 1)| > z) = `FALSE_ALARMS` / count (Bonferroni).
    """
    return NormalDist().inv_cdf(1 - FALSE_ALARMS / (2 * max(1, count)))
