"""A policy without a model: letters are tokens, a function of prompt and stream gives the completions."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from outdo.core.protocols import Evaluation
from outdo.language.sampling import Completion, StopReason

STOP = 2


@dataclass
class FakePolicy:
    """`answer(prompt text, stream key)` is the sampled text; code points are token ids, 2 stops."""

    answer: Any = lambda prompt, key: "x"
    context: int = 100
    stop_tokens: tuple[int, ...] = (STOP,)
    has_critic: bool = False
    calls: list[Any] = field(default_factory=list)

    def encode(self, text):
        return [ord(c) for c in text]

    def encode_chat(self, messages):
        return self.encode("".join(f"<{m['role']}>{m['content']}" for m in messages) + "<assistant>")

    def decode(self, ids):
        return "".join(chr(i) for i in ids if i != STOP)

    def generate(self, prompts, copies, sampling, streams):
        self.calls.append((prompts, copies, sampling, list(streams)))
        return [
            [self._completion(self.decode(p), (*key, j), sampling) for j in range(copies)]
            for p, key in zip(prompts, streams, strict=True)
        ]

    def _completion(self, prompt, key, sampling):
        tokens = [*self.encode(self.answer(prompt, key)), STOP]
        stop = StopReason.STOP if len(tokens) <= sampling.max_tokens else StopReason.LENGTH
        tokens = tokens[: sampling.max_tokens]
        return Completion(tokens, [-0.5 - 0.25 * i for i in range(len(tokens))], stop)

    def micro_batches(self, batch, budget):
        return [torch.tensor([i]) for i in reversed(range(len(batch)))]

    def evaluate(self, batch, *, entropy=False):
        steps = torch.arange(batch.logp.shape[1]) + 1.0
        value = steps[None, :] + 10.0 * batch.group[:, None]
        return Evaluation(batch.logp, value=torch.where(batch.valid, value, 0.0))

    def final_value(self, batch):
        return batch.lengths + 1.0 + 10.0 * batch.group
