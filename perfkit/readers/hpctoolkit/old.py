"""The older form of a database, experiment.xml with a *.metric-db per thread (before 2022), read by Hatchet.

Hatchet reads the tree and the values. From experiment.xml come what it loses: the names and units of metrics (it
calls microseconds and seconds both ``time``), the names of functions (it puts the line of the call before them) and
the files of lines (it takes the file of the function it met last). Of the values only the inclusive ones are used:
`hpcprof` counts what a loop has alone for the function around it too, and Hatchet leaves it there.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from perfkit import tables
from perfkit.profile import Profile
from perfkit.readers.hpctoolkit import by_hatchet, names, remarks
from perfkit.readers.hpctoolkit.experiment import (
    EXPERIMENT,
    FIRST_STREAM,
    HEADER,
    KINDS,
    Experiment,
    Metric,
    Threads,
    described,
    metric_files,
)

LOOKED_AT = 4096  # bytes; the description of the format may stand before the first element
WHOLE = 1  # the context above all entry points
UNKNOWN = ("<unknown file>", "~unknown-file~")
ROUNDING = 1e-12  # of the inclusive value: what differences of sums leave of 0


def sniff(path: Path) -> bool:
    """Say whether `path` is an experiment.xml or a folder that holds one, by its first bytes."""
    try:
        with _experiment(path).open("rb") as file:
            head = file.read(LOOKED_AT)
    except OSError:
        return False
    return head.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"<?xml") and b"HPCToolkitExperiment" in head


def read(path: Path) -> Profile:
    """Open a database; all of it is read.

    Returns
    -------
    Profile
        CALLTREE, CALL_METRICS (sums over ranks and threads, times in s), THREADS and THREAD_METRICS. The contexts are
        those of Hatchet, which takes a call site and the function called there for one.

    Raises
    ------
    ReadError
        If experiment.xml is damaged or declares entities, a metric file is not there or cut, ranks have different
        threads, or the call paths are deeper than Python's recursion limit lets Hatchet follow.
    """
    experiment = described(_experiment(path))
    files = metric_files(experiment)
    rows, values = by_hatchet.rows(experiment, files)
    tree = _calltree(rows, experiment)
    inclusive = values.groupby(rows["nid"]).sum()
    at_roots = values[rows["nid"].isin(tree.loc[tree["parent"].isna(), "node"])]
    made = {
        "CALLTREE": tree,
        "CALL_METRICS": _call_metrics(inclusive, tree, experiment.metrics),
        "THREADS": _threads(list(files)),
        "THREAD_METRICS": _thread_metrics(at_roots, rows, tree, experiment.metrics, list(files)),
    }
    loaders = {name: partial(_same, frame) for name, frame in made.items() if len(frame)}
    totals = _totals(at_roots.sum(), experiment, files)
    return Profile(
        reader="hpctoolkit",
        path=path,
        capture=_capture(path, experiment),
        loaders=loaders,
        missing=remarks.missing(totals, loaders),
        notes=(*remarks.incomplete(totals, len(files)), *remarks.lost(totals)),
    )


def _same(frame: pd.DataFrame) -> pd.DataFrame:
    return frame


def _experiment(path: Path) -> Path:
    return path if path.name == EXPERIMENT else path / EXPERIMENT


def _calltree(rows: pd.DataFrame, experiment: Experiment) -> pd.DataFrame:
    made: dict[Any, dict[str, object]] = {}
    row: Any
    for row in rows.drop_duplicates("nid").itertuples():  # what is above comes first
        above = made[row.node.parents[0]] if row.node.parents else None
        made[row.node] = _context(row, above, experiment)
    return tables.CALLTREE.make(pd.DataFrame(list(made.values()), columns=tables.CALLTREE.column_names))


def _context(row: Any, above: dict[str, Any] | None, experiment: Experiment) -> dict[str, object]:
    file = experiment.file.get(row.nid, UNKNOWN[0])
    place = f"{'loop at ' if row.type == 'L' else ''}{names.place(file, row.line)}"
    name = experiment.function.get(row.nid, place)
    return {
        "rank": 0,
        "node": row.nid,
        "parent": above["node"] if above else pd.NA,
        "depth": above["depth"] + 1 if above else 0,
        "entry": above["entry"] if above else name,
        "kind": KINDS[row.type] if above else "entry",
        "name": name,
        "file": pd.NA if file in UNKNOWN else file,
        "line": row.line or pd.NA,
        "module": row.module or pd.NA,
    }


def _call_metrics(inclusive: pd.DataFrame, tree: pd.DataFrame, metrics: list[Metric]) -> pd.DataFrame:
    parent = tree.set_index("node")["parent"].reindex(inclusive.index)
    below = inclusive.groupby(parent).sum().reindex(inclusive.index, fill_value=0.0)
    exclusive = inclusive - below
    exclusive = exclusive.mask(exclusive.abs() <= ROUNDING * inclusive.abs(), 0.0)
    long = inclusive.rename_axis(index="node", columns="metric").melt(value_name="inclusive", ignore_index=False)
    frame = long.assign(exclusive=exclusive.melt()["value"].to_numpy()).reset_index()
    frame = frame[(frame["inclusive"] != 0) | (frame["exclusive"] != 0)]
    return tables.CALL_METRICS.make(_in_units(frame, metrics).assign(rank=0))


def _in_units(frame: pd.DataFrame, metrics: list[Metric]) -> pd.DataFrame:
    """Return rows with the column unit, and their values in it."""
    factor = frame["metric"].map({m.name: m.factor for m in metrics}).astype("float64")
    values = {column: frame[column] * factor for column in ("inclusive", "exclusive") if column in frame}
    return frame.assign(unit=frame["metric"].map({m.name: m.unit for m in metrics}), **values)


def _threads(identities: list[tuple[int, int]]) -> pd.DataFrame:
    """Return THREADS; without MPI too the files say rank 0."""
    is_parallel = any(rank for rank, _ in identities)
    frame = {
        "rank": 0,
        "thread": range(len(identities)),
        "kind": ["gpu" if thread >= FIRST_STREAM else "cpu" for _, thread in identities],
        "name": [f"{f'rank {rank} ' if is_parallel else ''}{_name(thread)}" for rank, thread in identities],
        "mpi_rank": [rank if is_parallel else pd.NA for rank, _ in identities],
    }
    return tables.THREADS.make(pd.DataFrame(frame))


def _name(thread: int) -> str:
    return f"GPU stream {thread - FIRST_STREAM}" if thread >= FIRST_STREAM else f"thread {thread}"


def _thread_metrics(
    at_roots: pd.DataFrame,
    rows: pd.DataFrame,
    tree: pd.DataFrame,
    metrics: list[Metric],
    identities: list[tuple[int, int]],
) -> pd.DataFrame:
    """Return THREAD_METRICS."""
    of = rows.loc[at_roots.index]
    number = {identity: i for i, identity in enumerate(identities)}
    thread = [number[identity] for identity in zip(of["rank"], of["thread"], strict=True)]
    entry = of["nid"].map(tree.set_index("node")["entry"].astype(object))
    sums = at_roots.groupby([pd.Series(thread, of.index, name="thread"), entry.rename("entry")]).sum()
    frame = sums.rename_axis("metric", axis=1).melt(value_name="inclusive", ignore_index=False).reset_index()
    return tables.THREAD_METRICS.make(_in_units(frame[frame["inclusive"] != 0], metrics).assign(rank=0))


def _totals(entries: pd.Series, experiment: Experiment, files: Threads) -> pd.DataFrame:
    """Return every metric's `unit`, its value above all entry points (`whole`) and added over them (`entries`).

    `stored` is what the metric files have together, `stated` what experiment.xml says of them, NaN if it does not.
    """
    first = [np.fromfile(file, ">f8", experiment.columns, offset=HEADER.size) for file in files.values()]
    metrics = experiment.metrics
    stored = np.sum(first, axis=0)[[m.column for m in metrics]]
    columns = {
        "whole": stored if WHOLE not in experiment.numbers else entries.to_numpy(),
        "entries": entries.to_numpy(),
        "stored": stored,
        "stated": np.array([np.nan if m.total is None else m.total for m in metrics]),
    }
    factor = np.array([m.factor for m in metrics])
    values = {name: column * factor for name, column in columns.items()}
    return pd.DataFrame({"unit": [m.unit for m in metrics], **values}, index=[m.name for m in metrics])


def _capture(path: Path, experiment: Experiment) -> pd.DataFrame:
    frame = {
        "rank": [0],
        "tool": ["HPCToolkit"],
        "tool_version": [f"{EXPERIMENT} {experiment.version}".strip()],
        "path": [str(path)],
        "t0_unix_ns": pd.array([pd.NA], dtype="Int64"),
        "dur_ns": [0],
    }
    return tables.CAPTURE.make(pd.DataFrame(frame))
