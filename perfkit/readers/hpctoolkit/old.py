"""The older form of a database, experiment.xml with a *.metric-db per thread (before 2022), read by Hatchet.

Hatchet reads the tree and the values. From experiment.xml come what it loses: the names and units of metrics (it
calls microseconds and seconds both ``time``), the names of functions (it puts the line of the call before them) and
the files of lines (it takes the file of the function it met last). Of the values only the inclusive ones are used:
`hpcprof` counts what a loop has alone for the function around it too, and Hatchet leaves it there.

Hatchet does not check: it repeats the values of a cut metric file to fill it up, and writes outside its memory where
a context has a number that no metric file has.
"""

import glob
import re
import struct
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree
from xml.parsers import expat

import numpy as np
import pandas as pd

from perfkit import tables
from perfkit.errors import ReadError
from perfkit.profile import Profile
from perfkit.readers import hpctoolkit
from perfkit.readers.hpctoolkit import contexts
from perfkit.readers.hpctoolkit.files import AGAIN
from perfkit.readers.text import capture_table, content, head

EXPERIMENT = "experiment.xml"
METRIC_DB = re.compile(r"-(\d+)-(\d+)-\w+-\d+-\d\.metric-db$")  # PROGRAM-RANK-THREAD-HOST-PROCESS-0
HEADER = struct.Struct(">18s5ssii")  # magic, version, byte order, contexts, metrics
MAGIC = (b"HPCPROF-metricdb__", b"00.10", b"b")
KINDS = {"PF": "function", "Pr": "function", "L": "loop", "S": "line"}
FIRST_STREAM = 500  # threads from here on are GPU streams
Threads = dict[tuple[int, int], Path]  # rank and thread of each metric file


@dataclass(frozen=True)
class Metric:
    """An inclusive metric in the metric files, and its `total` of all threads if experiment.xml states it."""

    column: int
    name: str
    unit: str
    factor: float
    total: float | None = None


@dataclass(frozen=True)
class Experiment:
    """What experiment.xml says beside the tree: metrics, and name and file by the number of the context."""

    path: Path
    version: str
    metrics: list[Metric]
    columns: int
    numbers: frozenset[int]
    function: dict[int, str]
    file: dict[int, str]


UNREADABLE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    NameError,
    OSError,
    StopIteration,
    TypeError,
    ValueError,
)
_ALONE = threading.Lock()  # Hatchet's reader keeps what it reads in global variables


class _Pool:
    """A pool of processes as Hatchet uses it, without processes."""

    def __init__(self, initializer: Callable[..., None], initargs: tuple[Any, ...]) -> None:
        initializer(*initargs)

    def map(self, function: Callable[[Any], None], arguments: Iterable[Any]) -> None:
        for argument in arguments:
            function(argument)

    def close(self) -> None:
        """Nothing is open."""


LOOKED_AT = 4096  # bytes; the description of the format may stand before the first element
WHOLE = 1  # the context above all entry points
UNKNOWN = ("<unknown file>", "~unknown-file~")
ROUNDING = 1e-12  # of the inclusive value: what differences of sums leave of 0


def sniff(path: Path) -> bool:
    """Say whether `path` is an experiment.xml or a folder that holds one, by its first bytes."""
    start = head(_experiment(path), LOOKED_AT)
    return start.lstrip().startswith(b"<?xml") and b"HPCToolkitExperiment" in start


