"""The links of a report: from each number to the cell that shows it and the tables behind it, and back.

Conventions
-----------
Every number of the summary leads to a cell of a step's notebook. Under such a cell stand the numbers that lead there,
which are links back, and the tables that they rest on, which are links to their files. On the page a cell is an anchor;
an executed notebook leads to the file of another.

Functions
---------
page     notebooks as parts of one page, with their links
beside   a notebook in a folder with the others, with its links
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

import nbformat
from nbformat import NotebookNode

from perfkit.report.behind import behind
from perfkit.report.links import Known, called, resolved
from perfkit.report.places import SUMMARY, Cell, href, place

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

    def files(self, figure: str, source: str) -> dict[str, str]:
        """Return the tables behind a figure and their paths, as `file`."""
        found = {table: self.file(table) for table in behind(figure, source).tables}
        return {table: path for table, path in found.items() if path}

    def file(self, table: str) -> str:
        """Return the path of a table from the folder of the report; empty where it has no file of it.

        What no other tool recorded too lies among the run's own tables, not in a folder of the framework's.
        """
        own = table.removeprefix("framework/")
        found = next((name for name in (table, own) if name in self.tables), "")
        return f"{FOLDER}/{found.lower()}.parquet" if found else ""


def beside(notebook: NotebookNode, report: Report) -> NotebookNode:
    """Return an executed notebook whose links lead to the notebooks beside it, and to the tables of the report."""

    def target(known: Known) -> str:
        cell = report.cell(known.id, known.source)
        return f'href="{href(cell)}"' if cell else ""

    def file(table: str) -> str:
        return f"../{path}" if (path := report.file(table)) else ""

    return _mapped(notebook, lambda html, _: resolved(html, target, file))


def page(
    notebooks: Mapping[str, NotebookNode], report: Report, figures: Iterable[tuple[str, str]] = ()
) -> dict[str, NotebookNode]:
    """Return notebooks, given by their names, as parts of one page: links lead to its cells and back, and to files.

    Parameters
    ----------
    notebooks
        As `record.presentable` returns them, the summary first.
    report
        The cells and tables that there are.
    figures
        Id and source of further figures that lead there, such as those of the summary in other forms.

    Returns
    -------
    dict
        Copies; cells that numbers lead to have ``landing`` in their metadata: ``anchor``, and ``html`` for below them.
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
        """Return what resolves the HTML of a notebook's cells."""

        def linked(html: str, cell: str) -> str:
            def target(known: Known) -> str:
                return self._target(known, f"{notebook}-{cell}", is_summary=notebook == SUMMARY)

            return resolved(html, target, self.report.file)

        return linked

    def _target(self, known: Known, at: str, *, is_summary: bool) -> str:
        """Return the attributes of a figure's link; the first of a figure in the summary can be led back to."""
        cell, anchor = self.led_to(known, is_summary=is_summary)
        own = f'id="{anchor}" ' if anchor else ""
        return f'{own}href="#{cell}"' if cell and cell != at else ""

    def led_to(self, known: Known, *, is_summary: bool = False) -> tuple[str, str]:
        """Note that a figure leads to its cell, and return the anchor of that, and its own, empty for none."""
        cell = self.report.cell(known.id, known.source)
        if cell is None:
            return "", ""
        there = self.led.setdefault(cell.anchor, {})
        if known.id in there:
            return cell.anchor, ""
        anchor = f"figure-{sum(map(len, self.led.values()))}" if is_summary else ""
        there[known.id] = _Led(anchor, known, self.report.files(known.id, known.source))
        return cell.anchor, anchor

    def back(self, anchor: str) -> str:
        """Return the line under a cell: the summary's numbers that lead there, and the tables behind them."""
        found = self.led[anchor].values()
        back = [f'<a href="#{led.anchor}">{escape(led.known.label)}</a>' for led in found if led.anchor]
        more = f" and {len(back) - MOST} more" if len(back) > MOST else ""
        files = {table: path for led in found for table, path in led.files.items()}
        data = [f'<a class="perfkit-data" href="{escape(path)}">{called(name)}</a>' for name, path in files.items()]
        said = [f"↑ In the summary: {', '.join(back[:MOST])}{more}"] if back else []
        return " · ".join([*said, *([f"Data: {', '.join(data)}"] if data else [])])


def _mapped(notebook: NotebookNode, change: Callable[[str, str], str]) -> NotebookNode:
    """Return a copy of a notebook in which the HTML of outputs is what `change` makes of it and of the cell's id."""
    made: NotebookNode = nbformat.from_dict(notebook)
    for cell, output in _outputs(made):
        if "text/html" in output.get("data", {}):
            html = output["data"]["text/html"]
            output["data"]["text/html"] = change("".join(html), str(cell.get("id")))
    return made


def _outputs(notebook: NotebookNode) -> Iterator[tuple[NotebookNode, NotebookNode]]:
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            yield cell, output
