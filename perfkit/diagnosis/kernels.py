"""Figures and findings at the level of the kernel: place under the roof, main stall, occupancy.

Counters are measured launch by launch, in an execution of their own and usually under a clock
locked to base. Over several launches, FLOP, bytes and times are summed before any quotient is
taken.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import pandas as pd

from perfkit import hardware
from perfkit.analysis import access, dossier, flops, limiters, roofline, warps
from perfkit.analysis.roofline import CEILINGS
from perfkit.diagnosis.finding import Figure
from perfkit.diagnosis.framework import PRECISIONS, gpu_time
from perfkit.diagnosis.stored import kept
from perfkit.errors import PerfkitError
from perfkit.names.parts import stall
from perfkit.selection import Selection

# What the roof of a launch says where its counters do not name a unit.
BY_ROOF = {
    "compute": "sm",
    "memory": "dram",
    "latency": "latency",
    "balanced": "sm",
    "small_grid": "small grid",
}
LAUNCH = ["rank", "gpu", "launch"]
POINTS = "LAUNCHES; roofline.points"
INTEGER = ("alu", "xu")  # pipes whose work is no floating-point operation
BETTER_HALF = 0.5
WORKING = 0.1  # of the cycles; a tensor pipe that is active less often hardly works (convention)


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

    The roofs are those of the user's file of peaks, else of the data sheet of the GPU that the
    report names, else those measured in the report itself. There is no default GPU.
    """
    name = next(iter(view.devices["name"]), "")
    sheet = hardware.peaks(name, table=hardware.load_peaks(peaks) if peaks else None)
    source = (
        f"dense peaks of the {sheet.name} data sheet"
        if sheet
        else "measured in the report, at its own clock"
    )
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
    count, definition = int(dossier.measured(launches).sum()), "number of launches with counters"
    yield Figure("measured_count", "Launches measured", count, "count", definition, "LAUNCHES")
    if len(view.kernels):
        joined = dossier.kernels(view.kernels, launches, devices=view.devices)
        covered = dossier.covered(joined)
        definition = "share of the timeline's kernel time that measured kernels take"
        label = "Kernel time measured"
        yield Figure("measured_frac", label, covered, "1", definition, "dossier.covered")
    yield from _sums(view)
    yield from _of_roof(view, peaks)
    yield from _stall(view)
    yield from _occupancy(launches)


def _sums(view: Selection) -> Iterator[Figure]:
    """Yield operations, bytes and time of all launches, and their quotients: sums first, one quotient last."""
    split = points(view)
    once = split.drop_duplicates(LAUNCH)
    # Where the tensor pipe worked and its operations were not counted, the counted ones are not all.
    launches = view.launches
    partly = launches[(launches["tensor_frac"] >= WORKING) & launches["tensor_flops"].isna()]
    flops = split["flops"].mask(split["launch"].isin(partly["launch"]))
    without = _without(len(partly), "tensor operations")
    for column, label, unit, values, left_out in (
        ("flops", "FLOP counted", "FLOP", flops, without),
        ("dram_bytes", "DRAM traffic", "bytes", once["dram_bytes"], ""),
        ("dur_ns", "Measured time", "ns", once["dur_ns"], ""),
    ):
        if values.notna().any():
            definition = f"sum over measured launches{left_out}"
            total = float(values.sum())
            yield Figure(f"measured_{column}", label, total, unit, definition, POINTS)
    # A launch whose operations were not counted is in neither sum.
    is_counted = flops.notna().groupby([split[key] for key in LAUNCH]).transform("max")
    counted = once[is_counted.loc[once.index]]
    total, time, moved = flops.sum(), counted["dur_ns"].sum(), counted["dram_bytes"].sum()
    if total and time:
        definition = "FLOP of the measured launches per second of their time"
        definition += _without(len(once) - len(counted), "operations")
        rate = float(total / time * 1e9)
        yield Figure("measured_flops_per_s", "Performance", rate, "FLOP/s", definition, POINTS)
    if total and moved:
        definition = "FLOP of the measured launches per byte of their DRAM traffic"
        label, value = "Arithmetic intensity", float(total / moved)
        yield Figure("measured_intensity", label, value, "FLOP/byte", definition, POINTS)


def _without(launches: int, what: str) -> str:
    """Return how many launches a sum leaves out, and why; empty for none."""
    return f"; without {launches} launches that lack a count of {what}" if launches else ""


def _of_roof(view: Selection, peaks: str) -> Iterator[Figure]:
    """Yield the share of the roof, where a roof describes most of the measured time."""
    bounds = roof(view, peaks=peaks)
    every = bounds.points.drop_duplicates(LAUNCH)["dur_ns"].sum()
    under = _under_roof(view, bounds.points)
    time = float(under["dur_ns"].sum())
    if time > BETTER_HALF * every:
        weighted = float((under["roof_share_frac"] * under["dur_ns"]).sum() / time)
        definition = "share of the roof at each launch's intensity, weighted by time; roof: "
        definition += bounds.source
        label = "Share of the roof"
        yield Figure("roof_share_frac", label, weighted, "1", definition, "roofline.bound")


