"""What a run leaves behind can be read, also after a kill, and goes to the trackers."""

from __future__ import annotations

import gzip
import io
import re
import sys
from datetime import datetime

import pytest
from rich.console import Console
from toy import SequenceTask, TablePolicy, accuracy

from outdo.core.presets import preset
from outdo.training.display import Bar, Lines, figures
from outdo.training.loop import train
from outdo.training.plan import Settings, Stage
from outdo.training.readings import interval_text
from outdo.training.record import Record, new_folder, read_metrics, read_rollouts
from outdo.training.streams import Streams, derive_seed
from outdo.training.trackers import TRACKERS


def test_runs_of_one_second_get_folders_of_their_own(tmp_path, monkeypatch):
    class Noon(datetime):
        @classmethod
        def now(cls, tz=None):
            return cls(2026, 3, 1, 12, 0, 5)

    monkeypatch.setattr("outdo.training.record.datetime", Noon)
    monkeypatch.chdir(tmp_path)
    names = []
    for _ in range(3):
        folder = new_folder("copy-seed5")
        folder.mkdir(parents=True)
        names.append(str(folder))
    first = "runs/copy-seed5-20260301-120005"
    assert names == [first, f"{first}-2", f"{first}-3"]


def test_rollouts_are_members_of_their_own(tmp_path):
    record = Record(tmp_path)
    record.rollouts([{"a": 1}, {"b": "é"}])
    position = record.positions()["rollouts.jsonl.gz"]
    record.rollouts([])
    assert record.positions()["rollouts.jsonl.gz"] == position
    record.rollouts([{"c": 3}])
    assert list(read_rollouts(tmp_path)) == [{"a": 1}, {"b": "é"}, {"c": 3}]
    # A kill in the middle of the second member: the first still reads.
    data = (tmp_path / "rollouts.jsonl.gz").read_bytes()
    assert gzip.decompress(data[:position]).decode().count("\n") == 2
    record.truncate({"rollouts.jsonl.gz": position})
    assert list(read_rollouts(tmp_path)) == [{"a": 1}, {"b": "é"}]


def test_truncate_refuses_a_log_that_is_too_short(tmp_path):
    record = Record(tmp_path)
    record.metrics({"a": 1.5})
    assert read_metrics(tmp_path) == [{"a": 1.5}]
    with pytest.raises(ValueError, match=r"metrics\.jsonl has 11 bytes, fewer than the 12"):
        record.truncate({"metrics.jsonl": 12})


def test_every_rollout_can_be_read(tmp_path):
    one = Stage("rl", SequenceTask(), preset("grpo").algorithm, 2)
    train(TablePolicy(), [one], tmp_path / "run")
    rows = list(read_rollouts(tmp_path / "run"))
    assert len(rows) == 48
    assert rows[0].keys() == {"kind", "stage", "total", "row", "group", "reward", "advantage", "text"}
    assert [row["total"] for row in rows] == [1] * 24 + [2] * 24
    best = max(rows[:8], key=lambda row: row["reward"])
    assert best["advantage"] == max(row["advantage"] for row in rows[:8]) > 0


def test_streams_are_named_independent_and_resumable():
    streams = Streams(3)
    assert derive_seed(3, "a") != derive_seed(3, "b") != derive_seed(4, "b")
    first = streams["a"].get_state()
    streams["b"].seed()
    assert streams["a"].get_state().equal(first)
    assert Streams(3)["a"].get_state().equal(first)


class Listening:
    """A tracker that keeps what it hears."""

    def __init__(self) -> None:
        self.heard: list[tuple[int, dict]] = []
        self.closed = False

    def log(self, metrics, step) -> None:
        self.heard.append((step, dict(metrics)))

    def close(self) -> None:
        self.closed = True


def test_trackers_hear_updates_and_evaluations_and_are_closed(tmp_path):
    tracker = Listening()
    one = Stage("rl", SequenceTask(), preset("grpo").algorithm, 2)
    train(TablePolicy(), [one], tmp_path / "run", evaluator=accuracy, trackers=[tracker])
    assert [step for step, _ in tracker.heard] == [0, 1, 2, 2]
    assert tracker.heard[0][1]["evaluation/greedy"] == pytest.approx(
        accuracy(TablePolicy()).metrics["greedy"]
    )
    assert "update/grad_norm" in tracker.heard[1][1]
    assert tracker.closed


