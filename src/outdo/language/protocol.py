"""What environments and evaluators ask of a language policy, beside what training asks of any policy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import Tensor

from outdo.core.batch import Batch
from outdo.core.protocols import Policy
from outdo.language.data import DataError, Item, Messages
from outdo.language.sampling import Completion, Sampling


class LanguagePolicy(Policy, Protocol):
    """A policy over tokens that can encode, sample and decode."""

    @property
    def context(self) -> int:
        """The most tokens, prompt and answer together, the model takes."""
        ...

    @property
    def stop_tokens(self) -> tuple[int, ...]:
        """Tokens that end an answer; the first is the one that demonstrations end with."""
        ...

    @property
    def has_critic(self) -> bool:
        """Whether `evaluate` gives values."""
        ...

    def encode_chat(self, messages: list[dict[str, Any]]) -> list[int]:
        """Tokens of a chat up to where the answer begins, by the model's own template."""
        ...

    def encode(self, text: str) -> list[int]:
        """Tokens of plain text, no special ones added."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of tokens, special ones left out."""
        ...

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        copies: int,
        sampling: Sampling,
        streams: Sequence[tuple[int, ...]],
    ) -> list[list[Completion]]:
        """`copies` completions per prompt; copy j of prompt i draws from the stream `(*streams[i], j)`."""
        ...

    def final_value(self, batch: Batch) -> Tensor:
        """[B] critic at the state after each row's last valid token."""
        ...


def prompt_text(item: Item) -> str:
    """What a person reads as the prompt: the text, or the last message of the chat."""
    prompt: str | Messages = item["prompt"]
    return prompt if isinstance(prompt, str) else str(prompt[-1]["content"])


def encode_prompt(policy: LanguagePolicy, item: Item) -> tuple[int, ...]:
    """Tokens of the item's prompt: chat messages by the model's template, text as it is.

    Raises:
        DataError: the prompt leaves no room for an answer in the context, or is empty; it is quoted.
    """
    prompt: str | Messages = item["prompt"]
    ids = tuple(policy.encode(prompt) if isinstance(prompt, str) else policy.encode_chat(prompt))
    if not ids:
        raise DataError(f"the prompt {prompt_text(item)!r:.80} has no tokens")
    if len(ids) + 1 > policy.context:
        raise DataError(
            f"the prompt {prompt_text(item)!r:.80}… has {len(ids)} tokens, but the model's context is "
            f"{policy.context} and an answer needs at least one: shorten the prompt or drop the item"
        )
    return ids
