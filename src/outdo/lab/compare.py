"""Two algorithms side by side for a model of a given size: derived from their parts, for any two presets."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch

from outdo.core.algorithm import Algorithm
from outdo.core.parts import (
    Advantage,
    ExponentialWeights,
    Gae,
    GroupMean,
    Kl,
    KlInLoss,
    KlInReward,
    LeaveOneOut,
    NoKl,
    Ones,
    Return,
)
from outdo.core.presets import preset

Precision = Literal["float32", "bfloat16"]
Critic = Literal["model", "head"]
FLOAT = 4
"""Bytes of a float32: weights that are trained, gradients, and each of Adam's two moments."""
COMPUTE: dict[Precision, int] = {"float32": 4, "bfloat16": 2}
UNITS = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "G": 10**9, "T": 10**12}


@dataclass(frozen=True, slots=True)
class Size:
    """A model's number of `parameters`, and its hidden units where they are known."""

    parameters: int
    hidden: int | None = None


def size(text: str) -> Size:
    """A number such as '135M' or '1.5B', or a model: a folder with config.json, a shipped name.

    Raises ValueError for what is neither.
    """
    number, unit = text[:-1], text[-1:].upper()
    if unit.isdigit():
        number, unit = text, ""
    try:
        count = float(number) * UNITS[unit]
    except (ValueError, KeyError):
        return _size_of_model(text)
    if not 1 <= count < math.inf:
        raise ValueError(f"the number of parameters must be at least 1, got {text!r}")
    return Size(round(count))


def _size_of_model(path: str) -> Size:
    """Counted on a model without weights where the folder has a configuration, else on the shipped model."""
    from outdo.language import load

    if (Path(path) / "config.json").is_file():
        config = load.AutoConfig.from_pretrained(path)
        with torch.device("meta"):
            model = load.AutoModelForCausalLM.from_config(config)
    elif path in (*load.SHIPPED, load.TINY):
        model = load.load(path).model
    else:
        names = ", ".join((*load.SHIPPED, load.TINY))
        raise ValueError(
            f"{path!r} is no number of parameters such as 135M, no folder with config.json and no shipped model "
            f"({names})"
        )
    return Size(sum(p.numel() for p in model.parameters()), model.config.get_text_config().hidden_size)


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes of one model: `weights` (with a copy in the compute dtype), `gradients` and Adam's `moments`."""

    weights: int
    gradients: int = 0
    moments: int = 0

    @property
    def total(self) -> int:
        """All of them."""
        return self.weights + self.gradients + self.moments


def trained(parameters: int, precision: Precision) -> Memory:
    """A model that learns: float32 weights, gradients and two moments; a copy of the weights in bfloat16."""
    copy = 0 if precision == "float32" else COMPUTE[precision]
    return Memory(parameters * (FLOAT + copy), parameters * FLOAT, parameters * 2 * FLOAT)


def frozen(parameters: int, precision: Precision) -> Memory:
    """A model that only computes: its weights in the compute dtype."""
    return Memory(parameters * COMPUTE[precision])


@dataclass(frozen=True, slots=True)
class Setting:
    """What is compared on: model size, precision, samples per prompt, and where rewards and values come from.

    `reward_model`: rewards come from a model of the policy's size, else from a program. `critic`: a second
    model of that size, or a linear head on the policy.
    """

    size: Size
    precision: Precision = "bfloat16"
    group: int = 8
    reward_model: bool = False
    critic: Critic = "model"

    def __post_init__(self) -> None:
        """Refuse unknown choices and fewer than one sample."""
        for name, value, options in (
            ("precision", self.precision, Precision),
            ("critic", self.critic, Critic),
        ):
            if value not in get_args(options):
                raise ValueError(f"{name} must be one of {', '.join(get_args(options))}, got {value!r}")
        if self.group < 1:
            raise ValueError(f"group must be >= 1, got {self.group}")


def models(algorithm: Algorithm, setting: Setting) -> dict[str, Memory]:
    """The models in memory with their bytes, as the algorithm's parts need them."""
    count, precision = setting.size.parameters, setting.precision
    held = {"policy": trained(count, precision)}
    if algorithm.needs_reference:
        held["reference"] = frozen(count, precision)
    if setting.reward_model and not isinstance(algorithm.advantage, Ones):
        held["reward model"] = frozen(count, precision)
    if algorithm.needs_critic and setting.critic == "model":
        held["critic"] = trained(count + (setting.size.hidden or 0), precision)
    elif algorithm.needs_critic:
        held["critic"] = trained((setting.size.hidden or 0) + 1, "float32")
    return held


