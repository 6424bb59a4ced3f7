"""What would the profilers have recorded of the inference with BERT that the A100 lab report times?

Conventions
-----------
The report's part 4 prints a latency per batch size, and no more; that holds to the nanosecond as mean and median of
each phase. What it implies is built in: FP32 on CUDA cores, because sequences of 128 tokens then take three quarters of
the peak at batch 32, and a host that is too slow for the GPU at batch 1. All else follows from the shapes of BERT-base
by simple laws (`bert_kernels`) or is drawn at random. The files say that they are simulated.

Times are ns. All of the run is counted as in `tally`; a phase is its timed batches, without the one that warms up. The
latency of a batch is from the copy of its tokens until its logits are back.

The form of its ``timings.json``; times are int64 ns. Mean and median of the steps are the report's latency. Operations
are those of the products: 24 s h^2 + 4 s^2 h for a layer of a sequence of s tokens, and 4 s h for the head.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from make import bert_counters, bert_trace, nsys
from make.activity import Block, Ranges, calls_in, rows
from make.bert_kernels import HEADS, HIDDEN, LAYERS, PEAK, SEQUENCE, SIZES, VOCABULARY
from make.bert_run import LAB, OPTIMISED, PARAMETERS, STEPS, Phase, Segment, cases, run, spread
from make.kernels import Kernel
from make.tally import Tally
from perfkit.simulate import export
from perfkit.simulate.export import CARD, Worker

LAB_LABEL = "perfkit simulate bert_a100: made from the latencies of an A100 lab report; no GPU ran"
OPTIMISED_LABEL = "perfkit simulate bert_a100_optimised: invented; no report has it, and no GPU ran"
CPU_NS = dict(zip(SIZES, (64_500_000, 373_400_000, 638_800_000, 1_261_500_000), strict=True))  # Table 13
CPU_NAME = "not said by the report; its cluster had AMD Zen 3"
T0_UNIX_NS = 1_750_085_400_000_000_000  # 14:50 UTC of the report's date, 16 June 2025
TRACE_UNIX_NS = T0_UNIX_NS + 600_000_000_000
AFTER_NS = 180_000_000  # until the capture ends
WORKER = Worker(process=3_824_871)


def bert_a100(folder: Path, *, seed: int = 0) -> Path:
    """Write the run into `folder` and return that.

    It is `bert_a100.nsys.sqlite`, `bert_a100.layer.ncu.csv`, `bert_a100.pt.trace.json.gz`, `timings.json` of the GPU,
    `cpu/timings.json` and `bert_a100.truth.json`. Files of these names are replaced; others in the folder stay.
    """
    rng = np.random.default_rng(seed)
    segments = run(LAB, rng)
    folder.mkdir(parents=True, exist_ok=True)
    counted = _written(folder, "bert_a100", LAB, segments, label=LAB_LABEL)
    counted["torch"] = bert_trace.write(
        folder / "bert_a100.pt.trace.json.gz",
        segments[-1],
        _kernels(LAB),
        np.random.default_rng([seed, 1]),
        t0_unix_ns=TRACE_UNIX_NS,
        label=LAB_LABEL,
    )
    _timed(folder, segments, rng)
    _save(folder / "bert_a100.truth.json", {"simulated": LAB_LABEL, "seed": seed, **counted})
    return folder


def bert_a100_optimised(folder: Path, *, seed: int = 0) -> Path:
    """Write the phases with batch 1 in a CUDA graph and batch 32 in TF32 into `folder` and return that.

    It is `bert_a100_optimised.nsys.sqlite`, `bert_a100_optimised.layer.ncu.csv` (of TF32) and
    `bert_a100_optimised.truth.json`.
    """
    segments = run(OPTIMISED, np.random.default_rng([seed, 2]))
    folder.mkdir(parents=True, exist_ok=True)
    counted = _written(folder, "bert_a100_optimised", OPTIMISED, segments, label=OPTIMISED_LABEL)
    _save(folder / "bert_a100_optimised.truth.json", {"simulated": OPTIMISED_LABEL, "seed": seed, **counted})
    return folder


def _written(
    folder: Path, name: str, phases: Sequence[Phase], segments: Sequence[Segment], *, label: str
) -> dict[str, Any]:
    """Write the timeline and the counters of the last phase's layer; return what is true of both."""
    kernels, blocks = _kernels(phases), _blocks(phases, segments)
    last = segments[-1]
    end = int(last.begin[-1] + last.laid.length[-1]) + AFTER_NS
    with export.writing(folder / f"{name}.nsys.sqlite") as db:
        for block in blocks:
            nsys.write_block(db, block, list(kernels.values()))
        nsys.write_ranges(db, _ranges(segments))
        export.write_session(db, label=label, arguments="part4.py", dur_ns=end, workers=[WORKER])
        export.write_gpus(db, t0_unix_ns=T0_UNIX_NS, gpus=1, workers=[WORKER])
    taken = {op.what: float((last.laid.end[i] - last.laid.start[i]).mean()) for i, op in enumerate(last.plan)}
    layer = bert_counters.write(folder / f"{name}.layer.ncu.csv", phases[-1], taken, label=label)
    return {**run_truth(list(kernels.values()), segments, blocks), "ncu": layer}


