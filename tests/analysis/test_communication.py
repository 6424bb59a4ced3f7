"""Overlap of communication and computation, bandwidths, and collectives matched over the ranks."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import frames
import numpy as np
import pandas as pd
import pytest
from analysis.spans import span, us
from frames import kernels, lasting, tuples, types

from perfkit.analysis.communication import (
    bandwidth,
    imbalance,
    matched,
    overlap,
    plateau,
    stragglers,
    summary,
)
from perfkit.errors import PerfkitError
from perfkit.readers import torch_trace
from perfkit.tables import COLLECTIVES

NCCL_TESTS = "nccl_tests__cluster01_nccl_N1_G8_cnode3-002.log"
TOY = kernels(us(10, 30), us(20, 40, stream=8), us(35, 60, stream=9, family="communication"))


def test_overlap_of_the_toy_timeline() -> None:
    # Communication [35,60) = 25 us, 5 us of it beside computation; in [38,48) 10 us and [38,40).
    assert overlap(TOY).to_numpy().tolist() == [[0, 0, 25_000, 5_000, 0.2]]
    assert overlap(TOY, window=(38_000, 48_000)).to_numpy().tolist() == [[0, 0, 10_000, 2_000, 0.2]]


def test_without_communication_the_overlap_is_missing() -> None:
    """So it is in a window without work."""
    for found in (overlap(kernels(span(0, 10))), overlap(TOY, window=(80_000, 90_000))):
        assert found[["communication_ns", "overlapped_ns"]].to_numpy().tolist() == [[0, 0]]
        assert found["overlap_frac"].isna().all()


PLAIN: dict[str, Any] = {"bytes": 1000, "dur_ns": 1000.0, "group": "0", "source": "benchmark"}


def collectives(*rows: dict[str, Any]) -> pd.DataFrame:
    return frames.collectives(*({**PLAIN, **row} for row in rows))


def rates(*rows: dict[str, Any]) -> list[Any]:
    return (
        bandwidth(collectives(*rows))[["algorithm_bytes_per_s", "bus_bytes_per_s"]]
        .to_numpy()
        .tolist()
    )


def test_bandwidths_of_the_definitions() -> None:
    # 8,589,934,592 B in 31,533 us on 8 ranks: 272.41 GB/s, x 2 x 7 / 8 = 476.72; the factors are those of nccl-tests.
    (found,) = rates({"bytes": 8_589_934_592, "dur_ns": 31_533_000.0})
    assert [272.41, 476.72] == [round(rate / 1e9, 2) for rate in found]
    factors = {"all_reduce": 2 * 7 / 8, "broadcast": 1.0, "reduce": 1.0, "send_recv": 1.0}
    factors |= dict.fromkeys(
        ("all_gather", "reduce_scatter", "all_to_all", "gather", "scatter"), 7 / 8
    )
    for operation, factor in factors.items():
        assert [[1e9, factor * 1e9]] == [
            pytest.approx(of, rel=1e-12) for of in rates({"operation": operation})
        ]


def test_what_is_not_recorded_of_a_collective_leaves_its_bandwidths_missing() -> None:
    """Without its operation it has an algorithm bandwidth alone."""
    rows = [
        {"dur_ns": 0.0},
        {"dur_ns": None},
        {"ranks": None},
        {"ranks": 0},
        {"operation": "barrier"},
        {"ranks": 1},
    ]
    found = [rates(row)[0] for row in [*rows, {"operation": None}]]
    expected = [[np.nan] * 2] * 2 + [[1e9, np.nan]] * 3 + [[1e9, 0], [1e9, np.nan]]
    assert expected == [pytest.approx(of, nan_ok=True) for of in found]


def test_summary_by_size() -> None:
    rows = [{"dur_ns": dur} for dur in (1000.0, 4000.0, 2000.0)]
    found = summary(
        collectives(
            {"operation": "barrier"}, *rows, {"group": None}, {"bytes": 10}, {"dur_ns": None}
        )
    )
    expected = [
        ("all_reduce", 10, 1),
        ("all_reduce", 1000, 3),
        ("all_reduce", 1000, 1),
        ("barrier", 1000, 0),
    ]
    assert expected == tuples(found, "operation", "bytes", "count")
    bus = ["min_bus_bytes_per_s", "bus_bytes_per_s", "max_bus_bytes_per_s"]
    assert (0.5e9, 0.4375e9, 0.875e9, 1.75e9) == tuples(found, "algorithm_bytes_per_s", *bus)[1]
    assert found.loc[3, bus].isna().all()


def test_in_place_and_out_of_place_stay_apart() -> None:
    placed = [
        {"placement": "out_of_place", "dur_ns": 1000.0},
        {"placement": "in_place", "dur_ns": 2000.0},
    ]
    for of in (summary, plateau):
        found = tuples(of(collectives(*placed, *placed)), "placement", "count", "bus_bytes_per_s")
        assert [("in_place", 2, 0.875e9), ("out_of_place", 2, 1.75e9)] == sorted(found)


def test_plateau_of_large_messages() -> None:
    # 1, 4, 8 and 16 MB at 1, 10, 11 and 12 GB/s: large is 16 alone.
    sizes = {1: 1, 4: 10, 8: 11, 16: 12}
    rows = [
        {"operation": "broadcast", "bytes": mb * 10**6, "dur_ns": mb * 1e6 / of}
        for mb, of in sizes.items()
    ]
    found = plateau(
        collectives(*rows, {"operation": "reduce"}, {"operation": "barrier"})
    ).set_index("operation")
    assert ["broadcast", "reduce"] == found.index.tolist()
    columns = ["largest_bytes", "count", "bus_bytes_per_s", "growth_frac"]
    assert [16e6, 1, 12e9, 12 / 11 - 1] == pytest.approx(
        found.loc["broadcast", columns].tolist(), rel=1e-12
    )
    assert np.isnan(found.loc["reduce", "growth_frac"])


def tables_of(log: Path) -> Iterator[tuple[dict[str, Any], float, float]]:
    """Each measurement of an nccl-tests log of 8 ranks: a row of COLLECTIVES, algorithm and bus bandwidth, GB/s."""
    operation = ""
    for line in log.read_text(encoding="utf-8").splitlines():
        words = line.split()
        if line.startswith("# Collective test starting"):
            test = {"alltoall": "all_to_all", "sendrecv": "send_recv"}
            operation = test.get(words[-1].removesuffix("_perf"), words[-1].removesuffix("_perf"))
        elif words and words[0].isdigit():
            for time, algorithm, bus in (words[5:8], words[9:12]):
                row = {"operation": operation, "bytes": int(words[0]), "dur_ns": float(time) * 1000}
                yield row, float(algorithm), float(bus)


def test_real_bandwidths_equal_those_of_nccl_tests(profiles: Path) -> None:
    measured = list(tables_of(profiles / "monitor" / NCCL_TESTS))
    assert 5 == len({row["operation"] for row, _, _ in measured})
    found = rates(
        *(row | {"rank": i} for i, (row, _, _) in enumerate(measured))
    )  # the table is in order of ranks
    # The log gives the time in five digits: half a unit of the last is 5e-5 of it at most, so is the difference.
    for (_, algorithm, bus), (of_algorithm, of_bus) in zip(measured, found, strict=True):
        assert algorithm == pytest.approx(of_algorithm / 1e9, rel=5e-5, abs=0.005)
        assert bus == pytest.approx(of_bus / 1e9, rel=5e-5, abs=0.01)


def test_the_real_plateau_of_all_reduce_is_flat(profiles: Path) -> None:
    """The log's average over all sizes says 437.957."""
    measured = tables_of(profiles / "monitor" / NCCL_TESTS)
    found = (
        plateau(collectives(*(row for row, _, _ in measured)))
        .set_index("operation")
        .loc["all_reduce"]
    )
    assert [17_179_869_184, 2] == found[["largest_bytes", "count"]].tolist()
    assert (482.2, 0.0019) == (
        round(found["bus_bytes_per_s"] / 1e9, 1),
        round(found["growth_frac"], 4),
    )


