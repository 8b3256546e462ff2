"""Several seeds of one recipe: a run folder for each, and what they show together."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from outdo.config import Recipe
from outdo.core.statistics import bootstrap_interval
from outdo.recipe import RecipeError, read
from outdo.run import new_folder, run
from outdo.training import record
from outdo.training.display import Display, Quiet
from outdo.training.loop import Result

AGGREGATE = "aggregate.json"


def run_seeds(
    source: str | Path | Recipe,
    overrides: Mapping[str, Any] | None,
    seeds: int,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    display: Callable[[], Display] = Quiet,
) -> tuple[Result, dict[str, Any]]:
    """Train `seeds` seeds of a recipe, from its own seed on, one after the other; `run.run` for each.

    The folder holds a run folder `seed-N` for each and `aggregate.json`, which is returned with the result of
    the last one. With `resume`, runs that are finished stay, the one that was stopped goes on, the others begin.
    A signal ends the run that is on, with a checkpoint, and no other begins.
    """
    recipe = source if isinstance(source, Recipe) else read(source, overrides)
    folder = new_folder(source, recipe) if out is None else Path(out)
    if resume and out is None:
        raise RecipeError("--resume needs to know which runs: give their folder with --out")
    result: Result | None = None
    for seed in range(recipe.seed, recipe.seed + seeds):
        place = folder / f"seed-{seed}"
        there = resume and (place / "recipe.toml").exists()
        one = recipe.model_copy(update={"seed": seed})
        result = run(one, out=place, resume=there, display=display())
        result = replace(result, folder=folder)
        if result.interrupted_by is not None:
            return result, {"seeds": [], "curve": [], "metric": "", "results": []}
    if result is None:
        raise ValueError(f"seeds must be at least 1, got {seeds}")
    together = {**aggregate(folder, recipe.checkpoint.best_by), "results": results_together(folder)}
    record.write_atomically(folder / AGGREGATE, json.dumps(together, indent=1) + "\n")
    return result, together


def aggregate(folder: Path, metric: str) -> dict[str, Any]:
    """`metric` over the runs `seed-N` of a folder: each seed's last value, and the curve over seeds.

    A point of the curve has `updates`, the interquartile mean `value`, the ends `low` and `high` of its 95 %
    bootstrap interval, and the `least` and `most` of the seeds. Empty where nothing was evaluated.
    """
    by_seed: dict[int, dict[int, float]] = {}
    for place in folder.glob("seed-*"):
        lines = [line for line in record.read_metrics(place) if metric in line]
        by_seed[int(place.name.removeprefix("seed-"))] = {line["total"]: line[metric] for line in lines}
    points = set.intersection(*(set(curve) for curve in by_seed.values())) if by_seed else set[int]()
    if not points:
        return {"metric": "", "seeds": [], "curve": []}
    curve: list[dict[str, float]] = []
    for total in sorted(points):
        values = [by_seed[seed][total] for seed in sorted(by_seed)]
        value, low, high = bootstrap_interval(values)
        spread = {"least": min(values), "most": max(values)}
        curve.append({"updates": total, "value": value, "low": low, "high": high, **spread})
    last = max(points)
    seeds = [{"seed": seed, "updates": last, metric: by_seed[seed][last]} for seed in sorted(by_seed)]
    return {"metric": metric, "seeds": seeds, "curve": curve}


def results_together(folder: Path) -> list[dict[str, Any]]:
    """The rows of results (`run.results`) of the runs `seed-N` of a folder, each figure as its mean over the seeds.

    The ends `/low` and `/high` of a figure are here the least and the most of the seeds.
    """
    runs = [json.loads((place / record.SUMMARY).read_text())["results"] for place in folder.glob("seed-*")]
    rows: list[dict[str, Any]] = []
    for together in zip(*runs, strict=True):
        row: dict[str, Any] = {"policy": together[0]["policy"]}
        if "updates" in together[0]:
            row["updates"] = together[0]["updates"]
        for name, value in together[0].items():
            if name in row or name.endswith(("/low", "/high")) or not isinstance(value, int | float):
                continue
            values = [each[name] for each in together]
            row |= {name: fmean(values), f"{name}/low": min(values), f"{name}/high": max(values)}
        rows.append(row)
    return rows
