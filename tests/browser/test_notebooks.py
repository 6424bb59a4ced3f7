"""Every notebook runs in JupyterLab in a browser as it is handed out, and follows its explorer."""

from pathlib import Path

import pytest
from browser.exploring import BOX, LIMIT, Exploring
from browser.lab import Page
from megatron import training
from readers.nccl_files import table, written

import make
from perfkit.report.lab import prepare
from perfkit.report.notebooks import NOTEBOOKS, START

CHARTS_FIT = """() => [...document.querySelectorAll('.jp-RenderedVegaCommon5')].every(one => {
    const room = one.closest('.jp-OutputArea-output').clientWidth, wide = one.querySelector('canvas, svg')?.clientWidth;
    return one.scrollWidth <= room && room - wide < 60;
})"""
STARTS_IN = """([row, first, last]) => [...(document.querySelector(row)?.cells ?? [])]
    .some(({dataset: {order}}) => first <= Number(order) && Number(order) < last)"""
COMPARED = "diagnosis.verdict.against(seen.selection, baseline=before)"


def fit_their_cells(page: Page) -> None:
    """Charts are as wide as their cells, whatever the width of the window."""
    for wide in (1000, 1600, 1000):
        page.tab.set_viewport_size({"width": wide, "height": 900})
        page.tab.wait_for_function(CHARTS_FIT, timeout=LIMIT)
    assert 1 < page.tab.locator(".jp-RenderedVegaCommon5").count()


def lead_the_explorer(page: Page) -> None:
    """A click on a finding, a step or a gap moves the explorer there."""
    exploring = Exploring(page.tab)
    steps = "Steps, as far as they were found; click a row to see it"
    gaps = "Idle gaps, the longest first, and the range and call they fall in"

    def led(place: str, *before: list[int]) -> list[int]:
        page.tab.locator(place).first.dispatch_event("click", timeout=LIMIT)  # a view that follows never rests
        for _ in range(60):
            page.tab.wait_for_timeout(500)
            if (window := exploring.ask("list(seen.window)")) not in ([], *before):
                break
        return list(window)

    found = led("[data-leads] em")
    at = exploring.ask("[f.seen_at for f in __import__('perfkit').diagnosis.findings(seen.run) if f.seen_at][0]")
    assert found[0] <= at[0] < at[0] + at[1] <= found[1]
    exploring.ask("seen.choose(window=()) or 0")
    windows = [led(f'[aria-label="{steps}"] tbody tr', found)]
    # On a busy machine the table of gaps follows late: its first row is still that of the window before.
    page.tab.wait_for_function(STARTS_IN, arg=[f'[aria-label="{gaps}"] tbody tr', *windows[0]], timeout=LIMIT)
    windows.append(led(f'[aria-label="{gaps}"] tbody tr', *windows))
    first = exploring.ask("[int(seen.steps.iloc[0].start_ns), int(seen.steps.iloc[0].dur_ns)]")
    assert [first[0], sum(first)] == windows[0]
    assert windows[0][0] <= windows[1][0] < windows[1][1] <= windows[0][1]


COUNT = """() => {
    const own = CanvasRenderingContext2D.prototype, clear = own.clearRect;
    window.cleared = 0;
    own.clearRect = function (...box) { window.cleared += 1; return clear.apply(this, box); };
}"""


SHOWN = "['details', 'table'].map(kind => document.querySelectorAll(kind).length)"
COUNTED = """function () {
    return [HTMLDetailsElement, HTMLTableElement].map(kind => this.filter(one => one instanceof kind).length);
}"""


