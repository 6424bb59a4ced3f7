"""What does the log of the GPUs say: were they busy, full, throttled, and evenly so?

Conventions
-----------
`samples` is SAMPLES, in any order and maybe empty; another table raises SchemaError. `window` is (start_ns, end_ns),
half open: readings in it, all when omitted; ValueError if it does not end after it starts. A result has one row per
rank and gpu (int32) that has what is asked for, ascending. Fractions are 0..1.

A reading counts for the time until the next one of the same metric and device, the last one for the usual interval:
means, percentiles and shares of time are weighted so, because a log's interval varies, most of all where the machine is
busy. What is missing in the log (no row, or NaN) counts for nothing.

"GPU utilisation" has four meanings, which are four columns: the time in which a kernel ran, the SMs with work, the
warps resident on them, the arithmetic pipes that work. Throttling is decided from the clock's event reasons and
violation counters, never from a temperature; a temperature is held against a recorded threshold only.
"""

from perfkit.analysis.monitoring.alignment import clock_drops, clock_under_kernels, throttled_kernels
from perfkit.analysis.monitoring.readings import at_limit, throttling
from perfkit.analysis.monitoring.summaries import dips, energy, idle, imbalance, periods, summary, utilisation
from perfkit.analysis.monitoring.verdicts import checks

__all__ = [
    "at_limit",
    "checks",
    "clock_drops",
    "clock_under_kernels",
    "dips",
    "energy",
    "idle",
    "imbalance",
    "periods",
    "summary",
    "throttled_kernels",
    "throttling",
    "utilisation",
]
