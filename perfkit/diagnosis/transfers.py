"""Rules about copies, which kind of them holds up the GPU, and about communication that nothing hides.

A copy of at most 64 KB is small (CUDA Runtime API, "API synchronization behavior"). A copy has one
kind, the first of: small, pageable, synchronous, serial. Serial copies of which one direction alone
lasts more than twice as long as the GPU computes are bound by the link: computation can hide less
than half of them (convention). Copies to and from the GPU can overlap each other, so their sum says
nothing. Copies from or to pageable memory are told even where they cost little, with low severity,
as soon as they move half of the bytes: they bind the host as well, and one option mends it. Another
rule covers copies of checkpoints.

Exposed communication above 0.2 of the time exceeds the guide's target of less than 20 to 30 % (step
3). A part of it is waiting for a GPU that is slow, late or has more work
(`perfkit.diagnosis.gpus`), or for a rank that saves a checkpoint. Findings of their own tell these
parts. Only the rest is told as communication.
"""

import re
from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from perfkit.analysis.causes import (
    THREAD,
    covered_by,
    is_sync,
    migrated,
    on_one_axis,
    started_by,
    where,
)
from perfkit.analysis.gaps import GAPS
from perfkit.analysis.intervals import (
    Int,
    Intervals,
    cut,
    devices,
    ends,
    merge,
    subtract,
    total,
    union,
)
from perfkit.analysis.memory import SMALL_BYTES
from perfkit.analysis.stacks import PYTHON_LINE
from perfkit.diagnosis import gpus, launching
from perfkit.diagnosis.finding import Figure, Finding, removing
from perfkit.diagnosis.recording import of_the_time
from perfkit.diagnosis.replayed import idle_after, with_others
from perfkit.diagnosis.rules import by_kind
from perfkit.diagnosis.rules import copies as copy_rules
from perfkit.diagnosis.rules.collectives import EXPOSED_COMMUNICATION
from perfkit.diagnosis.rules.copies import COPIES_BOUND, COPIES_SMALL, EXPOSED_COPY
from perfkit.diagnosis.rules.rule import tell
from perfkit.diagnosis.slowing import PAUSE_NS
from perfkit.diagnosis.stored import kept
from perfkit.diagnosis.timeline import (
    breakdown,
    busy,
    follows,
    idle_gaps,
    idle_parts,
    on_gpus,
    precedes,
    span_ns,
    unrecorded,
)
from perfkit.format import number, percent, size
from perfkit.selection import Selection

NOTABLE = 0.1
MOST_BYTES = 0.5
FEWEST_SMALL = 100  # copies from which on small ones are many (convention)
OUTLASTS = (
    2.0  # times the computation; copies that last longer alone cannot be hidden, only be made fewer
)
LITTLE = 0.01  # of the time
# Idle time before a copy that is gone with it.
OF_COPIES = ("sync", "launch", "cuda_call", "host_code", "kernel_wait", "other")
COPYING = re.compile(r"aten::(?:to|_to_copy|copy_|_?pin_memory|contiguous|empty\w*)")
SAME = 0.9  # of the bytes of the other direction, so that the same data may go there and back (convention)
STAY = "Keep on the GPU what goes there and comes back without need: as many bytes move each way"
FASTER = (
    "best case: the run saves all of this time: the copies become faster, or run at the same time "
    "as kernels"
)
LINK = ("H2D", "D2H")
KINDS = {
    "pageable": "Copies of pageable memory hold up the GPU",
    "small": "Many small copies hold up the GPU",
    "synchronous": "Synchronous copies hold up the GPU",
    "serial": "Copies run while no kernel runs",
}


@kept
def moved(view: Selection) -> pd.DataFrame:
    """Return COPIES in the window, cut at its edges."""
    return cut(view.copies, view.window)


@kept
def kinds(view: Selection) -> pd.Series:
    """Return the kind of each copy over the link that the program asked for, but of checkpoints, by row in `moved`."""
    copies = moved(view)
    copies = copies[
        copies["direction"].isin(LINK) & ~launching.inside(view, copies) & ~migrated(copies)
    ]
    pageable = copies["src_memory"].eq("pageable") | copies["dst_memory"].eq("pageable")
    call = started_by(copies, view.api_calls)
    waits = np.append(where(view.api_calls["name"], is_sync), False)[call]
    kind = np.select(
        [copies["bytes"] <= SMALL_BYTES, pageable, waits],
        ["small", "pageable", "synchronous"],
        "serial",
    )
    return pd.Series(kind, copies.index, dtype=object)


