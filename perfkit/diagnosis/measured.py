"""What limits the launches that counters measured, and what makes them slow?

Where the GPU computes less than half of the time, faster kernels cannot help much.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace

import pandas as pd

from perfkit.analysis import limiters, warps
from perfkit.analysis.grouping import largest
from perfkit.diagnosis.blocks import small_blocks_text, small_blocks_title
from perfkit.diagnosis.finding import Figure, Finding, Gain, removing
from perfkit.diagnosis.kernels import (
    BETTER_HALF,
    _launches,
    _of_launch,
    _under_roof,
    limited,
    losses,
    roof,
)
from perfkit.diagnosis.limiting import (
    busy_units,
    helps_against,
    inside,
    limits_named,
    unit_name,
    with_these_instructions,
)
from perfkit.diagnosis.rules import by_kind, counters
from perfkit.diagnosis.rules import limits as limit_rules
from perfkit.diagnosis.rules.counters import KERNEL_STALL
from perfkit.diagnosis.rules.limits import LOW_OCCUPANCY, SMALL_BLOCKS
from perfkit.diagnosis.rules.rule import tell
from perfkit.diagnosis.stored import kept
from perfkit.format import number, percent, printable
from perfkit.names.parts import stall as stall_name
from perfkit.selection import Selection

# The kind of a rule about what limits kernels, and the limits that it tells of, as
# `limiters.LIMITS` names them.
GROUPS = {
    "latency": ("small grid", "latency"),
    "memory": limiters.MEMORIES,
    "cache": limiters.CACHES,
    "compute": limiters.SM_UNITS,
}
KERNELS_ALONE = "the measured kernels"
# Nsight Compute, rule CPIStall: over 0.3 of the latency, issue slots used below 0.8
STALLED = 0.3
SATURATED = 0.8
LARGEST_BLOCK = 1024  # threads, of all GPUs
MORE_WORK = "Give each launch more work: compute more data at a time, or fuse launches that follow each other"
FEW_WARPS = 0.5  # the guide's target for occupancy is above 50 %
SPILLED = Gain(
    1.0, math.inf, "spilled registers make much of the memory traffic", whole=KERNELS_ALONE
)
SHORT_NS = (
    10_000  # all of a shorter kernel is latency where its grid does not fill the GPU (convention)
)
NOTABLE = 0.1  # of the measured time (convention)


def findings(view: Selection, known: dict[str, Figure], *, peaks: str = "") -> Iterator[Finding]:
    """Yield what limits the kernels that were measured, if one kind of limit covers at least half of their time.

    Where the GPU computes less than half of the time, faster kernels cannot help much, and severity
    is low.
    """
    if view.launches.empty:
        return
    limits = limited(view, peaks=peaks)
    limits = limits[limits["dur_ns"].notna()]
    total = float(limits["dur_ns"].sum())
    waiting = list(_waiting(view, known))
    for bound, group in GROUPS.items():
        rows = limits[limits["limit"].isin(group)]
        share = float(rows["dur_ns"].sum() / total) if total else 0.0
        if share < BETTER_HALF:
            continue
        limit = _limit(view, bound, share, rows, known, peaks)
        if bound == "latency":
            limit, waiting = _of_latency(view, limit, rows, waiting, known)
        yield limit
    yield from _small_blocks(view, known)
    yield from _causes(view, known)
    yield from waiting


def _of_latency(
    view: Selection,
    latency: Finding,
    rows: pd.DataFrame,
    waiting: list[Finding],
    known: dict[str, Figure],
) -> tuple[Finding, list[Finding]]:
    """Return one finding for all that shows why launches wait, and the stalls that are of other launches.

    Too few warps come first: they make each stall cost time. Then comes the stall of these
    launches. Where a unit works enough, more warps bring nothing.
    """
    stalled, _ = _stalled(view)
    is_same = pd.Series(_launches(rows).isin(_launches(stalled)), rows.index)
    is_of_these = rows.loc[is_same, "dur_ns"].sum() >= BETTER_HALF * rows["dur_ns"].sum()
    stall = waiting if is_of_these else []
    causes = [*_few_warps(view, known), *stall]
    if not causes:
        return latency, waiting
    first, *others = causes
    others.append(latency)
    evidence = dict.fromkeys(figure for one in (first, *others) for figure in one.evidence)
    said = [first.explanation, *(f"{one.title}." for one in others)]
    is_bounded = latency.gain.is_known and not first.gain.is_known
    told = replace(
        first,
        explanation=" ".join(said),
        evidence=tuple(evidence),
        gain=latency.gain if is_bounded else first.gain,
        place=first.place or latency.place,
    )
    return told, [] if is_of_these else waiting


def _small_blocks(view: Selection, known: dict[str, Figure]) -> Iterator[Finding]:
    """Blocks of a few threads leave lanes idle; of blocks of one warp an SM may hold too few."""
    launches = view.launches[
        view.launches["dur_ns"].notna() & view.launches["block_threads"].notna()
    ]
    threads = launches["block_threads"].astype("int64")
    occupied = launches["theoretical_occupancy_frac"] < FEW_WARPS
    rows = launches[(threads <= limiters.FEW_THREADS) | ((threads <= warps.WARP) & occupied)]
    total = float(view.launches["dur_ns"].sum())
    if rows.empty or rows["dur_ns"].sum() < NOTABLE * total:
        return
    longest = largest(rows, "dur_ns")
    share = float(rows["dur_ns"].sum() / total)
    count = int(longest["block_threads"])
    part = Figure(
        "small_blocks_frac",
        "Time of small blocks",
        share,
        "1",
        (
            "share of the measured time: time of launches with blocks of a few threads, or of one warp"
        ),
        "LAUNCHES",
    )
    size = Figure(
        "small_blocks_count",
        "Threads per block",
        float(count),
        "count",
        "threads of a block of the longest of these launches",
        "LAUNCHES",
    )
    place = f"kernel {printable(longest['name'], 80)}"
    title = small_blocks_title(count, part.text, "the measured time")
    text = f"The longest of them is {printable(longest['name'], 80)}. "
    text += small_blocks_text(count, _residency(view, longest))
    level = _level(known)
    limit = str(_of_launch(limited(view), longest)["limit"].iloc[0])
    if limit in (*limiters.SM_UNITS, *limiters.CACHES, *limiters.MEMORIES):
        level = "low"
        text += (
            f" More warps help little as long as another limit remains: {inside(unit_name(limit))}."
        )
    gain = _unbounded("only a measurement can show the gain of more warps")
    every = count * int(longest["grid_blocks"]) if pd.notna(longest["grid_blocks"]) else 0
    first = ""
    if 0 < every <= LARGEST_BLOCK:
        text += f" The whole launch has {every:,} threads: they fit in one block, on one SM."
        first = MORE_WORK
    elif count <= limiters.FEW_THREADS:
        gain = _of_kernels(
            known, share, 1 - count / warps.WARP, "best case: all 32 lanes of a warp work"
        )
    yield tell(SMALL_BLOCKS, title, text, (size, part), gain, level=level, first=first, place=place)


def _residency(view: Selection, launch: pd.Series) -> str:
    """Return how many blocks of a launch fit on an SM, and by what.

    Nothing where it is not known.
    """
    row = _of_launch(warps.occupancy(view.launches, view.counters), launch).iloc[0]
    if pd.isna(row["resident_blocks"]) or pd.isna(row["theoretical_occupancy_frac"]):
        return ""
    limit = _limited_by(view, launch, str(row["limiter"]))
    return (
        f"{int(row['resident_blocks'])} blocks fit on an SM, limited by {limit}: "
        f"{percent(row['theoretical_occupancy_frac'])} of its warps."
    )


def _limited_by(view: Selection, launch: pd.Series, limiter: str) -> str:
    """Return what limits the occupancy, in words.

    With how many registers a thread has, where they do.
    """
    mine = _of_launch(view.counters, launch)
    registers = mine.loc[mine["metric"].eq("launch__registers_per_thread"), "value"]
    of_registers = "".join(f" ({count:.0f} registers per thread)" for count in registers[:1])
    return limiter.replace("_", " ").replace("registers", f"registers{of_registers}")


def _causes(view: Selection, known: dict[str, Figure]) -> Iterator[Finding]:
    """Counters name what makes launches slow that take a tenth of the measured time."""
    launches = view.launches[["rank", "launch", "dur_ns"]]
    launches = launches[launches["dur_ns"].notna()]
    total = float(launches["dur_ns"].sum())
    found = losses(view).merge(launches, on=["rank", "launch"])
    for cause, rows in found.groupby("cause"):
        share = float(rows["dur_ns"].sum() / total) if total else 0.0
        if share < NOTABLE:
            continue
        of = by_kind(counters)[str(cause)]
        longest = largest(rows, "dur_ns")
        name = printable(longest["name"], 80)
        lost = rows["lost_frac"] * rows["dur_ns"] / rows["dur_ns"].sum()
        value = Figure(
            of.evidence[0],
            of.label,
            float(longest["value"]),
            of.unit,
            f"{of.definition}; of the longest launch",
            "access.losses",
        )
        part = Figure(
            f"{cause}_time_frac",
            f"Time with {of.label.lower()}",
            share,
            "1",
            "share of the measured time: time of the launches with this cause",
            "access.losses",
        )
        text = f"Launches with this cause take {part.text} of the measured time."
        text += f" {_why_idle(view, longest)}" if cause == "imbalance" else ""
        gain = _unbounded("the counters do not bound what the kernels save")
        if lost.notna().all():
            what = "best case: what the cause does not touch takes as long as now"
            gain = _of_kernels(known, share, float(lost.sum()), what)
        title = of.title.format(value=value.text, kernel=name)
        yield tell(
            of, title, text, (value, part), gain, level=_level(known), place=f"kernel {name}"
        )


@kept
def last_waves(view: Selection) -> pd.Series:
    """Return the waves of launches whose SMs are idle because the last wave has few blocks, by rank and launch."""
    found = losses(view)
    found = found[found["cause"].eq("imbalance")].merge(
        warps.occupancy(view.launches, view.counters), on=["rank", "launch"]
    )
    short = (found["waves"] < warps.FEW_WAVES) & (found["tail_frac"] >= found["value"])
    return found[short].set_index(["rank", "launch"])["waves"]


def _why_idle(view: Selection, row: pd.Series) -> str:
    waves = last_waves(view).get((row["rank"], row["launch"]))
    if waves is None:
        return "The blocks of a launch do not have the same amount of work."
    return f"Its grid fills the GPU {number(waves)} times: in the last wave most SMs have no block."


def _needed(view: Selection, rows: pd.DataFrame) -> pd.Series:
    """Return the share of its memory traffic that each launch needs.

    NaN where spilled registers make much of it.
    """
    found = losses(view).set_index(["rank", "launch"])
    keys = _launches(rows)
    excess = found.loc[found["cause"].eq("uncoalesced"), "value"].reindex(keys).fillna(0.0)
    return (
        (1 - excess).mask(keys.isin(found.index[found["cause"].eq("spills")])).set_axis(rows.index)
    )


def _waiting(view: Selection, known: dict[str, Figure]) -> Iterator[Finding]:
    """One stall reason has much of the warps' time in launches that leave both SMs and memory idle in part.

    Warps that wait to be selected are many enough, and at four fifths of a rate waiting costs
    little.
    """
    found, total = _stalled(view)
    time = float(found["dur_ns"].sum())
    if found.empty or time < STALLED * total:
        return
    reason = str(found["reason"].iloc[0])
    words = warps.stall_words.get(reason)
    spoken = stall_name(reason)
    value = float((found["share_frac"] * found["dur_ns"]).sum() / time)
    definition = (
        "share of the warps' time, or of their samples, in this stall, weighted by launch time"
    )
    source = "warps.stall_shares"
    stall = Figure("stall_warp_frac", f"Stall: {spoken}", value, "1", definition, source)
    part = Figure(
        "stall_time_frac",
        f"Time of kernels with {spoken}",
        time / total,
        "1",
        (
            "share of the measured time with stall reasons: time of the launches with this main stall"
        ),
        source,
    )
    longest = largest(found, "dur_ns")
    name = printable(longest["name"], 80)
    title = f"Warps of {name} spend {stall.text} of their time in the stall “{spoken}”"
    text = (
        f"{words.means if words else 'This stall is not one perfkit has words for.'} Launches with "
        "this main stall "
    )
    text += f"take {part.text} of the measured time. The longest of them is {name}."
    what = "best case: only the bytes that are needed take time"
    needed = _needed(view, found)
    saved = 1 - (found["dram_frac"] * needed).fillna(0.0)  # waits may need instructions too
    gain = _of_kernels(known, time / total, float((saved * found["dur_ns"]).sum() / time), what)
    gain = SPILLED if needed.isna().any() else gain
    helps = words.helps.rstrip(".") if words else ""
    yield tell(
        KERNEL_STALL,
        title,
        text,
        (stall, part),
        gain,
        level=_level(known),
        first=helps,
        place=f"kernel {name}",
    )


def _stalled(view: Selection) -> tuple[pd.DataFrame, float]:
    """Return the launches whose warps wait most for the reason that takes most time, and the time of all launches."""
    columns = ["rank", "launch", "name", "dur_ns", "sm_frac", "memory_frac", "dram_frac"]
    shares = warps.stall_shares(view.stalls).merge(view.launches[columns], on=["rank", "launch"])
    shares = shares[shares["dur_ns"].notna() & shares["share_frac"].notna()]
    total = float(shares.drop_duplicates(["rank", "launch"])["dur_ns"].sum())
    shares = shares[_is_for_stalls(view, shares)]
    idle = ~(shares[["sm_frac", "memory_frac"]].max(axis=1) >= SATURATED)
    waits = shares["place"].notna() & shares["reason"].ne("not_selected")
    stalled = waits & (shares["share_frac"] >= STALLED)
    # The largest reason of each launch.
    found = shares[idle & stalled].drop_duplicates(["rank", "launch"])
    times = found.groupby(found["reason"].astype("string"))["dur_ns"].sum()
    return found[found["reason"].eq(str(times.idxmax()))] if len(times) else found, total


def _is_for_stalls(view: Selection, rows: pd.DataFrame) -> pd.Series:
    """Tell which launches wait for what their stalls say: not those of too little work, or with a unit that is full."""
    limits = limiters.limiters(view.launches, view.counters)
    short = (limits["waves"] < 1) & (limits["dur_ns"] < SHORT_NS)
    without_work = (
        limits["limit"].isin(["few threads", "last wave"])
        | short
        | (limits["blocks"] < limits["sms"])
    )
    by_instructions = limits["limit"].isin([*limiters.CACHES, *limiters.SM_UNITS])
    keys = _launches(limits[~without_work & ~by_instructions])
    return pd.Series(_launches(rows).isin(keys), rows.index)


def binding(known: Mapping[str, Figure]) -> bool:
    """Tell whether launches reach at least half of the warps they may have: else the grid is what is too small."""
    achieved, possible = (
        known.get(f"{which}_occupancy_frac") for which in ("achieved", "theoretical")
    )
    return (
        achieved is not None
        and possible is not None
        and achieved.value >= BETTER_HALF * possible.value
    )


def _few_warps(view: Selection, known: dict[str, Figure]) -> Iterator[Finding]:
    """The launch configuration leaves the SMs with few warps to hide waiting behind."""
    achieved = known.get("achieved_occupancy_frac")
    possible = known.get("theoretical_occupancy_frac")
    if achieved is None or possible is None or possible.value >= FEW_WARPS or not binding(known):
        return
    launches = view.launches
    longest = largest(launches.fillna({"dur_ns": 0}), "dur_ns")
    limiter = _of_launch(warps.occupancy(launches, view.counters), longest)["limiter"]
    limit = ""
    if limiter.notna().any():
        limit = f", limited by {_limited_by(view, longest, str(limiter.iloc[0]))}"
    text = (
        f"{achieved.text} of the possible warps are resident; the launches allow "
        f"{possible.text}{limit}."
    )
    title = f"Latency limits the measured kernels: an SM may hold only {possible.text} of its warps"
    gain = _unbounded("only a measurement can show the gain of more warps")
    evidence = (possible, achieved)
    yield tell(LOW_OCCUPANCY, title, text, evidence, gain, level=_level(known))


def _limit(
    view: Selection,
    bound: str,
    share: float,
    rows: pd.DataFrame,
    known: dict[str, Figure],
    peaks: str,
) -> Finding:
    """Return the finding on what limits launches, `share` of the measured time."""
    figure = Figure(
        f"{bound}_bound_frac",
        f"Kernel time limited by {bound}",
        share,
        "1",
        "share of the measured time: time of the launches with this limit",
        "limiters.limiters",
    )
    evidence = tuple(
        known[i]
        for i in ("roof_share_frac", "main_stall_frac", "achieved_occupancy_frac")
        if i in known
    )
    longest = largest(rows, "dur_ns")
    limit = str(longest["limit"])
    name = printable(longest["name"], 80)
    said = [f"Longest: {name}.", busy_units(longest)]
    gain = _gain(view, bound, rows, known, share, peaks)
    if gain.high == math.inf and bound in ("cache", "compute"):
        said.append(with_these_instructions(rows))
    text = " ".join(filter(None, said))
    subject, named_ns = limits_named(rows)
    part = share * named_ns / float(rows["dur_ns"].sum())
    title = f"{subject} the measured kernels {percent(part)} of their time"
    severity = _level(known) if bound == "latency" else "low"
    steps = helps_against(view, limit, str(longest["pipe"]))
    rule = by_kind(limit_rules)[bound]
    return tell(
        rule,
        title,
        text,
        (figure, *evidence),
        gain,
        level=severity,
        first=steps,
        place=f"kernel {name}",
    )


def _gain(
    view: Selection,
    bound: str,
    rows: pd.DataFrame,
    known: dict[str, Figure],
    share: float,
    peaks: str,
) -> Gain:
    """Return what launches gain: up to their roof, where the roof is that of what limits them."""
    points = _under_roof(view, roof(view, peaks=peaks).points)
    of_rows = points[_launches(points).isin(_launches(rows))]
    has_roof = bound in ("latency", "memory") or rows["limit"].eq("tensor").all()
    if has_roof or rows["limit"].eq("sm").all():
        return _up_to_roof(view, of_rows, known, share)
    return _unbounded("no counter bounds what other instructions would save")


def _up_to_roof(
    view: Selection, rows: pd.DataFrame, known: dict[str, Figure], share: float
) -> Gain:
    """Return the gain if these launches, `share` of the measured time, reached their roofs.

    Of the run where known.
    """
    under = rows[rows["roof_share_frac"].between(0, 1, inclusive="right")]
    if under.empty:
        return _unbounded("perfkit knows no roof for these launches")
    needed = _needed(view, under)
    if needed.isna().any():
        return SPILLED
    least = float(
        (under["roof_share_frac"] * needed * under["dur_ns"]).sum() / under["dur_ns"].sum()
    )
    return _of_kernels(
        known, share, 1 - least, "best case: they reach their roof with the bytes that they need"
    )


def _of_kernels(known: Mapping[str, Figure], share: float, saved: float, what: str) -> Gain:
    """Return the gain where launches, `share` of the measured time, lose `saved` of it.

    Of the run where known.
    """
    if not {"kernel_busy_frac", "measured_frac"} <= set(known):
        gain = removing(min(share * saved, 1.0), what)
        return replace(gain, share=None, whole=KERNELS_ALONE)
    part = known["kernel_busy_frac"].value * known["measured_frac"].value * share
    gain = removing(part * saved, f"these kernels take {percent(part)} of the run: {what}")
    return replace(gain, share=None)


def _unbounded(reason: str) -> Gain:
    """Return the gain of which nothing recorded says how large it is."""
    return Gain(1.0, math.inf, reason, whole=KERNELS_ALONE)


def _level(known: Mapping[str, Figure]) -> str:
    """Return how severe a finding on kernels is: low where the GPU computes less than half of the time."""
    return (
        "medium"
        if "computation_frac" not in known or known["computation_frac"].value >= BETTER_HALF
        else "low"
    )
