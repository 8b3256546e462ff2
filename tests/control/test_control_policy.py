"""The policy: what it scores is what it sampled; statistics, memory, files."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from acting import rollout
from gymnasium import spaces

from outdo.control.policy import FARTHEST, ControlPolicy
from outdo.control.protocol import Actor
from outdo.core.protocols import Policy

BOX, DISCRETE = spaces.Box(-1, 1, (4,)), spaces.Discrete(3)
COMBINED = spaces.Dict(
    {
        "a": DISCRETE,
        "b": spaces.Tuple((spaces.Box(-2, 1, (2,)), spaces.MultiBinary(2))),
        "c": spaces.MultiDiscrete([2, 3]),
    }
)
IMAGE = spaces.Dict({"eye": spaces.Box(0, 255, (6, 6, 3), np.uint8), "speed": spaces.Box(-1, 1, (2,))})
POLICIES = {
    "mlp": (BOX, DISCRETE, {}),
    "slow": (BOX, DISCRETE, {"fast": False}),
    "combined": (COMBINED, COMBINED, {"box": "tanh", "critic": "shared"}),
    "normalised": (BOX, BOX, {"normalise": True}),
    "no critic": (BOX, BOX, {"critic": "none", "hidden": ()}),
    "cnn": (IMAGE, DISCRETE, {"kind": "cnn"}),
    "gru": (BOX, COMBINED, {"kind": "gru", "memory": 8}),
    "gru shared": (BOX, BOX, {"kind": "gru", "memory": 8, "critic": "shared"}),
}


def build(name: str, seed: int = 0) -> tuple[ControlPolicy, object]:
    observation, action, settings = POLICIES[name]
    policy = ControlPolicy(observation, action, seed=seed, **settings)
    with torch.no_grad():
        for tower in policy.network.towers:
            tower.head.weight.mul_(5)  # far enough from uniform
    return policy, observation


def test_it_is_a_policy_and_an_actor():
    assert isinstance(build("mlp")[0], Policy)
    assert isinstance(build("mlp")[0], Actor)


@pytest.mark.parametrize("name", POLICIES)
def test_what_is_scored_is_what_was_sampled(name):
    """Before an update every ratio is 1 and every value the one of the rollout."""
    policy, space = build(name)
    batch = rollout(policy, space)
    evaluation = policy.evaluate(batch)
    torch.testing.assert_close(evaluation.logp, batch.logp, rtol=1e-5, atol=1e-5)
    assert (evaluation.value is None) == (batch.value is None) == (not policy.has_critic)
    if batch.value is not None:
        torch.testing.assert_close(evaluation.value, batch.value, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["mlp", "slow", "combined", "cnn", "gru"])
def test_rows_and_junk_in_invalid_steps_change_nothing(name):
    policy, space = build(name)
    batch = rollout(policy, space)
    valid = batch.valid.clone()
    valid[1, 4:] = valid[3, 6:] = False
    batch = batch.with_(valid=valid)

    def gradient(given):
        policy.matrices.grad.zero_()
        policy.vectors.grad.zero_()
        evaluation = policy.evaluate(given, entropy=True)
        (evaluation.logp + evaluation.entropy + evaluation.value).sum().backward()
        return evaluation, torch.cat([policy.matrices.grad.flatten(), policy.vectors.grad.flatten()]).clone()

    def junk(tree):
        if isinstance(tree, dict):
            return {key: junk(value) for key, value in tree.items()}
        tree = tree.clone()
        tree[~valid] = float("nan") if tree.is_floating_point() else 1
        return tree

    clean, expected = gradient(batch)
    spoiled, got = gradient(batch.with_(obs=junk(batch.obs), action=junk(batch.action)))
    for field in ("logp", "entropy", "value"):
        values = getattr(spoiled, field)
        torch.testing.assert_close(values, getattr(clean, field))
        assert not values[~valid].any()
    torch.testing.assert_close(got, expected)
    one = policy.evaluate(batch.select(torch.tensor([2]))).logp
    torch.testing.assert_close(one, clean.logp[2:3], rtol=1e-5, atol=1e-5)


def test_a_mask_is_kept_with_the_step():
    policy, space = build("mlp")
    mask = np.array([[1, 0, 1]] * 5, np.int8)
    batch = rollout(policy, space, mask=mask, steps=40)
    assert set(batch.action.unique().tolist()) == {0, 2}
    torch.testing.assert_close(policy.evaluate(batch).logp, batch.logp, rtol=1e-5, atol=1e-5)
    # without the mask the same actions are less likely
    assert (policy.evaluate(batch.with_(obs=batch.obs["flat"])).logp < batch.logp).all()


@pytest.mark.parametrize("name", POLICIES)
def test_chance_comes_from_the_stream_alone(name):
    (one, space), (other, _) = build(name), build(name)
    first, second = rollout(one, space), rollout(other, space)
    assert torch.equal(first.action, second.action)
    assert torch.equal(first.logp, second.logp)


@pytest.mark.parametrize("name", ["mlp", "slow", "combined"])
def test_deterministic_actions_need_no_chance(name):
    policy, space = build(name)
    space.seed(0)
    from gymnasium.vector.utils import batch_space

    several = batch_space(space, 6)
    several.seed(0)
    obs, first = several.sample(), np.ones(6, bool)
    rng = np.random.default_rng(0)
    before = rng.bit_generator.state
    one = policy.act(obs, None, first, rng, deterministic=True)
    two = policy.act(obs, None, first, np.random.default_rng(9), deterministic=True)
    assert rng.bit_generator.state == before
    np.testing.assert_array_equal(one.raw, two.raw)


def test_values_are_those_of_act():
    for name in ("mlp", "slow", "gru"):
        policy, _ = build(name)
        obs, first = np.ones((3, 4), np.float32), np.zeros(3, bool)
        state = policy.initial_state(3)
        if state is not None:
            state += 0.5
        act = policy.act(obs, state, first, np.random.default_rng(0))
        np.testing.assert_allclose(policy.value(obs, state, first), act.value, rtol=1e-5, atol=1e-6)


# -- statistics -------------------------------------------------------------------------------------------------


def test_statistics_move_only_when_they_settle():
    policy, _ = build("normalised")
    obs, first, rng = np.full((2, 4), 3.0, np.float32), np.zeros(2, bool), np.random.default_rng(0)
    obs[1] = 5
    before = policy.act(obs, None, first, rng).features.copy()
    np.testing.assert_array_equal(before, obs)  # nothing settled: mean 0, variance 1
    policy.observe(obs, np.array([True, True]))
    np.testing.assert_array_equal(policy.act(obs, None, first, rng).features, before)
    policy.settle()
    # mean (3 + 5)/2 = 4, variance 1
    np.testing.assert_allclose(policy.act(obs, None, first, rng).features, [[-1] * 4, [1] * 4], rtol=1e-6)


def test_reset_rows_and_outliers():
    policy, _ = build("normalised")
    obs, first, rng = np.zeros((3, 4), np.float32), np.zeros(3, bool), np.random.default_rng(0)
    obs[1], obs[2] = 2, 1e6
    policy.observe(obs, np.array([True, True, False]))
    policy.settle()
    features = policy.act(obs, None, first, rng).features
    np.testing.assert_allclose(features, [[-1] * 4, [1] * 4, [FARTHEST] * 4], rtol=1e-6)


def test_zeros_and_ones_stay_as_they_are():
    space = spaces.Dict({"x": spaces.Box(-9, 9, (1,)), "k": spaces.Discrete(2)})
    policy = ControlPolicy(space, DISCRETE, normalise=True)
    obs = {"x": np.array([[2.0], [4.0]], np.float32), "k": np.array([1, 1])}
    policy.observe(obs, np.ones(2, bool))
    policy.settle()
    features = policy.act(obs, None, np.ones(2, bool), np.random.default_rng(0)).features
    np.testing.assert_allclose(features, [[0, 1, -1], [0, 1, 1]], rtol=1e-6)  # keys in order: k, x


# -- files ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["mlp", "normalised", "cnn", "gru"])
def test_files_hold_all_of_it(name, tmp_path):
    policy, space = build(name)
    if name == "normalised":
        obs = np.random.default_rng(0).normal(2, 3, (50, 4)).astype(np.float32)
        policy.observe(obs, np.ones(50, bool))
        policy.settle()
        policy.observe(obs + 1, np.ones(50, bool))  # pending ones too
    policy.save(tmp_path)
    other, _ = build(name, seed=1)
    other.load(tmp_path)
    for one, two in zip(policy.named_parameters(), other.named_parameters(), strict=True):
        assert one[0] == two[0]
        assert torch.equal(one[1], two[1])
    for _ in range(2):
        first, second = rollout(policy, space), rollout(other, space)
        assert torch.equal(first.logp, second.logp)
        policy.settle()
        other.settle()


def test_files_of_another_policy_are_refused(tmp_path):
    build("mlp")[0].save(tmp_path)
    with pytest.raises(ValueError, match=r"hidden = \[64, 64\], this one has \[32\]"):
        ControlPolicy(BOX, DISCRETE, hidden=(32,)).load(tmp_path)
    with pytest.raises(ValueError, match="action_space"):
        ControlPolicy(BOX, spaces.Discrete(4)).load(tmp_path)


@pytest.mark.parametrize("name", ["mlp", "slow", "gru"])
def test_a_reference_stays_behind(name):
    policy, space = build(name)
    batch = rollout(policy, space)
    reference = policy.reference()
    with torch.no_grad():
        policy.matrices.mul_(1.5)
    policy.updated()
    torch.testing.assert_close(reference.evaluate(batch).logp, batch.logp, rtol=1e-5, atol=1e-5)
    assert not reference.evaluate(batch).logp.requires_grad
    assert (policy.evaluate(batch).logp - batch.logp).abs().max() > 1e-3
    act = policy.act(
        np.ones((2, 4), np.float32), policy.initial_state(2), np.ones(2, bool), np.random.default_rng(0)
    )
    kept = reference.act(
        np.ones((2, 4), np.float32), policy.initial_state(2), np.ones(2, bool), np.random.default_rng(0)
    )
    assert not np.allclose(act.value, kept.value)


def test_micro_batches_are_a_partition():
    policy, space = build("mlp")
    batch = rollout(policy, space)  # 5 rows of 7 steps
    pieces = policy.micro_batches(batch, 15)
    assert [len(piece) for piece in pieces] == [2, 2, 1]
    assert torch.cat(pieces).tolist() == list(range(5))
    assert len(policy.micro_batches(batch, 1)) == 5


@pytest.mark.parametrize(
    ("setting", "value"), [("kind", "cnm"), ("activation", "tan"), ("critic", "seperate"), ("box", "gausian")]
)
def test_unknown_settings_name_the_nearest(setting, value):
    with pytest.raises(ValueError, match="did you mean"):
        ControlPolicy(BOX, BOX, **{setting: value})
