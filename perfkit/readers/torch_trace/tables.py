"""The tables of a trace, but CAPTURE: OPS, API_CALLS, RANGES, KERNELS, COPIES, COLLECTIVES, SAMPLES and others."""

import math
import re
from collections.abc import Sequence
from operator import attrgetter
from typing import Any

import msgspec
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit import names, tables
from perfkit.readers.text import category, csv_rows, nullable, overhead_kind
from perfkit.readers.torch_trace import events as forms
from perfkit.readers.torch_trace.events import (
    Columns,
    Int,
    Spans,
    arguments,
    ids,
    integers,
    nesting,
    quantities,
)
from perfkit.readers.torch_trace.stream import AMD_WARP, Header

STEP = re.compile(r"ProfilerStep\s*#\s*\d+")
# Traces of 2021 give PyTorch's own annotations the category of operators.
ANNOTATION = re.compile(r"ProfilerStep\s*#|enumerate\(DataLoader\)#|Optimizer\.(step|zero_grad)#")
SUFFIX = re.compile(r"(_pt[sd][sz])?(_v\d+)?(_pt[sd][sz])?$")  # cudaLaunchKernel_ptsz_v7000
CORRELATION = attrgetter("correlation")
RECORDED = ("shapes", "dtypes", "strides", "concrete")
# The letters of Kineto's memcpyKindString; arrays are named after where the bytes go.
DIRECTIONS = {
    **dict.fromkeys(("HtoD", "HtoA"), "H2D"),
    **dict.fromkeys(("DtoH", "AtoH"), "D2H"),
    **dict.fromkeys(("DtoD", "DtoA", "AtoD", "AtoA"), "D2D"),
    "HtoH": "H2H",
    "PtoP": "P2P",
}
COPY = re.compile(r"Memcpy\s+(\w+)\s*(?:\((.+?)\s*->\s*(.+?)\))?")
MEMSET = re.compile(r"Memset\s*(?:\((.+?)\))?")
# hipExtModuleLaunchKernel takes its grid in threads, every other launch function in blocks.
GRID_IN_THREADS = "hipExtModuleLaunchKernel"
GRAPH_LAUNCH = "GraphLaunch"
MOST = np.iinfo(np.int32).max
# c10::ScalarType as PyTorch spells it: the name of the dtype and the bytes of an element.
ELEMENTS = {
    row["name"]: (row["format"], int(row["bytes"])) for row in csv_rows(__file__, "elements.csv")
}
# In this order: the letters of ProcessGroupNCCL's names, without their underscores, that tell the
# operation.
OPERATIONS = {
    **{
        name.replace("_", ""): name
        for name in ("reduce_scatter", "all_reduce", "all_gather", "all_to_all")
    },
    **{name: name for name in ("broadcast", "barrier")},
    **dict.fromkeys(("send", "recv"), "send_recv"),
    **{name: name for name in ("gather", "scatter", "reduce")},
}
CPU = 0  # c10::DeviceType; CUDA is 1, HIP 6
ON_THREAD = ("process", "thread", "start_ns", "dur_ns")
ON_GPU = ("start_ns", "dur_ns", "gpu", "stream", "correlation")
METRICS = ["memory_allocated_bytes", "memory_reserved_bytes"]


def add_operators(ops: Spans, ranges: Spans, events: list[forms.Operator]) -> None:
    """Append operators; annotations go to the ranges as well."""
    annotations = {name for name in set(map(forms.NAME, events)) if ANNOTATION.match(name)}
    if annotations:
        ranges.add([event for event in events if event.name in annotations])
        events = [event for event in events if event.name not in annotations]
    given = arguments(events, forms.OperatorArguments)
    recorded = {name: list(map(attrgetter(name), given)) for name in RECORDED}
    if any(old := [a.old_shapes for a in given]):
        recorded["shapes"] = [
            shapes or older for shapes, older in zip(recorded["shapes"], old, strict=True)
        ]
    ops.add(
        events,
        sequence=ids(attrgetter("sequence"), given),
        **{name: _texts(ops, name, texts) for name, texts in recorded.items()},
    )


