"""Reading the parts of a kernel's name."""

from __future__ import annotations

import pytest

from perfkit.names.parsing import base, canonical, path, split, template_names

BASES = {
    "void at::native::<unnamed>::max_pool_backward_nchw<float, float>(const T1 *, int)": "max_pool_backward_nchw",
    "void cutlass_cudnn::Kernel<cutlass_tensorop_s1688dgrad_optimized>(T1::Params)": "Kernel",
    "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_16x6_nn_align1>": "Kernel",
    "void (anonymous namespace)::softmax_warp_forward<float, 10, true>(float*, float const*)": "softmax_warp_forward",
    "void <unnamed>::softmax_warp_forward<float, 4, 0> (T2 *, const T1 *)": "softmax_warp_forward",
    "unnamed>::gemm_naive_kernel(const float *, int)": "gemm_naive_kernel",
    "std::enable_if<(((8)>(0)))&&vllm::_typeConvert<c10::BFloat16>::exists, void>::type "
    "vllm::fused_add_rms_norm_kernel<c10::BFloat16, 8>(c10::BFloat16*)": "fused_add_rms_norm_kernel",
    "std::enable_if<!(false), void>::type internal::gemvx::kernel<int, float>(int)": "kernel",
    "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<(unsigned long)4096>)": "ncclDevKernel_SendRecv",
    "void f<a::operator()(int)::[lambda(float) (instance 1)]>(T1)": "f",
    "void Functor::operator()<int>(T1) const": "operator()",
    "main::{lambda(int)#1}::operator()(int) const": "operator()",
    "saxpy(int, float*) [clone .constprop.0] [clone .kd]": "saxpy",
    "Cijk_Ailk_Bljk_SB_MT64x64x8.kd": "Cijk_Ailk_Bljk_SB_MT64x64x8",
    "ampere_sgemm_32x32_sliced1x4_tn": "ampere_sgemm_32x32_sliced1x4_tn",
    "triton_poi_fused_add_mul_0": "triton_poi_fused_add_mul_0",
    "cudapy::__main__::add$241(Array<float, 1, C, mutable, aligned>)": "add$241",
    "_Z12daxpy_kernelidPd_": "daxpy_kernel",
    "_ZN5aiter24add_rmsnorm_quant_kernelIDF16bDF16bLi256EEEvPT0_": "add_rmsnorm_quant_kernel",
    "_ZN12_GLOBAL__N_14workEv": "work",
    "_Z": "_Z",
    "void foo<bar<float": "foo",
    "foo(int": "foo",
    "Kernel mit Leerzeichen, 核": "Kernel mit Leerzeichen, 核",
    "": "",
    "::": "::",
    "<>": "<>",
}


@pytest.mark.parametrize(("full_name", "expected"), BASES.items())
def test_base_is_the_function_alone(full_name: str, expected: str) -> None:
    assert expected == base(full_name)


def test_three_tools_spell_one_type_alike() -> None:
    """nsys, CUPTI's demangler (Kineto) and ncu differ in brackets, const, spaces and lambdas only."""
    lambdas = {
        "nsys": "[lambda(float) (instance 2)]::operator ()() const",
        "kineto": "{lambda(float)#2}::operator()() const",
    }
    nsys = f"f<const float *, unsigned int, <unnamed>::g<a<b>>(int &)::{lambdas['nsys']}>"
    kineto = f"f<float const*, unsigned int, (anonymous namespace)::g<a<b> >(int&)::{lambdas['kineto']}>"
    assert canonical(nsys) == canonical(kineto)
    assert "f<float*, uint, g<a<b>>(int&)::{lambda(float)#2}::operator()()>" == canonical(nsys)


def test_path_drops_the_return_type() -> None:
    """What stands before a space outside brackets, ahead of the parameters, is a return type."""
    parts = path("std::enable_if<true, void>::type a::b<int>::c(float)")
    expected = [("a", (), None), ("b", ("int",), None), ("c", (), "float")]
    assert expected == [(part.name, part.args, part.params) for part in parts]


def test_split_ignores_separators_in_brackets() -> None:
    """Commas inside <>, (), [] and {} belong to the piece; an arrow and a comparison open nothing."""
    assert ["a<b, c>", " (d, e)", " f->g", " (1 < 2)", " h"] == split("a<b, c>, (d, e), f->g, (1 < 2), h", ",")
    assert ["a", " b<c, d"] == split("a, b<c, d", ",")  # a name cut inside its template arguments
    assert ["GemmShape"] == template_names("ILi128ENS_9GemmShapeILi4EEE")  # Li128E is a number, no name
