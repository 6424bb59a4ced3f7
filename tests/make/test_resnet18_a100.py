"""The simulated run of ResNet-18: the report's figures, and its truth counted again from the files."""

from __future__ import annotations

import csv
import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import perfkit
from make import resnet18_a100
from perfkit import analysis
from perfkit.tables import COPIES

CAPTURE, TRUTH = "resnet18_a100.nsys.sqlite", "resnet18_a100.truth.json"
PASSES, COUNTERS = (f"inference/resnet18_a100.inference.{end}" for end in ("nsys.sqlite", "ncu.csv"))
SAMPLED = """SELECT m.metricName, AVG(g.value) FROM GPU_METRICS g JOIN TARGET_INFO_GPU_METRICS m USING (metricId)
WHERE timestamp >= ? AND timestamp < ? GROUP BY m.metricName"""
WORK = """SELECT MIN(start), MAX(end) FROM (SELECT start, end FROM CUPTI_ACTIVITY_KIND_KERNEL
UNION ALL SELECT start, end FROM CUPTI_ACTIVITY_KIND_MEMCPY)"""

Connect = Callable[[Path], sqlite3.Connection]


@pytest.fixture(scope="module")
def resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the simulated run."""
    return resnet18_a100(tmp_path_factory.mktemp("resnet") / "resnet18_a100")


@pytest.fixture(scope="module")
def truth(resnet: Path) -> dict[str, Any]:
    """What the simulation says is true of it."""
    return json.loads((resnet / TRUTH).read_text())


@pytest.fixture(scope="module")
def counted(resnet: Path) -> dict[str, list[str]]:
    """The counters by metric, read by a plain loop."""
    lines = (resnet / COUNTERS).read_text().splitlines()
    header, _, *rows = csv.reader(lines[next(i for i, line in enumerate(lines) if line.startswith('"ID",')) :])
    return dict(zip(header, map(list, zip(*rows, strict=True)), strict=True))


def numbers(values: list[str]) -> list[float]:
    """The printed numbers without their separators."""
    return [float(value.replace(",", "")) for value in values]


def printed(db: sqlite3.Connection, work: str = WORK) -> tuple[str, str, str]:
    """SM activity, memory read and written over the window of the GPU's work, as the report prints them."""
    means = dict(db.execute(SAMPLED, db.execute(work).fetchone()))
    read, write = (means[f"DRAM {way} Bandwidth [Throughput %]"] * 19.35 for way in ("Read", "Write"))
    return f"{means['SMs Active [Throughput %]']:.2f}", f"{read:.2f}", f"{write:.2f}"


def test_training_has_the_reports_figures(resnet: Path, connect: Connect) -> None:
    """SMs active 14.41 %, memory read 47.98 and written 34.97 GB/s (sections 3.3.1 and 3.3.2), by SQL."""
    assert ("14.41", "47.98", "34.97") == printed(connect(resnet / CAPTURE))


def test_inference_has_the_reports_figures(resnet: Path, connect: Connect) -> None:
    """SMs active 3.23 %, memory read 8.02 and written 7.58 GB/s (sections 3.4.1 and 3.4.2)."""
    kernels = "SELECT MIN(start), MAX(end) FROM CUPTI_ACTIVITY_KIND_KERNEL"
    assert ("3.23", "8.02", "7.58") == printed(connect(resnet / PASSES), kernels)


def test_a_pass_takes_what_the_report_says(truth: dict[str, Any]) -> None:
    """0.005322594642639161 s for one image."""
    steps = truth["inference"]["steps"]
    assert 5_322_595 == steps["total_ns"] / steps["count"]


def test_rows_are_the_truth(resnet: Path, truth: dict[str, Any], count_rows: Callable[[Path], dict[str, Any]]) -> None:
    """Kernels, busy time, idle time and calls of both captures, counted row by row."""
    for path, told in ((CAPTURE, truth), (PASSES, truth["inference"])):
        found = count_rows(resnet / path)
        assert told["kernels"] == found["kernels"]
        assert told["calls"] == found["calls"]
        assert told["launches"]["queued_total_ns"] == found["queued_total_ns"]
        for row in told["kernel_rows"]:
            assert found["kernel_rows"][row["full_name"]][:2] == (row["count"], row["total_ns"])
        for key, value in {**told["gpus"]["0"]["breakdown"], "span_ns": told["gpus"]["0"]["span_ns"]}.items():
            assert value == found["gpus"]["0"].get(key, 0)


def test_analyses_find_the_truth(resnet: Path, truth: dict[str, Any]) -> None:
    """Busy and idle time as perfkit computes them from the file."""
    run = perfkit.load(resnet)
    busy = analysis.timeline.busy(run.kernels, run.copies).iloc[0]
    told = truth["gpus"]["0"]
    assert (told["span_ns"], told["device_busy_ns"]) == (busy["span_ns"], busy["device_busy_ns"])
    alone = analysis.timeline.busy(run.kernels, COPIES.empty()).iloc[0]
    assert told["kernel_busy_ns"] == alone["kernel_busy_ns"]
    waits = run.ranges.loc[run.ranges["name"].eq("data loading"), "dur_ns"]
    assert truth["steps"]["loading_ns"] == waits.sum()


