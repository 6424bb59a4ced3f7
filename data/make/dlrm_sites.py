"""Along which call paths does a DLRM's training reach the GPU, and which kernels does it launch there?

Conventions
-----------
A frame is ``library|function``, with ``@loop`` and an offset if what follows is in a loop of it; several in one text
are separated by semicolons.

Written as short texts. A Python frame is ``function@file:first line>line`` and a frame of the interpreter's C code a
bare name; files are PyTorch's, or the job's own where they begin with a dot. Native frames are those of `dlrm_sites`.
HPCToolkit has a function and a line for each frame, and knows neither file nor line of code that was built without
debugging information: `[library]:0`.

Names are the public ones of PyTorch, CUTLASS and cuBLAS. Durations are what a launch takes on average, ns; samples are
taken every PERIOD_CYCLES on each multiprocessor, and stalls are per mille of the samples, in the order of STALLS; the
rest of the samples are instructions that were issued. All figures are invented.

A context that values are booked on need not be one that a trace can show: an instruction below a line is measured and
not listed, and a kernel has a second context for traces. `Mark` names both.
"""

from __future__ import annotations

import hashlib
from functools import cache
from typing import NamedTuple
from zlib import crc32

from make.hpctoolkit import Paths

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


PYTHON = "<logical python>"
SCRIPT = "src/job/dlrm/dlrm_s_pytorch.py"
JOB = "src/job/dlrm/dlrm_"
TORCH = f"src{PACKAGES}torch/"

_CALL = "_wrapped_call_impl@nn/modules/module.py:1735>1739 _call_impl@nn/modules/module.py:1743>1750"
_MODEL = f"dlrm_wrap@.s_pytorch.py:702>709 {_CALL} forward@.s_pytorch.py:391>395 sequential_forward@.s_pytorch.py:398>"
_LAYERS = f"apply_mlp@.s_pytorch.py:322>329 {_CALL} forward@nn/modules/container.py:248>250 {_CALL} "
_LINEAR = "forward@nn/modules/linear.py:124>125 linear"
_RELU = "forward@nn/modules/activation.py:132>133 relu@nn/functional.py:1693>1704 relu"
_INTERACT = "interact_features@.s_pytorch.py:352>"
_APPLY = (
    "_apply@nn/modules/module.py:900>903 _apply@nn/modules/module.py:900>930 convert@nn/modules/module.py:1320>1329 "
)
_SGD = (
    "wrapper@optim/optimizer.py:473>493 _use_grad@optim/optimizer.py:72>91 step@optim/sgd.py:103>125 "
    "sgd@optim/sgd.py:246>300 _multi_tensor_sgd@optim/sgd.py:356>446 add_"
)


class Place(NamedTuple):
    """A line of the script that reaches the GPU: its Python frames, and the native frames below them."""

    line: int
    python: str
    native: tuple[str, ...]


