"""The explorer in JupyterLab in a browser, on a simulated capture of two GPUs, as a person uses it."""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser.exploring import BOX, CANVAS, FRAMES, LIMIT, OVERVIEW, ROOT, TIMELINE, Exploring
from browser.lab import Lab, Page

import make

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
    make.capture(lab.folder / "two.sqlite", kernels=KERNELS, shape=make.Shape(gpus=2, processes=2))
    page = Page(chromium.new_page(), lab)
    page.tab.set_viewport_size({"width": 1400, "height": 1300})
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
    return int(re.search(r"([\d,]+) operation", title)[1].replace(",", ""))  # type: ignore[index]


def zoomed(explorer: Exploring) -> str:
    """Zoom by brush and timeline until the operations stand one by one, and return the title."""
    title = explorer.title
    explorer.drag(OVERVIEW, 0.4, 0.5)
    title = explorer.until_other(title)
    explorer.drag(TIMELINE, 0.5, 0.58)
    return explorer.until_other(title)


def test_gpu(explorer: Exploring) -> None:
    both = explorer.title  # asked before the click: the answer may be faster than the next question
    explorer.mark("GPUs", "1")
    title = explorer.until_other(both)
    assert title.startswith("GPU 1: ")
    assert explorer.ask("len(run.kernels[run.kernels.gpu == 1]) + len(run.copies[run.copies.gpu == 1])") == count(title)
    assert count(title) < count(both)
    assert (1,) == explorer.ask("explorer.gpus")


def test_kernel_name(explorer: Exploring) -> None:
    explorer.type("kernels", "sgemm")
    explorer.until_title("kernels matching “sgemm”")
    launches = explorer.ask("int(run.kernels.name.astype(str).str.contains('sgemm').sum())")
    assert f"launches: {launches:,};" in explorer.said
    completed = explorer.tab.locator(f"{BOX} datalist option").evaluate_all("all => all.map(one => one.value)")
    assert explorer.ask("run.kernels.groupby('name', observed=True).dur_ns.sum().idxmax()") == completed[0]


def test_brush(explorer: Exploring) -> None:
    start, end = explorer.ask("explorer.lanes.span")
    picture = f"document.querySelector('{BOX} svg.marks').closest('.vega-embed').querySelector('canvas').toDataURL()"
    before = explorer.tab.evaluate(picture)
    explorer.drag(OVERVIEW, 0.25, 0.5)
    for _ in range(100):  # a slow machine is told where the mouse was on its way, before where it ended
        window = explorer.ask("explorer.window")
        edges = [(edge - start) / (end - start) for edge in window]
        if edges == pytest.approx([0.25, 0.5], abs=1 / 600):
            break
        explorer.tab.wait_for_timeout(200)
    assert [0.25, 0.5] == pytest.approx(edges, abs=1 / 600)
    explorer.until_title(f"{explorer.ask('explorer.lanes.count(window=explorer.window)'):,} operations")
    explorer.until_slider_states(window)
    assert before != explorer.tab.evaluate(picture)
    explorer.tab.mouse.move(0, 0)
    explorer.reset()
    explorer.tab.wait_for_function(f"before => {picture} === before", arg=before, timeout=LIMIT)  # without the brush


def test_the_overview_is_as_wide_as_the_timeline(explorer: Exploring) -> None:
    for wide in (1000, 1600, 1400):
        explorer.tab.set_viewport_size({"width": wide, "height": 1300})
        pictures = (f"document.querySelector('{BOX} svg.marks')", CANVAS)
        ends = " - ".join(f"{picture}.getBoundingClientRect().right" for picture in pictures)
        explorer.tab.wait_for_function(f"Math.abs({ends}) < 20", timeout=LIMIT)
    title = explorer.title
    explorer.drag(OVERVIEW, 0.2, 0.4)
    explorer.until_other(title)  # a brush is told once it rests: Reset has something to reset then


def test_zoom_until_single(explorer: Exploring) -> None:
    title = zoomed(explorer)
    bars = explorer.bars()
    assert 20 < count(title) == len(bars)
    assert all(re.search(r"name: .+ lane: GPU [01] .+ duration: .+ launched by: cuda", bar["said"]) for bar in bars)


def test_click_shows_the_dossier(explorer: Exploring) -> None:
    zoomed(explorer)
    explorer.tab.wait_for_timeout(500)
    bar = next(bar for bar in explorer.bars() if "kind: gemm" in bar["said"])
    explorer.tab.mouse.click(bar["x"] + bar["width"] / 2, bar["y"] + bar["height"] / 2)
    shown = explorer.tab.locator(f"{BOX} table", has_text="This launch")
    shown.wait_for(timeout=LIMIT)
    name, correlation = re.search(r"name: (\S+);.* correlation: (\d+);", bar["said"]).groups()  # type: ignore[union-attr]
    assert name in shown.inner_text()
    assert correlation in shown.inner_text()
    explorer.tab.locator(f"{BOX} table", has_text=f"All launches of {name} in these").wait_for(timeout=LIMIT)


