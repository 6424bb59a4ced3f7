"""Which range, operator, module, source line or phase does the GPU's time belong to?

A kernel is owned by the innermost frame that is open on the launching thread when the launch call
begins. Frames are rows of RANGES, OPS or PYTHON_CALLS. The call is joined on (rank, process,
correlation): the range around the launch of a CUDA graph owns all kernels of the graph. *Exclusive*
is the time of the kernels that a frame owns itself, *inclusive* also that of the frames inside it.
Times are sums of kernel durations: concurrent kernels add up, copies are left out.

If no frame is open on the launching thread, two more places are asked, and `how` says which one
answered:

    launch    the launching thread itself
    forward   modules and lines: the forward operator that made the autograd node which launches (its number)
    main      not operators: the main thread of the process at the same moment, which waits for autograd's thread
    outside   nowhere: the kernel has no owner
    none      no launch call is recorded: the kernel has no owner

Frames of a thread are expected to nest. Where two overlap in part, the later one owns, and it lies
in neither.
"""

import re
from typing import NamedTuple

import numpy as np
import pandas as pd

from perfkit.analysis.causes import Placed, placed, started_by, where
from perfkit.analysis.grouping import counted, numbered, ranked
from perfkit.analysis.intervals import Int, Window, cut, last_open, maxima
from perfkit.analysis.operators.totals import forward_of, of_program, open_at, with_moments
from perfkit.schema import unique
from perfkit.tables import API_CALLS, KERNELS, OPS, PYTHON_CALLS, RANGES

HOW = ("launch", "forward", "main", "outside", "none")
BY = ("range", "operator", "module", "line", "phase")
MODULE = "nn.Module: "  # PyTorch writes it before the class of a module
# Names of ranges, operators and modules that say which phase they are; of several phases open at
# once the first counts.
PHASES = (
    ("prefill", r"(?<![a-z])(?:prefill|context[ _-]?phase|prompt[ _-]?(?:phase|processing))"),
    (
        "decode",
        (
            r"^(?!.*(?:jpe?g|video|image|audio|vae|tokenizer))(?:.*[^a-z])?(?:decode|decoding"
            r"|generation)(?![a-z])"
        ),
    ),
    ("optimizer", r"(?<![a-z])optimi[sz]er(?![a-z])"),
    (
        "backward",
        (
            r"(?<![a-z])(?:backward|backprop|backpropagation|bwd)(?![a-z])"
            r"|autograd::engine::evaluate_function"
        ),
    ),
    # emit_nvtx writes the number of the autograd node that an operator makes: only the forward pass
    # makes any
    ("forward", r"(?<![a-z])(?:forward|fwd)(?![a-z])|nn\.Module: |^(?!.*backward).*, seq ?= ?\d"),
)
_PHASES = {phase: re.compile(pattern, re.IGNORECASE) for phase, pattern in PHASES}
# In names of ranges: what PyTorch's emit_nvtx adds behind an operator, and numbers that count or
# measure.
_ADDED = re.compile(r", (?:op_id|(?:stashed )?seq|sizes|input_op_ids) ?=.*", re.DOTALL)
_NUMBER = re.compile(r"(?<![A-Za-z_\d.])\d[\d.]*")
PLACE = ["rank", "process", "thread", "start_ns", "dur_ns", "name"]


class _Paths(NamedTuple):
    """Paths by number, parents first: rank, code of the name, number of the parent or -1."""

    rank: Int
    name: Int
    up: Int


