"""Which operators does PyTorch run in a training step of the lab's MLP, and what does each ask the GPU for?

Conventions
-----------
The kernels are those of `mlp_run`, in its order, each in the operator that PyTorch launches it in. Names,
arguments and nesting are those of PyTorch 2, eager, with SGD's for-each implementation. Autograd's thread runs the
backward nodes while the script's waits for them. Of the data loader only the joining of the images is an operator.

As in `mlp_operators`. A node runs in the engine's ``evaluate_function``, which also sums gradients over what the
forward pass broadcast (the bias) and frees what the node has used up.
"""

from __future__ import annotations

from collections.abc import Sequence

from make.mlp_run import IMAGE_BYTES, LABEL_BYTES, SEMAPHORE_BYTES
from make.spans import (
    BATCH,
    IMAGE,
    LAYERS,
    NODES,
    NONE,
    PARAMETERS,
    Input,
    Memory,
    Part,
    Span,
    Wait,
    annotation,
    contiguous,
    copied,
    given,
    kernel,
    listed,
    op,
    python,
    scalar,
    taken,
    tensor,
    tensors,
    turned,
)
from make.timeline import Op

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
CUBLAS = Memory("cuBLAS", 8_519_680)  # its workspace, by CUBLAS_WORKSPACE_CONFIG's default :4096:2:16:8
CUBLAS_LT = ("cuBLASLt", (1 << 20) // 4)  # its workspace, for the time of a product
LABELS = tensor(BATCH, kind="long int")


def before() -> tuple[Memory, ...]:
    """Return what lies in the GPU's memory: the model, its momentum and gradients, and what the last step left."""
    kept = [given(f"{what} {i}", *dims) for what in ("weight", "momentum") for i, dims in enumerate(PARAMETERS)]
    left = [given("images", BATCH, *IMAGE), given("labels", BATCH, kind="long int"), given("output", BATCH, 10)]
    gradients = [given(f"gradient {i}", *dims) for i, dims in enumerate(PARAMETERS)]
    return (*kept, CUBLAS, *gradients, *left, given("loss"), given("sum"))


def step() -> tuple[Part, ...]:
    """Return the parts of one step, in order."""
    return (
        _loading(),
        *_to_device(),
        _zero_grad(),
        _forward(),
        _loss(),
        *_scaled(),
        python("torch/_tensor.py(557): backward", *backward()),
        _optimizer(),
        python("<built-in method item of Tensor object at 0x7f3a5c0e2b10>", _item()),
        python("torch/profiler/profiler.py(798): step"),
    )


def flops() -> dict[str, int]:
    """Return the operations of the matrix products of a step, FLOP, by operator: 2 M N K each.

    All layers have a forward product and the gradient of their weights; all but the first that of their input, too.

    Examples
    --------
    >>> flops()
    {'aten::addmm': 60096512, 'aten::mm': 68812800}
    """
    each = [2 * BATCH * inputs * outputs for inputs, outputs in LAYERS]
    return {"aten::addmm": sum(each), "aten::mm": sum(each) + sum(each[1:])}


def _loading() -> Span:
    joining = (tensors(()), scalar("0"))
    joined = op("aten::cat", *joining, parts=[given("loaded images", BATCH, *IMAGE, on_gpu=False)])
    batch = python(
        "torch/utils/data/_utils/fetch.py(46): fetch",
        Wait(),
        python(
            "torch/utils/data/_utils/collate.py(318): default_collate",
            op("aten::stack", *joining, sequence=0, parts=[joined]),
            given("loaded labels", BATCH, kind="long int", on_gpu=False),
        ),
    )
    return python(
        "torch/utils/data/dataloader.py(701): __next__",
        annotation(
            LOADER,
            python("torch/utils/data/dataloader.py(757): _next_data", batch),
        ),
    )


def _to_device() -> tuple[Part, ...]:
    """The loop's variables take the new batch, and then its copies: what they named before is freed."""
    return (
        taken("images", BATCH, *IMAGE),
        taken("labels", BATCH, kind="long int"),
        python("<built-in method to of Tensor object at 0x7f3a5c0e2570>", _to("images", (BATCH, *IMAGE), "float")),
        python("<built-in method to of Tensor object at 0x7f3a5c0e25c0>", _to("labels", (BATCH,), "long int")),
        taken("loaded images", BATCH, *IMAGE, on_gpu=False),
        taken("loaded labels", BATCH, kind="long int", on_gpu=False),
    )


def _to(name: str, dims: Sequence[int], kind: str) -> Span:
    """A tensor's ``.to(device)``, from pageable memory; 6 and 4 are the numbers of float and long."""
    dtype, no, source = scalar("6" if kind == "float" else "4"), scalar("False"), tensor(*dims, kind=kind)
    size = BATCH * (IMAGE_BYTES if kind == "float" else LABEL_BYTES)
    asked = (listed(dims), listed(contiguous(dims)), dtype, scalar("0"), NONE, no)
    made = op("aten::empty_strided", *asked, parts=[given(name, *dims, kind=kind)])
    filled = op("aten::copy_", source, source, no, parts=copied("H2D", size))
    copying = op("aten::_to_copy", source, dtype, scalar("0"), NONE, NONE, no, NONE, parts=[made, filled])
    return op("aten::to", source, dtype, scalar("0"), NONE, NONE, no, no, NONE, sequence=0, parts=[copying])


def _zero_grad() -> Span:
    grads = [taken(f"gradient {i}", *dims) for i, dims in enumerate(PARAMETERS)]
    return python("torch/optim/optimizer.py(1012): zero_grad", annotation("Optimizer.zero_grad#SGD.zero_grad", *grads))


def _forward() -> Span:
    flat = op("aten::view", tensor(BATCH, *IMAGE), listed((-1, 784)), sequence=0)
    layers = [part for number in range(len(LAYERS)) for part in _layer(number)]
    out = tensor(BATCH, 10)
    softmax = op(
        "aten::log_softmax",
        *(out, scalar("1"), NONE),
        sequence=NODES - 2,
        parts=[
            op(
                "aten::_log_softmax",
                *(out, scalar("1"), scalar("False")),
                sequence=NODES - 2,
                parts=[given("output", BATCH, 10), kernel("softmax")],
            )
        ],
    )
    normed = python("torch/nn/functional.py(2087): log_softmax", softmax)
    return python("nn.Module: MLP_0", python("train.py(14): forward", flat, *layers, normed))


def _layer(number: int) -> tuple[Part, ...]:
    """A linear layer and its ReLU, which keeps its own result for the backward pass and not that of the layer."""
    inputs, outputs = LAYERS[number]
    out = tensor(BATCH, outputs)
    launched: list[Part] = [given(f"relu {number}", BATCH, outputs), kernel("relu", number)]
    clamped = op("aten::clamp_min", out, scalar("0"), parts=launched)
    return (
        python(f"nn.Module: Linear_{number}", python("<built-in function linear>", _linear(number, inputs, outputs))),
        python(
            "torch/nn/functional.py(1693): relu",
            op("aten::relu", out, sequence=3 * number + 2, parts=[clamped]),
            taken(f"linear {number}", BATCH, outputs),
        ),
    )


def _linear(number: int, inputs: int, outputs: int) -> Span:
    """A product with bias by cuBLASLt, which splits the sum of the first layer."""
    image, weight, bias = tensor(BATCH, inputs), tensor(outputs, inputs), tensor(outputs)
    launched = (kernel("gemm_tn", number), *([kernel("split_k")] if number == 0 else []))
    product = op(
        "aten::addmm",
        *(bias, image, tensor(inputs, outputs, strides=(1, inputs)), scalar("1"), scalar("1")),
        sequence=3 * number + 1,
        parts=[given(f"linear {number}", BATCH, outputs), given(*CUBLAS_LT), *launched, taken(*CUBLAS_LT)],
    )
    transposed = turned(weight, sequence=3 * number)
    return op("aten::linear", image, weight, bias, sequence=3 * number, parts=[transposed, product])


def _loss() -> Span:
    """The negative log likelihood; the output and loss of the step before are freed when their names are taken."""
    asked = (tensor(BATCH, 10), LABELS, NONE, scalar("1"), scalar("-100"))
    launched: list[Part] = [given("loss"), given("total weight"), kernel("nll")]
    part = op("aten::nll_loss_forward", *asked, sequence=NODES - 1, parts=launched)
    for name in ("aten::nll_loss", "aten::nll_loss_nd"):
        part = op(name, *asked, sequence=NODES - 1, parts=[part])
    return python("nn.Module: NLLLoss_0", taken("output", BATCH, 10), part)


def _scaled() -> tuple[Part, ...]:
    """What the script adds up: the loss times the size of its batch."""
    asked = (tensor(), tensor(kind="long int"))
    detached = op("aten::detach", tensor(), sequence=NODES, parts=[op("detach", tensor())])
    parts: list[Part] = [given("sum"), kernel("scale_loss")]
    return (
        taken("loss"),
        detached,
        op("aten::mul", *asked, sequence=NODES, parts=parts),
        taken("sum"),
    )


def _optimizer() -> Span:
    """Momentum times 0.9, plus the gradients; the parameters less a hundredth of it."""
    all_of = tensors(PARAMETERS)
    return python(
        "torch/optim/optimizer.py(476): wrapper",
        annotation(
            "Optimizer.step#SGD.step",
            python(
                "torch/optim/sgd.py(108): step",
                op("aten::_foreach_mul_", all_of, scalar("0.90000000000000002"), parts=[kernel("sgd_mul")]),
                op("aten::_foreach_add_", all_of, all_of, scalar("1"), parts=[kernel("sgd_add", 1)]),
                op("aten::_foreach_add_", all_of, all_of, scalar("-0.01"), parts=[kernel("sgd_add", 0)]),
            ),
        ),
    )


def _item() -> Span:
    read = op("aten::_local_scalar_dense", tensor(), sequence=NODES, parts=copied("D2H", 4))
    return op("aten::item", tensor(), sequence=NODES, parts=[read])


ENGINE = "autograd::engine::evaluate_function: "
AUTOGRAD = 1
OUTPUT = tensor(BATCH, 10)
LAST = len(LAYERS) - 1

# kernel and slot by layer: gradient of the input, of the weights, and their sum for the bias
_INPUT = {2: ("gemm_nn_128", 0), 1: ("gemm_nn", 0)}
_WEIGHTS = {2: ("gemm_nt", 1), 1: ("gemm_nt", 0), 0: ("gemm_nt_64", 0)}
_BIAS = {2: ("bias_sum", 1), 1: ("bias_sum", 0), 0: ("bias_sum_wide", 0)}


def backward() -> tuple[Part, ...]:
    """Return the gradient of the loss itself, which the script's thread makes, and the nodes."""
    layers = [part for number in range(LAST, -1, -1) for part in (_relu(number), *_backward_linear(number))]
    return (_ones(), _nll(), _softmax(), *layers, taken("root"))


def _node(name: str, sequence: int | None, incoming: Input, parts: Sequence[Part], after: Sequence[Part] = ()) -> Span:
    """A node, and what the engine does `after` it."""
    inner = op(name, incoming, sequence=sequence, parts=parts)
    return op(f"{ENGINE}{name}", sequence=sequence, thread=AUTOGRAD, parts=[inner, *after])


def _ones() -> Span:
    like = (tensor(), NONE, NONE, NONE, scalar("False"), scalar("1"))
    asked = (listed(()), listed(()), scalar("6"), scalar("0"), NONE, scalar("False"))
    made = op("aten::empty_strided", *asked, parts=[given("root")])
    filled = op("aten::fill_", tensor(), scalar("1."), parts=[kernel("fill", 1)])
    return op("aten::ones_like", *like, parts=[op("aten::empty_like", *like, parts=[made]), filled])


def _nll() -> Span:
    labels = tensor(BATCH, kind="long int")
    filled = op("aten::fill_", OUTPUT, scalar("0"), parts=[kernel("fill", 0)])
    part = op(
        "aten::nll_loss_backward",
        *(tensor(), OUTPUT, labels, NONE, scalar("1"), scalar("-100"), tensor()),
        parts=[given("gradient of output", BATCH, 10), op("aten::zero_", OUTPUT, parts=[filled]), kernel("nll_back")],
    )
    return _node("NllLossBackward0", NODES - 1, tensor(), [part], [taken("total weight")])


def _softmax() -> Span:
    part = op(
        "aten::_log_softmax_backward_data",
        *(OUTPUT, OUTPUT, scalar("1"), scalar("6")),
        parts=[given(f"gradient after {LAST}", BATCH, 10), kernel("softmax_back")],
    )
    return _node("LogSoftmaxBackward0", NODES - 2, OUTPUT, [part], [taken("gradient of output", BATCH, 10)])


def _relu(number: int) -> Span:
    size = (BATCH, LAYERS[number][1])
    part = op(
        "aten::threshold_backward",
        *(tensor(*size), tensor(*size), scalar("0")),
        parts=[given(f"gradient in {number}", *size), kernel("relu_back", number)],
    )
    after = [taken(f"gradient after {number}", *size), taken(f"relu {number}", *size)]
    return _node("ReluBackward0", 3 * number + 2, tensor(*size), [part], after)


def _backward_linear(number: int) -> tuple[Part, ...]:
    """The nodes of a layer: its product, and the parameters that keep their gradients."""
    inputs, outputs = LAYERS[number]
    gradient = tensor(BATCH, outputs)
    weight = tensor(inputs, outputs, strides=(1, inputs))
    of_input = [turned(weight), _of_input(number)] if number else []
    of_weights = [turned(gradient), _of_weights(number), turned(tensor(outputs, inputs))]
    summed = [_of_bias(number), op("aten::view", tensor(1, outputs), listed((outputs,)))]
    after: list[Part] = [*summed, taken(f"gradient in {number}", BATCH, outputs)]
    return (
        _node("AddmmBackward0", 3 * number + 1, gradient, [*of_input, *of_weights], after),
        _kept(tensor(outputs)),
        _node("TBackward0", 3 * number, weight, [turned(weight)]),
        _kept(tensor(outputs, inputs)),
    )


def _of_input(number: int) -> Span:
    inputs, outputs = LAYERS[number]
    parts: list[Part] = [given(f"gradient after {number - 1}", BATCH, inputs), kernel(*_INPUT[number])]
    return op("aten::mm", tensor(BATCH, outputs), tensor(outputs, inputs), parts=parts)


def _of_weights(number: int) -> Span:
    inputs, outputs = LAYERS[number]
    transposed = tensor(outputs, BATCH, strides=(1, outputs))
    parts: list[Part] = [given(f"gradient {2 * number}", outputs, inputs), kernel(*_WEIGHTS[number])]
    return op("aten::mm", transposed, tensor(BATCH, inputs), parts=parts)


def _of_bias(number: int) -> Span:
    """A sum over the batch; the widest is that of several blocks, which a counter tells that they are the last one."""
    outputs = LAYERS[number][1]
    launched: list[Part] = [kernel(*_BIAS[number])]
    if number == 0:
        shared = {"partial sums": 4 * outputs, "semaphores": SEMAPHORE_BYTES // 4}
        counter = Op("memset", "memset", "", size=SEMAPHORE_BYTES)
        launched = [*(given(name, n) for name, n in shared.items()), counter, *launched]
        launched += [taken(name, n) for name, n in shared.items()]
    asked = (tensor(BATCH, outputs), listed((0,)), scalar("True"), NONE)
    return op("aten::sum", *asked, parts=[given(f"gradient {2 * number + 1}", outputs), *launched])


def _kept(gradient: Input) -> Span:
    detached = op("aten::detach", gradient, parts=[op("detach", gradient)])
    return _node("torch::autograd::AccumulateGrad", None, gradient, [detached])
