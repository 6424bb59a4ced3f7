"""What lies behind a figure: the tables it was made of, and the cells of the notebooks that show it, as links.

A figure has its tables and its analysis (`perfkit.diagnosis.sources.SOURCES`). A cell's metadata names the figures,
analyses and tables it shows: ``"perfkit": {"shows": ["idle_frac", "timeline.breakdown"]}``. A figure leads to the first
cell that names it, else its analysis, else one of its tables.

A notebook shows a figure as a link to the notebook beside it, which JupyterLab follows, and marks the names of tables.
`resolved` turns both into links of the page, or into plain text where they would lead nowhere: it reads the marks with
an HTML parser. All that comes from outside is escaped before: a name from a profile cannot pass for a mark. On its page
a figure has an anchor of its own, such as ``3_system.html#idle_frac``.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape
from html.parser import HTMLParser
from itertools import accumulate
from typing import NamedTuple
from urllib.parse import quote

import nbformat
from nbformat import NotebookNode

from perfkit.diagnosis import sources
from perfkit.diagnosis.finding import Figure, Finding
from perfkit.diagnosis.rules import rules
from perfkit.diagnosis.rules.rule import FURTHER, Notebook
from perfkit.format import Shown, printable, several
from perfkit.report import notebooks
from perfkit.report.notebooks import LIVE, SUMMARY
from perfkit.selection import Selection


class Cell(NamedTuple):
    """A cell of code: the name of its notebook, its id, and the figures, analyses and tables that it shows.

    `group` names the figures together, for `report.figure_table`; empty where they have no name.
    """

    notebook: str
    id: str
    shows: frozenset[str]
    listed: tuple[str, ...] = ()  # the same in their order
    group: str = ""


def address(notebook: str) -> str:
    """Return the file that shows a notebook in a report."""
    return "index.html" if notebook == SUMMARY else f"{notebook}.html"


QUIET = (
    "color:inherit;text-decoration:underline dotted;text-underline-offset:.2em;white-space:nowrap"
)
LONGEST = 200  # characters of a text or a source
FIGURE, DATA = "perfkit-figure", "perfkit-data"  # classes of the marks
File = Callable[[str], str]


class Known(NamedTuple):
    """What a link knows of its figure."""

    id: str
    source: str
    label: str


Target = Callable[[Known], str]


def tables(known: Figure) -> Shown:
    """Return a figure's source, the tables it rests on first and marked, then the analysis."""
    names = known.tables
    _, analysis, _, detail = sources.source(known.source)
    analysis = printable(f"{analysis}{detail}", LONGEST)
    marked = ", ".join(
        f'<span class="perfkit-data" data-table="{name}">{called(name)}</span>' for name in names
    )
    html = "; ".join(filter(None, (marked, escape(analysis))))
    text = "; ".join(filter(None, (", ".join(map(called, names)), analysis)))
    return Shown(html, text)


def called(table: str) -> str:
    """Return what a reader calls a table, which may lie in a folder of its own.

    >>> called("KERNELS"), called("framework/OPS"), called("baseline/KERNELS")
    ('KERNELS', 'OPS', 'KERNELS before')
    """
    folder, _, name = table.rpartition("/")
    return f"{name} before" if folder == "baseline" else name


FOLDER = "tables"
MOST = 12  # numbers that a cell names as leading to it


@dataclass(frozen=True)
class Report:
    """The cells that the page shows, and the names of the tables that are files, such as ``baseline/KERNELS``."""

    cells: Sequence[Cell]
    tables: frozenset[str] = frozenset()

    def cell(self, figure: str, source: str) -> Cell | None:
        """Return the cell that shows a figure."""
        return place(figure, source, self.cells)

    def files(self, source: str) -> dict[str, str]:
        """Return the tables of a figure's source and their paths, as `file`."""
        return {
            table: path for table in sources.source(source).tables if (path := self.file(table))
        }

    def file(self, table: str) -> str:
        """Return the path of a table in the report's folder, the run's own where no other tool made it; or empty."""
        found = next(
            (name for name in (table, table.removeprefix("framework/")) if name in self.tables), ""
        )
        return f"{FOLDER}/{found.lower()}.parquet" if found else ""


