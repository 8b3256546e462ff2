"""PPO on small networks, outdo beside Stable-Baselines3 and a jitted JAX loop on gymnax, in one interleaved run.

    pip install -e '.[control]'
    python -m venv peers && peers/bin/pip install torch stable-baselines3 gymnax six
    python benchmarks/control.py speed --peers peers/bin/python [--rounds 10]
    python benchmarks/control.py learn --peers peers/bin/python [--seeds 3]

The peers have an interpreter of their own because Stable-Baselines3 and outdo ask for different versions of
Gymnasium. All use the same hyper-parameters (`SETTINGS`), one thread, their own ways to step the environment, and do
all that a training run of theirs does, outdo its logging and checkpoints included.

`speed`: each peer in a process of its own; they take turns, one update each, so that a machine that speeds up or
slows down does so for all. Printed are environment steps per second of wall time and of CPU time: median, smallest
and largest, and the ratio of medians to Stable-Baselines3. Compilation is over before the first turn.

`learn`: from the start of the process to a mean return of 475 over the last 100 training episodes on CartPole-v1,
imports and compilation included: seconds of wall time and of CPU time, and environment steps. outdo runs twice:
with its compiled code cached on disk, as any run but the first has it, and without.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import deque
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

GOAL, EPISODES = 475.0, 100


@dataclass(frozen=True)
class Settings:
    """One setting of the comparison, and what all share."""

    env: str
    envs: int
    steps: int
    epochs: int
    minibatches: int
    learning_rate: float = 3e-4
    gamma: float = 0.99
    lam: float = 0.95
    clip: float = 0.2
    value: float = 0.5
    norm: float = 0.5
    eps: float = 1e-5
    seed: int = 0


SETTINGS = {
    "cartpole-8": Settings("CartPole-v1", 8, 128, 4, 4),
    "cartpole-64": Settings("CartPole-v1", 64, 128, 4, 4),
    "pendulum-1": Settings("Pendulum-v1", 1, 2048, 10, 32),
}
LEARN = Settings("CartPole-v1", 8, 128, 4, 4, learning_rate=1e-3)


class Turns:
    """What a worker does between two updates: report the last one, wait for its turn."""

    def __init__(self, learning: bool) -> None:
        self.learning, self.updates, self.returns = learning, 0, deque[float](maxlen=EPISODES)
        self.steps = 0

    def next(self, returns: list[float], steps: int) -> None:
        """Called where an update begins, with the episodes that ended since the last call and the steps made."""
        self.returns.extend(returns)
        self.steps += steps
        if self.learning:
            done = len(self.returns) == EPISODES and statistics.fmean(self.returns) >= GOAL
            if done or self.steps >= 1_000_000:
                print(
                    json.dumps({"cpu": time.process_time(), "steps": self.steps, "reached": done}), flush=True
                )
                os._exit(0)
            return
        if self.updates:
            spent = {"wall": time.perf_counter() - self.start[0], "cpu": time.process_time() - self.start[1]}
            print(json.dumps(spent), flush=True)
        else:
            print(json.dumps({"ready": True}), flush=True)
        self.updates += 1
        if not sys.stdin.readline():
            os._exit(0)
        self.start = time.perf_counter(), time.process_time()


# -- outdo -----------------------------------------------------------------------------------------------------------


def outdo_worker(settings: Settings, turns: Turns) -> None:
    """Outdo's own loop with all it writes; the environment waits for its turn before it collects."""
    import torch

    torch.set_num_threads(1)
    from outdo.control.environment import ControlEnvironment, WindowSettings
    from outdo.control.policy import ControlPolicy
    from outdo.control.vector import make_vector
    from outdo.core.algorithm import Algorithm
    from outdo.core.parts import Clipped, Gae, Update
    from outdo.training.loop import train
    from outdo.training.optim import OptimiserSettings
    from outdo.training.plan import Settings as RunSettings
    from outdo.training.plan import Stage

    class Waiting(ControlEnvironment):
        def collect(self, policy: Any, step: int) -> Any:
            seen = len(finished)
            turns.next(finished[:seen], settings.envs * settings.steps if step else 0)
            del finished[:seen]
            return super().collect(policy, step)

    finished: list[float] = []
    env = make_vector(settings.env, settings.envs)
    environment = Waiting(env, WindowSettings(settings.steps, settings.gamma, settings.seed))
    record = environment.tally.record

    def recording(*arguments: Any) -> Any:
        ended = record(*arguments)
        finished.extend(float(episode[0]) for episode in ended)
        return ended

    environment.tally.record = recording  # type: ignore[method-assign]
    policy = ControlPolicy(env.single_observation_space, env.single_action_space, seed=settings.seed)
    algorithm = Algorithm(
        Gae(settings.lam, scale="minibatch"),
        Clipped(settings.clip, settings.clip),
        update=Update(settings.epochs, settings.minibatches, max_grad_norm=settings.norm),
        gamma=settings.gamma,
        value_coefficient=settings.value,
    )
    optimiser = OptimiserSettings(settings.learning_rate, betas=(0.9, 0.999), eps=settings.eps)
    stage = Stage("rl", environment, algorithm, 1_000_000, optimiser, micro_batch_tokens=1 << 20)
    train(policy, [stage], Path(tempfile.mkdtemp()) / "run", settings=RunSettings(settings.seed))


