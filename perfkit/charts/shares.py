"""Stacked bars of what time is made of: of each device (`parts`), and of call paths (`host_and_gpu`, `gpu_time`).

Times of call paths are sums over threads and operations that may overlap: none is wall time, no ratio a utilisation. A
segment has `label` (its bar), `begin` and `end` in 0..1, and columns for tooltips.
"""

from collections.abc import Collection, Sequence

import altair as alt
import pandas as pd

from perfkit.charts import theme
from perfkit.charts.checks import need
from perfkit.charts.theme import (
    KIND_COLOURS,
    KIND_NAMES,
    WIDTH,
    colours,
    hover,
    ink,
    inline,
    layered,
    nothing,
)
from perfkit.format import TIME, duration, percent, printable, unit
from perfkit.names import parts as names

PART_OF = {
    "computation_ns": "computation",
    "exposed_communication_ns": "communication",
    "other_kernels_ns": "other_kernels",
    "exposed_copy_ns": "copy",
    "idle_ns": "idle",
}
UNTOLD = {"collector": "the profiler's own time", "unknown": "unknown time"}  # by kind
TIME_NAMES = names.TIME  # by the column of a breakdown, or a cause or detail of idle time
TIME_COLOURS = {
    **{TIME_NAMES[column]: KIND_COLOURS[kind] for column, kind in PART_OF.items()},
    TIME_NAMES["collector"]: "#6B6B6B",
    TIME_NAMES["unknown"]: "#D9D9D9",
    TIME_NAMES["small"]: "#B9A48C",
    TIME_NAMES["not_running"]: theme.DETAIL_COLOURS["system"],
    TIME_NAMES["cpu_not_recorded"]: "#D9D9D9",
    **{
        TIME_NAMES[n]: shade
        for n, shade in (theme.CAUSE_COLOURS | theme.DETAIL_COLOURS).items()
        if n in TIME_NAMES
    },
}
LIGHT = ("memory", "host_code")  # details of idle time on which dark text reads better
TIME_DARK = [TIME_NAMES[n] for n in ("computation_ns", "other_kernels_ns")]
TIME_DARK += [TIME_NAMES[n] for n in theme.DETAIL_COLOURS if n not in LIGHT]
BUSY = ("computation_ns", "exposed_copy_ns")  # keys of the work of a GPU in a profile of call paths
ZOOMED = 0.1  # of the wall time; less work of the GPU has a bar of its own (convention)
MOST_DEVICES, MOST_BARS = 8, 24
NO_WORK = "No kernel or copy ran in this window."
SMALLEST_LABEL, LABEL_PIXELS = 0.055, 36  # of the span; a narrower part has no room for its figure
PERCENT = alt.Axis(format="%", tickCount=5)
LABEL_WIDTH = 320  # pixels
OPERATIONS = {  # the name and the colour of each
    "kernel_ns": ("kernels", KIND_COLOURS["computation"]),
    "copy_ns": ("copies", KIND_COLOURS["copy"]),
    "implicit_copy_ns": ("implicit copies", "#8CD9B8"),
    "memset_ns": ("memset", "#E0A010"),
    "allocation_ns": ("allocation", KIND_COLOURS["other_kernels"]),
    "synchronisation_ns": ("synchronisation", "#7A4A2E"),
    "other_ns": ("other operations", "#9A9A9A"),
}
PARTS, PART_COLOURS = (
    {column: name for column, (name, _) in OPERATIONS.items()},
    dict(OPERATIONS.values()),
)
DARK = ["kernels", "allocation", "synchronisation"]  # parts on which white text reads better
SERIES = {
    "CPU threads": "host_ns",
    "kernels": "kernel_ns",
    "copies": "copy_ns",
    "other operations": "other_ns",
}
SERIES_COLOURS = {"CPU threads": theme.CAUSE_COLOURS["host_wait"], **PART_COLOURS}
NO_GPU = "No GPU operation was recorded. Record with `hpcrun -e gpu=nvidia` (amd, level0)."
NO_CPU = "CPU time was not recorded: `hpcrun -e CPUTIME` does."
LONGEST_LABEL = 46


