"""Through which of PyTorch's native functions does an operator reach the GPU?

Conventions
-----------
A frame is ``library|function``, with ``@loop`` and an offset if what follows is in a loop of it; several in one text
are separated by semicolons.

Data
----
LIBRARIES                            load modules by their short names
TO, MATMUL, RELU, CAT, GEMM, COPY    frames of operators that are called from several places

Functions
---------
dispatched     frames from an operator's call down to what implements it
elementwise    the last frames of an operator that works element by element
"""

from __future__ import annotations

PACKAGES = "/job/venv/lib/python3.11/site-packages/"

LIBRARIES = {
    "python": f"{PACKAGES}torch/lib/libtorch_python.so",
    "cpu": f"{PACKAGES}torch/lib/libtorch_cpu.so",
    "cuda": f"{PACKAGES}torch/lib/libtorch_cuda.so",
    "torch": f"{PACKAGES}torch/lib/libtorch.so",
    "cublas": f"{PACKAGES}nvidia/cublas/lib/libcublas.so.12",
    "cublasLt": f"{PACKAGES}nvidia/cublas/lib/libcublasLt.so.12",
    "cudart": f"{PACKAGES}nvidia/cuda_runtime/lib/libcudart.so.12",
    "driver": "/usr/lib/x86_64-linux-gnu/libcuda.so.550.54.15",
    "gomp": f"{PACKAGES}torch/lib/libgomp-a34b3233.so.1",
    "numpy": f"{PACKAGES}numpy/random/mtrand.cpython-311-x86_64-linux-gnu.so",
    "interpreter": "/usr/bin/python3.11",
}

T = "at::Tensor const&"
_KEYS = "c10::DispatchKeySet, "
ANONYMOUS = "(anonymous namespace)::"


def dispatched(op: str, arguments: str, implementation: str) -> tuple[str, ...]:
    """Return the frames from an operator's call down to what implements it on the GPU."""
    return (
        f"cpu|at::_ops::{op}::call({arguments})",
        f"cpu|torch::autograd::VariableType::{ANONYMOUS}{op}({_KEYS}{arguments})",
        f"cpu|at::_ops::{op}::redispatch({_KEYS}{arguments})",
        f"cuda|at::{ANONYMOUS}wrapper_CUDA_{op}({arguments})",
        *implementation.split("; "),
    )


GEMM = (
    "cuda|at::cuda::blas::gemm<float>(char, char, long, long, long, float, float const*, long, float const*, long, "
    "float, float*, long); cublas|cublasSgemm_v2; cublasLt|<unknown procedure> 0x13fa100"
)
COPY = (
    "cpu|at::native::copy_(at::Tensor&, at::Tensor const&, bool); "
    "cpu|at::native::copy_impl(at::Tensor&, at::Tensor const&, bool); "
    "cuda|at::native::copy_kernel_cuda(at::TensorIterator&, bool)"
)
TO = (
    "python|torch::autograd::THPVariable_to(_object*, _object*, _object*)",
    *dispatched("_to_copy", f"{T}, std::optional<c10::Device>, bool", f"cpu|at::native::_to_copy({T}); {COPY}"),
)


def elementwise(name: str) -> str:
    """Return the last frames of an operator that works element by element."""
    return f"cuda|at::native::{name}_kernel_cuda(at::TensorIteratorBase&); cuda|at::native::gpu_kernel_impl<{name}>()"


MATMUL = (
    "python|torch::autograd::THPVariable_linear(_object*, _object*, _object*)",
    *dispatched(
        "addmm", f"{T}, {T}, {T}", f"cuda|at::native::{ANONYMOUS}addmm_out_cuda_impl(at::Tensor&, {T}); {GEMM}"
    ),
)
RELU = dispatched("relu", T, f"cuda|at::native::relu({T}); {elementwise('clamp_min')}")
CAT = dispatched("cat", "c10::IListRef<at::Tensor> const&, long", "cuda|at::native::structured_cat_out_cuda::impl()")
