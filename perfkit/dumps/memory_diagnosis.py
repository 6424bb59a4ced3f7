"""What `perfkit.diagnosis` asks of memory snapshots: their rules, figures and findings."""

import math
from collections.abc import Callable, Iterator, Mapping

import pandas as pd

from perfkit.diagnosis.finding import Figure, Finding, Gain
from perfkit.diagnosis.rules.rule import Fact, Rule, Step, tell
from perfkit.diagnosis.sources import Source
from perfkit.diagnosis.stored import kept
from perfkit.dumps import held
from perfkit.dumps import memory_rules as RULES  # noqa: F401  a part of an extension
from perfkit.dumps.memory_rules import (
    FRAGMENTS,
    MEMORY_ACTIVATIONS,
    MEMORY_FRAGMENTED,
    MEMORY_GROWS,
    MEMORY_REFUSED,
    MEMORY_STATES,
    OTHERS,
    SMALLER_BATCH,
)
from perfkit.format import percent, printable, size
from perfkit.selection import Selection

HALF = 0.5
NOTABLE, SMALL = 0.1, 0.01  # of the peak memory
UNUSED = 0.2  # of the reserved memory
FEWEST_STEPS = 4  # with the first, which makes the optimizer state
LEAST_GROWTH = 1 << 20  # bytes
NAME = 120  # characters of a place
NO_GAIN = Gain(1.0, math.inf, "a snapshot shows memory and no times")
STATES = (held.BEFORE, "parameters", "gradients", "optimizer state")
PEAKS = "held.peaks"
KINDS = "held.kinds"
REFUSED = "held.refused"
STEPS = "held.steps"
# Label, definition and source of each figure, by its id after "snapshot_".
WORDS = {
    "peak_bytes": ("Peak memory", "most memory that tensors of one GPU hold at once", PEAKS),
    "reserved_bytes": (
        "Peak reserved memory",
        "most memory that the allocator of this GPU has from the driver",
        PEAKS,
    ),
    "before_bytes": (
        "Memory from before",
        "memory held at the peak since before the recording, of which no line is known",
        PEAKS,
    ),
    "states_frac": (
        "Model and optimizer",
        "share of the peak memory that parameters, gradients, optimizer state and memory from "
        "before the recording hold",
        KINDS,
    ),
    "activations_frac": (
        "Activations",
        "share of the peak memory that was allocated in forward passes",
        KINDS,
    ),
    "unused_frac": (
        "Reserved, not used",
        "share of the peak reserved memory above the peak memory of tensors",
        PEAKS,
    ),
    "refused_bytes": (
        "Refused allocation",
        "memory that the program asked for when the error was raised",
        REFUSED,
    ),
    "refused_held_bytes": (
        "Held when refused",
        "memory that tensors held when the error was raised",
        REFUSED,
    ),
    "refused_free_bytes": (
        "Free when refused",
        "memory of the GPU that no process held when the error was raised",
        REFUSED,
    ),
    "growth_bytes": (
        "Growth per step",
        "median growth of the least memory held in a step, without the first step",
        STEPS,
    ),
}
SOURCES = {
    PEAKS: Source(("ALLOCATIONS", "RESERVATIONS"), PEAKS),
    KINDS: Source(("ALLOCATIONS",), KINDS),
    REFUSED: Source(("ALLOCATIONS", "RESERVATIONS"), REFUSED),
    STEPS: Source(("ALLOCATIONS",), STEPS),
}


def states(_: Selection) -> pd.DataFrame:
    """Return no states: a snapshot does not say how long GPUs were in one."""
    return pd.DataFrame()


@kept
def peak(view: Selection) -> pd.Series:
    """Return the row of `held.peaks` of the GPU that holds most."""
    peaks = held.peaks(view.run.allocations, view.run.reservations)
    return peaks.iloc[int(peaks["bytes"].argmax())]


@kept
def kinds(view: Selection) -> pd.DataFrame:
    """Return `held.kinds` of the run."""
    return held.kinds(view.run.allocations)


@kept
def at_peak(view: Selection) -> pd.DataFrame:
    """Return what the GPU that holds most holds at its peak, with the kind of each allocation."""
    highest = peak(view)
    alive = held.alive(view.run.allocations, highest["rank"], highest["gpu"], highest["event"])
    return alive.assign(kind=kinds(view)["kind"]).reset_index(drop=True)


@kept
def shares(view: Selection) -> pd.Series:
    """Return the share of the memory at the peak that each kind of `held.KINDS` holds."""
    rows = at_peak(view)
    return rows.groupby("kind", observed=False)["bytes"].sum() / max(rows["bytes"].sum(), 1)


