"""F12 and F14: advantages within a group, and what the division by its standard deviation does to small spreads."""

from __future__ import annotations

import math
import statistics

import torch
from torch import Tensor

from outdo.core import baselines
from outdo.core.batch import Batch
from outdo.core.parts import GroupMean
from outdo.lab.experiment import Experiment, Figure, Outcome, Panel, Plot, Scale, Series, digits

RIGHT, SIZE = 3, 8
REWARDS = [1.0] * RIGHT + [0.0] * (SIZE - RIGHT)
ADVANTAGES = {0: ("1.29", "-0.77"), 1: ("1.21", "-0.72")}
SPREADS = (1e-6, 1e-4, 1e-2)
VARIANTS = {
    "r − mean": GroupMean(scale="none"),
    "÷ (s.d. + 1e−8)": GroupMean(eps=1e-8),
    "÷ (s.d. + 1e−4)": GroupMean(eps=1e-4),
    "÷ (s.d. + 0.01)": GroupMean(eps=0.01),
}


def advantages(rewards: Tensor, part: GroupMean) -> Tensor:
    """The library's advantages of answers of one step each, `[groups, G]` to `[groups, G]`."""
    column, group = rewards.reshape(-1, 1), torch.arange(len(rewards)).repeat_interleave(rewards.shape[1])
    mask, zero = torch.ones_like(column, dtype=torch.bool), torch.zeros_like(column)
    batch, _ = part.compute(Batch(zero, zero, zero, column, zero, mask, mask, group), {})
    assert batch.advantage is not None
    return batch.advantage.view_as(rewards)


def three_of_eight() -> list[Figure]:
    """Mean, spread and advantages of three right answers among eight, with both divisors."""
    rewards = torch.tensor([REWARDS], dtype=torch.float64)
    group, scored = torch.zeros(SIZE, dtype=torch.int64), torch.ones(SIZE, dtype=torch.bool)
    mean = float((rewards[0] - baselines.group_mean(rewards[0], group, scored))[0])
    spread = float(baselines.group_std(rewards[0], group, scored)[0])
    published, rounding = digits("0.484")
    figures = [
        Figure("mean of 3 right in 8", mean, 0.375, statistics.fmean(REWARDS)),
        Figure("s.d., divisor n", spread, published, statistics.pstdev(REWARDS), rounding),
    ]
    for ddof, texts in ADVANTAGES.items():
        row = advantages(rewards, GroupMean(ddof=ddof, eps=0.0))[0]
        scale = statistics.stdev(REWARDS) if ddof else statistics.pstdev(REWARDS)
        for what, measured, reward, text in (
            ("right", row[0], 1.0, texts[0]),
            ("wrong", row[-1], 0.0, texts[1]),
        ):
            published, rounding = digits(text)
            exact = (reward - statistics.fmean(REWARDS)) / scale
            name = f"advantage of a {what} answer, divisor {'n − 1' if ddof else 'n'}"
            figures.append(Figure(name, float(measured), published, exact, rounding))
    return figures


def odd_one_out(spread: Tensor, part: GroupMean) -> Tensor:
    """Advantage of one answer that scores `spread` `[N]` more than the seven others, `[N]`."""
    rewards = torch.full((len(spread), SIZE), 0.5, dtype=torch.float64)
    rewards[:, 0] += spread
    return advantages(rewards, part)[:, 0]


def run(scale: Scale) -> Outcome:
    """The published example, groups of equal rewards, and groups that are nearly constant."""
    figures = three_of_eight()
    level = torch.tensor([0.0, 0.1, 1.0, -3.3, 1e6], dtype=torch.float64)
    equal = advantages(level[:, None].expand(-1, SIZE), GroupMean())
    figures.append(Figure("largest advantage in groups of equal rewards", float(equal.abs().max()), 0.0, 0.0))
    places = torch.tensor(SPREADS, dtype=torch.float64)
    for name, part in VARIANTS.items():
        for spread, measured in zip(SPREADS, odd_one_out(places, part).tolist(), strict=True):
            # Mean: 0.5 + δ/8, so the odd one lies 7δ/8 above it; s.d.: √(7/8 · 1/8) δ = √7 δ/8.
            divisor = 1.0 if part.scale == "none" else math.sqrt(7) * spread / 8 + part.eps
            figures.append(
                Figure(f"{name}: one answer {spread:g} better", measured, exact=7 * spread / 8 / divisor)
            )
    place = torch.logspace(-7, 0, 71, dtype=torch.float64)
    series = [
        Series(name, place.tolist(), odd_one_out(place, part).tolist()) for name, part in VARIANTS.items()
    ]
    attempts = torch.tensor([[1.0] * right + [0.0] * (SIZE - right) for right in range(SIZE + 1)]).double()
    table = advantages(attempts, GroupMean())
    counts = [float(right) for right in range(SIZE + 1)]
    bars = [
        Series("a right answer", counts[1:], table[1:, 0].tolist(), kind="bars"),
        Series("a wrong answer", counts[:-1], table[:-1, -1].tolist(), kind="bars"),
    ]
    plots = [
        Plot(
            "group", "Advantages in a group of eight", [Panel("right answers among eight", "advantage", bars)]
        ),
        Plot(
            "group_spread",
            "A group that is nearly constant",
            [Panel("how much better the one answer is", "its advantage", series, log_x=True)],
        ),
    ]
    return Outcome(figures, plots)


EXPERIMENT = Experiment(
    name="group",
    facts=("F12", "F14"),
    title="Advantages within a group",
    formula=(
        "A_i = (r_i − mean) / (s.d. + ε)\n"
        "s.d. = √(Σ (r_i − mean)² / n), or with n − 1\n"
        "one of eight better by δ:  r − mean = 7δ/8,   s.d. = √7 δ/8,   quotient √7 ≈ 2.65 for every δ ≫ ε"
    ),
    text=(
        "Several answers to one prompt are their own baseline: what counts is how much better than its siblings an "
        "answer was. Three right among eight get +1.29 each, the five wrong ones −0.77. The other divisor, n − 1, "
        "gives +1.21 and −0.72; both are in use, so it is a setting (`ddof`).\n\n"
        "When all answers score the same, nobody was better than anybody: every advantage is exactly zero and the "
        "group teaches nothing. That happens with prompts that are too easy and with prompts that are too hard, "
        "and it is why training starts from a policy that already succeeds sometimes.\n\n"
        "Dividing by the spread makes prompts of different difficulty comparable, and has a price: a difference "
        "of a millionth becomes as loud as a difference of one. A larger ε quietens such groups; `dr_grpo` and "
        "`rloo` leave the division out."
    ),
    settings=(
        "No sampling. The published example is computed with ε = 0; the preset `grpo` has ε = 1e−4 and divisor n. "
        "Exact: Python's statistics module. F14 is published without figures: the groups of eight with one "
        "answer better by δ are our choice, with the closed form above."
    ),
    run=run,
)
