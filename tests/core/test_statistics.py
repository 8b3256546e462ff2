import itertools
import math
import random
from statistics import NormalDist, fmean

import pytest

from outdo.core.statistics import (
    bootstrap_interval,
    cluster_rate_interval,
    interquartile_mean,
    mean_interval,
    pass_at_k,
    wilson_interval,
)


def test_wilson_solves_its_own_equation():
    # the ends are the rates p at which the observed rate lies exactly z standard errors away
    z = NormalDist().inv_cdf(0.975)
    rate, low, high = wilson_interval(7, 20)
    assert rate == 0.35
    for end in (low, high):
        assert abs(rate - end) == pytest.approx(z * math.sqrt(end * (1 - end) / 20))
    assert low < rate < high


def test_wilson_at_the_edges():
    # 0 of 10: high = z²/(n + z²) = 3.8415/13.8415
    assert wilson_interval(0, 10) == (0.0, 0.0, pytest.approx(0.277533, abs=1e-6))
    assert wilson_interval(10, 10) == (1.0, pytest.approx(1 - 0.277533, abs=1e-6), 1.0)
    assert wilson_interval(5, 10, 0.99).high > wilson_interval(5, 10).high
    for successes, trials in ((0, 0), (-1, 3), (4, 3)):
        with pytest.raises(ValueError, match="successes"):
            wilson_interval(successes, trials)


@pytest.mark.parametrize(("samples", "correct"), [(1, 0), (1, 1), (4, 1), (5, 2), (6, 6)])
def test_pass_at_k_by_enumeration(samples, correct):
    answers = [i < correct for i in range(samples)]
    for k in range(1, samples + 1):
        draws = list(itertools.combinations(answers, k))
        assert pass_at_k(samples, correct, k) == pytest.approx(fmean(any(draw) for draw in draws))


def test_pass_at_k_by_hand_and_refusals():
    assert pass_at_k(4, 1, 2) == 0.5  # 1 − C(3,2)/C(4,2) = 1 − 3/6
    for arguments in ((4, 1, 5), (4, 5, 1), (4, 1, 0)):
        with pytest.raises(ValueError, match="need 1 <= k"):
            pass_at_k(*arguments)


def test_one_value_per_cluster_is_wilson_with_one_degree_of_freedom_less():
    # variance M/(M−1) · M m(1−m) / M² = m(1−m)/(M−1), so n = M − 1 = 4, with m = 3/5
    rate, low, high = cluster_rate_interval([[0.0], [1.0], [1.0], [1.0], [0.0]])
    z = NormalDist().inv_cdf(0.975)
    assert rate == 0.6
    for end in (low, high):
        assert abs(0.6 - end) == pytest.approx(z * math.sqrt(end * (1 - end) / 4))


def test_copies_of_a_value_add_no_information():
    once = cluster_rate_interval([[0.0], [1.0], [1.0]])
    assert cluster_rate_interval([[0.0] * 7, [1.0] * 7, [1.0] * 7]) == pytest.approx(once)


def test_unequal_clusters_by_hand():
    # m = (1 + 0 + 0) / 3 = 1/3; residuals 1 − 1/3 = 2/3 and 0 − 2/3 = −2/3
    # variance = 2/1 · (4/9 + 4/9) / 3² = 16/81, so n = (2/9) / (16/81) = 9/8
    rate, low, high = cluster_rate_interval([[1.0], [0.0, 0.0]])
    z = NormalDist().inv_cdf(0.975)
    assert rate == pytest.approx(1 / 3)
    for end in (low, high):
        assert abs(rate - end) == pytest.approx(z * math.sqrt(end * (1 - end) / (9 / 8)))


def test_equal_clusters_claim_no_more_than_their_values_and_edges_no_certainty():
    assert cluster_rate_interval([[0.0, 1.0]] * 10) == pytest.approx(wilson_interval(10, 20))
    assert cluster_rate_interval([[0.0] * 8] * 10) == wilson_interval(0, 10)
    assert cluster_rate_interval([[1.0] * 8] * 10) == wilson_interval(10, 10)


def test_cluster_interval_covers_the_truth():
    rng = random.Random(0)
    covered = 0
    for _ in range(400):
        rates = [rng.choice((0.1, 0.9)) for _ in range(60)]
        _, low, high = cluster_rate_interval([[float(rng.random() < p) for _ in range(8)] for p in rates])
        covered += low <= 0.5 <= high
    # 95 % nominal; standard error of the estimate is 1.1 %, so 91 % is four errors away
    assert covered / 400 > 0.91


@pytest.mark.parametrize("clusters", [[[1.0, 0.0]], [[1.0], []], [[1.0], [1.5]], []])
def test_clusters_that_say_nothing(clusters):
    with pytest.raises(ValueError, match=r"clusters|values in"):
        cluster_rate_interval(clusters)


def test_interquartile_mean_by_hand():
    assert interquartile_mean([8, 1, 7, 2, 6, 3, 5, 4]) == 4.5  # the middle four: 3, 4, 5, 6
    # Of three values 3/4 are cut off each end: (0/4 + 1 + 5/4) / 1.5.
    assert interquartile_mean([5, 0, 1]) == pytest.approx(1.5)
    assert interquartile_mean([1000, 2, 3, -1000]) == 2.5
    assert interquartile_mean([7.0]) == 7.0
    assert interquartile_mean([2, 4]) == 3
    with pytest.raises(ValueError, match="at least one"):
        interquartile_mean([])


def test_bootstrap_covers_the_mean_as_often_as_it_says():
    # 200 samples of 30 from N(0, 1): the 90 % interval of the mean holds 0 in about 90 % of them (σ = 2 %; the
    # percentile interval is a little narrow at this size).
    chance = random.Random(1)
    held = 0
    for i in range(200):
        values = [chance.gauss(0, 1) for _ in range(30)]
        made = bootstrap_interval(values, fmean, draws=400, confidence=0.9, seed=i)
        assert made.value == fmean(values)
        held += made.low <= 0 <= made.high
    assert 0.82 <= held / 200 <= 0.96
    assert bootstrap_interval([3.0, 3.0, 3.0]) == (3.0, 3.0, 3.0)
    assert bootstrap_interval([1.0, 2.0, 9.0]) == bootstrap_interval([1.0, 2.0, 9.0])


@pytest.mark.parametrize(
    ("count", "quantile", "within"), [(3, 4.3027, 0.04), (5, 2.7764, 0.01), (30, 2.0452, 1e-4)]
)
def test_the_interval_of_a_mean_uses_students_quantile(count, quantile, within):
    """Values ±1 around 10 (and 10): m = 10; the half-width over s/√n is t of a table, ν = n − 1."""
    values = [10.0 + (-1) ** i for i in range(count // 2 * 2)] + [10.0] * (count % 2)
    mean, low, high = mean_interval(values)
    assert mean == pytest.approx(10)
    assert high - 10 == pytest.approx(10 - low)
    spread = math.sqrt(sum((x - 10) ** 2 for x in values) / (count - 1))
    assert (high - 10) / (spread / math.sqrt(count)) == pytest.approx(quantile, rel=within)


def test_equal_values_have_no_interval_and_one_value_none_at_all():
    assert mean_interval([500.0] * 4) == (500, 500, 500)
    with pytest.raises(ValueError, match="at least two"):
        mean_interval([3.0])
