"""A report: the contract of its files, and its PDF; nothing half-made stays."""

import json
import math
import re
from itertools import product
from pathlib import Path
from typing import Any

import jsonschema
import nbformat
import pandas as pd
import pytest
from cells import built
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

import perfkit
from make import Shape, capture
from perfkit import diagnosis, report
from perfkit.errors import PerfkitError
from perfkit.format import EMPTY
from perfkit.report.notebooks import MIME, answering, record
from perfkit.report.pages import presentable
from perfkit.report.printing import browser

VALIDATOR = jsonschema.Draft202012Validator(
    json.loads(Path(report.__file__).with_name("summary.schema.json").read_text(encoding="utf-8"))
)
SCRIPT = "<script>alert(1)</script>"
HOSTILE = (SCRIPT, "ядро_カーネル_🔥", "k" * 10_000, "a|b`c`*d*_e_ [f](g) </script><!--")
PARTS = (
    "computation_ns",
    "exposed_communication_ns",
    "exposed_copy_ns",
    "other_kernels_ns",
    "idle_ns",
)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture of two GPUs whose kernels and ranges have names that want to be code."""
    path = tmp_path_factory.mktemp("run") / "run.sqlite"
    capture(path, kernels=600, shape=Shape(gpus=2, nccl=True, hostile_names=HOSTILE))
    return path


@pytest.fixture(scope="module")
def made(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(run, tmp_path_factory.mktemp("out"), baseline=run)


@pytest.fixture(scope="module")
def loaded(run: Path) -> perfkit.Run:
    """The capture, read once; a selection does not change it."""
    return perfkit.load(run)


def test_each_page_of_a_simulated_run_says_so(made: Path) -> None:
    pages = sorted(made.glob("*.html"))
    labels = [
        re.findall(r'<span class="run">(.*?)</span>', page.read_text("utf-8")) for page in pages
    ]
    assert len(labels) > 2
    assert [["perfkit: run.sqlite, simulated, not measured"]] * len(labels) == labels


def summary(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    return content


def test_writes_page_summaries_notebooks_and_tables(made: Path) -> None:
    steps = {"3_system.html", "6_compare.html"}
    promised = {
        "index.html",
        "summary.md",
        "figures.md",
        "summary.json",
        "notebooks",
        "tables",
        *steps,
    }
    assert {*promised, ".perfkit.json"} == {p.name for p in made.iterdir()}
    listed = json.loads((made / ".perfkit.json").read_text(encoding="utf-8"))["files"]
    files = {path.relative_to(made).as_posix() for path in made.rglob("*") if path.is_file()}
    assert files - {".perfkit.json"} == set(listed)
    assert 600 == len(pd.read_parquet(made / "tables" / "kernels.parquet"))


def test_the_summary_of_a_whole_report_keeps_its_contract(made: Path) -> None:
    content = summary(made)
    assert {"schema", "inputs", "summary", "figures", "findings", "refusals", "failures"} == set(
        content
    )
    assert [] == [f"{e.json_path}: {e.message}" for e in VALIDATOR.iter_errors(content)]
    assert [] == content["failures"]
    needed = {
        "label",
        "value",
        "unit",
        "definition",
        "source",
        "doubt",
        "notebook",
        "text",
        "cell",
        "tables",
    }
    assert [] == [
        i
        for i, figure in content["figures"].items()
        if needed != set(figure) or not figure["definition"]
    ]
    assert [] == [
        e for f in content["findings"] for e in f["evidence"] if e not in content["figures"]
    ]
    titles = [f["title"] for f in content["findings"]]
    assert sorted(set(titles)) == sorted(titles)


def test_hostile_names_are_text(made: Path) -> None:
    index, markdown = (
        (made / name).read_text(encoding="utf-8") for name in ("index.html", "summary.md")
    )
    page = "".join(path.read_text(encoding="utf-8") for path in sorted(made.glob("*.html")))
    assert SCRIPT not in page + markdown
    assert "&lt;script&gt;alert(1)" in page
    assert "ядро_カーネル_🔥" in page
    assert [] == re.findall(r"""(?:src|href)\s*=\s*["']?(?:https?:)?//[^"' >]+""", index), (
        "it requests nothing"
    )
    assert [] == re.findall(r"@import|url\(\s*['\"]?https?:", index)
    for path in (made / "notebooks").glob("*.ipynb"):
        outputs = [
            out
            for cell in nbformat.read(path, as_version=4).cells
            for out in cell.get("outputs", [])
        ]
        shown = [out.data["text/html"] for out in outputs if "text/html" in out.get("data", {})]
        assert shown
        assert [] == [html for html in shown if SCRIPT in html]


def test_the_picture_is_told_in_words(made: Path) -> None:
    # A reader of the Markdown learns the shares that the bars of the two GPUs show; they are the whole time.
    section = (
        (made / "summary.md").read_text(encoding="utf-8").partition("## What the picture shows")[2]
    )
    (told,) = re.findall(
        r"(?m)^- .*Stacked bar per GPU of (.*?)\. Communication", section.partition("## ")[0]
    )
    shares = {part.rsplit(" ", 2)[0]: float(part.split(" ")[-2]) for part in told.split(", ")}
    assert {"computation", "copies"} <= set(shares)
    assert 100 == pytest.approx(sum(shares.values()), abs=0.1 * len(shares))


