"""The overview of a run: when each GPU was busy, to drag a window over.

Conventions
-----------
The selection `brush` of the chart is a window of the field `start`, in the unit that the axis names.

Functions
---------
activity   when each GPU was busy
enable     make charts with a brush drawable without network
brushed    a chart whose brush reaches Python
"""

from __future__ import annotations

import re
from typing import Any

import altair as alt
import pandas as pd

from perfkit.charts.data import fraction, inline, need
from perfkit.charts.labels import devices
from perfkit.charts.theme import KIND_COLOURS, WIDTH, nothing, register
from perfkit.format import TIME, Unit, duration, percent, unit

DEVICE = ["rank", "gpu"]
MOST_LANES = 24
TALL = 40  # pixels of a single lane
MOST_TICKS = 10  # so that labels of seven digits stay apart

# Each chart counts its clip paths from 1, and a page finds the first of a number: that of another chart, which may be
# lower. They are counted on the page instead.
CLIPS = re.compile(r'"clip"\+[\w$]+\+\+')
COUNTED = '"clip"+(window.perfkitClips=(window.perfkitClips??0)+1)'
GESTURES = "Drag to choose a window, double-click to choose all."


def activity(
    bins: pd.DataFrame, *, span: tuple[int, int], shown: tuple[float, float] | None = None, title: str = ""
) -> alt.Chart | alt.LayerChart:
    """Draw when each GPU was busy: one strip per GPU, the stronger in colour the busier, full where it was busiest.

    Busy is the share of a bin in which the stream of the GPU that worked most of it worked. Of more than 24 GPUs the
    busiest are shown, which the chart says.

    Parameters
    ----------
    bins
        Columns rank, gpu, stream, start_ns, dur_ns, busy_ns, busy_frac (0..1), as of `analysis.timeline.bins`; may be
        empty.
    span
        (start_ns, end_ns) of the axis.
    shown
        Window that the brush covers, in the axis' unit; no brush when omitted.
    title
        What is seen; the number of GPUs and the span when empty.

    Returns
    -------
    altair.Chart or altair.LayerChart

    Raises
    ------
    SchemaError
        If a column is missing.
    ValueError
        If a fraction is outside 0..1.

    Examples
    --------
    >>> columns = ["rank", "gpu", "stream", "start_ns", "dur_ns", "busy_ns", "busy_frac"]
    >>> activity(pd.DataFrame({c: [] for c in columns}), span=(0, 9)).title.text
    'No activity in 9 ns'
    """
    need(bins, "rank", "gpu", "stream", "start_ns", "dur_ns", "busy_ns", "busy_frac")
    fraction(bins, "busy_frac")
    if bins.empty:
        return nothing(title or f"No activity in {duration(span[1] - span[0])}", "Nothing of the choice ran.")
    register()
    scale = unit(span[1] - span[0], TIME)
    busiest = _busiest(bins)
    drawn = _strips(busiest, scale)
    count, whole = len(busiest[DEVICE].drop_duplicates()), len(bins[DEVICE].drop_duplicates())
    gpus = f"{whole} GPUs" if whole > 1 else str(drawn["gpu"].iloc[0])
    limit = f" These are the busiest {count} of {whole} GPUs." if count < whole else ""
    text = title or f"When {gpus} worked, over {duration(span[1] - span[0])}"
    explained = f"Full colour: busy {percent(drawn['busy'].max())} of the time. {GESTURES}{limit}"
    return _chart(drawn, span, scale, shown, count).properties(
        title=alt.TitleParams(text=text, subtitle=[explained]), description=f"{text}. Strip per GPU. {explained}"
    )


def _busiest(bins: pd.DataFrame) -> pd.DataFrame:
    """Return the bins of the GPUs that can be drawn, those with most work."""
    work = bins.groupby(DEVICE)["busy_ns"].sum().sort_values(ascending=False, kind="stable")
    kept = (
        bins if len(work) <= MOST_LANES else bins[pd.MultiIndex.from_frame(bins[DEVICE]).isin(work.index[:MOST_LANES])]
    )
    return kept.sort_values([*DEVICE, "start_ns"], kind="stable")


