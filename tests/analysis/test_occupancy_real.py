"""The occupancy rules against the limits that real reports hold."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import perfkit
from perfkit.analysis.kernels import wide
from perfkit.analysis.warps import Sm, occupancy, resident_blocks

HOPPER = Sm(warps=64, registers=65536, shared_bytes=233472, slots=32, sms=132, compute_capability=9)
GA100 = Sm(warps=64, registers=65536, shared_bytes=167936, slots=32, sms=108, compute_capability=8)
GA10X = Sm(warps=48, registers=65536, shared_bytes=102400, slots=16, compute_capability=8.6)
TURING = Sm(warps=32, registers=65536, shared_bytes=65536, slots=16, sms=34, compute_capability=7.5)
BLACKWELL = Sm(warps=64, registers=65536, shared_bytes=233472, slots=32, sms=148, compute_capability=10)

REPORTS = {
    "golden/ncu/AlpriElse__cs599k__rms-norm-pytorch.raw_base.csv": HOPPER,
    "golden/ncu/extra-p__extrap__ex-gpu.s10.raw_base.csv": GA100,
    "golden/ncu/thedavidchu__speedy_scan__profile.raw_base.csv": GA10X,
    "golden/ncu/NVIDIA__nsight-training__manual_nvtx.raw_base.csv": GA10X,
    "golden/ncu/amitadate__GPU_Power_Model__PS1_10_profile.raw_base.csv": TURING,
    "ncu/meinie0826__Roofline-Analysis__flashinfer_paged_decode__gqa_bf16_b1_ctx4k_p64.ncu.csv": BLACKWELL,
}


@pytest.mark.parametrize(("report", "sm"), REPORTS.items(), ids=[Path(name).name[:20] for name in REPORTS])
def test_rules_give_the_vendors_limits(profiles: Path, report: str, sm: Sm) -> None:
    """Warps, registers and slots computed from the launch are the vendor's, on five architectures.

    Shared memory is left out: newer tools divide the configured size, not the largest, and the driver chooses it.
    """
    run = perfkit.load(profiles / report)
    said = wide(
        run.launches,
        run.counters,
        [f"launch__occupancy_limit_{name}" for name in ("warps", "registers", "blocks")]
        + ["launch__registers_per_thread"],
    )
    threads = run.launches["block_threads"].to_numpy("float64")
    found = resident_blocks(threads, said["launch__registers_per_thread"].to_numpy(), np.zeros(len(said)), sm=sm)
    assert said.iloc[:, :3].to_numpy().tolist() == found[["warps", "registers", "slots"]].to_numpy().tolist()


@pytest.mark.parametrize(("report", "sm"), REPORTS.items(), ids=[Path(name).name[:20] for name in REPORTS])
def test_limits_give_the_vendors_occupancy(profiles: Path, report: str, sm: Sm) -> None:
    """Resident blocks x warps per block / warps of the SM is the theoretical occupancy that the report holds."""
    run = perfkit.load(profiles / report)
    blank = run.launches.assign(theoretical_occupancy_frac=np.nan)
    found = occupancy(blank, run.counters, sm=sm)
    measured = run.launches["theoretical_occupancy_frac"]
    assert pytest.approx(measured.to_numpy(), abs=1e-4) == found["theoretical_occupancy_frac"].to_numpy()
