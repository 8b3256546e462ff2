"""Checkpoints: complete, written atomically, verified when read.

A checkpoint is a folder `step-000040` with the policy (`policy/`, in its own format, which for a language
model is the Hugging Face format), the optimiser's tensors (`optimiser.safetensors`), everything else
(`state.json`, with the tensors it refers to in `state.safetensors`) and `manifest.json` (size and SHA-256 of
every file). It is written under a temporary name, synced, and renamed at the end: under its own name it is
always whole.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from outdo.core.protocols import Policy

MANIFEST = "manifest.json"
_STEP = "step-"
_TENSOR = "$tensor"


class CheckpointError(RuntimeError):
    """A checkpoint could not be written, or what is on disk is not what was written."""


@contextmanager
def atomic_folder(target: Path) -> Generator[Path]:
    """Give an empty folder to fill; on leaving it becomes `target`, whole, or nothing at all.

    The folder lies beside `target`, so that the rename is atomic. Whatever goes wrong removes the partial one
    and leaves everything that was there before; an `Exception` becomes a `CheckpointError` that says so.
    """
    partial = target.with_name(f".{target.name}.partial")
    if partial.exists():
        shutil.rmtree(partial)
    try:
        partial.mkdir(parents=True)
        yield partial
        _seal(partial)
        replaced = target.with_name(f".{target.name}.deleted")
        if target.exists():
            target.rename(replaced)
        partial.rename(target)
        _sync(target.parent)
        if replaced.exists():
            shutil.rmtree(replaced)
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if not isinstance(error, Exception):
            raise
        raise CheckpointError(
            f"could not write {target}: {error}. The partial folder was removed, earlier checkpoints are as they "
            "were. If the disk is full, free space and continue with --resume"
        ) from error


def _sync(path: Path) -> None:
    """Ask the operating system to put a file or folder on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _checksum(path: Path) -> str:
    """SHA-256 of a file, in hex."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _seal(folder: Path) -> None:
    """Write the manifest and sync every file and folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    manifest = {
        str(path.relative_to(folder)): {"size": path.stat().st_size, "sha256": _checksum(path)}
        for path in files
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))
    for path in [*files, folder / MANIFEST, *(p for p in folder.rglob("*") if p.is_dir()), folder]:
        _sync(path)


def verify(folder: Path) -> None:
    """Raise `CheckpointError` unless every file of the manifest is there with its size and checksum."""
    if not (folder / MANIFEST).is_file():
        raise CheckpointError(f"{folder} has no {MANIFEST}: it was not written by outdo, or not to its end")
    for name, expected in json.loads((folder / MANIFEST).read_text()).items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{path} is missing from the checkpoint")
        if path.stat().st_size != expected["size"]:
            raise CheckpointError(f"{path} has {path.stat().st_size} bytes, {expected['size']} were written")
        if _checksum(path) != expected["sha256"]:
            raise CheckpointError(f"{path} is damaged: its checksum is not the one that was written")


def pack(value: Any, tensors: dict[str, Tensor], path: str = "state") -> Any:
    """`value` with every tensor moved into `tensors` and a reference in its place; the rest is plain JSON.

    Raises `TypeError`, naming the place, for anything that would not come back as it was: tuples, keys
    that are no strings, objects.
    """
    if isinstance(value, Tensor):
        tensors[path] = value.detach().cpu().clone().contiguous()
        return {_TENSOR: path}
    if isinstance(value, Mapping):
        for key in value:
            if not isinstance(key, str):
                raise TypeError(f"{path}: keys of a saved mapping must be strings, got {key!r}")
        return {key: pack(item, tensors, f"{path}.{key}") for key, item in value.items()}
    if isinstance(value, list):
        return [pack(item, tensors, f"{path}.{index}") for index, item in enumerate(value)]
    if value is None or type(value) in (bool, int, float, str):
        return value
    raise TypeError(
        f"{path}: cannot save a {type(value).__name__}: give tensors, lists, dicts, numbers and strings"
    )


def unpack(value: Any, tensors: Mapping[str, Tensor]) -> Any:
    """Undo `pack`."""
    if isinstance(value, dict):
        if set(value) == {_TENSOR}:
            return tensors[value[_TENSOR]]
        return {key: unpack(item, tensors) for key, item in value.items()}
    if isinstance(value, list):
        return [unpack(item, tensors) for item in value]
    return value


def save(target: Path, policy: Policy, optimiser: Mapping[str, Tensor], state: Mapping[str, Any]) -> None:
    """Write a complete checkpoint at `target`, atomically."""
    with atomic_folder(target) as folder:
        tensors: dict[str, Tensor] = {}
        packed = pack({**state, "policy": policy.state_dict()}, tensors)
        (folder / "policy").mkdir()
        policy.save(folder / "policy")
        save_file(
            {key: tensor.contiguous() for key, tensor in optimiser.items()}, folder / "optimiser.safetensors"
        )
        save_file(tensors, folder / "state.safetensors")
        (folder / "state.json").write_text(json.dumps(packed))


def load(folder: Path, policy: Policy) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Put the policy back as `folder` has it; returns the rest of the state and the optimiser's tensors.

    The folder must have been verified (`latest` does).
    """
    state = unpack(json.loads((folder / "state.json").read_text()), load_file(folder / "state.safetensors"))
    policy.load(folder / "policy")
    policy.load_state_dict(state.pop("policy"))
    return state, load_file(folder / "optimiser.safetensors")


def step_folder(folder: Path, step: int) -> Path:
    """Where the checkpoint after `step` updates lies."""
    return folder / f"{_STEP}{step:06d}"


def numbered(folder: Path) -> dict[int, Path]:
    """All checkpoints in `folder` by number, lowest first."""
    found = {
        int(path.name.removeprefix(_STEP)): path for path in folder.glob(f"{_STEP}[0-9]*") if path.is_dir()
    }
    return dict(sorted(found.items()))


def latest(folder: Path) -> Path | None:
    """The newest checkpoint that is whole, or None where there is none yet.

    A damaged one is passed over with a warning; where all are damaged the error of the newest is raised.
    """
    first: CheckpointError | None = None
    for path in reversed(numbered(folder).values()):
        try:
            verify(path)
        except CheckpointError as error:
            warnings.warn(f"skipping a damaged checkpoint: {error}", stacklevel=2)
            first = first or error
        else:
            return path
    if first is not None:
        raise first
    return None


def point_best(folder: Path, step: int) -> None:
    """Make the link `best` point at the checkpoint of `step`, atomically."""
    link = folder / ".best.partial"
    link.unlink(missing_ok=True)
    link.symlink_to(step_folder(folder, step).name)
    link.replace(folder / "best")


def prune(folder: Path, keep: int, best: int | None) -> None:
    """Delete all but the newest `keep` checkpoints and the one of step `best`."""
    by_number = numbered(folder)
    kept = {*list(by_number)[-keep:], best}
    for number, path in by_number.items():
        if number not in kept:
            shutil.rmtree(path.rename(path.with_name(f".{path.name}.deleted")))


def sweep(folder: Path) -> None:
    """Remove what a killed process left half written or half deleted."""
    for pattern in (".*.partial", ".*.deleted"):
        for path in folder.glob(pattern):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
