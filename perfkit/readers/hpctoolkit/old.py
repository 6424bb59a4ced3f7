"""The older form of a database: experiment.xml with a *.metric-db per thread (before 2022).

experiment.xml has the call tree, names and units. A metric file has the values of one thread: after
a header a row per context, from 1 on, and in it a big-endian double per metric. Contexts are those
of Hatchet: a call site is the function called there, and an inlined function without a name is the
context around it. Of the values only the inclusive ones are used: `hpcprof` counts what a loop has
alone for the function around it too.
"""

import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree
from xml.parsers import expat

import numpy as np
import pandas as pd

from perfkit import tables
from perfkit.errors import ReadError
from perfkit.profile import Profile
from perfkit.readers.hpctoolkit import completeness, contexts, sums
from perfkit.readers.hpctoolkit.contexts import Measure
from perfkit.readers.hpctoolkit.files import AGAIN
from perfkit.readers.hpctoolkit.sums import Floats
from perfkit.readers.text import capture_table, category, content, head

EXPERIMENT = "experiment.xml"
METRIC_DB = re.compile(r"-(\d+)-(\d+)-\w+-\d+-\d\.metric-db$")  # PROGRAM-RANK-THREAD-HOST-PROCESS-0
HEADER = struct.Struct(">18s5ssii")  # magic, version, byte order, contexts, metrics
MAGIC = (b"HPCPROF-metricdb__", b"00.10", b"b")
KINDS = {"PF": "function", "Pr": "function", "L": "loop", "S": "line"}
CALL_SITE, VALUE = "C", "M"  # elements that are no contexts
FUNCTIONS = ("PF", "Pr")
FIRST_STREAM = 500  # threads from here on are GPU streams
Threads = dict[tuple[int, int], Path]  # rank and thread of each metric file


@dataclass(frozen=True)
class Metric(Measure):
    """An inclusive metric in the metric files, and its `total` of all threads if experiment.xml states it."""

    column: int
    total: float | None = None


@dataclass(frozen=True)
class Experiment:
    """What experiment.xml says: CALLTREE, the inclusive metrics, and how many columns a metric file has.

    `numbers` are those of all elements of the tree, also of such as are no contexts.
    """

    path: Path
    version: str
    tree: pd.DataFrame
    metrics: list[Metric]
    columns: int
    numbers: frozenset[int]


LOOKED_AT = 4096  # bytes; the description of the format may stand before the first element
WHOLE = 1  # the context above all entry points
UNKNOWN = ("<unknown file>", "~unknown-file~")


def sniff(path: Path) -> bool:
    """Say whether `path` is an experiment.xml or a folder that holds one, by its first bytes."""
    start = head(_experiment(path), LOOKED_AT)
    return start.lstrip().startswith(b"<?xml") and b"HPCToolkitExperiment" in start


def read(path: Path) -> Profile:
    """Open a database; all of it is read."""
    experiment = described(_experiment(path))
    files = metric_files(experiment)
    stored = np.array([_values(file, experiment) for file in files.values()])
    whole, values = stored[:, 0], stored[:, 1:]
    is_root = experiment.tree["parent"].isna().to_numpy(bool)
    at_roots = values[:, is_root]
    made = {
        "CALLTREE": experiment.tree,
        "CALL_METRICS": _call_metrics(values.sum(axis=0), experiment),
        "THREADS": _threads(list(files)),
        "THREAD_METRICS": _thread_metrics(at_roots, experiment),
    }
    loaders = {name: partial(made.__getitem__, name) for name in made if len(made[name])}
    totals = _totals(whole.sum(axis=0), at_roots.sum(axis=(0, 1)), experiment)
    return Profile(
        reader="hpctoolkit",
        path=path,
        capture=capture_table(path, "HPCToolkit", f"{EXPERIMENT} {experiment.version}".strip()),
        loaders=loaders,
        missing=completeness.missing(totals, loaders),
        notes=(*completeness.incomplete(totals, len(files)), *completeness.lost(totals)),
    )