def figures(view: Selection) -> Iterator[Figure]:
    """Yield the peak of the GPU that holds most, and what holds it."""
    if not _is_recorded(view):
        return
    highest = peak(view)
    of_peak = shares(view)
    yield _figure("peak_bytes", highest["bytes"])
    yield _figure("reserved_bytes", highest["reserved_bytes"])
    yield _figure("before_bytes", highest["before_bytes"])
    yield _figure("states_frac", of_peak[list(STATES)].sum())
    yield _figure("activations_frac", of_peak["activations"])
    if highest["reserved_bytes"] > 0:
        unused = 1 - highest["bytes"] / highest["reserved_bytes"]
        yield _figure("unused_frac", max(unused, 0.0))


def findings(view: Selection) -> Iterator[Finding]:
    """Yield an out-of-memory error, growth, fragmentation, and what fills the memory."""
    if not _is_recorded(view):
        return
    known = {figure.id: figure for figure in figures(view)}
    errors = held.refused(view.run.allocations, view.run.reservations)
    if len(errors):
        yield _refused(view, errors)
    yield from _grows(view)
    unused = known.get("snapshot_unused_frac")
    if unused and unused.value >= UNUSED:
        yield _fragmented(known)
    if known["snapshot_activations_frac"].value >= HALF:
        yield _filled(view, MEMORY_ACTIVATIONS, known)
    elif known["snapshot_states_frac"].value >= HALF:
        yield _filled(view, MEMORY_STATES, known)


def _is_recorded(view: Selection) -> bool:
    rows = view.run.allocations
    return len(rows) > 0 and not bool(rows["refused"].all())


def _figure(name: str, value: float) -> Figure:
    label, definition, source = WORDS[name]
    unit = "1" if name.endswith("_frac") else "bytes"
    return Figure(f"snapshot_{name}", label, float(value), unit, definition, source)


def _refused(view: Selection, errors: pd.DataFrame) -> Finding:
    first = errors.iloc[0]
    asked, inside = float(first["bytes"]), float(first["held_bytes"])
    had, free = float(first["reserved_bytes"]), float(first["device_free_bytes"])
    evidence = (
        _figure("refused_bytes", asked),
        _figure("refused_held_bytes", inside),
        _figure("refused_free_bytes", free),
    )
    place = _place(first)
    title = f"PyTorch ran out of memory when {place or 'the program'} asked for {size(asked)}"
    cause, remedy = _cause(asked, had - inside, free)
    text = f"Tensors held {size(inside)}, and the allocator had {size(had)}. {cause}"
    text = f"{text} {_largest(view)}"
    return tell(
        MEMORY_REFUSED,
        title,
        text,
        evidence,
        NO_GAIN,
        level="high",
        first=remedy.text,
        place=place,
    )


def _cause(asked: float, unused: float, free: float) -> tuple[str, Step]:
    """Return why an allocation was refused, and what to do first."""
    if free >= asked:
        return (
            f"The GPU had {size(free)} free: a limit of the process, or of the allocator, "
            "refused the memory, not the GPU."
        ), OTHERS
    if unused >= asked:
        return (
            f"The allocator had {size(unused)} that no tensor held, but in pieces that were too "
            "small: fragmentation."
        ), FRAGMENTS
    return f"The GPU had only {size(free)} free: it was full.", SMALLER_BATCH


def _grows(view: Selection) -> Iterator[Finding]:
    """Yield that a GPU keeps more after each step."""
    steps = held.steps(view.run.allocations)
    for _, own in steps.groupby(held.DEVICE):
        gpu = own["gpu"].iloc[0]
        more = own["bytes"].diff().iloc[2:]
        if len(own) < FEWEST_STEPS or not more.ge(LEAST_GROWTH).all():
            continue
        median = float(more.median())
        growth = _figure("growth_bytes", median)
        kept_rows = held.at_end(view.run.allocations)
        largest = held.places(kept_rows[kept_rows["stage"].isin(["forward", "other"])]).head(1)
        where = printable(largest["place"].iloc[0], NAME) if len(largest) else ""
        title = f"GPU {gpu} keeps {size(median)} more after each step"
        text = f"The least memory of a step grew in all of {len(more)} steps."
        if where:
            text += (
                f" Most of what is held at the end, outside of backward passes, comes from {where}."
            )
        yield tell(MEMORY_GROWS, title, text, (growth,), NO_GAIN, level="high", place=where)
        return


def _fragmented(known: Mapping[str, Figure]) -> Finding:
    evidence = tuple(known[id] for id in MEMORY_FRAGMENTED.evidence)
    peak_text = known["snapshot_peak_bytes"].text
    title = (
        f"The allocator reserves {evidence[1].text}, of which tensors never use {evidence[0].text}"
    )
    text = (
        f"Tensors held at most {peak_text} at once. The rest lies between them or is kept for "
        "later."
    )
    return tell(MEMORY_FRAGMENTED, title, text, evidence, NO_GAIN, level="medium")


