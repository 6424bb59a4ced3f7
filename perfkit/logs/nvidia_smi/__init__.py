"""nvidia-smi: the logs of ``dmon`` and ``--query-gpu``, the inventory of ``-q`` as text or XML, and the plain table.

Record with ``nvidia-smi dmon -s pucvmet -o DT -f gpu.log`` or ``nvidia-smi
--query-gpu=timestamp,index,name,... --format=csv -l 1 -f gpu.csv``; the limits with ``nvidia-smi -q
-x -f gpu.xml``. Tried with drivers 470 to 610. dmon is read with any columns, with ``-o`` D, T or
DT and with ``--format csv``; ``--query-gpu`` with any columns in any order, with and without units,
under the names before and after driver 535. The table that ``nvidia-smi`` prints without an option
is read too, once or repeated; it has no clocks. What ``pmon`` and ``--query-compute-apps`` wrote is
of processes: no table has a place for it, `refused` says what to record.
"""

import re
from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit import tables
from perfkit.analysis.intervals import Float, Int
from perfkit.errors import ReadError
from perfkit.format import duration, several
from perfkit.logs.nvidia_smi import fields
from perfkit.logs.nvidia_smi.inventory import text_log, xml_log
from perfkit.logs.nvidia_smi.logs import (
    FAILED,
    dmon_log,
    header_names,
    is_dmon,
    is_query,
    query_log,
)
from perfkit.logs.nvidia_smi.plain_table import is_table, table_log
from perfkit.logs.text import EXACT, TEN_YEARS_NS, Asked, samples_table, unanswered
from perfkit.profile import QUERY, Loader, Missing, Profile
from perfkit.readers.text import capture_table, head, nullable

VERSION = 5
KIND = "monitor"
LARGEST = 4 * 10**9
READS = "a log of `nvidia-smi dmon` or `--query-gpu`, what `nvidia-smi -q` says, its plain table"
DIAGNOSIS = "perfkit.logs.diagnosis"
READ = {
    "dmon": dmon_log,
    "query": query_log,
    "table": table_log,
    "text": text_log,
    "xml": xml_log,
}

HEAD = 1 << 16
HEADLESS = re.compile(r"(?:\d+, )?\d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{3}, ")

Values = dict[str, Float]

FAR = 10  # usual distances between rows; where two lie further apart, rows may be missing
MANY = 10  # distances, at least, that make one of them usual
INVENTORY = "nvidia-smi -q -x -f gpus.xml"
IN_MIG_MODE = Missing(
    "SAMPLES.gpu_busy_frac",
    "How busy was each GPU (nvidia-smi does not measure it in MIG mode and on some GPUs)?",
    "dcgmi dmon -e 1001,1002,1004,1005",
)
ASKED = (
    Asked(("gpu_busy_frac",), "How busy was each GPU?", QUERY),
    Asked(("memory_used_bytes",), "How much GPU memory was in use?", QUERY),
    Asked(("memory_total_bytes",), "How large is the GPU memory?", INVENTORY),
    Asked(("power_w",), "How much power did each GPU draw?", QUERY),
    Asked(("power_limit_w",), "Which power limit did each GPU have?", INVENTORY),
    Asked(
        (
            *(
                "throttled_power_frac",
                "throttled_thermal_frac",
                "power_violation_frac",
                "thermal_violation_frac",
            ),
            *("throttled_sw_power_ns", "throttled_sw_thermal_ns"),
        ),
        "Was the clock lowered?",
        fields.DMON_COMMAND,
    ),
    Asked(
        ("pcie_rx_bytes_per_s", "pcie_tx_bytes_per_s"),
        "How much data crossed PCIe?",
        fields.DMON_COMMAND,
    ),
)


def sniff(path: Path) -> bool:
    """Say whether `path` is a log or an inventory of nvidia-smi, by the words of its header."""
    return form(path) in READ


def read(path: Path) -> Profile:
    """Read a log; GPUs go by its index, else their place in it, times by the first sample, and notes count N/A."""
    kind = form(path)
    if kind not in READ:
        raise ReadError(
            f"{path}: {refused(path) or 'no log of nvidia-smi. Record one with `nvidia-smi dmon`.'}"
        )
    return _filled(READ[kind](path))


def form(path: Path) -> str | None:
    """Return the form of a file that is read, by its first line that is not blank; None for any other."""
    start = head(path, HEAD).lstrip()
    line = _first(start)
    if is_dmon(line):
        return "dmon"
    if start.startswith(b"<") and b"<nvidia_smi_log" in start:
        return "xml"
    if re.fullmatch(r"=+NVSMI LOG=+", line):
        return "text"
    if is_table(start.decode(errors="replace")):
        return "table"
    return "query" if is_query(line) else None


def refused(path: Path) -> str | None:
    """Return what a file of nvidia-smi holds that no table has a place for, with what to record; None for others."""
    start = head(path, HEAD).lstrip()
    line = _first(start)
    words = line.removeprefix("#").split()
    if {"gpu", "pid", "type"} <= set(words):
        how = f"Record the GPUs with `{fields.DMON_COMMAND}`."
        return f"nvidia-smi pmon counts per process, and no table holds that. {how}"
    if {"pid", "used_gpu_memory"} <= {*header_names(line)} or {"pid", "used_memory"} <= {
        *header_names(line)
    }:
        return (
            "a list of processes (--query-compute-apps) says nothing of the GPUs. Record them "
            f"with `{QUERY}`."
        )
    if HEADLESS.match(line):
        return (
            "rows of nvidia-smi without a header do not say what they are. Record without "
            f"`noheader`: `{QUERY}`."
        )
    if line.startswith(FAILED):
        return f"nvidia-smi recorded nothing, it said {line[:200]!r}. Mend that and record again."
    return None


