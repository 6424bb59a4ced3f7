"""Pictures of which framework operators take the time, and of how long the steps wait for data.

Conventions
-----------
Frames are those of `perfkit.analysis.operators` and `perfkit.analysis.input_wait`. Self time is without that of the
operators called inside; an operator's GPU time is the sum over the kernels it launched itself. CPU and GPU work at the
same time: their times do not add up to wall time.

Functions
---------
bars     the operators that take most GPU time, with their CPU time beside it
steps    the time of each step, split into waiting for data and the rest
"""

from __future__ import annotations

import altair as alt
import pandas as pd

from perfkit.charts.data import inline, need
from perfkit.charts.steps import steps
from perfkit.charts.theme import CAUSE_COLOURS, KIND_COLOURS, WIDTH, colours, ink, layered, nothing, register
from perfkit.format import TIME, Unit, duration, elided, percent, printable, unit

__all__ = ["bars", "steps"]

GPU, CPU, UNKNOWN = "GPU time of its kernels", "CPU time", "GPU time, no operator recorded"
SERIES_COLOURS = {GPU: KIND_COLOURS["computation"], CPU: CAUSE_COLOURS["host_wait"], UNKNOWN: "#9A9A9A"}
COLUMNS = {GPU: "gpu_self_ns", CPU: "cpu_self_ns"}
FIGURES = ["count", "kernel_count", "gpu_self_ns", "cpu_self_ns"]
LONGEST_LABEL, LONGEST_NAME = 44, 400  # characters
LABEL_WIDTH = 300  # pixels


def bars(summary: pd.DataFrame, *, top: int = 12, title: str = "") -> alt.LayerChart:
    """Draw GPU and CPU self time of the operators that take most GPU time, and of all others together.

    Without any GPU time those that take most CPU time are drawn. Kernels without an operator have a grey bar of
    their own, at the bottom.

    Parameters
    ----------
    summary
        Columns name (missing for kernels without an operator), count, cpu_self_ns, gpu_self_ns, kernel_count: one row
        per operator, in any order; may be empty.
    top
        Number of operators with bars of their own, at least 1.
    title
        What is seen; the share of the first operator when empty.

    Returns
    -------
    altair.LayerChart

    Raises
    ------
    SchemaError
        If a column is missing.
    ValueError
        If `top` is below 1.
    """
    need(summary, "name", *FIGURES)
    if top < 1:
        raise ValueError(f"top: {top} is not at least 1")
    by = "gpu_self_ns" if summary["gpu_self_ns"].any() else "cpu_self_ns"
    if not summary[by].any():
        return nothing(title or "No operators", "No operator took time in this window.")
    register()
    named = summary[summary["name"].notna()].sort_values(by, ascending=False, kind="stable")
    drawn = _series(_rows(named, by, top), summary)
    scale = unit(float(drawn["time"].max()), TIME)
    return layered(
        _lengths(drawn.assign(time=drawn["time"] / scale.size), scale),
        title or _title(named.iloc[:1], by, summary),
        _explained(float(summary["cpu_self_ns"].sum()), float(summary["gpu_self_ns"].sum())),
        picture=f"Bars of GPU and CPU time of {', '.join(drawn['label'].unique()[:8])}",
        size=(WIDTH - 160, alt.Step(13)),
    )


def _title(first: pd.DataFrame, by: str, summary: pd.DataFrame) -> str:
    total, lost = summary[by].sum(), summary.loc[summary["name"].isna(), by].sum()
    if not first[by].any():
        return "No operator was recorded for any kernel"
    name, share = printable(first["name"].iloc[0], LONGEST_LABEL), percent(first[by].iloc[0] / total)
    beside = f"; {percent(lost / total)} has no operator recorded" if lost else ""
    return f"{name} {'launches' if by == COLUMNS[GPU] else 'takes'} {share} of the {by[:3].upper()} time{beside}"


def _explained(cpu: float, gpu: float) -> str:
    kernels = (
        f"{duration(gpu)} of kernels, {duration(cpu)} on the CPU meanwhile" if gpu else f"{duration(cpu)} on the CPU"
    )
    return f"Self time, without operators called inside: {kernels}."


def _rows(named: pd.DataFrame, by: str, top: int) -> pd.DataFrame:
    """Return the first `top` operators that have time, and one row that sums the rest."""
    shown = named[named[by] > 0].head(top)
    rows = shown[FIGURES].assign(
        label=[f"{number}. {elided(name, LONGEST_LABEL)}" for number, name in enumerate(shown["name"], start=1)],
        name=[printable(name, LONGEST_NAME) for name in shown["name"]],
    )
    rest = named.iloc[len(shown) :]
    if rest.empty:
        return rows
    label = f"{len(rest)} other operators" if len(rest) > 1 else "1 other operator"
    return pd.concat([rows, rest[FIGURES].sum().to_frame().T.assign(label=label, name=label)], ignore_index=True)


def _series(rows: pd.DataFrame, summary: pd.DataFrame) -> pd.DataFrame:
    """Return one row per bar, in ns: GPU and CPU of each operator, and kernels without an operator last."""
    lost = summary[summary["name"].isna()][FIGURES].sum()
    label = "no operator recorded"
    lacking = lost.to_frame().T.assign(label=label, name=label, series=UNKNOWN, time=lost["gpu_self_ns"])
    both = [rows.assign(series=series, time=rows[column]) for series, column in COLUMNS.items()]
    drawn = pd.concat([*both, lacking], ignore_index=True)
    drawn = drawn[drawn["time"] > 0]
    share = (drawn["gpu_self_ns"] / (summary["gpu_self_ns"].sum() or 1)).map(percent)
    told = drawn["time"].map(duration)
    on_cpu = drawn["series"] == CPU
    return drawn[["label", "name", "series", "time", "count", "kernel_count"]].assign(
        slot=on_cpu.map({False: "GPU", True: "CPU"}), said=told.where(on_cpu, told + " · " + share)
    )


def _lengths(drawn: pd.DataFrame, scale: Unit) -> list[alt.Chart]:
    """Return bars and their times; the outline keeps a bar visible that is too short beside the others."""
    room = alt.Scale(domain=[0, 1.3 * float(drawn["time"].max())], nice=False)
    shades = colours(SERIES_COLOURS, {}, drawn["series"])
    length = alt.X("time:Q", title=f"self time ({scale.symbol})", scale=room)
    labels = drawn["label"].drop_duplicates().tolist()
    place = alt.Y("label:N", title=None, sort=labels, axis=alt.Axis(labelLimit=LABEL_WIDTH, labelFontSize=11))
    beside = alt.YOffset("slot:N", sort=["GPU", "CPU"])
    shown = [
        alt.Tooltip("name:N", title="operator"),
        alt.Tooltip("series:N", title="what"),
        alt.Tooltip("said:N", title="time"),
        alt.Tooltip("count:Q", title="calls", format=","),
        alt.Tooltip("kernel_count:Q", title="kernels launched", format=","),
    ]
    fill, stroke = (kind("series:N", scale=shades, title=None) for kind in (alt.Fill, alt.Stroke))
    marks = alt.Chart(inline(drawn)).mark_bar(strokeWidth=1).encode(length, place, beside, fill, stroke, shown)
    return [marks, ink(inline(drawn), dx=5).encode(length, place, beside, alt.Text("said:N"))]
