"""What would `perfkit.workloads` have written of the lab's times of BERT?

Conventions
-----------
The form of its ``timings.json``; times are int64 ns. Mean and median of the steps are the report's latency. Operations
are those of the products: 24 s h^2 + 4 s^2 h for a layer of a sequence of s tokens, and 4 s h for the head.

Functions
---------
rows      a row per batch size
write     the file
flops     operations of a batch
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from make.bert_kernels import HEADS, HIDDEN, LAYERS, SEQUENCE, VOCABULARY
from make.bert_plan import PARAMETERS

UNITS = {
    "_ns": "nanoseconds",
    "_flops": "floating-point operations",
    "_bytes": "bytes",
    "_count": "a number of things",
    "_frac": "a fraction of 1",
    "_per_s": "per second",
}


def flops(batch: int) -> int:
    """Return the operations of a batch, FLOP.

    Examples
    --------
    >>> flops(1)
    22347644928
    """
    layer = 24 * SEQUENCE * HIDDEN**2 + 4 * SEQUENCE**2 * HIDDEN
    return batch * (LAYERS * layer + 4 * SEQUENCE * HIDDEN)


def rows(
    step_ns: Mapping[int, Sequence[int]], wall_ns: Mapping[int, int], *, peak: float | None
) -> list[dict[str, Any]]:
    """Return a row per batch size, as `perfkit.workloads.running.measure` does.

    Parameters
    ----------
    step_ns, wall_ns
        Steps, and time from the first to the last of them, by batch size.
    peak
        Dense peak, FLOP/s, None where it is not known.
    """
    return [_row(batch, np.array(times), wall_ns[batch], peak) for batch, times in step_ns.items()]


def _row(batch: int, times: Any, wall_ns: int, peak: float | None) -> dict[str, Any]:
    low, quarter, middle, three, high = np.percentile(times, [0, 25, 50, 75, 100]).tolist()
    rate = flops(batch) / (middle / 1e9)
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
        "step_flops": flops(batch),
        "flops_per_s": rate,
        "peak_flops_per_s": peak,
        "peak_frac": None if peak is None else rate / peak,
        "step_ns": [float(each) for each in times.tolist()],
    }


def write(path: Path, found: list[dict[str, Any]], *, device: Mapping[str, Any], label: str) -> None:
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