def parts(breakdown: pd.DataFrame) -> alt.LayerChart:
    """Draw how the time of each device splits into work and idleness.

    `breakdown`: columns rank, gpu, span_ns, computation_ns, exposed_communication_ns, other_kernels_ns,
    exposed_copy_ns, idle_ns: one row per device. Of many devices the MOST_BARS that are idle longest are drawn, which
    the chart says. Raises ValueError if the parts of a device do not sum to its span.
    """
    seen = worked(breakdown)
    if seen.empty:
        return nothing("No activity", NO_WORK)
    shown = _idlest(seen, MOST_BARS)
    drawn = segments(shown, pd.DataFrame({"device": theme.devices(shown)}), shown["span_ns"])
    length = drawn["end"] - drawn["begin"]
    drawn = drawn.assign(
        middle=drawn["begin"] + length / 2,
        figure=drawn["share"].where(length >= SMALLEST_LABEL, ""),
    )
    shades = colours(KIND_COLOURS, KIND_NAMES, drawn["key"])
    drawn = drawn.drop(columns="key")
    share = alt.X(
        "begin:Q", title="share of the span (%)", scale=alt.Scale(domain=[0, 1]), axis=PERCENT
    )
    tips = hover("device", "part", "share", "time")
    channels = (
        alt.Y("device:N", title=None, sort=None),
        alt.Color("part:N", scale=shades, title=None),
        tips,
    )
    marks = theme.marked(
        drawn, "bar", share, alt.X2("end"), *channels, height=alt.RelativeBandSize(band=0.72)
    )
    dark = [KIND_NAMES["computation"], KIND_NAMES["other_kernels"]]
    return layered(
        [marks, _text(drawn, "part", dark, alt.Y("device:N", sort=None), alt.Text("figure:N"))],
        _idle_title(seen),
        f"Communication and copies count only where no computation hides them.{_few(seen, MOST_BARS)}",
        picture=f"Stacked bar per GPU of {', '.join(drawn['part'].unique())}",
        size=(WIDTH, alt.Step(34)),
    )


def time(ledger: pd.DataFrame) -> alt.LayerChart:
    """Draw where the time of each device went, each moment once; of many devices the idlest.

    `ledger`: columns rank, gpu, kind, cause, owner, ns (`analysis.ledger.LEDGER`). A tooltip names who has most of a
    part. Parts under a hundredth of the time of all devices are one. Unknown time and the profiler's own are not drawn:
    every share is one of the known time.
    """
    need(ledger, "rank", "gpu", "kind", "cause", "owner", "ns")
    untold = _untold(ledger)
    known = names.known(ledger)
    ledger = names.told(ledger)
    if not ledger["ns"].sum():
        return nothing("No activity", untold or NO_WORK)
    spans = _spans(ledger)
    shown = _idlest(spans, MOST_DEVICES)
    long = _parts_of_time(ledger.merge(shown[["rank", "gpu", "span_ns"]], on=["rank", "gpu"]))
    share = long["ns"] / long["span_ns"]
    begin, end = ends(share, long[["rank", "gpu"]].apply(tuple, axis=1))
    texts = {
        "share": share.map(percent),
        "told": long["ns"].map(duration),
        "part": long["key"].map(TIME_NAMES),
    }
    drawn = pd.DataFrame(
        {"label": theme.devices(long), "begin": begin, "end": end, "most": long["most"], **texts}
    )
    shades = time_shades(long["key"])
    of_all = long.groupby("key")["ns"].sum() / shown["span_ns"].sum()
    told = ", ".join(
        f"{TIME_NAMES[key]} {percent(of_all[key])}" for key in TIME_NAMES if key in of_all
    )
    tips = hover(
        ("label", "device"),
        ("part", "part of the time"),
        "share",
        ("told", "time"),
        ("most", "most of it"),
    )
    return layered(
        [
            bars(drawn, "part", shades, axis="share of the time", shown=tips),
            figures(drawn, "part", TIME_DARK),
        ],
        _exposed_title(ledger, known) or _idle_title(spans, known),
        [
            f"Communication and copies count only while no computation runs.{_few(spans, MOST_DEVICES)}",
            *([untold] if untold else []),
        ],
        picture=f"Stacked bar per GPU of {told}",
        size=(WIDTH, alt.Step(34)),
    )


