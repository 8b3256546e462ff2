"""outdo: post-train a policy that already acts, so that it outdoes its demonstrations."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outdo.config import Recipe
    from outdo.training.loop import Result

__all__ = ["train"]


def train(
    recipe: str | Path | Recipe,
    overrides: Mapping[str, Any] | None = None,
    *,
    out: str | Path | None = None,
    resume: bool = False,
) -> Result:
    """Train as a recipe says; see `outdo.run.run`. Parts of one's own go to `outdo.training.loop.train`.

    `outdo.train("arithmetic", {"rl.steps": 20}, out="runs/a")` does what
    `outdo train arithmetic rl.steps=20 --out runs/a` does, silently.
    """
    from outdo.run import run

    return run(recipe, overrides, out=out, resume=resume)