SITES: dict[str, Place] = {
    "model.to": Place(655, f"to@nn/modules/module.py:1216>1343 {_APPLY}to", TO),
    "indices": Place(812, "dlrm_wrap@.s_pytorch.py:702>705 <listcomp>@.s_pytorch.py:705>705 to", TO),
    "offsets": Place(812, "dlrm_wrap@.s_pytorch.py:702>706 to", TO),
    "dense": Place(812, "dlrm_wrap@.s_pytorch.py:702>708 to", TO),
    "bottom.linear": Place(812, f"{_MODEL}401 {_LAYERS}{_LINEAR}", MATMUL),
    "bottom.relu": Place(812, f"{_MODEL}401 {_LAYERS}{_RELU}", RELU),
    "embedding": Place(
        812,
        f"{_MODEL}404 apply_emb@.s_pytorch.py:333>346 {_CALL} forward@nn/modules/sparse.py:427>463 "
        "embedding_bag@nn/functional.py:2554>2754 embedding_bag",
        dispatched("_embedding_bag", f"{T}, {T}, {T}, bool, long", f"cuda|at::native::_embedding_bag_cuda({T})"),
    ),
    "interact.cat": Place(812, f"{_MODEL}407 {_INTERACT}357 cat", CAT),
    "interact.bmm": Place(
        812,
        f"{_MODEL}407 {_INTERACT}359 bmm",
        dispatched("bmm", f"{T}, {T}", f"cuda|at::native::bmm_out_cuda_impl(); {GEMM}"),
    ),
    "interact.index": Place(
        812,
        f"{_MODEL}407 {_INTERACT}367",
        dispatched("index_Tensor", f"{T}, c10::List<std::optional<at::Tensor> > const&", elementwise("index")),
    ),
    "interact.index.to": Place(812, f"{_MODEL}407 {_INTERACT}367", TO[1:]),
    "interact.join": Place(812, f"{_MODEL}407 {_INTERACT}370 cat", CAT),
    "top.linear": Place(812, f"{_MODEL}411 {_LAYERS}{_LINEAR}", MATMUL),
    "top.relu": Place(812, f"{_MODEL}411 {_LAYERS}{_RELU}", RELU),
    "top.sigmoid": Place(
        812,
        f"{_MODEL}411 {_LAYERS}forward@nn/modules/activation.py:326>327 sigmoid",
        dispatched("sigmoid", T, elementwise("sigmoid")),
    ),
    "target": Place(815, "loss_fn_wrap@.s_pytorch.py:718>721 to", TO),
    "loss": Place(
        815,
        f"loss_fn_wrap@.s_pytorch.py:718>723 {_CALL} forward@nn/modules/loss.py:609>610 "
        "mse_loss@nn/functional.py:3835>3905 mse_loss",
        dispatched("mse_loss", f"{T}, {T}, long", elementwise("mse")),
    ),
    "loss.cpu": Place(823, "cpu", TO),
    "scores.cpu": Place(824, "cpu", TO),
    "ones_like": Place(
        834,
        "backward@_tensor.py:570>626 backward@autograd/__init__.py:242>340 _make_grads@autograd/__init__.py:88>220 "
        "ones_like",
        dispatched("fill__Scalar", "at::Tensor&, c10::Scalar const&", elementwise("fill")),
    ),
    "sgd.dense": Place(
        837, _SGD, dispatched("add__Tensor", f"at::Tensor&, {T}, c10::Scalar const&", elementwise("add"))
    ),
    "sgd.sparse": Place(
        837,
        _SGD,
        dispatched(
            "index_add_",
            f"at::Tensor&, long, {T}, {T}, c10::Scalar const&",
            f"cuda|at::native::add_out_dense_sparse_cuda(at::Tensor&, {T}, {T}, c10::Scalar const&); "
            f"cuda|at::native::index_add_cuda_impl({T}, long, {T}, {T})",
        ),
    ),
}

_THREAD = (
    "torch|execute_native_thread_routine",
    "python|torch::autograd::python::PythonEngine::thread_init(int, std::shared_ptr<torch::autograd::ReadyQueue> "
    "const&, bool)",
    "cpu|torch::autograd::Engine::thread_init(int, std::shared_ptr<torch::autograd::ReadyQueue> const&, bool)",
    "cpu|torch::autograd::Engine::thread_main(std::shared_ptr<torch::autograd::GraphTask> const&) @loop 0x58cec28",
    "cpu|torch::autograd::Engine::evaluate_function(std::shared_ptr<torch::autograd::GraphTask>&, "
    "torch::autograd::Node*, torch::autograd::InputBuffer&)",
)
_NODE = "cpu|torch::autograd::Node::operator()(std::vector<at::Tensor, std::allocator<at::Tensor> >&&)"


def _backward(node: str, *native: str) -> tuple[str, ...]:
    apply = f"cpu|torch::autograd::generated::{node}::apply(std::vector<at::Tensor, std::allocator<at::Tensor> >&&)"
    return (*_THREAD, _NODE, apply, *native)