@kept
def to_cpu(view: Selection, *, kind: str) -> bool:
    """Tell whether copies of a kind, of all kinds for none, spend more time on the way to the CPU than to the GPU."""
    found = kinds(view)
    rows = moved(view).loc[found.index[found.eq(kind) | (not kind)]]
    return bool(2 * rows.loc[rows["direction"].eq("D2H"), "dur_ns"].sum() > rows["dur_ns"].sum())


@kept
def exposed(view: Selection) -> dict[str, float]:
    """Return the share of the span in which copies of each kind run beside no kernel."""
    found = kinds(view)
    span = span_ns(view)
    if unrecorded(view) or not span:
        return {}
    return {
        kind: _exposed_ns(view, found.index[found == kind]).sum() / span
        for kind in KINDS
        if found.eq(kind).any()
    }


@kept
def _running(view: Selection) -> tuple[Intervals, Int]:
    """Return when kernels run on each device of `busy`, and the number of the device of each row in `moved`."""
    _, (_, of_kernel, of_copy) = devices(busy(view), view.all_kernels, moved(view))
    return union(*ends(view.all_kernels, view.window), of_kernel), of_copy


def _exposed_ns(view: Selection, rows: pd.Index) -> pd.Series:
    """Return for each GPU of `busy` the time in which these copies run, and neither kernels nor their memsets."""
    running, device = _running(view)
    place = moved(view).index.get_indexer(rows)
    chosen = moved(view).take(place)
    start, end = ends(chosen, view.window)
    is_set = chosen["direction"].eq("memset").to_numpy()
    sets, copied = (union(start[of], end[of], device[place[of]]) for of in (is_set, ~is_set))
    alone = subtract(copied, merge(running, sets))
    return pd.Series(total(alone, len(busy(view))), busy(view).index)


