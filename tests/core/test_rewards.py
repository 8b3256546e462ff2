import asyncio
import math
import threading
import time
import warnings

import numpy as np
import pytest
import torch

from outdo.core.rewards import NoSignalWarning, RewardError, RewardTerm, score, score_term, weighted_sum

ROWS = {
    "prompts": ["p"] * 4,
    "completions": ["a", "b", "a", "c"],
    "completion_ids": [[1], [2], [1], [3]],
    "answer": ["a", "a", "b", "b"],
}
GROUPS = [0, 0, 1, 1]


def is_answer(completions, answer):
    return [float(c == a) for c, a in zip(completions, answer, strict=True)]


def one(function, **settings):
    return score([RewardTerm("r", function, **settings)], ROWS, GROUPS)


def test_logged_total_uses_the_weights():
    # .7 * 1 + .3 * 0 = .7 and .7 * 0 + .3 * 1 = .3; the raw terms stay what the functions returned
    terms = [
        RewardTerm("right", lambda completions: [1.0, 0.0], weight=0.7),
        RewardTerm("short", lambda completions: [0.0, 1.0], weight=0.3),
    ]
    rewards = score(terms, {"completions": ["a", "b"]}, [0, 0])
    assert rewards.total == [0.7, 0.3]
    assert rewards.terms == {"right": [1.0, 0.0], "short": [0.0, 1.0]}


def test_zero_is_a_reward_and_none_is_not():
    rewards = one(lambda completions: [0.0, None, 0, 1])
    assert rewards.total == [0.0, None, 0.0, 1.0]


def test_a_term_that_is_none_for_a_whole_group_does_not_apply_to_it():
    terms = {"math": [1.0, 0.0, None, None], "code": [None, None, 0.5, None], "note": [None] * 4}
    # group 0 is scored by math alone; in group 1 code applies, and its second row cannot be compared
    assert weighted_sum(terms, {"math": 1.0, "code": 2.0, "note": 0.0}, GROUPS) == [1.0, 0.0, 1.0, None]
    # a row that one applying term cannot score is not worth what the others give it
    assert weighted_sum({"a": [1.0, None], "b": [1.0, 1.0]}, {"a": 1.0, "b": 1.0}, [0, 0]) == [2.0, None]
    assert weighted_sum({"note": [None] * 4}, {"note": 1.0}, GROUPS) == [None] * 4


def test_a_function_gets_the_keywords_it_accepts():
    seen = {}

    def everything(**columns):
        seen.update(columns)
        return [0.0, 1.0, 0.0, 1.0]

    def few(completion_ids, scale=1.0):
        return [scale * ids[0] for ids in completion_ids]

    one(everything, arguments={"marker": "Answer:"})
    assert seen == {**ROWS, "marker": "Answer:"}
    assert one(few).total == [1, 2, 1, 3]
    assert one(few, arguments={"scale": 2.0}).total == [2, 4, 2, 6]


def test_a_missing_column_is_named_with_the_nearest():
    with pytest.raises(ValueError, match="needs 'answers', which the data lacks; did you mean 'answer'"):
        one(lambda completions, answers: [0.0] * 4)


def test_an_argument_the_function_does_not_take_is_named():
    with pytest.raises(ValueError, match="takes no 'answr'; did you mean 'answer'"):
        RewardTerm("r", is_answer, arguments={"answr": 1})


def test_functions_by_path_and_their_errors():
    term = RewardTerm.load("r", "outdo.language.verifiers:exact", weight=0.5, on_error="skip")
    assert score([term], ROWS, GROUPS).total == [0.5, 0.0, 0.0, 0.0]
    for path, message in {
        "outdo.language.verifiers": "must be written 'module:name'",
        "outdo.language.verifiers:exakt": "did you mean 'exact'",
        "outdo.nowhere:exact": "cannot be imported",
    }.items():
        with pytest.raises(ValueError, match=message):
            RewardTerm.load("r", path)


def test_async_functions_are_awaited():
    async def later(completions):
        await asyncio.sleep(0.01)
        return [float(len(c)) for c in completions]

    async def mixed(completions):
        await asyncio.sleep(0)
        return [0.0, 1.0, 0.0, 1.0]

    with pytest.warns(NoSignalWarning):
        assert one(later).total == [1.0] * 4
    assert one(mixed).total == [0.0, 1.0, 0.0, 1.0]


def test_arrays_tensors_and_booleans_are_numbers():
    for values in (
        np.array([0, 1, 0, 1], dtype=np.float32),
        torch.tensor([0.0, 1.0, 0.0, 1.0]),
        (False, True, np.False_, torch.tensor(1)),
    ):
        assert one(lambda completions, values=values: values).total == [0.0, 1.0, 0.0, 1.0]


