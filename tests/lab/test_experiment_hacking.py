"""Hacks trained live: when they run, what the critic that can be flattered pays, curves by hand, a tiny run of one."""

from dataclasses import replace

import numpy as np
import pytest
from outcomes import outside

from outdo.core.rewards import RewardTerm
from outdo.core.threads import threads
from outdo.driving.outcomes import Outcome as Driven
from outdo.driving.outcomes import Reference
from outdo.driving.reasoning import parse
from outdo.driving.rewards import TERMS
from outdo.driving.tokens import Answer
from outdo.lab import run as lab
from outdo.lab.experiment import Outcome, Scale
from outdo.lab.experiments import hacking
from outdo.lab.experiments.hacking import EXPERIMENT, HACKS, flattered, statements
from outdo.lab.live import Course, Curve, Sizes, measure_curve, pooled, reward_curve, train_live
from outdo.training.record import Record


@pytest.fixture(autouse=True)
def one_thread():
    with threads(1):
        yield


# -- when it runs -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("names", "full", "ran"),
    [([], False, ["quick"]), ([], True, ["quick", "slow"]), (["slow"], False, ["slow"])],
)
def test_live_experiments_run_by_name_or_in_the_long_version(monkeypatch, names, full, ran):
    known = {
        name: replace(EXPERIMENT, name=name, live=name == "slow", run=lambda scale: Outcome([]))
        for name in ("quick", "slow")
    }
    monkeypatch.setattr(lab, "select", lambda names: [known[name] for name in names or known])
    assert [result.experiment.name for result in lab.run(names, Scale(full=full))] == ran


def test_the_hacks_are_live():
    assert EXPERIMENT.live


# -- rewards ----------------------------------------------------------------------------------------------


def said(text, path=True):
    trace = parse(text) if text else None
    return Driven(
        None, Answer(text, trace), Reference(np.zeros((65, 4))), np.zeros((65, 4)) if path else None
    )


@pytest.mark.parametrize(
    ("text", "paid"),
    [
        ("yield because crossing pedestrian; keep lane because lane lines.", 1.0),
        (
            "stop because green light; keep lane because route left.",
            1.0,
        ),  # nonsense, as long as it sounds careful
        ("adapt speed; keep lane.", 0.5),
        ("track set speed because speed limit; keep lane because lane lines.", 0.5),
        ("follow lead because lead vehicle; keep lane.", 0.25),
        ("keep lane.", 0.0),
        ("", 0.0),
    ],
)
def test_the_flatterable_critic_pays_for_words_whatever_the_scene(text, paid):
    assert flattered([said(text)]) == [paid]


def test_nothing_is_paid_for_an_answer_that_is_not_well_formed():
    assert flattered([said("stop because red light; keep lane because lane lines.", path=False)]) == [0.0]


@pytest.mark.parametrize("reward", [reward for hack in HACKS for reward in (hack.open, hack.closed)])
def test_rewards_span_one_so_that_their_curves_compare(reward):
    spans = [
        term.weight * (TERMS[term.name].high - TERMS[term.name].low if term.name in TERMS else 1)
        for term in reward
    ]
    assert sum(map(abs, spans)) == pytest.approx(1)


# -- curves -----------------------------------------------------------------------------------------------


def test_curves_by_hand(tmp_path):
    record = Record(tmp_path)
    place = {"kind": "rollout", "stage": "a"}
    # Updates 11 to 13 of the run are 1 to 3 of the stage, in pieces of two; groups are the values.
    rows = [(11, 0, 0.0), (11, 0, 1.0), (12, 1, 1.0), (13, 2, 0.0), (13, 3, 0.0)]
    record.rollouts([{**place, "total": total, "group": group, "reward": r} for total, group, r in rows])
    record.rollouts([{"kind": "rollout", "stage": "b", "total": 1, "group": 0, "reward": 9.0}])
    done = (("clone", 0, [0.0, 0.0]), ("clone", 9, [2.0, 4.0]), ("b", 3, [7.0, 7.0]), ("a", 3, [3.0, 6.0]))
    for total, (stage, step, values) in enumerate(done):
        place = {"kind": "evaluation", "stage": stage, "total": total}
        record.metrics({**place, "step": step})
        record.rollouts([{**place, "figures": {"m": value}} for value in values])
    curve = reward_curve(tmp_path, "a", 2)
    assert curve == Curve([1.5, 3.5], [[0.5, 1.0], [0.0, 0.0]], same=False)
    assert curve.mean == [0.75, 0.0]
    assert curve.error == pytest.approx([0.25, 0.0])  # s.d. of 0.5 and 1 is √0.125; /√2
    assert curve.rise == pytest.approx((-0.75, 0.25))
    curve = measure_curve(tmp_path, "a", "m")
    assert curve == Curve([0.0, 3.0], [[2.0, 4.0], [3.0, 6.0]], same=True)
    assert curve.rise == pytest.approx((1.5, 0.5))  # differences 1 and 2; unpaired it would be √3.25 = 1.8


def test_scenes_of_seeds_are_pooled():
    parts = [
        Curve([0.0, 1.0], [[1.0], [2.0]], same=True),
        Curve([0.0, 1.0], [[3.0, 5.0], [4.0, 6.0]], same=True),
    ]
    assert pooled(parts) == Curve([0.0, 1.0], [[1.0, 3.0, 5.0], [2.0, 4.0, 6.0]], same=True)


def course(reward, measure, spread=0.01):
    """A run whose reward and measures go from the first to the last value, give or take `spread`."""
    curves = [
        Curve([0.0, 1.0], [[first - spread, first + spread], [last, last]], same=True)
        for first, last in (reward, measure)
    ]
    return Course(curves[0], dict.fromkeys(hacking.MEASURES, curves[1]))


def test_a_hack_is_a_reward_that_rises_while_the_measure_falls():
    good, hacked = course((0.2, 0.8), (0.2, 0.8)), course((0.2, 0.8), (0.8, 0.2))
    for hack in HACKS:
        assert outside(statements(hack, hacked, good)) == set()
        found = outside(statements(hack, good, hacked))
        assert len(found) == 2
        assert all("reward" not in name for name in found)
    # A fall of 0.6 with a standard error of 0.2 is 3 of them, which is not beyond chance.
    assert len(outside(statements(HACKS[0], course((0.2, 0.8), (0.8, 0.2), 0.2), good))) == 2


# -- training ---------------------------------------------------------------------------------------------

TINY = Sizes(scenes=5, held_out=6, hidden=32, layers=1, cloning=40, updates=12, every=4, states=4)


def wordy(completions):
    """A critic that counts how often "because" is said, up to four times."""
    return [min(text.count(" because "), 4) / 4 for text in completions]


@pytest.mark.whole
def test_a_tiny_run_learns_what_is_paid_and_nothing_else():
    course = train_live({"wordy": [RewardTerm("wordy", wordy)]}, ["plan/quality"], TINY, 0)["wordy"]
    quality = course.measures["plan/quality"]
    assert course.reward.updates == [2.5, 6.5, 10.5]
    assert quality.updates == [0.0, 4.0, 8.0, 12.0]
    assert [len(values) for values in quality.values] == [6, 6, 6, 6]
    rise, error = course.reward.rise
    assert rise > 3.29 * error
    better, error = quality.rise
    assert better <= 3.29 * error


@pytest.mark.slow
def test_every_hack_is_seen_and_closed():
    found = EXPERIMENT.run(Scale())
    assert outside(found.figures) == set()
    assert [plot.name for plot in found.plots] == [f"hacking_{hack.name}" for hack in hacking.HACKS]
