"""What do the CSV pages of Nsight Compute say, raw (one row per launch) and details (one row per metric)?"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd

from perfkit.errors import ReadError
from perfkit.readers.ncu import log
from perfkit.readers.ncu.labels import metric
from perfkit.readers.ncu.report import Launch, Report, Rule, blocks, joined
from perfkit.readers.ncu.units import base, has_decimal_commas, numbers

LEADING = {
    *("ID", "Process ID", "Process Name", "Host Name", "Kernel Name", "Kernel Time", "Context", "Stream"),
    *("Block Size", "Grid Size", "Device", "CC"),
}
NVTX = re.compile(r"\bDomain:(?:Push/Pop|Start/Stop)_Range")
DEVICE_NAME = "device__attribute_display_name"
TRIED_ROWS = 1000  # enough to see how a page writes its numbers
SCOPES = {"local": "kernel", "global": "workload"}
_UNNAMED = re.compile(r"(?<![<\w])unnamed>")  # ncu drops the bracket where it leaves out the namespace before it
_SCALED = re.compile(r"[KMGT](?:byte|B)\b")


def read(path: Path) -> Report:
    """Return what a log of `ncu --csv` holds.

    Raises
    ------
    ReadError
        If no kernel was profiled, or the file is cut.
    """
    text = log.decode(path.read_bytes())
    found = log.pages(text, path)
    decimal_commas = has_decimal_commas(cell for page in found for row in page.rows[:TRIED_ROWS] for cell in row)
    report = joined(
        [
            _details(page, path, decimal_commas) if "Metric Name" in page.header else _raw(page, path, decimal_commas)
            for page in found
        ]
    )
    return replace(report, notes=(*log.notes(text), *report.notes))


def _raw(page: log.Page, path: Path, decimal_commas: bool) -> Report:
    """Read the wide page: a header, a row of units, a row per launch."""
    _check_widths(page, path)
    units = next((row for row in page.rows if not row[0]), [""] * len(page.header))
    rows = [row for row in page.rows if row[0]]
    cells = dict(zip(page.header, zip(*rows, strict=True), strict=True))
    names, columns, found = [], [], {}
    for name, unit in zip(page.header, units, strict=True):
        if name in LEADING or NVTX.search(name) or name in found:
            continue
        found[name], factor = base(unit)
        names.append(name)
        columns.append(numbers(cells[name], decimal_commas) * factor)
    values = pd.DataFrame(np.column_stack(columns) if columns else np.empty((len(rows), 0)), columns=names)
    device_names = cells.get(DEVICE_NAME, ("",) * len(rows))
    launches = [
        _launch(dict(zip(page.header, row, strict=True)), device)
        for row, device in zip(rows, device_names, strict=True)
    ]
    scaled = any(_SCALED.search(unit) for unit in units)
    rounded = "the page is printed in scaled units and rounded; export it with `--print-units base`"
    return Report(launches, values, found, notes=(rounded,) if scaled else ())


def _details(page: log.Page, path: Path, decimal_commas: bool) -> Report:
    """Read the long page: a row per metric or per rule of a launch, ragged at the end."""
    _check_widths(page, path, ragged=True)
    at = {name: i for i, name in enumerate(page.header)}
    key = [at[name] for name in ("Process ID", "Host Name", "ID") if name in at]
    numbered: dict[tuple[str, ...], int] = {}
    position = [numbered.setdefault(tuple(row[i] for i in key), len(numbered)) for row in page.rows]
    first = np.unique(position, return_index=True)[1]
    launches = [_launch(dict(zip(page.header, page.rows[i], strict=False))) for i in first]
    measured = [(launch, row) for launch, row in zip(position, page.rows, strict=True) if row[at["Metric Name"]]]
    values, units = _pivoted(measured, at, len(launches), decimal_commas)
    rules = [
        _rule(launch, dict(zip(page.header, row, strict=True)), decimal_commas)
        for launch, row in zip(position, page.rows, strict=True)
        if not row[at["Metric Name"]] and "Rule Name" in at
    ]
    return Report(launches, values, units, rules)


def _pivoted(
    measured: list[tuple[int, list[str]]], at: dict[str, int], launches: int, decimal_commas: bool
) -> tuple[pd.DataFrame, dict[str, str]]:
    """Return metrics as columns; a metric that several sections print is taken from the first."""
    name, unit, value = (at[f"Metric {part}"] for part in ("Name", "Unit", "Value"))
    printed = [(row[name], row[unit]) for _, row in measured]
    codes, pairs = pd.factorize(pd.Index(printed, tupleize_cols=False))
    bases = [base(unit) for _, unit in pairs]
    metrics = [metric(label, unit) for (label, _), (unit, _) in zip(pairs, bases, strict=True)]
    places, columns = pd.factorize(np.array(metrics, object))
    amounts = numbers([row[value] for _, row in measured], decimal_commas)
    amounts *= np.array([factor for _, factor in bases])[codes]
    known = np.flatnonzero(~np.isnan(amounts))
    cells = np.array([launch for launch, _ in measured], int) * len(columns) + places[codes]
    first, at_first = np.unique(cells[known], return_index=True)
    matrix = np.full(launches * len(columns), np.nan)
    matrix[first] = amounts[known][at_first]
    units: dict[str, str] = {}
    for found, (unit_name, _) in zip(metrics, bases, strict=True):
        units[found] = units.get(found) or unit_name
    return pd.DataFrame(matrix.reshape(launches, len(columns)), columns=list(columns)), units


def _check_widths(page: log.Page, path: Path, ragged: bool = False) -> None:
    """Refuse rows that are cut: only metrics of the details page may stop early, after their value."""
    needed = ["Kernel Name", *(f"Metric {part}" for part in ("Name", "Unit", "Value") if ragged)]
    lacking = [name for name in needed if name not in page.header]
    if lacking:
        raise ReadError(f"{path}: the page has no column {lacking[0]!r}. {log.AGAIN}.")
    width = len(page.header)
    name, enough = (page.header.index(needed[i]) for i in (1, -1)) if ragged else (0, 0)
    for number, row in enumerate(page.rows, 1):
        if len(row) != width and not (ragged and enough < len(row) < width and row[name]):
            raise ReadError(
                f"{path}: row {number} has {len(row)} fields, the header has {width}: "
                f"the file is cut or was changed. {log.AGAIN}."
            )


def _launch(row: dict[str, str], device_name: str = "") -> Launch:
    device = row.get("Device", "")
    return Launch(
        _UNNAMED.sub("<unnamed>", row["Kernel Name"]),
        int(device) if device.isdecimal() else -1,
        blocks(row.get("Grid Size", "")),
        blocks(row.get("Block Size", "")),
        row.get("CC", ""),
        device_name,
    )


def _rule(launch: int, row: dict[str, str], decimal_commas: bool) -> Rule:
    percent = float(numbers([row.get("Estimated Speedup", "")], decimal_commas)[0])
    scope = SCOPES.get(row.get("Estimated Speedup Type", ""))
    return Rule(launch, row["Rule Name"], row.get("Rule Description", ""), percent / 100, scope)
