"""What would the profilers have recorded of the inference with BERT that the A100 lab report times?

Conventions
-----------
The report's part 4 prints a latency per batch size, and no more; that holds to the nanosecond as mean and median of
each phase. What it implies is built in: FP32 on CUDA cores, because sequences of 128 tokens then take three quarters of
the peak at batch 32, and a host that is too slow for the GPU at batch 1. All else follows from the shapes of BERT-base
by simple laws (`bert_kernels`) or is drawn at random. The files say that they are simulated.

Functions
---------
bert_a100              write the lab's run and its truth
bert_a100_optimised    two of its phases with one thing changed each, which no report has
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from make import bert_counters, bert_timings, bert_trace, nsys
from make.activity import Block, Ranges, calls_in, rows
from make.bert_kernels import PEAK, SIZES
from make.bert_run import LAB, OPTIMISED, STEPS, Phase, Segment, cases, run, spread
from make.bert_truth import truth
from make.table5 import Kernel
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

    Parameters
    ----------
    folder
        Made if it does not exist.
    seed
        Of all that the report leaves open. The same seed gives the same bytes.

    Returns
    -------
    Path
        `folder`.

    References
    ----------
    Kuo and Gurjar, Machine Learning Acceleration, lab assignment 2, 16 June 2025: part 4, Table 13.
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

    Parameters
    ----------
    folder, seed
        As for `bert_a100`.

    Returns
    -------
    Path
        `folder`.
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
    return {**truth(list(kernels.values()), segments, blocks), "ncu": layer}


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
    rows_of_gpu = bert_timings.rows(gpu, walls, peak=PEAK["fp32"])
    device = {"kind": "cuda", "name": CARD["name"]}
    bert_timings.write(folder / "timings.json", rows_of_gpu, device=device, label=LAB_LABEL)
    cpu = {batch: spread(mean, STEPS, rng).tolist() for batch, mean in CPU_NS.items()}
    rows_of_cpu = bert_timings.rows(cpu, {batch: sum(times) for batch, times in cpu.items()}, peak=None)
    (folder / "cpu").mkdir(exist_ok=True)
    device = {"kind": "cpu", "name": CPU_NAME}
    bert_timings.write(folder / "cpu" / "timings.json", rows_of_cpu, device=device, label=LAB_LABEL)


def _save(path: Path, content: dict[str, Any]) -> None:
    part = path.with_name(f".{path.name}.part")
    part.write_text(json.dumps(content, indent=1) + "\n")
    os.replace(part, path)
