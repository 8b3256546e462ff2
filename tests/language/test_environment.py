import json
import logging
import warnings

import pytest
import torch
from fake_policy import STOP, FakePolicy

from outdo.core.protocols import Environment
from outdo.core.rewards import RewardError, RewardTerm
from outdo.language.choice import PromptChoice
from outdo.language.data import DataError
from outdo.language.environment import DemonstrationEnvironment, LanguageEnvironment, RolloutSettings
from outdo.language.rollouts import Row, pack_rows
from outdo.language.sampling import Completion, Sampling, StopReason

pytestmark = pytest.mark.filterwarnings("ignore::outdo.core.rewards.NoSignalWarning")

ITEMS = [{"prompt": f"p{i}", "answer": str(i)} for i in range(6)]


def lengths(completions):
    return [float(len(c)) for c in completions]


def right(completions, answer):
    return [float(c == a) for c, a in zip(completions, answer, strict=True)]


def environment(function=lengths, items=ITEMS, weight=1.0, **settings):
    settings = {"prompts": 3, "group": 2, "sampling": Sampling(max_tokens=5), **settings}
    terms = [RewardTerm("r", function, weight=weight, on_error="skip")]
    return LanguageEnvironment(items, terms, RolloutSettings(**settings))


def by_copy(prompt, key):
    """Copy 0 says 'a', copy 1 'aa', …"""
    return "a" * (key[-1] + 1)


def row(tokens, stop=StopReason.STOP, reward=1.0, group=0, keep=True):
    completion = Completion(tokens, [-0.1 * t for t in tokens], stop)
    return Row((9, 9), completion, reward, group, keep, {"n": len(tokens)})


def test_rows_by_hand():
    # γ = .9; row 0 stops after 3 tokens, row 1 runs out of budget after 2, row 2 stops at once
    batch = pack_rows(
        [
            row([5, 6, 2], reward=3.0),
            row([7, 7], StopReason.LENGTH, reward=-1.0, group=4),
            row([2], reward=0.5),
        ],
        Sampling(),
        gamma=0.9,
    )
    assert batch.valid.int().tolist() == [[1, 1, 1], [1, 1, 0], [1, 0, 0]]
    assert batch.cut.int().tolist() == [[0, 0, 1], [0, 1, 0], [1, 0, 0]]
    assert batch.reward.tolist() == [[0, 0, 3], [0, -1, 0], [0.5, 0, 0]]
    torch.testing.assert_close(batch.discount, torch.tensor([[0.9, 0.9, 0], [0.9, 0.9, 0], [0, 0, 0]]))
    torch.testing.assert_close(batch.logp, torch.tensor([[-0.5, -0.6, -0.2], [-0.7, -0.7, 0], [-0.2, 0, 0]]))
    assert batch.action.tolist() == [[5, 6, 2], [7, 7, 0], [2, 0, 0]]
    assert batch.group.tolist() == [0, 4, 0]
    assert (batch.action.dtype, batch.logp.dtype, batch.reward.dtype) == (
        torch.int64,
        torch.float32,
        torch.float32,
    )
    assert batch.keep is None
    with pytest.raises(ValueError, match="row 1 has an empty completion"):
        pack_rows([row([1]), row([])], Sampling(), 1.0)


def test_masks_come_from_lengths_where_pad_is_a_stop_token():
    # ids [5,6,2] and [5,6,2,2,2] with pad = eos = 2
    batch = pack_rows([row([5, 6, 2]), row([5, 6, 2, 2, 2])], Sampling(), 1.0)
    assert batch.valid.int().tolist() == [[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]]


def test_every_field_follows_a_selected_row():
    batch = pack_rows(
        [row([5, 2], group=0), row([6], group=1, keep=False), row([7, 8, 2], group=2)], Sampling(), 1.0
    )
    picked = batch.select(torch.tensor([2, 1]))
    assert picked.action.tolist() == [[7, 8, 2], [6, 0, 0]]
    assert picked.group.tolist() == [2, 1]
    assert picked.keep.tolist() == [True, False]
    assert [info["n"] for info in picked.info] == [3, 1]


