"""Every notebook answers every capture: its cells are run here one by one, without a kernel.

By default those captures are run, here or in tests/golden, that differ in the ways that the code takes.
``python -m pytest -m matrix tests/report/test_cells.py`` runs all captures: do so before a change to a reader or a
notebook is called done.
"""

import os
from pathlib import Path

import extras
import pytest
from cells import execute, sharing, unlinked
from golden.runs import CAPTURES

import perfkit
from perfkit.readers import claimants
from perfkit.report.notebooks import NOTEBOOKS, answering, sample

# Broken on purpose, closed formats that need the vendor's software, and files that describe others.
LEFT_OUT = (
    *(
        "EMPTY",
        "TRUNCATED",
        "PARTIAL",
        "LFS_POINTER",
        "dlprof_dldb",
        "-rep",
        ".txt",
        "gemm_naive",
        "b128_ctx8k",
    ),
    *("published_figures", "cpu_op_map", "truth.json"),
)
KINDS = ("nsys", "ncu", "golden/ncu", "hpctoolkit", "torch")
SUFFIXES = (".sqlite", ".csv", ".json", ".gz")
# Of the logs one of each tool and layout that a notebook could stumble over.
LOGS = (
    *("dcgm_exporter_t4_k8s.prom", "dcgmi_dmon_h100nvl_dcgm339.txt"),
    *("deepspeed_flops_profiler_bert_large.txt", "dmon_DT_pucet_2021.txt"),
    *(
        "nccl_debug_info_h100_issue1453.txt",
        "nccl_log__alcf_VAE_results_2025-01-15-16-06-14_with_aws.log",
    ),
    "nccl_tests__cluster00_nccl_N2_G1_cnode2-002_cnode2-008.log",
    *("nccl_tests__cluster01_nccl_N1_G8_cnode3-002.log", "nccl_tests_aws_p5_mpi_tagged.txt"),
    *(
        "nvidia-smi__nvidia-h100-mig__590.48.01__load__query-gpu.csv",
        "nvidia-smi_xml__rtx-3060-v12.xml",
    ),
    *("rocm-smi_json__mi100_rocm571.json", "superbench__megatron_deepspeed.log"),
)
# One of each that is no trace and no log.
OTHERS = (
    "flight_recorder/NVIDIA__nvidia-resiliency-ext__lock_gil_1st",
    "memory/kkaitlyn111__cs336-a2-systems__ctx128_forward.pickle",
    "nccl_inspector/h100x8_late_rank",
    "rocpd/TraceLens__908_mi350x__schema4.db",
)
# Layouts and versions for which cells take ways that no golden run takes; tests/golden runs the cells of those.
VERSIONS = (
    *OTHERS,
    "nsys/MohanadOdema__DLProf__w_Relu_nsys_profile.sqlite",  # 2022.1.3
    "nsys/extra-p__extrap__profile1.sqlite",  # 2022.1.1
    "nsys/mjmorano__Spin-tracking-New__report2.sqlite",  # no GPU
    "nsys/PolPuigPuy__OpenACC_Project_PolPuig__report3.sqlite",  # OpenACC
    "nsys/hpcgroup__pipit__perlmutter-cloverleaf-cuda.sqlite",  # 2024.5
    "nsys/GindaChen__nsys-ai__h100_2gpu_1s.sqlite",  # 2026.2, two GPUs
    "ncu/Olajide-Badejo__GPU-Roofline-Profiler__gemm_tiled.csv",  # one row a metric, without quotes
    "golden/ncu/thedavidchu__speedy_scan__profile.raw_base.csv",  # base units
    "hpctoolkit/hpctoolkit-allgather-database",  # experiment.xml 2.1
    "hpctoolkit/hpctoolkit-ping-pong-database",  # MPI
    "hpctoolkit/hpctoolkit-leo-amd-database",
    "hpctoolkit/yuninxia__HPCToolkit__loops-perf-database",  # no GPU
    "torch/HTA__amd_trace__mi250_minitoy_train_ROCm6_2_kineto.json.gz",
    "torch/HTA__cpu_only__rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz",
    "torch/HTA__cuda_event_sync__event_sync_trace.json.gz",
    "torch/TraceLens__vllm_decode_full__graph_execution.json.gz",  # HIP, graphs
    "torch/kineto__resnet50_num_workers_4__worker0.1623213129365.pt.trace.json.gz",  # 2021, workers of the loader
    "monitor/nccl_log__alcf_VAE_results_2025-01-15-16-06-14_with_aws.log",
    "monitor/nccl_tests_aws_p5_mpi_tagged.txt",
)
# One of each kind, small, whose own notebooks are run here or in tests/golden.
KIND = (
    "nsys/extra-p__extrap__profile1.sqlite",
    "ncu/Olajide-Badejo__GPU-Roofline-Profiler__gemm_tiled.csv",
    "golden/ncu/thedavidchu__speedy_scan__profile.raw_base.csv",
    "hpctoolkit/hpctoolkit-leo-nvidia-database",
    "torch/TraceLens__h100__gaunernst_bert-small-uncased__1016001.json.gz",
    "monitor/nccl_tests_aws_p5_mpi_tagged.txt",
    "monitor/superbench__megatron_deepspeed.log",
)