def test_the_bandwidth_of_an_all_gather_in_a_trace(profiles: Path) -> None:
    """201,088 elements of 2 B to 8 ranks in 21.953 us: 18.32 and 16.03 GB/s."""
    trace = torch_trace.read(profiles / "torch" / "TraceLens__b200__eager_trace.json.gz")
    found = bandwidth(trace.table("COLLECTIVES")).iloc[0]
    expected = [402_176 / 21.953e-6, 402_176 / 21.953e-6 * 7 / 8]
    assert expected == pytest.approx(
        found[["algorithm_bytes_per_s", "bus_bytes_per_s"]].tolist(), rel=1e-12
    )


def on_ranks(*rows: tuple[int, int | None, int, dict[str, Any]]) -> pd.DataFrame:
    traced = {"ranks": 3, "source": "trace"}
    spans = (lasting(at, float(end - (at or 0)), rank=rank) | more for rank, at, end, more in rows)
    return collectives(*(traced | span for span in spans))


# Two all-reduces of three ranks: rank 2 comes last to the first, at 30, rank 0 to the second, at 125.
ENDS = (0, 10, 50), (1, 20, 51), (2, 30, 52), (0, 125, 140), (1, 105, 141), (2, 100, 142)
THREE_RANKS = on_ranks(*((*ends, {}) for ends in ENDS))


