"""The tables, as data: every profiler's output is brought into these shapes.

Times are int64 nanoseconds since the start of the capture (of the earliest capture in a run of several). Intervals are
half open: [start_ns, start_ns + dur_ns). Fractions are 0..1. Identifiers that a profiler did not record are -1;
quantities it did not record are missing (NA or NaN). The four meanings of "GPU utilisation" are four metrics:
gpu_busy_frac, sm_active_frac, sm_occupancy_frac and the arithmetic pipes' activity. A reader that finds another metric
than these names it by their pattern.
"""

import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from perfkit import dump_tables, impossible
from perfkit.columns import GPU as GPU
from perfkit.columns import LATEST_UNIX_NS, category, duration, moment
from perfkit.columns import LONGEST_NS as LONGEST_NS
from perfkit.columns import RANK as RANK
from perfkit.schema import INFINITY, Column, Table

with Path(__file__).with_name("metrics.toml").open("rb") as file:
    METRICS: Mapping[str, str] = MappingProxyType(tomllib.load(file))


def optional(name: str, dtype: str, meaning: str, least: float = -INFINITY) -> Column:
    """Return a column that readers leave out where their tool does not record it."""
    return Column(name, dtype, meaning, least, optional=True)


def share_of_peak(name: str, meaning: str) -> Column:
    """Return a column of shares, 0 to 1, that a tool may measure as a little more than 1."""
    return Column(name, "float64", meaning, 0, 1, slack=0.1)


