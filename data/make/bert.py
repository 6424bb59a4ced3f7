"""What would the profilers have recorded of the inference with BERT that the A100 lab report times?

The report's part 4 prints a latency per batch size, and no more; that holds to the nanosecond as mean and median of
each phase. What it implies is built in: FP32 on CUDA cores, because sequences of 128 tokens then take three quarters of
the peak at batch 32, and a host that is too slow for the GPU at batch 1. All else follows from the shapes of BERT-base
by simple laws (`bert_kernels`) or is drawn at random. The files say that they are simulated. Times are ns. The latency
of a batch is from the copy of its tokens until its logits are back; a phase is its timed batches.

The trace is of an execution of its own, with shapes, without memory and stacks: the two tools cannot record one process
at once. Kernels last as long as in the timeline's batches of that size, drawn anew; the host takes time for every
operator. `bert_operators.csv` lists the operators of a batch of 32, with names, arguments and nesting of PyTorch 2,
eager, without gradients; what only a CPU needs is left out. The kernels are those of `bert_run.answering`.

The counters: the tool holds the clock at its base value, 1.065 GHz, and empties the caches before each kernel.
Products, which the SMs limit, take longer than on the timeline by the ratio of the clocks; what the memory limits takes
as long. Operations and bytes follow from the shapes. Stalls, hit rates and cache traffic are invented.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from make import activity, counters, kineto, timeline, torch_trace
from make.activity import Block, Ranges, calls_in, named_ranges, rows
from make.bert_kernels import HEADS, HIDDEN, LAYERS, PEAK, SEQUENCE, SIZES, VOCABULARY, key, places
from make.bert_run import LAB, OPTIMISED, PARAMETERS, STEPS, Phase, Segment, cases, run, spread
from make.counters import CHANNELS, DRAM_PEAK, SECTOR
from make.execution import OUTSIDE_NS, STEP, Execution, laid_out, moments, run_step
from make.execution import WORKER as TRACED_WORKER
from make.kernels import Kernel, save
from make.simulate.export import CARD, Worker
from make.spans import Part, annotation, parts
from make.tally import Tally
from make.timeline import Int, Op, Plan
from perfkit.workloads.baseline import UNITS

LAB_LABEL = "perfkit simulate bert_a100: made from the latencies of an A100 lab report; no GPU ran"
OPTIMISED_LABEL = "perfkit simulate bert_a100_optimised: invented; no report has it, and no GPU ran"
CPU_NS = dict(
    zip(SIZES, (64_500_000, 373_400_000, 638_800_000, 1_261_500_000), strict=True)
)  # Table 13
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
    counted["torch"] = write_trace(
        folder / "bert_a100.pt.trace.json.gz",
        segments[-1],
        _kernels(LAB),
        np.random.default_rng([seed, 1]),
        t0_unix_ns=TRACE_UNIX_NS,
        label=LAB_LABEL,
    )
    _timed(folder, segments, rng)
    save(folder / "bert_a100.truth.json", {"simulated": LAB_LABEL, "seed": seed, **counted})
    return folder


def bert_a100_optimised(folder: Path, *, seed: int = 0) -> Path:
    """Write the phases with batch 1 in a CUDA graph and batch 32 in TF32 into `folder` and return that.

    It is `bert_a100_optimised.nsys.sqlite`, `bert_a100_optimised.layer.ncu.csv` (of TF32) and
    `bert_a100_optimised.truth.json`.
    """
    segments = run(OPTIMISED, np.random.default_rng([seed, 2]))
    folder.mkdir(parents=True, exist_ok=True)
    counted = _written(folder, "bert_a100_optimised", OPTIMISED, segments, label=OPTIMISED_LABEL)
    save(
        folder / "bert_a100_optimised.truth.json",
        {"simulated": OPTIMISED_LABEL, "seed": seed, **counted},
    )
    return folder


def _written(
    folder: Path, name: str, phases: Sequence[Phase], segments: Sequence[Segment], *, label: str
) -> dict[str, Any]:
    """Write the timeline and the counters of the last phase's layer; return what is true of both."""
    kernels, blocks = _kernels(phases), _blocks(phases, segments)
    last = segments[-1]
    end = int(last.begin[-1] + last.laid.length[-1]) + AFTER_NS
    activity.write(
        folder / f"{name}.nsys.sqlite",
        blocks,
        list(kernels.values()),
        _ranges(segments),
        label=label,
        arguments="part4.py",
        dur_ns=end,
        t0_unix_ns=T0_UNIX_NS,
    )
    taken = {
        op.what: float((last.laid.end[i] - last.laid.start[i]).mean())
        for i, op in enumerate(last.plan)
    }
    layer = write_counters(folder / f"{name}.layer.ncu.csv", phases[-1], taken, label=label)
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
            spans += [
                (a, b, part)
                for a, b in zip(*((each.begin + t).tolist() for t in (begin, end)), strict=True)
            ]
    return named_ranges(WORKER, spans)


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


