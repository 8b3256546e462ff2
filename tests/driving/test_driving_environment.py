"""Batches of driving answers and of demonstrations: by hand, with every fault, and the same after a restart."""

from __future__ import annotations

import json
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fake_driver import FakeDriver
from judge import said, serving
from roads import HORIZON, NOW, box, moving, road

from outdo.core.protocols import Environment
from outdo.core.rewards import NoSignalWarning, RewardError, RewardTerm
from outdo.driving.build import rollouts
from outdo.driving.demonstrations import Examples, collect_examples, stacked
from outdo.driving.encoder import SceneObs
from outdo.driving.environment import DrivingDemonstrations, DrivingEnvironment, DrivingSettings
from outdo.driving.expert import Demonstration
from outdo.driving.generator import generate
from outdo.driving.outcomes import Reference
from outdo.driving.reasoning import parse
from outdo.driving.rewards import TERMS, terms
from outdo.driving.selection import divergence
from outdo.driving.simulator import Simulator
from outdo.driving.tokens import END, FULL, SHORT, TRAJECTORY, Vocabulary

pytestmark = pytest.mark.filterwarnings("ignore::outdo.core.rewards.NoSignalWarning")

KEEP, STOP = parse("track set speed; keep lane."), parse("stop because red light; keep lane.")
SPEEDS = (6.0, 8.0, 10.0, 12.0)


def examples(*scenes):
    """Straight drives at constant speed as demonstrations and references."""
    scenes = scenes or tuple(road(moving(0, 0, v), scene=f"at {v:g}") for v in SPEEDS)
    cut = slice(NOW, NOW + HORIZON + 1)
    states = [scene.state[0, cut] for scene in scenes]
    shown = [
        Demonstration(scene, path, np.zeros((HORIZON, 2)), KEEP, KEEP, ("late_braking",) * (n == 0))
        for n, (scene, path) in enumerate(zip(scenes, states, strict=True))
    ]
    seen = stacked([Simulator([scene]).observe() for scene in scenes])
    return Examples(seen, tuple(shown), tuple(Reference(path, KEEP) for path in states))


def speed_of(seen, n):
    return float(seen.agents[n, 0, -1, 3])


def written(policy, seen, n, trace=KEEP, a=0.0, kappa=0.0):
    control = np.tile([a, kappa], (1, HORIZON, 1))
    return policy.vocabulary.write(
        trace, policy.vocabulary.code.encode(np.array([speed_of(seen, n)]), control)[0]
    )


def by_copy(policy, seen, n, key):
    """Copy 0 keeps its speed, copy 1 brakes by 0.4 m/s², …"""
    return written(policy, seen, n, a=-0.4 * key[-1])


def environment(weights=None, found=None, **settings):
    settings = {"scenes": 3, "group": 2, "seed": 5, **settings}
    return DrivingEnvironment(found or examples(), terms(weights), DrivingSettings(**settings))


