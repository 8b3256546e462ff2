"""The questions that ship: every topic, feedback for every answer, and figures that exist."""

import re

import pytest
from outcomes import outcome

from outdo.lab.quiz import load_quiz
from outdo.lab.registry import experiments

QUESTIONS = load_quiz()
TOPICS = {
    "a baseline, and GRPO's": "baseline from the reward",
    "what a baseline changes": "same constant from every reward",
    "no gradient of the reward": "program that answers yes or no",
    "the clip at 1.3 and 0.7": r"1\.3.*0\.7",
    "what the clip leaves open": "not protect",
    "the ends of λ": "λ in generalised",
    "the bias of the group mean": "slightly wrong",
    "2 against 8": "2 against groups of 8",
    "demonstrations first": "demonstrations come before",
    "drift": "drift from the reference",
    "a group without signal": "group teach nothing",
    "four models": "four models",
    "collisions alone": "avoiding collisions and for nothing else",
    "which story is hacking": "four stories",
    "consistency": "consistency of words and driving",
}


def test_there_are_enough_and_none_twice():
    texts = [question.text for question in QUESTIONS]
    assert len(texts) >= 15
    assert len(set(texts)) == len(texts)


@pytest.mark.parametrize("topic", TOPICS)
def test_every_topic_is_asked(topic):
    assert sum(bool(re.search(TOPICS[topic], question.text, re.IGNORECASE)) for question in QUESTIONS) == 1


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.text[:40])
def test_it_points_at_a_figure_that_is_measured(question):
    assert question.experiment in experiments()
    assert question.figure in {figure.name for figure in outcome(question.experiment).figures}


@pytest.mark.parametrize("question", QUESTIONS, ids=lambda question: question.text[:40])
def test_three_or_four_choices_with_a_sentence_each(question):
    assert 3 <= len(question.choices) <= 4
    for choice in question.choices:
        assert re.fullmatch(r"[A-Z0-9−√].*\.", choice.feedback)
        # The page says by itself whether a choice is right.
        assert not re.match("(right|wrong|no|yes)\\b", choice.feedback, re.IGNORECASE)
