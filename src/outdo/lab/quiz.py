"""The quiz: questions with a sentence for every answer, each pointing at a measured figure."""

from __future__ import annotations

import random
import tomllib
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

Text = Field(min_length=1)


class Choice(BaseModel):
    """One answer, what is said to whoever chooses it, and whether it is the right one."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    text: str = Text
    feedback: str = Text
    right: bool = False


class Question(BaseModel):
    """A question, its answers, and the experiment and figure that show the right one."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    text: str = Text
    choices: list[Choice] = Field(min_length=2)
    experiment: str = Text
    figure: str = Text

    @model_validator(mode="after")
    def _one_is_right(self) -> Question:
        """Refuse questions without a right answer or with several, and answers that are given twice."""
        right = sum(choice.right for choice in self.choices)
        if right != 1:
            raise ValueError(f"exactly one choice must have right = true, {right} have")
        texts = [choice.text for choice in self.choices]
        twice = next((text for text in texts if texts.count(text) > 1), None)
        if twice is not None:
            raise ValueError(f"the choice {twice!r} is there twice")
        return self

    def shuffled(self) -> list[Choice]:
        """The choices in an order that depends on the question's text alone."""
        choices = list(self.choices)
        random.Random(self.text).shuffle(choices)
        return choices


def load_quiz(path: Path | None = None) -> list[Question]:
    """The questions of a TOML file `[[question]]`; left out: those that ship.

    Raises ValueError with one line per mistake: which question, which key, what is wrong.
    """
    where = "quiz.toml" if path is None else str(path)
    text = (files("outdo.lab") / "quiz.toml").read_text("utf-8") if path is None else path.read_text("utf-8")
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{where} is no TOML: {error}") from error
    unknown = sorted(table.keys() - {"question"})
    raw = table.get("question")
    if unknown or not isinstance(raw, list) or not raw:
        found = f", found {', '.join(unknown)}" if unknown else ""
        raise ValueError(f"{where}: it must hold [[question]] tables and nothing else{found}")
    questions: list[Question] = []
    mistakes: list[str] = []
    for number, item in enumerate(raw, start=1):
        try:
            questions.append(Question.model_validate(item))
        except ValidationError as error:
            mistakes.extend(f"{where}: question {number}: {_mistake(dict(each))}" for each in error.errors())
    if mistakes:
        raise ValueError("\n".join(mistakes))
    return questions


def _mistake(error: dict[str, Any]) -> str:
    """One of pydantic's errors as `key: what is wrong`."""
    place: Sequence[Any] = error["loc"]
    # People count choices from 1.
    key = ".".join(str(part + 1 if isinstance(part, int) else part) for part in place)
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "extra_forbidden":
        message = "unknown key"
    return f"{key}: {message}" if key else message
