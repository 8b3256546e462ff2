"""Comfort of a trajectory after nuPlan, and of consecutive plans after NAVSIM; never from raw differences.

Axes: S scenes, T steps, R plans of a drive, H steps of a plan.
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from outdo.driving import dynamics
from outdo.driving.scene import DT

Floats = NDArray[np.float64]

ACCELERATION, JERK, YAW = 8, 15, 5  # windows in steps
LIMITS = {
    "longitudinal acceleration": (-4.05, 2.40),
    "lateral acceleration": (-4.89, 4.89),
    "jerk": (-8.37, 8.37),
    "longitudinal jerk": (-4.13, 4.13),
    "yaw rate": (-0.95, 0.95),
    "yaw acceleration": (-1.93, 1.93),
}
PLAN_LIMITS = {"acceleration": 0.7, "jerk": 0.5, "yaw rate": 0.1, "yaw acceleration": 0.1}


@cache
def _weights(count: int, window: int, derivative: int) -> Floats:
    """The filter as a matrix [count, count]: row t fits a parabola to the window around t."""
    width = min(window, count)
    matrix = np.zeros((count, count))
    for t in range(count):
        first = min(max(t - width // 2, 0), count - width)
        at = np.arange(first, first + width) - t
        powers = np.vander(at, min(3, width), increasing=True)
        coefficients = np.linalg.pinv(powers)
        if derivative < len(coefficients):
            matrix[t, first : first + width] = coefficients[derivative] * max(derivative, 1)
    return matrix


def savitzky_golay(values: Floats, window: int, derivative: int = 0, dt: float = DT) -> Floats:
    """Smoothed `values` [..., T], or their first or second derivative: a parabola fitted around each step.

    Savitzky and Golay 1964, order 2. The window is centred (one step earlier where it is even), at the ends it
    is the first or last full one; it is all there is where there are fewer values.
    """
    return values @ _weights(values.shape[-1], window, derivative).T / dt**derivative


def quantities(state: Floats, acceleration: Floats | None = None) -> dict[str, Floats]:
    """What `LIMITS` limits, each [S, T], of states [S, T, 4]; `acceleration` [S, T] where it is known.

    Longitudinal acceleration and jerk are derivatives of the speed, lateral = speed × yaw rate; jerk is the
    derivative of the magnitude of both, as nuPlan has it. Windows: 8 steps for accelerations, 15 for jerks, 5 for
    yaw.
    """
    speed, heading = state[..., 3], np.unwrap(state[..., 2], axis=-1)
    if acceleration is None:
        along, jerk = savitzky_golay(speed, ACCELERATION, 1), savitzky_golay(speed, JERK, 2)
    else:
        along, jerk = acceleration, savitzky_golay(acceleration, JERK, 1)
    yaw = savitzky_golay(heading, YAW, 1)
    across = savitzky_golay(speed * yaw, ACCELERATION)
    return {
        "longitudinal acceleration": along,
        "lateral acceleration": across,
        "jerk": savitzky_golay(np.hypot(along, across), JERK, 1),
        "longitudinal jerk": jerk,
        "yaw rate": yaw,
        "yaw acceleration": savitzky_golay(heading, YAW, 2),
    }


def comfortable(state: Floats, control: Floats | None = None) -> NDArray[np.bool_]:
    """Whether a drive [S, T + 1, 4] stays within all `LIMITS` at all steps: [S].

    `control` [S, T, 2] gives the accelerations exactly where the drive was under control.
    """
    known = None
    if control is not None and control.shape[1]:
        known = np.concatenate([control[..., 0], control[:, -1:, 0]], 1)
    result = np.ones(len(state), np.bool_)
    for name, values in quantities(state, known).items():
        low, high = LIMITS[name]
        result &= ((values > low) & (values < high)).all(1)
    return result


def plans_agree(start: Floats, plans: Floats, every: int) -> Floats:
    """Share [S] of consecutive plans that agree where they overlap; 1 where there are fewer than two.

    Plan r [S, R, H, 2] begins at `start` [S, R, 4], `every` steps after the one before. They agree if the root
    mean squares of the differences of acceleration, jerk, yaw rate and yaw acceleration are within `PLAN_LIMITS`
    (NAVSIM's extended comfort, which compares two plans; over a drive we take the share).
    """
    count, overlap = plans.shape[1], plans.shape[2] - every
    if count < 2 or overlap < 1:
        return np.ones(len(plans))
    speed = dynamics.rollout(start, plans)[..., :-1, 3]
    acceleration, yaw = plans[..., 0], plans[..., 1] * speed
    compared = {
        "acceleration": acceleration,
        "jerk": savitzky_golay(acceleration, JERK, 1),
        "yaw rate": yaw,
        "yaw acceleration": savitzky_golay(yaw, JERK, 1),
    }
    agree = np.ones((len(plans), count - 1), np.bool_)
    for name, values in compared.items():
        apart = values[:, :-1, every:] - values[:, 1:, :overlap]
        agree &= np.sqrt((apart**2).mean(-1)) <= PLAN_LIMITS[name]
    return agree.mean(1)
