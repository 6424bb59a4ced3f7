"""Which kernels did the MLP of the A100 lab report launch? Its Table 5, with the names written out.

Conventions
-----------
Counts and times (ns) are the report's, to the nanosecond. The report prints base names only; four full
names are those of its section 2.3, the others are what PyTorch and cuBLAS call the work that the counts
imply: 469 training steps of SGD with momentum, 79 test batches and one forward pass more, of a network
784-256-128-10 with a ReLU after every layer. Grids, registers and shared memory are plausible, not measured.
An entry launched more than once in a step has one grid per launch; the first is the slowest.
"""

from __future__ import annotations

from dataclasses import dataclass

Grids = tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Kernel:
    """A kernel: the row the report has for it, zeros where it has none, and how it is launched."""

    name: str
    full_name: str
    total_ns: int = 0
    count: int = 0
    median_ns: float = 0
    min_ns: int = 0
    max_ns: int = 0
    grids: Grids = ((1, 1),)
    block: int = 128
    registers: int = 24
    shared_bytes: int = 0
    dynamic_shared_bytes: int = 0


# key, name, total time, instances, median, minimum, maximum: the report's order and spelling
_ROWS: tuple[tuple[str, str, int, int, float, int, int], ...] = (
    ("gemm_tn", "ampere_sgemm_32x32_sliced1x4_tn", 17880191, 1644, 12192, 7328, 15072),
    ("sgd_add", "multi_tensor_apply_kernel", 14104665, 937, 15584, 14208, 16128),
    ("gemm_nt", "ampere_sgemm_32x32_sliced1x4_nt", 7346991, 939, 7808, 7137, 8832),
    ("bias_sum", "reduce_kernel", 6900418, 938, 7536, 6112, 8096),
    ("sgd_mul", "multi_tensor_apply_kernel", 5551353, 468, 11871, 11775, 12000),
    ("bias_sum_wide", "reduce_kernel", 5257664, 469, 11232, 9728, 11456),
    ("gemm_nt_64", "ampere_sgemm_64x32_sliced1x4_nt", 4226481, 468, 9024, 8960, 9120),
    ("relu", "vectorized_elementwise_kernel", 3759001, 1647, 2304, 2111, 2624),
    ("gemm_nn", "ampere_sgemm_32x32_sliced1x4_nn", 3660680, 469, 7808, 7775, 8128),
    ("relu_back", "vectorized_elementwise_kernel", 3233758, 1407, 2304, 2175, 2432),
    ("gemm_nn_128", "ampere_sgemm_128x32_nn", 2549612, 469, 5440, 5407, 5473),
    ("nll", "nll_loss_forward_reduce_cuda_kernel", 2421968, 548, 4352.5, 2751, 5184),
    ("split_k", "splitKreduce_kernel", 2086008, 549, 3809, 3615, 3872),
    ("fill", "vectorized_elementwise_kernel", 1738506, 938, 1856, 1759, 1921),
    ("nll_back", "nll_loss_backward_reduce_cuda_kernel", 1641810, 469, 3520, 3137, 3807),
    ("softmax", "softmax_warp_forward", 1456379, 549, 2688, 2528, 2721),
    ("softmax_back", "softmax_warp_backward", 1103898, 469, 2368, 2240, 2464),
    ("scale_loss", "vectorized_elementwise_kernel", 1009715, 469, 2144, 2111, 2272),
    ("argmax", "reduce_kernel", 499647, 79, 6336, 5824, 6496),
    ("count_right", "reduce_kernel", 365952, 79, 4609, 4256, 4768),
    ("to_long", "unrolled_elementwise_kernel", 205793, 79, 2592, 2528, 2720),
    ("equal", "vectorized_elementwise_kernel", 166782, 79, 2080, 2048, 2209),
    ("add_loss", "vectorized_elementwise_kernel", 164256, 78, 2080, 2016, 2177),
    ("gemm_tn_wide", "ampere_sgemm_32x128_tn", 11488, 1, 11488, 11488, 11488),
    ("gemm_tn_64", "ampere_sgemm_64x32_sliced1x4_tn", 9184, 1, 9184, 9184, 9184),
    ("gemm_small", "gemmSN_TN_kernel", 6368, 1, 6368, 6368, 6368),
    ("mean_loss", "unrolled_elementwise_kernel", 2464, 1, 2464, 2464, 2464),
    ("add_first", "vectorized_elementwise_kernel", 2048, 1, 2048, 2048, 2048),
)