def _captures() -> list[str]:
    root = os.environ.get("PERFKIT_PROFILES")
    if not root:
        return []
    found = [path for kind in KINDS for path in Path(root, kind).iterdir()]
    readable = [path for path in found if path.is_dir() or path.suffix in SUFFIXES]
    names = [
        p.relative_to(root).as_posix()
        for p in readable
        if not any(part in p.name for part in LEFT_OUT)
    ]
    return sorted([*names, *OTHERS, *(f"monitor/{name}" for name in LOGS)])


def _short(name: str) -> str:
    return name.rpartition("/")[2][:40]


ALL = [
    pytest.param(name, marks=() if name in VERSIONS else pytest.mark.matrix) for name in _captures()
]
ABSENT = pytest.param("", marks=pytest.mark.skip(reason=extras.CAPTURES))


@pytest.mark.parametrize("name", ALL or [ABSENT], ids=_short)
@pytest.mark.sampled(5)
def test_runs_on_every_real_capture(name: str, profiles: Path) -> None:
    """And every figure has a cell and a table."""
    with sharing():
        view = perfkit.select(perfkit.load(profiles / name))
        for notebook in answering(view.run):
            execute(notebook, profile=str(profiles / name)).check()
        assert [] == unlinked(view)


@pytest.mark.parametrize("name", KIND, ids=_short)
def test_runs_on_what_it_has_no_answer_to_and_compares_it(name: str, profiles: Path) -> None:
    """It is compared with itself, and with what another tool recorded."""
    other = next(one for one in KIND if Path(one).parent != Path(name).parent)
    with sharing():
        for notebook in sorted({*NOTEBOOKS} - {*answering(perfkit.load(profiles / name))}):
            execute(notebook, profile=str(profiles / name)).check()
        for baseline in (name, other):
            execute(
                "6_compare", profile=str(profiles / name), baseline=str(profiles / baseline)
            ).check()


def test_the_captures_named_here_are_among_all(profiles: Path) -> None:
    golden = {each.name for each in CAPTURES}
    assert set() == {*VERSIONS} - {*_captures()}
    assert set() == {*KIND} - {*VERSIONS, *golden}
    assert {
        "torch_trace",
        "nsys",
        "ncu",
        "hpctoolkit",
        "nvidia_smi",
        "rocm_smi",
        "dcgm",
        "nccl",
        "deepspeed",
    } == {reader for name in golden for reader in claimants(profiles / name)}


def test_the_first_page_says_whether_the_clock_was_lowered() -> None:
    """The log of nvidia-smi beside a trace says why the clock was lowered: never, in 100 readings of 5 metrics."""
    done = execute("0_executive_summary", profile=str(sample("gpu_workloads/resnet18_inference")))
    subtitle = done.results["5a7ede11"].to_dict()["title"]["subtitle"]
    assert subtitle[0].startswith("500 readings of 5 metrics over 10.0 s.")
    assert "The clock was never lowered because of power or heat or another reason." == subtitle[1]
