"""Overlap of communication and computation, and the bandwidths of collectives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from frames import copies, kernels

from perfkit.analysis.communication import bandwidth, overlap, plateau, summary
from perfkit.analysis.timeline import breakdown
from perfkit.errors import SchemaError
from perfkit.readers import torch_trace
from perfkit.tables import COLLECTIVES, COPIES, KERNELS

TOY = kernels(
    {"start_ns": 10_000, "dur_ns": 20_000},
    {"start_ns": 20_000, "dur_ns": 20_000, "stream": 8},
    {"start_ns": 35_000, "dur_ns": 25_000, "stream": 9, "family": "communication"},
)


def made(seed: int) -> pd.DataFrame:
    """Random kernels on two GPUs, every third one communication."""
    random = np.random.default_rng(seed)
    drawn = zip(*(random.integers(0, high, 50).tolist() for high in (2, 200, 20, 3)), strict=True)
    families = ["communication", "gemm", "reduction"]
    return kernels(*({"gpu": g, "start_ns": at, "dur_ns": dur, "family": families[f]} for g, at, dur, f in drawn))


def test_overlap_of_the_toy_timeline() -> None:
    """Communication [35,60) = 25 us, computation [10,40): 5 us of it beside computation, 0.2."""
    assert overlap(TOY).to_numpy().tolist() == [[0, 0, 25_000, 5_000, 0.2]]


def test_overlap_in_a_window() -> None:
    """In [38,48) communication has 10 us and computation [38,40): 0.2 again, of 10 us."""
    assert overlap(TOY, window=(38_000, 48_000)).to_numpy().tolist() == [[0, 0, 10_000, 2_000, 0.2]]


def test_communication_on_top_of_communication_is_not_hidden() -> None:
    """Two collectives at once are one time of communication, and hide nothing of each other."""
    both = kernels(*({"start_ns": at, "dur_ns": 10, "stream": at, "family": "communication"} for at in (0, 5)))
    assert overlap(both).to_numpy().tolist() == [[0, 0, 15, 0, 0.0]]


def test_a_device_without_communication() -> None:
    """Nothing to hide: 0 ns, and the fraction is missing rather than 0; so in a window without work."""
    for found in (overlap(kernels({"start_ns": 0, "dur_ns": 10})), overlap(TOY, window=(80_000, 90_000))):
        assert found[["communication_ns", "overlapped_ns"]].to_numpy().tolist() == [[0, 0]]
        assert found["overlap_frac"].isna().all()


@pytest.mark.parametrize("seed", range(4))
def test_overlap_against_marked_nanoseconds(seed: int) -> None:
    """Both times are counts of nanoseconds marked by communication, and by computation too."""
    frame, expected = made(seed), []
    for gpu in (0, 1):
        cells = {True: np.zeros(220, bool), False: np.zeros(220, bool)}
        for row in frame[frame["gpu"] == gpu].itertuples():
            cells[row.family == "communication"][row.start_ns : row.start_ns + row.dur_ns] = True
        expected.append([cells[True].sum(), (cells[True] & cells[False]).sum()])
    assert overlap(frame)[["communication_ns", "overlapped_ns"]].to_numpy().tolist() == np.array(expected).tolist()


@pytest.mark.parametrize("seed", range(4))
def test_what_is_not_hidden_is_exposed(seed: int) -> None:
    """Communication less its overlap is the exposed communication of the breakdown."""
    found = overlap(made(seed))
    exposed = breakdown(made(seed), COPIES.empty())["exposed_communication_ns"]
    assert (found["communication_ns"] - found["overlapped_ns"]).tolist() == exposed.tolist()


def test_empty_table() -> None:
    """Without kernels there is no device; columns and dtypes are those of a full answer."""
    found = overlap(KERNELS.empty())
    assert len(found) == 0
    assert found.dtypes.tolist() == overlap(TOY).dtypes.tolist()


def test_wrong_arguments() -> None:
    """COPIES in place of KERNELS and a reversed window are refused."""
    with pytest.raises(SchemaError, match=r"table 'KERNELS' does not match"):
        overlap(copies())
    with pytest.raises(ValueError, match=r"window: \(9, 2\) does not end after it starts"):
        overlap(TOY, window=(9, 2))


PLAIN = {
    "rank": 0,
    "gpu": 0,
    "start_ns": None,
    "operation": "all_reduce",
    "bytes": 1000,
    "dtype": "float32",
    "ranks": 8,
    "dur_ns": 1000.0,
    "algorithm": None,
    "protocol": None,
    "placement": None,
    "group": "0",
    "source": "benchmark",
}


def collectives(*rows: dict[str, Any]) -> pd.DataFrame:
    """COLLECTIVES with one row per dict."""
    return COLLECTIVES.make(pd.DataFrame([{**PLAIN, **row} for row in rows], columns=list(PLAIN)))


def test_bandwidths_of_the_definitions() -> None:
    """8,589,934,592 B in 31,533 us on 8 ranks: 272.41 GB/s, x 2 x 7 / 8 = 476.72; not in steps of a thousand."""
    found = bandwidth(collectives({"bytes": 8_589_934_592, "dur_ns": 31_533_000.0})).iloc[0]
    assert (272.41, 476.72) == tuple(round(found[f"{k}_bytes_per_s"] / 1e9, 2) for k in ("algorithm", "bus"))


@pytest.mark.parametrize(
    ("operation", "factor"),
    [
        ("all_reduce", 2 * 7 / 8),
        ("all_gather", 7 / 8),
        ("reduce_scatter", 7 / 8),
        ("all_to_all", 7 / 8),
        ("gather", 7 / 8),
        ("scatter", 7 / 8),
        ("broadcast", 1.0),
        ("reduce", 1.0),
        ("send_recv", 1.0),
    ],
)
def test_bus_over_algorithm_bandwidth(operation: str, factor: float) -> None:
    """The factors of nccl-tests, with 8 ranks."""
    found = bandwidth(collectives({"operation": operation})).iloc[0]
    assert factor == pytest.approx(found["bus_bytes_per_s"] / found["algorithm_bytes_per_s"], rel=1e-12)


def test_bandwidths_that_are_not_known() -> None:
    """No time or no ranks: NaN, never infinite; a barrier has no bus bandwidth; one rank sends nothing."""
    rows = [{"dur_ns": 0.0}, {"dur_ns": None}, {"ranks": None}, {"ranks": 0}, {"operation": "barrier"}, {"ranks": 1}]
    found = [bandwidth(collectives(row)).iloc[0] for row in rows]
    assert [True, True, False, False, False, False] == [bool(np.isnan(row["algorithm_bytes_per_s"])) for row in found]
    assert [True] * 5 + [False] == [bool(np.isnan(row["bus_bytes_per_s"])) for row in found]
    assert 0 == found[-1]["bus_bytes_per_s"]


def test_an_operation_that_is_missing() -> None:
    """A collective of which the trace does not say what it was has an algorithm bandwidth alone."""
    found = bandwidth(collectives({"operation": None}))
    assert 1e9 == found["algorithm_bytes_per_s"].iloc[0]
    assert found["bus_bytes_per_s"].isna().all()


def test_summary_by_size() -> None:
    """Three of 1000 B in 1, 2 and 4 us: 1, 0.5 and 0.25 GB/s, median 0.5, of the bus x 1.75; sizes of a group apart."""
    rows = [{"dur_ns": dur} for dur in (1000.0, 4000.0, 2000.0)]
    found = summary(collectives({"operation": "barrier"}, *rows, {"group": None}, {"bytes": 10}, {"dur_ns": None}))
    assert ["all_reduce"] * 3 + ["barrier"] == found["operation"].tolist()
    assert [10, 1000, 1000, 1000] == found["bytes"].tolist()
    assert [1, 3, 1, 0] == found["count"].tolist()
    of_three = found.iloc[1]
    assert 0.5e9 == of_three["algorithm_bytes_per_s"]
    bus = ["min_bus_bytes_per_s", "bus_bytes_per_s", "max_bus_bytes_per_s"]
    assert [0.4375e9, 0.875e9, 1.75e9] == of_three[bus].tolist()
    assert found.iloc[3][bus].isna().all()


def test_plateau_of_large_messages() -> None:
    """Sizes 1, 4, 8 and 16 MB at 1, 10, 11 and 12 GB/s: large is 16 alone, at 12, a growth of 12 / 11 - 1 over 8."""
    sizes = {1: 1, 4: 10, 8: 11, 16: 12}
    rows = [{"operation": "broadcast", "bytes": mb * 10**6, "dur_ns": mb * 1e6 / of} for mb, of in sizes.items()]
    found = plateau(collectives(*rows, {"operation": "reduce"}, {"operation": "barrier"})).set_index("operation")
    assert ["broadcast", "reduce"] == found.index.tolist()
    assert (16_000_000, 1) == tuple(found.loc["broadcast", ["largest_bytes", "count"]])
    measured = found.loc["broadcast", ["bus_bytes_per_s", "growth_frac"]].tolist()
    assert [12e9, 12 / 11 - 1] == pytest.approx(measured, rel=1e-12)
    assert np.isnan(found.loc["reduce", "growth_frac"])


def test_in_place_and_out_of_place_stay_apart() -> None:
    """One size in 1 us out of place and 2 us in place: two rows of the summary, two plateaus, no median of both."""
    placed = [{"placement": "out_of_place", "dur_ns": 1000.0}, {"placement": "in_place", "dur_ns": 2000.0}]
    for of in (summary, plateau):
        found = of(collectives(*placed, *placed)).set_index("placement")
        assert ["in_place", "out_of_place"] == found.index.tolist()
        assert [2, 2] == found["count"].tolist()
        assert [0.875e9, 1.75e9] == found["bus_bytes_per_s"].tolist()


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
    """Five operations on 8 H100s, in place and not: both columns of the log, to its two decimals of GB/s.

    The log gives the time in five digits: half a unit of the last is 5e-5 of it at most, so is the difference.
    """
    measured = list(tables_of(profiles / "monitor" / "nccl_tests__cluster01_nccl_N1_G8_cnode3-002.log"))
    assert 5 == len({row["operation"] for row, _, _ in measured})
    for row, algorithm, bus in measured:
        found = bandwidth(collectives(row)).iloc[0]
        assert algorithm == pytest.approx(found["algorithm_bytes_per_s"] / 1e9, rel=5e-5, abs=0.005)
        assert bus == pytest.approx(found["bus_bytes_per_s"] / 1e9, rel=5e-5, abs=0.01)


def test_the_real_plateau_is_not_the_average(profiles: Path) -> None:
    """All-reduce on 8 H100s: 482.2 GB/s at 16 GiB and flat, where the log's average over all sizes says 437.957."""
    measured = tables_of(profiles / "monitor" / "nccl_tests__cluster01_nccl_N1_G8_cnode3-002.log")
    found = plateau(collectives(*(row for row, _, _ in measured))).set_index("operation").loc["all_reduce"]
    assert (17_179_869_184, 2) == tuple(found[["largest_bytes", "count"]])
    assert 482.2 == round(found["bus_bytes_per_s"] / 1e9, 1)
    assert 0.0019 == round(found["growth_frac"], 4)


def test_a_real_trace(profiles: Path) -> None:
    """The last all-gather of a B200 trace: 201,088 elements of 2 B to 8 ranks in 21.953 us, 18.32 and 16.03 GB/s."""
    trace = torch_trace.read(profiles / "torch" / "TraceLens__b200__eager_trace.json.gz")
    found = bandwidth(trace.table("COLLECTIVES")).iloc[0]
    rates = [402_176 / 21.953e-6, 402_176 / 21.953e-6 * 7 / 8]
    assert rates == pytest.approx(found[["algorithm_bytes_per_s", "bus_bytes_per_s"]].tolist(), rel=1e-12)


def test_no_collectives() -> None:
    """No rows, with the columns and types of a full answer; another table is refused."""
    for of in (bandwidth, summary, plateau):
        full, found = of(collectives({})), of(COLLECTIVES.empty())
        assert 0 == len(found)
        assert full.dtypes.astype(str).tolist() == found.dtypes.astype(str).tolist()
        with pytest.raises(SchemaError, match="table 'COLLECTIVES' does not match"):
            of(TOY)
