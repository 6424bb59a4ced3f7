"""What holds the memory of a GPU, and when is it most?

The level is what the program asked for and has not freed: memory from before the recording, plus
what was allocated since. Memory is free when it can be used again, not when the program lets go.
Each allocation has a kind, by its stage and by how long it lives:

- parameters: made or moved with a module, and held to the end.
- activations: asked for in a forward pass. gradients: asked for in a backward pass, and held when an optimizer's step
  begins. optimizer state: asked for in such a step, and held to the end of that step.
- temporary: freed within its backward pass or optimizer's step.
- before the recording: no line is known. It is parameters, and optimizer state if steps ran before.
- other: asked for outside of modules, such as inputs and the loss.

A step ends with the last allocation of an optimizer, before the next one of a forward pass.
"""

import itertools
from collections.abc import Sequence

import numpy as np
import pandas as pd

from perfkit.dumps.frames import BELOW
from perfkit.schema import Column, Table
from perfkit.tables import ALLOCATIONS, GPU, RANK, RESERVATIONS, SEGMENTS

DEVICE = ["rank", "gpu"]
SPAN = [*DEVICE, "event", "freed_event", "bytes"]
BEFORE = "before the recording"
KINDS = (
    BEFORE,
    "parameters",
    "gradients",
    "optimizer state",
    "activations",
    "temporary",
    "other",
)
OF_KINDS = pd.CategoricalDtype([*KINDS])
STAGES = ("build", "forward", "backward", "optimizer")
SIZES = 20  # of the largest allocations
MOMENTS = 240  # at which a picture shows what is held
NEVER = np.iinfo("int64").max  # the event at which memory is freed that is held to the end
NO_LINE = "(no line of Python)"
PEAK = Table(
    "PEAK",
    "the memory of a GPU when most is held",
    (
        *(RANK, GPU),
        Column("event", "int64", "number of the first event after which most is held"),
        Column("bytes", "int64", "held then, bytes"),
        Column("before_bytes", "int64", "held then since before the recording, bytes"),
        Column("reserved_bytes", "int64", "most that the allocator had from the driver, bytes"),
        Column("end_bytes", "int64", "held at the end of the recording, bytes"),
    ),
    ("rank", "gpu"),
)


def levels(allocations: pd.DataFrame) -> pd.DataFrame:
    """Return the bytes held after each event of each GPU that changes them: rank, gpu, event, bytes.

    Event -1 is the begin of the recording.
    """
    rows = _held(allocations, SPAN)
    freed = rows[rows["freed_event"].ne(NEVER)]
    changes = pd.concat(
        [
            rows[[*DEVICE, "event", "bytes"]],
            freed[DEVICE].assign(event=freed["freed_event"], bytes=-freed["bytes"]),
        ]
    )
    return _running(changes)


def _running(changes: pd.DataFrame) -> pd.DataFrame:
    """Return the running sum of changes in bytes over the events of each GPU."""
    found = [pd.DataFrame(columns=[*DEVICE, "event", "bytes"], dtype="int64")]
    for rank, gpu in _devices(changes):
        own = _of(changes, rank, gpu)
        order = np.argsort(own["event"].to_numpy(), kind="stable")
        event, total = own["event"].to_numpy()[order], own["bytes"].to_numpy()[order].cumsum()
        is_last = np.append(event[1:] != event[:-1], True)
        running = {"event": event[is_last], "bytes": total[is_last]}
        found.append(pd.DataFrame({"rank": rank, "gpu": gpu, **running}))
    return pd.concat(found[1:] or found, ignore_index=True)


def _of(rows: pd.DataFrame, rank: int, gpu: int) -> pd.DataFrame:
    return rows[rows["rank"].eq(rank) & rows["gpu"].eq(gpu)]


def _devices(rows: pd.DataFrame) -> list[tuple[int, int]]:
    ranks, gpus = (sorted(rows[name].unique().tolist()) for name in DEVICE)
    pairs = itertools.product(ranks, gpus)
    return [pair for pair in pairs if len(ranks) == 1 or len(_of(rows, *pair))]


