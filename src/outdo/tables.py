"""What the command line prints of a run: results with intervals, samples before and after, several seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from outdo.training.loop import Result

Row = Mapping[str, Any]


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, soft_wrap=True)


def print_result(result: Result, summary: Row) -> None:
    """The table, samples before and after, and where everything is."""
    console = Console()
    if result.interrupted_by is not None:
        _say(
            console,
            f"{result.interrupted_by}: saved after {result.steps} updates. "
            f"Continue with: outdo train {result.folder} --resume",
        )
        return
    if summary["results"]:
        print_table(summary["results"])
    _print_samples(console, result.folder)
    _say(console, f"run folder: {result.folder}")


def print_table(rows: Sequence[Row], seeds: int = 1) -> None:
    """The table of results, of several `seeds` with their range; of a driving run its tables."""
    driving = any("drive/close_encounter" in row for row in rows)
    for table in driving_tables(rows, seeds) if driving else [results_table(rows)]:
        Console().print(table)


def results_table(rows: Sequence[Row]) -> Table:
    """Evaluations with 95 % intervals, one row per state of the policy."""
    if any("deterministic/return" in row or "sampled/return" in row for row in rows):
        return _returns(rows)
    return _accuracies(rows)


def _columns(title: str, names: Sequence[str]) -> Table:
    """An empty table; the first column is text, the others are numbers."""
    table = Table(title=title or None, box=box.SIMPLE, title_justify="left")
    for place, name in enumerate(names):
        table.add_column(name, justify="left" if place == 0 else "right", no_wrap=True)
    return table


def _accuracies(rows: Sequence[Row]) -> Table:
    """Held-out accuracy of a language model."""
    kinds = [kind for kind in ("greedy", "sampled") if any(f"{kind}/accuracy" in row for row in rows)]
    tries = {key for row in rows for key in row if key.startswith("sampled/pass@") and key.count("/") == 1}
    most = max(tries, default="", key=lambda key: int(key.rpartition("@")[2]))
    names = ["policy", "updates", *kinds, *([most.partition("/")[2]] if most else [])]
    table = _columns("held-out problems, 95 % intervals", names)
    for row in rows:
        cells = [_accuracy(row, kind) for kind in kinds]
        if row["policy"] == "demonstrations":
            cells = ["" for _ in kinds]
            cells[-1:] = [_accuracy(row, "demonstrations")]
        last = [f"{row[most]:.3f}" if most in row else ""] if most else []
        table.add_row(str(row["policy"]), str(row.get("updates", "")), *cells, *last)
    return table


def _returns(rows: Sequence[Row]) -> Table:
    """Mean return of a control policy's episodes."""
    kinds = [kind for kind in ("deterministic", "sampled") if any(f"{kind}/return" in row for row in rows)]
    table = _columns("mean return of an episode, 95 % intervals", ["policy", "updates", *kinds, "length"])
    for row in rows:
        cells = [_return(row, kind) for kind in kinds]
        length = next((f"{row[f'{kind}/length']:.0f}" for kind in kinds if f"{kind}/length" in row), "")
        table.add_row(str(row["policy"]), str(row.get("updates", "")), *cells, length)
    return table


DRIVING = {
    "close enc. %": ("drive/close_encounter", 100, (1, 0)),
    "at fault %": ("drive/at_fault", 100, (1, 0)),
    "off road %": ("drive/off_road", 100, (1, 0)),
    "progress %": ("drive/ep", 100, (1, 0)),
    "ADE m": ("plan/ade", 1, (2, 2)),
    "reasoning 0-5": ("plan/quality", 1, (2, 2)),
    "consistency": ("plan/consistency", 1, (2, 2)),
}
"""Columns of the driving tables: metric, factor, digits of it and of its ends. The first four are of whole drives."""
PUBLISHED = {
    "after sft": (2.12, 3.1, 0.62, 6.9),
    "after reasoning": (2.19, 4.5, 0.53, 5.8),
    "after consistency": (1.92, 4.5, 0.85, 6.2),
    "after all": (1.94, 4.4, 0.83, 3.7),
}
"""ADE, reasoning, consistency and close encounters of Alpamayo-R1 (arXiv 2511.00088, Table 9), by stage."""


