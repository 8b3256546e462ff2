"""What the lab prints: the table of figures, an explanation, a comparison of two algorithms."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from outdo.lab.compare import Setting
from outdo.lab.experiment import Experiment, Figure
from outdo.lab.run import Result

WIDE = 140
"""Columns of a table that does not go to a terminal."""


def console() -> Console:
    """Standard output; wide enough for the tables where it is no terminal."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=WIDE)


def experiments_table(experiments: Sequence[Experiment]) -> Table:
    """Names, facts and titles; of those that are live also when they are run."""
    table = Table(box=box.SIMPLE)
    for column in ("experiment", "facts", "what it shows"):
        table.add_column(column, no_wrap=column != "what it shows")
    for each in experiments:
        when = " (trains live: only by name, or with --full)" if each.live else ""
        table.add_row(each.name, ", ".join(each.facts), each.title + when)
    return table


def figures_table(results: Sequence[Result]) -> Table:
    """A row for each figure; a tolerance against the published and one against the exact value."""
    table = Table(box=box.SIMPLE)
    table.add_column("experiment", no_wrap=True)
    table.add_column("figure", ratio=1)
    for column in ("published", "exact", "measured", "tolerance"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("within", no_wrap=True)
    for result in results:
        for index, figure in enumerate(result.outcome.figures):
            within = figure.within(result.z)
            table.add_row(
                result.experiment.name if index == 0 else "",
                figure.name,
                number(figure.published),
                number(figure.exact),
                number(figure.measured),
                tolerance(figure, result.z),
                Text("yes") if within else Text("NO", style="bold red"),
                end_section=index == len(result.outcome.figures) - 1,
            )
    return table


def number(value: float | None) -> str:
    """Five significant digits; nothing for None."""
    # Adding 0 makes a negative zero a zero.
    return "" if value is None else f"{value + 0.0:.5g}".replace("-", "−")


def tolerance(figure: Figure, z: float) -> str:
    """The tolerances that apply, published first; one that is arithmetic alone is 0."""
    found: list[float] = []
    if figure.published is not None:
        found.append(figure.tolerance(z))
    if figure.exact is not None:
        found.append(figure.exact_tolerance(z) if figure.error else 0.0)
    return "±" + " / ±".join(f"{value:.2g}" for value in found)


def summary(results: Sequence[Result]) -> str:
    """How many figures are within, and what the tolerances mean."""
    every = [figure.within(result.z) for result in results for figure in result.outcome.figures]
    return (
        f"{sum(every)} of {len(every)} figures within. Tolerance: rounding of the published value and "
        f"{results[0].z:.2f} standard errors / {results[0].z:.2f} standard errors from the exact value; so many that "
        "chance alone puts a figure outside in one run of 1,000."
    )


def explanation(out: Console, result: Result) -> None:
    """Title, text, formula, settings, table and the command that reruns it."""
    experiment = result.experiment
    out.print(Text(f"{', '.join(experiment.facts)}  {experiment.title}", style="bold"))
    for paragraph in experiment.text.strip().split("\n\n"):
        out.print(Text("\n" + " ".join(paragraph.split())))
    out.print()
    for line in experiment.formula.strip().splitlines():
        out.print(Text("    " + line.strip()))
    out.print(Text("\nHow it is measured: " + " ".join(experiment.settings.split())))
    out.print(figures_table([result]))
    out.print(Text(f"Again, with pictures: outdo lab {experiment.name}"))


def comparison_table(table: dict[str, dict[str, Any]], setting: Setting) -> Table:
    """Both algorithms side by side, the bytes of each model first."""
    size = f"{setting.size.parameters:,} parameters, {setting.precision}"
    out = Table(title=f"models in memory for {size}", box=box.SIMPLE, title_justify="left")
    out.add_column("", no_wrap=True)
    for name in table:
        out.add_column(name, ratio=1)
    columns = list(table.values())
    for model in ("policy", "reference", "reward model", "critic"):
        out.add_row(model, *[_memory(column["models"].get(model)) for column in columns])
    out.add_row("all", *[amount(column["bytes"]) for column in columns], end_section=True)
    for row in columns[0]:
        if row not in ("models", "bytes"):
            out.add_row(row, *[column[row] for column in columns])
    return out


def _memory(memory: dict[str, int] | None) -> str:
    """A model's bytes and what they are."""
    if memory is None:
        return "none"
    parts = [f"{key} {amount(memory[key])}" for key in ("weights", "gradients", "moments") if memory[key]]
    return (
        f"{amount(memory['total'])}: {', '.join(parts)}"
        if len(parts) > 1
        else f"{amount(memory['total'])}, frozen"
    )


def amount(count: int) -> str:
    """Bytes with a decimal unit: 2_160_000_000 is '2.16 GB'."""
    value, unit = float(count), "B"
    for larger in ("kB", "MB", "GB", "TB"):
        if value < 999.5:
            break
        value, unit = value / 1000, larger
    return f"{value:.3g} {unit}"
