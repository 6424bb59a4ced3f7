"""Which kernels does PyTorch launch to train a DLRM on an H100, and what do they look like to HPCToolkit?

Conventions
-----------
Names are the public ones of PyTorch, CUTLASS and cuBLAS. Durations are what a launch takes on average, ns; samples are
taken every PERIOD_CYCLES on each multiprocessor, and stalls are per mille of the samples, in the order of STALLS; the
rest of the samples are instructions that were issued. All figures are invented.

Data
----
KERNELS      kernels by the key that the program uses
STALLS       reasons, as HPCToolkit's metrics call them
"""

from __future__ import annotations

import hashlib
from typing import NamedTuple

MULTIPROCESSORS, CLOCK_MHZ, PERIOD_CYCLES = 132, 1_755, 4_096
MOST_WARPS = 64

STALLS = ("IFET", "IDEP", "GMEM", "SYNC", "CMEM", "PIPE", "MTHR", "OTHR")

Mix = tuple[int, int, int, int, int, int, int, int]

_STREAM: Mix = (55, 75, 260, 0, 75, 15, 22, 4)
_GATHER: Mix = (35, 60, 430, 8, 55, 12, 30, 5)
_REDUCE: Mix = (110, 85, 190, 80, 60, 8, 6, 5)
_GEMM: Mix = (48, 92, 150, 42, 38, 58, 16, 3)
_SORT: Mix = (90, 150, 90, 160, 60, 20, 10, 5)

_FLOAT = "{lambda()#2}::operator()() const::{lambda()#2}::operator()() const::{lambda(float)#1}"
_PAIR = "{lambda()#1}::operator()() const::{lambda()#2}::operator()() const::{lambda(float, float)#1}"
_SUM = (
    "at::native::func_wrapper_t<float, at::native::sum_functor<float, float, float>::"
    "operator()(at::TensorIterator&)::{lambda(float, float)#1}>"
)
_INFO = "at::cuda::detail::TensorInfo<float, unsigned int>"
_INFO_OF_INDEX = "at::cuda::detail::TensorInfo<long const, unsigned int>"


class Kernel(NamedTuple):
    """A kernel, and a launch of it: blocks, threads in each, registers per thread, bytes of shared memory per block.

    `sampled` is how many of 1000 expected samples are taken; `loop` says whether its code has one.
    """

    name: str
    mean_ns: int
    blocks: int
    threads: int
    registers: int
    stalls: Mix
    sampled: int
    static_bytes: int = 0
    dynamic_bytes: int = 0
    loop: bool = False

    @property
    def warps(self) -> int:
        """Warps of a multiprocessor that registers and shared memory leave room for."""
        by_registers = 65_536 // (self.registers * 32)
        by_shared = self.threads // 32 * (233_472 // max(self.static_bytes + self.dynamic_bytes, 1))
        return min(MOST_WARPS, by_registers, by_shared)

    @property
    def module(self) -> str:
        """GPU binary it comes from; all kernels of a source file are in one."""
        family = self.name.removeprefix("(anonymous namespace)::").split("<")[0].split("(")[0]
        return f"gpubins/{hashlib.md5(family.encode(), usedforsecurity=False).hexdigest()}.gpubin"


def _vectorised(functor: str, arrays: int) -> str:
    kind = f"at::native::{functor}"
    return (
        f"at::native::vectorized_elementwise_kernel<4, {kind}, std::array<char*, {arrays}ul> >"
        f"(int, {kind}, std::array<char*, {arrays}ul>)"
    )


def _plain(functor: str) -> str:
    return f"at::native::elementwise_kernel<128, 2, at::native::{functor}>(int, at::native::{functor})"


def _reduction(width: int, vector: int, op: str) -> str:
    what = f"at::native::ReduceOp<float, {op}, unsigned int, float, 4>"
    return f"at::native::reduce_kernel<{width}, {vector}, {what} >({what})"


def _simt(tile: str, layout: str) -> str:
    name = f"cutlass_80_simt_sgemm_{tile}_{layout}_align1"
    return f"cutlass::Kernel2<{name}>({name}::Params)"


