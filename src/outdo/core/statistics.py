"""Statistics of held-out evaluation: intervals for rates and means, and pass@k."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import NamedTuple


class Interval(NamedTuple):
    """A point estimate with the ends of its confidence interval."""

    value: float
    low: float
    high: float


def _z(confidence: float) -> float:
    if not 0 < confidence < 1:
        raise ValueError(f"confidence must be between 0 and 1, got {confidence}")
    return NormalDist().inv_cdf(0.5 + confidence / 2)


def wilson_interval(successes: int, trials: int, confidence: float = 0.95) -> Interval:
    """Rate p̂ = successes / trials with the score interval, sensible at 0 and 1 too.

    (p̂ + z²/2n ± z √(p̂(1−p̂)/n + z²/4n²)) / (1 + z²/n). Wilson 1927.

    Raises:
        ValueError: no trials, or more successes than trials.
    """
    if trials < 1 or not 0 <= successes <= trials:
        raise ValueError(f"need 0 <= successes <= trials and trials >= 1, got {successes} of {trials}")
    return _wilson(successes / trials, trials, _z(confidence))


def _wilson(rate: float, trials: float, z: float) -> Interval:
    centre = rate + z * z / (2 * trials)
    spread = z * math.sqrt(rate * (1 - rate) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    low = 0.0 if rate == 0 else (centre - spread) / scale
    high = 1.0 if rate == 1 else (centre + spread) / scale
    return Interval(rate, low, high)


def pass_at_k(samples: int, correct: int, k: int) -> float:
    """Unbiased pass@k: probability that one of `k` draws without replacement from `samples` is correct.

    1 − C(n−c, k) / C(n, k). Chen et al. 2021 (arXiv 2107.03374), equation 1.

    Raises:
        ValueError: k larger than the number of samples, or more correct than samples.
    """
    if not 1 <= k <= samples or not 0 <= correct <= samples:
        raise ValueError(
            f"need 1 <= k <= samples and 0 <= correct <= samples, got k={k}, {correct} of {samples}"
        )
    return 1.0 - math.comb(samples - correct, k) / math.comb(samples, k)


def cluster_rate_interval(clusters: Sequence[Sequence[float]], confidence: float = 0.95) -> Interval:
    """Mean m of values in [0, 1] whose clusters are independent: samples of one problem are alike.

    The score interval of `wilson_interval` at the size n that the spread between M clusters of n_c values is
    worth,

    n = m(1−m) / var m,  var m = M/(M−1) Σ_c (Σ_i x_ci − m n_c)² / (Σn)²

    (ratio estimator with linearised variance, Cochran 1977 §2.11 and §9A), at most the number of values; n =
    M where all values are 0 or all are 1.

    Raises:
        ValueError: fewer than two clusters, an empty one, or a value outside [0, 1].
    """
    if len(clusters) < 2 or not all(clusters):
        raise ValueError("need at least two clusters, each with at least one value")
    if not all(0 <= x <= 1 for cluster in clusters for x in cluster):
        raise ValueError("a rate needs values in [0, 1]")
    count = sum(len(cluster) for cluster in clusters)
    mean = math.fsum(x for cluster in clusters for x in cluster) / count
    squares = math.fsum((math.fsum(cluster) - mean * len(cluster)) ** 2 for cluster in clusters)
    variance = len(clusters) / (len(clusters) - 1) * squares / count**2
    if mean in (0.0, 1.0):
        size = float(len(clusters))
    else:
        size = float(count) if variance == 0 else min(count, mean * (1 - mean) / variance)
    return _wilson(mean, size, _z(confidence))


def interquartile_mean(values: Sequence[float]) -> float:
    """Mean of the middle half: a quarter of the weight is cut off each end, values at the border count in part.

    Agarwal et al. 2021, Deep reinforcement learning at the edge of the statistical precipice (arXiv
    2108.13264), §4.3. Departure: where a quarter of n is no whole number, the border values get weights, as in
    the definition, while the authors' code rounds n/4 down and so takes the plain mean of 3 values.

    Raises:
        ValueError: no values.
    """
    if not values:
        raise ValueError("an interquartile mean needs at least one value")
    low, high = len(values) / 4, len(values) * 3 / 4
    weights = (max(0.0, min(i + 1, high) - max(i, low)) for i in range(len(values)))
    return math.fsum(w * x for w, x in zip(weights, sorted(values), strict=True)) / (high - low)


def bootstrap_interval(
    values: Sequence[float],
    statistic: Callable[[Sequence[float]], float] = interquartile_mean,
    *,
    draws: int = 2000,
    confidence: float = 0.95,
    seed: int = 0,
) -> Interval:
    """`statistic` with the percentile interval of `draws` resamples with replacement (Efron 1979).

    With fewer than about ten values it is too narrow: show the values themselves beside it.

    Raises:
        ValueError: no values.
    """
    chance = random.Random(seed)
    resampled = sorted(statistic(chance.choices(values, k=len(values))) for _ in range(draws))
    tail = (1 - confidence) / 2
    low, high = resampled[int(tail * draws)], resampled[min(draws - 1, int((1 - tail) * draws))]
    return Interval(statistic(values), low, high)


def mean_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Mean m with the interval m ± t·s/√n, s with divisor n − 1, t Student's quantile with ν = n − 1.

    t ≈ z + (z³+z)/4ν + (5z⁵+16z³+3z)/96ν² + (3z⁷+19z⁵+17z³−15z)/384ν³ (Abramowitz & Stegun 26.7.5): within 1 %
    from n = 5 on.

    Raises:
        ValueError: fewer than two values.
    """
    if len(values) < 2:
        raise ValueError(f"an interval needs at least two values, got {len(values)}")
    z, nu = _z(confidence), len(values) - 1
    t = (
        z
        + (z**3 + z) / (4 * nu)
        + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * nu**2)
        + (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * nu**3)
    )
    mean = math.fsum(values) / len(values)
    spread = math.sqrt(math.fsum((x - mean) ** 2 for x in values) / nu)
    reach = t * spread / math.sqrt(len(values))
    return Interval(mean, mean - reach, mean + reach)