def time_shades(keys: pd.Series) -> alt.Scale:
    """Return the colours of the parts of the time that are there, in the order of TIME_NAMES."""
    present = set(keys)
    shown = [name for key, name in TIME_NAMES.items() if key in present]
    return alt.Scale(domain=shown, range=[TIME_COLOURS[name] for name in shown])


def wall(ledger: pd.DataFrame) -> alt.LayerChart:
    """Draw what the wall time of a call-path profile is made of, and below it the GPU's work alone where it is small.

    `ledger`: columns rank, gpu, kind, cause, owner, ns (`analysis.ledger.LEDGER`), as from `diagnosis.path_ledger`.
    """
    need(ledger, "rank", "gpu", "kind", "cause", "owner", "ns")
    if not ledger["ns"].sum():
        return nothing("No activity", NO_GPU)
    drawn = _wall_bars(ledger)
    whole = duration(int(ledger["ns"].sum()))
    of_all = names.shares(ledger)
    told = ", ".join(f"{TIME_NAMES[str(key)]} {percent(share)}" for key, share in of_all.items())
    tips = hover(
        ("label", "bar"),
        ("part", "part of the time"),
        "share",
        ("told", "time"),
        ("most", "most of it"),
    )
    drawn_bars = bars(
        drawn, "part", time_shades(drawn["key"]), axis="share of the bar's time", shown=tips
    )
    idle = float(of_all[[key for key in of_all.index if key not in BUSY]].sum())
    return layered(
        [drawn_bars, figures(drawn, "part", TIME_DARK)],
        (
            f"The GPU works {percent(1 - idle)} of {whole}"
            if idle
            else f"The GPU's work takes {whole}"
        ),
        _wall_notes(of_all),
        picture=f"Stacked bars of {told}",
        size=(WIDTH, alt.Step(34)),
    )


def _wall_notes(of_all: pd.Series) -> list[str]:
    """Return how to read the picture of the wall time."""
    notes = ["Copies count only while no kernel runs."]
    if set(of_all.index) <= set(BUSY):
        notes.append("The length of the run was not recorded: shares are those of the GPU's work.")
    if "host_code" in of_all:
        notes.append(
            "The call paths of the CPU are spread over the time without GPU work: they have no times of day."
        )
    return notes


def _wall_bars(ledger: pd.DataFrame) -> pd.DataFrame:
    """Return the segments of the bar of the wall time, and of one of the GPU's work where that is too small to see."""
    works = names.keys(ledger).isin(list(BUSY))
    parts = [("GPU work" if works.all() else "wall time", ledger)]
    if 0 < ledger.loc[works, "ns"].sum() < ZOOMED * ledger["ns"].sum():
        parts.append(("GPU work in it", ledger[works]))
    frames = []
    for label, lines in parts:
        whole = int(lines["ns"].sum())
        long = _parts_of_time(lines.assign(rank=0, gpu=0, span_ns=whole), least=0.0)
        share = long["ns"] / whole
        begin, end = ends(share, long["rank"])
        texts = {
            "share": share.map(percent),
            "told": long["ns"].map(duration),
            "part": long["key"].map(TIME_NAMES),
        }
        columns = {
            "label": f"{label}: {duration(whole)}",
            "begin": begin,
            "end": end,
            "most": long["most"],
        }
        frames.append(pd.DataFrame({**columns, **texts, "key": long["key"]}))
    return pd.concat(frames, ignore_index=True)


