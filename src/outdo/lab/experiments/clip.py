"""F8 and F9: the clipped objective, where its gradient is zero, and the share of samples it holds back."""

from __future__ import annotations

import torch
from torch import Tensor

from outdo.core import objectives
from outdo.core.algorithm import Algorithm
from outdo.core.parts import Clipped, GroupMean, Update
from outdo.lab import learning
from outdo.lab.exact import tabular
from outdo.lab.exact.sequences import Sequences
from outdo.lab.experiment import Experiment, Figure, Outcome, Panel, Plot, Scale, Series, digits, holds
from outdo.lab.moments import moments

VALUES = (
    (2.0, 1.1, "2.2"),
    (2.0, 1.5, "2.4"),
    (-2.0, 0.9, "-1.8"),
    (-2.0, 0.5, "-1.6"),
    (3.0, 1.3, "3.6"),
    (3.0, 0.7, "2.1"),
)
SLOPES = ((1.0, 1.3, 0.0), (1.0, 0.7, 1.0), (-1.0, 0.7, 0.0), (-1.0, 1.3, -1.0))
TASK = Sequences(targets=((1, 3, 0, 2), (2, 2, 1, 0), (0, 1, 3, 3)), actions=4)
PPO = Algorithm(GroupMean(), Clipped(0.2), update=Update(epochs=8, minibatches=4, max_grad_norm=None))
RATE, SEEDS = 0.1, 30


def objective(ratio: Tensor, advantage: float) -> tuple[Tensor, Tensor, Tensor]:
    """min(ρA, clip(ρ)A), its slope in ρ by autograd, and the library's zero-gradient region, each `[N]`."""
    rho = ratio[None].clone().requires_grad_()
    mask = torch.ones_like(rho, dtype=torch.bool)
    loss, flat = objectives.clipped(rho.log(), torch.zeros_like(rho), torch.full_like(rho, advantage), mask)
    (slope,) = torch.autograd.grad(-loss.sum(), rho)
    return -loss.detach()[0], slope[0], flat[0]


def single(ratio: float) -> Tensor:
    """One ratio as `[1]` float64."""
    return torch.tensor([ratio], dtype=torch.float64)


def surface() -> tuple[list[Figure], list[Panel]]:
    """Values and slopes at the published points, and both objectives against ρ."""
    figures = list[Figure]()
    for advantage, ratio, text in VALUES:
        published, rounding = digits(text)
        value = float(objective(single(ratio), advantage)[0])
        # The published values are short decimals that need no rounding: 2 · 1.1 = 2.2, and so on.
        figures.append(
            Figure(f"value, A = {advantage:+g}, ρ = {ratio}", value, published, published, rounding)
        )
    for advantage, ratio, slope in SLOPES:
        measured = float(objective(single(ratio), advantage)[1])
        published = slope if slope == 0 else None
        figures.append(Figure(f"slope in ρ, A = {advantage:+g}, ρ = {ratio}", measured, published, slope))
    # Steps of 1/256 around 1 never meet the corners 0.8 and 1.2, where the slope is not defined.
    ratio = torch.arange(64, 449, dtype=torch.float64) / 256
    panels, disagreements = list[Panel](), 0
    for advantage in (1.0, -1.0):
        value, slope, flat = objective(ratio, advantage)
        disagreements += int(((slope == 0) != flat).sum())
        series = [
            Series("clipped, ε = 0.2", ratio.tolist(), value.tolist()),
            Series("unclipped ρA", ratio.tolist(), (ratio * advantage).tolist(), dashed=True),
        ]
        panels.append(Panel("ratio ρ", "objective", series, "A = +1" if advantage > 0 else "A = −1"))
    name = "ratios where slope 0 and the reported region disagree"
    return [*figures, Figure(name, float(disagreements), exact=0.0)], panels


