"""What is small of each rank, and what do many ranks say together?

A `Reduction` holds the figures of any number of ranks without their events. Merging two is exact:
all numbers are whole, so no order of merging and no number of workers changes a bit. What is kept,
and how it merges:

- `devices`: per rank and GPU counts, sums, extremes and unions of intervals; the rows are put together.
- `extents`: per rank from when to when its GPUs worked and were recorded; the rows are put together. `over_ranks` takes
  from them the span over which all ranks are compared, which no rank knows alone.
- `steps`: start and duration of each iteration of each rank; the rows are put together.
- `begun`: per rank when the last event in its steps begins; the rows are put together.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

import numpy as np
import pandas as pd

from perfkit.analysis import communication, timeline
from perfkit.analysis import steps as iterations
from perfkit.analysis.causes import GRAPH_LAUNCH_CALLS, LAUNCH_CALLS
from perfkit.analysis.completeness import last_starts
from perfkit.tables import COPIES, KERNELS, RANGES

DEVICES = (
    *(
        "rank",
        "gpu",
        "kernels_count",
        "kernels_ns",
        "shortest_ns",
        "longest_ns",
        "copies_bytes",
        "span_ns",
    ),
    *(
        "computation_ns",
        "communication_ns",
        "exposed_communication_ns",
        "exposed_copy_ns",
        "idle_ns",
    ),
)
STEPS = ("rank", "step", "start_ns", "dur_ns")
EXTENTS = {
    "first": "min",
    "last": "max",
    "seen_first": "min",
    "seen_last": "max",
}  # and how two of a rank merge
LARGEST = 2**62  # ns and bytes: differences of smaller numbers fit int64
FIVE = 5  # ranks worth opening
UNUSUAL = 0.05  # of the median over the ranks; less is even (convention)
# Steps that last longer than the GPUs' work by this factor are the time that is measured. A tenth of
# the time is worth a finding, less is not (convention).
LONGER = 1.1
CUT = "recorded_frac"
CUT_REASON = "is recorded for a shorter time than the others, so its shares are not compared"
# Figures by which a rank can stand out, as shares of its span, and what a high value says.
REASONS = {
    "computation_frac": "computes longer than the others, so they wait for it",
    "idle_frac": "is idle longer than the others",
    "exposed_communication_frac": "waits longer in communication than the others",
    "exposed_copy_frac": "copies longer than the others",
}


@dataclass
class Reduction:
    """Figures of one or many ranks; see the module for how they merge."""

    devices: list[tuple[int, ...]] = field(default_factory=list)
    steps: list[tuple[int, int, int, int]] = field(default_factory=list)
    extents: list[tuple[int, int, int, int, int]] = field(default_factory=list)
    begun: list[tuple[int, int]] = field(default_factory=list)

    def check(self) -> None:
        """Raise ValueError or OverflowError for figures that `reduced` cannot have made."""
        widths = {
            "devices": len(DEVICES),
            "steps": len(STEPS),
            "extents": 1 + len(EXTENTS),
            "begun": 2,
        }
        for name, width in widths.items():
            rows = np.array(getattr(self, name), np.int64).reshape(-1, width)
            if (np.abs(rows) >= LARGEST).any():
                raise ValueError(f"{name} hold a number that is no time and no size")
        unplaced = {rank for rank, *_ in self.devices} - {rank for rank, *_ in self.extents}
        if unplaced:
            raise ValueError(f"rank {unplaced.pop()} has no extent")

    def by_device(self) -> pd.DataFrame:
        """Return one row per rank and GPU, ascending: the columns of DEVICES, int64.

        Times are ns as in `timeline.breakdown`, in `Run.reduced` over the span of `over_ranks`.
        `communication_ns` is the union of all communication, hidden or not.
        """
        table = pd.DataFrame(
            np.array(self.devices, np.int64).reshape(-1, len(DEVICES)), columns=list(DEVICES)
        )
        return table.sort_values(["rank", "gpu"], ignore_index=True)

    def over_ranks(self, *, is_on_one_clock: bool) -> Reduction:
        """Return the figures with one row of `devices` per rank and GPU, all measured over the span of `common`.

        Each file knows the span of its own operations only. Idle time is what the longer span holds
        besides work. Recordings of a rank one after the other become one. Ranks without a common
        clock keep spans of their own.
        """
        ranks = (
            pd.DataFrame(self.extents, columns=["rank", *EXTENTS], dtype=np.int64)
            .groupby("rank")
            .agg(EXTENTS)
        )
        spans = dict(zip(ranks.index, zip(ranks["first"], ranks["last"], strict=True), strict=True))
        if is_on_one_clock and len(ranks) > 1:
            spans = common(ranks)
        begun = pd.DataFrame(self.begun, columns=["rank", "start_ns"], dtype=np.int64)
        last = last_starts(begun).clip(upper=ranks["seen_last"])
        spans |= lengthened(spans, self.by_step(), last)
        how = {
            name: {"shortest_ns": "min", "longest_ns": "max"}.get(name, "sum")
            for name in DEVICES[2:]
        }
        table = self.by_device().groupby(["rank", "gpu"], as_index=False).agg(how)
        table["span_ns"] = [spans[rank][1] - spans[rank][0] for rank in table["rank"]]
        busy = (
            table["computation_ns"] + table["exposed_communication_ns"] + table["exposed_copy_ns"]
        )
        table = table.assign(idle_ns=table["span_ns"] - busy)
        return replace(
            self, devices=list(zip(*(table[name].tolist() for name in DEVICES), strict=True))
        )

    def by_step(self) -> pd.DataFrame:
        """Return one row per step of each rank: the columns of STEPS, int64, times in ns."""
        table = pd.DataFrame(
            np.array(self.steps, np.int64).reshape(-1, len(STEPS)), columns=list(STEPS)
        )
        return table.sort_values(["rank", "start_ns"], ignore_index=True)


def reduced(
    kernels: pd.DataFrame,
    copies: pd.DataFrame,
    ranges: pd.DataFrame,
    *events: pd.DataFrame,
) -> Reduction:
    """Return the figures of the ranks in KERNELS, COPIES and RANGES.

    `events` are API_CALLS, OPS, OS_CALLS and PYTHON_CALLS, of which only the times count.
    """
    api_calls, ops, *_ = events
    KERNELS.check(kernels), COPIES.check(copies), RANGES.check(ranges)
    found = iterations.detect(ranges, kernels)
    steps = list(zip(*(found[name].tolist() for name in STEPS), strict=True))
    recorded = extents(kernels, copies, api_calls, ranges, ops)
    rows = list(
        zip(recorded.index.tolist(), *(recorded[name].tolist() for name in EXTENTS), strict=True)
    )
    last = begun(found, (ranges, *events))
    pairs = list(zip(last.index.tolist(), last.tolist(), strict=True))
    return Reduction(_devices(kernels, copies), steps, rows, pairs)


def _devices(kernels: pd.DataFrame, copies: pd.DataFrame) -> list[tuple[int, ...]]:
    """Return the rows of DEVICES."""
    keys = ["rank", "gpu"]
    table = timeline.breakdown(kernels, copies).set_index(keys)
    table = table.join(communication.overlap(kernels).set_index(keys)[["communication_ns"]])
    named = {
        "count": "kernels_count",
        "sum": "kernels_ns",
        "min": "shortest_ns",
        "max": "longest_ns",
    }
    table = table.join(kernels.groupby(keys)["dur_ns"].agg(list(named)).rename(columns=named))
    moved = (
        copies[copies["direction"] != "memset"].groupby(keys)["bytes"].sum().rename("copies_bytes")
    )
    table = table.join(moved).fillna(0).astype("int64").reset_index()
    return list(zip(*(table[name].tolist() for name in DEVICES), strict=True))


def merged(one: Reduction, other: Reduction) -> Reduction:
    """Return the figures of both."""
    return Reduction(
        one.devices + other.devices,
        one.steps + other.steps,
        one.extents + other.extents,
        one.begun + other.begun,
    )


def extents(
    kernels: pd.DataFrame, copies: pd.DataFrame, api_calls: pd.DataFrame, *others: pd.DataFrame
) -> pd.DataFrame:
    """Return from when to when the GPUs of each rank worked and were recorded, ns: one row per rank with operations.

    Columns `first` and `last` (start of the first, end of the last operation), `seen_first` and
    `seen_last` (those of any event in the tables). A kernel launch after the last operation has no
    kernel in the file: the recording of the GPU ended there, though that of the CPU went on, as in
    a file that is cut. `seen_last` is then that launch.
    """
    worked = reach((kernels, copies))
    table = worked.join(reach((kernels, copies, api_calls, *others)).add_prefix("seen_"))
    launches = api_calls[api_calls["name"].isin(LAUNCH_CALLS - GRAPH_LAUNCH_CALLS)]
    lost = (
        launches[launches["start_ns"] > launches["rank"].map(worked["last"])]
        .groupby("rank")["start_ns"]
        .min()
    )
    ends = lost.reindex(table.index, fill_value=np.iinfo(np.int64).max)
    return table.assign(seen_last=np.minimum(table["seen_last"], ends))


def reach(frames: Sequence[pd.DataFrame]) -> pd.DataFrame:
    """Return when the first row of each rank in any of the tables starts and the last one ends, ns."""
    each = []
    for frame in frames:
        times = frame[["rank"]].assign(
            first=frame["start_ns"], last=frame["start_ns"] + frame["dur_ns"]
        )
        each.append(times.groupby("rank").agg({"first": "min", "last": "max"}))
    return pd.concat(each).groupby(level="rank").agg({"first": "min", "last": "max"})


def common(extents: pd.DataFrame) -> dict[int, tuple[int, int]]:
    """Return the span over which the GPUs of each rank are compared, ns, from `extents` of ranks on one clock.

    It lasts from the first to the last operation of all ranks: a rank that starts late or ends
    early is idle at that time. No rank is measured before its first or after its last recorded
    event.
    """
    first, last = int(extents["first"].min()), int(extents["last"].max())
    begin, end = extents["seen_first"].clip(lower=first), extents["seen_last"].clip(upper=last)
    return dict(
        zip(extents.index.tolist(), zip(begin.tolist(), end.tolist(), strict=True), strict=True)
    )


def begun(steps: pd.DataFrame, events: Iterable[pd.DataFrame]) -> pd.Series:
    """Return when the last of the events that begin in or before the steps of each rank does, ns."""
    ended = reach((steps,))["last"]
    inside = (table[table["start_ns"] < table["rank"].map(ended)] for table in events)
    last: pd.Series = pd.concat(map(last_starts, inside)).groupby(level=0).max()
    return last


def lengthened(
    spans: Mapping[int, tuple[int, int]],
    steps: pd.DataFrame,
    begun: Mapping[int, int] | pd.Series = MappingProxyType({}),
) -> dict[int, tuple[int, int]]:
    """Return the time of each rank whose steps last clearly longer than its GPUs' work, ns.

    `spans`: from the first to the last operation of each rank; `steps`: rank, start_ns, dur_ns. A
    CPU that prepares a step first begins it before the GPU does anything: the run takes as long as
    its steps then. The time ends with the last operation or the last step, whichever ends later. It
    holds all operations. Steps that were found by their kernels never last longer. `begun`: when
    the last event in the steps of a rank begins, or its recording of the GPU ended (`extents`).
    What follows in its last step is unknown, often the profiler that ends, and does not count.
    Other ranks are not in the answer.
    """
    found = {}
    for rank, first, last in reach((steps,)).itertuples():
        begin, end = spans.get(rank, (first, last))
        last = min(last, max(end, begun.get(rank, last)))
        if last - first > LONGER * (end - begin):
            until = max(end, last)
            found[int(rank)] = int(min(begin, until - (last - first))), int(until)
    return found


def to_open(devices: pd.DataFrame) -> list[int]:
    """Return the ranks to look at where all are too many: those of `worth_opening`, and one that is typical.

    Typical is the GPU whose computing time is nearest to the median of all; of equal ones that of
    the lowest rank.
    """
    apart = (devices["computation_ns"] - devices["computation_ns"].median()).abs()
    typical = int(devices["rank"].to_numpy()[int(apart.to_numpy().argmin())])
    return sorted({typical, *map(int, worth_opening(devices)["rank"])})


def by_node(devices: pd.DataFrame, *, gpus_per_node: int) -> pd.DataFrame:
    """Return where the time of each node goes: a slow node, unlike a slow rank, points to its host, links or cooling.

    `devices` is what `Reduction.by_device` or `timeline.breakdown` returns; ranks are counted node
    by node, so many to each. One row per node: `node` int64, from 0; `first_rank`, `last_rank` and
    `longest_rank`, which computes longest; `gpus_count`; the shares of REASONS in the spans of its
    GPUs added up, NaN where they are 0. Empty where all ranks are on one node, or `gpus_per_node`
    is 0: not known.
    """
    figures = {figure: figure.replace("_frac", "_ns") for figure in REASONS}
    columns = ["node", "first_rank", "last_rank", "longest_rank", "gpus_count", *figures]
    node = devices["rank"] // max(gpus_per_node, 1)
    if gpus_per_node < 1 or len(set(node)) < 2:
        return pd.DataFrame(columns=columns)
    of = devices.assign(node=node).groupby("node")
    sums = of[["span_ns", *figures.values()]].sum()
    longest = devices.loc[of["computation_ns"].idxmax(), "rank"].to_numpy()
    first, last, count = (of["rank"].agg(how) for how in ("min", "max", "size"))
    table = pd.DataFrame(
        {"first_rank": first, "last_rank": last, "longest_rank": longest, "gpus_count": count}
    )
    for figure, name in figures.items():
        table[figure] = sums[name] / sums["span_ns"].where(sums["span_ns"] > 0)
    return table.reset_index()


def worth_opening(devices: pd.DataFrame) -> pd.DataFrame:
    """Return the ranks that differ most from the others, at most FIVE, and why: start with these.

    `devices` is what `Reduction.by_device` or `timeline.breakdown` returns. Compared is the share
    of each part of the time in the span of a GPU with the median over all GPUs; a difference below
    UNUSUAL is even and names no rank. A GPU whose span is shorter than the median span by more than
    UNUSUAL was not recorded for as long as the others. Its shares are of another time, so they are
    not compared: it has a reason of its own, behind all other ranks.

    One row per rank, the largest difference first: `rank`, `gpu`, `figure` (its name in REASONS, or
    CUT), `value_frac`, `median_frac`, `reason`. The values of CUT are spans as a share of the
    median span. Empty for fewer than three GPUs.
    """
    columns = ["rank", "gpu", "figure", "value_frac", "median_frac", "reason"]
    if len(devices) < 3:
        return pd.DataFrame(columns=columns)
    recorded = devices["span_ns"] / devices["span_ns"].median()
    is_cut = recorded < 1 - UNUSUAL
    cut = devices[["rank", "gpu"]].assign(
        figure=CUT, value_frac=recorded, median_frac=1.0, reason=CUT_REASON
    )
    cut = cut[is_cut].sort_values(["value_frac", "rank", "gpu"])
    devices = devices[~is_cut]
    span = devices["span_ns"].where(devices["span_ns"] > 0)
    rows = []
    for figure, reason in REASONS.items():
        value = devices[figure.replace("_frac", "_ns")] / span
        of_figure = devices[["rank", "gpu"]].assign(
            figure=figure, value_frac=value, median_frac=value.median()
        )
        rows.append(of_figure.assign(reason=reason))
    table = pd.concat(rows, ignore_index=True)
    excess = table["value_frac"] - table["median_frac"]
    table = table.assign(excess=excess)[excess > UNUSUAL]
    table = table.sort_values(["excess", "rank", "gpu"], ascending=[False, True, True])
    table = pd.concat([table, cut]) if len(cut) else table
    return table.drop_duplicates("rank").head(FIVE)[columns].reset_index(drop=True)