def _strips(bins: pd.DataFrame, scale: Unit) -> pd.DataFrame:
    """Return one row per GPU and bin: the share of its busiest stream.

    Kinds that overlap on a stream (programmatic dependent launch) are counted twice by their sum: no share is above 1.
    """
    streams = bins.groupby([*DEVICE, "start_ns", "dur_ns", "stream"], sort=False)["busy_frac"].sum().clip(upper=1)
    found = streams.groupby(level=[*DEVICE, "start_ns", "dur_ns"], sort=False).max().reset_index()
    return pd.DataFrame(
        {
            "gpu": devices(found),
            "start": found["start_ns"] / scale.size,
            "end": (found["start_ns"] + found["dur_ns"]) / scale.size,
            "busy": found["busy_frac"].round(4),
        }
    )


class _Unchecked(alt.Chart):
    """A chart that is drawn again at every choice: checking it against the schema takes longer than all else."""

    def to_dict(self, validate: bool = False, **options: Any) -> dict[str, Any]:
        """Return the specification."""
        return super().to_dict(validate=False, **options)


def _chart(
    drawn: pd.DataFrame, span: tuple[int, int], scale: Unit, shown: tuple[float, float] | None, count: int
) -> alt.Chart:
    ends = [edge / scale.size for edge in span]
    look = alt.BrushConfig(fill="#808080", fillOpacity=0.3, stroke="#808080", strokeWidth=2)
    drawn_at: dict[str, Any] = {"value": {"x": [*shown]}} if shown else {}
    brush = alt.selection_interval(name="brush", encodings=["x"], mark=look, **drawn_at)
    axis = alt.Axis(grid=False, tickCount=MOST_TICKS)
    time = f"time since the start of the recording ({scale.symbol})"
    tips = [
        alt.Tooltip("gpu:N", title="GPU"),
        alt.Tooltip("start:Q", title=f"bin starts at ({scale.symbol})", format=",.6~f"),
        alt.Tooltip("busy:Q", title="busy share of the bin (%)", format=".2%"),
    ]
    strength = alt.Opacity(
        "busy:Q", scale=alt.Scale(domain=[0, float(drawn["busy"].max())], range=[0.08, 1]), legend=None
    )
    chart: alt.Chart = (
        _Unchecked(inline(drawn))
        .mark_rect(color=KIND_COLOURS["computation"], clip=True)
        .encode(
            alt.X("start:Q", title=time, axis=axis, scale=alt.Scale(domain=ends, nice=False)),
            alt.X2("end"),
            alt.Y("gpu:N", title=None, sort=None, scale=alt.Scale(paddingInner=0.15)),
            strength,
            tips,
        )
        .add_params(brush)
        .properties(width=WIDTH, height=max(TALL, min(count * 18, 240)))
    )
    return chart


def enable(program: str = "") -> str:
    """Make charts with a brush drawable without network, and return the program in the page that draws them.

    Putting the program together takes seconds; one that an earlier call returned takes none. A page can
    hold several such charts.
    """
    if program and not alt.JupyterChart._is_offline:
        alt.JupyterChart._esm = program
        alt.JupyterChart._is_offline = True
    alt.JupyterChart.enable_offline(True)
    alt.JupyterChart._esm = CLIPS.sub(COUNTED, alt.JupyterChart._esm)
    return str(alt.JupyterChart._esm)


def brushed(chart: alt.Chart | alt.LayerChart, *, rest_ms: int = 150) -> alt.JupyterChart:
    """Return a chart as a widget whose selections reach Python once the gesture has rested for `rest_ms`.

    Its texts take the colour of the page around them.
    """
    ink = dict.fromkeys(("labelColor", "titleColor", "domainColor", "tickColor"), "currentColor")
    config = {"axis": ink, "title": {"color": "currentColor", "subtitleColor": "currentColor"}, "background": None}
    options = {"actions": False, "renderer": "svg", "config": config}
    return alt.JupyterChart(chart, debounce_wait=rest_ms, max_wait=False, embed_options=options)
