"""The driving policy beside transformers' own forward pass, and what it samples beside what it scores."""

from __future__ import annotations

from functools import partial

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from outdo.driving.encoder import LANES, SLOTS, SceneObs
from outdo.driving.expert import demonstrate
from outdo.driving.generator import generate
from outdo.driving.policy import DrivingPolicy
from outdo.driving.simulator import Simulator
from outdo.driving.tokens import FULL, START, Vocabulary
from outdo.language.engine import LlamaDecoding, decode_stepwise
from outdo.language.engine import generate as generate_tokens
from outdo.language.load import ModelError, load
from outdo.language.rollouts import Row, pack_rows
from outdo.language.sampling import Completion, Sampling, StopReason

SMALL = {"hidden": 32, "layers": 2, "heads": 2}
SAMPLING = Sampling(max_tokens=12)
STREAMS = [(i,) for i in range(10)]


@pytest.fixture(scope="module")
def scenes():
    return generate("train", 10)


@pytest.fixture(scope="module")
def seen(scenes):
    return Simulator(scenes).observe()


@pytest.fixture
def policy():
    policy = DrivingPolicy.new(seed=1, **SMALL)
    with torch.no_grad():  # weights of standard deviation 0.02 would make all tokens about as likely
        policy.flat.matrices.mul_(10)
    policy.updated()
    return policy


def batch_of(policy, seen, answers):
    rows = [
        Row(prompt, answer, 0.0, i, keep=True, info={})
        for i, (prompt, group) in enumerate(zip(policy.prompts(seen), answers, strict=True))
        for answer in group
    ]
    batch = pack_rows(rows, SAMPLING, 1.0)
    return batch.with_(obs=SceneObs(batch.obs.prompts, SAMPLING, seen))


def through_transformers(policy, batch, row):
    """Log-probabilities [n] of a row's answer, prefix and token embeddings put together by hand."""
    *prefix, start = batch.obs.prompts[row]
    answer = batch.action[row, : int(batch.lengths[row])]
    table = policy.encoder(batch.obs)
    tokens = torch.tensor([start, *answer[:-1].tolist()])
    embedded = torch.cat(
        [
            table[torch.tensor(prefix) - policy.vocabulary.size],
            policy.model.get_input_embeddings()(tokens),
        ]
    )
    logits = policy.model(inputs_embeds=embedded[None]).logits[0, len(prefix) :]
    return logits.log_softmax(-1)[torch.arange(len(answer)), answer]


def test_scores_and_gradients_are_those_of_transformers(policy, seen):
    batch = batch_of(policy, seen, policy.answers(seen, 2, SAMPLING, STREAMS))
    found = policy.evaluate(batch).logp
    weight = torch.linspace(0.5, 1.5, found.numel()).view_as(found) * batch.valid
    (found * weight).sum().backward()
    own = {name: p.grad.clone() for name, p in policy.named_parameters()}
    for _, p in policy.named_parameters():
        p.grad = torch.zeros_like(p)
    grads = dict(policy.model.named_parameters())
    for p in grads.values():
        p.grad = torch.zeros_like(p)
    total = torch.zeros(())
    for row in range(len(batch)):
        expected = through_transformers(policy, batch, row)
        torch.testing.assert_close(found[row, : len(expected)], expected, atol=2e-5, rtol=0)
        total = total + (expected * weight[row, : len(expected)]).sum()
    total.backward()
    for name, p in policy.encoder.named_parameters():
        torch.testing.assert_close(own[f"encoder.{name}"], p.grad, atol=2e-5, rtol=2e-4)
    theirs = grads["model.embed_tokens.weight"].grad
    _, offset, shape = policy.flat._places["model.embed_tokens.weight"]
    mine = own["matrices"].view(-1)[offset : offset + shape.numel()].view(shape)
    # sums of many products of size 1 to 100: against float64 ours are off by 6e-5 and theirs by 1e-4
    torch.testing.assert_close(mine, theirs, atol=2e-6 * float(theirs.abs().max()), rtol=2e-4)


def test_what_is_sampled_is_what_is_scored(policy, seen):
    answers = policy.answers(seen, 3, SAMPLING, STREAMS)
    batch = batch_of(policy, seen, answers)
    torch.testing.assert_close(policy.evaluate(batch).logp.detach(), batch.logp, atol=2e-5, rtol=0)


def test_compiled_and_stepwise_decoding_agree(policy, seen):
    prompts = policy.prompts(seen)
    with torch.no_grad():
        prefix = policy.encoder(SceneObs(tuple(prompts), SAMPLING, seen))
    stepwise = partial(decode_stepwise, partial(LlamaDecoding, policy.decoder), policy._head())
    by_step = generate_tokens(
        stepwise, prompts, 2, SAMPLING, STREAMS, policy.stop_tokens, policy.context, prefix
    )
    compiled = policy.answers(seen, 2, SAMPLING, STREAMS)
    for one, two in zip(by_step, compiled, strict=True):
        assert [c.tokens for c in one] == [c.tokens for c in two]


def test_a_scene_is_answered_alike_in_any_company(policy, scenes, seen):
    together = policy.answers(seen, 1, SAMPLING, STREAMS)
    for i in (0, 7):
        alone = policy.answers(Simulator([scenes[i]]).observe(), 1, SAMPLING, [STREAMS[i]])
        assert alone[0][0].tokens == together[i][0].tokens


