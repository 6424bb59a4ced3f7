"""The command `perfkit report` when notebooks fail, a signal ends it or the disk is full: what is said, what stays."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import nbformat
import pytest
from faults.folders import LIMIT, MADE_BY, content, make, text_of
from faults.forking import Command, Commands

from perfkit.report import notebooks, output

RUN = notebooks.sample()
PROC = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="looks at processes in /proc"
)


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
@pytest.mark.sampled(3)
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
