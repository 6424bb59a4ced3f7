"""The samples hold what the reports of the course print: kernels, windows, latencies, counters, operations."""

import sqlite3
import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import perfkit
from make import bert, resnet_work
from make.resnet_work import NAMES
from perfkit.analysis import flops, operators

DATA = Path(__file__).parents[2] / "data"
MLP, BERT, RESNET = DATA / "mlp_a100", DATA / "bert_a100", DATA / "resnet18_a100"
PASSES = RESNET / "inference" / "resnet18_a100.inference.nsys.sqlite"
KERNEL, MEMCPY = "CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_MEMCPY"
Connect = Callable[[Path], sqlite3.Connection]
Truth = Callable[[str], dict[str, Any]]

# s: what the snapshots of the report on BERT print
GPU_S = {
    1: 0.0094331693649292,
    8: 0.01702481269836426,
    16: 0.027854666709899903,
    32: 0.04863374710083008,
}
SAMPLED = """SELECT m.metricName, AVG(g.value) FROM GPU_METRICS g JOIN TARGET_INFO_GPU_METRICS m USING (metricId)
WHERE timestamp >= ? AND timestamp < ? GROUP BY m.metricName"""
WORK = """SELECT MIN(start), MAX(end) FROM (SELECT start, end FROM CUPTI_ACTIVITY_KIND_KERNEL
UNION ALL SELECT start, end FROM CUPTI_ACTIVITY_KIND_MEMCPY)"""

# section 3.3 of the report, up to where it cuts each name off; text recognition lost an `_f32` in the second name of
# fprop and the third of dgrad, and put a blank into "tilesize 64x32x64"
RESNET_KERNELS = {
    "fprop": (
        "sm80_xmma_fprop_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize64x32x64_stage5_war",
        "sm80_xmma_fprop_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nchw_tilesize64x32x64_stage5_warpsize2x2",
        "sm80_xmma_fprop_implicit_gemm_indexed_wo_smem_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x32x16_s",
    ),
    "dgrad": (
        "void cudnn::detail::dgrad2d_alg1_1<float, (int)0, (int)6, (int)5, (int)4, (int)4, (bool)0, ",
        "void cutlass_5x_cudnn::Kernel<cutlass_tensorop_s1688dgrad_optimized_tf32_64x64_32x5_nhwc_unity_str",
        "sm80_xmma_dgrad_implicit_gemm_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x32x64_stage5_warpsize2x2",
    ),
    "wgrad": (
        "void cudnn::cnn::wgrad_alg1_engine<float, float, (int)128, (int)5, (int)5, (int)3, (int)3, (int)3, ",
        "sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize64x32x64_stage5_war",
        "void cutlass_5x_cudnn::Kernel<cutlass_tensorop_s1688wgrad_optimized_tf32_128x64_16x6_nhwc_align4>(",
    ),
}


def test_kernels_are_table_5_of_the_report(connect: Connect, truth_of: Truth) -> None:
    """Total, instances, average to 0.1 ns, median, minimum, maximum and name, in the report's order, by the rows.

    The report prints short names that repeat; written out, all 28 differ. The sums are those of the definitions,
    section 17.
    """
    query = f"SELECT value, end - start FROM {KERNEL} JOIN StringIds ON id = demangledName"
    durations = pd.DataFrame(
        connect(MLP / "mlp_a100.nsys.sqlite").execute(query).fetchall(), columns=["name", "ns"]
    ).groupby("name")["ns"]
    found = durations.agg(["sum", "count", "mean", "median", "min", "max"]).sort_values(
        "sum", ascending=False
    )
    _, *lines = Path(__file__).with_name("mlp_kernels.txt").read_text(encoding="utf-8").splitlines()
    rows = [line.split() for line in lines]
    assert [[float(number) for number in row[:6]] for row in rows] == found.round(
        {"mean": 1}
    ).to_numpy().tolist()
    assert all(row[6] in full for row, full in zip(rows, found.index, strict=True))
    assert (28, 87_363_080, 14_245) == (len(found), found["sum"].sum(), found["count"].sum())
    assert (
        87_363_080 == truth_of("mlp_a100")["gpus"]["0"]["kernel_busy_ns"]
    )  # one stream: kernels never overlap
    softmax = "void <unnamed>::softmax_warp_forward<float, float, float, 4, 0, 0>"
    relu = "void at::vectorized_elementwise_kernel<4, at::<unnamed>::launch_clamp"
    split = "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, "
    for start in (
        "ampere_sgemm_32x32_sliced1x4_tn",
        softmax,
        relu,
        split,
    ):  # as section 2.3 prints them
        assert found.index.str.startswith(start).any()


def test_windows_are_the_reports(connect: Connect) -> None:
    """The report's own query finds its own times; mean percentages, times its script's 1935 GB/s, print as there."""
    db, query = (
        connect(MLP / "mlp_a100.nsys.sqlite"),
        "SELECT MIN(start) / 1e9, MAX(end) / 1e9 FROM ",
    )
    assert [(9.644169424, 19.447882187)] == db.execute(query + KERNEL).fetchall()
    assert [(9.5316707, 19.447603756)] == db.execute(query + MEMCPY).fetchall()
    sampled = "SELECT avg(value) FROM GPU_METRICS g JOIN TARGET_INFO_GPU_METRICS m ON g.typeId = m.typeId AND "
    sampled += "g.metricId = m.metricId WHERE metricName LIKE ? AND timestamp BETWEEN ? AND ?"
    for first, expected in (
        (9_644_000_000, ["0.17", "0.07", "0.93"]),
        (9_531_400_000, ["0.17", "0.09", "0.96"]),
    ):
        scales = {"SMs Active%": 1, "DRAM Read%": 19.35, "DRAM Write%": 19.35}
        means = [
            db.execute(sampled, (name, first, 19_448_000_000)).fetchone()[0] * k
            for name, k in scales.items()
        ]
        assert expected == [f"{mean:.2f}" for mean in means]


