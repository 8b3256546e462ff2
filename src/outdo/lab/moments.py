"""Mean and spread of samples, each with its standard error."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor


@dataclass(frozen=True, slots=True)
class Moments:
    """Sample mean and standard deviation (divisor n − 1), and the standard error of each."""

    mean: float
    spread: float
    mean_error: float
    spread_error: float


def moments(samples: Tensor) -> Moments:
    """Moments of independent samples `[n]`.

    Errors: σ/√n of the mean, √((μ₄ − σ⁴)/n) / 2σ of the spread (delta method; normal samples: σ/√(2n)).
    Raises ValueError on fewer than two samples.
    """
    count = samples.numel()
    if count < 2:
        raise ValueError(
            f"a spread needs at least 2 samples, got {count}: raise the number of trials or seeds"
        )
    samples = samples.detach().double().flatten()
    centred = samples - samples.mean()
    variance = float(centred.square().sum() / (count - 1))
    spread = variance**0.5
    fourth = float(centred.pow(4).mean())
    excess = max(fourth - variance**2, 0.0)
    spread_error = (excess / count) ** 0.5 / (2 * spread) if spread > 0 else 0.0
    return Moments(float(samples.mean()), spread, spread / count**0.5, spread_error)
