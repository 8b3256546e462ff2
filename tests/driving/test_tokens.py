"""Control tokens and answers: what a trajectory loses in tokens, and every way in which an answer can be broken."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from outdo.driving import dynamics
from outdo.driving.reasoning import SIDED, Cause, Lateral, Longitudinal, Side, Trace, words
from outdo.driving.scene import DT, HORIZON
from outdo.driving.tokens import (
    END,
    FULL,
    LONGEST_TRACE,
    PAD,
    SHORT,
    SPECIALS,
    START,
    TRAJECTORY,
    ControlCode,
    Fault,
    FormatError,
    Vocabulary,
    count_faults,
)

TRACE = Trace(Longitudinal.STOP, Cause.RED_LIGHT, Lateral.TURN, Side.LEFT, Cause.ROUTE_LEFT)


def demonstrations(count=64):
    """Smooth controls as an expert has them, with the speeds they start from."""
    rng = np.random.default_rng(0)
    t = np.arange(HORIZON) * DT
    wave = np.sin(t * rng.uniform(0.2, 1.5, (count, 2, 1)) + rng.uniform(0, 6, (count, 2, 1)))
    control = (wave * rng.uniform(0.1, 1, (count, 2, 1)) * [[1.5], [0.03]]).transpose(0, 2, 1)
    return rng.uniform(5, 20, count), control


def test_lengths():
    assert (FULL.length, SHORT.length) == (2 * 64, 2 * 8)


def test_bins_by_hand():
    # 99 bins over ±9.8: step 0.2, bin 49 is 0; 401 bins over ±0.2: step 0.001, bin 200 is 0
    tokens = [0, 99, 49, 99 + 200, 98, 99 + 400, 50, 99 + 199] + [49, 299] * 4
    control = SHORT.decode(tokens)
    assert control.shape == (HORIZON, 2)
    np.testing.assert_allclose(
        control[::8][:4], [[-9.8, -0.2], [0, 0], [9.8, 0.2], [0.2, -0.001]], atol=1e-15
    )
    assert (control.reshape(8, 8, 2) == control.reshape(8, 8, 2)[:, :1]).all()  # held for 8 ticks
    assert (control[8:16] == 0).all()
    assert dynamics.feasible(control).all()


@pytest.mark.parametrize("code", [FULL, SHORT, ControlCode(4, 31, 33)])
def test_every_token_survives(code):
    # the tokens of decoded controls are the tokens themselves, from a speed that stays away from 0
    rng = np.random.default_rng(1)
    a = rng.integers(0, code.acceleration_bins, (8, code.length // 2))
    a = np.sort(a, axis=1)[:, ::-1]  # first the large ones, so that the speed does not fall through 0
    kappa = code.acceleration_bins + rng.integers(0, code.curvature_bins, (8, code.length // 2))
    tokens = np.stack([a, kappa], -1).reshape(8, -1)
    control = np.stack([code.decode(row) for row in tokens])
    assert (code.encode(np.full(8, 80.0), control) == tokens).all()


@pytest.mark.parametrize(("code", "mean", "most"), [(FULL, 0.01, 0.05), (SHORT, 0.25, 1.5)])
def test_trajectories_survive_in_metres(code, mean, most):
    # Bound for the full code: the speed is off by at most half a step · dt = 0.01 m/s, the heading by 0.0005 · 2 m.
    speed, control = demonstrations()
    start = np.stack([speed * 0, speed * 0, speed * 0, speed], -1)
    there = dynamics.rollout(start, control)
    again = dynamics.rollout(start, np.stack([code.decode(row) for row in code.encode(speed, control)]))
    apart = np.linalg.norm((again - there)[..., :2], axis=-1)
    assert apart.mean() < mean
    assert apart.max() < most


def test_rounding_does_not_add_up():
    # 0.09 m/s² rounds to 0 at every tick: without feedback 0.58 m/s are missing after 6.4 s
    control = np.zeros((1, HORIZON, 2))
    control[..., 0], control[..., 1] = 0.09, 0.0004
    again = FULL.decode(FULL.encode(np.array([10.0]), control)[0])
    speed = 10 + np.cumsum(again[:, 0]) * DT
    np.testing.assert_allclose(speed, 10 + 0.09 * DT * np.arange(1, 65), atol=0.011)
    heading = np.cumsum(again[:, 1] * speed * DT)
    np.testing.assert_allclose(heading, np.cumsum(0.0004 * DT * speed), atol=0.0007)


def test_standing_is_said_and_not_assumed():
    tokens = SHORT.encode(np.zeros(1), np.zeros((1, HORIZON, 2)))[0]
    assert tokens.tolist() == [49, 299] * 8
    assert (SHORT.decode(tokens) == 0).all()


@pytest.mark.parametrize(
    ("tokens", "fault", "message"),
    [
        ([], Fault.TRUNCATED, "0 control tokens of 16"),
        ([49, 299] * 7 + [49], Fault.TRUNCATED, "15 control tokens of 16"),
        ([49, 299] * 8 + [49], Fault.SURPLUS, "17 control tokens"),
        ([49, 299] * 9, Fault.SURPLUS, "18 control tokens"),
        ([299, 49] * 8, Fault.MISPLACED, "control token 0"),
        ([49, 299] * 7 + [49, 49], Fault.MISPLACED, "control token 15"),
        ([-1, 299] * 8, Fault.MISPLACED, "control token 0"),
        ([49, 500] * 8, Fault.MISPLACED, "control token 1"),
    ],
)
def test_no_trajectory_is_made_up(tokens, fault, message):
    with pytest.raises(FormatError, match=message) as caught:
        SHORT.decode(tokens)
    assert caught.value.fault is fault


@pytest.mark.parametrize(
    "settings", [{"hold": 0}, {"hold": 7}, {"acceleration_bins": 64}, {"curvature_bins": 1}]
)
def test_codes_that_cannot_be(settings):
    with pytest.raises(ValueError, match="must"):
        ControlCode(**settings)


def test_encode_refuses_what_is_not_finite():
    control = np.zeros((1, HORIZON, 2))
    control[0, 3, 1] = np.nan
    with pytest.raises(ValueError, match="finite"):
        SHORT.encode(np.zeros(1), control)


# --- answers ---

VOCABULARY = Vocabulary()
CONTROLS = SHORT.encode(*(x[:1] for x in demonstrations(1)))[0]
GOOD = VOCABULARY.write(TRACE, CONTROLS)


def test_an_answer_survives():
    answer = VOCABULARY.read(GOOD)
    assert answer.faults == ()
    assert answer.trace == TRACE
    assert answer.text == "stop because red light; turn left because route left."
    np.testing.assert_array_equal(answer.control, SHORT.decode(CONTROLS))


@pytest.mark.parametrize("code", [SHORT, FULL])
def test_ids_are_distinct_and_within_the_vocabulary(code):
    vocabulary = Vocabulary(code)
    names = [vocabulary.word(i) for i in range(vocabulary.size)]
    assert len(set(names)) == len(names)
    assert names[: len(SPECIALS)] == list(SPECIALS)
    for outside in (-1, vocabulary.size):
        with pytest.raises(ValueError, match="outside"):
            vocabulary.word(outside)


def test_the_longest_trace():
    lengths = {
        len(words(str(Trace(a, c, b, Side.LEFT if b in SIDED else None, c))))
        for a, b, c in itertools.product(Longitudinal, Lateral, Cause)
    }
    assert max(lengths) == LONGEST_TRACE
    assert VOCABULARY.longest == LONGEST_TRACE + 1 + 16 + 1


CUT = GOOD.index(TRAJECTORY)
BROKEN = {
    "nothing": ([], [Fault.EMPTY]),
    "end at once": ([END], [Fault.EMPTY]),
    "end, then an answer": ([END, *GOOD], [Fault.EMPTY]),
    "words alone": ([*GOOD[:CUT], END], [Fault.NO_TRAJECTORY]),
    "no trajectory mark": ([*GOOD[:CUT], *GOOD[CUT + 1 :]], [Fault.TRACE, Fault.NO_TRAJECTORY]),
    "no controls": ([*GOOD[: CUT + 1], END], [Fault.TRUNCATED]),
    "cut off": (GOOD[:-2], [Fault.TRUNCATED]),
    "no end": (GOOD[:-1], [Fault.TRUNCATED]),
    "one short": ([*GOOD[:-2], END], [Fault.TRUNCATED]),
    "one too many": ([*GOOD[:-1], GOOD[-2], END], [Fault.SURPLUS]),
    "never ending": ([*GOOD[:-1], *GOOD[CUT + 1 : -1]], [Fault.SURPLUS]),
    "more after the end": ([*GOOD, GOOD[0]], [Fault.SURPLUS]),
    "two trajectories": ([*GOOD[:-1], *GOOD[CUT:]], [Fault.SURPLUS]),
    "a word among the controls": ([*GOOD[:-2], GOOD[0], END], [Fault.MISPLACED]),
    "padding among the controls": ([*GOOD[:-2], PAD, END], [Fault.MISPLACED]),
    "swapped": ([*GOOD[: CUT + 1], GOOD[CUT + 2], GOOD[CUT + 1], *GOOD[CUT + 3 :]], [Fault.MISPLACED]),
    "an id beyond the vocabulary": ([*GOOD[:-2], VOCABULARY.size, END], [Fault.MISPLACED]),
    "a negative id among the words": ([-5, *GOOD], [Fault.TRACE]),
    "no words": (GOOD[CUT:], [Fault.TRACE]),
    "a word too few": (GOOD[1:], [Fault.TRACE]),
    "a start among the words": ([START, *GOOD], [Fault.TRACE]),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_answers(name):
    ids, faults = BROKEN[name]
    answer = VOCABULARY.read(ids)
    assert [fault for fault, _ in answer.faults] == faults
    assert all(reason for _, reason in answer.faults)
    assert (answer.control is None) == (set(faults) != {Fault.TRACE})
    assert (answer.trace is None) == bool({Fault.TRACE, Fault.EMPTY} & set(faults))


def test_any_ids_are_read_and_only_whole_answers_drive():
    chance = random.Random(0)
    for _ in range(3000):
        ids = list(GOOD)
        for _ in range(chance.randint(0, 3)):
            ids[chance.randrange(len(ids))] = chance.randint(-3, VOCABULARY.size + 3)
        ids = ids[: chance.randint(0, len(ids))] if chance.random() < 0.3 else ids
        answer = VOCABULARY.read(ids)
        if answer.control is not None:
            at = ids.index(TRAJECTORY)
            assert VOCABULARY.write(answer.trace, [i - VOCABULARY.controls_at for i in ids[at + 1 : -1]]) == (
                ids if answer.trace else ids[at:]
            )
            np.testing.assert_allclose(answer.control[::8, 0], _accelerations(ids) * 0.2 - 9.8, atol=1e-12)


def _accelerations(ids):
    return np.array(ids[ids.index(TRAJECTORY) + 1 : -1 : 2]) - VOCABULARY.controls_at


def test_faults_are_counted():
    counted = count_faults(VOCABULARY.read(ids) for ids, _ in [*BROKEN.values(), (GOOD, [])])
    assert set(counted) == {fault.value for fault in Fault}
    assert counted["empty"] == 3
    assert counted["surplus tokens"] == 4
    assert sum(counted.values()) == sum(len(faults) for _, faults in BROKEN.values())
