"""The parts of an algorithm: advantage, objective, KL placement and update schedule, as frozen values."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, cast, get_args

import torch
from torch import Tensor

from outdo.core import baselines, objectives, returns
from outdo.core.batch import Batch
from outdo.core.checks import only
from outdo.core.kl import Estimator
from outdo.core.objectives import RatioKind
from outdo.core.reduce import Reduction

State = dict[str, float]
Spread = Literal["none", "batch", "minibatch"]
"""What an advantage per step is divided by: nothing, or the standard deviation over the batch or each minibatch."""


def _require(condition: bool, message: str) -> None:
    """Raise ValueError with the message unless the condition holds."""
    if not condition:
        raise ValueError(message)


def _require_choice(name: str, value: object, options: object) -> None:
    """Raise ValueError unless `value` is one of the literal type's options."""
    choices = cast("tuple[str, ...]", get_args(options))
    _require(value in choices, f"{name} must be one of {', '.join(choices)}, got {value!r}")


@dataclass(frozen=True, slots=True)
class Ones:
    """A_t = 1: every demonstrated step counts the same (supervised fine-tuning)."""

    def compute(self, batch: Batch, state: State) -> tuple[Batch, State]:
        """Fill `advantage` with 1 at valid steps."""
        return batch.with_(advantage=batch.valid.to(batch.logp.dtype)), state


@dataclass(frozen=True, slots=True)
class Return:
    """The return minus a baseline that needs no critic and no groups.

    `reach`: `to_go` G_t from the step on, or `episode` G_0 on every step of the episode. `baseline`: `none`,
    `batch` (mean over the valid steps) or `running` (b ← b + rate·(mean − b) after each batch, from 0, kept
    in the state). `scale`: `none`, `batch` (divide by their standard deviation + eps, divisor n − ddof) or `minibatch`
    (`standardised` over each minibatch).
    """

    reach: Literal["to_go", "episode"] = "to_go"
    baseline: Literal["none", "batch", "running"] = "none"
    scale: Spread = "none"
    rate: float = 0.05
    ddof: int = 0
    eps: float = 1e-8

    def __post_init__(self) -> None:
        """Refuse unknown choices and rates outside (0, 1]."""
        _require_choice("advantage.reach", self.reach, Literal["to_go", "episode"])
        _require_choice("advantage.baseline", self.baseline, Literal["none", "batch", "running"])
        _require_scale(self.scale, Spread, self.ddof, self.eps)
        _require(0 < self.rate <= 1, f"advantage.rate must be in (0, 1], got {self.rate}")

    def compute(self, batch: Batch, state: State) -> tuple[Batch, State]:
        """Fill `advantage`; the running baseline moves only after it was used."""
        reach = returns.reward_to_go if self.reach == "to_go" else returns.episode_return
        value = reach(batch.reward, batch.discount, batch.cut, batch.valid)
        mean = baselines.masked_mean(value, batch.valid)
        if self.baseline == "batch":
            advantage = value - mean
        elif self.baseline == "running":
            advantage = value - state["baseline"]
            if bool(batch.valid.any()):
                state = state | {
                    "baseline": state["baseline"] + self.rate * (float(mean) - state["baseline"])
                }
        else:
            advantage = value
        if self.scale == "batch":
            advantage = advantage / (baselines.masked_std(value, batch.valid, self.ddof) + self.eps)
        return batch.with_(advantage=only(batch.valid, advantage)), state


