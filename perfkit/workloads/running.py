"""Time a workload, and record it into a folder that perfkit reads.

Times are taken without a profiler, for each batch size; then, for the last one, the trace, NVIDIA's captures and the
log are recorded, each of steps of its own, because a profiler slows down what it watches. The folder holds the trace,
``timings.json``, and what the tools made.

>>> rows = measure(Plan("mlp", batches=(1, 64, 128)))  # doctest: +SKIP
>>> record(Plan("resnet18", device="cuda"), "run")  # doctest: +SKIP

A step begins when its batch is there and ends when the device has done it. On a GPU, events in its stream take that
time, without a wait of the host in between; on a CPU its clock does (CUDA C++ Best Practices Guide, 9.1: Timing). The
wait for a batch is always the host's. The first steps are not timed: they allocate, compile, choose kernels and raise
clocks. A rate is of the median step.
"""

from __future__ import annotations

import json
import platform
import shutil
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from perfkit.errors import PerfkitError
from perfkit.format import duration, number, percent
from perfkit.hardware import Peaks
from perfkit.workloads import baseline, building, flops
from perfkit.workloads import plan as workloads_plan
from perfkit.workloads.baseline import UNITS
from perfkit.workloads.building import Workload, batches, workload
from perfkit.workloads.plan import Plan
from perfkit.workloads.record import torch_profile

SOON_NS, MUCH_FLOPS = 1_000, 1_000_000  # no device does so much in so little: a call alone takes longer
REMEDY = "Time whole steps, by events on a GPU, and compare the name of the device with that of the peaks."


class Clock(Protocol):
    """Marks moments on a device."""

    def mark(self) -> Any:
        """Mark the moment when all that was asked for is done."""

    def between_ns(self, first: Any, then: Any) -> float:
        """Return the time between two marks, after `finish`."""

    def finish(self) -> None:
        """Wait until all that was asked for is done."""


class Times(NamedTuple):
    """Times of steps in ns: each wait for a batch, each step, and all of them together by the host's clock."""

    wait_ns: list[float]
    step_ns: list[float]
    wall_ns: int


class CpuClock:
    """The clock of the host, which does each step before it goes on."""

    def mark(self) -> int:
        """Return now."""
        return time.perf_counter_ns()

    def between_ns(self, first: int, then: int) -> float:
        """Return the time between two marks."""
        return float(then - first)

    def finish(self) -> None:
        """Do nothing: all is done."""


class GpuClock:
    """Events in the stream of a GPU, which has done what was asked for before them when it reaches them."""

    def __init__(self, cuda: Any) -> None:
        self.cuda = cuda

    def mark(self) -> Any:
        """Put an event into the stream."""
        event = self.cuda.Event(enable_timing=True)
        event.record()
        return event

    def between_ns(self, first: Any, then: Any) -> float:
        """Return the time between two events, to about 0.5 us."""
        return float(first.elapsed_time(then)) * 1e6  # ms

    def finish(self) -> None:
        """Wait for the GPU."""
        self.cuda.synchronize()


Row = dict[str, Any]
KIND = "perfkit workload"
TIMINGS = "timings.json"
BEFORE = 2  # steps before those of the trace: one waits and one warms up
LOGGED_S = 10.0  # of steps beside nvidia-smi, whose utilisation is a mean over up to a second


def measure(plan: Plan, *, peaks: Iterable[Peaks] | None = None, is_marked: bool = False) -> list[Row]:
    """Return times and rates of a workload, one row per batch size.

    Parameters
    ----------
    plan
        The workload.
    peaks
        Where to look for the peak of the device, such as the rows of `hardware.load_peaks`; perfkit's when omitted.
    is_marked
        Whether profilers see where the timed steps begin and end, and each step as a range (NVTX). GPU only.

    Returns
    -------
    list of dict
        `batch_count`; `steps_count` and `warm_up_count`; `step_median_ns`, `step_p25_ns`, `step_p75_ns`, `step_min_ns`,
        `step_max_ns`, of the step with its batch at hand; `wait_median_ns` for that batch; `wall_ns` of all steps;
        `samples_per_s` over it; `step_flops` by formula; `flops_per_s` of the median step, `peak_flops_per_s` and
        `peak_frac` (0..1), None where no peak is known; `step_ns`, every step.

    Raises
    ------
    PerfkitError
        If PyTorch, the GPU or a compiler is missing, a batch does not fit, or a rate is above the peak.
    """
    used = device(plan)
    peak = building.peak_flops(used, plan, table=peaks)
    rows = []
    with building.computing(used, plan):
        for batch in plan.batches:
            try:
                times = _times(used.torch, plan, batch, is_marked=is_marked)
            except used.torch.cuda.OutOfMemoryError as e:
                raise PerfkitError(
                    f"batch: {batch} of {plan.model} does not fit into the memory of {used.name}. Choose a smaller one."
                ) from e
            rows.append(_row(plan, batch, times, used.name, peak))
    return rows


