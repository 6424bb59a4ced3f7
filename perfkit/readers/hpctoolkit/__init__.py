"""HPCToolkit: the database that `hpcprof` writes.

Record with ``hpcrun -e CPUTIME -e gpu=nvidia,pc -t PROGRAM``, then ``hpcstruct MEASUREMENTS`` and ``hpcprof
MEASUREMENTS``. Reads format 4.x (meta.db, profile.db, trace.db; since 2022), tried with what 2023 to 2026 wrote for
CPU and NVIDIA programs, and the older experiment.xml. All entry points, threads and streams are read.
"""

import re
from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit import tables
from perfkit.errors import ReadError
from perfkit.format import percent, printable
from perfkit.profile import Loader, Missing, Profile
from perfkit.readers.hpctoolkit import contexts, files
from perfkit.readers.hpctoolkit.contexts import Entry, Metric, calltree
from perfkit.readers.hpctoolkit.files import MAGIC, META, File, Ints, Profiles
from perfkit.readers.text import capture_table, category, head

VERSION = 4
KIND = "call_paths"
FOLDER = True  # a profile is a folder, also if one of its files is named

Floats = NDArray[np.float64]
# Of samples of the GPU's program counter: GINS:STL_GMEM, GCYCLES:STL:GMEM. ANY is their sum, NONE is not stalled.
STALL = re.compile(r"(?:GINS:STL_|GCYCLES:STL:)(?!ANY$|NONE$)(\w+)", re.IGNORECASE)
ROUNDING = 1e-12  # what is left of a sum of doubles that is 0, relative to its parts
NUMBERS = 2**16  # of metrics in profile.db
WORDS = {"GPUDEVICE": "GPU", "GPUCONTEXT": "context", "GPUSTREAM": "stream"}
CONSERVED = 1e-9  # how far the entry points may be from the whole, relative to it: rounding of sums
PRINTED = 1e-4  # of a total: experiment.xml has six digits of it
SHOWN = 3  # of the metrics that do not add up
LONGEST = 200  # characters of a text from the database
GPU = "hpcrun -e gpu=nvidia,pc"
NEEDED = {  # what a metric of these names answers, and what records one
    ("CPUTIME", "REALTIME", "CYCLES", "PERF::TASK-CLOCK", "PERF::CPU-CLOCK"): Missing(
        "CALL_METRICS.CPUTIME", "How much CPU time did each call path take?", "hpcrun -e CPUTIME"
    ),
    ("GPUOP", "GKER", "GXCOPY", "GSYNC", "GMEM", "GMSET"): Missing(
        "CALL_METRICS.GPUOP", "Which GPU operations did each call path start?", GPU
    ),
}
TABLES = (
    Missing("STALLS", "Why did the warps wait (stall reasons)?", GPU),
    Missing("TRACE", "When did each thread and stream work (traces)?", "hpcrun -t"),
)
SIMULATED = "SIMULATED "  # what the description of a made database begins with
TAKEN, EXPECTED, DROPPED = "GSAMP:TOT", "GSAMP:EXP", "GSAMP:DRP"
WHOLE = 0  # the context above all entry points


def sniff(path: Path) -> bool:
    """Say whether `path` is a database, its meta.db or its experiment.xml, by the first bytes of its files."""
    from perfkit.readers.hpctoolkit import old

    return _is_current(path) or old.sniff(path)


def _is_current(path: Path) -> bool:
    is_folder = any(head(path / kind.name, len(MAGIC)) == MAGIC for kind in files.KINDS)
    return is_folder or head(path, len(MAGIC + META.format)) == MAGIC + META.format


def read(path: Path) -> Profile:
    """Open a database; its tables are read when asked for, and ``missing`` names the option that records others."""
    from perfkit.readers.hpctoolkit import old

    if not _is_current(path) and old.sniff(path):
        return old.read(path)
    database = Database(path if path.is_dir() else path.parent)
    loaders = database.loaders()
    missing_tables = missing(database.totals, loaders)
    return Profile(
        "hpctoolkit", path, database.capture(path), loaders, missing_tables, database.notes()
    )