def test_report_of_the_window(explorer: Exploring, lab: Lab) -> None:
    zoomed(explorer)
    figures = json.loads(explorer.ask("figures()"))
    explorer.press("Report this window")
    link = explorer.tab.locator(f"{BOX} a", has_text="index.html")
    link.wait_for(timeout=4 * LIMIT)
    summary = json.loads((lab.folder / link.inner_text()).with_name("summary.json").read_text())
    assert figures == {name: {**_as_found(summary["figures"][name]), "id": name} for name in figures}


def test_gestures(explorer: Exploring) -> None:
    tab, cells = explorer.tab, "document.querySelectorAll('.jp-Notebook .jp-Cell').length"
    before = tab.evaluate(cells)
    explorer.point(0.5)
    first, last = explorer.settle()
    for turn in (tab.mouse.wheel, _with("Control", tab)):
        length = last - first
        turn(0, -300)
        first, last = explorer.settle()
        assert 0 < last - first < 0.9 * length
    start, end = explorer.ask("explorer.lanes.span")
    assert [first, last] == [edge - start for edge in explorer.ask("explorer.window")]
    assert 0.5 == pytest.approx((first + last) / 2 / (end - start), abs=0.01)  # what the pointer showed is still there
    tab.evaluate(f"{ROOT}.focus()")
    lengths = {"w": 0.6, "s": 1.0, "a": 1.0, "d": 1.0, "ArrowLeft": 1.0, "ArrowRight": 1.0}
    length, at = last - first, []
    for key, factor in lengths.items():
        tab.keyboard.press(key)
        view = explorer.settle()
        at.append(view[0])
        assert factor * length == pytest.approx(view[1] - view[0], rel=1e-3)
    assert at[2] < at[1]
    assert at[4] < at[1]
    assert [at[1], at[1]] == pytest.approx([at[3], at[5]], abs=2)
    tab.keyboard.press("u")
    assert at[4] == pytest.approx(explorer.settle()[0], abs=2)
    first, last = explorer.seen["view"]
    tab.keyboard.down("Shift")
    explorer.drag(TIMELINE, 0.6, 0.4)  # to the left: what comes later moves in
    tab.keyboard.up("Shift")
    view = explorer.settle()
    assert (last - first, first + 0.2 * (last - first)) == pytest.approx((view[1] - view[0], view[0]), rel=0.05)
    for key in ("m", "x", "c", "z", "b", "Escape"):  # in the notebook, some of these cut or add cells
        tab.keyboard.press(key)
    assert tab.evaluate(cells) == before


def test_fast_turns_of_the_wheel_add_up(explorer: Exploring) -> None:
    """Each turn was sent, drawn, and answered late: the window jumped back and turns were lost."""
    explorer.ask(
        "[globals().update(told=[]), explorer.observe(lambda change: told.append(change['new']), 'window')][0]"
    )
    explorer.point(0.5)
    explorer.settle()
    explorer.tab.evaluate(f"{ROOT}.focus()")
    for _ in range(8):
        explorer.tab.mouse.wheel(0, -120)
        explorer.tab.wait_for_timeout(130)
    first, last = explorer.settle()
    start, end = explorer.ask("explorer.lanes.span")
    assert math.exp(-8 * 0.36) == pytest.approx((last - first) / (end - start), rel=0.01)
    lengths = [last - first for first, last in explorer.ask("told")]
    assert lengths == sorted(lengths, reverse=True)


def _with(key: str, tab: Any) -> Any:
    def turn(across: float, down: float) -> None:
        tab.keyboard.down(key)
        tab.mouse.wheel(across, down)
        tab.keyboard.up(key)

    return turn


