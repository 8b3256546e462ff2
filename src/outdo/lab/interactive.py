"""What one can move on the page: for every position of a slider the curves, computed here by the library."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from outdo.core import baselines, kl, objectives, returns
from outdo.core.batch import Batch
from outdo.lab.exact import tabular
from outdo.lab.exact.bandit import Bandit
from outdo.lab.exact.chain import Chain
from outdo.lab.experiment import Panel, Series
from outdo.lab.moments import Moments, moments

TRIALS = 4000


@dataclass(frozen=True, slots=True)
class Frame:
    """What one position of a slider shows: the panels, and a sentence with the figures."""

    panels: list[Panel]
    sentence: str


@dataclass(frozen=True, slots=True)
class Toy:
    """A slider and what it moves; `values` are the positions, `start` the first that is shown."""

    name: str
    title: str
    text: str
    symbol: str
    values: list[float]
    start: int
    frames: list[Frame]


def lam() -> Toy:
    """λ moves bias and spread of the first step's advantage under a critic that is wrong by −0.3."""
    chain = Chain(steps=20, noise=0.3, gain=0.0)
    batch = chain.sample(tabular.logits_of(chain), TRIALS, 1, torch.Generator().manual_seed(0))
    assert batch.value is not None
    truth = float(batch.value[0, 0])
    value = torch.full_like(batch.reward, -0.3)
    value[:, 0] = 0.0
    next_value = returns.next_values(value, torch.zeros_like(value), batch.cut, batch.valid)
    values = [0.0, 0.2, 0.4, 0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.93, 0.95, 0.97, 0.98, 0.99, 1.0]
    advantages = [
        returns.gae(batch.reward, value, next_value, batch.discount, batch.cut, batch.valid, each)[:, 0]
        for each in values
    ]
    found = [moments(advantage) for advantage in advantages]
    curves = [
        Series("bias", values, [each.mean for each in found]),
        Series("s.d.", values, [each.spread for each in found]),
    ]
    frames: list[Frame] = []
    for each, advantage, moment in zip(values, advantages, found, strict=True):
        here = Series("here", [each, each], [moment.mean, moment.spread], kind="points")
        panels = [
            _histogram("advantage of the first step", {"estimates": advantage}, -4.5, 4.5, truth),
            Panel("λ", "bias and s.d.", [*curves, here], "the dial"),
        ]
        sentence = f"λ = {each:.2f}: bias {_number(moment.mean)}, s.d. {_number(moment.spread)}."
        frames.append(Frame(panels, sentence))
    return Toy(
        "lam",
        "The dial between bias and variance",
        "The critic is wrong by −0.3 on the way. At λ = 0 the estimate believes it: calm, and off by as much. "
        "Towards λ = 1 it listens to the rewards instead: right on average, and restless.",
        "λ",
        values,
        values.index(0.9),
        frames,
    )


def clip() -> Toy:
    """ε moves the two clipped objectives and the weight that each leaves to the gradient."""
    ratio = torch.linspace(0.02, 2, 100, dtype=torch.float64)
    epsilons = [round(0.05 * i, 2) for i in range(1, 13)]
    frames: list[Frame] = []
    for epsilon in epsilons:
        objective: list[Series] = []
        weight: list[Series] = []
        for advantage, label in ((1.0, "A = +1"), (-1.0, "A = −1")):
            logp = ratio.log()[None].requires_grad_()
            given = torch.full_like(logp, advantage), torch.ones_like(logp, dtype=torch.bool)
            loss, _ = objectives.clipped(logp, torch.zeros_like(logp), *given, epsilon, epsilon)
            (slope,) = torch.autograd.grad(-loss.sum(), logp)
            objective.append(Series(label, ratio.tolist(), (-loss[0]).tolist()))
            weight.append(Series(label, ratio.tolist(), slope[0].tolist()))
        panels = [
            Panel("ratio ρ", "objective", objective, "what is maximised"),
            Panel("ratio ρ", "weight of ∇ log π", weight, "what a sample still pulls with"),
        ]
        sentence = (
            f"ε = {epsilon:.2f}: a good action stops pulling above ρ = {1 + epsilon:.2f}, "
            f"a bad one below ρ = {1 - epsilon:.2f}."
        )
        frames.append(Frame(panels, sentence))
    return Toy(
        "clip",
        "Width of the clip",
        "Widen the clip and see where each objective goes flat. Flat means that the sample has no say any more; "
        "on the other side of ρ = 1, where the policy has moved the wrong way, it always pulls back.",
        "ε",
        epsilons,
        epsilons.index(0.2),
        frames,
    )