def test_a_batch_by_hand():
    policy, made = FakeDriver(by_copy), environment({"l2": 2.0})
    batch = made.collect(policy, 0)
    assert isinstance(made, Environment)
    ((seen, copies, sampling, streams),) = policy.calls
    assert (copies, sampling.temperature, sampling.max_tokens) == (2, 1.0, Vocabulary().longest)
    assert len({stream[0] for stream in streams}) == 1
    assert [stream[1] for stream in streams] == [0, 1, 2]
    # 3 scenes × 2 answers of 5 + 1 + 16 + 1 tokens; the reward sits on the end token, which stops the answer
    words = len(KEEP.__str__().replace(";", " ;").replace(".", " .").split())
    length = words + 1 + 16 + 1
    assert batch.logp.shape == (6, length)
    assert batch.group.tolist() == [0, 0, 1, 1, 2, 2]
    assert batch.obs.prompts == tuple((policy.vocabulary.size + n,) for n in (0, 0, 1, 1, 2, 2))
    assert isinstance(batch.obs, SceneObs)
    assert batch.obs.seen is seen
    assert (batch.action[:, -1] == END).all()
    assert (batch.action[:, words] == TRAJECTORY).all()
    assert batch.discount[:, -1].eq(0).all()
    assert batch.discount[:, :-1].eq(1).all()
    assert batch.cut[:, -1].all()
    torch.testing.assert_close(batch.logp[0], -0.1 * torch.arange(1, length + 1, dtype=torch.float32))
    # keeping the speed is the reference: 0. Braking by 0.4 m/s² falls 0.2·t² behind: mean over t = 0.1 … 6.4 s
    behind = float(np.mean(0.2 * (0.1 * np.arange(1, 65)) ** 2))
    rewards = [0.0, -2 * behind / (behind + 2.0)] * 3
    assert batch.reward[:, -1].tolist() == pytest.approx(rewards, abs=1e-6)
    assert batch.reward[:, :-1].eq(0).all()
    assert batch.value is None
    metrics = made.metrics()
    assert metrics["reward"] == pytest.approx(np.mean(rewards))
    assert metrics["reward/l2"] == pytest.approx(behind / (behind + 2.0) / 2)
    assert set(metrics) >= {f"reward/{name}" for name in TERMS}  # every raw term, also those that are off
    assert metrics["generated_tokens"] == 6 * length
    assert metrics["groups_without_signal"] == metrics["malformed"] == metrics["truncated"] == 0


def test_every_occurrence_of_a_scene_has_its_own_group_and_stream():
    policy, made = FakeDriver(by_copy), environment({"l2": 1.0})
    batches = [made.collect(policy, step) for step in range(2)]  # 6 of 4 scenes
    assert [[stream[1] for stream in call[3]] for call in policy.calls] == [[0, 1, 2], [3, 4, 5]]
    assert [batch.group.tolist() for batch in batches] == [[0, 0, 1, 1, 2, 2], [3, 3, 4, 4, 5, 5]]


def test_rows_can_be_read():
    batch = environment({"l2": 1.0}).collect(FakeDriver(by_copy), 0)
    first, second = batch.info[0], batch.info[1]
    assert first["scene"].startswith("at ")
    assert first["text"] == first["expert"] == str(KEEP)
    assert first["actions"] == "maintain speed 0.0–6.4 s\ngo straight 0.0–6.4 s"
    assert "gentle deceleration" in second["actions"]
    assert first["terms"]["consistency"] == 1.0
    assert (first["chosen"], first["faults"], first["scene_fault"]) == ("random", [], None)
    json.dumps(batch.info)


FAULTY = {
    "empty": lambda v, ids: [END],
    "no trajectory": lambda v, ids: [*ids[: ids.index(TRAJECTORY)], END],
    "truncated": lambda v, ids: [*ids[:-2], END],
    "surplus tokens": lambda v, ids: [*ids[:-1], ids[-2], END],
    "misplaced token": lambda v, ids: [*ids[:-2], ids[-3], END],
    "unparseable reasoning": lambda v, ids: [ids[1], *ids],
}


@pytest.mark.parametrize("kind", FAULTY)
def test_a_malformed_answer_earns_the_floor_and_is_counted(kind):
    def answer(policy, seen, n, key):
        ids = written(policy, seen, n)
        return FAULTY[kind](policy.vocabulary, ids) if key[-1] == 1 else ids

    for reactive in (False, True):
        made = environment(None, scenes=2, reactive=reactive)
        batch = made.collect(FakeDriver(answer), 0)
        floor = sum(
            term.weight * (term.low if term.better == "higher" else -term.high) for term in TERMS.values()
        )
        last = batch.reward[torch.arange(4), batch.lengths - 1]
        assert last[1::2].tolist() == pytest.approx([floor, floor])
        assert last[0] > last[1] + 4
        assert batch.info[1]["faults"][0].startswith(kind)
        assert batch.info[1]["actions"] is None
        assert made.metrics()["malformed"] == 0.5
        assert made.metrics()[f"fault/{kind}"] == 2


