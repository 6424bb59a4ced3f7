"""The report page: self-contained, escaped, with charts as pictures, and nothing of the machine that made it."""

import html
import json
import platform
import re
import shutil
import subprocess
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import extras
import nbformat
import pandas as pd
import pyarrow.parquet as pq
import pytest
from bs4 import BeautifulSoup
from nbconvert import HTMLExporter
from nbformat import NotebookNode
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook, new_output
from traitlets.config import Config

import make
import perfkit
from perfkit import report
from perfkit.charts import kernels, tables
from perfkit.report.html import drawn, page, pages
from perfkit.report.machine import PARAMETERS, SET_IT, named
from perfkit.report.notebooks import sample
from perfkit.report.printing import BROWSERS

MIME = "application/vnd.vegalite.v5+json"
HOSTILE = "</script><script>document.title='hacked'</script>"
SUMMARY = pd.DataFrame(
    {
        "name": ["gemm", HOSTILE],
        "family": "gemm",
        "count": 1,
        "total_ns": [3, 1],
        "share_frac": [0.75, 0.25],
    }
)


def _parsed(html: str) -> BeautifulSoup:
    return BeautifulSoup(html, "html.parser")


def _programs(html: str) -> list[str]:
    """The programs of a page, of which its policy names the hashes and allows nothing else."""
    soup = _parsed(html)
    own = [str(script.string) for script in soup("script", type=None)]
    (policy,) = (
        meta["content"] for meta in soup("meta", {"http-equiv": "Content-Security-Policy"})
    )
    hashes = " ".join(
        f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in own
    )
    assert policy.startswith("default-src 'none'; script-src {}; ".format(hashes or "'none'"))
    assert "http" not in policy
    return own


def _chart(summary: pd.DataFrame = SUMMARY) -> NotebookNode:
    return _shown({MIME: kernels.bars(summary).to_dict(), "text/plain": "chart"})


def _shown(data: dict[str, Any], **about: Any) -> NotebookNode:
    return new_output("display_data", data, metadata=about)


def _notebook(
    *outputs: NotebookNode, prose: str = "# Which kernels take the time?", code: str = "1"
) -> NotebookNode:
    return new_notebook(
        cells=[new_markdown_cell(prose), new_code_cell(code, outputs=list(outputs))]
    )


def test_charts_request_nothing_and_share_one_library() -> None:
    made = pages([("A", _notebook(_chart(), _chart())), ("B", _notebook(_chart()))], title="Run")
    soup = _parsed(made)
    assert 900_000 < len(made.encode()) < 1_000_000  # the library has 0.9 MB
    assert (3, 2) == (len(soup("figure")), len(_programs(made)))
    loading = ("src", "srcset", "href", "action", "poster", "data", "background", "xlink:href")
    asked = [
        tag[name] for tag in soup(True) if tag.name != "a" for name in loading if name in tag.attrs
    ]
    assert ["data:,"] == asked
    assert not [a["href"] for a in soup("a") if not a["href"].startswith("#section-")]
    assert not re.findall(r"@import|url\(", "".join(style.string for style in soup("style")))
    for foreign in (
        "requirejs",
        "require.min.js",
        "MathJax",
        "mermaid",
        "html-manager",
        "cdn.jsdelivr",
    ):
        assert foreign not in made


def test_a_page_brings_the_programs_that_it_needs() -> None:
    plain = page(_notebook(), title="Run")
    assert [] == _programs(plain) == _parsed(plain)("script")
    assert len(plain) < 20_000
    table = _shown({"text/html": tables.searchable(SUMMARY, caption="Kernels").html})
    made = pages([("A", _notebook(table)), ("B", _notebook(table))], title="Run")
    assert [tables.library(), tables.script()] == _programs(made)
    assert len(made) < 700_000


def test_long_tables_are_not_changed() -> None:
    tables_ = [
        tables.searchable(SUMMARY, caption=caption).html for caption in (r"\1 \g<0>", HOSTILE)
    ]
    made = page(_notebook(*(_shown({"text/html": table}) for table in tables_)), title="Run")
    first, second = (made.find(f'<div class="html">{table}</div>') for table in tables_)
    assert 0 < first < second
    assert [] == [script for script in _programs(made) if "hacked" in script]


def test_a_chart_keeps_its_specification_and_says_what_it_shows() -> None:
    chart = _chart(SUMMARY.assign(name=['"><script>1</script>', HOSTILE]))
    soup = _parsed(page(_notebook(chart), title="Run"))
    assert [chart["data"][MIME]] == [
        json.loads(script.string) for script in soup("script", type=True)
    ]
    (figure,) = soup("figure")
    assert "img" == figure["role"]
    assert figure["aria-label"].startswith('"><script>1</script> takes 75.0 % of GPU kernel time.')


