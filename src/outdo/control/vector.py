"""Vector environments from whatever a user has: a Gymnasium id, a factory, an environment, a vector environment.

How an ended episode begins anew is read from what the environment declares, never told by a setting.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from outdo.core.calls import load_object

if TYPE_CHECKING:
    import gymnasium
    from gymnasium.vector import VectorEnv

Vector: TypeAlias = "VectorEnv[Any, Any, Any]"
EnvLike: TypeAlias = "str | Callable[..., Any] | gymnasium.Env[Any, Any] | Vector"
"""A Gymnasium id, `module:function`, a factory, an environment or a vector environment."""

Backend = Literal["gymnasium", "sync", "async", "envpool"]
"""`gymnasium`: the vector environment that the id registers where it has one, else `sync`; `sync`: copies stepped
one after the other; `async`: a process per copy; `envpool`: EnvPool's C++ environments."""

_EXTRAS = {"mujoco": "mujoco", "box2d": "box2d", "pygame": "video", "moviepy": "video", "swig": "box2d"}


class VectorError(ValueError):
    """An environment that cannot be made or used here, with what to do about it."""


def library(name: str, extra: str) -> Any:
    """The optional library `name`, imported; raises `VectorError` naming the extra that brings it."""
    try:
        return import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise VectorError(f"{package} is missing ({error}): pip install 'outdo[{extra}]'") from error


def make_vector(
    env: EnvLike,
    envs: int,
    *,
    arguments: Mapping[str, Any] | None = None,
    backend: Backend = "gymnasium",
    vector: Mapping[str, Any] | None = None,
) -> Vector:
    """A vector environment of `envs` copies.

    | `env` | becomes |
    |---|---|
    | Gymnasium id (`CartPole-v1`, `package:Name-v0`) | as `backend` says |
    | a factory that takes `num_envs`, or `module:function` of one | the vector environment that it returns |
    | another factory, or `module:function` of one | `envs` copies, a call each |
    | `gymnasium.Env` | a vector of this one, so `envs` must be 1 |
    | vector environment | itself; `envs` must be its `num_envs` |

    `arguments` go to ids and factories, `vector` to Gymnasium's vectoriser: `{"autoreset_mode": "SameStep"}`.
    Raises `VectorError` for what cannot be made, naming the extra where a library is missing.
    """
    gym = library("gymnasium", "control")
    if envs < 1:
        raise VectorError(f"envs must be at least 1, got {envs}")
    if backend not in get_args(Backend):
        raise VectorError(f"backend must be one of {', '.join(get_args(Backend))}, got {backend!r}")
    given, more = dict(arguments or {}), dict(vector or {})
    env = _loaded(env)
    if isinstance(env, str):
        made = _registered(gym, env, envs, given, backend, more)
    elif isinstance(env, gym.vector.VectorEnv | gym.Env):
        if given:
            raise VectorError(
                f"arguments ({', '.join(given)}) are for ids and factories: {env} is made already"
            )
        made = _existing(gym, env, more)
    elif callable(env):
        made = _manufactured(gym, env, envs, given, backend, more)
    else:
        raise VectorError(
            f"an environment is a Gymnasium id, 'module:function', a factory, a gymnasium.Env or a vector "
            f"environment, got {type(env).__name__}"
        )
    if made.num_envs != envs:
        raise VectorError(f"{made} has {made.num_envs} copies, {envs} were asked for: make the two equal")
    resets_on_next_step(made)
    return made


def make_single(env: EnvLike, arguments: Mapping[str, Any]) -> Any:
    """One environment of a Gymnasium id, `module:function` or factory, called with `arguments`.

    Raises `VectorError` for what cannot be made, or is made already.
    """
    gym = library("gymnasium", "control")
    env = _loaded(env)
    try:
        if isinstance(env, str):
            return gym.make(env, **arguments)
        if isinstance(env, gym.Env | gym.vector.VectorEnv) or not callable(env):
            raise VectorError(f"give a Gymnasium id or a factory: {env} cannot be made again")
        made = env(**arguments)
    except (gym.error.Error, ImportError, TypeError) as error:
        raise VectorError(f"cannot make {env!r}: {error}{extra_hint(str(error))}") from error
    if not isinstance(made, gym.Env):
        raise VectorError(f"{env} must return a gymnasium.Env, got {type(made).__name__}")
    return made


