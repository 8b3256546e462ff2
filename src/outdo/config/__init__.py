"""The recipe as a value: frozen, validated when it is read, every field documented, unknown keys refused."""

from outdo.config.common import (
    CheckpointConfig,
    EvaluationConfig,
    OptimiserConfig,
    Recipe,
    Section,
    StageConfig,
    TrackerConfig,
)
from outdo.config.control import (
    ControlCheckpointConfig,
    ControlEvaluationConfig,
    ControlPolicyConfig,
    ControlRecipe,
    ControlStage,
    EnvConfig,
)
from outdo.config.language import (
    LanguageRecipe,
    LoraConfig,
    PolicyConfig,
    RewardConfig,
    RlStage,
    SftStage,
    TaskConfig,
)

__all__ = [
    "CheckpointConfig",
    "ControlCheckpointConfig",
    "ControlEvaluationConfig",
    "ControlPolicyConfig",
    "ControlRecipe",
    "ControlStage",
    "EnvConfig",
    "EvaluationConfig",
    "LanguageRecipe",
    "LoraConfig",
    "OptimiserConfig",
    "PolicyConfig",
    "Recipe",
    "RewardConfig",
    "RlStage",
    "Section",
    "SftStage",
    "StageConfig",
    "TaskConfig",
    "TrackerConfig",
]
