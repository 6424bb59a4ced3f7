"""Pictures of what differs between two runs: time per family of kernels, and ratios with their intervals.

Frames are those of `perfkit.analysis.compare`. A ratio is after over before, on a logarithmic axis: twice as fast and
twice as slow are equally far from 1. The last bar of `steps` leads from the first run to the last, compared directly.
"""

import math

import altair as alt
import numpy as np
import pandas as pd

from perfkit.charts import checks
from perfkit.charts.theme import (
    CAUSE_COLOURS,
    KIND_COLOURS,
    WIDTH,
    colours,
    hover,
    ink,
    inline,
    layered,
    nothing,
)
from perfkit.format import TIME, duration, elided, number, percent, spoken_ends, unit

SIDES = {"before": KIND_COLOURS["idle"], "after": KIND_COLOURS["computation"]}
VERDICT_COLOURS = {
    "better": KIND_COLOURS["computation"],
    "worse": KIND_COLOURS["communication"],
    "too small to matter": "#606060",
    "no difference seen": "#808080",
    "changed": KIND_COLOURS["other_kernels"],
    "changed, not tested": CAUSE_COLOURS["host_wait"],
    "cannot tell": CAUSE_COLOURS["edge"],
    "new": CAUSE_COLOURS["other"],
    "gone": CAUSE_COLOURS["kernel_wait"],
}
LONGEST_LABEL, LONGEST_STEP = 46, 40  # characters
MOST_ROWS = 30
WIDEST = 32.0  # an axis that reaches further than this factor shows nothing near 1
WHOLE = "step time"  # what a bar from 0 shows
REACHED, GAINED, LOST = "reached before", "gained", "lost"
SHARES = {
    REACHED: KIND_COLOURS["idle"],
    GAINED: KIND_COLOURS["computation"],
    LOST: KIND_COLOURS["communication"],
}


def families(frame: pd.DataFrame, *, per: str = "step") -> alt.LayerChart:
    """Draw the kernel time of each family before and after, the family whose time moved most first.

    `frame`: columns family, before_ns, after_ns, difference_ns, verdict, as from `analysis.compare.families`; no time
    is negative. `per`: what the times are of: step or run.
    """
    checks.need(frame, "family", "before_ns", "after_ns", "difference_ns", "verdict")
    checks.known(frame, "verdict", VERDICT_COLOURS)
    if (frame[["before_ns", "after_ns"]] < 0).any(axis=None):
        raise ValueError(
            f"frame: a time is {frame[['before_ns', 'after_ns']].min().min()} ns, below 0"
        )
    if frame.empty:
        return nothing(
            "No kernels to compare",
            "Neither run has kernels, or no step of them was found.",
        )
    rows = frame.iloc[frame["difference_ns"].abs().argsort(kind="stable")[::-1]]
    sums = rows[["before_ns", "after_ns"]].sum()
    words = elided(per, LONGEST_LABEL)
    return layered(
        _pairs(rows, words),
        _moved(sums["before_ns"], sums["after_ns"], words),
        f"Mean kernel time per {words}; kernels that run at once count in full. Beside each pair: the difference.",
        picture=f"Pairs of bars, before and after, for {len(rows)} families of kernels",
        size=(WIDTH - 140, alt.Step(18)),
    )


def _moved(before: float, after: float, per: str) -> str:
    times = f"from {duration(before)} to {duration(after)}"
    if before <= 0 or abs(after / before - 1) < 0.005:
        return (
            f"Kernel time per {per} stays at {duration(after)}"
            if before
            else f"Kernel time per {per}: {times}"
        )
    way = "falls" if after < before else "rises"
    return f"Kernel time per {per} {way} by {percent(abs(after / before - 1))}, {times}"


