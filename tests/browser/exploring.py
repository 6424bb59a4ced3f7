"""What a person does on a page of JupyterLab, most of all in an explorer, and what is seen of it."""

from __future__ import annotations

import ast
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # where `python -m tests.bench` measures, its name is tests.browser.lab
    from browser.lab import Page

BOX = ".perfkit-explorer"
LIMIT = 60_000.0  # ms that an answer may take on a loaded machine

OVERVIEW, TIMELINE = 0, 1  # pictures of an explorer from the top down
ROOT = f"document.querySelector('{BOX} .perfkit-timeline')"
CANVAS = f"document.querySelector('{BOX} .perfkit-timeline canvas')"
TITLES = [
    f"(document.querySelector('{BOX} svg.marks .role-title-text text')?.textContent ?? '')",
    f"(document.querySelector('{BOX} .perfkit-timeline-title')?.textContent ?? '')",
]
TITLE = TITLES[TIMELINE]
# What the timeline tells of itself, title and window: not how it is read, which changes with tables that are read.
SPOKEN = f"({CANVAS}?.getAttribute('aria-label') ?? '').split('. Timeline.')[0]"
FRAMES = [
    f"""(svg => {{
        svg.scrollIntoView({{block: 'center'}});
        const box = svg.querySelector('.role-frame path.background').getBoundingClientRect();
        return [box.x, box.y, box.width, box.height];
    }})(document.querySelector('{BOX} svg.marks'))""",
    f"""(canvas => {{
        canvas.scrollIntoView({{block: 'center'}});
        const box = canvas.getBoundingClientRect(), {{left, wide}} = {ROOT}.perfkitView();
        return [box.x + left, box.y, wide, box.height];
    }})({CANVAS})""",
]
ASKED = """async expression => {
    const kernel = jupyterapp.shell.currentWidget.sessionContext.session.kernel;
    const asked = {code: '', store_history: false, user_expressions: {answer: expression}};
    const {answer} = (await kernel.requestExecute(asked).done).content.user_expressions;
    return answer.status === 'ok' ? answer.data['text/plain'] : `${answer.ename}: ${answer.evalue}`;
}"""

TOP = "one => one.getBoundingClientRect().top"
CONTRASTS = """selector => {
    const context = Object.assign(document.createElement('canvas'), {width: 1, height: 1}).getContext('2d');
    const colour = text => {
        context.clearRect(0, 0, 1, 1);
        context.fillStyle = text;
        context.fillRect(0, 0, 1, 1);
        return [...context.getImageData(0, 0, 1, 1).data].map(part => part / 255);
    };
    const over = ([r, g, b, a], below) => [r, g, b].map((part, i) => part * a + below[i] * (1 - a));
    const paper = of => {
        if (!of) return [1, 1, 1];
        const [r, g, b, a] = colour(getComputedStyle(of).backgroundColor);
        return a === 1 ? [r, g, b] : over([r, g, b, a], paper(of.parentElement));
    };
    const light = rgb => [.2126, .7152, .0722].reduce((sum, weight, i) => sum + weight *
        (rgb[i] <= .04045 ? rgb[i] / 12.92 : ((rgb[i] + .055) / 1.055) ** 2.4), 0);
    const isSeen = of => of.getClientRects().length && of.textContent.trim() && !of.disabled &&
        getComputedStyle(of).opacity > 0;
    return [...document.querySelectorAll(selector)].filter(isSeen).map(of => {
        const style = getComputedStyle(of), [r, g, b, a] = colour(of.closest('svg') ? style.fill : style.color);
        const below = paper(of), opacity = style.opacity * (of.closest('svg') ? style.fillOpacity : 1);
        const [dark, bright] = [light(over([r, g, b, a * opacity], below)), light(below)].sort((x, y) => x - y);
        return [of.textContent.trim(), (bright + .05) / (dark + .05)];
    });
}"""

