import pytest
from fake_policy import FakePolicy

from outdo.core.rewards import RewardTerm
from outdo.core.statistics import wilson_interval
from outdo.language.demonstrations import chain_sum
from outdo.language.evaluation import HeldOut, sampled_metrics, score_demonstrations
from outdo.language.sampling import Sampling
from outdo.language.tasks import reasoning_gym_items
from outdo.language.verifiers import exact, number

ITEMS = [{"prompt": f"p{i}", "answer": str(i)} for i in range(4)]
SCORER = RewardTerm("final", exact)


def test_greedy_and_sampled_figures_by_hand():
    # greedy: right on p0, p1, p2. Sampled: p0 always, p1 on copies 0 and 1, p2 on copy 0, p3 never
    rights = {"p0": 4, "p1": 2, "p2": 1, "p3": 0}

    class Both(FakePolicy):
        def generate(self, prompts, copies, sampling, streams):
            self.answer = (
                (lambda p, key: p[1:] if p != "p3" else "no")
                if sampling.greedy
                else (lambda p, key: p[1:] if key[-1] < rights[p] else "noo")
            )
            return super().generate(prompts, copies, sampling, streams)

    policy = Both()
    report = HeldOut(ITEMS, SCORER, Sampling(max_tokens=3), samples=4)(policy)
    m = report.metrics
    assert (m["greedy/accuracy"], m["greedy/low"], m["greedy/high"]) == wilson_interval(3, 4)
    assert m["greedy/length"] == (2 + 2 + 2 + 3) / 4  # the stop token counts
    assert m["greedy/truncated"] == 0
    assert m["sampled/accuracy"] == 7 / 16
    assert m["sampled/low"] < 7 / 16 < m["sampled/high"]
    # pass@2: 1, 1 − C(2,2)/C(4,2) = 5/6, 1 − C(3,2)/C(4,2) = 1/2, 0; pass@4: 1, 1, 1, 0
    assert m["sampled/pass@2"] == pytest.approx((1 + 5 / 6 + 1 / 2) / 4)
    assert m["sampled/pass@4"] == 3 / 4
    assert m["sampled/pass@4/low"] < 0.75 < m["sampled/pass@4/high"]
    assert m["sampled/truncated"] == 9 / 16  # every wrong 'noo' ran out of its three tokens
    assert report.samples[3] == {
        "prompt": "p3",
        "answer": "3",
        "greedy": "no",
        "right": False,
        "sampled": "noo",
        "sampled_right": 0.0,
    }


def test_greedy_alone_and_the_same_report_twice():
    policy = FakePolicy(lambda p, key: p[1:])
    evaluate = HeldOut(ITEMS, SCORER, Sampling(max_tokens=8), shown=2)
    report = evaluate(policy)
    assert report == evaluate(policy)
    assert policy.calls[0] == policy.calls[1]
    assert policy.calls[0][2] == Sampling(temperature=0.0, max_tokens=8)
    assert report.metrics["greedy/accuracy"] == 1.0
    assert not any(name.startswith("sampled") for name in report.metrics)
    assert [sample["right"] for sample in report.samples] == [True, True]


def test_more_problems_than_fit_into_one_call_keep_their_streams():
    items = [{"prompt": f"p{i}", "answer": str(i)} for i in range(150)]
    policy = FakePolicy(lambda p, key: p[1:])
    metrics = HeldOut(items, SCORER, samples=1)(policy).metrics
    assert metrics["greedy/accuracy"] == metrics["sampled/accuracy"] == 1.0
    streams = [key for call in policy.calls[3:] for key in call[3]]
    assert [place for _, place in streams] == list(range(150))
    assert "sampled/pass@1" not in metrics


def test_what_cannot_be_scored_counts_as_wrong_and_is_counted():
    scorer = RewardTerm("final", lambda completions: [None, 1.0, 0.5, 1.0])
    metrics = HeldOut(ITEMS, scorer)(FakePolicy()).metrics
    assert metrics["greedy/accuracy"] == 0.5
    assert metrics["greedy/unscored"] == 1
    assert HeldOut(ITEMS, scorer, pass_at=0.5)(FakePolicy()).metrics["greedy/accuracy"] == 0.75


def test_pass_at_powers_of_two_and_all_samples():
    names = set(sampled_metrics([[True] * 6, [False] * 6]))
    assert {n for n in names if "@" in n and n.count("/") == 1} == {
        "sampled/pass@2",
        "sampled/pass@4",
        "sampled/pass@6",
    }


def test_evaluations_that_could_say_nothing():
    for settings, message in (
        ({"items": ITEMS[:1]}, "at least two problems"),
        ({"samples": -1}, "samples must be"),
        ({"samples": 2, "sampling": Sampling(temperature=0.0)}, "temperature above 0"),
    ):
        with pytest.raises(ValueError, match=message):
            HeldOut(**{"items": ITEMS, "scorer": SCORER, **settings})


def test_demonstrations_score_what_enumeration_says():
    config = {"min_terms": 3, "max_terms": 3, "min_digits": 1, "max_digits": 1}
    items = reasoning_gym_items("chain_sum", 400, 0, **config)
    scorer = RewardTerm("final", number)
    report = score_demonstrations(items, chain_sum, scorer, seed=0, repeats=4)
    assert report == score_demonstrations(items, chain_sum, scorer, seed=0, repeats=4)
    m = report.metrics
    # 0.55 over all expressions; the standard error over 400 problems is below 0.017: 0.06 is over three
    assert m["demonstrations/accuracy"] == pytest.approx(0.55, abs=0.06)
    assert m["demonstrations/low"] < m["demonstrations/accuracy"] < m["demonstrations/high"]
    perfect = score_demonstrations(items, lambda item, rng: f"Answer: {item['answer']}", scorer, seed=0)
    assert perfect.metrics["demonstrations/accuracy"] == 1.0
