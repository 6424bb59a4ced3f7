"""What perfkit asks of the C library's allocator and of Python's collector, because people wait for less then.

No library does this. It stays as long as it saves a fifth of what takes over 5 s: of 1,000,000 kernels a report took
31 s of CPU with `use_freed_memory_again`, 38 s without, and `perfkit inspect` 8 s and 10 s.
"""

import ctypes
import gc
import sys

LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
LARGE = 1_000_000  # rows: arrays of so many are what the allocator would get from the system anew each time


def use_freed_memory_again(rows: int) -> None:
    """Let glibc keep 1 GB that was freed, for tables of LARGE rows: else it clears pages for each array anew."""
    if rows >= LARGE and (mallopt := getattr(LIBC, "mallopt", None)):
        mallopt(-4, 0)  # M_MMAP_MAX
        mallopt(-1, 1 << 30)  # M_TRIM_THRESHOLD


def prepare_fork() -> None:
    """Return memory that was freed and kept, and hide what there is from the collector: a child would copy both."""
    if trim := getattr(LIBC, "malloc_trim", None):
        trim(0)
    gc.freeze()
