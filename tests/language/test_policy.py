"""The policy's log-probabilities and gradients against transformers' own forward pass and autograd."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from models import FAST, GENERAL, build, policy_of, random_batch, reference_logp

from outdo.language import head
from outdo.language.adapters import Lora
from outdo.language.head import Head
from outdo.language.load import load
from outdo.language.packing import pack, packed_rows
from outdo.language.policy import CausalPolicy
from outdo.language.sampling import Sampling, TextObs


def gradients(policy: CausalPolicy) -> dict[str, torch.Tensor]:
    return {n: p.grad.clone() for n, p in policy.base.named_parameters() if p.grad is not None}


def relative(a: dict[str, torch.Tensor], b: dict[str, torch.Tensor]) -> float:
    """Distance of two gradients relative to the second, over all parameters."""
    assert a.keys() == b.keys()
    distance = sum(float((a[n].double() - b[n].double()).square().sum()) for n in a)
    return (distance / sum(float(b[n].double().square().sum()) for n in b)) ** 0.5


@pytest.mark.parametrize("name", [*FAST, *GENERAL])
def test_logp_and_gradient_equal_transformers(name: str) -> None:
    model = build(name)
    exact = copy.deepcopy(model).double()
    policy = policy_of(model)
    assert (policy.slow_because is None) == (name in FAST)
    batch = random_batch()
    coefficient = torch.randn(batch.logp.shape, generator=torch.Generator().manual_seed(1))
    logp = policy.evaluate(batch).logp
    expected = reference_logp(exact, batch)
    torch.testing.assert_close(logp.double(), expected, rtol=1e-5, atol=1e-5)
    (logp * coefficient).sum().backward()
    (expected * coefficient).sum().backward()
    assert relative(gradients(policy), {n: p.grad for n, p in exact.named_parameters()}) < 1e-5


@pytest.mark.parametrize("name", ["llama-tied", "qwen2", "gpt2", "gemma2-softcap"])
def test_entropy_has_its_value_and_its_gradient(name: str) -> None:
    model = build(name)
    exact = copy.deepcopy(model).double()
    policy, batch = policy_of(model), random_batch(lengths=(2, 3))
    entropy = policy.evaluate(batch, entropy=True).entropy
    assert entropy is not None
    expected = torch.zeros(2, 3, dtype=torch.float64)
    for i, prompt in enumerate(batch.obs.prompts):
        answer = batch.action[i, : int(batch.lengths[i])]
        log_p = exact(input_ids=torch.cat((torch.tensor(prompt), answer))[None]).logits[0].log_softmax(dim=-1)
        chosen = log_p[len(prompt) - 1 : -1]
        expected[i, : len(answer)] = -(chosen.exp() * chosen).sum(dim=-1)
    torch.testing.assert_close(entropy.double(), expected, rtol=1e-5, atol=1e-5)
    entropy.sum().backward()
    expected.sum().backward()
    assert relative(gradients(policy), {n: p.grad for n, p in exact.named_parameters()}) < 1e-5


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=0.5, top_k=5)])
def test_probabilities_that_are_kept_spare_the_second_product(
    sampling: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scores and gradients are those of logits computed again, with tokens of no coefficient among them."""
    batch, logits, calls = random_batch(sampling), Head.logits, list[int]()
    monkeypatch.setattr(Head, "logits", lambda head, h: calls.append(len(h)) or logits(head, h))
    coefficient = torch.randn(batch.logp.shape, generator=torch.Generator().manual_seed(1))
    coefficient[:, 1] = 0
    found: list[tuple[torch.Tensor, dict[str, torch.Tensor]]] = []
    for most in (1 << 24, 97 * 4):
        monkeypatch.setattr(head, "CHUNK_ELEMENTS", most)
        policy = policy_of(build("llama-tied"))
        calls.clear()
        logp = policy.evaluate(batch).logp
        (logp * coefficient).sum().backward()
        assert (sum(calls) == int(batch.valid.sum())) == (most == 1 << 24)
        found.append((logp.detach(), gradients(policy)))
    torch.testing.assert_close(found[0][0], found[1][0], rtol=1e-5, atol=1e-6)
    assert relative(found[0][1], found[1][1]) < 1e-6


