"""The explorer: choose ranks, GPUs, kernels and a window of a run, and see what is left at once."""

from __future__ import annotations

from pathlib import Path

from perfkit.run import Run
from perfkit.selection import Selection, select
from perfkit.widgets.explorer.choice import Explorer
from perfkit.widgets.explorer.page import maker
from perfkit.widgets.live import is_watched

__all__ = ["Explorer", "explorer"]


def explorer(
    source: Run | Selection, *, show: str = "timeline", baseline: str | Path = "", peaks: str | Path = ""
) -> Explorer | Selection:
    """Return controls that choose a part of a run, with a view of it below.

    Where nobody can use controls (papermill, nbconvert, a program), the Selection itself: the views of
    `perfkit.widgets.views` take either. An explorer begins with the choice that it is given. It offers the last choice
    of an earlier session of this run by a button.
    `source`: A run, or a Selection to begin with.
    `show`: the name of the view below the controls; none when empty.
    `baseline`, `peaks`: paths of the earlier run and of the CSV file of peaks that the notebook was given; empty for
    none. They are part of what *Copy as parameters* shows and of what *Report this window* reports, and change nothing
    else. Raises ValueError if no view has the name.
    """
    if is_watched():
        return Explorer(source, show=show, baseline=baseline, peaks=peaks)
    maker(show)
    return source if isinstance(source, Selection) else select(source)
