"""F2: reward-to-go against the whole return: one expected gradient, two variances, by enumeration."""

from __future__ import annotations

from torch import Tensor

from outdo.core.presets import PRESETS
from outdo.lab.exact import tabular
from outdo.lab.exact.chain import Chain
from outdo.lab.exact.grid import GridWorld
from outdo.lab.experiment import Experiment, Figure, Outcome, Panel, Plot, Scale, Series, holds

STEPS = 6
CREDITS = {"whole return": "reinforce", "reward-to-go": "reinforce_to_go"}
VARIANCE = {
    "whole return": 2 * sum((STEPS + STEPS**2) / 16 - 1 / 16 for _ in range(STEPS)),
    "reward-to-go": 2 * sum((n + n**2) / 16 - 1 / 16 for n in range(1, STEPS + 1)),
}
"""Closed form on the chain, uniform policy: each of 2 logits of a step has ¼·E[G²] − (¼)², and G, a sum of n coin
flips, has E[G²] = n/4 + n²/4."""


def moments(environment: Chain | GridWorld, logits: Tensor, preset: str) -> tuple[Tensor, Tensor]:
    """Mean and variance of the one-episode gradient, both `[S, A]`, over all episodes with their probabilities."""
    batch, probability = environment.trajectories(logits)
    batch, _ = PRESETS[preset].algorithm.prepare(batch)
    estimate = tabular.reinforce_gradients(logits, batch)
    weight = probability[:, None, None]
    mean = (weight * estimate).sum(dim=0)
    return mean, (weight * (estimate - mean).square()).sum(dim=0)


def run(scale: Scale) -> Outcome:
    """Both credits on a chain and on a grid world."""
    worlds: dict[str, Chain | GridWorld] = {"chain": Chain(STEPS), "grid world": GridWorld(horizon=5)}
    figures: list[Figure] = []
    panels: list[Panel] = []
    for name, world in worlds.items():
        logits = tabular.logits_of(world)
        truth = world.gradient(logits)
        totals: dict[str, float] = {}
        series: list[Series] = []
        for credit, preset in CREDITS.items():
            mean, variance = moments(world, logits, preset)
            figures.append(
                Figure(f"{name}, {credit}: error of E[ĝ]", float((mean - truth).abs().max()), exact=0.0)
            )
            totals[credit] = float(variance.sum())
            if isinstance(world, Chain):
                figures.append(
                    Figure(f"{name}, {credit}: total variance", totals[credit], exact=VARIANCE[credit])
                )
            states = [float(s) for s in range(world.states)]
            series.append(Series(credit, states, variance.sum(dim=1).tolist(), kind="bars"))
        figures.append(
            holds(f"{name}: reward-to-go varies less", totals["whole return"] - totals["reward-to-go"], 0.0)
        )
        what = "step" if isinstance(world, Chain) else "state"
        ticks = [str(s) for s in range(world.states)]
        panels.append(Panel(what, "variance of the gradient", series, name.capitalize(), ticks))
    return Outcome(figures, [Plot("causality", "Reward-to-go against the whole return", panels)])


EXPERIMENT = Experiment(
    name="causality",
    facts=("F2",),
    title="Reward-to-go against the whole return",
    formula="""ĝ_whole = Σ_t ∇log π(a_t|s_t) · Σ_k r_k
ĝ_to-go = Σ_t ∇log π(a_t|s_t) · Σ_{k≥t} r_k
E[ĝ_whole] = E[ĝ_to-go] = ∇J""",
    text="""An action cannot change what was earned before it. Rewards of the past, multiplied by ∇log π of
the action, have mean zero: they move no expected gradient and only add noise. Reward-to-go leaves them out.

Both claims are shown by listing every episode of a small problem with its probability, so that means and
variances are sums and no estimates. On the chain each step pays for its own action alone: the whole return
burdens every step with the noise of all, reward-to-go spares a step what came before it, and the later the
step the more it saves.

The expected gradients are compared with the derivative of the value, which is computed without any episode.""",
    settings=f"""Exact: all {2**STEPS} episodes of a chain of {STEPS} steps that pay 0 or 1, and all
episodes of a grid world of 2 × 3 cells with a time limit of 5 steps; uniform policy, γ = 1. Which small
problem is meant was left open: both are ours.""",
    run=run,
)