class Database:
    """An open database; its tables are made when first asked for, and no part of a file is read twice."""

    def __init__(self, folder: Path) -> None:
        for kind in (META, files.PROFILE):
            if not (folder / kind.name).exists():
                raise ReadError(
                    f"{folder / kind.name}: the database lacks this file. {files.AGAIN}"
                )
        self._meta = File(folder, META)
        self._profiles = Profiles(File(folder, files.PROFILE))
        self._has_cct = (folder / files.CCT.name).exists()
        if self._has_cct:
            File(
                folder, files.CCT
            )  # the values of profile.db in another order: only checked to be whole
        self._metrics = contexts.metrics(self._meta)
        self._kinds = contexts.identities(self._meta)
        self._entries = contexts.entries(self._meta)
        self._made_up = simulated(self._meta)
        self._traces: files.Traces | None = None
        if (folder / files.TRACE.name).exists():
            traces = files.Traces(File(folder, files.TRACE), len(self._profiles))
            self._traces = traces if traces.exist else None

    @cached_property
    def calltree(self) -> pd.DataFrame:
        """CALLTREE; nothing else needs meta.db after it."""
        made = calltree(self._meta, self._entries)
        self._meta.forget()
        return made

    @cached_property
    def call_metrics(self) -> pd.DataFrame:
        """CALL_METRICS."""
        return call_metrics(self._profiles, self._metrics, self.calltree)

    def capture(self, path: Path) -> pd.DataFrame:
        """Return CAPTURE: its clock is that of the traces, if there are any."""
        traces = self._traces
        start, lasted = (traces.start, traces.end - traces.start) if traces else (None, 0)
        return capture_table(path, "HPCToolkit", f"database 4.{self._meta.minor}", start, lasted)

    @cached_property
    def totals(self) -> pd.DataFrame:
        """Every metric's `unit`, its value above all entry points (`whole`) and added over them (`entries`)."""
        nodes = np.array([WHOLE, *(e.node for e in self._entries)], np.int64)
        context, metric, value = named(self._profiles.of(nodes), [m.summary for m in self._metrics])
        value = value * np.array([m.factor for m in self._metrics])[metric]
        above, count = context == WHOLE, len(self._metrics)
        columns = {
            "unit": [m.unit for m in self._metrics],
            "whole": np.bincount(metric[above], value[above], count),
            "entries": np.bincount(metric[~above], value[~above], count),
        }
        return pd.DataFrame(columns, index=[m.name for m in self._metrics])

    def loaders(self) -> dict[str, Loader]:
        """Return what makes each of the tables that have rows."""
        profiles, listed = self._profiles, self._metrics
        measured = self.totals.index[self.totals["entries"] != 0]
        made: dict[str, Loader] = {"CALLTREE": lambda: self.calltree} if self._entries else {}
        if len(measured):
            made["CALL_METRICS"] = lambda: self.call_metrics
        if any(reason(name) for name in measured):
            made["STALLS"] = lambda: stalls(self.call_metrics)
        if profiles.threads:
            made["THREADS"] = lambda: threads(profiles, self._kinds)
            if len(measured):
                made["THREAD_METRICS"] = lambda: thread_metrics(profiles, listed, self._entries)
        return {**made, "TRACE": self._traces.table} if self._traces else made

    def notes(self) -> tuple[str, ...]:
        """Return what a reader of the figures should know about this database."""
        without = (
            [] if self._has_cct else ["cct.db is missing: perfkit does not need it, hpcviewer does"]
        )
        return (*self._made_up, *lost(self.totals), *unsampled(self.totals), *without)


def missing(totals: pd.DataFrame, recorded: Collection[str]) -> tuple[Missing, ...]:
    """Return what was not recorded, with the option of ``hpcrun`` that records it."""
    measured = {str(name).upper() for name in totals.index[totals["entries"] != 0]}
    lacking = [lack for metrics, lack in NEEDED.items() if measured.isdisjoint(metrics)]
    return (*lacking, *(table for table in TABLES if table.table not in recorded))


def simulated(meta: File) -> list[str]:
    """Say that no program was measured, if the database says so of itself."""
    _, at = meta.fields(meta.sections[contexts.GENERAL][0], "QQ", "the description")
    text = meta.text(at)
    told = printable(text.removeprefix(SIMULATED), LONGEST)
    return [f"simulated, not measured: {told}"] if text.startswith(SIMULATED) else []


