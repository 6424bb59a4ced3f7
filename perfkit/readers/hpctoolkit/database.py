"""A database as a whole: its files and its tables."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import numpy as np
import pandas as pd

from perfkit import tables
from perfkit.errors import ReadError
from perfkit.profile import Missing
from perfkit.readers.hpctoolkit import metrics, names, remarks, tree
from perfkit.readers.hpctoolkit.calltree import calltree
from perfkit.readers.hpctoolkit.layout import AGAIN, CCT, META, PROFILE, TRACE, File
from perfkit.readers.hpctoolkit.trace import Traces
from perfkit.readers.hpctoolkit.values import Profiles

WHOLE = 0  # the context above all entry points


class Database:
    """An open database; its tables are made when first asked for, and no part of a file is read twice."""

    def __init__(self, folder: Path) -> None:
        _check(folder)
        self._meta = File(folder, META)
        self._profiles = Profiles(File(folder, PROFILE))
        self._has_cct = (folder / CCT.name).exists()
        if self._has_cct:
            File(folder, CCT)  # the values of profile.db in another order: only checked to be whole
        self._metrics = names.metrics(self._meta)
        self._kinds = names.identities(self._meta)
        self._entries = tree.entries(self._meta)
        self._made_up = remarks.simulated(names.description(self._meta))
        traces = Traces(File(folder, TRACE), len(self._profiles)) if (folder / TRACE.name).exists() else None
        self._traces = traces if traces and traces.exist else None

    @cached_property
    def calltree(self) -> pd.DataFrame:
        """CALLTREE; nothing else needs meta.db after it."""
        made = calltree(self._meta, self._entries)
        self._meta.forget()
        return made

    @cached_property
    def call_metrics(self) -> pd.DataFrame:
        """CALL_METRICS."""
        return metrics.call_metrics(self._profiles, self._metrics, self.calltree)

    def stalls(self) -> pd.DataFrame:
        """Return STALLS."""
        return metrics.stalls(self.call_metrics)

    def threads(self) -> pd.DataFrame:
        """Return THREADS."""
        return metrics.threads(self._profiles, self._kinds)

    def thread_metrics(self) -> pd.DataFrame:
        """Return THREAD_METRICS."""
        return metrics.thread_metrics(self._profiles, self._metrics, self._entries)

    def trace(self) -> pd.DataFrame:
        """Return TRACE."""
        return self._traces.table() if self._traces else tables.TRACE.empty()

    def capture(self, path: Path) -> pd.DataFrame:
        """Return CAPTURE: its clock is that of the traces, if there are any."""
        traces = self._traces
        frame = {
            "rank": [0],
            "tool": ["HPCToolkit"],
            "tool_version": [f"database 4.{self._meta.minor}"],
            "path": [str(path)],
            "t0_unix_ns": pd.array([traces.start if traces else None], dtype="Int64"),
            "dur_ns": [traces.end - traces.start if traces else 0],
        }
        return tables.CAPTURE.make(pd.DataFrame(frame))

    @cached_property
    def _totals(self) -> pd.DataFrame:
        """Every metric's `unit`, its value above all entry points (`whole`) and added over them (`entries`)."""
        nodes = np.array([WHOLE, *(e.node for e in self._entries)], np.int64)
        context, metric, value = metrics.named(self._profiles.of(nodes), [m.summary for m in self._metrics])
        value = value * np.array([m.factor for m in self._metrics])[metric]
        above, count = context == WHOLE, len(self._metrics)
        columns = {
            "unit": [m.unit for m in self._metrics],
            "whole": np.bincount(metric[above], value[above], count),
            "entries": np.bincount(metric[~above], value[~above], count),
        }
        return pd.DataFrame(columns, index=[m.name for m in self._metrics])

    def recorded(self) -> set[str]:
        """Return the names of the tables that have rows."""
        measured = self._totals.index[self._totals["entries"] != 0]
        has_threads = bool(self._profiles.threads)
        there = {
            "CALLTREE": bool(self._entries),
            "CALL_METRICS": len(measured) > 0,
            "STALLS": any(metrics.reason(name) for name in measured),
            "THREADS": has_threads,
            "THREAD_METRICS": has_threads and len(measured) > 0,
            "TRACE": self._traces is not None,
        }
        return {name for name, has_rows in there.items() if has_rows}

    def missing(self) -> tuple[Missing, ...]:
        """Return what was not recorded, with the option of ``hpcrun`` that records it."""
        return remarks.missing(self._totals, self.recorded())

    def notes(self) -> tuple[str, ...]:
        """Return what a reader of the figures should know about this database."""
        without = [] if self._has_cct else ["cct.db is missing: perfkit does not need it, hpcviewer does"]
        return (*self._made_up, *remarks.lost(self._totals), *remarks.unsampled(self._totals), *without)


def _check(folder: Path) -> None:
    """Raise the error that says which file a database cannot be read without."""
    for kind in (META, PROFILE):
        if not (folder / kind.name).exists():
            raise ReadError(f"{folder / kind.name}: the database lacks this file. {AGAIN}")
