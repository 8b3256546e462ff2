"""The update on tables of logits, by hand; and moments with their errors."""

import math
import statistics

import pytest
import torch

from outdo.core.algorithm import Algorithm
from outdo.core.parts import Clipped, GroupMean, Update
from outdo.lab import learning
from outdo.lab.exact import tabular
from outdo.lab.exact.bandit import Bandit
from outdo.lab.moments import moments


def update(rate, epochs):
    """Epochs on one pull of each of two arms that pay 0 and 1: advantages −½ and ½."""
    bandit = Bandit((0.0, 1.0))
    logits = tabular.logits_of(bandit).requires_grad_()
    algorithm = Algorithm(GroupMean(scale="none"), Clipped(), update=Update(epochs=epochs))
    batch, _ = algorithm.prepare(bandit.batch(logits, torch.arange(2), group=2))
    order = torch.Generator().manual_seed(0)
    return logits, learning.update(algorithm, batch, logits, torch.optim.SGD([logits], lr=rate), order)


def test_one_step_by_hand():
    # Gradient of the loss on logit 1: −½ (½ · ½ + ½ · ½) = −¼ and +¼ on logit 0; norm ¼ √2; loss 0.
    logits, (found,) = update(rate=2.0, epochs=1)
    assert logits.tolist()[0] == pytest.approx([-0.5, 0.5])
    assert found["grad_norm"] == pytest.approx(math.sqrt(2) / 4)
    assert found["loss"] == pytest.approx(0)
    assert found["entropy"] == pytest.approx(math.log(2))
    assert found["zero_gradient"] == 0


def test_past_the_clip_both_tokens_stand_still():
    # After the first step π = σ(±1) = 0.731 and 0.269, ratios 1.46 and 0.54: both past the clip.
    logits, (first, second) = update(rate=2.0, epochs=2)
    assert first["clip_share"] == 0
    assert second["clip_share"] == second["zero_gradient"] == 1
    assert second["grad_norm"] == 0
    assert second["ratio_max"] == pytest.approx(2 / (1 + math.exp(-1)))
    assert logits.tolist()[0] == pytest.approx([-0.5, 0.5])


def test_moments_against_the_statistics_module():
    samples = [0.3, -1.2, 4.0, 0.5, 0.5]
    found = moments(torch.tensor(samples, dtype=torch.float64))
    assert found.mean == pytest.approx(statistics.fmean(samples))
    assert found.spread == pytest.approx(statistics.stdev(samples))
    assert found.mean_error == pytest.approx(statistics.stdev(samples) / math.sqrt(5))


def test_errors_are_the_spread_over_repetitions():
    draws = torch.randn(4_000, 200, generator=torch.Generator().manual_seed(0), dtype=torch.float64).exp()
    each = [moments(row) for row in draws]
    spread = statistics.stdev(one.mean for one in each)
    assert statistics.fmean(one.mean_error for one in each) == pytest.approx(spread, rel=0.05)
    # normal samples: σ/√(2n)
    normal = moments(torch.randn(100_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64))
    assert normal.spread_error == pytest.approx(1 / math.sqrt(200_000), rel=0.02)


def test_a_single_sample_has_no_spread():
    with pytest.raises(ValueError, match="at least 2 samples, got 1"):
        moments(torch.ones(1))