def _pairs(rows: pd.DataFrame, per: str) -> list[alt.Chart]:
    """Return two bars per family, and the difference beside the longer one."""
    scale = unit(float(rows[["before_ns", "after_ns"]].max().max()), TIME)
    labels = [elided(name, LONGEST_LABEL) for name in rows["family"].astype(str)]
    gaps = zip(rows["difference_ns"].tolist(), rows["verdict"].astype(str).tolist(), strict=True)
    differences = [f"{'+' * (gap > 0)}{duration(gap)} · {verdict}" for gap, verdict in gaps]
    pair = pd.DataFrame({"label": labels})
    times = {side: rows[f"{side}_ns"].reset_index(drop=True) for side in SIDES}
    sides = [
        pair.assign(side=side, time=t / scale.size, told=t.map(duration), words="")
        for side, t in times.items()
    ]
    drawn = pd.concat([sides[0], sides[1].assign(words=differences)], ignore_index=True)
    room = alt.Scale(domain=[0, 1.6 * float(drawn["time"].max()) or 1], nice=False)
    length = alt.X(
        "time:Q",
        title=f"kernel time per {per} ({scale.symbol})",
        scale=room,
        axis=alt.Axis(tickCount=8),
    )
    place = alt.Y("label:N", title=None, sort=labels)
    beside = alt.YOffset("side:N", sort=list(SIDES), scale=alt.Scale(paddingInner=0.1))
    shown = hover(("label", "family"), "side", ("told", "time"))
    shade = alt.Color("side:N", scale=colours(SIDES, {}, SIDES), title=None)
    data = inline(drawn)
    bars = alt.Chart(data).mark_bar().encode(length, place, beside, shade, shown)
    return [bars, ink(data, dx=5).encode(length, place, beside, alt.Text("words:N"))]


def intervals(frame: pd.DataFrame, *, label: str = "label", title: str = "") -> alt.LayerChart:
    """Draw ratios after / before with their confidence intervals, the verdict in colour and words.

    `frame`: columns ratio, ratio_low, ratio_high, verdict and the one named by `label`, as from
    `analysis.compare.families` or `steps`; rows without an interval are drawn as points, without a ratio left out.
    """
    checks.need(frame, label, "ratio", "ratio_low", "ratio_high", "verdict")
    checks.known(frame, "verdict", VERDICT_COLOURS)
    rows = frame[frame["ratio"] > 0].head(MOST_ROWS)
    if rows.empty:
        return nothing(title or "Nothing to compare", "No value is there both before and after.")
    drawn, verdicts = _ranges(rows, label), rows["verdict"].astype(str).tolist()
    counts = [f"{verdicts.count(word)} {word}" for word in VERDICT_COLOURS if word in verdicts]
    return layered(
        _marks(drawn),
        title or f"Of {len(rows)}: {', '.join(counts)}",
        "Below 1 is less than before. A verdict needs the whole interval beyond 1 by what matters.",
        picture=f"Points with intervals on a logarithmic axis, {len(drawn)} rows",
        size=(WIDTH - 140, alt.Step(24)),
    )


def _ranges(rows: pd.DataFrame, label: str) -> pd.DataFrame:
    """Return what is drawn; ends beyond the axis are at its edge and told in words."""
    low, high = (
        rows[f"ratio_{end}"].where(rows[f"ratio_{end}"].notna(), rows["ratio"])
        for end in ("low", "high")
    )
    drawn = pd.DataFrame(
        {"label": [elided(name, LONGEST_LABEL) for name in rows[label].astype(str)]}
    )
    repeated = enumerate(zip(drawn["label"], drawn["label"].duplicated(), strict=True))
    drawn["place"] = [f"{name} ({i})" if twice else name for i, (name, twice) in repeated]
    for name, values in (("ratio", rows["ratio"]), ("low", low), ("high", high)):
        drawn[name] = np.clip(values.to_numpy(np.float64), 1 / WIDEST, WIDEST)
    drawn["verdict"] = rows["verdict"].astype(str).tolist()
    ends = zip(rows["ratio"], rows["ratio_low"], rows["ratio_high"], strict=True)
    told = [
        f"{number(ratio)} ({'no interval' if math.isnan(a) else spoken_ends(a, b)})"
        for ratio, a, b in ends
    ]
    return drawn.assign(told=told)


def _marks(drawn: pd.DataFrame) -> list[alt.Chart]:
    reach = max(drawn["high"].max(), 1 / drawn["low"].min(), 1.02)
    scale = alt.Scale(type="log", domain=[reach**-1.08, reach**2.2], nice=False)
    axis = alt.Axis(format="~r", tickCount=6)
    x = alt.X("ratio:Q", title="after over before (ratio, logarithmic)", scale=scale, axis=axis)
    low, right = alt.X("low:Q", scale=scale), alt.X("high:Q", scale=scale)
    place = alt.Y("place:N", title=None, sort=drawn["place"].tolist())
    shade = alt.Color("verdict:N", scale=colours(VERDICT_COLOURS, {}, drawn["verdict"]), title=None)
    data = inline(drawn.assign(one=1.0, words=drawn["told"] + " · " + drawn["verdict"]))
    shown = hover(("label", "figure"), ("told", "ratio and interval"), "verdict")
    rows = alt.Chart(data)
    return [
        rows.mark_rule(strokeDash=[4, 4], color="#808080", tooltip=False).encode(
            alt.X("one:Q", scale=scale)
        ),
        rows.mark_rule(strokeWidth=3, tooltip=False).encode(low, alt.X2("high"), place, shade),
        rows.mark_point(filled=True, size=70, opacity=1).encode(x, place, shade, shown),
        ink(data, dx=8).encode(right, place, alt.Text("words:N")),
    ]


