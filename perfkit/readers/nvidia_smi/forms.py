"""What did nvidia-smi print into this file: the form by the words of its first line, and what is refused.

Functions
---------
content    text of a file as UTF-8 bytes
form       dmon, query, text, xml, or None
refused    why a file of nvidia-smi is not read, and what to record instead
"""

from __future__ import annotations

import codecs
import re
from pathlib import Path

from perfkit.readers.nvidia_smi.fields import DMON, FIELDS
from perfkit.readers.nvidia_smi.reasons import PREFIXES

HEAD = 1 << 16
KNOWN = {name for names in FIELDS.values() for name in names if "." in name}
FIELD = re.compile(r"([\w.]+)(?: \[[^\[\]]*\])?")
SEPARATORS = ",;\t|"
QUERY = (
    "nvidia-smi --query-gpu=timestamp,index,name,driver_version,utilization.gpu,utilization.memory,"
    "memory.used,memory.free,memory.total,power.draw,enforced.power.limit,temperature.gpu,temperature.memory,"
    "clocks.current.sm,clocks.max.sm,clocks.current.memory,clocks_event_reasons.active --format=csv -l 1 -f gpu.csv"
)
DMON_COMMAND = "nvidia-smi dmon -s pucvmet -o DT -f LOG"
FAILED = ("NVIDIA-SMI has failed", "Failed to", "Unable to determine", "No devices were found")
HEADLESS = re.compile(r"(?:\d+, )?\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{3}, ")


def content(path: Path, size: int = -1) -> bytes:
    """Return the text of a file, or its beginning, as UTF-8 without a byte order mark (PowerShell writes UTF-16)."""
    with path.open("rb") as file:
        data = file.read(size)
    if data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return data[: len(data) // 2 * 2].decode("utf-16", errors="replace").encode()
    return data.removeprefix(codecs.BOM_UTF8)


def form(path: Path) -> str | None:
    """Return the form of a file that is read, by its first line that is not blank; None for any other.

    Raises
    ------
    OSError
        If the file cannot be read.
    """
    head = content(path, HEAD).lstrip()
    line = _first(head)
    if is_dmon(line):
        return "dmon"
    if head.startswith(b"<") and b"<nvidia_smi_log" in head:
        return "xml"
    if re.fullmatch(r"=+NVSMI LOG=+", line):
        return "text"
    return "query" if is_query(line) else None


def is_dmon(line: str) -> bool:
    """Say whether a line is dmon's header, with or without its ``#``, the date before it, or commas."""
    words = re.split(r"[\s,;]+", line.removeprefix("#").strip())
    while words and words[0] in ("Date", "Time"):
        words.pop(0)
    return len(words) > 1 and words[0] == "gpu" and words[1] in DMON and "pid" not in words


def is_query(line: str) -> bool:
    """Say whether a line is the header of a ``--query-gpu`` log, whatever separates its columns."""
    names = fields(line, SEPARATORS)
    return all(names) and any(name in KNOWN or name.startswith(PREFIXES) for name in names)


def fields(line: str, separators: str = ",") -> list[str]:
    """Return the names of the columns in a header, empty where one is none."""
    found = [FIELD.fullmatch(part.strip()) for part in re.split(f"[{re.escape(separators)}]", line)]
    return [match[1] if match else "" for match in found]


def refused(path: Path) -> str | None:
    """Return what a file of nvidia-smi holds that no table has a place for, with what to record; None for others."""
    try:
        line = _first(content(path, HEAD).lstrip())
    except OSError:
        return None
    words = line.removeprefix("#").split()
    if {"gpu", "pid", "type"} <= set(words):
        return f"nvidia-smi pmon counts per process, and no table holds that. Record the GPUs with `{DMON_COMMAND}`."
    if {"pid", "used_gpu_memory"} <= {*fields(line)} or {"pid", "used_memory"} <= {*fields(line)}:
        return f"a list of processes (--query-compute-apps) says nothing of the GPUs. Record them with `{QUERY}`."
    if HEADLESS.match(line):
        return (
            f"rows of nvidia-smi without their header do not say what they are. Record without `noheader`: `{QUERY}`."
        )
    if line.startswith("+---") and "NVIDIA-SMI" in str(content(path, HEAD)):
        return f"the table that nvidia-smi prints is for people. Record `{QUERY}`, or `nvidia-smi -q -x -f GPUS.xml`."
    if line.startswith(FAILED):
        return f"nvidia-smi recorded nothing, it said {line[:200]!r}. Mend that and record again."
    return None


def _first(head: bytes) -> str:
    return head.partition(b"\n")[0].decode(errors="replace").strip()
