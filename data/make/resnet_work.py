"""Which kernels compute ResNet-18, layer by layer, and how long does each take on an A100?

Conventions
-----------
The network of He et al., table 1, on square images of 224 pixels. Sizes are per image, in elements; a convolution's
side is that of its output. The first convolution's input, the image, needs no gradient.

Source: He et al.: Deep Residual Learning for Image Recognition, arXiv 1512.03385, table 1.

The nine names of section 3.3 of the A100 lab report are written out: it cuts them off after about a hundred characters,
and text recognition lost an ``_f32`` in two and put a blank into one. What follows the cut, and all other names, are
what cuDNN 8, cuBLAS and PyTorch 2 call such kernels. Threads, registers and shared memory are plausible, not measured.

A rate is what a kernel reaches when it fills the GPU, bandwidth what it reaches of the memory's 1935 GB/s; both are
invented such that a forward pass of 128 images takes about the 14.5 ms that the report measured.

float32 in the layout NCHW, which cuDNN's kernels for tensor cores do not take: what they read is converted to NHWC
first, filters too, and for some what they write is converted back. Bytes are those of the operands, each read and
written once. Operations are counted by formula, two for a multiplication and an addition. A kernel that has fewer
blocks than the GPU has SMs leaves the rest idle, and is slower by as much; each needs some time to begin and end.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import ceil
from typing import NamedTuple

IMAGE, CLASSES, WIDTHS = 224, 1000, (64, 128, 256, 512)


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
    """Two convolutions and what stands beside them: nothing, or a convolution of one pixel."""

    first: Convolution
    second: Convolution
    shortcut: Convolution | None


def _block(number: int) -> Block:
    stage, second = divmod(number, 2)
    outputs, side = WIDTHS[stage], 56 >> stage
    inputs = outputs if second or not stage else WIDTHS[stage - 1]
    stride = 1 if inputs == outputs else 2
    name = f"blocks.{number}"
    beside = Convolution(f"{name}.shortcut", inputs, outputs, 1, 2, side) if stride == 2 else None
    return Block(
        Convolution(f"{name}.conv1", inputs, outputs, 3, stride, side),
        Convolution(f"{name}.conv2", outputs, outputs, 3, 1, side),
        beside,
    )


STEM = Convolution("conv1", 3, WIDTHS[0], 7, 2, 112)
BLOCKS = tuple(_block(number) for number in range(2 * len(WIDTHS)))
CONVOLUTIONS = (STEM, *(each for block in BLOCKS for each in block if each is not None))
PARAMETERS = sum(c.weights + 2 * c.outputs for c in CONVOLUTIONS) + (WIDTHS[-1] + 1) * CLASSES


_TF32 = "tf32f32_tf32f32_f32_nhwckrsc"
_END = "g1_tensor16x8x8_execute_kernel__5x_cudnn"
_ALIGNED = "g1_tensor16x8x8_aligna4_alignc8_execute_kernel__5x_cudnn"
_STRIDED = "cublasGemvTensorStridedBatched"
_LAYOUT = "(cudnnKernelDataType_t)"
_OLD = "kernel_grad_params, unsigned long long, int"


def _cutlass(name: str) -> str:
    return f"void cutlass_5x_cudnn::Kernel<{name}>(T1::Params)"


def _elementwise(functor: str, arrays: int) -> str:
    return (
        f"void at::native::vectorized_elementwise_kernel<(int)4, {functor}, std::array<char *, {arrays}>>(int, T2, T3)"
    )


def _foreach(depth: int, functor: str, operator: str) -> str:
    arguments = f"at::native::<unnamed>::TensorListMetadata<(int){depth}>, at::native::<unnamed>::{functor}"
    name = f"multi_tensor_apply_kernel<{arguments}, std::{operator}<float>, float>"
    return f"void at::native::<unnamed>::{name}(T1, T2, T3...)"


def _reduce(shape: str, operation: str) -> str:
    arguments = f"{shape}, at::native::ReduceOp<float, at::native::{operation}, unsigned int, float, (int)4>"
    return f"void at::native::reduce_kernel<{arguments}>(T3)"


_CLAMP = (
    "at::native::<unnamed>::launch_clamp_scalar(at::TensorIteratorBase &, c10::Scalar, c10::Scalar, "
    "at::native::detail::ClampLimits)::[lambda() (instance 1)]::operator ()() const::[lambda() (instance 7)]"
    "::operator ()() const::[lambda(float) (instance 1)]"
)
_THRESHOLD = (
    "at::native::BinaryFunctor<float, float, float, void at::native::<unnamed>::threshold_kernel_impl<float>"
    "(at::TensorIteratorBase &, T1, T1)::[lambda(float, float) (instance 1)]>"
)
_SUM = (
    "at::native::sum_functor<float, float, float>::operator ()(at::TensorIterator &)"
    "::[lambda(float, float) (instance 1)]"
)
_BN = "cudnnTensorStruct, const T1 *, cudnnTensorStruct"

NAMES = {
    "fprop_indexed": f"sm80_xmma_fprop_implicit_gemm_indexed_{_TF32}_nchw_tilesize64x32x64_stage5_warpsize2x2x1_{_END}",
    "fprop": f"sm80_xmma_fprop_implicit_gemm_{_TF32}_nchw_tilesize64x32x64_stage5_warpsize2x2x1_{_END}",
    "fprop_wo_smem": (
        f"sm80_xmma_fprop_implicit_gemm_indexed_wo_smem_{_TF32}_nhwc_tilesize128x32x16_stage1_warpsize4x1x1_{_ALIGNED}"
    ),
    "fprop_cutlass": _cutlass("cutlass_tensorop_s1688fprop_optimized_tf32_128x64_16x6_nhwc_align4"),
    "dgrad_alg1": (
        "void cudnn::detail::dgrad2d_alg1_1<float, (int)0, (int)6, (int)5, (int)4, (int)4, (bool)0, (bool)1>"
        f"(int, int, int, const T1 *, int, const T1 *, int, T1 *, {_OLD}, unsigned long long, int, float, int, int)"
    ),
    "dgrad_cutlass": _cutlass("cutlass_tensorop_s1688dgrad_optimized_tf32_64x64_32x5_nhwc_unity_stride_align4"),
    "dgrad": f"sm80_xmma_dgrad_implicit_gemm_{_TF32}_nhwc_tilesize64x32x64_stage5_warpsize2x2x1_{_END}",
    "dgrad_indexed": f"sm80_xmma_dgrad_implicit_gemm_indexed_{_TF32}_nhwc_tilesize64x64x64_stage3_warpsize2x2x1_{_END}",
    "wgrad_alg1": (
        "void cudnn::cnn::wgrad_alg1_engine<float, float, (int)128, (int)5, (int)5, (int)3, (int)3, (int)3, (bool)0, "
        f"(bool)1>(int, int, int, const T1 *, int, T2 *, const T1 *, {_OLD}, float, float, int, int, int *, int *, "
        "int, int)"
    ),
    "wgrad_indexed": f"sm80_xmma_wgrad_implicit_gemm_indexed_{_TF32}_nhwc_tilesize64x32x64_stage5_warpsize2x2x1_{_END}",
    "wgrad_cutlass": _cutlass("cutlass_tensorop_s1688wgrad_optimized_tf32_128x64_16x6_nhwc_align4"),
    "to_nhwc": (
        f"void cudnn::ops::nchwToNhwcKernel<float, float, float, (bool)0, (bool)1, {_LAYOUT}2>"
        "(cudnn::ops::nchw2nhwc_params_t<T3>, const T1 *, T2 *)"
    ),
    "to_nchw": (
        f"void cudnn::ops::nhwcToNchwKernel<float, float, float, (bool)1, (bool)0, {_LAYOUT}0>"
        "(cudnn::ops::nhwc2nchw_params_t<T3>, const T1 *, T2 *)"
    ),
    "norm": (
        "void cudnn::bn_fw_tr_1C11_kernel_NCHW<float, float, int, (int)512, (bool)1, (int)1, (bool)1>"
        f"({_BN}, T1 *, const T2 *, const T2 *, T2, T2, T2 *, T2 *, T2 *, T2 *, T2, T2)"
    ),
    "norm_inference": (
        "void cudnn::bn_fw_inf_1C11_kernel_NCHW<float, float, (bool)1, (int)1>"
        f"(T2, T2, {_BN}, T1 *, cudnnTensorStruct, const T2 *, const T2 *, const T2 *, const T2 *, T2)"
    ),
    "norm_back": (
        "void cudnn::bn_bw_1C11_kernel_new<float, float, float2, (int)512, (bool)1, (int)1>"
        f"(T2, T2, T2, T2, {_BN}, const T1 *, cudnnTensorStruct, T1 *, const T2 *, T2 *, T2 *, const T2 *, "
        "const T2 *, T2)"
    ),
    "relu": _elementwise(_CLAMP, 2),
    "relu_back": _elementwise(_THRESHOLD, 3),
    "add": _elementwise("at::native::CUDAFunctor_add<float>", 3),
    "count_batch": _elementwise("at::native::CUDAFunctorOnSelf_add<long>", 2),
    "fill": _elementwise("at::native::FillFunctor<float>", 1),
    "scale": _elementwise(
        "at::native::BUnaryFunctor<float, float, float, at::native::binary_internal::MulFunctor<float>>", 2
    ),
    "max_pool": (
        "void at::native::<unnamed>::max_pool_forward_nchw<float, float>"
        f"(int, const T1 *, long{', int' * 12}, T1 *, long *)"
    ),
    "max_pool_back": (
        "void at::native::<unnamed>::max_pool_backward_nchw<float, float>"
        f"(const T1 *, const long *, int, long{', int' * 14}, T1 *)"
    ),
    "mean": _reduce("(int)512, (int)1", "MeanOps<float, float, float, float>"),
    "bias_sum": _reduce("(int)128, (int)4", f"func_wrapper_t<float, {_SUM}>"),
    "linear": "ampere_sgemm_64x32_sliced1x4_tn",
    "linear_inputs": "ampere_sgemm_64x32_sliced1x4_nn",
    "linear_weights": "ampere_sgemm_128x32_sliced1x4_nt",
    "linear_one": (
        "void gemv2T_kernel_val<int, int, float, float, float, float, (int)128, (int)16, (int)4, (int)4, (bool)0, "
        f"(bool)0, cublasGemvParamsEx<int, {_STRIDED}<const float>, {_STRIDED}<const float>, {_STRIDED}<float>, float>>"
        "(T13, T6, T6)"
    ),
    "log_softmax": (
        "void at::native::<unnamed>::cunn_SoftMaxForward<(int)4, float, float, float, "
        "at::native::<unnamed>::LogSoftMaxForwardEpilogue>(T4 *, const T2 *, int)"
    ),
    "log_softmax_back": (
        "void at::native::<unnamed>::cunn_SoftMaxBackward<(int)4, float, float, float, "
        "at::native::<unnamed>::LogSoftMaxBackwardEpilogue>(T2 *, const T4 *, const T4 *, long)"
    ),
    "nll": (
        "void at::native::<unnamed>::nll_loss_forward_reduce_cuda_kernel_2d<float, float, long>"
        "(T1 *, T1 *, const T1 *, const T3 *, const T1 *, bool, long, long, long, long)"
    ),
    "nll_back": (
        "void at::native::<unnamed>::nll_loss_backward_reduce_cuda_kernel_2d<float, long>"
        "(T1 *, const T1 *, const T2 *, const T1 *, const T1 *, bool, int, int, long, long)"
    ),
    "sgd_momentum": _foreach(1, "BinaryOpScalarFunctor<float, (int)1, (int)1, (int)0>", "multiplies"),
    "sgd_add": _foreach(2, "BinaryOpListAlphaFunctor<float, (int)2, (int)2, (int)0>", "plus"),
}


class Speed(NamedTuple):
    """FLOP/s and bytes/s of a kernel that fills the GPU."""

    flops_per_s: float
    bytes_per_s: float


_CONVERTED, _STREAMED = Speed(19.5e12, 1.45e12), Speed(19.5e12, 1.52e12)
SPEEDS = dict.fromkeys(NAMES, _STREAMED) | {
    "fprop_indexed": Speed(66e12, 1.4e12),
    "fprop": Speed(78e12, 1.4e12),
    "fprop_wo_smem": Speed(30e12, 1.2e12),
    "fprop_cutlass": Speed(52e12, 1.4e12),
    "dgrad_alg1": Speed(9.1e12, 1.1e12),
    "dgrad_cutlass": Speed(58e12, 1.4e12),
    "dgrad": Speed(61e12, 1.4e12),
    "dgrad_indexed": Speed(24e12, 1.1e12),
    "wgrad_alg1": Speed(9.4e12, 1.1e12),
    "wgrad_indexed": Speed(43e12, 1.3e12),
    "wgrad_cutlass": Speed(57e12, 1.4e12),
    "to_nhwc": _CONVERTED,
    "to_nchw": _CONVERTED,
    "norm": Speed(19.5e12, 1.30e12),
    "norm_inference": Speed(19.5e12, 1.35e12),
    "norm_back": Speed(19.5e12, 1.25e12),
    "max_pool_back": Speed(19.5e12, 0.9e12),
    "linear": Speed(7e12, 1.2e12),
    "linear_inputs": Speed(7e12, 1.2e12),
    "linear_weights": Speed(7e12, 1.2e12),
}

TILES = {
    **dict.fromkeys(("fprop_indexed", "fprop", "dgrad", "wgrad_indexed", "linear", "linear_inputs"), (64, 32)),
    **dict.fromkeys(("fprop_wo_smem", "linear_weights"), (128, 32)),
    **dict.fromkeys(("fprop_cutlass", "wgrad_cutlass"), (128, 64)),
    **dict.fromkeys(("dgrad_cutlass", "dgrad_indexed", "dgrad_alg1", "wgrad_alg1"), (64, 64)),
}

TENSOR = {key for key, name in NAMES.items() if "tensor" in name}

_TILED = (128, 168, 0, 98_304)
LAUNCHED = dict.fromkeys(NAMES, (128, 24, 0, 0)) | {
    **dict.fromkeys(("fprop_indexed", "fprop", "dgrad", "wgrad_indexed"), _TILED),
    "fprop_wo_smem": (128, 102, 1_024, 0),
    "fprop_cutlass": (128, 222, 0, 73_728),
    "dgrad_cutlass": (128, 150, 0, 81_920),
    "dgrad_indexed": (128, 190, 0, 98_304),
    "wgrad_cutlass": (128, 228, 0, 73_728),
    "dgrad_alg1": (256, 126, 8_704, 0),
    "wgrad_alg1": (256, 120, 7_168, 0),
    "to_nhwc": (256, 32, 4_224, 0),
    "to_nchw": (256, 32, 4_224, 0),
    "norm": (512, 64, 136, 0),
    "norm_back": (512, 68, 264, 0),
    "norm_inference": (512, 32, 0, 0),
    "max_pool": (256, 32, 0, 0),
    "max_pool_back": (256, 32, 0, 0),
    "mean": (512, 28, 16, 0),
    "bias_sum": (256, 40, 16, 0),
    "linear": (256, 126, 24_576, 0),
    "linear_inputs": (256, 126, 24_576, 0),
    "linear_weights": (256, 128, 33_792, 0),
    "linear_one": (128, 64, 2_048, 0),
    "log_softmax": (256, 32, 128, 0),
    "log_softmax_back": (256, 36, 128, 0),
    "nll": (32, 34, 256, 0),
    "nll_back": (32, 32, 0, 0),
    "sgd_momentum": (512, 36, 0, 0),
    "sgd_add": (512, 42, 0, 0),
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
    """Return how long a launch takes on an A100, ns: the longer of its arithmetic and its traffic.

    Examples
    --------
    >>> duration_ns(Launch("relu", 0, 760_000_000, 760_000_000, 100_000))  # 1.52 GB at 1.52 TB/s
    1001900.0
    """
    speed, filled = SPEEDS[launch.key], min(1.0, launch.blocks / SMS)
    traffic = (launch.read + launch.written) / speed.bytes_per_s
    return OVERHEAD_NS + 1e9 * max(launch.flops / speed.flops_per_s, traffic) / filled


def _moving(key: str, read: int, written: int, flops: int = 0) -> Launch:
    """A kernel that does little but read and write elements of four bytes."""
    blocks = ceil(max(read, written) / PER_BLOCK.get(key, 512))
    return Launch(key, flops, read * FLOAT, written * FLOAT, max(blocks, 1))


def _product(key: str, rows: int, columns: int, flops: int, read: int, written: int, *, split: bool = False) -> Launch:
    height, width = TILES[key]
    blocks = ceil(rows / height) * ceil(columns / width)
    depth = ceil(flops / (2 * rows * columns) / DEPTH) * DEPTH
    grid = blocks * ceil(FLIGHT / blocks) if split else blocks
    return Launch(key, flops, read * FLOAT, written * FLOAT, grid, 2 * blocks * height * width * depth)


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
    yield _product(key, batch * conv.side**2, conv.outputs, batch * conv.flops, inputs + conv.weights, size)
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
    yield Launch("mean", batch * LAST * 49, batch * LAST * 49 * FLOAT, batch * LAST * FLOAT, ceil(batch * LAST / 64))
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
    yield _product(key, conv.outputs, depth, batch * conv.flops, inputs + size, conv.weights, split=True)
    if key != "wgrad_alg1":
        yield from _converted(conv.weights, back=True)


def optimizer() -> Iterator[Launch]:
    """Yield the launches of SGD with momentum over all parameters at once."""
    blocks, size = ceil(PARAMETERS / CHUNK) + 42, PARAMETERS * FLOAT
    yield Launch("sgd_momentum", PARAMETERS, size, size, blocks)
    for _ in range(2):
        yield Launch("sgd_add", 2 * PARAMETERS, 2 * size, size, blocks)
