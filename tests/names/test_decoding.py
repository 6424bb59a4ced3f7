"""What names say, above all the four kernels of the A100 lab report; their parts; and names that are cut or huge."""

import tomllib
from pathlib import Path

import pandas as pd
import pytest

from perfkit.names import decode, table
from perfkit.names.families import FAMILIES, LONGEST
from perfkit.names.parsing import base, canonical

SGEMM = "ampere_sgemm_32x32_sliced1x4_tn"
SPLIT_K = (
    "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, 0, float, float, float, 1, 1, 0>"
    "(cublasLt::cublasSplitKParams<T6>, const T4 *, const T9 *, T8 *, T5 *, const T6 *)"
)
SOFTMAX = "void <unnamed>::softmax_warp_forward<float, float, float, 4, 0, 0> (T2 *, const T1 *, int, int, int)"
CLAMP = (
    "void at::native::vectorized_elementwise_kernel<4, at::native::<unnamed>::launch_clamp_scalar (at::Tensor"
    "IteratorBase &, c10::Scalar, c10::Scalar, at::ClampLimits)::[lambda() (instance 1)]::operator ()() const::"
    "[lambda() (instance 7)]::operator ()() const::[lambda(float) (instance 1)], std::array<char *, 2>>(int, T2, T3)"
)
FLASH = (
    "void flash::flash_fwd_kernel<Flash_fwd_kernel_traits<(int)128, (int)128, "
    "(int)64, (int)4, cutlass::bfloat16_t>>(X)"
)
XMMA = (
    "sm80_xmma_wgrad_implicit_gemm_indexed_tf32f32_tf32f32_f32_nhwckrsc_nhwc_tilesize128x128x16_stage4_warpsize2x2x1_g1_"
    "tensor16x8x8_execute_split_k_kernel_cudnn_train"
)


DGRAD = "cutlass_tensorop_s1688dgrad_optimized_tf32_256x64_16x4_nhwc_unity_stride"
SIMT = "cutlass_80_simt_sgemm_128x32_8x5_nn_align1"
SM90 = "bf16bf16_bf16f32_f32_tn_n_tilesize128x128x64_warpgroupsize1x1x1_execute_kernel__5x_cublas"
TENSILE = "BBS_BH_UserArgs_MT128x64x64_MI16x16x1_SN_ISA942_IU1"
NCCL = "ncclDevKernelArgsStorage<4096ul>"
FILL = "at::native::FillFunctor<long>, std::array<char*, 1ul>"
FP32 = ("", "fp32")

