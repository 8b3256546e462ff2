"""The command `outdo`. Heavy imports happen inside the commands, so that `outdo --help` is immediate."""

from __future__ import annotations

import json
import shlex
import signal
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from typer.core import TyperGroup

if "" not in sys.path:
    # Rewards and data of one's own are found in the current folder, after all installed modules.
    sys.path.append("")

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
def _mistakes(debug: bool, stopped: str = "stopped") -> Generator[None]:
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
        print(stopped, file=sys.stderr)
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
    seeds: Annotated[
        int | None,
        typer.Option(min=1, help="Train so many seeds, from the recipe's on, and put them together."),
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Train as a recipe says."""
    with _mistakes(debug, "stopped at once; the last checkpoint is whole: continue with --resume"):
        from outdo import tables
        from outdo.recipe import parse_override
        from outdo.run import run
        from outdo.seeds import run_seeds
        from outdo.training.display import display

        given = dict(parse_override(text) for text in overrides or [])
        if seeds is None:
            result = run(recipe, given, out=out, resume=resume, display=display())
            summary = json.loads((result.folder / "summary.json").read_text())
        else:
            result, summary = run_seeds(recipe, given, seeds, out=out, resume=resume, display=display)
        if as_json:
            print(json.dumps({"folder": str(result.folder), **summary}))
        elif seeds is None:
            tables.print_result(result, summary)
        else:
            tables.print_seeds(result, summary)
    if result.interrupted_by is not None:
        raise typer.Exit(128 + signal.Signals[result.interrupted_by])


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
    """Evaluate a run's policy: on held-out problems, or by episodes."""
    with _mistakes(debug):
        from outdo import tables
        from outdo.recipe import RecipeError, parse_override
        from outdo.run import open_run

        given = dict(parse_override(text) for text in overrides or [])
        with open_run(run, step, given) as (_, parts, checkpoint):
            if parts.evaluator is None:
                raise RecipeError(
                    "the run's recipe has no [evaluation]: give evaluation.every=0, for example"
                )
            report = parts.evaluator(parts.policy)
        if as_json:
            print(json.dumps({"checkpoint": str(checkpoint), **report.metrics, "samples": report.samples}))
        else:
            tables.print_table([{"policy": checkpoint.name, **report.metrics}])


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
def drive(
    run: Annotated[Path, typer.Argument(help="A run folder of a driving policy.")],
    scene: Annotated[
        list[str],
        typer.Option(
            help="A situation (cut-in), a generated scene (test-0-12-cut-in), a CommonRoad .xml file or the folder "
            "of an Argoverse 2 log; may be given several times."
        ),
    ],
    kind: Annotated[Literal["html", "gif"], typer.Option(help="A page to play, or an animation.")] = "html",
    out: Annotated[Path | None, typer.Option(help="Folder of the pictures; else drives/ in the run.")] = None,
    replan: Annotated[int, typer.Option(min=1, max=5, help="Steps of 0.1 s between two plans.")] = 5,
    replayed: Annotated[
        bool, typer.Option("--replayed", help="Other vehicles keep to their log, and do not react.")
    ] = False,
    step: Step = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Let a run's policy drive scenes, and picture them with plan, reasoning and meta-actions."""
    with _mistakes(debug):
        from outdo.run import drive as picture

        files = picture(run, scene, kind=kind, out=out, replan=replan, reactive=not replayed, step=step)
        if as_json:
            print(json.dumps([str(path) for path in files]))
        else:
            for path in files:
                print(path)


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


class _LabGroup(TyperGroup):
    """`outdo lab ...` is short for `outdo lab run ...`: names of experiments and options need no word before."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put `run` in front of what begins with no command."""
        if not args or args[0] not in (*self.commands, "--help"):
            args = ["run", *args]
        return super().parse_args(ctx, args)


lab = typer.Typer(
    cls=_LabGroup,
    help=(
        "Rerun the published figures with the library's own functions. `outdo lab gae kl` is short for "
        "`outdo lab run gae kl`, `outdo lab` runs all that take seconds; options: `outdo lab run --help`."
    ),
    pretty_exceptions_enable=False,
)
app.add_typer(lab, name="lab")
Seeds = Annotated[int | None, typer.Option(min=1, help="Seeds of each experiment; else its own number.")]
Full = Annotated[bool, typer.Option("--full", help="More seeds, and live experiments too; takes minutes.")]


@lab.command(name="run")
def lab_run(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="NAME", help="Experiments; left out: all but live ones.")
    ] = None,
    listed: Annotated[bool, typer.Option("--list", help="List the experiments and run none.")] = False,
    seeds: Seeds = None,
    full: Full = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for table, pictures and page; else a new one under runs/.")
    ] = None,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Measure, compare with the published and the exact value, and draw. Exit code 1: a figure is outside."""
    with _mistakes(debug):
        from outdo.lab import run as lab
        from outdo.lab import show
        from outdo.lab.experiment import Scale
        from outdo.lab.registry import select
        from outdo.training.display import display

        if listed:
            chosen = select(names or [])
            if as_json:
                fields = ("name", "facts", "title", "live")
                print(json.dumps([{key: getattr(each, key) for key in fields} for each in chosen]))
            else:
                show.console().print(show.experiments_table(chosen))
            return
        scale, folder = Scale(seeds, full), out or lab.new_folder()
        lab.prepare(folder)
        results = lab.run(names or [], scale, display())
        page = lab.write(results, scale, folder, shlex.join(names or []))
        if as_json:
            print(json.dumps({"folder": str(folder), **lab.report(results, scale)}, ensure_ascii=False))
        else:
            console = show.console()
            console.print(show.figures_table(results))
            console.print(f"{show.summary(results)}\npage: {page}", soft_wrap=True)
    if not all(result.within for result in results):
        raise typer.Exit(1)


@lab.command(name="explain")
def lab_explain(
    name: Annotated[str, typer.Argument(help="An experiment (see `outdo lab --list`).")],
    seeds: Seeds = None,
    full: Full = False,
    debug: Debug = False,
) -> None:
    """Run one experiment and explain what it shows, with formula, settings and table."""
    with _mistakes(debug):
        from outdo.lab import run as lab
        from outdo.lab import show
        from outdo.lab.experiment import Scale

        show.explanation(show.console(), lab.run([name], Scale(seeds, full))[0])


@lab.command(name="compare")
def lab_compare(
    first: Annotated[str, typer.Argument(help="A preset (see `outdo algorithms`), such as ppo.")],
    second: Annotated[str, typer.Argument(help="Another, such as grpo.")],
    parameters: Annotated[
        str, typer.Option(help="Size of the policy: 135M, 1.5B, a model folder or a shipped name.")
    ] = "135M",
    precision: Annotated[
        Literal["float32", "bfloat16"], typer.Option(help="Compute dtype over float32 weights.")
    ] = "bfloat16",
    group: Annotated[
        int, typer.Option(min=1, help="Samples of each prompt where a group is the baseline.")
    ] = 8,
    critic: Annotated[
        Literal["model", "head"], typer.Option(help="A second model, or a linear head on the policy.")
    ] = "model",
    reward_model: Annotated[
        bool, typer.Option("--reward-model", help="Rewards come from a model of the policy's size.")
    ] = False,
    as_json: AsJson = False,
    debug: Debug = False,
) -> None:
    """Two algorithms beside each other: models in memory with their bytes, samples, advantages, cost."""
    with _mistakes(debug):
        from outdo.lab import compare, show

        setting = compare.Setting(compare.size(parameters), precision, group, reward_model, critic)
        table = compare.compare(first, second, setting)
        if as_json:
            print(compare.as_json(table, setting))
        else:
            show.console().print(show.comparison_table(table, setting))
