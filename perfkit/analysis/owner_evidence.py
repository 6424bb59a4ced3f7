"""What did the thread that decides a gap do, moment by moment? The evidence of `perfkit.analysis.owners`."""

import re

import numpy as np
import pandas as pd

from perfkit.analysis.causes import (
    CAUSES,
    CONDITIONS,
    COPY_CALL,
    DETAILS,
    THREAD,
    innermost,
    is_kernel_launch,
    members,
    numbered_together,
    on_one_axis,
    placed,
    where,
)
from perfkit.analysis.gap_axis import GapAxis, Names, Pieces
from perfkit.analysis.intervals import Axis, Bool, Int, ends
from perfkit.analysis.stacks import Frames, heaviest, stack_key
from perfkit.schema import unique

KINDS = (
    "collector",
    "overhead",
    "cuda_call",
    "os_call",
    "range",
    "not_running",
    "function",
    "unknown",
)
# PyTorch's emit_nvtx numbers each call of an operator: "aten::addmm, seq = 46359, op_id = 994712".
CALL_NUMBER = re.compile(r", (?:seq|op_id) = .*$", re.DOTALL)
FEWEST = 5  # samples that make a function certain (convention)
COLLECTOR = ("profiler", "flush")


class Evidence:
    """The evidence of one recording, and the stretches of its gaps."""

    def __init__(
        self, gaps: pd.DataFrame, api_calls: pd.DataFrame, frames: Frames, **given: pd.DataFrame
    ) -> None:
        self.gaps, self.frames = gaps, frames
        self.calls, self.ranges, self.os_calls = api_calls, given["ranges"], given["os_calls"]
        self.schedule, self.overhead = given["schedule"], given["overhead"]
        self.python_calls = given["python_calls"]
        self.samples = given["stacks"][given["stacks"]["kind"] == "sample"]
        self.call_stacks = given["stacks"][given["stacks"]["kind"] == "os_call"]
        self.deciding = gaps[["rank", "start_ns", "dur_ns"]].assign(
            **deciding_threads(gaps, api_calls)
        )
        tables = [
            self.deciding,
            self.calls,
            self.ranges,
            self.os_calls,
            self.schedule,
            self.overhead,
        ]
        tables += [
            self.python_calls,
            self.samples.assign(dur_ns=0),
            self.call_stacks.assign(dur_ns=0),
        ]
        (
            self.of_gaps,
            self.of_calls,
            self.of_ranges,
            self.of_system,
            self.of_schedule,
            self.of_overhead,
            *rest,
        ) = on_one_axis(tables, THREAD)
        self.of_python, self.of_samples, self.of_stacks = rest
        self.axis = GapAxis(gaps, *self.of_gaps)

    def table(self) -> pd.DataFrame:
        """Return OWNED."""
        details = self._details()
        collector, overhead = self._overheads()
        core = self.axis.pieces(*self.of_schedule, np.arange(len(self.schedule)))
        system, functions = details[-1][1], self._python()
        edges = [self.axis.offset, self.axis.offset + self.gaps["before_ns"].to_numpy()]
        edges.append(edges[-1] + self.gaps["inside_ns"].to_numpy())
        evidence = [pieces for _, pieces in details] + [collector, overhead, core, functions]
        edges += [side for pieces in evidence for side in (pieces.start, pieces.end)]
        total = int(self.gaps["dur_ns"].sum())
        begin = unique(np.concatenate(edges))
        begin = begin[begin < total]
        piece = _Stretches(self, begin, np.diff(begin, append=total))
        piece.explain(details)
        piece.own(collector, overhead, system, core, functions)
        return piece.table()

    def _details(self) -> list[tuple[int, Pieces]]:
        """Return the stretches of each of CONDITIONS with the number of its table."""
        found = []
        sides = (self.of_calls, self.of_ranges, self.of_system)
        tables = (self.calls, self.ranges, self.os_calls)
        near = [self.axis.near(*side) for side in sides]
        for number, fulfils in CONDITIONS:
            rows = near[number]
            rows = rows[where(tables[number]["name"].iloc[rows], fulfils)]
            start, end = (side[rows] for side in sides[number])
            found.append((number, self.axis.pieces(start, end, rows)))
        return found

    def _overheads(self) -> tuple[Pieces, Pieces]:
        """Return what the collector took in the process of each gap, and what else was overhead on its thread."""
        mine = self.overhead["kind"].isin(COLLECTOR).to_numpy()
        of_gaps, of_rows = on_one_axis([self.deciding, self.overhead[mine]], ["rank", "process"])
        collector = GapAxis(self.gaps, *of_gaps).pieces(*of_rows, np.flatnonzero(mine), whole=True)
        rows = np.flatnonzero(~mine)
        start, end = (side[rows] for side in self.of_overhead)
        return collector, self.axis.pieces(start, end, rows, whole=True)

    def _python(self) -> Pieces:
        """Return the stretches of the innermost Python function, from each change of the stack to the next."""
        rows = self.axis.near(*self.of_python)
        start, end = (side[rows] for side in self.of_python)
        intervals = placed(start, end)
        edges = unique(np.concatenate([intervals.start, intervals.end]))
        row = innermost(intervals, edges[:-1], edges[1:])
        there = row >= 0
        return self.axis.pieces(edges[:-1][there], edges[1:][there], rows[row[there]])


