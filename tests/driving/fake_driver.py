"""A driving policy without a model: a function of scene and stream gives the answers; prompts name places in `seen`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from outdo.core.protocols import Evaluation
from outdo.driving.tokens import Vocabulary
from outdo.language.sampling import Completion, StopReason


@dataclass
class FakeDriver:
    """`answer(policy, seen, n, key)` gives the ids of an answer to scene n of `seen`; token i has logp −0.1·(i + 1)."""

    answer: Any
    vocabulary: Vocabulary = field(default_factory=Vocabulary)
    has_critic: bool = False
    calls: list[Any] = field(default_factory=list)

    def prompts(self, seen):
        return [(self.vocabulary.size + n,) for n in range(len(seen.kind))]

    def answers(self, seen, copies, sampling, streams):
        self.calls.append((seen, copies, sampling, list(streams)))
        assert len(streams) == len(seen.kind)
        return [
            [self._completion(self.answer(self, seen, n, (*key, j)), sampling) for j in range(copies)]
            for n, key in enumerate(streams)
        ]

    def _completion(self, ids, sampling):
        stop = StopReason.STOP if len(ids) <= sampling.max_tokens else StopReason.LENGTH
        ids = list(ids[: sampling.max_tokens])
        return Completion(ids, [-0.1 * (i + 1) for i in range(len(ids))], stop)

    def micro_batches(self, batch, budget):
        return [torch.tensor([i]) for i in reversed(range(len(batch)))]

    def evaluate(self, batch, *, entropy=False):
        """Value: number of the scene in `seen`, times 10, plus the step."""
        scene = torch.tensor([prompt[0] - self.vocabulary.size for prompt in batch.obs.prompts])
        value = 10.0 * scene[:, None] + torch.arange(batch.logp.shape[1])
        return Evaluation(batch.logp, value=torch.where(batch.valid, value, 0.0))

    def final_value(self, batch):
        return torch.full((len(batch),), 99.0)
