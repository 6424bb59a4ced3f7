"""What a trace did not record, and what a reader of its figures should know."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from perfkit.format import printable
from perfkit.profile import Missing
from perfkit.readers.torch_trace.gpu import GRAPH_LAUNCH
from perfkit.readers.torch_trace.reading import Reading

GPU_ACTIVITY = "torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])"
REMEDIES = {
    "KERNELS": ("no GPU kernels", GPU_ACTIVITY),
    "COPIES": ("no copies between host and device", GPU_ACTIVITY),
    "API_CALLS": ("no CUDA calls of the CPU, so idle time has no cause", GPU_ACTIVITY),
    "OPS": ("no operators", GPU_ACTIVITY),
    "RANGES": ("no profiler steps and no annotations", "prof.step() after every step, or record_function"),
    "PYTHON_CALLS": ("no Python stacks", "torch.profiler.profile(with_stack=True)"),
    "SAMPLES": ("no memory of the allocators", "torch.profiler.profile(profile_memory=True)"),
    "DEVICES": ("no description of the GPUs, so no peaks", "a PyTorch that writes deviceProperties into its traces"),
}


def missing(present: set[str]) -> tuple[Missing, ...]:
    """Return what the trace did not record, with the option that records it."""
    return tuple(Missing(table, *REMEDIES[table]) for table in REMEDIES if table not in present)


def notes(reading: Reading, frames: Mapping[str, pd.DataFrame]) -> tuple[str, ...]:
    """Return what a reader of the figures should know about this trace."""
    amd = reading.header.amd
    old_memory = "SAMPLES" in reading.spans and "SAMPLES" not in frames
    totals = ["memory events carry no totals, as in traces of 2021, so there are no SAMPLES"] if old_memory else []
    return (
        *_of_the_file(reading),
        *totals,
        *_of_the_options(frames),
        *_of_the_gpus(frames, amd),
        *_of_the_launches(frames),
    )


def _of_the_file(reading: Reading) -> list[str]:
    said = []
    simulated = reading.source.header.get("SIMULATED")
    if isinstance(simulated, str):
        said.append(f"simulated, not measured: {printable(simulated, 200)}")
    if not reading.source.finished or reading.source.packed_end_lost:
        said.append(
            "the file ends before its trace does (a killed job, or a copy cut short): it is read up to its last "
            f"whole event, and {reading.source.dropped} bytes of what follows are dropped"
        )
    backwards = sum(spans.backwards for spans in reading.spans.values())
    if backwards:
        said.append(f"events that end before they start are left out ({backwards})")
    if reading.header.distributed.rank is not None and reading.header.rank is None:
        said.append(f"the trace states rank {reading.header.distributed.rank}, which is none: left out")
    if reading.misdated:
        said.append(
            f"events more than ten years before or after most others, or as long, are left out ({reading.misdated})"
        )
    if reading.left_out:
        listed = ", ".join(f"{n} {category or 'without category'}" for category, n in reading.left_out.most_common(5))
        said.append(f"events of categories that no table holds are left out ({listed})")
    return said


def _of_the_options(frames: Mapping[str, pd.DataFrame]) -> list[str]:
    """Name the options of the profiler that would have told more about operators and steps."""
    said = []
    if "OPS" in frames and frames["OPS"]["shapes"].isna().all():
        said.append("no shapes of operators were recorded: torch.profiler.profile(record_shapes=True) records them")
    if "RANGES" in frames and not (frames["RANGES"]["kind"] == "step").any():
        said.append("no profiler steps were recorded: prof.step() after every step of the program marks them")
    return said


def _of_the_gpus(frames: Mapping[str, pd.DataFrame], amd: bool) -> list[str]:
    said = []
    used = {int(gpu) for table in ("KERNELS", "COPIES") if table in frames for gpu in frames[table]["gpu"].unique()}
    if used and amd:
        numbers = ", ".join(map(str, sorted(used)))
        said.append(
            f"gpu of kernels and copies is AMD's number of the device ({numbers}), "
            "which need not be its number in DEVICES and in SAMPLES"
        )
    if "COPIES" in frames and (unsized := int((frames["COPIES"]["bytes"] == 0).sum())):
        said.append(f"{unsized} of {len(frames['COPIES'])} copies and memsets carry no size, their bytes are 0")
    if "KERNELS" in frames:
        known = len(frames.get("COLLECTIVES", ()))
        silent = int((frames["KERNELS"]["family"] == "communication").sum()) - known
        if silent > 0:
            said.append(
                f"{silent} of {silent + known} collective kernels tell no message size (PyTorch 2.4 or newer does) "
                "and are not in COLLECTIVES"
            )
    return said


def _of_the_launches(frames: Mapping[str, pd.DataFrame]) -> list[str]:
    """Say how many operations have no call that launched them, and how many graph launches no kernels."""
    ids = [frames[table]["correlation"].to_numpy() for table in ("KERNELS", "COPIES") if table in frames]
    if not ids:
        return []
    operations = np.concatenate(ids)
    if "API_CALLS" not in frames:
        return [f"none of the {len(operations)} GPU operations has a call that launched it: no calls were recorded"]
    calls = frames["API_CALLS"]
    said = []
    orphans = int((~np.isin(operations, calls["correlation"])).sum())
    if orphans:
        share = f"{orphans / len(operations):.1%}"
        said.append(f"{orphans} of {len(operations)} GPU operations ({share}) have no call that launched them")
    names = [name for name in calls["name"].cat.categories if GRAPH_LAUNCH in name]
    graphs = calls.loc[calls["name"].isin(names), "correlation"]
    empty = int((~graphs.isin(operations)).sum())
    if empty:
        said.append(
            f"{empty} of {len(graphs)} graph launches have no kernels in the trace: "
            "idle time of the GPU cannot be determined"
        )
    if (calls["process"] != calls["process"].iloc[0]).any():
        said.append("several processes made CUDA calls, and kernels do not say which of them launched one")
    return said
