"""A stranger's reader: a package of one module is installed, its captures are loaded and reported on."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from faults.forking import Commands
from readers import smi_files
from readers.outside_files import package, power_log, shown

import perfkit

LOAD = """
import json, sys, perfkit
run = perfkit.load(sys.argv[1:] if len(sys.argv) > 2 else sys.argv[1])
print(json.dumps({
    "readers": [p.reader for p in run.profiles], "kinds": sorted(run.kinds), "notes": run.notes,
    "missing": [m.record for m in run.missing], "samples": len(run.samples), "mean": float(run.samples["value"].mean()),
}))
"""


Ended = tuple[
    int, str, str
]  # the status of a process, what it printed, and what it said on standard error
Child = Callable[..., Ended]


@pytest.fixture
def child(commands: Commands, site: Path) -> Child:
    """Runs code, or perfkit without it, in a process of its own, for which the packages in `site` are installed."""

    def run(code: str, *arguments: object, cache: Path | None = None, path: Path = site) -> Ended:
        options = {
            "path": [str(path)],
            "env": {**os.environ, **({"PERFKIT_CACHE": str(cache)} if cache else {})},
        }
        start = partial(commands.python, code) if code else partial(commands.start, None)
        with start(*arguments, **options) as process:
            printed, said = process.communicate(300)
        return process.wait(), printed, said

    return run


def loaded(child: Child, *paths: Path) -> dict[str, Any]:
    status, printed, said = child(LOAD, *paths)
    assert 0 == status, said
    content: dict[str, Any] = json.loads(printed)
    return content


def refused(child: Child, *paths: Path, **options: Path) -> str:
    status, _, said = child(LOAD, *paths, **options)
    assert 1 == status
    return said.splitlines()[-1]


@pytest.fixture
def site(tmp_path: Path) -> Path:
    package(tmp_path / "site", "power-log", shown())
    return tmp_path / "site"


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return power_log(tmp_path / "power.log")


def smi(path: Path) -> Path:
    return smi_files.query(path, *smi_files.moments())


def test_a_strangers_capture_is_loaded_and_kept(
    child: Child, site: Path, log: Path, tmp_path: Path
) -> None:
    assert "no reader recognises this file" in refused(child, log, path=site.parent)
    # A package is imported when a file is looked at, not before.
    path = os.pathsep.join(
        [str(site), str(Path(perfkit.__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    )
    command = [sys.executable, "-c", "import sys, perfkit; print('power_log' in sys.modules)"]
    assert b"False\n" == subprocess.check_output(command, env={**os.environ, "PYTHONPATH": path})
    first = child(LOAD, log, cache=tmp_path / "kept")
    content = json.loads(first[1])
    assert (["power_log"], ["monitor"], 20) == (
        content["readers"],
        content["kinds"],
        content["samples"],
    )
    assert (["nvidia-smi -L"], []) == (content["missing"], content["notes"])
    # A copy is kept under the name of the entry point, and read without the reader's help.
    (copy,) = (tmp_path / "kept").rglob("SAMPLES.*.parquet")
    assert copy.parent.name.startswith("power_log-")
    source = (site / "power_log.py").read_text()
    (site / "power_log.py").write_text(
        source.replace("def read(path: Path) -> Profile:", "def read(path):\n    1 / 0")
    )
    assert first == child(LOAD, log, cache=tmp_path / "kept")
    # Another version of the package reads the file again.
    metadata = site / "power_log-1.2.dist-info" / "METADATA"
    metadata.write_text(metadata.read_text().replace("Version: 1.2", "Version: 1.3"))
    assert "failed (ZeroDivisionError: division by zero)" in refused(
        child, log, cache=tmp_path / "kept"
    )


def test_a_strangers_capture_is_a_part_of_a_run(child: Child, site: Path, log: Path) -> None:
    """In a folder beside other captures, its metrics are added to theirs; what two have is taken from perfkit's own."""
    folder = log.parent / "run"
    folder.mkdir()
    log.rename(folder / "power.log")
    alone = loaded(child, smi(folder / "gpu.csv"))
    both = loaded(child, folder)
    assert ["nvidia_smi", "power_log"] == sorted(both["readers"])
    assert alone["samples"] == both["samples"]  # nvidia-smi has the power too


def test_a_strangers_capture_is_reported_on(
    child: Child, site: Path, log: Path, tmp_path: Path
) -> None:
    """`perfkit report` answers what a monitoring log answers: KIND is all that the report asks for."""
    status, _, said = child("", "report", log, "--out", tmp_path / "report")
    assert 0 == status, said
    content = json.loads((tmp_path / "report" / "summary.json").read_text(encoding="utf-8"))
    assert "power log" == content["inputs"]["captures"][0]["tool"]
    assert [] == content["failures"]
    assert (tmp_path / "report" / "notebooks" / "2_monitoring.ipynb").exists()
    assert "nvidia-smi -L" in {refusal["record"] for refusal in content["refusals"]}


def test_a_stranger_runs_the_contract(child: Child, site: Path, log: Path) -> None:
    # As the module is imported, and as perfkit registered it.
    code = "import sys, power_log, perfkit.readers as r; from perfkit.testing import check_reader; "
    code += (
        "check_reader(power_log, sys.argv[1:]); check_reader(r.reader('power_log'), sys.argv[1:])"
    )
    assert (0, "", "") == child(code, log)


