"""Which kernels compute ResNet-18, layer by layer, and how long does each take on an A100?

The network of He et al. (Deep Residual Learning for Image Recognition, arXiv 1512.03385, table 1) on square images of
224 pixels. Sizes are per image, in elements; a convolution's side is that of its output. The first convolution's input,
the image, needs no gradient.

The nine names of section 3.3 of the A100 lab report are written out, which it cuts off; all other names are what cuDNN
8, cuBLAS and PyTorch 2 call such kernels. Threads, registers and shared memory are plausible, not measured. A rate is
what a kernel reaches when it fills the GPU; rates are invented such that a forward pass of 128 images takes about the
14.5 ms that the report measured.

float32 in the layout NCHW, which cuDNN's kernels for tensor cores do not take: what they read is converted to NHWC
first, filters too, and for some what they write is converted back. Bytes are those of the operands, each read and
written once. A kernel that has fewer blocks than the GPU has SMs is slower by as much; each needs some time to begin
and end.
"""

from collections.abc import Iterator
from math import ceil
from typing import NamedTuple

from make.kernels import table
from perfkit.workloads import flops

IMAGE, CLASSES, WIDTHS = 224, 1000, flops.WIDTHS


class Convolution(NamedTuple):
    """A convolution with square kernels and without bias; it is followed by batch normalisation."""

    name: str
    inputs: int
    outputs: int
    kernel: int
    stride: int
    side: int

    @property
    def inputs_size(self) -> int:
        """Elements of its input."""
        return self.inputs * (self.side * self.stride) ** 2

    @property
    def size(self) -> int:
        """Elements of its output."""
        return self.outputs * self.side**2

    @property
    def weights(self) -> int:
        """Elements of its filter."""
        return self.inputs * self.outputs * self.kernel**2

    @property
    def flops(self) -> int:
        """Operations per image; a multiplication and an addition are two."""
        return 2 * self.weights * self.side**2


class Block(NamedTuple):
    """Two convolutions and the shortcut around them: nothing, or a convolution of one pixel."""

    first: Convolution
    second: Convolution
    shortcut: Convolution | None


CONVOLUTIONS = tuple(Convolution(*each) for each in flops.convolutions(IMAGE))
STEM = CONVOLUTIONS[0]
_NAMED = {each.name: each for each in CONVOLUTIONS}
BLOCKS = tuple(
    Block(
        _NAMED[f"blocks.{n}.conv1"], _NAMED[f"blocks.{n}.conv2"], _NAMED.get(f"blocks.{n}.shortcut")
    )
    for n in range(2 * len(WIDTHS))
)
PARAMETERS = sum(c.weights + 2 * c.outputs for c in CONVOLUTIONS) + (WIDTHS[-1] + 1) * CLASSES


class Speed(NamedTuple):
    """FLOP/s and bytes/s of a kernel that fills the GPU."""

    flops_per_s: float
    bytes_per_s: float


_ROWS = {row["key"]: row for row in table("resnet_kernels")}
NAMES = {key: row["full_name"] for key, row in _ROWS.items()}
SPEEDS = {
    key: Speed(float(row["flops_per_s"]), float(row["bytes_per_s"])) for key, row in _ROWS.items()
}
# rows and columns of the result that a block of a matrix product computes
TILES = {
    key: (int(row["tile_rows"]), int(row["tile_columns"]))
    for key, row in _ROWS.items()
    if row["tile_rows"]
}
TENSOR = {key for key, name in NAMES.items() if "tensor" in name}
# threads per block, registers per thread, shared memory per block: static, dynamic
LAUNCHED = {
    key: (
        int(row["block"]),
        int(row["registers"]),
        int(row["shared_bytes"]),
        int(row["dynamic_shared_bytes"]),
    )
    for key, row in _ROWS.items()
}

FLOAT, LONG, SMS = 4, 8, 108
OVERHEAD_NS = 1_900
PER_BLOCK = {"to_nhwc": 1024, "to_nchw": 1024, "max_pool": 256, "max_pool_back": 256}
CHUNK = 65_536  # elements of a tensor that a block of the optimiser updates
FLIGHT = 216  # blocks that a gradient of few weights is split into at least: two per SM
DEPTH = 8  # of one instruction of tensor cores along the sum
LAST = WIDTHS[-1]


class Launch(NamedTuple):
    """A kernel of a step: FLOP, bytes read and written, blocks in its grid, and a product's FLOP in whole tiles."""

    key: str
    flops: int
    read: int
    written: int
    blocks: int
    tiled_flops: int = 0