def record(plan: Plan, out: str | Path, *, peaks: Iterable[Peaks] | None = None, gpu_metrics: bool = False) -> Row:
    """Time a workload, record its last batch size into an empty or new folder `out`, and return its ``timings.json``.

    That is the plan, the device, versions, units, `parameters_count`, under `captures` what each tool made or why it
    made nothing, and under `rows` those of `measure`, with `peaks` as there. With `gpu_metrics` nsys samples the GPU's
    counters, which needs a permission. PerfkitError as of `measure`, or if the folder is not empty or cannot be
    written.
    """
    out = Path(out)
    _check_empty(out)
    used = device(plan)
    content = {**_described(plan, used), "rows": measure(plan, peaks=peaks)}
    with _steady(used, plan) as (work, loaded), torch_profile(out, active=plan.traced) as profiler:
        content["parameters_count"] = sum(weights.numel() for weights in work.model.parameters())
        for _ in range(BEFORE + plan.traced):
            work.step(next(loaded))
            profiler.step()
    content["captures"] = _captures(used, plan, out, gpu_metrics=gpu_metrics)
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    (out / TIMINGS).write_text(text + "\n", encoding="utf-8")
    return content


def device(plan: Plan) -> baseline.Device:
    """Return PyTorch with the device of a plan; PerfkitError if there is none."""
    used = baseline.device()
    if plan.device == used.kind:
        return used
    if plan.device == "cpu":
        return baseline.Device(used.torch, "cpu", baseline.cpu_name())
    raise PerfkitError(
        f"device: 'cuda', and PyTorch {used.torch.__version__} finds no GPU. Choose cpu, or install a PyTorch for this "
        "GPU and compare `nvidia-smi`."
    )


def _times(torch: Any, plan: Plan, batch: int, *, is_marked: bool) -> Times:
    work, stopwatch = workload(torch, plan), clock(torch, plan.device)
    with closing(batches(torch, plan, batch)) as loaded:
        timed(work.step, loaded, plan.warming, stopwatch)
        if not is_marked:
            return timed(work.step, loaded, plan.steps, stopwatch)
        with torch.cuda.profiler.profile():
            return timed(_named(torch, work), loaded, plan.steps, stopwatch)


def _named(torch: Any, work: Workload) -> Any:
    """Return the step such that nsys shows it as a range of its own."""
    done = 0

    def step(batch: Any) -> None:
        nonlocal done
        with torch.cuda.nvtx.range(f"step {done}"):
            work.step(batch)
        done += 1

    return step


def _row(plan: Plan, batch: int, times: Times, name: str, peak: float | None) -> Row:
    statistics, work = summary(times), flops.step(plan, batch)
    what = f"{plan.mode} of {plan.model}, batch {batch}, {plan.precision}, on {name}"
    return {
        "batch_count": batch,
        "steps_count": plan.steps,
        "warm_up_count": plan.warming,
        **statistics,
        "samples_per_s": batch * plan.steps / (statistics["wall_ns"] / 1e9),
        "step_flops": work,
        **implied(what, work, statistics["step_median_ns"], peak_flops_per_s=peak),
        "step_ns": times.step_ns,
    }


@contextmanager
def _steady(used: baseline.Device, plan: Plan) -> Iterator[tuple[Workload, Iterator[Any]]]:
    """Yield a warmed-up workload and the batches of its last size."""
    with building.computing(used, plan), closing(batches(used.torch, plan, plan.batches[-1])) as loaded:
        work = workload(used.torch, plan)
        timed(work.step, loaded, plan.warming, clock(used.torch, plan.device))
        yield work, loaded


def _captures(used: baseline.Device, plan: Plan, out: Path, *, gpu_metrics: bool) -> dict[str, str]:
    """Record with the tools that there are; say what each made or why it made nothing."""
    made = {}
    for tool, wanted in workloads_plan.captures(plan, out, gpu_metrics=gpu_metrics).items():
        failed = _absent(tool, plan) or next(filter(None, map(workloads_plan.run, wanted)), None)
        made[tool] = failed or ", ".join(command.makes.name for command in wanted)
    failed = _absent("nvidia-smi", plan)
    if not failed:
        with _steady(used, plan) as (work, loaded), workloads_plan.logging(out):
            end = time.monotonic() + LOGGED_S
            while time.monotonic() < end:
                work.step(next(loaded))
    return {**made, "nvidia-smi": failed or workloads_plan.LOG}


