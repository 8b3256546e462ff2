"""Low-rank adapters through peft."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Lora:
    """Low-rank adapters: W + (alpha / rank) B A on the named projections (peft's names; all linear ones by default)."""

    rank: int = 16
    alpha: float = 32.0
    targets: tuple[str, ...] | str = "all-linear"


def with_adapters(model: Any, lora: Lora, source: str) -> Any:
    """The model with fresh adapters, which name `source` as their base; only they are trained."""
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ImportError("LoRA needs peft: pip install 'outdo[lora]'") from error
    targets = lora.targets if isinstance(lora.targets, str) else list(lora.targets)
    config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, target_modules=targets, lora_dropout=0.0)  # type: ignore[arg-type]
    adapted = get_peft_model(model, config).eval()
    adapted.peft_config["default"].base_model_name_or_path = source
    return adapted
