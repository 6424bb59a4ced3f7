"""Replaying programs small enough to be timed by hand, and refusing what cannot be replayed."""

from __future__ import annotations

from typing import Any

import pandas as pd
import pytest
from frames import api_calls, kernels

from perfkit.analysis.whatif import Replay, changed, prepared, replay
from perfkit.analysis.whatif.changes import Change, Host, Kernels, Synchronisations
from perfkit.errors import PerfkitError, SchemaError
from perfkit.tables import API_CALLS, COPIES, KERNELS

US = 1_000
SPANS = ["measured_ns", "unchanged_ns", "span_ns", "low_ns", "high_ns"]


def row(start_us: int, end_us: int, correlation: int = -1, **more: Any) -> dict[str, Any]:
    """An interval in us."""
    return {"start_ns": start_us * US, "dur_ns": (end_us - start_us) * US, "correlation": correlation, **more}


WORK = kernels(row(10, 110, 1, name="a"), row(112, 162, 2, name="b"), row(190, 200, 3, name="c"))
CALLS = api_calls(row(0, 5, 1), row(8, 13, 2), row(15, 170, name="cudaStreamSynchronize"), row(180, 185, 3))


def us(found: Replay) -> tuple[float, ...]:
    """All spans of the run, us."""
    return tuple(getattr(found, span) / US for span in SPANS)


def span_us(*changes: Change) -> float:
    """Span of the program above under changes, us."""
    return replay(WORK, COPIES.empty(), CALLS, changes=changes).span_ns / US


def test_unchanged() -> None:
    """From 10 to 200 us: every wait is explained, so that all five spans are 190 us."""
    assert (190, 190, 190, 190, 190) == us(replay(WORK, COPIES.empty(), CALLS))


@pytest.mark.parametrize(
    ("changes", "expected_us"),
    [
        # a [10, 210), b 2 us behind it [212, 312); the call returns 8 us later at 320; c is called 10 us later, starts
        # 10 us after that at 340, and ends at 360.
        ((Kernels(2),), 350),
        ((Kernels(1),), 190),
        # a [10, 60), b [62, 112), return at 120, c called at 130 [140, 150).
        ((Kernels(0.5, pattern="^a$"),), 140),
        # a takes no time; b starts 10 us after its call at 8 [18, 68), return at 76, c called at 86 [96, 106).
        ((Kernels(0, pattern="^a$"),), 96),
        # The call takes no time at 15; c, called at 25, waits for its stream: [164, 174).
        ((Synchronisations(),), 164),
        # As before with a [10, 210), b [212, 312), c [314, 334).
        ((Synchronisations(), Kernels(2)), 324),
        ((Kernels(2), Synchronisations()), 324),
    ],
)
def test_changed(changes: tuple[Change, ...], expected_us: int) -> None:
    """Two kernels, a synchronisation and a third kernel, timed by hand in the comment of each case."""
    assert expected_us == span_us(*changes)


def test_touched() -> None:
    """Each change tells how many kernels or calls it concerns."""
    changes: list[Change] = [Kernels(0.5, pattern="a|b"), Kernels(0.5, family="gemm"), Synchronisations()]
    changes.append(Synchronisations("Device"))
    assert (2, 0, 1, 0) == replay(WORK, COPIES.empty(), CALLS, changes=changes).touched


def test_low_and_high() -> None:
    """A fourth kernel comes 100 us late for no reason: 2 of 1002 us. Low leaves 100 out, high keeps them.

    It is called at 205, could start at 215 and does at 315; a sync waits for its end at 10,315 and c comes 30 later.
    """
    late = kernels(*WORK[["start_ns", "dur_ns", "correlation"]].to_dict("records"), row(315, 10_315, 4))
    calls = api_calls(*CALLS[["start_ns", "dur_ns", "correlation", "name"]].to_dict("records"), row(205, 210, 4))
    found = replay(late, COPIES.empty(), calls)
    assert (10_305, 10_205, 10_205, 10_205, 10_305) == us(found)


def test_a_delay_that_nothing_explains_is_refused() -> None:
    """The third kernel starts 9 us of 199 later than its call allows by more than the GPU's own 30 us: 40 of 230."""
    late = kernels(row(10, 110, 1), row(112, 162, 2), row(230, 240, 3))
    with pytest.raises(
        PerfkitError, match=r"takes 190,000 ns in the model, 230,000 ns in the capture.*Record all GPUs"
    ):
        replay(late, COPIES.empty(), CALLS)


def test_the_gpu_has_delays_of_its_own() -> None:
    """Up to 30 us after its release an operation is merely slow to start, and remains so."""
    late = kernels(row(10, 110, 1), row(112, 162, 2), row(218, 228, 3))
    assert (218, 218, 218) == us(replay(late, COPIES.empty(), CALLS))[:3]


def test_another_stream_explains_a_delay() -> None:
    """The kernel on stream 8 starts 5 us after a of stream 7 ended, 95 after its call allows: it waited for a."""
    work = kernels(row(10, 110, 1), row(115, 165, 2, stream=8))
    calls = api_calls(row(0, 5, 1), row(8, 13, 2))
    # With a twice as long it starts at 215; low knows of no wait, and has it where it was as its stream's first.
    assert (155, 155, 255) == us(replay(work, COPIES.empty(), calls, changes=[Kernels(2, rows=[0])]))[:3]


