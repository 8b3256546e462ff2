"""Distributions over actions, as plain arithmetic on the outputs of a network.

A composite action is a list of independent parts; all of its samples lie side by side in one `raw` array and all of
its parameters side by side in one `outputs` array, so log-probabilities and entropies of the parts add up.

Axes: M steps, K network outputs, W columns of a raw action, S standard deviations, n categories or dimensions of a
part.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

Kind = Literal["categorical", "bernoulli", "gaussian", "tanh_gaussian"]
Floats = NDArray[np.floating[Any]]
SMALLEST_STD = 1e-4
"""The standard deviation is exp(ρ) + this: however hard a gradient pushes ρ down, it stays above 0."""
LOG_2 = math.log(2.0)
HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


@dataclass(frozen=True, slots=True)
class Part:
    """One independent part of an action.

    | kind | size | outputs | raw | action |
    |---|---|---|---|---|
    | `categorical` | n categories | n logits | its index | index |
    | `bernoulli` | n bits | n logits | n zeros and ones | the same |
    | `gaussian` | n dimensions | n means | n numbers | clipped to `low`, `high` |
    | `tanh_gaussian` | n dimensions | n means before tanh | n numbers before tanh | low + (tanh + 1)(high − low)/2 |

    `low` and `high` `[n]` are the bounds of Gaussian parts. Each Gaussian dimension has one standard deviation
    that does not depend on the observation.
    """

    kind: Kind
    size: int
    low: Floats | None = None
    high: Floats | None = None

    def __post_init__(self) -> None:
        """Refuse bounds that a squashed Gaussian cannot be scaled to."""
        if self.kind == "tanh_gaussian":
            bounds = (self.low, self.high)
            if any(b is None or not np.isfinite(b).all() for b in bounds):
                raise ValueError(
                    "a tanh-squashed Gaussian needs finite bounds in every dimension of the action; "
                    "use 'gaussian' for a space that is not bounded"
                )

    @property
    def width(self) -> int:
        """Columns of `raw` that the part takes."""
        return 1 if self.kind == "categorical" else self.size

    @property
    def stds(self) -> int:
        """Standard deviations that the part has."""
        return self.size if self.kind in ("gaussian", "tanh_gaussian") else 0


class Place(NamedTuple):
    """A part with the columns it takes of `outputs`, `raw` and the standard deviations."""

    part: Part
    outputs: slice
    raw: slice
    stds: slice


@dataclass(frozen=True)
class Distribution:
    """The joint distribution of independent `parts`."""

    parts: tuple[Part, ...]

    @cached_property
    def outputs(self) -> int:
        """K, the number of network outputs that parametrise an action."""
        return sum(part.size for part in self.parts)

    @cached_property
    def width(self) -> int:
        """W, the number of columns of a raw action."""
        return sum(part.width for part in self.parts)

    @cached_property
    def stds(self) -> int:
        """S, the number of standard deviations."""
        return sum(part.stds for part in self.parts)

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """Every part with its columns."""
        found: list[Place] = []
        k = w = s = 0
        for part in self.parts:
            columns = slice(k, k + part.size), slice(w, w + part.width), slice(s, s + part.stds)
            found.append(Place(part, *columns))
            k, w, s = k + part.size, w + part.width, s + part.stds
        return tuple(found)

    def noise(self, rows: int, stream: np.random.Generator) -> Floats:
        """What `sample` turns into actions, `[rows, W]` float32: uniform in [0, 1) or standard normal."""
        if self.stds == self.width:
            return stream.standard_normal((rows, self.width), dtype=np.float32)
        noise = stream.random((rows, self.width), dtype=np.float32)
        if self.stds:
            for place in self.places:
                if place.part.stds:
                    noise[:, place.raw] = stream.standard_normal((rows, place.part.width), dtype=np.float32)
        return noise

    def sample(
        self, outputs: Tensor, log_std: Tensor, noise: Floats | None, mask: Tensor | None = None
    ) -> Tensor:
        """Raw actions `[M, W]` from `outputs` `[M, K]` and `noise` `[M, W]`; the mode where `noise` is None.

        The mode of a squashed Gaussian is taken before tanh. `mask` `[M, K]` bool: False forbids.
        """
        raw = outputs.new_empty(len(outputs), self.width)
        for place in self.places:
            given = outputs[:, place.outputs]
            allowed = None if mask is None else mask[:, place.outputs]
            drawn = None if noise is None else torch.from_numpy(noise[:, place.raw]).to(outputs.device)
            if place.part.kind == "categorical":
                raw[:, place.raw] = _sample_categorical(given, allowed, drawn)[:, None].to(raw)
            elif place.part.kind == "bernoulli":
                chance = torch.sigmoid(given)
                bits = chance > 0.5 if drawn is None else drawn < chance
                raw[:, place.raw] = (bits if allowed is None else bits & allowed).to(raw)
            else:
                raw[:, place.raw] = (
                    given if drawn is None else given + standard_deviation(log_std[place.stds]) * drawn
                )
        return raw

    def score(
        self, outputs: Tensor, log_std: Tensor, raw: Tensor, mask: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Log-probability and entropy `[M]` of `raw` `[M, W]`, summed over the parts.

        Bernoulli and categorical parts have probabilities, Gaussian parts densities: of the raw action for
        `gaussian`, of the action in the environment's units for `tanh_gaussian`.
        """
        logp = outputs.new_zeros(len(outputs))
        entropy = outputs.new_zeros(len(outputs))
        for place in self.places:
            given, taken = outputs[:, place.outputs], raw[:, place.raw]
            allowed = None if mask is None else mask[:, place.outputs]
            kind = place.part.kind
            if kind == "categorical":
                one = categorical(given, taken[:, 0].long(), allowed)
            elif kind == "bernoulli":
                one = bernoulli(given, taken, allowed)
            elif kind == "gaussian":
                one = gaussian(given, log_std[place.stds], taken)
            else:
                assert place.part.low is not None
                assert place.part.high is not None
                half = torch.as_tensor((place.part.high - place.part.low) / 2).to(given)
                one = tanh_gaussian(given, log_std[place.stds], taken, half)
            logp, entropy = logp + one[0], entropy + one[1]
        return logp, entropy

    def actions(self, raw: Floats) -> list[NDArray[Any]]:
        """What each part means for the environment: index `[M]` int64, bits `[M, n]`, bounded numbers `[M, n]`."""
        found: list[NDArray[Any]] = []
        for place in self.places:
            part, taken = place.part, raw[:, place.raw]
            if part.kind == "categorical":
                found.append(taken[:, 0].astype(np.int64))
            elif part.kind == "bernoulli":
                found.append(taken.astype(np.int64))
            elif part.kind == "gaussian":
                found.append(taken if part.low is None else np.clip(taken, part.low, part.high))
            else:
                assert part.low is not None
                assert part.high is not None
                squashed = part.low + (np.tanh(taken) + 1) * ((part.high - part.low) / 2)
                found.append(np.clip(squashed, part.low, part.high))
        return found