@dataclass(frozen=True, slots=True)
class Gae:
    """Generalised advantage estimation with a critic; the critic's target is the λ-return.

    `scale`: `batch` subtracts the mean and divides by the standard deviation over valid steps + eps, divisor
    n − ddof; `minibatch` does so over the steps of each minibatch that carry loss (`standardised`).
    """

    lam: float = 0.95
    scale: Spread = "none"
    ddof: int = 1
    eps: float = 1e-8

    def __post_init__(self) -> None:
        """Refuse λ outside [0, 1] and unknown scales."""
        _require(0 <= self.lam <= 1, f"advantage.lam must be in [0, 1], got {self.lam}")
        _require_scale(self.scale, Spread, self.ddof, self.eps)

    def compute(self, batch: Batch, state: State) -> tuple[Batch, State]:
        """Fill `advantage` and `target`; raises ValueError without `value` and `next_value`."""
        if batch.value is None or batch.next_value is None:
            raise ValueError(
                "advantage 'gae' needs Batch.value and Batch.next_value: give the policy a critic"
            )
        advantage = returns.gae(
            batch.reward, batch.value, batch.next_value, batch.discount, batch.cut, batch.valid, self.lam
        )
        target = advantage + only(batch.valid, batch.value)
        if self.scale == "batch":
            advantage = standardised(advantage, batch.valid, self.ddof, self.eps)
        return batch.with_(advantage=advantage, target=target), state


def standardised(advantage: Tensor, mask: Tensor, ddof: int, eps: float) -> Tensor:
    """(A − mean) / (σ + eps) over the mask, `[B, T]`, σ with divisor n − ddof; 0 elsewhere and for n < 2."""
    whole = bool(mask.all())
    chosen = advantage.flatten() if whole else advantage[mask]
    if len(chosen) < 2:
        return torch.zeros_like(advantage)
    spread, mean = torch.std_mean(chosen, correction=ddof)
    scaled = (advantage - mean) / (spread + eps)
    return scaled if whole else only(mask, scaled)


@dataclass(frozen=True, slots=True)
class GroupMean:
    """Row score minus the mean of its group, on every step of the row (GRPO).

    `scale`: `group` or `batch` divides by that standard deviation + eps (divisor n − ddof), `none` does not.
    """

    scale: baselines.Scale = "group"
    ddof: int = 0
    eps: float = 1e-4

    def __post_init__(self) -> None:
        """Refuse unknown scales."""
        _require_scale(self.scale, baselines.Scale, self.ddof, self.eps)

    def compute(self, batch: Batch, state: State) -> tuple[Batch, State]:
        """Fill `advantage`; raises ValueError on a group of one row."""
        score, scored = baselines.score(batch.reward, batch.valid), baselines.scored_rows(batch)
        centred = baselines.group_mean(score, batch.group, scored)
        spread = _spread(self.scale, score, batch.group, scored, self.ddof, self.eps)
        return _on_steps(batch, centred / spread), state


@dataclass(frozen=True, slots=True)
class LeaveOneOut:
    """Row score minus the mean of its group's other rows, on every step (RLOO); scales as GroupMean."""

    scale: baselines.Scale = "none"
    ddof: int = 0
    eps: float = 1e-4

    def __post_init__(self) -> None:
        """Refuse unknown scales."""
        _require_scale(self.scale, baselines.Scale, self.ddof, self.eps)

    def compute(self, batch: Batch, state: State) -> tuple[Batch, State]:
        """Fill `advantage`; raises ValueError on a group of one row."""
        score, scored = baselines.score(batch.reward, batch.valid), baselines.scored_rows(batch)
        centred = baselines.leave_one_out(score, batch.group, scored)
        spread = _spread(self.scale, score, batch.group, scored, self.ddof, self.eps)
        return _on_steps(batch, centred / spread), state


@dataclass(frozen=True, slots=True)
class ExponentialWeights:
    """G · softmax over the group of β·(r_i − mean), on every step of the row (Alpamayo-R1)."""

    beta: float = 1.0

    def __post_init__(self) -> None:
        """Refuse a negative β, which would imitate the worst."""
        _require(self.beta >= 0, f"advantage.beta must be >= 0, got {self.beta}")

    def compute(self, batch: Batch, state: State) -> tuple[Batch, State]:
        """Fill `advantage` with the weights; raises ValueError on a group of one row."""
        score, scored = baselines.score(batch.reward, batch.valid), baselines.scored_rows(batch)
        return _on_steps(batch, baselines.exponential_weights(score, batch.group, scored, self.beta)), state


