"""Pictures of how the ranks of a run differ: a column for each rank, or for each GPU of a rank with several.

The bus bandwidth (`perfkit.analysis.communication`) is that of nccl-tests, which compares with the speed of the links
whatever the operation and the number of ranks; 1 GB/s is 1e9 bytes/s.
"""

from collections.abc import Sequence

import altair as alt
import pandas as pd

from perfkit.charts import checks, roofline, tables, theme
from perfkit.charts.shares import NO_WORK, PART_OF, segments, worked
from perfkit.charts.theme import KIND_COLOURS, WIDTH, colours, hover, ink, inline, layered, nothing
from perfkit.format import (
    BYTES,
    TIME,
    Shown,
    Unit,
    duration,
    number,
    percent,
    printable,
    several,
    size,
    unit,
)

OPERATION_COLOURS, SHAPES = (
    {key: row[at] for key, row in theme.COLOURS["operation"].items()} for at in (0, 1)
)
OPERATION_NAMES = {key: key.replace("_", "-") for key in OPERATION_COLOURS}
LOSSES = {"group": "process group", "span": "where", "ranks_count": "ranks", "count": "collectives"}
LOSSES |= {
    "transfer_ns": "transfer",
    "skew_ns": "arrival skew",
    "dispatch_ns": "host dispatch",
    "verdict": "verdict",
}
CLOCKS = {"rank": "rank", "count": "collectives", "offset_ns": "ahead", "drift": "drift (µs/s)"}
CLOCKS |= {"error_ns": "error", "verdict": "verdict"}
PICTURE = "Bus bandwidth over message size, a line for each operation, logarithmic in the size"
RATES = ("bus_bytes_per_s", "min_bus_bytes_per_s", "max_bus_bytes_per_s")
UNKNOWN = "unknown group"
LONGEST_GROUP = 40  # characters
FADED = 0.08  # opacity of what is not chosen in the legend
EVEN = 0.05  # of the median rank's time: less is even, as in `perfkit.analysis.ranks`
MOST_CELLS = 4000  # of a map of rank by step
MOST_COLUMNS = 200  # of a map of rank by collective
MOST_ROWS = 200  # of that map, 2 pixels each
MOST_NAMED = 10  # ranks in a note
NOT_RECORDED, DARK = "not recorded", "#3A2A55"
MOST_DASHES = 8  # process groups that dashes can tell apart
TICK = (
    "datum.value >= 1e9 ? format(datum.value / 1e9, ',') + ' GB' : "
    "datum.value >= 1e6 ? format(datum.value / 1e6, ',') + ' MB' : "
    "datum.value >= 1e3 ? format(datum.value / 1e3, ',') + ' kB' : format(datum.value, ',') + ' B'"
)
NO_COLLECTIVE = (
    "No collective with a known message size and duration. PyTorch traces have the sizes since 2024; "
    "nccl-tests measures over all sizes."
)
# By the suffix of a column; one that ends in another stands before it.
UNITS_OF_SUFFIX: dict[str, tuple[Unit, ...]] = {
    "_bytes_per_s": roofline.BYTES,
    "_flops_per_s": roofline.FLOPS,
    "_bytes": BYTES,
    "_frac": (Unit("%", 0.01),),
    "_count": (Unit("count", 1),),
    "_ns": TIME,
    "_w": (Unit("W", 1),),
    "_c": (Unit("°C", 1),),
}
STRIP_UNITS = {**UNITS_OF_SUFFIX, "_hz": (Unit("MHz", 1e6),)}  # of a strip of a metric over time
MOST_FIGURES = 10  # more would touch each other
LETTER = 7  # pixels of a letter above a column
FIGURE, LATE = KIND_COLOURS["computation"], KIND_COLOURS["communication"]
WAY_COLOURS, WAY_NAMES = (
    {key: row[at] for key, row in theme.COLOURS["way"].items()} for at in (0, 1)
)
NO_MEETING = (
    "It takes collectives of several ranks, recorded over the same steps with their message sizes."
)


