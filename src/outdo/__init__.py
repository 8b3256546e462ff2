"""outdo: post-train a policy that already acts, so that it outdoes its demonstrations."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from outdo.config import Recipe
    from outdo.training.loop import Result

__all__ = ["train"]

# torch's threads wait for each other by spinning, by default for many milliseconds. Where another process takes one of
# the cores they spin for whole time slices: a step of 5 s did not end in 100 s beside one busy process. This bound
# costs a few per cent on an idle machine, and counts only if outdo is imported before torch; a value already set stays.
os.environ.setdefault("GOMP_SPINCOUNT", "60000")


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
