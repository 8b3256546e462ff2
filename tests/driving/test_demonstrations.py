"""What there is to learn from: states, demonstrations, references, observations that are put together."""

from __future__ import annotations

import numpy as np
import pytest
from roads import moving, road

from outdo.driving.demonstrations import collect_examples, joined, select, stacked
from outdo.driving.expert import NO_FLAWS, Driver, Flaws, run
from outdo.driving.generator import generate
from outdo.driving.observation import Observation
from outdo.driving.scene import HORIZON, SceneError
from outdo.driving.scenes import later
from outdo.driving.simulator import Simulator
from outdo.driving.way import ways


def collected(scenes, seed, flaws=None):
    return joined([collect_examples(scenes, seed, flaws)], len(scenes))


FIELDS = tuple(Observation.__dataclass_fields__)


@pytest.fixture(scope="module")
def scenes():
    made = generate("train", 10, seed=4, future=2 * HORIZON)
    return later(made, np.random.default_rng(0))


def test_every_state_has_what_is_seen_and_a_demonstration_and_a_reference(scenes):
    examples = collected(scenes, seed=0, flaws=Flaws())
    record, traces = run(scenes)
    kept = [scene.id for scene in scenes].index
    assert 8 <= len(examples) <= 10
    for n, shown in enumerate(examples.shown):
        scene, reference = examples.scene(n), examples.references[n]
        at = kept(scene.id)
        # the reference is the expert's drive without flaws, from the state where the demonstration begins
        assert np.array_equal(reference.path, record.state[at, :, 0])
        assert reference.trace == traces[at]
        start = scene.state[0, scene.now]
        assert np.allclose(reference.path[0], start)
        assert np.allclose(shown.states[0], start)
        alone = Simulator([scene]).observe()
        for name in FIELDS:
            got, wanted = getattr(examples.seen, name)[n], getattr(alone, name)[0]
            if name in ("agents", "present", "size", "kind"):
                got = got[: len(wanted)]
            assert np.array_equal(got, wanted), name
    assert any(shown.flaws for shown in examples.shown)


def test_flaws_are_in_demonstrations_only_and_at_their_rates(scenes):
    flawless = collected(scenes, seed=0, flaws=NO_FLAWS)
    for shown, reference in zip(flawless.shown, flawless.references, strict=True):
        assert np.array_equal(shown.states, reference.path)
        assert shown.trace == reference.trace
    silent = collected(scenes, seed=0, flaws=Flaws(0, 0, 0, 1))
    assert all(each.trace.longitudinal_cause is None for each in silent.shown)
    assert all(each.trace.longitudinal_cause is not None for each in silent.references)


def test_pieces_that_are_driven_apart_give_the_same_references(scenes):
    whole = collected(scenes, seed=0)
    parts = joined(
        [collect_examples(scenes[n : n + 4], seed=0) for n in range(0, len(scenes), 4)], len(scenes)
    )
    assert [each.scene.id for each in parts.shown] == [each.scene.id for each in whole.shown]
    for one, other in zip(whole.references, parts.references, strict=True):
        assert np.allclose(one.path, other.path)
    for name in FIELDS:
        assert np.array_equal(getattr(whole.seen, name), getattr(parts.seen, name)), name
    again = collected(scenes, seed=0)
    for one, other in zip(whole.shown, again.shown, strict=True):
        assert np.array_equal(one.states, other.states)
        assert one.trace == other.trace
    others = collected(scenes, seed=1)
    assert [each.flaws for each in others.shown] != [each.flaws for each in whole.shown]


def test_a_state_where_the_expert_fails_is_left_out(caplog):
    # a wall across the road 8 m ahead of an ego at 15 m/s: nobody can stop there
    wall = moving(8, 0, 0)
    wall[:, 3] = 0
    fine, hopeless = road(moving(0, 0, 10), scene="fine"), road(moving(0, 0, 15), wall, scene="hopeless")
    with caplog.at_level("INFO"):
        examples = collected([hopeless, fine, hopeless], seed=0)
    assert [each.scene.id for each in examples.shown] == ["fine"]
    assert "2 of 3 states left out" in caplog.text
    with pytest.raises(SceneError, match="fails in all 1 scenes"):
        collected([hopeless], seed=0)


def test_observations_put_together_are_padded_with_nobody():
    one = Simulator([road(moving(0, 0, 10))]).observe()
    two = Simulator([road(moving(0, 0, 10), moving(30, 0, 8), moving(60, 3.5, 8))]).observe()
    both = stacked([one, two])
    assert both.agents.shape[:2] == (2, 3)
    assert not both.present[0, 1:].any()
    assert (both.agents[0, 1:] == 0).all()
    assert both.present[1].all()
    swapped = select(both, [1, 0, 1])
    assert np.array_equal(swapped.agents[0], both.agents[1])
    assert np.array_equal(swapped.agents[1], both.agents[0])
    assert all(len(getattr(swapped, name)) == 3 for name in FIELDS)


def test_what_the_rules_read_of_scenes_can_be_shared():
    scenes = generate("train", 10)
    way = ways(scenes, HORIZON)
    for drivers in (None, [Driver(notice=3.0, gap=1.0)] * 10, None):  # neither changes it
        alone, traces = run(scenes, drivers)
        shared, again = run(scenes, drivers, way=way)
        np.testing.assert_array_equal(alone.state, shared.state)
        assert traces == again
