"""The rows of an older database as Hatchet reads them, without what its reader does to the process."""

from __future__ import annotations

import glob
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pandas as pd

from perfkit.errors import ReadError
from perfkit.readers.hpctoolkit.experiment import FIRST_STREAM, Experiment, Threads, damaged

UNREADABLE = (ArithmeticError, AttributeError, LookupError, NameError, OSError, StopIteration, TypeError, ValueError)
_ALONE = threading.Lock()  # Hatchet's reader keeps what it reads in global variables


def rows(experiment: Experiment, files: Threads) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return a row per context and thread, and beside them the inclusive metrics by name.

    Returns
    -------
    tuple of pandas.DataFrame
        ``node`` (of Hatchet), ``rank``, ``thread``, ``nid`` (the number in experiment.xml), ``type``, ``line`` and
        ``module``, contexts after the one above them; and the metrics, as stored.

    Raises
    ------
    ReadError
        If Hatchet cannot read the database, or not all threads of it.
    """
    _check_even(experiment.path.parent, files)
    frame = _frame(experiment.path)
    metrics = {m.name: frame.iloc[:, m.column].to_numpy() for m in experiment.metrics}
    places = frame.index.to_frame(index=False)
    places = places if "thread" in places else places.assign(thread=0)
    if set(zip(places["rank"], places["thread"], strict=True)) != set(files):
        raise _uneven(experiment.path.parent, len(files))
    told = frame[["nid", "type", "line", "module"]].reset_index(drop=True)
    return places.join(told), pd.DataFrame(metrics, index=places.index)


def _check_even(folder: Path, files: Threads) -> None:
    """Check that every rank has the same threads: elsewhere Hatchet writes the values of one over those of another."""
    ranks, threads = ({identity[i] for identity in files} for i in (0, 1))
    cpu = sum(thread < FIRST_STREAM for thread in threads)
    expected = [*range(cpu), *range(FIRST_STREAM, FIRST_STREAM + len(threads) - cpu)]
    if set(product(range(len(ranks)), expected)) != set(files):
        raise _uneven(folder, len(files))


def _uneven(folder: Path, count: int) -> ReadError:
    return ReadError(
        f"{folder}: its {count} *.metric-db files are not of the same threads, numbered from 0 on, of every rank: "
        "Hatchet cannot read them. Copy the database whole, with all metric files."
    )


def _frame(xml: Path) -> pd.DataFrame:
    import hatchet

    folder = str(xml.parent)
    if glob.escape(folder) != folder:
        raise ReadError(f"{folder}: Hatchet takes *, ? and [ in a path for a pattern. Rename the folder.")
    try:
        with _in_turn():
            frame: pd.DataFrame = hatchet.GraphFrame.from_hpctoolkit(folder).dataframe
    except RecursionError as e:
        raise ReadError(
            f"{xml}: the call paths are deeper than Hatchet can follow at Python's recursion limit of "
            f"{sys.getrecursionlimit()}. Raise it with sys.setrecursionlimit."
        ) from e
    except UNREADABLE as e:
        raise damaged(xml, f"Hatchet cannot read this database ({e!r})") from e
    return frame


@contextmanager
def _in_turn() -> Iterator[None]:
    """Let Hatchet read the metric files here: its pool of processes forks one that may have threads."""
    from hatchet.readers import hpctoolkit_reader

    with _ALONE, pd.option_context("mode.copy_on_write", False):  # it writes into the values of a frame
        theirs = hpctoolkit_reader.mp
        hpctoolkit_reader.mp = SimpleNamespace(Pool=_Pool, sharedctypes=theirs.sharedctypes)
        try:
            yield
        finally:
            hpctoolkit_reader.mp = theirs


class _Pool:
    """A pool of processes as Hatchet uses it, without processes."""

    def __init__(self, initializer: Callable[..., None], initargs: tuple[Any, ...]) -> None:
        initializer(*initargs)

    def map(self, function: Callable[[Any], None], arguments: Iterable[Any]) -> None:
        for argument in arguments:
            function(argument)

    def close(self) -> None:
        """Nothing is open."""