def run_truth(
    kernels: Sequence[Kernel], segments: Sequence[Segment], blocks: Sequence[Block]
) -> dict[str, Any]:
    """Return what is true of a run, as numbers and text that JSON can hold."""
    tally = Tally(kernels)
    for block in blocks:
        tally.add(block)
    found = tally.truth()
    timed = [
        (each, block)
        for each, block in zip(segments, blocks, strict=True)
        if each.phase and each.warm
    ]
    named = {each.phase.name: _phase(each, block) for each, block in timed if each.phase}
    return {**found, "kernel_rows": _by_name(kernels, blocks), "phases": named}


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
        own = durations[
            np.isin(kinds, [i for i, kernel in enumerate(kernels) if kernel.full_name == name])
        ]
        row = {"full_name": name, "count": len(own), "total_ns": int(own.sum())}
        rows.append(
            row
            | {
                "median_ns": float(np.median(own)),
                "min_ns": int(own.min()),
                "max_ns": int(own.max()),
            }
        )
    return sorted(rows, key=lambda row: -int(str(row["total_ns"])))


def batch_flops(batch: int) -> int:
    """Return the operations of a batch, FLOP."""
    layer = 24 * SEQUENCE * HIDDEN**2 + 4 * SEQUENCE**2 * HIDDEN
    return batch * (LAYERS * layer + 4 * SEQUENCE * HIDDEN)


def timing_rows(
    step_ns: Mapping[int, Sequence[int]], wall_ns: Mapping[int, int], *, peak: float | None
) -> list[dict[str, Any]]:
    """Return a row per batch size, as `perfkit.workloads.running.measure` does."""
    return [_row(batch, np.array(times), wall_ns[batch], peak) for batch, times in step_ns.items()]


def _row(batch: int, times: Any, wall_ns: int, peak: float | None) -> dict[str, Any]:
    names = ("step_median_ns", "step_p25_ns", "step_p75_ns", "step_min_ns", "step_max_ns")
    steps = dict(zip(names, np.percentile(times, [50, 25, 75, 0, 100]).tolist(), strict=True))
    rate = batch_flops(batch) / (steps["step_median_ns"] / 1e9)
    return {
        "batch_count": batch,
        "steps_count": len(times),
        "warm_up_count": 1,
        **steps,
        "wait_median_ns": 0.0,
        "wall_ns": float(wall_ns),
        "samples_per_s": batch * len(times) / (wall_ns / 1e9),
        "step_flops": batch_flops(batch),
        "flops_per_s": rate,
        "peak_flops_per_s": peak,
        "peak_frac": None if peak is None else rate / peak,
        "step_ns": [float(each) for each in times.tolist()],
    }


def write_timings(
    path: Path, found: list[dict[str, Any]], *, device: Mapping[str, Any], label: str
) -> None:
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
        "size": {
            "sequence": SEQUENCE,
            "layers": LAYERS,
            "hidden": HIDDEN,
            "heads": HEADS,
            "vocabulary": VOCABULARY,
        },
        "units": UNITS,
        "parameters_count": sum(PARAMETERS),
        "rows": found,
    }
    save(path, content)


TRACED = 3
MOMENT_NS = (1_200, 6_500)  # from one moment of the host to the next, with what recording costs


def write_trace(
    path: Path,
    segment: Segment,
    kernels: dict[str, Kernel],
    rng: np.random.Generator,
    *,
    t0_unix_ns: int,
    label: str,
) -> dict[str, Any]:
    """Write the trace to `path` and return what is true of it."""
    execution = _executed(segment, kernels, rng)
    named = tuple(kernels.values())
    header = {"SIMULATED": label, "deviceProperties": [torch_trace.card()], "record_shapes": 1}
    kineto.write(
        path, torch_trace.trace_events(execution, named), t0_unix_ns=t0_unix_ns, header=header
    )
    tally = Tally(named)
    tally.add(execution.block)
    steps = [ran for ran in execution.ran if ran.span.name == STEP]
    return {
        "t0_unix_ns": t0_unix_ns,
        "batch": _batch(segment),
        "dur_ns": execution.end,
        "steps": [{"start_ns": ran.start, "dur_ns": ran.end - ran.start} for ran in steps],
        "operators": torch_trace.operators(execution),
        "gpu": tally.truth(),
    }


def _batch(segment: Segment) -> int:
    if segment.phase is None:
        raise ValueError("segment: holds no batches")
    return segment.phase.batch


def _executed(segment: Segment, kernels: dict[str, Kernel], rng: np.random.Generator) -> Execution:
    step = list(moments(annotation(STEP, *operators())))
    plan = tuple(moment.part for moment in step if isinstance(moment.part, Op))
    times = timeline.draw_times(plan, TRACED, timeline.QUICK, rng)
    times = times._replace(work=_work(plan, times.work, segment, rng))
    low, high = MOMENT_NS
    delays = low + ((high - low) * rng.random((len(step), TRACED)) ** 3).astype(np.int64)
    laid, at = laid_out(step, plan, times, delays)
    end = np.cumsum(at[-1] + OUTSIDE_NS)
    begin = end - at[-1]
    found = Execution(
        rows(plan, laid, TRACED_WORKER, begin, 1, kernels=kernels), int(end[-1]) + OUTSIDE_NS
    )
    for number, when in enumerate((at + begin).T.tolist()):
        run_step(found, step, number, when, {})
    return found


