"""A setting of the C library that decides how fast large CPU tensors are.

By default glibc maps every large block afresh and gives it back when freed, so each large temporary costs a page
fault per 4 KiB: measured on a two-core virtual machine, filling a fresh block took 2 to 10 times as long as the
computation that filled it.
"""

from __future__ import annotations

import ctypes
import sys

LARGE = 192 << 20
"""Bytes: more than any temporary of a pass (attention scores take 128 MiB at most), less than large weights."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt's names, <malloc.h>


def keep_freed_pages() -> None:
    """Let this process reuse freed blocks below `LARGE` instead of returning and mapping them anew.

    Larger ones stay apart, so that what is kept for long does not lie between what comes and goes.
    Does nothing where the C library is not glibc.
    """
    libc = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
    if libc is not None and hasattr(libc, "mallopt"):
        libc.mallopt(_MMAP_THRESHOLD, LARGE)
        libc.mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)
