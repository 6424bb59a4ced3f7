"""Reports of every tool's captures, crawled: each number of a summary leads somewhere, and no link leads nowhere."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import nbformat
import pytest

from perfkit import report
from perfkit.report.links import SUMMARY

FIGURE = "perfkit-figure"
# Path, path of a baseline, and a figure that is on the page.
REPORTS = {
    "nsys": ("nsys/openhackathons-org__AI-Profiler__baseline_nvtx.sqlite", "", "idle_frac"),
    "nsys with a baseline": (
        "nsys/openhackathons-org__AI-Profiler__secondOptimization.window5.0-7.0s.sqlite",
        "nsys/openhackathons-org__AI-Profiler__baseline_nvtx.sqlite",
        "compare_step_frac",
    ),
    "ncu": ("golden/ncu/thedavidchu__speedy_scan__profile.raw.csv", "", "roof_share_frac"),
    "torch": ("torch/TraceLens__h100__gaunernst_bert-small-uncased__1016001.json.gz", "", "memory_peak_bytes"),
    "HPCToolkit": ("hpctoolkit/hpctoolkit-dlrm-gpu-database", "", "paths_copy_frac"),
    "monitor": ("monitor/dmon_DT_pucet_2021.txt", "", "log_gpu_busy_frac"),
    "NCCL": ("monitor/nccl_tests__cluster01_nccl_N1_G8_cnode3-002.log", "", "baseline_all_reduce_bytes_per_s"),
}


class Page(HTMLParser):
    """Ids, links with their class, and the sections they stand in, of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.links: list[tuple[str, str, str]] = []  # section, class, href
        self._section = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take a tag's id and link."""
        of = {name: value or "" for name, value in attrs}
        if "id" in of:
            self.ids.append(of["id"])
        if tag == "section":
            self._section = of["id"]
        if tag == "a":
            self.links.append((self._section, of.get("class", ""), of.get("href", "")))


@pytest.fixture(scope="module", params=REPORTS)
def made(request: pytest.FixtureRequest, profiles: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The kind of a report, and its folder."""
    run, baseline, _ = REPORTS[request.param]
    out = tmp_path_factory.mktemp("crawled") / "report"
    report.build(profiles / run, out, baseline=profiles / baseline if baseline else None)
    return request.param, out


def contract(folder: Path) -> dict[str, Any]:
    """`summary.json`."""
    content: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return content


def page(folder: Path) -> Page:
    """`index.html`."""
    return Page((folder / "index.html").read_text(encoding="utf-8"))


def test_no_link_of_the_page_is_dead(made: tuple[str, Path]) -> None:
    """Anchors are there, once each; files are there; the page leads nowhere else but to its own CSV."""
    _, folder = made
    found = page(folder)
    assert len(found.ids) == len(set(found.ids))
    hrefs = {href for _, _, href in found.links if not href.startswith("data:text/csv")}
    anchors = {href[1:] for href in hrefs if href.startswith("#")}
    assert set() == anchors - set(found.ids)
    files = {href for href in hrefs if not href.startswith("#")}
    assert files
    assert [] == [href for href in files if not (folder / href).is_file()]


def test_every_figure_says_its_cell_and_tables(made: tuple[str, Path]) -> None:
    """Each has a cell that is on the page, in the section of its notebook, and files of tables that exist."""
    kind, folder = made
    figures, ids = contract(folder)["figures"], page(folder).ids
    assert REPORTS[kind][2] in figures
    assert [] == [id for id, figure in figures.items() if not figure["cell"]]
    assert [] == [id for id, figure in figures.items() if not _is_backed(figure, folder)]
    shown = {f"{figure['cell']['notebook']}-{figure['cell']['id']}" for figure in figures.values()}
    led = {href[1:] for _, style, href in page(folder).links if style == FIGURE}
    assert led <= set(ids)
    assert led & shown


def _is_backed(figure: dict[str, Any], folder: Path) -> bool:
    files = [folder / path for path in figure["tables"]]
    return (bool(files) or figure["source"] == "compare.figures") and all(file.is_file() for file in files)


def test_every_number_of_a_table_of_figures_is_a_link(made: tuple[str, Path]) -> None:
    """In the executed summary each row of a table of figures has a link in its value, and each finding its evidence."""
    _, folder = made
    notebook = nbformat.read(folder / "notebooks" / f"{SUMMARY}.ipynb", as_version=4)
    texts = [o["data"].get("text/html", "") for c in notebook.cells for o in c.get("outputs", []) if "data" in o]
    tables = [text for text in texts if '<th scope="col">figure</th><th scope="col">value</th>' in text]
    rows = [row for table in tables for row in re.findall(r"<tr><td>.*?</tr>", table)]
    assert [] == [row for row in rows if f'<a class="{FIGURE}"' not in row]
    told = [evidence for text in texts for evidence in re.findall(r">Evidence: (.*?)(?:<br>|</div>)", text)]
    assert len(told) == sum(bool(finding["evidence"]) for finding in contract(folder)["findings"])
    assert [] == [evidence for evidence in told if f'<a class="{FIGURE}"' not in evidence]


def test_links_of_the_notebooks_lead_to_cells_and_files(made: tuple[str, Path]) -> None:
    """Each link of an executed notebook names a notebook beside it and one of its cells, or a table."""
    _, folder = made
    read = {path.name: nbformat.read(path, as_version=4) for path in (folder / "notebooks").glob("*.ipynb")}
    ids = {name: {cell.id for cell in notebook.cells} for name, notebook in read.items()}
    for notebook in read.values():
        outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
        for output in outputs:
            for _, style, href in Page(output.get("data", {}).get("text/html", "")).links:
                if style == FIGURE:
                    name, _, cell = href.partition("#cell-id=")
                    assert cell in ids[name]
                elif style == "perfkit-data":
                    assert (folder / "notebooks" / href).is_file()


def test_links_of_the_summary_in_markdown_lead_to_the_page(made: tuple[str, Path]) -> None:
    """Links of `summary.md` are anchors of the page, and tables."""
    _, folder = made
    text = (folder / "summary.md").read_text(encoding="utf-8")
    links = re.findall(r"(?<!\\)\]\(([^)]+)\)", text)
    ids = set(page(folder).ids)
    assert links
    for link in links:
        path, _, anchor = link.partition("#")
        assert (folder / path).is_file()
        assert not anchor or anchor in ids


def test_a_cell_leads_back_to_the_number(made: tuple[str, Path]) -> None:
    """What a number of the summary leads to leads back to the first place of that number in the summary."""
    _, folder = made
    found = page(folder)
    back = {href for section, style, href in found.links if section != "section-1" and href.startswith("#figure-")}
    assert back
    html = (folder / "index.html").read_text(encoding="utf-8")
    summary = html[html.index('<section id="section-1"') : html.index("</section>")]
    assert [] == [href for href in back if f'id="{href[1:]}"' not in summary]
