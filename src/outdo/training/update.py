"""One update: a collected batch becomes optimiser steps over epochs, minibatches and micro-batches."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields

import torch
from torch import Generator, Tensor
from torch.nn import Parameter
from torch.optim import AdamW

from outdo.core.algorithm import Algorithm, Loss, Number, Pair, nonfinite_rows
from outdo.core.batch import Batch
from outdo.core.fused import Sums, suits
from outdo.core.parts import Cispo, Clipped, KlInLoss, Reinforce
from outdo.core.protocols import Evaluation, Policy, SelfDifferentiating
from outdo.core.reduce import Counts
from outdo.training import optim
from outdo.training.optim import clip_gradient, gradient_norm

SURROGATE = "surrogate_loss"
"""Name of a surrogate loss in the log. Its value measures nothing: with centred advantages and ratios near 1 it
is about 0 by construction; only its gradient counts."""


class NonFiniteError(RuntimeError):
    """A number that training cannot use: the message names the rows it comes from."""


@dataclass(slots=True)
class Figures:
    """Figures of the log that add up exactly over micro-batches: means as (sum, count), and maxima."""

    means: dict[str, Pair] = field(default_factory=dict[str, Pair])
    maxima: dict[str, Number] = field(default_factory=dict[str, Number])

    def add(self, means: Mapping[str, Pair], maxima: Mapping[str, Number]) -> None:
        """Add the figures of a piece."""
        for name, (total, count) in means.items():
            old = self.means.get(name)
            self.means[name] = (total, count) if old is None else (old[0] + total, old[1] + count)
        for name, value in maxima.items():
            self.maxima[name] = _larger(self.maxima[name], value) if name in self.maxima else value

    def mean(self, name: str) -> float:
        """One of the means; 0 for a mean of nothing."""
        total, count = self.means.get(name, (0.0, 0.0))
        return float(total / count) if count > 0 else 0.0

    def values(self) -> dict[str, float]:
        """The numbers; a mean of nothing is left out."""
        means = {name: float(total / count) for name, (total, count) in self.means.items() if count > 0}
        return means | {name: float(value) for name, value in self.maxima.items()}


def _larger(one: Number, other: Number) -> Number:
    """The larger of two figures; tensors stay where they are."""
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return torch.maximum(one, other)
    return max(float(one), float(other))


def describe_rows(batch: Batch, rows: list[int]) -> str:
    """Rows by number, group and what `info` says of them; at most five."""
    parts: list[str] = []
    for row in rows[:5]:
        text = f"row {row} (group {int(batch.group[row])})"
        if batch.info:
            text += f" {str(batch.info[row])[:200]}"
        parts.append(text)
    return "; ".join(parts) + (f"; and {len(rows) - 5} more" if len(rows) > 5 else "")


def require_finite(batch: Batch) -> None:
    """Raise `NonFiniteError` where a field of the batch is not finite on a valid step."""
    for name, rows in nonfinite_rows(batch).items():
        raise NonFiniteError(
            f"{name} is not finite in {describe_rows(batch, rows)}. No update was made with this batch"
        )


def score(policy: Policy, batch: Batch, budget: int) -> Tensor:
    """Log-probabilities `[B, T]` of the whole batch under `policy`, without gradient, 0 on invalid steps."""
    logp = torch.zeros_like(batch.logp)
    with torch.no_grad():
        for rows in policy.micro_batches(batch, budget):
            logp[rows.to(logp.device)] = policy.evaluate(batch.select(rows)).logp.to(logp)
    return logp


def on_device(batch: Batch, device: torch.device) -> Batch:
    """The batch with its tensors on `device`, but for `obs` and `action`, which belong to the policy."""
    if batch.logp.device == device:
        return batch
    tensors = {item.name: getattr(batch, item.name) for item in fields(batch)}
    moved = {
        name: value.to(device)
        for name, value in tensors.items()
        if isinstance(value, Tensor) and name not in ("obs", "action")
    }
    return batch.with_(**moved)


def minibatches(rows: int, count: int, order: Generator) -> Iterator[Tensor]:
    """Split `rows` row numbers into `count` shuffled pieces whose sizes differ by one at most."""
    if count == 1:
        yield torch.arange(rows)
        return
    yield from torch.randperm(rows, generator=order).tensor_split(min(count, rows))


def rows_with_gradient(algorithm: Algorithm, batch: Batch) -> Tensor:
    """Rows `[N]` whose loss can have a gradient; the others need not be computed.

    A row carries none if all of it is masked, or if its advantage is 0 throughout and every term of the loss
    is proportional to the advantage (REINFORCE, clipped surrogate, CISPO, without KL in the loss, entropy or
    critic). The gradient is exactly that of all rows, because denominators are counted over all of them.
    """
    mask = batch.loss_mask
    proportional = isinstance(algorithm.objective, Reinforce | Clipped | Cispo) and not (
        algorithm.needs_entropy
        or algorithm.needs_critic
        or (isinstance(algorithm.kl, KlInLoss) and algorithm.needs_reference)
    )
    if proportional and batch.advantage is not None:
        mask = mask & (batch.advantage != 0)
    return mask.any(dim=1).nonzero().flatten().cpu()


@dataclass(slots=True)
class Updater:
    """Makes the optimiser steps of one stage."""

    policy: Policy
    algorithm: Algorithm
    optimiser: AdamW
    micro_batch_tokens: int
    order: Generator

    def __call__(self, batch: Batch) -> dict[str, float]:
        """All epochs and minibatches of the algorithm's schedule over `batch`; returns the metrics.

        Minibatches are drawn over rows; over single steps where the batch and the loss are stepwise
        (`Batch.steps`, `Algorithm.is_stepwise`).
        With one epoch of one minibatch and no `batch.old_logp` the ratio is formed with the trainer's own
        value of the same pass, so it is exactly 1. With more, `batch.old_logp` must have been scored before.
        Where the schedule has a `kl_stop` and the KL from the old policy exceeds it, the remaining steps are
        not made. Raises `NonFiniteError` before an optimiser step whose loss or gradient is not finite.
        """
        schedule = self.algorithm.update
        whole = batch.steps() if batch.stepwise and self.algorithm.is_stepwise else batch
        direct = self._direct(whole)
        figures, norms, clipped = Figures(), list[float](), dict[str, float]()
        seconds = 0.0
        for epoch in range(schedule.epochs):
            of_epoch, stop = Figures(), False
            for rows, (of_minibatch, loss, norm) in self._gradients(whole, direct):
                if not (math.isfinite(loss) and math.isfinite(norm)):
                    raise self._non_finite(batch, whole, rows, len(norms))
                of_epoch.add(of_minibatch.means, of_minibatch.maxima)
                stop = schedule.kl_stop is not None and of_minibatch.mean("kl_old_k3") > schedule.kl_stop
                if stop:
                    break
                norms.append(norm)
                seconds += self._step(norm)
            figures.add(of_epoch.means, of_epoch.maxima)
            if schedule.epochs > 1 and "clip_share" in of_epoch.means:
                clipped[f"clip_share/epoch_{epoch + 1}"] = of_epoch.mean("clip_share")
            if stop:
                break
        return {
            **self._labelled(figures.values()),
            **clipped,
            "grad_norm": sum(norms) / max(1, len(norms)),
            "optimiser_steps": len(norms),
            "time/optimiser": seconds,
        }

    def _direct(self, whole: Batch) -> Callable[[Tensor], Sums] | None:
        """The policy's own gradient where it has one of this loss on these steps, so that autograd is not needed."""
        settings, policy = self.algorithm.compiled, self.policy
        if not (whole.stepwise and settings is not None and isinstance(policy, SelfDifferentiating)):
            return None
        needed = (whole.logp, whole.advantage, *((whole.value, whole.target) if settings.critic else ()))
        if whole.ref_logp is not None or any(each is None for each in needed):
            return None
        return policy.gradient_of(whole, settings) if suits(*needed, whole.old_logp) else None

    def _gradients(
        self, whole: Batch, direct: Callable[[Tensor], Sums] | None
    ) -> Iterator[tuple[Tensor, tuple[Figures, float, float]]]:
        """Each minibatch of an epoch: its rows, and what `gradient` gives, its gradient being in the parameters."""
        if direct is None:
            yield from ((rows, self.gradient(minibatch)) for rows, minibatch in self._minibatches(whole))
            return
        settings = self.algorithm.compiled
        assert settings is not None
        for rows in minibatches(len(whole), self.algorithm.update.minibatches, self.order):
            self._zero()
            sums, figures = direct(rows), Figures()
            figures.add(*self.algorithm.figures(sums, gap=whole.old_logp is not None))
            yield rows, (figures, settings.total(sums, len(rows)), float(gradient_norm(self._parameters())))

    def _minibatches(self, batch: Batch) -> Iterator[tuple[Tensor, Batch]]:
        """The minibatches of one epoch with the numbers of their rows."""
        pieces = minibatches(len(batch), self.algorithm.update.minibatches, self.order)
        if not batch.stepwise:
            yield from ((rows, batch.select(rows)) for rows in pieces)
            return
        parts = list(pieces)  # shuffled once: slices cost less than selections
        shuffled, start = batch.select(torch.cat(parts)) if len(parts) > 1 else batch, 0
        for rows in parts:
            yield rows, shuffled.select(slice(start, start + len(rows)))
            start += len(rows)

    def gradient(self, minibatch: Batch) -> tuple[Figures, float, float]:
        """Put the gradient of the minibatch's loss into the parameters: figures, loss and gradient norm.

        The denominators are counted over the whole minibatch, so that the split into micro-batches changes
        nothing. The figures are those of the rows that are computed (`rows_with_gradient`).
        """
        self._zero()
        figures = Figures()
        minibatch = self.algorithm.scaled(minibatch)
        counts = self.algorithm.counts(minibatch)
        losses = [torch.zeros(())]
        for piece in self._pieces(minibatch):
            loss = self._differentiate(piece, counts)
            losses.append(loss.total.detach())
            figures.add(loss.metrics, loss.maxima)
        total = float(torch.stack([loss.to(losses[-1].device) for loss in losses]).sum())
        return figures, total, float(gradient_norm(self._parameters()))

    def _pieces(self, minibatch: Batch) -> Iterator[Batch]:
        """The micro-batches of a minibatch; the policy splits rows that differ in what they cost."""
        if minibatch.stepwise:
            rows = max(1, self.micro_batch_tokens // max(1, minibatch.logp.shape[1]))
            for start in range(0, len(minibatch), rows):
                whole = rows >= len(minibatch)
                yield minibatch if whole else minibatch.select(slice(start, start + rows))
            return
        working = minibatch.select(rows_with_gradient(self.algorithm, minibatch))
        pieces = self.policy.micro_batches(working, self.micro_batch_tokens) if len(working) else []
        yield from (working.select(rows) for rows in pieces)

    def _differentiate(self, piece: Batch, counts: Counts) -> Loss:
        """The loss of a micro-batch; its gradient is added to the parameters'."""
        loss = self._loss_of(piece, self.policy.evaluate(piece, entropy=self.algorithm.needs_entropy), counts)
        loss.total.backward()
        return loss

    def _loss_of(self, piece: Batch, evaluation: Evaluation, counts: Counts) -> Loss:
        piece = on_device(piece, evaluation.logp.device)
        if piece.old_logp is None:
            piece = piece.with_(old_logp=evaluation.logp.detach())
        return self.algorithm.loss(piece, evaluation, counts)

    def _step(self, norm: float) -> float:
        """One optimiser step; returns its seconds."""
        start = time.perf_counter()
        clip_gradient(self._parameters(), norm, self.algorithm.update.max_grad_norm)
        optim.step(self.optimiser)
        self.policy.updated()
        return time.perf_counter() - start

    def _zero(self) -> None:
        """Zero gradients in place, all of them there: the policy may keep them in a buffer of its own.

        Were one missing, AdamW would leave its parameter out of the step.
        """
        for parameter in self._parameters():
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
            else:
                parameter.grad.zero_()

    def _parameters(self) -> list[Parameter]:
        return [parameter for _, parameter in self.policy.named_parameters()]

    def _labelled(self, values: dict[str, float]) -> dict[str, float]:
        """The loss under the name that says what it is; a likelihood has no ratio, so none is shown."""
        if self.algorithm.is_surrogate:
            return {SURROGATE if name == "policy_loss" else name: value for name, value in values.items()}
        shown = {"policy_loss": "nll", "entropy": "entropy"}
        return {shown[name]: value for name, value in values.items() if name in shown}

    def _non_finite(self, batch: Batch, whole: Batch, rows: Tensor, steps: int) -> NonFiniteError:
        """Find the rows whose own loss or gradient is not finite; leaves no gradient behind.

        `rows` are those of `whole`: rows of `batch`, or its steps.
        """
        counts = self.algorithm.counts(whole.select(rows))
        bad: list[int] = []
        for row in rows.tolist():
            self._zero()
            loss = self._differentiate(whole.select(torch.tensor([row])), counts)
            if not (torch.isfinite(loss.total) and torch.isfinite(gradient_norm(self._parameters()))):
                bad.append(row)
        self._zero()
        if whole is not batch:
            of_step = batch.loss_mask.nonzero()[:, 0].tolist()
            bad = sorted({of_step[step] for step in bad})
        where = describe_rows(batch, bad) if bad else "the sum over rows that are finite one by one"
        return NonFiniteError(
            f"the loss or its gradient is not finite in {where}. The optimiser step was not made; {steps} "
            "earlier steps of this update were. Look at the rewards and log-probabilities of these rows, lower the "
            "learning rate, or resume from the last checkpoint"
        )
