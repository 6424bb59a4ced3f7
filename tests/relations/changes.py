"""The changes of a recording after which perfkit must say the same, less, or more of one thing."""

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pandas as pd
from relations.clock import busy, gaps, inserted, later, quiet, stretched
from relations.recordings import (
    READ,
    STARTED,
    DoesNotApply,
    Recording,
    gpus,
    operations,
    stacked,
    starts,
    stops,
)

LOST = 0.4  # of the kernels, in a cut
PAUSE_NS = 600 * 10**9  # ten minutes
SHORT = 0.05  # of the time: a gap that no finding tells of
MIDDLE = (0.25, 0.75)  # of the time: where the pause comes
BEGINS = 16  # launches that are tried as the begin of a loop
OF_LOOP = ("KERNELS", "COPIES", "API_CALLS", "RANGES", "OPS")  # what a loop holds whole
EARLY = 0.1  # of the operations: what comes before them is start-up
LATER_NS = 1_000_000_007  # by which all times move
DAY_NS = 86_400 * 10**9
POLLS = 200  # ranges of another process or thread
TAIL_CALLS = 10
SEED = 45
NAMES = ("name", "full_name", "family")  # of a kernel
IDS = {"process": 5000, "thread": 1000, "correlation": 10_000_000}  # by which ids are counted up
MEMORY_CALLS = r"(?:cudaMalloc|cudaFree|cuMemAlloc|cuMemFree|cudaHostAlloc|hipMalloc|hipFree)"
COMMUNICATION = "communication"


def unchanged(recording: Recording) -> Recording:
    """Return the same tables: what the others are held against must itself be the run as it was loaded."""
    return recording


# Cuts.


def without_kernels(which: str) -> Callable[[Recording], Recording]:
    """Return a change that drops the first, the last or a random LOST of the kernels, by their start."""

    def cut(recording: Recording) -> Recording:
        return recording.changed({"KERNELS": lambda frame: _without(frame, which)})

    return cut


def _without(kernels: pd.DataFrame, which: str) -> pd.DataFrame:
    count = int(LOST * len(kernels))
    if not count:
        raise DoesNotApply("too few kernels")
    order = np.argsort(starts(kernels), kind="stable")
    if which == "last":
        order = order[::-1]
    if which == "random":
        order = np.random.default_rng(SEED).permutation(len(kernels))
    return kernels.drop(index=kernels.index[order[:count]])


def without_table(name: str) -> Callable[[Recording], Recording]:
    """Return a change that drops all rows of a table."""

    def cut(recording: Recording) -> Recording:
        operations(recording)
        if name not in recording.names:
            raise DoesNotApply(f"no rows of {name}")
        return recording.changed({name: lambda frame: frame.iloc[:0]})

    return cut


def without_half(name: str, which: str) -> Callable[[Recording], Recording]:
    """Return a change that drops the rows of a table before the median of their starts, or those after it."""

    def cut(recording: Recording) -> Recording:
        operations(recording)
        if name not in recording.names:
            raise DoesNotApply(f"no rows of {name}")
        middle = np.median(starts(recording.table(name)))

        def half(frame: pd.DataFrame) -> pd.DataFrame:
            is_first = frame["start_ns"] <= middle
            return frame[~is_first if which == "first" else is_first]

        return recording.changed({name: half})

    return cut


def without_gpu(recording: Recording) -> Recording:
    """Return the recording without what the last of several GPUs did; the list of devices still has it."""
    worked = gpus(recording)
    if len(worked) < 2:
        raise DoesNotApply("one GPU")
    rank, gpu = worked[-1]

    def cut(frame: pd.DataFrame) -> pd.DataFrame:
        return frame[(frame["rank"] != rank) | (frame["gpu"] != gpu)]

    return recording.changed(dict.fromkeys(("KERNELS", "COPIES", "COLLECTIVES", "WAITS"), cut))


def without_second_half(recording: Recording) -> Recording:
    """Return the recording without all that begins after the middle of the time in which GPUs work."""
    spans = busy(recording)
    middle = (spans[0][0] + spans[-1][1]) // 2
    changes = {name: lambda frame: frame[~(frame["start_ns"] > middle)] for name in STARTED}
    changes |= {name: lambda frame: frame[frame["time_ns"] <= middle] for name in READ}
    return recording.changed(changes)


