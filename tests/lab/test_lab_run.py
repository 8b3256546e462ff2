"""Registry, runner and the command: names, tolerances, rows, folders, exit codes."""

import json
import math
import re
from statistics import NormalDist

import pytest
import torch
from typer.testing import CliRunner

from outdo.cli import app
from outdo.core import returns
from outdo.lab import registry
from outdo.lab import run as lab
from outdo.lab.experiment import Experiment, Figure, Outcome, Scale, digits, holds

NO_PICTURES = pytest.mark.usefixtures("without_pictures")


def call(*arguments, code=0):
    result = CliRunner().invoke(app, ["lab", *arguments])
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.stderr if code == 2 else result.stdout


@pytest.fixture
def without_pictures(monkeypatch, tmp_path):
    """Pictures and page have tests of their own."""
    monkeypatch.setattr("outdo.lab.plots.draw", lambda plot, folder: [])
    monkeypatch.chdir(tmp_path)


# -- registry ---------------------------------------------------------------------------------------------


def test_every_fact_that_is_measured_has_an_experiment():
    served = {fact for each in registry.experiments().values() for fact in each.facts}
    assert served >= {f"F{k}" for k in range(1, 20)}


def test_experiments_come_in_the_order_of_their_facts():
    numbers = [int(each.facts[0][1:]) for each in registry.experiments().values()]
    assert numbers == sorted(numbers)


@pytest.mark.parametrize("name", list(registry.experiments()))
def test_an_experiment_says_what_it_is(name):
    each = registry.experiments()[name]
    assert re.fullmatch(r"[a-z][a-z0-9_]*", name)
    assert name not in ("run", "explain", "compare")  # words of the command
    for text in (each.title, each.formula, each.text, each.settings):
        assert text.strip()
    assert all(re.fullmatch(r"F\d+", fact) for fact in each.facts)


def test_select_keeps_the_order_asked_for_and_drops_repetitions():
    assert [each.name for each in registry.select(["gae", "returns", "gae"])] == ["gae", "returns"]
    assert [each.name for each in registry.select([])] == list(registry.experiments())
    with pytest.raises(ValueError, match="unknown experiment 'gea'; did you mean 'gae'"):
        registry.select(["returns", "gea"])


def test_deviate_keeps_the_false_alarms_of_the_whole_lab():
    # All of n independent figures within z: (2Φ(z) − 1)^n, which must be about 1 − 1/1000.
    for count in (1, 20, 300):
        within = 2 * NormalDist().cdf(registry.deviate(count)) - 1
        assert within**count == pytest.approx(0.999, abs=1e-6)
    assert registry.deviate(1) == pytest.approx(3.2905, abs=1e-4)
    assert registry.deviate(0) == registry.deviate(1)


# -- figures ----------------------------------------------------------------------------------------------


def test_tolerances_by_hand():
    # Published 0.31 ± 0.005 on a sample with error 0.03, measured with error 0.04: 0.005 + 2·0.05.
    figure = Figure("x", 0.4, published=0.31, exact=0.30, rounding=0.005, error=0.04, published_error=0.03)
    assert figure.tolerance(2.0) == pytest.approx(0.105)
    assert figure.exact_tolerance(2.0) == pytest.approx(0.08)
    assert not figure.within(2.0)  # 0.1 from exact
    assert figure.within(2.6)
    assert not Figure("x", math.nan, published=1.0, rounding=9.0).within(4.0)
    assert Figure("x", 0.125, published=0.13, rounding=0.005).within(4.0)
    assert not Figure("x", 0.12, published=0.13, rounding=0.005).within(4.0)
    with pytest.raises(ValueError, match="neither"):
        Figure("x", 1.0).within(4.0)


def test_the_very_same_draws_are_allowed_their_rounding_only():
    figure = Figure("x", 2.79, published=2.78, exact=2.795, rounding=0.005, error=0.03, same_draws=True)
    assert not figure.within(4.0)
    assert Figure("x", 2.784, 2.78, 2.795, 0.005, 0.03, same_draws=True).within(4.0)


