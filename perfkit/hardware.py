"""What a GPU can do at most: dense peaks per precision, memory bandwidth, power and limits per multiprocessor.

Peaks are dense (never the figure with 2:4 sparsity), at boost clock, tensor cores with FP32 accumulation, per device as
the tools see it. They stand in gpus.csv, in the units of data sheets, each row with its source and date; an empty cell
is not known and is never guessed. A GPU is found by the exact name a tool reports: no match means no peaks, never those
of another GPU.

>>> a100 = peaks("NVIDIA A100 80GB PCIe")
>>> a100.flops("fp32") / 1e12, round(a100.ridge("fp32"), 2)
(19.5, 10.08)
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from perfkit.errors import PerfkitError, ReadError

# Precision and the column of the CSV that holds its dense peak in TFLOP/s (TOP/s for integers).
PRECISIONS = {
    "fp64": "fp64_tflops",
    "fp32": "fp32_tflops",
    "fp16": "fp16_nontensor_tflops",
    "fp64_tensor": "fp64_tensor_tflops",
    "tf32_tensor": "tf32_tflops",
    "fp16_tensor": "fp16_tensor_tflops",
    "bf16_tensor": "bf16_tensor_tflops",
    "fp8_tensor": "fp8_tensor_tflops",
    "int8_tensor": "int8_tops",
    "int4_tensor": "int4_tops",
    "fp4_tensor": "fp4_tflops",
}
_NAME, _BANDWIDTH = "name_nvidia_smi", "mem_bw_gbs"
_LIMITS = ("sm_count", "max_warps_sm", "max_regs_sm")
_NUMBERS = (_BANDWIDTH, "tdp_w", "boost_mhz", "mem_gb", "l2_mb", "nvlink_gbs_bidir", "max_smem_sm_kib")
_TEXTS = ("key", "arch", "compute_capability", "confidence", "sparsity_note", "source", "as_of")
COLUMNS = (_NAME, *PRECISIONS.values(), *_NUMBERS, *_LIMITS, *_TEXTS)


@dataclass(frozen=True)
class Peaks:
    """Peaks of one GPU; None, or a precision that is absent, is not known.

    `flops_per_s` maps a precision to dense FLOP/s (OP/s for integers); `memory_bytes_per_s` and `tdp_w` are
    the data sheet's; `source` and `as_of` say where they come from and when that was read.
    """

    name: str
    flops_per_s: Mapping[str, float]
    memory_bytes_per_s: float | None = None
    key: str = ""
    compute_capability: str = ""
    clock_hz: float | None = None
    tdp_w: float | None = None
    sm_count: int | None = None
    max_warps_sm: int | None = None
    max_regs_sm: int | None = None
    max_smem_sm_bytes: int | None = None
    note: str = ""
    source: str = ""
    as_of: str = ""

    def flops(self, precision: str) -> float:
        """Return the dense peak of `precision`, FLOP/s; PerfkitError if it is not known."""
        if precision not in PRECISIONS:
            raise ValueError(f"precision: {precision!r} is not one of {list(PRECISIONS)}")
        if precision not in self.flops_per_s:
            raise self._unknown(precision, PRECISIONS[precision])
        return self.flops_per_s[precision]

    def bandwidth(self) -> float:
        """Return the peak memory bandwidth, bytes/s; PerfkitError if it is not known."""
        if self.memory_bytes_per_s is None:
            raise self._unknown("memory bandwidth", _BANDWIDTH)
        return self.memory_bytes_per_s

    def ridge(self, precision: str) -> float:
        """Return the arithmetic intensity, FLOP/byte, from which on `precision` and not memory is the roof.

        Williams, Waterman, Patterson: Roofline, Communications of the ACM 52(4), 2009.
        """
        return self.flops(precision) / self.bandwidth()

    def _unknown(self, what: str, column: str) -> PerfkitError:
        return PerfkitError(
            f"peaks of {self.name}: {what} is not known. Pass a CSV of your own with column {column!r}."
        )


def peaks(name: str, *, table: Iterable[Peaks] | None = None) -> Peaks | None:
    """Return the peaks of the GPU called `name`, or None if it is not in the table.

    Parameters
    ----------
    name
        As nvidia-smi, nsys, ncu or torch print it, or a row's key; upper and lower case are the same, and so are
        names with the maker before them and, as drivers before 2021 print them, without.
    table
        Rows to look in, such as those of `load_peaks`; those of perfkit when omitted.

    Examples
    --------
    >>> peaks("nvidia h100 80gb hbm3").key, peaks("NVIDIA A10G")
    ('h100-sxm5-80', None)
    """
    rows = _own() if table is None else tuple(table)
    wanted = _bare(name)
    named = [row for row in rows if _bare(row.name) == wanted]
    keyed = [row for row in rows if row.key and row.key.casefold() == wanted]
    return next(iter(named + keyed), None)


def _bare(name: str) -> str:
    return name.strip().casefold().removeprefix("nvidia ")


def load_peaks(path: str | Path) -> tuple[Peaks, ...]:
    """Read peaks from a CSV file with the columns of perfkit's own gpus.csv, of which most may be left out.

    Parameters
    ----------
    path
        CSV, UTF-8. Column name_nvidia_smi is required; peaks are dense, in TFLOP/s (fp32_tflops, ...), bandwidth
        in GB/s (mem_bw_gbs), 1e9 bytes/s. Without a column source the file itself is the source.

    Returns
    -------
    tuple of Peaks
        In the order of the file. A file that cannot be read as such is a ReadError that lists all that is wrong.
    """
    path = Path(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            lines = [(reader.line_num, row) for row in reader]
            columns = list(reader.fieldnames or [])
    except (OSError, UnicodeDecodeError, csv.Error) as e:
        raise ReadError(f"{path}: cannot be read as CSV: {e}. Give a UTF-8 file with a header line.") from e
    problems = _header(columns) or [problem for line, row in lines for problem in _row(line, row)]
    problems = problems or _twice([row[_NAME] for _, row in lines])
    if problems:
        raise ReadError("\n  - ".join([f"{path}: does not hold peaks of GPUs. Correct these:", *problems]))
    return tuple(_peaks({**dict.fromkeys(COLUMNS, ""), "source": str(path), **row}) for _, row in lines)


@cache
def _own() -> tuple[Peaks, ...]:
    return load_peaks(Path(__file__).with_name("gpus.csv"))


def _header(columns: list[str]) -> list[str]:
    problems = [f"column {c!r} is not one of {list(COLUMNS)}" for c in columns if c not in COLUMNS]
    problems += [f"column {c!r} is there more than once" for c in sorted({c for c in columns if columns.count(c) > 1})]
    return problems + ([] if _NAME in columns else [f"column {_NAME!r} is missing"])


def _row(line: int, row: dict[str, str]) -> list[str]:
    """Return what is wrong with a row: its number of cells, its name, or a cell that is no positive number."""
    if None in row or None in row.values():
        return [f"line {line} has not as many cells as the header"]
    texts = {_NAME, *_TEXTS}
    problems = [
        f"line {line}: {column} {cell!r} is not a {'whole ' if column in _LIMITS else ''}number above 0"
        for column, cell in row.items()
        if column not in texts and cell.strip() and not _positive(cell, whole=column in _LIMITS)
    ]
    return problems + ([] if row[_NAME].strip() else [f"line {line} names no GPU"])


def _positive(cell: str, *, whole: bool) -> bool:
    try:
        value = float(cell)
    except ValueError:
        return False
    return 0 < value < math.inf and (value.is_integer() or not whole)


def _twice(names: list[str]) -> list[str]:
    folded = [name.strip().casefold() for name in names]
    return [f"GPU {name!r} is there more than once" for name in sorted({n for n in folded if folded.count(n) > 1})]


def _peaks(row: dict[str, str]) -> Peaks:
    def scaled(column: str, by: float) -> float | None:
        return float(row[column]) * by if row[column].strip() else None

    def count(column: str, by: int = 1) -> int | None:
        return int(float(row[column]) * by) if row[column].strip() else None

    flops = {precision: scaled(column, 1e12) for precision, column in PRECISIONS.items()}
    return Peaks(
        name=row[_NAME].strip(),
        flops_per_s=MappingProxyType({precision: value for precision, value in flops.items() if value is not None}),
        memory_bytes_per_s=scaled(_BANDWIDTH, 1e9),
        key=row["key"].strip(),
        compute_capability=row["compute_capability"],
        clock_hz=scaled("boost_mhz", 1e6),
        tdp_w=scaled("tdp_w", 1),
        sm_count=count("sm_count"),
        max_warps_sm=count("max_warps_sm"),
        max_regs_sm=count("max_regs_sm"),
        max_smem_sm_bytes=count("max_smem_sm_kib", 1024),
        note=row["sparsity_note"],
        source=row["source"],
        as_of=row["as_of"],
    )
