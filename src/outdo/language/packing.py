"""Packs rows into one token sequence without padding; a prompt shared by rows of a group is stored and computed once.

Axes: N packed tokens, R rows (completions), G distinct prompts, P longest prompt, C longest fed completion.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Packed:
    """Index tensors of one packed piece.

    The token sequence is all distinct prompts, one after another, then all completions without their last
    token (whatever follows it is not scored).

    | field | shape | meaning |
    |---|---|---|
    | `tokens`, `positions` | [N] | ids, and positions for the rotary embedding |
    | `prompt` | [G, P] | packed index of every prompt token; `N` (one past the end) is padding |
    | `prompt_lengths` | [G] | |
    | `completion` | [R, C] | packed index of every fed completion token; `N` is padding |
    | `row_prompt` | [R] | which prompt a row continues |
    | `scored` | [M] | packed index of the hidden state that predicts each completion token |
    | `target` | [M] | the completion token it predicts |
    | `row`, `step` | [M] | where that token stands in the batch |
    """

    tokens: Tensor
    positions: Tensor
    prompt: Tensor
    prompt_lengths: Tensor
    completion: Tensor
    row_prompt: Tensor
    scored: Tensor
    target: Tensor
    row: Tensor
    step: Tensor

    def to(self, device: torch.device) -> Packed:
        """The same on another device."""
        return Packed(*(getattr(self, item.name).to(device) for item in fields(self)))

    @property
    def max_position(self) -> int:
        """Largest position plus one."""
        return int(self.positions.max()) + 1


def _spread(starts: Tensor, lengths: Tensor, padding: int) -> Tensor:
    """Indices [rows, longest] of pieces that start at `starts`; `padding` beyond each length."""
    steps = torch.arange(int(lengths.max()) if len(lengths) else 0)
    return torch.where(steps < lengths[:, None], starts[:, None] + steps, padding)


def pack(
    prompts: Sequence[tuple[int, ...]], action: Tensor, lengths: Tensor, *, feed_last: bool = False
) -> Packed:
    """Pack rows: `prompts` one per row (equal ones are shared), `action` [R, T] ids, `lengths` [R] valid tokens.

    `feed_last` also feeds each completion's last token, for the value of the state after it.
    """
    action, lengths = action.cpu(), lengths.cpu()
    distinct: dict[tuple[int, ...], int] = {}
    row_prompt = torch.tensor(
        [distinct.setdefault(prompt, len(distinct)) for prompt in prompts], dtype=torch.long
    )
    prompt_lengths = torch.tensor([len(prompt) for prompt in distinct], dtype=torch.long)
    if len(prompt_lengths) and int(prompt_lengths.min()) == 0:
        raise ValueError("a prompt is empty: the first token needs a state to be predicted from")
    fed = lengths if feed_last else (lengths - 1).clamp(min=0)
    prompt_total, total = int(prompt_lengths.sum()), int(prompt_lengths.sum() + fed.sum())
    prompt_starts = prompt_lengths.cumsum(0) - prompt_lengths
    completion_starts = prompt_total + fed.cumsum(0) - fed
    completion = _spread(completion_starts, fed, total)
    tokens = torch.empty(total, dtype=torch.long)
    tokens[:prompt_total] = torch.tensor([token for prompt in distinct for token in prompt], dtype=torch.long)
    real = completion < total
    tokens[completion[real]] = action[:, : completion.shape[1]][real]
    positions = torch.empty(total, dtype=torch.long)
    prompt = _spread(prompt_starts, prompt_lengths, total)
    for index, first in (
        (prompt, torch.zeros_like(prompt_lengths)),
        (completion, prompt_lengths[row_prompt]),
    ):
        inside = index < total
        positions[index[inside]] = (first[:, None] + torch.arange(index.shape[1]))[inside]
    step = torch.arange(action.shape[1]).expand(len(lengths), -1)
    scored_mask = step < lengths[:, None]
    row = torch.arange(len(lengths))[:, None].expand_as(step)[scored_mask]
    step = step[scored_mask]
    after_prompt = (prompt_starts + prompt_lengths - 1)[row_prompt][row]
    scored = torch.where(step == 0, after_prompt, completion_starts[row] + step - 1)
    return Packed(
        tokens,
        positions,
        prompt,
        prompt_lengths,
        completion,
        row_prompt,
        scored,
        action[row, step],
        row,
        step,
    )
