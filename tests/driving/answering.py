"""Policies for tests, that write answers without a model."""

from __future__ import annotations

import numpy as np

from outdo.driving.scene import HORIZON
from outdo.driving.tokens import FULL, Vocabulary
from outdo.language.sampling import Completion, StopReason


def completion(tokens):
    return Completion(list(tokens), [0.0] * len(tokens), StopReason.STOP)


class Reciting:
    """Says in scene i what `demos[i]` says, and drives its controls on from the step it is asked at."""

    def __init__(self, demos):
        self.vocabulary, self._demos = Vocabulary(FULL), demos
        self.asked = []

    def answers(self, seen, copies, sampling, streams):
        self.asked.append((sampling, list(streams)))
        speed = seen.agents[:, 0, -1, 3].astype(np.float64)
        control = np.zeros((len(streams), HORIZON, 2))
        for n, (_, i, t) in enumerate(streams):
            control[n, : HORIZON - t] = self._demos[i].control[t:]
        written = self.vocabulary.code.encode(speed, control)
        return [
            [completion(self.vocabulary.write(self._demos[i].trace, tokens))] * copies
            for (_, i, _), tokens in zip(streams, written, strict=True)
        ]


class Scripted:
    """Answers question number k (from 0) with `script(vocabulary, k, speed)`, the ids for every scene and copy."""

    def __init__(self, script):
        self.vocabulary, self._script, self.asked = Vocabulary(), script, 0

    def answers(self, seen, copies, sampling, streams):
        speed = seen.agents[:, 0, -1, 3].astype(np.float64)
        rows = [[completion(self._script(self.vocabulary, self.asked, v))] * copies for v in speed]
        self.asked += 1
        return rows


def holding(vocabulary, speed, trace=None, a=0.0, kappa=0.0):
    """Ids of an answer with constant controls."""
    control = np.tile([a, kappa], (1, HORIZON, 1))
    return vocabulary.write(trace, vocabulary.code.encode(np.array([speed]), control)[0])
