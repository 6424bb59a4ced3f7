"""PyTorch profiler (Kineto): the JSON that ``export_chrome_trace`` or ``tensorboard_trace_handler`` wrote.

Record with ``torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])`` and
``prof.export_chrome_trace("trace.json.gz")``. Tried with traces of 2021 (PyTorch 1.8) to 2026, of
NVIDIA and
AMD GPUs, plain and gzip, also as rewritten by other programs (minified, keys in another order).
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas as pd

from perfkit import tables as perfkit_tables
from perfkit.errors import ReadError
from perfkit.format import printable
from perfkit.profile import Loader, Missing, Profile
from perfkit.readers.text import capture_table
from perfkit.readers.torch_trace import tables
from perfkit.readers.torch_trace.events import (
    FORMS,
    TABLES,
    TEN_YEARS,
    Columns,
    Half,
    Other,
    Spans,
)
from perfkit.readers.torch_trace.pairs import Pairs
from perfkit.readers.torch_trace.stream import (
    GZIP,
    UNREADABLE,
    Header,
    Source,
    Text,
    depths,
    keys_before_events,
)
from perfkit.readers.torch_trace.tables import GRAPH_LAUNCH


class Reading:
    """What one pass over a trace found."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.source = Source(path)
        self.spans: defaultdict[str, Spans] = defaultdict(Spans)
        self.left_out: Counter[str] = Counter()
        self.header = Header()
        self.misdated = 0
        self.pairs = Pairs()
        try:
            for events in self.source.blocks():
                halves = self._take(events)
                self._take(self.pairs.complete(halves))
            keys = {key: value for key, value in self.source.header.items() if value is not None}
            self.header = msgspec.convert(keys, Header)
        except UNREADABLE as e:
            raise ReadError(
                f"{path}: the trace holds what no PyTorch profiler writes ({e}). Copy it again, or "
                "record it again."
            ) from e
        self.repeated = self._leave_out_repeats()
        self.extents = self._extents()
        if not self.extents and not self.source.finished:
            raise ReadError(
                f"{path}: the file is cut before its first whole event. Copy it again, or record "
                "it again."
            )
        if self.last - self.first > TEN_YEARS:
            # Events ten years away from most others would make zero and end of the tables theirs.
            usual = int(np.median(np.concatenate([spans.starts for spans in self.spans.values()])))
            for spans in self.spans.values():
                spans.limit(usual - TEN_YEARS, usual + TEN_YEARS)
                self.misdated += spans.misdated
            self.misdated -= self.spans["COLLECTIVES"].misdated  # which are kernels too
            self.extents = self._extents()

    def _extents(self) -> list[tuple[int, int]]:
        """Return the first start and last end of each table: the program's, not those of the profiler's own time."""
        recorded = {table: spans for table, spans in self.spans.items() if len(spans)}
        of_program = [spans for table, spans in recorded.items() if table != "OVERHEAD"]
        return [spans.extent() for spans in of_program or recorded.values()]

    def _take(self, events: list[Any]) -> list[Half]:
        """Add events to their tables; return the halves of events among them."""
        groups: defaultdict[type, list[Any]] = defaultdict(list)
        for event in events:
            groups[type(event)].append(event)
        halves = groups.pop(Half, [])
        for kind, some in groups.items():
            self._add(TABLES.get(kind, ""), some)
        return halves

    def _leave_out_repeats(self) -> int:
        """Leave out events that were written again, and count them.

        Two operators or Python functions can look alike, two kernels, copies or calls of one thread
        cannot. What looks alike is the same event if there are such, or if it is half of a table.
        """
        alike = {
            table: spans.repeats()
            for table, spans in self.spans.items()
            if len(spans) and table != "SAMPLES"
        }
        shares = {table: rows.mean() for table, rows in alike.items()}
        if not any(shares.get(table) for table in ONCE) and max(shares.values(), default=0) < 0.5:
            return 0
        for table, rows in alike.items():
            self.spans[table].leave_out(rows)
        return sum(int(rows.sum()) for table, rows in alike.items() if table != "COLLECTIVES")

    def _add(self, table: str, events: list[Any]) -> None:
        if table == "OPS":
            tables.add_operators(self.spans["OPS"], self.spans["RANGES"], events)
        elif table == "API_CALLS":
            tables.add_calls(self.spans["API_CALLS"], events)
        elif table == "KERNELS":
            tables.add_kernels(self.spans["KERNELS"], self.spans["COLLECTIVES"], events)
        elif table == "COPIES":
            tables.add_copies(self.spans["COPIES"], events)
        elif table == "SAMPLES":
            tables.add_memory(self.spans["SAMPLES"], events)
        elif table:
            self.spans[table].add(events)
        elif isinstance(events[0], Other):
            self.left_out.update(event.cat or "" for event in events if event.ph == "X")

    @property
    def first(self) -> int:
        """The first start, ns on the trace's own clock: zero of the tables."""
        return min((first for first, _ in self.extents), default=0)

    @property
    def last(self) -> int:
        """The last end, ns on the trace's own clock."""
        return max((last for _, last in self.extents), default=0)