def bars(frame: pd.DataFrame, *, value: str) -> alt.LayerChart:
    """Draw one figure of each rank, and the mean of all.

    `frame`: columns rank, gpu and `value`: one row per rank and GPU; rows without a value are left out. `value`: a
    column whose name ends in its unit: _ns, _bytes, _bytes_per_s, _flops_per_s, _frac, _count, _w, _c.
    """
    suffix = next((suffix for suffix in UNITS_OF_SUFFIX if value.endswith(suffix)), None)
    if suffix is None:
        raise ValueError(f"value: {value!r} does not end in one of {list(UNITS_OF_SUFFIX)}")
    checks.need(frame, "rank", "gpu", value)
    what = value.removesuffix(suffix).replace("_", " ")
    rows = theme.placed(frame[frame[value].notna()])
    if rows.empty:
        return nothing(f"No {what}", "No rank has this figure.")
    scale = unit(float(rows[value].abs().max()), UNITS_OF_SUFFIX[suffix])
    rows = rows.assign(figure=rows[value] / scale.size)
    rows = rows.assign(said=[f"{number(figure)} {scale.symbol}" for figure in rows["figure"]])
    left_out = len(frame) - len(rows)
    return layered(
        _figures(rows, f"{what} ({scale.symbol})", FIGURE) + _mean(rows, scale),
        f"{what[:1].upper()}{what[1:]} {_range(rows)}",
        f"Not drawn: {left_out} without a value." if left_out else "",
        picture=f"Columns of {what} for {len(rows)} GPUs, and their mean as a line",
        size=(theme.width(rows), 220),
    )


def _range(rows: pd.DataFrame) -> str:
    """Say between which figures the rows lie, and whose the largest is."""
    low, high = rows.iloc[rows["figure"].argmin()], rows.iloc[rows["figure"].argmax()]
    if low["said"] == high["said"]:
        return f"is {high['said']}" + (" on every rank" if len(rows) > 1 else "")
    return f"is {low['said']} to {high['said']}, most on {high['name']}"


def _figures(rows: pd.DataFrame, axis: str, colour: str) -> list[alt.Chart]:
    """Return a column for each row, and its figure above it where there is room."""
    drawn = inline(rows[["place", "name", "figure", "said"]])
    height = alt.Y("figure:Q", title=axis, axis=alt.Axis(tickCount=5))
    shown = hover(("name", "where"), ("said", axis.split(" (")[0]))
    bar = alt.Chart(drawn).mark_bar(width=alt.RelativeBandSize(band=0.8), color=colour)
    needed = LETTER * len(rows) * rows["said"].str.len().max()
    fits = alt.ExprRef(f"width < {needed} ? 0 : 1")
    text = ink(drawn, align="center", dy=-7, opacity=fits).encode(
        theme.across(rows), alt.Y("figure:Q"), alt.Text("said:N")
    )
    return [
        bar.encode(theme.across(rows), height, shown),
        *([text] if len(rows) <= MOST_FIGURES else []),
    ]


def _mean(rows: pd.DataFrame, scale: Unit) -> list[alt.Chart]:
    """Return the mean beside the columns, and a line at it where no figures stand in its way."""
    if len(rows) == 1:
        return []
    mean = float(rows["figure"].mean())
    drawn = inline(
        pd.DataFrame({"figure": [mean], "said": [f"← mean {number(mean)} {scale.symbol}"]})
    )
    rule = alt.Chart(drawn).mark_rule(
        color="#808080", strokeDash=[4, 3], strokeWidth=1.5, tooltip=False
    )
    words = ink(drawn, dx=3).encode(alt.Y("figure:Q"), alt.Text("said:N"), x=alt.value("width"))
    return [rule.encode(alt.Y("figure:Q")), words] if len(rows) > MOST_FIGURES else [words]


def waits(stragglers: pd.DataFrame) -> alt.LayerChart | alt.VConcatChart:
    """Draw how often each rank comes last to collectives, and below how long it waits for the others.

    `stragglers`: columns rank, gpu, count, last_count, last_frac (0..1), wait_ns, apart_count, unmatched_count.
    """
    checks.need(
        stragglers,
        "rank",
        "gpu",
        "count",
        "last_count",
        "last_frac",
        "wait_ns",
        "apart_count",
        "unmatched_count",
    )
    checks.fraction(stragglers, "last_frac")
    met = theme.placed(stragglers[stragglers["count"] > 0])
    if met.empty:
        return nothing("No collective says who was late", NO_MEETING)
    scale = unit(float(met["wait_ns"].max()), TIME)
    last = met.assign(figure=100 * met["last_frac"], said=met["last_frac"].map(percent))
    wait = met.assign(figure=met["wait_ns"] / scale.size, said=met["wait_ns"].map(duration))
    size = (theme.width(met), 120)
    pictures = [
        theme.panel(_figures(rows, axis, shade), name, picture=axis, size=size)
        for rows, axis, shade, name in (
            (last, "came last (%)", LATE, "Came last, share of the collectives"),
            (wait, f"waited ({scale.symbol})", "#9A9A9A", "Waited for the others"),
        )
    ]
    left_out = int(stragglers[["apart_count", "unmatched_count"]].sum().sum())
    notes = [
        "Counted are collectives in which all ranks were at one moment; who comes last waits least."
    ]
    without = f"Left out: {left_out:,} kernels of collectives that do not match or never held all ranks at once."
    if left_out:
        notes.append(without)
    return theme.together(pictures, _latest(met), notes, picture="Columns for each rank")


