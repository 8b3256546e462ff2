import logging
import signal
import time
from decimal import Decimal

import pytest

from outdo.core.rewards import RewardTerm, score_term
from outdo.core.worker import Worker, WorkerDiedError, WorkerError
from outdo.language import verifiers, verify_process
from outdo.language.verifiers import (
    completion_text,
    exact,
    final_answer,
    json_object,
    last_number,
    number,
    parse_number,
    regex,
    soft_length,
)


def chat(text):
    return [{"role": "assistant", "content": text}]


def test_completions_of_chats_and_texts_are_read_alike():
    assert completion_text("a") == completion_text(chat("a")) == "a"
    assert exact([chat(" a "), chat("b")], ["a", "a"]) == [1.0, 0.0]


def test_final_answer_is_what_follows_the_last_marker():
    assert final_answer("Answer: 1. No. Answer: 2 ", "Answer:") == "2"
    assert final_answer("2", "Answer:") is None
    assert final_answer(" 2 ", None) == "2"


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("6-9=-3, -3-9=-12. Answer: -12", 1),
        ("Answer: -12.", 1),
        ("Answer:-12", 1),
        ("Answer: −12", 1),  # the typographic minus
        ("Answer: -12.0", 1),
        ("Answer: -012", 1),
        ("Answer: 12", 0),
        ("-12", 0),  # no marker
        ("Answer: -12 or 12", 0),
        ("Answer: -12\nAnswer: 5", 0),  # the last one counts
        ("Answer: 3-15", 0),  # a sum is not its result
        ("Answer: -12 apples", 0),
        ("Answer:", 0),
        ("answer: -12", 0),
        ("Answer: -12e0", 0),
        ("Answer: -١٢", 0),  # digits of another script
        ("", 0),
    ],
)
def test_strict_number(text, right):
    assert number([text], ["-12"]) == [right]
    assert number([chat(text)], [-12]) == [right]


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5-3", "3"),
        ("x = -3", "-3"),
        ("it is 1,234.5.", "1234.5"),
        ("6-9=-3 so −3", "-3"),
        ("(-7)", "-7"),
        ("v1.2.3", "3"),
        (".5", "0.5"),
        ("none", None),
    ],
)
def test_last_number(text, value):
    assert last_number(text) == (None if value is None else Decimal(value))


def test_lenient_number_tolerance_and_exactness():
    assert number(["I think it is 12, yes"], [12], lenient=True) == [1.0]
    assert number(["Answer: 0.1"], ["0.10"]) == [1.0]
    assert number(["Answer: 3.14"], ["3.1416"], tolerance=0.01) == [1.0]
    assert number(["Answer: 3.14"], ["3.1416"]) == [0.0]
    long = "1" + "0" * 40
    assert number([f"Answer: {long}1"], [f"{long}2"]) == [0.0]  # no rounding to 28 digits or to floats
    assert number(["Answer: " + "9" * 100_000], [9]) == [0.0]
    assert parse_number("$1,000") == 1000
    assert parse_number("1,00") is None


def test_an_expected_answer_that_is_no_number_is_an_error():
    for answer in ("twelve", "nan", None):
        with pytest.raises(ValueError, match="not a"):
            number(["Answer: 1"], [answer])


def test_regex_search_full_and_compare():
    assert regex(["ab1", "ab"], r"\d") == [1.0, 0.0]
    assert regex(["ab1", "1"], r"\d", full=True) == [0.0, 1.0]
    tag = r"<answer>(.*?)</answer>"
    texts = ["<answer> 4 </answer>", "<answer>5</answer>", "4"]
    assert regex(texts, tag, answer=[4, 4, 4], compare=True) == [1.0, 0.0, 0.0]
    assert regex(["a", "a"], ["a", "b"]) == [1.0, 0.0]  # a pattern of its own for each row, from a column
    with pytest.raises(ValueError, match="needs a column 'answer'"):
        regex(["a"], "a", compare=True)
    with pytest.raises(WorkerError, match="unterminated"):
        regex(["a"], "(")


def test_a_runaway_regex_is_wrong_after_its_limit_and_the_next_row_is_scored(caplog):
    start = time.monotonic()
    with caplog.at_level(logging.WARNING):
        assert regex(["a" * 40 + "!", "aab"], r"(a+)+b", limit=0.5) == [0.0, 1.0]
    assert time.monotonic() - start < 20
    assert "gave no result within 0.5 s" in caplog.text