def test_what_was_chosen_before_leaves_the_page(page: Page) -> None:
    """JupyterLab kept one of the three charts that it drew at each choice, the library every table: 8 MB each time.

    And what is on the page is not drawn again and again. The first test: to search a page that has shown more takes
    longer.
    """
    make.capture(page.lab.folder / "kept.sqlite", kernels=3_000)
    page.run(page.lab.copy("3_system", "kept", profile="kept.sqlite"))
    explorer, browser = Exploring(page.tab), page.tab.context.new_cdp_session(page.tab)

    def held() -> list[int]:
        """How many charts' menus and tables that are paged the page holds, shown or not."""
        of = browser.send("Runtime.evaluate", {"expression": "HTMLElement.prototype"})["result"]["objectId"]
        asked = {"prototypeObjectId": of, "objectGroup": "held"}
        found = browser.send("Runtime.queryObjects", asked)["objects"]["objectId"]
        asked = {"objectId": found, "functionDeclaration": COUNTED, "returnByValue": True}
        counts: list[int] = browser.send("Runtime.callFunctionOn", asked)["result"]["value"]
        browser.send("Runtime.releaseObjectGroup", {"objectGroup": "held"})  # or the answer itself would hold them
        return counts

    counts = []
    for first in range(1_001_000_000, 1_006_000_000, 1_000_000):
        explorer.ask(f"seen.choose(window=({first}, {first + 2_000_000}))")
        explorer.until_said(f"{first / 1e9:.3f} s to")
        page.idle()
        page.tab.wait_for_timeout(1_000)
        if first in (1_001_000_000, 1_005_000_000):
            drawn, before = page.tab.evaluate(SHOWN), None
            while drawn != before:  # on a busy machine charts are drawn late
                page.tab.wait_for_timeout(1_000)
                drawn, before = page.tab.evaluate(SHOWN), drawn
            counts.append(held())
    (charts, paged), last = counts
    assert 0 < charts
    assert 0 < paged
    assert last[0] - charts < 4, counts  # of the 24 charts and tables that four choices drew in vain
    assert last[1] - paged < 4, counts
    drawn = "document.querySelectorAll('canvas.marks').length"
    assert 0 < page.tab.evaluate(drawn)
    page.tab.evaluate(COUNT)
    page.tab.wait_for_timeout(1_500)  # charts look for a new width every 0.4 s
    assert 0 == page.tab.evaluate("cleared")
    assert [] == page.errors()


# What is tried further in a notebook that has run.
TRIED = {"2_monitoring": fit_their_cells, "3_system": lead_the_explorer, "5_framework": fit_their_cells}


@pytest.mark.parametrize("name", sorted([START, *NOTEBOOKS]))
def test_runs_and_draws(page: Page, name: str, shots: Path | None) -> None:
    prepare(page.lab.folder, None)
    page.run(name)
    page.idle()
    assert [] == page.errors()
    told = page.tab.locator(".perfkit-sentence").all_inner_texts()
    assert [] == [text for text in told if "are missing. It has" in text], "what a view failed with is a sentence"
    assert 0 < page.tab.locator(".jp-OutputArea-output table, .jp-OutputArea-output canvas").count()
    cut = (
        "[...document.querySelectorAll('.widget-readout')].filter(one => one.scrollWidth > one.clientWidth + 1).length"
    )
    assert 0 == page.tab.evaluate(cut), "the window of the explorer is cut"
    if page.tab.locator(BOX).count():
        page.tab.locator(f"{BOX} svg.marks").first.wait_for(timeout=LIMIT)  # a page that is left earlier complains
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
    assert f'baseline: "{page.lab.folder.resolve()}/before.sqlite"' in copied.input_value().splitlines()
    explorer.type("kernels", "gemm")
    explorer.until_said("kernels matching 'gemm'")
    some = explorer.ask(f"len({COMPARED}.kernels)")
    assert 0 < some < every
    page.until_rows(kernels, some)  # without pages: there are ten at most
    assert "gemm" in page.text(kernels)
    assert "elementwise" not in page.text(kernels)
    assert 2 == page.text("The two runs").count("kernels matching 'gemm'")
    assert [] == page.errors()


EARLIER = """import perfkit
from perfkit import widgets
seen = widgets.explorer(perfkit.load("chosen.sqlite"))
seen.choose(window=(1_002_000_000, 1_003_000_000), kernels="gemm")"""


def test_header_and_slider_state_the_window_in_force(page: Page, shots: Path | None) -> None:
    make.capture(page.lab.folder / "chosen.sqlite", kernels=3_000)
    page.run(page.lab.write("earlier", EARLIER))
    page.run(page.lab.copy("3_system", "later", profile="chosen.sqlite", window=[1_001_000_000, 1_004_000_000]))
    assert [] == page.errors()
    explorer, header = Exploring(page.tab), page.tab.locator(".jp-OutputArea-output dl").first
    for name in ("Last choice: 1.002 to 1.003 s, kernels matching 'gemm'", ""):
        said = "1.001 s to 1.004 s, all kernels" if name else "1.002 s to 1.003 s, kernels matching 'gemm'"
        assert f"all GPUs, {said}" in explorer.until_said(said)
        header.filter(has_text=f"all GPUs, {said}").wait_for(timeout=LIMIT)
        explorer.until_slider_states(explorer.ask("seen.window"))
        if shots:
            page.tab.set_viewport_size({"width": 1280, "height": 1200})
            header.scroll_into_view_if_needed()
            page.tab.screenshot(path=shots / f"window_in_force_{'before' if name else 'after'}.png")
        if name:
            explorer.press(name)
