"""The explorer: choose ranks, GPUs, kernels and a window of a run, and see what is left at once.

Functions
---------
explorer   the controls, or the same choice, still, where nobody is there to use them
"""

from __future__ import annotations

from pathlib import Path

from perfkit.run import Run
from perfkit.selection import Selection, select
from perfkit.widgets.explorer.choice import Explorer
from perfkit.widgets.explorer.page import maker
from perfkit.widgets.live import is_watched

__all__ = [
    "Explorer",
    "explorer",
]


def explorer(
    source: Run | Selection, *, show: str = "timeline", baseline: str | Path = "", peaks: str | Path = ""
) -> Explorer | Selection:
    """Return controls that choose a part of a run, with a view of it below.

    Where nobody can use controls (papermill, nbconvert, a program), the Selection itself: the views of
    `perfkit.widgets.views` take either. An explorer begins with the choice that it is given. It offers the last choice
    of an earlier session of this run by a button.

    Parameters
    ----------
    source
        A run, or a Selection to begin with.
    show
        The name of the view below the controls; none when empty.
    baseline, peaks
        Paths of the earlier run and of the CSV file of peaks that the notebook was given; empty for none. They are
        part of what *Copy as parameters* shows and of what *Report this window* reports, and change nothing else.

    Returns
    -------
    Explorer or Selection
        An Explorer has the choice as traits that can be set.

    Raises
    ------
    ValueError
        If no view has the name.

    Examples
    --------
    >>> import perfkit
    >>> explorer(perfkit.run.Run([]))
    <perfkit.Selection: all GPUs, the whole recording, all kernels>
    """
    if is_watched():
        return Explorer(source, show=show, baseline=baseline, peaks=peaks)
    maker(show)
    return source if isinstance(source, Selection) else select(source)
