"""F13: what each baseline does to the mean and the spread of the gradient, against the group size."""

from __future__ import annotations

import torch
from torch import Tensor

from outdo.core.batch import Batch
from outdo.core.parts import Gae, GroupMean, LeaveOneOut, Return
from outdo.lab.exact import tabular
from outdo.lab.exact.bandit import Bandit
from outdo.lab.experiment import Experiment, Figure, Outcome, Panel, Plot, Scale, Series, digits
from outdo.lab.moments import Moments, moments

BANDIT = Bandit(payouts=(0.2, 0.5, 0.8, 0.3), noise=0.3)
BEST, TRIALS = 2, 20_000
BASELINES = ("none", "group mean", "leave one out", "expected reward")
PUBLISHED = {  # mean and s.d. for each baseline in turn; an empty text: not published
    2: ("0.086", "0.227", "0.044", "0.088", "0.088", "0.176", "", "0.117"),
    4: ("0.088", "0.162", "0.066", "0.074", "0.088", "0.099", "", "0.084"),
    8: ("0.087", "0.115", "0.077", "0.056", "0.087", "0.064", "", "0.059"),
    16: ("0.087", "0.081", "0.082", "0.041", "0.088", "0.043", "", "0.042"),
    32: ("",) * 8,
}


def draws(size: int, trials: int) -> Batch:
    """`trials` groups of `size` pulls of the uniform policy: seed 0, arms by `randint`, then noise by `randn`."""
    generator = torch.Generator().manual_seed(0)
    arms = torch.randint(4, (trials, size), generator=generator).flatten()
    noise = torch.randn(trials, size, generator=generator).flatten()
    return BANDIT.batch(tabular.logits_of(BANDIT), arms, noise, group=size)


def gradients(batch: Batch, size: int, baseline: str) -> Tensor:
    """Estimated gradient on the best arm's logit, one number for each group, `[trials]`.

    The expected reward, which a learner does not have, is the bandit's true value, as a critic.
    """
    parts = {
        "none": Return(),
        "group mean": GroupMean(scale="none"),
        "leave one out": LeaveOneOut(),
        "expected reward": Gae(),
    }
    filled, _ = parts[baseline].compute(batch, {})
    rows = tabular.reinforce_gradients(tabular.logits_of(BANDIT), filled)
    return rows[:, 0, BEST].view(-1, size).mean(dim=1)


