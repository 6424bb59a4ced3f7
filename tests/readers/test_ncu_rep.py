"""Reports (.ncu-rep) through NVIDIA's module: what is asked of it, and what happens without it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from readers import ncu_files as files

from perfkit.errors import ReadError
from perfkit.readers import ncu, recognise

SAXPY = files.Action(
    {
        "gpu__time_duration.sum": ("ns", 10_500.0),
        "launch__grid_size": ("", 8),
        "launch__block_size": ("", 128),
        "launch__device_id": ("", 1),
        "launch__func_cache_config": ("", "CachePreferNone"),
        "nvlink__uuidDev0": ("", None),
        "bad.ratio": ("", float("inf")),
        "dram__bytes.sum": ("byte", 2_000),
        "device__attribute_compute_capability_major": ("", 9),
        "device__attribute_compute_capability_minor": ("", 0),
        "device__attribute_multiprocessor_count": ("", 132),
        "device__attribute_display_name": ("", "NVIDIA H100"),
    },
    [
        {
            "rule_identifier": "SOLBottleneck",
            "rule_message": {
                "title": "t",
                "message": "See @section:LaunchStats:Launch Statistics@ or @url:it:https://a/b@.",
            },
        },
        {
            "rule_identifier": "LaunchConfiguration",
            "rule_message": {"title": "", "message": "a partial wave"},
            "speedup_estimation": {"type": 2, "speedup": 50.0},
        },
        {"rule_identifier": "WithoutMessage"},
    ],
)


@pytest.fixture
def with_module(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Let a stand-in with these ranges be the installed module."""
    return lambda *ranges: monkeypatch.syspath_prepend(files.module(tmp_path, *ranges))


@pytest.fixture
def with_code(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Let a stand-in with this source be the installed module."""
    return lambda source: monkeypatch.syspath_prepend(files.code(tmp_path, source))


def test_a_report_fills_the_tables(tmp_path: Path, with_module: Any) -> None:
    """Sizes, device and capability come from metrics; texts, nothing and infinities are no counters."""
    with_module([SAXPY])
    path = files.report(tmp_path / "run.ncu-rep")
    assert "ncu" == recognise(path)
    profile = files.read(path)
    row = profile.table("LAUNCHES").iloc[0]
    assert ("saxpy(int)", 1, 8, 128) == (row["full_name"], row["gpu"], row["grid_blocks"], row["block_threads"])
    assert (10_500.0, 2_000.0) == (row["dur_ns"], row["dram_bytes"])
    assert not {"bad.ratio", "nvlink__uuidDev0"} & set(profile.table("COUNTERS")["metric"])
    device = profile.table("DEVICES").iloc[0]
    assert ("NVIDIA H100", "9.0", 132) == (device["name"], device["compute_capability"], device["sm_count"])
    assert ["2024.1.0.0"] == profile.capture["tool_version"].tolist()


def test_rules_lose_the_markup_of_links(tmp_path: Path, with_module: Any) -> None:
    """A link is its label, an address follows in brackets; a rule without a message is none."""
    with_module([SAXPY])
    rules = files.read(files.report(tmp_path / "run.ncu-rep")).table("RULES")
    assert ["a partial wave", "See Launch Statistics or it (https://a/b)."] == rules["message"].tolist()
    assert (0.5, "workload") == tuple(rules[["speedup_frac", "scope"]].iloc[0])


def test_ranges_follow_each_other(tmp_path: Path, with_module: Any) -> None:
    """Launches of a second range are numbered on, they do not replace the first."""
    with_module([SAXPY, SAXPY], [], [SAXPY])
    assert [0, 1, 2] == files.read(files.report(tmp_path / "run.ncu-rep")).table("LAUNCHES")["launch"].tolist()


def test_a_report_without_launches_is_an_error(tmp_path: Path, with_module: Any) -> None:
    """Ranges without actions hold nothing to show."""
    with_module([])
    with pytest.raises(ReadError, match=r"run\.ncu-rep: the report holds no kernel launch"):
        ncu.read(files.report(tmp_path / "run.ncu-rep"))


def test_a_report_the_module_refuses_is_an_error(tmp_path: Path, with_code: Any) -> None:
    """The error quotes what the module raises, and names the file."""
    with_code("def load_report(path):\n    raise RuntimeError('unknown message')")
    with pytest.raises(ReadError, match=r"run\.ncu-rep: ncu_report cannot read this report \(unknown message\)"):
        ncu.read(files.report(tmp_path / "run.ncu-rep"))


def test_without_the_module_both_ways_out_are_named(tmp_path: Path, with_code: Any) -> None:
    """Install the extra, or export the page."""
    with_code("raise ImportError('no such library')")
    with pytest.raises(ReadError) as caught:
        ncu.read(files.report(tmp_path / "run.ncu-rep"))
    for part in (
        f"{tmp_path / 'run.ncu-rep'}: ",
        "(no such library)",
        'pip install "perfkit[ncu]"',
        "ncu --import run.ncu-rep --csv --page raw --print-units base > run.csv",
    ):
        assert part in str(caught.value)


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


def test_block_headers_with_other_fields(tmp_path: Path, with_module: Any) -> None:
    """Fields of every wire type before the payload's size are skipped: integers, texts, 32 and 64 bits."""
    with_module([SAXPY])
    path = files.report(tmp_path / "run.ncu-rep", b"")
    fields = b"\x08\x96\x01" + b"\x22\x03abc" + b"\x0d\0\0\0\0" + b"\x11" + bytes(8) + b"\x28\x05"
    path.write_bytes(path.read_bytes()[:-6] + len(fields).to_bytes(4, "little") + fields + b"12345")
    assert 1 == len(files.read(path).table("LAUNCHES"))
