"""Argoverse 2 (arXiv 2301.00493): sensor logs (feather tables) and motion-forecasting scenarios (parquet).

One folder is one log: `city_SE3_egovehicle.feather` with `annotations*.feather`, or `scenario_*.parquet`, and its
map `log_map_archive_*.json` there or in `map/`. There are no lights and no speed limits. Axes: T steps of 0.1 s.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outdo.driving.readers.common import Track, build, centre_of, distinct, lanes_at, middle, onward, speeds
from outdo.driving.scene import HISTORY, Kind, Lane, Scene, SceneError

Floats = NDArray[np.float64]
Table = dict[str, NDArray[Any]]

EGO_SIZE = (4.877, 2.0)  # m, the vehicle that recorded the data
AXLE = 1.42  # m from its rear axle, the origin of its frame, to the middle of its box (our estimate)
STEP = 100_000_000  # ns
JOIN = 10.0  # m that a route takes from the end of the ego's path to the middle of its lane
SIZES = {"bus": (12.0, 2.9), "pedestrian": (0.7, 0.7), "cyclist": (1.8, 0.7), "motorcyclist": (2.2, 0.8)}
SKIPPED = frozenset({"EGO_VEHICLE", "background"})
POSE = ("timestamp_ns", "qw", "qx", "qy", "qz", "tx_m", "ty_m", "tz_m")
BOXES = (*POSE, "track_uuid", "category", "length_m", "width_m")
FORECAST = (
    "track_id",
    "object_type",
    "timestep",
    "position_x",
    "position_y",
    "heading",
    "velocity_x",
    "velocity_y",
)


def read(folder: Path, *, now: int = HISTORY - 1) -> Scene:
    """The scene of the log in `folder`, the recording vehicle as the ego, its own path as the route.

    Sizes that forecasting scenarios lack are typical ones of each type.

    Raises:
        SceneError: files missing or unreadable, a missing column, a value that is not finite (file, row, column).
        ImportError: pyarrow is missing.
    """
    scenario = sorted(folder.glob("scenario_*.parquet"))
    tracks = _forecast(scenario[0]) if scenario else _sensor(folder)
    lanes, drivable = _map(_one(folder, "log_map_archive_*.json", "map/log_map_archive_*.json"))
    route, names = _route(folder, tracks[0].state, now, lanes)
    return build(folder.name, "argoverse 2", now, tracks, lanes, drivable, route, names)


def _one(folder: Path, *patterns: str) -> Path:
    for pattern in patterns:
        if found := sorted(folder.glob(pattern)):
            return found[0]
    raise SceneError(f"{folder}: no file {' or '.join(patterns)}")


def _table(path: Path, columns: tuple[str, ...]) -> Table:
    """The `columns` of a table as arrays, all numbers finite."""
    try:
        import pyarrow
        from pyarrow import feather, parquet
    except ImportError as error:
        raise ImportError("Argoverse 2 needs pyarrow: pip install 'outdo[driving]'") from error
    try:
        table = parquet.read_table(path) if path.suffix == ".parquet" else feather.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise SceneError(f"{path}: cannot be read: {error}") from error
    if missing := [name for name in columns if name not in table.column_names]:
        raise SceneError(f"{path}: no column {', '.join(missing)}")
    out: Table = {name: table[name].to_numpy(zero_copy_only=False) for name in columns}
    for name, values in out.items():
        if values.dtype == object:
            bad = np.array([value is None for value in values], np.bool_)
        else:
            bad = ~np.isfinite(values)
        if bad.any():
            row = int(np.argmax(bad))
            raise SceneError(f"{path}: row {row}, column {name!r}: {values[row]} is no value")
    if not len(out[columns[0]]):
        raise SceneError(f"{path}: no rows")
    return out


def _rotation(table: Table) -> Floats:
    """Rotation matrices [N, 3, 3] of unit quaternions."""
    w, x, y, z = (table[name] for name in ("qw", "qx", "qy", "qz"))
    rows = [
        [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
        [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
        [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
    ]
    return np.moveaxis(np.array(rows), -1, 0)


def _sensor(folder: Path) -> list[Track]:
    """Tracks of a sensor log: boxes in the frame of the ego, whose pose is in that of the city."""
    boxes_file = _one(folder, "annotations*.feather")
    poses_file = _one(folder, "city_SE3_egovehicle.feather")
    poses, boxes = _table(poses_file, POSE), _table(boxes_file, BOXES)
    order = np.argsort(poses["timestamp_ns"], kind="stable")
    at = np.searchsorted(poses["timestamp_ns"][order], boxes["timestamp_ns"])
    pose = order[np.minimum(at, len(order) - 1)]
    lost = poses["timestamp_ns"][pose] != boxes["timestamp_ns"]
    if lost.any():
        row = int(np.argmax(lost))
        raise SceneError(
            f"{boxes_file}: row {row}: {poses_file.name} has no pose at {boxes['timestamp_ns'][row]}"
        )
    first = boxes["timestamp_ns"].min()
    step = np.rint((boxes["timestamp_ns"] - first) / STEP).astype(np.int64)
    turn, own = _rotation(poses), _rotation(boxes)
    place = np.stack([boxes["tx_m"], boxes["ty_m"], boxes["tz_m"]], -1)
    origin = np.stack([poses["tx_m"][pose], poses["ty_m"][pose]], -1)
    place = (turn[pose, :2] @ place[..., None])[..., 0] + origin
    ahead = turn[pose] @ own[:, :, :1]
    heading = np.arctan2(ahead[:, 1, 0], ahead[:, 0, 0])
    length = int(step.max()) + 1
    ego = np.full((length, 4), np.nan)
    yaw = np.arctan2(turn[pose, 1, 0], turn[pose, 0, 0])
    ego[step, 0] = poses["tx_m"][pose] + AXLE * np.cos(yaw)
    ego[step, 1] = poses["ty_m"][pose] + AXLE * np.sin(yaw)
    ego[step, 2] = yaw
    ego[:, 3] = speeds(ego)
    tracks = [Track(Kind.VEHICLE, EGO_SIZE, ego, "ego")]
    states = np.concatenate([place, heading[:, None]], -1)
    for name, rows in _rows_of(boxes["track_uuid"]).items():
        category = str(boxes["category"][rows[0]])
        if category in SKIPPED:
            continue
        state = _fill(boxes_file, name, length, step, states, rows)
        state[:, 3] = speeds(state)
        size = (float(np.median(boxes["length_m"][rows])), float(np.median(boxes["width_m"][rows])))
        tracks.append(Track(_kind(category), size, state, name))
    return tracks


def _forecast(path: Path) -> list[Track]:
    """Tracks of a motion-forecasting scenario; the ego is the track `AV`."""
    table = _table(path, FORECAST)
    step = table["timestep"].astype(np.int64)
    if step.min() < 0:
        raise SceneError(f"{path}: row {int(np.argmin(step))}, column 'timestep': {step.min()} is negative")
    length = int(step.max()) + 1
    along = np.cos(table["heading"]) * table["velocity_x"] + np.sin(table["heading"]) * table["velocity_y"]
    states = np.stack([table["position_x"], table["position_y"], table["heading"], along], -1)
    tracks: list[Track] = []
    for name, rows in _rows_of(table["track_id"]).items():
        category = str(table["object_type"][rows[0]])
        if category in SKIPPED:
            continue
        state = _fill(path, name, length, step, states, rows)
        size = EGO_SIZE if name == "AV" else SIZES.get(category, (1.0, 1.0))
        if name != "AV" and category == "vehicle":
            size = (4.6, 1.9)
        tracks.append(Track(_kind(category), size, state, name))
    tracks.sort(key=lambda track: track.name != "AV")
    if not tracks or tracks[0].name != "AV":
        raise SceneError(f"{path}: no track 'AV', the vehicle that recorded the log")
    return tracks


def _rows_of(names: NDArray[Any]) -> Mapping[str, NDArray[np.int64]]:
    unique, inverse = np.unique(names.astype(str), return_inverse=True)
    order = np.argsort(inverse, kind="stable")
    parts = np.split(order, np.cumsum(np.bincount(inverse))[:-1])
    return dict(zip((str(name) for name in unique), parts, strict=True))


def _fill(
    path: Path, name: str, length: int, step: NDArray[np.int64], states: Floats, rows: NDArray[np.int64]
) -> Floats:
    """States [T, 4] of one track, NaN where it has a gap."""
    unique, count = np.unique(step[rows], return_counts=True)
    if (count > 1).any():
        twice = unique[np.argmax(count > 1)]
        row = rows[np.flatnonzero(step[rows] == twice)[1]]
        raise SceneError(f"{path}: row {row}: track {name} appears twice at step {twice}")
    out = np.full((length, 4), np.nan)
    out[step[rows], : states.shape[1]] = states[rows]
    return out


def _kind(category: str) -> Kind:
    name = category.lower()
    if name in ("pedestrian", "stroller", "wheelchair", "dog", "animal", "official_signaler"):
        return Kind.PEDESTRIAN
    if name in (
        "cyclist",
        "bicyclist",
        "motorcyclist",
        "motorcycle",
        "bicycle",
        "wheeled_rider",
        "wheeled_device",
    ):
        return Kind.CYCLIST
    if "vehicle" in name or "truck" in name or "bus" in name or name == "vehicular_trailer":
        return Kind.VEHICLE
    return Kind.STATIC


def _map(path: Path) -> tuple[dict[str, Lane], tuple[Floats, ...]]:
    """Lanes for vehicles and drivable polygons of a map file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        segments, areas = content["lane_segments"], content["drivable_areas"]
        used = {key: lane for key, lane in segments.items() if lane["lane_type"] != "BIKE"}
    except (OSError, ValueError) as error:
        raise SceneError(f"{path}: cannot be read: {error}") from error
    except (KeyError, TypeError, AttributeError) as error:
        raise SceneError(f"{path}: no Argoverse 2 map: {error!r} is missing or of another kind") from error
    lanes = {str(lane.get("id", key)): _lane(path, key, lane) for key, lane in used.items()}
    known = {name: _linked(lane, lanes) for name, lane in lanes.items()}
    drivable = tuple(
        _points(path, f"drivable_areas/{key}/area_boundary", area.get("area_boundary"), closed=True)
        for key, area in areas.items()
    )
    return known, drivable


