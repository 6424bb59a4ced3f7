"""What lies behind a figure: the tables it was made of, and the cells of the notebooks that show it, as links.

A figure has its tables and its analysis (`perfkit.diagnosis.sources.SOURCES`). A cell's metadata names the figures,
analyses and tables it shows: ``"perfkit": {"shows": ["idle_frac", "timeline.breakdown"]}``. A figure leads to the first
cell that names it, else its analysis, else one of its tables.

A notebook shows a figure as a link to the notebook beside it, which JupyterLab follows, and marks the names of tables.
`resolved` turns both into links of the page, or into plain text where they would lead nowhere. All that comes from
outside is escaped before: a name from a profile cannot pass for one of these marks.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape, unescape
from typing import NamedTuple

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
    """A cell of code: the name of its notebook, its id, and the figures, analyses and tables that it shows."""

    notebook: str
    id: str
    shows: frozenset[str]
    listed: tuple[str, ...] = ()  # the same in their order

    @property
    def anchor(self) -> str:
        """The cell's name on its page of the report."""
        return f"{self.notebook}-{self.id}"

    @property
    def href(self) -> str:
        """The link to the cell from any page of the report."""
        return f"{address(self.notebook)}#{self.anchor}"


def address(notebook: str) -> str:
    """Return the file that shows a notebook in a report."""
    return "index.html" if notebook == SUMMARY else f"{notebook}.html"


QUIET = "color:inherit;text-decoration:underline dotted;text-underline-offset:.2em;white-space:nowrap"
LONGEST = 200  # characters of a text or a source
_FIGURE = re.compile(
    r'<a class="perfkit-figure" data-id="([^"]*)" data-source="([^"]*)" data-label="([^"]*)" href[^>]*>([^<]*)</a>'
)
_PAGE = re.compile(r'(?<=<a class="perfkit-figure" )((?:id="[\w-]+" )?)href="\w+\.html#|(?<=<a )()href="index\.html#')
_FILE = re.compile(r'<a class="perfkit-data" href="[^"]*">([^<]*)</a>')
_TABLE = re.compile(r'<span class="perfkit-data" data-table="([\w/]+)">([^<]*)</span>')
File = Callable[[str], str]


class Known(NamedTuple):
    """What a link knows of its figure: its id, source, label, and the text that is the link."""

    id: str
    source: str
    label: str
    text: str


Target = Callable[[Known], str]


def tables(known: Figure) -> Shown:
    """Return a figure's source, the tables it rests on first and marked, then the analysis."""
    names = known.tables
    analysis = printable(known.source.removeprefix(f"{', '.join(names)}; ") if known.analysis else "", LONGEST)
    marked = ", ".join(f'<span class="perfkit-data" data-table="{name}">{called(name)}</span>' for name in names)
    both = (marked, escape(analysis)), (", ".join(map(called, names)), analysis)
    return Shown(*("; ".join(filter(None, pair)) for pair in both))


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
        return {table: path for table in sources.source(source).tables if (path := self.file(table))}

    def file(self, table: str) -> str:
        """Return the path of a table in the report's folder, the run's own where no other tool made it; or empty."""
        found = next((name for name in (table, table.removeprefix("framework/")) if name in self.tables), "")
        return f"{FOLDER}/{found.lower()}.parquet" if found else ""


@dataclass
class _Led:
    """A number that leads to a cell: its own anchor in the summary, empty elsewhere, what it is, and its tables."""

    anchor: str
    known: Known
    files: dict[str, str]


@dataclass
class _Trail:
    """What leads where on a page; `led` holds by the anchor of a cell the figures that lead there."""

    report: Report
    led: dict[str, dict[str, _Led]] = field(default_factory=dict)

    def of(self, notebook: str) -> Callable[[str, str], str]:
        """Return what resolves the HTML of a notebook's cells; a figure of the summary can be led back to."""

        def linked(html: str, at: str) -> str:
            def target(figure: Known) -> str:
                cell, anchor = self.led_to(figure, is_summary=notebook == SUMMARY)
                own = f'id="{anchor}" ' if anchor else ""
                return f'{own}href="{cell.href}"' if cell and cell.anchor != f"{notebook}-{at}" else ""

            return resolved(html, target, self.report.file)

        return linked

    def led_to(self, known: Known, *, is_summary: bool = False) -> tuple[Cell | None, str]:
        """Note that a figure leads to its cell, and return that and the figure's own anchor, empty for none."""
        cell = self.report.cell(known.id, known.source)
        if cell is None:
            return None, ""
        there = self.led.setdefault(cell.anchor, {})
        if known.id in there:
            return cell, ""
        anchor = f"figure-{sum(map(len, self.led.values()))}" if is_summary else ""
        there[known.id] = _Led(anchor, known, self.report.files(known.source))
        return cell, anchor

    def back(self, anchor: str) -> str:
        """Return the line under a cell: the summary's numbers that lead there, and the tables behind them."""
        figures = self.led[anchor].values()
        labels = {led.known.label: led.anchor for led in figures if led.anchor}
        back = [f'<a href="index.html#{anchor}">{escape(label)}</a>' for label, anchor in labels.items()]
        files = {path: table for led in figures for table, path in led.files.items()}  # a file may have two names
        data = [f'<a class="perfkit-data" href="{escape(path)}">{called(name)}</a>' for path, name in files.items()]
        parts = [f"↑ In the summary: {several(back, MOST)}"] if back else []
        return " · ".join([*parts, *([f"Data: {', '.join(data)}"] if data else [])])


