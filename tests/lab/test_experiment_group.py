"""F12 and F14: the rows agree, and a wrong divisor or ε turns them red."""

import pytest
from outcomes import names, outcome, outside, run

from outdo.core import baselines


def test_all_figures_agree():
    assert outside(outcome("group").figures) == set()


def test_the_published_example_by_hand():
    # 3 right of 8: mean 3/8, variance 3/8 · 5/8 = 15/64; (1 − 3/8)/√(15/64) = 5/√15.
    found = {figure.name: figure for figure in outcome("group").figures}
    assert found["advantage of a right answer, divisor n"].measured == pytest.approx(5 / 15**0.5)
    assert found["advantage of a wrong answer, divisor n"].measured == pytest.approx(-3 / 15**0.5)


def test_the_division_makes_a_millionth_as_loud_as_a_hundredth():
    found = {figure.name: figure.measured for figure in outcome("group").figures}
    loud = [found[f"÷ (s.d. + 1e−8): one answer {spread} better"] for spread in ("1e-06", "0.01")]
    plain = [found[f"r − mean: one answer {spread} better"] for spread in ("1e-06", "0.01")]
    assert loud[1] / loud[0] < 1.05
    assert plain[1] / plain[0] == pytest.approx(1e4)
    # ε = 0.01 is far above the spread of 3.3e−7: the group is all but silent.
    assert found["÷ (s.d. + 0.01): one answer 1e-06 better"] < 1e-4


def test_the_wrong_divisor_is_red(monkeypatch):
    right = baselines.group_std
    monkeypatch.setattr(baselines, "group_std", lambda s, g, m, ddof=0: right(s, g, m, 1 - ddof))
    figures = run("group").figures
    assert names(figures, "s.d., divisor n") | names(figures, "advantage of a") <= outside(figures)
    assert names(figures, "r − mean") & outside(figures) == set()


def test_dust_in_groups_of_equal_rewards_is_red(monkeypatch):
    # What rounding could leave of r − mean: a trillionth of r, divided by s.d. + 1e−4.
    right = baselines.group_mean
    monkeypatch.setattr(baselines, "group_mean", lambda s, g, m: right(s, g, m) + 1e-12 * s)
    assert "largest advantage in groups of equal rewards" in outside(run("group").figures)
