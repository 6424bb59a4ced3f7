"""Every notebook runs in JupyterLab in a browser as it is handed out, and follows its explorer, used as by a person.

All is in one file, for which one JupyterLab and one browser start.
"""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser.exploring import (
    BOX,
    CANVAS,
    COUNT,
    FRAMES,
    LIMIT,
    OVERVIEW,
    ROOT,
    SHOWN,
    TIMELINE,
    TINY,
    TOUCHING,
    Exploring,
    fit_their_cells,
    held,
    lead_the_explorer,
    show_whose_time_a_part_is,
    stay_in_view,
)
from browser.lab import RUN, Lab, Page
from cells import built
from megatron import training
from readers.nccl_files import table, written

import make
from perfkit.report.lab import prepare
from perfkit.report.links import place, stored
from perfkit.report.notebooks import NOTEBOOKS, START, sample

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
COMPARED = "diagnosis.verdict.against(seen.selection, baseline=before)"
WHOLE = "GPU 0, GPU 1: "
LEAST_CONTRAST = 4.5  # of text and paper: WCAG 2.1, success criterion 1.4.3


SOURCE = "KERNELS, COPIES; timeline.breakdown"
CELL = f"""from perfkit.diagnosis import Figure
from perfkit.report import links
links.figure(Figure("idle_frac", "GPU idle", 0.5, "1", "what", {SOURCE!r}))"""
DOLLARS = """from IPython.display import HTML, display
from pandas import DataFrame
from perfkit.charts import tables
display(tables.show(DataFrame({"name": ["$a$ and $b$"]})), HTML("<p>$c$</p>"))"""
IS_OPEN = "path => window.jupyterapp.shell.currentWidget?.context?.path === path"
IS_SEEN = """id => {
    const cell = window.jupyterapp.shell.currentWidget?.content?.widgets?.find(one => one.model.id === id);
    const top = cell?.node.getBoundingClientRect().top;
    return top >= 0 && top < window.innerHeight;
}"""

EARLIER = """import perfkit
from perfkit import widgets
seen = widgets.explorer(perfkit.load("chosen.sqlite"))
seen.choose(window=(1_002_000_000, 1_003_000_000), kernels="gemm")"""


def test_header_and_slider_state_the_window_in_force_and_what_was_chosen_before_leaves_the_page(
    page: Page, shots: Path | None
) -> None:
    """JupyterLab kept one of the three charts that it drew at each choice, the library every table: 8 MB each time.

    And what is on the page is not drawn again and again. The first test: to search a page that has shown more takes
    longer.
    """
    make.capture(page.lab.folder / "chosen.sqlite", kernels=3_000)
    page.run(page.lab.write("earlier", EARLIER))
    page.run(
        page.lab.copy(
            "3_system", "later", profile="chosen.sqlite", window=[1_001_000_000, 1_004_000_000]
        )
    )
    assert [] == page.errors()
    explorer, header = Exploring(page.tab), page.tab.locator(".jp-OutputArea-output dl").first
    for name in ("Last choice: 1.002 to 1.003 s, kernels matching 'gemm'", ""):
        said = (
            "1.001 s to 1.004 s, all kernels"
            if name
            else "1.002 s to 1.003 s, kernels matching 'gemm'"
        )
        assert f"all GPUs, {said}" in explorer.until_said(said)
        header.filter(has_text=f"all GPUs, {said}").wait_for(timeout=LIMIT)
        explorer.until_slider_states(explorer.ask("seen.window"))
        if shots:
            page.tab.set_viewport_size({"width": 1280, "height": 1200})
            header.scroll_into_view_if_needed()
            page.tab.screenshot(path=shots / f"window_in_force_{'before' if name else 'after'}.png")
        if name:
            explorer.press(name)

    def kept() -> list[int]:
        """How much more the page holds than it shows, once two looks agree: a busy machine draws and forgets late."""
        looks = [[0]]
        while looks[-2:-1] != looks[-1:] and len(looks) < 30:
            page.tab.wait_for_timeout(1_000)
            looks.append(
                [
                    n - shown
                    for n, shown in zip(held(page.tab), page.tab.evaluate(SHOWN), strict=True)
                ]
            )
        return looks[-1]

    counts = []
    for first in (1_001_000_000, 1_002_000_000, 1_003_000_000):
        explorer.ask(f"seen.choose(window=({first}, {first + 2_000_000}), kernels='')")
        explorer.until_said(f"{first / 1e9:.3f} s to")
        page.idle()
        if first != 1_002_000_000:
            counts.append(kept())
    assert 0 < min(page.tab.evaluate(SHOWN))
    assert max(last - one for one, last in zip(*counts, strict=True)) < 4, (
        counts
    )  # two left 24 charts, or 14 tables
    assert 0 < page.tab.evaluate("document.querySelectorAll('canvas.marks').length")
    page.tab.evaluate(COUNT)
    page.tab.wait_for_timeout(1_500)  # charts look for a new width every 0.4 s
    assert 0 == page.tab.evaluate("cleared")
    assert [] == page.errors()


