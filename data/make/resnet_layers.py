"""Which layers does ResNet-18 have, and how large are they?

Conventions
-----------
The network of He et al., table 1, on square images of 224 pixels. Sizes are per image, in elements; a convolution's
side is that of its output. The first convolution's input, the image, needs no gradient.

Data
----
STEM, BLOCKS     the first convolution; the eight residual blocks
CONVOLUTIONS     all 20 convolutions, in forward order
PARAMETERS       number of the network's parameters

References
----------
He et al.: Deep Residual Learning for Image Recognition, arXiv 1512.03385, table 1.
"""

from __future__ import annotations

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
