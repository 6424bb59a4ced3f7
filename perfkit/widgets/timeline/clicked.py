"""What is known of the operation that was clicked: the launch itself, and its kernel's dossier.

Functions
---------
launched   one launch of a kernel
copied     one copy
chosen     the rows of the ranks and GPUs of a choice

Classes
-------
Dossiers   the kernel, over all its launches in the choice
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import pandas as pd

from perfkit.analysis import dossier as dossiers
from perfkit.analysis.lanes import Lanes, Launching
from perfkit.analysis.window import Window, cut
from perfkit.names.parsing import base
from perfkit.run import Run
from perfkit.selection import Selection, select

LAUNCH = ["name", "gpu", "stream", "starts_at", "dur_ns", "grid_blocks", "block_threads", "registers", "shared_bytes"]
LAUNCH += ["in_graph", "correlation"]
COPY = ["direction", "gpu", "stream", "starts_at", "dur_ns", "bytes", "bytes_per_s", "src_memory", "dst_memory"]
COPY += ["correlation"]
CALL = ["launched_by", "call_starts_at", "call_dur_ns", "queue_ns", "delay_ns"]


def launched(run: Run, row: int, launching: Launching) -> pd.DataFrame:
    """Return a row of KERNELS with the call that launched it, and how long it waited (`perfkit.analysis.launches`)."""
    return _with_call(run.kernels.iloc[[row]], launching)[[*LAUNCH, *CALL]]


def copied(run: Run, row: int, launching: Launching) -> pd.DataFrame:
    """Return a row of COPIES with its bandwidth and the call that launched it."""
    copy = _with_call(run.copies.iloc[[row]], launching)
    dur_s = copy["dur_ns"].where(copy["dur_ns"] > 0) / 1e9
    return copy.assign(bytes_per_s=copy["bytes"] / dur_s)[[*COPY, *CALL]]


def _with_call(operation: pd.DataFrame, launching: Launching) -> pd.DataFrame:
    place = (operation[column].to_numpy() for column in ("rank", "process", "correlation"))
    call = pd.DataFrame(launching.of(*place), operation.index)
    start, called = operation["start_ns"], call["call_start_ns"]
    queue = start - called - call["call_dur_ns"]
    return operation.assign(
        starts_at=start.map(_moment),
        launched_by=call["call"],
        call_starts_at=called.map(_moment, na_action="ignore"),
        call_dur_ns=call["call_dur_ns"],
        queue_ns=queue.where(queue >= 0),
        delay_ns=start - called,
    )


def _moment(ns: int) -> str:
    """A point of time to the nanosecond, as it is found again in the tables."""
    return f"{ns / 1e9:.9f} s"


class Dossiers:
    """The dossiers of a run's kernels, one at a time.

    The tables are cut down to what speaks of the kernel first: of millions of launches the dossiers of all kernels
    take seconds.
    """

    def __init__(self, run: Run, lanes: Lanes, launching: Launching) -> None:
        self._run, self._lanes, self._launching = run, lanes, launching

    @cached_property
    def _traced(self) -> tuple[Run, Launching]:
        """What the framework's profiler recorded, and its calls."""
        traced = select(self._run).framework.run
        return traced, self._launching if traced is self._run else Launching(traced.api_calls)

    def of(self, name: str, seen: Selection, window: Window) -> pd.DataFrame:
        """Return the dossier of a kernel over its launches in the window, its share that of all kernels' time there."""
        traced, launching = self._traced
        launches = chosen(self._run.launches, seen)
        full_names = _alike(self._run.kernels, name) if len(launches) else []
        kernels = cut(chosen(_named(self._run.kernels, name, full_names), seen), window)
        own = chosen(_named(traced.kernels, name), seen)
        calls = np.unique(launching.rows(*(own[column].to_numpy() for column in ("rank", "process", "correlation"))))
        tables = self._run.stalls, traced.ops, self._run.calltree, self._run.call_metrics
        table = dossiers.kernels(
            *(kernels, launches, *tables),
            devices=self._run.devices.merge(chosen(self._lanes.devices, seen), on=["rank", "gpu"]),
            traced=own,
            api_calls=traced.api_calls.take(calls[calls >= 0]),
            python_calls=traced.python_calls,
        )
        table = table[table["name"] == name]
        every = self._lanes.totals(window=window, ranks=[*seen.ranks], gpus=[*seen.gpus])["total_ns"].sum()
        return table.assign(share_frac=table["total_ns"] / (every or np.nan)).reset_index(drop=True)


def chosen(frame: pd.DataFrame, seen: Selection) -> pd.DataFrame:
    """Return the rows of the chosen ranks and GPUs."""
    for column, chosen in (("rank", seen.ranks), ("gpu", seen.gpus)):
        frame = frame[frame[column].isin(chosen)] if len(chosen) else frame
    return frame


def _alike(kernels: pd.DataFrame, name: str) -> list[str]:
    """Return the full names with a function name of the kernel's: what else its counters could belong to."""
    own = {base(full) for full in _named(kernels, name)["full_name"].astype(str).unique()}
    return [str(full) for full in kernels["full_name"].cat.categories if base(str(full)) in own]


def _named(kernels: pd.DataFrame, name: str, full_names: Sequence[str] = ()) -> pd.DataFrame:
    """Return the rows of a name or of full names; each distinct text is compared once."""
    kept = np.zeros(len(kernels), bool)
    for column, texts in (("name", [name]), ("full_name", full_names)):
        values = kernels[column].cat
        wanted = np.append(values.categories.isin(texts), False)
        if wanted.any():
            kept |= wanted[values.codes.to_numpy()]
    return kernels.take(np.flatnonzero(kept))