def _texts(spans: Spans, column: str, texts: list[msgspec.Raw]) -> NDArray[np.int32]:
    """Return the codes of texts, of which most traces record none."""
    if not any(texts):
        return np.full(len(texts), spans.codes(column, [""])[0])
    return spans.codes(column, [str(text, "utf-8") for text in texts])


def add_calls(calls: Spans, events: list[forms.Call]) -> None:
    """Append calls of the runtime or driver."""
    calls.add(events, correlation=ids(CORRELATION, arguments(events, forms.CallArguments)))


def ops(spans: Spans, columns: Columns) -> pd.DataFrame:
    """Return OPS: numbered by process, thread and start, each with the operator that encloses it."""
    nested = nesting(*_times(columns))
    taken = {name: values[nested.order] for name, values in columns.items()}
    child = nested.parent >= 0
    # Durations are exact as float64 up to 2**53 ns, 104 days.
    children = np.bincount(nested.parent[child], taken["dur_ns"][child], len(child)).astype(
        np.int64
    )
    numbers = np.empty(len(child), np.int64)  # by start; what starts together keeps its order
    numbers[np.argsort(taken["start_ns"], kind="stable")] = np.arange(len(child))
    return tables.OPS.make(
        _frame(
            taken,
            op=numbers,
            parent=np.where(child, numbers[nested.parent], -1),
            self_ns=taken["dur_ns"] - children,
            name=category(taken["name"], spans.values("name")),
            sequence=taken["sequence"],
            **{
                name: category(taken[name], [_compact(v) for v in spans.values(name)])
                for name in RECORDED
            },
        )
    )


def _compact(text: str) -> str | None:
    """Return a list without the blanks its writer put in; one that is empty was not recorded."""
    compact = msgspec.json.format(text, indent=-1) if text else ""
    return None if compact in ("", "[]", "null") else compact


def api_calls(spans: Spans, taken: Columns) -> pd.DataFrame:
    """Return API_CALLS: calls of the CUDA or HIP runtime and driver."""
    names = [SUFFIX.sub("", name) for name in spans.values("name")]
    return tables.API_CALLS.make(
        _frame(taken, name=category(taken["name"], names), correlation=taken["correlation"])
    )


def ranges(spans: Spans, columns: Columns) -> pd.DataFrame:
    """Return RANGES: profiler steps, and annotations, which nest unless one crosses the end of another."""
    listed = spans.values("name")
    is_step = np.array([bool(STEP.fullmatch(name)) for name in listed], bool)[columns["name"]]
    times = _times(columns)
    others = np.flatnonzero(~is_step)
    first = nesting(*(values[others] for values in times))
    nested = np.sort(others[first.order[~first.crossing]])
    again = nesting(*(values[nested] for values in times))
    kind, depth = np.where(is_step, 0, 1), np.zeros(len(is_step), np.int64)
    kind[nested] = 2
    depth[nested[again.order]] = again.depth
    return tables.RANGES.make(
        _frame(
            columns,
            name=category(columns["name"], listed),
            domain=category(np.zeros(len(kind), np.int64), [""]),
            kind=category(kind, ["step", "start_end", "push_pop"]),
            depth=depth,
        )
    )


def python_calls(spans: Spans, zero: int) -> pd.DataFrame:
    """Return PYTHON_CALLS: functions on the stacks of the threads, with the number of those around each."""
    columns = spans.joined(zero)
    nested = nesting(*_times(columns))
    taken = {name: values[nested.order] for name, values in columns.items()}
    names = category(taken["name"], spans.values("name"))
    return tables.PYTHON_CALLS.make(_frame(taken, name=names, depth=nested.depth))


def overhead(spans: Spans, columns: Columns) -> pd.DataFrame:
    """Return OVERHEAD: the time of CUPTI, which Kineto gives no process and no thread."""
    listed = spans.values("name")
    kinds = [overhead_kind(name) or "profiler" for name in listed]
    thread = np.where(columns["process"] < 0, np.int64(-1), columns["thread"])
    return tables.OVERHEAD.make(
        _frame(
            {**columns, "thread": thread},
            kind=category(columns["name"], kinds),
            name=category(columns["name"], listed),
            correlation=np.full(len(thread), -1, np.int64),
        )
    )


