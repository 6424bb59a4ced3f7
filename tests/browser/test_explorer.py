"""The explorer in JupyterLab in a browser, on a simulated capture of two GPUs, as a person uses it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from browser.exploring import BOX, LIMIT, OVERVIEW, TIMELINE, Exploring
from browser.lab import Lab, Page

import make
from perfkit.report.notebooks import collect, execute

KERNELS = 20_000
NOTEBOOK = """
import json
import perfkit
from perfkit import diagnosis, widgets

run = perfkit.load("two.sqlite")
explorer = widgets.explorer(run)

def figures():
    found = diagnosis.figures(explorer.selection)
    return json.dumps({name: diagnosis.plain(figure) for name, figure in found.items()})

explorer
"""
WHOLE = "GPU 0, GPU 1: "
LEAST_CONTRAST = 4.5  # of text and paper: WCAG 2.1, success criterion 1.4.3


@pytest.fixture(scope="module")
def opened(chromium: Any, lab: Lab) -> Iterator[Page]:
    """A notebook that has run, with an explorer of the capture."""
    make.capture(lab.folder / "two.sqlite", kernels=KERNELS, shape=make.Shape(gpus=2, processes=2))
    page = Page(chromium.new_page(viewport={"width": 1400, "height": 1300}), lab)
    page.run(lab.write("explorer", NOTEBOOK))
    assert [] == page.errors()
    Exploring(page.tab).until_title(WHOLE)
    yield page
    page.close()


@pytest.fixture
def explorer(opened: Page, shots: Path | None, request: pytest.FixtureRequest) -> Iterator[Exploring]:
    """The explorer with nothing chosen; nothing may appear on the console, and no other machine be asked."""
    exploring = Exploring(opened.tab)
    exploring.reset()
    yield exploring
    if shots:
        opened.tab.wait_for_timeout(500)
        opened.tab.screenshot(path=shots / f"{request.node.name}.png")
    assert ([], [], []) == (opened.console, opened.foreign, opened.errors())


def count(title: str) -> int:
    """The number of operations in a title of the timeline."""
    return int(re.search(r"([\d,]+) operation", title)[1].replace(",", ""))  # type: ignore[index]


def zoomed(explorer: Exploring) -> str:
    """Zoom by brush and timeline until the operations stand one by one, and return the title."""
    title = explorer.title
    explorer.drag(OVERVIEW, 0.4, 0.5)
    title = explorer.until_other(title)
    explorer.drag(TIMELINE, 0.5, 0.58)
    return explorer.until_other(title)


def test_gpu(explorer: Exploring) -> None:
    """A click on a GPU leaves its operations, and no others."""
    both = count(explorer.title)
    explorer.mark("GPUs", "1")
    title = explorer.until_other(explorer.title)
    assert title.startswith("GPU 1: ")
    assert explorer.ask("len(run.kernels[run.kernels.gpu == 1]) + len(run.copies[run.copies.gpu == 1])") == count(title)
    assert count(title) < both
    assert (1,) == explorer.ask("explorer.gpus")


def test_kernel_name(explorer: Exploring) -> None:
    """Part of a name, typed, leaves the kernels with it; the box completes names with most time first."""
    explorer.type("kernels", "sgemm")
    explorer.until_title("kernels matching “sgemm”")
    launches = explorer.ask("int(run.kernels.name.astype(str).str.contains('sgemm').sum())")
    assert f"launches: {launches:,};" in explorer.said
    completed = explorer.tab.locator(f"{BOX} datalist option").evaluate_all("all => all.map(one => one.value)")
    assert explorer.ask("run.kernels.groupby('name', observed=True).dur_ns.sum().idxmax()") == completed[0]


def test_brush(explorer: Exploring) -> None:
    """A window dragged over the overview is that of slider, timeline and code, to a pixel."""
    start, end = explorer.ask("explorer.lanes.span")
    explorer.drag(OVERVIEW, 0.25, 0.5)
    title = explorer.until_other(explorer.title)
    window = explorer.ask("explorer.window")
    assert [0.25, 0.5] == pytest.approx([(edge - start) / (end - start) for edge in window], abs=1 / 600)
    assert explorer.ask("explorer.lanes.count(window=explorer.window)") == count(title)
    readout = explorer.tab.locator(f"{BOX} .widget-readout").first.inner_text()
    shown = [float(edge) for edge in re.findall(r"[\d.]+", readout)]
    assert [edge / 1e6 for edge in window] == pytest.approx(shown, abs=1e-3)


def test_zoom_until_single(explorer: Exploring) -> None:
    """Operations that are few enough stand one by one, as many as are said, each with its launching call."""
    title = zoomed(explorer)
    bars = explorer.bars()
    assert 20 < count(title) == len(bars)
    assert all(re.search(r"name: .+ lane: GPU [01] .+ duration: .+ launched by: cuda", bar["said"]) for bar in bars)


def test_click_shows_the_dossier(explorer: Exploring) -> None:
    """A click on a kernel shows its launch, and the dossier of its name."""
    zoomed(explorer)
    explorer.tab.wait_for_timeout(500)
    bar = next(bar for bar in explorer.bars() if "kind: gemm" in bar["said"])
    explorer.tab.mouse.click(bar["x"] + bar["width"] / 2, bar["y"] + bar["height"] / 2)
    shown = explorer.tab.locator(f"{BOX} table", has_text="This launch")
    shown.wait_for(timeout=LIMIT)
    name, correlation = re.search(r"name: (\S+);.* correlation: (\d+);", bar["said"]).groups()  # type: ignore[union-attr]
    assert name in shown.inner_text()
    assert correlation in shown.inner_text()
    assert 1 == explorer.tab.locator(f"{BOX} table", has_text=f"All launches of {name} in these").count()


def test_copied_parameters_give_the_same_figures(explorer: Exploring, tmp_path: Path) -> None:
    """papermill, given the parameters that are shown for GPU 1 and a window, finds what the explorer's choice holds."""
    explorer.mark("GPUs", "1")
    explorer.until_title("When GPU 1 worked", OVERVIEW)
    explorer.drag(OVERVIEW, 0.5, 0.6)
    explorer.until_said("Chosen: GPU 1, 1.0")
    explorer.press("Copy as parameters")
    text = explorer.tab.locator(f"{BOX} textarea")
    text.wait_for()
    explorer.tab.wait_for_function(f"document.querySelector('{BOX} textarea').value.includes('gpus: [1]')")
    parameters = yaml.safe_load(text.input_value().partition("# in a file FILE.yaml")[2].partition("\n")[2])
    explorer.press("Copy as parameters")
    assert [*explorer.ask("explorer.window")] == parameters["window"]
    figures = json.loads(explorer.ask("figures()"))
    notebooks = execute(["3_system"], parameters, done=lambda _: None)
    found = collect(notebooks.items()).figures
    assert 5 < len(figures)
    assert figures == {name: _as_found(found[name]) for name in figures}