def test_collect_keeps_the_protocol_and_the_sampled_ids():
    env, policy = environment(), FakePolicy(by_copy)
    assert isinstance(env, Environment)
    batch = env.collect(policy, 0)
    assert batch.group.tolist() == [0, 0, 1, 1, 2, 2]
    assert batch.action.tolist() == [[97, STOP, 0], [97, 97, STOP]] * 3
    assert batch.reward.sum(dim=1).tolist() == [1.0, 2.0] * 3
    assert batch.obs.sampling == env.settings.sampling
    assert "".join(map(chr, batch.obs.prompts[0])) == batch.info[0]["prompt"]
    assert env.collect(policy, 1).group.tolist() == [3, 3, 4, 4, 5, 5]


def test_sampled_ids_are_never_tokenised_again():
    class Splitting(FakePolicy):
        def decode(self, ids):
            return "he" + "llo"

        def _completion(self, prompt, key, sampling):
            return Completion([1001, 1002, STOP], [-1.0, -1.0, -1.0], StopReason.STOP)

    assert environment().collect(Splitting(), 0).action.tolist() == [[1001, 1002, STOP]] * 6


def test_rows_say_what_a_person_wants_to_read():
    env = environment(items=[{"prompt": [{"role": "user", "content": "1+1"}], "answer": 2}], prompts=1)
    info = env.collect(FakePolicy(by_copy), 0).info[1]
    assert info == {
        "prompt": "1+1",
        "completion": "aa",
        "answer": 2,
        "reward": 1.0,
        "terms": {"r": 1.0},
        "stop": "stop",
        "group": 0,
    }
    assert json.dumps(info)


def test_rewards_get_what_trl_passes():
    seen = {}

    def reward(**columns):
        seen.update(columns)
        return [0.0, 1.0]

    message = [{"role": "user", "content": "1+1"}]
    env = environment(reward, items=[{"prompt": message, "answer": 2}], prompts=1)
    env.collect(FakePolicy(by_copy), 0)
    assert seen == {
        "prompts": [message, message],
        "completions": [[{"role": "assistant", "content": "a"}], [{"role": "assistant", "content": "aa"}]],
        "completion_ids": [[97, STOP], [97, 97, STOP]],
        "answer": [2, 2],
    }


def test_the_same_prompt_twice_stays_two_groups():
    batch = environment(items=[{"prompt": "same"}] * 3).collect(FakePolicy(by_copy), 0)
    assert batch.group.tolist() == [0, 0, 1, 1, 2, 2]
    policy = FakePolicy(by_copy)
    environment(items=[{"prompt": "same"}] * 3).collect(policy, 0)
    streams = policy.calls[0][3]
    assert len(set(streams)) == 3  # and each draws from a stream of its own


def test_overlong_answers_are_kept_masked_or_penalised():
    # budget 2: copy 0 says 'a' and stops, copy 1 is cut after 'aa'
    settings = {"sampling": Sampling(max_tokens=2), "prompts": 1}
    keep = environment(**settings).collect(FakePolicy(by_copy), 0)
    assert keep.keep is None
    assert keep.discount.tolist() == [[1, 0], [1, 1]]
    assert keep.info[1]["stop"] == "length"
    mask = environment(**settings, overlong="mask").collect(FakePolicy(by_copy), 0)
    assert mask.keep.tolist() == [True, False]
    assert mask.reward.sum(dim=1).tolist() == [1.0, 2.0]  # still in the group's statistics
    assert mask.loss_mask.int().tolist() == [[1, 1], [0, 0]]
    penalised = environment(**settings, overlong="penalise", penalty=0.5).collect(FakePolicy(by_copy), 0)
    assert penalised.reward.sum(dim=1).tolist() == [1.0, 1.5]
    assert penalised.info[1]["terms"] == {"r": 2.0, "overlong": -0.5}


