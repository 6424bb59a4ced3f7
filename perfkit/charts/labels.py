"""Names of devices and streams in charts.

Functions
---------
devices   one label per row of a frame
"""

from __future__ import annotations

import pandas as pd


def devices(frame: pd.DataFrame) -> pd.Series:
    """Return a label per row from rank, gpu and, if there, stream; the rank only if there are several.

    Examples
    --------
    >>> devices(pd.DataFrame({"rank": [0, 1], "gpu": [0, -1], "stream": [7, -1]})).tolist()
    ['rank 0 · GPU 0 · stream 7', 'rank 1 · unknown GPU · unknown stream']
    """
    label = _numbered(frame["gpu"], "GPU")
    if len(frame["rank"].unique()) > 1:
        label = "rank " + frame["rank"].astype(str) + " · " + label
    return label + " · " + _numbered(frame["stream"], "stream") if "stream" in frame else label


def _numbered(values: pd.Series, what: str) -> pd.Series:
    """`what` and its number; -1 stands for one that was not recorded."""
    return (f"{what} " + values.astype(str)).where(values != -1, f"unknown {what}")
