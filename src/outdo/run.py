"""From a recipe to a run and back: build the parts, train, open what a run left."""

from __future__ import annotations

import importlib
import json
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from outdo.config import (
    ControlRecipe,
    DrivingRecipe,
    DrivingSftStage,
    LanguageRecipe,
    Recipe,
    RlStage,
    SftStage,
    StageConfig,
)
from outdo.core.protocols import Environment, Evaluator
from outdo.core.threads import threads
from outdo.recipe import RecipeError, differences, read, stage_algorithm, to_toml
from outdo.training import checkpoint, record
from outdo.training.display import Display, display
from outdo.training.loop import Result, Settings, Stage, train
from outdo.training.optim import OptimiserSettings
from outdo.training.trackers import TRACKERS

OPTIMISER = ("learning_rate", "betas", "eps", "weight_decay", "warmup", "schedule", "final_share")
OWN = {*OPTIMISER, "kind", "name", "steps", "start", "algorithm", "micro_batch_tokens"}
"""Keys of a stage that the training room needs; the others belong to its environment."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A recipe built: what `training.loop.train` takes, and the task behind it (but of a control run)."""

    policy: Any
    task: Any
    stages: list[Stage]
    evaluator: Evaluator | None
    settings: Settings


def build(recipe: Recipe, folder: Path | None = None, *, train: bool = True) -> Parts:
    """Build every part; files and models are read here, so that mistakes show before anything is trained.

    `folder` is the run folder, for videos of evaluation episodes; without it there are none. Where nothing is to be
    trained (`train` False) driving scenes to learn from are not made.
    """
    wing = importlib.import_module(recipe.wing)
    if isinstance(recipe, LanguageRecipe):
        task, policy, environments, evaluator = _language(wing, recipe)
    elif isinstance(recipe, ControlRecipe):
        task, (policy, environments, evaluator) = None, _control(wing, recipe, folder)
    elif isinstance(recipe, DrivingRecipe):
        task, policy, environments, evaluator = _driving(wing, recipe, train)
    else:
        raise TypeError(f"a recipe must be that of a wing, got {type(recipe).__name__}")
    settings = Settings(
        seed=recipe.seed,
        evaluate_every=0 if recipe.evaluation is None else recipe.evaluation.every,
        checkpoint_every=recipe.checkpoint.every,
        keep=recipe.checkpoint.keep,
        best_by=None if evaluator is None else recipe.checkpoint.best_by or None,
    )
    stages = [_stage(stage, each) for stage, each in zip(recipe.stage, environments, strict=train)]
    return Parts(policy, task, stages, evaluator, settings)


def _language(wing: Any, recipe: LanguageRecipe) -> tuple[Any, Any, list[Environment], Evaluator | None]:
    """Task, policy, the environment of each stage, and evaluator of a language run."""
    task = wing.task(seed=recipe.seed, **recipe.task.model_dump())
    rewards = {name: reward.model_dump() for name, reward in recipe.reward.items()}
    environments: list[Environment] = []
    for stage in recipe.stage:
        own = stage.model_dump(exclude=OWN)
        if isinstance(stage, SftStage):
            environments.append(wing.demonstrations(task, seed=recipe.seed, **own))
        else:
            gamma = stage_algorithm(stage).gamma
            environments.append(wing.rollouts(task, rewards, seed=recipe.seed, gamma=gamma, **own))
    evaluator: Evaluator | None = None
    if recipe.evaluation is not None:
        evaluator = wing.evaluator(task, seed=recipe.seed, **recipe.evaluation.model_dump(exclude={"every"}))
    policy = wing.policy(seed=recipe.seed, **recipe.policy.model_dump(exclude={"kind"}))
    return task, policy, environments, evaluator


def _control(
    wing: Any, recipe: ControlRecipe, folder: Path | None
) -> tuple[Any, list[Environment], Evaluator | None]:
    """Policy, the environment of each stage, and evaluator of a control run."""
    env, seed = recipe.env.model_dump(), recipe.seed
    environments: list[Environment] = [
        wing.rollouts(env, seed=seed, gamma=stage_algorithm(stage).gamma, **stage.model_dump(exclude=OWN))
        for stage in recipe.stage
    ]
    evaluator: Evaluator | None = None
    if recipe.evaluation is not None:
        evaluator = wing.evaluator(
            env,
            seed=seed,
            folder=None if folder is None else folder / "videos",
            **recipe.evaluation.model_dump(exclude={"every"}),
        )
    return wing.policy(env, seed=seed, **recipe.policy.model_dump()), environments, evaluator


