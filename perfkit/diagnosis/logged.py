"""Does a run hold a log of its GPUs, and which part of it is judged?"""

from perfkit.analysis.intervals import Window
from perfkit.analysis.readings import BUSY
from perfkit.diagnosis.finding import kept
from perfkit.selection import Selection

KIND = "monitor"


def is_logged(view: Selection) -> bool:
    """Say whether the run holds a log of its GPUs."""
    return KIND in view.run.kinds


@kept
def window(view: Selection) -> Window | None:
    """Return the part of a log that is judged: the chosen one, else that beside the kernels of a timeline.

    None is the whole log: there is no timeline, or no reading lies in it, so their clocks cannot be compared.
    """
    if view.window is not None or view.all_kernels.empty:
        return view.window
    kernels = view.all_kernels
    first = int(kernels["start_ns"].min())
    last = int((kernels["start_ns"] + kernels["dur_ns"]).max())
    times = view.samples.loc[view.samples["metric"].isin(BUSY), "time_ns"]
    is_beside = times.between(first, last, inclusive="left")
    return (first, last) if is_beside.any() else None