def test_unscored_rows_leave_the_batch_and_the_baseline(caplog):
    def some(completions, answer):
        if "4" in answer:
            raise RuntimeError("judge is down")
        return [
            None if c == "a" and a == "0" else float(len(c)) for c, a in zip(completions, answer, strict=True)
        ]

    env = environment(some, prompts=6, group=3)
    with caplog.at_level(logging.WARNING):
        batch = env.collect(FakePolicy(by_copy), 0)
    answers = [info["answer"] for info in batch.info]
    assert answers.count("0") == 2
    assert "4" not in answers
    assert len(batch) == 6 * 3 - 1 - 3
    assert env.metrics()["unscored"] == 4
    assert env.metrics()["groups_dropped"] == 1
    assert "judge is down" in caplog.text


def test_a_group_left_with_one_row_is_dropped_and_no_rows_at_all_is_an_error():
    def first_only(completions):
        return [1.0 if c == "a" else None for c in completions]

    with pytest.raises(RewardError, match="none of the 6 completions could be scored"):
        environment(first_only).collect(FakePolicy(by_copy), 7)
    alone = environment(lengths, group=1, prompts=2)
    assert len(alone.collect(FakePolicy(by_copy), 0)) == 2


def by_parity(prompt, key):
    """Prompts with an odd number have a signal, the others none."""
    return "a" * (1 + key[-1] * (int(prompt[1:]) % 2))


def test_filtering_is_off_by_default_and_shares_are_logged():
    env = environment(prompts=6)
    batch = env.collect(FakePolicy(by_parity), 0)
    assert len(batch) == 12
    assert env.metrics()["groups_without_signal"] == 0.5


def test_filtering_samples_until_enough_groups_have_a_signal():
    # 3 of the 6 prompts tell something: 6 telling groups need two rounds of 6
    env = environment(prompts=6, filter_groups=True, max_rounds=5)
    policy = FakePolicy(by_parity)
    batch = env.collect(policy, 0)
    assert {int(info["answer"]) % 2 for info in batch.info} == {1}
    assert len(batch) == 12
    assert len(batch.group.unique()) == 6
    figures = env.metrics()
    assert figures["filter/rounds"] == len(policy.calls) == 2
    assert figures["filter/groups_left_out"] == 6
    assert figures["filter/groups_short"] == 0
    assert figures["groups_without_signal"] == 0.5
    # a round generates 3 · (2 + 2) tokens without signal and 3 · (2 + 3) with
    assert figures["generated_tokens"] == 54


def test_filtering_gives_up_after_its_rounds_and_fills_up():
    env = environment(prompts=3, filter_groups=True, max_rounds=2)
    policy = FakePolicy(lambda prompt, key: "a")
    assert len(env.collect(policy, 0)) == 6
    assert len(policy.calls) == 2
    assert env.metrics()["filter/groups_short"] == 3
    with pytest.raises(ValueError, match="group >= 2"):
        RolloutSettings(group=1, filter_groups=True)


def test_metrics_by_hand():
    # answers 'a' and 'aa' under a budget of 2 tokens: lengths 2 and 2, one truncated; rewards 0.5 · (1, 2)
    env = environment(prompts=3, sampling=Sampling(max_tokens=2), weight=0.5)
    env.collect(FakePolicy(by_copy), 0)
    figures = env.metrics()
    assert figures["reward"] == 0.75
    assert figures["reward/r"] == 1.5
    assert figures["reward_std"] == 0.25
    assert figures["length"] == 2.0
    assert figures["truncated"] == 0.5
    assert figures["generated_tokens"] == 12
    assert figures["groups_without_signal"] == figures["unscored"] == figures["groups_dropped"] == 0
    assert figures["time/generation"] >= 0
    assert figures["time/reward"] >= 0