def lateness(matched: pd.DataFrame) -> alt.LayerChart:
    """Draw by how much each rank comes late to each collective, as a map of rank by collective.

    `matched`: columns collective, rank, wait_ns (until the last rank comes), together: as of `communication.matched`.
    Of more collectives than columns, a cell is the mean of neighbours.
    """
    checks.need(matched, "collective", "rank", "wait_ns", "together")
    met = matched[matched["together"]]
    if met.empty:
        return nothing("No collective says who was late", NO_MEETING)
    ranks = met["rank"].nunique()
    columns = min(met["collective"].nunique(), MOST_COLUMNS, max(MOST_CELLS // ranks, 1))
    each = -(-met["collective"].nunique() // columns)
    order = pd.factorize(met["collective"], sort=True)[0]
    # The rank that waits longest came first; the others come late by what they wait less.
    longest = met.groupby("collective")["wait_ns"].transform("max")
    late = met.assign(late_ns=longest - met["wait_ns"], first=order // each * each)
    cells = late.groupby(["rank", "first"], as_index=False)["late_ns"].mean()
    by_rank = cells.groupby("rank")["late_ns"].mean()
    scale = unit(float(cells["late_ns"].max()), TIME)
    drawn = cells.assign(late=cells["late_ns"] / scale.size, told=cells["late_ns"].map(duration))
    name = f"late by ({scale.symbol})"
    legend = alt.Legend(title=name, orient="top")
    shades = alt.Scale(range=["#EEEEEE", LATE], zero=True)
    bands = alt.Scale(paddingInner=0)
    axis = alt.Axis(labelAngle=0, labelOverlap=True)
    channels = (
        alt.X("first:O", title="collective, by start", scale=bands, axis=axis),
        alt.Y("rank:O", title="rank", scale=bands, axis=alt.Axis(labelOverlap=True)),
        alt.Color("late:Q", scale=shades, legend=legend),
        hover("rank", ("first", "collective"), ("told", "late by")),
    )
    most = f"Rank {by_rank.idxmax()} comes {duration(float(by_rank.max()))} after the first, on average"
    mean = f"A cell is the mean of {each} collectives." if each > 1 else ""
    return layered(
        [theme.marked(drawn.drop(columns="late_ns"), "rect", *channels)],
        most,
        mean,
        picture=f"A map of {ranks} ranks by {columns} collectives",
        size=(WIDTH, min(max(18 * ranks, 60), 400)),
    )


def losses(lost: pd.DataFrame) -> list[Shown]:
    """Show what collectives lose by process group, of `analysis.clocks.losses`; nothing for none."""
    caption = "What collectives take, by process group: transfer, and waits for the last rank"
    return [tables.show(lost, columns=LOSSES, caption=caption)] if len(lost) else []


def clocks(found: pd.DataFrame) -> list[Shown | str]:
    """Say that the clocks agree, or show which are moved or not known, of `analysis.clocks.offsets`."""
    apart = found[found["moved"] | found["error_ns"].isna()]
    if len(found) and apart.empty:
        most = duration(found["error_ns"].max())
        return [
            f"The clocks of {len(found)} ranks agree within {most}, as the ends of their collectives show."
        ]
    caption = "Clocks against the lowest rank's, by the ends of collectives; only this section uses the moved times"
    made = apart.assign(drift=apart["drift_frac"] * 1e6)
    return [tables.searchable(made, columns=CLOCKS, caption=caption)] if len(apart) else []


def _latest(met: pd.DataFrame) -> str:
    if not met["last_count"].any():
        return "All ranks come to every collective at once"
    row = met.iloc[met["last_frac"].argmax()]
    who = row["name"][:1].upper() + row["name"][1:]
    return f"{who} comes last to {percent(row['last_frac'])} of {row['count']:,} collectives"


def parts(breakdown: pd.DataFrame) -> alt.LayerChart:
    """Draw how the time of each rank splits into work and idleness, in time.

    `breakdown`: columns rank, gpu, span_ns, computation_ns, exposed_communication_ns, other_kernels_ns,
    exposed_copy_ns, idle_ns: one row per rank and GPU. Raises ValueError if the parts of a row do not sum to its span.
    """
    seen = theme.placed(worked(breakdown))
    if seen.empty:
        return nothing("No activity", NO_WORK)
    scale = unit(float(seen["span_ns"].max()), TIME)
    drawn = segments(seen, seen[["place", "name"]], scale.size)
    shown = hover(("name", "where"), "part", "time", ("share", "share of the span"))
    height = alt.Y("begin:Q", title=f"time ({scale.symbol})", axis=alt.Axis(tickCount=5))
    colour = alt.Color(
        "part:N", scale=colours(KIND_COLOURS, theme.KIND_NAMES, drawn["key"]), title=None
    )
    marks = alt.Chart(inline(drawn.drop(columns="key"))).mark_bar(
        width=alt.RelativeBandSize(band=0.85)
    )
    return layered(
        [marks.encode(theme.across(seen), height, alt.Y2("end"), colour, shown)],
        _most_different(seen),
        "Communication and copies count only where no computation hides them.",
        picture=f"Stacked columns for {len(seen)} GPUs of {', '.join(drawn['part'].unique())}",
        size=(theme.width(seen), 240),
    )


def step_times(steps: pd.DataFrame) -> alt.LayerChart:
    """Draw how long each step took on each rank, against the median of all ranks, as a map of rank by step.

    `steps`: columns rank, step, dur_ns, a row per rank and step. A cell is the average of some steps where rows and
    steps are more than MOST_CELLS. A row is one rank, or of more than MOST_ROWS ranks the one furthest from the median
    of some neighbours. Steps that other ranks have and a rank lacks are dark. SchemaError if a column is missing.
    """
    checks.need(steps, "rank", "step", "dur_ns")
    if steps.empty:
        return nothing("No steps", "perfkit found no steps in this selection.")
    ranks = sorted(set(steps["rank"]))
    each = -(-len(ranks) // MOST_ROWS)
    many = -(-len(ranks[::each]) * steps["step"].nunique() // MOST_CELLS)
    cells, absent = _step_cells(steps.assign(step=steps["step"] // many * many))
    short = sorted(set(absent["rank"]))
    worst = cells.iloc[int(cells["apart"].to_numpy().argmax())]
    most = max(float(cells["apart"].abs().max()), 0.01)
    said = f"All ranks take each step in the same time, within {percent(most)}"
    if most >= EVEN:
        behind = f"{percent(worst['apart'])} over the median in step {worst['step']:.0f}"
        said = f"Rank {worst['rank']:.0f} is furthest behind: {behind}"
    row_of = {rank: ranks[place // each * each] for place, rank in enumerate(ranks)}
    cells, absent = (
        frame.assign(row=frame["rank"].map(row_of)).drop_duplicates(["row", "step"])
        for frame in (cells, absent)
    )
    limit = max(most, EVEN)  # an even run stays grey
    name, ends = "longer than the median rank", [-limit, 0.0, limit]
    legend = alt.Legend(title=name, format="+.0%", values=ends, titleLimit=WIDTH, orient="top")
    colours_of = alt.Scale(domain=ends, range=["#1F77D4", "#BBBBBB", "#D55E00"])
    shade = alt.Color("apart:Q", scale=colours_of, legend=legend)
    bands = alt.Scale(paddingInner=0.05 if len(cells) < MOST_CELLS // 10 else 0)
    x = alt.X("step:O", title="step", scale=bands, axis=alt.Axis(labelAngle=0, labelOverlap=True))
    y = alt.Y("row:O", title="rank", scale=bands, axis=alt.Axis(labelOverlap=True))
    shown = hover("rank", "step", "time", ("against", name))
    layers = [theme.marked(cells.sort_index(), "rect", x, y, shade, shown)]
    if len(absent):
        legend = alt.Legend(title=None, orient="top")
        dark = alt.Color("what:N", scale=alt.Scale(range=[DARK]), legend=legend)
        lacking = hover("rank", "step", ("what", "time"))
        layers.append(theme.marked(absent, "rect", x, y, dark, lacking))
    chart = layered(
        layers,
        said,
        _of_cells(many, each, short, len(ranks)),
        picture=f"A map of {len(ranks)} ranks by {cells['step'].nunique()} steps",
        size=(WIDTH, min(max(18 * len(ranks), 60), 400)),
    )
    made: alt.LayerChart = chart.resolve_scale(color="independent")
    return made


def _step_cells(steps: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the mean of each rank's steps of a number, those furthest from the median first, and what ranks lack."""
    taken = steps.pivot_table(values="dur_ns", index="rank", columns="step").reset_index()
    every = taken.melt(id_vars="rank", value_name="dur_ns")
    every = every.sort_values(["rank", "step"], ignore_index=True)
    cells = every.dropna()
    apart = cells["dur_ns"] / cells.groupby("step")["dur_ns"].transform("median") - 1
    told = {"time": cells["dur_ns"].map(duration), "against": apart.map(percent)}
    drawn = cells.drop(columns="dur_ns").assign(apart=apart, **told)
    lacking = every.loc[every["dur_ns"].isna(), ["rank", "step"]].assign(what=NOT_RECORDED)
    return drawn.sort_values("apart", key=abs, ascending=False, kind="stable"), lacking


def _of_cells(many: int, each: int, short: Sequence[int], ranks: int) -> list[str]:
    words = f"the average of {many} steps" if many > 1 else ""
    if each > 1:
        words += f"{' of ' if words else ''}the rank furthest from the median of {each} neighbours"
    notes = [f"A cell is {words}."] if words else []
    if short:
        listed = several(map(str, short), MOST_NAMED)
        notes.append(
            f"{len(short):,} of {ranks:,} ranks lack steps that other ranks recorded: {listed}."
        )
    return notes


def _most_different(seen: pd.DataFrame) -> str:
    spread = seen[list(PART_OF)].max() - seen[list(PART_OF)].min()
    column = str(spread.idxmax())
    part = theme.KIND_NAMES[PART_OF[column]]
    least, most = (seen.iloc[at] for at in (seen[column].argmin(), seen[column].argmax()))
    if not spread[column]:
        where = f"Where the time of {seen['name'].iloc[0]} goes"
        return where if len(seen) == 1 else "All ranks spend their time alike"
    low, high = (f"{duration(row[column])} on {row['name']}" for row in (least, most))
    return f"{part.capitalize()} time differs most: {low}, {high}"


def connections(links: pd.DataFrame) -> alt.LayerChart:
    """Draw which rank sends to which rank, and by which way: a square for each pair.

    `links`: LINKS of a run. Channels of a pair share its square, in the colour of the way that most of them take.
    """
    checks.need(links, "from_rank", "to_rank", "transport")
    if links.empty:
        return nothing("No connections", "With NCCL_DEBUG=INFO, NCCL prints its connections.")
    name = links["transport"].astype(object).fillna("").astype(str)
    first = name.str.partition("/")[0].where(~name.str.contains("/GDRDMA", regex=False), "GDRDMA")
    rows = links[["from_rank", "to_rank"]].assign(
        key=first.where(first.isin(WAY_COLOURS), "other"), name=name
    )
    # Rings and trees name pairs without their transport, which the log says elsewhere.
    is_named = rows["key"].ne("")
    rows = rows[is_named | ~is_named.groupby([rows["from_rank"], rows["to_rank"]]).transform("any")]
    pairs = rows.groupby(["from_rank", "to_rank"])
    drawn = pairs.agg(
        key=("key", lambda ways: ways.mode()[0]), count=("key", "size"), names=("name", set)
    ).reset_index()
    drawn["transports"] = [
        printable(", ".join(sorted(names)), LONGEST_GROUP) for names in drawn.pop("names")
    ]
    drawn["way"] = drawn["key"].map(WAY_NAMES)
    present = drawn.pop("key").unique()
    ranks = sorted({*drawn["from_rank"], *drawn["to_rank"]})
    bands = alt.Scale(domain=ranks, paddingInner=0.1 if len(ranks) <= MOST_ROWS else 0)
    x = alt.X(
        "to_rank:O", title="to rank", scale=bands, axis=alt.Axis(labelAngle=0, labelOverlap=True)
    )
    y = alt.Y("from_rank:O", title="from rank", scale=bands, axis=alt.Axis(labelOverlap=True))
    legend = alt.Legend(title=None, orient="top", columns=1, labelLimit=WIDTH)
    shade = alt.Color("way:N", scale=colours(WAY_COLOURS, WAY_NAMES, present), legend=legend)
    shown = hover(
        ("from_rank", "from rank"),
        ("to_rank", "to rank"),
        ("count", "connections", ","),
        "way",
        "transports",
    )
    most = rows["key"].value_counts()
    return layered(
        [alt.Chart(inline(drawn)).mark_rect().encode(x, y, shade, shown)],
        f"{most.iloc[0]:,} of {len(rows):,} connections go {WAY_NAMES[str(most.index[0])]}",
        "",
        picture=f"A map of {len(ranks)} sending by {len(ranks)} receiving ranks",
        size=(WIDTH, min(max(24 * len(ranks), 60), 400)),
    )


def bandwidth(
    summary: pd.DataFrame, *, line_rate_bytes_per_s: float | None = None
) -> alt.LayerChart | alt.VConcatChart:
    """Draw the median bus bandwidth of each operation against the message size, and how far single ones lie apart.

    `summary`: columns operation, group, ranks, placement, bytes, count, bus_bytes_per_s, min_bus_bytes_per_s,
    max_bus_bytes_per_s. Rows without a bandwidth or a size are left out, which the chart says. `line_rate_bytes_per_s`,
    above 0: what the links of a GPU carry in one direction, bytes/s; none when omitted.
    """
    checks.need(summary, "operation", "group", "ranks", "placement", "bytes", "count", *RATES)
    if line_rate_bytes_per_s is not None and not line_rate_bytes_per_s > 0:
        raise ValueError(f"line_rate_bytes_per_s: {line_rate_bytes_per_s} is not above 0")
    rows = summary[summary["bus_bytes_per_s"].notna() & (summary["bytes"] > 0)]
    checks.known(rows, "operation", OPERATION_COLOURS)
    if rows.empty:
        return nothing("No bandwidth", NO_COLLECTIVE)
    top = max(float(rows["max_bus_bytes_per_s"].max()), line_rate_bytes_per_s or 0.0)
    scale = unit(top, roofline.BYTES)
    drawn = _rows(rows, scale)
    low, high = int(drawn["bytes"].min()) / 2, int(drawn["bytes"].max()) * 2
    steps = [1, 2, 5] if high / low < 1e3 else [1]
    ticks = [
        step * 10**power for power in range(19) for step in steps if low <= step * 10**power <= high
    ]
    across, sizes = (
        alt.Scale(type="log", domain=[low, high], nice=False),
        alt.Axis(labelExpr=TICK, values=ticks),
    )
    x = alt.X(
        "bytes:Q", title="message size (logarithmic, unit at each tick)", scale=across, axis=sizes
    )
    room = alt.Scale(domain=[0, 1.15 * top / scale.size or 1.0], nice=False)
    y = alt.Y("rate:Q", title=f"bus bandwidth ({scale.symbol})", scale=room)
    layers = [*_line_rate(line_rate_bytes_per_s, y, scale), *_points(drawn, (x, y), scale)]
    best = rows.iloc[rows["bus_bytes_per_s"].argmax()]
    fastest = float(best["bus_bytes_per_s"])
    reach = f"{OPERATION_NAMES[best['operation']]} reaches up to {roofline.rate(fastest, roofline.BYTES)}"
    title = f"{reach[:1].upper()}{reach[1:]} at {size(best['bytes'])}"
    notes = _explained(
        drawn, len(summary) - len(rows), (line_rate_bytes_per_s or float("inf")) / scale.size
    )
    return layered(layers, title, notes, picture=PICTURE, size=(theme.WIDTH, 300))


def _explained(drawn: pd.DataFrame, left_out: int, limit: float) -> list[str]:
    kinds = drawn["kind"].unique()
    of_kind = f", {kinds[0]}" if len(kinds) == 1 and kinds[0] != UNKNOWN else ""
    bars = "; bars: from the least to the most of a size" if (drawn["count"] > 1).any() else ""
    notes = [f"Points: {'median ' if bars else ''}bus bandwidth{of_kind}{bars}."]
    if not drawn["benchmark"].all():
        notes += [
            "From a timeline these are lower bounds: a kernel's duration includes the wait for the slowest rank."
        ]
    if (drawn["rate"] > limit).any():
        notes += [
            "Above the line rate switches do the reduction (NVLS, SHARP), or the links are faster than that."
        ]
    if len(set(drawn["operation"])) > 1:
        notes += [
            "Click an operation in the legend to see it alone, with shift several; double click to see all."
        ]
    return [*notes, f"Not drawn: {left_out} without size or bandwidth."] if left_out else notes


def _rows(rows: pd.DataFrame, scale: Unit) -> pd.DataFrame:
    """Return the points; `kind` says process group, ranks and placement, as far as they are known."""
    group = (
        rows["group"]
        .astype("string")
        .map(lambda name: printable(name, LONGEST_GROUP), na_action="ignore")
    )
    placement = rows["placement"].astype("string").str.replace("_", " ")
    words = ("group " + group, rows["ranks"].astype("string") + " ranks", placement)
    kinds = [
        ", ".join(part for part in parts if pd.notna(part)) for parts in zip(*words, strict=True)
    ]
    columns = {
        "operation": rows["operation"].astype(str).map(OPERATION_NAMES),
        "key": rows["operation"].astype(str),
        "kind": [kind or UNKNOWN for kind in kinds],
        "benchmark": placement.notna(),
        "bytes": rows["bytes"],
        "size": rows["bytes"].map(size),
        "count": rows["count"],
        "rate": rows["bus_bytes_per_s"] / scale.size,
        "least": rows["min_bus_bytes_per_s"] / scale.size,
        "most": rows["max_bus_bytes_per_s"] / scale.size,
    }
    return pd.DataFrame(columns)


def _points(drawn: pd.DataFrame, axes: tuple[alt.X, alt.Y], scale: Unit) -> list[alt.Chart]:
    """Return lines, bars from least to most, and points; dashes tell a few process groups apart."""
    data, (x, y) = inline(drawn.drop(columns=["key", "benchmark"])), axes
    present = [key for key in OPERATION_COLOURS if key in set(drawn["key"])]
    shapes = alt.Scale(
        domain=[OPERATION_NAMES[key] for key in present], range=[SHAPES[key] for key in present]
    )
    shades, legend = (
        colours(OPERATION_COLOURS, OPERATION_NAMES, present),
        alt.Legend(symbolOpacity=1),
    )
    colour = alt.Color("operation:N", scale=shades, title=None, legend=legend)
    apart = alt.StrokeDash(
        "kind:N", title=None, legend=alt.Legend(orient="bottom", symbolType="stroke", columns=4)
    )
    series = apart if 1 < len(drawn["kind"].unique()) <= MOST_DASHES else alt.Detail("kind:N")
    rates = {"rate": "median", "least": "least", "most": "most"}
    shown = hover(
        "operation", ("kind", "between"), ("size", "message size"), ("count", "collectives", ",")
    )
    shown += hover(*((field, f"{name} ({scale.symbol})", ",.4~g") for field, name in rates.items()))
    chosen = alt.selection_point(name="operations", fields=["operation"], bind="legend")
    strong, weak = (alt.condition(chosen, alt.value(high), alt.value(FADED)) for high in (1, 0.6))
    line = alt.Chart(data).mark_line(strokeWidth=1.5, tooltip=False)
    span = alt.Chart(data).mark_rule(strokeWidth=1.5, tooltip=False)
    point = alt.Chart(data).mark_point(filled=True, size=70)
    shape = alt.Shape("operation:N", scale=shapes, title=None)
    return [
        line.encode(x, y, colour, series, opacity=strong),
        span.encode(x, alt.Y("least:Q"), alt.Y2("most"), colour, opacity=weak),
        point.encode(x, y, colour, shape, shown, opacity=strong).add_params(chosen),
    ]


def _line_rate(line_rate: float | None, y: alt.Y, scale: Unit) -> list[alt.Chart]:
    if line_rate is None:
        return []
    words = f"line rate {roofline.rate(line_rate, roofline.BYTES)}"
    data = inline(pd.DataFrame({"rate": [line_rate / scale.size], "said": [words]}))
    rule = alt.Chart(data).mark_rule(
        color="#808080", strokeDash=[5, 4], strokeWidth=1.5, tooltip=False
    )
    return [rule.encode(y), ink(data, dx=4, dy=-8).encode(y, alt.Text("said:N"), x=alt.value(0))]