def _filled(view: Selection, rule: Rule, known: Mapping[str, Figure]) -> Finding:
    evidence = tuple(known[id] for id in rule.evidence)
    named = ["activations"] if rule is MEMORY_ACTIVATIONS else [*STATES]
    of_kinds = shares(view)[named].sort_values(ascending=False, kind="stable")
    large = [str(kind) for kind, share in of_kinds.items() if share >= NOTABLE]
    what = " and ".join(filter(None, (", ".join(large[:-1]), large[-1])))
    what = what.replace(held.BEFORE, f"memory from {held.BEFORE}")
    holds = "holds" if large == [held.BEFORE] else "hold"
    title = (
        f"{what[0].upper()}{what[1:]} {holds} {evidence[0].text} of the peak memory of "
        f"{evidence[1].text}"
    )
    rows = at_peak(view)
    lines = held.places(rows[rows["kind"].isin(named) & rows["file"].notna()]).head(1)
    place = printable(lines["place"].iloc[0], NAME) if len(lines) else ""
    return tell(rule, title, _largest(view), evidence, NO_GAIN, level="medium", place=place)


def _largest(view: Selection) -> str:
    """Return the kinds that hold most at the peak, and the lines that asked for most."""
    of_kinds = shares(view).sort_values(ascending=False, kind="stable")
    parts = [f"{kind} {percent(share)}" for kind, share in of_kinds.items() if share >= SMALL]
    rows = at_peak(view)
    lines = held.places(rows[rows["file"].notna()]).head(2)
    said = []
    for place, kind, held_bytes in zip(lines["place"], lines["kind"], lines["bytes"], strict=True):
        said.append(f"{printable(place, NAME)} ({size(held_bytes)}, {kind})")
    from_lines = f" The lines with most are {' and '.join(said)}." if said else ""
    return (
        f"At the peak{_moment(view)}: {', '.join(parts)}.{from_lines}{_module(rows)}{_late(view)}"
    )


def _late(view: Selection) -> str:
    """Return how much of the peak the program had let go before, in a sentence; empty for little."""
    rows = at_peak(view)
    late = rows.loc[rows["released_event"].le(peak(view)["event"]).fillna(False), "bytes"].sum()
    share = late / max(int(rows["bytes"].sum()), 1)
    if share < SMALL:
        return ""
    return f" The program had let go of {percent(share)}, but another stream still used it."


def _module(rows: pd.DataFrame) -> str:
    """Return the innermost module that holds half of the memory at the peak, in a sentence; empty for none."""
    whole = max(int(rows["bytes"].sum()), 1)
    table = held.modules(rows)
    large = table[table["bytes"].ge(HALF * whole)].sort_values("depth", kind="stable").tail(1)
    if large.empty:
        return ""
    share = percent(float(large["bytes"].iloc[0]) / whole)
    return f" The forward pass at {printable(large['module'].iloc[0], NAME)} holds {share}."


def _moment(view: Selection) -> str:
    """Return in which range and operator of a trace of the same run the peak is; empty without such a trace."""
    highest = peak(view)
    rows = view.run.allocations
    at_peak = rows["event"].eq(highest["event"]) & rows["gpu"].eq(highest["gpu"])
    times = rows.loc[at_peak & rows["rank"].eq(highest["rank"]), "time_ns"].dropna()
    if times.empty:
        return ""
    time = int(times.iloc[0])
    tables = (view.run.ranges, view.run.ops)  # both on the CPU's clock, as the allocation is
    names = [held.around(table, highest["rank"], time) for table in tables]
    parts = [printable(name, NAME) for name in names if name]
    return f", in {' and '.join(parts)}" if parts else ""


def _place(row: pd.Series) -> str:
    if pd.isna(row["file"]):
        return ""
    return printable(f"{row['file']}:{row['line']}", NAME)


def _is_held_before(view: Selection) -> bool:
    """Tell whether half of the memory at the peak is from before the recording, which does not show what it is."""
    return _is_recorded(view) and bool(shares(view)[held.BEFORE] >= HALF)


def _has_old_gradients(view: Selection) -> bool:
    """Tell whether gradients are held at a peak of a forward pass: they are of the step before."""
    if not _is_recorded(view) or shares(view)["gradients"] < NOTABLE:
        return False
    rows = at_peak(view)
    return bool(rows.loc[rows["event"].eq(peak(view)["event"]), "stage"].eq("forward").any())


FACTS: Mapping[Fact, Callable[[Selection], bool]] = {
    Fact.HELD_BEFORE: _is_held_before,
    Fact.OLD_GRADIENTS: _has_old_gradients,
}