def read(path: Path) -> Profile:
    """Open a database; all of it is read. Contexts are those of Hatchet: a call site is the function called there."""
    experiment = described(_experiment(path))
    files = metric_files(experiment)
    rows, values = hatchet_rows(experiment, files)
    found: dict[Any, dict[str, object]] = {}
    row: Any
    for row in rows.drop_duplicates("nid").itertuples():  # what is above comes first
        above = found[row.node.parents[0]] if row.node.parents else None
        found[row.node] = _context(row, above, experiment)
    tree = tables.CALLTREE.make(
        pd.DataFrame(list(found.values()), columns=tables.CALLTREE.column_names)
    )
    inclusive = values.groupby(rows["nid"]).sum()
    at_roots = values[rows["nid"].isin(tree.loc[tree["parent"].isna(), "node"])]
    of = rows.loc[at_roots.index]
    number = {identity: i for i, identity in enumerate(files)}
    thread = [number[identity] for identity in zip(of["rank"], of["thread"], strict=True)]
    entry = of["nid"].map(tree.set_index("node")["entry"].astype(object))
    sums = at_roots.groupby(
        [pd.Series(thread, of.index, name="thread"), entry.rename("entry")]
    ).sum()
    frame = (
        sums.rename_axis("metric", axis=1)
        .melt(value_name="inclusive", ignore_index=False)
        .reset_index()
    )
    of_threads = _in_units(frame[frame["inclusive"] != 0], experiment.metrics).assign(rank=0)
    made = {
        "CALLTREE": tree,
        "CALL_METRICS": _call_metrics(inclusive, tree, experiment.metrics),
        "THREADS": _threads(list(files)),
        "THREAD_METRICS": tables.THREAD_METRICS.make(of_threads),
    }
    loaders = {name: partial(made.__getitem__, name) for name in made if len(made[name])}
    totals = _totals(at_roots.sum(), experiment, files)
    return Profile(
        reader="hpctoolkit",
        path=path,
        capture=capture_table(path, "HPCToolkit", f"{EXPERIMENT} {experiment.version}".strip()),
        loaders=loaders,
        missing=hpctoolkit.missing(totals, loaders),
        notes=(*hpctoolkit.incomplete(totals, len(files)), *hpctoolkit.lost(totals)),
    )


def _experiment(path: Path) -> Path:
    return path if path.name == EXPERIMENT else path / EXPERIMENT


def _context(row: Any, above: dict[str, Any] | None, experiment: Experiment) -> dict[str, object]:
    file = experiment.file.get(row.nid, UNKNOWN[0])
    place = f"{'loop at ' if row.type == 'L' else ''}{contexts.place(file, row.line)}"
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


def _call_metrics(
    inclusive: pd.DataFrame, tree: pd.DataFrame, metrics: list[Metric]
) -> pd.DataFrame:
    parent = tree.set_index("node")["parent"].reindex(inclusive.index)
    below = inclusive.groupby(parent).sum().reindex(inclusive.index, fill_value=0.0)
    exclusive = inclusive - below
    exclusive = exclusive.mask(exclusive.abs() <= ROUNDING * inclusive.abs(), 0.0)
    long = inclusive.rename_axis(index="node", columns="metric").melt(
        value_name="inclusive", ignore_index=False
    )
    frame = long.assign(exclusive=exclusive.melt()["value"].to_numpy()).reset_index()
    frame = frame[(frame["inclusive"] != 0) | (frame["exclusive"] != 0)]
    return tables.CALL_METRICS.make(_in_units(frame, metrics).assign(rank=0))


def _in_units(frame: pd.DataFrame, metrics: list[Metric]) -> pd.DataFrame:
    """Return rows with the column unit, and their values in it."""
    factor = frame["metric"].map({m.name: m.factor for m in metrics}).astype("float64")
    values = {
        column: frame[column] * factor for column in ("inclusive", "exclusive") if column in frame
    }
    return frame.assign(unit=frame["metric"].map({m.name: m.unit for m in metrics}), **values)


def _threads(identities: list[tuple[int, int]]) -> pd.DataFrame:
    """Return THREADS; without MPI too the files say rank 0."""
    is_parallel = any(rank for rank, _ in identities)
    frame = {
        "rank": 0,
        "thread": range(len(identities)),
        "kind": ["gpu" if thread >= FIRST_STREAM else "cpu" for _, thread in identities],
        "name": [
            (f"rank {rank} " if is_parallel else "")
            + (
                f"GPU stream {thread - FIRST_STREAM}"
                if thread >= FIRST_STREAM
                else f"thread {thread}"
            )
            for rank, thread in identities
        ],
        "mpi_rank": [rank if is_parallel else pd.NA for rank, _ in identities],
    }
    return tables.THREADS.make(pd.DataFrame(frame))


