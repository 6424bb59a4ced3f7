"""What does a run show that speaks for or against a step of advice?

Advice that the recording disproves is left out: nobody is told to pin memory that is pinned. A fact
that the recording does not show is False, so that advice stays where nothing is known. Most is nine
tenths, half and a tenth are what they say (conventions).
"""

import re
from collections.abc import Callable, Collection, Iterable

import numpy as np
import pandas as pd

from perfkit.analysis.calltree import host_metric
from perfkit.analysis.calltree.totals import PYTHON
from perfkit.analysis.causes import COPY_CALL, covered_by, started_by, where
from perfkit.analysis.intervals import cut
from perfkit.analysis.kernels import MATRIX_FAMILIES, mixed, wide
from perfkit.analysis.limiters import FEW_THREADS
from perfkit.analysis.memory import SMALL_BYTES
from perfkit.analysis.operators.totals import ENGINE, NODE
from perfkit.analysis.steps import steady
from perfkit.analysis.warps import occupancy
from perfkit.diagnosis import pausing
from perfkit.diagnosis.blocks import few
from perfkit.diagnosis.commands import commands
from perfkit.diagnosis.extensions import extensions
from perfkit.diagnosis.finding import HORIZONS
from perfkit.diagnosis.framework import (
    AMPERE,
    VOLTA,
    capability,
    formats,
    has_tensor_cores,
    synchronisations,
)
from perfkit.diagnosis.interconnect import is_between_nodes
from perfkit.diagnosis.kernels import limited, points
from perfkit.diagnosis.lengths import of_long_steps
from perfkit.diagnosis.measured import last_waves
from perfkit.diagnosis.operator_kernels import CONVERSION, operated, unfused
from perfkit.diagnosis.paths import mpi
from perfkit.diagnosis.phases import paused
from perfkit.diagnosis.program import (
    communicates_by,
    goes_backward,
    is_amd,
    is_pytorch,
    loads_by_workers,
    measured,
)
from perfkit.diagnosis.repeating import phases
from perfkit.diagnosis.replayed import uncapturable
from perfkit.diagnosis.rules.rule import Condition, Fact, Step
from perfkit.diagnosis.stored import kept
from perfkit.diagnosis.timeline import idle_gaps
from perfkit.diagnosis.transfers import to_cpu
from perfkit.names.families import family
from perfkit.names.parsing import library_of
from perfkit.selection import Selection

MOST = 0.9
HALF = 0.5
TENTH = 0.1
# Libraries whose kernels come compiled: nobody sets their launch bounds or block sizes.
COMPILED = (
    *("cuBLAS", "cuBLASLt", "cuDNN", "cuSPARSE", "NCCL", "TensorRT-LLM", "MIOpen"),
    "Tensile (rocBLAS, hipBLASLt)",
)
# What torch.compile does, or did before: its phases, its calls and the kernels of its compiler.
COMPILED_CODE = re.compile(
    r"\(dynamo_timed\)|^Torch-Compiled Region|^CompiledFunction|^triton_(?:poi|red|per|tem)_"
)
SIXTEEN_BITS = re.compile("fp16|bf16|fp8|int8")
NETWORK = re.compile("NET/")
OPTIMIZER = re.compile(r"Optimizer\.step#")
FUSED_OPTIMIZER = re.compile("fused_?(?:adam|sgd|adagrad)", re.IGNORECASE)
LINK = ("H2D", "D2H")
FAR = ("PHB", "NODE", "SYS")  # paths by a host bridge or another processor
ELEMENTWISE = ("elementwise", "copy", "normalisation", "reduction", "softmax")
# How nvc names kernels of OpenACC and OpenMP, and the libraries that these load.
OPENACC = re.compile(r"_\d+_gpu(?:__red)?(?:\W|$)|libacc(?:host|device|na)")
OPENMP = re.compile(r"^nvkernel_|^__omp_offloading_|libomptarget|libnvomp")
# What compilers call the part of a function that the threads of OpenMP run.
OPENMP_REGION = re.compile(r"\._omp_fn\.|\.omp_outlined|__kmpc_fork|GOMP_parallel")
DEVICE_WAIT = re.compile(r"(?:cuda|hip)DeviceSynchronize|cuCtxSynchronize")
ADA = 8.9  # the compute capability from which on tensor cores know FP8
REGISTERS = "launch__registers_per_thread"
BY_REGISTERS = "launch__occupancy_limit_registers"
REGISTER_FILE = 65_536  # registers of an SM of every GPU since Kepler


