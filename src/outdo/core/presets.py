"""Named algorithms with their papers and departures, and the reader of algorithms written as tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from typing import Any, cast

from outdo.core.algorithm import Algorithm
from outdo.core.parts import (
    Cispo,
    Clipped,
    ExponentialWeights,
    Gae,
    GroupMean,
    KlInLoss,
    KlInReward,
    LeaveOneOut,
    NegativeLogLikelihood,
    NoKl,
    Ones,
    Reinforce,
    Return,
    Update,
)


@dataclass(frozen=True, slots=True)
class Preset:
    """A named algorithm with its `paper` (title, arXiv id, equation), `formula` and `departures` from it."""

    algorithm: Algorithm
    summary: str
    paper: str
    formula: str
    departures: tuple[str, ...] = ()


WILLIAMS = "Williams, Simple statistical gradient-following algorithms, Machine Learning 8 (1992), eq. 11"

PRESETS: dict[str, Preset] = {
    "sft": Preset(
        Algorithm(Ones(), NegativeLogLikelihood(), name="sft"),
        "Supervised fine-tuning, behaviour cloning: raise the likelihood of demonstrated actions.",
        "Pomerleau, ALVINN (1988); Ouyang et al., InstructGPT, arXiv 2203.02155, section 3.5",
        "L = -(1/N) Σ log π(a_t)",
    ),
    "reinforce": Preset(
        Algorithm(Return("episode"), Reinforce("sequence_mean_token_sum"), name="reinforce"),
        "The plain score-function gradient: the whole episode's return on every step, no baseline.",
        WILLIAMS,
        "L = -E[ G_0 Σ_t log π(a_t) ]",
        ("several episodes in one row of the batch are averaged by row, not by episode",),
    ),
    "reinforce_to_go": Preset(
        Algorithm(Return("to_go"), Reinforce("sequence_mean_token_sum"), name="reinforce_to_go"),
        "Reward-to-go: an action answers only for what follows it. Same expected gradient, less variance.",
        "Sutton et al., Policy gradient methods (NIPS 1999), theorem 1",
        "L = -E[ Σ_t G_t log π(a_t) ]",
        ("the factor γ^t of the discounted objective is left out, as is usual",),
    ),
    "reinforce_baseline": Preset(
        Algorithm(
            Return("to_go", baseline="running"),
            Reinforce("sequence_mean_token_sum"),
            name="reinforce_baseline",
        ),
        "Reward-to-go minus a running average of past returns.",
        WILLIAMS + ", section 6 (reinforcement comparison)",
        "L = -E[ Σ_t (G_t - b) log π(a_t) ],  b ← b + 0.05 (mean G - b)",
        ("the factor γ^t of the discounted objective is left out, as is usual",),
    ),
    "a2c": Preset(
        Algorithm(
            Gae(lam=1.0),
            Reinforce(),
            update=Update(max_grad_norm=0.5),
            gamma=0.99,
            entropy_coefficient=0.01,
            name="a2c",
        ),
        "Advantage actor-critic: n-step return minus V(s), one update per batch.",
        "Mnih et al., Asynchronous methods for deep RL, arXiv 1602.01783, algorithm S3",
        "L = -E[ (G_t - V(s_t)) log π(a_t) ] + 0.5 (V - G)² - 0.01 H",
        ("synchronous", "Adam instead of shared RMSProp: the optimiser is a setting of the stage"),
    ),
    "ppo": Preset(
        Algorithm(
            Gae(lam=0.95, scale="batch"),
            Clipped(),
            update=Update(epochs=10, minibatches=32, max_grad_norm=0.5),
            gamma=0.99,
            name="ppo",
        ),
        "Clipped surrogate with a critic, several epochs of minibatches per batch.",
        "Schulman et al., Proximal policy optimization, arXiv 1707.06347, eq. 7 and 9",
        "L = -E[ min(ρA, clip(ρ, 0.8, 1.2) A) ] + 0.5 (V - target)²",
        (
            "advantages are normalised over the whole batch (n - 1, 1e-8); per minibatch, as most "
            "implementations do, with advantage.scale = 'minibatch'",
            "the gradient norm is clipped at 0.5, as all implementations do",
        ),
    ),
    "grpo": Preset(
        Algorithm(
            GroupMean(),
            Clipped(reduce="sequence_mean_token_mean"),
            KlInLoss("k3", 0.04),
            Update(epochs=2),
            name="grpo",
        ),
        "Group-normalised scores, clipped surrogate, KL to the reference in the loss, as published.",
        "Shao et al., DeepSeekMath, arXiv 2402.03300, eq. 3 and 4",
        "L = -mean_i mean_t[ min(ρA, clip(ρ, 0.8, 1.2) A) - 0.04 k3 ],  A_i = (r_i - mean)/(std + 1e-4)",
        (
            "as published, k3 in the loss has the gradient of KL(π_ref‖π); grpo_exact_kl has the right one",
            "std with divisor n (the paper does not say)",
            "2 epochs a batch (the paper: 1 in its experiments)",
        ),
    ),
    "grpo_exact_kl": Preset(
        Algorithm(
            GroupMean(),
            Clipped(reduce="sequence_mean_token_mean"),
            KlInLoss("k3", 0.04, times_ratio=True),
            Update(epochs=2),
            name="grpo_exact_kl",
        ),
        "GRPO with the true gradient of KL(π‖π_ref): k3 times the differentiable ratio.",
        "Shao et al., arXiv 2402.03300, eq. 3; the correction: arXiv 2512.21852",
        "L = -mean_i mean_t[ min(ρA, clip(ρ, 0.8, 1.2) A) - 0.04 ρ k3 ],  A_i = (r_i - mean)/(std + 1e-4)",
        ("the KL term is multiplied by the ratio", "otherwise as grpo"),
    ),
    "rloo": Preset(
        Algorithm(
            LeaveOneOut(),
            Reinforce("sequence_mean_token_sum"),
            KlInReward("k1", 0.05),
            name="rloo",
        ),
        "Leave-one-out baseline: unbiased at any group size; KL in the reward.",
        "Ahmadian et al., Back to basics, arXiv 2402.14740, eq. 8",
        "L = -mean_i (R_i - mean_{j≠i} R_j) Σ_t log π(a_t),  R = r - 0.05 Σ_t log(π/π_ref)",
    ),
    "dr_grpo": Preset(
        Algorithm(
            GroupMean(scale="none"),
            Clipped(reduce="fixed_length", length=1024),
            name="dr_grpo",
        ),
        "GRPO without its two biases: no division by std, none by the row's length.",
        "Liu et al., Understanding R1-Zero-like training, arXiv 2503.20783, section 3",
        "L = -1/(N·length) Σ_i Σ_t min(ρA, clip(ρ, 0.8, 1.2) A),  A_i = r_i - mean",
        ("length is the generation budget of the paper's code: set objective.length to max_tokens",),
    ),
    "dapo": Preset(
        Algorithm(
            GroupMean(),
            Clipped(low=0.2, high=0.28),
            update=Update(minibatches=4),
            name="dapo",
        ),
        "Higher upper clip, mean over all tokens, no KL.",
        "Yu et al., DAPO, arXiv 2503.14476, eq. 8",
        "L = -(1/Σn_i) Σ_i Σ_t min(ρA, clip(ρ, 0.8, 1.28) A),  A_i = (r_i - mean)/(std + 1e-4)",
        (
            "4 minibatches a batch instead of 16, because batches here are smaller",
            "dynamic sampling and the over-long penalty belong to the environment: switch them on there",
        ),
    ),
    "gspo": Preset(
        Algorithm(
            GroupMean(),
            Clipped(low=3e-4, high=4e-4, ratio="length_normalised", reduce="sequence_mean_token_mean"),
            update=Update(minibatches=4),
            name="gspo",
        ),
        "One ratio per sequence, normalised by its length, and clipped as one.",
        "Zheng et al., Group sequence policy optimization, arXiv 2507.18071, eq. 5 and 7",
        "L = -mean_i min(s_i A_i, clip(s_i, 1 - 3e-4, 1 + 4e-4) A_i),  s_i = (π/π_old)^(1/n_i)",
    ),
    "cispo": Preset(
        Algorithm(GroupMean(), Cispo(), update=Update(minibatches=4), name="cispo"),
        "Clips the importance weight, not the gradient: every token keeps learning.",
        "MiniMax-M1, arXiv 2506.13585, eq. 4 and 5",
        "L = -(1/Σn_i) Σ_i Σ_t sg(min(ρ, 5)) A_i log π(a_t),  A_i = (r_i - mean)/(std + 1e-4)",
        (
            "upper bound 5 (arXiv 2510.13786; the paper names no value)",
            "4 minibatches a batch instead of 16, because batches here are smaller",
        ),
    ),
    "reinforce_plus_plus": Preset(
        Algorithm(
            Return("to_go", baseline="batch", scale="batch", ddof=1),
            Clipped(),
            KlInReward("k1", 0.01),
            name="reinforce_plus_plus",
        ),
        "Clipped surrogate without critic or groups: returns normalised over the whole batch.",
        "Hu et al., REINFORCE++, arXiv 2501.03262, eq. 3 to 5",
        "L = -E[ min(ρA, clip(ρ, 0.8, 1.2) A) ],  A_t = norm_batch( r - 0.01 Σ_{i≥t} log(π/π_ref) )",
    ),
    "exponential": Preset(
        Algorithm(
            ExponentialWeights(beta=1.0),
            Reinforce("sequence_mean_token_sum"),
            KlInLoss("k2", 0.04),
            name="exponential",
        ),
        "GRPO of Alpamayo-R1: the group's samples weighted by softmax(β A), no std, no ratio clip.",
        "NVIDIA, Alpamayo-R1, arXiv 2511.00088, section on RL post-training",
        "L = -mean_i w_i Σ_t log π(a_t) + 0.04 KL,  w = G·softmax_group(β (r - mean))",
        (
            "weights times G, so that the mean over rows is the paper's sum over a group",
            "β, λ and G are not stated in the paper: 1, 0.04, a setting of the stage",
            "the KL is averaged over rows without the weights, which sum to one over a single KL",
        ),
    ),
}

_ADVANTAGES = {
    "ones": Ones,
    "return": Return,
    "gae": Gae,
    "group_mean": GroupMean,
    "leave_one_out": LeaveOneOut,
    "exponential_weights": ExponentialWeights,
}
_OBJECTIVES = {
    "reinforce": Reinforce,
    "negative_log_likelihood": NegativeLogLikelihood,
    "clipped": Clipped,
    "cispo": Cispo,
}
_KLS = {"none": NoKl, "in_reward": KlInReward, "in_loss": KlInLoss}
_KINDS: dict[str, dict[str, type]] = {
    "advantage": cast("dict[str, type]", _ADVANTAGES),
    "objective": cast("dict[str, type]", _OBJECTIVES),
    "kl": cast("dict[str, type]", _KLS),
}


def preset(name: str) -> Preset:
    """The preset of that name. Raises ValueError naming the nearest one."""
    if name not in PRESETS:
        raise ValueError(_unknown("algorithm", name, PRESETS))
    return PRESETS[name]


def algorithm_from(table: str | Mapping[str, Any]) -> Algorithm:
    """Read an algorithm: a preset's name, or a table of parts such as a recipe holds.

    `{"preset": "grpo", "advantage": {"scale": "none"}, "kl": "none", "update": {"epochs": 1}}` changes fields
    of a preset; a part of another `kind` starts from that kind's defaults. Without `preset` the table must
    give `advantage` and `objective`. Raises ValueError naming the nearest key, kind or preset.
    """
    if isinstance(table, str):
        return preset(table).algorithm
    known = ["preset", *(item.name for item in fields(Algorithm))]
    _refuse_unknown("algorithm", table, known)
    base = preset(str(table["preset"])).algorithm if "preset" in table else None
    changes: dict[str, Any] = {}
    for key, value in table.items():
        if key == "preset":
            continue
        if key in _KINDS:
            changes[key] = _part(key, value, None if base is None else getattr(base, key))
        elif key == "update":
            current = Update() if base is None else base.update
            changes[key] = _replace("update", current, _table("update", value))
        else:
            changes[key] = _scalar(key, value)
    if base is not None:
        return replace(base, **changes)
    missing = [key for key in ("advantage", "objective") if key not in changes]
    if missing:
        raise ValueError(f"algorithm needs {' and '.join(missing)}, or a preset to start from")
    return Algorithm(**changes)


def describe(algorithm: Algorithm) -> dict[str, Any]:
    """The algorithm as a plain table that `algorithm_from` reads back to an equal value, without None."""
    table: dict[str, Any] = {}
    for item in fields(algorithm):
        value = getattr(algorithm, item.name)
        if item.name in _KINDS:
            kind = next(name for name, part in _KINDS[item.name].items() if type(value) is part)
            table[item.name] = {"kind": kind} | _plain(value)
        elif item.name == "update":
            table[item.name] = _plain(value)
        elif value is not None:
            table[item.name] = value
    return table


def _plain(part: Any) -> dict[str, Any]:
    """Fields of a part that are set."""
    values = {item.name: getattr(part, item.name) for item in fields(part)}
    return {name: value for name, value in values.items() if value is not None}


def _part(where: str, value: Any, base: Any) -> Any:
    """One part from its table, starting from the preset's part where the kind is the same."""
    settings = _table(where, {"kind": value} if isinstance(value, str) else value)
    kinds = _KINDS[where]
    if "kind" not in settings:
        if base is None:
            raise ValueError(f"{where}.kind is missing: choose one of {', '.join(kinds)}")
        return _replace(where, base, settings)
    kind = settings.pop("kind")
    if kind not in kinds:
        raise ValueError(_unknown(f"{where}.kind", str(kind), kinds))
    start = base if type(base) is kinds[kind] else kinds[kind]()
    return _replace(where, start, settings)


