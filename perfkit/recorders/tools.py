"""The commands that record a program, tool by tool, with the options that the installed tool knows.

Each tool is asked what it knows (`--help`): names of options differ between versions. Where a tool
is not installed, its commands have the options of a current version. Options: Nsight Systems User
Guide, CLI options; Nsight Compute CLI; HPCToolkit User's Manual, hpcrun; manual of nvidia-smi,
device monitoring.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from perfkit import profilers
from perfkit.errors import PerfkitError
from perfkit.workloads import Command, torch_launcher

PATIENCE_S = 30  # for a tool to say what it knows
SMI_LETTER = re.compile(r"^\s*([a-z]) - ", re.MULTILINE)
# A line of `--gpu-metrics-devices=help` about a GPU whose counters this user may sample.
SAMPLED_GPU = re.compile(r"^\s*(all|\d+): (?!.*not supported)", re.MULTILINE)


@dataclass(frozen=True)
class Wish:
    """What to record: a program, into files that begin with `stem`.

    A delay of 0 s is none; a duration of 0 s lasts until the program ends. `stops`: whether the
    program ends with the recording. `functions`, `skipped` and `launches` choose what Nsight
    Compute measures.
    """

    program: tuple[str, ...]
    stem: Path
    delay_s: int = 0
    duration_s: int = 0
    stops: bool = False
    has_stacks: bool = False
    functions: tuple[str, ...] = ()
    skipped: int = 0
    launches: int = profilers.NCU_LAUNCHES

    def file(self, suffix: str) -> Path:
        """Return the file with this suffix."""
        return self.stem.with_name(f"{self.stem.name}{suffix}")


@dataclass(frozen=True)
class Plan:
    """The commands of a recording: `main` and `beside` at the same time, then `exports`."""

    main: Command
    exports: tuple[Command, ...] = ()
    before: tuple[Command, ...] = ()
    beside: Command | None = None

    @property
    def commands(self) -> list[Command]:
        """Return all commands, in the order in which they start."""
        beside = [self.beside] if self.beside else []
        return [*self.before, *beside, self.main, *self.exports]


@dataclass(frozen=True)
class Tool:
    """A tool: its programs, any of which will do, where to get it, and its commands."""

    programs: tuple[str, ...]
    source: str
    plan: Callable[[Wish], Plan]

    @property
    def is_installed(self) -> bool:
        """Return whether a program of the tool is on PATH."""
        return any(shutil.which(program) for program in self.programs)


@cache
def answer(*words: str) -> str:
    """Return what a command prints; empty if it is not installed, or does not answer in time."""
    if shutil.which(words[0]) is None:
        return ""
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=PATIENCE_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return f"{done.stdout}\n{done.stderr}"


def known(options: Sequence[str], said: str) -> list[str]:
    """Return the options that the help of a tool names; all of them where it said nothing."""
    return [option for option in options if not said.strip() or option.partition("=")[0] in said]


def nsys(wish: Wish) -> Plan:
    """Return the commands of Nsight Systems: record, then export to SQLite."""
    said = answer("nsys", "profile", "--help")
    names = [name for name in profilers.NSYS_TRACED if not said.strip() or f"'{name}'" in said]
    options = [profilers.traced(names), *_gpu_metrics(said), *known([profilers.GRAPH_NODES], said)]
    if wish.has_stacks:
        options += known(profilers.CALL_STACKS, said)
    if wish.delay_s:
        options.append(f"--delay={wish.delay_s}")
    if wish.duration_s:
        # With --kill=none, Nsight Systems would leave the program alone in the background.
        options += [f"--duration={wish.duration_s}", "--kill=sigterm"]
    report = wish.file(".nsys-rep")
    export = wish.file(".sqlite")
    recording = ("nsys", "profile", *options, "-o", str(wish.stem), *wish.program)
    exporting = ("nsys", "export", "--type=sqlite", f"--output={export}", str(report))
    return Plan(Command(recording, report), (Command(exporting, export),))


def _gpu_metrics(said: str) -> list[str]:
    """Return the option that samples the GPUs' counters, if this machine lets this user do so."""
    option = profilers.GPU_METRICS
    if not said.strip():
        return [option]
    name, _, every = option.partition("=")
    if f"{name}=" not in said:
        name = name.removesuffix("s")  # as earlier versions call it
    gpus = SAMPLED_GPU.findall(answer("nsys", "profile", f"{name}=help"))
    if not gpus:
        return []
    return [f"{name}={every if every in gpus else ','.join(gpus)}"]


