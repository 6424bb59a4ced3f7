"""How long does a kernel take on an A100, and what is it called?

Conventions
-----------
A kernel takes what the slower of two roofs allows, and a little for its start: operations over a share of the dense
peak, or bytes over a share of the memory's bandwidth. Matrix products are cut into tiles, one block each; where the
tiles do not fill the last round of all multiprocessors, the rest of that round is lost. The shares are plausible, not
measured.

Classes
-------
Kernel    a kernel of a step
Maker     makes kernels of a precision

Functions
---------
elementwise, softmax, dropout, native    names
"""

from __future__ import annotations

from math import ceil
from typing import NamedTuple

from perfkit import hardware

GPU = "NVIDIA A100 80GB PCIe"
SM_COUNT = 108
TILE = (128, 64)
THREADS = 256
START_NS = 2_000
REACHED = {"fp32": 0.9, "tf32": 0.7, "bf16": 0.65}  # share of the peak that a product reaches when the tiles fit
STREAMED = 0.8  # share of the bandwidth that other kernels reach
PEAK = {"fp32": "fp32", "tf32": "tf32_tensor", "bf16": "bf16_tensor"}
PRODUCTS = {
    "fp32": "ampere_sgemm_128x64_{}",
    "tf32": "void cutlass::Kernel2<cutlass_80_tensorop_s1688gemm_128x64_32x6_{}_align4>(T1::Params)",
    "bf16": "ampere_bf16_s16816gemm_bf16_128x64_ldg8_f2f_stages_32x6_{}",
}
WORDS = {4: "float", 2: "c10::BFloat16"}


class Kernel(NamedTuple):
    """A kernel: its time, its grid, its operations and bytes, and the peak (FLOP/s) of the unit that does them."""

    full_name: str
    dur_ns: float
    grid_blocks: int
    flops: int
    bytes: int
    peak_flops_per_s: float

    @property
    def is_product(self) -> bool:
        """Whether it is a matrix product."""
        return self.flops > 0


class Maker:
    """Makes kernels of a precision: fp32, tf32 or bf16."""

    def __init__(self, precision: str) -> None:
        sheet = hardware.peaks(GPU)
        if sheet is None:
            raise ValueError(f"GPU: no peaks of {GPU}")
        self.precision = precision
        self.peak = sheet.flops(PEAK[precision])
        self.bandwidth = sheet.bandwidth()
        self.word = 2 if precision == "bf16" else 4

    def product(self, rows: int, columns: int, inner: int, layout: str, count: int = 1) -> Kernel:
        """Return a product of matrices, or a batch of `count`; `layout` says which are transposed."""
        tiles = count * ceil(rows / TILE[0]) * ceil(columns / TILE[1])
        filled = tiles / (SM_COUNT * ceil(tiles / SM_COUNT))
        flops = 2 * count * rows * columns * inner
        size = count * self.word * (rows * inner + inner * columns + rows * columns)
        rate = REACHED[self.precision] * filled * self.peak
        dur = START_NS + 1e9 * max(flops / rate, size / (STREAMED * self.bandwidth))
        return Kernel(PRODUCTS[self.precision].format(layout), dur, tiles, flops, size, self.peak)

    def other(self, name: str, elements: int, arrays: float = 2, word: int | None = None) -> Kernel:
        """Return a kernel that reads and writes `arrays` of so many elements, each of `word` bytes."""
        word = word or self.word
        size = round(elements * arrays * word)
        dur = START_NS + 1e9 * size / (STREAMED * self.bandwidth)
        return Kernel(name.format(WORDS[word]), dur, ceil(elements / (4 * THREADS)), 0, size, self.peak)


def native(kernel: str) -> str:
    """Return the full name of a kernel of PyTorch's; {0} in it is its number format.

    Examples
    --------
    >>> native("nll_loss<{0}>")
    'void at::native::nll_loss<{0}>(T1)'
    """
    return f"void at::native::{kernel}(T1)"


def elementwise(functor: str, arrays: int = 3, unrolled: bool = False) -> str:
    """Return the name of an elementwise kernel of PyTorch's."""
    if unrolled:
        return native(f"unrolled_elementwise_kernel<at::native::{functor}, std::array<char *, {arrays}>, 4>")
    return native(f"vectorized_elementwise_kernel<4, at::native::{functor}, std::array<char *, {arrays}>>")


def softmax(way: str, power: int) -> str:
    """Return the name of PyTorch's softmax, forward or backward, over rows of up to 2 to this power."""
    return f"void <unnamed>::softmax_warp_{way}<{{0}}, {{0}}, float, {power}, 0, 0>(T2 *, const T1 *, int, int, int)"


ADD = elementwise("CUDAFunctor_add<{0}>")
SCALE = elementwise("MaskedScaleFunctor<{0}>")
CAST = elementwise("direct_copy_kernel_cuda<{0}>", 2, unrolled=True)
DROPOUT = native("<unnamed>::fused_dropout_kernel_vec<{0}, float, unsigned int, 1, 4, bool>")
SUM = native("reduce_kernel<128, 4, at::native::ReduceOp<{0}, at::native::sum_functor<{0}, float>, 4>>")
ADAM = native("<unnamed>::multi_tensor_apply_kernel<TensorListMetadata<4>, FusedAdamMathFunctor<float, 4>>")
