"""Small HPCToolkit databases of the older form: experiment.xml and a *.metric-db per rank and thread.

Values are given to statements; what is above them is added up as `hpcprof` does: inclusive in every context, exclusive
in the statement, in the context around it and in the function around that (`ANode::aggregateMetricsExcl`).
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

HEAD = '<?xml version="1.0"?>\n'
FUNCTIONS = ("PF", "Pr")
Values = dict[int, list[float]]  # of a context: inclusive, exclusive


@dataclass(frozen=True)
class Context:
    """An element of the tree: a function (PF, inlined Pr), a loop (L), a call site (C) or a statement (S)."""

    tag: str
    number: int
    name: str = ""
    file: str = "main.c"
    line: int = 0
    own: float = 0.0
    module: str = "app"
    children: tuple[Context, ...] = ()


def function(
    number: int, name: str, *children: Context, file: str = "main.c", line: int = 1
) -> Context:
    return Context("PF", number, name, file, line, children=children)


def inlined(
    number: int, name: str, *children: Context, file: str = "main.c", line: int = 1
) -> Context:
    return Context("Pr", number, name, file, line, children=children)


def loop(number: int, line: int, *children: Context, file: str = "main.c") -> Context:
    return Context("L", number, file=file, line=line, children=children)


def call(number: int, line: int, *children: Context) -> Context:
    """A call site; it has no file of its own."""
    return Context("C", number, file="", line=line, children=children)


def statement(number: int, line: int, own: float = 0.0) -> Context:
    """A statement with a value of its own; it has no file of its own."""
    return Context("S", number, file="", line=line, own=own)


def sample(folder: Path) -> Path:
    """Two ranks of two threads: main (a loop, a call of work in another file, then a line) and a thread's root.

    Of thread 0 of rank 0 the loop has 3 us, work 4, the line 2, the thread 1; of the n-th thread n times that.
    """
    work = call(7, 20, function(8, "work(int)", statement(9, 5, 4.0), file="lib/work.c"))
    main = function(4, "main", loop(5, 10, statement(6, 11, 3.0)), work, statement(10, 21, 2.0))
    program = function(2, "<program root>", call(3, 0, main), file="<unknown file>", line=0)
    thread = function(11, "<thread root>", statement(12, 0, 1.0), file="~unknown-file~", line=0)
    return database(folder, program, thread, threads=((0, 0), (0, 1), (1, 0), (1, 1)))


def database(
    folder: Path,
    *roots: Context,
    metrics: Sequence[str] = ("CPUTIME (usec)",),
    threads: Iterable[tuple[int, int]] = ((0, 0),),
    doctype: str = "",
) -> Path:
    """A database; the m-th metric of the n-th thread has m * n times the values given to the statements."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "experiment.xml").write_text(HEAD + doctype + _xml(roots, metrics), encoding="utf-8")
    contexts = max(c.number for c in _all(roots))
    for n, (rank, thread) in enumerate(threads, 1):
        name = f"app-{rank:06d}-{thread:03d}-a8c0027f-{4000 + n}-0.metric-db"
        (folder / name).write_bytes(
            _metric_db(roots, contexts, [m * n for m in range(1, len(metrics) + 1)])
        )
    return folder


def _all(contexts: Iterable[Context]) -> Iterator[Context]:
    waiting = list(contexts)
    while waiting:
        context = waiting.pop()
        yield context
        waiting += context.children


def _xml(roots: Sequence[Context], metrics: Sequence[str]) -> str:
    top = ElementTree.Element("HPCToolkitExperiment", version="2.0")
    section = ElementTree.SubElement(top, "SecCallPathProfile", i="0", n="app")
    header = ElementTree.SubElement(section, "SecHeader")
    listed = ElementTree.SubElement(header, "MetricDBTable")
    for i, metric in enumerate(metrics):
        for j, (kind, letter) in enumerate((("inclusive", "I"), ("exclusive", "E"))):
            ElementTree.SubElement(
                listed, "MetricDB", i=str(2 * i + j), n=f"{metric} ({letter})", t=kind
            )
    ids = {}
    for table, entry, texts in (
        ("LoadModuleTable", "LoadModule", {c.module for c in _all(roots)}),
        ("FileTable", "File", {c.file for c in _all(roots)} - {""}),
        ("ProcedureTable", "Procedure", {c.name for c in _all(roots) if c.tag in FUNCTIONS}),
    ):
        element = ElementTree.SubElement(header, table)
        for text in sorted(texts):
            ids[entry, text] = str(len(ids))
            ElementTree.SubElement(element, entry, i=ids[entry, text], n=text)
    data = ElementTree.SubElement(section, "SecCallPathProfileData")
    waiting = [(data, root) for root in reversed(roots)]
    while waiting:
        above, context = waiting.pop()
        told = {"i": str(context.number), "l": str(context.line)}
        if context.tag in FUNCTIONS:
            told |= {"n": ids["Procedure", context.name], "lm": ids["LoadModule", context.module]}
        if context.file:
            told["f"] = ids["File", context.file]
        element = ElementTree.SubElement(above, context.tag, told)
        waiting += [(element, child) for child in reversed(context.children)]
    return ElementTree.tostring(top, encoding="unicode")


def _metric_db(roots: Sequence[Context], contexts: int, factors: Sequence[int]) -> bytes:
    values: Values = {number: [0.0, 0.0] for number in range(1, contexts + 1)}
    waiting: list[tuple[Context, tuple[Context, ...]]] = [(root, ()) for root in roots]
    while waiting:
        context, above = waiting.pop()
        if context.own:
            around = [*above, context]
            function_around = next((c for c in reversed(above) if c.tag in FUNCTIONS), above[-1])
            for number in {1, *(c.number for c in around)}:
                values[number][0] += context.own
            for number in {c.number for c in (context, above[-1], function_around)}:
                values[number][1] += context.own
        waiting += [(child, (*above, context)) for child in context.children]
    head = struct.pack(
        ">18s5ssii", b"HPCPROF-metricdb__", b"00.10", b"b", contexts, 2 * len(factors)
    )
    cells = [factor * value for row in values.values() for factor in factors for value in row]
    return head + struct.pack(f">{len(cells)}d", *cells)
