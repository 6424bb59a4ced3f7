"""The JSON of ``rocprofv3 --output-format json``: one object for each process."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from perfkit.errors import ReadError
from perfkit.profile import node_of
from perfkit.readers.rocpd.recording import (
    AGAIN,
    COPIES,
    COUNTED,
    KERNELS,
    REGIONS,
    Agent,
    Columns,
    Recording,
    gpus,
    numbered,
    together,
    units,
)
from perfkit.readers.text import content, head

BEGIN = b'"rocprofiler-sdk-tool"'
LOOKED_AT = 200  # bytes at the start of a file
LARGEST = 1 << 30  # bytes: the file is held whole
TYPES = {1: "CPU", 2: "GPU"}
CALLS = ("hip_api", "hsa_api", "marker_api", "rccl_api", "rocdecode_api", "rocjpeg_api")


class Handle(Struct, gc=False):
    """A number that stands for a device, a stream or a counter."""

    handle: int = 0


class Correlation(Struct, gc=False):
    """What a call shares with what it started."""

    internal: int = 0


class Size(Struct, gc=False):
    """The size of a grid or of a group of threads."""

    x: int = 1
    y: int = 1
    z: int = 1


class Dispatch(Struct):
    """What was launched, where, and with how many threads."""

    agent_id: Handle
    kernel_id: int
    dispatch_id: int
    workgroup_size: Size
    grid_size: Size
    group_segment_size: int = 0


class Ran(Struct):
    """A kernel, a copy or a call: its times, and the numbers of its kind and of its name."""

    start_timestamp: int
    end_timestamp: int
    correlation_id: Correlation
    kind: int = -1
    operation: int = -1
    thread_id: int = -1
    stream_id: Handle = msgspec.field(default_factory=partial(Handle, -1))


class Kernel(Ran, kw_only=True):
    """A kernel that ran."""

    dispatch_info: Dispatch


class Copy(Ran, kw_only=True):
    """A copy from one device to another."""

    src_agent_id: Handle
    dst_agent_id: Handle
    bytes: int | None = None


class Count(Struct):
    """The value of a counter."""

    counter_id: Handle
    value: float


class Counted(Struct):
    """The counters of a kernel."""

    dispatch_data: Kernel
    records: list[Count]


class Device(Struct):
    """A CPU or a GPU of the machine."""

    id: Handle
    type: int
    logical_node_type_id: int = -1
    name: str = ""
    product_name: str = ""
    cu_count: int = 0


class Symbol(Struct):
    """A kernel's name and registers."""

    kernel_id: int
    kernel_name: str = ""
    formatted_kernel_name: str = ""
    arch_vgpr_count: int | None = None
    accum_vgpr_count: int = 0


class Counter(Struct):
    """A counter's name."""

    id: Handle
    name: str


class Node(Struct):
    """The machine."""

    node_name: str = ""


class About(Struct):
    """When a process was recorded, and on which machine."""

    pid: int = -1
    init_time: int = 0
    fini_time: int = 0
    node: Node = msgspec.field(default_factory=Node)


class Names(Struct):
    """The names of one kind of record, by their number."""

    kind: str
    operations: list[str] = []


class Marker(Struct):
    """The text of a range, by what it shares with its record."""

    key: int
    value: str


class Strings(Struct):
    """Names of records and texts of ranges."""

    buffer_records: list[Names] = []
    marker_api: list[Marker] = []


class Records(Struct):
    """What ran, by its kind."""

    kernel_dispatch: list[Kernel] = []
    memory_copy: list[Copy] = []
    hip_api: list[Ran] = []
    hsa_api: list[Ran] = []
    marker_api: list[Ran] = []
    rccl_api: list[Ran] = []
    rocdecode_api: list[Ran] = []
    rocjpeg_api: list[Ran] = []


class Measured(Struct):
    """What was measured of kernels."""

    counter_collection: list[Counted] = []


class Process(Struct):
    """All that was recorded of one process."""

    metadata: About
    agents: list[Device] = []
    counters: list[Counter] = []
    kernel_symbols: list[Symbol] = []
    strings: Strings = msgspec.field(default_factory=Strings)
    buffer_records: Records = msgspec.field(default_factory=Records)
    callback_records: Measured = msgspec.field(default_factory=Measured)


class Results(Struct):
    """The file."""

    processes: list[Process] = msgspec.field(name="rocprofiler-sdk-tool")


def sniff(path: Path) -> bool:
    """Say whether `path` is JSON of rocprofv3, by its first key."""
    start = head(path, LOOKED_AT).lstrip()
    return start.startswith(b"{") and start[1:].lstrip().startswith(BEGIN)


def read(path: Path) -> Recording:
    """Return what a file holds."""
    if path.stat().st_size > LARGEST:
        raise ReadError(f"{path}: JSON of more than {LARGEST:,} bytes is not read. {AGAIN}")
    try:
        processes = msgspec.json.decode(content(path), type=Results).processes
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as e:
        raise ReadError(f"{path}: the JSON is cut or damaged ({str(e)[:200]}). {AGAIN}") from e
    columns = {
        "kernels": (_kernels, KERNELS),
        "copies": (_copies, COPIES),
        "regions": (_regions, REGIONS),
        "counted": (_counted, COUNTED),
    }
    made = {
        kind: together([make(process) for process in processes], names)
        for kind, (make, names) in columns.items()
    }
    rows: dict[str, Callable[[], Columns]] = {
        kind: partial(dict, found) for kind, found in made.items() if found["start"]
    }
    begin, end = _extent(path, processes, made)
    hosts = {process.metadata.node.node_name for process in processes}
    return Recording(
        begin,
        end,
        [agent for process in processes for agent in _agents(process).values()],
        rows,
        set(made["regions"]["category"]),
        "JSON",
        node_of(hosts.pop()) if len(hosts) == 1 else "",
    )


