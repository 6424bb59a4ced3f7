"""Which way is better, and is a difference one?

Conventions
-----------
A verdict is "better" or "worse" only where the whole interval lies further from 1 than a difference that matters: 1 %
by default, since runs of one program differ by as much, which the steps of a single one cannot show (convention).
A figure that no table gives a direction is "changed", never better. One without an interval, a single value of a single
run, is "changed, not tested": nothing says how much it varies on its own.

Functions
---------
direction    which way a named figure is better
of_interval  the verdict on a ratio that has an interval
of_values    the verdict on two values without one
"""

from __future__ import annotations

import math
from fnmatch import fnmatchcase

BETTER, WORSE, UNSEEN, UNKNOWN = "better", "worse", "no difference seen", "cannot tell"
CHANGED, UNTESTED, NEW, GONE = "changed", "changed, not tested", "new", "gone"
VERDICTS = (BETTER, WORSE, UNSEEN, UNKNOWN, CHANGED, UNTESTED, NEW, GONE)
MATTERS = 0.01  # relative difference of an interval that matters
TOLERANCE = 0.05  # relative difference of two values of which no interval is known
POINTS = 0.01  # absolute difference of two fractions, in addition: of small shares any change is a large ratio

# The one place that says which way a figure is better, by the pattern of its id; the first that matches holds.
# A total depends on how long was recorded, a mean kernel on how much was fused: they have no direction.
DIRECTIONS: tuple[tuple[str, str], ...] = (
    *((name, "lower") for name in ("step_median_ns", "step_mean_ns", "step_*_ns", "family_*_ns", "part_*_ns")),
    ("matched_kernels_ns", "lower"),
    *((name, "lower") for name in ("idle_frac", "idle_*_frac", "sync_idle_frac", "preparing_idle_frac")),
    *((name, "lower") for name in ("exposed_communication_frac", "exposed_copy_frac", "input_wait_frac")),
    *((name, "lower") for name in ("short_kernel_frac", "small_op_frac", "launch_pause_frac", "warm_up_frac")),
    *((name, "lower") for name in ("unfused_attention_frac", "rank_imbalance_frac", "latency_bound_frac")),
    *((name, "lower") for name in ("memory_peak_bytes", "memory_reserved_bytes", "memory_unused_frac")),
    *((name, "lower") for name in ("paths_wall_ns", "paths_host_ns", "paths_operation_ns", "paths_kernel_ns")),
    *((name, "lower") for name in ("paths_copy_ns", "paths_synchronisation_ns", "paths_*_bytes", "paths_copy_frac")),
    *((name, "lower") for name in ("paths_launch_count", "paths_copy_count", "paths_launch_*_frac")),
    *((name, "lower") for name in ("log_idle_frac", "log_throttled_frac")),
    *((name, "higher") for name in ("kernel_busy_frac", "device_busy_frac", "computation_frac", "overlap_frac")),
    *((name, "higher") for name in ("*_bytes_per_s", "*_flops_per_s", "tokens_per_s", "samples_per_s", "steps_per_s")),
    *((name, "higher") for name in ("sample_*_active_frac", "sample_dram_*_frac", "shape_flops_frac", "mfu", "hfu")),
    *((name, "higher") for name in ("roof_share_frac", "achieved_occupancy_frac", "reduced_precision_frac")),
    *((name, "higher") for name in ("mfu_frac", "hfu_frac", "paths_gpu_busy_frac", "paths_kernel_wall_frac")),
    *((name, "higher") for name in ("log_gpu_busy_frac", "log_*_active_frac", "log_sm_occupancy_frac")),
)


def direction(figure: str) -> str:
    """Return whether "lower" or "higher" is better for the figure of this id; empty where neither is.

    Examples
    --------
    >>> direction("step_median_ns"), direction("device_busy_frac"), direction("kernel_count")
    ('lower', 'higher', '')
    """
    return next((better for pattern, better in DIRECTIONS if fnmatchcase(figure, pattern)), "")


def of_interval(low: float, high: float, *, better: str = "lower", matters: float = MATTERS) -> str:
    """Return the verdict on a ratio after / before whose interval reaches from `low` to `high`.

    Parameters
    ----------
    low, high
        Ends of the interval; NaN where it is not known.
    better
        "lower", "higher" or empty for neither.
    matters
        Relative difference that matters, at least 0: an interval must lie beyond 1 + matters or 1 / (1 + matters).

    Examples
    --------
    >>> of_interval(1.02, 1.05), of_interval(1.005, 1.05), of_interval(0.8, 0.9), of_interval(0.8, 0.9, better="higher")
    ('worse', 'no difference seen', 'better', 'worse')
    """
    if math.isnan(low) or math.isnan(high):
        return UNKNOWN
    if low > 1 + matters:
        return _said(better, "higher")
    return _said(better, "lower") if high < 1 / (1 + matters) else UNSEEN


def of_values(before: float, after: float, *, better: str, unit: str = "", matters: float = TOLERANCE) -> str:
    """Return which way two values differ of which no interval is known, by the words of a verdict.

    Parameters
    ----------
    before, after
        The values; NaN where a run lacks it.
    better
        "lower", "higher" or empty for neither.
    unit
        "1" for fractions: they must differ by one point in a hundred as well.
    matters
        Relative difference from which on there is one.

    Examples
    --------
    >>> of_values(0.001, 0.002, better="lower", unit="1"), of_values(100.0, 120.0, better="lower")
    ('no difference seen', 'worse')
    """
    if math.isnan(before) and math.isnan(after):
        return UNKNOWN
    if math.isnan(before) or math.isnan(after):
        return NEW if math.isnan(before) else GONE
    apart = abs(after - before)
    if apart <= matters * abs(before) or (unit == "1" and apart <= POINTS):
        return UNSEEN
    return _said(better, "higher" if after > before else "lower")


def _said(better: str, moved: str) -> str:
    """Return the verdict on a value that moved "higher" or "lower"."""
    if not better:
        return CHANGED
    return BETTER if moved == better else WORSE
