"""Every way in which a driving reward has been hacked in public projects (driving.md), as a case.

Each shows the loophole in the reward that has it, and that it is closed here.
"""

from __future__ import annotations

import numpy as np
import pytest
from roads import HORIZON, NOW, box, moving, road

from outdo.core.rewards import RewardTerm, score
from outdo.driving import dynamics, metrics
from outdo.driving.outcomes import Reference, outcomes_of
from outdo.driving.reasoning import parse
from outdo.driving.rewards import TERMS, falling, terms
from outdo.driving.tokens import SHORT, Answer, Vocabulary, count_faults

KEEP = "track set speed because speed limit; keep lane because route ahead."
VOCABULARY = Vocabulary()


def answer(text, *parts):
    """What is read from the tokens of this text and these (ticks, acceleration, curvature)."""
    control = np.concatenate([np.tile([a, kappa], (ticks, 1)) for ticks, a, kappa in parts]).astype(float)
    return VOCABULARY.read(VOCABULARY.write(parse(text), SHORT.encode(np.array([10.0]), control[None])[0]))


def reference(scene):
    return Reference(scene.state[0, NOW : NOW + HORIZON + 1], parse(KEEP))


def totals(scene, answers, weights=None):
    group = outcomes_of(scene, answers, reference(scene))
    rows = {"completions": [o.answer.text for o in group], "outcomes": group}
    return score(terms(weights), rows, [0] * len(group))


CRUISE = answer(KEEP, (64, 0, 0))
STAND = answer("stop because red light; keep lane because route ahead.", (16, -6.25, 0), (48, 0, 0))


@pytest.mark.filterwarnings("ignore:no signal")
def test_standing_still_where_only_collisions_count():
    scene = road(moving(0, 0, 10), moving(60, 0, 10))
    open_, closed = totals(scene, [STAND, CRUISE], {"collision": 1}), totals(scene, [STAND, CRUISE])
    assert open_.total[0] == open_.total[1]  # the loophole: nothing is lost by standing
    assert closed.total[0] < closed.total[1] - 1


def test_standing_still_where_progress_counts_is_seen_by_the_evaluation():
    assert metrics.progress_ratio(0.0, 64.0) == 0
    assert metrics.alpasim({"at_fault": np.zeros(1), "off_road": np.zeros(1), "ep": np.zeros(1)})[0] == 0


def test_reversing_at_the_last_waypoint_earns_nothing():
    # the last 0.8 s backwards: less progress than rolling out, and no decision says so
    rolls = answer("stop because red light; keep lane because route ahead.", (40, -2.5, 0), (24, 0, 0))
    backs = answer(
        "stop because red light; keep lane because route ahead.", (40, -2.5, 0), (8, 0, 0), (16, -2, 0)
    )
    scene = road(moving(0, 0, 10))
    paths = [dynamics.rollout(np.array([0.0, 0, 0, 10]), a.control) for a in (rolls, backs)]
    assert paths[1][-1, 3] < -3
    made = [float(path[-1, 0]) for path in paths]
    assert metrics.progress_ratio(made[1], 64.0) < metrics.progress_ratio(made[0], 64.0)
    assert totals(scene, [rolls, backs]).terms["consistency"] == [1, 0]
    forward, backward = totals(scene, [rolls, backs]).total
    assert backward < forward


def test_overshooting_is_no_progress():
    # normalised by the batch's maximum, the farthest has 1 and pushes all others down
    assert metrics.progress_ratio(90.0, 64.0) == metrics.progress_ratio(64.0, 64.0) == 1
    assert metrics.progress_ratio(48.0, 64.0) == 0.75  # whatever the others of its group do
    scene, over = road(moving(0, 0, 10)), answer(KEEP, (64, 1, 0))
    alone, together = totals(scene, [CRUISE]), totals(scene, [CRUISE, over])
    assert together.total[0] == alone.total[0] > together.total[1]


