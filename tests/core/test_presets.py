"""Presets as published, and algorithms read from tables."""

import pytest

from outdo.core.algorithm import Algorithm
from outdo.core.parts import Clipped, GroupMean, KlInLoss, NoKl, Reinforce, Return, Update
from outdo.core.presets import PRESETS, algorithm_from, describe, preset


@pytest.mark.parametrize("name", PRESETS)
def test_every_preset_is_described_and_reads_back(name):
    entry = preset(name)
    assert entry.algorithm.name == name
    assert all(len(text) > 10 for text in (entry.paper, entry.formula, entry.summary))
    assert algorithm_from(describe(entry.algorithm)) == entry.algorithm
    assert algorithm_from(name) is entry.algorithm


def test_the_presets_of_the_issue_are_there():
    assert set(PRESETS) == {
        "sft",
        "reinforce",
        "reinforce_to_go",
        "reinforce_baseline",
        "a2c",
        "ppo",
        "grpo",
        "grpo_exact_kl",
        "rloo",
        "dr_grpo",
        "dapo",
        "gspo",
        "cispo",
        "reinforce_plus_plus",
        "exponential",
    }


def test_no_preset_but_published_grpo_has_a_wrong_kl_gradient():
    wrong = [
        name
        for name, entry in PRESETS.items()
        if isinstance(entry.algorithm.kl, KlInLoss)
        and entry.algorithm.kl.estimator == "k3"
        and not entry.algorithm.kl.times_ratio
    ]
    assert wrong == ["grpo"]
    assert any("forward" in text or "KL(π_ref‖π)" in text for text in PRESETS["grpo"].departures)


def test_a_table_changes_fields_of_a_preset():
    got = algorithm_from(
        {
            "preset": "grpo",
            "advantage": {"kind": "group_mean", "scale": "none"},
            "objective": {"high": 0.28},
            "kl": "none",
            "update": {"epochs": 1, "importance_cap": 2},
            "gamma": 1,
            "name": "mine",
        }
    )
    assert got == Algorithm(
        GroupMean(scale="none"),
        Clipped(high=0.28, reduce="sequence_mean_token_mean"),
        NoKl(),
        Update(importance_cap=2.0),
        name="mine",
    )


def test_another_kind_starts_from_its_own_defaults():
    got = algorithm_from({"preset": "grpo", "objective": {"kind": "reinforce"}, "advantage": {"ddof": 1}})
    assert got.objective == Reinforce()
    assert got.advantage == GroupMean(ddof=1)


def test_a_table_without_preset_needs_two_parts():
    got = algorithm_from({"advantage": {"kind": "return", "baseline": "running"}, "objective": "reinforce"})
    assert got == Algorithm(Return(baseline="running"), Reinforce())
    with pytest.raises(ValueError, match="needs objective"):
        algorithm_from({"advantage": "ones"})


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ("gropo", "did you mean 'grpo'"),
        ({"preset": "gropo"}, "did you mean 'grpo'"),
        ({"preset": "grpo", "objectiv": {}}, "did you mean 'objective'"),
        ({"preset": "grpo", "advantage": {"scal": "none"}}, "did you mean 'scale'"),
        ({"preset": "grpo", "advantage": {"kind": "groupmean"}}, "did you mean 'group_mean'"),
        ({"preset": "grpo", "update": {"epoch": 3}}, "did you mean 'epochs'"),
        ({"preset": "grpo", "update": {"epochs": 1.5}}, "update.epochs must be int"),
        ({"preset": "grpo", "update": {"epochs": True}}, "update.epochs must be int"),
        ({"preset": "grpo", "objective": {"low": "0.2"}}, "objective.low must be float"),
        ({"preset": "grpo", "advantage": {"scale": 3}}, "advantage.scale must be"),
        ({"preset": "grpo", "advantage": {"scale": "std"}}, "group, batch, none"),
        ({"preset": "grpo", "advantage": 3}, "algorithm.advantage must be a table"),
        ({"preset": "grpo", "kl": {"times_ratio": "yes"}}, "kl.times_ratio must be bool"),
        ({"preset": "grpo", "gamma": "1"}, "algorithm.gamma must be a number"),
        ({"preset": "grpo", "name": 3}, "algorithm.name must be a string"),
        ({"advantage": {"scale": "none"}, "objective": "reinforce"}, "advantage.kind is missing"),
        ({"preset": "grpo", "kl": {"kind": "in_loss", "estimator": "k1"}}, "zero expected gradient"),
    ],
)
def test_mistakes_name_the_nearest_key_or_the_right_type(table, message):
    with pytest.raises(ValueError, match=message):
        algorithm_from(table)
