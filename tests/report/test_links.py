"""Where a number of a report leads, also in reports of every tool, crawled."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import nbformat
import pytest
from cells import outputs
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

import perfkit
from perfkit import diagnosis, report
from perfkit.diagnosis.finding import Figure
from perfkit.report import links
from perfkit.report.links import SHOWN, SUMMARY, Cell, Report, behind, cells, place, presented, stored
from perfkit.report.notebooks import NEEDS, NOTEBOOKS, answering, folder, recorded, sample
from perfkit.tables import TABLES

IDLE = Figure("idle_frac", "GPU <b>idle</b>", 0.5, "1", "what", "KERNELS, COPIES; timeline.breakdown")
FOREIGN = Figure("foreign_frac", "Foreign", 0.5, "1", "what", "foreign.analysis")
ANALYSIS = re.compile(r"[a-z_]+\.[a-z_]+")
SOURCE = re.compile(r"[A-Z_, ]*;?[a-z_., ]+")  # what a source looks like
# Captures of every tool that differ in what they hold.
CAPTURES = (
    "nsys/openhackathons-org__AI-Profiler__baseline_nvtx.sqlite",
    "nsys/GindaChen__nsys-ai__mfu_2gpu_before.sqlite",
    "nsys/hpcgroup__pipit__perlmutter-cloverleaf-cuda.sqlite",
    "torch/TraceLens__b200__eager_trace.json.gz",
    "torch/TraceLens__h100__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    "torch/HTA__nccl_parser_config__nccl_data.json.gz",
    "torch/kineto__resnet50_num_workers_0__worker0.1623143566756.pt.trace.json.gz",
    "hpctoolkit/hpctoolkit-dlrm-gpu-database",
    "hpctoolkit/hpctoolkit-ping-pong-database",
    "monitor/dcgm_exporter_t4_k8s.prom",
    "monitor/dmon_DT_pucet_2021.txt",
    "monitor/nvidia-smi_xml__rtx-3060-v12.xml",
    "monitor/deepspeed_flops_profiler_bert_large.txt",
    "monitor/superbench__megatron_deepspeed.log",
    "monitor/nccl_tests__cluster01_nccl_N1_G8_cnode3-002.log",
    "monitor/rocm-smi_json__mi100_rocm571.json",
)


def shown_of(run: perfkit.Run) -> list[Cell]:
    """The cells of the stored notebooks that a report of a run would show."""
    names, tables = answering(run), recorded(run)
    read = {name: nbformat.read(folder() / f"{name}.ipynb", as_version=4) for name in names}
    for notebook in read.values():
        notebook.cells = [
            cell
            for cell in notebook.cells
            if all(set(tag.removeprefix(NEEDS).split("|")) & tables for tag in _needs(cell.metadata.get("tags", [])))
        ]
    return cells(read.items())


def _needs(tags: list[str]) -> Iterator[str]:
    return (tag for tag in tags if tag.startswith(NEEDS))


def every_figure(run: perfkit.Run) -> list[Figure]:
    """All figures of a run, those of its findings too."""
    found = diagnosis.findings(run)
    return [*diagnosis.figures(run).values(), *(figure for finding in found for figure in finding.evidence)]


def _runs() -> list[Path]:
    root = os.environ.get("PERFKIT_PROFILES")
    return [*sorted(sample().parent.glob("*_*00")), *(Path(root, name) for name in CAPTURES if root)]


@pytest.mark.parametrize("path", _runs(), ids=lambda path: path.name[:40])
def test_every_figure_of_a_run_has_a_cell_and_a_table(path: Path) -> None:
    """No figure of a run, nor of a finding's evidence, is without a cell of its report and a table that it holds."""
    run = perfkit.load(path)
    among, figures = shown_of(run), every_figure(run)
    assert [] == [(f.id, f.source) for f in figures if place(f.id, f.source, among) is None]
    held = {table for profile in run.profiles for table in profile.loaders}
    resting = {f.id: {table.rpartition("/")[2] for table in behind(f.id, f.source).tables} for f in figures}
    assert [] == [(id, tables) for id, tables in resting.items() if not tables & held]


