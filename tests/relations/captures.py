"""The captures on which relations are tried: those with work of a GPU, and how long they may be."""

import os
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from relations.judgements import Judgement, judged
from relations.recordings import ON_GPU, Recording, taken

import perfkit
from perfkit.report.notebooks import sample

MOST_BYTES = 20 * 2**20
KINDS = ("nsys", "torch")
SUFFIXES = (".sqlite", ".json", ".json.gz")
# Files that are two ranks of one run.
PAIRS = (
    (
        "torch/HTA__trace_filter__sampled_rank-0.json.gz",
        "torch/HTA__trace_filter__sampled_rank-1.json.gz",
    ),
)
SAMPLE = "data/"
SAMPLES = ("*/*.nsys.sqlite", "*/*.pt.trace.json.gz", "gpu_workloads/*")


def named(path: str) -> Path | list[Path]:
    """Return the file, folder or files that a name stands for: "data/..." a sample, else one of PERFKIT_PROFILES."""
    if path.startswith(SAMPLE):
        return sample().parent / path.removeprefix(SAMPLE)
    profiles = Path(os.environ["PERFKIT_PROFILES"])
    for pair in PAIRS:
        if path == pair[0]:
            return [profiles / one for one in pair]
    return profiles / path


def recording(path: str) -> Recording:
    """Return the tables of a capture by its name."""
    return taken(perfkit.load(named(path)))


@cache
def prepared(path: str) -> tuple[Recording, Judgement]:
    """Return the tables of a capture, and what perfkit concludes of them."""
    made = recording(path)
    return made, judged(made)


def every() -> Iterator[str]:
    """Yield the names of all captures of these kinds and all samples, as far as they are small enough."""
    profiles = Path(os.environ["PERFKIT_PROFILES"])
    seconds = {pair[1] for pair in PAIRS}
    for kind in KINDS:
        for path in sorted((profiles / kind).iterdir()):
            name = f"{kind}/{path.name}"
            if _is_capture(path) and name not in seconds:
                yield name
    data = sample().parent
    for path in sorted(path for pattern in SAMPLES for path in data.glob(pattern)):
        yield f"{SAMPLE}{path.relative_to(data)}"


def _is_capture(path: Path) -> bool:
    files = [path] if path.is_file() else list(path.rglob("*"))
    is_small = sum(file.stat().st_size for file in files) <= MOST_BYTES
    return is_small and (path.is_dir() or path.name.endswith(SUFFIXES))


def works(of: Recording) -> bool:
    """Tell whether a capture has work of a GPU."""
    return bool(of.names & set(ON_GPU))
