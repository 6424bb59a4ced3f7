"""What is run and how: a plan of a model, and what records it.

The program, started with ``--mark-steps``, warms up and then calls cudaProfilerStart, which the tools wait for. Nsight
Compute replays every kernel many times, so it gets one step. Of several batch sizes the last is captured. Options:
Nsight Systems User Guide, CLI options; Nsight Compute CLI, command line options. With `torch_profile` every rank of
your own loop writes a trace into one folder, which `perfkit.load` reads as one run.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

from perfkit.errors import PerfkitError
from perfkit.workloads import torch_launcher

if TYPE_CHECKING:
    from torch.profiler import profile


MODELS = ("mlp", "cnn", "resnet18", "bert")
MODES = ("train", "inference")
DEVICES = ("cpu", "cuda")
PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
WARM_UP = MappingProxyType({"cuda": 50, "cpu": 5})  # steps; on a GPU until its clocks are steady
TRACED = 5  # steps that the trace of a recording holds


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise ValueError(f"{name}: {value} is below {least}")


@dataclass(frozen=True)
class Size:
    """Side of images in pixels (ResNet), length of sequences in tokens and model (BERT); MLP and CNN have none."""

    image: int = 224
    sequence: int = 128
    layers: int = 12
    hidden: int = 768
    heads: int = 12
    vocabulary: int = 30522

    def __post_init__(self) -> None:
        """Refuse what the models do not take."""
        for name in ("layers", "hidden", "heads", "vocabulary"):
            _at_least(name, getattr(self, name), 1)
        _at_least("image", self.image, 32)
        if not 1 <= self.sequence <= 512:
            raise ValueError(f"sequence: {self.sequence} tokens; BERT takes 1 to 512")
        if self.hidden % self.heads:
            raise ValueError(f"hidden: {self.hidden} is no multiple of {self.heads} heads")


SMALL = Size(image=64, sequence=32, layers=2, hidden=128, heads=2, vocabulary=1000)
SIZES = MappingProxyType({"full": Size(), "small": SMALL})


@dataclass(frozen=True)
class Loader:
    """How the batches come: PyTorch's DataLoader with these arguments, or one `resident` batch on the device."""

    resident: bool = False
    workers: int = 0
    pin_memory: bool = False
    prefetch: int | None = None
    persistent: bool = False

    def __post_init__(self) -> None:
        """Refuse options that would have no effect."""
        _at_least("workers", self.workers, 0)
        if self.prefetch is not None:
            _at_least("prefetch", self.prefetch, 1)
        if not self.workers and (self.prefetch is not None or self.persistent):
            raise ValueError("workers: 0, so there is nothing to prefetch or keep; give 1 or more")
        if self.resident and (self.workers or self.pin_memory):
            raise ValueError(
                "resident: the batch stays on the device, so there is nothing to load; leave one out"
            )


