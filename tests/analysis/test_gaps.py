"""Idle gaps: where they are, what they waited for, and their sums."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd
import pytest
from frames import api_calls, copies, kernels, ranges

from perfkit.analysis.causes import CAUSES, determinable
from perfkit.analysis.gaps import GAPS, histogram, idle_by_cause, idle_gaps, longest
from perfkit.errors import SchemaError
from perfkit.tables import API_CALLS, COPIES, KERNELS, RANGES

US = 1_000


def kernel(start_us: int, end_us: int, correlation: int = -1, **more: Any) -> dict[str, Any]:
    """A kernel from start to end, us."""
    return {"start_ns": start_us * US, "dur_ns": (end_us - start_us) * US, "correlation": correlation, **more}


def call(start_us: int, end_us: int, name: str, correlation: int = -1, **more: Any) -> dict[str, Any]:
    """A call, or a range, from start to end, us."""
    more = {"correlation": correlation, **more} if correlation >= 0 else more
    return {"start_ns": start_us * US, "dur_ns": (end_us - start_us) * US, "name": name, **more}


def times_us(gaps: pd.DataFrame) -> list[tuple[int, int]]:
    """Start and length of the gaps, us."""
    return list(zip(gaps["start_ns"] // US, gaps["dur_ns"] // US, strict=True))


def gap_after_100(launch_us: int, start_us: int, *more: dict[str, Any], **named: pd.DataFrame) -> pd.Series:
    """The gap between a kernel that ends at 100 us and one launched and started later."""
    work = kernels(kernel(0, 100), kernel(start_us, start_us + 5, 7))
    calls = api_calls(call(launch_us, launch_us + 4, "cudaLaunchKernel", 7), *more)
    gaps = idle_gaps(work, COPIES.empty(), calls, **named)
    assert len(gaps) == 1
    return gaps.iloc[0]


@pytest.mark.parametrize(
    ("launch_us", "start_us", "cause", "length_us"),
    [(120, 150, "host_wait", 50), (90, 120, "kernel_wait", 20), (90, 150, "other", 50), (100, 129, "kernel_wait", 29)],
)
def test_cause_follows_from_the_launch_call(launch_us: int, start_us: int, cause: str, length_us: int) -> None:
    """Device dry from 100 us: a call after that is a host wait; before it, 30 us part kernel wait and other."""
    gap = gap_after_100(launch_us, start_us)
    assert (cause, length_us * US, 100 * US) == (gap["cause"], gap["dur_ns"], gap["start_ns"])


def test_gap_of_exactly_the_limit_is_other() -> None:
    """A gap of 30 us with an early call is no kernel wait: 130 - 100 is not below 30."""
    assert gap_after_100(90, 130)["cause"] == "other"


@pytest.mark.parametrize(("launch_us", "cause"), [(138, "other"), (141, "other"), (146, "host_wait")])
def test_a_wait_of_a_sliver_does_not_explain_a_gap(launch_us: int, cause: str) -> None:
    """The call of 4 us returns 42, 45 or 50 us into a gap of 500 us: from a tenth on the host has to do with it."""
    assert cause == gap_after_100(launch_us, 600)["cause"]


def test_a_call_that_lasts_as_long_as_the_gap_explains_it() -> None:
    """The launch begins 1 us into the gap and returns 499 us into it, as when it loads its module: a host wait."""
    work = kernels(kernel(0, 100), kernel(600, 605, 7))
    gaps = idle_gaps(work, COPIES.empty(), api_calls(call(101, 599, "cudaLaunchKernel", 7)))
    assert ["host_wait"] == gaps["cause"].tolist()


def test_gap_without_launch_call_is_unattributed() -> None:
    """An operation without a call of its process and rank leaves its gap without cause, process and thread."""
    work = kernels(kernel(0, 10), kernel(20, 30, 5))
    strangers = api_calls(
        call(12, 14, "cudaLaunchKernel", 5, process=2),
        call(12, 14, "cudaLaunchKernel", 5, rank=1),
        call(12, 14, "x", 6),
    )
    (gap,) = idle_gaps(work, COPIES.empty(), strangers).to_dict("records")
    assert (gap["cause"], gap["process"], gap["thread"]) == ("unattributed", -1, -1)
    assert pd.isna(gap["detail"])


def test_window_wider_than_the_operations_has_edges() -> None:
    """Operations over [10, 70) us in a window of 0..100 us leave edges of 10 and 30 us: 40 us idle."""
    work = kernels(kernel(10, 30), kernel(20, 40, stream=8), kernel(35, 60))
    gaps = idle_gaps(work, copies(kernel(55, 70)), API_CALLS.empty(), window=(0, 100 * US))
    assert times_us(gaps) == [(0, 10), (70, 30)]
    assert gaps["cause"].tolist() == ["edge", "edge"]


def test_without_window_there_are_no_edges() -> None:
    """The window is then the span of operations, which begins and ends with one."""
    gaps = idle_gaps(kernels(kernel(10, 30), kernel(50, 60)), COPIES.empty(), API_CALLS.empty())
    assert times_us(gaps) == [(30, 20)]
    assert gaps["cause"].tolist() == ["unattributed"]


def test_edge_before_the_first_operation_stays_an_edge_though_it_has_a_call() -> None:
    """What happened before the window is not known, so the edge has neither cause nor thread."""
    calls = api_calls(call(5, 8, "cudaLaunchKernel", 1))
    (gap,) = idle_gaps(kernels(kernel(10, 20, 1)), COPIES.empty(), calls, window=(0, 20 * US)).to_dict("records")
    assert (gap["cause"], gap["thread"]) == ("edge", -1)


def test_operations_are_cut_at_the_window() -> None:
    """Of [0, 40) and [60, 90) us, the window [20, 70) sees all but the gap [40, 60)."""
    work = kernels(kernel(0, 40), kernel(60, 90))
    assert times_us(idle_gaps(work, COPIES.empty(), API_CALLS.empty(), window=(20 * US, 70 * US))) == [(40, 20)]
    late = idle_gaps(work, COPIES.empty(), API_CALLS.empty(), window=(20 * US, 60 * US))
    assert (times_us(late), late["cause"].tolist()) == ([(40, 20)], ["edge"])


def test_device_idle_in_the_whole_window_is_one_edge() -> None:
    """GPU 1 works only before the window, which is then one gap of its full length."""
    work = kernels(kernel(100, 200), kernel(0, 50, gpu=1))
    gaps = idle_gaps(work, COPIES.empty(), API_CALLS.empty(), window=(100 * US, 200 * US))
    assert gaps[["gpu", "start_ns", "dur_ns", "cause"]].to_numpy().tolist() == [[1, 100 * US, 100 * US, "edge"]]


def test_devices_and_ranks_are_apart_but_processes_share_a_device() -> None:
    """A kernel of another process fills the gap of a device; one of another GPU or rank does not."""
    hole = [kernel(0, 10), kernel(30, 40)]
    filled = kernels(*hole, kernel(10, 30, process=9))
    apart = kernels(*hole, kernel(10, 30, gpu=1), kernel(10, 30, rank=1))
    assert idle_gaps(filled, COPIES.empty(), API_CALLS.empty()).empty
    gaps = idle_gaps(apart, COPIES.empty(), API_CALLS.empty())
    assert gaps[["rank", "gpu"]].to_numpy().tolist() == [[0, 0]]


def test_copies_and_memsets_end_gaps() -> None:
    """The gap before a memset belongs to the call of that memset."""
    calls = api_calls(call(15, 16, "cudaMemsetAsync", 3, thread=8))
    (gap,) = idle_gaps(kernels(kernel(0, 10)), copies(kernel(20, 30, 3, direction="memset")), calls).to_dict("records")
    assert (gap["cause"], gap["thread"]) == ("host_wait", 8)


def test_empty_operation_neither_ends_nor_splits_a_gap() -> None:
    """A copy of 0 ns inside a gap covers nothing."""
    gaps = idle_gaps(kernels(kernel(0, 10), kernel(30, 40)), copies(kernel(20, 20)), API_CALLS.empty())
    assert times_us(gaps) == [(10, 20)]


def test_of_operations_that_start_together_one_with_a_call_decides() -> None:
    """Three kernels end the gap: the first has no call, of the others the call first in the table counts."""
    work = kernels(kernel(0, 10), *(kernel(50, 60, c, stream=c) for c in (9, 3, 2)))
    calls = api_calls(call(20, 21, "cudaLaunchKernel", 2), call(25, 26, "cudaLaunchKernel", 3, thread=5))
    assert idle_gaps(work, COPIES.empty(), calls)["thread"].tolist() == [1]


WAIT: dict[str, tuple[list[dict[str, Any]], list[dict[str, Any]], str]] = {
    "half is enough": ([call(100, 150, "cudaStreamSynchronize")], [], "sync"),
    "less than half": ([call(100, 149, "cudaStreamSynchronize")], [], "host_code"),
    "only after the gap began": ([call(0, 149, "cudaDeviceSynchronize")], [], "host_code"),
    "two make half": ([call(100, 125, "cuCtxSynchronize"), call(130, 155, "cudaEventSynchronize")], [], "sync"),
    "nested counts once": (
        [call(100, 140, "cudaDeviceSynchronize"), call(105, 135, "cuCtxSynchronize")],
        [],
        "host_code",
    ),
    "copy that blocks": ([call(90, 170, "cudaMemcpy")], [], "sync"),
    "copy that does not": ([call(90, 170, "cudaMemcpyAsync")], [], "launch"),
    "another thread": ([call(100, 200, "cudaDeviceSynchronize", thread=2)], [], "host_code"),
    "another process": ([call(100, 200, "cudaDeviceSynchronize", process=2)], [], "host_code"),
    "memory": ([call(100, 190, "cudaMalloc")], [], "memory"),
    "launches": ([call(t, t + 9, "cudaLaunchKernel") for t in range(100, 200, 10)], [], "launch"),
    "loading": ([], [call(50, 160, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__")], "data_loading"),
    "loading, two words": ([], [call(100, 160, "Data loading")], "data_loading"),
    "loading elsewhere": ([], [call(100, 160, "Data loading", thread=2)], "host_code"),
    "other range": ([], [call(100, 200, "Batch 7")], "host_code"),
    "first match": ([call(120, 180, "cudaFree"), call(100, 160, "cudaStreamSynchronize")], [], "sync"),
    "loading before memory": ([call(100, 170, "cudaHostAlloc")], [call(100, 160, "next_batch")], "data_loading"),
}


@pytest.mark.parametrize("case", WAIT)
def test_detail_of_a_host_wait_is_what_covers_half_of_it(case: str) -> None:
    """The wait is [100, 200) us of the launching thread; its detail is the first class that covers 50 us."""
    calls, named, detail = WAIT[case]
    assert detail == gap_after_100(200, 210, *calls, ranges=ranges(*named))["detail"]


def test_api_is_the_call_that_covers_most_of_the_wait() -> None:
    """[100, 110) of the first call, [120, 140) of the second and nothing of the launch lie in the wait."""
    more = call(0, 110, "cudaMalloc"), call(120, 140, "cudaEventQuery")
    assert gap_after_100(200, 210, *more)["api"] == "cudaEventQuery"
    assert pd.isna(gap_after_100(200, 210)["api"])
    assert pd.isna(gap_after_100(90, 210, *more)["api"])


def test_range_is_the_innermost_over_half_of_the_wait() -> None:
    """Of nested ranges over 100, 60 and 40 us of a 100 us wait the second is innermost with at least half."""
    named = ranges(call(0, 300, "step"), call(120, 180, "load"), call(130, 170, "decode"), call(181, 190, "after"))
    assert gap_after_100(200, 210, ranges=named)["range"] == "load"
    assert pd.isna(gap_after_100(200, 210, ranges=ranges(call(100, 149, "short")))["range"])
    assert pd.isna(gap_after_100(200, 210)["range"])


def test_call_recorded_after_its_operation_began_cannot_prolong_the_wait() -> None:
    """With clocks that disagree the wait ends with the gap: [100, 120) us, of which the sync covers half."""
    assert gap_after_100(130, 120, call(100, 110, "cudaStreamSynchronize"))["detail"] == "sync"


def test_at_least_ns_keeps_the_longer_gaps() -> None:
    """Of gaps of 5, 10 and 20 us those of at least 10 us are returned."""
    work = kernels(kernel(0, 10), kernel(15, 20), kernel(30, 40), kernel(60, 70))
    gaps = idle_gaps(work, COPIES.empty(), API_CALLS.empty(), at_least_ns=10 * US)
    assert times_us(gaps) == [(20, 10), (40, 20)]


def test_empty_tables_give_no_gap() -> None:
    """The result has the columns and dtypes of GAPS all the same, with a window or without."""
    for window in (None, (0, 10)):
        gaps = idle_gaps(KERNELS.empty(), COPIES.empty(), API_CALLS.empty(), window=window, ranges=RANGES.empty())
        assert GAPS.check(gaps).empty
    for table in (idle_by_cause(gaps), histogram(gaps)):
        assert table.empty
        assert table["total_ns"].dtype == "int64"


@pytest.mark.parametrize("position", range(4))
def test_wrong_table_raises(position: int) -> None:
    """Each of the four tables is checked."""
    tables = [KERNELS.empty(), COPIES.empty(), API_CALLS.empty(), RANGES.empty()]
    tables[position] = tables[position].drop(columns="dur_ns")
    with pytest.raises(SchemaError, match="'dur_ns' is missing"):
        idle_gaps(*tables[:3], ranges=tables[3])


def test_wrong_arguments_raise() -> None:
    """A negative length and a window that ends before it starts are refused."""
    tables = KERNELS.empty(), COPIES.empty(), API_CALLS.empty()
    with pytest.raises(ValueError, match="at_least_ns: -1 is negative"):
        idle_gaps(*tables, at_least_ns=-1)
    with pytest.raises(ValueError, match="does not end after it starts"):
        idle_gaps(*tables, window=(5, 5))


@pytest.mark.parametrize("summarise", [idle_by_cause, histogram])
def test_summaries_check_their_table(summarise: Callable[[pd.DataFrame], pd.DataFrame]) -> None:
    """Both summaries take GAPS and nothing else."""
    with pytest.raises(SchemaError, match="'cause' is missing"):
        summarise(GAPS.empty().drop(columns="cause"))


def gaps_of(*rows: tuple[int, int, str]) -> pd.DataFrame:
    """GAPS with gpu, length and cause; gaps that wait for the host are details of sync."""
    frame = pd.DataFrame(rows, columns=["gpu", "dur_ns", "cause"])
    frame["detail"] = frame["cause"].map({"host_wait": "sync"})
    frame["cause"] = pd.Categorical(frame["cause"], CAUSES)
    return GAPS.make(frame.assign(rank=0, start_ns=range(len(frame)), api=None, range=None, process=1, thread=1))


def test_idle_by_cause_adds_up_per_device() -> None:
    """GPU 0 idles 30 + 10 ns for the host of 50 ns in all: 0.8; GPU 1 only waits for kernels: 1.0."""
    gaps = gaps_of((0, 30, "host_wait"), (0, 10, "host_wait"), (0, 10, "edge"), (1, 7, "kernel_wait"))
    found = idle_by_cause(gaps)
    expected = [[0, "host_wait", 2, 40, 30, 0.8], [0, "edge", 1, 10, 10, 0.2], [1, "kernel_wait", 1, 7, 7, 1.0]]
    assert expected == found.drop(columns=["rank", "detail"]).to_numpy().tolist()
    assert found["detail"].isna().tolist() == [False, True, True]


def test_histogram_has_edges_at_1_2_5() -> None:
    """Gaps of 2, 4, 30 and 50 ns lie in [2, 5), [2, 5), [20, 50) and [50, 100); [5, 10) and [10, 20) are empty."""
    found = histogram(gaps_of((0, 2, "other"), (0, 4, "edge"), (0, 50, "other"), (1, 30, "other")))
    expected = [
        [2, 5, "other", 1, 2],
        [2, 5, "edge", 1, 4],
        [5, 10, "other", 0, 0],
        [5, 10, "edge", 0, 0],
        [10, 20, "other", 0, 0],
        [10, 20, "edge", 0, 0],
        [20, 50, "other", 1, 30],
        [20, 50, "edge", 0, 0],
        [50, 100, "other", 1, 50],
        [50, 100, "edge", 0, 0],
    ]
    assert expected == found.to_numpy().tolist()


def test_causes_are_determinable_up_to_a_fifth_without_call() -> None:
    """1 of 5 operations without call is accepted, 2 of 6 are not, and the sentence says so."""
    calls = api_calls(*(call(c, c + 1, "cudaLaunchKernel", c) for c in range(4)))
    work = [kernel(10 + c, 11 + c, c) for c in range(5)]
    assert determinable(kernels(*work), COPIES.empty(), calls).yes
    lacking = determinable(kernels(*work), copies(kernel(90, 91)), calls)
    assert (lacking.yes, lacking.why) == (False, "2 of 6 operations have no launch call")


def test_graphs_without_operations_make_causes_undeterminable() -> None:
    """A graph launch whose kernels were not recorded leaves gaps that are none."""
    work, launch = kernels(kernel(10, 11, 1)), call(0, 1, "cudaLaunchKernel", 1)
    recorded = api_calls(launch, call(2, 3, "cudaGraphLaunch", 2))
    answer = determinable(work, COPIES.empty(), recorded)
    assert (answer.yes, answer.why) == (False, "1 of 1 graph launches have no operation")
    nodes = kernels(kernel(10, 11, 1), kernel(12, 13, 2, in_graph=True), kernel(13, 14, 2, in_graph=True))
    assert determinable(nodes, COPIES.empty(), recorded).yes


def test_capture_without_operations_has_no_causes() -> None:
    """Nothing ran on a GPU: there is nothing to determine."""
    answer = determinable(KERNELS.empty(), COPIES.empty(), api_calls(call(0, 1, "cudaLaunchKernel", 1)))
    assert (answer.yes, answer.why) == (False, "the capture holds no operation of a GPU")


def test_the_longest_gaps_in_their_order() -> None:
    """Of 5, 30, 20, 30 and 20 us the longest three: both of 30 as they follow each other, then the first of 20."""
    ends = [(0, 10), (15, 20), (50, 60), (80, 90), (120, 130), (150, 160)]
    gaps = idle_gaps(kernels(*(kernel(*times) for times in ends)), COPIES.empty(), API_CALLS.empty())
    assert [5, 30, 20, 30, 20] == (gaps["dur_ns"] // US).tolist()
    assert [1, 3, 2] == longest(gaps, 3).index.tolist()
    whole = gaps.sort_values("dur_ns", ascending=False, kind="stable")
    pd.testing.assert_frame_equal(whole, longest(gaps, 9))
    with pytest.raises(ValueError, match="most: 0 is not at least 1"):
        longest(gaps, 0)