def noise() -> Toy:
    """Payout noise moves the spread of one-sample gradients with and without a baseline."""
    generator = torch.Generator().manual_seed(0)
    logits = torch.zeros(1, 2, dtype=torch.float64)
    arms = tabular.draw(logits.expand(TRIALS, -1), generator)
    draws = torch.randn(TRIALS, dtype=torch.float64, generator=generator)
    truth = float(Bandit((5.0, 6.0)).gradient(logits)[0, 1])
    levels = [round(0.25 * i, 2) for i in range(2, 13)]
    labels = ("without a baseline", "with b = 5.5")
    estimates: list[tuple[Tensor, ...]] = []
    for level in levels:
        batch = Bandit((5.0, 6.0), level).batch(logits, arms, draws)
        estimates.append(
            tuple(_row_gradients(logits, batch, batch.reward - baseline)[:, 0, 1] for baseline in (0.0, 5.5))
        )
    spreads = [[moments(pair[i]).spread for pair in estimates] for i in range(2)]
    lines = [Series(label, levels, spread) for label, spread in zip(labels, spreads, strict=True)]
    frames: list[Frame] = []
    for index, (level, pair) in enumerate(zip(levels, estimates, strict=True)):
        here = Series("here", [level, level], [spread[index] for spread in spreads], kind="points")
        panels = [
            _histogram("estimate of the gradient", dict(zip(labels, pair, strict=True)), -9.0, 9.0, truth),
            Panel("noise σ of the payouts", "s.d. of an estimate", [*lines, here], "spread against noise"),
        ]
        sentence = (
            f"σ = {level:.2f}: mean {_number(pair[0].mean())} and s.d. {_number(spreads[0][index])} without a "
            f"baseline, mean {_number(pair[1].mean())} and s.d. {_number(spreads[1][index])} with it."
        )
        frames.append(Frame(panels, sentence))
    return Toy(
        "noise",
        "Noise of the payouts",
        "Two arms that pay 5 and 6 on average, a fair coin between them. The baseline takes away the part of the "
        "spread that comes from the size of the payouts. What the payouts' own noise adds stays.",
        "σ",
        levels,
        levels.index(1.0),
        frames,
    )


def group_size() -> Toy:
    """G moves mean and spread of the gradient estimate under three baselines."""
    bandit = Bandit((0.2, 0.5, 0.8, 0.3), 0.3)
    logits = tabular.logits_of(bandit)
    truth = float(bandit.gradient(logits)[0, 2])
    sizes = [2, 3, 4, 6, 8, 12, 16, 24, 32]
    found = [_group_estimates(bandit, logits, size) for size in sizes]
    labels = list(found[0])
    places = [float(size) for size in sizes]
    curves = [Series(label, places, [each[label].mean for each in found]) for label in labels]
    frames: list[Frame] = []
    for size, moment in zip(sizes, found, strict=True):
        means = [moment[label].mean for label in labels]
        spreads = [moment[label].spread for label in labels]
        low = [mean - spread for mean, spread in zip(means, spreads, strict=True)]
        high = [mean + spread for mean, spread in zip(means, spreads, strict=True)]
        points = Series("mean ± s.d.", [0.0, 1.0, 2.0], means, low, high, kind="points")
        exact = Series("exact", [-0.5, 2.5], [truth, truth], dashed=True)
        here = Series("here", [float(size)] * 3, means, kind="points")
        panels = [
            Panel("baseline", "gradient on the best arm", [points, exact], "estimates of one group", labels),
            Panel("group size G", "mean of the estimates", [*curves, here], "mean against size", log_x=True),
        ]
        told = ", ".join(
            f"{label} {_number(each.mean)} ± {_number(each.spread)}" for label, each in moment.items()
        )
        frames.append(Frame(panels, f"G = {size}: {told}; exact {_number(truth)}."))
    return Toy(
        "group",
        "Size of the group",
        "Four arms, one of them best. With few samples a group's own mean eats a part of the gradient, for each "
        "sample is part of what it is compared with; leaving it out gives the missing part back.",
        "G",
        places,
        0,
        frames,
    )


