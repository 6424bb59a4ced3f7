"""Points, roofs and bounds of the roofline; real reports against the vendor."""

import csv
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from counted import counters, launches
from frames import tuples

import perfkit
from perfkit.analysis.roofline import bound, ceilings, points, speed_of_light
from perfkit.errors import PerfkitError, SchemaError
from perfkit.hardware import Peaks, peaks
from perfkit.tables import COUNTERS, LAUNCHES

GPU = Peaks("made up", {"fp32": 10e12, "fp16_tensor": 100e12}, memory_bytes_per_s=1e12)
FMA = "sm__sass_thread_inst_executed_op_{}fma_pred_on.sum.peak_sustained"
# Peaks per cycle of 46 SMs with 128 FP32 and 2 FP64 lanes each, and of a memory bus of 256 bits.
MEASURED = {
    FMA.format("f"): 5_888.0,
    FMA.format("d"): 92.0,
    "sm__cycles_elapsed.avg.per_second": 1.5e9,
    "dram__bytes.sum.peak_sustained": 64.0,
    "dram__cycles_elapsed.avg.per_second": 7e9,
}


L2 = {
    "lts__lts2xbar_cycles_active.sum.peak_sustained": 48.0,
    "lts__cycles_elapsed.avg.per_second": 1e9,
}


def a100() -> Peaks:
    found = peaks("NVIDIA A100 80GB PCIe")
    assert found is not None
    return found


def judged(*rows: dict[str, Any], gpu: Peaks = GPU) -> pd.DataFrame:
    table = launches(*rows)
    return bound(points(table), ceilings(table, peaks=gpu))


def test_the_lab_report_worked_by_hand() -> None:
    """2 x 15,484,032 + 763,904 + 772,096 = 32,504,064 FLOP, 2,481,024 B, 57.582 us; 2.89 % of 19.5 TFLOP/s."""
    time = 72_581 / (10_083_762_361 / 8) * 1e9
    found = judged(
        {"dur_ns": time, "fp32_flops": 32_504_064, "dram_bytes": 2_481_024}, gpu=a100()
    ).iloc[0]
    assert (57.582, 13.101) == (round(found["dur_ns"] / 1e3, 3), round(found["dram_intensity"], 3))
    assert (0.5645, 10.08) == (round(found["flops_per_s"] / 1e12, 4), round(found["ridge"], 2))
    assert (0.0289, "latency") == (round(found["roof_share_frac"], 4), found["bound"])
    assert "right of the ridge (13.1 and 10.1 FLOP/byte), under 60 % of its roof" in found["reason"]


def test_several_launches_are_summed_before_dividing() -> None:
    # 8 FLOP in 4 ns and 2 FLOP in 16 ns; the mean over time is (0.9 x 4 + 0.4 x 16) / 20 = 0.5.
    first = {"dur_ns": 4, "fp32_flops": 8, "dram_bytes": 1, "sm_frac": 0.9}
    table = launches(first, {"dur_ns": 16, "fp32_flops": 2, "dram_bytes": 4, "sm_frac": 0.4})
    for by in ("name", "full_name", "gpu"):
        found = points(table, by=by).iloc[0]
        assert (2, -1, 10, 20) == tuple(found[["count", "launch", "flops", "dur_ns"]])
        assert (0.5e9, 2, 0.5) == pytest.approx(
            tuple(found[["flops_per_s", "dram_intensity", "sm_frac"]]), rel=1e-15
        )
    assert [2e9, 0.125e9] == pytest.approx(points(table)["flops_per_s"].tolist(), rel=1e-15)


def test_a_launch_has_a_point_per_precision_with_operations() -> None:
    found = points(
        launches({"dur_ns": 10, "fp64_flops": 4, "fp32_flops": 0, "fp16_flops": 6, "dram_bytes": 2})
    )
    assert [("fp16", 3, 10), ("fp64", 2, 10)] == tuples(
        found, "precision", "dram_intensity", "dur_ns"
    )
    # None counted and not counted differ.
    table = launches(
        {"dur_ns": 5, "fp32_flops": 0, "dram_bytes": 1}, {"dur_ns": 5, "dram_bytes": 1}
    )
    found = points(table)
    assert found["precision"].isna().all()
    assert 0 == found.loc[0, "flops"] == found.loc[0, "dram_intensity"]
    assert np.isnan(found.loc[1, ["flops", "flops_per_s", "dram_intensity"]].astype(float)).all()
    assert np.isnan(points(table, by="name").loc[0, "flops"])