# No chart is wider than its cell, and each fills it, but that of the steps: of six steps it is narrower than
# `theme.LEAST`, from which on a picture follows its cell.
CHARTS_FIT = """() => [...document.querySelectorAll('.jp-RenderedVegaCommon5')].every(one => {
    const room = one.closest('.jp-OutputArea-output').clientWidth, wide = one.querySelector('canvas, svg')?.clientWidth;
    const isOfSteps = one.closest('.jp-CodeCell').innerText.includes('pictures.input_wait');
    return one.scrollWidth <= room && (room - wide < 60 || isOfSteps && wide > 0);
})"""
STARTS_IN = """([row, first, last]) => [...(document.querySelector(row)?.cells ?? [])]
    .some(({dataset: {order}}) => first <= Number(order) && Number(order) < last)"""
COUNT = """() => {
    const own = CanvasRenderingContext2D.prototype, clear = own.clearRect;
    window.cleared = 0;
    own.clearRect = function (...box) { window.cleared += 1; return clear.apply(this, box); };
}"""
SHOWN = "['details', 'table'].map(kind => document.querySelectorAll(kind).length)"
LEADS = "[...document.querySelectorAll('[data-leads]')].map(one => one.dataset.leads)"
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

# Texts of charts that are drawn with less than 8 pixels: a chart that is too wide for its page is made smaller.
TINY = """() => [...document.querySelectorAll("figure.chart svg text")].filter((text) => {
  const {a, b} = text.getScreenCTM(), size = parseFloat(getComputedStyle(text).fontSize);
  return text.textContent.trim() && text.getClientRects().length && size * Math.hypot(a, b) < 8;
}).map((text) => text.textContent)"""