def test_who_keeps_the_others_waiting() -> None:
    found = matched(THREE_RANKS)
    assert found["together"].all()
    expected = [(0, 0, 20), (0, 1, 10), (0, 2, 0), (1, 2, 25), (1, 1, 20), (1, 0, 0)]
    assert expected == tuples(found, "collective", "rank", "wait_ns")
    found = stragglers(THREE_RANKS)
    columns = "rank", "last_count", "last_frac", "wait_ns", "apart_count", "unmatched_count"
    assert [(0, 1, 0.5, 20, 0, 0), (2, 1, 0.5, 25, 0, 0), (1, 0, 0.0, 30, 0, 0)] == tuples(
        found, *columns
    )
    # Rank 1 waited 10 + 20 of its 31 + 36 ns.
    assert [20 / 55, 25 / 64, 30 / 67] == pytest.approx(found["wait_frac"].tolist(), rel=1e-12)


def test_nobody_is_late_where_all_come_at_once() -> None:
    pair = on_ranks((0, 10, 20, {}), (1, 10, 20, {}))
    assert [[0, 0]] * 2 == [
        matched(pair)["wait_ns"].tolist(),
        stragglers(pair)["last_count"].tolist(),
    ]
    three = stragglers(on_ranks((0, 30, 50, {}), (1, 40, 50, {}), (2, 40, 50, {})))
    assert {(0, 0), (1, 1), (2, 1)} == {*tuples(three, "rank", "last_count")}


def test_a_single_rank_and_a_benchmark_without_starts_have_no_rows_of_the_same_types() -> None:
    alone = THREE_RANKS[THREE_RANKS["rank"] == 0].reset_index(drop=True)
    for of in (matched, stragglers):
        for few in (alone, on_ranks((0, None, 10, {}), (1, None, 10, {}))):
            assert (0, types(of(THREE_RANKS))) == (len(of(few)), types(of(few)))


def test_groups_operations_and_sizes_are_matched_apart() -> None:
    between = [
        {"group": "1"},
        {"group": None},
        {"operation": "all_gather"},
        {"bytes": 8},
        {"ranks": 2},
    ]
    rows = [
        (rank, 200 + 100 * i, 250 + 100 * i, more)
        for i, more in enumerate(between)
        for rank in (0, 1)
    ]
    whole = pd.concat([THREE_RANKS, on_ranks(*rows[::-1])], ignore_index=True)
    found = matched(COLLECTIVES.make(whole)).drop_duplicates(
        "collective"
    )  # who came first waited longest
    assert [20, 25] + [0] * 5 == found["wait_ns"].tolist()
    assert found["group"].isna().tolist() == [False] * 3 + [True] + [False] * 3


def test_groups_that_share_a_name_are_not_matched() -> None:
    rows = [(rank, 10 * rank, 100, {"ranks": 2, "group": "tp"}) for rank in range(4)]
    assert matched(on_ranks(*rows)).empty
    assert [1] * 4 == stragglers(on_ranks(*rows))["unmatched_count"].tolist()
    unknown = on_ranks(*((rank, at, end, more | {"ranks": None}) for rank, at, end, more in rows))
    assert [30, 20, 10, 0] == matched(unknown)["wait_ns"].tolist()


def test_what_only_some_recorded_is_left_over() -> None:
    rows = [(0, at, at + 10, {}) for at in (0, 100, 200)] + [
        (1, at, at + 10, {}) for at in (5, 105)
    ]
    found = stragglers(on_ranks(*rows, (0, 300, 310, {"group": "alone"}))).sort_values("rank")
    assert [(0, 2, 2, 0), (1, 2, 0, 2)] == tuples(
        found, "rank", "count", "unmatched_count", "last_count"
    )


def test_a_rank_with_collectives_of_its_own_is_there_without_figures() -> None:
    whole = pd.concat(
        [THREE_RANKS[THREE_RANKS["rank"] < 2], on_ranks((2, 5, 9, {"group": "7"}))],
        ignore_index=True,
    )
    alone = stragglers(COLLECTIVES.make(whole)).set_index("rank").loc[2]
    assert [0, 0, 1] == alone[["count", "last_count", "unmatched_count"]].tolist()
    assert alone[["last_frac", "wait_frac"]].isna().all()


def test_collectives_that_do_not_overlap_tell_nothing() -> None:
    # With rank 1's clock a second ahead its collectives meet none of rank 0's.
    apart = on_ranks((0, 10, 20, {}), (1, 30, 40, {}), (0, 110, 140, {}), (1, 120, 140, {}))
    assert [False, False, True, True] == matched(apart)["together"].tolist()
    found = stragglers(apart).sort_values("rank")
    columns = ["rank", "count", "last_count", "wait_ns", "apart_count"]
    assert [(0, 1, 0, 10, 1), (1, 1, 1, 0, 1)] == tuples(found, *columns)
    rows = [
        (rank, at + rank * 10**9, at + rank * 10**9 + 50, {}) for at in (0, 100) for rank in (0, 1)
    ]
    with pytest.raises(
        PerfkitError,
        match=r"stragglers: in none of 2 collectives all ranks .* synchronised clocks\.",
    ):
        stragglers(on_ranks(*rows))


def test_imbalance_of_a_time() -> None:
    assert 0.5 == imbalance(pd.Series([20, 10, 30]))
    assert 0.0 == imbalance(pd.Series([2, 2]))
