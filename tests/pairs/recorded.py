"""Recorded pairs of runs, recomputed from the raw data without perfkit: JSON of PyTorch's profiler, SQL of nsys.

What a step takes, and how its time divides, is computed here anew, in integer ns: a step of the CPU, or of the GPU
from the first kernel that the step launches to the first one of the next step. `recorded.csv` has the pairs and their
figures, which `docs/pipeline.md` shows.
"""

import csv
import gzip
import json
import re
import sqlite3
import tempfile
import zipfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

FILE = Path(__file__).with_name("recorded.csv")
ARCHIVES = [FILE.parents[2] / "data" / f"{gpu}_cases.zip" for gpu in ("h200", "h100")]
Span = tuple[int, int]
KERNELS, COPIES, IDLE = "computation", "copy", "idle"


class Pair(NamedTuple):
    """Two runs, what changed, the steps that are compared, and one line of the ledger that explains the difference.

    `on`: GPU where the CPU of one run leaves its steps early, else CPU. `steps`: first and last step of each run, from
    0. `line`: a kind of time with a pattern of raw names: of kernels, of copies, or of what the CPU did while the GPU
    was idle; of all idle time where it is empty. `owner`: the pattern of the ledger's own names. `status`: of `check`.
    `files`: among the captures; none of a pair of `data`. `stored`: the figures of `figures`, as last computed.
    """

    name: str
    changed: str
    on: str
    steps: tuple[int, ...]
    kind: str
    line: str
    owner: str
    status: int
    files: tuple[str, ...]
    stored: dict[str, int]


def read() -> list[Pair]:
    """Return the pairs of `recorded.csv`."""
    with FILE.open(encoding="utf-8", newline="") as file:
        return [_pair(row) for row in csv.DictReader(file)]


def _pair(row: dict[str, str]) -> Pair:
    told = {name: row.pop(name) for name in ("name", "changed", "on", "kind", "line", "owner")}
    steps = tuple(map(int, re.findall(r"\d+", row.pop("steps"))))
    status, files = int(row.pop("status")), tuple(row.pop("files").split())
    stored = {name: int(value) for name, value in row.items()}
    return Pair(**told, steps=steps, status=status, files=files, stored=stored)


class Raw(NamedTuple):
    """The mean step of a run by its raw data, ns: its length, the parts of it, and one line of the ledger."""

    wall: float
    computation: float
    copy: float
    idle: float
    line: float


class _Recording(NamedTuple):
    """Spans (start, end) in ns: steps, kernels with the start of their launch, memsets, named copies, CPU ranges."""

    steps: list[Span]
    kernels: list[tuple[int, int, int, str]]
    memsets: list[Span]
    copies: list[tuple[int, int, str]]
    cpu: list[tuple[int, int, str]]


def raw(pair: Pair, path: Path, side: int) -> Raw:
    """Return the raw figures of a run, `side` 0 before and 1 after."""
    of = _of_sqlite(path) if path.suffix == ".sqlite" else _of_trace(path)
    windows = _on_gpu(of) if pair.on == "GPU" else of.steps
    chosen = windows[pair.steps[2 * side] : pair.steps[2 * side + 1] + 1]
    computing = _merged([*((start, end) for _, start, end, _ in of.kernels), *of.memsets])
    copying = _merged([(start, end) for start, end, _ in of.copies])
    busy = _merged([*computing, *copying])
    parts = [_covered(spans, chosen) / len(chosen) for spans in (computing, busy)]
    wall = sum(end - start for start, end in chosen) / len(chosen)
    idle = wall - parts[1]
    line = _covered(_line(pair, of, computing, busy), chosen) / len(chosen)
    is_all_idle = pair.kind == IDLE and not pair.line
    return Raw(wall, parts[0], parts[1] - parts[0], idle, idle if is_all_idle else line)


def _line(pair: Pair, of: _Recording, computing: list[Span], busy: list[Span]) -> list[Span]:
    """Return when the line of a pair lasts."""
    wanted = re.compile(pair.line)
    if pair.kind == KERNELS:
        return _merged([(start, end) for _, start, end, name in of.kernels if wanted.search(name)])
    if pair.kind == COPIES:
        copies = _merged([(start, end) for start, end, name in of.copies if wanted.search(name)])
        return _without(copies, computing)
    recorded = (busy[0][0], busy[-1][1])  # what is beyond has no cause in the ledger
    ranges = [
        (max(start, recorded[0]), min(end, recorded[1]))
        for start, end, name in of.cpu
        if wanted.search(name)
    ]
    return _without(_merged([(start, end) for start, end in ranges if start < end]), busy)


def _on_gpu(of: _Recording) -> list[Span]:
    """Return the steps of the GPU. Behind the last one stands what would be the start of the next."""
    held = [[k for k in of.kernels if start <= k[0] < end] for start, end in of.steps]
    first = [min(start for _, start, _, _ in kernels) for kernels in held]
    last = max(end for _, _, end, _ in held[-1])
    start, end = of.steps[-1]
    if last <= end:  # the CPU waits for the GPU, or prepares its work
        is_behind = max(end for _, _, end, _ in held[-2]) > start
        last = max(last, end if is_behind else first[-1] + end - start)
    return list(pairwise([*first, last]))


