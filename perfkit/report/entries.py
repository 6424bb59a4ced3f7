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

    findings = list(findings)
    by_id = {figure.id: figure for figure in (*figures, *(e for f in findings for e in f.evidence))}
    content = {
        "figures": [plain(f) for f in by_id.values()],
        "findings": [plain(f) for f in findings],
        "refusals": [plain(r) for r in refusals],
    }
    counts = ", ".join(f"{len(items)} {kind}" for kind, items in content.items() if items)
    display({MIME: content, "text/plain": f"recorded {counts or 'nothing'}"}, raw=True)


def collect(notebooks: Iterable[tuple[str, nbformat.NotebookNode]]) -> Recorded:
    """Return what executed notebooks, given with their names, recorded."""
    recorded = Recorded()
    outputs = ((name, o) for name, notebook in notebooks for cell in notebook.cells for o in cell.get("outputs", []))
    for name, content in ((name, o["data"][MIME]) for name, o in outputs if MIME in o.get("data", {})):
        for figure in content["figures"]:
            recorded.figures.setdefault(figure["id"], {**figure, "notebook": name})
        present = {(f["rule"], f["title"]) for f in recorded.findings}
        new = [f for f in content["findings"] if (f["rule"], f["title"]) not in present]
        recorded.findings += [{**f, "notebook": name} for f in new]
        recorded.refusals += [r for r in content["refusals"] if r not in recorded.refusals]
    return recorded


def presentable(notebook: nbformat.NotebookNode, tables: Collection[str]) -> nbformat.NotebookNode:
    """Return the notebook as a reader wants it.

    Left out are cells that only record, those tagged ``live``, and those tagged ``needs:A|B`` where none of these
    tables is among the recorded `tables`; the code of live and of silent cells is put to the next cell shown.
    """
    shown: nbformat.NotebookNode = nbformat.from_dict(notebook)
    cells, silent = [], []
    for cell in shown.cells:
        tags = cell.metadata.get("tags", [])
        needs = [tag.removeprefix(NEEDS).split("|") for tag in tags if tag.startswith(NEEDS)]
        is_answered = all(set(names) & set(tables) for names in needs)
        if not is_answered or any(MIME in o.get("data", {}) for o in cell.get("outputs", [])):
            continue
        is_code, is_live = cell.cell_type == "code", LIVE in tags
        if is_code and (is_live or not cell.outputs):
            silent.append(cell.source)
        elif not is_live:
            if is_code:
                cell.source = "\n\n".join([*silent, cell.source])
                silent.clear()
            cells.append(cell)
    shown.cells = cells
    return shown
