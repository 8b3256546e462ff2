"""Recipes: what is read, what is refused and how the message helps."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
from pydantic import BaseModel

from outdo import config
from outdo.config import Recipe
from outdo.core.presets import PRESETS, algorithm_from
from outdo.recipe import (
    RecipeError,
    differences,
    parse_override,
    read,
    resolved,
    shipped,
    stage_algorithm,
    to_toml,
    validate,
)

SMALL = """
[policy]
path = "tiny"
[task]
kind = "function"
name = "outdo.language.tasks:copy_items"
config = { size = 100, seed = 0 }
held_out = 10
demonstrations = "answer"
[reward.correct]
function = "outdo.language.verifiers:exact"
[[stage]]
kind = "sft"
steps = 2
[[stage]]
kind = "rl"
steps = 3
[evaluation]
problems = 4
"""


@pytest.fixture
def small(tmp_path) -> Path:
    (tmp_path / "small.toml").write_text(SMALL)
    return tmp_path / "small.toml"


def test_a_recipe_is_always_that_of_a_wing():
    with pytest.raises(TypeError, match="abstract"):
        Recipe(stage=[])


@pytest.mark.parametrize("name", sorted(shipped()))
def test_every_shipped_recipe_parses_and_survives_being_written(name, tmp_path):
    recipe = read(name)
    (tmp_path / "recipe.toml").write_text(to_toml(recipe))
    again = read(tmp_path)
    assert resolved(again) == resolved(recipe)
    assert differences(recipe, again) == []
    assert [stage_algorithm(s) for s in again.stage] == [stage_algorithm(s) for s in recipe.stage]


@pytest.mark.parametrize("name", sorted(PRESETS))
def test_every_algorithm_survives_being_written(name, small, tmp_path):
    recipe = read(small, {"rl.algorithm": name, "policy.value_head": True})
    (tmp_path / "recipe.toml").write_text(to_toml(recipe))
    assert stage_algorithm(read(tmp_path).stage[1]) == PRESETS[name].algorithm


def test_limits_that_are_off_survive_being_written(small, tmp_path):
    recipe = read(small, {"rl.algorithm.update.max_grad_norm": "off", "rl.algorithm.advantage.scale": "none"})
    algorithm = stage_algorithm(recipe.stage[1])
    assert algorithm.update.max_grad_norm is None
    assert algorithm.advantage.scale == "none"
    (tmp_path / "recipe.toml").write_text(to_toml(recipe))
    assert stage_algorithm(read(tmp_path).stage[1]) == algorithm


def test_overrides_address_sections_stages_and_parts_of_algorithms(small):
    given = [
        "seed=3",
        "rl.steps=20",
        "rl.algorithm.kl.coefficient=0.5",
        "policy.path=a/b",
        "reward.short.weight=0.1",
    ]
    given += [
        "reward.short.function=outdo.language.verifiers:soft_length",
        "policy.lora.rank=4",
        "rl.betas=[0.8, 0.9]",
    ]
    recipe = read(small, dict(parse_override(text) for text in given))
    rl = recipe.stage[1]
    assert (recipe.seed, rl.steps, recipe.policy.path, rl.betas) == (3, 20, "a/b", (0.8, 0.9))
    assert stage_algorithm(rl) == algorithm_from({"preset": "grpo", "kl": {"coefficient": 0.5}})
    assert recipe.reward["short"].weight == 0.1
    assert recipe.policy.lora.rank == 4
    assert read(small, {"policy.lora": None}).policy.lora is None


def test_stages_of_one_kind_are_addressed_by_name(tmp_path):
    (tmp_path / "two.toml").write_text(SMALL + '[[stage]]\nkind = "rl"\nname = "harder"\nsteps = 4\n')
    assert [s.steps for s in read(tmp_path / "two.toml", {"harder.steps": 9}).stage] == [2, 3, 9]
    (tmp_path / "same.toml").write_text(SMALL + '[[stage]]\nkind = "rl"\nsteps = 4\n')
    with pytest.raises(RecipeError, match="two stages are called 'rl'"):
        read(tmp_path / "same.toml")
    with pytest.raises(RecipeError, match="'rl' names 2 stages"):
        read(tmp_path / "same.toml", {"rl.steps": 9})


@pytest.mark.parametrize(
    ("text", "key", "value"),
    [
        ("a=1", "a", 1),
        ("a.b=1e-4", "a.b", 1e-4),
        ("a=true", "a", True),
        ("a=text", "a", "text"),
        ("a='1'", "a", "1"),
        ("a=off", "a", None),
        ("a=[1, 2]", "a", [1, 2]),
        ("a=x=y", "a", "x=y"),
        ("a=outdo.x:y", "a", "outdo.x:y"),
    ],
)
def test_values_are_toml_or_else_text(text, key, value):
    assert parse_override(text) == (key, value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"rl.promts": 3}, r"unknown key 'rl\.promts'; did you mean 'prompts'"),
        ({"sed": 3}, r"unknown key 'sed'; did you mean 's(eed|ft)'"),
        ({"rll.steps": 3}, r"unknown key 'rll\.steps'; did you mean 'rl'"),
        ({"policy.pth": "x"}, r"unknown key 'policy\.pth'; did you mean 'path'"),
        ({"policy.lora.rnk": 3}, r"unknown key 'policy\.lora\.rnk'; did you mean 'rank'"),
        ({"reward.correct.wieght": 3}, r"unknown key 'reward\.correct\.wieght'; did you mean 'weight'"),
        ({"evaluation.problem": 3}, r"unknown key 'evaluation\.problem'; did you mean 'problems'"),
        ({"rl.algorithm": "grpoo"}, r"rl\.algorithm: unknown algorithm: 'grpoo'; did you mean 'grpo'"),
        ({"rl.algorithm.kl.coeficient": 1}, r"rl\.algorithm: .*'coeficient'; did you mean 'coefficient'"),
        ({"rl.group": 1}, r"rl\.algorithm: .*group = 1"),
        ({"rl.algorithm": "ppo"}, r"rl\.algorithm: .*critic"),
        ({"rl.steps": -1}, r"rl\.steps: .*greater than or equal to 0.*got -1"),
        ({"rl.steps": "many"}, r"rl\.steps: .*integer.*got 'many'"),
        ({"rl.temperature": 0.0}, r"rl\.temperature: .*greater than 0"),
        ({"policy.kind": "mlpp"}, r"policy\.kind: .*'causal_lm'.*got 'mlpp'"),
        ({"policy.precision": "fp8"}, r"policy\.precision: .*'bfloat16'"),
        ({"task.kind": "file"}, "a task of kind 'file' needs 'path'"),
        ({"task.demonstrations": ""}, "an sft stage needs demonstrations"),
        ({"evaluation.problems": 11}, r"only task\.held_out = 10"),
        ({"policy.path.x": 1}, "'path' is no table"),
        ({"rl": 1}, r"rl: name what to set inside it, for example rl\.steps"),
    ],
)
def test_mistakes_are_named_with_their_place(overrides, message, small):
    with pytest.raises(RecipeError, match=message):
        read(small, overrides)


def test_all_mistakes_are_told_at_once(small):
    with pytest.raises(RecipeError) as error:
        read(small, {"rl.steps": -1, "sft.batch": 0})
    assert len(str(error.value).splitlines()) == 2


def test_an_rl_stage_needs_a_reward():
    table = tomllib.loads(SMALL)
    del table["reward"]
    with pytest.raises(RecipeError, match=r"\[reward\.<name>\]"):
        validate(table)


def test_what_is_no_recipe_is_named(tmp_path):
    with pytest.raises(RecipeError, match=r"no recipe 'arithmetik'.*did you mean 'arithmetic'"):
        read("arithmetik")
    (tmp_path / "broken.toml").write_text("seed = = 3")
    with pytest.raises(RecipeError, match=r"broken\.toml is no TOML.*line 1"):
        read(tmp_path / "broken.toml")


def test_differences_name_each_key(small):
    before = read(small)
    assert differences(before, read(small)) == []
    changed = {"rl.group": 4, "seed": 1, "reward.correct.weight": 2.0, "rl.algorithm": "grpo_exact_kl"}
    lines = differences(before, read(small, changed))
    assert lines == [
        "reward.correct.weight: 1.0 → 2.0",
        "seed: 0 → 1",
        "stage.rl.algorithm.kl.times_ratio: False → True",
        "stage.rl.algorithm.name: 'grpo' → 'grpo_exact_kl'",
        "stage.rl.group: 8 → 4",
    ]


def test_checkpoints_trackers_and_more_steps_may_change(small):
    before = read(small)
    assert differences(before, read(small, {"checkpoint.every": 5, "tracker": [{"kind": "wandb"}]})) == []
    assert differences(before, read(small, {"rl.steps": 30})) == []
    assert differences(before, read(small, {"rl.steps": 2})) == ["stage.rl.steps: 3 → 2"]
    assert differences(before, read(small, {"sft.steps": 3})) == ["stage.sft.steps: 2 → 3"]
    # With a schedule that ends with the stage, the steps already made would have been others.
    linear = {"rl.schedule": "linear"}
    assert differences(read(small, linear), read(small, {**linear, "rl.steps": 30})) == [
        "stage.rl.steps: 3 → 30"
    ]


def test_every_field_is_documented():
    models = [
        each for each in vars(config).values() if isinstance(each, type) and issubclass(each, BaseModel)
    ]
    assert Recipe in models
    for model in models:
        assert model.__doc__
        for name, field in model.model_fields.items():
            assert field.description, f"{model.__name__}.{name}"


def test_a_recipe_is_frozen(small):
    with pytest.raises(ValueError, match="frozen"):
        read(small).seed = 3


CONTROL = """
[env]
id = "CartPole-v1"
[policy]
kind = "mlp"
[[stage]]
kind = "rl"
steps = 3
[evaluation]
episodes = 4
"""


@pytest.fixture
def cartpole(tmp_path) -> Path:
    (tmp_path / "control.toml").write_text(CONTROL)
    return tmp_path / "control.toml"


def test_the_kind_of_policy_says_which_recipe_it_is(cartpole, small):
    control, language = read(cartpole), read(small)
    assert isinstance(control, config.ControlRecipe)
    assert isinstance(language, config.LanguageRecipe)
    assert (control.threads, language.threads) == (1, None)
    assert control.checkpoint.best_by == "deterministic/return"
    assert language.checkpoint.best_by == "greedy/accuracy"
    assert stage_algorithm(control.stage[0]) == PRESETS["ppo"].algorithm
    changed = read(cartpole, {"rl.algorithm.gamma": 0.9, "rl.algorithm.advantage.scale": "minibatch"})
    assert stage_algorithm(changed.stage[0]).advantage.scale == "minibatch"


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"rl.horizn": 3}, r"unknown key 'rl\.horizn'; did you mean 'horizon'"),
        ({"env.idd": "x"}, r"unknown key 'env\.idd'; did you mean 'id'"),
        ({"rl.prompts": 3}, r"unknown key 'rl\.prompts'"),
        ({"task.name": "x"}, r"unknown key 'task\.name'; "),
        (
            {"policy.kind": "mpl"},
            r"policy\.kind: .*'causal_lm', 'mlp', 'cnn', 'gru', 'driving' \(got 'mpl'\)",
        ),
        ({"policy.critic": "none"}, r"rl\.algorithm: .*critic"),
        ({"rl.group": 4}, r"rl: group = 4 needs whole episodes"),
        ({"rl.group": 4, "rl.episodes": 6}, r"rl: group = 4 .*got 6"),
        ({"rl.algorithm": "grpo", "rl.episodes": 6}, r"rl\.algorithm: .*group = 1"),
        ({"evaluation.problems": 3}, r"unknown key 'evaluation\.problems'"),
    ],
)
def test_mistakes_in_a_control_recipe_are_named_with_their_place(overrides, message, cartpole):
    with pytest.raises(RecipeError, match=message):
        read(cartpole, overrides)