def _vectorized(functor: str, arrays: int) -> str:
    return f"void at::native::vectorized_elementwise_kernel<4, {functor}, std::array<char *, {arrays}>>(int, T2, T3)"


def _unrolled(functor: str) -> str:
    offsets = "TrivialOffsetCalculator<1, unsigned int>"
    casts = "at::native::memory::LoadWithCast<1>, at::native::memory::StoreWithCast<1>"
    arguments = f"{functor}, std::array<char *, 2>, 4, {offsets}, {offsets}, {casts}"
    return f"void at::native::unrolled_elementwise_kernel<{arguments}>(int, T1, T2, T4, T5, T6, T7)"


def _reduce(shape: str, operation: str, out: str) -> str:
    return f"void at::native::reduce_kernel<{shape}, at::native::ReduceOp<{operation}, unsigned int, {out}, 4>>(T3)"


def _sum(kind: str) -> str:
    functor = f"at::native::sum_functor<{kind}, {kind}, {kind}>::operator ()(at::TensorIterator &)"
    return f"{kind}, at::native::func_wrapper_t<{kind}, {functor}::[lambda({kind}, {kind}) (instance 1)]>"


def _foreach(depth: int, functor: str, operator: str) -> str:
    arguments = f"at::native::<unnamed>::TensorListMetadata<{depth}>, at::native::<unnamed>::{functor}"
    name = f"multi_tensor_apply_kernel<{arguments}, std::{operator}<float>, float>"
    return f"void at::native::<unnamed>::{name}(T1, T2, T3...)"


_RELU_BACK = "at::native::<unnamed>::threshold_kernel_impl<float>(at::TensorIteratorBase &, T1, T1)"
_COPY = "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase &)::[lambda() (instance 3)]::operator ()() const"
_STRIDED = "cublasGemvTensorStridedBatched"

_FULL_NAMES = {
    # the next three stand in section 2.3 of the report, which cuts the second one off after its last comma
    "relu": (
        "void at::vectorized_elementwise_kernel<4, at::<unnamed>::launch_clamp_scalar(at::TensorIteratorBase &, "
        "c10::Scalar, c10::Scalar, at::ClampLimits)::[lambda() (instance 1)]::operator ()() const::[lambda() "
        "(instance 7)]::operator ()() const::[lambda(float) (instance 1)], std::array<char *, 2>>(int, T2, T3)"
    ),
    "split_k": (
        "void cublasLt::splitKreduce_kernel<32, 16, int, float, float, float, 0, float, float, float, 1, 1, 0>"
        "(cublasLt::cublasSplitKParams<T6>, const T4 *, const T9 *, T8 *, T5 *, const T6 *, const T6 *, const T10 *, "
        "const T4 *, T10 *, void *, long, T6 *, int *, T6 *, const T6 *, const T6 *, const T6 *, const T6 *)"
    ),
    "softmax": (
        "void <unnamed>::softmax_warp_forward<float, float, float, 4, 0, 0>"
        "(T2 *, const T1 *, int, int, const bool *, int, bool)"
    ),
    "softmax_back": (
        "void <unnamed>::softmax_warp_backward<float, float, float, 4, 0, 0>"
        "(T2 *, const T1 *, const T1 *, int, int, int, const bool *)"
    ),
    "nll": (
        "void at::native::<unnamed>::nll_loss_forward_reduce_cuda_kernel<float, float, long>"
        "(T1 *, T1 *, T1 *, T3 *, T1 *, bool, int, int, int, long)"
    ),
    "nll_back": (
        "void at::native::<unnamed>::nll_loss_backward_reduce_cuda_kernel<float, long>"
        "(T1 *, T1 *, T2 *, T1 *, T1 *, bool, int, int, int, long)"
    ),
    "gemm_small": (
        f"void gemmSN_TN_kernel<float, 128, 16, 2, 4, 4, 4, 1, {_STRIDED}<const float>, {_STRIDED}<const float>, "
        f"{_STRIDED}<float>>(cublasGemmSmallNParams<T9, T10, T11, T1>)"
    ),
    "sgd_add": _foreach(2, "BinaryOpListAlphaFunctor<float, 2, 2, 0>", "plus"),
    "sgd_mul": _foreach(1, "BinaryOpScalarFunctor<float, 1, 1, 0>", "multiplies"),
    "bias_sum": _reduce("256, 2", _sum("float"), "float"),
    "bias_sum_wide": _reduce("128, 4", _sum("float"), "float"),
    "argmax": _reduce("512, 1", "float, at::native::ArgMaxOps<float>", "long"),
    "count_right": _reduce("512, 1", _sum("long"), "long"),
    "relu_back": _vectorized(f"{_RELU_BACK}::[lambda(float, float) (instance 1)]", 3),
    "fill": _vectorized("at::native::FillFunctor<float>", 1),
    "scale_loss": _vectorized("at::native::AUnaryFunctor<float, float, float, at::native::MulFunctor<float>>", 2),
    "equal": _vectorized("at::native::BinaryFunctor<long, long, bool, at::native::CompareEqFunctor<long>>", 3),
    "add_loss": _vectorized("at::native::CUDAFunctor_add<float>", 3),
    "add_first": _vectorized("at::native::CUDAFunctorOnSelf_add<float>", 2),
    "to_long": _unrolled(f"{_COPY}::[lambda(long) (instance 1)]"),
    "mean_loss": _unrolled("at::native::BUnaryFunctor<float, float, float, at::native::DivFunctor<float>>"),
}