def _share(part: pd.Series, of: pd.Series) -> float:
    """Return the share of a sum that the chosen rows have; 0 of nothing."""
    total = float(of.sum())
    return float(of[part.to_numpy(bool)].sum()) / total if total else 0.0


def _named(rows: pd.Series, is_chosen: Callable[[str], object]) -> pd.Series:
    """Tell which rows of a column of names are chosen."""
    return pd.Series(where(rows, is_chosen), rows.index)


def _over_link(view: Selection) -> pd.DataFrame:
    copies = cut(view.copies, view.window)
    return copies[copies["direction"].isin(LINK)]


def _pinned(view: Selection) -> bool:
    """Almost all bytes were copied from or to pinned memory."""
    copies = _over_link(view)
    is_pinned = copies[["src_memory", "dst_memory"]].isin(["pinned"]).any(axis=1)
    return _share(is_pinned, copies["bytes"]) >= MOST


def _small_copies(view: Selection) -> bool:
    copies = _over_link(view)
    return _share(copies["bytes"] <= SMALL_BYTES, copies["dur_ns"]) >= TENTH


def _reduced(view: Selection) -> bool:
    """Almost all matrix work runs in 16 or 8 bits: by the kernels, else by counters of launches."""
    if len(view.kernels):
        return bool(mixed(formats(view)).reduced_frac >= MOST)
    split = points(view).dropna(subset=["flops"])
    return _share(_named(split["precision"], SIXTEEN_BITS.search), split["flops"]) >= MOST


def _no_matrix(view: Selection) -> bool:
    """Matrix work takes under a tenth of the time of kernels, without these of launches."""
    kernels = cut(view.kernels, view.window) if len(view.kernels) else view.launches
    return (
        len(kernels) > 0
        and _share(_of_families(kernels, MATRIX_FAMILIES), kernels["dur_ns"]) < TENTH
    )


def _computes(view: Selection, families: Collection[str]) -> bool:
    """Kernels of these families take a tenth of the kernels' time or more."""
    kernels = measured(view)
    return len(kernels) > 0 and _share(_of_families(kernels, families), kernels["dur_ns"]) >= TENTH


def _of_families(kernels: pd.DataFrame, families: Collection[str]) -> pd.Series:
    return _named(kernels["full_name"], lambda name: family(name) in families)


def _of_libraries(view: Selection) -> bool:
    """Half of the measured time belongs to kernels that come compiled."""
    kernels = measured(view)
    is_compiled = _named(kernels["full_name"], lambda name: library_of(name) in COMPILED)
    return _share(is_compiled, kernels["dur_ns"]) >= HALF


def _full_grid(view: Selection) -> bool:
    """Half of the measured time belongs to launches whose grid fills the GPU at least once."""
    launches = points(view).drop_duplicates(["rank", "gpu", "launch"])
    return _share(launches["waves"] >= 1, launches["dur_ns"]) >= HALF


def _few_lanes(view: Selection) -> bool:
    kernels = measured(view)
    is_small = kernels["block_threads"].le(FEW_THREADS).fillna(False)
    return _share(is_small, kernels["dur_ns"]) >= TENTH


def _few_blocks_of_library(view: Selection) -> bool:
    found = few(view)
    return found is not None and library_of(found["full_name"]) in (*COMPILED, "PyTorch")


def _limits(view: Selection, unit: str) -> bool:
    """A unit of the GPU limits launches with half of the measured time."""
    if view.launches.empty:
        return False
    limits = limited(view)
    return _share(limits["limit"].eq(unit), limits["dur_ns"]) >= HALF


def _occupancy_limits(view: Selection, pattern: str) -> bool:
    """What limits the occupancy fits this pattern in launches with half of the measured time."""
    limiter = occupancy(view.launches, view.counters)["limiter"].astype("string")
    return _share(limiter.str.contains(pattern).fillna(False), view.launches["dur_ns"]) >= HALF


