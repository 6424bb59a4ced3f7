"""Write the labs as slides: a page for each, which needs no network, no script and no other program than a browser."""

import re
from pathlib import Path

import nbformat

from perfkit.report import html
from perfkit.report.notebooks import folder, title
from perfkit.report.students import released

HEADING = re.compile(r"\A#{1,3} (.+)\n*")  # begins a slide
STYLE = """<style>
html { scroll-snap-type: y proximity; }
main > section { min-height: 100vh; margin: 0; padding: 5vh 0; font-size: 1.3rem; scroll-snap-align: start; }
main > section > h2 { font-size: 2.2rem; }
@media print { main > section { break-after: page; min-height: 0; } }
</style>
"""
Slide = tuple[str, nbformat.NotebookNode]


def write(out: Path, labs: Path | None = None) -> list[Path]:
    """Write the slides of the labs into a folder, and return the pages; of copies in `labs`, with their outputs."""
    out.mkdir(parents=True, exist_ok=True)
    pages = []
    for path in sorted((labs or folder() / "labs").glob("lab*.ipynb")):
        lab = nbformat.read(path, as_version=4)
        head, end, body = html.pages(slides(lab), title=title(lab)).partition("</head>")
        pages.append(out / f"{path.stem}.html")
        pages[-1].write_text(f"{head}{STYLE}{end}{body}", encoding="utf-8")
    return pages


def slides(lab: nbformat.NotebookNode) -> list[Slide]:
    """Return the slides of a lab, each with its heading: prose, given code, and outputs where it was run.

    Solutions, answers in prose and tests are on no slide.
    """
    found: list[Slide] = []
    for cell in nbformat.from_dict(released(lab)).cells:
        role = cell.metadata.get("nbgrader", {})
        if role.get("solution") or role.get("grade"):
            continue
        heading = HEADING.match(cell.source) if cell.cell_type == "markdown" else None
        if heading:
            found.append((heading[1], nbformat.v4.new_notebook()))
            cell.source = cell.source[heading.end() :]
        found[-1][1].cells.append(cell)
    return found