def steps(ledger: pd.DataFrame, *, of: str = WHOLE, title: str = "") -> alt.LayerChart:
    """Draw the step time of the first and last run as bars from 0, and of each between them what it changed.

    `ledger`: columns label, step_ns (above 0; rows without one are left out), step_low_ns, step_high_ns, change_ns,
    verdict, cumulative_ratio; runs in their order. `of`: what the times are, if not step times but, say, times by
    sample.
    """
    checks.need(
        ledger,
        "label",
        "step_ns",
        "step_low_ns",
        "step_high_ns",
        "change_ns",
        "verdict",
        "cumulative_ratio",
    )
    checks.known(ledger, "verdict", VERDICT_COLOURS)
    runs = ledger[ledger["step_ns"].notna()].reset_index(drop=True)
    if runs.empty:
        return nothing(title or "No step times", "No steady steps were found in any of the runs.")
    if not (runs["step_ns"] > 0).all():
        raise ValueError(f"step_ns: {runs['step_ns'].min()} is not above 0")
    return layered(
        _bars(_floating(runs), elided(of, LONGEST_STEP)),
        title or _whole(runs),
        "Median of the steady steps; thin lines: its interval. Each change is against the run above it.",
        picture=f"Waterfall of the step times of {len(runs)} runs",
        size=(WIDTH - 120, alt.Step(30)),
    )


def _whole(runs: pd.DataFrame) -> str:
    first, last = float(runs["step_ns"].iloc[0]), float(runs["step_ns"].iloc[-1])
    if len(runs) == 1:
        return f"One run, whose steps take {duration(first)}"
    changes = "1 change takes" if len(runs) == 2 else f"{len(runs) - 1} changes take"
    return f"{changes} the step from {duration(first)} to {duration(last)}: {number(first / last)} times as fast"


def _floating(runs: pd.DataFrame) -> pd.DataFrame:
    """Return a bar per run from the step time before it to its own, the first from 0, and the last again from 0."""
    before = runs["step_ns"].shift().fillna(0.0)
    columns = {
        "label": _labels(runs["label"]),
        "begin": before,
        "end": runs["step_ns"],
        "low": runs["step_low_ns"],
        "high": runs["step_high_ns"],
        "verdict": runs["verdict"].astype(object).where(runs["verdict"].notna(), WHOLE),
        "words": [_changed(*row) for row in zip(runs["step_ns"], before, strict=True)],
    }
    drawn = pd.DataFrame(columns)
    if len(runs) > 1:
        last = drawn.iloc[[-1]].assign(label="all changes together", begin=0.0, verdict=WHOLE)
        drawn = pd.concat(
            [drawn, last.assign(words=duration(float(last["end"].iloc[0])))], ignore_index=True
        )
    scale = unit(float(drawn[["begin", "end", "high"]].max().max()), TIME)
    lengths = {column: drawn[column] / scale.size for column in ("begin", "end", "low", "high")}
    right = pd.DataFrame(lengths)[["begin", "end", "high"]].max(axis=1)
    return drawn.assign(
        **lengths, told=drawn["end"].map(duration), right=right, symbol=scale.symbol
    )


def _changed(step: float, before: float) -> str:
    """Return a step time and by how much it differs from the one before."""
    if not before:
        return duration(step)
    gap = step / before - 1
    return f"{duration(step)} ({'+' if gap > 0 else '-' if gap < 0 else '±'}{percent(abs(gap))})"


def _labels(labels: pd.Series) -> list[str]:
    """Return labels of one line, numbered in the order of the changes."""
    return [f"{i}. " * (i > 0) + elided(label, LONGEST_STEP) for i, label in enumerate(labels)]


