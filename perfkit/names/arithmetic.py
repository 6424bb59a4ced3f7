"""In which precision does a kernel compute, and on which units?

Conventions
-----------
Precision is the type of the operands, not of the accumulator. Both answers are hints: counters
decide (``sm__ops_path_tensor*`` for tensor cores).

Functions
---------
precision      type of the operands
tensor_cores   whether it was built for tensor cores

References
----------
cuBLAS, cuDNN and CUTLASS name matrix instructions by letter and shape: s1688 accumulates in single
precision with m16n8k8 (PTX ISA, "Matrix multiply-accumulate operation using mma instruction").
Tensile's type letters: ROCm/Tensile wiki, "Kernel parameters".
"""

from __future__ import annotations

import re

from perfkit.names.parsing import base, qualified
from perfkit.names.shortening import HOLLOW, functor
from perfkit.names.traits import beginning, first, rules

# Of several types a name lists, the operands' decides: tf32 beside f32, bf16 beside f32 accumulators.
_NAMED_PRECISION = rules(
    ("fp8", r"e4m3|e5m2|E4m3|E5m2|fp8|FP8|hfp8"),
    ("bf16", r"bf16|bfloat16|Bfloat16|BFloat16|nvjet_(?:sm\d+_)?ts|^Cijk_\w{4}_\w{4}_B"),
    ("tf32", r"tf32"),
    ("fp16", r"fp16|(?<![bt])f16|[hH]alf|(?:_|^)h\d*gemm|h\d{3,}cudnn|s884|nvjet_(?:sm\d+_)?hs|^Cijk_\w{4}_\w{4}_H"),
    ("int8", r"int8|imma|i8816|i16832|i8i8|(?:volta|turing|ampere|hopper)_igemm|^Cijk_\w{4}_\w{4}_I8"),
    ("complex fp64", r"zgemm"),
    ("complex fp32", r"cgemm"),
    ("fp64", r"fp64|(?:_|^)f64|(?:_|^)d\d*gemm|double|^Cijk_\w{4}_\w{4}_D"),
    ("tf32", r"s1688|s1684"),
    ("fp32", r"(?:_|^)sgemm|scudnn|fp32|f32|_float$|convolve_sgemm|^Cijk_\w{4}_\w{4}_S"),
)
_TYPE_PRECISION = {
    "double": "fp64",
    "float": "fp32",
    "half": "fp16",
    "half_t": "fp16",
    "__half": "fp16",
    "Half": "fp16",
    "BFloat16": "bf16",
    "bfloat16_t": "bf16",
    "__nv_bfloat16": "bf16",
    "__hip_bfloat16": "bf16",
    "__bfloat": "bf16",
    "Float8_e4m3fn": "fp8",
    "Float8_e5m2": "fp8",
    "__nv_fp8_e4m3": "fp8",
    "__nv_fp8_e5m2": "fp8",
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


def precision(full_name: str) -> str:
    """Return the type of the operands: fp64, fp32, tf32, fp16, bf16, fp8, int8, int64, ..."""
    does, name = functor(full_name), base(full_name)
    if named := first(_NAMED_PRECISION, does if name in HOLLOW else name):
        return named
    args = ", ".join(qualified(full_name)[-1].args)[:2000]
    if "tf32" in args:
        return "tf32"
    for text in (does, args):
        if found := _TYPE.search(text):
            return _TYPE_PRECISION[found.group()]
    integer = None if "OpaqueType" in does or name in HOLLOW else _INTEGER.search(does)
    return _INTEGERS[integer.group()] if integer else ""


def tensor_cores(full_name: str, family: str, precision: str) -> bool | None:
    """Return whether a kernel was built for tensor cores; None when its name does not say."""
    text = beginning(full_name)
    if "flash::" in text or (family in ("gemm", "convolution") and _TENSOR.search(text)):
        return True
    if family not in ("gemm", "convolution"):
        return None
    if _CUDA_CORES.search(text) or _EARLY_CUDNN.search(text):
        return False
    # Only tensor cores compute in these types; xmma kernels on CUDA cores say ffma.
    narrow = ("fp16", "bf16", "int8") if "xmma" in text else ()
    return True if precision in ("tf32", "fp8", *narrow) else None
