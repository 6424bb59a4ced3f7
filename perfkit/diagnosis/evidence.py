"""What a run shows that speaks for or against a piece of advice, and the commands that measure this run further.

Advice that the recording disproves is left out: nobody is told to pin memory that is pinned. A fact that the recording
does not show is False, so that advice stays where nothing is known. Most is nine tenths, half and a tenth are what they
say (conventions).
"""

import re
from collections.abc import Callable, Collection, Iterable

import numpy as np
import pandas as pd

from perfkit.analysis import steps
from perfkit.analysis.calltree import host_metric
from perfkit.analysis.calltree.totals import PYTHON
from perfkit.analysis.causes import covered_by, started_by, where
from perfkit.analysis.intervals import cut
from perfkit.analysis.kernels import MATRIX_FAMILIES, mixed, wide
from perfkit.analysis.limiters import FEW_THREADS
from perfkit.analysis.memory import SMALL_BYTES
from perfkit.analysis.operators.totals import ENGINE, NODE
from perfkit.analysis.warps import occupancy
from perfkit.diagnosis.blocks import few
from perfkit.diagnosis.extensions import extensions
from perfkit.diagnosis.finding import HORIZONS, kept
from perfkit.diagnosis.framework import AMPERE, VOLTA, capability, formats, has_tensor_cores
from perfkit.diagnosis.kernels import last_waves, limited, points
from perfkit.diagnosis.lengths import of_long_steps
from perfkit.diagnosis.machine import is_between_nodes
from perfkit.diagnosis.paths import mpi
from perfkit.diagnosis.phases import phases
from perfkit.diagnosis.program import communicates_by, goes_backward, is_on, loads_by_workers
from perfkit.diagnosis.replayed import uncapturable
from perfkit.diagnosis.rules.rule import Condition, Fact, Step
from perfkit.diagnosis.speed import CONVERSION, operated, unfused
from perfkit.diagnosis.timeline import detected
from perfkit.diagnosis.transfers import to_cpu
from perfkit.names.families import family
from perfkit.names.parsing import base, library_of
from perfkit.selection import Selection

MOST, HALF, TENTH = 0.9, 0.5, 0.1
# Libraries whose kernels come compiled: nobody sets their launch bounds or block sizes.
COMPILED = ("cuBLAS", "cuBLASLt", "cuDNN", "cuSPARSE", "NCCL", "TensorRT-LLM", "MIOpen", "Tensile (rocBLAS, hipBLASLt)")
PYTORCH = re.compile(r"aten::|torch|DataLoader|ProfilerStep|autograd", re.IGNORECASE)
LONGEST = 5  # kernels that a command for ncu names
PLAIN = re.compile(r"[A-Za-z_]\w*")  # names that mean nothing to a shell or in a regular expression
COMPILED_CODE = re.compile(r"\(dynamo_timed\)|^Torch-Compiled Region|^CompiledFunction|^triton_(?:poi|red|per|tem)_")
NETWORK = re.compile("NET/")
OPTIMIZER = re.compile(r"Optimizer\.step#")
FUSED_OPTIMIZER = re.compile("fused_?(?:adam|sgd|adagrad)", re.IGNORECASE)
LINK = ("H2D", "D2H")
LOADER = re.compile("DataLoader", re.IGNORECASE)
ELEMENTWISE = ("elementwise", "copy", "normalisation", "reduction", "softmax")
# How nvc names kernels of OpenACC and OpenMP, and the libraries that these load.
OPENACC = re.compile(r"_\d+_gpu(?:__red)?(?:\W|$)|libacc(?:host|device|na)")
OPENMP = re.compile(r"^nvkernel_|^__omp_offloading_|libomptarget|libnvomp")
REGISTERS, BY_REGISTERS = "launch__registers_per_thread", "launch__occupancy_limit_registers"
REGISTER_FILE = 65_536  # registers of an SM of every GPU since Kepler


