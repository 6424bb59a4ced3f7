"""Pictures of how long the iterations of a training take.

Functions
---------
iterations   the time of each iteration over the course of the log
"""

from __future__ import annotations

import altair as alt
import pandas as pd

from perfkit.charts import panels
from perfkit.charts.data import inline, need
from perfkit.charts.monitor_lines import COLOURS
from perfkit.charts.theme import WIDTH, nothing, register
from perfkit.format import TIME, Unit, duration, unit

MOST_LOGS = len(COLOURS)
PICTURE = "Points for the times of iterations over the time of the log"
NO_ITERATION = "The log of a training has a line for each iteration, with the time that it took."
COLUMNS = ("rank", "time_ns", "count", "median_ns", "least_ns", "most_ns", "chosen")


def iterations(frame: pd.DataFrame, *, title: str = "") -> alt.LayerChart | alt.VConcatChart:
    """Draw how long iterations took over the course of a log, those that were not chosen fainter.

    Of more than 8 logs the first 8 are drawn, which the chart says.

    Parameters
    ----------
    frame
        Columns rank, time_ns, count, median_ns, least_ns, most_ns and chosen: one row per iteration, or per group of
        neighbours, as from `diagnosis.baseline.iterations`; may be empty.
    title
        What is seen; the median of what is chosen beside the first iteration when empty.

    Returns
    -------
    altair.LayerChart

    Raises
    ------
    SchemaError
        If a column is missing.
    """
    need(frame, *COLUMNS)
    if frame.empty:
        return nothing(title or "No iterations", NO_ITERATION)
    register()
    ranks = sorted(set(frame["rank"]))
    rows = frame[frame["rank"].isin(ranks[:MOST_LOGS])]
    length = unit(float(rows["most_ns"].max()), TIME)
    picture = panels.panel(_layers(_drawn(rows, length), length), "", picture=PICTURE, size=(WIDTH, 200))
    return panels.together([picture], title or _title(rows), _explained(rows, len(ranks)), picture=PICTURE)


def _title(rows: pd.DataFrame) -> str:
    """Say what an iteration takes in each log, or from least to most where there are several."""
    chosen = rows[rows["chosen"]]
    medians = (chosen if len(chosen) else rows).groupby("rank")["median_ns"].median()
    if len(medians) > 1:
        return f"The median iteration takes {duration(medians.min())} to {duration(medians.max())}, by log"
    return f"The median iteration takes {duration(medians.iloc[0])}, the first {duration(rows['median_ns'].iloc[0])}"


def _explained(rows: pd.DataFrame, logs: int) -> list[str]:
    left_out, every = int(rows.loc[~rows["chosen"], "count"].sum()), int(rows["count"].sum())
    groups = "Points: medians of neighbouring iterations; bars: from the least to the most."
    said = [groups if (rows["count"] > 1).any() else "Points: iterations, at the time when their line was written."]
    said += [f"Fainter: {left_out:,} of {every:,} iterations lie outside the window."] if left_out else []
    return [*said, f"These are the first {MOST_LOGS} of {logs} logs."] if logs > MOST_LOGS else said


def _drawn(rows: pd.DataFrame, length: Unit) -> pd.DataFrame:
    time = unit(float(rows["time_ns"].max()), TIME)
    drawn = {name: rows[f"{name}_ns"] / length.size for name in ("median", "least", "most")}
    shade = rows["chosen"].map({True: 1.0, False: 0.3})
    return pd.DataFrame(
        {
            **drawn,
            "log": "log " + rows["rank"].astype(str),
            "time": rows["time_ns"] / time.size,
            "symbol": time.symbol,
            "count": rows["count"],
            "told": rows["median_ns"].map(duration),
            "shade": shade,
        }
    )


def _layers(drawn: pd.DataFrame, length: Unit) -> list[alt.Chart]:
    data, logs = inline(drawn.drop(columns="symbol")), drawn["log"].unique().tolist()
    told = f"time since the first line of the log ({drawn['symbol'].iloc[0]})"
    x = alt.X("time:Q", title=told, scale=alt.Scale(nice=False))
    y = alt.Y("median:Q", title=f"time of an iteration ({length.symbol})", scale=alt.Scale(zero=True))
    shades = alt.Scale(domain=logs, range=list(COLOURS[: len(logs)]))
    colour = alt.Color("log:N", title=None, scale=shades, legend=alt.Legend(symbolOpacity=1) if len(logs) > 1 else None)
    shade = alt.Opacity("shade:Q", scale=None, legend=None)
    shown = [
        alt.Tooltip("log:N"),
        alt.Tooltip("told:N", title="time"),
        alt.Tooltip("count:Q", title="iterations", format=","),
    ]
    span = alt.Chart(data).mark_rule(strokeWidth=1.5, tooltip=False)
    point = alt.Chart(data).mark_point(filled=True, size=45)
    return [
        span.encode(x, alt.Y("least:Q"), alt.Y2("most"), colour, shade),
        point.encode(x, y, colour, shade, shown),
    ]
