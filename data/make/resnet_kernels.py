"""Which kernels compute a ResNet-18 on an A100, and how quick are they?

Conventions
-----------
The nine names of section 3.3 of the A100 lab report are written out: it cuts them off after about a hundred characters,
and text recognition lost an ``_f32`` in two and put a blank into one. What follows the cut, and all other names, are
what cuDNN 8, cuBLAS and PyTorch 2 call such kernels. Threads, registers and shared memory are plausible, not measured.

A rate is what a kernel reaches when it fills the GPU, bandwidth what it reaches of the memory's 1935 GB/s; both are
invented such that a forward pass of 128 images takes about the 14.5 ms that the report measured.

Classes
-------
Speed      a kernel's rate and bandwidth

Data
----
NAMES      key of ours -> full name
SPEEDS     key -> speed
TILES      key -> rows and columns of the result that a block of a matrix product computes
LAUNCHED   key -> threads per block, registers per thread, shared memory per block (static, dynamic)
TENSOR     keys of the kernels that use tensor cores
"""

from __future__ import annotations

from typing import NamedTuple

_TF32 = "tf32f32_tf32f32_f32_nhwckrsc"
_END = "g1_tensor16x8x8_execute_kernel__5x_cudnn"
_ALIGNED = "g1_tensor16x8x8_aligna4_alignc8_execute_kernel__5x_cudnn"
_STRIDED = "cublasGemvTensorStridedBatched"
_LAYOUT = "(cudnnKernelDataType_t)"
_OLD = "kernel_grad_params, unsigned long long, int"


def _cutlass(name: str) -> str:
    return f"void cutlass_5x_cudnn::Kernel<{name}>(T1::Params)"


def _elementwise(functor: str, arrays: int) -> str:
    return (
        f"void at::native::vectorized_elementwise_kernel<(int)4, {functor}, std::array<char *, {arrays}>>(int, T2, T3)"
    )


def _foreach(depth: int, functor: str, operator: str) -> str:
    arguments = f"at::native::<unnamed>::TensorListMetadata<(int){depth}>, at::native::<unnamed>::{functor}"
    name = f"multi_tensor_apply_kernel<{arguments}, std::{operator}<float>, float>"
    return f"void at::native::<unnamed>::{name}(T1, T2, T3...)"


def _reduce(shape: str, operation: str) -> str:
    arguments = f"{shape}, at::native::ReduceOp<float, at::native::{operation}, unsigned int, float, (int)4>"
    return f"void at::native::reduce_kernel<{arguments}>(T3)"


_CLAMP = (
    "at::native::<unnamed>::launch_clamp_scalar(at::TensorIteratorBase &, c10::Scalar, c10::Scalar, "
    "at::native::detail::ClampLimits)::[lambda() (instance 1)]::operator ()() const::[lambda() (instance 7)]"
    "::operator ()() const::[lambda(float) (instance 1)]"
)
_THRESHOLD = (
    "at::native::BinaryFunctor<float, float, float, void at::native::<unnamed>::threshold_kernel_impl<float>"
    "(at::TensorIteratorBase &, T1, T1)::[lambda(float, float) (instance 1)]>"
)
_SUM = (
    "at::native::sum_functor<float, float, float>::operator ()(at::TensorIterator &)"
    "::[lambda(float, float) (instance 1)]"
)
_BN = "cudnnTensorStruct, const T1 *, cudnnTensorStruct"

