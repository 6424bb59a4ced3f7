"""The CSV pages of Nsight Compute as a report: raw (one row per launch) and details (one row per metric).

A page is refused where its rows, units or numbers contradict each other. What is left out of a page
is counted in a note, with the first example. The details page prints labels for people, the raw
page the metrics' names. The pairs are those of the section definitions stored in reports of 2020.3
to 2025.1; labels changed, metrics did not. What is not listed stays a counter under its own name,
which `--metrics` runs print anyway.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from math import prod
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.errors import ReadError
from perfkit.readers.ncu import log
from perfkit.readers.ncu.log import base, misprints, notation, numbers
from perfkit.readers.ncu.tables import Launch, Report, Rule
from perfkit.readers.text import csv_rows

LEADING = {
    *(
        "ID",
        "Process ID",
        "Process Name",
        "Host Name",
        "Kernel Name",
        "Kernel Time",
        "Context",
        "Stream",
    ),
    *("Block Size", "Grid Size", "Device", "CC"),
}
NVTX = re.compile(r"\bDomain:(?:Push/Pop|Start/Stop)_Range")
DEVICE_NAME = "device__attribute_display_name"
SCOPES = {"local": "kernel", "global": "workload"}
LARGEST = 1 << 27  # values of all metrics for all launches: 1 GB
# Ncu drops the bracket where it leaves out the namespace before it
_UNNAMED = re.compile(r"(?<![<\w])unnamed>")
# What the figures of LAUNCHES are made of has one base unit; another one is a misprint that would
# scale it wrongly.
_UNITS = [
    (re.compile(r"gpu__time_duration\.\w+"), "ns"),
    (re.compile(r"(?:dram|lts|l1tex)__\w*bytes\w*\.sum"), "byte"),
    (re.compile(r"[\w.]+\.pct_of_peak_sustained_\w+"), "%"),
    (re.compile(r"\w+__cycles_elapsed\.\w+\.per_second"), "hz"),
]
MOST_BLOCKS = 2**63 - 1
_SIZE = re.compile(r"[0-9]{1,10}")  # a grid has at most 2^31 blocks a side
# The metric of each label; where one label stands for two metrics its unit tells them apart. "SOL"
# is of 2020.
LABELS = {(row["label"], row["unit"]): row["metric"] for row in csv_rows(__file__, "labels.csv")}


@dataclass
class _Page:
    """A page with what its file is called, how it writes numbers, and what could not be read of it."""

    path: Path
    header: list[str]
    rows: list[list[str]]
    decimal_commas: bool
    unreadable: list[tuple[str, str]] = field(default_factory=list)  # metric or column, cell

    def numbers(
        self, names: Sequence[str], units: Sequence[str], cells: Sequence[str]
    ) -> NDArray[np.float64]:
        """Return the values of cells, given the names of their metrics and their units as printed."""
        values = numbers(cells, self.decimal_commas)
        self.unreadable += [(names[i], cells[i]) for i in misprints(cells, values, units)]
        return values

    def base(self, name: str, unit: str) -> tuple[str, float]:
        """Return the base unit and factor of a metric's unit; a unit that the metric cannot have makes NaN of it."""
        base_unit, factor = base(unit)
        if base_unit and any(
            pattern.fullmatch(name) and base_unit != expected for pattern, expected in _UNITS
        ):
            self.unreadable.append((f"unit of {name}", unit))
            factor = float("nan")
        return base_unit, factor

    def launch(self, row: dict[str, str], device_name: str = "") -> Launch:
        """Return who was measured in a row."""
        grid, block = (self._size(row, f"{what} Size") for what in ("Grid", "Block"))
        name = _UNNAMED.sub("<unnamed>", row["Kernel Name"])
        return Launch(name, self._gpu(row), grid, block, row.get("CC", ""), device_name)

    def _size(self, row: dict[str, str], column: str) -> int | None:
        text = row.get(column, "")
        size = blocks(text)
        if size is None and text.strip("() "):
            self.unreadable.append((column, text))
        return size

    def _gpu(self, row: dict[str, str]) -> int:
        text = row.get("Device", "")
        if re.fullmatch(r"[0-9]{1,9}", text):
            return int(text)
        if text:
            self.unreadable.append(("Device", text))
        return -1

    def notes(self) -> tuple[str, ...]:
        """Return what could not be read."""
        if not self.unreadable:
            return ()
        column, cell = self.unreadable[0]
        return (
            f"cells of the page that cannot be read and were left out: {len(self.unreadable):,} "
            f"(first: {cell[:40]!r} of {column[:80]!r})",
        )