def raises_on_c(completions):
    if "c" in completions:
        raise KeyError("no c")
    return [float(c == "a") for c in completions]


def test_raising_stops_the_run_and_names_function_row_and_reason():
    with pytest.raises(
        RewardError, match=r"raises_on_c\) failed on row 3: KeyError: 'no c'; completion: 'c'"
    ):
        one(raises_on_c)


def test_leaving_python_is_a_failure_like_any_other():
    def leaves(completions):
        raise SystemExit(3)

    with pytest.raises(RewardError, match="failed on row 0: SystemExit: 3"):
        one(leaves)


def test_raising_with_skip_reports_the_row_and_leaves_it_out():
    rewards = one(raises_on_c, on_error="skip")
    assert rewards.total == [1.0, 0.0, 1.0, None]
    assert [(f.term, f.row) for f in rewards.failures] == [("r", 3)]
    assert "no c" in rewards.failures[0].reason


def test_a_failing_term_of_weight_zero_drops_no_row():
    terms = [RewardTerm("note", raises_on_c, weight=0.0, on_error="skip"), RewardTerm("r", is_answer)]
    rewards = score(terms, ROWS, GROUPS)
    assert rewards.total == [1.0, 0.0, 0.0, 0.0]
    assert rewards.terms["note"][3] is None
    assert len(rewards.failures) == 1


def test_a_group_whose_every_row_fails_has_no_total_though_other_terms_score_it():
    def fails_on_second_group(completion_ids, answer):
        if "b" in answer:
            raise RuntimeError("down")
        return [1.0] * len(answer)

    terms = [RewardTerm("judge", fails_on_second_group, on_error="skip"), RewardTerm("r", is_answer)]
    assert score(terms, ROWS, GROUPS).total == [2.0, 1.0, None, None]


def test_a_hanging_row_of_64_is_found_and_left_out():
    forever = threading.Event()

    def hangs_on_7(completions):
        if "row 7" in completions:
            forever.wait()
        return [float(c.endswith("1")) for c in completions]

    rows = {"completions": [f"row {i}" for i in range(64)]}
    start = time.monotonic()
    term = RewardTerm("r", hangs_on_7, time_limit=0.5, on_error="skip")
    rewards = score([term], rows, [0] * 64)
    assert time.monotonic() - start < 60  # it never ends by itself
    assert [i for i, total in enumerate(rewards.total) if total is None] == [7]
    assert "no result within 0.5 s" in rewards.failures[0].reason
    with pytest.raises(RewardError, match="failed on row 7: TimeoutError: no result within"):
        score([RewardTerm("r", hangs_on_7, time_limit=0.1)], rows, [0] * 64)
    forever.set()


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (math.nan, "returned nan"),
        (math.inf, "returned inf"),
        (-math.inf, "returned -inf"),
        ("1.0", "returned str '1.0', not a number"),
        ([1.0], "returned list"),
        (1j, "returned complex"),
    ],
)
def test_values_that_are_no_finite_number(bad, message):
    def function(completions):
        return [0.0, 1.0, bad, 1.0]

    with pytest.raises(RewardError, match=rf"reward 'r' .*function\) failed on row 2: {message}"):
        one(function)
    rewards = one(function, on_error="skip")
    assert rewards.total == [0.0, 1.0, None, 1.0]
    assert message in rewards.failures[0].reason


@pytest.mark.parametrize("on_error", ["stop", "skip"])
def test_wrong_length_and_type_always_stop(on_error):
    with pytest.raises(RewardError, match="returned 3 values for 4 completions"):
        one(lambda completions: [0.0, 1.0, 0.0], on_error=on_error)
    for result in (1.0, "0101", {"a": 1}, None):
        with pytest.raises(RewardError, match="must return a list of 4 numbers"):
            one(lambda completions, result=result: result, on_error=on_error)


def test_no_signal_is_warned_of_only_where_all_are_equal():
    with pytest.warns(NoSignalWarning, match="all 4 completions got the same reward, 0.5"):
        one(lambda completions: [0.5] * 4)
    with pytest.warns(NoSignalWarning, match="no reward at all"):
        one(lambda completions: [None] * 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        one(lambda completions: [0.0, 0.0, 1.0, 1.0])


@pytest.mark.parametrize(
    "settings", [{"weight": math.nan}, {"time_limit": 0}, {"time_limit": math.inf}, {"on_error": "ignore"}]
)
def test_impossible_settings(settings):
    with pytest.raises(ValueError, match="reward 'r'"):
        RewardTerm("r", is_answer, **settings)


def test_score_term_gives_raw_values():
    assert score_term(RewardTerm("r", is_answer, weight=5.0), ROWS, 4) == ([1.0, 0.0, 0.0, 0.0], [])