def _share(part: pd.Series, of: pd.Series) -> float:
    """Return the share of a sum that the chosen rows have; 0 of nothing."""
    total = float(of.sum())
    return float(of[part.to_numpy(bool)].sum()) / total if total else 0.0


def _over_link(view: Selection) -> pd.DataFrame:
    copies = cut(view.copies, view.window)
    return copies[copies["direction"].isin(LINK)]


def _reduced(view: Selection) -> bool:
    """Almost all matrix work runs in 16 or 8 bits: by the timeline's kernels, else by the counters of launches."""
    if len(view.kernels):
        return bool(mixed(formats(view)).reduced_frac >= MOST)
    split = points(view).dropna(subset=["flops"])
    sixteen = where(split["precision"], re.compile("fp16|bf16|fp8|int8").search)
    return _share(pd.Series(sixteen), split["flops"]) >= MOST


def _measured(view: Selection) -> pd.DataFrame:
    """Return the launches that were measured, else the kernels of the timeline."""
    return view.launches if len(view.launches) else cut(view.kernels, view.window)


def _of_libraries(kernels: pd.DataFrame, libraries: Iterable[str]) -> pd.Series:
    of_name = where(kernels["full_name"], lambda name: library_of(name) in libraries)
    return pd.Series(of_name, kernels.index)


def _no_matrix(view: Selection) -> bool:
    """Matrix work takes under a tenth of the kernels' time; without kernels, of the measured launches' time."""
    kernels = cut(view.kernels, view.window) if len(view.kernels) else view.launches
    matrix = pd.Series(where(kernels["full_name"], lambda name: family(name) in MATRIX_FAMILIES))
    return len(kernels) > 0 and _share(matrix, kernels["dur_ns"]) < TENTH


def _of_families(view: Selection, families: Collection[str]) -> bool:
    """Kernels of these families take a tenth of the kernels' time or more."""
    kernels = _measured(view)
    found = pd.Series(where(kernels["full_name"], lambda name: family(name) in families))
    return len(kernels) > 0 and _share(found, kernels["dur_ns"]) >= TENTH


def _occupancy_limits(view: Selection, pattern: re.Pattern[str]) -> bool:
    """What limits the occupancy fits this pattern in launches with half of the measured time."""
    limiter = occupancy(view.launches, view.counters)["limiter"].astype("string")
    return _share(limiter.str.contains(pattern).fillna(False), view.launches["dur_ns"]) >= HALF


def _registers_full(view: Selection) -> bool:
    """One block takes nearly all registers of an SM in launches with half of the measured time."""
    counted = wide(view.launches, view.counters, [REGISTERS, BY_REGISTERS])
    at_once = view.launches["block_threads"].to_numpy("float64", na_value=np.nan) * counted[REGISTERS].to_numpy()
    is_full = (counted[BY_REGISTERS].to_numpy() == 1) & (at_once >= MOST * REGISTER_FILE)
    return _share(pd.Series(is_full), view.launches["dur_ns"]) >= HALF


def _compiled_by(view: Selection, pattern: re.Pattern[str]) -> bool:
    """Names of kernels or libraries show that a compiler made the kernels from directives."""
    kernels, modules = _measured(view), view.run.calltree["module"].cat.categories
    in_names = bool(where(kernels["full_name"], pattern.search).any())
    return in_names or any(pattern.search(str(module)) for module in modules)


def _occupied(view: Selection, occupancy: str) -> bool:
    """An occupancy of the launches, weighted by time, is almost all that the SMs can hold."""
    known = view.launches.dropna(subset=[occupancy, "dur_ns"])
    return bool(known["dur_ns"].sum()) and bool(np.average(known[occupancy], weights=known["dur_ns"]) >= MOST)


def _pytorch(view: Selection) -> bool:
    """Operators, names of ranges or kernels, or a log of a training show PyTorch."""
    if len(view.framework.ops) or "training" in view.run.kinds:
        return True
    if any(PYTORCH.search(str(name)) for name in view.ranges["name"].cat.categories):
        return True
    return bool(_of_libraries(_measured(view), ("PyTorch",)).any())


