"""Any window of a run against `timeline.bins` and against counting row by row, on random and on real tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from frames import copies, kernels
from real import WITH_KERNELS

import perfkit
from perfkit.analysis import timeline
from perfkit.analysis.lanes import Lanes, lane
from perfkit.selection import named

DEVICES = [(0, 0), (0, 1), (3, 0)]
NAMES = ["alpha", "beta", "gamma", None]
FAMILIES = ["gemm", "communication", "other"]
PATTERNS = ["", "a", "*ET*", "full 1", "nothing"]
CHOICES: list[dict[str, Any]] = [
    {},
    {"window": (50, 300)},
    {"window": (120, 121), "ranks": (0,)},
    {"window": (-90, 1000), "ranks": (3, 0), "gpus": (1,)},
    {"window": (390, 2000), "gpus": (0,)},
    {"window": (0, 70), "ranks": (3,), "gpus": (1,)},
]


def rows(frame: pd.DataFrame) -> list[list[Any]]:
    """The rows as lists, None where a value is missing."""
    return frame.astype(object).where(frame.notna(), None).to_numpy().tolist()


def drawn(seed: int, *, serial: bool, count: int = 90, devices: int = 3) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Random kernels and copies; some last 0 ns, and unless serial most overlap in their stream."""
    random = np.random.default_rng(seed)
    texts: list[dict[str, Any]] = [{"name": name, "full_name": f"full {n}"} for name in NAMES for n in range(2)]
    kernel, copy = [], []
    for number in range(count):
        rank, gpu = DEVICES[random.integers(devices)]
        start, longest = (4 * number, 5) if serial else (int(random.integers(4 * count)), 60)
        span = {"start_ns": start, "dur_ns": int(random.integers(longest)), "rank": rank, "gpu": gpu}
        span |= {"stream": int(random.integers(7, 9)), "correlation": number}
        if number % 3:
            kernel.append(span | texts[random.integers(8)] | {"family": FAMILIES[random.integers(3)]})
        else:
            copy.append(span | {"direction": ["H2D", "memset"][random.integers(2)]})
    return kernels(*kernel), copies(*copy)


def kept(frame: pd.DataFrame, ranks: tuple[int, ...], gpus: tuple[int, ...]) -> pd.DataFrame:
    """The rows of some ranks and GPUs."""
    on_ranks = frame["rank"].isin(ranks) if ranks else True
    return frame[on_ranks & (frame["gpu"].isin(gpus) if gpus else frame["gpu"].notna())]


def cut(frame: pd.DataFrame, table: pd.DataFrame, window: tuple[int, int]) -> pd.DataFrame:
    """The rows with time in the window, row by row, with that time as `inside_ns` and their `row` in the table."""
    spans = zip(frame["start_ns"].tolist(), frame["dur_ns"].tolist(), strict=True)
    inside = [max(min(start + dur, window[1]) - max(start, window[0]), 0) for start, dur in spans]
    found = frame.assign(inside_ns=np.array(inside, np.int64), row=table.index.get_indexer(frame.index))
    return found[found["inside_ns"] > 0]


def check(lanes: Lanes, every: tuple[pd.DataFrame, pd.DataFrame], pattern: str, **choice: Any) -> None:
    """Every answer is that of `timeline.bins`, or of counting row by row, on the tables cut down to the choice."""
    seen, names = choice.get("window") or lanes.span, lanes.matching(pattern) if pattern else None
    kernel, copy = (kept(frame, choice.get("ranks", ()), choice.get("gpus", ())) for frame in every)
    kernel = kernel[named(kernel, pattern)]
    for bins in (13, 320):
        expected = timeline.bins(kernel, copy, bins=bins, window=seen)
        pd.testing.assert_frame_equal(expected, lanes.busy(bins=bins, names=names, **choice))
    both = {"KERNELS": cut(kernel, every[0], seen), "COPIES": cut(copy, every[1], seen)}
    assert sum(map(len, both.values())) == lanes.count(names=names, **choice)
    check_totals(lanes.totals(names=names, **choice), both["KERNELS"])
    check_intervals(lanes.intervals(names=names, most=10_000, **choice), both)


