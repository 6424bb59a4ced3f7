"""What happens to a load when something around it fails: the disk, the source, another process, a hostile file."""

import os
import resource
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from textwrap import dedent

import pytest
import test_testing
from faults.forking import Command, Commands
from isal import igzip
from readers import nsys_files as nsys

import perfkit
from perfkit.errors import ReadError
from perfkit.readers.nsys.sqlite import SqliteSource

Python = Callable[..., Command]
KERNELS = 4_000
LINUX = pytest.mark.skipif(
    sys.platform != "linux", reason="limits of processes and names differ elsewhere"
)
KNOWN = "import os, resource, signal, sys, perfkit\n"
SUM = "print(int(perfkit.load(sys.argv[1]).kernels['dur_ns'].sum()))"
TOTAL = sum(5 + i % 7 for i in range(KERNELS))


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A capture whose copies in the cache take more than 20 kB."""
    rows = [nsys.kernel(10 * i, 10 * i + 5 + i % 7, f"work_{i}") for i in range(KERNELS)]
    return nsys.sqlite(
        tmp_path_factory.mktemp("large") / "run.sqlite", {**nsys.session(), nsys.KERNEL: rows}
    )


@pytest.fixture
def python(commands: Commands) -> Iterator[Python]:
    """Starts code that knows perfkit; what still runs ends with the test."""
    with ExitStack() as started:
        yield lambda code, *arguments: started.enter_context(
            commands.python(KNOWN + dedent(code), *arguments)
        )


def output(process: Command) -> str:
    """Return what a process printed, which must have ended well."""
    out, err = process.communicate(timeout=300)
    assert 0 == process.returncode, err
    return out.strip()


def files(folder: Path) -> Iterator[Path]:
    return (file for file in folder.rglob("*") if file.is_file())


@LINUX
@pytest.mark.parametrize(
    "at", ["os.replace", "pathlib.Path.replace", "tempfile.NamedTemporaryFile"]
)
def test_a_load_killed_while_it_writes_its_copies_does_no_harm(
    python: Python, large: Path, cache: Path, at: str
) -> None:
    """kill -9 before, while or after a copy is written: the next load is right, and what stays is no copy."""
    code = """
    import pathlib, tempfile
    owner, _, name = sys.argv[2].rpartition(".")
    owner = eval(owner)
    original = getattr(owner, name)
    times = []
    def killed(*arguments, **options):
        times.append(1)
        if len(times) == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return original(*arguments, **options)
    setattr(owner, name, killed)
    perfkit.load(sys.argv[1]).kernels
    os.kill(os.getpid(), signal.SIGKILL)
    """
    process = python(code, large, Path(at))
    process.communicate(timeout=300)
    assert -9 == process.returncode
    assert TOTAL == perfkit.load(large).kernels["dur_ns"].sum()
    assert TOTAL == perfkit.load(large).kernels["dur_ns"].sum()
    assert 1 == len(
        [
            file
            for file in files(cache)
            if file.name.startswith("KERNELS") and file.suffix == ".parquet"
        ]
    )


@LINUX
def test_a_full_disk_costs_the_copies_only(python: Python, large: Path, cache: Path) -> None:
    """Where no file can grow beyond 10 kB the table is right, and neither a copy nor a part of one stays of it."""
    limit = "signal.signal(signal.SIGXFSZ, signal.SIG_IGN); resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))"
    assert str(TOTAL) == output(python(f"{limit}\n{SUM}", large))
    assert not [file for file in files(cache) if not file.name.startswith("CAPTURE")]


def test_processes_that_load_at_once_agree(python: Python, large: Path, cache: Path) -> None:
    running = [python(SUM, large) for _ in range(2)]
    assert [str(TOTAL)] * 2 == [output(process) for process in running]
    assert 1 == len([file for file in files(cache) if file.name.startswith("KERNELS")])
    assert not [file for file in files(cache) if file.suffix != ".parquet"]


def test_a_cache_that_somebody_else_filled_is_not_believed(
    large: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Copies of another capture put under this one's place, foreign files and folders beside them: read anew."""
    other = nsys.sqlite(
        tmp_path / "other.sqlite", {**nsys.session(), nsys.KERNEL: [nsys.kernel(0, 1, "other")]}
    )
    assert 1 == perfkit.load(other).kernels["dur_ns"].sum()
    assert TOTAL == perfkit.load(large).kernels["dur_ns"].sum()
    mine = next(
        file
        for file in files(cache)
        if file.name.startswith("KERNELS") and file.stat().st_size > 20_000
    )
    theirs = next(file for file in files(cache) if file.name.startswith("KERNELS") and file != mine)
    mine.write_bytes(theirs.read_bytes())
    (mine.parent / "KERNELS.00000000.parquet").mkdir()
    (mine.parent / "KERNELS.11111111.parquet").symlink_to(
        "/dev/zero" if os.name == "posix" else mine
    )
    assert TOTAL == perfkit.load(large).kernels["dur_ns"].sum()
    monkeypatch.setattr(SqliteSource, "__init__", None)
    assert TOTAL == perfkit.load(large).kernels["dur_ns"].sum()


