"""Scene-steps a second of the driving simulator beside highway-env: `python benchmarks/driving.py [--rounds 10]`.

All on one core, 16 vehicles a scene, taken in turn:
`kinematics and collisions`: unicycle of all vehicles and box overlaps of all pairs (1 kinematic step = 0.1 s);
`traffic and observations`: `Simulator.step` with 15 IDM vehicles on four lanes, and `Simulator.observe`;
`highway-env`: simulation steps of `highway-fast-v0` and `highway-v0` (its IDM and lane changes, observations at its
policy steps), 15 vehicles beside the ego. Its vehicles change lanes and ours keep to their paths, its fast form
checks only the ego's collisions: a comparison of cost, not of behaviour.
Prints the median with the spread (25 to 75 %). Seconds are of CPU, so that other work on the machine counts less;
set OMP_NUM_THREADS=1. Needs the extra `benchmark` for highway-env.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from collections.abc import Callable

import numpy as np

from outdo.driving import kernels
from outdo.driving.scene import HISTORY, HORIZON, Kind, Lane, Scene
from outdo.driving.simulator import Simulator

VEHICLES = 16
LANES = 4


def highway(rng: np.random.Generator, name: str) -> Scene:
    """Four lanes of 2 km along x with 16 vehicles, about 25 m apart, that want 15 to 30 m/s."""
    steps = HISTORY + HORIZON
    t = (np.arange(steps) - HISTORY + 1) * 0.1
    lane = rng.permutation(np.arange(VEHICLES) % LANES)
    x = 12.0 * np.arange(VEHICLES) + rng.uniform(0, 3, VEHICLES)
    speed = rng.uniform(15, 30, VEHICLES)
    state = np.zeros((VEHICLES, steps, 4))
    state[..., 0] = x[:, None] + speed[:, None] * t
    state[..., 1] = 4.0 * lane[:, None]
    state[..., 3] = speed[:, None]
    ends = np.array([[-500.0, 0], [1500, 0]])
    return Scene(
        id=name,
        situation="highway",
        now=HISTORY - 1,
        state=state,
        valid=np.ones((VEHICLES, steps), np.bool_),
        size=np.tile([5.0, 2.0], (VEHICLES, 1)),
        kind=np.full(VEHICLES, Kind.VEHICLE, np.int8),
        lanes={str(k): Lane(str(k), ends + np.array([0, 4.0 * k]), 4.0, 30.0) for k in range(LANES)},
        drivable=(np.array([[-500.0, -2], [1500, -2], [1500, 14], [-500, 14]]),),
        route=ends + np.array([0, 4.0 * lane[0]]),
    )


def bare(scenes: list[Scene], steps: int = 64) -> Callable[[], float]:
    """Rate of kinematics and collisions alone."""
    state0 = np.stack([scene.state[:, scene.now] for scene in scenes])
    valid = np.ones(state0.shape[:2], np.bool_)
    size = np.stack([scene.size for scene in scenes])
    control = np.random.default_rng(0).normal(size=(*valid.shape, 2)) * np.array([0.5, 0.001])

    def call() -> float:
        state, axis, hit = state0.copy(), np.empty((*valid.shape, 2)), np.empty_like(valid)
        kernels.axes(state, valid, axis)
        start = time.process_time()
        for _ in range(steps):
            kernels.advance(state, axis, control, valid, 0.1)
            kernels.contacts(state, axis, size, valid, hit)
        return steps * len(scenes) / (time.process_time() - start)

    return call


def whole(scenes: list[Scene], steps: int = 64) -> Callable[[], float]:
    """Rate of the simulator with reactive traffic and an observation at every step."""

    def call() -> float:
        simulator, control = Simulator(scenes), np.zeros((len(scenes), 2))
        start = time.process_time()
        for _ in range(steps):
            simulator.step(control)
            simulator.observe()
        return steps * len(scenes) / (time.process_time() - start)

    return call


def peer(name: str, steps: int) -> Callable[[], float]:
    """Rate of highway-env in simulation steps, resets not counted."""
    import gymnasium
    import highway_env  # pyright: ignore[reportMissingImports]

    gymnasium.register_envs(highway_env)
    environment = gymnasium.make(name, config={"vehicles_count": VEHICLES - 1, "duration": 10_000})
    config = environment.unwrapped.config  # type: ignore[attr-defined]
    per_step = config["simulation_frequency"] // config["policy_frequency"]

    def call() -> float:
        seconds, done = 0.0, True
        for k in range(steps):
            if done:
                environment.reset(seed=k)
            start = time.process_time()
            _, _, terminated, truncated, _ = environment.step(1)
            seconds += time.process_time() - start
            done = terminated or truncated
        return steps * per_step / seconds

    return call


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description="The driving simulator beside highway-env")
    parser.add_argument("--rounds", type=int, default=10, help="measurements of each contender")
    parser.add_argument("--scenes", type=int, default=256, help="scenes that are stepped together")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    rng = np.random.default_rng(0)
    scenes = [highway(rng, f"highway {n}") for n in range(arguments.scenes)]
    contenders = {"kinematics and collisions": bare(scenes), "traffic and observations": whole(scenes)}
    try:
        contenders |= {f"highway-env, {name}": peer(name, 5) for name in ("highway-fast-v0", "highway-v0")}
    except ImportError:
        print("without highway-env: install the extra 'benchmark'")
    for call in contenders.values():
        call()
    rates: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(arguments.rounds):
        for name, call in contenders.items():
            rates[name].append(call())
    print(f"{'':32} {'scene-steps/s':>14} {'25 to 75 %':>24}")
    for name, values in rates.items():
        low, middle, high = statistics.quantiles(values, n=4)
        print(f"{name:32} {middle:14,.0f} {f'{low:,.0f} to {high:,.0f}':>24}")


if __name__ == "__main__":
    main()