@pytest.mark.parametrize(
    "output",
    [
        pytest.param(_chart(), id="chart"),
        pytest.param(_shown({"text/html": tables.show(SUMMARY, caption=HOSTILE).html}), id="table"),
        pytest.param(_shown({"text/markdown": HOSTILE}), id="markdown"),
        pytest.param(_shown({"text/plain": HOSTILE}), id="text"),
        pytest.param(new_output("stream", text=HOSTILE), id="stream"),
        pytest.param(
            new_output("error", ename=HOSTILE, evalue=HOSTILE, traceback=[HOSTILE]), id="error"
        ),
    ],
)
def test_text_from_a_profile_stays_text(output: NotebookNode) -> None:
    made = pages([(HOSTILE, _notebook(output, code=f"x = {HOSTILE!r}"))], title=HOSTILE)
    scripts = 3 if MIME in output.get("data", {}) else 0
    assert scripts == len(_parsed(made)("script")) == made.lower().count("</script")
    assert HOSTILE in _parsed(made).get_text()


def test_a_failed_step_is_shown_and_marked() -> None:
    error = new_output(
        "error", ename="ReadError", evalue="run.sqlite: cut", traceback=["\x1b[31mTrace\x1b[0m"]
    )
    broken = _notebook(error)
    banner = new_markdown_cell(
        "An Exception was encountered", metadata={"tags": ["papermill-error-cell-tag"]}
    )
    broken.cells.insert(0, banner)
    text = " ".join(
        _parsed(pages([("A", _notebook()), ("B", broken)], title="Run")).get_text().split()
    )
    assert "This step failed. ReadError: run.sqlite: cut" in text
    assert 1 == text.count("a step failed")
    assert "An Exception was encountered" not in text
    assert "\x1b" not in text


def test_the_parts_of_a_page() -> None:
    one = _notebook(
        _shown({"text/markdown": "# Found"}), prose="# Why?\n\n## Then", code="answer = 42"
    )
    soup = _parsed(page(one, title="Run"))
    assert ["show-code"] == [box["id"] for box in soup("input")]
    assert "answer = 42" in soup.get_text()
    assert [] == soup("nav"), "one section needs no contents"
    assert ["h1", "h2", "h3", "h2"] == [tag.name for tag in soup(re.compile(r"h\d"))], "one outline"
    two = [
        ("Summary", _notebook(prose="# Why slow?", code="")),
        ("Kernels", _notebook(prose="No title", code="")),
    ]
    soup = _parsed(pages(two, title="Run"))
    assert [] == soup("input"), "no toggle without code"
    assert ["#section-1", "#section-2"] == [a["href"] for a in soup("a")]
    assert ["section-1", "section-2"] == [a["id"] for a in soup("section")]
    assert soup.get_text().index("Why slow?") < soup.get_text().index("Kernels")
    widget = _shown(
        {
            "application/vnd.jupyter.widget-view+json": {"model_id": "1"},
            "text/plain": "SelectMultiple()",
        }
    )
    soup = _parsed(
        page(_notebook(widget, _shown({"image/png": "iVBORw0KGgo="}, alt="a plot")), title="Run")
    )
    assert "SelectMultiple" not in str(soup)
    assert [("a plot", "data:image/png;base64,iVBORw0KGgo=")] == [
        (image["alt"], image["src"]) for image in soup("img")
    ]
    with pytest.raises(ValueError, match="notebooks: none given"):
        pages([], title="Run")


