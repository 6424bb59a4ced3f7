"""A timeline without a browser, and what is seen in it."""

from pathlib import Path
from typing import Any

import pandas as pd
import traitlets
from frames import api_calls, copies, kernels, lasting, ranges, unpacked
from widgets.explored import MS, run_of

import perfkit
from perfkit.analysis import steps
from perfkit.analysis.lanes import Lanes
from perfkit.charts.detail import LOOKED
from perfkit.errors import PerfkitError
from perfkit.selection import select
from perfkit.widgets.timeline import Zoomable


class Chooser(traitlets.HasTraits):
    window: Any = traitlets.Tuple()
    kernels = traitlets.Unicode("")
    selection: Any = traitlets.Any()
    problem = traitlets.Unicode("")
    arranged: Any = traitlets.Dict()

    def __init__(self, run: perfkit.Run) -> None:
        super().__init__()
        self.arranged = {"shown": []}  # of a person who sees the streams alone
        self.run, self.lanes = run, Lanes(run.kernels, run.copies)
        self.steps = steps.detect(run.ranges, run.kernels)
        self.observe(self._settle, ["window", "kernels"])
        self._settle()

    def _settle(self, _: Any = None) -> None:
        try:
            found, why = select(self.run, window=self.window, kernels=self.kernels), ""
        except PerfkitError as e:
            found, why = None, str(e)
        with self.hold_trait_notifications():
            self.selection, self.problem = found, why


def table(count: int = 3) -> dict[str, pd.DataFrame]:
    """From 0 ms, every 10 ms: a call of 1 ms, and from 2 ms on its kernel of 4 ms; a copy of 4 kB at 8 ms; ranges."""
    each = range(count)
    work = [lasting((10 * n + 2) * MS, 4 * MS, f"k{n % 3}", correlation=n) for n in each]
    called = [lasting(10 * n * MS, MS, correlation=n) for n in each]
    nested = [lasting(0, 30 * MS, "outer")]
    nested += [lasting(MS, 9 * MS, "inner", depth=1)]
    return {
        "KERNELS": kernels(*work),
        "COPIES": copies(lasting(8 * MS, MS, bytes=4000, stream=9)),
        "API_CALLS": api_calls(*called),
        "RANGES": ranges(*nested),
    }


def opened(tmp_path: Path, found: dict[str, pd.DataFrame]) -> tuple[Chooser, Zoomable]:
    chooser = Chooser(run_of(tmp_path, found))
    return chooser, Zoomable(chooser)


def gesture(view: Zoomable, kind: str, **more: Any) -> None:
    view.picture._handle_custom_msg({"kind": kind, **more}, [])


def looked(view: Zoomable, first: int, last: int) -> None:
    gesture(view, LOOKED, first=first - view.whole[0], last=last - view.whole[0])


def rows(view: Zoomable, name: str) -> list[dict[str, Any]]:
    """The bins, or the intervals of all lanes, with their names instead of numbers, as the page gets them."""
    drawing = view.picture.drawing
    frame = unpacked(drawing[name])
    for column, number in {"name": "n", "call": "a", "kind": "k"}.items():
        if number in frame:
            frame[column] = [drawing["names"][int(n)] if n >= 0 else None for n in frame[number]]
    frame["label"] = [labels(view)[int(lane)] for lane in frame["lane"]]
    return [dict(zip(frame.columns, row, strict=True)) for row in frame.itertuples(index=False)]


def operations(view: Zoomable) -> list[dict[str, Any]]:
    return [row for row in rows(view, "spans") if "stream" in row["label"]]


def title(view: Zoomable) -> str:
    return str(view.picture.drawing["title"])


def labels(view: Zoomable) -> list[str]:
    return [lane["label"] for lane in view.picture.drawing["lanes"]]