def _optimizer_loop(view: Selection) -> bool:
    """The optimizer, inside of PyTorch's range for it, launches a tenth of all kernels or more."""
    of_ops = view.framework
    ranges = of_ops.ranges[where(of_ops.ranges["name"], OPTIMIZER.match)]
    calls = of_ops.api_calls.take((call := started_by(of_ops.kernels, of_ops.api_calls))[call >= 0])
    return len(calls) > 0 and bool((covered_by(calls.assign(dur_ns=1), ranges) > 0).mean() >= TENTH)


def _inference(view: Selection) -> bool:
    """PyTorch's operators are recorded, and autograd ran none of them in a backward pass."""
    names = view.framework.ops["name"].cat.remove_unused_categories().cat.categories
    return len(names) > 0 and not any(NODE.fullmatch(name.removeprefix(ENGINE)) for name in names)


def _of_mpi(view: Selection, pattern: str) -> bool:
    """Half of the CPU time in MPI calls is spent in calls of these names."""
    calls = mpi(view)
    return len(calls) > 0 and _share(calls["name"].str.contains(pattern, case=False), calls["share_frac"]) >= HALF


def _without_tf32(view: Selection, family: str) -> bool:
    """A tenth of the matrix work runs in float32 in kernels of a family, and none of these in TF32: it is off.

    Where both run, TF32 is allowed, and the library chose float32 for these shapes.
    """
    shares = formats(view).astype({"format": str})
    share = shares[shares["family"].eq(family)].groupby("format")["share_frac"].sum()
    return not is_amd(view) and "tf32" not in share and share.get("fp32", 0.0) >= TENTH


def _takes(view: Selection, pattern: str) -> bool:
    """A tenth of the time of kernels whose operator is known belongs to operators of these names."""
    kernels = operated(view.framework)
    return _share(pd.Series(where(kernels["outermost"], re.compile(pattern).fullmatch)), kernels["dur_ns"]) >= TENTH