@pytest.mark.parametrize(
    ("text", "value", "rounding"),
    [
        ("0.31", 0.31, 0.005),
        ("−0.06", -0.06, 0.005),
        ("+1.29", 1.29, 0.005),
        ("5.0", 5.0, 0.05),
        ("3", 3.0, 0.5),
        ("2e-3", 0.002, 0.0005),
    ],
)
def test_digits(text, value, rounding):
    assert digits(text) == (pytest.approx(value), pytest.approx(rounding))


def test_a_statement_holds_beyond_chance_only():
    assert holds("slower", 0.34, 0.1).within(4.0)
    assert not holds("slower", 0.32, 0.1).within(4.0)
    assert not holds("slower", -1.0, 0.0).within(4.0)
    assert holds("slower", 1e-9, 0.0).measured == 1


def test_count():
    assert Scale().count(10, 200) == 10
    assert Scale(full=True).count(10, 200) == 200
    assert Scale(full=True).count(10) == 10
    assert Scale(seeds=3, full=True).count(10, 200) == 3


# -- running ----------------------------------------------------------------------------------------------


def made(name, *figures):
    return Experiment(
        name, ("F1",), f"title of {name}", "x = 1", "text", "settings", lambda scale: Outcome(list(figures))
    )


def test_z_counts_the_comparisons_that_chance_takes_part_in(monkeypatch):
    sure = Figure("sure", 1.0, published=1.0, exact=1.0, rounding=0.5)
    both = Figure("both", 1.0, published=1.0, exact=1.0, error=0.1)
    theirs = Figure("theirs", 1.0, published=1.0, exact=1.0, published_error=0.1)
    same = Figure("same", 1.0, published=1.0, exact=1.0, error=0.1, same_draws=True)
    monkeypatch.setattr(lab, "select", lambda names: [made("a", sure, both), made("b", theirs, same)])
    results = lab.run()
    assert [result.z for result in results] == [registry.deviate(2 + 1 + 1)] * 2


def test_rows_and_report(monkeypatch):
    figures = (
        Figure("good", 0.5, published=0.5, rounding=0.05),
        Figure("bad", math.nan, exact=0.0, error=math.inf),
    )
    monkeypatch.setattr(lab, "select", lambda names: [made("one", *figures)])
    report = lab.report(lab.run(), Scale(seeds=4))
    assert json.loads(json.dumps(report, allow_nan=False)) == report
    assert [row["within"] for row in report["rows"]] == [True, False]
    assert report["rows"][0] | {"tolerance": 0.05} == {
        "experiment": "one",
        "facts": ["F1"],
        "figure": "good",
        "published": 0.5,
        "exact": None,
        "measured": 0.5,
        "tolerance": 0.05,
        "exact_tolerance": None,
        "within": True,
    }
    assert report["rows"][1]["measured"] is None
    assert report["within"] is False
    assert report["seeds"] == 4
    assert report["experiments"][0]["within"] is False
    assert re.match(r"\d+\.\d+", report["torch"])


def test_threads_are_given_back_even_after_a_fault(monkeypatch):
    def fault(scale):
        assert torch.get_num_threads() == 1
        raise RuntimeError("broken")

    monkeypatch.setattr(lab, "select", lambda names: [Experiment("a", ("F1",), "t", "f", "t", "s", fault)])
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    with pytest.raises(RuntimeError, match="broken"):
        lab.run()
    assert torch.get_num_threads() == 2
    torch.set_num_threads(before)


# -- the command ------------------------------------------------------------------------------------------


def test_a_run_prints_the_table_and_writes_everything(tmp_path):
    folder = tmp_path / "out"
    text = call("returns", "baseline", "--out", str(folder))
    for word in ("experiment", "published", "exact", "measured", "tolerance", "within", "7.29", "1.5625"):
        assert word in text
    assert "NO" not in text
    assert "19 of 19 figures within" in text
    assert {path.name for path in folder.iterdir()} == {
        "lab.json",
        "index.html",
        *(f"{name}.{kind}" for name in ("returns", "baseline") for kind in ("png", "svg")),
    }
    stored = json.loads((folder / "lab.json").read_text("utf-8"))
    assert len(stored["rows"]) == 19
    assert stored["within"] is True
    assert "holds results of the lab already" in call("returns", "--out", str(folder), code=2)


