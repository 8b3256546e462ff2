"""The command `outdo`. Heavy imports happen inside the commands, so that `outdo --help` is immediate."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from outdo.training.loop import Result

if "" not in sys.path:
    sys.path.insert(0, "")  # rewards and data of one's own are found in the current folder, as by `python -m`

app = typer.Typer(
    help=(
        "Post-train a policy that already acts by reinforcement learning, so that it outdoes its "
        "demonstrations."
    ),
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for a program to read.")]
Debug = Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")]
Step = Annotated[
    int | None, typer.Option(help="Checkpoint after this many updates; else the best, else the newest.")
]


@contextmanager
def _mistakes(debug: bool) -> Generator[None]:
    """Print what a person can mend as one message and leave with code 2; `debug` shows the traceback.

    Of runtime errors only those that outdo raises itself are such; others are faults, and show theirs.
    """
    try:
        yield
    except (ValueError, OSError, ImportError, RuntimeError) as error:
        if debug or (isinstance(error, RuntimeError) and not type(error).__module__.startswith("outdo.")):
            raise
        print(f"error: {error}", file=sys.stderr)
        raise typer.Exit(2) from error
    except KeyboardInterrupt as error:
        print("stopped at once; the last checkpoint is whole: continue with --resume", file=sys.stderr)
        raise typer.Exit(130) from error


@app.command()
def train(
    recipe: Annotated[
        str, typer.Argument(help="A shipped name (see `outdo recipes`), a .toml file or a run folder.")
    ],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Such as rl.steps=20.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Run folder; else a new one under runs/.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in --out from its last checkpoint.")
    ] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Train as a recipe says."""
    with _mistakes(debug):
        from outdo.recipe import parse_override
        from outdo.run import run
        from outdo.training.display import display

        given = dict(parse_override(text) for text in overrides or [])
        result = run(recipe, given, out=out, resume=resume, display=display())
        summary = json.loads((result.folder / "summary.json").read_text())
        if as_json:
            print(json.dumps({"folder": str(result.folder), **summary}))
        else:
            _print_result(result, summary)
    if result.interrupted_by is not None:
        raise typer.Exit(128 + signal.Signals[result.interrupted_by])


def _print_result(result: Result, summary: Mapping[str, Any]) -> None:
    """The table, samples before and after, and where everything is."""
    console = Console()
    if result.interrupted_by is not None:
        console.print(
            f"{result.interrupted_by}: saved after {result.steps} updates. "
            f"Continue with: outdo train {result.folder} --resume",
            highlight=False,
            soft_wrap=True,
        )
        return
    if summary["results"]:
        console.print(_table(summary["results"]))
    _print_samples(console, result.folder)
    console.print(f"run folder: {result.folder}", highlight=False, soft_wrap=True)


def _table(rows: Sequence[Mapping[str, Any]]) -> Table:
    """Held-out accuracy with 95 % intervals, one row per state of the policy."""
    table = Table(title="held-out problems, 95 % intervals", box=box.SIMPLE, title_justify="left")
    kinds = [kind for kind in ("greedy", "sampled") if any(f"{kind}/accuracy" in row for row in rows)]
    tries = {key for row in rows for key in row if key.startswith("sampled/pass@") and key.count("/") == 1}
    most = max(tries, default="", key=lambda key: int(key.rpartition("@")[2]))
    for name in ("policy", "updates", *kinds, *([most.partition("/")[2]] if most else [])):
        table.add_column(name, justify="left" if name == "policy" else "right", no_wrap=True)
    for row in rows:
        cells = [_interval(row, kind) for kind in kinds]
        if row["policy"] == "demonstrations":
            cells = ["" for _ in kinds]
            cells[-1:] = [_interval(row, "demonstrations")]
        last = [f"{row[most]:.3f}" if most in row else ""] if most else []
        table.add_row(str(row["policy"]), str(row.get("updates", "")), *cells, *last)
    return table


