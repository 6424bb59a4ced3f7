"""A report: the contract of its files, and its PDF; nothing half-made stays."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from pathlib import Path
from typing import Any

import jsonschema
import nbformat
import pandas as pd
import pytest
from cells import outputs

import perfkit
from make import Shape, capture
from perfkit import diagnosis, report
from perfkit.errors import PerfkitError
from perfkit.report.notebooks import answering
from perfkit.report.pages import BROWSERS, browser, printed

VALIDATOR = jsonschema.Draft202012Validator(
    json.loads(Path(report.__file__).with_name("summary.schema.json").read_text(encoding="utf-8"))
)
SCRIPT = "<script>alert(1)</script>"
HOSTILE = (SCRIPT, "ядро_カーネル_🔥", "k" * 10_000, "a|b`c`*d*_e_ [f](g) </script><!--")
PARTS = ("computation_ns", "exposed_communication_ns", "exposed_copy_ns", "other_kernels_ns", "idle_ns")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture of two GPUs whose kernels and ranges have names that want to be code."""
    path = tmp_path_factory.mktemp("run") / "run.sqlite"
    capture(path, kernels=600, shape=Shape(gpus=2, nccl=True, hostile_names=HOSTILE))
    return path


@pytest.fixture(scope="module")
def built(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its report, with itself as the baseline."""
    out = tmp_path_factory.mktemp("out") / "report"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("perfkit.report.notebooks.execute", outputs)  # test_html.py builds one with kernels
        report.build(run, out, baseline=run)
    return out


@pytest.fixture(scope="module")
def loaded(run: Path) -> perfkit.Run:
    """The capture, read once; a selection does not change it."""
    return perfkit.load(run)


def summary(folder: Path) -> dict[str, Any]:
    """The contract, as a program reads it."""
    content: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return content


def test_writes_page_summaries_notebooks_and_tables(built: Path) -> None:
    """These five are what `perfkit report` promises; the marker lists their files."""
    steps = {"3_system.html", "6_compare.html"}
    promised = {"index.html", "summary.md", "figures.md", "summary.json", "notebooks", "tables", *steps}
    assert {*promised, ".perfkit.json"} == {p.name for p in built.iterdir()}
    listed = json.loads((built / ".perfkit.json").read_text(encoding="utf-8"))["files"]
    files = {path.relative_to(built).as_posix() for path in built.rglob("*") if path.is_file()}
    assert files - {".perfkit.json"} == set(listed)
    assert 600 == len(pd.read_parquet(built / "tables" / "kernels.parquet"))


def test_every_figure_has_value_unit_definition_source_and_notebook(built: Path) -> None:
    """`figures` maps an id to what is needed to believe the number."""
    content = summary(built)
    assert {"schema", "inputs", "summary", "figures", "findings", "refusals", "failures"} == set(content)
    assert [] == [f"{e.json_path}: {e.message}" for e in VALIDATOR.iter_errors(content)]
    assert [] == content["failures"]
    needed = {"label", "value", "unit", "definition", "source", "doubt", "notebook", "text", "cell", "tables"}
    assert [] == [i for i, figure in content["figures"].items() if needed != set(figure) or not figure["definition"]]


def test_findings_rest_on_figures_that_exist(built: Path) -> None:
    """Each piece of evidence is the id of a figure; no finding appears twice."""
    content = summary(built)
    assert [] == [e for f in content["findings"] for e in f["evidence"] if e not in content["figures"]]
    titles = [f["title"] for f in content["findings"]]
    assert sorted(set(titles)) == sorted(titles)


def test_hostile_names_are_text_in_the_page_and_the_summary(built: Path) -> None:
    """No name opens a tag of its own; as text it is there."""
    page = "".join(path.read_text(encoding="utf-8") for path in sorted(built.glob("*.html")))
    markdown = (built / "summary.md").read_text(encoding="utf-8")
    assert SCRIPT not in page
    assert "&lt;script&gt;alert(1)" in page
    assert "ядро_カーネル_🔥" in page
    assert SCRIPT not in markdown


def test_the_picture_is_told_in_words(built: Path) -> None:
    """A reader of the Markdown learns the shares that the bars of the two GPUs show; they are the whole time."""
    section = (built / "summary.md").read_text(encoding="utf-8").partition("## What the picture shows")[2]
    (told,) = re.findall(r"(?m)^- .*Stacked bar per GPU of (.*?)\. Communication", section.partition("## ")[0])
    shares = {part.rsplit(" ", 2)[0]: float(part.split(" ")[-2]) for part in told.split(", ")}
    assert {"computation", "copies"} <= set(shares)
    assert 100 == pytest.approx(sum(shares.values()), abs=0.1 * len(shares))


def test_hostile_names_are_text_in_the_notebooks(built: Path) -> None:
    """What a notebook shows as HTML holds no tag from a profile."""
    for path in (built / "notebooks").glob("*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        outputs = [
            o.data["text/html"]
            for c in notebook.cells
            for o in c.get("outputs", [])
            if "text/html" in o.get("data", {})
        ]
        assert outputs
        assert [] == [html for html in outputs if SCRIPT in html]


def test_page_requests_nothing(built: Path) -> None:
    """No source, link or style of the page leads to another host."""
    page = (built / "index.html").read_text(encoding="utf-8")
    assert [] == re.findall(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//[^"' >]+""", page)
    assert [] == re.findall(r"@import|url\(\s*['\"]?https?:", page)


