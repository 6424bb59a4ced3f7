"""Which kernels does the forward pass of BERT-base launch at each batch size, and how long do they take?

Eager PyTorch, FP32, sequences of 128 tokens. Cases are kernels of one place in the pass at one batch size and
precision; their key is such as ``fc1@32`` or ``fc1@32/tf32``. A product of matrices (rows x inner) and (inner x
columns) takes 2 x rows x columns x inner FLOP; all other kernels move bytes. Times are nominal ns on an A100 80GB PCIe,
from two simple laws: a product runs at the peak times a factor of its tile and of how evenly its blocks fill the SMs;
the others at a steady share of the memory's bandwidth.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import ceil
from typing import Literal, NamedTuple

from make.kernels import Kernel, table
from make.simulate.export import CARD

Names = tuple[str, str]  # base name, and full name as in Nsight Systems

NAMES: dict[str, Names] = {
    row["key"]: (row["name"], row["full_name"]) for row in table("bert_kernels")
}
Precision = Literal["fp32", "tf32"]

SIZES = (1, 8, 16, 32)
LAYERS, HIDDEN, HEADS, SEQUENCE, VOCABULARY, POSITIONS = 12, 768, 12, 128, 28_996, 512
WIDE = 4 * HIDDEN
FLOAT_BYTES, TOKEN_BYTES = 4, 8

SMS = int(CARD["smCount"])
PEAK = {"fp32": 19.5e12, "tf32": 156e12}  # FLOP/s
MEMORY = 0.75 * int(CARD["memoryBandwidth"])  # bytes/s that a streaming kernel gets
LEAST_NS = {"product": 2_000, "moving": 1_700}  # of a kernel without work
MOST_BLOCKS = 8 * SMS  # of a look-up


class Tile(NamedTuple):
    """How a product is cut: its tile of the result, threads and registers, shared memory, and share of the peak."""

    rows: int
    columns: int
    threads: int
    registers: int
    shared_bytes: int
    share: float


FP32_TILES = {
    "ampere_sgemm_128x128_{}": Tile(128, 128, 256, 122, 32_768, 0.93),
    "ampere_sgemm_128x64_{}": Tile(128, 64, 128, 122, 24_576, 0.88),
    "ampere_sgemm_64x64_{}": Tile(64, 64, 64, 118, 16_384, 0.80),
    "ampere_sgemm_64x32_sliced1x4_{}": Tile(64, 32, 256, 126, 49_152, 0.70),
    "ampere_sgemm_32x32_sliced1x4_{}": Tile(32, 32, 128, 86, 32_768, 0.60),
}
_XMMA = "sm80_xmma_gemm_f32f32_tf32f32_f32_{{}}_n_tilesize{}x{}x16_stage4_warpsize2x2x1_tensor16x8x8_kernel"
TF32_TILES = {
    _XMMA.format(128, 128): Tile(128, 128, 128, 230, 65_536, 0.62),
    _XMMA.format(128, 64): Tile(128, 64, 128, 168, 49_152, 0.55),
}
TILES = {"fp32": FP32_TILES, "tf32": TF32_TILES}


class Product(NamedTuple):
    """Products of matrices; `bias` says whether a vector is added to each row of the result."""

    rows: int
    columns: int
    inner: int
    products: int = 1
    bias: bool = True

    @property
    def flops(self) -> int:
        """Operations, without those of the bias."""
        return 2 * self.rows * self.columns * self.inner * self.products

    @property
    def bytes(self) -> tuple[int, int]:
        """Bytes of the operands, and of the result."""
        read = self.rows * self.inner + self.inner * self.columns + self.bias * self.columns
        return (
            FLOAT_BYTES * self.products * read,
            FLOAT_BYTES * self.products * self.rows * self.columns,
        )


class Moving(NamedTuple):
    """Elements that are read and written; `flops` and the elements that a block does are per element."""

    name: str
    full_name: str
    read: int
    written: int
    flops: float = 0
    per_block: int = 512
    registers: int = 24


@dataclass(frozen=True)
class Case:
    """A kernel of a place: what it is, FLOP, bytes that it reads and writes, and its nominal time in ns."""

    kernel: Kernel
    flops: int
    read_bytes: int
    written_bytes: int
    dur_ns: int
    is_product: bool


def _linear(inner: int, columns: int) -> Callable[[int], Product]:
    return lambda batch: Product(batch * SEQUENCE, columns, inner)


def _hidden(
    names: Names, *, read: int = 1, flops: float = 0, per_block: int = 512, registers: int = 24
) -> Callable[[int], Moving]:
    """A kernel on vectors of hidden states."""
    return lambda n: Moving(
        *names, read * n * SEQUENCE * HIDDEN, n * SEQUENCE * HIDDEN, flops, per_block, registers
    )


def _scores(
    names: Names, *, flops: float, per_block: int = 512, registers: int = 24
) -> Callable[[int], Moving]:
    """A kernel on the scores of all heads."""
    return lambda n: Moving(
        *names, n * HEADS * SEQUENCE**2, n * HEADS * SEQUENCE**2, flops, per_block, registers
    )


def _tokens(names: Names, flops: float = 0) -> Callable[[int], Moving]:
    return lambda n: Moving(*names, n * SEQUENCE, n * SEQUENCE, flops)


# what a place does with a batch
PLACES: dict[str, Callable[[int], Product | Moving]] = {
    "look_up": _hidden(NAMES["look_up"], per_block=128, registers=32),
    "look_up_places": lambda n: PLACES["look_up"](1),
    "add": _hidden(NAMES["add"], read=2, flops=1),
    "norm": _hidden(NAMES["norm"], flops=8, per_block=HIDDEN, registers=34),
    "mask_to_float": _tokens(NAMES["cast"]),
    "mask_from_one": _tokens(NAMES["from_one"], 1),
    "mask_scaled": _tokens(NAMES["scale"], 1),
    "query": _linear(HIDDEN, HIDDEN),
    "key": _linear(HIDDEN, HIDDEN),
    "value": _linear(HIDDEN, HIDDEN),
    "copy": _hidden(NAMES["copy"], per_block=256, registers=20),
    "scores": lambda n: Product(SEQUENCE, SEQUENCE, HIDDEN // HEADS, n * HEADS, bias=False),
    "scaled": _scores(NAMES["scale"], flops=1),
    "masked": _scores(NAMES["add_strided"], flops=1, per_block=256, registers=26),
    "softmax": _scores(NAMES["softmax"], flops=5, per_block=8 * SEQUENCE, registers=40),
    "context": lambda n: Product(SEQUENCE, HIDDEN // HEADS, SEQUENCE, n * HEADS, bias=False),
    "out": _linear(HIDDEN, HIDDEN),
    "fc1": _linear(HIDDEN, WIDE),
    "gelu": lambda n: Moving(
        *NAMES["gelu"], n * SEQUENCE * WIDE, n * SEQUENCE * WIDE, 24, registers=30
    ),
    "fc2": _linear(WIDE, HIDDEN),
    "head": _linear(HIDDEN, 2),
    "logits": _tokens(NAMES["copy"]),
}


def places(batch: int) -> tuple[str, ...]:
    """Return the places of an encoder layer that launch a kernel, in their order.

    Heads lie side by side in memory; only at batch 1 the products of attention can do without copies of them.
    """
    copies = ("copy",) if batch > 1 else ()
    attention = (
        "query",
        "key",
        "value",
        *copies,
        *copies,
        "scores",
        "scaled",
        "masked",
        "softmax",
        *copies,
        "context",
    )
    return (*attention, "copy", "out", "add", "norm", "fc1", "gelu", "fc2", "add", "norm")


def key(place: str, batch: int, precision: Precision = "fp32") -> str:
    """Return the key of a place's kernel; only products know other precisions than FP32."""
    other = precision != "fp32" and isinstance(PLACES[place](batch), Product) and place != "head"
    return f"{place}@{batch}/{precision}" if other else f"{place}@{batch}"


