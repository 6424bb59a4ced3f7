"""`perfkit record TOOL -- PROGRAM`: record a program with a profiler, and make its report."""

from __future__ import annotations

import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import click

from perfkit import profilers, workloads
from perfkit.errors import PerfkitError
from perfkit.recorders import running
from perfkit.recorders.tools import TOOLS, Plan, Wish, script
from perfkit.report import output
from perfkit.terminal import say, say_note
from perfkit.workloads import Command, torch_launcher

REPORT = "report"  # the folder of the report, in that of the recording
TORCH_S = 20  # s that the PyTorch profiler records by default: it holds them in memory
ALL = ("nsys", "torch", "ncu")  # smi runs beside the first
FAILED = 2  # the exit status where the program was right and the recording was not
HELP = {
    "nsys": "Record a timeline with Nsight Systems.",
    "torch": "Record a Python script with PyTorch's profiler; without a program, print the lines "
    "that record a part of one.",
    "ncu": "Measure the kernels of a program with Nsight Compute.",
    "smi": "Log the GPUs with nvidia-smi or rocm-smi while a program runs.",
    "hpctoolkit": "Record the call paths of a program with HPCToolkit.",
    "all": "Run a program under nsys, torch and ncu, one after the other, and make one report.",
}
EXAMPLE = ("python", "train.py")
SECONDS: dict[str, Any] = {"type": click.IntRange(0), "metavar": "SECONDS", "default": 0}
PROGRAM = click.argument("program", nargs=-1, type=click.UNPROCESSED)
OUT = click.option(
    "--out",
    "-o",
    type=click.Path(path_type=Path),
    default=Path("recording"),
    show_default=True,
    help="Folder to make; the ranks of one job share it.",
)
NO_REPORT = click.option("--no-report", is_flag=True, help="Only record.")
DELAY = click.option("--delay", help="Wait before recording; 0 if not given.", **SECONDS)
DURATION = click.option(
    "--duration",
    help="Record for so long, then end the program. If not given, the program runs to its end: "
    f"nsys records all of it, torch the first {TORCH_S} s.",
    **SECONDS,
)
STACKS = click.option("--stacks", is_flag=True, help="Sample the call stacks of the CPU too.")
KERNELS = click.option(
    "--kernels",
    default="",
    metavar="NAME,...",
    help="Functions of the kernels to measure; any if not given.",
)
LAUNCHES = click.option(
    "--launches",
    type=click.IntRange(1),
    default=profilers.NCU_LAUNCHES,
    show_default=True,
    help="Measure so many launches.",
)
REPEATS = click.option(
    "--repeats",
    type=click.IntRange(1),
    default=1,
    metavar="N",
    help="Run the program N times, each into a folder of its own; three measure the noise for "
    "`perfkit check`.",
)
OPTIONS: dict[str, tuple[Callable[..., Any], ...]] = {
    "nsys": (DELAY, DURATION, STACKS),
    "torch": (DELAY, DURATION),
    "ncu": (KERNELS, LAUNCHES),
    "smi": (),
    "hpctoolkit": (),
    "all": (DELAY, DURATION, STACKS, LAUNCHES),
}


@dataclass(frozen=True)
class Choice:
    """What the options of `perfkit record` say."""

    program: tuple[str, ...]
    out: Path
    no_report: bool
    delay: int = 0
    duration: int = 0
    stacks: bool = False
    kernels: str = ""
    launches: int = profilers.NCU_LAUNCHES
    repeats: int = 1


def _command(tool: str) -> click.Command:
    """Return the command that records with a tool."""

    def record(**given: Any) -> None:
        choice = Choice(**given)
        if tool == "torch" and not choice.program:
            click.echo(workloads.SNIPPET, nl=False)
            return
        sys.exit(_repeated(tool, choice) if choice.repeats > 1 else _recorded(tool, choice))

    for option in reversed((PROGRAM, OUT, *OPTIONS[tool], REPEATS, NO_REPORT)):
        record = option(record)
    settings = {"allow_interspersed_args": False}  # options after the program are the program's
    return click.command(tool, help=HELP[tool], context_settings=settings)(record)


def _repeated(tool: str, choice: Choice) -> int:
    """Record a program several times, until a run fails; return the exit status of the last run."""
    if not choice.program or not _installed(tool):
        return _recorded(tool, choice)
    runs = [choice.out / f"run-{number}" for number in range(1, choice.repeats + 1)]
    for run in runs:
        status = _recorded(tool, replace(choice, out=run))
        if status:
            return status
    folders = workloads.shell(Command(tuple(map(str, runs)), choice.out))
    say_note(f"compare them with earlier runs: perfkit check {folders} --baseline EARLIER")
    return 0


def _recorded(tool: str, choice: Choice) -> int:
    """Record a program and return its exit status, or FAILED if only the recording failed."""
    wish = _wish(tool, choice)
    if not choice.program or not _installed(tool):
        _print(tool, wish)
        return running.NOT_FOUND if choice.program else 0
    _prepare(choice.out, wish)
    _say_limits(tool, choice)
    status = _every(wish) if tool == "all" else _one(tool, wish)
    if not choice.no_report and torch_launcher.rank()[1] == 1:
        status = (
            _report(choice.out) or status if status in (0, FAILED) else _tried(choice.out, status)
        )
    elif not choice.no_report:
        say_note(f"when all ranks have ended, make the report: perfkit report {choice.out}")
    return status