def _kernels(phases: Sequence[Phase]) -> dict[str, Kernel]:
    """All kernels of a run by their keys, those of the batches that warm up included."""
    found = chain.from_iterable(cases(phase).items() for phase in phases)
    return {key: case.kernel for key, case in found}


def _blocks(phases: Sequence[Phase], segments: Sequence[Segment]) -> list[Block]:
    used, kernels = 1, _kernels(phases)
    blocks = []
    for each in segments:
        blocks.append(rows(each.plan, each.laid, WORKER, each.begin, used, kernels=kernels))
        used += calls_in(each.plan) * len(each.begin)
    return blocks


def _ranges(segments: Sequence[Segment]) -> Ranges:
    """Named ranges as a careful author sets them: a phase, its batch of warm-up, its steps, and the parts of these."""
    spans: list[tuple[int, int, str]] = []
    first = {each.phase: int(each.begin[0]) for each in segments if not each.warm}
    for each in segments:
        ends = each.begin + each.laid.length
        if each.phase and each.warm:
            spans.append((first[each.phase], int(ends[-1]), each.phase.name))
        if each.phase:
            names = [f"step {i}" for i in range(len(ends))] if each.warm else ["warm-up"]
            spans += zip(each.begin.tolist(), ends.tolist(), names, strict=True)
        for part, (begin, end) in each.laid.phases.items() if each.warm else ():
            spans += [(a, b, part) for a, b in zip(*((each.begin + t).tolist() for t in (begin, end)), strict=True)]
    spans.sort(key=lambda span: (span[0], -span[1]))
    starts, stops, texts = zip(*spans, strict=True)
    return Ranges(WORKER, texts, np.array(starts), np.array(stops))


def _timed(folder: Path, segments: Sequence[Segment], rng: np.random.Generator) -> None:
    """Write the times of GPU and CPU."""
    gpu, walls = {}, {}
    for each in segments:
        if each.phase and each.warm:
            gpu[each.phase.batch] = each.laid.length.tolist()
            walls[each.phase.batch] = int(each.begin[-1] + each.laid.length[-1] - each.begin[0])
    rows_of_gpu = timing_rows(gpu, walls, peak=PEAK["fp32"])
    device = {"kind": "cuda", "name": CARD["name"]}
    write_timings(folder / "timings.json", rows_of_gpu, device=device, label=LAB_LABEL)
    cpu = {batch: spread(mean, STEPS, rng).tolist() for batch, mean in CPU_NS.items()}
    rows_of_cpu = timing_rows(cpu, {batch: sum(times) for batch, times in cpu.items()}, peak=None)
    (folder / "cpu").mkdir(exist_ok=True)
    device = {"kind": "cpu", "name": CPU_NAME}
    write_timings(folder / "cpu" / "timings.json", rows_of_cpu, device=device, label=LAB_LABEL)


def _save(path: Path, content: dict[str, Any]) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(content, indent=1) + "\n")
    os.replace(part, path)


def run_truth(kernels: Sequence[Kernel], segments: Sequence[Segment], blocks: Sequence[Block]) -> dict[str, Any]:
    """Return what is true of a run, as numbers and text that JSON can hold."""
    tally = Tally(kernels)
    for block in blocks:
        tally.add(block)
    found = tally.truth()
    named = {each.phase.name: _phase(each, block) for each, block in _truth_timed(segments, blocks) if each.phase}
    return {**found, "kernel_rows": _by_name(kernels, blocks), "phases": named}


def _truth_timed(segments: Sequence[Segment], blocks: Sequence[Block]) -> list[tuple[Segment, Block]]:
    return [(each, block) for each, block in zip(segments, blocks, strict=True) if each.phase and each.warm]


