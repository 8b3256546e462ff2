"""Objectives: per-step losses `[B, T]` to minimise, from log-probabilities and advantages.

Every function opens with an equal-shape check, holds advantages, old and reference log-probabilities constant
(detached), and is 0 with zero gradient outside the mask, whatever stands there.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from outdo.core.checks import only, require_same_shape

RatioKind = Literal["token", "sequence", "length_normalised"]


def log_ratio(logp: Tensor, old_logp: Tensor, mask: Tensor, kind: RatioKind = "token") -> Tensor:
    """Log-ratio log ρ `[B, T]` with ρ = π/π_old; 0 outside the mask.

    `token`: log ρ_t = log π(a_t) − log π_old(a_t). `sequence`: Σ_t log ρ_t on every step of the row.
    `length_normalised`: (1/n) Σ_t log ρ_t on every step of the row (GSPO, arXiv 2507.18071 eq. 7).
    Raises ValueError on unequal shapes or an unknown kind.
    """
    require_same_shape(logp=logp, old_logp=old_logp, mask=mask)
    difference = only(mask, logp) - only(mask, old_logp.detach())
    if kind == "token":
        return difference
    total = difference.sum(dim=1, keepdim=True)
    if kind == "sequence":
        return only(mask, total.expand_as(difference))
    if kind == "length_normalised":
        return only(mask, (total / mask.sum(dim=1, keepdim=True).clamp(min=1)).expand_as(difference))
    raise ValueError(f"unknown ratio {kind!r}: choose one of {', '.join(RatioKind.__args__)}")


def reinforce(logp: Tensor, advantage: Tensor, mask: Tensor) -> Tensor:
    """Score-function loss −A_t log π(a_t), `[B, T]` (Williams 1992, eq. 11).

    Also the exponentially weighted loss of Alpamayo-R1 (arXiv 2511.00088), when the advantage holds the
    weights of `baselines.exponential_weights`. Raises ValueError on unequal shapes.
    """
    require_same_shape(logp=logp, advantage=advantage, mask=mask)
    return -only(mask, advantage.detach()) * only(mask, logp)


def negative_log_likelihood(logp: Tensor, mask: Tensor) -> Tensor:
    """−log π(a_t), `[B, T]`: fine-tuning on demonstrations. Raises ValueError on unequal shapes."""
    require_same_shape(logp=logp, mask=mask)
    return -only(mask, logp)


def clipped(
    logp: Tensor,
    old_logp: Tensor,
    advantage: Tensor,
    mask: Tensor,
    low: float = 0.2,
    high: float = 0.2,
    dual: float | None = None,
    ratio: RatioKind = "token",
) -> tuple[Tensor, Tensor]:
    """Clipped surrogate −min(ρA, clip(ρ, 1−low, 1+high)·A) and where its gradient is zero, both `[B, T]`.

    PPO (arXiv 1707.06347 eq. 7); asymmetric bounds: DAPO (arXiv 2503.14476 eq. 8). With `dual` = c > 1 the
    surrogate of a negative advantage is bounded by max(…, c·A) (arXiv 1912.09729 eq. 5). A NaN in ratio or
    advantage stays a NaN in the loss. The clip takes away the incentive to go further; it bounds no step.
    Raises ValueError on unequal shapes.
    """
    require_same_shape(logp=logp, old_logp=old_logp, advantage=advantage, mask=mask)
    rho = log_ratio(logp, old_logp, mask, ratio).exp()
    fixed = only(mask, advantage.detach())
    surrogate = torch.minimum(rho * fixed, rho.clamp(1 - low, 1 + high) * fixed)
    flat = ((fixed > 0) & (rho > 1 + high)) | ((fixed < 0) & (rho < 1 - low))
    if dual is not None:
        surrogate = torch.where(fixed < 0, torch.maximum(surrogate, dual * fixed), surrogate)
        flat = flat | ((fixed < 0) & (rho > dual))
    return only(mask, -surrogate), flat & mask


def cispo(
    logp: Tensor,
    old_logp: Tensor,
    advantage: Tensor,
    mask: Tensor,
    low: float | None = None,
    high: float = 4.0,
) -> tuple[Tensor, Tensor]:
    """−sg(clip(ρ, 1−low, 1+high))·A·log π(a_t) and where the weight is clipped, both `[B, T]`.

    Every token keeps a gradient; only its weight is bounded (CISPO, MiniMax-M1, arXiv 2506.13585 eq. 4–5).
    `low` None leaves small ratios alone, as the paper does. Raises ValueError on unequal shapes.
    """
    require_same_shape(logp=logp, old_logp=old_logp, advantage=advantage, mask=mask)
    rho = log_ratio(logp, old_logp, mask).exp().detach()
    weight = rho.clamp(min=None if low is None else 1 - low, max=1 + high)
    return -weight * only(mask, advantage.detach()) * only(mask, logp), (weight != rho) & mask


def importance_weight(trainer_logp: Tensor, sampler_logp: Tensor, mask: Tensor, cap: float) -> Tensor:
    """Truncated importance weight min(π_trainer/π_sampler, cap), `[B, T]`, a constant; 1 outside the mask.

    Corrects for a sampler (other kernels, other precision) whose probabilities differ from the trainer's
    (Ionides 2008; Yao et al. 2025, "Your efficient RL framework secretly brings you off-policy RL training").
    Raises ValueError on unequal shapes.
    """
    return log_ratio(trainer_logp.detach(), sampler_logp, mask).exp().clamp(max=cap)


def value_mse(value: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """(V − target)², `[B, T]`, the target held constant. Raises ValueError on unequal shapes."""
    require_same_shape(value=value, target=target, mask=mask)
    return (only(mask, value) - only(mask, target.detach())).square()


def value_clipped(value: Tensor, old_value: Tensor, target: Tensor, mask: Tensor, clip: float) -> Tensor:
    """max((V − target)², (V_old + clamp(V − V_old, ±clip) − target)²), `[B, T]`: PPO's clipped value loss.

    Source: OpenAI baselines ppo2. Raises ValueError on unequal shapes.
    """
    require_same_shape(value=value, old_value=old_value, target=target, mask=mask)
    old = only(mask, old_value.detach())
    near = old + (only(mask, value) - old).clamp(-clip, clip)
    return torch.maximum(value_mse(value, target, mask), value_mse(near, target, mask))


def dpo(
    chosen_logp: Tensor,
    rejected_logp: Tensor,
    ref_chosen_logp: Tensor,
    ref_rejected_logp: Tensor,
    beta: float = 0.1,
    label_smoothing: float = 0.0,
) -> Tensor:
    """Direct preference loss per pair, `[N]` from `[N]` sequence log-probabilities (arXiv 2305.18290 eq. 7).

    −(1−s)·log σ(h) − s·log σ(−h), h = β[(log π − log π_ref)(chosen) − (log π − log π_ref)(rejected)], with
    the share s of labels believed to be flipped. The reference is held constant.
    Raises ValueError on unequal shapes.
    """
    require_same_shape(
        chosen_logp=chosen_logp,
        rejected_logp=rejected_logp,
        ref_chosen_logp=ref_chosen_logp,
        ref_rejected_logp=ref_rejected_logp,
    )
    chosen, rejected = chosen_logp - ref_chosen_logp.detach(), rejected_logp - ref_rejected_logp.detach()
    margin = beta * (chosen - rejected)
    return -(1 - label_smoothing) * F.logsigmoid(margin) - label_smoothing * F.logsigmoid(-margin)
