"""What limits each kernel: arithmetic, memory, or the wait for either?

Functions
---------
bound            verdict, share of the roof and reason per point
speed_of_light   the vendor's rule on compute and memory throughput
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfkit.analysis.roofline.places import POINTS
from perfkit.analysis.roofline.reasons import Row, refusal, roofline_reason, speed_of_light_reason, unmeasured
from perfkit.analysis.roofline.roofs import CEILINGS, LEVELS

BOUNDS = ("compute", "memory", "balanced", "latency", "small_grid", "refused", "not measured")
HIGH, BUSY, APART = 0.8, 0.6, 0.1  # the vendor's rule SOLBottleneck: 80 %, 60 %, 10 points
LATENCY_BELOW = 0.6
REFUSED_ABOVE = 1.1  # measuring a little over the roof happens, a lot over it means that the roof is wrong

_SHARES = ["compute_share_frac", *(f"{level}_share_frac" for level in LEVELS)]


def bound(points: pd.DataFrame, ceilings: pd.DataFrame | None = None) -> pd.DataFrame:
    """Return what limits each point, its share of each roof, and the reason in a sentence.

    The vendor's rule on compute and memory throughput decides where both were recorded (see `speed_of_light`).
    Else the roof does: a share under 60 % is latency, else an intensity under the ridge is memory, else compute.
    A launch with several precisions gets one verdict, that of its point nearest to the roof. A launch with a point
    above 110 % of its roof is refused, whatever the throughputs say: its figures contradict each other.

    Parameters
    ----------
    points
        POINTS of `points`; may be empty.
    ceilings
        CEILINGS of `ceilings`; without it there are no shares, and only the vendor's rule can decide.

    Returns
    -------
    pandas.DataFrame
        The rows and columns of `points`, then, float64, NaN where not measured or refused: `ridge` FLOP/byte;
        `compute_share_frac` of the precision's peak; `dram_share_frac`, `l2_share_frac`, `l1_share_frac` of each
        level's bandwidth; `roof_share_frac`, performance over attainable performance min(peak, intensity x DRAM
        bandwidth), which is the larger of compute and dram. They are in 0..1.1; l2 and l1 are NaN above.
        `bound` category, one of BOUNDS; `rule` category: speed of light, roofline, or missing; `reason` string.

    Raises
    ------
    SchemaError
        If a table is not of its kind.

    References
    ----------
    Vendor's rule: Nsight Compute, SOLBottleneck. Roof: Williams, Waterman, Patterson, 2009.

    Examples
    --------
    >>> bound(POINTS.empty())["bound"].tolist()
    []
    """
    table = pd.concat([POINTS.check(points), _shares(points, ceilings)], axis=1)
    launch = table.groupby(POINTS.column_names[:5], observed=True, dropna=False, sort=False).ngroup()
    over = table[["compute_share_frac", "dram_share_frac"]].max(axis=1)
    refused = _of_launch(over > REFUSED_ABOVE, launch)
    vendor = speed_of_light(table["sm_frac"], table["memory_frac"], table["waves"])
    roof = _by_roof(table, launch)
    verdict = vendor.where(vendor != "not measured", roof).mask(refused, "refused")
    rule = pd.Series("speed of light", table.index).where(vendor != "not measured", "roofline")
    measured = ceilings is not None and bool((ceilings["count"] > 0).any())
    nearest = table["roof_share_frac"] == table["roof_share_frac"].groupby(launch).transform("max")
    rows = table.assign(verdict=verdict, rule=rule, measured=measured, nearest=nearest).to_dict("records")
    return table.assign(
        **{name: table[name].mask(refused | (table[name] > REFUSED_ABOVE)) for name in (*_SHARES, "roof_share_frac")},
        bound=pd.Categorical(verdict, BOUNDS),
        rule=rule.mask(verdict.isin(["refused", "not measured"])).astype("category"),
        reason=pd.array([_reason(row) for row in rows], "string"),
    )


def speed_of_light(sm_frac: pd.Series, memory_frac: pd.Series, waves: pd.Series) -> pd.Series:
    """Return the verdict of the vendor's rule on compute and memory throughput, "not measured" where one is NaN.

    One at 80 % or above: the larger names the bound. Else one at 60 % or above: the larger names it if it leads by
    10 points, balanced otherwise. Both under 60 %: latency, or small_grid where the grid does not fill the GPU once.

    Parameters
    ----------
    sm_frac, memory_frac
        Throughput over its peak, of one index.
    waves
        Times the grid fills the GPU; NaN, not recorded, counts as one that does.

    Examples
    --------
    >>> column = pd.Series
    >>> speed_of_light(column([0.78, 0.2, 0.2]), column([0.46, 0.3, 0.3]), column([9.0, 2.0, 0.5])).tolist()
    ['compute', 'latency', 'small_grid']
    """
    # Rounded to what the reports print, so that 0.7 - 0.6 is the ten points it is.
    lead = (sm_frac - memory_frac).round(9)
    top = np.fmax(sm_frac, memory_frac)
    larger = np.select([lead > 0, lead < 0], ["compute", "memory"], "balanced")
    clear = np.where(lead.abs() >= APART, larger, "balanced")
    waiting = np.where(waves < 1, "small_grid", "latency")
    chosen = np.select([lead.isna(), top >= HIGH, top >= BUSY], ["not measured", larger, clear], waiting)
    return pd.Series(chosen, sm_frac.index, dtype=object)


def _shares(points: pd.DataFrame, ceilings: pd.DataFrame | None) -> pd.DataFrame:
    """Return the ridge and the share of every roof for each point."""
    roofs = CEILINGS.empty() if ceilings is None else CEILINGS.check(ceilings)
    precision = points["precision"].astype(object)
    peak = _peak(points, precision, roofs, "flops_per_s")
    # FP16 accumulation has a roof of its own on some GPUs; elsewhere that of FP32 accumulation is the same.
    peak = peak.fillna(_peak(points, precision.astype("string").str.removesuffix("_acc16"), roofs, "flops_per_s"))
    seconds = points["dur_ns"].where(points["dur_ns"] > 0) / 1e9
    shares = {"compute_share_frac": (points["flops_per_s"] / peak).mask(points["flops"] == 0, 0.0)}
    bandwidth = {level: _peak(points, pd.Series(level, points.index), roofs, "bytes_per_s") for level in LEVELS}
    shares |= {f"{level}_share_frac": points[f"{level}_bytes"] / seconds / bandwidth[level] for level in LEVELS}
    nearest = np.fmax(shares["compute_share_frac"], shares["dram_share_frac"])
    return pd.DataFrame({"ridge": peak / bandwidth["dram"], **shares, "roof_share_frac": nearest})


def _peak(points: pd.DataFrame, roof: pd.Series, roofs: pd.DataFrame, unit: str) -> pd.Series:
    """Return the peak of the named roof of each point's device, NaN where there is none."""
    known = roofs.set_index([roofs["rank"], roofs["gpu"], roofs["roof"].astype(object)])[unit]
    wanted = pd.MultiIndex.from_arrays([points["rank"], points["gpu"], roof.astype(object)])
    return pd.Series(known.reindex(wanted).to_numpy("float64"), points.index)


def _of_launch(flag: pd.Series, launch: pd.Series) -> pd.Series:
    """Return whether any point of the same launch has the flag."""
    return flag.groupby(launch).transform("any")


def _by_roof(table: pd.DataFrame, launch: pd.Series) -> pd.Series:
    """Return the verdict of the roof; it needs both shares unless the one that is known is high."""
    share, best = table["roof_share_frac"], table["roof_share_frac"].groupby(launch).transform("max")
    memory = table["dram_share_frac"] > table["compute_share_frac"].fillna(0.0)
    at_memory = _of_launch(memory & (share == best), launch)
    whole = ~_of_launch(table[["compute_share_frac", "dram_share_frac"]].isna().any(axis=1), launch)
    chosen = np.select(
        [best.isna() | (best < LATENCY_BELOW) & ~whole, best < LATENCY_BELOW, at_memory],
        ["not measured", "latency", "memory"],
        "compute",
    )
    return pd.Series(chosen, table.index, dtype=object)


def _reason(row: Row) -> str:
    if row["verdict"] == "refused":
        return refusal(row)
    if row["verdict"] == "not measured":
        return unmeasured(row)
    return speed_of_light_reason(row) if row["rule"] == "speed of light" else roofline_reason(row)
