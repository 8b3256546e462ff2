"""Where scenes come from: the generator, by split, or files of real ones; and one of them by its name."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.random import Generator

from outdo.core.calls import nearest
from outdo.driving.expert import Expert, Flaws, draw_driver, run
from outdo.driving.generator import SPLITS, generate
from outdo.driving.measures import measure
from outdo.driving.readers import read
from outdo.driving.scene import DT, HORIZON, Floats, Scene, SceneError
from outdo.driving.simulator import Drive, Simulator, drive
from outdo.driving.situations import SITUATIONS

LOG_FILES = ("scenario_*.parquet", "annotations*.feather", "city_SE3_egovehicle.feather")
_NAME = re.compile(rf"({'|'.join(SPLITS)})-(\d+)-(\d+)-(.+)")


def scenes_of(
    split: str,
    count: int,
    *,
    seed: int = 0,
    situations: Sequence[str] = tuple(SITUATIONS),
    future: int = HORIZON,
    files: Sequence[Path] = (),
) -> list[Scene]:
    """`count` scenes of a split from the generator (`outdo.driving.generator.generate`), or those of `files`.

    Of files come at most `count`, and no split: name others for each.

    Raises:
        ValueError: as `generate`. SceneError: as `of_files`.
    """
    if files:
        return of_files(files)[:count]
    return generate(split, count, seed=seed, situations=situations, future=future)


def of_files(paths: Sequence[Path]) -> list[Scene]:
    """The scenes of CommonRoad files and Argoverse 2 logs, `completed`, in order; of a folder of them all.

    Raises:
        SceneError: as `outdo.driving.readers.read`, or a folder without any.
    """
    return [completed(read(place)) for path in paths for place in _places(path)]


def _places(path: Path) -> list[Path]:
    """`path`, or what a folder holds that is no log itself."""
    if not path.is_dir() or _is_log(path):
        return [path]
    found = [place for place in sorted(path.iterdir()) if place.suffix == ".xml" or _is_log(place)]
    if not found:
        raise SceneError(f"{path}: no CommonRoad .xml file and no folder of an Argoverse 2 log in it")
    return found


def _is_log(path: Path) -> bool:
    return path.is_dir() and any(True for pattern in LOG_FILES for _ in path.glob(pattern))


def completed(scene: Scene) -> Scene:
    """The scene with a log that lasts for a trajectory, the ego in it at every step from `now` on.

    A log that ends sooner is continued: of others nothing more is known, so they are absent from its end on (those
    that react drive on), and signals keep their last state. Where the ego's log has gaps after `now`, all of it from
    there on is the flawless expert's drive: so it is with the planning problems of CommonRoad, which end at `now`.
    """
    more = max(HORIZON - scene.future, 0)
    if not more and scene.valid[0, scene.now :].all():
        return scene
    state = np.pad(scene.state, ((0, 0), (0, more), (0, 0)), constant_values=np.nan)
    valid = np.pad(scene.valid, ((0, 0), (0, more)))
    signals = tuple(
        replace(signal, states=np.pad(signal.states, (0, more), "edge")) for signal in scene.signals
    )
    longer = replace(scene, state=state, valid=valid, signals=signals)
    record, _ = run([longer], steps=longer.future)
    state[0, scene.now :], valid[0, scene.now :] = record.state[0, :, 0], True
    return replace(longer, state=state, valid=valid)


def disturbed(scenes: Sequence[Scene], rng: Generator, flaws: Flaws) -> list[Scene]:
    """Each scene with the log of a flawed driver whose hands and feet are not steady.

    A policy that clones an expert gets into states that no expert was ever in, and does not know the way out
    (Laskey et al. 2017, DART, arXiv 1703.09327): here are such states to answer from. Noise of 1 s correlation time
    and standard deviation 0.6 m/s², and 0.5 m/s² sideways at 0.02 1/m or less, is added to the controls. See `relogged`
    for what trouble does to the log.

    Raises:
        SceneError: as `outdo.driving.simulator.drive`.
    """
    steps = min(scene.future for scene in scenes)
    driver = Expert(scenes, steps, [draw_driver(rng, flaws)[0] for _ in scenes])
    noise = _noise(rng, len(scenes), steps)

    def plan(simulator: Simulator) -> Floats:
        speed = np.maximum(np.abs(simulator.state[:, 0, 3]), 5.0)
        scale = np.stack([np.full_like(speed, 0.6), 0.5 / speed**2], -1)
        return driver(simulator) + (scale * noise[:, simulator.t])[:, None]

    return relogged(drive(scenes, plan, every=1, steps=steps))


def relogged(record: Drive) -> list[Scene]:
    """The scenes of a drive, each with what happened as its log from `now` to the end of the drive.

    From half a second before the ego touches something or leaves the road its log has a gap.
    """
    result: list[Scene] = []
    for n, scene in enumerate(record.scenes):
        found = measure(scene, record.state[n], record.valid[n], record.size[n])
        trouble = np.flatnonzero((found.gap <= 0) | found.off_road)
        end = scene.now + record.state.shape[1]
        state, valid = scene.state[:, :end].copy(), scene.valid[:, :end].copy()
        state[:, scene.now :] = record.state[n, :, : scene.actors].transpose(1, 0, 2)
        valid[:, scene.now :] = record.valid[n, :, : scene.actors].T
        if len(trouble):
            valid[0, scene.now + max(int(trouble[0]) - 5, 0) + 1 :] = False
        signals = tuple(replace(signal, states=signal.states[:end]) for signal in scene.signals)
        result.append(replace(scene, state=state, valid=valid, signals=signals))
    return result


def _noise(rng: Generator, size: int, steps: int) -> Floats:
    """Noise [size, steps, 2] of unit variance that forgets over 1 s: x' = ρ·x + √(1 − ρ²)·ε, ρ = exp(−dt)."""
    keep = np.exp(-DT)
    fresh = rng.standard_normal((steps, size, 2))
    out, x = np.empty((size, steps, 2)), rng.standard_normal((size, 2))
    for t in range(steps):
        out[:, t] = x = keep * x + np.sqrt(1 - keep**2) * fresh[t]
    return out


