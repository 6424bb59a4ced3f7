"""The simulated run of the lab's ResNet-18, and the work of its layers."""

import json
import sqlite3
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import perfkit
from make import resnet_work
from make.resnet_work import NAMES
from perfkit import analysis
from perfkit.tables import COPIES

SAMPLE = Path(__file__).parents[2] / "data" / "resnet18_a100"
CAPTURE, TRUTH = SAMPLE / "resnet18_a100.nsys.sqlite", json.loads((SAMPLE / "resnet18_a100.truth.json").read_text())
PASSES, COUNTERS = (SAMPLE / "inference" / f"resnet18_a100.inference.{end}" for end in ("nsys.sqlite", "ncu.csv"))
SAMPLED = """SELECT m.metricName, AVG(g.value) FROM GPU_METRICS g JOIN TARGET_INFO_GPU_METRICS m USING (metricId)
WHERE timestamp >= ? AND timestamp < ? GROUP BY m.metricName"""
WORK = """SELECT MIN(start), MAX(end) FROM (SELECT start, end FROM CUPTI_ACTIVITY_KIND_KERNEL
UNION ALL SELECT start, end FROM CUPTI_ACTIVITY_KIND_MEMCPY)"""

# section 3.3 of the report, up to where it cuts each name off; text recognition lost an `_f32` in the second name of
# fprop and the third of dgrad, and put a blank into "tilesize 64x32x64"
REPORT = {
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

Connect = Callable[[Path], sqlite3.Connection]


def printed(db: sqlite3.Connection, work: str = WORK) -> tuple[str, str, str]:
    means = dict(db.execute(SAMPLED, db.execute(work).fetchone()))
    read, write = (means[f"DRAM {way} Bandwidth [Throughput %]"] * 19.35 for way in ("Read", "Write"))
    return f"{means['SMs Active [Throughput %]']:.2f}", f"{read:.2f}", f"{write:.2f}"


def test_the_reports_figures(connect: Connect) -> None:
    """SMs active (%), memory read and written (GB/s) by SQL: sections 3.3.1 and 3.3.2, of inference 3.4.1 and 3.4.2.

    A pass on one image takes 0.005322594642639161 s.
    """
    assert ("14.41", "47.98", "34.97") == printed(connect(CAPTURE))
    kernels = "SELECT MIN(start), MAX(end) FROM CUPTI_ACTIVITY_KIND_KERNEL"
    assert ("3.23", "8.02", "7.58") == printed(connect(PASSES), kernels)
    steps = TRUTH["inference"]["steps"]
    assert 5_322_595 == steps["total_ns"] / steps["count"]


def test_analyses_find_the_truth() -> None:
    run = perfkit.load(SAMPLE)
    busy = analysis.timeline.busy(run.kernels, run.copies).iloc[0]
    told = TRUTH["gpus"]["0"]
    assert (told["span_ns"], told["device_busy_ns"]) == (busy["span_ns"], busy["device_busy_ns"])
    alone = analysis.timeline.busy(run.kernels, COPIES.empty()).iloc[0]
    assert told["kernel_busy_ns"] == alone["kernel_busy_ns"]
    waits = run.ranges.loc[run.ranges["name"].eq("data loading"), "dur_ns"]
    assert TRUTH["steps"]["loading_ns"] == waits.sum()


def test_the_reader_finds_the_launches() -> None:
    found, told = perfkit.load(COUNTERS).launches, TRUTH["ncu"]["launches"]
    assert [row["name"] for row in told] == found["full_name"].tolist()
    for column in ("grid_blocks", "block_threads", "dur_ns", "tensor_flops", "fp32_flops", "dram_bytes"):
        assert [row[column] for row in told] == found[column].tolist()
    shares = found[[column for column in found if column.endswith("_frac")]]
    assert shares.stack(future_stack=True).between(0, 1).all()


def test_counters_and_timeline_are_of_the_same_pass() -> None:
    run = perfkit.load(PASSES.parent)
    launches, kernels = run.launches, run.kernels
    assert launches["full_name"].astype(str).tolist() * 40 == kernels["full_name"].astype(str).tolist()
    assert launches["grid_blocks"].tolist() * 40 == kernels["grid_blocks"].tolist()


def test_the_reports_kernels_lead_their_kinds_in_its_order() -> None:
    """The three most expensive kernels of fprop, dgrad and wgrad in a training step are the report's."""
    time: Counter[str] = Counter()
    for launch in (*resnet_work.forward(128, training=True), *resnet_work.backward(128)):
        time[launch.key] += round(resnet_work.duration_ns(launch))
    for kind, names in REPORT.items():
        leading = [NAMES[key] for key, _ in time.most_common() if key.startswith(kind)][:3]
        assert all(full.startswith(name) for full, name in zip(leading, names, strict=True)), leading
