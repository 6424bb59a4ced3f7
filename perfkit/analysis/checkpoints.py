"""When does the GPU stop because the program saves its state, or writes other files?

A pause is a stretch of at least a millisecond in which a device runs no kernel, between two kernels
or from the last one to the end of the rank's work; copies may run in it. It is a checkpoint by its
*witness*, the best of these that it has:

range     ranges or functions of that rank whose name says that state is saved cover at least half of it; at least half
          of such a range lies in one pause, else it is around more than that
file      calls that write or flush files cover at least half of it, on threads that launch kernels; a kernel follows,
          and no range says that data are loaded or results are evaluated
copies    nothing names it, but it looks like one: in a steady step, at least 5 times as long as the longest pause of
          half of the steps and 10 ms, in two to half of the steps, at least 10 MB are copied to the host, ten times as
          much as in a step otherwise, less than half of it comes back, and no range says anything else, as above
          (conventions). The end of the
          recording is no recurrence: what is copied there needs two such pauses before it

Recomputing activations, which PyTorch calls checkpointing too, saves no state.
"""

import re
from collections.abc import Callable, Iterable

import numpy as np
import pandas as pd

from perfkit.analysis import causes
from perfkit.analysis.gaps import idle_gaps
from perfkit.analysis.intervals import Bool, Int, Window, ends
from perfkit.analysis.steps import outlasting
from perfkit.schema import Column, Table
from perfkit.tables import (
    API_CALLS,
    COPIES,
    DUR,
    GPU,
    KERNELS,
    OS_CALLS,
    PYTHON_CALLS,
    RANGES,
    RANK,
    START,
)

CHECKPOINTS = Table(
    "CHECKPOINTS",
    "a stretch in which a device runs no kernel because state is saved",
    (
        *(RANK, GPU, START, DUR),
        Column("bytes", "int64", "bytes that are copied from the device to the host in it"),
        Column("named_ns", "int64", "time of it inside ranges and functions that save, ns"),
        Column("written_ns", "int64", "time of it inside calls that write files, ns"),
        Column(
            "step",
            "int64",
            "step of the rank that began last; -1 before the first, and without steps",
        ),
        Column("witness", "category", "one of WITNESSES"),
        Column(
            "name",
            "string",
            "name of the range or function that covers most of it; empty if none does",
        ),
    ),
    ("rank", "gpu", "start_ns"),
)
WITNESSES = ("range", "file", "copies")
# ns and bytes; conventions, as above.
SHORTEST_NS = 1_000_000
LONG_NS, LONGER, FEWEST_BYTES, MORE_BYTES, FEWEST_STEPS = 10_000_000, 5, 10_000_000, 10, 3
_STATE = r"(?:model|check_?point|ckpt|snapshot|state|weights)"
# save_checkpoint, torch.save's functions on the stack, DCP, "[Callback]ModelCheckpoint...",
# "writing the checkpoint"
SAVING = re.compile(
    rf"(?:save|saving|writ|dump|export|upload)\w*[ _.:\-]*(?:the[ _])?{_STATE}"
    rf"|{_STATE}[ _.:\-]*(?:save|saving|writ|dump)"
    r"|torch/serialization\.py\(\d+\): _?(?:legacy_)?save|distributed/checkpoint/(?!.*load)"
    r"|modelcheckpoint|async_save"
    r"|^(?:save|saving|checkpoint|checkpointing|ckpt)$",
    re.IGNORECASE,
)
RECOMPUTING = re.compile(
    r"utils/checkpoint\.py|CheckpointFunction|checkpoint_sequential|activation|recompute", re.I
)
EVALUATING = re.compile(r"(?:^|[^a-z])(?:eval|valid|test|infer|predict)", re.IGNORECASE)
WRITING = re.compile(
    r"(?:p?writev?2?(?:64)?|fwrite|fputs|fflush|fclose|f(?:data)?sync|sync|syncfs|msync"
    r"|sync_file_range|f?truncate(?:64)?|posix_fallocate(?:64)?|fallocate(?:64)?|rename(?:at2?)?"
    r"|sendfile(?:64)?"
    r"|copy_file_range|aio_write(?:64)?|io_submit|splice)$"
)


