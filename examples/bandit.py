"""REINFORCE on a two-armed bandit, with a running baseline and without: the shortest loop on outdo's core.

Run `python examples/bandit.py`. One arm pays 10 on average, the other 11, with noise of standard deviation 2. The
policy is two logits. An update pulls one arm, forms an advantage, and follows -advantage · log π(arm).

Without a baseline the advantage is the payout, about 10 whatever was pulled: each pull makes its arm likelier, and
which arm gets ahead is mostly luck. Minus a running mean of past payouts it is about ±0.5, and says which arm was
better than usual. The expected gradient is the same; the spread of one estimate is not, and both are printed.
"""

from __future__ import annotations

import torch
from torch import Tensor

from outdo.core.algorithm import Algorithm
from outdo.core.batch import Batch
from outdo.core.presets import preset
from outdo.core.protocols import Evaluation

PAYOUTS = torch.tensor([10.0, 11.0])
NOISE = 2.0
LEARNING_RATE = 0.05
UPDATES = 500
SHOWN = (0, 20, 50, 100, 200, 500)
RUNS = 4
WITH, WITHOUT = preset("reinforce_baseline").algorithm, preset("reinforce_to_go").algorithm


def pull(logits: Tensor, pulls: int, chance: torch.Generator) -> Batch:
    """A batch of `pulls` rows of one step: which arm, with which log-probability, and what it paid."""
    logp = torch.log_softmax(logits.detach(), dim=0)
    arms = torch.multinomial(logp.exp(), pulls, replacement=True, generator=chance)
    paid = PAYOUTS[arms] + NOISE * torch.randn(pulls, generator=chance)
    every_step = torch.ones(pulls, 1, dtype=torch.bool)
    return Batch(
        obs=torch.zeros(pulls, 1),  # a bandit has no state
        action=arms[:, None],
        logp=logp[arms][:, None],
        reward=paid[:, None],
        discount=torch.zeros(pulls, 1),  # nothing follows a pull: an episode has one step
        cut=every_step,
        valid=every_step,
        group=torch.zeros(pulls, dtype=torch.int64),
    )


def evaluate(logits: Tensor, batch: Batch) -> Evaluation:
    """Log-probabilities `[B, 1]` of the pulled arms, with gradient."""
    return Evaluation(torch.log_softmax(logits, dim=0)[batch.action])


def learn(algorithm: Algorithm, seed: int) -> list[float]:
    """Chance of the better arm after each number of updates in `SHOWN`."""
    chance = torch.Generator().manual_seed(seed)
    logits = torch.zeros(2, requires_grad=True)
    optimiser = torch.optim.SGD([logits], lr=LEARNING_RATE)
    state = algorithm.initial_state()
    shown: list[float] = []
    for update in range(UPDATES + 1):
        if update in SHOWN:
            shown.append(float(torch.softmax(logits.detach(), dim=0)[1]))
        batch = pull(logits, 1, chance)
        batch, state = algorithm.prepare(batch, state)
        loss = algorithm.loss(batch, evaluate(logits, batch), algorithm.counts(batch))
        optimiser.zero_grad()
        loss.total.backward()
        optimiser.step()
    return shown


def spread_of_one_pull(algorithm: Algorithm, baseline: float, pulls: int = 10_000) -> tuple[float, float]:
    """Mean and standard deviation of one pull's gradient for the better arm's logit, both arms equally likely."""
    batch = pull(torch.zeros(2), pulls, torch.Generator().manual_seed(0))
    batch, _ = algorithm.prepare(batch, {"baseline": baseline})
    logits = torch.zeros(pulls, 2, requires_grad=True)  # a pair of its own for every pull
    logp = torch.log_softmax(logits, dim=1).gather(1, batch.action)
    loss = algorithm.loss(batch, Evaluation(logp), algorithm.counts(batch))
    (gradient,) = torch.autograd.grad(loss.total, logits)
    better = -pulls * gradient[:, 1]  # the loss is a mean over rows, and it is minimised
    return float(better.mean()), float(better.std())


def main() -> None:
    """Print the spread of the gradient, then what it does to learning."""
    # Exact: ¼(11 − 10) = 0.25 with and without. A pull's estimate is ±½(payout − baseline), so its standard
    # deviation is √(¼·(10.5² + 0.5² + 2²) − 0.25²) = 5.34 without, and √(¼·(0.5² + 2²) − 0.25²) = 1.00 with 10.5.
    print("gradient of one pull for the better arm's logit; exact: 0.25 ± 5.34 without baseline, ± 1.00 with")
    for name, algorithm, baseline in (("without", WITHOUT, 0.0), ("with", WITH, 10.5)):
        mean, spread = spread_of_one_pull(algorithm, baseline)
        print(f"  {name:>8}: {mean:6.2f} ± {spread:.2f}")
    print(f"\nchance of the better arm, {RUNS} runs each")
    print("   updates  " + "".join(f"{update:>7}" for update in SHOWN))
    for name, algorithm in (("without", WITHOUT), ("with", WITH)):
        for seed in range(RUNS):
            print(f"  {name:>8}  " + "".join(f"{value:7.2f}" for value in learn(algorithm, seed)))


if __name__ == "__main__":
    main()
