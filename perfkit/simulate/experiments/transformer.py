"""Which kernels does a training step of a transformer launch?

Conventions
-----------
Encoder layers as BERT's with their backward pass, a small head, cross entropy, AdamW. What autocast leaves in 32 bits
stays there, and weights are cast anew in every step. A compiler fuses neighbours between the products: fewer kernels,
and what they would hand over is not written and read.

Functions
---------
step      the kernels of a step in their order
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil, log2

from perfkit.simulate.experiments.kernels import (
    ADAM,
    ADD,
    CAST,
    DROPOUT,
    SCALE,
    SUM,
    Kernel,
    Maker,
    elementwise,
    native,
    softmax,
)
from perfkit.simulate.experiments.setup import Setup

CAST_BYTES, ADAM_BYTES = 6, 28  # of a weight: read 4, write 2; read weight, gradient and two moments, write three
MASKED = 2.25  # arrays of four bytes that dropout reads and writes, with a mask of one byte


def step(setup: Setup) -> list[Kernel]:
    """Return the kernels of a training step: forward, backward, optimiser.

    Examples
    --------
    >>> len(step(Setup(layers=1))), len(step(Setup(layers=1, fused=True)))
    (68, 54)
    """
    scales = {True: setup.product_frac, False: setup.other_frac}
    made = _Step(setup).all()
    return [kernel._replace(dur_ns=kernel.dur_ns * scales[kernel.is_product]) for kernel in made]


class _Step:
    """Makes the kernels of a setup."""

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.maker = Maker(setup.precision)
        self.product, self.other = self.maker.product, self.maker.other
        self.rows = setup.batch * setup.sequence
        self.states = self.rows * setup.hidden
        self.weights = setup.batch * setup.heads * setup.sequence**2  # of attention
        self.power = ceil(log2(setup.sequence))

    def all(self) -> Iterator[Kernel]:
        """Yield the step: embedding, layers, head and loss, the same backwards, optimiser."""
        hidden, batch, layers = self.setup.hidden, self.setup.batch, self.setup.layers
        yield self.other(native("<unnamed>::indexSelectLargeIndex<{0}, long, unsigned int>"), self.states)
        for _ in range(layers):
            yield from self.forward()
        yield from (self.product(batch, hidden, hidden, "tn"), self.product(batch, 2, hidden, "tn"))
        yield from self.loss()
        for outputs in (2, hidden):
            yield from self.gradients(batch, outputs, hidden)
        for _ in range(layers):
            yield from self.backward()
        yield self.other(native("<unnamed>::embedding_backward_feature_kernel<{0}>"), self.states)
        yield self.other(ADAM, 12 * hidden**2 * layers, ADAM_BYTES / 4, word=4)

    def linear(self, inputs: int, outputs: int) -> Iterator[Kernel]:
        """Yield a linear layer; with autocast its weights are cast first."""
        if self.setup.precision == "bf16":
            yield self.other(CAST, inputs * outputs, CAST_BYTES / self.maker.word)
        yield self.product(self.rows, outputs, inputs, "tn")

    def gradients(self, rows: int, outputs: int, inputs: int) -> Iterator[Kernel]:
        """Yield the gradients of a linear layer's input, weights and bias."""
        yield self.product(rows, inputs, outputs, "nn")
        yield self.product(outputs, inputs, rows, "nt")
        yield self.other(SUM, rows * outputs, 1)

    def attention(self, layout: str) -> Kernel:
        """Return one of the products of attention: queries and keys, or weights and values, or a gradient."""
        setup = self.setup
        inner = setup.hidden // setup.heads
        return self.product(setup.sequence, setup.sequence, inner, layout, setup.batch * setup.heads)

    def forward(self) -> Iterator[Kernel]:
        """Yield the forward pass of a layer."""
        hidden = self.setup.hidden
        for _ in range(3):
            yield from self.linear(hidden, hidden)
        yield self.attention("tn")
        yield from self.softmax()
        yield self.attention("nn")
        yield from self.linear(hidden, hidden)
        yield from self.residual()
        yield from self.linear(hidden, 4 * hidden)
        yield self.between("GeluCUDAKernelImpl", "triton_poi_fused_gelu_5", 2)
        yield from self.linear(4 * hidden, hidden)
        yield from self.residual()

    def between(self, functor: str, fused: str, arrays: int) -> Kernel:
        """Return the activation between the two large products, or its gradient."""
        name = fused if self.setup.fused else elementwise(f"{functor}<{{0}}>", arrays)
        return self.other(name, 4 * self.states, arrays)

    def softmax(self) -> Iterator[Kernel]:
        """Yield softmax and dropout of the attention weights."""
        if self.setup.fused:
            yield self.other("triton_per_fused__softmax_native_dropout_0", self.weights, MASKED)
            return
        yield self.other(softmax("forward", self.power), self.weights, 2, word=4)
        yield self.other(DROPOUT, self.weights, MASKED)

    def residual(self) -> Iterator[Kernel]:
        """Yield dropout, addition of the residual, and normalisation."""
        if self.setup.fused:
            yield self.other("triton_per_fused_add_native_dropout_native_layer_norm_1", self.states, 2 + MASKED)
            return
        yield self.other(DROPOUT, self.states, MASKED)
        yield self.other(ADD, self.states, 3)
        yield self.other(native("<unnamed>::vectorized_layer_norm_kernel<{0}, float>"), self.states, 2, word=4)

    def backward(self) -> Iterator[Kernel]:
        """Yield the backward pass of a layer."""
        hidden = self.setup.hidden
        yield from self.residual_back()
        yield from self.gradients(self.rows, hidden, 4 * hidden)
        yield self.between("GeluBackwardCUDAKernelImpl", "triton_poi_fused_gelu_backward_6", 3)
        yield from self.gradients(self.rows, 4 * hidden, hidden)
        yield from self.residual_back()
        yield from self.gradients(self.rows, hidden, hidden)
        yield from (self.attention("nt"), self.attention("tn"))
        yield from self.softmax_back()
        yield from (self.attention("nn"), self.attention("nt"))
        for _ in range(3):
            yield from self.gradients(self.rows, hidden, hidden)
        yield from self.accumulated(3)

    def residual_back(self) -> Iterator[Kernel]:
        """Yield the gradients of normalisation, addition and dropout."""
        if self.setup.fused:
            name = "triton_per_fused_add_native_dropout_backward_native_layer_norm_backward_2"
            yield self.other(name, self.states, 2 + MASKED)
            return
        yield from self.accumulated(1)
        for what in ("layer_norm_grad_input_kernel", "GammaBetaBackwardCUDAKernelTemplate"):
            yield self.other(native(f"<unnamed>::{what}<{{0}}, float>"), self.states, 2.5, word=4)
        yield self.other(SCALE, self.states, MASKED)

    def softmax_back(self) -> Iterator[Kernel]:
        """Yield the gradients of dropout and softmax."""
        if self.setup.fused:
            name = "triton_per_fused__softmax_backward_data_native_dropout_backward_3"
            yield self.other(name, self.weights, 1 + MASKED)
            return
        yield self.other(SCALE, self.weights, MASKED)
        yield self.other(softmax("backward", self.power), self.weights, 3, word=4)

    def accumulated(self, times: int) -> Iterator[Kernel]:
        """Yield additions of gradients, which a compiler makes one."""
        if self.setup.fused and times > 1:
            yield self.other("triton_poi_fused_add_4", self.states, times + 2)
            return
        for _ in range(times):
            yield self.other(ADD, self.states, 3)

    def loss(self) -> Iterator[Kernel]:
        """Yield the loss and its gradient."""
        for way in ("forward", "backward"):
            yield self.other(softmax(way, 1), 2 * self.setup.batch, word=4)
            yield self.other(
                native(f"nll_loss_{way}_reduce_cuda_kernel_2d<{{0}}, float, long>"), 2 * self.setup.batch, word=4
            )