def held_back(seeds: int) -> tuple[list[Figure], list[Panel]]:
    """Share of tokens in the clipped region and largest ratio, epoch by epoch over one batch."""
    share, autograd, largest = (torch.zeros(seeds, PPO.update.epochs) for _ in range(3))
    for seed in range(seeds):
        generator = torch.Generator().manual_seed(seed)
        logits = tabular.logits_of(TASK).requires_grad_()
        batch, _ = PPO.prepare(TASK.sample(logits, 6, 8, generator))
        optimiser = torch.optim.Adam([logits], lr=RATE)
        for epoch, found in enumerate(learning.update(PPO, batch, logits, optimiser, generator)):
            share[seed, epoch] = found["clip_share"]
            autograd[seed, epoch] = found["zero_gradient"]
            largest[seed, epoch] = found["ratio_max"]
    figures = [
        Figure(
            f"share clipped, epoch {epoch + 1}",
            float(share.mean(0)[epoch]),
            exact=float(autograd.mean(0)[epoch]),
        )
        for epoch in range(PPO.update.epochs)
    ]
    beyond, growth = moments(largest[:, -1] - 1.2), moments(share[:, -1] - share[:, 0])
    figures.append(
        holds("more are clipped in the last epoch than in the first", growth.mean, growth.mean_error)
    )
    figures.append(holds("no hard constraint: the largest ratio passes 1.2", beyond.mean, beyond.mean_error))
    return figures, [band(share, "share of tokens clipped"), band(largest, "largest ratio", 1.2)]


def band(values: Tensor, label: str, line: float | None = None) -> Panel:
    """Mean over seeds of `[seeds, epochs]`, with the range of nine seeds out of ten."""
    epochs = [float(epoch + 1) for epoch in range(values.shape[1])]
    low, high = values.quantile(0.05, dim=0).tolist(), values.quantile(0.95, dim=0).tolist()
    series = [Series("mean, and 90% of seeds", epochs, values.mean(0).tolist(), low, high)]
    if line is not None:
        series.append(Series("1 + ε", [epochs[0], epochs[-1]], [line, line], dashed=True))
    return Panel("epoch on the same batch", label, series)


def run(scale: Scale) -> Outcome:
    """The objective itself, then what it does over several epochs."""
    values, objectives_panels = surface()
    shares, epochs = held_back(max(SEEDS, scale.count(SEEDS, 200)))
    plots = [
        Plot("clip", "The clipped objective against the ratio", objectives_panels),
        Plot("clip_share", "Several epochs on one batch", epochs),
    ]
    return Outcome(values + shares, plots)


EXPERIMENT = Experiment(
    name="clip",
    facts=("F8", "F9"),
    title="What the clip does, and what it does not",
    formula="ρ = π(a)/π_old(a)\nobjective = min(ρA, clip(ρ, 1 − ε, 1 + ε)·A),   ε = 0.2",
    text=(
        "Several gradient steps on one batch let the policy run away from the one that sampled it. The clip takes "
        "away what there is to gain from running: once an action that turned out well has become 1.2 times as "
        "likely, or one that turned out badly 0.8 times, the objective is flat and that sample no longer pushes.\n\n"
        "It is flat on one side only. A good action that has become less likely (ρ = 0.7) still has its full "
        "gradient, and so has a bad one that has become more likely: mistakes can always be taken back.\n\n"
        "Nor is it a fence. The lower plots show several epochs over the same batch: more and more tokens reach the "
        "flat part, and yet the largest ratio goes past 1.2. The last step may overshoot, the optimiser's momentum "
        "carries on, and other samples move the same parameters."
    ),
    settings=(
        "Values and slopes: one sample, slope in ρ by autograd, no sampling. Shares: the token-sequence task (three "
        "prompts with targets of our choice, four tokens), six groups of 8 from the uniform policy, group-normalised "
        f"advantages, 8 epochs of 4 minibatches, Adam {RATE}, at least {SEEDS} seeds. Each share is measured before "
        "the step it belongs to, so the first minibatch counts as 0. The exact share counts the tokens that have an "
        "advantage and no gradient by autograd. The last two rows are statements: they must hold by more than 3.29 "
        "standard errors over the seeds."
    ),
    run=run,
)
