"""The update of the training room for tables of logits: an algorithm's epochs and minibatches over one batch."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.optim import Optimizer

from outdo.core.algorithm import Algorithm
from outdo.core.batch import Batch
from outdo.core.protocols import Evaluation
from outdo.lab.exact import tabular
from outdo.training.update import Figures, minibatches


def update(
    algorithm: Algorithm, batch: Batch, logits: Tensor, optimiser: Optimizer, order: torch.Generator
) -> list[dict[str, float]]:
    """Make the optimiser steps of a prepared batch on `logits` `[S, A]` in place; figures of each epoch.

    They are those of `Algorithm.loss`, means over the epoch's minibatches, and besides: `loss`, `grad_norm`,
    and `zero_gradient`, the share of steps with an advantage whose loss has no gradient by autograd.
    """
    epochs = list[dict[str, float]]()
    for _ in range(algorithm.update.epochs):
        figures = Figures()
        for rows in minibatches(len(batch), algorithm.update.minibatches, order):
            piece = batch.select(rows)
            logp = tabular.logp(logits, piece)
            logp.retain_grad()
            table = torch.log_softmax(logits.detach(), dim=-1)
            entropy = -(table.exp() * table).sum(dim=-1)[piece.obs]
            loss = algorithm.loss(piece, Evaluation(logp, entropy), algorithm.counts(piece))
            optimiser.zero_grad()
            loss.total.backward()
            optimiser.step()
            one = torch.ones(())
            figures.add(
                loss.metrics
                | {
                    "loss": (loss.total.detach(), one),
                    "grad_norm": (logits.grad.norm() if logits.grad is not None else 0 * one, one),
                    "zero_gradient": (_without_gradient(logp, piece), piece.loss_mask.sum()),
                },
                loss.maxima,
            )
        epochs.append(figures.values())
    return epochs


def _without_gradient(logp: Tensor, batch: Batch) -> Tensor:
    """Number of steps that have an advantage and no gradient."""
    assert logp.grad is not None
    assert batch.advantage is not None
    return ((logp.grad == 0) & (batch.advantage != 0) & batch.loss_mask).sum()