def test_every_figure_of_a_comparison_has_a_cell() -> None:
    """What a comparison records leads to the notebook that compares."""
    run = perfkit.load(sample())
    facts = diagnosis.verdict.facts(diagnosis.verdict.attempted(run, run))
    assert {"6_compare"} == {cell.notebook for f in facts if (cell := place(f.id, f.source, stored()))}
    assert [] == [f.id for f in facts if place(f.id, f.source, stored()) is None]


def test_every_analysis_that_a_figure_names_is_listed() -> None:
    """A figure of a new analysis needs a line that says what shows it, also where no run at hand has that figure."""
    lacking = {}
    for file in sorted(Path(diagnosis.__file__).parent.rglob("*.py")):
        texts = (node.value for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.Constant))
        sources = (text for text in texts if isinstance(text, str) and SOURCE.fullmatch(text))
        named = {word for text in sources for word in ANALYSIS.findall(text) if is_analysis(word)}
        lacking[file.name] = named - set(SHOWN)
    assert {} == {name: words for name, words in lacking.items() if words}


def is_analysis(name: str) -> bool:
    """Whether a dotted name is a module of `perfkit.analysis` and a function of it."""
    module, _, function = name.partition(".")
    found = find_spec(f"perfkit.analysis.{module}") if function else None
    return found is not None and hasattr(import_module(found.name), function)


def test_what_is_listed_exists() -> None:
    """Every analysis in the list is a function of perfkit, every table a table, every piece of code in a notebook."""
    for name in SHOWN:
        assert is_analysis(name) or name in TABLES or name.endswith("_frac"), name
    named = {table.rpartition("/")[2] for one in SHOWN.values() for table in one.tables}
    assert named <= set(TABLES)
    code = "\n".join(cell.code for cell in stored())
    assert [] == [piece for one in SHOWN.values() for piece in one.code if piece not in code]


def test_the_cell_that_names_a_figure_comes_before_one_that_calls_its_analysis() -> None:
    """A table with the figure shows it more plainly than a picture made of the same analysis."""
    calling = Cell("3_system", "a", "charts.shares.parts(parts)")
    naming = Cell("4_kernels", "b", 'report.figure_table(figures, ["idle_frac"])')
    assert naming == place(IDLE.id, IDLE.source, [calling, naming])
    assert calling == place("computation_frac", IDLE.source, [calling, naming])
    assert place(FOREIGN.id, FOREIGN.source, [calling, naming]) is None


def test_a_figure_is_a_link_for_jupyterlab() -> None:
    """The link leads to the notebook beside, at its cell; names and texts are escaped."""
    html = links.figure(IDLE, text="<i>50</i>").html
    cell = place(IDLE.id, IDLE.source, stored())
    assert cell is not None
    assert f'href="3_system.ipynb#cell-id={cell.id}"' in html
    assert 'data-label="GPU &lt;b&gt;idle&lt;/b&gt;"' in html
    assert html.endswith(">&lt;i&gt;50&lt;/i&gt;</a>")
    assert links.figure(FOREIGN).html == "50.0 %"


def test_a_source_names_the_tables_of_its_analysis() -> None:
    """Where the source names an analysis alone, the tables that it rests on stand before it."""
    gaps = Figure("idle_sync_frac", "Idle", 0.1, "1", "what", "gaps.idle_gaps")
    assert "KERNELS, COPIES, API_CALLS, RANGES; gaps.idle_gaps" == links.tables(gaps).text
    assert "KERNELS, COPIES; timeline.breakdown" == links.tables(IDLE).text
    assert "foreign.analysis" == links.tables(FOREIGN).text
    assert "&lt;b&gt;" in links.tables(Figure("a", "A", 0.1, "1", "what", "<b>")).html