# What is outside of the judged part.


def longer_start_up(recording: Recording) -> Recording:
    """Return the recording with as much time as it has after the first operation at which the GPU has no more to do.

    What lies within the only step that the profiler marked is a part of it, and no start-up.
    """
    spans = busy(recording)
    work = operations(recording)
    at = unwaited(recording)[0]
    if (work["start_ns"] < at).sum() > max(EARLY * len(work), 1):
        raise DoesNotApply("the GPU always has work in the first tenth of the operations")
    marked = recording.table("RANGES")
    marked = marked[marked["kind"] == "step"]
    if len(marked) == 1 and starts(marked)[0] < at < stops(marked)[0]:
        raise DoesNotApply("one step")
    return inserted(recording, np.array([at]), np.array([spans[-1][1] - spans[0][0]]))


def unwaited(recording: Recording) -> list[int]:
    """Return the quiet times at which no call waits for the GPU: it would go on to wait for nothing."""
    calls = recording.table("API_CALLS")
    waits = calls[calls["name"].astype(str).str.contains("Synchronize")]
    times = [time for time in quiet(recording) if not _is_inside(waits, time)]
    if not times:
        raise DoesNotApply("the CPU waits for the GPU all the time")
    return times


def _is_inside(calls: pd.DataFrame, time: int) -> bool:
    return bool(((starts(calls) < time) & (stops(calls) > time)).any())


def long_pause(recording: Recording) -> Recording:
    """Return the recording with ten minutes between two operations, in the shortest gap of the middle half.

    The pause takes its gap with it, so that the gap must be none that a finding tells of.
    """
    spans = busy(recording)
    length = spans[-1][1] - spans[0][0]
    low, high = (spans[0][0] + int(share * length) for share in MIDDLE)
    inside = [time for time in quiet(recording) if low <= time < high]
    ends = np.array([end for _, end in spans])

    def lasted(time: int) -> int:
        return time - int(ends[ends <= time].max(initial=0))

    at = min(inside or quiet(recording), key=lasted)
    if lasted(at) > SHORT * length:
        raise DoesNotApply("all gaps are long")
    return inserted(recording, np.array([at]), np.array([PAUSE_NS]))


