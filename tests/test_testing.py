"""`check_reader`: perfkit's own readers keep the contract and more, and each rule is seen to be broken where it is."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from readers import dcgm_files as dcgm
from readers import deepspeed_files as deepspeed
from readers import experiment_files as experiment
from readers import hpctoolkit_files as hpctoolkit
from readers import nccl_files as nccl
from readers import ncu_files as ncu
from readers import nsys_files as nsys
from readers import smi_files as smi
from readers import torch_files as torch
from readers.outside_files import contributed, power_log

import perfkit
from perfkit.errors import ReadError
from perfkit.profile import Missing, Profile
from perfkit.readers import READERS, reader, recognise
from perfkit.tables import SAMPLES, TABLES
from perfkit.testing import check_reader

Make = Callable[[Path], Path]

# Per reader: files of its own, one per form it reads. A new reader adds a line.
OWN: dict[str, dict[str, Make]] = {
    "nsys": {
        "sqlite": lambda folder: nsys.sqlite(folder / "run.sqlite", nsys.capture()),
        "parquetdir": lambda folder: nsys.parquet(folder / "run_pqtdir", nsys.capture()),
        "arrowdir": lambda folder: nsys.arrow(folder / "run_arwdir", nsys.capture()),
        "arrowdir of streams": lambda folder: nsys.arrow(folder / "run_arwdir", nsys.capture(), "stream"),
    },
    "ncu": {
        "raw page": lambda folder: ncu.raw(folder / "run.csv", ncu.full(0), ncu.full(1)),
        "details page": lambda folder: ncu.details(folder / "run.csv", ncu.full(0), ncu.full(1)),
    },
    "hpctoolkit": {
        "database": lambda folder: hpctoolkit.sample(folder / "hpctoolkit-app-database"),
        "old database": lambda folder: experiment.sample(folder / "hpctoolkit-app-database"),
    },
    "torch_trace": {
        "printed": lambda folder: torch.printed(folder / "trace.json", torch.sample()),
        "minified": lambda folder: torch.minified(folder / "trace.json", torch.sample()),
        "gzip": lambda folder: torch.packed(folder / "trace.json.gz", torch.sample()),
    },
    "dcgm": {
        "dmon": lambda folder: dcgm.dmon(folder / "dmon.txt", *dcgm.ticks()),
        "scrape": lambda folder: dcgm.scrape(folder / "scrape.prom", *dcgm.page()),
        "answer": lambda folder: dcgm.stored(folder / "gpus.json"),
    },
    "nvidia_smi": {
        "dmon": lambda folder: smi.dmon(folder / "gpu.log", *smi.ticks(7, gpus=1)),
        "query": lambda folder: smi.query(folder / "gpu.csv", *smi.moments()),
        "text": lambda folder: smi.text(folder / "gpu.txt"),
        "xml": lambda folder: smi.xml(folder / "gpu.xml", *[smi.gpu()] * 3),
    },
    "rocm_smi": {"json": lambda folder: smi.rocm(folder / "gpu.json", smi.card(), smi.card())},
    "nccl": {
        "table": lambda folder: nccl.written(folder / "all_reduce.txt", nccl.table(inner=nccl.rows() * 4, ranks=2)),
        "report": lambda folder: nccl.reported(folder / "all_reduce.json", nccl.report()),
        "log": lambda folder: nccl.sample(folder / "train.log"),
    },
    "deepspeed": {
        "report": lambda folder: deepspeed.written(folder / "profile.txt", deepspeed.report()),
        "iterations": lambda folder: deepspeed.written(folder / "train.log", deepspeed.training()),
    },
}
# Readers, or one form of theirs, of what a killed program leaves behind: cut within its data a file is read, and a note
# says so.
UNFINISHED = {
    "torch_trace": "the file ends before its trace does",
    "dcgm dmon": "the last line is cut",
    "dcgm scrape": "the last line is cut",
    "nvidia_smi": "the last line is cut",
    "nvidia_smi xml": "the end is cut",
    "nccl": "the last line is cut",
    "nccl report": "the file ends in the middle of a result",
    "deepspeed": "the last line is cut",
}
CASES = [pytest.param(name, make, id=f"{name} {form}") for name, forms in OWN.items() for form, make in forms.items()]
CUTS = [
    pytest.param(make, UNFINISHED.get(f"{name} {form}", UNFINISHED.get(name)), id=f"{name} {form}")
    for name, forms in OWN.items()
    for form, make in forms.items()
]

own_files = pytest.mark.parametrize(("name", "make"), CASES)
every_reader = pytest.mark.parametrize("name", READERS)


def files(path: Path) -> list[Path]:
    """The file, or the files of the folder, that make up a profile."""
    return sorted(path.iterdir()) if path.is_dir() else [path]


def frames(profile: Profile) -> dict[str, pd.DataFrame]:
    """Every table of a profile."""
    return {name: profile.table(name) for name in TABLES}


def test_every_reader_has_files_of_its_own() -> None:
    """No reader goes untested: the samples name the readers of the list, in its order."""
    assert list(READERS) == list(OWN)


@own_files
def test_a_file_is_claimed_by_its_reader_alone(name: str, make: Make, tmp_path: Path) -> None:
    """Its own reader claims a file, and no other does."""
    path = make(tmp_path)
    assert [name] == [other for other in READERS if reader(other).sniff(path)]
    assert name == recognise(path)


@every_reader
def test_what_cannot_be_opened_is_not_claimed(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unreadable files and folders are no profile, and neither is the beginning of a trace; looking never raises."""
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "readme.md").write_text("hello")
    (tmp_path / "trace.json").write_text('{"traceEvents": []')
    assert reader(name).sniff(tmp_path / "trace.json") is False

    def denied(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    monkeypatch.setattr(Path, "iterdir", denied)
    for path in ("folder", "folder/readme.md"):
        assert reader(name).sniff(tmp_path / path) is False


@pytest.mark.parametrize(("make", "said"), CUTS)
@pytest.mark.parametrize("part", ["64 bytes", "the first half", "all but one byte"])
def test_a_cut_file_is_an_error_that_names_it(make: Make, said: str | None, part: str, tmp_path: Path) -> None:
    """Damaged is not absent: whichever file is cut, reading all of the profile raises ReadError with its path.

    Or its notes say so, where a file that ends early is no damage.
    """
    path = make(tmp_path)
    for file in files(path):
        whole = file.read_bytes()
        size = {"64 bytes": 64, "the first half": len(whole) // 2, "all but one byte": len(whole) - 1}[part]
        file.write_bytes(whole[:size])
        if said and part != "64 bytes":
            assert any(said in note for note in perfkit.load(path).notes)
            continue
        with pytest.raises(ReadError) as caught:
            frames(perfkit.load(path).profiles[0])
        assert str(file) in str(caught.value)
        file.write_bytes(whole)


@own_files
def test_durations_are_not_negative_and_ranks_begin_with_0(name: str, make: Make, tmp_path: Path) -> None:
    """No interval ends before it starts, also in a table that may name several ranks."""
    profile = reader(name).read(make(tmp_path))
    assert name == profile.reader
    for table, frame in frames(profile).items():
        assert frame is TABLES[table].check(frame)
        assert "dur_ns" not in frame or not (frame["dur_ns"] < 0).any()
        assert (frame["rank"] == 0).all()


REAL = {  # one real capture of each form that is small, by the folder and the reader
    "nsys/GindaChen__nsys-ai__healthy_1pct.sqlite": "nsys",
    "ncu/Olajide-Badejo__GPU-Roofline-Profiler__gemm_tiled.csv": "ncu",
    "hpctoolkit/hpctoolkit-ping-pong-database": "hpctoolkit",
    "hpctoolkit/yuninxia__HPCToolkit__loops-perf-database": "hpctoolkit",
    "torch/HTA__alexnet__benchmark_result_2869224_1695835535_trace.json.gz": "torch_trace",
    "torch/HTA__call_stack__backward_thread.json": "torch_trace",
    "monitor/dcgmi_dmon_DCGM_issue244_8gpu_NA.txt": "dcgm",
    "monitor/dcgm_exporter_a100_mig.prom": "dcgm",
    "monitor/dmon_DT_pucet_2021.txt": "nvidia_smi",
    "monitor/smi_query__rtx4090_training_run.csv": "nvidia_smi",
    "monitor/nvidia-smi_xml__rtx-3060-v12.xml": "nvidia_smi",
    "monitor/rocm-smi_json__mi100_rocm571.json": "rocm_smi",
    "monitor/nccl_tests_aws_p5_mpi_tagged.txt": "nccl",
    "monitor/nccl_debug_info_h100_issue1453.txt": "nccl",
    "monitor/deepspeed_flops_profiler_bert_large.txt": "deepspeed",
    "monitor/superbench__megatron_deepspeed.log": "deepspeed",
}


@pytest.mark.parametrize(("name", "make"), CASES)
def test_own_readers_keep_the_contract(name: str, make: Make, tmp_path: Path) -> None:
    """Every reader of perfkit, with a file of each form it reads."""
    check_reader(reader(name), [make(tmp_path)])


@pytest.mark.parametrize(("capture", "name"), REAL.items(), ids=REAL)
def test_own_readers_keep_the_contract_on_real_captures(capture: str, name: str, profiles: Path) -> None:
    """What profilers and programs wrote, whole, cut and damaged."""
    check_reader(reader(name), [profiles / capture])


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """A capture of the reader that CONTRIBUTING.md shows."""
    return power_log(tmp_path / "power.log")


@pytest.fixture
def whole() -> ModuleType:
    """The reader that CONTRIBUTING.md shows."""
    return contributed()


def test_the_reader_of_the_contributing_page_keeps_the_contract(whole: ModuleType, log: Path) -> None:
    """Whoever copies it begins with a reader that is right."""
    check_reader(whole, [log])


def changed(whole: ModuleType, **parts: Any) -> Any:
    """The reader with other parts; None takes a part away."""
    every = {"VERSION": whole.VERSION, "KIND": whole.KIND, "sniff": whole.sniff, "read": whole.read, **parts}
    return SimpleNamespace(__name__="wrong", **{name: part for name, part in every.items() if part is not None})


def with_profile(whole: ModuleType, change: Callable[[Profile], Any]) -> Any:
    """The reader with another profile."""
    return changed(whole, read=lambda path: change(whole.read(path)))


def with_samples(whole: ModuleType, change: Callable[[pd.DataFrame], Any]) -> Any:
    """The reader with other rows of SAMPLES."""

    def altered(profile: Profile) -> Profile:
        frame = change(profile.table("SAMPLES"))
        return replace(profile, loaders={"SAMPLES": lambda: frame})

    return with_profile(whole, altered)


def writing(whole: ModuleType) -> Any:
    """The reader, which leaves an index beside the file."""

    def read(path: Path) -> Profile:
        path.with_suffix(".index").write_text("")
        return whole.read(path)  # type: ignore[no-any-return]

    return changed(whole, read=read)


def greedy(whole: ModuleType) -> Any:
    """The reader, whose sniff reads the whole file."""
    return changed(whole, sniff=lambda path: path.is_file() and path.read_bytes().startswith(whole.FIRST))


def careless(whole: ModuleType) -> Any:
    """The reader, which does not look whether its file is whole."""
    return changed(whole, read=lambda path: replace(whole.read(path), notes=()))


def raising(error: type[Exception], message: str) -> Callable[[ModuleType], Any]:
    """The reader, which raises this for everything that is not whole."""

    def make(whole: ModuleType) -> Any:
        def read(path: Path) -> Profile:
            if not path.read_bytes().endswith(b"\n"):
                raise error(message.format(path))
            return whole.read(path)  # type: ignore[no-any-return]

        return changed(whole, read=read)

    return make


counter = iter(range(1000))

WRONG: dict[str, tuple[Callable[[ModuleType], Any], str]] = {
    "no version": (lambda r: changed(r, VERSION=None), "VERSION"),
    "a version that is no number": (lambda r: changed(r, VERSION=True), "VERSION"),
    "no kind": (lambda r: changed(r, KIND=None), "KIND"),
    "an unknown kind": (lambda r: changed(r, KIND="power"), "KIND"),
    "no read": (lambda r: changed(r, read=None), "a function read"),
    "sniff claims everything": (lambda r: changed(r, sniff=lambda path: True), "sniff returns True for an empty file"),
    "sniff claims nothing": (
        lambda r: changed(r, sniff=lambda path: False),
        "sniff returns False; it must return True",
    ),
    "sniff raises": (lambda r: changed(r, sniff=lambda path: bool(path.read_text())), "sniff raises"),
    "sniff does not say True": (lambda r: changed(r, sniff=lambda p: r.sniff(p) or None), "sniff returns None"),
    "sniff reads everything": (greedy, "bytes of a file of"),
    "another type": (lambda r: changed(r, read=lambda path: {}), "read returns dict"),
    "a table that is none": (
        lambda r: with_profile(r, lambda p: replace(p, loaders={"POWER": p.loaders["SAMPLES"]})),
        "'POWER', which is none of the tables",
    ),
    "another dtype": (lambda r: with_samples(r, lambda f: f.astype({"time_ns": "float64"})), "is float64, not int64"),
    "a column too many": (lambda r: with_samples(r, lambda f: f.assign(note="x")), "not of this table"),
    "another order": (lambda r: with_samples(r, lambda f: f.iloc[::-1]), "not in the order"),
    "no rows": (lambda r: with_samples(r, lambda f: f.iloc[:0]), "SAMPLES has no rows"),
    "another rank": (
        lambda r: with_samples(r, lambda f: SAMPLES.make(f.assign(rank=1))),
        "SAMPLES has ranks other than 0",
    ),
    "percent": (
        lambda r: with_samples(r, lambda f: SAMPLES.make(f.assign(metric="gpu_busy_frac", value=50.0))),
        "a unit may be wrong",
    ),
    "a metric without a unit": (
        lambda r: with_samples(r, lambda f: SAMPLES.make(f.assign(metric="loudness"))),
        "without a unit at the end of their name: loudness",
    ),
    "another path": (lambda r: with_profile(r, lambda p: replace(p, path=Path("x"))), "it must be the path"),
    "no tool": (
        lambda r: with_profile(r, lambda p: replace(p, capture=p.capture.assign(tool=pd.array([""], dtype="string")))),
        "does not name the tool",
    ),
    "no capture": (lambda r: with_profile(r, lambda p: replace(p, capture=p.capture.iloc[:0])), "capture has 0 rows"),
    "notes of another type": (lambda r: with_profile(r, lambda p: replace(p, notes=["a"])), "must be a tuple of sent"),
    "missing and there": (
        lambda r: with_profile(r, lambda p: replace(p, missing=(Missing("SAMPLES", "a", "b"),))),
        "SAMPLES is missing, and is among the tables",
    ),
    "missing without a remedy": (
        lambda r: with_profile(r, lambda p: replace(p, missing=(Missing("DEVICES", "names", ""),))),
        "the option that records it",
    ),
    "missing of no table": (
        lambda r: with_profile(r, lambda p: replace(p, missing=(Missing("NAMES", "names", "x"),))),
        "'NAMES', which is no table",
    ),
    "other values each time": (
        lambda r: with_samples(r, lambda f: SAMPLES.make(f.assign(value=float(next(counter))))),
        "differs when it is read again",
    ),
    "a file beside it": (writing, "leaves a file next to it"),
    "rows lost without a note": (careless, "rows of SAMPLES are gone, and no note says so"),
    "another error": (raising(KeyError, "x"), "read raises KeyError ('x'); it must raise ReadError or nothing"),
    "an error without the path": (raising(ReadError, "the file is cut. Copy it."), "must begin with the path"),
    "an error without a remedy": (raising(ReadError, "{}: the file is cut."), "and then what to do"),
}


@pytest.mark.parametrize(("make", "words"), WRONG.values(), ids=WRONG)
def test_a_broken_rule_is_named(make: Callable[[ModuleType], Any], words: str, whole: ModuleType, log: Path) -> None:
    """A reader with one fault is told which; a reader that fails does not end the check."""
    if words == "bytes of a file of" and not os.path.exists("/proc/self/io"):
        pytest.skip("this system does not count what a process reads")
    with pytest.raises(AssertionError) as caught:
        check_reader(make(whole), [log])
    assert words in str(caught.value)


def test_a_file_of_a_reader_of_perfkit_is_named(log: Path, whole: ModuleType, profiles: Path) -> None:
    """Such a file would never reach a reader from outside."""
    claiming = changed(whole, sniff=lambda path: path.suffix == ".csv" or whole.sniff(path))
    with pytest.raises(AssertionError, match="perfkit's reader nvidia_smi claims this file"):
        check_reader(claiming, [profiles / "monitor" / "smi_query__power_only_fluidsGL.csv"])


def test_files_must_be_there(whole: ModuleType) -> None:
    """A test without a file would test nothing."""
    with pytest.raises(AssertionError, match="no file was given"):
        check_reader(whole, [])
    with pytest.raises(AssertionError, match=r"gone\.log does not exist"):
        check_reader(whole, ["gone.log"])
