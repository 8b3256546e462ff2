"""A control run that was stopped goes on as if nothing had been: weights, moments, statistics, episodes, logs."""

from __future__ import annotations

import json
import shutil

import pytest

from outdo.control.environment import ControlEnvironment, WindowSettings
from outdo.control.episodes import EpisodeEnvironment, EpisodeSettings
from outdo.control.policy import ControlPolicy
from outdo.control.vector import make_vector
from outdo.core.presets import algorithm_from
from outdo.training.loop import train
from outdo.training.optim import OptimiserSettings
from outdo.training.plan import Settings, Stage

pytestmark = pytest.mark.whole


def run(folder, name, kind, mode, resume=False):
    """Six updates with a checkpoint after every second."""
    vector = make_vector(name, 4, vector={"autoreset_mode": mode})
    policy = ControlPolicy(
        vector.single_observation_space,
        vector.single_action_space,
        kind="gru" if kind == "gru" else "mlp",
        hidden=(16,),
        memory=8,
        critic="none" if kind == "episodes" else "separate",
        normalise=True,
    )
    if kind == "episodes":
        environment = EpisodeEnvironment(vector, EpisodeSettings(group=2, max_steps=50))
        method = algorithm_from("grpo")
    else:
        environment = ControlEnvironment(vector, WindowSettings(steps=30, scale_reward=True))
        method = algorithm_from({"preset": "ppo", "update": {"epochs": 2, "minibatches": 2}})
    stage = Stage("rl", environment, method, 6, OptimiserSettings(learning_rate=1e-3))
    train(policy, [stage], folder, settings=Settings(checkpoint_every=2, keep=9), resume=resume)


def contents(folder):
    """Every file of the last checkpoint and of the logs, without what the clock says."""
    kept = {}
    last = folder / "checkpoints" / "step-000006"
    for path in sorted(last.rglob("*")):
        if path.is_file() and path.name != "manifest.json":
            kept[str(path.relative_to(last))] = path.read_bytes()
    state = json.loads(kept.pop("state.json"))
    kept["state"] = {
        name: part for name, part in state.items() if name != "records"
    }  # sizes of logs with times
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return kept, [{k: v for k, v in line.items() if not k.startswith("time/")} for line in lines]


CASES = [
    ("CartPole-v1", "mlp", "NextStep"),
    ("CartPole-v1", "gru", "SameStep"),
    ("Pendulum-v1", "mlp", "NextStep"),
    ("CartPole-v1", "episodes", "NextStep"),
]


@pytest.mark.parametrize(("name", "kind", "mode"), CASES)
def test_resume_is_bitwise(name, kind, mode, tmp_path):
    run(tmp_path / "whole", name, kind, mode)
    for stopped in (2, 4):
        folder = tmp_path / f"stopped-{stopped}"
        shutil.copytree(tmp_path / "whole", folder, symlinks=True)
        for later in range(stopped + 1, 7):
            shutil.rmtree(folder / "checkpoints" / f"step-{later:06d}", ignore_errors=True)
        run(folder, name, kind, mode, resume=True)
        assert contents(folder) == contents(tmp_path / "whole")
