"""Collectives matched over the ranks: who came last, how long the others waited, how even a figure is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from frames import kernels

from perfkit.analysis.communication import imbalance, matched, skew, stragglers
from perfkit.errors import PerfkitError, SchemaError
from perfkit.tables import COLLECTIVES

PLAIN = {
    "gpu": 0,
    "operation": "all_reduce",
    "bytes": 1000,
    "dtype": "float32",
    "ranks": 3,
    "algorithm": None,
    "protocol": None,
    "placement": None,
    "group": "0",
    "source": "trace",
}


def collectives(*rows: tuple[int, int | None, int, dict[str, Any]]) -> pd.DataFrame:
    """COLLECTIVES from (rank, start_ns, end_ns, what else)."""
    whole = [
        {**PLAIN, "rank": rank, "start_ns": at, "dur_ns": float(end - (at or 0)), **more}
        for rank, at, end, more in rows
    ]
    return COLLECTIVES.make(pd.DataFrame(whole, columns=["rank", "start_ns", "dur_ns", *PLAIN]))


# Two all-reduces of three ranks: rank 2 comes last to the first, at 30, rank 0 to the second, at 125.
TOY = collectives(
    (0, 10, 50, {}),
    (1, 20, 51, {}),
    (2, 30, 52, {}),
    (0, 125, 140, {}),
    (1, 105, 141, {}),
    (2, 100, 142, {}),
)


def test_each_collective_on_each_rank() -> None:
    """First starts at 10, 20 and 30: waits of 20, 10 and 0; second at 100, 105 and 125: 25, 20 and 0."""
    found = matched(TOY)
    assert [0, 0, 0, 1, 1, 1] == found["collective"].tolist()
    assert [0, 1, 2, 2, 1, 0] == found["rank"].tolist()
    assert [20, 10, 0, 25, 20, 0] == found["wait_ns"].tolist()
    assert found["together"].all()


def test_skew_and_latency() -> None:
    """30 - 10 = 20 and 125 - 100 = 25; the shortest durations are 52 - 30 = 22 and 140 - 125 = 15."""
    found = skew(TOY)
    assert [20, 25] == found["skew_ns"].tolist()
    assert [22.0, 15.0] == found["latency_ns"].tolist()
    assert [2, 0] == found["last_rank"].tolist()
    assert [3, 3] == found["ranks_count"].tolist()
    assert [10, 100] == found["start_ns"].tolist()


def test_who_keeps_the_others_waiting() -> None:
    """Ranks 0 and 2 came last once each of two; rank 1 waited 10 + 20 of its 31 + 36 ns."""
    found = stragglers(TOY)
    assert [0, 2, 1] == found["rank"].tolist()
    assert [1, 1, 0] == found["last_count"].tolist()
    assert [0.5, 0.5, 0.0] == found["last_frac"].tolist()
    assert [20, 25, 30] == found["wait_ns"].tolist()
    assert [20 / 55, 25 / 64, 30 / 67] == pytest.approx(found["wait_frac"].tolist(), rel=1e-12)
    assert [[0, 0]] * 3 == found[["apart_count", "unmatched_count"]].to_numpy().tolist()


def test_nobody_is_late_where_all_come_at_once() -> None:
    """Equal starts: no skew, no last rank; of two that come last at once each is last."""
    found = collectives((0, 10, 20, {}), (1, 10, 20, {}), (0, 30, 50, {}), (1, 40, 50, {}), (2, 40, 50, {}))
    pair = found[found["start_ns"] < 30].reset_index(drop=True)
    assert (0, -1) == tuple(skew(pair)[["skew_ns", "last_rank"]].iloc[0])
    assert [0, 0] == stragglers(pair)["last_count"].tolist()
    three = found[found["start_ns"] >= 30].reset_index(drop=True)
    assert {0: 0, 1: 1, 2: 1} == stragglers(three).set_index("rank")["last_count"].to_dict()
    assert 1 == skew(three)["last_rank"].iloc[0]


def test_groups_operations_and_sizes_are_matched_apart() -> None:
    """The k-th of each: another group, operation, size or number of members in between changes nothing."""
    between = [{"group": "1"}, {"group": None}, {"operation": "all_gather"}, {"bytes": 8}, {"ranks": 2}]
    rows = [
        (rank, at, at + 50, more) for at, more in zip(range(200, 700, 100), between, strict=True) for rank in (0, 1)
    ]
    whole = pd.concat([TOY, collectives(*rows[::-1])], ignore_index=True)
    found = skew(COLLECTIVES.make(whole))
    assert 7 == len(found)
    assert [20, 25] + [0] * 5 == found["skew_ns"].tolist()
    assert found["group"].isna().tolist() == [False] * 3 + [True] + [False] * 3


def test_what_only_some_recorded_is_left_over() -> None:
    """Rank 1 stopped one earlier: the first two match, the third of rank 0 does not, and is counted."""
    rows = [(0, at, at + 10, {}) for at in (0, 100, 200)] + [(1, at, at + 10, {}) for at in (5, 105)]
    found = stragglers(collectives(*rows, (0, 300, 310, {"group": "alone"}))).set_index("rank")
    assert [2, 2] == found["count"].sort_index().tolist()
    assert [2, 0] == found["unmatched_count"].sort_index().tolist()
    assert [0, 2] == found["last_count"].sort_index().tolist()


def test_a_rank_that_met_nobody() -> None:
    """Rank 2 has only collectives of its own: no figure of it is known, and it is there."""
    whole = pd.concat([TOY[TOY["rank"] < 2], collectives((2, 5, 9, {"group": "7"}))], ignore_index=True)
    found = stragglers(COLLECTIVES.make(whole))
    alone = found.set_index("rank").loc[2]
    assert (0, 0, 1) == tuple(alone[["count", "last_count", "unmatched_count"]])
    assert alone[["last_frac", "wait_frac"]].isna().all()


def test_groups_that_share_a_name_are_not_matched() -> None:
    """Four ranks cannot be in a group of two: there are two groups of that name, and who belongs where is unknown."""
    rows = [(rank, 10 * rank, 100, {"ranks": 2, "group": "tp"}) for rank in range(4)]
    assert skew(collectives(*rows)).empty
    assert [1] * 4 == stragglers(collectives(*rows))["unmatched_count"].tolist()
    unknown = collectives(*((rank, at, end, more | {"ranks": None}) for rank, at, end, more in rows))
    assert [30] == skew(unknown)["skew_ns"].tolist()


def test_collectives_that_do_not_overlap_tell_nothing() -> None:
    """Rank 0 was done at 20 when rank 1 came at 30: not together, kept out of the counts, and counted as apart."""
    apart = collectives((0, 10, 20, {}), (1, 30, 40, {}), (0, 110, 140, {}), (1, 120, 140, {}))
    assert [False, True] == skew(apart)["together"].tolist()
    found = stragglers(apart).set_index("rank")
    assert {0: [1, 0, 10, 1], 1: [1, 1, 0, 1]} == {
        rank: found.loc[rank, ["count", "last_count", "wait_ns", "apart_count"]].tolist() for rank in (0, 1)
    }


def test_clocks_that_are_not_aligned_are_refused() -> None:
    """Rank 1's clock is a second ahead: its collectives meet none of rank 0's."""
    rows = [(rank, at + rank * 10**9, at + rank * 10**9 + 50, {}) for at in (0, 100) for rank in (0, 1)]
    with pytest.raises(PerfkitError, match=r"stragglers: in none of 2 collectives all ranks .* synchronised clocks\."):
        stragglers(collectives(*rows))


def test_one_rank_has_nobody_to_wait_for() -> None:
    """A single rank, and a benchmark without starts: no rows, with the columns and types of a full answer."""
    alone = TOY[TOY["rank"] == 0].reset_index(drop=True)
    benchmark = collectives((0, None, 10, {}), (1, None, 10, {}))
    for of in (matched, skew, stragglers):
        for few in (alone, benchmark, COLLECTIVES.empty()):
            found = of(few)
            assert 0 == len(found)
            assert of(TOY).dtypes.astype(str).tolist() == found.dtypes.astype(str).tolist()
        with pytest.raises(SchemaError, match="table 'COLLECTIVES' does not match"):
            of(kernels())


@pytest.mark.parametrize("seed", range(4))
def test_against_one_collective_after_the_other(seed: int) -> None:
    """Random ranks that come at random times and leave together: last ranks and waits as a loop finds them."""
    random = np.random.default_rng(seed)
    starts = random.integers(0, 50, (40, 5)) + 100 * np.arange(40)[:, None]
    rows = [
        (rank, int(at), 100 * k + 60 + rank, {"ranks": 5})
        for k, row in enumerate(starts)
        for rank, at in enumerate(row)
    ]
    found = stragglers(collectives(*rows)).set_index("rank")
    for rank in range(5):
        last = sum(row[rank] == row.max() > row.min() for row in starts)
        wait = sum(int(row.max() - row[rank]) for row in starts)
        assert [40, last, wait] == found.loc[rank, ["count", "last_count", "wait_ns"]].tolist()
    shifted = [
        (rank, at + 10**12, end + 10**12, more) for rank, at, end, more in random.permutation(np.array(rows, object))
    ]
    pd.testing.assert_frame_equal(stragglers(collectives(*rows)), stragglers(collectives(*shifted)))


def test_imbalance_of_a_figure() -> None:
    """30, 10 and 20 of a mean of 20: the largest is 0.5 above it, on rank 0."""
    frame = pd.DataFrame({"rank": [2, 1, 0], "busy_ns": [20, 10, 30], "other": "x"})
    found = imbalance(frame, value="busy_ns")
    assert [3, 20.0, 30.0, 0, 0.5] == found.iloc[0].tolist()
    assert ["ranks_count", "mean_busy_ns", "max_busy_ns", "max_rank", "imbalance_frac"] == found.columns.tolist()


def test_even_missing_and_absent_figures() -> None:
    """Equal figures are even; ranks without a figure are left out; all 0 has no answer; no rank, no row."""
    even = pd.DataFrame({"rank": [0, 1, 2], "share_frac": [0.2, 0.2, np.nan]})
    assert (2, 0.0, 0) == tuple(
        imbalance(even, value="share_frac")[["ranks_count", "imbalance_frac", "max_rank"]].iloc[0]
    )
    assert imbalance(even.assign(share_frac=0.0), value="share_frac")["imbalance_frac"].isna().all()
    nothing = imbalance(even[:0], value="share_frac")
    assert 0 == len(nothing)
    assert imbalance(even, value="share_frac").dtypes.tolist() == nothing.dtypes.tolist()


def test_figures_that_cannot_be_compared() -> None:
    """A column that is not there, a rank twice, a negative figure."""
    frame = pd.DataFrame({"rank": [0, 1], "gap_ns": [5, -1]})
    with pytest.raises(ValueError, match=r"frame: it has no column 'busy_ns'\. Its columns are \['rank', 'gap_ns'\]"):
        imbalance(frame, value="busy_ns")
    with pytest.raises(ValueError, match=r"frame: rank 1 has several rows\. Give one\."):
        imbalance(frame.assign(rank=1), value="gap_ns")
    with pytest.raises(ValueError, match=r"value: 'gap_ns' is -1 on a rank\. Give a figure that is not negative\."):
        imbalance(frame, value="gap_ns")