def test_intensity_and_rate_of_the_mlp_are_the_reports(truth_of: Truth) -> None:
    """13.10 FLOP/B and 0.564 TFLOP/s; with the mistaken time it would be 4.5."""
    told, found = (
        truth_of("mlp_a100")["ncu"],
        perfkit.load(MLP / "mlp_a100.inference.ncu.csv").launches,
    )
    totals, expected = told["totals"], pd.DataFrame(told["launches"])
    assert ("13.10", "0.564") == (
        f"{totals['intensity']:.2f}",
        f"{totals['flops_per_s'] / 1e12:.3f}",
    )
    assert "4.5" == f"{totals['mistaken_flops_per_s'] / 1e12:.1f}"
    assert (totals["flops"], totals["dram_bytes"]) == (
        found["fp32_flops"].sum(),
        found["dram_bytes"].sum(),
    )
    for column in (
        "grid_blocks",
        "block_threads",
        "dur_ns",
        "clock_hz",
        "fp32_flops",
        "dram_bytes",
    ):
        assert expected[column].tolist() == found[column].tolist()
    frac = expected["theoretical_occupancy_frac"].tolist()
    assert pytest.approx(frac, rel=1e-12) == found["theoretical_occupancy_frac"].tolist()


@pytest.mark.parametrize("batch", GPU_S)
def test_latencies_are_the_reports(connect: Connect, truth_of: Truth, batch: int) -> None:
    """Mean and median of the steps, as the ranges in the file say them, are what the report prints, to the ns."""
    phase = f"{batch} sequence{'s' * (batch > 1)}"
    db = connect(BERT / "bert_a100.nsys.sqlite")
    ranges = db.execute(
        "SELECT start, end, text FROM NVTX_EVENTS ORDER BY start, end DESC"
    ).fetchall()
    ((first, last, _),) = [row for row in ranges if row[2] == phase]
    lengths = [
        b - a for a, b, text in ranges if text.startswith("step ") and first <= a and b <= last
    ]
    expected = round(GPU_S[batch] * 1e9)
    assert (12, expected, expected) == (
        len(lengths),
        statistics.mean(lengths),
        statistics.median(lengths),
    )
    assert lengths == truth_of("bert_a100")["phases"][phase]["latency_ns"]


def test_flops_by_shape_are_those_of_bert() -> None:
    """Three steps of a batch of 32 sequences of 128 tokens, through twelve layers and a head."""
    run, tokens = perfkit.load(BERT / "bert_a100.pt.trace.json.gz"), 32 * 128
    owner = operators.kernels_of(run.ops, run.kernels, run.api_calls)
    assert {"launch"} == set(owner["how"])
    spent = flops.GPU_TIME.make(owner[["rank", "op"]].assign(gpu_ns=run.kernels["dur_ns"]))
    points = flops.roofline(run.ops, spent).dropna(subset=["flops"]).astype({"name": "string"})
    found = points.groupby("name")["flops"].sum().to_dict()
    square, wide, attention = (
        2 * tokens * 768 * 768,
        2 * tokens * 768 * 3072,
        2 * 32 * 12 * 128 * 128 * 64,
    )
    assert 3 * (12 * (4 * square + 2 * wide) + 2 * tokens * 768 * 2) == found["aten::addmm"]
    assert 3 * 12 * 2 * attention == found["aten::bmm"]
    assert 3 * bert.batch_flops(32) == found["aten::addmm"] + found["aten::bmm"]


def printed(db: sqlite3.Connection, work: str = WORK) -> tuple[str, str, str]:
    means = dict(db.execute(SAMPLED, db.execute(work).fetchone()))
    read, write = (
        means[f"DRAM {way} Bandwidth [Throughput %]"] * 19.35 for way in ("Read", "Write")
    )
    return f"{means['SMs Active [Throughput %]']:.2f}", f"{read:.2f}", f"{write:.2f}"


def test_the_reports_figures(connect: Connect, truth_of: Truth) -> None:
    """SMs active (%), memory read and written (GB/s) by SQL: sections 3.3.1 and 3.3.2, of inference 3.4.1 and 3.4.2.

    A pass on one image takes 0.005322594642639161 s.
    """
    assert ("14.41", "47.98", "34.97") == printed(connect(RESNET / "resnet18_a100.nsys.sqlite"))
    kernels = "SELECT MIN(start), MAX(end) FROM CUPTI_ACTIVITY_KIND_KERNEL"
    assert ("3.23", "8.02", "7.58") == printed(connect(PASSES), kernels)
    steps = truth_of("resnet18_a100")["inference"]["steps"]
    assert 5_322_595 == steps["total_ns"] / steps["count"]


def test_the_reports_kernels_lead_their_kinds_in_its_order() -> None:
    """The three most expensive kernels of fprop, dgrad and wgrad in a training step are the report's."""
    time: Counter[str] = Counter()
    for launch in (*resnet_work.forward(128, training=True), *resnet_work.backward(128)):
        time[launch.key] += round(resnet_work.duration_ns(launch))
    for kind, names in RESNET_KERNELS.items():
        leading = [NAMES[key] for key, _ in time.most_common() if key.startswith(kind)][:3]
        assert all(full.startswith(name) for full, name in zip(leading, names, strict=True)), (
            leading
        )
