"""Where a number of a report leads, also in reports of every tool, crawled."""

import ast
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import nbformat
import pytest
from bs4 import BeautifulSoup
from cells import built, unlinked
from diagnosis.traces import leaking
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

import perfkit
from perfkit import diagnosis
from perfkit.diagnosis.extensions import extensions
from perfkit.diagnosis.finding import Figure
from perfkit.diagnosis.sources import SOURCES as OF_CORE
from perfkit.report import links
from perfkit.report.blocks import figure_table
from perfkit.report.links import Cell, Report, cells, place, presented, stored
from perfkit.report.notebooks import NOTEBOOKS, SUMMARY, folder, sample
from perfkit.tables import TABLES

IDLE = Figure(
    "idle_frac", "GPU <b>idle</b>", 0.5, "1", "what", "KERNELS, COPIES; timeline.breakdown"
)
FOREIGN = Figure("foreign_frac", "Foreign", 0.5, "1", "what", "foreign.analysis")
ANALYSIS = re.compile(r"[a-z_]+\.[a-z_]+")
SOURCES = OF_CORE | {text: one for part in extensions() for text, one in part.SOURCES.items()}
SOURCE = re.compile(r"[A-Z_, ]*;?[a-z_., ]+")  # what a source looks like


def test_figures_that_no_real_capture_has_lead_to_a_cell() -> None:
    assert [] == unlinked(perfkit.select(leaking(100))), "memory that grows"
    run = perfkit.load(sample())
    facts = diagnosis.verdict.facts(diagnosis.verdict.attempted(run, run))
    assert {"6_compare"} == {
        cell and cell.notebook for cell in (place(f.id, f.source, stored()) for f in facts)
    }


