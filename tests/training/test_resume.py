"""A run that was stopped, killed or ran out of disk goes on as if nothing had happened."""

from __future__ import annotations

import errno
import json
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from child import go
from safetensors.torch import load_file
from toy import SequenceTask, TablePolicy, accuracy

from outdo.core.presets import algorithm_from
from outdo.training import checkpoint
from outdo.training.checkpoint import CheckpointError
from outdo.training.loop import train
from outdo.training.optim import OptimiserSettings
from outdo.training.plan import Settings, Stage
from outdo.training.record import read_metrics, read_rollouts

pytestmark = pytest.mark.whole

CHILD = Path(__file__).with_name("child.py")


class ChancyTask(SequenceTask):
    """Draws from every global stream, and notes what it drew."""

    def collect(self, policy, step):
        batch = super().collect(policy, step)
        drawn = {"python": random.random(), "numpy": float(np.random.rand()), "torch": float(torch.rand(()))}
        return batch.with_(info=tuple({**info, **drawn} for info in batch.info))


def plan(first: int = 4, second: int = 6) -> list[Stage]:
    """Two stages with epochs, minibatches, a reference, a running baseline, a schedule, weight decay."""
    several = algorithm_from({"preset": "grpo", "update": {"epochs": 2, "minibatches": 3}})
    running = algorithm_from(
        {
            "advantage": {"kind": "return", "baseline": "running"},
            "objective": {"kind": "clipped"},
            "kl": {"kind": "in_reward", "coefficient": 0.1},
            "update": {"epochs": 3, "minibatches": 2},
        }
    )
    adam = OptimiserSettings(learning_rate=0.1, weight_decay=0.01, warmup=2, schedule="cosine")
    return [
        Stage("first", ChancyTask(), several, first, adam),
        Stage("second", ChancyTask(), running, second, adam),
    ]


def timeless(folder: Path) -> list[dict]:
    """The metrics without what the clock measured."""
    return [
        {key: value for key, value in line.items() if not key.startswith("time/")}
        for line in read_metrics(folder)
    ]


def final_state(folder: Path) -> dict:
    """Everything the last checkpoint holds."""
    newest = checkpoint.latest(folder / "checkpoints")
    tensors = {file.name: load_file(file) for file in newest.rglob("*.safetensors")}
    state = json.loads((newest / "state.json").read_text())
    del state["records"]["metrics.jsonl"]  # lengths in bytes: times have as many digits as they have
    return {"step": newest.name, "tensors": tensors, "state": state}


def assert_same_run(one: Path, other: Path) -> None:
    assert timeless(one) == timeless(other)
    assert list(read_rollouts(one)) == list(read_rollouts(other))
    assert (one / "rollouts.jsonl.gz").read_bytes() == (other / "rollouts.jsonl.gz").read_bytes()
    first, second = final_state(one), final_state(other)
    assert first["step"] == second["step"]
    assert first["state"] == second["state"]
    assert first["tensors"].keys() == second["tensors"].keys()
    for name, tensors in first["tensors"].items():
        assert tensors.keys() == second["tensors"][name].keys()
        for key, tensor in tensors.items():
            assert torch.equal(tensor, second["tensors"][name][key]), f"{name}: {key}"


SETTINGS = Settings(seed=7, evaluate_every=2, checkpoint_every=1, keep=100, best_by="greedy")