ONCE = ("KERNELS", "COPIES", "API_CALLS")  # no two events in these can be alike
GPU_ACTIVITY = "torch.profiler.profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])"
REMEDIES = {
    "KERNELS": ("Which kernels ran on the GPU?", GPU_ACTIVITY),
    "COPIES": ("Which copies ran between CPU and GPU?", GPU_ACTIVITY),
    "API_CALLS": ("Which CUDA calls did the CPU make (the cause of idle time)?", GPU_ACTIVITY),
    "OPS": ("Which operators did PyTorch run?", GPU_ACTIVITY),
    "RANGES": (
        "Which steps and phases does the program have?",
        "prof.step() after every step, or record_function",
    ),
    "PYTHON_CALLS": (
        "Which Python functions launched the work?",
        "torch.profiler.profile(with_stack=True)",
    ),
    "SAMPLES": (
        "How much memory did PyTorch's allocators use?",
        "torch.profiler.profile(profile_memory=True)",
    ),
    "DEVICES": (
        "Which GPUs were used, and what are their peaks?",
        "a PyTorch that writes deviceProperties into its traces",
    ),
}
HEAD = 1 << 16
LONGEST_TOOL = 80  # characters of what recorded a trace
KEY = re.compile(rb'"([^"\\]*)"\s*:')
HEADER = {
    "deviceProperties",
    "computeProperties",
    "distributedInfo",
    "baseTimeNanoseconds",
    "traceName",
}
MARK = b"\xef\xbb\xbf"
BEGINS = (b"{", b" ", b"\t", b"\r", b"\n", MARK[:2], GZIP)
VERSION = 4
ONE_PASS = True  # one pass fills all tables, so the cache stores them all at once
KIND = "framework"
# Ns since 1970 (the year 2001); less is not a wall clock but the machine's uptime or a test's
WALL_CLOCK = 10**18


def read(path: Path) -> Profile:
    """Read a trace in one pass; PYTHON_CALLS is made when asked for; ``missing`` names options."""
    reading = Reading(path)
    zero = reading.first
    started = reading.header.base + zero
    t0 = started if started >= WALL_CLOCK else None
    python = reading.spans["PYTHON_CALLS"]
    frames = {name: frame for name, frame in _frames(reading).items() if len(frame)}
    loaders: dict[str, Loader] = {name: partial(frames.__getitem__, name) for name in frames}
    if len(python):
        loaders["PYTHON_CALLS"] = partial(tables.python_calls, python, zero)
    return Profile(
        reader="torch_trace",
        path=path,
        capture=capture_table(
            path,
            printable(reading.header.tool, LONGEST_TOOL),
            reading.header.version,
            t0,
            reading.last - zero,
        ),
        loaders=loaders,
        missing=tuple(
            Missing(table, *remedy) for table, remedy in REMEDIES.items() if table not in loaders
        ),
        notes=notes(reading, frames),
        rank=reading.header.rank,
        world_size=reading.header.world_size,
        is_simulated="SIMULATED" in reading.source.header,
    )


