"""What would the profilers have recorded of the MLP that the A100 lab report trains for one epoch?

Conventions
-----------
The capture was never published; its summary was. What the report prints holds to the nanosecond: the 28 rows of
Table 5, the first start and the last end of kernels and of copies, and, to the two decimals printed, the means
of GPU activity and memory bandwidth in both windows of section 2.2. What it implies is built in: 469 training
steps of 128 images, 79 test batches and one forward pass, launched one by one by a host that mostly waits for
its DataLoader. All else is drawn at random. The forward pass is also there as counters (`mlp_inference`), and eight
training steps of a later execution as PyTorch's profiler would have recorded them (`mlp_trace`). The files say that
they are simulated.

Functions
---------
mlp_a100    write the captures and their truth
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from make import mlp_inference, mlp_samples, mlp_trace, nsys
from make.activity import KERNELS, Block, Ranges, Rows, calls_in, rows
from make.mlp_run import Segment, run
from make.tally import Tally
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
    Kuo and Gurjar, Machine Learning Acceleration, lab assignment 2, 16 June 2025: Table 5, sections 2.2 and 2.4.
    """
    rng = np.random.default_rng(seed)
    segments = run(rng)
    blocks = list(_blocks(segments))
    ranges = _ranges(segments)
    times, values = mlp_samples.sample(_joined(blocks), END_NS, rng)
    folder.mkdir(parents=True, exist_ok=True)
    truth = folder / f".{NAME}.truth.json.part"
    counted = {"ncu": mlp_inference.write(folder / f"{NAME}.inference.ncu.csv")}
    trace, others = folder / f"{NAME}.pt.trace.json.gz", np.random.default_rng([seed, 1])
    counted["torch"] = mlp_trace.write(trace, segments, others, t0_unix_ns=TRACE_UNIX_NS)
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
        "report_windows": mlp_samples.windows(times, values),
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
