"""F17: token sequences learned by GRPO with the loop's own parts, and what to watch while it learns."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from outdo.core import baselines
from outdo.core.batch import Batch
from outdo.core.parts import NoKl, Update
from outdo.core.presets import PRESETS
from outdo.core.protocols import Evaluation
from outdo.lab import learning
from outdo.lab.exact import tabular
from outdo.lab.exact.sequences import Sequences
from outdo.lab.experiment import Experiment, Figure, Outcome, Panel, Plot, Scale, Series, holds
from outdo.lab.moments import moments

TASK = Sequences(targets=((1, 3, 0, 2), (2, 2, 1, 0), (0, 1, 3, 3)), actions=4)
GRPO = replace(PRESETS["grpo"].algorithm, update=Update(epochs=2, max_grad_norm=None))
GROUP, RATE, STEPS, SEEDS, LAST = 8, 0.1, 150, 30, 10
WATCHED = {
    "surrogate loss": "policy_loss",
    "gradient norm": "grad_norm",
    "tokens clipped": "clip_share",
    "KL": "kl_reference",
    "entropy": "entropy",
}
PANELS = {
    "before the first step on a batch": ("surrogate loss", "gradient norm"),
    "share": ("groups without signal", "tokens clipped"),
    "entropy per token": ("entropy",),
    "KL to the reference per token": ("KL",),
}


def collect(task: Sequences, logits: Tensor, generator: torch.Generator) -> Batch:
    """A group of answers to every prompt, with their log-probabilities under the uniform reference."""
    prompt = torch.arange(len(task.targets)).repeat_interleave(GROUP)
    state = prompt[:, None] * task.steps + torch.arange(task.steps)
    batch = task.batch(logits, prompt, tabular.draw(logits[state], generator), GROUP)
    return batch.with_(ref_logp=tabular.logp(tabular.logits_of(task), batch))


def learn(seeds: int, generator: torch.Generator) -> tuple[Tensor, Tensor, dict[str, list[float]]]:
    """Logits at the end, mean reward `[seeds, STEPS]`, and the log of first epochs (second: tokens clipped).

    The seeds are learned side by side, as prompts of one task: no state is shared, and Adam does not see the
    common factor 1/seeds.
    """
    task = replace(TASK, targets=TASK.targets * seeds)
    logits = tabular.logits_of(task).requires_grad_()
    optimiser = torch.optim.Adam([logits], lr=RATE)
    rewards, log = list[Tensor](), dict[str, list[float]]()
    for _ in range(STEPS):
        batch = collect(task, logits.detach(), generator)
        rewards.append(batch.reward.sum(dim=1).view(seeds, -1).mean(dim=1))
        flat, groups = baselines.groups_without_signal(batch)
        batch, _ = GRPO.prepare(batch)
        first, second = learning.update(GRPO, batch, logits, optimiser, generator)
        log.setdefault("groups without signal", []).append(float(flat / groups))
        for name, key in WATCHED.items():
            log.setdefault(name, []).append((second if name == "tokens clipped" else first)[key])
    return logits.detach(), torch.stack(rewards, dim=1), log


def past_the_clip(generator: torch.Generator) -> list[Figure]:
    """Gradient of each token's loss after six epochs on one batch, past the clip and elsewhere."""
    algorithm = replace(GRPO, kl=NoKl(), update=Update(epochs=6, max_grad_norm=None))
    logits = tabular.logits_of(TASK).requires_grad_()
    batch, _ = algorithm.prepare(collect(TASK, logits.detach(), generator))
    learning.update(algorithm, batch, logits, torch.optim.Adam([logits], lr=RATE), generator)
    logp = tabular.logp(logits.detach(), batch).requires_grad_()
    loss = algorithm.loss(batch, Evaluation(logp), algorithm.counts(batch)).total
    size = torch.autograd.grad(loss, logp)[0].abs()
    assert batch.advantage is not None
    ratio, good = (logp.detach() - batch.logp).exp(), batch.advantage > 0
    past = torch.where(good, ratio > 1.2, ratio < 0.8) & (batch.advantage != 0)
    free = ~past & (batch.advantage != 0)
    return [
        holds("some tokens have moved past the clip", float(past.sum()), 0.0),
        Figure("largest gradient of a token past the clip", float(size[past].max()), 0.0, 0.0),
        holds("every other token with an advantage has a gradient", float(size[free].min()), 0.0),
    ]


