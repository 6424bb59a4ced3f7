"""What a timeline shows besides its streams: lanes of copies, calls, ranges and steps, and what was clicked."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.alignment import bins
from perfkit.analysis.causes import is_launch, is_memory, is_sync, numbered_together, started_by
from perfkit.analysis.intervals import Int, Window
from perfkit.analysis.lanes import Spans
from perfkit.analysis.timeline import KINDS
from perfkit.charts.detail import BINS, LINES, SPANS
from perfkit.charts.ranks import STRIP_UNITS
from perfkit.charts.theme import MOST_ROWS, PHASE_NAMES, STRIP_NAMES, devices
from perfkit.format import duration, number, printable, size, unit
from perfkit.selection import Selection

CALLS = ("launch", "sync", "memory", "call")
DIRECTIONS = ("H2D", "D2H", "D2D", "P2P", "H2H", "memset", "unknown")
THREAD = ["rank", "process", "thread"]
STREAM = ["rank", "gpu", "stream"]
PLURALS = {"OS call": "OS calls", "turn on a core": "turns on a core"}
PLURALS["stretch of CPU samples"] = "stretches of CPU samples"
MOST_STREAMS = 40  # of more, those of a GPU share a lane


@dataclass(frozen=True)
class Source:
    """Rows of a table in groups; a lane holds one group for each kind that it has."""

    nouns: tuple[str, str]  # one row, several
    frame: pd.DataFrame
    spans: Spans
    lanes: pd.DataFrame  # label, and the columns by which lanes are chosen: rank, and gpu if there
    kinds: tuple[str, ...]  # of the groups of each lane, in their order
    is_sparse: bool = (
        False  # whether the longest rows tell more than how much of the time any row runs
    )
    table: str = ""  # where its rows lie, if they are those of a table of the run


ON_GPU = "ranges on the GPU"
MEMORY = {"memory_allocated_bytes": "memory allocated", "memory_reserved_bytes": "memory reserved"}
ENGINES = {
    "gr_active_frac": "engine active",
    "sm_issue_frac": "SM issue slots used",
    "dram_read_frac": "DRAM read",
}
ENGINES |= {"dram_write_frac": "DRAM write", "gpc_clock_hz": "SM clock"}
LINKS = {
    f"{link}_{way}{kind}": f"{words} {to} the GPU{more}"
    for link, words in {"pcie": "PCIe", "nvlink": "NVLink"}.items()
    for way, to in {"rx": "to", "tx": "from"}.items()
    for kind, more in {
        "_bytes_per_s": "",
        "_frac": "",
        **{f"_{part}_user_data_frac": f", {part}" for part in ("requests", "responses")},
    }.items()
}
LINED = {  # lanes of metrics over time
    "GPU metrics": {
        n: w for n, w in (STRIP_NAMES | ENGINES).items() if not n.startswith(("memory_", "pcie_"))
    },
    "PCIe and NVLink": LINKS | {"nvlink_bytes_per_s": "NVLink, both ways"},
    "memory": {"memory_used_bytes": "memory used", **MEMORY},
}
BINS_ACROSS, PIXELS = 320, 1200
MOST, MOST_SPARSE = 500, 3000  # intervals of a source drawn one by one
MOST_LANES, MOST_LINES = 24, 24
TEXTS = ("kind", "name", "call")
MISSING = ("call_start_ns", "call_dur_ns", "id")  # what has no launching call, and reports no click


class Part(NamedTuple):
    """Lanes from the top down, and what `perfkit.charts.detail` draws in them; of how many intervals, in words too."""

    labels: list[str]
    bins: pd.DataFrame
    spans: pd.DataFrame
    amount: int
    counted: str
    said: str = ""
    table: str = ""  # the ids of the spans are its rows
    shared: frozenset[str] = frozenset()  # labels of lanes of several streams


@cache
def empty(columns: tuple[str, ...]) -> pd.DataFrame:
    """Return the frame without rows, which nobody changes."""
    return pd.DataFrame({c: pd.Series(dtype=object if c in TEXTS else "int64") for c in columns})


def fitting(binned: Callable[[int], pd.DataFrame], most: int) -> pd.DataFrame:
    """Return what `binned` makes of as many bins as leave at most `most` rows, `BINS_ACROSS` where there is room."""
    frame, across = binned(BINS_ACROSS), BINS_ACROSS
    while len(frame) > most and across > 1:
        across = max(across * most // len(frame), 1)
        frame = binned(across)
    return frame


def part(source: Source, seen: Selection, window: Window, *, most: int = MOST_ROWS) -> Part:
    """Return the lanes of the chosen ranks and GPUs with the most time, and what is in the window."""
    lanes, left = _busiest(source, seen)
    drawn = np.isin(np.repeat(np.arange(len(source.lanes)), len(source.kinds)), lanes)
    count = int(source.spans.count(window)[drawn].sum())
    counted = f"{count:,} {source.nouns[count != 1]}" if count else ""
    place = np.searchsorted(lanes, np.arange(len(source.lanes)))  # of those drawn
    labels = source.lanes["label"].take(lanes).tolist()
    limit = min(MOST_SPARSE, most) if source.is_sparse else MOST
    many = count > limit and not source.is_sparse
    spans = empty(SPANS) if many else _one_by_one(source, window, drawn, count, limit)
    if count and spans.empty:
        busy = fitting(partial(_binned, source, window, drawn), most)
        return Part(
            labels, busy.assign(lane=place[busy["lane"]]), spans, count, counted, left, source.table
        )
    longest = "only the longest is" if len(spans) == 1 else f"the {len(spans):,} longest are"
    note = left if len(spans) == count else f"Of {counted}, {longest} drawn. {left}".strip()
    return Part(
        labels,
        empty(BINS),
        spans.assign(lane=place[spans["lane"]]),
        count,
        counted,
        note,
        source.table,
    )


def _busiest(source: Source, seen: Selection) -> tuple[Int, str]:
    """Return the lanes of the chosen ranks and GPUs with the most time, ascending, and what is left out."""
    is_chosen = source.lanes.index.isin(chosen(source.lanes, seen).index)
    time = source.spans.total.reshape(len(is_chosen), len(source.kinds)).sum(axis=1)
    order = np.argsort(-time, kind="stable")
    order = order[is_chosen[order]]
    left = (
        f"These are the busiest {MOST_LANES} of {len(order)} lanes with "
        f"{source.nouns[1]}. Choose GPUs to see others."
    )
    return np.sort(order[:MOST_LANES]), left if len(order) > MOST_LANES else ""


def _one_by_one(
    source: Source, window: Window, drawn: NDArray[np.bool_], count: int, limit: int
) -> pd.DataFrame:
    """Return the intervals of the groups drawn; of many the longest ones that fill a pixel."""
    at_least = 0 if count <= limit else (window[1] - window[0]) // PIXELS + 1
    rows, group = source.spans.rows(window, drawn, at_least=at_least)
    if len(rows) > limit:
        longest = np.sort(
            np.argsort(-source.frame["dur_ns"].to_numpy()[rows], kind="stable")[:limit]
        )
        rows, group = rows[longest], group[longest]
    intervals = source.frame.take(rows).reset_index(drop=True)
    lane, number = np.divmod(group, len(source.kinds))
    columns: dict[str, Any] = {
        "lane": lane,
        "kind": np.array(source.kinds, object)[number],
        "name": _names(intervals),
    }
    columns |= {column: intervals[column].to_numpy() for column in ("start_ns", "dur_ns")}
    columns |= _nested(intervals, lane) if source.is_sparse else {"level": 0, "levels": 1}
    nothing = pd.arrays.IntegerArray(np.zeros(len(rows), np.int64), np.ones(len(rows), bool))
    ids = intervals["row"].to_numpy(np.int64) if "row" in intervals else rows
    columns |= {**dict.fromkeys(MISSING, nothing), "id": pd.array(ids, "Int64")}
    return pd.DataFrame({**columns, "correlation": -1, "call": None})


def _names(intervals: pd.DataFrame) -> NDArray[np.object_]:
    """Return the name of each row; of copies their direction and size."""
    if "name" in intervals:
        return intervals["name"].to_numpy(object)
    sizes = [
        f"{way} {size(count)}"
        for way, count in zip(intervals["direction"], intervals["bytes"], strict=True)
    ]
    return np.array(sizes, object)


def _nested(intervals: pd.DataFrame, lane: Int) -> dict[str, Any]:
    """Return the level of each row, one below those of its lane that are open, and how many levels its lane has.

    What encloses a row is longer, so that leaving out short rows moves none. Ranges that overlap and do not nest, as
    start/end ranges may, and ranges of several domains find a level of their own.
    """
    start, dur = (intervals[column].to_numpy(np.int64) for column in ("start_ns", "dur_ns"))
    level, levels = np.zeros(len(lane), np.int64), np.zeros(int(lane.max(initial=-1)) + 1, np.int64)
    open_: list[tuple[int, int]] = []  # end and level
    before = -1
    for row in np.lexsort([-dur, start, lane]).tolist():
        of, begin = int(lane[row]), int(start[row])
        open_ = [one for one in open_ if one[0] > begin] if of == before else []
        level[row] = 1 + max((one[1] for one in open_), default=-1)
        open_.append((begin + int(dur[row]), int(level[row])))
        levels[of] = max(levels[of], level[row] + 1)
        before = of
    return {"level": level, "levels": levels[lane]}


def _binned(source: Source, window: Window, drawn: NDArray[np.bool_], across: int) -> pd.DataFrame:
    """Return the busy time of each lane and kind of the groups drawn in bins; kinds that overlap count for each."""
    edges = np.linspace(*window, min(across, window[1] - window[0]) + 1).astype(np.int64)
    busy = source.spans.busy(edges) * drawn[:, None]
    group, at = np.nonzero(busy)
    lane, number = np.divmod(group, len(source.kinds))
    kind, dur = np.array(source.kinds, object)[number], np.diff(edges)
    columns = {"start_ns": edges[at], "dur_ns": dur[at], "busy_frac": busy[group, at] / dur[at]}
    return pd.DataFrame({"lane": lane, "kind": kind, **columns})


def joined(parts: Sequence[Part]) -> tuple[list[str], pd.DataFrame, pd.DataFrame]:
    """Return labels, bins and intervals of all parts, with the lanes numbered on."""
    labels: list[str] = []
    frames: dict[str, list[pd.DataFrame]] = {"bins": [], "spans": []}
    for lane_part in parts:
        for name, rows in frames.items():
            frame: pd.DataFrame = getattr(lane_part, name)
            if len(frame):
                rows.append(frame.assign(lane=frame["lane"] + len(labels)))
        labels += lane_part.labels
    bins = pd.concat(frames["bins"], ignore_index=True) if frames["bins"] else parts[0].bins
    return (
        labels,
        bins,
        pd.concat(frames["spans"], ignore_index=True) if frames["spans"] else parts[0].spans,
    )


MOST_GPUS, LONGEST_PATTERN = 3, 40  # named in a title; characters of a pattern
FILLED = "A lane is filled to the share of each bin's time that it was busy; grey is idle."
SINGLE = "One bar per operation: click it for what is known of it."


def titled(part: Part, places: pd.DataFrame, seen: Selection, window: Window) -> str:
    """Return what is seen of the operations on the devices with these ranks and GPUs."""
    names = devices(places).tolist()
    gpus = ", ".join(names) if len(names) <= MOST_GPUS else f"{len(names)} GPUs"
    chosen = (
        f", kernels matching “{printable(seen.pattern, LONGEST_PATTERN)}”" if seen.pattern else ""
    )
    chosen += f", {', '.join(seen.families)} kernels" if seen.families else ""
    return f"{gpus or 'No GPU'}: {part.counted} in {duration(window[1] - window[0])}{chosen}"


def arranged(streams: pd.DataFrame, opened: Sequence[str]) -> pd.DataFrame:
    """Return streams with lane, label, level and levels: a lane each, or, of many, one per GPU.

    Below a lane of several streams whose label is `opened` each of them has a lane as well: they are there twice.
    """
    of_gpu = streams.groupby(STREAM[:2], sort=False)["stream"]
    levels = (
        of_gpu.transform("size") if len(streams) > MOST_STREAMS else pd.Series(1, streams.index)
    )
    several = devices(streams[STREAM[:2]]) + " · " + levels.astype(str) + " streams"
    lone = streams.assign(label=devices(streams), level=0, levels=1, order=streams.index + 1)
    shared = streams.assign(label=several, level=of_gpu.cumcount(), levels=levels, order=0)[
        levels > 1
    ]
    kept = pd.concat([lone[(levels == 1) | several.isin([*opened])], shared])
    kept = kept.sort_values(["rank", "gpu", "order", "level"], ignore_index=True)
    return kept.drop(columns="order").assign(lane=pd.factorize(kept["label"])[0])


def together(bins: pd.DataFrame) -> pd.DataFrame:
    """Return bins in which streams that share a lane are one: computation first, then what works beyond it.

    Each kind ends at the most that any stream worked of the bin with it and the kinds before: at least so much of the
    bin is busy, also where the streams work at once.
    """
    if (bins["levels"] == 1).all():
        return bins
    keys = ["lane", "start_ns", "dur_ns"]
    busy = bins.pivot_table(
        "busy_ns", [*keys, "level"], "kind", fill_value=0, observed=True, sort=False
    )
    most = busy.reindex(columns=KINDS, fill_value=0).cumsum(axis=1).groupby(keys, sort=False).max()
    beyond = (
        most.diff(axis=1)
        .fillna(most)
        .melt(var_name="kind", value_name="busy_ns", ignore_index=False)
        .reset_index()
    )
    beyond = beyond[beyond["busy_ns"] > 0].sort_values(keys[:2], kind="stable", ignore_index=True)
    return beyond.assign(busy_frac=beyond["busy_ns"] / beyond["dur_ns"])


def explained(parts: Sequence[Part]) -> list[str]:
    """Return lines on how many intervals lie in the lanes beside the streams, and how to read them."""
    first, *beside = parts
    counted = "; ".join(part.counted for part in beside if part.counted)
    notes = [part.said for part in parts if part.said]
    reading = [FILLED] if any(len(part.bins) for part in parts) else []
    if len(first.spans):
        reading.append(SINGLE)
    return [line for line in (f"{counted}." if counted else "", *notes, " ".join(reading)) if line]


def chosen(frame: pd.DataFrame, seen: Selection) -> pd.DataFrame:
    """Return the rows of the chosen ranks and, where the frame tells it, GPUs."""
    for column, chosen in (("rank", seen.ranks), ("gpu", seen.gpus)):
        frame = frame[frame[column].isin(chosen)] if len(chosen) and column in frame else frame
    return frame


def copies(frame: pd.DataFrame) -> Source:
    """Return a lane of COPIES per GPU and direction; what a profile calls otherwise is an unknown direction."""
    codes = pd.Categorical(frame["direction"].astype(object), DIRECTIONS).codes.astype(np.int64)
    keyed = frame[["rank", "gpu"]].assign(way=np.where(codes < 0, len(DIRECTIONS) - 1, codes))
    lanes, lane = _numbered(keyed, ["rank", "gpu", "way"])
    lanes["label"] = (
        devices(lanes[["rank", "gpu"]]) + " · " + lanes["way"].map(dict(enumerate(DIRECTIONS)))
    )
    nouns, spans = ("copy or memset", "copies and memsets"), Spans(frame, lane, len(lanes))
    return Source(nouns, frame, spans, lanes, ("copied",), table="COPIES")


def calls(frame: pd.DataFrame) -> Source:
    """Return a lane of API_CALLS per thread, with a group per kind of call."""
    lanes, lane = _numbered(frame, THREAD)
    # A copy that waits is a launch as well: what it waits for is the longer part.
    rules = [
        (is_sync(name), is_launch(name), is_memory(name), True)
        for name in map(str, frame["name"].cat.categories)
    ]
    kinds = [CALLS.index(("sync", "launch", "memory", "call")[rule.index(True)]) for rule in rules]
    group = (
        lane * len(CALLS) + np.array([*kinds, len(CALLS) - 1])[frame["name"].cat.codes.to_numpy()]
    )
    lanes["label"] = "CUDA calls · " + _threads(lanes)
    spans = Spans(frame, group, len(lanes) * len(CALLS))
    return Source(("CUDA call", "CUDA calls"), frame, spans, lanes, CALLS, table="API_CALLS")


def on_threads(frame: pd.DataFrame, *, what: str, noun: str, kind: str, table: str) -> Source:
    """Return a lane per thread of a table whose rows nest, such as RANGES."""
    lanes, lane = _numbered(frame, THREAD)
    lanes["label"] = f"{what} · " + _threads(lanes)
    nouns, spans = (
        (noun, PLURALS.get(noun, f"{noun}s")),
        Spans(frame, lane, len(lanes)),
    )
    return Source(nouns, frame, spans, lanes, (kind,), is_sparse=True, table=table)


ranges = partial(on_threads, what="NVTX", noun="NVTX range", kind="range", table="RANGES")
operators = partial(on_threads, what="operators", noun="operator", kind="operator", table="OPS")
python_calls = partial(
    on_threads, what="Python", noun="Python function", kind="python", table="PYTHON_CALLS"
)
os_calls = partial(on_threads, what="OS calls", noun="OS call", kind="os_call", table="OS_CALLS")


profiled = partial(on_threads, what="profiler", noun="profiler event", kind="profiler", table="")


def sampled(frame: pd.DataFrame) -> Source:
    """Return a lane per thread of what `stacks.strip` returns: the functions that the CPU's samples met."""
    about = {"what": "CPU samples", "noun": "stretch of CPU samples", "kind": "sampled"}
    return on_threads(frame, table="", **about)


