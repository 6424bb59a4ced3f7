"""What does the log of the GPUs say: were they busy, full, throttled, and evenly so?

Conventions
-----------
A reading counts for the time until the next one of the same metric and device, the last one for the usual interval:
means, percentiles and shares of time are weighted so, because a log's interval varies, most of all where the machine
is busy. What is missing in the log (no row, or NaN) counts for nothing. Fractions are 0..1.

"GPU utilisation" has four meanings, which are four columns: the time in which a kernel ran, the SMs with work, the
warps resident on them, the arithmetic pipes that work. Throttling is decided from the clock's event reasons and
violation counters, never from a temperature; a temperature is held against a recorded threshold only.

Functions
---------
summary         statistics of every metric of every device
utilisation     the four meanings, side by side
idle            share of the time without any kernel
energy          energy of each device
throttling      share of the time with a lowered clock, by cause
at_limit        power, memory and temperature against their limits
checks          five verdicts per device: utilisation, memory, power, throttling, traffic
dips            stretches in which a metric falls far below its median
periods         the period with which a metric repeats
imbalance       the devices that differ most
clock_under_kernels    the SM clock while kernels run
clock_drops            stretches in which it is low, with the kernel that ran
throttled_kernels      time of kernels under a throttled clock, by cause
"""

from perfkit.analysis.monitoring.alignment import clock_drops, clock_under_kernels, throttled_kernels
from perfkit.analysis.monitoring.limits import at_limit, throttling
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
