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


SOURCES = {
    # Texts that name tables, no analysis.
    "DEVICES": Source(("DEVICES",)),
    "KERNELS": Source(("KERNELS",), is_of_kernel_times=True),
    "LAUNCHES": Source(("LAUNCHES",)),
    "LINKS": Source(("LINKS",)),
    "SAMPLES": Source(("SAMPLES",)),
    "SCHEDULE": Source(("SCHEDULE",)),
    "STALLS": Source(("STALLS",)),
    "TRACE": Source(("TRACE",)),
    "KERNELS, COPIES": Source(("KERNELS", "COPIES"), is_of_kernel_times=True),
    "KERNELS, API_CALLS": Source(("KERNELS", "API_CALLS"), is_of_kernel_times=True),
    "RANGES, KERNELS": Source(("RANGES", "KERNELS")),
    "COPIES, KERNELS": Source(("COPIES", "KERNELS")),
    "KERNELS, DEVICES": Source(("KERNELS", "DEVICES"), is_of_kernel_times=True),
    "KERNELS, SAMPLES": Source(("KERNELS", "SAMPLES"), is_of_kernel_times=True),
    "SAMPLES, KERNELS": Source(("SAMPLES", "KERNELS")),
    "OPS": Source(("OPS", "framework/OPS")),
    # Analyses: the text is the name, as in `perfkit.analysis`. Those of extensions stand there.
    "timeline.busy": Source(("KERNELS", "COPIES"), "timeline.busy"),
    "timeline.breakdown": Source(("KERNELS", "COPIES"), "timeline.breakdown"),
    "communication.overlap": Source(("KERNELS",), "communication.overlap", is_of_kernel_times=True),
    "communication.plateau": Source(("COLLECTIVES",), "communication.plateau", is_of_kernel_times=True),
    "communication.summary": Source(("framework/COLLECTIVES",), "communication.summary", is_of_kernel_times=True),
    "communication.imbalance": Source(("framework/COLLECTIVES",), "communication.imbalance"),
    "gaps.idle_gaps": Source(("KERNELS", "COPIES", "API_CALLS", "RANGES"), "gaps.idle_gaps", is_of_kernel_times=True),
    "owners.owned": Source(("KERNELS", "COPIES", "API_CALLS", "OS_CALLS", "SCHEDULE"), "owners.owned"),
    "operators.synchronisations": Source(
        ("KERNELS", "COPIES", "API_CALLS", "RANGES"),
        "operators.synchronisations",
        is_of_kernel_times=True,
    ),
    "checkpoints.detect": Source(("KERNELS", "COPIES", "RANGES", "OS_CALLS"), "checkpoints.detect"),
    "steps.detect": Source(("RANGES", "KERNELS"), "steps.detect"),
    "calltree.gpu_summary": Source(("CALLTREE", "CALL_METRICS"), "calltree.gpu_summary"),
    "calltree.exclusive": Source(("CALLTREE", "CALL_METRICS"), "calltree.exclusive"),
    "calltree.hot_path": Source(("CALLTREE", "CALL_METRICS"), "calltree.hot_path"),
    "calltree.mpi_calls": Source(("CALLTREE", "CALL_METRICS"), "calltree.mpi_calls"),
    "calltree.utilisation": Source(("TRACE",), "calltree.utilisation"),
    "dossier.covered": Source(("KERNELS", "LAUNCHES"), "dossier.covered", is_of_kernel_times=True),
    "roofline.bound": Source(("LAUNCHES",), "roofline.bound"),
    "limiters.limiters": Source(("LAUNCHES", "COUNTERS"), "limiters.limiters"),
    "access.losses": Source(("LAUNCHES", "COUNTERS"), "access.losses"),
    "warps.stall_shares": Source(("STALLS", "LAUNCHES"), "warps.stall_shares"),
    "flops.coverage": Source(
        ("framework/OPS", "framework/KERNELS", "framework/API_CALLS"),
        "flops.coverage",
        is_of_kernel_times=True,
    ),
    "flops.mfu": Source(
        ("framework/OPS", "framework/KERNELS", "framework/API_CALLS"),
        "flops.mfu",
        is_of_kernel_times=True,
    ),
    "flops.roofline": Source(
        ("framework/OPS", "framework/KERNELS", "framework/API_CALLS"),
        "flops.roofline",
        is_of_kernel_times=True,
    ),
    "operators.kernels_of": Source(
        ("framework/OPS", "framework/KERNELS", "framework/API_CALLS"),
        "operators.kernels_of",
        is_of_kernel_times=True,
    ),
    "operators.many_small": Source(
        ("framework/OPS", "framework/KERNELS", "framework/API_CALLS"),
        "operators.many_small",
        is_of_kernel_times=True,
    ),
    "host.input_wait": Source(("framework/RANGES",), "host.input_wait", is_of_kernel_times=True),
    "memory.peak": Source(("framework/SAMPLES",), "memory.peak"),
    "memory.fragmentation": Source(("framework/SAMPLES",), "memory.fragmentation"),
    "memory.growth": Source(("framework/SAMPLES",), "memory.growth"),
    "calltree.paths.calls": Source(("CALLTREE", "CALL_METRICS"), "calltree.paths.calls"),
    "calltree.paths.regions": Source(("CALLTREE", "CALL_METRICS"), "calltree.paths.regions"),
    "efficiency.reported_mfu": Source(("SAMPLES",), "efficiency.reported_mfu"),
    "llm_operations.ceilings": Source(("DEVICES",), "llm_operations.ceilings"),
    "compare.steps": Source(("RANGES", "baseline/RANGES", "KERNELS", "baseline/KERNELS"), "compare.steps"),
    "compare.parts": Source(
        ("RANGES", "baseline/RANGES", "KERNELS", "baseline/KERNELS", "COPIES", "baseline/COPIES"),
        "compare.parts",
    ),
    "compare.families": Source(("KERNELS", "baseline/KERNELS"), "compare.families"),
    "compare.kernels": Source(("KERNELS", "baseline/KERNELS"), "compare.kernels"),
    "compare.launches": Source(("LAUNCHES", "baseline/LAUNCHES"), "compare.launches"),
    "compare.figures": Source((), "compare.figures"),
    # Texts that say more than the analysis.
    "RANGES, PYTHON_CALLS, OPS; gaps.idle_gaps": Source(("RANGES", "PYTHON_CALLS", "OPS"), "gaps.idle_gaps"),
    "COPIES; memory.copied": Source(("COPIES",), "memory.copied"),
    "KERNELS; compare.families": Source(("KERNELS",), "compare.families", is_of_kernel_times=True),
    "LAUNCHES; roofline.points": Source(("LAUNCHES",), "roofline.points"),
    "RANGES, KERNELS; compare.steps": Source(("RANGES", "KERNELS"), "compare.steps"),
    "SAMPLES; timeline.samples_mean": Source(("SAMPLES",), "timeline.samples_mean"),
    "kernels.precision, SAMPLES": Source(
        ("SAMPLES", "framework/OPS", "framework/KERNELS", "framework/API_CALLS"),
        "kernels.precision",
        is_of_kernel_times=True,
    ),
    "kernels.precision, kernels.mixed": Source(
        ("framework/OPS", "framework/KERNELS", "framework/API_CALLS"),
        "kernels.precision",
        is_of_kernel_times=True,
    ),
    "steps.detect (nvtx)": Source(("RANGES", "KERNELS"), "steps.detect"),
    "steps.detect (profiler step)": Source(("RANGES", "KERNELS"), "steps.detect"),
    "steps.detect (kernel sequence)": Source(("RANGES", "KERNELS"), "steps.detect"),
    "RANGES, KERNELS; efficiency.mfu": Source(("RANGES", "KERNELS"), "efficiency.mfu"),
    "RANGES, KERNELS; efficiency.samples_per_s": Source(("RANGES", "KERNELS"), "efficiency.samples_per_s"),
    "RANGES, KERNELS; scaling.training_time": Source(("RANGES", "KERNELS"), "scaling.training_time"),
    "SAMPLES; efficiency.mfu": Source(("SAMPLES",), "efficiency.mfu"),
    "SAMPLES; efficiency.samples_per_s": Source(("SAMPLES",), "efficiency.samples_per_s"),
    "SAMPLES; scaling.training_time": Source(("SAMPLES",), "scaling.training_time"),
    "KERNELS, COPIES; timeline.busy": Source(("KERNELS", "COPIES"), "timeline.busy", is_of_kernel_times=True),
    "KERNELS, COPIES; timeline.breakdown": Source(("KERNELS", "COPIES"), "timeline.breakdown", is_of_kernel_times=True),
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
