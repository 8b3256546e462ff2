"""Where scenes come from: names, files, later moments; real logs through the evaluation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from roads import light, moving, road

from outdo.driving.evaluation import ClosedLoop
from outdo.driving.expert import NO_FLAWS, Flaws, run
from outdo.driving.generator import generate
from outdo.driving.kernels import project
from outdo.driving.measures import measure
from outdo.driving.packing import arc_length
from outdo.driving.scene import HISTORY, HORIZON, Light, SceneError
from outdo.driving.scenes import choose_scene, completed, disturbed, later, of_files, scenes_of
from outdo.driving.simulator import drive
from outdo.driving.situations import SITUATIONS

DATA = Path(__file__).parents[2].parent / "shared" / "data"


def same(one, two):
    np.testing.assert_array_equal(one.state, two.state)
    np.testing.assert_array_equal(one.route, two.route)
    return one.id == two.id and one.situation == two.situation and one.now == two.now


def test_a_scene_is_found_by_the_name_it_was_given():
    for scene in generate("validation", 12, seed=3)[9:]:
        assert same(choose_scene(scene.id), scene)
    assert same(choose_scene("test-0-1-cut-in"), scenes_of("test", 2)[1])


@pytest.mark.parametrize("name", ["cut-in", "crossing pedestrian", "road-works"])
def test_a_situation_alone_is_its_first_test_scene(name):
    scene = choose_scene(name)
    first = next(
        s for s in generate("test", len(SITUATIONS)) if s.situation == name.replace("road-", "road ")
    )
    assert same(scene, first)


@pytest.mark.parametrize("text", ["cut-ni", "testing-0-1-cut-in", "test-0-cut-in", ""])
def test_an_unknown_scene_lists_what_there_is(text):
    with pytest.raises(
        ValueError, match=r"no scene is called .*test-0-12-cut-in.*merge.*CommonRoad"
    ) as error:
        choose_scene(text)
    assert all(name.replace(" ", "-") in str(error.value) for name in SITUATIONS)


def test_files_that_are_no_scenes(tmp_path):
    with pytest.raises(SceneError, match=r"no CommonRoad \.xml file and no folder"):
        choose_scene(str(tmp_path))
    with pytest.raises(SceneError, match=r"missing\.xml: cannot be read"):
        choose_scene(str(tmp_path / "missing.xml"))
    for name in "ab":
        (tmp_path / f"{name}.xml").write_text("<commonRoad/>")
    with pytest.raises(SceneError, match=r"holds 2 scenes, name one of them: a\.xml"):
        choose_scene(str(tmp_path))
    with pytest.raises(SceneError, match=r"a\.xml: "):
        of_files([tmp_path])


def test_later_moments_leave_a_trajectory_and_change_nothing_else():
    scenes = generate("train", 10, future=128)
    rng = np.random.default_rng(0)
    moved = [scene for _ in range(20) for scene in later(scenes, rng)]
    starts = {scene.now for scene in moved}
    # 200 draws of 65 steps, 15 to 79: all ends of that range are near
    assert min(starts) >= HISTORY - 1
    assert max(starts) <= HISTORY - 1 + 64
    assert min(starts) < 20
    assert max(starts) > 74
    assert all(scene.future >= HORIZON for scene in moved)
    assert same(replace(moved[3], now=15), scenes[3])
    again = later(scenes, np.random.default_rng(0))
    assert [scene.now for scene in again] == [scene.now for scene in moved[:10]]


def test_the_log_is_driven_again_from_a_later_moment():
    # replayed controls are not needed: the flawless expert from a state of its own drive keeps near to that drive
    scenes = [replace(scene, now=50) for scene in generate("train", 10, future=128)]
    record, _ = run(scenes)
    log = np.stack([scene.state[0, 50 : 50 + HORIZON + 1, :2] for scene in scenes])
    apart = np.linalg.norm(record.state[:, :, 0, :2] - log, axis=-1).max(1)
    assert np.median(apart) < 1.0


def test_later_moments_are_those_at_which_the_ego_is_there():
    valid = np.ones((1, 100), np.bool_)
    valid[0, 20:30] = False
    scene = road(moving(0, 0, 10, steps=100), valid=valid)
    rng = np.random.default_rng(0)
    starts = {later([scene], rng)[0].now for _ in range(300)}
    assert starts == {*range(15, 20), *range(30, 36)}
    with pytest.raises(SceneError, match="no 64 steps after now"):
        later([road(moving(0, 0, 10, steps=70))], rng)


def test_disturbed_drives_scatter_about_the_expert_and_stop_before_trouble():
    scenes = generate("train", 60, future=128)
    driven = disturbed(scenes, np.random.default_rng(0), NO_FLAWS)
    again = disturbed(scenes, np.random.default_rng(0), NO_FLAWS)
    assert all(same(one, two) for one, two in zip(driven, again, strict=True))
    aside, cut = [], 0
    for scene, other in zip(scenes, driven, strict=True):
        assert (other.now, other.steps) == (scene.now, scene.steps)
        np.testing.assert_array_equal(other.state[:, :15], scene.state[:, :15])  # what was observed stays
        there = other.valid[0]
        cut += not there.all()
        assert there[: 15 + 1].all()
        last = int(np.flatnonzero(there)[-1])
        found = measure(
            other,
            other.state[:, 15 : last + 1].transpose(1, 0, 2).copy(),
            other.valid[:, 15 : last + 1].T.copy(),
            other.size,
        )
        assert not found.contact.any()
        assert not found.off_road[1:].any()
        length = arc_length(scene.route)
        log, own = (project(scene.route, length, *one.state[0, 40, :2])[1] for one in (scene, other))
        aside.append(own - log)
    assert 0.02 < np.std(aside) < 0.6  # m off the expert's own line after 2.5 s
    assert cut < 20


def test_flawed_drivers_get_into_trouble_more_often():
    scenes = generate("train", 40, situations=["lead braking"], future=128)
    troubles = []
    for flaws in (NO_FLAWS, Flaws(late_braking=1.0, small_gaps=1.0)):
        driven = disturbed(scenes, np.random.default_rng(0), flaws)
        troubles.append(sum(not scene.valid[0].all() for scene in driven))
    assert troubles[1] > troubles[0]


def test_a_short_log_is_continued_by_the_expert_without_the_others():
    signal = light(50, Light.RED)
    valid = np.ones((2, 80), np.bool_)
    valid[0, 16:] = False  # the ego is seen up to now only, as in a planning problem
    scene = road(moving(0, 0, 10), moving(40, 3.5, 8), valid=valid, signals=(signal,))
    cut = replace(
        scene,
        state=scene.state[:, :50].copy(),
        valid=scene.valid[:, :50].copy(),
        signals=(replace(signal, states=signal.states[:50]),),
    )
    whole = completed(cut)
    assert whole.future == HORIZON
    assert whole.valid[0, 15:].all()
    assert whole.valid[1].tolist() == [True] * 50 + [False] * 30
    assert (whole.signals[0].states == Light.RED).all()
    np.testing.assert_array_equal(whole.state[:, :16], cut.state[:, :16])
    # the expert stops before the red light at 50 m, with 2 m of ego ahead of its centre
    assert 40 < whole.state[0, -1, 0] < 48
    assert completed(scene_with_log := road(moving(0, 0, 10))) is scene_with_log
    drive([whole], lambda s: np.zeros((1, 5, 2)))


def shared(name: str) -> Path:
    if not (path := DATA / name).exists():
        pytest.skip("no shared/data beside the repository")
    pytest.importorskip("pyarrow.feather", reason="needs the extra driving")
    return path


def test_human_logs_score_near_the_top():
    """Windows of three human logs; two of them hold one hard start or stop, which the acceleration itself shows."""
    windows = []
    for scene in of_files([shared("argoverse2")]):
        windows += [replace(scene, now=now) for now in range(15, scene.steps - HORIZON, 10)]
    assert len(windows) >= 15
    rows = ClosedLoop(windows).log_figures().metrics
    for name in ("collision", "at_fault", "off_road", "faulty", "l2"):
        assert rows[f"drive/{name}"] == 0, name
    for name in ("nc", "dac", "ddc", "tlc", "epdms", "alpasim"):
        assert rows[f"drive/{name}"] == 1, name
    assert rows["drive/pdms"] > 0.8
    hard = []
    for scene in windows:
        ego = scene.state[0, scene.now : scene.now + HORIZON + 1]
        metres = np.hypot(*np.diff(ego[:, :2], axis=0).T)
        gained = (metres[15:] - metres[5:-10]) / 0.1  # m/s over one second, from positions alone
        hard.append(gained.max() > 2.1 or gained.min() < -3.5)
    assert rows["drive/uncomfortable"] == pytest.approx(np.mean(hard), abs=0.15)
    assert np.mean(hard) < 0.7


def test_real_scenes_of_both_kinds_are_driven():
    pytest.importorskip("commonroad", reason="needs the extra commonroad")
    scenes = of_files([shared("argoverse2"), shared("commonroad")])
    assert len(scenes) == 7
    assert all(scene.future >= HORIZON and scene.valid[0, scene.now :].all() for scene in scenes)
    expert = ClosedLoop(scenes).expert_figures().metrics
    assert expert["drive/at_fault"] == 0
    assert expert["drive/off_road"] == 0
    assert expert["drive/ep"] > 0.9
    assert expert["plan/ade"] == pytest.approx(0, abs=1e-9)
    assert len(scenes_of("test", 3, files=[DATA / "commonroad"])) == 3
