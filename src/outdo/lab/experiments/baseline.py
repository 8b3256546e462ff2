"""F4: a baseline moves no mean and takes the spread away: two arms without noise."""

from __future__ import annotations

import torch
from torch import Tensor

from outdo.core.parts import Return
from outdo.lab.exact import tabular
from outdo.lab.exact.bandit import Bandit
from outdo.lab.experiment import Experiment, Figure, Outcome, Panel, Plot, Scale, Series, digits

CASES = (
    ((10.0, 11.0), 0.0, "-5.0", "5.5"),
    ((10.0, 11.0), 10.5, "0.25", "0.25"),
    ((6.0, 14.0), 0.0, "-3.0", "7.0"),
    ((6.0, 14.0), 10.0, "2.0", "2.0"),
)


def samples(bandit: Bandit, baseline: float) -> Tensor:
    """Gradient on the second arm's logit for each arm as the sample, `[2]`; uniform policy."""
    logits = tabular.logits_of(bandit)
    batch = bandit.batch(logits, torch.arange(2))
    batch, _ = Return(baseline="running").compute(batch, {"baseline": baseline})
    return tabular.reinforce_gradients(logits, batch)[:, 0, 1]


def run(scale: Scale) -> Outcome:
    """The samples, their mean and how far they lie apart."""
    figures: list[Figure] = []
    panels: dict[tuple[float, float], list[Series]] = {}
    for payouts, baseline, *texts in CASES:
        bandit = Bandit(payouts)
        truth = float(bandit.gradient(tabular.logits_of(bandit))[0, 1])
        found = samples(bandit, baseline)
        name = f"payouts {payouts[0]:g} and {payouts[1]:g}, b = {baseline:g}"
        for arm, text, value in zip("AB", texts, found.tolist(), strict=True):
            published, rounding = digits(text)
            figures.append(Figure(f"{name}: arm {arm}", value, published, rounding=rounding))
        mean = 0.25 if payouts == (10.0, 11.0) else None
        figures.append(Figure(f"{name}: mean", float(found.mean()), mean, exact=truth))
        if mean is not None:
            spread = 0.0 if baseline else 10.5
            figures.append(Figure(f"{name}: spread", float(found.max() - found.min()), spread))
        panels.setdefault(payouts, []).append(
            Series(f"b = {baseline:g}", [0.0, 1.0], found.tolist(), kind="bars")
        )
    drawn = [
        Panel("arm drawn", "gradient on logit B", series, f"Payouts {low:g} and {high:g}", ["A", "B"])
        for (low, high), series in panels.items()
    ]
    return Outcome(figures, [Plot("baseline", "One sample's gradient, with and without a baseline", drawn)])


EXPERIMENT = Experiment(
    name="baseline",
    facts=("F4",),
    title="What a baseline changes, and what it leaves",
    formula="""ĝ_B = (r − b) · (1[arm = B] − π(B)),  π(B) = ½
E[ĝ_B] = π(A) π(B) (r_B − r_A) for every b""",
    text="""Two arms pay 10 and 11, and the policy draws either with the same chance. Without a baseline the
gradient on the better arm's logit is −5 when the worse arm was drawn and +5.5 when the better one was: both
are large, nearly cancel, and only their small sum, a mean of 0.25, carries the news.

Taking off 10.5 asks another question: was this better or worse than usual? Either arm now gives the same
answer, +0.25. The mean has not moved, and nothing is left to average away.

A baseline may depend on the state, never on the action drawn: then E[∇log π · b] = b · ∇Σπ = 0.""",
    settings="Exact: both arms, no noise, uniform policy. The baseline is the library's running average, held at b.",
    run=run,
)