def _driving(
    wing: Any, recipe: DrivingRecipe, train: bool
) -> tuple[Any, Any, list[Environment], Evaluator | None]:
    """Task, policy, the environment of each stage (to `train`), and evaluator of a driving run."""
    policy = wing.policy(seed=recipe.seed, **recipe.policy.model_dump(exclude={"kind"}))
    task = wing.task(**recipe.task.model_dump(), display=display)
    judge = None if recipe.judge is None else recipe.judge.model_dump()
    environments: list[Environment] = []
    for stage in recipe.stage if train else ():
        if isinstance(stage, DrivingSftStage):
            environments.append(wing.demonstrations(task, seed=recipe.seed, batch=stage.batch))
            continue
        own = stage.model_dump(exclude=OWN | {"reward"})
        weights = (stage.reward or recipe.reward).model_dump()
        gamma = stage_algorithm(stage).gamma
        environments.append(wing.rollouts(task, weights, judge, seed=recipe.seed, gamma=gamma, **own))
    evaluator: Evaluator | None = None
    if recipe.evaluation is not None:
        evaluator = wing.evaluator(task, seed=recipe.seed, **recipe.evaluation.model_dump(exclude={"every"}))
    return task, policy, environments, evaluator


def _stage(stage: StageConfig, environment: Environment) -> Stage:
    """A stage as the training room takes it."""
    optimiser = OptimiserSettings(**{name: getattr(stage, name) for name in OPTIMISER})
    return Stage(
        stage.name,
        environment,
        stage_algorithm(stage),
        stage.steps,
        optimiser,
        stage.micro_batch_tokens,
        start=stage.start or None,
    )


def run(
    source: str | Path | Recipe,
    overrides: Mapping[str, Any] | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
    display: Display | None = None,
) -> Result:
    """Train as a recipe says: its shipped name, a .toml file, a run folder, or a `Recipe`.

    `overrides` maps dotted keys to values (`{"rl.steps": 20}`). `out` is the run folder, by default a new one
    under `runs/`. With `resume` the run in `out` (or in `source`, if that is a run folder) goes on from its
    last checkpoint. Raises RecipeError for a recipe that cannot be used or has changed since, FileExistsError
    where `out` holds a run already, and what `training.loop.train` raises.
    """
    recipe = source if isinstance(source, Recipe) else read(source, overrides)
    if resume and out is None and not isinstance(source, Recipe) and Path(source).is_dir():
        out = source
    folder = new_folder(source, recipe) if out is None else Path(out)
    _claim(folder, recipe, resume and out is not None, wanted=resume)
    with threads(recipe.threads):
        parts = build(recipe, folder)
        config = recipe.model_dump(mode="json")
        trackers = [TRACKERS[each.kind](folder, config, **each.options) for each in recipe.tracker]
        folder.mkdir(parents=True, exist_ok=True)
        record.write_atomically(folder / "recipe.toml", to_toml(recipe))
        result = train(
            parts.policy,
            parts.stages,
            folder,
            settings=parts.settings,
            evaluator=parts.evaluator,
            trackers=trackers,
            display=display,
            resume=resume,
        )
        summary = json.loads((folder / record.SUMMARY).read_text())
        record.Record(folder).summary({**summary, "results": results(folder, recipe, parts)})
    return result


def new_folder(source: str | Path | Recipe, recipe: Recipe) -> Path:
    """A folder under `runs/` that is not there yet: recipe, seed, time."""
    name = "run" if isinstance(source, Recipe) else Path(source).stem
    return record.new_folder(f"{name}-seed{recipe.seed}")


def _claim(folder: Path, recipe: Recipe, resume: bool, *, wanted: bool) -> None:
    """Refuse to overwrite a run, to resume what is not there, and to resume with another recipe."""
    there = (folder / "recipe.toml").exists()
    if wanted and not resume:
        raise RecipeError(
            "--resume needs to know which run: give its folder with --out, or in place of the recipe"
        )
    if resume and not there:
        raise RecipeError(f"{folder} holds no run to resume: leave --resume out to begin one there")
    if there and not resume:
        raise FileExistsError(f"{folder} holds a run already: give another --out, or --resume to continue it")
    if resume and (changed := differences(read(folder), recipe)):
        raise RecipeError(
            f"the run in {folder} was begun with another recipe; changed since:\n  "
            + "\n  ".join(changed)
            + "\n"
            "Resume with the recipe as it ran (give the run folder as recipe), or begin a new run"
        )


