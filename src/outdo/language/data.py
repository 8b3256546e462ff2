"""Problems to solve: read from files or functions, made into prompts, split, and dealt out without end.

An item is a dict: `prompt` (text, or chat messages) and any other columns, which reward functions receive
by name.
"""

from __future__ import annotations

import csv
import functools
import hashlib
import json
import random
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from typing import Any

from outdo.core.calls import load_object, nearest

Item = dict[str, Any]
Messages = list[dict[str, Any]]


class DataError(ValueError):
    """A data set cannot be used; the message names the file, the line and the column."""


def read_file(path: str | Path, columns: Iterable[str] = ()) -> list[Item]:
    """The rows of a .jsonl, .csv or .parquet file, in order; each must have `columns`.

    Raises:
        DataError: no such file, unknown ending, no rows, an empty or malformed line, or a column that is
            missing; the
            message names the line (in Parquet the row) and the nearest column.
    """
    path = Path(path).expanduser()
    readers = {".jsonl": _read_jsonl, ".csv": _read_csv, ".parquet": _read_parquet}
    if path.suffix not in readers:
        raise DataError(
            f"{path}: cannot read {path.suffix or 'a file without ending'!r}; give {', '.join(readers)}"
        )
    if not path.is_file():
        raise DataError(f"{path}: no such file")
    wanted, items = list(columns), list[Item]()
    try:
        for line, item in readers[path.suffix](path):
            for column in wanted:
                if column not in item:
                    raise DataError(f"{path}, line {line}: no column {column!r}; {nearest(column, item)}")
            items.append(item)
    except UnicodeDecodeError as error:
        raise DataError(f"{path}: not UTF-8 text: {error}") from error
    if not items:
        raise DataError(f"{path}: the file has no rows")
    return items


def _read_jsonl(path: Path) -> Iterator[tuple[int, Item]]:
    lines = path.read_text(encoding="utf-8-sig").split("\n")
    if lines[-1] == "":
        lines.pop()
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            raise DataError(f"{path}, line {number}: empty line; remove it, or write a JSON object")
        try:
            item = json.loads(line)
        except json.JSONDecodeError as error:
            raise DataError(f"{path}, line {number}, column {error.colno}: not JSON: {error.msg}") from error
        if not isinstance(item, dict):
            raise DataError(f"{path}, line {number}: a {type(item).__name__}, not a JSON object: {line[:80]}")
        yield number, item


def _read_csv(path: Path) -> Iterator[tuple[int, Item]]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = csv.reader(file, strict=True)
        try:
            header = next(rows, [])
            if len(set(header)) != len(header):
                raise DataError(f"{path}, line 1: a column name stands twice: {', '.join(header)}")
            for row in rows:
                if len(row) != len(header):
                    raise DataError(
                        f"{path}, line {rows.line_num}: {len(row)} fields, but the header names {len(header)}"
                    )
                yield rows.line_num, dict(zip(header, row, strict=True))
        except csv.Error as error:
            raise DataError(f"{path}, line {rows.line_num}: malformed CSV: {error}") from error


def _read_parquet(path: Path) -> Iterator[tuple[int, Item]]:
    import pyarrow
    from pyarrow import parquet

    try:
        rows: list[Item] = parquet.read_table(path).to_pylist()
    except pyarrow.ArrowException as error:
        raise DataError(f"{path}: not a Parquet file: {error}") from error
    yield from enumerate(rows, start=1)


def read_function(path: str, **arguments: Any) -> list[Item]:
    """The items that the function 'module:function' returns or yields.

    Raises:
        ValueError: no such function.
        DataError: an item is no dict, or there is none.
    """
    return collect_items(load_object(path)(**arguments), path)


