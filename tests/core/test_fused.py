"""The compiled loss equals the torch form of `Algorithm.loss` in value, gradients and figures."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from batches import LENGTHS, batch_of, with_junk

from outdo.core import fused
from outdo.core.algorithm import Algorithm
from outdo.core.parts import Clipped, Gae, Reinforce, Return, Update
from outdo.core.protocols import Evaluation

ALGORITHMS = {
    "ppo": Algorithm(Gae(0.9, scale="batch"), Clipped(0.1, 0.3), entropy_coefficient=0.03),
    "value clipping": Algorithm(Gae(0.9), Clipped(0.2, 0.2), value_clip=0.3, value_coefficient=0.7),
    "a2c": Algorithm(Gae(1.0), Reinforce(), entropy_coefficient=0.01),
    "no critic": Algorithm(Return(), Clipped(reduce="token_sum")),
    "reinforce": Algorithm(Return("episode"), Reinforce("token_sum"), entropy_coefficient=0.2),
}


def leaves_of(batch, dtype, offset):
    """log π near the old one, entropy, value."""
    generator = torch.Generator().manual_seed(9)

    def noise():
        return torch.randn(batch.logp.shape, generator=generator, dtype=torch.float64)

    made = (batch.old_logp + offset * noise(), noise().abs(), batch.value + noise())
    return [each.to(dtype).requires_grad_() for each in made]


def both(algorithm, batch, leaves, monkeypatch):
    """Loss and gradients by the kernel, then by torch."""
    results = []
    for compiled in (True, False):
        with monkeypatch.context() as patch:
            if not compiled:
                patch.setattr(fused, "suits", lambda *tensors: False)
            assert algorithm._fuses(batch, Evaluation(*leaves)) is compiled
            loss = algorithm.loss(batch, Evaluation(*leaves), algorithm.counts(batch))
        gradients = torch.autograd.grad(loss.total * 3.0, leaves, allow_unused=True)
        gradients = [torch.zeros_like(x) if g is None else g for g, x in zip(gradients, leaves, strict=True)]
        results.append((loss, gradients))
    return results


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("offset", [0.0, 0.05, 0.6])
def test_equal_to_the_torch_form(name, dtype, offset, monkeypatch):
    algorithm = ALGORITHMS[name]
    batch, _ = algorithm.prepare(with_junk(batch_of(LENGTHS)).with_(ref_logp=None))
    batch = batch.with_(keep=torch.tensor([True, True, False, True]))
    changes = {
        field: getattr(batch, field).to(dtype)
        for field in ("logp", "old_logp", "advantage", "value", "next_value", "target")
        if getattr(batch, field) is not None
    }
    batch = batch.with_(**changes)
    (kernel, gradients), (torch_form, wanted) = both(
        algorithm, batch, leaves_of(batch_of(LENGTHS), dtype, offset), monkeypatch
    )
    torch.testing.assert_close(kernel.total, torch_form.total)
    for got, right in zip(gradients, wanted, strict=True):
        torch.testing.assert_close(got, right)
    assert kernel.metrics.keys() == torch_form.metrics.keys()
    for key, (total, steps) in torch_form.metrics.items():
        assert float(kernel.metrics[key][0]) == pytest.approx(float(total), rel=1e-5, abs=1e-6)
        assert kernel.metrics[key][1] == steps
    assert kernel.maxima["ratio_max"] == pytest.approx(float(torch_form.maxima["ratio_max"]))
    if offset == 0.6 and name in ("ppo", "value clipping"):
        assert float(kernel.metrics["clip_share"][0]) > 0


def test_a_number_that_is_not_finite_is_never_hidden():
    algorithm = ALGORITHMS["ppo"]
    batch, _ = algorithm.prepare(batch_of((2, 2)).with_(ref_logp=None))
    for name in ("advantage", "old_logp", "target"):
        spoilt = getattr(batch, name).clone()
        spoilt[0, 0] = float("nan")
        bad = batch.with_(**{name: spoilt})
        loss = algorithm.loss(bad, Evaluation(*leaves_of(batch, torch.float64, 0.1)), algorithm.counts(bad))
        assert not loss.total.isfinite()
    # ρ = ∞ times an advantage of 0: NaN, whatever the clip says.
    far = batch.with_(old_logp=batch.old_logp - 1e4, advantage=torch.zeros_like(batch.advantage))
    loss = algorithm.loss(far, Evaluation(*leaves_of(batch, torch.float64, 0.1)), algorithm.counts(far))
    assert loss.total.isnan()


def test_other_losses_take_the_torch_form():
    batch, _ = ALGORITHMS["ppo"].prepare(batch_of(LENGTHS).with_(ref_logp=None))
    evaluation = Evaluation(*leaves_of(batch, torch.float64, 0.1))
    ppo = ALGORITHMS["ppo"]
    assert ppo._fuses(batch, evaluation)
    for other in (
        replace(ppo, objective=Clipped(dual=3.0)),
        replace(ppo, objective=Clipped(ratio="sequence")),
        replace(ppo, objective=Clipped(reduce="sequence_mean_token_mean")),
        replace(ppo, update=Update(importance_cap=2.0)),
    ):
        assert not other._fuses(batch, evaluation)
    assert not ppo._fuses(batch, Evaluation(evaluation.logp.float(), evaluation.entropy, evaluation.value))
    assert not ppo._fuses(batch.with_(ref_logp=batch.logp), evaluation)
