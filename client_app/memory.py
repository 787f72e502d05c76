"""The C library's heap, set up for training."""

from __future__ import annotations

import ctypes
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # <malloc.h> of glibc
_LIMIT = 2**30  # bytes


def keep_heap() -> None:
    """Keep freed memory in the process instead of handing it back after every step.

    By default glibc returns large blocks to the kernel, which zeroes them again for the
    next batch; training a small convolutional network on a CPU loses about a sixth of
    its time to that. Affects this process alone; does nothing where the C library is
    not glibc.
    """
    if not sys.platform.startswith("linux"):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_M_TRIM_THRESHOLD, _LIMIT)
        mallopt(_M_MMAP_THRESHOLD, _LIMIT)
