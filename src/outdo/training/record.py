"""The run folder: what a run leaves behind, readable by people and programs, and cut back exactly on resume.

`recipe.toml` (as it ran), `metrics.jsonl` (one line per update and per evaluation), `rollouts.jsonl.gz` (one
line per sampled row), `checkpoints/`, `summary.json`. Names of metrics that begin with `time/` are
measurements of the clock; everything else is equal when a run is repeated.
"""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

METRICS = "metrics.jsonl"
ROLLOUTS = "rollouts.jsonl.gz"
SUMMARY = "summary.json"
CHECKPOINTS = "checkpoints"


def new_folder(name: str) -> Path:
    """A folder under `runs/` that is not there yet: the name, the time, and a number where that is taken."""
    stem = f"{name}-{datetime.now():%Y%m%d-%H%M%S}"
    folder, number = Path("runs") / stem, 2
    while folder.exists():
        folder, number = Path("runs") / f"{stem}-{number}", number + 1
    return folder


class Record:
    """Appends to the files of one run folder; what was appended survives the end of the process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.checkpoints = folder / CHECKPOINTS
        self.checkpoints.mkdir(parents=True, exist_ok=True)

    def metrics(self, line: Mapping[str, Any]) -> None:
        """Append one line to `metrics.jsonl`."""
        self._append(METRICS, (json.dumps(line) + "\n").encode())

    def rollouts(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Append rows to `rollouts.jsonl.gz` as a gzip member of their own: a kill loses none before it."""
        text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        if text:
            self._append(ROLLOUTS, gzip.compress(text.encode(), compresslevel=5, mtime=0))

    def _append(self, name: str, data: bytes) -> None:
        with (self.folder / name).open("ab") as stream:
            stream.write(data)

    def positions(self) -> dict[str, int]:
        """Length of each log in bytes, on the disk: part of a checkpoint."""
        positions: dict[str, int] = {}
        for name in (METRICS, ROLLOUTS):
            path = self.folder / name
            if path.exists():
                with path.open("ab") as stream:
                    os.fsync(stream.fileno())
            positions[name] = path.stat().st_size if path.exists() else 0
        return positions

    def truncate(self, positions: Mapping[str, int]) -> None:
        """Cut the logs back to `positions`: what came after the checkpoint will be written again."""
        for name, length in positions.items():
            path = self.folder / name
            size = path.stat().st_size if path.exists() else 0
            if size < length:
                raise ValueError(
                    f"{path} has {size} bytes, fewer than the {length} of the checkpoint: it was changed"
                )
            if size > length:
                os.truncate(path, length)

    def summary(self, content: Mapping[str, Any]) -> None:
        """Write `summary.json`, replacing an earlier one atomically."""
        write_atomically(self.folder / SUMMARY, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def write_atomically(path: Path, text: str) -> None:
    """Write a small text file so that a reader sees the old content or the new, never a part."""
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(path)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """All lines of a run's `metrics.jsonl`."""
    path = folder / METRICS
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().splitlines()]


def read_rollouts(folder: Path) -> Iterator[dict[str, Any]]:
    """All rows of a run's `rollouts.jsonl.gz`."""
    with gzip.open(folder / ROLLOUTS, "rt", encoding="utf-8") as stream:
        for line in stream:
            yield json.loads(line)
