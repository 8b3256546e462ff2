"""Figures of closed-loop drives, none of them the training reward: rates with intervals and four public scores.

Axes: S scenes, T simulated steps. A scene that is at fault itself (its log is off the road, or boxes overlap, at
the first step, or it has `Scene.faults`) is left out of every figure and counted.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from outdo.core.statistics import Interval, wilson_interval
from outdo.driving import comfort
from outdo.driving.measures import Measures, at_fault, measure
from outdo.driving.scene import DT
from outdo.driving.simulator import Drive, logged

Floats = NDArray[np.float64]

SHORT_WAY = 5.0  # m: progress counts as made where even the reference makes no more
RATES = ("collision", "at_fault", "close_encounter", "off_road", "red_light", "uncomfortable")


def min_ade(candidates: Floats, truth: Floats) -> Floats:
    """Smallest mean distance in m [S] of candidates [S, K, H, ≥ 2] from the truth [S, H, ≥ 2]."""
    apart = np.linalg.norm(candidates[..., :2] - truth[:, None, :, :2], axis=-1)
    return apart.mean(-1).min(-1)


def progress_ratio(made: float, reference: float) -> float:
    """Share of the reference's progress, in [0, 1]: going further, or back at the end, earns nothing."""
    best = max(made, reference)
    return 1.0 if best <= SHORT_WAY else max(made, 0.0) / best


def direction_compliance(ego: Floats, oncoming: NDArray[np.bool_]) -> float:
    """DDC: metres [T, ≥ 2] driven in oncoming lanes within any 1 s: under 2 → 1, under 6 → ½, else 0."""
    metres = np.hypot(*np.diff(ego[:, :2], axis=0).T) * oncoming[1:]
    window = min(round(1 / DT), len(metres))
    most = np.convolve(metres, np.ones(window), "valid").max()
    return 1.0 if most < 2 else 0.5 if most < 6 else 0.0


def lane_keeping(centre: Floats, intersection: NDArray[np.bool_]) -> float:
    """LK: 0 where the ego is more than 0.5 m off centre for 2 s without a break; intersections are skipped."""
    run = 0
    for off, skipped in zip(centre, intersection, strict=True):
        run = run + 1 if not skipped and off > 0.5 else 0
        if run * DT >= 2 - 1e-9:
            return 0.0
    return 1.0


def speed_compliance(speed: Floats, limit: Floats) -> float:
    """1 less the mean excess over the limit in units of 2.23 m/s, at least 0 (nuPlan)."""
    return max(0.0, 1.0 - float(np.maximum(speed - limit, 0.0).mean()) / 2.23)


def terms(drive: Drive, reference: list[float] | None = None) -> dict[str, Floats]:
    """Terms of all scenes, each [S]; `reference` m along the route are full progress, else the drive's own.

    `faulty` 1 where the scene is at fault itself. Events 0 or 1: `collision`, `at_fault`, `close_encounter`,
    `off_road`, `red_light`, `uncomfortable`. `progress` m, `l2` mean distance from the log in m (where the log has
    the ego). Terms of the scores, 0 to 1: `nc`, `dac`, `ddc`, `tlc`, `ep`, `ttc`, `lk`, `comfort`, `ec`, `speed`.
    """
    smooth = comfort.comfortable(drive.state[:, :, 0], drive.control)
    every, count = drive.every, drive.plans.shape[1]
    starts = drive.state[:, : every * count : every, 0]
    agree = comfort.plans_agree(starts, drive.plans, every)
    rows: list[dict[str, float]] = []
    for n in range(len(drive.scenes)):
        row = _row(drive, n) | {"comfort": float(smooth[n]), "ec": float(agree[n])}
        row["ep"] = progress_ratio(row["progress"], row["progress"] if reference is None else reference[n])
        rows.append(row | {"uncomfortable": 1 - row["comfort"]})
    return {name: np.array([row[name] for row in rows]) for name in rows[0]}