def _require_scale(scale: str, options: object, ddof: int, eps: float) -> None:
    """Refuse an unknown scale, a divisor other than n or n − 1, and a negative ε."""
    _require_choice("advantage.scale", scale, options)
    _require(ddof in (0, 1), f"advantage.ddof must be 0 (divisor n) or 1 (divisor n - 1), got {ddof}")
    _require(eps >= 0, f"advantage.eps must be >= 0, got {eps}")


def _spread(
    scale: baselines.Scale, score: Tensor, group: Tensor, scored: Tensor, ddof: int, eps: float
) -> Tensor | float:
    """What a centred score is divided by: σ + ε of the row's group or of the batch, or 1."""
    if scale == "group":
        return baselines.group_std(score, group, scored, ddof) + eps
    if scale == "batch":
        return baselines.masked_std(score, scored, ddof) + eps
    return 1.0


def _on_steps(batch: Batch, row: Tensor) -> Batch:
    """The batch with the row's number `[B]` as advantage of each of its valid steps."""
    return batch.with_(advantage=only(batch.valid, row[:, None].expand_as(batch.logp)))


@dataclass(frozen=True, slots=True)
class Reinforce:
    """−A·log π (Williams 1992); `reduce` and `length` as in `reduce.reduce`."""

    reduce: Reduction = "token_mean"
    length: int = 1

    def __post_init__(self) -> None:
        """Refuse an unknown reduction."""
        _require_reduction(self.reduce, self.length)

    def terms(
        self, logp: Tensor, old_logp: Tensor, advantage: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Per-step loss `[B, T]`, and no clip share."""
        return objectives.reinforce(logp, advantage, mask), None


@dataclass(frozen=True, slots=True)
class NegativeLogLikelihood:
    """−log π of the given actions, whatever the advantage; `reduce` and `length` as in `reduce.reduce`."""

    reduce: Reduction = "token_mean"
    length: int = 1

    def __post_init__(self) -> None:
        """Refuse an unknown reduction."""
        _require_reduction(self.reduce, self.length)

    def terms(
        self, logp: Tensor, old_logp: Tensor, advantage: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Per-step loss `[B, T]`, and no clip share."""
        return objectives.negative_log_likelihood(logp, mask), None


@dataclass(frozen=True, slots=True)
class Clipped:
    """−min(ρA, clip(ρ, 1−low, 1+high)·A) (PPO); `dual` and `ratio` as in `objectives.clipped`."""

    low: float = 0.2
    high: float = 0.2
    dual: float | None = None
    ratio: RatioKind = "token"
    reduce: Reduction = "token_mean"
    length: int = 1

    def __post_init__(self) -> None:
        """Refuse negative bounds, a dual clip within the band, unknown ratios and reductions."""
        _require(0 <= self.low <= 1, f"objective.low must be in [0, 1], got {self.low}")
        _require(self.high >= 0, f"objective.high must be >= 0, got {self.high}")
        _require(self.dual is None or self.dual > 1, f"objective.dual must be > 1, got {self.dual}")
        _require_choice("objective.ratio", self.ratio, RatioKind)
        _require_reduction(self.reduce, self.length)

    def terms(
        self, logp: Tensor, old_logp: Tensor, advantage: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Per-step loss and zero-gradient region, both `[B, T]`."""
        return objectives.clipped(logp, old_logp, advantage, mask, self.low, self.high, self.dual, self.ratio)


@dataclass(frozen=True, slots=True)
class Cispo:
    """−sg(clip(ρ))·A·log π: bounded weights, no token without a gradient (MiniMax-M1)."""

    low: float | None = None
    high: float = 4.0
    reduce: Reduction = "token_mean"
    length: int = 1

    def __post_init__(self) -> None:
        """Refuse negative bounds and unknown reductions."""
        _require(self.low is None or 0 <= self.low <= 1, f"objective.low must be in [0, 1], got {self.low}")
        _require(self.high >= 0, f"objective.high must be >= 0, got {self.high}")
        _require_reduction(self.reduce, self.length)

    def terms(
        self, logp: Tensor, old_logp: Tensor, advantage: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor | None]:
        """Per-step loss and where the weight is clipped, both `[B, T]`."""
        return objectives.cispo(logp, old_logp, advantage, mask, self.low, self.high)


def _require_reduction(reduce: str, length: int) -> None:
    """Refuse an unknown reduction and a length below 1."""
    _require_choice("objective.reduce", reduce, Reduction)
    _require(length >= 1, f"objective.length must be >= 1, got {length}")


@dataclass(frozen=True, slots=True)
class NoKl:
    """No penalty and no reference."""


@dataclass(frozen=True, slots=True)
class KlInReward:
    """r_t ← r_t − coefficient · estimate_t before advantages; only `k1` has the gradient of the KL there."""

    estimator: Estimator = "k1"
    coefficient: float = 0.05

    def __post_init__(self) -> None:
        """Refuse unknown estimators and negative coefficients."""
        _require_choice("kl.estimator", self.estimator, Estimator)
        _require(self.coefficient >= 0, f"kl.coefficient must be >= 0, got {self.coefficient}")


@dataclass(frozen=True, slots=True)
class KlInLoss:
    """Loss + coefficient · estimate, reduced as the objective.

    `times_ratio` multiplies the estimate by the differentiable ratio π/π_old. Without it `k2` has the
    gradient of KL(π‖π_ref) on samples of π, `k3` that of KL(π_ref‖π) (published GRPO), `k1` none: refused.
    With it `k1` and `k3` are exact, also off-policy; `k2` is not: refused.
    """

    estimator: Estimator = "k2"
    coefficient: float = 0.04
    times_ratio: bool = False

    def __post_init__(self) -> None:
        """Refuse unknown estimators, negative coefficients, and k1 without the ratio."""
        _require_choice("kl.estimator", self.estimator, Estimator)
        _require(self.coefficient >= 0, f"kl.coefficient must be >= 0, got {self.coefficient}")
        _require(
            self.estimator != "k1" or self.times_ratio,
            "kl.estimator 'k1' differentiated in the loss has zero expected gradient: place it in the "
            "reward, set times_ratio = true, or use 'k2'",
        )
        _require(
            self.estimator != "k2" or not self.times_ratio,
            "kl.estimator 'k2' times the ratio has a biased gradient: use 'k3' with times_ratio = true",
        )


@dataclass(frozen=True, slots=True)
class Update:
    """How one batch is used.

    `epochs` passes over the batch in `minibatches` pieces; `kl_stop` ends the epochs once the estimated KL to
    the sampling policy exceeds it; `max_grad_norm` clips the gradient (None: off); `importance_cap` turns on
    truncated importance weights for a sampler whose probabilities differ from the trainer's.
    """

    epochs: int = 1
    minibatches: int = 1
    kl_stop: float | None = None
    max_grad_norm: float | None = 1.0
    importance_cap: float | None = None

    def __post_init__(self) -> None:
        """Refuse counts below 1 and limits that are not positive."""
        _require(self.epochs >= 1, f"update.epochs must be >= 1, got {self.epochs}")
        _require(self.minibatches >= 1, f"update.minibatches must be >= 1, got {self.minibatches}")
        for name in ("kl_stop", "max_grad_norm", "importance_cap"):
            limit = getattr(self, name)
            _require(limit is None or limit > 0, f"update.{name} must be > 0 or left out, got {limit}")


Advantage = Ones | Return | Gae | GroupMean | LeaveOneOut | ExponentialWeights
Objective = Reinforce | NegativeLogLikelihood | Clipped | Cispo
Kl = NoKl | KlInReward | KlInLoss