@pytest.fixture(scope="module")
def opened(loaded: Page) -> Page:
    """The notebook of the tests of the explorer, until a test opens another."""
    make.capture(
        loaded.lab.folder / "two.sqlite", kernels=KERNELS, shape=make.Shape(gpus=2, processes=2)
    )
    loaded.tab.set_viewport_size({"width": 1400, "height": 1300})
    loaded.run(loaded.lab.write("explorer", NOTEBOOK))
    assert [] == loaded.errors()
    Exploring(loaded.tab).until_title(WHOLE)
    return loaded


@pytest.fixture
def explorer(
    opened: Page, shots: Path | None, request: pytest.FixtureRequest
) -> Iterator[Exploring]:
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


def test_gpu(explorer: Exploring) -> None:
    both = explorer.title  # asked before the click: the answer may be faster than the next question
    explorer.mark("GPUs", "1")
    title = explorer.until_other(both)
    assert title.startswith("GPU 1: ")
    assert explorer.ask(
        "len(run.kernels[run.kernels.gpu == 1]) + len(run.copies[run.copies.gpu == 1])"
    ) == count(title)
    assert count(title) < count(both)
    assert (1,) == explorer.ask("explorer.gpus")


def test_kernel_name(explorer: Exploring) -> None:
    explorer.type("kernels", "sgemm")
    explorer.until_title("kernels matching “sgemm”")
    launches = explorer.ask("int(run.kernels.name.astype(str).str.contains('sgemm').sum())")
    assert f"launches: {launches:,};" in explorer.said
    completed = explorer.tab.locator(f"{BOX} datalist option").evaluate_all(
        "all => all.map(one => one.value)"
    )
    assert (
        explorer.ask("run.kernels.groupby('name', observed=True).dur_ns.sum().idxmax()")
        == completed[0]
    )


def test_brush(explorer: Exploring) -> None:
    start, end = explorer.ask("explorer.lanes.span")
    picture = f"document.querySelector('{BOX} svg.marks').closest('.vega-embed').querySelector('canvas').toDataURL()"
    before = explorer.tab.evaluate(picture)
    explorer.drag(OVERVIEW, 0.25, 0.5)
    for _ in range(
        100
    ):  # a slow machine is told where the mouse was on its way, before where it ended
        window = explorer.ask("explorer.window")
        edges = [(edge - start) / (end - start) for edge in window]
        if edges == pytest.approx([0.25, 0.5], abs=1 / 600):
            break
        explorer.tab.wait_for_timeout(200)
    assert [0.25, 0.5] == pytest.approx(edges, abs=1 / 600)
    explorer.until_title(
        f"{explorer.ask('explorer.lanes.count(window=explorer.window)'):,} operations"
    )
    explorer.until_slider_states(window)
    assert before != explorer.tab.evaluate(picture)
    explorer.tab.mouse.move(0, 0)
    explorer.reset()
    explorer.tab.wait_for_function(
        f"before => {picture} === before", arg=before, timeout=LIMIT
    )  # without the brush


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
    title = explorer.zoom()
    bars = explorer.bars()
    assert 20 < count(title) == len(bars)
    assert all(
        re.search(r"name: .+ lane: GPU [01] .+ duration: .+ launched by: cuda", bar["said"])
        for bar in bars
    )