_LAYERS: Grids = ((64, 1), (32, 1), (3, 1))

# grid of each launch in a step, threads per block, registers per thread, bytes of shared memory per block
_LAUNCH: dict[str, tuple[Grids, int, int, int]] = {
    "gemm_tn": (((8, 4), (4, 4), (1, 4)), 128, 86, 32768),
    "sgd_add": (((8, 1), (8, 1)), 512, 42, 0),
    "gemm_nt": (((8, 4), (4, 1), (25, 8)), 128, 80, 32768),
    "bias_sum": (((4, 1), (1, 1)), 128, 34, 16),
    "sgd_mul": (((8, 1),), 512, 36, 0),
    "bias_sum_wide": (((2, 4),), 256, 40, 4096),
    "gemm_nt_64": (((13, 8),), 256, 126, 49152),
    "relu": (_LAYERS, 128, 22, 0),
    "gemm_nn": (((8, 4),), 128, 84, 32768),
    "relu_back": (_LAYERS, 128, 20, 0),
    "gemm_nn_128": (((1, 4),), 256, 55, 16384),
    "split_k": (((8, 8),), 512, 40, 0),
    "fill": (((3, 1), (1, 1)), 128, 16, 0),
    "softmax": (((16, 1),), 128, 24, 0),
    "softmax_back": (((16, 1),), 128, 26, 0),
    "argmax": (((8, 1),), 256, 48, 16),
    "gemm_tn_wide": (((8, 1),), 256, 57, 16384),
    "gemm_tn_64": (((2, 1),), 256, 126, 49152),
    "gemm_small": (((1, 1),), 128, 90, 5120),
}


def _kernel(key: str, name: str, *row: float) -> Kernel:
    total, count, median, low, high = row
    full_name = _FULL_NAMES.get(key, name)
    return Kernel(name, full_name, int(total), int(count), median, int(low), int(high), *_LAUNCH.get(key, ()))


TABLE_5: dict[str, Kernel] = {key: _kernel(key, name, *row) for key, name, *row in _ROWS}

ALL_REDUCE = Kernel(
    name="ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    full_name="ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)",
    total_ns=60_000,
    count=1,
    median_ns=60_000,
    min_ns=60_000,
    max_ns=60_000,
    grids=((8, 1),),
    block=544,
    registers=96,
    shared_bytes=82240,
)
