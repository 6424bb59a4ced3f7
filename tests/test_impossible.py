"""Which rows hold times that cannot be, and which look alike and can."""

from typing import Any

from frames import api_calls, copies, kernels, profile

from perfkit.impossible import Reason
from perfkit.profile import Profile
from perfkit.tables import API_CALLS, COPIES, KERNELS

MS = 1_000_000
MB = 1_000_000


def left_out(table: Any, frame: Any) -> dict[int, Reason]:
    return dict(table.believed(frame)[1])


def test_a_copy_that_runs_over_the_next_one_of_its_stream_is_left_out() -> None:
    rows = (
        {"start_ns": i * MS, "dur_ns": 50 * MS if i == 1 else 1000, "correlation": i + 1}
        for i in range(4)
    )
    assert {1: Reason.OVERLAP} == left_out(COPIES, copies(*rows))


def test_copies_of_one_graph_launch_may_run_at_once() -> None:
    rows = ({"start_ns": i * MS, "dur_ns": 50 * MS, "correlation": 7} for i in range(4))
    assert {} == left_out(COPIES, copies(*rows))


def test_pages_of_unified_memory_may_move_at_once() -> None:
    rows = ({"start_ns": i * MS, "dur_ns": 50 * MS, "correlation": 0} for i in range(4))
    assert {} == left_out(COPIES, copies(*rows))


def test_a_large_copy_slower_than_any_link_is_left_out() -> None:
    """9.7 MB in 3.15 s are 3 MB/s."""
    slow = {"start_ns": 0, "dur_ns": 3150 * MS, "bytes": 9_700_000, "correlation": 1}
    assert {0: Reason.RATE} == left_out(COPIES, copies(slow))


def test_a_large_copy_faster_than_any_link_is_left_out() -> None:
    """100 MB in 1 µs are 100 TB/s."""
    assert {0: Reason.RATE} == left_out(
        COPIES, copies({"start_ns": 0, "dur_ns": 1000, "bytes": 100 * MB, "correlation": 1})
    )


def test_a_slow_copy_of_pageable_memory_stays() -> None:
    """9.7 MB in 10 ms are 0.97 GB/s."""
    assert {} == left_out(
        COPIES, copies({"start_ns": 0, "dur_ns": 10 * MS, "bytes": 9_700_000, "correlation": 1})
    )


def test_a_small_copy_may_take_long() -> None:
    assert {} == left_out(
        COPIES, copies({"start_ns": 0, "dur_ns": 10 * MS, "bytes": 8, "correlation": 1})
    )


def test_kernels_without_a_length_at_one_time_are_left_out() -> None:
    zero = [{"start_ns": 0, "dur_ns": 0}] * 3
    assert {0, 1, 2} == set(left_out(KERNELS, kernels(*zero, {"start_ns": MS, "dur_ns": 9})))


def test_calls_without_a_length_in_one_tick_of_a_coarse_clock_stay() -> None:
    ticks = [{"start_ns": 5, "dur_ns": 0}] * 14
    assert {} == left_out(API_CALLS, api_calls({"start_ns": 0, "dur_ns": 1}, *ticks))


def test_many_calls_without_a_length_at_the_first_time_are_left_out() -> None:
    zero = [{"start_ns": 0, "dur_ns": 0}] * 12
    assert 12 == len(left_out(API_CALLS, api_calls(*zero, {"start_ns": 9, "dur_ns": 1})))


def long_copy() -> Profile:
    rows = (
        {"start_ns": i * MS, "dur_ns": 50 * MS if i == 1 else 1000, "correlation": i + 1}
        for i in range(4)
    )
    return profile(COPIES=copies(*rows))


def test_a_profile_tells_how_long_a_row_that_it_leaves_out_can_have_taken() -> None:
    """The copy at 1 ms ended before the one at 2 ms began."""
    gone = long_copy().left_out("COPIES")
    assert [(1 * MS, 1 * MS)] == list(zip(gone["start_ns"], gone["at_most_ns"], strict=True))


def test_a_table_of_a_profile_lacks_the_row() -> None:
    assert [0, 2 * MS, 3 * MS] == long_copy().table("COPIES")["start_ns"].tolist()
