"""What experiment.xml and the names of its metric files say, checked before Hatchet reads them.

Hatchet does not check: it repeats the values of a cut metric file to fill it up, and writes outside its memory where a
context has a number that no metric file has.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree
from xml.parsers import expat

from perfkit.errors import ReadError
from perfkit.readers.hpctoolkit import names
from perfkit.readers.hpctoolkit.layout import AGAIN

EXPERIMENT = "experiment.xml"
METRIC_DB = re.compile(r"-(\d+)-(\d+)-\w+-\d+-\d\.metric-db$")  # PROGRAM-RANK-THREAD-HOST-PROCESS-0
HEADER = struct.Struct(">18s5ssii")  # magic, version, byte order, contexts, metrics
MAGIC = (b"HPCPROF-metricdb__", b"00.10", b"b")
KINDS = {"PF": "function", "Pr": "function", "L": "loop", "S": "line"}
CALL_SITE = "C"
FIRST_STREAM = 500  # threads from here on are GPU streams

Threads = dict[tuple[int, int], Path]  # rank and thread of each metric file


@dataclass(frozen=True)
class Metric:
    """An inclusive metric: its column in the metric files, its name, unit and the factor into it.

    `total` is what experiment.xml says that all threads have together, None where it does not.
    """

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
        function = {number: functions[e.attrib["n"]] for number, e, _ in contexts if e.tag in ("PF", "Pr")}
        file = {number: files[above] for number, _, above in contexts if above is not None}
    except (KeyError, ValueError, StopIteration) as e:
        raise damaged(path, f"the file lacks an element or attribute, or has another value there ({e!r})") from e
    numbers = frozenset(number for number, _, _ in contexts)
    if len(numbers) < len(contexts):
        raise damaged(path, "a context is there more than once")
    return Experiment(path, root.get("version", ""), _metrics(listed, totals), len(listed), numbers, function, file)


def _parsed(path: Path) -> ElementTree.Element:
    try:
        _refuse_entities(path)
        return ElementTree.parse(path).getroot()
    except (ElementTree.ParseError, expat.ExpatError, LookupError, ValueError) as e:
        raise damaged(path, f"the file is cut or damaged: {e}") from e
    except OSError as e:
        raise ReadError(f"{path}: the file cannot be opened ({e.strerror}). Check its permissions.") from e


def _refuse_entities(path: Path) -> None:
    """Refuse declared entities before anything expands them; no `hpcprof` writes one."""

    def declared(name: str, *_: object) -> None:
        raise ReadError(
            f"{path}: the file declares an XML entity ({name!r}), which no `hpcprof` does. Do not trust this file."
        )

    parser = expat.ParserCreate()
    parser.EntityDeclHandler = declared
    with path.open("rb") as file:
        parser.ParseFile(file)


def _contexts(data: ElementTree.Element) -> Iterator[tuple[int, ElementTree.Element, str | None]]:
    """Yield the number, element and file of every context below `data`."""
    waiting: list[tuple[ElementTree.Element, str | None]] = [(data, None)]
    while waiting:
        above, file = waiting.pop()
        for element in above:
            if element.tag in (*KINDS, CALL_SITE):
                own = element.get("f", file)
                yield int(element.attrib["i"]), element, own
                waiting.append((element, own))


def _metrics(listed: Iterable[dict[str, str]], totals: Mapping[str, float]) -> list[Metric]:
    found: dict[str, Metric] = {}
    for column, told in enumerate(listed):
        if told.get("t") == "inclusive":
            text = told["n"].removesuffix("(I)").strip()
            name, unit, factor = names.measured(text)
            # Two metrics may differ in their unit only.
            name = text if name in found else name
            found[name] = Metric(column, name, unit, factor, totals.get(f"{text}:Sum (I)"))
    return list(found.values())


def metric_files(experiment: Experiment) -> Threads:
    """Return the metric files in the order of their rank and thread, all of them whole."""
    folder = experiment.path.parent
    found: Threads = {}
    for path in sorted(folder.glob("*.metric-db")):
        told = METRIC_DB.search(path.name)
        if not told:
            raise ReadError(f"{path}: the name does not end with rank, thread, host, process and number. Restore it.")
        if (int(told[1]), int(told[2])) in found:
            raise ReadError(f"{path}: another file is of the same rank and thread. Remove the one of another run.")
        found[int(told[1]), int(told[2])] = path
        _check_whole(path, experiment)
    if not found:
        raise ReadError(
            f"{folder}: there is no *.metric-db file beside {EXPERIMENT}. "
            "Copy the database whole, or make it with `hpcprof --metric-db=yes`."
        )
    return dict(sorted(found.items()))


def _check_whole(path: Path, experiment: Experiment) -> None:
    """Check a metric file: Hatchet fills up a cut one with its own values again."""
    try:
        with path.open("rb") as file:
            head = file.read(HEADER.size)
        size = path.stat().st_size
    except OSError as e:
        raise ReadError(f"{path}: the file cannot be opened ({e.strerror}). Check its permissions.") from e
    if len(head) < HEADER.size:
        raise damaged(path, f"the file has {size} bytes, which is less than its header")
    *magic, contexts, columns = HEADER.unpack(head)
    if tuple(magic) != MAGIC:
        raise damaged(path, f"the file starts with {head[:24]!r}, not {b''.join(MAGIC)!r}")
    if columns != experiment.columns:
        raise damaged(path, f"the file has {columns} metrics, {EXPERIMENT} {experiment.columns}")
    strange = [number for number in experiment.numbers if not 0 < number <= contexts]
    if strange:
        raise damaged(path, f"the file has {contexts} contexts, not the {strange[0]} of {EXPERIMENT}")
    if size != HEADER.size + 8 * contexts * columns:
        raise damaged(path, f"the file has {size} bytes, its header says {HEADER.size + 8 * contexts * columns}")
