"""Changes that mend a finding, as a replay of the run makes them (`perfkit.analysis.whatif`).

Lines are those of the ledger: the causes of idle time, "collective" and "copy".
"""

from dataclasses import dataclass

from perfkit.analysis import whatif
from perfkit.analysis.causes import MEMORY_CALL
from perfkit.analysis.whatif.changes import Change as Replayed

HOST = ("host_code", "data_loading", "system", "mpi")
OTHERS = ("sync", "launch", "cuda_call", "memory", "kernel_wait", "other", "collective")
ALL = (*HOST, *OTHERS, "copy")


@dataclass(frozen=True)
class Change:
    """What a replay changes, in words, and how.

    claimed: lines that findings with this change claim themselves.
    freed: lines that may get shorter in the replay.
    is_partial: whether mending the finding saves more than the replay knows of.
    """

    words: str
    replayed: Replayed
    claimed: tuple[str, ...] = ()
    freed: tuple[str, ...] = ALL
    is_partial: bool = False


@dataclass(frozen=True)
class Freed:
    """What a replay does if a cause is gone whole, and the other lines that count as shorter then."""

    replayed: Replayed
    lines: tuple[str, ...]


# No loading at all.
HIDDEN_LOADING = Change("data loading hidden", whatif.Host(factor=0.0), claimed=("data_loading",))
NO_WAITS = Change(
    "waits for the GPU removed",
    whatif.Synchronisations(),
    claimed=("sync", "launch", "host_code", "kernel_wait"),
)
GRAPHS = Change(
    "launches in CUDA graphs",
    whatif.Launches("graph"),
    claimed=("launch", "host_code", "kernel_wait"),
)
# What the CPU does after a copy stays.
OVERLAPPED_COPIES = Change(
    "copies overlapped with kernels", whatif.Copies("overlapped"), freed=OTHERS
)
# Copies that are pinned or merged are faster too, which no replay knows.
FASTER_COPIES = Change(
    "copies overlapped with kernels", whatif.Copies("overlapped"), freed=OTHERS, is_partial=True
)
OVERLAPPED_COMMUNICATION = Change(
    "communication overlapped with computation", whatif.Communication(), claimed=("collective",)
)

# All that the CPU does between its calls goes, so that idle time of other code does not count.
NO_CODE = Freed(whatif.Host(0.0, pattern=""), OTHERS)
NO_MEMORY_CALLS = Freed(
    whatif.Calls(f"^(?:{MEMORY_CALL.pattern})"),
    tuple(line for line in ALL if line != "memory"),
)
