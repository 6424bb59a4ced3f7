"""Rules about copies, which kind of them holds up the GPU, and about communication that nothing hides.

A copy of at most 64 KB is small (CUDA Runtime API, "API synchronization behavior"). A copy has one kind, the first of:
small, pageable, synchronous, serial. Copies from or to pageable memory are told even where they cost little, with low
severity, as soon as they move half of the bytes: they bind the host as well, and one option mends it. Copies of
checkpoints are told by the rule for these.

Exposed communication above 0.2 of the time exceeds the guide's target of less than 20 to 30 % (step 3). A part of it is
waiting for a GPU that is slow, late or has more work (`perfkit.diagnosis.gpus`), or for a rank that saves a checkpoint.
Findings of their own tell these parts. Only the rest is told as communication.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace

import numpy as np
import pandas as pd

from perfkit.analysis.causes import is_sync, started_by, where
from perfkit.analysis.intervals import Int, Intervals, cut, devices, ends, merge, subtract, union
from perfkit.analysis.memory import SMALL_BYTES
from perfkit.diagnosis import gpus, launching
from perfkit.diagnosis.finding import Figure, Finding, Gain, kept, removing, severity
from perfkit.diagnosis.rules import tell
from perfkit.diagnosis.speed import migrated
from perfkit.diagnosis.timeline import span_ns, unrecorded
from perfkit.format import percent, size
from perfkit.selection import Selection

NOTABLE, MOST_BYTES = 0.1, 0.5
FASTER = "at most all of this time disappears: other copies of the same bytes are faster, or beside the kernels"
LINK = ("H2D", "D2H")
KINDS = {
    "pageable": "Copies from or to pageable memory hold up the GPU",
    "small": "Many small copies hold up the GPU",
    "synchronous": "Copies that the host waits for hold up the GPU",
    "serial": "Copies run before or after computation, not beside it",
}


@kept
def moved(view: Selection) -> pd.DataFrame:
    """Return COPIES in the window, cut at its edges."""
    return cut(view.copies, view.window)


@kept
def kinds(view: Selection) -> pd.Series:
    """Return the kind of each copy over the link that the program asked for, but of checkpoints, by row in `moved`."""
    copies = moved(view)
    copies = copies[copies["direction"].isin(LINK) & ~launching.inside(view, copies) & ~migrated(copies)]
    pageable = copies["src_memory"].eq("pageable") | copies["dst_memory"].eq("pageable")
    call = started_by(copies, view.api_calls)
    waits = np.append(where(view.api_calls["name"], is_sync), False)[call]
    kind = np.select([copies["bytes"] <= SMALL_BYTES, pageable, waits], ["small", "pageable", "synchronous"], "serial")
    return pd.Series(kind, copies.index, dtype=object)


@kept
def exposed(view: Selection) -> dict[str, float]:
    """Return the share of the span in which copies of each kind run beside no kernel."""
    found, span = kinds(view), span_ns(view)
    if unrecorded(view) or not span:
        return {}
    return {kind: _exposed_ns(view, found.index[found == kind]) / span for kind in KINDS if found.eq(kind).any()}


@kept
def _running(view: Selection) -> tuple[Intervals, Int]:
    """Return when kernels run on each device, and the number of the device of each row in `moved`."""
    _, (of_kernel, of_copy) = devices(view.all_kernels, moved(view))
    return union(*ends(view.all_kernels, view.window), of_kernel), of_copy


def _exposed_ns(view: Selection, rows: pd.Index) -> int:
    """Return the time in which these copies run and neither kernels nor their memsets do: `timeline.breakdown`."""
    running, device = _running(view)
    place = moved(view).index.get_indexer(rows)
    chosen = moved(view).take(place)
    memset, (start, end) = chosen["direction"].eq("memset").to_numpy(), ends(chosen, view.window)
    sets, copied = (union(start[of], end[of], device[place[of]]) for of in (memset, ~memset))
    alone = subtract(copied, merge(running, sets))
    return int((alone.end - alone.start).sum())


def copy_findings(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """Yield the kinds of copies that hold up the GPU; copies that none of them explains are told together."""
    shares = exposed(view)
    for kind, share in shares.items():
        if share >= NOTABLE or (kind == "pageable" and _bytes_frac(view, kind) >= MOST_BYTES):
            yield _finding(view, known, kind, share)
    whole = known.get("exposed_copy_frac")
    rest = 0.0
    if whole is not None:  # less what copies of checkpoints and migrations hold up
        saving = moved(view).index[np.flatnonzero(launching.inside(view, moved(view)) | migrated(moved(view)))]
        rest = whole.value - (_exposed_ns(view, saving) / span_ns(view) if len(saving) else 0.0)
    if whole is not None and rest >= NOTABLE and not any(share >= NOTABLE for share in shares.values()):
        title = f"Copies hold up the GPU: {percent(rest)} of the time"
        gain = _overlapped(rest, known)
        text = f"{whole.label}: {whole.definition}."
        level = severity(rest)
        yield tell("exposed_copy", title, level, text, (whole,), gain)


def _bytes_frac(view: Selection, kind: str) -> float:
    by_kind = moved(view).loc[kinds(view).index, "bytes"].groupby(kinds(view)).sum()
    return float(by_kind.get(kind, 0) / (by_kind.sum() or 1))


def _finding(view: Selection, known: Mapping[str, Figure], kind: str, share: float) -> Finding:
    title = KINDS[kind]
    rows = moved(view).loc[kinds(view).index[kinds(view) == kind]]
    definition = f"time in which {kind} copies between host and GPU run and no kernel, over the span"
    figure = Figure(f"exposed_{kind}_copy_frac", f"Exposed {kind} copies", share, "1", definition, "timeline.breakdown")
    title = f"{title}: {figure.text} of the time" if share >= NOTABLE else "Data are copied from or to pageable memory"
    many = f"{len(rows):,} such copies move {size(rows['bytes'].sum())}"
    text = f"{many}; for {figure.text} of the time no kernel runs beside them."
    gain = _overlapped(share, known) if kind in ("serial", "synchronous") else removing(share, FASTER)
    return tell(f"copies_{kind}", title, severity(share), text, (figure,), gain)


def _overlapped(share: float, known: Mapping[str, Figure]) -> Gain:
    """Return the gain of hiding this share of the time behind the computation, which can hide no more than it lasts."""
    computing = known["computation_frac"].value if "computation_frac" in known else share
    hidden = min(share, computing)
    less = "" if hidden == share else f", as long as the GPU computes ({percent(computing)} of the time)"
    return replace(removing(hidden, f"at most this time is hidden behind computation{less}"), share=share)


def communication_findings(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """Yield the communication that neither computation hides nor another finding explains."""
    whole = known.get("exposed_communication_frac")
    waiting, saving = gpus.waiting(view), launching.waiting(view)
    if whole is None or whole.value - waiting < NOTABLE:
        return
    rest = whole.value - waiting
    text = f"{whole.label}: {whole.definition}."
    if waiting > saving:
        text += f" Of it {percent(waiting - saving)} of the time is waiting for another GPU."
    if saving:
        text += f" For {percent(saving)} of the time another rank saves a checkpoint meanwhile, a finding of its own."
    gain = _overlapped(rest, known)
    title = f"Communication is not hidden by computation: {percent(rest)} of the time"
    evidence = tuple(known[i] for i in ("exposed_communication_frac", "overlap_frac", "bus_bytes_per_s") if i in known)
    level = severity(rest)
    yield tell("exposed_communication", title, level, text, evidence, gain)
