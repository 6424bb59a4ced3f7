"""What one reader returned: tables that are read when first asked for, and what is missing."""

import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from types import MappingProxyType

import pandas as pd

from perfkit import impossible
from perfkit.allocator import use_freed_memory_again
from perfkit.schema import Checked
from perfkit.tables import TABLES

# What a reader reads, its KIND, and what that answers. Only readers know their names; all else asks for a kind.
KINDS: Mapping[str, str] = MappingProxyType(
    {
        "timeline": "when kernels, copies and CUDA calls ran",
        "counters": "hardware counters of single kernel launches",
        "call_paths": "which calls of the program lead to the work of CPU and GPU",
        "framework": "the operators of a framework, and the kernels that they launch",
        "monitor": "a log of the GPUs: utilisation, memory, power, clocks",
        "network": "collectives and links between GPUs",
        "memory": "what the memory of a GPU holds, and which line of the program asked for it",
        "training": "steps, tokens and arithmetic per second, as a training prints them",
    }
)

# What records a log of the GPUs on any machine with an NVIDIA driver.
QUERY = (
    "nvidia-smi --query-gpu=timestamp,index,name,driver_version,utilization.gpu,utilization.memory,"
    "memory.used,memory.free,memory.total,power.draw,enforced.power.limit,temperature.gpu,temperature.memory,"
    "clocks.current.sm,clocks.max.sm,clocks.current.memory,clocks_event_reasons.active --format=csv -l 1 -f gpu.csv"
)


Loader = Callable[[], pd.DataFrame | Checked]


@dataclass(frozen=True)
class Missing:
    """Something a capture cannot answer, and the command or option that would have recorded it."""

    table: str
    what: str
    record: str


@dataclass(frozen=True)
class Profile:
    """One file or folder as a reader understood it.

    ``loaders`` holds one function per table the capture has; `table` runs it once, and leaves out of what it returns
    the values that cannot be (`Table.checked`), unless it says by a Checked that this was done. Ranks and clocks
    are the reader's own (rank 0, time 0 at the start of this capture): `perfkit.load` sets them. ``rank`` is
    the rank that the file itself states, None where it does not, and ``node`` what `node_of` returns for the host on
    which it was recorded, empty where the file states none or several. ``world_size`` is the number of ranks of the job
    that the file states. `is_simulated`: the file says that nobody measured what is in it. ``failure`` says how the
    run failed, in the words of the file; empty where it did not.
    """

    reader: str
    path: Path
    capture: pd.DataFrame
    loaders: Mapping[str, Loader]
    missing: tuple[Missing, ...] = ()
    notes: tuple[str, ...] = ()
    rank: int | None = None
    node: str = ""
    world_size: int | None = None
    is_simulated: bool = False
    failure: str = ""
    _read: dict[str, Checked] = field(default_factory=dict, init=False, repr=False, compare=False)
    _believed: dict[str, tuple[pd.DataFrame, pd.Series]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    def table(self, name: str) -> pd.DataFrame:
        """Return the table `name` (as in `perfkit.tables`) without times that cannot be; empty if there is none."""
        return self.capture if name == "CAPTURE" else self._split(name)[0]

    def left_out(self, name: str) -> pd.DataFrame:
        """Return the rows of a table whose times cannot be, and why.

        Columns of the table; `reason` (`perfkit.impossible.Reason`); `at_most_ns`, from the start of the row to that of
        the next operation of its stream: it took no longer. 0 where that is not known.
        """
        frame = self.checked(name).frame
        reasons = self._split(name)[1]
        rows = reasons.index.to_numpy(dtype="int64")
        left_out = frame.iloc[rows]
        longest = (
            impossible.next_start(frame, rows) - left_out["start_ns"] if "stream" in frame else 0
        )
        return left_out.assign(reason=reasons.to_numpy(), at_most_ns=longest)

    def _split(self, name: str) -> tuple[pd.DataFrame, pd.Series]:
        if name not in self._believed:
            self._believed[name] = TABLES[name].believed(self.checked(name).frame)
        return self._believed[name]

    def checked(self, name: str) -> Checked:
        """Return a table of `loaders` with the notes on what was left out of it because it cannot be."""
        if name not in self._read:
            loader = self.loaders.get(name)
            read = loader() if loader else TABLES[name].empty()
            self._read[name] = read if isinstance(read, Checked) else TABLES[name].checked(read)
            use_freed_memory_again(len(self._read[name].frame))
        return self._read[name]

    def release(self, name: str) -> None:
        """Forget a table that the cache still holds; the next `table` reads it again."""
        if name in self._read and getattr(self.loaders.get(name), "is_stored", bool)():
            self.forget(name)

    def forget(self, name: str) -> None:
        """Forget a table; the next `table` reads it again."""
        self._read.pop(name, None)
        self._believed.pop(name, None)

    @cached_property
    def span(self) -> tuple[int, int] | None:
        """When the recording began and ended, ns since 1970; None where the wall clock is not known."""
        if self.capture["t0_unix_ns"].isna().any():
            return None
        start = int(self.capture["t0_unix_ns"].iloc[0])
        return start, start + int(self.capture["dur_ns"].iloc[0])

    @property
    def doubts(self) -> tuple[str, ...]:
        """Notes on impossible values of all tables: values left out, and values that are only marked."""
        notes: list[str] = []
        for name, loader in self.loaders.items():
            apart = getattr(
                loader, "notes", None
            )  # a copy in the cache has them apart, and need not be read whole
            notes += apart() if apart and name not in self._read else self.checked(name).notes
        return tuple(notes)


# Addresses, names that every machine has, and names that container engines make up: they identify no node.
_NO_NODE = re.compile(
    r"[\d.:]*|[0-9a-f:]*:[0-9a-f:]*|localhost.*|[0-9a-f]{12}|dcgm-exporter-.*|ip6-.*", re.IGNORECASE
)


def node_of(host: str) -> str:
    """Return what tells a host from others, without its name or domain; empty for a name that tells none."""
    if _NO_NODE.fullmatch(host.strip()):
        return ""
    return hashlib.sha256(host.strip().partition(".")[0].lower().encode()).hexdigest()[:16]
