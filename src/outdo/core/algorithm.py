"""An algorithm is a value: advantage × objective × KL placement × update schedule.

Named ones, and the reader of algorithms written as tables, are in `outdo.core.presets`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from outdo.core import baselines, fused, kl, objectives
from outdo.core.batch import Batch
from outdo.core.checks import only
from outdo.core.parts import (
    Advantage,
    Clipped,
    ExponentialWeights,
    Gae,
    GroupMean,
    Kl,
    KlInLoss,
    KlInReward,
    LeaveOneOut,
    NegativeLogLikelihood,
    NoKl,
    Objective,
    Reinforce,
    Return,
    State,
    Update,
    standardised,
)
from outdo.core.protocols import Evaluation
from outdo.core.reduce import Counts, count, reduce

Number = Tensor | float
Pair = tuple[Number, Number]
"""A figure as (sum over the steps that carry loss, number of these steps): pairs of pieces add up exactly."""


@dataclass(frozen=True, slots=True)
class Loss:
    """The scalar to differentiate, and figures without gradient.

    `metrics`: (sum, count) by name, to be added over micro-batches and ranks; `maxima`: to be maximised.
    """

    total: Tensor
    metrics: dict[str, Pair]
    maxima: dict[str, Number]


@dataclass(frozen=True, slots=True)
class Algorithm:
    """How a batch becomes a loss; immutable, with its state (`initial_state`, `prepare`) kept outside.

    | field | meaning |
    |---|---|
    | `advantage`, `objective`, `kl`, `update` | the four parts (`outdo.core.parts`) |
    | `gamma` | discount factor; the environment receives it and writes `Batch.discount` |
    | `value_coefficient` | weight of the critic's loss (token mean), where the advantage trains a critic |
    | `value_clip` | width of PPO's clipped value loss; None: plain squared error |
    | `entropy_coefficient` | weight of the entropy bonus, reduced as the objective |
    | `name` | what the log calls it |
    """

    advantage: Advantage
    objective: Objective
    kl: Kl = field(default_factory=NoKl)
    update: Update = field(default_factory=Update)
    gamma: float = 1.0
    value_coefficient: float = 0.5
    value_clip: float | None = None
    entropy_coefficient: float = 0.0
    name: str = ""

    def __post_init__(self) -> None:
        """Refuse settings out of range."""
        if not 0 <= self.gamma <= 1:
            raise ValueError(f"gamma must be in [0, 1], got {self.gamma}")
        if self.value_coefficient < 0:
            raise ValueError(f"value_coefficient must be >= 0, got {self.value_coefficient}")
        if self.value_clip is not None and self.value_clip <= 0:
            raise ValueError(f"value_clip must be > 0 or left out, got {self.value_clip}")

    @property
    def needs_critic(self) -> bool:
        """True where the advantage is estimated with V(s)."""
        return isinstance(self.advantage, Gae)

    @property
    def needs_groups(self) -> bool:
        """True where rows are compared with other samples of their prompt."""
        return isinstance(self.advantage, GroupMean | LeaveOneOut | ExponentialWeights)

    @property
    def needs_reference(self) -> bool:
        """True where a KL asks for `Batch.ref_logp`."""
        return isinstance(self.kl, KlInReward | KlInLoss) and self.kl.coefficient > 0

    @property
    def kl_in_reward(self) -> bool:
        """True where `prepare` puts the KL into the reward."""
        return isinstance(self.kl, KlInReward) and self.needs_reference

    @property
    def is_surrogate(self) -> bool:
        """True where the loss value says nothing about progress: every objective but the likelihood's."""
        return not isinstance(self.objective, NegativeLogLikelihood)

    @property
    def is_stepwise(self) -> bool:
        """True where the loss is a sum over steps with one denominator, so that steps may be drawn singly."""
        by_step = self.objective.reduce in ("token_mean", "token_sum")
        return by_step and not (isinstance(self.objective, Clipped) and self.objective.ratio != "token")

    @property
    def needs_entropy(self) -> bool:
        """True where the loss asks for an entropy that carries gradient."""
        return self.entropy_coefficient != 0

    def check(self, group: int, has_critic: bool) -> None:
        """Raise ValueError for what can never run with `group` samples per prompt and this critic or none."""
        name = self.name or type(self.advantage).__name__
        if self.needs_groups and group < 2:
            raise ValueError(
                f"algorithm '{name}' compares samples of one prompt, but group = {group}: set group >= 2, "
                "or choose an algorithm without group baseline (reinforce_baseline, reinforce_plus_plus, ppo)"
            )
        if self.needs_critic and not has_critic:
            raise ValueError(
                f"algorithm '{name}' estimates advantages with a critic, but the policy has none: switch "
                "its value head on, or choose an algorithm without critic (grpo, rloo, reinforce_baseline)"
            )

    def initial_state(self) -> State:
        """State before the first batch: the running baseline where there is one, else nothing."""
        running = isinstance(self.advantage, Return) and self.advantage.baseline == "running"
        return {"baseline": 0.0} if running else {}

    @torch.no_grad()
    def prepare(self, batch: Batch, state: State | None = None) -> tuple[Batch, State]:
        """Put the KL into the reward where it is placed there, then fill `advantage` and a critic's `target`.

        Pure: returns the new batch and the new state. Without `state` it starts from `initial_state()`.
        Raises ValueError where the batch lacks a critic's values, a reference, or comparable samples.
        """
        if isinstance(self.kl, KlInReward) and self.needs_reference:
            estimate = kl.estimate(_old_logp(batch), _ref_logp(batch), batch.valid, self.kl.estimator)
            batch = batch.with_(reward=only(batch.valid, batch.reward) - self.kl.coefficient * estimate)
        return self.advantage.compute(batch, self.initial_state() if state is None else state)

    def scaled(self, minibatch: Batch) -> Batch:
        """The whole minibatch with its advantages standardised where the advantage's scale is `minibatch`."""
        part = self.advantage
        if not (isinstance(part, Gae | Return) and part.scale == "minibatch"):
            return minibatch
        if minibatch.advantage is None:
            raise ValueError("Batch.advantage is empty: call Algorithm.prepare before Algorithm.scaled")
        mask = minibatch.loss_mask
        return minibatch.with_(advantage=standardised(minibatch.advantage, mask, part.ddof, part.eps))

    def counts(self, batch: Batch) -> Counts:
        """Denominators of a whole minibatch; over ranks add them up, then pass the sum to `loss`."""
        return count(batch.loss_mask)

    def loss(self, batch: Batch, evaluation: Evaluation, counts: Counts) -> Loss:
        """The loss of a micro-batch: objective + KL + value − entropy, each over the global `counts`.

        Summed over the micro-batches of a minibatch, `total` is the minibatch's loss, with the same gradient.
        Raises ValueError where `prepare` was not called or a reference, critic or entropy is missing.
        """
        if batch.advantage is None:
            raise ValueError("Batch.advantage is empty: call Algorithm.prepare before Algorithm.loss")
        if self._fuses(batch, evaluation):
            return self._fused_loss(batch, evaluation, counts)
        mask, old = batch.loss_mask, _old_logp(batch)
        logp = evaluation.logp
        terms, flat = self.objective.terms(logp, old, batch.advantage, mask)
        means: dict[str, Pair] = {}
        steps = mask.sum()
        if self.update.importance_cap is not None:
            weight = objectives.importance_weight(old, batch.logp, mask, self.update.importance_cap)
            terms = terms * weight
            means["importance_weight"] = (only(mask, weight).sum(), steps)
        means["policy_loss"] = (terms.detach().sum(), steps)
        if flat is not None:
            means["clip_share"] = (flat.sum(), steps)
        if isinstance(self.kl, KlInLoss) and self.needs_reference:
            penalty = kl.estimate(logp, _ref_logp(batch), mask, self.kl.estimator)
            if self.kl.times_ratio:
                penalty = penalty * objectives.log_ratio(logp, old, mask).exp()
            terms = terms + self.kl.coefficient * penalty
        if self.needs_entropy:
            if evaluation.entropy is None:
                raise ValueError("entropy_coefficient is set: evaluate the policy with entropy=True")
            terms = terms - self.entropy_coefficient * only(mask, evaluation.entropy)
        total = reduce(terms, mask, counts, self.objective.reduce, self.objective.length)
        if self.needs_critic:
            total = total + self.value_coefficient * self._value_loss(batch, evaluation, counts, means)
        return _with_metrics(total, batch, evaluation, means)

    @property
    def compiled(self) -> fused.Settings | None:
        """The loss as the compiled pass takes it: stepwise losses without reference; None for others."""
        clipped = self.objective if isinstance(self.objective, Clipped) else None
        plain = isinstance(self.objective, Reinforce) or (clipped is not None and clipped.dual is None)
        if not (plain and self.is_stepwise) or self.update.importance_cap is not None or self.needs_reference:
            return None
        part = self.advantage if isinstance(self.advantage, Gae | Return) else None
        return fused.Settings(
            clips=clipped is not None,
            low=0.0 if clipped is None else clipped.low,
            high=0.0 if clipped is None else clipped.high,
            mean=self.objective.reduce == "token_mean",
            entropy=self.entropy_coefficient,
            critic=self.needs_critic,
            value=self.value_coefficient if self.needs_critic else 0.0,
            value_clip=self.value_clip or 0.0,
            standardises=part is not None and part.scale == "minibatch",
            ddof=0 if part is None else part.ddof,
            eps=0.0 if part is None else part.eps,
        )

    def _fuses(self, batch: Batch, evaluation: Evaluation) -> bool:
        """True where one compiled pass gives the same numbers: `compiled` losses on the CPU."""
        if self.compiled is None or batch.ref_logp is not None:
            return False
        needed = [evaluation.logp, _old_logp(batch), batch.logp, batch.advantage]
        needed += [evaluation.value, batch.value, batch.target] if self.needs_critic else []
        needed += [evaluation.entropy] if self.needs_entropy else []
        return all(each is not None for each in needed) and fused.suits(*needed, evaluation.entropy)

    def _fused_loss(self, batch: Batch, evaluation: Evaluation, counts: Counts) -> Loss:
        """`loss` by `fused.loss`."""
        settings, critic = self.compiled, self.needs_critic
        if settings is None or batch.advantage is None:
            raise ValueError("Batch.advantage is empty: call Algorithm.prepare before Algorithm.loss")
        total, sums = fused.loss(
            evaluation.logp,
            _old_logp(batch),
            batch.logp,
            batch.advantage,
            evaluation.entropy,
            evaluation.value if critic else None,
            batch.value if critic else None,
            batch.target if critic else None,
            batch.loss_mask,
            settings,
            counts.steps,
        )
        means, maxima = self.figures(sums, gap=batch.old_logp is not None)
        if evaluation.entropy is None:
            del means["entropy"]
        return Loss(total, means, maxima)

    def figures(self, sums: fused.Sums, *, gap: bool) -> tuple[dict[str, Pair], dict[str, Number]]:
        """Metrics and maxima of a `Loss` from the sums of the compiled one; `gap`: `old_logp` was scored."""
        steps, policy, flat, ratio, k1, k3, distance, entropy, value, largest = sums.tolist()
        means: dict[str, Pair] = {"policy_loss": (policy, steps)}
        if isinstance(self.objective, Clipped):
            means["clip_share"] = (flat, steps)
        if self.needs_critic:
            means["value_loss"] = (value, steps)
        means |= {"ratio": (ratio, steps), "kl_old_k1": (k1, steps), "kl_old_k3": (k3, steps)}
        if gap:
            means["sampler_gap"] = (distance, steps)
        return {**means, "entropy": (entropy, steps)}, {"ratio_max": largest}

    def _value_loss(
        self, batch: Batch, evaluation: Evaluation, counts: Counts, means: dict[str, Pair]
    ) -> Tensor:
        """Token mean of the critic's loss; notes it in `means`."""
        if evaluation.value is None or batch.target is None or batch.value is None:
            raise ValueError("advantage 'gae' needs Evaluation.value: give the policy a critic")
        mask = batch.loss_mask
        if self.value_clip is None:
            terms = objectives.value_mse(evaluation.value, batch.target, mask)
        else:
            terms = objectives.value_clipped(
                evaluation.value, batch.value, batch.target, mask, self.value_clip
            )
        means["value_loss"] = (terms.detach().sum(), mask.sum())
        return reduce(terms, mask, counts, "token_mean")


