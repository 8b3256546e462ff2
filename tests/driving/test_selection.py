"""Disagreement by hand arithmetic; the chooser's halves, its order and its state."""

from __future__ import annotations

import json
import math

import pytest

from outdo.driving.selection import SceneChoice, divergence


def test_by_hand():
    # ℓ = log 1, log 3 after the division by length → p = (1/4, 3/4); β·r = log 3, log 1 → q = (3/4, 1/4)
    # KL(q‖p) = 3/4·log 3 + 1/4·log(1/3) = 1/2·log 3
    logp, lengths = [0.0, 4 * math.log(3)], [2, 4]
    assert divergence(logp, lengths, [math.log(3), 0.0]) == pytest.approx(math.log(3) / 2)
    # not divided: p = (1/82, 81/82); KL = 3/4·log(3/4·82) + 1/4·log(82/4/81)
    whole = 0.75 * math.log(0.75 * 82) + 0.25 * math.log(82 / 4 / 81)
    assert divergence(logp, lengths, [math.log(3), 0.0], by_length=False) == pytest.approx(whole)
    # β = 2: q = (9/10, 1/10)
    sharp = 0.9 * math.log(0.9 * 4) + 0.1 * math.log(0.1 * 4 / 3)
    assert divergence(logp, lengths, [math.log(3), 0.0], beta=2) == pytest.approx(sharp)


def test_the_direction_is_that_of_the_reward_against_the_policy():
    # q = (1/4, 1/4, 1/2), p = (8/10, 1/10, 1/10):
    # KL(q‖p) = ¼ log(5/16) + ¼ log(5/2) + ½ log 5,   KL(p‖q) = 0.8 log(16/5) + 0.1 log(2/5) + 0.1 log(1/5)
    forward = 0.25 * math.log(5 / 16) + 0.25 * math.log(5 / 2) + 0.5 * math.log(5)
    backward = 0.8 * math.log(16 / 5) + 0.1 * math.log(2 / 5) + 0.1 * math.log(1 / 5)
    assert divergence([math.log(8), 0.0, 0.0], [1, 1, 1], [0.0, 0.0, math.log(2)]) == pytest.approx(forward)
    assert abs(forward - backward) > 0.05


def test_where_policy_and_reward_agree_it_is_zero():
    assert divergence([-3.0, -1.0, 0.5], [1, 1, 1], [-3.0 + 7, -1.0 + 7, 0.5 + 7]) == pytest.approx(0)
    # rewards that are all equal teach nothing, however uneven the likelihoods are
    assert divergence([-30.0, -1.0], [1, 1], [2.0, 2.0]) == 0
    assert divergence([-5.0], [3], [1.0]) == 0


def test_large_numbers_do_not_overflow():
    found = divergence([-2000.0, -1.0], [1, 1], [5000.0, 0.0])
    assert found == pytest.approx(1999.0)


@pytest.mark.parametrize("lists", [([], [], []), ([-1.0], [1, 2], [0.0]), ([-1.0], [1], [0.0, 1.0])])
def test_lists_that_do_not_fit(lists):
    with pytest.raises(ValueError, match="one entry per answer"):
        divergence(*lists)


def test_random_choice_goes_through_all_scenes():
    choice = SceneChoice(6, seed=1)
    passes = [choice.choose(3) for _ in range(4)]
    assert all(again == [] for again, _ in passes)
    assert sorted(passes[0][1] + passes[1][1]) == sorted(passes[2][1] + passes[3][1]) == list(range(6))
    choice.observe(0, 5.0)
    assert choice.choose(2)[0] == []  # nothing is remembered where nothing is chosen by it


def test_half_are_those_that_differ_most():
    choice = SceneChoice(20, seed=1, share=0.5, candidates=100)
    again, fresh = choice.choose(6)
    assert (len(again), len(fresh)) == (0, 6)  # nothing is measured yet
    for index, value in zip(fresh, [0.1, 0.6, 0.3, 0.5, 0.2, 0.4], strict=True):
        choice.observe(index, value)
    again, others = choice.choose(6)
    assert again == [fresh[1], fresh[3], fresh[5]]
    assert len(others) == 3
    assert not set(others) & set(fresh)  # the shuffle goes on where it was
    choice.observe(fresh[1], 0.0)  # only the newest visit counts
    assert choice.choose(6)[0] == [fresh[3], fresh[5], fresh[2]]


def test_candidates_are_drawn_from_all_that_were_measured():
    choice = SceneChoice(50, seed=3, share=0.5, candidates=2)
    for index in range(40):
        choice.observe(index, float(index))
    drawn = [index for _ in range(200) for index in choice.choose(8)[0]]
    assert len(drawn) == 800
    # of 8 candidates among 40 the better 4 are kept: the worst 4 never, and not only the best
    assert 0 not in drawn
    assert len(set(drawn)) > 20

    # rank k is kept with the probability that it is drawn and at most 3 of the other 7 are better
    def kept(better):
        total = math.comb(39, 7)
        return 8 / 40 * sum(math.comb(better, b) * math.comb(39 - better, 7 - b) for b in range(4)) / total

    for better in (0, 10, 19):
        found = drawn.count(39 - better) / 200
        spread = math.sqrt(kept(better) * (1 - kept(better)) / 200)
        assert abs(found - kept(better)) < 4 * spread


def test_a_restored_chooser_goes_on_as_if_nothing_had_been():
    def drive(choice, rounds):
        seen = []
        for _ in range(rounds):
            again, fresh = choice.choose(5)
            seen.append((again, fresh))
            for index in [*again, *fresh]:
                choice.observe(index, (index * 7919 + choice.drawn) % 13 / 13)
        return seen

    whole = SceneChoice(30, seed=2, share=0.4, candidates=2)
    drive(whole, 7)
    state = json.loads(json.dumps(whole.state_dict()))
    other = SceneChoice(30, seed=2, share=0.4, candidates=2)
    other.load_state_dict(state)
    assert drive(other, 10) == drive(whole, 10)
    assert other.drawn == whole.drawn == 85


@pytest.mark.parametrize("settings", [{"share": 1.5}, {"share": -0.1}, {"candidates": 0}])
def test_settings_that_cannot_be(settings):
    with pytest.raises(ValueError, match="must be"):
        SceneChoice(10, seed=0, **settings)
