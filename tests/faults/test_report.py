"""The folder of a report when something goes wrong: one whole report is there, and nothing of the user's is lost."""

import errno
import hashlib
import inspect
import json
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any, NoReturn

import nbformat
import pytest
from click.testing import CliRunner, Result
from faults.forking import Command, Commands

from make import Shape, capture
from perfkit.cli import main
from perfkit.errors import PerfkitError
from perfkit.report import notebooks, output

RUN = notebooks.sample()
MADE_BY = "perfkit report"
NOBODY = 65534
PROC = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="looks at processes in /proc"
)
LIMIT = 240  # s for a command on a busy machine
# Small folders in the place of reports: what `perfkit report` writes goes through the same door


def make(out: Path, text: str, **options: Any) -> list[str]:
    """Make a folder of three files and return what the user is told."""
    notes: list[str] = []
    with output.replacing(out, MADE_BY, note=notes.append, **options) as made:
        for name in ("index.html", "notebooks/3_system.ipynb", "tables/kernels.parquet"):
            (made / name).parent.mkdir(exist_ok=True)
            (made / name).write_text(f"{text} {name}")
    return notes


def text_of(out: Path) -> str:
    """The text of a folder that is whole: all files of its marker, each as it was written, from one run."""
    files = json.loads((out / output.MARKER).read_text())["files"]
    assert {"index.html", "notebooks/3_system.ipynb", "tables/kernels.parquet"} == set(files)
    for name, about in files.items():
        content = (out / name).read_bytes()
        assert (about["bytes"], about["sha256"]) == (
            len(content),
            hashlib.sha256(content).hexdigest(),
        )
    (text,) = {(out / name).read_text().split()[0] for name in files}
    return text


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def add_own_files(out: Path) -> dict[str, str]:
    """Put a user's files into a report, beside its own and in folders; change a notebook. Return them all."""
    names = (
        "remarks.txt",
        "notebooks/mine.ipynb",
        "tables/baseline/mine.csv",
        "slides/a/b/talk.md",
    )
    own = {name: f"{name} of mine" for name in (*names, "notebooks/3_system.ipynb")}
    for name, text in own.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text)
    (out / "empty").mkdir()
    (out / "link").symlink_to("remarks.txt")
    return own


def moved(own: dict[str, str]) -> dict[str, str]:
    return {
        name.replace("3_system.ipynb", "3_system.yours.ipynb"): text for name, text in own.items()
    }


def check_whole(out: Path, text: str, own: Mapping[str, str] = MappingProxyType({})) -> None:
    """One report is there, of one run, with the user's files, and nothing lies beside it."""
    assert text == text_of(out)
    check_own_files(out, own)
    assert [out.name] == os.listdir(out.parent)


def check_own_files(out: Path, own: Mapping[str, str]) -> None:
    assert own == {name: (out / name).read_text() for name in own}
    if own:
        assert (out / "empty").is_dir()
        assert "remarks.txt" == os.readlink(out / "link")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    """A report of a first run."""
    make(tmp_path / "report", "first")
    return tmp_path / "report"


def started(work: Callable[[], object], *, user: int | None = None) -> int:
    """Run a function in a child process, as another user if root may; return its number."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the child has no threads, and does nothing but this
        child = os.fork()
    if child:
        return child
    status = 99
    try:
        if user is not None and os.geteuid() == 0:
            os.setgid(user)
            os.setuid(user)
        work()
        status = 0
    finally:
        if status:
            traceback.print_exc()
            sys.stderr.flush()
        os._exit(status)


def ended(child: int) -> int:
    """Wait for a child process; return its status, or -signal."""
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def forked(work: Callable[[], object], *, user: int | None = None) -> int:
    return ended(started(work, user=user))


def test_a_folder_of_its_own_is_replaced_and_nothing_else_stays(tmp_path: Path) -> None:
    out = tmp_path / "report"
    assert [] == make(out, "first")
    (out / "tables" / "kernels.parquet").unlink()
    assert [] == make(out, "second")
    check_whole(out, "second")


def test_files_of_the_user_stay(out: Path) -> None:
    own = add_own_files(out)
    (told,) = make(out, "second")
    changed = "notebooks/3_system.ipynb is not as perfkit wrote it. Your version is now "
    assert f"{changed}notebooks/3_system.yours.ipynb" in told
    check_whole(out, "second", moved(own))
    (out / "notebooks/3_system.ipynb").write_text("again")
    (told,) = make(out, "third")
    assert "3_system.yours-2.ipynb" in told
    check_whole(out, "third", {**moved(own), "notebooks/3_system.yours-2.ipynb": "again"})


def test_a_file_of_the_user_where_perfkit_writes_now_gets_another_name(tmp_path: Path) -> None:
    """Also where a folder of the user's has the name of a file, or a link that of a folder."""
    out = tmp_path / "report"
    with output.replacing(out, MADE_BY) as made:
        (made / "summary.md").write_text("first")
    (out / "index.html").mkdir()
    (out / "index.html" / "own.txt").write_text("own")
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "far.txt").write_text("far")
    (out / "tables").symlink_to(tmp_path / "elsewhere")
    assert 2 == len(make(out, "second"))
    assert "second" == text_of(out)
    assert "own" == (out / "index.html.yours" / "own.txt").read_text()
    assert "far" == (out / "tables.yours" / "far.txt").read_text()
    assert {"far.txt"} == set(os.listdir(tmp_path / "elsewhere"))


