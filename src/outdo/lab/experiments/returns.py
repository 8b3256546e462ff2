"""F1: returns and discounting, by hand and by the library."""

from __future__ import annotations

import torch
from torch import Tensor

from outdo.core import returns
from outdo.lab.experiment import Experiment, Figure, Outcome, Panel, Plot, Scale, Series, digits

CASES: tuple[tuple[str, tuple[float, ...], float, str, float], ...] = (
    ("G_0 of (0, 0, 0, 10), γ = 0.9", (0, 0, 0, 10), 0.9, "7.29", 10 * 0.9**3),
    ("the same 10 one step earlier", (0, 0, 10, 0), 0.9, "8.1", 10 * 0.9**2),
    ("G_0 of (1, 0, 0, 5), γ = 0.8", (1, 0, 0, 5), 0.8, "3.56", 1 + 5 * 0.8**3),
    ("G_0 of (1, 5, 0, 0), γ = 0.8", (1, 5, 0, 0), 0.8, "5.0", 1 + 5 * 0.8),
)


def to_go(rewards: tuple[float, ...], gamma: float) -> Tensor:
    """G_t of one episode that ends with its last reward, `[T]`."""
    reward = torch.tensor([rewards], dtype=torch.float64)
    cut = torch.zeros_like(reward, dtype=torch.bool)
    cut[:, -1] = True
    return returns.reward_to_go(reward, gamma * (~cut).double(), cut, torch.ones_like(cut))[0]


def run(scale: Scale) -> Outcome:
    """The four returns, and what two steps are worth."""
    figures: list[Figure] = []
    for name, rewards, gamma, text, exact in CASES:
        published, rounding = digits(text)
        figures.append(Figure(name, float(to_go(rewards, gamma)[0]), published, exact, rounding))
    late, early = figures[2].measured - 1, figures[3].measured - 1
    figures.append(Figure("share of the 5, two steps earlier", early / late, 1.5625, 1 / 0.8**2))
    steps = [float(t) for t in range(4)]
    examples = Panel(
        "step t",
        "return G_t",
        [
            Series(f"rewards {rewards}, γ = {gamma}", steps, to_go(rewards, gamma).tolist())
            for _, rewards, gamma, *_ in CASES
        ],
        "Returns, step by step",
    )
    delays = range(41)
    weights = Panel(
        "steps until the reward",
        "share that counts",
        [
            Series(
                f"γ = {gamma}",
                [float(k) for k in delays],
                [float(to_go((*[0.0] * k, 1.0), gamma)[0]) for k in delays],
            )
            for gamma in (0.8, 0.9, 0.99)
        ],
        "What a later reward is worth now",
    )
    return Outcome(figures, [Plot("returns", "Returns and discounting", [examples, weights])])


EXPERIMENT = Experiment(
    name="returns",
    facts=("F1",),
    title="Returns and discounting",
    formula="G_t = r_t + γ·G_{t+1} = Σ_k γ^k r_{t+k}",
    text="""The return of a step is everything that is earned from there on, with a reward k steps ahead
counted γ^k times. A discount below 1 says that sooner is better, and bounds what an endless episode can be
worth.

Moving a reward forward by two steps multiplies its share by 1/γ²: with γ = 0.8 that is 1.5625, so the same
5 that was worth 2.56 at the end of four steps is worth 4 in second place.

The return is built from behind, one multiplication and one addition a step. Language tasks mostly have one
score at the end and γ = 1: then every token of an answer has the same return.""",
    settings="Exact arithmetic, no chance.",
    run=run,
)
