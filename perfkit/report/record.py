"""How a notebook hands its figures, findings and refusals to the report: as an output of its last cell."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import nbformat

from perfkit.diagnosis import Figure, Finding, Refusal, plain

MIME = "application/vnd.perfkit.record+json"


@dataclass
class Recorded:
    """What the notebooks of a report recorded; of two figures with one id the first is kept."""

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
            found.findings += [{**f, "notebook": name} for f in content["findings"] if f not in found.findings]
            found.refusals += [r for r in content["refusals"] if r not in found.refusals]
    return found


def _contents(notebook: nbformat.NotebookNode) -> list[dict[str, Any]]:
    outputs = [o for cell in notebook.cells for o in cell.get("outputs", [])]
    return [o["data"][MIME] for o in outputs if MIME in o.get("data", {})]


def without_records(notebook: nbformat.NotebookNode) -> nbformat.NotebookNode:
    """Return the notebook without the cells that only record: they show nothing to a reader."""
    shown: nbformat.NotebookNode = nbformat.from_dict(notebook)
    shown.cells = [c for c in notebook.cells if not any(MIME in o.get("data", {}) for o in c.get("outputs", []))]
    return shown