@pytest.fixture(scope="module")
def whole(tmp_path_factory) -> Path:
    """Ten updates without interruption; to be read only."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    train(TablePolicy(), plan(), folder, evaluator=accuracy, settings=SETTINGS)
    return folder


class Stopped(Exception):
    """A crash."""


class Crashing(ChancyTask):
    """Crashes when asked for a given batch, after drawing from every stream."""

    at = 0

    def collect(self, policy, step):
        batch = super().collect(policy, step)
        if step == self.at:
            raise Stopped
        return batch


@pytest.mark.parametrize("at", range(1, 10))
def test_resume_is_bitwise_wherever_it_stopped(at, whole, tmp_path):
    stages = plan()
    broken, step = (0, at) if at < 4 else (1, at - 4)
    crashing = Crashing()
    crashing.at = step
    stages[broken] = replace(stages[broken], environment=crashing)
    with pytest.raises(Stopped):
        train(TablePolicy(), stages, tmp_path / "parts", evaluator=accuracy, settings=SETTINGS)
    policy = TablePolicy()
    train(policy, plan(), tmp_path / "parts", evaluator=accuracy, settings=SETTINGS, resume=True)
    assert_same_run(whole, tmp_path / "parts")
    assert torch.equal(
        load_file(whole / "checkpoints/step-000010/policy/table.safetensors")["logits"], policy.logits
    )


class Signalling(ChancyTask):
    """Ctrl-C while a given batch is collected."""

    at = 0

    def collect(self, policy, step):
        if step == self.at:
            signal.raise_signal(signal.SIGINT)
        return super().collect(policy, step)


@pytest.mark.parametrize("at", range(9))
def test_a_run_stopped_by_a_signal_goes_on_as_if_nothing_had_been(at, whole, tmp_path):
    stages = plan()
    stopped, step = (0, at) if at < 4 else (1, at - 4)
    signalling = Signalling()
    signalling.at = step
    stages[stopped] = replace(stages[stopped], environment=signalling)
    settings = replace(SETTINGS, checkpoint_every=3)
    folder = tmp_path / "parts"
    result = train(TablePolicy(), stages, folder, evaluator=accuracy, settings=settings)
    assert (result.finished, result.steps, result.interrupted_by) == (False, at + 1, "SIGINT")
    assert train(TablePolicy(), plan(), folder, evaluator=accuracy, settings=settings, resume=True).finished
    assert_same_run(whole, folder)
    best = [(place / "checkpoints" / "best").resolve().name for place in (whole, folder)]
    assert best[0] == best[1]


def test_a_signal_at_the_last_update_finishes_the_run(tmp_path):
    stages = plan()
    signalling = Signalling()
    signalling.at = 5
    stages[1] = replace(stages[1], environment=signalling)
    assert train(TablePolicy(), stages, tmp_path / "run", evaluator=accuracy, settings=SETTINGS).finished


def test_resume_cuts_logs_back_to_the_checkpoint(whole, tmp_path):
    settings = replace(SETTINGS, checkpoint_every=3)
    stages = plan()
    crashing = Crashing()
    crashing.at = 5  # after two updates that no checkpoint has
    stages[1] = replace(stages[1], environment=crashing)
    with pytest.raises(Stopped):
        train(TablePolicy(), stages, tmp_path / "parts", evaluator=accuracy, settings=settings)
    assert len(timeless(tmp_path / "parts")) > 0
    train(TablePolicy(), plan(), tmp_path / "parts", evaluator=accuracy, settings=settings, resume=True)
    assert timeless(whole) == timeless(tmp_path / "parts")
    assert list(read_rollouts(whole)) == list(read_rollouts(tmp_path / "parts"))


def test_resume_without_a_checkpoint_begins_anew(whole, tmp_path):
    stages = plan()
    crashing = Crashing()
    stages[0] = replace(stages[0], environment=crashing)
    with pytest.raises(Stopped):
        train(TablePolicy(), stages, tmp_path / "parts", evaluator=accuracy, settings=SETTINGS)
    train(TablePolicy(), plan(), tmp_path / "parts", evaluator=accuracy, settings=SETTINGS, resume=True)
    assert_same_run(whole, tmp_path / "parts")


def test_resuming_a_finished_run_changes_nothing_but_more_steps_go_on(tmp_path):
    def last(steps: int) -> list[Stage]:
        stages = plan(second=steps)
        return [stages[0], replace(stages[1], optimiser=OptimiserSettings(learning_rate=0.1))]

    train(TablePolicy(), last(6), tmp_path / "whole", settings=SETTINGS)
    train(TablePolicy(), last(3), tmp_path / "parts", settings=SETTINGS)
    before = (tmp_path / "parts" / "metrics.jsonl").read_bytes()
    train(TablePolicy(), last(3), tmp_path / "parts", settings=SETTINGS, resume=True)
    assert (tmp_path / "parts" / "metrics.jsonl").read_bytes() == before
    train(TablePolicy(), last(6), tmp_path / "parts", settings=SETTINGS, resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def child(folder: Path, mode: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(CHILD), str(folder), mode],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_killed_while_a_checkpoint_is_written_the_one_before_loads(tmp_path):
    process = child(tmp_path / "run", "kill-while-saving")
    process.communicate(timeout=60)
    assert process.returncode == -signal.SIGKILL
    folder = tmp_path / "run" / "checkpoints"
    assert [path.name for path in sorted(folder.iterdir())] == [".step-000004.partial", "step-000002"]
    assert checkpoint.latest(folder).name == "step-000002"
    assert go(tmp_path / "run", "resume").finished
    assert [path.name for path in sorted(folder.iterdir())] == ["step-000008", "step-000010"]
    go(tmp_path / "whole", "plain")
    assert_same_run(tmp_path / "whole", tmp_path / "run")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_finishes_the_update_and_saves(number, tmp_path):
    process = child(tmp_path / "run", "slow")
    assert process.stdout is not None
    while process.stdout.readline() != "step 4\n":
        pass
    process.send_signal(number)
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    # The fifth update was on and was finished; a sixth was not begun.
    assert out == f"finished=False steps=5 by={signal.Signals(number).name}\n"
    assert checkpoint.latest(tmp_path / "run" / "checkpoints").name == "step-000005"
    assert (
        json.loads((tmp_path / "run" / "summary.json").read_text())["interrupted_by"]
        == signal.Signals(number).name
    )
    go(tmp_path / "run", "resume")
    go(tmp_path / "whole", "plain")
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_a_second_ctrl_c_stops_at_once(tmp_path):
    process = child(tmp_path / "run", "slow")
    assert process.stdout is not None
    while process.stdout.readline() != "step 4\n":
        pass
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert "KeyboardInterrupt" in errors
    assert checkpoint.latest(tmp_path / "run" / "checkpoints").name == "step-000004"


def test_a_full_disk_stops_the_run_and_keeps_the_last_checkpoint(tmp_path, monkeypatch):
    class Full(TablePolicy):
        saves = 0

        def save(self, folder):
            self.saves += 1
            if self.saves == 4:
                (folder / "table.safetensors").write_bytes(b"begun")
                raise OSError(errno.ENOSPC, "No space left on device")
            super().save(folder)

    with pytest.raises(CheckpointError, match=r"step-000003.*No space left.*partial.*removed.*--resume"):
        train(Full(), plan(), tmp_path / "run", settings=SETTINGS, evaluator=accuracy)
    folder = tmp_path / "run" / "checkpoints"
    assert [path.name for path in sorted(folder.iterdir()) if path.name.startswith(".")] == []
    assert checkpoint.latest(folder).name == "step-000002"
    train(TablePolicy(), plan(), tmp_path / "run", settings=SETTINGS, evaluator=accuracy, resume=True)
    train(TablePolicy(), plan(), tmp_path / "whole", settings=SETTINGS, evaluator=accuracy)
    assert_same_run(tmp_path / "whole", tmp_path / "run")


def test_a_log_that_lost_lines_is_refused(tmp_path):
    train(TablePolicy(), plan(), tmp_path / "run", settings=SETTINGS)
    (tmp_path / "run" / "metrics.jsonl").write_text("")
    with pytest.raises(ValueError, match="fewer than"):
        train(TablePolicy(), plan(), tmp_path / "run", settings=SETTINGS, resume=True)


def branching() -> list[Stage]:
    """The two stages of `plan`, and a third that begins from the first; it has a reference."""
    first, second = plan()
    return [first, second, replace(first, name="third", environment=ChancyTask(), steps=3, start="first")]


def test_a_stage_begins_from_the_policy_that_an_earlier_one_left(whole, tmp_path):
    train(TablePolicy(), branching(), tmp_path / "run", settings=SETTINGS, evaluator=accuracy)
    checkpoints = tmp_path / "run" / "checkpoints"
    for folder in (tmp_path / "run" / "starts" / "first", tmp_path / "run" / "references" / "stage-2"):
        table = folder / "policy" if (folder / "policy").exists() else folder
        assert (table / "table.safetensors").read_bytes() == (
            checkpoints / "step-000004/policy/table.safetensors"
        ).read_bytes()
    # what lies between is as if there were no third stage
    assert timeless(tmp_path / "run")[: len(timeless(whole))] == timeless(whole)
    # with a learning rate of 0 the third stage ends where the first did, not where the second did
    stages = branching()
    stages[2] = replace(stages[2], optimiser=OptimiserSettings(learning_rate=0.0))
    policy = TablePolicy()
    train(policy, stages, tmp_path / "still", settings=SETTINGS)
    first = load_file(tmp_path / "still/checkpoints/step-000004/policy/table.safetensors")["logits"]
    second = load_file(tmp_path / "still/checkpoints/step-000010/policy/table.safetensors")["logits"]
    assert torch.equal(policy.logits, first)
    assert not torch.equal(policy.logits, second)
    # of its state too: four stages' updates are counted where the first had stopped
    epochs = 2 * 3
    assert policy.updates == (4 + 3) * epochs


@pytest.fixture(scope="module")
def branched(tmp_path_factory) -> Path:
    """All three stages without interruption; to be read only."""
    folder = tmp_path_factory.mktemp("branched") / "run"
    train(TablePolicy(), branching(), folder, evaluator=accuracy, settings=SETTINGS)
    return folder


@pytest.mark.parametrize("at", [3, 4, 9, 10, 11])
@pytest.mark.parametrize("how", [Crashing, Signalling])
def test_resume_of_a_run_that_branches_is_bitwise(at, how, branched, tmp_path):
    stages = branching()
    broken, step = (0, at) if at < 4 else (1, at - 4) if at < 10 else (2, at - 10)
    environment = how()
    environment.at = step
    stages[broken] = replace(stages[broken], environment=environment)
    if how is Crashing:
        with pytest.raises(Stopped):
            train(TablePolicy(), stages, tmp_path / "parts", evaluator=accuracy, settings=SETTINGS)
    else:
        train(TablePolicy(), stages, tmp_path / "parts", evaluator=accuracy, settings=SETTINGS)
    train(TablePolicy(), branching(), tmp_path / "parts", evaluator=accuracy, settings=SETTINGS, resume=True)
    assert_same_run(branched, tmp_path / "parts")


def test_a_stage_can_only_begin_from_an_earlier_one(tmp_path):
    stages = branching()
    stages[0] = replace(stages[0], start="third")
    with pytest.raises(ValueError, match="stage 'first' begins from 'third', which is no earlier stage"):
        train(TablePolicy(), stages, tmp_path / "run", settings=SETTINGS)
