"""Steps of a batch as rows of their own, and advantages standardised over each minibatch."""

from __future__ import annotations

import pytest
import torch
from batches import LENGTHS, batch_of

from outdo.core.algorithm import Algorithm
from outdo.core.parts import Clipped, Gae, Reinforce, Return
from outdo.core.presets import preset


def stepwise(keep=None):
    batch = batch_of(LENGTHS)
    obs = {"x": torch.arange(40.0).view(4, 10, 1), "y": torch.arange(40).view(4, 10)}
    return batch.with_(obs=obs, action=obs["y"], keep=keep, stepwise=True, info=({},) * 4)


def test_every_step_that_carries_loss_becomes_a_row():
    batch = stepwise(keep=torch.tensor([True, False, True, True]))
    flat = batch.steps()
    # Lengths 1, 2, 7, 10 without the second row: 18 steps, numbered 10·row + step.
    numbers = [0, *range(20, 27), *range(30, 40)]
    assert flat.action.flatten().tolist() == numbers
    assert flat.obs["x"].shape == (18, 1, 1)
    assert flat.obs["x"].flatten().tolist() == numbers
    assert flat.group.tolist() == [0] + [1] * 17
    for name in ("logp", "old_logp", "reward", "value", "next_value", "discount", "cut", "valid"):
        assert torch.equal(getattr(flat, name)[:, 0], getattr(batch, name).flatten()[numbers]), name
    assert flat.valid.all()
    assert flat.keep is None
    assert flat.info == ()
    assert flat.stepwise
    assert torch.equal(flat.select(slice(3, 9)).action, flat.select(torch.arange(3, 9)).action)


def test_rows_that_hang_together_stay_whole():
    with pytest.raises(ValueError, match="stepwise is False"):
        batch_of(LENGTHS).steps()
    assert preset("ppo").algorithm.is_stepwise
    assert preset("a2c").algorithm.is_stepwise
    for name in ("gspo", "grpo", "reinforce", "dr_grpo"):
        assert not preset(name).algorithm.is_stepwise


@pytest.mark.parametrize("part", [Gae(0.9, scale="minibatch", ddof=1), Return(scale="minibatch", ddof=1)])
def test_advantages_standardised_over_each_minibatch(part):
    algorithm = Algorithm(part, Clipped())
    batch, _ = algorithm.prepare(batch_of(LENGTHS).with_(keep=torch.tensor([True, True, False, True])))
    plain, _ = Algorithm(type(part)(), Clipped()).prepare(batch_of(LENGTHS))
    if isinstance(part, Return):
        assert torch.equal(batch.advantage, plain.advantage)
    mask = batch.loss_mask
    scaled = algorithm.scaled(batch)
    chosen = batch.advantage[mask]
    torch.testing.assert_close(scaled.advantage[mask], (chosen - chosen.mean()) / (chosen.std() + 1e-8))
    assert (scaled.advantage[~mask] == 0).all()
    assert Algorithm(Gae(), Reinforce()).scaled(batch) is batch
    if isinstance(part, Gae):
        torch.testing.assert_close(batch.target, batch.advantage + torch.where(batch.valid, batch.value, 0.0))
