"""Columns side by side, one per rank and GPU.

Functions
---------
placed   rows by rank and GPU, with the place of their column and their name
across   the axis below the columns
width    how wide the picture is
"""

from __future__ import annotations

import altair as alt
import pandas as pd

from perfkit.charts.labels import devices
from perfkit.charts.theme import WIDTH

WIDEST = 60  # pixels of a column


def placed(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows by rank and gpu with `place`, the words below their column, and `name`.

    Examples
    --------
    >>> placed(pd.DataFrame({"rank": [1, 0], "gpu": [1, 0]}))[["place", "name"]].to_numpy().tolist()
    [['0', 'rank 0'], ['1', 'rank 1']]
    """
    rows = frame.sort_values(["rank", "gpu"], kind="stable", ignore_index=True)
    rank, gpu, counted = rows["rank"].astype(str), rows["gpu"].astype(str).where(rows["gpu"] != -1, "?"), _counted(rows)
    place = {"rank": rank, "GPU": gpu}.get(counted, rank + " · " + gpu)
    return rows.assign(place=place, name="rank " + rank if counted == "rank" else devices(rows))


def across(rows: pd.DataFrame) -> alt.X:
    """Return the axis below the columns of what `placed` returned; labels that would overlap are left out."""
    axis = alt.Axis(labelAngle=0, labelOverlap=True, ticks=False)
    return alt.X("place:N", title=_counted(rows), sort=rows["place"].drop_duplicates().tolist(), axis=axis)


def width(rows: pd.DataFrame) -> int:
    """Return the width of the picture, pixels."""
    return min(WIDEST * rows["place"].nunique(), WIDTH)


def _counted(rows: pd.DataFrame) -> str:
    """Return what tells the columns apart."""
    if not rows["rank"].duplicated().any():
        return "rank"
    return "rank · GPU" if (rows["rank"] != rows["rank"].iloc[0]).any() else "GPU"