def _of_trace(path: Path) -> _Recording:
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    spans = [event for event in events if event.get("ph") == "X" and "dur" in event]
    kinds: dict[str, list[Any]] = {}
    for event in spans:
        kind = str(event.get("cat", "")).lower().removeprefix("gpu_")
        kinds.setdefault(kind if "annotation" not in kind else str(event["cat"]), []).append(event)
    cpu = [e for kind in ("user_annotation", "operator", "cpu_op") for e in kinds.get(kind, [])]
    calls = [e for k in ("runtime", "cuda_runtime", "cuda_driver") for e in kinds.get(k, [])]
    launched = {call["args"].get("correlation"): _span(call)[0] for call in calls}
    kernels = [
        (launched.get(kernel["args"].get("correlation"), -1), *_span(kernel), kernel["name"])
        for kernel in kinds["kernel"]
    ]
    steps = sorted(_span(event) for event in cpu if event["name"].startswith("ProfilerStep"))
    loads = sorted(_span(event)[0] for event in cpu if "enumerate(DataLoader)" in event["name"])
    return _Recording(
        steps or list(pairwise([*loads, max(_span(event)[1] for event in cpu)])),
        kernels,
        [_span(event) for event in kinds.get("memset", [])],
        [(*_span(event), event["name"]) for event in kinds.get("memcpy", [])],
        [(*_span(event), event["name"]) for event in (*cpu, *calls)],
    )


def _span(event: dict[str, Any]) -> Span:
    """Return start and end in ns; a trace has them in µs."""
    start = round(event["ts"] * 1000)
    return start, start + round(event["dur"] * 1000)


def _of_sqlite(path: Path) -> _Recording:
    """A step goes from one loading of data, or from one batch, to the next: what the recording begins with."""
    database = sqlite3.connect(f"file:{path}?mode=ro", uri=True)
    name = "coalesce(text, (SELECT value FROM StringIds WHERE id = textId))"
    marks = database.execute(
        f"SELECT start, {name} AS name FROM NVTX_EVENTS "
        "WHERE name = 'Data loading' OR name LIKE 'Batch %' ORDER BY start"
    ).fetchall()
    is_loading = marks[0][1] == "Data loading"
    starts = [start for start, name in marks if (name == "Data loading") == is_loading]
    table = "SELECT start, end FROM CUPTI_ACTIVITY_KIND_{}"
    kernels = database.execute(table.format("KERNEL")).fetchall()
    copies = database.execute(
        "SELECT start, end, copyKind FROM CUPTI_ACTIVITY_KIND_MEMCPY"
    ).fetchall()
    memsets = database.execute(table.format("MEMSET")).fetchall()
    database.close()
    named = [(start, end, {1: "HtoD", 2: "DtoH"}.get(kind, "")) for start, end, kind in copies]
    return _Recording(
        list(pairwise(starts)), [(-1, *span, "") for span in kernels], memsets, named, []
    )


def _merged(spans: list[Span]) -> list[Span]:
    """Return when any of the spans lasts."""
    merged: list[list[int]] = []
    for start, end in sorted(spans):
        if merged and start <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], end)
        else:
            merged.append([start, end])
    return [(start, end) for start, end in merged]


def _without(spans: list[Span], others: list[Span]) -> list[Span]:
    """Return when one of the merged `spans` lasts and none of the merged `others`."""
    return [span for start, end in spans for span in _rest(start, end, others)]


def _rest(start: int, end: int, others: list[Span]) -> Iterator[Span]:
    for first, last in others:
        if first < end and last > start:
            if first > start:
                yield start, first
            start = last
    if start < end:
        yield start, end


def _covered(spans: list[Span], windows: list[Span]) -> int:
    """Return for how long spans that do not overlap last in the windows."""
    return sum(
        max(0, min(end, last) - max(start, first))
        for first, last in windows
        for start, end in spans
    )


def paths(pair: Pair, folder: Path, profiles: Path | None = None) -> list[Path]:
    """Return where the recordings of a pair lie: among the captures, or from an archive of `data` in a folder."""
    if pair.files:
        assert profiles is not None
        kind = "nsys" if pair.files[0].endswith(".sqlite") else "torch"
        return [profiles / kind / name for name in pair.files]
    members = [f"{pair.name}-{form}.pt.trace.json" for form in ("bad", "good")]
    for archive in map(zipfile.ZipFile, ARCHIVES):
        with archive:
            if members[0] in archive.namelist():
                return [Path(archive.extract(member, folder)) for member in members]
    raise LookupError(pair.name)


def figures(before: Raw, after: Raw) -> dict[str, int]:
    """Return the figures of both runs of a pair, whole ns."""
    sides = (("before", before), ("after", after))
    return {
        f"{name}_{side}": round(value) for side, of in sides for name, value in of._asdict().items()
    }


def keep(profiles: Path) -> None:
    """Compute the figures of all pairs from raw data and store them in `recorded.csv`."""
    with FILE.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for row, pair in zip(rows, read(), strict=True):
        with tempfile.TemporaryDirectory() as folder:
            both = enumerate(paths(pair, Path(folder), profiles))
            row |= figures(*(raw(pair, path, side) for side, path in both))
    with FILE.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def table() -> str:
    """Return the rows as a table in Markdown; times in ms per step, as raw data give them."""
    head = (
        "Pair",
        "What changed",
        "Step",
        "Computing",
        "Copies",
        "Idle",
        "A line of the ledger",
        "check",
    )
    lines = [head, ("---",) * len(head)]
    for pair in read():
        *parts, line = [_moved(pair, name) for name in Raw._fields]
        told = f"{pair.kind} {pair.owner}".strip().replace("|", " or ")
        name = f"{pair.name} ({pair.on})"
        lines.append((name, pair.changed, *parts, f"`{told}` {line}", str(pair.status)))
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _moved(pair: Pair, name: str) -> str:
    before, after = (pair.stored[f"{name}_{side}"] / 1e6 for side in ("before", "after"))
    return f"{before:,.3g} → {after:,.3g}"
