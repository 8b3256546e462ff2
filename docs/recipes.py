"""Writes `docs/recipes.md` from the recipe's own definition: `python docs/recipes.py`.

Sections come from the pydantic models of `outdo.config`, the parts of an algorithm from the dataclasses of
`outdo.core.parts`. A test compares the page with what this gives.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

from pydantic import BaseModel

from outdo import config
from outdo.core import parts
from outdo.core.algorithm import Algorithm
from outdo.core.presets import describe
from outdo.core.reduce import reduce
from outdo.language import verifiers

PAGE = Path(__file__).with_name("recipes.md")
LANGUAGE: list[tuple[str, type[BaseModel]]] = [
    ("[policy]", config.PolicyConfig),
    ("[policy.lora]", config.LoraConfig),
    ("[task]", config.TaskConfig),
    ("[reward.NAME]", config.RewardConfig),
]
CONTROL: list[tuple[str, type[BaseModel]]] = [
    ("[env]", config.EnvConfig),
    ("[policy]", config.ControlPolicyConfig),
    ("[[stage]]", config.ControlStage),
    ("[evaluation]", config.ControlEvaluationConfig),
]
DRIVING: list[tuple[str, type[BaseModel]]] = [
    ("[policy]", config.DrivingPolicyConfig),
    ("[task]", config.DrivingTaskConfig),
    ("[task.flaws]", config.FlawsConfig),
    ("[reward]", config.DrivingRewardConfig),
    ("[judge]", config.JudgeConfig),
]
HEAD = """\
# Keys of a recipe

This page is written by `python docs/recipes.py`; change the descriptions in `src/outdo/config/` and
`src/outdo/core/parts.py`, then run it.

A recipe is a TOML file. Start from one that ships: `outdo recipes copy > mine.toml`. An unknown key is an error
that names the nearest known one. Every run folder holds `recipe.toml` with all defaults written out.

On the command line a key is set by its dotted path, `policy.precision=float32`. A stage is addressed by its
name, which is its kind unless it has one of its own: `rl.steps=20`, `rl.algorithm.update.epochs=1`. Values are
TOML (`'policy.lora={rank = 8}'`), anything else is text, and the word `off` takes a key out: `evaluation=off`.
In the table of an algorithm `"off"` switches a limit off, in a file too. Paths are relative to the folder that
`outdo` is called in, not to the recipe.

