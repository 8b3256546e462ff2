"""Control runs on the command line, from recipe to table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outdo.core.statistics import interquartile_mean
from outdo.training.record import read_metrics
from test_cli import call

pytest.importorskip("gymnasium", reason="control needs the extra `control`")
QUICK = ["rl.steps=2", "rl.envs=4", "rl.horizon=32", "evaluation.episodes=4", "evaluation.envs=2"]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "cartpole"
    text = call("train", "cartpole", *QUICK, "--out", str(folder))
    for word in (
        "mean return of an episode",
        "untouched",
        "after rl",
        "deterministic",
        "sampled",
        "run folder",
    ):
        assert word in text
    return folder


def test_a_control_run_leaves_what_any_run_leaves(run):
    assert {path.name for path in run.iterdir()} >= {
        "recipe.toml",
        "metrics.jsonl",
        "checkpoints",
        "summary.json",
    }
    rows = json.loads((run / "summary.json").read_text())["results"]
    assert [row["policy"] for row in rows] == ["untouched", "after rl"]
    for row in rows:
        assert (
            row["deterministic/return/low"] <= row["deterministic/return"] <= row["deterministic/return/high"]
        )
    lines = [line for line in read_metrics(run) if line["kind"] == "update"]
    assert [line["step"] for line in lines] == [1, 2]
    assert lines[1]["environment_steps"] == lines[0]["steps"] + lines[1]["steps"] <= 2 * 4 * 32
    assert lines[0]["optimiser_steps"] == 10 * 4


def test_eval_repeats_the_last_evaluation(run):
    out = json.loads(call("eval", str(run), "--step", "2", "--json"))
    (last,) = [line for line in read_metrics(run) if line["kind"] == "evaluation" and line["total"] == 2]
    for key, value in last.items():
        if key.startswith(("deterministic", "sampled")):
            assert out[key] == value
    assert "deterministic" in call("eval", str(run), "evaluation.episodes=2", "evaluation.sampled=false")


def test_a_resumed_run_is_the_run_that_was_never_stopped(run, tmp_path):
    constant = [
        "rl.schedule=constant",
        "checkpoint.every=1",
        "env.scale_reward=true",
        "policy.normalise=true",
    ]
    call("train", "cartpole", *QUICK, *constant, "rl.steps=4", "--out", str(tmp_path / "whole"))
    call("train", "cartpole", *QUICK, *constant, "evaluation.every=2", "--out", str(tmp_path / "parts"))
    call("train", str(tmp_path / "parts"), "rl.steps=4", "--resume")

    def updates(folder: str) -> list[dict]:
        lines = [line for line in read_metrics(tmp_path / folder) if line["kind"] == "update"]
        return [{key: line[key] for key in line if not key.startswith("time/")} for line in lines]

    assert updates("parts") == updates("whole")
    final = "checkpoints/step-000004/policy/policy.safetensors"
    assert (tmp_path / "parts" / final).read_bytes() == (tmp_path / "whole" / final).read_bytes()


def test_several_seeds_are_put_together(run, tmp_path):
    out = json.loads(
        call("train", "cartpole", *QUICK, "seed=5", "--seeds", "2", "--out", str(tmp_path / "runs"), "--json")
    )
    assert [each["seed"] for each in out["seeds"]] == [5, 6]
    assert [point["updates"] for point in out["curve"]] == [0, 2]
    values = [each["deterministic/return"] for each in out["seeds"]]
    assert out["curve"][-1]["value"] == pytest.approx(interquartile_mean(values))
    assert json.loads((tmp_path / "runs" / "aggregate.json").read_text())["curve"] == out["curve"]
    assert (tmp_path / "runs" / "seed-5" / "recipe.toml").exists()
    more = call(
        "train", "cartpole", *QUICK, "seed=5", "--seeds", "3", "--out", str(tmp_path / "runs"), "--resume"
    )
    for word in ("over 3 seeds", "interquartile mean", "range"):
        assert word in more


@pytest.mark.parametrize(
    "changes",
    [
        ["rl.algorithm=a2c"],
        ["rl.algorithm=reinforce", "rl.episodes=4", "policy.critic=none"],
        ["rl.algorithm=reinforce_baseline", "rl.episodes=4"],
        ["rl.algorithm=grpo", "rl.episodes=4", "rl.group=2", "env.backend=sync"],
        [
            "rl.algorithm.update.kl_stop=0.001",
            "rl.algorithm.value_clip=0.2",
            "rl.algorithm.advantage.scale=batch",
        ],
        ["policy.kind=gru", "rl.algorithm.update.minibatches=2"],
        ["env.vector={autoreset_mode = 'SameStep'}", "policy.critic=shared"],
        ["env.id=Pendulum-v1", "policy.box=tanh"],
    ],
    ids=lambda changes: changes[0],
)
def test_other_algorithms_policies_and_environments(changes, tmp_path):
    call("train", "cartpole", *QUICK, "evaluation=off", *changes, "--out", str(tmp_path / "run"))
    lines = read_metrics(tmp_path / "run")
    assert len(lines) == 2
    assert all(line["grad_norm"] > 0 for line in lines)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "cartpole", "env.id=CartPol-v1"], "CartPol"),
        (["train", "cartpole", "rl.horizn=3"], "did you mean 'horizon'"),
        (["train", "cartpole", "policy.critic=none"], "critic"),
    ],
)
def test_mistakes_end_with_one_message(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    errors = call(*arguments, code=2)
    assert message in errors
    assert errors.startswith("error: ")


def test_a_control_run_cannot_be_asked(run):
    assert "no language model" in call("sample", str(run), "hello", code=2)
