"""Small random models and batches of random tokens that the model tests share."""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    Gemma2Config,
    Gemma2ForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from outdo.core.batch import Batch
from outdo.language.load import Loaded, tiny
from outdo.language.policy import CausalPolicy
from outdo.language.sampling import Sampling, TextObs

SHAPE: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "max_position_embeddings": 64,
    "eos_token_id": 2,
    "bos_token_id": 1,
    "pad_token_id": 2,
}
FAST = {
    "llama": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=False)),
    "llama-tied": lambda: LlamaForCausalLM(LlamaConfig(**SHAPE, tie_word_embeddings=True)),
    "llama3-rope": lambda: LlamaForCausalLM(
        LlamaConfig(
            **SHAPE,
            rope_parameters={
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        )
    ),
    "mistral": lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=None)),
    "qwen2": lambda: Qwen2ForCausalLM(Qwen2Config(**SHAPE)),
    "qwen3": lambda: Qwen3ForCausalLM(Qwen3Config(**SHAPE, head_dim=16)),
}
GENERAL = {
    "gpt2": lambda: GPT2LMHeadModel(
        GPT2Config(
            n_embd=64, n_layer=2, n_head=4, vocab_size=97, n_positions=64, eos_token_id=2, bos_token_id=1
        )
    ),
    "gemma2-softcap": lambda: Gemma2ForCausalLM(
        Gemma2Config(**SHAPE, head_dim=16, final_logit_softcapping=3.0, sliding_window=64)
    ),
    "cohere-scaled": lambda: CohereForCausalLM(CohereConfig(**SHAPE, logit_scale=0.25)),
    "mistral-window": lambda: MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=8)),
}


def build(name: str, seed: int = 0) -> Any:
    """A random model whose norms and biases are not the trivial ones they start from."""
    torch.manual_seed(seed)
    model = {**FAST, **GENERAL}[name]().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


def policy_of(model: Any, **settings: Any) -> CausalPolicy:
    """A float32 policy around `model`; its text side is the tiny tokenizer's."""
    settings = {"precision": "float32", "device": "cpu", **settings}
    return CausalPolicy(Loaded(model, tiny(0)[1], "test"), **settings)


def random_batch(
    sampling: Sampling | None = None,
    *,
    vocabulary: int = 97,
    lengths: tuple[int, ...] = (3, 1, 6, 7),
    seed: int = 0,
) -> Batch:
    """Rows of three different prompts, two of which are shared, with completions of the given lengths."""
    generator = torch.Generator().manual_seed(seed)
    prompts = [tuple(torch.randint(3, vocabulary, (n,), generator=generator).tolist()) for n in (5, 9, 2)]
    rows = tuple(prompts[(0, 0, 1, 2)[i % 4]] for i in range(len(lengths)))
    steps = max(lengths)
    action = torch.randint(3, vocabulary, (len(lengths), steps), generator=generator)
    valid = torch.arange(steps) < torch.tensor(lengths)[:, None]
    zeros = torch.zeros(len(lengths), steps)
    return Batch(
        obs=TextObs(rows, sampling or Sampling()),
        action=action.masked_fill(~valid, 0),
        logp=zeros,
        reward=zeros,
        discount=zeros + 1,
        cut=~valid,
        valid=valid,
        group=torch.arange(len(lengths)),
    )


def reference_logp(model: Any, batch: Batch, temperature: float = 1.0) -> torch.Tensor:
    """Log-probabilities [B, T] by transformers' own forward pass, one unpadded row at a time."""
    out = torch.zeros(batch.logp.shape, dtype=next(model.parameters()).dtype)
    for i, prompt in enumerate(batch.obs.prompts):
        answer = batch.action[i, : int(batch.lengths[i])]
        ids = torch.cat((torch.tensor(prompt), answer))
        logits = model(input_ids=ids[None]).logits[0].to(out.dtype)
        log_p = (logits / temperature).log_softmax(dim=-1)
        at = torch.arange(len(answer))
        out[i, : len(answer)] = log_p[len(prompt) - 1 + at, answer]
    return out
