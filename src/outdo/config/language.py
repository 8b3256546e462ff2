"""Recipes of language runs: a causal model, prompts with answers, a reward, imitation and RL stages."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Discriminator, Field, model_validator

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


class LoraConfig(Section, frozen=True):
    """Low-rank adapters instead of full weights (needs the extra `lora`)."""

    rank: Positive = Field(16, description="Rank of the adapters.")
    alpha: float = Field(32.0, gt=0, description="The adapters' product is scaled by alpha / rank.")
    targets: list[str] | str = Field("all-linear", description="Modules that get an adapter, by name.")


class PolicyConfig(Section, frozen=True):
    """The policy to train."""

    kind: Literal["causal_lm"] = Field("causal_lm", description="What acts: 'causal_lm', a language model.")
    path: str = Field(
        description="A shipped name ('smollm2-135m', 'tiny'), a folder (model, checkpoint or adapter), a GGUF "
        "file, or a hub id."
    )
    lora: LoraConfig | None = Field(None, description="Train adapters only; left out: all weights.")
    value_head: bool = Field(False, description="Add a critic: a linear value head on the hidden states.")
    precision: Literal["auto", "float32", "bfloat16"] = Field(
        "auto", description="Compute precision over float32 master weights; 'auto': bfloat16 where it gains."
    )
    device: str = Field("auto", description="'auto' takes a GPU if there is one; or 'cpu', 'cuda', 'cuda:1'.")


class TaskConfig(Section, frozen=True):
    """Where prompts and answers come from."""

    kind: Literal["reasoning_gym", "file", "function"] = Field(
        description="'reasoning_gym' (generated), 'file' (JSONL, CSV, Parquet) or 'function' (of Python)."
    )
    name: str = Field(
        "", description="reasoning_gym: its data set, such as 'chain_sum'. function: 'module:name'."
    )
    config: Options = Field(
        default_factory=Options, description="Settings of the data set, or arguments of the function."
    )
    path: str = Field("", description="file: its path.")
    held_out_path: str = Field("", description="file: a second one with the held-out problems.")
    size: Positive = Field(
        10_000, description="reasoning_gym: problems generated, before those that occur twice are dropped."
    )
    held_out: Positive = Field(200, description="Problems set aside for evaluation; no stage ever sees them.")
    prompt: str = Field("prompt", description="Column with the question: text, or a list of chat messages.")
    answer: str = Field("answer", description="Column with the right answer; scorers see it as `answer`.")
    template: str = Field(
        "", description="Text around the prompt, as in 'Question: {prompt}'; may name any column."
    )
    system: str = Field("", description="System message before every question.")
    chat: bool = Field(True, description="Put the prompt into the model's chat template; false: plain text.")
    demonstrations: str = Field(
        "", description="sft: 'module:function' that writes a completion of an item, or the name of a column."
    )

    @model_validator(mode="after")
    def _source_is_named(self) -> TaskConfig:
        needed = "path" if self.kind == "file" else "name"
        if not getattr(self, needed):
            raise ValueError(f"a task of kind {self.kind!r} needs {needed!r}")
        return self


class RewardConfig(Section, frozen=True):
    """One named term of the reward."""

    function: str = Field(
        description="'module:function', called with completions and the columns of the data."
    )
    weight: float = Field(1.0, description="Factor of the term in the sum.")
    arguments: Options = Field(
        default_factory=Options, description="Further keyword arguments of the function."
    )
    time_limit: float = Field(
        60.0, gt=0, description="Seconds one call may take before its rows have failed."
    )
    on_error: Literal["stop", "skip"] = Field(
        "stop", description="Stop the run, or report the row and leave it out of its group's baseline."
    )


class SftStage(StageConfig, frozen=True):
    """Imitation: maximise the likelihood of demonstrations."""

    kind: Literal["sft"] = Field("sft", description="Kind of the stage.")
    name: Name = "sft"
    algorithm: Algorithm = "sft"
    batch: Positive = Field(32, description="Demonstrations per update.")
    learning_rate: float = Field(1e-4, ge=0, description="Highest learning rate.")


class RlStage(StageConfig, frozen=True):
    """Reinforcement learning on the task's reward."""

    kind: Literal["rl"] = Field("rl", description="Kind of the stage.")
    name: Name = "rl"
    algorithm: Algorithm = "grpo"
    prompts: Positive = Field(8, description="Prompts per update.")
    group: Positive = Field(8, description="Completions per prompt.")
    temperature: float = Field(
        1.0, gt=0, description="Sampling temperature; also of the trained distribution."
    )
    top_k: Count = Field(0, description="Sample among the k most likely tokens; 0: all.")
    top_p: float = Field(1.0, gt=0, le=1, description="Sample in the nucleus of this probability; 1: all.")
    max_tokens: Positive = Field(64, description="Longest completion.")
    overlong: Literal["keep", "mask", "penalise"] = Field(
        "keep",
        description="Completions that ran out of tokens: learn from them, mask them, or lower their reward.",
    )
    penalty: float = Field(1.0, ge=0, description="overlong = 'penalise': what is taken off the reward.")
    filter_groups: bool = Field(
        False, description="Sample again in place of groups whose rewards are all equal (DAPO)."
    )
    max_rounds: Positive = Field(4, description="filter_groups: rounds of sampling per update at most.")
    focus: float = Field(
        0.0,
        ge=0,
        le=1,
        description="Share of prompts drawn again from those that are not solved yet; 0: off.",
    )


Stage = Annotated[SftStage | RlStage, Discriminator("kind")]


class EvaluationConfig(common.EvaluationConfig, frozen=True):
    """Held-out evaluation before, during and after the stages; never by the training reward."""

    problems: Positive = Field(200, description="Held-out problems.")
    samples: Count = Field(0, description="Sampled answers per problem besides the greedy one (pass@k).")
    temperature: float = Field(1.0, gt=0, description="Temperature of the sampled answers.")
    max_tokens: Positive = Field(64, description="Longest answer.")
    score: str = Field(
        "outdo.language.verifiers:number",
        description="'module:function' that says whether an answer is right.",
    )
    arguments: Options = Field(default_factory=Options, description="Further keyword arguments of `score`.")


class LanguageRecipe(Recipe, frozen=True):
    """A whole language run."""

    wing: ClassVar[str] = "outdo.language.build"

    policy: PolicyConfig = Field(description="The policy to train.")
    task: TaskConfig = Field(description="Where prompts and answers come from.")
    reward: dict[str, RewardConfig] = Field(
        default_factory=dict[str, RewardConfig], description="The reward's terms by name."
    )
    stage: list[Stage] = Field(min_length=1, description="Stages in the order they run.")
    evaluation: EvaluationConfig | None = Field(None, description="Left out: no held-out evaluation.")

    @model_validator(mode="after")
    def _parts_fit(self) -> LanguageRecipe:
        kinds = {stage.kind for stage in self.stage}
        if "rl" in kinds and not self.reward:
            raise ValueError("an rl stage needs a reward: add a table [reward.<name>] with a 'function'")
        if "sft" in kinds and not self.task.demonstrations:
            raise ValueError("an sft stage needs demonstrations: set task.demonstrations")
        if self.evaluation is not None and self.evaluation.problems > self.task.held_out:
            raise ValueError(
                f"evaluation.problems = {self.evaluation.problems}, but only task.held_out = "
                f"{self.task.held_out} problems are set aside"
            )
        return self

    def fits(self, stage: StageConfig) -> tuple[int, bool]:
        """Samples per prompt of a stage, and whether the model has a value head."""
        return (stage.group if isinstance(stage, RlStage) else 1), self.policy.value_head
