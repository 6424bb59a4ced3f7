"""A number's link in JupyterLab opens the notebook that shows it, at its cell."""

from browser.lab import RUN, Page

from perfkit.report.lab import prepare
from perfkit.report.links import place, stored

SOURCE = "KERNELS, COPIES; timeline.breakdown"
CELL = f"""from perfkit.diagnosis import Figure
from perfkit.report import links
links.figure(Figure("idle_frac", "GPU idle", 0.5, "1", "what", {SOURCE!r}))"""
IS_OPEN = "path => window.jupyterapp.shell.currentWidget?.context?.path === path"
IS_SEEN = """id => {
    const cell = window.jupyterapp.shell.currentWidget?.content?.widgets?.find(one => one.model.id === id);
    const top = cell?.node.getBoundingClientRect().top;
    return top >= 0 && top < window.innerHeight;
}"""


def test_a_number_leads_to_the_cell_that_shows_it(page: Page) -> None:
    """A click opens the notebook of step 3; with that open, one leads to the cell, which a new one may miss."""
    prepare(page.lab.folder, None)
    numbers = page.lab.write("numbers", CELL)
    page.run(numbers)
    cell = place("idle_frac", SOURCE, stored())
    assert cell is not None
    page.tab.locator("a.perfkit-figure").click()
    page.tab.wait_for_function(IS_OPEN, arg=f"{cell.notebook}.ipynb", timeout=RUN * 1000)
    page.idle()
    page.tab.get_by_role("tab", name=numbers).click()
    page.tab.wait_for_function(IS_OPEN, arg=f"{numbers}.ipynb", timeout=RUN * 1000)
    page.tab.locator("a.perfkit-figure").click()
    page.tab.wait_for_function(IS_SEEN, arg=cell.id, timeout=RUN * 1000)
