"""Recipes of driving runs: a policy over scenes, generated or real ones, imitation and RL stages, closed-loop tests."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Discriminator, Field, field_validator, model_validator

from outdo.config import common
from outdo.config.common import Algorithm, Count, Name, Positive, Recipe, Section, StageConfig
from outdo.core.calls import nearest

Share = Annotated[float, Field(ge=0, le=1)]
Weight = Annotated[float, Field(ge=0)]


class DrivingPolicyConfig(Section, frozen=True):
    """The policy to train: a scene encoder before a causal decoder."""

    kind: Literal["driving"] = Field(
        description="What acts: 'driving', a policy that writes a trace and a trajectory."
    )
    path: str = Field(
        "",
        description="A policy folder of an earlier run to begin with, which then says how large the policy is; left "
        "out: random weights.",
    )
    hidden: Positive = Field(128, description="Hidden units of encoder and decoder.")
    layers: Positive = Field(4, description="Layers of the decoder.")
    heads: Positive = Field(4, description="Attention heads of each.")
    hold: Literal[1, 2, 4, 8, 16] = Field(
        8,
        description="Ticks of 0.1 s that a pair of control tokens holds: 8 makes 16 tokens, 1 the full 128.",
    )
    acceleration_bins: Positive = Field(99, description="Acceleration tokens, from -9.8 to 9.8 m/s²; odd.")
    curvature_bins: Positive = Field(401, description="Curvature tokens, from -0.2 to 0.2 1/m; odd.")
    value_head: bool = Field(False, description="Add a critic: a linear value head on the hidden states.")
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="Compute precision over float32 master weights; 'auto': bfloat16 where it gains."
    )
    device: str = Field("auto", description="'auto' takes a GPU if there is one; or 'cpu', 'cuda', 'cuda:1'.")


class FlawsConfig(Section, frozen=True):
    """Share of demonstrations with each flaw, drawn independently."""

    late_braking: Share = Field(0.35, description="Nothing is done until 2.5 to 4.5 m/s² are needed.")
    small_gaps: Share = Field(0.3, description="Headway, gap, clearance and crossing margin are too small.")
    wrong_reason: Share = Field(
        0.2, description="On one axis decision and cause are those of another demonstration."
    )
    missing_reason: Share = Field(0.1, description="Decisions are given without causes.")


class DrivingTaskConfig(Section, frozen=True):
    """The scenes to drive in, and how the demonstrations are flawed."""

    scenes: Positive = Field(1000, description="Training scenes generated, or of the files at most.")
    states: Positive = Field(
        2,
        description="Moments of each training scene that answers begin at, in turn of its own log and of a drive by a "
        "flawed driver with unsteady hands.",
    )
    seed: Count = Field(0, description="Seed of generated scenes; that of the run does not change them.")
    situations: list[str] = Field(
        default_factory=list[str], description="Situations in turn, by name; empty: all ten."
    )
    files: list[str] = Field(
        default_factory=list[str],
        description="Real training scenes in place of generated ones: CommonRoad .xml files, folders of Argoverse 2 "
        "logs, or folders of these.",
    )
    held_out_files: list[str] = Field(
        default_factory=list[str], description="The same for evaluation; left out: generated scenes."
    )
    flaws: FlawsConfig = Field(
        default_factory=lambda: FlawsConfig.model_validate({}), description="Flaws of the demonstrations."
    )

    @field_validator("situations")
    @classmethod
    def _situations_exist(cls, names: list[str]) -> list[str]:
        from outdo.driving.situations import SITUATIONS

        for name in names:
            if name not in SITUATIONS:
                raise ValueError(f"unknown situation {name!r}; {nearest(name, SITUATIONS)}")
        return names

    @model_validator(mode="after")
    def _files_are_apart(self) -> DrivingTaskConfig:
        if both := sorted(set(self.files) & set(self.held_out_files)):
            raise ValueError(f"{both[0]!r} is both a training file and held out")
        return self


class DrivingRewardConfig(Section, frozen=True):
    """Weight of each term; one that is not named is off, and computed for the log alone."""

    quality: Weight = Field(0.0, description="Reasoning quality, 0 to 5: by rules, or by `[judge]`.")
    consistency: Weight = Field(0.0, description="1 where words and trajectory agree on both axes.")
    l2: Weight = Field(0.0, description="Taken off: d/(d + 2 m) of the mean distance d from the expert.")
    lag: Weight = Field(0.0, description="Taken off: share of the expert's progress that is missing.")
    hesitation: Weight = Field(
        0.0, description="Taken off: u/(u + 2 m/s) of the speed u missing to the expert's after 0.8 s."
    )
    collision: Weight = Field(0.0, description="Taken off: 1 for a contact.")
    jerk: Weight = Field(0.0, description="Taken off: j/(j + 4.13 m/s³) of the mean jerk j.")
    close_encounter: Weight = Field(
        0.0, description="Taken off: 1 for a gap under 0.5 m, or 0.9 s to a contact, while moving."
    )
    off_road: Weight = Field(0.0, description="Taken off: 1 for a corner off the drivable area.")
    infeasible: Weight = Field(0.0, description="Taken off: share of ticks that no car could drive.")

    @model_validator(mode="after")
    def _something_counts(self) -> DrivingRewardConfig:
        if not any(self.model_dump().values()):
            raise ValueError("all weights are 0: give at least one term a weight")
        return self


def _all_terms() -> DrivingRewardConfig:
    return DrivingRewardConfig(
        quality=0.2,
        consistency=1,
        l2=1,
        lag=1,
        hesitation=1,
        collision=1,
        jerk=0.2,
        close_encounter=1,
        off_road=1,
        infeasible=1,
    )


class JudgeConfig(Section, frozen=True):
    """A language model that grades the reasoning, in place of the rules."""

    base_url: str = Field(description="Server that speaks OpenAI's protocol, up to before /chat/completions.")
    model: str = Field(description="The model, as the server calls it.")
    key_variable: str = Field("", description="Environment variable with the key; empty: none is sent.")
    seconds: float = Field(20.0, gt=0, description="Time limit of a request.")
    parallel: Positive = Field(8, description="Requests that are open at once.")


class DrivingSftStage(StageConfig, frozen=True):
    """Imitation: maximise the likelihood of demonstrations."""

    kind: Literal["sft"] = Field("sft", description="Kind of the stage.")
    name: Name = "sft"
    algorithm: Algorithm = "sft"
    batch: Positive = Field(32, description="Demonstrations per update.")
    learning_rate: float = Field(1e-3, ge=0, description="Highest learning rate.")


class DrivingRlStage(StageConfig, frozen=True):
    """Reinforcement learning on answers, driven without replanning."""

    kind: Literal["rl"] = Field("rl", description="Kind of the stage.")
    name: Name = "rl"
    algorithm: Algorithm = "grpo"
    scenes: Positive = Field(16, description="Scene states per update.")
    group: Positive = Field(8, description="Answers per state.")
    temperature: float = Field(
        1.0, gt=0, description="Sampling temperature; also of the trained distribution."
    )
    max_tokens: Count = Field(0, description="Longest answer; 0: the longest that is well-formed.")
    reactive: bool = Field(
        False, description="Other vehicles brake for the ego; else they are replayed from the log."
    )
    visited: Share = Field(
        0.0,
        description="Share of the states that the policy itself drives to; the others are of the examples.",
    )
    choose: Literal["random", "disagreement"] = Field(
        "random",
        description="'disagreement': a `share` of the scenes are those where policy and reward differed most.",
    )
    share: Share = Field(0.5, description="disagreement: share of scenes; the others are random.")
    candidates: Positive = Field(
        4, description="disagreement: scenes measured before, from which each is chosen."
    )
    beta: float = Field(1.0, gt=0, description="disagreement: sharpness β of softmax(β·reward).")
    by_length: bool = Field(
        True, description="disagreement: likelihoods of answers per token; false: of whole answers."
    )
    reward: DrivingRewardConfig | None = Field(
        None, description="Weights of this stage alone; left out: those of the recipe."
    )
    learning_rate: float = Field(3e-4, ge=0, description="Highest learning rate.")


Stage = Annotated[DrivingSftStage | DrivingRlStage, Discriminator("kind")]


class DrivingEvaluationConfig(common.EvaluationConfig, frozen=True):
    """Closed-loop evaluation on held-out scenes; never by the training reward."""

    scenes: int = Field(500, ge=2, description="Held-out scenes.")
    split: Literal["validation", "test"] = Field("validation", description="Split of generated ones.")
    replan: Positive = Field(5, le=5, description="Steps of 0.1 s between two plans.")
    reactive: bool = Field(True, description="Other vehicles react to the ego; else they are replayed.")
    temperature: float = Field(0.0, ge=0, description="Of the plans; 0: the most likely ones.")
    samples: Count = Field(0, description="Plans sampled per scene for plan/min_ade; 0: none.")


class DrivingCheckpointConfig(common.CheckpointConfig, frozen=True):
    """When to save, and what to keep."""

    best_by: str = Field(
        "drive/alpasim", description="Evaluation metric whose highest value marks the best; empty: none."
    )


class DrivingRecipe(Recipe, frozen=True):
    """A whole driving run."""

    wing: ClassVar[str] = "outdo.driving.build"

    policy: DrivingPolicyConfig = Field(description="The policy to train.")
    task: DrivingTaskConfig = Field(
        default_factory=lambda: DrivingTaskConfig.model_validate({}), description="The scenes to drive in."
    )
    reward: DrivingRewardConfig = Field(
        default_factory=_all_terms,
        description="Weights of the reward's terms; left out: all at their defaults.",
    )
    judge: JudgeConfig | None = Field(None, description="Left out: reasoning is graded by rules.")
    stage: list[Stage] = Field(min_length=1, description="Stages in the order they run.")
    evaluation: DrivingEvaluationConfig | None = Field(None, description="Left out: no evaluation.")
    checkpoint: DrivingCheckpointConfig = Field(
        default_factory=lambda: DrivingCheckpointConfig.model_validate({}),
        description="When to save, and what to keep.",
    )

    def fits(self, stage: StageConfig) -> tuple[int, bool]:
        """Answers per scene of a stage, and whether the policy has a critic."""
        return (stage.group if isinstance(stage, DrivingRlStage) else 1), self.policy.value_head
