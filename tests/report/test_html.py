"""The report page: self-contained, escaped, readable without the notebooks."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output

from perfkit.charts import kernels, tables
from perfkit.report.html import page, pages

MIME = "application/vnd.vegalite.v5+json"
HOSTILE = "</script><script>document.title='hacked'</script>"
SUMMARY = pd.DataFrame(
    {"name": ["gemm", HOSTILE], "family": "gemm", "count": 1, "total_ns": [3, 1], "share_frac": [0.75, 0.25]}
)


class _Page(HTMLParser):
    """What a browser would make of a page: tags, attributes, scripts, and text outside of them."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.scripts: list[str] = []
        self.text = ""
        self._raw = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {name: value or "" for name, value in attrs}))
        self._raw = tag if tag in ("script", "style") else ""

    def handle_endtag(self, tag: str) -> None:
        self._raw = "" if tag == self._raw else self._raw

    def handle_data(self, data: str) -> None:
        if self._raw == "script":
            self.scripts.append(data)
        elif not self._raw:
            self.text += data

    def of(self, tag: str) -> list[dict[str, str]]:
        return [attributes for name, attributes in self.tags if name == tag]


def _chart(summary: pd.DataFrame = SUMMARY) -> NotebookNode:
    return _shown({MIME: kernels.bars(summary).to_dict(), "text/plain": "chart"})


def _shown(data: dict[str, Any]) -> NotebookNode:
    return new_output("display_data", data)


def _notebook(*outputs: NotebookNode, prose: str = "# Which kernels take the time?", code: str = "1") -> NotebookNode:
    return new_notebook(cells=[new_markdown_cell(prose), new_code_cell(code, outputs=list(outputs))])


def test_nothing_is_requested() -> None:
    """No attribute of any tag and no style makes a browser ask for anything but what the page holds."""
    html = pages([("Kernels", _notebook(_chart())), ("Again", _notebook(_chart()))], title="Run")
    parsed = _Page(html)
    loading = ("src", "srcset", "href", "action", "poster", "data", "background", "xlink:href")
    asked = [a[name] for tag, a in parsed.tags if tag != "a" for name in loading if name in a]
    assert ["data:,"] == asked
    assert not [a["href"] for a in parsed.of("a") if not a["href"].startswith("#section-")]
    assert not re.findall(r"@import|url\(", "".join(re.findall(r"<style>(.*?)</style>", html, re.DOTALL)))
    for foreign in ("requirejs", "require.min.js", "MathJax", "mermaid", "html-manager", "cdn.jsdelivr"):
        assert foreign not in html


def test_the_policy_allows_the_pages_own_scripts_and_nothing_else() -> None:
    """Both scripts are named by their hash; without a chart there is no script at all."""
    page_ = _Page(page(_notebook(_chart()), title="Run"))
    policy = next(a["content"] for a in page_.of("meta") if a.get("http-equiv") == "Content-Security-Policy")
    own = [script for script in page_.scripts if not script.startswith("{")]
    hashes = " ".join(f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in own)
    assert 2 == len(own)
    assert policy.startswith(f"default-src 'none'; script-src {hashes}; ")
    assert "http" not in policy
    plain = page(_notebook(), title="Run")
    assert "script-src 'none';" in plain
    assert [] == _Page(plain).scripts
    assert len(plain) < 20_000


def test_long_tables_bring_their_scripts_once() -> None:
    """Two tables on two sections: both scripts once, allowed by their hash, and no chart library without a chart."""
    table = _shown({"text/html": tables.searchable(SUMMARY, caption="Kernels").html})
    html = pages([("A", _notebook(table)), ("B", _notebook(table))], title="Run")
    own = _Page(html).scripts
    assert [tables.library(), tables.script()] == own
    hashes = " ".join(f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in own)
    assert f"default-src 'none'; script-src {hashes}; " in html
    assert len(html) < 700_000


def test_long_tables_are_not_changed() -> None:
    """The page holds to the letter what `charts.searchable` made, whatever stands in it: it is not parsed."""
    tables_ = [tables.searchable(SUMMARY, caption=caption).html for caption in (r"\1 \g<0>", HOSTILE)]
    html = page(_notebook(*(_shown({"text/html": table}) for table in tables_)), title="Run")
    first, second = (html.find(f'<div class="html">{table}</div>') for table in tables_)
    assert 0 < first < second
    assert [] == [script for script in _Page(html).scripts if "hacked" in script]


def test_the_chart_library_is_there_once() -> None:
    """Three charts on a page of less than 1 MB: the library of 0.9 MB is not repeated."""
    html = pages([("A", _notebook(_chart(), _chart())), ("B", _notebook(_chart()))], title="Run")
    assert 900_000 < len(html.encode()) < 1_000_000
    assert 3 == len(_Page(html).of("figure"))


def test_specifications_survive_unchanged() -> None:
    """What a chart's element holds is the notebook's specification, hostile names included."""
    chart = _chart()
    specs = [json.loads(script) for script in _Page(page(_notebook(chart), title="Run")).scripts if script[0] == "{"]
    assert [chart["data"][MIME]] == specs


def test_a_chart_says_what_it_shows() -> None:
    """The figure is an image to screen readers, described by the chart's own words, which are escaped."""
    summary = SUMMARY.assign(name=['"><script>1</script>', "b"])
    (figure,) = _Page(page(_notebook(_chart(summary)), title="Run")).of("figure")
    assert "img" == figure["role"]
    assert figure["aria-label"].startswith('"><script>1</script> takes 75.0 % of GPU kernel time.')