def test_report_of_the_window(explorer: Exploring, lab: Lab) -> None:
    """A report of the choice is made in the background; its figures are those of the choice."""
    zoomed(explorer)
    figures = json.loads(explorer.ask("figures()"))
    explorer.press("Report this window")
    link = explorer.tab.locator(f"{BOX} a", has_text="index.html")
    link.wait_for(timeout=4 * LIMIT)
    summary = json.loads((lab.folder / link.inner_text()).with_name("summary.json").read_text())
    assert figures == {name: {**_as_found(summary["figures"][name]), "id": name} for name in figures}


def test_nothing_is_a_sentence(explorer: Exploring) -> None:
    """A name that no kernel has, and one that has no launch in the window, are answered in words."""
    explorer.type("kernels", "no_such_kernel")
    explorer.until_said("none of the 18 kernel names contains 'no_such_kernel'")
    explorer.ask("explorer.choose(kernels='softmax', window=(explorer.lanes.span[0], explorer.lanes.span[0] + 9))")
    said = explorer.until_said("nothing ran of all GPUs")
    assert said.endswith("Choose a longer window, other GPUs, or other kernels.")
    assert not explorer.tab.locator(f"{BOX} svg.marks").nth(TIMELINE).is_visible()


def test_pictures_do_not_cut_each_other(explorer: Exploring) -> None:
    """No two pictures share the name of a clip path: the page would cut the lower of them like the upper."""
    names = explorer.tab.locator("svg.marks clipPath").evaluate_all("all => all.map(one => one.id)")
    assert 2 < len(names) == len({*names})


@pytest.mark.parametrize("theme", ["JupyterLab Dark", "JupyterLab Light"])
def test_text_is_read_in(theme: str, explorer: Exploring) -> None:
    """Each text has a contrast of 4.5 to 1, in pictures drawn before and after the theme was chosen."""
    zoomed(explorer)
    explorer.tab.evaluate("theme => jupyterapp.commands.execute('apputils:change-theme', {theme})", theme)
    explorer.tab.wait_for_function(f"document.body.dataset.jpThemeName === '{theme}'")
    explorer.tab.wait_for_timeout(1000)  # colours fade
    before = explorer.contrasts()
    explorer.reset()
    contrasts = {*before, *explorer.contrasts()}
    texts = {text for text, _ in contrasts}
    assert {"GPUs", "families", "kernels", "window (ms)", "GPU 0 · stream 7", "Reset"} < texts
    assert any(text.startswith("time since the start") for text in texts)
    assert [] == sorted((text, contrast) for text, contrast in contrasts if contrast < LEAST_CONTRAST)


def _as_found(figure: dict[str, Any]) -> dict[str, Any]:
    """A figure without what a report says of where it stands: notebook, cell, and files of tables."""
    return {name: value for name, value in figure.items() if name not in ("notebook", "cell", "tables")}