def read(path: Path) -> Report:
    """Return what a log of `ncu --csv` holds."""
    printed = log.scan(path)
    for page in printed.pages:
        _check_widths(page, path)
    decimal_commas, notes = _decimal_commas(printed.pages, path)
    reports = []
    for page in printed.pages:
        of_file = _Page(path, page.header, page.rows, decimal_commas)
        made = _details(of_file) if page.is_details else _raw(of_file)
        reports.append(replace(made, notes=(*of_file.notes(), *made.notes)))
    _check_size(
        sum(len(r.launches) for r in reports), len({m for r in reports for m in r.metrics}), path
    )
    report = joined(reports)
    every = (*printed.notes, *notes, *report.notes)
    return replace(report, notes=every, is_simulated=bool(printed.simulated))


def _decimal_commas(pages: Sequence[log.Page], path: Path) -> tuple[bool, tuple[str, ...]]:
    """Say whether a file writes 1.5 as 1,5, by the values of metrics alone; with a note where nothing tells."""
    shown = notation(cells for page in pages for cells in _values(page))
    if shown.point and shown.comma:
        (point, comma) = (
            f"{text[:40]!r} of {name[:80]!r}" for name, text in (shown.point, shown.comma)
        )
        raise ReadError(
            f"{path}: the page mixes decimal points ({point}) and decimal commas ({comma}): it was "
            f"changed or joined from two. {log.AGAIN}."
        )
    either = [cell for cell in (shown.comma_or_thousands, shown.point_or_thousands) if cell]
    if either and not shown.point and not shown.comma:
        name, text = either[0]
        return False, (
            f"nothing in the page tells whether a comma or a point begins the decimals ({text!r} "
            f"of {name!r}): perfkit reads it with decimal points, as ncu writes it in English",
        )
    doubtful = shown.comma_or_thousands if shown.comma else shown.point_or_thousands
    if doubtful:
        name, text = doubtful
        return shown.comma is not None, (
            f"a number of the page has three decimals, which ncu does not write ({text!r} of "
            f"{name!r}): it may be a thousand times as large",
        )
    return shown.comma is not None, ()


def _values(page: log.Page) -> Iterator[tuple[str, Iterable[str]]]:
    """Yield the names of metrics with their cells."""
    if page.is_details:
        name, value = (page.header.index(f"Metric {part}") for part in ("Name", "Value"))
        yield from ((row[name], row[value : value + 1]) for row in page.rows if row[name])
    else:
        columns = list(zip(*(row for row in page.rows if row[0]), strict=True))
        yield from ((name, columns[i]) for i, name in _metrics(page.header))


def _metrics(header: Sequence[str]) -> list[tuple[int, str]]:
    """Return the columns of a raw page that are metrics, each metric once."""
    first: dict[str, int] = {}
    for i, name in enumerate(header):
        if name and name not in LEADING and not NVTX.search(name):
            first.setdefault(name, i)
    return [(i, name) for name, i in first.items()]


def _raw(page: _Page) -> Report:
    """Read the wide page: a header, a row of units, a row per launch."""
    units = _units(page)
    printed = [row for row in page.rows if row[0]]
    rows = list(dict(zip(map(tuple, printed), printed, strict=True)).values())
    cells = list(zip(*rows, strict=True))
    metrics = _metrics(page.header)
    bases = {name: page.base(name, units[i]) for i, name in metrics}
    many = len(rows)
    columns = [
        page.numbers([name] * many, [units[i]] * many, cells[i]) * bases[name][1]
        for i, name in metrics
    ]
    names = [name for _, name in metrics]
    values = pd.DataFrame(
        np.column_stack(columns) if columns else np.empty((many, 0)), columns=names
    )
    device_names = cells[page.header.index(DEVICE_NAME)] if DEVICE_NAME in names else [""] * many
    launches = [
        page.launch(dict(zip(page.header, row, strict=True)), device)
        for row, device in zip(rows, device_names, strict=True)
    ]
    return Report(
        launches,
        values,
        {name: unit for name, (unit, _) in bases.items()},
        notes=_raw_notes(page.header, units, len(printed) - many),
    )


