"""Results made by hand for the page: a slider's fact in each, every kind of series, a figure that is outside."""

from __future__ import annotations

from outdo.lab.experiment import Experiment, Figure, Outcome, Panel, Plot, Scale, Series
from outdo.lab.quiz import Choice, Question
from outdo.lab.run import Result

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(2)> & \"quotes' {{ 7 * 7 }} `<b>`"


def never(scale: Scale) -> Outcome:
    raise AssertionError("a page runs no experiment")


def result(name: str, facts: tuple[str, ...], figures: list[Figure], plots: list[Plot]) -> Result:
    experiment = Experiment(
        name=name,
        facts=facts,
        title=f"What {name} shows",
        formula="A = r − b\nE[A ∇ log π] = ∇J",
        text="A paragraph in plain words; see `lambda`.\n\nAnother one, with `code`.",
        settings="Ten samples, seed 0.",
        run=never,
    )
    return Result(experiment, Outcome(figures, plots), 4.0, 1.0)


def plot(name: str) -> Plot:
    """Every kind of series, a logarithmic axis, and many named ticks."""
    places = [1.0, 2.0, 4.0, 8.0]
    line = Series(
        "a line with a band", places, [1.0, 2.0, 3.0, 4.0], [0.5, 1.0, 2.0, 3.0], [1.5, 3.0, 4.0, 5.0]
    )
    exact = Series("exact", places, [1.0, 1.5, 2.0, 2.5], dashed=True)
    points = Series(
        "points", places, [4.0, 3.0, 2.0, 1.0], [3.0, 2.0, 1.0, 0.5], [5.0, 4.0, 3.0, 1.5], kind="points"
    )
    steps = Series("counts", [0.0, 1.0, 2.0, 3.0], [2.0, 5.0, 1.0], kind="steps")
    names = [f"case number {i}" for i in range(9)]
    bars = [
        Series(label, list(range(9)), [1.0 - 0.2 * i for i in range(9)], kind="bars")
        for label in ("here", "there")
    ]
    panels = [
        Panel("size", "value", [line, exact, points], "curves", log_x=True),
        Panel("value", "count", [steps]),
        Panel("", "height", bars, ticks=names),
    ]
    return Plot(name, f"The plot {name}", panels)


def results(outside: bool = True) -> list[Result]:
    """Five experiments with a slider each and one without."""
    far = Figure("far away", 2.0, published=1.0, exact=1.1, rounding=0.05, error=0.01)
    near = Figure("close by", -0.3052, published=-0.31, exact=-0.3, rounding=0.005, error=0.007)
    return [
        result("returns", ("F1",), [Figure("G_0", 7.29, published=7.29, exact=7.29)], []),
        result("noise", ("F4", "F5"), [near], [plot("noise")]),
        result("lambda", ("F7",), [near, *([far] if outside else [])], [plot("lambda")]),
        result("clip", ("F8", "F9"), [near], []),
        result("kl", ("F10", "F11"), [near], []),
        result("shrinkage", ("F13",), [near], []),
    ]


def questions() -> list[Question]:
    """Two questions, the second about an experiment without a picture."""
    choices = [
        Choice(text="It lowers the spread.", feedback="From 2.8 to 0.5.", right=True),
        Choice(text="It raises the mean.", feedback="The mean stays."),
        Choice(text="Nothing.", feedback="Look at the spread."),
    ]
    return [
        Question(
            text="What does a baseline change?", choices=choices, experiment="lambda", figure="close by"
        ),
        Question(text="And what is G_0?", choices=choices, experiment="returns", figure="G_0"),
    ]
