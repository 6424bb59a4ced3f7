"""Floating-point operations of a step of each model, by formula.

A multiplication and an addition are two operations. Counted are linear layers, convolutions and the two products of
attention; all else is below 1 % of the operations of these models (not of the time). Backward computes the gradients of
a product's two operands, each as many operations as the product; images need no gradient, so a first layer has only
that of its weights (Hoffmann et al.: Training Compute-Optimal Large Language Models, arXiv 2203.15556, appendix F).
"""

from collections.abc import Callable
from typing import NamedTuple

from perfkit.workloads import Plan, Size

WIDTHS = (64, 128, 256, 512)  # channels of ResNet's stages, two blocks each


class Layer(NamedTuple):
    """A layer: operations of its forward pass, and whether backward computes the gradient of its input."""

    name: str
    flops: int
    passes_gradient: bool = True


class Convolution(NamedTuple):
    """A convolution with square kernels and without bias: its channels, and the side of its output in pixels."""

    name: str
    inputs: int
    outputs: int
    kernel: int
    stride: int
    side: int


def step(plan: Plan, batch: int) -> int:
    """Return the operations of one step, FLOP.

    Inference is forward; training is forward + gradients of the weights + gradients of the inputs, of all layers but
    the first one of a model of images.

    >>> step(Plan("mlp", mode="inference"), 128)  # 2 * 128 * (784 * 256 + 256 * 128 + 128 * 10)
    60096512
    """
    of_model = layers(plan, batch)
    if plan.mode == "inference":
        return sum(layer.flops for layer in of_model)
    return sum(layer.flops * (3 if layer.passes_gradient else 2) for layer in of_model)


def layers(plan: Plan, batch: int) -> list[Layer]:
    """Return the layers of a model with operations, in their order."""
    if batch < 1:
        raise ValueError(f"batch: {batch} is below 1")
    return MODELS[plan.model](batch, plan.size)


def linear(rows: int, inputs: int, outputs: int) -> int:
    """Return the operations of a linear layer on `rows` vectors."""
    return 2 * rows * inputs * outputs


def convolution(batch: int, inputs: int, outputs: int, kernel: int, side: int) -> int:
    """Return the operations of a convolution with square kernels whose output has `side` x `side` pixels."""
    return 2 * batch * outputs * side**2 * inputs * kernel**2


def convolutions(image: int = 224) -> list[Convolution]:
    """Return the convolutions of ResNet-18 (He et al., arXiv 1512.03385, table 1); a shortcut follows its block."""
    side = _halved(image)
    made = [Convolution("conv1", 3, WIDTHS[0], 7, 2, side)]
    side, inputs = _halved(side), WIDTHS[0]
    for stage, outputs in enumerate(WIDTHS):
        side = side if stage == 0 else _halved(side)
        for block in (2 * stage, 2 * stage + 1):
            name, stride = f"blocks.{block}", 1 if inputs == outputs else 2
            made.append(Convolution(f"{name}.conv1", inputs, outputs, 3, stride, side))
            made.append(Convolution(f"{name}.conv2", outputs, outputs, 3, 1, side))
            if stride == 2:
                made.append(Convolution(f"{name}.shortcut", inputs, outputs, 1, stride, side))
            inputs = outputs
    return made


def attention(batch: int, sequence: int, hidden: int) -> int:
    """Return the operations of queries times keys and weights times values, over all heads."""
    return 2 * (2 * batch * sequence**2 * hidden)


def _mlp(batch: int, size: Size) -> list[Layer]:
    return [
        Layer("fc1", linear(batch, 784, 256), passes_gradient=False),
        Layer("fc2", linear(batch, 256, 128)),
        Layer("fc3", linear(batch, 128, 10)),
    ]


def _cnn(batch: int, size: Size) -> list[Layer]:
    return [
        Layer("conv1", convolution(batch, 1, 1, kernel=5, side=24), passes_gradient=False),
        Layer("conv2", convolution(batch, 1, 1, kernel=5, side=8)),
        Layer("fc1", linear(batch, 16, 100)),
        Layer("fc2", linear(batch, 100, 10)),
    ]


def _resnet18(batch: int, size: Size) -> list[Layer]:
    first, *others = [
        Layer(name, convolution(batch, inputs, outputs, kernel, side))
        for name, inputs, outputs, kernel, _, side in convolutions(size.image)
    ]
    return [
        first._replace(passes_gradient=False),
        *others,
        Layer("fc", linear(batch, WIDTHS[-1], 1000)),
    ]


def _bert(batch: int, size: Size) -> list[Layer]:
    rows, hidden = batch * size.sequence, size.hidden
    layer = [
        *(
            Layer(f"attention.{name}", linear(rows, hidden, hidden))
            for name in ("query", "key", "value")
        ),
        Layer("attention", attention(batch, size.sequence, hidden)),
        Layer("attention.out", linear(rows, hidden, hidden)),
        Layer("fc1", linear(rows, hidden, 4 * hidden)),
        Layer("fc2", linear(rows, 4 * hidden, hidden)),
    ]
    encoder = [
        part._replace(name=f"layers.{n}.{part.name}") for n in range(size.layers) for part in layer
    ]
    return [
        *encoder,
        Layer("pooler", linear(batch, hidden, hidden)),
        Layer("fc", linear(batch, hidden, 2)),
    ]


def _halved(side: int) -> int:
    """Return the side of an image after a stride of 2 with padding, which rounds up."""
    return (side + 1) // 2


MODELS: dict[str, Callable[[int, Size], list[Layer]]] = {
    "mlp": _mlp,
    "cnn": _cnn,
    "resnet18": _resnet18,
    "bert": _bert,
}