def _exposed_title(ledger: pd.DataFrame, known: str) -> str:
    """Return how much time exposed communication or copies take, where that is more than all idle time; else "".

    `known`: the word before "time", as from `names.parts.known`.
    """
    of_part = names.shares(ledger)
    exposed = of_part.reindex(["exposed_communication_ns", "exposed_copy_ns"]).fillna(0.0)
    idle = float(ledger.loc[ledger["kind"] == "idle", "ns"].sum() / ledger["ns"].sum())
    if exposed.max() <= idle:
        return ""
    part = TIME_NAMES[str(exposed.idxmax())]
    verb = "take" if part.endswith("s") else "takes"
    share = percent(float(exposed.max()))
    rest = f", and the GPU is idle {percent(idle)}" if idle else ""
    return f"{part.capitalize()} {verb} {share} of the {known}time{rest}"


def _untold(ledger: pd.DataFrame) -> str:
    """Return which time the picture leaves out, as a sentence; "" where the recording tells all of it."""
    of_kind = ledger.groupby(ledger["kind"].astype(str))["ns"].sum()
    whole = int(of_kind.sum())
    left_out = of_kind[of_kind.index.isin(UNTOLD) & of_kind.gt(0)]
    parts = [
        f"{UNTOLD[str(kind)]}, {duration(ns)} ({percent(ns / whole)})"
        for kind, ns in left_out.items()
    ]
    return f"Not shown: {', and '.join(parts)}." if parts else ""


def _spans(ledger: pd.DataFrame) -> pd.DataFrame:
    """Return rank, gpu, span_ns and idle_ns of each device of a ledger."""
    idle = ledger["ns"].where(ledger["kind"] == "idle", 0)
    of_device = ledger.assign(span_ns=ledger["ns"], idle_ns=idle).groupby(["rank", "gpu"])
    return of_device[["span_ns", "idle_ns"]].sum().reset_index()


def _parts_of_time(lines: pd.DataFrame, *, least: float = names.SMALL) -> pd.DataFrame:
    """Return the lines of a ledger as parts of the picture, in the order of TIME_NAMES within a device.

    Columns rank, gpu, span_ns, key, ns, and `most`: who has the largest share of the part. Parts under `least` of the
    time of all devices are one.
    """
    lines = lines.assign(key=names.keys(lines))
    of_all = lines.groupby("key")["ns"].transform("sum") / lines["ns"].sum()
    lines = lines.assign(key=lines["key"].where(of_all >= least, "small"))
    keys = ["rank", "gpu", "span_ns", "key"]
    summed = lines.groupby([*keys, "owner"], observed=True, dropna=False)["ns"].sum()
    by_owner = summed.reset_index().sort_values("ns", ascending=False, kind="stable")
    groups = by_owner.groupby(keys, sort=False)
    parts = groups.agg(ns=("ns", "sum"), first_ns=("ns", "first")).reset_index()
    first = groups.head(1)["owner"].astype(object).tolist()
    share = (parts["first_ns"] / parts["ns"]).map(percent)
    most = [
        f"{printable(str(name), 60)} ({part})" if pd.notna(name) else ""
        for name, part in zip(first, share, strict=True)
    ]
    order = parts["key"].map({key: place for place, key in enumerate(TIME_NAMES)})
    parts = parts.assign(most=most, order=order).sort_values(
        ["rank", "gpu", "order"], ignore_index=True
    )
    return parts[parts["ns"] > 0].reset_index(drop=True)


def worked(breakdown: pd.DataFrame) -> pd.DataFrame:
    """Return the devices with a span; raises ValueError if the parts of one do not sum to it."""
    need(breakdown, "rank", "gpu", "span_ns", *PART_OF)
    wrong = breakdown[breakdown[list(PART_OF)].sum(axis=1) != breakdown["span_ns"]]
    if len(wrong):
        raise ValueError(f"breakdown: the parts of {wrong.iloc[0].to_dict()} do not sum to span_ns")
    return breakdown[breakdown["span_ns"] > 0]


