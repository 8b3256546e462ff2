"""F17 of policy-gradients.md: three prompts with a target sequence each; a table of logits is the policy."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from outdo.core.batch import Batch
from outdo.core.protocols import Evaluation, Report

TARGETS = torch.tensor([[0, 1, 2, 3], [3, 3, 0, 1], [2, 0, 2, 1]])
TOKENS = 4


class TablePolicy:
    """Logits [prompt, position, token]; observation = prompt number per row."""

    def __init__(self, critic: bool = False) -> None:
        self.logits = nn.Parameter(torch.zeros(*TARGETS.shape, TOKENS))
        self.values = nn.Parameter(torch.zeros(TARGETS.shape)) if critic else None
        self.evaluations = 0
        self.updates = 0

    def evaluate(self, batch: Batch, *, entropy: bool = False) -> Evaluation:
        self.evaluations += 1
        width = batch.logp.shape[1]
        logp = self.logits.log_softmax(-1)[batch.obs][:, :width]
        zero = torch.zeros(())
        chosen = logp.gather(-1, batch.action[..., None]).squeeze(-1)
        spread = -(logp.exp() * logp).sum(-1)
        values = None if self.values is None else self.values[batch.obs][:, :width]
        return Evaluation(
            torch.where(batch.valid, chosen, zero),
            torch.where(batch.valid, spread if entropy else spread.detach(), zero),
            None if values is None else torch.where(batch.valid, values, zero),
        )

    def micro_batches(self, batch: Batch, budget: int) -> list[torch.Tensor]:
        rows = max(1, budget // batch.logp.shape[1])
        return list(torch.arange(len(batch)).split(rows))

    def named_parameters(self):
        yield "logits", self.logits
        if self.values is not None:
            yield "values", self.values

    def updated(self) -> None:
        self.updates += 1

    def reference(self) -> TablePolicy:
        return copy.deepcopy(self)

    def state_dict(self) -> dict:
        return {"updates": self.updates}

    def load_state_dict(self, state: dict) -> None:
        self.updates = state["updates"]

    def save(self, folder: Path) -> None:
        save_file({name: p.detach() for name, p in self.named_parameters()}, folder / "table.safetensors")

    def load(self, folder: Path) -> None:
        for name, tensor in load_file(folder / "table.safetensors").items():
            dict(self.named_parameters())[name].data.copy_(tensor)


class SequenceTask:
    """Samples `group` sequences for every prompt; reward = share of right tokens, on the last token.

    Draws from the global torch stream on purpose: a resumed run must put that one back too.
    """

    def __init__(self, group: int = 8) -> None:
        self.group = group
        self.drawn = 0
        self.poison: dict[int, dict[str, float]] = {}

    def collect(self, policy: TablePolicy, step: int) -> Batch:
        prompts = torch.arange(len(TARGETS)).repeat_interleave(self.group)
        logp = policy.logits.detach().log_softmax(-1)[prompts]
        action = torch.multinomial(logp.exp().flatten(0, 1), 1).view(len(prompts), -1)
        self.drawn += len(prompts)
        reward = torch.zeros(action.shape)
        reward[:, -1] = (action == TARGETS[prompts]).float().mean(1)
        chosen = logp.gather(-1, action[..., None]).squeeze(-1)
        last = torch.zeros_like(action, dtype=torch.bool)
        last[:, -1] = True
        for name, value in self.poison.get(step, {}).items():
            {"reward": reward, "logp": chosen}[name][5, -1] = value
        value = None if policy.values is None else policy.values.detach()[prompts]
        return Batch(
            obs=prompts,
            action=action,
            logp=chosen,
            reward=reward,
            discount=torch.where(last, 0.0, 1.0),
            cut=last,
            valid=torch.ones_like(last),
            group=prompts,
            value=value,
            next_value=None if value is None else torch.cat([value[:, 1:], torch.zeros(len(value), 1)], 1),
            info=tuple({"text": str(row)} for row in action.tolist()),
        )

    def metrics(self) -> dict[str, float]:
        return {"drawn": self.drawn}

    def state_dict(self) -> dict:
        return {"drawn": self.drawn, "tensor": torch.tensor([self.drawn])}

    def load_state_dict(self, state: dict) -> None:
        assert int(state["tensor"]) == state["drawn"]
        self.drawn = state["drawn"]


def accuracy(policy: TablePolicy) -> Report:
    """Share of positions where the most likely token is right."""
    greedy = policy.logits.detach().argmax(-1)
    return Report(
        {"greedy": float((greedy == TARGETS).float().mean())},
        [{"prompt": 0, "answer": str(greedy[0].tolist())}],
    )