def _old_logp(batch: Batch) -> Tensor:
    """The trainer's log-probabilities before the batch's first update; the sampler's where not scored."""
    return batch.logp if batch.old_logp is None else batch.old_logp


def _ref_logp(batch: Batch) -> Tensor:
    """The reference's log-probabilities; ValueError where they are missing."""
    if batch.ref_logp is None:
        raise ValueError("the KL needs Batch.ref_logp: score the batch with the reference policy")
    return batch.ref_logp


@torch.no_grad()
def _with_metrics(total: Tensor, batch: Batch, evaluation: Evaluation, means: dict[str, Pair]) -> Loss:
    """The loss with its figures: ratio, KL to old and reference, gap between sampler and trainer, entropy."""
    mask = batch.loss_mask
    steps = mask.sum()
    log_ratio = objectives.log_ratio(evaluation.logp, _old_logp(batch), mask)
    ratio = only(mask, log_ratio.exp())
    means = means | {
        "ratio": (ratio.sum(), steps),
        "kl_old_k1": (-log_ratio.sum(), steps),
        "kl_old_k3": ((torch.expm1(log_ratio) - log_ratio).sum(), steps),
    }
    if batch.old_logp is not None:
        gap = objectives.log_ratio(batch.old_logp, batch.logp, mask).abs()
        means["sampler_gap"] = (gap.sum(), steps)
    if batch.ref_logp is not None:
        means["kl_reference"] = (kl.estimate(evaluation.logp, batch.ref_logp, mask, "k3").sum(), steps)
    if evaluation.entropy is not None:
        means["entropy"] = (only(mask, evaluation.entropy).sum(), steps)
    return Loss(total, means, {"ratio_max": ratio.amax()})


