"""What changes of a program promise: by hand, and against the simulated program that was changed."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from analysis.spans import us
from frames import api_calls, copies, kernels, ranges
from planted.program import Settings, Simulated, simulated

from perfkit.analysis.whatif import Replay, replay
from perfkit.analysis.whatif.changes import (
    Change,
    Communication,
    Copies,
    Host,
    Kernels,
    Launches,
    Synchronisations,
)
from perfkit.analysis.whatif.program import DEVICE_SYNC, EVENT_SYNC, LAUNCH, recorded
from perfkit.errors import PerfkitError
from perfkit.tables import COPIES, KERNELS

US = 1_000
SLOW_HOST: dict[str, Any] = {"cpu_ns": 60_000, "kernel_ns": 20_000}


def spans(found: Replay) -> tuple[float, ...]:
    """Low, span and high, us."""
    return found.low_ns / US, found.span_ns / US, found.high_ns / US


def four(measure: Change) -> tuple[float, ...]:
    """Four kernels of 5 us launched every 20 us, [10, 15) to [70, 75)."""
    work = kernels(*(us(20 * i + 10, 20 * i + 15, i, name="ab"[i // 2]) for i in range(4)))
    calls = api_calls(
        *(us(20 * i, 20 * i + 6, i) for i in range(4)), us(76, 80, name="cudaDeviceSynchronize")
    )
    return spans(replay(work, COPIES.empty(), calls, changes=[measure]))


@pytest.mark.parametrize(
    ("measure", "expected_us"),
    [
        # One launch at 0: [10, 33) with the usual distance of 1 us, as none was ever queued.
        (Launches("graph"), (23, 23, 23)),
        # One kernel as long as the four. In pairs, the second is called 20 us after the first, if the CPU's work in a
        # pair goes, or in the worst case 14 us later: [10, 20) and [30, 40), or [44, 54).
        (Launches("fused"), (20, 20, 20)),
        (Launches("fused", at_most=2), (30, 30, 44)),
        # Two launches, the second 20 us after the first: [10, 21) and [30, 41), if the CPU's work in a pair goes.
        (Launches("graph", at_most=2), (31, 31, 31)),
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
    assert expected_us == four(measure)


def loading(*changes: Change) -> float:
    """Span, us: batches are loaded [20, 120) and [140, 240), kernels [10, 18), [130, 138), [250, 258)."""
    calls = api_calls(*(us(at, at + 5, i) for i, at in enumerate((0, 120, 240))))
    work = kernels(*(us(at + 10, at + 18, i) for i, at in enumerate((0, 120, 240))))
    named = ranges(
        us(20, 120, name="next_batch"), us(140, 240, name="next_batch"), us(0, 300, name="epoch")
    )
    return replay(work, COPIES.empty(), calls, changes=changes, ranges=named).span_ns / US


def test_loading() -> None:
    of = {Host(workers=n): span_us for n, span_us in ((1, 208), (4, 58), (100, 48))}
    of |= {Host(0): 48, Host(0, pattern="checkpoint"): 248}
    assert {Host(0.5): 148, **of} == {change: loading(change) for change in (Host(0.5), *of)}
    assert 248 == loading()


def copied(*changes: Change) -> tuple[float, ...]:
    """A copy in [10, 60) that its call waits for, a kernel [75, 95), a copy out [100, 110)."""
    calls = api_calls(
        *(us(0, 62, 1, name="cudaMemcpy"), us(65, 70, 2), us(72, 77, 3, name="cudaMemcpyAsync")),
        *(us(78, 115, name="cudaDeviceSynchronize"), us(120, 125, 4)),
    )
    moves = copies(
        us(10, 60, 1), us(97, 107, 3, direction="D2H", src_memory="device", dst_memory="pinned")
    )
    work = kernels(us(75, 95, 2), us(130, 140, 4))
    return spans(replay(work, moves, calls, changes=changes))


def test_copies_by_hand() -> None:
    # Half as long, the first copy ends at 35 and all else is 25 us sooner; both, the kernel too, 5 more.
    # Overlapped, the call costs what a launch does, 5 us: the kernel is called at 8, and starts at 18; the
    # synchronisation is over at 18 + 20 + 2 + 10 + 8 = 58 and the last kernel ends at 83 - 10 = 73.
    faster = Copies(factor=0.5, direction="H2D"), Copies(factor=0.5)
    assert [130, 105, 100] == [copied(*of)[1] for of in ((), faster[:1], faster[1:])]
    low, span, high = copied(Copies("overlapped", direction="H2D"))
    assert low <= span < high < 130
    assert 73 == span
    removed, graph = Copies("removed"), Launches("graph")
    assert copied(removed)[1] < copied(Copies("overlapped"))[1]
    assert copied(removed, graph)[1] <= copied(removed)[1]
    assert copied(removed, graph)[1] == copied(graph, removed)[1]


@pytest.mark.parametrize("name", ["cudaMemcpy", "cudaMemcpyAsync"])
def test_the_host_may_need_what_a_copy_brings_it(name: str) -> None:
    moved, calls = [], []
    for i, at in enumerate((0, 700)):
        calls += [
            us(at, at + 5, 3 * i),
            us(at + 5, at + (202 if name == "cudaMemcpy" else 10), 3 * i + 1, name=name),
        ]
        if name == "cudaMemcpyAsync":
            calls.append(us(at + 10, at + 202, 3 * i + 2, name="cudaStreamSynchronize"))
        moved.append(us(at + 100, at + 200, 3 * i + 1, direction="D2H", bytes=1_000_000))
    work = kernels(*(us(at, at + 100, 3 * i) for i, at in enumerate((0, 700))))
    tables = work, copies(*moved), api_calls(*calls)
    found = replay(*tables, changes=[Copies("overlapped")])
    assert found.measured_ns == found.high_ns == 900 * US
    assert found.low_ns < 750 * US
    assert found.high_ns > replay(*tables, changes=[Copies("removed")]).high_ns


def test_communication_beside() -> None:
    work = kernels(us(10, 60, 1), us(62, 112, 2, family="communication"), us(114, 164, 3))
    calls = api_calls(us(0, 5, 1), us(6, 11, 2), us(12, 17, 3))
    assert (102, 102, 154) == spans(replay(work, COPIES.empty(), calls, changes=[Communication()]))
    assert (
        127 - 10 == replay(work, COPIES.empty(), calls, changes=[Communication(1.3)]).span_ns / US
    )


@pytest.mark.parametrize(
    ("of", "given", "message"),
    [
        (Kernels, {"factor": -1}, "factor: -1 is not 0 or more"),
        (Kernels, {"factor": float("nan")}, "factor: nan is not 0 or more"),
        (Kernels, {"factor": 1, "pattern": "("}, r"pattern: '\(' is not a regular expression"),
        (Kernels, {"factor": 1, "family": "gem"}, "family: 'gem' is not one of .*gemm"),
        (Copies, {"measure": "gone"}, "measure: 'gone' is not one of faster, overlapped, removed"),
        (Copies, {"factor": float("inf")}, "factor: inf"),
        (Copies, {"direction": "up"}, "direction: 'up' is not one of H2D"),
        (Launches, {"measure": "merged"}, "measure: 'merged' is not one of fused, graph"),
        (Launches, {"at_most": -1}, "at_most: -1 is not 0 or more"),
        (Launches, {"at_most_gap_ns": -1}, "at_most_gap_ns: -1 is not 0 or more"),
        (Host, {"factor": -0.1}, "factor: -0.1"),
        (Host, {"workers": -1}, "workers: -1 is not 0 or more"),
        (Synchronisations, {"pattern": "["}, r"pattern: '\['"),
        (Communication, {"factor": -2}, "factor: -2"),
    ],
)
def test_what_no_change_can_be(of: Any, given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        of(**given)


PAIRS: dict[str, tuple[dict[str, Any], dict[str, Any], list[Change]]] = {
    "faster kernels": ({"kernel_ns": 100_000}, {"kernel_ns": 50_000}, [Kernels(0.5)]),
    "slower kernels": ({"cpu_ns": 30_000}, {"kernel_ns": 60_000}, [Kernels(2)]),
    "faster copies": (
        {"input_ns": 2_000_000},
        {"input_ns": 500_000},
        [Copies(factor=0.25, direction="H2D")],
    ),
    "copies beside": (
        {"input_ns": 1_000_000},
        {"prefetched": True},
        [Copies("overlapped", direction="H2D")],
    ),
    "graph": (SLOW_HOST, {"graph": True}, [Launches("graph")]),
    "fused": (SLOW_HOST, {"fused": 4}, [Launches("fused", at_most=4)]),
    "faster loading": ({"loading_ns": 1_500_000}, {"loading_ns": 750_000}, [Host(0.5)]),
    "hidden loading": ({"loading_ns": 1_500_000}, {"workers": 1}, [Host(workers=1)]),
    "loading remains slow": ({"loading_ns": 6_000_000}, {"workers": 1}, [Host(workers=1)]),
    "loading by four": ({"loading_ns": 6_000_000}, {"workers": 4}, [Host(workers=4)]),
    "no synchronisation": (
        {"sync_every": 2, "cpu_ns": 20_000},
        {"synchronises": False},
        [Synchronisations()],
    ),
    "fewer synchronisations": (
        {"sync_every": 2, "cpu_ns": 20_000},
        {"sync_every": 0},
        [Synchronisations("Stream")],
    ),
    "communication beside": ({"reduce_every": 5}, {"beside": True}, [Communication()]),
    "faster communication": (
        {"ranks": 2, "reduce_every": 5, "reduce_ns": 200_000, "slow_rank_frac": 0.3},
        {"reduce_ns": 100_000},
        [Kernels(0.5, family="communication")],
    ),
    "three at once": (
        {"loading_ns": 1_500_000, "sync_every": 2, "input_ns": 1_000_000},
        {"workers": 1, "sync_every": 0, "prefetched": True},
        [Host(workers=1), Synchronisations("Stream"), Copies("overlapped", direction="H2D")],
    ),
}


def predicted_ns(run: Simulated, *changes: Change) -> int:
    return replay(
        run.kernels, run.copies, run.api_calls, ranges=run.ranges, changes=changes
    ).span_ns


@pytest.mark.parametrize("pair", PAIRS)
def test_one_change(pair: str) -> None:
    before, after, changes = PAIRS[pair]
    run, truth = (
        simulated(Settings(**{"steps": 12, **values})) for values in (before, before | after)
    )
    assert run.span_ns == pytest.approx(predicted_ns(run), rel=0.02)
    assert truth.span_ns == pytest.approx(predicted_ns(run, *changes), rel=0.1)
    assert run.span_ns != pytest.approx(truth.span_ns, rel=0.01)


def test_a_faster_rank() -> None:
    before = Settings(ranks=2, reduce_every=5, slow_rank_frac=0.5)
    run, truth = simulated(before), simulated(replace(before, slow_rank_frac=0.0))
    slow = np.flatnonzero((run.kernels["rank"] == 1) & (run.kernels["family"] != "communication"))
    found = replay(run.kernels, run.copies, run.api_calls, changes=[Kernels(1 / 1.5, rows=slow)])
    assert truth.span_ns == pytest.approx(found.span_ns, rel=0.02)
    assert [0, 1] == found.ranks["rank"].tolist()
    assert (found.ranks["span_ns"] < 0.9 * found.ranks["measured_ns"]).all()


def test_the_change_that_does_not_matter() -> None:
    for values, change in (
        ({"kernel_ns": 100_000}, Host(0, pattern="")),
        (SLOW_HOST, Kernels(0.5)),
    ):
        run = simulated(Settings(**values, steps=12))
        assert run.span_ns == pytest.approx(predicted_ns(run, change), rel=0.02)


def test_windows_of_whole_steps() -> None:
    run = simulated(Settings(steps=12))
    calls = run.api_calls[run.api_calls["name"] == "cudaDeviceSynchronize"]
    ends = (calls["start_ns"] + calls["dur_ns"]).tolist()
    found = replay(
        run.kernels, run.copies, run.api_calls, window=(ends[3], ends[7]), changes=[Kernels(1)]
    )
    inside = run.kernels["start_ns"].between(ends[3], ends[7])
    assert (inside.sum(),) == found.touched
    assert found.measured_ns == pytest.approx(found.unchanged_ns, rel=0.02)
    assert found.measured_ns < ends[7] - ends[3]


def test_unrecorded_work_is_refused() -> None:
    run = simulated(Settings(input_ns=2_000_000, pageable=False, steps=12))
    with pytest.raises(PerfkitError, match="something that was not recorded"):
        replay(run.kernels, COPIES.empty(), run.api_calls)


# Work of 100 us on two streams; a call from 20 us on that returns 10 us after it; then a kernel called 10 us later.
WORK = kernels(us(10, 60, 1, name="a"), us(15, 110, 2, name="b", stream=8), us(140, 150, 3))


LAUNCHES = [us(0, 4, 1), us(5, 9, 2), us(130, 134, 3)]


def slower(pattern: str, factor: float, *calls: dict[str, Any]) -> Replay:
    changes = [Kernels(factor, pattern=pattern)]
    return replay(WORK, COPIES.empty(), api_calls(*LAUNCHES, *calls), changes=changes)


@pytest.mark.parametrize(
    ("name", "pattern", "factor", "expected_us"),
    [
        # b ends at 205, the call returns at 215, and the kernel starts 10 us after its call at 225: to 245 us.
        *(
            (f"{of}Synchronize", "b", 2, 235)
            for of in ("cudaStream", "cudaEvent", "cuCtx", "hipDevice")
        ),
        ("cudaFree", "b", 2, 235),
        # b ended last: a, on another stream, is waited for by a synchronisation of all streams only. a ends at 210, and
        # the kernel behind it in its stream 1 us, the usual distance, and 10 us later, or, if it had to be called yet,
        # at 210 + 10 + 10 + 10 + 10.
        ("cudaStreamSynchronize", "a", 4, 211),
        ("cudaDeviceSynchronize", "a", 4, 240),
        # Calls that do not wait take their time.
        ("cudaMalloc", "b", 2, 205 - 10),
    ],
)
def test_synchronisations(name: str, pattern: str, factor: float, expected_us: float) -> None:
    assert expected_us == slower(pattern, factor, us(20, 120, name=name)).span_ns / US


def test_a_synchronisation_in_vain_and_polling() -> None:
    assert 230 == slower("b", 2, us(115, 118, name="cudaStreamSynchronize")).span_ns / US
    found = slower("b", 2, us(115, 118, name="cudaEventSynchronize"))
    assert (195, 195, 230) == (found.low_ns / US, found.span_ns / US, found.high_ns / US)
    # b ends at 205; the polls are over 8 us later at 213, c is called at 225, starts at 235, and ends at 245.
    queries = (us(20 + 10 * i, 28 + 10 * i, name="cudaEventQuery") for i in range(10))
    assert 235 == slower("b", 2, *queries).span_ns / US
    two = api_calls(
        us(0, 8, name="cudaEventQuery"), us(10, 18, name="cudaEventQuery"), us(500, 508)
    )
    assert EVENT_SYNC not in recorded(KERNELS.empty(), COPIES.empty(), two).calls.kind


def test_copies_that_are_waited_for() -> None:
    for name, memory in (("cudaMemcpy", "pinned"), ("cudaMemcpyAsync", "pageable")):
        calls = api_calls(us(0, 5, 1), us(15, 75, 2, name=name), us(80, 85, 3))
        moves = copies(us(62, 72, 2, direction="D2H", dst_memory=memory))
        work = kernels(us(10, 60, 1), us(90, 100, 3))
        # The last kernel takes 10 us more, too.
        assert 90 + 50 + 10 == replay(work, moves, calls, changes=[Kernels(2)]).span_ns / US


def test_a_full_queue() -> None:
    # Launches take 4 us until 1,022 kernels of 100 us are in the queue, then as long as kernels do. With kernels of 1
    # us no queue builds up: the last of 1,300 is called at 5 x 1,299, starts 30 us later as the first, and takes 1.
    work = [us(30 + 100 * i, 130 + 100 * i, i) for i in range(1_300)]
    calls, at = [], 0
    for i in range(1_300):
        end = max(at + 4, 30 + 100 * (i - 1_022))
        calls.append(us(at, end, i))
        at = end + 1
    found = replay(kernels(*work), COPIES.empty(), api_calls(*calls), changes=[Kernels(0.01)])
    assert (130_000, 5 * 1_299 + 1) == (found.unchanged_ns / US, found.span_ns / US)


def test_calls_in_calls() -> None:
    inner = us(2, 8, 7, name="cuLaunchKernel"), us(10, 19, name="cuCtxSynchronize")
    calls = api_calls(us(0, 20), *inner, us(20, 20), us(30, 40))
    program = recorded(kernels(us(5, 18, 7)), COPIES.empty(), calls)
    assert [0] == program.ops.call.tolist()
    assert [DEVICE_SYNC, LAUNCH, LAUNCH] == program.calls.kind.tolist()