def notebook(name: str, *outputs: str) -> tuple[str, nbformat.NotebookNode]:
    """An executed notebook whose cells show this HTML, with the code that shows idleness in the second."""
    made = [new_code_cell(f"charts.shares.parts({place})", id=f"cell{place}") for place, _ in enumerate(outputs)]
    for cell, html in zip(made, outputs, strict=True):
        cell.outputs = [new_output("display_data", data={"text/html": html})]
    return name, new_notebook(cells=[new_markdown_cell("# Why?"), *made])


def test_links_of_a_page_lead_to_the_cell_and_back() -> None:
    """The first of a figure in the summary has a name, to which the cell leads back; the cell names table and file."""
    one = links.figure(IDLE).html + links.tables(IDLE).html
    given = dict([notebook(SUMMARY, one, one), notebook("3_system", one)])
    report = Report(presented(given, given), frozenset({"KERNELS"}))
    made = links.page(given, report)
    first, second = (cell.outputs[0]["data"]["text/html"] for cell in made[SUMMARY].cells[1:])
    assert '<a class="perfkit-figure" id="figure-0" href="#3_system-cell0">50.0 %</a>' in first
    assert '<a class="perfkit-figure" href="#3_system-cell0">50.0 %</a>' in second
    assert '<a class="perfkit-data" href="tables/kernels.parquet">KERNELS</a>, COPIES; timeline' in first
    cell = made["3_system"].cells[1]
    assert "3_system-cell0" == cell.metadata["landing"]["anchor"]
    assert '<a href="#figure-0">GPU &lt;b&gt;idle&lt;/b&gt;</a>' in cell.metadata["landing"]["html"]
    assert "COPIES" not in cell.metadata["landing"]["html"]
    assert cell.outputs[0]["data"]["text/html"].startswith("50.0 %")  # no link to itself


def test_links_of_an_executed_notebook_lead_to_files() -> None:
    """Beside the other notebooks a number leads to one of them, a table to the folder of tables; all else is text."""
    one = links.figure(IDLE).html + links.tables(IDLE).html
    given = dict([notebook(SUMMARY, one), notebook("3_system", one)])
    alone = {SUMMARY: given[SUMMARY]}
    html, plain = (
        links.beside(given[SUMMARY], Report(cells(which.items()), tables)).cells[1].outputs[0]["data"]["text/html"]
        for which, tables in ((given, frozenset({"COPIES"})), (alone, frozenset[str]()))
    )
    assert 'href="3_system.ipynb#cell-id=cell0"' in html
    assert '<a class="perfkit-data" href="../tables/copies.parquet">COPIES</a>' in html
    assert "50.0 %KERNELS, COPIES; timeline.breakdown" == plain


def test_tables_of_the_framework_are_its_own_where_there_are_two() -> None:
    """What only the framework's profiler recorded lies among the run's tables; else its figures lead to its own."""
    for tables, path in (
        ({"KERNELS"}, "tables/kernels.parquet"),
        ({"KERNELS", "framework/KERNELS"}, "tables/framework/kernels.parquet"),
        (set[str](), ""),
    ):
        assert path == Report([], frozenset(tables)).file("framework/KERNELS")
    assert "" == Report([], frozenset({"KERNELS"})).file("baseline/KERNELS")


def test_a_page_to_print_has_no_links_to_files() -> None:
    """A PDF holds the place of a file on the machine that printed it; links inside the page stay."""
    page = '<a class="perfkit-data" href="tables/a.parquet">A</a> <a class="perfkit-figure" href="#b">5</a>'
    assert 'A <a class="perfkit-figure" href="#b">5</a>' == links.without_files(page)


def test_ids_of_cells_are_names_on_a_page() -> None:
    """No two cells of one notebook have the same id."""
    for name in NOTEBOOKS:
        ids = [cell.id for cell in nbformat.read(folder() / f"{name}.ipynb", as_version=4).cells]
        assert len(ids) == len(set(ids)), name


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
    """The kind of a report, and its folder; the notebooks are run without kernels, which take most of the time."""
    run, baseline, _ = REPORTS[request.param]
    out = tmp_path_factory.mktemp("crawled") / "report"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("perfkit.report.notebooks.execute", outputs)
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
