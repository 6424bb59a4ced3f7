"""The runs of which it is frozen what perfkit says: the samples, and small real captures of every layout."""

import os
from dataclasses import dataclass
from pathlib import Path

from perfkit.report.notebooks import sample


@dataclass(frozen=True)
class Golden:
    """A run by the folder it lies in ("data" or "profiles") and its path there, and that of an earlier one."""

    folder: str
    name: str
    before: str = ""

    def path(self) -> Path:
        return folders()[self.folder] / self.name

    def baseline(self) -> Path | None:
        return folders()[self.folder] / self.before if self.before else None

    @property
    def id(self) -> str:
        return f"{self.folder}/{self.name}"


SAMPLES = (
    Golden("data", "mlp_a100"),
    Golden("data", "bert_a100"),
    Golden("data", "bert_a100_optimised", before="bert_a100"),
    Golden("data", "resnet18_a100"),
    Golden("data", "resnet18_a100/inference"),
    Golden("data", "dlrm_h100"),
    Golden("data", "cpu_workloads/resnet18_training"),
)
CAPTURES = tuple(
    Golden("profiles", name)
    for name in (
        "nsys/GindaChen__nsys-ai__healthy_1pct.sqlite",  # six tables
        "nsys/hpcgroup__pipit__saxpy-mpi-cuda_nsys_perlmutter0.sqlite",  # MPI
        "nsys/NVIDIA__Fuser__report1_2025.1.sqlite",  # a newer schema
        "nsys/ayush-os__nsight-systems-deep-dive__vector_add_profile_v3_pqtdir",  # Parquet
        "broken/nsys_arrow--inv-API_CALLS.start_ns_beyond_9e18/run_arwdir",  # Arrow, with a value that cannot be
        "golden/ncu/thedavidchu__speedy_scan__profile.details.csv",
        "golden/ncu/thedavidchu__speedy_scan__profile.raw.csv",
        "ncu/extra-p__extrap__ex-gpu.s10.ncu-rep",
        "hpctoolkit/hpctoolkit-leo-nvidia-database",  # format 4, stalls
        "hpctoolkit/hpctoolkit-cpi-database",  # the old format
        "torch/HTA__nccl_parser_config__nccl_data.json.gz",  # collectives
        "torch/TraceLens__h100__gaunernst_bert-small-uncased__1016001.json.gz",
        "torch/sidnb13__torch-profiling-tutorial__transformer",  # several ranks
        "monitor/dmon_DT_pucet_2021.txt",
        "monitor/nvidia-smi__nvidia-h100-mig__590.48.01__load__query-gpu.csv",
        "monitor/nvidia-smi_xml__rtx-3060-v12.xml",
        "monitor/dcgm_exporter_t4_k8s.prom",
        "monitor/dcgmi_dmon_h100nvl_dcgm339.txt",
        "monitor/rocm-smi_json__mi100_rocm571.json",
        "monitor/nccl_tests__cluster01_nccl_N1_G8_cnode3-002.log",
        "monitor/nccl_debug_info_h100_issue1453.txt",
        "monitor/deepspeed_flops_profiler_bert_large.txt",
        "monitor/superbench__megatron_deepspeed.log",
    )
)
RUNS = (*SAMPLES, *CAPTURES)


def folders() -> dict[str, Path]:
    """Return where runs lie, by the name that stands for the folder in texts."""
    profiles = os.environ.get("PERFKIT_PROFILES")
    data = {"data": sample().parent}
    return {**data, "profiles": Path(profiles)} if profiles else data