def lost(totals: pd.DataFrame) -> list[str]:
    """Say which metrics do not add up: then the tree does not hold all that was measured."""
    tolerated = CONSERVED * np.maximum(totals["whole"].abs(), totals["entries"].abs())
    apart = totals[(totals["whole"] - totals["entries"]).abs() > tolerated]
    notes = [
        f"{printable(name, LONGEST)}: the entry points have {has:.12g} {unit} together, the whole program "
        f"{whole:.12g}: the call paths do not hold all that was measured"
        for name, unit, whole, has in apart[["unit", "whole", "entries"]].itertuples()
    ]
    return notes[:SHOWN] + (
        [f"{len(notes) - SHOWN} more metrics do not add up"] if len(notes) > SHOWN else []
    )


def incomplete(totals: pd.DataFrame, count: int) -> list[str]:
    """Say that metric files are missing: together they do not have what experiment.xml says of all threads."""
    apart = totals[(totals["stored"] - totals["stated"]).abs() > PRINTED * totals["stated"].abs()]
    return [
        f"{printable(name, LONGEST)}: the {count} metric files have {stored:.6g} {unit} together, experiment.xml says "
        f"{stated:.6g}: these are not the files of all its threads. Copy the database whole"
        for name, unit, stored, stated in apart[["unit", "stored", "stated"]].head(1).itertuples()
    ]


def unsampled(totals: pd.DataFrame) -> list[str]:
    """Say how many samples of the GPU's program counters are lacking."""
    taken, expected, dropped = (
        float(totals["entries"].get(name, 0.0)) for name in (TAKEN, EXPECTED, DROPPED)
    )
    notes = []
    if taken < expected:
        share = (
            f"{percent(taken / expected)} of the expected samples of GPU instructions were taken"
        )
        notes.append(f"{share} ({taken:,.0f} of {expected:,.0f})")
    if dropped > 0:
        notes.append(f"samples of GPU instructions that were dropped: {dropped:,.0f}")
    return notes


def named(values: files.Values, numbers: Sequence[int]) -> tuple[Ints, NDArray[np.int16], Floats]:
    """Return context, position of the metric in `numbers` and value of the values that are of these metrics."""
    position = np.full(NUMBERS, -1, np.int16)
    position[list(numbers)] = np.arange(len(numbers))
    metric = position[values.metric]
    kept = np.flatnonzero(metric >= 0)
    return values.context[kept], metric[kept], values.value[kept]


def call_metrics(profiles: Profiles, metrics: Sequence[Metric], tree: pd.DataFrame) -> pd.DataFrame:
    """Return CALL_METRICS of CALLTREE; what the tree leaves out, such as instructions, the context above has alone."""
    node = tree["node"].to_numpy()
    parent = np.searchsorted(node, tree["parent"].fillna(node[0]).to_numpy(np.int64))
    is_root = tree["parent"].isna().to_numpy(bool)
    context, metric, value = named(profiles.all(), [m.summary for m in metrics])
    place = np.searchsorted(node, context)
    place[place == len(node)] = 0
    by_metric = np.argsort(metric, kind="stable")
    by_metric = by_metric[(node[place] == context)[by_metric]]
    starts = np.searchsorted(metric[by_metric], np.arange(len(metrics) + 1))
    parts = []
    for i, one in enumerate(metrics):
        rows = by_metric[starts[i] : starts[i + 1]]
        if len(rows):
            parts.append((i, *_exclusive(place[rows], value[rows] * one.factor, parent, is_root)))
    metric = np.repeat([i for i, *_ in parts], [len(place) for _, place, *_ in parts]).astype(
        np.int16
    )
    place, inclusive, exclusive = (np.concatenate([p[i] for p in parts]) for i in (1, 2, 3))
    order = np.argsort(place * len(metrics) + metric, kind="stable")
    frame = {
        "rank": np.zeros(len(order), np.int32),
        "node": node[place[order]],
        **labels(metric[order], metrics),
        "inclusive": inclusive[order],
        "exclusive": exclusive[order],
    }
    return tables.CALL_METRICS.make(pd.DataFrame(frame, copy=False))


