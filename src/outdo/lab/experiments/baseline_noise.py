"""F5: a baseline under noise: 5,000 one-sample gradients with and without, as two histograms."""

from __future__ import annotations

import torch
from torch import Tensor

from outdo.core.parts import Return
from outdo.lab.exact import tabular
from outdo.lab.exact.bandit import Bandit
from outdo.lab.experiment import Experiment, Figure, Outcome, Panel, Plot, Scale, Series, digits
from outdo.lab.moments import moments

SAMPLES = 5_000
BASELINES = {0.0: ("2.78", 7.8125**0.5), 5.5: ("0.50", 0.5)}
HUMPS = {0.0: ("-2.5", "3"), 5.5: ("0.25", "0.25")}


def estimates(bandit: Bandit, arms: Tensor, noise: Tensor, baseline: float) -> Tensor:
    """Gradient on the second logit for each draw, `[n]`; uniform policy."""
    logits = tabular.logits_of(bandit)
    batch, _ = Return(baseline="running").compute(bandit.batch(logits, arms, noise), {"baseline": baseline})
    return tabular.reinforce_gradients(logits, batch)[:, 0, 1]


def histogram(samples: Tensor, label: str) -> Series:
    """Share of samples per bin of a quarter; `x` are the edges."""
    edges = torch.arange(-8.0, 8.01, 0.25, dtype=torch.float64)
    counts = torch.histogram(samples, edges).hist / len(samples)
    return Series(label, edges.tolist(), counts.tolist(), kind="steps")


def run(scale: Scale) -> Outcome:
    """The published draws digit for digit, and more draws against the exact values."""
    bandit = Bandit((5.0, 6.0), noise=1.0)
    truth = float(bandit.gradient(tabular.logits_of(bandit))[0, 1])
    generator = torch.Generator().manual_seed(0)
    arms = torch.randint(2, (SAMPLES,), generator=generator)
    noise = torch.randn(SAMPLES, generator=generator)
    generator.manual_seed(1)
    many = SAMPLES * scale.count(20, 400)
    more_arms = torch.randint(2, (many,), generator=generator)
    more_noise = torch.randn(many, generator=generator)
    figures: list[Figure] = []
    panels: list[Panel] = []
    for baseline, (text, spread) in BASELINES.items():
        name = "no baseline" if baseline == 0 else f"b = {baseline:g}"
        seeded = estimates(bandit, arms, noise, baseline)
        shown = moments(seeded)
        published, rounding = digits(text)
        figures += [
            Figure(f"{name}: mean, seed 0", shown.mean, 0.25, truth, 0.005, shown.mean_error),
            Figure(
                f"{name}: s.d., seed 0",
                shown.spread,
                published,
                spread,
                rounding,
                shown.spread_error,
                same_draws=True,
            ),
        ]
        for arm, text in enumerate(HUMPS[baseline]):
            hump = moments(seeded[arms == arm])
            published, rounding = digits(text)
            figures.append(
                Figure(
                    f"{name}: hump of arm {arm}", hump.mean, published, published, rounding, hump.mean_error
                )
            )
        found = moments(estimates(bandit, more_arms, more_noise, baseline))
        figures += [
            Figure(f"{name}: mean, fresh draws", found.mean, exact=truth, error=found.mean_error),
            Figure(f"{name}: s.d., fresh draws", found.spread, exact=spread, error=found.spread_error),
        ]
        panels.append(Panel("estimate of ∂J/∂logit 1", "share of estimates", [histogram(seeded, name)], name))
    return Outcome(figures, [Plot("baseline_noise", "5,000 one-sample gradients", panels)])


EXPERIMENT = Experiment(
    name="baseline_noise",
    facts=("F5",),
    title="A baseline under noise",
    formula="""ĝ = (r − b) · (1[arm = 1] − ½),  r = 5 or 6, plus N(0, 1)
E[ĝ] = ¼;  Var ĝ = ¼·E[(r − b)²] − 1/16 = 7.8125 at b = 0, 0.25 at b = 5.5""",
    text="""A fair coin chooses between arms that pay 5 and 6, with noise of one unit. A single draw's
gradient, without a baseline, lies in one of two wide heaps: near −2.5 when the worse arm was drawn, near +3
when the better one was. Their mean is the truth, 0.25, but nearly no estimate is anywhere near it.

With b = 5.5 both heaps slide onto each other, at 0.25, and each is as wide as half the noise. The mean
stays, the standard deviation falls from 2.8 to 0.5: to learn as much without the baseline takes about
thirty times the draws.""",
    settings=f"""{SAMPLES:,} draws from a torch generator seeded with 0: arms by randint, then noise by
randn in float32 (the order was given, the type is what gives the published digits). Exact values are
compared on {SAMPLES:,} fresh draws for each seed (20, with --full 400).""",
    run=run,
)