@LINUX
def test_a_sparse_file_of_200_gb_is_refused_at_once(python: Python, tmp_path: Path) -> None:
    """A file that begins like an export and goes on with nothing: named as damaged, its length is not read."""
    for number, head in enumerate(
        (b"", b"SQLite format 3\0", b'{"traceEvents": [', b"# gpu   pwr\n")
    ):
        (tmp_path / str(number)).mkdir()
        with (tmp_path / str(number) / "run.sqlite").open("wb") as file:
            file.write(head)
            file.truncate(200 * 10**9)
    code = """
    resource.setrlimit(resource.RLIMIT_CPU, (120, 120))
    for path in sys.argv[1:]:
        try:
            perfkit.load(path).kernels
        except perfkit.PerfkitError as e:
            print(repr(str(e)))
    """
    said = output(python(code, *sorted(tmp_path.glob("*/run.sqlite")))).splitlines()
    assert [True] * 4 == ["run.sqlite: " in line for line in said]


@LINUX
def test_a_trace_that_expands_to_gigabytes_stays_small_in_memory(
    python: Python, tmp_path: Path
) -> None:
    """1 MB of gzip holds 1 GB of blanks: refused or read without holding them."""
    path = tmp_path / "bomb.json.gz"
    blanks = b" " * 2**24
    with igzip.open(path, "wb") as file:
        file.write(b'{"traceEvents": [')
        for _ in range(64):
            file.write(blanks)
        file.write(b"]}")
    code = """
    try:
        len(perfkit.load(sys.argv[1]).kernels)
    except perfkit.PerfkitError as e:
        assert "bomb.json.gz" in str(e), e
    print(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0])
    """
    assert int(output(python(code, path))) < 500_000  # kB


def test_a_folder_of_2_000_files_is_gone_through(tmp_path: Path) -> None:
    nsys.sqlite(tmp_path / "run.sqlite", nsys.capture())
    for number in range(2_000):
        (tmp_path / f"{number}.txt").write_text(f"note {number}")
    run = perfkit.load(tmp_path)
    assert ["run.sqlite"] == [profile.path.name for profile in run.profiles]
    assert any("and 1,997 more" in note or "and 1997 more" in note for note in run.notes)


HOSTILE = [
    os.fsdecode(b"-rf 'a'; DROP TABLE\n\x1b[31m<img src=x onerror=alert(1)>\xff\xfe"),
    "%s%n?a=1#ü",
    "a" * 200,
]
FORMS = {
    f"{reader} {form}": make
    for reader, forms in test_testing.OWN.items()
    for form, make in forms.items()
}


@LINUX
@pytest.mark.parametrize(("form", "make"), FORMS.items(), ids=FORMS)
def test_every_reader_takes_a_hostile_name(
    tmp_path: Path, form: str, make: test_testing.Make
) -> None:
    """Blanks, controls, markup, SQL, bytes that are no text: each format loads as under any other name."""
    made = make(tmp_path)
    run = perfkit.load(made)
    expected = {table: len(run.table(table)) for table in ("KERNELS", "SAMPLES", "CALLTREE")}
    for name in HOSTILE:
        made = made.rename(made.parent / f"{name}{''.join(made.suffixes)}")
        run = perfkit.load(made)
        assert expected == {table: len(run.table(table)) for table in expected}, name
        assert "\udcff" not in run.capture["path"].iloc[0]


def test_a_link_that_goes_round_is_refused(tmp_path: Path) -> None:
    """A link to itself is no file, and a folder that holds a link to itself is gone through once."""
    (tmp_path / "loop.sqlite").symlink_to(tmp_path / "loop.sqlite")
    with pytest.raises(ReadError, match=r"loop.sqlite: "):
        perfkit.load(tmp_path / "loop.sqlite")
    (tmp_path / "loop.sqlite").unlink()
    nsys.sqlite(tmp_path / "run.sqlite", nsys.capture())
    (tmp_path / "round").symlink_to(tmp_path)
    assert 1 == len(perfkit.load(tmp_path).profiles)


def test_limits_are_those_of_this_process() -> None:
    """No test above lowers the limits of the process that runs the others."""
    assert resource.RLIM_INFINITY == resource.getrlimit(resource.RLIMIT_FSIZE)[0]
