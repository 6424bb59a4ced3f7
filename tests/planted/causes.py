"""What would be recorded of a program in which one thing, or two, are known to be wrong?

A run is that of `planted.program`, with what its settings cannot plant added to the tables: ranges around the steps,
names of kernels, readings of the GPU's sensors, counters. What is planted is known because the program does it, not
because a threshold says so. Times are int64 ns.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from planted.program import Settings, simulated
from sampled import devices

from perfkit.tables import COUNTERS, KERNELS, LAUNCHES, RANGES, SAMPLES

Tables = dict[str, pd.DataFrame]
Moments = np.ndarray[Any, np.dtype[np.int64]]

MS = 1_000_000
GPU = "NVIDIA A100 80GB PCIe"
ON_TENSOR_CORES = "ampere_bf16_s16816gemm_bf16_128x128_ldg8_f2f_stages_32x1_tn"
ON_CUDA_CORES = "ampere_sgemm_128x128_tn"
COMPILING_NS = 700 * MS
SAMPLE_NS = MS
# Shares of their peaks while kernels run; clock in Hz.
WORKING = {"tensor_active_frac": 0.6, "dram_read_frac": 0.2, "dram_write_frac": 0.1}
CLOCK_HZ, SLOW_HZ = 1.41e9, 0.9e9

HEALTHY = Settings(
    steps=8,
    layers=20,
    kernel_ns=1_500_000,
    cpu_ns=12_000,
    input_ns=900_000,
    pageable=False,
    prefetched=True,
)

# One cause each: what the program does differently.
SETTINGS: Mapping[str, Mapping[str, Any]] = {
    "data loading": {"loading_ns": 30 * MS},
    "synchronisation": {
        "sync_every": 1,
        "kernel_ns": 40_000,
        "cpu_ns": 30_000,
        "layers": 100,
        "input_ns": 90_000,
    },
    "launch overhead": {"kernel_ns": 2_000, "cpu_ns": 15_000, "layers": 300, "input_ns": 90_000},
    "pageable copies": {"input_ns": 25 * MS, "pageable": True, "prefetched": False},
    "serial copies": {"input_ns": 25 * MS, "pageable": False, "prefetched": False},
    "synchronous copies": {
        "input_ns": 25 * MS,
        "pageable": False,
        "prefetched": False,
        "waited": True,
    },
    "checkpoints": {"steps": 14, "save_every": 4},
    "small copies": {"small_copies": 4, "kernel_ns": 30_000, "layers": 100, "input_ns": 90_000},
    "communication": {"ranks": 2, "reduce_every": 5, "reduce_ns": 5 * MS},
    "imbalance": {"ranks": 2, "reduce_every": 5, "reduce_ns": 100_000, "slow_rank_frac": 1.0},
}


def healthy(settings: Settings = HEALTHY) -> Tables:
    """Return the tables of a program on a busy GPU, in 16 bits, at its full clock."""
    run = simulated(settings)
    tables = {"KERNELS": _renamed(run.kernels), "COPIES": run.copies, "API_CALLS": run.api_calls}
    tables |= {"OS_CALLS": run.os_calls} if len(run.os_calls) else {}
    tables["RANGES"] = RANGES.make(
        pd.concat([run.ranges, _steps(run.api_calls)], ignore_index=True)
    )
    ranks = sorted(run.kernels["rank"].unique().tolist())
    known = {"rank": ranks, "gpu": ranks, "compute_capability": "8.0", "sm_count": 108}
    tables["DEVICES"] = devices(*[GPU] * len(ranks), **known)
    return tables | {"SAMPLES": _sampled(tables, WORKING)}


def _renamed(kernels: pd.DataFrame) -> pd.DataFrame:
    """Return KERNELS whose matrix products say that they run in 16 bits on tensor cores, each layer's its own."""
    layer = kernels["name"].astype("string").str.extract(r"layer_(\d+)")[0]
    names = kernels["name"].astype("string").where(layer.isna(), f"{ON_TENSOR_CORES}_" + layer)
    return KERNELS.make(kernels.assign(name=names, full_name=names))


def _steps(calls: pd.DataFrame) -> pd.DataFrame:
    """Return a range around each step: from one moment at which the GPU has drained to the next."""
    rows = []
    for rank, of_rank in calls.groupby("rank"):
        drained = of_rank[of_rank["name"] == "cudaDeviceSynchronize"]
        end = (drained["start_ns"] + drained["dur_ns"]).tolist()
        for i, (start, stop) in enumerate(
            zip([int(of_rank["start_ns"].min()), *end], end, strict=False)
        ):
            rows.append(
                {"rank": rank, "start_ns": start, "dur_ns": stop - start, "name": f"step {i}"}
            )
    plain = {"process": 1, "thread": 1, "domain": "", "kind": "push_pop", "depth": 0}
    return pd.DataFrame([{**row, **plain} for row in rows], columns=RANGES.column_names)


def _sampled(
    tables: Tables, working: Mapping[str, float], clock_hz: float = CLOCK_HZ
) -> pd.DataFrame:
    """Return readings of each GPU every ms: shares in proportion to the time in which kernels ran, and the clock."""
    frames = []
    for rank, kernels in tables["KERNELS"].groupby("rank"):
        time = (
            np.arange(0, int((kernels["start_ns"] + kernels["dur_ns"]).max()), SAMPLE_NS)
            + SAMPLE_NS
        )
        busy = np.diff(_busy_until(kernels, time), prepend=0) / SAMPLE_NS
        values = {name: share * busy for name, share in working.items()}
        values |= {"sm_clock_hz": np.where(time < 5 * SAMPLE_NS, CLOCK_HZ, clock_hz)}
        values |= {"sm_max_clock_hz": np.full(len(time), CLOCK_HZ)}
        values |= {"throttled_power_frac": np.where(values["sm_clock_hz"] < CLOCK_HZ, 1.0, 0.0)}
        frames += [
            pd.DataFrame(
                {"rank": rank, "gpu": rank, "time_ns": time, "metric": name, "value": value}
            )
            for name, value in values.items()
        ]
    return SAMPLES.make(pd.concat(frames, ignore_index=True))


