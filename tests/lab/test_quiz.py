"""The quiz file: what is refused and how, the order of the choices, and the questions that ship."""

from __future__ import annotations

import pytest
from outcomes import outcome

from outdo.lab.quiz import load_quiz
from outdo.lab.registry import experiments

GOOD = """
[[question]]
text = "What does a baseline change?"
experiment = "baseline"
figure = "spread"
choices = [
  {text = "The spread.", feedback = "Yes, it falls.", right = true},
  {text = "The mean.", feedback = "It stays."},
  {text = "Nothing.", feedback = "Look again."},
]
"""


def load(tmp_path, text):
    path = tmp_path / "quiz.toml"
    path.write_text(text, "utf-8")
    return load_quiz(path)


def test_a_question_is_read(tmp_path):
    (question,) = load(tmp_path, GOOD)
    assert (question.text, question.experiment, question.figure) == (
        "What does a baseline change?",
        "baseline",
        "spread",
    )
    assert [choice.right for choice in question.choices] == [True, False, False]
    assert question.choices[1].feedback == "It stays."


def test_choices_are_shuffled_the_same_way_every_time_and_the_right_one_moves(tmp_path):
    many = load(tmp_path, "".join(GOOD.replace("What", f"{i}: what") for i in range(30)))
    orders = [[choice.text for choice in question.shuffled()] for question in many]
    assert orders == [[choice.text for choice in question.shuffled()] for question in many]
    assert all(sorted(order) == ["Nothing.", "The mean.", "The spread."] for order in orders)
    assert {order.index("The spread.") for order in orders} == {0, 1, 2}


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (", right = true", "", "question 1: exactly one choice must have right = true, 0 have"),
        (
            '"It stays."',
            '"It stays.", right = true',
            "question 1: exactly one choice must have right = true, 2 have",
        ),
        ('"The mean."', '"Nothing."', "question 1: the choice 'Nothing.' is there twice"),
        ('figure = "spread"', "", "question 1: figure: Field required"),
        ('figure = "spread"', 'figures = "spread"', "question 1: figures: unknown key"),
        ('"Look again."', '""', "question 1: choices.3.feedback: String should have at least 1 character"),
        ("right = true", 'right = "yes"', "question 1: choices.1.right: Input should be a valid boolean"),
        (
            "[[question]]",
            "[[questions]]",
            r"it must hold \[\[question\]\] tables and nothing else, found questions",
        ),
        (GOOD, "", r"it must hold \[\[question\]\] tables"),
        ("[[question]]", "[[question", "is no TOML"),
    ],
)
def test_mistakes_are_named(tmp_path, old, new, message):
    assert old in GOOD
    with pytest.raises(ValueError, match=rf"quiz\.toml.*{message}"):
        load(tmp_path, GOOD.replace(old, new))


def test_all_mistakes_are_named_at_once(tmp_path):
    text = GOOD + GOOD.replace(", right = true", "")
    with pytest.raises(ValueError, match=r"question 1.*\n.*question 2"):
        load(tmp_path, text.replace('figure = "spread"', ""))


def test_the_questions_that_ship_point_at_figures_that_are_measured():
    known = experiments()
    questions = load_quiz()
    assert len(questions) >= 15
    for question in questions:
        assert question.experiment in known, question.text
        figures = [figure.name for figure in outcome(question.experiment).figures]
        assert question.figure in figures, f"{question.text}: no {question.figure!r} in {question.experiment}"