PROCESS = Column("process", "int64", "operating-system process id; -1 not recorded")
THREAD = Column("thread", "int64", "operating-system thread id; -1 not recorded")
STREAM = Column(
    "stream", "int64", "CUDA stream id within the process; -1 not recorded", least=-1, fallback=-1
)
START = moment("start_ns", "start, ns since the start of the capture")
DUR = duration("duration, ns")
CALL = "id shared by a CUDA call and what it started, unique within a process only; -1 none"
CORRELATION = Column("correlation", "int64", CALL)
ON_STREAM = (RANK, GPU, PROCESS, STREAM, START, DUR)
ON_THREAD = (RANK, PROCESS, THREAD, START, DUR)
# How many threads a launch starts.
CONFIGURATION = (
    Column("grid_blocks", "Int64", "thread blocks in the grid, count", least=0),
    Column("block_threads", "Int64", "threads in a block, count", least=0),
)
WALL_CLOCK = "wall clock at time 0, ns since 1970 UTC; NA when not recorded"
LENGTH = "length of the recording, ns; 0 when nothing was recorded"
CAPTURE = Table(
    "CAPTURE",
    "a profile",
    (
        RANK,
        Column("tool", "string", "profiler that wrote the file"),
        optional(
            "tool_version", "string", "version that exported the file; empty when not recorded"
        ),
        Column("path", "string", "file or folder that was read"),
        Column("t0_unix_ns", "Int64", WALL_CLOCK, 0, LATEST_UNIX_NS, optional=True),
        Column("dur_ns", "int64", LENGTH, 0, LONGEST_NS, fallback=0),
        optional(
            "traced",
            "string",
            "what the profiler was asked to trace, such as cuda,nvtx; empty when not recorded",
        ),
        optional(
            "sampled",
            "string",
            "what it was asked to sample: stacks, schedule; empty when not recorded",
        ),
        optional(
            "platform",
            "string",
            "operating system of the program: linux, windows, wsl; empty when not recorded",
        ),
    ),
    ("rank", "path"),
)
DEVICES = Table(
    "DEVICES",
    "a GPU of the node",
    (
        *(RANK, GPU),
        Column("name", "string", "product name as the tool prints it"),
        optional(
            "compute_capability",
            "string",
            "CUDA compute capability such as 8.0; empty when not recorded",
        ),
        optional("sm_count", "Int64", "streaming multiprocessors", least=0),
        optional("memory_bytes", "Int64", "device memory, bytes", least=0),
        optional(
            "memory_bytes_per_s",
            "float64",
            "peak device-memory bandwidth the driver reports, bytes/s",
            least=0,
        ),
        optional("clock_hz", "float64", "maximum SM clock the driver reports, Hz", least=0),
    ),
    ("rank", "gpu"),
)
KERNELS = Table(
    "KERNELS",
    "a kernel launch on the timeline",
    (
        *ON_STREAM,
        category("name", "short name for people; never merges kernels that do different work"),
        category("full_name", "demangled name with template arguments and parameters"),
        category(
            "family",
            "kind of work, from the name: gemm, attention, elementwise, communication, ...",
        ),
        CORRELATION,
        *CONFIGURATION,
        Column("registers", "Int64", "registers per thread, count", least=0),
        Column(
            "shared_bytes", "Int64", "static and dynamic shared memory per block, bytes", least=0
        ),
        Column("in_graph", "bool", "whether a CUDA graph launched it"),
    ),
    ("rank", "gpu", "start_ns"),
    impossible=impossible.of_kernels,
)
COPIES = Table(
    "COPIES",
    "a copy or memset",
    (
        *ON_STREAM,
        category("direction", "H2D, D2H, D2D, P2P, H2H, memset or unknown"),
        Column("bytes", "int64", "bytes moved or set", least=0),
        category(
            "src_memory", "pageable, pinned, device, array, managed, ...; missing for a memset"
        ),
        category("dst_memory", "pageable, pinned, device, array, managed, ..."),
        Column("peer_gpu", "int32", "the other GPU of a peer copy; -1 none", least=-1, fallback=-1),
        CORRELATION,
    ),
    ("rank", "gpu", "start_ns"),
    impossible=impossible.of_copies,
)
API_CALLS = Table(
    "API_CALLS",
    "a CUDA call on the CPU",
    (
        *ON_THREAD,
        category("name", "runtime or driver function without its version suffix"),
        CORRELATION,
    ),
    ("rank", "process", "thread", "start_ns"),
    impossible=impossible.of_calls,
)
OS_CALLS = Table(
    "OS_CALLS",
    "a call into the libraries of the operating system",
    (*ON_THREAD, category("name", "function such as write, fsync or poll")),
    ("rank", "process", "thread", "start_ns"),
)
STACK = Column(
    "stack", "int64", "number of the stack in FRAMES, unique in its rank; -1 none", least=-1
)
STACKS = Table(
    "STACKS",
    "a moment at which the call stack of a CPU thread was recorded",
    (
        *(RANK, PROCESS, THREAD),
        moment("start_ns", "when the sample was taken, or when the call began, ns"),
        duration("length of the call whose stack this is; 0 for a sample, ns"),
        category("kind", "sample (of a running thread), os_call or cuda_call (stack of that call)"),
        Column("cpu", "int32", "core that ran the thread; -1 not recorded", least=-1, fallback=-1),
        STACK,
    ),
    ("rank", "process", "thread", "start_ns", "stack"),
)
FRAMES = Table(
    "FRAMES",
    "a frame of a distinct call stack",
    (
        *(RANK, STACK),
        Column(
            "depth",
            "int32",
            "callers between this frame and the innermost one; 0 is the innermost",
            least=0,
        ),
        category("function", "function as recorded; missing where it has no name"),
        category(
            "module",
            "library or program file, or source file of a Python frame; missing if unknown",
        ),
        Column("resolved", "bool", "whether the function has a name, rather than an address"),
    ),
    ("rank", "stack", "depth"),
)
SCHEDULE = Table(
    "SCHEDULE",
    "a stretch in which a CPU thread ran on a core",
    (
        *ON_THREAD,
        Column("cpu", "int32", "core that ran it; -1 not recorded", least=-1, fallback=-1),
        category(
            "stopped", "why the operating system took it off the core; missing when not recorded"
        ),
    ),
    ("rank", "process", "thread", "start_ns"),
)
WAITS = Table(
    "WAITS",
    "a wait of the CPU for the GPU, or of a stream for an event",
    (
        *(RANK, GPU, PROCESS, STREAM, START, DUR),
        category("kind", "device, stream, event, stream_event (a stream waits), query or unknown"),
        Column("event", "int64", "CUDA event waited for, unique in its process; -1 none"),
        Column(
            "record",
            "int64",
            "number of that record of the event, unique in its process; -1 not recorded",
        ),
        Column("context", "int64", "CUDA context; -1 not recorded"),
        CORRELATION,
    ),
    ("rank", "gpu", "process", "start_ns"),
)
OVERHEAD = Table(
    "OVERHEAD",
    "time that the profiler or CUDA itself took on a CPU thread",
    (
        *ON_THREAD,
        category("kind", "profiler, flush, loading, compiling, queue_full or other"),
        category("name", "what it was, in the words of the tool"),
        CORRELATION,
    ),
    ("rank", "process", "thread", "start_ns"),
)
DIAGNOSTICS = Table(
    "DIAGNOSTICS",
    "a message of the profiler about its recording",
    (
        *(RANK, PROCESS),
        moment("time_ns", "when it was written, ns since the start of the capture"),
        category("severity", "info, warning or error, as the tool says"),
        Column("text", "string", "the message"),
    ),
    ("rank", "process", "time_ns"),
)
MEMORY_EVENTS = Table(
    "MEMORY_EVENTS",
    "an allocation or release of memory through CUDA",
    (
        *(RANK, GPU, PROCESS),
        moment("time_ns", "when it happened, ns since the start of the capture"),
        category("operation", "allocation or release"),
        category("memory", "device, pinned, managed, ..., as in COPIES"),
        Column("bytes", "int64", "bytes allocated or released", least=0),
        Column(
            "address", "Int64", "address of the memory; NA when it does not fit or is not recorded"
        ),
        CORRELATION,
    ),
    ("rank", "gpu", "process", "time_ns"),
)
RANGES = Table(
    "RANGES",
    "a named span on a CPU thread (NVTX, profiler step, annotation)",
    (
        *ON_THREAD,
        category("name", "text of the range as the program wrote it"),
        category("domain", "NVTX domain; empty for the default domain"),
        category("kind", "push_pop, start_end, mark or step"),
        Column(
            "depth",
            "int32",
            "number of push_pop ranges of the same thread and domain that enclose it",
        ),
    ),
    ("rank", "process", "thread", "start_ns", "depth"),
)
OPS = Table(
    "OPS",
    "a framework operator",
    (
        *(RANK, PROCESS, THREAD),
        Column("op", "int64", "number of the operator, unique in its rank"),
        Column("parent", "int64", "op of the enclosing operator on the same thread; -1 at the top"),
        *(START, DUR),
        Column("self_ns", "int64", "duration without its child operators, ns", least=0),
        category("name", "operator such as aten::mm"),
        category("shapes", "input shapes as recorded, JSON; missing when not recorded"),
        category("dtypes", "input types as recorded, JSON; missing when not recorded"),
        category("strides", "input strides as recorded, JSON; missing when not recorded"),
        category(
            "concrete", "inputs that are no tensors, as recorded, JSON; missing when not recorded"
        ),
        Column(
            "sequence",
            "int64",
            "autograd's number, shared by a forward operator and its backward; -1 none",
        ),
    ),
    ("rank", "process", "thread", "start_ns", "op"),
    impossible=impossible.of_calls,
)
PYTHON_CALLS = Table(
    "PYTHON_CALLS",
    "a Python function on the stack of a thread",
    (
        *ON_THREAD,
        category("name", "file(line): function, or nn.Module: class"),
        Column("depth", "int32", "number of Python functions that enclose it"),
    ),
    ("rank", "process", "thread", "start_ns", "depth"),
)
# The least and the most that a metric can be, by its unit; of other units 0 and infinity.
LIMITS = {
    "frac": (0.0, 1.0),
    "ns": (0.0, LONGEST_NS),
    "c": (-100.0, 250.0),  # that a sensor of a GPU can read, or its margin be
}