def run(scale: Scale) -> Outcome:
    """The run over seeds, and one batch driven past the clip."""
    seeds, generator = max(SEEDS, scale.count(SEEDS, 300)), torch.Generator().manual_seed(0)
    logits, reward, log = learn(seeds, generator)
    found = moments(reward[:, -LAST:].mean(dim=1))
    values = torch.stack([TASK.value(table) for table in logits.view(seeds, TASK.states, TASK.actions)])
    expected = moments(values)
    surrogate = max(abs(value) for value in log["surrogate loss"])
    figures = [
        Figure(f"mean reward of the last {LAST} steps", found.mean, 1.0, None, 0.05, found.mean_error),
        Figure("expected reward of the last policy", expected.mean, 1.0, None, 0.05, expected.mean_error),
        Figure("largest surrogate loss before a batch's first step", surrogate, 0.0, 0.0),
        holds("the gradient norm is never 0 there", min(log["gradient norm"]), 0.0),
        *past_the_clip(generator),
    ]
    steps = [float(step) for step in range(STEPS)]
    low, high = (torch.quantile(reward, share, dim=0).tolist() for share in (0.1, 0.9))
    curve = Series("mean reward", steps, reward.mean(dim=0).tolist(), low, high)
    best = Series("every token right", [0.0, steps[-1]], [1.0, 1.0], dashed=True)
    plots = [
        Plot("sequences", "GRPO on token sequences", [Panel("step", "mean reward", [curve, best])]),
        Plot(
            "sequences_watch",
            "What to watch: the loss says nothing",
            [
                Panel("step", label, [Series(name, steps, log[name]) for name in names])
                for label, names in PANELS.items()
            ],
        ),
    ]
    return Outcome(figures, plots)


EXPERIMENT = Experiment(
    name="sequences",
    facts=("F17", "F18"),
    title="GRPO learns to write token sequences",
    formula=(
        "reward = share of tokens that match the target\n"
        "A_i = (r_i − mean)/(s.d. + 1e−4), on every token of answer i\n"
        "loss = −mean_i mean_t [min(ρA, clip(ρ, 0.8, 1.2)·A) − 0.04 k3]"
    ),
    text=(
        "Three prompts, each with a sequence of four tokens that it asks for. The policy writes eight answers to "
        "each, is told only which share of an answer's tokens was right, and not which, and compares the eight. "
        "Every token of a better answer is made more likely, right or not: over many answers the wrong ones cancel.\n\n"
        "Two epochs are made on each batch. A token whose probability has already moved past the clip in the "
        "direction that its advantage asks for has no gradient any more. One step of Adam at this rate moves none so "
        "far; the row on the clip comes from six epochs on one batch.\n\n"
        "The second picture is a warning. Before the first step on a batch the ratio is 1 and the advantages of a "
        "group add up to 0, so the surrogate loss is 0 whatever happens: it says nothing about progress. Look at "
        "the gradient norm, the share of groups without signal, the share of clipped tokens, the entropy and the "
        "KL instead, and at the reward on problems that were held out."
    ),
    settings=(
        f"Preset `grpo` ({STEPS} steps of 3 prompts × {GROUP}, 2 epochs, clip 0.2, k3 in the loss with 0.04 to the "
        f"uniform start, Adam {RATE}), no gradient clipping, at least {SEEDS} seeds side by side. Targets (of four "
        "tokens out of four) are our choice: none are published. 'Close to 1' is read as 1.0 at one decimal, so it "
        "may be off by 0.05 and the sampling error; the KL keeps it a little below 1. Each band holds four fifths of "
        "the seeds; the log is the mean over all seeds."
    ),
    run=run,
)