def later(scenes: Sequence[Scene], rng: Generator) -> list[Scene]:
    """Each scene with `now` moved on to a random step that leaves 64, so that drives are seen from their middle too.

    Raises:
        SceneError: a log that is too short.
    """
    result: list[Scene] = []
    for scene in scenes:
        steps = range(scene.now, scene.steps - HORIZON)
        starts = [k for k in steps if scene.valid[0, k]]
        if not starts:
            raise SceneError(f"scene {scene.id!r}: its log has no {HORIZON} steps after now")
        result.append(replace(scene, now=starts[int(rng.integers(len(starts)))]))
    return result


def choose_scene(text: str) -> Scene:
    """The scene that `text` names.

    | text | scene |
    |---|---|
    | `test-0-12-cut-in` | split, seed, index and situation, as the generator names its scenes |
    | `cut-in` | the first test scene of the situation |
    | a path | the scene of a CommonRoad `.xml` file or of the folder of an Argoverse 2 log |

    Raises:
        ValueError: none of these. SceneError: a faulty file, or a folder with several scenes.
    """
    known = {name.replace(" ", "-"): name for name in SITUATIONS}
    split, seed, index, name = "test", "0", None, text.replace(" ", "-")
    if found := _NAME.fullmatch(name):
        split, seed, index, name = found.groups()
    if name in known:
        first = list(known).index(name) if index is None else int(index)
        return generate(split, 1, seed=int(seed), first=first, situations=[known[name]])[0]
    path = Path(text)
    if path.suffix == ".xml" or (text and path.exists()):
        if len(places := _places(path)) > 1:
            names = ", ".join(place.name for place in places[:10])
            raise SceneError(f"{path} holds {len(places)} scenes, name one of them: {names}")
        return of_files(places)[0]
    raise ValueError(
        f"no scene is called {text!r}; {nearest(name, known)} A scene is named by split ({', '.join(SPLITS)}), seed, "
        f"index and situation, like test-0-12-cut-in; by a situation alone ({', '.join(known)}); or by the path of a "
        "CommonRoad .xml file or of the folder of an Argoverse 2 log"
    )