def _idlest(seen: pd.DataFrame, most: int) -> pd.DataFrame:
    """Return the devices with the largest idle share, in the order of their ranks."""
    idle = seen["idle_ns"] / seen["span_ns"]
    return seen.loc[idle.sort_values(ascending=False, kind="stable").index[:most]].sort_values(
        ["rank", "gpu"]
    )


def _few(seen: pd.DataFrame, most: int) -> str:
    return (
        f" The {most} GPUs with the largest idle share of {len(seen):,}."
        if len(seen) > most
        else ""
    )


def segments(
    breakdown: pd.DataFrame, place: pd.DataFrame, whole: pd.Series | float
) -> pd.DataFrame:
    """Return one row per device and part that is not empty, at its `place`, end to end from 0; `whole`, ns, is 1."""
    ends = breakdown[list(PART_OF)].cumsum(axis=1)
    rows = [
        place.assign(
            key=kind,
            part=KIND_NAMES[kind],
            begin=(ends[column] - breakdown[column]) / whole,
            end=ends[column] / whole,
            time=breakdown[column].map(duration),
            share=(breakdown[column] / breakdown["span_ns"]).map(percent),
        )[breakdown[column] > 0]
        for column, kind in PART_OF.items()
    ]
    return pd.concat(rows, ignore_index=True)


def _idle_title(breakdown: pd.DataFrame, known: str = "") -> str:
    span = breakdown["span_ns"]
    idle = breakdown["idle_ns"] / span
    if len(idle) == 1:
        length = duration(span.iloc[0])
        whole = f"the {known}{length}" if known else length
        return f"The GPU is idle {percent(idle.iloc[0])} of {whole}"
    ends = dict.fromkeys(percent(end) for end in (idle.min(), idle.max()))
    return f"The {len(idle)} GPUs are idle {' to '.join(ends)} of the {known}time"


def _text(
    rows: pd.DataFrame, part: str, dark: Collection[str], place: alt.Y, text: alt.Text
) -> alt.Chart:
    """Return text in the middle of segments that have room for it: white on the `dark` parts, black on the others."""
    on_dark = alt.FieldOneOfPredicate(field=part, oneOf=list(dark))
    fits = alt.ExprRef(f"(datum.end - datum.begin) * width < {LABEL_PIXELS} ? 0 : 1")
    marks = theme.marked(
        rows, "text", alt.X("middle:Q"), place, text, fontSize=11, tooltip=False, opacity=fits
    )
    coloured: alt.Chart = marks.encode(
        color=alt.condition(on_dark, alt.value("#FFFFFF"), alt.value("#000000"))
    )
    return coloured


