"""How many operations and bytes does a convolution take, and how many its gradients?

Conventions
-----------
A convolution is 2 N K P Q (C / groups) R S: for each element of the output (N, K, P, Q) one product with the filter
(C / groups, R, S), in any number of dimensions. A transposed one has that for each element of the input. Each gradient
costs as much as the convolution itself. The bias is not counted. Bytes are those of every tensor that is read or
written, once. The size of the output is in no trace: without the recorded stride, padding and dilation there is no
model of a convolution, and without the recorded list of what is wanted none of its gradients.

Functions
---------
convolution              forward
convolution_gradients    backward

References
----------
torch.utils.flop_counter of PyTorch counts the same, except that it counts the gradient of grouped filters `groups`
times. Positions of the arguments: PyTorch's native_functions.yaml.
"""

from __future__ import annotations

import math
from typing import NamedTuple

from perfkit.analysis.flops.models import Work
from perfkit.analysis.flops.shapes import FLOATS, Inputs, Tensor, stored


class Places(NamedTuple):
    """Positions of a convolution's arguments; None where the operator has no such argument."""

    stride: int
    padding: int
    dilation: int
    groups: int
    transposed: int | None = None
    output_padding: int | None = None


PLACES = {
    "aten::convolution": Places(stride=3, padding=4, dilation=5, groups=8, transposed=6, output_padding=7),
    "aten::_convolution": Places(stride=3, padding=4, dilation=5, groups=8, transposed=6, output_padding=7),
    "aten::cudnn_convolution": Places(stride=3, padding=2, dilation=4, groups=5),
    "aten::miopen_convolution": Places(stride=4, padding=3, dilation=5, groups=6),
    "aten::mkldnn_convolution": Places(stride=4, padding=3, dilation=5, groups=6),
}


class _Dimension(NamedTuple):
    """One spatial dimension of a convolution."""

    image: int
    filters: int
    stride: int
    padding: int
    dilation: int
    output_padding: int

    def size(self, *, transposed: bool) -> int:
        """Return the size of the output (PyTorch's documentation of Conv2d and ConvTranspose2d)."""
        reach = self.dilation * (self.filters - 1)
        if transposed:
            return (self.image - 1) * self.stride - 2 * self.padding + reach + self.output_padding + 1
        return (self.image + 2 * self.padding - reach - 1) // self.stride + 1


def convolution(given: Inputs, at: Places) -> Work | None:
    """Return the work of a convolution, None where its stride, padding and the like were not recorded.

    Examples
    --------
    >>> recorded = ("", "", "", "[2]", "[1]", "[1]", "False", "[0]", "1")
    >>> convolution(Inputs(((1, 3, 8), (5, 3, 3)), ("float", "float"), recorded), PLACES["aten::convolution"])
    Work(model='convolution', dtype='fp32', flops=360, bytes=356)
    """
    image, filters = given.tensor(0), given.tensor(1)
    transposed = (False,) if at.transposed is None else given.flags(at.transposed)
    groups = given.integers(at.groups)
    if image is None or filters is None or not _fit(image, filters) or not transposed or not groups:
        return None
    sizes = _sizes(image, filters, given, at, transposed=transposed[0])
    inner = filters.shape[0] if transposed[0] else filters.shape[1] * groups[0]
    if sizes is None or image.shape[1] != inner:
        return None
    channels = filters.shape[1] * groups[0] if transposed[0] else filters.shape[0]
    out = image.shape[0] * channels * math.prod(sizes)
    flops = _flops(image.elements if transposed[0] else out, filters)
    return Work("convolution", image.dtype, flops, image.nbytes + filters.nbytes + stored(out, image.dtype))


def convolution_gradients(given: Inputs) -> Work | None:
    """Return the work of aten::convolution_backward, None where it was not recorded which gradients were wanted.

    Examples
    --------
    >>> recorded = ("", "", "", "[0]", "[1]", "[1]", "[1]", "False", "[0]", "1", "[True, True, False]")
    >>> convolution_gradients(Inputs(((1, 5, 8), (1, 3, 8), (5, 3, 3)), ("float",) * 3, recorded))
    Work(model='convolution_backward', dtype='fp32', flops=1440, bytes=712)
    """
    gradient, image, filters = (given.tensor(i) for i in range(3))
    transposed, wanted = given.flags(7), given.flags(10) or ()
    if gradient is None or image is None or filters is None or not _fit(image, filters) or not transposed:
        return None
    count = sum(wanted[:2])  # of the image and of the filters; the bias is the third
    if not count or len(gradient.shape) != len(image.shape):
        return None
    each = _flops((image if transposed[0] else gradient).elements, filters)
    # One of the two is read to compute the gradient of the other, which has its size.
    moved = gradient.nbytes + count * (image.nbytes + filters.nbytes)
    return Work("convolution_backward", gradient.dtype, count * each, moved)


def _fit(image: Tensor, filters: Tensor) -> bool:
    """Tell whether image and filters have the type and number of dimensions of a convolution."""
    return image.dtype in (*FLOATS, "") and len(image.shape) == len(filters.shape) >= 3


def _flops(products: int, filters: Tensor) -> int:
    return 2 * products * math.prod(filters.shape[1:])


def _sizes(image: Tensor, filters: Tensor, given: Inputs, at: Places, *, transposed: bool) -> tuple[int, ...] | None:
    """Return the output's sizes without batch and channels, None where an argument is missing or does not fit."""
    count = len(image.shape) - 2
    extra = given.integers(at.output_padding) if transposed and at.output_padding is not None else (0,)
    arguments = [given.integers(at.stride), given.integers(at.padding), given.integers(at.dilation), extra]
    spread = [values * count if len(values) == 1 else values for values in arguments if values is not None]
    if len(spread) < 4 or any(len(values) != count for values in spread) or min(spread[0]) < 1:
        return None
    each = map(_Dimension, image.shape[2:], filters.shape[2:], *spread)
    sizes = tuple(dimension.size(transposed=transposed) for dimension in each)
    return sizes if min(sizes) >= 0 else None
