"""The contract of `perfkit.analysis`: empty tables, other tables, windows, and arguments that stay as they are."""

import functools
import inspect
from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
from analysis.test_communication import THREE_RANKS
from callpaths import MAIN, thread_metrics, threads, toy_metrics, toy_tree
from counted import counters, launches, stalls
from frames import api_calls, copies, kernels, lasting, ranges, types
from ops import op, ops
from sampled import devices, samples, together

from perfkit import tables
from perfkit.analysis import (
    access,
    alignment,
    calltree,
    clocks,
    communication,
    dossier,
    efficiency,
    flops,
    gaps,
    host,
    llm_operations,
    memory,
    operators,
    readings,
    roofline,
    scaling,
    steps,
    timeline,
    warps,
)
from perfkit.analysis import kernels as kernel_times
from perfkit.analysis.alignment import bins as binned_samples
from perfkit.analysis.calltree.paths import launched
from perfkit.errors import SchemaError
from perfkit.hardware import Peaks
from perfkit.logs import monitoring
from perfkit.schema import Table

HOUR = 3_600_000_000_000
GPU = Peaks("made up", {"fp32": 1e12, "fp16_tensor": 1e12}, memory_bytes_per_s=1e12)
MEASURED = {
    "dur_ns": 10.0,
    "fp32_flops": 5.0,
    "dram_bytes": 2.0,
    "sm_frac": 0.5,
    "memory_frac": 0.4,
}
LOG = {
    "power_w": [1, 2, 3],
    "power_limit_w": [3, 3, 3],
    "gpu_busy_frac": [1, 1, 0],
    "sm_clock_hz": [9, 9, 5],
}
HELD = {
    "memory_allocated_bytes": [1, 2, 1],
    "memory_reserved_bytes": [4, 4, 4],
    "throttled_power_frac": [0, 1, 1],
}
WORK = kernels(
    lasting(10, 20, "sgemm", correlation=1, family="gemm"),
    lasting(60, 30, correlation=2, in_graph=True),
    lasting(95, 2 * 10**9, family="communication", stream=8),
)
CALLS = api_calls(
    lasting(5, 3, correlation=1),
    lasting(32, 2, "cudaMemcpyAsync", correlation=3),
    lasting(40, 5, "cudaGraphLaunch", correlation=2),
    lasting(50, 5, "cudaDeviceSynchronize"),
)
COPIED = copies(lasting(45, 5, bytes=99, src_memory="pageable", correlation=3))
MM = op("aten::mm", 0, 9, shapes="[[4,3],[3,5]]", dtypes='["float","float"]', sequence=3)
SPANS = ranges(*(lasting(30 * i, 30, f"step {i}") for i in range(4)))
READINGS = together(samples(**LOG, **HELD, forward_flops_per_s=[1, 2, 3]), samples(gpu=1, **LOG))
COUNTED = (
    launches(MEASURED),
    counters({"lts__t_sector_hit_rate.pct": 50.0}),
    stalls({"wait": 1.0, "selected": 1.0}),
)
RECORDED = {
    "kernels": WORK,
    "copies": COPIED,
    "api_calls": CALLS,
    "ranges": SPANS,
    "ops": ops(MM, op("aten::copy_", 30, 36), op("MmBackward", 60, 70, sequence=3, thread=2)),
    "samples": READINGS,
    "devices": devices("A", "B", memory_bytes=9),
    "collectives": THREE_RANKS,
    "calltree": toy_tree(),
    "call_metrics": toy_metrics(),
    "thread_metrics": thread_metrics((7, MAIN, "GKER", "s", 1.0)),
    "threads": threads((7, "gpu", "GPU context 1 stream 7")),
    **dict(zip(("launches", "counters", "stalls"), COUNTED, strict=True)),
}
# Arguments that are named after a table are that table.
TABLES: dict[str, tuple[Table, pd.DataFrame]] = {
    **{name: (getattr(tables, name.upper()), frame) for name, frame in RECORDED.items()},
    "steps": (steps.STEPS, steps.detect(SPANS, WORK)),
    "gaps": (gaps.GAPS, gaps.idle_gaps(WORK, COPIED, CALLS)),
    "latency": (host.LATENCY, host.latency(WORK, CALLS)),
    "timeline": (memory.TIMELINE, memory.timeline(READINGS)),
    "points": (roofline.POINTS, roofline.points(*COUNTED[:2])),
    "ceilings": (roofline.CEILINGS, roofline.ceilings(COUNTED[0], peaks=GPU)),
    "runs": (
        scaling.RUNS,
        scaling.RUNS.make(pd.DataFrame({"gpus": [1, 2, 4], "throughput_per_s": [1.0, 1.9, 3.5]})),
    ),
    "operations": (llm_operations.OPERATIONS, llm_operations.work()),
    "gpu_time": (
        flops.GPU_TIME,
        flops.GPU_TIME.make(pd.DataFrame({"rank": [0], "op": [0], "gpu_ns": [20]})),
    ),
    "synchronisations": (
        operators.SYNCHRONISATIONS,
        operators.synchronisations(RECORDED["ops"], WORK, COPIED, CALLS),
    ),
}
MORE: dict[Any, dict[str, Any]] = {
    efficiency.reported_mfu: {"peaks": GPU, "precision": "fp32"},
    llm_operations.attainable: {"peaks": GPU, "precision": "fp32"},
    **{of: {"metric": "GKER"} for of in (calltree.exclusive, calltree.hot_path, calltree.threads)},
}
ASKED: list[Callable[..., pd.DataFrame]] = [
    *(access.checks, access.target_checks),
    *(communication.overlap, communication.bandwidth, communication.summary, communication.plateau),
    *(communication.matched, communication.stragglers, clocks.of_ranks, clocks.offsets),
    *(
        calltree.inclusive,
        calltree.exclusive,
        calltree.hot_path,
        calltree.threads,
        calltree.gpu_summary,
        launched,
    ),
    *(calltree.tree_sums, calltree.kernels),
    *(dossier.kernels, efficiency.reported_mfu, gaps.idle_gaps, gaps.idle_by_cause, gaps.histogram),
    *(host.synchronisations, host.input_wait, host.recorded),
    *(kernel_times.summary, kernel_times.precision),
    *(host.latency, host.latency_summary),
    *(llm_operations.attainable, scaling.scaling, steps.detect, steps.steady),
    *(memory.timeline, memory.peak, memory.fragmentation, memory.bins),
    *(memory.copied, memory.pageable_async, memory.small_copies),
    *(readings.summary, monitoring.utilisation, monitoring.dips, monitoring.idle),
    *(monitoring.imbalance, monitoring.at_limit, readings.throttling, monitoring.checks),
    *(alignment.clock_under_kernels, binned_samples),
    *(
        operators.many_small,
        operators.unexpected,
        operators.synchronisations,
        operators.synchronisation_summary,
    ),
    *(operators.kernels_of, operators.summary, operators.backward),
    *(flops.roofline, flops.coverage),
    *(roofline.points, roofline.bound, warps.occupancy, warps.stall_shares, warps.main_stall),
    *(timeline.busy, timeline.breakdown, timeline.bins, timeline.samples_mean),
]
every_function = pytest.mark.parametrize(
    "of", ASKED, ids=lambda of: f"{of.__module__}.{of.__name__}"[17:]
)
WITH_WINDOW = [of for of in ASKED if "window" in inspect.signature(of).parameters]


