"""What the control recipes reach: every seed's return after the last update, beside the goal, in one table.

    pip install -e '.[control,box2d,mujoco]'
    python benchmarks/learning.py [cartpole acrobot ...] [--seeds 3] [--out runs/learning] [--resume]

Each recipe runs as it ships, one seed after the other, as `outdo train NAME --seeds N` does. The return is the mean
over the evaluation's episodes with the environment's own reward, observations normalised by frozen statistics; of
the game `connect_four` it is the mean result (won 1, drawn 0, lost −1) against a search of two moves.
Printed are, for deterministic and for sampled actions, the interquartile mean over seeds and each seed's mean, and
the mean wall time of a seed with its evaluations. Exit code 1: an interquartile mean (deterministic actions) is below
its goal.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from outdo.core.statistics import interquartile_mean
from outdo.recipe import read
from outdo.seeds import run_seeds
from outdo.training.display import display
from outdo.training.record import read_metrics

GOALS = {
    "cartpole": 475.0,
    "acrobot": -100.0,
    "lunarlander": 200.0,
    "pendulum": -250.0,
    "inverted_pendulum": 900.0,
    "hopper": 2000.0,
    "connect_four": 0.0,
}
KINDS = ("deterministic/return", "sampled/return")
TIMES = ("time/collect", "time/update", "time/evaluation")


def last(folder: Path) -> dict[str, Any]:
    """The last evaluation of a run, with the environment's steps and the `seconds` until then."""
    lines = read_metrics(folder)
    return {
        **next(line for line in reversed(lines) if line["kind"] == "evaluation"),
        "steps": max(int(line["environment_steps"]) for line in lines if line["kind"] == "update"),
        "seconds": sum(line.get(part, 0.0) for line in lines for part in TIMES),
    }


def measure(name: str, seeds: int, out: Path, resume: bool) -> dict[str, Any]:
    """Train all seeds of a recipe and read what they reached."""
    first = read(name).seed
    result, _ = run_seeds(name, {}, seeds, out=out / name, resume=resume, display=display)
    if result.interrupted_by is not None:
        raise SystemExit(f"stopped by {result.interrupted_by}: go on with --resume")
    ends = [last(out / name / f"seed-{seed}") for seed in range(first, first + seeds)]
    figures = {kind: [end[kind] for end in ends] for kind in KINDS}
    seconds = sum(end["seconds"] for end in ends) / seeds
    return {"steps": max(end["steps"] for end in ends), "seconds": seconds, **figures}


def shown(value: float, digits: int = 0) -> str:
    """A return with `digits` decimals, two more where it is a game's result."""
    return f"{value:.{digits if abs(value) > 1 else digits + 2}f}".replace("-", "−")


def row(name: str, measured: dict[str, Any]) -> str:
    """A row of the table in docs/control.md."""
    cells = [f"`{name}`", f"{GOALS[name]:g}".replace("-", "−"), f"{measured['steps']:,}"]
    for kind in KINDS:
        values = measured[kind]
        each = ", ".join(shown(value) for value in values)
        cells.append(f"{shown(interquartile_mean(values), 1)} ({each})")
    return "| " + " | ".join([*cells, f"{measured['seconds']:.0f} s"]) + " |"


def main() -> int:
    """Run what was asked for; print rows as they are done."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else "")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(GOALS)}; left out: all")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("runs/learning"))
    parser.add_argument("--resume", action="store_true", help="go on in --out")
    given = parser.parse_args()
    if unknown := set(given.names) - set(GOALS):
        parser.error(f"no goal for {', '.join(sorted(unknown))}: choose of {', '.join(GOALS)}")
    print("| recipe | goal | steps | deterministic: IQM (seeds) | sampled: IQM (seeds) | time of a seed |")
    print("|---|---|---|---|---|---|")
    missed: list[str] = []
    for name in given.names or GOALS:
        measured = measure(name, given.seeds, given.out, given.resume)
        print(row(name, measured), flush=True)
        (given.out / name / "measured.json").write_text(json.dumps(measured, indent=1) + "\n")
        if interquartile_mean(measured["deterministic/return"]) < GOALS[name]:
            missed.append(name)
    if missed:
        print(f"missed: {', '.join(missed)}")
    return bool(missed)


if __name__ == "__main__":
    raise SystemExit(main())
