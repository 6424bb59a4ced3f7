"""The machine of a run: what its GPU can do, and what its links carry.

Peaks are those of the data sheet of the GPU that the run names, with what `perfkit baseline` measured beside them;
there is no default GPU. Operations are held against measured roofs where both of them are, else the data sheet's.
"""

from __future__ import annotations

import csv
from dataclasses import dataclass
from pathlib import Path

import pandas as pd

from perfkit import hardware
from perfkit.analysis import communication, operations
from perfkit.errors import PerfkitError
from perfkit.format import MISSING, number, percent, size
from perfkit.hardware import Peaks
from perfkit.selection import Selection

PRECISIONS = ("bf16_tensor", "fp16_tensor", "fp32")  # what language models are trained in, the first that is known
ELEMENT = {"fp32": 4}  # bytes; the others have 2


@dataclass(frozen=True)
class Machine:
    """The GPU of a run, empty name if it is not known: its roofs, its dense peaks, and typical operations under them.

    `operations` is None where no roof is known, `why` says why nothing, or not all, is known. `precision` is the one
    that operations and trainings are held against, empty where its peak is not known.
    """

    name: str
    ceilings: pd.DataFrame
    peaks: Peaks | None
    operations: pd.DataFrame | None
    precision: str
    why: str

    @property
    def table(self) -> pd.DataFrame:
        """The roofs as text: roof, data sheet, measured, measured over data sheet, ridge in FLOP/byte."""
        rows = [
            (
                "memory" if row["roof"] == operations.MEMORY else spoken(str(row["roof"])),
                _rate(row["flops_per_s"], row["bytes_per_s"]),
                _rate(row["measured_flops_per_s"], row["measured_bytes_per_s"]),
                percent(row["measured_frac"]),
                number(row["ridge"]),
            )
            for row in self.ceilings.to_dict("records")
        ]
        return pd.DataFrame(rows, columns=["roof", "data sheet", "measured", "measured over data sheet", "ridge"])


def spoken(precision: str) -> str:
    """Return a precision as people write it: "BF16 tensor" for `bf16_tensor`."""
    kind, _, unit = precision.partition("_")
    return f"{kind.upper()} {unit}".strip()


def _rate(flops_per_s: float, bytes_per_s: float) -> str:
    if pd.notna(bytes_per_s):
        return f"{size(bytes_per_s)}/s"
    return MISSING if pd.isna(flops_per_s) else f"{number(flops_per_s / 1e12)} TFLOP/s"


def machine(view: Selection, *, peaks: str = "") -> Machine:
    """Return the GPU of a run with its roofs; a log that names none is held against the only GPU in `peaks`."""
    names = sorted({str(name) for name in view.devices["name"]})
    own = hardware.load_peaks(peaks) if peaks else ()
    name = names[0] if len(names) == 1 else own[0].name if not names and len(own) == 1 else ""
    sheet, measured = hardware.peaks(name), hardware.peaks(name, table=own)
    why = _unknown(names, name, sheet, measured, own)
    try:
        ceilings = operations.ceilings(peaks=sheet, measured=measured)
    except PerfkitError as e:
        ceilings, measured, why = operations.ceilings(peaks=sheet), None, str(e)
    rates = next((r for r in (measured, sheet) if r and r.memory_bytes_per_s and _precision(r)), None)
    precision, placed = _precision(rates or sheet or measured), None
    if rates:
        work = operations.work(element_bytes=ELEMENT.get(precision, 2))
        placed = operations.attainable(work, peaks=rates, precision=precision)
    return Machine(name, ceilings, sheet or measured, placed, precision, why)


def _precision(rates: Peaks | None) -> str:
    return next((name for name in PRECISIONS if rates and name in rates.flops_per_s), "")


def _unknown(names: list[str], name: str, sheet: Peaks | None, measured: Peaks | None, own: tuple[Peaks, ...]) -> str:
    """Return why the peaks of the GPU, or what was measured on it, are not known; empty if they are."""
    if len(names) > 1:
        return f"the run has GPUs of several kinds ({', '.join(names)}), and ceilings are of one: choose with `gpus`"
    if not name:
        return "the run does not name its GPU, and no file holds the peaks of one"
    if measured is None and own:
        return f"the file of peaks does not hold {name}, but {', '.join(row.name for row in own[:5])}"
    if sheet is None and measured is None:
        return f"the peaks of {name} are not known, neither from a data sheet nor measured"
    return ""


@dataclass(frozen=True)
class LineRate:
    """What the links of a GPU carry in one direction, None if it is not known; and where that comes from, or why."""

    bytes_per_s: float | None
    why: str


def line_rate(view: Selection, *, peaks: str = "") -> LineRate:
    """Return the line rate that collectives can be held against: NVLink's, where all ranks are on one node of it.

    It is half of the data sheet's NVLink bandwidth, which is of both directions, where each rank has a GPU of the first
    node to itself and the GPUs are modules that a switch or a full mesh joins; bridges of PCIe cards join two. The
    speed
    of a network is in no log.
    """
    crossing = communication.plateau(view.collectives)
    ranks, gpus = crossing["ranks"].max(), len(view.devices[["rank", "gpu"]].drop_duplicates())
    if crossing.empty:
        return LineRate(None, "no bus bandwidth is known")
    if ranks > gpus:
        return LineRate(
            None, f"{ranks} ranks on nodes of {gpus} GPUs cross a network, whose speed the log does not say"
        )
    transports = view.run.links["transport"].dropna().astype("string").unique()
    slow = [transport for transport in transports if not transport.startswith("P2P")]
    if slow:
        return LineRate(None, f"not all ranks are joined by NVLink: {', '.join(slow[:3])}")
    found = machine(view, peaks=peaks)
    both = _nvlink(found.peaks.key) if found.peaks else None
    if both is None:
        return LineRate(None, f"the data sheet known for {found.name or 'the GPU'} says no speed of links between all")
    return LineRate(both / 2, f"NVLink of {found.name}, one direction, as its data sheet says")


def _nvlink(key: str) -> float | None:
    """Return the bytes/s in both directions of a module on a board that joins all GPUs, None for other cards."""
    if "sxm" not in key:
        return None
    with Path(hardware.__file__).with_name("gpus.csv").open(encoding="utf-8", newline="") as file:
        cell = next((row["nvlink_gbs_bidir"] for row in csv.DictReader(file) if row["key"] == key), "")
    return float(cell) * 1e9 if cell else None
