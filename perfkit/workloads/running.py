"""Build a workload, time it, and record it into a folder that perfkit reads.

Times are taken without a profiler, which slows down what it watches. A step begins when its batch is there and ends
when the device has done it: on a GPU, events in its stream take that time (CUDA C++ Best Practices Guide, 9.1: Timing).
The first steps are not timed: they allocate, compile, choose kernels and raise clocks.
"""

import importlib.util
import json
import os
import platform
import shutil
import time
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import version
from itertools import count, repeat
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from perfkit import hardware, workloads
from perfkit.errors import PerfkitError
from perfkit.format import duration, number, percent
from perfkit.hardware import Peaks
from perfkit.workloads import Plan, baseline, flops, torch_profile
from perfkit.workloads.baseline import UNITS, Device

KEPT = 256  # samples that are drawn; later ones are the same again
EPOCH = 100  # batches until the DataLoader starts again, and with it workers that do not persist
CLASSES = {"mlp": 10, "cnn": 10, "resnet18": 1000, "bert": 2}
Batch = tuple[Any, Any]


class Synthetic:
    """A data set for the DataLoader: `length` samples with their labels."""

    def __init__(self, torch: Any, plan: Plan, length: int) -> None:
        drawn = torch.Generator().manual_seed(plan.seed)
        self.is_text = plan.model == "bert"
        if self.is_text:
            self.samples = torch.randint(
                plan.size.vocabulary, (KEPT, plan.size.sequence), generator=drawn
            )
        else:  # bytes of images
            shape = (
                (3, plan.size.image, plan.size.image) if plan.model == "resnet18" else (1, 28, 28)
            )
            self.samples = torch.randint(256, (KEPT, *shape), generator=drawn, dtype=torch.uint8)
        self.labels = torch.randint(CLASSES[plan.model], (KEPT,), generator=drawn)
        self.length = length

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> Batch:
        if not 0 <= index < self.length:
            raise IndexError(index)
        sample, label = self.samples[index % KEPT], self.labels[index % KEPT]
        return (sample if self.is_text else sample.float().div_(127.5).sub_(1)), label


# Compute capability from which tensor cores know the format (CUDA C++ Programming Guide, warp matrix functions).
TENSOR_SINCE = {"fp16": (7, 0), "bf16": (8, 0), "tf32": (8, 0)}
CXX, CC = ("c++", "g++", "clang++"), ("cc", "gcc", "clang")  # where CXX and CC name none


class Workload(NamedTuple):
    """A model on its device; `step` returns the loss of a batch when it trains, otherwise the logits."""

    model: Any
    step: Callable[[Batch], Any]


SOON_NS, MUCH_FLOPS = (
    1_000,
    1_000_000,
)  # no device does so much in so little: a call alone takes longer
REMEDY = "Time whole steps, by events on a GPU, and compare the name of the device with that of the peaks."


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


def measure(
    plan: Plan, *, peaks: Iterable[Peaks] | None = None, is_marked: bool = False
) -> list[Row]:
    """Return times and rates of a workload, one row per batch size.

    `peaks`: where to look for the peak of the device, such as the rows of `hardware.load_peaks`; perfkit's when
    omitted. `is_marked`: whether profilers see where the timed steps begin and end, and each step as a range (NVTX).
    GPU only.
    A row holds `batch_count`; `steps_count` and `warm_up_count`; `step_median_ns`, `step_p25_ns`, `step_p75_ns`,
    `step_min_ns`, `step_max_ns`, of the step with its batch at hand; `wait_median_ns` for that batch; `wall_ns` of all
    steps; `samples_per_s` over it; `step_flops` by formula; `flops_per_s` of the median step, `peak_flops_per_s` and
    `peak_frac` (0..1), None where no peak is known; `step_ns`, every step. Raises PerfkitError if PyTorch, the GPU or a
    compiler is missing, a batch does not fit, or a rate is above the peak.
    """
    used = device(plan)
    peak = peak_flops(used, plan, table=peaks)
    rows = []
    with computing(used, plan):
        for batch in plan.batches:
            try:
                times = _times(used.torch, plan, batch, is_marked=is_marked)
            except used.torch.cuda.OutOfMemoryError as e:
                raise PerfkitError(
                    f"batch: {batch} of {plan.model} does not fit into the memory of {used.name}. Choose a smaller one."
                ) from e
            rows.append(_row(plan, batch, times, used.name, peak))
    return rows