def _loaded(env: EnvLike) -> EnvLike:
    """What `module:function` stands for; anything else, Gymnasium ids with a module too, as it is."""
    if isinstance(env, str) and ":" in env and env.rpartition(":")[2].isidentifier():
        return load_object(env)
    return env


def resets_on_next_step(env: Vector) -> bool:
    """Whether a step after the end of an episode is spent on the reset; read from `metadata["autoreset_mode"]`.

    Raises `VectorError` where the environment declares nothing, or that it does not reset by itself.
    """
    mode: Any = (env.metadata or {}).get("autoreset_mode")
    name = getattr(mode, "value", mode)
    if name not in ("NextStep", "SameStep"):
        raise VectorError(
            f"{env} declares the autoreset mode {name!r}: metadata['autoreset_mode'] must be "
            "AutoresetMode.NEXT_STEP or AutoresetMode.SAME_STEP, whichever it does"
        )
    return name == "NextStep"


def meet(env: Vector, policy: Any, step: int) -> None:
    """Show the policy to an environment that plays it against itself: one that has `meet(policy, step)`."""
    introduced = getattr(env.unwrapped, "meet", None)
    if introduced is not None:
        introduced(policy, step)


def _registered(
    gym: Any, name: str, envs: int, arguments: dict[str, Any], backend: str, vector: dict[str, Any]
) -> Vector:
    """The vector environment of a Gymnasium id."""
    if backend == "envpool":
        from outdo.control.pool import Pool

        return Pool(name, envs, arguments | vector)
    mode = None if backend == "gymnasium" else backend
    if vector and mode is None:
        mode = "sync"  # an id's own vector environment takes no settings of a vectoriser
    try:
        return gym.make_vec(
            name, num_envs=envs, vectorization_mode=mode, vector_kwargs=vector or None, **arguments
        )
    except (gym.error.Error, ImportError, TypeError) as error:
        raise VectorError(f"cannot make {name!r}: {error}{extra_hint(str(error))}") from error


def extra_hint(message: str) -> str:
    """Which extra of outdo brings the library that a message of Gymnasium's misses; empty where none does."""
    for library, extra in _EXTRAS.items():
        if library in message.lower():
            return f". It comes with the extra {extra!r}: pip install 'outdo[{extra}]'"
    return ""


def _existing(gym: Any, env: Any, vector: dict[str, Any]) -> Vector:
    """A vector environment as it is; a single one as a vector of one."""
    if isinstance(env, gym.vector.VectorEnv):
        return env
    return gym.vector.SyncVectorEnv([lambda: env], **vector)


def _manufactured(
    gym: Any,
    factory: Callable[..., Any],
    envs: int,
    arguments: dict[str, Any],
    backend: str,
    vector: dict[str, Any],
) -> Vector:
    """What a factory makes: a whole vector environment if it takes `num_envs`, else the copies."""
    name = getattr(factory, "__name__", repr(factory))
    if backend == "envpool":
        raise VectorError(f"backend 'envpool' makes ids of its own, not what {name} makes")
    if "num_envs" in inspect.signature(factory).parameters:
        made = factory(num_envs=envs, **arguments)
        if not isinstance(made, gym.vector.VectorEnv):
            raise VectorError(
                f"{name} takes num_envs, so it must return a VectorEnv, got {type(made).__name__}"
            )
        return made

    def copy() -> Any:
        single = factory(**arguments)
        if not isinstance(single, gym.Env):
            raise VectorError(f"{name} must return a gymnasium.Env, got {type(single).__name__}")
        return single

    kind = gym.vector.AsyncVectorEnv if backend == "async" else gym.vector.SyncVectorEnv
    return kind([copy] * envs, **vector)
