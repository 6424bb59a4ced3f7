"""Rules about ranks: one that computes longer than the others, and communication that is more than waiting for it.

Thresholds: a tenth is worth a look and three tenths are severe (conventions); exposed communication above 0.2 of the
time exceeds the guide's target of less than 20 to 30 % (step 3). On average a rank waits for the slowest by what that
computes above the mean: this part of the communication is told as imbalance, what is waiting for a rank that saves a
checkpoint as that, and only the rest as communication.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import pandas as pd

from perfkit.analysis import collectives, timeline
from perfkit.analysis.window import Window
from perfkit.diagnosis import advice, checkpointing
from perfkit.diagnosis.figures import busy, unrecorded
from perfkit.diagnosis.finding import Figure, Finding, removing, severity
from perfkit.diagnosis.kept import kept
from perfkit.format import percent
from perfkit.selection import Selection

NOTABLE = 0.1


def figures(view: Selection) -> Iterator[Figure]:
    """Yield how much longer the slowest rank computes than the mean; nothing for one rank."""
    view = view.framework
    if unrecorded(view):
        return
    window = common_window(view)
    by_rank = computing(view) if window and len(set(busy(view)["rank"])) > 1 else pd.DataFrame()
    if len(by_rank) and by_rank["computation_ns"].sum():
        row = collectives.imbalance(by_rank, value="computation_ns").iloc[0]
        definition = (
            f"largest computing time of a rank (rank {int(row['max_rank'])}) over the mean, less 1, in the time that "
            "all ranks recorded"
        )
        value = float(row["imbalance_frac"])
        yield Figure("rank_imbalance_frac", "Imbalance of ranks", value, "1", definition, "collectives.imbalance")


def common_window(view: Selection) -> Window | None:
    """Return the window, else the time in which all ranks were recorded; None if there is none, or no common clock."""
    if not view.run.is_on_one_clock:
        return None
    if view.window is not None:
        return view.window
    found = busy(view)
    first = found.groupby("rank")["start_ns"].min().max()
    last = (found["start_ns"] + found["span_ns"]).groupby(found["rank"]).max().min()
    return (int(first), int(last)) if first < last else None


@kept
def computing(view: Selection) -> pd.DataFrame:
    """Return each rank's computing time in the common window, and its length, ns, both summed over its GPUs."""
    window = common_window(view)
    parts = timeline.breakdown(view.kernels, view.copies, window=window, others=view.other_kernels)
    return parts.groupby("rank", as_index=False)[["computation_ns", "span_ns"]].sum()


def findings(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    """Yield what ranks wait for: the slowest of them, and the exchange itself."""
    yield from _ranks(view, known)
    yield from _communication(view, known)


def excess(view: Selection, known: Mapping[str, Figure]) -> float:
    """Return what the slowest rank computes above the mean, as a share of the time; 0 for even ranks, or one."""
    uneven, window = known.get("rank_imbalance_frac"), common_window(view.framework)
    if uneven is None or uneven.value < NOTABLE or window is None:
        return 0.0
    ranks = computing(view.framework)
    slowest = ranks.iloc[int(ranks["computation_ns"].to_numpy().argmax())]
    return float((slowest["computation_ns"] - ranks["computation_ns"].mean()) / slowest["span_ns"])


def _ranks(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    share = excess(view, known)
    if not share:
        return
    uneven = known["rank_imbalance_frac"]
    title = f"The slowest rank computes {uneven.text} longer than the mean"
    text = f"{uneven.label}: {uneven.definition}. Ranks that meet in collectives wait for the slowest."
    gain = removing(share, "at most all ranks take the mean time, if they wait for each other")
    yield Finding("ranks", title, severity(share), text, (uneven,), "under 10 %", gain, advice.BALANCE)


def _communication(view: Selection, known: Mapping[str, Figure]) -> Iterator[Finding]:
    whole = known.get("exposed_communication_frac")
    waiting, saving = excess(view, known), checkpointing.waiting(view)
    if whole is None or whole.value - waiting - saving < NOTABLE:
        return
    rest = whole.value - waiting - saving
    text = f"{whole.label}: {whole.definition}."
    if waiting:
        text += f" Of it {percent(waiting)} of the time is waiting for the slowest rank, a finding of its own."
    if saving:
        text += f" For {percent(saving)} of the time another rank saves a checkpoint meanwhile, a finding of its own."
    gain = removing(rest, "at most all of this time disappears")
    title = f"Communication is not hidden by computation: {percent(rest)} of the time"
    evidence = tuple(known[i] for i in ("exposed_communication_frac", "overlap_frac", "bus_bytes_per_s") if i in known)
    level = severity(rest)
    yield Finding("exposed_communication", title, level, text, evidence, "under 20 %", gain, advice.COMMUNICATION)
