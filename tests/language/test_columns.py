"""Products with columns against float64, and what they promise: nothing depends on neighbours or on threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from outdo.language.columns import BLOCK, LANES, Team, lay_out, meet, product, share


def rows_of(x: np.ndarray, w: np.ndarray, low: int, high: int) -> np.ndarray:
    """The product's outputs `low` to `high`, 7 elsewhere; what no vector fills in the columns is NaN."""
    columns = np.full((len(x) + LANES) * x.shape[1], np.nan, np.float32)
    out = np.full((len(x) + 1, len(w)), 7, np.float32)
    lay_out(x, len(x), x.shape[1], columns)
    product(columns, len(x), w, low, high, out)
    assert (out[-1] == 7).all()
    return out[:-1]


def numbers(*shape: int) -> np.ndarray:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).numpy()


@pytest.mark.parametrize("vectors", [1, 7, 8, 9, 16, 17, 24, 25, 33])
@pytest.mark.parametrize(
    ("inputs", "outputs"), [(1, 1), (3, 5), (16, 48), (17, 49), (40, 97), (64, 3), (576, 131)]
)
def test_the_product_is_that_of_float64(vectors: int, inputs: int, outputs: int) -> None:
    x, w = numbers(vectors, inputs), numbers(outputs, inputs)
    exact = x.astype(np.float64) @ w.astype(np.float64).T
    # A sum of A products is rounded A times: by at most A units of 2^-24 of the sum of their sizes.
    bound = inputs * 2.0**-24 * (np.abs(x).astype(np.float64) @ np.abs(w).astype(np.float64).T)
    assert (np.abs(rows_of(x, w, 0, outputs) - exact) <= bound).all()


def test_a_vector_gives_the_same_among_any_others() -> None:
    x, w = numbers(37, 50), numbers(70, 50)
    whole = rows_of(x, w, 0, 70)
    for first, last in ((0, 1), (3, 10), (3, 14), (5, 37)):
        assert np.array_equal(rows_of(np.ascontiguousarray(x[first:last]), w, 0, 70), whole[first:last])
    x[1] = np.nan
    assert np.array_equal(rows_of(x, w, 0, 70)[2:], whole[2:])


@pytest.mark.parametrize("size", [1, 2, 3, 5, 80])
def test_parts_are_the_whole_and_touch_nothing_else(size: int) -> None:
    x, w = numbers(9, 20), numbers(BLOCK + 29, 20)
    whole = rows_of(x, w, 0, len(w))
    ends = 0
    for rank in range(size):
        low, high = share(Team(rank, size, np.zeros(1, np.int64)), len(w))
        assert low == ends
        ends = high
        part = rows_of(x, w, low, high)
        assert np.array_equal(part[:, low:high], whole[:, low:high])
        assert (part[:, :low] == 7).all()
        assert (part[:, high:] == 7).all()
    assert ends == len(w)


def test_nobody_goes_on_before_all_have_met() -> None:
    """Each of three threads counts its rounds; between two meetings all must have counted equally many."""
    size, rounds, meeting = 3, 200, np.zeros(1, np.int64)
    counted = [0] * size

    def work(rank: int) -> list[list[int]]:
        team, seen = Team(rank, size, meeting), list[list[int]]()
        for _ in range(rounds):
            counted[rank] += 1
            meet(team)
            seen.append(list(counted))
            meet(team)
        return seen

    meet(Team(0, 1, meeting))  # compiled before the threads start; alone, nobody waits
    with ThreadPoolExecutor(size) as pool:
        found = list(pool.map(work, range(size)))
    assert found == [[[r + 1] * size for r in range(rounds)]] * size