BF16 = ("", ""), ("", "_sparsity_off"), ("op_hgmma_", "")


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        ({f"{of}src_bf16_dst_fp32{off}": 8 for of, off in BF16}, ["bf16_tensor"]),
        (
            {"src_fp16_dst_fp16": 3, "src_fp16_dst_fp32": 5, "src_fp16": 8},
            ["fp16_tensor", "fp16_tensor_acc16"],
        ),
        (
            {"src_int8_sparsity_on": 6, "src_int8_sparsity_off": 2},
            ["int8_tensor", "int8_tensor_sparse"],
        ),
        ({"op_hgmma_src_fp8_sparsity_off": 6, "op_hmma_src_fp8_sparsity_off": 2}, ["fp8_tensor"]),
        ({}, ["fp16_tensor"]),
    ],
)
def test_tensor_operations_are_told_by_type(metrics: dict[str, float], expected: list[str]) -> None:
    table = launches(
        {"name": "ampere_fp16_s16816gemm_fp16_128x64_tn", "dur_ns": 1, "tensor_flops": 8}
    )
    recorded = counters(
        {f"sm__ops_path_tensor_{name}.sum": value for name, value in metrics.items()}
    )
    found = points(table, recorded)
    assert expected == found["precision"].tolist()
    assert 8 == found["flops"].sum()


def test_a_type_that_nothing_tells_is_tensor() -> None:
    found = judged({"dur_ns": 1e3, "tensor_flops": 1e6, "dram_bytes": 1e3})
    assert (["tensor"], ["not measured"]) == (found["precision"].tolist(), found["bound"].tolist())
    assert "no roof of tensor is known" in found.loc[0, "reason"]
    # FP16 accumulation has no roof of its own, and takes that of FP16.
    table = launches({"dur_ns": 1e3, "tensor_flops": 5e7, "dram_bytes": 1e5})
    recorded = counters({"sm__ops_path_tensor_src_fp16_dst_fp16.sum": 5e7})
    found = bound(points(table, recorded), ceilings(table, peaks=GPU)).iloc[0]
    assert ("fp16_tensor_acc16", 0.5) == (found["precision"], found["compute_share_frac"])


def test_measured_roofs_are_peak_times_clock() -> None:
    # 2 x 5,888 x 1.5 GHz = 17.664 TFLOP/s, 64 B x 7 GHz = 448 GB/s; the highest counts, the other is 20 % lower.
    slower = MEASURED | {"sm__cycles_elapsed.avg.per_second": 1.2e9}
    found = ceilings(launches({}, {}), counters(MEASURED, slower))
    roofs = found.set_index("roof")
    assert ["dram", "fp32", "fp64"] == found["roof"].tolist()
    assert 17.664e12 == pytest.approx(roofs.loc["fp32", "flops_per_s"], rel=1e-12)
    assert 448e9 == roofs.loc["dram", "bytes_per_s"]
    assert 17_664 / 448 == pytest.approx(roofs.loc["fp32", "ridge"], rel=1e-12)
    assert [0, 0.2, 0.2] == pytest.approx(found["spread_frac"].tolist(), abs=1e-12)
    assert {2} == set(found["count"])
    # Without its clock the launch's own stands in.
    recorded = {
        name: value for name, value in MEASURED.items() if not name.startswith("sm__cycles")
    }
    found = ceilings(launches({"clock_hz": 1e9}), counters(recorded)).set_index("roof")
    assert 2 * 5_888e9 == found.loc["fp32", "flops_per_s"]


def test_measured_roofs_of_caches_halves_and_tensor_cores() -> None:
    tensor = "sm__ops_path_tensor_src_fp16_dst_fp32_sparsity_{}.sum.peak_sustained"
    more = L2 | {
        FMA.format("h"): 100.0,
        "l1tex__lsu_writeback_active_mem_lg.sum.peak_sustained": 46.0,
        "l1tex__cycles_elapsed.avg.per_second": 2e9,
        tensor.format("off"): 47_104.0,
        tensor.format("on"): 94_208.0,
    }
    found = ceilings(launches({}), counters(MEASURED | more)).set_index("roof")
    assert {"l2": 32 * 48e9, "l1": 128 * 46 * 2e9} == found.loc[
        ["l2", "l1"], "bytes_per_s"
    ].to_dict()
    expected = {
        "fp16": 400 * 1.5e9,
        "fp16_tensor": 47_104 * 1.5e9,
        "fp16_tensor_sparse": 94_208 * 1.5e9,
    }
    assert expected == found.loc[list(expected), "flops_per_s"].to_dict()