@pytest.mark.parametrize(
    "output",
    [
        _chart(),
        _shown({"text/html": tables.show(SUMMARY, caption=HOSTILE).html}),
        _shown({"text/markdown": HOSTILE}),
        _shown({"text/plain": HOSTILE}),
        new_output("stream", text=HOSTILE),
        new_output("error", ename=HOSTILE, evalue=HOSTILE, traceback=[HOSTILE]),
    ],
    ids=["chart", "table", "markdown", "text", "stream", "error"],
)
def test_text_from_a_profile_stays_text(output: NotebookNode) -> None:
    """Whatever way a hostile name takes to the page, it adds no script element."""
    html = pages([(HOSTILE, _notebook(output, code=f"x = {HOSTILE!r}"))], title=HOSTILE)
    scripts = 3 if MIME in output.get("data", {}) else 0
    assert scripts == len(_Page(html).of("script")) == html.lower().count("</script")
    assert HOSTILE in _Page(html).text


def test_a_failed_step_is_shown_and_marked() -> None:
    """The error is a visible box, its section is marked in the contents, and papermill's banner is left out."""
    error = new_output("error", ename="ReadError", evalue="run.sqlite: cut", traceback=["\x1b[31mTrace\x1b[0m"])
    broken = _notebook(error)
    banner = new_markdown_cell("An Exception was encountered", metadata={"tags": ["papermill-error-cell-tag"]})
    broken.cells.insert(0, banner)
    text = " ".join(_Page(pages([("A", _notebook()), ("B", broken)], title="Run")).text.split())
    assert "This step failed. ReadError: run.sqlite: cut" in text
    assert 1 == text.count("a step failed")
    assert "An Exception was encountered" not in text
    assert "\x1b" not in text


def test_code_is_behind_a_toggle() -> None:
    """Each cell's code is there, closed; a cell without code has no toggle."""
    html = page(_notebook(code="answer = 42"), title="Run")
    (details,) = _Page(html).of("details")
    assert {"class": "code"} == details
    assert "answer = 42" in _Page(html).text
    assert [] == _Page(page(_notebook(code=""), title="Run")).of("details")


def test_contents_lead_to_every_section() -> None:
    """The contents link each section in the given order and say its question."""
    html = pages([("Summary", _notebook(prose="# Why slow?")), ("Kernels", _notebook(prose="No title"))], title="Run")
    page_ = _Page(html)
    assert ["#section-1", "#section-2"] == [a["href"] for a in page_.of("a")]
    assert ["section-1", "section-2"] == [a["id"] for a in page_.of("section")]
    assert page_.text.index("Why slow?") < page_.text.index("Kernels")


def test_one_notebook_needs_no_contents() -> None:
    """A page of one section has no table of contents."""
    assert [] == _Page(page(_notebook(), title="Run")).of("nav")


def test_headings_form_one_outline() -> None:
    """The page's title is the only h1; a notebook's headings lie one level lower."""
    html = page(_notebook(_shown({"text/markdown": "# Found"}), prose="# Why?\n\n## Then"), title="Run")
    assert ["h1", "h2", "h3", "h2"] == [tag for tag, _ in _Page(html).tags if re.fullmatch(r"h\d", tag)]


def test_live_widgets_leave_no_trace() -> None:
    """A widget cannot live on the page; its text form would tell a reader nothing."""
    widget = _shown({"application/vnd.jupyter.widget-view+json": {"model_id": "1"}, "text/plain": "SelectMultiple()"})
    assert "SelectMultiple" not in page(_notebook(widget), title="Run")


def test_pictures_are_embedded() -> None:
    """A PNG is part of the page, with the words that describe it."""
    output = new_output("display_data", {"image/png": "iVBORw0KGgo="}, metadata={"alt": "a plot"})
    (image,) = _Page(page(_notebook(output), title="Run")).of("img")
    assert ("a plot", "data:image/png;base64,iVBORw0KGgo=") == (image["alt"], image["src"])


def test_no_notebook_is_refused() -> None:
    """A page about nothing is an error of the caller."""
    with pytest.raises(ValueError, match="notebooks: none given"):
        pages([], title="Run")


def _browser() -> str:
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if not found and os.environ.get("CI") == "true":
        pytest.fail("no Chromium on PATH: the report's charts were not drawn")
    if not found:
        pytest.skip("no Chromium on PATH")
    return found


def _drawn(html: str, folder: Path) -> tuple[str, list[str]]:
    """Return the document after its scripts ran, and what the browser's console said."""
    (folder / "page.html").write_text(html, encoding="utf-8")
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--enable-logging=stderr",
    ]
    options += [f"--user-data-dir={folder / 'browser'}", "--virtual-time-budget=8000", "--dump-dom"]
    command = [_browser(), *options, (folder / "page.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    return done.stdout, [line for line in done.stderr.splitlines() if "CONSOLE" in line]


def test_a_browser_draws_every_chart(tmp_path: Path) -> None:
    """Chromium draws both charts as SVG under the policy, and its console stays silent."""
    document, console = _drawn(pages([("A", _notebook(_chart())), ("B", _notebook(_chart()))], title="Run"), tmp_path)
    assert [] == console
    assert 2 == document.count('<svg xmlns="http://www.w3.org/2000/svg"')
    assert "could not be drawn" not in document.split("<script>")[0]
    assert "75.0 %" in document


def test_a_browser_runs_no_foreign_script(tmp_path: Path) -> None:
    """Even a script and an event handler that reach the page in HTML are not run."""
    attack = """<img src="x" onerror="document.title='hacked'"><script>document.title='hacked'</script>"""
    document, console = _drawn(page(_notebook(_shown({"text/html": attack}), _chart()), title="Safe"), tmp_path)
    assert "<title>Safe</title>" in document
    assert 3 == sum("Content Security Policy" in line for line in console)
