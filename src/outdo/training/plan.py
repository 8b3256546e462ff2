"""What a run is told and where it stands: stages, settings, position, result."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from outdo.core.algorithm import Algorithm
from outdo.core.protocols import Environment
from outdo.training.optim import OptimiserSettings


@dataclass(frozen=True, slots=True)
class Stage:
    """A stage of a run: `steps` updates by one algorithm on batches of one environment.

    It goes on with the policy that the stage before left, or with that which the earlier stage `start` left.
    """

    name: str
    environment: Environment
    algorithm: Algorithm
    steps: int
    optimiser: OptimiserSettings = field(default_factory=OptimiserSettings)
    micro_batch_tokens: int = 4096
    start: str | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """When a run evaluates and saves.

    `evaluate_every` and `checkpoint_every` count updates of a stage; 0 leaves only the start and the end of
    each stage (evaluation), its end (checkpoint). `keep` is how many checkpoints stay by number; the one with
    the highest `best_by` (a metric of the evaluator) stays besides.
    """

    seed: int = 0
    evaluate_every: int = 0
    checkpoint_every: int = 0
    keep: int = 1
    best_by: str | None = None

    def __post_init__(self) -> None:
        """Refuse settings that would keep nothing."""
        if self.keep < 1:
            raise ValueError(f"keep must be at least 1 checkpoint, got {self.keep}")
        if self.evaluate_every < 0 or self.checkpoint_every < 0:
            raise ValueError(
                "evaluate_every and checkpoint_every must be at least 0 (0: only at the ends of stages)"
            )


@dataclass(slots=True)
class Position:
    """Where a run stands; all of it is in every checkpoint."""

    stage: int = 0
    step: int = 0
    total: int = 0
    evaluated: int = -1
    best: float | None = None
    best_step: int | None = None
    rows: int = 0
    tokens: int = 0

    def state_dict(self) -> dict[str, Any]:
        """The fields by name."""
        return {name: getattr(self, name) for name in self.__slots__}


@dataclass(frozen=True, slots=True)
class Result:
    """How a run ended: `finished`, or stopped by the signal `interrupted_by` with everything saved."""

    folder: Path
    finished: bool
    steps: int
    interrupted_by: str | None
    best: float | None
    best_step: int | None
