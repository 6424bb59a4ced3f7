"""What a kernel does for a report besides the notebooks: it opens the run, and writes tables and pages.

The run is loaded there alone, once. `perfkit.report.making` asks for these functions by their names
(`perfkit.report.asking`), so what they take and return is JSON.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import nbformat
import pyarrow as pa
import pyarrow.parquet as pq

from perfkit.analysis.ranks import to_open
from perfkit.diagnosis import recording
from perfkit.diagnosis.finding import finite
from perfkit.diagnosis.headline import AFTER_A_FAILURE, FAILED, nothing_found
from perfkit.format import CODE, EMPTY, printable
from perfkit.hardware import load_peaks
from perfkit.report import earlier as earlier_runs
from perfkit.report import html as report_html
from perfkit.report import links, notebooks, paper
from perfkit.report.blocks import WEEKS, by_command
from perfkit.report.comparison import published as published_figures
from perfkit.report.first_page import CHECK, LISTS, steps_left
from perfkit.report.html import Lead
from perfkit.report.links import Report, presented
from perfkit.report.machine import Machine, named
from perfkit.report.notebooks import LIVE, MIME, NEEDS, Failure
from perfkit.report.output import TEXT
from perfkit.report.printing import PRINTED
from perfkit.run import Run, share
from perfkit.selection import Selection, select
from perfkit.tables import TABLES

if TYPE_CHECKING:
    from jinja2 import Template

SCHEMA = 1  # of summary.json, which summary.schema.json describes: goes up when a key goes, or means something else
ALL = "all"  # pages are printed, not only the first one
INPUTS = ("profile", "baseline", "peaks", "published")  # parameters that are paths
SIMULATED = ", simulated, not measured"  # what each page of such a run says
NUMBERED = re.compile(r"\A## \d+\. ")  # the heading of a section


@dataclass
class Recorded:
    """What the notebooks of a report recorded; of two with one id or title the first is kept."""

    figures: dict[str, dict[str, Any]] = field(default_factory=dict)
    findings: list[dict[str, Any]] = field(default_factory=list)
    refusals: list[dict[str, Any]] = field(default_factory=list)
    summary: dict[str, Any] = field(default_factory=dict)


@dataclass
class Block:
    """Prose of a notebook, and the cells below it that show something; whether there are others."""

    prose: list[nbformat.NotebookNode] = field(default_factory=list)
    shown: list[nbformat.NotebookNode] = field(default_factory=list)
    introduces: bool = False

    @property
    def heading(self) -> str:
        """The heading of a section with which the prose begins; empty without one."""
        first = self.prose[0].source.partition("\n")[0] if self.prose else ""
        return first if first.startswith(("# ", "## ")) else ""

    @property
    def is_about_nothing(self) -> bool:
        """Whether cells follow the prose and none of them shows anything."""
        return self.introduces and not self.shown and not self.heading.startswith("# ")


def opened(parameters: dict[str, Any]) -> dict[str, Any]:
    """Load the run, and the earlier one, for all that follows in this process, and tell what they are.

    `parameters`: those of the notebooks. Of a large run they get the `ranks` that are returned,
    with a sentence on it in `notes`. `names` are the notebooks that answer the run, `paths` its
    files, `nodes` where it was recorded.
    PerfkitError if the input cannot be read or the choice does not fit it.
    """
    run = share(parameters["profile"], job=parameters["job"])
    notes = []
    if not parameters["ranks"] and run.is_large:
        ranks = to_open(run.reduced.by_device())
        count = run.reduced.by_device()["rank"].nunique()
        notes.append(f"{count:,} ranks are too many to open: the report looks at {tuple(ranks)}.")
        parameters = {**parameters, "ranks": [int(rank) for rank in ranks]}
    view, earlier = _runs(parameters)
    if parameters["peaks"]:
        load_peaks(parameters["peaks"])
    if parameters["published"]:
        published_figures(Path(parameters["published"]))
    profiles = [*view.run.profiles, *(earlier.profiles if earlier else ())]
    return {
        "notes": notes,
        "ranks": parameters["ranks"],
        "names": notebooks.answering(view.run, earlier),
        "is_simulated": view.run.is_simulated,
        "paths": [str(profile.path) for profile in profiles],
        "nodes": sorted({profile.node for profile in profiles if profile.node}),
    }


def _runs(parameters: Mapping[str, Any]) -> tuple[Selection, Run | None]:
    """Return the part of a run that a report looks at, and the earlier run; each is loaded once."""
    run = share(parameters["profile"], job=parameters["job"])
    choice = {name: parameters[name] for name in earlier_runs.CHOICE}
    earlier = parameters["baseline"]
    return select(run, **choice), share(earlier, job={}) if earlier else None


def write_tables(
    parameters: dict[str, Any], folder: str, machine: dict[str, Any] | None
) -> list[str]:
    """Write the tables that figures rest on, and return their names; all as for `write_pages`."""
    view, earlier = _runs(parameters)
    return _write_tables(view, earlier, Path(folder, links.FOLDER), _machine(machine))


def _machine(given: dict[str, Any] | None) -> Machine:
    """Return what takes the names of this machine out of what is written."""
    return named(Path(given["report"]), given["own"], given["nodes"]) if given else Machine({})


def write_pages(
    parameters: dict[str, Any],
    folder: str,
    machine: dict[str, Any] | None,
    *,
    executed: dict[str, Any],
    failures: dict[str, Any],
    tables: list[str],
    pdf: str,
) -> None:
    """Write pages, summaries and notebooks to the folder of a report.

    `executed`: the notebooks of the report in their order, those of `failures` as they were stored.
    `failures`: what `perfkit.report.notebooks.Failure` holds. `machine`: what
    `perfkit.report.machine.named` takes; None leaves the names of this machine in the report.
    """
    view, earlier = _runs(parameters)
    this, made = _machine(machine), Path(folder)
    told = {name: Failure(**each).cleaned(this.text) for name, each in failures.items()}
    read = {name: nbformat.from_dict(each) for name, each in executed.items()}
    broken = {name: failed(read[name], each) for name, each in told.items()}
    inputs = [name for name in INPUTS if parameters[name]]
    whole = {name: this.notebook(n, inputs) for name, n in read.items() if name not in told}
    kept = {name: presentable(n, _told(name, view.run, earlier)) for name, n in whole.items()}
    linked = links.Report(presented(whole, kept), frozenset(tables))
    found = collect(whole.items())
    if found.summary:
        found.summary["pictures"] = pictures(kept[notebooks.SUMMARY])
    why = {name: str(failure) for name, failure in told.items()}
    write_summary(made, this.value(summary_inputs(view, parameters)), found, linked, why)
    known = [(id, figure["source"]) for id, figure in found.figures.items()]
    run = Path(parameters["profile"]).name
    label = f"perfkit: {run}{SIMULATED * view.run.is_simulated}"
    parts = {**links.pages(kept, linked, known), **broken}
    _write_parts(made, run, label, {name: parts[name] for name in executed}, told)
    (made / "notebooks").mkdir()
    for name, notebook in whole.items():
        text = json.dumps(links.beside(notebook, linked), ensure_ascii=False)
        (made / "notebooks" / f"{name}.ipynb").write_text(f"{text}\n", **TEXT)
    if pdf:
        chosen = [*executed] if pdf == ALL else [*executed][:1]
        printed_cells = Report([cell for cell in linked.cells if cell.notebook in chosen])
        some = {name: kept[name] for name in chosen if name in kept}
        on_paper = {**links.pages(some, printed_cells, known, is_one=True), **broken}
        titled = [(notebooks.title(parts[name]), on_paper[name]) for name in chosen]
        page = report_html.pages(titled, title=label)
        foot = {"name": printable(run, 80), "date": f"{datetime.now():%Y-%m-%d}"}
        (made / PRINTED).write_text(paper.footed(page, is_compact=pdf != ALL, **foot), **TEXT)


def _write_parts(
    made: Path,
    run: str,
    label: str,
    parts: Mapping[str, nbformat.NotebookNode],
    failures: Collection[str],
) -> None:
    """Write a page for each notebook, with `label` above it and links to the others."""
    titles = {name: notebooks.title(part) for name, part in parts.items()}
    for name, part in parts.items():
        leads = [
            Lead(
                links.address(other), _short(other), titles[other], other == name, other in failures
            )
            for other in parts
        ]
        page = report_html.page(part, title=f"{run}: {titles[name]}", run=label, leads=leads)
        (made / links.address(name)).write_text(page, **TEXT)


def _short(notebook: str) -> str:
    """Return a notebook's name as a link between pages.

    >>> _short("0_executive_summary"), _short("3_call_paths")
    ('Summary', '3 Call paths')
    """
    number, _, words = notebook.partition("_")
    return (
        "Summary"
        if notebook == notebooks.SUMMARY
        else f"{number} {words.replace('_', ' ').capitalize()}"
    )


def _told(name: str, run: Run, earlier: Run | None) -> set[str]:
    """Return what was recorded for a notebook to tell: by both runs, where it compares them; and that there are two."""
    if earlier is None:
        return notebooks.recorded(run)
    compares = notebooks.BASELINE in notebooks.NOTEBOOKS[name]
    told = (
        notebooks.recorded(run) & notebooks.recorded(earlier)
        if compares
        else notebooks.recorded(run)
    )
    return told | {notebooks.BASELINE}


def _write_tables(
    view: Selection, earlier: Run | None, folder: Path, machine: Machine
) -> list[str]:
    """Write the tables that figures rest on (own, framework's, baseline's) whole as Parquet, and return their names."""
    traced = view.framework.run
    runs = {"": view.run, "framework": None if traced is view.run else traced, "baseline": earlier}
    written = []
    for place, run in runs.items():
        for name in TABLES if run else ():
            frame = run.table(name) if run else None
            path = f"{place}/{name}".lstrip("/")
            if (
                frame is None
                or not len(frame)
                or (place == "framework" and frame.equals(view.run.table(name)))
            ):
                continue
            (folder / place).mkdir(parents=True, exist_ok=True)
            table = pa.Table.from_pandas(machine.frame(frame), preserve_index=False)
            with (folder / f"{path.lower()}.parquet").open(
                "wb"
            ) as file:  # pyarrow opens no path that is not UTF-8
                pq.write_table(table, file, compression="zstd")
            written.append(path)
    return written


def collect(notebooks: Iterable[tuple[str, nbformat.NotebookNode]]) -> Recorded:
    """Return what executed notebooks, given with their names, recorded."""
    recorded = Recorded()
    outputs = (
        (name, o)
        for name, notebook in notebooks
        for cell in notebook.cells
        for o in cell.get("outputs", [])
    )
    for name, content in (
        (name, o["data"][MIME]) for name, o in outputs if MIME in o.get("data", {})
    ):
        for figure in content["figures"]:
            recorded.figures.setdefault(figure["id"], {**figure, "notebook": name})
        present = {(f["rule"], f["title"]) for f in recorded.findings}
        new = [f for f in content["findings"] if (f["rule"], f["title"]) not in present]
        recorded.findings += [{**f, "notebook": name} for f in new]
        recorded.refusals += [r for r in content["refusals"] if r not in recorded.refusals]
        recorded.summary |= content.get("summary", {})
    return recorded


def pictures(notebook: nbformat.NotebookNode) -> list[str]:
    """Return what the charts of a notebook show, in words."""
    outputs = [o.get("data", {}) for cell in notebook.cells for o in cell.get("outputs", [])]
    return [
        data["text/plain"].removeprefix("chart: ")
        for data in outputs
        if any("vegalite" in kind for kind in data)
    ]


def presentable(notebook: nbformat.NotebookNode, tables: Collection[str]) -> nbformat.NotebookNode:
    """Return the notebook as a reader wants it: without cells that only record, ``live``, or lack their tables.

    Prose goes with the cells that it introduces where none of them shows anything.
    """
    blocks = [Block()]
    silent: list[str] = []  # code of cells that are not shown: it stands above that of the next one
    for cell in map(nbformat.NotebookNode, notebook.cells):
        tags = cell.metadata.get("tags", [])
        is_live, is_answered = LIVE in tags, _is_answered(tags, tables)
        if cell.cell_type != "code":
            if is_answered and not is_live:
                _add_prose(blocks, cell)
            continue
        if any(MIME in output.get("data", {}) for output in cell.outputs):
            continue
        blocks[-1].introduces |= not is_live
        cell.outputs = [each for each in cell.outputs if EMPTY not in each.get("metadata", {})]
        if is_answered and cell.outputs and not is_live:
            cell.source = "\n\n".join([*silent, cell.source])
            blocks[-1].shown.append(cell)
            silent.clear()
        elif is_answered:
            silent.append(cell.source)
    return nbformat.NotebookNode(notebook, cells=_sections(blocks))


def _add_prose(blocks: list[Block], cell: nbformat.NotebookNode) -> None:
    """Add prose to the block before, if that is prose of the same section so far, or as a new one."""
    before, new = blocks[-1], Block([cell])
    if before.prose and not before.introduces and not new.heading:
        before.prose.append(cell)
    else:
        blocks.append(new)


def _is_answered(tags: Iterable[str], tables: Collection[str]) -> bool:
    """Return whether a run with these tables has what the tags of a cell ask for."""
    needs = [tag.removeprefix(NEEDS).split("|") for tag in tags if tag.startswith(NEEDS)]
    return all(set(names) & set(tables) for names in needs)


def _sections(blocks: Iterable[Block]) -> list[nbformat.NotebookNode]:
    """Return the cells that are left of blocks, their sections numbered anew.

    Of prose that introduces nothing a section's heading stays where the section goes on.
    """
    kept: list[nbformat.NotebookNode] = []
    goes_on = False
    for block in reversed([*blocks]):
        heading = block.heading
        if block.is_about_nothing:
            stays = bool(heading) and goes_on
            block.prose = [nbformat.NotebookNode(block.prose[0], source=heading)] if stays else []
        cells = [*block.prose, *block.shown]
        goes_on = not heading and (goes_on or bool(cells))
        kept = [*cells, *kept]
    numbers = count(1)
    for cell in kept:
        cell.source = NUMBERED.sub(lambda _: f"## {next(numbers)}. ", cell.source)
    return kept


def failed(stored: nbformat.NotebookNode, failure: Failure) -> nbformat.NotebookNode:
    """Return what stands on the page for a notebook that failed: its title, and the error."""
    error = nbformat.v4.new_output(
        "error", ename=failure.error, evalue=failure.message, traceback=[]
    )
    cells = [
        nbformat.v4.new_markdown_cell(f"# {notebooks.title(stored)}"),
        nbformat.v4.new_code_cell(failure.code, outputs=[error]),
    ]
    made: nbformat.NotebookNode = nbformat.v4.new_notebook(cells=cells, metadata=stored.metadata)
    return made


def summary_inputs(view: Selection, parameters: dict[str, Any]) -> dict[str, Any]:
    """Return what the report was made from: files, tools, devices, choice and remarks."""
    return {
        "made_at": f"{datetime.now():%Y-%m-%d %H:%M}",
        "perfkit_version": version("perfkit"),
        "parameters": parameters,
        "selection": view.description,
        "captures": view.run.capture.astype(object)
        .where(view.run.capture.notna(), None)
        .to_dict("records"),
        "readers": earlier_runs.readers(view.run),
        "devices": [str(name) for name in view.devices["name"]],
        "notes": list(recording.notes(view)),
    }


NOTHING: dict[str, Any] = {
    "verdict": "",
    "remark": "",
    **{name: [] for name in LISTS},
}  # a first page that failed


def write_summary(
    folder: Path,
    about: dict[str, Any],
    found: Recorded,
    linked: Report,
    failures: Mapping[str, str] | None = None,
) -> None:
    """Write `summary.json`, `summary.md` and `figures.md` to `folder`; `failures` say why a notebook is missing."""
    figures = {}
    for (
        id,
        figure,
    ) in (
        found.figures.items()
    ):  # with the cell that shows it, null where none does, and its tables' files
        cell = linked.cell(id, figure["source"])
        place = {"notebook": cell.notebook, "id": cell.id} if cell else None
        files = list(linked.files(figure["source"]).values())
        figures[id] = {
            **{k: v for k, v in figure.items() if k != "id"},
            "cell": place,
            "tables": files,
        }
    content = {
        "schema": SCHEMA,
        "inputs": about,
        "summary": found.summary or NOTHING,
        "figures": figures,
        "findings": found.findings,
        "refusals": found.refusals,
        "failures": [
            {"notebook": name, "error": error} for name, error in (failures or {}).items()
        ],
    }
    text = json.dumps(finite(content), indent=1, ensure_ascii=False, allow_nan=False)
    (folder / "summary.json").write_text(text + "\n", **TEXT)
    (folder / "summary.md").write_text(markdown(content), **TEXT)
    (folder / "figures.md").write_text(figures_markdown(content), **TEXT)


@cache
def _page() -> Template:
    return report_html.template("summary.md.j2", {"text": _safe, "link": _value}, trim_blocks=True)


def markdown(content: dict[str, Any]) -> str:
    """Return the first page as Markdown, from the content of `summary.json`."""
    nothing = "" if content["findings"] else nothing_found(content["figures"])
    return _page().render(
        **{**content, "figures": _with_ids(content["figures"])},
        weeks=WEEKS,
        questions=by_command(
            (r["question"], r["reason"], r["record"]) for r in content["summary"]["questions"]
        ),
        more=steps_left(content["summary"]),
        check=CHECK,
        notes=content["inputs"]["notes"],
        before=AFTER_A_FAILURE if content["summary"]["verdict"].startswith(FAILED) else nothing,
        run=Path(content["inputs"]["parameters"]["profile"]).name,
    )


def figures_markdown(content: dict[str, Any]) -> str:
    """Return all figures as a table in Markdown, from the content of `summary.json`."""
    about = content["inputs"]
    lines = [("figure", "value", "definition", "source"), ("---",) * 4]
    for figure in _with_ids(content["figures"]).values():
        files = (f"[{_safe(Path(path).stem)}]({path})" for path in figure.get("tables", ()))
        source = ", ".join([_safe(figure["source"]), *files])
        lines.append((_safe(figure["label"]), _value(figure), _safe(figure["definition"]), source))
    table = "\n".join(f"| {' | '.join(line)} |" for line in lines) if len(lines) > 2 else "None."
    made = f"Made {about['made_at']} by perfkit {about['perfkit_version']}. Selection: {_safe(about['selection'])}."
    return f"# All figures of {_safe(Path(about['parameters']['profile']).name)}\n\n{made}\n\n{table}\n"


def _with_ids(figures: Mapping[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return figures that know their ids."""
    return {id: {**figure, "id": id} for id, figure in figures.items()}


def _value(figure: dict[str, Any], text: str = "") -> str:
    """Return a figure's text, or another, as a link to the cell that shows it."""
    cell, text = figure.get("cell"), _safe(text or figure["text"])
    if not cell:
        return text
    return f"[{text}]({links.address(cell['notebook'])}#{links.anchor(figure['id'])})"


def _safe(text: str) -> str:
    """Return foreign text so that Markdown shows it as it is, but what stands between backquotes as code.

    No tag, table or emphasis of its own is left.
    """
    parts = CODE.split(printable(text, 2000))
    return "".join(
        f"<code>{_plain(part)}</code>" if at % 2 else _plain(part) for at, part in enumerate(parts)
    )


def _plain(text: str) -> str:
    escaped = html.escape(text, quote=False)
    for mark in "\\`*_[]|#":
        escaped = escaped.replace(mark, f"\\{mark}")
    return escaped