# -- Stable-Baselines3 -----------------------------------------------------------------------------------------------


def sb3_worker(settings: Settings, turns: Turns) -> None:
    """Stable-Baselines3's PPO; a callback waits for its turn before each rollout."""
    import torch

    torch.set_num_threads(1)
    from stable_baselines3 import PPO
    from stable_baselines3.common.callbacks import BaseCallback
    from stable_baselines3.common.env_util import make_vec_env

    class Waiting(BaseCallback):
        def __init__(self) -> None:
            super().__init__()
            self.finished: list[float] = []
            self.seen = 0

        def _on_rollout_start(self) -> None:
            turns.next(self.finished, self.num_timesteps - self.seen)
            self.seen, self.finished = self.num_timesteps, []

        def _on_step(self) -> bool:
            self.finished += [info["episode"]["r"] for info in self.locals["infos"] if "episode" in info]
            return True

    model = PPO(
        "MlpPolicy",
        make_vec_env(settings.env, settings.envs, seed=settings.seed),
        n_steps=settings.steps,
        batch_size=settings.envs * settings.steps // settings.minibatches,
        n_epochs=settings.epochs,
        learning_rate=settings.learning_rate,
        gamma=settings.gamma,
        gae_lambda=settings.lam,
        clip_range=settings.clip,
        vf_coef=settings.value,
        max_grad_norm=settings.norm,
        seed=settings.seed,
        device="cpu",
        policy_kwargs={"net_arch": {"pi": [64, 64], "vf": [64, 64]}, "activation_fn": torch.nn.Tanh},
    )
    model.learn(1_000_000_000, callback=Waiting())


# -- JAX -------------------------------------------------------------------------------------------------------------


def jax_worker(settings: Settings, turns: Turns) -> None:
    """One update, rollout included, as a single jitted function on gymnax's environment."""
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1"
    import jax
    import numpy as np

    update, state = jax_update(settings)
    if not turns.learning:
        state, _ = update(state)  # compiles
    finished, steps = list[float](), 0
    while True:
        turns.next(finished, steps)
        state, (returns, ended) = update(state)
        jax.block_until_ready(state)
        finished = np.asarray(returns)[np.asarray(ended)].tolist()
        steps = settings.envs * settings.steps


class JaxPolicy:
    """Two towers of 64-64 tanh, and a distribution over the actions of gymnax's space `space`."""

    def __init__(self, space: Any) -> None:
        self.space, self.discrete = space, hasattr(space, "n")
        self.outputs = space.n if self.discrete else space.shape[0]

    def init(self, key: Any, inputs: int) -> Any:
        """Parameters with the initialisation of the others."""
        import jax
        import jax.numpy as jnp

        def layers(key: Any, last: int, gain: float) -> Any:
            shapes = [(inputs, 64, 2**0.5), (64, 64, 2**0.5), (64, last, gain)]
            keys = jax.random.split(key, 3)
            orthogonal = jax.nn.initializers.orthogonal
            return [
                (orthogonal(g)(k, (i, o)), jnp.zeros(o)) for k, (i, o, g) in zip(keys, shapes, strict=True)
            ]

        one, two = jax.random.split(key)
        log_std = jnp.zeros(self.outputs)
        return {"pi": layers(one, self.outputs, 0.01), "v": layers(two, 1, 1.0), "log_std": log_std}

    def tower(self, layers: Any, x: Any) -> Any:
        """The outputs of one tower."""
        import jax.numpy as jnp

        for weight, bias in layers[:-1]:
            x = jnp.tanh(x @ weight + bias)
        return x @ layers[-1][0] + layers[-1][1]

    def value(self, p: Any, obs: Any) -> Any:
        """V of observations."""
        return self.tower(p["v"], obs)[..., 0]

    def sample(self, p: Any, obs: Any, key: Any) -> tuple[Any, Any]:
        """Actions, and what the environment is given."""
        import jax
        import jax.numpy as jnp

        out = self.tower(p["pi"], obs)
        if self.discrete:
            action = jax.random.categorical(key, out)
            return action, action
        action = out + jnp.exp(p["log_std"]) * jax.random.normal(key, out.shape)
        return action, jnp.clip(action, self.space.low, self.space.high)

    def score(self, p: Any, obs: Any, action: Any) -> Any:
        """Log-probabilities of actions."""
        import jax
        import jax.numpy as jnp

        out = self.tower(p["pi"], obs)
        if self.discrete:
            return jnp.take_along_axis(jax.nn.log_softmax(out), action[..., None], -1)[..., 0]
        z = (action - out) * jnp.exp(-p["log_std"])
        return (-0.5 * z**2 - p["log_std"] - 0.9189385).sum(-1)


