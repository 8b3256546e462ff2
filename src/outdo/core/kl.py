"""Estimators of KL(π‖π_ref) per step: the value they estimate and the gradient they have are two things."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from outdo.core.checks import only, require_same_shape

Estimator = Literal["k1", "k2", "k3"]


def estimate(logp: Tensor, ref_logp: Tensor, mask: Tensor, estimator: Estimator) -> Tensor:
    """Per-step estimate `[B, T]` of KL(π‖π_ref) from a sample of π; 0 outside the mask.

    With r = π_ref/π:

    | estimator | value | gradient when differentiated in a loss (on-policy expectation) |
    |---|---|---|
    | `k1` | −log r | 0: only noise. Right in the reward, or times the ratio |
    | `k2` | ½ (log r)² | ∇KL(π‖π_ref): right |
    | `k3` | (r − 1) − log r | ∇KL(π_ref‖π): the forward KL, unbounded weight 1 − r. Right times the ratio |

    The reference is held constant. Raises ValueError on unequal shapes or an unknown estimator.
    Source: Schulman, http://joschu.net/blog/kl-approx.html; gradients: arXiv 2512.21852.
    """
    require_same_shape(logp=logp, ref_logp=ref_logp, mask=mask)
    log_r = only(mask, ref_logp.detach()) - only(mask, logp)
    if estimator == "k1":
        return -log_r
    if estimator == "k2":
        return 0.5 * log_r.square()
    if estimator == "k3":
        return torch.expm1(log_r) - log_r
    raise ValueError(f"unknown KL estimator {estimator!r}: choose one of {', '.join(Estimator.__args__)}")


def exact(logits: Tensor, ref_logits: Tensor) -> Tensor:
    """KL(π‖π_ref) = Σ_a π(a) (log π(a) − log π_ref(a)) from full distributions, `[..., A]` logits to `[...]`.

    The gradient through `logits` is exact; the reference is held constant. An action that π never takes
    (logit −inf) adds 0. Raises ValueError on unequal shapes.
    """
    require_same_shape(logits=logits, ref_logits=ref_logits)
    logp = torch.log_softmax(logits, dim=-1)
    ref_logp = torch.log_softmax(ref_logits.detach(), dim=-1)
    possible = logits > -torch.inf
    logp, ref_logp = only(possible, logp), only(possible, ref_logp)
    return (logp.exp() * (logp - ref_logp)).sum(dim=-1)
