"""Checks an estimator of one's own against the exact policy gradient of small environments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, Literal, cast

import torch
from torch import Tensor

from outdo.core.batch import Batch
from outdo.core.checks import only
from outdo.core.parts import Advantage
from outdo.core.statistics import Interval
from outdo.lab.exact import tabular
from outdo.lab.exact.bandit import Bandit
from outdo.lab.exact.grid import GridWorld
from outdo.lab.exact.sequences import Sequences
from outdo.lab.exact.tabular import Exact

Kind = Literal["advantage", "gradient"]
ARITHMETIC = 1e-9
"""What float64 arithmetic may add to a difference without chance."""


class EstimatorError(ValueError):
    """The estimator cannot be checked: it raised, or returned something that is no estimate."""


def exact_environments() -> dict[str, Exact]:
    """Those that `check_estimator` uses: a bandit, token sequences, a grid world with a right and a wrong critic."""
    grid = GridWorld(horizon=8)
    return {
        "bandit": Bandit((0.2, 0.5, 0.8, 0.3), noise=0.3),
        "token sequences": Sequences(((0, 1, 2), (2, 2, 1)), actions=3),
        "grid world": grid,
        "grid world, wrong critic": tabular.Misjudged(grid, (0.8, -0.8, 0.8, -0.8)),
    }


@dataclass(frozen=True, slots=True)
class Case:
    """What was found in one environment; S states, A actions.

    The mean estimate is split as `scale` · ∇J + a part sideways to it. `exact`, `mean`, `error` (standard
    error of the mean) and `variance` (of one batch's estimate) are `[S, A]`; `bias` is mean − exact.
    `right`, `wrong`: parameters whose sign is so beyond their interval. `margin`: standard errors that the
    intervals of all parameters of the report hold together.
    """

    environment: str
    exact: Tensor
    mean: Tensor
    error: Tensor
    variance: Tensor
    total_variance: Interval
    scale: Interval
    cosine: Interval
    right: int
    wrong: int
    margin: float
    ok: bool
    verdict: str

    @property
    def bias(self) -> Tensor:
        """Mean estimate − exact gradient, `[S, A]`."""
        return self.mean - self.exact

    def __str__(self) -> str:
        """Verdict, scale, bias, variance and sign, in five lines."""
        worst = int((self.bias.abs() / (self.error + ARITHMETIC)).argmax())
        state, action = divmod(worst, self.exact.shape[1])
        count = self.exact.numel()
        return "\n".join(
            (
                f"{self.environment}: {self.verdict}",
                f"  scale     {_interval(self.scale)} times the exact gradient",
                f"  bias      {float(self.bias.norm()):.3g} of {float(self.exact.norm()):.3g}; the clearest in state "
                f"{state}, action {action}: {float(self.bias.flatten()[worst]):+.3g} ± "
                f"{self.margin * float(self.error.flatten()[worst]):.2g}",
                f"  variance  {_interval(self.total_variance)}, summed over {count} parameters",
                f"  sign      right in {self.right}, wrong in {self.wrong}, open in {count - self.right - self.wrong}; "
                f"cosine with the exact gradient {_interval(self.cosine)}",
            )
        )


@dataclass(frozen=True, slots=True)
class Report:
    """The cases of a check; `notes` are findings that belong to no environment. `print` it."""

    name: str
    kind: Kind
    settings: str
    cases: tuple[Case, ...]
    notes: tuple[str, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether the estimator is unbiased everywhere, as far as the intervals tell, and nothing was noted."""
        return all(case.ok for case in self.cases) and not self.notes

    def __str__(self) -> str:
        """Every case in words and numbers, and the verdict."""
        head = f"{self.name}, checked as {self.kind} estimator: {self.settings}"
        failed = [case.environment for case in self.cases if not case.ok] or ["see the note"]
        end = "ok: unbiased within the intervals" if self.ok else f"NOT ok: {'; '.join(failed)}"
        return "\n".join((head, *map(str, self.cases), *self.notes, end))


def check_estimator(
    fn: Callable[..., Any] | Advantage,
    *,
    kind: Kind | None = None,
    environments: Mapping[str, Exact] | None = None,
    group: int = 4,
    groups: int = 2,
    batches: int = 2_000,
    confidence: float = 0.99,
    seed: int = 0,
) -> Report:
    """Compare an estimator's mean over many batches with the exact gradient of small environments.

    `fn` is an advantage part, a function of a `Batch` that gives advantages `[B, T]`, or a function of
    (batch, logits) that gives a gradient `[S, A]`: the direction to climb, summed over the steps of a row and
    averaged over rows. Its log-probabilities are `outdo.lab.logp(logits, batch)`. With advantages A the
    estimate is (1/B) Σ_bt A_bt ∇log π(a_bt|s_bt). `kind` None: by the number of arguments.

    Every batch holds `groups` groups of `group` episodes, with a critic in `value` and `next_value`. The
    intervals hold together with `confidence`.
    Raises EstimatorError where `fn` raises or returns no finite numbers of that shape, TypeError where it is
    no function, ValueError for settings that cannot be.
    """
    if group < 1 or groups < 1 or batches < 2 or not 0 < confidence < 1:
        raise ValueError(
            "check_estimator needs group >= 1, groups >= 1, batches >= 2 and confidence in (0, 1), got "
            f"{group}, {groups}, {batches}, {confidence}"
        )
    name = getattr(fn, "__name__", type(fn).__name__)
    call, kind = _callable(fn, kind)
    worlds = exact_environments() if environments is None else environments
    if not worlds:
        raise ValueError("check_estimator needs at least one environment")
    # Per parameter its bias and its part sideways to the gradient, per environment the scale.
    comparisons = sum(2 * each.states * each.actions + 1 for each in worlds.values())
    margin = NormalDist().inv_cdf(1 - (1 - confidence) / (2 * comparisons))
    cases: list[Case] = []
    notes: list[str] = []
    for number, (where, world) in enumerate(worlds.items()):
        generator = torch.Generator().manual_seed(seed + number)
        logits = 0.5 * torch.randn(world.states, world.actions, dtype=torch.float64, generator=generator)
        batch = world.sample(logits, groups * batches, group, generator)
        pieces = [batch.select(rows) for rows in torch.arange(len(batch)).split(groups * group)]
        if kind == "gradient":
            estimates = torch.stack([_gradient(call, piece, logits, where) for piece in pieces])
        else:
            advantage = torch.cat([_advantage(call, piece, where) for piece in pieces])
            rows = tabular.reinforce_gradients(logits, batch.with_(advantage=advantage))
            estimates = rows.view(batches, groups * group, *logits.shape).mean(dim=1)
            if not notes and _carries_gradient(call, pieces[0]):
                notes.append(
                    "the advantages carry a gradient through batch.logp: hold them constant (detach), or a loss "
                    "differentiates them too"
                )
        case = _case(where, tabular.gradient(world, logits), estimates, margin, group, generator)
        if isinstance(world, tabular.Misjudged) and not case.ok and all(each.ok for each in cases):
            case = replace(
                case, verdict=f"{case.verdict}; only here: it trusts the critic, as GAE with λ < 1 does"
            )
        cases.append(case)
    settings = (
        f"{batches:,} batches of {groups} × {group} rows, intervals that hold together at {confidence:.0%}"
    )
    return Report(name, kind, settings, tuple(cases), tuple(notes))


def _callable(fn: Any, kind: Kind | None) -> tuple[Callable[..., Any], Kind]:
    """The function to call, and what it estimates."""
    if isinstance(fn, Advantage):
        part = fn
        return lambda batch: part.compute(batch, {"baseline": 0.0})[0].advantage, "advantage"
    if not callable(fn):
        raise TypeError(
            f"check_estimator needs a function of a Batch, a function of (batch, logits) or an advantage part, "
            f"got {type(fn).__name__}"
        )
    if kind is not None:
        return fn, kind
    try:
        parameters = inspect.signature(fn).parameters.values()
    except ValueError as error:
        raise TypeError(f"{fn!r} does not tell its arguments: say with kind= what it estimates") from error
    needed = [
        each
        for each in parameters
        if each.default is each.empty and each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)
    ]
    if len(needed) not in (1, 2):
        raise TypeError(
            f"an estimator takes (batch) and gives advantages, or (batch, logits) and gives a gradient; this one "
            f"needs {len(needed)} arguments: say which with kind="
        )
    return fn, "advantage" if len(needed) == 1 else "gradient"