def test_roofs_of_a_data_sheet() -> None:
    found = ceilings(launches({"gpu": 0}, {"gpu": 1}), peaks=a100())
    assert {(0, 10), (1, 10)} == set(found.groupby("gpu").size().items())
    fp32 = found[found["roof"] == "fp32"].iloc[0]
    assert (19.5e12, 0) == (fp32["flops_per_s"], fp32["count"])
    assert fp32["source"].startswith("dense peaks of NVIDIA A100 80GB PCIe (2026-11): ")


def test_without_peaks_there_is_no_roof() -> None:
    half = counters({name: MEASURED[name] for name in list(MEASURED)[:3]})
    for recorded, more, error, why in (
        (
            (),
            {},
            PerfkitError,
            r"no peak FLOP/s is known for GPU 0 of rank 0.*`ncu --set full.*peaks=",
        ),
        ((half,), {}, PerfkitError, "no peak DRAM bandwidth is known for GPU 0"),
        (
            (),
            {"peaks": peaks("NVIDIA RTX 5880 Ada Generation")},
            PerfkitError,
            "memory bandwidth is not known",
        ),
    ):
        with pytest.raises(error, match=why):
            ceilings(launches({}), *recorded, **more)
    with pytest.raises(SchemaError, match="table 'LAUNCHES' does not match"):
        ceilings(COUNTERS.empty())
    with pytest.raises(ValueError, match=r"by: 'kernel' is not one of \['launch'"):
        points(LAUNCHES.empty(), by="kernel")


@pytest.mark.parametrize(
    ("sm", "memory", "waves", "expected"),
    [
        (0.85, 0.2, 1, "compute"),
        (0.85, 0.9, 1, "memory"),
        (0.7, 0.6, 1, "compute"),
        (0.5, 0.6, 1, "memory"),
        (0.65, 0.6, 1, "balanced"),
        (0.9, 0.9, 1, "balanced"),
        (
            0.91,
            0.95,
            1,
            "balanced",
        ),  # unlike the vendor: cuBLAS on an H100, tensor cores at 95 % (h100_kernels.zip)
        (0.59, 0.2, 1, "latency"),
        (0.1, 0.2, 0.99, "small_grid"),
        (0.1, 0.2, np.nan, "latency"),
        (0.1, np.nan, 1, "not measured"),
    ],
)
def test_the_vendors_rule(sm: float, memory: float, waves: float, expected: str) -> None:
    assert [expected] == speed_of_light(
        *(pd.Series([value]) for value in (sm, memory, waves))
    ).tolist()
    table = launches({"dur_ns": 1, "sm_frac": sm, "memory_frac": memory})
    found = bound(points(table, counters({"launch__waves_per_multiprocessor": waves})))
    assert [expected] == found["bound"].tolist()
    assert "FLOP were not counted" in found.loc[0, "reason"] or expected == "not measured"


@pytest.mark.parametrize(
    ("flops", "moved", "expected", "share"),
    [
        (8e6, 1e5, "compute", 0.8),
        (1e6, 7e5, "memory", 0.7),
        (5e6, 5e5, "latency", 0.5),
        (0, 7e5, "memory", 0.7),
        (11.1e6, 1e3, "refused", np.nan),
        (1e3, 1.2e6, "refused", np.nan),
        (10.9e6, 1e3, "compute", 1.09),
    ],
)
def test_the_roof_decides_without_throughputs(
    flops: float, moved: float, expected: str, share: float
) -> None:
    found = judged({"dur_ns": 1e3, "fp32_flops": flops, "dram_bytes": moved}).iloc[0]
    assert expected == found["bound"]
    assert share == pytest.approx(found["roof_share_frac"], rel=1e-12, nan_ok=True)


def test_one_verdict_per_launch() -> None:
    gemm = {
        "name": "ampere_fp16_s16816gemm_fp16_tn",
        "dur_ns": 1e3,
        "tensor_flops": 9e7,
        "fp32_flops": 1e5,
    }
    found = judged({**gemm, "dram_bytes": 1e5}, {**gemm, "dram_bytes": 1e5, "fp32_flops": 2e7})
    assert ["compute", "compute", "refused", "refused"] == found["bound"].tolist()
    assert found.loc[1, "reason"].startswith("Arithmetic in another precision limits it")
    assert found.loc[0, "reason"].startswith("Refused") is False


