"""What lies behind a figure: the tables it was made of, and the cells of the notebooks that show it, as links.

A figure's source names tables and the analysis that worked it out, such as ``KERNELS, COPIES; timeline.busy``; an
analysis alone rests on the tables given in SHOWN. ``framework/KERNELS`` is a table of the framework's profiler,
``baseline/KERNELS`` one of the earlier run. A cell shows a figure that its code names, else one whose analysis it calls
(`behind`).

A notebook shows a figure as a link to the notebook beside it, which JupyterLab follows, and marks the names of tables.
`resolved` turns both into links of the page, or into plain text where they would lead nowhere. All that comes from
outside is escaped before: a name from a profile cannot pass for one of these marks.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from html import escape, unescape
from typing import NamedTuple

import nbformat
from nbformat import NotebookNode

from perfkit.diagnosis.finding import Figure
from perfkit.format import Shown, printable
from perfkit.report import notebooks
from perfkit.report.notebooks import LIVE
from perfkit.tables import TABLES

WORD = re.compile(r"[A-Za-z_]+(?:\.[a-z_]+)?")
REMARK = re.compile(r"\([^)]*\)")


class Behind(NamedTuple):
    """Names of tables, and pieces of the code of cells that show the figure, the most telling first."""

    tables: tuple[str, ...]
    code: tuple[str, ...]


TIMELINE = ("KERNELS", "COPIES")
CALLS = (*TIMELINE, "API_CALLS", "RANGES")
TREE = ("CALLTREE", "CALL_METRICS")
TRACED = ("framework/OPS", "framework/KERNELS", "framework/API_CALLS")
BOTH = ("KERNELS", "baseline/KERNELS")
# By the id of a figure, an analysis or a table; the first of these that is here holds.
SHOWN: dict[str, Behind] = {
    "dram_used_frac": Behind(("SAMPLES",), ("diagnosis.sampled(",)),
    "paths_launch_low_frac": Behind(TREE, ("kernels.launch_efficiency(",)),
    "paths_launch_high_frac": Behind(TREE, ("kernels.launch_efficiency(",)),
    "timeline.busy": Behind(TIMELINE, ("timeline.busy(",)),
    "timeline.breakdown": Behind(TIMELINE, ("shares.parts(",)),
    "timeline.samples_mean": Behind(("SAMPLES",), ("diagnosis.sampled(", "monitoring.summary(")),
    "memory.copied": Behind(("COPIES",), ("views.transfers(",)),
    "communication.overlap": Behind(("KERNELS",), ("communication.overlap(",)),
    "communication.plateau": Behind(("COLLECTIVES",), ("views.collectives(",)),
    "communication.summary": Behind(("framework/COLLECTIVES",), ("views.ranks(", "views.collectives(")),
    "communication.imbalance": Behind(("framework/COLLECTIVES",), ("views.ranks(",)),
    "gaps.idle_gaps": Behind(CALLS, ("views.gaps(",)),
    "checkpoints.detect": Behind((*TIMELINE, "RANGES", "OS_CALLS"), ("views.gaps(",)),
    "steps.detect": Behind(("RANGES", "KERNELS"), ("steps.detect(",)),
    "calltree.gpu_summary": Behind(TREE, ("shares.gpu_time(",)),
    "calltree.utilisation": Behind(("TRACE",), ("shares.host_and_gpu(",)),
    "calltree.hot_path": Behind(TREE, ("views.call_paths(",)),
    "dossier.covered": Behind(("KERNELS", "LAUNCHES"), ("dossier.kernels(",)),
    "roofline.points": Behind(("LAUNCHES",), ("views.roofline(",)),
    "roofline.bound": Behind(("LAUNCHES",), ("views.roofline(",)),
    "warps.stall_shares": Behind(("STALLS", "LAUNCHES"), ("warps.stall_shares(",)),
    "flops.coverage": Behind(TRACED, ("flops.roofline(",)),
    "flops.mfu": Behind(TRACED, ("flops.roofline(",)),
    "flops.roofline": Behind(TRACED, ("flops.roofline(",)),
    "host.input_wait": Behind(("framework/RANGES",), ("operators.steps(",)),
    "memory.peak": Behind(("framework/SAMPLES",), ("views.memory(",)),
    "memory.fragmentation": Behind(("framework/SAMPLES",), ("views.memory(",)),
    "operators.kernels_of": Behind(TRACED, ("views.operators(",)),
    "operators.many_small": Behind(TRACED, ("operators.many_small(",)),
    "operators.synchronisations": Behind(CALLS, ("operators.synchronisations(", "host.synchronisations(")),
    "kernels.precision": Behind(TRACED, ("kernels.precision(",)),
    "kernels.mixed": Behind(TRACED, ("kernels.precision(",)),
    "monitoring.at_limit": Behind(("SAMPLES", "DEVICES"), ("monitoring.at_limit(",)),
    "monitoring.checks": Behind(("SAMPLES",), ("views.monitor(",)),
    "monitoring.idle": Behind(("SAMPLES",), ("monitoring.utilisation(",)),
    "monitoring.throttling": Behind(("SAMPLES",), ("monitoring.throttling(",)),
    "monitoring.utilisation": Behind(("SAMPLES",), ("monitoring.utilisation(",)),
    "llm_operations.ceilings": Behind(("DEVICES",), ("views.machine(",)),
    "efficiency.reported_mfu": Behind(("SAMPLES",), ("views.training(",)),
    "compare.steps": Behind(("RANGES", "baseline/RANGES", *BOTH), ('part="steps"',)),
    "compare.parts": Behind(("RANGES", "baseline/RANGES", *BOTH, "COPIES", "baseline/COPIES"), ('part="steps"',)),
    "compare.families": Behind(BOTH, ('part="families"',)),
    "compare.kernels": Behind(BOTH, ('part="kernels"',)),
    "compare.launches": Behind(("LAUNCHES", "baseline/LAUNCHES"), ('part="launches"',)),
    "compare.figures": Behind((), ('part="figures"',)),
    "KERNELS": Behind(("KERNELS",), ("views.kernels(",)),
    "LAUNCHES": Behind(("LAUNCHES",), ("warps.occupancy(",)),
    "OPS": Behind(("framework/OPS",), ("views.operators(",)),
    "STALLS": Behind(("STALLS",), ("calltree.kernel_stalls(",)),
    "TRACE": Behind(("TRACE",), ("calltree.threads(",)),
    "SAMPLES": Behind(("SAMPLES",), ("views.training(",)),
}


def behind(figure: str, source: str) -> Behind:
    """Return the tables that a figure of this id and source rests on, and the code of the cells that show it.

    >>> behind("step_count", "steps.detect (nvtx)").tables
    ('RANGES', 'KERNELS')
    """
    words = WORD.findall(REMARK.sub("", source))
    named = [word for word in words if word in TABLES]
    known = [SHOWN[word] for word in (figure, *(word for word in words if "." in word), *named) if word in SHOWN]
    implied = [] if named and ";" in source else [table for one in known for table in one.tables]
    code = (piece for one in known for piece in one.code)
    return Behind(tuple(dict.fromkeys([*named, *implied])), tuple(dict.fromkeys(code)))


SUMMARY = "0_executive_summary"
FIGURES = "figure_table("


class Cell(NamedTuple):
    """A cell of code: the name of its notebook, its id and its code."""

    notebook: str
    id: str
    code: str

    @property
    def anchor(self) -> str:
        """The cell's name on the report's page."""
        return f"{self.notebook}-{self.id}"


QUIET = "color:inherit;text-decoration:underline dotted;text-underline-offset:.2em;white-space:nowrap"
LONGEST = 200  # characters of a text or a source
_FIGURE = re.compile(
    r'<a class="perfkit-figure" data-id="([^"]*)" data-source="([^"]*)" data-label="([^"]*)" href[^>]*>([^<]*)</a>'
)
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
    names, words = behind(known.id, known.source).tables, known.source.rpartition(";")[2].split(",")
    analysis = printable(", ".join(word.strip() for word in words if word.strip() not in TABLES), LONGEST)
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

    def files(self, figure: str, source: str) -> dict[str, str]:
        """Return the tables behind a figure and their paths, as `file`."""
        return {table: path for table in behind(figure, source).tables if (path := self.file(table))}

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
                return f'{own}href="#{cell}"' if cell and cell != f"{notebook}-{at}" else ""

            return resolved(html, target, self.report.file)

        return linked

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
        figures = self.led[anchor].values()
        back = [f'<a href="#{led.anchor}">{escape(led.known.label)}</a>' for led in figures if led.anchor]
        more = f" and {len(back) - MOST} more" if len(back) > MOST else ""
        files = {table: path for led in figures for table, path in led.files.items()}
        data = [f'<a class="perfkit-data" href="{escape(path)}">{called(name)}</a>' for name, path in files.items()]
        parts = [f"↑ In the summary: {', '.join(back[:MOST])}{more}"] if back else []
        return " · ".join([*parts, *([f"Data: {', '.join(data)}"] if data else [])])


def cells(found: Iterable[tuple[str, nbformat.NotebookNode]]) -> list[Cell]:
    """Return the cells of code of step notebooks, given with their names, that are not for the explorer."""
    return [
        Cell(name, cell.id, cell.source)
        for name, notebook in found
        for cell in notebook.cells
        if name != SUMMARY and cell.cell_type == "code" and LIVE not in cell.metadata.get("tags", [])
    ]


@cache
def stored() -> tuple[Cell, ...]:
    """Return the cells of the notebooks as they are stored; copies for a person keep their ids."""
    paths = ((name, notebooks.folder() / f"{name}.ipynb") for name in notebooks.NOTEBOOKS)
    return tuple(cells((name, nbformat.read(path, as_version=4)) for name, path in paths if path.is_file()))


def presented(executed: Mapping[str, nbformat.NotebookNode], kept: Mapping[str, nbformat.NotebookNode]) -> list[Cell]:
    """Return the cells of executed notebooks that are kept for the page, with their own code."""
    ids = {(name, cell.id) for name, notebook in kept.items() for cell in notebook.cells}
    return [cell for cell in cells(executed.items()) if (cell.notebook, cell.id) in ids]


def place(figure: str, source: str, among: Sequence[Cell]) -> Cell | None:
    """Return the cell that shows a figure of this id and source, or None where no cell does.

    >>> place("idle_frac", "KERNELS, COPIES; timeline.breakdown", stored()).notebook
    '3_system'
    """
    named = (cell for cell in among if FIGURES in cell.code and f'"{figure}"' in cell.code)
    calling = (cell for piece in behind(figure, source).code for cell in among if piece in cell.code)
    return next(named, None) or next(calling, None)


def href(cell: Cell) -> str:
    """Return the link that JupyterLab follows from a notebook to a cell of one beside it."""
    return f"{cell.notebook}.ipynb#cell-id={cell.id}"


def figure(known: Figure, *, text: str = "") -> Shown:
    """Return a figure's text, or another, as a link to the cell that shows it; plain where none does."""
    cell, told = place(known.id, known.source, stored()), printable(text or known.marked, LONGEST)
    if cell is None:
        return Shown(escape(told), told)
    names = (f'data-{name}="{escape(getattr(known, name))}"' for name in ("id", "source", "label"))
    html = f'<a class="perfkit-figure" {" ".join(names)} href="{href(cell)}" style="{QUIET}">{escape(told)}</a>'
    return Shown(html, told)


def without_files(html: str) -> str:
    """Return a page in which tables are named, and no longer links to their files."""
    return _FILE.sub(r"\1", html)


def resolved(html: str, target: Target, file: File) -> str:
    """Return HTML in which figures and tables are links that lead somewhere, or plain text.

    `target` gives the attributes of the link to a figure, `file` the path of a table's file; empty for none.

    >>> shown = figure(Figure("idle_frac", "GPU idle", 0.05, "1", "", "KERNELS; timeline.breakdown")).html
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
    """Return copies of notebooks as parts of one page: links lead to its cells and back, and to files.

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
    made: NotebookNode = nbformat.from_dict(notebook)
    for cell in made.cells:
        for data in (output.get("data", {}) for output in cell.get("outputs", [])):
            if "text/html" in data:
                data["text/html"] = change("".join(data["text/html"]), str(cell.get("id")))
    return made
