"""Rules about what a program shares: a GPU with other processes, the cores of the CPU with other threads.

Processes share a GPU where each of several keeps it busy for a tenth of the time in which all of them use it, and the
GPU changes ten times from one to the other (conventions). A process that ends before the next one begins shares
nothing. Alone on the GPU, a process saves at most the time in which the others have it.

The launching thread lacks a core where the operating system had taken it off, no call says that it waits, and other
threads had the cores of the recording meanwhile.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from perfkit.analysis.causes import covered
from perfkit.analysis.intervals import cut, ends, total, union
from perfkit.diagnosis.finding import Figure, Finding, kept, removing, severity
from perfkit.diagnosis.rules.machine import CPU_CORES, GPU_SHARED
from perfkit.diagnosis.rules.rule import tell
from perfkit.diagnosis.timeline import idle_gaps, named, owned, span_ns, unrecorded
from perfkit.format import percent
from perfkit.selection import Selection

NOTABLE, FEWEST_TURNS = 0.1, 10
TAKEN = 0.9  # of the time off its core, in which other threads have the cores (convention)
KEYS = ["rank", "gpu", "process"]
OPERATION = [*KEYS, "start_ns", "dur_ns"]


@kept
def sharers(view: Selection) -> pd.DataFrame:
    """Return the processes that share a GPU: rank, gpu, process, `share_frac` of the time in which all use it.

    None for a GPU that one process has, or several in turn without meeting.
    """
    tables = [cut(view.all_kernels, view.window), cut(view.copies, view.window)]
    operations = pd.concat([table[OPERATION] for table in tables], ignore_index=True)
    several = operations.groupby(["rank", "gpu"])["process"].nunique()
    made = [_of_gpu(operations, *device) for device in several.index[several > 1]]
    found = [each for each in made if len(each)]
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame(columns=[*KEYS, "share_frac"])


def _of_gpu(operations: pd.DataFrame, rank: int, gpu: int) -> pd.DataFrame:
    """Return the processes that share one GPU."""
    mine = operations[operations["rank"].eq(rank) & operations["gpu"].eq(gpu)]
    mine = mine.assign(end_ns=mine["start_ns"] + mine["dur_ns"])
    uses = mine.groupby("process").agg(first=("start_ns", "min"), last=("end_ns", "max"))
    first, last = int(uses["first"].max()), int(uses["last"].min())
    if last <= first:
        return pd.DataFrame()
    inside = cut(mine.drop(columns="end_ns"), (first, last)).sort_values("start_ns", kind="stable")
    number, processes = pd.factorize(inside["process"], sort=True)
    worked = total(union(*ends(inside), number.astype(np.int64)), len(processes))
    turns = int(np.count_nonzero(np.diff(number)))
    shares = worked / (last - first)
    if turns < FEWEST_TURNS or len(processes) < 2 or shares.min() < NOTABLE:
        return pd.DataFrame()
    return pd.DataFrame({"rank": rank, "gpu": gpu, "process": processes, "share_frac": shares})


def findings(view: Selection) -> Iterator[Finding]:
    """Yield who else has the GPU, or the CPU's cores, that the program needs."""
    if unrecorded(view):
        return
    yield from _shared(view)
    yield from _crowded(view)