def test_without_second_names_for_files_they_are_moved(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Some disks know no hard links."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise OSError(errno.EPERM, "no links here")

    own = add_own_files(out)
    monkeypatch.setattr(os, "link", fail)
    make(out, "second")
    check_whole(out, "second", moved(own))


def test_other_folders_are_refused_and_untouched(tmp_path: Path) -> None:
    """Sources beside a summary.json, reports without a marker or with a damaged one, and what another command made."""
    make(tmp_path / "damaged", "first")
    (tmp_path / "damaged" / output.MARKER).write_text('{"made_by": "perfkit report", "files": ')
    with output.replacing(tmp_path / "comparison", "perfkit compare") as made:
        (made / "index.html").write_text("compared")
    for folder, names in (
        ("project", ("summary.json", "main.cu", "src/kernel.cu", "run.sqlite")),
        ("earlier", ("index.html", "summary.json", "summary.md", "notebooks/3_system.ipynb")),
    ):
        for name in names:
            (tmp_path / folder / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / folder / name).write_text(f"{name} of {folder}")
    before = content(tmp_path)
    for folder, message in (
        ("damaged", r"its list of perfkit's files, .perfkit.json, is damaged"),
        ("comparison", r"holds what `perfkit compare` made"),
        (
            "project",
            r"holds files that perfkit did not write \(main.cu, run.sqlite, src and 1 more\)",
        ),
        ("earlier", r"looks like a report of an earlier perfkit, but holds no list"),
    ):
        with pytest.raises(
            PerfkitError, match=rf"{folder}: {message}.*\. Choose another --out, or remove it\."
        ):
            make(tmp_path / folder, "second")
    assert before == content(tmp_path)


def test_a_place_that_cannot_be_replaced_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("mine")
    (tmp_path / "endless").symlink_to("endless")
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    for out, message in (
        (tmp_path / "file", "is no folder"),
        (tmp_path / "file" / "report", "file is no folder, so nothing can be made in it"),
        (tmp_path / ("r" * 300), "File name too long"),
        (tmp_path / ("r" * 300) / "report", "File name too long"),
        (Path("/"), "is where a disk is mounted"),
        (Path(), "is the folder you work in"),
        (Path(".."), "is the folder you work in"),
        (tmp_path / "endless", "is no folder"),
    ):
        with pytest.raises(PerfkitError, match=message):
            make(out, "first")
    assert {"file", "endless", "work"} == set(os.listdir(tmp_path))
    assert "mine" == (tmp_path / "file").read_text()


def test_names_of_any_bytes_and_length(tmp_path: Path) -> None:
    for name in ("r" * 255, "é" * 127, os.fsdecode(b"report-\xff\x1b[31m"), "a[b]*"):
        for text in ("first", "second"):
            make(tmp_path / name, text)
        assert "second" == text_of(tmp_path / name)
    assert 4 == len(os.listdir(tmp_path))


def test_a_link_to_a_folder_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    (tmp_path / "report").symlink_to("disk/report")
    for text in ("first", "second"):
        make(tmp_path / "report", text)
        assert text == text_of(tmp_path / "disk" / "report")
        (tmp_path / "report" / "mine").write_text("mine")
    assert "disk/report" == os.readlink(tmp_path / "report")
    assert ["report"] == os.listdir(tmp_path / "disk")
    assert "mine" == (tmp_path / "report" / "mine").read_text()


def test_the_input_is_never_in_what_is_replaced(tmp_path: Path, out: Path) -> None:
    (out / "deep").mkdir()
    (out / "deep" / "run.sqlite").write_text("capture")
    (tmp_path / "run.sqlite").symlink_to(out / "deep" / "run.sqlite")
    (tmp_path / "same").symlink_to(out)
    before = content(tmp_path)
    for path in (
        out,
        out / "deep",
        out / "deep" / "run.sqlite",
        tmp_path / "run.sqlite",
        tmp_path / "same" / "deep",
    ):
        with pytest.raises(PerfkitError, match=r"the input .* lies there"):
            make(out, "second", inputs=[path])
    assert before == content(tmp_path)
    make(out, "second", inputs=[tmp_path])  # a report in the folder of its run is fine


# Faults


STEPS = ("link", "mkdir", "rename", "replace", "rmdir", "unlink")


def dying(work: Callable[[], object], at: int) -> int:
    """Run a function in a child process that kills itself before its change number `at` to the file system."""

    def die() -> None:
        count = 0

        def counted(change: Callable[..., Any]) -> Callable[..., Any]:
            def changed(*arguments: Any, **options: Any) -> Any:
                nonlocal count
                count += 1
                if count == at:
                    os.kill(os.getpid(), signal.SIGKILL)
                return change(*arguments, **options)

            return changed

        for name in STEPS:
            setattr(os, name, counted(getattr(os, name)))
        Path.write_text = counted(Path.write_text)  # type: ignore[method-assign]
        work()

    return forked(die)


@pytest.mark.parametrize("edited", [False, True], ids=["all perfkit's", "with files of the user"])
def test_killed_at_any_step(tmp_path: Path, edited: bool) -> None:
    """One report is whole, in its place or beside it, the user's files are there, and the next run tidies up."""
    out = tmp_path / "report"
    status, at, restored, swept = -signal.SIGKILL, 0, 0, 0
    while status == -signal.SIGKILL:
        at += 1
        if not out.exists():
            make(out, "first")
        own = add_own_files(out) if edited else {}
        status = dying(partial(make, out, "second"), at)
        beside = [path for path in tmp_path.iterdir() if path.name.startswith(".report-perfkit-")]
        places = [out, *(old for path in beside for old in path.glob("old-*"))]
        whole = [place for place in places if (place / "index.html").exists()]
        assert whole, f"no report after step {at}"
        restored += not out.exists()
        swept += bool(beside)
        assert not [text for text in make(out, "third") if "cannot be removed" in text], at
        check_whole(out, "third", moved(own))
        subprocess.run(["rm", "-r", out], check=True)
    assert 0 == status
    assert restored >= 1
    assert swept > 10


def test_what_a_killed_run_left_is_put_back_even_if_the_next_run_is_refused(tmp_path: Path) -> None:
    """A user who sees the report gone, and runs perfkit on a broken capture, has the report back."""
    (tmp_path / "broken.sqlite").write_bytes(b"")
    for at in range(1, 100):
        out = tmp_path / str(at) / "report"
        make(out, "first")
        if dying(partial(make, out, "second"), at) != -signal.SIGKILL or not out.exists():
            break
    assert not out.exists(), f"no kill before step {at} left the place empty"
    result = CliRunner().invoke(
        main, ["report", str(tmp_path / "broken.sqlite"), "--out", str(out)]
    )
    assert 2 == result.exit_code
    assert "put back as it was" in result.stderr
    check_whole(out, "first")


def test_the_staging_folder_of_a_living_run_stays(tmp_path: Path) -> None:
    out = tmp_path / "report"
    with output.replacing(out, MADE_BY) as made:
        (made / "index.html").write_text("slow")
        status = forked(lambda: make(out, "fast"))
        assert made.exists()
    assert 0 == status
    assert "slow" == (out / "index.html").read_text()
    assert ["report"] == os.listdir(tmp_path)


def test_foreign_folders_of_such_a_name_stay(tmp_path: Path) -> None:
    """Without perfkit's mark, or with that of another folder's staging."""
    out = tmp_path / "report"
    other = json.dumps({"made_by": "perfkit", "target": "report-perfkit-2"})
    for name, mark in (
        (".report-perfkit-mine", ""),
        (".report-perfkit-2-perfkit-abcd", other),
        (".report-mine", ""),
    ):
        (tmp_path / name / "old-00").mkdir(parents=True)
        (tmp_path / name / output.STAGING).write_text(mark)
    (tmp_path / ".report-empty").mkdir()
    make(out, "first")
    make(out, "second")
    names = {
        ".report-perfkit-mine",
        ".report-perfkit-2-perfkit-abcd",
        ".report-mine",
        ".report-empty",
        "report",
    }
    assert names == set(os.listdir(tmp_path))
    assert all(
        (tmp_path / name / "old-00").is_dir() for name in names - {".report-empty", "report"}
    )


def test_several_runs_at_once(out: Path) -> None:
    own = add_own_files(out)

    def replaced(number: int) -> None:
        for turn in range(5):
            make(out, f"run-{number}-{turn}")

    children = [started(partial(replaced, number)) for number in range(4)]
    assert [0, 0, 0, 0] == list(map(ended, children))
    last = text_of(out)
    assert last.endswith("-4")
    check_whole(out, last, moved(own))


@pytest.mark.skipif(sys.platform == "win32", reason="no locks of folders")
def test_a_run_that_ends_while_another_looks_at_the_folder(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the first run's folder lists is not held against the files of the second's: these are no user's."""
    own, read, children = add_own_files(out), output._marker, list[int]()

    def slow(folder: Path) -> output.Marker | None:
        marker = read(folder)
        if inspect.stack()[1].function == "_foreign":
            monkeypatch.undo()
            children.append(started(partial(make, out, "second")))
            time.sleep(2)  # it ends in much less, if nothing keeps it
        return marker

    monkeypatch.setattr(output, "_marker", slow)
    make(out, "third")
    assert [0] == list(map(ended, children))
    check_whole(out, "second", moved(own))
    assert [] == list(out.glob("**/*.yours-*"))


@pytest.mark.skipif(sys.platform == "win32", reason="no locks of folders")
def test_a_look_at_the_folder_while_another_run_replaces_it(
    out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the two renames of the other run nothing is there, which is no free place."""
    rename, (reader, writer) = os.rename, os.pipe()

    def slow(old: Path, new: Path) -> None:
        rename(old, new)
        os.write(writer, b"renamed")
        time.sleep(1)

    def replace() -> None:
        monkeypatch.setattr(os, "rename", slow)
        make(out, "second")

    child = started(replace)
    os.close(writer)
    assert os.read(reader, 7) == b"renamed"
    os.close(reader)
    with pytest.raises(PerfkitError, match="is not empty"):
        output.check(out, None)
    assert 0 == ended(child)


@pytest.mark.parametrize("failing", ["first", "second", "all that follow"])
def test_a_rename_that_fails(out: Path, monkeypatch: pytest.MonkeyPatch, failing: str) -> None:
    """The earlier report is in its place, or lies beside it and the next run puts it back."""
    own = add_own_files(out)
    rename, count = os.rename, 0

    def fail(*arguments: Any) -> None:
        nonlocal count
        count += 1
        if count == {"first": 1, "second": 2}.get(failing, count) and (
            count > 1 or failing == "first"
        ):
            raise OSError(errno.EIO, "Input/output error", str(arguments[0]))
        rename(*arguments)

    monkeypatch.setattr(os, "rename", fail)
    notes: list[str] = []
    refused = pytest.raises(PerfkitError, match=r"report: cannot be written: Input/output error\.")
    with refused, output.replacing(out, MADE_BY, note=notes.append) as made:
        (made / "index.html").write_text("second")
    monkeypatch.setattr(os, "rename", rename)
    if failing == "all that follow":
        assert not out.exists()
        assert "cannot be removed: Input/output error" in notes[-1]
        output.check(out, MADE_BY, note=notes.append)
        assert "put back as it was" in notes[-1]
    check_own_files(out, own)
    assert "first" in (out / "index.html").read_text()
    assert ["report"] == os.listdir(out.parent)


@pytest.fixture
def public() -> Iterator[Path]:
    """A folder that belongs to a user without root's rights, whom permissions bind."""
    with tempfile.TemporaryDirectory(prefix="perfkit-faults-") as name:
        folder = Path(name, "work")
        folder.mkdir()
        if os.geteuid() == 0:
            os.chmod(name, 0o755)
            os.chown(folder, NOBODY, NOBODY)
        yield folder
        subprocess.run(["chmod", "-R", "u+rwx", folder], check=True)


def test_a_read_only_place(public: Path) -> None:
    out = public / "report"
    assert 0 == forked(lambda: make(out, "first"), user=NOBODY)
    public.chmod(0o555)

    def refused() -> None:
        with pytest.raises(
            PerfkitError, match=r"report: nothing may be written in .*work\. Choose another --out\."
        ):
            make(out, "second")

    assert 0 == forked(refused, user=NOBODY)
    check_whole(out, "first")


def test_a_file_that_cannot_be_removed(public: Path) -> None:
    """The new report is whole in its place; the rest of the old one lies beside it, which is said until it is gone."""
    out = public / "report"

    def hold() -> None:
        make(out, "first")
        (out / "tables").chmod(0o555)

    def replaced() -> None:
        assert any("cannot be removed: Permission denied" in text for text in make(out, "second"))
        assert "second" == text_of(out)
        assert any("cannot be removed: Permission denied" in text for text in make(out, "third"))
        for held in public.glob(".report-perfkit-*/old-*/tables"):
            held.chmod(0o755)
        assert [] == make(out, "fourth")
        assert ["report"] == os.listdir(public)

    assert 0 == forked(hold, user=NOBODY)
    assert 0 == forked(replaced, user=NOBODY)
    assert "fourth" == text_of(out)


def test_a_full_disk(out: Path) -> None:
    """At any size at which it is full: the report before it stays, nothing lies beside it, and the message says so."""
    resource = pytest.importorskip("resource")
    own = add_own_files(out)

    def limited(most: int) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
        with pytest.raises(PerfkitError, match=r"report: cannot be written: File too large\."):
            make(out, "second")

    for most in (0, 20, 45, 200):  # the mark of the staging folder, a file, the marker
        assert 0 == forked(partial(limited, most)), most
        check_own_files(out, own)
        assert "first" in (out / "index.html").read_text()
        assert ["report"] == os.listdir(out.parent)


# The command, with notebooks that fail


def notebook(folder: Path, name: str, code: str) -> None:
    folder.mkdir(exist_ok=True)
    spec = {"kernelspec": {"name": "none-such", "display_name": "Python 3", "language": "python"}}
    cells = [
        nbformat.v4.new_markdown_cell(f"# The title of {name}"),
        nbformat.v4.new_code_cell("profile: str = ''", metadata={"tags": ["parameters"]}),
        nbformat.v4.new_code_cell(code),
    ]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=spec), folder / f"{name}.ipynb")


def notebooks_of(folder: Path, code: str) -> Path:
    """A folder of the two notebooks that answer the run."""
    for name in ("0_executive_summary", "3_system"):
        notebook(folder, name, code)
    return folder


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "run" / "run.sqlite"
    path.parent.mkdir()
    capture(path, kernels=40, shape=Shape(metrics=False))
    return path


def test_a_notebook_that_fails_leaves_the_others(commands: Commands, tmp_path: Path) -> None:
    """The page, the summary and one line on standard error say which are missing and why; the status is 2."""
    folder, out = tmp_path / "broken", tmp_path / "report"
    notebook(folder, "0_executive_summary", "'fine'")
    notebook(folder, "3_system", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    notebook(folder, "4_kernels", "import os; os._exit(3)")
    notebook(
        folder, "5_framework", r"raise ValueError('\x1b[31m<script>alert(1)</script> ' + profile)"
    )
    with commands.start(folder, "report", RUN, "--out", out) as process:
        printed, told = answered(process)
    assert (2, "") == (process.returncode, printed)
    assert 1 == told.count("\n"), told
    assert told.startswith(
        f"perfkit: {out / 'index.html'}: the report is written without 3_system (the kernel died: "
    )
    assert "SIGKILL" in told
    assert "4_kernels (the kernel died: it ended with status 3" in told
    assert "\x1b" not in told
    assert {"0_executive_summary.ipynb"} == set(os.listdir(out / "notebooks"))
    failures = json.loads((out / "summary.json").read_text())["failures"]
    assert ["3_system", "4_kernels", "5_framework"] == [failure["notebook"] for failure in failures]
    assert failures[1]["error"].startswith("the kernel died: it ended with status 3")
    page = (out / "index.html").read_text()
    assert "This report is not complete." in page
    assert "The title of 3_system" in page
    page += (out / "5_framework.html").read_text()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "\x1b" not in page
    assert failures[2]["error"].startswith("ValueError: �[31m<script>alert(1)</script>")
    assert "The notebook 4\\_kernels failed: the kernel died" in (out / "summary.md").read_text()


@pytest.mark.skipif(sys.platform != "linux", reason="file names are bytes on Linux")
def test_a_report_of_and_in_names_of_any_bytes(
    commands: Commands, tmp_path: Path, run: Path
) -> None:
    folder, out = tmp_path / "fine", tmp_path / os.fsdecode(b"report-\xff\x1b[31m")
    hostile = run.rename(run.with_name(os.fsdecode(b"run-\xff\x1b[31m.sqlite")))
    notebook(folder, "0_executive_summary", "profile")
    notebook(folder, "3_system", "import perfkit; len(perfkit.load(profile).kernels)")
    with commands.start(folder, "report", hostile, "--out", out) as process:
        printed, told = answered(process)
    assert (0, "") == (process.returncode, told)
    assert printed.rstrip("\n").isprintable()
    files = json.loads((out / output.MARKER).read_text())["files"]
    assert {name for name in content(out) if name != output.MARKER} == set(files)
    executed = nbformat.read(out / "notebooks" / "3_system.ipynb", as_version=4)
    assert "40" == executed.cells[-1].outputs[0].data["text/plain"]


def test_a_pdf_that_cannot_be_printed_leaves_the_page(
    commands: Commands, tmp_path: Path, run: Path
) -> None:
    folder, out = notebooks_of(tmp_path / "fine", "1 + 1"), tmp_path / "report"
    environment = browser(tmp_path, "echo 'no display' >&2; exit 1")
    with commands.start(folder, "report", run, "--out", out, "--pdf", env=environment) as process:
        _, told = answered(process)
    assert (2, 1) == (process.returncode, told.count("\n"))
    assert f"{out / 'index.html'}: the report is written without report.pdf (pdf: " in told
    assert "chromium wrote no PDF and said: no display" in told
    names = "index.html 3_system.html summary.json summary.md figures.md notebooks tables"
    assert {*names.split(), output.MARKER} == set(os.listdir(out))


def browser(folder: Path, script: str) -> dict[str, str]:
    program = folder / "bin" / "chromium"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    return {**os.environ, "PATH": f"{program.parent}{os.pathsep}{os.environ['PATH']}"}


def waiting(tmp_path: Path) -> Path:
    """A folder of notebooks that start a process, write both process numbers to `pids`, and wait."""
    pids = tmp_path / "pids"
    code = (
        "import os, subprocess, time\n"
        "child = subprocess.Popen(['sleep', '600'], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)\n"
        f"open({str(pids)!r}, 'a').write(f'{{os.getpid()}}\\n{{child.pid}}\\n')\n"
        "time.sleep(600)"
    )
    return notebooks_of(tmp_path / "broken", code)


def answered(process: Command) -> tuple[str, str]:
    """What a command printed, and what it said on standard error, without the lines of its progress."""
    printed, told = process.communicate(timeout=LIMIT)
    return printed, "".join(
        line for line in told.splitlines(keepends=True) if not line.startswith("report: ")
    )


def processes(tmp_path: Path, process: Command, count: int) -> list[int]:
    until = time.monotonic() + LIMIT
    while time.monotonic() < until and process.poll() is None:
        found = (tmp_path / "pids").read_text().split() if (tmp_path / "pids").exists() else []
        if len(found) == count:
            return [int(pid) for pid in found]
        time.sleep(0.1)
    raise AssertionError(process.communicate(LIMIT))


def alive(pids: list[int]) -> list[int]:
    """Those of the processes that still run; zombies, which nobody waits for here, do not."""
    states = {pid: Path(f"/proc/{pid}/stat") for pid in pids}
    return [
        pid
        for pid, file in states.items()
        if file.exists() and file.read_text().rpartition(")")[2].split()[0] != "Z"
    ]


def gone(pids: list[int]) -> bool:
    until = time.monotonic() + LIMIT
    while alive(pids) and time.monotonic() < until:
        time.sleep(0.1)
    return not alive(pids)


@PROC
@pytest.mark.parametrize(
    "number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda number: number.name
)
def test_a_signal_ends_perfkit_and_its_kernels(
    commands: Commands, tmp_path: Path, out: Path, run: Path, number: signal.Signals
) -> None:
    """At once, with status 2 and one line; the report before it stays, and nothing lies beside it."""
    with commands.start(waiting(tmp_path), "report", run, "--out", out) as process:
        pids = processes(tmp_path, process, 2)
        process.send_signal(number)
        printed, told = answered(process)  # before the notebooks, which sleep longer than it waits
    assert (2, "", f"perfkit: stopped by {number.name}.\n") == (process.returncode, printed, told)
    assert gone(pids)
    assert "first" == text_of(out)
    assert {"report", "run", "broken", "pids"} == set(os.listdir(tmp_path))


@PROC
def test_a_signal_ends_the_browser(commands: Commands, tmp_path: Path, run: Path) -> None:
    folder, pids = notebooks_of(tmp_path / "fine", "1 + 1"), tmp_path / "pids"
    environment = browser(
        tmp_path, f"sleep 600 2>/dev/null & echo $$ $! > {pids}.part; mv {pids}.part {pids}; wait"
    )
    with commands.start(
        folder, "report", run, "--out", tmp_path / "report", "--pdf", env=environment
    ) as process:
        found = processes(tmp_path, process, 2)
        process.send_signal(signal.SIGTERM)
        _, told = answered(process)
    assert (2, "perfkit: stopped by SIGTERM.\n") == (process.returncode, told)
    assert gone(found)
    assert {"run", "fine", "bin", "pids"} == set(os.listdir(tmp_path))


@PROC
def test_an_interrupted_report_leaves_no_child(
    commands: Commands, tmp_path: Path, run: Path
) -> None:
    """A program that catches KeyboardInterrupt lives on without kernels, and without zombies of them."""
    code = """
import os, signal, sys, threading, time
from pathlib import Path
import psutil
from perfkit import report
from perfkit.report import notebooks
folder, run, out = map(Path, sys.argv[1:])
notebooks.folder = lambda: folder

def interrupt():
    while not (folder.parent / "pids").exists():
        time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)

threading.Thread(target=interrupt, daemon=True).start()
try:
    report.build(run, out)
except KeyboardInterrupt:
    print(psutil.Process().children(recursive=True), out.exists())
"""
    with commands.python(code, waiting(tmp_path), run, tmp_path / "report") as process:
        printed, told = process.communicate(LIMIT)
    assert (0, "[] False\n", "") == (process.returncode, printed, told)


@PROC
def test_a_killed_report_leaves_no_kernel(
    commands: Commands, tmp_path: Path, out: Path, run: Path
) -> None:
    """Its kernels notice that their parent is gone; the report before it stays, and the next run sweeps up."""
    with commands.start(waiting(tmp_path), "report", run, "--out", out) as process:
        pids = processes(tmp_path, process, 2)
        process.kill()
        process.communicate(timeout=LIMIT)
    assert gone(pids[::2])
    for pid in alive(pids):  # what a notebook itself started is not perfkit's to find
        os.kill(pid, signal.SIGKILL)
    assert "first" == text_of(out)
    until = time.monotonic() + LIMIT
    while (
        left := {*os.listdir(tmp_path)} - {"report", "run", "broken", "pids"}
    ) and time.monotonic() < until:
        output.check(
            out, MADE_BY
        )  # the process that forked the kernels, which holds what is left too, may end later
        time.sleep(0.1)
    assert not left


def test_a_full_disk_ends_the_command_with_one_line(
    commands: Commands, tmp_path: Path, run: Path
) -> None:
    pytest.importorskip("resource")
    folder, out = notebooks_of(tmp_path / "broken", "'fine'"), tmp_path / "report"
    make(out, "first")
    most = 3000  # bytes of a file; the tables are larger, what a kernel needs is not
    environment = {**os.environ, "PERFKIT_CACHE": "off"}
    with commands.start(folder, "report", run, "--out", out, most=most, env=environment) as process:
        printed, told = answered(process)
    assert (2, "") == (process.returncode, printed)
    assert (
        told
        == f"perfkit: {out}: cannot be written: File too large. Choose another --out, or mend that.\n"
    )
    assert "first" == text_of(out)
    assert {"report", "run", "broken"} == set(os.listdir(tmp_path))


# The commands and what they would write over


def perfkit_command(*arguments: object) -> Result:
    return CliRunner().invoke(main, [str(a) for a in arguments])


def test_a_project_with_the_capture_itself_is_refused(tmp_path: Path) -> None:
    """Its summary.json is another tool's: nothing changes, whichever command is told to write there."""
    project = tmp_path / "project"
    project.mkdir()
    capture(project / "run.sqlite", kernels=40)
    for name in ("summary.json", "index.html", "comparison.json", "main.cu"):
        (project / name).write_text(f"my {name}")
    before = {path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in project.iterdir()}
    run = project / "run.sqlite"
    for arguments in (
        ("report", run, "--out", project),
        ("report", run, "--out", run),
        ("report", project, "--out", run / "report"),
        ("compare", run, run, "--labels", "a,b", "--out", project),
        ("sample", "mlp_a100", "--out", project),
        ("check", run, "--baseline", run, "--junit", run),
        ("check", run, "--baseline", run, "--json", project / "summary.json"),
        (
            "record",
            "prometheus",
            "http://127.0.0.1:9",
            "--start",
            "0",
            "--out",
            project / "main.cu",
        ),
    ):
        result = perfkit_command(*arguments)
        assert (2, 1) == (result.exit_code, result.stderr.count("\n")), result.stderr
        assert f"perfkit: {arguments[-1]}: " in result.stderr, result.stderr
    assert before == {
        path.name: (path.read_bytes(), path.stat().st_mtime_ns) for path in project.iterdir()
    }


def test_files_of_a_check_are_replaced_and_others_are_not(tmp_path: Path, run: Path) -> None:
    """An earlier file of the same form, and an empty one; a device is written to, a link leads to the file."""
    junit, as_json = tmp_path / "check.xml", tmp_path / "check.json"
    as_json.touch()
    (tmp_path / "link.xml").symlink_to("check.xml")
    arguments = ("check", run, "--baseline", run, "--json", as_json, "--junit")
    assert 0 == perfkit_command(*arguments, junit).exit_code
    assert "perfkit check" == json.loads(as_json.read_text())["made_by"]
    link = tmp_path / "link.xml"
    assert (
        0
        == perfkit_command(
            "check", run, "--baseline", run, "--json", "/dev/null", "--junit", link
        ).exit_code
    )
    assert link.is_symlink()
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    before = junit.read_bytes()
    result = perfkit_command("check", run, "--baseline", run, "--json", junit)
    assert (2, True) == (result.exit_code, "this command did not write" in result.stderr)
    assert before == junit.read_bytes()


def test_a_comparison_keeps_the_users_files(tmp_path: Path, run: Path) -> None:
    out = tmp_path / "comparison"
    with output.replacing(out, "perfkit compare") as made:
        (made / "index.html").write_text("compared")
    (out / "remarks.txt").write_text("mine")
    assert 0 == perfkit_command("compare", run, run, "--labels", "a,b", "--out", out).exit_code
    assert "compared" != (out / "index.html").read_text()
    assert "mine" == (out / "remarks.txt").read_text()
    result = perfkit_command("report", run, "--out", out)
    assert (2, True) == (result.exit_code, "holds what `perfkit compare` made" in result.stderr)


def test_names_do_not_reach_the_terminal_raw(tmp_path: Path) -> None:
    """Neither those of files, whatever their bytes, nor options, in messages and in what is printed."""
    hostile = tmp_path / os.fsdecode(b"\x1b[31m\x9b\xff\n.sqlite")
    hostile.write_bytes(b"")
    good = tmp_path / os.fsdecode(b"good\x1b]0;title\x07.sqlite")
    capture(tmp_path / "good.sqlite", kernels=10)
    (tmp_path / "good.sqlite").rename(good)
    for status, arguments in (
        (2, ("inspect", hostile)),
        (2, ("report", hostile, "--out", tmp_path / "\x1b[2J")),
        (2, ("report", good, "--window", "\x1b[31m:1s")),
        (2, ("\x1b[31m",)),
        (0, ("inspect", good)),
        (0, ("inspect", good, "--json")),
    ):
        result = perfkit_command(*arguments)
        assert status == result.exit_code, result.output
        text = result.stdout + result.stderr
        assert all(c.isprintable() or c == "\n" for c in text), repr(text)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full")
def test_what_standard_output_does_not_take(run: Path) -> None:
    """A reader that has read enough (`| head`) is no complaint, nor a character it lacks; a full disk is one line."""

    def printing(stdout: Any, **options: str) -> tuple[int, str]:
        argv = [sys.executable, "-m", "perfkit", "inspect", run]
        pipes = {
            "stdout": stdout,
            "stderr": subprocess.PIPE,
            "text": True,
            "env": {**os.environ, **options},
        }
        done = subprocess.run(argv, timeout=LIMIT, check=False, **pipes)
        return done.returncode, done.stderr

    read, write = os.pipe()
    os.close(read)
    assert (2, "") == printing(write)
    os.close(write)
    with Path("/dev/full").open("w") as full:
        assert (2, "perfkit: No space left on device.\n") == printing(full)
    assert (0, "") == printing(subprocess.DEVNULL, PYTHONIOENCODING="ascii")


def test_the_error_of_all_notebooks_leaves_the_report_before(
    commands: Commands, tmp_path: Path, out: Path, run: Path
) -> None:
    folder = notebooks_of(tmp_path / "broken", "raise OSError(5, 'Input/output error')")
    with commands.start(folder, "report", run, "--out", out) as process:
        printed, told = answered(process)
    assert (2, "") == (process.returncode, printed)
    error = "0_executive_summary: OSError: [Errno 5] Input/output error"
    assert told == f"perfkit: run.sqlite: all notebooks failed; {error}.\n"
    assert "first" == text_of(out)
    assert {"report", "run", "broken"} == set(os.listdir(tmp_path))