def _bars(drawn: pd.DataFrame, of: str) -> list[alt.Chart]:
    drawn = drawn.assign(verdict=drawn["verdict"].replace(WHOLE, of))
    room = alt.Scale(domain=[0, 1.45 * float(drawn["right"].max())], nice=False)
    title = f"{of} ({drawn['symbol'].iloc[0]})"
    place = alt.Y("label:N", title=None, sort=drawn["label"].tolist())
    shades = colours({of: KIND_COLOURS["idle"], **VERDICT_COLOURS}, {}, drawn["verdict"])
    shade = alt.Color("verdict:N", scale=shades, title=None)
    data = inline(drawn)
    shown = hover(("label", "change"), ("told", of), ("words", "against the run before"), "verdict")
    rows = alt.Chart(data)
    begin, low, right = (
        alt.X(f"{column}:Q", title=title, scale=room) for column in ("begin", "low", "right")
    )
    return [
        rows.mark_bar(height=alt.RelativeBandSize(band=0.7)).encode(
            begin, alt.X2("end"), place, shade, shown
        ),
        rows.mark_rule(color="#404040", tooltip=False).encode(low, alt.X2("high"), place),
        ink(data, dx=6).encode(right, place, alt.Text("words:N")),
    ]


def utilisation(ledger: pd.DataFrame, *, of: str = "GPU utilisation") -> alt.LayerChart:
    """Draw the utilisation after each change, and which part of it the change brought.

    `ledger`: columns label and utilisation_frac, 0..1 (rows without one are left out); runs in their order. `of`: which
    of the meanings of utilisation it is.
    """
    checks.need(ledger, "label", "utilisation_frac")
    checks.fraction(ledger, "utilisation_frac")
    runs = ledger[ledger["utilisation_frac"].notna()].reset_index(drop=True)
    what = elided(of, LONGEST_STEP)
    if runs.empty:
        return nothing(f"No {what}", "None of the runs names its utilisation.")
    # What was reached before each change, and what it gained or lost, end to end.
    share, before = (
        runs["utilisation_frac"],
        runs["utilisation_frac"].shift().fillna(runs["utilisation_frac"]),
    )
    gaps, both = 100 * (share - before), pd.concat([share, before], axis=1)
    points = [
        f" ({'+' if gap > 0 else '-'}{number(abs(gap))} points)" if gap else "" for gap in gaps
    ]
    words = share.map(percent) + points
    reached = pd.DataFrame({"label": _labels(runs["label"]), "begin": 0.0, "end": both.min(axis=1)})
    moved = reached.assign(begin=reached["end"], end=both.max(axis=1))
    moved = moved.assign(part=[GAINED if up else LOST for up in share >= before], words=words)
    parts = pd.concat([reached.assign(part=REACHED, words=""), moved], ignore_index=True)
    drawn = parts.assign(
        told=parts["label"].map(dict(zip(reached["label"], share.map(percent), strict=True)))
    )
    first, last = (percent(runs["utilisation_frac"].iloc[at]) for at in (0, -1))
    return layered(
        _stacks(drawn, what),
        f"{what} goes from {first} to {last} in {len(runs) - 1} change{'s' * (len(runs) > 2)}",
        "Each change is against the run above it, in percentage points.",
        picture=f"Stacked bars of {len(runs)} runs: what was reached before, and what each change gained or lost",
        size=(WIDTH - 120, alt.Step(30)),
    )


def _stacks(drawn: pd.DataFrame, what: str) -> list[alt.Chart]:
    scale = alt.Scale(domain=[0, 1.3], nice=False)
    axis = alt.Axis(format="%", values=[0, 0.2, 0.4, 0.6, 0.8, 1])
    begin, end = (
        alt.X(f"{side}:Q", title=f"{what} (%)", scale=scale, axis=axis) for side in ("begin", "end")
    )
    place = alt.Y("label:N", title=None, sort=drawn["label"].drop_duplicates().tolist())
    shade = alt.Color("part:N", scale=colours(SHARES, {}, drawn["part"]), title=None)
    data = inline(drawn)
    shown = hover(("label", "change"), "part", ("told", "utilisation"))
    bars = alt.Chart(data).mark_bar(height=alt.RelativeBandSize(band=0.7))
    bars = bars.encode(begin, alt.X2("end"), place, shade, shown)
    return [bars, ink(data, dx=6).encode(end, place, alt.Text("words:N"))]