class Exploring:
    """Hands and eyes on the explorer of the notebook that a tab shows; the notebook calls it `explorer`."""

    def __init__(self, tab: Any) -> None:
        self.tab = tab

    def ask(self, expression: str) -> Any:
        """Return what an expression is in the notebook's kernel: a number, a text, or lists of them."""
        return ast.literal_eval(self.tab.evaluate(ASKED, expression))

    @property
    def title(self) -> str:
        return str(self.tab.evaluate(TITLE))

    @property
    def spoken(self) -> str:
        """Title and window of the timeline, as a screen reader tells them: another choice is told otherwise."""
        return str(self.tab.evaluate(SPOKEN))

    @property
    def said(self) -> str:
        return str(self.tab.locator(f"{BOX} [role=status]").first.inner_text())

    def until_title(self, text: str, picture: int = TIMELINE, timeout: float = LIMIT) -> str:
        return self._until(TITLES[picture], text, timeout)

    def until_said(self, text: str) -> str:
        return self._until(f"document.querySelector('{BOX} [role=status]').textContent", text)

    def until_other(self, title: str) -> str:
        self.tab.wait_for_function(
            f"before => {TITLE} && {TITLE} !== before", arg=title, timeout=LIMIT
        )
        return self.title

    def until_slider_states(self, window: list[int]) -> None:
        """Wait until the slider under the timeline states a window (ns), which it does in ms: it follows the others."""
        self.tab.wait_for_function(
            """([box, edges]) => {
                const stated = document.querySelector(`${box} .widget-readout`).textContent.match(/[\\d.]+/g);
                return edges.every((edge, end) => Math.abs(edge - Number(stated[end])) < 1e-3);
            }""",
            arg=[BOX, [edge / 1e6 for edge in window]],
            timeout=LIMIT,
        )

    def until_drawn_after(self, spoken: str, timeout: float = LIMIT) -> None:
        self.tab.wait_for_function(
            f"before => {SPOKEN} && {SPOKEN} !== before", arg=spoken, timeout=timeout
        )

    def reset(self) -> None:
        self.press("Reset")
        self.until_said("Chosen: all GPUs, the whole recording, all kernels.")
        self.tab.wait_for_timeout(300)  # a picture that is being drawn again cannot be dragged

    def at_hand(self) -> None:
        """Point at the explorer: scrolled away, it shows its overview alone until then."""
        self.tab.locator(BOX).first.hover(force=True)  # whatever lies over its middle

    def press(self, name: str) -> None:
        self.at_hand()
        self.tab.locator(f"{BOX} button", has_text=name).click()

    def mark(self, name: str, option: str) -> None:
        self.at_hand()
        listed = self.tab.locator(f"{BOX} .widget-select-multiple", has_text=name)
        listed.locator("option").get_by_text(option, exact=True).click()

    def type(self, name: str, text: str) -> None:
        self.at_hand()
        field = self.tab.locator(
            f"{BOX} .jupyter-widgets", has=self.tab.locator("label", has_text=name)
        ).locator("input")
        field.first.fill(text)
        field.first.press("Enter")

    def drag(self, picture: int, first: float, last: float) -> None:
        x, y, width, height = self.tab.evaluate(FRAMES[picture])
        mouse, middle = self.tab.mouse, y + height / 2
        mouse.move(x + first * width, middle)
        mouse.down()
        mouse.move(x + (first + last) / 2 * width, middle, steps=4)
        mouse.move(x + last * width, middle, steps=4)
        mouse.up()

    def zoom(self) -> str:
        """Zoom by brush and timeline until the operations stand one by one, and return the title."""
        title = self.title
        self.drag(OVERVIEW, 0.4, 0.5)
        title = self.until_other(title)
        self.drag(TIMELINE, 0.5, 0.58)
        return self.until_other(title)

    def until_match(self, before: int) -> int:
        """Return the number of the match that is jumped to, once it is another one than before."""
        number = f"Number({ROOT}.innerText.match(/match ([0-9]+) of [0-9,]+ matches/)?.[1] ?? 0)"
        self.tab.wait_for_function(
            f"before => ![0, before].includes({number})", arg=before, timeout=LIMIT
        )
        self.settle()
        return int(self.tab.evaluate(number))

    def bars(self) -> list[dict[str, Any]]:
        """Return description and place of each operation that the timeline draws one by one, widest first."""
        found: list[dict[str, Any]] = self.tab.evaluate(
            f"{ROOT}.perfkitBars().filter(one => one.type === 'gpu')"
        )
        return sorted(found, key=lambda bar: -float(bar["width"]))

    @property
    def seen(self) -> dict[str, Any]:
        """What the timeline shows: `view` (ns since its origin), `waiting` (for data of it), `rows`, `marks`, ..."""
        found: dict[str, Any] = self.tab.evaluate(f"{ROOT}.perfkitView()")
        return found

    def point(self, across: float) -> None:
        x, y, width, _ = self.tab.evaluate(FRAMES[TIMELINE])
        self.tab.mouse.move(x + across * width - 5, y + 30)
        self.tab.mouse.move(x + across * width, y + 30)

    def settle(self) -> list[float]:
        """Wait until the timeline has the data of its view; return the view."""
        self.tab.wait_for_timeout(60)
        self.tab.wait_for_function(f"() => !{ROOT}.perfkitView().waiting", timeout=LIMIT)
        self.tab.wait_for_timeout(400)
        view: list[float] = self.seen["view"]
        return view

    def contrasts(self) -> list[tuple[str, float]]:
        """Return each text on paper in the explorer with the contrast of its colour and the paper's (WCAG 2.1)."""
        texts = (
            "svg.marks text",
            "label",
            ".widget-label",
            ".widget-html-content",
            "option",
            "button",
            "td",
            "th",
        )
        found = self.tab.evaluate(CONTRASTS, ", ".join(f"{BOX} {text}" for text in texts))
        return [(str(text), float(contrast)) for text, contrast in found]

    def _until(self, what: str, text: str, timeout: float = LIMIT) -> str:
        self.tab.wait_for_function(f"text => {what}.includes(text)", arg=text, timeout=timeout)
        return str(self.tab.evaluate(what))


def fit_their_cells(page: Page) -> None:
    """Charts are as wide as their cells, whatever the width of the window."""
    page.tab.locator(".jp-RenderedVegaCommon5").first.wait_for(timeout=LIMIT)
    for wide in (1000, 1600, 1000):
        page.tab.set_viewport_size({"width": wide, "height": 900})
        page.tab.wait_for_function(CHARTS_FIT, timeout=LIMIT)


