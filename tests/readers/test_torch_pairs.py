"""Events of a PyTorch trace that are written as begin and end, or written twice (made files)."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from readers import torch_files as made

from perfkit.profile import Profile
from perfkit.readers import torch_trace
from perfkit.readers.torch_trace import stream
from perfkit.readers.torch_trace.stream import Text

LOST = "begins of events without an end, or ends without a begin, are left out"
AGAIN = "events that are written again, alike in all, are left out"


def halves(event: made.Event, **end: Any) -> list[made.Event]:
    """The begin and the end of a complete event; the end has its thread and time, and what is given."""
    begin = {key: value for key, value in event.items() if key != "dur"}
    place = {"pid": event["pid"], "tid": event["tid"], "ts": event["ts"] + event["dur"]}
    return [{**begin, "ph": "B"}, {"ph": "E", **place, **end}]


def in_halves(events: list[made.Event]) -> list[made.Event]:
    """The events of a trace as begins and ends, in the order of their times; ends come last, the inner ones first."""
    whole = [event for event in events if event["ph"] == "X"]
    numbered = enumerate(whole)
    parts = [
        (part["ts"], part["ph"] == "B", number if part["ph"] == "B" else -number, part)
        for number, event in numbered
        for part in halves(event)
    ]
    return [part for *_, part in sorted(parts, key=lambda entry: entry[:3])]


def read(folder: Path, events: list[made.Event]) -> Profile:
    return torch_trace.read(made.printed(folder / "trace.json", made.trace(*events)))


def same(one: Profile, other: Profile) -> None:
    assert sorted(one.loaders) == sorted(other.loaders)
    for name in one.loaders:
        pd.testing.assert_frame_equal(one.table(name), other.table(name), check_exact=True)


NESTED = [
    made.op("outer", 1.0, 20.125),
    made.op("inner", 2.5, 3.001),
    made.call("cudaLaunchKernel", 6.0, 1.5, 4),
    made.kernel("work", 9.0, 5.0, 4),
    made.kernel("work", 14.25, 5.0, 5),
]


def test_begins_and_ends_read_as_complete_events(tmp_path: Path) -> None:
    same(read(tmp_path, NESTED), read(tmp_path, in_halves(NESTED)))


def test_the_halves_of_an_event_may_stand_in_different_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = read(tmp_path, NESTED)
    monkeypatch.setattr(Text.__init__, "__defaults__", (300,))
    monkeypatch.setattr(stream, "NEAR_END", 600)
    same(plain, read(tmp_path, in_halves(NESTED)))


def test_an_end_may_name_its_event(tmp_path: Path) -> None:
    events = halves(made.op("a", 1.0, 2.0), name="a", cat="cpu_op")
    assert ["a"] == read(tmp_path, events).table("OPS")["name"].tolist()


@pytest.mark.parametrize("count", [1, 3])
def test_begins_without_an_end_are_told(count: int, tmp_path: Path) -> None:
    begun = [halves(made.op("a", 50.0, 2.0))[0]] * count
    assert f"{LOST} ({count})" in read(tmp_path, [*NESTED, *begun]).notes


def test_ends_without_a_begin_are_told(tmp_path: Path) -> None:
    ended = [halves(made.op("a", 50.0, 2.0))[1]]
    assert f"{LOST} (1)" in read(tmp_path, [*NESTED, *ended]).notes


def test_an_end_of_another_name_ends_nothing(tmp_path: Path) -> None:
    crossed = halves(made.op("a", 50.0, 2.0), name="b")
    profile = read(tmp_path, [*NESTED, *crossed])
    assert f"{LOST} (2)" in profile.notes
    assert "a" not in set(profile.table("OPS")["name"])


@pytest.mark.parametrize(
    "doubled",
    [[*NESTED, *NESTED], [event for event in NESTED for _ in range(2)]],
    ids=["the whole twice", "each twice"],
)
def test_events_that_are_written_twice_count_once(doubled: list[Any], tmp_path: Path) -> None:
    profile = read(tmp_path, doubled)
    same(read(tmp_path, NESTED), profile)
    assert f"{AGAIN} (5)" in profile.notes


def test_one_kernel_that_is_written_twice_counts_once(tmp_path: Path) -> None:
    profile = read(tmp_path, [*NESTED, NESTED[3]])
    assert 2 == len(profile.table("KERNELS"))
    assert f"{AGAIN} (1)" in profile.notes


def test_collectives_that_are_written_twice_count_once(tmp_path: Path) -> None:
    kernel = made.kernel(made.NCCL, 1.0, 2.0, 3, **made.message())
    profile = read(tmp_path, [kernel, kernel])
    assert 1 == len(profile.table("COLLECTIVES"))
    assert f"{AGAIN} (1)" in profile.notes


def test_two_operators_that_look_alike_are_two(tmp_path: Path) -> None:
    profile = read(tmp_path, [*NESTED, made.op("view", 3.0, 0.0), made.op("view", 3.0, 0.0)])
    assert 4 == len(profile.table("OPS"))
    assert not any(AGAIN in note for note in profile.notes)


def test_kernels_that_differ_in_their_stream_are_two(tmp_path: Path) -> None:
    other = made.kernel("work", 9.0, 5.0, 4, stream=8)
    assert 3 == len(read(tmp_path, [*NESTED, other]).table("KERNELS"))
