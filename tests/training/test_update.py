"""Gradients do not depend on how rows are computed together."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from outdo.core.batch import Batch
from outdo.core.presets import algorithm_from
from outdo.core.protocols import Evaluation
from outdo.training.optim import OptimiserSettings, adamw
from outdo.training.update import NonFiniteError, Updater, minibatches, rows_with_gradient, score

LENGTHS = [1, 2, 7, 10]


class Ragged:
    """A table policy and critic [row, step, token] in float64 for rows of lengths 1, 2, 7 and 10."""

    def __init__(self, pieces: list[list[int]]) -> None:
        generator = torch.Generator().manual_seed(0)
        self.logits = nn.Parameter(torch.randn(4, 10, 3, generator=generator, dtype=torch.float64))
        self.values = nn.Parameter(torch.randn(4, 10, generator=generator, dtype=torch.float64))
        self.pieces = pieces
        self.computed: list[int] = []

    def evaluate(self, batch: Batch, *, entropy: bool = False) -> Evaluation:
        self.computed += batch.obs.tolist()
        logp = self.logits.log_softmax(-1)[batch.obs]
        chosen = logp.gather(-1, batch.action[..., None]).squeeze(-1)
        spread = -(logp.exp() * logp).sum(-1)
        zero = torch.zeros((), dtype=torch.float64)
        fields = (torch.where(batch.valid, each, zero) for each in (chosen, spread, self.values[batch.obs]))
        return Evaluation(*fields)

    def micro_batches(self, batch: Batch, budget: int) -> list[torch.Tensor]:
        where = {int(row): place for place, row in enumerate(batch.obs)}
        pieces = [[where[row] for row in piece if row in where] for piece in self.pieces]
        return [torch.tensor(piece) for piece in pieces if piece]

    def named_parameters(self):
        yield "logits", self.logits
        yield "values", self.values

    def updated(self) -> None: ...


def ragged_batch() -> Batch:
    generator = torch.Generator().manual_seed(1)
    shape = (4, 10)
    valid = torch.arange(10)[None] < torch.tensor(LENGTHS)[:, None]
    cut = torch.zeros(shape, dtype=torch.bool)
    cut[torch.arange(4), torch.tensor(LENGTHS) - 1] = True

    def noise() -> torch.Tensor:
        return torch.randn(shape, generator=generator, dtype=torch.float64)

    old = -noise().abs()
    return Batch(
        obs=torch.arange(4),
        action=torch.randint(0, 3, shape, generator=generator),
        logp=old,
        old_logp=old,
        ref_logp=-noise().abs(),
        reward=noise() * cut,
        value=noise(),
        next_value=noise(),
        discount=torch.where(cut, 0.0, 0.9).double(),
        cut=cut,
        valid=valid,
        group=torch.tensor([0, 0, 1, 1]),
    )


SPLITS = {1: [[0, 1, 2, 3]], 2: [[0, 3], [1, 2]], 4: [[2], [0], [3], [1]]}
REDUCTIONS = [
    "token_mean",
    "token_sum",
    "sequence_mean_token_mean",
    "sequence_mean_token_sum",
    "fixed_length",
]


def gradients(pieces: list[list[int]], algorithm, batch: Batch) -> list[torch.Tensor]:
    policy = Ragged(pieces)
    batch, _ = algorithm.prepare(batch)
    updater = Updater(policy, algorithm, adamw(policy, OptimiserSettings()), 1, torch.Generator())
    updater.gradient(batch)
    return [policy.logits.grad.clone(), policy.values.grad.clone()]


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("kl", [{"kind": "none"}, {"kind": "in_loss", "coefficient": 0.3}])
def test_micro_batches_do_not_change_the_gradient_of_policy_critic_kl_or_entropy(reduction, kl):
    algorithm = algorithm_from(
        {
            "advantage": {"kind": "gae"},
            "objective": {"kind": "clipped", "reduce": reduction, "length": 12},
            "kl": kl,
            "entropy_coefficient": 0.1,
            "value_coefficient": 0.7,
        }
    )
    whole = gradients(SPLITS[1], algorithm, ragged_batch())
    assert all(gradient.abs().sum() > 0 for gradient in whole)
    for count in (2, 4):
        split = gradients(SPLITS[count], algorithm, ragged_batch())
        for one, other in zip(whole, split, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("table", ["rloo", "cispo", "dapo", "gspo", "dr_grpo", "reinforce_plus_plus"])
def test_rows_without_advantage_are_not_computed_and_the_gradient_is_that_of_all_rows(table):
    algorithm = replace(algorithm_from(table), kl=algorithm_from("dapo").kl)
    batch, _ = algorithm.prepare(ragged_batch())
    advantage = batch.advantage.clone()
    advantage[1] = 0.0
    advantage[2] = 0.0
    batch = batch.with_(advantage=advantage)
    policy = Ragged(SPLITS[1])
    updater = Updater(policy, algorithm, adamw(policy, OptimiserSettings()), 1, torch.Generator())
    updater.gradient(batch)
    assert policy.computed == [0, 3]
    full = Ragged(SPLITS[1])
    algorithm.loss(batch, full.evaluate(batch), algorithm.counts(batch)).total.backward()
    torch.testing.assert_close(policy.logits.grad, full.logits.grad, rtol=1e-12, atol=1e-14)
    assert full.logits.grad.abs().sum() > 0


@pytest.mark.parametrize(
    "table",
    [
        {"preset": "grpo"},
        {"preset": "dapo", "entropy_coefficient": 0.1},
        {"preset": "ppo"},
        {"preset": "sft"},
        {"preset": "exponential"},
    ],
    ids=lambda table: table["preset"],
)
def test_all_rows_are_computed_where_something_else_than_the_advantage_has_a_gradient(table):
    batch = ragged_batch().with_(advantage=torch.zeros(4, 10, dtype=torch.float64))
    assert rows_with_gradient(algorithm_from(table), batch).tolist() == [0, 1, 2, 3]


def test_masked_rows_are_not_computed():
    batch = ragged_batch().with_(keep=torch.tensor([True, False, True, False]))
    assert rows_with_gradient(algorithm_from("sft"), batch).tolist() == [0, 2]


def test_a_batch_without_signal_leaves_the_weights_alone_and_says_so():
    algorithm = algorithm_from("dapo")
    policy = Ragged(SPLITS[1])
    before = policy.logits.detach().clone()
    updater = Updater(policy, algorithm, adamw(policy, OptimiserSettings()), 1, torch.Generator())
    metrics = updater(ragged_batch().with_(advantage=torch.zeros(4, 10, dtype=torch.float64)))
    assert metrics["grad_norm"] == 0.0
    assert torch.equal(policy.logits, before)


def test_minibatches_are_a_partition_in_an_order_of_their_own():
    order = torch.Generator().manual_seed(3)
    pieces = list(minibatches(10, 4, order))
    assert [len(piece) for piece in pieces] == [3, 3, 2, 2]
    assert sorted(torch.cat(pieces).tolist()) == list(range(10))
    assert torch.cat(pieces).tolist() != list(range(10))
    again = list(minibatches(10, 4, torch.Generator().manual_seed(3)))
    assert torch.cat(again).equal(torch.cat(pieces))  # whatever the global stream does
    assert [piece.tolist() for piece in minibatches(3, 1, order)] == [[0, 1, 2]]
    assert len(list(minibatches(2, 8, order))) == 2


def test_score_is_the_policys_log_probability_whatever_the_pieces():
    batch = ragged_batch()
    whole = score(Ragged(SPLITS[1]), batch, 1)
    assert torch.equal(whole, score(Ragged(SPLITS[4]), batch, 1))
    assert torch.equal(whole, Ragged(SPLITS[1]).evaluate(batch).logp.detach())


class PerStep(Ragged):
    """The same table, asked for single steps: `obs` [B, T, 2] names row and step of the table."""

    def evaluate(self, batch: Batch, *, entropy: bool = False) -> Evaluation:
        self.computed.append(len(batch))
        row, step = batch.obs.unbind(-1)
        logp = self.logits.log_softmax(-1)[row, step]
        chosen = logp.gather(-1, batch.action[..., None]).squeeze(-1)
        return Evaluation(chosen, -(logp.exp() * logp).sum(-1), self.values[row, step])


def stepwise_batch() -> Batch:
    rows, steps = torch.meshgrid(torch.arange(4), torch.arange(10), indexing="ij")
    batch = ragged_batch().with_(obs=torch.stack([rows, steps], -1), stepwise=True, ref_logp=None)
    return batch.with_(info=tuple({"row": row} for row in range(4)))


@pytest.mark.parametrize("scale", ["none", "batch", "minibatch"])
@pytest.mark.parametrize("budget", [7, 4096])
def test_drawing_single_steps_gives_the_gradient_of_whole_rows(scale, budget):
    algorithm = algorithm_from(
        {"preset": "ppo", "entropy_coefficient": 0.1, "advantage": {"scale": scale}, "update": {"epochs": 1}}
    )
    algorithm = replace(algorithm, update=replace(algorithm.update, minibatches=1))
    batch, _ = algorithm.prepare(stepwise_batch())
    policy, whole = PerStep([]), Ragged(SPLITS[1])
    updater = Updater(policy, algorithm, adamw(policy, OptimiserSettings()), budget, torch.Generator())
    updater.gradient(batch.steps())
    rows = algorithm.scaled(batch.with_(obs=torch.arange(4), stepwise=False))
    algorithm.loss(rows, whole.evaluate(rows), algorithm.counts(rows)).total.backward()
    torch.testing.assert_close(policy.logits.grad, whole.logits.grad)
    torch.testing.assert_close(policy.values.grad, whole.values.grad)
    assert policy.computed == ([20] if budget > 20 else [7, 7, 6])  # 1 + 2 + 7 + 10 steps


def test_minibatches_are_drawn_over_steps_where_steps_stand_by_themselves():
    seen: list[list[int]] = []

    class Watching(PerStep):
        def evaluate(self, batch, *, entropy=False):
            seen.append((batch.obs[:, 0, 0] * 10 + batch.obs[:, 0, 1]).tolist())
            return super().evaluate(batch, entropy=entropy)

    algorithm = algorithm_from({"preset": "ppo", "update": {"epochs": 2, "minibatches": 3}})
    batch, _ = algorithm.prepare(stepwise_batch())
    policy = Watching([])
    metrics = Updater(policy, algorithm, adamw(policy, OptimiserSettings()), 4096, torch.Generator())(batch)
    valid = [10 * row + step for row, length in enumerate(LENGTHS) for step in range(length)]
    assert [len(each) for each in seen] == [7, 7, 6] * 2
    for epoch in (seen[:3], seen[3:]):
        drawn = [step for piece in epoch for step in piece]
        assert sorted(drawn) == valid
        assert drawn != valid
    assert metrics["optimiser_steps"] == 6


def test_rows_stay_whole_where_the_loss_is_of_whole_rows():
    algorithm = algorithm_from({"preset": "reinforce", "update": {"minibatches": 2}})
    batch, _ = algorithm.prepare(stepwise_batch())
    policy = PerStep([])
    Updater(policy, algorithm, adamw(policy, OptimiserSettings()), 4096, torch.Generator())(batch)
    assert policy.computed == [2, 2]


def test_a_step_that_is_not_finite_is_named_by_its_row():
    algorithm = algorithm_from({"preset": "ppo", "update": {"epochs": 1, "minibatches": 2}})
    batch, _ = algorithm.prepare(stepwise_batch())
    bad = batch.old_logp.clone()
    bad[2, 3] = float("nan")
    policy = PerStep([])
    updater = Updater(policy, algorithm, adamw(policy, OptimiserSettings()), 4096, torch.Generator())
    with pytest.raises(NonFiniteError, match=r"in row 2 \(group 1\) \{'row': 2\}\."):
        updater(batch.with_(old_logp=bad, keep=torch.tensor([False, True, True, True])))
    assert not policy.logits.grad.any()
