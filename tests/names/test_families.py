"""The kind of work a name tells, and names for people: short, never one for two kinds of work; real captures."""

import gzip
import json
import sqlite3
import tomllib
from collections import Counter, defaultdict
from hashlib import blake2b
from pathlib import Path

import pytest

from perfkit.names import decode
from perfkit.names.families import FAMILIES, compact, family, functor, short
from perfkit.names.parsing import base

NAMES = tomllib.loads(Path(__file__).with_name("names.toml").read_text(encoding="utf-8"))[
    "families"
]


@pytest.mark.parametrize(
    ("expected", "full_name"), [(kind, name) for kind, names in NAMES.items() for name in names]
)
def test_family(expected: str, full_name: str) -> None:
    assert expected == family(full_name)


def test_every_family_is_known_and_reached() -> None:
    assert sorted(FAMILIES) == sorted(NAMES)
    assert len(FAMILIES) == len(set(FAMILIES))
    # Definitions, section 3: nccl in the function name, in any case; one in a type or namespace is no criterion.
    names = ("myNCCLKernel(int)", "void work<ncclComm>(ncclComm *)", "nccl_tests::work(int)")
    assert ["communication", "other", "other"] == [family(name) for name in names]


CLAMP = (
    "void at::native::vectorized_elementwise_kernel<(int)4, at::native::<unnamed>::launch_clamp_scalar("
    "at::TensorIteratorBase &, c10::Scalar, c10::Scalar, at::native::detail::ClampLimits)::[lambda() (instance 1)]::"
    "operator ()() const::[lambda() (instance 8)]::operator ()() const::[lambda(float) (instance 1)], "
    "at::detail::Array<char *, (int)2>>(int, T2, T3)"
)
CLAMP_KINETO = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::(anonymous namespace)::launch_clamp_scalar("
    "at::TensorIteratorBase&, c10::Scalar, c10::Scalar, at::native::detail::ClampLimits)::{lambda()#1}::operator()() "
    "const::{lambda()#8}::operator()() const::{lambda(float)#1}, at::detail::Array<char*, 2> >(int, "
    "at::native::(anonymous namespace)::launch_clamp_scalar(at::TensorIteratorBase&), at::detail::Array<char*, 2>)"
)
SUM = (
    "void at::native::reduce_kernel<(int)512, (int)1, at::native::ReduceOp<float, at::native::func_wrapper_t<float, "
    "at::native::sum_functor<float, float, float>::operator ()(at::TensorIterator &)::[lambda(float, float) (instance "
    "1)]>, unsigned int, float, (int)4>>(T3)"
)
HALO = (
    "void clover::par_ranged1d_kernel<update_halo_kernel(int, {0})::[lambda(int) "
    "(instance {1})]>(clover::Range1d, T1)"
)
LONG = (
    "const std::array<int, (unsigned long)4> &, field_type &, const int *, double, double, double *"
)

SHORT = {
    "void cutlass_cudnn::Kernel<cutlass_tensorop_s1688dgrad_optimized_tf32_256x64_16x4_nhwc_unity_stride>(X)": (
        "cutlass_tensorop_s1688dgrad_optimized_tf32_256x64_16x4_nhwc_unity_stride"
    ),
    CLAMP: "vectorized_elementwise_kernel<4, launch_clamp_scalar#1.8.1(float)>",
    CLAMP_KINETO: "vectorized_elementwise_kernel<4, launch_clamp_scalar#1.8.1(float)>",
    SUM: "reduce_kernel[sum_functor<float, float, float>#1(float, float)] #937e5217",
    "void at::native::unrolled_elementwise_kernel<at::native::CUDAFunctor_add<float>, std::array<char *, "
    "(unsigned long)3>, (int)4, TrivialOffsetCalculator<(int)2, unsigned int>, TrivialOffsetCalculator<(int)1, "
    "unsigned int>, at::native::memory::LoadWithoutCast, at::native::memory::StoreWithoutCast>(int, T1)": (
        "unrolled_elementwise_kernel<CUDAFunctor_add<float>, 4>"
    ),
    "void <unnamed>::softmax_warp_forward<float, float, float, (int)4, (bool)1, (bool)0>(T2 *, const T1 *, int)": (
        "softmax_warp_forward<float, float, float, 4, 1, 0>"
    ),
    "vecAdd(double *, double *, double *, int)": "vecAdd(double* x3, int)",
    "void jacobi<32, 32>(float*, float const*, float*, int, bool)": "jacobi<32, 32>(float* x3, int, bool)",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)": "ncclDevKernel_SendRecv",
    "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256ELi16ELb0ELb0ELb1ELi1EEEvPT0_PT_PfS4_S4_S4_diiiiiiib": (
        "add_rmsnorm_quant_kernel #70890976"
    ),
    "": "",
}


@pytest.mark.parametrize(("full_name", "expected"), SHORT.items())
def test_short_names(full_name: str, expected: str) -> None:
    assert expected == short(full_name)


