"""nvidia-smi: the logs of ``dmon`` and ``--query-gpu``, and the inventory of ``-q`` as text or XML.

Record with ``nvidia-smi dmon -s pucvmet -o DT -f gpu.log`` or ``nvidia-smi --query-gpu=timestamp,index,name,...
--format=csv -l 1 -f gpu.csv``; the limits with ``nvidia-smi -q -x -f gpu.xml``. Tried with drivers 470 to 610. dmon is
read with any columns, with ``-o`` D, T or DT and with ``--format csv``; ``--query-gpu`` with any columns in any order,
with and without units, under the names before and after driver 535. What ``pmon`` and ``--query-compute-apps``
wrote is of processes: no table has a place for it, `refused` says what to record.
"""

from __future__ import annotations

from pathlib import Path

from perfkit.errors import ReadError
from perfkit.profile import Profile
from perfkit.readers.nvidia_smi import dmon, query, text, xml
from perfkit.readers.nvidia_smi.filling import filled
from perfkit.readers.nvidia_smi.forms import QUERY, form, refused

__all__ = ["KIND", "QUERY", "VERSION", "read", "refused", "sniff"]

VERSION = 3
KIND = "monitor"
LARGEST = 4 * 10**9
READ = {"dmon": dmon.log, "query": query.log, "text": text.log, "xml": xml.log}


def sniff(path: Path) -> bool:
    """Say whether `path` is a log or an inventory of nvidia-smi, by the words of its header."""
    try:
        return path.is_file() and form(path) in READ
    except OSError:
        return False


def read(path: Path) -> Profile:
    """Read a log: SAMPLES and CAPTURE, and DEVICES where the names of the GPUs are recorded.

    A GPU has its index of the log, without one the position in which it appears. Times are since the first sample;
    local ones are taken as UTC, which the notes say. What nvidia-smi could not read (``N/A``, ``-``,
    ``[Not Supported]``) has no row and is counted in the notes.

    Raises
    ------
    ReadError
        If there are no rows, a row is damaged, or the rows of several GPUs cannot be told apart. A line at which the
        file ends is left out, which ``notes`` says.
    """
    found = form(path)
    if found not in READ:
        raise ReadError(
            f"{path}: {refused(path) or 'this is no log of nvidia-smi. Record one with `nvidia-smi dmon`.'}"
        )
    return filled(READ[found](path))