def explained_variance(batch: Batch) -> float:
    """1 − Var(target − V) / Var(target) over the valid steps of a prepared batch.

    1 is perfect, 0 no better than a constant, −inf where the target does not vary and V − target does.
    Raises ValueError without `target` and `value`.
    """
    if batch.target is None or batch.value is None:
        raise ValueError("explained variance needs Batch.value and Batch.target: prepare with a critic first")
    target = only(batch.valid, batch.target).double()
    spread = baselines.masked_std(target, batch.valid).square()
    rest = baselines.masked_std(target - only(batch.valid, batch.value).double(), batch.valid).square()
    return float(1 - torch.where(rest == 0, torch.zeros_like(rest), rest / spread))


def nonfinite_rows(batch: Batch, evaluation: Evaluation | None = None) -> dict[str, list[int]]:
    """Rows with a NaN or infinity at a valid step, by the field it stands in; empty where all is finite.

    Looks at reward, value, next_value, logp, ref_logp, old_logp and advantage, and with an `evaluation` at
    its logp, value and the ratio. Use it to stop a run and to name what stopped it.
    """
    fields: dict[str, Tensor | None] = {
        "reward": batch.reward,
        "logp": batch.logp,
        "old_logp": batch.old_logp,
        "ref_logp": batch.ref_logp,
        "value": batch.value,
        "next_value": batch.next_value,
        "advantage": batch.advantage,
    }
    if evaluation is not None:
        fields["evaluation.logp"] = evaluation.logp.detach()
        fields["evaluation.value"] = None if evaluation.value is None else evaluation.value.detach()
        fields["ratio"] = objectives.log_ratio(evaluation.logp.detach(), _old_logp(batch), batch.valid).exp()
    found: dict[str, list[int]] = {}
    for name, tensor in fields.items():
        if tensor is not None:
            rows = (only(batch.valid, tensor).isfinite().logical_not()).any(dim=1).nonzero().flatten()
            if len(rows):
                found[name] = [int(row) for row in rows.tolist()]
    return found