def copy_findings(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """Yield the kinds of copies that hold up the GPU.

    Copies that none of them explains are told together.
    """
    shares = exposed(view)
    for kind, share in shares.items():
        between = _between_small(view) if kind == "small" else 0.0
        if share + between >= NOTABLE or (
            kind == "pageable" and _bytes_frac(view, kind) >= MOST_BYTES
        ):
            yield _finding(view, known, kind, share)
    shares |= {
        kind: share + _between_small(view) for kind, share in shares.items() if kind == "small"
    }
    whole = known.get("exposed_copy_frac")
    rest = 0.0
    if whole is not None:  # less what copies of checkpoints and migrations hold up
        saving = moved(view).index[
            np.flatnonzero(launching.inside(view, moved(view)) | migrated(moved(view)))
        ]
        rest = whole.value - (
            _exposed_ns(view, saving).sum() / span_ns(view) if len(saving) else 0.0
        )
    if (
        whole is not None
        and rest >= NOTABLE
        and not any(share >= NOTABLE for share in shares.values())
    ):
        parts = breakdown(view)
        title = (
            "Copies hold up the GPU "
            f"{on_gpus(view, rest, parts, parts['exposed_copy_ns'] / parts['span_ns'])}"
        )
        gain = removing(rest, _hiding(rest, known))
        text = f"{whole.label}: {whole.definition}."
        yield tell(EXPOSED_COPY, title, text, (whole,), gain)


def _bytes_frac(view: Selection, kind: str) -> float:
    by_kind = moved(view).loc[kinds(view).index, "bytes"].groupby(kinds(view)).sum()
    return float(by_kind.get(kind, 0) / (by_kind.sum() or 1))


def _finding(view: Selection, known: Mapping[str, Figure], kind: str, share: float) -> Finding:
    if kind == "small":
        return _small(view, share)
    title = KINDS[kind]
    rows = moved(view).loc[kinds(view).index[kinds(view) == kind]]
    figure = Figure(
        f"exposed_{kind}_copy_frac",
        f"Exposed {kind} copies",
        share,
        "1",
        (f"share of the span during which {kind} copies between CPU and GPU ran and no kernel"),
        "timeline.breakdown",
    )
    told = on_gpus(view, share, busy(view), _exposed_ns(view, rows.index) / busy(view)["span_ns"])
    title = f"{title} {told}" if share >= NOTABLE else "The program copies pageable memory"
    moves = "One such copy moves" if len(rows) == 1 else f"{len(rows):,} such copies move"
    text = f"{moves} {size(rows['bytes'].sum())}. For {figure.text} of the time no kernel runs meanwhile."
    is_to_cpu = to_cpu(view, kind=kind)
    text += " Most of their time goes from the GPU to the CPU." if is_to_cpu else ""
    kernels = view.all_kernels
    if len(rows) and len(kernels) and ends(rows)[1].max() <= kernels["start_ns"].min():
        text += " All of them run before the first kernel, so a longer run has no more of them."
    computing = known.get("computation_frac")
    one_way = rows.groupby("direction", observed=True)["dur_ns"].sum()
    # Both directions of the link can be busy at once.
    longer = share * float(one_way.max() / one_way.sum())
    if (
        kind == "serial"
        and computing
        and share >= NOTABLE
        and longer > OUTLASTS * computing.value > 0
    ):
        most = str(rows.groupby("direction", observed=True)["bytes"].sum().idxmax()).lower()
        rates = (known[i] for i in (f"{most}_bytes_per_s",) if i in known)
        return _bound((figure, computing, *rates), text, told)
    gain = removing(share, _hiding(share, known) if kind in ("serial", "synchronous") else FASTER)
    ways = rows.groupby("direction", observed=True)["bytes"].sum()
    there_and_back = share >= NOTABLE and len(ways) == 2 and ways.min() >= SAME * ways.max()
    waited = _before(view, moved(view).loc[kinds(view).index]) if there_and_back else {}
    if waited:  # their calls go with them
        reason = f"{FASTER}; data that stay on the GPU save the idle time before them, too"
        gain = with_others(removing(share, reason), waited)
    elif kind == "pageable" and share >= NOTABLE and is_to_cpu and len(view.framework.ops):
        gain = with_others(gain, idle_after(view, rows))
    first = STAY if there_and_back else ""
    return tell(by_kind(copy_rules)[kind], title, text, (figure,), gain, first=first)


def _small(view: Selection, share: float) -> Finding:
    """Many small copies cost their own time, and the idle time between them in which the CPU calls for the next."""
    rows = moved(view).loc[kinds(view).index[kinds(view) == "small"]]
    between = _between_small(view)
    cost = min(share + between, 1.0)
    alone = Figure(
        "exposed_small_copy_frac",
        "Exposed small copies",
        share,
        "1",
        "share of the span during which small copies between CPU and GPU ran and no kernel",
        "timeline.breakdown",
    )
    idle = Figure(
        "small_copy_gap_frac",
        "Idle between small copies",
        between,
        "1",
        (
            "share of the span: gaps under 1 ms between two small copies, in which the CPU calls for "
            "the next"
        ),
        "gaps.idle_gaps",
    )
    evidence = (alone, idle) if between else (alone,)
    bytes_of_one = size(float(rows["bytes"].median()))
    text = (
        f"{len(rows):,} such copies move {size(rows['bytes'].sum())}, {bytes_of_one} in the median. "
        "They run for "
    )
    text += f"{alone.text} of the time while no kernel runs."
    text += (
        f" Between them the GPU is idle {idle.text} of the time: each copy is a call of its own."
        if between
        else ""
    )
    before = _before(view, rows)
    waited = sum(before.values())
    gain = removing(cost, FASTER)
    if waited > between:  # merged copies save the idle time before them, too
        part = 1 - between / waited
        gain = with_others(gain, {cause: share * part for cause, share in before.items()})
    own = busy(view)["span_ns"]
    gaps = small_gaps(view).groupby(["rank", "gpu"])["dur_ns"].sum()
    keys = pd.MultiIndex.from_frame(busy(view)[["rank", "gpu"]])
    of_gpus = _exposed_ns(view, rows.index) + gaps.reindex(keys, fill_value=0).to_numpy()
    title = f"{KINDS['small']} {on_gpus(view, cost, busy(view), of_gpus / own)}"
    return tell(COPIES_SMALL, title, text, evidence, gain)


def _before(view: Selection, rows: pd.DataFrame) -> dict[str, float]:
    """Return the idle time that one of these copies ends, by cause, as shares of the span.

    Nothing of unknown causes. What the CPU does for `PAUSE_NS` or more is no cost of a copy, unless
    operators are recorded and the CPU is in none, nor in a range, that lies in the gap: it then
    allocates or releases the memory of the copies.
    """
    gaps = idle_gaps(view)
    if gaps is None or gaps.empty:
        return {}
    gaps = gaps[precedes(gaps, rows)]
    parts = idle_parts(gaps)
    code = parts["host_code"].to_numpy()
    is_known = len(view.framework.ops) > 0
    alone = np.maximum(code - _in_own_code(view, gaps), 0) if is_known else np.zeros_like(code)
    parts["host_code"] = np.where(code < PAUSE_NS, code, alone)
    shares = parts[list(OF_COPIES)].sum() / span_ns(view)
    return (
        {str(cause): float(share) for cause, share in shares.items() if share}
        if shares.sum() >= LITTLE
        else {}
    )


def _in_own_code(view: Selection, gaps: pd.DataFrame) -> Int:
    """Return how much of each gap lies in ranges, operators and functions of its thread that begin and end in it, ns.

    Operators that copy, or make room for it, do not count.
    """
    ops = view.framework.ops
    working = ops[~where(ops["name"], COPYING.fullmatch)]
    columns = [*THREAD, "start_ns", "dur_ns"]
    calls = view.framework.python_calls
    functions = calls[where(calls["name"], PYTHON_LINE.search)]
    code = pd.concat([view.ranges[columns], working[columns], functions[columns]])
    (start, end), (first, last) = on_one_axis([code, gaps], ["rank"])
    order = np.argsort(first, kind="stable")
    place = np.searchsorted(first[order], start, side="right") - 1
    inside = (place >= 0) & (end <= np.append(last[order], 0)[place])
    return covered_by(gaps, code[inside], THREAD)


@kept
def small_gaps(view: Selection) -> pd.DataFrame:
    """Return the gaps (GAPS) between two small copies, which only the calls for them make, where copies are many."""
    found = kinds(view)
    gaps = idle_gaps(view)
    rows = moved(view).loc[found.index[found.eq("small")]]
    if gaps is None or len(rows) < FEWEST_SMALL:
        return GAPS.empty()
    is_between = follows(gaps, rows) & precedes(gaps, rows)
    return gaps[is_between & gaps["dur_ns"].lt(PAUSE_NS).to_numpy()]


def _between_small(view: Selection) -> float:
    """Return the share of the span in gaps between two small copies."""
    return float(small_gaps(view)["dur_ns"].sum() / span_ns(view))


def idle_causes(view: Selection) -> Mapping[str, float]:
    """Return the share of the span, by cause of idle time, that the finding on small copies tells of."""
    gaps = small_gaps(view)
    if gaps.empty or exposed(view).get("small", 0.0) + _between_small(view) < NOTABLE:
        return {}
    by_cause = idle_parts(gaps).sum()
    return {str(cause): float(ns / span_ns(view)) for cause, ns in by_cause.items() if ns}


def _bound(evidence: tuple[Figure, ...], text: str, told: str) -> Finding:
    """The link bounds the program: computation is too short to hide the copies."""
    alone, computing = evidence[:2]
    times = f"{number(alone.value / computing.value)} times as long as the computation"
    title = f"Copies between CPU and GPU take {told}, {times}"
    text += (
        f" The GPU computes for {computing.text} of the time; overlap can hide copies only in this "
        "time."
    )
    reason = "best case: the data stay on the GPU, and the run saves all of this time"
    gain = removing(alone.value, reason, worst="worst case: none, as all data are new")
    return tell(COPIES_BOUND, title, text, evidence, gain)


def _hiding(share: float, known: Mapping[str, Figure], *, hiding: float = 0.0) -> str:
    """Return what may become of work that takes this share of the time, in which nothing is computed.

    The computation can hide no more than it lasts; for the share `hiding` of the time it hides such
    work already.
    """
    reason = "best case: the run saves all of this time"
    if "computation_frac" not in known:
        return reason
    free = max(known["computation_frac"].value - hiding, 0.0)
    if free >= share:
        return f"{reason}, because computation hides it"
    idle = " and hides no communication yet" if hiding else ""
    limit = f"the GPU computes{idle} for {percent(free)} of the time, and can hide no more"
    return f"{reason}, because less is moved, or faster: {limit}"


def communication_findings(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """Yield the communication that neither computation hides nor another finding explains."""
    whole = known.get("exposed_communication_frac")
    waiting = gpus.waiting(view)
    saving = launching.waiting(view)
    if whole is None or whole.value - waiting < NOTABLE:
        return
    rest = whole.value - waiting
    text = f"{whole.label}: {whole.definition}."
    if waiting > saving:
        text += f" For {percent(waiting - saving)} of the time it only waits for another GPU."
    if saving:
        text += (
            f" For {percent(saving)} of the time another rank saves a checkpoint meanwhile (see "
            "that finding)."
        )
    hidden = known["overlap_frac"].value if "overlap_frac" in known else 0.0
    gain = removing(rest, _hiding(rest, known, hiding=whole.value * hidden / (1 - hidden)))
    several = f", on average over {count} GPUs" if (count := len(busy(view))) > 1 else ""
    title = f"Exposed communication takes {percent(rest)} {of_the_time(view)}{several}"
    evidence = tuple(
        known[i]
        for i in ("exposed_communication_frac", "overlap_frac", "bus_bytes_per_s")
        if i in known
    )
    yield tell(EXPOSED_COMMUNICATION, title, text, evidence, gain)
