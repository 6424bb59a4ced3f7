"""Does a run hold a log of its GPUs, and which part of it is judged?"""

import numpy as np

from perfkit.analysis.intervals import Window
from perfkit.analysis.readings import BUSY
from perfkit.diagnosis.stored import kept
from perfkit.selection import Selection

KIND = "monitor"
HARDLY = 0.05  # a utilisation below is no work of a program (convention)
NOTABLE = 0.1  # of a log


def is_logged(view: Selection) -> bool:
    """Say whether the run holds a log of its GPUs."""
    return KIND in view.run.kinds


@kept
def window(view: Selection) -> Window | None:
    """Return the part of a log that is judged: the chosen one, else that beside the kernels of a timeline.

    Without a timeline it is from the first reading with work to the last, where the rest is a tenth of the log or more.
    None is the whole log: no GPU works, or no reading lies in the timeline, so their clocks cannot be compared.
    """
    if view.window is not None:
        return view.window
    if view.all_kernels.empty:
        return _with_work(view)
    kernels = view.all_kernels
    first = int(kernels["start_ns"].min())
    last = int((kernels["start_ns"] + kernels["dur_ns"]).max())
    times = view.samples.loc[view.samples["metric"].isin(BUSY), "time_ns"]
    is_beside = times.between(first, last, inclusive="left")
    return (first, last) if is_beside.any() else None


def _with_work(view: Selection) -> Window | None:
    """Return the part of a log from the first reading with work of any GPU to the last."""
    logged = view.samples[view.samples["metric"].isin(BUSY)]
    times = np.sort(logged["time_ns"].unique())
    works = logged.loc[logged["value"] >= HARDLY, "time_ns"]
    if works.empty or len(times) < 2:
        return None
    usual = int(np.median(np.diff(times)))
    first, last = int(works.min()), int(works.max()) + usual
    outside = 1 - (last - first) / (times[-1] + usual - times[0])
    return (first, last) if outside >= NOTABLE else None
