"""An algorithm is a value: advantage × objective × KL placement × update schedule. Presets: `outdo.core.presets`."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from outdo.core import baselines, kl, objectives
from outdo.core.batch import Batch
from outdo.core.checks import only
from outdo.core.metrics import Metrics, Pair
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
    Objective,
    Return,
    State,
    Update,
)
from outdo.core.protocols import Evaluation
from outdo.core.reduce import Counts, count, reduce


@dataclass(frozen=True, slots=True)
class Loss:
    """`total` is the scalar to differentiate; `metrics` are additive over micro-batches and carry no gradient."""

    total: Tensor
    metrics: Metrics


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
    def needs_entropy(self) -> bool:
        """True where the loss asks for an entropy that carries gradient."""
        return self.entropy_coefficient != 0

    def check(self, group: int, has_critic: bool) -> None:
        """Raise ValueError for what can never run: `group` samples per prompt, a policy with or without critic."""
        name = self.name or type(self.advantage).__name__
        if self.needs_groups and group < 2:
            raise ValueError(
                f"algorithm '{name}' compares samples of one prompt, but group = {group}: set group >= 2, "
                "or choose an algorithm without group baseline (reinforce_baseline, reinforce_plus_plus, ppo)"
            )
        if self.needs_critic and not has_critic:
            raise ValueError(
                f"algorithm '{name}' estimates advantages with a critic, but the policy has none: switch its value "
                "head on, or choose an algorithm without critic (grpo, rloo, reinforce_baseline)"
            )

    def initial_state(self) -> State:
        """State before the first batch: the running baseline where there is one, else nothing."""
        running = isinstance(self.advantage, Return) and self.advantage.baseline == "running"
        return {"baseline": 0.0} if running else {}

    @torch.no_grad()
    def prepare(self, batch: Batch, state: State | None = None) -> tuple[Batch, State]:
        """Put the KL into the reward where it belongs there, then fill `advantage` (and `target` for a critic).

        Pure: returns the new batch and the new state. Without `state` it starts from `initial_state()`.
        Raises ValueError where the batch lacks a critic's values, a reference, or comparable samples.
        """
        if isinstance(self.kl, KlInReward) and self.needs_reference:
            estimate = kl.estimate(_old_logp(batch), _ref_logp(batch), batch.valid, self.kl.estimator)
            batch = batch.with_(reward=only(batch.valid, batch.reward) - self.kl.coefficient * estimate)
        return self.advantage.compute(batch, self.initial_state() if state is None else state)

    def counts(self, batch: Batch) -> Counts:
        """Denominators of a whole minibatch; over ranks add them up, then pass the sum to `loss`."""
        return count(batch.loss_mask)

    def loss(self, batch: Batch, evaluation: Evaluation, counts: Counts) -> Loss:
        """The loss of a micro-batch: objective + KL + value − entropy, each over the global `counts`.

        Σ over the micro-batches of a minibatch of `total` is the loss of the minibatch, with the same gradient.
        Raises ValueError where `prepare` was not called or a reference, critic or entropy is missing.
        """
        if batch.advantage is None:
            raise ValueError("Batch.advantage is empty: call Algorithm.prepare before Algorithm.loss")
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
        return Loss(total, _metrics(batch, evaluation, means))

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
    """The trainer's log-probabilities before the first update of the batch; the sampler's where not scored."""
    return batch.logp if batch.old_logp is None else batch.old_logp


def _ref_logp(batch: Batch) -> Tensor:
    """The reference's log-probabilities; ValueError where they are missing."""
    if batch.ref_logp is None:
        raise ValueError("the KL needs Batch.ref_logp: score the batch with the reference policy")
    return batch.ref_logp


@torch.no_grad()
def _metrics(batch: Batch, evaluation: Evaluation, means: dict[str, Pair]) -> Metrics:
    """Figures of the micro-batch: ratio, KL to old and reference, entropy, critic."""
    mask = batch.loss_mask
    steps = mask.sum()
    log_ratio = objectives.log_ratio(evaluation.logp, _old_logp(batch), mask)
    ratio = log_ratio.exp()
    means = means | {
        "ratio": (only(mask, ratio).sum(), steps),
        "kl_old_k1": (-log_ratio.sum(), steps),
        "kl_old_k3": ((torch.expm1(log_ratio) - log_ratio).sum(), steps),
    }
    if batch.old_logp is not None:
        gap = objectives.log_ratio(batch.old_logp, batch.logp, mask).abs()
        means["sampler_gap"] = (gap.sum(), steps)
    if batch.ref_logp is not None:
        to_reference = kl.estimate(evaluation.logp, batch.ref_logp, mask, "k3")
        means["kl_reference"] = (to_reference.sum(), steps)
    if evaluation.entropy is not None:
        means["entropy"] = (only(mask, evaluation.entropy).sum(), steps)
    moments: dict[str, tuple[Tensor, Tensor, Tensor]] = {}
    if evaluation.value is not None and batch.target is not None:
        target = only(mask, batch.target).double()
        residual = target - only(mask, evaluation.value).double()
        moments["target"] = (target.sum(), target.square().sum(), steps)
        moments["residual"] = (residual.sum(), residual.square().sum(), steps)
    return Metrics(means, {"ratio_max": only(mask, ratio).max()} if mask.numel() else {}, moments)


def batch_metrics(batch: Batch) -> Metrics:
    """Figures of a batch before `prepare`: mean row score, and the share of groups whose scores are all equal."""
    scored = baselines.scored_rows(batch)
    score = baselines.score(batch.reward, batch.valid)
    return Metrics(
        {
            "reward": (only(scored, score).sum(), scored.sum()),
            "groups_without_signal": baselines.groups_without_signal(batch),
        }
    )


def nonfinite_rows(batch: Batch, evaluation: Evaluation | None = None) -> dict[str, list[int]]:
    """Rows with a NaN or infinity at a valid step, by the name of the field it stands in; empty where all is finite.

    Looks at reward, value, next_value, logp, ref_logp, old_logp and advantage, and with an `evaluation` at its logp,
    value and the ratio. Use it to stop a run and to name what stopped it.
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
