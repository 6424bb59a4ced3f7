"""A number's link in JupyterLab opens the cell that shows it, and a report's charts can be read."""

from pathlib import Path
from typing import Any

import pytest
from browser.lab import RUN, Page
from cells import built

from perfkit.report.lab import prepare
from perfkit.report.links import place, stored
from perfkit.report.notebooks import sample

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
# How many charts there are, or two texts of one that lie on each other by more than two pixels.
TOUCHING = """() => {
  const charts = [...document.querySelectorAll("figure.chart .vega-embed > * > svg, figure.chart .vega-embed > svg")];
  for (const chart of charts) {
    const all = [...chart.querySelectorAll("text")];
    const texts = all.filter((text) => text.textContent.trim() && text.getAttribute("opacity") != 0);
    const boxes = texts.map((text) => text.getBoundingClientRect());
    for (let i = 0; i < boxes.length; i++) for (let j = 0; j < i; j++) {
      const [a, b] = [boxes[i], boxes[j]];
      const across = Math.min(a.right, b.right) - Math.max(a.left, b.left);
      const down = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
      if (across > 2 && down > 3) return `${texts[i].textContent} on ${texts[j].textContent}`;
    }
  }
  return `${charts.length} charts`;
}"""


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


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(sample("bert_a100"), tmp_path_factory.mktemp("report"))


@pytest.mark.parametrize("width", [390, 1000])
@pytest.mark.parametrize("name", ["index", "3_system", "5_framework"])
def test_no_two_words_of_a_chart_touch(name: str, width: int, chromium: Any, report: Path) -> None:
    tab = chromium.new_page()
    tab.set_viewport_size({"width": width, "height": 900})
    tab.goto((report / f"{name}.html").as_uri())
    tab.wait_for_function(
        "() => [...document.querySelectorAll('figure.chart')].every((of) => of.querySelector('svg text'))"
    )
    tab.wait_for_timeout(1000)  # ms: they take the width of the page
    found = tab.evaluate(TOUCHING)
    tab.close()
    assert found == f"{found.split()[0]} charts" != "0 charts"
