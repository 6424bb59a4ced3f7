"""A folder is replaced as a whole or not at all, and nothing of the user is lost."""

import errno
import inspect
import json
import os
import signal
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

import pytest
from click.testing import CliRunner
from faults.folders import MADE_BY, content, make, text_of

from perfkit.cli import main
from perfkit.errors import PerfkitError
from perfkit.report import output

NOBODY = 65534


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
