"""The figures that the checks of a device ask for, one row per device.

Functions
---------
facts    utilisation, limits, throttling and traffic side by side
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from perfkit.analysis.calls import where
from perfkit.analysis.monitoring.limits import CAUSES, COUNTED, QUANTITIES, at_limit, throttling
from perfkit.analysis.monitoring.readings import DEVICE, means, readings, wide
from perfkit.analysis.monitoring.summaries import BUSY, percentiles
from perfkit.analysis.window import Window

HIGH = 0.8  # of the time; convention of this project
# The link of each metric, its peak, and how many times that of one direction the metric may reach.
LINKS = {
    "pcie_rx_bytes_per_s": ("PCIe to the GPU", "pcie", 1),
    "pcie_tx_bytes_per_s": ("PCIe from the GPU", "pcie", 1),
    "nvlink_rx_bytes_per_s": ("NVLink to the GPU", "nvlink", 1),
    "nvlink_tx_bytes_per_s": ("NVLink from the GPU", "nvlink", 1),
    "nvlink_bytes_per_s": ("NVLink, both ways", "nvlink", 2),
}
# A GPU that was monitored has one of these, whatever else the samples hold.
OF_A_DEVICE = (
    *BUSY,
    *(metric for metrics in CAUSES.values() for metric in metrics),
    *COUNTED,
    *LINKS,
    "power_w",
    "memory_used_bytes",
    "temperature_c",
    "temperature_margin_c",
    "sm_clock_hz",
    "sm_active_frac",
    "tensor_active_frac",
    "dram_active_frac",
)
_OF_LIMIT = ["mean", "worst", "limit", "mean_frac", "worst_frac", "at_limit_frac", "source"]
_CAUSES = ["power_frac", "thermal_frac", "other_frac", "throttled_frac"]


def facts(samples: pd.DataFrame, devices: pd.DataFrame, *, window: Window | None = None) -> pd.DataFrame:
    """Return one row per monitored rank and gpu of 0 and up (the index) with what is known, NaN where it is not.

    Columns are those of `at_limit` after the quantity and an underscore, of `throttling` after "throttling_", the 95th
    percentile of each metric of LINKS and the mean of power_w and memory_used_bytes under their names, and busy_count,
    busy_median, busy_idle_frac, busy_high_frac.
    """
    lowered = throttling(samples, window=window).set_index(DEVICE)[_CAUSES].add_prefix("throttling_")
    limits = at_limit(samples, devices, window=window)
    of_quantity = [
        limits[limits["quantity"] == quantity].set_index(DEVICE)[_OF_LIMIT].add_prefix(f"{quantity}_")
        for quantity in QUANTITIES
    ]
    drawn = readings(samples, "power_w", "memory_used_bytes", window=window)
    means_of = wide(drawn, means(drawn), ("power_w", "memory_used_bytes"))
    table = pd.concat([lowered, *of_quantity, means_of, _busy(samples, window), _traffic(samples, window)], axis=1)
    return table.reindex(_monitored(samples))


def _monitored(samples: pd.DataFrame) -> pd.MultiIndex:
    """Return the devices of 0 and up with any of OF_A_DEVICE, ascending."""
    columns = samples["rank"].to_numpy(), samples["gpu"].to_numpy(), samples["metric"].cat.codes.to_numpy()
    changed = np.logical_or.reduce([np.diff(column) != 0 for column in columns])
    # Readings of a series follow each other in a sorted table: few rows tell all.
    series = samples.take(np.flatnonzero(np.append(True, changed)[: len(samples)]))
    series = series[(series["gpu"] >= 0) & where(series["metric"], OF_A_DEVICE.__contains__)]
    return pd.MultiIndex.from_frame(series[DEVICE].drop_duplicates().sort_values(DEVICE))


def _busy(samples: pd.DataFrame, window: Window | None) -> pd.DataFrame:
    found = readings(samples, *BUSY, window=window)
    table = found.series[DEVICE].assign(
        busy_count=found.count,
        busy_median=percentiles(found, {"p50": 0.5})["p50"],
        busy_idle_frac=means(found, found.value == 0),
        busy_high_frac=means(found, found.value >= HIGH),
    )
    return table.drop_duplicates(DEVICE).set_index(DEVICE)


def _traffic(samples: pd.DataFrame, window: Window | None) -> pd.DataFrame:
    found = readings(samples, *LINKS, window=window)
    return wide(found, percentiles(found, {"p95": 0.95})["p95"], tuple(LINKS))