def _registers_full(view: Selection) -> bool:
    """One block takes nearly all registers of an SM in launches with half of the measured time."""
    counted = wide(view.launches, view.counters, [REGISTERS, BY_REGISTERS])
    threads = view.launches["block_threads"].to_numpy("float64", na_value=np.nan)
    of_block = threads * counted[REGISTERS].to_numpy()
    is_full = (counted[BY_REGISTERS].to_numpy() == 1) & (of_block >= MOST * REGISTER_FILE)
    return _share(pd.Series(is_full), view.launches["dur_ns"]) >= HALF


def _occupied(view: Selection, occupancy: str) -> bool:
    """An occupancy of the launches, weighted by time, is almost all that the SMs can hold."""
    known = view.launches.dropna(subset=[occupancy, "dur_ns"])
    if not known["dur_ns"].sum():
        return False
    return bool(np.average(known[occupancy], weights=known["dur_ns"]) >= MOST)


def _compiled_by(view: Selection, pattern: re.Pattern[str]) -> bool:
    """Names of kernels or libraries show that a compiler made the kernels from directives."""
    in_names = bool(where(measured(view)["full_name"], pattern.search).any())
    modules = view.run.calltree["module"].cat.categories
    return in_names or any(pattern.search(str(module)) for module in modules)


def _in_graphs(view: Selection) -> bool:
    kernels = cut(view.kernels, view.window)
    return _share(kernels["in_graph"], kernels["dur_ns"]) >= HALF


def _optimizer_loop(view: Selection) -> bool:
    """The optimizer, inside of PyTorch's range for it, launches a tenth of all kernels or more."""
    of_ops = view.framework
    ranges = of_ops.ranges[where(of_ops.ranges["name"], OPTIMIZER.match)]
    call = started_by(of_ops.kernels, of_ops.api_calls)
    calls = of_ops.api_calls.take(call[call >= 0])
    if calls.empty:
        return False
    return bool((covered_by(calls.assign(dur_ns=1), ranges) > 0).mean() >= TENTH)


def _inference(view: Selection) -> bool:
    """PyTorch's operators are recorded, and autograd ran none of them in a backward pass."""
    names = view.framework.ops["name"].cat.remove_unused_categories().cat.categories
    return len(names) > 0 and not any(NODE.fullmatch(name.removeprefix(ENGINE)) for name in names)


def _anomaly(view: Selection) -> bool:
    """Autograd checks each gradient: there are half as many checks as nodes, or more."""
    names = view.framework.ops["name"].astype("string")
    checks = names.eq("aten::isnan").sum()
    nodes = names.str.startswith(ENGINE).sum()
    return bool(nodes and checks > HALF * nodes)


def _compiled(view: Selection) -> bool:
    of_ops = view.framework
    named = (of_ops.ops["name"], of_ops.kernels["full_name"])
    return any(where(names, COMPILED_CODE.search).any() for names in named)


def _without_tf32(view: Selection, family: str) -> bool:
    """A tenth of the matrix work runs in float32 in kernels of a family, and none of these in TF32.

    TF32 is off then. Where both run, it is allowed, and the library chose float32 for these shapes.
    """
    shares = formats(view).astype({"format": str})
    share = shares[shares["family"].eq(family)].groupby("format")["share_frac"].sum()
    return not is_amd(view) and "tf32" not in share and share.get("fp32", 0.0) >= TENTH


def _takes(view: Selection, pattern: str) -> bool:
    """A tenth of the time of kernels whose operator is known belongs to operators of these names."""
    kernels = operated(view.framework)
    is_named = _named(kernels["outermost"], re.compile(pattern).fullmatch)
    return _share(is_named, kernels["dur_ns"]) >= TENTH


def _one_gpu(view: Selection) -> bool:
    """Tell whether the program uses one GPU: by the size that a log states, else by its kernels."""
    is_size = view.run.samples["metric"].eq("world_size_count")
    stated = view.run.samples.loc[is_size, "value"]
    if len(stated):
        return bool(stated.max() == 1)
    gpus = view.run.kernels.groupby(["rank", "gpu"]).ngroups
    return gpus == 1 and view.run.collectives.empty


