"""Pictures of what differs between two runs: time per family of kernels, and ratios with their intervals.

Conventions
-----------
Frames are those of `perfkit.analysis.compare`. A ratio is after over before, on a logarithmic axis, so that twice as
fast and twice as slow are equally far from 1. Colours tell the verdict, and so do words.

Functions
---------
families    time per family of kernels, before and after
intervals   ratios with their confidence intervals and verdicts
"""

from __future__ import annotations

import math

import altair as alt
import numpy as np
import pandas as pd

from perfkit.charts.data import inline, known, need
from perfkit.charts.theme import CAUSE_COLOURS, KIND_COLOURS, WIDTH, colours, ink, layered, nothing, register
from perfkit.format import TIME, duration, elided, number, percent, unit

SIDES = {"before": KIND_COLOURS["idle"], "after": KIND_COLOURS["computation"]}
VERDICT_COLOURS = {
    "better": KIND_COLOURS["computation"],
    "worse": KIND_COLOURS["communication"],
    "no difference seen": "#808080",
    "changed": KIND_COLOURS["other_kernels"],
    "changed, not tested": CAUSE_COLOURS["host_wait"],
    "cannot tell": CAUSE_COLOURS["edge"],
    "new": CAUSE_COLOURS["other"],
    "gone": CAUSE_COLOURS["kernel_wait"],
}
LONGEST_LABEL = 46
MOST_ROWS = 30
WIDEST = 32.0  # an axis that reaches further than this factor shows nothing near 1


def families(frame: pd.DataFrame, *, per: str = "step", title: str = "") -> alt.LayerChart:
    """Draw the kernel time of each family before and after, the family whose time moved most first.

    Parameters
    ----------
    frame
        Columns family, before_ns, after_ns, difference_ns, verdict, as from `analysis.compare.families`; may be empty.
    per
        What the times are of: step or run.
    title
        What is seen; how much kernel time moved when empty.

    Returns
    -------
    altair.LayerChart

    Raises
    ------
    SchemaError
        If a column is missing.
    ValueError
        If a verdict is unknown, or a time negative.
    """
    need(frame, "family", "before_ns", "after_ns", "difference_ns", "verdict")
    known(frame, "verdict", VERDICT_COLOURS)
    if (frame[["before_ns", "after_ns"]] < 0).any(axis=None):
        raise ValueError(f"frame: a time is {frame[['before_ns', 'after_ns']].min().min()} ns, below 0")
    if frame.empty:
        return nothing(title or "No kernels to compare", "Neither run has kernels, or no step of them was found.")
    register()
    rows = frame.iloc[frame["difference_ns"].abs().argsort(kind="stable")[::-1]]
    sums = rows[["before_ns", "after_ns"]].sum()
    words = elided(per, LONGEST_LABEL)
    return layered(
        _pairs(rows, words),
        title or _moved(sums["before_ns"], sums["after_ns"], words),
        f"Mean kernel time per {words}; kernels that run at once count in full. Beside each pair: the difference.",
        picture=f"Pairs of bars, before and after, for {len(rows)} families of kernels",
        size=(WIDTH - 140, alt.Step(18)),
    )


def _moved(before: float, after: float, per: str) -> str:
    """Say how the kernel time of all families changed."""
    told = f"from {duration(before)} to {duration(after)}"
    if before <= 0 or abs(after / before - 1) < 0.005:
        return f"Kernel time per {per} stays at {duration(after)}" if before else f"Kernel time per {per}: {told}"
    way = "falls" if after < before else "rises"
    return f"Kernel time per {per} {way} by {percent(abs(after / before - 1))}, {told}"


def _pairs(rows: pd.DataFrame, per: str) -> list[alt.Chart]:
    """Return two bars per family, and the difference beside the longer one."""
    scale = unit(float(rows[["before_ns", "after_ns"]].max().max()), TIME)
    labels = [elided(name, LONGEST_LABEL) for name in rows["family"].astype(str)]
    told = [f"{'+' * (gap > 0)}{duration(gap)} · {said}" for gap, said in _gaps(rows)]
    drawn = pd.concat(
        [
            pd.DataFrame(
                {
                    "label": labels,
                    "side": side,
                    "time": rows[f"{side}_ns"].to_numpy() / scale.size,
                    "told": rows[f"{side}_ns"].map(duration).tolist(),
                    "words": told if side == "after" else "",
                }
            )
            for side in SIDES
        ],
        ignore_index=True,
    )
    room = alt.Scale(domain=[0, 1.6 * float(drawn["time"].max()) or 1], nice=False)
    length = alt.X("time:Q", title=f"kernel time per {per} ({scale.symbol})", scale=room)
    place = alt.Y("label:N", title=None, sort=labels)
    beside = alt.YOffset("side:N", sort=list(SIDES), scale=alt.Scale(paddingInner=0.1))
    shown = [alt.Tooltip("label:N", title="family"), alt.Tooltip("side:N"), alt.Tooltip("told:N", title="time")]
    shade = alt.Color("side:N", scale=colours(SIDES, {}, SIDES), title=None)
    data = inline(drawn)
    bars = alt.Chart(data).mark_bar().encode(length, place, beside, shade, shown)
    return [bars, ink(data, dx=5).encode(length, place, beside, alt.Text("words:N"))]


