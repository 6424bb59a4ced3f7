"""Kind (c) over all captures: no gain exceeds 1 / (1 - share) without naming the lines that get shorter too."""

import os
from pathlib import Path
from typing import Any

import pytest
from cases.facts import bounds_follow_from_shares
from cases.judging import judged

LARGEST = 5_000_000  # bytes
FOLDERS = ("nsys", "torch", "ncu", "hpctoolkit", "monitor", "reports/*")
QUICK = {
    "nsys/IkerCanut__fire_spread__report1.sqlite",
    "nsys/Qcompiler__MIXQ__src_report1.sqlite",
    "nsys/NTHU-SC__ISC25-ICON-C__gpu.sqlite",
    "nsys/annikola__cuda_bitonic_sort__report1.sqlite",
    "nsys/mamedov__parallel_course_2__report4.sqlite",
    "nsys/extra-p__extrap__profile1.sqlite",
    "torch/marcalph__kernelforge__t4_matmul.pt.trace.json.gz",
    "torch/TraceLens__mi300__gaunernst_bert-small-uncased__1016001.json.gz",
    "torch/HTA__trace_filter__sampled_rank-0.json.gz",
    "ncu/kulnaman__lammps__kripke_output.ncu-rep",
    "hpctoolkit/HPCToolkit__hpcviewer.e4__acc_f3-database",
    "reports/single_process_loader/trace.json.gz",
    "reports/spinning_gpus/gpu.csv",
    "reports/primus_log/primus_log_plain.txt",
}
# The best case that is told, and the one that the share of the finding allows.
WRONG_TODAY = {
    "nsys/IkerCanut__fire_spread__report1.sqlite": (1.063, 1.001),
    "nsys/MohanadOdema__DLProf__w_Relu_nsys_profile.sqlite": (1.205, 1.144),
    "nsys/NTHU-SC__ISC25-ICON-C__gpu.sqlite": (2.631, 2.048),
    "nsys/NVIDIA__Fuser__report1_2025.1.sqlite": (1.027, 1.007),
    "nsys/PolPuigPuy__OpenACC_Project_PolPuig__report3.sqlite": (2.880, 1.936),
    "nsys/ayush-os__nsight-systems-deep-dive__vector_add_profile_v3_pqtdir": (2.047, 1.834),
    "nsys/extra-p__extrap__profile1.sqlite": (1.938, 1.758),
    "nsys/hpcgroup__pipit__perlmutter-cloverleaf-cuda.sqlite": (1.085, 1.028),
    "nsys/hpcgroup__pipit__saxpy-mpi-cuda_nsys_perlmutter0.sqlite": (2.940, 1.989),
    "nsys/openhackathons-org__AI-Profiler__baseline.sqlite": (1.025, 1.002),
    "nsys/openhackathons-org__gpubootcamp__jacobi_memcpy_nvlink_report.sqlite": (1.601, 1.512),
    "nsys/openhackathons-org__gpubootcamp__jacobi_memcpy_sys_report.sqlite": (1.608, 1.502),
    "nsys/openhackathons-org__gpubootcamp__mpi_report1.sqlite": (1.273, 1.204),
    "nsys/unschlagbar__neural-networks__prof.sqlite": (1.252, 1.175),
    "reports/first_kernels_dropped/trace.json": (1.443, 1.414),
    "reports/single_process_loader/trace.json.gz": (8.555, 8.027),
    "reports/sync_longer_than_work/trace.json": (58.261, 40.802),
    "torch/HTA__alexnet__benchmark_result_2869224_1695835535_trace.json.gz": (8.808, 2.912),
    "torch/HTA__amd_trace__mi250_minitoy_train_ROCm6_2_kineto.json.gz": (1.442, 1.305),
    "torch/HTA__cuda_event_sync__event_sync_trace.json.gz": (4.806, 3.372),
    "torch/HTA__nccl_parser_config__nccl_data.json.gz": (4.194, 3.418),
    "torch/HTA__trace_file_list__inference_rank_1.json.gz": (1.155, 1.110),
    "torch/HTA__trace_filter__sampled_rank-0.json.gz": (1.754, 1.467),
    "torch/HTA__trace_filter__sampled_rank-1.json.gz": (1.559, 1.362),
    "torch/HTA__with_gpu_user_annotation__step_based_trace_2543932.json.gz": (23.780, 22.043),
    "torch/TraceLens__b200__eager_trace.json.gz": (6.494, 3.664),
    "torch/TraceLens__evals_mi300__sdpa_03_short_seq_overhead.json.gz": (1.234, 1.163),
    "torch/TraceLens__h100__facebook_timesformer-base-finetuned-k400__1016002.json.gz": (2.387, 2.354),
    "torch/TraceLens__mi300__gaunernst_bert-small-uncased__1016001.json.gz": (7.480, 7.180),
    "torch/TraceLens__xdit_sd_3.5__profile_trace_rank_0.json.gz": (1.644, 1.539),
    "torch/kineto__gpu_metrics_input.json": (231.289, 140.541),
    "torch/kineto__resnet50_autograd_api_num_workers_0__worker0.pt.trace.json.gz": (1.497, 1.326),
    "torch/kineto__resnet50_autograd_api_num_workers_4__worker0.pt.trace.json.gz": (1.490, 1.322),
    "torch/kineto__resnet50_num_workers_0__worker0.1623143566756.pt.trace.json.gz": (1.482, 1.230),
    "torch/kineto__resnet50_num_workers_4__worker0.1623213129365.pt.trace.json.gz": (1.226, 1.024),
    "torch/marcalph__kernelforge__t4_matmul.pt.trace.json.gz": (1.403, 1.366),
}


def size(path: Path) -> int:
    """The bytes of a file or of all files in a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def captures() -> list[str]:
    """The paths of all captures up to 5 MB below PERFKIT_PROFILES; none where it is not set."""
    root = os.environ.get("PERFKIT_PROFILES")
    if not root:
        return []
    found = [path for folder in FOLDERS for path in Path(root).glob(f"{folder}/*")]
    return sorted(str(path.relative_to(root)) for path in found if size(path) <= LARGEST)


def parameter(name: str) -> Any:
    """A capture; all except a few are judged with -m matrix only, and the wrong ones must fail."""
    marks = [] if name in QUICK else [pytest.mark.matrix]
    if name in WRONG_TODAY:
        said, allowed = WRONG_TODAY[name]
        reason = f"up to {said}x, where the share allows {allowed}x"
        marks.append(pytest.mark.xfail(reason=reason, strict=True, raises=AssertionError))
    return pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", [parameter(name) for name in captures()])
def test_no_gain_exceeds_its_share_without_a_reason(name: str, profiles: Path) -> None:
    judgement = judged(profiles / name)
    if judgement.error:
        pytest.skip(judgement.error)
    assert "" == bounds_follow_from_shares(judgement)


def test_every_quick_capture_is_there(profiles: Path) -> None:
    assert set() == {*QUICK, *WRONG_TODAY} - set(captures())
