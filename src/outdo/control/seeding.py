"""Seeds and random streams by name: drawing from one never shifts another, and none is left to a global."""

from __future__ import annotations

import hashlib

import numpy as np


def derive(seed: int, name: str, *numbers: int) -> int:
    """A 31-bit seed for `name` and `numbers` of a run with `seed`: the head of SHA-256("seed/name/…").

    31 bits, since environments add the index of each copy and some hold seeds in 32 bits.
    """
    text = "/".join(map(str, (seed, name, *numbers)))
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big") >> 1


def stream(seed: int, name: str, *numbers: int) -> np.random.Generator:
    """The random stream `name` of a run with `seed`; equal arguments give equal streams."""
    text = "/".join(map(str, (seed, name, *numbers)))
    return np.random.Generator(np.random.PCG64(int.from_bytes(hashlib.sha256(text.encode()).digest()[:16])))
