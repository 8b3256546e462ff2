"""The decoding engine against transformers' `generate`, and against what a random stream per row promises."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from models import FAST, GENERAL, build, policy_of

from outdo.language import compiled, engine
from outdo.language.engine import LlamaDecoding, PromptTooLongError, TransformersDecoding, choose
from outdo.language.head import restrict
from outdo.language.sampling import Sampling, StopReason

PROMPTS = [(5, 6, 7, 8, 9), (10, 11), (12,), (20, 21, 22, 23, 24, 25, 26, 27)]
GREEDY = Sampling(temperature=0, max_tokens=20)


WAYS = {"compiled": {}, "team": {"SMALL": 0}, "llama": {"SMALL": 0, "MOST_ROWS": 0}}
"""What makes a model of the fast path take each way: threads with rows of their own, together, and torch."""


def take(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, value in WAYS[way].items():
        monkeypatch.setattr(compiled, limit, value)


@pytest.fixture(params=[*WAYS, "transformers"])
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each way to decode: the compiled loop, and step by step on the fast and on the general path."""
    if request.param in WAYS:
        take(request.param, monkeypatch)
    return request.param


@pytest.mark.parametrize(
    ("name", "way"),
    [*((n, w) for n in FAST for w in WAYS), *((n, "transformers") for n in GENERAL)],
    indirect=["way"],
)
def test_greedy_equals_generate_token_for_token(name: str, way: str) -> None:
    policy = policy_of(build(name))
    done = policy.generate(PROMPTS, 1, GREEDY, [(i,) for i in range(len(PROMPTS))])
    stopped = 0
    for prompt, [completion] in zip(PROMPTS, done, strict=True):
        expected = policy.model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt)),
            max_new_tokens=20,
            do_sample=False,
        )[0, len(prompt) :].tolist()
        assert completion.tokens == expected
        stopped += completion.stop is StopReason.STOP
    assert len({tuple(c[0].tokens) for c in done}) > 1


def test_prompts_with_a_common_beginning_equal_generate() -> None:
    policy = policy_of(build("llama"))
    prompts = [(5, 6, 7, 8, 9), (5, 6, 7, 3), (5, 6, 7), (5, 6, 7, 9, 9, 9, 9)]
    for prompt, [completion] in zip(prompts, policy.generate(prompts, 1, GREEDY, [(0,)] * 4), strict=True):
        expected = policy.model.generate(
            torch.tensor([prompt]),
            attention_mask=torch.ones(1, len(prompt)),
            max_new_tokens=20,
            do_sample=False,
        )
        assert completion.tokens == expected[0, len(prompt) :].tolist()


def test_stop_tokens_end_a_row_and_are_part_of_it() -> None:
    policy = policy_of(build("llama"))
    free = policy.generate(PROMPTS, 1, GREEDY, [(0,)] * 4)
    seen = [c[0].tokens for c in free]
    policy.stop_tokens = (seen[0][3], seen[1][5])  # several stop tokens; whichever comes first ends a row
    for tokens, [completion] in zip(seen, policy.generate(PROMPTS, 1, GREEDY, [(0,)] * 4), strict=True):
        ends = [i for i, token in enumerate(tokens) if token in policy.stop_tokens]
        expected = tokens[: ends[0] + 1] if ends else tokens
        assert completion.tokens == expected
        assert completion.stop is (StopReason.STOP if ends else StopReason.LENGTH)


def test_a_row_samples_the_same_whatever_else_is_in_the_batch(way: str) -> None:
    policy = policy_of(build("llama"), fast=way != "transformers")
    policy.stop_tokens = tuple(range(2, 12))  # rows leave at different times
    sampling = Sampling(temperature=1.5, max_tokens=20)
    streams = [(7, i) for i in range(4)]
    together = policy.generate(PROMPTS, 5, sampling, streams)
    assert len({len(c.tokens) for group in together for c in group}) > 2
    for i in range(4):
        alone = policy.generate([PROMPTS[i]], 5, sampling, [streams[i]])[0]
        assert [c.tokens for c in alone] == [c.tokens for c in together[i]]
        fewer = policy.generate([PROMPTS[i]], 2, sampling, [streams[i]])[0]
        assert [c.tokens for c in fewer] == [c.tokens for c in together[i][:2]]


def test_streams_decide_the_sample() -> None:
    policy = policy_of(build("llama"))
    sampling = Sampling(max_tokens=20)
    first = policy.generate([PROMPTS[0], PROMPTS[0]], 2, sampling, [(1,), (2,)])
    again = policy.generate([PROMPTS[0], PROMPTS[0]], 2, sampling, [(1,), (2,)])
    assert first == again
    assert len({tuple(c.tokens) for group in first for c in group}) == 4


def test_more_rows_than_one_batch_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = policy_of(build("llama"))
    sampling = Sampling(max_tokens=10)
    streams = [(i,) for i in range(4)]
    whole = policy.generate(PROMPTS, 3, sampling, streams)
    monkeypatch.setattr(engine, "MAX_ROWS", 5)
    turns = policy.generate(PROMPTS, 3, sampling, streams)
    assert [[c.tokens for c in group] for group in turns] == [[c.tokens for c in group] for group in whole]


