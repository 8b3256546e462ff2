"""How many threads torch works with, for the length of a block."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch


@contextmanager
def threads(number: int | None) -> Generator[None]:
    """Let torch work with so many threads until the end of the block; None: with as many as before.

    Left behind, the number would decide how the sums of whatever comes later in the process are rounded.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)
