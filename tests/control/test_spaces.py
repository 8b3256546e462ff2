"""Encoding of observations and layout of actions, by hand on small spaces."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces
from gymnasium.vector.utils import batch_space

from outdo.control.spaces import Actions, Observations, SpaceError

COMBINED = spaces.Dict(
    {
        "a": spaces.Discrete(3, start=5),
        "b": spaces.Tuple((spaces.Box(-2, 1, (2, 1)), spaces.MultiBinary(2))),
        "c": spaces.MultiDiscrete([2, 3], start=[1, 0]),
    }
)


def test_features_of_a_combined_space():
    obs = {
        "a": np.array([5, 7]),
        "b": (np.array([[[0.5], [-1.5]], [[1.0], [-2.0]]], np.float32), np.array([[0, 1], [1, 1]], np.int8)),
        "c": np.array([[1, 2], [2, 0]]),
    }
    # one-hot of 5 - 5 = 0 and 7 - 5 = 2; two numbers; two bits; one-hots of (0, 2) and (1, 0)
    expected = [
        [1, 0, 0, 0.5, -1.5, 0, 1, 1, 0, 0, 0, 1],
        [0, 0, 1, 1.0, -2.0, 1, 1, 0, 1, 1, 0, 0],
    ]
    encoder = Observations.of(COMBINED)
    assert encoder.size == 12
    np.testing.assert_array_equal(encoder.flat(obs), np.array(expected, np.float32))
    assert np.flatnonzero(encoder.continuous).tolist() == [3, 4]


def test_every_sample_of_a_space_has_its_own_features():
    batch = batch_space(COMBINED, 64)
    batch.seed(0)
    features = Observations.of(COMBINED).flat(batch.sample())
    assert features.shape == (64, 12)
    assert features.dtype == np.float32
    # each one-hot block sums to 1
    np.testing.assert_array_equal(features[:, :3].sum(1), 1)
    np.testing.assert_array_equal(features[:, 7:9].sum(1), 1)
    np.testing.assert_array_equal(features[:, 9:].sum(1), 1)


def test_bytes_are_divided_by_255_and_are_no_continuous_feature():
    encoder = Observations.of(spaces.Box(0, 255, (2,), np.uint8))
    np.testing.assert_allclose(encoder.flat(np.array([[0, 51]], np.uint8)), [[0, 0.2]])
    assert not encoder.continuous.any()


@pytest.mark.parametrize(
    ("shape", "image"),
    [((8, 6, 3), (3, 8, 6)), ((4, 9, 9), (4, 9, 9)), ((7, 5), (1, 7, 5))],
)
def test_channels_come_first(shape, image):
    encoder = Observations.of(spaces.Box(0, 255, shape, np.uint8), image=True)
    obs = np.random.default_rng(0).integers(0, 256, (2, *shape), np.uint8)
    picture = encoder.picture(obs)
    assert encoder.image == image
    assert picture.shape == (2, *image)
    pixel = obs[1, 3, 4] if len(shape) == 2 else obs[1, 3, 4, 2] if shape[2] == 3 else obs[1, 3, 4, 5]
    where = (0, 3, 4) if len(shape) == 2 else (2, 3, 4) if shape[2] == 3 else (3, 4, 5)
    assert picture[(1, *where)] == pixel
    assert encoder.flat(obs).shape == (2, 0)


def test_an_image_beside_features():
    space = spaces.Dict({"eye": spaces.Box(0, 255, (5, 5, 3), np.uint8), "speed": spaces.Box(-1, 1, (2,))})
    encoder = Observations.of(space, image=True)
    obs = {"eye": np.ones((4, 5, 5, 3), np.uint8), "speed": np.full((4, 2), 0.25, np.float32)}
    assert encoder.picture(obs).shape == (4, 3, 5, 5)
    np.testing.assert_array_equal(encoder.flat(obs), obs["speed"])


def test_the_action_mask_is_no_observation():
    space = spaces.Dict({"board": spaces.Box(0, 1, (3,)), "action_mask": spaces.MultiBinary(7)})
    assert Observations.of(space).size == 3


def test_what_cannot_be_seen_is_refused():
    with pytest.raises(SpaceError, match="Graph"):
        Observations.of(spaces.Dict({"net": spaces.Graph(spaces.Discrete(2), None)}))
    with pytest.raises(SpaceError, match="one Box of two or three axes in the observation, found 0"):
        Observations.of(spaces.Box(0, 1, (4,)), image=True)
    with pytest.raises(SpaceError, match="uint8"):
        Actions.of(spaces.Box(0, 3, (2,), np.uint8))


def test_actions_of_a_combined_space_are_in_it():
    actions = Actions.of(COMBINED)
    # raw columns: index of a | two numbers | two bits | two indices
    raw = np.array([[2, 3.0, -0.5, 1, 0, 1, 2], [0, -9.0, 0.0, 0, 0, 0, 0]], np.float32)
    taken = actions.to_environment(raw)
    assert taken["a"].tolist() == [7, 5]
    np.testing.assert_array_equal(taken["b"][0], [[[1.0], [-0.5]], [[-2.0], [0.0]]])  # clipped to [-2, 1]
    assert taken["b"][1].tolist() == [[1, 0], [0, 0]]
    assert taken["c"].tolist() == [[2, 2], [1, 0]]
    assert batch_space(COMBINED, 2).contains(taken)


def test_the_raw_action_is_left_as_it_was_sampled():
    raw = np.array([[7.0]], np.float32)
    assert Actions.of(spaces.Box(-2, 2, (1,))).to_environment(raw)[0, 0] == 2
    assert raw[0, 0] == 7


def test_a_squashed_box_reaches_its_bounds_and_middle():
    actions = Actions.of(
        spaces.Box(np.array([-2.0, 0.0], np.float32), np.array([4.0, 1.0], np.float32)), "tanh"
    )
    raw = np.array([[0, 0], [30, 30], [-30, -30]], np.float32)
    np.testing.assert_allclose(actions.to_environment(raw), [[1, 0.5], [4, 1], [-2, 0]])
    with pytest.raises(ValueError, match="finite bounds"):
        Actions.of(spaces.Box(-np.inf, np.inf, (1,)), "tanh")


def test_masks_follow_the_space():
    actions = Actions.of(COMBINED)
    mask = {
        "a": np.array([[1, 0, 1], [0, 0, 1]], np.int8),
        "b": (None, np.array([[1, 1], [0, 1]], np.int8)),
        "c": (np.array([[1, 1], [0, 1]], np.int8), np.array([[1, 0, 0], [1, 1, 1]], np.int8)),
    }
    # outputs: 3 logits | 2 means, always allowed | 2 bits | 2 + 3 logits
    expected = [[1, 0, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0], [0, 0, 1, 1, 1, 0, 1, 0, 1, 1, 1, 1]]
    np.testing.assert_array_equal(actions.mask(mask, 2), np.array(expected, bool))
    with pytest.raises(SpaceError, match="environment 1 forbids every action"):
        Actions.of(spaces.Discrete(2)).mask(np.array([[1, 0], [0, 0]]), 2)
    with pytest.raises(SpaceError, match=r"must be \[2, 2\]"):
        Actions.of(spaces.Discrete(2)).mask(np.ones((2, 3)), 2)
