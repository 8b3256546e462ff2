"""What the training room knows of a policy, an environment and an evaluator: nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from torch import Tensor
from torch.nn import Parameter

from outdo.core.batch import Batch
from outdo.core.fused import Settings, Sums


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What a policy says of a batch: `logp` [B, T], `entropy` [B, T] or None, `value` [B, T] or None.

    Where `valid` is False the entries are 0 and carry no gradient.
    """

    logp: Tensor
    entropy: Tensor | None = None
    value: Tensor | None = None


@runtime_checkable
class Policy(Protocol):
    """A policy that can be trained: it evaluates batches differentiably and knows its own state."""

    def evaluate(self, batch: Batch, *, entropy: bool = False) -> Evaluation:
        """Log-probabilities of `batch.action` under the distribution it was sampled from, with gradient.

        `entropy=True` asks for an entropy that carries gradient too; without it `entropy` may still be
        given for the log (detached) where it costs nothing. `value` is given where the policy has a critic.
        """
        ...

    def micro_batches(self, batch: Batch, budget: int) -> list[Tensor]:
        """Split the rows of `batch` into pieces of at most about `budget` computed steps; a partition of the rows."""
        ...

    def named_parameters(self) -> Iterator[tuple[str, Parameter]]:
        """Trainable parameters with their names."""
        ...

    def updated(self) -> None:
        """Called after every optimiser step: refresh derived weights, drop caches."""
        ...

    def reference(self) -> Policy:
        """A frozen copy of the policy as it is now, for the KL."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Everything but the weights in files that `save` writes: RNG streams, normalisers."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo `state_dict`."""
        ...

    def save(self, folder: Path) -> None:
        """Write weights and configuration, exactly (no rounding), so that `load` gives the same policy bitwise."""
        ...

    def load(self, folder: Path) -> None:
        """Read weights that `save` wrote, in place."""
        ...


@runtime_checkable
class SelfDifferentiating(Protocol):
    """A policy that can do without autograd, whose overhead is most of the time of a small network."""

    def gradient_of(self, steps: Batch, settings: Settings) -> Callable[[Tensor], Sums] | None:
        """The gradient of the loss over some of the `steps`, `[N, 1]`, which all carry loss; None: left to autograd.

        The function takes the numbers of the steps of a minibatch, adds the gradient to that of the parameters and
        returns the sums of `kernels.surrogate`. It reads the parameters as they are when it is called.
        """
        ...


@runtime_checkable
class Environment(Protocol):
    """Where batches come from: prompts and rewards, demonstrations, scenes, Gymnasium."""

    def collect(self, policy: Any, step: int) -> Batch:
        """The batch of update `step` (0-based). With equal state, policy and step it is the same batch."""
        ...

    def metrics(self) -> dict[str, float]:
        """Figures of the last `collect` for the log (seconds, tokens, shares); names as they are logged."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Data position, RNG streams, normalisers: JSON-able values and tensors."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Undo `state_dict`."""
        ...


@dataclass(frozen=True, slots=True)
class Report:
    """Result of one held-out evaluation: scalar `metrics` (names as logged) and readable `samples`.

    `headline` names the metrics that are said in the line of progress; empty: all that have an interval.
    """

    metrics: dict[str, float]
    samples: list[dict[str, Any]] = field(default_factory=list)
    headline: tuple[str, ...] = ()


class Evaluator(Protocol):
    """Scores a policy on held-out problems; never with the training reward."""

    def __call__(self, policy: Any) -> Report:
        """Evaluate; the same policy gives the same report."""
        ...