def test_threads_pass_a_baton() -> None:
    """Thread 2 begins when thread 1 has called three times, and thread 1 goes on when thread 2 has.

    Work of 6 us lies between any two calls, and none of it is 36 us long. Without it there are 9 calls of 4 us, the
    last one at 32 us, and 5 us until its kernel starts: [37, 40), the first one at 5.
    """
    first = [row(10 * i, 10 * i + 4, i + 1) for i in range(3)]
    second = [row(30 + 10 * i, 34 + 10 * i, i + 4, thread=2) for i in range(3)]
    third = [row(60 + 10 * i, 64 + 10 * i, i + 7) for i in range(3)]
    calls = api_calls(*first, *second, *third)
    work = kernels(*(row(10 * i + 5, 10 * i + 8, i + 1) for i in range(9)))
    found = replay(work, COPIES.empty(), calls)
    assert 83 == found.span_ns / US
    work_less = replay(work, COPIES.empty(), calls, changes=[Host(0, pattern="")])
    assert 35 == work_less.span_ns / US


def test_a_collective_waits_for_the_last_rank() -> None:
    """Rank 0 comes at 10, rank 1 at 60, both leave at 100; if rank 1 came 50 us sooner, both would leave at 50."""
    communicates = {"name": "ncclKernel", "family": "communication"}
    work = kernels(
        row(10, 100, 1, **communicates),
        row(10, 60, 1, rank=1, stream=7),
        row(60, 100, 2, rank=1, stream=7, **communicates),
    )
    calls = api_calls(row(0, 5, 1), row(0, 5, 1, rank=1), row(5, 10, 2, rank=1))
    found = replay(work, COPIES.empty(), calls, changes=[Kernels(0, family="other")])
    assert [90, 90] == (found.ranks["unchanged_ns"] / US).tolist()
    # Its call is at 5, and the least latency seen is 10: it comes at 15, and takes the 40 us it took.
    assert [45, 45] == (found.ranks["span_ns"] / US).tolist()


def test_an_operation_in_the_window() -> None:
    """From 100 to 300 us the program starts b and c: 88 us."""
    assert (88, 88, 88) == us(replay(WORK, COPIES.empty(), CALLS, window=(100 * US, 300 * US)))[:3]


def test_shifting_all_times_changes_nothing() -> None:
    """A replay depends on distances only."""
    shift = 7_000_000_000
    moved = (WORK.assign(start_ns=WORK["start_ns"] + shift), CALLS.assign(start_ns=CALLS["start_ns"] + shift))
    assert us(replay(WORK, COPIES.empty(), CALLS, changes=[Kernels(3)])) == us(
        replay(moved[0], COPIES.empty(), moved[1], changes=[Kernels(3)])
    )


def test_arguments_are_not_changed() -> None:
    """The tables are the same afterwards."""
    before = WORK.copy(deep=True), CALLS.copy(deep=True)
    replay(WORK, COPIES.empty(), CALLS, changes=[Kernels(3), Synchronisations()])
    pd.testing.assert_frame_equal(before[0], WORK)
    pd.testing.assert_frame_equal(before[1], CALLS)


def test_answers_of_a_prepared_run_do_not_meet() -> None:
    """Each is that of a replay of its own, timed by hand above, whatever was asked before; unchanged it stays 190."""
    run = prepared(WORK, COPIES.empty(), CALLS)
    asked: list[tuple[Change, ...]] = [(Kernels(2),), (Synchronisations(),), (Synchronisations(), Kernels(2)), ()]
    assert [350, 164, 324, 190] == [changed(run, changes).span_ns / US for changes in asked]
    assert us(replay(WORK, COPIES.empty(), CALLS, changes=asked[0])) == us(changed(run, asked[0]))


@pytest.mark.parametrize("calls", [API_CALLS.empty(), CALLS])
def test_empty(calls: pd.DataFrame) -> None:
    """Nothing was run: no rank, and spans of 0."""
    found = replay(KERNELS.empty(), COPIES.empty(), calls, changes=[Kernels(2), Synchronisations()])
    assert (0, 0, 0, 0, 0) == us(found)
    assert ["rank", *SPANS] == found.ranks.columns.tolist()
    assert ["int32", *["int64"] * 5] == found.ranks.dtypes.astype(str).tolist()
    assert found.ranks.empty


def test_no_calls() -> None:
    """Kernels without any call are refused, with what to record."""
    with pytest.raises(PerfkitError, match=r"holds no CUDA call.*nsys profile --trace=cuda"):
        replay(WORK, COPIES.empty(), API_CALLS.empty())


def test_calls_of_other_kernels() -> None:
    """So are kernels most of which have no call of their own."""
    with pytest.raises(PerfkitError, match=r"2 of 3 operations have no launch call"):
        replay(WORK, COPIES.empty(), CALLS.head(1))


def test_graphs_in_part() -> None:
    """The GPU worked in a graph from 50 to 150 us, and no operation tells of it."""
    work = kernels(row(10, 50, 1), row(150, 200, 1))
    with pytest.raises(PerfkitError, match=r"100,000 ns of 190,000 ns lie inside CUDA graphs.*--cuda-graph-trace=node"):
        replay(work, COPIES.empty(), api_calls(row(0, 5, 1, name="cudaGraphLaunch")))


def test_wrong_tables() -> None:
    """A table in the wrong place is named."""
    with pytest.raises(SchemaError, match="KERNELS"):
        replay(CALLS, COPIES.empty(), CALLS)
    with pytest.raises(SchemaError, match="COPIES"):
        replay(WORK, CALLS, CALLS)
    with pytest.raises(SchemaError, match="API_CALLS"):
        replay(WORK, COPIES.empty(), WORK)
    with pytest.raises(SchemaError, match="RANGES"):
        replay(WORK, COPIES.empty(), CALLS, ranges=WORK)


def test_wrong_window() -> None:
    """A window must end after it starts."""
    with pytest.raises(ValueError, match="does not end after it starts"):
        replay(WORK, COPIES.empty(), CALLS, window=(5, 5))