@dataclass(frozen=True)
class Plan:
    """A workload: `steps` of training or inference are timed for each of `batches`, after `warm_up` others.

    `read_loss` reads the loss after every so many training steps, which waits for the GPU; with 0 never. A `warm_up` of
    None is 50 steps on a GPU and 5 on a CPU. Of a recording, the trace holds `traced` steps.
    """

    model: str
    mode: str = "train"
    device: str = "cpu"
    batches: tuple[int, ...] = (128,)
    steps: int = 50
    warm_up: int | None = None
    precision: str = "fp32"
    compile: bool = False
    read_loss: int = 0
    seed: int = 0
    traced: int = TRACED
    size: Size = field(default_factory=Size)
    loader: Loader = field(default_factory=Loader)

    def __post_init__(self) -> None:
        """Refuse what cannot be run."""
        for name, legal in (
            ("model", MODELS),
            ("mode", MODES),
            ("device", DEVICES),
            ("precision", PRECISIONS),
        ):
            if getattr(self, name) not in legal:
                raise ValueError(f"{name}: {getattr(self, name)!r} is not one of {list(legal)}")
        if not self.batches or min(self.batches) < 1:
            raise ValueError(f"batches: {list(self.batches)} is no list of sizes from 1 on")
        _at_least("steps", self.steps, 1)
        _at_least("warm_up", self.warming, 0)
        _at_least("read_loss", self.read_loss, 0)
        _at_least("traced", self.traced, 1)
        if self.device == "cpu" and self.precision == "tf32":
            raise ValueError("precision: 'tf32' is one of GPUs; a CPU has ['fp32', 'fp16', 'bf16']")
        if self.device == "cpu" and self.loader.pin_memory:
            raise ValueError("pin_memory: speeds up copies to a GPU, and the device is 'cpu'")
        if self.read_loss and self.mode == "inference":
            raise ValueError("read_loss: inference has no loss; the mode is not 'train'")

    @property
    def warming(self) -> int:
        """Steps before the timed ones."""
        return WARM_UP[self.device] if self.warm_up is None else self.warm_up

    @property
    def dimensions(self) -> dict[str, Any]:
        """What of the size this model has."""
        names = {
            "resnet18": ("image",),
            "bert": ("sequence", "layers", "hidden", "heads", "vocabulary"),
        }
        return {name: getattr(self.size, name) for name in names.get(self.model, ())}


LOG = "nvidia-smi.csv"
FIELDS = (
    "timestamp,index,name,utilization.gpu,utilization.memory,memory.used,memory.total,power.draw,"
    "enforced.power.limit,temperature.gpu,clocks.current.sm,clocks_event_reasons.active"
)
# The full set has instructions per cycle alone; a total is counted, not worked out from a rounded rate.
TOTALS = (
    *(
        f"smsp__sass_thread_inst_executed_op_{kind}_pred_on.sum"
        for kind in ("fadd", "fmul", "ffma")
    ),
    "sm__cycles_elapsed.avg",
    "sm__cycles_elapsed.avg.per_second",
)
MARKED = "--mark-steps"


class Command(NamedTuple):
    """A command, the files it makes, and where its output goes."""

    argv: tuple[str, ...]
    makes: Path
    stdout: Path | None = None


SNIPPET = """\
from perfkit.workloads import torch_profile
with torch_profile("trace") as profiler:  # around the loop: 1 step waits, 1 warms up, 3 are recorded
    profiler.step()  # in the loop, after each step
"""
TRACE = torch_launcher.SUFFIX
OF_A_RANK = re.compile(rf"rank-(\d+){re.escape(TRACE)}")


def arguments(plan: Plan) -> list[str]:
    """Return the command-line arguments of ``python -m perfkit.workloads`` that give this plan.

    >>> arguments(Plan("bert", device="cuda", batches=(8,), precision="bf16", loader=Loader(resident=True)))
    ['bert', '--device', 'cuda', '--batch', '8', '--precision', 'bf16', '--resident']
    """
    scale = min(SIZES, key=lambda name: len(_different(plan.size, SIZES[name])))
    words = [plan.model, *(_option("scale", scale) if SIZES[scale] != Size() else [])]
    for part, usual in (
        (plan, Plan(plan.model)),
        (plan.size, SIZES[scale]),
        (plan.loader, Loader()),
    ):
        for name in _different(part, usual):
            if name not in ("model", "size", "loader"):
                words += _option(name, getattr(part, name))
    return words