NODES: dict[str, tuple[str, ...]] = {
    "grad.mse": _backward(
        "MseLossBackward0", *dispatched("mse_loss_backward", f"{T}, {T}", elementwise("mse_backward"))
    ),
    "grad.sigmoid": _backward(
        "SigmoidBackward0", *dispatched("sigmoid_backward", f"{T}, {T}", elementwise("sigmoid_backward"))
    ),
    "grad.relu": _backward("ReluBackward0", *dispatched("threshold_backward", f"{T}, {T}", elementwise("threshold"))),
    "grad.addmm": _backward(
        "AddmmBackward0", *dispatched("mm", f"{T}, {T}", f"cuda|at::native::addmm_out_cuda_impl(); {GEMM}")
    ),
    "grad.bmm": _backward(
        "BmmBackward0", *dispatched("bmm", f"{T}, {T}", f"cuda|at::native::bmm_out_cuda_impl(); {GEMM}")
    ),
    "grad.index": _backward(
        "IndexBackward0",
        *dispatched(
            "_index_put_impl_", f"at::Tensor&, {T}", f"cuda|at::native::index_put_with_sort_kernel(at::Tensor&, {T})"
        ),
    ),
    "grad.cat": _backward("CatBackward0", *dispatched("copy_", f"at::Tensor&, {T}, bool", COPY)),
    "grad.embedding": _backward(
        "EmbeddingBagBackward0",
        *dispatched(
            "_embedding_bag_backward",
            f"{T}, {T}, {T}",
            f"cpu|at::native::_embedding_bag_sparse_backward({T}); cuda|at::native::index_select_out_cuda_impl()",
        ),
    ),
    "grad.bias": (
        *_THREAD,
        "cpu|torch::autograd::validate_outputs_impl<torch::autograd::Edge>()",
        *dispatched("sum_dim_IntList", f"{T}, c10::OptionalArrayRef<long>, bool", "cuda|at::native::sum_kernel_cuda()"),
    ),
    "grad.accumulate": (
        *_THREAD,
        "cpu|torch::autograd::accumulate(std::vector<at::Tensor>&, unsigned long, at::Tensor&&)",
        *dispatched("add_Tensor", f"{T}, {T}, c10::Scalar const&", elementwise("add")),
    ),
}

HOST: dict[str, Place] = {
    "import torch": Place(31, "<module>@__init__.py:1>2046 <module>@_meta_registrations.py:1>51", ()),
    "import dynamo": Place(33, "<module>@_dynamo/__init__.py:1>9 <module>@_dynamo/config.py:1>551", ()),
    "tables": Place(641, "create_emb@.s_pytorch.py:266>289 uniform", ("numpy|<unknown procedure> 0x1f3a0",)),
    "layers": Place(642, "create_mlp@.s_pytorch.py:213>236 normal", ("numpy|<unknown procedure> 0x21c80",)),
    "cuda": Place(
        652,
        "_lazy_init@cuda/__init__.py:301>344 _cuda_init",
        (
            "python|THCPModule_initExtension(_object*, _object*)",
            "cudart|cudaGetDeviceCount",
            "driver|<unknown procedure> 0x2b1e40",
        ),
    ),
    "batch": Place(
        801,
        "__next__@utils/data/dataloader.py:699>708 random_batch@.data_pytorch.py:540>562 rand",
        ("cpu|at::native::uniform_(at::Tensor&, double, double)", f"cpu|at::native::{ANONYMOUS}uniform_kernel()"),
    ),
    "engine": Place(
        834,
        "backward@_tensor.py:570>626 backward@autograd/__init__.py:242>347 "
        "_engine_run_backward@autograd/graph.py:814>823 run_backward",
        ("python|THPEngine_run_backward(_object*, _object*, _object*)",),
    ),
    "print": Place(829, "print", ()),
}
EXIT = ("interpreter|Py_BytesMain", "interpreter|Py_RunMain", "interpreter|Py_FinalizeEx")
WORKER = ("cpu|at::native::(anonymous namespace)::uniform_kernel() [clone ._omp_fn.0]",)
SPINNING = ("gomp|<unknown procedure> 0x1d8b0",)


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


MAIN, ENGINE, WORKERS = "main thread", "application thread", "unknown entry"
OPERATIONS = {"H2D": "<gpu copyin>", "D2H": "<gpu copyout>", "D2D": "<gpu copy>"}

_INSTRUCTIONS = 3  # of a kernel, that samples fall on


class Mark(NamedTuple):
    """Context that values are booked on, and context that a trace shows."""

    context: int
    seen: int