def check_totals(found: pd.DataFrame, inside: pd.DataFrame) -> None:
    """Count and time of each name, that of kernels without one too, and falling time."""
    expected: dict[object, list[int]] = {}
    for name, ns in zip(inside["name"].astype(object).fillna(""), inside["inside_ns"], strict=True):
        count, total = expected.get(name, [0, 0])
        expected[name] = [count + 1, total + ns]
    names = found["name"].astype(object).fillna("")
    assert expected == dict(zip(names, found[["count", "total_ns"]].to_numpy().tolist(), strict=True))
    assert found["total_ns"].is_monotonic_decreasing
    assert found["share_frac"].tolist() == (found["total_ns"] / max(found["total_ns"].sum(), 1)).tolist()


def check_intervals(found: pd.DataFrame, both: dict[str, pd.DataFrame]) -> None:
    """The operations are those with time in the window, each as in the row of its table, in order."""
    place = ["rank", "gpu", "stream", "kind", "start_ns"]
    pd.testing.assert_frame_equal(found, found.sort_values(place, kind="stable", ignore_index=True))
    columns = ["rank", "gpu", "stream", "start_ns", "dur_ns", "correlation", "row"]
    texts = {"KERNELS": ["name", "family"], "COPIES": ["direction"]}
    for table, frame in both.items():
        of_table = found[found["table"] == table].sort_values("row")
        assert frame[columns].to_numpy().tolist() == of_table[columns].to_numpy().tolist()
        assert rows(frame[texts[table]]) == rows(of_table[["name", "family"][: len(texts[table])]])


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("serial", [False, True])
def test_against_the_tables(serial: bool, choice: dict[str, Any]) -> None:
    """Whatever the window, devices and names, with streams in order and not, the answers are those of the tables."""
    every = drawn(CHOICES.index(choice), serial=serial)
    lanes = Lanes(*every)
    for pattern in PATTERNS:
        check(lanes, every, pattern, **choice)


@pytest.mark.parametrize("serial", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_sums_of_blocks(monkeypatch: pytest.MonkeyPatch, seed: int, serial: bool) -> None:
    """Sums of whole blocks of rows, and bins summed up part by part, give the same answers."""
    monkeypatch.setattr(lane, "BLOCK", 32)
    every = drawn(seed, serial=serial, count=1200, devices=1)
    lanes, random = Lanes(*every), np.random.default_rng(seed)
    for pattern in PATTERNS[:3]:
        first, last = sorted(random.integers(*lanes.span, 2).tolist())
        check(lanes, every, pattern, window=(first, last + 1))


@pytest.mark.parametrize("capture", WITH_KERNELS)
def test_real_captures(profiles: Path, capture: str) -> None:
    """All answers about the first kernel's name in the middle third of a capture are those of its tables."""
    run = perfkit.load(profiles / "nsys" / capture)
    every = run.kernels, run.copies
    lanes = Lanes(*every)
    first, last = lanes.span
    third = (last - first) // 3
    pd.testing.assert_frame_equal(timeline.bins(*every, bins=320), lanes.busy())
    for pattern in ("", str(run.kernels["full_name"].iloc[0]).replace("*", "?")):
        check(lanes, every, pattern, window=(first + third, last - third))


def test_order_of_rows_does_not_matter() -> None:
    """Shuffled tables give the same answers, and are left as they were."""
    every = drawn(5, serial=False)
    mixed = tuple(frame.sample(frac=1, random_state=1) for frame in every)
    before = [frame.copy() for frame in mixed]
    found, expected = Lanes(*mixed), Lanes(*every)
    pd.testing.assert_frame_equal(expected.busy(), found.busy())
    pd.testing.assert_frame_equal(expected.totals(), found.totals())
    listed = [lanes.intervals().sort_values("correlation", ignore_index=True) for lanes in (expected, found)]
    pd.testing.assert_frame_equal(*(frame.drop(columns="row") for frame in listed))
    for frame, copied in zip(mixed, before, strict=True):
        pd.testing.assert_frame_equal(frame, copied)