def _group_estimates(bandit: Bandit, logits: Tensor, size: int) -> dict[str, Moments]:
    """Moments of the gradient on the third arm's logit, estimated from one group, by baseline."""
    batch = bandit.sample(logits, TRIALS, size, torch.Generator().manual_seed(0))
    score, scored = baselines.score(batch.reward, batch.valid), baselines.scored_rows(batch)
    advantages = {
        "none": score,
        "group mean": baselines.group_mean(score, batch.group, scored),
        "leave one out": baselines.leave_one_out(score, batch.group, scored),
    }
    return {
        label: moments(_row_gradients(logits, batch, each[:, None])[:, 0, 2].view(-1, size).mean(dim=1))
        for label, each in advantages.items()
    }


def penalty() -> Toy:
    """β moves the best policy between the greedy one and the reference."""
    payouts = torch.tensor((0.2, 0.5, 0.8, 0.3), dtype=torch.float64)
    reference = torch.tensor((0.4, 0.3, 0.1, 0.2), dtype=torch.float64).log()
    weights = [0.02, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.6, 0.8, 1.2, 2.0, 4.0]
    best = [penalised_optimum(payouts, reference, beta) for beta in weights]
    rewards = [float(torch.softmax(logits, 0) @ payouts) for logits in best]
    distances = [float(kl.exact(logits, reference)) for logits in best]
    ticks = [f"pays {payout:.1f}" for payout in payouts.tolist()]
    places = [0.0, 1.0, 2.0, 3.0]
    frames: list[Frame] = []
    for beta, logits, reward, distance in zip(weights, best, rewards, distances, strict=True):
        bars = [
            Series("reference", places, reference.exp().tolist(), kind="bars"),
            Series("best policy", places, torch.softmax(logits, 0).tolist(), kind="bars"),
        ]
        curve = Series("best policies", distances, rewards)
        here = Series("here", [distance], [reward], kind="points")
        panels = [
            Panel("arm", "probability", bars, "the policy", ticks),
            Panel("KL to the reference", "expected reward", [curve, here], "what the reward costs"),
        ]
        sentence = (
            f"β = {beta:g}: expected reward {_number(reward)}, KL to the reference {_number(distance)}."
        )
        frames.append(Frame(panels, sentence))
    return Toy(
        "penalty",
        "Weight of the KL",
        "The policy that is best for reward − β · KL(π‖π_ref). A small β follows the reward wherever it leads, a "
        "large one hardly leaves the reference. On the curve, more reward always costs more distance.",
        "β",
        weights,
        weights.index(0.2),
        frames,
    )


def penalised_optimum(payouts: Tensor, ref_logits: Tensor, beta: float) -> Tensor:
    """Logits `[A]` that maximise Σ_a π(a) payouts[a] − β·KL(π‖π_ref), by L-BFGS from the reference."""
    logits = ref_logits.clone().requires_grad_()
    optimiser = torch.optim.LBFGS(
        [logits], max_iter=500, tolerance_grad=1e-12, tolerance_change=1e-15, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        optimiser.zero_grad()
        value = beta * kl.exact(logits, ref_logits) - torch.softmax(logits, 0) @ payouts
        value.backward()
        return value

    optimiser.step(loss)
    return logits.detach()


def _row_gradients(logits: Tensor, batch: Batch, advantage: Tensor) -> Tensor:
    """What each row adds to the policy gradient, `[B, S, A]`, from advantages `[B, 1]`."""
    return tabular.row_gradients(
        logits, batch, lambda logp: objectives.reinforce(logp, advantage, batch.valid)
    )


def _histogram(x_label: str, samples: Mapping[str, Tensor], low: float, high: float, truth: float) -> Panel:
    """Density of each set of samples in 60 bins, and where the true value lies."""
    edges = torch.linspace(low, high, 61, dtype=torch.float64)
    heights = {label: torch.histogram(each, edges, density=True).hist for label, each in samples.items()}
    series = [Series(label, edges.tolist(), each.tolist(), kind="steps") for label, each in heights.items()]
    top = max(float(each.max()) for each in heights.values())
    series.append(Series("true value", [truth, truth], [0.0, top], dashed=True))
    return Panel(x_label, "density", series, f"{TRIALS:,} estimates")


def _number(value: Tensor | float) -> str:
    """Three decimals, with a real minus sign and no negative zero."""
    return f"{round(float(value), 3) + 0.0:.3f}".replace("-", "−")


TOYS: dict[str, Callable[[], Toy]] = {"F5": noise, "F7": lam, "F9": clip, "F11": penalty, "F13": group_size}
"""By the fact that they let one play with."""
