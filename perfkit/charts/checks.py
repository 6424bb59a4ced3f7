"""What a chart or table asks of the frame that it is given."""

from collections.abc import Collection

import pandas as pd

from perfkit.errors import SchemaError


def need(frame: pd.DataFrame, *columns: str) -> None:
    """Raise SchemaError naming all of `columns` that the frame lacks."""
    lacking = [column for column in columns if column not in frame]
    if lacking:
        raise SchemaError(
            f"chart data: columns {lacking} are missing. It has {list(frame.columns)}."
        )


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
