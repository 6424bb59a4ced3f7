"""Files beside a run that end in an exception of Python's are refused in one line, with status 2."""

import codecs
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from readers import nsys_files

import perfkit
from perfkit import cache, cli, store
from perfkit.diagnosis import check
from perfkit.errors import ReadError
from perfkit.hardware import load_peaks
from perfkit.job import known
from perfkit.report.comparison import published
from perfkit.settings import toml

DEEP = "a = " + 5000 * "[" + 5000 * "]"


def run(folder: Path) -> Path:
    return nsys_files.sqlite(
        folder / "run.sqlite", {"CUPTI_ACTIVITY_KIND_KERNEL": [nsys_files.kernel(0, 10)]}
    )


def refused(*arguments: object) -> str:
    """Run a command that must be refused, and return its one line."""
    answer: Result = CliRunner().invoke(cli.main, [str(argument) for argument in arguments])
    assert answer.exit_code == 2
    (line,) = answer.output.splitlines()
    return line


def test_a_file_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(DEEP)
    with pytest.raises(
        ReadError, match=r"a\.toml: cannot be read: its tables or lists are nested too deeply"
    ):
        toml(tmp_path / "a.toml")


def test_a_file_that_no_person_wrote_is_refused(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text("a = 1\n" + "#" * (1 << 20))
    with pytest.raises(ReadError, match=r"a\.toml: larger than 1\.05 MB"):
        toml(tmp_path / "a.toml")


def test_a_number_of_400_digits_in_a_budget_is_refused(tmp_path: Path) -> None:
    (tmp_path / "b.toml").write_text(f"figures.idle_frac = {{ max = 1{400 * '0'} }}")
    with pytest.raises(ReadError, match=r"figures\.idle_frac\.max is '1000.*Give"):
        check.load_budget(tmp_path / "b.toml")


def test_a_number_of_400_digits_in_a_job_is_refused(tmp_path: Path) -> None:
    (tmp_path / "perfkit.toml").write_text(f"[job]\nparameters = 1{400 * '0'}")
    with pytest.raises(
        Exception, match=r"perfkit\.toml: job: parameters = 1000.* is no number above 0"
    ):
        known({}, tmp_path)


def test_a_fault_of_perfkit_ends_a_check_with_status_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(path: object) -> None:
        raise KeyError("no_such_name")

    monkeypatch.setattr(check, "load_budget", broken)
    (tmp_path / "b.toml").write_text("")
    arguments = ["check", str(run(tmp_path)), "--budget", str(tmp_path / "b.toml")]
    answer = CliRunner().invoke(cli.main, arguments)
    assert answer.exit_code == 2
    assert answer.output.splitlines()[-1].startswith(
        "perfkit: a fault of perfkit (KeyError: 'no_such_name')."
    )


@pytest.mark.parametrize("mark", [codecs.BOM_UTF8, codecs.BOM_UTF16_LE])
def test_a_file_may_begin_with_a_byte_order_mark(mark: bytes, tmp_path: Path) -> None:
    encoding = {codecs.BOM_UTF8: "utf-8", codecs.BOM_UTF16_LE: "utf-16-le"}[mark]
    (tmp_path / "a.toml").write_bytes(mark + "a = 1".encode(encoding))
    assert {"a": 1} == toml(tmp_path / "a.toml")


@pytest.mark.parametrize("cell", ["1e16", "1e308", "9" * 400, "inf", "nan"])
@pytest.mark.parametrize("column", ["mem_bw_gbs", "max_smem_sm_kib", "sm_count"])
def test_a_peak_that_no_gpu_has_is_refused(cell: str, column: str, tmp_path: Path) -> None:
    (tmp_path / "peaks.csv").write_text(f"name_nvidia_smi,{column}\nA,{cell}\n")
    with pytest.raises(ReadError, match=rf"peaks\.csv: .*\n.*{column} '.*' is not a"):
        load_peaks(tmp_path / "peaks.csv")


def test_published_figures_that_are_nested_too_deeply_are_refused(tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text('{"kernel_time": ' + "[" * 9**5)
    with pytest.raises(ReadError, match=r"p\.json: cannot be read"):
        published(tmp_path / "p.json")


def _stored(tmp_path: Path, change: Callable[[dict[str, Any]], object], name: str) -> Path:
    """Write a store of two ranks, and change a JSON file of the first, whose checksum is right again."""
    runs = [tmp_path / f"rank{number}.sqlite" for number in range(2)]
    for end, path in enumerate(runs, start=10):
        nsys_files.sqlite(path, {"CUPTI_ACTIVITY_KIND_KERNEL": [nsys_files.kernel(0, end)]})
    store.ingest(runs, tmp_path / "store", workers=1)
    (file,) = (tmp_path / "store/ranks").glob(f"rank0-*/{name}.*.json")
    content = json.loads(file.read_bytes())
    change(content)
    file.unlink()
    changed = json.dumps(content).encode()
    (file.parent / cache.file_name(name, changed, "json")).write_bytes(changed)
    return tmp_path / "store"


def _append(row: list[int], key: str) -> Callable[[dict[str, Any]], object]:
    return lambda content: content[key].append(row)


DAMAGES: dict[str, tuple[str, Callable[[dict[str, Any]], object]]] = {
    "a row too short": ("reduction", _append([1, 2], "devices")),
    "a rank without extent": ("reduction", _append([7] * 13, "devices")),
    "a time beyond int64": ("reduction", _append([0, 0, 2**70, 1], "steps")),
    "a time whose sums overflow": ("reduction", _append([0, 0, 2**63 - 1, 1], "steps")),
    "figures of another form": ("reduction", lambda content: content.update(extents={})),
    "missing without its table": ("manifest", lambda content: content["missing"].append({})),
    "a length of 400 digits": ("manifest", lambda content: content.update(dur_ns=10**400)),
    "a start beyond int64": ("manifest", lambda content: content.update(t0_unix_ns=2**70)),
    "a rank of 400 digits": ("manifest", lambda content: content.update(rank=10**400)),
    "a rank below 0": ("manifest", lambda content: content.update(rank=-1)),
    "a reader that is none": ("manifest", lambda content: content.update(reader="none")),
}


@pytest.mark.parametrize(("name", "change"), DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file_of_a_store_costs_its_own_rank(
    name: str, change: Callable[[dict[str, Any]], object], tmp_path: Path
) -> None:
    run = perfkit.load(_stored(tmp_path, change, name))
    assert 1 == len(run.profiles)
    assert 1 == len(run.reduced.devices)
    assert ["rank0" in note and "left out" in note for note in run.notes] == [True]


def _asked(folder: Path, tmp_path: Path) -> list[Path | str]:
    """Return the command that fails on a damaged side input, which lies in a folder."""
    if (budget := folder / "b.toml").exists():
        return ["check", run(tmp_path), "--budget", budget]
    return ["inspect", folder / "st" if (folder / "st").exists() else folder / "x.sqlite"]


def test_every_known_damage_of_a_side_input_is_refused_in_one_line(
    profiles: Path, tmp_path: Path
) -> None:
    folders = sorted((profiles / "broken").glob("side-*"))
    assert folders
    for folder in folders:
        assert refused(*_asked(folder, tmp_path)).startswith("perfkit: ")