def scheduled(frame: pd.DataFrame) -> Source:
    """Return a lane per thread of SCHEDULE: when it was on a core; between, it was blocked or waited for one."""
    named = frame.assign(name="on core " + frame["cpu"].astype(str))
    about = {"what": "scheduling", "noun": "turn on a core", "kind": "scheduled"}
    return on_threads(named, table="", **about)


def unknown(frame: pd.DataFrame) -> Source:
    """Return a lane per GPU of stretches (rank, gpu, start_ns, dur_ns) that tell nothing of it."""
    lanes, lane = _numbered(frame, ["rank", "gpu"])
    lanes["label"] = devices(lanes) + " · unknown"
    named, spans = frame.assign(name="unknown"), Spans(frame, lane, len(lanes))
    return Source(("unknown stretch", "unknown stretches"), named, spans, lanes, ("unknown",))


def phases(frame: pd.DataFrame) -> Source:
    """Return a lane per rank of PHASES."""
    named = frame.assign(name=frame["phase"].astype(str).map(PHASE_NAMES))
    lanes, lane = _numbered(frame, ["rank"])
    several = "rank " + lanes["rank"].astype(str) + " · phases"
    lanes["label"] = several if len(lanes) > 1 else "phases"
    kinds = tuple(PHASE_NAMES)
    group = lane * len(kinds) + frame["phase"].astype(str).map(kinds.index).to_numpy(np.int64)
    spans = Spans(named, group, len(lanes) * len(kinds))
    return Source(("phase", "phases"), named, spans, lanes, kinds, is_sparse=True)