def captures(plan: Plan, out: Path, *, gpu_metrics: bool = False) -> dict[str, list[Command]]:
    """Return the commands that record the last batch size of a plan into `out`, in their order, by tool: nsys, ncu."""
    last = replace(plan, batches=plan.batches[-1:])
    stem = out / plan.model
    report, export = stem.with_suffix(".nsys-rep"), stem.with_suffix(".sqlite")
    counted, page = stem.with_suffix(".ncu-rep"), stem.with_suffix(".raw.csv")
    nsys = [
        *("nsys", "profile", "--trace=cuda,nvtx,osrt,cudnn,cublas", "--cuda-memory-usage=true"),
        *(["--gpu-metrics-devices=all"] if gpu_metrics else []),
        *("--capture-range=cudaProfilerApi", "--capture-range-end=stop", "--force-overwrite=true"),
        *(f"--output={stem}", *_program(last)),
    ]
    exporting = [
        "nsys",
        "export",
        "--type=sqlite",
        "--force-overwrite=true",
        f"--output={export}",
        str(report),
    ]
    ncu = ["ncu", "--set", "full", "--metrics", ",".join(TOTALS), "--profile-from-start", "off"]
    ncu += ["--force-overwrite", "--export", str(stem)]
    printing = ["ncu", "--import", str(counted), "--csv", "--page", "raw", "--print-units", "base"]
    return {
        "nsys": [Command(tuple(nsys), report), Command(tuple(exporting), export)],
        "ncu": [
            Command((*ncu, *_program(replace(last, steps=1))), counted),
            Command(tuple(printing), page, stdout=page),
        ],
    }


def log(out: Path) -> list[str]:
    """Return the command that logs the GPUs ten times a second until it is ended."""
    return [
        "nvidia-smi",
        f"--query-gpu={FIELDS}",
        "--format=csv",
        "--loop-ms=100",
        f"--filename={out / LOG}",
    ]


def shell(command: Command) -> str:
    """Return a command as a person would type it."""
    line = shlex.join(command.argv)
    return f"{line} > {shlex.quote(str(command.stdout))}" if command.stdout else line


def lines(plan: Plan, out: Path, *, gpu_metrics: bool = False) -> list[str]:
    """Return all commands as lines for a shell; the log is written while the plan runs."""
    recording = [
        shell(command)
        for tool in captures(plan, out, gpu_metrics=gpu_metrics).values()
        for command in tool
    ]
    logged = [f"{shlex.join(log(out))} &", shlex.join(_program(plan)[:-1]), "kill $!"]
    return [f"mkdir -p {shlex.quote(str(out))}", *recording, *logged]