# library, architecture, precision, tensor cores, tile, layout, split, operation
SAID = {
    SGEMM: ("cuBLAS", "ampere", "fp32", False, "32x32", "tn", "slice-K 4 within the block", ""),
    SPLIT_K: ("cuBLASLt", "", "fp32", None, "", "", "split-K across blocks, adding the parts", ""),
    SOFTMAX: ("PyTorch", "", "fp32", None, "", "", "", "fwd"),
    CLAMP: ("PyTorch", "", "fp32", None, "", "", "", "launch_clamp_scalar"),
    FLASH: ("FlashAttention", "", "bf16", True, "128x64", "", "", "fwd"),
    XMMA: (
        "cuDNN",
        "ampere",
        "tf32",
        True,
        "128x128x16",
        "nhwckrsc_nhwc",
        "split-K across blocks",
        "wgrad",
    ),
    f"void cutlass_cudnn::Kernel<{DGRAD}>(X)": (
        "cuDNN",
        "",
        "tf32",
        True,
        "256x64x16",
        "nhwc",
        "",
        "dgrad",
    ),
    f"void cutlass::Kernel2<{SIMT}>(X::Params)": (
        "CUTLASS",
        "ampere",
        "fp32",
        False,
        "128x32x8",
        "nn",
        "",
        "",
    ),
    "void cudnn::detail::dgrad2d_alg1_1<float, (int)0, (bool)1>(int)": (
        "cuDNN",
        *FP32,
        False,
        "",
        "",
        "",
        "dgrad",
    ),
    "void cudnn::cnn::wgrad_alg1_engine<float, float, (int)3>(int)": (
        "cuDNN",
        *FP32,
        False,
        "",
        "",
        "",
        "wgrad",
    ),
    "void cudnn::cnn::wgrad_alg0_engine<__half, (int)128>(int)": (
        "cuDNN",
        "",
        "fp16",
        None,
        "",
        "",
        "",
        "wgrad",
    ),
    "ampere_fp16_s16816gemm_fp16_128x64_ldg8_f2f_stages_64x4_tn": (
        *("cuBLAS", "ampere", "fp16", True, "128x64x64", "tn", "", ""),
    ),
    "ampere_d884gemm_64x64_16x4_nn": ("cuBLAS", "ampere", "fp64", True, "64x64x16", "nn", "", ""),
    "turing_int8_i8816gemm_int8_128x128_ldg16_nt": (
        "cuBLAS",
        "turing",
        "int8",
        True,
        "128x128",
        "nt",
        "",
        "",
    ),
    "volta_hgemm_128x64_nn": ("cuBLAS", "volta", "fp16", False, "128x64", "nn", "", ""),
    "nvjet_tst_192x192_64x4_2x1_v_bz_coopB_TNN": (
        "cuBLAS",
        "",
        "bf16",
        True,
        "192x192x64",
        "tn",
        "",
        "",
    ),
    f"sm90_xmma_gemm_{SM90}": ("cuBLAS", "hopper", "bf16", True, "128x128x64", "tn", "", ""),
    f"Cijk_Alik_Bljk_{TENSILE}": (
        "Tensile (rocBLAS, hipBLASLt)",
        "gfx942",
        "bf16",
        True,
        "128x64x64",
        "tn",
        "",
        "",
    ),
    f"ncclDevKernel_AllReduce_Sum_f32_RING_LL({NCCL})": (
        "NCCL",
        *FP32,
        None,
        "",
        "",
        "",
        "AllReduce",
    ),
    f"ncclDevKernel_Generic({NCCL})": ("NCCL", "", "", None, "", "", "", ""),
    "triton_red_fused_add_native_layer_norm_12": (
        *("Triton (TorchInductor)", "", "", None, "", "", "", "add_native_layer_norm"),
    ),
    f"void at::native::vectorized_elementwise_kernel<2, {FILL} >(int)": (
        *("PyTorch", "", "int64", None, "", "", "", "FillFunctor"),
    ),
    **dict.fromkeys(("jacobi_kernel(float*, int)", ""), ("", "", "", None, "", "", "", "")),
}


@pytest.mark.parametrize(("full_name", "expected"), SAID.items())
def test_properties(full_name: str, expected: tuple[str | bool | None, ...]) -> None:
    said = decode(full_name)
    found = (said.library, said.architecture, said.precision, said.tensor_cores)
    assert expected == (*found, said.tile, said.layout, said.split, said.operation)


GEMM = "Matrix multiplication (GEMM) in fp32 on CUDA cores from cuBLAS, built for the Ampere architecture"
REDUCED = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(int)"


