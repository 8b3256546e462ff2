"""What recipes of every wing share: optimiser, algorithm, checkpoints, trackers, and the base of a recipe."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, Field, field_validator

from outdo.core.calls import nearest

Positive = Annotated[int, Field(ge=1)]
Count = Annotated[int, Field(ge=0)]
Options = dict[str, Any]


class Section(BaseModel, frozen=True, extra="forbid", validate_default=True):
    """Base of all sections: frozen, no unknown keys, defaults checked too."""


class OptimiserConfig(Section, frozen=True):
    """AdamW and the learning rate of a stage."""

    learning_rate: float = Field(2e-5, ge=0, description="Highest learning rate.")
    betas: tuple[float, float] = Field((0.9, 0.99), description="Decay of AdamW's first and second moments.")
    eps: float = Field(1e-8, gt=0, description="AdamW's epsilon.")
    weight_decay: float = Field(0.0, ge=0, description="Decoupled weight decay; never on norms and biases.")
    warmup: Count = Field(0, description="Steps over which the rate climbs linearly from 0.")
    schedule: Literal["constant", "linear", "cosine"] = Field(
        "constant", description="Course after the warm-up."
    )
    final_share: float = Field(
        0.0, ge=0, le=1, description="linear, cosine: rate of the last step as a share of learning_rate."
    )
    micro_batch_tokens: Positive = Field(
        4096, description="Tokens computed at once, prompts included: memory and speed, never the gradient."
    )


Algorithm = Annotated[
    str | Options,
    Field(
        description="A preset (see `outdo algorithms`), or a table: 'preset' to start from, and what to "
        "change of advantage, objective, kl, update, gamma, value_coefficient, value_clip, entropy_coefficient."
    ),
]
Name = Annotated[str, Field(pattern=r"^[A-Za-z][\w-]*$", description="Its name in logs and overrides.")]


class StageConfig(OptimiserConfig, frozen=True):
    """What the training room needs of any stage; each kind brings `kind`, `name` and `algorithm` with defaults."""

    kind: str = Field(description="Kind of the stage.")
    name: Name
    steps: Count = Field(description="Updates.")
    algorithm: Algorithm
    start: str = Field(
        "",
        description="Earlier stage that it begins from, by name, as that one ended; left out: the one before.",
    )


class CheckpointConfig(Section, frozen=True):
    """When to save, and what to keep."""

    every: Count = Field(0, description="Updates between checkpoints; 0: only at the end of each stage.")
    keep: Positive = Field(1, description="How many of the newest stay; the best stays besides.")
    best_by: str = Field(
        "greedy/accuracy", description="Evaluation metric whose highest value marks the best; empty: none."
    )


class TrackerConfig(Section, frozen=True):
    """Somewhere metrics go besides the run folder."""

    kind: Literal["tensorboard", "wandb", "trackio", "mlflow"] = Field(description="Which tracker.")
    options: Options = Field(default_factory=Options, description="Passed to it as they are.")


class EvaluationConfig(Section, frozen=True):
    """Evaluation before, during and after the stages; never by the training reward."""

    every: Count = Field(0, description="Updates between evaluations; 0: only at the ends of stages.")


class Recipe(Section, ABC, frozen=True):
    """A whole run. What acts, and on what, stands in the recipe of a wing."""

    wing: ClassVar[str]
    """Module that builds the parts of a run; imported when it is needed."""

    seed: int = Field(0, ge=0, description="Seed of every random stream of the run.")
    threads: Positive | None = Field(None, description="CPU threads of torch; left out: torch decides.")
    stage: Sequence[StageConfig] = Field(min_length=1, description="Stages in the order they run.")
    evaluation: EvaluationConfig | None = Field(None, description="Left out: no evaluation.")
    checkpoint: CheckpointConfig = Field(
        default_factory=lambda: CheckpointConfig.model_validate({}),
        description="When to save, and what to keep.",
    )
    tracker: list[TrackerConfig] = Field(default_factory=list[TrackerConfig], description="Trackers.")

    @field_validator("stage")
    @classmethod
    def _names_are_right(cls, stages: Sequence[StageConfig]) -> Sequence[StageConfig]:
        names = [stage.name for stage in stages]
        for name in names:
            if names.count(name) > 1:
                raise ValueError(f"two stages are called {name!r}: give each a 'name' of its own")
        for place, stage in enumerate(stages):
            if stage.start and stage.start not in names[:place]:
                hint = nearest(stage.start, names[:place])
                raise ValueError(f"{stage.name}.start names no earlier stage: {stage.start!r}; {hint}")
        return stages

    @abstractmethod
    def fits(self, stage: StageConfig) -> tuple[int, bool]:
        """Samples per group of a stage, and whether the policy has a critic: what an algorithm is checked against."""
