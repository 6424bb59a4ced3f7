"""What ``nvidia-smi -q`` says of each GPU, as text or XML (``-x``), as rows under the names of ``--query-gpu``.

The text is indented, also of some sections (``-d TEMPERATURE,POWER``) and repeated (``-l``). The
XML has a DOCTYPE that names NVIDIA's DTD, which is neither needed nor fetched. Entities are not
expanded: a document that declares or uses one is refused. Documents of ``-l`` follow each other.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.parsers import expat

import numpy as np

from perfkit.errors import ReadError
from perfkit.format import printable
from perfkit.logs.nvidia_smi.fields import BITS, ROWS, Column, Log, is_missing
from perfkit.logs.nvidia_smi.logs import origin, printed, ticks
from perfkit.logs.text import CUT
from perfkit.readers.text import content

MARGIN = "temperature.slowdown.tlimit"
# Where the text has the reasons that lowered the clock; the XML has them by their names.
REASONS = {name: name.replace("_", " ") for name in BITS} | {"gpu_idle": "idle"}
REASONS |= {
    name: f"hw slowdown/{REASONS[name]}"
    for name in ("hw_thermal_slowdown", "hw_power_brake_slowdown")
}
KINDS = ("event", "throttle")  # since driver 535, and before
COLUMNS = {(kind, name): f"clocks_event_reasons.{name}" for kind in KINDS for name in BITS}
TEXT_NAMES = {row["text"]: row["column"] for row in ROWS if row["text"]}
TEXT_NAMES |= {
    f"clocks {kind} reasons/{REASONS[name]}": column for (kind, name), column in COLUMNS.items()
}
XML_NAMES = {row["xml"]: row["column"] for row in ROWS if row["xml"]}
XML_NAMES |= {
    f"clocks_{kind}_reasons/clocks_{kind}_reason_{name}": column
    for (kind, name), column in COLUMNS.items()
}
TITLE = re.compile(r"=+NVSMI LOG=+")
GPU = re.compile(r"GPU [0-9A-Fa-f]+:[0-9A-Fa-f]+:[0-9A-Fa-f.]+")
SEPARATOR = re.compile(r" :(?: |$)")

DEEPEST = 8  # elements that may enclose one that is read
ENDS = (
    *(
        expat.errors.XML_ERROR_NO_ELEMENTS,
        expat.errors.XML_ERROR_UNCLOSED_TOKEN,
        expat.errors.XML_ERROR_PARTIAL_CHAR,
    ),
)

NO_TIME = "no time: the values are of one moment, the wall clock is not known"
AGAIN = "Run `nvidia-smi -q -x -f gpus.xml` again"


def text_log(path: Path) -> Log:
    """Read an inventory."""
    *whole, rest = content(path).decode(errors="replace").split("\n")
    inventories: list[Inventory] = []
    values: dict[str, str] = {}
    gpus: list[dict[str, str]] = []
    stack: list[tuple[int, str]] = []
    there: set[str] = set()
    for number, line in enumerate(whole, 1):
        text = line.strip()
        if TITLE.fullmatch(text):
            values, gpus, there = {}, [], set()
            inventories.append(Inventory(values, gpus))
        elif GPU.fullmatch(text):
            if text in there:
                raise ReadError(
                    f"{path}: line {number} describes {text} again, without a title above. {AGAIN}."
                )
            there.add(text)
            values, stack = {}, []
            gpus.append(values)
        else:
            _entered(line, values, stack)
    return log(path, "nvidia-smi -q", inventories, TEXT_NAMES, [CUT] if rest.strip() else [])


def _entered(line: str, values: dict[str, str], stack: list[tuple[int, str]]) -> None:
    """Enter a line under its path: a line belongs to the last one above it that is less indented."""
    text = line.expandtabs().rstrip()
    if not text:
        return
    indent = len(text) - len(text.lstrip())
    separator = SEPARATOR.search(text, indent)
    name = text[indent : separator.start()] if separator else text[indent:]
    while stack and stack[-1][0] >= indent:
        stack.pop()
    stack.append((indent, name.rstrip().lower().removesuffix(" specification")))
    if separator:
        values.setdefault("/".join(above for _, above in stack), text[separator.end() :].strip())


def xml_log(path: Path) -> Log:
    """Read an inventory."""
    parts = [part for part in re.split(rb"(?=<\?xml\b)", content(path)) if part.strip()]
    documents = [_Document(path, part) for part in parts]
    if any(document.cut for document in documents[:-1]):
        raise ReadError(f"{path}: a document ends before the next begins. {AGAIN}.")
    notes = ["the end is cut: what is not whole is left out"] if documents[-1].cut else []
    return log(
        path,
        "nvidia-smi -q",
        [Inventory(one.head, one.gpus) for one in documents],
        XML_NAMES,
        notes,
    )


class _Document:
    """Reads one document; a GPU counts once its element is closed."""

    def __init__(self, path: Path, data: bytes) -> None:
        self._path = path
        self._stack: list[str] = []
        self._text: list[str] = []
        self._gpu: dict[str, str] = {}
        self._places: set[str] = set()
        self.head: dict[str, str] = {}
        self.gpus: list[dict[str, str]] = []
        self.cut = False
        self._parse(data)

    def _parse(self, data: bytes) -> None:
        parser = expat.ParserCreate()
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._text.append
        parser.EntityDeclHandler = parser.SkippedEntityHandler = self._entity
        try:
            parser.Parse(data, False)
            parser.Parse(b"", True)
        except expat.ExpatError as e:
            if expat.ErrorString(e.code) not in ENDS:
                raise ReadError(f"{self._path}: line {e.lineno} is damaged ({e}). {AGAIN}.") from e
            self.cut = True
        except LookupError as e:
            raise ReadError(
                f"{self._path}: the encoding that the document names is unknown ({e}). {AGAIN}."
            ) from e

    def _entity(self, name: str, *_: object) -> None:
        raise ReadError(
            f"{self._path}: the document has an entity {name[:40]!r}, nvidia-smi none. {AGAIN}."
        )

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._stack.append(tag)
        self._text.clear()
        if len(self._stack) == 2 and tag == "gpu":
            self._gpu = {}
            place = attributes.get("id", "")
            if place and place in self._places:
                raise ReadError(f"{self._path}: GPU {place[:40]!r} is described twice. {AGAIN}.")
            self._places.add(place)

    def _end(self, tag: str) -> None:
        depth = len(self._stack)
        if depth == 2 and tag == "gpu":
            self.gpus.append(self._gpu)
        elif 2 <= depth <= DEEPEST:
            text = "".join(self._text).strip()
            if self._stack[1] == "gpu":
                self._gpu.setdefault("/".join(self._stack[2:]), text)
            else:
                self.head.setdefault("/".join(self._stack[1:]), text)
        self._text.clear()
        self._stack.pop()


@dataclass(frozen=True)
class Inventory:
    """One run of ``nvidia-smi -q``: what it says at first, and of each GPU, by path."""

    head: Mapping[str, str]
    gpus: Sequence[Mapping[str, str]]


def log(
    path: Path,
    tool: str,
    inventories: Sequence[Inventory],
    names: Mapping[str, str],
    notes: Sequence[str],
) -> Log:
    """Return inventories as a log; `names` maps their paths to columns, the first that a GPU has wins.

    A GPU without an index is numbered by its place.
    """
    rows = [(taken, number) for taken in inventories for number in range(len(taken.gpus))]
    if not rows:
        raise ReadError(f"{path}: no GPU is described to its end. {AGAIN}.")
    named = [_named(taken.gpus[number], names) for taken, number in rows]
    columns = {
        name: Column.of([row.get(name, "N/A") for row in named])
        for name in dict.fromkeys(names.values())
    }
    columns = {
        name: column for name, column in columns.items() if any(name in row for row in named)
    }
    columns["driver_version"] = Column.of([_head(taken, "driver version") for taken, _ in rows])
    times = [printed(_head(taken, "timestamp")) for taken, _ in rows]
    indices = [int(taken.gpus[number].get("index", number)) for taken, number in rows]
    gpu = np.array(indices, np.int32)
    stamps = [time for time in times if time is not None]
    if len(stamps) == len(rows):
        time_ns, first, clock_notes = origin(np.array(stamps, np.int64))
    else:
        time_ns, first, clock_notes = ticks(gpu), None, [NO_TIME]
    # Fewer GPUs are described than the node has: their numbers are not its indices.
    counts = [(len(taken.gpus), _head(taken, "attached gpus")) for taken in inventories]
    numbering = [
        f"{count} of {printable(attached, 12)} GPUs are described: they are numbered in their "
        "order here"
        for count, attached in counts
        if attached.isdecimal() and attached.lstrip("0") != str(count)
    ]
    # A limit that is a margin is no temperature, nor is the sum of margin and temperature a
    # constant.
    margins = {int(gpu[i]): row[MARGIN] for i, row in enumerate(named) if MARGIN in row}
    listed = ", ".join(
        f"GPU {number} at {value}" for number, value in margins.items() if not is_missing(value)
    )
    margin_notes = [
        f"limits are given as margins, the slowdown of {listed}: see temperature_margin_c"
    ] * bool(listed)
    return Log(
        path=path,
        tool=tool,
        columns=columns,
        gpu=gpu,
        time_ns=time_ns,
        t0_unix_ns=first,
        where=lambda row: f"GPU {gpu[row]}",
        names={},
        notes=(*notes, *clock_notes, *numbering[:1], *margin_notes),
    )


def _head(taken: Inventory, words: str) -> str:
    """Return what is said before the GPUs: the XML joins the words of the text."""
    return taken.head.get(words, taken.head.get(words.replace(" ", "_"), ""))


def _named(gpu: Mapping[str, str], names: Mapping[str, str]) -> dict[str, str]:
    """Return the readings of a GPU by column; a later path counts only where an earlier one has no value."""
    values: dict[str, str] = {}
    for place, name in names.items():
        if place in gpu and (name not in values or is_missing(values[name])):
            values[name] = gpu[place]
    return values
