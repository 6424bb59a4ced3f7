"""What does a kernel's name say in plain English?

Conventions
-----------
One sentence of clauses joined by semicolons, built only from what the name states. Generic kernels
with a documented parameter list have a sentence of their own; the others are described by family,
precision, tile, split and layout.

Functions
---------
sentence   one sentence for a student

References
----------
PyTorch ``PersistentSoftmax.cuh`` (softmax_warp_forward), ``CUDALoops.cuh`` (vectorized_elementwise_kernel),
``Reduce.cuh`` (reduce_kernel), ``MultiTensorApply.cuh``; FlashAttention ``kernel_traits.h``;
NCCL ``src/device/generate.py``, function ``best_kernel``: kernels are specialised for few algorithms.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from perfkit.names.parsing import base, qualified
from perfkit.names.traits import Decoded

_WORK = {
    "gemm": "matrix multiplication (GEMM)",
    "convolution": "convolution",
    "attention": "fused attention",
    "normalisation": "normalisation",
    "softmax": "softmax",
    "elementwise": "elementwise work",
    "reduction": "reduction",
    "embedding": "embedding lookup",
    "optimizer": "optimiser step",
    "communication": "communication between GPUs",
    "copy": "data movement",
}
_DIRECTION = {
    "fprop": "forward pass of a convolution",
    "dgrad": "gradient of a convolution with respect to its input (dgrad)",
    "wgrad": "gradient of a convolution with respect to its weights (wgrad)",
    "fwd": "forward pass",
    "bwd": "backward pass",
}
_FUNCTORS = (
    (r"clamp_scalar|clamp_min", "clamp to a range (how ReLU runs)"),
    (r"threshold", "threshold (as in the backward pass of ReLU)"),
    (r"[aA]dd(?!c)", "addition"),
    (r"MulFunctor", "multiplication"),
    (r"DivFunctor", "division"),
    (r"Fill", "filling with a constant"),
    (r"copy", "copy or type conversion"),
    (r"sum_functor", "sum"),
    (r"MeanOps", "mean"),
    (r"ArgMax", "position of the maximum"),
    (r"MaxOps", "maximum"),
)
_AMD = ("MIOpen", "Composable Kernel", "AITER", "Tensile (rocBLAS, hipBLASLt)")
_OPERAND = {"n": "not transposed", "t": "transposed"}
_TRITON = {
    "poi": "pointwise work",
    "red": "a reduction in a loop",
    "per": "a reduction that keeps its row in registers (persistent)",
}
_SPECIALISED = re.compile(r"_(RING|TREE|COLLNET\w*?|NVLS\w*?)_(LL128|LL|SIMPLE)")
_REDUCES = re.compile(r"_(Sum|Prod|MinMax|Max|Min|PreMulSum|SumPostDiv)(?:_|$)")
_HEAD_DIMENSION = re.compile(r"Flash_\w+_traits<(?:\(int\))?(\d+)")


def sentence(full_name: str, said: Decoded) -> str:
    """Return one plain English sentence about the kernel, built from its name alone."""
    name = base(full_name)
    known = (d for library, pattern, d in _SPECIAL if said.library.startswith(library) and pattern.search(name))
    special = next(known, _general)
    text = special(full_name, said)
    return f"{text[0].upper()}{text[1:]}."


def _general(full_name: str, said: Decoded) -> str:
    """Describe by family: what, in which precision, on what, from where, and how it is divided."""
    if said.family not in ("gemm", "convolution"):
        return _named(full_name, said)
    work = _DIRECTION[said.operation] if said.operation in ("fprop", "dgrad", "wgrad") else _WORK[said.family]
    clauses = [work + _in_precision(said) + _on_units(said) + _origin(said)]
    if said.tile:
        clauses.append(f"each thread block computes a {said.tile} tile of the result ({_axes(said.tile)})")
    clauses += _divided(said.split)
    if said.family == "gemm" and said.layout:
        clauses.append(
            f"A is {_OPERAND[said.layout[0]]}, B is {_OPERAND[said.layout[1]]}, as column-major BLAS sees them"
        )
    elif len(said.layout) > 2:
        clauses.append(f"tensor layout {said.layout}")
    return "; ".join(clauses)


def _named(full_name: str, said: Decoded) -> str:
    """Describe by the kernel's own name, of which only the family is known."""
    kernel = f"kernel {said.name}" + (f" from {said.library}" if said.library else "")
    if said.family == "other":
        return f"{kernel}: its name follows no convention known here"
    direction = f", {_DIRECTION[said.operation]}" if said.operation in ("fwd", "bwd") else ""
    return f"{kernel}: {_WORK[said.family]}{direction}{_in_precision(said)}"


def _in_precision(said: Decoded) -> str:
    return f" in {said.precision}" if said.precision else ""


def _on_units(said: Decoded) -> str:
    matrix = "matrix cores" if said.library in _AMD else "tensor cores"
    return {True: f" on {matrix}", False: " on CUDA cores", None: ""}[said.tensor_cores]


def _origin(said: Decoded) -> str:
    source = f" from {said.library}" if said.library else ""
    generation = said.architecture if said.architecture.startswith("gfx") else said.architecture.capitalize()
    return source + (f", built for the {generation} architecture" if generation else "")


def _axes(tile: str) -> str:
    return "M x N x K step" if tile.count("x") == 2 else "M x N"


def _divided(split: str) -> list[str]:
    """Explain slice-K and split-K, which students take for one another."""
    if split.startswith("slice-K"):
        parts = split.split()[1]
        return [
            f"slice-K: inside one thread block the K loop of that tile is shared by {parts} groups of warps, "
            "it is not a partition over the GPU"
        ]
    if split.startswith("split-K across blocks") and "adding" not in split:
        return ["split-K: the K loop is divided over several thread blocks, whose results are added afterwards"]
    return []