def _phase(segment: Segment, block: Block) -> dict[str, Any]:
    if segment.phase is None:
        raise ValueError("segment: holds no batches")
    steps = len(segment.begin)
    known, work = cases(segment.phase), segment.laid.end - segment.laid.start
    in_kernels = [i for i, op in enumerate(segment.plan) if op.what in known]
    products = [i for i in in_kernels if known[segment.plan[i].what].is_product]
    return {
        "batch": segment.phase.batch,
        "precision": segment.phase.precision,
        "in_graph": segment.phase.graph,
        "latency_ns": segment.laid.length.tolist(),
        "mean_ns": float(segment.laid.length.mean()),
        "median_ns": float(np.median(segment.laid.length)),
        "start_ns": int(segment.begin[0]),
        "end_ns": int(segment.begin[-1] + segment.laid.length[-1]),
        "kernels_per_step": len(block.kernels["start"]) // steps,
        "launches_per_step": sum(op.kind in ("kernel", "graph") for op in segment.plan),
        "kernel_busy_ns": int(work[in_kernels].sum()),  # one stream: kernels never overlap
        "product_ns": int(work[products].sum()),
        "step_flops": batch_flops(segment.phase.batch),
    }


def _by_name(kernels: Sequence[Kernel], blocks: Sequence[Block]) -> list[dict[str, Any]]:
    """Figures of each full name, whatever its place and batch size, most time first."""
    kinds = np.concatenate([block.kernels["kernel"] for block in blocks])
    durations = np.concatenate([block.kernels["end"] - block.kernels["start"] for block in blocks])
    rows = []
    for name in sorted({kernels[kind].full_name for kind in np.unique(kinds).tolist()}):
        own = durations[np.isin(kinds, [i for i, kernel in enumerate(kernels) if kernel.full_name == name])]
        row = {"full_name": name, "count": len(own), "total_ns": int(own.sum())}
        rows.append(row | {"median_ns": float(np.median(own)), "min_ns": int(own.min()), "max_ns": int(own.max())})
    return sorted(rows, key=lambda row: -int(str(row["total_ns"])))


UNITS = {
    "_ns": "nanoseconds",
    "_flops": "floating-point operations",
    "_bytes": "bytes",
    "_count": "a number of things",
    "_frac": "a fraction of 1",
    "_per_s": "per second",
}


def batch_flops(batch: int) -> int:
    """Return the operations of a batch, FLOP.

    Examples
    --------
    >>> batch_flops(1)
    22347644928
    """
    layer = 24 * SEQUENCE * HIDDEN**2 + 4 * SEQUENCE**2 * HIDDEN
    return batch * (LAYERS * layer + 4 * SEQUENCE * HIDDEN)


def timing_rows(
    step_ns: Mapping[int, Sequence[int]], wall_ns: Mapping[int, int], *, peak: float | None
) -> list[dict[str, Any]]:
    """Return a row per batch size, as `perfkit.workloads.running.measure` does."""
    return [_row(batch, np.array(times), wall_ns[batch], peak) for batch, times in step_ns.items()]


def _row(batch: int, times: Any, wall_ns: int, peak: float | None) -> dict[str, Any]:
    low, quarter, middle, three, high = np.percentile(times, [0, 25, 50, 75, 100]).tolist()
    rate = batch_flops(batch) / (middle / 1e9)
    return {
        "batch_count": batch,
        "steps_count": len(times),
        "warm_up_count": 1,
        "step_median_ns": middle,
        "step_p25_ns": quarter,
        "step_p75_ns": three,
        "step_min_ns": low,
        "step_max_ns": high,
        "wait_median_ns": 0.0,
        "wall_ns": float(wall_ns),
        "samples_per_s": batch * len(times) / (wall_ns / 1e9),
        "step_flops": batch_flops(batch),
        "flops_per_s": rate,
        "peak_flops_per_s": peak,
        "peak_frac": None if peak is None else rate / peak,
        "step_ns": [float(each) for each in times.tolist()],
    }


def write_timings(path: Path, found: list[dict[str, Any]], *, device: Mapping[str, Any], label: str) -> None:
    """Write rows to `path`, with the plan that they are of; `label` says that they are simulated."""
    content = {
        "kind": "perfkit workload",
        "simulated": label,
        "date": "2025-06-16T15:00:00Z",
        "device": device,
        "model": "bert",
        "mode": "inference",
        "precision": "fp32",
        "is_compiled": False,
        "reads_loss": False,
        "seed": 0,
        "size": {"sequence": SEQUENCE, "layers": LAYERS, "hidden": HIDDEN, "heads": HEADS, "vocabulary": VOCABULARY},
        "units": UNITS,
        "parameters_count": sum(PARAMETERS),
        "rows": found,
    }
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(content, indent=1) + "\n")
    os.replace(part, path)