def cells(found: Iterable[tuple[str, nbformat.NotebookNode]]) -> list[Cell]:
    """Return the cells of code of step notebooks, given with their names, that are not for the explorer."""
    return [
        Cell(name, cell.id, frozenset(shows := tuple(cell.metadata.get("perfkit", {}).get("shows", ()))), shows)
        for name, notebook in found
        for cell in notebook.cells
        if name != SUMMARY and cell.cell_type == "code" and LIVE not in cell.metadata.get("tags", [])
    ]


@cache
def stored() -> tuple[Cell, ...]:
    """Return the cells of the notebooks as they are stored; copies for a person keep their ids."""
    there = (name for name in notebooks.NOTEBOOKS if (notebooks.folder() / f"{name}.ipynb").is_file())
    return tuple(cells((name, notebooks.stored(name)) for name in there))


def presented(executed: Mapping[str, nbformat.NotebookNode], kept: Mapping[str, nbformat.NotebookNode]) -> list[Cell]:
    """Return the cells of executed notebooks that are kept for the page."""
    ids = {(name, cell.id) for name, notebook in kept.items() for cell in notebook.cells}
    return [cell for cell in cells(executed.items()) if (cell.notebook, cell.id) in ids]


def place(figure: str, source: str, among: Sequence[Cell]) -> Cell | None:
    """Return the cell that shows a figure of this id and source, or None where no cell does.

    >>> place("idle_frac", "KERNELS, COPIES; timeline.breakdown", stored()).notebook
    '3_system'
    """
    tables, analysis, _ = sources.source(source)
    return next((cell for name in (figure, analysis, *tables) for cell in among if name in cell.shows), None)


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


def to_print(html: str) -> str:
    """Return pages in one document: links stay within it, and tables are named, no longer links to their files."""
    return _PAGE.sub(lambda found: f'{found[1] or ""}href="#', _FILE.sub(r"\1", html))


def resolved(html: str, target: Target, file: File) -> str:
    """Return HTML in which figures and tables are links that lead somewhere, or plain text.

    `target` gives the attributes of the link to a figure, `file` the path of a table's file; empty for none.

    >>> shown = figure(Figure("idle_frac", "GPU idle", 0.05, "1", "", "timeline.breakdown")).html
    >>> resolved(shown, lambda known: f'href="#{known.id}"', lambda name: "")
    '<a class="perfkit-figure" href="#idle_frac">5.0 %</a>'
    """

    def link(found: re.Match[str]) -> str:
        attributes = target(Known(*map(unescape, found.groups())))
        return f'<a class="perfkit-figure" {attributes}>{found[4]}</a>' if attributes else found[4]

    def data(found: re.Match[str]) -> str:
        path = file(found[1])
        return f'<a class="perfkit-data" href="{escape(path)}">{found[2]}</a>' if path else found[2]

    return _TABLE.sub(data, _FIGURE.sub(link, html))


def beside(notebook: NotebookNode, report: Report) -> NotebookNode:
    """Return an executed notebook whose links lead to the other notebooks, and to the tables of the report."""

    def target(known: Known) -> str:
        cell = report.cell(known.id, known.source)
        return f'href="{href(cell)}"' if cell else ""

    def file(table: str) -> str:
        return f"../{path}" if (path := report.file(table)) else ""

    return _mapped(notebook, lambda html, _: resolved(html, target, file))


def pages(
    notebooks: Mapping[str, NotebookNode], report: Report, figures: Iterable[tuple[str, str]] = ()
) -> dict[str, NotebookNode]:
    """Return copies of notebooks as pages of a report: links lead to cells and back, and to files.

    `notebooks` are by name, the summary first; `figures` the id and source of further figures that lead there.
    """
    trail = _Trail(report)
    made = {name: _mapped(notebook, trail.of(name)) for name, notebook in notebooks.items()}
    for id, source in figures:
        trail.led_to(Known(id, source, "", ""))
    for name, notebook in made.items():
        for cell in notebook.cells:
            anchor = f"{name}-{cell.get('id')}"
            if anchor in trail.led:
                cell.metadata["landing"] = {"anchor": anchor, "html": trail.back(anchor)}
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
        steps.setdefault(goes_on.name, f"{goes_on.why} Finding: {printable(each.title, 200).removesuffix('.')}.")
    steps = dict([*steps.items()][:2]) | dict([COMPARE] if here != COMPARE[0] else [])
    lacking = {name: "" if name in able or name == COMPARE[0] else " Another recording is needed." for name in steps}
    items = "".join(
        f'<li><a href="{name}.ipynb">{name}</a>: {escape(why + lacking[name])}</li>' for name, why in steps.items()
    )
    text = "\n".join(f"{name}: {why}{lacking[name]}" for name, why in steps.items())
    return Shown(f"<ul>{items}</ul>" if steps else "<p>No finding leads to another notebook.</p>", text)