def _shared(view: Selection) -> Iterator[Finding]:
    """Yield the finding on the GPU whose processes lose most to each other."""
    found = sharers(view)
    if found.empty:
        return
    of_gpu = found.groupby(["rank", "gpu"])["share_frac"]
    lost = of_gpu.transform("sum") - found["share_frac"]
    worst = found.iloc[int(lost.to_numpy().argmax())]
    mine = found[found["rank"].eq(worst["rank"]) & found["gpu"].eq(worst["gpu"])]
    name = named(int(worst["rank"]), int(worst["gpu"]), view.all_kernels["rank"].nunique())
    title = f"{len(mine)} processes share {name}"
    definition = f"time in which other processes than {int(worst['process'])} have {name}, as a share of the time in "
    definition += "which all of its processes use it"
    others = min(float(lost.max()), 1.0)
    figure = Figure("shared_gpu_frac", "Other processes have the GPU", others, "1", definition, "KERNELS, COPIES")
    each = [f"process {int(row['process'])} for {percent(row['share_frac'])}" for _, row in mine.iterrows()]
    text = f"Of the time in which all of them use it, it works for {', '.join(each)}. The work of one process waits "
    text += "while the work of another runs."
    gain = removing(others, "best case: a process that is alone on the GPU saves the time in which others have it")
    gain = replace(gain, share=None, whole="each of these processes")
    yield tell(GPU_SHARED, title, severity(others), text, (figure,), gain)


@kept
def off_core(view: Selection) -> float:
    """Return the share of the span in which a GPU is idle and its launching thread has no core, since others have it.

    0 where the recording does not say when threads ran.
    """
    if idle_gaps(view) is None or view.schedule.empty or unrecorded(view):
        return 0.0
    rows = owned(view)
    is_off = rows["owner_kind"].eq("not_running") & rows["detail"].eq("host_code")
    off = rows[is_off.to_numpy()]
    if off.empty or _taken(view, off) < TAKEN:
        return 0.0
    return float(off["dur_ns"].sum() / span_ns(view))


def _taken(view: Selection, off: pd.DataFrame) -> float:
    """Return the share of these stretches in which threads run on the cores that the recording knows."""
    schedule = view.schedule
    places = schedule[["rank", "cpu"]].drop_duplicates()
    ran = 0
    for rank, cpu in places.itertuples(index=False):
        on_core = schedule[schedule["rank"].eq(rank) & schedule["cpu"].eq(cpu)]
        mine = off[off["rank"].eq(rank).to_numpy()]
        ran += int(covered(union(*ends(on_core)), *ends(mine)).sum())
    cores = places.groupby("rank").size()
    of_cores = off["dur_ns"] * off["rank"].map(cores)
    return ran / float(of_cores.sum())


def _crowded(view: Selection) -> Iterator[Finding]:
    """Yield that the launching thread waits for a core, because threads are more than cores."""
    share = off_core(view)
    if share < NOTABLE:
        return
    of_rank = view.schedule.drop_duplicates(["rank", "process", "thread"]).groupby("rank")
    threads = int(of_rank.size().max())
    cores = int(view.schedule.groupby("rank")["cpu"].nunique().max())
    definition = "share of the span: the GPU is idle, and other threads have the cores of the thread that launches"
    off = Figure("off_core_frac", "Launching thread without a core", share, "1", definition, "owners.owned")
    definition = "number of threads that ran on these cores, most on one rank"
    running = Figure("thread_count", "Threads", threads, "count", definition, "SCHEDULE")
    definition = "number of cores on which threads of the recording ran, most on one rank"
    known = Figure("core_count", "CPU cores", cores, "count", definition, "SCHEDULE")
    title = f"The launching thread has no CPU core {off.text} of the time, and the GPU is idle"
    who = _most_often(view)
    text = f"{threads:,} threads ran on {cores:,} CPU cores. While the GPU was idle, other threads had them"
    text += f", most often {who}." if who else "."
    gain = removing(share, "best case: the launching thread always has a core, and the run saves all of this time")
    yield tell(CPU_CORES, title, severity(share), text, (off, running, known), gain)


def _most_often(view: Selection) -> str:
    rows = owned(view)
    off = rows[rows["owner_kind"].eq("not_running").to_numpy()]
    by_owner = off.groupby("owner", observed=True)["dur_ns"].sum()
    return str(by_owner.idxmax()) if len(by_owner) else ""


def idle_causes(view: Selection) -> Mapping[str, float]:
    """Return the share of the span, by cause of idle time, that these rules tell of."""
    share = off_core(view)
    return {"host_code": share} if share >= NOTABLE else {}