def collect_items(source: Iterable[Mapping[str, Any]], name: str = "the iterable") -> list[Item]:
    """The items of any finite Python iterable of mappings.

    Raises:
        DataError: an item is no mapping, or there is none.
    """
    items: list[Item] = []
    for index, item in enumerate(source):
        if not isinstance(item, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise DataError(
                f"{name}, item {index}: must be a mapping with a prompt, got {type(item).__name__}"
            )
        items.append(dict(item))
    if not items:
        raise DataError(f"{name} has no items")
    return items


@dataclass(frozen=True, slots=True)
class PromptFormat:
    """How an item's columns become its `prompt` (and, where the column has another name, its `answer`).

    `prompt` and `answer` name the columns to take them from; the prompt is text or chat messages.
    `template` is put around text, as in "Question: {prompt}", and may use every column. `system` is the
    system message. With `chat`, text becomes a user message; without, the prompt is plain text, for a model
    that has no chat template.
    """

    prompt: str = "prompt"
    answer: str = "answer"
    template: str = ""
    system: str = ""
    chat: bool = True

    def __post_init__(self) -> None:
        """Refuse a system message where there is no chat, and a template that cannot be filled."""
        if self.system and not self.chat:
            raise ValueError("a system prompt needs chat = true; without a chat, write it into the template")
        try:
            nameless = "" in self._fields
        except ValueError as error:
            raise ValueError(f"the template {self.template!r} is malformed: {error}") from error
        if nameless:
            raise ValueError(
                f"the template {self.template!r} has a nameless {{}}: write {{prompt}} or a column"
            )

    @property
    def _fields(self) -> list[str]:
        names = (name for _, name, _, _ in Formatter().parse(self.template) if name is not None)
        return [re.split(r"[.\[]", name)[0] for name in names]

    @property
    def columns(self) -> list[str]:
        """The columns an item must have."""
        renamed = [self.answer] if self.answer != "answer" else []
        return [self.prompt, *renamed, *(name for name in self._fields if name != "prompt")]

    def apply(self, items: Sequence[Mapping[str, Any]], name: str = "the data") -> list[Item]:
        """The items with `prompt` (and `answer`) made; other columns stay.

        Raises:
            DataError: a column is missing (the nearest is named), or a prompt is empty or neither text nor
                messages.
        """
        wanted, made = self.columns, list[Item]()
        for index, item in enumerate(items):
            where = f"{name}, item {index}"
            for column in wanted:
                if column not in item:
                    raise DataError(f"{where}: no column {column!r}; {nearest(column, item)}")
            answer = {"answer": item[self.answer]} if self.answer in item else {}
            made.append({**item, **answer, "prompt": self._prompt(item, where)})
        return made

    def _prompt(self, item: Mapping[str, Any], where: str) -> str | Messages:
        prompt: Any = item[self.prompt]
        if not prompt or not (isinstance(prompt, str) or _is_messages(prompt)):
            raise DataError(
                f"{where}: a prompt is text, or messages with role and content; got {prompt!r:.80}"
            )
        if self.template:
            if not isinstance(prompt, str):
                raise DataError(f"{where}: a template needs a prompt that is text, but this one is a chat")
            prompt = self.template.format_map({**item, "prompt": prompt})
        if not self.chat:
            if not isinstance(prompt, str):
                raise DataError(f"{where}: the prompt is a chat: set chat = true")
            return prompt
        messages: Messages = (
            [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        )
        return [{"role": "system", "content": self.system}, *messages] if self.system else messages


def _is_messages(prompt: Any) -> bool:
    return isinstance(prompt, list) and all(
        isinstance(m, dict) and {"role", "content"} <= m.keys() for m in prompt
    )


def content_key(item: Mapping[str, Any]) -> str:
    """What makes two items the same problem: a hash of the prompt alone."""
    text = json.dumps(item["prompt"], sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


def unique(items: Iterable[Item]) -> list[Item]:
    """The items without those whose prompt an earlier item has."""
    first: dict[str, Item] = {}
    for item in items:
        first.setdefault(content_key(item), item)
    return list(first.values())


@dataclass(frozen=True, slots=True)
class Splits:
    """Problems to train on (cloning and reinforcement learning) and held-out ones: no prompt is in both."""

    train: tuple[Item, ...]
    held_out: tuple[Item, ...]


def split(items: Sequence[Item], held_out: int, seed: int) -> Splits:
    """Set `held_out` distinct problems aside, drawn by `seed`; the other distinct problems are for training.

    Raises:
        DataError: not enough distinct problems to leave one for training.
    """
    distinct = unique(items)
    if held_out >= len(distinct):
        raise DataError(
            f"{held_out} held-out problems were asked for, but only {len(distinct)} distinct prompts exist: "
            "make the task larger or hold fewer out"
        )
    order = random.Random(f"{seed}/held-out").sample(range(len(distinct)), len(distinct))
    shuffled = [distinct[i] for i in order]
    return Splits(tuple(shuffled[held_out:]), tuple(shuffled[:held_out]))


def disjoint(train: Sequence[Item], held_out: Sequence[Item]) -> Splits:
    """Splits from two sources: every problem that is held out is taken from the training problems.

    Raises:
        DataError: no training problem is left.
    """
    apart = {content_key(item) for item in held_out}
    rest = [item for item in unique(train) if content_key(item) not in apart]
    if not rest:
        raise DataError("every training problem is also held out: nothing is left to train on")
    return Splits(tuple(rest), tuple(unique(held_out)))


@dataclass(frozen=True)
class Stream:
    """Endless shuffled passes over the indices of `size` items; the position is the only state.

    Pass e is a permutation drawn from (`seed`, `name`, e) alone, so the index at any position can be had at
    any time.
    """

    size: int
    seed: int
    name: str = "prompts"

    def __post_init__(self) -> None:
        """Refuse an empty data set."""
        if self.size < 1:
            raise ValueError("a stream needs at least one item")

    def take(self, position: int, count: int) -> list[int]:
        """The indices at `position`, …, `position + count − 1`."""
        indices: list[int] = []
        while len(indices) < count:
            epoch, offset = divmod(position + len(indices), self.size)
            order = _permutation(self.seed, self.name, epoch, self.size)
            indices += order[offset : offset + count - len(indices)]
        return indices


@functools.lru_cache(maxsize=4)
def _permutation(seed: int, name: str, epoch: int, size: int) -> list[int]:
    return random.Random(f"{seed}/{name}/{epoch}").sample(range(size), size)