def lead_the_explorer(page: Page) -> None:
    """A click on a finding, a step or a gap moves the explorer there."""
    exploring = Exploring(page.tab)
    steps = "Steps, as far as they were found; click a row to see it"
    gaps = (
        "Idle gaps, the longest first, who kept the GPU idle, and the range and call they fall in"
    )

    def led(place: str, *before: list[int]) -> list[int]:
        page.tab.locator(place).first.dispatch_event(
            "click", timeout=LIMIT
        )  # a view that follows never rests
        for _ in range(60):
            page.tab.wait_for_timeout(500)
            if (window := exploring.ask("list(seen.window)")) not in ([], *before):
                break
        return list(window)

    leads = page.tab.evaluate(LEADS)
    found = led("[data-leads] em")
    at = exploring.ask(
        "[f.seen_at for f in __import__('perfkit').diagnosis.findings(seen.run) if f.seen_at][0]"
    )
    assert found[0] <= at[0] < at[0] + at[1] <= found[1]
    exploring.ask("seen.choose(window=()) or 0")
    windows = [led(f'[aria-label="{steps}"] tbody tr', found)]
    # On a busy machine the table of gaps follows late: its first row is still that of the window before.
    page.tab.wait_for_function(
        STARTS_IN, arg=[f'[aria-label="{gaps}"] tbody tr', *windows[0]], timeout=LIMIT
    )
    windows.append(led(f'[aria-label="{gaps}"] tbody tr', *windows))
    begins = exploring.ask("chosen.steps['start_ns'].tolist()")
    lengths = exploring.ask("chosen.steps['dur_ns'].tolist()")
    assert windows[0] in [
        [begin, begin + length] for begin, length in zip(begins, lengths, strict=True)
    ]
    # The gap lies in the step, and is shown with some time around it.
    assert windows[0][0] < windows[1][1]
    assert windows[1][0] < windows[0][1]
    for number, lead in enumerate(map(json.loads, leads)):
        exploring.ask("seen.choose(window=()) or 0")
        page.tab.wait_for_function(f"leads => `${{{LEADS}}}` === `${{leads}}`", arg=leads)
        found = led(f":nth-match([data-leads] > em:first-of-type, {number + 1})")
        assert found[0] <= lead["start_ns"] < lead["start_ns"] + lead["dur_ns"] <= found[1]


def show_whose_time_a_part_is(tab: Any) -> None:
    """A click on another part of the time shows the owners of that part, in its colour."""
    figure = tab.locator("figure.chart", has_text="Whose time it is")
    bars = figure.locator("path[aria-roledescription=bar]")
    first, last = (bars.nth(place) for place in (0, -1))
    before, wanted = (str(bar.get_attribute("fill")) for bar in (last, first))
    assert before != wanted
    first.click(force=True)  # a text may lie on it
    tab.wait_for_function(
        """([figure, fill]) => [...figure.querySelectorAll("path[aria-roledescription=bar]")]
            .at(-1).getAttribute("fill") === fill""",
        arg=[figure.element_handle(), wanted],
        timeout=LIMIT,
    )


def stay_in_view(page: Page) -> None:
    """The wheel over a table scrolls the notebook, and the explorer stays above it."""
    page.tab.set_viewport_size({"width": 1400, "height": 1000})
    explorer = page.tab.locator(".jp-Cell:has(.perfkit-stays)")
    table = page.tab.locator(".perfkit-table").last
    table.scroll_into_view_if_needed()
    table.hover()
    before = float(table.evaluate(TOP))
    page.tab.mouse.wheel(0, -200)
    page.tab.wait_for_function(
        "([table, before]) => table.getBoundingClientRect().top > before + 100",
        arg=[table.element_handle(), before],
        timeout=LIMIT,
    )
    notebook = page.tab.locator(".jp-NotebookPanel:visible .jp-WindowedPanel-outer")
    assert abs(float(explorer.evaluate(TOP)) - float(notebook.evaluate(TOP))) < 5


COUNTED = """function () {
    return [HTMLDetailsElement, HTMLTableElement].map(kind => this.filter(one => one instanceof kind).length);
}"""


def held(tab: Any) -> list[int]:
    """How many charts' menus and tables that are paged the page holds, shown or not; it searches all objects."""
    browser = tab.context.new_cdp_session(tab)
    of = browser.send("Runtime.evaluate", {"expression": "HTMLElement.prototype"})["result"][
        "objectId"
    ]
    found = browser.send("Runtime.queryObjects", {"prototypeObjectId": of})["objects"]["objectId"]
    asked = {"objectId": found, "functionDeclaration": COUNTED, "returnByValue": True}
    counts: list[int] = browser.send("Runtime.callFunctionOn", asked)["result"]["value"]
    browser.detach()  # or the answer itself would hold them
    return counts
