"""Of which type are a launch's tensor-core operations?

Conventions
-----------
``sm__ops_path_tensor[_op_<instruction>]_src_<type>[_dst_<type>][_sparsity_<on|off>]`` count operations. They are
hierarchical: those of one instruction kind and those of operands without a result are parts and sums of the others,
and no operation is counted twice. A precision is named by its operands; `_acc16` says that it accumulates in FP16,
`_sparse` that 2:4 sparsity was on: these have roofs of their own. Where no such counter was recorded the
kernel's name tells the type; where it does not, the type is `tensor`.

Functions
---------
metrics   the counters of a report per precision
flops     tensor FLOP of each launch per precision
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import pandas as pd

from perfkit import names
from perfkit.analysis.counters import wide
from perfkit.hardware import PRECISIONS
from perfkit.tables import COUNTERS

UNKNOWN = "tensor"
_METRIC = (
    r"sm__ops_path_tensor(?P<op>_op_[a-z]+)?_src_(?P<src>[a-z0-9]+)(?:_dst_(?P<dst>[a-z0-9]+))?"
    r"(?:_sparsity_(?P<sparsity>on|off))?\.sum"
)
# Which counters of a type stand for all of it: the sum over instruction kinds, then the split by sparsity.
_LEVELS = ((False, True), (False, False), (True, True), (True, False))


def metrics(counters: pd.DataFrame, suffix: str = "") -> dict[str, tuple[str, ...]]:
    """Return precision -> the metrics whose sum counts its operations.

    Parameters
    ----------
    counters
        COUNTERS; may be empty.
    suffix
        What follows ``.sum`` in the name, such as ``.peak_sustained``.
    """
    whole = re.compile(_METRIC + re.escape(suffix))
    recorded = sorted(str(metric) for metric in COUNTERS.check(counters)["metric"].unique())
    found = [match for metric in recorded if (match := whole.fullmatch(metric))]
    results = {match["src"] for match in found if match["dst"]}
    chosen: dict[str, tuple[str, ...]] = {}
    for source, target in dict.fromkeys((match["src"], match["dst"]) for match in found):
        if target or source not in results:
            of_type = [match for match in found if (match["src"], match["dst"]) == (source, target)]
            for name, metric in _level(of_type, f"{source}_tensor" + ("_acc16" if target == "fp16" else "")):
                chosen[name] = (*chosen.get(name, ()), metric)
    return chosen


def _level(of_type: list[re.Match[str]], precision: str) -> Iterator[tuple[str, str]]:
    """Return precision and metric of the first level that the report has of a type."""
    levels = {level: [m for m in of_type if (bool(m["op"]), bool(m["sparsity"])) == level] for level in _LEVELS}
    for match in next((found for found in levels.values() if found), []):
        yield precision + ("_sparse" if match["sparsity"] == "on" else ""), match[0]


def flops(launches: pd.DataFrame, counters: pd.DataFrame) -> pd.DataFrame:
    """Return `tensor_flops` of each launch split by precision: rows of `launches`, a float64 column per precision.

    A launch of which it was not counted is NaN in all columns; the columns of a row add up to its `tensor_flops`.
    """
    whole = launches["tensor_flops"]
    parts = _parts(launches, counters)
    total = parts.sum(axis=1)
    split = parts.div(total.where(total > 0), axis=0).mul(whole, axis=0).fillna(0.0)
    named = _named(launches).where(~(total > 0) & (whole > 0))
    for precision in sorted(named.dropna().unique()):
        of_name = whole.where(named == precision, 0.0)
        split[precision] = of_name + split[precision] if precision in split else of_name
    return split.where(whole.notna(), axis=0) if len(split.columns) else pd.DataFrame({UNKNOWN: whole})


def _parts(launches: pd.DataFrame, counters: pd.DataFrame) -> pd.DataFrame:
    """Return counted operations, or operations per cycle where only these were recorded, per precision."""
    for suffix in ("", ".per_cycle_elapsed"):
        recorded = metrics(counters, suffix)
        if recorded:
            values = wide(launches, counters, [metric for each in recorded.values() for metric in each]).fillna(0.0)
            return pd.DataFrame({name: values[list(each)].sum(axis=1) for name, each in recorded.items()})
    return pd.DataFrame(index=launches.index)


def _named(launches: pd.DataFrame) -> pd.Series:
    """Return the precision that each kernel's name tells, `tensor` where it tells none that has a tensor peak."""
    told = {name: f"{names.decode(str(name)).precision}_tensor" for name in launches["full_name"].cat.categories}
    known = {name: said if said in PRECISIONS else UNKNOWN for name, said in told.items()}
    return launches["full_name"].astype("object").map(known).fillna(UNKNOWN)
