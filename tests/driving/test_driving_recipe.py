"""Driving recipes: what is read, what is refused and how the message helps; what a run of one leaves."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

from outdo import tables
from outdo.cli import app
from outdo.config import DrivingRecipe, DrivingRewardConfig
from outdo.config.driving import FlawsConfig
from outdo.driving.environment import DrivingEnvironment
from outdo.driving.expert import Flaws
from outdo.driving.rewards import TERMS
from outdo.driving.scene import SceneError
from outdo.driving.situations import SITUATIONS
from outdo.recipe import RecipeError, read, stage_algorithm, to_toml
from outdo.run import build, drive, open_run, results, run
from outdo.seeds import results_together
from outdo.training import record
from outdo.training.record import read_metrics, read_rollouts

SMALL = """
threads = 1
[policy]
kind = "driving"
hidden = 16
layers = 1
heads = 1
device = "cpu"
[task]
scenes = 6
states = 1
[[stage]]
kind = "sft"
steps = 3
batch = 4
[[stage]]
kind = "rl"
name = "reasoning"
start = "sft"
steps = 2
scenes = 2
group = 2
choose = "disagreement"
reward = { quality = 0.5 }
[[stage]]
kind = "rl"
steps = 2
scenes = 2
group = 2
algorithm = "exponential"
reactive = true
[evaluation]
scenes = 4
"""


@pytest.fixture
def small(tmp_path):
    (tmp_path / "small.toml").write_text(SMALL)
    return tmp_path / "small.toml"


def test_defaults_are_those_of_the_parts(small):
    recipe = read(small)
    assert isinstance(recipe, DrivingRecipe)
    assert recipe.reward.model_dump() == {name: term.weight for name, term in TERMS.items()}
    assert FlawsConfig.model_validate({}).model_dump() == {
        name: getattr(Flaws(), name) for name in Flaws.__dataclass_fields__
    }
    assert recipe.fits(recipe.stage[0]) == (1, False)
    assert recipe.fits(recipe.stage[1]) == (2, False)


def test_weights_that_are_not_named_are_off():
    assert DrivingRewardConfig(l2=2).model_dump() == {**dict.fromkeys(TERMS, 0.0), "l2": 2.0}


@pytest.mark.parametrize("name", ["driving", "driving-ablation"])
def test_shipped_recipes(name):
    recipe = read(name)
    assert isinstance(recipe, DrivingRecipe)
    assert recipe.evaluation is not None
    assert recipe.evaluation.scenes >= 500
    if name == "driving-ablation":
        assert [stage.start for stage in recipe.stage] == ["", "sft", "sft", "sft"]
        assert [f"after {stage.name}" for stage in recipe.stage] == list(tables.PUBLISHED)
        weights = [stage.reward.model_dump() for stage in recipe.stage[1:]]
        switched = [{name for name, weight in each.items() if weight} for each in weights]
        assert switched == [{"quality"}, {"quality", "consistency"}, set(TERMS)]
        # the three differ in the reward alone
        alike = [stage.model_dump(exclude={"name", "reward"}) for stage in recipe.stage[1:]]
        assert alike[0] == alike[1] == alike[2]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"reward.consistancy": 1.0}, "unknown key 'reward.consistancy'; did you mean 'consistency'"),
        ({"rl.reward.of_road": 1.0}, "unknown key 'rl.reward.of_road'; did you mean 'off_road'"),
        ({"reward.l2": -1.0}, r"reward.l2: .*greater than or equal to 0"),
        ({"reward.quality": 0.0, "reward.consistency": 0.0}, "all weights are 0"),
        ({"reasoning.reward.quality": 0.0}, "all weights are 0"),
        ({"task.situations": ["cutin"]}, "unknown situation 'cutin'; did you mean 'cut-in'"),
        ({"task.flaws.late_breaking": 0.1}, "did you mean 'late_braking'"),
        ({"task.flaws.late_braking": 1.1}, "less than or equal to 1"),
        ({"task.files": ["a"], "task.held_out_files": ["a"]}, "'a' is both a training file and held out"),
        ({"rl.choose": "hardest"}, "rl.choose"),
        ({"rl.share": 1.5}, "rl.share"),
        ({"rl.start": "sfd"}, "rl.start names no earlier stage: 'sfd'; did you mean 'sft'"),
        ({"sft.start": "rl"}, "sft.start names no earlier stage"),
        ({"evaluation.scenes": 1}, "evaluation.scenes"),
        ({"evaluation.replan": 6}, "evaluation.replan"),
        ({"policy.hold": 3}, "policy.hold"),
        ({"policy.kind": "drivng"}, "policy.kind"),
        ({"judge.modle": "x"}, "did you mean 'model'"),
        ({"judge.model": "x"}, "judge.base_url"),
        ({"rl.group": 1}, "rl.algorithm"),
    ],
)
def test_what_is_refused(small, change, message):
    with pytest.raises((RecipeError, ValueError), match=message):
        read(small, change)


def test_a_recipe_survives_being_written(small, tmp_path):
    recipe = read(small)
    (tmp_path / "recipe.toml").write_text(to_toml(recipe))
    again = read(tmp_path)
    assert to_toml(again) == to_toml(recipe)
    assert [stage_algorithm(s) for s in again.stage] == [stage_algorithm(s) for s in recipe.stage]
    assert again.stage[1].start == "sft"
    assert again.stage[1].reward == DrivingRewardConfig(quality=0.5)


def test_settings_reach_their_parts(small):
    change = {
        "rl.temperature": 0.7,
        "rl.max_tokens": 30,
        "reward.l2": 2.5,
        "reward.quality": 0.1,
        "evaluation.replan": 2,
        "evaluation.reactive": False,
        "policy.hold": 1,
        "task.situations": ["cut-in", "merge"],
        "seed": 3,
    }
    parts = build(read(small, change))
    assert parts.policy.vocabulary.code.length == 128
    environment = parts.stages[2].environment
    settings = environment.settings
    assert (settings.temperature, settings.max_tokens, settings.seed) == (0.7, 30, 3)
    assert (settings.reactive, settings.choose) == (True, "random")
    assert parts.stages[1].environment.settings.choose == "disagreement"
    weights = {term.name: term.weight for term in environment._terms}
    assert {name: weight for name, weight in weights.items() if weight} == {"l2": -2.5, "quality": 0.1}
    assert {t.name: t.weight for t in parts.stages[1].environment._terms if t.weight} == {"quality": 0.5}
    assert (parts.evaluator.every, parts.evaluator.reactive) == (2, False)
    situations = {scene.situation for scene in parts.evaluator.scenes}
    assert situations == {"cut-in", "merge"} == {s.scene.situation for s in parts.task.examples.shown}
    names = {scene.id for scene in parts.evaluator.scenes}
    assert not names & {shown.scene.id for shown in parts.task.examples.shown}
    assert set(SITUATIONS) > situations


@pytest.mark.whole
def test_it_does_not_matter_how_many_processes_make_the_scenes(small, monkeypatch):
    monkeypatch.setattr("outdo.driving.build.PART", 2)
    found = []
    for cores in (1, 2):
        monkeypatch.setattr("os.cpu_count", lambda cores=cores: cores)
        found.append(build(read(small, {"task.states": 2})).task.examples)
    one, two = found
    assert len(one) == len(two) > 10
    assert np.array_equal(one.seen.agents, two.seen.agents)
    for first, second in zip(one.shown, two.shown, strict=True):
        assert (first.scene.id, first.scene.now) == (second.scene.id, second.scene.now)
        assert np.array_equal(first.states, second.states)
        assert (first.trace, first.flaws) == (second.trace, second.flaws)
    for first, second in zip(one.references, two.references, strict=True):
        assert np.array_equal(first.path, second.path)
    assert len({scene.scene.id for scene in one.shown}) == 6  # no part repeats another's scenes


@pytest.mark.whole
def test_what_fails_in_another_process_says_why(small, monkeypatch, tmp_path):
    monkeypatch.setattr("outdo.driving.build.PART", 2)
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    monkeypatch.setattr("outdo.driving.build.make_examples", too_short)
    with pytest.raises(SceneError, match="its log has no 64 steps after now"):
        _ = build(read(small)).task.examples


def too_short(*job):
    raise SceneError("scene 'x': its log has no 64 steps after now")


def test_the_seed_of_a_run_does_not_change_its_scenes(small):
    one, two = (build(read(small, {"seed": seed})) for seed in (0, 1))
    for first, second in zip(one.task.examples.shown, two.task.examples.shown, strict=True):
        assert np.array_equal(first.states, second.states)
    assert not torch.equal(*(next(iter(parts.policy.named_parameters()))[1] for parts in (one, two)))


def timeless(folder):
    return [{k: v for k, v in line.items() if not k.startswith("time/")} for line in read_metrics(folder)]


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore::outdo.core.rewards.NoSignalWarning")
def test_a_run_and_its_resumption(small, tmp_path, monkeypatch, capsys):
    result = run(small, out=tmp_path / "whole")
    assert result.finished
    summary = json.loads((tmp_path / "whole" / "summary.json").read_text())
    names = [row["policy"] for row in summary["results"]]
    assert names == ["untouched", "demonstrations", "expert", "after sft", "after reasoning", "after rl"]
    assert summary["results"][2]["plan/ade"] == pytest.approx(0.0)
    rows = list(read_rollouts(tmp_path / "whole"))
    kinds = [(row["stage"], row["kind"]) for row in rows]
    assert kinds.count(("reasoning", "rollout")) == kinds.count(("rl", "rollout")) == 8
    assert {row["chosen"] for row in rows if row["stage"] == "rl" and row["kind"] == "rollout"} == {"random"}

    # stopped in the second stage, which begins from the first, and resumed
    collected, collect = [], DrivingEnvironment.collect

    def stopping(self, policy, step):
        collected.append(step)
        if len(collected) == 2:
            raise KeyboardInterrupt
        return collect(self, policy, step)

    monkeypatch.setattr(DrivingEnvironment, "collect", stopping)
    settings = {"checkpoint.every": 1}
    with pytest.raises(KeyboardInterrupt):
        run(small, settings, out=tmp_path / "parts")
    monkeypatch.undo()
    assert run(small, settings, out=tmp_path / "parts", resume=True).finished
    assert timeless(tmp_path / "parts") == timeless(tmp_path / "whole")
    assert list(read_rollouts(tmp_path / "parts")) == rows
    ends = [
        load_file(tmp_path / name / "checkpoints/step-000007/policy/model.safetensors")
        for name in ("whole", "parts")
    ]
    assert all(torch.equal(ends[0][key], ends[1][key]) for key in ends[0])

    # it opens again as it was, and its table reads
    with open_run(tmp_path / "whole", 7, {}) as (recipe, opened, _):
        last = {key: value for key, value in timeless(tmp_path / "whole")[-1].items() if "/" in key}
        report = opened.evaluator(opened.policy)
        assert {key: report.metrics[key] for key in last} == last
        assert results(tmp_path / "whole", recipe, opened) == summary["results"]
    tables.print_result(result, summary)
    shown = capsys.readouterr().out
    assert "in closed loop, 95 % intervals" in shown
    assert "after reasoning" in shown
    assert shown.count("  before, ") == shown.count("  after, ") == 3
    tables.print_seeds(result, {"metric": "", "seeds": [{}, {}], "curve": [], "results": summary["results"]})
    assert "mean of 2 seeds and their range" in capsys.readouterr().out


# --- tables ---


def figures(**values):
    """Results with an interval of ± 10 % around each value."""
    row = {}
    for name, value in values.items():
        metric = name.replace("__", "/")
        row |= {metric: value, f"{metric}/low": 0.9 * value, f"{metric}/high": 1.1 * value}
    return row


ROW = figures(
    drive__close_encounter=0.05,
    drive__at_fault=0.02,
    drive__off_road=0.01,
    drive__ep=0.9,
    plan__ade=2.0,
    plan__quality=4.0,
    plan__consistency=0.5,
)


def cells(table):
    return [[str(cell) for cell in column.cells] for column in table.columns]


def test_figures_are_shown_with_their_intervals():
    closed, plans = tables.driving_tables([{"policy": "after rl", "updates": 3, **ROW}])
    assert [column.header for column in closed.columns] == [
        "policy", "close enc. %", "at fault %", "off road %", "progress %",
    ]  # fmt: skip
    assert cells(closed) == [
        ["after rl"], ["5.0 (5-6)"], ["2.0 (2-2)"], ["1.0 (1-1)"], ["90.0 (81-99)"],
    ]  # fmt: skip
    assert cells(plans)[1:] == [["2.00 (1.80-2.20)"], ["4.00 (3.60-4.40)"], ["0.50 (0.45-0.55)"]]


def test_an_ablation_stands_beside_the_papers():
    rows = [{"policy": name, **ROW} for name in ("untouched", *tables.PUBLISHED)]
    _, _, beside = tables.driving_tables(rows, seeds=3)
    found = cells(beside)
    assert found[0] == ["sft", "  paper", "reasoning", "  paper", "consistency", "  paper", "all", "  paper"]
    # the paper's Table 9 as driving.md quotes it
    assert found[1][1::2] == ["2.12", "2.19", "1.92", "1.94"]
    assert found[2][1::2] == ["3.1", "4.5", "4.5", "4.4"]
    assert found[3][1::2] == ["0.62", "0.53", "0.85", "0.83"]
    assert found[4][1::2] == ["6.9", "5.8", "6.2", "3.7"]
    assert found[4][0] == "5.0 (5-6)"
    assert "3 seeds" in str(beside.title)


def test_results_of_several_seeds_are_their_mean_and_range(tmp_path):
    for seed, value in enumerate((0.1, 0.4, 0.1)):
        place = tmp_path / f"seed-{seed}"
        place.mkdir()
        row = {"policy": "after rl", "updates": 7, **figures(drive__close_encounter=value)}
        (place / record.SUMMARY).write_text(json.dumps({"results": [row]}))
    (row,) = results_together(tmp_path)
    assert row == {
        "policy": "after rl",
        "updates": 7,
        "drive/close_encounter": pytest.approx(0.2),
        "drive/close_encounter/low": 0.1,
        "drive/close_encounter/high": 0.4,
    }


@pytest.mark.whole
def test_a_run_is_driven_and_pictured(small, tmp_path):
    run(small, {"rl.steps": 1, "reasoning.steps": 0, "evaluation": None}, out=tmp_path / "run")
    asked = ["drive", str(tmp_path / "run"), "--scene", "cut-in", "--scene", "test-0-3-merge", "--json"]
    result = CliRunner().invoke(app, asked)
    assert result.exit_code == 0, result.output
    files = [Path(text) for text in json.loads(result.stdout)]
    assert [path.name for path in files] == ["test-0-1-cut-in.html", "test-0-3-merge.html"]
    assert all(path.parent == tmp_path / "run" / "drives" for path in files)
    assert all("<html" in path.read_text() for path in files)
    assert drive(tmp_path / "run", ["cut-in"], kind="gif", out=tmp_path)[0].read_bytes()[:3] == b"GIF"
    wrong = CliRunner().invoke(app, ["drive", str(tmp_path / "run"), "--scene", "cutin"])
    assert wrong.exit_code == 2
    assert "cut-in" in wrong.output


def test_only_a_driving_run_is_driven(tmp_path):
    (tmp_path / "recipe.toml").write_text(to_toml(read("copy")))
    with pytest.raises(RecipeError, match="no driving policy"):
        drive(tmp_path, ["cut-in"])