def test_rows_of_a_batch_score_alike_in_any_piece(policy, seen):
    batch = batch_of(policy, seen, policy.answers(seen, 2, SAMPLING, STREAMS))
    whole = policy.evaluate(batch).logp.detach()
    pieces = policy.micro_batches(batch, 100)
    assert len(pieces) > 2
    for rows in pieces:
        torch.testing.assert_close(
            policy.evaluate(batch.select(rows)).logp.detach(), whole[rows], atol=2e-5, rtol=0
        )


def test_prompts_name_what_is_there_and_nothing_else(policy, seen):
    for n, prompt in enumerate(policy.prompts(seen)):
        *places, start = prompt
        assert start == START
        slots = np.array(places) - policy.vocabulary.size - n * SLOTS
        assert (slots >= 0).all()
        assert (slots < SLOTS).all()
        lanes, actors = slots[slots < LANES], slots[(slots >= LANES) & (slots < SLOTS - 2)] - LANES
        assert lanes.tolist() == np.flatnonzero(seen.lane_present[n, :LANES]).tolist()
        assert actors.tolist() == np.flatnonzero(seen.present[n].any(1)).tolist()
        assert slots[-2:].tolist() == [SLOTS - 2, SLOTS - 1]


def test_a_change_of_what_is_seen_changes_the_answer_of_that_scene_alone(policy, seen):
    batch = batch_of(policy, seen, policy.answers(seen, 1, SAMPLING, STREAMS))
    before = policy.evaluate(batch).logp.detach()
    for name, change in (
        ("agents", 0.5),
        ("lanes", 1.0),
        ("route", 1.0),
        ("offset", 0.3),
        ("speed_limit", 2.0),
    ):
        values = getattr(seen, name).copy()
        values[4] += change
        moved = type(seen)(**{key: getattr(seen, key) for key in seen.__dataclass_fields__} | {name: values})
        after = policy.evaluate(batch.with_(obs=SceneObs(batch.obs.prompts, SAMPLING, moved))).logp.detach()
        changed = ((after - before).abs() > 1e-4).any(1)
        assert changed.nonzero().flatten().tolist() == [4], name


def test_saved_and_loaded_it_is_the_same_policy_bitwise(policy, seen, tmp_path):
    policy.save(tmp_path)
    batch = batch_of(policy, seen, policy.answers(seen, 1, SAMPLING, STREAMS))
    expected = policy.evaluate(batch).logp
    other = DrivingPolicy.new(seed=2, **SMALL)
    assert not torch.equal(other.evaluate(batch).logp, expected)
    other.load(tmp_path)
    assert torch.equal(other.evaluate(batch).logp, expected)
    begun = DrivingPolicy.load_from(str(tmp_path))
    assert begun.vocabulary == policy.vocabulary
    assert torch.equal(begun.evaluate(batch).logp, expected)
    assert AutoModelForCausalLM.from_pretrained(tmp_path).config.vocab_size == policy.vocabulary.size


def test_the_tokenizer_reads_back_what_it_writes(policy, scenes, tmp_path):
    policy.save(tmp_path)
    reader = AutoTokenizer.from_pretrained(tmp_path)
    shown = demonstrate(scenes[:3], 0)
    for each in shown:
        code = policy.vocabulary.code
        ids = policy.vocabulary.write(each.trace, code.encode(each.states[:1, 3], each.control[None])[0])
        assert reader(" ".join(map(policy.vocabulary.word, ids)), add_special_tokens=False).input_ids == ids


def test_the_reference_stays_as_it_was(policy, seen):
    batch = batch_of(policy, seen, policy.answers(seen, 1, SAMPLING, STREAMS))
    reference = policy.reference()
    before = policy.evaluate(batch).logp.detach()
    with torch.no_grad():
        for _, p in policy.named_parameters():
            p.add_(0.05)
    policy.updated()
    assert torch.equal(reference.evaluate(batch).logp, before)
    assert not torch.equal(policy.evaluate(batch).logp.detach(), before)


def test_the_full_code_fits_the_context():
    policy = DrivingPolicy.new(code=FULL, **SMALL)
    assert policy.vocabulary == Vocabulary(FULL)
    assert policy.context >= SLOTS + 1 + policy.vocabulary.longest


def test_what_cannot_be_is_refused(policy, tmp_path):
    with pytest.raises(ValueError, match="multiple of 2 · heads"):
        DrivingPolicy.new(hidden=36, heads=8)
    with pytest.raises(ModelError, match=r"no encoder\.safetensors"):
        DrivingPolicy.load_from(str(tmp_path))
    with pytest.raises(ModelError, match="no driving policy"):
        DrivingPolicy(load("tiny"))
    with pytest.raises(ModelError, match="fast path"):
        DrivingPolicy.new(**SMALL, fast=False)


def test_weights_of_another_encoder_are_an_error_that_names_their_file(policy, tmp_path):
    policy.save(tmp_path)
    file = tmp_path / "encoder.safetensors"
    weights = load_file(file)
    name = next(name for name in weights if name.startswith("networks.actors"))
    save_file({**weights, name: torch.zeros(2, 2)}, file)
    with pytest.raises(
        ModelError, match=r"encoder\.safetensors' holds no weights of this encoder.*size mismatch"
    ):
        DrivingPolicy.load_from(str(tmp_path))


def test_a_malformed_answer_is_scored_too(policy, seen):
    empty = [[Completion([3], [0.0], StopReason.STOP)] for _ in range(10)]
    assert torch.isfinite(policy.evaluate(batch_of(policy, seen, empty)).logp).all()
