"""What the documents say is true: commands and snippets run, links lead somewhere, pages are up to date."""

from __future__ import annotations

import ast
import importlib.util
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outdo.cli import app
from outdo.recipe import parse_override, read
from outdo.training.display import SHOWN
from outdo.training.record import read_metrics

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)[ ]?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path) -> list[tuple[str, str, str]]:
    """Fenced blocks of a page: language, file name where it is one, text."""
    found: list[tuple[str, str, str]] = []
    for language, name, text in BLOCK.findall(page.read_text(encoding="utf-8")):
        headed = re.match(r"# (\S+\.(?:toml|py))\n", text)
        found.append((language, name or (headed.group(1) if headed else ""), text))
    return found


def make_targets() -> set[str]:
    return set(re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def call(line: str, folder: Path) -> None:
    """Run a line of the README in `folder`; `make` and the real model's recipe are only checked for sense."""
    words = shlex.split(line)
    if words[0] == "make":
        assert set(words[1:]) <= make_targets(), line
    elif words[:3] == ["outdo", "train", "arithmetic"]:
        read("arithmetic", dict(parse_override(word) for word in words[3:] if "=" in word))
    elif words[0] == "outdo":
        result = CliRunner().invoke(app, words[1:])
        assert result.exit_code == 0, f"{line}\n{result.output}\n{result.exception!r}"
    else:  # as a person types it, in a shell
        path = f"PATH={shlex.quote(str(Path(sys.executable).parent))}:$PATH"
        done = subprocess.run(
            ["bash", "-c", f"{path}; {line}"], cwd=folder, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{line}\n{done.stderr}"


@pytest.mark.whole
@pytest.mark.filterwarnings("ignore::outdo.core.rewards.NoSignalWarning")
def test_the_readme_from_top_to_bottom(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    kinds: set[str] = set()
    for language, name, text in blocks(ROOT / "README.md"):
        kinds.add(f"{language} file" if name else language)
        if name:
            (tmp_path / name).write_text(text, encoding="utf-8")
        elif language == "python":
            exec(compile(text, f"README.md: {text[:40]!r}", "exec"), names)
        elif language == "sh":
            for line in text.splitlines():
                call(line, tmp_path)
        else:
            pytest.fail(f"README.md has a block of {language!r} that nothing checks")
    assert kinds == {"sh", "python", "python file", "toml file", "jsonl file"}
    for place in ("recipe.toml", "metrics.jsonl", "rollouts.jsonl.gz", "summary.json", "checkpoints/best"):
        assert (tmp_path / "runs" / "first" / place).exists()
    assert list((tmp_path / "runs" / "tracked" / "tensorboard").iterdir())
    # "within 100,000 steps" the pole stands "for all 500"; the environment counts as solved from 475 on.
    lines = read_metrics(tmp_path / "runs" / "cartpole")
    assert max(line.get("environment_steps", 0) for line in lines) <= 100_000
    assert lines[-1]["deterministic/return"] >= 475


def test_the_readme_explains_every_figure_of_the_progress_line():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    for metric, label, _ in SHOWN:
        if not metric.startswith("time/"):
            assert re.search(rf"^\| `{re.escape(label)}` \| `{metric}` \|", text, re.MULTILINE), label


def test_the_bandit_shows_what_a_baseline_does(capsys):
    runpy.run_path(str(ROOT / "examples" / "bandit.py"), run_name="__main__")
    out = capsys.readouterr().out
    spread = {name: float(value) for name, value in re.findall(r"(\w+): +[-\d.]+ ± ([\d.]+)", out)}
    # Exact: 5.34 and 1.00. The standard deviation of 10,000 samples is known to about 1 %.
    assert spread["without"] == pytest.approx(5.34, rel=0.05)
    assert spread["with"] == pytest.approx(1.00, rel=0.05)
    last = re.findall(r"^ +(with|without) .* ([\d.]+)$", out, re.MULTILINE)
    chances = {name: [float(value) for kind, value in last if kind == name] for name in ("with", "without")}
    assert min(chances["with"]) > 0.9
    assert min(chances["without"]) < 0.1  # one of the four runs without a baseline ends on the worse arm


def test_the_language_example_learns(capsys):
    runpy.run_path(str(ROOT / "examples" / "language.py"), run_name="__main__")
    rows = re.findall(r"^ +(\d+) +([\d.]+) +(-?[\d.]+) ", capsys.readouterr().out, re.MULTILINE)
    first, last = rows[0], rows[-1]
    assert float(first[1]) < 0.2
    assert abs(float(first[2])) < 1e-4
    assert float(last[1]) > 0.9


def anchors(page: Path) -> set[str]:
    """Anchors that GitHub gives the headings of a page."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if target.startswith("http"):
            continue
        name, _, anchor = target.partition("#")
        place = (page.parent / name) if name else page
        assert place.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(place), f"{page.name} links to {target}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_what_pages_name_exists(page):
    text = page.read_text(encoding="utf-8")
    assert set(re.findall(r"`make (\w+)`", text)) <= make_targets()
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for named in re.findall(r"'\.\[([\w,]+)\]'", text):
        assert set(named.split(",")) <= extras.keys()
    for place in re.findall(r"`((?:src|tests|docs|examples|benchmarks)/[\w/.]+)`", text):
        assert (ROOT / place).exists(), f"{page.name} names {place}"


def test_the_page_of_recipe_keys_is_up_to_date():
    spec = importlib.util.spec_from_file_location("recipe_page", ROOT / "docs" / "recipes.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.PAGE.read_text(encoding="utf-8") == module.page(), "run `python docs/recipes.py`"


@cache
def names_of_tests(path: Path) -> set[str]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}


def test_the_tests_that_faults_names_exist():
    text = (ROOT / "docs" / "faults.md").read_text(encoding="utf-8")
    named = re.findall(r"`([\w/]+\.py)::(\w+)`", text)
    assert len(named) > 50
    for file, name in named:
        assert name in names_of_tests(ROOT / "tests" / file), f"docs/faults.md names {file}::{name}"