def _stall(view: Selection) -> Iterator[Figure]:
    shares = warps.stall_shares(view.stalls)
    shares = shares.merge(view.launches[["rank", "launch", "dur_ns"]], on=["rank", "launch"])
    shares = shares[shares["place"].notna() & shares["dur_ns"].notna()]
    if shares.empty:
        return
    weighted = (
        (shares["share_frac"] * shares["dur_ns"]).groupby(shares["reason"], observed=True).sum()
    )
    total = shares.drop_duplicates(["rank", "launch"])["dur_ns"].sum()
    reason = str(weighted.idxmax())
    yield Figure(
        "main_stall_frac",
        f"Main stall: {stall(reason)}",
        float(weighted.max() / total),
        "1",
        "share of the warps' time (not of the run) in this stall, weighted by launch time",
        "warps.stall_shares",
        subject=reason,
    )


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
            yield Figure(
                column,
                label,
                value,
                "1",
                f"share of the warps that an SM can hold that {those}; weighted by time",
                "LAUNCHES",
            )


@kept
def limited(view: Selection, *, peaks: str = "") -> pd.DataFrame:
    """Return `limiters.limiters` of the measured launches.

    By their roof where the throughputs were not recorded.
    """
    found = limiters.limiters(view.launches, view.counters)
    verdicts = _nearest(roof(view, peaks=peaks).points).set_index(["rank", "launch"])
    bound = verdicts["bound"].reindex(_launches(found)).astype(object).to_numpy()
    is_told = found["limit"].ne("not measured").to_numpy()
    by_roof = pd.Series(
        [BY_ROOF.get(str(each), "not measured") for each in bound], found.index, "string"
    )
    limit = found["limit"].where(is_told, by_roof).mask(bound == "refused", "not measured")
    return found.assign(limit=limit)


def _nearest(points: pd.DataFrame) -> pd.DataFrame:
    """Return a point of each launch: of one in several precisions that which is nearest to its roof."""
    rising = points.sort_values("roof_share_frac", kind="stable", na_position="first")
    return rising.drop_duplicates(LAUNCH, keep="last")


def _under_roof(view: Selection, points: pd.DataFrame) -> pd.DataFrame:
    """Return a point of each launch that its roof can describe: its limit is no cache, no integer work, no issue.

    Nor is it a pipe whose operations were not counted.
    """
    under = _nearest(points[points["roof_share_frac"].notna()])
    limits = limiters.limiters(view.launches, view.counters)
    on_integers = limits["pipe"].isin(INTEGER) & (limits["pipe_frac"] >= WORKING)
    on_integers &= limits["pipe_frac"] > limits["dram_frac"].fillna(0.0)
    has_other_limit = limits["limit"].isin([*limiters.CACHES, "issue"])
    other = _launches(under).isin(_launches(limits[on_integers | has_other_limit]))
    of_pipes = _launches(under).isin(_launches(limits[limits["limit"].isin(access.PIPES)]))
    is_uncounted = under["flops"].fillna(0).eq(0).to_numpy()  # only memory has a roof then
    return under[~(other | (of_pipes & is_uncounted))]


def _launches(rows: pd.DataFrame) -> pd.MultiIndex:
    """Return the launch of each row: its rank and number."""
    return pd.MultiIndex.from_frame(rows[["rank", "launch"]])


def _of_launch(table: pd.DataFrame, launch: pd.Series) -> pd.DataFrame:
    """Return the rows of one launch."""
    return table[table["rank"].eq(launch["rank"]) & table["launch"].eq(launch["launch"])]


def shape_roofline(view: Selection, *, peaks: str = "") -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the points of the operators and the roofs of the GPU's data sheet, as `charts.roofline` takes them.

    Points: one row per operator, model and type with kernel time and operations: name, family,
    precision (that of the peak it is held against), count, dur_ns, flops, flops_per_s,
    dram_intensity. Ceilings: empty where the GPU or its peaks are not known; never those of another
    GPU.
    """
    sheet = hardware.peaks(
        next(iter(view.devices["name"]), ""), table=hardware.load_peaks(peaks) if peaks else None
    )
    points = flops.roofline(view.framework.ops, gpu_time(view))
    points = points[points["flops"].notna()]
    known = sheet.flops_per_s if sheet else {}
    # The peak that operators of a type are held against: the highest in which they may have run.
    peaks_of = [PRECISIONS.get(str(dtype), (str(dtype),)) for dtype in points["dtype"]]
    precision = [next((name for name in names if name in known), names[0]) for names in peaks_of]
    renamed = points.rename(
        columns={"model": "family", "gpu_ns": "dur_ns", "intensity": "dram_intensity"}
    )
    family = (
        renamed["family"]
        .astype("string")
        .str.extract("(gemm|convolution|attention)")[0]
        .fillna("other")
    )
    renamed = renamed.assign(precision=pd.Categorical(precision), family=family.astype("category"))
    if sheet is None:
        return renamed, CEILINGS.empty()
    used = [name for name in dict.fromkeys(precision) if name in known]
    rows = [(name, known[name], float("nan")) for name in used]
    if sheet.memory_bytes_per_s:
        rows.append(("dram", float("nan"), sheet.memory_bytes_per_s))
    roofs = pd.DataFrame(rows, columns=["roof", "flops_per_s", "bytes_per_s"])
    return renamed, roofs.assign(source=f"data sheet of {sheet.name}, dense peaks")