def _experiment(path: Path) -> Path:
    return path if path.name == EXPERIMENT else path / EXPERIMENT


def _values(file: Path, experiment: Experiment) -> Floats:
    """Return the inclusive metrics of one thread: of the whole program, then of each context of CALLTREE."""
    every = np.fromfile(file, ">f8", offset=HEADER.size).reshape(-1, experiment.columns)
    rows = np.append(WHOLE, experiment.tree["node"].to_numpy()) - 1
    columns = [metric.column for metric in experiment.metrics]
    values: Floats = every[rows][:, columns].astype(np.float64)
    return values


def _call_metrics(values: Floats, experiment: Experiment) -> pd.DataFrame:
    """Return CALL_METRICS of the sums over all threads, by context and metric."""
    context, metric = np.nonzero(values)
    node = experiment.tree["node"].to_numpy()[context]
    number = metric.astype(np.int16)
    amounts = values[context, metric]
    return sums.call_metrics(node, number, amounts, experiment.metrics, experiment.tree)


def _thread_metrics(at_roots: Floats, experiment: Experiment) -> pd.DataFrame:
    """Return THREAD_METRICS of the values by thread, entry point and metric."""
    entries = experiment.tree.loc[experiment.tree["parent"].isna(), "entry"]
    thread, entry, metric = np.nonzero(at_roots)
    factor = np.array([m.factor for m in experiment.metrics])
    frame = pd.DataFrame(
        {
            "rank": 0,
            "thread": thread,
            "entry": category(entry, entries.astype(str).tolist()),
            **sums.labels(metric.astype(np.int16), experiment.metrics),
            "inclusive": at_roots[thread, entry, metric] * factor[metric],
        }
    )
    keys = ["rank", "thread", "entry", "metric", "unit"]  # entry points may share their name
    return tables.THREAD_METRICS.make(
        frame.groupby(keys, observed=True, as_index=False)[["inclusive"]].sum()
    )


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