def _work(plan: Plan, drawn: Int, segment: Segment, rng: np.random.Generator) -> Int:
    """Time of the GPU in each operation: of kernels drawn from the timeline's, whose plan is the same."""
    if [(op.kind, op.what) for op in plan] != [(op.kind, op.what) for op in segment.plan]:
        raise ValueError("plan: operators launch other work than the timeline's batches")
    work = drawn.copy()
    for i, done in enumerate(segment.plan):
        if done.kind == "kernel":
            work[i] = rng.choice(segment.laid.end[i] - segment.laid.start[i], work.shape[1])
    return work


def operators() -> tuple[Part, ...]:
    """Return the parts of a batch of 32 questions, in order; those of a layer twelve times."""
    layers = parts("bert_operators", "layer") * LAYERS
    return (*parts("bert_operators", "before"), *layers, *parts("bert_operators", "after"))


BASE_HZ, BOOST_HZ, MEMORY_HZ = 1_065_000_000, int(CARD["clockRate"]), 1_512_000_000
AGAIN = 8  # how often the SMs ask the L2 cache for what a product reads: each tile needs its rows and columns


def write_counters(
    path: Path, phase: Phase, taken_ns: Mapping[str, float], *, label: str
) -> dict[str, Any]:
    """Write the raw page of a layer to `path`; return what is true of each launch and of all.

    `taken_ns` is the time that each kernel takes on the timeline, by its key.
    """
    layer, known = places(phase.batch), cases(phase)
    keys = [key(place, phase.batch, phase.precision) for place in layer]
    launched = [known[each] for each in keys]
    launches = [(each.kernel, 0) for each in launched]
    product = np.array([each.is_product for each in launched])
    flops, read, written = (
        np.array([getattr(c, n) for c in launched])
        for n in ("flops", "read_bytes", "written_bytes")
    )
    taken = np.array([taken_ns[each] for each in keys])
    dur = np.round(np.where(product, taken * BOOST_HZ / BASE_HZ, taken)).astype(np.int64)
    seconds = dur / 1e9
    on_tensor_cores = product & (phase.precision == "tf32")
    tensor, fp32 = np.where(on_tensor_cores, flops, 0), np.where(on_tensor_cores, 0, flops)
    multiplied = np.where(product, fp32 // 2, 0)
    added = fp32 - 2 * multiplied
    asked = np.where(product, AGAIN, 1)
    fma_percent = 100 * fp32 / seconds / (PEAK["fp32"] * BASE_HZ / BOOST_HZ)
    tensor_percent = 100 * tensor / seconds / (PEAK[phase.precision] * BASE_HZ / BOOST_HZ)
    dram_percent = 100 * (read + written) / seconds / (DRAM_PEAK * MEMORY_HZ)
    loaded, stored = asked * read // SECTOR, written // SECTOR
    dram_cycles = np.round(CHANNELS * dur / 1e9 * MEMORY_HZ)
    values = {
        "dur_ns": dur,
        "cycles": np.round(seconds * BASE_HZ),
        "hz": BASE_HZ,
        "sm_percent": np.maximum(np.maximum(fma_percent, tensor_percent), 9.0) + 1.1,
        "memory_percent": dram_percent + 1.7,
        "dram_percent": dram_percent,
        "fma_percent": fma_percent,
        "tensor_instructions": tensor // 2_048,
        "tensor_percent": tensor_percent,
        "fadd": added - added // 2,
        "fmul": added // 2,
        "ffma": multiplied,
        "tf32_flops": tensor,
        "read": read,
        "written": written,
        "dram_cycles": dram_cycles,
        "dram_cycles_mean": dram_cycles / CHANNELS,
        "dram_hz": MEMORY_HZ,
        "loaded": loaded,
        "stored": stored,
        "load_requests": loaded // 16,
        "store_requests": stored // 16,
        "l2_hit_percent": 100 * (1 - 1 / asked),
    }
    kinds = np.where(on_tensor_cores, "tensor", np.where(product, "product", "moving")).tolist()
    output = [f"Batch size: {phase.batch}", "Device: cuda"]
    counters.write(path, "bert", launches, kinds, values, label=label, output=output)
    found = counters.truth(
        launches,
        dur_ns=dur.tolist(),
        fp32_flops=fp32.tolist(),
        tensor_flops=tensor.tolist(),
        dram_bytes=(read + written).tolist(),
        theoretical_occupancy_frac=[counters.limits(each.kernel).occupancy for each in launched],
    )
    rows = [{"place": place, **row} for place, row in zip(layer, found["launches"], strict=True)]
    return {"launches": rows, "totals": found["totals"]}