def _busy_until(kernels: pd.DataFrame, time: Moments) -> Moments:
    """Return the time in which kernels of one stream have run until each moment."""
    start, dur = kernels["start_ns"].to_numpy(), kernels["dur_ns"].to_numpy()
    begun = np.searchsorted(start, time, side="left")
    done = np.append(0, np.cumsum(dur))[begun]
    last = np.append(0, start + dur)[begun]
    return np.asarray(done - np.maximum(last - time, 0), np.int64)


def memory_bound(tables: Tables) -> Tables:
    """Return a run whose kernels are elementwise and use nearly all of the memory's bandwidth."""
    plain = {"name": "vectorized_elementwise_kernel", "full_name": "vectorized_elementwise_kernel"}
    kernels = tables["KERNELS"].assign(**plain, family="elementwise")
    working = {"tensor_active_frac": 0.0, "dram_read_frac": 0.6, "dram_write_frac": 0.32}
    return tables | {"KERNELS": KERNELS.make(kernels), "SAMPLES": _sampled(tables, working)}


def on_cuda_cores(tables: Tables) -> Tables:
    """Return a run whose matrix products run in 32 bits on CUDA cores."""
    kernels = tables["KERNELS"]
    product = kernels["family"] == "gemm"
    names = {
        c: kernels[c].astype("string").mask(product, ON_CUDA_CORES) for c in ("name", "full_name")
    }
    working = WORKING | {"tensor_active_frac": 0.0}
    return tables | {
        "KERNELS": KERNELS.make(kernels.assign(**names)),
        "SAMPLES": _sampled(tables, working),
    }


def warming_up(tables: Tables) -> Tables:
    """Return a run that compiles for 0.7 s at the end of its first step, while the GPU does nothing."""
    ranges = tables["RANGES"]
    first = ranges["name"] == "step 0"
    moment = int((ranges["start_ns"] + ranges["dur_ns"])[first].iloc[0])
    moved = {name: _after(frame, moment) for name, frame in tables.items()}
    moved |= {"RANGES": moved["RANGES"].assign(dur_ns=ranges["dur_ns"] + COMPILING_NS * first)}
    return moved | {"SAMPLES": _sampled(moved, WORKING)}


def _after(frame: pd.DataFrame, moment: int) -> pd.DataFrame:
    """Return a table in which all that begins at a moment or later begins later by the compilation."""
    if "start_ns" not in frame:
        return frame
    return frame.assign(start_ns=frame["start_ns"] + COMPILING_NS * (frame["start_ns"] >= moment))


def _counted(*, possible: float, achieved: float, sm: float, memory: float) -> Tables:
    """Return LAUNCHES and COUNTERS of ten launches of one kernel with grids that fill the GPU eight times."""
    kernel = {
        "rank": 0,
        "gpu": 0,
        "name": f"{ON_TENSOR_CORES}_1",
        "full_name": f"{ON_TENSOR_CORES}_1",
    }
    kernel |= {"grid_blocks": 864, "block_threads": 256, "dur_ns": 1.5 * MS, "clock_hz": CLOCK_HZ}
    kernel |= {"theoretical_occupancy_frac": possible, "achieved_occupancy_frac": achieved}
    rows = [
        {**kernel, "launch": launch, "sm_frac": sm, "memory_frac": memory} for launch in range(10)
    ]
    launches = pd.DataFrame(rows, columns=LAUNCHES.column_names)
    waves = {
        "rank": 0,
        "launch": range(10),
        "metric": "launch__waves_per_multiprocessor",
        "unit": "",
        "value": 8.0,
    }
    return {"LAUNCHES": LAUNCHES.make(launches), "COUNTERS": COUNTERS.make(pd.DataFrame(waves))}


# One cause each: what is added to the tables of the healthy program.
ADDED: Mapping[str, Callable[[Tables], Tables]] = {
    # The clock falls by a third to keep the power limit, shortly after the run began.
    "throttling": lambda tables: tables | {"SAMPLES": _sampled(tables, WORKING, SLOW_HZ)},
    "memory bandwidth": memory_bound,
    "tensor cores": on_cuda_cores,
    "warm-up": warming_up,
    # Kernels take so many registers that an SM holds an eighth of its warps.
    "occupancy": lambda tables: (
        tables | _counted(possible=0.125, achieved=0.12, sm=0.35, memory=0.3)
    ),
    # Kernels have warps enough, all of which wait for one another's results.
    "latency": lambda tables: tables | _counted(possible=1.0, achieved=0.9, sm=0.3, memory=0.2),
}
CAUSES = (*SETTINGS, *ADDED)


def planted(*causes: str) -> Tables:
    """Return the tables of the program with these causes, each of `CAUSES`, in this order."""
    unknown = [cause for cause in causes if cause not in CAUSES]
    if unknown:
        raise ValueError(f"causes: {unknown[0]!r} is not one of {', '.join(CAUSES)}")
    changes: dict[str, Any] = {}
    for cause in causes:
        changes |= SETTINGS.get(cause, {})
    tables = healthy(replace(HEALTHY, **changes))
    for cause in causes:
        tables = ADDED[cause](tables) if cause in ADDED else tables
    return tables
