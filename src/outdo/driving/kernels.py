"""Compiled geometry: unicycle, oriented boxes, polylines, polygons.

Float64 arrays, C-contiguous; nothing is checked here. Axes: N scenes (or scenes × steps), A actors (0 is the ego),
P points. `state` [N, A, 4] x, y, heading, speed; `axis` [N, A, 2] cosine and sine of the heading; `size` [N, A, 2]
length, width. What `valid` [N, A] calls absent is never read.
"""

from __future__ import annotations

import math
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Mask = NDArray[np.bool_]


@numba.njit(cache=True)
def axes(state: Floats, valid: Mask, axis: Floats) -> None:
    """Write cos θ and sin θ into `axis`."""
    for n in range(state.shape[0]):
        for i in range(state.shape[1]):
            if valid[n, i]:
                axis[n, i, 0] = math.cos(state[n, i, 2])
                axis[n, i, 1] = math.sin(state[n, i, 2])


@numba.njit(cache=True)
def advance(state: Floats, axis: Floats, control: Floats, driven: Mask, dt: float) -> None:
    """`dynamics.advance` in place for the actors that are `driven` [N, A] by `control` [N, A, 2]."""
    for n in range(state.shape[0]):
        for i in range(state.shape[1]):
            if not driven[n, i]:
                continue
            v, a, kappa = state[n, i, 3], control[n, i, 0], control[n, i, 1]
            v1 = v + a * dt
            theta = state[n, i, 2] + kappa * (v * dt + a * dt * dt / 2)
            cos, sin = math.cos(theta), math.sin(theta)
            state[n, i, 0] += dt / 2 * (v * axis[n, i, 0] + v1 * cos)
            state[n, i, 1] += dt / 2 * (v * axis[n, i, 1] + v1 * sin)
            state[n, i, 2], state[n, i, 3] = theta, v1
            axis[n, i, 0], axis[n, i, 1] = cos, sin


@numba.njit(cache=True, inline="always")
def overlap(dx: float, dy: float, c1: float, s1: float, c2: float, s2: float, a: Any, b: Any) -> bool:
    """Whether two boxes overlap, by separating axes.

    (dx, dy) leads from the first centre to the second, (c, s) are the headings, `a` and `b` lengths and widths.
    """
    l1, w1, l2, w2 = a[0] / 2, a[1] / 2, b[0] / 2, b[1] / 2
    cos, sin = abs(c1 * c2 + s1 * s2), abs(c1 * s2 - s1 * c2)
    return (
        abs(dx * c1 + dy * s1) <= l1 + l2 * cos + w2 * sin
        and abs(dy * c1 - dx * s1) <= w1 + l2 * sin + w2 * cos
        and abs(dx * c2 + dy * s2) <= l2 + l1 * cos + w1 * sin
        and abs(dy * c2 - dx * s2) <= w2 + l1 * sin + w1 * cos
    )


@numba.njit(cache=True)
def contacts(state: Floats, axis: Floats, size: Floats, valid: Mask, hit: Mask) -> None:
    """`hit` [N, A]: whether the box of each actor overlaps that of any other that is there."""
    actors = state.shape[1]
    radius = np.empty(actors)
    for n in range(state.shape[0]):
        for i in range(actors):
            hit[n, i] = False
            radius[i] = math.sqrt(size[n, i, 0] ** 2 + size[n, i, 1] ** 2) / 2 if valid[n, i] else -math.inf
        for i in range(actors - 1):
            x, y, r = state[n, i, 0], state[n, i, 1], radius[i]
            if r < 0:
                continue
            for j in range(i + 1, actors):
                dx, dy, reach = state[n, j, 0] - x, state[n, j, 1] - y, r + radius[j]
                if reach < 0 or dx * dx + dy * dy > reach * reach:
                    continue
                if overlap(
                    dx,
                    dy,
                    axis[n, i, 0],
                    axis[n, i, 1],
                    axis[n, j, 0],
                    axis[n, j, 1],
                    size[n, i],
                    size[n, j],
                ):
                    hit[n, i] = True
                    hit[n, j] = True


@numba.njit(cache=True, inline="always")
def _corners_to_box(
    dx: float, dy: float, c1: float, s1: float, c2: float, s2: float, a: Any, b: Any
) -> float:
    """Smallest distance from a corner of the second box to the first."""
    best = math.inf
    for k in range(4):
        along = b[0] / 2 * (1 if k < 2 else -1)
        across = b[1] / 2 * (1 if k % 2 else -1)
        x, y = dx + along * c2 - across * s2, dy + along * s2 + across * c2
        u = max(abs(x * c1 + y * s1) - a[0] / 2, 0.0)
        w = max(abs(y * c1 - x * s1) - a[1] / 2, 0.0)
        best = min(best, u * u + w * w)
    return math.sqrt(best)


@numba.njit(cache=True)
def gap(dx: float, dy: float, c1: float, s1: float, c2: float, s2: float, a: Any, b: Any) -> float:
    """Distance in m between two boxes, 0 where they overlap; arguments as of `overlap`.

    Two convex shapes that do not overlap are nearest at a corner of one of them.
    """
    if overlap(dx, dy, c1, s1, c2, s2, a, b):
        return 0.0
    there = _corners_to_box(dx, dy, c1, s1, c2, s2, a, b)
    return min(there, _corners_to_box(-dx, -dy, c2, s2, c1, s1, b, a))