class Owners:
    """Who owns each kernel, joined once: then any window and any kernels are quick.

    `by`: ``range`` (RANGES but marks), ``operator`` (OPS), ``module`` (nn.Module frames of
    PYTHON_CALLS), ``line`` (the program's own frames of PYTHON_CALLS, any frame where there is
    none) or ``phase`` (`PHASES`); else ValueError. `together`: Whether ranges whose names differ in
    their numbers only are one: ``step N`` for ``step 1`` and ``step 2``.
    `ranges`, `ops`, `python_calls`: RANGES, OPS, PYTHON_CALLS; empty when omitted. OPS also link
    the backward pass to modules and lines.
    """

    def __init__(
        self,
        kernels: pd.DataFrame,
        api_calls: pd.DataFrame,
        *,
        by: str = "range",
        together: bool = False,
        ranges: pd.DataFrame | None = None,
        ops: pd.DataFrame | None = None,
        python_calls: pd.DataFrame | None = None,
    ) -> None:
        if by not in BY:
            raise ValueError(f"by: {by!r} is not one of {', '.join(BY)}")
        KERNELS.check(kernels)
        call = started_by(kernels, API_CALLS.check(api_calls))
        ranges = RANGES.given(ranges)
        ops = OPS.given(ops)
        python_calls = PYTHON_CALLS.given(python_calls)
        launches = np.flatnonzero(np.bincount(call[call >= 0], minlength=len(api_calls)))
        calls = api_calls[PLACE[:4]].take(launches)
        # On Linux the number of the main thread is that of the process.
        main = {**{name: calls[name] for name in calls}, "thread": calls["process"]}
        moments = [calls, calls if by == "operator" else pd.DataFrame(main, copy=False)]
        if by in ("module", "line"):
            # When and where the forward operator ran that made the autograd node around each call.
            op = forward_of(ops, open_at(ops, calls))
            of_op = ops[PLACE[:4]].take(np.maximum(op, 0)) if len(ops) else calls
            moments.insert(1, of_op.assign(rank=np.where(op < 0, -1, of_op["rank"])))
        frames, layers = _frames(by, ranges, ops, python_calls)
        if by == "range" and together:
            # N for each number that stands alone, and without what PyTorch adds to an operator's
            # name.
            plain = [
                _NUMBER.sub("N", _ADDED.sub("", str(name)))
                for name in frames["name"].cat.categories
            ]
            code, distinct = pd.factorize(np.array(plain, object))
            code = np.append(code, -1)[frames["name"].cat.codes.to_numpy()]
            frames["name"] = pd.Categorical.from_codes(code, pd.Index(distinct, dtype=object))
        how, row, there, levels = _first(frames, layers, moments)
        at = np.full(len(api_calls) + 1, -1)
        at[launches] = np.arange(len(launches))
        at = at[call]
        row, how = np.append(row, -1)[at], np.append(how, len(moments))[at]
        self._names = frames["name"].cat.categories
        self._paths, node = _paths(frames, row, there if by != "phase" else None, levels)
        ways = np.array([0, 1, 2, 3] if len(moments) > 2 else [0, 2, 3])
        of_kernel = {name: kernels[name] for name in ("rank", "start_ns", "dur_ns")}
        columns = {**of_kernel, "node": node, "how": np.where(call < 0, 4, ways[how])}
        self._kernels = pd.DataFrame(columns, copy=False)
        self._last: tuple[Window | None, Int | None, tuple[pd.DataFrame, list[Int]]] | None = None

    def _times(self, window: Window | None, kernels: Int | None) -> tuple[pd.DataFrame, list[Int]]:
        """Return the kernels that count with `node` and `how`; count, own and whole time of each path.

        What is asked again is not counted again: `summary`, `coverage` and `tree` are asked of one
        choice.
        """
        if self._last and self._last[0] == window and self._last[1] is kernels:
            return self._last[2]
        inside = cut(self._kernels if kernels is None else self._kernels.take(kernels), window)
        owned = inside[inside["node"] >= 0]
        up = self._paths.up
        count, own, _ = counted(owned["dur_ns"].to_numpy(), owned["node"].to_numpy(), len(up))
        whole, at = own.copy(), np.flatnonzero(own)
        above = up[at]
        while (on := np.flatnonzero(above >= 0)).size:
            at, above = at[on], above[on]
            np.add.at(whole, above, own[at])
            above = up[above]
        self._last = window, kernels, (inside, [count, own, whole])
        return self._last[2]

    def summary(self, *, window: Window | None = None, kernels: Int | None = None) -> pd.DataFrame:
        """Return kernels and GPU time by the name of their owner.

        `window`: kernels count with the part inside, whenever they were launched. `kernels`:
        positions in KERNELS; all when omitted. By falling `inclusive_ns`, ties by falling count,
        then name: `name` category, missing for kernels without an owner; `count` int64, kernels
        that it owns itself; `exclusive_ns`, `inclusive_ns` int64, where a frame inside one of its
        own name counts once; `exclusive_frac`, `inclusive_frac`, of the time of all kernels. The
        counts and exclusive times add up to those of all kernels.
        """
        inside, (count, own, whole) = self._times(window, kernels)
        name, first = self._paths.name, np.ones(len(count), bool)
        at = self._paths.up.copy()
        while (on := np.flatnonzero(at >= 0)).size:
            first[on[name[at[on]] == name[on]]] = False
            at[on] = self._paths.up[at[on]]
        free = inside.loc[inside["node"] < 0, "dur_ns"].to_numpy()
        codes = np.r_[name, np.full(int(len(free) > 0), -1)]
        names = pd.DataFrame({"name": pd.Categorical.from_codes(codes, self._names)})
        table, group = numbered(names, ["name"])
        rest = np.array([len(free), free.sum(), free.sum()], np.int64)[:, None][
            :, : int(len(free) > 0)
        ]
        sides = {"count": count, "exclusive_ns": own, "inclusive_ns": np.where(first, whole, 0)}
        for (column, values), more in zip(sides.items(), rest, strict=True):
            table[column] = counted(np.r_[values, more], group, len(table))[1]
        total = inside["dur_ns"].sum() or np.nan
        shares = {
            f"{side}_frac": table[f"{side}_ns"] / total for side in ("exclusive", "inclusive")
        }
        return ranked(table.assign(**shares)[table["inclusive_ns"] > 0], "inclusive_ns", ["name"])

    def coverage(self, *, window: Window | None = None, kernels: Int | None = None) -> pd.DataFrame:
        """Return which part of the GPU's time has an owner, and why the rest has none.

        Arguments as in `summary`. One row per `HOW`: `how` category; `count` int64, kernels;
        `total_ns` int64; `share_frac`, of the time of all kernels, NaN where that is 0. What is
        owned is all but "outside" and "none".
        """
        inside, _ = self._times(window, kernels)
        count, total, _ = counted(inside["dur_ns"].to_numpy(), inside["how"].to_numpy(), len(HOW))
        table = pd.DataFrame({"how": pd.Categorical(HOW, HOW), "count": count, "total_ns": total})
        return table.assign(share_frac=total / (total.sum() or np.nan))

    def tree(self, *, window: Window | None = None, kernels: Int | None = None) -> pd.DataFrame:
        """Return the paths of owners with GPU time, and per rank one without a name for kernels without an owner.

        Arguments as in `summary`. `rank`; `node`, number of the path; `parent`, the path around it,
        -1 at the top; `name` category, its innermost frame; `kernel_count`, `exclusive_ns`,
        `inclusive_ns` as in `summary`.
        """
        inside, (count, own, whole) = self._times(window, kernels)
        some = np.flatnonzero(whole)
        free, group = numbered(inside.loc[inside["node"] < 0], ["rank"])
        lost = counted(inside.loc[inside["node"] < 0, "dur_ns"].to_numpy(), group, len(free))
        columns = {
            "rank": np.r_[self._paths.rank[some], free["rank"].to_numpy()],
            "node": np.r_[some, len(own) + np.arange(len(free))],
            "parent": np.r_[self._paths.up[some], np.full(len(free), -1)],
            "name": pd.Categorical.from_codes(
                np.r_[self._paths.name[some], np.full(len(free), -1)], self._names
            ),
            "kernel_count": np.r_[count[some], lost[0]],
            "exclusive_ns": np.r_[own[some], lost[1]],
            "inclusive_ns": np.r_[whole[some], lost[1]],
        }
        return pd.DataFrame(columns)