def _frames(reading: Reading) -> dict[str, pd.DataFrame]:
    """Return every table but CAPTURE and PYTHON_CALLS, some without rows."""
    spans = {
        table: some
        for table, some in reading.spans.items()
        if len(some) and table != "PYTHON_CALLS"
    }
    columns = {table: recorded.joined(reading.first) for table, recorded in spans.items()}
    frames = {"DEVICES": tables.devices(reading.header)}
    of_threads = {
        "API_CALLS": tables.api_calls,
        "OPS": tables.ops,
        "RANGES": tables.ranges,
        "OVERHEAD": tables.overhead,
    }
    for table, make in of_threads.items():
        if table in spans:
            frames[table] = make(spans[table], columns.pop(table))
    # The process that launched the GPU's work, which GPU events do not name; -1 if there are
    # several.
    calling = next((name for name in ("API_CALLS", "OPS", "RANGES") if name in frames), None)
    processes = frames[calling]["process"].unique().tolist() if calling else []
    process = int(processes[0]) if len(processes) == 1 else -1
    calls = frames.get("API_CALLS", perfkit_tables.API_CALLS.empty())
    of_gpus: dict[str, Callable[[Spans, Columns], pd.DataFrame]] = {
        "KERNELS": partial(tables.kernels, process=process, api_calls=calls),
        "COPIES": partial(tables.copies, process=process),
        "SAMPLES": tables.samples,
        "COLLECTIVES": tables.collectives,
    }
    made = {
        table: make(spans[table], columns.pop(table))
        for table, make in of_gpus.items()
        if table in spans
    }
    return frames | made


def notes(reading: Reading, frames: Mapping[str, pd.DataFrame]) -> tuple[str, ...]:
    """Return what a reader of the figures should know about this trace."""
    amd = reading.header.amd
    old_memory = "SAMPLES" in reading.spans and "SAMPLES" not in frames
    totals = (
        ["memory events carry no totals, as in traces of 2021, so there are no SAMPLES"]
        if old_memory
        else []
    )
    return (
        *_of_the_file(reading),
        *totals,
        *_of_the_tables(frames, amd),
        *_of_the_launches(frames),
    )


def _of_the_file(reading: Reading) -> list[str]:
    lines = []
    simulated = reading.source.header.get("SIMULATED")
    if isinstance(simulated, str):
        lines.append(f"simulated, not measured: {printable(simulated, 200)}")
    if not reading.source.finished or reading.source.text.cut:
        lines.append(
            "the file ends before its trace does (a killed job, or a copy cut short): it is read "
            "up to its last "
            f"whole event, and {reading.source.dropped} bytes of what follows are dropped"
        )
    if backwards := sum(spans.backwards for spans in reading.spans.values()):
        lines.append(f"events that end before they start are left out ({backwards})")
    if reading.header.distributed.rank is not None and reading.header.rank is None:
        lines.append(
            f"the trace states rank {reading.header.distributed.rank}, which is none: left out"
        )
    if reading.pairs.lost:
        lines.append(
            "begins of events without an end, or ends without a begin, are left out "
            f"({reading.pairs.lost})"
        )
    if reading.repeated:
        lines.append(
            f"events that are written again, alike in all, are left out ({reading.repeated})"
        )
    if reading.misdated:
        lines.append(
            "events more than ten years before or after most others, or as long, are left out "
            f"({reading.misdated})"
        )
    if reading.left_out:
        listed = ", ".join(
            f"{n} {category or 'without category'}"
            for category, n in reading.left_out.most_common(5)
        )
        lines.append(f"events of categories that no table holds are left out ({listed})")
    return lines


