"""Closed-loop reports: against hand-made drives, the expert's own, and what may not change them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from answering import Reciting, Scripted, completion, holding
from roads import moving, road

from outdo.driving import metrics
from outdo.driving.dynamics import rollout
from outdo.driving.evaluation import ClosedLoop
from outdo.driving.expert import NO_FLAWS, Flaws, demonstrate, run
from outdo.driving.generator import generate
from outdo.driving.reasoning import parse
from outdo.driving.simulator import drive
from outdo.driving.tokens import END

FREE = parse("track set speed because speed limit; keep lane because lane lines.")


def keep(vocabulary, _, v):
    return holding(vocabulary, v, FREE)


@pytest.fixture(scope="module")
def scenes():
    return generate("test", 20)


@pytest.fixture(scope="module")
def demos(scenes):
    return demonstrate(scenes, 0, flaws=NO_FLAWS)


def test_rates_by_hand():
    free, slower = road(moving(0, 0, 10)), road(moving(0, 0, 10), moving(15, 0, 5))
    off = road(moving(0, -1.0, 10))  # its log is off the road at the first step
    got = ClosedLoop([free, slower, off])(Scripted(keep)).metrics
    assert got["drive/collision"] == 0.5  # the third scene counts in nothing but `faulty`
    # Wilson, 1 of 2 at 95 %: 0.5 ± 0.4055
    assert got["drive/collision/low"] == pytest.approx(0.0945, abs=1e-3)
    assert got["drive/collision/high"] == pytest.approx(0.9055, abs=1e-3)
    assert got["plan/close_encounter"] == 0.5
    assert got["plan/close_encounter/low"] == got["drive/collision/low"]
    assert got["drive/faulty"] == pytest.approx(1 / 3)
    assert got["drive/scenes"] == 3
    assert got["drive/progress"] == pytest.approx(64.0)
    assert got["drive/l2"] == pytest.approx(0.0, abs=1e-9)  # as in the logs: 10 m/s
    assert got["drive/fallback"] == got["plan/malformed"] == 0


def test_reactive_or_replayed():
    # the ego brakes to a standstill before one that follows at its speed: only who reacts stops behind it
    scenes = [
        road(moving(0, 0, 10), moving(x, 0, 10), route=np.array([[0.0, 0], [500, 0]])) for x in (-20, -25)
    ]
    brakes = Scripted(lambda vocabulary, _, v: holding(vocabulary, v, FREE, a=-2.0 if v > 0.3 else 0.0))
    assert ClosedLoop(scenes)(brakes).metrics["drive/collision"] == 0
    assert ClosedLoop(scenes, reactive=False)(brakes).metrics["drive/collision"] == 1


def test_one_who_recites_the_expert_scores_as_the_expert(scenes, demos):
    loop = ClosedLoop(scenes)
    got, expert = loop(Reciting(demos)).metrics, loop.expert_figures().metrics
    for name in ("collision", "at_fault", "close_encounter", "off_road", "red_light", "faulty"):
        assert got[f"drive/{name}"] == expert[f"drive/{name}"], name
    assert got["drive/progress"] == pytest.approx(expert["drive/progress"], abs=0.2)
    assert got["plan/quality"] == expert["plan/quality"] == 5
    assert got["plan/consistency"] == pytest.approx(expert["plan/consistency"], abs=0.1)
    assert expert["plan/ade"] == pytest.approx(0, abs=1e-9)
    assert 0 < got["plan/ade"] < 0.1  # bins round the controls


def test_ade_and_quality_by_hand(scenes):
    got = ClosedLoop(scenes)(Scripted(keep)).metrics
    record, _ = run(scenes)
    start = record.state[:, 0, 0]
    straight = rollout(start, np.zeros((20, 64, 2)))
    apart = np.linalg.norm((straight - record.state[:, :, 0])[:, 1:, :2], axis=-1)
    assert got["plan/ade"] == pytest.approx(apart.mean(), abs=1e-9)
    assert got["plan/ade/high"] - got["plan/ade"] == pytest.approx(
        1.96 * apart.mean(1).std(ddof=1) / 20**0.5, rel=1e-3
    )
    assert got["plan/quality"] < 3


def test_the_split_into_batches_changes_nothing(scenes, demos):
    one = ClosedLoop(scenes[:8], samples=2, temperature=1.0, seed=3)(Reciting(demos))
    few = ClosedLoop(scenes[:8], samples=2, temperature=1.0, seed=3, at_once=3)(Reciting(demos))
    assert one.metrics == pytest.approx(few.metrics, abs=1e-12)
    assert one.samples == few.samples


def test_how_often_it_plans(scenes, demos):
    for every, asked in ((5, 13), (2, 32), (1, 64)):
        policy = Reciting(demos)
        ClosedLoop(scenes[:4], every=every)(policy)
        assert len(policy.asked) == asked


def test_answers_without_a_trajectory_earn_nothing(scenes, demos):
    class Speechful(Reciting):
        """The expert's words and no trajectory."""

        def answers(self, seen, copies, sampling, streams):
            words = [self.vocabulary.write(self._demos[i].trace, [])[:-2] for _, i, _ in streams]
            return [[completion([*said, END])] * copies for said in words]

    got = ClosedLoop(scenes, samples=1)(Speechful(demos)).metrics
    assert got["plan/malformed"] == got["drive/fallback"] == 1
    assert got["plan/quality"] == got["plan/consistency"] == 0
    assert got["drive/ep"] < 0.6  # it brakes
    # what is driven instead is what is measured: braking at 3 m/s² on the route
    assert got["plan/ade"] == pytest.approx(got["plan/min_ade"]) != 0