def test_a_browser_draws_every_chart_and_runs_no_foreign_script(tmp_path: Path) -> None:
    attack = """<img src="x" onerror="document.title='hacked'"><script>document.title='hacked'</script>"""
    shown = _notebook(_shown({"text/html": attack}), _chart())
    made = pages([("A", shown), ("B", _notebook(_chart()))], title="Safe")
    (tmp_path / "page.html").write_text(made, encoding="utf-8")
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--disable-background-networking",
        "--dump-dom",
    ]
    options += [
        "--enable-logging=stderr",
        f"--user-data-dir={tmp_path / 'browser'}",
        "--virtual-time-budget=8000",
    ]
    command = [extras.program("chromium"), *options, (tmp_path / "page.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    console = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert (
        3 == len(console) == sum("Content Security Policy" in line for line in console)
    )  # of the attack
    assert "<title>Safe</title>" in done.stdout
    assert 2 == done.stdout.count('<svg xmlns="http://www.w3.org/2000/svg"')
    assert "could not be drawn" not in done.stdout.split("<script>")[0]
    assert "75.0 %" in done.stdout


SPEC = {
    "$schema": "https://vega.github.io/schema/vega-lite/v6.json",
    "title": "Bars of <b>two</b> kernels",
    "description": 'Two bars "a" and <b>',
    "data": {"values": [{"kernel": "a_long_kernel_name", "ms": 3}, {"kernel": "b", "ms": 5}]},
    "mark": "bar",
    "encoding": {
        "x": {"field": "ms", "type": "quantitative"},
        "y": {"field": "kernel", "type": "nominal"},
    },
}
PICTURE = re.compile(r'<img alt="([^"]*)" src="data:image/svg\+xml;base64,([^"]*)"/?>')


def test_chart_gets_a_picture_and_keeps_its_data() -> None:
    made, resources = drawn(_notebook(_shown({MIME: SPEC, "text/plain": "chart"})), {"a": 1})
    data = made.cells[1].outputs[0].data
    assert (SPEC, {"a": 1}) == (data[MIME], resources)
    said, drawing = PICTURE.fullmatch(data["text/html"]).groups()  # type: ignore[union-attr]
    picture = b64decode(drawing).decode()
    assert "Two bars &quot;a&quot; and &lt;b&gt;" == said
    assert {"a_long_kernel_name", "b"} <= set(re.findall(r">([^<>]+)</text>", picture))
    assert 2 == len(re.findall(r'aria-roledescription="bar"', picture))
    assert "&lt;b&gt;two&lt;/b&gt;" in picture


def test_only_charts_of_their_own_data_are_drawn_also_by_nbconvert() -> None:
    given = _notebook(
        _shown({"text/html": "<table></table>"}), _shown({MIME: SPEC, "image/svg+xml": "<svg/>"})
    )
    before = nbformat.writes(given)
    assert before == nbformat.writes(drawn(given, {})[0])
    with pytest.raises(ValueError, match="External data url not allowed"):
        drawn(
            _notebook(_shown({MIME: {**SPEC, "data": {"url": "http://127.0.0.1:9/data.json"}}})), {}
        )
    # The line of the instructor's page, without nbgrader.
    config = Config()
    config.HTMLExporter.preprocessors = ["perfkit.report.html.drawn"]
    shown = _notebook(_shown({MIME: SPEC, "text/plain": "chart: bars"}))
    made, _ = HTMLExporter(config=config).from_notebook_node(shown)
    assert 1 == len(re.findall(r"<img alt=[^>]+ src=.data:image/svg\+xml;base64,", made))
    assert "chart: bars" not in made


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
        for name, value in {"HOME": home, "USER": USER, "PERFKIT_CACHE": home / "cache"}.items():
            patch.setenv(name, str(value))
        patch.setattr(platform, "node", lambda: HOST)
        patch.chdir(home)
        yield home


@pytest.fixture(scope="module")
def built(machine: Path) -> Path:
    pdf = "summary" if HAS_BROWSER else ""
    report.build(machine / "run", machine / "report", baseline="earlier/run.sqlite", pdf=pdf)
    return machine / "report"


def texts(file: Path) -> Iterator[str]:
    """Every text in a file, as it stands there and as who reads it sees it."""
    content = file.read_bytes()
    yield content.decode("utf-8", "replace")
    if file.suffix == ".parquet":
        frame = pd.read_parquet(file)
        yield repr((pq.read_schema(file).metadata, frame.attrs))
        yield repr(
            pq.read_table(file).select([*frame.select_dtypes(("category", "string"))]).to_pydict()
        )
    elif file.suffix == ".pdf":
        yield from (
            _unpacked(stream)
            for stream in re.findall(rb"stream\r?\n(.*?)endstream", content, re.DOTALL)
        )
    elif file.suffix in (".json", ".ipynb"):
        yield from _strings(json.loads(content))
    else:
        yield html.unescape(content.decode("utf-8"))
        for data in re.findall(
            r'<script type="application/json">(.*?)</script>', content.decode(), re.DOTALL
        ):
            yield from _strings(json.loads(data))


def _unpacked(stream: bytes) -> str:
    try:
        return zlib.decompress(stream).decode("latin-1")
    except zlib.error:
        return stream.decode("latin-1")


def _strings(value: Any) -> Iterator[str]:
    """Every string of a JSON value, and what is written in base64 in one."""
    if isinstance(value, dict):
        yield from value
    for one in (
        value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    ):
        yield from _strings(one)
    if isinstance(value, str):
        yield value
        yield from (
            b64decode(data).decode()
            for data in re.findall(r"data:text/csv[^,]*;base64,([\w+/=]+)", value)
        )


def leaks(folder: Path, machine: Path) -> list[tuple[str, str]]:
    """File and secret (a folder, the user, the host) wherever one stands in the other."""
    secrets = ["secret-user-home", str(machine.parents[1]), "earlier/", USER, HOST]
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return [
        (file.name, one) for file in files for text in texts(file) for one in secrets if one in text
    ]


def test_a_report_names_files_by_the_run_and_never_the_machine(built: Path, machine: Path) -> None:
    kinds = {file.suffix for file in built.rglob("*") if file.is_file()}
    assert {
        ".html",
        ".md",
        ".json",
        ".ipynb",
        ".parquet",
        *([".pdf"] if HAS_BROWSER else []),
    } <= kinds
    assert [] == leaks(built, machine)
    assert _programs((built / "index.html").read_text(encoding="utf-8"))
    about = json.loads((built / "summary.json").read_text())["inputs"]
    assert ("run", "run.sqlite", "") == tuple(
        about["parameters"][name] for name in ("profile", "baseline", "peaks")
    )
    paths = ("capture", "baseline/capture", "kernels")
    tables = {path: pd.read_parquet(built / "tables" / f"{path}.parquet") for path in paths}
    names = {f"run/{path.name}" for path in sample().iterdir() if ".truth." not in path.name}
    assert (
        names == {capture["path"] for capture in about["captures"]} == {*tables["capture"]["path"]}
    )
    assert {"run.sqlite"} == {*tables["baseline/capture"]["path"]}
    run = perfkit.load(machine / "run")
    pd.testing.assert_frame_equal(run.kernels, tables["kernels"])
    pd.testing.assert_frame_equal(
        run.capture.drop(columns="path"), tables["capture"].drop(columns="path")
    )


def test_a_notebook_runs_where_the_run_is_found(
    built: Path, machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook = nbformat.read(built / "notebooks" / "6_compare.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert {"input_path", "output_path"} & set(notebook.metadata["papermill"]) == set()
    (cell,) = (cell for cell in notebook.cells if PARAMETERS in cell.metadata.get("tags", []))
    assert f'\nprofile = "run"{SET_IT}\nbaseline = "run.sqlite"{SET_IT}\n' in cell.source
    names: dict[str, Any] = {}
    exec(cell.source, names)
    monkeypatch.chdir(machine)
    assert 3 == len(perfkit.load(names["profile"]).profiles)


@pytest.mark.usefixtures("without_kernels")
def test_paths_stay_where_they_are_asked_for(
    machine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("perfkit.report.notebooks.answering", lambda *_: ["0_executive_summary"])
    made = report.build("earlier/run.sqlite", machine / "kept", keep_paths=True)
    about = json.loads(made.with_name("summary.json").read_text())["inputs"]
    assert str(machine / "earlier" / "run.sqlite") == about["parameters"]["profile"]


@pytest.fixture
def folder(machine: Path) -> Path:
    """A report in the making."""
    return machine / ".report-in-the-making"


def cleaned(folder: Path, text: str, **inputs: str | Path) -> str:
    return named(folder, inputs).text(text)


@pytest.mark.parametrize(
    ("text", "made"),
    [
        *(
            ("{home}/run/a.sqlite: cut", "run/a.sqlite: cut"),
            ("({home}/run), '{home}/run'.", "(run), 'run'."),
        ),
        ("{home}/run2 {home}/run.bak {home}/run-1", "run2 run.bak run-1"),
        *(("file://{home}/run/x", "file://run/x"), ("{home} and {home}/", ". and ")),
        ("{home}more {home}.more", "~/secret-user-homemore ~/secret-user-home.more"),
        ("{up}/code/train.py -I{up}/include", "~/code/train.py -I~/include"),
        (
            f"/scratch/{USER}/model.py on {HOST}, node-4711:5",
            "/scratch/USER/model.py on HOST, HOST:5",
        ),
        (f"{USER}s of my-{HOST}", f"{USER}s of my-{HOST}"),
        ("/usr/lib/x.so /home/bob/x /tmp/y", "/usr/lib/x.so ~/x /tmp/y"),
    ],
)
def test_paths_become_names(
    folder: Path, machine: Path, monkeypatch: pytest.MonkeyPatch, text: str, made: str
) -> None:
    monkeypatch.setenv("HOME", str(machine.parent))
    places = {"home": machine, "up": machine.parent}
    assert made.format(**places) == cleaned(folder, text.format(**places), profile=machine / "run")


def test_other_inputs_become_names(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/root")
    assert "~/a chroot/root/b ../root/c" == cleaned(folder, "/root/a chroot/root/b ../root/c")
    text = "File \x1b[32m/root/d\x1b[0m file:///root/e"
    assert "File \x1b[32m~/d\x1b[0m file://~/e" == cleaned(folder, text)
    text = "../bob/run/a ../bob/run2 x/../bob/run"
    assert "run/a ../bob/run2 x/../bob/run" == cleaned(folder, text, profile="../bob/run")
    text = "/x/one/run /x/two/run"
    assert "run baseline/run" == cleaned(folder, text, profile="/x/one/run", baseline="/x/two/run")


def test_links_and_every_spelling_of_a_path_are_found(folder: Path, machine: Path) -> None:
    link = machine / "link"
    link.symlink_to(machine / "earlier")
    assert "link/a earlier/b" == cleaned(folder, f"{link}/a {machine}/earlier/b", profile=link)
    for name in ("R&D <ann>", 'quoted "run"', "it's", "日本語", "a b"):
        path = f"/x/{name}/secret"
        forms = [
            path,
            html.escape(path),
            json.dumps(path),
            json.dumps(path, ensure_ascii=False),
            repr(path),
        ]
        *made, code, address = cleaned(
            folder, "\n".join([*forms, Path(path).as_uri()]), profile=path
        ).splitlines()
        assert ["secret", "secret", '"secret"', '"secret"', "file://secret"] == [*made, address]
        assert code in ("'secret'", '"secret"')


def test_an_error_in_a_notebook_names_no_folder(folder: Path, machine: Path) -> None:
    lines = [f"File \x1b[32m{machine}/run/a.py:1\x1b[0m", f"ReadError: {machine}/run/a.sqlite: cut"]
    failed = new_output("error", ename="ReadError", evalue=lines[1], traceback=lines)
    notebook = new_notebook(cells=[new_code_cell(f"# {machine}/run", outputs=[failed])])
    made = named(folder, {"profile": machine / "run"}).notebook(notebook, ["profile"])
    assert "# run" == made.cells[0].source
    assert ["File \x1b[32mrun/a.py:1\x1b[0m", "ReadError: run/a.sqlite: cut"] == made.cells[
        0
    ].outputs[0].traceback


def test_what_a_link_holds_as_data_names_no_folder(folder: Path, machine: Path) -> None:
    data = b64encode(f"name\n{machine}/run/x\n".encode()).decode()
    text = f'<a href="data:text/csv;charset=utf-8;base64,{data}">CSV</a>'
    assert b64encode(b"name\nrun/x\n").decode() in cleaned(folder, text, profile=machine / "run")


def test_a_notebook_does_not_say_where_it_lay(folder: Path) -> None:
    places = {"input_path": "/opt/x.ipynb", "output_path": "/opt/y.ipynb", "duration": 1.5}
    notebook = new_notebook(cells=[], metadata={"papermill": places})
    made = named(folder, {}).notebook(notebook, [])
    assert {"duration": 1.5} == made.metadata["papermill"]


def test_a_table_without_paths_stays_as_it_is(folder: Path) -> None:
    frame = pd.DataFrame({"name": pd.Categorical(["gemm", "/usr/lib/x"]), "start_ns": [1, 2]})
    pd.testing.assert_frame_equal(frame, named(folder, {"profile": "/x/run"}).frame(frame))


def test_tables_name_no_folder(folder: Path, machine: Path) -> None:
    # Two categories become one, missing values stay.
    texts = [f"{machine}/run/a", "run/a", None, "x"]
    frame = pd.DataFrame(
        {
            "file": pd.Categorical(texts),
            "path": pd.array(texts, dtype="string"),
            "start_ns": range(4),
        }
    )
    expected = ["run/a", "run/a", None, "x"]
    wanted = frame.assign(file=pd.Categorical(expected), path=pd.array(expected, dtype="string"))
    pd.testing.assert_frame_equal(wanted, named(folder, {"profile": machine / "run"}).frame(frame))


def test_what_is_noted_of_a_table_names_no_folder(folder: Path, machine: Path) -> None:
    frame = pd.DataFrame({"start_ns": [1]})
    frame.attrs["source"] = str(machine / "run")
    assert {"source": "run"} == named(folder, {"profile": machine / "run"}).frame(frame).attrs
    assert str(machine / "run") == frame.attrs["source"], "the run's own table stays"