def limits(metric: str) -> tuple[float, float]:
    """Return the least and the most that a metric of SAMPLES can be, by its unit: 0 and 1 for gpu_busy_frac."""
    unit = metric.rpartition("_")[2]
    return LIMITS.get(unit, (0.0, INFINITY))


SAMPLES = Table(
    "SAMPLES",
    "one metric read once",
    (
        *(RANK, GPU),
        moment("time_ns", "when it was read, ns since the start of the capture; may be negative"),
        category("metric", "canonical name with its unit as suffix, such as sm_active_frac"),
        Column("value", "float64", "value in the unit of the metric's suffix"),
    ),
    ("rank", "gpu", "metric", "time_ns"),
    limits=limits,
)
LAUNCH = Column("launch", "int64", "number of the launch in the report")
MODULES = Table(
    "MODULES",
    "a module of a model, with its forward pass",
    (
        RANK,
        Column("module", "int64", "number of the module in the order of the report"),
        Column("parent", "int64", "module that holds it; -1 at the top", fallback=-1),
        category(
            "name", "attributes that lead to it, such as bert.encoder.layer.0; empty at the top"
        ),
        category("kind", "class of the module"),
        Column("parameters_count", "float64", "parameters with those of its modules", least=0),
        Column(
            "forward_flops",
            "float64",
            "operations of the forward pass, two per multiply-accumulate",
            least=0,
        ),
        Column(
            "forward_ns",
            "int64",
            "time of the forward pass with its modules, on the CPU's clock, ns",
            least=0,
        ),
    ),
    ("rank", "module"),
)
LAUNCHES = Table(
    "LAUNCHES",
    "a kernel launch measured by counters",
    (
        *(RANK, GPU, LAUNCH),
        category("name", "short name, as in KERNELS"),
        category("full_name", "demangled name, as in KERNELS"),
        *CONFIGURATION,
        Column("dur_ns", "float64", "duration under the counters' clock, ns", 0, LONGEST_NS),
        Column("clock_hz", "float64", "SM clock while measured, Hz", least=0),
        Column("fp64_flops", "float64", "double-precision operations on CUDA cores, FLOP", least=0),
        Column("fp32_flops", "float64", "single-precision operations on CUDA cores, FLOP", least=0),
        Column("fp16_flops", "float64", "half-precision operations on CUDA cores, FLOP", least=0),
        Column("tensor_flops", "float64", "operations on tensor cores, FLOP", least=0),
        Column("dram_bytes", "float64", "device-memory bytes read and written", least=0),
        Column("l2_bytes", "float64", "bytes through the L2 cache", least=0),
        Column("l1_bytes", "float64", "bytes through the L1 cache", least=0),
        share_of_peak("achieved_occupancy_frac", "resident warps over maximum warps while active"),
        share_of_peak(
            "theoretical_occupancy_frac",
            "resident warps the launch configuration allows, over maximum",
        ),
        share_of_peak("sm_frac", "compute throughput over its peak"),
        share_of_peak("memory_frac", "memory throughput over its peak"),
        share_of_peak("dram_frac", "device-memory throughput over its peak"),
        share_of_peak("tensor_frac", "tensor-pipe activity over its peak"),
    ),
    ("rank", "gpu", "launch"),
)
COUNTERS = Table(
    "COUNTERS",
    "any other counter of a launch",
    (
        *(RANK, LAUNCH),
        category("metric", "the tool's metric name"),
        category("unit", "base unit after normalising"),
        Column("value", "float64", "value in that unit"),
    ),
    ("rank", "launch", "metric"),
)
STALLS = Table(
    "STALLS",
    "a stall reason of a launch or a call-tree node",
    (
        RANK,
        optional("launch", "int64", "launch it belongs to; -1 for a call-tree node"),
        optional("node", "int64", "call-tree node it belongs to; -1 for a launch"),
        category("reason", "stall reason"),
        Column(
            "value",
            "float64",
            "samples, or cycles per issued instruction, as the source counts; of a node alone",
        ),
    ),
    ("rank", "launch", "node", "reason"),
)
RULES = Table(
    "RULES",
    "what the vendor's guided analysis said",
    (
        *(RANK, LAUNCH),
        category("rule", "the vendor's rule"),
        Column("message", "string", "its text"),
        Column(
            "speedup_frac",
            "float64",
            "estimated gain as a fraction of the scope's time; NaN when not given",
            0,
            1,
        ),
        category("scope", "what the gain refers to: kernel, workload; missing when not given"),
    ),
    ("rank", "launch", "rule"),
)
NODE = Column("node", "int64", "number of the calling context")
CALLTREE = Table(
    "CALLTREE",
    "a calling context",
    (
        *(RANK, NODE),
        Column("parent", "Int64", "enclosing context; NA at a root, one root per entry point"),
        Column("depth", "int32", "distance from the root"),
        category("entry", "entry point: main thread, application thread, ..."),
        category("kind", "entry, function, loop, line, instruction or gpu_operation"),
        category("name", "demangled name; file:line of a line or loop"),
        category("file", "source file; missing when unknown"),
        Column("line", "Int64", "source line; NA when unknown"),
        category("module", "load module; missing when unknown"),
    ),
    ("rank", "node"),
)
CALL_METRICS = Table(
    "CALL_METRICS",
    "a metric of a calling context",
    (
        *(RANK, NODE),
        category("metric", "the tool's metric name without its unit"),
        category("unit", "s, bytes, cycles, instructions, samples or count"),
        Column(
            "inclusive",
            "float64",
            "value with everything called from here: adds up over the roots only",
        ),
        Column("exclusive", "float64", "value of this context alone: adds up over all contexts"),
    ),
    ("rank", "node", "metric"),
)
CALL_THREAD = Column(
    "thread", "int64", "number of the CPU thread or GPU stream in its call-path profile"
)
THREADS = Table(
    "THREADS",
    "a CPU thread or GPU stream of a call-path profile",
    (
        *(RANK, CALL_THREAD),
        category("kind", "cpu (a thread) or gpu (a stream)"),
        category("name", "what tells it from the others: MPI rank, thread, GPU context, stream"),
        Column("mpi_rank", "Int64", "MPI rank it belongs to; NA outside MPI"),
    ),
    ("rank", "thread"),
)
THREAD_METRICS = Table(
    "THREAD_METRICS",
    "a metric of one thread below one entry point",
    (
        *(RANK, CALL_THREAD),
        category("entry", "entry point, as in CALLTREE"),
        category("metric", "the tool's metric name"),
        category("unit", "unit of the values, as in CALL_METRICS"),
        Column(
            "inclusive",
            "float64",
            "value of the thread with everything called below the entry point",
        ),
    ),
    ("rank", "thread", "entry", "metric"),
)
TRACE = Table(
    "TRACE",
    "a stretch in which a thread or stream was seen in one calling context",
    (
        *(RANK, CALL_THREAD, START),
        duration("until the next sample or operation of the same thread, ns"),
        Column("node", "int64", "calling context, as in CALLTREE; of a GPU stream the operation"),
        Column(
            "ended",
            "bool",
            "whether idleness follows; if not, dur_ns may be too long for a GPU operation",
        ),
    ),
    ("rank", "thread", "start_ns"),
)
COLLECTIVES = Table(
    "COLLECTIVES",
    "a collective, timed or benchmarked",
    (
        *(RANK, GPU),
        Column(
            "start_ns",
            "Int64",
            f"{START.meaning}; NA for a benchmark",
            -LONGEST_NS,
            LONGEST_NS,
            optional=True,
        ),
        category("operation", "all_reduce, all_gather, ..."),
        Column("bytes", "int64", "message size as nccl-tests defines it, bytes", least=0),
        optional("dtype", "category", "element type; missing when not recorded"),
        optional("ranks", "Int64", "ranks that took part, count", least=0),
        Column("dur_ns", "float64", "duration, ns", 0, LONGEST_NS),
        optional("algorithm", "category", "ring, tree, ...; missing when not recorded"),
        optional("protocol", "category", "LL, LL128, Simple; missing when not recorded"),
        optional("placement", "category", "in_place or out_of_place; missing outside benchmarks"),
        optional("group", "category", "process group; missing when not recorded"),
        category("source", "trace, benchmark or log"),
    ),
    ("rank", "gpu", "start_ns", "operation", "bytes"),
)
LINKS = Table(
    "LINKS",
    "a connection between two ranks that NCCL set up",
    (
        RANK,
        Column("channel", "int32", "NCCL channel; -1 not recorded"),
        category("kind", "ring, tree or connection"),
        Column("from_rank", "int32", "rank that sends, or the child of a tree"),
        Column("to_rank", "int32", "rank that receives, or the parent of a tree"),
        category(
            "transport", "P2P/CUMEM, SHM/direct, NET/IB/0/GDRDMA, ...; missing when not recorded"
        ),
        category(
            "path", "found between the two: NVL, PIX, PHB, SYS, ...; missing when not recorded"
        ),
        optional("nodes", "Int64", "nodes of all ranks together; missing when not recorded"),
    ),
    ("rank", "kind", "channel", "from_rank", "to_rank"),
)
ENQUEUED = dump_tables.ENQUEUED
GROUPS = dump_tables.GROUPS
ALLOCATIONS = dump_tables.ALLOCATIONS
RESERVATIONS = dump_tables.RESERVATIONS
SEGMENTS = dump_tables.SEGMENTS
INSPECTED = dump_tables.INSPECTED
TABLES: dict[str, Table] = {
    name: table for name, table in globals().items() if isinstance(table, Table)
}
