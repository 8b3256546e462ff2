"""Recipes: TOML read, overridden, validated, written as resolved, and compared."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import fields
from importlib import resources
from pathlib import Path
from typing import Any, get_args

import tomli_w
from pydantic import BaseModel, ValidationError

from outdo.config import ControlRecipe, DrivingRecipe, LanguageRecipe, Recipe, StageConfig
from outdo.core.algorithm import Algorithm
from outdo.core.calls import nearest
from outdo.core.presets import algorithm_from, describe

WINGS: tuple[type[Recipe], ...] = (LanguageRecipe, ControlRecipe, DrivingRecipe)
"""The recipes there are; which one a table is follows from `policy.kind`."""

ORDER = ("seed", "threads", "policy", "task", "env", "reward", "judge")
"""Sections in the order they are written; the others follow."""

FREE = ("checkpoint", "tracker")
"""Sections that may change between a run and its resumption: they do not touch what is learnt."""


class RecipeError(ValueError):
    """A recipe that cannot be used; the message names the key and what would do."""


def shipped() -> dict[str, str]:
    """Shipped recipes by name, each with the first line of its comment."""
    files = {path.name: path for path in resources.files("outdo.recipes").iterdir()}
    return {
        name.removesuffix(".toml"): files[name].read_text().partition("\n")[0].lstrip("# ")
        for name in sorted(files)
        if name.endswith(".toml")
    }


def read(source: str | Path, overrides: Mapping[str, Any] | None = None) -> Recipe:
    """The recipe of a shipped name, .toml file or run folder, with `overrides` (dotted key → value) applied.

    A stage is addressed by its name, which is its kind unless it has one of its own: `rl.steps`. Raises
    RecipeError naming the key, and the nearest known one.
    """
    text, where = recipe_text(source)
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise RecipeError(f"{where} is no TOML: {error}") from error
    for key, value in (overrides or {}).items():
        _override(table, key, value)
    return validate(table, where)


def recipe_text(source: str | Path) -> tuple[str, str]:
    """A recipe as it is written, and how to call it in messages; RecipeError where there is none."""
    name = str(source)
    if name in shipped():
        return (resources.files("outdo.recipes") / f"{name}.toml").read_text(), f"recipe {name}"
    path = Path(source)
    if path.is_dir():
        path = path / "recipe.toml"
    if path.is_file():
        return path.read_text(), str(path)
    raise RecipeError(
        f"no recipe {name!r}: neither a .toml file, nor a run folder, nor shipped; {nearest(name, shipped())}"
    )


def parse_override(text: str) -> tuple[str, Any]:
    """`key=value` as (key, value): a TOML scalar or array, the bare word off as None, or else a string."""
    key, equals, value = text.partition("=")
    if not equals or not key.strip():
        raise RecipeError(f"{text!r} is no override: write key=value, for example rl.steps=20")
    value = value.strip()
    if value == "off":
        return key.strip(), None
    try:
        return key.strip(), tomllib.loads(f"value = {value}")["value"]
    except tomllib.TOMLDecodeError:
        return key.strip(), value


def _override(table: dict[str, Any], key: str, value: Any) -> None:
    """Set the dotted `key` in the raw table."""
    first, *rest = key.split(".")
    place: Any = table
    if first not in model_of(table).model_fields or first == "stage":
        place, rest = _stage(table, first, rest), rest
    else:
        rest = [first, *rest]
    for part in rest[:-1]:
        if part == "algorithm":
            _open_algorithm(model_of(table), place)
        place = place.setdefault(part, {})
        if not isinstance(place, dict):
            raise RecipeError(f"{key}: {part!r} is no table, so nothing inside it can be set")
    if not rest:
        raise RecipeError(f"{key}: name what to set inside it, for example {key}.steps=20")
    place[rest[-1]] = value


def kinds_of(model: type[Recipe]) -> tuple[str, ...]:
    """The kinds of policy of a wing's recipe."""
    (policy,) = _models(model.model_fields["policy"].annotation)
    return get_args(policy.model_fields["kind"].annotation)


def model_of(table: Mapping[str, Any]) -> type[Recipe]:
    """The recipe that a raw table is, by `policy.kind`; without one, by whether it has an `env`."""
    policy = table.get("policy")
    kind: Any = policy.get("kind") if isinstance(policy, Mapping) else None
    by_kind = next((model for model in WINGS if kind in kinds_of(model)), None)
    return by_kind or (ControlRecipe if "env" in table else LanguageRecipe)


def _stage_model(model: type[Recipe], kind: object) -> type[BaseModel]:
    """The stage of that kind, else the wing's last."""
    stages = list(_models(model.model_fields["stage"].annotation))
    return next((each for each in stages if each.model_fields["kind"].default == kind), stages[-1])


def _open_algorithm(model: type[Recipe], stage: dict[str, Any]) -> None:
    """Make a stage's algorithm a table, so that parts of it can be set: a preset's name becomes its `preset`."""
    default = _stage_model(model, stage.get("kind")).model_fields["algorithm"].default
    algorithm = stage.get("algorithm", default)
    stage["algorithm"] = {"preset": algorithm} if isinstance(algorithm, str) else algorithm


def _stage(table: dict[str, Any], name: str, rest: list[str]) -> dict[str, Any]:
    """The stage that `name` addresses."""
    stages: list[dict[str, Any]] = table.get("stage", [])
    names = [_stage_name(stage) for stage in stages]
    if names.count(name) == 1:
        return stages[names.index(name)]
    if name in names:
        raise RecipeError(
            f"{name!r} names {names.count(name)} stages: give each a 'name' of its own in the recipe"
        )
    raise RecipeError(
        f"unknown key {'.'.join([name, *rest])!r}; {nearest(name, [*model_of(table).model_fields, *names])}"
    )


