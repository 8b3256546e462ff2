"""Evaluation: how many episodes each environment plays is fixed beforehand; the policy and its statistics rest."""

from __future__ import annotations

import numpy as np
import pytest
from stand_in import Coin, Memory, Table, scripted

from outdo.control.environment import ControlEnvironment, WindowSettings
from outdo.control.evaluation import Episode, Returns, Video, figures, play
from outdo.control.vector import VectorError, make_single, make_vector

MODES = ["NextStep", "SameStep"]
# One environment whose episodes are short and bad, one whose episodes are long and good.
BAD = [(1, [(2, -1, "terminated")])]
GOOD = [(3, [(4, 1, "on")] * 9 + [(5, 1, "truncated")])]


@pytest.mark.parametrize("mode", MODES)
def test_every_environment_plays_its_share_to_the_end(mode):
    """4 episodes of 2 environments: 2 of each, mean (2·(−1) + 2·10)/4 = 4.5. The first 4 to finish are all short."""
    played = play(scripted(mode, BAD, GOOD), Table(), 4, seed=0, deterministic=True)
    assert [(e.value, e.length, e.end) for e in played] == [
        (-1, 1, "terminated"),
        (-1, 1, "terminated"),
        (10, 10, "truncated"),
        (10, 10, "truncated"),
    ]
    assert figures(played)["return"] == 4.5
    assert figures(played)["truncated"] == 0.5
    assert figures(played)["length"] == 5.5


@pytest.mark.parametrize("episodes", [1, 2, 3, 5])
def test_shares_add_up(episodes):
    """5 episodes of 2 environments: 3 and 2."""
    played = play(scripted("NextStep", BAD, GOOD), Table(), episodes, seed=0, deterministic=True)
    assert len(played) == episodes
    assert sum(e.value == -1 for e in played) == (episodes + 1) // 2


def test_the_interval_by_hand():
    """Returns 1, 2, 3: m = 2, s = 1, t(ν=2) = 4.30 to 4 %: 2 ± 2.48."""
    found = figures([Episode(float(x), 1, "terminated") for x in (1, 2, 3)])
    assert found["return"] == 2
    assert found["return/std"] == 1
    assert found["return/high"] - 2 == pytest.approx(4.3027 / np.sqrt(3), rel=0.04)
    assert found["return/low"] + found["return/high"] == pytest.approx(4)


@pytest.mark.parametrize("mode", MODES)
def test_a_memory_is_reset_between_evaluation_episodes(mode):
    seen = []

    class Watch(Memory):
        def act(self, obs, state, first, stream, **more):
            act = super().act(obs, state, first, stream, **more)
            seen.append(float(act.state[0]))
            return act

    play(scripted(mode, GOOD), Watch(), 2, seed=0, deterministic=True)
    steps = [*range(1, 11)]
    assert seen == (steps * 2 if mode == "SameStep" else [*steps, 11, *steps])


def test_the_same_policy_gives_the_same_report_and_the_training_is_not_touched():
    policy = Coin()
    training = ControlEnvironment(make_vector("CartPole-v1", 2), WindowSettings(steps=10))
    other = ControlEnvironment(make_vector("CartPole-v1", 2), WindowSettings(steps=10))
    for each in (training, other):
        each.collect(policy, 0)
    evaluator = Returns(make_vector("CartPole-v1", 4), episodes=6)
    one, two = evaluator(policy), evaluator(policy)
    assert one == two
    assert (training.collect(policy, 1).obs == other.collect(policy, 1).obs).all()
    assert set(one.metrics) == {
        f"{kind}/{name}"
        for kind in ("deterministic", "sampled")
        for name in ("return", "return/low", "return/high", "return/std", "length", "truncated")
    }


def test_deterministic_and_sampled_are_different_things():
    """Always pushing one way falls within 11 steps; a coin stands longer on average."""
    metrics = Returns(make_vector("CartPole-v1", 4), episodes=40)(Coin()).metrics
    assert metrics["deterministic/return"] < 11 < metrics["sampled/return"]
    assert metrics["deterministic/return/low"] < metrics["deterministic/return"]
    only = Returns(make_vector("CartPole-v1", 4), episodes=4, sampled=False)(Coin()).metrics
    assert not any(name.startswith("sampled") for name in only)


def test_statistics_are_frozen_and_rewards_plain():
    """The policy is asked to observe nothing and settle nothing."""
    policy = Table()
    Returns(scripted("NextStep", BAD, GOOD), episodes=2)(policy)
    assert policy.seen == []
    assert policy.settled == 0


def test_what_never_ends_is_refused():
    endless = [(1, [(2, 0, "on")] * 100)]
    with pytest.raises(VectorError, match="2 of 2 episodes had not ended after 50 steps"):
        play(scripted("NextStep", endless), Table(), 2, seed=0, deterministic=True, max_steps=50)
    env = scripted("NextStep", BAD)
    with pytest.raises(ValueError, match="at least 2 episodes"):
        Returns(env, episodes=1)
    with pytest.raises(ValueError, match="both are off"):
        Returns(env, deterministic=False, sampled=False)


def test_one_environment_is_made_of_an_id_or_a_factory():
    assert make_single("CartPole-v1", {"render_mode": "rgb_array"}).render_mode == "rgb_array"
    with pytest.raises(VectorError, match="cannot be made again"):
        make_single(scripted("NextStep", BAD), {})
    with pytest.raises(VectorError, match="CartPole"):
        make_single("CartPol-v1", {})
    with pytest.raises(VectorError, match=r"must return a gymnasium\.Env, got int"):
        make_single(lambda: 3, {})


def test_videos_of_evaluation_episodes(tmp_path):
    pytest.importorskip("moviepy")
    pytest.importorskip("pygame")
    video = Video("CartPole-v1", tmp_path / "videos", episodes=2)
    evaluator = Returns(make_vector("CartPole-v1", 2), episodes=2, sampled=False, video=video)
    first, second = evaluator(Coin()), evaluator(Coin())
    names = sorted(path.name for path in (tmp_path / "videos").iterdir())
    assert names == [
        f"evaluation-{number:04d}-episode-{episode}.mp4" for number in (0, 1) for episode in (0, 1)
    ]
    assert all((tmp_path / "videos" / name).stat().st_size > 1000 for name in names)
    assert len(first.samples[-1]["videos"]) == 2
    assert first.metrics == second.metrics


def test_missing_video_libraries_name_the_extra(monkeypatch, tmp_path):
    import outdo.control.vector as vector

    real = vector.import_module

    def import_module(name):
        if name == "moviepy":
            raise ImportError("No module named 'moviepy'")
        return real(name)

    monkeypatch.setattr(vector, "import_module", import_module)
    with pytest.raises(VectorError, match=r"outdo\[video\]"):
        Video("CartPole-v1", tmp_path)(Coin(), 0)