def _called(fn: Callable[..., Any], where: str, shape: tuple[int, ...], axes: str, *given: Any) -> Tensor:
    """What `fn` returns as a float64 tensor of that shape; EstimatorError otherwise."""
    try:
        result = fn(*given)
    except Exception as error:
        raise EstimatorError(
            f"the estimator raised {type(error).__name__} on the {where}: {error}"
        ) from error
    if result is None:
        raise EstimatorError(f"the estimator returned None on the {where}: does it lack a return?")
    try:
        tensor = torch.as_tensor(result).detach().double()
    except (TypeError, ValueError, RuntimeError) as error:
        raise EstimatorError(
            f"the estimator returned {type(result).__name__} on the {where}: return a tensor {axes}"
        ) from error
    if tensor.shape != shape:
        raise EstimatorError(
            f"the estimator must return shape {axes} = {shape} on the {where}, got {tuple(tensor.shape)}"
        )
    return tensor


def _advantage(fn: Callable[..., Any], batch: Batch, where: str) -> Tensor:
    """Advantages of one batch, 0 at invalid steps; EstimatorError for a value that is not finite."""
    shape = cast("tuple[int, int]", tuple(batch.logp.shape))
    advantage = only(batch.valid, _called(fn, where, shape, "[B, T]", batch))
    if not bool(advantage.isfinite().all()):
        row, step = (~advantage.isfinite()).nonzero()[0].tolist()
        raise EstimatorError(
            f"the estimator returned {float(advantage[row, step])} on the {where}: row {row}, step {step}, "
            f"rewards of the row {batch.reward[row][batch.valid[row]].tolist()}"
        )
    return advantage


