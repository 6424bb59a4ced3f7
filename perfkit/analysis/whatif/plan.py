"""What a program does and waits for, in a form that changes can be made to.

Functions
---------
as_recorded    the plan of a program in which nothing was changed
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from perfkit.analysis.intervals import Int
from perfkit.analysis.whatif.lags import MID, NONE, Lags, launch_lags
from perfkit.analysis.whatif.program import Bool, Program
from perfkit.analysis.whatif.streams import Meetings, StreamWaits, meetings, stream_waits
from perfkit.analysis.whatif.threads import Handovers, handovers
from perfkit.analysis.whatif.waits import HostWaits, host_waits, own_copies

STAYS, GONE, FETCHED, SENT = range(4)


@dataclass
class Plan:
    """What each call and operation of a program takes and waits for, ns.

    Attributes
    ----------
    gap, doubtful_gap, cost, ready
        Per call: the CPU's work before it; more of it, if a change saves less than it promises; its own time; and
        the earliest time at which background work allows it, NONE without any.
    dur, call, launch, space
        Per operation: its time; the call that launches it; lags as in `Lags`, a row per view.
    moved
        Per operation: STAYS in its stream; or is GONE, which leaves a moment without length there; or has a stream of
        its own, FETCHED without waiting for what was before it, or SENT after it.
    """

    program: Program
    lags: Lags
    host_waits: HostWaits
    stream_waits: StreamWaits
    handovers: Handovers
    meetings: Meetings
    gap: Int
    doubtful_gap: Int
    cost: Int
    ready: Int
    dur: Int
    call: Int
    launch: Int
    space: Int
    moved: Int


def as_recorded(program: Program, api_names: pd.Series, *, pageable: Bool, communicates: Bool) -> Plan:
    """Return the plan of a program as it was recorded.

    Parameters
    ----------
    program
        What was recorded.
    api_names
        Those of API_CALLS.
    pageable, communicates
        Whether an operation is a copy from or to pageable memory; whether it is a communication kernel.
    """
    ops, calls = program
    own = own_copies(program, pageable)
    lags = launch_lags(program, api_names, np.isin(np.arange(len(ops.start)), own.op))
    waits, cost = host_waits(program, own, lags.typical_launch)
    between, passed = stream_waits(ops, lags), handovers(calls)
    gap = np.zeros(len(calls.start), np.int64)
    gap[1:] = np.where(calls.thread[1:] == calls.thread[:-1], calls.start[1:] - calls.end[:-1], 0)
    gap[passed.call] = passed.lag
    launch, space = lags.launch.copy(), lags.space.copy()
    # What another stream explains is neither latency nor distance.
    launch[MID:, between.op] = lags.typical_launch[between.op]
    space[MID:, between.op] = lags.typical_space[between.op]
    return Plan(
        program=program,
        lags=lags,
        host_waits=waits,
        stream_waits=between,
        handovers=passed,
        meetings=meetings(ops, communicates),
        gap=gap,
        doubtful_gap=np.zeros_like(gap),
        cost=cost,
        ready=np.full_like(gap, NONE),
        dur=ops.end - ops.start,
        call=ops.call.copy(),
        launch=launch,
        space=space,
        moved=np.full(len(ops.start), STAYS),
    )
