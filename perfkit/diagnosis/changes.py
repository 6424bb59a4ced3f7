"""What differs between two sets of figures."""

from __future__ import annotations

import pandas as pd

from perfkit.diagnosis.finding import Figure

# Totals depend on how long was recorded; shares, rates and means do not.
COMPARABLE_UNITS = ("1", "bytes/s", "1/s")
COMPARABLE = ("kernel_mean_ns", "kernel_median_ns", "step_median_ns")
FIRST = ("step_median_ns", "device_busy_frac", "idle_frac")


def changes(before: dict[str, Figure], after: dict[str, Figure]) -> pd.DataFrame:
    """Return the figures of two runs side by side.

    Only shares, rates, means and medians are compared: totals depend on how long each run was recorded.
    What is zero or absent in both is left out; the most telling rows come first.

    Returns
    -------
    DataFrame
        One row per figure that either run has: id, figure (its label), before, after (text with unit,
        "none" where a run lacks it), ratio (after over before; NaN where that is no number).
    """
    rows = []
    for key in dict.fromkeys([*FIRST, *before, *after]):
        old, new = before.get(key), after.get(key)
        known = new or old
        if known is None or not (known.unit in COMPARABLE_UNITS or key in COMPARABLE):
            continue
        if not any(figure and figure.value for figure in (old, new)):
            continue
        ratio = new.value / old.value if old and new and old.value else float("nan")
        texts = [figure.text if figure else "none" for figure in (old, new)]
        rows.append((key, known.label, *texts, ratio))
    return pd.DataFrame(rows, columns=["id", "figure", "before", "after", "ratio"])
