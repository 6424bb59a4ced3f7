"""Which kernels take the time, in which number formats does the matrix work run, and which counters belong to a kernel?

All devices, streams and processes are pooled. Durations of concurrent kernels add up, so shares are
of the sum of durations in the table, never of wall time; `gpu_busy_frac` counts a moment once per
device however many kernels of the group run in it. Kernels cut by the window count with the part
inside.

A launch is known by its rank and its number; a counter that is NaN was not measured. Timeline and
counters come from two executions and two tools that spell names in their own ways: ncu writes
``(int)4`` where nsys writes ``4``, and newer ones leave out namespaces. A launch belongs to the
kernel of the same full name, else of the same short name, else to the only one of the same function
name, grid and block. Of the launches of a kernel those count whose grid and block occur on the
timeline; all, where none does.

Matrix work is the kernels of the families gemm, convolution and attention. Its format is that of
the operands: as the kernel's name says (`perfkit.names.decode`), else as the types of the launching
operator's inputs say, else unknown. Float32 operands may run as TF32 (float32 that tensor cores
round, no mixed precision), which only a name can say. Names and types are hints; counters decide.
Source: PyTorch, "Automatic Mixed Precision package" (operators that autocast); "Numerical
accuracy", TensorFloat-32.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import pandas as pd

from perfkit import names
from perfkit.analysis.grouping import grouped, in_unit, numbered, ranked, shared, totals
from perfkit.analysis.intervals import Float, Int, Window, cut, devices, ends, spans, total, union
from perfkit.analysis.operators.totals import launching
from perfkit.names import decode
from perfkit.names.parsing import canonical
from perfkit.schema import Column, Table
from perfkit.tables import API_CALLS, COUNTERS, KERNELS, LAUNCHES, OPS

MATCHED_BY = ("full_name", "name", "base", "none")
CONFIGURATION = ["grid_blocks", "block_threads"]
_CAST = re.compile(r"\([a-z_ ]+\)(?=-?\d)")
_WORDS = {"true": "1", "false": "0"}
_BOOL = re.compile(r"\b(?:true|false)\b")
KEYS = {by: [by] for by in ("name", "full_name", "family")} | {
    "grid": ["full_name", *CONFIGURATION]
}
MATRIX_FAMILIES = ("gemm", "convolution", "attention")
FORMATS = ("fp64", "fp32", "tf32", "fp16", "bf16", "fp8", "int8", "unknown")
REDUCED = ("fp16", "bf16", "fp8", "int8")
ANSWERS = ("yes", "no", "unknown")
SOURCES = ("name", "operands", "none")
# How Kineto writes the element types of inputs ("Input type").
_TYPES = {
    "double": "fp64",
    "float": "fp32",
    "c10::Half": "fp16",
    "c10::BFloat16": "bf16",
    "signed char": "int8",
}
PRECISION = Table(
    "SHARES",
    "matrix work of one family in one number format",
    (
        Column("family", "category", "gemm, convolution or attention"),
        Column("format", "category", "number format of the operands, one of FORMATS"),
        Column("tensor_cores", "category", "yes, no or unknown, as the kernels' names say"),
        Column(
            "source",
            "category",
            "what says the format: name (of the kernel), operands (of the operator) or none",
        ),
        Column("count", "int64", "kernels"),
        Column("total_ns", "int64", "time of these kernels, ns"),
        Column(
            "share_frac",
            "float64",
            "total_ns over the time of all matrix work; NaN where that is 0",
        ),
    ),
    (),
)


@dataclass(frozen=True)
class Mixed:
    """Whether most matrix work runs in 8 or 16 bits: yes, no, or None where what is unknown would decide.

    `reduced_frac` is the share of it in 8 or 16 bits, `unknown_frac` that in an unknown format,
    both of the `total_ns` that GEMMs, convolutions and attention took; NaN where that is 0.
    """

    active: bool | None
    reduced_frac: float
    unknown_frac: float
    total_ns: int


def summary(
    kernels: pd.DataFrame, *, by: str = "name", window: Window | None = None
) -> pd.DataFrame:
    """Return count, statistics of the durations, share and busy fraction of the kernels, grouped.

    `by` is "name", "full_name", "family", or "grid": full name, blocks in the grid and threads in a
    block; else ValueError. By falling `total_ns`, ties by falling count, then name. The key columns
    as in KERNELS; `family`, missing where kernels of several families share a name; `count`,
    `total_ns`, `mean_ns`, `median_ns`, `min_ns`, `max_ns`, `std_ns` (of a sample, NaN for one
    launch); `share_frac`, total_ns over the sum of this table; `gpu_busy_frac`, time in which a
    kernel of the group runs over the length of the window (without one, first kernel's start to
    last kernel's end), both summed over the devices that ran any kernel.

    Source: Grouping by full name is that of the vendor's `cuda_gpu_kern_sum`, by grid that of
    `cuda_gpu_kern_gb_sum` (2022: `gpukernsum`), which also tells grids of as many blocks apart by
    their shape.
    """
    if by not in KEYS:
        raise ValueError(f"by: {by!r} is not one of {list(KEYS)}")
    inside = cut(KERNELS.check(kernels), window)
    names, group = numbered(inside, KEYS[by])
    if by != "family":
        names["family"] = shared(inside["family"], group, len(names))
    figures = in_unit(grouped(inside["dur_ns"].to_numpy(), group, len(names)), "ns")
    table = pd.concat([names, figures], axis=1)
    table["share_frac"] = table["total_ns"] / (table["total_ns"].sum() or np.nan)
    table["gpu_busy_frac"] = _busy(inside, group, table["total_ns"].to_numpy(), window)
    return ranked(table, "total_ns", KEYS[by])


def _busy(kernels: pd.DataFrame, group: Int, total_ns: Int, window: Window | None) -> pd.Series:
    """Return the time each group runs over the length of the window, both summed over the devices."""
    index, (device,) = devices(kernels)
    begin, end = spans([kernels], [device], len(index), window)
    start, stop = ends(kernels)
    step = np.diff(device)
    if ((step > 0) | ((step == 0) & (start[1:] >= stop[:-1]))).all():
        busy = total_ns  # no kernel runs beside another
    else:
        place = device * len(total_ns) + group
        shape = (len(index), len(total_ns))
        # The table is sorted by device and start: a stable sort by place alone gives the order that
        # union wants.
        small = place.astype(np.uint16) if shape[0] * shape[1] <= 1 << 16 else place
        order = np.argsort(small, kind="stable")
        covered = union(start[order], stop[order], place[order])
        busy = np.asarray(total(covered, shape[0] * shape[1]).reshape(shape).sum(axis=0), np.int64)
    return pd.Series(busy / (int((end - begin).sum()) or np.nan))


def wide(launches: pd.DataFrame, counters: pd.DataFrame, metrics: Iterable[str]) -> pd.DataFrame:
    """Return the first value of each of `metrics` per row of `launches`: float64 columns in order, NaN not measured."""
    keys, wanted = ["rank", "launch"], list(dict.fromkeys(metrics))
    # The first of two is written last
    part = COUNTERS.check(counters)[counters["metric"].isin(wanted)].iloc[::-1]
    row = pd.MultiIndex.from_frame(LAUNCHES.check(launches)[keys]).get_indexer(
        pd.MultiIndex.from_frame(part[keys])
    )
    column = pd.Index(wanted).get_indexer(pd.Index(part["metric"]))
    values = np.full((len(wanted), len(launches)), np.nan)
    values[column[row >= 0], row[row >= 0]] = part["value"].to_numpy("float64")[row >= 0]
    return pd.DataFrame(values.T, launches.index, wanted, copy=False)


def first(*columns: Float) -> Float:
    """Return, element by element, the first value that is not NaN."""
    values = columns[0]
    for column in columns[1:]:
        values = np.where(np.isnan(values), column, values)
    return values


def spelled(full_name: str) -> str:
    """Return the full name as both tools would write it: without casts of numbers, spaces and words for bools."""
    return canonical(
        _BOOL.sub(lambda found: _WORDS[found.group()], _CAST.sub("", full_name))
    ).replace(" ", "")


def matched(timeline: pd.DataFrame, launches: pd.DataFrame) -> pd.DataFrame:
    """Return the kernel of the timeline that each launch belongs to.

    `timeline` has the distinct combinations of `name`, `full_name`, `grid_blocks`, `block_threads`
    of KERNELS. A row per launch, in their order. `name` string, that of the timeline, NA where no
    kernel matches; `matched_by` string, one of MATCHED_BY; `same_grid` bool, whether its grid and
    block occur on the timeline under that name; `counts` bool, whether the launch speaks for the
    kernel.
    """
    timeline = timeline.reset_index(drop=True)
    by_full = dict(
        zip(_texts(timeline["full_name"], spelled), timeline["name"].astype(str), strict=True)
    )
    on_timeline = set(timeline["name"].astype(str))
    named = launches["name"].astype("string").where(launches["name"].isin(on_timeline))
    # The only name of the timeline with a launch's function name, grid and block.
    keys = ["base", *CONFIGURATION]
    of_timeline, of_launches = (
        frame[CONFIGURATION].astype("Int64") for frame in (timeline, launches)
    )
    there = of_timeline.assign(
        base=_texts(timeline["full_name"], names.base), name=timeline["name"]
    )
    there = there.astype({"name": "string"}).drop_duplicates([*keys, "name"])
    there = there[~there.duplicated(keys, keep=False)].dropna()
    here = of_launches.assign(base=_texts(launches["full_name"], names.base))
    candidates = {
        "full_name": _texts(launches["full_name"], spelled).map(by_full).astype("string"),
        "name": named,
        "base": here.merge(there, on=keys, how="left")["name"].set_axis(launches.index),
    }
    table = pd.DataFrame(
        {"name": pd.Series(pd.NA, launches.index, dtype="string"), "matched_by": "none"}
    )
    for how, name in candidates.items():
        new = table["name"].isna() & name.notna()
        table["name"] = table["name"].where(~new, name)
        table["matched_by"] = table["matched_by"].where(~new, how)
    table["matched_by"] = table["matched_by"].astype("string")
    # Which launches have a grid and block of the timeline, and so speak for their kernel.
    there = of_timeline.assign(name=timeline["name"].astype("string"))
    here = of_launches.assign(name=table["name"])
    keys = ["name", *CONFIGURATION]
    seen = pd.MultiIndex.from_frame(here[keys]).isin(pd.MultiIndex.from_frame(there[keys]))
    table["same_grid"] = seen & table["name"].notna().to_numpy()
    any_seen = table["name"].isin(table["name"][table["same_grid"]])
    table["counts"] = table["name"].notna() & (table["same_grid"] | ~any_seen)
    return table


def _texts(column: pd.Series, change: Callable[[str], str]) -> pd.Series:
    """Apply `change` to a column of names, once per distinct name."""
    categories = column.astype("category").cat
    changed = np.array([*(change(str(text)) for text in categories.categories), ""], object)
    return pd.Series(changed[categories.codes.to_numpy()], column.index, dtype="string")


def precision(
    ops: pd.DataFrame,
    kernels: pd.DataFrame,
    api_calls: pd.DataFrame,
    *,
    window: Window | None = None,
) -> pd.DataFrame:
    """Return how much of the time of GEMMs, convolutions and attention ran in which number format: table `SHARES`.

    The rows are by falling total_ns. `ops` and `api_calls`, of the same execution, tell the
    operands. With a window kernels count with the part inside.
    """
    columns = ["rank", "process", "correlation", "start_ns", "dur_ns", "family", "full_name"]
    matrix = kernels.loc[
        KERNELS.check(kernels)["family"].isin(MATRIX_FAMILIES), columns
    ].reset_index(drop=True)
    _, op = launching(OPS.check(ops), matrix, API_CALLS.check(api_calls))
    inside = cut(matrix.assign(**_formats(matrix["full_name"], ops["dtypes"], op)), window)
    keys = ["family", "format", "tensor_cores", "source"]
    return PRECISION.make(totals(inside, keys)[list(PRECISION.column_names)])


def _formats(full_name: pd.Series, dtypes: pd.Series, op: Int) -> dict[str, pd.Categorical[str]]:
    """Return format, tensor cores and source of each kernel."""
    decoded = [decode(str(name)) for name in full_name.cat.categories]
    kernel = full_name.cat.codes.to_numpy()
    # Complex numbers as their parts
    said = [name.precision.removeprefix("complex ") for name in decoded]
    by_name = np.array([FORMATS.index(one) if one in FORMATS[:-1] else -1 for one in said] or [-1])[
        kernel
    ]
    on_tensor = np.array(
        [{True: 0, False: 1, None: 2}[name.tensor_cores] for name in decoded] or [2]
    )[kernel]
    operands = np.array([*(_operands(str(types)) for types in dtypes.cat.categories), -1])
    by_operands = operands[np.append(dtypes.cat.codes.to_numpy(), -1)[op]]
    source = np.select([by_name >= 0, by_operands >= 0], [0, 1], 2)
    number = np.select(
        [by_name >= 0, by_operands >= 0], [by_name, by_operands], FORMATS.index("unknown")
    )
    return {
        "format": pd.Categorical.from_codes(number, pd.Index(FORMATS)),
        "tensor_cores": pd.Categorical.from_codes(on_tensor, pd.Index(ANSWERS)),
        "source": pd.Categorical.from_codes(source, pd.Index(SOURCES)),
    }


def _operands(dtypes: str) -> int:
    """Return the format of the first input that has one, -1 if none has."""
    names = re.findall(r'"([^"]*)"', dtypes)
    formats = (_TYPES.get(name, "fp8" if name.startswith("c10::Float8") else "") for name in names)
    return next((FORMATS.index(number) for number in formats if number), -1)


def mixed(shares: pd.DataFrame) -> Mixed:
    """Return whether at least half of the matrix work's time is in fp16, bf16, fp8 or int8; None where not decided."""
    time = PRECISION.check(shares).groupby("format", observed=False)["total_ns"].sum()
    total = int(time.sum())
    if not total:
        return Mixed(None, np.nan, np.nan, 0)
    reduced, unknown = (
        int(time.reindex(formats).fillna(0).sum()) for formats in (REDUCED, ["unknown"])
    )
    is_decided = 2 * reduced >= total or 2 * (reduced + unknown) < total
    active = 2 * reduced >= total if is_decided else None
    return Mixed(active, reduced / total, unknown / total, total)
