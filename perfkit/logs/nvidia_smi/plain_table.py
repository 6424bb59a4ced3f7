"""The table that nvidia-smi prints when it is given no option, once or repeatedly (``-l``), as rows of a log.

Each GPU has two lines: index, name and bus; then fan, temperature, power, memory and utilisation.
What stands between and below (MIG devices, processes) is left out. Above each table nvidia-smi
prints the time.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from perfkit.logs.nvidia_smi.fields import Log
from perfkit.logs.nvidia_smi.inventory import Inventory, log
from perfkit.logs.nvidia_smi.logs import printed
from perfkit.logs.text import CUT
from perfkit.readers.text import content

NAMED = re.compile(r"\| +(\d+) +(\S.*?) +(?:On|Off|N/A) *\| +([0-9A-Fa-f]+(?::[0-9A-Fa-f.]+)+) .*")
READ = re.compile(
    r"\| *(\S+) +(\S+) +\S+ +(\S+) */ *(\S+) *\| *(\S+) */ *(\S+) *\| *(\S+) .*", re.ASCII
)
NAMES = ("index", "name", "pci.bus_id")
READINGS = (
    "fan.speed",
    "temperature.gpu",
    "power.draw",
    "power.limit",
    "memory.used",
    "memory.total",
    "utilization.gpu",
)
HEADER = re.compile(r"\| NVIDIA-SMI .*?Driver Version: (\S+).*")
HEAD_LINES = 3  # the time, a rule, and the versions


def is_table(start: str) -> bool:
    """Say whether a text begins as the table does; what a program printed before it makes it another file."""
    return any(HEADER.match(line) for line in start.splitlines()[:HEAD_LINES])


def table_log(path: Path) -> Log:
    """Read all tables of a file; a GPU without its second line is left out."""
    *whole, rest = content(path).decode(errors="replace").split("\n")
    notes = [CUT] if rest.strip() else []
    columns = {name: name for name in (*NAMES, *READINGS)}
    return log(path, "nvidia-smi", list(_tables(whole)), columns, notes)


def _tables(lines: list[str]) -> Iterator[Inventory]:
    stamp = ""
    gpus: list[dict[str, str]] = []
    named: re.Match[str] | None = None
    for line in map(str.strip, lines):
        header = HEADER.match(line)
        if header:
            gpus = []
            yield Inventory({"timestamp": stamp, "driver version": header[1]}, gpus)
            stamp = ""
        elif printed(line) is not None:
            stamp = line
        readings = READ.fullmatch(line) if named else None
        if named and readings:
            values = [cell if cell[0].isdigit() else "N/A" for cell in readings.groups()]
            cells = (*named.groups(), *values)
            gpus.append(dict(zip((*NAMES, *READINGS), cells, strict=True)))
        named = NAMED.fullmatch(line)