NAMES = {
    "fprop_indexed": f"sm80_xmma_fprop_implicit_gemm_indexed_{_TF32}_nchw_tilesize64x32x64_stage5_warpsize2x2x1_{_END}",
    "fprop": f"sm80_xmma_fprop_implicit_gemm_{_TF32}_nchw_tilesize64x32x64_stage5_warpsize2x2x1_{_END}",
    "fprop_wo_smem": (
        f"sm80_xmma_fprop_implicit_gemm_indexed_wo_smem_{_TF32}_nhwc_tilesize128x32x16_stage1_warpsize4x1x1_{_ALIGNED}"
    ),
    "fprop_cutlass": _cutlass("cutlass_tensorop_s1688fprop_optimized_tf32_128x64_16x6_nhwc_align4"),
    "dgrad_alg1": (
        "void cudnn::detail::dgrad2d_alg1_1<float, (int)0, (int)6, (int)5, (int)4, (int)4, (bool)0, (bool)1>"
        f"(int, int, int, const T1 *, int, const T1 *, int, T1 *, {_OLD}, unsigned long long, int, float, int, int)"
    ),
    "dgrad_cutlass": _cutlass("cutlass_tensorop_s1688dgrad_optimized_tf32_64x64_32x5_nhwc_unity_stride_align4"),
    "dgrad": f"sm80_xmma_dgrad_implicit_gemm_{_TF32}_nhwc_tilesize64x32x64_stage5_warpsize2x2x1_{_END}",
    "dgrad_indexed": f"sm80_xmma_dgrad_implicit_gemm_indexed_{_TF32}_nhwc_tilesize64x64x64_stage3_warpsize2x2x1_{_END}",
    "wgrad_alg1": (
        "void cudnn::cnn::wgrad_alg1_engine<float, float, (int)128, (int)5, (int)5, (int)3, (int)3, (int)3, (bool)0, "
        f"(bool)1>(int, int, int, const T1 *, int, T2 *, const T1 *, {_OLD}, float, float, int, int, int *, int *, "
        "int, int)"
    ),
    "wgrad_indexed": f"sm80_xmma_wgrad_implicit_gemm_indexed_{_TF32}_nhwc_tilesize64x32x64_stage5_warpsize2x2x1_{_END}",
    "wgrad_cutlass": _cutlass("cutlass_tensorop_s1688wgrad_optimized_tf32_128x64_16x6_nhwc_align4"),
    "to_nhwc": (
        f"void cudnn::ops::nchwToNhwcKernel<float, float, float, (bool)0, (bool)1, {_LAYOUT}2>"
        "(cudnn::ops::nchw2nhwc_params_t<T3>, const T1 *, T2 *)"
    ),
    "to_nchw": (
        f"void cudnn::ops::nhwcToNchwKernel<float, float, float, (bool)1, (bool)0, {_LAYOUT}0>"
        "(cudnn::ops::nhwc2nchw_params_t<T3>, const T1 *, T2 *)"
    ),
    "norm": (
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, (int)512, (bool)1, (int)1, (bool)1>"
        f"({_BN}, T1 *, const T2 *, const T2 *, T2, T2, T2 *, T2 *, T2 *, T2 *, T2, T2)"
    ),
    "norm_inference": (
        "void cudnn::bn_fw_inf_1C11_kernel_NCHW<float, float, (bool)1, (int)1>"
        f"(T2, T2, {_BN}, T1 *, cudnnTensorStruct, const T2 *, const T2 *, const T2 *, const T2 *, T2)"
    ),
    "norm_back": (
        "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, (int)512, (bool)1, (int)1>"
        f"(T2, T2, T2, T2, {_BN}, const T1 *, cudnnTensorStruct, T1 *, const T2 *, T2 *, T2 *, const T2 *, "
        "const T2 *, T2)"
    ),
    "relu": _elementwise(_CLAMP, 2),
    "relu_back": _elementwise(_THRESHOLD, 3),
    "add": _elementwise("at::native::CUDAFunctor_add<float>", 3),
    "count_batch": _elementwise("at::native::CUDAFunctorOnSelf_add<long>", 2),
    "fill": _elementwise("at::native::FillFunctor<float>", 1),
    "scale": _elementwise(
        "at::native::BUnaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float>>", 2
    ),
    "max_pool": (
        "void at::native::<unnamed>::max_pool_forward_nchw<float, float>"
        f"(int, const T1 *, long{', int' * 12}, T1 *, long *)"
    ),
    "max_pool_back": (
        "void at::native::<unnamed>::max_pool_backward_nchw<float, float>"
        f"(const T1 *, const long *, int, long{', int' * 14}, T1 *)"
    ),
    "mean": _reduce("(int)512, (int)1", "MeanOps<float, float, float, float>"),
    "bias_sum": _reduce("(int)128, (int)4", f"func_wrapper_t<float, {_SUM}>"),
    "linear": "ampere_sgemm_64x32_sliced1x4_tn",
    "linear_inputs": "ampere_sgemm_64x32_sliced1x4_nn",
    "linear_weights": "ampere_sgemm_128x32_sliced1x4_nt",
    "linear_one": (
        "void gemv2T_kernel_val<int, int, float, float, float, float, (int)128, (int)16, (int)4, (int)4, (bool)0, "
        f"(bool)0, cublasGemvParamsEx<int, {_STRIDED}<const float>, {_STRIDED}<const float>, {_STRIDED}<float>, float>>"
        "(T13, T6, T6)"
    ),
    "log_softmax": (
        "void at::native::<unnamed>::cunn_SoftMaxForward<(int)4, float, float, float, "
        "at::native::<unnamed>::LogSoftMaxForwardEpilogue>(T4 *, const T2 *, int)"
    ),
    "log_softmax_back": (
        "void at::native::<unnamed>::cunn_SoftMaxBackward<(int)4, float, float, float, "
        "at::native::<unnamed>::LogSoftMaxBackwardEpilogue>(T2 *, const T4 *, const T4 *, long)"
    ),
    "nll": (
        "void at::native::<unnamed>::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>"
        "(T1 *, T1 *, const T1 *, const T3 *, const T1 *, bool, long, long, long, long)"
    ),
    "nll_back": (
        "void at::native::<unnamed>::nll_loss_backward_reduce_cuda_kernel_2d<float, long>"
        "(T1 *, const T1 *, const T2 *, const T1 *, const T1 *, bool, int, int, long, long)"
    ),
    "sgd_momentum": _foreach(1, "BinaryOpScalarFunctor<float, (int)1, (int)1, (int)0>", "multiplies"),
    "sgd_add": _foreach(2, "BinaryOpListAlphaFunctor<float, (int)2, (int)2, (int)0>", "plus"),
}