def _texts() -> Iterator[str]:
    """The texts in the code of `perfkit.diagnosis`, one with fields as a pattern; its list of sources is left out."""
    judging = [
        *Path(diagnosis.__file__).parent.rglob("*.py"),
        *(Path(str(part.__file__)) for part in extensions()),
    ]
    for file in sorted(judging):
        body = [
            node
            for node in ast.parse(file.read_text("utf-8")).body
            if not isinstance(node, ast.AnnAssign)
        ]
        for node in (node for statement in body for node in ast.walk(statement)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield re.escape(node.value)
            elif isinstance(node, ast.JoinedStr):
                yield "".join(
                    re.escape(str(part.value)) if isinstance(part, ast.Constant) else ".+"
                    for part in node.values
                )


HOMES = ("perfkit.analysis", "perfkit.logs", "perfkit.logs.nccl_inspector", "perfkit.dumps")


def is_analysis(name: str) -> bool:
    """Whether a dotted name is a module of `perfkit.analysis` or of a room, and a function of it."""
    module, _, function = name.rpartition(".")
    if not function:
        return False
    homes = [home for home in HOMES if find_spec(f"{home}.{module.partition('.')[0]}")]
    return any(hasattr(import_module(f"{home}.{module}"), function) for home in homes)


def test_sources_and_what_cells_show_are_listed_and_exist() -> None:
    # A figure of a new analysis needs a source that says its tables, also where no run at hand has that figure.
    texts = [text.replace("\\", "") for text in _texts()]
    named = {
        text
        for text in texts
        if SOURCE.fullmatch(text) and any(map(is_analysis, ANALYSIS.findall(text)))
    }
    analyses = {one.analysis for one in SOURCES.values()}
    assert [] == [
        t for t in sorted(named - analyses) if not any(source.endswith(t) for source in SOURCES)
    ]
    assert {"gaps.idle_gaps", "KERNELS, COPIES; timeline.busy"} <= named
    assert [] == [one for one in SOURCES.values() if one.analysis and not is_analysis(one.analysis)]
    assert {table.rpartition("/")[2] for one in SOURCES.values() for table in one.tables} <= set(
        TABLES
    )
    # Each name in a cell's metadata is an analysis or a table of some source, or an id that perfkit gives a figure.
    known = {name for one in SOURCES.values() for name in (one.analysis, *one.tables)}
    ids = [
        re.compile(text)
        for text in set(_texts())
        if re.search("[a-z]{2}", text) and " " not in text
    ]
    named = {name for cell in stored() for name in cell.shows} - known
    assert "sync_idle_frac" in named
    assert [] == [
        name for name in sorted(named) if not any(pattern.fullmatch(name) for pattern in ids)
    ]


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_ids_of_cells_differ_and_a_table_of_figures_lists_its_own(name: str) -> None:
    cells = nbformat.read(folder() / f"{name}.ipynb", as_version=4).cells
    assert len(cells) == len({cell.id for cell in cells})
    for cell in cells:
        if cell.cell_type == "code" and "report.figures," in cell.source:
            group = cell.metadata["perfkit"]["group"]
            assert f'group="{group}"' in cell.source, cell.id
            ids = [one for one in cell.metadata["perfkit"]["shows"] if "." not in one]
            figures = {one: replace(IDLE, id=one, label=one) for one in reversed(ids)}
            assert ids == figure_table(figures, group=group)["figure"].tolist()


def test_no_two_cells_name_their_figures_alike() -> None:
    groups = [cell.group for cell in stored() if cell.group]
    assert sorted(set(groups)) == sorted(groups)


def test_next_steps_lead_where_findings_do_not_end() -> None:
    view = perfkit.select(perfkit.load(sample()))
    found = diagnosis.findings(view)
    made = links.next_steps(
        [replace(found[0], rule="kernel_stall", title="<b>x</b>"), *found], view, "3_system"
    )
    names = re.findall(r'<a href="([^"]+)">', made.html)
    assert names[0] == "4_kernels.ipynb"
    assert names[-1] == "6_compare.ipynb"
    assert "3_system.ipynb" not in names
    assert len(names) <= 3
    assert "&lt;b&gt;x&lt;/b&gt;" in made.html
    assert [] == re.findall("<li>", links.next_steps([], view, "6_compare").html)


def test_the_cell_that_names_a_figure_comes_before_one_of_its_analysis_and_of_its_tables() -> None:
    # A table with the figure shows it more plainly than a picture made of the same analysis.
    whole = Cell("2_monitoring", "c", frozenset({"KERNELS"}))
    calling = Cell("3_system", "a", frozenset({"timeline.breakdown"}))
    naming = Cell("4_kernels", "b", frozenset({"idle_frac"}))
    assert naming == place(IDLE.id, IDLE.source, [whole, calling, naming])
    assert calling == place("computation_frac", IDLE.source, [whole, calling, naming])
    assert whole == place("computation_frac", IDLE.source, [whole, naming])
    assert place(FOREIGN.id, FOREIGN.source, [whole, calling, naming]) is None


def test_figures_and_sources_are_links_for_jupyterlab() -> None:
    html = links.figure(IDLE, text="<i>50</i>").html
    cell = place(IDLE.id, IDLE.source, stored())
    assert cell is not None
    assert f'href="3_system.ipynb#cell-id={cell.id}"' in html
    assert 'data-label="GPU &lt;b&gt;idle&lt;/b&gt;"' in html
    assert html.endswith(">&lt;i&gt;50&lt;/i&gt;</a>")
    assert links.figure(FOREIGN).html == "50.0 %"
    gaps = Figure("idle_sync_frac", "Idle", 0.1, "1", "what", "gaps.idle_gaps")
    assert "KERNELS, COPIES, API_CALLS, RANGES; gaps.idle_gaps" == links.tables(gaps).text
    assert "KERNELS, COPIES; timeline.breakdown" == links.tables(IDLE).text
    assert "foreign.analysis" == links.tables(FOREIGN).text
    assert "&lt;b&gt;" in links.tables(Figure("a", "A", 0.1, "1", "what", "<b>")).html


def notebook(name: str, *outputs: str) -> tuple[str, nbformat.NotebookNode]:
    """An executed notebook whose cells show this HTML, with the code that shows idleness in the second."""
    shows = {"perfkit": {"shows": ["timeline.breakdown"]}}
    made = [new_code_cell(id=f"cell{place}", metadata=shows) for place, _ in enumerate(outputs)]
    for cell, html in zip(made, outputs, strict=True):
        cell.outputs = [new_output("display_data", data={"text/html": html})]
    return name, new_notebook(cells=[new_markdown_cell("# Why?"), *made])


def test_links_of_a_page_lead_to_the_cell_and_back() -> None:
    # The first of a figure in the summary has a name, to which the cell leads back.
    one = links.figure(IDLE).html + links.tables(IDLE).html
    given = dict([notebook(SUMMARY, one, one), notebook("3_system", one)])
    report = Report(presented(given, given), frozenset({"KERNELS"}))
    made = links.pages(given, report)
    first, second = (cell.outputs[0]["data"]["text/html"] for cell in made[SUMMARY].cells[1:])
    assert (
        '<a class="perfkit-figure" id="from-idle_frac" href="3_system.html#idle_frac">50.0 %</a>'
        in first
    )
    assert '<a class="perfkit-figure" href="3_system.html#idle_frac">50.0 %</a>' in second
    assert (
        '<a class="perfkit-data" href="tables/kernels.parquet">KERNELS</a>, COPIES; timeline'
        in first
    )
    cell = made["3_system"].cells[1]
    assert ["idle_frac"] == cell.metadata["landing"]["anchors"]
    assert (
        '<a href="index.html#from-idle_frac">GPU &lt;b&gt;idle&lt;/b&gt;</a>'
        in cell.metadata["landing"]["html"]
    )
    assert "COPIES" not in cell.metadata["landing"]["html"]
    assert cell.outputs[0]["data"]["text/html"].startswith("50.0 %")  # no link to itself


def test_links_of_an_executed_notebook_lead_to_files() -> None:
    one = links.figure(IDLE).html + links.tables(IDLE).html
    given = dict([notebook(SUMMARY, one), notebook("3_system", one)])
    alone = {SUMMARY: given[SUMMARY]}
    html, plain = (
        links.beside(given[SUMMARY], Report(cells(which.items()), tables))
        .cells[1]
        .outputs[0]["data"]["text/html"]
        for which, tables in ((given, frozenset({"COPIES"})), (alone, frozenset[str]()))
    )
    assert 'href="3_system.ipynb#cell-id=cell0"' in html
    assert '<a class="perfkit-data" href="../tables/copies.parquet">COPIES</a>' in html
    assert "50.0 %KERNELS, COPIES; timeline.breakdown" == plain


def test_files_of_tables_are_named_once_and_not_in_print() -> None:
    for tables, path in (
        ({"KERNELS"}, "tables/kernels.parquet"),
        ({"KERNELS", "framework/KERNELS"}, "tables/framework/kernels.parquet"),
        (set[str](), ""),
    ):
        assert path == Report([], frozenset(tables)).file("framework/KERNELS")
    assert "" == Report([], frozenset({"KERNELS"})).file("baseline/KERNELS")
    share = replace(IDLE, source="OPS")
    given = dict([notebook(SUMMARY, links.figure(share).html), notebook("5_framework", "")])
    given["5_framework"].cells[1].metadata["perfkit"] = {"shows": ["OPS"]}
    made = links.pages(given, Report(presented(given, given), frozenset({"OPS"})))
    assert 1 == made["5_framework"].cells[1].metadata["landing"]["html"].count("tables/ops.parquet")


def test_on_paper_links_stay_in_the_document_and_tables_are_named() -> None:
    one = links.figure(IDLE).html + links.tables(IDLE).html
    given = dict([notebook(SUMMARY, one), notebook("3_system", "")])
    report = Report(presented(given, given), frozenset({"KERNELS"}))
    made = links.pages(given, report, is_one=True)
    html = made[SUMMARY].cells[1].outputs[0]["data"]["text/html"]
    assert (
        '<a class="perfkit-figure" id="from-idle_frac" href="#idle_frac">50.0 %</a>KERNELS' in html
    )
    landing = made["3_system"].cells[1].metadata["landing"]["html"]
    assert '↑ In the summary: <a href="#from-idle_frac">GPU &lt;b&gt;idle&lt;/b&gt;</a>' == landing


def test_what_is_no_mark_stays_as_it_is_written() -> None:
    html = (
        "<TD>a &amp; b<br/>\n<!-- x --></TD >\r\n\f\u2028<script>1 < 2</script>"
        + links.figure(IDLE).html
        + "<p>é</P>"
    )
    made = links.resolved(html, lambda known: f'href="#{known.id}"', lambda name: "")
    opening = links.figure(IDLE).html.partition(">")[0] + ">"
    assert html.replace(opening, '<a class="perfkit-figure" href="#idle_frac">') == made


FIGURE = "perfkit-figure"
# Path, path of a baseline, and a figure that is on the page.
REPORTS = {
    "nsys with a baseline": (
        "nsys/openhackathons-org__AI-Profiler__secondOptimization.window5.0-7.0s.sqlite",
        "nsys/openhackathons-org__AI-Profiler__baseline_nvtx.sqlite",
        "compare_step_frac",
    ),
    "ncu": ("golden/ncu/thedavidchu__speedy_scan__profile.raw.csv", "", "roof_share_frac"),
    "torch": (
        "torch/TraceLens__h100__gaunernst_bert-small-uncased__1016001.json.gz",
        "",
        "memory_peak_bytes",
    ),
    "HPCToolkit": ("hpctoolkit/hpctoolkit-dlrm-gpu-database", "", "paths_copy_frac"),
    "monitor": ("monitor/dmon_DT_pucet_2021.txt", "", "log_gpu_busy_frac"),
    "NCCL": (
        "monitor/nccl_tests__cluster01_nccl_N1_G8_cnode3-002.log",
        "",
        "baseline_all_reduce_bytes_per_s",
    ),
}


class Page:
    """Ids, and links with their class, of HTML."""

    def __init__(self, html: str) -> None:
        soup = BeautifulSoup(f"<body>{html}</body>", "html.parser")
        self.ids = [tag["id"] for tag in soup(id=True)]
        self.links = [(" ".join(tag.get("class", [])), tag.get("href", "")) for tag in soup("a")]


@pytest.mark.parametrize("kind", REPORTS)
@pytest.mark.sampled(3)
def test_no_link_of_a_report_is_dead(kind: str, profiles: Path, tmp_path: Path) -> None:
    run, baseline, known = REPORTS[kind]
    out = built(profiles / run, tmp_path, baseline=baseline and profiles / baseline)
    pages = {
        path.name: Page(path.read_text(encoding="utf-8")) for path in sorted(out.glob("*.html"))
    }
    summary = json.loads((out / "summary.json").read_text(encoding="utf-8"))
    assert known in summary["figures"]
    _check_pages(out, pages)
    _check_figures(out, pages, summary["figures"])
    _check_notebooks(out, summary)


def _check_pages(out: Path, pages: dict[str, Page]) -> None:
    assert {"index.html"} < set(pages)
    for name, page in pages.items():
        assert len(page.ids) == len(set(page.ids))
        hrefs = {href for _, href in page.links if not href.startswith("data:text/csv")}
        led = [(href.partition("#")[0] or name, href.partition("#")[2]) for href in hrefs]
        assert [] == [file for file, _ in led if not (out / file).is_file()]
        assert [] == [
            (file, anchor) for file, anchor in led if anchor and anchor not in pages[file].ids
        ]
        assert set(pages) <= {file for file, _ in led}, "each page leads to all others"
    back = {href for name, page in pages.items() for _, href in page.links if name != "index.html"}
    assert any(href.startswith("index.html#from-") for href in back), (
        "a cell leads back to the number"
    )
    text = "".join(
        (out / name).read_text(encoding="utf-8") for name in ("summary.md", "figures.md")
    )
    found = re.findall(r"(?<!\\)\]\(([^)]+)\)", text)
    assert found
    for link in found:
        path, _, anchor = link.partition("#")
        assert (out / path).is_file()
        assert not anchor or anchor in pages[path].ids


def _check_figures(out: Path, pages: dict[str, Page], figures: dict[str, Any]) -> None:
    for id, figure in figures.items():
        assert figure["cell"], id
        assert figure["tables"] or figure["source"] == "compare.figures", id
        assert all((out / path).is_file() for path in figure["tables"]), id
    shown = {f"{links.address(figure['cell']['notebook'])}#{id}" for id, figure in figures.items()}
    ids = {f"{name}#{id}" for name, page in pages.items() for id in page.ids}
    led = {href for page in pages.values() for style, href in page.links if style == FIGURE}
    assert led <= ids
    assert led & shown


def _check_notebooks(out: Path, summary: dict[str, Any]) -> None:
    notebooks = {
        path.name: nbformat.read(path, as_version=4) for path in (out / "notebooks").glob("*.ipynb")
    }
    outputs = [
        each
        for notebook in notebooks.values()
        for cell in notebook.cells
        for each in cell.get("outputs", [])
    ]
    texts = [output["data"].get("text/html", "") for output in outputs if "data" in output]
    tables = [
        text for text in texts if '<th scope="col">figure</th><th scope="col">value</th>' in text
    ]
    rows = [row for table in tables for row in re.findall(r"<tr><td>.*?</tr>", table)]
    assert [] == [row for row in rows if f'<a class="{FIGURE}"' not in row]
    told = [
        evidence
        for text in texts
        for evidence in re.findall(r">Evidence: (.*?)(?:<br>|</div>)", text)
    ]
    assert [] == [evidence for evidence in told if f'<a class="{FIGURE}"' not in evidence]
    first = {finding["title"] for finding in summary["summary"]["ranking"][:3]}
    reasons = [
        finding
        for finding in summary["findings"]
        if finding["evidence"] and finding["title"] in first
    ]
    assert len(reasons) == sum(len(re.findall(r">why</a>", text)) for text in texts)
    ids = {name: {cell.id for cell in notebook.cells} for name, notebook in notebooks.items()}
    for style, href in (link for text in texts for link in Page(text).links):
        if style == FIGURE:
            name, _, cell = href.partition("#cell-id=")
            assert cell in ids[name]
        elif style == "perfkit-data":
            assert (out / "notebooks" / href).is_file()
