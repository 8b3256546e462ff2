"""Polylines and polygons as the flat arrays that compiled code reads."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Polygons = tuple[Floats, NDArray[np.int64], Floats]


def pack_polygons(polygons: Sequence[Floats]) -> Polygons:
    """Points [Q, 2] of all polygons, where each starts [K + 1], and its bounds [K, 4] (x0, y0, x1, y1)."""
    starts = np.cumsum([0, *(len(polygon) for polygon in polygons)], dtype=np.int64)
    points = np.concatenate(polygons) if polygons else np.zeros((0, 2))
    boxes = [np.concatenate([polygon.min(0), polygon.max(0)]) for polygon in polygons]
    return np.ascontiguousarray(points), starts, np.array(boxes).reshape(-1, 4)


def arc_length(line: Floats) -> Floats:
    """Distance [P] in m along a polyline [P, ≥ 2] from its first point."""
    steps = np.hypot(np.diff(line[:, 0]), np.diff(line[:, 1]))
    return np.concatenate([[0.0], np.cumsum(steps)])


def resample(line: Floats, spacing: float) -> Floats:
    """Points every `spacing` m along a polyline [P, C], its columns interpolated; at least two.

    The last segment is continued to the next multiple of `spacing`.
    """
    length = arc_length(line)
    count = max(2, int(np.ceil(length[-1] / spacing - 1e-9)) + 1)
    at = np.arange(count) * spacing
    points = np.stack([np.interp(at, length, column) for column in line.T], -1)
    beyond = at[-1] - length[-1]
    if beyond > 0:
        slope = (line[-1, :2] - line[-2, :2]) / (length[-1] - length[-2])
        points[-1, :2] = line[-1, :2] + beyond * slope
    return points