def _wish(tool: str, choice: Choice) -> Wish:
    duration = choice.duration or (TORCH_S if tool == "torch" else 0)
    return Wish(
        choice.program or EXAMPLE,
        choice.out.absolute() / torch_launcher.stem(),
        delay_s=choice.delay,
        duration_s=duration,
        stops=choice.duration > 0,
        has_stacks=choice.stacks,
        functions=tuple(name.strip() for name in choice.kernels.split(",") if name.strip()),
        launches=choice.launches,
    )


def _installed(tool: str) -> bool:
    if tool == "all":
        return any(TOOLS[name].is_installed for name in ALL)
    return TOOLS[tool].is_installed


def _print(tool: str, wish: Wish) -> None:
    """Print the commands that would run, and where to get the tools."""
    for name in ALL if tool == "all" else (tool,):
        wanted = TOOLS[name]
        if not wanted.is_installed:
            say_note(f"{' or '.join(wanted.programs)}: not on PATH. Get it from {wanted.source}.")
        for command in wanted.plan(wish).commands:
            say(workloads.shell(command))


def _prepare(out: Path, wish: Wish) -> None:
    """Make the folder; refuse one that holds anything but files of other ranks of this job."""
    number, count = torch_launcher.rank()
    if count == 1:
        output.check(out, None, note=say_note)
    out.mkdir(parents=True, exist_ok=True)
    mine = sorted(file.name for file in out.glob(f"{wish.stem.name}.*"))
    if mine:
        raise PerfkitError(
            f"{out}: holds {mine[0]} of rank {number} already. Choose another --out, or remove it."
        )


def _say_limits(tool: str, choice: Choice) -> None:
    """Say which part of the program is recorded, where nobody chose it."""
    if tool == "torch" and not choice.duration:
        say_note(
            f"records the first {TORCH_S} s with start-up; --delay and --duration choose others"
        )
    elif tool in ("nsys", "all") and not choice.duration:
        say_note("records the whole program; --delay 60 --duration 20 leaves out start-up")
    elif tool == "ncu" and not choice.kernels:
        say_note(f"measures the first {choice.launches} launches; --kernels names others")


def _one(tool: str, wish: Wish, beside: Command | None = None) -> int:
    """Run the program under a tool, then the exports; return the exit status of the program."""
    plan = TOOLS[tool].plan(wish)
    say_note(f"runs: {workloads.shell(plan.main)}")
    for command in plan.before:
        _ran(command)
    with ExitStack() as stack:
        for command in filter(None, (plan.beside, beside)):
            stack.enter_context(running.beside(command.argv))
        status = running.run(plan.main.argv)
    if wish.stops and status == running.SIGNALLED + signal.SIGTERM:
        status = 0  # the recording was over
    is_written = _exported(plan)
    return status or (0 if is_written else FAILED)


def _exported(plan: Plan) -> bool:
    """Run the exports of a recording and return whether all files are there."""
    if not _is_written(plan.main.makes):
        say_note(f"{plan.main.makes.name}: the profiler has not written it")
        return False
    ran = [_ran(command) for command in plan.exports]
    return all(ran)


def _is_written(file: Path) -> bool:
    """Tell whether this file is there, or the files of ranks that the program has started."""
    suffix = file.name.removeprefix(torch_launcher.stem())
    return file.exists() or any(file.parent.glob(f"rank-*{suffix}"))


def _ran(command: Command) -> bool:
    """Run a command that is no program of the user; say what went wrong, if anything did."""
    failed = workloads.run(command)
    if failed:
        say_note(f"{command.argv[0]}: {failed}")
    return failed is None


def _every(wish: Wish) -> int:
    """Run the program under each tool, with a log of the GPUs beside the first; return a status."""
    log = TOOLS["smi"].plan(wish) if TOOLS["smi"].is_installed else None
    for command in log.before if log else ():
        _ran(command)
    status = 0
    for tool in ALL:
        if not TOOLS[tool].is_installed:
            say_note(f"left out: {TOOLS[tool].programs[0]} is not on PATH ({TOOLS[tool].source})")
            continue
        if tool == "torch" and script(wish.program) is None:
            say_note("left out: PyTorch's profiler, for the program is no Python script")
            continue
        if tool == "ncu":
            wish = _on_longest(wish)
        if tool == "torch" and not wish.duration_s:
            wish = replace(wish, duration_s=TORCH_S)
        status = _one(tool, wish, log.beside if log and tool == ALL[0] else None) or status
        if status > running.SIGNALLED:  # somebody ended it
            break
    return status


def _on_longest(wish: Wish) -> Wish:
    """Return a wish for the longest kernels that the first recordings show, past the warm-up."""
    from perfkit import load, select
    from perfkit.diagnosis import commands

    try:
        view = select(load(wish.stem.parent))
    except PerfkitError as e:
        say_note(f"perfkit does not know the longest kernels: {e}")
        return wish
    functions = commands.longest(view)
    return replace(
        wish, functions=tuple(functions), skipped=commands.before_steady(view, functions)
    )


def _report(out: Path) -> int:
    """Make the report of a recording, and return 0."""
    context = click.get_current_context()
    root = context.find_root()
    report = root.command.get_command(root, "report")  # type: ignore[attr-defined]
    context.invoke(report, path=out, out=out / REPORT)
    return 0


def _tried(out: Path, status: int) -> int:
    """Make the report of a program that failed, if it left anything; return its status."""
    try:
        _report(out)
    except PerfkitError as e:
        say_note(str(e))
    return status


COMMANDS = {tool: _command(tool) for tool in HELP}
