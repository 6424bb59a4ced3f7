"""The report page: self-contained, escaped, with charts as pictures, and nothing of the machine that made it."""

from __future__ import annotations

import html
import json
import os
import platform
import re
import shutil
import subprocess
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
import pyarrow.parquet as pq
import pytest
from nbconvert import HTMLExporter
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from traitlets.config import Config

import make
import perfkit
from perfkit import report
from perfkit.charts import kernels, tables
from perfkit.report.html import PARAMETERS, SET_IT, clean, drawn, page, pages
from perfkit.report.notebooks import sample
from perfkit.report.pages import BROWSERS

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
    """The code of all cells is there behind one toggle of the page; a page without code has none."""
    html = page(_notebook(code="answer = 42"), title="Run")
    assert ["show-code"] == [box["id"] for box in _Page(html).of("input")]
    assert "answer = 42" in _Page(html).text
    assert [] == _Page(page(_notebook(code=""), title="Run")).of("input")


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


SPEC = {
    "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
    "title": "Bars of <b>two</b> kernels",
    "description": 'Two bars "a" and <b>',
    "data": {"values": [{"kernel": "a_long_kernel_name", "ms": 3}, {"kernel": "b", "ms": 5}]},
    "mark": "bar",
    "encoding": {"x": {"field": "ms", "type": "quantitative"}, "y": {"field": "kernel", "type": "nominal"}},
}
PICTURE = re.compile(r'<img alt="([^"]*)" src="data:image/svg\+xml;base64,([^"]*)"/?>')


def notebook(*data: dict[str, Any]) -> nbformat.NotebookNode:
    """A notebook of one cell with these outputs."""
    made = nbformat.v4
    outputs = [made.new_output("display_data", data=each) for each in data]
    return made.new_notebook(cells=[made.new_markdown_cell("# Text"), made.new_code_cell("show()", outputs=outputs)])


def test_chart_gets_a_picture_and_keeps_its_data() -> None:
    """The picture has the axis's names and both bars; its title and its description are text."""
    made, resources = drawn(notebook({MIME: SPEC, "text/plain": "chart"}), {"a": 1})
    data = made.cells[1].outputs[0].data
    assert (SPEC, {"a": 1}) == (data[MIME], resources)
    said, drawing = PICTURE.fullmatch(data["text/html"]).groups()  # type: ignore[union-attr]
    picture = b64decode(drawing).decode()
    assert "Two bars &quot;a&quot; and &lt;b&gt;" == said
    assert {"a_long_kernel_name", "b"} <= set(re.findall(r">([^<>]+)</text>", picture))
    assert 2 == len(re.findall(r'aria-roledescription="bar"', picture))
    assert "&lt;b&gt;two&lt;/b&gt;" in picture


def test_nothing_else_is_touched() -> None:
    """Tables, text and a picture that is there already stay as they are."""
    given = notebook({"text/html": "<table></table>"}, {MIME: SPEC, "image/svg+xml": "<svg/>"})
    before = nbformat.writes(given)
    assert before == nbformat.writes(drawn(given, {})[0])


def test_data_from_elsewhere_are_not_fetched() -> None:
    """A chart that names an address is refused before anything is asked for."""
    with pytest.raises(ValueError, match="External data url not allowed"):
        drawn(notebook({MIME: {**SPEC, "data": {"url": "http://127.0.0.1:9/data.json"}}}), {})


def test_nbconvert_takes_it_by_name() -> None:
    """The line of the instructor's page, without nbgrader: the page holds a picture in place of the description."""
    config = Config()
    config.HTMLExporter.preprocessors = ["perfkit.report.html.drawn"]
    page, _ = HTMLExporter(config=config).from_notebook_node(notebook({MIME: SPEC, "text/plain": "chart: bars"}))
    assert 1 == len(re.findall(r"<img alt=[^>]+ src=.data:image/svg\+xml;base64,", page))
    assert "chart: bars" not in page