def test_names_of_different_work_differ_and_of_one_kernel_agree() -> None:
    for one, other in [
        *(
            ("scale(float*, int)", "scale(double*, int)"),
            ("rho::advance(int)", "mom::advance(int)"),
        ),
        ("void scale<float>(T1 *, T1)", "void scale<float>(T1 *, T1 *)"),
        *(
            (CLAMP, CLAMP.replace("instance 8", "instance 9")),
            (CLAMP, CLAMP.replace("clamp_scalar", "where_kernel")),
        ),
        *(
            (HALO.format(LONG, 1), HALO.format(LONG, 2)),
            (HALO.format(LONG, 1), HALO.format(LONG + ", int", 1)),
        ),
        ("deep_ep::internode::dispatch(int)", "deep_ep::intranode::dispatch(int)"),
        *(
            (SUM, SUM.replace("(int)512", "(int)256")),
            (SUM, SUM.replace("sum_functor", "prod_functor")),
        ),
        *(
            ("k" * 200 + "a", "k" * 200 + "b"),
            ("void Kernel<float>(float *)", "void Kernel<double>(double *)"),
        ),
    ]:
        assert short(one) != short(other)
    for one, other in [
        ("void scale<float>(T1 *, const T1 *)", "void scale<float>(float*, float const*)"),
        (
            "void cudnn::ops::nchwToNhwcKernel<float, (bool)0>(T1 *)",
            "void nchwToNhwcKernel<float, false>(int, float*)",
        ),
        (CLAMP, CLAMP_KINETO.replace("at::detail::Array<char*, 2>", "std::array<char*, 2ul>")),
    ]:
        assert short(one) == short(other)


def test_functors_and_hashes() -> None:
    for full_name, expected in [
        (SUM, "sum_functor<float, float, float>#1(float, float)"),
        (CLAMP, "launch_clamp_scalar#1.8.1(float)"),
        (
            "void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float>(int)",
            "AdamFunctor<float>",
        ),
        ("void at::native::vectorized_elementwise_kernel<4>(int)", ""),
        ("void max_pool_forward_nchw<float, float>(int)", ""),
    ]:
        assert expected == functor(full_name)
    # blake2b, 4 bytes: the same in every process, unlike Python's hash().
    assert " #" + blake2b(compact(SUM).encode(), digest_size=4).hexdigest() == short(SUM)[-10:]


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
        *(
            "HTA__alexnet__benchmark_result_2869224_1695835535_trace",
            "HTA__nccl_parser_config__nccl_data",
        ),
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
    found: Torch = {}
    for name in TORCH:
        events = json.loads(gzip.decompress((profiles / "torch" / name).read_bytes()))[
            "traceEvents"
        ]
        found[name] = Counter()
        for event in events:
            if event.get("cat", "").lower() == "kernel":
                found[name][event["name"]] += float(event["dur"])
    return found


def every(nsys: Nsys) -> set[str]:
    return {full_name for rows in nsys.values() for _, full_name, _ in rows}


def test_base_is_what_nsys_calls_short_name(nsys: Nsys) -> None:
    pairs = {(kernel, full_name) for rows in nsys.values() for kernel, full_name, _ in rows}
    assert [] == [
        (kernel, base(full_name))
        for kernel, full_name in sorted(pairs)
        if kernel != base(full_name)
    ]
    assert len(pairs) >= 237


def test_short_names_stay_apart_within_a_capture(nsys: Nsys, torch: Torch) -> None:
    captures = [{full_name for _, full_name, _ in rows} for rows in nsys.values()] + [
        *map(set, torch.values())
    ]
    assert [len(names) for names in captures] == [
        len({short(name) for name in names}) for names in captures
    ]


def test_nsys_and_pytorch_traces_share_names_of_one_kernel_only(nsys: Nsys, torch: Torch) -> None:
    shared = defaultdict(set)
    for full_name in every(nsys).union(*torch.values()):
        said = decode(full_name)
        # CUTLASS 2 and 3 launch one operation through Kernel and Kernel2.
        function = (
            base(full_name).removesuffix("2") if "cutlass::Kernel" in full_name else base(full_name)
        )
        shared[said.name].add((function, said.family, said.operation, said.precision, said.tile))
    assert [] == [name for name, kernels in shared.items() if len(kernels) > 1]


def test_few_kernels_of_deep_learning_are_unknown(nsys: Nsys, torch: Torch) -> None:
    """Of the kernel time of deep-learning captures at most 5 % is `other` (MoE routing, sorting, set-up)."""
    captures = [rows for name, rows in nsys.items() if any(word in name for word in LEARNING)]
    times = [Counter({full_name: ns for _, full_name, ns in rows}) for rows in captures] + list(
        torch.values()
    )
    shares = [
        sum(t for name, t in time.items() if family(name) == "other") / time.total()
        for time in times
    ]
    assert len(shares) >= 5 + len(TORCH)
    assert max(shares) <= 0.05
