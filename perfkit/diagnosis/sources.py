"""What the text of a figure's source stands for: its tables, and the analysis behind it."""

from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from perfkit.diagnosis.extensions import extensions


class Source(NamedTuple):
    """The tables that a figure rests on, and the analysis that worked it out; empty without one.

    `framework/KERNELS` is a table of the framework's profiler, `baseline/KERNELS` one of the
    earlier run. `is_of_kernel_times`: whether it rests on how long kernels ran. `detail` is what the
    text says after the analysis.
    """

    tables: tuple[str, ...] = ()
    analysis: str = ""
    is_of_kernel_times: bool = False
    detail: str = ""


OPERATIONS = ("KERNELS", "COPIES")
STEPS = ("RANGES", "KERNELS")
# Tables that figures name in their source, and the analyses that they name after these; of several
# tables the one that is counted or timed first.
NAMED: dict[tuple[str, ...], tuple[str, ...]] = {
    OPERATIONS: ("timeline.busy", "timeline.breakdown"),
    STEPS: ("compare.steps", "efficiency.mfu", "efficiency.samples_per_s", "scaling.training_time"),
    ("KERNELS",): ("compare.families",),
    ("KERNELS", "API_CALLS"): (),
    ("KERNELS", "DEVICES"): (),
    ("KERNELS", "SAMPLES"): (),
    ("COPIES",): ("memory.copied",),
    ("COPIES", "KERNELS"): (),
    ("LAUNCHES",): ("roofline.points",),
    ("SAMPLES",): (
        "timeline.samples_mean",
        "efficiency.mfu",
        "efficiency.samples_per_s",
        "scaling.training_time",
    ),
    ("SAMPLES", "KERNELS"): (),
    ("RANGES", "PYTHON_CALLS", "OPS"): ("gaps.idle_gaps",),
    **{(table,): () for table in ("DEVICES", "LINKS", "SCHEDULE", "STALLS", "TRACE")},
}
OF_OPERATORS = ("framework/OPS", "framework/KERNELS", "framework/API_CALLS")
# Tables of a timeline: a doubt of the recording makes what rests on them unsure.
TIMELINE = {f"{of}{name}" for of in ("", "framework/") for name in (*OPERATIONS, "API_CALLS")} | {
    "framework/COLLECTIVES"
}
CALLS = ("CALLTREE", "CALL_METRICS")
MEASURED = ("LAUNCHES", "COUNTERS")
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


def _named(tables: tuple[str, ...]) -> Iterator[tuple[str, Source]]:
    """Yield the texts that name tables, alone and with each of their analyses, and what they mean."""
    for analysis in ("", *NAMED[tables]):
        text = "; ".join(filter(None, (", ".join(tables), analysis)))
        yield text, Source(tables, analysis, is_of_kernel_times=tables[0] == "KERNELS")


SOURCES = {
    **dict(chain.from_iterable(map(_named, NAMED))),
    **{name: Source(tables, name) for name, tables in ANALYSES.items()},
    **{name: Source(tables, name, is_of_kernel_times=True) for name, tables in OF_TIMES.items()},
    # Texts that say more than tables and analysis.
    "OPS": Source(("OPS", "framework/OPS")),
    "kernels.precision, SAMPLES": Source(
        ("SAMPLES", *OF_OPERATORS), "kernels.precision", True, ", SAMPLES"
    ),
    "kernels.precision, kernels.mixed": Source(
        OF_OPERATORS, "kernels.precision", True, ", kernels.mixed"
    ),
    **{
        f"steps.detect{how}": Source(STEPS, "steps.detect", detail=how)
        for how in (" (nvtx)", " (profiler step)", " (kernel sequence)")
    },
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