def _frames(
    by: str, ranges: pd.DataFrame, ops: pd.DataFrame, calls: pd.DataFrame
) -> tuple[pd.DataFrame, list[Int]]:
    """Return a table of frames, and the rows of it that are asked, one group after the other."""
    if by == "range":
        return _of_place(ranges), [np.flatnonzero((ranges["kind"] != "mark").to_numpy())]
    if by == "operator":
        return _of_place(ops), [np.arange(len(ops))]
    is_module = where(calls["name"], lambda name: name.startswith(MODULE))
    if by == "line":
        return _of_place(calls), [
            np.flatnonzero(where(calls["name"], of_program)),
            np.arange(len(calls)),
        ]
    modules = calls.loc[is_module, PLACE]
    if by == "module":
        plain = (
            modules["name"]
            .cat.remove_unused_categories()
            .cat.rename_categories(lambda name: name[len(MODULE) :])
        )
        return modules.assign(name=plain), [np.arange(len(modules))]
    parts = [
        frame.assign(name=_phase(frame["name"]))
        for frame in (*map(_of_place, (ranges, ops)), modules)
    ]
    frames = pd.concat([part[part["name"].notna()] for part in parts], ignore_index=True)
    return frames, [np.flatnonzero((frames["name"] == phase).to_numpy()) for phase in _PHASES]


def _of_place(frames: pd.DataFrame) -> pd.DataFrame:
    """Return the columns `PLACE` of frames, none of them copied."""
    return pd.DataFrame({column: frames[column] for column in PLACE}, copy=False)