There are three kinds of recipe, told apart by `policy.kind`: [language runs](#language-runs) have a `[task]` with
prompts, [control runs](#control-runs) an `[env]` to act in, [driving runs](#driving-runs) a `[task]` with scenes.
`[stage.algorithm]`, `[checkpoint]` and `[[tracker]]` are the same for all.
"""


CONTROL_HEAD = """\
See [control.md](control.md) for what these recipes reach. An update learns from `envs` × `horizon` steps, or from
`episodes` whole episodes."""


DRIVING_HEAD = """\
A reward is a set of weights: every term knows its range and whether more of it is better. A stage may have a table
`reward` of its own (`rl.reward.l2=2`), with the same keys. Choice by disagreement costs nothing: a scene's group is
sampled and scored for the update anyhow, and its divergence decides whether the scene is drawn again."""


def table(rows: Iterable[Sequence[str]], head: Sequence[str]) -> str:
    """A Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", r"\|") for cell in line) + " |" for line in lines)


def value(schema: Mapping[str, Any]) -> str:
    """What a key takes, from its JSON schema."""
    if "anyOf" in schema:
        return " or ".join(value(each) for each in schema["anyOf"] if each.get("type") != "null")
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(each)}`" for each in schema["enum"])
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if schema.get("type") == "array":
        items = ", ".join(value(each) for each in schema.get("prefixItems", []))
        return f"[{items}]" if items else f"list of {value(schema['items'])}"
    names = {"integer": "integer", "number": "number", "string": "text", "boolean": "true, false"}
    bounds = {"minimum": ">=", "exclusiveMinimum": ">", "maximum": "<="}
    limits = [f"{sign} {schema[key]:g}" for key, sign in bounds.items() if key in schema]
    return " ".join([names.get(schema.get("type", ""), "table"), ", ".join(limits)]).strip()


def default(given: Any) -> str:
    """A default as TOML writes it; of a whole section only where to find it."""
    if given is None:
        return "left out"
    if isinstance(given, BaseModel):
        return "see below"
    return f"`{json.dumps(given)}`"


def rows(model: type[BaseModel], names: Iterable[str]) -> list[list[str]]:
    """Key, value, default and meaning of some fields of a section."""
    schema = model.model_json_schema()
    made: list[list[str]] = []
    for name in names:
        each = schema["properties"][name]
        start = "required"
        if not model.model_fields[name].is_required():
            start = default(model.model_fields[name].get_default(call_default_factory=True))
        made.append([f"`{name}`", value(each), start, each.get("description", "")])
    return made


def part_value(annotation: Any) -> str:
    """What a setting of a part takes, from its annotation."""
    if get_origin(annotation) is Literal:
        return ", ".join(f"`{json.dumps(each)}`" for each in get_args(annotation))
    names = {float: "number", int: "integer", bool: "true, false", str: "text"}
    kinds = [each for each in get_args(annotation) or (annotation,) if each is not type(None)]
    optional = ', or `"off"`' if type(None) in get_args(annotation) else ""
    return ", ".join(names[each] for each in kinds) + optional


def part_rows(part: type) -> list[list[str]]:
    """Settings, values and defaults of a part of an algorithm."""
    hints = get_type_hints(part)
    return [
        [f"`{item.name}`", part_value(hints[item.name]), default(item.default)]
        for item in fields(part)
        if item.default is not MISSING
    ]


def kinds(where: str, choices: Iterable[type]) -> str:
    """All kinds of one part of an algorithm: name, what it is, settings."""
    blocks: list[str] = []
    for part in choices:
        stand_in = {"advantage": parts.Ones(), "objective": parts.Reinforce(), where: part()}
        kind = describe(Algorithm(**stand_in))[where]["kind"]
        block = f'`{where}.kind = "{kind}"`: {inspect.getdoc(part)}'
        settings = part_rows(part)
        blocks.append(block + ("\n\n" + table(settings, ["setting", "value", "default"]) if settings else ""))
    return "\n\n".join(blocks)


def reductions() -> str:
    """The table of reductions from the docstring of `reduce`."""
    lines = (inspect.getdoc(reduce) or "").splitlines()
    return "\n".join(line for line in lines if line.startswith("|"))


def verifiers_table() -> str:
    """Rewards that ship: name, arguments with their defaults, what they are."""
    made: list[list[str]] = []
    for name, function in vars(verifiers).items():
        if name.startswith("_") or getattr(function, "__module__", "") != verifiers.__name__:
            continue
        parameters = list(inspect.signature(function).parameters.values())
        if parameters[0].name in ("completions", "completion_ids"):
            arguments = ", ".join(str(p.replace(annotation=p.empty)) for p in parameters[1:])
            what = (inspect.getdoc(function) or "").partition("\n")[0]
            made.append([f"`outdo.language.verifiers:{name}`", f"`{arguments}`", what])
    return table(made, ["function", "columns and arguments", "meaning"])


def algorithm_rows() -> list[list[str]]:
    """The settings of an algorithm beside its parts, with their meaning from its docstring."""
    lines = [line.strip("| ") for line in (inspect.getdoc(Algorithm) or "").splitlines() if line[:3] == "| `"]
    meaning = {name: text for name, _, text in (line.partition(" | ") for line in lines)}
    found = [row for row in part_rows(Algorithm) if row[0] in meaning]
    return [[*row, meaning[row[0]]] for row in found]


def stages(sft: type[BaseModel], rl: type[BaseModel]) -> str:
    """The two kinds of stage of a run: first what they share."""
    both = [n for n in ordered(sft) if n in rl.model_fields and rows(sft, [n]) == rows(rl, [n])]
    head = ["key", "value", "default", "meaning"]
    blocks = [
        "### `[[stage]]`",
        "Stages run in the order they stand in. Both kinds have:",
        table(rows(sft, both), head),
    ]
    for model, what in (
        (sft, '`kind = "sft"`, imitation, has besides:'),
        (rl, '`kind = "rl"`, reinforcement learning, has besides:'),
    ):
        blocks += [what, table(rows(model, [name for name in ordered(model) if name not in both]), head)]
    return "\n\n".join(blocks)


def ordered(model: type[BaseModel]) -> list[str]:
    """Keys of a section: `kind`, `name`, `steps` and its own before others that it inherits."""
    first = [name for name in ("kind", "name", "steps", "algorithm", "every") if name in model.model_fields]
    return list(dict.fromkeys([*first, *model.__annotations__, *model.model_fields]))


def algorithms() -> str:
    """The table `[stage.algorithm]`."""
    return "\n\n".join(
        [
            "## `[stage.algorithm]`",
            'Either the name of a preset (`algorithm = "rloo"`; `outdo algorithms` lists them with paper and '
            "formula), or a table: `preset`, and what to change of it. A part of another `kind` starts from "
            "that kind's defaults. Without `preset` the table must give `advantage` and `objective`.",
            table(algorithm_rows(), ["key", "value", "default", "meaning"]),
            "### Advantage",
            kinds("advantage", get_args(parts.Advantage)),
            "### Objective",
            kinds("objective", get_args(parts.Objective)),
            "`ratio`: of a token, of the whole sequence, or of the sequence to the power 1/length (GSPO). `dual` = c "
            "> 1 bounds the surrogate of a negative advantage at c·A. `reduce` says how the losses l_it of rows i "
            "= 1 … N with n_i steps become one number; the last takes `length`:",
            reductions(),
            "### KL",
            kinds("kl", get_args(parts.Kl)),
            "### Update",
            inspect.getdoc(parts.Update) or "",
            table(part_rows(parts.Update), ["setting", "value", "default"]),
        ]
    )


def sections(models: Iterable[tuple[str, type[BaseModel]]], level: str) -> list[str]:
    """Heading and table of each section."""
    head = ["key", "value", "default", "meaning"]
    blocks: list[str] = []
    for title, model in models:
        blocks += [f"{level} `{title}`", table(rows(model, ordered(model)), head)]
        if title == "[reward.NAME]":
            blocks += ["Functions that ship; any other works the same way:", verifiers_table()]
    return blocks


def checkpoint_rows() -> list[list[str]]:
    """The keys of `[checkpoint]`; `best_by` begins otherwise in control and driving runs."""
    made = rows(config.CheckpointConfig, config.CheckpointConfig.model_fields)
    (control,) = rows(config.ControlCheckpointConfig, ["best_by"])
    (driving,) = rows(config.DrivingCheckpointConfig, ["best_by"])
    others = f"; control: {control[2]}, driving: {driving[2]}"
    return [[*row[:2], row[2] + others, row[3]] if row[0] == control[0] else row for row in made]


def page() -> str:
    """The whole page."""
    head = ["key", "value", "default", "meaning"]
    top = [name for name in config.Recipe.model_fields if name in ("seed", "threads")]
    blocks = [HEAD.rstrip(), "## Top of the file", table(rows(config.Recipe, top), head)]
    blocks += ["Control runs take 1 thread unless told otherwise: small networks gain nothing by more."]
    blocks += ["## Language runs", *sections(LANGUAGE, "###")]
    blocks += [stages(config.SftStage, config.RlStage)]
    blocks += sections([("[evaluation]", config.language.EvaluationConfig)], "###")
    blocks += ["## Control runs", CONTROL_HEAD, *sections(CONTROL, "###")]
    blocks += ["## Driving runs", DRIVING_HEAD, *sections(DRIVING, "###")]
    blocks += [stages(config.DrivingSftStage, config.DrivingRlStage)]
    blocks += sections([("[evaluation]", config.DrivingEvaluationConfig)], "###")
    blocks += [algorithms()]
    blocks += ["## `[checkpoint]`", table(checkpoint_rows(), head)]
    blocks += sections([("[[tracker]]", config.TrackerConfig)], "##")
    return "\n\n".join(blocks) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