def record(
    plan: Plan, out: str | Path, *, peaks: Iterable[Peaks] | None = None, gpu_metrics: bool = False
) -> Row:
    """Time a workload, record its last batch size into an empty or new folder `out`, and return its ``timings.json``.

    That is the plan, the device, versions, units, `parameters_count`, under `captures` what each tool made or why it
    made nothing, and under `rows` those of `measure`, with `peaks` as there. With `gpu_metrics` nsys samples the GPU's
    counters, which needs a permission. PerfkitError as of `measure`, or if the folder is not empty.
    """
    out = Path(out)
    if out.exists() and not out.is_dir():
        raise PerfkitError(f"{out}: is no folder. Choose another name.")
    if there := sorted(item.name for item in out.iterdir()) if out.exists() else []:
        listed = ", ".join(there[:3]) + (" and more" if len(there) > 3 else "")
        raise PerfkitError(
            f"{out}: the folder is not empty ({listed}). Choose another one, or empty it."
        )
    used = device(plan)
    content = {**_described(plan, used), "rows": measure(plan, peaks=peaks)}
    with _steady(used, plan) as (work, loaded), torch_profile(out, active=plan.traced) as profiler:
        content["parameters_count"] = sum(weights.numel() for weights in work.model.parameters())
        for number in range(1, BEFORE + plan.traced + 1):
            work.step(next(loaded))
            if number == BEFORE:  # else the trace begins with kernels of steps whose calls it lacks
                clock(used.torch, plan.device).finish()
            profiler.step()
    content["captures"] = _captures(used, plan, out, gpu_metrics=gpu_metrics)
    text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    (out / TIMINGS).write_text(text + "\n", encoding="utf-8")
    return content


def device(plan: Plan) -> Device:
    """Return PyTorch with the device of a plan; PerfkitError if there is none."""
    used = baseline.device()
    if plan.device == used.kind:
        return used
    if plan.device == "cpu":
        return Device(used.torch, "cpu", baseline.cpu_name())
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
    numbers = count()

    def step(batch: Any) -> None:
        with torch.cuda.nvtx.range(f"step {next(numbers)}"):
            work.step(batch)

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
def _steady(used: Device, plan: Plan) -> Iterator[tuple[Workload, Iterator[Any]]]:
    """Yield a warmed-up workload and the batches of its last size."""
    with computing(used, plan), closing(batches(used.torch, plan, plan.batches[-1])) as loaded:
        work = workload(used.torch, plan)
        timed(work.step, loaded, plan.warming, clock(used.torch, plan.device))
        yield work, loaded


def _captures(used: Device, plan: Plan, out: Path, *, gpu_metrics: bool) -> dict[str, str]:
    """Record with the tools that there are; say what each made or why it made nothing."""
    made = {}
    for tool, wanted in workloads.captures(plan, out, gpu_metrics=gpu_metrics).items():
        failed = _absent(tool, plan) or next(filter(None, map(workloads.run, wanted)), None)
        made[tool] = failed or ", ".join(command.makes.name for command in wanted)
    failed = _absent("nvidia-smi", plan)
    if not failed:
        with _steady(used, plan) as (work, loaded), workloads.logging(out):
            end = time.monotonic() + LOGGED_S
            while time.monotonic() < end:
                work.step(next(loaded))
    return {**made, "nvidia-smi": failed or workloads.LOG}


def _absent(tool: str, plan: Plan) -> str | None:
    if plan.device == "cpu":
        return "left out: the device is a CPU"
    return None if shutil.which(tool) else "left out: not on PATH"


def _described(plan: Plan, used: Device) -> Row:
    return {
        "kind": KIND,
        "date": f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}",
        "versions": {
            "perfkit": version("perfkit"),
            "python": platform.python_version(),
            "torch": str(used.torch.__version__),
            "cuda": used.torch.version.cuda,
        },
        "device": {
            "kind": used.kind,
            "name": used.name,
            "threads_count": used.torch.get_num_threads(),
        },
        **{name: getattr(plan, name) for name in ("model", "mode", "precision")},
        "is_compiled": plan.compile,
        "reads_loss": plan.read_loss,
        "seed": plan.seed,
        "size": plan.dimensions,
        "loader": asdict(plan.loader),
        "units": UNITS,
    }


def clock(torch: Any, kind: str) -> CpuClock | GpuClock:
    """Return what takes the time on a device of this kind: cuda or cpu."""
    return GpuClock(torch.cuda) if kind == "cuda" else CpuClock()


def timed(
    step: Callable[[Any], object], batches: Iterator[Any], steps: int, on: CpuClock | GpuClock
) -> Times:
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
    names = ("step_median_ns", "step_p25_ns", "step_p75_ns", "step_min_ns", "step_max_ns")
    steps = dict(
        zip(names, np.percentile(times.step_ns, [50, 25, 75, 0, 100]).tolist(), strict=True)
    )
    return {
        **steps,
        "wait_median_ns": float(np.median(times.wait_ns)),
        "wall_ns": float(times.wall_ns),
    }