def _phase(names: pd.Series) -> pd.Categorical:
    """Return the phase that each name says; missing where it says none, or both forward and backward."""
    known = [
        [phase for phase, pattern in _PHASES.items() if pattern.search(str(n))]
        for n in names.cat.categories
    ]
    first = [
        -1 if not k or k[-2:] == ["backward", "forward"] else [*_PHASES].index(k[0]) for k in known
    ]
    return pd.Categorical.from_codes(
        np.array([*first, -1], np.int64)[names.cat.codes.to_numpy()],
        pd.Index([*_PHASES], dtype=object),
    )


def _first(
    frames: pd.DataFrame, layers: list[Int], moments: list[pd.DataFrame]
) -> tuple[Int, Int, Placed, list[Int]]:
    """Return which of the `moments` found the owner of each call (their number: none), its row in `frames`, and these.

    Of several layers the first one that has an open frame answers; the frames of the first one are
    returned in order, with the `maxima` of their ends.
    """
    intervals, now = with_moments(frames, pd.concat(moments))
    at, found = now.reshape(len(moments), -1), []
    for rows in layers:
        there = placed(*(times if len(rows) == len(frames) else times[rows] for times in intervals))
        found.append((there._replace(row=rows[there.row]), maxima(there.end)))
    how, row = np.full(len(moments[0]), len(moments)), np.full(len(moments[0]), -1)
    for way in range(len(moments)):
        for there, levels in found:
            # Most have an owner at once
            left = np.flatnonzero(row < 0) if len(there.row) else np.zeros(0, np.int64)
            # Neighbours in time are neighbours in memory
            left = left[np.argsort(at[way][left], kind="stable")]
            now = at[way][left]
            place = last_open(levels, np.searchsorted(there.start, now, side="right"), now)
            row[left[place >= 0]] = there.row[place[place >= 0]]
        how[(row >= 0) & (how == len(moments))] = way
    return how, row, *found[0]


def _paths(
    frames: pd.DataFrame, row: Int, there: Placed | None, levels: list[Int]
) -> tuple[_Paths, Int]:
    """Return the paths of names that lead to the frames in `row`, and the number of each one's path; -1 for no frame.

    `there`: the frames that others lie in, with the `maxima` of their ends; without them nothing
    nests.
    """
    used = unique(row[row >= 0])
    up, place = (
        np.full(len(used), -1),
        np.zeros(len(frames) + 1, np.min_scalar_type(-len(frames) - 1)),
    )
    if there is not None and len(used):
        used, up = _enclosed(there, levels, used, place)
    place[used] = np.arange(len(used))
    place[-1] = -1  # no frame
    columns = frames["rank"].to_numpy(), frames["name"].cat.codes.to_numpy()
    rank, name = (column[used].astype(np.int64) for column in columns)
    depth, at = (up >= 0).astype(up.dtype), up.copy()
    while (on := np.flatnonzero(at >= 0)).size:
        depth[on] += depth[at[on]]
        at[on] = at[at[on]]
    path = np.full(len(used) + 1, -1)  # the last one stands above the top
    keys = (rank + 1) * (int(name.max(initial=0)) + 2) + name
    first: list[Int] = []
    for level in (
        np.split(np.argsort(depth, kind="stable"), np.cumsum(np.bincount(depth))[:-1])
        if len(used)
        else []
    ):
        _, group = numbered(
            pd.DataFrame({"up": path[up[level]], "key": keys[level]}), ["up", "key"]
        )
        path[level] = sum(len(above) for above in first) + group
        leader = np.empty(int(group.max()) + 1, np.int64)
        leader[group[::-1]] = level[::-1]
        first.append(leader)
    one = np.concatenate([np.zeros(0, np.int64), *first])
    return _Paths(rank[one], name[one], path[up[one]]), path[place[row]]


def _enclosed(there: Placed, levels: list[Int], used: Int, place: Int) -> tuple[Int, Int]:
    """Return the rows of `used` frames and of all those around them, and the position of the one around each.

    `place` has a place for each frame; what is left in it does not matter.
    """
    place[:] = -1
    place[there.row] = np.arange(len(there.row))
    around = np.full(len(there.row), -2, place.dtype)
    new = unique(place[used][place[used] >= 0])
    while len(new):
        around[new] = last_open(levels, new, there.end[new] - 1)
        new = unique(around[new][around[new] >= 0])
        new = new[around[new] == -2]
    seen = np.flatnonzero(around > -2)
    # Nothing is around frames that are not there
    rows = np.r_[there.row[seen], used[place[used] < 0]]
    place[:] = -1
    place[rows] = np.arange(len(rows))
    above = np.full(len(rows), -1, place.dtype)
    inner = np.flatnonzero(around[seen] >= 0)
    above[inner] = place[there.row[around[seen[inner]]]]
    return rows, above