def on_gpus(frame: pd.DataFrame) -> Source:
    """Return a lane per GPU and thread of what `projected` returns."""
    lanes, lane = _numbered(frame, ["rank", "gpu", "process", "thread"])
    several = lanes.duplicated(["rank", "gpu"], keep=False)
    threads = np.where(several, " · thread " + lanes["thread"].astype(str), "")
    lanes["label"] = devices(lanes[["rank", "gpu"]]) + " · ranges" + threads
    nouns, spans = ("range on the GPU", "ranges on the GPU"), Spans(frame, lane, len(lanes))
    return Source(nouns, frame, spans, lanes, ("projected",), is_sparse=True, table="RANGES")


def projected(ranges: pd.DataFrame, kernels: pd.DataFrame, api_calls: pd.DataFrame) -> pd.DataFrame:
    """Return, for each range and GPU, from the first start to the last end of the kernels launched in the range.

    Columns rank, gpu, process, thread, start_ns, dur_ns, name, row (in RANGES). A kernel belongs to a range if the call
    that launched it, joined on (rank, process, correlation), begins in the range on its thread; all kernels of a CUDA
    graph belong where the graph was launched. Ranges without a kernel are left out.
    """
    call = started_by(kernels, api_calls)
    launched = kernels[call >= 0]
    of_call = api_calls[[*THREAD, "start_ns"]].take(call[call >= 0])
    keys, places = (
        numbered_together([of_call, ranges], THREAD),
        numbered_together([launched], ["rank", "gpu"])[0],
    )
    begin, end = (ranges["start_ns"] + ranges["dur_ns"] * part for part in (0, 1))
    at, start = of_call["start_ns"].to_numpy(), launched["start_ns"].to_numpy()
    finish, gpu = start + launched["dur_ns"].to_numpy(), launched["gpu"].to_numpy()
    found = [
        pd.DataFrame({c: pd.Series(dtype="int64") for c in ("row", "gpu", "start_ns", "dur_ns")})
    ]
    pair = keys[0] * (int(places.max(initial=0)) + 1) + places
    order = np.lexsort([at, pair])
    for mine in np.split(order, np.flatnonzero(np.diff(pair[order])) + 1) if len(order) else []:
        rows = np.flatnonzero(keys[1] == keys[0][mine[0]])
        first, last = (np.searchsorted(at[mine], edge.to_numpy()[rows]) for edge in (begin, end))
        rows, cuts = rows[last > first], np.stack([first, last], axis=1)[last > first].ravel()
        if not len(rows):
            continue
        low = np.minimum.reduceat(np.append(start[mine], 0), cuts)[::2]
        high = np.maximum.reduceat(np.append(finish[mine], 0), cuts)[::2]
        found.append(
            pd.DataFrame({"row": rows, "gpu": gpu[mine[0]], "start_ns": low, "dur_ns": high - low})
        )
    table = pd.concat(found, ignore_index=True)
    of = ranges[[*THREAD, "name"]].take(table["row"].to_numpy(np.int64)).reset_index(drop=True)
    return table.join(of).sort_values(["rank", "gpu", "start_ns"], kind="stable", ignore_index=True)


