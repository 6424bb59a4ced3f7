"""Which commands record a workload with NVIDIA's tools?

Conventions
-----------
Each capture is of steady steps: the program, started with ``--mark-steps``, warms up first and then calls
cudaProfilerStart, which the tools wait for. Nsight Compute replays every kernel many times, so it gets one step.
Of several batch sizes the last is captured. Exports lie beside the reports, under the names that perfkit pairs.

Functions
---------
arguments    command-line arguments of a plan
captures     the commands, by tool: nsys and ncu
log          the command of nvidia-smi's log
shell        a command as a person would type it
lines        all commands so
run          run one; what it says when it fails
logging      let nvidia-smi write its log meanwhile

References
----------
Nsight Systems User Guide, CLI options; Nsight Compute CLI, command line options.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import NamedTuple

from perfkit.workloads.plan import SIZES, Loader, Plan, Size

LOG = "nvidia-smi.csv"
FIELDS = (
    "timestamp,index,name,utilization.gpu,utilization.memory,memory.used,memory.total,power.draw,"
    "enforced.power.limit,temperature.gpu,clocks.current.sm,clocks_event_reasons.active"
)
# The full set has instructions per cycle alone; a total is counted, not worked out from a rounded rate.
TOTALS = (
    *(f"smsp__sass_thread_inst_executed_op_{kind}_pred_on.sum" for kind in ("fadd", "fmul", "ffma")),
    "sm__cycles_elapsed.avg",
    "sm__cycles_elapsed.avg.per_second",
)
MARKED = "--mark-steps"


class Command(NamedTuple):
    """A command, the files it makes, and where its output goes."""

    argv: tuple[str, ...]
    makes: Path
    stdout: Path | None = None


def arguments(plan: Plan) -> list[str]:
    """Return the command-line arguments of ``python -m perfkit.workloads`` that give this plan.

    Examples
    --------
    >>> arguments(Plan("bert", device="cuda", batches=(8,), precision="bf16", loader=Loader(resident=True)))
    ['bert', '--device', 'cuda', '--batch', '8', '--precision', 'bf16', '--resident']
    """
    scale = min(SIZES, key=lambda name: len(_different(plan.size, SIZES[name])))
    said = [plan.model, *(_option("scale", scale) if SIZES[scale] != Size() else [])]
    for part, usual in ((plan, Plan(plan.model)), (plan.size, SIZES[scale]), (plan.loader, Loader())):
        for name in _different(part, usual):
            if name not in ("model", "size", "loader"):
                said += _option(name, getattr(part, name))
    return said


def captures(plan: Plan, out: Path, *, gpu_metrics: bool = False) -> dict[str, list[Command]]:
    """Return the commands that record a plan, in their order, by tool: nsys and ncu.

    Parameters
    ----------
    plan
        The workload; its last batch size is taken.
    out
        Folder for the captures.
    gpu_metrics
        Whether nsys samples the GPU's counters (SM activity, memory bandwidth), which needs a permission.
    """
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
    exporting = ["nsys", "export", "--type=sqlite", "--force-overwrite=true", f"--output={export}", str(report)]
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
    return ["nvidia-smi", f"--query-gpu={FIELDS}", "--format=csv", "--loop-ms=100", f"--filename={out / LOG}"]


def shell(command: Command) -> str:
    """Return a command as a person would type it.

    Examples
    --------
    >>> shell(Command(("ncu", "--csv"), Path("a.csv"), stdout=Path("my run/a.csv")))
    "ncu --csv > 'my run/a.csv'"
    """
    line = shlex.join(command.argv)
    return f"{line} > {shlex.quote(str(command.stdout))}" if command.stdout else line


def lines(plan: Plan, out: Path, *, gpu_metrics: bool = False) -> list[str]:
    """Return all commands as lines for a shell; the log is written while the plan runs."""
    recording = [shell(command) for tool in captures(plan, out, gpu_metrics=gpu_metrics).values() for command in tool]
    logged = [f"{shlex.join(log(out))} &", shlex.join(_program(plan)[:-1]), "kill $!"]
    return [f"mkdir -p {shlex.quote(str(out))}", *recording, *logged]


def run(command: Command) -> str | None:
    """Run a command; return None, or, when it fails, the last line it said, after removing what it left."""
    done = subprocess.run(command.argv, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode == 0 and command.stdout:
        command.stdout.write_text(done.stdout, encoding="utf-8")
    if done.returncode == 0 and command.makes.exists():
        return None
    command.makes.unlink(missing_ok=True)
    said = [line.strip() for line in f"{done.stdout}\n{done.stderr}".splitlines() if line.strip()]
    return said[-1] if said else f"ended with {done.returncode} and made no {command.makes.name}"


@contextmanager
def logging(out: Path) -> Iterator[None]:
    """Let nvidia-smi write its log into `out` meanwhile."""
    with subprocess.Popen(log(out), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            yield
        finally:
            with suppress(ProcessLookupError):
                process.terminate()


def _program(plan: Plan) -> list[str]:
    return [sys.executable, "-m", "perfkit.workloads", *arguments(plan), MARKED]


def _different(part: Plan | Size | Loader, usual: Plan | Size | Loader) -> list[str]:
    """Return the names of the fields in which two of a kind differ."""
    return [each.name for each in fields(part) if getattr(part, each.name) != getattr(usual, each.name)]


def _option(name: str, value: object) -> Sequence[str]:
    option = {"batches": "--batch"}.get(name, f"--{name.replace('_', '-')}")
    if value is True:
        return [option]
    values = value if isinstance(value, tuple) else (value,)
    return [option, *map(str, values)]
