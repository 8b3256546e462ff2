"""The loop on the token-sequence task of F17 (policy-gradients.md), run as a user would run it."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from toy import SequenceTask, TablePolicy, accuracy

from outdo.core.presets import PRESETS, algorithm_from, preset
from outdo.core.protocols import Report
from outdo.training.loop import train
from outdo.training.optim import OptimiserSettings
from outdo.training.plan import Settings, Stage
from outdo.training.record import read_metrics, read_rollouts
from outdo.training.update import SURROGATE, NonFiniteError

ADAM = OptimiserSettings(learning_rate=0.1, betas=(0.9, 0.999))


def stage(algorithm="grpo", steps=3, optimiser=ADAM, **settings) -> Stage:
    return Stage("rl", SequenceTask(), algorithm_from(algorithm), steps, optimiser, **settings)


def updates(folder) -> list[dict]:
    return [line for line in read_metrics(folder) if line["kind"] == "update"]


def test_f17_grpo_climbs_close_to_1(tmp_path):
    policy = TablePolicy()
    # G = 8, 2 epochs, clip 0.2, KL 0.04 to the initial policy, Adam 0.1, 150 steps.
    train(policy, [stage(steps=150)], tmp_path / "run", evaluator=accuracy)
    lines = updates(tmp_path / "run")
    assert abs(lines[0]["reward"] - 0.25) < 0.15  # four tokens, uniform policy
    assert sum(line["reward"] for line in lines[-10:]) / 10 > 0.9
    assert accuracy(policy).metrics["greedy"] == 1.0
    assert lines[-1]["kl_reference"] > 0.1
    assert policy.updates == 300


def test_the_loss_says_that_it_is_about_0_and_it_is(tmp_path):
    train(TablePolicy(), [stage({"preset": "grpo", "update": {"epochs": 1}})], tmp_path / "run")
    for line in updates(tmp_path / "run"):
        assert SURROGATE in line
        assert abs(line[SURROGATE]) < 1e-6
        assert line["grad_norm"] > 1e-3


@pytest.mark.parametrize("name", [name for name in PRESETS if name != "sft"])
def test_with_learning_rate_0_every_ratio_stays_1(name, tmp_path):
    algorithm = preset(name).algorithm
    algorithm = replace(algorithm, update=replace(algorithm.update, epochs=2, minibatches=2))
    policy = TablePolicy(critic=algorithm.needs_critic)
    before = policy.logits.detach().clone()
    one = Stage("rl", SequenceTask(), algorithm, 3, OptimiserSettings(learning_rate=0.0))
    train(policy, [one], tmp_path / "run")
    assert torch.equal(policy.logits, before)
    for line in updates(tmp_path / "run"):
        assert line["ratio"] == 1.0
        assert line["ratio_max"] == 1.0
        assert line["kl_old_k3"] == 0.0


class Imprecise(SequenceTask):
    """A sampler whose log-probabilities are off, as those of a bf16 engine are."""

    def collect(self, policy, step):
        batch = super().collect(policy, step)
        return batch.with_(logp=batch.logp + 0.04 * torch.randn(batch.logp.shape))


@pytest.mark.parametrize("epochs", [1, 2])
def test_an_imprecise_sampler_does_not_move_the_first_ratio(epochs, tmp_path):
    algorithm = algorithm_from({"preset": "dapo", "update": {"epochs": epochs, "minibatches": 1}})
    one = Stage("rl", Imprecise(), algorithm, 2, OptimiserSettings(learning_rate=0.0))
    train(TablePolicy(), [one], tmp_path / "run")
    for line in updates(tmp_path / "run"):
        assert line["ratio_max"] == 1.0
        assert 0.02 < line["sampler_gap"] < 0.06  # E|N(0, 0.04)| = 0.032


def test_logged_reward_is_the_weighted_total(tmp_path):
    # Weights .7/.3 with terms 1 and 0 in every row: the logged total is .7.
    class Fixed(SequenceTask):
        def collect(self, policy, step):
            batch = super().collect(policy, step)
            reward = torch.zeros_like(batch.reward)
            reward[:, -1] = 0.7 * 1.0 + 0.3 * 0.0
            return batch.with_(reward=reward)

    one = Stage("rl", Fixed(), preset("rloo").algorithm, 1, ADAM)
    train(TablePolicy(), [one], tmp_path / "run")
    (line,) = updates(tmp_path / "run")
    assert line["reward"] == pytest.approx(0.7)
    assert line["groups_without_signal"] == 1.0
    assert all(row["reward"] == pytest.approx(0.7) for row in read_rollouts(tmp_path / "run"))


def test_kl_stop_leaves_the_remaining_steps_out(tmp_path):
    table = {"preset": "grpo", "update": {"epochs": 50, "kl_stop": 0.01}}
    policy = TablePolicy()
    train(policy, [stage(table, steps=1)], tmp_path / "run")
    (line,) = updates(tmp_path / "run")
    # Adam's first step moves each logit by about 0.1: the KL passes 0.01 within a few epochs.
    assert 1 <= line["optimiser_steps"] < 10
    assert policy.updates == line["optimiser_steps"]


@pytest.mark.parametrize(("name", "value"), [("reward", float("nan")), ("logp", float("-inf"))])
def test_a_number_that_is_not_finite_stops_the_run_and_names_the_row(name, value, tmp_path):
    one = stage(steps=5)
    one.environment.poison = {2: {name: value}}
    policy = TablePolicy()
    seen = []

    class Watch(SequenceTask):
        def collect(self, policy, step):
            seen.append(policy.logits.detach().clone())
            return one.environment.collect(policy, step)

    with pytest.raises(NonFiniteError, match=rf"{name} is not finite in row 5 \(group 0\) .*text") as error:
        train(policy, [replace(one, environment=Watch())], tmp_path / "run")
    assert "row 4" not in str(error.value)
    assert torch.equal(policy.logits, seen[-1])  # as before the step
    assert len(updates(tmp_path / "run")) == 2


def test_an_infinite_ratio_stops_before_the_optimiser_step(tmp_path):
    class Overflowing(TablePolicy):
        """Between scoring and learning the last log-probability of row 5 jumps by 200; e^200 is inf."""

        def evaluate(self, batch, *, entropy=False):
            evaluation = super().evaluate(batch, entropy=entropy)
            shift = torch.zeros_like(evaluation.logp)
            if torch.is_grad_enabled():
                for row, info in enumerate(batch.info):
                    if info["marked"]:
                        shift[row, -1] = 200.0
            return replace(evaluation, logp=evaluation.logp + shift)

    class Marking(SequenceTask):
        def collect(self, policy, step):
            batch = super().collect(policy, step)
            # Row 5 does worst in its group: its advantage is negative and no clip holds the ratio.
            reward = batch.reward.clone()
            reward[5, -1] = -1.0
            info = tuple({"marked": row == 5} for row in range(len(batch)))
            return batch.with_(reward=reward, info=info)

    policy = Overflowing()
    algorithm = algorithm_from({"preset": "grpo", "update": {"epochs": 2}, "kl": {"kind": "none"}})
    with pytest.raises(NonFiniteError, match=r"row 5 \(group 0\)") as error:
        train(policy, [Stage("rl", Marking(), algorithm, 1, ADAM)], tmp_path / "run")
    assert "row 6" not in str(error.value)
    assert torch.equal(policy.logits, torch.zeros_like(policy.logits))
    assert policy.updates == 0


def test_stages_follow_each_other_and_evaluations_frame_them(tmp_path):
    calls = []

    def evaluator(policy) -> Report:
        calls.append(policy.updates)
        return accuracy(policy)

    first, second = stage(steps=4), replace(stage("rloo", steps=6), name="second")
    settings = Settings(evaluate_every=4, keep=1)
    result = train(TablePolicy(), [first, second], tmp_path / "run", evaluator=evaluator, settings=settings)
    assert result.finished
    assert result.steps == 10
    lines = [line for line in read_metrics(tmp_path / "run") if line["kind"] == "evaluation"]
    # Before anything, after the first stage, after 4 steps of the second, at its end; never twice.
    assert [(line["stage"], line["step"], line["total"]) for line in lines] == [
        ("rl", 0, 0),
        ("rl", 4, 4),
        ("second", 4, 8),
        ("second", 6, 10),
    ]
    assert calls == [0, 8, 12, 14]  # two epochs a batch, then one
    samples = [row for row in read_rollouts(tmp_path / "run") if row["kind"] == "evaluation"]
    assert [row["total"] for row in samples] == [0, 4, 8, 10]


def test_the_best_checkpoint_stays_beside_the_newest(tmp_path):
    scores = iter([0.0, 0.2, 0.9, 0.4, 0.3])

    def evaluator(policy) -> Report:
        return Report({"greedy": next(scores)})

    settings = Settings(evaluate_every=1, keep=1, best_by="greedy")
    result = train(TablePolicy(), [stage(steps=4)], tmp_path / "run", evaluator=evaluator, settings=settings)
    assert (result.best, result.best_step) == (0.9, 2)
    names = sorted(path.name for path in (tmp_path / "run" / "checkpoints").iterdir())
    assert names == ["best", "step-000002", "step-000004"]
    assert (tmp_path / "run" / "checkpoints" / "best").resolve().name == "step-000002"


def test_best_by_a_metric_that_is_not_reported_is_an_error(tmp_path):
    settings = Settings(best_by="greedi")
    with pytest.raises(ValueError, match="did you mean 'greedy'"):
        train(TablePolicy(), [stage()], tmp_path / "run", evaluator=accuracy, settings=settings)


def test_a_run_is_never_overwritten(tmp_path):
    train(TablePolicy(), [stage(steps=1)], tmp_path / "run")
    before = (tmp_path / "run" / "metrics.jsonl").read_bytes()
    with pytest.raises(FileExistsError, match="already holds a run"):
        train(TablePolicy(), [stage(steps=1)], tmp_path / "run")
    assert (tmp_path / "run" / "metrics.jsonl").read_bytes() == before


def test_the_summary_says_how_it_ended(tmp_path):
    train(TablePolicy(), [stage(steps=2)], tmp_path / "run")
    summary = json.loads((tmp_path / "run" / "summary.json").read_text())
    assert summary["finished"] is True
    assert summary["total"] == 2
    assert summary["rows"] == 48
    assert summary["tokens"] == 192