def _interval(row: Mapping[str, Any], kind: str) -> str:
    if f"{kind}/accuracy" not in row:
        return ""
    low, high = row[f"{kind}/low"], row[f"{kind}/high"]
    return f"{row[f'{kind}/accuracy']:.3f} ({low:.2f}-{high:.2f})"


def _print_samples(console: Console, folder: Path, problems: int = 3) -> None:
    """What the policy answered to the same problems before anything and in the end."""
    from outdo.run import evaluation_samples

    samples = evaluation_samples(folder)
    if len(samples) < 2:
        return
    before, after = samples[min(samples)], samples[max(samples)]
    for first, last in list(zip(before, after, strict=False))[:problems]:
        console.print(f"\n{first['prompt']}  (right: {first['answer']})", markup=False, highlight=False)
        for when, row in (("before", first), ("after", last)):
            verdict = "right" if row["right"] else "wrong"
            console.print(f"  {when}, {verdict}: {row['greedy']!r}", markup=False, highlight=False)


@app.command(name="eval")
def evaluate(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    overrides: Annotated[
        list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Such as evaluation.samples=8.")
    ] = None,
    step: Step = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Evaluate a run's policy on the held-out problems."""
    with _mistakes(debug):
        from outdo.recipe import RecipeError, parse_override
        from outdo.run import open_run

        given = dict(parse_override(text) for text in overrides or [])
        _, parts, checkpoint = open_run(run, step, given)
        if parts.evaluator is None:
            raise RecipeError(
                "the run's recipe has no [evaluation]: give evaluation.problems=200, for example"
            )
        report = parts.evaluator(parts.policy)
        if as_json:
            print(json.dumps({"checkpoint": str(checkpoint), **report.metrics, "samples": report.samples}))
        else:
            Console().print(_table([{"policy": checkpoint.name, **report.metrics}]))


@app.command()
def sample(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    prompt: Annotated[str, typer.Argument(help="What to ask.")],
    samples: Annotated[int, typer.Option(min=1, help="Answers.")] = 1,
    temperature: Annotated[float, typer.Option(min=0.0, help="0 takes the most likely token.")] = 0.0,
    step: Step = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Ask a run's policy something."""
    with _mistakes(debug):
        from outdo.run import sample as draw

        answers = draw(run, prompt, step=step, samples=samples, temperature=temperature)
        if as_json:
            print(json.dumps(answers))
        else:
            for answer in answers:
                print(answer["completion"])


@app.command()
def recipes(
    name: Annotated[
        str | None, typer.Argument(help="Print this one as TOML, to begin one of your own.")
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List the recipes that ship with outdo, or print one."""
    with _mistakes(debug):
        from outdo.recipe import recipe_text, shipped

        if name is not None:
            print(recipe_text(name)[0], end="")
            return
        if as_json:
            print(json.dumps(shipped()))
            return
        for name, summary in shipped().items():
            print(f"{name:<14}{summary}")


@app.command()
def algorithms(
    name: Annotated[str | None, typer.Argument(help="One preset, in full; left out: all, in short.")] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """List the algorithms with paper, formula, defaults and departures from the paper."""
    with _mistakes(debug):
        from outdo.core.presets import PRESETS, describe, preset

        chosen = PRESETS if name is None else {name: preset(name)}
        entries: dict[str, dict[str, Any]] = {
            key: {
                "summary": each.summary,
                "paper": each.paper,
                "formula": each.formula,
                "defaults": describe(each.algorithm),
                "departures": list(each.departures),
            }
            for key, each in chosen.items()
        }
        if as_json:
            print(json.dumps(entries, ensure_ascii=False))
            return
        for key, entry in entries.items():
            print(f"{key}\n  {entry['summary']}\n  paper: {entry['paper']}\n  formula: {entry['formula']}")
            for part, settings in entry["defaults"].items():
                if part != "name":
                    print(f"  {part}: {_settings(settings)}")
            for departure in entry["departures"]:
                print(f"  departs: {departure}")


def _settings(value: Any) -> str:
    """A part of an algorithm in one line."""
    if not isinstance(value, Mapping):
        return str(value)
    return ", ".join(f"{key} = {item}" for key, item in value.items())