class Spot(NamedTuple):
    """A place in the program: where its Python code runs, its native code, the CUDA call; and that code's line."""

    python: Mark
    native: Mark
    call: Mark
    line: int


class Launched(NamedTuple):
    """A kernel below a place: its own marks and the instructions that samples fall on."""

    mark: Mark
    instructions: tuple[int, ...]


class Sites:
    """The tree of calling contexts; asked twice for a place it gives the same one."""

    def __init__(self) -> None:
        self.paths = Paths()
        self._entries = {name: self.paths.entry(name) for name in (ENGINE, MAIN, WORKERS)}
        self.spot, self.kernel, self.operation = cache(self._spot), cache(self._kernel), cache(self._operation)
        self.native = cache(self._native)

    def _spot(self, name: str) -> Spot:
        """A place of SITES, HOST or NODES."""
        if name in NODES:
            line = self._below(self._entries[ENGINE], NODES[name])
            own = self._instruction(line)
            return Spot(own, own, self._call(line), line)
        place = SITES.get(name) or HOST[name]
        python = self._python(place)
        own = Mark(python, python)
        if not place.native:
            return Spot(own, own, own, python)
        line = self._below(python, place.native)
        return Spot(own, self._instruction(line), self._call(line), line)

    def _native(self, entry: str, frames: tuple[str, ...]) -> Mark:
        """Native code right below an entry point."""
        return self._instruction(self._below(self._entries[entry], frames))

    def _kernel(self, name: str, key: str) -> Launched:
        """A kernel that a place launches."""
        kernel, file = KERNELS[key], f"[{KERNELS[key].module.removeprefix('gpubins/')}]"
        offset = 0x1_0000 * (1 + list(KERNELS).index(key))
        found = []
        for again in (True, False):
            above = self.paths.function(self.spot(name).line, "<gpu kernel>", again=again)
            own = self.paths.function(above, kernel.name, kernel.module, offset=offset, file=file)
            found.append((own, self.paths.line(own, file)))
        (seen, _), (own, line) = found
        if kernel.loop:
            line = self.paths.line(self.paths.loop(own, file, 0, kernel.module, offset + 0x80), file)
        places = [
            self.paths.instruction(line, kernel.module, offset + 16 * i, hidden=True) for i in range(_INSTRUCTIONS)
        ]
        return Launched(Mark(own, seen), tuple(places))

    def _operation(self, name: str, what: str) -> Mark:
        """A copy's direction, or the name of another operation of the GPU, below a place."""
        own = self.paths.function(self.spot(name).line, OPERATIONS.get(what, f"<gpu {what}>"))
        return Mark(own, own)

    def _python(self, place: Place) -> int:
        at = self.paths.line(self._entries[MAIN], SCRIPT, place.line, called=True)
        for frame in place.python.split():
            name, _, where = frame.partition("@")
            if not where:
                at = self.paths.function(at, name, PYTHON)
                continue
            file, _, lines = where.partition(":")
            path = JOB + file[1:] if file.startswith(".") else TORCH + file
            first, _, line = lines.partition(">")
            at = self.paths.function(at, name, PYTHON, file=path, line=int(first))
            at = self.paths.line(at, path, int(line))
        return at

    def _below(self, at: int, frames: tuple[str, ...]) -> int:
        """The line in the last of native frames."""
        for frame in frames:
            library, _, told = frame.partition("|")
            name, _, loop = told.partition(" @loop ")
            path = LIBRARIES[library]
            short = path.rpartition("/")[2]
            offset = int(name.split()[-1], 16) if name.startswith("<unknown") else 16 * crc32(name.encode())
            at = self.paths.function(at, f"{name} [{short}]", path, offset=offset, file=f"[{short}]")
            if loop:
                at = self.paths.loop(at, f"[{short}]", 0, path, int(loop, 16))
            at = self.paths.line(at, f"[{short}]")
        return at

    def _call(self, line: int) -> Mark:
        return self._instruction(self._below(line, ("cudart|cudaLaunchKernel", "driver|<unknown procedure> 0x1f9d60")))

    def _instruction(self, line: int) -> Mark:
        """An instruction below a line, which is the one that is listed."""
        return Mark(self.paths.instruction(line, "", 0, hidden=True), line)
