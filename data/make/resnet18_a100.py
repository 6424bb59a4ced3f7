"""What would the profilers have recorded of the ResNet-18 that the A100 lab report trains?

Conventions
-----------
The captures were never published; some of their figures were (part 3 of the report). These hold as printed: SMs active
and memory bandwidth, the order of the most expensive kernels of each kind, the bytes that one forward pass reads and
writes, the time of such a pass. What they imply is built in; the rest is invented. The files say that they are
simulated. The passes of inference and their counters are in a folder of their own: another run of another script.

Functions
---------
resnet18_a100    write the captures and their truth
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from make import nsys, resnet_counters, resnet_run, resnet_samples
from make.resnet_run import Steps
from make.resnet_samples import Wanted
from make.tally import Tally
from make.timeline import Int
from perfkit.simulate import export

NAME = "resnet18_a100"
LABEL = "perfkit simulate resnet18_a100: made from the figures of an A100 lab report; no GPU ran"
T0_UNIX_NS = 1_750_082_400_000_000_000  # 14:00 UTC of the report's date, 16 June 2025
REST_NS = 17_000_000
TRAINING_PERIOD_NS, INFERENCE_PERIOD_NS = 4_000_000, 100_000

# tables 11 and 12 of the report, s
REPORT = {
    "images": 832_571,
    "training_s": {"1": 6283.2402, "64": 625.0386, "128": 614.9121},
    "inference_gpu_s": {"1": 0.0053, "64": 0.0093, "128": 0.0144},
    "inference_cpu_s": {"1": 0.02, "64": 0.95, "128": 1.94},
}


def resnet18_a100(folder: Path, *, seed: int = 0) -> Path:
    """Write the run into `folder` and return that.

    It is `resnet18_a100.nsys.sqlite` and `resnet18_a100.truth.json`, and in the folder `inference` of it
    `resnet18_a100.inference.nsys.sqlite` and `.ncu.csv`. Files of these names are replaced; others stay.

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
    Kuo and Gurjar, Machine Learning Acceleration, lab assignment 2, 16 June 2025, part 3.
    """
    inference = folder / "inference" / f"{NAME}.inference"
    inference.parent.mkdir(parents=True, exist_ok=True)
    training = resnet_run.training(np.random.default_rng(seed))
    passes = resnet_run.inference(np.random.default_rng([seed, 1]))
    truth = {"simulated": LABEL, "seed": seed, "report": REPORT}
    truth |= _write(folder / f"{NAME}.nsys.sqlite", training, TRAINING_PERIOD_NS, resnet_samples.TRAINING)
    timeline, counters = (inference.with_name(f"{inference.name}{end}") for end in (".nsys.sqlite", ".ncu.csv"))
    truth["inference"] = _write(timeline, passes, INFERENCE_PERIOD_NS, resnet_samples.INFERENCE)
    truth["ncu"] = resnet_counters.write(counters, label=LABEL)
    part = folder / f".{NAME}.truth.json.part"
    part.write_text(json.dumps(truth, indent=1) + "\n")
    os.replace(part, folder / f"{NAME}.truth.json")
    return folder


def _write(path: Path, steps: Steps, period_ns: int, wanted: Wanted) -> dict[str, Any]:
    """Write a capture; return what is true of it."""
    end_ns = int(steps.end[-1]) + REST_NS
    block, kernels, workers = steps.block(), list(steps.program.kernels.values()), [steps.worker]
    times, values = resnet_samples.sample(steps, end_ns, period_ns, wanted)
    script = "part3_resnet18_train.py -b 128" if steps.waits else "part3_resnet18_inf.py -b 1"
    with export.writing(path) as db:
        nsys.write_block(db, block, kernels)
        nsys.write_ranges(db, steps.ranges())
        export.write_session(db, label=LABEL, arguments=script, dur_ns=end_ns, workers=workers)
        export.write_gpus(db, t0_unix_ns=T0_UNIX_NS, gpus=1, workers=workers)
        export.write_samples(db, gpu=0, times=times, values=values)
    tally = Tally(kernels)
    tally.add(block)
    return {**tally.truth(), "steps": _steps(steps), "report_window": resnet_samples.means(steps, times, values)} | {
        "samples": _means(times, values)
    }


def _steps(steps: Steps) -> dict[str, float]:
    """Number of steps, their time, and how much of it the host waited for data."""
    return {
        "count": len(steps.start),
        "total_ns": int((steps.end - steps.start).sum()),
        "loading_ns": int((steps.begin - steps.start).sum()),
    }


def _means(times: Int, values: Mapping[str, Int]) -> dict[str, dict[str, float]]:
    return {name: {"count": len(times), "mean": float(value.mean())} for name, value in values.items()}
