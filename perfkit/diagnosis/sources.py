"""What the text of a figure's source stands for: its tables, and the analysis behind it."""

from typing import NamedTuple

from perfkit.diagnosis.extensions import extensions


class Source(NamedTuple):
    """The tables that a figure rests on, and the analysis that worked it out; empty without one.

    `framework/KERNELS` is a table of the framework's profiler, `baseline/KERNELS` one of the
    earlier run. `is_of_kernel_times`: whether it rests on how long kernels ran.
    """

    tables: tuple[str, ...] = ()
    analysis: str = ""
    is_of_kernel_times: bool = False


# Texts that name tables, the one that is counted or timed first.
TABLES = (
    *("DEVICES", "KERNELS", "LAUNCHES", "LINKS", "SAMPLES", "SCHEDULE", "STALLS", "TRACE"),
    *("KERNELS, COPIES", "KERNELS, API_CALLS", "KERNELS, DEVICES", "KERNELS, SAMPLES"),
    *("RANGES, KERNELS", "COPIES, KERNELS", "SAMPLES, KERNELS"),
)
# Texts that name tables, and the analysis of them.
ANALYSED = (
    *("KERNELS, COPIES; timeline.busy", "KERNELS, COPIES; timeline.breakdown"),
    *("KERNELS; compare.families", "COPIES; memory.copied", "LAUNCHES; roofline.points"),
    *("RANGES, KERNELS; compare.steps", "RANGES, KERNELS; efficiency.mfu"),
    *("RANGES, KERNELS; efficiency.samples_per_s", "RANGES, KERNELS; scaling.training_time"),
    *("SAMPLES; timeline.samples_mean", "SAMPLES; efficiency.mfu"),
    *("SAMPLES; efficiency.samples_per_s", "SAMPLES; scaling.training_time"),
    "RANGES, PYTHON_CALLS, OPS; gaps.idle_gaps",
)
OPERATIONS = ("KERNELS", "COPIES")
OF_OPERATORS = ("framework/OPS", "framework/KERNELS", "framework/API_CALLS")
CALLS = ("CALLTREE", "CALL_METRICS")
MEASURED = ("LAUNCHES", "COUNTERS")
STEPS = ("RANGES", "KERNELS")
BOTH = ("RANGES", "baseline/RANGES", "KERNELS", "baseline/KERNELS")
# The tables of an analysis that stands alone, by its name in `perfkit.analysis`. Those of
# extensions stand there.
ANALYSES = {
    "timeline.busy": OPERATIONS,
    "timeline.breakdown": OPERATIONS,
    "phases.phases": OPERATIONS,
    "owners.owned": (*OPERATIONS, "API_CALLS", "OS_CALLS", "SCHEDULE"),
    "checkpoints.detect": (*OPERATIONS, "RANGES", "OS_CALLS"),
    "steps.detect": STEPS,
    "calltree.gpu_summary": CALLS,
    "calltree.exclusive": CALLS,
    "calltree.hot_path": CALLS,
    "calltree.mpi_calls": CALLS,
    "calltree.paths.calls": CALLS,
    "calltree.paths.regions": CALLS,
    "calltree.utilisation": ("TRACE",),
    "roofline.bound": ("LAUNCHES",),
    "limiters.limiters": MEASURED,
    "access.losses": MEASURED,
    "warps.stall_shares": ("STALLS", "LAUNCHES"),
    "memory.peak": ("framework/SAMPLES",),
    "memory.fragmentation": ("framework/SAMPLES",),
    "memory.growth": ("framework/SAMPLES",),
    "efficiency.reported_mfu": ("SAMPLES",),
    "llm_operations.ceilings": ("DEVICES",),
    "compare.steps": BOTH,
    "compare.parts": (*BOTH, "COPIES", "baseline/COPIES"),
    "compare.families": ("KERNELS", "baseline/KERNELS"),
    "compare.kernels": ("KERNELS", "baseline/KERNELS"),
    "compare.launches": ("LAUNCHES", "baseline/LAUNCHES"),
    "compare.figures": (),
}
# The same of analyses of how long kernels ran.
OF_TIMES = {
    "communication.imbalance": ("framework/KERNELS", "framework/COPIES"),
    "communication.overlap": ("KERNELS",),
    "communication.plateau": ("COLLECTIVES",),
    "communication.summary": ("framework/COLLECTIVES",),
    "gaps.idle_gaps": (*OPERATIONS, "API_CALLS", "RANGES"),
    "operators.synchronisations": (*OPERATIONS, "API_CALLS", "RANGES"),
    "dossier.covered": ("KERNELS", "LAUNCHES"),
    "flops.coverage": OF_OPERATORS,
    "flops.mfu": OF_OPERATORS,
    "flops.roofline": OF_OPERATORS,
    "operators.kernels_of": OF_OPERATORS,
    "operators.many_small": OF_OPERATORS,
    "host.input_wait": ("framework/RANGES",),
}


def _of_tables(text: str) -> Source:
    """Return what a text of tables and perhaps an analysis stands for."""
    tables, _, analysis = text.partition("; ")
    named = tuple(tables.split(", "))
    return Source(named, analysis, is_of_kernel_times=named[0] == "KERNELS")


SOURCES = {
    **{text: _of_tables(text) for text in (*TABLES, *ANALYSED)},
    **{name: Source(tables, name) for name, tables in ANALYSES.items()},
    **{name: Source(tables, name, is_of_kernel_times=True) for name, tables in OF_TIMES.items()},
    # Texts that say more than tables and analysis.
    "OPS": Source(("OPS", "framework/OPS")),
    "kernels.precision, SAMPLES": Source(("SAMPLES", *OF_OPERATORS), "kernels.precision", True),
    "kernels.precision, kernels.mixed": Source(OF_OPERATORS, "kernels.precision", True),
    "steps.detect (nvtx)": Source(STEPS, "steps.detect"),
    "steps.detect (profiler step)": Source(STEPS, "steps.detect"),
    "steps.detect (kernel sequence)": Source(STEPS, "steps.detect"),
}


def source(text: str) -> Source:
    """Return what the text of a source stands for; an unknown one is an analysis without tables.

    >>> source("steps.detect (nvtx)").tables
    ('RANGES', 'KERNELS')
    """
    if text in SOURCES:
        return SOURCES[text]
    given = [part.SOURCES[text] for part in extensions() if text in part.SOURCES]
    return given[0] if given else Source(analysis=text)