class Speed(NamedTuple):
    """FLOP/s and bytes/s of a kernel that fills the GPU."""

    flops_per_s: float
    bytes_per_s: float


_CONVERTED, _STREAMED = Speed(19.5e12, 1.45e12), Speed(19.5e12, 1.52e12)
SPEEDS = dict.fromkeys(NAMES, _STREAMED) | {
    "fprop_indexed": Speed(66e12, 1.4e12),
    "fprop": Speed(78e12, 1.4e12),
    "fprop_wo_smem": Speed(30e12, 1.2e12),
    "fprop_cutlass": Speed(52e12, 1.4e12),
    "dgrad_alg1": Speed(9.1e12, 1.1e12),
    "dgrad_cutlass": Speed(58e12, 1.4e12),
    "dgrad": Speed(61e12, 1.4e12),
    "dgrad_indexed": Speed(24e12, 1.1e12),
    "wgrad_alg1": Speed(9.4e12, 1.1e12),
    "wgrad_indexed": Speed(43e12, 1.3e12),
    "wgrad_cutlass": Speed(57e12, 1.4e12),
    "to_nhwc": _CONVERTED,
    "to_nchw": _CONVERTED,
    "norm": Speed(19.5e12, 1.30e12),
    "norm_inference": Speed(19.5e12, 1.35e12),
    "norm_back": Speed(19.5e12, 1.25e12),
    "max_pool_back": Speed(19.5e12, 0.9e12),
    "linear": Speed(7e12, 1.2e12),
    "linear_inputs": Speed(7e12, 1.2e12),
    "linear_weights": Speed(7e12, 1.2e12),
}

TILES = {
    **dict.fromkeys(("fprop_indexed", "fprop", "dgrad", "wgrad_indexed", "linear", "linear_inputs"), (64, 32)),
    **dict.fromkeys(("fprop_wo_smem", "linear_weights"), (128, 32)),
    **dict.fromkeys(("fprop_cutlass", "wgrad_cutlass"), (128, 64)),
    **dict.fromkeys(("dgrad_cutlass", "dgrad_indexed", "dgrad_alg1", "wgrad_alg1"), (64, 64)),
}

TENSOR = {key for key, name in NAMES.items() if "tensor" in name}

_TILED = (128, 168, 0, 98_304)
LAUNCHED = dict.fromkeys(NAMES, (128, 24, 0, 0)) | {
    **dict.fromkeys(("fprop_indexed", "fprop", "dgrad", "wgrad_indexed"), _TILED),
    "fprop_wo_smem": (128, 102, 1_024, 0),
    "fprop_cutlass": (128, 222, 0, 73_728),
    "dgrad_cutlass": (128, 150, 0, 81_920),
    "dgrad_indexed": (128, 190, 0, 98_304),
    "wgrad_cutlass": (128, 228, 0, 73_728),
    "dgrad_alg1": (256, 126, 8_704, 0),
    "wgrad_alg1": (256, 120, 7_168, 0),
    "to_nhwc": (256, 32, 4_224, 0),
    "to_nchw": (256, 32, 4_224, 0),
    "norm": (512, 64, 136, 0),
    "norm_back": (512, 68, 264, 0),
    "norm_inference": (512, 32, 0, 0),
    "max_pool": (256, 32, 0, 0),
    "max_pool_back": (256, 32, 0, 0),
    "mean": (512, 28, 16, 0),
    "bias_sum": (256, 40, 16, 0),
    "linear": (256, 126, 24_576, 0),
    "linear_inputs": (256, 126, 24_576, 0),
    "linear_weights": (256, 128, 33_792, 0),
    "linear_one": (128, 64, 2_048, 0),
    "log_softmax": (256, 32, 128, 0),
    "log_softmax_back": (256, 36, 128, 0),
    "nll": (32, 34, 256, 0),
    "nll_back": (32, 32, 0, 0),
    "sgd_momentum": (512, 36, 0, 0),
    "sgd_add": (512, 42, 0, 0),
}
