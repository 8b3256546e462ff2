"""Builds the parts of a language run from plain settings: what a recipe holds, section by section."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers.utils.logging import disable_progress_bar

from outdo.core.calls import load_object
from outdo.core.rewards import RewardTerm
from outdo.language.adapters import Lora
from outdo.language.data import (
    DataError,
    PromptFormat,
    Splits,
    disjoint,
    read_file,
    read_function,
    split,
)
from outdo.language.demonstrations import Demonstrate, load_demonstrations
from outdo.language.environment import DemonstrationEnvironment, LanguageEnvironment, RolloutSettings
from outdo.language.evaluation import HeldOut, score_demonstrations
from outdo.language.policy import CausalPolicy
from outdo.language.protocol import encode_prompt
from outdo.language.sampling import Sampling
from outdo.language.tasks import reasoning_gym_items


@dataclass(frozen=True, slots=True)
class Task:
    """Problems to train on and held out, and how to demonstrate them (None: no demonstrations)."""

    splits: Splits
    demonstrate: Demonstrate | None


def policy(*, seed: int, path: str, lora: Mapping[str, Any] | None = None, **settings: Any) -> CausalPolicy:
    """The causal policy of a recipe's `[policy]`."""
    disable_progress_bar()
    adapters = None
    if lora is not None:
        targets: str | list[str] = lora["targets"]
        adapters = Lora(lora["rank"], lora["alpha"], targets if isinstance(targets, str) else tuple(targets))
    return CausalPolicy.load_from(path, seed=seed, lora=adapters, **settings)


def task(
    *,
    seed: int,
    kind: str,
    name: str,
    config: Mapping[str, Any],
    path: str,
    held_out_path: str,
    size: int,
    held_out: int,
    prompt: str,
    answer: str,
    template: str,
    system: str,
    chat: bool,
    demonstrations: str,
) -> Task:
    """The problems of a recipe's `[task]`, formatted and split.

    Raises DataError for a file that cannot be read, a column that is missing, too few problems.
    """
    shape = PromptFormat(prompt, answer, template, system, chat)
    if kind == "reasoning_gym":
        items, where = reasoning_gym_items(name, size, seed, **config), name
    elif kind == "file":
        items, where = read_file(path, shape.columns), path
    else:
        items, where = read_function(name, **config), name
    if held_out_path:
        apart = shape.apply(read_file(held_out_path, shape.columns), held_out_path)
        if len(apart) < held_out:
            raise DataError(f"{held_out_path} has {len(apart)} problems, task.held_out asks for {held_out}")
        splits = disjoint(shape.apply(items, where), apart[:held_out])
    else:
        splits = split(shape.apply(items, where), held_out, seed)
    return Task(splits, load_demonstrations(demonstrations) if demonstrations else None)


def demonstrations(task: Task, *, seed: int, batch: int) -> DemonstrationEnvironment:
    """The environment of an `sft` stage. Raises DataError where the task has no demonstrations."""
    return DemonstrationEnvironment(task.splits.train, _demonstrator(task), batch=batch, seed=seed)


def _demonstrator(task: Task) -> Demonstrate:
    if task.demonstrate is None:
        raise DataError("the task has no demonstrations: set task.demonstrations")
    return task.demonstrate


def rollouts(
    task: Task,
    rewards: Mapping[str, Mapping[str, Any]],
    *,
    temperature: float,
    top_k: int,
    top_p: float,
    max_tokens: int,
    **settings: Any,
) -> LanguageEnvironment:
    """The environment of an `rl` stage; `rewards` are the tables `[reward.<name>]`."""
    terms = [RewardTerm.load(name, **reward) for name, reward in rewards.items()]
    sampling = Sampling(temperature, top_k, top_p, max_tokens)
    return LanguageEnvironment(task.splits.train, terms, RolloutSettings(sampling=sampling, **settings))


def evaluator(
    task: Task,
    *,
    seed: int,
    problems: int,
    samples: int,
    temperature: float,
    max_tokens: int,
    score: str,
    arguments: Mapping[str, Any],
) -> HeldOut:
    """The held-out evaluation of a recipe's `[evaluation]`."""
    return HeldOut(
        task.splits.held_out[:problems],
        _scorer(score, arguments),
        Sampling(temperature=temperature, max_tokens=max_tokens),
        samples,
        seed=seed,
    )


def _scorer(score: str, arguments: Mapping[str, Any]) -> RewardTerm:
    return RewardTerm("score", load_object(score), arguments=dict(arguments))


def demonstrated(
    task: Task, *, seed: int, problems: int, score: str, arguments: Mapping[str, Any]
) -> dict[str, float]:
    """How right demonstrations of the held-out problems are, with interval; empty where there are none."""
    if task.demonstrate is None:
        return {}
    items = task.splits.held_out[:problems]
    return score_demonstrations(items, task.demonstrate, _scorer(score, arguments), seed).metrics


def sample(
    policy: CausalPolicy,
    prompt: str,
    *,
    system: str,
    chat: bool,
    samples: int,
    sampling: Mapping[str, Any],
    seed: int,
) -> list[dict[str, str]]:
    """Answers to a prompt a person typed, with why each ended."""
    (item,) = PromptFormat(system=system, chat=chat).apply([{"prompt": prompt}], "the prompt")
    ids = encode_prompt(policy, item)
    (completions,) = policy.generate([ids], samples, Sampling(**sampling), [(seed,)])
    return [{"completion": policy.decode(each.tokens), "stop": each.stop.value} for each in completions]