def _gaps(rows: pd.DataFrame) -> zip[tuple[float, str]]:
    return zip(rows["difference_ns"].tolist(), rows["verdict"].astype(str).tolist(), strict=True)


def intervals(frame: pd.DataFrame, *, label: str = "label", title: str = "") -> alt.LayerChart:
    """Draw ratios after / before with their confidence intervals, the verdict in colour and words.

    Parameters
    ----------
    frame
        Columns ratio, ratio_low, ratio_high, verdict and the one named by `label`, as from `analysis.compare.families`
        or `steps`; rows without an interval are drawn as points, without a ratio left out; may be empty.
    label
        Column that names a row.
    title
        What is seen; how many got better and worse when empty.

    Returns
    -------
    altair.LayerChart

    Raises
    ------
    SchemaError
        If a column is missing.
    ValueError
        If a verdict is unknown.
    """
    need(frame, label, "ratio", "ratio_low", "ratio_high", "verdict")
    known(frame, "verdict", VERDICT_COLOURS)
    rows = frame[frame["ratio"] > 0].head(MOST_ROWS)
    if rows.empty:
        return nothing(title or "Nothing to compare", "No value is there both before and after.")
    register()
    drawn = _ranges(rows, label)
    return layered(
        _marks(drawn),
        title or _counted(rows["verdict"].astype(str).tolist()),
        "Below 1 is less than before. A verdict needs the whole interval beyond 1 by what matters.",
        picture=f"Points with intervals on a logarithmic axis, {len(drawn)} rows",
        size=(WIDTH - 140, alt.Step(24)),
    )


def _counted(verdicts: list[str]) -> str:
    """Say how many rows have each verdict."""
    said = {word: verdicts.count(word) for word in VERDICT_COLOURS if word in verdicts}
    return f"Of {len(verdicts)}: " + ", ".join(f"{count} {word}" for word, count in said.items())


def _ranges(rows: pd.DataFrame, label: str) -> pd.DataFrame:
    """Return what is drawn; ends beyond the axis are at its edge and told in words."""
    low, high = (rows[f"ratio_{end}"].where(rows[f"ratio_{end}"].notna(), rows["ratio"]) for end in ("low", "high"))
    drawn = pd.DataFrame({"label": [elided(name, LONGEST_LABEL) for name in rows[label].astype(str)]})
    drawn["place"] = [f"{name} ({i})" if twice else name for i, (name, twice) in _repeated(drawn["label"])]
    for name, values in (("ratio", rows["ratio"]), ("low", low), ("high", high)):
        drawn[name] = np.clip(values.to_numpy(np.float64), 1 / WIDEST, WIDEST)
    drawn["verdict"] = rows["verdict"].astype(str).tolist()
    known_ends = zip(rows["ratio"], rows["ratio_low"], rows["ratio_high"], strict=True)
    drawn["told"] = [_spoken(*ends) for ends in known_ends]
    return drawn


def _repeated(labels: pd.Series) -> list[tuple[int, tuple[str, bool]]]:
    return list(enumerate(zip(labels, labels.duplicated(), strict=True)))


def _spoken(ratio: float, low: float, high: float) -> str:
    """Return a ratio and its interval as text."""
    if math.isnan(low):
        return f"{number(ratio)} (no interval)"
    return f"{number(ratio)} ({number(low)} to {'∞' if math.isinf(high) else number(high)})"


def _marks(drawn: pd.DataFrame) -> list[alt.Chart]:
    """Return a line at 1, the intervals, the ratios, and both in words."""
    reach = max(drawn["high"].max(), 1 / drawn["low"].min(), 1.02)
    scale = alt.Scale(type="log", domain=[reach**-1.08, reach**2.2], nice=False)
    axis = alt.Axis(format="~r", tickCount=6)
    x = alt.X("ratio:Q", title="after over before (ratio, logarithmic)", scale=scale, axis=axis)
    low, right = alt.X("low:Q", scale=scale), alt.X("high:Q", scale=scale)
    place = alt.Y("place:N", title=None, sort=drawn["place"].tolist())
    shade = alt.Color("verdict:N", scale=colours(VERDICT_COLOURS, {}, drawn["verdict"]), title=None)
    data = inline(drawn.assign(one=1.0, words=drawn["told"] + " · " + drawn["verdict"]))
    shown = [
        alt.Tooltip("label:N", title="what"),
        alt.Tooltip("told:N", title="ratio and interval"),
        alt.Tooltip("verdict:N"),
    ]
    rows = alt.Chart(data)
    return [
        rows.mark_rule(strokeDash=[4, 4], color="#808080", tooltip=False).encode(alt.X("one:Q", scale=scale)),
        rows.mark_rule(strokeWidth=3, tooltip=False).encode(low, alt.X2("high"), place, shade),
        rows.mark_point(filled=True, size=70, opacity=1).encode(x, place, shade, shown),
        ink(data, dx=8).encode(right, place, alt.Text("words:N")),
    ]
