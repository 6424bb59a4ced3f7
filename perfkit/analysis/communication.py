"""How much of the communication between GPUs is hidden behind computation?

Conventions
-----------
Times are int64 ns, intervals half open. Communication is the union of the kernels of family
"communication" on a device, computation the union of all other kernels, over all streams and
processes. Memsets are not in KERNELS and hide nothing here.

Functions
---------
overlap     communication time per device, and what of it runs beside computation
"""

from __future__ import annotations

import pandas as pd

from perfkit.analysis.intervals import intersect, share, total, union
from perfkit.analysis.window import Window, devices, ends
from perfkit.tables import KERNELS


def overlap(kernels: pd.DataFrame, *, window: Window | None = None) -> pd.DataFrame:
    """Return the communication time of each device and how much of it computation covers.

    With COMM the communication kernels and COMP the others, overlapped is |COMM and COMP| and
    overlap |COMM and COMP| / |COMM|: 1 is fully hidden, 0 fully exposed.

    Parameters
    ----------
    kernels
        KERNELS, in any order, may be empty.
    window
        (start_ns, end_ns), half open: kernels are cut at its edges; everything when omitted.

    Returns
    -------
    pandas.DataFrame
        One row per rank and gpu (int32) of `kernels`, ascending: communication_ns, overlapped_ns
        (int64, ns), overlap_frac (float64, 0..1, NaN without communication).

    Raises
    ------
    SchemaError, ValueError
        If `kernels` is not a KERNELS table; if the window does not end after it starts.

    References
    ----------
    facebookresearch/HolisticTraceAnalysis, `get_comm_comp_overlap`.

    Examples
    --------
    >>> overlap(KERNELS.empty()).columns.tolist()
    ['rank', 'gpu', 'communication_ns', 'overlapped_ns', 'overlap_frac']
    """
    index, (group,) = devices(KERNELS.check(kernels))
    start, end = ends(kernels, window)
    communicates = (kernels["family"] == "communication").to_numpy()
    communication, computation = (union(start[rows], end[rows], group[rows]) for rows in (communicates, ~communicates))
    communication_ns = total(communication, len(index))
    overlapped_ns = total(intersect(communication, computation), len(index))
    return index.assign(
        communication_ns=communication_ns,
        overlapped_ns=overlapped_ns,
        overlap_frac=share(overlapped_ns, communication_ns),
    )
