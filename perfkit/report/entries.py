"""How a notebook hands its figures, findings and refusals to the report: as an output of its last cell."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import nbformat

from perfkit.diagnosis.finding import Figure, Finding, Refusal, plain

MIME = "application/vnd.perfkit.record+json"
# Begins the tag of a cell that has an answer only where one of the tables, or kinds of captures, it names was recorded.
NEEDS = "needs:"
# Tag of a cell for the person at the notebook: the explorer and the prose about it, and what the summary says already.
LIVE = "live"


@dataclass
class Recorded:
    """What the notebooks of a report recorded; of two with one id or title the first is kept."""

    figures: dict[str, dict[str, Any]] = field(default_factory=dict)
    findings: list[dict[str, Any]] = field(default_factory=list)
    refusals: list[dict[str, Any]] = field(default_factory=list)


def record(
    figures: Iterable[Figure] = (), *, findings: Iterable[Finding] = (), refusals: Iterable[Refusal] = ()
) -> None:
    """Record what a notebook found, for `summary.json` and whoever runs the notebook without a person."""
    from IPython.display import display

    found = list(findings)
    known = {figure.id: figure for figure in (*figures, *(e for f in found for e in f.evidence))}
    content = {
        "figures": [plain(f) for f in known.values()],
        "findings": [plain(f) for f in found],
        "refusals": [plain(r) for r in refusals],
    }
    counts = ", ".join(f"{len(items)} {kind}" for kind, items in content.items() if items)
    display({MIME: content, "text/plain": f"recorded {counts or 'nothing'}"}, raw=True)


def collect(notebooks: Iterable[tuple[str, nbformat.NotebookNode]]) -> Recorded:
    """Return what executed notebooks, given with their names, recorded."""
    found = Recorded()
    for name, notebook in notebooks:
        for content in _contents(notebook):
            for figure in content["figures"]:
                found.figures.setdefault(figure["id"], {**figure, "notebook": name})
            known = {(f["rule"], f["title"]) for f in found.findings}
            new = [f for f in content["findings"] if (f["rule"], f["title"]) not in known]
            found.findings += [{**f, "notebook": name} for f in new]
            found.refusals += [r for r in content["refusals"] if r not in found.refusals]
    return found


def _contents(notebook: nbformat.NotebookNode) -> list[dict[str, Any]]:
    outputs = [o for cell in notebook.cells for o in cell.get("outputs", [])]
    return [o["data"][MIME] for o in outputs if MIME in o.get("data", {})]


def presentable(notebook: nbformat.NotebookNode, tables: Collection[str]) -> nbformat.NotebookNode:
    """Return the notebook as a reader wants it.

    Cells that only record are left out, those tagged ``live``, and those tagged ``needs:A|B`` where none of these
    tables is among `tables`, what was recorded; the code of live cells and of those that show nothing is put to the
    next that is shown.
    """
    shown: nbformat.NotebookNode = nbformat.from_dict(notebook)
    cells, silent = [], []
    for cell in shown.cells:
        if not _answered(cell, tables) or any(MIME in o.get("data", {}) for o in cell.get("outputs", [])):
            continue
        is_code, is_live = cell.cell_type == "code", LIVE in cell.metadata.get("tags", [])
        if is_code and (is_live or not cell.outputs):
            silent.append(cell.source)
            continue
        if is_live:
            continue
        if is_code:
            cell.source = "\n\n".join([*silent, cell.source])
            silent.clear()
        cells.append(cell)
    shown.cells = cells
    return shown


def _answered(cell: nbformat.NotebookNode, tables: Collection[str]) -> bool:
    """Whether what was recorded holds one of the tables that the cell's tag names, if it names any."""
    needs = [tag.removeprefix(NEEDS) for tag in cell.metadata.get("tags", []) if tag.startswith(NEEDS)]
    return all(set(each.split("|")) & set(tables) for each in needs)