def _times(columns: Columns) -> tuple[Int, Int, Int, Int]:
    return columns["process"], columns["thread"], columns["start_ns"], columns["dur_ns"]


def _frame(columns: Columns, place: Sequence[str] = ON_THREAD, /, **finished: Any) -> pd.DataFrame:
    """Return where and when something ran, with the finished columns."""
    own = {"rank": np.zeros(len(columns["start_ns"]), "int32")}
    return pd.DataFrame({**own, **{name: columns[name] for name in place}, **finished}, copy=False)


def add_kernels(kernels: Spans, collectives: Spans, events: list[forms.Kernel]) -> None:
    """Append kernels; kernels that say what they sent go to the collectives as well."""
    given = arguments(events, forms.KernelArguments)
    gpu = _gpu(events, [a.device for a in given])
    kernels.add(
        events,
        gpu=gpu,
        stream=integers(
            e.tid if a.stream is None else a.stream for e, a in zip(events, given, strict=True)
        ),
        correlation=ids(CORRELATION, given),
        graph=np.array([bool(a.graph) for a in given], bool),
        shape=kernels.codes("shape", [(a.grid, a.block) for a in given]),
        registers=quantities(a.registers for a in given),
        shared_bytes=quantities(a.shared for a in given),
    )
    add_collectives(collectives, events, given, gpu)


def add_copies(copies: Spans, events: list[forms.Copy]) -> None:
    """Append copies and memsets."""
    given = arguments(events, forms.CopyArguments)
    gpu = _gpu(events, [a.within if a.device is None else a.device for a in given])
    source, target = (
        _device(integers(getattr(a, side) for a in given)) for side in ("source", "target")
    )
    is_within = (source < 0) | (target < 0) | (source == target)
    copies.add(
        events,
        gpu=gpu,
        stream=integers(
            e.tid if a.stream is None else a.stream for e, a in zip(events, given, strict=True)
        ),
        correlation=ids(CORRELATION, given),
        bytes=quantities(a.bytes for a in given),
        kind=copies.codes(
            "kind", [(event.name, a.kind) for event, a in zip(events, given, strict=True)]
        ),
        peer_gpu=np.where(is_within, -1, np.where(source == gpu, target, source)),
    )


def _gpu(events: Sequence[forms.Event], devices: list[int | None]) -> Int:
    """Return the device of each event; older traces and other writers have it as the process only."""
    return _device(
        integers(event.pid if d is None else d for event, d in zip(events, devices, strict=True))
    )


def _device(numbers: Int) -> Int:
    """Return numbers of devices, -1 for a number that no device has."""
    return np.where((numbers < 0) | (numbers > MOST), -1, numbers)


def _size(shape: tuple[int, ...] | None) -> int | None:
    """Return the size of a grid or block; a 0 in it was not recorded: a kernel without blocks cannot run."""
    if shape is None or 0 in shape:
        return None
    return math.prod(shape)