def test_the_first_launches_are_printed_as_in_the_report(counted: dict[str, list[str]]) -> None:
    """The table of section 3.4.3: Mbyte, share of the peak and GB/s; row 1's and 2's bytes are not readable there."""
    names = ("", ".pct_of_peak_sustained_elapsed", ".per_second")
    read, percent, rate = (numbers(counted[f"dram__bytes_read.sum{name}"])[:6] for name in names)
    assert ["0.61", "3.22", "3.22", "3.22"] == [f"{read[i] / 1e6:.2f}" for i in (0, 3, 4, 5)]
    assert ["4.50", "0.55", "1.57", "23.65", "8.84", "26.71"] == [f"{value:.2f}" for value in percent]
    assert [91.77, 11.17, 31.85, 479.81, 180.11, 543.29] == [round(value / 1e9, 2) for value in rate]


def test_sums_are_the_reports(counted: dict[str, list[str]]) -> None:
    """137.21 Mbyte read and 242.43 Kbyte written, none of it by the first five launches."""
    read, written = (numbers(counted[f"dram__bytes_{way}.sum"]) for way in ("read", "write"))
    assert ("137.21", "242.43") == (f"{sum(read) / 1e6:.2f}", f"{sum(written) / 1e3:.2f}")
    assert [0.0] * 5 == written[:5]


def test_tensor_cores_count_at_least_the_formula(truth: dict[str, Any]) -> None:
    """1.81 GMAC per image are 3.63 GFLOP; whole tiles do up to a quarter more, and CUDA cores below 1 %."""
    totals = truth["ncu"]["totals"]
    assert 3_627_122_688 == totals["convolution_flops"]
    assert 1 < totals["tensor_flops"] / totals["convolution_flops"] < 1.25
    assert totals["fp32_flops"] < 0.01 * totals["tensor_flops"]


def test_the_reports_kernel_leads_inference(truth: dict[str, Any]) -> None:
    """Section 3.4.4: the most expensive kernel of a forward pass, in both captures of it."""
    name = (
        "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize64x32x64_stage5_warpsize2x2x1"
    )
    assert truth["inference"]["kernel_rows"][0]["full_name"].startswith(f"{name}_g1_tensor16")
    time: dict[str, int] = {}
    for row in truth["ncu"]["launches"]:
        time[row["name"]] = time.get(row["name"], 0) + row["dur_ns"]
    assert max(time, key=time.__getitem__).startswith(name)


def test_the_reader_finds_the_launches(resnet: Path, truth: dict[str, Any]) -> None:
    """LAUNCHES read from the file are the truth, and no percentage is impossible."""
    found, told = perfkit.load(resnet / COUNTERS).launches, truth["ncu"]["launches"]
    assert [row["name"] for row in told] == found["full_name"].tolist()
    for column in ("grid_blocks", "block_threads", "dur_ns", "tensor_flops", "fp32_flops", "dram_bytes"):
        assert [row[column] for row in told] == found[column].tolist()
    shares = found[[column for column in found if column.endswith("_frac")]]
    assert shares.notna().all(axis=None)
    assert shares.ge(0).all(axis=None)
    assert shares.le(1).all(axis=None)


def test_counters_and_timeline_are_of_the_same_pass(resnet: Path) -> None:
    """The launches that were counted are those of each pass on the timeline, in order, with their grids."""
    run = perfkit.load((resnet / PASSES).parent)
    launches, kernels = run.launches, run.kernels
    assert launches["full_name"].astype(str).tolist() * 40 == kernels["full_name"].astype(str).tolist()
    assert launches["grid_blocks"].tolist() * 40 == kernels["grid_blocks"].tolist()


def test_it_says_that_it_is_simulated(resnet: Path, truth: dict[str, Any], connect: Connect) -> None:
    """Both captures, the counters' log and the truth."""
    for path in (CAPTURE, PASSES):
        query = "SELECT value FROM META_DATA_CAPTURE WHERE name = 'SIMULATED'"
        assert connect(resnet / path).execute(query).fetchone() == (truth["simulated"],)
    assert truth["simulated"] in (resnet / COUNTERS).read_text().splitlines()[0]
    assert "no GPU ran" in truth["simulated"]


def test_same_seed_same_bytes_and_another_seed_the_same_figures(resnet: Path, tmp_path: Path, connect: Connect) -> None:
    """The report's figures do not depend on the seed, the rest does."""
    again, other = resnet18_a100(tmp_path / "again"), resnet18_a100(tmp_path / "other", seed=1)
    for path in (CAPTURE, PASSES, COUNTERS, TRUTH):
        assert (resnet / path).read_bytes() == (again / path).read_bytes()
    assert (resnet / CAPTURE).read_bytes() != (other / CAPTURE).read_bytes()
    assert ("14.41", "47.98", "34.97") == printed(connect(other / CAPTURE))


def test_the_sample_run_is_this_simulation(resnet: Path, connect: Connect) -> None:
    """The run under data/ holds what the command writes today, row by row, and is not over 5 MB."""
    sample = Path(__file__).parents[2] / "data" / "resnet18_a100"
    assert all((sample / name).read_text() == (resnet / name).read_text() for name in (TRUTH, COUNTERS))
    for path in (CAPTURE, PASSES):
        assert list(connect(sample / path).iterdump()) == list(connect(resnet / path).iterdump())
    assert sum(path.stat().st_size for path in sample.rglob("*") if path.is_file()) <= 5_000_000
