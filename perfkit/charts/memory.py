"""Pictures of how much memory the framework holds.

Frames are those of `perfkit.analysis.memory`. Allocated is what tensors occupy, reserved what the caching allocator has
taken from the driver. All devices share one axis of time and one of memory, so that their heights compare.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, NamedTuple

import altair as alt
import pandas as pd

from perfkit.charts import theme
from perfkit.charts.theme import KIND_COLOURS, WIDTH, devices, hover, ink, inline, need, nothing
from perfkit.format import BYTES, TIME, Unit, duration, size, unit

DEVICE = ["rank", "gpu"]
LEVELS = ["min_allocated_bytes", "max_allocated_bytes", "max_reserved_bytes"]
HOST = -1  # the gpu of memory that is on none
MOST_PANELS = 8
PICTURE = "Allocated and reserved memory over time"
SERIES = {"allocated": KIND_COLOURS["computation"], "reserved": KIND_COLOURS["communication"]}
NO_MEMORY = "No allocation was recorded. Record with `torch.profiler.profile(profile_memory=True)`."


class _Frame(NamedTuple):
    """What the axes of all panels span, in ns and bytes, and their units."""

    first: int
    last: int
    most: float
    time: Unit
    memory: Unit


def timeline(bins: pd.DataFrame, peaks: pd.DataFrame, *, title: str = "") -> alt.LayerChart | alt.VConcatChart:
    """Draw the allocated and the reserved memory of each GPU over time, and mark where most is allocated.

    Of more than 8 GPUs those with the highest peaks are shown, which the chart says. Memory of the host is drawn
    where no GPU's is.
    `bins`: columns rank, gpu, start_ns, dur_ns, min_allocated_bytes, max_allocated_bytes, max_reserved_bytes (missing
    where not recorded): one row per device and bin, as from `analysis.memory.bins`; may be empty. About 500 bins are
    what the width can show.
    `peaks`: columns rank, gpu, allocated_bytes, time_ns, max_reserved_bytes: one row per device, of the same window.
    """
    need(bins, *DEVICE, "start_ns", "dur_ns", *LEVELS)
    need(peaks, *DEVICE, "allocated_bytes", "time_ns", "max_reserved_bytes")
    seen = bins[bins["gpu"] != HOST] if (bins["gpu"] != HOST).any() else bins
    known = peaks.merge(seen[DEVICE].drop_duplicates(), on=DEVICE)
    if known.empty:
        return nothing(title or "No memory was recorded", NO_MEMORY)
    known = known.assign(label=devices(known).str.replace("unknown GPU", "host memory"))
    known = known.sort_values("allocated_bytes", ascending=False, kind="stable")
    shown = known.head(MOST_PANELS).sort_values(DEVICE)
    rows = seen.merge(shown[[*DEVICE, "label"]], on=DEVICE)
    frame = _frame(rows)
    height = 240 if len(shown) == 1 else 90
    pictures = [_panel(rows[rows["label"] == peak["label"]], peak, frame, height) for peak in shown.to_dict("records")]
    notes = _explained(rows, len(shown), len(known))
    return theme.together(pictures, title or _title(known.iloc[0]), notes, picture=PICTURE)


def _frame(rows: pd.DataFrame) -> _Frame:
    first, last = int(rows["start_ns"].min()), int((rows["start_ns"] + rows["dur_ns"]).max())
    most = float(rows[LEVELS].max().max())
    return _Frame(first, last, most, unit(last - first, TIME), unit(most, BYTES))


def _title(highest: pd.Series) -> str:
    reserved = highest["max_reserved_bytes"]
    beside = "" if pd.isna(reserved) else f", at most {size(reserved)} reserved"
    return f"At most {size(highest['allocated_bytes'])} allocated on {highest['label']}{beside}"


def _explained(rows: pd.DataFrame, shown: int, known: int) -> list[str]:
    is_lacking = rows["max_reserved_bytes"].isna().all()
    line = "Reserved memory was not recorded." if is_lacking else "Line: reserved by the caching allocator."
    length = duration(float(rows["dur_ns"].max()))
    notes = [f"Filled: held by tensors, fainter up to the most within each {length}. {line}"]
    return [*notes, f"These are the highest {shown} of {known} peaks."] if shown < known else notes


def _panel(rows: pd.DataFrame, peak: dict[Hashable, Any], frame: _Frame, height: int) -> alt.LayerChart:
    layers = [*_levels(_drawn(rows, frame), frame), *_peak(peak, frame)]
    return theme.panel(layers, str(peak["label"]), picture=PICTURE, size=(WIDTH, height))


def _drawn(rows: pd.DataFrame, frame: _Frame) -> pd.DataFrame:
    """Return the levels in the units of the axes; a last row ends the last bin."""
    low, high, reserved = (rows[column] for column in LEVELS)
    end = (rows["start_ns"] + rows["dur_ns"]) / frame.time.size
    drawn = pd.DataFrame(
        {
            "time": rows["start_ns"] / frame.time.size,
            "end": end,
            "least": low / frame.memory.size,
            "most": high / frame.memory.size,
            "reserved": reserved / frame.memory.size,
            "allocated": low.map(size).where(low == high, low.map(size) + " to " + high.map(size)),
            "held": reserved.map(size),
            "filled": "allocated",
            "line": "reserved",
        }
    )
    return pd.concat([drawn, drawn.iloc[-1:].assign(time=end.iloc[-1])], ignore_index=True)


def _time(frame: _Frame) -> alt.X:
    ends = alt.Scale(domain=[frame.first / frame.time.size, frame.last / frame.time.size], nice=False, zero=False)
    return alt.X("time:Q", title=f"time since the start of the capture ({frame.time.symbol})", scale=ends)


def _memory(field: str, frame: _Frame) -> alt.Y:
    """An axis of memory, with room for words above the levels."""
    room = alt.Scale(domain=[0, 1.25 * frame.most / frame.memory.size or 1], nice=False)
    return alt.Y(f"{field}:Q", title=f"memory ({frame.memory.symbol})", scale=room, axis=alt.Axis(tickCount=4))


def _levels(drawn: pd.DataFrame, frame: _Frame) -> list[alt.Chart]:
    """Return the filled levels, the line, and over each bin what tells its numbers."""
    data, x = inline(drawn), _time(frame)
    shown = list(SERIES) if drawn["reserved"].notna().any() else ["allocated"]
    shades = alt.Scale(domain=shown, range=[SERIES[series] for series in shown])
    filled, line = (alt.Color(f"{name}:N", scale=shades, title=None) for name in ("filled", "line"))
    area = alt.Chart(data).mark_area(interpolate="step-after", line=False, tooltip=False, opacity=0.85)
    paler = alt.Chart(data).mark_area(interpolate="step-after", line=False, tooltip=False, opacity=0.4)
    steps = alt.Chart(data).mark_line(interpolate="step-after", strokeWidth=2, tooltip=False)
    strips = alt.Chart(inline(drawn.iloc[:-1])).mark_rect(opacity=0)
    told = hover(("time", f"bin starts at ({frame.time.symbol})", ",.6~g"), "allocated", ("held", "reserved, at most"))
    layers = [
        area.encode(x, _memory("least", frame), filled),
        paler.encode(x, _memory("least", frame), alt.Y2("most"), filled),
        strips.encode(x, alt.X2("end"), told, y=alt.value(0), y2=alt.value("height")),
    ]
    return [*layers[:2], *([steps.encode(x, _memory("reserved", frame), line)] if len(shown) > 1 else []), layers[2]]


def _peak(peak: dict[Hashable, Any], frame: _Frame) -> list[alt.Chart]:
    """Return a point where most is allocated, and words above it that stay inside the picture."""
    at = int(peak["time_ns"])
    side = "left" if at - frame.first < (frame.last - frame.first) / 2 else "right"
    said = f"peak {size(peak['allocated_bytes'])}"
    rows = pd.DataFrame(
        {"time": [at / frame.time.size], "most": [peak["allocated_bytes"] / frame.memory.size], "said": [said]}
    )
    point = alt.Chart(inline(rows)).mark_point(filled=True, size=40, opacity=1, color="#808080", tooltip=False)
    rule = alt.Chart(inline(rows)).mark_rule(color="#808080", strokeDash=[3, 3], tooltip=False)
    words = ink(inline(rows), dx=4 if side == "left" else -4, align=side)
    x, y = _time(frame), _memory("most", frame)
    return [
        rule.encode(x, y, y2=alt.value(0)),
        point.encode(x, y),
        words.encode(x, alt.Text("said:N"), y=alt.value(7)),
    ]
