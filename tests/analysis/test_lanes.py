"""Any window of lanes, idle times and spans equals the analyses that look at every row."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from analysis.spans import call, loaded, span, us
from analysis.test_gaps import tables as made
from frames import api_calls, copies, kernels, lasting, tuples, types

from perfkit.analysis import gap_parts, timeline
from perfkit.analysis.causes import determinable, started_by
from perfkit.analysis.gaps import idle_gaps
from perfkit.analysis.lanes import Lanes, Launching, Spans, lane
from perfkit.analysis.lanes.idle import Idle
from perfkit.selection import named
from perfkit.tables import COPIES, KERNELS

Tables = tuple[pd.DataFrame, pd.DataFrame, pd.DataFrame, pd.DataFrame, pd.DataFrame]
SAMPLE = Path(__file__).parents[2] / "data" / "mlp_a100"
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


K1, K2 = us(10, 30, name="alpha", correlation=5), us(20, 40, name="beta", stream=8, correlation=6)
TOY = kernels(K1, K2, us(35, 60, name="gather", stream=9, family="communication", correlation=7))
COPY = copies(us(55, 70, correlation=9))
TOY_LANES = Lanes(TOY, COPY)


def rows(frame: pd.DataFrame) -> list[list[Any]]:
    """The rows as lists, None where a value is missing."""
    return frame.astype(object).where(frame.notna(), None).to_numpy().tolist()


def test_the_toy_timeline_by_hand() -> None:
    assert ((10_000, 70_000), [[0, 0]]) == (TOY_LANES.span, rows(TOY_LANES.devices))
    expected = [
        ["gather", "communication", 1, 25_000],
        ["alpha", "other", 1, 20_000],
        ["beta", "other", 1, 20_000],
    ]
    assert expected == rows(TOY_LANES.names)
    # What runs at the edge of 56 us is listed whole, with its row in its table.
    assert rows(TOY_LANES.intervals(window=(30_000, 56_000))) == [
        [0, 0, 7, "copy", 55_000, 15_000, "H2D", None, 9, 0, "COPIES"],
        [0, 0, 8, "computation", 20_000, 20_000, "beta", "other", 6, 1, "KERNELS"],
        [0, 0, 9, "communication", 35_000, 25_000, "gather", "communication", 7, 2, "KERNELS"],
    ]
    # Numbers beyond 32 bits stay exact: streams numbered by addresses, and 2**55 and 2**55 + 1 ns.
    every = kernels(us(0, 1, stream=-1), us(2, 3, stream=2**60), us(4, 5, stream=7))
    assert Lanes(every, COPIES.empty()).busy(bins=1)["stream"].tolist() == [-1, 7, 2**60]
    lanes = Lanes(kernels(span(0, 2**55), span(2**55, 2**56 + 1)), COPIES.empty())
    assert (
        [2**56 + 1] == lanes.totals()["total_ns"].tolist() == lanes.busy(bins=1)["busy_ns"].tolist()
    )


def test_another_thread_that_asks_changes_no_answer() -> None:
    """Whenever a window's sums are kept, another window is asked for at once, as by a dossier in its thread."""

    class Shared(Lanes):
        def __setattr__(self, name: str, value: Any) -> None:
            super().__setattr__(name, value)
            if name == "_last" and value[0] is not None and value[0][0] == (0, 10):
                assert 1 == self.count(window=(50, 60))

    lanes = Shared(kernels(span(0, 5), span(5, 10), span(50, 55)), COPIES.empty())
    assert [2, 2] == [lanes.count(window=(0, 10)), lanes.count(window=(0, 10))]


def test_a_family_of_its_own_in_one_name() -> None:
    every = kernels(K1, us(40, 45, name="alpha", family="communication"))
    lanes = Lanes(every, COPIES.empty())
    chosen = lanes.matching("", ["communication"])
    assert lanes.busy(bins=1, names=chosen)["kind"].tolist() == ["communication"]
    assert rows(lanes.totals()[["name", "family", "count"]]) == [["alpha", None, 2]]
    assert lanes.intervals(names=chosen)["start_ns"].tolist() == [40_000]
    every = kernels(K1, K2, us(40, 45, name="alpha", family="communication"))
    lanes = Lanes(every, COPY)
    alpha = lanes.matching("alpha")
    assert (3, ["alpha"]) == (lanes.count(names=alpha), lanes.totals(names=alpha)["name"].tolist())
    assert lanes.count(names=np.zeros_like(alpha)) == 1


