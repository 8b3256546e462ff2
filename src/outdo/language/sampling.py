"""Sampling from a language model: settings, stop reasons, completions and the observation they answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Self

from torch import Tensor


class StopReason(StrEnum):
    """Why a completion ended."""

    STOP = "stop"
    """The model produced one of the stop tokens: a termination."""
    LENGTH = "length"
    """The token budget ran out: a truncation, not an end the model chose."""


@dataclass(frozen=True, slots=True)
class Sampling:
    """How to draw the next token.

    `temperature` 0 is greedy decoding; `top_k` 0 and `top_p` 1 keep the whole vocabulary. Log-probabilities
    are always those of the distribution that was sampled: tempered, cut and renormalised.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    max_tokens: int = 64

    def __post_init__(self) -> None:
        """Refuse settings that describe no distribution."""
        if self.temperature < 0:
            raise ValueError(f"temperature must be at least 0 (0 is greedy), got {self.temperature}")
        if self.top_k < 0:
            raise ValueError(f"top_k must be at least 0 (0 keeps every token), got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ValueError(f"top_p must be in (0, 1], got {self.top_p}")
        if self.max_tokens < 1:
            raise ValueError(f"max_tokens must be at least 1, got {self.max_tokens}")

    @property
    def greedy(self) -> bool:
        """Whether the most likely token is taken."""
        return self.temperature == 0


@dataclass(frozen=True, slots=True)
class Completion:
    """One sampled answer: `tokens` (the stop token included), their `logp` as sampled, and why it ended."""

    tokens: list[int]
    logp: list[float]
    stop: StopReason


@dataclass(frozen=True, slots=True)
class TextObs:
    """The observation of a language batch: a prompt (token ids) per row, and the sampling that answered it."""

    prompts: tuple[tuple[int, ...], ...]
    sampling: Sampling

    def select(self, rows: Tensor) -> Self:
        """The prompts of the given rows; whatever else was seen stays."""
        return replace(self, prompts=tuple(self.prompts[i] for i in rows.tolist()))
