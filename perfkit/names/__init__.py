"""What a kernel's name says: how to call it, its family, library, precision, tile, and one sentence of all that.

Names come from outside: nothing in them is executed, nothing raises on them, and the time is linear in their length.
Precision is the type of the operands, not of the accumulator; counters decide (``sm__ops_path_tensor*``).

Sources: PTX ISA, "Matrix multiply-accumulate operation using mma instruction" (cuBLAS, cuDNN and CUTLASS name it by
letter and shape: s1688 accumulates in single precision with m16n8k8); ROCm/Tensile wiki, "Kernel parameters"; PyTorch
``PersistentSoftmax.cuh`` (softmax_warp_forward), ``CUDALoops.cuh`` (vectorized_elementwise_kernel), ``Reduce.cuh``
(reduce_kernel), ``MultiTensorApply.cuh``; FlashAttention ``kernel_traits.h``; NCCL ``src/device/generate.py``,
``best_kernel``: kernels are specialised for few algorithms.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import lru_cache

import pandas as pd

from perfkit.names import families, parsing
from perfkit.names.families import FAMILIES, Decoded, family, short
from perfkit.names.parsing import base, library_of, qualified

_NAMED_PRECISION = families.compiled_rules("precisions")
_TYPE_PRECISION = {
    "double": "fp64",
    "float": "fp32",
    **dict.fromkeys(("half", "half_t", "__half", "Half"), "fp16"),
    **dict.fromkeys(
        ("BFloat16", "bfloat16_t", "__nv_bfloat16", "__hip_bfloat16", "__bfloat"), "bf16"
    ),
    **dict.fromkeys(("Float8_e4m3fn", "Float8_e5m2", "__nv_fp8_e4m3", "__nv_fp8_e5m2"), "fp8"),
}
_INTEGERS = {"long": "int64", "int": "int32"}
_TYPE = re.compile(rf"(?<![\w])(?:{'|'.join(_TYPE_PRECISION)})(?![\w])")
_INTEGER = re.compile(r"\b(?:long|int)\b")
_TENSOR = re.compile(
    r"tensorop|wmma|[hi]mma|gmma|tensor\d+x\d|[hs]\d{3,}[gcfdw]|i\d{4,}g|d884|nvjet|mfma|_MI\d+x|xdl|gtcx"
)
_CUDA_CORES = re.compile(r"simt|(?:_|^)g?[sdhcz]gemm|scudnn|convolve_sgemm|ffma")
# cuDNN's backward convolutions from before tensor cores, with the type of their operands first.
_EARLY_CUDNN = re.compile(r"\b[dw]grad(?:2d)?_(?:alg\d\w*|engine)<(?:float|double)\b")
_WORK = dict(parsing.RULES["work"])
_DIRECTION = dict(parsing.RULES["direction_words"])
_FUNCTORS = families.compiled_rules("functors")
_AMD = ("MIOpen", "Composable Kernel", "AITER", "Tensile (rocBLAS, hipBLASLt)")
_OPERAND = {"n": "not transposed", "t": "transposed"}
_TRITON = {
    "poi": "pointwise work",
    "red": "a reduction in a loop",
    "per": "a reduction that keeps its row in registers (persistent)",
}
_SPECIALISED = re.compile(r"_(RING|TREE|COLLNET\w*?|NVLS\w*?)_(LL128|LL|SIMPLE)")
_REDUCES = re.compile(r"_(Sum|Prod|MinMax|Max|Min|PreMulSum|SumPostDiv)(?:_|$)")


def _in_precision(decoded: Decoded) -> str:
    return f" in {decoded.precision}" if decoded.precision else ""


def _on_units(decoded: Decoded) -> str:
    matrix = "matrix cores" if decoded.library in _AMD else "tensor cores"
    return {True: f" on {matrix}", False: " on CUDA cores", None: ""}[decoded.tensor_cores]


def _origin(decoded: Decoded) -> str:
    source = f" from {decoded.library}" if decoded.library else ""
    generation = (
        decoded.architecture
        if decoded.architecture.startswith("gfx")
        else decoded.architecture.capitalize()
    )
    return source + (f", built for the {generation} architecture" if generation else "")


def _split_k_reduction(full_name: str, decoded: Decoded) -> str:
    numbers = [arg for arg in _numbers(full_name)[:2] if arg > 1]
    text = (
        f"second half of a split-K matrix multiplication (GEMM){_in_precision(decoded)}{_origin(decoded)}: it adds the "
        "partial results of the thread blocks that divided the K loop between them"
    )
    if len(numbers) == 2:
        text += f"; {numbers[0]} and {numbers[1]} are thread and vector parameters, not a GEMM tile"
    return text


def _softmax_warp(full_name: str, decoded: Decoded) -> str:
    """Parameters: input, output and accumulator type, log2_elements, is_log_softmax, is_masked."""
    direction = _DIRECTION.get(decoded.operation, "part")
    numbers = _numbers(full_name)
    kind = "log-softmax" if numbers[1:2] == [1] else "softmax"
    text = f"{direction} of {kind}{_in_precision(decoded)}{_origin(decoded)}, each row handled within one warp"
    if numbers and numbers[0] <= 10:
        text += f"; log2_elements is {numbers[0]}: rows of up to 2^{numbers[0]} = {2 ** numbers[0]} elements"
    return text


def _elementwise(full_name: str, decoded: Decoded) -> str:
    text = f"{decoded.library} elementwise kernel: {_does(decoded)} on every element{_in_precision(decoded)}"
    numbers = _numbers(full_name)
    name = base(full_name)
    if name.startswith("vectorized_") and numbers:
        return f"{text}; vector width {numbers[0]}: one instruction loads {numbers[0]} neighbouring elements"
    if name.startswith("elementwise_kernel") and len(numbers) > 1:
        return f"{text}; {numbers[0]} threads per block, {numbers[1]} elements per thread, no vector loads"
    return (
        f"{text}; no vector loads, because of strides or mixed types"
        if name.startswith("unrolled_")
        else text
    )


def _reduce(full_name: str, decoded: Decoded) -> str:
    numbers = _numbers(full_name)
    text = (
        f"{decoded.library} reduction: {_does(decoded)} over many elements{_in_precision(decoded)}"
    )
    return text + (f"; at most {numbers[0]} threads per block" if numbers else "")


def _tensor_list(full_name: str, decoded: Decoded) -> str:
    applied = f" {decoded.operation}" if decoded.operation else " one operation"
    purpose = ", as a fused optimiser step does" if decoded.family == "optimizer" else ""
    to_all = f"applies{applied} to a whole list of tensors{_in_precision(decoded)}{purpose}"
    return f"one launch{_origin(decoded)} that {to_all}"


def _collective(full_name: str, decoded: Decoded) -> str:
    """Name the collective; the algorithm in the name is the one the kernel was specialised for."""
    name = base(full_name)[:200]
    if not decoded.operation:
        return "NCCL kernel for any collective: its name does not say which"
    text = f"NCCL collective {decoded.operation}"
    if decoded.operation in ("AllReduce", "Reduce", "ReduceScatter"):
        reduction = _REDUCES.search(name)
        text += (f" ({reduction.group(1).lower()})" if reduction else "") + _in_precision(decoded)
    special = _SPECIALISED.search(name)
    if special is None or decoded.operation == "SendRecv":
        return text
    return (
        f"{text}, specialised for algorithm {special.group(1)} and protocol {special.group(2)}; "
        "NCCL also runs other reductions, algorithms and protocols inside this kernel"
    )


def _triton(full_name: str, decoded: Decoded) -> str:
    kind = _TRITON.get(base(full_name).split("_")[1], f"a template for {_WORK[decoded.family]}")
    text = f"Triton kernel generated by TorchInductor: {kind}"
    if not decoded.operation:
        return text
    return f"{text}, fused near the operators {decoded.operation}; some of these may run in other kernels"


def _flash(full_name: str, decoded: Decoded) -> str:
    direction = _DIRECTION.get(decoded.operation, "part")
    scope = _in_precision(decoded) + _on_units(decoded)
    text = f"{direction} of FlashAttention{scope}, which never stores the score matrix"
    if head := re.search(r"Flash_\w+_traits<(?:\(int\))?(\d+)", full_name[:2000]):
        text += f"; head dimension up to {head.group(1)}"
    if decoded.tile:
        queries, keys = decoded.tile.split("x")[:2]
        text += f"; each thread block works on {queries} queries by {keys} keys at a time"
    return text


def _does(decoded: Decoded) -> str:
    work = families.first_match(_FUNCTORS, decoded.operation)
    return work or decoded.operation or "an operation its name does not say"


def _numbers(full_name: str) -> list[int]:
    """Return the integer template arguments; flags count as 0 and 1."""
    matches = (
        re.fullmatch(r"(?:\(\w+\))?(\d{1,9}|true|false)", arg)
        for arg in qualified(full_name)[-1].args
    )
    texts = (match.group(1) for match in matches if match)
    return [int(text) if text.isdecimal() else int(text == "true") for text in texts]


_SPECIAL: tuple[tuple[str, re.Pattern[str], Callable[[str, Decoded], str]], ...] = tuple(
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
__all__ = ["FAMILIES", "Decoded", "base", "decode", "family", "short", "table"]


def precision_of(full_name: str) -> str:
    """Return the type of the operands: fp64, fp32, tf32, fp16, bf16, fp8, int8, int64, ..."""
    does, name = families.functor(full_name), base(full_name)
    if named := families.first_match(_NAMED_PRECISION, does if name in families.HOLLOW else name):
        return named
    args = ", ".join(qualified(full_name)[-1].args)[:2000]
    if "tf32" in args:
        return "tf32"
    for text in (does, args):
        if match := _TYPE.search(text):
            return _TYPE_PRECISION[match.group()]
    integer = None if "OpaqueType" in does or name in families.HOLLOW else _INTEGER.search(does)
    return _INTEGERS[integer.group()] if integer else ""


def tensor_cores(full_name: str, family: str, precision: str) -> bool | None:
    """Return whether a kernel was built for tensor cores; None when its name does not say."""
    text = families.beginning(full_name)
    if "flash::" in text or (family in ("gemm", "convolution") and _TENSOR.search(text)):
        return True
    if family not in ("gemm", "convolution"):
        return None
    if _CUDA_CORES.search(text) or _EARLY_CUDNN.search(text):
        return False
    # Only tensor cores compute in these types; xmma kernels on CUDA cores say ffma.
    narrow = ("fp16", "bf16", "int8") if "xmma" in text else ()
    return True if precision in ("tf32", "fp8", *narrow) else None


@lru_cache(maxsize=4096)
def decode(full_name: str) -> Decoded:
    """Return everything a kernel's name says: library, precision, tile, split, and a plain sentence.

    The name is a hint, written by the kernel's author; counters decide what a kernel really did. Fields of what the
    name does not say are empty, ``tensor_cores`` None.

    >>> decoded = decode("ampere_sgemm_32x32_sliced1x4_tn")
    >>> decoded.library, decoded.precision, decoded.tensor_cores, decoded.tile, decoded.layout, decoded.split
    ('cuBLAS', 'fp32', False, '32x32', 'tn', 'slice-K 4 within the block')
    """
    kind = family(full_name)
    precision = precision_of(full_name)
    decoded = Decoded(
        name=short(full_name),
        family=kind,
        library=library_of(full_name),
        architecture=families.architecture(full_name),
        precision=precision,
        tensor_cores=tensor_cores(full_name, kind, precision),
        tile=families.tile(full_name, kind),
        layout=families.layout(full_name, kind),
        split=families.split(full_name),
        operation=families.operation(full_name),
    )
    return replace(decoded, sentence=sentence(full_name, decoded))


def table(full_names: Iterable[str]) -> pd.DataFrame:
    """Return full_name, name and family (strings, never missing) of each distinct kernel name, in order of occurrence.

    Every name is read once, however often it occurs: give it the categories of a column. There may be none.

    >>> table(["volta_sgemm_64x64_nn", "volta_sgemm_64x64_nn"]).to_dict("records")
    [{'full_name': 'volta_sgemm_64x64_nn', 'name': 'volta_sgemm_64x64_nn', 'family': 'gemm'}]
    """
    distinct = list(dict.fromkeys(full_names))
    columns = {"full_name": distinct, "name": map(short, distinct), "family": map(family, distinct)}
    return pd.DataFrame(
        {name: pd.array(list(values), dtype="string") for name, values in columns.items()}
    )


def sentence(full_name: str, decoded: Decoded) -> str:
    """Return one plain English sentence about the kernel, built from its name alone."""
    name = base(full_name)
    special = (
        d
        for library, pattern, d in _SPECIAL
        if decoded.library.startswith(library) and pattern.search(name)
    )
    text = next(special, _general)(full_name, decoded)
    return f"{text[0].upper()}{text[1:]}."


def _general(full_name: str, decoded: Decoded) -> str:
    """Describe by family: what, in which precision, on what, from where, and how it is divided."""
    if decoded.family not in ("gemm", "convolution"):
        # Describe by the kernel's own name, of which only the family is known.
        kernel = f"kernel {decoded.name}" + (f" from {decoded.library}" if decoded.library else "")
        if decoded.family == "other":
            return f"{kernel}: its name follows no convention known here"
        direction = (
            f", {_DIRECTION[decoded.operation]}" if decoded.operation in ("fwd", "bwd") else ""
        )
        return f"{kernel}: {_WORK[decoded.family]}{direction}{_in_precision(decoded)}"
    work = (
        _DIRECTION[decoded.operation]
        if decoded.operation in ("fprop", "dgrad", "wgrad")
        else _WORK[decoded.family]
    )
    clauses = [work + _in_precision(decoded) + _on_units(decoded) + _origin(decoded)]
    if decoded.tile:
        axes = "M x N x K step" if decoded.tile.count("x") == 2 else "M x N"
        clauses.append(f"each thread block computes a {decoded.tile} tile of the result ({axes})")
    clauses += _divided(decoded.split)
    if decoded.family == "gemm" and decoded.layout:
        clauses.append(
            f"A is {_OPERAND[decoded.layout[0]]}, B is {_OPERAND[decoded.layout[1]]}, as column-major BLAS sees them"
        )
    elif len(decoded.layout) > 2:
        clauses.append(f"tensor layout {decoded.layout}")
    return "; ".join(clauses)


def _divided(split: str) -> list[str]:
    """Explain slice-K and split-K, which students take for one another."""
    if split.startswith("slice-K"):
        parts = split.split()[1]
        return [
            f"slice-K: inside one thread block the K loop of that tile is shared by {parts} groups of warps, "
            "it is not a partition over the GPU"
        ]
    if split.startswith("split-K across blocks") and "adding" not in split:
        return [
            "split-K: the K loop is divided over several thread blocks, whose results are added afterwards"
        ]
    return []
