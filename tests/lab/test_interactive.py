"""The sliders' curves against closed forms and hand arithmetic, and that they come from the library."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from outdo.core import baselines, kl, objectives, returns
from outdo.lab import interactive
from outdo.lab.experiment import Panel, Series
from outdo.lab.interactive import TOYS, TRIALS
from outdo.lab.traces import layout, traces


def series(panel: Panel, label: str) -> Series:
    (found,) = [each for each in panel.series if each.label == label]
    return found


def near(series: Series, exact: list[float], error: list[float]) -> None:
    """Within 5 standard errors everywhere."""
    for measured, truth, one in zip(series.y, exact, error, strict=True):
        assert abs(measured - truth) <= 5 * one + 1e-9


@pytest.fixture(scope="module")
def toys():
    return {toy.name: toy for toy in (make() for make in TOYS.values())}


def test_every_slider_moves_its_curves_over_axes_that_stay(toys):
    for toy in toys.values():
        assert len(toy.values) == len(toy.frames) > 8
        assert toy.values == sorted(toy.values)
        shown = [[traces(panel) for panel in frame.panels] for frame in toy.frames]
        for before, after in itertools.pairwise(shown):
            assert before != after
            assert [len(panel) for panel in before] == [len(panel) for panel in after]
        assert len({frame.sentence for frame in toy.frames}) == len(toy.frames)


def test_lambda_moves_bias_and_spread_as_the_closed_form_says(toys):
    toy = toys["lam"]
    panel = toy.frames[toy.start].panels[1]
    bias, spread = series(panel, "bias"), series(panel, "s.d.")
    # δ_0 = r_0 − 0.3, δ_t = r_t but δ_19 = r_19 + 0.3: bias −0.3 + 0.3·λ^19, variance 0.09·Σ_{t<20} λ^2t.
    variance = [0.09 * sum(lam ** (2 * t) for t in range(20)) for lam in bias.x]
    near(bias, [-0.3 + 0.3 * lam**19 for lam in bias.x], [math.sqrt(v / TRIALS) for v in variance])
    near(spread, [math.sqrt(v) for v in variance], [math.sqrt(v / (2 * TRIALS)) for v in variance])
    here = series(panel, "here")
    assert (here.x, here.y[0]) == ([0.9, 0.9], bias.y[bias.x.index(0.9)])


def test_noise_moves_the_spread_as_the_closed_form_says(toys):
    toy = toys["noise"]
    panel = toy.frames[toy.start].panels[1]
    # Var ĝ = ¼E[(r − b)²] − 1/16: E[r²] = ½(25 + 36) + σ², E[(r − 5.5)²] = ¼ + σ².
    for label, square in (("without a baseline", 30.5), ("with b = 5.5", 0.25)):
        found = series(panel, label)
        exact = [math.sqrt(0.25 * (square + sigma**2) - 1 / 16) for sigma in found.x]
        near(found, exact, [s / math.sqrt(2 * TRIALS) for s in exact])
    histogram = series(toy.frames[toy.start].panels[0], "without a baseline")
    width = histogram.x[1] - histogram.x[0]
    assert sum(histogram.y) * width == pytest.approx(1)
    assert (
        max(y for x, y in zip(histogram.x, histogram.y, strict=False) if -1 < x < 1) < 0.02
    )  # between two humps


@pytest.mark.parametrize(
    ("label", "epsilon", "ratio", "objective", "weight"),
    [
        ("A = +1", 0.2, 1.5, 1.2, 0.0),
        ("A = +1", 0.2, 0.5, 0.5, 0.5),
        ("A = −1", 0.2, 0.5, -0.8, 0.0),
        ("A = −1", 0.2, 1.5, -1.5, -1.5),
        ("A = +1", 0.5, 1.4, 1.4, 1.4),
        ("A = −1", 0.5, 0.4, -0.5, 0.0),
    ],
)
def test_epsilon_moves_where_the_objective_is_flat(toys, label, epsilon, ratio, objective, weight):
    frame = toys["clip"].frames[toys["clip"].values.index(epsilon)]
    for panel, expected in zip(frame.panels, (objective, weight), strict=True):
        found = series(panel, label)
        place = min(range(len(found.x)), key=lambda i: abs(found.x[i] - ratio))
        assert found.y[place] == pytest.approx(expected)


def test_group_size_moves_mean_and_spread(toys):
    toy = toys["group"]
    for size, frame in zip(toy.values, toy.frames, strict=True):
        points = series(frame.panels[0], "mean ± s.d.")
        spread = [high - y for y, high in zip(points.y, points.high, strict=True)]
        # ∂J/∂logit = π(best)·(0.8 − 0.45) = 0.0875; the group mean leaves (G − 1)/G of it.
        exact = [0.0875, 0.0875 * (size - 1) / size, 0.0875]
        near(points, exact, [s / math.sqrt(TRIALS) for s in spread])
    first = series(toy.frames[0].panels[0], "mean ± s.d.")
    spread = [high - y for y, high in zip(first.y, first.high, strict=True)]
    assert spread == pytest.approx([0.227, 0.088, 0.176], abs=0.01)  # published for G = 2


def test_beta_moves_to_the_closed_form_of_the_best_policy(toys):
    toy = toys["penalty"]
    payouts, reference = [0.2, 0.5, 0.8, 0.3], [0.4, 0.3, 0.1, 0.2]
    for beta, frame in zip(toy.values, toy.frames, strict=True):
        weights = [p * math.exp(r / beta) for p, r in zip(reference, payouts, strict=True)]
        exact = [weight / sum(weights) for weight in weights]  # π ∝ π_ref · exp(r/β)
        assert series(frame.panels[0], "best policy").y == pytest.approx(exact, abs=1e-6)
        assert series(frame.panels[1], "here").y == pytest.approx(
            [sum(p * r for p, r in zip(exact, payouts, strict=True))], abs=1e-6
        )


class UsedError(Exception):
    """The library's function was called."""