def idle_tail(recording: Recording) -> Recording:
    """Return the recording with CUDA calls, but no work of a GPU, for as long again after its last event."""
    spans = busy(recording)
    length = spans[-1][1] - spans[0][0]
    ends = [
        int(stops(table).max())
        for table in (operations(recording), recording.table("API_CALLS"))
        if len(table)
    ]
    longer = recording.lengthened(length)
    calls = recording.table("API_CALLS")
    if calls.empty:
        raise DoesNotApply("no CUDA calls")
    row = calls.iloc[[int(np.argmax(starts(calls)))]]
    times = max(ends) + np.arange(1, TAIL_CALLS + 1, dtype=np.int64) * (length // TAIL_CALLS)
    rows = pd.concat([row] * TAIL_CALLS).assign(
        start_ns=times, dur_ns=1000, name="cudaGetDevice", correlation=-1
    )
    return longer.with_rows("API_CALLS", rows)


# The same again.


def loop_twice(recording: Recording) -> Recording:
    """Return the recording with its loop done once more, after it.

    All that is under way at one of its ends is repeated whole, but not the profiler's own time. What
    encloses the loop lasts longer; what comes after it moves.
    """
    since, until = loop(recording)
    period = until - since
    longer = inserted(recording, np.array([until]), np.array([period]))
    called = [table["correlation"] for table in recording.tables.values() if "correlation" in table]
    correlations = 1 + max(int(column.max()) for column in called if len(column))
    tables = {}
    for (reader, name), before in recording.tables.items():
        again = _again(name, before, since, until, period)
        again = again.assign(**_other_calls(again, correlations))
        tables[reader, name] = stacked(longer.tables[reader, name], again)
    return replace(longer, tables=tables)


def loop(recording: Recording) -> tuple[int, int]:
    """Return when the loop begins and ends, as `loop_twice` repeats it.

    It begins in the second half of the steps that the profiler marked, for the first ones may be
    slow; else with a launch of the first half, the first one if possible. It ends with the last
    kernel: copies before and after are no part of a loop. Work that calls and ranges hold together
    with the loop is none of it: if that is more than a little, no loop can be repeated.
    """
    work = operations(recording)
    kernels = recording.table("KERNELS")
    if kernels.empty:
        raise DoesNotApply("no kernels")
    launched = np.sort(work.loc[work["start_ns"] >= starts(kernels).min(), "launched_ns"])
    since = int(launched[0])
    until = int(stops(kernels).max())
    early = launched[: 1 + len(launched) // 2]
    begins = early[:: 1 + len(early) // BEGINS].tolist()
    marked = recording.table("RANGES")
    marked = marked[(marked["kind"] == "step") & (starts(marked) < until) & (stops(marked) > since)]
    if len(marked):
        until = max(until, int(stops(work).max()), int(stops(marked).max()))
        middle = min(_middle(of_rank) for _, of_rank in marked.groupby("rank"))
        begins = [begin for begin in np.sort(starts(marked)).tolist() if begin >= middle]
    for begin in begins:
        span = _whole(recording, begin, until)
        if _worked_ns(work, span) <= (1 + SHORT) * _worked_ns(work, (begin, until)):
            return span
    raise DoesNotApply("nothing parts the loop from other work")


def _worked_ns(work: pd.DataFrame, span: tuple[int, int]) -> int:
    """Return how long the operations that end in a span last together."""
    inside = (stops(work) > span[0]) & (stops(work) <= span[1])
    return int(work["dur_ns"][inside].sum())


def _middle(marked: pd.DataFrame) -> int:
    """Return when the second half of steps begins."""
    return int(np.sort(starts(marked))[len(marked) // 2])


def _whole(recording: Recording, since: int, until: int) -> tuple[int, int]:
    """Return a span grown until it holds each row whole that does not enclose it."""
    tables = [t for (_, name), t in recording.tables.items() if name in OF_LOOP and len(t)]
    times = pd.concat([t.loc[t["start_ns"].notna(), ["start_ns", "dur_ns"]] for t in tables])
    begins, ends = starts(times), stops(times)
    while True:
        early = (begins < since) & (ends > since) & (ends <= until)
        late = (begins >= since) & (begins < until) & (ends > until)
        if not (early | late).any():
            return since, until
        since = min(since, int(begins[early].min(initial=since)))
        until = max(until, int(ends[late].max(initial=until)))


def _again(name: str, frame: pd.DataFrame, since: int, until: int, period: int) -> pd.DataFrame:
    """Return the rows of a loop once more, later and with new numbers."""
    if name in READ:
        inside = frame[frame["time_ns"].between(since, until, inclusive="left")]
        return inside.assign(time_ns=inside["time_ns"] + period)
    if name not in STARTED or name == "OVERHEAD":
        return frame.iloc[:0]
    is_inside = (frame["start_ns"] >= since) & (frame["start_ns"] < until)
    is_inside &= frame["start_ns"] + frame["dur_ns"] <= until
    inside = frame[is_inside.fillna(False).astype(bool)]
    numbers = [c for c in ("event", "record", "sequence") if c in frame]
    changes = {c: _renumbered(inside[c], 1 + int(frame[c].max())) for c in numbers if len(frame)}
    if name == "OPS":
        changes |= _other_numbers(inside, int(frame["op"].max()) + 1)
    return inside.assign(start_ns=inside["start_ns"] + period, **changes)


def _other_calls(frame: pd.DataFrame, by: int) -> dict[str, pd.Series]:
    return {c: _renumbered(frame[c], by) for c in frame if c == "correlation"}


def _renumbered(numbers: pd.Series, by: int) -> pd.Series:
    """Return numbers counted up; those below 0 stand for none and stay."""
    return numbers.where(numbers < 0, numbers + by)


def _other_numbers(ops: pd.DataFrame, by: int) -> dict[str, pd.Series]:
    pairs = pd.MultiIndex.from_frame(ops[["rank", "op"]])
    is_inside = pd.MultiIndex.from_frame(ops[["rank", "parent"]]).isin(pairs)
    return {"op": ops["op"] + by, "parent": ops["parent"].where(~is_inside, ops["parent"] + by)}


def around_the_work(recording: Recording) -> Recording:
    """Return the recording through a window from its first to its last operation.

    A window from the first launch would hold the time until the GPU begins: that is another question.
    """
    spans = busy(recording)
    return replace(recording, window=(spans[0][0], spans[-1][1]))


def other_ranks(recording: Recording) -> Recording:
    """Return the recording with its ranks in the opposite order."""
    ranks = sorted({rank for rank, _ in gpus(recording)})
    if len(ranks) < 2:
        raise DoesNotApply("one rank")
    return _mapped(recording, ("rank",), dict(zip(ranks, reversed(ranks), strict=True)))


def other_gpus(recording: Recording) -> Recording:
    """Return the recording with the GPUs that worked numbered in the opposite order."""
    worked = sorted({gpu for _, gpu in gpus(recording)})
    if len(worked) < 2:
        raise DoesNotApply("one GPU of each rank")
    mapping = dict(zip(worked, reversed(worked), strict=True))
    return _mapped(recording, ("gpu", "peer_gpu"), mapping)


def other_streams(recording: Recording) -> Recording:
    """Return the recording with the numbers of its streams in the opposite order."""
    tables = [recording.table(name) for name in ("KERNELS", "COPIES")]
    streams = sorted({int(s) for table in tables for s in table["stream"] if s >= 0})
    if len(streams) < 2:
        raise DoesNotApply("one stream")
    return _mapped(recording, ("stream",), dict(zip(streams, reversed(streams), strict=True)))


def other_ids(recording: Recording) -> Recording:
    """Return the recording with other numbers of processes, threads and calls; those below 0 stand for none."""

    def change(frame: pd.DataFrame) -> pd.DataFrame:
        there = {column: by for column, by in IDS.items() if column in frame}
        return frame.assign(**{c: _renumbered(frame[c], by) for c, by in there.items()})

    operations(recording)
    return recording.changed({name: change for _, name in recording.tables})


def _mapped(recording: Recording, columns: tuple[str, ...], to: dict[int, int]) -> Recording:
    def change(frame: pd.DataFrame) -> pd.DataFrame:
        there = [column for column in columns if column in frame]
        return frame.assign(**{c: frame[c].replace(to) for c in there})

    return recording.changed({name: change for _, name in recording.tables})


def shuffled(recording: Recording) -> Recording:
    """Return the recording with the rows of each table in a random order: rows of one time change places."""

    def change(frame: pd.DataFrame) -> pd.DataFrame:
        return frame.iloc[np.random.default_rng(SEED).permutation(len(frame))]

    operations(recording)
    return recording.changed({name: change for _, name in recording.tables})


def moved_times(recording: Recording) -> Recording:
    """Return the recording with all times moved by a constant."""
    operations(recording)
    return later(recording, LATER_NS)


def another_day(recording: Recording) -> Recording:
    """Return the recording as if made a day later."""
    operations(recording)
    return recording.changed(
        {"CAPTURE": lambda frame: frame.assign(t0_unix_ns=frame["t0_unix_ns"] + DAY_NS)}
    )


# Innocent additions.


def innocent_gpu(recording: Recording) -> Recording:
    """Return the recording with one more GPU, on which another process runs one kernel all the time."""
    spans = busy(recording)
    if "KERNELS" not in recording.names:
        raise DoesNotApply("no kernels")
    rank, _ = gpus(recording)[0]
    gpu = 1 + max(number for _, number in gpus(recording))
    tables = [recording.table(name) for name in ("KERNELS", "API_CALLS")]
    process = 1 + max(int(table["process"].max()) for table in tables if len(table))
    place = {"rank": rank, "gpu": gpu, "process": process}
    begin, length = spans[0][0], spans[-1][1] - spans[0][0]
    kernel = recording.table("KERNELS").iloc[[0]].astype(dict.fromkeys(NAMES, object))
    kernel = kernel.assign(**place, start_ns=begin, dur_ns=length, correlation=1, in_graph=False)
    kernel = kernel.assign(
        name="innocent", full_name="innocent", family="other", grid_blocks=100_000
    )
    result = recording.with_rows("KERNELS", kernel)
    devices = recording.table("DEVICES")
    same = devices[(devices["rank"] == rank) & (devices["gpu"] == gpu)]
    if len(devices) and same.empty:
        result = result.with_rows("DEVICES", devices.iloc[[0]].assign(rank=rank, gpu=gpu))
    calls = recording.table("API_CALLS")
    if calls.empty:
        return result
    call = (
        calls.iloc[[0]].astype({"name": object}).assign(rank=rank, process=process, thread=process)
    )
    call = call.assign(start_ns=begin - 5000, dur_ns=4000, name="cudaLaunchKernel", correlation=1)
    return result.with_rows("API_CALLS", call)


def other_process(recording: Recording) -> Recording:
    """Return the recording with ranges of another process at even distances, which starts no work."""
    process = 1 + max(_numbers(recording, "process"))
    return _with_polls(recording, process, process)


def other_thread(recording: Recording) -> Recording:
    """Return the recording with ranges of one more thread of its process at even distances, which starts no work."""
    if "API_CALLS" not in recording.names:
        raise DoesNotApply("no CUDA calls: nothing shows which threads start work")
    process = int(operations(recording)["process"].iloc[0])
    return _with_polls(recording, process, 1 + max(_numbers(recording, "thread")))


def _numbers(recording: Recording, column: str) -> list[int]:
    tables = [recording.table(name) for name in ("KERNELS", "COPIES", "API_CALLS", "RANGES", "OPS")]
    return [int(table[column].max()) for table in tables if column in table and len(table)]


def _with_polls(recording: Recording, process: int, thread: int) -> Recording:
    rank, _ = gpus(recording)[0]
    work = operations(recording)
    mine = work[work["rank"] == rank]
    begin = int(mine["start_ns"].min())
    distance = max((int(stops(mine).max()) - begin) // POLLS, 2)
    rows = pd.DataFrame({"start_ns": begin + np.arange(POLLS, dtype=np.int64) * distance})
    rows = rows.assign(rank=rank, process=process, thread=thread, dur_ns=distance // 2, name="poll")
    return recording.with_rows("RANGES", rows.assign(domain="", kind="push_pop", depth=0))


# Twice the time in one line.


def family_doubled(recording: Recording) -> Recording:
    """Return the recording with each kernel of the family that takes longest twice as long, and all after it later."""
    family = longest_family(recording)
    kernels = recording.table("KERNELS")
    mine = kernels[kernels["family"] == family].sort_values("start_ns")
    if (starts(mine)[1:] < stops(mine)[:-1]).any():
        raise DoesNotApply(f"kernels of {family} overlap")
    longer = inserted(recording, stops(mine), mine["dur_ns"].to_numpy(np.int64))

    def doubled(frame: pd.DataFrame) -> pd.DataFrame:
        once = mine["dur_ns"].reindex(frame.index).fillna(0).astype(np.int64)
        return frame.assign(dur_ns=frame["dur_ns"] + once)

    return longer.changed({"KERNELS": doubled})


def longest_family(recording: Recording) -> str:
    """Return the family of kernels that takes longest; waiting in communication is no work."""
    _one_gpu(recording)
    kernels = recording.table("KERNELS")
    sums = (
        kernels[kernels["family"] != COMMUNICATION].groupby("family", observed=True)["dur_ns"].sum()
    )
    if sums.empty:
        raise DoesNotApply("no kernels")
    return str(sums.idxmax())


def idle_doubled(recording: Recording) -> Recording:
    """Return the recording with each gap between operations, and all that happens in it, twice as long."""
    _one_gpu(recording)
    spans = gaps(recording)
    if not spans:
        raise DoesNotApply("no gaps")
    return stretched(recording, spans)


def memory_gaps_doubled(recording: Recording) -> Recording:
    """Return the recording with each gap twice as long that calls which allocate or free memory fill by half."""
    _one_gpu(recording)
    calls = recording.table("API_CALLS")
    calls = calls[calls["name"].astype(str).str.match(MEMORY_CALLS)]
    spans = [span for span in gaps(recording) if 2 * _covered(calls, span) >= span[1] - span[0]]
    if not spans:
        raise DoesNotApply("no gaps in calls of memory")
    return stretched(recording, spans)


def _covered(calls: pd.DataFrame, span: tuple[int, int]) -> int:
    inside = np.minimum(stops(calls), span[1]) - np.maximum(starts(calls), span[0])
    return int(np.maximum(inside, 0).sum())


def _one_gpu(recording: Recording) -> None:
    if len(gpus(recording)) > 1:
        raise DoesNotApply("several GPUs")