class _Stretches:
    """The stretches between all edges, and what is found out about each."""

    def __init__(self, of: Evidence, begin: Int, length: Int) -> None:
        self.of, self.begin, self.length = of, begin, length
        self.gap = np.searchsorted(of.axis.offset, begin, side="right") - 1
        gaps = of.gaps
        since = begin - of.axis.offset[self.gap]
        before = gaps["before_ns"].to_numpy()[self.gap]
        self.is_before = since < before
        self.is_after = since >= before + gaps["inside_ns"].to_numpy()[self.gap]
        self.start = gaps["start_ns"].to_numpy()[self.gap] + since
        self.names = Names()
        self.kind = np.full(len(begin), KINDS.index("unknown"))
        self.owner = np.full(len(begin), -1, np.int64)
        self.caller = np.full(len(begin), -1, np.int64)
        self.certain = np.ones(len(begin), bool)
        self.named = np.zeros(len(begin), np.int64)
        self.sampled = np.zeros(len(begin), np.int64)
        self.free = np.ones(len(begin), bool)

    def explain(self, details: list[tuple[int, Pieces]]) -> None:
        """Find cause and detail of each stretch, as `analysis.causes` divides a gap."""
        gaps = self.of.gaps
        self.row = np.full((3, len(self.begin)), -1, np.int64)
        detail = np.full(len(self.begin), DETAILS.index("host_code"))
        for place, (number, pieces) in reversed([*enumerate(details)]):
            row = pieces.rows_at(self.begin)
            detail = np.where(row >= 0, place, detail)
            self.row[number] = np.where(row >= 0, row, self.row[number])
        copying = where(gaps["launch"], COPY_CALL.match)
        in_call = np.where(copying, DETAILS.index("cuda_call"), DETAILS.index("launch"))[self.gap]
        detail = np.where(self.is_before, detail, in_call)
        after = np.where(
            gaps["kernel_wait_ns"] > 0, CAUSES.index("kernel_wait"), CAUSES.index("other")
        )[self.gap]
        whole = gaps["cause"].cat.codes.to_numpy()[self.gap]
        known = ~np.isin(whole, [CAUSES.index("unattributed"), CAUSES.index("edge")])
        cause = np.where(self.is_after, after, CAUSES.index("host_wait"))
        self.cause = np.where(known, cause, whole)
        self.detail = np.where(self.cause == CAUSES.index("host_wait"), detail, -1)
        self.detail_of_thread = detail

    def give(self, asked: Bool, kind: str, code: Int, first: int) -> Bool:
        """Give the stretches that are asked about and still free to an owner; return which these are."""
        rows = asked & self.free
        self.kind[rows] = KINDS.index(kind)
        self.owner[rows] = np.where(code[rows] >= 0, code[rows] + first, -1)
        self.free[rows] = False
        return rows

    def own(
        self, collector: Pieces, overhead: Pieces, system: Pieces, core: Pieces, functions: Pieces
    ) -> None:
        """Give each stretch to its owner, the first of KINDS that holds."""
        of = self.of
        for kind, pieces in (("collector", collector), ("overhead", overhead)):
            row = pieces.rows_at(self.begin)
            self.give(
                row >= 0,
                kind,
                _code(of.overhead, row),
                self.names.add(of.overhead["name"].cat.categories),
            )
        launch = of.gaps["launch"].cat
        code = launch.codes.to_numpy().astype(np.int64)[self.gap]
        waits = self.is_after & (self.cause == CAUSES.index("kernel_wait"))
        first = self.names.add(launch.categories)
        self.give((~self.is_before & ~self.is_after) | waits, "cuda_call", code, first)
        first = self.names.add(of.calls["name"].cat.categories)
        self.give(
            self.is_before & (self.row[0] >= 0), "cuda_call", _code(of.calls, self.row[0]), first
        )
        row = np.where(self.is_before, system.rows_at(self.begin), -1)
        first = self.names.add(of.os_calls["name"].cat.categories)
        self._ask(row, self.give(row >= 0, "os_call", _code(of.os_calls, row), first))
        first = self.names.add(_without_numbers(of.ranges["name"]))
        in_range = self.is_before & (self.row[1] >= 0)
        self.give(in_range, "range", _code(of.ranges, self.row[1]), first)
        self._stop(core)
        row = functions.rows_at(self.begin)
        of_python = self.names.add(of.python_calls["name"].cat.categories)
        self.give(self.is_before & (row >= 0), "function", _code(of.python_calls, row), of_python)
        held_up = self.is_after & (self.cause == CAUSES.index("other"))
        self._sample((self.is_before | held_up) & self.free)

    def _ask(self, row: Int, given: Bool) -> None:
        """Find who asked for calls of the operating system, from the stacks of the long ones of a thread and name."""
        of = self.of
        rows = np.flatnonzero(given)
        if not len(of.call_stacks) or not len(rows):
            return
        starts = of.of_stacks[0]
        place = np.searchsorted(starts, of.of_system[0][row[rows]])
        place = np.minimum(place, len(starts) - 1)
        there = starts[place] == of.of_system[0][row[rows]]
        key = stack_key(of.call_stacks["rank"].to_numpy(), of.call_stacks["stack"].to_numpy())[
            place
        ]
        distinct, of_key = np.unique(np.where(there, key, -1), return_inverse=True)
        caller = of.frames.callers(distinct)[of_key.reshape(-1)]
        (thread,) = numbered_together([of.deciding], THREAD)
        name = _code(of.os_calls, row[rows])
        group = thread[self.gap[rows]] * (len(of.os_calls["name"].cat.categories) + 1) + name
        groups, group = np.unique(group, return_inverse=True)
        group = group.reshape(-1)
        best = heaviest(group, caller, self.length[rows], len(groups))[group]
        self.caller[rows] = np.where(best >= 0, best + self._of_functions(), -1)

    def _of_functions(self) -> int:
        if not hasattr(self, "_first_function"):
            self._first_function = self.names.add(self.of.frames.functions)
        return self._first_function

    def _stop(self, core: Pieces) -> None:
        """Give the time in which the thread was off its core to whoever ran there instead."""
        of = self.of
        if not len(of.schedule):
            return
        start, at = of.of_schedule[0], of.of_gaps[0]
        moment = at[self.gap] + self.start - of.gaps["start_ns"].to_numpy()[self.gap]
        (of_gaps, of_rows) = numbered_together([of.deciding, of.schedule], THREAD)
        last = np.searchsorted(start, moment, side="right") - 1
        following = np.minimum(last + 1, len(start) - 1)
        thread = of_gaps[self.gap]
        between = (
            (last >= 0)
            & (of_rows[last] == thread)
            & (of_rows[following] == thread)
            & (last + 1 < len(start))
        )
        off = self.is_before & self.free & between & (core.rows_at(self.begin) < 0)
        rows = np.flatnonzero(off)
        other = _running(of.schedule, last[rows], self.start[rows])
        labels, of_rows = _labels(of.schedule, other, of.deciding.iloc[self.gap[rows]])
        code = np.full(len(self.begin), -1, np.int64)
        code[rows] = of_rows
        self.give(off, "not_running", code, self.names.add(labels))

    def _sample(self, asked: Bool) -> None:
        """Give what is left to the function that samples name, else to the range, and count all samples."""
        of = self.of
        at = of.of_samples[0]
        low = np.searchsorted(at, of.axis.start, side="left")
        count = np.searchsorted(at, of.axis.end, side="left") - low
        gap, sample = members(low, count)
        moment = of.axis.offset[gap] + at[sample] - of.axis.start[gap]
        piece = np.searchsorted(self.begin, moment, side="right") - 1
        self.sampled = np.bincount(piece, minlength=len(self.begin))
        key = stack_key(of.samples["rank"].to_numpy(), of.samples["stack"].to_numpy())[sample]
        asks = asked[piece]
        function, weight = self._functions(gap[asks], key[asks])
        first = self._of_functions()
        certain = asked & (weight >= FEWEST)
        self.give(certain, "function", function, first)
        in_range = of.gaps["range"].cat
        of_range = in_range.codes.to_numpy().astype(np.int64)[self.gap]
        self.give(
            asked & (of_range >= 0),
            "range",
            of_range,
            self.names.add(_without_numbers(of.gaps["range"])),
        )
        guessed = self.give(asked & (weight > 0), "function", function, first)
        self.certain[guessed] = False
        by_function = np.where(self.kind == KINDS.index("function"), self.owner - first, -1)
        self.named = self._naming(piece, key, np.where(by_function >= 0, by_function, -1))

    def _functions(self, gap: Int, key: Int) -> tuple[Int, Int]:
        """Return, per stretch, the function that samples name, given their gap and stack; and how many name it.

        It is that of all samples of a GPU and thread. A gap with enough samples of its own has
        another one where fewer than half of them hold it.
        """
        of = self.of
        keys = ["rank", "gpu", "process", "thread"]
        (pool,) = numbered_together([of.deciding.assign(gpu=of.gaps["gpu"].to_numpy())], keys)
        once = np.ones(len(gap), np.int64)
        common = of.frames.named_by(pool[gap], key, once, int(pool.max()) + 1)
        own = of.frames.named_by(gap, key, once, len(of.gaps))
        function, weight = common.function[pool], common.weight[pool]
        held = np.bincount(gap[of.frames.holds(key, function[gap])], minlength=len(of.gaps))
        sampled = np.bincount(gap, minlength=len(of.gaps))
        apart = (sampled >= FEWEST) & (2 * held < sampled) & (own.function >= 0)
        function, weight = (
            np.where(apart, own.function, function),
            np.where(apart, own.weight, weight),
        )
        return function[self.gap], weight[self.gap]

    def _naming(self, piece: Int, key: Int, function: Int) -> Int:
        """Return how many samples of each stretch hold its function."""
        rows = np.flatnonzero(function[piece] >= 0)
        holds = self.of.frames.holds(key[rows], function[piece[rows]])
        return np.bincount(piece[rows[holds]], minlength=len(self.begin))

    def table(self) -> pd.DataFrame:
        """Return OWNED: neighbours in a gap with the same cause and owner are one stretch."""
        parts = (
            self.gap,
            self.cause,
            self.detail,
            self.kind,
            self.owner,
            self.caller,
            self.certain,
        )
        new = np.zeros(len(self.begin), bool)
        new[:1] = True
        for part in parts:
            new[1:] |= part[1:] != part[:-1]
        first = np.flatnonzero(new)
        gaps = self.of.gaps
        return pd.DataFrame(
            {
                "rank": gaps["rank"].to_numpy()[self.gap[first]],
                "gpu": gaps["gpu"].to_numpy()[self.gap[first]],
                "start_ns": self.start[first],
                "dur_ns": np.add.reduceat(self.length, first),
                "gap": self.gap[first],
                "cause": pd.Categorical.from_codes(self.cause[first], pd.Index(CAUSES)),
                "detail": pd.Categorical.from_codes(self.detail[first], pd.Index(DETAILS)),
                "owner_kind": pd.Categorical.from_codes(self.kind[first], pd.Index(KINDS)),
                "owner": self.names.column(self.owner[first]),
                "caller": self.names.column(self.caller[first]),
                "samples": np.add.reduceat(self.named, first),
                "of_samples": np.add.reduceat(self.sampled, first),
                "certain": self.certain[first],
            }
        )


