"""The lab's page: one `index.html` with pictures, tables, sliders and a quiz, that needs no network."""

from __future__ import annotations

import re
from collections.abc import Container, Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outdo.core.calls import nearest
from outdo.lab.experiment import Figure, Panel
from outdo.lab.interactive import TOYS, Toy
from outdo.lab.quiz import Question
from outdo.lab.registry import FALSE_ALARMS
from outdo.lab.show import number, tolerance
from outdo.lab.traces import layout, traces

try:
    from jinja2 import Environment, FunctionLoader, StrictUndefined
    from markupsafe import Markup, escape
    from plotly.offline import get_plotlyjs
except ImportError as error:
    raise ImportError("the lab's page needs jinja2 and plotly: pip install 'outdo[lab]'") from error

from outdo.lab.plots import is_wide, panel_svg

if TYPE_CHECKING:
    from outdo.lab.run import Result

View = dict[str, Any]
"""What the template reads of one thing."""


def write_page(
    results: Sequence[Result], folder: Path, questions: Sequence[Question] = (), command: str = ""
) -> Path:
    """Write `index.html` into the folder: every result, with its slider and with the questions about it.

    `command` are the arguments that made the results. Raises ValueError for a question whose experiment was
    run and has no such figure.
    """
    if not results:
        raise ValueError("a page needs at least one result: run an experiment first")
    toys = _toys(results)
    names = {result.experiment.name for result in results}
    sections = [_section(result, names, toys.get(result.experiment.name)) for result in results]
    every = [row for section in sections for row in section["figures"]]
    environment = Environment(
        loader=FunctionLoader(_source), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    text = environment.get_template("page.html").render(
        sections=sections,
        total=len(every),
        within=sum(row["within"] for row in every),
        z=f"{results[0].z:.2f}",
        alarms=f"{1 / FALSE_ALARMS:,.0f}",
        questions=[view for question in questions for view in _question(question, results)],
        toys=[_moves(toy) for toy in toys.values()],
        css=Markup(_source("page.css")),
        js=Markup(_source("page.js")),
        plotly=Markup(get_plotlyjs()) if toys else "",
        version=version("outdo"),
        command=f" {command}" if command else "",
    )
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "index.html"
    path.write_text(text, "utf-8")
    return path


def _source(name: str) -> str:
    """A file of the folder `page`, which ships with the package."""
    return (files("outdo.lab") / "page" / name).read_text("utf-8")


def _toys(results: Sequence[Result]) -> dict[str, Toy]:
    """Sliders by the experiment that they stand in: the first that serves their fact."""
    found: dict[str, Toy] = {}
    for fact, make in TOYS.items():
        for result in results:
            if fact in result.experiment.facts and result.experiment.name not in found:
                found[result.experiment.name] = make()
                break
    return found


def _section(result: Result, names: Container[str], toy: Toy | None) -> View:
    """An experiment with its text, pictures, slider and table."""
    experiment = result.experiment
    plots = [
        {
            "title": plot.title,
            "panels": [
                _panel(panel, plot.title, f"{experiment.name} {i} {j}") for j, panel in enumerate(plot.panels)
            ],
        }
        for i, plot in enumerate(result.outcome.plots)
    ]
    return {
        "name": experiment.name,
        "anchor": _anchor(experiment.name),
        "title": experiment.title,
        "facts": ", ".join(experiment.facts),
        "text": _paragraphs(experiment.text, names),
        "formula": [line.rstrip() for line in experiment.formula.strip().splitlines()],
        "settings": _paragraphs(experiment.settings, names),
        "plots": plots,
        "figures": [_row(figure, result.z) for figure in result.outcome.figures],
        "within": result.within,
        "toy": toy and _controls(toy),
    }


def _anchor(name: str) -> str:
    """The id of an experiment's section; no other id of the page begins so."""
    return "experiment-" + re.sub(r"[^A-Za-z0-9_-]", "-", name)


def _paragraphs(text: str, names: Container[str]) -> list[Markup]:
    """Paragraphs of prose: `code` between backticks, and a link where it is the name of a section."""

    def code(match: re.Match[str]) -> str:
        inside = f"<code>{match[1]}</code>"
        return f'<a href="#{_anchor(match[1])}">{inside}</a>' if match[1] in names else inside

    parts = [part for part in re.split(r"\n\s*\n", text.strip()) if part]
    return [Markup(re.sub(r"`([^`]+)`", code, str(escape(part)))) for part in parts]


def _panel(panel: Panel, title: str, salt: str) -> View:
    """A panel's picture, and what is said of it to those who do not see it."""
    return {
        "svg": Markup(panel_svg(panel, salt)),
        "label": _label(panel, title),
        "wide": is_wide(panel),
    }


def _label(panel: Panel, title: str) -> str:
    """A picture in words."""
    curves = "; ".join(series.label for series in panel.series)
    name = f"{title}, {panel.title}" if panel.title else title
    return f"{name}: {panel.y_label}, against {panel.x_label or 'the named cases'}. Shown: {curves}."


def _row(figure: Figure, z: float) -> View:
    """A figure as text."""
    return {
        "name": figure.name,
        "published": number(figure.published),
        "exact": number(figure.exact),
        "measured": number(figure.measured),
        "tolerance": tolerance(figure, z),
        "within": figure.within(z),
    }


def _controls(toy: Toy) -> View:
    """What stands around a slider's pictures."""
    return {
        "name": toy.name,
        "title": toy.title,
        "text": toy.text,
        "symbol": toy.symbol,
        "last": len(toy.frames) - 1,
        "start": toy.start,
        "sentence": toy.frames[toy.start].sentence,
        "labels": [_label(panel, toy.title) for panel in toy.frames[toy.start].panels],
    }


def _moves(toy: Toy) -> View:
    """What page.js shows at every position of a slider."""
    panels = range(len(toy.frames[0].panels))
    return {
        "name": toy.name,
        "symbol": toy.symbol,
        "values": [f"{value:g}" for value in toy.values],
        "layouts": [layout([frame.panels[i] for frame in toy.frames]) for i in panels],
        "frames": [
            {"sentence": frame.sentence, "panels": [traces(panel) for panel in frame.panels]}
            for frame in toy.frames
        ],
    }


def _question(question: Question, results: Sequence[Result]) -> list[View]:
    """The question with the measured figure; nothing where its experiment was not run."""
    for result in results:
        if result.experiment.name != question.experiment:
            continue
        measured = {figure.name: figure.measured for figure in result.outcome.figures}
        if question.figure not in measured:
            raise ValueError(
                f"quiz: the question {question.text!r} points at the figure {question.figure!r} of "
                f"{question.experiment!r}; {nearest(question.figure, measured)}"
            )
        return [
            {
                "text": question.text,
                "choices": question.shuffled(),
                "anchor": _anchor(question.experiment),
                "title": result.experiment.title,
                "figure": question.figure,
                "measured": number(measured[question.figure]),
            }
        ]
    return []
