"""From completions to the batch: the one builder of `discount`, `cut` and `next_value` for text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, pstdev
from typing import Any

import torch
from torch import Tensor

from outdo.core.batch import Batch
from outdo.language.data import Item
from outdo.language.protocol import LanguagePolicy
from outdo.language.sampling import Completion, Sampling, StopReason, TextObs

VALUE_TOKENS = 8192
"""Tokens evaluated at once when a critic's values are filled in; memory, not results, depends on it."""


RESERVED = ("prompts", "completions", "completion_ids")
"""Columns that reward functions get from the run; the data cannot have them."""


def reward_columns(
    items: Sequence[Item], texts: Sequence[str], ids: Sequence[list[int]]
) -> dict[str, Sequence[Any]]:
    """What reward functions receive for completions `texts` of `items`, one entry each.

    `prompts`, `completions`, `completion_ids`, and every column of the data but `prompt` (None where an item
    lacks it). As in TRL the completion of a chat is a list of one message, and the completion of a text is
    text.
    """
    names = {name: None for item in items for name in item if name != "prompt"}
    return {
        **{name: [item.get(name) for item in items] for name in names},
        "prompts": [item["prompt"] for item in items],
        "completions": [
            text if isinstance(item["prompt"], str) else [{"role": "assistant", "content": text}]
            for item, text in zip(items, texts, strict=True)
        ],
        "completion_ids": ids,
    }


@dataclass(frozen=True, slots=True)
class Row:
    """A completion with its prompt's tokens, total reward and group; `keep` False: it carries no loss."""

    prompt: tuple[int, ...]
    completion: Completion
    reward: float
    group: int
    keep: bool
    info: dict[str, Any]


def pack_rows(rows: Sequence[Row], sampling: Sampling, gamma: float) -> Batch:
    """The batch `[B, T]` of completions; T counts completion tokens, prompts are in `obs`.

    The ids are those that were sampled. The reward sits on the last token. `discount` is γ, and 0 on a last
    token that stopped the answer (a termination); on one that ran out of budget it stays γ (a truncation).
    `cut` is on the last token either way. Masks come from lengths, never from token values.

    Raises:
        ValueError: no rows, or an empty completion.
    """
    if not rows:
        raise ValueError("a batch needs at least one row")
    lengths = torch.tensor([len(row.completion.tokens) for row in rows])
    if int(lengths.min()) < 1:
        raise ValueError(f"row {int(lengths.argmin())} has an empty completion")
    valid = torch.arange(int(lengths.max()))[None, :] < lengths[:, None]
    last = lengths - 1
    index = torch.arange(len(rows))
    stopped = torch.tensor([row.completion.stop is StopReason.STOP for row in rows])
    discount = valid * gamma
    discount[index, last] = torch.where(stopped, 0.0, gamma)
    reward = torch.zeros(valid.shape)
    reward[index, last] = torch.tensor([row.reward for row in rows])
    cut = torch.zeros_like(valid)
    cut[index, last] = True
    return Batch(
        obs=TextObs(tuple(row.prompt for row in rows), sampling),
        action=_padded([row.completion.tokens for row in rows], valid, torch.int64),
        logp=_padded([row.completion.logp for row in rows], valid, torch.float32),
        reward=reward,
        discount=discount,
        cut=cut,
        valid=valid,
        group=torch.tensor([row.group for row in rows]),
        keep=None if all(row.keep for row in rows) else torch.tensor([row.keep for row in rows]),
        info=tuple(row.info for row in rows),
    )


def _padded(values: Sequence[Sequence[float]], valid: Tensor, dtype: torch.dtype) -> Tensor:
    padded = torch.zeros(valid.shape, dtype=dtype)
    padded[valid] = torch.tensor([value for row in values for value in row], dtype=dtype)
    return padded


def sampled_figures(
    rows: Sequence[tuple[Completion, float | None]], terms: Mapping[str, Sequence[float]]
) -> dict[str, float]:
    """Figures for the log of sampled answers with their rewards (None: unscored) and the known values of each term."""
    rewards = [reward for _, reward in rows if reward is not None]
    lengths = [len(completion.tokens) for completion, _ in rows]
    return {
        "reward": fmean(rewards),
        "reward_std": pstdev(rewards),
        **{f"reward/{name}": fmean(values) for name, values in terms.items() if values},
        "length": fmean(lengths),
        "truncated": sum(completion.stop is StopReason.LENGTH for completion, _ in rows) / len(rows),
        "unscored": float(sum(reward is None for _, reward in rows)),
        "generated_tokens": float(sum(lengths)),
    }


@torch.no_grad()
def with_values(batch: Batch, policy: LanguagePolicy) -> Batch:
    """The batch with the critic's `value` V(s_t) and `next_value` V(s_{t+1}), `[B, T]`.

    `next_value` at the last token is 0 where the answer stopped, and where it was truncated V of the state
    after the last token (`policy.final_value`), which is not V of the last state that was acted in.
    """
    value = torch.zeros(batch.logp.shape)
    final = torch.zeros(len(batch))
    for rows in policy.micro_batches(batch, VALUE_TOKENS):
        piece = batch.select(rows)
        evaluation = policy.evaluate(piece)
        if evaluation.value is None:
            raise ValueError("the policy says it has a critic but gives no values")
        value[rows] = evaluation.value.float().cpu()
        final[rows] = policy.final_value(piece).float().cpu()
    index, last = torch.arange(len(batch)), batch.lengths - 1
    next_value = torch.cat([value[:, 1:], torch.zeros(len(batch), 1)], dim=1)
    terminated = batch.discount[index, last] == 0
    next_value[index, last] = torch.where(terminated, 0.0, final)
    return batch.with_(value=value, next_value=next_value)
