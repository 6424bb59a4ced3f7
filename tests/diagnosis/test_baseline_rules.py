"""Rules of step 1: links that are slower than they should be, and trainings that use little of the peak."""

from __future__ import annotations

from pathlib import Path

import pytest
from readers import nccl_files

import perfkit
from perfkit import diagnosis
from perfkit.diagnosis.finding import Finding

PUBLISHED = (
    "nccl_tests__cluster01_nccl_N1_G8_cnode3-002.log",
    "superbench__nccl_allreduce.log",
    "superbench__nccl_alltoall.log",
    "superbench__nccl_broadcast.log",
)
MEGATRON = "superbench__megatron_deepspeed.log"
SLOW_OPTIMIZER = "deepspeed_flops_profiler_megatron_gpt.txt"
FLOPS_PROFILER = "deepspeed_flops_profiler_bert_large.txt"


def told(path: Path, peaks: str = "") -> dict[str, Finding]:
    """The findings of a file, by their rule."""
    return {finding.rule: finding for finding in diagnosis.findings(perfkit.load(path), peaks=peaks)}


def peaks(folder: Path, tflops: float) -> str:
    """A file that holds the 16-bit tensor peak of one GPU."""
    path = folder / "peaks.csv"
    path.write_text(f"name_nvidia_smi,bf16_tensor_tflops,mem_bw_gbs\nmine,{tflops},2000\n", encoding="utf-8")
    return str(path)


def all_reduce(folder: Path, *rates: float) -> Path:
    """A log of eight H100 SXM on one node: messages of 2, 4, 8 ... GiB at these bus bandwidths, GB/s."""
    rows = []
    for i, rate in enumerate(rates):
        size = 2**31 << i
        cells = (f"{1.75 * size / rate / 1e3:.1f}", f"{rate / 1.75:.2f}", f"{rate:.2f}", 0)
        rows.append(nccl_files.start(size, size // 4) + 2 * nccl_files.half(cells))
    return nccl_files.written(folder / "all_reduce.log", nccl_files.table(inner=rows))


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_logs_reach_what_links_carry(profiles: Path, name: str) -> None:
    """Eight H100 and eight A100 whose operations reach 0.75 to 1.07 of NVLink's line rate: nothing is found."""
    assert "bus_bandwidth" not in told(profiles / "monitor" / name)


@pytest.mark.parametrize(
    ("rate", "severity"),
    [(400.0, ""), (280.0, ""), (260.0, "medium"), (190.0, "medium"), (170.0, "high"), (40.0, "high")],
)
def test_links_below_six_tenths_of_the_line_rate(tmp_path: Path, rate: float, severity: str) -> None:
    """Of 450 GB/s: 270 GB/s are 0.6 and 180 GB/s 0.4, here on a flat curve, which leaves no doubt."""
    found = told(all_reduce(tmp_path, rate, rate, rate)).get("bus_bandwidth")
    assert severity == (found.severity if found else "")
    if found:
        assert ("high", ()) == (found.confidence, found.against)
        assert [rate / 450, rate * 1e9] == pytest.approx([figure.value for figure in found.evidence], rel=1e-3)


def test_a_curve_that_still_grows_is_doubted(tmp_path: Path) -> None:
    """100, 150, 200 GB/s: messages of 8 GiB may be too small; a single size says even less."""
    growing = told(all_reduce(tmp_path, 100, 150, 200))["bus_bandwidth"]
    assert ("medium", ("the bandwidth still grows by 33.3 % up to the largest messages",)) == (
        growing.confidence,
        growing.against,
    )
    single = told(all_reduce(tmp_path, 200))["bus_bandwidth"]
    assert "medium" == single.confidence
    assert "one size" in single.against[0]


@pytest.mark.parametrize(
    ("tflops", "severity"), [(312, ""), (420, ""), (430, "medium"), (740, "medium"), (750, "high"), (215, "")]
)
def test_share_of_the_peak(profiles: Path, tmp_path: Path, tflops: float, severity: str) -> None:
    """149.11 TFLOP/s of a GPU: 0.35 of 426, 0.2 of 745.6; at most what separates it from 0.55 is gained."""
    found = told(profiles / "monitor" / MEGATRON, peaks(tmp_path, tflops)).get("training_mfu")
    assert severity == (found.severity if found else "")
    if found:
        assert "medium" == found.confidence, "the log does not say the precision"
        assert 149.11 / tflops == pytest.approx(found.evidence[0].value, rel=1e-12)
        assert 0.55 * tflops / 149.11 == pytest.approx(found.gain.high)


def test_a_share_that_nobody_reached_is_doubted(profiles: Path, tmp_path: Path) -> None:
    """102 of 125 TFLOP/s are 82 %: the figure is in doubt and nothing is gained; of 65 the share is refused."""
    found = told(profiles / "monitor" / FLOPS_PROFILER, peaks(tmp_path, 125))
    assert ["training_mfu_suspicious"] == list(found)
    assert ("low", 1.0) == (found["training_mfu_suspicious"].severity, found["training_mfu_suspicious"].gain.high)
    assert {} == told(profiles / "monitor" / FLOPS_PROFILER, peaks(tmp_path, 65))


def test_the_share_of_the_peak_is_that_of_the_iteration(profiles: Path, tmp_path: Path) -> None:
    """3 x 82543.9 GFLOP in 41.39 s are 5.983 TFLOP/s, 1.92 % of 312; in the 7.27 s of the two passes alone 10.9 %."""
    found = told(profiles / "monitor" / SLOW_OPTIMIZER, peaks(tmp_path, 312))
    assert 3 * 82.5439 / 41.39 / 312 == pytest.approx(found["training_mfu"].evidence[0].value, rel=1e-3)
    assert "high" == found["training_mfu"].severity


def test_the_step_of_the_optimizer(profiles: Path) -> None:
    """The log prints 34.12 s of an iteration of 41.39 s; that of BERT has 34.09 us of 184.73 ms, which is nothing."""
    found = told(profiles / "monitor" / SLOW_OPTIMIZER)["training_optimizer"]
    assert [34.12 / 41.39, 34.12e9] == pytest.approx([figure.value for figure in found.evidence])
    assert ("high", pytest.approx(41.39 / 7.27)) == (found.severity, found.gain.high)
    assert "fused" in found.advice["immediate"][0]
    assert "training_optimizer" not in told(profiles / "monitor" / FLOPS_PROFILER)