def _points(path: Path, place: str, points: Any, *, closed: bool = False) -> Floats:
    """Points [P, 2] of a list of {x, y}."""
    if not isinstance(points, list) or len(points) < (3 if closed else 2):
        raise SceneError(f"{path}: {place}: needs a list of points")
    out = np.empty((len(points), 2))
    for row, point in enumerate(points):
        for column, axis in enumerate("xy"):
            value = point.get(axis) if isinstance(point, dict) else None
            if not isinstance(value, int | float) or not math.isfinite(value):
                raise SceneError(f"{path}: {place}/{row}/{axis}: {value!r} is no finite number")
            out[row, column] = value
    out = distinct(out)
    return out[:-1] if closed and (out[0] == out[-1]).all() else out


def _lane(path: Path, key: str, lane: Mapping[str, Any]) -> Lane:
    place = f"lane_segments/{key}"
    left = _points(path, f"{place}/left_lane_boundary", lane.get("left_lane_boundary"))
    right = _points(path, f"{place}/right_lane_boundary", lane.get("right_lane_boundary"))
    if len(left) < 2 or len(right) < 2:
        raise SceneError(f"{path}: {place}: a boundary is a single point")
    centre, width = middle(left, right)
    return Lane(
        id=str(lane.get("id", key)),
        centre=centre,
        width=width,
        speed_limit=math.inf,
        successors=tuple(str(other) for other in lane.get("successors", ())),
        left=_name(lane.get("left_neighbor_id")),
        right=_name(lane.get("right_neighbor_id")),
        intersection=bool(lane.get("is_intersection", False)),
    )