def results(folder: Path, recipe: Recipe, parts: Parts) -> list[dict[str, Any]]:
    """Held-out figures of the untouched policy, of the demonstrations themselves, and after each stage."""
    if recipe.evaluation is None:
        return []
    lines = {line["total"]: line for line in record.read_metrics(folder) if line["kind"] == "evaluation"}
    rows: list[dict[str, Any]] = []
    if 0 in lines:
        rows.append({"policy": "untouched", "updates": 0, **_figures(lines[0])})
    if isinstance(recipe, LanguageRecipe):
        asked = recipe.evaluation.model_dump(include={"problems", "score", "arguments"})
        wing = importlib.import_module(recipe.wing)
        if shown := wing.demonstrated(parts.task, seed=recipe.seed, **asked):
            rows.append({"policy": "demonstrations", **shown})
    elif isinstance(recipe, DrivingRecipe):
        wing = importlib.import_module(recipe.wing)
        found = wing.demonstrated(parts.task, parts.evaluator, seed=recipe.seed)
        rows += [{"policy": name, **shown} for name, shown in found.items()]
    total = 0
    for stage in recipe.stage:
        total += stage.steps
        if stage.steps and total in lines:
            rows.append({"policy": f"after {stage.name}", "updates": total, **_figures(lines[total])})
    return rows


def _figures(line: Mapping[str, Any]) -> dict[str, float]:
    """What an evaluation measured, without when."""
    return {key: value for key, value in line.items() if key not in ("kind", "stage", "step", "total")}


def evaluation_samples(folder: Path) -> dict[int, list[dict[str, Any]]]:
    """Readable samples of every evaluation of a run, by the number of updates before it."""
    samples: dict[int, list[dict[str, Any]]] = {}
    if (folder / record.ROLLOUTS).exists():
        for row in record.read_rollouts(folder):
            if row["kind"] == "evaluation":
                samples.setdefault(row["total"], []).append(row)
    return samples


@contextmanager
def open_run(
    folder: str | Path, step: int | None, overrides: Mapping[str, Any]
) -> Generator[tuple[Recipe, Parts, Path]]:
    """Recipe and parts of a run with the policy of checkpoint `step`, else the best, else the newest.

    Within the block torch works with the recipe's number of threads.
    """
    folder = Path(folder)
    if not (folder / "recipe.toml").exists():
        raise RecipeError(f"{folder} is no run folder: it has no recipe.toml")
    checkpoints = folder / record.CHECKPOINTS
    chosen = checkpoints / "best" if step is None else checkpoint.step_folder(checkpoints, step)
    if step is None and not chosen.exists():
        chosen = checkpoint.latest(checkpoints) or chosen
    if not chosen.exists():
        there = ", ".join(str(number) for number in checkpoint.numbered(checkpoints)) or "none"
        raise RecipeError(f"{folder} has no such checkpoint; there are: {there}")
    checkpoint.verify(chosen)
    recipe = read(folder, overrides)
    with threads(recipe.threads):
        parts = build(recipe, folder, train=False)
        parts.policy.load(chosen / "policy")
        yield recipe, parts, chosen.resolve()


def sample(
    folder: str | Path, prompt: str, *, step: int | None = None, samples: int = 1, temperature: float = 0.0
) -> list[dict[str, str]]:
    """Answers of a run's policy to a prompt; temperature 0 is greedy."""
    with open_run(folder, step, {}) as (recipe, parts, _):
        if not isinstance(recipe, LanguageRecipe):
            raise RecipeError(
                f"{folder} holds no language model that could be asked: see `outdo eval {folder}`"
            )
        wing = importlib.import_module(recipe.wing)
        longest = max([64, *(stage.max_tokens for stage in recipe.stage if isinstance(stage, RlStage))])
        return wing.sample(
            parts.policy,
            prompt,
            system=recipe.task.system,
            chat=recipe.task.chat,
            samples=samples,
            sampling={"temperature": temperature, "max_tokens": longest},
            seed=recipe.seed,
        )


def drive(
    folder: str | Path,
    scenes: Sequence[str],
    *,
    kind: Literal["html", "gif"] = "html",
    out: str | Path | None = None,
    replan: int = 5,
    reactive: bool = True,
    step: int | None = None,
) -> list[Path]:
    """Let a run's policy drive scenes (`outdo.driving.scenes.choose_scene`); a picture of each, in `out`.

    Raises RecipeError for a run of another kind, SceneError and ValueError for a scene that is not there.
    """
    recipe = read(folder)
    if not isinstance(recipe, DrivingRecipe):
        raise RecipeError(f"{folder} holds no driving policy: see `outdo eval {folder}`")
    from outdo.driving.render import render_drive
    from outdo.driving.scenes import choose_scene

    chosen = [choose_scene(text) for text in scenes]
    place = Path(folder) / "drives" if out is None else Path(out)
    with open_run(folder, step, {"evaluation": None}) as (_, parts, _):
        return render_drive(parts.policy, chosen, place, every=replan, reactive=reactive, kind=kind)
