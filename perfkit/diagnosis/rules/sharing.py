"""Rules about what a program shares: a GPU with other processes, the cores of the CPU with other threads.

Processes share a GPU where each of several keeps it busy for a tenth of the time in which all of
them use it, and the GPU changes ten times from one to the other (conventions). A process that ends
before the next one begins shares nothing. Alone on the GPU, a process saves at most the time in
which the others have it.

The launching thread lacks a core where the operating system had taken it off, no call says that it
waits, and other threads had the cores of the recording meanwhile.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from perfkit.analysis.causes import covered
from perfkit.analysis.grouping import largest
from perfkit.analysis.intervals import cut, ends, total, union
from perfkit.diagnosis.finding import Figure, Finding, removing, severity
from perfkit.diagnosis.recording import of_the_time
from perfkit.diagnosis.rules.rule import Fact, Known, Rule, now, soon, tell
from perfkit.diagnosis.stored import kept
from perfkit.diagnosis.timeline import idle_gaps, is_judged, named, owned, span_ns
from perfkit.format import percent
from perfkit.selection import Selection

NOTABLE = 0.1
FEWEST_TURNS = 10
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
    return (
        pd.concat(found, ignore_index=True)
        if found
        else pd.DataFrame(columns=[*KEYS, "share_frac"])
    )


def _of_gpu(operations: pd.DataFrame, rank: int, gpu: int) -> pd.DataFrame:
    """Return the processes that share one GPU."""
    mine = operations[operations["rank"].eq(rank) & operations["gpu"].eq(gpu)]
    mine = mine.assign(end_ns=mine["start_ns"] + mine["dur_ns"])
    uses = mine.groupby("process").agg(first=("start_ns", "min"), last=("end_ns", "max"))
    first = int(uses["first"].max())
    last = int(uses["last"].min())
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


def _shared(view: Selection, _: Known) -> Iterator[Finding]:
    """Yield the finding on the GPU whose processes lose most to each other."""
    found = sharers(view)
    if found.empty or not is_judged(view):
        return
    of_gpu = found.groupby(["rank", "gpu"])["share_frac"]
    found = found.assign(lost_frac=of_gpu.transform("sum") - found["share_frac"])
    worst = largest(found, "lost_frac")
    mine = found[found["rank"].eq(worst["rank"]) & found["gpu"].eq(worst["gpu"])]
    name = named(worst, view.all_kernels)
    title = f"{len(mine)} processes share {name}"
    definition = (
        f"time in which other processes than {int(worst['process'])} have {name}, as a share of the "
        "time in "
    )
    definition += "which all of its processes use it"
    others = min(float(worst["lost_frac"]), 1.0)
    figure = Figure(
        "shared_gpu_frac",
        "Other processes have the GPU",
        others,
        "1",
        definition,
        "KERNELS, COPIES",
    )
    each = [
        f"process {int(row['process'])} for {percent(row['share_frac'])}"
        for _, row in mine.iterrows()
    ]
    text = (
        f"Of the time in which all of them use it, it works for {', '.join(each)}. The work of one "
        "process waits "
    )
    text += "while the work of another runs."
    gain = removing(
        others,
        "best case: a process that is alone on the GPU saves the time in which others have it",
    )
    gain = replace(gain, share=None, whole="each of these processes")
    yield tell(GPU_SHARED, title, text, (figure,), gain, level=severity(others))


@kept
def off_core(view: Selection) -> float:
    """Return the share of the span in which a GPU is idle and its launching thread has no core, since others have it.

    0 where the recording does not say when threads ran.
    """
    if idle_gaps(view) is None or view.schedule.empty or not is_judged(view):
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


def _crowded(view: Selection, _: Known) -> Iterator[Finding]:
    """Yield that the launching thread waits for a core, because threads are more than cores."""
    share = off_core(view)
    if share < NOTABLE:
        return
    of_rank = view.schedule.drop_duplicates(["rank", "process", "thread"]).groupby("rank")
    threads = int(of_rank.size().max())
    cores = int(view.schedule.groupby("rank")["cpu"].nunique().max())
    off = Figure(
        "off_core_frac",
        "Launching thread without a core",
        share,
        "1",
        (
            "share of the span: the GPU is idle, and other threads have the cores of the thread that "
            "launches"
        ),
        "owners.owned",
    )
    running = Figure(
        "thread_count",
        "Threads",
        threads,
        "count",
        "number of threads that ran on these cores, most on one rank",
        "SCHEDULE",
    )
    known = Figure(
        "core_count",
        "CPU cores",
        cores,
        "count",
        "number of cores on which threads of the recording ran, most on one rank",
        "SCHEDULE",
    )
    title = (
        f"The launching thread has no CPU core {off.text} {of_the_time(view)}, and the GPU is idle"
    )
    who = _most_often(view)
    text = (
        f"{threads:,} threads ran on {cores:,} CPU cores. While the GPU was idle, other threads had "
        "them"
    )
    text += f", most often {who}." if who else "."
    gain = removing(
        share,
        "best case: the launching thread always has a core, and the run saves all of this time",
    )
    yield tell(CPU_CORES, title, text, (off, running, known), gain)


def _most_often(view: Selection) -> str:
    rows = owned(view)
    off = rows[rows["owner_kind"].eq("not_running").to_numpy()]
    by_owner = off.groupby("owner", observed=True)["dur_ns"].sum()
    return str(by_owner.idxmax()) if len(by_owner) else ""


def _claims(view: Selection) -> Mapping[str, float]:
    share = off_core(view)
    return {"host_code": share} if share >= NOTABLE else {}


GPU_SHARED = Rule(
    name="gpu_shared",
    subject="GPU shared",
    question="Do several processes use one GPU at the same time?",
    needs=("KERNELS",),
    evidence=("shared_gpu_frac",),
    target="one process per GPU",
    threshold=(
        "Each of several processes has the GPU for 10 % of the time in which all use it, and it "
        "changes ten times from one to the other (conventions). Losing 10 % of the time is worth a "
        "look, 30 % is severe (conventions)"
    ),
    advice=(
        now(
            "Give each process a GPU of its own (CUDA_VISIBLE_DEVICES), or run the processes "
            "one after the other"
        ),
        now("Check who else uses the GPU: {gpu_processes} lists its processes"),
        soon(
            "Let the kernels of all processes run at the same time where each needs a part of "
            "the GPU (MPS: nvidia-cuda-mps-control -d)"
        ),
        soon("Divide the GPU into parts with memory and SMs of their own (MIG)"),
    ),
    next="Record which processes use the GPU: {gpu_processes}",
    find=_shared,
)


CPU_CORES = Rule(
    name="cpu_cores",
    question="Does the thread that launches work wait for a CPU core?",
    needs=("KERNELS", "API_CALLS", "SCHEDULE"),
    evidence=("off_core_frac", "thread_count", "core_count"),
    target="0 %",
    threshold=(
        "The operating system took the thread off its core, and other threads ran on nine tenths "
        "of the cores meanwhile: 10 % of the time is worth a look, 30 % is severe (conventions)"
    ),
    advice=(
        now(
            "Run fewer threads on these cores: OMP_NUM_THREADS, MKL_NUM_THREADS, and fewer "
            "processes on the node"
        ),
        now(
            "Lower torch.set_num_threads and num_workers, so that all threads fit on the cores",
            when=Fact.PYTORCH,
        ),
        now(
            "Bind the launching thread to a core that no other thread uses (taskset, numactl "
            "--physcpubind, --cpu-bind of srun)"
        ),
        soon(
            "Ask for more CPU cores for this job (--cpus-per-task of Slurm, limits of the "
            "container)"
        ),
    ),
    next="Count the threads and the cores that they may use: taskset -cp PID, and top -H -p PID",
    reason="other threads had the CPU core of the thread that launches work",
    find=_crowded,
    claims=_claims,
)
