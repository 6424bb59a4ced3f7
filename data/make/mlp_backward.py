"""Which operators does autograd run for a training step of the lab's MLP?

Conventions
-----------
As in `mlp_operators`. A node runs in the engine's ``evaluate_function``, which also sums gradients over what the
forward pass broadcast (the bias) and frees what the node has used up.

Functions
---------
backward    the nodes, in the order of autograd's thread
"""

from __future__ import annotations

from collections.abc import Sequence

from make.mlp_parts import (
    BATCH,
    LAYERS,
    NODES,
    NONE,
    Input,
    Part,
    Span,
    given,
    kernel,
    listed,
    op,
    scalar,
    taken,
    tensor,
    turned,
)
from make.mlp_steps import SEMAPHORE_BYTES
from make.timeline import Op

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
    layers = [part for number in range(LAST, -1, -1) for part in (_relu(number), *_linear(number))]
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


def _linear(number: int) -> tuple[Part, ...]:
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
