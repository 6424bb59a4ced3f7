"""Rule about checkpoints and other files that are written while the GPU waits: the second half of bottleneck 4.

Thresholds: checkpoints should take less than a twentieth of the time (convention; three tenths are severe and a tenth
is worth a look, as everywhere). A state is saved fast enough at 2.33 GB/s, the guide's 140 GB in 60 s. What a
checkpoint explains is no second finding: idle time, copies of the state, and collectives of other ranks that last until
the rank that saves comes back.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit.analysis import gaps, timeline
from perfkit.analysis.checkpoints import CHECKPOINTS, detect
from perfkit.diagnosis import advice
from perfkit.diagnosis.figures import causes, detected, idle_gaps, span_ns, unrecorded
from perfkit.diagnosis.finding import Figure, Finding, removing, severity
from perfkit.diagnosis.kept import kept
from perfkit.format import percent, printable, size
from perfkit.selection import Selection
from perfkit.tables import API_CALLS

NOTABLE = 0.05
FAST_BYTES_PER_S = 140e9 / 60
TITLES = {
    "range": "Checkpoints stop the GPU",
    "file": "Writing files stops the GPU",
    "copies": "Long pauses after copies to the host stop the GPU, as checkpoints do",
}
SOURCE = "checkpoints.detect"


@kept
def checkpoints(view: Selection) -> pd.DataFrame:
    """Return the checkpoints of a selection; none where they take too little time for a finding."""
    found = _detected(view)
    return found if len(found) and _share(view, found) >= NOTABLE else CHECKPOINTS.empty()


def _detected(view: Selection) -> pd.DataFrame:
    """Return `analysis.checkpoints.detect` of a selection; empty where it is not known when the GPU worked."""
    if unrecorded(view) or view.all_kernels.empty:
        return CHECKPOINTS.empty()
    return detect(
        view.all_kernels,
        view.copies,
        view.api_calls,
        ranges=view.ranges,
        python_calls=view.python_calls,
        os_calls=view.os_calls,
        steps=detected(view),
        window=view.window,
    )


def told(view: Selection) -> dict[str, float]:
    """Return the share of the span, by cause of idle time, that lies in checkpoints; "idle" where no cause is known."""
    found, span = checkpoints(view), span_ns(view)
    if found.empty:
        return {}
    idle = idle_gaps(view)
    if idle is None:
        idle = gaps.idle_gaps(view.all_kernels, view.copies, API_CALLS.empty(), window=view.window)
        return {"idle": float(idle.loc[inside(view, idle), "dur_ns"].sum() / span)}
    rows = idle[inside(view, idle)]
    by_cause = rows["dur_ns"].groupby(causes(rows), observed=True).sum()
    return {str(cause): float(ns / span) for cause, ns in by_cause.items()}


def inside(view: Selection, rows: pd.DataFrame) -> NDArray[np.bool_]:
    """Tell which rows of a table with rank, gpu and start_ns begin in a checkpoint of their device."""
    found = checkpoints(view)
    if found.empty or rows.empty:
        return np.zeros(len(rows), bool)
    keys = ["rank", "gpu", "start_ns"]
    places = rows[keys].assign(row=np.arange(len(rows))).sort_values("start_ns", kind="stable")
    until = found[keys].assign(end_ns=found["start_ns"] + found["dur_ns"]).sort_values("start_ns")
    joined = pd.merge_asof(places, until, on="start_ns", by=["rank", "gpu"]).sort_values("row")
    return np.asarray(joined["start_ns"] < joined["end_ns"])


@kept
def waiting(view: Selection) -> float:
    """Return the share of the span in which ranks only communicate while another one saves."""
    return _waiting_ns(view, checkpoints(view)) / max(span_ns(view), 1)


def _share(view: Selection, found: pd.DataFrame) -> float:
    return (int(found["dur_ns"].sum()) + _waiting_ns(view, found)) / max(span_ns(view), 1)


def _waiting_ns(view: Selection, found: pd.DataFrame) -> int:
    """Return the time in which ranks only communicate while another one saves, summed over their GPUs."""
    total = 0
    if found.empty or view.all_kernels["rank"].nunique() < 2:
        return total
    for rank, start, dur in found[["rank", "start_ns", "dur_ns"]].itertuples(index=False):
        parts = timeline.breakdown(view.all_kernels, view.copies, window=(int(start), int(start + dur)))
        total += int(parts.loc[parts["rank"] != rank, "exposed_communication_ns"].sum())
    return total


def findings(view: Selection) -> Iterator[Finding]:
    """Yield what it costs that state is saved, or files are written, while the GPU waits."""
    found = checkpoints(view)
    if found.empty:
        return
    share = min(_share(view, found), 1.0)
    evidence = tuple(_evidence(view, found, share))
    witness = str(found.groupby("witness", observed=True)["dur_ns"].sum().idxmax())
    title = f"{TITLES[witness]}: {percent(share)} of the time"
    gain = removing(share, "at most all of this time disappears; copying the state to the host remains")
    text = _described(view, found, {figure.id: figure for figure in evidence})
    yield Finding("checkpointing", title, severity(share), text, evidence, "under 5 %", gain, advice.CHECKPOINTING)


def _evidence(view: Selection, found: pd.DataFrame, share: float) -> Iterator[Figure]:
    lasted = found["dur_ns"]
    what = "stretches without a kernel in which state is saved or files are written"
    waits = ", and of other ranks' collectives during them" if waiting(view) else ""
    yield Figure("checkpoint_frac", "Checkpoints", share, "1", f"time of {what}{waits}, over the span", SOURCE)
    yield Figure("checkpoint_count", "Checkpoints seen", len(found), "count", f"{what}, of all GPUs", SOURCE)
    yield Figure("checkpoint_ns", "A checkpoint", float(lasted.median()), "ns", f"median length of {what}", SOURCE)
    apart = distances(view)
    if len(apart):
        definition = "median number of steps from one checkpoint of a rank to its next"
        yield Figure("checkpoint_steps_count", "Steps between", float(np.median(apart)), "count", definition, SOURCE)
    saved = found[found["bytes"] > 0]
    if len(saved):
        value = float(saved["bytes"].median())
        definition = "median of the bytes copied to the host in a checkpoint"
        yield Figure("checkpoint_bytes", "State saved", value, "bytes", definition, SOURCE)
        rate = float((saved["bytes"] / saved["dur_ns"]).median() * 1e9)
        definition = "these bytes over the length of the checkpoint; the guide asks for 140 GB in 60 s, 2.3 GB/s"
        yield Figure("checkpoint_bytes_per_s", "Rate of saving", rate, "bytes/s", definition, SOURCE)
    for column, label, by in (
        ("named", "Named as saving", "ranges or functions whose name says that they save"),
        ("written", "Writing files", "calls of the operating system that write files"),
    ):
        part = float(found[f"{column}_ns"].sum() / lasted.sum())
        if part:
            yield Figure(f"checkpoint_{column}_frac", label, part, "1", f"share of this time inside {by}", SOURCE)


def distances(view: Selection) -> NDArray[np.int64]:
    """Return the numbers of steps from each checkpoint of a rank to its next, all ranks together."""
    known = checkpoints(view)[["rank", "step"]]
    known = known[known["step"] >= 0].drop_duplicates()
    return np.asarray(known.groupby("rank")["step"].diff().dropna(), np.int64)


def _described(view: Selection, found: pd.DataFrame, known: dict[str, Figure]) -> str:
    first = found.iloc[0]
    text = f"{len(found):,} of them, {known['checkpoint_ns'].text} in the median"
    text += f", {known['checkpoint_steps_count'].text} steps apart" if "checkpoint_steps_count" in known else ""
    text += f"; the first begins at {first['start_ns'] / 1e9:.3f} s."
    if "checkpoint_bytes" in known:
        rate = known["checkpoint_bytes_per_s"]
        slower = "slower" if rate.value < FAST_BYTES_PER_S else "no slower"
        text += f" {known['checkpoint_bytes'].text} are copied to the host in each, {rate.text} of its time: {slower}"
        text += f" than the guide's {size(FAST_BYTES_PER_S)}/s."
    names = found.loc[found["name"] != "", "name"]
    if len(names):
        text += f" The program was inside “{printable(str(names.iloc[0]), 100)}”."
    return text
