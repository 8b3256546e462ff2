"""Gymnasium spaces: observations become float features or an image, actions are parts of a distribution.

Axes: N environments, F flat features, K network outputs, W columns of a raw action.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from outdo.control.distributions import Distribution, Part

Path = tuple[str | int, ...]
Array = NDArray[Any]
BoxPolicy = Literal["gaussian", "tanh"]
"""Distribution of continuous actions: a Gaussian that is clipped to the bounds, or one squashed into them by tanh."""


MASK = "action_mask"
"""Key of a dict observation that says which actions are allowed."""


class SpaceError(ValueError):
    """A space, observation or mask that a policy cannot be built for or cannot use."""


class Leaf(NamedTuple):
    """A space without parts of its own, and the way to it through Dict and Tuple spaces."""

    path: Path
    space: Any
    kind: Literal["Box", "Discrete", "MultiDiscrete", "MultiBinary"]

    @property
    def name(self) -> str:
        """The path as a person writes it."""
        return "the space" if not self.path else f"the part {'.'.join(map(str, self.path))!r}"


def leaves(space: Any, path: Path = ()) -> Iterator[Leaf]:
    """All leaves of a space in its own order; raises `SpaceError` for a kind that is not known."""
    kind = next(
        (
            base.__name__
            for base in type(space).__mro__
            if base.__module__.startswith("gymnasium.spaces") and base.__name__ != "Space"
        ),
        None,
    )
    if kind in ("Dict", "Tuple"):
        items = space.spaces.items() if kind == "Dict" else enumerate(space.spaces)
        for key, part in items:
            yield from leaves(part, (*path, key))
    elif kind in ("Box", "Discrete", "MultiDiscrete", "MultiBinary"):
        yield Leaf(path, space, kind)
    else:
        raise SpaceError(
            f"{Leaf(path, space, 'Box').name} is {space!r}: outdo knows Box, Discrete, MultiDiscrete, MultiBinary, "
            "Dict and Tuple. Wrap the environment so that it uses these"
        )


def at(value: Any, path: Path) -> Any:
    """The part of a nested dict or tuple that a path leads to."""
    for key in path:
        value = value[key]
    return value


@dataclass(frozen=True)
class Observations:
    """How observations of a space are encoded.

    Boxes are flattened (8-bit ones divided by 255), Discrete and MultiDiscrete become one-hot, MultiBinary
    zeros and ones; `size` features F in all. With `image`, the one Box of two or three axes becomes an image
    instead, `[N, *image]` uint8 or float32 with channels first: the channel axis is the last one if that is
    smaller than the first, else the first. The entry `action_mask` of a dict is no observation.
    """

    parts: tuple[Leaf, ...]
    size: int
    image: tuple[int, int, int] | None
    image_part: Leaf | None
    continuous: NDArray[np.bool_]
    """Features `[F]` that statistics are kept of; the others are zeros and ones already."""

    @classmethod
    def of(cls, space: Any, *, image: bool = False) -> Observations:
        """Read a space; with `image` exactly one Box of two or three axes must be in it."""
        parts = tuple(leaf for leaf in leaves(space) if leaf.path[:1] != (MASK,))
        image_part, shape = None, None
        if image:
            found = [leaf for leaf in parts if leaf.kind == "Box" and len(leaf.space.shape) in (2, 3)]
            if len(found) != 1:
                raise SpaceError(
                    f"a policy for images needs one Box of two or three axes in the observation, found {len(found)} "
                    f"in {space!r}; use policy.kind = 'mlp' for features"
                )
            image_part = found[0]
            parts = tuple(leaf for leaf in parts if leaf is not image_part)
            shape = _image_shape(image_part.space.shape)
        flags = [np.full(_features(leaf), _continuous(leaf)) for leaf in parts]
        continuous = np.concatenate(flags) if flags else np.zeros(0, dtype=bool)
        if not image and continuous.size == 0:
            raise SpaceError(f"the observation space {space!r} holds nothing to see")
        return cls(parts, int(continuous.size), shape, image_part, continuous)

    def flat(self, obs: Any) -> NDArray[np.float32]:
        """The features `[N, F]` float32 of a batch of observations."""
        if len(self.parts) == 1:
            return _encode(self.parts[0], obs)
        encoded = [_encode(leaf, obs) for leaf in self.parts]
        if encoded:
            return np.concatenate(encoded, axis=1)
        assert self.image_part is not None
        return np.zeros((len(at(obs, self.image_part.path)), 0), np.float32)

    def picture(self, obs: Any) -> Array:
        """The image `[N, C, H, W]` of a batch of observations, in its own dtype (8-bit stays 8-bit)."""
        assert self.image_part is not None
        pixels = np.asarray(at(obs, self.image_part.path))
        if pixels.dtype != np.uint8:
            pixels = pixels.astype(np.float32)
        if pixels.ndim == 3:
            return pixels[:, None]
        return np.moveaxis(pixels, -1, 1) if _channels_last(pixels.shape[1:]) else pixels


def _channels_last(shape: tuple[int, ...]) -> bool:
    return shape[2] < shape[0]


def _image_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    if len(shape) == 2:
        return 1, shape[0], shape[1]
    return (shape[2], shape[0], shape[1]) if _channels_last(shape) else (shape[0], shape[1], shape[2])


def _features(leaf: Leaf) -> int:
    if leaf.kind == "Discrete":
        return int(leaf.space.n)
    if leaf.kind == "MultiDiscrete":
        return int(np.sum(leaf.space.nvec))
    return int(np.prod(leaf.space.shape))


def _continuous(leaf: Leaf) -> bool:
    return leaf.kind == "Box" and leaf.space.dtype != np.uint8


def _encode(leaf: Leaf, obs: Any) -> NDArray[np.float32]:
    values = np.asarray(at(obs, leaf.path))
    rows = len(values)
    if leaf.kind == "Box":
        flat = np.ascontiguousarray(values, np.float32).reshape(rows, -1)
        return flat / np.float32(255) if leaf.space.dtype == np.uint8 else flat
    if leaf.kind == "MultiBinary":
        return values.astype(np.float32).reshape(rows, -1)
    counts = np.atleast_1d(leaf.space.n if leaf.kind == "Discrete" else leaf.space.nvec).ravel()
    index = values.reshape(rows, -1) - np.asarray(leaf.space.start).reshape(1, -1)
    first = np.concatenate([[0], np.cumsum(counts)[:-1]])
    out = np.zeros((rows, int(counts.sum())), np.float32)
    np.put_along_axis(out, (index + first).astype(np.int64), 1.0, axis=1)
    return out


@dataclass(frozen=True)
class Actions:
    """How actions of a space are drawn: each leaf is one or more parts of `distribution`."""

    space: Any
    leaves: tuple[Leaf, ...]
    distribution: Distribution
    counts: tuple[int, ...]
    """Parts of the distribution that each leaf takes."""

    @classmethod
    def of(cls, space: Any, box: BoxPolicy = "gaussian") -> Actions:
        """Read a space; `box` is the distribution of continuous parts."""
        found = tuple(leaves(space))
        parts = [_parts(leaf, box) for leaf in found]
        joined = tuple(part for each in parts for part in each)
        if not joined:
            raise SpaceError(f"the action space {space!r} holds nothing to choose")
        return cls(space, found, Distribution(joined), tuple(len(each) for each in parts))

    def to_environment(self, raw: NDArray[np.float32]) -> Any:
        """The batch of actions as a vector environment takes it, from raw actions `[N, W]`."""
        found = self.distribution.actions(raw)
        if len(self.leaves) == 1 and not self.leaves[0].path:
            return _decode(self.leaves[0], found)
        values = iter(found)
        by_path = {
            leaf.path: _decode(leaf, [next(values) for _ in range(count)])
            for leaf, count in zip(self.leaves, self.counts, strict=True)
        }
        return _nest(self.space, by_path)

    def mask(self, mask: Any, rows: int) -> NDArray[np.bool_]:
        """Masks of a batch, nested as the space, as `[N, K]` bool; continuous parts have none.

        Discrete takes `[N, n]`, MultiDiscrete a tuple of one such array per component (or all of them side by
        side), MultiBinary `[N, ...]` as the space's shape (a forbidden bit stays 0). Raises `SpaceError` where
        a shape is wrong or all actions of a row are forbidden.
        """
        columns: list[NDArray[np.bool_]] = []
        for leaf in self.leaves:
            if leaf.kind == "Box":
                columns.append(np.ones((rows, _features(leaf)), bool))
                continue
            given = at(mask, leaf.path)
            if leaf.kind == "MultiDiscrete" and isinstance(given, tuple):
                pieces = [np.asarray(piece, bool) for piece in cast("tuple[Any, ...]", given)]
                given = np.concatenate(pieces, axis=1)
            allowed = np.asarray(given, bool).reshape(len(given), -1)
            if allowed.shape != (rows, _features(leaf)):
                raise SpaceError(
                    f"the action mask of {leaf.name} must be [{rows}, {_features(leaf)}], got {allowed.shape}"
                )
            columns.append(allowed)
        joined = np.concatenate(columns, axis=1)
        self._require_choice(joined)
        return joined

    def _require_choice(self, allowed: NDArray[np.bool_]) -> None:
        for place in self.distribution.places:
            if place.part.kind == "categorical":
                stuck = ~allowed[:, place.outputs].any(axis=1)
                if stuck.any():
                    raise SpaceError(
                        f"environment {int(stuck.argmax())} forbids every action: end the episode there instead"
                    )


def _parts(leaf: Leaf, box: BoxPolicy) -> tuple[Part, ...]:
    if leaf.kind == "Discrete":
        return (Part("categorical", int(leaf.space.n)),)
    if leaf.kind == "MultiDiscrete":
        return tuple(Part("categorical", int(n)) for n in leaf.space.nvec.ravel())
    size = int(np.prod(leaf.space.shape))
    if leaf.kind == "MultiBinary":
        return (Part("bernoulli", size),)
    if not np.issubdtype(leaf.space.dtype, np.floating):
        raise SpaceError(
            f"{leaf.name} of the action space is a Box of {leaf.space.dtype}: use MultiDiscrete for whole numbers"
        )
    low, high = (np.asarray(b, np.float32).ravel() for b in (leaf.space.low, leaf.space.high))
    return (Part("tanh_gaussian" if box == "tanh" else "gaussian", size, low, high),)


def _decode(leaf: Leaf, values: list[Array]) -> Array:
    if leaf.kind == "Discrete":
        return values[0] + int(leaf.space.start)
    if leaf.kind == "MultiDiscrete":
        index = np.stack(values, axis=1).reshape(-1, *leaf.space.shape) + leaf.space.start
        return index.astype(leaf.space.dtype)
    return values[0].reshape(-1, *leaf.space.shape).astype(leaf.space.dtype, copy=False)


def _nest(space: Any, by_path: dict[Path, Array], path: Path = ()) -> Any:
    if path in by_path:
        return by_path[path]
    if isinstance(space.spaces, dict):
        parts = cast("dict[str, Any]", space.spaces)
        return {key: _nest(part, by_path, (*path, key)) for key, part in parts.items()}
    return tuple(_nest(part, by_path, (*path, i)) for i, part in enumerate(space.spaces))
