"""The comparison of two algorithms: bytes by hand, every pair of presets, sizes as people write them."""

import json
from itertools import combinations

import pytest

from outdo.core.algorithm import Algorithm
from outdo.core.parts import Gae, KlInReward, Reinforce
from outdo.core.presets import PRESETS
from outdo.lab.compare import Memory, Setting, Size, as_json, compare, models, size, texts
from outdo.lab.show import amount

MILLION = Size(1_000_000)


def test_bytes_of_a_million_parameters_by_hand():
    # float32: 4 weights + 4 gradients + 8 moments a parameter; in bfloat16 a copy of 2 more, and frozen models 2.
    held = models(PRESETS["grpo"].algorithm, Setting(MILLION, "float32"))
    assert held == {"policy": Memory(4_000_000, 4_000_000, 8_000_000), "reference": Memory(4_000_000)}
    held = models(PRESETS["grpo"].algorithm, Setting(MILLION, "bfloat16", reward_model=True))
    assert held["policy"].total == 18_000_000
    assert held["reference"].total == held["reward model"].total == 2_000_000


def test_all_four_models_of_rlhf_ppo():
    algorithm = Algorithm(Gae(), Reinforce(), KlInReward())
    held = models(algorithm, Setting(MILLION, "float32", reward_model=True))
    assert list(held) == ["policy", "reference", "reward model", "critic"]
    assert sum(memory.total for memory in held.values()) == 16_000_000 * 2 + 4_000_000 * 2


def test_a_value_head_is_a_row_of_weights():
    setting = Setting(Size(1_000_000, hidden=64), "bfloat16", critic="head")
    assert models(PRESETS["ppo"].algorithm, setting)["critic"].total == 65 * 16


def test_models_follow_the_parts():
    for name, preset in PRESETS.items():
        held = set(models(preset.algorithm, Setting(MILLION, reward_model=True)))
        assert ("critic" in held) == (name in ("a2c", "ppo"))
        assert ("reference" in held) == (type(preset.algorithm.kl).__name__ != "NoKl")
        assert ("reward model" in held) == (name != "sft")


@pytest.mark.parametrize(("first", "second"), list(combinations(PRESETS, 2)))
def test_any_two_presets(first, second):
    setting = Setting(MILLION)
    table = compare(first, second, setting)
    assert list(table) == [first, second]
    assert table[first].keys() == table[second].keys()
    assert json.loads(as_json(table, setting))["algorithms"] == table


@pytest.mark.parametrize(
    ("name", "row", "text"),
    [
        (
            "ppo",
            "advantages from",
            "a critic: GAE with λ = 0.95, divided by the batch's s.d. (divisor n − 1)",
        ),
        (
            "grpo",
            "advantages from",
            "the group: score − mean of the group, divided by the group's s.d. (divisor n)",
        ),
        ("dr_grpo", "advantages from", "the group: score − mean of the group"),
        ("rloo", "advantages from", "the group: score − mean of the others"),
        ("reinforce_baseline", "advantages from", "the return − running average"),
        ("reinforce", "advantages from", "the return, no baseline"),
        ("exponential", "advantages from", "the group: softmax of 1 · score"),
        ("sft", "advantages from", "nowhere: every demonstrated step counts 1"),
        ("ppo", "advantage per", "step"),
        ("reinforce_to_go", "advantage per", "step"),
        ("reinforce", "advantage per", "sequence: all its steps share one"),
        ("grpo", "advantage per", "sequence: all its steps share one"),
        ("ppo", "samples per prompt", "1 is enough"),
        ("grpo", "samples per prompt", "5 (2 at least)"),
        ("sft", "samples per prompt", "none: demonstrations"),
        ("grpo", "KL to the reference", "0.04 · k3 in the loss"),
        ("grpo_exact_kl", "KL to the reference", "0.04 · k3 times the ratio in the loss"),
        ("rloo", "KL to the reference", "0.05 · k1 in the reward"),
        ("ppo", "KL to the reference", "none"),
        ("ppo", "updates per batch", "10 × 32, epochs × minibatches"),
    ],
)
def test_words_follow_the_parts(name, row, text):
    assert texts(PRESETS[name].algorithm, 5)[row] == text


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("135M", 135_000_000),
        ("1.5B", 1_500_000_000),
        ("7e9", 7_000_000_000),
        ("70b", 70_000_000_000),
        ("12", 12),
        ("2K", 2_000),
    ],
)
def test_sizes_as_people_write_them(text, count):
    assert size(text) == Size(count)


def test_sizes_of_models(tmp_path):
    pytest.importorskip("transformers")
    from outdo.language.load import tiny

    model, _ = tiny(0)
    count = sum(p.numel() for p in model.parameters())
    assert size("tiny") == Size(count, 64)
    model.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").unlink()  # the configuration is enough
    assert size(str(tmp_path)) == Size(count, 64)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: size("0"), "at least 1"),
        (lambda: size("infB"), "at least 1"),
        (lambda: size("nanM"), "at least 1"),
        (lambda: size("-3M"), "at least 1"),
        (lambda: size(""), "no number of parameters"),
        (lambda: size("12X"), "no number of parameters"),
        (lambda: Setting(MILLION, "int8"), "precision must be one of float32, bfloat16"),
        (lambda: Setting(MILLION, critic="none"), "critic must be one of"),
        (lambda: Setting(MILLION, group=0), "group"),
        (lambda: compare("ppo", "grpo", Setting(MILLION, group=1)), "set group >= 2"),
        (lambda: compare("ppo", "gppo", Setting(MILLION)), "did you mean"),
    ],
)
def test_what_cannot_be_is_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1_040, "1.04 kB"),
        (2_160_000_000, "2.16 GB"),
        (999_700, "1 MB"),
        (5 * 10**15, "5e+03 TB"),
    ],
)
def test_amounts(count, text):
    assert amount(count) == text