def _split_k_reduction(full_name: str, said: Decoded) -> str:
    numbers = [arg for arg in _numbers(full_name)[:2] if arg > 1]
    text = (
        f"second half of a split-K matrix multiplication (GEMM){_in_precision(said)}{_origin(said)}: it adds the "
        "partial results of the thread blocks that divided the K loop between them"
    )
    if len(numbers) == 2:
        text += f"; {numbers[0]} and {numbers[1]} are thread and vector parameters, not a GEMM tile"
    return text


def _softmax_warp(full_name: str, said: Decoded) -> str:
    """Parameters: input, output and accumulator type, log2_elements, is_log_softmax, is_masked."""
    direction = _DIRECTION.get(said.operation, "part")
    numbers = _numbers(full_name)
    kind = "log-softmax" if numbers[1:2] == [1] else "softmax"
    text = f"{direction} of {kind}{_in_precision(said)}{_origin(said)}, each row handled within one warp"
    if numbers and numbers[0] <= 10:
        text += f"; log2_elements is {numbers[0]}: rows of up to 2^{numbers[0]} = {2 ** numbers[0]} elements"
    return text


def _elementwise(full_name: str, said: Decoded) -> str:
    text = f"{said.library} elementwise kernel: {_does(said)} on every element{_in_precision(said)}"
    numbers = _numbers(full_name)
    name = base(full_name)
    if name.startswith("vectorized_") and numbers:
        return f"{text}; vector width {numbers[0]}: one instruction loads {numbers[0]} neighbouring elements"
    if name.startswith("elementwise_kernel") and len(numbers) > 1:
        return f"{text}; {numbers[0]} threads per block, {numbers[1]} elements per thread, no vector loads"
    return f"{text}; no vector loads, because of strides or mixed types" if name.startswith("unrolled_") else text


def _reduce(full_name: str, said: Decoded) -> str:
    numbers = _numbers(full_name)
    text = f"{said.library} reduction: {_does(said)} over many elements{_in_precision(said)}"
    return text + (f"; at most {numbers[0]} threads per block" if numbers else "")


def _tensor_list(full_name: str, said: Decoded) -> str:
    applied = f" {said.operation}" if said.operation else " one operation"
    purpose = ", as a fused optimiser step does" if said.family == "optimizer" else ""
    return f"one launch{_origin(said)} that applies{applied} to a whole list of tensors{_in_precision(said)}{purpose}"


def _collective(full_name: str, said: Decoded) -> str:
    """Name the collective; the algorithm in the name is the one the kernel was specialised for."""
    name = base(full_name)[:200]
    if not said.operation:
        return "NCCL kernel for any collective: its name does not say which"
    text = f"NCCL collective {said.operation}"
    if said.operation in ("AllReduce", "Reduce", "ReduceScatter"):
        reduction = _REDUCES.search(name)
        text += (f" ({reduction.group(1).lower()})" if reduction else "") + _in_precision(said)
    special = _SPECIALISED.search(name)
    if special is None or said.operation == "SendRecv":
        return text
    return (
        f"{text}, specialised for algorithm {special.group(1)} and protocol {special.group(2)}; "
        "NCCL also runs other reductions, algorithms and protocols inside this kernel"
    )


def _triton(full_name: str, said: Decoded) -> str:
    kind = _TRITON.get(base(full_name).split("_")[1], f"a template for {_WORK[said.family]}")
    text = f"Triton kernel generated by TorchInductor: {kind}"
    if not said.operation:
        return text
    return f"{text}, fused near the operators {said.operation}; some of these may run in other kernels"


def _flash(full_name: str, said: Decoded) -> str:
    direction = _DIRECTION.get(said.operation, "part")
    text = f"{direction} of FlashAttention{_in_precision(said)}{_on_units(said)}, which never stores the score matrix"
    if head := _HEAD_DIMENSION.search(full_name[:2000]):
        text += f"; head dimension up to {head.group(1)}"
    if said.tile:
        queries, keys = said.tile.split("x")[:2]
        text += f"; each thread block works on {queries} queries by {keys} keys at a time"
    return text


def _does(said: Decoded) -> str:
    known = next((text for pattern, text in _FUNCTORS if re.search(pattern, said.operation)), "")
    return known or said.operation or "an operation its name does not say"


def _numbers(full_name: str) -> list[int]:
    """Return the integer template arguments; flags count as 0 and 1."""
    found = (re.fullmatch(r"(?:\(\w+\))?(\d{1,9}|true|false)", arg) for arg in qualified(full_name)[-1].args)
    texts = (one.group(1) for one in found if one)
    return [int(text) if text.isdecimal() else int(text == "true") for text in texts]


_Describe = Callable[[str, Decoded], str]
_SPECIAL: tuple[tuple[str, re.Pattern[str], _Describe], ...] = tuple(
    (library, re.compile(pattern), describe)
    for library, pattern, describe in (
        ("cuBLAS", r"^splitKreduce_kernel", _split_k_reduction),
        ("PyTorch", r"^softmax_warp_", _softmax_warp),
        ("PyTorch", r"elementwise_kernel", _elementwise),
        ("PyTorch", r"^reduce_kernel$", _reduce),
        ("", r"^multi_tensor_apply_kernel$", _tensor_list),
        ("NCCL", r"Kernel", _collective),
        ("Triton (TorchInductor)", r"^triton_(?:poi|red|per|tem)_", _triton),
        ("FlashAttention", r"^flash_(?:fwd|bwd)_", _flash),
    )
)