def arguments(of: Callable[..., pd.DataFrame], *, empty: bool = False) -> dict[str, Any]:
    names = [name for name in inspect.signature(of).parameters if name in TABLES]
    return {
        name: TABLES[name][0].empty() if empty else TABLES[name][1] for name in names
    } | MORE.get(of, {})


@functools.cache
def answer(of: Callable[..., pd.DataFrame]) -> pd.DataFrame:
    return of(**arguments(of))


def moved(given: Any, by: int) -> Any:
    times = [
        name
        for name in ("start_ns", "time_ns")
        if isinstance(given, pd.DataFrame) and name in given
    ]
    return given.assign(**{name: given[name] + by for name in times}) if times else given


@every_function
def test_empty_tables_give_no_row_of_the_same_types(of: Callable[..., pd.DataFrame]) -> None:
    """No rows where nothing was recorded; with one table empty the rows that are left have the same types too."""
    # Each table argument in turn may not be another table, empty as it may be.
    full, none = answer(of), arguments(of, empty=True)
    assert len(full) > 0
    for window in [{}, {"window": (0, 5)}] if of in WITH_WINDOW else [{}]:
        assert (0, types(full)) == (len(found := of(**none, **window)), types(found))
    for name in arguments(of).keys() & TABLES.keys():
        assert types(full) == types(of(**arguments(of) | {name: none[name]}))
        other = tables.COPIES if name != "copies" else tables.KERNELS
        with pytest.raises(SchemaError, match=f"table '{TABLES[name][0].name}' does not match"):
            of(**arguments(of) | {name: other.empty()})


@every_function
def test_a_later_start_of_the_capture_moves_times_only(of: Callable[..., pd.DataFrame]) -> None:
    # No function changes a table that it is given, with a window or without.
    later = {name: moved(given, HOUR) for name, given in arguments(of).items()}
    before = {name: given.copy(deep=True) for name, given in later.items() if name in TABLES}
    pd.testing.assert_frame_equal(answer(of), moved(of(**later), -HOUR))
    if of in WITH_WINDOW:
        of(**later, window=(HOUR + 15, HOUR + 50))
    for name, frame in before.items():
        pd.testing.assert_frame_equal(frame, later[name])


@pytest.mark.parametrize("of", WITH_WINDOW)
def test_windows_are_checked(of: Callable[..., pd.DataFrame]) -> None:
    for empty in (False, True):
        for window, why in (
            ((9, 2), "does not end after it starts"),
            ((5, 5), "does not end"),
            ((0.5, 9), "integers"),
        ):
            with pytest.raises(ValueError, match=rf"window: \({window[0]}, {window[1]}\) .*{why}"):
                of(**arguments(of, empty=empty), window=window)
