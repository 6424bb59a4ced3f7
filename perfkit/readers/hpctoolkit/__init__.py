"""HPCToolkit: the database that `hpcprof` writes.

Record with ``hpcrun -e CPUTIME -e gpu=nvidia,pc -t PROGRAM``, then ``hpcstruct MEASUREMENTS`` and
``hpcprof MEASUREMENTS``. Reads format 4.x (meta.db, profile.db, trace.db; since 2022), tried with
what 2023 to 2026 wrote for CPU and NVIDIA programs, and the older experiment.xml. All entry points,
threads and streams are read.
"""

import re
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from perfkit import tables
from perfkit.errors import ReadError
from perfkit.format import printable
from perfkit.profile import Loader, Profile
from perfkit.readers.hpctoolkit import completeness, contexts, files, old, sums
from perfkit.readers.hpctoolkit.completeness import LONGEST
from perfkit.readers.hpctoolkit.contexts import Entry, Metric, calltree
from perfkit.readers.hpctoolkit.files import MAGIC, META, File, Ints, Profiles
from perfkit.readers.hpctoolkit.sums import Floats
from perfkit.readers.text import capture_table, category, head

VERSION = 4
KIND = "call_paths"
FOLDER = True  # a profile is a folder, also if one of its files is named

# Of samples of the GPU's program counter: GINS:STL_GMEM, GCYCLES:STL:GMEM. ANY is their sum, NONE
# is not stalled.
STALL = re.compile(r"(?:GINS:STL_|GCYCLES:STL:)(?!ANY$|NONE$)(\w+)", re.IGNORECASE)
NUMBERS = 2**16  # of metrics in profile.db
WORDS = {"GPUDEVICE": "GPU", "GPUCONTEXT": "context", "GPUSTREAM": "stream"}
SIMULATED = "SIMULATED "  # what the description of a made database begins with
WHOLE = 0  # the context above all entry points


def sniff(path: Path) -> bool:
    """Say whether `path` is a database, its meta.db or its experiment.xml, by the first bytes of its files."""
    return _is_current(path) or old.sniff(path)


def _is_current(path: Path) -> bool:
    is_folder = any(head(path / kind.name, len(MAGIC)) == MAGIC for kind in files.KINDS)
    return is_folder or head(path, len(MAGIC + META.format)) == MAGIC + META.format


def read(path: Path) -> Profile:
    """Open a database; its tables are read when asked for, and ``missing`` names the option that records others."""
    if not _is_current(path) and old.sniff(path):
        return old.read(path)
    database = Database(path if path.is_dir() else path.parent)
    loaders = database.loaders()
    missing_tables = completeness.missing(database.totals, loaders)
    return Profile(
        "hpctoolkit",
        path,
        database.capture(path),
        loaders,
        missing_tables,
        database.notes(),
        is_simulated=database.is_simulated,
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
            # The values of profile.db in another order: only checked to be whole
            File(folder, files.CCT)
        self._metrics = contexts.metrics(self._meta)
        self._kinds = contexts.identities(self._meta)
        self._entries = contexts.entries(self._meta)
        self._made_up = simulated(self._meta)
        self._traces: files.Traces | None = None
        if (folder / files.TRACE.name).exists():
            traces = files.Traces(File(folder, files.TRACE), len(self._profiles))
            self._traces = traces if traces.exist else None

    @property
    def is_simulated(self) -> bool:
        """Whether the database says that no program was measured."""
        return bool(self._made_up)

    @cached_property
    def calltree(self) -> pd.DataFrame:
        """CALLTREE; nothing else needs meta.db after it."""
        made = calltree(self._meta, self._entries)
        self._meta.forget()
        return made

    @cached_property
    def call_metrics(self) -> pd.DataFrame:
        """CALL_METRICS."""
        stored = named(self._profiles.all(), [m.summary for m in self._metrics])
        return sums.call_metrics(*stored, self._metrics, self.calltree)

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
        return (
            *self._made_up,
            *completeness.lost(self.totals),
            *completeness.unsampled(self.totals),
            *without,
        )


def simulated(meta: File) -> list[str]:
    """Say that no program was measured, if the database says so of itself."""
    _, at = meta.fields(meta.sections[contexts.GENERAL][0], "QQ", "the description")
    text = meta.text(at)
    told = printable(text.removeprefix(SIMULATED), LONGEST)
    return [f"simulated, not measured: {told}"] if text.startswith(SIMULATED) else []


def named(values: files.Values, numbers: Sequence[int]) -> tuple[Ints, NDArray[np.int16], Floats]:
    """Return context, position of the metric in `numbers` and value of the values that are of these metrics."""
    position = np.full(NUMBERS, -1, np.int16)
    position[list(numbers)] = np.arange(len(numbers))
    metric = position[values.metric]
    kept = np.flatnonzero(metric >= 0)
    return values.context[kept], metric[kept], values.value[kept]


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
        **sums.labels(metric, metrics),
        "inclusive": value * np.array([m.factor for m in metrics])[metric],
    }
    return tables.THREAD_METRICS.make(pd.DataFrame(frame))
