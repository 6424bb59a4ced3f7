"""Figures and findings at the level of the kernel: place under the roof, main stall, occupancy.

Counters are measured launch by launch, in an execution of their own and usually under a clock locked to base. Over
several launches, FLOP, bytes and times are summed before any quotient is taken.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import pandas as pd

from perfkit import hardware
from perfkit.analysis import access, dossier, flops, limiters, roofline, warps
from perfkit.analysis.roofline import CEILINGS
from perfkit.diagnosis.blocks import small_blocks_text, small_blocks_title
from perfkit.diagnosis.finding import Figure, Finding, Gain, kept, removing
from perfkit.diagnosis.framework import PRECISIONS, gpu_time
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
from perfkit.errors import PerfkitError
from perfkit.format import number, percent, printable
from perfkit.selection import Selection

# The kind of a rule about what limits kernels, and the limits that it tells of, as `limiters.LIMITS` names them.
GROUPS = {
    "latency": ("small grid", "latency"),
    "memory": limiters.MEMORIES,
    "cache": limiters.CACHES,
    "compute": limiters.SM_UNITS,
}
# What the roof of a launch says where its counters do not name a unit.
BY_ROOF = {"compute": "sm", "memory": "dram", "latency": "latency", "balanced": "sm", "small_grid": "small grid"}
INTEGER = ("alu", "xu")  # pipes whose work is no floating-point operation
KERNELS_ALONE = "the measured kernels"
BETTER_HALF = 0.5
STALLED, SATURATED = 0.3, 0.8  # Nsight Compute, rule CPIStall: over 0.3 of the latency, issue slots used below 0.8
WORKING = 0.1  # of the cycles; a tensor pipe that is active less often hardly works (convention)
FEW_WARPS = 0.5  # the guide's target for occupancy is above 50 %
SPILLED = Gain(1.0, math.inf, "spilled registers make much of the memory traffic", whole=KERNELS_ALONE)
SHORT_NS = 10_000  # all of a shorter kernel is latency where its grid does not fill the GPU (convention)
NOTABLE = 0.1  # of the measured time (convention)


@dataclass(frozen=True)
class Roofline:
    """Points with their verdicts, the roofs (None if refused), and where the roofs come from or why there is none."""

    points: pd.DataFrame
    ceilings: pd.DataFrame | None
    source: str


@kept
def points(view: Selection) -> pd.DataFrame:
    """Return the roofline points of the measured launches of a selection."""
    return roofline.points(view.launches, view.counters)


@kept
def losses(view: Selection) -> pd.DataFrame:
    """Return what launches of a selection lose to causes that their counters name, see `access.losses`."""
    return access.losses(view.launches, view.counters)


@kept
def roof(view: Selection, *, peaks: str = "") -> Roofline:
    """Return the roofline of the measured launches of a selection.

    The roofs are those of the user's file of peaks, else of the data sheet of the GPU that the report names, else those
    measured in the report itself. There is no default GPU.
    """
    name = next(iter(view.devices["name"]), "")
    sheet = hardware.peaks(name, table=hardware.load_peaks(peaks) if peaks else None)
    source = f"dense peaks of the {sheet.name} data sheet" if sheet else "measured in the report, at its own clock"
    try:
        ceilings = roofline.ceilings(view.launches, view.counters, peaks=sheet)
    except PerfkitError as e:
        return Roofline(roofline.bound(points(view)), None, str(e))
    return Roofline(roofline.bound(points(view), ceilings), ceilings, source)


def figures(view: Selection, *, peaks: str = "") -> Iterator[Figure]:
    """Yield the kernel-level figures of a selection; what was not measured is absent."""
    launches = view.launches
    if launches.empty:
        return
    count = int(dossier.measured(launches).sum())
    yield Figure("measured_count", "Launches measured", count, "count", "number of launches with counters", "LAUNCHES")
    if len(view.kernels):
        joined = dossier.kernels(view.kernels, launches, devices=view.devices)
        covered = dossier.covered(joined)
        definition = "share of the timeline's kernel time that measured kernels take"
        yield Figure("measured_frac", "Kernel time measured", covered, "1", definition, "dossier.covered")
    split, source = points(view), "LAUNCHES; roofline.points"
    once = split.drop_duplicates(["rank", "gpu", "launch"])
    # Where the tensor pipe worked and its operations were not counted, the counted ones are not all.
    partly = launches[(launches["tensor_frac"] >= WORKING) & launches["tensor_flops"].isna()]
    split = split.assign(flops=split["flops"].mask(split["launch"].isin(partly["launch"])))
    sums = (
        ("flops", "FLOP counted", "FLOP"),
        ("dram_bytes", "DRAM traffic", "bytes"),
        ("dur_ns", "Measured time", "ns"),
    )
    for column, label, unit in sums:
        values = (split if column == "flops" else once)[column]
        if values.notna().any():
            total = float(values.sum())
            definition = "sum over measured launches"
            if column == "flops" and len(partly):
                definition += f"; without {len(partly)} launches that lack a count of tensor operations"
            yield Figure(f"measured_{column}", label, total, unit, definition, source)
    # Performance and intensity of all launches together: sums first, one quotient last. A launch whose operations were
    # not counted is in neither sum.
    of_launch = split["flops"].notna().groupby([split[key] for key in ("rank", "gpu", "launch")]).transform("max")
    with_flops = once[of_launch.loc[once.index]]
    left_out = len(once) - len(with_flops)
    counted, time, moved = split["flops"].sum(), with_flops["dur_ns"].sum(), with_flops["dram_bytes"].sum()
    if counted and time:
        definition = "FLOP of the measured launches per second of their time"
        definition += f"; without {left_out} launches that lack a count of operations" if left_out else ""
        yield Figure("measured_flops_per_s", "Performance", float(counted / time * 1e9), "FLOP/s", definition, source)
    if counted and moved:
        definition, label = "FLOP of the measured launches per byte of their DRAM traffic", "Arithmetic intensity"
        yield Figure("measured_intensity", label, float(counted / moved), "FLOP/byte", definition, source)
    bounds = roof(view, peaks=peaks)
    every = bounds.points["dur_ns"].where(~bounds.points.duplicated(["rank", "gpu", "launch"])).sum()
    under = _under_roof(view, bounds.points)
    time = float(under["dur_ns"].sum())
    if time > BETTER_HALF * every:
        weighted = float((under["roof_share_frac"] * under["dur_ns"]).sum() / time)
        definition = f"share of the roof at each launch's intensity, weighted by time; roof: {bounds.source}"
        yield Figure("roof_share_frac", "Share of the roof", weighted, "1", definition, "roofline.bound")
    yield from _stall(view)
    yield from _occupancy(launches)


def _stall(view: Selection) -> Iterator[Figure]:
    shares = warps.stall_shares(view.stalls)
    shares = shares.merge(view.launches[["rank", "launch", "dur_ns"]], on=["rank", "launch"])
    shares = shares[shares["place"].notna() & shares["dur_ns"].notna()]
    if shares.empty:
        return
    weighted = (shares["share_frac"] * shares["dur_ns"]).groupby(shares["reason"], observed=True).sum()
    total = shares.drop_duplicates(["rank", "launch"])["dur_ns"].sum()
    reason = str(weighted.idxmax())
    label = f"Main stall: {reason.replace('_', ' ')}"
    definition = "share of the warps' time (not of the run) in this stall, weighted by launch time"
    yield Figure("main_stall_frac", label, float(weighted.max() / total), "1", definition, "warps.stall_shares")


def _occupancy(launches: pd.DataFrame) -> Iterator[Figure]:
    rows = launches[launches["dur_ns"].notna()]
    for which, label, those in (
        ("achieved", "Achieved occupancy", "are resident while it is active"),
        ("theoretical", "Possible occupancy", "block size, registers and shared memory allow"),
    ):
        column = f"{which}_occupancy_frac"
        rows = rows[rows[column].notna()]
        if len(rows) and rows["dur_ns"].sum():
            value = float((rows[column] * rows["dur_ns"]).sum() / rows["dur_ns"].sum())
            definition = f"share of the warps that an SM can hold that {those}; weighted by time"
            yield Figure(column, label, value, "1", definition, "LAUNCHES")


@kept
def limited(view: Selection, *, peaks: str = "") -> pd.DataFrame:
    """Return `limiters.limiters` of the measured launches; by their roof where the throughputs were not recorded."""
    found = limiters.limiters(view.launches, view.counters)
    verdicts = _nearest(roof(view, peaks=peaks).points).set_index(["rank", "launch"])
    verdicts = verdicts[["bound", "rule"]].reindex(pd.MultiIndex.from_frame(found[["rank", "launch"]]))
    verdict = verdicts["bound"].astype(object).to_numpy()
    is_told = found["limit"].ne("not measured").to_numpy()
    by_roof = pd.Series([BY_ROOF.get(str(each), "not measured") for each in verdict], found.index, "string")
    limit = found["limit"].where(is_told, by_roof).mask(verdict == "refused", "not measured")
    return found.assign(limit=limit)


def _nearest(points: pd.DataFrame) -> pd.DataFrame:
    """Return a point of each launch: of one in several precisions that which is nearest to its roof."""
    rising = points.sort_values("roof_share_frac", kind="stable", na_position="first")
    return rising.drop_duplicates(["rank", "gpu", "launch"], keep="last")


def _under_roof(view: Selection, points: pd.DataFrame) -> pd.DataFrame:
    """Return a point of each launch that its roof can describe: no launch whose limit is integer work."""
    under = _nearest(points[points["roof_share_frac"].notna()])
    limits = limiters.limiters(view.launches, view.counters)
    on_integers = limits["pipe"].isin(INTEGER) & (limits["pipe_frac"] >= WORKING)
    on_integers &= (limits["pipe_frac"] > limits["dram_frac"].fillna(0.0)) & ~limits["limit"].isin(limiters.CACHES)
    keys = pd.MultiIndex.from_frame(limits.loc[on_integers, ["rank", "launch"]])
    return under[~pd.MultiIndex.from_frame(under[["rank", "launch"]]).isin(keys)]


def findings(view: Selection, known: dict[str, Figure], *, peaks: str = "") -> Iterator[Finding]:
    """Yield what limits the kernels that were measured, if one kind of limit covers at least half of their time.

    Where the GPU computes less than half of the time, faster kernels cannot help much, and severity is low.
    """
    if view.launches.empty:
        return
    limits = limited(view, peaks=peaks)
    limits = limits[limits["dur_ns"].notna()]
    total = float(limits["dur_ns"].sum())
    for bound, group in GROUPS.items():
        rows = limits[limits["limit"].isin(group)]
        share = float(rows["dur_ns"].sum() / total) if total else 0.0
        if share >= BETTER_HALF:
            yield _limit(view, bound, share, rows, known, peaks)
            if bound == "latency":  # where a unit works enough, more warps bring nothing
                yield from _few_warps(view, known)
    yield from _small_blocks(view, known)
    yield from _causes(view, known)
    yield from _waiting(view, known)


def _small_blocks(view: Selection, known: dict[str, Figure]) -> Iterator[Finding]:
    """Blocks of a few threads leave lanes idle; of blocks of one warp an SM may hold too few."""
    launches = view.launches[view.launches["dur_ns"].notna() & view.launches["block_threads"].notna()]
    threads = launches["block_threads"].astype("int64")
    occupied = launches["theoretical_occupancy_frac"] < FEW_WARPS
    rows = launches[(threads <= limiters.FEW_THREADS) | ((threads <= warps.WARP) & occupied)]
    total = float(view.launches["dur_ns"].sum())
    if rows.empty or rows["dur_ns"].sum() < NOTABLE * total:
        return
    longest = rows.iloc[int(rows["dur_ns"].to_numpy().argmax())]
    share, count = float(rows["dur_ns"].sum() / total), int(longest["block_threads"])
    definition = "share of the measured time: time of launches with blocks of a few threads, or of one warp"
    part = Figure("small_blocks_frac", "Time of small blocks", share, "1", definition, "LAUNCHES")
    definition = "threads of a block of the longest of these launches"
    size = Figure("small_blocks_count", "Threads per block", float(count), "count", definition, "LAUNCHES")
    place = f"kernel {printable(longest['name'], 80)}"
    title = small_blocks_title(count, part.text, "the measured time")
    text = f"The longest of them is {printable(longest['name'], 80)}. "
    text += small_blocks_text(count, _residency(view, longest))
    level = _level(known)
    limits = limited(view)
    mine = limits["rank"].eq(longest["rank"]) & limits["launch"].eq(longest["launch"])
    limit = str(limits.loc[mine, "limit"].iloc[0])
    if limit in (*limiters.SM_UNITS, *limiters.CACHES, *limiters.MEMORIES):
        level = "low"
        text += f" More warps help little as long as another limit remains: {inside(unit_name(limit))}."
    gain = Gain(1.0, math.inf, "only a measurement can show the gain of more warps", whole=KERNELS_ALONE)
    if count <= limiters.FEW_THREADS:
        gain = _of_kernels(known, share, 1 - count / warps.WARP, "best case: all 32 lanes of a warp work")
    yield tell(SMALL_BLOCKS, title, level, text, (size, part), gain, place=place)


def _residency(view: Selection, launch: pd.Series) -> str:
    """Return how many blocks of a launch fit on an SM, and by what; nothing where it is not known."""
    known = warps.occupancy(view.launches, view.counters)
    row = known[known["rank"].eq(launch["rank"]) & known["launch"].eq(launch["launch"])].iloc[0]
    if pd.isna(row["resident_blocks"]) or pd.isna(row["theoretical_occupancy_frac"]):
        return ""
    limit = _limited_by(view, launch, str(row["limiter"]))
    return (
        f"{int(row['resident_blocks'])} blocks fit on an SM, limited by {limit}: "
        f"{percent(row['theoretical_occupancy_frac'])} of its warps."
    )


def _limited_by(view: Selection, launch: pd.Series, limiter: str) -> str:
    """Return what limits the occupancy, in words; with how many registers a thread has, where they do."""
    words = limiter.replace("_", " ")
    counters = view.counters
    mine = counters["rank"].eq(launch["rank"]) & counters["launch"].eq(launch["launch"])
    registers = counters.loc[mine & counters["metric"].eq("launch__registers_per_thread"), "value"]
    if "registers" not in words or registers.empty:
        return words
    return words.replace("registers", f"registers ({registers.iloc[0]:.0f} registers per thread)")


def _causes(view: Selection, known: dict[str, Figure]) -> Iterator[Finding]:
    """Counters name what makes launches slow that take a tenth of the measured time."""
    launches = view.launches[["rank", "launch", "dur_ns"]]
    launches = launches[launches["dur_ns"].notna()]
    total, found = float(launches["dur_ns"].sum()), losses(view).merge(launches, on=["rank", "launch"])
    for cause, rows in found.groupby("cause"):
        share = float(rows["dur_ns"].sum() / total) if total else 0.0
        if share < NOTABLE:
            continue
        of, longest = by_kind(counters)[str(cause)], rows.iloc[int(rows["dur_ns"].to_numpy().argmax())]
        name, lost = printable(longest["name"], 80), rows["lost_frac"] * rows["dur_ns"] / rows["dur_ns"].sum()
        definition = f"{of.definition}; of the longest launch"
        value = Figure(
            f"{cause}_{'frac' if of.unit == '1' else of.unit}",
            of.label,
            float(longest["value"]),
            of.unit,
            definition,
            "access.losses",
        )
        definition = "share of the measured time: time of the launches with this cause"
        part = Figure(f"{cause}_time_frac", f"Time with {of.label.lower()}", share, "1", definition, "access.losses")
        text = f"Launches with this cause take {part.text} of the measured time."
        text += f" {_why_idle(view, longest)}" if cause == "imbalance" else ""
        gain = Gain(1.0, math.inf, "the counters do not bound what the kernels save", whole=KERNELS_ALONE)
        if lost.notna().all():
            what = "best case: what the cause does not touch takes as long as now"
            gain = _of_kernels(known, share, float(lost.sum()), what)
        title = of.title.format(value=value.text, kernel=name)
        yield tell(of, title, _level(known), text, (value, part), gain, place=f"kernel {name}")


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
    """Return the share of its memory traffic that each launch needs; NaN where spilled registers make much of it."""
    found = losses(view).set_index(["rank", "launch"])
    keys = pd.MultiIndex.from_frame(rows[["rank", "launch"]])
    excess = found.loc[found["cause"].eq("uncoalesced"), "value"].reindex(keys).fillna(0.0)
    return (1 - excess).mask(keys.isin(found.index[found["cause"].eq("spills")])).set_axis(rows.index)


def _waiting(view: Selection, known: dict[str, Figure]) -> Iterator[Finding]:
    """One stall reason has much of the warps' time in launches that leave both SMs and memory idle in part.

    Warps that wait to be selected are many enough, and at four fifths of a rate waiting costs little.
    """
    columns = ["rank", "launch", "name", "dur_ns", "sm_frac", "memory_frac", "dram_frac"]
    shares = warps.stall_shares(view.stalls).merge(view.launches[columns], on=["rank", "launch"])
    shares = shares[shares["dur_ns"].notna() & shares["share_frac"].notna()]
    total = float(shares.drop_duplicates(["rank", "launch"])["dur_ns"].sum())
    shares = shares[_is_for_stalls(view, shares)]
    idle = ~(shares[["sm_frac", "memory_frac"]].max(axis=1) >= SATURATED)
    stalled = shares["place"].notna() & shares["reason"].ne("not_selected") & (shares["share_frac"] >= STALLED)
    found = shares[idle & stalled].drop_duplicates(["rank", "launch"])  # the largest reason of each launch
    times = found.groupby(found["reason"].astype("string"))["dur_ns"].sum()
    if times.empty or times.max() < STALLED * total:
        return
    reason = str(times.idxmax())
    found = found[found["reason"].eq(reason)]
    time, words, spoken = float(times.max()), warps.stall_words.get(reason), reason.replace("_", " ")
    value = float((found["share_frac"] * found["dur_ns"]).sum() / time)
    definition = "share of the warps' time, or of their samples, in this stall, weighted by launch time"
    source = "warps.stall_shares"
    stall = Figure("stall_warp_frac", f"Stall: {spoken}", value, "1", definition, source)
    definition = "share of the measured time with stall reasons: time of the launches with this main stall"
    part = Figure("stall_time_frac", f"Time of kernels with {spoken}", time / total, "1", definition, source)
    longest = found.iloc[int(found["dur_ns"].to_numpy().argmax())]
    name = printable(longest["name"], 80)
    title = f"Warps of {name} spend {stall.text} of their time in the stall “{spoken}”"
    text = f"{words.means if words else 'This stall is not one perfkit has words for.'} Launches with this main stall "
    text += f"take {part.text} of the measured time. The longest of them is {name}."
    what, needed = "best case: only the bytes that are needed take time", _needed(view, found)
    saved = 1 - (found["dram_frac"] * needed).fillna(0.0)  # waits may need instructions too
    gain = _of_kernels(known, time / total, float((saved * found["dur_ns"]).sum() / time), what)
    gain = SPILLED if needed.isna().any() else gain
    helps = words.helps.rstrip(".") if words else ""
    yield tell(KERNEL_STALL, title, _level(known), text, (stall, part), gain, first=helps, place=f"kernel {name}")


def _is_for_stalls(view: Selection, rows: pd.DataFrame) -> pd.Series:
    """Tell which launches wait for what their stalls say: not those of too little work, or with a unit that is full."""
    limits = limiters.limiters(view.launches, view.counters)
    short = (limits["waves"] < 1) & (limits["dur_ns"] < SHORT_NS)
    without_work = limits["limit"].isin(["few threads", "last wave"]) | short | (limits["blocks"] < limits["sms"])
    by_instructions = limits["limit"].isin([*limiters.CACHES, *limiters.SM_UNITS])
    keys = pd.MultiIndex.from_frame(limits.loc[~without_work & ~by_instructions, ["rank", "launch"]])
    return pd.Series(pd.MultiIndex.from_frame(rows[["rank", "launch"]]).isin(keys), rows.index)


def binding(known: Mapping[str, Figure]) -> bool:
    """Tell whether launches reach at least half of the warps they may have: else the grid is what is too small."""
    achieved, possible = (known.get(f"{which}_occupancy_frac") for which in ("achieved", "theoretical"))
    return achieved is not None and possible is not None and achieved.value >= BETTER_HALF * possible.value


def _few_warps(view: Selection, known: dict[str, Figure]) -> Iterator[Finding]:
    """The launch configuration leaves the SMs with few warps to hide waiting behind."""
    achieved, possible = known.get("achieved_occupancy_frac"), known.get("theoretical_occupancy_frac")
    if achieved is None or possible is None or possible.value >= FEW_WARPS or not binding(known):
        return
    launches = view.launches
    longest = launches.iloc[int(launches["dur_ns"].fillna(0).to_numpy().argmax())]
    occupied = warps.occupancy(launches, view.counters)
    limiter = occupied.loc[occupied["launch"].eq(longest["launch"]) & occupied["rank"].eq(longest["rank"]), "limiter"]
    limit = ""
    if limiter.notna().any():
        limit = f", limited by {_limited_by(view, longest, str(limiter.iloc[0]))}"
    text = f"{achieved.text} of the possible warps are resident; the launches allow {possible.text}{limit}."
    title = f"Latency limits the measured kernels: an SM may hold only {possible.text} of its warps"
    gain = Gain(1.0, math.inf, "only a measurement can show the gain of more warps", whole=KERNELS_ALONE)
    evidence = (possible, achieved)
    yield tell(LOW_OCCUPANCY, title, _level(known), text, evidence, gain)


def _limit(
    view: Selection, bound: str, share: float, rows: pd.DataFrame, known: dict[str, Figure], peaks: str
) -> Finding:
    """Return the finding on what limits launches, `share` of the measured time."""
    definition = "share of the measured time: time of the launches with this limit"
    figure = Figure(
        f"{bound}_bound_frac", f"Kernel time limited by {bound}", share, "1", definition, "limiters.limiters"
    )
    evidence = tuple(known[i] for i in ("roof_share_frac", "main_stall_frac", "achieved_occupancy_frac") if i in known)
    longest = rows.iloc[int(rows["dur_ns"].to_numpy().argmax())]
    limit = str(longest["limit"])
    name = printable(longest["name"], 80)
    text = f"Longest: {name}. {busy_units(longest)}"
    gain = _gain(view, bound, rows, known, share, peaks)
    if gain.high == math.inf and bound in ("cache", "compute"):
        text += f" {with_these_instructions(rows)}"
    subject, named_ns = limits_named(rows)
    title = f"{subject} the measured kernels {percent(share * named_ns / float(rows['dur_ns'].sum()))} of their time"
    severity = _level(known) if bound == "latency" else "low"
    steps = helps_against(view, limit, str(longest["pipe"]))
    rule = by_kind(limit_rules)[bound]
    return tell(rule, title, severity, text, (figure, *evidence), gain, first=steps, place=f"kernel {name}")


def _gain(view: Selection, bound: str, rows: pd.DataFrame, known: dict[str, Figure], share: float, peaks: str) -> Gain:
    """Return what launches gain: up to their roof, where the roof is that of what limits them."""
    points = _under_roof(view, roof(view, peaks=peaks).points)
    keys = pd.MultiIndex.from_frame(rows[["rank", "launch"]])
    of_rows = points[pd.MultiIndex.from_frame(points[["rank", "launch"]]).isin(keys)]
    has_roof = bound in ("latency", "memory") or rows["limit"].eq("tensor").all()
    if has_roof or rows["limit"].eq("sm").all():
        return _up_to_roof(view, of_rows, known, share)
    return Gain(1.0, math.inf, "no counter bounds what other instructions would save", whole=KERNELS_ALONE)


def _up_to_roof(view: Selection, rows: pd.DataFrame, known: dict[str, Figure], share: float) -> Gain:
    """Return the gain if these launches, `share` of the measured time, reached their roofs; of the run where known."""
    under = rows[rows["roof_share_frac"].between(0, 1, inclusive="right")]
    if under.empty:
        return Gain(1.0, math.inf, "perfkit knows no roof for these launches", whole=KERNELS_ALONE)
    needed = _needed(view, under)
    if needed.isna().any():
        return SPILLED
    least = float((under["roof_share_frac"] * needed * under["dur_ns"]).sum() / under["dur_ns"].sum())
    return _of_kernels(known, share, 1 - least, "best case: they reach their roof with the bytes that they need")


def _of_kernels(known: Mapping[str, Figure], share: float, saved: float, what: str) -> Gain:
    """Return the gain where launches, `share` of the measured time, lose `saved` of it; of the run where known."""
    if not {"kernel_busy_frac", "measured_frac"} <= set(known):
        gain = removing(min(share * saved, 1.0), what)
        return replace(gain, share=None, whole=KERNELS_ALONE)
    part = known["kernel_busy_frac"].value * known["measured_frac"].value * share
    gain = removing(part * saved, f"these kernels take {percent(part)} of the run: {what}")
    return replace(gain, share=None)


def _level(known: Mapping[str, Figure]) -> str:
    """Return how severe a finding on kernels is: low where the GPU computes less than half of the time."""
    return "medium" if "computation_frac" not in known or known["computation_frac"].value >= BETTER_HALF else "low"


def shape_roofline(view: Selection, *, peaks: str = "") -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the points of the operators and the roofs of the GPU's data sheet, as `charts.roofline` takes them.

    Points: one row per operator, model and type with kernel time and operations: name, family, precision (that of the
    peak it is held against), count, dur_ns, flops, flops_per_s, dram_intensity. Ceilings: empty where the GPU or its
    peaks are not known; never those of another GPU.
    """
    sheet = hardware.peaks(next(iter(view.devices["name"]), ""), table=hardware.load_peaks(peaks) if peaks else None)
    points = flops.roofline(view.framework.ops, gpu_time(view))
    points = points[points["flops"].notna()]
    known = sheet.flops_per_s if sheet else {}
    # The peak that operators of a type are held against: the highest in which they may have run.
    peaks_of = [PRECISIONS.get(str(dtype), (str(dtype),)) for dtype in points["dtype"]]
    precision = [next((name for name in names if name in known), names[0]) for names in peaks_of]
    renamed = points.rename(columns={"model": "family", "gpu_ns": "dur_ns", "intensity": "dram_intensity"})
    family = renamed["family"].astype("string").str.extract("(gemm|convolution|attention)")[0].fillna("other")
    renamed = renamed.assign(precision=pd.Categorical(precision), family=family.astype("category"))
    if sheet is None:
        return renamed, CEILINGS.empty()
    used = [name for name in dict.fromkeys(precision) if name in known]
    rows = [(name, known[name], float("nan")) for name in used]
    if sheet.memory_bytes_per_s:
        rows.append(("dram", float("nan"), sheet.memory_bytes_per_s))
    roofs = pd.DataFrame(rows, columns=["roof", "flops_per_s", "bytes_per_s"])
    return renamed, roofs.assign(source=f"data sheet of {sheet.name}, dense peaks")