@cache
def case(place: str, batch: int, precision: Precision = "fp32") -> Case:
    """Return the kernel of a place at a batch size."""
    work = PLACES[place](batch)
    if isinstance(work, Product):
        chosen: Precision = "fp32" if place == "head" else precision
        # BLAS sees the weights of a linear layer transposed, and the keys where nothing copied them.
        copied = place == "context" or (place == "scores" and batch > 1)
        return _product(work, "nn" if copied else "tn", chosen)
    read, written = FLOAT_BYTES * work.read, FLOAT_BYTES * work.written
    dur = LEAST_NS["moving"] + round((read + written) / MEMORY * 1e9)
    blocks = ceil(work.written / work.per_block)
    blocks = min(blocks, MOST_BLOCKS) if work.name == NAMES["look_up"][0] else blocks
    kernel = _launched(work.name, work.full_name, (blocks, 1), dur, 128, work.registers)
    return Case(kernel, round(work.flops * work.written), read, written, dur, is_product=False)


def _product(work: Product, layout: str, precision: Precision) -> Case:
    """The fastest kernel for a product."""
    durs = {name: _needs(work, tile, precision) for name, tile in TILES[precision].items()}
    name = min(durs, key=lambda each: durs[each])
    tile, dur = TILES[precision][name], durs[name]
    read, written = work.bytes
    grid = ceil(work.columns / tile.rows), ceil(work.rows / tile.columns) * work.products
    named = name.format(layout)
    kernel = _launched(named, named, grid, dur, tile.threads, tile.registers, tile.shared_bytes)
    return Case(kernel, work.flops, read, written, dur, is_product=True)


def _needs(work: Product, tile: Tile, precision: Precision) -> int:
    """Time of a product in tiles: the SM with most of them decides, and one tile alone does not fill an SM.

    Columns of the result are rows for BLAS.
    """
    blocks = ceil(work.columns / tile.rows) * ceil(work.rows / tile.columns) * work.products
    most = ceil(blocks / SMS)
    evenly = blocks / SMS / most
    filled = 0.55 + 0.45 * min(1.0, blocks / SMS / 2)
    short = work.inner / (
        work.inner + 32
    )  # filling the pipeline takes about as long as a sum of 32
    computing = work.flops / (PEAK[precision] * tile.share * evenly * filled * short)
    moving = sum(work.bytes) / MEMORY
    return LEAST_NS["product"] + round(max(computing, moving) * 1e9)


def _launched(
    name: str,
    full_name: str,
    grid: tuple[int, int],
    dur: int,
    threads: int,
    registers: int,
    shared_bytes: int = 0,
) -> Kernel:
    return Kernel(name, full_name, dur, 1, dur, dur, dur, (grid,), threads, registers, shared_bytes)
