"""What is a file that no reader claims? Files of other tools, by what they begin with, and what to record instead."""

import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from perfkit.format import utf8
from perfkit.readers.text import head

LOOKED_AT = 1 << 16  # bytes at the start of a file, unpacked
GZIP = b"\x1f\x8b"
GZIP_WINDOW = 31  # of zlib: the largest window, and the header of gzip
PICKLE = re.compile(rb"\x80[\x02-\x05]")
TRACE = "with torch.profiler.profile(...) as prof: ..., then prof.export_chrome_trace('trace.json')"


@dataclass(frozen=True)
class Foreign:
    """A kind of file of another tool: how to tell it by its first bytes, what it is, and what to do."""

    is_it: Callable[[bytes], object]
    what: str
    instead: str


FOREIGN = (
    Foreign(
        lambda start: b"# of Calls" in start and re.search(rb"Self C(?:PU|UDA) ", start),
        "the table that key_averages() of PyTorch's profiler prints; it holds sums and no times",
        f"Save the trace: {TRACE}.",
    ),
    Foreign(
        re.compile(rb'\[\s*\{"id":\d+,"(?:timestamps|model_name|activity)":').match,
        "a trace of Triton Inference Server; it holds the times of requests and nothing that a GPU did",
        "Record the server with `nsys profile --trace=cuda,nvtx,osrt tritonserver ...`.",
    ),
    Foreign(
        re.compile(rb"==\d+== (?:NVPROF is profiling|Profiling (?:application|result))").search,
        "the output of nvprof, which NVIDIA no longer develops",
        "Record `nsys profile --trace=cuda,nvtx,osrt PROGRAM`, and single kernels with `ncu --set full PROGRAM`.",
    ),
    Foreign(
        PICKLE.match,
        "a pickle of Python, which perfkit does not open: it can run code",
        f"Save a trace instead: {TRACE}.",
    ),
)


def described(path: Path) -> str | None:
    """Return what a file of another tool is and what to record instead, in sentences; None for an unknown file."""
    start = unpacked(path)
    known = next((kind for kind in FOREIGN if kind.is_it(start)), None)
    return f"this is {known.what}. {known.instead}" if known else None


def unpacked(path: Path) -> bytes:
    """Return how a file begins, unpacked where it is gzip; empty where it cannot be opened or unpacked."""
    start = head(path, LOOKED_AT)
    if not start.startswith(GZIP):
        return start
    try:
        return utf8(zlib.decompressobj(GZIP_WINDOW).decompress(start, LOOKED_AT))
    except zlib.error:
        return b""
