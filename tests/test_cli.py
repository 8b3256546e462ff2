"""The command line, run on the tiny model from end to end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import outdo
import outdo.run as run_module
from outdo.cli import app
from outdo.core.presets import PRESETS
from outdo.training.record import read_metrics, read_rollouts

QUICK = ["sft.steps=2", "sft.batch=4", "rl.steps=2", "rl.prompts=2", "rl.group=2", "evaluation.problems=4"]


def call(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == code, result.output + repr(result.exception)
    return result.stdout if code == 0 else result.stderr


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "copy"
    call("train", "copy", *QUICK, "--out", str(folder))
    return folder


def test_a_run_folder_holds_everything(run):
    assert {path.name for path in run.iterdir()} >= {
        "recipe.toml",
        "metrics.jsonl",
        "rollouts.jsonl.gz",
        "checkpoints",
        "summary.json",
    }
    summary = json.loads((run / "summary.json").read_text())
    assert summary["finished"] is True
    rows = [row["policy"] for row in summary["results"]]
    assert rows == ["untouched", "demonstrations", "after sft", "after rl"]
    assert summary["results"][1]["demonstrations/accuracy"] == 1.0
    kinds = {row["kind"] for row in read_rollouts(run)}
    assert kinds == {"rollout", "evaluation"}


def test_checkpoints_load_with_transformers(run):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    newest = run / "checkpoints" / "step-000004" / "policy"
    model = AutoModelForCausalLM.from_pretrained(newest)
    tokenizer = AutoTokenizer.from_pretrained(newest)
    assert model(**tokenizer("abc", return_tensors="pt")).logits.isfinite().all()


def test_the_end_shows_table_and_samples(tmp_path):
    text = call("train", "copy", *QUICK, "--out", str(tmp_path / "run"))
    for word in ("untouched", "demonstrations", "after sft", "after rl", "before,", "after,", "run folder"):
        assert word in text


@pytest.mark.whole
def test_the_number_of_threads_is_the_run_s_alone(tmp_path, monkeypatch):
    # left behind, it would decide how the sums of later runs of the process are rounded
    seen = []
    build = run_module.build
    monkeypatch.setattr(
        run_module,
        "build",
        lambda *args, **kwargs: seen.append(torch.get_num_threads()) or build(*args, **kwargs),
    )
    before = torch.get_num_threads()
    for threads in (before + 1, 1):
        folder = str(tmp_path / str(threads))
        call("train", "copy", *QUICK, f"threads={threads}", "--out", folder)
        call("eval", folder)
        call("sample", folder, "abc")
        assert seen == [threads] * 3
        assert torch.get_num_threads() == before
        seen.clear()
    call("train", "copy", *QUICK, "--out", str(tmp_path / "left-out"))
    assert seen == [before]
    with pytest.raises(ValueError, match="stop"), run_module.threads(before + 1):
        raise ValueError("stop")
    assert torch.get_num_threads() == before


def test_json_for_programs(tmp_path):
    out = json.loads(call("train", "copy", *QUICK, "--out", str(tmp_path / "run"), "--json"))
    assert out["finished"] is True
    assert out["folder"] == str(tmp_path / "run")


def test_eval_repeats_the_last_evaluation_bitwise(run):
    out = json.loads(call("eval", str(run), "--step", "4", "--json"))
    (last,) = [line for line in read_metrics(run) if line["kind"] == "evaluation" and line["total"] == 4]
    for key, value in last.items():
        if key.startswith(("greedy", "sampled")):
            assert out[key] == value
    assert "greedy" in call("eval", str(run), "evaluation.samples=0")


def test_sample_answers(run):
    out = json.loads(
        call("sample", str(run), "copy: a b c", "--samples", "3", "--temperature", "1", "--json")
    )
    assert len(out) == 3
    assert all(answer["stop"] in ("stop", "length") for answer in out)
    assert call("sample", str(run), "copy: a b c") == call("sample", str(run), "copy: a b c")


def test_lists(run):
    assert "arithmetic" in call("recipes")
    assert tomllib.loads(call("recipes", "copy"))["policy"]["path"] == "tiny"
    assert set(json.loads(call("recipes", "--json"))) >= {"arithmetic", "copy"}
    listed = json.loads(call("algorithms", "--json"))
    assert set(listed) == set(PRESETS)
    for entry in listed.values():
        assert entry["paper"]
        assert entry["formula"]
        assert entry["defaults"]["update"]["epochs"] >= 1
    assert "departs" in call("algorithms", "grpo")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "copi"], "did you mean 'copy'"),
        (["train", "copy", "rl.promts=3"], "did you mean 'prompts'"),
        (["train", "copy", "rl.prompts"], "write key=value"),
        (["train", "copy", "rl.algorithm=grpoo"], "did you mean 'grpo'"),
        (["train", "copy", "rl.group=1"], "group = 1"),
        (["train", "copy", "policy.device=nowhere"], "device 'nowhere' cannot be used here"),
        (["train", "copy", "policy.path=./no/model"], "no model folder"),
        (["train", "copy", "reward.correct.function=outdo.language.verifiers:exakt"], "'exact'"),
        (["train", "copy", "--resume"], "give its folder"),
        (["eval", "nowhere"], "no run folder"),
        (["sample", "nowhere", "x"], "no run folder"),
        (["algorithms", "grpoo"], "did you mean 'grpo'"),
    ],
)
def test_mistakes_end_with_code_2_and_one_message(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    errors = call(*arguments, code=2)
    assert message in errors
    assert errors.startswith("error: ")
    assert "Traceback" not in errors
    assert list(tmp_path.iterdir()) == []  # nothing is left of a run that never began


GOOD = '{"question": "copy: a", "answer": "a"}\n'


@pytest.mark.parametrize(
    ("text", "overrides", "message"),
    [
        (GOOD * 2 + "\n" + GOOD, [], "line 3: empty line"),
        (GOOD + "{broken\n", [], "line 2"),
        (GOOD, ["task.prompt=questoin"], "did you mean 'question'"),
        (GOOD, ["task.answer=anser"], "did you mean 'answer'"),
        (None, [], "no such file"),
    ],
)
def test_mistakes_in_a_file_name_the_line(text, overrides, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    if text is not None:
        (tmp_path / "data.jsonl").write_text(text)
    task = ["task.kind=file", "task.path=data.jsonl", "task.prompt=question"]
    assert message in call("train", "copy", *QUICK, *task, *overrides, code=2)
    assert not (tmp_path / "runs").exists()


def raising(completions, **columns):
    """A reward that always fails."""
    raise ZeroDivisionError("on purpose")


def test_a_reward_that_raises_stops_the_run_with_its_name(tmp_path):
    broken = ["reward.correct.function=test_cli:raising", "evaluation=off", "--out", str(tmp_path / "run")]
    errors = call("train", "copy", "sft.steps=1", "rl.steps=1", *broken, code=2)
    assert "correct" in errors
    assert "on purpose" in errors


def test_a_fault_of_the_program_shows_its_traceback(monkeypatch):
    def fault(*arguments, **settings):
        raise RuntimeError("mat1 and mat2 shapes cannot be multiplied")

    monkeypatch.setattr("outdo.run.build", fault)
    assert isinstance(CliRunner().invoke(app, ["train", "copy"]).exception, RuntimeError)


def test_trackers_are_named_in_the_recipe(tmp_path):
    pytest.importorskip("tensorboard")
    tracker = 'tracker=[{kind = "tensorboard"}]'
    call("train", "copy", *QUICK, tracker, "evaluation=off", "--out", str(tmp_path / "run"))
    assert list((tmp_path / "run" / "tensorboard").glob("events.*"))


def test_debug_shows_the_traceback():
    result = CliRunner().invoke(app, ["train", "copi", "--debug"])
    assert isinstance(result.exception, ValueError)


def test_a_run_is_neither_overwritten_nor_resumed_with_another_recipe(run):
    before = (run / "metrics.jsonl").read_bytes()
    assert "holds a run already" in call("train", "copy", *QUICK, "--out", str(run), code=2)
    errors = call("train", str(run), "rl.group=4", "sft.learning_rate=1.0", "--resume", code=2)
    assert "stage.rl.group: 2 → 4" in errors
    assert "stage.sft.learning_rate: 0.01 → 1.0" in errors
    assert (run / "metrics.jsonl").read_bytes() == before


@pytest.mark.whole
def test_interrupted_and_resumed_on_the_command_line(tmp_path):
    many = [*QUICK, "sft.steps=40", "evaluation.every=0", "policy.precision=float32"]
    command = [sys.executable, "-m", "outdo", "train", "copy", *many, "--out"]
    first = subprocess.Popen([*command, str(tmp_path / "parts")], stdout=subprocess.PIPE, text=True)
    metrics = tmp_path / "parts" / "metrics.jsonl"
    while not metrics.exists() or metrics.read_text().count("\n") < 3:
        time.sleep(0.01)
    first.send_signal(signal.SIGINT)
    out, _ = first.communicate(timeout=300)
    assert first.returncode == 130
    assert f"outdo train {tmp_path / 'parts'} --resume" in out.replace("\n", " ")
    resumed = [sys.executable, "-m", "outdo", "train", str(tmp_path / "parts"), "--resume"]
    for again in (
        resumed,
        [*command, str(tmp_path / "whole")],
    ):  # processes of their own, as on any command line
        subprocess.run(again, check=True, stdout=subprocess.DEVNULL, timeout=300)

    def timeless(folder: str) -> list[dict]:
        lines = read_metrics(tmp_path / folder)
        return [{key: line[key] for key in line if not key.startswith("time/")} for line in lines]

    assert timeless("parts") == timeless("whole")
    final = "checkpoints/step-000042/policy/model.safetensors"
    assert (tmp_path / "parts" / final).read_bytes() == (tmp_path / "whole" / final).read_bytes()


def test_python_does_what_the_command_does(run, tmp_path):
    overrides = {"sft.steps": 2, "sft.batch": 4, "rl.steps": 2, "rl.prompts": 2, "rl.group": 2}
    result = outdo.train("copy", {**overrides, "evaluation.problems": 4}, out=tmp_path / "run")
    assert result.finished
    final = "checkpoints/step-000004/policy/model.safetensors"
    assert (tmp_path / "run" / final).read_bytes() == (run / final).read_bytes()


@pytest.mark.whole
def test_a_finished_run_goes_on_with_more_steps_and_its_own_reference(tmp_path):
    overrides = {
        "sft.steps": 40,
        "rl.steps": 4,
        "evaluation": None,
        "rl.algorithm.kl.coefficient": 0.5,
    }
    outdo.train("copy", overrides, out=tmp_path / "whole")
    outdo.train("copy", {**overrides, "rl.steps": 2}, out=tmp_path / "parts")
    outdo.train("copy", overrides, out=tmp_path / "parts", resume=True)
    final = "checkpoints/step-000044/policy/model.safetensors"
    assert (tmp_path / "parts" / final).read_bytes() == (tmp_path / "whole" / final).read_bytes()
    last = [read_metrics(tmp_path / name)[-1]["kl_reference"] for name in ("whole", "parts")]
    assert last[0] == last[1] > 0


def test_a_new_folder_is_chosen_where_none_is_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    call("train", "copy", *QUICK, "seed=5")
    call("train", "copy", *QUICK, "seed=5")
    names = [path.name for path in (tmp_path / "runs").iterdir()]
    assert len(names) == 2
    assert all(name.startswith("copy-seed5-") for name in names)


def test_a_file_of_the_current_folder_cannot_take_the_place_of_an_installed_module(tmp_path):
    for name in ("dis", "random", "rich"):
        (tmp_path / f"{name}.py").write_text("raise RuntimeError('not this one')\n")
    command = Path(sys.executable).parent / "outdo"
    done = subprocess.run([command, "recipes"], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "arithmetic" in done.stdout