FACTS: dict[Fact, Callable[[Selection], bool]] = {
    # Almost all bytes were copied from or to pinned memory.
    Fact.PINNED: lambda view: (
        _share((c := _over_link(view))[["src_memory", "dst_memory"]].isin(["pinned"]).any(axis=1), c["bytes"]) >= MOST
    ),
    Fact.SMALL_COPIES: lambda view: _share((c := _over_link(view))["bytes"] <= SMALL_BYTES, c["dur_ns"]) >= TENTH,
    Fact.TO_CPU: lambda view: to_cpu(view, kind=""),
    Fact.PAGEABLE_TO_CPU: lambda view: to_cpu(view, kind="pageable"),
    Fact.REDUCED: _reduced,
    Fact.NO_MATRIX: _no_matrix,
    Fact.LIBRARY_KERNELS: lambda view: _share(_of_libraries(k := _measured(view), COMPILED), k["dur_ns"]) >= HALF,
    # Half of the measured time belongs to launches whose grid fills the GPU at least once.
    Fact.FULL_GRID: lambda view: (
        _share((p := points(view).drop_duplicates(["rank", "gpu", "launch"]))["waves"] >= 1, p["dur_ns"]) >= HALF
    ),
    Fact.FULL_OCCUPANCY: lambda view: _occupied(view, "achieved_occupancy_frac"),
    # What limits the occupancy of half of the measured time.
    Fact.SHARED_MEMORY_LIMITS: lambda view: _occupancy_limits(view, re.compile("shared memory")),
    Fact.REGISTERS_LIMIT: lambda view: _occupancy_limits(view, re.compile("registers")),
    Fact.REGISTERS_FREE: lambda view: _occupancy_limits(view, re.compile("^(?!.*registers)")),
    Fact.REGISTERS_FULL: _registers_full,
    Fact.FEW_LANES: lambda view: (
        _share((k := _measured(view))["block_threads"].le(FEW_THREADS).fillna(False), k["dur_ns"]) >= TENTH
    ),
    Fact.DRAM_LIMITS: lambda view: (
        len(view.launches) > 0 and _share((limits := limited(view))["limit"].eq("dram"), limits["dur_ns"]) >= HALF
    ),
    Fact.TENSOR_CORES: has_tensor_cores,
    Fact.MATRIX: lambda view: _of_families(view, MATRIX_FAMILIES),
    Fact.ELEMENTWISE: lambda view: _of_families(view, ELEMENTWISE),
    Fact.OPENACC: lambda view: _compiled_by(view, OPENACC),
    Fact.OPENMP: lambda view: _compiled_by(view, OPENMP),
    Fact.CPU_PATHS: lambda view: len(view.run.calltree) > 0 and bool(host_metric(view.run.call_metrics)),
    Fact.AMD: lambda view: is_amd(view),
    Fact.OCCUPIED: lambda view: _occupied(view, "theoretical_occupancy_frac"),
    Fact.FEW_BLOCKS_OF_LIBRARY: lambda view: (
        (f := few(view)) is not None and library_of(f.longest) in (*COMPILED, "PyTorch")
    ),
    Fact.GRAPHS: lambda view: _share((k := cut(view.kernels, view.window))["in_graph"], k["dur_ns"]) >= HALF,
    Fact.PYTHON: lambda view: PYTHON in view.run.calltree["module"].cat.categories or _pytorch(view),
    Fact.PYTORCH: _pytorch,
    Fact.FUSED_ATTENTION: lambda view: bool(cut(view.kernels, view.window)["family"].eq("attention").any()),
    Fact.OPTIMIZER: lambda view: bool(where(view.framework.ranges["name"], OPTIMIZER.match).any()),
    Fact.OPTIMIZER_LOOP: _optimizer_loop,
    Fact.FUSED_OPTIMIZER: lambda view: bool(where(view.framework.kernels["full_name"], FUSED_OPTIMIZER.search).any()),
    Fact.UNFUSED_ATTENTION: lambda view: bool(unfused(view.framework).any()),
    Fact.UNCAPTURABLE: lambda view: bool(uncapturable(view)),
    Fact.CONVERSIONS: lambda view: bool(where(view.framework.kernels["full_name"], CONVERSION.search).any()),
    Fact.INFERENCE: _inference,
    # Autograd checks each gradient: there are half as many checks as nodes of the backward pass, or more.
    Fact.ANOMALY: lambda view: bool(
        (names := view.framework.ops["name"].astype("string")).eq("aten::isnan").sum()
        > HALF * names.str.startswith(ENGINE).sum()
        > 0
    ),
    # What torch.compile does, or did before: its phases, its calls and the kernels of its compiler.
    Fact.COMPILED: lambda view: any(
        where(table[column], COMPILED_CODE.search).any()
        for table, column in ((view.framework.ops, "name"), (view.framework.kernels, "full_name"))
    ),
    Fact.FLOAT64: lambda view: bool(formats(view)["format"].head(1).eq("fp64").any()),
    Fact.FLOAT32_PRODUCTS: lambda view: _without_tf32(view, "gemm"),
    Fact.FLOAT32_CONVOLUTIONS: lambda view: _without_tf32(view, "convolution"),
    Fact.BEFORE_AMPERE: lambda view: capability(view) < AMPERE,
    Fact.BEFORE_VOLTA: lambda view: capability(view) < VOLTA,
    Fact.VOLTA: lambda view: VOLTA <= capability(view) < AMPERE,
    Fact.SORTS: lambda view: _takes(view, "aten::(?:arg|m)?sort"),
    Fact.REPEATS: lambda view: _takes(view, "aten::repeat_interleave"),
    Fact.CONCATENATES: lambda view: _takes(view, "aten::cat"),
    Fact.EMBEDDING_GRADIENT: lambda view: _takes(view, "aten::embedding(?:_dense)?_backward"),
    Fact.ONE_HOT: lambda view: "aten::one_hot" in set(view.framework.ops["name"]),
    Fact.ONE_GPU: lambda view: view.run.kernels.groupby(["rank", "gpu"]).ngroups == 1 and view.run.collectives.empty,
    Fact.CALL_PATHS: lambda view: len(view.run.calltree) > 0,
    # NCCL found the network cards behind a host bridge or another processor.
    Fact.FAR_CARD: lambda view: bool(
        (x := view.run.links)["path"].isin(["PHB", "NODE", "SYS"])[where(x["transport"], NETWORK.match)].any()
    ),
    Fact.BETWEEN_NODES: is_between_nodes,
    Fact.LINKS: lambda view: bool(view.run.links["transport"].notna().any()),
    Fact.MPI_SET_UP: lambda view: _of_mpi(view, "mpi_(?:init|finalize)"),
    Fact.MPI: lambda view: len(mpi(view)) > 0 and mpi(view)["share_frac"].sum() >= HALF,
    Fact.MPI_WAITS: lambda view: _of_mpi(view, "mpi_(?:wait|test)"),
    Fact.COUNTERS: lambda view: len(view.launches) > 0,
    Fact.STALLS: lambda view: len(view.stalls) > 0,
    Fact.LAST_WAVE: lambda view: len(last_waves(view)) > 0,
    Fact.TIMELINE: lambda view: len(view.all_kernels) > 0,
    Fact.OPERATORS: lambda view: len(view.framework.ops) > 0,
    Fact.RANGES: lambda view: len(view.ranges) > 0,
    Fact.STACKS: lambda view: len(view.stacks) > 0,
    Fact.LOOP: lambda view: len(found := phases(view)) > 0 and bool(found["phase"].eq("loop").any()),
    Fact.TWO_LENGTHS: lambda view: of_long_steps(view, "memory"),
    Fact.WINDOWS: lambda view: is_on(view, "windows"),
    Fact.DATALOADER: loads_by_workers,
    Fact.BACKWARD: goes_backward,
    Fact.GATHERS: lambda view: communicates_by(view) == "gather",
    Fact.REDUCES: lambda view: communicates_by(view) == "reduce",
    Fact.SENDS: lambda view: communicates_by(view) == "send",
    Fact.ALL_TO_ALL: lambda view: communicates_by(view) == "all_to_all",
}


