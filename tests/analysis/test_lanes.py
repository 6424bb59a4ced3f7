"""Any window of a run answered at once: busy time, time per name, number and list of the operations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from frames import copies, kernels

from perfkit.analysis.lanes import Lanes
from perfkit.errors import SchemaError
from perfkit.tables import COPIES, KERNELS


def us(start: int, end: int, **other: Any) -> dict[str, Any]:
    """An operation from `start` to `end` microseconds."""
    return {"start_ns": start * 1000, "dur_ns": (end - start) * 1000, **other}


K1 = us(10, 30, name="alpha", correlation=5)
K2 = us(20, 40, name="beta", stream=8, correlation=6)
C = us(35, 60, name="gather", stream=9, family="communication", correlation=7)
TOY = kernels(K1, K2, C)
COPY = copies(us(55, 70, correlation=9))
TOY_LANES = Lanes(TOY, COPY)


def rows(frame: pd.DataFrame) -> list[list[Any]]:
    """The rows as lists, None where a value is missing."""
    return frame.astype(object).where(frame.notna(), None).to_numpy().tolist()


def test_busy_of_the_toy_timeline() -> None:
    """Two bins of 30 us on [10,70): the first stream works 20 of the first, the copy 15 of the second."""
    found = TOY_LANES.busy(bins=2)[["stream", "kind", "start_ns", "busy_ns", "busy_frac"]]
    assert rows(found) == [
        [7, "computation", 10_000, 20_000, 20 / 30],
        [7, "copy", 40_000, 15_000, 0.5],
        [8, "computation", 10_000, 20_000, 20 / 30],
        [9, "communication", 10_000, 5_000, 5 / 30],
        [9, "communication", 40_000, 20_000, 20 / 30],
    ]


def test_totals_of_the_toy_timeline() -> None:
    """In [25,50) us: alpha 5, beta 15 and gather 15 us, of 35; the copy is no kernel."""
    assert rows(TOY_LANES.totals(window=(25_000, 50_000))) == [
        ["beta", "other", 1, 15_000, 15 / 35],
        ["gather", "communication", 1, 15_000, 15 / 35],
        ["alpha", "other", 1, 5_000, 5 / 35],
    ]


def test_count_and_intervals_of_the_toy_timeline() -> None:
    """From 30 us on alpha has ended; what runs at the edge of 56 us is listed whole, with its row in its table."""
    window = (30_000, 56_000)
    assert TOY_LANES.count(window=window) == 3
    assert rows(TOY_LANES.intervals(window=window)) == [
        [0, 0, 7, "copy", 55_000, 15_000, "H2D", None, 9, 0, "COPIES"],
        [0, 0, 8, "computation", 20_000, 20_000, "beta", "other", 6, 1, "KERNELS"],
        [0, 0, 9, "communication", 35_000, 25_000, "gather", "communication", 7, 2, "KERNELS"],
    ]


def test_span_devices_and_names() -> None:
    """The span is 10..70 us; names come by falling time."""
    assert TOY_LANES.span == (10_000, 70_000)
    assert rows(TOY_LANES.devices) == [[0, 0]]
    assert rows(TOY_LANES.names) == [
        ["gather", "communication", 1, 25_000],
        ["alpha", "other", 1, 20_000],
        ["beta", "other", 1, 20_000],
    ]


def test_an_operation_that_outlasts_many() -> None:
    """One of 100 ns beside ten of 1 ns, which start at 2, 4 .. 20: 100 ns are busy, and 10 without it."""
    short = [{"start_ns": 2 * n, "dur_ns": 1, "name": "alpha"} for n in range(1, 11)]
    lanes = Lanes(kernels({"start_ns": 0, "dur_ns": 100, "name": "long"}, *short), COPIES.empty())
    assert lanes.busy(bins=1)["busy_ns"].tolist() == [100]
    assert lanes.busy(bins=1, names=lanes.matching("alpha"))["busy_ns"].tolist() == [10]
    assert rows(lanes.totals(window=(10, 20))[["name", "count", "total_ns"]]) == [["long", 1, 10], ["alpha", 5, 5]]
    assert lanes.count(window=(50, 60)) == 1


def test_a_family_of_its_own_in_one_name() -> None:
    """Of kernels that share a name those of the family alone are chosen; the name's family is missing."""
    every = kernels(K1, us(40, 45, name="alpha", family="communication"))
    lanes = Lanes(every, COPIES.empty())
    chosen = lanes.matching("", ["communication"])
    assert lanes.busy(bins=1, names=chosen)["kind"].tolist() == ["communication"]
    assert rows(lanes.totals()[["name", "family", "count"]]) == [["alpha", None, 2]]
    assert lanes.intervals(names=chosen)["start_ns"].tolist() == [40_000]