def exact(size: int, baseline: str) -> tuple[float, float]:
    """Mean and standard deviation of the estimate, in closed form.

    Noise enters both with its mean and its variance alone, so a coin ±σ stands for it: eight outcomes of one
    pull. Leave one out averages h(x, y) = ½ (r_x − r_y)(s_x − s_y) over all pairs of the group (s is the score,
    1[best] − π(best)); its variance is (4 (G − 2) ζ₁ + 2 ζ₂) / (G (G − 1)) (Hoeffding 1948).
    """
    payout = (BANDIT.means[:, None] + BANDIT.noise * torch.tensor([-1.0, 1.0])).flatten()
    score = (torch.arange(8) // 2 == BEST).double() - 0.25
    truth = float((payout * score).mean())
    if baseline in ("none", "expected reward"):
        shift = payout.mean() if baseline == "expected reward" else 0.0
        variance = ((payout - shift) * score).square().mean() - truth**2
        return truth, float(variance / size) ** 0.5
    pairs = 0.5 * (payout[:, None] - payout) * (score[:, None] - score)
    one, two = pairs.mean(dim=1).square().mean() - truth**2, pairs.square().mean() - truth**2
    spread = float((4 * (size - 2) * one + 2 * two) / (size * (size - 1))) ** 0.5
    shrunk = (size - 1) / size if baseline == "group mean" else 1.0
    return shrunk * truth, shrunk * spread


def compared(size: int, baseline: str, found: Moments, same: bool) -> list[Figure]:
    """Mean and spread of one cell of the table; `same`: the trials are the published ones."""
    column = 2 * BASELINES.index(baseline)
    mean, spread = exact(size, baseline)
    figures = list[Figure]()
    for what, measured, error, truth, text in (
        ("mean", found.mean, found.mean_error, mean, PUBLISHED[size][column]),
        ("s.d.", found.spread, found.spread_error, spread, PUBLISHED[size][column + 1]),
    ):
        name = f"{what}, G = {size}, {baseline}"
        if text:
            published, rounding = digits(text)
            theirs = error * (1.0 if same else 5**0.5)
            figures.append(Figure(name, measured, published, truth, rounding, error, theirs, same))
        else:
            figures.append(Figure(name, measured, exact=truth, error=error))
    return figures


def run(scale: Scale) -> Outcome:
    """The table, with G = 32 besides, and the curves of its columns."""
    trials = 5 * TRIALS if scale.full else TRIALS
    figures, found = list[Figure](), dict[str, list[Moments]]()
    for size in PUBLISHED:
        batch = draws(size, trials)
        for baseline in BASELINES:
            measured = moments(gradients(batch, size, baseline))
            found.setdefault(baseline, []).append(measured)
            figures += compared(size, baseline, measured, same=trials == TRIALS)
    sizes = [float(size) for size in PUBLISHED]
    mean, spread = list[Series](), list[Series]()
    for baseline, cells in found.items():
        means = [cell.mean for cell in cells]
        low, high = [cell.mean - cell.spread for cell in cells], [cell.mean + cell.spread for cell in cells]
        mean.append(Series(baseline, sizes, means, low, high, kind="points"))
        spread.append(Series(baseline, sizes, [cell.spread for cell in cells]))
    for name, baseline in (("true gradient", "none"), ("(G − 1)/G of it", "group mean")):
        mean.append(Series(name, sizes, [exact(size, baseline)[0] for size in PUBLISHED], dashed=True))
    panels = [
        Panel("group size G", "estimated gradient, mean ± s.d.", mean, "Mean", log_x=True),
        Panel("group size G", "s.d. of the estimate", spread, "Spread", log_x=True),
    ]
    return Outcome(figures, [Plot("shrinkage", "The baseline decides bias and spread", panels)])


EXPERIMENT = Experiment(
    name="shrinkage",
    facts=("F13",),
    title="The group mean shrinks the gradient, leave one out does not",
    formula=(
        "estimate = (1/G) Σ_i (r_i − b_i)(1[a_i = best] − π(best))\n"
        "true gradient = π(best)(0.8 − 0.45) = 0.0875\n"
        "b_i = mean of the group:  expectation (G − 1)/G of it\n"
        "r_i − mean of the others = G/(G − 1) · (r_i − mean):  unbiased"
    ),
    text=(
        "A baseline is subtracted from the reward so that only the difference between actions is left; that lowers "
        "the spread and, if the baseline does not depend on the action, leaves the mean alone.\n\n"
        "The mean of the group does depend on it a little, because every answer is part of its own baseline: the "
        "expected gradient comes out (G − 1)/G of its size, half at G = 2, 97% at G = 32. The direction is right, "
        "only the step is shorter. The mean of the other answers repairs this exactly, and its spread is larger by "
        "the same factor; what is left of its spread over that of the true expected reward is the price of "
        "estimating the baseline from few answers. With no baseline at all the spread is about twice as large."
    ),
    settings=(
        f"Four arms with means 0.2, 0.5, 0.8, 0.3, noise 0.3, uniform policy; {TRIALS:,} trials a point. "
        "Reconstructed: a torch generator seeded 0 anew for every size, arms by randint [trials, G], then randn "
        "[trials, G] in float32; all 28 published figures then come out digit for digit, so only rounding is "
        "allowed for. The exact values are closed forms, with the sampling error of the trials. G = 32 is published "
        "without figures. The long version draws five times as many trials."
    ),
    run=run,
)