def jax_update(settings: Settings) -> tuple[Any, Any]:
    """The jitted update, and the state that it begins with."""
    import gymnax
    import jax
    import jax.numpy as jnp

    env, parameters_of_env = gymnax.make(settings.env)
    policy = JaxPolicy(env.action_space(parameters_of_env))
    learn, optimiser = jax_learning(policy, settings)

    def step(carry: Any, _: Any) -> Any:
        p, env_state, obs, total, key = carry
        key, one, two = jax.random.split(key, 3)
        action, given = policy.sample(p, obs, one)
        keys = jax.random.split(two, settings.envs)
        stepped = jax.vmap(env.step, (0, 0, 0, None))(keys, env_state, given, parameters_of_env)
        after, env_state, reward, done = stepped[0], stepped[1], stepped[2], stepped[3]
        if len(stepped) == 6:  # terminated and truncated apart
            done = stepped[3] | stepped[4]
        total = total + reward
        row = (obs, action, policy.score(p, obs, action), policy.value(p, obs), reward, done, total)
        return (p, env_state, after, jnp.where(done, 0.0, total), key), row

    @jax.jit
    def update(state: Any) -> Any:
        p, moments, env_state, obs, total, key = state
        carry, rows = jax.lax.scan(step, (p, env_state, obs, total, key), None, settings.steps)
        _, env_state, obs, total, key = carry
        key, one = jax.random.split(key)
        p, moments = learn(p, moments, rows[:6], policy.value(p, obs), one)
        return (p, moments, env_state, obs, total, key), (rows[6], rows[5])

    key, one, two = jax.random.split(jax.random.PRNGKey(settings.seed), 3)
    obs, env_state = jax.vmap(env.reset, (0, None))(jax.random.split(one, settings.envs), parameters_of_env)
    p = policy.init(two, obs.shape[-1])
    return update, (p, optimiser.init(p), env_state, obs, jnp.zeros(settings.envs), key)


def jax_learning(policy: JaxPolicy, settings: Settings) -> tuple[Any, Any]:
    """What a rollout is learnt from with, and the optimiser."""
    import jax
    import jax.numpy as jnp
    import optax

    optimiser = optax.chain(
        optax.clip_by_global_norm(settings.norm), optax.adam(settings.learning_rate, eps=settings.eps)
    )

    def loss(p: Any, obs: Any, action: Any, old: Any, advantage: Any, target: Any) -> Any:
        advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        ratio = jnp.exp(policy.score(p, obs, action) - old)
        clipped = jnp.clip(ratio, 1 - settings.clip, 1 + settings.clip)
        surrogate = -jnp.minimum(ratio * advantage, clipped * advantage).mean()
        return surrogate + settings.value * ((policy.value(p, obs) - target) ** 2).mean()

    def backwards(carry: Any, row: Any) -> Any:
        advantage, following = carry
        value, reward, done = row
        delta = reward + settings.gamma * following * (1 - done) - value
        advantage = delta + settings.gamma * settings.lam * (1 - done) * advantage
        return (advantage, value), advantage

    def minibatch(carry: Any, piece: Any) -> Any:
        p, moments = carry
        change, moments = optimiser.update(jax.grad(loss)(p, *piece), moments, p)
        return (optax.apply_updates(p, change), moments), None

    def learn(p: Any, moments: Any, rows: Any, last: Any, key: Any) -> Any:
        seen, action, logp, value, reward, done = rows
        start = (jnp.zeros_like(last), last)
        _, advantage = jax.lax.scan(backwards, start, (value, reward, done.astype(float)), reverse=True)
        data = (seen, action, logp, advantage, advantage + value)
        flat = jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), data)

        def epoch(carry: Any, key: Any) -> Any:
            order = jax.random.permutation(key, settings.envs * settings.steps)
            pieces = jax.tree.map(lambda x: x[order].reshape(settings.minibatches, -1, *x.shape[1:]), flat)
            return jax.lax.scan(minibatch, carry, pieces)

        (p, moments), _ = jax.lax.scan(epoch, (p, moments), jax.random.split(key, settings.epochs))
        return p, moments

    return learn, optimiser


# -- the run ---------------------------------------------------------------------------------------------------------

