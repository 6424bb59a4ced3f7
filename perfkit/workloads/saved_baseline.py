"""Baselines as files: JSON with every repeat's median and spread, and beside it a row of peaks."""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, TextIO

import pandas as pd

from perfkit import hardware
from perfkit.errors import PerfkitError
from perfkit.workloads.baseline import COPY_RATES, GEMMS, INSIDE, Device, device

KIND = "perfkit baseline"
TABLES = {"gemm": GEMMS, "copy": COPY_RATES}
UNITS = {
    "_ns": "nanoseconds",
    "_flops": "floating-point operations",
    "_bytes": "bytes",
    "_count": "a number of things",
    "_frac": "a fraction of 1",
    "_per_s": "per second",
}


def saved(out: str | Path, *, gemm: pd.DataFrame | None = None, copy: pd.DataFrame | None = None) -> tuple[Path, Path]:
    """Save what was measured on this machine, beside what the file already holds of it.

    `out` is a JSON file, made or completed, with device, PyTorch's version, date, units and rows, NaN as null; what it
    says of the same kind of work is replaced. Beside it, the second path returned, lies a CSV file of the same name
    that `hardware.load_peaks` reads: the highest rate of each precision, and the bandwidth of copies inside the
    device's memory. `gemm` and `copy` are GEMMS and COPY_RATES, at least one.

    Raises
    ------
    ValueError
        If there is nothing to save, or `out` does not end in .json.
    PerfkitError
        If `out` holds something else or the baseline of another device, or a file cannot be written.
    """
    out = Path(out)
    content = held(out)
    measured = {kind: frame for kind, frame in (("gemm", gemm), ("copy", copy)) if frame is not None}
    if not measured:
        raise ValueError("gemm, copy: neither is given")
    stamp = {"date": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}", "torch": str(device().torch.__version__)}
    for kind, frame in measured.items():
        content[kind] = {**stamp, "rows": _rows(TABLES[kind].check(frame))}
    row = _peaks(content)
    _replace(out, lambda file: json.dump(content, file, indent=1, ensure_ascii=False, allow_nan=False))
    _replace(out.with_suffix(".csv"), lambda file: _write_row(file, row))
    return out, out.with_suffix(".csv")


def held(out: str | Path) -> dict[str, Any]:
    """Return what a file says of this device, or the beginning of a new one; refused as by `saved`."""
    out = Path(out)
    if out.suffix != ".json":
        raise ValueError(f"out: {out} does not end in .json")
    used = device()
    described = {"name": used.name, "kind": used.kind, **_hardware(used)}
    fresh = {"kind": KIND, "perfkit": version("perfkit"), "device": described, "units": UNITS}
    if not out.exists():
        if out.with_suffix(".csv").exists():
            raise PerfkitError(
                f"{out.with_suffix('.csv')}: the file is there already. Choose another name, or remove it."
            )
        return fresh
    content = _read(out)
    if content.get("device") != described:
        raise PerfkitError(f"{out}: holds the baseline of another device than {used.name}. Choose another name.")
    return {**fresh, **{kind: content[kind] for kind in TABLES if kind in content}}


def _read(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as e:
        raise PerfkitError(f"{path}: cannot be read as JSON ({e}). Choose another name, or remove it.") from e
    if not isinstance(content, dict) or content.get("kind") != KIND:
        raise PerfkitError(f"{path}: holds something else than a baseline. Choose another name.")
    return content


def _hardware(used: Device) -> dict[str, Any]:
    torch = used.torch
    if used.capability is None:
        return {"threads_count": torch.get_num_threads()}
    sms = torch.cuda.get_device_properties(torch.cuda.current_device()).multi_processor_count
    return {"compute_capability": ".".join(map(str, used.capability)), "sm_count": sms}


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return the rows of a frame as JSON has them."""
    records = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return [{str(name): value for name, value in row.items()} for row in records]


def _peaks(content: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of gpus.csv: what was measured, in its units."""
    limits = {name: str(content["device"].get(name, "")) for name in ("compute_capability", "sm_count")}
    row = {"name_nvidia_smi": content["device"]["name"], **limits}
    for product in content.get("gemm", {}).get("rows", []):
        column = hardware.PRECISIONS.get(product["precision"])
        if column:
            row[column] = max(row.get(column, 0.0), product["flops_per_s"] / 1e12)
    for copies in content.get("copy", {}).get("rows", []):
        if copies["direction"] in INSIDE:
            row["mem_bw_gbs"] = copies["bytes_per_s"] / 1e9
    stamps = [content[kind] for kind in TABLES if kind in content]
    source = f"measured by perfkit baseline with PyTorch {', '.join(sorted({stamp['torch'] for stamp in stamps}))}"
    return {**row, "source": source, "as_of": max(stamp["date"] for stamp in stamps)[:10]}


def _write_row(file: TextIO, row: Mapping[str, Any]) -> None:
    writer = csv.DictWriter(file, list(row), lineterminator="\n")
    writer.writeheader()
    writer.writerow(row)


def _replace(path: Path, write: Callable[[TextIO], object]) -> None:
    """Write a file under another name, and rename it when it is whole."""
    part = path.with_name(f".{os.getpid()}-{path.name}")
    try:
        with part.open("w", encoding="utf-8", newline="") as file:
            write(file)
        os.replace(part, path)
    except OSError as e:
        raise PerfkitError(f"{path}: cannot be written ({e.strerror}). Choose another place.") from e
    finally:
        part.unlink(missing_ok=True)
