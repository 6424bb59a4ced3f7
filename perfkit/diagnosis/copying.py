"""Rules about copies: which kind of them holds up the GPU, and what that kind asks for.

Thresholds: copies beside no kernel for a tenth of the span are worth a look and three tenths are severe (conventions);
a copy of at most 64 KB is small (CUDA Runtime API, "API synchronization behavior"). A copy has one kind, the first of:
small, pageable, synchronous, serial. Copies from or to pageable memory are told even where they cost little, with low
severity, as soon as they move half of the bytes: they bind the host as well, and one option mends it. Copies of
checkpoints are told by the rule for these.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import pandas as pd

from perfkit.analysis.calls import is_sync, started_by, where
from perfkit.analysis.intervals import Int, Intervals, merge, subtract, union
from perfkit.analysis.transfers import SMALL_BYTES
from perfkit.analysis.window import cut, devices, ends
from perfkit.diagnosis import advice, checkpointing
from perfkit.diagnosis.figures import span_ns, unrecorded
from perfkit.diagnosis.finding import Figure, Finding, removing, severity
from perfkit.diagnosis.kept import kept
from perfkit.format import percent, size
from perfkit.selection import Selection

NOTABLE, MOST_BYTES = 0.1, 0.5
LINK = ("H2D", "D2H")
KINDS = {
    "pageable": ("Copies from or to pageable memory hold up the GPU", advice.PAGEABLE),
    "small": ("Many small copies hold up the GPU", advice.SMALL_COPIES),
    "synchronous": ("Copies that the host waits for hold up the GPU", advice.SYNC_COPIES),
    "serial": ("Copies run before or after computation, not beside it", advice.COPIES),
}


@kept
def moved(view: Selection) -> pd.DataFrame:
    """Return COPIES in the window, cut at its edges."""
    return cut(view.copies, view.window)


@kept
def kinds(view: Selection) -> pd.Series:
    """Return the kind of each copy over the link to the host, but of checkpoints, by its row in `moved`."""
    copies = moved(view)
    copies = copies[copies["direction"].isin(LINK) & ~checkpointing.inside(view, copies)]
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


def findings(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """Yield the kinds of copies that hold up the GPU; copies that none of them explains are told together."""
    shares = exposed(view)
    for kind, share in shares.items():
        if share >= NOTABLE or (kind == "pageable" and _bytes_frac(view, kind) >= MOST_BYTES):
            yield _finding(view, kind, share)
    whole = known.get("exposed_copy_frac")
    rest = 0.0 if whole is None else whole.value - _saved(view)
    if whole is not None and rest >= NOTABLE and not any(share >= NOTABLE for share in shares.values()):
        title = f"Copies hold up the GPU: {percent(rest)} of the time"
        gain = removing(rest, "at most all of this time disappears")
        text = f"{whole.label}: {whole.definition}."
        level = severity(rest)
        yield Finding("exposed_copy", title, level, text, (whole,), "under 5 %", gain, advice.COPIES)


def _saved(view: Selection) -> float:
    """Return the share of the span in which copies of checkpoints run beside no kernel."""
    rows = np.flatnonzero(checkpointing.inside(view, moved(view)))
    return _exposed_ns(view, moved(view).index[rows]) / span_ns(view) if len(rows) else 0.0


def _bytes_frac(view: Selection, kind: str) -> float:
    by_kind = moved(view).loc[kinds(view).index, "bytes"].groupby(kinds(view)).sum()
    return float(by_kind.get(kind, 0) / (by_kind.sum() or 1))


def _finding(view: Selection, kind: str, share: float) -> Finding:
    title, remedies = KINDS[kind]
    rows = moved(view).loc[kinds(view).index[kinds(view) == kind]]
    definition = f"time in which {kind} copies between host and GPU run and no kernel, over the span"
    figure = Figure(f"exposed_{kind}_copy_frac", f"Exposed {kind} copies", share, "1", definition, "timeline.breakdown")
    title = f"{title}: {figure.text} of the time" if share >= NOTABLE else "Data are copied from or to pageable memory"
    many = f"{len(rows):,} such copies move {size(rows['bytes'].sum())}"
    text = f"{many}; for {figure.text} of the time no kernel runs beside them."
    gain = removing(share, "at most all of this time disappears")
    return Finding(f"copies_{kind}", title, severity(share), text, (figure,), "under 5 %", gain, remedies)