def _row(drive: Drive, n: int) -> dict[str, float]:
    """The terms of scene `n` that come from its steps alone."""
    scene, state = drive.scenes[n], drive.state[n]
    m: Measures = measure(scene, state, drive.valid[n], drive.size[n])
    cut = slice(scene.now, scene.now + len(state))
    apart = np.linalg.norm(state[:, 0, :2] - scene.state[0, cut, :2], axis=-1)[scene.valid[0, cut]]
    return {
        "faulty": float(bool(scene.faults) or m.overlaps_at_start or m.off_road[0]),
        "collision": float(m.contact.any()),
        "at_fault": float(m.fault.any()),
        "close_encounter": float(m.close.any()),
        "off_road": float(m.off_road[1:].any()),
        "red_light": float(m.red > 0),
        "progress": m.progress,
        "l2": float(apart.mean()),
        "nc": at_fault(m, scene),
        "dac": float(not m.off_road[1:].any()),
        "ddc": direction_compliance(state[:, 0], m.oncoming),
        "tlc": float(m.red == 0),
        "ttc": float(not m.ahead.any()),
        "lk": lane_keeping(m.centre, m.intersection),
        "speed": speed_compliance(state[:, 0, 3], m.limit),
    }


def pdms(t: dict[str, Floats]) -> Floats:
    """NAVSIM: NC·DAC·(5·EP + 5·TTC + 2·C)/12."""
    return t["nc"] * t["dac"] * (5 * t["ep"] + 5 * t["ttc"] + 2 * t["comfort"]) / 12


def epdms(t: dict[str, Floats], human: dict[str, Floats]) -> Floats:
    """NAVSIM v2: NC·DAC·DDC·TLC·(5·EP + 5·TTC + 2·LK + 2·HC + 2·EC)/16, a term being 1 where the human's is 0."""
    f = {name: np.where(human[name] == 0, 1.0, t[name]) for name in t}
    weighted = 5 * f["ep"] + 5 * f["ttc"] + 2 * f["lk"] + 2 * f["comfort"] + 2 * f["ec"]
    return f["nc"] * f["dac"] * f["ddc"] * f["tlc"] * weighted / 16


def nuplan(t: dict[str, Floats]) -> Floats:
    """NC·DAC·MP·DDC·(5·EP + 5·TTC + 4·speed + 2·C)/16 with MP = 1 where EP ≥ 0.2, else 0."""
    weighted = 5 * t["ep"] + 5 * t["ttc"] + 4 * t["speed"] + 2 * t["comfort"]
    return t["nc"] * t["dac"] * (t["ep"] >= 0.2) * t["ddc"] * weighted / 16


def alpasim(t: dict[str, Floats]) -> Floats:
    """0 after an at-fault collision or off the road, else min(progress/0.8, 1)."""
    safe = (t["at_fault"] == 0) & (t["off_road"] == 0)
    return np.where(safe, np.minimum(t["ep"] / 0.8, 1.0), 0.0)


def evaluate(drive: Drive, human: dict[str, Floats] | None = None) -> dict[str, Floats]:
    """`terms`, and the scores `pdms`, `epdms`, `nuplan`, `alpasim`, each [S], against the `human`'s terms.

    By default those are the terms of the logs.
    """
    if human is None:
        human = terms(logged(drive.scenes, steps=drive.state.shape[1] - 1))
    result = terms(drive, human["progress"].tolist())
    scores = {"pdms": pdms(result), "nuplan": nuplan(result), "alpasim": alpasim(result)}
    return result | scores | {"epdms": epdms(result, human)}


def summary(
    figures: dict[str, Floats], confidence: float = 0.95, rates: Collection[str] = RATES
) -> dict[str, Interval]:
    """Rate or mean of each figure of `evaluate` with its interval, over the scenes that are not at fault.

    Wilson's interval for the `rates`, the normal one for means. `faulty` is the rate of scenes left out.

    Raises:
        ValueError: no scene is left.
    """
    faulty = figures["faulty"] > 0
    if faulty.all():
        raise ValueError(f"all {len(faulty)} scenes are at fault themselves; see Scene.faults and the map")
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    result = {"faulty": wilson_interval(int(faulty.sum()), len(faulty), confidence)}
    for name, values in figures.items():
        kept = values[~faulty]
        if name in rates:
            result[name] = wilson_interval(int(kept.sum()), len(kept), confidence)
        elif name != "faulty":
            mean = float(kept.mean())
            half = z * float(kept.std(ddof=1)) / math.sqrt(len(kept)) if len(kept) > 1 else math.inf
            result[name] = Interval(mean, mean - half, mean + half)
    return result
