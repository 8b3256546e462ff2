"""F7: the bias and the variance of GAE against λ, on a chain with a critic that is wrong."""

from __future__ import annotations

import torch
from torch import Tensor

from outdo.core import returns
from outdo.core.batch import Batch
from outdo.lab.exact import tabular
from outdo.lab.exact.chain import Chain
from outdo.lab.experiment import Experiment, Figure, Outcome, Panel, Plot, Scale, Series, digits
from outdo.lab.moments import moments

EPISODES = 2_000
STEPS = 20
NOISE = 0.3
ERROR = -0.3
PUBLISHED = {0.0: ("-0.31", "0.31"), 0.9: ("-0.27", "0.70"), 0.99: ("-0.06", "1.24"), 1.0: ("-0.01", "1.36")}


def first_advantage(batch: Batch, lam: float) -> Tensor:
    """The advantage of the first step of every episode, `[B]`."""
    assert batch.value is not None
    assert batch.next_value is not None
    return returns.gae(
        batch.reward, batch.value, batch.next_value, batch.discount, batch.cut, batch.valid, lam
    )[:, 0]


def exact_bias(lam: float) -> float:
    """δ of the first step is −0.3 too low, that of the last 0.3 too high, those between are right."""
    return ERROR * (1 - lam ** (STEPS - 1))


def exact_spread(lam: float) -> float:
    """Independent noises, weighed by λ^k."""
    return NOISE * sum(lam ** (2 * k) for k in range(STEPS)) ** 0.5


def run(scale: Scale) -> Outcome:
    """Bias and spread for the published λ, and the curves between."""
    chain = Chain(STEPS, NOISE, gain=0.0)
    logits = tabular.logits_of(chain)
    generator = torch.Generator().manual_seed(0)
    batch = chain.sample(logits, EPISODES * scale.count(10, 200), 1, generator)
    error = torch.full((STEPS,), ERROR, dtype=torch.float64)
    error[0] = 0.0
    batch = tabular.misjudged(batch, error)
    figures: list[Figure] = []
    for lam, (bias, spread) in PUBLISHED.items():
        found, width = moments(first_advantage(batch, lam)), exact_spread(lam)
        value, rounding = digits(bias)
        figures.append(
            Figure(
                f"bias, λ = {lam:g}",
                found.mean,
                value,
                exact_bias(lam),
                rounding,
                found.mean_error,
                width / EPISODES**0.5,
            )
        )
        value, rounding = digits(spread)
        figures.append(
            Figure(
                f"s.d., λ = {lam:g}",
                found.spread,
                value,
                width,
                rounding,
                found.spread_error,
                width / (2 * EPISODES) ** 0.5,
            )
        )
    grid = [0.0, 0.2, 0.4, 0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99, 1.0]
    drawn = [moments(first_advantage(batch, lam)) for lam in grid]
    marks = list(PUBLISHED)
    bias_panel = Panel(
        "λ",
        "bias",
        [
            Series("measured", grid, [each.mean for each in drawn]),
            Series("exact", grid, [exact_bias(lam) for lam in grid], dashed=True),
            Series("published", marks, [float(bias) for bias, _ in PUBLISHED.values()], kind="points"),
        ],
        "Bias",
    )
    spread_panel = Panel(
        "λ",
        "standard deviation",
        [
            Series("measured", grid, [each.spread for each in drawn]),
            Series("exact", grid, [exact_spread(lam) for lam in grid], dashed=True),
            Series("published", marks, [float(spread) for _, spread in PUBLISHED.values()], kind="points"),
        ],
        "Standard deviation",
    )
    return Outcome(figures, [Plot("gae", "GAE: bias against variance", [bias_panel, spread_panel])])


EXPERIMENT = Experiment(
    name="gae",
    facts=("F7",),
    title="GAE: λ trades bias for variance",
    formula="""δ_t = r_t + γ·V(s_{t+1}) − V(s_t)
A_t = Σ_k (γλ)^k δ_{t+k}
here: bias = −0.3·(1 − λ^19),  s.d. = 0.3·√((1 − λ^40)/(1 − λ²))""",
    text="""λ says how far to trust the critic. With λ = 0 an advantage is one step of reward and the
critic's opinion of what comes next: little noise, and every mistake of the critic goes straight in. With λ
= 1 it is the whole return minus the critic's opinion of the start: the mistakes along the way cancel, and
the noise of all twenty steps adds up.

The chain makes this visible with nothing else in the picture. Rewards are pure noise, so every true
advantage is 0, and the critic says 0.3 too little everywhere but at the ends. The estimate of the first
advantage is then off by −0.3·(1 − λ^19), and as wide as the noise that λ lets in.

At 0.95, the usual choice, the bias is still three fifths of what it is at 0, and the spread is three times
as large: this chain is a hard case for it, since the critic's error never fades. A critic that is right
would make every λ unbiased.""",
    settings=f"""Chain of {STEPS} steps, reward noise {NOISE}, γ = 1, critic off by {ERROR} on states 1 … 19
(a reconstruction that matches the published table). Published values are from {EPISODES:,} episodes, and
get the error that goes with that; ours are from {EPISODES:,} episodes for each seed (10, with --full 200),
the same ones for every λ.""",
    run=run,
)
