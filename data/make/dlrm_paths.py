"""Along which call paths does PyTorch reach the GPU when it trains a DLRM?

Conventions
-----------
Written as short texts. A Python frame is ``function@file:first line>line`` and a frame of the interpreter's C code a
bare name; files are PyTorch's, or the job's own where they begin with a dot. Native frames are those of `dlrm_frames`.
HPCToolkit has a function and a line for each frame, and knows neither file nor line of code that was built without
debugging information: `[library]:0`.

Data
----
SITES    places in the main thread's program: line of the script, Python frames, native frames
NODES    operations of the backward pass, which the application thread runs: native frames
HOST     places where the main thread is busy by itself; EXIT, WORKER and SPINNING are right below entry points
"""

from __future__ import annotations

from typing import NamedTuple

from make.dlrm_frames import (
    ANONYMOUS,
    CAT,
    COPY,
    GEMM,
    MATMUL,
    PACKAGES,
    RELU,
    TO,
    T,
    dispatched,
    elementwise,
)

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