def _name(value: Any) -> str | None:
    return None if value is None else str(value)


def _linked(lane: Lane, lanes: Mapping[str, Lane]) -> Lane:
    """The lane with links only to lanes of the map, and to neighbours only of its own direction."""

    def beside(other: str | None) -> str | None:
        if other is None or other not in lanes:
            return None
        one, two = (line.centre[-1] - line.centre[0] for line in (lane, lanes[other]))
        return other if float(one @ two) > 0 else None

    ahead = tuple(name for name in lane.successors if name in lanes)
    return replace(lane, successors=ahead, left=beside(lane.left), right=beside(lane.right))


def _route(folder: Path, ego: Floats, now: int, lanes: dict[str, Lane]) -> tuple[Floats, tuple[str, ...]]:
    """The ego's own path, points 2 m apart, and on along the lanes where it ends."""
    seen = ego[np.isfinite(ego).all(1)]
    if not len(seen):
        raise SceneError(f"{folder}: the ego was never seen")
    path = [seen[0, :2]]
    for place in seen[1:, :2]:
        if np.linalg.norm(place - path[-1]) >= 2.0:
            path.append(place)
    x, y, heading, _ = seen[-1]
    here = lanes_at(lanes, x, y, heading)
    names = tuple(dict.fromkeys(name for row in seen[::5] for name in lanes_at(lanes, *row[:3])[:1]))
    line = np.array(path)
    if here:
        ahead = onward(lanes, here[0])
        centre = centre_of(lanes, ahead)
        after = (centre - seen[-1, :2]) @ np.array([np.cos(heading), np.sin(heading)]) > JOIN
        start = int(np.argmax(after)) if after.any() else len(centre)
        line = np.concatenate([line, centre[start:]])
        names = (*names, *(name for name in ahead if name not in names))
    if len(line) < 2:
        raise SceneError(f"{folder}: no route: the ego stands where no lane is (x {x:.1f}, y {y:.1f})")
    return distinct(line), names