def test_an_answer_that_ran_out_of_tokens_is_truncated_and_earns_the_floor():
    made = environment({"l2": 1.0}, scenes=1, max_tokens=10)
    batch = made.collect(FakeDriver(by_copy), 0)
    assert batch.logp.shape == (2, 10)
    assert batch.discount[:, -1].eq(1).all()  # not an end that the policy chose
    assert batch.cut[:, -1].all()
    assert batch.reward[:, -1].tolist() == [-1.0, -1.0]
    assert made.metrics()["truncated"] == 1
    assert made.metrics()["fault/truncated"] == 2
    assert made.metrics()["groups_without_signal"] == 1


@pytest.mark.parametrize("name", TERMS)
def test_each_term_alone(name):
    # copy 0: as the expert; copy 1: malformed, the worst of each term
    def answer(policy, seen, n, key):
        return written(policy, seen, n) if key[-1] == 0 else [END]

    batch = environment({name: 0.5}, scenes=1).collect(FakeDriver(answer), 0)
    term = TERMS[name]
    best, worst = (term.high, term.low) if term.better == "higher" else (term.low, term.high)
    sign = 1 if term.better == "higher" else -1
    # best but for jerk, of which a drive at constant speed has none, up to the smoothing's last bits
    assert batch.info[0]["reward"] == pytest.approx(sign * 0.5 * best, abs=1e-6)
    assert batch.info[1]["reward"] == pytest.approx(sign * 0.5 * worst)
    assert batch.info[0]["terms"][name] == pytest.approx(best, abs=1e-6)


def test_values_of_a_critic_are_those_of_the_right_scene():
    policy = FakeDriver(by_copy, has_critic=True)
    batch = environment({"l2": 1.0}, scenes=2).collect(policy, 0)
    length = batch.logp.shape[1]
    for row, scene in enumerate((0, 0, 1, 1)):
        value = 10.0 * scene + torch.arange(length)
        assert torch.equal(batch.value[row], value)
        assert torch.equal(batch.next_value[row], torch.cat([value[1:], torch.zeros(1)]))
    cut = environment({"l2": 1.0}, scenes=1, max_tokens=3).collect(policy, 0)
    assert cut.next_value[:, -1].tolist() == [99.0, 99.0]


def test_selected_rows_still_name_their_scenes():
    batch = environment({"l2": 1.0}).collect(FakeDriver(by_copy), 0)
    rows = batch.select(torch.tensor([5, 2]))
    assert rows.obs.prompts == (batch.obs.prompts[5], batch.obs.prompts[2])
    assert rows.obs.seen is batch.obs.seen
    assert [info["scene"] for info in rows.info] == [batch.info[5]["scene"], batch.info[2]["scene"]]


def test_scenes_of_a_batch_are_those_that_are_seen():
    policy = FakeDriver(by_copy)
    batch = environment({"l2": 1.0}, scenes=4).collect(policy, 0)
    seen = policy.calls[0][0]
    speeds = [float(info["scene"].removeprefix("at ")) for info in batch.info]
    assert sorted(speeds[::2]) == list(SPEEDS)
    assert speeds == [speed_of(seen, prompt[0] - policy.vocabulary.size) for prompt in batch.obs.prompts]