def driving_tables(rows: Sequence[Row], seeds: int = 1) -> list[Table]:
    """What happened in closed loop, and the plans beside the expert's; of an ablation the paper's figures too."""
    how = "95 % intervals" if seeds == 1 else f"mean of {seeds} seeds and their range"
    parts = (
        (f"held-out scenes in closed loop, {how}", list(DRIVING)[:4]),
        (f"plans, {how}", list(DRIVING)[4:]),
    )
    tables: list[Table] = []
    for title, names in parts:
        table = _columns(title, ["policy", *names])
        for row in rows:
            table.add_row(str(row["policy"]), *(_driving(row, name) for name in names))
        tables.append(table)
    by_policy = {row["policy"]: row for row in rows}
    if PUBLISHED.keys() <= by_policy.keys():
        names = ["ADE m", "reasoning 0-5", "consistency", "close enc. %"]
        table = _columns(f"ours, {how}; below, Alpamayo-R1's (Table 9)", ["training", *names])
        for policy, published in PUBLISHED.items():
            ours = [_driving(by_policy[policy], name) for name in names]
            table.add_row(policy.removeprefix("after "), *ours)
            table.add_row("  paper", *(f"{figure:g}" for figure in published))
        tables.append(table)
    return tables


def _driving(row: Row, column: str) -> str:
    metric, factor, digits = DRIVING[column]
    scaled = {name: factor * row[name] for name in (metric, f"{metric}/low", f"{metric}/high") if name in row}
    return _interval(scaled, metric, f"{metric}/low", f"{metric}/high", digits)


def _interval(row: Row, figure: str, low: str, high: str, digits: tuple[int, int]) -> str:
    """A figure with the ends of its interval; empty where the row has none."""
    if figure not in row:
        return ""
    between = "-" if row[low] >= 0 else " to "
    value, end = digits
    return f"{row[figure]:.{value}f} ({row[low]:.{end}f}{between}{row[high]:.{end}f})"


def _accuracy(row: Row, kind: str) -> str:
    return _interval(row, f"{kind}/accuracy", f"{kind}/low", f"{kind}/high", (3, 2))


def _return(row: Row, kind: str) -> str:
    return _interval(row, f"{kind}/return", f"{kind}/return/low", f"{kind}/return/high", (1, 1))


def _print_samples(console: Console, folder: Path, problems: int = 3) -> None:
    """What a language model answered to the same problems before anything and in the end."""
    from outdo.run import evaluation_samples

    samples = evaluation_samples(folder)
    if len(samples) < 2:
        return
    before, after = samples[min(samples)], samples[max(samples)]
    for first, last in list(zip(before, after, strict=False))[:problems]:
        if "scene" in first:
            _print_drive(console, first, last)
            continue
        if "prompt" not in first:  # episodes of a control run have nothing to read
            return
        console.print(f"\n{first['prompt']}  (right: {first['answer']})", markup=False, highlight=False)
        for when, row in (("before", first), ("after", last)):
            verdict = "right" if row["right"] else "wrong"
            console.print(f"  {when}, {verdict}: {row['greedy']!r}", markup=False, highlight=False)


def _print_drive(console: Console, first: Row, last: Row) -> None:
    """What was said in one scene at the first plan and what happened, before and after, beside the expert."""
    console.print(f"\n{first['scene']}  (expert: {first['expert']})", markup=False, highlight=False)
    for when, row in (("before", first), ("after", last)):
        happened = ", ".join(row["happened"]) or "nothing happened"
        console.print(f"  {when}, {happened}: {row['text'][:120]!r}", markup=False, highlight=False)


def print_seeds(result: Result, summary: Row) -> None:
    """Every seed's last evaluation, the curve over seeds, and where everything is."""
    console = Console()
    if result.interrupted_by is not None:
        _say(
            console,
            f"{result.interrupted_by}: saved. Continue with the same command, --out {result.folder} and --resume",
        )
        return
    metric, seeds, curve = summary["metric"], summary["seeds"], summary["curve"]
    if any("drive/close_encounter" in row for row in summary["results"]):
        print_table(summary["results"], len(seeds))
    if metric:
        table = _columns("", ["seed", metric])
        for each in seeds:
            table.add_row(str(each["seed"]), f"{each[metric]:.4g}")
        _say(console, f"{metric} after the last update")
        console.print(table)
        table = _columns("", ["updates", "mean", "interval", "range"])
        for point in thinned(curve):
            table.add_row(
                str(point["updates"]),
                f"{point['value']:.4g}",
                f"{point['low']:.4g} to {point['high']:.4g}",
                f"{point['least']:.4g} to {point['most']:.4g}",
            )
        _say(
            console, f"{metric} over {len(seeds)} seeds: interquartile mean, 95 % interval (bootstrap), range"
        )
        console.print(table)
    _say(console, f"run folder: {result.folder}")


def thinned(curve: Sequence[Row], most: int = 12) -> list[Row]:
    """At most `most` points of a curve, evenly, with its first and last."""
    if len(curve) <= most:
        return list(curve)
    return [curve[round(i * (len(curve) - 1) / (most - 1))] for i in range(most)]