def _totals(entries: pd.Series, experiment: Experiment, files: Threads) -> pd.DataFrame:
    """Return every metric's `unit`, `whole` and `entries` as `Database`, `stored` in its files, `stated` in the XML."""
    first = [
        np.fromfile(file, ">f8", experiment.columns, offset=HEADER.size) for file in files.values()
    ]
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
    return pd.DataFrame(
        {"unit": [m.unit for m in metrics], **values}, index=[m.name for m in metrics]
    )


def damaged(path: Path, why: str) -> ReadError:
    """Return the error that says why a file cannot be read."""
    return ReadError(f"{path}: {why}. {AGAIN}")


def described(path: Path) -> Experiment:
    """Return what experiment.xml says."""
    root = _parsed(path)
    try:
        databases = {int(m.attrib["i"]): m.attrib for m in root.iter("MetricDB")}
        listed = [dict(databases[number]) for number in sorted(databases)]
        functions = {p.attrib["i"]: p.attrib["n"] for p in root.iter("Procedure")}
        files = {f.attrib["i"]: f.attrib["n"] for f in root.iter("File")}
        data = next(root.iter("SecCallPathProfileData"))
        summed = {m.attrib["i"]: m.attrib["n"] for m in root.iter("Metric")}
        totals = {summed.get(m.attrib["n"], ""): float(m.attrib["v"]) for m in data.findall("M")}
        contexts = list(_contexts(data))
        function = {
            number: functions[e.attrib["n"]] for number, e, _ in contexts if e.tag in ("PF", "Pr")
        }
        file = {number: files[above] for number, _, above in contexts if above is not None}
    except (KeyError, ValueError, StopIteration) as e:
        raise damaged(
            path, f"the file lacks an element or attribute, or has another value there ({e!r})"
        ) from e
    numbers = frozenset(number for number, _, _ in contexts)
    if len(numbers) < len(contexts):
        raise damaged(path, "a context is there more than once")
    return Experiment(
        path,
        root.get("version", ""),
        _metrics(listed, totals),
        len(listed),
        numbers,
        function,
        file,
    )


def _parsed(path: Path) -> ElementTree.Element:
    """Return the root; declared entities, which no `hpcprof` writes, are refused before anything expands them."""

    def declared(name: str, *_: object) -> None:
        raise ReadError(
            f"{path}: the file declares an XML entity ({name!r}), which no `hpcprof` does. Do not trust this file."
        )

    parser = expat.ParserCreate()
    parser.EntityDeclHandler = declared
    text = content(path)
    try:
        parser.Parse(text, True)
        return ElementTree.fromstring(text)
    except (ElementTree.ParseError, expat.ExpatError, LookupError, ValueError) as e:
        raise damaged(path, f"the file is cut or damaged: {e}") from e


def _contexts(data: ElementTree.Element) -> Iterator[tuple[int, ElementTree.Element, str | None]]:
    """Yield the number, element and file of every context below `data`."""
    waiting: list[tuple[ElementTree.Element, str | None]] = [(data, None)]
    while waiting:
        above, file = waiting.pop()
        for element in above:
            if element.tag in (*KINDS, "C"):
                own = element.get("f", file)
                yield int(element.attrib["i"]), element, own
                waiting.append((element, own))


def _metrics(listed: Iterable[dict[str, str]], totals: Mapping[str, float]) -> list[Metric]:
    metrics: dict[str, Metric] = {}
    for column, attributes in enumerate(listed):
        if attributes.get("t") == "inclusive":
            text = attributes["n"].removesuffix("(I)").strip()
            name, unit, factor = contexts.measured(text)
            # Two metrics may differ in their unit only.
            name = text if name in metrics else name
            metrics[name] = Metric(column, name, unit, factor, totals.get(f"{text}:Sum (I)"))
    return list(metrics.values())


