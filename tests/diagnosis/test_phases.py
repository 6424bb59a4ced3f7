"""What is judged, and the sentence about what is outside: small runs with known times."""

from diagnosis.traces import MS, view
from frames import copies, kernels

import perfkit
from perfkit.diagnosis.phases import judged, phases


def looped(*, pause: int = 0, start_up: int = 0) -> perfkit.Selection:
    """Ten repetitions of three kernels, 1 ms each, every 4 ms; copies before and a pause in the middle, ms."""
    begun = [start_up + 4 * n + pause * (n >= 5) for n in range(10)]
    rows = [{"start_ns": (at + n) * MS, "dur_ns": MS, "name": "abc"[n]} for at in begun for n in range(3)]
    first = [{"start_ns": 0, "dur_ns": start_up * MS // 2}] if start_up else []
    return view(kernels=kernels(*rows), copies=copies(*first))


def test_a_recording_of_a_loop_is_judged_whole() -> None:
    assert judged(looped()) == ({0: ((0, 39 * MS),)}, "")


def test_start_up_is_outside() -> None:
    found = judged(looped(start_up=41))
    assert found.windows == {0: ((41 * MS, 80 * MS),)}
    assert found.outside == "Start-up takes 41.0 of 80.0 ms, once per process."


def test_a_pause_parts_what_is_judged() -> None:
    found = judged(looped(pause=1000))
    assert found.windows == {0: ((0, 19 * MS), (1020 * MS, 1039 * MS))}
    assert found.outside == "The GPUs pause once, for 1.00 s at 19.0 ms."


def test_a_window_in_the_start_up_is_judged_itself() -> None:
    chosen = perfkit.select(looped(start_up=41).run, window=[MS, 5 * MS])
    assert judged(chosen) == ({0: ((MS, 5 * MS),)}, "")


def test_a_window_cuts_the_phases_and_their_busy_time() -> None:
    chosen = perfkit.select(looped(start_up=41).run, window=[40 * MS, 45 * MS])
    rows = phases(chosen)[["phase", "start_ns", "dur_ns", "busy_ns"]]
    assert rows.to_numpy().tolist() == [["start_up", 40 * MS, MS, 0], ["loop", 41 * MS, 4 * MS, 3 * MS]]
