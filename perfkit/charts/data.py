"""From a frame to the values inside a chart.

Conventions
-----------
Chart fields are named by the chart modules, never by the data. Values travel inside the specification,
so that a chart needs no file and no network.

Functions
---------
need     check that a frame has the columns a chart draws
known    check that a column holds nothing but the values a chart has names and colours for
fraction check that a column stays within 0..1
inline   the rows of a frame as chart data
"""

from __future__ import annotations

from collections.abc import Collection

import altair as alt
import pandas as pd
from altair.utils.schemapi import debug_mode

from perfkit.errors import SchemaError

MOST_ROWS = 20_000


def need(frame: pd.DataFrame, *columns: str) -> None:
    """Raise SchemaError naming all of `columns` that the frame lacks."""
    lacking = [column for column in columns if column not in frame]
    if lacking:
        raise SchemaError(f"chart data: columns {lacking} are missing. It has {list(frame.columns)}.")


def known(frame: pd.DataFrame, column: str, legal: Collection[str]) -> None:
    """Raise ValueError if `column` holds a value outside `legal`; missing values pass."""
    strange = sorted(set(frame[column].dropna().astype(str)) - set(legal))
    if strange:
        raise ValueError(f"{column}: {strange[:5]} are not among {list(legal)}")


def fraction(frame: pd.DataFrame, column: str) -> None:
    """Raise ValueError if `column` leaves 0..1 by more than rounding; it is never clipped."""
    outside = frame[column][(frame[column] < 0) | (frame[column] > 1 + 1e-9)]
    if len(outside):
        raise ValueError(f"{column}: {outside.iloc[0]} is not a fraction between 0 and 1")


def inline(frame: pd.DataFrame) -> alt.InlineData:
    """Return the rows of `frame` as data of a chart; missing values become null.

    Raises
    ------
    ValueError
        Above 20,000 rows: a browser would stall. Charts take aggregated frames.
    """
    if len(frame) > MOST_ROWS:
        raise ValueError(f"chart data: {len(frame)} rows are more than {MOST_ROWS}. Use fewer bins, GPUs or kernels.")
    values = frame.astype(object)
    rows = values.where(values.notna(), None).to_dict("records")
    # Altair checks every value against its schema, which takes a second for a thousand rows; these are scalars. A chart
    # copies lists and all that is in them again and again, tuples not.
    with debug_mode(False):
        return alt.InlineData(values=tuple({str(name): value for name, value in row.items()} for row in rows))
