"""What a GPU can do at most: dense peaks per precision, memory bandwidth, power and limits per multiprocessor.

Peaks are dense (never the figure with 2:4 sparsity), at boost clock, tensor cores with FP32 accumulation, per device as
the tools see it. They stand in gpus.csv, in the units of data sheets, each row with its source and date; an empty cell
is not known and is never guessed. Column computed names the peaks that no source states: multiprocessors x operations
per multiprocessor and cycle x boost clock. A GPU is found by the exact name a tool reports: no match means no peaks,
never those of another GPU.

>>> a100 = peaks("NVIDIA A100 80GB PCIe")
>>> a100.flops("fp32") / 1e12, round(a100.ridge("fp32"), 2)
(19.5, 10.08)
"""

import csv
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
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
_LARGEST = 1e15  # no peak in any of the columns' units is so large, and all sums of it are finite
_MEMORY = ("mem_bus_bits", "mem_gbps_pin", "mem_gb", "l2_mb", "nvlink_gbs_bidir", "max_smem_sm_kib")
_NUMBERS = (_BANDWIDTH, "tdp_w", "boost_mhz", *_MEMORY)
_ALSO = "also_named"  # other names of the same GPU, with | between them
_TEXTS = (
    "key",
    _ALSO,
    "arch",
    "compute_capability",
    "computed",
    "confidence",
    "sparsity_note",
    "source",
    "as_of",
)
COLUMNS = (_NAME, *PRECISIONS.values(), *_NUMBERS, *_LIMITS, *_TEXTS)

# Multiprocessors of MIG slices in the lists that `nvidia-smi mig -lgip` printed for one of each GPU; of the profiles of
# other GPUs no whole list was found.
_SLICES = {
    "a100-sxm4-40": {
        "1g.5gb": 14,
        "1g.10gb": 14,
        "2g.10gb": 28,
        "3g.20gb": 42,
        "4g.20gb": 56,
        "7g.40gb": 98,
    },
    "h100-sxm5-80": {
        "1g.10gb": 16,
        "1g.20gb": 26,
        "2g.20gb": 32,
        "3g.40gb": 60,
        "4g.40gb": 64,
        "7g.80gb": 132,
    },
}
_CONTRADICT = "sources contradict each other on its clock or its peaks"
# Names that tools report and that have no peaks, and why.
_REFUSED = {
    r".+ mig .+": "how many multiprocessors this slice of a GPU (MIG) has is not certain",
    r".*(max-q design|max-q|laptop gpu|mobile)": "the maker of a laptop sets the clock and the power of its GPU",
    r"(tesla )?(v100|a100|a800|h100|b300)": "this name is of several boards (PCIe, SXM, ...), whose peaks differ",
    r"geforce rtx (2060|3050)": "cards with different numbers of multiprocessors bear this name",
    r"amd instinct mi250x / mi250": "two GPUs bear this name",
    r".*\bpg\d+-\d+": "this is the number of a board made for one customer: no data sheet was published",
    r".+ vf": "a virtual function may be a part of the GPU",
    r"h800 pcie|tesla v100-sxm3-32gb|quadro gv100|rtx pro .+": _CONTRADICT,
    r"(geforce )?gtx .+|quadro ([kmp]\d|gp|m).*|tesla [kmp]\d.*": "it is older than Volta, with which the table begins",
    r"0x[0-9a-f]+|amd radeon graphics": "this is no name of a product: the driver did not know the GPU",
    r".*(radeon|navi|vega).*": "of AMD the table holds Instinct only",
    r"intel.*|microsoft.*": "it is not a GPU of NVIDIA or AMD",
}


@dataclass(frozen=True)
class Peaks:
    """Peaks of one GPU; None, or a precision that is absent, is not known.

    `flops_per_s` maps a precision to dense FLOP/s (OP/s for integers); no source states those in `computed`.
    `memory_bytes_per_s` and `tdp_w` are the data sheet's; `source` and `as_of` say where they come from and when
    that was read. `nvlink_bytes_per_s` is of all links of the GPU, both directions together.
    """

    name: str
    flops_per_s: Mapping[str, float]
    memory_bytes_per_s: float | None = None
    nvlink_bytes_per_s: float | None = None
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
    also_named: tuple[str, ...] = ()
    computed: tuple[str, ...] = ()

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
        """Return the FLOP/byte from which on `precision`, not memory, is the roof (Williams et al., Roofline, 2009)."""
        return self.flops(precision) / self.bandwidth()

    def _unknown(self, what: str, column: str) -> PerfkitError:
        return PerfkitError(
            f"peaks of {self.name}: {what} is not known. Pass your own CSV with column {column!r}."
        )