@NO_PICTURES
def test_json_is_the_report(tmp_path):
    shown = json.loads(call("--json", "returns", "--seeds", "3", "--out", "here"))
    stored = json.loads((tmp_path / "here" / "lab.json").read_text("utf-8"))
    assert {key: value for key, value in shown.items() if key != "folder"} == stored
    assert shown["folder"] == "here"
    assert shown["seeds"] == 3


@NO_PICTURES
def test_a_figure_outside_is_shown_and_ends_with_code_1(monkeypatch, tmp_path):
    real = returns.gae
    monkeypatch.setattr(returns, "gae", lambda *args: -real(*args))
    text = call("returns", "--out", "here", code=1)
    assert re.search(r"γ = 0\.9\s+7\.29\s+7\.29\s+−7\.29\s+\S+ / \S+\s+NO", text)
    assert "0 of 5 figures within" in text  # the ratio moves too: (−5 − 1)/(−3.56 − 1)
    stored = json.loads((tmp_path / "here" / "lab.json").read_text("utf-8"))
    assert stored["within"] is False


@NO_PICTURES
def test_a_new_folder_is_chosen_where_none_is_given(tmp_path):
    call("returns")
    call("returns")
    names = [path.name for path in (tmp_path / "runs").iterdir()]
    assert len(names) == 2
    assert all(re.match(r"lab-\d{8}-\d{6}", name) for name in names)


@NO_PICTURES
def test_the_list_runs_nothing(tmp_path):
    text = call("--list")
    assert all(name in text for name in registry.experiments())
    assert "Returns and discounting" in text
    listed = json.loads(call("--list", "--json", "gae"))
    assert [each["name"] for each in listed] == ["gae"]
    assert listed[0]["facts"] == ["F7"]
    assert list(tmp_path.iterdir()) == []


@NO_PICTURES
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["gea"], "unknown experiment 'gea'; did you mean 'gae'?"),
        (["explain", "gea"], "did you mean 'gae'"),
        (["--seeds", "0"], "greater than or equal to 1"),
        (["returns", "--sedes", "3"], "--sedes"),
        (["compare", "ppo"], "Missing argument"),
        (["compare", "ppo", "grpoo"], "did you mean 'grpo'"),
        (["compare", "ppo", "grpo", "--group", "1"], "set group >= 2"),
        (["compare", "ppo", "grpo", "--parameters", "smol"], "'smol' is no number"),
        (["compare", "ppo", "grpo", "--precision", "int8"], "int8"),
    ],
)
def test_mistakes_end_with_code_2(arguments, message, tmp_path):
    assert message in " ".join(call(*arguments, code=2).split())
    assert list(tmp_path.iterdir()) == []


def test_a_library_that_is_missing_is_said_before_anything_runs(monkeypatch, tmp_path):
    import sys

    monkeypatch.setitem(sys.modules, "plotly", None)
    monkeypatch.setitem(sys.modules, "plotly.offline", None)
    monkeypatch.delitem(sys.modules, "outdo.lab.page", raising=False)
    monkeypatch.setattr(lab, "run", lambda *args: pytest.fail("it ran"))
    assert "pip install 'outdo[lab]'" in call("returns", "--out", str(tmp_path / "x"), code=2)


def test_explain_prints_text_formula_settings_table_and_command():
    text = " ".join(call("explain", "returns").split())
    each = registry.experiments()["returns"]
    for part in (each.title, " ".join(each.text.split()), " ".join(each.formula.split()), each.settings):
        assert part in text
    assert "1.5625" in text
    assert "outdo lab returns" in text


def test_compare_prints_both_columns():
    text = call("compare", "ppo", "grpo", "--parameters", "1B", "--reward-model")
    for word in (
        "ppo",
        "grpo",
        "18 GB",
        "critic",
        "reference",
        "reward model",
        "samples per prompt",
        "8 (2 at least)",
    ):
        assert word in text
    table = json.loads(call("compare", "ppo", "grpo", "--json", "--group", "16"))
    assert table["setting"]["parameters"] == 135_000_000
    assert table["algorithms"]["grpo"]["samples per prompt"] == "16 (2 at least)"


def test_help_names_all_three():
    text = call("--help")
    assert all(word in text for word in ("run", "explain", "compare"))
    assert "--seeds" in call("run", "--help")
    assert "--seeds" in call("gae", "--help")