def detect(
    kernels: pd.DataFrame,
    copies: pd.DataFrame,
    api_calls: pd.DataFrame,
    *,
    ranges: pd.DataFrame,
    python_calls: pd.DataFrame,
    os_calls: pd.DataFrame,
    steps: pd.DataFrame,
    window: Window | None = None,
) -> pd.DataFrame:
    """Return the stretches in which devices run no kernel because state is saved: table `CHECKPOINTS`.

    A window selects the pauses that begin and end in it. Source: The guide's bottleneck 4.
    """
    ended = _ended(KERNELS.check(kernels), ["rank", "gpu"])
    ending = _ending(ended, COPIES.check(copies))
    idle = idle_gaps(kernels, ending, API_CALLS.empty(), at_least_ns=SHORTEST_NS, window=window)
    pauses = idle.loc[idle["cause"] != "edge", ["rank", "gpu", "start_ns", "dur_ns"]].reset_index(
        drop=True
    )
    if pauses.empty:
        return CHECKPOINTS.empty()
    functions = RANGES.check(ranges), PYTHON_CALLS.check(python_calls)
    saving = _named(functions, _says_saving)
    device = pd.MultiIndex.from_frame(pauses[["rank", "gpu"]])
    pauses["is_last"] = pauses["start_ns"] >= ended.reindex(device).to_numpy(np.int64)
    saving = _within_pauses(saving, pauses)
    writing = _written(OS_CALLS.check(os_calls), API_CALLS.check(api_calls))
    others = _named(
        functions, lambda name: causes.DATA_LOADING.search(name) or EVALUATING.search(name)
    )
    pauses = pauses.assign(
        bytes=_copied(copies[copies["direction"] == "D2H"], pauses),
        named_ns=causes.covered_by(pauses, saving),
        written_ns=causes.covered_by(pauses, writing),
        step=_steps(steps, pauses),
    )
    dur = pauses["dur_ns"].to_numpy()
    # A pause that outlasts all the rest is told as a pause.
    lone = causes.covered(outlasting(*ends(kernels)), *ends(pauses)) > 0
    free = (2 * causes.covered_by(pauses, others) < dur) & ~lone
    # What comes back at once, such as weights from an optimizer on the CPU, is not saved.
    back = _copied(copies[copies["direction"] == "H2D"], pauses)
    stays = 2 * back < pauses["bytes"].to_numpy()
    by_name, by_file = (
        2 * pauses[column].to_numpy() >= dur for column in ("named_ns", "written_ns")
    )
    witness = np.select(
        [
            by_name,
            by_file & free & ~pauses["is_last"],
            free & stays & _alike(pauses, copies, steps),
        ],
        range(len(WITNESSES)),
        -1,
    )
    found = pauses.assign(witness=pd.Categorical.from_codes(witness, pd.Index(WITNESSES)))[
        witness >= 0
    ]
    names = _names_of(found, saving)
    return CHECKPOINTS.make(found.drop(columns="is_last").assign(name=names))


def _within_pauses(saving: pd.DataFrame, pauses: pd.DataFrame) -> pd.DataFrame:
    """Return the spans that save of which at least half lies in one pause of their rank."""
    (first, last), (begin, finish) = causes.on_one_axis([saving, _open(pauses, saving)], ["rank"])
    most = causes.longest(causes.placed(begin, finish), first, last)
    inside = np.minimum(finish[most], last) - np.maximum(begin[most], first)
    return saving[np.asarray((most >= 0) & (2 * inside >= last - first))]


def _written(os_calls: pd.DataFrame, api_calls: pd.DataFrame) -> pd.DataFrame:
    """Return what threads write that launch kernels; what all do where none is known."""
    writing = _named([os_calls], WRITING.match)
    kernel = causes.where(api_calls["name"], causes.is_kernel_launch)
    threads = api_calls.loc[kernel, causes.THREAD].drop_duplicates()
    return writing.merge(threads, on=causes.THREAD) if len(threads) and len(writing) else writing


def _names_of(found: pd.DataFrame, saving: pd.DataFrame) -> list[str]:
    """Return the name of the longest span that saves in each checkpoint; empty without one."""
    names = []
    longest = saving.sort_values("dur_ns", ascending=False, kind="stable")
    places = found[["rank", "start_ns", "dur_ns"]].itertuples(index=False, name=None)
    for rank, begin, length in places:
        meets = (longest["rank"] == rank) & (longest["start_ns"] < begin + length)
        meets &= longest["start_ns"] + longest["dur_ns"] > begin
        names.append(next(iter(longest["name"][meets].astype(str)), ""))
    return names


