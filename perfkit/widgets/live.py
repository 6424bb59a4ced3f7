"""The log of the GPUs as it goes: played back at any speed, or followed while it is being written.

Functions
---------
live_monitor   the view, or a still picture where nobody watches
"""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

import ipywidgets
import pandas as pd

from perfkit.analysis.sampling import bins
from perfkit.charts import live, monitor
from perfkit.charts.theme import MIME
from perfkit.format import duration, printable
from perfkit.run import Run
from perfkit.widgets.logs import Log, opened
from perfkit.widgets.showing import is_watched

SECOND = 1_000_000_000
TICK = 1.0  # s of the clock
SLOWEST, FASTEST = 0.01, 10_000.0
BINS, STILL_BINS = 120, 300
SPANS = {"all": None, "last hour": 3600 * SECOND, "last 5 min": 300 * SECOND, "last min": 60 * SECOND}
LONGEST, LONGEST_PROBLEM = 60, 400  # characters


def live_monitor(source: Run | pd.DataFrame | str | Path, *, speed: float = 1.0) -> LiveMonitor | live.Still:
    """Show a log of the GPUs as it goes: played back, or followed while it is being written.

    A log is followed if it is a file that was changed in the last 10 s, such as that of ``perfkit record monitor``.

    Parameters
    ----------
    source
        A run, SAMPLES, or the path of a log or of a folder.
    speed
        Time of the log over that of the clock, 0.01 to 10,000.

    Returns
    -------
    LiveMonitor or altair.VConcatChart or altair.LayerChart
        Controls and a picture; where nobody can press Play (papermill, nbconvert, a program), the chart of all of it.

    Raises
    ------
    ValueError
        If the speed is not in its range.
    SchemaError
        If a frame is not a SAMPLES table.
    ReadError
        If nothing is at the path, or no reader can read it.

    Examples
    --------
    >>> live_monitor("gpu.csv", speed=0)
    Traceback (most recent call last):
    ...
    ValueError: speed: 0 is not between 0.01 and 10000
    """
    if not SLOWEST <= speed <= FASTEST:
        raise ValueError(f"speed: {speed} is not between {SLOWEST:g} and {FASTEST:g}")
    log = opened(source)
    if is_watched():
        return LiveMonitor(log, speed=speed)
    return monitor.dashboard(bins(log.samples, bins=STILL_BINS))


class LiveMonitor:
    """A log up to where the slider stands (`slider.value`, s): Play moves it on, or to the end while it follows.

    The browser keeps the time, from when Play is pressed: it counts ticks in ``play.value``, so that nothing runs when
    the page is closed. `view` holds the controls and the picture.
    """

    def __init__(self, log: Log, *, speed: float = 1.0) -> None:
        self.source = log
        self.play = ipywidgets.Play(max=2**31 - 1, interval=round(1000 * TICK), show_repeat=False)
        self.slider = ipywidgets.FloatSlider(
            description="until (s)", continuous_update=False, readout_format=".1f", layout={"flex": "1 1 220px"}
        )
        self.speed = ipywidgets.BoundedFloatText(
            value=speed, min=SLOWEST, max=FASTEST, description="speed", layout={"width": "170px"}
        )
        self.span = ipywidgets.Dropdown(options=list(SPANS), description="show", layout={"width": "210px"})
        self.follow = ipywidgets.ToggleButton(value=log.is_written, description="follow", disabled=not log.is_written)
        self.status, self.picture = ipywidgets.HTML(), ipywidgets.Output()
        controls = [self.play, self.slider, self.speed, self.span, self.follow]
        row = ipywidgets.HBox(controls, layout={"flex_flow": "row wrap"})
        self.view = ipywidgets.VBox([row, self.status, self.picture])
        self.span.value = "last 5 min" if log.is_written else "all"
        self._renewed()
        self.slider.value = self.slider.max if log.is_written else self.slider.min
        self._draw()
        self._observe()

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.view._repr_mimebundle_(**options)

    def step(self, ticks: int = 1) -> None:
        """Move on by seconds of the clock, to the end if it follows; the end of a log that does not grow stops Play."""
        renewed = self.source.renew()
        if renewed:
            self._renewed()
        before = self.slider.value
        moved = self.slider.max if self.follow.value else before + ticks * TICK * self.speed.value
        self.slider.value = min(moved, self.slider.max)
        if self.slider.value == self.slider.max and not self.source.is_written:
            self.play.playing = False
        if renewed and self.slider.value == before:
            self._draw()

    def _observe(self) -> None:
        self.play.observe(self._ticked, "value")
        self.play.observe(self._started, "playing")
        self.slider.observe(self._moved, "value")
        self.span.observe(self._draw, "value")
        self.follow.observe(self._followed, "value")

    def _ticked(self, change: Any) -> None:
        """Move on; Play's button to stop sets its ticks back to 0."""
        if change["new"] > change["old"]:
            self.step(change["new"] - change["old"])
        else:
            self.follow.value = False
            self.slider.value = self.slider.min

    def _started(self, change: Any) -> None:
        """Play again from the beginning what is at its end."""
        if change["new"] and self.slider.value == self.slider.max and not self.source.is_written:
            self.slider.value = self.slider.min
        self._say()

    def _moved(self, change: Any) -> None:
        """Show the position; one before the end is looked at, not left again at once."""
        if change["new"] < self.slider.max:
            self.follow.value = False
        self._draw()

    def _followed(self, change: Any) -> None:
        if change["new"]:
            self.slider.value = self.slider.max

    def _renewed(self) -> None:
        """Take over how long the log is now, and how high each metric goes."""
        samples = self.source.samples
        self._seen = samples[samples["metric"].isin(list(live.NAMES))]
        tops = self._seen.groupby("metric", observed=True)["value"].max()
        self._tops = {str(metric): float(top) for metric, top in tops.items()}
        times = self._seen["time_ns"]
        first, last = (int(times.min()), int(times.max())) if len(times) else (0, 0)
        with self.slider.hold_trait_notifications():
            self.slider.min, self.slider.max = first / SECOND, last / SECOND
            self.slider.step = max((last - first) / SECOND / 1000, 0.001)

    def _draw(self, _: Any = None) -> None:
        first, until = (round(limit * SECOND) for limit in (self.slider.min, self.slider.value))
        span = SPANS[self.span.value]
        window = first if span is None else max(first, until - span), until + 1  # half open
        drawn = live.strips(bins(self._seen, bins=BINS, window=window), window=window, tops=self._tops)
        text = str(drawn["description"])
        output = {"output_type": "display_data", "data": {MIME: drawn, "text/plain": text}, "metadata": {}}
        self.picture.outputs = (output,)
        self._say()

    def _say(self) -> None:
        """Say how much of the log is seen, and what the reader says of it."""
        past, whole = (duration((end - self.slider.min) * SECOND) for end in (self.slider.value, self.slider.max))
        waits = "; press Play to follow it" if self.follow.value and not self.play.playing else ""
        said = [f"{printable(self.source.name, LONGEST)}: {past} of {whole}{waits}"]
        said += [printable(self.source.problem, LONGEST_PROBLEM)] if self.source.problem else []
        self.status.value = "<br>".join(escape(line) for line in said)
