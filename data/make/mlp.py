"""What would the profilers have recorded of the MLP that the A100 lab report trains for one epoch?

The capture was never published; its summary was. What the report prints holds to the nanosecond: the 28 rows of Table
5, the first start and the last end of kernels and of copies, and, to the two decimals printed, the means of GPU
activity and memory bandwidth in both windows of section 2.2. What it implies is built in: 469 training steps of 128
images, 79 test batches and one forward pass, launched one by one by a host that mostly waits for its DataLoader. All
else is drawn at random. The forward pass is also there as counters, and eight training steps of a later execution as
PyTorch's profiler would have recorded them (`torch_trace`). The files say that they are simulated.

A sample covers the time since the one before it, 5 ms; percentages are integers as the vendor writes them, so that a
small mean is a few ones among zeros. The means over the two windows of section 2.2 of the report are what the report
prints, to its two decimals: SMs active 0.17 % in both, memory read 0.07 and written 0.93 GB/s in the kernels' window,
0.09 and 0.96 GB/s in the copies'. The ones stand where the GPU was busiest.

`mlp_counters.csv` holds what is counted. From section 2.4 of the A100 lab report, exactly: instructions by kind and
kernel (Table 9), bytes read (the sum of 2.4.2, and per kernel Table 10, whose 367.43 is 1.22 Mbyte + 366.21 Kbyte),
DRAM cycles and frequencies (Table 10), SM cycles (72,581) and the sum of the eight launches' SM frequencies
(10,083,762,361, which the report took for one). What it prints per kernel is split over the kernel's launches:
instructions as the layers' products, DRAM cycles as the times of Table 7, SM cycles as the memory's times. Cache
traffic, hit rates, throughput of the SM and stalls are invented, plausible for kernels that are far too small.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from make import activity, counters, torch_trace
from make.activity import Block, Ranges, Rows, calls_in, named_ranges, rows
from make.counters import CHANNELS, DRAM_PEAK, SECTOR, SMS
from make.kernels import KERNELS, TABLE_5, save, table
from make.mlp_run import Segment, run
from make.simulate.export import Worker
from make.tally import Tally, covered_until
from make.timeline import Int

NAME = "mlp_a100"
LABEL = "perfkit simulate mlp_a100: made from the figures of an A100 lab report; no GPU ran"
END_NS = 19_631_402_118
T0_UNIX_NS = 1_750_075_200_000_000_000  # noon UTC of the report's date, 16 June 2025
ABOUT: Mapping[str, Any] = {
    "label": LABEL,
    "arguments": "part2.py -b 128 -d cuda -w train -e 1",
    "dur_ns": END_NS,
    "t0_unix_ns": T0_UNIX_NS,
}
TRACE_UNIX_NS = T0_UNIX_NS + 7_800_000_000_000  # 14:10 UTC
WORKER = Worker(process=3_799_129)


def mlp_a100(folder: Path, *, seed: int = 0) -> Path:
    """Write the run into `folder` and return that.

    It is `mlp_a100.nsys.sqlite`, `mlp_a100.inference.ncu.csv`, `mlp_a100.pt.trace.json.gz` and `mlp_a100.truth.json`.
    Files of these names are replaced, once the new ones are complete; others in the folder stay.
    """
    rng = np.random.default_rng(seed)
    segments = run(rng)
    blocks = list(_blocks(segments))
    ranges = _ranges(segments)
    times, values = sample_metrics(_joined(blocks), END_NS, rng)
    folder.mkdir(parents=True, exist_ok=True)
    counted = {"ncu": write_counters(folder / f"{NAME}.inference.ncu.csv")}
    trace, others = folder / f"{NAME}.pt.trace.json.gz", np.random.default_rng([seed, 1])
    counted["torch"] = torch_trace.write(trace, segments, others, t0_unix_ns=TRACE_UNIX_NS)
    path, kernels = folder / f"{NAME}.nsys.sqlite", list(KERNELS.values())
    activity.write(path, blocks, kernels, ranges, (times, values), **ABOUT)
    save(folder / f"{NAME}.truth.json", _truth(blocks, ranges, times, values, seed) | counted)
    return folder


def _blocks(segments: Sequence[Segment]) -> list[Block]:
    used = np.cumsum([0, *[calls_in(s.plan) * len(s.begin) for s in segments]])
    return [
        rows(s.plan, s.laid, WORKER, s.begin, 1 + int(first))
        for s, first in zip(segments, used, strict=False)
    ]


def _joined(blocks: Sequence[Block]) -> Rows:
    return {
        name: np.concatenate([block.kernels[name] for block in blocks]) for name in ("start", "end")
    }


def _ranges(segments: Sequence[Segment]) -> Ranges:
    """Named ranges as a careful author sets them: a part, its steps, the phases of a step."""
    spans: list[tuple[int, int, str]] = []
    for part, prefix in (
        ("train", "step"),
        ("test", "test step"),
        ("setup", ""),
        ("inference", ""),
    ):
        chosen = [s for s in segments if s.part == part]
        start, begin = (
            np.concatenate([getattr(s, name) for s in chosen]) for name in ("start", "begin")
        )
        end = np.concatenate([s.begin + s.laid.length for s in chosen])
        spans.append((int(start[0]), int(end[-1]), part))
        if prefix:
            spans += _named(start, end, [f"{prefix} {i}" for i in range(len(start))])
            spans += _named(start, begin, ["data loading"] * len(start))
        for s in chosen:
            for phase, (first, last) in s.laid.phases.items():
                spans += _named(s.begin + first, s.begin + last, [phase] * len(s.begin))
    return named_ranges(WORKER, spans)


def _named(start: Int, end: Int, names: list[str]) -> list[tuple[int, int, str]]:
    return list(zip(start.tolist(), end.tolist(), names, strict=True))


def _truth(
    blocks: Sequence[Block], ranges: Ranges, times: Int, values: dict[str, Int], seed: int
) -> dict[str, Any]:
    tally = Tally(list(KERNELS.values()))
    for block in blocks:
        tally.add(block)
    return {
        "simulated": LABEL,
        "seed": seed,
        **tally.truth(),
        "ranges": _by_name(ranges),
        "samples": {
            name: {"count": len(times), "mean": float(value.mean())}
            for name, value in values.items()
        },
        "report_windows": report_windows(times, values),
    }


def _by_name(ranges: Ranges) -> dict[str, dict[str, float]]:
    """Number and time of the ranges of each name; steps count together."""
    found: dict[str, list[int]] = {}
    for name, dur in zip(ranges.names, (ranges.end - ranges.start).tolist(), strict=True):
        found.setdefault(name.rstrip("0123456789 "), []).append(dur)
    return {
        name: {
            "count": len(durs),
            "total_ns": sum(durs),
            "median_ns": float(np.median(durs)),
            "max_ns": max(durs),
        }
        for name, durs in found.items()
    }


PERIOD_NS, JITTER_NS = 5_000_000, 20_000
CONTEXT_NS = 9_420_000_000
IDLE_HZ, CLOCK_HZ, SYSTEM_HZ = 210_000_000, 1_410_000_000, 1_275_000_000

# what the report passed to the script, ns, and the peak the script assumes, GB/s
KERNEL_WINDOW = (9_644_000_000, 19_448_000_000)
COPY_WINDOW = (9_531_400_000, 19_448_000_000)
PEAK_GB_PER_S = 1935

GR, SM = "GR Active [Throughput %]", "SMs Active [Throughput %]"
WARPS = "Unallocated Warps in Active SMs [Throughput %]"
READ, WRITE = "DRAM Read Bandwidth [Throughput %]", "DRAM Write Bandwidth [Throughput %]"
CLOCK, SYSTEM = "GPC Clock Frequency [MHz]", "SYS Clock Frequency [MHz]"


def sample_metrics(
    kernels: Rows, end_ns: int, rng: np.random.Generator
) -> tuple[Int, dict[str, Int]]:
    """Return when the metrics were read, ns, and the values of those that were not always 0."""
    times = np.arange(PERIOD_NS, end_ns, PERIOD_NS)
    times += (JITTER_NS * (2 * rng.random(len(times)) - 1)).astype(np.int64)
    busy = np.diff(covered_until(kernels["start"], kernels["end"], times), prepend=0)
    in_kernels = _inside(times, KERNEL_WINDOW)
    early = _inside(times, COPY_WINDOW) & ~in_kernels
    running = times >= CONTEXT_NS

    def ones(percent: float, further: float = 0.0) -> Int:
        """Ones whose mean is `percent` in the kernels' window and `further`, if given, in the copies'."""
        count = round(percent * in_kernels.sum())
        before = round(further * _inside(times, COPY_WINDOW).sum()) - count if further else 0
        return _busiest(busy, in_kernels, count) + _busiest(busy, early, before)

    active = ones(0.17)
    return times, {
        CLOCK: np.where(running, CLOCK_HZ, IDLE_HZ),
        SYSTEM: np.where(running, SYSTEM_HZ, IDLE_HZ),
        GR: np.rint(100 * busy / PERIOD_NS).astype(np.int64),
        SM: active,
        WARPS: active,
        READ: ones(100 * 0.07 / PEAK_GB_PER_S, 100 * 0.09 / PEAK_GB_PER_S),
        WRITE: ones(100 * 0.93 / PEAK_GB_PER_S, 100 * 0.96 / PEAK_GB_PER_S),
    }


def _inside(times: Int, window: tuple[int, int]) -> NDArray[np.bool_]:
    return np.asarray((times >= window[0]) & (times <= window[1]))


def _busiest(busy: Int, among: NDArray[np.bool_], count: int) -> Int:
    """Ones for the `count` busiest samples among those given, the earlier one first where they tie."""
    chosen = np.argsort(np.where(among, -busy, 1), kind="stable")[:count]
    return np.isin(np.arange(len(busy)), chosen).astype(np.int64)


def report_windows(times: Int, values: Mapping[str, Int]) -> dict[str, dict[str, float]]:
    """Return the means of SM activity, percent, and of memory bandwidth, GB/s, in the report's two windows."""
    windows = {"kernels": KERNEL_WINDOW, "copies": COPY_WINDOW}
    return {
        name: window_of(values, _inside(times, window), window) for name, window in windows.items()
    }