@pytest.mark.parametrize(
    "every", [(KERNELS.empty(), COPIES.empty()), (kernels(us(4, 4)), COPIES.empty())]
)
def test_nothing(every: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    lanes = Lanes(*every)
    assert lanes.count() == 0
    assert lanes.span == (int(4e3 * len(every[0])),) * 2
    for ask in (Lanes.busy, Lanes.totals, Lanes.intervals):
        for window in (None, (0, 10)):
            found = ask(lanes, window=window)
            assert len(found) == 0
            assert types(ask(TOY_LANES)) == types(found)
    assert lanes.matching("a").tolist() == [False] * len(every[0])


def chosen(
    tables: Sequence[pd.DataFrame], ranks: tuple[int, ...], gpus: tuple[int, ...]
) -> list[pd.DataFrame]:
    of_rank = [frame[frame["rank"].isin(ranks)] if ranks else frame for frame in tables]
    return [frame[frame["gpu"].isin(gpus)] if gpus else frame for frame in of_rank[:2]] + of_rank[
        2:
    ]


def check_idle(
    tables: Tables, index: Idle, windows: list[Any], ranks: tuple[int, ...], gpus: tuple[int, ...]
) -> None:
    work, moved, called, named, system = chosen(tables, ranks, gpus)
    for window in windows:
        expected = idle_gaps(work, moved, called, window=window, ranges=named, os_calls=system)
        pd.testing.assert_frame_equal(expected, index.gaps(window=window, ranks=ranks, gpus=gpus))
    assert determinable(work, moved, called) == index.determinable(ranks=ranks, gpus=gpus)


@pytest.mark.parametrize("seed", range(2))
def test_looked_up_gaps_agree_with_those_found(seed: int) -> None:
    tables = made(seed)
    index = Idle(*tables[:3], ranges=tables[3], os_calls=tables[4])
    start, end = tables[0]["start_ns"], tables[0]["start_ns"] + tables[0]["dur_ns"]
    rng = np.random.default_rng(seed)
    edges = np.concatenate(
        [rng.integers(-9, 10**6, 40), rng.choice(start, 12), rng.choice(end, 12)]
    )
    around = int(start.min()) - 1, int(end.max()) + 1
    for ranks, gpus in (
        ((), ()),
        ((1,), ()),
        ((), (0,)),
        ((0,), (1,)),
        ((0, 1), (0, 1)),
        ((), (5,)),
    ):
        pairs = np.sort(
            edges[rng.integers(0, len(edges), (8, 2))], axis=1
        )  # others for each choice
        windows = [None, (-500, 2_000_000), around, *((int(a), int(b)) for a, b in pairs if a < b)]
        check_idle(tables, index, windows, ranks, gpus)


def test_looked_up_gaps_of_steps_agree_with_those_found() -> None:
    """Marked steps of rank 0 last from before its first to after its last operation; rank 1 has a window of its own."""
    tables = made(3)
    first, last = int(tables[0]["start_ns"].min()), int(tables[0]["start_ns"].max())
    steps = {0: (first - 70_000, last + 2_000_000)}
    measured = {**steps, 1: (first - 5_000, last + 900_000)}
    named = {"ranges": tables[3], "os_calls": tables[4]}
    index = Idle(*tables[:3], **named, stepped=steps)
    expected = idle_gaps(*tables[:3], window=measured, stepped=steps, **named)
    pd.testing.assert_frame_equal(expected, index.gaps(window=measured))
    # In a window that a person chose, what lies before all operations is an edge.
    chosen = first - 9_000, last
    expected = idle_gaps(*tables[:3], window=chosen, **named)
    pd.testing.assert_frame_equal(expected, index.gaps(window=chosen))


def test_waits_explained_by_parts_are_explained_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(4):
        *work, named, system = made(seed)
        whole = idle_gaps(*work, ranges=named, os_calls=system)
        monkeypatch.setattr(gap_parts, "WAITS", 3)
        pd.testing.assert_frame_equal(whole, idle_gaps(*work, ranges=named, os_calls=system))
        monkeypatch.undo()
        assert (whole["cause"] == "host_wait").sum() > 3
        assert whole["system_ns"].any()


def test_the_call_that_launched_an_operation() -> None:
    run = loaded(SAMPLE)
    index = Launching(run.api_calls)
    for operations in (run.kernels, run.copies):
        keys = [operations[column].to_numpy() for column in ("rank", "process", "correlation")]
        assert started_by(operations, run.api_calls).tolist() == index.rows(*keys).tolist()
    # Id 7 of process 1 stands twice: the first counts; process 2 has its own 7; 9 is not there, and -1 is nobody's.
    of_1 = (
        call(0, 5, "later", 8),
        call(10, 15, "first", 7),
        call(20, 25, "again", 7),
        call(30, 35, "none", -1),
    )
    calls = api_calls(*of_1, call(0, 6, "other", 7, process=2))
    process, correlation = np.array([1, 2, 1, 1, 3]), np.array([7, 7, 9, -1, 7])
    found = pd.DataFrame(Launching(calls).of(np.zeros(5, np.int32), process, correlation))
    assert [("first", 10, 5), ("other", 0, 6)] == tuples(
        found[:2], "call", "call_start_ns", "call_dur_ns"
    )
    assert found.loc[2:, ["call", "call_start_ns"]].isna().all(axis=None)


def brute(
    frame: pd.DataFrame, group: Any, count: int, edges: Any
) -> tuple[list[list[int]], list[list[int]]]:
    """Rows that touch each bin, and the ns in which any ran, one ns at a time."""
    ran = np.zeros((count, edges[-1]), bool)
    touched = [[0] * (len(edges) - 1) for _ in range(count)]
    for start, dur, of in zip(frame["start_ns"], frame["dur_ns"], group, strict=True):
        ran[of, start : start + dur] = True
        for at, (low, high) in enumerate(pairwise(edges)):
            touched[of][at] += start < high and (start + dur > low or start >= low)
    sums = [[int(ran[of, low:high].sum()) for low, high in pairwise(edges)] for of in range(count)]
    return touched, sums


@pytest.mark.parametrize("seed", range(3))
def test_spans_agree_with_counting(seed: int) -> None:
    # Nested and overlapping rows, some of 0 ns, in any order and an empty group.
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame({"start_ns": rng.integers(0, 180, 60), "dur_ns": rng.integers(0, 20, 60)})
    group, edges = rng.integers(0, 3, 60), np.array([0, 1, 50, 120, 200])
    spans = Spans(frame, group, 4)
    touched, sums = brute(frame, group, 4, edges)
    assert sums == spans.busy(edges).tolist()
    windows = list(pairwise(edges.tolist()))
    assert touched == np.stack([spans.count(window) for window in windows], axis=1).tolist()
    listed = [spans.rows(window, np.ones(4, bool)) for window in windows]
    assert touched == np.stack([np.bincount(of, minlength=4) for _, of in listed], axis=1).tolist()
    assert all((group[row] == of).all() for row, of in listed)
    assert [sum(part) for part in sums] == spans.total.tolist()


def drawn(
    seed: int, *, serial: bool, count: int = 90, devices: int = 3
) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Random kernels and copies; some last 0 ns, and unless serial most overlap in their stream."""
    random = np.random.default_rng(seed)
    texts: list[dict[str, Any]] = [
        {"name": name, "full_name": f"full {n}"} for name in NAMES for n in range(2)
    ]
    kernel, copy = [], []
    for number in range(count):
        rank, gpu = DEVICES[random.integers(devices)]
        start, longest = (4 * number, 5) if serial else (int(random.integers(4 * count)), 60)
        span = lasting(start, int(random.integers(longest)), rank=rank, gpu=gpu)
        span |= {"stream": int(random.integers(7, 9)), "correlation": number}
        if number % 3:
            kernel.append(
                span | texts[random.integers(8)] | {"family": FAMILIES[random.integers(3)]}
            )
        else:
            copy.append(span | {"direction": ["H2D", "memset"][random.integers(2)]})
    return kernels(*kernel), copies(*copy)


def cut(frame: pd.DataFrame, table: pd.DataFrame, window: tuple[int, int]) -> pd.DataFrame:
    """The rows with time in the window, row by row, with that time as `inside_ns` and their `row` in the table."""
    spans = zip(frame["start_ns"].tolist(), frame["dur_ns"].tolist(), strict=True)
    inside = [max(min(start + dur, window[1]) - max(start, window[0]), 0) for start, dur in spans]
    found = frame.assign(
        inside_ns=np.array(inside, np.int64), row=table.index.get_indexer(frame.index)
    )
    return found[found["inside_ns"] > 0]


def check(
    lanes: Lanes, every: tuple[pd.DataFrame, pd.DataFrame], pattern: str, **choice: Any
) -> None:
    """Every answer is that of `timeline.bins`, or of counting row by row, on the tables cut down to the choice."""
    seen, names = choice.get("window") or lanes.span, lanes.matching(pattern) if pattern else None
    kernel, copy = chosen(every, choice.get("ranks", ()), choice.get("gpus", ()))
    kernel = kernel[named(kernel, pattern)]
    for bins in (13, 320):
        expected = timeline.bins(kernel, copy, bins=bins, window=seen)
        pd.testing.assert_frame_equal(expected, lanes.busy(bins=bins, names=names, **choice))
    both = {"KERNELS": cut(kernel, every[0], seen), "COPIES": cut(copy, every[1], seen)}
    assert sum(map(len, both.values())) == lanes.count(names=names, **choice)
    found = lanes.totals(names=names, **choice)
    inside = both["KERNELS"].assign(name=both["KERNELS"]["name"].astype(object).fillna(""))
    expected = inside.groupby("name")["inside_ns"].agg(["count", "sum"])
    of_names = (
        found[["count", "total_ns"]]
        .set_axis(found["name"].astype(object).fillna(""))
        .T.to_dict("list")
    )
    assert expected.T.to_dict("list") == of_names
    assert found["total_ns"].is_monotonic_decreasing
    assert (
        found["share_frac"].tolist()
        == (found["total_ns"] / max(found["total_ns"].sum(), 1)).tolist()
    )
    found = lanes.intervals(names=names, most=10_000, **choice)
    place = ["rank", "gpu", "stream", "kind", "start_ns"]
    pd.testing.assert_frame_equal(found, found.sort_values(place, kind="stable", ignore_index=True))
    columns = ["rank", "gpu", "stream", "start_ns", "dur_ns", "correlation", "row"]
    for table, texts in {"KERNELS": ["name", "family"], "COPIES": ["direction"]}.items():
        of_table = found[found["table"] == table].sort_values("row")
        assert rows(both[table][columns + texts]) == rows(
            of_table[[*columns, "name", "family"][: 7 + len(texts)]]
        )


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("serial", [False, True])
def test_against_the_tables(serial: bool, choice: dict[str, Any]) -> None:
    every = drawn(CHOICES.index(choice), serial=serial)
    # Shuffled tables give the same answers, and are left as they were.
    mixed = tuple(frame.sample(frac=1, random_state=1) for frame in every)
    before = [frame.copy() for frame in mixed]
    lanes, other = Lanes(*every), Lanes(*mixed)
    for pattern in PATTERNS:
        check(lanes, every, pattern, **choice)
    pd.testing.assert_frame_equal(lanes.busy(), other.busy())
    pd.testing.assert_frame_equal(lanes.totals(), other.totals())
    listed = [
        of.intervals().drop(columns="row").sort_values("correlation", ignore_index=True)
        for of in (lanes, other)
    ]
    pd.testing.assert_frame_equal(*listed)
    for frame, copied in zip(mixed, before, strict=True):
        pd.testing.assert_frame_equal(frame, copied)


@pytest.mark.parametrize("serial", [False, True])
@pytest.mark.parametrize("seed", range(2))
def test_sums_of_blocks(monkeypatch: pytest.MonkeyPatch, seed: int, serial: bool) -> None:
    monkeypatch.setattr(lane, "BLOCK", 32)
    every = drawn(seed, serial=serial, count=1200, devices=1)
    lanes, random = Lanes(*every), np.random.default_rng(seed)
    for pattern in PATTERNS[:3]:
        first, last = sorted(random.integers(*lanes.span, 2).tolist())
        check(lanes, every, pattern, window=(first, last + 1))