USER, HOST = "ann-of-the-tests", "node-4711.of-the-tests"
HAS_BROWSER = any(map(shutil.which, BROWSERS))


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home of a user of another host, with a run, and an earlier one in a folder beside."""
    home = tmp_path_factory.mktemp("machine") / USER / "secret-user-home"
    shutil.copytree(sample(), home / "run")
    (home / "earlier").mkdir()
    make.capture(home / "earlier" / "run.sqlite", kernels=600)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        patch.setenv("USER", USER)
        patch.setenv("PERFKIT_CACHE", str(home / "cache"))
        patch.setattr(platform, "node", lambda: HOST)
        patch.chdir(home)
        yield home


@pytest.fixture(scope="module")
def built(machine: Path) -> Path:
    """The report, made from a whole path and a relative one."""
    report.build(machine / "run", machine / "report", baseline="earlier/run.sqlite", pdf=HAS_BROWSER)
    return machine / "report"


def secrets(machine: Path) -> list[str]:
    """What no file may hold: the folders, the user and the host."""
    return ["secret-user-home", str(machine.parents[1]), "earlier/", USER, HOST]


def texts(file: Path) -> Iterator[str]:
    """Every text in a file, as it stands there and as who reads it sees it."""
    content = file.read_bytes()
    yield content.decode("utf-8", "replace")
    if file.suffix == ".parquet":
        yield repr((pq.read_schema(file).metadata, pd.read_parquet(file).attrs))
        yield repr(pq.read_table(file).select(_text_columns(file)).to_pydict())
    elif file.suffix == ".pdf":
        yield from (_unpacked(stream) for stream in re.findall(rb"stream\r?\n(.*?)endstream", content, re.DOTALL))
    elif file.suffix in (".json", ".ipynb"):
        yield from _strings(json.loads(content))
    else:
        yield html.unescape(content.decode("utf-8"))
        for data in re.findall(r'<script type="application/json">(.*?)</script>', content.decode(), re.DOTALL):
            yield from _strings(json.loads(data))


def _text_columns(file: Path) -> list[str]:
    return [name for name, dtype in pd.read_parquet(file).dtypes.items() if str(dtype) in ("category", "string")]


def _unpacked(stream: bytes) -> str:
    try:
        return zlib.decompress(stream).decode("latin-1")
    except zlib.error:
        return stream.decode("latin-1")


def _strings(value: Any) -> Iterator[str]:
    """Every string of a JSON value, and what is written in base64 in one."""
    if isinstance(value, dict):
        yield from value
    for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from _strings(one)
    if isinstance(value, str):
        yield value
        yield from (b64decode(data).decode() for data in re.findall(r"data:text/csv[^,]*;base64,([\w+/=]+)", value))


def leaks(folder: Path, secret: list[str]) -> list[tuple[str, str]]:
    """File and secret wherever one stands in the other."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [(file.name, one) for file in files for one in secret if any(one in text for text in texts(file))]


def test_no_file_of_a_report_names_the_machine(built: Path, machine: Path) -> None:
    """Neither page, PDF, summaries, notebooks with their metadata, nor tables with theirs."""
    kinds = {file.suffix for file in built.rglob("*") if file.is_file()}
    assert {".html", ".md", ".json", ".ipynb", ".parquet", *([".pdf"] if HAS_BROWSER else [])} <= kinds
    assert [] == leaks(built, secrets(machine))


def test_files_are_named_by_the_run(built: Path) -> None:
    """A folder's files by its name, a file by its own, in the summary as in the table."""
    about = json.loads((built / "summary.json").read_text())["inputs"]
    assert ("run", "run.sqlite", "") == tuple(about["parameters"][name] for name in ("profile", "baseline", "peaks"))
    names = {f"run/{path.name}" for path in sample().iterdir() if ".truth." not in path.name}
    assert names == {capture["path"] for capture in about["captures"]}
    assert names == {*pd.read_parquet(built / "tables" / "capture.parquet")["path"]}
    assert {"run.sqlite"} == {*pd.read_parquet(built / "tables" / "baseline" / "capture.parquet")["path"]}


def test_tables_are_as_they_were(built: Path, machine: Path) -> None:
    """Only paths change: types and all else are those of the run."""
    run = perfkit.load(machine / "run")
    pd.testing.assert_frame_equal(run.kernels, pd.read_parquet(built / "tables" / "kernels.parquet"))
    pd.testing.assert_frame_equal(
        run.capture.drop(columns="path"), pd.read_parquet(built / "tables" / "capture.parquet").drop(columns="path")
    )


