"""Which properties of a kernel does its name state?

Conventions
-----------
A property the name does not state is the empty string. Names are the libraries' own and documented
by NVIDIA and AMD only in part, so a property is a hint.

Functions
---------
Decoded        what a name says
architecture   GPU generation the kernel was built for
tile           part of the result one thread block computes, M x N or M x N x K
layout         operand layouts of a GEMM or tensor layout of a convolution
split          how the K loop is divided
operation      collective, direction or functor
rules, first, beginning   how the modules of this package look properties up

References
----------
CUTLASS documentation, "CUTLASS Profiler" (kernel names: tile M x N, then K x stages, layout, alignment).
Tensile: ROCm/Tensile wiki, "Kernel parameters" (index letters, data types, MT = macro tile).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from perfkit.names.parsing import base, canonical
from perfkit.names.shortening import functor

_REACH = 2000
Rules = tuple[tuple[str, re.Pattern[str]], ...]


def rules(*pairs: tuple[str, str]) -> Rules:
    """Return (value, pattern) pairs, tried in their order, with the patterns compiled."""
    return tuple((value, re.compile(pattern)) for value, pattern in pairs)


# Compute capabilities of the generations, CUDA C++ Programming Guide.
_GENERATIONS = rules(
    ("kepler", r"3\d"),
    ("maxwell", r"5\d"),
    ("pascal", r"6\d"),
    ("volta", r"7[02]"),
    ("turing", r"75"),
    ("ampere", r"8[067]"),
    ("ada", r"89"),
    ("hopper", r"90"),
    ("blackwell", r"1[012]\d"),
)
_NAMED_GENERATION = re.compile(
    r"(?:^|[_<:\s])(kepler|maxwell|pascal|volta|turing|ampere|hopper|blackwell)_", re.IGNORECASE
)
_CAPABILITY = re.compile(r"(?:sm_?|cutlass_)(\d{2,3})(?!\d)", re.IGNORECASE)
_AMD_TARGET = re.compile(r"_ISA(\d\w\w)_")

_TILE = tuple(
    re.compile(pattern)
    for pattern in (
        r"tilesize(\d+)x(\d+)x(\d+)",
        r"_MT(\d+)x(\d+)x(\d+)_",
        r"_bt(\d+)x(\d+)x(\d+)_",
        r"_t(\d+)x(\d+)x(\d+)",
        r"Cta_tile<[\w:]*, ?(?:\(int\))?(\d+), ?(?:\(int\))?(\d+), ?(?:\(int\))?(\d+)",
        r"_(\d+)x(\d+)x(\d+)x\d+(?=_|$)",
        r"_(\d+)x(\d+)_\w*stages_(\d+)x\d+",
        r"_(\d+)x(\d+)_(\d+)x\d+(?=_)",
        r"_(\d+)x(\d+)(?=_|$)",
    )
)
_FLASH_TILE = re.compile(r"Flash_\w+_traits<(?:\(int\))?\d+, ?(?:\(int\))?(\d+), ?(?:\(int\))?(\d+)")

_TENSOR_LAYOUT = re.compile(r"_(nhwckrsc_n(?:hwc|chw)|nhwc|nchw)(?=[_>]|$)")
_OPERAND_LAYOUT = re.compile(r"_(nn|nt|tn|tt|NN|NT|TN|TT)(?=[_>]|$)|^nvjet_\w+_([NT]{2})[NT]$")
# In Tensile's C_ijk = A_? * B_? the summation index l comes first where the operand is transposed (A) or not (B).
_TENSILE_LAYOUT = {"Ailk_Bljk": "nn", "Ailk_Bjlk": "nt", "Alik_Bljk": "tn", "Alik_Bjlk": "tt"}
_TENSILE = re.compile(r"^Cijk_(\w{4}_\w{4})_")

_SLICED = re.compile(r"sliced(\d{1,3})x(\d{1,3})")
_SPLIT = rules(
    ("split-K across blocks, adding the parts", r"splitKreduce|ReduceSplitK"),
    ("split-K across blocks", r"split_?[kK](?![vV])|SplitK|segment_k_on"),
    ("split-KV across blocks", r"split_?[kK][vV]"),
    ("stream-K across blocks", r"[sS]tream_?[kK]"),
)

_DIRECTION = rules(
    ("wgrad", r"wgrad|Wgrad|_wrw_|bwd_weight"),
    ("dgrad", r"dgrad|Dgrad|igemm_bwd|bwd_data"),
    ("fprop", r"fprop|igemm_fwd|conv_fwd|winogradForward|(?:im|ex)plicit_convolve_sgemm"),
    ("bwd", r"_bwd|_bw_|[bB]ackward|Bwd"),
    ("fwd", r"_fwd|_fw_|[fF]orward|Fwd"),
)
_COLLECTIVE = re.compile(r"^[nr]ccl(?:Dev)?Kernel_(?!Generic)([A-Z][A-Za-z]+)")
_FUNCTOR = re.compile(r"^(?!cutlass_|cublas)([\w:]+)")
_FUSED = re.compile(r"^triton_[a-z]+_fused_(\w+)")


@dataclass(frozen=True)
class Decoded:
    """What a kernel's name says; the empty string (None for `tensor_cores`) where it says nothing.

    ``name`` is `perfkit.names.short`, ``family`` one of FAMILIES. ``library`` made it, for GPUs of
    ``architecture`` (not necessarily the one it ran on). ``precision`` is the operands' type;
    ``tensor_cores`` counts AMD's matrix cores too. ``tile`` is M x N or M x N x K per thread block.
    ``layout`` is nn, nt, tn, tt (op of A and B, column-major) or a tensor layout. ``split`` tells
    slice-K within a block from split-K across blocks. ``operation`` is a collective,
    fprop/dgrad/wgrad, fwd/bwd, fused operators or a functor.
    """

    name: str
    family: str
    library: str
    architecture: str
    precision: str
    tensor_cores: bool | None
    tile: str
    layout: str
    split: str
    operation: str
    sentence: str = ""


def architecture(full_name: str) -> str:
    """Return the GPU generation a kernel was built for, which need not be the one it ran on."""
    text = beginning(full_name)
    if named := _NAMED_GENERATION.search(text):
        return named.group(1).lower()
    if capability := _CAPABILITY.search(text):
        number = capability.group(1)
        return next((name for name, pattern in _GENERATIONS if pattern.fullmatch(number)), "")
    target = _AMD_TARGET.search(text)
    return f"gfx{target.group(1).lower()}" if target else ""


def tile(full_name: str, family: str) -> str:
    """Return the part of the result one thread block computes: MxN, or MxNxK where the name says K."""
    text = beginning(full_name)
    if family == "attention":
        patterns: tuple[re.Pattern[str], ...] = (_FLASH_TILE,)
    else:
        patterns = _TILE if family in ("gemm", "convolution") else ()
    found = next((found for pattern in patterns if (found := pattern.search(text))), None)
    return "x".join(found.groups()) if found else ""


def layout(full_name: str, family: str) -> str:
    """Return nn, nt, tn or tt (op of A, op of B, column-major) of a GEMM, or the tensor layout of a convolution."""
    text = beginning(full_name)
    if tensile := _TENSILE.search(text):
        return _TENSILE_LAYOUT.get(tensile.group(1), "")
    patterns = {"gemm": (_OPERAND_LAYOUT,), "convolution": (_TENSOR_LAYOUT, _OPERAND_LAYOUT)}.get(family, ())
    found = next((found for pattern in patterns if (found := pattern.search(text))), None)
    return (next(filter(None, found.groups()))).lower() if found else ""


def split(full_name: str) -> str:
    """Return how the K loop is divided: within the block (slice-K) or across blocks (split-K)."""
    text = beginning(full_name)
    if sliced := _SLICED.search(text):
        return f"slice-K {int(sliced.group(1)) * int(sliced.group(2))} within the block"
    return first(_SPLIT, text)


def operation(full_name: str) -> str:
    """Return the collective, the direction of a convolution or pass, the fused operators, or the functor."""
    name = base(full_name)
    does = functor(full_name)
    sources: tuple[Callable[[], str], ...] = (
        lambda: _group(_COLLECTIVE, name),
        lambda: _group(_FUSED, name).rstrip("0123456789").strip("_"),
        lambda: first(_DIRECTION, f"{name} {does}" if "elementwise" not in name else ""),
        lambda: _group(_FUNCTOR, does),
    )
    return next((value for source in sources if (value := source())), "")


def beginning(full_name: str) -> str:
    """Return as much of the name as states properties: its beginning, which holds the outer arguments."""
    return canonical(full_name[:_REACH])


def first(ordered: Rules, text: str) -> str:
    """Return the value of the first pattern found in `text`, or the empty string."""
    return next((value for value, pattern in ordered if pattern.search(text)), "")


def _group(pattern: re.Pattern[str], text: str) -> str:
    found = pattern.search(text)
    return found.group(1) if found else ""
