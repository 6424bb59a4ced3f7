"""Which commands measure this run further? Texts of advice hold places for them.

{nsys} records a timeline, {ncu} counters of the longest kernels. {torch} records the lines of a
program: by PyTorch's profiler if the run is of PyTorch, or shows no kernel that says so, else by
call stacks. {callers} adds these to the former. {processes} lists the processes of each GPU. A run
on AMD's GPUs gets commands for those.
"""

import re

import numpy as np

from perfkit import profilers
from perfkit.analysis import steps
from perfkit.analysis.causes import where
from perfkit.analysis.intervals import cut
from perfkit.diagnosis.finding import kept
from perfkit.diagnosis.program import is_amd, is_on, is_pytorch
from perfkit.diagnosis.timeline import detected
from perfkit.names.parsing import base
from perfkit.selection import Selection

LONGEST = 5  # kernels that a command for ncu names
PLAIN = re.compile(r"[A-Za-z_]\w*")  # names that mean nothing to a shell or in a regular expression


def commands(view: Selection, template: str) -> str:
    """Return a text with the commands for this run in the place of {nsys}, {ncu}, ..."""
    return PLACE.sub(lambda place: COMMANDS[place[0]](view), template)


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
        return "hpcrun -e gpu=rocm,pc PROGRAM"
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


def _processes(view: Selection) -> str:
    return "rocm-smi --showpids" if is_amd(view) else "nvidia-smi pmon -c 1"


COMMANDS = {
    "{nsys}": _nsys,
    "{ncu}": _ncu,
    "{torch}": _torch,
    "{callers}": _callers,
    "{processes}": _processes,
}
PLACE = re.compile("|".join(map(re.escape, COMMANDS)))
