"""One vocabulary for an answer: words of the reasoning trace, then control tokens.

    answer = word* <trajectory> (acceleration curvature)* <end>

Control tokens are uniform bins of the unicycle's controls, as in Alpamayo-R1 (arXiv 2511.00088): 64 ticks × 2 tokens
in the full code. The number of bins is unstated there. The short code holds each pair for several ticks. Nothing
but a complete trajectory is decoded: what is short, long or out of place is a fault, never a control of zero.
Axes: N trajectories, H ticks, L control tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from outdo.driving.dynamics import MAX_ACCELERATION, MAX_CURVATURE
from outdo.driving.reasoning import WORDS, Trace, TraceError, parse, text_of, words
from outdo.driving.scene import DT, HORIZON

Floats = NDArray[np.float64]
Ids = NDArray[np.int64]


class Fault(StrEnum):
    """What can be wrong with an answer. All but `TRACE` leave it without a trajectory."""

    EMPTY = "empty"
    TRACE = "unparseable reasoning"
    NO_TRAJECTORY = "no trajectory"
    TRUNCATED = "truncated"
    SURPLUS = "surplus tokens"
    MISPLACED = "misplaced token"


class FormatError(ValueError):
    """Tokens that are no trajectory; `fault` is its kind, the message says where and why."""

    def __init__(self, fault: Fault, message: str) -> None:
        super().__init__(message)
        self.fault = fault


@dataclass(frozen=True, slots=True)
class ControlCode:
    """Controls as tokens: one pair for each `hold` ticks, uniform bins whose centres reach from limit to limit.

    Bin i of n is (2i/(n − 1) − 1)·limit, so that an odd n has 0 among them: by default steps of 0.2 m/s² and
    0.001 1/m. Tokens are 0 … `size` − 1, accelerations first.

    Raises:
        ValueError: `hold` does not divide the 64 ticks, or bins without a middle.
    """

    hold: int = 8
    acceleration_bins: int = 99
    curvature_bins: int = 401

    def __post_init__(self) -> None:
        """Refuse a code that cannot say a trajectory, or not say zero."""
        if self.hold < 1 or HORIZON % self.hold:
            raise ValueError(f"hold must divide {HORIZON} ticks, got {self.hold}")
        for bins in (self.acceleration_bins, self.curvature_bins):
            if bins < 3 or bins % 2 == 0:
                raise ValueError(f"bins must be odd and at least 3, so that one of them is 0; got {bins}")

    @property
    def length(self) -> int:
        """Control tokens L of a trajectory."""
        return 2 * HORIZON // self.hold

    @property
    def size(self) -> int:
        """Number of different control tokens."""
        return self.acceleration_bins + self.curvature_bins

    def encode(self, speed: Floats, control: Floats) -> Ids:
        """Tokens [N, L] of controls [N, H, 2] from speeds [N] at the start (m/s).

        Each pair aims at the speed and the heading that the exact controls reach when it ends, so that
        rounding errors do not add up. Beyond the limits the last bin stands.

        Raises:
            ValueError: other shapes, or controls that are not finite.
        """
        if control.shape != (len(speed), HORIZON, 2):
            raise ValueError(f"control must be [{len(speed)}, {HORIZON}, 2], got {list(control.shape)}")
        if not (np.isfinite(control).all() and np.isfinite(speed).all()):
            raise ValueError("speeds and controls must be finite")
        exact = speed[:, None] + np.cumsum(control[..., 0] * DT, 1)
        before = np.concatenate([speed[:, None], exact[:, :-1]], 1)
        heading = np.cumsum(control[..., 1] * DT * (before + exact) / 2, 1)
        span = self.hold * DT
        tokens = np.empty((len(speed), self.length), np.int64)
        v, turned = speed, np.zeros(len(speed))
        for k in range(self.length // 2):
            end = (k + 1) * self.hold - 1
            a_token = _nearest((exact[:, end] - v) / span, MAX_ACCELERATION, self.acceleration_bins)
            a = _value(a_token, MAX_ACCELERATION, self.acceleration_bins)
            arc = v * span + a * span * span / 2
            mean = control[:, end - self.hold + 1 : end + 1, 1].mean(1)
            moves = np.abs(arc) > 0.1 * span
            wanted = np.where(moves, (heading[:, end] - turned) / np.where(moves, arc, 1.0), mean)
            k_token = _nearest(wanted, MAX_CURVATURE, self.curvature_bins)
            v, turned = v + a * span, turned + _value(k_token, MAX_CURVATURE, self.curvature_bins) * arc
            tokens[:, 2 * k], tokens[:, 2 * k + 1] = a_token, self.acceleration_bins + k_token
        return tokens

    def decode(self, tokens: Sequence[int]) -> Floats:
        """Controls [H, 2] of the L tokens of one trajectory.

        Raises:
            FormatError: too few tokens, too many, or a token that is no control of the kind its place asks for.
        """
        if len(tokens) < self.length:
            raise FormatError(Fault.TRUNCATED, f"{len(tokens)} control tokens of {self.length}")
        if len(tokens) > self.length:
            raise FormatError(Fault.SURPLUS, f"{len(tokens)} control tokens, a trajectory has {self.length}")
        a, kappa = np.array(tokens[::2]), np.array(tokens[1::2]) - self.acceleration_bins
        wrong = [(a < 0) | (a >= self.acceleration_bins), (kappa < 0) | (kappa >= self.curvature_bins)]
        if np.any(wrong):
            place = int(np.argmax(np.stack(wrong, 1).reshape(-1)))
            kind = "curvature" if place % 2 else "acceleration"
            raise FormatError(Fault.MISPLACED, f"control token {place} ({tokens[place]}) is no {kind}")
        pairs = [
            _value(a, MAX_ACCELERATION, self.acceleration_bins),
            _value(kappa, MAX_CURVATURE, self.curvature_bins),
        ]
        return np.repeat(np.stack(pairs, -1), self.hold, axis=0)


SHORT = ControlCode()
"""16 tokens: each pair is held for 0.8 s."""
FULL = ControlCode(hold=1)
"""128 tokens: a pair each tick."""


def _nearest(value: Floats, limit: float, bins: int) -> Ids:
    return np.clip(np.rint((value / limit + 1) * (bins - 1) / 2), 0, bins - 1).astype(np.int64)


def _value(index: Ids, limit: float, bins: int) -> Floats:
    """Exact at the middle and at both ends."""
    return (2 * index - (bins - 1)) / (bins - 1) * limit


@dataclass(frozen=True, slots=True, eq=False)
class Answer:
    """What a policy wrote: `text` of its reasoning; `trace` and `control` [H, 2] as far as they could be read.

    `faults` with the reason of each; no faults means that both are there.
    """

    text: str
    trace: Trace | None = None
    control: Floats | None = None
    faults: tuple[tuple[Fault, str], ...] = ()


SPECIALS = ("<pad>", "<start>", "<trajectory>", "<end>")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Ids of all tokens: special ones, words of the reasoning grammar, controls of a `code`, in this order."""

    code: ControlCode = SHORT

    @property
    def size(self) -> int:
        """Number of ids."""
        return self.controls_at + self.code.size

    @property
    def controls_at(self) -> int:
        """The id of the first control token."""
        return len(SPECIALS) + len(WORDS)

    @property
    def longest(self) -> int:
        """Most tokens a well-formed answer can have, `<trajectory>` and `<end>` included."""
        return LONGEST_TRACE + 1 + self.code.length + 1

    def word(self, token: int) -> str:
        """A token as a person reads it."""
        if not 0 <= token < self.size:
            raise ValueError(f"token {token} is outside the vocabulary of {self.size}")
        at = token - self.controls_at
        if at < 0:
            return (*SPECIALS, *WORDS)[token]
        a_bins, k_bins = self.code.acceleration_bins, self.code.curvature_bins
        if at < a_bins:
            return f"<a:{_value(np.array(at), MAX_ACCELERATION, a_bins):+.2f}>"
        return f"<k:{_value(np.array(at - a_bins), MAX_CURVATURE, k_bins):+.4f}>"

    def write(self, trace: Trace | None, controls: Sequence[int]) -> list[int]:
        """Ids of an answer: a trace (or none) and the control tokens of `ControlCode.encode`."""
        said = [] if trace is None else [_WORD_IDS[word] for word in words(str(trace))]
        return [*said, TRAJECTORY, *(self.controls_at + int(token) for token in controls), END]

    def read(self, ids: Sequence[int]) -> Answer:
        """What the ids of a completion say, the end token included; any ids at all, it never raises."""
        if not len(ids) or ids[0] == END:
            return Answer("", faults=((Fault.EMPTY, "no tokens"),))
        cut = next((i for i, token in enumerate(ids) if token == TRAJECTORY), None)
        said = ids if cut is None else ids[:cut]
        text = text_of(self._shown(token) for token in said if token != END)
        faults: list[tuple[Fault, str]] = []
        trace = control = None
        try:
            trace = parse(text)
        except TraceError as error:
            faults.append((Fault.TRACE, str(error)))
        try:
            if cut is None:
                raise FormatError(Fault.NO_TRAJECTORY, f"no {SPECIALS[TRAJECTORY]} in {len(ids)} tokens")
            control = self._controls(ids[cut + 1 :])
        except FormatError as error:
            faults.append((error.fault, str(error)))
        return Answer(text, trace, control, tuple(faults))

    def _controls(self, ids: Sequence[int]) -> Floats:
        end = next((i for i, token in enumerate(ids) if token == END), None)
        if end is None:
            fault = Fault.TRUNCATED if len(ids) <= self.code.length else Fault.SURPLUS
            raise FormatError(fault, f"no {SPECIALS[END]} after {len(ids)} control tokens")
        if end < len(ids) - 1:
            raise FormatError(Fault.SURPLUS, f"{len(ids) - 1 - end} tokens after {SPECIALS[END]}")
        return self.code.decode([int(token) - self.controls_at for token in ids[:end]])

    def _shown(self, token: int) -> str:
        return self.word(token) if 0 <= token < self.size else f"<{token}>"


PAD, START, TRAJECTORY, END = range(len(SPECIALS))
LONGEST_TRACE = 18
_WORD_IDS = {word: len(SPECIALS) + i for i, word in enumerate(WORDS)}


def count_faults(answers: Iterable[Answer]) -> dict[str, int]:
    """How many answers have each kind of fault, every kind named; for the log."""
    counted = Counter(fault for answer in answers for fault, _ in answer.faults)
    return {fault.value: counted[fault] for fault in Fault}