def collectives(frame: pd.DataFrame) -> Source:
    """Return a lane per rank and GPU of the COLLECTIVES that have a time; the same number on each rank is one."""
    timed = frame[frame["start_ns"].notna()].reset_index(drop=True)
    timed = timed.assign(
        start_ns=timed["start_ns"].astype("int64"), dur_ns=timed["dur_ns"].fillna(0).astype("int64")
    )
    operation, group = (
        timed[column].astype(object).fillna("").astype(str) for column in ("operation", "group")
    )
    number = timed.groupby([timed["rank"], group, operation]).cumcount().astype(str)
    sizes = timed["bytes"].map(size)
    timed["name"] = (
        operation + " " + sizes + " #" + number + np.where(group == "", "", " of " + group)
    )
    lanes, lane = _numbered(timed, ["rank", "gpu"])
    lanes["label"] = devices(lanes[["rank", "gpu"]]) + " · collectives"
    spans = Spans(timed, lane, len(lanes))
    return Source(
        ("collective", "collectives"), timed, spans, lanes, ("collective",), is_sparse=True
    )


def steps(frame: pd.DataFrame) -> Source:
    """Return a lane per rank of what `perfkit.analysis.steps.detect` found."""
    frame = frame.assign(name="step " + frame["step"].astype(str))
    lanes, lane = _numbered(frame, ["rank"])
    several = "rank " + lanes["rank"].astype(str) + " · steps"
    lanes["label"] = several if len(lanes) > 1 else "steps"
    return Source(
        ("step", "steps"), frame, Spans(frame, lane, len(lanes)), lanes, ("step",), is_sparse=True
    )


