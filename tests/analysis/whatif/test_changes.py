"""What each change does to a small program, and what no change can be."""

from __future__ import annotations

from typing import Any

import pytest
from frames import api_calls, copies, kernels, ranges

from perfkit.analysis.whatif import replay
from perfkit.analysis.whatif.changes import Change, Communication, Copies, Host, Kernels, Launches, Synchronisations
from perfkit.tables import COPIES

US = 1_000


def row(start_us: int, end_us: int, correlation: int = -1, **more: Any) -> dict[str, Any]:
    """An interval in us."""
    return {"start_ns": start_us * US, "dur_ns": (end_us - start_us) * US, "correlation": correlation, **more}


def four(measure: Change) -> tuple[float, ...]:
    """Low, span and high, us, of four kernels of 5 us launched every 20 us, [10, 15) to [70, 75)."""
    work = kernels(*(row(20 * i + 10, 20 * i + 15, i, name="ab"[i // 2]) for i in range(4)))
    calls = api_calls(*(row(20 * i, 20 * i + 6, i) for i in range(4)), row(76, 80, name="cudaDeviceSynchronize"))
    found = replay(work, COPIES.empty(), calls, changes=[measure])
    return found.low_ns / US, found.span_ns / US, found.high_ns / US


@pytest.mark.parametrize(
    ("measure", "expected_us"),
    [
        # One launch at 0: [10, 30) without a distance, as none was ever queued.
        (Launches("graph"), (20, 20, 20)),
        # One kernel as long as the four. In pairs, the second is called 20 us after the first, if the CPU's work in a
        # pair goes, or in the worst case 14 us later: [10, 20) and [30, 40), or [44, 54).
        (Launches("fused"), (20, 20, 20)),
        (Launches("fused", at_most=2), (30, 30, 44)),
        # Two launches, the second 20 us after the first: [10, 20) and [30, 40), if the CPU's work in a pair goes.
        (Launches("graph", at_most=2), (30, 30, 30)),
        # Only the first two are one: [10, 20), then [30, 35), [50, 55).
        (Launches("graph", pattern="a"), (45, 45, 45)),
        # 14 us of work between two launches is too much.
        (Launches("graph", at_most_gap_ns=13_999), (65, 65, 65)),
        # Without its work the CPU calls every 6 us.
        (Host(0, pattern=""), (23, 23, 23)),
        (Host(0.5, pattern=""), (44, 44, 44)),
        # No range, no loading.
        (Host(0), (65, 65, 65)),
        (Communication(), (65, 65, 65)),
    ],
)
def test_host_bound(measure: Change, expected_us: tuple[int, ...]) -> None:
    """Kernels wait for the CPU: by hand in the comment of each case."""
    assert expected_us == four(measure)


def loading(*changes: Change) -> float:
    """Span, us: batches are loaded [20, 120) and [140, 240), kernels [10, 18), [130, 138), [250, 258)."""
    calls = api_calls(*(row(at, at + 5, i) for i, at in enumerate((0, 120, 240))))
    work = kernels(*(row(at + 10, at + 18, i) for i, at in enumerate((0, 120, 240))))
    spans = ranges(row(20, 120, name="next_batch"), row(140, 240, name="next_batch"), row(0, 300, name="epoch"))
    frame = spans.drop(columns="correlation", errors="ignore")
    return replay(work, COPIES.empty(), calls, changes=changes, ranges=frame).span_ns / US


def test_loading() -> None:
    """100 us of each gap is loading, 15 is other work.

    Not hidden and twice as fast it saves 2 x 50 us. One process in the background, from 0 on, has batches at 100 and
    200: the last kernel is called at 200, and starts at 210. Four have them at 25 and 50: called at 50, it starts at
    60. Hidden altogether by many: calls at 0, 20, 40, and the last kernel [50, 58).
    """
    assert 248 == loading()
    assert 148 == loading(Host(0.5))
    assert 208 == loading(Host(workers=1))
    assert 58 == loading(Host(workers=4))
    assert 48 == loading(Host(workers=100)) == loading(Host(0))
    assert 248 == loading(Host(0, pattern="checkpoint"))


def copied(*changes: Change) -> tuple[float, ...]:
    """Low, span and high, us: a copy in [10, 60) that its call waits for, a kernel [75, 95), a copy out [100, 110)."""
    calls = api_calls(
        row(0, 62, 1, name="cudaMemcpy"),
        row(65, 70, 2),
        row(72, 77, 3, name="cudaMemcpyAsync"),
        row(78, 115, name="cudaDeviceSynchronize"),
        row(120, 125, 4),
    )
    moves = copies(row(10, 60, 1), row(97, 107, 3, direction="D2H", src_memory="device", dst_memory="pinned"))
    work = kernels(row(75, 95, 2), row(130, 140, 4))
    found = replay(work, moves, calls, changes=changes)
    return found.low_ns / US, found.span_ns / US, found.high_ns / US


def test_copies() -> None:
    """By hand.

    As it was: 130 us. Half as long, the first copy ends at 35 and all else is 25 us sooner: 105; both, the kernel to
    be waited for too, 5 more: 100. Overlapped, the call costs what a launch does, 5 us: the kernel is called at 8, and
    starts at 18; the synchronisation is over at 18 + 20 + 2 + 10 + 8 = 58 and the last kernel ends at 83 - 10 = 73.
    """
    assert 130 == copied()[1]
    assert 105 == copied(Copies(factor=0.5, direction="H2D"))[1]
    assert 100 == copied(Copies(factor=0.5))[1]
    low, span, high = copied(Copies("overlapped", direction="H2D"))
    assert low <= span < high < 130
    assert 73 == span


def test_removed_copies_take_nothing() -> None:
    """Without the copy in, its call, and the synchronisation's wait for the copy out: nothing is left but kernels."""
    assert copied(Copies("removed"))[1] < copied(Copies("overlapped"))[1]


def test_removed_copies_in_a_graph() -> None:
    """Changes add up: without the copy in, the rest is one graph up to the synchronisation, and one kernel after it."""
    both: list[Change] = [Copies("removed"), Launches("graph")]
    assert copied(*both)[1] <= copied(Copies("removed"))[1]
    assert copied(*both)[1] == copied(*reversed(both))[1]


def test_communication_beside() -> None:
    """a [10, 60), all-reduce [62, 112), b [114, 164): b need not wait, and all is over at 112 or, at worst, 164."""
    work = kernels(row(10, 60, 1), row(62, 112, 2, family="communication"), row(114, 164, 3))
    calls = api_calls(row(0, 5, 1), row(6, 11, 2), row(12, 17, 3))
    found = replay(work, COPIES.empty(), calls, changes=[Communication()])
    assert (102, 102, 154) == (found.low_ns / US, found.span_ns / US, found.high_ns / US)
    assert 127 - 10 == replay(work, COPIES.empty(), calls, changes=[Communication(1.3)]).span_ns / US


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Kernels(-1), "factor: -1 is not 0 or more"),
        (lambda: Kernels(float("nan")), "factor: nan is not 0 or more"),
        (lambda: Kernels(1, pattern="("), r"pattern: '\(' is not a regular expression"),
        (lambda: Kernels(1, family="gem"), "family: 'gem' is not one of .*gemm"),
        (lambda: Copies("gone"), "measure: 'gone' is not one of faster, overlapped, removed"),
        (lambda: Copies(factor=float("inf")), "factor: inf"),
        (lambda: Copies(direction="up"), "direction: 'up' is not one of H2D"),
        (lambda: Launches("merged"), "measure: 'merged' is not one of fused, graph"),
        (lambda: Launches(at_most=-1), "at_most: -1 is not 0 or more"),
        (lambda: Launches(at_most_gap_ns=-1), "at_most_gap_ns: -1 is not 0 or more"),
        (lambda: Host(-0.1), "factor: -0.1"),
        (lambda: Host(workers=-1), "workers: -1 is not 0 or more"),
        (lambda: Synchronisations("["), r"pattern: '\['"),
        (lambda: Communication(-2), "factor: -2"),
    ],
)
def test_what_no_change_can_be(make: Any, message: str) -> None:
    """Wrong arguments are refused when the change is made, with the legal values."""
    with pytest.raises(ValueError, match=message):
        make()