def _exclusive(
    place: Ints, value: Floats, parent: Ints, is_root: NDArray[np.bool_]
) -> tuple[Ints, Floats, Floats]:
    """Return the contexts that have one metric, and its value with and without what is called from them."""
    inclusive = np.zeros(len(parent))
    inclusive[place] = value
    below = place[~is_root[place]]
    exclusive = inclusive - np.bincount(parent[below], inclusive[below], len(parent))
    exclusive[np.abs(exclusive) <= ROUNDING * np.abs(inclusive)] = 0.0
    there = exclusive != 0
    there[place] = True
    rows = np.flatnonzero(there)
    return rows, inclusive[rows], exclusive[rows]


def labels(metric: NDArray[np.int16], metrics: Sequence[Metric]) -> dict[str, pd.Categorical]:
    """Return the columns metric and unit."""
    return {
        "metric": category(metric, [m.name for m in metrics]),
        "unit": category(metric, [m.unit for m in metrics]),
    }


def stalls(call_metrics: pd.DataFrame) -> pd.DataFrame:
    """Return STALLS: what each context alone has of each reason to wait."""
    of_metric = [reason(name) for name in call_metrics["metric"].cat.categories]
    is_stall = np.array([name is not None for name in of_metric], bool)
    kept = call_metrics[
        is_stall[call_metrics["metric"].cat.codes] & (call_metrics["exclusive"] != 0)
    ]
    frame = {
        "rank": kept["rank"],
        "node": kept["node"],
        "reason": category(kept["metric"].cat.codes.to_numpy(), [name or "" for name in of_metric]),
        "value": kept["exclusive"],
    }
    return tables.STALLS.make(pd.DataFrame(frame))


def reason(metric: str) -> str | None:
    """Return the reason to wait that a metric counts, such as gmem of GINS:STL_GMEM; None if it is another metric."""
    stall = STALL.fullmatch(metric)
    return stall[1].lower() if stall else None


def threads(profiles: Profiles, kinds: Sequence[str]) -> pd.DataFrame:
    """Return THREADS: the CPU threads and GPU streams."""
    identities = [
        [
            (kinds[kind] if kind < len(kinds) else f"identity {kind}", number)
            for kind, number in profiles.identity(at)
        ]
        for at in profiles.threads
    ]
    nodes = {number for identity in identities for kind, number in identity if kind == "NODE"}
    on_gpu = [any(kind in WORDS for kind, _ in identity) for identity in identities]
    frame = {
        "rank": np.zeros(len(identities), np.int32),
        "thread": np.array(profiles.threads, np.int64),
        "kind": pd.Categorical(np.where(on_gpu, "gpu", "cpu")),
        "name": pd.Categorical([_name(identity, len(nodes) > 1) for identity in identities]),
        "mpi_rank": pd.array(
            [dict(identity).get("RANK") for identity in identities], dtype="Int64"
        ),
    }
    return tables.THREADS.make(pd.DataFrame(frame))


def _name(identity: Sequence[tuple[str, int]], several_nodes: bool) -> str:
    """Return what a thread is called; the node only if there are several."""
    parts = [(kind, number) for kind, number in identity if several_nodes or kind != "NODE"]
    words = [f"{WORDS.get(kind, kind.lower())} {number}" for kind, number in parts]
    first = next((i for i, (kind, _) in enumerate(parts) if kind in WORDS), None)
    if first is not None and parts[first][0] != "GPUDEVICE":
        words[first] = f"GPU {words[first]}"
    return " ".join(words) or "unnamed"


def thread_metrics(
    profiles: Profiles, metrics: Sequence[Metric], entries: Sequence[Entry]
) -> pd.DataFrame:
    """Return THREAD_METRICS: the values of every thread at the entry points."""
    nodes, order = np.unique([e.node for e in entries], return_index=True)
    numbers = [m.thread for m in metrics]
    parts = [
        (position, *named(profiles.of(nodes, position), numbers)) for position in profiles.threads
    ]
    context, metric, value = (np.concatenate([part[i] for part in parts]) for i in (1, 2, 3))
    frame = {
        "rank": np.zeros(len(context), np.int32),
        "thread": np.repeat([part[0] for part in parts], [len(part[1]) for part in parts]).astype(
            np.int64
        ),
        "entry": category(np.searchsorted(nodes, context), [entries[i].name for i in order]),
        **labels(metric, metrics),
        "inclusive": value * np.array([m.factor for m in metrics])[metric],
    }
    return tables.THREAD_METRICS.make(pd.DataFrame(frame))
