"""F16: learning curves of the bandit for several group sizes, with little and with much noise."""

from __future__ import annotations

import math
from statistics import NormalDist

import torch
from torch import Tensor

from outdo.core.parts import GroupMean
from outdo.lab.exact import tabular
from outdo.lab.exact.bandit import Bandit
from outdo.lab.experiment import Experiment, Figure, Outcome, Panel, Plot, Scale, Series, holds
from outdo.lab.moments import Moments, moments

PAYOUTS, BEST = (0.2, 0.5, 0.8, 0.3), 2
NOISES, SIZES = (0.1, 1.0), (2, 8, 32)
RATE, STEPS, SEEDS, TRIALS = 0.5, 200, 200, 20_000
ADVANTAGE = GroupMean(scale="group", ddof=0, eps=1e-8)


def step(bandit: Bandit, logits: Tensor, size: int, generator: torch.Generator) -> Tensor:
    """One update of every run, each from a group of its own: `logits` `[runs, 1, A]` to the same shape."""
    tables = logits.repeat_interleave(size, dim=0)
    batch, _ = ADVANTAGE.compute(bandit.sample(tables, len(logits), size, generator), {})
    rows = tabular.reinforce_gradients(tables, batch)
    return logits + RATE * rows.view(-1, size, *logits.shape[1:]).mean(dim=1)


def learn(bandit: Bandit, size: int, runs: int) -> Tensor:
    """Probability of the best arm before each step and after the last, `[runs, STEPS + 1]`."""
    generator = torch.Generator().manual_seed(size)
    logits = tabular.logits_of(bandit).expand(runs, 1, -1)
    curve = [torch.softmax(logits, dim=-1)[:, 0, BEST]]
    for _ in range(STEPS):
        logits = step(bandit, logits, size, generator)
        curve.append(torch.softmax(logits, dim=-1)[:, 0, BEST])
    return torch.stack(curve, dim=1)


def limit(bandit: Bandit) -> list[float]:
    """The curve of an endless group: θ ← θ + rate · ∇J / s.d. of the reward under the policy."""
    logits = tabular.logits_of(bandit)
    curve = list[float]()
    for _ in range(STEPS + 1):
        policy = torch.softmax(logits[0], dim=0)
        curve.append(float(policy[BEST]))
        variance = policy @ (bandit.means - policy @ bandit.means).square() + bandit.noise**2
        logits = logits + RATE * bandit.gradient(logits) / variance.sqrt()
    return curve


def first_step(bandit: Bandit) -> Figure:
    """Mean first move of the best arm's logit at G = 2, where an advantage is +1 or −1: only the order counts.

    One pull is the best arm and the other is arm b with chance 2/16, and the better of the two is moved up:
    rate · ½ · (2/16) Σ_b (2Φ((m_best − m_b)/(σ√2)) − 1) = rate/8 · Σ_b (Φ(…) − ½).
    """
    start = tabular.logits_of(bandit).expand(TRIALS, 1, -1)
    moved = moments(step(bandit, start, 2, torch.Generator().manual_seed(0))[:, 0, BEST])
    wins = [
        NormalDist().cdf((PAYOUTS[BEST] - other) / (bandit.noise * math.sqrt(2))) - 0.5
        for arm, other in enumerate(PAYOUTS)
        if arm != BEST
    ]
    name = f"first move of the best logit, G = 2, noise {bandit.noise:g}"
    return Figure(name, moved.mean, exact=RATE * sum(wins) / 8, error=moved.mean_error)


def series(label: str, curve: Tensor) -> Series:
    """Mean over the runs with the band that holds four fifths of them."""
    low, high = (torch.quantile(curve, share, dim=0).tolist() for share in (0.1, 0.9))
    return Series(label, [float(k) for k in range(STEPS + 1)], curve.mean(dim=0).tolist(), low, high)


