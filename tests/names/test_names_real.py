"""Names in real captures: against nsys's own short names, and by eye."""

from __future__ import annotations

import gzip
import json
import sqlite3
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from perfkit.names import decode
from perfkit.names.families import family, short
from perfkit.names.parsing import base

NSYS = (
    "SELECT s.value, d.value, SUM(k.end - k.start) FROM CUPTI_ACTIVITY_KIND_KERNEL k "
    "JOIN StringIds s ON s.id = k.shortName JOIN StringIds d ON d.id = k.demangledName GROUP BY 1, 2"
)
TORCH = [
    f"{name}.json.gz"
    for name in (
        "kineto__resnet50_num_workers_0__worker0.1623143566756.pt.trace",
        "TraceLens__h100__Qwen_Qwen1.5-0.5B-Chat__1016005",
        "TraceLens__mi300__gaunernst_bert-small-uncased__1016001",
        "TraceLens__sglang_decode__sglang_Qwen3-8B_decode",
        "TraceLens__vllm_decode_full__graph_execution",
        *("HTA__alexnet__benchmark_result_2869224_1695835535_trace", "HTA__nccl_parser_config__nccl_data"),
    )
]
Nsys = dict[str, list[tuple[str, str, int]]]
Torch = dict[str, Counter[str]]
# Captures of deep learning made with nsys; the others are made by hand-written or HPC programs.
LEARNING = ("AI-Profiler", "w_Relu_nsys_profile", "mfu_2gpu_before")


@pytest.fixture(scope="module")
def nsys(profiles: Path) -> Nsys:
    """(shortName, demangledName, total ns) of each readable nsys export that has kernels."""
    found = {}
    for path in sorted(profiles.glob("nsys/*.sqlite")):
        connection = sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)
        try:
            found[path.name] = connection.execute(NSYS).fetchall()
        except sqlite3.DatabaseError:
            continue  # broken on purpose, or without kernels: see the manifest
        finally:
            connection.close()
    return found


@pytest.fixture(scope="module")
def torch(profiles: Path) -> Torch:
    """Microseconds per kernel name of some PyTorch traces."""
    found: Torch = {}
    for name in TORCH:
        events = json.loads(gzip.decompress((profiles / "torch" / name).read_bytes()))["traceEvents"]
        found[name] = Counter()
        for event in events:
            if event.get("cat", "").lower() == "kernel":
                found[name][event["name"]] += float(event["dur"])
    return found


def every(nsys: Nsys) -> set[str]:
    return {full_name for rows in nsys.values() for _, full_name, _ in rows}


def test_base_is_what_nsys_calls_short_name(nsys: Nsys) -> None:
    pairs = {(kernel, full_name) for rows in nsys.values() for kernel, full_name, _ in rows}
    assert [] == [(kernel, base(full_name)) for kernel, full_name in sorted(pairs) if kernel != base(full_name)]
    assert len(pairs) >= 237


def test_short_names_stay_apart_within_a_capture(nsys: Nsys, torch: Torch) -> None:
    captures = [{full_name for _, full_name, _ in rows} for rows in nsys.values()] + [*map(set, torch.values())]
    assert [len(names) for names in captures] == [len({short(name) for name in names}) for names in captures]


# The only short names that stand for two full names in the nsys exports: each is one kernel, which
# two nsys versions spell differently (const, blanks), or two PyTorch versions declare differently
# (a parameter more, int for long, std::array for at::detail::Array, MulFunctor in binary_internal).
ONE_KERNEL_TWICE = {
    "initialize_boundaries(float*, float*, float, int x4)",
    "jacobi_kernel(float* x3, int x3)",
    "max_pool_forward_nchw<float, float>",
    "nll_loss_backward_reduce_cuda_kernel_2d<float, long>",
    "vectorized_elementwise_kernel<4, CUDAFunctorOnSelf_add<float>>",
    "vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>",
    "vectorized_elementwise_kernel<4, FillFunctor<float>>",
    "vectorized_elementwise_kernel[MulFunctor<float>] #1a9f863d",  # of two tensors
    "vectorized_elementwise_kernel[MulFunctor<float>] #453deb41",  # of a tensor and a number
}


def test_short_is_injective_but_for_one_kernel_written_twice(nsys: Nsys) -> None:
    counts = Counter(short(full_name) for full_name in every(nsys))
    assert ONE_KERNEL_TWICE == {name for name, count in counts.items() if count > 1}


def test_nsys_and_pytorch_traces_share_names_of_one_kernel_only(nsys: Nsys, torch: Torch) -> None:
    shared = defaultdict(set)
    for full_name in every(nsys).union(*torch.values()):
        said = decode(full_name)
        # CUTLASS 2 and 3 launch one operation through Kernel and Kernel2.
        function = base(full_name).removesuffix("2") if "cutlass::Kernel" in full_name else base(full_name)
        shared[said.name].add((function, said.family, said.operation, said.precision, said.tile))
    assert [] == [name for name, kernels in shared.items() if len(kernels) > 1]


def test_few_kernels_of_deep_learning_are_unknown(nsys: Nsys, torch: Torch) -> None:
    """Of the kernel time of deep-learning captures at most 5 % is `other` (MoE routing, sorting, set-up)."""
    captures = [rows for name, rows in nsys.items() if any(word in name for word in LEARNING)]
    times = [Counter({full_name: ns for _, full_name, ns in rows}) for rows in captures] + list(torch.values())
    shares = [sum(t for name, t in time.items() if family(name) == "other") / time.total() for time in times]
    assert len(shares) >= 5 + len(TORCH)
    assert max(shares) <= 0.05


def test_kernels_of_a_training_run_by_family(nsys: Nsys) -> None:
    time: Counter[str] = Counter()  # of AI-Profiler's ResNet step, read by eye
    for _, full_name, ns in nsys["openhackathons-org__AI-Profiler__baseline.sqlite"]:
        time[family(full_name)] += ns
    assert ["convolution", "elementwise", "reduction", "copy", "gemm", "softmax"] == [f for f, _ in time.most_common()]