def _held(
    allocations: pd.DataFrame, columns: Sequence[str] = ALLOCATIONS.column_names
) -> pd.DataFrame:
    """Return what was not refused, with NEVER for what is held to the end."""
    rows = ALLOCATIONS.check(allocations)
    rows = rows.loc[~rows["refused"], [*columns]]
    return rows.assign(freed_event=rows["freed_event"].fillna(NEVER).astype("int64"))


def peaks(allocations: pd.DataFrame, reservations: pd.DataFrame) -> pd.DataFrame:
    """Return PEAK: when each GPU holds most, and how much."""
    level = levels(allocations)
    reserved = _reserved(reservations)
    rows = []
    for rank, gpu in _devices(level):
        own, had = _of(level, rank, gpu), _of(reserved, rank, gpu)["bytes"]
        highest = own.iloc[int(own["bytes"].argmax())]
        at_peak = alive(allocations, rank, gpu, int(highest["event"]))
        before = int(at_peak.loc[at_peak["event"].lt(0), "bytes"].sum())
        taken = int(had.max()) if len(had) else 0
        end = int(own["bytes"].iloc[-1])
        rows.append((rank, gpu, highest["event"], highest["bytes"], before, taken, end))
    return PEAK.make(pd.DataFrame(rows, columns=PEAK.column_names))


def _reserved(reservations: pd.DataFrame) -> pd.DataFrame:
    """Return the bytes that the allocator has from the driver after each event of each GPU."""
    return _running(RESERVATIONS.check(reservations)[[*DEVICE, "event", "bytes"]])


def alive(allocations: pd.DataFrame, rank: int, gpu: int, event: int) -> pd.DataFrame:
    """Return the allocations that a GPU holds after an event."""
    own = _of(_held(allocations), rank, gpu)
    return own[own["event"].le(event) & own["freed_event"].gt(event)]


def at_end(allocations: pd.DataFrame) -> pd.DataFrame:
    """Return what was allocated in the recording and is held to its end."""
    rows = _held(allocations)
    return rows[rows["event"].ge(0) & rows["freed_event"].eq(NEVER)]