def standard_deviation(log_std: Tensor) -> Tensor:
    """σ = exp(ρ) + `SMALLEST_STD`: positive for every ρ."""
    return log_std.exp() + SMALLEST_STD


def _allowed_logits(logits: Tensor, allowed: Tensor | None) -> Tensor:
    """The logits with −∞ where an action is forbidden."""
    return logits if allowed is None else logits.masked_fill(~allowed, -torch.inf)


def _sample_categorical(logits: Tensor, allowed: Tensor | None, uniform: Tensor | None) -> Tensor:
    """Index `[M]` by inversion: the first category whose cumulative weight exceeds `uniform` × the total.

    Sums run over weights exp(l − max l), so a forbidden category, whose weight is 0, is never the first.
    """
    logits = _allowed_logits(logits, allowed)
    if uniform is None:
        return logits.argmax(dim=1)
    weights = (logits - logits.amax(dim=1, keepdim=True)).exp()
    total = weights.cumsum(dim=1)
    chosen = (total <= uniform * total[:, -1:]).sum(dim=1)
    # Rounding can carry uniform × total up to the total: then it is the last category with any weight.
    last = weights.shape[1] - 1 - (weights > 0).flip(1).to(torch.uint8).argmax(dim=1)
    return torch.minimum(chosen, last)


def categorical(logits: Tensor, index: Tensor, allowed: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Give log π(index) = l_index − log Σ_j exp l_j and H = −Σ_j π_j log π_j, `[M]`; forbidden j have π_j = 0."""
    logp = torch.log_softmax(_allowed_logits(logits, allowed), dim=1)
    finite = logp if allowed is None else torch.where(allowed, logp, 0.0)
    entropy = -(logp.exp() * finite).sum(dim=1)
    return logp.gather(1, index[:, None])[:, 0], entropy


def bernoulli(logits: Tensor, bits: Tensor, allowed: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Σ over bits of b·l − softplus(l) and of the entropy softplus(l) − l·σ(l), `[M]`; forbidden bits are 0."""
    total = F.softplus(logits)
    logp, entropy = bits * logits - total, total - logits * torch.sigmoid(logits)
    if allowed is not None:
        logp, entropy = torch.where(allowed, logp, 0.0), torch.where(allowed, entropy, 0.0)
    return logp.sum(dim=1), entropy.sum(dim=1)


def gaussian(mean: Tensor, log_std: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Σ −½((x − μ)/σ)² − log σ − ½ log 2π and H = Σ ½ + ½ log 2π + log σ, `[M]`, with σ of `log_std` `[n]`."""
    std = standard_deviation(log_std)
    log = std.log() + HALF_LOG_2PI
    logp = (-0.5 * ((x - mean) / std).square() - log).sum(dim=1)
    return logp, (log + 0.5).sum().expand(len(mean))


def tanh_gaussian(mean: Tensor, log_std: Tensor, u: Tensor, half: Tensor) -> tuple[Tensor, Tensor]:
    """Log-density and entropy `[M]` of a = centre + half·tanh(u), u ~ N(μ, σ²), `half` `[n]`.

    log π(a) = log N(u) − Σ log da/du with log da/du = log half + 2(log 2 − u − softplus(−2u)), exact at
    saturation. The entropy H[N] + E log da/du has no closed form: it is estimated with the sample itself,
    rewritten as u = μ + σz with z held constant, so that its gradient is an unbiased one while μ and σ are
    those that sampled u.
    """
    logp, entropy = gaussian(mean, log_std, u)
    std = standard_deviation(log_std)
    moving = mean + std * ((u - mean) / std).detach()
    return logp - _log_slope(u, half), entropy + _log_slope(moving, half)


def _log_slope(u: Tensor, half: Tensor) -> Tensor:
    """Σ log d(half·tanh u)/du `[M]`."""
    return (half.log() + 2 * (LOG_2 - u - F.softplus(-2 * u))).sum(dim=1)