def compare(first: str, second: str, setting: Setting) -> dict[str, dict[str, Any]]:
    """The table of both presets, by preset and row; `models` holds bytes, everything else is text.

    Raises ValueError for an unknown preset and where a group is too small for one.
    """
    table: dict[str, dict[str, Any]] = {}
    for name in (first, second):
        algorithm = preset(name).algorithm
        algorithm.check(setting.group, has_critic=True)
        held = models(algorithm, setting)
        table[name] = {
            "models": {
                model: {
                    "weights": m.weights,
                    "gradients": m.gradients,
                    "moments": m.moments,
                    "total": m.total,
                }
                for model, m in held.items()
            },
            "bytes": sum(memory.total for memory in held.values()),
            **texts(algorithm, setting.group),
        }
    return table


def texts(algorithm: Algorithm, group: int) -> dict[str, str]:
    """What an algorithm's parts mean for a run, in words."""
    update = algorithm.update
    return {
        "advantages from": _source(algorithm.advantage),
        "advantage per": _reach(algorithm.advantage),
        "samples per prompt": _samples(algorithm, group),
        "updates per batch": f"{update.epochs} × {update.minibatches}, epochs × minibatches",
        "KL to the reference": _kl(algorithm.kl),
        "works well when": _suits(algorithm.advantage),
        "main cost": _cost(algorithm.advantage, group),
    }


def _scale(scale: str, ddof: int) -> str:
    """How the difference is scaled."""
    return "" if scale == "none" else f", divided by the {scale}'s s.d. (divisor n{' − 1' if ddof else ''})"


def _source(part: Advantage) -> str:
    """Where advantages come from."""
    if isinstance(part, Gae):
        return f"a critic: GAE with λ = {part.lam:g}{_scale(part.scale, part.ddof)}"
    if isinstance(part, GroupMean):
        return f"the group: score − mean of the group{_scale(part.scale, part.ddof)}"
    if isinstance(part, LeaveOneOut):
        return f"the group: score − mean of the others{_scale(part.scale, part.ddof)}"
    if isinstance(part, ExponentialWeights):
        return f"the group: softmax of {part.beta:g} · score"
    if isinstance(part, Return):
        what = {"none": ", no baseline", "batch": " − mean of the batch", "running": " − running average"}
        return f"the return{what[part.baseline]}{_scale(part.scale, part.ddof)}"
    return "nowhere: every demonstrated step counts 1"


def _reach(part: Advantage) -> str:
    """Whether steps of one sequence differ in advantage."""
    steps = isinstance(part, Gae | Ones) or (isinstance(part, Return) and part.reach == "to_go")
    return "step" if steps else "sequence: all its steps share one"


def _samples(algorithm: Algorithm, group: int) -> str:
    """How many samples of a prompt the advantage needs."""
    if isinstance(algorithm.advantage, Ones):
        return "none: demonstrations"
    return f"{group} (2 at least)" if algorithm.needs_groups else "1 is enough"


def _kl(part: Kl) -> str:
    """Placement, estimator and coefficient."""
    if isinstance(part, NoKl):
        return "none"
    if isinstance(part, KlInReward):
        return f"{part.coefficient:g} · {part.estimator} in the reward"
    assert isinstance(part, KlInLoss)
    ratio = " times the ratio" if part.times_ratio else ""
    return f"{part.coefficient:g} · {part.estimator}{ratio} in the loss"


def _suits(part: Advantage) -> str:
    """What kind of problem the baseline is made for."""
    if isinstance(part, Gae):
        return "steps are rewarded one by one, and their value can be learned"
    if isinstance(part, GroupMean | LeaveOneOut | ExponentialWeights):
        return "a whole output gets one score, and sampling is cheap"
    if isinstance(part, Ones):
        return "good demonstrations are at hand"
    if part.baseline == "none":
        return "rewards are centred already, or samples plenty"
    return "all prompts are about equally hard, or each can be tried once only"


def _cost(part: Advantage, group: int) -> str:
    """What one pays for the baseline."""
    if isinstance(part, Gae):
        return "a critic to hold and to train; where it errs, so do the advantages"
    if isinstance(part, GroupMean | LeaveOneOut | ExponentialWeights):
        return f"{group} samples of every prompt; a group of equal scores teaches nothing"
    if isinstance(part, Ones):
        return "writing the demonstrations; it gets no better than they are"
    return "variance: one baseline for prompts of all kinds" if part.baseline != "none" else "variance"


def as_json(table: dict[str, dict[str, Any]], setting: Setting) -> str:
    """The table with what it was made for."""
    made_for = {
        "parameters": setting.size.parameters,
        "precision": setting.precision,
        "group": setting.group,
        "reward_model": setting.reward_model,
        "critic": setting.critic,
    }
    return json.dumps({"setting": made_for, "algorithms": table}, ensure_ascii=False)