def test_a_refusal_names_the_likely_cause() -> None:
    rows = {"dur_ns": 1e3, "dram_bytes": 1e3}
    tensor = judged({**rows, "name": "ampere_fp16_s16816gemm_fp16_tn", "tensor_flops": 2e8}).loc[
        0, "reason"
    ]
    assert (
        "200.0 % of the peak. Likely cause: operations counted with sparsity against a dense peak; or the"
        in tensor
    )
    table = launches({**rows, "fp32_flops": 1e8})
    found = bound(points(table), ceilings(table, counters(MEASURED)))
    assert "the clock changed between the profiler's passes" in found.loc[0, "reason"]
    assert "the peaks are another GPU's" in judged({**rows, "fp32_flops": 1e8}).loc[0, "reason"]


def test_levels_have_shares_of_their_own() -> None:
    # 448 GB/s DRAM and 1,536 GB/s L2: 44,800 B and 307,200 B in 1 us are 10 and 20 %.
    table = launches({"dur_ns": 1e3, "fp32_flops": 1e3, "dram_bytes": 44_800, "l2_bytes": 307_200})
    found = bound(points(table), ceilings(table, counters(MEASURED | L2))).iloc[0]
    assert (0.1, 0.2) == pytest.approx(
        (found["dram_share_frac"], found["l2_share_frac"]), rel=1e-12
    )
    assert np.isnan(found["l1_share_frac"])
    # Half a measurement decides only when it is high.
    found = judged({"dur_ns": 1e3, "fp32_flops": 8e6}, {"dur_ns": 1e3, "fp32_flops": 8e5})
    assert ["compute", "not measured"] == found["bound"].tolist()
    assert "its DRAM bytes were not counted" in found.loc[1, "reason"]


BERT = "leleucas__Actual-Parameter-Collection-for-Machine-Learning-Operators__bert_nsight.csv"


def rows_of(path: Path) -> dict[int, dict[str, float]]:
    found: dict[int, dict[str, float]] = defaultdict(dict)
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.reader(line for line in file if line.startswith('"')):
            if row[0] != "ID" and row[9] and row[11].replace(",", "").replace(".", "").isdigit():
                found[int(row[0])][row[9]] = float(row[11].replace(",", ""))
    return found


def test_real_points_equal_a_hand_calculation(profiles: Path) -> None:
    run = perfkit.load(profiles / "ncu" / BERT)
    found = points(run.launches, run.counters).set_index(["launch", "precision"])
    expected = {}
    for kernel, row in rows_of(profiles / "ncu" / BERT).items():
        op = "sm__sass_thread_inst_executed_op_{}{}_pred_on.sum"
        for letter, name, packed in (("f", "fp32", 1), ("h", "fp16", 2), ("d", "fp64", 1)):
            add, mul, fma = (row[op.format(letter, kind)] for kind in ("add", "mul", "fma"))
            flops = packed * (add + mul + 2 * fma)
            # The tensor instructions of this report have no known number of operations.
            if flops:
                seconds = row["sm__cycles_elapsed.avg"] / row["sm__cycles_elapsed.avg.per_second"]
                expected[kernel, name] = (flops / seconds, flops / row["dram__bytes.sum"])
    assert set(expected) == set(found.index[found["flops"] > 0])
    for key, (performance, intensity) in expected.items():
        assert found.loc[key, "flops_per_s"] == pytest.approx(performance, rel=1e-9)
        assert found.loc[key, "dram_intensity"] == pytest.approx(intensity, rel=1e-12)


def test_real_roofs_measured_in_the_report(profiles: Path) -> None:
    """RTX 3070: 2 x 5,888 x 1.5000 GHz = 17.66 TFLOP/s and 64 B x 6.805 GHz = 435.5 GB/s (448 on the data sheet)."""
    run = perfkit.load(
        profiles / "golden" / "ncu" / "thedavidchu__speedy_scan__profile.raw_base.csv"
    )
    roofs = ceilings(run.launches, run.counters).set_index("roof")
    assert 17.66 == round(roofs.loc["fp32", "flops_per_s"] / 1e12, 2)
    assert 64 * 6_805_170_119.75 == pytest.approx(roofs.loc["dram", "bytes_per_s"], rel=1e-12)
    found = bound(points(run.launches, run.counters), ceilings(run.launches, run.counters)).iloc[0]
    assert 0.5342 == pytest.approx(
        found["dram_share_frac"], abs=5e-4
    )  # the vendor's own DRAM throughput
    assert ("latency", 0) == (found["bound"], found["flops"])