@dataclass(frozen=True)
class _Led:
    """A number that leads to a cell: its own anchor in the summary, empty elsewhere, what it is, and its tables."""

    anchor: str
    known: Known
    files: dict[str, str]


@dataclass
class _Trail:
    """What leads where on the pages; `led` holds by cell the figures that lead there, by their ids.

    `is_one`: all pages are one document, which stands alone.
    """

    report: Report
    is_one: bool = False
    led: dict[Cell, dict[str, _Led]] = field(default_factory=dict)

    def of(self, notebook: str) -> Callable[[str, str], str]:
        """Return what resolves the HTML of a notebook's cells; a figure of the summary can be led back to."""

        def linked(html: str, at: str) -> str:
            def target(figure: Known) -> str:
                cell, own = self.led_to(figure, is_summary=notebook == SUMMARY)
                if cell is None or (cell.notebook, cell.id) == (notebook, at):
                    return ""
                name = f'id="{own}" ' if own else ""
                return f'{name}href="{self.href(cell.notebook, anchor(figure.id))}"'

            return resolved(html, target, self.file)

        return linked

    def href(self, notebook: str, anchor: str) -> str:
        """Return the link to a place of a notebook's page."""
        return f"#{anchor}" if self.is_one else f"{address(notebook)}#{anchor}"

    def file(self, table: str) -> str:
        """Return the path of a table's file; empty where there is none, or on paper."""
        return "" if self.is_one else self.report.file(table)

    def led_to(self, known: Known, *, is_summary: bool = False) -> tuple[Cell | None, str]:
        """Note that a figure leads to its cell, and return that and the figure's own anchor, empty for none."""
        cell = self.report.cell(known.id, known.source)
        if cell is None:
            return None, ""
        there = self.led.setdefault(cell, {})
        if known.id in there:
            return cell, ""
        own = f"from-{anchor(known.id)}" if is_summary else ""
        there[known.id] = _Led(own, known, self.report.files(known.source))
        return cell, own

    def landing(self, cell: Cell) -> dict[str, object]:
        """Return a cell's anchors, and the line under it: the summary's numbers that lead there, and its tables."""
        figures = self.led[cell].values()
        anchors = [anchor(led.known.id) for led in figures]
        labels = {led.known.label: led.anchor for led in figures if led.anchor}
        back = [
            f'<a href="{self.href(SUMMARY, own)}">{escape(label)}</a>'
            for label, own in labels.items()
        ]
        parts = [f"↑ In the summary: {several(back, MOST)}"] if back else []
        files = {called(name): link for led in figures for name, link in led.files.items()}
        names = [data(name, link) for name, link in files.items() if not self.is_one]
        if names:
            parts.append(f"Data: {', '.join(names)}")
        return {"anchors": anchors, "html": " · ".join(parts)}


def anchor(figure: str) -> str:
    """Return the name of a figure's place on its page.

    >>> anchor("idle_frac"), anchor("step_median_ns, before")
    ('idle_frac', 'step_median_ns%2C%20before')
    """
    return quote(figure, safe="")


def data(table: str, path: str) -> str:
    """Return a table's name as a link to its file."""
    return f'<a class="{DATA}" href="{escape(path)}">{called(table)}</a>'


def cells(found: Iterable[tuple[str, nbformat.NotebookNode]]) -> list[Cell]:
    """Return the cells of code of step notebooks, given with their names, that are not for the explorer."""
    return [
        _cell(name, cell)
        for name, notebook in found
        for cell in notebook.cells
        if name != SUMMARY
        and cell.cell_type == "code"
        and LIVE not in cell.metadata.get("tags", [])
    ]


def _cell(notebook: str, cell: NotebookNode) -> Cell:
    about = cell.metadata.get("perfkit", {})
    listed = tuple(about.get("shows", ()))
    return Cell(notebook, cell.id, frozenset(listed), listed, about.get("group", ""))