def _copied(copies: pd.DataFrame, pauses: pd.DataFrame) -> Int:
    """Return the bytes of the copies that run in each pause; of several pauses the last has the copy."""
    (start, end), (first, last) = causes.on_one_axis([copies, pauses], ["rank", "gpu"])
    place = np.searchsorted(first, end, side="left") - 1
    inside = (place >= 0) & (start < np.append(last, 0)[place])
    moved = np.bincount(place[inside], copies["bytes"].to_numpy()[inside], len(pauses))
    return np.asarray(moved, np.int64)


def _ended(operations: pd.DataFrame, keys: list[str]) -> pd.Series:
    """Return when the last operation of each device or rank ends, ns."""
    end = operations["start_ns"] + operations["dur_ns"]
    return end.groupby([operations[key] for key in keys]).max()


def _ending(ended: pd.Series, copies: pd.DataFrame) -> pd.DataFrame:
    """Return COPIES of 1 ns: on each GPU when its rank's work ends, if its last kernel ended before.

    So the time from the last kernel to the end of the work is a gap between two operations, too.
    """
    of_ranks = pd.concat([ended.groupby("rank").max(), _ended(copies, ["rank"])])
    of_rank = of_ranks.groupby(level=0).max()
    devices = ended.index.to_frame(index=False)
    devices = devices.assign(start_ns=devices["rank"].map(of_rank), dur_ns=1)
    rows = devices[(devices["start_ns"] > ended.to_numpy()).to_numpy()]
    unknown = dict.fromkeys(("process", "stream", "peer_gpu", "correlation"), -1)
    memory = dict.fromkeys(("src_memory", "dst_memory"), None)
    return COPIES.make(rows.assign(**unknown, **memory, bytes=0, direction="unknown"))


def _open(pauses: pd.DataFrame, saving: pd.DataFrame) -> pd.DataFrame:
    """Return pauses of which the last of a device lasts as long as its rank goes on to save."""
    of_rank = (saving["start_ns"] + saving["dur_ns"]).groupby(saving["rank"]).max()
    ended = pauses["rank"].map(of_rank).fillna(0).astype(np.int64)
    longer = np.maximum(pauses["dur_ns"], ended - pauses["start_ns"])
    return pauses.assign(dur_ns=pauses["dur_ns"].where(~pauses["is_last"], longer))


def _says_saving(name: str) -> bool:
    return bool(SAVING.search(name)) and not RECOMPUTING.search(name)


def _named(frames: Iterable[pd.DataFrame], fulfils: Callable[[str], object]) -> pd.DataFrame:
    """Return the rows whose name fulfils a condition."""
    found = [frame[causes.where(frame["name"], fulfils)] for frame in frames]
    return pd.concat(
        [
            one[[*causes.THREAD, "start_ns", "dur_ns", "name"]].astype({"name": "string"})
            for one in found
        ]
    )


def _steps(steps: pd.DataFrame, pauses: pd.DataFrame) -> Int:
    """Return the step that began last before each pause of its rank, -1 before the first."""
    (at, _), (begin, _) = causes.on_one_axis([pauses, steps], ["rank"])
    place = np.searchsorted(begin, at, side="right") - 1
    of_rank = np.append(steps["rank"], -1)[place] == pauses["rank"].to_numpy()
    return np.where(of_rank, np.append(steps["step"], -1)[place], -1)


def _alike(pauses: pd.DataFrame, copies: pd.DataFrame, steps: pd.DataFrame) -> Bool:
    """Tell which pauses look like a checkpoint: rare and long, in steady steps, and much is copied to the host."""
    alike = np.zeros(len(pauses), bool)
    for (rank, gpu), rows in pauses.groupby(["rank", "gpu"]):
        steady = steps.loc[(steps["rank"] == rank) & steps["steady"], "step"].to_numpy()
        if len(steady) < FEWEST_STEPS:
            continue
        inside = rows[rows["step"].isin(steady)]
        usual = inside.groupby("step")["dur_ns"].max().reindex(steady, fill_value=0).median()
        long = inside[inside["dur_ns"] >= max(LONG_NS, LONGER * usual)]
        device = (copies["rank"] == rank) & (copies["gpu"] == gpu) & (copies["direction"] == "D2H")
        rest = (int(copies.loc[device, "bytes"].sum()) - int(long["bytes"].sum())) / len(
            steps[steps["rank"] == rank]
        )
        much = long[long["bytes"] >= max(FEWEST_BYTES, MORE_BYTES * rest)]
        recurring = much.loc[~much["is_last"], "step"].nunique()
        if recurring >= 2 and much["step"].nunique() <= len(steady) / 2:
            alike[much.index] = True
    return alike
