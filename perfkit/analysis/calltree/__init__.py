"""Where do CPU and GPU time go along the calls of a program: which entry, function, Python line and kernel?

Conventions
-----------
CALLTREE, CALL_METRICS and STALLS are those of one call-path profile (HPCToolkit), in any order and maybe empty, with
metrics under the tool's names; another table raises SchemaError. An inclusive value contains everything called: it adds
up over the roots only, one per entry point, and that sum over *all* entry points is the total. An exclusive value
belongs to a context alone and adds up over all contexts. A metric without a row was not measured or is 0: it is NaN
where a rank has it nowhere. Times are sums over threads or streams, never added to each other and never taken for wall
time. Shares are 0..1.

References
----------
HPCToolkit, FORMATS.md and metrics/default.yaml, in every database; Hatchet (llnl-hatchet), GraphFrame.
"""

from perfkit.analysis.calltree.gpu import gpu_summary, host_metric, launch_cost, utilisation
from perfkit.analysis.calltree.kernel_sites import kernel_stalls, kernels, launch_sites, stall_shares, tree_sums
from perfkit.analysis.calltree.paths import hot_path
from perfkit.analysis.calltree.totals import exclusive, inclusive, threads

__all__ = [
    "exclusive",
    "gpu_summary",
    "host_metric",
    "hot_path",
    "inclusive",
    "kernel_stalls",
    "kernels",
    "launch_cost",
    "launch_sites",
    "stall_shares",
    "threads",
    "tree_sums",
    "utilisation",
]