@kept
def holds(view: Selection, *, fact: Fact) -> bool:
    """Tell whether a run shows a fact."""
    if fact in FACTS:
        return FACTS[fact](view)
    return any(part.FACTS[fact](view) for part in extensions() if fact in part.FACTS)


def advice(view: Selection, steps_of: Iterable[Step]) -> dict[str, tuple[str, ...]]:
    """Return what to do by horizon, without what the run disproves, and with the commands for this run."""
    sensible = [step for step in steps_of if is_true(view, step.when)]
    by_horizon: dict[str, tuple[str, ...]] = {}
    for horizon in HORIZONS:
        texts = tuple(commands(view, step.text) for step in sensible if step.horizon == horizon)
        if texts:
            by_horizon[horizon] = texts
    return by_horizon


def is_true(view: Selection, condition: Condition) -> bool:
    """Tell whether a run shows what must hold, and nothing of what must not."""
    is_shown = all(holds(view, fact=fact) for fact in condition.holding)
    return is_shown and not any(holds(view, fact=fact) for fact in condition.absent)


def commands(view: Selection, text: str) -> str:
    """Return a text with the commands for this run in the place of {nsys}, {ncu}, {torch} and {callers}.

    A run on AMD's GPUs gets what records those. {torch} becomes what records the lines of a program: PyTorch's profiler
    if the run is of PyTorch, or shows no kernel that says so; else call stacks. {callers} adds these to the former.
    """
    if "{" not in text:
        return text
    amd = is_amd(view)
    nsys = _nsys(view) if not amd else "rocprofv3 --sys-trace -- PROGRAM"
    ncu = _ncu(view) if not amd else "hpcrun -e gpu=rocm,pc PROGRAM"
    options = "--sample=process-tree --cudabacktrace=all PROGRAM"
    stacks = nsys.replace("PROGRAM", options) if not amd else "hpcrun -e CPUTIME -e gpu=rocm PROGRAM"
    torch = "perfkit record torch" if holds(view, fact=Fact.PYTORCH) or view.all_kernels.empty else stacks
    callers = torch if torch == stacks else f"{torch}; or record call stacks and system calls: {stacks}"
    for place, command in {"{nsys}": nsys, "{ncu}": ncu, "{torch}": torch, "{callers}": callers}.items():
        text = text.replace(place, command)
    return text