def peaks(name: str, *, table: Iterable[Peaks] | None = None) -> Peaks | None:
    """Return the peaks of the GPU called `name`, or None if it is not in the table.

    `name`: As nvidia-smi, nsys, ncu or torch print it, or a row's key; upper and lower case are the same, and so are
    names with the maker before them and, as drivers before 2021 print them, without. A slice of a GPU (MIG) has the
    peaks of its multiprocessors where their number is certain; its bandwidth and its power are not known.
    `table`: Rows to look in, such as those of `load_peaks`; those of perfkit when omitted.

    >>> peaks("nvidia h100 80gb hbm3").key, peaks("NVIDIA H100")
    ('h100-sxm5-80', None)
    >>> peaks("NVIDIA A100-SXM4-40GB MIG 3g.20gb").sm_count
    42
    """
    rows = _own() if table is None else tuple(table)
    wanted = _bare(name)
    named = [row for row in rows if wanted in map(_bare, (row.name, *row.also_named))]
    keyed = [row for row in rows if row.key and row.key.casefold() == wanted]
    part = re.fullmatch(r"(.+) mig (\d+g\.\d+gb)(?:\+\w+)?", wanted) if table is None else None
    return next(iter(named + keyed), _slice(name, *part.groups()) if part else None)


def why_unknown(name: str) -> str:
    """Return why `peaks` knows none of the GPU called `name`; empty if it does.

    >>> why_unknown("NVIDIA GeForce RTX 2060 with Max-Q Design")
    'the maker of a laptop sets the clock and the power of its GPU'
    """
    if peaks(name):
        return ""
    found = (reason for pattern, reason in _REFUSED.items() if re.fullmatch(pattern, _bare(name)))
    return next(found, "no row of the table has this name")


def _slice(name: str, whole: str, profile: str) -> Peaks | None:
    """Return the peaks of a slice: the share of its multiprocessors in those of the whole GPU, at the same clock."""
    sheet = peaks(whole)
    count = _SLICES.get(sheet.key, {}).get(profile) if sheet else None
    if not sheet or not sheet.sm_count or not count:
        return None
    part = count / sheet.sm_count
    return replace(
        sheet,
        name=name.strip(),
        also_named=(),
        flops_per_s=MappingProxyType(
            {precision: value * part for precision, value in sheet.flops_per_s.items()}
        ),
        memory_bytes_per_s=None,
        nvlink_bytes_per_s=None,
        key="",
        tdp_w=None,
        sm_count=count,
        computed=tuple(sheet.flops_per_s),
        note=f"computed: {count} of the {sheet.sm_count} multiprocessors of {sheet.name}; {sheet.note}",
    )


def _bare(name: str) -> str:
    return name.strip().casefold().removeprefix("nvidia ")


def load_peaks(path: str | Path) -> tuple[Peaks, ...]:
    """Read peaks, in order, from a CSV file with the columns of perfkit's own gpus.csv; most may be left out.

    The file is UTF-8. Column name_nvidia_smi is required; peaks are dense, in TFLOP/s (fp32_tflops, ...), bandwidth in
    GB/s (mem_bw_gbs), 1e9 bytes/s. Without a column source the file itself is the source. A file that cannot be read as
    such is a ReadError that lists all that is wrong.
    """
    path = Path(path)
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            reader = csv.DictReader(file)
            lines = [(reader.line_num, row) for row in reader]
            columns = list(reader.fieldnames or [])
    except (OSError, UnicodeDecodeError, csv.Error) as e:
        raise ReadError(
            f"{path}: cannot be read as CSV: {e}. Give a UTF-8 file with a header line."
        ) from e
    problems = [f"column {c!r} is not one of {list(COLUMNS)}" for c in columns if c not in COLUMNS]
    problems += [f"column {c!r} is there more than once" for c in sorted(_twice(columns))]
    problems += [] if _NAME in columns else [f"column {_NAME!r} is missing"]
    problems = problems or [problem for line, row in lines for problem in _row(line, row)]
    if not problems:
        names = [
            n.strip().casefold()
            for _, row in lines
            for n in (row[_NAME], *_others(row))
            if n.strip()
        ]
        problems = [f"GPU {name!r} is there more than once" for name in sorted(_twice(names))]
    if problems:
        raise ReadError(
            "\n  - ".join([f"{path}: does not hold peaks of GPUs. Correct these:", *problems])
        )
    return tuple(
        _peaks({**dict.fromkeys(COLUMNS, ""), "source": str(path), **row}) for _, row in lines
    )


@cache
def _own() -> tuple[Peaks, ...]:
    return load_peaks(Path(__file__).with_name("gpus.csv"))


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
    return 0 < value < _LARGEST and (value.is_integer() or not whole)


def _twice(names: list[str]) -> set[str]:
    return {name for name in names if names.count(name) > 1}


def _others(row: dict[str, str]) -> tuple[str, ...]:
    return tuple(name.strip() for name in row.get(_ALSO, "").split("|") if name.strip())


def _peaks(row: dict[str, str]) -> Peaks:
    def scaled(column: str, by: float) -> float | None:
        return float(row[column]) * by if row[column].strip() else None

    def count(column: str, by: int = 1) -> int | None:
        return int(float(row[column]) * by) if row[column].strip() else None

    flops = {precision: scaled(column, 1e12) for precision, column in PRECISIONS.items()}
    return Peaks(
        name=row[_NAME].strip(),
        flops_per_s=MappingProxyType(
            {precision: value for precision, value in flops.items() if value is not None}
        ),
        memory_bytes_per_s=scaled(_BANDWIDTH, 1e9),
        nvlink_bytes_per_s=scaled("nvlink_gbs_bidir", 1e9),
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
        also_named=_others(row),
        computed=tuple(
            precision
            for precision, column in PRECISIONS.items()
            if column in row["computed"].split()
        ),
    )
