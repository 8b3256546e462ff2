"""Statistics of held-out evaluation: intervals for rates and means, and pass@k."""

from __future__ import annotations

import math
from collections.abc import Sequence
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