@numba.njit(cache=True)
def contact_time(
    dx: float, dy: float, vx: float, vy: float, c1: float, s1: float, c2: float, s2: float, a: Any, b: Any
) -> float:
    """Seconds until two boxes overlap if they keep their velocities and headings, ∞ if they never do.

    (vx, vy) is the second's velocity less the first's; the others are as of `overlap`. On each separating axis
    they overlap for one interval of time; the boxes do where all four intervals meet.
    """
    l1, w1, l2, w2 = a[0] / 2, a[1] / 2, b[0] / 2, b[1] / 2
    cos, sin = abs(c1 * c2 + s1 * s2), abs(c1 * s2 - s1 * c2)
    enter, leave = 0.0, math.inf
    for k in range(4):
        c, s = (c1, s1) if k < 2 else (c2, s2)
        if k % 2:
            c, s = -s, c
        if k == 0:
            reach = l1 + l2 * cos + w2 * sin
        elif k == 1:
            reach = w1 + l2 * sin + w2 * cos
        elif k == 2:
            reach = l2 + l1 * cos + w1 * sin
        else:
            reach = w2 + l1 * sin + w1 * cos
        at, rate = dx * c + dy * s, vx * c + vy * s
        if abs(rate) < 1e-9:
            if abs(at) > reach:
                return math.inf
            continue
        one, two = (-reach - at) / rate, (reach - at) / rate
        enter, leave = max(enter, min(one, two)), min(leave, max(one, two))
    return enter if enter <= leave else math.inf


@numba.njit(cache=True)
def ego_gaps(state: Floats, axis: Floats, size: Floats, valid: Mask, gaps: Floats) -> None:
    """`gaps` [N, A]: distance from the ego's box to that of each actor, ∞ where one is absent and for itself."""
    for n in range(state.shape[0]):
        for j in range(state.shape[1]):
            gaps[n, j] = math.inf
            if j == 0 or not valid[n, 0] or not valid[n, j]:
                continue
            gaps[n, j] = gap(
                state[n, j, 0] - state[n, 0, 0],
                state[n, j, 1] - state[n, 0, 1],
                axis[n, 0, 0],
                axis[n, 0, 1],
                axis[n, j, 0],
                axis[n, j, 1],
                size[n, 0],
                size[n, j],
            )


@numba.njit(cache=True)
def project(line: Floats, length: Floats, x: float, y: float) -> tuple[float, float, float, float]:
    """Nearest point of a polyline [P, 2] with arc lengths [P]: (s, offset, heading, distance).

    s in m from its start, the offset across the nearest segment in m is positive to the left; where the nearest
    point is an end, the distance is larger than that.
    """
    best, s, nearest = math.inf, 0.0, 0
    for k in range(line.shape[0] - 1):
        ux, uy = line[k + 1, 0] - line[k, 0], line[k + 1, 1] - line[k, 1]
        dx, dy = x - line[k, 0], y - line[k, 1]
        share = min(max((dx * ux + dy * uy) / (ux * ux + uy * uy), 0.0), 1.0)
        ex, ey = dx - share * ux, dy - share * uy
        distance = ex * ex + ey * ey
        if distance < best:
            best, nearest, s = distance, k, share
    ux, uy = line[nearest + 1, 0] - line[nearest, 0], line[nearest + 1, 1] - line[nearest, 1]
    span = length[nearest + 1] - length[nearest]
    offset = (ux * (y - line[nearest, 1]) - uy * (x - line[nearest, 0])) / span
    return length[nearest] + s * span, offset, math.atan2(uy, ux), math.sqrt(best)


@numba.njit(cache=True)
def inside(points: Floats, starts: NDArray[np.int64], boxes: Floats, x: float, y: float) -> bool:
    """Whether (x, y) lies in one of the polygons `points[starts[k]:starts[k + 1]]` with bounds `boxes` [K, 4].

    Even-odd crossings, half open: a point on an edge that two polygons share lies in exactly one of them.
    """
    for k in range(starts.size - 1):
        if not (boxes[k, 0] <= x <= boxes[k, 2] and boxes[k, 1] <= y <= boxes[k, 3]):
            continue
        odd, last = False, starts[k + 1] - 1
        for i in range(starts[k], starts[k + 1]):
            x0, y0, x1, y1 = points[last, 0], points[last, 1], points[i, 0], points[i, 1]
            if (y0 > y) != (y1 > y) and x < x0 + (y - y0) * (x1 - x0) / (y1 - y0):
                odd = not odd
            last = i
        if odd:
            return True
    return False


@numba.njit(cache=True)
def off_road(
    state: Floats, size: Any, points: Floats, starts: NDArray[np.int64], boxes: Floats, out: Mask
) -> None:
    """`out` [T]: whether a corner of the box at `state` [T, 4] of `size` (length, width) lies in no polygon."""
    for t in range(state.shape[0]):
        cos, sin = math.cos(state[t, 2]), math.sin(state[t, 2])
        out[t] = False
        for k in range(4):
            along = size[0] / 2 * (1 if k < 2 else -1)
            across = size[1] / 2 * (1 if k % 2 else -1)
            x, y = state[t, 0] + along * cos - across * sin, state[t, 1] + along * sin + across * cos
            if not inside(points, starts, boxes, x, y):
                out[t] = True
                break
