"""What a recording of the GPU lacks, and which stretches are unknown because of it: all worked by hand."""

from typing import Any

import pandas as pd
import pytest
from frames import api_calls, copies, kernels, lasting, ranges, tuples

from perfkit.analysis import completeness, gaps, steps
from perfkit.tables import COPIES, KERNELS, OPS, OVERHEAD

MS = 1_000_000
LAUNCH = "cudaLaunchKernel"


def queued(*started: int, calls: int = 5, **more: Any) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Launch i at i ms; its kernel runs from i + 0.5 ms on for 0.3 ms, and was recorded for those in `started`."""
    of_gpu = [lasting(i * MS + MS // 2, 3 * MS // 10, correlation=i) for i in started]
    launched = [lasting(i * MS, 1000, correlation=i, **more) for i in range(calls)]
    return kernels(*of_gpu), api_calls(*launched)


def lost(of_gpu: pd.DataFrame, calls: pd.DataFrame) -> list[bool]:
    found = completeness.launches(of_gpu, COPIES.empty(), calls)
    return [bool(value) for value in found["lost"]]


def test_a_launch_without_a_kernel_of_its_correlation_is_lost() -> None:
    assert [False, False, True, False, True] == lost(*queued(0, 1, 3))


def test_no_launch_is_lost_where_each_has_its_kernel() -> None:
    assert [False] * 5 == lost(*queued(0, 1, 2, 3, 4))


def test_launches_without_a_kernel_are_counted_without_a_table() -> None:
    of_gpu, calls = queued(0, 1, 3)
    assert (2, 5) == completeness.unrecorded(of_gpu, COPIES.empty(), calls)


@pytest.mark.parametrize(
    "name", ["cudaLaunchCooperativeKernel", "cudaLaunchKernelExC", "cuLaunchKernelEx"]
)
def test_cooperative_and_extended_launches_count(name: str) -> None:
    assert [True] * 5 == lost(*queued(name=name))


@pytest.mark.parametrize("name", ["cudaLaunchHostFunc", "cudaGraphLaunch", "cudaMemcpyAsync"])
def test_host_functions_graphs_and_copies_are_no_kernel_launches(name: str) -> None:
    assert [] == lost(*queued(name=name))


def test_a_call_recorded_twice_counts_once() -> None:
    of_gpu, calls = queued(0, 1, calls=2)
    assert [False, False] == lost(of_gpu, pd.concat([calls, calls], ignore_index=True))


def test_launches_into_a_stream_capture_are_not_lost() -> None:
    of_gpu, calls = queued(0, 4)
    begin = lasting(MS // 2, 1, "cudaStreamBeginCapture_v10000")
    end = lasting(7 * MS // 2, 1, "cudaStreamEndCapture")
    calls = api_calls(*calls.to_dict("records"), begin, end)
    assert [False, False] == lost(of_gpu, calls)


def test_no_launch_is_lost_where_only_the_ids_of_kernels_and_calls_differ() -> None:
    of_gpu, calls = queued(0, 1, 2, 3, 4)
    assert [False] * 5 == lost(of_gpu.assign(correlation=of_gpu["correlation"] + 100), calls)


def test_kernels_launched_before_the_recording_do_not_stand_for_lost_ones() -> None:
    of_gpu, calls = queued(0, 1)
    early = kernels(*(lasting(-i * MS, 1000, correlation=90 + i) for i in range(5)))
    every = KERNELS.make(pd.concat([of_gpu, early]))
    assert [False, False, True, True, True] == lost(every, calls)


def between(
    of_gpu: pd.DataFrame, calls: pd.DataFrame, end_ns: int = 10 * MS
) -> list[tuple[Any, ...]]:
    found = completeness.launches(of_gpu, COPIES.empty(), calls)
    return tuples(completeness.between_launches(found, end_ns), "gpu", "start_ns", "dur_ns")


def test_a_lost_kernel_ran_after_its_call_and_before_the_next_kernel() -> None:
    """Launch 2 at 2 ms is lost; kernel 1 ends at 1.8 ms, kernel 3 starts at 3.5 ms."""
    assert [(0, 2 * MS, 3 * MS // 2)] == between(*queued(0, 1, 3, 4))


def test_a_lost_kernel_ran_after_the_kernel_of_the_launch_before() -> None:
    of_gpu, calls = queued(0, 1, 3, 4)
    late = of_gpu.assign(dur_ns=of_gpu["dur_ns"].where(of_gpu["correlation"] != 1, 3 * MS // 2))
    assert [(0, 3 * MS, MS // 2)] == between(late, calls)


def test_after_the_last_kernel_only_the_end_is_unknown() -> None:
    assert [(0, 3 * MS, 7 * MS)] == between(*queued(0, 1, 2))


def test_lost_kernels_in_a_row_are_one_stretch() -> None:
    assert [(0, 1 * MS, 7 * MS // 2)] == between(*queued(0, 4))


def test_without_any_kernel_of_the_thread_the_gpu_is_unknown() -> None:
    assert [] == between(*queued())


def test_stretches_are_free_of_recorded_work() -> None:
    stretch = pd.DataFrame([lasting(0, 10, rank=0, gpu=0)])
    stretch = completeness.STRETCHES.make(stretch)
    work = kernels(lasting(3, 2))
    found = completeness.free(stretch, work, copies(lasting(8, 9)))
    assert [(0, 3), (5, 3)] == tuples(found, "start_ns", "dur_ns")


def waits(*calls: dict[str, Any], overhead: pd.DataFrame | None = None) -> list[tuple[Any, ...]]:
    """One kernel from 0 to 0.3 ms, and calls of its process."""
    work = kernels(lasting(0, 3 * MS // 10))
    overhead = OVERHEAD.empty() if overhead is None else overhead
    found = completeness.beyond_work(work, COPIES.empty(), api_calls(*calls), overhead)
    return tuples(found, "start_ns", "dur_ns", "work_ns")


SYNC = lasting(0, 199 * MS // 10, "cudaStreamSynchronize")


def test_a_wait_of_20_ms_after_0_3_ms_of_work_is_beyond_it() -> None:
    assert [(3 * MS // 10, 196 * MS // 10, 3 * MS // 10)] == waits(SYNC)


def test_a_wait_that_ends_with_the_work_is_not() -> None:
    assert [] == waits({**SYNC, "dur_ns": 32 * MS // 100})


def test_a_wait_for_a_function_of_the_host_is_not() -> None:
    assert [] == waits(lasting(-10, 1, "cudaLaunchHostFunc"), SYNC)


def test_a_wait_for_an_event_is_not_judged() -> None:
    assert [] == waits({**SYNC, "name": "cudaEventSynchronize"})


def test_a_wait_in_which_the_collector_flushes_its_buffers_is_not() -> None:
    flush = lasting(3 * MS // 10, 19 * MS, rank=0, process=1, thread=9)
    flush |= {"kind": "flush", "name": "Buffer flush", "correlation": -1}
    assert [] == waits(SYNC, overhead=OVERHEAD.make(pd.DataFrame([flush])))


def eight_steps(*working: int, dur_ms: int = 10) -> tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame]:
    """Eight steps of 10 ms, but for the lengths of those without work; some launch a kernel."""
    rows = []
    at = 0
    launched = []
    for number in range(8):
        length = 10 * MS if number in working else dur_ms * MS
        rows.append(lasting(at, length, f"ProfilerStep#{number}", kind="step"))
        if number in working:
            launched.append(at + MS)
        at += length
    of_gpu = kernels(*(lasting(start + MS, MS, correlation=start) for start in launched))
    calls = api_calls(*(lasting(start, 1000, correlation=start) for start in launched))
    return steps.detect(ranges(*rows), KERNELS.empty()), of_gpu, calls


def empty(found: pd.DataFrame, of_gpu: pd.DataFrame, calls: pd.DataFrame) -> list[int]:
    without = completeness.empty_steps(found, of_gpu, COPIES.empty(), calls, OPS.empty())
    return [int(step) for step in without["step"]]


def test_steps_without_work_among_steps_as_long_with_work_are_empty() -> None:
    assert [1, 2, 3, 4, 5, 6] == empty(*eight_steps(0, 7))


def test_short_steps_without_work_are_of_another_kind() -> None:
    assert [] == empty(*eight_steps(0, 7, dur_ms=2))


def test_steps_that_all_work_are_not_empty() -> None:
    assert [] == empty(*eight_steps(*range(8)))


def test_without_calls_no_step_is_called_empty() -> None:
    found, of_gpu, calls = eight_steps(0, 7)
    assert [] == empty(found, of_gpu, calls.iloc[:0])


def cut(stretches: list[tuple[int, int]]) -> pd.DataFrame:
    """The gap of 8 ms before the second of two kernels, whose launch the CPU called at once, without stretches."""
    of_gpu = kernels(
        lasting(0, MS, correlation=1),
        lasting(9 * MS, MS, correlation=2),
    )
    calls = api_calls(
        lasting(-10, 1, correlation=1),
        lasting(9 * MS, 1, correlation=2),
    )
    found = gaps.idle_gaps(of_gpu, COPIES.empty(), calls)
    rows = [lasting(start, dur, rank=0, gpu=0) for start, dur in stretches]
    return completeness.cut_gaps(found, completeness.STRETCHES.make(pd.DataFrame(rows)))


def test_what_remains_of_a_gap_keeps_its_cause() -> None:
    found = cut([(2 * MS, 2 * MS)])
    assert [(1 * MS, 1 * MS), (4 * MS, 5 * MS)] == tuples(found, "start_ns", "dur_ns")
    assert [1 * MS, 5 * MS] == found["host_code_ns"].tolist()


def test_a_gap_of_which_half_is_unknown_has_no_cause() -> None:
    found = cut([(2 * MS, 5 * MS)])
    assert ["unattributed"] * 2 == found["cause"].tolist()
    assert 0 == found["host_code_ns"].sum()


def test_a_gap_inside_a_stretch_is_gone() -> None:
    assert cut([(0, 20 * MS)]).empty


def test_a_lost_kernel_had_ended_when_the_thread_had_waited_for_the_gpu() -> None:
    of_gpu, calls = queued(0, 1, 4)
    wait = lasting(21 * MS // 10, MS // 10, "cudaDeviceSynchronize")
    found = between(of_gpu, api_calls(*calls.to_dict("records"), wait))
    assert [(0, 2 * MS, 2 * MS // 10), (0, 3 * MS, 3 * MS // 2)] == found


# Copies that were lost.


@pytest.mark.parametrize(
    ("called", "answer"),
    [
        ("cudaMemcpyAsync", (1, 2)),
        ("cudaMemsetAsync", (0, 0)),
        ("cudaLaunchKernel", (0, 0)),
    ],
)
def test_a_call_that_copies_and_has_no_copy_is_lost(called: str, answer: tuple[int, int]) -> None:
    calls = api_calls(*(lasting(at, 1, called, correlation=at) for at in (1, 2)))
    one = copies(lasting(5, 1, correlation=1))
    assert answer == completeness.lost_copies(KERNELS.empty(), one, calls)


# Work that was queued before the recording.


def before(*of_gpu: dict[str, Any]) -> list[tuple[int, int]]:
    """Operations that were launched at 0, 1, 2 ... ms, each by a call of 0.1 ms."""
    calls = [lasting(i * MS, MS // 10, LAUNCH, correlation=i) for i in range(len(of_gpu))]
    work = kernels(*({**each, "correlation": i} for i, each in enumerate(of_gpu)))
    found = completeness.queued_before(work, COPIES.empty(), api_calls(*calls))
    return [(start / MS, dur / MS) for start, dur in tuples(found, "start_ns", "dur_ns")]


def test_a_first_operation_that_waits_long_waits_for_what_came_before_the_recording() -> None:
    assert [(0.1, 8.9)] == before(lasting(9 * MS, MS))


def test_what_another_stream_does_meanwhile_is_known() -> None:
    first, other = lasting(9 * MS, MS, stream=1), lasting(2 * MS, 3 * MS, stream=2)
    assert [(0.1, 1.9), (5, 4)] == before(first, other)


def test_a_later_operation_of_a_stream_waits_for_nothing_from_before() -> None:
    assert [] == before(lasting(MS // 2, MS), lasting(9 * MS, MS))


# What goes on when the recording ends.


def goes_on(*calls: pd.DataFrame, moments: tuple[pd.Series, ...] = ()) -> list[tuple[Any, ...]]:
    """A kernel of rank 0 works from 10 to 30 ns."""
    found = completeness.open_ends(
        kernels(lasting(10, 20)), COPIES.empty(), list(calls), list(moments)
    )
    return tuples(found, "rank", "name", "first_ns", "start_ns", "dur_ns")


def test_a_range_goes_on_from_the_last_begin_of_a_call_to_its_own_end() -> None:
    called = api_calls(lasting(5, 3), lasting(40, 3))
    assert [(0, "main", 10, 40, 60)] == goes_on(ranges(lasting(0, 100, "main")), called)


def test_what_goes_on_is_counted_from_the_end_of_the_work_on_the_gpu() -> None:
    assert [(0, "main", 10, 30, 70)] == goes_on(ranges(lasting(0, 100, "main")))


def test_a_sample_of_the_cpu_is_an_event_too() -> None:
    samples = pd.Series({0: 95}).rename_axis("rank")
    found = goes_on(ranges(lasting(0, 100, "main")), moments=(samples,))
    assert [(0, "main", 10, 95, 5)] == found


def test_of_a_rank_without_work_nobody_asks_what_goes_on() -> None:
    assert [] == goes_on(ranges(lasting(0, 100, "main", rank=1)))


# Operations without a call.


def uncalled(of_gpu: list[dict[str, Any]], *called: int, **more: Any) -> tuple[int, int]:
    """How many of these operations lack their call, of how many; those in `called` have one."""
    work = kernels(*({**each, "correlation": i, **more} for i, each in enumerate(of_gpu)))
    calls = api_calls(*(lasting(i * MS, 1000, LAUNCH, correlation=i) for i in called))
    missing, total = completeness.without_call(work, COPIES.empty(), calls)
    return len(missing), total


APART = [lasting(10 * i * MS, MS) for i in range(6)]  # the GPU waits 9 ms before each
TIGHT = [lasting(i * MS, MS - 10_000) for i in range(6)]  # 10 us: a queue


def test_operations_that_the_gpu_waited_for_were_not_queued_before_the_recording() -> None:
    assert (3, 6) == uncalled(APART, 3, 4, 5)


def test_operations_in_a_row_may_have_been_queued_before_the_recording() -> None:
    assert (0, 6) == uncalled(TIGHT, 3, 4, 5)


def test_operations_after_the_first_one_with_its_call_miss_theirs() -> None:
    assert (3, 6) == uncalled(TIGHT, 0, 1, 2)


def test_where_no_operation_has_its_call_the_gpu_waited_for_all_or_for_none() -> None:
    assert (6, 6) == uncalled(APART, 17)
    assert (0, 6) == uncalled(TIGHT, 17)


def test_no_call_is_expected_of_the_nodes_of_a_graph() -> None:
    assert (0, 0) == uncalled(APART, 0, in_graph=True)


def test_the_gpu_waits_before_an_operation_since_the_last_one_of_its_own_ended() -> None:
    work = kernels(lasting(0, 5), lasting(2, 1), lasting(9, 1), lasting(8, 1, gpu=1))
    found = completeness.waits_before(work.iloc[[0, 1, 2, 3]], work)
    assert [(0, 0), (2, 0), (5, 4), (8, 0)] == tuples(
        found.sort_values(["gpu", "start_ns"]).assign(start_ns=found["start_ns"]),
        "start_ns",
        "dur_ns",
    )