def window_of(
    values: Mapping[str, Int], inside: NDArray[np.bool_], window: tuple[int, int]
) -> dict[str, float]:
    """Return a window, ns, and the means in it: SM activity in percent, memory bandwidth in GB/s."""
    sm, read, write = (float(values[metric][inside].mean()) for metric in (SM, READ, WRITE))
    rates = {
        "read_gb_per_s": read / 100 * PEAK_GB_PER_S,
        "write_gb_per_s": write / 100 * PEAK_GB_PER_S,
    }
    return {"first_ns": window[0], "last_ns": window[1], "sm_active_percent": sm, **rates}


def write_counters(path: Path) -> dict[str, Any]:
    """Write the raw page to `path`; return what is true of each launch, and the report's sums and mistaken rate."""
    rows = table("mlp_counters")
    kinds = [row["kernel"] for row in rows]
    launches = [(TABLE_5[row["kernel"]], int(row["slot"])) for row in rows]
    count = {name: np.array([int(row[name]) for row in rows]) for name in list(rows[0])[1:]}
    seconds = count["cycles"] / count["hz"]
    sectors, products = count["loaded"] + count["stored"], np.array(kinds) == "gemm_tn"
    flops = count["fadd"] + count["fmul"] + 2 * count["ffma"]
    pipe = 100 * count["ffma"] / (SMS * 64 * count["cycles"])
    dram = 100 * count["read"] / (DRAM_PEAK * count["dram_hz"] * count["cycles"] / count["hz"])
    shared = np.where(products, 4 * count["loaded"], 0)
    values = {
        **count,
        "sm_percent": 1.5 * pipe + 1.2,
        "memory_percent": np.maximum(dram, 1.9) + 2.4,
        "dram_percent": dram,
        "fma_percent": 1.3 * pipe,
        **dict.fromkeys(
            ("written", "tensor_instructions", "tensor_percent", "tf32_flops", "int_zero"), 0
        ),
        "flops_per_sm": flops / SMS,
        "dram_cycles_mean": count["dram_cycles"] / CHANNELS,
        "load_requests": count["loaded"] // count["per_request"],
        "store_requests": count["stored"] // count["per_request"],
        "l1_hit_percent": np.where(products, 3.1, 0),
        "l2_hit_percent": 100 * (1 - count["read"] / SECTOR / sectors),
        "shared_wavefronts": shared,
        "bank_conflicts": shared // 64,
    }
    counters.write(
        path, "mlp", launches, kinds, values, label=LABEL, output=["Running on device: cuda"]
    )
    limits = [counters.limits(kernel) for kernel, _ in launches]
    found = counters.truth(
        launches,
        dur_ns=count["dur_ns"].tolist(),
        clock_hz=count["hz"].tolist(),
        fp32_flops=flops.tolist(),
        dram_bytes=count["read"].tolist(),
        theoretical_occupancy_frac=[each.occupancy for each in limits],
        limiter=[each.limiter for each in limits],
    )
    total, read, cycles, hz = (
        int(each.sum()) for each in (flops, count["read"], count["cycles"], count["hz"])
    )
    return {
        "launches": found["launches"],
        "totals": {
            "flops": total,
            "dram_bytes": read,
            "intensity": total / read,
            "cycles": cycles,
            "sum_of_hz": hz,
            "seconds": float(seconds.sum()),
            "flops_per_s": total / float(seconds.sum()),
            "mistaken_seconds": cycles / hz,
            "mistaken_flops_per_s": total / (cycles / hz),
        },
    }
