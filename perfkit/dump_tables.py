"""The tables of dumps of PyTorch and of NCCL Inspector, as data: collectives by their number, and allocations."""

from perfkit.columns import GPU, LONGEST_NS, RANK, category, moment
from perfkit.schema import Column, Table

GROUP = category("group", "process group by its name, which is the same on all ranks")
ENQUEUED = Table(
    "ENQUEUED",
    "a collective, send or receive that a rank gave to NCCL, as a flight recorder kept it",
    (
        RANK,
        Column("record", "int64", "number of the operation in the order of its rank"),
        GROUP,
        Column("number", "int64", "number of the collective in its group", least=0),
        category("operation", "all_reduce, all_to_all, send 0->3, ...; 0 and 3 are in the group"),
        Column("is_p2p", "bool", "whether it is a send or a receive: number then stands still"),
        Column("batch", "int64", "number of a send or receive; those given together share it"),
        category("state", "scheduled (given to NCCL), started or completed, as was last seen"),
        category("input_sizes", "sizes of its inputs, JSON"),
        category("output_sizes", "sizes of its outputs, JSON"),
        category("dtypes", "types of its inputs, JSON"),
        moment("time_ns", "when the CPU gave it to NCCL, ns since the start of the capture"),
        category("function", "innermost function of the program; missing when not recorded"),
        category("file", "source file of that function; missing when not recorded"),
        Column("line", "Int64", "source line of that function; NA when not recorded"),
    ),
    ("rank", "record"),
)
GROUPS = Table(
    "GROUPS",
    "a process group of collectives, as one of its ranks knows it",
    (
        RANK,
        GROUP,
        category("description", "what the program calls the group; empty if it says nothing"),
        category("members", "ranks of the group in their order in it, JSON"),
        Column("enqueued", "Int64", "number of the last collective given to NCCL; NA if unknown"),
        Column("completed", "Int64", "number of the last collective seen to end; NA if unknown"),
    ),
    ("rank", "group"),
)
TIME = "ns since the start of the capture; NA when not recorded"
EVENT = "in the order in which the allocator of its GPU did them"
ALLOCATIONS = Table(
    "ALLOCATIONS",
    "memory that a program asked PyTorch's caching allocator for",
    (
        *(RANK, GPU),
        Column("event", "int64", f"number of the event, {EVENT}; -1 before the recording"),
        Column("freed_event", "Int64", "event from which on it was free; NA: held to the end"),
        Column("released_event", "Int64", "event at which the program let it go; NA if it did not"),
        Column("time_ns", "Int64", TIME, 0, LONGEST_NS),
        Column("bytes", "int64", "bytes that the program asked for", least=0),
        category("stage", "what the program did: build, forward, backward, optimizer or other"),
        category("function", "innermost function of the program; missing when not recorded"),
        category("file", "source file of that function; missing when not recorded"),
        Column("line", "Int64", "source line of that function; NA when not recorded"),
        category("module", "forward passes around it, the outermost first; missing for none"),
        Column("refused", "bool", "whether the allocator raised an out-of-memory error"),
        Column("device_free_bytes", "Int64", "free on the GPU when refused; NA otherwise", least=0),
    ),
    ("rank", "gpu", "event"),
)
RESERVATIONS = Table(
    "RESERVATIONS",
    "a change of the memory that PyTorch's caching allocator has from the driver",
    (
        *(RANK, GPU),
        Column("event", "int64", f"number of the event, {EVENT}; -1 before the recording"),
        Column("bytes", "int64", "bytes more; below 0 given back to the driver"),
    ),
    ("rank", "gpu", "event"),
)
SEGMENTS = Table(
    "SEGMENTS",
    "a piece of the GPU's memory that the caching allocator has at the end of the recording",
    (
        *(RANK, GPU),
        Column("address", "int64", "address of its first byte", least=0),
        Column("bytes", "int64", "its size", least=0),
        Column("allocated_bytes", "int64", "held by tensors, rounded up by the allocator", least=0),
        Column("largest_free_bytes", "int64", "largest block that no tensor holds", least=0),
        category("kind", "small (for requests of up to 1 MiB) or large"),
    ),
    ("rank", "gpu", "address"),
)
INSPECTED = Table(
    "INSPECTED",
    "a collective, send or receive on one rank, as NCCL Inspector timed it",
    (
        RANK,
        category("group", "id of the communicator, which is the same on all its ranks"),
        Column("member", "int32", "rank within the communicator", least=0),
        Column("number", "int64", "number of the operation in its communicator", least=0),
        category("operation", "all_reduce, all_gather, send, ..."),
        Column("bytes", "int64", "message size as nccl-tests defines it, bytes", least=0),
        Column("ranks", "int64", "ranks of the communicator, count", least=1),
        Column("dur_ns", "int64", "duration with the wait for the last rank, ns", least=0),
        Column("on_gpu", "bool", "whether the GPU measured the time, rather than the CPU"),
        category("algorithm", "ring, tree, ...; missing when not recorded"),
        category("protocol", "LL, LL128, Simple; missing when not recorded"),
    ),
    ("rank", "group", "number"),
)