def test_min_ade_is_of_the_nearest_sample(scenes, demos):
    class Several(Reciting):
        """Greedily keeps the speed; sampled, the second of three copies is the expert's."""

        def answers(self, seen, copies, sampling, streams):
            speed = seen.agents[:, 0, -1, 3].astype(np.float64)
            plain = [completion(holding(self.vocabulary, v, FREE)) for v in speed]
            if sampling.greedy:
                return [[one] for one in plain]
            best = super().answers(seen, 1, sampling, streams)
            return [[one, *right, one] for one, right in zip(plain, best, strict=True)]

    got = ClosedLoop(scenes, samples=3)(Several(demos)).metrics
    assert got["plan/ade"] > 1
    assert 0 < got["plan/min_ade"] < 0.1


def test_rows_beside_the_policy(scenes):
    loop = ClosedLoop(generate("test", 60))
    clean, log = loop.expert_figures().metrics, loop.log_figures().metrics
    flawed = loop.expert_figures(Flaws(late_braking=0.5, small_gaps=0.5, wrong_reason=0.5)).metrics
    assert log["drive/l2"] == 0
    assert log["drive/ep"] == log["drive/epdms"] == 1
    assert not any(name.startswith("plan/") for name in log)
    assert flawed["drive/close_encounter"] > clean["drive/close_encounter"] + 0.05
    assert flawed["plan/quality"] < 4.5 < clean["plan/quality"] == 5
    assert flawed["plan/ade"] > 0.5


def test_the_expert_is_driven_as_it_demonstrates(scenes):
    # two ways to the same drive: its own steps, or its recorded controls played back
    record, _ = run(scenes, reactive=False)
    figures = metrics.summary(metrics.evaluate(record))
    got = ClosedLoop(scenes, reactive=False).expert_figures().metrics
    for name, interval in figures.items():
        assert got[f"drive/{name}"] == pytest.approx(interval.value, abs=1e-9), name


def test_samples_can_be_read(scenes):
    report = ClosedLoop(scenes, shown=3, at_once=2)(Scripted(keep))
    assert [sample["scene"] for sample in report.samples] == [scene.id for scene in scenes[:3]]
    first = report.samples[0]
    assert first["text"] == str(FREE)
    assert first["situation"] == "lead braking"
    assert first["actions"] == ["maintain speed", "go straight"]
    assert "collision" in first["happened"]
    assert parse(first["expert"])


def test_every_scene_shown_has_its_own_figures(scenes):
    report = ClosedLoop(scenes, shown=len(scenes), at_once=2)(Scripted(keep))
    rows = [sample["figures"] for sample in report.samples]
    assert len(rows) == len(scenes)
    sound = [row for row in rows if not row["drive/faulty"]]
    for name in rows[0]:
        if name != "drive/faulty":
            assert np.mean([row[name] for row in sound]) == pytest.approx(report.metrics[name]), name


def test_the_same_policy_gives_the_same_report(scenes, demos):
    loop = ClosedLoop(scenes[:4], temperature=1.0)
    assert loop(Reciting(demos)) == loop(Reciting(demos))


def test_scenes_that_begin_later(demos):
    later = [replace(scene, now=60) for scene in generate("test", 4, future=128)]
    got = ClosedLoop(later)(Scripted(keep)).metrics
    start = np.stack([scene.state[0, 60] for scene in later])
    straight = drive(later, lambda s: np.zeros((4, 64, 2)))
    np.testing.assert_allclose(straight.state[:, 0, 0], start)
    want = metrics.summary(metrics.evaluate(straight))
    assert got["drive/progress"] == pytest.approx(want["progress"].value)


def test_settings_are_checked(scenes):
    for settings, message in (
        ({"scenes": scenes[:1]}, "at least 2 scenes"),
        ({"every": 6}, "every must be 1 to 5"),
        ({"samples": -1}, "samples >= 0"),
        ({"at_once": 0}, "at_once >= 1"),
    ):
        with pytest.raises(ValueError, match=message):
            ClosedLoop(**({"scenes": scenes} | settings))