BROKEN = {
    "no_import": (
        "import no_such_module",
        "it cannot be imported (ModuleNotFoundError: No module named",
    ),
    "no_syntax": ("def", "it cannot be imported (SyntaxError"),
    "raises": (
        "raise RuntimeError('no licence')",
        "it cannot be imported (RuntimeError: no licence)",
    ),
    "bare": (
        "VERSION = 1",
        "its module lacks a function sniff(path), a function read(path), KIND (one of timeline,",
    ),
}


def test_a_broken_package_is_named_and_left_out(child: Child, site: Path, log: Path) -> None:
    for name, (source, _) in BROKEN.items():
        package(site, name.replace("_", "-"), source)
    for path in (log, smi(log.parent / "gpu.csv")):
        notes = [note for note in loaded(child, path)["notes"] if "left out" in note]
        assert len(BROKEN) == len(notes)
        for name, (_, words) in BROKEN.items():
            begins = f"the reader {name} of {name.replace('_', '-')} 1.2: left out"
            (note,) = (n for n in notes if n.startswith(begins))
            assert words in note
    (log.parent / "other.txt").write_text("hello")
    assert "Note: the reader bare of bare 1.2" in refused(child, log.parent / "other.txt")


def test_names_that_cannot_be_are_left_out(child: Child, site: Path, log: Path) -> None:
    """A reader cannot take the name of perfkit's own, of a kind, of another package's, or of a path."""
    points = dict.fromkeys(("nsys", "monitor", "../x", "power_log"), "other_log")
    package(site, "other-log", shown(), points=points)
    notes = [note for note in loaded(child, log)["notes"] if "left out" in note]
    (impossible,) = (note for note in notes if "its name must be" in note)
    assert impossible.startswith(
        "the reader ../x of other-log 1.2, the reader monitor of other-log 1.2: left out, for "
    )
    (taken,) = (note for note in notes if "perfkit has a reader of this name" in note)
    assert taken.startswith("the reader nsys of other-log 1.2: left out")
    (other,) = (note for note in notes if "another package has" in note)
    assert other.startswith("the reader power_log of power-log 1.2: left out")
    assert 3 == len(notes)


FAILING = {
    "zero_log": ("1 / 0", "failed (ZeroDivisionError: division by zero)"),
    "three_log": ("return 3", "returned int, not a perfkit.profile.Profile"),
    "key_log": ("{}['x']", "failed (KeyError: 'x')"),
}


def test_a_reader_that_fails_is_named(child: Child, site: Path, log: Path) -> None:
    """Whatever `read` raises or returns is a ReadError with the package's name; in a folder the others are read."""
    folder = log.parent / "run"
    folder.mkdir()
    log.rename(folder / "power.log")
    head, _, _ = shown().partition("def read")
    for name, (body, _) in FAILING.items():
        source = f"{head.replace('# power', f'# {name}')}def read(path):\n    {body}\n"
        package(site, name.replace("_", "-"), source)
        (folder / f"{name}.txt").write_text(f"# {name} log\n")
    content = loaded(child, folder)
    assert ["power_log"] == content["readers"]
    for name, (_, words) in FAILING.items():
        told = f"{name}.txt: not part of this run, for it cannot be read: the reader {name} of"
        (note,) = (note for note in content["notes"] if note.startswith(told))
        assert words in note
    error = refused(child, folder / "zero_log.txt")
    assert error.startswith(
        f"perfkit.errors.ReadError: {folder / 'zero_log.txt'}: the reader zero_log of zero-log 1.2"
    )
    assert error.endswith(
        "Report this to the authors of that package, or uninstall it and load again."
    )
    # Also a table that is read later and has another shape than it promises.
    (site / "power_log.py").write_text(
        shown().replace("lambda: table", "lambda: table.assign(value='high')")
    )
    error = refused(child, power_log(log, rows=21))
    assert (
        "the reader power_log of power-log 1.2 failed (table 'SAMPLES' does not match its schema"
        in error
    )


def test_on_equal_claim_perfkits_own_reader_reads_the_file(
    child: Child, site: Path, log: Path
) -> None:
    """A note says which other reader claims it; of two packages the first by name reads it."""
    opens = "        with path.open"
    claiming = shown().replace(
        opens, f"        if path.suffix == '.csv':\n            return True\n{opens}"
    )
    (site / "power_log.py").write_text(claiming)
    content = loaded(child, smi(log.parent / "gpu.csv"))
    assert ["nvidia_smi"] == content["readers"]
    (note,) = (note for note in content["notes"] if "claims" in note)
    told = "the reader power_log of power-log 1.2 claims this file too; perfkit's own reader nvidia_smi reads it"
    assert f"gpu.csv: {told}" == note
    # A sniff that fails claims nothing, and the other readers are asked all the same.
    package(site, "a-bad-log", shown().replace(opens, f"        1 / 0\n{opens}"))
    package(site, "a-log", shown())
    assert ["a_log"] == loaded(child, log)["readers"]
