"""Which operators run that a training step or an inference would do without?

Each check names operators by a pattern and says what they must do to count: an ``aten::item`` of a tensor on the CPU
costs nothing, one that calls CUDA waits for the GPU. Operators count once per check, the outermost.

Launching takes the CPU about 5 to 10 us, so a kernel is short when it runs for less than `SHORT_NS`. That constant only
selects: whether launching holds the GPU up is for the measured `interval_ns` to say, the time from one launch call of a
thread to its next. Where it exceeds the kernels' time, the GPU waits for the CPU. Nodes of a graph are launched
together: they have no interval.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis.causes import Axis, is_graph_launch, is_memory, numbered_together, started_by, where
from perfkit.analysis.grouping import grouped, numbered, ranked
from perfkit.analysis.intervals import Int
from perfkit.analysis.operators.join import (
    THREAD_KEYS,
    launching,
    named,
    outermost,
    parents,
    rolled_up,
    running,
    starts_inside,
    sums,
)
from perfkit.analysis.steps import STEPS
from perfkit.analysis.window import Window, cut
from perfkit.names.decoding import decode
from perfkit.tables import API_CALLS, COPIES, KERNELS, OPS

SHORT_NS = 10_000


@dataclass(frozen=True)
class Check:
    """Operators that match `pattern` and have `having` are unexpected: why, and what to do instead."""

    check: str
    pattern: str
    having: str  # one of _traits
    why: str
    instead: str


CHECKS = (
    Check(
        "scalar read",
        r"aten::(?:item|_local_scalar_dense|is_nonzero|equal)",
        "cuda",
        "hands one value to Python, for which the CPU waits until the GPU is done",
        "keep the value on the GPU (torch.where, masks), and read what is only logged every hundredth step",
    ),
    Check(
        "size from values",
        r"aten::(?:nonzero|argwhere|masked_select|_?unique\w*|repeat_interleave|bincount)",
        "cuda",
        "makes a tensor whose size depends on values, for which the CPU waits until the GPU is done",
        "compute with masks instead of selecting (torch.where), or give the size (output_size=, nonzero_static)",
    ),
    Check(
        "device to host copy",
        r".*",
        "to_host",
        "copies a tensor to the CPU, which waits for it unless it goes to pinned memory",
        "keep the tensor on the GPU; else copy into pinned memory with non_blocking=True",
    ),
    Check(
        "pageable host to device copy",
        r".*",
        "pageable",
        "copies from pageable memory, which the CPU stages itself while the GPU waits for the data",
        "pin_memory=True in the DataLoader and .to(device, non_blocking=True); make constants on the GPU once",
    ),
    Check(
        "layout copy",
        r"aten::(?:contiguous|clone)",
        "gpu",
        "writes a tensor anew to change its layout",
        "keep one layout throughout (channels_last, or the transpose inside the matrix product)",
    ),
    Check(
        "double precision",
        r".*",
        "double",
        "computes in double precision, which has no or few units on most GPUs",
        "look for a Python or NumPy float that made a float64 tensor, and make it float32",
    ),
    Check(
        "memory from the driver",
        r".*",
        "driver_memory",
        "asks the driver for memory or gives it back, for which the GPU runs dry",
        "after warm-up the caching allocator needs neither: no empty_cache() in the loop, sizes that repeat, "
        "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    ),
)


def unexpected(
    ops: pd.DataFrame,
    kernels: pd.DataFrame,
    copies: pd.DataFrame,
    api_calls: pd.DataFrame,
    *,
    window: Window | None = None,
) -> pd.DataFrame:
    """Return the operators that a step would do without, per check (`CHECKS`) and operator.

    In a window operators count with the part inside.

    Returns
    -------
    pandas.DataFrame
        In the order of `CHECKS`, then by falling `cpu_total_ns`: `check` string; `name` category, the operator; `count`
        int64; `cpu_total_ns` int64, time of the CPU in them; `gpu_total_ns` int64, time of the kernels and copies that
        they and operators nested in them launched, whole; `why`, `instead` string.
    """
    parent = parents(OPS.check(ops))
    traits, gpu = _traits(ops, parent, KERNELS.check(kernels), COPIES.check(copies), API_CALLS.check(api_calls))
    inside = cut(ops[["start_ns", "dur_ns"]].assign(row=np.arange(len(ops))), window)
    cpu = np.full(len(ops), -1, np.int64)
    cpu[inside["row"].to_numpy()] = inside["dur_ns"].to_numpy()
    found = [_of_check(check, ops, parent, traits[check.having], cpu, gpu) for check in CHECKS]
    return pd.concat(found, ignore_index=True).astype({"check": "string", "why": "string", "instead": "string"})


def _of_check(
    check: Check, ops: pd.DataFrame, parent: Int, having: NDArray[np.bool_], cpu: Int, gpu: Int
) -> pd.DataFrame:
    """Return the rows of one check; `cpu` is negative for operators outside of the window."""
    matches = where(ops["name"], re.compile(check.pattern).fullmatch) & having
    counted = np.flatnonzero(matches)
    counted = counted[outermost(parent, matches.astype(np.int64), counted) & (cpu[counted] >= 0)]
    table, group = numbered(ops[["name"]].take(counted), ["name"])
    table.insert(0, "check", check.check)
    figures = grouped(cpu[counted], group, len(table))
    table["count"], table["cpu_total_ns"] = figures["count"], figures["total"]
    table["gpu_total_ns"] = sums(gpu[counted], group, len(table))
    table = table.sort_values("cpu_total_ns", ascending=False, kind="stable")
    return table.assign(why=check.why, instead=check.instead)


def _traits(
    ops: pd.DataFrame, parent: Int, kernels: pd.DataFrame, copies: pd.DataFrame, api_calls: pd.DataFrame
) -> tuple[dict[str, NDArray[np.bool_]], Int]:
    """Return what each operator does, itself or (cuda, gpu) in those nested in it, and its GPU time with these."""
    op_of_call = np.append(running(ops, parent, api_calls), -1)
    launches = [op_of_call[started_by(table, api_calls)] for table in (kernels, copies)]
    to_host = (copies["direction"] == "D2H").to_numpy()
    pageable = ((copies["direction"] == "H2D") & (copies["src_memory"] == "pageable")).to_numpy()
    memory = where(api_calls["name"], is_memory)

    def count(row: Int) -> Int:
        return np.bincount(row[row >= 0], minlength=len(ops)).astype(np.int64)

    both = np.concatenate(launches)
    dur = np.concatenate([kernels["dur_ns"].to_numpy(), copies["dur_ns"].to_numpy()])
    traits = {
        "cuda": rolled_up(count(op_of_call[:-1]), parent) > 0,
        "gpu": rolled_up(count(both), parent) > 0,
        "to_host": count(launches[1][to_host]) > 0,
        "pageable": count(launches[1][pageable]) > 0,
        # Of the operands' types "double" is also said of a Python number, which is computed with in single precision.
        "double": count(launches[0][where(kernels["full_name"], lambda name: decode(name).precision == "fp64")]) > 0,
        "driver_memory": count(op_of_call[:-1][memory]) > 0,
    }
    return traits, rolled_up(sums(dur[both >= 0], both[both >= 0], len(ops)), parent)


def many_small(
    ops: pd.DataFrame,
    kernels: pd.DataFrame,
    api_calls: pd.DataFrame,
    *,
    below_ns: int = SHORT_NS,
    steps: pd.DataFrame | None = None,
    window: Window | None = None,
) -> pd.DataFrame:
    """Return the operators whose kernels have a median duration below `below_ns`, by falling number of launches.

    Parameters
    ----------
    below_ns
        Median from which on an operator's kernels are not short, ns, above 0, else ValueError.
    steps
        What `perfkit.analysis.steps.detect` returned, for launches per step.
    window
        Only kernels that start in it; none is cut.

    Returns
    -------
    pandas.DataFrame
        By falling `count`, ties by name: `name` category, of the operator that launches, missing for kernels without
        one; `count` int64, kernels; `total_ns` int64, `mean_ns`, `median_ns` float64, of their durations; `count_frac`,
        `share_frac` float64, count and total_ns over those of all kernels (share_frac NaN where these take no time);
        `interval_ns` float64, median time from the operator's launch calls to the next of the same thread, NaN where
        there is none; `per_step_count` float64, kernels that start in a step over the number of steps of all ranks, NaN
        without steps.
    """
    if below_ns <= 0:
        raise ValueError(f"below_ns: {below_ns} is not positive. Give a duration in ns, such as {SHORT_NS}.")
    steps = STEPS.empty() if steps is None else STEPS.check(steps)
    parent = parents(OPS.check(ops))
    call, op = launching(ops, parent, KERNELS.check(kernels), API_CALLS.check(api_calls))
    found = kernels[["rank", "start_ns", "dur_ns"]].assign(name=named(ops, op), interval=_intervals(api_calls, call))
    found = found[starts_inside(found, window)]
    table, group = numbered(found, ["name"])
    figures = grouped(found["dur_ns"].to_numpy(), group, len(table))
    table["count"], table["total_ns"] = figures["count"], figures["total"]
    table["mean_ns"], table["median_ns"] = figures["mean"], figures["median"]
    table["count_frac"] = table["count"] / (len(found) or np.nan)
    table["share_frac"] = table["total_ns"] / (table["total_ns"].sum() or np.nan)
    waits = found["interval"].to_numpy()
    table["interval_ns"] = grouped(waits[waits >= 0], group[waits >= 0], len(table))["median"]
    inside = np.bincount(group[_in_a_step(found, steps)], minlength=len(table))
    table["per_step_count"] = inside / (len(steps) or np.nan)
    return ranked(table[table["median_ns"] < below_ns], "count", ["name"])


def _intervals(api_calls: pd.DataFrame, call: Int) -> Int:
    """Return the time from the launch call of each kernel to the thread's next one, ns, -1 where there is none."""
    launches = np.flatnonzero(np.bincount(call[call >= 0], minlength=len(api_calls)))
    there = api_calls.take(launches)
    (thread,) = numbered_together([there], THREAD_KEYS)
    step, same = np.diff(there["start_ns"].to_numpy()), np.diff(thread) == 0
    alone = ~where(there["name"], is_graph_launch)
    found = np.full(len(api_calls) + 1, -1, np.int64)
    found[launches[:-1]] = np.where(same & alone[:-1], step, -1)
    return found[call]


def _in_a_step(kernels: pd.DataFrame, steps: pd.DataFrame) -> NDArray[np.bool_]:
    """Tell which kernels start in one of the steps, which do not overlap within a rank."""
    rank, of_step = numbered_together([kernels, steps], ["rank"])
    start, begin = kernels["start_ns"].to_numpy(), steps["start_ns"].to_numpy()
    axis = Axis.over(1 + int(max(rank.max(initial=0), of_step.max(initial=0))), start, begin)
    at = np.searchsorted(axis.at(of_step, begin), axis.at(rank, start), side="right") - 1
    end = np.append(begin + steps["dur_ns"].to_numpy(), np.iinfo(np.int64).min)
    return np.asarray((np.append(of_step, -1)[at] == rank) & (start < end[at]))
