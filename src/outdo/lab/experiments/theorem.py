"""F3: the policy-gradient theorem: Monte Carlo against the exact gradient of a grid world, per parameter."""

from __future__ import annotations

import torch

from outdo.core.presets import PRESETS
from outdo.lab.exact import tabular
from outdo.lab.exact.grid import GridWorld
from outdo.lab.experiment import Experiment, Figure, Outcome, Panel, Plot, Scale, Series
from outdo.lab.registry import deviate

EPISODES = 20_000
MOVES = "↑→↓←"


def run(scale: Scale) -> Outcome:
    """The estimate of each parameter's gradient beside the linear solve."""
    world = GridWorld(gamma=0.9)
    generator = torch.Generator().manual_seed(0)
    logits = 0.5 * torch.randn(world.states, world.actions, dtype=torch.float64, generator=generator)
    estimates: list[torch.Tensor] = []
    for _ in range(scale.count(1, 20)):
        batch = world.sample(logits, EPISODES, 1, generator)
        batch, _ = PRESETS["reinforce"].algorithm.prepare(batch)
        estimates.append(tabular.reinforce_gradients(logits, batch))
    every = torch.cat(estimates)
    mean, error = every.mean(dim=0), every.std(dim=0) / len(every) ** 0.5
    exact = world.gradient(logits)
    names = [f"s{s}{move}" for s in range(world.states) for move in MOVES]
    rows = list(
        zip(names, mean.flatten().tolist(), error.flatten().tolist(), exact.flatten().tolist(), strict=True)
    )
    figures = [
        Figure(f"∂J/∂logit {name}", value, exact=truth, error=spread) for name, value, spread, truth in rows
    ]
    place = [float(i) for i in range(len(rows))]
    z = deviate(len(rows))
    series = [
        Series("exact, linear solve", place, [truth for *_, truth in rows], kind="bars"),
        Series(
            f"Monte Carlo, {len(every):,} episodes",
            place,
            [value for _, value, _, _ in rows],
            [value - z * spread for _, value, spread, _ in rows],
            [value + z * spread for _, value, spread, _ in rows],
            kind="points",
        ),
    ]
    panel = Panel("state and action", "∂J/∂logit", series, ticks=names)
    return Outcome(figures, [Plot("theorem", "The policy-gradient theorem on a grid world", [panel])])


EXPERIMENT = Experiment(
    name="theorem",
    facts=("F3",),
    title="The policy-gradient theorem on a grid world",
    formula="""∇J = E[ Σ_t ∇log π(a_t|s_t) · G_0 ],  G_0 = Σ_k γ^k r_k
exact: J = start · (I − γP)⁻¹ r, differentiated""",
    text="""The gradient of the expected return needs no derivative of the world: how states follow each
other and what they pay may be unknown, or not differentiable at all. Playing episodes and weighing ∇log π
of the actions by what they earned is enough.

Here the world is small enough to know better. The value of every cell solves a set of linear equations, and
the derivative of that solution is the gradient, with no episode played. The bars are this derivative; the
points are what the episodes say, with error bars that all sixteen should stay within together.

The four gradients of a state add up to zero: raising all logits of a state by the same amount changes
nothing.""",
    settings=f"""{EPISODES:,} episodes for each seed (1 by default, 20 with --full) on a map of 2 × 3 cells
with a goal and a pit, γ = 0.9, logits drawn once with standard deviation 0.5. The world is ours: the fact
asks for a small grid world and leaves it open.""",
    run=run,
)
