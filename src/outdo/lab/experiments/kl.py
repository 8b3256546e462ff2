"""F10: three estimators of the KL to a reference, as values."""

from __future__ import annotations

from typing import get_args

import torch
from torch.distributions import Categorical, kl_divergence

from outdo.core import kl
from outdo.lab.experiment import Experiment, Figure, Outcome, Panel, Plot, Scale, Series, digits
from outdo.lab.moments import moments

SAMPLES = 200_000
POLICY = torch.tensor([0.6, 0.3, 0.1], dtype=torch.float64)
REFERENCE = torch.tensor([0.4, 0.4, 0.2], dtype=torch.float64)
ESTIMATORS: tuple[kl.Estimator, ...] = get_args(kl.Estimator)
PUBLISHED = {"k1": ("0.0877", "0.405"), "k2": ("0.0858", "0.055"), "k3": ("0.0877", "0.074")}


def run(scale: Scale) -> Outcome:
    """Mean and spread of each estimator over samples, beside the sums over the three actions."""
    truth = float(kl_divergence(Categorical(POLICY), Categorical(REFERENCE)))
    published, rounding = digits("0.0877")
    figures = [Figure("true KL", float(kl.exact(POLICY.log(), REFERENCE.log())), published, truth, rounding)]
    count = 10 * SAMPLES if scale.full else SAMPLES
    action = torch.multinomial(POLICY, count, replacement=True, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(1, 3, dtype=torch.bool)
    means, spreads = list[float](), list[float]()
    for name in ESTIMATORS:
        each = kl.estimate(POLICY.log()[None], REFERENCE.log()[None], mask, name)[0]
        found = moments(each[action])
        means.append(found.mean)
        spreads.append(found.spread)
        mean = POLICY @ each
        spread = (POLICY @ (each - mean).square()).sqrt()
        for what, measured, error, exact, text in (
            ("mean", found.mean, found.mean_error, mean if name == "k2" else truth, PUBLISHED[name][0]),
            ("s.d.", found.spread, found.spread_error, spread, PUBLISHED[name][1]),
        ):
            published, rounding = digits(text)
            theirs = error * (count / SAMPLES) ** 0.5
            figures.append(
                Figure(f"{name} {what}", measured, published, float(exact), rounding, error, theirs)
            )
    low = [mean - spread for mean, spread in zip(means, spreads, strict=True)]
    high = [mean + spread for mean, spread in zip(means, spreads, strict=True)]
    bars = Series("mean ± s.d. of one sample", [0, 1, 2], means, low, high, kind="bars")
    line = Series("true KL", [-0.5, 2.5], [truth, truth], dashed=True)
    panel = Panel("estimator", "estimate of the KL", [bars, line], ticks=list(ESTIMATORS))
    return Outcome(figures, [Plot("kl", "Three estimators of one KL", [panel])])


EXPERIMENT = Experiment(
    name="kl",
    facts=("F10",),
    title="Three estimators of the KL to a reference",
    formula=(
        "r = π_ref(a)/π(a), a drawn from π\n"
        "k1 = −log r\n"
        "k2 = ½(log r)²\n"
        "k3 = (r − 1) − log r\n"
        "E[k1] = E[k3] = KL(π‖π_ref)"
    ),
    text=(
        "How far the policy has moved from its reference is estimated from the actions that were sampled anyway. "
        "All three estimators look only at r, the reference's probability of the action over the policy's.\n\n"
        "k1 is right on average, but a single sample may be far off, and even negative. k2 is never negative and "
        "hardly varies, but its mean is a little off. k3 is never negative, varies little, and is right on average: "
        "for a number in the log it is the one to take.\n\n"
        "For training it is another question, because there the gradient counts: see `kl_gradient`."
    ),
    settings=(
        f"π = (0.6, 0.3, 0.1) and π_ref = (0.4, 0.4, 0.2), recovered from the six published figures; {SAMPLES:,} "
        "actions, torch seed 0. The published values come from other draws, whose seed is not known, so both sides "
        "carry a sampling error. Exact: the KL by torch.distributions, mean of k2 and spreads by a sum over the "
        "three actions."
    ),
    run=run,
)