def test_names_by_category() -> None:
    """A choice may be a bool per category of KERNELS, also where one name has several works; copies stay."""
    every = kernels(K1, K2, us(40, 45, name="alpha", family="communication"))
    lanes = Lanes(every, COPY)
    alpha = every["name"].cat.categories == "alpha"
    assert lanes.count(names=alpha) == 3
    assert lanes.totals(names=alpha)["name"].tolist() == ["alpha"]
    assert lanes.count(names=np.zeros(2, bool)) == 1


def test_streams_far_apart() -> None:
    """Streams numbered by addresses keep their numbers."""
    every = kernels(us(0, 1, stream=-1), us(2, 3, stream=2**60), us(4, 5, stream=7))
    assert Lanes(every, COPIES.empty()).busy(bins=1)["stream"].tolist() == [-1, 7, 2**60]


def test_durations_beyond_32_bits() -> None:
    """Two kernels of 2**55 and 2**55 + 1 ns last 2**56 + 1 ns, which no float64 holds."""
    spans = ({"start_ns": 0, "dur_ns": 2**55}, {"start_ns": 2**55, "dur_ns": 2**55 + 1})
    lanes = Lanes(kernels(*spans), COPIES.empty())
    assert lanes.totals()["total_ns"].tolist() == [2**56 + 1]
    assert lanes.busy(bins=1)["busy_ns"].tolist() == [2**56 + 1]


@pytest.mark.parametrize("every", [(KERNELS.empty(), COPIES.empty()), (kernels(us(4, 4)), COPIES.empty())])
def test_nothing(every: tuple[pd.DataFrame, pd.DataFrame]) -> None:
    """Without operations, or with one of 0 ns, answers are empty and have the dtypes of full ones."""
    lanes = Lanes(*every)
    assert lanes.count() == 0
    assert lanes.span == (int(4e3 * len(every[0])),) * 2
    for ask in (Lanes.busy, Lanes.totals, Lanes.intervals):
        for window in (None, (0, 10)):
            found = ask(lanes, window=window)
            assert len(found) == 0
            assert ask(TOY_LANES).dtypes.astype(str).to_dict() == found.dtypes.astype(str).to_dict()
    assert lanes.matching("a").tolist() == [False] * len(every[0])


@pytest.mark.parametrize(
    ("choice", "words"),
    [
        ({"window": (9, 9)}, r"window: \(9, 9\) does not end after it starts"),
        ({"window": (0.5, 9)}, r"window: .* is not two integers"),
        ({"ranks": (0, 4)}, r"ranks: 4 is not one of \[0\]"),
        ({"gpus": [2, 5]}, r"gpus: 2, 5 is not one of \[0\]"),
        ({"names": np.ones(2, bool)}, r"names: bool of shape \(2,\) is not a bool for each of the 3 names"),
        ({"names": np.ones(3)}, r"names: float64 of shape \(3,\) is not a bool for each of the 3 names"),
    ],
)
@pytest.mark.parametrize("ask", [Lanes.busy, Lanes.totals, Lanes.count, Lanes.intervals])
def test_wrong_choices(ask: Any, choice: dict[str, Any], words: str) -> None:
    """What the run does not have is refused, with what it has."""
    with pytest.raises(ValueError, match=words):
        ask(TOY_LANES, **choice)


def test_wrong_numbers_and_families() -> None:
    """There are no 0 bins, no family of the user's own, and no longer list than asked for."""
    with pytest.raises(ValueError, match=r"bins: 0 is not at least 1"):
        TOY_LANES.busy(bins=0)
    with pytest.raises(ValueError, match=r"families: 'gem' is not one of \['gemm', "):
        TOY_LANES.matching("", ["gemm", "gem"])
    with pytest.raises(ValueError, match=r"most: 4 operations have time in the window, more than 3"):
        TOY_LANES.intervals(most=3)
    assert len(TOY_LANES.intervals(most=4)) == 4


def test_wrong_tables() -> None:
    """Kernels and copies in each other's place are refused."""
    with pytest.raises(SchemaError, match=r"table 'KERNELS' does not match"):
        Lanes(COPY, TOY)
