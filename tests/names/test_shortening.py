"""Names for people: short, and never one for two kinds of work."""

from __future__ import annotations

import random
from hashlib import blake2b

import pytest

from perfkit.names.families import LONGEST, compact, functor, short

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
    "void clover::par_ranged1d_kernel<update_halo_kernel(int, {0})::[lambda(int) (instance {1})]>(clover::Range1d, T1)"
)
LONG = "const std::array<int, (unsigned long)4> &, field_type &, const int *, double, double, double *"

SHORT = {
    "ampere_sgemm_32x32_sliced1x4_tn": "ampere_sgemm_32x32_sliced1x4_tn",
    "triton_poi_fused_add_mul_0": "triton_poi_fused_add_mul_0",
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
    """The functor, the CUTLASS operation and the parameters of user kernels stay; hashes are the same everywhere."""
    assert expected == short(full_name)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("scale(float*, int)", "scale(double*, int)"),
        ("void scale<float>(T1 *, T1)", "void scale<float>(T1 *, T1 *)"),
        ("rho::advance(int)", "mom::advance(int)"),
        (CLAMP, CLAMP.replace("(instance 8)", "(instance 9)")),
        (CLAMP, CLAMP.replace("launch_clamp_scalar", "where_kernel_impl")),
        (HALO.format(LONG, 1), HALO.format(LONG, 2)),
        (HALO.format(LONG, 1), HALO.format(LONG + ", int", 1)),
        ("deep_ep::internode::dispatch(int)", "deep_ep::intranode::dispatch(int)"),
        (SUM, SUM.replace("(int)512", "(int)256")),
        (SUM, SUM.replace("sum_functor", "prod_functor")),
        ("k" * 200 + "a", "k" * 200 + "b"),
        ("void Kernel<float>(float *)", "void Kernel<double>(double *)"),
    ],
)
def test_different_work_has_different_names(one: str, other: str) -> None:
    """Overloads, scopes, lambdas, functors, template arguments and cut ends keep names apart."""
    assert short(one) != short(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("void scale<float>(T1 *, const T1 *)", "void scale<float>(float*, float const*)"),
        ("void cudnn::ops::nchwToNhwcKernel<float, (bool)0>(T1 *)", "void nchwToNhwcKernel<float, false>(int, float*)"),
        (CLAMP, CLAMP_KINETO.replace("at::detail::Array<char*, 2>", "std::array<char*, 2ul>")),
    ],
)
def test_one_kernel_has_one_name_in_every_tool_and_version(one: str, other: str) -> None:
    """Spelling, placeholders T1, and a library's parameters and namespaces do not make another kernel."""
    assert short(one) == short(other)


def test_random_names_stay_apart() -> None:
    """Of 3,000 random C++ names with different arguments no two get one short name; none exceeds 80."""
    rng = random.Random(7)
    words = ["alpha", "beta", "gamma", "delta", "float", "double", "int"]

    def name(depth: int) -> str:
        word = rng.choice(words) + (f"_{rng.randrange(50)}" if rng.random() < 0.5 else "")
        if depth and rng.random() < 0.7:
            return f"{word}<{', '.join(name(depth - 1) for _ in range(rng.randrange(1, 4)))}>"
        return word

    names = sorted({f"void scope::work<{name(3)}>({name(2)})" for _ in range(3_000)})
    shorts = {short(full_name) for full_name in names}

    assert len(names) == len(shorts)
    assert max(map(len, shorts)) <= LONGEST


def test_the_hash_is_of_the_compact_name() -> None:
    """blake2b of the compact name, 4 bytes: the same in every process, unlike Python's hash()."""
    assert " #" + blake2b(compact(SUM).encode(), digest_size=4).hexdigest() == short(SUM)[-10:]


def test_compact_is_not_cut() -> None:
    """The hash stands for the compact name, which keeps the namespaces and parameters of user code."""
    whole = compact(HALO.format("double", 3))

    assert "clover::par_ranged1d_kernel<update_halo_kernel(int, double)#3(int)>(clover::Range1d, " in whole
    assert len(whole) > LONGEST


@pytest.mark.parametrize(
    ("full_name", "expected"),
    [
        (SUM, "sum_functor<float, float, float>#1(float, float)"),
        (CLAMP, "launch_clamp_scalar#1.8.1(float)"),
        ("void multi_tensor_apply_kernel<TensorListMetadata<4>, AdamFunctor<float>, float>(int)", "AdamFunctor<float>"),
        ("void at::native::vectorized_elementwise_kernel<4>(int)", ""),
        ("void max_pool_forward_nchw<float, float>(int)", ""),
    ],
)
def test_functor_of_generic_kernels(full_name: str, expected: str) -> None:
    """Numbers, element types and metadata are passed over, wrappers are opened; other kernels have none."""
    assert expected == functor(full_name)