def test_a_gate_that_pays_most_for_the_worst_is_found():
    s = np.linspace(0.5, 1, 11)

    def gate(share):
        return [0.3 * ((x - 1) / -0.4) if 0.6 < x <= 1 else 0.0 for x in share]

    found = falling(RewardTerm("gate", gate), {"share": s.tolist()}, s.tolist())
    assert len(found) == 7  # eight values from 0.65 to 1 fall seven times; at 0.6 the gate is shut
    assert "falls from 0.2625 to 0.225 as quality rises from 0.65 to 0.7" in found[0]
    rising = RewardTerm("rising", lambda share: list(share))
    assert falling(rising, {"share": s.tolist()}, s.tolist()) == []


@pytest.mark.parametrize(
    "ids",
    [
        [],
        VOCABULARY.write(parse(KEEP), [])[:-1],
        VOCABULARY.write(parse(KEEP), []),
        VOCABULARY.write(parse(KEEP), SHORT.encode(np.zeros(1), np.zeros((1, 64, 2)))[0][:-1]),
        VOCABULARY.write(parse(KEEP), [*SHORT.encode(np.zeros(1), np.zeros((1, 64, 2)))[0], 49]),
    ],
    ids=["empty", "words alone", "no controls", "truncated", "surplus"],
)
def test_a_malformed_answer_earns_the_floor_and_is_counted(ids):
    # zero controls are perfect here: the expert keeps 10 m/s on a free road
    scene, broken = road(moving(0, 0, 10)), VOCABULARY.read(ids)
    assert broken.control is None
    worst = answer("yield because cyclist; turn left.", (64, 9.8, 0.2))
    result = totals(scene, [broken, CRUISE, worst])
    for name, term in TERMS.items():
        assert result.terms[name][0] == (term.low if term.better == "higher" else term.high)
    assert result.total[0] < min(result.total[1:])
    assert sum(count_faults([broken, CRUISE]).values()) >= 1
    assert sum(count_faults([CRUISE]).values()) == 0


def test_saying_left_and_driving_right():
    text = "track set speed because speed limit; nudge in lane left because parked vehicle."
    left = answer(text, (8, 0, 0), (16, 0, 0.004), (16, 0, -0.004), (24, 0, 0))
    right = answer(text, (8, 0, 0), (16, 0, -0.004), (16, 0, 0.004), (24, 0, 0))
    assert totals(road(moving(0, 0, 10)), [left, right]).terms["consistency"] == [1, 0]


def test_absent_actors_never_collide():
    # actor 1 stands on the way but is never there, actor 2 vanishes before it is reached; junk fills their places
    logs = [moving(0, 0, 10), moving(20, 0, 0), moving(40, 0, 0)]
    valid = np.ones((3, 80), np.bool_)
    valid[1] = False
    valid[2, NOW + 5 :] = False
    scene = road(*logs, valid=valid)
    junk = np.where(valid[..., None], scene.state, 0.0)  # zeros: exactly where the ego starts
    for state in (scene.state, junk, np.where(valid[..., None], junk, np.stack(logs))):
        again = road(*logs, valid=valid)
        again.state[:] = state
        result = totals(again, [CRUISE])
        assert result.terms["collision"] == [0]
        assert result.terms["close_encounter"] == [0]
    there = totals(road(*logs), [CRUISE])
    assert there.terms["collision"] == [1]


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"drivable": (box(-200, 2, 600, 5.25),)}, "off the road at the first step"),
        ({"faults": ("log off the road",)}, "log off the road"),
    ],
)
def test_a_wrong_map_is_the_scenes_fault(changes, says):
    scene, broken = road(moving(0, 0, 10), **changes), Answer("")
    group = outcomes_of(scene, [CRUISE, STAND, broken], reference(scene))
    assert all(says in o.scene_fault for o in group)
    result = totals(scene, [CRUISE, STAND, broken])
    for name in ("collision", "close_encounter", "off_road"):
        assert result.terms[name] == [None, None, None]  # applies to none of the group
    assert None not in result.total  # the rest still counts
    assert result.total[0] > result.total[1] > result.total[2]


def test_a_start_in_contact_is_the_scenes_fault():
    scene = road(moving(0, 0, 10), moving(3, 0, 10))
    (outcome,) = outcomes_of(scene, [CRUISE], reference(scene))
    assert "overlaps" in outcome.scene_fault
    assert TERMS["collision"].function([outcome]) == [None]
