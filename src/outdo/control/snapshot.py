"""The state of environments as plain data, so that a resumed run goes on where it stopped.

Exact where every changing attribute is data: numbers, arrays, random generators, containers of these (the
classic-control and toy-text environments, CartPole's own vector environment, EnvPool's not), MuJoCo's
environments through MuJoCo's integration state, and whatever has `get_state() -> dict` and `set_state(dict)`
(numbers, strings, lists, arrays). Nothing is pickled: reading a snapshot runs no code.
"""

from __future__ import annotations

import enum
import types
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from outdo.control.vector import library

_STILL = (types.FunctionType, types.MethodType, types.BuiltinFunctionType, types.ModuleType, type, enum.Enum)
_SKIPPED = frozenset(
    {"spec", "_cached_spec", "metadata", "_metadata", "_saved_kwargs", "mujoco_renderer", "env_fns"}
)
_MUTABLE = (np.ndarray, np.random.Generator, list, dict, set)


class Unsupported(Exception):  # noqa: N818
    """The environment holds something that is not data."""


def encode(value: Any) -> Any:
    """`value` as tensors, lists, string-keyed dicts, numbers and strings; raises `Unsupported` for anything else."""
    if value is None or type(value) in (bool, int, float, str):
        return value
    if isinstance(value, torch.Tensor):
        return {"$tensor": value.detach().clone()}
    if isinstance(value, np.ndarray | np.generic):
        return _encode_array(np.asarray(value), isinstance(value, np.generic))
    if isinstance(value, np.random.Generator):
        return {"$generator": encode(value.bit_generator.state)}
    if isinstance(value, list):
        return [encode(item) for item in value]
    if isinstance(value, tuple):
        return {"$tuple": [encode(item) for item in value]}
    if isinstance(value, Mapping):
        if all(isinstance(key, str) for key in value):
            return {key: encode(item) for key, item in value.items()}
        return {"$items": [[encode(key), encode(item)] for key, item in value.items()]}
    raise Unsupported(type(value).__name__)


def _encode_array(array: np.ndarray[Any, Any], scalar: bool) -> Any:
    if array.dtype.kind in "US":
        text = array.astype(np.str_).ravel().tolist()
        return {"$text": text, "$type": array.dtype.str, "$shape": list(array.shape), "$scalar": scalar}
    try:
        return {"$array": torch.from_numpy(array.copy()), "$scalar": scalar}
    except TypeError as error:
        raise Unsupported(f"array of {array.dtype}") from error


def decode(value: Any) -> Any:
    """Undo `encode`."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    if "$tensor" in value:
        return value["$tensor"].clone()
    if "$array" in value:
        array = value["$array"].numpy().copy()
        return array[()] if value["$scalar"] else array
    if "$text" in value:
        array = np.array(value["$text"], dtype=value["$type"]).reshape(value["$shape"])
        return array[()] if value["$scalar"] else array
    if "$generator" in value:
        state = decode(value["$generator"])
        bits = getattr(np.random, state["bit_generator"])()
        bits.state = state
        return np.random.Generator(bits)
    if "$items" in value:
        return {decode(key): decode(item) for key, item in value["$items"]}
    if "$tuple" in value:
        return tuple(decode(item) for item in value["$tuple"])
    return {key: decode(item) for key, item in value.items()}


def take(env: Any) -> dict[str, Any]:
    """The state of a (vector) environment as encoded data.

    Raises `Unsupported`, naming the attribute, where it holds something that is not data.
    """
    if hasattr(type(env), "get_state") and hasattr(type(env), "set_state"):
        return {"$own": encode(env.get_state())}
    kept = dict(vars(env))
    state: dict[str, Any] = {}
    if "env" in kept:
        state["env"] = take(kept.pop("env"))
    if "envs" in kept:
        state["envs"] = [take(copy) for copy in kept.pop("envs")]
    if _is_mujoco(env):
        state["mujoco"] = encode(_mujoco_take(env))
        del kept["model"], kept["data"]
    kept = {name: value for name, value in kept.items() if not _still(name, value)}
    state["attributes"] = {name: _attribute(env, name, value) for name, value in kept.items()}
    shared: dict[int, str] = {}
    for name, value in kept.items():
        if isinstance(value, _MUTABLE):
            other = shared.setdefault(id(value), name)
            if other != name:  # restored apart, they would no longer change together
                raise Unsupported(f"{_name(env)}: {other!r} and {name!r} are one object")
    return state


def _attribute(env: Any, name: str, value: Any) -> Any:
    try:
        return encode(value)
    except Unsupported as error:
        raise Unsupported(f"{_name(env)}.{name} holds a {error}") from error


def _name(env: Any) -> str:
    return type(env).__name__


def restore(env: Any, state: dict[str, Any]) -> None:
    """Put a freshly made environment of the same kind into the state that `take` found."""
    if "$own" in state:
        env.set_state(decode(state["$own"]))
        return
    if "mujoco" in state:
        _mujoco_restore(env, decode(state["mujoco"]))
    for name, saved in state["attributes"].items():
        setattr(env, name, decode(saved))
    if "env" in state:
        restore(env.env, state["env"])
    for copy, saved in zip(getattr(env, "envs", ()), state.get("envs", ()), strict=True):
        restore(copy, saved)


def _still(name: str, value: Any) -> bool:
    """Whether an attribute is made with the environment and never changes: spaces, functions, descriptions."""
    from gymnasium import Space

    return name in _SKIPPED or isinstance(value, (*_STILL, Space))


def _is_mujoco(env: Any) -> bool:
    return any(base.__name__ == "MujocoEnv" for base in type(env).__mro__)


def _mujoco_take(env: Any) -> Any:
    """Integration state, and every array of the data: observations may read what a step derived."""
    mujoco = library("mujoco", "mujoco")

    kind = mujoco.mjtState.mjSTATE_INTEGRATION
    state = np.empty(mujoco.mj_stateSize(env.model, kind))
    mujoco.mj_getState(env.model, env.data, state, kind)
    return {"state": state, "derived": _arrays(env.data)}


def _mujoco_restore(env: Any, saved: Any) -> None:
    mujoco = library("mujoco", "mujoco")

    mujoco.mj_setState(env.model, env.data, saved["state"], mujoco.mjtState.mjSTATE_INTEGRATION)
    for name, array in _arrays(env.data).items():
        if array.shape == saved["derived"][name].shape:  # contacts and constraints vary, and are found anew
            array[...] = saved["derived"][name]


def _arrays(data: Any) -> dict[str, Any]:
    found = {name: getattr(data, name) for name in dir(data) if not name.startswith("_")}
    return {name: value for name, value in found.items() if isinstance(value, np.ndarray)}
