"""The real Nsight Systems captures by what they hold, and what is true of any real capture.

The captures are files in the folder ``nsys`` of PERFKIT_PROFILES.
"""

import json
from pathlib import Path
from typing import Any

CUT_DOWN = "GindaChen__nsys-ai__healthy_1pct.sqlite"  # six tables, no process ids
MFU = "GindaChen__nsys-ai__mfu_2gpu_before.sqlite"
OPTIMISED = "openhackathons-org__AI-Profiler__secondOptimization.window5.0-7.0s.sqlite"
VECTOR_ADD = "ayush-os__nsight-systems-deep-dive__vector_add_profile_v3_pqtdir"
SQLITE = [
    CUT_DOWN,
    "GindaChen__nsys-ai__h100_2gpu_1s.sqlite",
    MFU,
    "Lianhang666__gpu4__report2.sqlite",
    "MohanadOdema__DLProf__w_Relu_nsys_profile.sqlite",
    "NTHU-SC__ISC25-ICON-C__gpu.sqlite",
    "NVIDIA__Fuser__report1_2025.1.sqlite",
    "PolPuigPuy__OpenACC_Project_PolPuig__report3.sqlite",
    "extra-p__extrap__ex-gpu.s10.sqlite",
    "extra-p__extrap__profile1.sqlite",
    "hpcgroup__pipit__perlmutter-cloverleaf-cuda.sqlite",
    "hpcgroup__pipit__saxpy-mpi-cuda_nsys_perlmutter0.sqlite",
    "openhackathons-org__AI-Profiler__baseline.sqlite",
    "openhackathons-org__AI-Profiler__baseline_nvtx.sqlite",
    OPTIMISED,
    "openhackathons-org__gpubootcamp__jacobi_memcpy_nvlink_report.sqlite",
    "openhackathons-org__gpubootcamp__jacobi_memcpy_sys_report.sqlite",
    "openhackathons-org__gpubootcamp__mpi_report1.sqlite",
    "openhackathons-org__nways_accelerated_programming__jacobi_report.sqlite",
]
WITH_KERNELS = [*SQLITE, VECTOR_ADD]
HOST_ONLY = ["D-W-Chiang__JACC.jl__cg_trace.sqlite", "mjmorano__Spin-tracking-New__report2.sqlite"]


def truth_of(profiles: Path, tool: str, name: str) -> dict[str, Any]:
    """What the capture's ``truth.json`` says, which was made without perfkit."""
    path = profiles / "golden" / tool / f"{name.removesuffix('.sqlite')}.truth.json"
    content: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return content