def metrics(
    samples: pd.DataFrame, seen: Selection, window: Window, names: Mapping[str, str]
) -> tuple[Part, pd.DataFrame]:
    """Return a lane per metric of SAMPLES and GPU, with mean, least and most of up to 320 bins of the window.

    Where these are too many, a lane is of all GPUs. Links that carried nothing in the whole run have no lane.
    """
    kept = chosen(samples[samples["metric"].isin(list(names))], seen)
    most = kept.groupby("metric", observed=True)["value"].max()
    quiet = [name for name in most.index[most <= 0] if name in LINED["PCIe and NVLink"]]
    kept = kept[~kept["metric"].isin(quiet)]
    said = (
        ""
        if len(kept)
        else "No readings of " + ("a link that was used." if quiet else "these metrics.")
    )
    if kept.empty:
        return Part([], empty(BINS), empty(SPANS), 0, "", said), pd.DataFrame(columns=[*LINES])
    binned = bins(kept, bins=BINS_ACROSS, window=window).astype({"metric": object})
    keys = kept[["metric", "rank", "gpu"]].drop_duplicates().astype({"metric": object})
    places = devices(keys)
    if len(keys) > MOST_LINES:
        said = f"Each line of a metric is the mean of {len(places.unique())} GPUs, between the least and the most."
        ways = {"mean": ("mean", "mean"), "min": ("min", "min"), "max": ("max", "max")}
        binned = (
            binned.groupby(["metric", "start_ns"], as_index=False).agg(**ways).assign(rank=0, gpu=0)
        )
        keys = keys.drop_duplicates("metric").assign(rank=0, gpu=0)
        places = pd.Series(f"{len(places.unique())} GPUs", keys.index)
    order = keys["metric"].map([*names].index)
    keys = keys.assign(order=order, place=places).sort_values(
        ["order", "rank", "gpu"], ignore_index=True
    )
    by = ["metric", "rank", "gpu"]
    lane = pd.MultiIndex.from_frame(keys[by]).get_indexer(pd.MultiIndex.from_frame(binned[by]))
    drawn = binned.assign(lane=lane)
    labels = [
        f"{place} · {names[metric]}{_highest(drawn, number, metric)}"
        for number, (place, metric) in enumerate(zip(keys["place"], keys["metric"], strict=True))
    ]
    return Part(labels, empty(BINS), empty(SPANS), len(drawn), "", said), drawn.reindex(
        columns=[*LINES]
    )