def test_click_shows_the_dossier(explorer: Exploring) -> None:
    explorer.zoom()
    explorer.tab.wait_for_timeout(500)
    bar = next(bar for bar in explorer.bars() if "kind: gemm" in bar["said"])
    explorer.tab.mouse.click(bar["x"] + bar["width"] / 2, bar["y"] + bar["height"] / 2)
    shown = explorer.tab.locator(f"{BOX} table", has_text="This launch")
    shown.wait_for(timeout=LIMIT)
    name, correlation = re.search(r"name: (\S+);.* correlation: (\d+);", bar["said"]).groups()  # type: ignore[union-attr]
    assert name in shown.inner_text()
    assert correlation in shown.inner_text()
    explorer.tab.locator(f"{BOX} table", has_text=f"All launches of {name} in these").wait_for(
        timeout=LIMIT
    )


def test_report_of_the_window(explorer: Exploring, lab: Lab) -> None:
    explorer.zoom()
    figures = json.loads(explorer.ask("figures()"))
    explorer.press("Report this window")
    link = explorer.tab.locator(f"{BOX} a", has_text="index.html")
    link.wait_for(timeout=4 * LIMIT)
    summary = json.loads((lab.folder / link.inner_text()).with_name("summary.json").read_text())
    assert figures == {
        name: {**_as_found(summary["figures"][name]), "id": name} for name in figures
    }


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
    assert 0.5 == pytest.approx(
        (first + last) / 2 / (end - start), abs=0.01
    )  # what the pointer showed is still there
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
    assert (last - first, first + 0.2 * (last - first)) == pytest.approx(
        (view[1] - view[0], view[0]), rel=0.05
    )
    for key in (
        "m",
        "x",
        "c",
        "z",
        "b",
        "Escape",
    ):  # in the notebook, some of these cut or add cells
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
    explorer.zoom()
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
    first = explorer.until_match(0)
    assert "" == explorer.ask("explorer.kernels")
    window = explorer.ask("explorer.window")
    field.press("Enter")
    assert first + 1 == explorer.until_match(first)
    assert window != explorer.ask("explorer.window")


def test_lanes_are_closed_pinned_and_hidden(explorer: Exploring) -> None:
    explorer.settle()
    x, y, _, _ = explorer.tab.evaluate(FRAMES[TIMELINE])
    rows = explorer.seen["rows"]
    left, middle = x - explorer.seen["left"], y + rows[1]["top"] + rows[1]["high"] / 2
    explorer.tab.mouse.click(left + 22, middle)  # pin
    assert [rows[1]["label"], rows[0]["label"]] == [
        row["label"] for row in explorer.seen["rows"][:2]
    ]
    explorer.tab.mouse.click(left + 45, y + rows[0]["top"] + 5)  # hide the one that is on top now
    assert rows[1]["label"] not in [row["label"] for row in explorer.seen["rows"]]
    explorer.tab.mouse.click(left + 6, y + rows[0]["top"] + 5)  # close
    assert explorer.seen["rows"][0]["high"] < 10
    explorer.press("show 1 hidden")
    assert rows == explorer.seen["rows"]


