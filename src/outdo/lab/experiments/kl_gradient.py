"""F11: the gradient of each KL estimator in each placement, beside its value."""

from __future__ import annotations

import math
from typing import Literal

import torch
from torch import Tensor
from torch.distributions import Categorical, kl_divergence

from outdo.core import kl, objectives
from outdo.core.algorithm import Algorithm
from outdo.core.batch import Batch
from outdo.core.kl import Estimator
from outdo.core.parts import KlInLoss, KlInReward, Reinforce, Return
from outdo.core.protocols import Evaluation
from outdo.lab.experiment import Experiment, Figure, Outcome, Panel, Plot, Scale, Series, digits

POLICY = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
REFERENCE = torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64)
Placement = Literal["in the reward", "in the loss", "× ratio"]
TRUE, FORWARD = ("0.3207", "-0.0825", "-0.2382"), ("0.3", "0", "-0.3")
TEXTS = {"true": TRUE, "zero": ("0", "0", "0"), "forward": FORWARD, "wrong": ()}
PAIRS: dict[tuple[Estimator, Placement], str] = {
    ("k1", "in the reward"): "true",
    ("k2", "in the loss"): "true",
    ("k1", "× ratio"): "true",
    ("k3", "× ratio"): "true",
    ("k1", "in the loss"): "zero",
    ("k3", "in the loss"): "forward",
    ("k2", "in the reward"): "wrong",
    ("k3", "in the reward"): "wrong",
    ("k2", "× ratio"): "wrong",
}
NAMES = [f"{estimator} {placement}" for estimator, placement in PAIRS]


def sample_gradients(estimator: Estimator, placement: Placement) -> Tensor:
    """Gradient on the logits of the loss of each action as the one sample, `[A, A]`.

    Through `Algorithm`, with coefficient 1 and a task that pays nothing. The two pairs that `KlInLoss` refuses
    are put together from the same functions. Each sample has a table of its own, which keeps them apart.
    """
    action, ref_logp = torch.arange(3), REFERENCE.log()[:, None]
    tables = POLICY.log().repeat(3, 1).requires_grad_()
    logp = torch.log_softmax(tables, dim=1)[action, action][:, None]
    one, zero = torch.ones_like(ref_logp, dtype=torch.bool), torch.zeros_like(ref_logp)
    if (estimator, placement) == ("k1", "in the loss"):
        loss = kl.estimate(logp, ref_logp, one, estimator).sum()
    elif (estimator, placement) == ("k2", "× ratio"):
        ratio = objectives.log_ratio(logp, logp.detach(), one).exp()
        loss = (ratio * kl.estimate(logp, ref_logp, one, estimator)).sum()
    else:
        in_reward = placement == "in the reward"
        part = KlInReward(estimator, 1.0) if in_reward else KlInLoss(estimator, 1.0, placement == "× ratio")
        algorithm = Algorithm(Return(), Reinforce("token_sum"), part)
        batch = Batch(action, action, logp.detach(), zero, zero, one, one, action, ref_logp=ref_logp)
        batch, _ = algorithm.prepare(batch)
        loss = algorithm.loss(batch, Evaluation(logp), algorithm.counts(batch)).total
    return torch.autograd.grad(loss, tables)[0]


def run(scale: Scale) -> Outcome:
    """Every expectation is a sum over the three actions: nothing here is sampled."""
    logits = POLICY.log().requires_grad_()
    divergence = kl_divergence(Categorical(logits=logits), Categorical(REFERENCE))
    forward = kl_divergence(Categorical(REFERENCE), Categorical(logits=logits))
    exact = {"zero": torch.zeros(3), "forward": torch.autograd.grad(forward, logits)[0]}
    exact["true"] = torch.autograd.grad(divergence, logits)[0]
    figures, samples = list[Figure](), dict[str, Tensor]()
    for name, ((estimator, placement), kind) in zip(NAMES, PAIRS.items(), strict=True):
        samples[name] = sample_gradients(estimator, placement)
        for logit, text in enumerate(TEXTS[kind]):
            published, rounding = digits(text)
            rounding = rounding if kind == "true" else 0.0  # the others are stated without rounding
            mean, truth = float((POLICY @ samples[name])[logit]), float(exact[kind][logit])
            figures.append(Figure(f"∇ {name}, logit {logit + 1}", mean, published, truth, rounding))
    difference = float((samples["k2 in the loss"] - samples["k3 × ratio"]).abs().max())
    figures.append(Figure("k2 in the loss against k3 × ratio, per sample", difference, exact=0.0))
    weight, panel = weights()
    sides = [values(float(divergence.detach())), bars(samples, exact["true"])]
    both = Plot("kl_gradient", "The value is not the gradient", sides)
    return Outcome(
        figures + weight, [both, Plot("kl_weight", "What a token's ∇ log π is multiplied by", [panel])]
    )