def deciding_threads(gaps: pd.DataFrame, api_calls: pd.DataFrame) -> dict[str, Int]:
    """Return process and thread that decide each gap: those of its launch, else the GPU's, else the rank's busiest."""
    process, thread = (gaps[name].to_numpy(copy=True) for name in ("process", "thread"))
    known = gaps["cause"].isin(["host_wait", "kernel_wait", "other"]).to_numpy()
    launches = api_calls[where(api_calls["name"], is_kernel_launch)]
    for keys, rows in ((["rank", "gpu"], gaps[known]), (["rank"], launches), (["rank"], api_calls)):
        if known.all() or not len(rows):
            continue
        counts = rows.groupby([*keys, "process", "thread"]).size().reset_index(name="count")
        most = counts.sort_values("count", kind="stable").drop_duplicates(keys, keep="last")
        found = gaps[keys].merge(most, on=keys, how="left")
        fill = ~known & found["count"].notna().to_numpy()
        process[fill], thread[fill] = found.loc[fill, "process"], found.loc[fill, "thread"]
        known = known | fill
    return {"process": process, "thread": thread}


def _without_numbers(names: pd.Series) -> list[str]:
    """Return the categories of ranges; calls of one operator share a name."""
    return [CALL_NUMBER.sub("", str(name)) for name in names.cat.categories]


