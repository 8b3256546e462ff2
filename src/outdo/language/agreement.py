"""Whether this library's ways of computing a model agree with transformers' own, tried on a few tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from outdo.language.head import Head
from outdo.language.llama import LlamaDecoder
from outdo.language.load import ModelError
from outdo.language.packing import pack

SAME_LOGITS = 1e-3
"""Largest difference of a logit, relative to their spread, at which two ways of computing them count as one."""


def bend(config: Any) -> tuple[float, float | None]:
    """Scale and soft cap of the logits, by the names transformers' configurations use."""
    scale = getattr(config, "logit_scale", None) or 1.0
    return scale / (getattr(config, "logits_scaling", None) or 1.0), getattr(
        config, "final_logit_softcapping", None
    )


@torch.no_grad()
def probe(base: Any) -> tuple[Tensor, Tensor]:
    """A few tokens [8], and the whole model's own logits [8, V] of them."""
    table = base.get_input_embeddings().weight
    ids = (torch.arange(8, device=table.device) * 7919) % table.shape[0]
    return ids, base(input_ids=ids[None]).logits[0].float()


@torch.no_grad()
def check_head(base: Any, head: Head, source: str, ids: Tensor, expected: Tensor) -> None:
    """Compare logits of `head` over the body's states with those that `probe` gave.

    Raises:
        ModelError: the model's head does more than `Head` does.
    """
    body = base.get_decoder()(input_ids=ids[None]).last_hidden_state[0]
    if not _same(head.logits(body), expected):
        raise ModelError(
            f"the head of {source!r} does more than a linear layer with scaled or soft-capped logits: its "
            "log-probabilities cannot be computed in chunks, so outdo does not train it"
        )


@torch.no_grad()
def same_forward(decoder: LlamaDecoder, head: Head, ids: Tensor, expected: Tensor) -> bool:
    """Whether the fast path's logits are those that `probe` gave."""
    none = torch.zeros(1, dtype=torch.long)
    packed = pack([tuple(ids.tolist())], none[:, None], none).to(ids.device)
    hidden = decoder.final_norm(decoder.forward(packed)[0][packed.whole[0]])
    return _same(head.logits(hidden), expected)


def _same(found: Tensor, expected: Tensor) -> bool:
    return bool((found - expected).abs().max() <= SAME_LOGITS * (expected.std() + 1e-12))
