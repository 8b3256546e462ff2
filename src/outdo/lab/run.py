"""Runs experiments of the lab: results, rows of the table, and what is written to the folder."""

from __future__ import annotations

import importlib
import json
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from outdo.core.threads import threads
from outdo.lab.experiment import Experiment, Figure, Outcome, Scale
from outdo.lab.registry import deviate, select
from outdo.training import record
from outdo.training.display import Display, Quiet

RESULTS = "lab.json"
"""File with the rows, in the lab's folder."""


@dataclass(frozen=True, slots=True)
class Result:
    """An experiment that was run: `z` standard errors are allowed, `seconds` is how long it took."""

    experiment: Experiment
    outcome: Outcome
    z: float
    seconds: float

    @property
    def within(self) -> bool:
        """Whether every figure agrees with its references."""
        return all(figure.within(self.z) for figure in self.outcome.figures)


def run(
    names: Sequence[str] = (), scale: Scale | None = None, display: Display | None = None
) -> list[Result]:
    """Run the experiments of these names; `display` is told of each that has ended.

    Where no name is given all are run, those that are `live` only with `scale.full`. One z serves all figures of the
    call: `deviate` of the number of comparisons that chance takes part in. Raises ValueError for an unknown name.
    """
    scale, display = scale or Scale(), display or Quiet()
    chosen = [each for each in select(names) if names or scale.full or not each.live]
    display.stage("lab", len(chosen), 0)
    outcomes: list[tuple[Outcome, float]] = []
    try:
        with threads(1):  # the tensors are small: threads would only wait for each other
            for done, experiment in enumerate(chosen, start=1):
                begin = time.monotonic()
                outcome, seconds = experiment.run(scale), time.monotonic() - begin
                outcomes.append((outcome, seconds))
                display.say(f"{experiment.name}: {len(outcome.figures)} figures, {seconds:.1f} s")
                display.update(done, {})
    finally:
        display.close()
    z = deviate(sum(_chances(figure) for outcome, _ in outcomes for figure in outcome.figures))
    return [
        Result(experiment, outcome, z, seconds)
        for experiment, (outcome, seconds) in zip(chosen, outcomes, strict=True)
    ]


def _chances(figure: Figure) -> int:
    """How many of the figure's comparisons could fail by chance alone."""
    published = figure.published is not None and figure.tolerance(1.0) > figure.rounding
    return int(published) + int(figure.exact is not None and figure.error > 0)


def rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """One row for each figure, for JSON and for the table; a number that is not finite becomes None."""
    return [
        {
            "experiment": result.experiment.name,
            "facts": list(result.experiment.facts),
            "figure": figure.name,
            "published": figure.published,
            "exact": figure.exact,
            "measured": figure.measured if math.isfinite(figure.measured) else None,
            "tolerance": None if figure.published is None else _finite(figure.tolerance(result.z)),
            "exact_tolerance": None if figure.exact is None else _finite(figure.exact_tolerance(result.z)),
            "within": figure.within(result.z),
        }
        for result in results
        for figure in result.outcome.figures
    ]


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def report(results: Sequence[Result], scale: Scale) -> dict[str, Any]:
    """What `lab.json` holds: versions, seeds, the allowed standard errors, experiments and rows."""
    return {
        "outdo": version("outdo"),
        "torch": version("torch"),
        "seeds": scale.seeds,
        "full": scale.full,
        "z": results[0].z,
        "within": all(result.within for result in results),
        "experiments": [
            {
                "name": result.experiment.name,
                "facts": list(result.experiment.facts),
                "title": result.experiment.title,
                "settings": result.experiment.settings,
                "seconds": round(result.seconds, 2),
                "within": result.within,
            }
            for result in results
        ],
        "rows": rows(results),
    }


def new_folder() -> Path:
    """A folder under `runs/` that is not there yet, named after the time."""
    return record.new_folder("lab")


def prepare(folder: Path) -> None:
    """Before anything is run: refuse a folder that holds results already, and miss no library at the end."""
    importlib.import_module("outdo.lab.page")
    if (folder / RESULTS).exists():
        raise FileExistsError(f"{folder} holds results of the lab already: give another --out")


def write(results: Sequence[Result], scale: Scale, folder: Path, command: str = "") -> Path:
    """Write `lab.json`, the pictures and `index.html` into the folder; the path of the page.

    `command` are the arguments that made the results. Raises ImportError where a library of the extra `lab`
    is missing.
    """
    from outdo.lab.page import write_page
    from outdo.lab.plots import draw
    from outdo.lab.quiz import load_quiz

    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report(results, scale), indent=1, allow_nan=False)
    (folder / RESULTS).write_text(text + "\n", "utf-8")
    for result in results:
        for plot in result.outcome.plots:
            draw(plot, folder)
    return write_page(results, folder, load_quiz(), command)