def test_baseline_stands_beside_the_run(built: Path) -> None:
    """The summary names its baseline; here it is the run itself: the median step is the same twice, ratio 1.00.

    So few steps have an interval of 0.73 to 1.36, which allows both verdicts.
    """
    page, compared = (
        re.sub(r"</?a\b[^>]*>", "", (built / name).read_text(encoding="utf-8"))
        for name in ("index.html", "6_compare.html")
    )
    step = summary(built)["figures"]["step_median_ns"]["text"]
    assert "Before (run.sqlite) and after" in page
    assert re.search(rf"<td>Median step</td><td>{step}</td><td>{step}</td><td>1\.00, interval .*?</td>", page)
    told = f"The median step takes {step} instead of {step}: cannot tell (ratio 1.00, interval 0.734 to 1.36)"
    assert (1, 1) == (page.count(told), compared.count(told))


def test_baseline_brings_its_notebook(built: Path, loaded: perfkit.Run) -> None:
    """The comparison is part of a report with a baseline, its figures are recorded; without one it is left out."""
    assert (built / "notebooks" / "6_compare.ipynb").exists()
    page = (built / "index.html").read_text(encoding="utf-8")
    assert "Step 6: did the change help?" in page
    assert "Call paths" not in page  # neither run has any
    assert "6_compare" == summary(built)["figures"]["compare_worse_count"]["notebook"]
    assert 0 == summary(built)["figures"]["compare_worse_count"]["value"]
    assert {"6_compare"} == {*answering(loaded, loaded)} - {*answering(loaded)}


@pytest.mark.parametrize("gpus", [[], [0], [1]])
@pytest.mark.parametrize("window", [(), (1_001_000_000, 1_003_000_000)])
@pytest.mark.parametrize("kernels", ["", "gemm", "nccl"])
def test_parts_add_up_to_the_window_whatever_is_chosen(
    loaded: perfkit.Run, gpus: list[int], window: tuple[int, ...], kernels: str
) -> None:
    """computation + communication + copies + other kernels + idle = window x GPUs, to the nanosecond."""
    figures = diagnosis.figures(perfkit.select(loaded, gpus=gpus, window=window, kernels=kernels))
    parts = sum(figures[part].value for part in PARTS if part in figures)
    assert figures["span_ns"].value * figures["gpu_count"].value == parts
    if window:
        assert (window[1] - window[0]) * (len(gpus) or 2) == parts


def test_choice_changes_idle_only_with_gpus_and_window(loaded: perfkit.Run) -> None:
    """Looking at some kernels does not make the GPU idle while the others run."""
    every, some = (diagnosis.figures(perfkit.select(loaded, kernels=k)) for k in ("", "gemm"))
    assert every["idle_ns"].value == some["idle_ns"].value
    assert some["computation_ns"].value < every["computation_ns"].value


def test_failed_report_leaves_nothing(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A notebook that fails is named, and neither the report nor its parts stay."""
    monkeypatch.setattr("perfkit.report.notebooks.folder", lambda: tmp_path / "broken")
    (tmp_path / "broken").mkdir()
    cells = [
        nbformat.v4.new_code_cell("profile = ''", metadata={"tags": ["parameters"]}),
        nbformat.v4.new_code_cell("1 / 0"),
    ]
    spec = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
    for name in ("0_executive_summary", "3_system"):
        nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=spec), tmp_path / "broken" / f"{name}.ipynb")
    with pytest.raises(perfkit.PerfkitError, match="ZeroDivisionError"):
        report.build(run, tmp_path / "report")
    assert ["broken"] == [p.name for p in tmp_path.iterdir()]


@pytest.mark.usefixtures("without_kernels")
def test_earlier_report_is_replaced(built: Path, run: Path) -> None:
    """The same command twice gives one report, not two mixed; a file of the user's stays."""
    (built / "tables" / "mine.csv").write_text("mine")
    assert (built / "tables" / "baseline").is_dir()
    report.build(run, built, gpus=(1,))
    assert not (built / "tables" / "baseline").exists()
    assert "mine" == (built / "tables" / "mine.csv").read_text()
    assert [1] == summary(built)["inputs"]["parameters"]["gpus"]


PAGE = "<!doctype html><title>Run</title><h1>Run</h1><script>document.body.append('drawn')</script>"


def test_a_browser_prints_the_page(tmp_path: Path) -> None:
    """The file is a PDF with a page, at the place that was asked for."""
    if not any(map(shutil.which, BROWSERS)) and os.environ.get("CI") != "true":
        pytest.skip("no browser on PATH")
    (tmp_path / "page.html").write_text(PAGE)
    made = printed(tmp_path / "page.html", tmp_path / "report.pdf").read_bytes()
    assert made.startswith(b"%PDF-")
    assert b"/Type /Page" in made or b"/Type/Page" in made


def test_no_browser_is_refused_with_a_remedy(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Without one on the PATH the message names those that were looked for."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(PerfkitError, match=r"pdf: no browser on the PATH \(chromium, .*Install Chromium"):
        browser()


def test_a_browser_that_prints_nothing_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """What it said last is told, and there is no file."""
    program = tmp_path / "chromium"
    program.write_text("#!/bin/sh\necho 'cannot open display' >&2\nexit 1\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    with pytest.raises(PerfkitError, match="wrote no PDF and said: cannot open display"):
        printed(tmp_path / "page.html", tmp_path / "report.pdf")
    assert not (tmp_path / "report.pdf").exists()