def test_half_of_the_scenes_are_chosen_by_disagreement_at_no_cost():
    def answer(policy, seen, n, key):
        """The faster the scene, the more the copies differ."""
        return written(policy, seen, n, a=-0.04 * key[-1] * speed_of(seen, n))

    settings = {"choose": "disagreement", "scenes": 2, "candidates": 4, "group": 3}
    made, other = environment({"l2": 1.0}, **settings), environment({"l2": 1.0}, **settings, share=0.0)
    policy, plain = FakeDriver(answer), FakeDriver(answer)
    batches = [made.collect(policy, step) for step in range(4)]
    chosen = [[info["scene"] for info in batch.info[::3]] for batch in batches]
    assert [info["chosen"] for info in batches[0].info] == ["random"] * 6
    # half of the second batch is the scene of the first with the larger divergence, which is the faster
    assert [info["chosen"] for info in batches[1].info] == ["disagreement"] * 3 + ["random"] * 3
    assert chosen[1][0] == max(chosen[0], key=lambda name: float(name.removeprefix("at ")))
    known = {*chosen[0], *chosen[1], *chosen[2]}
    assert chosen[3][0] == max(known, key=lambda name: float(name.removeprefix("at ")))
    # as many answers are generated as by random choice
    for step in range(4):
        other.collect(plain, step)
    assert [len(call[3]) for call in policy.calls] == [len(call[3]) for call in plain.calls]
    metrics = made.metrics()
    assert metrics["disagreement/scenes"] == metrics["random/scenes"] == 1
    halves = metrics["disagreement/generated_tokens"], metrics["random/generated_tokens"]
    assert sum(halves) == metrics["generated_tokens"]
    # the divergence that is reported is that of the group
    rows = [info for info in batches[3].info if info["chosen"] == "disagreement"]
    lengths = batches[3].lengths[:3].tolist()
    logp = batches[3].logp[:3].sum(1).tolist()
    expected = divergence(logp, lengths, [row["reward"] for row in rows])
    assert metrics["disagreement/divergence"] == pytest.approx(expected)
    assert metrics["disagreement/reward"] == pytest.approx(np.mean([row["reward"] for row in rows]))


def same(one, other):
    assert one.obs.prompts == other.obs.prompts
    for name in ("action", "logp", "reward", "group", "valid"):
        assert torch.equal(getattr(one, name), getattr(other, name)), name
    assert one.info == other.info


def test_states_that_the_policy_drives_to_are_answered_and_scored_there():
    long = [road(moving(0, 0, v, steps=NOW + 1 + 2 * HORIZON), scene=f"at {v:g}") for v in SPEEDS]
    policy = FakeDriver(by_copy)  # the driven plan is copy 0: at constant speed
    made = environment({"lag": 1.0}, examples(*long), scenes=4, visited=0.5)
    batch = made.collect(policy, 0)
    assert [info["chosen"] for info in batch.info] == ["random"] * 4 + ["visited"] * 4
    assert (made.metrics()["random/scenes"], made.metrics()["visited/scenes"]) == (2, 2)
    seen, copies, sampling, streams = policy.calls[-1]
    assert (copies, sampling.temperature) == (2, 1.0)
    assert [stream[1] for stream in streams] == [0, 1, 2, 3]
    speeds = [speed_of(seen, prompt[0] - policy.vocabulary.size) for prompt in batch.obs.prompts]
    assert speeds == [float(info["scene"].removeprefix("at ")) for info in batch.info]
    # the expert would go on to the limit of 15 m/s from there; its drive is what the answers lag behind
    assert all(info["terms"]["lag"] > 0.05 for info in batch.info[4:])
    assert all(info["terms"]["lag"] == 0 for info in batch.info[:4:2])
    # what the policy makes of where it got to is no measure of the example's own state
    measured = environment({"lag": 1.0}, examples(*long), scenes=4, visited=0.5, choose="disagreement")
    measured.collect(FakeDriver(by_copy), 0)
    assert len(measured.state_dict()["choice"]["table"]) == 2
    driven = policy.calls[:-1]
    assert all(call[2].temperature == 0 and len(call[3]) == 2 for call in driven)
    assert {call[3][0][0] for call in driven}.isdisjoint({streams[0][0]})


def test_scenes_in_which_nothing_can_be_visited_are_answered_as_they_are():
    made, plain = environment(visited=1.0), environment()  # logs that leave no time for a second plan
    one, other = made.collect(FakeDriver(by_copy), 0), plain.collect(FakeDriver(by_copy), 0)
    same(one, other)
    assert made.metrics()["visited/scenes"] == 0