def _first(start: bytes) -> str:
    return start.partition(b"\n")[0].decode(errors="replace").strip()


def _filled(log: fields.Log) -> Profile:
    _check_times(log)
    try:
        values, absent = _metrics(log)
        throttled, partly = fields.throttling(log.columns)
    except fields.Unreadable as e:
        raise fields.unreadable(log.path, log.where, log.names.get(e.name, e.name), e) from e
    values |= throttled
    if not values:
        raise ReadError(
            f"{log.path}: no column has a value that is a metric of the GPU. Record `{QUERY}`."
        )
    devices = _devices(log, values)
    loaders: dict[str, Loader] = {"SAMPLES": partial(_samples, log.gpu, log.time_ns, values)}
    if len(devices):
        loaders["DEVICES"] = devices.copy
    names = several((name[:40] for name in log.unread), 5)
    unread = [f"columns that are no metric: {names}"] if names else []
    driver = log.columns["driver_version"].texts[0] if "driver_version" in log.columns else ""
    return Profile(
        reader="nvidia_smi",
        path=log.path,
        capture=capture_table(log.path, log.tool, driver, log.t0_unix_ns, int(log.time_ns.max())),
        loaders=loaders,
        missing=_missing(log, values, loaders),
        notes=(*log.notes, *_holes(log), *partly, *absent, *unread),
    )


def _check_times(log: fields.Log) -> None:
    """Refuse a row that is years from the others: the clock was not set, and no window would hold both."""
    if int(log.time_ns.max()) <= TEN_YEARS_NS:
        return
    from_most = log.time_ns - np.median(log.time_ns)
    row = int(np.abs(from_most).argmax())
    years = 10 * float(from_most[row]) / TEN_YEARS_NS
    raise ReadError(
        f"{log.path}: {log.where(row)} was written {abs(years):.0f} years "
        f"{'before' if years < 0 else 'after'} most "
        "others. Take the line out of the log, or record the log again."
    )


def _holes(log: fields.Log) -> list[str]:
    """Note where rows of the first GPU lie much further apart than usual: what stood between them may be lost."""
    rows = np.flatnonzero(log.gpu == log.gpu[0])
    steps = np.diff(log.time_ns[rows])
    usual = float(np.median(steps)) if len(steps) >= MANY else 0
    far = np.flatnonzero(steps > FAR * usual) if usual > 0 else steps[:0]
    if not len(far):
        return []
    longest, first = duration(float(steps[far].max())), log.where(int(rows[far[0] + 1]))
    return [
        f"a row usually follows after {duration(usual)}, {len(far)} after up to {longest} (the "
        f"first is {first}): rows may be missing"
    ]


def _metrics(log: fields.Log) -> tuple[Values, list[str]]:
    """Return the values of each metric, and what was not available."""
    values: Values = {}
    absent: list[str] = []
    for metric, names in fields.FIELDS.items():
        for name in names:
            if name not in log.columns:
                continue
            column = log.columns[name]
            try:
                distinct, codes = fields.amounts(column.texts, column.unit, metric), column.codes
            except ValueError as e:
                raise fields.Unreadable(name, column, e.args[0]) from None
            lacking = int(np.isnan(distinct)[codes].sum()) if np.isnan(distinct).any() else 0
            if lacking:
                absent.append(f"{log.names.get(name, name)} {lacking} of {len(codes)}")
            if lacking < len(codes):
                values[metric] = distinct[codes]
                break
    return values, [f"not available: {', '.join(absent)}"] if absent else []


def _samples(gpu: NDArray[np.int32], times: Int, values: Values) -> pd.DataFrame:
    order = np.lexsort((times, gpu))
    gpus, starts = np.unique(gpu[order], return_index=True)
    points = {}
    for number, rows in zip(gpus.tolist(), np.split(order, starts[1:]), strict=True):
        for metric in sorted(values):
            column = values[metric][rows]
            there = ~np.isnan(column)
            points[0, number, metric] = times[rows][there], column[there]
    return samples_table(points)


def _devices(log: fields.Log, values: Values) -> pd.DataFrame:
    """Return DEVICES of the GPUs whose name is recorded."""
    gpus, first = np.unique(log.gpu, return_index=True)
    name = log.columns.get("name", log.columns.get("gpu_name"))
    if name is None:
        return tables.DEVICES.empty()

    def number(metric: str) -> Float:
        return values.get(metric, np.full(len(log.gpu), np.nan))[first]

    capability = log.columns.get("compute_cap")
    capabilities = _texts(capability, first) if capability else [""] * len(first)
    sizes = number("memory_total_bytes")
    exact = np.abs(sizes) < EXACT  # False for NaN
    columns = {
        "gpu": gpus,
        "name": _texts(name, first),
        "compute_capability": [
            text if re.fullmatch(r"\d+\.\d+", text) else "" for text in capabilities
        ],
        "memory_bytes": nullable(np.where(exact, np.rint(sizes), 0).astype(np.int64), ~exact),
        "clock_hz": number("sm_max_clock_hz"),
    }
    return tables.DEVICES.make(pd.DataFrame(columns).assign(rank=0))


def _texts(column: fields.Column, rows: Int) -> list[str]:
    return [column.texts[code] for code in column.codes[rows]]


def _missing(log: fields.Log, values: Values, loaders: Mapping[str, object]) -> tuple[Missing, ...]:
    lacking = unanswered(ASKED, values)
    if "utilization.gpu" in log.columns and "gpu_busy_frac" not in values:
        lacking[0] = IN_MIG_MODE
    if "DEVICES" not in loaders:
        lacking.append(Missing("DEVICES", "Which GPUs were used?", INVENTORY))
    return tuple(lacking)