@pytest.mark.parametrize(
    ("full_name", "expected", "never"),  # the lab report's four misreadings are put right
    [
        (SGEMM, GEMM, ""),
        (
            SGEMM,
            "inside one thread block the K loop of that tile is shared by 4 groups of warps",
            "over the GPU, ",
        ),
        (SGEMM, "each thread block computes a 32x32 tile", ""),
        (SGEMM, "A is transposed, B is not transposed", ""),
        (SPLIT_K, "32 and 16 are thread and vector parameters, not a GEMM tile", "32x16"),
        (SPLIT_K, "adds the partial results", ""),
        (SOFTMAX, "Forward pass of softmax in fp32", "log-softmax"),
        (SOFTMAX.replace("4, 0, 0", "4, 1, 0"), "Forward pass of log-softmax", ""),
        (SOFTMAX, "rows of up to 2^4 = 16 elements", "per thread"),
        *((CLAMP, "clamp to a range (how ReLU runs)", ""), (CLAMP, "vector width 4", "")),
        (FLASH, "128 queries by 64 keys", ""),
        (XMMA, "Gradient of a convolution with respect to its weights", ""),
        (REDUCED, "also runs other reductions, algorithms and protocols", ""),
        *(
            (REDUCED, "AllReduce (sum) in fp32", ""),
            ("triton_poi_fused_add_mul_0", "pointwise work", ""),
        ),
        (
            "jacobi_kernel(float*, int)",
            "jacobi_kernel(float*, int): its name follows no convention",
            "",
        ),
        ("void reduce_kernel<256>(float *)", "reduction", "256 threads"),
    ],
)
def test_sentences(full_name: str, expected: str, never: str) -> None:
    sentence = decode(full_name).sentence
    assert expected in sentence
    assert not never or never not in sentence
    assert sentence.endswith(".")
    assert 1 == sentence.count(". ") + 1


def test_table_has_one_row_per_distinct_name() -> None:
    rows = [(SGEMM, SGEMM, "gemm"), ("vecAdd(float*)", "vecAdd(float*)", "elementwise")]
    expected = pd.DataFrame(rows, columns=["full_name", "name", "family"], dtype="string")
    names = pd.Series([SGEMM, "vecAdd(float*)", SGEMM], dtype="category")
    pd.testing.assert_frame_equal(expected, table(names))
    pd.testing.assert_frame_equal(expected, table(names.cat.categories))
    pd.testing.assert_frame_equal(expected[:0], table([]))


LENGTH = 10_000


def _filled(start: str, piece: str, end: str = "") -> str:
    return start + piece * (LENGTH // len(piece)) + end


# Each of these is quadratic or worse for a parser or pattern that goes back.
NAMES = [
    *(_filled("", mark) for mark in "<>()[]{}, \n1é\ud800"),
    *(_filled("", piece) for piece in ("f<", "operator<", "[lambda(")),
    *(
        _filled("", "f<", ">" * (LENGTH // 2)),
        _filled("", " [clone ", "]"),
        _filled("[lambda(", ") (instance "),
    ),
    *(
        _filled("f<" + "a" * 39 + ">(", "T1,", ")"),
        _filled("_ZN", "1a"),
        _filled("_ZN6KernelI", "La1"),
    ),
    *(
        _filled("triton_poi_fused_", "1", "x"),
        _filled("ncclKernel_X", "_NVLS"),
        _filled("cutlass", "_cudnn", "("),
    ),
    *(
        _filled("flash_fwd_kernel<", "Flash_"),
        _filled("sliced", "1", "x4"),
        _filled("softmax_warp_forward<", "4, "),
    ),
    _filled("reduce_kernel<1, ", "at::native::ReduceOp<float, ", "x>"),
]


@pytest.mark.parametrize("full_name", NAMES, ids=lambda name: ascii(name[:20]))
def test_ten_thousand_characters(full_name: str) -> None:
    """Nothing raises or hangs, and a difference after all of them still makes another name."""
    said = decode(full_name)
    assert 0 < len(said.name) <= LONGEST
    assert said.family in FAMILIES
    assert base(full_name)
    assert decode(NAMES[0] + "a").name != decode(NAMES[0] + "b").name


BASES = tomllib.loads(Path(__file__).with_name("names.toml").read_text(encoding="utf-8"))["bases"]


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
    kineto = (
        f"f<float const*, unsigned int, (anonymous namespace)::g<a<b> >(int&)::{lambdas['kineto']}>"
    )
    assert canonical(nsys) == canonical(kineto)
    assert "f<float*, uint, g<a<b>>(int&)::{lambda(float)#2}::operator()()>" == canonical(nsys)
