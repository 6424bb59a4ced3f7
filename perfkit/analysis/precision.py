"""In which number formats does the matrix work run, on tensor cores or not: is mixed precision active?

Conventions
-----------
Matrix work is the kernels of the families gemm, convolution and attention. The number format is that of their operands:
as the kernel's name says (`perfkit.names.decode`), else as the types of the launching operator's inputs say, else
unknown. Float32 operands may run as TF32, which only a name can say. TF32 is float32 in memory that tensor cores
round: it is no mixed precision. Names and types are hints; counters decide.

References
----------
PyTorch, "Automatic Mixed Precision package" (which operators autocast to float16 or bfloat16); "Numerical accuracy",
TensorFloat-32.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd

from perfkit.analysis.grouping import grouped, numbered, ranked
from perfkit.analysis.intervals import Int, Window, cut
from perfkit.analysis.operators.totals import launching, parents
from perfkit.names.decoding import decode
from perfkit.names.families import Decoded
from perfkit.schema import Column, Table
from perfkit.tables import API_CALLS, KERNELS, OPS

FAMILIES = ("gemm", "convolution", "attention")
FORMATS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "unknown")
REDUCED = ("fp16", "bf16", "fp8", "int8")
ANSWERS = ("yes", "no", "unknown")
SOURCES = ("name", "operands", "none")
# How Kineto writes the element types of inputs ("Input type").
_TYPES = {"double": "fp64", "float": "fp32", "c10::Half": "fp16", "c10::BFloat16": "bf16", "signed char": "int8"}
_QUOTED = re.compile(r'"([^"]*)"')

SHARES = Table(
    "SHARES",
    "matrix work of one family in one number format",
    (
        Column("family", "category", "gemm, convolution or attention"),
        Column("format", "category", "number format of the operands, one of FORMATS"),
        Column("tensor_cores", "category", "yes, no or unknown, as the kernels' names say"),
        Column("source", "category", "what says the format: name (of the kernel), operands (of the operator) or none"),
        Column("count", "int64", "kernels"),
        Column("total_ns", "int64", "time of these kernels, ns"),
        Column("share_frac", "float64", "total_ns over the time of all matrix work; NaN where that is 0"),
    ),
    (),
)


def shares(
    ops: pd.DataFrame, kernels: pd.DataFrame, api_calls: pd.DataFrame, *, window: Window | None = None
) -> pd.DataFrame:
    """Return how much of the time of GEMMs, convolutions and attention ran in which number format: table `SHARES`.

    The rows are by falling total_ns. `ops` and `api_calls`, of the same execution, tell the operands. With a window
    kernels count with the part inside.
    """
    matrix = kernels[KERNELS.check(kernels)["family"].isin(FAMILIES)].reset_index(drop=True)
    _, op = launching(OPS.check(ops), parents(ops), matrix, API_CALLS.check(api_calls))
    inside = cut(matrix.assign(**_formats(matrix["full_name"], ops["dtypes"], op)), window)
    keys = ["family", "format", "tensor_cores", "source"]
    table, group = numbered(inside, keys)
    figures = grouped(inside["dur_ns"].to_numpy(), group, len(table))
    table["count"], table["total_ns"] = figures["count"], figures["total"]
    table["share_frac"] = table["total_ns"] / (table["total_ns"].sum() or np.nan)
    return SHARES.make(ranked(table, "total_ns", keys))


def _formats(full_name: pd.Series, dtypes: pd.Series, op: Int) -> dict[str, pd.Categorical[str]]:
    """Return format, tensor cores and source of each kernel."""
    decoded = [decode(str(name)) for name in full_name.cat.categories]
    kernel = full_name.cat.codes.to_numpy()
    by_name = np.array([_named(name) for name in decoded] or [-1])[kernel]
    on_tensor = np.array([{True: 0, False: 1, None: 2}[name.tensor_cores] for name in decoded] or [2])[kernel]
    operands = np.array([*(_operands(str(types)) for types in dtypes.cat.categories), -1])
    by_operands = operands[np.append(dtypes.cat.codes.to_numpy(), -1)[op]]
    source = np.select([by_name >= 0, by_operands >= 0], [0, 1], 2)
    number = np.select([by_name >= 0, by_operands >= 0], [by_name, by_operands], FORMATS.index("unknown"))
    return {
        "format": pd.Categorical.from_codes(number, pd.Index(FORMATS)),
        "tensor_cores": pd.Categorical.from_codes(on_tensor, pd.Index(ANSWERS)),
        "source": pd.Categorical.from_codes(source, pd.Index(SOURCES)),
    }


def _named(kernel: Decoded) -> int:
    """Return the format that a kernel's name says, complex numbers as their parts, -1 if none."""
    number = kernel.precision.removeprefix("complex ")
    return FORMATS.index(number) if number in FORMATS[:-1] else -1


def _operands(dtypes: str) -> int:
    """Return the format of the first input that has one, -1 if none has."""
    names = _QUOTED.findall(dtypes)
    formats = (_TYPES.get(name, "fp8" if name.startswith("c10::Float8") else "") for name in names)
    return next((FORMATS.index(number) for number in formats if number), -1)


@dataclass(frozen=True)
class Mixed:
    """Whether most matrix work runs in 8 or 16 bits: yes, no, or None where what is unknown would decide.

    `reduced_frac` is the share of it in 8 or 16 bits, `unknown_frac` that in an unknown format, both of the `total_ns`
    that GEMMs, convolutions and attention took; NaN where that is 0.
    """

    active: bool | None
    reduced_frac: float
    unknown_frac: float
    total_ns: int


def mixed(shares: pd.DataFrame) -> Mixed:
    """Return whether mixed precision is active: at least half of the matrix work's time in fp16, bf16, fp8 or int8.

    `active` is None where there is no matrix work, or so much of unknown format that it would decide.
    """
    time = SHARES.check(shares).groupby("format", observed=False)["total_ns"].sum()
    total = int(time.sum())
    if not total:
        return Mixed(None, np.nan, np.nan, 0)
    reduced, unknown = (int(time.reindex(formats).fillna(0).sum()) for formats in (REDUCED, ["unknown"]))
    active = True if 2 * reduced >= total else False if 2 * (reduced + unknown) < total else None
    return Mixed(active, reduced / total, unknown / total, total)