def _blocks(threads: tuple[int, ...] | None, block: tuple[int, ...] | None) -> int | None:
    """Return the number of blocks of a grid that is given in threads."""
    if threads is None or block is None or 0 in block:
        return None
    return math.prod(-(-n // size) for n, size in zip(threads, block, strict=False))


def kernels(spans: Spans, columns: Columns, process: int, api_calls: pd.DataFrame) -> pd.DataFrame:
    """Return KERNELS: named by the name recorded, of the one `process` that launched them."""
    labels = spans.values("name")
    named = names.table(labels).set_index("full_name").loc[labels]
    shapes, shape = spans.values("shape"), columns.pop("shape")
    blocks, of_threads = (
        quantities(_size(grid) for grid, _ in shapes),
        quantities(_blocks(*each) for each in shapes),
    )
    grid = np.where(
        _launched_by(columns, api_calls, GRID_IN_THREADS), of_threads[shape], blocks[shape]
    )
    columns["block_threads"] = quantities(_size(block) for _, block in shapes)[shape]
    if not columns["registers"].any():  # every kernel has some
        columns["registers"] = np.full(len(grid), forms.UNKNOWN)
    return tables.KERNELS.make(
        _frame(
            columns,
            ON_GPU,
            process=np.full(len(grid), process),
            name=category(columns["name"], named["name"].tolist()),
            full_name=category(columns["name"], labels),
            family=category(columns["name"], named["family"].tolist()),
            in_graph=columns["graph"] | _launched_by(columns, api_calls, GRAPH_LAUNCH),
            grid_blocks=nullable(grid, grid == forms.UNKNOWN),
            **{
                name: nullable(columns[name], columns[name] == forms.UNKNOWN)
                for name in ("block_threads", "registers", "shared_bytes")
            },
        )
    )


def _launched_by(columns: Columns, api_calls: pd.DataFrame, word: str) -> np.ndarray:
    """Return which operations share their correlation with a call whose name holds `word`."""
    calls = [name for name in api_calls["name"].cat.categories if word in name]
    ids = api_calls.loc[api_calls["name"].isin(calls), "correlation"].to_numpy()
    return np.isin(columns["correlation"], ids[ids >= 0])


def copies(spans: Spans, columns: Columns, process: int) -> pd.DataFrame:
    """Return COPIES: copies and memsets; the size of those without one is 0."""
    words = zip(*(_sides(name, kind) for name, kind in spans.values("kind")), strict=True)
    sides: dict[str, Any] = {
        column: category(columns["kind"], labels)
        for column, labels in zip(("direction", "src_memory", "dst_memory"), words, strict=True)
    }
    size = np.where(columns["bytes"] == forms.UNKNOWN, 0, columns["bytes"])
    sides |= {"process": np.full(len(size), process), "bytes": size}
    return tables.COPIES.make(_frame(columns, (*ON_GPU, "peer_gpu"), **sides))


def _sides(name: str, kind: str | None) -> tuple[str, str | None, str | None]:
    """Return direction, source and target memory as a copy's name tells them, or its kind.

    >>> _sides("Memcpy HtoD (Pinned -> Device)", None), _sides("Memset (Device)", None)
    (('H2D', 'pinned', 'device'), ('memset', None, 'device'))
    """
    memset = MEMSET.match(name)
    if memset:
        memory = memset[1] or kind
        return "memset", None, memory.lower() if memory else None
    copy = COPY.match(name)
    direction = copy[1] if copy else kind
    source, target = (copy[2], copy[3]) if copy else (None, None)
    return (
        DIRECTIONS.get(direction or "", "unknown"),
        source and source.lower(),
        target and target.lower(),
    )


def operation(name: str) -> str | None:
    """Return the collective in the one spelling of COLLECTIVES, None if it is none of them.

    >>> [operation(name) for name in ("_allgather_base", "allreduce_coalesced", "all_to_allv", "wait")]
    ['all_gather', 'all_reduce', 'all_to_all', None]
    """
    letters = re.sub(r"[^a-z]", "", name.lower())
    return next((canonical for part, canonical in OPERATIONS.items() if part in letters), None)


def message_bytes(message: forms.Collective) -> int | None:
    """Return the message size as nccl-tests defines it: what the largest buffer of a rank holds, of all ranks together.

    Of a gather or scatter only the root has the large buffer; elsewhere it is the rank's part times
    the number of ranks. None if not recorded. Source: NVIDIA/nccl-tests, doc/PERFORMANCE.md and the
    ``size`` column of src/common.cu (the larger of both buffers).
    """
    buffers = [elements for elements in (message.sent, message.received) if elements is not None]
    if not buffers or message.dtype not in ELEMENTS:
        return None
    parts = {"gather": message.sent, "scatter": message.received}
    name = operation(message.collective or "")
    if name in parts and message.ranks:
        buffers.append((parts[name] or 0) * message.ranks)
    size = max(buffers) * ELEMENTS[message.dtype][1]
    return size if 0 <= size <= forms.LARGEST else None


def add_collectives(
    collectives: Spans, events: Sequence[forms.Event], given: Sequence[forms.Collective], gpu: Int
) -> None:
    """Append the kernels that tell a message size."""
    sizes = [message_bytes(a) if a.collective else None for a in given]
    rows = [row for row, size in enumerate(sizes) if size is not None]
    if not rows:
        return
    messages = [given[row] for row in rows]
    collectives.add(
        [events[row] for row in rows],
        gpu=gpu[rows],
        bytes=integers(sizes[row] for row in rows),
        operation=collectives.codes("operation", [m.collective for m in messages]),
        dtype=collectives.codes("dtype", [m.dtype for m in messages]),
        group=collectives.codes(
            "group", [None if m.group is None else str(m.group) for m in messages]
        ),
        ranks=integers(m.ranks for m in messages),
    )


def collectives(spans: Spans, columns: Columns) -> pd.DataFrame:
    """Return COLLECTIVES: one row per kernel, whose name does not tell the algorithm and protocol that ran."""
    rows = len(columns["start_ns"])
    ranks = columns["ranks"]
    frame = {
        "rank": np.zeros(rows, "int32"),
        "gpu": columns["gpu"],
        "start_ns": pd.array(columns["start_ns"], dtype="Int64"),
        "operation": category(
            columns["operation"], [operation(name) for name in spans.values("operation")]
        ),
        "bytes": columns["bytes"],
        "dtype": category(
            columns["dtype"], [ELEMENTS[dtype][0] for dtype in spans.values("dtype")]
        ),
        "ranks": pd.arrays.IntegerArray(np.maximum(ranks, 0), ranks < 0),
        "dur_ns": columns["dur_ns"].astype(float),
        "group": category(columns["group"], spans.values("group")),
        "source": category(np.zeros(rows, np.int64), ["trace"]),
    }
    return tables.COLLECTIVES.make(pd.DataFrame(frame, copy=False))


def devices(header: Header) -> pd.DataFrame:
    """Return DEVICES: what the trace lists, which is every GPU the process could see."""
    listed = header.devices or header.old_devices
    capabilities = []
    for device in listed:  # of CUDA; AMD's numbers under the same keys mean another thing
        major = device.old_major if device.major is None else device.major
        minor = device.old_minor if device.minor is None else device.minor
        capabilities.append(
            "" if major is None or device.warp == AMD_WARP else f"{major}.{minor or 0}"
        )
    columns = {
        "gpu": [device.id for device in listed],
        "name": pd.array([device.name for device in listed], dtype="string"),
        "compute_capability": pd.array(capabilities, dtype="string"),
        "sm_count": pd.array([device.sms or device.old_sms for device in listed], dtype="Int64"),
        "memory_bytes": pd.array([device.memory for device in listed], dtype="Int64"),
    }
    return tables.DEVICES.make(pd.DataFrame({**columns, "rank": 0}))


def add_memory(memory: Spans, events: list[forms.Memory]) -> None:
    """Append memory events, with totals or (in 2021) without."""
    events = [event for event in events if event.name == forms.MEMORY]
    given = arguments(events, forms.MemoryArguments)
    memory.add(
        events,
        gpu=integers(-1 if a.kind == CPU or a.device is None else a.device for a in given),
        allocated=quantities(a.allocated for a in given),
        # The CPU allocator reserves nothing and reports 0.
        reserved=quantities(None if a.kind == CPU else a.reserved for a in given),
    )


def samples(_: Spans, columns: Columns) -> pd.DataFrame:
    """Return SAMPLES: bytes allocated and reserved on each device after every change, of the CPU as gpu -1."""
    value = np.concatenate([columns["allocated"], columns["reserved"]])
    recorded = value != forms.UNKNOWN
    metric = np.repeat([0, 1], len(columns["allocated"]))[recorded]
    frame = {
        "rank": np.zeros(len(metric), "int32"),
        "gpu": np.tile(columns["gpu"], 2)[recorded],
        "time_ns": np.tile(columns["start_ns"], 2)[recorded],
        "metric": category(metric, METRICS),
        "value": value[recorded].astype(float),
    }
    return tables.SAMPLES.make(pd.DataFrame(frame, copy=False))
