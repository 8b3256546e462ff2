"""Reductions: the table of modes, global denominators, masks."""

import polgrad
import pytest
import torch
from batches import mask_of
from polgrad import Aggregation

from outdo.core.reduce import Counts, count, reduce

MODES = {
    "token_mean": Aggregation.TOKEN_MEAN,
    "sequence_mean_token_mean": Aggregation.SEQ_MEAN_TOKEN_MEAN,
    "sequence_mean_token_sum": Aggregation.SEQ_MEAN_TOKEN_SUM,
    "fixed_length": Aggregation.TOKEN_SUM_NORM,
}


@pytest.mark.parametrize(
    ("how", "expected"),
    [
        ("token_sum", 4),
        ("token_mean", 1),
        ("sequence_mean_token_mean", 1),
        ("sequence_mean_token_sum", 2),
        ("fixed_length", 4 / (2 * 5)),
    ],
)
def test_modes_on_lengths_one_and_three(how, expected):
    mask = mask_of((1, 3))
    assert reduce(torch.ones(2, 3), mask, count(mask), how, length=5).item() == pytest.approx(expected)


@pytest.mark.parametrize("how", MODES)
def test_equal_to_polgrad(how):
    mask, loss = mask_of((1, 2, 7, 10)), torch.randn(4, 10, dtype=torch.float64)
    theirs = polgrad.aggregate(loss, mask, MODES[how], norm_len=12)
    torch.testing.assert_close(reduce(loss, mask, count(mask), how, length=12), theirs)


@pytest.mark.parametrize("how", ["token_sum", *MODES])
@pytest.mark.parametrize("pieces", [[[0, 1, 2, 3]], [[0, 3], [1, 2]], [[0], [1], [2], [3]]])
def test_pieces_add_up_to_the_whole(how, pieces):
    mask, loss = mask_of((1, 2, 7, 10)), torch.randn(4, 10, dtype=torch.float64)
    counts = Counts(0, 0)
    for piece in pieces:
        counts = counts + count(mask[piece])
    assert counts == count(mask) == Counts(20, 4)
    parts = sum(reduce(loss[piece], mask[piece], counts, how, length=9) for piece in pieces)
    torch.testing.assert_close(parts, reduce(loss, mask, count(mask), how, length=9))


@pytest.mark.parametrize("how", ["token_sum", *MODES])
def test_everything_masked_is_zero_with_a_finite_gradient(how):
    loss = torch.full((3, 4), float("nan"), requires_grad=True)
    mask = torch.zeros(3, 4, dtype=torch.bool)
    total = reduce(loss, mask, count(mask), how, length=2)
    total.backward()
    assert total.item() == 0
    assert (loss.grad == 0).all()


def test_masked_rows_do_not_count():
    # 6 rows of 5 steps; one row masked: 30 − 5 = 25 steps, 5 rows.
    mask = torch.ones(6, 5, dtype=torch.bool)
    mask[2] = False
    assert count(mask) == Counts(25, 5)
    loss = torch.ones(6, 5)
    assert reduce(loss, mask, count(mask), "token_mean").item() == 1
    assert reduce(loss, mask, count(mask), "sequence_mean_token_mean").item() == pytest.approx(1)


def test_errors():
    mask = mask_of((1, 3))
    with pytest.raises(ValueError, match="equal shapes"):
        reduce(torch.ones(2, 1), mask, count(mask))
    with pytest.raises(ValueError, match="sequence_mean_token_sum"):
        reduce(torch.ones(2, 3), mask, count(mask), "mean")