def implied(
    what: str, flops: int, dur_ns: float, *, peak_flops_per_s: float | None = None
) -> dict[str, float | None]:
    """Return `flops_per_s` of a step, `peak_flops_per_s`, and `peak_frac`, 0..1; None where no peak is known.

    `what` names the step and its device in the message. A rate above the dense peak, or a million operations in less
    than 1 us, is refused with a PerfkitError: then something else was timed.

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


def model(plan: Plan) -> Any:
    """Return the model of a plan; the same seed gives the same weights."""
    import torch

    from perfkit.workloads import models

    torch.manual_seed(plan.seed)
    if plan.model in ("mlp", "cnn"):
        return models.SimpleMLP() if plan.model == "mlp" else models.SimpleCNN()
    if plan.model == "resnet18":
        return models.ResNet18(classes=CLASSES["resnet18"])
    size = {name: getattr(plan.size, name) for name in ("layers", "hidden", "heads", "vocabulary")}
    return models.BertClassifier(classes=CLASSES["bert"], **size)


def workload(torch: Any, plan: Plan) -> Workload:
    """Return the model on its device and its step; compiled if asked for, PerfkitError without a compiler."""
    if plan.compile:
        _check_compiler(plan.device)
    made = model(plan).to(plan.device).train(plan.mode == "train")
    called = torch.compile(made) if plan.compile else made
    if plan.mode == "train":
        return Workload(made, _training(torch, plan, made, called))

    def step(batch: Batch) -> Any:
        with torch.inference_mode(), autocast(torch, plan):
            return called(batch[0])

    return Workload(made, step)


def _training(torch: Any, plan: Plan, made: Any, called: Any) -> Callable[[Batch], Any]:
    is_bert, weights = plan.model == "bert", made.parameters()
    optimiser = (
        torch.optim.AdamW(weights, lr=5e-5)
        if is_bert
        else torch.optim.SGD(weights, lr=0.01, momentum=0.9)
    )
    # Gradients of FP16 numbers are scaled up, so that small ones do not become 0.
    scaler = torch.amp.GradScaler(plan.device, enabled=plan.precision == "fp16")
    numbers = count(1)

    def step(batch: Batch) -> Any:
        inputs, labels = batch
        with autocast(torch, plan):
            loss = torch.nn.functional.cross_entropy(called(inputs), labels)
        scaler.scale(loss).backward()
        scaler.step(optimiser)
        scaler.update()
        optimiser.zero_grad()
        return (
            loss.item() if plan.read_loss and next(numbers) % plan.read_loss == 0 else loss.detach()
        )

    return step


def _check_compiler(device: str) -> None:
    """Refuse to compile without what PyTorch's compiler calls: Triton and a C compiler on a GPU, C++ on a CPU."""
    variable, names = ("CC", CC) if device == "cuda" else ("CXX", CXX)
    asked = os.environ.get(variable)
    if not any(shutil.which(name) for name in ((asked,) if asked else names)):
        raise PerfkitError(
            f"compile: there is no {'C' if device == 'cuda' else 'C++'} compiler ({asked or ', '.join(names)}). "
            f"Install one, set {variable} to it, or leave --compile out."
        )
    if device == "cuda" and importlib.util.find_spec("triton") is None:
        raise PerfkitError(
            "compile: Triton is not installed. Install `triton`, or leave --compile out."
        )


def batches(torch: Any, plan: Plan, batch: int) -> Generator[Batch]:
    """Yield batches of inputs and labels without end, on the device of the plan."""
    options = plan.loader
    loader = torch.utils.data.DataLoader(
        Synthetic(torch, plan, batch * EPOCH),
        batch_size=batch,
        num_workers=options.workers,
        pin_memory=options.pin_memory,
        prefetch_factor=options.prefetch,
        persistent_workers=options.persistent,
    )
    if options.resident:
        yield from repeat(_moved(next(iter(loader)), plan))
    while True:
        for loaded in loader:
            yield _moved(loaded, plan)


def _moved(loaded: Batch, plan: Plan) -> Batch:
    """Copy a batch to the device; from pinned memory the host does not wait for it."""
    inputs, labels = (part.to(plan.device, non_blocking=plan.loader.pin_memory) for part in loaded)
    return inputs, labels


@contextmanager
def computing(used: Device, plan: Plan) -> Iterator[None]:
    """Let a GPU compute convolutions and products with FP32 as such, or in TF32, until the block ends."""
    if used.capability is None:
        yield
        return
    if plan.precision == "tf32" and used.capability < TENSOR_SINCE["tf32"]:
        raise PerfkitError(f"precision: {used.name} does not compute in TF32. Choose fp32 or fp16.")
    torch = used.torch
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    torch.set_float32_matmul_precision("high" if plan.precision == "tf32" else "highest")
    torch.backends.cudnn.allow_tf32 = plan.precision == "tf32"
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before[0])
        torch.backends.cudnn.allow_tf32 = before[1]


def autocast(torch: Any, plan: Plan) -> Any:
    """Return a context in which products are computed in FP16 or BF16, or one that changes nothing."""
    half = {"fp16": "float16", "bf16": "bfloat16"}.get(plan.precision)
    return torch.autocast(
        plan.device, dtype=getattr(torch, half or "bfloat16"), enabled=half is not None
    )


def peak_flops(
    used: Device, plan: Plan, *, table: Iterable[hardware.Peaks] | None = None
) -> float | None:
    """Return the dense peak of the device in the plan's precision, FLOP/s, of tensor cores if it has them, or None."""
    sheet = hardware.peaks(used.name, table=table)
    since = TENSOR_SINCE.get(plan.precision)
    in_tensor_cores = since is not None and used.capability is not None and used.capability >= since
    name = f"{plan.precision}_tensor" if in_tensor_cores else plan.precision
    return sheet.flops_per_s.get(name) if sheet else None
