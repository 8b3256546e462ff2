"""Pictures of plots by matplotlib: PNG and SVG files, and one SVG a panel for the page. Without pyplot."""

from __future__ import annotations

import io
import itertools
import re
import textwrap
from pathlib import Path
from typing import Any

from outdo.lab.experiment import Panel, Plot, Series

try:
    import matplotlib
    from matplotlib.axes import Axes
    from matplotlib.container import Container
    from matplotlib.figure import Figure, FigureBase
    from matplotlib.ticker import FuncFormatter, NullFormatter
except ImportError as error:
    raise ImportError("pictures need matplotlib: pip install 'outdo[lab]'") from error

INK = "#17191c"
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", INK)
"""Distinct to the colour-blind: Okabe & Ito, "Color Universal Design", 2008."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X")
DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (7, 2, 1.5, 2)), (0, (3, 1)), (0, (9, 3)), (0, (1, 3)))
HATCHES = ("", "//", "\\\\", "xx", "--", "||", "++")
WIDTH, HEIGHT = 3.9, 2.9
"""Size of a panel in inches, without its legend."""
STYLE: Any = {
    "font.size": 10,
    "axes.titlesize": 10.5,
    "legend.fontsize": 9.5,
    "legend.handlelength": 2.4,
    "text.parse_math": False,
    "text.color": INK,
    "axes.edgecolor": INK,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.color": "#80808059",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "hatch.linewidth": 0.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "outdo",
}


def draw(plot: Plot, folder: Path) -> list[Path]:
    """Write `NAME.png` and `NAME.svg` of a plot into the folder; the same plot gives the same bytes.

    Raises ValueError for a name that is no file name and for series whose lists differ in length.
    """
    if not re.fullmatch(r"[A-Za-z0-9_-]+", plot.name):
        raise ValueError(f"plot name {plot.name!r}: use letters, digits, '-' and '_', it becomes a file name")
    folder.mkdir(parents=True, exist_ok=True)
    columns = len(plot.panels) if len(plot.panels) <= 3 else 2
    rows = -(-len(plot.panels) // columns)
    widths = [max(map(_width, plot.panels[c::columns])) for c in range(columns)]
    heights = [max(map(_height, plot.panels[r * columns : (r + 1) * columns])) for r in range(rows)]
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(sum(widths), sum(heights) + 0.3), layout="constrained")
        figure.suptitle(textwrap.fill(plot.title, int(10.5 * sum(widths))), fontsize=11, fontweight="bold")
        parts = figure.subfigures(rows, columns, squeeze=False, width_ratios=widths, height_ratios=heights)
        for part, panel in zip(parts.flat, plot.panels, strict=False):
            _draw_panel(part, panel)
        png, svg = folder / f"{plot.name}.png", folder / f"{plot.name}.svg"
        figure.savefig(png, dpi=200, facecolor="white", metadata={"Software": None})
        figure.savefig(svg, facecolor="white", metadata={"Date": None, "Creator": None})
    return [png, svg]


def panel_svg(panel: Panel, salt: str) -> str:
    """One panel as an `<svg>` element to stand in a page: no background, ink in the page's colour.

    `salt` goes into the ids inside: different in every picture of a page.
    """
    with matplotlib.rc_context(STYLE | {"svg.hashsalt": salt}):
        figure = Figure(figsize=(_width(panel), _height(panel)), layout="constrained")
        _draw_panel(figure, panel)
        file = io.StringIO()
        nothing: dict[str, Any] = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(file, format="svg", transparent=True, metadata=nothing)
    text = file.getvalue()
    text = text[text.index("<svg") :].replace(INK, "currentColor")
    text = re.sub(r"<style.*?</style>", "", text, flags=re.DOTALL)  # would hold for the whole page
    # Many pictures stand in one page: only ids that something refers to stay, and those are salted.
    used = set(re.findall(r"[(\"]#([^)\"]+)", text))
    return re.sub(r' id="([^"]+)"', lambda match: match[0] if match[1] in used else "", text)


def is_wide(panel: Panel) -> bool:
    """Whether a panel needs more than the usual width: many named ticks."""
    return panel.ticks is not None and len(panel.ticks) > 6


def _width(panel: Panel) -> float:
    """Width of a panel in inches."""
    return WIDTH * (1.7 if is_wide(panel) else 1.0)


def _height(panel: Panel) -> float:
    """Height of a panel in inches, with room for its legend."""
    columns = _legend_columns(panel.series)
    lines = sum(len(_wrapped(series.label).split("\n")) for series in panel.series)
    return HEIGHT + (0.19 * -(-lines // columns) if len(panel.series) > 1 else 0.0)


def _legend_columns(series: list[Series]) -> int:
    """How many labels stand side by side under a panel."""
    longest = max((len(each.label) for each in series), default=0)
    return max(1, min(len(series), 3, 46 // (longest + 6)))


def _wrapped(text: str, width: int = 40) -> str:
    return textwrap.fill(text, width)


def _draw_panel(figure: FigureBase, panel: Panel) -> None:
    """Axes, curves and a legend below them."""
    axes = figure.add_subplot()
    handles = [_draw_series(axes, panel, index) for index in range(len(panel.series))]
    axes.set_xlabel(_wrapped(panel.x_label))
    axes.set_ylabel(_wrapped(panel.y_label, 28))
    axes.set_title(_wrapped(panel.title))
    if panel.ticks is not None:
        crowded = len(panel.ticks) * (max(map(len, panel.ticks)) + 1) > 11.5 * _width(panel)
        turned: dict[str, Any] = {"rotation": 35, "ha": "right", "rotation_mode": "anchor"} if crowded else {}
        axes.set_xticks(range(len(panel.ticks)), panel.ticks, **turned)
        axes.grid(visible=False, axis="x")
    if panel.log_x:
        places = sorted({x for series in panel.series for x in series.x})
        axes.set_xscale("log")
        if len(places) <= 8:
            axes.set_xticks(places)
        axes.xaxis.set_major_formatter(FuncFormatter(_plain))
        axes.xaxis.set_minor_formatter(NullFormatter())
    if len(panel.series) > 1:
        labels = [_wrapped(series.label) for series in panel.series]
        figure.legend(
            handles, labels, loc="outside lower center", ncols=_legend_columns(panel.series), frameon=False
        )


def _plain(value: float, _: int | None = None) -> str:
    """A tick of a logarithmic axis without mathematical markup: 0.01, 100, 1e−6."""
    return re.sub(r"e([-+])0*", r"e\1", f"{value:g}").replace("-", "−").replace("+", "")


def _draw_series(axes: Axes, panel: Panel, index: int) -> Any:
    """Draw one series; returns what its legend entry shows."""
    series = panel.series[index]
    _check(series, panel)
    colour, marker = COLOURS[index % len(COLOURS)], MARKERS[index % len(MARKERS)]
    error = _error_bars(series)
    if series.kind == "bars":
        place, width = _places(panel, series)
        hatch = HATCHES[sum(other.kind == "bars" for other in panel.series[:index]) % len(HATCHES)]
        axes.axhline(0, color=INK, linewidth=0.8)
        bars: Container = axes.bar(
            place, series.y, width, yerr=error, color=colour, hatch=hatch, edgecolor="white", ecolor=INK
        )
        return bars
    if series.kind == "points":
        place, _ = _places(panel, series)
        return axes.errorbar(place, series.y, yerr=error, fmt=marker, color=colour, capsize=2.5, elinewidth=1)
    if series.kind == "steps":
        style: Any = "--" if series.dashed else DASHES[index % len(DASHES)]
        edges = series.x if len(series.x) == len(series.y) + 1 else _edges(series.x)
        axes.stairs(series.y, edges, fill=True, color=colour, alpha=0.15)
        return axes.stairs(series.y, edges, color=colour, linestyle=style, linewidth=1.6)
    if series.low is not None and series.high is not None:
        axes.fill_between(series.x, series.low, series.high, color=colour, alpha=0.18, linewidth=0)
    dashes: Any = DASHES[1 + sum(other.dashed for other in panel.series[:index]) % (len(DASHES) - 1)]
    marked = len(panel.series) > 1 and len(series.x) > 2 and not series.dashed
    (line,) = axes.plot(
        series.x,
        series.y,
        color=colour,
        linestyle=dashes if series.dashed else "-",
        marker=marker if marked else None,
        # Each curve has its marks at other places, so that those of curves that meet can be told apart.
        markevery=(index / (8 * len(panel.series)), 0.125) if marked and len(series.x) > 12 else None,
    )
    return line


def _check(series: Series, panel: Panel) -> None:
    """Refuse lists of unequal lengths; a histogram may give the edges of its bins, one more than heights."""
    lengths = {len(values) for values in (series.y, series.low, series.high) if values is not None}
    extra = 1 if series.kind == "steps" and len(series.x) == len(series.y) + 1 else 0
    if lengths != {len(series.x) - extra} or (series.low is None) != (series.high is None):
        raise ValueError(
            f"series {series.label!r} of panel {panel.y_label!r}: x, y, low and high must have one length "
            "(x one more where steps give edges), and low comes with high"
        )


def _error_bars(series: Series) -> list[list[float]] | None:
    """Distances below and above, as matplotlib wants them."""
    if series.low is None or series.high is None:
        return None
    return [
        [y - low for y, low in zip(series.y, series.low, strict=True)],
        [high - y for y, high in zip(series.y, series.high, strict=True)],
    ]


def _places(panel: Panel, series: Series) -> tuple[list[float], float]:
    """Places and width of bars or points: side by side where several series have the same named ticks."""
    kin = [other for other in panel.series if other.kind == series.kind]
    gap = min((b - a for a, b in itertools.pairwise(sorted(series.x)) if b > a), default=1)
    width = 0.8 * gap / len(kin)
    if len(kin) == 1 or (series.kind == "points" and panel.ticks is None):
        return series.x, width
    offset = (next(i for i, other in enumerate(kin) if other is series) - (len(kin) - 1) / 2) * width
    return [x + offset for x in series.x], width


def _edges(centres: list[float]) -> list[float]:
    """Edges of bins from their centres: half-way between neighbours."""
    middle = [(a + b) / 2 for a, b in itertools.pairwise(centres)]
    return [2 * centres[0] - middle[0], *middle, 2 * centres[-1] - middle[-1]]
