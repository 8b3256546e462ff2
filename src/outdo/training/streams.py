"""Named random streams: all chance in a run has a name, a seed and a place in the checkpoint."""

from __future__ import annotations

import hashlib
import random
from typing import Any

import numpy as np
import torch
from torch import Generator, Tensor


def derive_seed(seed: int, name: str) -> int:
    """A 63-bit seed for the stream `name` of a run with `seed`: the head of SHA-256("seed/name").

    Streams of different names are independent, so that drawing from one never shifts another.
    """
    digest = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class Streams:
    """The random streams of a run: named torch generators, and the global ones of Python, NumPy and torch."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self._generators: dict[str, Generator] = {}

    def seed_globals(self) -> None:
        """Seed the global generators that libraries draw from (dropout, for example)."""
        random.seed(derive_seed(self.seed, "python"))
        np.random.seed(derive_seed(self.seed, "numpy") % 2**32)
        torch.manual_seed(derive_seed(self.seed, "torch"))

    def __getitem__(self, name: str) -> Generator:
        """The generator called `name`, made at its first use."""
        if name not in self._generators:
            self._generators[name] = Generator().manual_seed(derive_seed(self.seed, name))
        return self._generators[name]

    def state_dict(self) -> dict[str, Any]:
        """Positions of all streams, global ones included: JSON-able values and tensors."""
        version, words, gauss = random.getstate()
        kind, keys, position, has_gauss, cached = np.random.get_state()
        return {
            "seed": self.seed,
            "named": {name: generator.get_state() for name, generator in self._generators.items()},
            "python": {"version": version, "words": list(words), "gauss": gauss},
            "numpy": {
                "kind": kind,
                "keys": np.asarray(keys).tolist(),
                "position": position,
                "has_gauss": has_gauss,
                "cached": cached,
            },
            "torch": torch.get_rng_state(),
            "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put every stream back where `state_dict` found it."""
        self.seed = state["seed"]
        self._generators = {}
        named: dict[str, Tensor] = state["named"]
        for name, position in named.items():
            self[name].set_state(position)
        python, numpy = state["python"], state["numpy"]
        random.setstate((python["version"], tuple(python["words"]), python["gauss"]))
        keys = np.array(numpy["keys"], dtype=np.uint32)
        np.random.set_state((numpy["kind"], keys, numpy["position"], numpy["has_gauss"], numpy["cached"]))
        torch.set_rng_state(state["torch"])
        if state["cuda"]:
            torch.cuda.set_rng_state_all(state["cuda"])