def _totals(whole: Floats, entries: Floats, experiment: Experiment) -> pd.DataFrame:
    """Return every metric's `unit`, `whole` and `entries` as `Database`, `stored` in its files, `stated` in the XML."""
    metrics = experiment.metrics
    columns = {
        "whole": whole if WHOLE not in experiment.numbers else entries,
        "entries": entries,
        "stored": whole,
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
        data = next(root.iter("SecCallPathProfileData"))
        summed = {m.attrib["i"]: m.attrib["n"] for m in root.iter("Metric")}
        totals = {summed.get(m.attrib["n"], ""): float(m.attrib["v"]) for m in data.findall("M")}
        elements = list(_elements(data))
        tree = _tree(elements, _Names(root))
    except (KeyError, ValueError, StopIteration) as e:
        raise damaged(
            path, f"the file lacks an element or attribute, or has another value there ({e!r})"
        ) from e
    if not listed:
        raise damaged(path, "the file lists no metric")
    numbers = frozenset(element.number for element in elements)
    if len(numbers) < len(elements):
        raise damaged(path, "a context is there more than once")
    metrics = _metrics(listed, totals)
    return Experiment(path, root.get("version", ""), tree, metrics, len(listed), numbers)


def _parsed(path: Path) -> ElementTree.Element:
    """Return the root; declared entities, which no `hpcprof` writes, are refused before anything expands them."""

    def declared(name: str, *_: object) -> None:
        raise ReadError(
            f"{path}: the file declares an XML entity ({name!r}), which no `hpcprof` does. Do not "
            "trust this file."
        )

    parser = expat.ParserCreate()
    parser.EntityDeclHandler = declared
    text = content(path)
    try:
        parser.Parse(text, True)
        return ElementTree.fromstring(text)
    except (ElementTree.ParseError, expat.ExpatError, LookupError, ValueError) as e:
        raise damaged(path, f"the file is cut or damaged: {e}") from e


class _Names:
    """The names that elements of the tree refer to by number."""

    def __init__(self, root: ElementTree.Element) -> None:
        self.functions = {p.attrib["i"]: p.attrib["n"] for p in root.iter("Procedure")}
        self.files = {f.attrib["i"]: f.attrib["n"] for f in root.iter("File")}
        self.modules = {m.attrib["i"]: m.attrib["n"] for m in root.iter("LoadModule")}


@dataclass(frozen=True)
class _Element:
    """An element of the tree, the one around it, and the number of its file, which may be that of one further out."""

    number: int
    tag: str
    attributes: Mapping[str, str]
    above: "_Element | None"
    file: str | None


def _elements(data: ElementTree.Element) -> Iterator[_Element]:
    """Yield every element of the tree, what is around one before it."""
    waiting: list[tuple[ElementTree.Element, _Element | None]] = [(data, None)]
    while waiting:
        around, above = waiting.pop()
        for xml in around:
            if xml.tag == VALUE:
                continue
            if xml.tag not in (*KINDS, CALL_SITE):
                raise ValueError(f"an element {xml.tag!r} in the call tree")
            file = xml.get("f", above.file if above else None)
            element = _Element(int(xml.attrib["i"]), xml.tag, xml.attrib, above, file)
            yield element
            waiting.append((xml, element))


def _tree(elements: Iterable[_Element], names: _Names) -> pd.DataFrame:
    """Return CALLTREE; elements that are no contexts stand for the context around them."""
    contexts_of: dict[int, dict[str, Any] | None] = {}
    rows = []
    for element in elements:
        above = contexts_of[element.above.number] if element.above else None
        if not _is_context(element, names):
            contexts_of[element.number] = above
            continue
        row = _context(element, above, names)
        contexts_of[element.number] = row
        rows.append(row)
    return tables.CALLTREE.make(pd.DataFrame(rows, columns=tables.CALLTREE.column_names))


def _is_context(element: _Element, names: _Names) -> bool:
    is_nameless = element.tag == "Pr" and not names.functions[element.attributes["n"]]
    return element.tag != CALL_SITE and not is_nameless


def _context(element: _Element, above: dict[str, Any] | None, names: _Names) -> dict[str, Any]:
    file = UNKNOWN[0] if element.file is None else names.files[element.file]
    line = int(element.attributes["l"])
    is_function = element.tag in FUNCTIONS
    name = contexts.place(file, line)
    if element.tag == "L":
        name = f"loop at {name}"
    if is_function:
        name = names.functions[element.attributes["n"]]
    return {
        "rank": 0,
        "node": element.number,
        "parent": above["node"] if above else pd.NA,
        "depth": above["depth"] + 1 if above else 0,
        "entry": above["entry"] if above else name,
        "kind": KINDS[element.tag] if above else "entry",
        "name": name,
        "file": pd.NA if file in UNKNOWN else file,
        "line": line or pd.NA,
        "module": names.modules[element.attributes["lm"]] if is_function else pd.NA,
    }


def _metrics(listed: Iterable[dict[str, str]], totals: Mapping[str, float]) -> list[Metric]:
    metrics: dict[str, Metric] = {}
    for column, attributes in enumerate(listed):
        if attributes.get("t") == "inclusive":
            text = attributes["n"].removesuffix("(I)").strip()
            name, unit, factor = contexts.measured(text)
            # Two metrics may differ in their unit only.
            name = text if name in metrics else name
            metrics[name] = Metric(name, unit, factor, column, totals.get(f"{text}:Sum (I)"))
    return list(metrics.values())


def metric_files(experiment: Experiment) -> Threads:
    """Return the metric files in the order of their rank and thread, all of them whole."""
    folder = experiment.path.parent
    files: Threads = {}
    for path in sorted(folder.glob("*.metric-db")):
        name = METRIC_DB.search(path.name)
        if not name:
            raise ReadError(
                f"{path}: the name does not end with rank, thread, host, process and number. "
                "Restore it."
            )
        if (int(name[1]), int(name[2])) in files:
            raise ReadError(
                f"{path}: another file is of the same rank and thread. Remove the one of another "
                "run."
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
    """Check that a metric file has what its header and experiment.xml say."""
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
