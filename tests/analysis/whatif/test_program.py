"""What calls waited for: synchronisations of every kind, copies, full queues, polling; timed by hand."""

from __future__ import annotations

from typing import Any

import pytest
from analysis.spans import us
from frames import api_calls, copies, kernels

from perfkit.analysis.whatif import Replay, replay
from perfkit.analysis.whatif.changes import Kernels
from perfkit.analysis.whatif.program import DEVICE_SYNC, EVENT_SYNC, LAUNCH, recorded
from perfkit.tables import COPIES, KERNELS

US = 1_000


def row(start_us: int, end_us: int, correlation: int = -1, **more: Any) -> dict[str, Any]:
    return us(start_us, end_us, correlation=correlation, **more)


# Work of 100 us on two streams; a call from 20 us on that returns 10 us after it; then a kernel called 10 us later.
WORK = kernels(row(10, 60, 1, name="a"), row(15, 110, 2, name="b", stream=8), row(140, 150, 3))


LAUNCHES = [row(0, 4, 1), row(5, 9, 2), row(130, 134, 3)]


def slower(pattern: str, factor: float, *calls: dict[str, Any]) -> Replay:
    changes = [Kernels(factor, pattern=pattern)]
    return replay(WORK, COPIES.empty(), api_calls(*LAUNCHES, *calls), changes=changes)


@pytest.mark.parametrize(
    ("name", "pattern", "factor", "expected_us"),
    [
        # b ends at 205, the call returns at 215, and the kernel starts 10 us after its call at 225: to 245 us.
        *((f"{of}Synchronize", "b", 2, 235) for of in ("cudaStream", "cudaEvent", "cuCtx", "hipDevice")),
        ("cudaFree", "b", 2, 235),
        # b ended last: a, on another stream, is waited for by a synchronisation of all streams only. a ends at 210, and
        # the kernel behind it in its stream at 220 or, if it had to be called yet, at 210 + 10 + 10 + 10 + 10.
        ("cudaStreamSynchronize", "a", 4, 210),
        ("cudaDeviceSynchronize", "a", 4, 240),
        # Calls that do not wait take their time.
        ("cudaMalloc", "b", 2, 205 - 10),
    ],
)
def test_synchronisations(name: str, pattern: str, factor: float, expected_us: float) -> None:
    assert expected_us == slower(pattern, factor, row(20, 120, name=name)).span_ns / US


def test_a_synchronisation_in_vain_and_polling() -> None:
    assert 230 == slower("b", 2, row(115, 118, name="cudaStreamSynchronize")).span_ns / US
    found = slower("b", 2, row(115, 118, name="cudaEventSynchronize"))
    assert (195, 195, 230) == (found.low_ns / US, found.span_ns / US, found.high_ns / US)
    # b ends at 205; the polls are over 8 us later at 213, c is called at 225, starts at 235, and ends at 245.
    queries = (row(20 + 10 * i, 28 + 10 * i, name="cudaEventQuery") for i in range(10))
    assert 235 == slower("b", 2, *queries).span_ns / US
    two = api_calls(row(0, 8, name="cudaEventQuery"), row(10, 18, name="cudaEventQuery"), row(500, 508))
    assert EVENT_SYNC not in recorded(KERNELS.empty(), COPIES.empty(), two).calls.kind


def test_copies_that_are_waited_for() -> None:
    for name, memory in (("cudaMemcpy", "pinned"), ("cudaMemcpyAsync", "pageable")):
        calls = api_calls(row(0, 5, 1), row(15, 75, 2, name=name), row(80, 85, 3))
        moves = copies(row(62, 72, 2, direction="D2H", dst_memory=memory))
        work = kernels(row(10, 60, 1), row(90, 100, 3))
        # The last kernel takes 10 us more, too.
        assert 90 + 50 + 10 == replay(work, moves, calls, changes=[Kernels(2)]).span_ns / US


def test_a_full_queue() -> None:
    # Launches take 4 us until 1,022 kernels of 100 us are in the queue, then as long as kernels do. With kernels of 1
    # us no queue builds up: the last of 1,300 is called at 5 x 1,299, starts 30 us later as the first, and takes 1.
    work = [row(30 + 100 * i, 130 + 100 * i, i) for i in range(1_300)]
    calls, at = [], 0
    for i in range(1_300):
        end = max(at + 4, 30 + 100 * (i - 1_022))
        calls.append(row(at, end, i))
        at = end + 1
    found = replay(kernels(*work), COPIES.empty(), api_calls(*calls), changes=[Kernels(0.01)])
    assert (130_000, 5 * 1_299 + 1) == (found.unchanged_ns / US, found.span_ns / US)


def test_calls_in_calls() -> None:
    inner = row(2, 8, 7, name="cuLaunchKernel"), row(10, 19, name="cuCtxSynchronize")
    calls = api_calls(row(0, 20), *inner, row(20, 20), row(30, 40))
    program = recorded(kernels(row(5, 18, 7)), COPIES.empty(), calls)
    assert [0] == program.ops.call.tolist()
    assert [DEVICE_SYNC, LAUNCH, LAUNCH] == program.calls.kind.tolist()