@kept
def is_amd(view: Selection) -> bool:
    """Tell whether the run's GPUs are AMD's, by their names or the calls of HIP."""
    of_gpu = view.devices["name"].astype("string").str.contains(r"\bAMD\b|Instinct|\bgfx\d|Radeon", regex=True)
    calls = view.run.api_calls["name"].cat.categories
    libraries = view.run.calltree["module"].cat.categories
    hip = any(str(name).startswith("hip") for name in calls) or any("libamdhip" in str(name) for name in libraries)
    return bool(of_gpu.any()) or hip


def _out(view: Selection) -> str:
    """Return the option that names the file to write; each of several ranks gets a file of its own."""
    ranks = {*view.all_kernels["rank"].unique(), *view.launches["rank"].unique()}
    return " -o report.%q{RANK}" if len(ranks) > 1 else " -o report"


def _nsys(view: Selection) -> str:
    graphs = " --cuda-graph-trace=node" if cut(view.kernels, view.window)["in_graph"].any() else ""
    system = "" if is_on(view, "windows") else ",osrt"  # Nsight Systems traces no calls of Windows
    return f"nsys profile --trace=cuda,nvtx{system} --gpu-metrics-devices=all{graphs}{_out(view)} PROGRAM"


@kept
def _ncu(view: Selection) -> str:
    """Return the command that measures the longest kernels of the timeline, past the warm-up where steps are known.

    Kernels of collectives are left out: ncu repeats a kernel of one rank, and it then waits for the others for ever.
    """
    kernels = cut(view.kernels[["family", "full_name", "start_ns", "dur_ns"]], view.window)
    kernels = kernels.loc[kernels["family"] != "communication", ["full_name", "dur_ns"]]
    by_name = kernels.groupby("full_name", observed=True)["dur_ns"].sum().nlargest(4 * LONGEST)
    functions = list(dict.fromkeys(base(str(name)) for name in by_name.index))
    functions = [function for function in functions if PLAIN.fullmatch(function)][:LONGEST]
    if not functions:
        return f"ncu --set full --launch-count 50{_out(view)} PROGRAM"
    quote = '"' if is_on(view, "windows") else "'"
    chosen = f"--kernel-name {quote}regex:^({'|'.join(functions)})${quote}"
    skipped = _before_steady(view, functions)
    skip = f" --launch-skip {skipped}" if skipped else ""
    return f"ncu --set full {chosen}{skip} --launch-count 50{_out(view)} PROGRAM"


def _before_steady(view: Selection, functions: list[str]) -> int:
    """Return how often these kernels ran on the first rank before its first steady step; 0 where no step is known."""
    steady = steps.steady(detected(view))
    if steady.empty:
        return 0
    first = steady.sort_values("start_ns", kind="stable").iloc[0]
    kernels = view.run.kernels
    early = kernels["rank"].eq(first["rank"]) & (kernels["start_ns"] < first["start_ns"])
    return int(np.count_nonzero(where(kernels.loc[early, "full_name"], lambda name: base(name) in functions)))