def test_nothing_is_a_sentence(explorer: Exploring) -> None:
    explorer.type("kernels", "no_such_kernel")
    explorer.until_said("none of the 18 kernel names contains 'no_such_kernel'")
    explorer.ask(
        "explorer.choose(kernels='softmax', window=(explorer.lanes.span[0], explorer.lanes.span[0] + 9))"
    )
    said = explorer.until_said("nothing ran of all GPUs")
    assert said.endswith("Choose a longer window, other GPUs, or other kernels.")
    assert not explorer.tab.locator(f"{BOX} .perfkit-timeline canvas").is_visible()


@pytest.mark.parametrize("theme", ["JupyterLab Dark", "JupyterLab Light"])
def test_text_is_read_in(theme: str, explorer: Exploring) -> None:
    """Each text has a contrast of 4.5 to 1, in pictures drawn before and after the theme was chosen."""
    explorer.zoom()
    window = explorer.ask("explorer.window")
    explorer.tab.evaluate(
        "theme => jupyterapp.commands.execute('apputils:change-theme', {theme})", theme
    )
    explorer.tab.wait_for_function(f"document.body.dataset.jpThemeName === '{theme}'")
    explorer.tab.wait_for_timeout(1000)  # colours fade
    assert window == explorer.ask(
        "explorer.window"
    )  # kept, though the page has no width between two themes
    before = explorer.contrasts()
    explorer.reset()
    contrasts = {*before, *explorer.contrasts()}
    texts = {text for text, _ in contrasts}
    assert {"GPUs", "families", "kernels", "window (ms)", "Reset", "filter"} < texts
    assert any(text.startswith("time since the start") for text in texts)
    assert [] == sorted(
        (text, contrast) for text, contrast in contrasts if contrast < LEAST_CONTRAST
    )


def _as_found(figure: dict[str, Any]) -> dict[str, Any]:
    """A figure without what a report says of where it stands: notebook, cell, and files of tables."""
    return {
        name: value for name, value in figure.items() if name not in ("notebook", "cell", "tables")
    }


# What is tried further in a notebook that has run.
TRIED = {
    "2_monitoring": fit_their_cells,
    "3_system": lead_the_explorer,
    "4_kernels": stay_in_view,
    "5_framework": fit_their_cells,
}


@pytest.mark.parametrize("name", sorted([START, *NOTEBOOKS]))
def test_runs_and_draws(page: Page, name: str, shots: Path | None) -> None:
    prepare(page.lab.folder, None)
    page.run(name)
    page.idle()
    assert [] == page.errors()
    told = page.tab.locator(".perfkit-sentence").all_inner_texts()
    assert [] == [text for text in told if "are missing. It has" in text], (
        "what a view failed with is a sentence"
    )
    assert 0 < page.tab.locator(".jp-OutputArea-output table, .jp-OutputArea-output canvas").count()
    cut = (
        "[...document.querySelectorAll('.widget-readout')].filter(one => "
        "one.scrollWidth > one.clientWidth + 1).length"
    )
    assert 0 == page.tab.evaluate(cut), "the window of the explorer is cut"
    if page.tab.locator(BOX).count():
        page.tab.locator(f"{BOX} svg.marks").first.wait_for(
            timeout=LIMIT
        )  # a page that is left earlier complains
    if shots:
        page.picture(shots / f"{name}.png")
    if name in TRIED:
        TRIED[name](page)
        page.idle()
        assert [] == page.errors()


def test_baseline_of_logs(page: Page, shots: Path | None) -> None:
    logs = page.lab.folder / "logs"
    logs.mkdir()
    written(logs / "all_reduce.txt", table())
    training(logs / "train_1.log", gpus=1, ms=400)
    training(logs / "train_4.log", gpus=4, ms=500, batch=32)
    page.run(page.lab.copy("1_baseline", "baseline_of_logs", profile=str(logs)))
    assert [] == page.errors()
    medians = "Each log of a training: medians over its iterations"
    assert 2 == page.rows(medians)
    assert 2 == page.rows("Bus bandwidth of the largest messages")
    if shots:
        page.picture(shots / "baseline_of_logs.png")
    Exploring(page.tab).mark("ranks", "1")
    page.until_rows(medians, 1)
    assert "\n1\t4\t504\t" in page.text(medians)  # the log, its GPUs, its median step in ms