def _of_the_tables(frames: Mapping[str, pd.DataFrame], amd: bool) -> list[str]:
    """Name the options that would have recorded more about operators and steps, and what is odd about GPUs' work."""
    lines = []
    if "OPS" in frames and frames["OPS"]["shapes"].isna().all():
        lines.append(
            "no shapes of operators were recorded: torch.profiler.profile(record_shapes=True) "
            "records them"
        )
    if "RANGES" in frames and not (frames["RANGES"]["kind"] == "step").any():
        lines.append(
            "no profiler steps were recorded: prof.step() after every step of the program marks "
            "them"
        )
    used = {
        int(gpu)
        for table in ("KERNELS", "COPIES")
        if table in frames
        for gpu in frames[table]["gpu"].unique()
    }
    if used and amd:
        numbers = ", ".join(map(str, sorted(used)))
        lines.append(
            f"gpu of kernels and copies is AMD's number of the device ({numbers}), "
            "which need not be its number in DEVICES and in SAMPLES"
        )
    if "COPIES" in frames and (unsized := int((frames["COPIES"]["bytes"] == 0).sum())):
        lines.append(
            f"{unsized} of {len(frames['COPIES'])} copies and memsets carry no size, their bytes "
            "are 0"
        )
    if "KERNELS" in frames:
        sized = len(frames.get("COLLECTIVES", ()))
        silent = int((frames["KERNELS"]["family"] == "communication").sum()) - sized
        if silent > 0:
            lines.append(
                f"{silent} of {silent + sized} collective kernels tell no message size (PyTorch "
                "2.4 or newer does) and are not in COLLECTIVES"
            )
    return lines


def _of_the_launches(frames: Mapping[str, pd.DataFrame]) -> list[str]:
    """Say how many operations have no call that launched them, and how many graph launches no kernels."""
    ids = [frames[table]["correlation"] for table in ("KERNELS", "COPIES") if table in frames]
    if not ids:
        return []
    operations = pd.concat(ids)
    if "API_CALLS" not in frames:
        return [
            f"none of the {len(operations)} GPU operations has a call that launched it: no calls "
            "were recorded"
        ]
    calls = frames["API_CALLS"]
    lines = []
    if orphans := int((~operations.isin(calls["correlation"])).sum()):
        share = f"{orphans / len(operations):.1%}"
        lines.append(
            f"{orphans} of {len(operations)} GPU operations ({share}) have no call that launched "
            "them"
        )
    names = [name for name in calls["name"].cat.categories if GRAPH_LAUNCH in name]
    graphs = calls.loc[calls["name"].isin(names), "correlation"]
    if empty := int((~graphs.isin(operations)).sum()):
        lines.append(
            f"{empty} of {len(graphs)} graph launches have no kernels in the trace: "
            "idle time of the GPU cannot be determined"
        )
    if (calls["process"] != calls["process"].iloc[0]).any():
        lines.append(
            "several processes made CUDA calls, and kernels do not say which of them launched one"
        )
    return lines


def header(path: Path) -> Header:
    """Return what a trace says of its process before its events: rank, world_size and gpus; None where it does not."""
    return keys_before_events(path, 1 << 20)


def sniff(path: Path) -> bool:
    """Say whether `path` is a PyTorch profiler's trace: Kineto's header or event categories in the first 64 KB."""
    try:
        text = _head(path) if path.is_file() else b""
    except (OSError, ReadError):
        return False
    keys = set(_keys(text))
    if "schemaVersion" in keys and keys & HEADER:
        return True
    categories = {category[1].decode() for category in re.finditer(rb'"cat"\s*:\s*"(\w+)"', text)}
    return "traceEvents" in keys and not categories.isdisjoint({*FORMS, "ac2g", "fwdbwd"})


def outermost_keys(path: Path) -> list[str]:
    """Return the keys of the object in a JSON file, as far as they begin in the first 64 KB; empty for other files."""
    try:
        return _keys(_head(path))
    except ReadError:
        return []


def _head(path: Path) -> bytes:
    """Return the beginning of the text if it may be an object."""
    with path.open("rb") as file:
        if not file.read(len(GZIP)).startswith(BEGINS):
            return b""
    text = next(iter(Text(path, HEAD)), b"").removeprefix(MARK).lstrip()
    return text if text.startswith(b"{") else b""


def _keys(text: bytes) -> list[str]:
    """Return the keys at the first level that begin in `text`."""
    marks, depth = depths(text)
    keys = list(KEY.finditer(text))
    before = marks.searchsorted([key.start() for key in keys]) - 1
    is_first_level = (before >= 0) & (np.append(depth, 0)[before] == 1)
    first = [keys[i] for i in np.flatnonzero(is_first_level)]
    return [key[1].decode(errors="replace") for key in first]