def values(truth: float) -> Panel:
    """Expected value of each estimator."""
    row, reference, mask = POLICY.log()[None], REFERENCE.log()[None], torch.ones(1, 3, dtype=torch.bool)
    names: tuple[Estimator, ...] = ("k1", "k2", "k3")
    means = [float(POLICY @ kl.estimate(row, reference, mask, name)[0]) for name in names]
    series = [Series("expected value", [0, 1, 2], means, kind="bars")]
    series.append(Series("true KL", [-0.5, 2.5], [truth, truth], dashed=True))
    return Panel("estimator", "value", series, "Value", list(names))


def bars(samples: dict[str, Tensor], truth: Tensor) -> Panel:
    """Expected gradient on the three logits, estimator by placement, and the true one first."""
    gradients = [truth, *(POLICY @ each for each in samples.values())]
    place = [float(i) for i in range(len(gradients))]
    series = [
        Series(f"logit {i + 1}", place, [float(g[i]) for g in gradients], kind="bars") for i in range(3)
    ]
    return Panel("estimator and placement", "expected gradient", series, "Gradient", ["true ∇KL", *NAMES])


def weights() -> tuple[list[Figure], Panel]:
    """k2 and k3 in the loss: the factor of a token's ∇ log π, with π_ref = 0.3 and π from 1e−4 up."""
    policy = torch.logspace(-4, -0.05, 80, dtype=torch.float64)
    reference, mask = torch.full((1, 80), 0.3, dtype=torch.float64), torch.ones(1, 80, dtype=torch.bool)
    figures, series = list[Figure](), list[Series]()
    weights: dict[Estimator, tuple[str, float]] = {"k2": ("-8.0", -math.log(3000)), "k3": ("-2999", -2999.0)}
    for estimator, (text, exact) in weights.items():
        logp = policy.log()[None].requires_grad_()
        weight = torch.autograd.grad(kl.estimate(logp, reference.log(), mask, estimator).sum(), logp)[0][0]
        published, rounding = digits(text)
        name = f"weight of {estimator} in the loss at π = 0.0001, π_ref = 0.3"
        figures.append(Figure(name, float(weight[0]), published, exact, rounding))
        series.append(Series(estimator, (0.3 / policy).tolist(), weight.tolist()))
    return figures, Panel("π_ref / π", "weight", series, log_x=True)


EXPERIMENT = Experiment(
    name="kl_gradient",
    facts=("F11",),
    title="The value of a KL estimate is not its gradient",
    formula=(
        "r = π_ref(a)/π(a), a drawn from π\n"
        "in the loss:   E[∇k1] = 0,   E[∇k2] = ∇KL(π‖π_ref),   E[∇k3] = ∇KL(π_ref‖π)\n"
        "in the reward: E[k1 ∇log π] = ∇KL(π‖π_ref)\n"
        "× ratio:       E[∇(ρ k1)] = E[∇(ρ k3)] = ∇KL(π‖π_ref),   ρ = π/π_old"
    ),
    text=(
        "An estimate of the KL that is right as a number need not pull the policy the right way. The right panel "
        "shows the expected gradient of every estimator in every place it may stand.\n\n"
        "Differentiated in the loss, k1 does nothing on average: all that is left is noise. k2 there is exact, "
        "although its value is the one that is off. k3 there follows the KL the other way round, and its weight "
        "grows without bound where the policy has all but given up an action that the reference likes: −2999 "
        "where k2 has −8. In the reward only k1 is exact. Multiplied by the differentiable ratio, k1 and k3 are.\n\n"
        "So placement and estimator are two settings. The preset `grpo` has k3 in the loss because the paper does; "
        "`grpo_exact_kl` multiplies it by the ratio."
    ),
    settings=(
        "π = (0.5, 0.3, 0.2), π_ref = (0.2, 0.3, 0.5), gradient on the logits, exact expectations, no sampling. Truth: "
        "torch.distributions and automatic differentiation. `KlInLoss` refuses k1 without the ratio and k2 with it: "
        "these two are put together from the same functions. The last three bars are wrong, without published figures."
    ),
    run=run,
)