def test_entropy_for_the_log_carries_no_gradient() -> None:
    policy = policy_of(build("llama"))
    entropy = policy.evaluate(random_batch()).entropy
    assert entropy is not None
    assert not entropy.requires_grad


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_temperature_scores_the_distribution_that_was_sampled(name: str) -> None:
    model = build(name)
    exact = copy.deepcopy(model).double()
    policy = policy_of(model)
    batch = random_batch(Sampling(temperature=0.5))
    logp = policy.evaluate(batch).logp
    expected = reference_logp(exact, batch, temperature=0.5)
    torch.testing.assert_close(logp.double(), expected, rtol=1e-5, atol=1e-5)
    logp.sum().backward()
    expected.sum().backward()
    assert relative(gradients(policy), {n: p.grad for n, p in exact.named_parameters()}) < 1e-5


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(temperature=0.5, max_tokens=6),
        Sampling(top_k=5, max_tokens=6),
        Sampling(top_p=0.7, temperature=1.3, max_tokens=6),
        Sampling(top_k=20, top_p=0.9, max_tokens=6),
    ],
)
def test_first_ratio_is_one(sampling: Sampling, fast: bool) -> None:
    policy = policy_of(build("llama"), fast=fast)
    prompts = [(5, 6, 7, 8), (9, 10)]
    groups = policy.generate(prompts, 8, sampling, [(0,), (1,)])
    rows = [c for group in groups for c in group]
    steps = max(len(c.tokens) for c in rows)
    batch = random_batch(sampling, lengths=tuple(len(c.tokens) for c in rows))
    action = torch.tensor([c.tokens + [0] * (steps - len(c.tokens)) for c in rows])
    logp = torch.tensor([c.logp + [0.0] * (steps - len(c.tokens)) for c in rows])
    obs = TextObs(tuple(p for p in prompts for _ in range(8)), sampling)
    scored = policy.evaluate(batch.with_(obs=obs, action=action)).logp
    assert bool((logp < 0).any())
    torch.testing.assert_close(scored.detach(), logp, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("fast", [True, False])
def test_padding_and_batch_mates_change_nothing(fast: bool) -> None:
    policy = policy_of(build("llama"), fast=fast)
    batch = random_batch()
    whole = policy.evaluate(batch).logp.detach()
    for i in range(len(batch)):
        alone = policy.evaluate(batch.select(torch.tensor([i]))).logp.detach()
        torch.testing.assert_close(alone[0], whole[i], rtol=1e-5, atol=1e-5)
    junk = batch.action.masked_fill(~batch.valid, 96)
    torch.testing.assert_close(policy.evaluate(batch.with_(action=junk)).logp.detach(), whole)
    assert bool((whole[~batch.valid] == 0).all())


def test_masks_come_from_lengths_where_pad_is_eos() -> None:
    """Ids [5, 6, 2, 2, 2] with pad = eos = 2 and three valid tokens: the first 2 is trained, the padding is not."""
    policy = policy_of(build("llama"))
    batch = random_batch(lengths=(3, 5))
    row = torch.tensor([[5, 6, 2, 2, 2], [5, 6, 2, 2, 2]])
    logp = policy.evaluate(batch.with_(action=row)).logp.detach()
    assert bool((logp[0, :3] < 0).all())
    assert bool((logp[0, 3:] == 0).all())
    assert bool((logp[1] < 0).all())


@pytest.mark.parametrize("fast", [True, False])
def test_eos_in_a_prompt_is_trained_where_pad_is_eos(fast: bool) -> None:
    model = build("llama")
    exact = copy.deepcopy(model).double()
    assert exact.get_input_embeddings().padding_idx == 2
    policy, batch = policy_of(model, fast=fast), random_batch(lengths=(2, 2))
    batch = batch.with_(obs=TextObs(((5, 2, 6), (2, 7)), Sampling()))
    policy.evaluate(batch).logp.sum().backward()
    exact.get_input_embeddings().padding_idx = None
    reference_logp(exact, batch).sum().backward()
    assert relative(gradients(policy), {n: p.grad for n, p in exact.named_parameters()}) < 1e-5


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("budget", [1, 12, 1000])
def test_micro_batches_cover_every_row_once_and_add_up(fast: bool, budget: int) -> None:
    batch = random_batch(lengths=(1, 2, 7, 10))
    policy = policy_of(build("llama"), fast=fast)
    (policy.evaluate(batch).logp * 0.7).sum().backward()
    whole = gradients(policy)
    split = policy_of(build("llama"), fast=fast)
    pieces = split.micro_batches(batch, budget)
    assert sorted(torch.cat(pieces).tolist()) == [0, 1, 2, 3]
    assert len(pieces) == {1: 4, 12: 4 if not fast else len(pieces), 1000: 1}[budget]
    for rows in pieces:
        (split.evaluate(batch.select(rows)).logp * 0.7).sum().backward()
    assert relative(gradients(split), whole) < 1e-6


@pytest.mark.parametrize(
    "prompts", [((5, 6, 7, 8, 9), (5, 6, 7, 3), (5, 6, 7)), ((4, 5, 6, 7, 8), (4,), (4, 9, 9))]
)
def test_what_prompts_begin_with_is_computed_once(prompts: tuple[tuple[int, ...], ...]) -> None:
    """Three rows with different prompts: the tokens they share are the root, the rest is each row's branch."""
    model = build("qwen3")
    exact = copy.deepcopy(model).double()
    policy, batch = policy_of(model), random_batch(lengths=(3, 1, 6))
    batch = batch.with_(obs=TextObs(prompts, Sampling()))
    shared = 3 if prompts[0][1] == 6 and prompts[1][1:2] == (6,) else 1
    piece = pack(prompts, batch.action, batch.lengths)
    assert len(piece.tokens) == shared + sum(len(p) - shared for p in prompts) + 2 + 0 + 5
    logp, expected = policy.evaluate(batch).logp, reference_logp(exact, batch)
    torch.testing.assert_close(logp.double(), expected, rtol=1e-5, atol=1e-5)
    logp.sum().backward()
    expected.sum().backward()
    assert relative(gradients(policy), {n: p.grad for n, p in exact.named_parameters()}) < 1e-5


def test_shared_prompts_cost_once() -> None:
    batch = random_batch(lengths=(4, 4))  # both rows answer one prompt of 5 tokens
    policy = policy_of(build("llama"))
    assert len(policy.micro_batches(batch, 13)) == 1
    assert len(policy.micro_batches(batch, 12)) == 2


def test_micro_batches_are_as_few_as_fit_and_even() -> None:
    """Two prompts of 5 and 4 tokens, 4 answers of 3 tokens each: 3 and 1 would fit 14 tokens, 2 and 2 are even."""
    prompts = ((5, 6, 7, 8, 9),) * 4 + ((4, 3, 2, 5),) * 4
    pieces = [piece.tolist() for piece in packed_rows(prompts, [3] * 8, 14)]
    assert pieces == [[4, 5], [6, 7], [0, 1], [2, 3]]
    assert [len(piece) for piece in packed_rows(prompts, [3] * 8, 17)] == [4, 4]
    assert len(packed_rows(prompts, [3] * 8, 1)) == 8


def test_products_in_float32_compute_no_padding() -> None:
    batch = random_batch(lengths=(4, 4))
    piece = pack(batch.obs.prompts, batch.action, batch.lengths)
    for precision, count in (("float32", 11), ("bfloat16", 32)):
        decoder = policy_of(build("llama"), precision=precision).decoder
        assert decoder is not None
        assert len(decoder.forward(piece)[0]) == count


@pytest.mark.parametrize("fast", [True, False])
def test_rows_that_are_alike_are_computed_once_and_their_gradients_add_up(
    fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows 0, 2, 5 and 1, 4 are alike; row 6 is like row 0 to its end, but for junk behind its own end."""
    model = build("llama")
    exact = copy.deepcopy(model).double()
    policy = policy_of(model, fast=fast)
    four = random_batch(lengths=(3, 1, 6, 7))
    batch = four.select(torch.tensor([0, 1, 0, 3, 1, 0, 0, 2]))
    batch.action[6, 5] = 50
    coefficient = torch.randn(batch.logp.shape, generator=torch.Generator().manual_seed(1))
    packed: list[int] = []
    monkeypatch.setattr(
        "outdo.language.policy.pack", lambda *rows: packed.append(len(rows[0])) or pack(*rows)
    )
    found = policy.evaluate(batch, entropy=True)
    assert packed == [4]
    torch.testing.assert_close(found.logp[6], found.logp[0], rtol=0, atol=0)
    expected = reference_logp(exact, batch)
    torch.testing.assert_close(found.logp.double(), expected, rtol=1e-5, atol=1e-5)
    (found.logp * coefficient).sum().backward()
    (expected * coefficient).sum().backward()
    assert relative(gradients(policy), {n: p.grad for n, p in exact.named_parameters()}) < 1e-5
    pieces = [sorted(piece.tolist()) for piece in policy.micro_batches(batch, 1)]
    assert sorted(pieces) == [[0, 2, 5, 6], [1, 4], [3], [7]]
    assert len(policy.micro_batches(batch, 1000)) == 1


def test_dropout_is_off_in_training_and_sampling() -> None:
    model = build("gpt2")
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.1
    model.train()
    policy, batch = policy_of(model), random_batch()
    first, second = policy.evaluate(batch).logp, policy.evaluate(batch).logp
    assert torch.equal(first, second)


def test_no_cache_outlives_an_update() -> None:
    for fast in (True, False):
        policy, batch = policy_of(build("llama"), fast=fast), random_batch()
        before = policy.evaluate(batch).logp.detach()
        sampled = policy.generate([(5, 6)], 1, Sampling(temperature=0, max_tokens=8), [(0,)])
        with torch.no_grad():
            for _, parameter in policy.named_parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        policy.updated()
        after = policy.evaluate(batch).logp.detach()
        assert float((after - before).abs().max()) > 0.01
        torch.testing.assert_close(after, reference_logp(policy.model, batch).detach(), rtol=1e-4, atol=1e-4)
        again = policy.generate([(5, 6)], 1, Sampling(temperature=0, max_tokens=8), [(0,)])
        assert sampled != again


@pytest.mark.parametrize("fast", [True, False])
def test_reference_stays_where_it_was(fast: bool) -> None:
    policy, batch = policy_of(build("llama"), fast=fast), random_batch()
    reference = policy.reference()
    before = policy.evaluate(batch).logp.detach()
    with torch.no_grad():
        torch.testing.assert_close(reference.evaluate(batch).logp, before)
        for _, parameter in policy.named_parameters():
            parameter.add_(0.1)
        policy.updated()
        torch.testing.assert_close(reference.evaluate(batch).logp, before)
        assert float((policy.evaluate(batch).logp - before).abs().max()) > 0.01


def test_lora_trains_adapters_alone_and_its_reference_is_where_it_starts(tmp_path: Path) -> None:
    base = tmp_path / "base"
    build("llama").save_pretrained(base)
    policy_of(build("llama")).tokenizer.save_pretrained(base)
    policy = CausalPolicy.load_from(str(base), lora=Lora(rank=4), precision="float32")
    batch = random_batch()
    assert all("lora" in name for name, _ in policy.named_parameters())
    with torch.no_grad():
        for _, parameter in policy.named_parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.3)
    policy.save(tmp_path / "adapter")
    started = CausalPolicy.load_from(str(tmp_path / "adapter"), precision="float32")
    torch.testing.assert_close(started.evaluate(batch).logp, policy.evaluate(batch).logp)
    reference = started.reference()
    bare = reference_logp(build("llama"), batch)
    with torch.no_grad():
        now = started.evaluate(batch).logp
        assert torch.equal(reference.evaluate(batch).logp, now)  # KL at step 0 is 0
        assert float((now - bare).abs().max()) > 0.01  # and the bare base is another policy
    started.evaluate(batch).logp.sum().backward()
    with torch.no_grad():
        for _, parameter in started.named_parameters():
            assert parameter.grad is not None
            parameter.sub_(parameter.grad, alpha=0.01)
    started.updated()
    with torch.no_grad():
        torch.testing.assert_close(reference.evaluate(batch).logp, now)
        assert float((started.evaluate(batch).logp - now).abs().max()) > 1e-4


def test_value_head_gives_values_of_the_states_before_each_token() -> None:
    for fast in (True, False):
        policy, batch = policy_of(build("llama"), value_head=True, fast=fast), random_batch(lengths=(3, 2))
        assert policy.value_head is not None
        torch.nn.init.normal_(policy.value_head.weight)
        value = policy.evaluate(batch).value
        assert value is not None
        final = policy.final_value(batch)
        for i, prompt in enumerate(batch.obs.prompts):
            ids = torch.cat((torch.tensor(prompt), batch.action[i, : int(batch.lengths[i])]))
            hidden = policy.model.model(input_ids=ids[None]).last_hidden_state[0]
            expected = policy.value_head(hidden).squeeze(-1)
            n = int(batch.lengths[i])
            torch.testing.assert_close(value[i, :n], expected[len(prompt) - 1 : -1], rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(final[i], expected[-1], rtol=1e-4, atol=1e-4)


def test_gradient_of_the_value_reaches_the_body() -> None:
    model = build("llama")
    exact = copy.deepcopy(model).double()
    policy, batch = policy_of(model, value_head=True), random_batch(lengths=(3, 2))
    assert policy.value_head is not None
    torch.nn.init.normal_(policy.value_head.weight)
    evaluation = policy.evaluate(batch)
    assert evaluation.value is not None
    (evaluation.value.square().sum() + evaluation.logp.sum()).backward()
    weight = policy.value_head.weight.detach().double()
    total = reference_logp(exact, batch).sum()
    for i, prompt in enumerate(batch.obs.prompts):
        ids = torch.cat((torch.tensor(prompt), batch.action[i, : int(batch.lengths[i])]))
        hidden = exact.model(input_ids=ids[None]).last_hidden_state[0, len(prompt) - 1 : -1]
        total = total + (hidden @ weight.T).square().sum()
    total.backward()
    assert relative(gradients(policy), {n: p.grad for n, p in exact.named_parameters()}) < 1e-5


@pytest.mark.parametrize("name", ["llama-tied", "qwen3", "gpt2"])
def test_saved_weights_load_in_transformers_and_here_bitwise(name: str, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    policy, batch = policy_of(build(name), value_head=True), random_batch()
    assert policy.value_head is not None
    torch.nn.init.normal_(policy.value_head.weight)
    before = policy.evaluate(batch)
    policy.save(tmp_path / "saved")
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "saved", dtype=torch.float32)
    for name_, parameter in policy.model.named_parameters():
        assert torch.equal(parameter, dict(loaded.named_parameters())[name_])
    with torch.no_grad():
        for _, parameter in policy.named_parameters():
            parameter.add_(1.0)
    policy.load(tmp_path / "saved")
    after = policy.evaluate(batch)
    assert torch.equal(before.logp, after.logp)
    assert before.value is not None
    assert after.value is not None
    assert torch.equal(before.value, after.value)
    again = CausalPolicy.load_from(str(tmp_path / "saved"), value_head=True, precision="float32")
    value = again.evaluate(batch).value
    assert value is not None
    assert torch.equal(value, before.value)


def test_a_row_beyond_the_context_is_named() -> None:
    policy = policy_of(build("llama"))  # context 64
    batch = random_batch(lengths=(3, 62))
    with pytest.raises(ValueError, match="row 1 holds 5 prompt and 62 completion tokens; the context is 64"):
        policy.evaluate(batch)


def test_a_device_that_is_not_there_is_an_error() -> None:
    with pytest.raises(ValueError, match="'abacus' cannot be used here"):
        policy_of(build("llama"), device="abacus")


def test_chat_has_one_bos_and_ends_where_the_answer_begins() -> None:
    policy = CausalPolicy(load("tiny"), precision="float32")
    ids = policy.encode_chat([{"role": "user", "content": "ab"}])
    assert policy.tokenizer.convert_ids_to_tokens(ids) == ["<s>", "<user>", "a", "b", "<end>"]
    assert policy.decode(policy.encode("copy: abc\n")) == "copy: abc\n"


def test_a_second_backward_through_one_evaluation_is_refused() -> None:
    policy, batch = policy_of(build("llama")), random_batch()
    logp = policy.evaluate(batch).logp
    logp.sum().backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="evaluate again"):
        logp.sum().backward()
