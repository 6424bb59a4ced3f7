"""ROCm profiler (rocpd): what ``rocprofv3`` and ``rocprof-sys`` write, one file for each process.

Record with ``rocprofv3 --sys-trace --output-format rocpd -- PROGRAM`` on AMD's GPUs; load the
folder of several ranks. Databases of the schemas 3 and 4 are read, also those of several processes
in one file, and the formats ``json`` and ``csv``. The CSV files of a process are one recording, and
any of them stands for all. Counters (``--pmc SQ_WAVES``) are read too. Times are those of the
machine's clock since it booted, so that ranks of two nodes share no axis.
"""

from pathlib import Path

from perfkit.profile import Profile
from perfkit.readers.rocpd import database, pages, results

VERSION = 2
KIND = "timeline"
# Ends of the names of one recording in several formats, the one that is read first.
NAMED_FORMS = (
    "_results.db",
    ".db",
    "_results.json",
    ".json",
    *(f"_{end}.csv" for end in pages.ENDS),
    "",
)


def sniff(path: Path) -> bool:
    """Say whether `path` is a recording of rocprofv3, in one of its formats."""
    return database.sniff(path) or results.sniff(path) or pages.sniff(path)


def read(path: Path) -> Profile:
    """Read a recording; its tables are made when asked for."""
    if results.sniff(path):
        return results.read(path).profile(path)
    if pages.sniff(path):
        return pages.read(path).profile(path)
    return database.read(path).profile(path)


def stands_for(path: Path) -> Path:
    """Return the file that stands for a recording of several files."""
    return pages.first(path) if pages.sniff(path) else path
