"""Utilisation of the peak from real reports."""

from __future__ import annotations

from pathlib import Path

import pytest

import perfkit
from perfkit import hardware
from perfkit.analysis.efficiency import reported_mfu


def test_bert_large_as_deepspeed_published_it(profiles: Path) -> None:
    """102.0 of an A100's 312 TFLOP/s, 81.9 in the forward pass; the optimizer's 34.09 us hardly count."""
    run = perfkit.load(profiles / "monitor" / "deepspeed_flops_profiler_bert_large.txt")
    found = reported_mfu(run.samples, peaks=hardware.peaks("NVIDIA A100-SXM4-40GB"), precision="fp16_tensor").iloc[0]
    assert found["mfu_frac"] == pytest.approx(102.0 / 312, rel=1e-12)
    assert found["forward_frac"] == pytest.approx(81.9 / 312, rel=1e-12)
    # Forward and backward pass are 76.67 and 108.02 ms of an iteration of 184.73 ms.
    assert found["iteration_mfu_frac"] == pytest.approx(102.0 / 312 * (76.67 + 108.02) / 184.73, rel=1e-12)


def test_megatrons_iterations(profiles: Path) -> None:
    """150.62, 149.67, ... TFLOP/s of the log: the mean of what it prints over 312, typical or good of an A100."""
    path = profiles / "monitor" / "superbench__megatron_deepspeed.log"
    printed = [
        float(line.split("TFLOPs:")[1].split()[0]) for line in path.read_text().splitlines() if "TFLOPs:" in line
    ]
    found = reported_mfu(
        perfkit.load(path).samples, peaks=hardware.peaks("NVIDIA A100-SXM4-80GB"), precision="bf16_tensor"
    ).iloc[0]
    assert found["mfu_frac"] == pytest.approx(sum(printed) / len(printed) / 312, rel=1e-12)
