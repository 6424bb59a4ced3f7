"""GPU metrics of Nsight Systems exports: names, units and numbering (made files)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from readers import nsys_files as made
from readers.nsys_files import HOST, Write, every_form

from perfkit.readers import nsys
from perfkit.readers.nsys.tables import canonical

# A metric set of 2024, with one quantity in three units.
LISTED = (
    "GPC Clock Frequency [MHz]",
    "SYS Clock Frequency [MHz]",
    "GR Active [Throughput %]",
    "GR Active [Workloads]",
    "Compute Warps in Flight [Throughput %]",
    "Compute Warps in Flight [Avg]",
    "Compute Warps in Flight [Avg Warps per Cycle]",
    "PCIe RX Throughput [Throughput %]",
    "PCIe Read Requests to BAR1 [Requests]",
)


def samples(folder: Path, listed: list[made.Row], *rows: made.Row, **tables: list[made.Row]) -> pd.DataFrame:
    """SAMPLES of a capture of these metrics."""
    content = {"TARGET_INFO_GPU_METRICS": listed, "GPU_METRICS": list(rows), **tables}
    return made.read(folder, content).table("SAMPLES")


@pytest.mark.parametrize(
    ("old", "new", "name"),
    [
        ("SM Active", "SMs Active [Throughput %]", "sm_active_frac"),
        ("DRAM Read Throughput", "DRAM Read Bandwidth [Throughput %]", "dram_read_frac"),
        ("DRAM Write Throughput", "DRAM Write Bandwidth [Throughput %]", "dram_write_frac"),
        ("Tensor Active", "Tensor Active [Throughput %]", "tensor_active_frac"),
        ("SM Issue", "SM Issue [Throughput %]", "sm_issue_frac"),
        ("PCIe RX Throughput", "PCIe RX Throughput [Throughput %]", "pcie_rx_frac"),
        ("Compute Warps In Flight", "Compute Warps in Flight [Throughput %]", "compute_warps_in_flight_frac"),
        ("Unallocated Warps in Active SMs", "Unallocated Warps in Active SMs [Throughput %]",
         "unallocated_warps_in_active_sms_frac"),
        ("GPC Clock Frequency", "GPC Clock Frequency [MHz]", "gpc_clock_hz"),
        ("SYS Clock Frequency", "SYS Clock Frequency [MHz]", "sys_clock_hz"),
    ],
)  # fmt: skip
def test_both_spellings_are_one_metric(old: str, new: str, name: str) -> None:
    """nsys renamed its metrics in 2023: both spellings have one canonical name."""
    assert (name, name) == (canonical(old), canonical(new))


def test_one_quantity_in_several_units_stays_several_metrics() -> None:
    """Avg, Avg Warps per Cycle and % of the same quantity are not mixed, and only % is a fraction."""
    names = [canonical(name) for name in LISTED]
    assert len(LISTED) == len(set(names))
    assert {True} == {name.endswith("_frac") == ("%" in listed) for name, listed in zip(names, LISTED, strict=True)}
    assert all(name.endswith(("_frac", "_hz", "_count")) for name in names)


@every_form
def test_percents_become_fractions(write: Write, tmp_path: Path) -> None:
    """7 % is 0.07, at the time it was read, which may lie before the start."""
    tables = {
        "TARGET_INFO_GPU_METRICS": [made.metric("SMs Active [Throughput %]")],
        "GPU_METRICS": [made.sample(100, 100), made.sample(-368_205, 7)],
    }
    frame = nsys.read(write(tmp_path / "run", tables)).table("SAMPLES")
    assert [[-368_205, 0.07], [100, 1.0]] == frame[["time_ns", "value"]].to_numpy().tolist()


def test_counts_stay_counts(tmp_path: Path) -> None:
    """A metric in another unit than % is not divided by 100."""
    frame = samples(tmp_path, [made.metric("PCIe Read Requests to BAR1 [Requests]")], made.sample(0, 150))
    assert ["pcie_read_requests_to_bar1_requests_count"] == frame["metric"].tolist()
    assert [150.0] == frame["value"].tolist()


def test_clocks_that_overflowed_are_unwrapped(tmp_path: Path) -> None:
    """2,154,414,000 Hz does not fit 32 bits with sign and is stored as -2,140,553,296; MHz become Hz; 0 stays."""
    rows = [made.sample(i, v) for i, v in enumerate((2_154_414_000 - 2**32, 1_410_000_000, 1410, 0))]
    frame = samples(tmp_path, [made.metric("GPC Clock Frequency [MHz]")], *rows)
    assert [2_154_414_000.0, 1.41e9, 1.41e9, 0.0] == frame["value"].tolist()


@every_form
def test_metrics_are_numbered_per_set(write: Write, tmp_path: Path) -> None:
    """Metric 1 of one GPU's set is not metric 1 of the other's: the join is on typeId and metricId."""
    listed = [
        made.metric("SM Active", 1, HOST),
        made.metric("DRAM Read Throughput", 2, HOST),
        made.metric("DRAM Read Throughput", 1, HOST | 1),
        made.metric("SM Active", 2, HOST | 1),
    ]
    rows = [made.sample(0, 10 * m + g, m, HOST | g) for g in (0, 1) for m in (1, 2)]
    tables = {"TARGET_INFO_GPU_METRICS": listed, "GPU_METRICS": rows}
    frame = nsys.read(write(tmp_path / "run", tables)).table("SAMPLES")
    values = dict(zip(zip(frame["gpu"], frame["metric"], strict=True), frame["value"], strict=True))
    expected = {"dram_read_frac": (0.20, 0.11), "sm_active_frac": (0.10, 0.21)}
    assert {(g, m): pair[g] for m, pair in expected.items() for g in (0, 1)} == values


def test_the_low_byte_of_the_set_is_the_gpu(tmp_path: Path) -> None:
    """GPU 1 of the listing is CUDA device 0 here, so its samples are GPU 0's; an unlisted GPU keeps its number."""
    gpus = [made.gpu(0, cuDevice=1), made.gpu(1, cuDevice=0)]
    listed = [made.metric("SM Active", 1, HOST | kind) for kind in (0x101, 0x202)]
    rows = [made.sample(0, 5, kind=HOST | kind) for kind in (0x101, 0x202)]
    frame = samples(tmp_path, listed, *rows, TARGET_INFO_GPU=gpus)
    assert [0, 2] == frame["gpu"].tolist()


