"""Which commands measure this run further? Texts of advice hold places for them.

{nsys} records a timeline, {ncu} counters of the longest kernels. {torch} records the lines of a
program: by PyTorch's profiler if the run is of PyTorch, or shows no kernel that says so, else by
call stacks. {callers} adds these to the former. {gpu_log}, {gpu_processes}, {gpu_state},
{gpu_links} and {power_limit} ask the GPUs themselves. A run on AMD's GPUs gets commands for those.
"""

import re

import numpy as np

from perfkit import profilers
from perfkit.analysis import steps
from perfkit.analysis.causes import where
from perfkit.analysis.intervals import cut
from perfkit.diagnosis.program import is_amd, is_on, is_pytorch
from perfkit.diagnosis.stored import kept
from perfkit.diagnosis.timeline import detected
from perfkit.names.parsing import base
from perfkit.selection import Selection

# What asks the GPUs themselves, NVIDIA's and AMD's.
ASKS = {
    "{gpu_log}": (
        "nvidia-smi dmon -s pucvmet -o DT",
        "amd-smi metric --csv --watch 1 --file gpus.csv",
    ),
    "{gpu_processes}": ("nvidia-smi pmon -c 1", "amd-smi process"),
    "{gpu_state}": (
        "nvidia-smi -q -d PERFORMANCE,POWER,CLOCK",
        "amd-smi metric --power --clock --temperature",
    ),
    "{gpu_links}": ("nvidia-smi topo -m", "amd-smi topology"),
    "{power_limit}": ("nvidia-smi -pl", "amd-smi set --power-cap"),
}
HPCRUN_AMD = "hpcrun -e gpu=rocm,pc PROGRAM"
LONGEST = 5  # kernels that a command for ncu names
PLAIN = re.compile(r"[A-Za-z_]\w*")  # names that mean nothing to a shell or in a regular expression


def commands(view: Selection, template: str) -> str:
    """Return a text with the commands for this run in the place of {nsys}, {ncu}, ..."""
    return PLACE.sub(lambda place: _command(view, place[0]), template)


def _command(view: Selection, place: str) -> str:
    """Return the command for this run that stands in a place of a text."""
    if place in ASKS:
        return ASKS[place][is_amd(view)]
    return COMMANDS[place](view)


def _nsys(view: Selection) -> str:
    if is_amd(view):
        return "rocprofv3 --sys-trace -- PROGRAM"
    has_graphs = cut(view.kernels, view.window)["in_graph"].any()
    names = list(profilers.NSYS_TRACED)
    if is_on(view, "windows"):  # Nsight Systems traces no calls of Windows
        names.remove("osrt")
    options = [profilers.traced(names), profilers.GPU_METRICS]
    if has_graphs:
        options.append(profilers.GRAPH_NODES)
    return f"nsys profile {' '.join(options)}{_out(view)} PROGRAM"


def _out(view: Selection) -> str:
    """Return the option that names the file to write.

    Each of several ranks gets a file of its own.
    """
    ranks = {*view.all_kernels["rank"].unique(), *view.launches["rank"].unique()}
    return " -o report.%q{RANK}" if len(ranks) > 1 else " -o report"


@kept
def _ncu(view: Selection) -> str:
    """Return what measures the longest kernels, past the warm-up where steps are known.

    Kernels of collectives are left out: ncu repeats a kernel of one rank, and it then waits for the
    others for ever.
    """
    if is_amd(view):
        by_hpctoolkit = "call_paths" in view.run.kinds
        return HPCRUN_AMD if by_hpctoolkit else "rocprof-compute profile -n run -- PROGRAM"
    functions = longest(view)
    chosen = ""
    if functions:
        quote = '"' if is_on(view, "windows") else "'"
        chosen = f" --kernel-name {quote}{profilers.named_kernels(functions)}{quote}"
        skipped = before_steady(view, functions)
        chosen += f" --launch-skip {skipped}" if skipped else ""
    counted = f"{chosen} --launch-count {profilers.NCU_LAUNCHES}{_out(view)}"
    return f"ncu {' '.join(profilers.NCU_SET)}{counted} PROGRAM"


def longest(view: Selection) -> list[str]:
    """Return the functions of the kernels with most time that can stand in a command."""
    kernels = cut(view.kernels[["family", "full_name", "start_ns", "dur_ns"]], view.window)
    computing = kernels[kernels["family"] != "communication"]
    times = computing.groupby("full_name", observed=True)["dur_ns"].sum().nlargest(4 * LONGEST)
    functions = dict.fromkeys(base(str(name)) for name in times.index)
    return [function for function in functions if PLAIN.fullmatch(function)][:LONGEST]


def before_steady(view: Selection, functions: list[str]) -> int:
    """Return how often these kernels ran on the first rank before its first steady step.

    0 where no step is known.
    """
    steady = steps.steady(detected(view))
    if steady.empty:
        return 0
    first = steady.sort_values("start_ns", kind="stable").iloc[0]
    kernels = view.run.kernels
    early = kernels["rank"].eq(first["rank"]) & (kernels["start_ns"] < first["start_ns"])
    named = where(kernels.loc[early, "full_name"], lambda name: base(name) in functions)
    return int(np.count_nonzero(named))


def _stacks(view: Selection) -> str:
    if is_amd(view):
        return "hpcrun -e CPUTIME -e gpu=rocm PROGRAM"
    stacks = " ".join(profilers.CALL_STACKS)
    return _nsys(view).replace("PROGRAM", f"{stacks} PROGRAM")


def _torch(view: Selection) -> str:
    may_be_pytorch = is_pytorch(view) or view.all_kernels.empty
    return "perfkit record torch" if may_be_pytorch else _stacks(view)


def _callers(view: Selection) -> str:
    torch = _torch(view)
    stacks = _stacks(view)
    if torch == stacks:
        return torch
    return f"{torch}; or record call stacks and system calls: {stacks}"


COMMANDS = {"{nsys}": _nsys, "{ncu}": _ncu, "{torch}": _torch, "{callers}": _callers}
PLACE = re.compile("|".join(map(re.escape, (*COMMANDS, *ASKS))))