def beyond(a: Moments, b: Moments) -> tuple[float, float]:
    """How much higher the mean of a is than that of b, and its standard error."""
    return a.mean - b.mean, math.hypot(a.mean_error, b.mean_error)


def wider(a: Moments, b: Moments) -> tuple[float, float]:
    """How much wider the spread of a is than that of b, and its standard error."""
    return a.spread - b.spread, math.hypot(a.spread_error, b.spread_error)


def run(scale: Scale) -> Outcome:
    """Curves for every size and noise, and what was said of them."""
    runs = max(SEEDS, scale.count(SEEDS, 1_000))
    figures, panels = list[Figure](), list[Panel]()
    area = dict[tuple[float, int], Moments]()
    for noise in NOISES:
        bandit = Bandit(PAYOUTS, noise)
        curves = {size: learn(bandit, size, runs) for size in SIZES}
        area |= {(noise, size): moments(curve.mean(dim=1)) for size, curve in curves.items()}
        two, eight, many = (area[noise, size] for size in SIZES)
        gain, error = beyond(eight, two)
        rest, rest_error = beyond(many, eight)
        figures += [
            first_step(bandit),
            holds(f"noise {noise:g}: G = 2 is slower than 8", gain, error),
            holds(f"noise {noise:g}: G = 2 is wider than 8", *wider(two, eight)),
            holds(
                f"noise {noise:g}: 8 is nearer to 32 than to 2",
                gain - abs(rest),
                math.hypot(error, rest_error),
            ),
        ]
        lines = [series(f"G = {size}", curve) for size, curve in curves.items()]
        lines.append(Series("endless group", lines[0].x, limit(bandit), dashed=True))
        panels.append(Panel("step", "probability of the best arm", lines, f"Noise {noise:g}"))
    calm, noisy = NOISES
    for size in SIZES:
        slower, broader = (
            beyond(area[calm, size], area[noisy, size]),
            wider(area[noisy, size], area[calm, size]),
        )
        figures.append(holds(f"G = {size}: more noise is slower", *slower))
        figures.append(holds(f"G = {size}: more noise is wider", *broader))
    return Outcome(figures, [Plot("group_size", "How many answers to compare", panels)])


EXPERIMENT = Experiment(
    name="group_size",
    facts=("F16",),
    title="Groups of 2, 8 and 32",
    formula=(
        "A_i = (r_i − mean)/(s.d. + 1e−8),   logits ← logits + 0.5 · (1/G) Σ_i A_i ∇ log π(a_i)\n"
        "G = 2: A = ±1,   E[first move of the best logit] = 0.5/8 · Σ_b (Φ((m_best − m_b)/(σ√2)) − ½)\n"
        "G → ∞: logits ← logits + 0.5 · ∇J / s.d.(r)"
    ),
    text=(
        "With two answers an advantage can only be +1 or −1: the better of the two is pushed up, whether it won by a "
        "hair or by a mile, and both often are the same arm, which teaches nothing. Learning is slower, and one run "
        "differs much from the next. With eight, the group's mean and spread are estimated well enough that the "
        "curve lies close to that of an endless group; with 32 it costs four times the samples and gains little.\n\n"
        "On the right the noise of the payouts is larger than the gaps between the arms. Everything is slower and "
        "wider, and some runs with pairs settle on a wrong arm. More answers per prompt then pay off longer."
    ),
    settings=(
        f"The bandit of `grpo_bandit`, {STEPS} steps, at least {SEEDS} runs a curve (1,000 in the long version; 30 are "
        "too few to compare spreads), torch generator seeded with G. Noise 0.1 as there, and 1.0 (our choice: the "
        "largest gap to the best arm is 0.6). Published as statements without figures. Slower: lower mean over all "
        "steps of the best arm's probability. Wider: larger standard deviation of that mean between runs. Close: 8 "
        "and 32 differ by less than 2 and 8. Each statement must hold by more than 3.29 standard errors. First move: "
        f"{TRIALS:,} pairs, and its expectation in closed form."
    ),
    run=run,
)