def _one_stream(view: Selection) -> bool:
    """No GPU has work of a process in two streams."""
    columns = ["rank", "gpu", "process", "stream"]
    operations = pd.concat([cut(table, view.window) for table in (view.all_kernels, view.copies)])
    streams = operations[columns].drop_duplicates().groupby(columns[:-1]).size()
    return len(streams) > 0 and bool(streams.max() == 1)


def _device_waits(view: Selection) -> bool:
    """Most of the time in waits is spent in calls that wait for a whole GPU, which no value needs."""
    waits = synchronisations(view.framework)
    is_of_gpu = _named(waits["api"], DEVICE_WAIT.match)
    return _share(is_of_gpu, waits["dur_ns"]) >= HALF


def _far_card(view: Selection) -> bool:
    """NCCL found the network cards behind a host bridge or another processor."""
    links = view.run.links
    of_network = links[where(links["transport"], NETWORK.match)]
    return bool(of_network["path"].isin(FAR).any())


def _of_mpi(view: Selection, pattern: str) -> bool:
    """Half of the CPU time in MPI calls is spent in calls of these names."""
    calls = mpi(view)
    if calls.empty:
        return False
    return _share(calls["name"].str.contains(pattern, case=False), calls["share_frac"]) >= HALF


def _mostly_mpi(view: Selection) -> bool:
    calls = mpi(view)
    return len(calls) > 0 and bool(calls["share_frac"].sum() >= HALF)


def _loop(view: Selection) -> bool:
    return bool(phases(view)["phase"].eq("loop").any())


def _idle_in_copies(view: Selection) -> bool:
    """Half of the idle time in other CUDA calls lies in calls that copy or set memory."""
    gaps = idle_gaps(view)
    if gaps is None:
        return False
    return _share(_named(gaps["api"], COPY_CALL.match), gaps["cuda_call_ns"]) >= HALF


def _any(names: pd.Series, pattern: re.Pattern[str]) -> bool:
    return bool(where(names, pattern.search).any())


