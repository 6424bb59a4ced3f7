"""Reports (.ncu-rep) through NVIDIA's module: what is asked of it, and what happens without it."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from readers import ncu_files as files

from perfkit.errors import ReadError
from perfkit.readers import ncu, recognise

LINKS = "See @section:LaunchStats:Launch Statistics@ or @url:it:https://a/b@."
SAXPY = files.Action(
    {
        "gpu__time_duration.sum": ("ns", 10_500.0),
        "dram__bytes.sum": ("byte", 2_000),
        "launch__grid_size": ("", 8),
        "launch__block_size": ("", 128),
        "launch__device_id": ("", 1),
        "launch__func_cache_config": ("", "CachePreferNone"),
        "nvlink__uuidDev0": ("", None),
        "bad.ratio": ("", float("inf")),
        "device__attribute_compute_capability_major": ("", 9),
        "device__attribute_compute_capability_minor": ("", 0),
        "device__attribute_multiprocessor_count": ("", 132),
        "device__attribute_display_name": ("", "NVIDIA H100"),
    },
    [
        {"rule_identifier": "SOLBottleneck", "rule_message": {"title": "t", "message": LINKS}},
        {
            "rule_identifier": "LaunchConfiguration",
            "rule_message": {"title": "", "message": "a partial wave"},
            "speedup_estimation": {"type": 2, "speedup": 50.0},
        },
        {"rule_identifier": "WithoutMessage"},
    ],
)
WAY_OUT = "ncu --import run.ncu-rep --csv --page raw --print-units base > run.csv"


@pytest.fixture
def with_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    return lambda *ranges: monkeypatch.syspath_prepend(files.module(tmp_path, *ranges))


@pytest.fixture
def with_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    return lambda source: monkeypatch.syspath_prepend(files.code(tmp_path, source))


def test_a_report_fills_the_tables(tmp_path: Path, with_module: Any) -> None:
    with_module([SAXPY])
    path = files.report(tmp_path / "run.ncu-rep")
    assert "ncu" == recognise(path)
    profile = files.read(path)
    row = profile.table("LAUNCHES").iloc[0]
    assert ("saxpy(int)", 1, 8, 128) == (row["full_name"], row["gpu"], row["grid_blocks"], row["block_threads"])
    assert (10_500.0, 2_000.0) == (row["dur_ns"], row["dram_bytes"])
    # Texts, nothing and infinities are no counters.
    assert not {"bad.ratio", "nvlink__uuidDev0"} & set(profile.table("COUNTERS")["metric"])
    device = profile.table("DEVICES").iloc[0]
    assert ("NVIDIA H100", "9.0", 132) == (device["name"], device["compute_capability"], device["sm_count"])
    assert ["2024.1.0.0"] == profile.capture["tool_version"].tolist()
    # A file name with bytes that are no UTF-8, which NVIDIA's library cannot open, is read all the same.
    assert 1 == len(files.read(files.report(tmp_path / os.fsdecode(b"r\xff.ncu-rep"))).table("LAUNCHES"))


def test_rules_lose_the_markup_of_links_and_ranges_follow_each_other(tmp_path: Path, with_module: Any) -> None:
    with_module([SAXPY, SAXPY], [], [SAXPY])
    profile = files.read(files.report(tmp_path / "run.ncu-rep"))
    assert [0, 1, 2] == profile.table("LAUNCHES")["launch"].tolist()
    rules = profile.table("RULES").query("launch == 2")  # a rule without a message is none
    assert ["a partial wave", "See Launch Statistics or it (https://a/b)."] == rules["message"].tolist()
    assert (0.5, "workload") == tuple(rules[["speedup_frac", "scope"]].iloc[0])


@pytest.mark.parametrize(
    ("actions", "announced", "words"),
    [
        ([], 0, "the report holds no kernel launch"),
        # A launch without a name and metrics is none: the error does not speak of the kernel filter.
        ([files.Action({}, demangled=None)], 1, r"the report is damaged: .* none of its launches \(1 announced\)"),
    ],
)
def test_a_report_without_launches_is_an_error(
    actions: list[files.Action], announced: int, words: str, tmp_path: Path, with_module: Any
) -> None:
    with_module(actions)
    with pytest.raises(ReadError, match=rf"run\.ncu-rep: {words}"):
        ncu.read(files.report(tmp_path / "run.ncu-rep", launches=announced))


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("raise ImportError('no such library')", ["(no such library)", 'pip install "perfkit[ncu]"', WAY_OUT]),
        # NVIDIA's library ends its process on some damaged reports.
        ("os.abort()", ["NVIDIA's library ncu_report ended with signal 6 (SIGABRT) on this report.", WAY_OUT]),
        ("raise RuntimeError('unknown message')", ["ncu_report cannot read this report (unknown message)"]),
        ("raise KeyError(path[-11:])", ["NVIDIA's library ncu_report failed (\"KeyError: 'run.ncu-rep'\")"]),
        ("os._exit(0)", ["NVIDIA's library ncu_report ended without an answer"]),
    ],
)
def test_a_failure_of_the_module_is_an_error(source: str, words: list[str], tmp_path: Path, with_code: Any) -> None:
    with_code(source if "Import" in source else f"import os\n\ndef load_report(path):\n    {source}")
    path = files.report(tmp_path / "run.ncu-rep")
    with pytest.raises(ReadError) as caught:
        ncu.read(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert words == [word for word in words if word in str(caught.value)]


def test_every_cut_of_a_report_is_noticed(tmp_path: Path, with_module: Any) -> None:
    """The module reads what is left of a cut report without a word; the lengths in the file do not agree."""
    with_module([SAXPY])
    path = files.report(tmp_path / "run.ncu-rep", b"x" * 100)
    whole = path.read_bytes()
    end = 8 + int.from_bytes(whole[4:8], "little")  # after its header a report may end: then it holds no launch
    for size in [*range(4, end), *range(end + 1, len(whole))]:
        path.write_bytes(whole[:size])
        with pytest.raises(ReadError, match=r"run\.ncu-rep: the report is cut"):
            ncu.read(path)
    # Zeros, and messages with field 0 or a type that does not exist, begin no block: a hole ends the search.
    for tail in (bytes(100), b"\1\0\0\0\7", b"\4\0\0\0\x2f\0\0\0"):
        path.write_bytes(whole + tail)
        with pytest.raises(ReadError, match=rf"run\.ncu-rep: .*damaged: no block begins at byte {len(whole)}"):
            ncu.read(path)


def test_block_headers_with_other_fields(tmp_path: Path, with_module: Any) -> None:
    with_module([SAXPY])
    path = files.report(tmp_path / "run.ncu-rep", b"")
    # Fields of every wire type before the payload's size are skipped: integers, texts, 32 and 64 bits.
    fields = b"\x08\x96\x01" + b"\x22\x03abc" + b"\x0d\0\0\0\0" + b"\x11" + bytes(8) + b"\x28\x05"
    path.write_bytes(path.read_bytes()[:-6] + len(fields).to_bytes(4, "little") + fields + b"12345")
    assert 1 == len(files.read(path).table("LAUNCHES"))


def test_a_report_of_fewer_launches_than_it_announces(tmp_path: Path, with_module: Any) -> None:
    with_module([SAXPY, SAXPY])
    assert () == files.read(files.report(tmp_path / "a.ncu-rep", launches=2)).notes
    notes = files.read(files.report(tmp_path / "b.ncu-rep", launches=3)).notes
    assert ["NVIDIA's library reads 2 of 3 launches" in note for note in notes] == [True]


def test_what_the_module_cannot_read_is_left_out_and_counted(tmp_path: Path, with_module: Any) -> None:
    metrics = {"a.sum": ("", 5), "listed.sum": (None, 1), "by\udcf4te.sum": ("", 2), None: ("", 3)}
    metrics |= {"list.sum": ("", [4]), "unit.sum": (7, 5), "text": ("", "by\udcf4te")}
    rules = [{"rule_identifier": None, "rule_message": {"message": "m"}}]
    with_module([files.Action(metrics, rules, demangled=None)])
    profile = files.read(files.report(tmp_path / "run.ncu-rep"))
    assert ["(no name)"] == profile.table("LAUNCHES")["full_name"].tolist()
    assert [("a.sum", 5.0)] == list(profile.table("COUNTERS")[["metric", "value"]].itertuples(index=False, name=None))
    # The name of the launch, four metrics and the one with a unit that is no text, and the rule.
    (note,) = profile.notes
    assert "cannot be read and were left out: 7 (first: metric 'listed.sum'" in note


def test_ids_and_sizes_that_are_none_are_missing(tmp_path: Path, with_module: Any) -> None:
    wrong = {"launch__device_id": 2**40, "launch__grid_size": 1.5, "launch__block_size": -1}
    wrong |= {"device__attribute_multiprocessor_count": 1e300, "device__attribute_compute_capability_major": 1e300}
    metrics = {name: ("", value) for name, value in wrong.items()}
    metrics["device__attribute_compute_capability_minor"] = ("", 0)
    with_module([files.Action({**metrics, "gpu__time_duration.sum": ("ns", 5.0)})])
    profile = files.read(files.report(tmp_path / "run.ncu-rep"))
    row = profile.table("LAUNCHES").iloc[0]
    assert (-1, 5.0) == (row["gpu"], row["dur_ns"])
    assert row[["grid_blocks", "block_threads"]].isna().all()
    assert 0 == len(profile.table("DEVICES"))
    assert 4 == sum("is no whole number" in note or "that are no whole number" in note for note in profile.notes)


def test_what_the_library_prints_is_not_shown(
    tmp_path: Path, with_module: Any, capfd: pytest.CaptureFixture[str]
) -> None:
    with_module([SAXPY])
    module = tmp_path / "module" / "ncu_report.py"
    noise = "import os\nos.write(1, b'WARNING one')\nos.write(2, b'WARNING two')\nprint('three')\n"  # past Python, too
    module.write_text(noise + module.read_text())
    assert 1 == len(files.read(files.report(tmp_path / "run.ncu-rep")).table("LAUNCHES"))
    assert ("", "") == tuple(capfd.readouterr())


HANGS = """
import os