@pytest.mark.parametrize("settings", [{}, {"choose": "disagreement"}, {"visited": 0.5}])
def test_a_restored_environment_goes_on_as_if_nothing_had_been(settings):
    found = examples(*(road(moving(0, 0, v, steps=NOW + 1 + 2 * HORIZON), scene=f"at {v:g}") for v in SPEEDS))

    def chancy(policy, seen, n, key):
        rng = np.random.default_rng(key)
        return written(policy, seen, n, a=rng.uniform(-1, 0.5), kappa=rng.uniform(-0.005, 0.005))

    whole = environment(found=found, **settings)
    batches = [whole.collect(FakeDriver(chancy), step) for step in range(6)]
    first = environment(found=found, **settings)
    for step in range(3):
        same(first.collect(FakeDriver(chancy), step), batches[step])
    second = environment(found=found, **settings)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    for step in range(3, 6):
        same(second.collect(FakeDriver(chancy), step), batches[step])


def test_answers_that_cannot_be_judged_are_left_out():
    def judged(outcomes):
        return [1.0 if o.path is not None and o.path[-1, 3] > 5 else float("nan") for o in outcomes]

    def answer(policy, seen, n, key):
        """Scene 0: one of three can be judged; scene 1: two of three."""
        return written(policy, seen, n, a=-1.5 if key[-1] > n % 2 else 0.0)

    term = RewardTerm("judge", judged, on_error="skip")
    made = DrivingEnvironment(examples(), [term], DrivingSettings(scenes=2, group=3, seed=5))
    batch = made.collect(FakeDriver(answer), 0)
    assert batch.group.tolist() == [1, 1]
    assert batch.obs.prompts[0][0] == Vocabulary().size + 1
    assert made.metrics()["unscored"] == 3
    assert made.metrics()["groups_dropped"] == 1
    hopeless = RewardTerm("judge", lambda outcomes: [None for _ in outcomes])
    with pytest.raises(RewardError, match="step 3: none of 6 answers could be scored"):
        DrivingEnvironment(examples(), [hopeless], DrivingSettings(scenes=2, group=3)).collect(
            FakeDriver(answer), 3
        )


def test_a_judge_is_asked_about_every_well_formed_answer(monkeypatch):
    def answer(policy, seen, n, key):
        return [END] if key[-1] == 0 else written(policy, seen, n, (KEEP, KEEP, STOP)[key[-1]])

    def grade(body):
        text = body["messages"][1]["content"]
        return (500, b"overloaded", 0) if "Reasoning: stop" in text else (200, said("Score: 3"), 0)

    monkeypatch.setenv("JUDGE_KEY", "secret")
    with serving() as server:
        server.answer = grade
        judge = {"base_url": server.url, "model": "judge", "key_variable": "JUDGE_KEY"}
        made = rollouts(
            SimpleNamespace(examples=examples()),
            {"quality": 0.5},
            {**judge, "seconds": 20.0, "parallel": 4},
            seed=5,
            scenes=2,
            group=3,
        )
        batch = made.collect(FakeDriver(answer), 0)
        asked = [(headers["Authorization"], body["model"]) for _, headers, body in server.requests]
    assert asked == [("Bearer secret", "judge")] * 4
    last = batch.reward[torch.arange(len(batch)), batch.lengths - 1]
    assert last.tolist() == [
        0.0,
        1.5,
        0.0,
        1.5,
    ]  # malformed: the floor, never sent; graded 3; not graded: left out
    assert made.metrics()["unscored"] == 2
    assert made.metrics()["reward/quality"] == 1.5