def duration_ns(launch: Launch) -> float:
    """Return how long a launch takes on an A100, ns: the longer of its arithmetic and its traffic."""
    speed, filled = SPEEDS[launch.key], min(1.0, launch.blocks / SMS)
    traffic = (launch.read + launch.written) / speed.bytes_per_s
    return OVERHEAD_NS + 1e9 * max(launch.flops / speed.flops_per_s, traffic) / filled


def _moving(key: str, read: int, written: int, flops: int = 0) -> Launch:
    """A kernel that does little but read and write elements of four bytes."""
    blocks = ceil(max(read, written) / PER_BLOCK.get(key, 512))
    return Launch(key, flops, read * FLOAT, written * FLOAT, max(blocks, 1))


def _product(
    key: str, rows: int, columns: int, flops: int, read: int, written: int, *, split: bool = False
) -> Launch:
    height, width = TILES[key]
    blocks = ceil(rows / height) * ceil(columns / width)
    depth = ceil(flops / (2 * rows * columns) / DEPTH) * DEPTH
    grid = blocks * ceil(FLIGHT / blocks) if split else blocks
    return Launch(
        key, flops, read * FLOAT, written * FLOAT, grid, 2 * blocks * height * width * depth
    )


def _converted(*sizes: int, back: bool = False) -> Iterator[Launch]:
    for size in sizes:
        yield _moving("to_nchw" if back else "to_nhwc", size, size)


def _fprop(conv: Convolution, batch: int) -> str:
    if conv is STEM:
        return "fprop_wo_smem"
    if conv.kernel == 1:
        return "fprop_cutlass"
    return "fprop_indexed" if batch == 1 or conv.side >= 28 or conv.stride == 2 else "fprop"


def _convolved(conv: Convolution, batch: int) -> Iterator[Launch]:
    key, inputs, size = _fprop(conv, batch), batch * conv.inputs_size, batch * conv.size
    yield from _converted(inputs, conv.weights)
    yield _product(
        key, batch * conv.side**2, conv.outputs, batch * conv.flops, inputs + conv.weights, size
    )
    if key in ("fprop_wo_smem", "fprop_cutlass"):
        yield from _converted(size, back=True)


def _normalised(conv: Convolution, batch: int, *, training: bool) -> Iterator[Launch]:
    """Batch normalisation has a block per channel in training, where it reads its input twice."""
    size = batch * conv.size
    if training:
        yield Launch("count_batch", 0, LONG, LONG, 1)
        yield Launch("norm", 5 * size, 2 * size * FLOAT, size * FLOAT, 2 * conv.outputs)
    else:
        yield Launch("norm_inference", 2 * size, size * FLOAT, size * FLOAT, ceil(size / 4096))


def forward(batch: int, *, training: bool) -> Iterator[Launch]:
    """Yield the launches of a forward pass; without `training` batch normalisation uses its stored statistics."""
    yield from _convolved(STEM, batch)
    yield from _normalised(STEM, batch, training=training)
    yield _moving("relu", batch * STEM.size, batch * STEM.size)
    pooled = batch * STEM.size // 4
    yield _moving("max_pool", batch * STEM.size, 3 * pooled if training else pooled)
    for block in BLOCKS:
        yield from _work_block(block, batch, training=training)
    yield Launch(
        "mean",
        batch * LAST * 49,
        batch * LAST * 49 * FLOAT,
        batch * LAST * FLOAT,
        ceil(batch * LAST / 64),
    )
    yield _linear(batch)


def _work_block(block: Block, batch: int, *, training: bool) -> Iterator[Launch]:
    size = batch * block.second.size
    for conv in (block.first, block.second):
        yield from _convolved(conv, batch)
        yield from _normalised(conv, batch, training=training)
        if conv is block.first:
            yield _moving("relu", size, size)
    if block.shortcut:
        yield from _convolved(block.shortcut, batch)
        yield from _normalised(block.shortcut, batch, training=training)
    yield _moving("add", 2 * size, size, flops=size)
    yield _moving("relu", size, size)


def _linear(batch: int) -> Launch:
    flops, read = 2 * batch * LAST * CLASSES, batch * LAST + LAST * CLASSES
    if batch == 1:
        return Launch("linear_one", flops, read * FLOAT, CLASSES * FLOAT, CLASSES)
    return _product("linear", CLASSES, batch, flops, read, batch * CLASSES)


