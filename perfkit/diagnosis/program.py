"""What is the program, as far as the recording shows it: platform, loader of data, parallelism?

A program whose communication is mostly AllReduce averages gradients (DDP) where it has a backward
pass, and adds up the parts of a layer (tensor parallel) where it has none. AllGather and
ReduceScatter move sharded parameters (FSDP, ZeRO). SendRecv moves activations between the stages of
a pipeline, or tokens to experts; only a trace that names the collective tells the second, an
all-to-all, from the first.
"""

import re

import pandas as pd

from perfkit.analysis.causes import where
from perfkit.analysis.intervals import cut
from perfkit.diagnosis.stored import kept
from perfkit.names.parsing import library_of
from perfkit.selection import Selection

HALF = 0.5  # of the communication time: what a program mostly does (convention)
TOOLS_OF_AMD = ("rocm-smi", "amd-smi")
AMD = r"\bAMD\b|Instinct|\bgfx\d|Radeon"
PYTORCH = re.compile(r"aten::|torch|DataLoader|ProfilerStep|autograd", re.IGNORECASE)
LOADER = re.compile(r"DataLoader")
BACKWARD = re.compile(
    r"backward|_bwd|(?<![a-z])bwd|autograd|wgrad|dgrad|Optimizer\.step|adam|multi_tensor_apply",
    re.I,
)
# The operation of a collective, by the kernel's name or that in a trace.
OPERATIONS = {
    "all_to_all": re.compile(r"all_?to_?all", re.I),
    "gather": re.compile(r"all_?gather|reduce_?scatter", re.I),
    "send": re.compile(r"send_?recv|(?:nccl:)?(?:send|recv)\b", re.I),
    "reduce": re.compile(r"all_?reduce", re.I),
}


def is_on(view: Selection, *platforms: str) -> bool:
    """Tell whether the program ran on one of these: linux, windows, wsl. False where that was not recorded."""
    return bool(view.run.capture["platform"].isin(platforms).any())


@kept
def is_amd(view: Selection) -> bool:
    """Tell whether the run's GPUs are AMD's: by the tool, their names or the calls of HIP."""
    if view.run.capture["tool"].isin(TOOLS_OF_AMD).any():
        return True
    names = view.devices["name"].astype("string")
    calls = view.run.api_calls["name"].cat.categories
    libraries = view.run.calltree["module"].cat.categories
    return (
        bool(names.str.contains(AMD).any())
        or any(str(name).startswith("hip") for name in calls)
        or any("libamdhip" in str(name) for name in libraries)
    )


@kept
def is_pytorch(view: Selection) -> bool:
    """Tell whether operators, names of ranges or kernels, or a log of a training show PyTorch."""
    if len(view.framework.ops) or "training" in view.run.kinds:
        return True
    if any(PYTORCH.search(str(name)) for name in view.ranges["name"].cat.categories):
        return True
    kernels = measured(view)["full_name"]
    return bool(where(kernels, lambda name: library_of(name) == "PyTorch").any())


def measured(view: Selection) -> pd.DataFrame:
    """Return the launches that were measured, else the kernels of the timeline."""
    return view.launches if len(view.launches) else cut(view.kernels, view.window)


@kept
def loads_by_workers(view: Selection) -> bool:
    """Tell whether a range, an operator or a function of a DataLoader was recorded."""
    named = (view.ranges, view.framework.ranges, view.framework.ops, view.python_calls)
    return any(bool(where(table["name"], LOADER.search).any()) for table in named)


@kept
def goes_backward(view: Selection) -> bool:
    """Tell whether a name of an operator, range or kernel shows a backward pass or an optimizer."""
    kernels = where(view.all_kernels["full_name"], BACKWARD.search)
    named = (view.ranges, view.framework.ranges, view.framework.ops)
    return bool(kernels.any()) or any(
        bool(where(table["name"], BACKWARD.search).any()) for table in named
    )


@kept
def communicates_by(view: Selection) -> str:
    """Return which of OPERATIONS takes at least half of the communication time.

    "" where none does.
    """
    kernels = cut(view.kernels, view.window)
    kernels = kernels[kernels["family"].eq("communication")]
    total = float(kernels["dur_ns"].sum())
    if not total:
        return ""
    for operation, pattern in OPERATIONS.items():
        is_named = pd.Series(where(kernels["full_name"], pattern.search), kernels.index)
        if float(kernels["dur_ns"][is_named].sum()) >= HALF * total:
            return _sending(view) if operation == "send" else operation
    return _named_in_trace(view)


def exchanges(view: Selection) -> bool:
    """Tell whether the next kernels need what most collectives bring: all but gradients and parameters in training."""
    return communicates_by(view) in ("all_to_all", "send") or not goes_backward(view)


def _sending(view: Selection) -> str:
    """Return for what NCCL sends and receives: an all-to-all, or by itself, as between the stages of a pipeline.

    A trace that names no collective still has the operators and ranges that call it. "" where they
    do both.
    """
    named = _named_in_trace(view)
    if named:
        return named
    of_ops = view.framework
    names = [*of_ops.ops["name"].cat.categories, *of_ops.ranges["name"].cat.categories]
    exchanges = any(OPERATIONS["all_to_all"].search(str(name)) for name in names)
    sends = any(OPERATIONS["send"].search(str(name)) for name in names)
    if exchanges:
        return "" if sends else "all_to_all"
    return "send"


def _named_in_trace(view: Selection) -> str:
    """Return the operation of most of the collectives that a trace names.

    NCCL sends and receives for an all-to-all.
    """
    named = view.framework.collectives
    if named.empty:
        return ""
    most = str(named.groupby("operation", observed=True)["dur_ns"].sum().idxmax())
    return next((name for name, pattern in OPERATIONS.items() if pattern.search(most)), "")