def test_a_metric_that_is_not_listed_has_no_unit(tmp_path: Path) -> None:
    """What nobody names is kept as stored under its number, never taken for percent."""
    frame = samples(tmp_path, [made.metric("SM Active", 1)], made.sample(0, 300, metric=9))
    assert [["metric_9_unlisted_count", 300.0]] == frame[["metric", "value"]].to_numpy().tolist()


def test_samples_are_those_of_brute_force(tmp_path: Path) -> None:
    """On random samples of two GPUs and three metrics every value is its own percent over 100, sorted."""
    rng = np.random.default_rng(2)
    names = ("SM Active", "GR Active", "SM Issue")
    listed = [made.metric(name, i, HOST | g) for i, name in enumerate(names) for g in (0, 1)]
    picks = [(*map(int, rng.integers(0, (2, 3, 101))), time) for time in range(500)]
    frame = samples(tmp_path, listed, *(made.sample(t, v, m, HOST | g) for g, m, v, t in picks))
    expected = sorted((g, canonical(names[m]), t, v / 100) for g, m, v, t in picks)
    assert expected == list(frame[["gpu", "metric", "time_ns", "value"]].itertuples(index=False, name=None))


@every_form
def test_a_reading_that_is_null_is_impossible(write: Write, tmp_path: Path) -> None:
    """A sample without a time, or without a value, is handed on as impossible, never as time or value 0."""
    rows = [made.sample(5, 50), {**made.sample(0, 50), "timestamp": None}, {**made.sample(7, 0), "value": None}]
    tables = {"TARGET_INFO_GPU_METRICS": [made.metric("SM Active")], "GPU_METRICS": rows}
    frame = nsys.read(write(tmp_path / "run", tables)).loaders["SAMPLES"]()
    assert [-(2**63), 5, 7] == frame["time_ns"].tolist()
    assert [0.5, 0.5, None] == frame["value"].astype(object).where(frame["value"].notna(), None).tolist()


@every_form
def test_absurd_numbers_of_metrics_are_metrics(write: Write, tmp_path: Path) -> None:
    """Numbers of metrics and sets beyond 32 bits, negative or NULL number metrics of their own, which none lists."""
    numbers = (2**62, -(2**63), -7, 2**32 + 1, 1)
    rows = [made.sample(i, 10, metric=number) for i, number in enumerate(numbers)]
    rows.append({**made.sample(9, 10), "typeId": None})
    tables = {"TARGET_INFO_GPU_METRICS": [made.metric("SM Active")], "GPU_METRICS": rows}
    frame = nsys.read(write(tmp_path / "run", tables)).table("SAMPLES").sort_values("time_ns")
    unlisted = [f"metric_{abs(number)}_unlisted_count" for number in numbers[:-1]]
    assert [*unlisted, "sm_active_frac", "metric_1_unlisted_count"] == frame["metric"].tolist()
    assert [0, 0, 0, 0, 0, -1] == frame["gpu"].tolist()


def test_metrics_of_as_many_kinds_as_samples_are_read(tmp_path: Path) -> None:
    """100,000 samples, each of a metric of its own, are read in one pass."""
    rows = [made.sample(i, 10, metric=i) for i in range(100_000)]
    frame = samples(tmp_path, [made.metric("SM Active", 7)], *rows)
    assert 100_000 == frame["metric"].nunique()
    assert [0.1] == frame["value"][frame["metric"] == "sm_active_frac"].tolist()


@pytest.mark.parametrize("name", [7, b"SM Active", None, "x" * 10**6])
def test_a_metric_of_an_odd_name_is_read(tmp_path: Path, name: object) -> None:
    """A name that is no text lists nothing; a very long one is cut."""
    frame = samples(tmp_path, [{**made.metric("", 1), "metricName": name}], made.sample(0, 30))
    (metric,) = frame["metric"]
    assert metric == ("metric_1_unlisted_count" if not isinstance(name, str) else "x" * 200 + "_frac")
