import itertools
import math
import random
from statistics import NormalDist, fmean

import pytest

from outdo.core.statistics import cluster_rate_interval, pass_at_k, wilson_interval


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
