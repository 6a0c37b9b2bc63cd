"""Gives memory that is no longer used back to the operating system."""

import ctypes
import gc
import sys


def give_back() -> None:
    """Collect what only cycles hold, and give back what glibc keeps.

    Megabytes in one object do not make a collection due, and each thread's arena keeps its peak; a run has a thread.
    """
    gc.collect()
    if sys.platform == "linux" and (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:
        trim(0)
