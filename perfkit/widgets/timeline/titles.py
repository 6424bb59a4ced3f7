"""What the picture says of itself, and how its parts are put below one another.

Functions
---------
joined      the lanes of all parts from the top down
titled      what is seen
explained   how to read it
"""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from perfkit.analysis.window import Window
from perfkit.charts.labels import devices
from perfkit.format import duration, printable
from perfkit.selection import Selection
from perfkit.widgets.timeline.beside import Part

MOST_GPUS = 3
LONGEST = 40  # characters of a pattern
HINT = "Drag across to look closer; double-click for the whole recording."
FILLED = "A lane is filled to the share of each bin's time that it was busy; grey is idle."
SINGLE = "One bar per operation: click it for what is known of it."


def joined(parts: Sequence[Part]) -> tuple[list[str], pd.DataFrame, pd.DataFrame]:
    """Return labels, bins and intervals of all parts, with the lanes numbered on."""
    labels: list[str] = []
    frames: dict[str, list[pd.DataFrame]] = {"bins": [], "spans": []}
    for part in parts:
        for name, found in frames.items():
            frame: pd.DataFrame = getattr(part, name)
            found += [frame.assign(lane=frame["lane"] + len(labels))] if len(frame) else []
        labels += part.labels
    bins = pd.concat(frames["bins"], ignore_index=True) if frames["bins"] else parts[0].bins
    spans = pd.concat(frames["spans"], ignore_index=True) if frames["spans"] else parts[0].spans
    return labels, bins, spans


def titled(part: Part, places: pd.DataFrame, seen: Selection, window: Window) -> str:
    """Return what is seen of the operations on the devices with these ranks and GPUs."""
    names = devices(places).tolist()
    gpus = ", ".join(names) if len(names) <= MOST_GPUS else f"{len(names)} GPUs"
    chosen = f", kernels matching “{printable(seen.pattern, LONGEST)}”" if seen.pattern else ""
    chosen += f", {', '.join(seen.families)} kernels" if seen.families else ""
    return f"{gpus or 'No GPU'}: {part.counted} in {duration(window[1] - window[0])}{chosen}"


def explained(parts: Sequence[Part]) -> list[str]:
    """Return lines on how many intervals lie in the lanes beside the streams, and how to read them."""
    first, *beside = parts
    counted = "; ".join(part.counted for part in beside if part.counted)
    notes = [part.said for part in parts if part.said]
    reading = [FILLED] if any(len(part.bins) for part in parts) else []
    reading += [SINGLE] if len(first.spans) else []
    return [line for line in (f"{counted}." if counted else "", *notes, " ".join(reading), HINT) if line]
