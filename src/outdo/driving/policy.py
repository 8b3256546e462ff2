"""The driving policy: a scene encoder before a causal decoder that writes a reasoning trace and a trajectory.

The decoder is a Llama of transformers over the vocabulary of `outdo.driving.tokens`, so sampling, scoring and
training are those of `outdo.language.policy.CausalPolicy`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import AutoConfig, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from outdo.driving.encoder import SLOTS, SceneEncoder, SceneObs
from outdo.driving.observation import Observation
from outdo.driving.tokens import END, PAD, SHORT, SPECIALS, START, ControlCode, Vocabulary
from outdo.language.load import Loaded, ModelError
from outdo.language.policy import CausalPolicy
from outdo.language.sampling import Completion, Sampling

CODE = "driving_code"
"""Key of the model's configuration that holds the control code."""


class DrivingPolicy(CausalPolicy):
    """A policy over scenes: `answers` of what is seen, as tokens of `vocabulary`.

    Checkpoints hold the decoder as a model of transformers, with a tokenizer of the vocabulary, and the encoder's
    weights beside it.
    """

    def __init__(self, loaded: Loaded, **settings: Any) -> None:
        code = getattr(loaded.model.config, CODE, None)
        if code is None:
            raise ModelError(f"{loaded.source!r} is no driving policy: its config.json has no {CODE!r}")
        self.vocabulary = Vocabulary(ControlCode(**code))
        encoder = SceneEncoder(loaded.model.config.hidden_size, self.vocabulary.size)
        super().__init__(loaded, encoder=encoder, **settings)

    @classmethod
    def new(
        cls,
        *,
        seed: int = 0,
        code: ControlCode = SHORT,
        hidden: int = 128,
        layers: int = 4,
        heads: int = 4,
        **settings: Any,
    ) -> DrivingPolicy:
        """A policy with random weights drawn from `seed`; `settings` as for `CausalPolicy`.

        Raises:
            ValueError: heads that do not divide the hidden units into an even size.
        """
        if hidden % (2 * heads):
            raise ValueError(f"hidden = {hidden} must be a multiple of 2 · heads = {2 * heads}")
        vocabulary = Vocabulary(code)
        config = LlamaConfig(
            vocab_size=vocabulary.size,
            hidden_size=hidden,
            intermediate_size=3 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=heads,
            num_key_value_heads=heads,
            max_position_embeddings=SLOTS + 1 + vocabulary.longest,
            tie_word_embeddings=True,
            pad_token_id=PAD,
            bos_token_id=START,
            eos_token_id=END,
        )
        setattr(config, CODE, asdict(code))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            loaded = Loaded(LlamaForCausalLM(config), tokenizer(vocabulary), "a new driving policy")
            return cls(loaded, **settings)

    @classmethod
    def load_from(cls, path: str, *, seed: int = 0, **settings: Any) -> DrivingPolicy:
        """The policy that a folder of `save` holds; `settings` as for `CausalPolicy`.

        Raises:
            ModelError: no such folder, or no driving policy in it.
        """
        folder = Path(path)
        if not (folder / "encoder.safetensors").is_file():
            raise ModelError(f"{path!r} is no folder of a driving policy: it has no encoder.safetensors")
        config = AutoConfig.from_pretrained(folder)
        model = LlamaForCausalLM.from_pretrained(
            folder, config=config, dtype=torch.float32, use_safetensors=True
        )
        policy = cls(Loaded(model, PreTrainedTokenizerFast.from_pretrained(folder), path), **settings)
        policy._load_extras(folder, required=False)
        return policy

    def prompts(self, seen: Observation) -> list[tuple[int, ...]]:
        """The prompt of each scene: places of its prefix, then the token that begins an answer."""
        assert isinstance(self.encoder, SceneEncoder)
        return [(*prompt, START) for prompt in self.encoder.prompts(seen)]

    @torch.no_grad()
    def answers(
        self,
        seen: Observation,
        copies: int,
        sampling: Sampling,
        streams: Sequence[tuple[int, ...]],
    ) -> list[list[Completion]]:
        """`copies` answers to each scene; copy j of scene i draws from the stream `(*streams[i], j)`."""
        prompts = self.prompts(seen)
        prefix = self._prefix(SceneObs(tuple(prompts), sampling, seen))
        return self.generate(prompts, copies, sampling, streams, prefix)


def tokenizer(vocabulary: Vocabulary) -> PreTrainedTokenizerFast:
    """The vocabulary as a tokenizer of transformers: its words, one space apart."""
    ids = {vocabulary.word(token): token for token in range(vocabulary.size)}
    inner = Tokenizer(models.WordLevel(ids, unk_token=SPECIALS[PAD]))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token=SPECIALS[PAD],
        bos_token=SPECIALS[START],
        eos_token=SPECIALS[END],
    )
