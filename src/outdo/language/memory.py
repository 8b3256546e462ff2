"""A setting of the C library that decides how fast large CPU tensors are.

By default glibc maps every large block afresh and gives it back when freed, so each large temporary costs a page
fault per 4 KiB: measured on a two-core virtual machine, filling a fresh block took 2 to 10 times as long as the
computation that filled it.
"""

from __future__ import annotations

import ctypes
import sys

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # mallopt's names, <malloc.h>


def keep_freed_pages() -> None:
    """Let this process reuse freed blocks up to 1 GiB instead of returning and mapping them anew.

    Does nothing where the C library is not glibc.
    """
    libc = ctypes.CDLL(None) if sys.platform.startswith("linux") else None
    if libc is not None and hasattr(libc, "mallopt"):
        libc.mallopt(_MMAP_THRESHOLD, 1 << 30)
        libc.mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)