KERNELS: dict[str, Kernel] = {
    "gemm_wide": Kernel(_simt("128x256_8x4", "tn"), 33_400, 128, 256, 238, _GEMM, 640, 0, 49_152, True),
    "gemm_mid": Kernel(_simt("128x64_8x5", "tn"), 14_900, 256, 128, 168, _GEMM, 600, 0, 30_720, True),
    "gemm_small": Kernel(_simt("64x64_8x5", "tn"), 8_300, 128, 64, 126, _GEMM, 520, 0, 20_480, True),
    "gemm_nt_wide": Kernel(_simt("128x256_8x4", "nt"), 52_700, 64, 256, 238, _GEMM, 690, 0, 49_152, True),
    "gemm_nt_mid": Kernel(_simt("128x64_8x5", "nt"), 21_600, 128, 128, 168, _GEMM, 620, 0, 30_720, True),
    "gemm_nt_small": Kernel(_simt("64x64_8x5", "nt"), 9_700, 64, 64, 126, _GEMM, 510, 0, 20_480, True),
    "gemm_nn": Kernel(_simt("128x64_8x5", "nn"), 16_800, 256, 128, 168, _GEMM, 610, 0, 30_720, True),
    "split_k": Kernel(
        "cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, float, true, false, false>"
        "(cublasLt::cublasSplitKParams<float>, float const*, float const*, float*, float const*, float const*, "
        "float const*, float const*, float*, void*, long, float*, int*)",
        *(5_200, 64, 512, 40, _REDUCE, 560),
    ),
    "bmm": Kernel(
        "gemmSN_TN_kernel<float, 128, 16, 2, 4, 4, 4, true, cublasGemvTensorStridedBatched<float const>, "
        "cublasGemvTensorStridedBatched<float const>, cublasGemvTensorStridedBatched<float> >"
        "(cublasGemmSmallNParams<cublasGemvTensorStridedBatched<float const>, "
        "cublasGemvTensorStridedBatched<float const>, cublasGemvTensorStridedBatched<float>, float>)",
        *(7_400, 2_048, 128, 88, _GEMM, 640, 6_144, 0, True),
    ),
    "embedding_bag": Kernel(
        "at::native::(anonymous namespace)::EmbeddingBag_updateOutputKernel_sum_mean<float, long>(long const*, "
        "long const*, float const*, float*, long*, long, long, long, long, long, int, long*, float const*, long, "
        "long, long)",
        *(6_100, 2_048, 256, 48, _GATHER, 700, 0, 0, True),
    ),
    "cat": Kernel(
        "at::native::(anonymous namespace)::CatArrayBatchedCopy_aligned16_contig<"
        "at::native::(anonymous namespace)::OpaqueType<4u>, unsigned int, 2, 128, 1>"
        "(at::native::(anonymous namespace)::OpaqueType<4u>*, "
        "at::native::(anonymous namespace)::CatArrInputTensorMetadata<"
        "at::native::(anonymous namespace)::OpaqueType<4u>, unsigned int, 128, 1>, "
        "at::native::(anonymous namespace)::TensorSizeStride<unsigned int, 4u>, int, unsigned int)",
        *(4_800, 528, 512, 32, _STREAM, 680),
    ),
    "index": Kernel(
        "at::native::index_elementwise_kernel<128, 4, at::native::gpu_index_kernel<"
        "at::native::index_kernel_impl<at::native::OpaqueType<4> >(at::TensorIteratorBase&, c10::ArrayRef<long>, "
        "c10::ArrayRef<long>)::{lambda(char*, char const*, long)#1}>(at::TensorIteratorBase&, c10::ArrayRef<long>, "
        "c10::ArrayRef<long>)>(long)",
        *(6_300, 1_024, 128, 42, _GATHER, 690),
    ),
    "relu": Kernel(
        _vectorised(
            "(anonymous namespace)::launch_clamp_scalar(at::TensorIteratorBase&, c10::Scalar, c10::Scalar)::" + _FLOAT,
            2,
        ),
        *(4_400, 1_024, 128, 24, _STREAM, 650),
    ),
    "relu_back": Kernel(
        _vectorised(
            "BinaryFunctor<float, float, float, at::native::(anonymous namespace)::threshold_kernel_impl<float>"
            "(at::TensorIteratorBase&, float, float)::{lambda(float, float)#1}>",
            3,
        ),
        *(6_000, 1_024, 128, 28, _STREAM, 690),
    ),
    "sigmoid": Kernel(
        _vectorised("sigmoid_kernel_cuda(at::TensorIteratorBase&)::" + _FLOAT, 2), 3_300, 4, 128, 26, _STREAM, 90
    ),
    "sigmoid_back": Kernel(
        _vectorised("sigmoid_backward_kernel_cuda(at::TensorIteratorBase&)::" + _PAIR, 3),
        *(3_400, 4, 128, 26, _STREAM, 90),
    ),
    "mse": Kernel(_vectorised("mse_kernel_cuda(at::TensorIteratorBase&)::" + _PAIR, 3), 3_200, 4, 128, 22, _STREAM, 80),
    "mse_back": Kernel(
        _plain(
            "gpu_kernel_impl_nocast<at::native::mse_backward_cuda_kernel(at::TensorIterator&, c10::Scalar const&)::"
            + _PAIR
            + ">"
        ),
        *(4_000, 16, 128, 36, _STREAM, 110),
    ),
    "mean": Kernel(
        _reduction(512, 1, "at::native::MeanOps<float, float, float, float>"), 4_900, 1, 512, 46, _REDUCE, 60, 16
    ),
    "sum": Kernel(_reduction(128, 4, _SUM), 10_900, 64, 512, 52, _REDUCE, 480, 16, 8_192, True),
    "fill": Kernel(_vectorised("FillFunctor<float>", 1), 3_000, 512, 128, 16, _STREAM, 420),
    "add": Kernel(_vectorised("CUDAFunctor_add<float>", 3), 4_100, 512, 128, 24, _STREAM, 660),
    "add_strided": Kernel(
        _plain(
            "gpu_kernel_impl_nocast<at::native::CUDAFunctor_add<float> >(at::TensorIteratorBase&, "
            "at::native::CUDAFunctor_add<float> const&)::{lambda(int)#1}"
        ),
        *(5_300, 1_024, 128, 30, _STREAM, 600),
    ),
    "radix_sort": Kernel(
        "at_cuda_detail::cub::DeviceRadixSortSingleTileKernel<at_cuda_detail::cub::DeviceRadixSortPolicy<long, "
        "at::cuda::cub::detail::OpaqueType<8>, unsigned long long>::Policy900, false, long, "
        "at::cuda::cub::detail::OpaqueType<8>, unsigned long long>(long const*, long*, "
        "at::cuda::cub::detail::OpaqueType<8> const*, at::cuda::cub::detail::OpaqueType<8>*, unsigned long long, int)",
        *(7_800, 1, 256, 96, _SORT, 40, 41_216, 0, True),
    ),
    "index_put": Kernel(
        "(anonymous namespace)::indexing_backward_kernel_stride_1<float>(long const*, long const*, float const*, "
        "float*, long, long, long, long, bool)",
        *(6_900, 160, 128, 40, _GATHER, 560, 0, 0, True),
    ),
    "divide": Kernel(
        _vectorised(
            "BUnaryFunctor<long, long, long, at::native::binary_internal::div_trunc_kernel_cuda("
            "at::TensorIteratorBase&)::{lambda()#1}::operator()() const::{lambda(long, long)#1}>",
            2,
        ),
        *(3_300, 4, 128, 30, _STREAM, 70),
    ),
    "index_select": Kernel(
        "at::native::(anonymous namespace)::indexSelectLargeIndex<float, long, unsigned int, 2, 2, -2, true>"
        f"({_INFO}, {_INFO}, {_INFO_OF_INDEX}, int, int, unsigned int, unsigned int, long)",
        *(5_900, 1_056, 128, 32, _GATHER, 700, 0, 0, True),
    ),
    "index_add": Kernel(
        "at::native::indexFuncLargeIndex<float, long, unsigned int, 2, 2, -2, true, "
        f"at::native::(anonymous namespace)::ReduceAdd>({_INFO}, {_INFO}, {_INFO_OF_INDEX}, int, int, unsigned int, "
        "unsigned int, long, long, at::native::(anonymous namespace)::ReduceAdd const&, float)",
        *(11_800, 1_056, 128, 36, _GATHER, 740, 0, 0, True),
    ),
}
