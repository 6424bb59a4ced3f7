"""What lies behind a figure: the tables it was made of, and the code of the notebooks' cells that show it.

Conventions
-----------
A figure's source names tables and the analysis that worked it out, such as ``KERNELS, COPIES; timeline.busy``; one that
names an analysis alone rests on the tables given here. A table of the framework's profiler is ``framework/KERNELS``:
where another tool recorded kernels too, the report keeps both. That of the earlier run of a comparison is
``baseline/KERNELS``.

Functions
---------
behind   tables and code of a figure
"""

from __future__ import annotations

import re
from typing import NamedTuple

from perfkit.tables import TABLES

WORD = re.compile(r"[A-Za-z_]+(?:\.[a-z_]+)?")
REMARK = re.compile(r"\([^)]*\)")


class Behind(NamedTuple):
    """Names of tables, and pieces of the code of cells that show the figure, the most telling first."""

    tables: tuple[str, ...]
    code: tuple[str, ...]


TIMELINE = ("KERNELS", "COPIES")
CALLS = (*TIMELINE, "API_CALLS", "RANGES")
TREE = ("CALLTREE", "CALL_METRICS")
TRACED = ("framework/OPS", "framework/KERNELS", "framework/API_CALLS")
BOTH = ("KERNELS", "baseline/KERNELS")
# By the id of a figure, an analysis or a table; the first of these that is here holds.
SHOWN: dict[str, Behind] = {
    "dram_used_frac": Behind(("SAMPLES",), ("diagnosis.sampled(",)),
    "paths_launch_low_frac": Behind(TREE, ("composition.launch_efficiency(",)),
    "paths_launch_high_frac": Behind(TREE, ("composition.launch_efficiency(",)),
    "timeline.busy": Behind(TIMELINE, ("timeline.busy(",)),
    "timeline.breakdown": Behind(TIMELINE, ("breakdown.parts(",)),
    "timeline.samples_mean": Behind(("SAMPLES",), ("diagnosis.sampled(", "monitoring.summary(")),
    "transfers.summary": Behind(("COPIES",), ("views.transfers(",)),
    "communication.overlap": Behind(("KERNELS",), ("communication.overlap(",)),
    "communication.plateau": Behind(("COLLECTIVES",), ("views.collectives(",)),
    "communication.summary": Behind(("framework/COLLECTIVES",), ("views.ranks(", "views.collectives(")),
    "collectives.imbalance": Behind(("framework/COLLECTIVES",), ("views.ranks(",)),
    "gaps.idle_gaps": Behind(CALLS, ("views.gaps(",)),
    "checkpoints.detect": Behind((*TIMELINE, "RANGES", "OS_CALLS"), ("views.gaps(",)),
    "steps.detect": Behind(("RANGES", "KERNELS"), ("steps.detect(",)),
    "calltree.gpu_summary": Behind(TREE, ("composition.gpu_time(",)),
    "calltree.utilisation": Behind(("TRACE",), ("composition.host_and_gpu(",)),
    "calltree.hot_path": Behind(TREE, ("views.call_paths(",)),
    "dossier.covered": Behind(("KERNELS", "LAUNCHES"), ("dossier.kernels(",)),
    "roofline.points": Behind(("LAUNCHES",), ("views.roofline(",)),
    "roofline.bound": Behind(("LAUNCHES",), ("views.roofline(",)),
    "stalls.shares": Behind(("STALLS", "LAUNCHES"), ("stalls.shares(",)),
    "flops.coverage": Behind(TRACED, ("flops.roofline(",)),
    "flops.mfu": Behind(TRACED, ("flops.roofline(",)),
    "flops.roofline": Behind(TRACED, ("flops.roofline(",)),
    "input_wait.summary": Behind(("framework/RANGES",), ("operators.steps(",)),
    "memory.peak": Behind(("framework/SAMPLES",), ("views.memory(",)),
    "memory.fragmentation": Behind(("framework/SAMPLES",), ("views.memory(",)),
    "operators.kernels_of": Behind(TRACED, ("views.operators(",)),
    "operators.many_small": Behind(TRACED, ("operators.many_small(",)),
    "operators.synchronisations": Behind(CALLS, ("operators.synchronisations(", "host.synchronisations(")),
    "precision.shares": Behind(TRACED, ("precision.shares(",)),
    "precision.mixed": Behind(TRACED, ("precision.shares(",)),
    "monitoring.at_limit": Behind(("SAMPLES", "DEVICES"), ("monitoring.at_limit(",)),
    "monitoring.checks": Behind(("SAMPLES",), ("views.monitor(",)),
    "monitoring.idle": Behind(("SAMPLES",), ("monitoring.utilisation(",)),
    "monitoring.throttling": Behind(("SAMPLES",), ("monitoring.throttling(",)),
    "monitoring.utilisation": Behind(("SAMPLES",), ("monitoring.utilisation(",)),
    "operations.ceilings": Behind(("DEVICES",), ("views.machine(",)),
    "efficiency.reported_mfu": Behind(("SAMPLES",), ("views.training(",)),
    "compare.steps": Behind(("RANGES", "baseline/RANGES", *BOTH), ('part="steps"',)),
    "compare.parts": Behind(("RANGES", "baseline/RANGES", *BOTH, "COPIES", "baseline/COPIES"), ('part="steps"',)),
    "compare.families": Behind(BOTH, ('part="families"',)),
    "compare.kernels": Behind(BOTH, ('part="kernels"',)),
    "compare.launches": Behind(("LAUNCHES", "baseline/LAUNCHES"), ('part="launches"',)),
    "compare.figures": Behind((), ('part="figures"',)),
    "KERNELS": Behind(("KERNELS",), ("views.kernels(",)),
    "LAUNCHES": Behind(("LAUNCHES",), ("occupancy.limits(",)),
    "OPS": Behind(("framework/OPS",), ("views.operators(",)),
    "STALLS": Behind(("STALLS",), ("calltree.kernel_stalls(",)),
    "TRACE": Behind(("TRACE",), ("calltree.threads(",)),
    "SAMPLES": Behind(("SAMPLES",), ("views.training(",)),
}


def behind(figure: str, source: str) -> Behind:
    """Return the tables that a figure rests on, and the code of the cells that show it.

    Parameters
    ----------
    figure, source
        Its id and its source.

    Returns
    -------
    Behind
        Tables that the source names before a semicolon, else those of its analyses as well; code by the id, then the
        analyses, then the tables.

    Examples
    --------
    >>> behind("idle_frac", "KERNELS, COPIES; timeline.breakdown")
    Behind(tables=('KERNELS', 'COPIES'), code=('breakdown.parts(', 'views.kernels('))
    >>> behind("step_count", "steps.detect (nvtx)").tables
    ('RANGES', 'KERNELS')
    """
    words = WORD.findall(REMARK.sub("", source))
    named = [word for word in words if word in TABLES]
    known = [SHOWN[word] for word in (figure, *(word for word in words if "." in word), *named) if word in SHOWN]
    implied = [] if named and ";" in source else [table for one in known for table in one.tables]
    code = (piece for one in known for piece in one.code)
    return Behind(tuple(dict.fromkeys([*named, *implied])), tuple(dict.fromkeys(code)))
