"""Reasoning quality, 0 to 5: a critic compares a trace with the reference on behaviour and cause.

    5 both right · 4 behaviour right, causes mostly · 3 roughly right, incomplete · 2 partly wrong
    1 wrong or contradicting · 0 unrelated or opposite

The rubric is Alpamayo-R1's (arXiv 2511.00088, §5.3), whose critic is a language model. Here rules are the default;
`Endpoint` asks any server that speaks the chat protocol of OpenAI.
"""

from __future__ import annotations

import json
import os
import re
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import partial
from typing import Any

from outdo.core.calls import call_together
from outdo.driving.reasoning import Cause, Lateral, Longitudinal, Trace, observed
from outdo.driving.scene import Scene

BEST = 5


class _Match(IntEnum):
    """How one axis compares with the reference."""

    OPPOSITE = 0
    WRONG = 1
    MISSING = 2
    NEAR = 3
    SAME = 4


_SLOWS = {Longitudinal.FOLLOW, Longitudinal.ADAPT_SPEED, Longitudinal.YIELD, Longitudinal.STOP}
_HALTS = {Longitudinal.YIELD, Longitudinal.STOP}


def _longitudinal(said: Longitudinal | None, right: Longitudinal | None) -> _Match:
    if said == right:
        return _Match.SAME
    if said is None or right is None:
        return _Match.MISSING
    pair = {said, right}
    if Longitudinal.PASS in pair and pair & _HALTS:
        return _Match.OPPOSITE
    return _Match.NEAR if pair <= _SLOWS else _Match.WRONG


def _lateral(said: Trace, right: Trace) -> _Match:
    if (said.lateral, said.side) == (right.lateral, right.side):
        return _Match.SAME
    if said.lateral is None or right.lateral is None:
        return _Match.MISSING
    if said.side and right.side and said.side != right.side:
        return _Match.OPPOSITE
    turns = Lateral.TURN in (said.lateral, right.lateral)
    return _Match.NEAR if said.side == right.side and not turns else _Match.WRONG


def _credit(said: Cause | None, right: Cause | None, scene: Scene) -> float:
    """1 for the right cause, ½ for another of its component that was to be seen too, else 0."""
    if said == right:
        return 1.0
    if said is None or right is None or said.component != right.component:
        return 0.0
    return 0.5 if observed(said, scene) else 0.0


def grade(said: Trace, right: Trace, scene: Scene) -> int:
    """The rubric by rules.

    Two axes, each same, near (another way to slow down; another manoeuvre to the same side), missing, wrong or
    opposite (pass against yield or stop; left against right). Both same: 5, 4 or 3 by their causes. One same: 3
    if the other is near or missing, 2 if it is wrong, 1 if it is opposite. None same: 2 if both are near, 1 if one
    is near and none opposite, or if a cause is shared; else 0. How the rubric is applied is unstated in the source.
    """
    axes = (_longitudinal(said.longitudinal, right.longitudinal), _lateral(said, right))
    low, high = min(axes), max(axes)
    credits = [
        _credit(cause, wanted, scene)
        for cause, wanted, decision in (
            (said.longitudinal_cause, right.longitudinal_cause, right.longitudinal),
            (said.lateral_cause, right.lateral_cause, right.lateral),
        )
        if decision is not None
    ]
    mean = sum(credits) / len(credits)
    if low == _Match.SAME:
        return 5 if mean == 1 else 4 if mean >= 0.5 else 3
    if high == _Match.SAME:
        return 3 if low >= _Match.MISSING else 2 if low == _Match.WRONG else 1
    if low == _Match.NEAR:
        return 2
    if low == _Match.OPPOSITE:
        return 0
    causes = {said.longitudinal_cause, said.lateral_cause} & {right.longitudinal_cause, right.lateral_cause}
    return 1 if high == _Match.NEAR or causes - {None} else 0


_RUBRIC = """You grade the reasoning of a driving policy against a reference, on behaviour and cause.
5: behaviour and causes both consistent with the reference. 4: behaviour right, causes mostly. 3: roughly right, \
incomplete. 2: partly wrong. 1: wrong or contradicting. 0: unrelated or opposite.
Reply with one line, `Score: ` and the number."""
_SCORE = re.compile(r"Score:\s*([0-5])\s*\Z")
_LARGEST_REPLY = 1 << 20


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A language model as critic: `url` of a server with `/chat/completions`, `model` as it calls it.

    `key_variable` names the environment variable that holds the key; none is sent if it is empty. At most
    `parallel` requests are open, each given up after `seconds`. Only traces that parsed are sent, as they are
    written anew from the grammar: what a policy writes cannot address the critic.
    """

    url: str
    model: str
    key_variable: str = ""
    seconds: float = 20.0
    parallel: int = 8

    def __post_init__(self) -> None:
        """Refuse what cannot be asked."""
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"critic url must begin with http:// or https://, got {self.url!r}")
        if self.seconds <= 0 or self.parallel < 1:
            raise ValueError(f"need seconds > 0 and parallel >= 1, got {self.seconds}, {self.parallel}")

    def grades(self, pairs: Sequence[tuple[Trace, Trace]]) -> list[float | Exception]:
        """Grade of each (said, reference), or the error that stands in its place: no guess, no default."""
        results: list[float | Exception] = []
        for start in range(0, len(pairs), self.parallel):
            calls = [partial(self._ask, *pair) for pair in pairs[start : start + self.parallel]]
            results += call_together(calls, self.seconds)
        return results

    def _ask(self, said: Trace, right: Trace) -> float:
        question = f"Reference: {right}\nReasoning: {said}"
        messages = [{"role": "system", "content": _RUBRIC}, {"role": "user", "content": question}]
        body = {"model": self.model, "messages": messages, "temperature": 0}
        headers = {"Content-Type": "application/json"}
        if self.key_variable:
            if self.key_variable not in os.environ:
                raise ValueError(f"the environment variable {self.key_variable} for the critic is not set")
            headers["Authorization"] = f"Bearer {os.environ[self.key_variable]}"
        request = urllib.request.Request(
            self.url.rstrip("/") + "/chat/completions", json.dumps(body).encode(), headers
        )
        with urllib.request.urlopen(request, timeout=self.seconds) as reply:
            text = reply.read(_LARGEST_REPLY)
        return _score(text)


def _score(reply: bytes) -> float:
    """The score in a reply of the chat protocol.

    Raises:
        ValueError: anything but a reply whose message ends with `Score: ` and a digit from 0 to 5.
    """
    try:
        message: Any = json.loads(reply)["choices"][0]["message"]["content"]
    except (ValueError, LookupError, TypeError) as error:
        raise ValueError(f"the critic's reply is no chat completion: {reply[:120]!r}") from error
    found = _SCORE.search(message) if isinstance(message, str) else None
    if found is None:
        raise ValueError(f"the critic's reply ends with no score from 0 to 5: {message!r:.120}")
    return float(found.group(1))
