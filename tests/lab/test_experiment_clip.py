"""F8 and F9: the rows agree, and a broken objective turns them red."""

from dataclasses import replace

import pytest
import torch
from outcomes import names, outcome, outside

from outdo.core import objectives
from outdo.core.algorithm import Algorithm
from outdo.lab.experiments import clip


def test_all_figures_agree():
    assert outside(outcome("clip").figures) == set()


def test_the_published_points_are_all_there():
    # F8: six values; F9: two slopes of zero and their two mirror images.
    figures = {figure.name: figure for figure in outcome("clip").figures}
    assert len(names(list(figures.values()), "value")) == 6
    assert figures["value, A = -2, ρ = 0.5"].measured == pytest.approx(-1.6)
    assert figures["slope in ρ, A = +1, ρ = 1.3"].measured == 0
    assert figures["slope in ρ, A = -1, ρ = 1.3"].measured == pytest.approx(-1)


def test_the_plot_shows_a_flat_half_on_the_right_side():
    good, bad = (panel.series[0] for panel in outcome("clip").plots[0].panels)
    assert good.y[-1] == pytest.approx(1.2)  # A = +1: constant beyond 1 + ε
    assert good.y[0] == pytest.approx(good.x[0])  # and ρA below
    assert bad.y[0] == pytest.approx(-0.8)  # A = −1: constant below 1 − ε
    assert bad.y[-1] == pytest.approx(-bad.x[-1])


@pytest.mark.parametrize(
    ("broken", "red"),
    [
        (lambda loss, flat: (-loss, flat), "value, A = +2, ρ = 1.1"),
        (lambda loss, flat: (-loss, flat), "slope in ρ, A = +1, ρ = 0.7"),
        (lambda loss, flat: (loss, ~flat), "ratios where slope 0 and the reported region disagree"),
    ],
)
def test_a_broken_objective_turns_rows_red(monkeypatch, broken, red):
    right = objectives.clipped
    monkeypatch.setattr(objectives, "clipped", lambda *args, **kwargs: broken(*right(*args, **kwargs)))
    figures, _ = clip.surface()
    assert red in outside(figures)


def test_without_the_clip_the_slopes_are_red(monkeypatch):
    def unclipped(logp, old_logp, advantage, mask, *_):
        return -(logp - old_logp).exp() * advantage, torch.zeros_like(mask)

    monkeypatch.setattr(objectives, "clipped", unclipped)
    assert {"value, A = +2, ρ = 1.5", "slope in ρ, A = -1, ρ = 0.7"} <= outside(clip.surface()[0])


def test_a_wrong_share_is_noticed(monkeypatch):
    right = Algorithm.loss

    def complement(self, *args):
        loss = right(self, *args)
        flat, steps = loss.metrics["clip_share"]
        return replace(loss, metrics=loss.metrics | {"clip_share": (steps - flat, steps)})

    monkeypatch.setattr(Algorithm, "loss", complement)
    figures, _ = clip.held_back(5)
    assert names(figures, "share clipped") <= outside(figures)