def test_a_baseline_stands_beside_the_run_and_brings_its_notebook(
    made: Path, loaded: perfkit.Run
) -> None:
    # It is the run itself: the median step is the same twice. So few steps have an interval of 0.73 to 1.36.
    index, comparison = (
        (made / name).read_text(encoding="utf-8") for name in ("index.html", "6_compare.html")
    )
    page, compared = (re.sub(r"</?a\b[^>]*>", "", text) for text in (index, comparison))
    figures = summary(made)["figures"]
    step = figures["step_median_ns"]["text"]
    assert "Before (run.sqlite) and after" in page
    cells = ("Median step", step, step, r"1\.00, interval .*?")
    assert re.search("".join(f"<td[^>]*>{cell}</td>" for cell in cells), page)
    told = f"The median step takes {step} instead of {step}: cannot tell (ratio 1.00, interval 0.734 to 1.36)"
    assert (1, 1) == (page.count(told), compared.count(told))
    assert (made / "notebooks" / "6_compare.ipynb").exists()
    assert "Step 6: did the change help?" in index
    assert "Call paths" not in index  # neither run has any
    assert ("6_compare", 0) == tuple(
        figures["compare_worse_count"][name] for name in ("notebook", "value")
    )
    assert {"6_compare"} == {*answering(loaded, loaded)} - {*answering(loaded)}


def test_parts_add_up_to_the_window_whatever_is_chosen(loaded: perfkit.Run) -> None:
    window = (1_001_000_000, 1_003_000_000)
    for gpus, chosen, kernels in product(([], [1]), ((), window), ("", "nccl")):
        figures = diagnosis.figures(
            perfkit.select(loaded, gpus=gpus, window=chosen, kernels=kernels)
        )
        parts = sum(figures[part].value for part in PARTS if part in figures)
        assert figures["span_ns"].value * figures["gpu_count"].value == parts, "to the nanosecond"
        assert not chosen or (window[1] - window[0]) * (len(gpus) or 2) == parts
    # Looking at some kernels does not make the GPU idle while the others run.
    every, some = (diagnosis.figures(perfkit.select(loaded, kernels=k)) for k in ("", "gemm"))
    assert every["idle_ns"].value == some["idle_ns"].value
    assert some["computation_ns"].value < every["computation_ns"].value


def test_earlier_report_is_replaced(made: Path, run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("perfkit.report.notebooks.answering", lambda *_: ["0_executive_summary"])
    (made / "tables" / "mine.csv").write_text("mine")
    assert (made / "tables" / "baseline").is_dir()
    built(run, made.parent, gpus=(1,))
    assert not (made / "tables" / "baseline").exists()
    assert "mine" == (made / "tables" / "mine.csv").read_text()
    assert [1] == summary(made)["inputs"]["parameters"]["gpus"]


def test_a_browser_that_is_not_there(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(
        PerfkitError, match=r"pdf: no browser on the PATH \(chromium, .*Install Chromium"
    ):
        browser()


def shown(text: str, *tags: str) -> nbformat.NotebookNode:
    output = new_output("display_data", data={"text/plain": text})
    return new_code_cell(text, outputs=[output], metadata={"tags": list(tags)})


def sources(cells: list[nbformat.NotebookNode], *tables: str) -> list[str]:
    """What is left of cells on a page of a run with these tables."""
    return [cell.source for cell in presentable(new_notebook(cells=cells), {*tables}).cells]


def test_cells_for_a_page() -> None:
    cells = [shown("a", "needs:KERNELS|COPIES"), shown("b", "needs:LAUNCHES"), shown("c")]
    assert ["any", "b", "c"] == sources([new_markdown_cell("any"), *cells], "LAUNCHES")
    assert ["any", "a", "c"] == sources([new_markdown_cell("any"), *cells], "COPIES")
    recording = new_code_cell("record()", outputs=[new_output("display_data", data={MIME: {}})])
    assert ["x = 1\n\nx"] == sources([new_code_cell("x = 1"), shown("x"), recording])
    about = new_markdown_cell("choose", metadata={"tags": ["live"]})
    cells = [
        about,
        shown("seen = explorer(view)", "live"),
        new_markdown_cell("look"),
        shown("timeline(seen)"),
    ]
    assert ["look", "seen = explorer(view)\n\ntimeline(seen)"] == sources(cells)
    one, two, three = (new_markdown_cell(f"## {n}. {w}\n\nWhy") for n, w in enumerate("ABC", 1))
    cells = [one, shown("a"), two, new_code_cell("None"), three, shown("b")]
    assert ["## 1. A\n\nWhy", "a", "## 2. C\n\nWhy", "None\n\nb"] == sources(cells)


def test_prose_about_empty_tables_is_left_out() -> None:
    empty, other = shown("empty"), shown("other")
    for cell in (empty, other):
        cell.outputs[0].metadata = {EMPTY: True}
    one, two = (new_markdown_cell(f"## {name}. A\n\nWhy") for name in (1, 2))
    more, last = new_markdown_cell("more"), new_markdown_cell("last")
    cells = [one, empty, more, shown("a"), two, last, other]
    assert ["## 1. A", "more", "empty\n\na"] == sources(cells)


def test_what_has_no_end_is_null_in_what_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    # JupyterLab writes no infinity: a gain without an upper end is null, as the schema of summary.json says.
    shown: list[dict[str, Any]] = []
    monkeypatch.setattr("IPython.display.display", lambda data, **_: shown.append(data))
    figure = diagnosis.Figure("idle", "Idle", math.nan, "1", "share", "KERNELS")
    record([figure], summary={"gains": [{"high": math.inf, "low": 1.0}]})
    (content,) = (data[MIME] for data in shown)
    assert (None, {"high": None, "low": 1.0}) == (
        content["figures"][0]["value"],
        content["summary"]["gains"][0],
    )
    json.dumps(content, allow_nan=False)