FACTS: dict[Fact, Callable[[Selection], object]] = {
    Fact.LINK_COPIES: lambda view: len(_over_link(view)),
    Fact.PINNED: _pinned,
    Fact.SMALL_COPIES: _small_copies,
    Fact.TO_CPU: lambda view: to_cpu(view, kind=""),
    Fact.PAGEABLE_TO_CPU: lambda view: to_cpu(view, kind="pageable"),
    Fact.REDUCED: _reduced,
    Fact.NO_MATRIX: _no_matrix,
    Fact.LIBRARY_KERNELS: _of_libraries,
    Fact.FULL_GRID: _full_grid,
    Fact.FULL_OCCUPANCY: lambda view: _occupied(view, "achieved_occupancy_frac"),
    Fact.SHARED_MEMORY_LIMITS: lambda view: _occupancy_limits(view, "shared memory"),
    Fact.REGISTERS_LIMIT: lambda view: _occupancy_limits(view, "registers"),
    Fact.REGISTERS_FREE: lambda view: _occupancy_limits(view, "^(?!.*registers)"),
    Fact.REGISTERS_FULL: _registers_full,
    Fact.FEW_LANES: _few_lanes,
    Fact.DRAM_LIMITS: lambda view: _limits(view, "dram"),
    Fact.TENSOR_LIMITS: lambda view: _limits(view, "tensor"),
    Fact.TENSOR_CORES: has_tensor_cores,
    Fact.MATRIX: lambda view: _computes(view, MATRIX_FAMILIES),
    Fact.ELEMENTWISE: lambda view: _computes(view, ELEMENTWISE),
    Fact.OPENACC: lambda view: _compiled_by(view, OPENACC),
    Fact.OPENMP: lambda view: _compiled_by(view, OPENMP),
    Fact.OPENMP_THREADS: lambda view: _any(view.run.calltree["name"], OPENMP_REGION),
    Fact.CPU_PATHS: lambda view: len(view.run.calltree) and host_metric(view.run.call_metrics),
    Fact.AMD: is_amd,
    Fact.OCCUPIED: lambda view: _occupied(view, "theoretical_occupancy_frac"),
    Fact.FEW_BLOCKS_OF_LIBRARY: _few_blocks_of_library,
    Fact.GRAPHS: _in_graphs,
    Fact.PYTHON: lambda view: (
        PYTHON in view.run.calltree["module"].cat.categories or is_pytorch(view)
    ),
    Fact.PYTORCH: is_pytorch,
    Fact.FUSED_ATTENTION: lambda view: (
        cut(view.kernels, view.window)["family"].eq("attention").any()
    ),
    Fact.OPTIMIZER: lambda view: where(view.framework.ranges["name"], OPTIMIZER.match).any(),
    Fact.OPTIMIZER_LOOP: _optimizer_loop,
    Fact.FUSED_OPTIMIZER: lambda view: _any(view.framework.kernels["full_name"], FUSED_OPTIMIZER),
    Fact.UNFUSED_ATTENTION: lambda view: unfused(view.framework).any(),
    Fact.UNCAPTURABLE: uncapturable,
    Fact.CONVERSIONS: lambda view: _any(view.framework.kernels["full_name"], CONVERSION),
    Fact.INFERENCE: _inference,
    Fact.ANOMALY: _anomaly,
    Fact.COMPILED: _compiled,
    Fact.FLOAT64: lambda view: (
        bool(formats(view)["format"].head(1).eq("fp64").any()) or _limits(view, "fp64")
    ),
    Fact.FLOAT32_PRODUCTS: lambda view: _without_tf32(view, "gemm"),
    Fact.FLOAT32_CONVOLUTIONS: lambda view: _without_tf32(view, "convolution"),
    Fact.BEFORE_AMPERE: lambda view: capability(view) < AMPERE,
    Fact.BEFORE_ADA: lambda view: capability(view) < ADA,
    Fact.VOLTA: lambda view: VOLTA <= capability(view) < AMPERE,
    Fact.SORTS: lambda view: _takes(view, "aten::(?:arg|m)?sort"),
    Fact.REPEATS: lambda view: _takes(view, "aten::repeat_interleave"),
    Fact.CONCATENATES: lambda view: _takes(view, "aten::cat"),
    Fact.EMBEDDING_GRADIENT: lambda view: _takes(view, "aten::embedding(?:_dense)?_backward"),
    Fact.ONE_HOT: lambda view: "aten::one_hot" in set(view.framework.ops["name"]),
    Fact.ONE_GPU: _one_gpu,
    Fact.ONE_STREAM: _one_stream,
    Fact.DEVICE_WAITS: _device_waits,
    Fact.CALL_PATHS: lambda view: len(view.run.calltree),
    Fact.FAR_CARD: _far_card,
    Fact.BETWEEN_NODES: is_between_nodes,
    Fact.LINKS: lambda view: view.run.links["transport"].notna().any(),
    Fact.MPI_SET_UP: lambda view: _of_mpi(view, "mpi_(?:init|finalize)"),
    Fact.MPI: _mostly_mpi,
    Fact.MPI_WAITS: lambda view: _of_mpi(view, "mpi_(?:wait|test)"),
    Fact.COUNTERS: lambda view: len(view.launches),
    Fact.STALLS: lambda view: len(view.stalls),
    Fact.LAST_WAVE: lambda view: len(last_waves(view)),
    Fact.TIMELINE: lambda view: len(view.all_kernels),
    Fact.OPERATORS: lambda view: len(view.framework.ops),
    Fact.RANGES: lambda view: len(view.ranges),
    Fact.STACKS: lambda view: len(view.stacks),
    Fact.LOOP: _loop,
    Fact.STEPS: lambda view: len(steady(view.steps)) or _loop(view),
    Fact.IDLE_IN_COPIES: _idle_in_copies,
    Fact.UNOWNED_PAUSES: lambda view: len(paused(view)) > 1 and not pausing.reason(view).owner,
    Fact.TWO_LENGTHS: lambda view: of_long_steps(view, "memory"),
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
        return bool(FACTS[fact](view))
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