def _stage_name(stage: Any) -> str:
    """What a raw stage is called: its name, or else its kind."""
    return str(stage.get("name", stage.get("kind", "rl"))) if isinstance(stage, Mapping) else "stage"


def validate(table: Mapping[str, Any], where: str = "recipe") -> Recipe:
    """The recipe of a raw table. Raises RecipeError with one line per mistake."""
    try:
        recipe = model_of(table).model_validate(table)
    except ValidationError as error:
        lines = [_mistake(table, dict(item)) for item in error.errors()]
        raise RecipeError("\n".join(f"{where}: {line}" for line in lines)) from error
    for stage in recipe.stage:
        try:
            stage_algorithm(stage).check(*recipe.fits(stage))
        except ValueError as error:
            raise RecipeError(f"{where}: {stage.name}.algorithm: {error}") from error
    return recipe


def _mistake(table: Mapping[str, Any], error: dict[str, Any]) -> str:
    """One of pydantic's errors as `key: what is wrong`."""
    place: list[Any] = list(error["loc"])
    model: type[BaseModel] = model_of(table)
    shown_place = place
    if place[:1] == ["stage"] and len(place) > 1:
        stage = table["stage"][place[1]]
        model = _stage_model(model_of(table), stage.get("kind") if isinstance(stage, Mapping) else None)
        place = place[2:]
        if place and place[0] == model.model_fields["kind"].default:  # the tag of a kind, no key
            place = place[1:]
        shown_place = [_stage_name(stage), *place]
    key = ".".join(str(part) for part in shown_place)
    if error["type"] == "extra_forbidden":
        return f"unknown key {key!r}; {nearest(str(place[-1]), _known(model, place[:-1]))}"
    message = str(error["msg"]).removeprefix("Value error, ")
    if key == "policy.kind":
        kinds = [kind for each in WINGS for kind in kinds_of(each)]
        message = f"it must be one of {', '.join(map(repr, kinds))}"
    given = error.get("input")
    shown = f" (got {given!r})" if isinstance(given, str | int | float | bool) else ""
    return f"{key}: {message}{shown}" if key else message


def _known(model: type[BaseModel], place: list[Any]) -> list[str]:
    """Keys that are known at a place inside a section."""
    for part in place:
        if part in model.model_fields:
            model = next(_models(model.model_fields[part].annotation), model)
    return list(model.model_fields)


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Section types inside an annotation."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for inner in getattr(annotation, "__args__", ()):
        yield from _models(inner)


def stage_algorithm(stage: StageConfig) -> Algorithm:
    """The algorithm of a stage; in its table the word "off" stands for a limit that is not set."""
    return algorithm_from(_with_limits_off(stage.algorithm))


def _with_limits_off(value: Any) -> Any:
    """The table with the string "off" as None."""
    if isinstance(value, Mapping):
        return {key: _with_limits_off(item) for key, item in value.items()}
    return None if value == "off" else value


def resolved(recipe: Recipe) -> dict[str, Any]:
    """The recipe as a table with every default written out and every algorithm spelt out in its parts."""
    dumped = recipe.model_dump(mode="json", exclude_none=True)
    table = {key: dumped[key] for key in sorted(dumped, key=lambda key: (*ORDER, key).index(key))}
    for written, stage in zip(table["stage"], recipe.stage, strict=True):
        algorithm = stage_algorithm(stage)
        written["algorithm"] = describe(algorithm) | _switched_off(algorithm)
        for key in ("advantage", "objective", "kl", "update"):
            written["algorithm"][key] |= _switched_off(getattr(algorithm, key))
    return table


def _switched_off(part: Any) -> dict[str, str]:
    """Fields of a part that are None, as TOML can say it."""
    return {item.name: "off" for item in fields(part) if getattr(part, item.name) is None}


def to_toml(recipe: Recipe) -> str:
    """The resolved recipe as TOML that `read` reads back to an equal run."""
    return tomli_w.dumps(resolved(recipe))


def differences(before: Recipe, after: Recipe) -> list[str]:
    """What a resumed run would do differently, one line per key; empty where it may go on.

    Checkpoints and trackers may change. The last stage may get more steps if its learning rate is constant:
    what was done is then what would have been done.
    """
    old, new = dict(_flat(resolved(before))), dict(_flat(resolved(after)))
    last = after.stage[-1]
    grown = f"stage.{last.name}.steps"
    lines: list[str] = []
    for key in sorted(old.keys() | new.keys()):
        was, now = old.get(key), new.get(key)
        free = key.split(".")[0] in FREE
        longer = (
            key == grown
            and last.schedule == "constant"
            and isinstance(was, int)
            and isinstance(now, int)
            and now > was
        )
        if was != now and not free and not longer:
            lines.append(f"{key}: {_shown(was)} → {_shown(now)}")
    return lines


def _shown(value: Any) -> str:
    return "nothing" if value is None else repr(value)


def _flat(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and leaves of a table; stages under their names, other lists as a whole."""
    if isinstance(value, Mapping):
        for name, item in value.items():
            yield from _flat(item, f"{key}.{name}" if key else str(name))
    elif key == "stage":
        for stage in value:
            yield from _flat(stage, f"stage.{stage['name']}")
    else:
        yield key, value
