"""Windows and the numbering of devices."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from frames import copies, kernels

from perfkit.analysis.intervals import bounds, cut, devices, ends, spans
from perfkit.tables import COPIES, KERNELS


def shuffled(frame: pd.DataFrame, seed: int = 0) -> pd.DataFrame:
    """The rows in random order, as a user's own filter or concatenation may leave them."""
    return frame.sample(frac=1, random_state=seed).reset_index(drop=True)


def many(seed: int, count: int = 60) -> pd.DataFrame:
    """Kernels of 3 ranks with 2 GPUs each, at random times."""
    random = np.random.default_rng(seed)
    columns = ("rank", "gpu", "start_ns", "dur_ns")
    values = zip(*(random.integers(0, high, count).tolist() for high in (3, 2, 100, 20)), strict=True)
    return kernels(*(dict(zip(columns, row, strict=True)) for row in values))


@pytest.mark.parametrize("window", [(5, 5), (6, 5)])
def test_a_window_that_does_not_end_after_it_starts(window: tuple[int, int]) -> None:
    """An empty or reversed window is refused by every function that takes one."""
    with pytest.raises(ValueError, match=r"does not end after it starts"):
        bounds(window)
    with pytest.raises(ValueError, match=r"does not end after it starts"):
        cut(KERNELS.empty(), window)
    with pytest.raises(ValueError, match=r"does not end after it starts"):
        ends(KERNELS.empty(), window)
    with pytest.raises(ValueError, match=r"does not end after it starts"):
        spans([], [], 0, window)


def test_a_window_in_fractions_of_a_nanosecond() -> None:
    """Times stay integers: a window of floats is refused, one of numpy integers is not."""
    with pytest.raises(ValueError, match=r"window: \(0.5, 2\) is not two integers"):
        bounds((0.5, 2))
    assert bounds((np.int64(1), np.int32(2))) == (1, 2)


def test_cut_shortens_at_both_edges() -> None:
    """[0,30), [20,40), [50,60) in the window [10,25): [10,25) and [20,25) remain."""
    frame = kernels(*({"start_ns": start, "dur_ns": dur} for start, dur in [(0, 30), (20, 20), (50, 10)]))
    found = cut(frame, (10, 25))
    assert found[["start_ns", "dur_ns"]].to_numpy().tolist() == [[10, 15], [20, 5]]
    KERNELS.check(found)
    assert frame["start_ns"].tolist() == [0, 20, 50]


def test_cut_keeps_an_empty_interval_inside_only() -> None:
    """Of empty intervals at 9, 10, 19 and 20 the window [10,20) keeps 10 and 19."""
    frame = kernels(*({"start_ns": start, "dur_ns": 0} for start in (9, 10, 19, 20)))
    assert cut(frame, (10, 20))["start_ns"].tolist() == [10, 19]


def test_cut_without_need_returns_the_frame_itself() -> None:
    """No window, or one that holds everything, copies nothing."""
    frame = kernels({"start_ns": 10, "dur_ns": 10})
    assert cut(frame, None) is frame
    assert cut(frame, (10, 20)) is frame


def test_cut_of_an_empty_table() -> None:
    """An empty table stays empty and of its type."""
    assert len(COPIES.check(cut(COPIES.empty(), (0, 1)))) == 0


@pytest.mark.parametrize("seed", range(3))
def test_ends_agree_with_cut(seed: int) -> None:
    """Where an operation has time in the window, both functions cut it alike; elsewhere end <= start."""
    frame = many(seed)
    start, end = ends(frame, (30, 70))
    shown = cut(frame, (30, 70))
    shown = shown[shown["dur_ns"] > 0]
    assert shown["start_ns"].tolist() == start[end > start].tolist()
    assert shown["dur_ns"].tolist() == (end - start)[end > start].tolist()


def test_ends_without_window() -> None:
    """Without a window the ends are start_ns and start_ns + dur_ns."""
    start, end = ends(kernels({"start_ns": 3, "dur_ns": 4}), None)
    assert (start.tolist(), end.tolist()) == ([3], [7])


def test_devices_of_two_tables_are_numbered_together() -> None:
    """A device that is in one table only has a number too; the pairs ascend, an unknown GPU (-1) first."""
    index, (of_kernels, of_copies) = devices(
        kernels(*({"rank": rank, "gpu": gpu, "start_ns": 0, "dur_ns": 1} for rank, gpu in [(0, 1), (0, -1), (2, 0)])),
        copies({"rank": 1, "gpu": 3, "start_ns": 0, "dur_ns": 1}, {"rank": 2, "gpu": 0, "start_ns": 0, "dur_ns": 1}),
    )
    assert index.to_numpy().tolist() == [[0, -1], [0, 1], [1, 3], [2, 0]]
    assert index.dtypes.astype(str).tolist() == ["int32", "int32"]
    assert (of_kernels.tolist(), of_copies.tolist()) == ([0, 1, 3], [2, 3])


@pytest.mark.parametrize("seed", range(3))
def test_devices_give_every_row_its_own_pair(seed: int) -> None:
    """index[group] is the row's (rank, gpu), sorted or not."""
    frame = many(seed)
    for rows in (frame, shuffled(frame, seed)):
        index, (group,) = devices(rows)
        assert rows[["rank", "gpu"]].to_numpy().tolist() == index.to_numpy()[group].tolist()


def test_devices_of_empty_tables() -> None:
    """Empty tables have no device."""
    index, groups = devices(KERNELS.empty(), COPIES.empty())
    assert (len(index), list(index)) == (0, ["rank", "gpu"])
    assert [len(group) for group in groups] == [0, 0]


@pytest.mark.parametrize("seed", range(3))
def test_spans_against_a_loop(seed: int) -> None:
    """Each device's span runs from its first start to its last end over all tables, sorted or not."""
    frames = [many(seed), shuffled(many(seed + 10), seed), KERNELS.empty()]
    index, groups = devices(*frames)
    start, end = spans(frames, groups, len(index), None)
    rows = [row for frame in frames for row in frame.itertuples()]
    for number, (rank, gpu) in enumerate(index.to_numpy()):
        own = [(row.start_ns, row.start_ns + row.dur_ns) for row in rows if (row.rank, row.gpu) == (rank, gpu)]
        assert (min(own)[0], max(last for _, last in own)) == (start[number], end[number])


def test_spans_with_a_window_are_the_window() -> None:
    """A chosen window is the span of every device."""
    start, end = spans([], [], 2, (3, 9))
    assert (start.tolist(), end.tolist()) == ([3, 3], [9, 9])