def _table(where: str, value: Any) -> dict[str, Any]:
    """A copy of a table, or ValueError."""
    if not isinstance(value, Mapping):
        raise ValueError(f"algorithm.{where} must be a table, got {value!r}")
    return {str(key): item for key, item in cast("Mapping[Any, Any]", value).items()}


def _replace(where: str, part: Any, settings: dict[str, Any]) -> Any:
    """The part with those fields changed; unknown names and wrong types raise ValueError."""
    _refuse_unknown(where, settings, [item.name for item in fields(part)])
    return replace(part, **{key: _typed(where, key, value, part) for key, value in settings.items()})


def _typed(where: str, key: str, value: Any, part: Any) -> Any:
    """`value` if it suits the field's declared type; integers pass as floats."""
    declared = next(str(item.type) for item in fields(part) if item.name == key)
    if isinstance(value, bool):
        suits = declared == "bool"
    elif isinstance(value, int | float):
        suits = "float" in declared or ("int" in declared and isinstance(value, int))
        value = float(value) if "float" in declared and suits else value
    elif value is None:
        suits = "None" in declared
    else:
        suits = isinstance(value, str) and not any(t in declared for t in ("float", "int", "bool"))
    if not suits:
        raise ValueError(f"{where}.{key} must be {declared}, got {value!r}")
    return value


def _scalar(key: str, value: Any) -> Any:
    """A top-level setting of the right type."""
    item = next(item for item in fields(Algorithm) if item.name == key)
    declared = str(item.type)
    if declared == "str":
        if not isinstance(value, str):
            raise ValueError(f"algorithm.{key} must be a string, got {value!r}")
        return value
    if value is None and "None" in declared:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"algorithm.{key} must be a number, got {value!r}")
    return float(value)


def _refuse_unknown(where: str, table: Mapping[str, Any], known: list[str]) -> None:
    """Raise ValueError for the first key that is not known, naming the nearest."""
    for key in table:
        if key not in known:
            raise ValueError(_unknown(f"key of {where}", key, known))


def _unknown(what: str, name: str, known: Any) -> str:
    """Message for an unknown name: the nearest known one, else all."""
    near = get_close_matches(name, list(known), n=1, cutoff=0.5)
    hint = f"did you mean '{near[0]}'?" if near else f"choose one of {', '.join(known)}"
    return f"unknown {what}: '{name}'; {hint}"