def loss(batch: int) -> Iterator[Launch]:
    """Yield the launches of cross entropy."""
    size = batch * CLASSES * FLOAT
    yield Launch("log_softmax", 5 * batch * CLASSES, size, size, batch)
    yield Launch("nll", batch, batch * (FLOAT + LONG), FLOAT, 1)


def backward(batch: int) -> Iterator[Launch]:
    """Yield the launches of the backward pass, from the loss to the first convolution's weights."""
    scores = batch * CLASSES
    yield _moving("fill", 0, 1)
    yield _moving("fill", 0, scores)
    yield Launch("nll_back", batch, batch * LONG, batch * FLOAT, 1)
    yield Launch("log_softmax_back", 3 * scores, 2 * scores * FLOAT, scores * FLOAT, batch)
    flops, weights = 2 * scores * LAST, LAST * CLASSES
    yield _product("linear_inputs", LAST, batch, flops, scores + weights, batch * LAST)
    yield _product("linear_weights", LAST, CLASSES, flops, scores + batch * LAST, weights)
    yield Launch("bias_sum", scores, scores * FLOAT, CLASSES * FLOAT, ceil(CLASSES / 64))
    yield _moving("scale", batch * LAST, batch * LAST * 49)
    for block in reversed(BLOCKS):
        yield from _block_back(block, batch)
    yield _moving("fill", 0, batch * STEM.size)
    yield _moving("max_pool_back", 3 * batch * STEM.size // 4, batch * STEM.size)
    yield _moving("relu_back", 2 * batch * STEM.size, batch * STEM.size)
    yield from _normalised_back(STEM, batch)
    yield from _weights_back(STEM, batch)


def _block_back(block: Block, batch: int) -> Iterator[Launch]:
    size = batch * block.second.size
    yield _moving("relu_back", 2 * size, size)
    for conv in (block.shortcut, block.second, block.first):
        if conv is None:
            continue
        if conv is block.first:
            yield _moving("relu_back", 2 * size, size)
        yield from _normalised_back(conv, batch)
        yield from _inputs_back(conv, batch)
        yield from _weights_back(conv, batch)
    inputs = batch * block.first.inputs_size
    yield _moving("add", 2 * inputs, inputs, flops=inputs)


def _normalised_back(conv: Convolution, batch: int) -> Iterator[Launch]:
    size = batch * conv.size
    yield Launch("norm_back", 8 * size, 4 * size * FLOAT, size * FLOAT, 2 * conv.outputs)


def _inputs_back(conv: Convolution, batch: int) -> Iterator[Launch]:
    """The gradient of a convolution's input; what is old in cuDNN takes NCHW and no tensor cores."""
    inputs, size = batch * conv.inputs_size, batch * conv.size
    if conv.stride == 2:
        key = "dgrad_alg1" if conv.kernel == 3 else "dgrad_indexed"
    else:
        key = "dgrad_cutlass" if conv.side >= 28 else "dgrad"
    if key != "dgrad_alg1":
        yield from _converted(size, conv.weights)
    pixels = inputs // conv.inputs
    yield _product(key, pixels, conv.inputs, batch * conv.flops, size + conv.weights, inputs)
    if key != "dgrad_alg1":
        yield from _converted(inputs, back=True)


def _weights_back(conv: Convolution, batch: int) -> Iterator[Launch]:
    inputs, size = batch * conv.inputs_size, batch * conv.size
    if conv.stride == 2 and conv.kernel > 1:
        key = "wgrad_alg1"
    else:
        key = "wgrad_indexed" if conv.side >= 28 or conv.kernel == 1 else "wgrad_cutlass"
    if key != "wgrad_alg1":
        yield from _converted(inputs, size)
    depth = conv.weights // conv.outputs
    yield _product(
        key, conv.outputs, depth, batch * conv.flops, inputs + size, conv.weights, split=True
    )
    if key != "wgrad_alg1":
        yield from _converted(conv.weights, back=True)


def optimizer() -> Iterator[Launch]:
    """Yield the launches of SGD with momentum over all parameters at once."""
    blocks, size = ceil(PARAMETERS / CHUNK) + 42, PARAMETERS * FLOAT
    yield Launch("sgd_momentum", PARAMETERS, size, size, blocks)
    for _ in range(2):
        yield Launch("sgd_add", 2 * PARAMETERS, 2 * size, size, blocks)
