import itertools
import random
import re

import pytest

from outdo.language.data import DataError, split
from outdo.language.demonstrations import chain_sum, flawed_step, load_demonstrations
from outdo.language.tasks import copy_items, reasoning_gym_items
from outdo.language.verifiers import number

CONFIG = {"min_terms": 3, "max_terms": 3, "min_digits": 1, "max_digits": 1}


class Fixed(random.Random):
    """Slips where told: a draw below the flaw's probability is a slip."""

    def __init__(self, slips):
        super().__init__(0)
        self._draws = iter(0.0 if slip else 0.99 for slip in slips)

    def random(self):
        return next(self._draws)


def item(expression):
    return {"metadata": {"expression": expression}}


def test_reasoning_gym_items_are_reproducible_and_small_spaces_are_deduplicated():
    items = reasoning_gym_items("chain_sum", 6000, 0, **CONFIG)
    assert items[0].keys() >= {"prompt", "question", "answer", "metadata"}
    assert items[:20] == reasoning_gym_items("chain_sum", 20, 0, **CONFIG)
    parts = split(items, 200, seed=0)
    expressions = [{i["metadata"]["expression"] for i in part} for part in (parts.train, parts.held_out)]
    assert len(expressions[1]) == 200
    # 4000 expressions exist; 6000 draws leave out a share of about e^-1.5
    assert len(expressions[0]) + 200 == pytest.approx(4000 * (1 - 0.2231), rel=0.02)
    assert not expressions[0] & expressions[1]


@pytest.mark.parametrize(
    ("name", "config", "message"),
    [
        ("chain_sums", {}, "no data set 'chain_sums'; did you mean 'chain_sum'"),
        ("chain_sum", {"min_term": 3}, "no setting 'min_term'; did you mean 'min_terms'"),
        (
            "chain_sum",
            {"min_terms": 3, "max_terms": 2},
            "refuses its settings: max_terms must be >= min_terms",
        ),
    ],
)
def test_reasoning_gym_errors(name, config, message):
    with pytest.raises(DataError, match=message):
        reasoning_gym_items(name, 10, 0, **config)


def test_copy_items():
    items = copy_items(50, 0, letters="ab", length=2)
    assert {i["answer"] for i in items} == {"a a", "a b", "b a", "b b"}
    assert all(i["prompt"] == f"copy: {i['answer']}" for i in items)
    assert items == copy_items(50, 0, letters="ab", length=2)
    assert items != copy_items(50, 1, letters="ab", length=2)


@pytest.mark.parametrize(
    ("expression", "slips", "text"),
    [
        ("6 - 9 - 9", (False, False), "6-9=-3, -3-9=-12. Answer: -12"),
        ("6 - 9 - 9", (True, False), "6-9=3, 3-9=-6. Answer: -6"),  # goes on from what was written
        ("6 - 9 - 9", (False, True), "6-9=-3, -3-9=12. Answer: 12"),
        ("8 + 7 - 2", (True, True), "8+7=5, 5-2=3. Answer: 3"),
        ("8 + 7 + 9", (False, True), "8+7=15, 15+9=24. Answer: 24"),
        ("2 + 3 - 1", (True, True), "2+3=5, 5-1=4. Answer: 4"),  # unaffected steps cannot slip
        ("-4 + 2", (False,), "-4+2=-2. Answer: -2"),
    ],
)
def test_chain_sum_demonstrations(expression, slips, text):
    assert chain_sum(item(expression), Fixed(slips)) == text


def test_the_demonstrations_own_accuracy_by_enumeration():
    # all expressions, all combinations of slips with their probabilities
    total = 0.0
    for a, b, c in itertools.product(range(10), repeat=3):
        for first, second in itertools.product("+-", repeat=2):
            truth = a + (b if first == "+" else -b) + (c if second == "+" else -c)
            for slips in itertools.product((True, False), repeat=2):
                weight = (0.75 if slips[0] else 0.25) * (0.75 if slips[1] else 0.25)
                text = chain_sum(item(f"{a} {first} {b} {second} {c}"), Fixed(slips))
                total += weight * number([text], [truth])[0]
    assert total / 4000 == pytest.approx(0.456484375, abs=1e-9)


def test_every_written_step_is_what_the_step_before_left():
    rng = random.Random(0)
    for problem in reasoning_gym_items("chain_sum", 200, 0, **CONFIG):
        text = chain_sum(problem, rng)
        (x, _, _, r), (y, _, _, s) = re.findall(r"(-?\d+)([+-])(\d+)=(-?\d+)", text)
        assert x == problem["metadata"]["expression"].split()[0]
        assert y == r
        assert text.endswith(f"Answer: {s}")


def test_slips_are_systematic():
    assert [flawed_step(*s, slips=True) for s in ((6, "-", 9), (8, "+", 7), (15, "+", 9), (-3, "+", 9))] == [
        3,
        5,
        24,
        6,
    ]


def test_demonstrations_need_an_expression():
    for bad in ({}, {"metadata": {}}, item("3 * 4"), item("3")):
        with pytest.raises(DataError, match=r"metadata\.expression"):
            chain_sum(bad, random.Random(0))


def test_demonstrations_by_function_or_column():
    assert load_demonstrations("outdo.language.demonstrations:chain_sum") is chain_sum
    assert load_demonstrations("answer")({"answer": 4}, random.Random(0)) == "4"
    with pytest.raises(DataError, match="no column 'answr' to clone from; did you mean 'answer'"):
        load_demonstrations("answr")({"answer": 4}, random.Random(0))