WORKERS = {"outdo": outdo_worker, "sb3": sb3_worker, "jax": jax_worker}


class Worker:
    """A peer in a process of its own."""

    def __init__(self, peer: str, python: str, settings: Settings, learning: bool, cache: str = "") -> None:
        self.name, self.updates = peer, list[dict[str, float]]()
        command = [python, __file__, "worker", "--peer", peer, "--settings", json.dumps(asdict(settings))]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        if cache:
            environment["NUMBA_CACHE_DIR"] = cache
        self.process = subprocess.Popen(
            command + ["--learning"] * learning,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )

    def answer(self) -> dict[str, float]:
        """The next line that the worker prints."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("{"):
                return json.loads(line)
        status = self.process.wait()
        raise RuntimeError(
            f"{self.name} ended with status {status}: run `worker --peer {self.name}` to see why"
        )

    def turn(self) -> None:
        """One update of this peer, while the others wait."""
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        self.updates.append(self.answer())

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(timeout=60)


def interpreter(peer: str, peers: str) -> str:
    """Python of a peer."""
    return sys.executable if peer == "outdo" else peers


def speed(names: list[str], chosen: list[str], peers: str, rounds: int) -> None:
    """Print the table of speeds for each setting."""
    for name in chosen:
        settings = SETTINGS[name]
        workers = [Worker(peer, interpreter(peer, peers), settings, False) for peer in names]
        for worker in workers:
            worker.answer()
        for number in range(rounds + 2):
            for worker in workers:
                worker.turn()
                if number < 2:  # first updates allocate and, in outdo, load compiled code
                    worker.updates.clear()
        steps = settings.envs * settings.steps
        medians: dict[str, dict[str, float]] = {}
        print(f"\n{name}: {settings.env}, {settings.envs} × {settings.steps}, steps/s over {rounds} updates")
        for worker in workers:
            line = f"{worker.name:8}"
            medians[worker.name] = {}
            for clock in ("wall", "cpu"):
                rates = sorted(steps / update[clock] for update in worker.updates)
                medians[worker.name][clock] = statistics.median(rates)
                line += f"  {clock} {statistics.median(rates):9,.0f} ({rates[0]:,.0f} to {rates[-1]:,.0f})"
            print(line)
            worker.close()
        if "sb3" in medians:
            for peer, own in medians.items():
                ratios = {clock: own[clock] / medians["sb3"][clock] for clock in own}
                print(f"{peer:8}  × sb3: wall {ratios['wall']:.2f}, cpu {ratios['cpu']:.2f}")


def learn(names: list[str], peers: str, seeds: int) -> None:
    """Print seconds to the goal for each peer and seed, peers taking turns."""
    print(f"{LEARN.env}: from a cold start to a mean of {GOAL:g} over {EPISODES} episodes")
    for seed in range(seeds):
        settings = Settings(**{**asdict(LEARN), "seed": seed})
        for peer, fresh in [*((name, False) for name in names), *[("outdo", True)] * ("outdo" in names)]:
            with tempfile.TemporaryDirectory() as folder:
                start = time.perf_counter()
                worker = Worker(peer, interpreter(peer, peers), settings, True, folder if fresh else "")
                found = worker.answer()
                wall = time.perf_counter() - start
            label = peer + (", nothing cached" if fresh else "")
            state = "" if found["reached"] else "  NOT REACHED"
            print(
                f"seed {seed} {label:24} wall {wall:7.1f} s  cpu {found['cpu']:7.1f} s  {found['steps']:,} steps{state}"
            )


def main() -> None:
    """Read the command line and run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["speed", "learn", "worker"])
    parser.add_argument(
        "--peers", default=sys.executable, help="Python that has Stable-Baselines3 and gymnax"
    )
    parser.add_argument("--only", default="outdo,sb3,jax", help="peers to run")
    parser.add_argument("--case", default=",".join(SETTINGS), help=f"cases of speed: {', '.join(SETTINGS)}")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--peer", choices=sorted(WORKERS), help=argparse.SUPPRESS)
    parser.add_argument("--settings", help=argparse.SUPPRESS)
    parser.add_argument("--learning", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if unknown := set(given.case.split(",")) - set(SETTINGS):
        parser.error(f"no case is called {sorted(unknown)[0]!r}; there are {', '.join(SETTINGS)}")
    if given.what == "worker":
        settings = Settings(**json.loads(given.settings)) if given.settings else SETTINGS["cartpole-8"]
        WORKERS[given.peer](settings, Turns(given.learning))
    elif given.what == "speed":
        speed(given.only.split(","), given.case.split(","), given.peers, given.rounds)
    else:
        learn(given.only.split(","), given.peers, given.seeds)


if __name__ == "__main__":
    main()