def test_comparison_follows(page: Page, shots: Path | None) -> None:
    for name, seed in (("before", 0), ("after", 1)):
        make.capture(page.lab.folder / f"{name}.sqlite", kernels=3_000, seed=seed)
    paths = {"profile": "after.sqlite", "baseline": "before.sqlite"}
    page.run(page.lab.copy("6_compare", "comparison", **paths))
    assert [] == page.errors()
    explorer = Exploring(page.tab)
    every = explorer.ask(f"len({COMPARED}.kernels)")
    kernels = "Kernels by the time that moved, per step"
    page.until_text(kernels, f"of {every} rows")
    if shots:
        page.picture(shots / "comparison.png")
    explorer.press("Copy as parameters")
    copied = page.tab.locator(".perfkit-explorer textarea")
    copied.wait_for()
    assert f"--baseline {page.lab.folder.resolve()}/before.sqlite" in copied.input_value()
    explorer.type("kernels", "gemm")
    explorer.until_said("kernels matching 'gemm'")
    some = explorer.ask(f"len({COMPARED}.kernels)")
    assert 0 < some < every
    page.until_rows(kernels, some)  # without pages: there are ten at most
    assert "gemm" in page.text(kernels)
    assert "elementwise" not in page.text(kernels)
    assert 2 == page.text("The two runs").count("kernels matching 'gemm'")
    assert [] == page.errors()


def test_a_number_leads_to_the_cell_that_shows_it(page: Page) -> None:
    """A click opens the notebook of step 3; with that open, one leads to the cell, which a new one may miss.

    Beside it JupyterLab takes what stands between two dollars for mathematics, but not in perfkit's tables.
    """
    prepare(page.lab.folder, None)
    numbers = page.lab.write("numbers", CELL, DOLLARS)
    page.run(numbers)
    page.tab.locator("mjx-container").first.wait_for()
    assert "$a$ and $b$" in page.tab.locator(".perfkit-table").inner_text()
    assert 1 == page.tab.locator("mjx-container").count()
    cell = place("idle_frac", SOURCE, stored())
    assert cell is not None
    page.tab.locator("a.perfkit-figure").click()
    page.tab.wait_for_function(IS_OPEN, arg=f"{cell.notebook}.ipynb", timeout=RUN * 1000)
    page.idle()
    page.tab.get_by_role("tab", name=numbers).click()
    page.tab.wait_for_function(IS_OPEN, arg=f"{numbers}.ipynb", timeout=RUN * 1000)
    page.tab.locator("a.perfkit-figure").click()
    page.tab.wait_for_function(IS_SEEN, arg=cell.id, timeout=RUN * 1000)
    page.idle()


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(sample("bert_a100"), tmp_path_factory.mktemp("report"))


@pytest.mark.parametrize("width", [390, 1000])
@pytest.mark.parametrize("name", ["index", "3_system", "5_framework"])
def test_no_two_words_of_a_chart_touch_or_are_tiny(
    name: str, width: int, chromium: Any, report: Path
) -> None:
    tab = chromium.new_page()
    tab.set_viewport_size({"width": width, "height": 900})
    tab.goto((report / f"{name}.html").as_uri())
    tab.wait_for_function(
        "() => [...document.querySelectorAll('figure.chart')].every((of) => of.querySelector('svg text'))"
    )
    tab.wait_for_timeout(1000)  # ms: they take the width of the page
    found = tab.evaluate(TOUCHING)
    tiny = tab.evaluate(TINY)
    if name == "3_system":
        show_whose_time_a_part_is(tab)
    tab.close()
    assert [] == tiny
    assert found == f"{found.split()[0]} charts" != "0 charts"
