"""Hand-made scenes: a straight road of two lanes along x, with actors that keep their speed."""

from __future__ import annotations

import numpy as np

from outdo.driving.scene import HISTORY, HORIZON, Kind, Lane, Light, Scene, Signal

NOW = HISTORY - 1
STEPS = HISTORY + HORIZON


def moving(x, y, speed, heading=0.0, steps=STEPS):
    """A log [T, 4] at constant velocity, at (x, y) at step `NOW`."""
    t = (np.arange(steps) - NOW) * 0.1
    ones = np.ones(steps)
    along = speed * t
    return np.stack(
        [x + along * np.cos(heading), y + along * np.sin(heading), heading * ones, speed * ones], -1
    )


def box(x0, y0, x1, y1):
    return np.array([[x0, y0], [x1, y0], [x1, y1], [x0, y1]], np.float64)


def road(*logs, kinds=None, sizes=None, valid=None, signals=(), scene="straight", **changes):
    """Actors (the first is the ego) on a road: lane a at y = 0, lane b left of it at y = 3.5, x from −200 to 600."""
    state = np.stack(logs)
    valid = np.ones(state.shape[:2], np.bool_) if valid is None else valid
    state = np.where(valid[..., None], state, np.nan)
    ends = np.array([[-200.0, 0.0], [600.0, 0.0]])
    lanes = {
        "a": Lane("a", ends, 3.5, 15.0, left="b"),
        "b": Lane("b", ends + np.array([0, 3.5]), 3.5, 15.0, right="a"),
    }
    fields = {
        "id": scene,
        "situation": "test",
        "now": NOW,
        "state": state,
        "valid": valid,
        "size": np.tile([4.0, 2.0], (len(logs), 1)) if sizes is None else np.array(sizes, np.float64),
        "kind": np.full(len(logs), Kind.VEHICLE, np.int8) if kinds is None else np.array(kinds, np.int8),
        "lanes": lanes,
        "drivable": (box(-200, -1.75, 600, 5.25),),
        "route": ends,
        "route_lanes": ("a",),
        "signals": signals,
    }
    return Scene(**(fields | changes))


def light(x, state=Light.RED, lane="a"):
    """A signal across lane a at `x` with one state at all steps (or `STEPS` of them)."""
    return Signal(lane, np.array([[x, -1.75], [x, 1.75]]), np.full(STEPS, state, np.int8))