def test_values_bootstrap_from_the_state_after_the_last_token():
    # the fake's V(s_t) is t + 1 + 10·group, and V after n tokens n + 1 + 10·group
    settings = {"sampling": Sampling(max_tokens=2), "prompts": 2}
    batch = environment(**settings).collect(FakePolicy(by_copy, has_critic=True), 0)
    assert batch.value.tolist() == [[1, 2], [1, 2], [11, 12], [11, 12]]
    assert batch.next_value.tolist() == [[2, 0], [2, 3], [12, 0], [12, 13]]
    assert environment(**settings).collect(FakePolicy(by_copy), 0).value is None


def test_values_of_rows_of_different_length():
    batch = environment(prompts=1).collect(FakePolicy(by_copy, has_critic=True), 0)
    assert batch.value.tolist() == [[1, 2, 0], [1, 2, 3]]
    assert batch.next_value.tolist() == [[2, 0, 0], [2, 3, 0]]


@pytest.mark.parametrize("focus", [0.0, 0.5])
def test_resuming_goes_on_with_the_same_batches(focus):
    def fresh():
        return environment(right, focus=focus, seed=3)

    def lucky(prompt, key):
        return prompt[1:] if sum(key) % 3 else "no"

    whole = fresh()
    batches = [whole.collect(FakePolicy(lucky), i) for i in range(8)]
    first = fresh()
    for i in range(3):
        first.collect(FakePolicy(lucky), i)
    state = json.loads(json.dumps(first.state_dict()))
    second = fresh()
    second.load_state_dict(state)
    for i in range(3, 8):
        batch = second.collect(FakePolicy(lucky), i)
        assert batch.info == batches[i].info
        assert torch.equal(batch.action, batches[i].action)


def test_a_prompt_seen_again_is_answered_anew():
    env, policy = environment(), FakePolicy(by_copy)
    for step in range(6):
        env.collect(policy, step)
    streams = [key for call in policy.calls for key in call[3]]
    prompts = [prompt for call in policy.calls for prompt in call[0]]
    assert (len(set(prompts)), len(streams), len(set(streams))) == (6, 18, 18)


def test_seeds_change_prompts_and_streams():
    policies = [FakePolicy(by_copy) for _ in range(3)]
    for policy, seed in zip(policies, (0, 0, 1), strict=True):
        environment(seed=seed).collect(policy, 0)
    assert policies[0].calls == policies[1].calls
    assert policies[0].calls[0][3] != policies[2].calls[0][3]
    assert all(number >= 0 for key in policies[0].calls[0][3] for number in key)


def test_focus_returns_to_what_is_not_solved():
    # prompts below 50 are always solved, the others half the time
    choice = PromptChoice(100, seed=0, focus=0.5)
    plain = PromptChoice(100, seed=0)
    counts = [0, 0]
    for _ in range(12):
        for index in choice.choose(8):
            counts[index >= 50] += 1
            choice.observe(index, 1.0 if index < 50 else 0.5)
        plain.choose(8)
    assert counts[1] > 1.5 * counts[0]
    assert set(choice.state_dict()["rates"]) <= {str(i) for i in range(50, 100)}
    assert plain.state_dict()["position"] == plain.drawn == choice.drawn == 96
    assert choice.state_dict()["position"] < 96


def test_focus_prefers_what_is_solved_least():
    picked = []
    for seed in range(200):
        choice = PromptChoice(2, seed, focus=1.0)
        choice.observe(0, 0.9)
        choice.observe(1, 0.1)
        picked += choice.choose(1)
    # weights .1 and .9: 180 of 200 expected, standard deviation 4.2
    assert 160 <= sum(picked) < 200


def test_solved_is_told_by_the_total_reward():
    # totals 0.5 and 1.0 with weight 0.5: by default only the sum of weights, 0.5, is needed
    for settings, rates in (({}, {}), ({"solved_at": 0.75}, {0.5}), ({"solved_at": 2.0}, {0.0})):
        env = environment(weight=0.5, focus=0.5, **settings)
        env.collect(FakePolicy(by_copy), 0)
        assert set(env.state_dict()["choice"]["rates"].values()) == set(rates)


