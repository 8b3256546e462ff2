"""AdamW, learning-rate schedules and gradient clipping."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import Parameter
from torch.optim import AdamW

from outdo.core.protocols import Policy

Schedule = Literal["constant", "linear", "cosine"]
FLAT_MATRICES = "matrices"
"""Name under which a policy gives one flat buffer that holds all its matrices: decayed as matrices are."""

FEW = 4
"""Up to so many tensors of gradients are handled one by one: a small policy spends its time on overhead."""


@dataclass(frozen=True, slots=True)
class OptimiserSettings:
    """Settings of AdamW and of its learning rate over a stage.

    The rate climbs linearly over the first `warmup` steps, then follows `schedule`: it stays, or falls along
    a line or half a cosine to `final_share` of `learning_rate` at the last step. Weight decay touches
    matrices only: never vectors (biases, norms).
    """

    learning_rate: float = 1e-5
    betas: tuple[float, float] = (0.9, 0.99)
    eps: float = 1e-8
    weight_decay: float = 0.0
    warmup: int = 0
    schedule: Schedule = "constant"
    final_share: float = 0.0

    def __post_init__(self) -> None:
        """Refuse settings that AdamW or the schedule cannot mean."""
        if not self.learning_rate >= 0:
            raise ValueError(f"learning_rate must be at least 0, got {self.learning_rate}")
        if not all(0 <= beta < 1 for beta in self.betas):
            raise ValueError(f"betas must be in [0, 1), got {self.betas}")
        if not self.eps > 0:
            raise ValueError(f"eps must be above 0, got {self.eps}")
        if self.weight_decay < 0 or self.warmup < 0:
            raise ValueError(
                f"weight_decay and warmup must be at least 0, got {self.weight_decay}, {self.warmup}"
            )
        if not 0 <= self.final_share <= 1:
            raise ValueError(f"final_share must be in [0, 1], got {self.final_share}")


def learning_rate(settings: OptimiserSettings, step: int, steps: int) -> float:
    """Learning rate of update `step` (0-based) out of `steps`: a pure function of its arguments.

    With w = warmup, p = (step − w) / max(1, steps − 1 − w) and f = final_share: lr·(step + 1)/w while step <
    w; then constant: lr, linear: lr·(1 − (1 − f)·p), cosine: lr·(f + (1 − f)·(1 + cos πp)/2).
    """
    if step < settings.warmup:
        return settings.learning_rate * (step + 1) / settings.warmup
    progress = min(1.0, (step - settings.warmup) / max(1, steps - 1 - settings.warmup))
    floor = settings.final_share
    if settings.schedule == "linear":
        return settings.learning_rate * (1 - (1 - floor) * progress)
    if settings.schedule == "cosine":
        return settings.learning_rate * (floor + (1 - floor) * (1 + math.cos(math.pi * progress)) / 2)
    return settings.learning_rate


def adamw(policy: Policy, settings: OptimiserSettings) -> AdamW:
    """AdamW over the policy's trainable parameters, fused, with moments at zero."""
    named = dict(policy.named_parameters())
    if not named:
        raise ValueError("the policy has no trainable parameters: nothing to optimise")
    matrices = [p for name, p in named.items() if p.ndim > 1 or name == FLAT_MATRICES]
    vectors = [p for name, p in named.items() if p.ndim <= 1 and name != FLAT_MATRICES]
    groups: list[dict[str, Any]] = [
        {"params": matrices, "weight_decay": settings.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    if not settings.weight_decay:  # one group costs half the overhead of two
        groups = [{"params": [*named.values()], "weight_decay": 0.0}]
    return AdamW(
        [group for group in groups if group["params"]],
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.eps,
        fused=True,
    )


@torch.no_grad()
def step(optimiser: AdamW) -> None:
    """One step of an optimiser that `adamw` made: bitwise `optimiser.step()`.

    With up to `FEW` tensors on the CPU whose moments are there, straight by its kernel: a quarter of the time.
    """
    parameters = [p for group in optimiser.param_groups for p in group["params"]]
    if len(parameters) > FEW or any(
        p.grad is None or not p.is_cpu or p not in optimiser.state for p in parameters
    ):
        optimiser.step()
        return
    for group in optimiser.param_groups:
        states = [optimiser.state[p] for p in group["params"]]
        for state in states:
            state["step"] += 1
        torch.ops.aten._fused_adamw_(
            group["params"],
            [p.grad for p in group["params"]],
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            [state["step"] for state in states],
            lr=group["lr"],
            beta1=group["betas"][0],
            beta2=group["betas"][1],
            weight_decay=group["weight_decay"],
            eps=group["eps"],
            amsgrad=False,
            maximize=False,
        )


def set_learning_rate(optimiser: AdamW, rate: float) -> None:
    """Use `rate` from the next step on."""
    for group in optimiser.param_groups:
        group["lr"] = rate


def gradient_norm(parameters: Sequence[Parameter]) -> Tensor:
    """Euclidean norm over all gradients, a scalar; parameters without a gradient count as zero."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    if 0 < len(gradients) <= FEW:  # the same, without sorting them by device and dtype
        return torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(each) for each in gradients]))
    return torch.nn.utils.get_total_norm(gradients)


def clip_gradient(parameters: Sequence[Parameter], norm: float, limit: float | None) -> None:
    """Scale all gradients by limit/norm where `norm` is above `limit`; None never clips."""
    if limit is None or norm <= limit:
        return
    if len(parameters) <= FEW:
        for parameter in parameters:
            if parameter.grad is not None:
                parameter.grad.mul_(limit / (norm + 1e-6))
    else:
        torch.nn.utils.clip_grads_with_norm_(parameters, limit, torch.tensor(norm))


def moments(policy: Policy, optimiser: AdamW) -> dict[str, Tensor]:
    """The optimiser's tensors under the names of the parameters they belong to: `name/exp_avg` and so on."""
    return {
        f"{name}/{key}": tensor
        for name, parameter in policy.named_parameters()
        for key, tensor in optimiser.state.get(parameter, {}).items()
    }


def load_moments(policy: Policy, optimiser: AdamW, tensors: dict[str, Tensor]) -> None:
    """Undo `moments`, bitwise; a tensor that belongs to no parameter is an error."""
    parameters = dict(policy.named_parameters())
    for key, tensor in tensors.items():
        name, _, field = key.rpartition("/")
        if name not in parameters:
            raise ValueError(f"the optimiser's file holds {key!r}, but the policy has no parameter {name!r}")
        parameter = parameters[name]
        device = (
            torch.device("cpu") if field == "step" and parameter.device.type == "cpu" else parameter.device
        )
        optimiser.state[parameter][field] = tensor.to(device)
