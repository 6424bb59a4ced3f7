"""Do the GPUs need attention?

Functions
---------
checks    five verdicts per device: utilisation, memory, power, throttling, traffic
"""

from __future__ import annotations

import pandas as pd

from perfkit.analysis.monitoring.answers import CHECKS, Answer, answers
from perfkit.analysis.monitoring.facts import facts
from perfkit.analysis.monitoring.readings import DEVICE
from perfkit.analysis.window import Window
from perfkit.tables import SAMPLES

VERDICTS = ("ok", "attention", "cannot tell")


def checks(
    samples: pd.DataFrame,
    devices: pd.DataFrame,
    *,
    pcie_bytes_per_s: float | None = None,
    nvlink_bytes_per_s: float | None = None,
    window: Window | None = None,
) -> pd.DataFrame:
    """Return a verdict per device and check, each with its figure, its threshold and a reason.

    utilisation: share of the time with a utilisation of at least 0.8; attention below 0.9. It is that in which any
    kernel counts, and does not say that the GPU is used well. memory: the most in use over what there is; attention
    from 0.95 on. power: mean over the limit; attention below 0.5, since power near the limit is a sign of work.
    throttling: share of the time with a lowered clock, from event reasons and violation counters alone; attention from
    0.01 on, or where the temperature came within 5 degrees of the recorded slowdown, or its margin to 5. traffic: the
    95th percentile of the direction of a link that is nearest to its peak, over that peak; attention from 0.8 on.
    What was not recorded is "cannot tell", and the reason says how to record it.

    Parameters
    ----------
    samples
        SAMPLES in any order; may be empty.
    devices
        DEVICES, for names and memory; may be empty.
    pcie_bytes_per_s, nvlink_bytes_per_s
        Peak of one direction of a GPU's link, bytes/s; there is no default. Without them traffic has a value in
        bytes/s, of the busiest direction, and no verdict.
    window
        (start_ns, end_ns), half open: readings in it; all when omitted.

    Returns
    -------
    pandas.DataFrame
        One row per rank, gpu (int32, 0 and up) and check (category: CHECKS) of every GPU that was monitored, in this
        order: `verdict` category: ok, attention or cannot tell; `value`, `threshold` float64, NaN
        where there is none; `unit` category: frac or bytes_per_s; `reason` string.

    Raises
    ------
    SchemaError
        If an input is not of its table.
    ValueError
        If the window does not end after it starts, or a peak is not above 0.

    Examples
    --------
    >>> from perfkit.tables import DEVICES
    >>> checks(SAMPLES.empty(), DEVICES.empty()).columns.tolist()[2:]
    ['check', 'verdict', 'value', 'threshold', 'unit', 'reason']
    """
    peaks = {"pcie": pcie_bytes_per_s, "nvlink": nvlink_bytes_per_s}
    for link, peak in peaks.items():
        if peak is not None and not peak > 0:
            raise ValueError(f"{link}_bytes_per_s: {peak} is not a number above 0")
    known = facts(SAMPLES.check(samples), devices, window=window).sort_index()
    rows = [
        (*device, check, *answer)
        for device, fact in zip(known.index, known.to_dict("records"), strict=True)
        for check, answer in answers(fact, peaks).items()
    ]
    table = pd.DataFrame(rows, columns=[*DEVICE, "check", *Answer._fields])
    choices = {"check": CHECKS, "verdict": VERDICTS, "unit": ("frac", "bytes_per_s")}
    kinds = {"rank": "int32", "gpu": "int32", "value": "float64", "threshold": "float64", "reason": "string"}
    return table.assign(**{name: pd.Categorical(table[name], of) for name, of in choices.items()}).astype(kinds)
