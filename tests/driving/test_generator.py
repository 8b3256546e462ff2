"""Generated scenes: seeded, disjoint, sound, and each about what its name says."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from shapely.geometry import LineString, Point

from outdo.driving import comfort
from outdo.driving.expert import NO_FLAWS, Demonstration, Driver, Flaws, demonstrate, run
from outdo.driving.generator import SPLITS, generate
from outdo.driving.measures import measure
from outdo.driving.reasoning import Cause, Lateral, Longitudinal, Side, observed, parse
from outdo.driving.scene import HORIZON, Kind, Light
from outdo.driving.simulator import logged
from outdo.driving.situations import SITUATIONS

COUNT = 60


@pytest.fixture(scope="module")
def scenes():
    return generate("train", COUNT)


@pytest.fixture(scope="module")
def clean(scenes):
    return demonstrate(scenes, 0, flaws=NO_FLAWS)


def test_the_same_seed_gives_the_same_scenes(scenes):
    again = generate("train", 5, first=20)
    for one, two in zip(scenes[20:25], again, strict=True):
        assert one.id == two.id
        np.testing.assert_array_equal(one.state, two.state)
        np.testing.assert_array_equal(one.route, two.route)


ENDS = {
    "lead braking": (42.928839, -1.049595, -0.046686, 0.227874),
    "cut-in": (57.666286, 0.0, 0.0, 6.746268),
    "cut-out": (56.875113, 0.0, 0.0, 1.874669),
    "merge": (47.018396, -0.848782, 0.084138, 8.695339),
    "unprotected turn": (39.229072, 9.398562, 1.388986, 4.791426),
    "crossing pedestrian": (38.944353, 0.0, 0.0, 3.778309),
    "stop line": (37.443616, -1.471382, -0.078116, 0.2871),
    "parked vehicle": (32.562251, -0.456115, -0.242142, 3.085823),
    "slow leader": (80.873204, -3.499625, 0.000839, 12.70596),
    "road works": (62.929001, 0.100087, -0.000021, 6.018554),
}
"""State of the ego at the end of the first ten training scenes, as first published: results name scenes by index."""


def test_scenes_stay_what_they_were(scenes):
    assert {scene.situation for scene in scenes[:10]} == set(ENDS)
    for scene in scenes[:10]:
        np.testing.assert_allclose(scene.state[0, -1], ENDS[scene.situation], atol=1e-4)


def test_longer_futures_are_driven_to_their_end():
    longer = generate("train", 20, future=128)
    record = logged(longer, steps=128)
    for n, scene in enumerate(longer):
        assert (scene.now, scene.future) == (15, 128)
        assert all(len(signal.states) == scene.steps for signal in scene.signals)
        found = measure(scene, record.state[n], record.valid[n], record.size[n])
        assert not found.contact.any()
        assert not found.off_road.any()
    # scripts go on in the second half: a pedestrian walks on, an ego with free road does not run out of it
    walker = next(s for s in longer if s.situation == "crossing pedestrian")
    who = int(np.flatnonzero(walker.kind == Kind.PEDESTRIAN)[0])
    assert np.ptp(walker.state[who, 80:, 1]) > 5
    passing = next(s for s in longer if s.situation == "slow leader")
    assert passing.state[0, -1, 0] < passing.route[-1, 0] - 40
    with pytest.raises(ValueError, match="future must be at least the 64 steps"):
        generate("train", 1, future=63)


def test_the_beginning_of_a_longer_future_is_the_shorter_one(scenes):
    # straight roads only: bends are sampled anew where the road is longer
    longer = generate("train", 20, future=128)
    pairs = [(a, b) for a, b in zip(scenes, longer, strict=False) if len(a.route) == len(b.route) == 2]
    assert len(pairs) >= 8
    close = [np.allclose(a.state[0, :16], b.state[0, :16], atol=1e-6) for a, b in pairs]
    assert all(close)


def test_no_scene_is_in_two_splits_or_seeds(scenes):
    sets = [generate(split, 10, seed=seed) for split in SPLITS for seed in (0, 1)]
    assert len({scene.id for group in sets for scene in group}) == 60
    starts = {
        tuple(scene.state[0, 0].tolist()) + tuple(scene.state[-1, 0]) for group in sets for scene in group
    }
    assert len(starts) == 60


def test_all_ten_situations_come_in_turn(scenes):
    assert Counter(scene.situation for scene in scenes) == dict.fromkeys(SITUATIONS, COUNT // 10)


def test_logs_are_whole_and_sound(scenes):
    record = logged(scenes)
    for n, scene in enumerate(scenes):
        assert (scene.now, scene.future, scene.faults) == (15, HORIZON, ())
        found = measure(scene, record.state[n], record.valid[n], record.size[n])
        assert not found.contact.any()
        assert not found.off_road.any()
        assert found.red == 0


def test_scenes_are_mirrored_half_of_the_time(scenes):
    left = sum(lane.left is not None for scene in scenes for lane in scene.lanes.values())
    right = sum(lane.right is not None for scene in scenes for lane in scene.lanes.values())
    assert left == right > 0  # neighbours know each other
    sides = Counter(
        np.sign(scene.lanes["oncoming"].centre[0, 1]) for scene in scenes if "oncoming" in scene.lanes
    )
    assert min(sides[1.0], sides[-1.0]) >= 5  # of about 36, half expected each


@pytest.mark.parametrize(
    ("split", "situations", "message"),
    [
        ("tests", None, "unknown split 'tests'; .*test"),
        ("test", ["cut in"], "unknown situation 'cut in'; .*cut-in"),
    ],
)
def test_unknown_names(split, situations, message):
    with pytest.raises(ValueError, match=message):
        generate(split, 1, situations=situations or ["merge"])


def of(name: str, items):
    return [x for x in items if (x.scene if isinstance(x, Demonstration) else x).situation == name]


def test_what_the_situations_hold(scenes):
    for scene in of("lead braking", scenes):
        assert scene.state[1, 15, 3] < scene.state[1, 0, 3]  # it brakes before now
    for scene in of("crossing pedestrian", scenes):
        walker = np.flatnonzero(scene.kind == Kind.PEDESTRIAN)[0]
        assert abs(scene.state[walker, -1, 1] - scene.state[walker, 0, 1]) > 5  # 8 s at 1 m/s or more
    for scene in of("stop line", scenes):
        assert scene.signals[0].states[scene.now] in (Light.RED, Light.STOP_SIGN)
    for scene in of("parked vehicle", scenes):
        assert (scene.state[1, :, 3] == 0).all()
    for scene in of("road works", scenes):
        assert (scene.kind == Kind.STATIC).sum() >= 4
        assert scene.lanes["works"].speed_limit < scene.lanes["own"].speed_limit


EXPECTED = {
    "lead braking": {Longitudinal.FOLLOW, Longitudinal.STOP},
    "cut-in": {Longitudinal.FOLLOW},
    "cut-out": {Longitudinal.STOP, Longitudinal.FOLLOW},
    "merge": {Longitudinal.SEARCH_GAP, Longitudinal.TRACK_SPEED},
    "unprotected turn": {Longitudinal.YIELD, Longitudinal.ADAPT_SPEED},
    "crossing pedestrian": {Longitudinal.YIELD},
    "stop line": {Longitudinal.STOP},
    "parked vehicle": {Longitudinal.TRACK_SPEED, Longitudinal.YIELD},
    "slow leader": {Longitudinal.PASS, Longitudinal.FOLLOW},
    "road works": {Longitudinal.ADAPT_SPEED, Longitudinal.FOLLOW},
}


@pytest.mark.parametrize("name", EXPECTED)
def test_the_expert_says_what_the_situation_is_about(name, clean):
    found = [demo.truth.longitudinal in EXPECTED[name] for demo in of(name, clean)]
    assert np.mean(found) >= 0.8


def test_causes_lie_in_what_was_observed(clean):
    for demo in clean:
        assert demo.truth.longitudinal_cause is not None
        assert observed(demo.truth.longitudinal_cause, demo.scene)


def test_what_is_said_agrees_with_what_is_driven(clean):
    for demo in clean:
        lanes, (x, y, theta, v) = demo.scene.lanes, demo.states.T
        if demo.truth.lateral is Lateral.CHANGE_LANE:
            assert (lanes["own"].left == "beside") == (demo.truth.side is Side.LEFT)
            ends = [
                LineString(lanes[name].centre).distance(Point(x[-1], y[-1])) for name in ("own", "beside")
            ]
            assert ends[1] < 2.5
        if demo.truth.lateral is Lateral.TURN:
            assert (theta[-1] > theta[0]) == (demo.truth.side is Side.LEFT)
        if demo.truth.longitudinal is Longitudinal.PASS:
            assert v[-1] > v[0]
        if demo.truth.longitudinal_cause is Cause.RED_LIGHT:
            assert v.min() < v[0] or v[0] < 0.1


def test_traces_are_of_the_grammar(clean):
    for demo in clean:
        assert parse(str(demo.trace)) == demo.trace == demo.truth
        assert demo.flaws == ()


def test_controls_lead_to_the_states(clean):
    from outdo.driving.dynamics import feasible, rollout

    control = np.stack([demo.control for demo in clean])
    states = np.stack([demo.states for demo in clean])
    assert feasible(control).all()
    np.testing.assert_allclose(rollout(states[:, 0], control), states, atol=1e-6)
    assert (states[:, :, 3] >= -1e-9).all()


def test_the_flawless_expert_is_mostly_comfortable(clean):
    states, control = (np.stack([getattr(demo, name) for demo in clean]) for name in ("states", "control"))
    assert comfort.comfortable(states, control).mean() > 0.6


def rates(scenes, driver):
    record, _ = run(scenes, [driver] * len(scenes))
    found = [measure(s, record.state[n], record.valid[n], record.size[n]) for n, s in enumerate(scenes)]
    return np.mean([m.close.any() for m in found]), np.mean([m.contact.any() for m in found])


def test_flawed_drivers_have_more_close_encounters(scenes):
    # of 60 scenes; the flawless expert's share is the control that must stay low
    close, contact = rates(scenes, Driver())
    assert close < 0.15
    assert contact < 0.05
    late, _ = rates(scenes, Driver(notice=4.0))
    near, _ = rates(scenes, Driver(headway=0.4, gap=0.8, clearance=0.2, margin=0.2))
    assert late > close + 0.15
    assert near > close + 0.05


def test_flaws_come_at_their_rates(scenes):
    flaws = Flaws(late_braking=0.3, small_gaps=0.2, wrong_reason=0.25, missing_reason=0.1)
    demos = [demo for seed in range(5) for demo in demonstrate(scenes, seed, flaws=flaws)]
    count = Counter(flaw for demo in demos for flaw in demo.flaws)
    # 300 draws: standard deviation at most √(0.25/300) = 0.029; three of them
    for name in ("late_braking", "small_gaps", "wrong_reason", "missing_reason"):
        assert count[name] / len(demos) == pytest.approx(getattr(flaws, name), abs=0.087)
    for demo in demos:
        assert ("wrong_reason" in demo.flaws or "missing_reason" in demo.flaws) == (demo.trace != demo.truth)
        if "missing_reason" in demo.flaws:
            assert demo.trace.longitudinal_cause is demo.trace.lateral_cause is None


def test_shares_are_checked():
    with pytest.raises(ValueError, match=r"late_braking = 1.5 must be a share"):
        Flaws(late_braking=1.5)
