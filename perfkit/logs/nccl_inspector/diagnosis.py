"""What `perfkit.diagnosis` asks of NCCL Inspector: its rule, figures and finding."""

import math
from collections.abc import Callable, Iterator, Mapping

import pandas as pd

from perfkit.diagnosis.finding import Figure, Finding, Gain
from perfkit.diagnosis.rules.rule import Fact, tell
from perfkit.diagnosis.sources import Source
from perfkit.diagnosis.stored import kept
from perfkit.format import duration, printable, size
from perfkit.logs.nccl_inspector import rules as RULES  # noqa: F401  a part of an extension
from perfkit.logs.nccl_inspector.rules import INSPECTED_LATE
from perfkit.logs.nccl_inspector.transfers import transfers as of_messages
from perfkit.selection import Selection

ANALYSIS = "transfers.transfers"
FACTS: Mapping[Fact, Callable[[Selection], bool]] = {}
SOURCES = {ANALYSIS: Source(("INSPECTED",), ANALYSIS)}
NO_GAIN = Gain(1.0, math.inf, "the log does not say how long a step takes")
NAME = 40  # characters of an operation's name


def states(_: Selection) -> pd.DataFrame:
    """Return no states: the lines do not say how long GPUs were in one."""
    return pd.DataFrame()


@kept
def transfers(view: Selection) -> pd.DataFrame:
    """Return `transfers.transfers` of a run."""
    return of_messages(view.run.inspected)


def figures(view: Selection) -> Iterator[Figure]:
    """Yield the bus bandwidth of each operation with its largest message."""
    if view.run.inspected.empty:
        return
    known = transfers(view).dropna(subset="bus_bytes_per_s")
    largest = known.sort_values("bytes", kind="stable").drop_duplicates("operation", keep="last")
    for row in largest.to_dict("records"):
        operation = printable(row["operation"], NAME)
        label = f"{operation.replace('_', '-').capitalize()} bandwidth"
        definition = (
            f"bus bandwidth of messages of {size(row['bytes'])} on {row['ranks']} ranks, from the "
            "shortest time over the ranks, which holds no wait"
        )
        rate = float(row["bus_bytes_per_s"])
        yield Figure(
            f"baseline_{operation}_bytes_per_s", label, rate, "bytes/s", definition, ANALYSIS
        )


def findings(view: Selection) -> Iterator[Finding]:
    """Yield the rank that comes late to the collective with the longest wait."""
    if view.run.inspected.empty:
        return
    late = transfers(view).dropna(subset="late_member")
    for row in late.nlargest(1, "wait_ns").to_dict("records"):
        yield _late({str(key): value for key, value in row.items()})


def _late(row: Mapping[str, object]) -> Finding:
    member, operation = row["late_member"], printable(row["operation"], NAME)
    message = f"{operation} of {size(float(str(row['bytes'])))}"
    wait = Figure(
        "inspected_wait_ns",
        "Wait for the late rank",
        float(str(row["wait_ns"])),
        "ns",
        f"median of the longest time over the ranks less the shortest one, {message}",
        ANALYSIS,
    )
    share = Figure(
        "inspected_late_frac",
        "Collectives with this rank last",
        float(str(row["late_frac"])),
        "1",
        f"share of the collectives in which the rank came last, {message}",
        ANALYSIS,
    )
    rate = float(str(row["bus_bytes_per_s"]))
    title = f"Rank {member} comes {wait.text} late to {message}"
    text = (
        "The other ranks wait for it. The transfer itself takes "
        f"{duration(float(str(row['transfer_ns'])))}, a bus bandwidth of {size(rate)}/s."
    )
    return tell(INSPECTED_LATE, title, text, (wait, share), NO_GAIN, level="high")
