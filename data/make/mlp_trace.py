"""What would PyTorch's profiler have recorded of some training steps of the lab's MLP?

Conventions
-----------
An execution of its own, hours after the one that Nsight Systems saw: the two tools cannot record one process at once.
Recorded with shapes, memory and stacks. Kernels bear the names that Nsight Systems prints. The file says that it is
simulated.

Functions
---------
write    the trace, with what is true of it
card     the GPU, as PyTorch describes it
events   all that is in a trace
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from make import kineto, mlp_trace_events, mlp_trace_truth
from make.activity import KERNELS, STREAM
from make.kineto import Event, Mark, Span, described
from make.mlp_execution import WORKER, Execution, executed
from make.mlp_run import Segment
from make.table5 import Kernel
from perfkit.simulate.export import CARD

LABEL = "perfkit simulate mlp_a100: made from the figures of an A100 lab report; no GPU ran"
PROGRAM = "python3"
CUDA = 12_040


def write(path: Path, segments: Sequence[Segment], rng: np.random.Generator, *, t0_unix_ns: int) -> dict[str, Any]:
    """Write the trace to `path` and return what is true of it.

    Parameters
    ----------
    path
        The file, ``*.pt.trace.json.gz``; an older one is replaced when the new one is complete.
    segments
        The lab's run, as `mlp_run.run` returns it.
    rng
        Of all that is left open.
    t0_unix_ns
        Wall clock when the recording begins, ns since 1970 UTC.

    Returns
    -------
    dict
        `t0_unix_ns`, and what `mlp_trace_truth.truth` returns.
    """
    execution = executed(segments, rng)
    header = {
        "SIMULATED": LABEL,
        "deviceProperties": [card()],
        "cuda_runtime_version": CUDA,
        "cuda_driver_version": CUDA,
        **dict.fromkeys(("record_shapes", "profile_memory", "with_stack"), 1),
    }
    kineto.write(path, events(execution), t0_unix_ns=t0_unix_ns, header=header)
    return {"t0_unix_ns": t0_unix_ns, **mlp_trace_truth.truth(execution)}


def card() -> dict[str, int | str]:
    """Return the card as PyTorch describes it."""
    same = {
        "name": "name",
        "totalGlobalMem": "totalMemory",
        "computeMajor": "computeMajor",
        "computeMinor": "computeMinor",
        "maxThreadsPerBlock": "maxThreadsPerBlock",
        "regsPerBlock": "maxRegistersPerBlock",
        "warpSize": "threadsPerWarp",
        "sharedMemPerBlock": "maxShmemPerBlock",
        "numSms": "smCount",
        "regsPerMultiprocessor": "maxRegistersPerSm",
        "sharedMemPerBlockOptin": "maxShmemPerBlockOptin",
        "sharedMemPerMultiprocessor": "maxShmemPerSm",
    }
    return {"id": WORKER.gpu, **{theirs: CARD[ours] for theirs, ours in same.items()}}


def events(execution: Execution, kernels: Sequence[Kernel] = tuple(KERNELS.values())) -> Iterator[Event]:
    """Yield all events in the order in which Kineto writes them; `kernels` says what the kernels' numbers mean."""
    main, autograd = WORKER.threads
    threads = {main: f"thread {main} ({PROGRAM})", autograd: f"thread {autograd} (pt_autograd_0)"}
    yield from described(WORKER.process, threads, program=PROGRAM)
    yield from described(WORKER.gpu, {STREAM: f"stream {STREAM} "}, program=PROGRAM, gpu=True)
    yield from mlp_trace_events.host(execution)
    yield from mlp_trace_events.device(execution, kernels)
    yield Span("Trace", "PyTorch Profiler (0)", "Spans", "PyTorch Profiler", 0, execution.end, {"Op count": 0})
    yield Mark("Iteration Start: PyTorch Profiler", "Traces", "Trace PyTorch Profiler", 0)
    yield Mark("Record Window End", "", "", execution.end)