def host_and_gpu(summary: pd.DataFrame, *, time: str = "CPU time") -> alt.LayerChart:
    """Draw the threads' time of each rank or entry point beside the time of the GPU operations that it started.

    `summary`: columns rank, host_ns, kernel_ns, copy_ns, operation_ns and, if there, entry; NaN where not recorded.
    `time`: what `host_ns` is. Raises ValueError if a time is negative, or kernels and copies exceed all operations by
    more than rounding.
    """
    need(summary, "rank", "host_ns", "kernel_ns", "copy_ns", "operation_ns")
    parts = ["kernel_ns", "copy_ns"]
    rows = _checked(summary, ["host_ns", *parts], parts)
    host, gpu = rows["host_ns"].sum(min_count=1), rows["operation_ns"].sum(min_count=1)
    if not host > 0 and not gpu > 0:
        return nothing("No CPU or GPU time", f"{NO_CPU} {NO_GPU}")
    beside = f"{duration(host)} of {time} and" if host > 0 else "CPU time was not recorded;"
    both = f"{beside} {duration(gpu)} of GPU operations" if gpu > 0 else ""
    whole = rows[["host_ns", "operation_ns"]].sum(axis=1)
    order = rows.iloc[whole.argsort(kind="stable")[::-1]].rename(
        columns={v: k for k, v in SERIES.items()}
    )
    drawn = order.melt("label", list(SERIES), var_name="series", value_name="time")
    drawn = drawn[drawn["time"] > 0]
    drawn = drawn.assign(told=drawn["time"].map(duration))
    scale = unit(float(drawn["time"].max()), TIME)
    drawn = drawn.assign(time=drawn["time"] / scale.size)
    # Bars and their times; the outline keeps a bar visible that is too short beside the others.
    room = alt.Scale(domain=[0, 1.18 * float(drawn["time"].max())], nice=False)
    shades = colours(SERIES_COLOURS, {}, drawn["series"])
    length = alt.X("time:Q", title=f"sum of times ({scale.symbol})", scale=room)
    label = alt.Y("label:N", title=None, sort=drawn["label"].drop_duplicates().tolist())
    offset = alt.YOffset("series:N", sort=list(SERIES), scale=alt.Scale(paddingInner=0.2))
    shown = hover(("label", "where"), ("series", "kind of time"), ("told", "time"))
    fill, stroke = (kind("series:N", scale=shades, title=None) for kind in (alt.Fill, alt.Stroke))
    marks = (
        alt.Chart(inline(drawn))
        .mark_bar(strokeWidth=1)
        .encode(length, label, offset, fill, stroke, shown)
    )
    return layered(
        [marks, ink(inline(drawn), dx=5).encode(length, label, offset, alt.Text("told:N"))],
        both or f"{duration(host)} of {time}, no GPU operation recorded",
        "Sums over all threads and over all GPU operations: neither is wall time, their ratio is no utilisation.",
        picture=f"Bars of {', '.join(drawn['series'].unique())} for {', '.join(drawn['label'].unique()[:8])}",
        size=(WIDTH - 60, alt.Step(22)),
    )


def _checked(summary: pd.DataFrame, times: list[str], parts: list[str]) -> pd.DataFrame:
    """Return the rows with their `label` and, in `other_ns`, what of the operations is in none of `parts`."""
    if (summary[[*times, "operation_ns"]] < 0).any(axis=None):
        raise ValueError(
            f"summary: a time is {summary[[*times, 'operation_ns']].min().min()} ns, below 0"
        )
    rest = summary["operation_ns"] - summary[parts].sum(axis=1)
    rounding = 1e-9 * summary["operation_ns"]
    wrong = summary[rest < -rounding]
    if len(wrong):
        raise ValueError(
            f"summary: {wrong[[*parts, 'operation_ns']].iloc[0].to_dict()}: the parts exceed operation_ns"
        )
    other = rest.mask(rest <= rounding, 0.0)
    return (
        summary[[*times, "operation_ns"]]
        .astype("float64")
        .assign(other_ns=other, label=_labels(summary))
    )


def _labels(summary: pd.DataFrame) -> list[str]:
    """Return the entry point of each row, or the rank; both where there are several ranks."""
    ranks = [f"rank {rank}" for rank in summary["rank"]]
    if "entry" not in summary:
        return ranks
    entries = [printable(entry, LONGEST_LABEL) for entry in summary["entry"]]
    if len(set(ranks)) == 1:
        return entries
    return [f"{rank} · {entry}" for rank, entry in zip(ranks, entries, strict=True)]