def places(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the bytes of allocations by the line that asked for them, the most first.

    `place` (file:line function, or NO_LINE), `kind` where the rows have one, `bytes`, `count`.
    """
    table = rows.assign(place=_named(rows))
    keys = ["place", *(["kind"] if "kind" in rows else [])]
    by = table.groupby(keys, observed=True)["bytes"].agg(bytes="sum", count="size").reset_index()
    return by.sort_values(["bytes", *keys], ascending=[False, *[True] * len(keys)])


def _named(rows: pd.DataFrame) -> pd.Series:
    """Return the line that asked for each allocation: file:line function, or NO_LINE."""
    file = rows["file"].astype("string")
    text = file + ":" + rows["line"].astype("string") + " " + rows["function"].astype("string")
    return text.where(file.notna(), NO_LINE)


def modules(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the bytes of allocations by the module in whose forward pass they were asked for, the most first.

    `module`: the line that its forward pass had reached, below those of the modules around it;
    `depth`: how many these are; `bytes` and `count`: with all modules below. What has no module,
    such as gradients, is left out.
    """
    own = rows.groupby("module", observed=True)["bytes"].agg(bytes="sum", count="size")
    paths = [(str(path).split(BELOW), *sums) for path, *sums in own.itertuples()]
    found = [
        (BELOW.join(path[: depth + 1]), depth, held_bytes, count)
        for path, held_bytes, count in paths
        for depth in range(len(path))
    ]
    table = pd.DataFrame(found, columns=["module", "depth", "bytes", "count"])
    sums = table.groupby(["module", "depth"], as_index=False)[["bytes", "count"]].sum()
    return sums.sort_values(["bytes", "depth", "module"], ascending=[False, True, True])


def largest(allocations: pd.DataFrame) -> pd.DataFrame:
    """Return the largest single allocations of the recording, the largest first.

    `place`, `stage`, `bytes` of each one, and the `count` of equal ones.
    """
    rows = _held(allocations)
    rows = rows[rows["event"].ge(0)]
    rows = rows[rows["bytes"].isin(np.unique(rows["bytes"])[-SIZES:])]
    keys = ["bytes", "place", "stage"]
    by = rows.assign(place=_named(rows)).groupby(keys, observed=True).size()
    found = by.rename("count").reset_index().sort_values(keys, ascending=[False, True, True])
    return found[["place", "stage", "bytes", "count"]]


def late(allocations: pd.DataFrame) -> pd.DataFrame:
    """Return by line what other events lie between "let go" and "free" of: another stream still used it.

    As `places`.
    """
    rows = _held(allocations)
    return places(rows[(rows["freed_event"] - rows["released_event"]).gt(1).fillna(False)])


def stages(allocations: pd.DataFrame) -> pd.DataFrame:
    """Return the most that each GPU holds when each stage has got memory: rank, gpu, stage, event, bytes."""
    rows = _held(allocations, [*SPAN, "stage"])
    rows = rows[rows["event"].ge(0)]
    level = levels(allocations)
    found = [pd.DataFrame(columns=[*DEVICE, "stage", "event", "bytes"])]
    for rank, gpu in _devices(rows):
        own, of = _of(rows, rank, gpu), _of(level, rank, gpu)
        after = of["bytes"].to_numpy()[np.searchsorted(of["event"], own["event"])]
        then = own[[*DEVICE, "stage", "event"]].assign(bytes=after)
        found.append(then.loc[then.groupby("stage", observed=True)["bytes"].idxmax()])
    return pd.concat(found[1:] or found, ignore_index=True)


def at_the_end(segments: pd.DataFrame) -> pd.DataFrame:
    """Return what the allocator of each GPU has at the end of the recording, bytes.

    `reserved_bytes` from the driver; `allocated_bytes`, held by tensors; `returnable_bytes`, in
    segments without a tensor; `not_returnable_bytes`, free beside tensors; `largest_free_bytes`, the
    largest free block.
    """
    rows = SEGMENTS.check(segments)
    unused = rows["bytes"].where(rows["allocated_bytes"].eq(0), 0)
    by = rows.assign(unused=unused).groupby(DEVICE, as_index=False)
    found = by.agg(
        reserved_bytes=("bytes", "sum"),
        allocated_bytes=("allocated_bytes", "sum"),
        returnable_bytes=("unused", "sum"),
        largest_free_bytes=("largest_free_bytes", "max"),
    )
    free = found["reserved_bytes"] - found["allocated_bytes"]
    found.insert(5, "not_returnable_bytes", free - found["returnable_bytes"])
    return found


def around(table: pd.DataFrame, rank: int, time_ns: int) -> str:
    """Return the name of the innermost row of RANGES or OPS in which a moment of a rank lies; empty for none."""
    begun = table[table["rank"].eq(rank) & table["start_ns"].le(time_ns)]
    open_then = begun[(begun["start_ns"] + begun["dur_ns"]).gt(time_ns)]
    if open_then.empty:
        return ""
    return str(open_then["name"].iloc[int(open_then["start_ns"].argmax())])


def kinds(allocations: pd.DataFrame) -> pd.DataFrame:
    """Return what was not refused: rank, gpu, event, freed_event, bytes, stage, and `kind`, one of KINDS."""
    rows = _held(allocations, [*SPAN, "stage"])
    kind = pd.Series(0, rows.index)
    for rank, gpu in _devices(rows):
        own = _of(rows, rank, gpu)
        runs = _runs(own)
        freed = own["freed_event"].to_numpy()
        event = own["event"].to_numpy()
        stage = {name: own["stage"].eq(name).to_numpy() for name in STAGES}
        outlives_step = freed > _next(runs["max"].to_numpy("int64"), event)
        outlives_pass = freed > _next(_begins(runs), event)
        is_kind = {
            BEFORE: event < 0,
            "parameters": stage["build"] & (freed == NEVER),
            "activations": stage["forward"],
            "gradients": stage["backward"] & outlives_pass,
            "optimizer state": stage["optimizer"] & outlives_step,
            "temporary": stage["backward"] | stage["optimizer"] | stage["build"],
        }
        codes = [KINDS.index(name) for name in is_kind]
        kind[own.index] = np.select([*is_kind.values()], codes, KINDS.index("other"))
    return rows.assign(kind=pd.Categorical.from_codes(kind.to_numpy(), dtype=OF_KINDS))


def _runs(own: pd.DataFrame) -> pd.DataFrame:
    """Return the first and the last event of each stretch of optimizer allocations of a GPU."""
    among = own["event"].ge(0) & own["stage"].isin(["forward", "backward", "optimizer"])
    made = own.loc[among, ["event", "stage"]].sort_values("event", kind="stable")
    is_step = made["stage"].eq("optimizer")
    number = is_step.ne(is_step.shift()).cumsum()
    return made[is_step].groupby(number)["event"].agg(["min", "max"])


def _begins(runs: pd.DataFrame) -> np.ndarray:
    """Return when optimizers' steps begin; of a recording without them the end of the backward passes."""
    begins = runs["min"].to_numpy("int64")
    return begins if len(begins) else np.array([NEVER - 1])


def _next(moments: np.ndarray, event: np.ndarray) -> np.ndarray:
    """Return the first of some moments at or after each event; after the last one the end of the recording."""
    return np.append(moments, NEVER - 1)[np.searchsorted(moments, event)]


def steps(allocations: pd.DataFrame) -> pd.DataFrame:
    """Return the least that each GPU holds in each step: rank, gpu, step, bytes.

    What lives for a pass is gone then. A program that keeps more each step grows every time.
    """
    rows = _held(allocations, [*SPAN, "stage"])
    level = levels(allocations)
    found = []
    for rank, gpu in _devices(rows):
        ends = _runs(_of(rows, rank, gpu))["max"].to_numpy("int64")
        of = _of(level, rank, gpu)
        of = of[of["event"].ge(0)]
        step = np.searchsorted(ends, of["event"].to_numpy())
        least = of.groupby(step)["bytes"].min().iloc[: len(ends)]
        found += [(rank, gpu, number, held) for number, held in enumerate(least.tolist())]
    return pd.DataFrame(found, columns=[*DEVICE, "step", "bytes"])


def refused(allocations: pd.DataFrame, reservations: pd.DataFrame) -> pd.DataFrame:
    """Return each out-of-memory error, with what its GPU held and had reserved at that moment.

    The row of ALLOCATIONS; `held_bytes`, `reserved_bytes`.
    """
    rows = ALLOCATIONS.check(allocations)
    rows = rows[rows["refused"]]
    level, reserved = levels(allocations), _reserved(reservations)
    moments = list(zip(rows["rank"], rows["gpu"], rows["event"], strict=True))
    return rows.assign(
        held_bytes=[_before(level, *moment) for moment in moments],
        reserved_bytes=[_before(reserved, *moment) for moment in moments],
    )


def _before(level: pd.DataFrame, rank: int, gpu: int, event: int) -> int:
    """Return the level of a GPU right before an event."""
    own = _of(level, rank, gpu)
    earlier = own.loc[own["event"].lt(event), "bytes"]
    return int(earlier.iloc[-1]) if len(earlier) else 0


def over_time(allocations: pd.DataFrame) -> pd.DataFrame:
    """Return the bytes of each kind that each GPU holds at equally spaced events: rank, gpu, event, kind, bytes."""
    rows = kinds(allocations)
    found = []
    for rank, gpu in _devices(rows):
        own = _of(rows, rank, gpu)
        freed = own["freed_event"].to_numpy()
        last = max(int(own["event"].max()), int(freed[freed < NEVER].max(initial=0)))
        moments = np.unique(np.linspace(0, last, MOMENTS).astype(np.int64))
        for kind, of_kind in own.groupby("kind", observed=True):
            begun = _sums(of_kind["event"].to_numpy(), of_kind["bytes"].to_numpy(), moments)
            gone = _sums(of_kind["freed_event"].to_numpy(), of_kind["bytes"].to_numpy(), moments)
            frame = {"event": moments, "kind": str(kind), "bytes": begun - gone}
            found.append(pd.DataFrame({"rank": rank, "gpu": gpu, **frame}))
    return pd.concat(found, ignore_index=True) if found else pd.DataFrame()


def _sums(events: np.ndarray, sizes: np.ndarray, moments: np.ndarray) -> np.ndarray:
    """Return the sum of the sizes of all events up to each moment."""
    order = np.argsort(events, kind="stable")
    total = np.append(0, np.cumsum(sizes[order]))
    return total[np.searchsorted(events[order], moments, side="right")]
