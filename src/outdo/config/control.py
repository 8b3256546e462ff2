"""Recipes of control runs: an environment, a small network, RL stages of environments × steps."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from outdo.config import common
from outdo.config.common import (
    Algorithm,
    Count,
    Name,
    Options,
    Positive,
    Recipe,
    Section,
    StageConfig,
)


class EnvConfig(Section, frozen=True):
    """The environment to act in."""

    id: str = Field(
        description="A Gymnasium id, or 'module:function': one that makes an environment, or with a parameter "
        "`num_envs` a vector environment."
    )
    arguments: Options = Field(
        default_factory=Options, description="Keyword arguments of the environment or the function."
    )
    backend: Literal["gymnasium", "sync", "async", "envpool"] = Field(
        "gymnasium",
        description="'gymnasium': the id's own vector environment where it has one, else copies in turn; 'sync': "
        "copies in turn; 'async': a process per copy; 'envpool': EnvPool's (extra `envpool`).",
    )
    vector: Options = Field(
        default_factory=Options, description="Settings of Gymnasium's vectoriser, or of EnvPool."
    )
    scale_reward: bool = Field(
        False, description="Divide rewards by the running deviation of the discounted return, in training."
    )
    clip_reward: float | None = Field(
        None, gt=0, description="scale_reward: bound of the scaled reward's size; left out: none."
    )


class ControlPolicyConfig(Section, frozen=True):
    """The network to train."""

    kind: Literal["mlp", "cnn", "gru"] = Field(
        description="'mlp' for features, 'cnn' for an image, 'gru' for features with a memory."
    )
    path: str = Field(
        "", description="A policy folder of an earlier run to begin with; left out: random weights."
    )
    hidden: list[Positive] = Field([64, 64], description="Units of the hidden layers.")
    activation: Literal["tanh", "relu"] = Field("tanh", description="Activation of the hidden layers.")
    critic: Literal["separate", "shared", "none"] = Field(
        "separate", description="Critic as a network of its own, as a further output, or none."
    )
    box: Literal["gaussian", "tanh"] = Field(
        "gaussian", description="Distribution of continuous actions; 'tanh' squashes it into the bounds."
    )
    log_std: float = Field(
        0.0, description="Continuous actions: logarithm of the initial standard deviation."
    )
    memory: Positive = Field(64, description="gru: units of the memory.")
    normalise: bool = Field(False, description="Normalise observations by running mean and deviation.")
    device: str = Field("cpu", description="'cpu', 'cuda', 'cuda:1'.")


class ControlStage(StageConfig, frozen=True):
    """Reinforcement learning in the environment."""

    kind: Literal["rl"] = Field("rl", description="Kind of the stage.")
    name: Name = "rl"
    algorithm: Algorithm = "ppo"
    envs: Positive = Field(8, description="Copies of the environment that step together.")
    horizon: Positive = Field(
        128, description="Steps of each copy per update, so that an update learns from envs × horizon steps."
    )
    episodes: Count = Field(
        0,
        description="Whole episodes per update, one of each of as many copies, in place of `envs` windows of "
        "`horizon` steps; 0: windows.",
    )
    group: Positive = Field(1, description="episodes: how many of them begin in the same state.")
    learning_rate: float = Field(3e-4, ge=0, description="Highest learning rate.")
    betas: tuple[float, float] = Field((0.9, 0.999), description="Decay of AdamW's first and second moments.")
    eps: float = Field(1e-5, gt=0, description="AdamW's epsilon.")
    micro_batch_tokens: Positive = Field(
        65536, description="Steps computed at once: memory and speed, never the gradient."
    )

    @model_validator(mode="after")
    def _episodes_divide(self) -> ControlStage:
        if self.group > 1 and (not self.episodes or self.episodes % self.group):
            raise ValueError(
                f"group = {self.group} needs whole episodes, a multiple of it per update: got {self.episodes}"
            )
        return self


class ControlEvaluationConfig(common.EvaluationConfig, frozen=True):
    """Evaluation by whole episodes, with the environment's own reward."""

    episodes: Positive = Field(100, description="Episodes; how many each copy plays is fixed in advance.")
    envs: Positive = Field(10, description="Copies of the environment that step together.")
    sampled: bool = Field(
        True, description="Play sampled actions too, besides the most likely ones; as many episodes each."
    )
    arguments: Options = Field(
        default_factory=Options,
        description="Arguments of the environment that differ in evaluation: the fixed opponent of a game.",
    )
    video: Count = Field(0, description="Episodes to record as video at each evaluation (extra `video`).")


class ControlCheckpointConfig(common.CheckpointConfig, frozen=True):
    """When to save, and what to keep."""

    best_by: str = Field(
        "deterministic/return",
        description="Evaluation metric whose highest value marks the best; empty: none.",
    )


class ControlRecipe(Recipe, frozen=True):
    """A whole control run."""

    wing: ClassVar[str] = "outdo.control.build"

    threads: Positive | None = Field(
        1, description="CPU threads of torch; small networks gain nothing by more."
    )
    env: EnvConfig = Field(description="The environment to act in.")
    policy: ControlPolicyConfig = Field(description="The network to train.")
    stage: list[ControlStage] = Field(min_length=1, description="Stages in the order they run.")
    evaluation: ControlEvaluationConfig | None = Field(None, description="Left out: no evaluation.")
    checkpoint: ControlCheckpointConfig = Field(
        default_factory=lambda: ControlCheckpointConfig.model_validate({}),
        description="When to save, and what to keep.",
    )

    def fits(self, stage: StageConfig) -> tuple[int, bool]:
        """Episodes per start state of a stage, and whether the network has a critic."""
        return (stage.group if isinstance(stage, ControlStage) else 1), self.policy.critic != "none"