def gpu_time(summary: pd.DataFrame) -> alt.LayerChart:
    """Draw what the GPU's time is made of, one bar per rank or entry point, and one of all if there are several.

    `summary`: columns rank, kernel_ns, copy_ns, implicit_copy_ns, memset_ns, allocation_ns, synchronisation_ns,
    operation_ns (all of these and others) and, if there, entry; NaN where not recorded. Raises ValueError if a time is
    negative, or the parts exceed all operations by more than rounding.
    """
    parts = [column for column in PARTS if column != "other_ns"]
    need(summary, "rank", *parts, "operation_ns")
    rows = _checked(summary, parts, parts)
    rows = rows[rows["operation_ns"] > 0]
    if rows.empty:
        return nothing("No GPU time", NO_GPU)
    whole = rows.drop(columns="label").sum().to_frame().T.assign(label="all")
    drawn = _bar_segments(pd.concat([whole, rows], ignore_index=True) if len(rows) > 1 else rows)
    first = drawn[drawn["label"] == drawn["label"].iloc[0]]
    largest = first.loc[(first["end"] - first["begin"]).idxmax()]
    part = str(largest["part"]).capitalize()
    verb = "take" if part.endswith("s") else "takes"
    shown = hover(("label", "where"), "part", "share", ("told", "time"))
    shades = colours(PART_COLOURS, {}, drawn["part"])
    segments = bars(drawn, "part", shades, axis="share of the time of GPU operations", shown=shown)
    return layered(
        [segments, figures(drawn, "part", DARK)],
        f"{part} {verb} {largest['share']} of the GPU's time",
        f"Of {duration(float(rows['operation_ns'].sum()))} in GPU operations; operations that overlap count in full.",
        picture=f"Stacked bars of {', '.join(drawn['part'].unique())}",
        size=(WIDTH, alt.Step(34)),
    )


def _bar_segments(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one row per bar and part that is not empty, placed end to end from 0 to 1."""
    long = rows.melt(["label", "operation_ns"], list(PARTS), var_name="column", value_name="time")
    long = long[long["time"] > 0]
    place = long["label"].map(rows["label"].tolist().index)
    long = long.assign(place=place, share_frac=long["time"] / long["operation_ns"]).sort_values(
        "place", kind="stable"
    )
    begin, end = ends(long["share_frac"], long["place"])
    columns = {
        "label": long["label"],
        "part": long["column"].map(PARTS),
        "begin": begin,
        "end": end,
        "share": long["share_frac"].map(percent),
        "told": long["time"].map(duration),
    }
    return pd.DataFrame(columns)


def ends(shares: pd.Series, label: pd.Series) -> tuple[pd.Series, pd.Series]:
    """Return begin and end of segments that lie end to end within each label, in the order of the rows."""
    end = shares.groupby(label, sort=False).cumsum()
    return end - shares, end


def bars(
    drawn: pd.DataFrame,
    part: str,
    shades: alt.Scale,
    *,
    axis: str,
    shown: Sequence[alt.Tooltip],
    columns: int = 5,
) -> alt.Chart:
    """Return the segments, coloured by `part`; `axis` names the whole, `columns` are those of the legend."""
    share = alt.X("begin:Q", title=f"{axis} (%)", scale=alt.Scale(domain=[0, 1]), axis=PERCENT)
    colour = alt.Color(f"{part}:N", scale=shades, title=None, legend=alt.Legend(columns=columns))
    channels = (share, alt.X2("end:Q"), _place(drawn), colour, list(shown))
    return theme.marked(drawn, "bar", *channels, height=alt.RelativeBandSize(band=0.76))


def figures(drawn: pd.DataFrame, part: str, dark: Collection[str]) -> alt.Chart:
    """Return the column `share` as text: white on the `dark` parts, black on the others, none where it is narrow."""
    width = drawn["end"] - drawn["begin"]
    wide = drawn.assign(middle=drawn["begin"] + width / 2)[width >= SMALLEST_LABEL]
    return _text(wide, part, dark, _place(drawn), alt.Text("share:N"))


def _place(drawn: pd.DataFrame) -> alt.Y:
    labels = drawn["label"].drop_duplicates().tolist()
    return alt.Y("label:N", title=None, sort=labels, axis=alt.Axis(labelLimit=LABEL_WIDTH))