def ncu(wish: Wish) -> Plan:
    """Return the commands of Nsight Compute: measure a few launches, then print them as CSV."""
    said = answer("ncu", "--help")
    options = [*profilers.NCU_SET]
    if known(["--target-processes"], said):
        options += ["--target-processes", "all"]
    if wish.functions:
        options += ["--kernel-name", profilers.named_kernels(wish.functions)]
    if wish.skipped:
        options += ["--launch-skip", str(wish.skipped)]
    options += ["--launch-count", str(wish.launches)]
    report = wish.file(".ncu-rep")
    page = wish.file(".raw.csv")
    recording = ("ncu", *options, "-o", str(wish.stem), *wish.program)
    printing = ("ncu", "--import", str(report), *profilers.NCU_PAGE)
    return Plan(Command(recording, report), (Command(printing, page, stdout=page),))


def torch(wish: Wish) -> Plan:
    """Return the command that runs a Python script under PyTorch's profiler."""
    options = (
        str(wish.stem.parent),
        str(wish.delay_s),
        str(wish.duration_s),
        "stop" if wish.stops else "go",
    )
    place = script(wish.program)
    if place is None:
        raise PerfkitError(
            f"{' '.join(wish.program)}: names no Python script. Give `python SCRIPT.py ARGUMENTS`, "
            "`python -m MODULE ARGUMENTS` or `torchrun OPTIONS SCRIPT.py ARGUMENTS`."
        )
    launcher = (str(Path(torch_launcher.__file__).resolve()), *options)
    argv = (*wish.program[:place], *launcher, *wish.program[place:])
    if place == 0:
        argv = (sys.executable, *argv)
    return Plan(Command(argv, wish.file(torch_launcher.SUFFIX)))


def script(program: Sequence[str]) -> int | None:
    """Return which word of a command is its Python script, or the -m of its module; None if none.

    Of `python -m torch.distributed.run train.py` it is the script.
    """
    for place, word in enumerate(program):
        if word.endswith(".py"):
            return place
    for place, word in enumerate(program[1:-1], start=1):
        if word == "-m":
            return place
    return None


def smi(wish: Wish) -> Plan:
    """Return the commands that log the GPUs beside the program, with what their limits are."""
    if shutil.which("rocm-smi") and not shutil.which("nvidia-smi"):
        log = wish.file(".rocm.json")
        loop = 'while :; do rocm-smi -a --json >> "$0"; sleep 1; done'
        beside = Command(("sh", "-c", loop, str(log)), log)
        return Plan(Command(wish.program, log), beside=beside)
    said = answer("nvidia-smi", "dmon", "-h")
    words = list(profilers.DMON)
    letters = set(SMI_LETTER.findall(said))
    if letters:
        asked = words.index("-s") + 1
        words[asked] = "".join(letter for letter in words[asked] if letter in letters)
    limits = wish.file(".gpus.xml")
    inventory = Command(("nvidia-smi", "-q", "-x", "-f", str(limits)), limits)
    log = wish.file(".log")
    beside = Command((*words, "-f", str(log)), log)
    return Plan(Command(wish.program, log), before=(inventory,), beside=beside)


def hpctoolkit(wish: Wish) -> Plan:
    """Return the commands of HPCToolkit: measure, read the binaries, make the database."""
    said = answer("hpcrun", "-L")
    options = [*profilers.HPCRUN_CPU]
    if not said.strip() or "gpu=nvidia" in said:
        options += ["-e", "gpu=nvidia,pc"]
    elif "gpu=cuda" in said:
        options += ["-e", "gpu=cuda,pc"]
    elif "gpu=rocm" in said or "gpu=amd" in said:
        options += ["-e", "gpu=rocm" if "gpu=rocm" in said else "gpu=amd"]
    measured = wish.file(".measurements")
    database = wish.file(".database")
    recording = ("hpcrun", *options, "-t", "-o", str(measured), *wish.program)
    structure = Command(("hpcstruct", str(measured)), measured / "structs")
    merging = Command(("hpcprof", "-o", str(database), str(measured)), database)
    return Plan(Command(recording, measured), (structure, merging))


TOOLS = {
    "nsys": Tool(("nsys",), "https://developer.nvidia.com/nsight-systems", nsys),
    "torch": Tool(("python3", "python"), "https://pytorch.org/get-started/locally", torch),
    "ncu": Tool(("ncu",), "https://developer.nvidia.com/nsight-compute", ncu),
    "smi": Tool(("nvidia-smi", "rocm-smi"), "the driver of the GPU", smi),
    "hpctoolkit": Tool(
        ("hpcrun",), "https://hpctoolkit.org/software-instructions.html", hpctoolkit
    ),
}
