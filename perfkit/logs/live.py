"""A log that is being written, shown as it grows."""

import time
from html import escape
from pathlib import Path
from typing import Any

import ipywidgets

from perfkit.analysis.alignment import bins
from perfkit.charts.theme import STRIP_NAMES, follow_cells, following
from perfkit.charts.vega import MIME
from perfkit.errors import ReadError
from perfkit.format import duration, printable
from perfkit.logs.charts import lines, monitor
from perfkit.readers import reader, recognise, unrecognised
from perfkit.run import Run, load
from perfkit.tables import SAMPLES
from perfkit.widgets.live import is_watched, output

FRESH = 10.0  # s since a file was changed, in which it counts as being written
REST = 4  # times as long as the last reading took, a file is not read again
SECOND = 1_000_000_000
TICK, BINS, STILL_BINS = 1.0, 120, 300  # s of the clock; bins of a log
SPANS = {
    "all": None,
    "last hour": 3600 * SECOND,
    "last 5 min": 300 * SECOND,
    "last min": 60 * SECOND,
}
LONGEST_NAME, LONGEST_PROBLEM = 60, 400  # characters


class Log:
    """A file that grows, read without the cache; `problem` is why not yet; ReadError if no reader knows its kind."""

    def __init__(self, path: Path) -> None:
        if recognise(path) is None:
            raise unrecognised(path)
        self.samples, self.name, self.problem = SAMPLES.empty(), path.name, ""
        self._path, self._seen, self._rest_until = path, (0, 0), 0.0
        self.renew()

    def renew(self) -> bool:
        """Read the file if it has changed, and return whether there is news."""
        start = time.monotonic()
        if start < self._rest_until:
            return False
        try:
            stat = self._path.stat()
            if self._seen == (stat.st_mtime_ns, stat.st_size):
                return False
            self._seen = stat.st_mtime_ns, stat.st_size
            name = recognise(self._path)
            if name is None:
                raise unrecognised(self._path)
            self.samples, self.problem = Run([reader(name).read(self._path)]).samples, ""
        except OSError as e:
            self.problem = f"{self._path}: cannot be read ({e.strerror})."
        except ReadError as e:
            self.problem = str(e)
        now = time.monotonic()
        self._rest_until = now + REST * (now - start)
        return True


class LiveMonitor:
    """A log that grows, shown up to where the slider stands (`slider.value`, s); at its end it moves on with the log.

    The browser counts ticks in ``play.value``, so that nothing runs when the page is closed.
    """

    def __init__(self, log: Log) -> None:
        self.source = log
        self.play = ipywidgets.Play(max=2**31 - 1, interval=round(1000 * TICK), show_repeat=False)
        wide, narrow = {"flex": "1 1 220px"}, {"width": "210px"}
        self.slider = ipywidgets.FloatSlider(
            layout=wide, description="until (s)", readout_format=".1f"
        )
        self.slider.continuous_update = False
        self.span = ipywidgets.Dropdown(
            options=list(SPANS), value="last 5 min", description="show", layout=narrow
        )
        self.status, self.picture = ipywidgets.HTML(), ipywidgets.Output()
        row = ipywidgets.HBox([self.play, self.slider, self.span], layout={"flex_flow": "row wrap"})
        self.view = ipywidgets.VBox(
            [row, self.status, self.picture, ipywidgets.HTML(follow_cells())]
        )
        self._renewed()
        self.slider.value = self.slider.max
        self._draw()
        self.play.observe(self._ticked, "value")
        self.play.observe(self._say, "playing")
        self.slider.observe(self._draw, "value")
        self.span.observe(self._draw, "value")

    def _repr_mimebundle_(self, **options: Any) -> Any:
        return self.view._repr_mimebundle_(**options)

    def step(self) -> None:
        """Read what was added to the log; a slider at the end moves to the new end."""
        before, follows = self.slider.value, self._follows()
        if not self.source.renew():
            return
        self._renewed()
        if follows:
            self.slider.value = self.slider.max
        if self.slider.value == before:
            self._draw()

    def _follows(self) -> bool:
        return bool(self.slider.value == self.slider.max)

    def _ticked(self, change: Any) -> None:
        """Step; Play's button to stop sets its ticks back to 0, which is no step."""
        if change["new"] > change["old"]:
            self.step()

    def _renewed(self) -> None:
        """Set the ends of the slider, and how high each metric goes."""
        samples = self.source.samples
        self._seen = samples[samples["metric"].isin(list(STRIP_NAMES))]
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
        drawn = lines.strips(
            bins(self._seen, bins=BINS, window=window), window=window, tops=self._tops
        )
        self.picture.outputs = (
            output({MIME: following(drawn), "text/plain": str(drawn["description"])}),
        )
        self._say()

    def _say(self, _: Any = None) -> None:
        """Write how much of the log is shown, and why the reader cannot read more."""
        past, whole = (
            duration((end - self.slider.min) * SECOND)
            for end in (self.slider.value, self.slider.max)
        )
        waits = "; press Play to follow it" if self._follows() and not self.play.playing else ""
        said = [f"{printable(self.source.name, LONGEST_NAME)}: {past} of {whole}{waits}"]
        said += [printable(self.source.problem, LONGEST_PROBLEM)] if self.source.problem else []
        self.status.value = "<br>".join(escape(line) for line in said)


def live_monitor(source: str | Path) -> LiveMonitor | lines.Still:
    """Show a log of the GPUs and follow it while it is being written.

    perfkit follows a file that was changed in the last 10 s, such as the one that ``nvidia-smi ... -l 1 -f gpu.csv``
    is writing. Of any other log, and where nobody can press Play (papermill, nbconvert, a program), it shows a chart.
    `source` is the path of a log, or of a folder. Raises ReadError if nothing is there, or no reader can read it.
    """
    path = Path(source)
    is_growing = path.is_file() and time.time() - path.stat().st_mtime < FRESH
    if is_watched() and is_growing:
        return LiveMonitor(Log(path))
    return monitor.dashboard(bins(load(path).samples, bins=STILL_BINS))
