"""Imports point down (design.md, Layout); read from the syntax tree, so that lazy imports count too."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import outdo

ROOT = Path(outdo.__file__).parent
PARTS = {"core", "training", "language", "control", "driving", "lab", "audit", "report", "recipes"}
ABOVE = {"recipe", "run", "seeds", "tables", "config", "cli", "__init__", "__main__"}
ALLOWED = {
    "core": {"core"},
    "training": {"core", "training"},
    "language": {"core", "language"},
    "control": {"core", "control"},
    "driving": {"core", "driving", "language"},
    "lab": PARTS,
    "audit": PARTS,
    "report": PARTS,
    "recipes": set(),
}
CORE_LIBRARIES = {"torch", "numpy", "numba"}
TRAINING_LIBRARIES = {"torch", "numpy", "safetensors", "rich"}


def imported(tree: ast.AST) -> set[str]:
    """Modules that a file imports, anywhere in it."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "relative import"
            names.add(node.module or "")
            if node.module == "outdo":
                names |= {f"outdo.{alias.name}" for alias in node.names}
    return names


def files() -> list[Path]:
    return sorted(ROOT.rglob("*.py"))


def violations(place: str, names: set[str]) -> list[str]:
    """Imports that a part must not have."""
    own = {name.split(".")[1] for name in names if name.startswith("outdo.")}
    wrong = sorted(own - ALLOWED[place])
    outside = {name.split(".")[0] for name in names} - {"outdo"} - set(sys.stdlib_module_names)
    limit = {"core": CORE_LIBRARIES, "training": TRAINING_LIBRARIES}.get(place)
    return wrong + ([] if limit is None else sorted(outside - limit))


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path):
    place = path.relative_to(ROOT).parts[0].removesuffix(".py")
    if place in ABOVE:
        return
    assert place in ALLOWED, f"{path} lies in no part of the layout"
    assert violations(place, imported(ast.parse(path.read_text()))) == []


@pytest.mark.parametrize(
    ("place", "line", "wrong"),
    [
        ("core", "import outdo.training.loop", ["training"]),
        ("core", "from outdo import language", ["language"]),
        ("core", "def f():\n    import transformers", ["transformers"]),
        ("training", "from outdo.language.policy import CausalPolicy", ["language"]),
        ("language", "from outdo.config import Recipe", ["config"]),
        ("core", "import math\nimport torch.nn\nfrom outdo.core.batch import Batch", []),
    ],
)
def test_the_check_sees_what_is_wrong(place, line, wrong):
    assert violations(place, imported(ast.parse(line))) == wrong


def test_the_command_line_helps_without_torch():
    code = "import sys, outdo.cli; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert (
        subprocess.run([sys.executable, "-c", code.replace("outdo.cli", "outdo")], check=False).returncode
        == 0
    )


@pytest.mark.parametrize("path", files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_no_file_is_longer_than_400_lines(path):
    assert len(path.read_text().splitlines()) <= 400