def _raw_notes(header: Sequence[str], units: Sequence[str], twice: int) -> tuple[str, ...]:
    """Say what a raw page lost when it was printed, and what was left out of it."""
    notes = []
    if twice:
        notes.append(
            f"launches that stand twice in the page, equal in every cell, and count once: {twice:,}"
        )
    if any(re.search(r"[KMGT](?:byte|B)\b", unit) for unit in units):
        notes.append(
            "the page is printed in scaled units and rounded; export it with `--print-units base`"
        )
    others = sum(name in LEADING or NVTX.search(name) is not None for name in header)
    unused = len(header) - len(_metrics(header)) - others
    if unused:
        notes.append(
            f"columns of the page without a name of their own, which were left out: {unused:,}"
        )
    return tuple(notes)


def _units(page: _Page) -> list[str]:
    """Return the row of units: the one without a launch."""
    rows = [(number, row) for number, row in enumerate(page.rows, 1) if not row[0]]
    name = page.header.index("Kernel Name")
    launch = next((number for number, row in rows if row[name]), None)
    if launch is not None or len(rows) > 1:
        raise ReadError(
            f"{page.path}: row {launch or rows[1][0]} has no number of a launch: the file was "
            f"changed. {log.AGAIN}."
        )
    if not rows:
        raise ReadError(
            f"{page.path}: the page has no row of units, so its numbers have no scale: the file "
            f"was changed. {log.AGAIN}."
        )
    return rows[0][1]


def _details(page: _Page) -> Report:
    """Read the long page: a row per metric or per rule of a launch, ragged at the end."""
    at = {name: i for i, name in enumerate(page.header)}
    key = [at[name] for name in ("Process ID", "Host Name", "ID") if name in at]
    numbered: dict[tuple[str, ...], int] = {}
    position = [numbered.setdefault(tuple(row[i] for i in key), len(numbered)) for row in page.rows]
    first = np.unique(position, return_index=True)[1]
    launches = [page.launch(dict(zip(page.header, page.rows[i], strict=False))) for i in first]
    measured = [
        (launch, row)
        for launch, row in zip(position, page.rows, strict=True)
        if row[at["Metric Name"]]
    ]
    values, units = _pivoted(page, measured, at, len(launches))
    others = [
        (launch, row)
        for launch, row in zip(position, page.rows, strict=True)
        if not row[at["Metric Name"]]
    ]
    is_rule = [bool("Rule Name" in at and row[at["Rule Name"]]) for _, row in others]
    page.unreadable += [("Metric Name", "") for rule in is_rule if not rule]
    rules = []
    for launch, cells in compress(others, is_rule):
        row = dict(zip(page.header, cells, strict=True))
        percent = float(
            page.numbers(["Estimated Speedup"], [""], [row.get("Estimated Speedup", "")])[0]
        )
        scope = SCOPES.get(row.get("Estimated Speedup Type", ""))
        rules.append(
            Rule(launch, row["Rule Name"], row.get("Rule Description", ""), percent / 100, scope)
        )
    return Report(
        launches, values, units, rules, notes=_order_notes(position, measured, at["Metric Name"])
    )


def _order_notes(
    position: list[int], measured: list[tuple[int, list[str]]], name: int
) -> tuple[str, ...]:
    """Say where the rows of a page show that it was cut or changed."""
    notes = []
    launches = max(position) + 1
    apart = int(np.count_nonzero(np.diff(position))) + 1 - launches
    if apart:
        notes.append(
            "the rows of a launch do not stand together: the page was sorted or changed, "
            f"and rows may count for the wrong launch (places: {apart:,})"
        )
    before = [row[name] for launch, row in measured if launch == launches - 2]
    last = [row[name] for launch, row in measured if launch == launches - 1]
    if last and len(last) < len(before) and last == before[: len(last)]:
        notes.append(
            f"the last launch has only the first {len(last):,} of the {len(before):,} metrics of "
            "the one before it: the page may be cut"
        )
    return tuple(notes)