def run(command: Command) -> str | None:
    """Run a command; return None, or, when it fails, the last line it said, after removing what it left."""
    done = subprocess.run(
        command.argv, capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode == 0 and command.stdout:
        command.stdout.write_text(done.stdout, encoding="utf-8")
    if done.returncode == 0 and command.makes.exists():
        return None
    if command.makes.is_file():
        command.makes.unlink()
    lines = [line.strip() for line in f"{done.stdout}\n{done.stderr}".splitlines() if line.strip()]
    return lines[-1] if lines else f"ended with {done.returncode} and made no {command.makes.name}"


@contextmanager
def logging(out: Path) -> Iterator[None]:
    """Let nvidia-smi write its log into `out` meanwhile."""
    with subprocess.Popen(
        log(out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                process.terminate()


def _program(plan: Plan) -> list[str]:
    return [sys.executable, "-m", "perfkit.workloads", *arguments(plan), MARKED]


def _different(part: Plan | Size | Loader, usual: Plan | Size | Loader) -> list[str]:
    """Return the names of the fields in which two of a kind differ."""
    return [
        option.name
        for option in fields(part)
        if getattr(part, option.name) != getattr(usual, option.name)
    ]


def _option(name: str, value: object) -> Sequence[str]:
    option = {"batches": "--batch"}.get(name, f"--{name.replace('_', '-')}")
    if value is True:
        return [option]
    return [option, *map(str, value if isinstance(value, tuple) else (value,))]


@contextmanager
def torch_profile(
    out: str | Path,
    *,
    wait: int = 1,
    warmup: int = 1,
    active: int = 3,
    record_shapes: bool = True,
    profile_memory: bool = True,
    with_stack: bool = True,
) -> Iterator[profile]:
    """Record steps of a loop with PyTorch's profiler (https://docs.pytorch.org/docs/stable/profiler.html).

    Call ``step()`` of what this yields after every step. The first `wait` steps pass unobserved, the next `warmup` are
    thrown away because the profiler's start distorts them, and the next `active` are recorded, once, and the GPU where
    PyTorch can use one. Then, or when the block ends, ``rank-R.pt.trace.json.gz`` appears in `out`, whole, in place of
    an earlier one; the rank is that of the process group, else of the variable RANK, else 0. A UserWarning says if
    active steps are missing. `record_shapes`, `profile_memory`, `with_stack`: the operators' shapes, the allocations
    and the Python stacks; each costs CPU time in the operators and makes the file larger.

    Raises ValueError if no step is active, and PerfkitError if PyTorch is not installed, the folder holds traces of
    ranks that this job does not have, or the block ended before the first active step did.
    """
    for name, steps, least in (("wait", wait, 0), ("warmup", warmup, 0), ("active", active, 1)):
        if steps < least:
            raise ValueError(f"{name}: {steps} steps; at least {least} is needed")
    torch = pytorch()
    rank, ranks = _place(torch)
    target = _target(Path(out), rank, ranks)

    def save(profiler: profile) -> None:
        if profiler.step_num > wait + warmup:
            part = target.with_name(
                f".{os.getpid()}-{target.name}"
            )  # which no reader looks at, until it is whole
            try:
                profiler.export_chrome_trace(str(part))
                os.replace(part, target)
            finally:
                part.unlink(missing_ok=True)

    profiler = torch_launcher.profiler(
        torch,
        schedule=torch.profiler.schedule(wait=wait, warmup=warmup, active=active, repeat=1),
        on_trace_ready=save,
        record_shapes=record_shapes,
        profile_memory=profile_memory,
        with_stack=with_stack,
    )
    if ranks > 1 and not _grouped(torch):
        profiler.preset_metadata_json(
            "distributedInfo", json.dumps({"rank": rank, "world_size": ranks})
        )
    with profiler:
        yield profiler
    steps, before = profiler.step_num, wait + warmup
    if steps <= before:
        raise PerfkitError(
            f"{target.parent}: nothing was recorded: step() was called {steps} times, and the first recorded step is "
            f"number {before + 1}. Call step() after every step, run more of them, or lower wait and warmup."
        )
    if steps < before + active:
        warnings.warn(
            f"{target}: {steps - before} of {active} active steps were recorded", stacklevel=3
        )


def pytorch() -> Any:
    """Return PyTorch; PerfkitError if it cannot be imported."""
    try:
        import torch
        import torch.profiler
    except ImportError as e:
        raise PerfkitError(
            f"torch: cannot be imported ({e}). Install PyTorch, for example with `pip install 'perfkit[torch]'`."
        ) from e
    return torch


def _place(torch: Any) -> tuple[int, int]:
    """Return the rank of this process and the number of ranks."""
    if _grouped(torch):
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    values = [os.environ.get(name) for name in ("RANK", "WORLD_SIZE")]
    if values == [None, None]:
        return 0, 1
    if all(text and text.isdecimal() for text in values):
        rank, ranks = (int(text or 0) for text in values)
        if rank < ranks:
            return rank, ranks
    raise PerfkitError(
        f"RANK: {values[0]!r} is no rank of WORLD_SIZE {values[1]!r}. Set both as torchrun does, or unset both."
    )


def _grouped(torch: Any) -> bool:
    """Return whether there is a process group, which the profiler writes into the trace itself."""
    return bool(torch.distributed.is_available() and torch.distributed.is_initialized())


def _target(folder: Path, rank: int, ranks: int) -> Path:
    """Return where a rank's trace goes, in a folder that holds no trace of a rank beyond this job's."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise PerfkitError(
            f"{folder}: the folder cannot be made ({e.strerror}). Choose another one."
        ) from e
    matches = [OF_A_RANK.fullmatch(file.name) for file in folder.iterdir()]
    foreign = sorted(int(match[1]) for match in matches if match and int(match[1]) >= ranks)
    if foreign:
        raise PerfkitError(
            f"{folder}: holds the trace of rank {foreign[0]}, and this job has {ranks} rank(s). "
            "Choose another folder, or remove that run."
        )
    return folder / f"rank-{rank}{TRACE}"