def load_report(path):
    with open(path + ".pid", "w") as file:
        file.write(f"{os.getpid()}.")
    while True:
        pass
"""


def child_of(path: Path) -> int | None:
    note = path.with_name(path.name + ".pid")
    text = note.read_text() if note.exists() else ""
    return int(text[:-1]) if text.endswith(".") else None


def assert_gone(path: Path) -> None:
    child = child_of(path)
    assert child is not None
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)


def test_a_library_that_hangs_is_ended(tmp_path: Path, with_code: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    with_code(HANGS)
    monkeypatch.setattr(ncu, "SECONDS", 3)
    path = files.report(tmp_path / "run.ncu-rep")
    with pytest.raises(ReadError, match=r"run\.ncu-rep: NVIDIA's library ncu_report did not finish within 3 s"):
        ncu.read(path)
    assert_gone(path)


def test_an_interrupt_leaves_no_process_behind(tmp_path: Path, with_code: Any) -> None:
    with_code(HANGS)
    path = files.report(tmp_path / "run.ncu-rep")
    over = threading.Event()

    def interrupt() -> None:
        while not over.wait(0.01):
            if child_of(path) is not None:
                os.kill(os.getpid(), signal.SIGINT)
                over.wait(2)  # Python drops an interrupt that comes while it runs a destructor: then once more

    thread = threading.Thread(target=interrupt)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background ignores it
    thread.start()
    try:
        with pytest.raises(KeyboardInterrupt):
            ncu.read(path)
    finally:
        over.set()
        thread.join()
        signal.signal(signal.SIGINT, before)
    assert_gone(path)
