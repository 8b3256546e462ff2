"""One step of a policy in environments that run side by side: choose, then move. N environments."""

from __future__ import annotations

import copy
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from outdo.control.protocol import Act, Actor
from outdo.control.storage import Columns
from outdo.control.vector import Vector, VectorError

Bools = NDArray[np.bool_]


@dataclass(slots=True)
class Now:
    """Where the environments stand between two steps.

    `obs`, `mask`: what the next action is chosen on; `first` [N]: it begins an episode; `ended` [N]: the step
    before ended one; `state`: the policy's recurrent state.
    """

    obs: Any
    mask: Any
    first: Bools
    ended: Bools
    state: Any

    def as_dict(self) -> dict[str, Any]:
        """The fields by name."""
        return {name: getattr(self, name) for name in self.__slots__}


class Outcome(NamedTuple):
    """What the environments answered, `[N]` each; `infos` as Gymnasium gives it; `seconds` they took."""

    reward: NDArray[np.float64]
    terminated: Bools
    truncated: Bools
    infos: Mapping[str, Any]
    seconds: float


def begin(env: Vector, policy: Actor, seed: int | list[int]) -> Now:
    """Reset all environments; an int seeds them s, s + 1, …, a list one by one.

    Raises `VectorError` where a list is given to an environment that takes one seed only.
    """
    try:
        obs, infos = env.reset(seed=seed)  # pyright: ignore[reportArgumentType]
    except Exception as error:
        if isinstance(seed, int):
            raise
        raise VectorError(
            f"{env} cannot be reset with a seed for each copy: {error}. Make it with backend 'sync'"
        ) from error
    envs = env.num_envs
    first, ended = np.ones(envs, dtype=np.bool_), np.zeros(envs, dtype=np.bool_)
    return Now(obs, action_mask(obs, infos, ended), first, ended, policy.initial_state(envs))


def choose(policy: Actor, now: Now, stream: np.random.Generator, *, deterministic: bool = False) -> Act:
    """The policy's actions on what the environments show now."""
    return policy.act(now.obs, now.state, now.first, stream, deterministic=deterministic, mask=now.mask)


def move(env: Vector, now: Now, act: Act, *, next_step: bool) -> Outcome:
    """Step all environments and move `now`; `next_step` as `vector.resets_on_next_step` says."""
    start = time.perf_counter()
    obs, reward, terminated, truncated, infos = env.step(act.action)
    seconds = time.perf_counter() - start
    ended = terminated | truncated
    now.first = now.ended if next_step else ended
    now.obs, now.ended, now.state = obs, ended, act.state
    free = ended if next_step else np.zeros_like(ended)
    now.mask = action_mask(obs, infos, free)
    return Outcome(np.asarray(reward, dtype=np.float64), terminated, truncated, infos, seconds)


def take_step(
    env: Vector,
    policy: Actor,
    now: Now,
    stream: np.random.Generator,
    columns: Columns,
    *,
    next_step: bool,
    real: Bools,
) -> Outcome:
    """One step of all environments, written into `columns`.

    Columns: `features`, `raw`, `logp`, `real`, `reward`, `terminated`, `truncated`; with a critic `value`, and
    `final_value` where environments reset in the same step. Rows that are not `real` `[N]` (reset rows, episodes
    that are over) are kept from the policy's statistics.
    """
    policy.observe(now.obs, real)
    act = choose(policy, now, stream)
    critic = {} if act.value is None else {"value": act.value}
    columns.put(features=act.features, raw=act.raw, logp=act.logp, real=real, **critic)
    outcome = move(env, now, act, next_step=next_step)
    if critic and not next_step:
        columns.put(final_value=final_values(policy, now, outcome))
    columns.put(reward=outcome.reward, terminated=outcome.terminated, truncated=outcome.truncated)
    columns.close()
    return outcome


def final_values(policy: Actor, now: Now, outcome: Outcome) -> NDArray[np.float32]:
    """V(final observation) `[N]` where a same-step environment truncated an episode with the last step, else 0.

    Raises `VectorError` where `infos["final_obs"]` is missing.
    """
    where = outcome.truncated & ~outcome.terminated
    if not where.any():
        return np.zeros(len(where), dtype=np.float32)
    if "final_obs" not in outcome.infos:
        raise VectorError(
            "the vector environment declares same-step autoreset, but gives no info['final_obs'] where an episode "
            "is truncated: without it the value of the final observation is unknown"
        )
    final = with_rows(now.obs, outcome.infos["final_obs"], np.flatnonzero(where))
    value = policy.value(final, now.state, np.zeros_like(where))
    return np.where(where, np.asarray(value), np.float32(0))


def with_rows(obs: Any, final: Any, where: NDArray[np.intp]) -> Any:
    """A copy of the batched observation `obs` whose rows `where` are those of `final`.

    `obs` is an array, or a dict or tuple of batched arrays; `final` is batched alike, or holds one observation a row.
    """
    changed = copy.deepcopy(obs)
    for row in where:
        _put(changed, row, _row(final, row))
    return changed


def _row(batched: Any, row: Any) -> Any:
    """One observation of a batch of them, part by part; of an array of observations, the one that stands there."""
    if isinstance(batched, dict):
        return {key: _row(part, row) for key, part in batched.items()}
    if isinstance(batched, tuple):
        return tuple(_row(part, row) for part in batched)
    return batched[row]


def _put(batched: Any, row: Any, observation: Any) -> None:
    """Write one observation into a batch of them, part by part."""
    if isinstance(batched, dict):
        for key, part in batched.items():
            _put(part, row, observation[key])
    elif isinstance(batched, tuple):
        for part, value in zip(batched, observation, strict=True):
            _put(part, row, value)
    else:
        batched[row] = observation


def action_mask(obs: Any, infos: Mapping[str, Any], free: Bools) -> Any:
    """Allowed discrete actions: `infos["action_mask"]`, else the entry `action_mask` of a dict observation, or None.

    In rows `free` the action is ignored: everything is allowed there. Raises `VectorError` where only some of
    the environments give a mask.
    """
    mask = infos.get("action_mask")
    if mask is None:
        mask = obs.get("action_mask") if isinstance(obs, dict) else None
    elif not np.all(infos.get("_action_mask", True)):
        missing = np.flatnonzero(~infos["_action_mask"]).tolist()
        raise VectorError(f"environments {missing} gave no action_mask with this step, others did")
    if isinstance(mask, np.ndarray) and mask.dtype == object:  # how Gymnasium batches tuples
        mask = _stacked(list(mask))
    return mask if mask is None or not free.any() else _freed(mask, free)


def _stacked(masks: list[Any]) -> Any:
    """The masks of N environments as one, part by part."""
    if isinstance(masks[0], dict):
        return {key: _stacked([mask[key] for mask in masks]) for key in masks[0]}
    if isinstance(masks[0], tuple):
        return tuple(_stacked(list(part)) for part in zip(*masks, strict=True))
    return np.stack(masks)


def _freed(mask: Any, free: Bools) -> Any:
    if isinstance(mask, dict):
        return {key: _freed(part, free) for key, part in mask.items()}
    if isinstance(mask, tuple):
        return tuple(_freed(part, free) for part in mask)
    opened = np.array(mask, dtype=np.bool_)
    opened[free] = True
    return opened
