"""F18: a sign and a detach, each of which trains the policy to do worse, and a loss that is 0 by construction."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.distributions import Normal

from outdo.core import objectives
from outdo.core.algorithm import Algorithm
from outdo.core.batch import Batch
from outdo.core.parts import Clipped, Gae, GroupMean
from outdo.core.protocols import Evaluation
from outdo.lab.exact import tabular
from outdo.lab.exact.bandit import Bandit
from outdo.lab.experiment import Experiment, Figure, Outcome, Panel, Plot, Scale, Series, holds
from outdo.lab.moments import moments

TARGET, WIDTH = 2.0, 1.0
RATE, STEPS, SAMPLES, SEEDS, DRAWS = 0.05, 20, 64, 200, 200_000
ENTROPY = 0.5 * math.log(2 * math.pi * math.e * WIDTH**2)
FACTORS = {"as it must be": 1.0, "sign flipped": -1.0, "advantage not detached": 1.0 - ENTROPY}


def score(mean: Tensor) -> Tensor:
    """J(μ) = −(μ − target)² − σ²: the expected score of the policy N(μ, σ²)."""
    return -(mean - TARGET).square() - WIDTH**2


def drive(mean: Tensor, noise: Tensor) -> tuple[Batch, Tensor]:
    """One decision for each row of `mean` `[B]`, and its log-probability `[B, 1]`.

    The action is a = μ + σ·noise. Its score −(a − target)² comes from a simulator that is differentiable, so the
    reward carries a gradient. The critic is exact.
    """
    action = (mean + WIDTH * noise)[:, None]
    logp = Normal(mean[:, None], WIDTH).log_prob(action.detach())
    mask, zero = torch.ones_like(action, dtype=torch.bool), torch.zeros_like(logp.detach())
    reward, value = -(action - TARGET).square(), score(mean.detach())[:, None]
    group = torch.arange(len(mean))
    batch = Batch(zero, zero, logp.detach(), reward, zero, mask, mask, group, value=value, next_value=zero)
    return Gae(lam=1.0).compute(batch, {})[0], logp


def directions(mean: Tensor, samples: int, how: str, generator: torch.Generator) -> Tensor:
    """What descent on the loss adds to each of the `samples` rows of each μ, `[runs, samples]`."""
    rows = mean.repeat_interleave(samples).requires_grad_()
    noise = torch.randn(len(rows), dtype=torch.float64, generator=generator)
    batch, logp = drive(rows, noise)
    assert batch.advantage is not None
    if how == "advantage not detached":
        loss = -(logp * batch.advantage)
    else:
        loss = objectives.reinforce(logp, batch.advantage, batch.valid)
        loss = -loss if how == "sign flipped" else loss
    return -torch.autograd.grad(loss.sum(), rows)[0].view(-1, samples)


def learn(how: str, runs: int) -> Tensor:
    """μ before each step and after the last, `[runs, STEPS + 1]`."""
    generator = torch.Generator().manual_seed(0)
    path = [torch.zeros(runs, dtype=torch.float64)]
    for _ in range(STEPS):
        path.append(path[-1] + RATE * directions(path[-1], SAMPLES, how, generator).mean(dim=1))
    return torch.stack(path, dim=1)


def centred() -> list[Figure]:
    """One pull of each of four arms under the uniform policy: loss and gradient before the first step.

    Advantages −0.25, 0.05, 0.35, −0.15, which add up to 0: so does the loss. The gradient on logit a is −A_a/4,
    so its norm is √0.21/4.
    """
    bandit, algorithm = Bandit((0.2, 0.5, 0.8, 0.3)), Algorithm(GroupMean(scale="none"), Clipped())
    logits = tabular.logits_of(bandit).requires_grad_()
    batch, _ = algorithm.prepare(bandit.batch(logits, torch.arange(4), group=4))
    loss = algorithm.loss(batch, Evaluation(tabular.logp(logits, batch)), algorithm.counts(batch)).total
    norm = float(torch.autograd.grad(loss, logits)[0].norm())
    return [
        Figure("loss of one pull of each arm", float(loss.detach()), 0.0, 0.0),
        Figure("its gradient norm", norm, exact=math.sqrt(0.21) / 4),
    ]


def run(scale: Scale) -> Outcome:
    """The three losses: expected direction, what they train, and the loss that is 0."""
    runs = max(SEEDS, scale.count(SEEDS, 2_000))
    figures, lines = list[Figure](), list[Series]()
    start, steps = torch.zeros(1, dtype=torch.float64), [float(k) for k in range(STEPS + 1)]
    for how, factor in FACTORS.items():
        each = moments(directions(start, DRAWS, how, torch.Generator().manual_seed(0)))
        exact = factor * 2 * TARGET
        figures.append(Figure(f"expected direction, {how}", each.mean, exact=exact, error=each.mean_error))
        path = learn(how, runs)
        last = moments(path[:, -1])
        ends = TARGET - TARGET * (1 - 2 * RATE * factor) ** STEPS
        name = f"mean action after {STEPS} steps, {how}"
        figures.append(Figure(name, last.mean, exact=ends, error=last.mean_error))
        gain = moments(score(path[:, -1]) - score(start))
        better = factor > 0
        statement = f"{how}: the policy does {'better' if better else 'worse'}"
        figures.append(holds(statement, gain.mean if better else -gain.mean, gain.mean_error))
        low, high = (torch.quantile(path, share, dim=0).tolist() for share in (0.1, 0.9))
        lines.append(Series(how, steps, path.mean(dim=0).tolist(), low, high))
    lines.append(Series("best action", [0.0, float(STEPS)], [TARGET, TARGET], dashed=True))
    plot = Plot("signs", "One sign, one detach", [Panel("step", "mean action of the policy", lines)])
    return Outcome(figures + centred(), [plot])


EXPERIMENT = Experiment(
    name="signs",
    facts=("F18",),
    title="A wrong sign, a missing detach, and a loss that is always 0",
    formula=(
        "loss = −log π(a)·A, with A held constant:   E[−∇loss] = ∇J\n"
        "sign flipped:                               −∇J\n"
        "A not detached, reward −(a − target)²:      (1 − H)·∇J,   H = ½ log(2πeσ²) = 1.419 at σ = 1"
    ),
    text=(
        "A policy steers by N(μ, 1) and is scored by how close it comes to 2. The loss to minimise is minus "
        "log-probability times advantage, and the advantage is a number, not something to differentiate.\n\n"
        "Flip the sign and the policy learns to avoid what went well. Forget to detach the advantage, here where the "
        "score comes out of a differentiable simulator, and a second term appears: log π, which is negative, times "
        "the gradient of the score. It pushes against the first, and wins where the entropy is above one nat. Both "
        "run without an error and without a strange number in the log; the policy just gets worse. The library's "
        "losses detach the advantage themselves: handed one that carries a gradient, they still give the right one.\n\n"
        "Nor would the value of the loss have told: with advantages that are centred within their group, and a "
        "ratio of 1, it is 0 by construction, while its gradient is not. `sequences` shows what to watch instead."
    ),
    settings=(
        f"Our own task, since no figures are published. Direction at μ = 0 from {DRAWS:,} samples. Training: {STEPS} "
        f"steps of {SAMPLES} samples, learning rate {RATE}, at least {SEEDS} runs; exact critic, REINFORCE. The exact "
        "end point holds because the expected step is linear in μ: a step multiplies μ − 2 by 1 − 0.1·c, with c = "
        "1, −1 and 1 − H. The two mistakes are written out in the experiment: the library has no function for them."
    ),
    run=run,
)
