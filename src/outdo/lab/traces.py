"""Panels as plotly traces and layout: plain data, drawn by plotly.js in the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from outdo.lab.experiment import Panel, Series

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
SYMBOLS = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross")
DASHES = ("solid", "dash", "dot", "dashdot", "longdash", "longdashdot")
PATTERNS = ("", "/", "\\", "x", "-", "|")

Json = dict[str, Any]


def layout(frames: Sequence[Panel]) -> Json:
    """Axes wide enough for the panel in every position of the slider, so that the curves move and they do not."""
    panel = frames[0]
    series = [each for frame in frames for each in frame.series]
    x_axis: Json = {"title": {"text": panel.x_label}, "fixedrange": True}
    if panel.ticks is not None:
        places = list(range(len(panel.ticks)))
        # Long names take two lines, for the width of a phone.
        texts = [tick.replace(" ", "<br>", 1) if len(tick) > 8 else tick for tick in panel.ticks]
        x_axis |= {"tickvals": places, "ticktext": texts, "range": [-0.5, len(places) - 0.5]}
    elif panel.log_x:
        places = sorted({x for each in series for x in each.x})
        low, high = math.log10(places[0]), math.log10(places[-1])
        x_axis |= {"type": "log", "range": _range([low, high])}
        x_axis |= {"tickvals": places, "ticktext": [f"{place:g}" for place in places]}
    else:
        x_axis["range"] = _range([x for each in series for x in each.x])
    values = [
        y for each in series for many in (each.y, each.low, each.high) if many is not None for y in many
    ]
    zero = [0.0] if any(each.kind in ("bars", "steps") for each in series) else []
    return {
        "title": {"text": panel.title},
        "xaxis": x_axis,
        "yaxis": {"title": {"text": panel.y_label}, "fixedrange": True, "range": _range(values + zero)},
        "barmode": "group",
    }


def traces(panel: Panel) -> list[Json]:
    """The curves of a panel in the looks of `outdo.lab.plots`: colour and, besides, mark, dash or pattern."""
    found: list[Json] = []
    for index, series in enumerate(panel.series):
        colour = COLOURS[index % len(COLOURS)]
        if series.kind == "line" and series.low is not None and series.high is not None:
            found.extend(_band(series, colour))
        found.append(
            {"name": series.label, "x": _short(series.x), "y": _short(series.y), **_look(series, index)}
        )
    return found


def _look(series: Series, index: int) -> Json:
    """Type, line, mark and error bars of a series."""
    colour = COLOURS[index % len(COLOURS)]
    symbol, dash = SYMBOLS[index % len(SYMBOLS)], DASHES[index % len(DASHES)]
    error: Json = {}
    if series.kind in ("bars", "points") and series.low is not None and series.high is not None:
        above = [high - y for y, high in zip(series.y, series.high, strict=True)]
        below = [y - low for y, low in zip(series.y, series.low, strict=True)]
        error = {"error_y": {"array": _short(above), "arrayminus": _short(below), "thickness": 1.5}}
    if series.kind == "bars":
        pattern = {"shape": PATTERNS[index % len(PATTERNS)], "fgcolor": "white", "fillmode": "overlay"}
        return {"type": "bar", "marker": {"color": colour, "pattern": pattern}, **error}
    if series.kind == "points":
        return {"type": "scatter", "mode": "markers", "marker": _mark(colour, symbol, 11), **error}
    line: Json = {
        "color": colour,
        "width": 2.2,
        "dash": dash if series.kind == "steps" or series.dashed else "solid",
    }
    if series.kind == "steps":
        # The last height is drawn up to the last edge.
        steps = {"y": _short([*series.y, *series.y[-1:]]), "line": line | {"shape": "hv"}}
        return {"type": "scatter", "mode": "lines", "fill": "tozeroy", "fillcolor": colour + "26", **steps}
    if series.dashed:
        return {"type": "scatter", "mode": "lines", "line": line}
    return {
        "type": "scatter",
        "mode": "lines+markers",
        "line": line,
        "marker": _mark(colour, symbol, 7) | {"maxdisplayed": 8},
    }


def _band(series: Series, colour: str) -> list[Json]:
    """Two lines that are not seen and the area between them."""
    unseen: Json = {
        "type": "scatter",
        "mode": "lines",
        "line": {"width": 0},
        "hoverinfo": "skip",
        "showlegend": False,
    }
    low = {"x": _short(series.x), "y": _short(series.low or []), **unseen}
    high = {
        "x": _short(series.x),
        "y": _short(series.high or []),
        "fill": "tonexty",
        "fillcolor": colour + "2e",
    }
    return [low, high | unseen]


def _mark(colour: str, symbol: str, size: int) -> Json:
    return {"color": colour, "symbol": symbol, "size": size}


def _range(values: list[float]) -> list[float]:
    """From the least to the greatest, with a margin."""
    low, high = min(values), max(values)
    margin = 0.05 * (high - low) or 1.0
    return [low - margin, high + margin]


def _short(values: Sequence[float]) -> list[float]:
    """Five significant digits are more than a screen shows."""
    return [float(f"{value:.5g}") for value in values]