def _pivoted(
    page: _Page, measured: list[tuple[int, list[str]]], at: dict[str, int], launches: int
) -> tuple[pd.DataFrame, dict[str, str]]:
    """Return metrics as columns; a metric that several sections print is taken from the first."""
    name, unit, value = (at[f"Metric {part}"] for part in ("Name", "Unit", "Value"))
    codes, pairs = pd.factorize(
        pd.Index([(row[name], row[unit]) for _, row in measured], tupleize_cols=False)
    )
    metrics = [metric(label, base(unit)[0]) for label, unit in pairs]
    bases = [page.base(name, unit) for name, (_, unit) in zip(metrics, pairs, strict=True)]
    places, columns = pd.factorize(np.array(metrics, object))
    _check_size(launches, len(columns), page.path)
    amounts = page.numbers(*([row[i] for _, row in measured] for i in (name, unit, value)))
    amounts *= np.array([factor for _, factor in bases])[codes]
    measures = np.flatnonzero(~np.isnan(amounts))
    cells = np.array([launch for launch, _ in measured], int) * len(columns) + places[codes]
    first, at_first = np.unique(cells[measures], return_index=True)
    matrix = np.full(launches * len(columns), np.nan)
    matrix[first] = amounts[measures][at_first]
    units: dict[str, str] = {}
    for metric_name, (unit_name, _) in zip(metrics, bases, strict=True):
        units[metric_name] = units.get(metric_name) or unit_name
    return pd.DataFrame(matrix.reshape(launches, len(columns)), columns=list(columns)), units


def _check_widths(page: log.Page, path: Path) -> None:
    """Refuse rows that are cut: only metrics of the details page may stop early, after their value."""
    needed = [
        "Kernel Name",
        *(f"Metric {part}" for part in ("Name", "Unit", "Value") if page.is_details),
    ]
    lacking = [name for name in needed if name not in page.header]
    if lacking:
        raise ReadError(f"{path}: the page has no column {lacking[0]!r}. {log.AGAIN}.")
    used = [*needed, *(name for name in page.header if name in LEADING or name == "Rule Name")]
    twice = next((name for name in used if page.header.count(name) > 1), None)
    if twice:
        raise ReadError(
            f"{path}: the page has two columns {twice!r}: the file was changed. {log.AGAIN}."
        )
    width = len(page.header)
    name, enough = (
        (page.header.index(needed[i]) for i in (1, -1)) if page.is_details else (0, width)
    )
    for number, row in enumerate(page.rows, 1):
        if len(row) != width and not (enough < len(row) < width and row[name]):
            raise ReadError(
                f"{path}: row {number:,} has {len(row):,} fields, the header has {width:,}: "
                f"the file is cut or was changed. {log.AGAIN}."
            )


def _check_size(launches: int, metrics: int, path: Path) -> None:
    """Refuse a page whose table would not fit into memory."""
    if launches * metrics > LARGEST:
        raise ReadError(
            f"{path}: the page has {launches:,} launches and {metrics:,} different metrics, more "
            f"than {LARGEST:,} values. Export fewer launches, for example with `--launch-count`."
        )


def metric(label: str, unit: str) -> str:
    """Return the metric a label of the details page stands for; a metric's own name stays as it is."""
    return LABELS.get((label, unit)) or LABELS.get((label, ""), label)


def joined(reports: Sequence[Report]) -> Report:
    """Return the parts of one file as one report, their launches numbered on."""
    if len(reports) == 1:
        return reports[0]
    rules: list[Rule] = []
    before = 0
    for report in reports:
        rules += [
            Rule(r.launch + before, r.rule, r.message, r.speedup_frac, r.scope)
            for r in report.rules
        ]
        before += len(report.launches)
    return Report(
        [launch for report in reports for launch in report.launches],
        pd.concat([report.values for report in reports], ignore_index=True),
        {metric: unit for report in reversed(reports) for metric, unit in report.units.items()},
        rules,
        reports[0].version,
        tuple(dict.fromkeys(note for report in reports for note in report.notes)),
    )


def blocks(text: str) -> int | None:
    """Return how many blocks or threads a size such as "(128, 2, 1)" holds, 256 here; None if it is none."""
    sizes = [size.strip() for size in text.strip("() ").split(",")]
    if not all(_SIZE.fullmatch(size) for size in sizes):
        return None
    count = prod(int(size) for size in sizes)
    return count if count <= MOST_BLOCKS else None