def _highest(drawn: pd.DataFrame, lane: int, metric: str) -> str:
    """Return how high the lane of a metric reaches, in the unit of the metric's suffix."""
    top = drawn.loc[drawn["lane"] == lane, "max"].max()
    ladder = next(
        (ladder for suffix, ladder in STRIP_UNITS.items() if metric.endswith(suffix)), None
    )
    if pd.isna(top) or ladder is None:
        return ""
    scale = unit(float(top), ladder)
    return f" ≤ {number(float(top) / scale.size)} {scale.symbol}"


def _numbered(frame: pd.DataFrame, columns: list[str]) -> tuple[pd.DataFrame, Int]:
    """Return the distinct combinations of integer columns, ascending, and the number of that of each row."""
    (number,) = numbered_together([frame], columns)
    first = np.full(int(number.max(initial=-1)) + 1, len(frame))
    np.minimum.at(first, number, np.arange(len(frame)))
    return frame[columns].take(first).reset_index(drop=True), number


def _threads(lanes: pd.DataFrame) -> pd.Series:
    """Return a label per thread; process and rank only where there are several."""
    label = "thread " + lanes["thread"].astype(str)
    for column in ("process", "rank"):
        if len(lanes[column].unique()) > 1:
            label = f"{column} " + lanes[column].astype(str) + " · " + label
    return label
