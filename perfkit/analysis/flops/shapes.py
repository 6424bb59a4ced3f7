"""What did an operator get: shapes and types of its tensors, and its other arguments, from a trace's text?

The text is what the profiler wrote: JSON lists with an entry per argument. A tensor is a list of its sizes; an argument
that is no tensor has an empty list, as a tensor without dimensions has. Lists of tensors are not read. Other arguments
stand as text in a list of their own, such as "[2, 2]" and "True". Everything is checked: what does not look like this
is not recorded.
"""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass

# Type as C++ spells it, its usual name, and bytes per element.
TYPES = {
    "double": ("fp64", 8),
    "float": ("fp32", 4),
    "c10::Half": ("fp16", 2),
    "c10::BFloat16": ("bf16", 2),
    "c10::Float8_e4m3fn": ("fp8", 1),
    "c10::Float8_e4m3fnuz": ("fp8", 1),
    "c10::Float8_e5m2": ("fp8", 1),
    "c10::Float8_e5m2fnuz": ("fp8", 1),
    "c10::complex<float>": ("complex64", 8),
    "c10::complex<double>": ("complex128", 16),
    "long": ("int64", 8),
    "long int": ("int64", 8),
    "int": ("int32", 4),
    "short": ("int16", 2),
    "short int": ("int16", 2),
    "signed char": ("int8", 1),
    "unsigned char": ("uint8", 1),
    "bool": ("bool", 1),
}
FLOATS = ("fp64", "fp32", "fp16", "bf16", "fp8")
LONGEST = 20_000  # characters; the profiler cuts lists far shorter than this
LARGEST = 1 << 53  # elements: more than any memory holds, and exact as a float64

_SIZES = dict(TYPES.values())
_WHOLE = r"-?\d{1,15}"
_INTEGERS = re.compile(rf"\[?({_WHOLE}(?:, ?{_WHOLE})*)\]?")
_FLAGS = re.compile(r"\[?((?:True|False)(?:, ?(?:True|False))*)\]?")


@dataclass(frozen=True)
class Tensor:
    """Sizes of a tensor and the name of its type: the text as recorded where it is unknown, empty where none was."""

    shape: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> float:
        """Bytes of all elements, NaN where the type is not known."""
        return stored(self.elements, self.dtype)


@dataclass(frozen=True)
class Inputs:
    """Arguments of an operator; `concrete` is None where the profiler did not record what is no tensor."""

    shapes: tuple[tuple[int, ...] | None, ...]
    dtypes: tuple[str, ...]
    concrete: tuple[str, ...] | None = None

    def tensor(self, position: int) -> Tensor | None:
        """Return the tensor at a position, None where there is none or it has too many elements to be one."""
        shape = self.shapes[position] if position < len(self.shapes) else None
        dtype = self.dtypes[position] if position < len(self.dtypes) else ""
        if shape is None or (not shape and dtype not in TYPES) or math.prod(shape) > LARGEST:
            return None
        return Tensor(shape, TYPES[dtype][0] if dtype in TYPES else dtype)

    def text(self, position: int) -> str | None:
        """Return the argument at a position as it was written, None where it was not."""
        return self.concrete[position] if self.concrete and position < len(self.concrete) else None

    def integers(self, position: int) -> tuple[int, ...] | None:
        """Return a whole number, or a list of them, None where it is not one."""
        found = _INTEGERS.fullmatch(self.text(position) or "")
        return tuple(int(part) for part in found[1].split(",")) if found else None

    def flags(self, position: int) -> tuple[bool, ...] | None:
        """Return a truth value, or a list of them, None where it is not one."""
        found = _FLAGS.fullmatch(self.text(position) or "")
        return tuple(part.strip() == "True" for part in found[1].split(",")) if found else None


def stored(elements: int, dtype: str) -> float:
    """Return the bytes of so many elements of a type, NaN where the type is not known."""
    return elements * _SIZES[dtype] if dtype in _SIZES else math.nan


def parsed(shapes: object, dtypes: object = None, concrete: object = None) -> Inputs | None:
    """Return the arguments of an operator, None where the shapes were not recorded or are not a list.

    The texts are "Input Dims", "Input type" and "Concrete Inputs" as recorded; anything else is not recorded.
    """
    sizes = _listed(shapes)
    if sizes is None:
        return None
    return Inputs(
        tuple(_shape(size) for size in sizes),
        tuple(dtype if isinstance(dtype, str) else "" for dtype in _listed(dtypes) or ()),
        tuple(text if isinstance(text, str) else "" for text in _listed(concrete) or ()) or None,
    )


def _listed(text: object) -> list[object] | None:
    """Return what a JSON list holds, None for anything else."""
    if not isinstance(text, str) or len(text) > LONGEST:
        return None
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, list) else None


def _shape(sizes: object) -> tuple[int, ...] | None:
    if not isinstance(sizes, list) or not all(type(size) is int and size >= 0 for size in sizes):
        return None
    return tuple(sizes)
