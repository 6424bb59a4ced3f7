"""`check_reader`: perfkit's own readers keep the contract and more, and each rule is seen to be broken where it is."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pandas as pd
import pytest
from dumps import dump_files as dumps
from readers import dcgm_files as dcgm
from readers import deepspeed_files as deepspeed
from readers import experiment_files as experiment
from readers import hpctoolkit_files as hpctoolkit
from readers import inspector_files as inspector
from readers import nccl_files as nccl
from readers import ncu_files as ncu
from readers import nsys_files as nsys
from readers import smi_files as smi
from readers import torch_files as torch
from readers.outside_files import contributed, power_log
from readers.rocpd_files import COUNTED, pages, results, rocpd

import perfkit
from perfkit.errors import ReadError
from perfkit.profile import Missing, Profile
from perfkit.readers import every_name, reader, recognise
from perfkit.tables import SAMPLES, TABLES
from perfkit.testing import check_reader

Make = Callable[[Path], Path]
Wrong = Callable[[ModuleType], Any]

# Reader, form, and a file of it. A new reader adds a line for each form that it reads.
FORMS: tuple[tuple[str, str, Make], ...] = (
    ("nsys", "sqlite", lambda folder: nsys.sqlite(folder / "run.sqlite", nsys.capture())),
    ("nsys", "parquetdir", lambda folder: nsys.parquet(folder / "run_pqtdir", nsys.capture())),
    ("nsys", "arrowdir", lambda folder: nsys.arrow(folder / "run_arwdir", nsys.capture())),
    (
        "nsys",
        "arrowdir of streams",
        lambda folder: nsys.arrow(folder / "run_arwdir", nsys.capture(), "stream"),
    ),
    ("ncu", "raw page", lambda folder: ncu.raw(folder / "run.csv", ncu.full(0), ncu.full(1))),
    (
        "ncu",
        "details page",
        lambda folder: ncu.details(folder / "run.csv", ncu.full(0), ncu.full(1)),
    ),
    (
        "hpctoolkit",
        "database",
        lambda folder: hpctoolkit.sample(folder / "hpctoolkit-app-database"),
    ),
    (
        "hpctoolkit",
        "old database",
        lambda folder: experiment.sample(folder / "hpctoolkit-app-database"),
    ),
    ("torch_trace", "printed", lambda folder: torch.printed(folder / "trace.json", torch.sample())),
    (
        "torch_trace",
        "minified",
        lambda folder: torch.minified(folder / "trace.json", torch.sample()),
    ),
    ("torch_trace", "gzip", lambda folder: torch.packed(folder / "trace.json.gz", torch.sample())),
    ("dcgm", "dmon", lambda folder: dcgm.dmon(folder / "dmon.txt", *dcgm.ticks())),
    ("dcgm", "scrape", lambda folder: dcgm.scrape(folder / "scrape.prom", *dcgm.page())),
    ("dcgm", "answer", lambda folder: dcgm.stored(folder / "gpus.json")),
    ("nvidia_smi", "dmon", lambda folder: smi.dmon(folder / "gpu.log", *smi.ticks(7, gpus=1))),
    ("nvidia_smi", "query", lambda folder: smi.query(folder / "gpu.csv", *smi.moments())),
    ("nvidia_smi", "table", lambda folder: smi.plain(folder / "gpu.txt")),
    ("nvidia_smi", "text", lambda folder: smi.text(folder / "gpu.txt")),
    ("nvidia_smi", "xml", lambda folder: smi.xml(folder / "gpu.xml", *[smi.gpu()] * 3)),
    (
        "flight_recorder",
        "pickle",
        lambda folder: dumps.pickled(folder / "_dump_0", dumps.dump([dumps.entry(1)])),
    ),
    (
        "flight_recorder",
        "json",
        lambda folder: dumps.as_json(folder / "dump_0.json", dumps.dump([dumps.entry(1)])),
    ),
    (
        "memory_snapshot",
        "pickle",
        lambda folder: dumps.pickled(folder / "run.pickle", dumps.snapshot(dumps.steps()), 4),
    ),
    ("rocm_smi", "json of amd-smi", lambda folder: smi.amd(folder / "a.json", [smi.metric(0)])),
    ("rocm_smi", "csv of amd-smi", lambda folder: smi.amd_csv(folder / "a.csv", *smi.AMD_ROWS)),
    ("rocpd", "schema 3", lambda folder: rocpd(folder / "run.db")),
    ("rocpd", "schema 4", lambda folder: rocpd(folder / "run.db", 4, counted=COUNTED)),
    ("rocpd", "json", lambda folder: results(folder / "42_results.json")),
    ("rocpd", "csv", lambda folder: pages(folder, "kernel_trace")),
    ("rocpd", "csv of counters", lambda folder: pages(folder, "counter_collection")),
    (
        "nccl_inspector",
        "lines",
        lambda folder: inspector.process(
            folder / "host-pid1.log", [inspector.line(0, n, 300 + n, ranks=1) for n in range(9)]
        ),
    ),
    ("rocm_smi", "json", lambda folder: smi.rocm(folder / "gpu.json", smi.card(), smi.card())),
    (
        "nccl",
        "table",
        lambda folder: nccl.written(
            folder / "test.txt", nccl.table(inner=nccl.rows() * 4, ranks=2)
        ),
    ),
    ("nccl", "report", lambda folder: nccl.reported(folder / "all_reduce.json", nccl.report())),
    ("nccl", "log", lambda folder: nccl.sample(folder / "train.log")),
    (
        "deepspeed",
        "report",
        lambda folder: nccl.written(folder / "profile.txt", deepspeed.report()),
    ),
    (
        "deepspeed",
        "iterations",
        lambda folder: nccl.written(folder / "train.log", deepspeed.training()),
    ),
)
OWN = {
    name: {form: make for of, form, make in FORMS if of == name}
    for name in dict.fromkeys(row[0] for row in FORMS)
}
# Readers, or one form of theirs, of what a killed program leaves behind: cut within its data a file is read, and a note
# says so.
UNFINISHED = {
    "torch_trace": "the file ends before its trace does",
    "dcgm dmon": "the last line has no line break",
    "dcgm scrape": "the last line has no line break",
    "nvidia_smi": "the last line has no line break",
    "nvidia_smi xml": "the end is cut",
    "nccl": "the last line has no line break",
    "nccl report": "the file ends in the middle of a result",
    "deepspeed": "the last line has no line break",
    "nccl_inspector": "the last line has no line break",
    "rocm_smi csv of amd-smi": "the last line has no line break",
    "rocpd csv of counters": "the last line has no line break",
}
CASES = [pytest.param(name, make, id=f"{name} {form}") for name, form, make in FORMS]
CUTS = [
    pytest.param(make, UNFINISHED.get(f"{name} {form}", UNFINISHED.get(name)), id=f"{name} {form}")
    for name, form, make in FORMS
]


def frames(profile: Profile) -> dict[str, pd.DataFrame]:
    return {name: profile.table(name) for name in TABLES}


@pytest.mark.parametrize("name", every_name())
def test_what_cannot_be_opened_is_not_claimed(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {*every_name()} == {*OWN}
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
def test_a_cut_file_is_an_error_that_names_it(make: Make, said: str | None, tmp_path: Path) -> None:
    # Damaged is not absent. Where a file that ends early is no damage, a note says so.
    path = make(tmp_path)
    complete = rows(path)
    noted = {*perfkit.load(path).notes}
    for file in sorted(path.iterdir()) if path.is_dir() else [path]:
        whole = file.read_bytes()
        for size in (64, len(whole) // 2, len(whole) - 1):
            file.write_bytes(whole[:size])
            is_text = b"\0" not in whole
            if is_text and whole[size:] == b"\n":  # what is whole is read
                assert rows(path) == complete or {*perfkit.load(path).notes} - noted
                continue
            if said and size != 64:
                assert any(said in note for note in perfkit.load(path).notes)
                continue
            with pytest.raises(ReadError) as caught:
                frames(perfkit.load(path).profiles[0])
            assert str(file) in str(caught.value)
        file.write_bytes(whole)


def rows(path: Path) -> dict[str, int]:
    """Return the number of rows of each table of a capture."""
    return {name: len(frame) for name, frame in frames(perfkit.load(path).profiles[0]).items()}


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
    "flight_recorder/NVIDIA__nvidia-resiliency-ext__gpu_error_1st/_dump_12": "flight_recorder",
    "memory/kkaitlyn111__cs336-a2-systems__ctx128_forward.pickle": "memory_snapshot",
    "rocpd/TraceLens__908_mi350x__schema3.db": "rocpd",
    "nccl_inspector/h100x8_late_rank/host-pid41005.log": "nccl_inspector",
    "monitor/rocm-smi_json__mi100_rocm571.json": "rocm_smi",
    "monitor/nccl_tests_aws_p5_mpi_tagged.txt": "nccl",
    "monitor/nccl_debug_info_h100_issue1453.txt": "nccl",
    "monitor/deepspeed_flops_profiler_bert_large.txt": "deepspeed",
    "monitor/superbench__megatron_deepspeed.log": "deepspeed",
}


@pytest.mark.parametrize(("name", "make"), CASES)
@pytest.mark.sampled(2)
def test_own_readers_keep_the_contract_and_claim_their_files_alone(
    name: str, make: Make, tmp_path: Path
) -> None:
    path = make(tmp_path)
    check_reader(reader(name), [path])
    assert [name] == [other for other in every_name() if reader(other).sniff(path)]
    profile = reader(recognise(path)).read(path)
    assert name == profile.reader
    for table, frame in frames(profile).items():
        assert (frame["rank"] == 0).all(), table
        assert "dur_ns" not in frame or not (frame["dur_ns"] < 0).any(), table


@pytest.mark.parametrize(("capture", "name"), REAL.items(), ids=REAL)
@pytest.mark.sampled(2)
def test_own_readers_keep_the_contract_on_real_captures(
    capture: str, name: str, profiles: Path
) -> None:
    check_reader(reader(name), [profiles / capture])


def changed(whole: ModuleType, **parts: Any) -> Any:
    """The reader with other parts; None takes a part away."""
    every = {
        "VERSION": whole.VERSION,
        "KIND": whole.KIND,
        "sniff": whole.sniff,
        "read": whole.read,
        **parts,
    }
    return SimpleNamespace(
        __name__="wrong", **{name: part for name, part in every.items() if part is not None}
    )


def parts(**of: Any) -> Wrong:
    return lambda whole: changed(whole, **of)


def profile(change: Callable[[Profile], Any]) -> Wrong:
    return lambda whole: changed(whole, read=lambda path: change(whole.read(path)))


def about(**of: Any) -> Wrong:
    return profile(lambda made: replace(made, **of))


def samples(change: Callable[[pd.DataFrame], Any]) -> Wrong:

    def altered(made: Profile) -> Profile:
        frame = change(made.table("SAMPLES"))
        return replace(made, loaders={"SAMPLES": lambda: frame})

    return profile(altered)


def column(**of: Any) -> Wrong:
    return samples(lambda frame: SAMPLES.make(frame.assign(**of)))


def writing(whole: ModuleType) -> Any:
    """The reader, which leaves an index beside the file."""

    def read(path: Path) -> Profile:
        path.with_suffix(".index").write_text("")
        return whole.read(path)  # type: ignore[no-any-return]

    return changed(whole, read=read)


def greedy(whole: ModuleType) -> Any:
    """The reader, whose sniff reads the whole file."""
    return changed(
        whole, sniff=lambda path: path.is_file() and path.read_bytes().startswith(whole.FIRST)
    )


def raising(error: type[Exception], message: str) -> Wrong:
    """The reader, which raises this for everything that is not whole."""

    def make(whole: ModuleType) -> Any:
        def read(path: Path) -> Profile:
            if not path.read_bytes().endswith(b"\n"):
                raise error(message.format(path))
            return whole.read(path)  # type: ignore[no-any-return]

        return changed(whole, read=read)

    return make


counter = iter(range(1000))
NO_TOOL = pd.array([""], dtype="string")
WRONG: dict[str, tuple[Wrong, str]] = {
    "no version": (parts(VERSION=None), "VERSION"),
    "no read": (parts(read=None), "a function read"),
    "sniff claims everything": (
        parts(sniff=lambda path: True),
        "sniff returns True for an empty file",
    ),
    "sniff claims nothing": (
        parts(sniff=lambda path: False),
        "sniff returns False; it must return True",
    ),
    "sniff looks at the suffix": (
        parts(sniff=lambda path: path.suffix == ".log"),
        "it must return False",
    ),
    "sniff raises": (parts(sniff=lambda path: bool(path.read_text())), "sniff raises"),
    "sniff reads everything": (greedy, "bytes of a file of"),
    "another type": (parts(read=lambda path: {}), "read returns dict"),
    "a table that is none": (
        profile(lambda p: replace(p, loaders={"POWER": p.loaders["SAMPLES"]})),
        "'POWER', which is none of the tables",
    ),
    "another dtype": (samples(lambda f: f.astype({"time_ns": "float64"})), "is float64, not int64"),
    "another order": (samples(lambda f: f.iloc[::-1]), "not in the order"),
    "no rows": (samples(lambda f: f.iloc[:0]), "SAMPLES has no rows"),
    "another rank": (column(rank=1), "SAMPLES has ranks other than 0"),
    "percent": (column(metric="gpu_busy_frac", value=50.0), "a unit may be wrong"),
    "a metric without a unit": (
        column(metric="loudness"),
        "without a unit at the end of their name: loudness",
    ),
    "another path": (about(path=Path("x")), "it must be the path"),
    "no tool": (
        profile(lambda p: replace(p, capture=p.capture.assign(tool=NO_TOOL))),
        "does not name the tool",
    ),
    "no capture": (profile(lambda p: replace(p, capture=p.capture.iloc[:0])), "capture has 0 rows"),
    "notes of another type": (about(notes=["a"]), "must be a tuple of sent"),
    "missing of no table": (
        about(missing=(Missing("NAMES", "a", "b"),)),
        "'NAMES', which is no table",
    ),
    "missing and there": (
        about(missing=(Missing("SAMPLES", "a", "b"),)),
        "SAMPLES is missing, and is among",
    ),
    "missing without a remedy": (
        about(missing=(Missing("DEVICES", "a", ""),)),
        "the option that records it",
    ),
    "other values each time": (
        samples(lambda f: SAMPLES.make(f.assign(value=float(next(counter))))),
        "differs when it is read again",
    ),
    "a file beside it": (writing, "leaves a file next to it"),
    "rows lost without a note": (about(notes=()), "rows of SAMPLES are gone, and no note says so"),
    "another error": (
        raising(KeyError, "x"),
        "read raises KeyError ('x'); it must raise ReadError or nothing",
    ),
    "an error without the path": (
        raising(ReadError, "the file is cut. Copy it."),
        "must begin with the path",
    ),
    "an error without a remedy": (
        raising(ReadError, "{}: the file is cut."),
        "and then what to do",
    ),
}


@pytest.mark.parametrize(("make", "words"), WRONG.values(), ids=WRONG)
def test_a_broken_rule_is_named(make: Wrong, words: str, tmp_path: Path) -> None:
    if words == "bytes of a file of" and not os.path.exists("/proc/self/io"):
        pytest.skip("this system does not count what a process reads")
    with pytest.raises(AssertionError) as caught:
        check_reader(make(contributed()), [power_log(tmp_path / "power.log")])
    assert words in str(caught.value)


def test_a_right_reader_and_files_that_it_cannot_have(tmp_path: Path, profiles: Path) -> None:
    whole = contributed()
    check_reader(whole, [power_log(tmp_path / "power.log")])
    claiming = changed(whole, sniff=lambda path: path.suffix == ".csv" or whole.sniff(path))
    with pytest.raises(AssertionError, match="the installed reader nvidia_smi claims this file"):
        check_reader(claiming, [profiles / "monitor" / "smi_query__power_only_fluidsGL.csv"])
    with pytest.raises(AssertionError, match="no file was given"):
        check_reader(whole, [])
    with pytest.raises(AssertionError, match=r"gone\.log does not exist"):
        check_reader(whole, ["gone.log"])
