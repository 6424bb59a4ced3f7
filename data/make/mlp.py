"""What would the profilers have recorded of the MLP that the A100 lab report trains for one epoch?

Conventions
-----------
The capture was never published; its summary was. What the report prints holds to the nanosecond: the 28 rows of
Table 5, the first start and the last end of kernels and of copies, and, to the two decimals printed, the means
of GPU activity and memory bandwidth in both windows of section 2.2. What it implies is built in: 469 training
steps of 128 images, 79 test batches and one forward pass, launched one by one by a host that mostly waits for
its DataLoader. All else is drawn at random. The forward pass is also there as counters (`mlp_counters`), and eight
training steps of a later execution as PyTorch's profiler would have recorded them (`torch_trace`). The files say that
they are simulated.

A sample covers the time since the one before it, 5 ms; percentages are integers as the vendor writes them, so
that a small mean is a few ones among zeros. The means over the two windows of section 2.2 of the report are
what the report prints, to its two decimals: SMs active 0.17 % in both, memory read 0.07 and written 0.93 GB/s
in the kernels' window, 0.09 and 0.96 GB/s in the copies'. The ones stand where the GPU was busiest.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from make import mlp_counters, nsys, torch_trace
from make.activity import Block, Ranges, Rows, calls_in, rows
from make.kernels import KERNELS
from make.mlp_run import Segment, run
from make.tally import Tally, covered_until
from make.timeline import Int
from perfkit.simulate import export
from perfkit.simulate.export import Worker

NAME = "mlp_a100"
LABEL = "perfkit simulate mlp_a100: made from the figures of an A100 lab report; no GPU ran"
ARGUMENTS = "part2.py -b 128 -d cuda -w train -e 1"
END_NS = 19_631_402_118
T0_UNIX_NS = 1_750_075_200_000_000_000  # noon UTC of the report's date, 16 June 2025
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
    truth = folder / f".{NAME}.truth.json.part"
    counted = {"ncu": mlp_counters.write(folder / f"{NAME}.inference.ncu.csv")}
    trace, others = folder / f"{NAME}.pt.trace.json.gz", np.random.default_rng([seed, 1])
    counted["torch"] = torch_trace.write(trace, segments, others, t0_unix_ns=TRACE_UNIX_NS)
    truth.write_text(json.dumps(_truth(blocks, ranges, times, values, seed) | counted, indent=1) + "\n")
    with export.writing(folder / f"{NAME}.nsys.sqlite") as db:
        for block in blocks:
            nsys.write_block(db, block, list(KERNELS.values()))
        nsys.write_ranges(db, ranges)
        export.write_session(db, label=LABEL, arguments=ARGUMENTS, dur_ns=END_NS, workers=[WORKER])
        export.write_gpus(db, t0_unix_ns=T0_UNIX_NS, gpus=1, workers=[WORKER])
        export.write_samples(db, gpu=0, times=times, values=values)
    os.replace(truth, folder / f"{NAME}.truth.json")
    return folder


def _blocks(segments: Sequence[Segment]) -> list[Block]:
    used = np.cumsum([0, *[calls_in(s.plan) * len(s.begin) for s in segments]])
    return [rows(s.plan, s.laid, WORKER, s.begin, 1 + int(first)) for s, first in zip(segments, used, strict=False)]


def _joined(blocks: Sequence[Block]) -> Rows:
    return {name: np.concatenate([block.kernels[name] for block in blocks]) for name in ("start", "end")}


def _ranges(segments: Sequence[Segment]) -> Ranges:
    """Named ranges as a careful author sets them: a part, its steps, the phases of a step."""
    spans: list[tuple[int, int, str]] = []
    for part, prefix in (("train", "step"), ("test", "test step"), ("setup", ""), ("inference", "")):
        chosen = [s for s in segments if s.part == part]
        start, begin = (np.concatenate([getattr(s, name) for s in chosen]) for name in ("start", "begin"))
        end = np.concatenate([s.begin + s.laid.length for s in chosen])
        spans.append((int(start[0]), int(end[-1]), part))
        if prefix:
            spans += _named(start, end, [f"{prefix} {i}" for i in range(len(start))])
            spans += _named(start, begin, ["data loading"] * len(start))
        for s in chosen:
            for phase, (first, last) in s.laid.phases.items():
                spans += _named(s.begin + first, s.begin + last, [phase] * len(s.begin))
    spans.sort(key=lambda span: (span[0], -span[1]))
    starts, ends, names = zip(*spans, strict=True)
    return Ranges(WORKER, names, np.array(starts), np.array(ends))


def _named(start: Int, end: Int, names: list[str]) -> list[tuple[int, int, str]]:
    return list(zip(start.tolist(), end.tolist(), names, strict=True))


def _truth(blocks: Sequence[Block], ranges: Ranges, times: Int, values: dict[str, Int], seed: int) -> dict[str, Any]:
    tally = Tally(list(KERNELS.values()))
    for block in blocks:
        tally.add(block)
    return {
        "simulated": LABEL,
        "seed": seed,
        **tally.truth(),
        "ranges": _by_name(ranges),
        "samples": {name: {"count": len(times), "mean": float(value.mean())} for name, value in values.items()},
        "report_windows": report_windows(times, values),
    }


def _by_name(ranges: Ranges) -> dict[str, dict[str, float]]:
    """Number and time of the ranges of each name; steps count together."""
    found: dict[str, list[int]] = {}
    for name, dur in zip(ranges.names, (ranges.end - ranges.start).tolist(), strict=True):
        found.setdefault(name.rstrip("0123456789 "), []).append(dur)
    return {
        name: {"count": len(durs), "total_ns": sum(durs), "median_ns": float(np.median(durs)), "max_ns": max(durs)}
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


def sample_metrics(kernels: Rows, end_ns: int, rng: np.random.Generator) -> tuple[Int, dict[str, Int]]:
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
    means = {}
    for name, window in (("kernels", KERNEL_WINDOW), ("copies", COPY_WINDOW)):
        inside = _inside(times, window)
        sm, read, write = (float(values[metric][inside].mean()) for metric in (SM, READ, WRITE))
        means[name] = {
            "first_ns": window[0],
            "last_ns": window[1],
            "sm_active_percent": sm,
            "read_gb_per_s": read / 100 * PEAK_GB_PER_S,
            "write_gb_per_s": write / 100 * PEAK_GB_PER_S,
        }
    return means