def _gradient(fn: Callable[..., Any], batch: Batch, logits: Tensor, where: str) -> Tensor:
    """The gradient from one batch; EstimatorError for a value that is not finite."""
    leaf = logits.clone().requires_grad_()
    gradient = _called(fn, where, tuple(logits.shape), "[S, A]", batch, leaf)
    if not bool(gradient.isfinite().all()):
        state, action = (~gradient.isfinite()).nonzero()[0].tolist()
        raise EstimatorError(
            f"the estimator returned {float(gradient[state, action])} on the {where}: state {state}, action {action}"
        )
    return gradient


def _carries_gradient(fn: Callable[..., Any], batch: Batch) -> bool:
    """Whether advantages are differentiable in the log-probabilities that the function is given."""
    try:
        result = fn(batch.with_(logp=batch.logp.clone().requires_grad_()))
    except RuntimeError:  # it turns log-probabilities into numbers: they carry no gradient on
        return False
    return isinstance(result, Tensor) and result.requires_grad


def _case(
    where: str, exact: Tensor, estimates: Tensor, margin: float, group: int, generator: torch.Generator
) -> Case:
    """Statistics and verdict of estimates `[N, S, A]`."""
    count = len(estimates)
    mean, spread = estimates.mean(dim=0), estimates.std(dim=0)
    error = spread / count**0.5
    along = (estimates * exact).sum(dim=(1, 2)) / exact.square().sum()
    scale = _mean_interval(along, margin)
    sideways = estimates - along[:, None, None] * exact
    turned = _beyond(sideways.mean(dim=0), sideways.std(dim=0) / count**0.5, margin)
    off = _beyond(mean - exact, error, margin)
    known = _beyond(mean, error, margin) & (exact != 0)
    right = known & (mean.sign() == exact.sign())
    squares = (estimates - mean).square().sum(dim=(1, 2)) * count / (count - 1)
    ok = not bool(off.any() | turned.any()) and _holds(scale, 1.0)
    cosine = _cosine_interval(exact, estimates, generator)
    return Case(
        environment=where,
        exact=exact,
        mean=mean,
        error=error,
        variance=spread.square(),
        total_variance=_mean_interval(squares, margin),
        scale=scale,
        cosine=cosine,
        right=int(right.sum()),
        wrong=int((known & ~right).sum()),
        margin=margin,
        ok=ok,
        verdict=_verdict(ok, scale, cosine, bool(turned.any()), group),
    )


def _verdict(ok: bool, scale: Interval, cosine: Interval, turned: bool, group: int) -> str:
    """What the numbers say."""
    if ok:
        return "unbiased within the interval"
    if scale.high < 0:
        return "wrong sign: it descends where it should climb"
    if turned and _holds(scale, 0.0):
        return "biased: it points across the exact gradient"
    if turned:
        return f"biased: it points elsewhere than the exact gradient (cosine {cosine.value:.3f})"
    if _holds(scale, 0.0):
        return "no gradient: its mean cannot be told from 0"
    if scale.value > 1:
        return f"right direction, stretched by {scale.value:.3g}"
    shrunk = f"right direction, shrunk by {scale.value:.3g}"
    if group > 1 and _holds(scale, (group - 1) / group):
        return (
            f"{shrunk}, as (G − 1)/G = {(group - 1) / group:.3g} at G = {group}: is a sample's own score part of its "
            "baseline? Leave it out, or multiply by G/(G − 1)"
        )
    return shrunk


def _beyond(value: Tensor, error: Tensor, margin: float) -> Tensor:
    """Where a mean differs from 0 by more than chance and arithmetic."""
    return value.abs() > margin * error + ARITHMETIC


def _holds(interval: Interval, value: float) -> bool:
    return interval.low - ARITHMETIC <= value <= interval.high + ARITHMETIC


def _mean_interval(samples: Tensor, margin: float) -> Interval:
    """Mean of `[N]` ± margin standard errors."""
    mean, error = float(samples.mean()), float(samples.std()) / len(samples) ** 0.5
    return Interval(mean, mean - margin * error, mean + margin * error)


def _cosine_interval(exact: Tensor, estimates: Tensor, generator: torch.Generator) -> Interval:
    """Cosine of the mean estimate with ∇J, with a 99 % interval by the Bayesian bootstrap (Rubin 1981)."""
    flat, truth = estimates.flatten(1), exact.flatten()
    weights = torch.empty(400, len(flat), dtype=torch.float64).exponential_(generator=generator)
    means = torch.cat([flat.mean(dim=0, keepdim=True), weights / weights.sum(dim=1, keepdim=True) @ flat])
    cosines = torch.nn.functional.cosine_similarity(means, truth[None], dim=1)
    low, high = torch.quantile(cosines[1:], torch.tensor([0.005, 0.995], dtype=torch.float64)).tolist()
    return Interval(float(cosines[0]), low, high)


def _interval(interval: Interval) -> str:
    return f"{interval.value:.3g} ({interval.low:.3g} to {interval.high:.3g})"