def test_sampled_frequencies_are_the_distribution() -> None:
    """20,000 uniforms over softmax([2, 1, 0, -1]) with top-k 3: each frequency within 4 standard errors."""
    sampling = Sampling(top_k=3)
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0]]).expand(20_000, -1)
    uniform = torch.rand(20_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    token, logp = choose(logits, sampling, uniform)
    weights = [math.exp(2), math.exp(1), math.exp(0)]
    counts = Counter(token.tolist())
    assert 3 not in counts
    for i, weight in enumerate(weights):
        p = weight / sum(weights)
        assert abs(counts[i] / 20_000 - p) < 4 * math.sqrt(p * (1 - p) / 20_000)
        torch.testing.assert_close(logp[token == i][0], torch.tensor(math.log(p)))


def test_the_edges_of_the_cumulative_distribution() -> None:
    """Probabilities (0, 1/2, 1/2, 0): 0 takes the first possible token, just under 1 the last possible."""
    logits = torch.tensor([[-torch.inf, 0.0, 0.0, -torch.inf]]).expand(4, -1)
    uniform = torch.tensor([0.0, 0.49, 0.5, 1 - 2**-53], dtype=torch.float64)
    assert choose(logits, Sampling(), uniform)[0].tolist() == [1, 1, 2, 2]


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    for top_p, kept in ((0.5, 1), (0.51, 2), (0.8, 2), (0.81, 3), (1.0, 4)):
        assert int(restrict(logits, Sampling(top_p=top_p)).isfinite().sum()) == kept
    forced = restrict(logits, Sampling(top_p=0.5), torch.tensor([3]))
    assert forced.isfinite().tolist() == [[True, False, False, True]]


@pytest.mark.parametrize("kind", [LlamaDecoding, TransformersDecoding])
def test_answers_that_are_alike_so_far_are_computed_once(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    """The tokens fed to the model are the distinct beginnings of the answers, but for rows that wait to leave."""
    take("llama", monkeypatch)
    monkeypatch.setattr(engine, "LEAVE_SHARE", 1.0)  # nothing waits
    policy = policy_of(build("llama"), fast=kind is LlamaDecoding)
    policy.stop_tokens = (2, 3, 4)
    fed: list[int] = []
    step = kind.step
    monkeypatch.setattr(kind, "step", lambda self, tokens: fed.append(len(tokens)) or step(self, tokens))
    sampling = Sampling(temperature=0.3, max_tokens=8)
    groups = policy.generate(PROMPTS, 6, sampling, [(i,) for i in range(4)])
    distinct = [
        {(i, *c.tokens[:length]) for i, group in enumerate(groups) for c in group if len(c.tokens) > length}
        for length in range(1, 8)
    ]
    assert fed == [len(each) for each in distinct if each]
    assert 4 < sum(fed) < sum(len(c.tokens) - 1 for group in groups for c in group)


def test_an_answer_ends_with_the_context(way: str) -> None:
    policy = policy_of(build("llama"), fast=way != "transformers")  # context 64
    policy.stop_tokens = ()
    long = tuple(range(3, 63))  # 60 tokens leave room for 4
    done = policy.generate([long, (5, 6)], 2, Sampling(max_tokens=10), [(0,), (1,)])
    assert [[len(c.tokens) for c in group] for group in done] == [[4, 4], [10, 10]]
    assert {c.stop for group in done for c in group} == {StopReason.LENGTH}
    with pytest.raises(PromptTooLongError, match="prompt 1 has 64 tokens, the model's context holds 64"):
        policy.generate([(5,), tuple(range(3, 67))], 1, GREEDY, [(0,), (1,)])


def test_prompts_are_computed_once_per_group(monkeypatch: pytest.MonkeyPatch) -> None:
    policy = policy_of(build("llama"))
    assert policy.decoder is not None
    fed: list[int] = []
    forward = policy.decoder.forward
    monkeypatch.setattr(
        policy.decoder, "forward", lambda piece, *more: fed.append(len(piece.tokens)) or forward(piece, *more)
    )
    policy.generate(PROMPTS, 6, Sampling(max_tokens=3), [(i,) for i in range(4)])
    assert fed == [sum(len(prompt) for prompt in PROMPTS)]


def test_empty_prompts_and_missing_streams_are_errors() -> None:
    policy = policy_of(build("llama"))
    with pytest.raises(ValueError, match="prompt 1 has no tokens"):
        policy.generate([(5,), ()], 1, GREEDY, [(0,), (1,)])
    with pytest.raises(ValueError, match="2 prompts need as many stream keys, got 1"):
        policy.generate([(5,), (6,)], 1, GREEDY, [(0,)])


@pytest.mark.parametrize(
    ("field", "value"),
    [("temperature", -1), ("top_k", -1), ("top_p", 0.0), ("top_p", 1.5), ("max_tokens", 0)],
)
def test_sampling_that_describes_nothing_is_refused(field: str, value: float) -> None:
    with pytest.raises(ValueError, match=field):
        Sampling(**{field: value})
