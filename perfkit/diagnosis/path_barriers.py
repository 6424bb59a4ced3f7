"""How long do threads of OpenMP spin at barriers, in a profile of call paths?"""

import math
from collections.abc import Iterator, Mapping

import pandas as pd

from perfkit.analysis import calltree
from perfkit.diagnosis.finding import Figure, Finding, Gain, severity
from perfkit.diagnosis.rules.call_paths import PATHS_BARRIERS
from perfkit.diagnosis.rules.rule import tell
from perfkit.format import percent, printable
from perfkit.selection import Selection

WAITING = 0.05  # of all threads' time at barriers, worth a look (convention)


def findings(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """Name the region at whose end threads of OpenMP wait longest for the last one of their team."""
    name = calltree.host_metric(view.run.call_metrics)
    if not name or "paths_host_ns" not in known:
        return
    waits = calltree.paths.regions(view.run.calltree, view.run.call_metrics, metric=name)
    whole = float(waits["share_frac"].sum())
    if whole < WAITING:
        return
    share = Figure(
        "paths_barrier_frac",
        "OpenMP barriers",
        whole,
        "1",
        "share of all threads' time that they spin in barriers of OpenMP",
        "calltree.paths.regions",
    )
    evidence = [share, known["paths_host_ns"]]
    text = "Threads that have finished their part of a region spin there until the last one has."
    longest = waits.iloc[0]
    place = "" if pd.isna(longest["name"]) else printable(calltree.called(str(longest["name"])), 80)
    most = percent(longest["share_frac"])
    if place:
        text += f" Most of this waiting is in {place}: {most} of all threads' time."
    else:
        text += (
            f" For {most} of all threads' time they wait outside of the program's functions: for "
            "their next region, "
        )
        text += "while the main thread works alone."
    if asleep := known.get("paths_asleep_frac"):
        evidence.append(asleep)
        text += f" {asleep.label}: {asleep.text} ({asleep.definition})."
    title = f"Threads of OpenMP wait at barriers for {share.text} of all threads' time"
    reason = (
        "the times are sums over threads: they do not show how long the run waits for the slowest "
        "thread"
    )
    gain = Gain(1.0, math.inf, reason)
    yield tell(
        PATHS_BARRIERS, title, text, tuple(evidence), gain, level=severity(whole), place=place
    )
