"""Where did the time of each GPU go? The third question of a diagnosis, for recordings with a timeline.

Each nanosecond of each GPU is in exactly one line (`analysis.ledger`), in the phase in which it lies
(`analysis.phases`). Idle time has a cause and an owner (`analysis.owners`).
"""

from collections.abc import Sequence

import pandas as pd

from perfkit.analysis import ledger as analysis_ledger
from perfkit.diagnosis import phases, recording, timeline
from perfkit.diagnosis.stored import kept
from perfkit.selection import Selection

COLLECTOR = "collector"


@kept
def booked(view: Selection) -> pd.DataFrame:
    """Return `analysis.ledger.booked` of a selection: each stretch of each GPU with its line."""
    layers: list[pd.DataFrame | Sequence[pd.DataFrame]] = [
        *_doubted(view),
        analysis_ledger.computation(view.kernels, view.copies),
        analysis_ledger.collectives(view.kernels),
        analysis_ledger.others(view.other_kernels),
        analysis_ledger.moved(view.copies),
        *_idle(view),
    ]
    devices = analysis_ledger.spans(view.all_kernels, view.copies, window=view.measured)
    return analysis_ledger.booked(layers, devices)


def _doubted(view: Selection) -> list[pd.DataFrame]:
    """Return the layers of unknown time, by what makes it doubtful, and of the profiler's own time."""
    layers = []
    for doubt in recording.doubts(view):
        kind = COLLECTOR if doubt.kind is recording.Kind.COLLECTOR else "unknown"
        layers.append(analysis_ledger.layer(doubt.stretches, kind, doubt.kind.value, None))
    return layers


def _idle(view: Selection) -> list[pd.DataFrame]:
    """Return the layers of idle time: what the profiler took, and what each owner has of the rest.

    Where the recording lacks operations of the GPU, nobody knows whether it was idle: the rest is unknown.
    """
    owned = timeline.owned(view)
    is_collector = owned["owner_kind"].eq(COLLECTOR).to_numpy()
    taken = owned[is_collector]
    rest = owned[~is_collector]
    cause = (
        rest["detail"].astype(object).where(rest["detail"].notna(), rest["cause"].astype(object))
    )
    kind = "unknown" if timeline.unrecorded(view) else "idle"
    return [
        analysis_ledger.layer(taken, COLLECTOR, "profiler", taken["owner"]),
        analysis_ledger.layer(rest, kind, cause, rest["owner"]),
    ]


@kept
def ledger(view: Selection) -> pd.DataFrame:
    """Return `analysis.ledger.LEDGER` of a selection: the time of each line of each GPU in each phase."""
    return analysis_ledger.ledger(booked(view), phases.booked(view))


def judged(view: Selection) -> pd.DataFrame:
    """Return the lines of the ledger that are judged: those of pauses that happen once are not."""
    table = ledger(view)
    return table[table["phase"] != "pause"].reset_index(drop=True)


def lines(view: Selection) -> pd.DataFrame:
    """Return the ledger with the share of its GPU's time that each line has (`share_frac`), the longest first."""
    table = ledger(view)
    whole = table.groupby(["rank", "gpu"])["ns"].transform("sum")
    shares = table.assign(share_frac=table["ns"] / whole)
    return shares.sort_values("ns", ascending=False, kind="stable", ignore_index=True)