def used(*args, **kwargs):
    raise UsedError


@pytest.mark.parametrize(
    ("make", "module", "function"),
    [
        (interactive.lam, returns, "gae"),
        (interactive.clip, objectives, "clipped"),
        (interactive.noise, objectives, "reinforce"),
        (interactive.group_size, baselines, "leave_one_out"),
        (interactive.penalty, kl, "exact"),
    ],
)
def test_the_curves_come_from_the_library(monkeypatch, make, module, function):
    monkeypatch.setattr(module, function, used)
    with pytest.raises(UsedError):
        make()


def panel(*many: Series, **changes) -> Panel:
    return Panel("x", "y", list(many), **changes)


def test_traces_say_what_the_series_say():
    points = Series("p", [0, 1], [1.0, 2.0], [0.5, 1.0], [4.0, 2.5], kind="points")
    steps = Series("s", [0, 1, 2], [3.0, 4.0], kind="steps")
    band = Series("b", [0, 1], [1.0, 2.0], [0.0, 1.0], [2.0, 3.0])
    first, second, low, high, line = traces(panel(points, steps, band))
    assert (first["error_y"]["array"], first["error_y"]["arrayminus"]) == ([3.0, 0.5], [0.5, 1.0])
    assert (second["y"], second["line"]["shape"]) == (
        [3.0, 4.0, 4.0],
        "hv",
    )  # the last height to the last edge
    assert (low["y"], high["y"], high["fill"], line["y"]) == ([0.0, 1.0], [2.0, 3.0], "tonexty", [1.0, 2.0])


@pytest.mark.parametrize(
    ("kind", "dashed"), [("line", False), ("line", True), ("points", False), ("bars", False)]
)
def test_traces_differ_without_colour(kind, dashed):
    drawn = traces(panel(*(Series(f"s{i}", [0, 1], [0, 1], kind=kind, dashed=dashed) for i in range(6))))
    looks = set()
    for trace in drawn:
        marker = trace.get("marker", {})
        looks.add(
            (marker.get("symbol"), marker.get("pattern", {}).get("shape"), trace.get("line", {}).get("dash"))
        )
    assert len(looks) == 6


def test_axes_hold_every_position_of_the_slider():
    frames = [panel(Series("s", [0, 10], [0, top], kind="bars")) for top in (1.0, -3.0)]
    axes = layout(frames)
    # From −3 to 1, and 5 % of 4 on each side.
    assert axes["yaxis"]["range"] == pytest.approx([-3.2, 1.2])
    named = layout([panel(Series("s", [0, 1], [1, 1]), ticks=["a", "b"])])
    assert (named["xaxis"]["ticktext"], named["xaxis"]["range"]) == (["a", "b"], [-0.5, 1.5])
    wide = layout([panel(Series("s", [1, 100], [1, 1]), log_x=True)])
    assert wide["xaxis"]["range"] == pytest.approx([-0.1, 2.1])  # decades


def test_the_best_policy_is_a_maximum():
    payouts = torch.tensor([0.0, 1.0], dtype=torch.float64)
    logits = interactive.penalised_optimum(payouts, torch.zeros(2, dtype=torch.float64), 0.5)
    # π ∝ (1, e²): log-odds 2.
    assert float(logits[1] - logits[0]) == pytest.approx(2.0)
