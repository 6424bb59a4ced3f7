"""What are PyTorch's own kernels of a forward pass of BERT called: base name, and full name as in Nsight Systems?"""

from __future__ import annotations

Names = tuple[str, str]


def _vectorized(functor: str, arrays: int) -> Names:
    name = "vectorized_elementwise_kernel"
    return name, f"void at::native::{name}<4, {functor}, std::array<char *, {arrays}>>(int, T2, T3)"


def _strided(functor: str) -> Names:
    name = "elementwise_kernel"
    inner = f"at::native::gpu_kernel_impl_nocast<{functor}>(at::TensorIteratorBase &, const T1 &)"
    return name, f"void at::native::{name}<128, 2, {inner}::[lambda(int) (instance 1)]>(int, T3)"


def _chosen(outer: int, inner: int, kind: str) -> str:
    """The lambdas by which PyTorch chooses a functor for a type."""
    of_type = f"[lambda() (instance {outer})]::operator ()() const::[lambda() (instance {inner})]::operator ()() const"
    return f"{of_type}::[lambda({kind}) (instance 1)]"


def _cast(functor: str) -> Names:
    name, offsets = "unrolled_elementwise_kernel", "TrivialOffsetCalculator<1, unsigned int>"
    casts = "at::native::memory::LoadWithCast<1>, at::native::memory::StoreWithCast<1>"
    inner = f"{functor}, std::array<char *, 2>, 4, {offsets}, {offsets}, {casts}"
    return name, f"void at::native::{name}<{inner}>(int, T1, T2, T4, T5, T6, T7)"


_SUM = "at::native::CUDAFunctor_add<float>"
_COPIED = "at::native::direct_copy_kernel_cuda(at::TensorIteratorBase &)"
_GELU = "at::native::GeluCUDAKernelImpl(at::TensorIteratorBase &, at::native::GeluType)"
_PRODUCT = "at::native::binary_internal::MulFunctor<float>"
_INFO = "at::cuda::detail::TensorInfo"

ADD = _vectorized(_SUM, 3)
ADD_STRIDED = _strided(_SUM)
FROM_ONE = _vectorized(f"at::native::AUnaryFunctor<float, float, float, {_SUM}>", 2)
SCALE = _vectorized(f"at::native::BUnaryFunctor<float, float, float, {_PRODUCT}>", 2)
COPY = _strided(f"{_COPIED}::{_chosen(3, 7, 'float')}")
CAST = _cast(f"{_COPIED}::{_chosen(3, 4, 'long')}")
GELU = _vectorized(f"{_GELU}::{_chosen(2, 2, 'float')}", 2)
NORM = (
    "vectorized_layer_norm_kernel",
    "void at::native::<unnamed>::vectorized_layer_norm_kernel<float, float>"
    "(int, T2, const T1 *, const T1 *, const T1 *, T2 *, T2 *, T1 *)",
)
SOFTMAX = (
    "softmax_warp_forward",
    "void <unnamed>::softmax_warp_forward<float, float, float, 7, 0, 0>"
    "(T2 *, const T1 *, int, int, int, const bool *, int, bool)",
)
LOOK_UP = (
    "indexSelectLargeIndex",
    "void at::native::<unnamed>::indexSelectLargeIndex<float, long, unsigned int, 2, 2, -2, 1>"
    f"({_INFO}<T1, T3>, {_INFO}<const T1, T3>, {_INFO}<const T2, T3>, int, int, T3, T3, long)",
)
