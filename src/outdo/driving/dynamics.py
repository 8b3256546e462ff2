"""The unicycle that control tokens drive, and its inverse.

    v' = v + a·dt,   θ' = θ + κ·(v·dt + a·dt²/2),   x' = x + dt/2·(v cos θ + v' cos θ'),   y likewise with sin.

Alpamayo-R1 (arXiv 2511.00088): acceleration a in ±9.8 m/s², curvature κ in ±0.2 1/m, 64 steps of 0.1 s. States
[..., 4] are x, y (m), θ (rad), v (m/s); controls [..., 2] are a, κ. Axes: N trajectories, H steps.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from outdo.driving.scene import DT

MAX_ACCELERATION = 9.8
MAX_CURVATURE = 0.2

Floats = NDArray[np.float64]


def wrap(angle: Floats) -> Floats:
    """The same angle in [−π, π)."""
    return (angle + np.pi) % (2 * np.pi) - np.pi


def advance(state: Floats, control: Floats, dt: float = DT) -> Floats:
    """State [..., 4] after `dt` seconds of `control` [..., 2]; nothing is clipped, the heading is not wrapped."""
    x, y, theta, v = np.moveaxis(state, -1, 0)
    a, kappa = np.moveaxis(control, -1, 0)
    v1 = v + a * dt
    theta1 = theta + kappa * (v * dt + a * dt * dt / 2)
    x1 = x + dt / 2 * (v * np.cos(theta) + v1 * np.cos(theta1))
    y1 = y + dt / 2 * (v * np.sin(theta) + v1 * np.sin(theta1))
    return np.stack([x1, y1, theta1, v1], -1)


def rollout(start: Floats, control: Floats, dt: float = DT) -> Floats:
    """States [..., H + 1, 4] from `start` [..., 4] under `control` [..., H, 2]; the first is `start`."""
    states = [start]
    for t in range(control.shape[-2]):
        states.append(advance(states[-1], control[..., t, :], dt))
    return np.stack(states, -2)


def feasible(control: Floats) -> NDArray[np.bool_]:
    """Whether each control [..., 2] is finite and within ±9.8 m/s² and ±0.2 1/m: [...]."""
    limit = np.array([MAX_ACCELERATION, MAX_CURVATURE]) + 1e-9
    return np.asarray((np.abs(control) <= limit).all(-1))


def inverse(
    trajectory: Floats, dt: float = DT, *, jerk: float = 1e-3, bend: float = 1e-1, iterations: int = 6
) -> Floats:
    """Controls [N, H, 2] whose rollout from the first state comes nearest to `trajectory` [N, H + 1, 4].

    Gauss–Newton on   Σ_t |p_t − P_t|² + |θ_t − Θ_t|²  +  Σ_t jerk·(a_{t+1} − a_t)² + bend·(κ_{t+1} − κ_t)²
    (m, rad, m/s², 1/m), with a faint pull to 0 that decides what the trajectory leaves open, such as the
    curvature while it stands. Speeds but the first are not read: those of logs are differences of positions.
    The result may exceed the limits of the tokens; `feasible` says where. The paper solves one least squares
    for speeds and one for curvatures; here positions and headings are fitted together.

    Raises:
        ValueError: a trajectory that is not finite, or shorter than two states.
    """
    if trajectory.ndim != 3 or trajectory.shape[1] < 2 or trajectory.shape[2] != 4:
        raise ValueError(f"trajectory must be [N, H + 1 >= 2, 4], got {list(trajectory.shape)}")
    if not np.isfinite(trajectory).all():
        row, step, _ = np.argwhere(~np.isfinite(trajectory))[0]
        raise ValueError(f"trajectory {row} is not finite at step {step}: cut it where the log has a gap")
    n, h = trajectory.shape[0], trajectory.shape[1] - 1
    target = trajectory.copy()
    target[:, :, 2] = np.unwrap(trajectory[:, :, 2], axis=1)
    control = _first_guess(target, dt)
    smooth = _smoothness(h, jerk, bend)
    for _ in range(iterations):
        states = rollout(target[:, 0], control, dt)
        residual = (target - states)[:, 1:, :3].transpose(0, 2, 1).reshape(n, 3 * h)
        jacobian = _jacobian(states, control, dt)
        stacked = control.transpose(0, 2, 1).reshape(n, 2 * h)
        normal = jacobian.transpose(0, 2, 1) @ jacobian + smooth
        right = jacobian.transpose(0, 2, 1) @ residual[..., None] - smooth @ stacked[..., None]
        change = np.linalg.solve(normal, right)[..., 0]
        control = control + change.reshape(n, 2, h).transpose(0, 2, 1)
    return control


def _first_guess(target: Floats, dt: float) -> Floats:
    """Finite differences, smoothed by nothing: near enough for Gauss–Newton."""
    step = np.diff(target[:, :, :2], axis=1)
    middle = target[:, :-1, 2] + np.diff(target[:, :, 2], axis=1) / 2
    along = (step[..., 0] * np.cos(middle) + step[..., 1] * np.sin(middle)) / dt
    speed = np.concatenate([target[:, :1, 3], (along[:, 1:] + along[:, :-1]) / 2, along[:, -1:]], 1)
    turn = np.diff(target[:, :, 2], axis=1)
    moves = np.abs(along) > 0.5
    kappa = np.where(moves, turn / np.where(moves, along * dt, 1.0), 0.0)
    limit = np.array([MAX_ACCELERATION, MAX_CURVATURE])
    return np.clip(np.stack([np.diff(speed, axis=1) / dt, kappa], -1), -limit, limit)


def _smoothness(h: int, jerk: float, bend: float) -> Floats:
    """The quadratic form [2H, 2H] of the regularisation, a before κ."""
    difference = np.diff(np.eye(h), axis=0)
    square = difference.T @ difference
    zero = np.zeros((h, h))
    pull = np.diag(np.repeat([1e-9, 1e-4], h))
    return np.block([[jerk * square, zero], [zero, bend * square]]) + pull


def _jacobian(states: Floats, control: Floats, dt: float) -> Floats:
    """Derivatives [N, 3H, 2H] of x, y, θ at steps 1 … H by a and κ at steps 0 … H − 1."""
    n, h = control.shape[:2]
    a, kappa = control[..., 0], control[..., 1]
    theta, v = states[..., 2], states[..., 3]
    later = np.tril(np.ones((h + 1, h)), -1)  # [s, t]: 1 where state s comes after control t
    arc = v[:, :-1] * dt + a * dt * dt / 2
    v_a = later * dt
    theta_k = later * arc[:, None, :]
    # dθ_s/da_t = κ_t dt²/2 + dt · Σ_{t<r<s} κ_r dt
    turned = np.concatenate([np.zeros((n, 1)), np.cumsum(kappa * dt, 1)], 1)
    theta_a = later * (kappa[:, None, :] * dt * dt / 2 + dt * (turned[:, :, None] - turned[:, None, 1:]))
    cos, sin = np.cos(theta)[..., None], np.sin(theta)[..., None]
    rows: list[Floats] = []
    for along, across in ((cos, -sin), (sin, cos)):
        by_a = along * v_a + v[..., None] * across * theta_a
        by_k = v[..., None] * across * theta_k
        both = np.concatenate([by_a, by_k], -1)
        rows.append(np.cumsum(dt / 2 * (both[:, 1:] + both[:, :-1]), 1))
    rows.append(np.concatenate([theta_a, theta_k], -1)[:, 1:])
    return np.concatenate(rows, 1)