def test_a_notebook_runs_where_the_run_is_found(built: Path, machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its parameters are names, and say that they are to be set; from the folder of the run they lead to it."""
    notebook = nbformat.read(built / "notebooks" / "6_compare.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert {"input_path", "output_path"} & set(notebook.metadata["papermill"]) == set()
    (cell,) = (cell for cell in notebook.cells if PARAMETERS in cell.metadata.get("tags", []))
    assert f'\nprofile = "run"{SET_IT}\nbaseline = "run.sqlite"{SET_IT}\n' in cell.source
    names: dict[str, Any] = {}
    exec(cell.source, names)
    monkeypatch.chdir(machine)
    assert 3 == len(perfkit.load(names["profile"]).profiles)


def test_the_programs_of_the_page_are_as_its_policy_says(built: Path) -> None:
    """A browser runs only those whose hash the policy names."""
    page = (built / "index.html").read_text(encoding="utf-8")
    policy = html.unescape(re.search(r'Content-Security-Policy" content="([^"]*)"', page)[1])  # type: ignore[index]
    scripts = re.findall(r"<script>(.*?)</script>", page, re.DOTALL)
    assert scripts
    assert policy.count("'sha256-") == len(scripts)
    for script in scripts:
        digest = sha256(script.encode()).digest()
        assert f"'sha256-{b64encode(digest).decode()}'" in policy


@pytest.mark.usefixtures("without_kernels")
def test_paths_stay_where_they_are_asked_for(machine: Path) -> None:
    """With keep_paths the report says where the run lies."""
    page = report.build("earlier/run.sqlite", machine / "kept", keep_paths=True)
    about = json.loads(page.with_name("summary.json").read_text())["inputs"]
    assert str(machine / "earlier" / "run.sqlite") == about["parameters"]["profile"]


@pytest.fixture
def folder(machine: Path) -> Path:
    """A report in the making."""
    made = machine / ".report-in-the-making"
    shutil.rmtree(made, ignore_errors=True)
    (made / "notebooks").mkdir(parents=True)
    return made


def cleaned(folder: Path, text: str, name: str = "summary.md", **inputs: str | Path) -> str:
    """A text as a report has it."""
    (folder / name).write_text(text, encoding="utf-8")
    clean(folder, inputs)
    return (folder / name).read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{home}/run/a.sqlite: cut", "run/a.sqlite: cut"),
        ("({home}/run), '{home}/run'.", "(run), 'run'."),
        ("{home}/run2 {home}/run.bak {home}/run-1", "run2 run.bak run-1"),
        ("file://{home}/run/x", "file://run/x"),
        ("{home} and {home}/", ". and "),
        ("{home}more {home}.more", "~/secret-user-homemore ~/secret-user-home.more"),
        ("{up}/code/train.py -I{up}/include", "~/code/train.py -I~/include"),
        (f"/scratch/{USER}/model.py on {HOST}, node-4711:5", "/scratch/USER/model.py on HOST, HOST:5"),
        (f"{USER}s of my-{HOST}", f"{USER}s of my-{HOST}"),
        ("/usr/lib/x.so /home/bob/x /tmp/y", "/usr/lib/x.so /home/bob/x /tmp/y"),
    ],
)
def test_paths_become_names(
    folder: Path, machine: Path, monkeypatch: pytest.MonkeyPatch, text: str, expected: str
) -> None:
    """The run's by its name, those beside it by theirs, the home by its sign; what only begins alike is another."""
    monkeypatch.setenv("HOME", str(machine.parent))
    places = {"home": machine, "up": machine.parent}
    assert expected.format(**places) == cleaned(folder, text.format(**places), profile=machine / "run")


def test_a_home_below_the_root_is_no_part_of_other_paths(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`/root` is a home, `chroot/root` and `../root` are not; a colour of a terminal may stand before it."""
    monkeypatch.setenv("HOME", "/root")
    text = "/root/a chroot/root/b ../root/c File \x1b[32m/root/d\x1b[0m file:///root/e"
    assert "~/a chroot/root/b ../root/c File \x1b[32m~/d\x1b[0m file://~/e" == cleaned(folder, text)


def test_relative_paths_become_names(folder: Path) -> None:
    """A run that was given as `../bob/run` is not told by the folder of another user."""
    text = "../bob/run/a.sqlite ../bob/run2 x/../bob/run"
    assert "run/a.sqlite ../bob/run2 x/../bob/run" == cleaned(folder, text, profile="../bob/run")


def test_two_inputs_of_one_name_are_told_apart(folder: Path) -> None:
    """The second is called by its parameter too."""
    assert "run baseline/run" == cleaned(folder, "/x/one/run /x/two/run", profile="/x/one/run", baseline="/x/two/run")


def test_a_link_is_named_as_it_was_given(folder: Path, machine: Path) -> None:
    """Where it leads to may be a name of its own, which is kept, without its folder."""
    link = machine / "link"
    link.unlink(missing_ok=True)
    link.symlink_to(machine / "earlier")
    text = f"{link}/a {machine}/earlier/b"
    assert "link/a earlier/b" == cleaned(folder, text, profile=link)


@pytest.mark.parametrize("name", ["R&D <ann>", 'quoted "run"', "it's", "日本語", "a b"])
def test_paths_are_found_in_every_spelling(folder: Path, name: str) -> None:
    """HTML, JSON, a script, Python and addresses write the signs of a path each in their own way."""
    path = f"/x/{name}/secret"
    forms = [path, html.escape(path), json.dumps(path), json.dumps(path, ensure_ascii=False), repr(path)]
    made = cleaned(folder, "\n".join([*forms, Path(path).as_uri()]), profile=path)
    assert 'secret\nsecret\n"secret"\n"secret"\n\'secret\'\nfile://secret' == made.replace(
        '"secret"\nfile', "'secret'\nfile"
    )


def test_an_error_in_a_notebook_names_no_folder(folder: Path, machine: Path) -> None:
    """The traceback, its message and the outputs of a cell; what a table holds as data too."""
    lines = [f"File \x1b[32m{machine}/run/a.py:1\x1b[0m", f"ReadError: {machine}/run/a.sqlite: cut"]
    failed = nbformat.v4.new_output("error", ename="ReadError", evalue=lines[1], traceback=lines)
    data = b64encode(f"name\n{machine}/run/x\n".encode()).decode()
    shown = f'<a href="data:text/csv;charset=utf-8;base64,{data}">CSV</a><a href="{machine}/run">x</a>'
    output = nbformat.v4.new_output("display_data", data={"text/html": shown})
    cell = nbformat.v4.new_code_cell(f"# {machine}/run", outputs=[failed, output])
    places = {"input_path": "/opt/x.ipynb", "output_path": str(folder), "duration": 1.5}
    nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata={"papermill": places}), folder / "notebooks/3.ipynb")
    clean(folder, {"profile": machine / "run"})
    assert [] == leaks(folder, secrets(machine))
    made = nbformat.read(folder / "notebooks" / "3.ipynb", as_version=4)
    assert {"duration": 1.5} == made.metadata["papermill"]
    assert ["File \x1b[32mrun/a.py:1\x1b[0m", "ReadError: run/a.sqlite: cut"] == made.cells[0].outputs[0]["traceback"]
    assert b64encode(b"name\nrun/x\n").decode() in made.cells[0].outputs[1]["data"]["text/html"]


def test_tables_name_no_folder(folder: Path, machine: Path) -> None:
    """Texts, categories that become one, missing values, and what pandas notes; other columns keep type and value."""
    texts = [f"{machine}/run/a", "run/a", None, "x"]
    frame = pd.DataFrame({"file": pd.Categorical(texts), "path": pd.array(texts, dtype="string"), "start_ns": range(4)})
    frame.attrs["source"] = str(machine / "run")
    frame.to_parquet(folder / "t.parquet", index=False)
    clean(folder, {"profile": machine / "run"})
    assert [] == leaks(folder, secrets(machine))
    expected = ["run/a", "run/a", None, "x"]
    wanted = frame.assign(file=pd.Categorical(expected), path=pd.array(expected, dtype="string"))
    wanted.attrs = {}
    pd.testing.assert_frame_equal(wanted, pd.read_parquet(folder / "t.parquet"))


def test_a_table_without_paths_is_not_written_again(folder: Path) -> None:
    """Large tables stay as they are, to the byte."""
    file = folder / "t.parquet"
    pd.DataFrame({"name": pd.Categorical(["gemm", "/usr/lib/x"])}).to_parquet(file, index=False)
    before = file.stat()
    clean(folder, {"profile": "/x/run"})
    assert (before.st_mtime_ns, before.st_ino) == (file.stat().st_mtime_ns, file.stat().st_ino)