def test_tensorboard_gets_scalars(tmp_path):
    event_accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    tracker = TRACKERS["tensorboard"](tmp_path, {})
    tracker.log({"update/reward": 0.25}, 3)
    tracker.close()
    events = event_accumulator.EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    (event,) = events.Scalars("update/reward")
    assert (event.step, event.value) == (3, 0.25)


@pytest.mark.parametrize("name", ["wandb", "trackio", "mlflow", "tensorboard"])
def test_a_tracker_that_is_not_installed_names_its_extra(name, tmp_path, monkeypatch):
    module = "torch.utils.tensorboard" if name == "tensorboard" else name
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ValueError, match=rf"pip install 'outdo\[{name}\]'"):
        TRACKERS[name](tmp_path, {})


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_run_trackers_call_init_log_finish(name, tmp_path, monkeypatch):
    calls: list = []

    class Module:
        init = staticmethod(lambda **settings: calls.append(("init", settings)))
        log = staticmethod(lambda metrics, step: calls.append(("log", metrics, step)))
        finish = staticmethod(lambda: calls.append(("finish",)))

    monkeypatch.setitem(sys.modules, name, Module)
    tracker = TRACKERS[name](tmp_path / "run", {"seed": 3}, project="mine")
    tracker.log({"a": 1.0}, 2)
    tracker.close()
    settings = {"project": "mine", "name": "run", "config": {"seed": 3}}
    assert calls == [("init", settings), ("log", {"a": 1.0}, 2), ("finish",)]


METRICS = {
    "reward": 0.5,
    "grad_norm": 1.25,
    "groups_without_signal": 0.25,
    "kl_reference": 0.01,
    "clip_share": 0.1,
}


def test_the_line_shows_what_matters_and_not_the_loss():
    line = figures({**METRICS, "surrogate_loss": 0.0, "entropy_sampled": 0.7, "time/tokens_per_second": 99.6})
    assert line == "reward 0.500  grad 1.25  no signal 25%  KL 0.01  entropy 0.700  clipped 10.0%  tok/s 100"


def test_plain_lines_and_the_bar_show_figures_and_time_left(tmp_path):
    for make in (lambda console: Lines(console, every=0.0), Bar):
        output = io.StringIO()
        display = make(Console(file=output, width=200, force_terminal=make is Bar))
        one = Stage("rl", SequenceTask(), preset("grpo").algorithm, 3)
        settings = Settings(evaluate_every=1)
        folder = tmp_path / make.__name__
        train(TablePolicy(), [one], folder, evaluator=accuracy, settings=settings, display=display)
        text = output.getvalue()
        assert "about 0 by construction" in text
        assert "held-out after 2 updates: greedy" in text
        assert "3/3" in text
        assert "no signal" in text


def test_time_left_is_in_minutes_and_seconds(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("outdo.training.display.time.monotonic", lambda: now[0])
    output = io.StringIO()
    lines = Lines(Console(file=output, width=200), every=0.0)
    lines.stage("rl", 120, 0)
    now[0] = 58.0
    lines.update(40, {})  # 58 s for 40 steps, so 116 s for the other 80
    lines.update(60, {})
    lines.update(119, {})
    assert re.findall(r"left (\S+)", output.getvalue()) == ["1:56", "0:58", "0:00"]


def test_an_evaluation_in_a_line_is_its_scores_with_their_intervals():
    language = {"greedy/accuracy": 0.5, "greedy/low": 0.4, "greedy/high": 0.6, "greedy/length": 3.0}
    assert interval_text(language) == "greedy 0.500 [0.400, 0.600]"
    control = {
        "sampled/return": -7.0,
        "sampled/return/low": -8.0,
        "sampled/return/high": -6.0,
        "sampled/length": 9.0,
    }
    assert interval_text(control) == "sampled/return -7.000 [-8.000, -6.000]"
    assert interval_text({"greedy": 0.25}) == "greedy 0.250"
    driving = {
        f"{name}{end}": value
        for name, values in {"a": (1.0, 0.5, 1.5), "b": (2.0, 1.5, 2.5), "c": (3.0, 2.5, 3.5)}.items()
        for end, value in zip(("", "/low", "/high"), values, strict=True)
    }
    assert interval_text(driving, ("c", "a")) == "c 3.000 [2.500, 3.500]  a 1.000 [0.500, 1.500]"
