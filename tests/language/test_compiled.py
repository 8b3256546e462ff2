"""The compiled loop against decoding step by step, and the compiled passes against float64 and autograd."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from models import FAST, build, policy_of, random_batch

from outdo.language import compiled, elementwise, kernels, llama
from outdo.language.engine import Completion, choose
from outdo.language.policy import CausalPolicy
from outdo.language.sampling import Sampling

PROMPTS = [(5, 6, 7, 8, 9), (10, 11), (12,), (20, 21, 22, 23, 24, 25, 26, 27)]
SAMPLINGS = (
    Sampling(temperature=0, max_tokens=20),
    Sampling(max_tokens=20),
    Sampling(temperature=0.7, top_k=9, max_tokens=20),
    Sampling(temperature=1.3, top_p=0.8, max_tokens=20),
    Sampling(top_k=20, top_p=0.9, max_tokens=20),
)


def completions(policy: CausalPolicy, sampling: Sampling) -> list[Completion]:
    done = policy.generate(PROMPTS, 3, sampling, [(7, i) for i in range(len(PROMPTS))])
    return [completion for group in done for completion in group]


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("name", FAST)
def test_the_loop_equals_decoding_step_by_step(
    name: str, sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = policy_of(build(name))
    policy.stop_tokens = tuple(range(2, 9))  # sampled rows leave at different times
    calls: list[int] = []
    loop = kernels.decode
    monkeypatch.setattr(kernels, "decode", lambda *given: calls.append(len(given[3])) or loop(*given))
    own = completions(policy, sampling)
    assert sum(calls) == 12
    monkeypatch.setattr(compiled, "SMALL", 0)
    monkeypatch.setattr(compiled, "MOST_ROWS", 11)
    calls.clear()
    for mine, stepwise in zip(own, completions(policy, sampling), strict=True):
        assert mine.tokens == stepwise.tokens
        assert mine.stop is stepwise.stop
        torch.testing.assert_close(torch.tensor(mine.logp), torch.tensor(stepwise.logp), rtol=1e-4, atol=1e-5)
    assert calls == []
    assert sampling.greedy or len({len(completion.tokens) for completion in own}) > 1


@pytest.mark.parametrize("small", [compiled.SMALL, 0])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_threads_change_nothing(threads: int, small: int, monkeypatch: pytest.MonkeyPatch) -> None:
    policy = policy_of(build("qwen3"))
    policy.stop_tokens = tuple(range(2, 9))
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    whole = completions(policy, SAMPLINGS[1])
    parts: list[int] = []
    loop = kernels.decode
    monkeypatch.setattr(kernels, "decode", lambda *given: parts.append(len(given[3])) or loop(*given))
    monkeypatch.setattr(compiled, "SMALL", small)
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    assert completions(policy, SAMPLINGS[1]) == whole
    assert parts == ([12] * threads if small == 0 else [12] if threads == 1 else [8, 4])


def test_other_precisions_are_left_to_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = policy_of(build("llama"), precision="bfloat16")
    monkeypatch.setattr(kernels, "decode", lambda *_: pytest.fail("the compiled loop computes in float32"))
    assert all(completion.tokens for completion in completions(policy, SAMPLINGS[1]))


def test_the_weights_of_now_are_used() -> None:
    policy = policy_of(build("llama"))
    before = completions(policy, SAMPLINGS[0])
    with torch.no_grad():
        policy.model.lm_head.weight.neg_()
    assert completions(policy, SAMPLINGS[0]) != before


@pytest.mark.parametrize("sampling", SAMPLINGS)
def test_tokens_are_chosen_as_torch_chooses(sampling: Sampling) -> None:
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(200, 97, generator=generator)
    uniform = torch.rand(200, generator=generator, dtype=torch.float64)
    token, logp = choose(logits, sampling, None if sampling.greedy else uniform)
    draw = kernels.Draw(np.float32(sampling.temperature), sampling.top_k, sampling.top_p)
    own = [kernels.choose(z.clone().numpy(), draw, u) for z, u in zip(logits, uniform.tolist(), strict=True)]
    assert [t for t, _ in own] == token.tolist()
    torch.testing.assert_close(torch.tensor([p for _, p in own]), logp, rtol=1e-5, atol=1e-5)


def test_the_edges_of_the_cumulative_distribution() -> None:
    """Probabilities (0, 1/2, 1/2, 0): 0 takes the first possible token, just under 1 the last possible."""
    draw = kernels.Draw(np.float32(1), 0, 1.0)
    chosen = [
        kernels.choose(np.array([-np.inf, 0, 0, -np.inf], np.float32), draw, uniform)[0]
        for uniform in (0.0, 0.49, 0.5, 1 - 2**-53)
    ]
    assert chosen == [1, 1, 2, 2]


def test_the_exponential() -> None:
    """Within 2 units in the last place of float32 wherever the result is normal; NaN stays NaN."""
    x = np.linspace(-87, 88, 20_001, dtype=np.float32)
    own = np.array([kernels.exp(value) for value in x], np.float64)
    np.testing.assert_allclose(own, np.exp(x.astype(np.float64)), rtol=2 * 2**-23)
    assert kernels.exp(np.float32(-np.inf)) == 0
    assert np.isnan(kernels.exp(np.float32(np.nan)))


def _norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(dim=-1, keepdim=True) + 1e-6) * weight


@pytest.mark.parametrize("largest", [elementwise.LARGEST, 0])
def test_the_norm_and_its_gradient(largest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elementwise, "LARGEST", largest)
    x, grad, weight = torch.randn(7, 24), torch.randn(7, 24), torch.randn(24)
    exact = [each.double().requires_grad_() for each in (x, weight)]
    out = _norm(*exact)
    torch.testing.assert_close(elementwise.rms_norm(x, weight, 1e-6, torch.float32), out.float())
    dx, dweight = torch.autograd.grad(out, exact, grad.double())
    into = torch.ones(24)
    own = elementwise.rms_norm_backward(x, weight, 1e-6, grad, into)
    torch.testing.assert_close(own, dx.float())
    torch.testing.assert_close(into - 1, dweight.float(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("largest", [elementwise.LARGEST, 0])
def test_the_gated_activation_and_its_gradient(largest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elementwise, "LARGEST", largest)
    x, grad = 4 * torch.randn(7, 48), torch.randn(7, 24)
    exact = x.double().requires_grad_()
    gate, up = exact.chunk(2, dim=-1)
    out = torch.nn.functional.silu(gate) * up
    torch.testing.assert_close(elementwise.gated(x), out.float())
    active, own = elementwise.gated_backward(x, grad)
    torch.testing.assert_close(active, out.float())
    torch.testing.assert_close(own, torch.autograd.grad(out, exact, grad.double())[0].float())


def test_attention_that_is_computed_again_has_the_gradient_of_what_is_kept(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    policy, batch = policy_of(build("llama")), random_batch()
    found: list[torch.Tensor] = []
    for most in (llama.KEPT_SCORES, 0):
        monkeypatch.setattr(llama, "KEPT_SCORES", most)
        assert policy.flat is not None
        assert policy.flat.matrices.grad is not None
        policy.flat.matrices.grad.zero_()
        policy.evaluate(batch).logp.sum().backward()
        found.append(policy.flat.matrices.grad.clone())
    assert found[0].abs().sum() > 0
    assert torch.equal(found[0], found[1])
