"""What is true of a simulated run of BERT? Sums over what ran, made without any of perfkit's analyses.

Conventions
-----------
Times are ns. All of the run is counted as in `tally`; a phase is its timed batches, without the one that warms up. The
latency of a batch is from the copy of its tokens until its logits are back.

Functions
---------
truth    all of it
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from make.activity import Block
from make.bert_run import Segment, cases
from make.bert_timings import flops
from make.table5 import Kernel
from make.tally import Tally


def truth(kernels: Sequence[Kernel], segments: Sequence[Segment], blocks: Sequence[Block]) -> dict[str, Any]:
    """Return what is true of a run, as numbers and text that JSON can hold.

    Returns
    -------
    dict
        As `Tally.truth`, with one row per name in ``kernel_rows``; ``phases``: by name, batch, latency_ns of each step,
        its mean and median, start_ns and end_ns, launches and kernels per step, kernel_busy_ns and product_ns of all
        steps, step_flops.
    """
    tally = Tally(kernels)
    for block in blocks:
        tally.add(block)
    found = tally.truth()
    named = {each.phase.name: _phase(each, block) for each, block in _timed(segments, blocks) if each.phase}
    return {**found, "kernel_rows": _by_name(kernels, blocks), "phases": named}


def _timed(segments: Sequence[Segment], blocks: Sequence[Block]) -> list[tuple[Segment, Block]]:
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
        "step_flops": flops(segment.phase.batch),
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