def _absent(tool: str, plan: Plan) -> str | None:
    if plan.device == "cpu":
        return "left out: the device is a CPU"
    return None if shutil.which(tool) else "left out: not on PATH"


def _described(plan: Plan, used: baseline.Device) -> Row:
    return {
        "kind": KIND,
        "date": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "versions": {
            "perfkit": version("perfkit"),
            "python": platform.python_version(),
            "torch": str(used.torch.__version__),
            "cuda": used.torch.version.cuda,
        },
        "device": {"kind": used.kind, "name": used.name, "threads_count": used.torch.get_num_threads()},
        **{name: getattr(plan, name) for name in ("model", "mode", "precision")},
        "is_compiled": plan.compile,
        "reads_loss": plan.read_loss,
        "seed": plan.seed,
        "size": plan.dimensions,
        "loader": asdict(plan.loader),
        "units": UNITS,
    }


def _check_empty(out: Path) -> None:
    if not out.exists():
        return
    if not out.is_dir():
        raise PerfkitError(f"{out}: is no folder. Choose another name.")
    held = sorted(item.name for item in out.iterdir())
    if held:
        listed = ", ".join(held[:3]) + (" and more" if len(held) > 3 else "")
        raise PerfkitError(f"{out}: the folder is not empty ({listed}). Choose another one, or empty it.")


def clock(torch: Any, kind: str) -> Clock:
    """Return what takes the time on a device of this kind: cuda or cpu."""
    return GpuClock(torch.cuda) if kind == "cuda" else CpuClock()


def timed(step: Callable[[Any], object], batches: Iterator[Any], steps: int, on: Clock) -> Times:
    """Return the times of steps, each with the next batch; nothing waits for the GPU between them."""
    waits, marks = [], []
    on.finish()
    begin = time.perf_counter_ns()
    for _ in range(steps):
        asked = time.perf_counter_ns()
        batch = next(batches)
        waits.append(float(time.perf_counter_ns() - asked))
        first = on.mark()
        step(batch)
        marks.append((first, on.mark()))
    on.finish()
    wall = time.perf_counter_ns() - begin
    return Times(waits, [on.between_ns(first, then) for first, then in marks], wall)


def summary(times: Times) -> dict[str, float]:
    """Return median and spread of the steps, the median wait, and the time of all, ns."""
    low, quarter, middle, three, high = np.percentile(times.step_ns, [0, 25, 50, 75, 100]).tolist()
    return {
        "step_median_ns": middle,
        "step_p25_ns": quarter,
        "step_p75_ns": three,
        "step_min_ns": low,
        "step_max_ns": high,
        "wait_median_ns": float(np.median(times.wait_ns)),
        "wall_ns": float(times.wall_ns),
    }


def implied(what: str, flops: int, dur_ns: float, *, peak_flops_per_s: float | None = None) -> dict[str, float | None]:
    """Return `flops_per_s` of a step, `peak_flops_per_s`, and `peak_frac`, 0..1; None where no peak is known.

    `what` names the step and its device in the message. A rate above the dense peak, or a million operations in less
    than 1 us, is refused with a PerfkitError: then something else was timed.

    Examples
    --------
    >>> implied("MLP on an A100", 60_096_512, 57_580, peak_flops_per_s=19.5e12)["peak_frac"]  # doctest: +ELLIPSIS
    0.0535...
    """
    if not dur_ns > 0:
        raise PerfkitError(f"{what}: {number(flops)} FLOP in {dur_ns} ns. {REMEDY}")
    rate = flops / (dur_ns / 1e9)
    frac = None if peak_flops_per_s is None else rate / peak_flops_per_s
    claim = f"{what}: {number(flops / 1e6)} MFLOP in {duration(dur_ns)} are {number(rate / 1e12)} TFLOP/s"
    if frac is not None and frac > 1:
        raise PerfkitError(f"{claim}, {percent(frac)} of the peak. {REMEDY}")
    if flops >= MUCH_FLOPS and dur_ns < SOON_NS:
        raise PerfkitError(f"{claim}, in less time than a call takes. {REMEDY}")
    return {"flops_per_s": rate, "peak_flops_per_s": peak_flops_per_s, "peak_frac": frac}
