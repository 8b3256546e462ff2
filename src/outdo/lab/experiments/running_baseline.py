"""F6: REINFORCE with a running-average baseline on a noisy two-armed bandit, and with the baseline held at 0."""

from __future__ import annotations

import torch
from torch import Tensor

from outdo.core.batch import Batch
from outdo.core.parts import Return, State
from outdo.core.presets import PRESETS
from outdo.lab.exact import tabular
from outdo.lab.exact.bandit import Bandit
from outdo.lab.experiment import Experiment, Outcome, Panel, Plot, Scale, Series, holds
from outdo.lab.moments import moments

STEPS = 2_000
LEARNING_RATE = 0.05
RUNS = 30
UNHINDERED = 200
"""Runs without a baseline: they differ so much from each other that few of them say little."""


def advantages(part: Return, batch: Batch, states: list[State]) -> Tensor:
    """The advantage of every row `[B, 1]`; each row is a run of its own, with a running average of its own."""
    if part.baseline != "running":
        filled = part.compute(batch, {})[0].advantage
        assert filled is not None
        return filled
    one, rows = batch.select(torch.zeros(1, dtype=torch.int64)), list[Tensor]()
    for row in range(len(batch)):
        filled, states[row] = part.compute(one.with_(reward=batch.reward[row : row + 1]), states[row])
        assert filled.advantage is not None
        rows.append(filled.advantage)
    return torch.cat(rows)


def learn(part: Return, runs: int, generator: torch.Generator) -> Tensor:
    """Probability of the better arm after each step, `[runs, STEPS]`; one draw a step, plain gradient ascent."""
    bandit = Bandit((10.0, 11.0), noise=2.0)
    logits = torch.zeros(runs, 1, 2, dtype=torch.float64)
    states: list[State] = [{"baseline": 0.0} for _ in range(runs)]
    curve: list[Tensor] = []
    for _ in range(STEPS):
        batch = bandit.sample(logits, runs, 1, generator)
        batch = batch.with_(advantage=advantages(part, batch, states))
        logits = logits + LEARNING_RATE * tabular.reinforce_gradients(logits, batch)
        curve.append(torch.softmax(logits, dim=-1)[:, 0, 1])
    return torch.stack(curve, dim=1)


def series(label: str, curve: Tensor) -> Series:
    """Mean over the runs, with the band that holds four fifths of them; every tenth step."""
    thin = curve[:, ::10]
    low, high = (torch.quantile(thin, share, dim=0).tolist() for share in (0.1, 0.9))
    return Series(
        label, [float(10 * k + 1) for k in range(thin.shape[1])], thin.mean(dim=0).tolist(), low, high
    )


def run(scale: Scale) -> Outcome:
    """Both ways of learning, and what was said of them."""
    part = PRESETS["reinforce_baseline"].algorithm.advantage
    assert isinstance(part, Return)
    generator = torch.Generator().manual_seed(0)
    running = learn(part, max(RUNS, scale.count(RUNS, 100)), generator)
    held = learn(Return(), max(UNHINDERED, scale.count(UNHINDERED, 1_000)), generator)
    last, last_held = moments(running[:, -1]), moments(held[:, -1])
    area, area_held = moments(running.mean(dim=1)), moments(held.mean(dim=1))
    slower = (area.mean_error**2 + area_held.mean_error**2) ** 0.5
    wider = (last.spread_error**2 + last_held.spread_error**2) ** 0.5
    figures = [
        holds("most probability ends on the better arm", last.mean - 0.5, last.mean_error),
        holds("baseline held at 0: slower", area.mean - area_held.mean, slower),
        holds("baseline held at 0: less stable", last_held.spread - last.spread, wider),
    ]
    curves = [series("running average", running), series("baseline held at 0", held)]
    panel = Panel("step", "probability of the better arm", curves)
    return Outcome(
        figures, [Plot("running_baseline", "Learning with and without a running baseline", [panel])]
    )


EXPERIMENT = Experiment(
    name="running_baseline",
    facts=("F6",),
    title="Learning with a running baseline",
    formula="""θ ← θ + 0.05 · (r − b) · ∇log π(a)
b ← b + 0.05 · (r − b), after it was used""",
    text="""The arms pay 10 and 11 with noise of two units, so a single draw hardly tells them apart. A
running average of past rewards is a baseline anyone can have. It starts at 0, and for some dozens of steps
learning is as wild as without; then it has found the level of the rewards, and what is left is signal and
noise of the same size. All runs end with nearly all probability on the better arm.

Held at 0, the baseline leaves a push of 10 or 11 behind whatever was drawn. An arm that was lucky to be
drawn first is drawn more often and so pushed more often: many runs lock onto the worse arm within a few
dozen steps and hardly ever come back. The mean is slower to rise because it is a mean over runs that
learned and runs that did not; the band shows both.""",
    settings=f"""{STEPS:,} steps of one draw, learning rate {LEARNING_RATE}, baseline rate 0.05, reward
noise 2, logits from 0. At least {RUNS} runs with the running average and {UNHINDERED} with 0 (100 and 1,000
with --full). No figure was published. "Slower" is measured as the mean probability of the better arm over
all steps, "less stable" as the standard deviation of the last probability between runs; each must differ by
more than 3.29 standard errors.""",
    run=run,
)