def metric_files(experiment: Experiment) -> Threads:
    """Return the metric files in the order of their rank and thread, all of them whole."""
    folder = experiment.path.parent
    files: Threads = {}
    for path in sorted(folder.glob("*.metric-db")):
        name = METRIC_DB.search(path.name)
        if not name:
            raise ReadError(
                f"{path}: the name does not end with rank, thread, host, process and number. Restore it."
            )
        if (int(name[1]), int(name[2])) in files:
            raise ReadError(
                f"{path}: another file is of the same rank and thread. Remove the one of another run."
            )
        files[int(name[1]), int(name[2])] = path
        _check_whole(path, experiment)
    if not files:
        raise ReadError(
            f"{folder}: there is no *.metric-db file beside {EXPERIMENT}. "
            "Copy the database whole, or make it with `hpcprof --metric-db=yes`."
        )
    return dict(sorted(files.items()))


def _check_whole(path: Path, experiment: Experiment) -> None:
    """Check a metric file: Hatchet fills up a cut one with its own values again."""
    try:
        with path.open("rb") as file:
            head = file.read(HEADER.size)
        size = path.stat().st_size
    except OSError as e:
        raise ReadError(
            f"{path}: the file cannot be opened ({e.strerror}). Check its permissions."
        ) from e
    if len(head) < HEADER.size:
        raise damaged(path, f"the file has {size} bytes, which is less than its header")
    *magic, contexts, columns = HEADER.unpack(head)
    if tuple(magic) != MAGIC:
        raise damaged(path, f"the file starts with {head[:24]!r}, not {b''.join(MAGIC)!r}")
    if columns != experiment.columns:
        raise damaged(path, f"the file has {columns} metrics, {EXPERIMENT} {experiment.columns}")
    strange = [number for number in experiment.numbers if not 0 < number <= contexts]
    if strange:
        raise damaged(
            path, f"the file has {contexts} contexts, not the {strange[0]} of {EXPERIMENT}"
        )
    if size != HEADER.size + 8 * contexts * columns:
        raise damaged(
            path,
            f"the file has {size} bytes, its header says {HEADER.size + 8 * contexts * columns}",
        )


def hatchet_rows(experiment: Experiment, files: Threads) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return a row per context (after the one above it) and thread, and the inclusive metrics by name, as stored."""
    # Where the ranks do not have the same threads Hatchet writes the values of one over those of another.
    ranks, threads = ({identity[i] for identity in files} for i in (0, 1))
    cpu = sum(thread < FIRST_STREAM for thread in threads)
    expected = [*range(cpu), *range(FIRST_STREAM, FIRST_STREAM + len(threads) - cpu)]
    if set(product(range(len(ranks)), expected)) != set(files):
        raise _uneven(experiment.path.parent, len(files))
    frame = _frame(experiment.path)
    metrics = {m.name: frame.iloc[:, m.column].to_numpy() for m in experiment.metrics}
    places = frame.index.to_frame(index=False)
    places = places if "thread" in places else places.assign(thread=0)
    if set(zip(places["rank"], places["thread"], strict=True)) != set(files):
        raise _uneven(experiment.path.parent, len(files))
    columns = frame[["nid", "type", "line", "module"]].reset_index(drop=True)
    return places.join(columns), pd.DataFrame(metrics, index=places.index)


def _uneven(folder: Path, count: int) -> ReadError:
    return ReadError(
        f"{folder}: its {count} *.metric-db files are not of the same threads, numbered from 0 on, of every rank: "
        "Hatchet cannot read them. Copy the database whole, with all metric files."
    )


def _frame(xml: Path) -> pd.DataFrame:
    import hatchet

    folder = str(xml.parent)
    if glob.escape(folder) != folder:
        raise ReadError(
            f"{folder}: Hatchet takes *, ? and [ in a path for a pattern. Rename the folder."
        )
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

    with (
        _ALONE,
        pd.option_context("mode.copy_on_write", False),
    ):  # it writes into the values of a frame
        theirs = hpctoolkit_reader.mp
        hpctoolkit_reader.mp = SimpleNamespace(Pool=_Pool, sharedctypes=theirs.sharedctypes)
        try:
            yield
        finally:
            hpctoolkit_reader.mp = theirs