def _code(frame: pd.DataFrame, row: Int) -> Int:
    """Return the code of the name of rows, -1 for row -1."""
    return np.append(frame["name"].cat.codes.to_numpy(), -1).astype(np.int64)[row]


def _running(schedule: pd.DataFrame, row: Int, moment: Int) -> Int:
    """Return the row of SCHEDULE that runs at a moment on the core of another row, -1 where none is recorded."""
    if not len(row):
        return row
    begin, end = ends(schedule)
    (core,) = numbered_together([schedule], ["rank", "cpu"])
    axis = Axis.over(1 + int(core.max()), begin, moment)
    position = axis.at(core, begin)
    order = np.argsort(position, kind="stable")
    place = np.searchsorted(position[order], axis.at(core[row], moment), side="right") - 1
    found = order[np.maximum(place, 0)]
    is_core = schedule["cpu"].to_numpy()[row] >= 0
    runs = (place >= 0) & is_core & (core[found] == core[row]) & (end[found] > moment)
    return np.where(runs, found, -1)


def _labels(schedule: pd.DataFrame, row: Int, deciding: pd.DataFrame) -> tuple[list[str], Int]:
    """Return who ran: another thread of the program, or another process; and the number of each row's label."""
    process = np.append(schedule["process"].to_numpy(), -1)[row]
    thread = np.append(schedule["thread"].to_numpy(), -1)[row]
    own = process == deciding["process"].to_numpy()
    who = pd.DataFrame({"own": own, "number": np.where(own, thread, process)})
    label = who.groupby(["own", "number"]).ngroup().to_numpy()
    distinct = who.drop_duplicates().sort_values(["own", "number"])
    labels = [
        f"{'thread' if own else 'process'} {number}"
        for own, number in distinct.itertuples(index=False)
    ]
    return labels, np.where(row >= 0, label, -1)