@pytest.mark.parametrize(
    ("text", "answer", "right"),
    [
        ('{"a": 1, "b": [true]}', {"b": [True], "a": 1.0}, 1),
        ('Here:\n```json\n{"a": 1}\n```', {"a": 1}, 1),
        ('{"a": true}', {"a": 1}, 0),
        ('{"a": 1, "c": 2}', {"a": 1}, 0),
        ('{"a": 1}', '{"a": 1}', 1),
        ("[1, 2]", [1, 2], 1),
        ("[2, 1]", [1, 2], 0),
        ('{"a": NaN}', {"a": float("nan")}, 0),
        ("{'a': 1}", {"a": 1}, 0),
        ('{"a": 1} and more', {"a": 1}, 0),
        ("[" * 100_000, [], 0),
        ("1" * 10_000, 1, 0),
    ],
)
def test_json(text, answer, right):
    assert json_object([text], [answer]) == [right]


def test_json_keys_and_form():
    assert json_object(['{"a": 1, "b": 2}', '{"a": 1}'], keys=["a", "b"]) == [1.0, 0.0]
    assert json_object(['{"a": 1, "b": 2}'], [{"a": 1, "b": 3}], keys=["a"]) == [1.0]
    assert json_object(['{"a": 1, "b": 2}'], [{"a": 1, "b": 3}], keys=["b"]) == [0.0]
    assert json_object(["[]", "[", "[]"], ["1", "1", "1"], compare=False) == [1.0, 0.0, 1.0]


def test_what_a_check_needs_is_imported_before_its_time_limit_counts(monkeypatch):
    calls = []

    class Recording:
        def call(self, path, *arguments, limit):
            calls.append((path.partition(":")[2], limit))
            return True

    monkeypatch.setattr(verify_process, "worker", Recording)
    assert verifiers.math(["0.5"], ["1/2"], limit=0.25) == [1.0]
    assert [name for name, _ in calls] == ["prepare", "math"]
    assert calls[0][1] > 60
    assert calls[1][1] == 0.25


def test_math_equal_values_in_any_notation_and_hostile_text():
    texts = [
        r"so \boxed{\frac{2}{4}}",
        "the answer is 0.5",
        r"\boxed{2}",
        "",
        "(" * 3000,
        "$9^{9^{9^{9}}}$",
        "$1/2$",
    ]
    start = time.monotonic()
    assert verifiers.math(texts, ["1/2"] * len(texts), limit=1.0) == [1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0]
    assert time.monotonic() - start < 30
    with pytest.raises(WorkerError, match="cannot read the expected answer"):
        verifiers.math(["1"], [""])


def test_reasoning_gym_scores_by_its_own_data_set():
    items = {
        "question": ["q"] * 3,
        "answer": ["-12"] * 3,
        "metadata": [{"source_dataset": "chain_sum"}] * 3,
    }
    rows = {**items, "completions": ["Answer: -12", "Answer: 12", "-12"]}
    values, _ = score_term(RewardTerm("r", verifiers.reasoning_gym), rows, 3)
    assert values[0] == 1.0
    assert values[1] < 1.0
    assert values[2] == 0.0


def test_soft_length_by_hand():
    # limit 10, buffer 4: free up to 6, then −1/4 a token, −1 from 10 on
    ids = [[0] * n for n in (1, 6, 7, 9, 10, 50)]
    assert soft_length(ids, maximum=10, buffer=4) == [0.0, 0.0, -0.25, -0.75, -1.0, -1.0]
    with pytest.raises(ValueError, match="1 <= buffer <= maximum"):
        soft_length(ids, maximum=4, buffer=5)


def test_worker_survives_errors_time_limits_deaths_and_prints():
    worker = Worker()
    assert worker.call("math:sqrt", 4, limit=5) == 2.0
    with pytest.raises(WorkerError, match="ValueError"):
        worker.call("math:sqrt", -1, limit=5)
    with pytest.raises(TimeoutError, match="'time:sleep' gave no result within"):
        worker.call("time:sleep", 60, limit=0.2)
    with pytest.raises(WorkerDiedError, match="its process died"):
        worker.call("os:_exit", 1, limit=5)
    assert worker.call("builtins:print", "to stderr", limit=5) is None
    with pytest.raises(WorkerError, match="ModuleNotFoundError"):
        worker.call("outdo.nowhere:x", limit=5)
    assert worker.call("math:sqrt", 9, limit=5) == 3.0
    worker.close()


def test_worker_is_killed_though_it_ignores_requests_to_end():
    worker = Worker()
    for ignored in (signal.SIGTERM, signal.SIGALRM):  # the latter is its own alarm
        worker.call("signal:signal", ignored, signal.SIG_IGN, limit=5)
    start = time.monotonic()
    with pytest.raises(TimeoutError):
        worker.call("time:sleep", 60, limit=0.1)
    assert time.monotonic() - start < 30
    worker.close()


def test_worker_limits_memory():
    worker = Worker(memory=2**30)
    with pytest.raises(WorkerError, match="MemoryError"):
        worker.call("builtins:bytearray", 2**31, limit=5)
    worker.close()
