"""Token sequences: prompts with a target each, a table of logits per prompt and position, a share as reward."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from outdo.core import returns
from outdo.core.batch import Batch
from outdo.lab.exact import tabular


@dataclass(frozen=True, slots=True)
class Sequences:
    """Write the target of the prompt; the reward, given with the last token, is the share of tokens that match.

    `targets[p]` are the tokens that prompt p asks for, all of one length T, from a vocabulary of `actions`
    tokens. The policy is a table of logits: state p·T + t is position t of prompt p, whatever was written
    before. Prompts are equally likely; J = mean_p (1/T) Σ_t π(target_pt | p, t).
    """

    targets: tuple[tuple[int, ...], ...]
    actions: int

    def __post_init__(self) -> None:
        """Refuse targets of unequal lengths and tokens outside the vocabulary."""
        lengths = {len(target) for target in self.targets}
        if len(lengths) != 1 or 0 in lengths:
            raise ValueError(f"targets must have one length of at least 1, got lengths {sorted(lengths)}")
        tokens = {token for target in self.targets for token in target}
        if min(tokens) < 0 or max(tokens) >= self.actions:
            raise ValueError(f"tokens must lie in 0 … {self.actions - 1}, got {sorted(tokens)}")

    @property
    def steps(self) -> int:
        """Tokens of an answer, T."""
        return len(self.targets[0])

    @property
    def states(self) -> int:
        """Prompts times positions."""
        return len(self.targets) * self.steps

    def _target(self) -> Tensor:
        """`[P, T]` int64."""
        return torch.tensor(self.targets)

    def _hit(self, logits: Tensor) -> Tensor:
        """Probability of the target's token per state, `[P, T]`."""
        table = torch.softmax(logits, dim=-1, dtype=torch.float64)
        return table[torch.arange(self.states), self._target().flatten()].view(-1, self.steps)

    def value(self, logits: Tensor) -> Tensor:
        """J, a scalar, differentiable in `logits` `[S, A]`."""
        return self._hit(logits).mean()

    def gradient(self, logits: Tensor) -> Tensor:
        """Exact ∇J, `[S, A]`."""
        return tabular.gradient(self, logits)

    def batch(self, logits: Tensor, prompt: Tensor, tokens: Tensor, group: int = 1) -> Batch:
        """The batch of given `prompt` `[B]` and `tokens` `[B, T]` int64.

        `value` is exact: V(s_t) = (matches before t + Σ_{k≥t} π(target_k)) / T.
        """
        state = prompt[:, None] * self.steps + torch.arange(self.steps)
        match = (tokens == self._target()[prompt]).double()
        hit = self._hit(logits.detach())[prompt]
        value = (match.cumsum(1) - match + hit.flip(1).cumsum(1).flip(1)) / self.steps
        last = torch.zeros_like(match, dtype=torch.bool)
        last[:, -1] = True
        valid = torch.ones_like(last)
        zero = torch.zeros_like(match)
        return Batch(
            obs=state,
            action=tokens,
            logp=torch.log_softmax(logits.detach(), dim=-1, dtype=torch.float64)[state, tokens],
            reward=torch.where(last, match.mean(dim=1, keepdim=True), zero),
            discount=(~last).double(),
            cut=last,
            valid=valid,
            group=tabular.group_ids(len(prompt), group),
            value=value,
            next_value=returns.next_values(value, zero, last, valid),
        )

    def sample(self, logits: Tensor, groups: int, group: int, generator: torch.Generator) -> Batch:
        """`group` answers to each of `groups` prompts; a prompt is drawn uniformly."""
        prompt = torch.randint(len(self.targets), (groups,), generator=generator).repeat_interleave(group)
        state = prompt[:, None] * self.steps + torch.arange(self.steps)
        return self.batch(logits, prompt, tabular.draw(logits[state], generator), group)
