"""How long after its launch, and after its predecessor in its stream, does an operation start?

Conventions
-----------
An operation is *released* by its call when that has begun and the launch latency has passed, and by its stream when
the predecessor has ended and the distance between two operations has passed. The typical latency of a kind (call and
sort of operation) is the median over calls that found the stream empty; where the stream was empty when the call
returned and the call was longer, it is the time in the call. The typical distance is the median on the device over
operations whose stream released them last. Both are 0 where nothing shows them.

What happens up to `SLACK_NS` after the last release is the GPU's own delay. What is longer is *unexplained*: something
not recorded held the operation up. The first operation of a stream starts as it did, and so, after its predecessor,
does a copy that its call waits for: the CPU stages it.

Functions
---------
launch_lags    latencies and distances under three views of the same recording
predecessor    the operation before in the same stream
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pandas as pd

from perfkit.analysis.causes import KERNEL_WAIT_NS
from perfkit.analysis.intervals import Int
from perfkit.analysis.statistics import grouped
from perfkit.analysis.whatif.program import Bool, Operations, Program

# The least delays and no inferred dependence; the model; and every unexplained delay kept.
LOW, MID, HIGH = VIEWS = (0, 1, 2)
SLACK_NS = KERNEL_WAIT_NS  # what HTA counts as the GPU's own delay
NONE = -(2**60)  # the lag of a dependence that does not hold


class Lags(NamedTuple):
    """Per operation, ns, up to its start: `launch` from the start of its call, `space` from the end of its predecessor.

    `launch` and `space` have a row per view and are NONE without a call or predecessor; the typical ones are never
    longer than measured. `released` is when all that is known would have let it start. `held` is the first of a stream
    if it starts long after its call has returned: the GPU was at work before the recording began.
    """

    launch: Int
    space: Int
    typical_launch: Int
    typical_space: Int
    released: Int
    held: Bool


def launch_lags(program: Program, names: pd.Series, blocking: Bool) -> Lags:
    """Return the lags of each operation.

    Parameters
    ----------
    program
        What was recorded.
    names
        Those of API_CALLS.
    blocking
        Whether an operation is a copy its own call waits for: that call's length says nothing about the launch.
    """
    ops, calls = program
    before = predecessor(ops.stream)
    called, returned = (np.append(t, NONE)[ops.call] for t in (calls.start, calls.end))
    ended = np.append(ops.end, NONE)[before]
    has_call, has_before = ops.call >= 0, before >= 0
    offset = np.where(has_call, ops.start - called, NONE)
    gap = np.where(has_before, ops.start - ended, NONE)
    alone = has_call & _first_of_call(ops) & (ended <= called) & (ops.start <= returned + SLACK_NS)
    least_offset, usual = _of_kind(offset, _kinds(program, names), alone)
    slow = np.where(blocking, ended <= called, ended <= returned)
    launch = np.minimum(offset, np.where(slow, np.maximum(usual, returned - called), usual))
    queued = ~has_call | (ended >= called + launch)
    least_gap, usual_gap = _of_kind(gap, ops.device, queued & has_before & (gap <= SLACK_NS))
    space = np.minimum(gap, usual_gap)
    released = np.where(has_call, np.maximum(called + launch, ended + space), ops.start)
    staged = blocking & has_before
    own = (ops.start - released <= SLACK_NS) | ~has_before | staged
    launches = (
        np.where(has_before, np.minimum(offset, least_offset), offset),
        np.where(own & ~queued, offset, launch),
        np.where(queued, launch, offset),
    )
    spaces = (
        np.where(has_call & ~staged, np.minimum(gap, least_gap), gap),
        np.where(own & queued, gap, space),
        np.where(queued, gap, space),
    )
    held = ~has_before & (ops.start > returned + SLACK_NS)
    return Lags(np.array(launches), np.array(spaces), launch, space, released, held)


def predecessor(stream: Int, among: Bool | None = None) -> Int:
    """Return for each row, in order of streams, the row before it (of those `among`) in its stream; else -1.

    Examples
    --------
    >>> predecessor(np.array([0, 0, 0, 1])).tolist()
    [-1, 0, 1, -1]
    >>> predecessor(np.array([0, 0, 0, 1]), np.array([True, False, True, True])).tolist()
    [-1, 0, 0, -1]
    """
    row = np.arange(len(stream)) if among is None else np.where(among, np.arange(len(stream)), -1)
    latest = np.r_[-1, np.maximum.accumulate(row)][: len(row)]
    same = (latest >= 0) & (np.append(stream, -1)[latest] == stream)
    return np.where(same, latest, -1)


def _kinds(program: Program, names: pd.Series) -> Int:
    """Number the combinations of rank, call and sort of operation."""
    ops, calls = program
    code = np.append(names.cat.codes.to_numpy(np.int64)[calls.row], -1)[ops.call]
    key = (ops.rank * (len(names.cat.categories) + 1) + code + 1) * 2 + ops.is_copy
    return np.asarray(pd.factorize(key)[0], np.int64)


def _first_of_call(ops: Operations) -> Bool:
    """Tell the operations that are the first of their call to start."""
    order = np.lexsort((ops.start, ops.call))
    first = np.zeros(len(order), bool)
    first[order] = np.diff(ops.call[order], prepend=-2) != 0
    return first


def _of_kind(values: Int, kind: Int, counted: Bool) -> tuple[Int, Int]:
    """Return least and median, at least 0, over the rows of each row's kind that count; 0 where none does."""
    found = grouped(values[counted], kind[counted], int(kind.max(initial=-1)) + 1)
    least, median = (np.maximum(np.nan_to_num(found[s].to_numpy("float64")), 0) for s in ("min", "median"))
    return np.rint(least).astype(np.int64)[kind], np.rint(median).astype(np.int64)[kind]