def _extent(path: Path, processes: Sequence[Process], made: dict[str, Columns]) -> tuple[int, int]:
    """Return when the recording began and ended: as the processes say, and around all that ran."""
    about = [process.metadata for process in processes]
    stated = [one for one in about if 0 < one.init_time < one.fini_time]
    begins = [one.init_time for one in stated]
    ends = [one.fini_time for one in stated]
    for columns in made.values():
        begins += [min(columns["start"])] if columns["start"] else []
        ends += [max(columns["end"])] if columns["end"] else []
    if not begins:
        raise ReadError(f"{path}: the file holds nothing that ran. {AGAIN}")
    return min(begins), max(max(ends), min(begins))


def _agents(process: Process) -> dict[int, Agent]:
    found = {}
    for one in process.agents:
        number, name = numbered(one.logical_node_type_id), one.product_name or one.name
        found[one.id.handle] = Agent(TYPES.get(one.type, ""), number, name, units(one.cu_count))
    return found


def _times(process: Process, rows: Sequence[Ran]) -> dict[str, Any]:
    """Return the columns that all that ran has in common."""
    is_linked = any(getattr(process.buffer_records, name) for name in CALLS)
    return {
        "start": [row.start_timestamp for row in rows],
        "end": [row.end_timestamp for row in rows],
        "link": [row.correlation_id.internal if is_linked else None for row in rows],
        "process": [process.metadata.pid] * len(rows),
        "stream": [row.stream_id.handle for row in rows],
    }


def _dispatched(process: Process, rows: Sequence[Kernel]) -> dict[str, Any]:
    symbols = {symbol.kernel_id: _symbol(symbol) for symbol in process.kernel_symbols}
    launched = [row.dispatch_info for row in rows]
    kernels = [symbols.get(one.kernel_id, (None, None)) for one in launched]
    sizes = {
        f"{name}_{axis}": [getattr(getattr(one, name), axis) for one in launched]
        for name in ("workgroup_size", "grid_size")
        for axis in "xyz"
    }
    return {
        **_times(process, rows),
        **sizes,
        "gpu": gpus(_agents(process), [one.agent_id.handle for one in launched]),
        "name": [name for name, _ in kernels],
        "registers": [count for _, count in kernels],
        "group_segment_size": [one.group_segment_size for one in launched],
    }


def _symbol(symbol: Symbol) -> tuple[str | None, int | None]:
    """Return name and registers of a kernel: those of the vector unit and of its accumulators."""
    name = (symbol.formatted_kernel_name or symbol.kernel_name).removesuffix(".kd").strip()
    vector = symbol.arch_vgpr_count
    return name or None, None if vector is None else vector + symbol.accum_vgpr_count


def _kernels(process: Process) -> Columns:
    return _dispatched(process, process.buffer_records.kernel_dispatch)


def _copies(process: Process) -> Columns:
    rows = process.buffer_records.memory_copy
    agents = _agents(process)
    return {
        **_times(process, rows),
        "size": [row.bytes for row in rows],
        "direction": [_named(process, row)[1] for row in rows],
        "source": gpus(agents, [row.src_agent_id.handle for row in rows]),
        "target": gpus(agents, [row.dst_agent_id.handle for row in rows]),
    }


def _named(process: Process, row: Ran) -> tuple[str, str]:
    """Return the kind of a record and its name, both empty where the file does not state them."""
    known = process.strings.buffer_records
    if not 0 <= row.kind < len(known):
        return "", ""
    names = known[row.kind].operations
    return known[row.kind].kind, names[row.operation] if 0 <= row.operation < len(names) else ""


def _regions(process: Process) -> Columns:
    rows = [row for name in CALLS for row in getattr(process.buffer_records, name)]
    named = [_named(process, row) for row in rows]
    text = {marker.key: marker.value for marker in process.strings.marker_api}
    names = [
        text.get(row.correlation_id.internal, name) if kind.startswith("MARKER") else name
        for row, (kind, name) in zip(rows, named, strict=True)
    ]
    return {
        **_times(process, rows),
        "thread": [row.thread_id for row in rows],
        "name": names,
        "category": [kind for kind, _ in named],
    }


def _counted(process: Process) -> Columns:
    collected = process.callback_records.counter_collection
    rows = [one.dispatch_data for one in collected for _ in one.records]
    values = [record for one in collected for record in one.records]
    names = {counter.id.handle: counter.name for counter in process.counters}
    return {
        **_dispatched(process, rows),
        "dispatch": [number for number, one in enumerate(collected) for _ in one.records],
        "counter": [names.get(record.counter_id.handle, "unknown") for record in values],
        "value": [record.value for record in values],
    }