def test_a_scene_that_is_at_fault_itself_is_judged_without_contacts_and_counted():
    lost = road(moving(0, 0, 10), scene="lost", drivable=(box(500, 500, 510, 510),))
    made = environment(None, examples(lost, road(moving(0, 0, 10))), scenes=2)
    batch = made.collect(FakeDriver(by_copy), 0)
    rows = {info["scene"]: info for info in batch.info[::2]}
    assert "off the road at the first step" in rows["lost"]["scene_fault"]
    assert rows["lost"]["terms"]["off_road"] is None
    assert rows["lost"]["reward"] == pytest.approx(rows["straight"]["reward"])
    assert made.metrics()["scene_faults"] == 1


def test_no_signal_is_said():
    with pytest.warns(NoSignalWarning):
        environment({"l2": 1.0}, scenes=1).collect(
            FakeDriver(lambda policy, seen, n, key: written(policy, seen, n)), 0
        )


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"scenes": 0}, "scenes must be at least 1"),
        ({"group": 0}, "group must be at least 1"),
        ({"temperature": 0.0}, "temperature must be positive"),
        ({"choose": "hardest"}, "choose must be 'random' or 'disagreement'"),
        ({"choose": "disagreement", "share": 2.0}, "share must be"),
    ],
)
def test_settings_that_cannot_be(settings, message):
    with pytest.raises(ValueError, match=message):
        environment(**settings)


def test_a_reward_of_nothing_is_refused():
    with pytest.raises(ValueError, match="at least one reward term with a weight"):
        environment({})
    with pytest.raises(ValueError, match="batch must be at least 1"):
        DrivingDemonstrations(examples(), batch=0)


# --- demonstrations ---


@pytest.mark.parametrize("code", [SHORT, FULL])
def test_demonstrations_by_hand(code):
    policy, made = FakeDriver(None, Vocabulary(code)), DrivingDemonstrations(examples(), batch=3, seed=1)
    batch = made.collect(policy, 0)
    assert isinstance(made, Environment)
    assert batch.group.tolist() == [0, 1, 2]
    assert batch.logp.eq(0).all()
    assert batch.reward.eq(0).all()
    for row, info in enumerate(batch.info):
        answer = policy.vocabulary.read(batch.action[row, : batch.lengths[row]].tolist())
        assert answer.faults == ()
        assert str(answer.trace) == info["text"] == str(KEEP)
        assert np.abs(answer.control).max() < 1e-9  # constant speed, straight on
        at = batch.obs.prompts[row][0] - policy.vocabulary.size
        assert info["scene"] == f"at {speed_of(batch.obs.seen, at):g}"
        assert info["flaws"] == (["late_braking"] if info["scene"] == "at 6" else [])
    assert made.metrics()["length"] == batch.lengths.float().mean()
    assert made.metrics()["flawed"] == pytest.approx(np.mean([bool(info["flaws"]) for info in batch.info]))


def test_demonstrations_go_through_all_scenes_and_on_after_a_restart():
    policy, made = FakeDriver(None), DrivingDemonstrations(examples(), batch=2, seed=1)
    batches = [made.collect(policy, step) for step in range(4)]
    names = [info["scene"] for batch in batches for info in batch.info]
    assert sorted(names[:4]) == sorted(names[4:]) == sorted(f"at {v:g}" for v in SPEEDS)
    other = DrivingDemonstrations(examples(), batch=2, seed=1)
    other.collect(policy, 0)
    again = DrivingDemonstrations(examples(), batch=2, seed=1)
    again.load_state_dict(json.loads(json.dumps(other.state_dict())))
    for step in range(1, 4):
        same(again.collect(policy, step), batches[step])


def test_what_the_expert_shows_in_generated_scenes_is_well_formed():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = collect_examples(generate("train", 10, seed=2), seed=0)
        assert found is not None
        policy = FakeDriver(None)
        batch = DrivingDemonstrations(found, batch=len(found)).collect(policy, 0)
    for row in range(len(batch)):
        answer = policy.vocabulary.read(batch.action[row, : batch.lengths[row]].tolist())
        assert answer.faults == ()
