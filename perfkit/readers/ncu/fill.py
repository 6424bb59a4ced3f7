"""The other tables of a report: COUNTERS, STALLS, RULES, DEVICES and CAPTURE, and what is missing.

Conventions
-----------
COUNTERS holds every number of the report but the attributes of the device, also those LAUNCHES and STALLS are made
of, so that each figure can be traced. STALLS holds one form per launch, never a mixture: average warps per issued
instruction where measured, else warp cycles, else samples; the other forms stay in COUNTERS. Reasons are named
as in the metrics (`long_scoreboard`); `selected` is the state of issuing, not a stall.

Functions
---------
counters   COUNTERS; has_counters says whether it has rows
stalls     STALLS
rules      RULES
devices    DEVICES
capture    CAPTURE
missing    what the report cannot answer, and how to record it
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pandas as pd

from perfkit import tables
from perfkit.profile import Missing
from perfkit.readers.ncu.launches import gpus
from perfkit.readers.ncu.report import Report

ATTRIBUTE = "device__attribute_"
# Of the hundreds of attributes, those that the limits of an SM are computed from.
LIMITS = {
    f"{ATTRIBUTE}{name}"
    for name in (
        "max_warps_per_multiprocessor",
        "max_registers_per_multiprocessor",
        "max_shared_memory_per_multiprocessor",
        "max_blocks_per_multiprocessor",
        "multiprocessor_count",
        "compute_capability_major",
    )
}
_STALLED = r"issue_stalled_(?!\w*(?:_pipe_(?!throttle)|_not_issued))(\w+?)"  # the whole of a reason, not its parts
STALL_FORMS = [
    re.compile(form)
    for form in (
        rf"smsp__average_warps_{_STALLED}_per_issue_active\.ratio",
        rf"smsp__average_warp_latency_{_STALLED}\.ratio",
        rf"smsp__pcsamp_warps_{_STALLED}",
        r"smsp__pcsamp_warps_issue_stalled_(\w+)_not_issued",
        rf"smsp__warp_{_STALLED}_per_warp_active\.pct",
    )
]
SPELLINGS = {"no_instructions": "no_instruction"}  # the sampled counters use the plural
CORE = "sm__sass_thread_inst_executed_op_"
REMEDIES = {
    "dur_ns": ("no durations", "ncu --metrics gpu__time_duration.sum"),
    "fp32_flops": (
        "no floating-point operations on CUDA cores",
        "ncu --set full --metrics "
        + ",".join(f"{CORE}{p}{op}_pred_on.sum" for p in "dfh" for op in ("add", "mul", "fma")),
    ),
    "tensor_flops": (
        "no operations on tensor cores",
        "ncu --set full --metrics regex:sm__ops_path_tensor_.*sum$",
    ),
    "dram_bytes": (
        "no device-memory traffic",
        "ncu --metrics dram__bytes_read.sum,dram__bytes_write.sum "
        "(GeForce RTX 50: dram__bytes_op_read.sum,dram__bytes_op_write.sum)",
    ),
}


def has_counters(report: Report) -> bool:
    """Say whether COUNTERS has a row."""
    return bool(report.values[_counters(report)].notna().any(axis=None))


def _counters(report: Report) -> list[str]:
    return sorted(metric for metric in report.metrics if metric in LIMITS or not metric.startswith(ATTRIBUTE))


def counters(report: Report) -> pd.DataFrame:
    """Return COUNTERS: one row per number of a launch."""
    metrics = _counters(report)
    values = report.values[metrics].to_numpy()
    launch, metric = np.nonzero(~np.isnan(values))
    units = [report.units.get(name, "") for name in metrics]
    kinds = sorted(set(units))
    unit_codes = np.array([kinds.index(unit) for unit in units], np.int64)
    frame = {
        "rank": 0,
        "launch": launch,
        "metric": pd.Categorical.from_codes(metric, pd.Index(metrics, dtype=object)),
        "unit": pd.Categorical.from_codes(unit_codes[metric], pd.Index(kinds, dtype=object)),
        "value": values[launch, metric],
    }
    return tables.COUNTERS.make(pd.DataFrame(frame))


def stalls(report: Report) -> pd.DataFrame:
    """Return STALLS: one row per reason of a launch, in the first form the launch has."""
    without = np.ones(len(report.launches), bool)
    parts = []
    for form in STALL_FORMS:
        reasons = {metric: found[1] for metric in report.metrics if (found := form.fullmatch(metric))}
        values = report.values[list(reasons)].to_numpy()
        launch, reason = np.nonzero(~np.isnan(values) & without[:, None])
        spelled = [SPELLINGS.get(name, name) for name in reasons.values()]
        found_values = values[launch, reason]
        parts.append(pd.DataFrame({"launch": launch, "reason": [spelled[i] for i in reason], "value": found_values}))
        without[launch] = False
    frame = pd.concat([part for part in parts if len(part)] or parts[:1], ignore_index=True)
    return tables.STALLS.make(frame.assign(rank=0, node=-1))


def rules(report: Report) -> pd.DataFrame:
    """Return RULES: one row per message of the guided analysis."""
    frame = pd.DataFrame(report.rules, columns=["launch", "rule", "message", "speedup_frac", "scope"])
    return tables.RULES.make(frame.assign(rank=0))


def devices(report: Report) -> pd.DataFrame:
    """Return DEVICES: one row per GPU whose attributes the report holds."""

    def attribute(name: str) -> pd.Series:
        return pd.Series(report.column(ATTRIBUTE + name))

    memory_clock_hz, bus_bits = attribute("memory_clock_rate") * 1e3, attribute("global_memory_bus_width")
    frame = pd.DataFrame(
        {
            "rank": 0,
            "gpu": gpus(report),
            "name": [launch.device_name for launch in report.launches],
            "compute_capability": [launch.capability for launch in report.launches],
            "sm_count": attribute("multiprocessor_count").astype("Int64"),
            "memory_bytes": attribute("total_memory").astype("Int64"),
            "memory_bytes_per_s": 2 * memory_clock_hz * bus_bits / 8,  # two transfers a cycle, as CUDA's deviceQuery
            "clock_hz": attribute("clock_rate") * 1e3,
        }
    )
    return tables.DEVICES.make(frame[frame["sm_count"].notna()].drop_duplicates("gpu"))


def capture(report: Report, path: Path) -> pd.DataFrame:
    """Return CAPTURE: the report has no clock, its launches were measured one by one."""
    frame = {"rank": 0, "tool": "Nsight Compute", "tool_version": report.version, "path": str(path), "dur_ns": 0}
    return tables.CAPTURE.make(pd.DataFrame({**frame, "t0_unix_ns": pd.array([None], dtype="Int64")}))


def missing(launches: pd.DataFrame, present: set[str]) -> tuple[Missing, ...]:
    """Return what the report cannot answer, with the options of ncu that record it."""
    lacking = [Missing(f"LAUNCHES.{column}", *REMEDIES[column]) for column in REMEDIES if _lacks(launches, column)]
    if "STALLS" not in present:
        lacking.append(Missing("STALLS", "no stall reasons", "ncu --section WarpStateStats --section SourceCounters"))
    if "RULES" not in present:
        lacking.append(Missing("RULES", "no guided analysis", "ncu --set full --csv --page details"))
    if "DEVICES" not in present:
        lacking.append(Missing("DEVICES", "no attributes of the GPU", "ncu --import REPORT --csv --page raw"))
    return tuple(lacking)


def _lacks(launches: pd.DataFrame, column: str) -> bool:
    together = ["fp64_flops", "fp32_flops", "fp16_flops"] if column == "fp32_flops" else [column]
    return bool(launches[together].isna().all(axis=None))