@cache
def stored() -> tuple[Cell, ...]:
    """Return the cells of the notebooks as they are stored; copies for a person keep their ids."""
    there = (
        name for name in notebooks.NOTEBOOKS if (notebooks.folder() / f"{name}.ipynb").is_file()
    )
    return tuple(cells((name, notebooks.stored(name)) for name in there))


def presented(
    executed: Mapping[str, nbformat.NotebookNode], kept: Mapping[str, nbformat.NotebookNode]
) -> list[Cell]:
    """Return the cells of executed notebooks that are kept for the page."""
    ids = {(name, cell.id) for name, notebook in kept.items() for cell in notebook.cells}
    return [cell for cell in cells(executed.items()) if (cell.notebook, cell.id) in ids]


def place(figure: str, source: str, among: Sequence[Cell]) -> Cell | None:
    """Return the cell that shows a figure of this id and source, or None where no cell does.

    >>> place("idle_frac", "KERNELS, COPIES; timeline.breakdown", stored()).notebook
    '3_system'
    """
    tables, analysis, *_ = sources.source(source)
    return next(
        (cell for name in (figure, analysis, *tables) for cell in among if name in cell.shows), None
    )


def href(cell: Cell) -> str:
    """Return the link that JupyterLab follows from a notebook to a cell of another notebook."""
    return f"{cell.notebook}.ipynb#cell-id={cell.id}"


def figure(known: Figure, *, text: str = "") -> Shown:
    """Return a figure's text, or another, as a link to the cell that shows it; plain where none does."""
    cell, told = place(known.id, known.source, stored()), printable(text or known.marked, LONGEST)
    if cell is None:
        return Shown(escape(told), told)
    names = (f'data-{name}="{escape(getattr(known, name))}"' for name in ("id", "source", "label"))
    html = f'<a class="perfkit-figure" {" ".join(names)} href="{href(cell)}" style="{QUIET}">{escape(told)}</a>'
    return Shown(html, told)


