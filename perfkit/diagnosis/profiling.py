"""What does the profiler say of its recording, what time did it take itself, and how did it slow
the program down?
"""

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from perfkit.analysis import calltree, completeness, steps
from perfkit.diagnosis.doubt import Doubt, Kind, of_ranks, operations, touched
from perfkit.diagnosis.program import is_amd
from perfkit.format import duration, percent, printable
from perfkit.selection import Selection

SLOWER = 1.2  # times the step of the log, from which on a profiled step is distorted (convention)
LONGEST_MESSAGE = 200  # characters


@cache
def _known_messages() -> Sequence[Mapping[str, Any]]:
    with Path(__file__).with_name("messages.toml").open("rb") as file:
        return tuple(tomllib.load(file)["message"])


def messages(view: Selection) -> Iterator[Doubt]:
    """Yield what the profiler itself says that its recording lacks, each message once."""
    told = of_ranks(view, "DIAGNOSTICS")
    if told.empty:
        return
    worked = {
        int(process)
        for name in ("KERNELS", "COPIES")
        for process in of_ranks(view, name)["process"].unique()
    }
    for text, rows in told.groupby("text", sort=False):
        known = next((of for of in _known_messages() if re.search(of["pattern"], str(text))), None)
        is_of_gpu = bool(known and known.get("gpu"))
        if known is None and not rows["severity"].eq("error").any():
            continue
        if is_of_gpu and worked:
            continue
        yield Doubt(
            Kind.MESSAGE,
            f"The profiler says: “{_first_sentence(str(text))}”",
            len(rows),
            len(told),
            "messages",
            known["affects"] if known else "What it affects is not known",
            known["remedy"] if known else "Look the message up in the profiler's documentation",
            1.0 if known and is_of_gpu and known.get("alone", True) else 0.0,
        )


def _first_sentence(text: str) -> str:
    """Return the first sentence of a message, as text that can be shown.

    >>> _first_sentence("Driver (13.1) is too new. See the manual.")
    'Driver (13.1) is too new'
    """
    line = text.strip().partition("\n")[0]
    first = re.split(r"(?<=[^.\d])\.(?:\s|(?=[A-Z]))", line, maxsplit=1)[0]
    return printable(first.rstrip(".?!"), LONGEST_MESSAGE)


def collector(view: Selection) -> Iterator[Doubt]:
    """Yield how long the profiler itself worked while a GPU was idle."""
    overhead = of_ranks(view, "OVERHEAD")
    if overhead.empty:
        return
    kernels, copies = operations(view)
    own = completeness.collecting(overhead, kernels, copies)
    inside, share = touched(view, completeness.free(own, kernels, copies))
    if inside.empty:
        return
    count = int(overhead["kind"].isin(completeness.OF_COLLECTOR).sum())
    yield Doubt(
        Kind.COLLECTOR,
        f"The profiler itself worked for {duration(completeness.length_ns(inside))} while a GPU was idle",
        count,
        len(overhead),
        "events",
        "This time tells nothing of the program, so perfkit counts it neither as busy nor as idle",
        "Record fewer events, or a longer time without stopping the profiler",
        share,
        share,
        inside,
    )


def distorted(view: Selection) -> Iterator[Doubt]:
    """Yield that the profiler slowed the program down."""
    yield from _sampled_instructions(view)
    readings = view.run.table("SAMPLES")
    logged = readings.loc[readings["metric"].eq("iteration_ns"), "value"]
    found = steps.steady(steps.detect(view.ranges, view.all_kernels)) if len(logged) else None
    if found is None or found.empty:
        return
    usual = float(logged.median())
    profiled = float(found["dur_ns"].median())
    if profiled > SLOWER * usual > 0:
        yield Doubt(
            Kind.DISTORTED,
            f"A profiled step takes {duration(int(profiled))}, and a step of the log {duration(int(usual))}",
            len(found),
            len(found),
            "steps",
            f"The profiler slowed the program down: idle shares may be up to {percent(1 - usual / profiled)} too high",
            "Trace less, and compare step times of runs without a profiler",
        )


def _sampled_instructions(view: Selection) -> Iterator[Doubt]:
    if view.run.calltree.empty:
        return
    is_timed = view.run.capture["dur_ns"].gt(0).any()
    of = "wall time" if is_timed else "times of the recording"
    vendor = "rocm" if is_amd(view) else "nvidia"
    taken = calltree.gpu_summary(view.run.calltree, view.run.call_metrics)["sample_count"].sum()
    if taken > 0:
        yield Doubt(
            Kind.DISTORTED,
            f"The profiler took {int(taken):,} samples of GPU instructions, which slows a program down",
            int(taken),
            int(taken),
            "samples",
            f"The {of} may be mostly the profiler's, so shares of {'it' if is_timed else 'them'} are doubtful",
            f"Record the {of} without instruction sampling (hpcrun -e gpu={vendor}, without pc)",
            1.0,
        )
