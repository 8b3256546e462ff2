"""F15: a bandit learned with group-normalised advantages, to the digits that were published."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from outdo.core.parts import GroupMean
from outdo.lab.exact import tabular
from outdo.lab.exact.bandit import Bandit
from outdo.lab.experiment import Experiment, Figure, Outcome, Panel, Plot, Scale, Series, digits

BANDIT = Bandit(payouts=(0.2, 0.5, 0.8, 0.3), noise=0.1)
GROUP, RATE, STEPS = 8, 0.5, 200
ADVANTAGE = GroupMean(scale="group", ddof=0, eps=1e-8)
PUBLISHED = {
    0: (".25", ".25", ".25", ".25"),
    20: (".02", ".04", ".91", ".02"),
    50: ("0.00", ".01", ".99", "0.00"),
    200: ("0.00", "0.00", "1.00", "0.00"),
}


def learn() -> Tensor:
    """Probabilities before each step and after the last, `[STEPS + 1, 4]`."""
    rng = np.random.default_rng(0)
    logits = tabular.logits_of(BANDIT)
    path = list[Tensor]()
    for _ in range(STEPS + 1):
        path.append(torch.softmax(logits[0], dim=0))
        arms = torch.from_numpy(rng.choice(4, size=GROUP, p=path[-1].numpy()))
        noise = torch.from_numpy(rng.normal(size=GROUP))
        batch, _ = ADVANTAGE.compute(BANDIT.batch(logits, arms, noise, group=GROUP), {})
        logits = logits + RATE * tabular.reinforce_gradients(logits, batch).mean(dim=0)
    return torch.stack(path)


def run(scale: Scale) -> Outcome:
    """The one published run."""
    path = learn()
    figures = list[Figure]()
    for step, texts in PUBLISHED.items():
        for arm, text in enumerate(texts):
            published, rounding = digits(text)
            exact = 0.25 if step == 0 else None
            name = f"π(arm {arm + 1}) at step {step}"
            figures.append(Figure(name, float(path[step, arm]), published, exact, rounding, same_draws=True))
    steps = [float(step) for step in range(STEPS + 1)]
    series = [
        Series(f"arm {arm + 1}, pays {payout}", steps, path[:, arm].tolist())
        for arm, payout in enumerate(BANDIT.payouts)
    ]
    panel = Panel("step", "probability", series)
    return Outcome(figures, [Plot("grpo_bandit", "Four arms, groups of eight", [panel])])


EXPERIMENT = Experiment(
    name="grpo_bandit",
    facts=("F15",),
    title="A bandit learned from groups of eight",
    formula=("A_i = (r_i − mean)/(s.d. + 1e−8)\nlogits ← logits + 0.5 · (1/8) Σ_i A_i ∇ log π(a_i)"),
    text=(
        "Four arms pay 0.2, 0.5, 0.8 and 0.3 on average. The policy knows none of this. It pulls eight times, "
        "compares the eight payouts with one another, and makes the arms that paid more than their siblings more "
        "likely. After twenty steps the best arm has nine tenths of the probability, after two hundred all of it.\n\n"
        "Nothing here estimates the value of an arm, and no gradient of the payout is needed: the log-probability "
        "of what was done is all that is differentiated."
    ),
    settings=(
        "One run, NumPy default_rng(0); in each step rng.choice(4, size=8, p=π) first, then rng.normal(size=8) times "
        "0.1. Reconstructed: the gradient is the mean over the group, not the sum (with the sum the best arm is at "
        "0.99 after 20 steps), and the step's probabilities are those before its update. The digits must agree; "
        "published zeros are read as 0.00."
    ),
    run=run,
)