class _Marks(HTMLParser):
    """Finds figures and tables in HTML, and what goes in the place of their tags; all else stays as it is."""

    def __init__(self, html: str, target: Target, file: File) -> None:
        super().__init__(convert_charrefs=False)
        self._target, self._file = target, file
        self._html = html
        self._lines = [0, *accumulate(len(line) + 1 for line in html.split("\n"))]
        self._end: str | None = None  # what ends the mark that is open
        self.edits: list[tuple[int, int, str]] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the beginning of a mark."""
        given = {name: value or "" for name, value in attrs}
        match given:
            case {
                "class": "perfkit-figure",
                "data-id": id,
                "data-source": source,
                "data-label": label,
            }:
                attributes = self._target(Known(id, source, label))
                opening = f'<a class="{FIGURE}" {attributes}>' if attributes else ""
            case {"class": "perfkit-data", "data-table": table}:
                path = self._file(table)
                opening = f'<a class="{DATA}" href="{escape(path)}">' if path else ""
            case _:
                return
        self._edit(self.get_starttag_text() or "", opening)
        self._end = "</a>" if opening else ""

    def handle_endtag(self, tag: str) -> None:
        """Note the end of a mark, which holds nothing but text."""
        if self._end is not None:
            self._edit(f"</{tag}>", self._end)
            self._end = None

    def _edit(self, before: str, after: str) -> None:
        line, column = self.getpos()
        begin = self._lines[line - 1] + column
        self.edits.append((begin, begin + len(before), after))


def resolved(html: str, target: Target, file: File) -> str:
    """Return HTML in which figures and tables are links that lead somewhere, or plain text.

    `target` gives the attributes of the link to a figure, `file` the path of a table's file; empty for none.

    >>> shown = figure(Figure("idle_frac", "GPU idle", 0.05, "1", "", "timeline.breakdown")).html
    >>> resolved(shown, lambda known: f'href="#{known.id}"', lambda name: "")
    '<a class="perfkit-figure" href="#idle_frac">5.0 %</a>'
    """
    if FIGURE not in html and DATA not in html:
        return html  # most HTML is a long table without them
    parts, at = [], 0
    for begin, end, after in _Marks(html, target, file).edits:
        parts += [html[at:begin], after]
        at = end
    return "".join([*parts, html[at:]])


def beside(notebook: NotebookNode, report: Report) -> NotebookNode:
    """Return an executed notebook whose links lead to the other notebooks, and to the tables of the report."""

    def target(known: Known) -> str:
        cell = report.cell(known.id, known.source)
        return f'href="{href(cell)}"' if cell else ""

    def file(table: str) -> str:
        return f"../{path}" if (path := report.file(table)) else ""

    return _mapped(notebook, lambda html, _: resolved(html, target, file))


def pages(
    notebooks: Mapping[str, NotebookNode],
    report: Report,
    figures: Iterable[tuple[str, str]] = (),
    *,
    is_one: bool = False,
) -> dict[str, NotebookNode]:
    """Return copies of notebooks as pages of a report: links lead to cells and back, and to files.

    `notebooks` are by name, the summary first; `figures` the id and source of further figures that lead there.
    `is_one`: the pages are one document for paper, whose links stay in it.
    """
    trail = _Trail(report, is_one)
    made = {name: _mapped(notebook, trail.of(name)) for name, notebook in notebooks.items()}
    for id, source in figures:
        trail.led_to(Known(id, source, ""))
    landings = {(cell.notebook, cell.id): trail.landing(cell) for cell in trail.led}
    for name, notebook in made.items():
        for cell in notebook.cells:
            if (name, cell.get("id")) in landings:
                cell.metadata["landing"] = landings[name, cell.get("id")]
    return made


def _mapped(notebook: NotebookNode, change: Callable[[str, str], str]) -> NotebookNode:
    """Return a copy of a notebook in which the HTML of outputs is what `change` makes of it and of the cell's id."""
    cells = [NotebookNode(cell, metadata=NotebookNode(cell.metadata)) for cell in notebook.cells]
    for cell in (cell for cell in cells if cell.get("outputs")):
        cell["outputs"] = [NotebookNode(one) for one in cell.outputs]
        for output in (one for one in cell.outputs if "text/html" in one.get("data", {})):
            html = change("".join(output.data["text/html"]), str(cell.get("id")))
            output["data"] = NotebookNode({**output.data, "text/html": html})
    return NotebookNode(notebook, cells=cells)


COMPARE = "6_compare", "Change one thing, record again, and compare the two runs."


def _goes_on(finding: Finding, here: str) -> Notebook:
    """Return the first notebook that goes on where a finding leaves off and is not `here`."""
    rule = rules().get(finding.rule)
    own = [rule.notebook] if rule and rule.notebook else []
    return next(each for each in (*own, *FURTHER) if each.name != here)


def next_steps(findings: Iterable[Finding], view: Selection, here: str) -> Shown:
    """Return links to the notebooks that go on where the findings leave off, at most two, and to the comparison.

    A finding leads to the notebook of its rule, or to a further one where that is `here`, the present one. A notebook
    that this run cannot answer says so.
    """
    able = notebooks.answering(view.run)
    steps: dict[str, str] = {}
    for each in findings:
        goes_on = _goes_on(each, here)
        steps.setdefault(
            goes_on.name, f"{goes_on.why} Finding: {printable(each.title, 200).removesuffix('.')}."
        )
    steps = dict([*steps.items()][:2]) | dict([COMPARE] if here != COMPARE[0] else [])
    lacking = {
        name: "" if name in able or name == COMPARE[0] else " Another recording is needed."
        for name in steps
    }
    items = "".join(
        f'<li><a href="{name}.ipynb">{name}</a>: {escape(why + lacking[name])}</li>'
        for name, why in steps.items()
    )
    text = "\n".join(f"{name}: {why}{lacking[name]}" for name, why in steps.items())
    return Shown(
        f"<ul>{items}</ul>" if steps else "<p>No finding leads to another notebook.</p>", text
    )