def test_focus_forgets_what_gets_solved():
    choice = PromptChoice(1, seed=0, focus=1.0)
    choice.observe(0, 0.0)
    assert choice.choose(1) == [0]
    for expected in (0.5, 0.75, 0.875):
        choice.observe(0, 1.0)
        assert choice.state_dict()["rates"] == {"0": expected}
    for _ in range(5):
        choice.observe(0, 1.0)
    assert choice.state_dict()["rates"] == {}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"prompts": 0}, "prompts must be at least 1"),
        ({"group": 0}, "group must be at least 1"),
        ({"overlong": "drop"}, "overlong must be"),
        ({"focus": 1.5}, "focus must be in"),
    ],
)
def test_impossible_settings(settings, message):
    with pytest.raises(ValueError, match=message):
        environment(**settings)


def test_environments_that_cannot_be():
    with pytest.raises(ValueError, match="at least one reward term"):
        LanguageEnvironment(ITEMS, [])
    with pytest.raises(ValueError, match="same name"):
        LanguageEnvironment(ITEMS, [RewardTerm("r", lengths), RewardTerm("r", right)])
    with pytest.raises(DataError, match="a column 'completions'"):
        environment(items=[{"prompt": "x", "completions": "y"}])


def test_a_prompt_longer_than_the_context_is_quoted():
    items = [{"prompt": "a question that goes on"}]
    with pytest.raises(
        DataError, match="'a question that goes on'… has 23 tokens, but the model's context is 23"
    ):
        environment(items=items, prompts=1).collect(FakePolicy(by_copy, context=23), 0)
    environment(items=items, prompts=1).collect(FakePolicy(by_copy, context=24), 0)
    with pytest.raises(DataError, match="has 23 tokens"):
        DemonstrationEnvironment(items, lambda item, rng: "x", batch=1).collect(FakePolicy(context=23), 0)


def test_no_signal_is_warned_of():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        environment().collect(FakePolicy(lambda prompt, key: "a"), 0)
    assert any("no signal" in str(w.message) for w in caught)


def test_demonstrations_train_the_answer_and_its_stop_but_not_the_prompt():
    env = DemonstrationEnvironment(ITEMS, lambda item, rng: "ab" + item["answer"], batch=4)
    assert isinstance(env, Environment)
    batch = env.collect(FakePolicy(), 0)
    for i in range(4):
        answer = batch.info[i]["answer"]
        assert batch.action[i].tolist() == [97, 98, ord(answer), STOP]
        assert batch.obs.prompts[i] == (ord("p"), ord(answer))
    assert batch.valid.all()
    assert batch.cut[:, -1].all()
    assert batch.group.tolist() == [0, 1, 2, 3]
    assert not batch.logp.any()
    assert not batch.reward.any()
    assert env.collect(FakePolicy(), 1).group.tolist() == [4, 5, 6, 7]
    assert env.metrics() == {"length": 4.0}


def test_demonstrations_resume_and_vary():
    def draw(item, rng):
        return str(rng.randrange(10**9))

    whole = DemonstrationEnvironment(ITEMS, draw, batch=4, seed=1)
    batches = [whole.collect(FakePolicy(), i) for i in range(4)]
    second = DemonstrationEnvironment(ITEMS, draw, batch=4, seed=1)
    second.load_state_dict({"position": 8})
    assert second.collect(FakePolicy(), 2).info == batches[2].info
    texts = [info["completion"] for batch in batches for info in batch.info]
    assert len(set(texts)) == 16  # a prompt seen again gets a demonstration drawn anew


def test_demonstrations_that_cannot_be_cloned():
    with pytest.raises(DataError, match=r"demonstration for 'p[0-5]' is empty"):
        DemonstrationEnvironment(ITEMS, lambda item, rng: "", batch=1).collect(FakePolicy(), 0)
    with pytest.raises(DataError, match=r"have 2 \+ 4 tokens, more than the model's context of 5"):
        DemonstrationEnvironment(ITEMS, lambda item, rng: "abc", batch=1).collect(FakePolicy(context=5), 0)
