"""The time in which GPUs worked, between what the trace is sure of and what the metrics add up to."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from callpaths import MAIN, call_metrics, calltree, threads, toy_metrics, toy_tree, trace

from perfkit.analysis.calltree import utilisation
from perfkit.errors import PerfkitError, SchemaError
from perfkit.tables import CALL_METRICS, CALLTREE, THREADS, TRACE

TREE, METRICS = toy_tree(), toy_metrics()
MS = 1_000_000
STREAMS = threads((1, "cpu", "thread 0"), (7, "gpu", "GPU context 1 stream 7"), (8, "gpu", "GPU context 1 stream 8"))
# Kernels [0, 1) and [2, 3) ms in one stream, the copy [0.5, 1.5) in the other; the CPU thread is sampled up to 10 ms.
CERTAIN = trace((1, 0, 10 * MS, 4, True), (7, 0, MS, 6, True), (7, 2 * MS, MS, 13, True), (8, MS // 2, MS, 7, True))


def bounds(found: pd.DataFrame) -> tuple[float, ...]:
    """Lower and upper bound of the only row, in ms."""
    (row,) = found.to_dict("records")
    return row["low_ns"] / MS, row["high_ns"] / MS


def test_union_of_two_streams_by_hand() -> None:
    """1 + 1 + 1 ms of work, of which 0.5 overlap: busy for 2.5 of 10 ms, and nothing is in doubt."""
    found = utilisation(TREE, METRICS, CERTAIN, STREAMS)
    assert (2.5, 2.5) == bounds(found)
    assert [(1e7, 1, 1e7, 3e6, 0.25, 0.25)] == list(
        found[["wall_ns", "gpus", "denominator_ns", "operation_ns", "low_frac", "high_frac"]].itertuples(
            index=False, name=None
        )
    )


def test_operations_that_follow_each_other_directly_are_in_doubt() -> None:
    """A kernel without end, up to the next, may be shorter: only the copy is certain; together no more than 3 ms."""
    doubtful = trace((7, 0, 2 * MS, 6, False), (7, 2 * MS, MS, 13, True), (8, MS // 2, MS, 7, True))
    assert (1.0, 3.0) == bounds(utilisation(TREE, METRICS, doubtful, STREAMS, wall_ns=1e7))


def test_an_operation_moved_behind_another_is_in_doubt() -> None:
    """One that starts 1 ns after its predecessor's end was moved there by HPCToolkit: its length is not known."""
    moved = trace((7, 0, MS, 6, True), (7, MS + 1, 8 * MS, 13, True))
    assert (1.0, 3.0) == bounds(utilisation(TREE, METRICS, moved, STREAMS, wall_ns=1e7))
    apart = trace((7, 0, MS, 6, True), (7, MS + 2, MS, 13, True))
    assert (2.0, 2.0) == bounds(utilisation(TREE, METRICS, apart, STREAMS, wall_ns=1e7))


def test_synchronisation_and_allocation_are_no_work() -> None:
    """A stream's wait in <gpu sync> is in its trace, but the GPU does nothing then."""
    rows = TREE.astype(object).to_dict("records")
    kept = [{k: v for k, v in row.items() if pd.notna(v)} for row in rows]
    tree = calltree(*kept, {"node": 20, "parent": 4, "name": "<gpu sync>", "kind": "gpu_operation"})
    waited = TRACE.make(pd.concat([CERTAIN, trace((8, 4 * MS, 5 * MS, 20, True))], ignore_index=True))
    assert (2.5, 2.5) == bounds(utilisation(tree, METRICS, waited, STREAMS))


def test_two_gpus_may_work_at_once() -> None:
    """A context is a GPU: the same two milliseconds on two of them are 2 of 2 x 10 ms."""
    two = threads((7, "gpu", "GPU context 1 stream 7"), (8, "gpu", "GPU context 2 stream 7"))
    both = trace((7, 0, MS, 6, True), (8, 0, MS, 13, True))
    found = utilisation(TREE, METRICS, both, two, wall_ns=1e7)
    assert (2.0, 2.0) == bounds(found)
    assert [2, 2e7, 0.1] == found.loc[0, ["gpus", "denominator_ns", "low_frac"]].tolist()


def test_without_a_trace_only_the_upper_bound_is_known() -> None:
    """The operations add up to 3 ms: 0.3 of 10 ms at most."""
    (row,) = utilisation(TREE, METRICS, wall_ns=1e7, gpus=1).to_dict("records")
    assert (3e6, 0.3) == (row["high_ns"], row["high_frac"])
    assert np.isnan(row["low_ns"])


def test_shifting_the_trace_changes_nothing() -> None:
    """Only lengths count, not when the program ran."""
    later = TRACE.make(CERTAIN.assign(start_ns=CERTAIN["start_ns"] + 10**15))
    pd.testing.assert_frame_equal(
        utilisation(TREE, METRICS, CERTAIN, STREAMS), utilisation(TREE, METRICS, later, STREAMS)
    )


def test_unknown_denominators_are_refused() -> None:
    """Without wall time, GPUs or GPU operations there is no utilisation."""
    with pytest.raises(PerfkitError, match=r"wall_ns: the length of the run is not known, found None\. Record a trace"):
        utilisation(TREE, METRICS, gpus=1)
    with pytest.raises(PerfkitError, match="wall_ns: the length of the run is not known, found 0"):
        utilisation(TREE, METRICS, gpus=1, wall_ns=0)
    with pytest.raises(PerfkitError, match=r"gpus: 0 GPUs are known\. Record a trace"):
        utilisation(TREE, METRICS, wall_ns=1e7)
    host = calltree({"node": 1, "name": MAIN}), call_metrics((1, "CPUTIME", "s", 1.0, 1.0))
    with pytest.raises(PerfkitError, match="no GPU operations were measured"):
        utilisation(*host, wall_ns=1e7, gpus=1)


def test_contradictions_are_refused() -> None:
    """More work than wall time x GPUs, or than the metrics say, is never shown, nor cut to 1."""
    with pytest.raises(PerfkitError, match=r"gpus: .*3e\+06 ns do not fit into 1 x 2e\+06 ns.*streams overlap"):
        utilisation(TREE, METRICS, wall_ns=2e6, gpus=1)
    with pytest.raises(PerfkitError, match=r"2\.5e\+06 ns do not fit into 1 x 2e\+06 ns. Give the right"):
        utilisation(TREE, METRICS, CERTAIN, STREAMS, wall_ns=2e6)
    with pytest.raises(PerfkitError, match=r"trace: the GPUs of rank 0 were busy for 8e\+06 ns.* 3e\+06 ns"):
        utilisation(TREE, METRICS, trace((7, 0, 8 * MS, 6, True)), STREAMS, wall_ns=1e7)


def test_empty_and_wrong_tables() -> None:
    """Nothing gives no rows with the columns of a full answer; other tables are refused by name."""
    empty = utilisation(CALLTREE.empty(), CALL_METRICS.empty(), TRACE.empty(), THREADS.empty())
    full = utilisation(TREE, METRICS, CERTAIN, STREAMS)
    assert (0, full.dtypes.to_dict()) == (len(empty), empty.dtypes.to_dict())
    with pytest.raises(SchemaError, match="TRACE"):
        utilisation(TREE, METRICS, STREAMS, STREAMS)
    with pytest.raises(SchemaError, match="THREADS"):
        utilisation(TREE, METRICS, CERTAIN, CERTAIN)
    with pytest.raises(SchemaError, match="CALLTREE"):
        utilisation(METRICS, METRICS)
