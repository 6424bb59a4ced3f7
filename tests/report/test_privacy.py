"""What a report says of the machine that made it: names of files, and nothing of where they lie or whose they are."""

from __future__ import annotations

import html
import json
import platform
import re
import shutil
import zlib
from base64 import b64decode, b64encode
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import nbformat
import pandas as pd
import pyarrow.parquet as pq
import pytest

import make
import perfkit
from perfkit import report
from perfkit.report.html import PARAMETERS, SET_IT, clean
from perfkit.report.notebooks import sample
from perfkit.report.pages import BROWSERS

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