def test_measure_fit_and_mark(explorer: Exploring) -> None:
    zoomed(explorer)
    explorer.settle()
    bars = [bar for bar in explorer.bars() if "kind: copy" not in bar["said"]]
    one, other = sorted(bars[:2], key=lambda bar: float(bar["x"]))
    middle = [(bar["x"] + bar["width"] / 2, bar["y"] + bar["height"] / 2) for bar in (one, other)]
    explorer.tab.mouse.click(*middle[0])
    explorer.tab.locator(f"{BOX} table", has_text="This launch").wait_for(timeout=LIMIT)
    explorer.tab.keyboard.down("Shift")
    explorer.tab.mouse.click(*middle[1])
    explorer.tab.keyboard.up("Shift")
    said = explorer.tab.locator(f"{BOX} .perfkit-timeline-said")
    assert "start to start" in said.inner_text()
    explorer.point(0.25)
    explorer.tab.keyboard.press("m")
    explorer.point(0.75)
    explorer.tab.keyboard.press("m")
    view = explorer.seen["view"]
    assert 2 == len(marks := explorer.seen["marks"])
    assert marks[1] - marks[0] == pytest.approx((view[1] - view[0]) / 2, rel=0.01)
    assert said.inner_text().startswith("mark 1 to 2: ")
    picked = explorer.seen["picked"]
    explorer.tab.keyboard.press("f")
    view = explorer.settle()
    assert 1.5 * picked["took"] == pytest.approx(view[1] - view[0], rel=0.01)
    assert view[0] < picked["start"] < view[1]


def test_search_jumps_from_match_to_match(explorer: Exploring) -> None:
    field = explorer.tab.locator(f"{BOX} .perfkit-timeline input")
    field.fill("softmax > 1 us")
    field.press("Enter")
    first = _match(explorer, 0)
    assert "" == explorer.ask("explorer.kernels")
    window = explorer.ask("explorer.window")
    field.press("Enter")
    assert first + 1 == _match(explorer, first)
    assert window != explorer.ask("explorer.window")


def _match(explorer: Exploring, before: int) -> int:
    """The number of the match that is jumped to, once it is another one than before."""
    number = f"Number({ROOT}.innerText.match(/match ([0-9]+) of [0-9,]+ matches/)?.[1] ?? 0)"
    explorer.tab.wait_for_function(f"before => ![0, before].includes({number})", arg=before, timeout=LIMIT)
    explorer.settle()
    return int(explorer.tab.evaluate(number))


def test_lanes_are_closed_pinned_and_hidden(explorer: Exploring) -> None:
    explorer.settle()
    x, y, _, _ = explorer.tab.evaluate(FRAMES[TIMELINE])
    rows = explorer.seen["rows"]
    left, middle = x - explorer.seen["left"], y + rows[1]["top"] + rows[1]["high"] / 2
    explorer.tab.mouse.click(left + 22, middle)  # pin
    assert [rows[1]["label"], rows[0]["label"]] == [row["label"] for row in explorer.seen["rows"][:2]]
    explorer.tab.mouse.click(left + 45, y + rows[0]["top"] + 5)  # hide the one that is on top now
    assert rows[1]["label"] not in [row["label"] for row in explorer.seen["rows"]]
    explorer.tab.mouse.click(left + 6, y + rows[0]["top"] + 5)  # close
    assert explorer.seen["rows"][0]["high"] < 10
    explorer.press("show 1 hidden")
    assert rows == explorer.seen["rows"]


def test_nothing_is_a_sentence(explorer: Exploring) -> None:
    explorer.type("kernels", "no_such_kernel")
    explorer.until_said("none of the 18 kernel names contains 'no_such_kernel'")
    explorer.ask("explorer.choose(kernels='softmax', window=(explorer.lanes.span[0], explorer.lanes.span[0] + 9))")
    said = explorer.until_said("nothing ran of all GPUs")
    assert said.endswith("Choose a longer window, other GPUs, or other kernels.")
    assert not explorer.tab.locator(f"{BOX} .perfkit-timeline canvas").is_visible()


@pytest.mark.parametrize("theme", ["JupyterLab Dark", "JupyterLab Light"])
def test_text_is_read_in(theme: str, explorer: Exploring) -> None:
    """Each text has a contrast of 4.5 to 1, in pictures drawn before and after the theme was chosen."""
    zoomed(explorer)
    window = explorer.ask("explorer.window")
    explorer.tab.evaluate("theme => jupyterapp.commands.execute('apputils:change-theme', {theme})", theme)
    explorer.tab.wait_for_function(f"document.body.dataset.jpThemeName === '{theme}'")
    explorer.tab.wait_for_timeout(1000)  # colours fade
    assert window == explorer.ask("explorer.window")  # kept, though the page has no width between two themes
    before = explorer.contrasts()
    explorer.reset()
    contrasts = {*before, *explorer.contrasts()}
    texts = {text for text, _ in contrasts}
    assert {"GPUs", "families", "kernels", "window (ms)", "Reset", "filter"} < texts
    assert any(text.startswith("time since the start") for text in texts)
    assert [] == sorted((text, contrast) for text, contrast in contrasts if contrast < LEAST_CONTRAST)


def _as_found(figure: dict[str, Any]) -> dict[str, Any]:
    """A figure without what a report says of where it stands: notebook, cell, and files of tables."""
    return {name: value for name, value in figure.items() if name not in ("notebook", "cell", "tables")}
