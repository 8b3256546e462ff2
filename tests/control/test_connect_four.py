"""Compiled Connect Four: PettingZoo's rules, and every line of four."""

from __future__ import annotations

import numpy as np
import pytest

from outdo.control.boards import PettingZoo
from outdo.control.connect_four import ConnectFour, bitboard, won
from outdo.control.opponents import Random


def test_the_compiled_boards_play_by_pettingzoos_rules():
    """400 random games side by side, to their ends: what each side sees, may do and is paid, after every move."""
    pytest.importorskip("pettingzoo")
    pytest.importorskip("pygame")
    rng = np.random.default_rng(1)
    count = 400
    mine, theirs = ConnectFour(count), PettingZoo("connect_four", count)
    assert mine.action_space == theirs.action_space
    assert mine.observation_space == theirs.observation_space
    every = np.arange(count)
    for boards in (mine, theirs):
        boards.reset(every)
    moved, running = 0, every
    while len(running):
        seats = np.full(len(running), moved % 2)
        (seen, masks), (other, allowed) = (boards.look(running, seats) for boards in (mine, theirs))
        np.testing.assert_array_equal(seen, other)
        np.testing.assert_array_equal(masks, allowed)
        assert (seen.dtype, masks.dtype) == (other.dtype, allowed.dtype)
        for seat in (0, 1):
            seats[:] = seat
            looks = [boards.look(running, seats)[0] for boards in (mine, theirs)]
            np.testing.assert_array_equal(*looks)
        moves = Random().choose(seen, masks, rng)
        for boards in (mine, theirs):
            boards.play(running, moves)
        np.testing.assert_array_equal(mine.over, theirs.over)
        np.testing.assert_array_equal(mine.result, theirs.result)
        moved, running = moved + 1, np.flatnonzero(~mine.over)
    assert {-1, 0, 1} == set(mine.result.tolist())  # drawn games too, by a full board
    assert moved == 42
    mine.reset(every[:5])
    assert not mine.over[:5].any()
    assert mine.over[5:].all()
    assert not mine.look(every[:5], np.zeros(5, np.int64))[0].any()


def test_four_in_a_row_in_every_place_and_only_there():
    """All 69 lines of four by their cells; three of each, and four broken by the edge of the board, are none."""
    lines = [
        [(row + i * down, column + i * right) for i in range(4)]
        for row in range(6)
        for column in range(7)
        for down, right in ((0, 1), (1, 0), (1, 1), (1, -1))
        if row + 3 * down < 6 and 0 <= column + 3 * right < 7
    ]
    assert len(lines) == 69
    for line in lines:
        stones = np.zeros((1, 6, 7), np.int8)
        for cell in line[:3]:
            stones[0][cell] = 1
        assert not won(int(bitboard(stones)[0]))
        stones[0][line[3]] = 1
        assert won(int(bitboard(stones)[0]))
    around = np.zeros((1, 6, 7), np.int8)
    around[0, 0, 3:6] = around[0, 5, 0] = 1  # would be neighbours if one row went on in the next
    around[0, 0, 0] = around[0, 3:, 1] = 1  # … and one column
    assert not won(int(bitboard(around)[0]))
