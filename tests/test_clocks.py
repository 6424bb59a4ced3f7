"""Logs without a zone beside a timeline: a clock that is hours off is told, not mended."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
from frames import kernels
from readers import deepspeed_files, nccl_files
from readers import smi_files as smi

import perfkit
from perfkit.profile import Profile
from perfkit.readers import deepspeed, nccl
from perfkit.run import ZONELESS, Run, astray
from perfkit.tables import CAPTURE

T0 = 1_767_225_600 * 10**9  # 2026-01-01 00:00:00 UTC
MINUTE = 60 * 10**9
HOUR = 60 * MINUTE
TIMELINE = kernels({"start_ns": 0, "dur_ns": MINUTE})


def profile(start_ns: int | None, dur_ns: int, *notes: str, name: str = "gpu.log", **tables: pd.DataFrame) -> Profile:
    """A profile that began `start_ns` after midnight."""
    t0 = None if start_ns is None else T0 + start_ns
    row = {"rank": 0, "tool": "any", "tool_version": "", "path": name, "t0_unix_ns": t0, "dur_ns": dur_ns}
    loaders: dict[str, Callable[[], pd.DataFrame]] = {key: lambda f=frame: f for key, frame in tables.items()}
    reader = "nsys" if tables else "nvidia_smi"
    return Profile(reader, Path(name), CAPTURE.make(pd.DataFrame([row])), loaders, notes=notes)


CAPTURED = profile(0, MINUTE, name="run.sqlite", KERNELS=TIMELINE)
LOCAL = f"the times are local ones without a zone, {ZONELESS}"


@pytest.mark.parametrize(
    ("start_ns", "dur_ns", "clock"),
    [
        (2 * HOUR, 5 * MINUTE, "at UTC+2:00"),
        (-8 * HOUR - MINUTE, 5 * MINUTE, "at UTC-8:00"),
        (5 * HOUR + 30 * MINUTE, 0, "at UTC+5:30"),
        (14 * HOUR, MINUTE, "at UTC+14:00"),
        (2 * HOUR - 10 * MINUTE, 40 * MINUTE, "between UTC+2:00 and UTC+2:30"),
    ],
)
def test_a_log_that_is_a_zone_away_from_the_timeline_is_noted(start_ns: int, dur_ns: int, clock: str) -> None:
    """A clock 2 h ahead of UTC began its log at 02:00 of its time when the timeline began at 00:00 UTC."""
    (note,) = astray([CAPTURED, profile(start_ns, dur_ns, LOCAL)])
    assert note.startswith(f"gpu.log: its times, taken as UTC, miss the timeline; as those of a clock {clock} they")
    assert "record in UTC" in note


@pytest.mark.parametrize(
    ("start_ns", "dur_ns", "why"),
    [
        (-10 * MINUTE, 30 * MINUTE, "it meets the timeline, and would three quarters later too"),
        (MINUTE, MINUTE, "it begins where the timeline ends"),
        (2 * HOUR + 7 * MINUTE, MINUTE, "no quarter of an hour away"),
        (20 * HOUR, MINUTE, "there is no such zone"),
        (-13 * HOUR, MINUTE, "there is no such zone"),
        (None, HOUR, "no wall clock"),
    ],
)
def test_other_logs_are_not_noted(start_ns: int | None, dur_ns: int, why: str) -> None:
    """A log that meets the timeline, or that no zone would bring there, gives no reason to doubt its clock."""
    assert [] == astray([CAPTURED, profile(start_ns, dur_ns, LOCAL)]), why


def test_times_that_are_known_to_be_utc_are_not_noted() -> None:
    """A range of Prometheus two hours later was recorded two hours later."""
    assert [] == astray([CAPTURED, profile(2 * HOUR, MINUTE)])
    assert [] == astray([profile(2 * HOUR, MINUTE, LOCAL)])
    assert [] == astray([profile(None, MINUTE, KERNELS=TIMELINE), profile(2 * HOUR, MINUTE, LOCAL)])


def test_any_capture_of_the_timeline_will_do() -> None:
    """Beside a capture of the same time a log is well, whatever the other ranks did hours before."""
    other = profile(2 * HOUR, MINUTE, name="later.sqlite", KERNELS=TIMELINE)
    assert [] == astray([CAPTURED, other, profile(2 * HOUR, MINUTE, LOCAL)])


def test_nothing_is_shifted() -> None:
    """The run keeps the log two hours later, as its stamps say, and notes it once."""
    run = Run([CAPTURED, profile(2 * HOUR, MINUTE, LOCAL)])
    assert [T0, T0 + 2 * HOUR] == sorted(run.capture["t0_unix_ns"])
    assert [0] == run.kernels["start_ns"].tolist()
    assert 1 == sum("miss the timeline" in note for note in run.notes)


def test_readers_of_local_times_say_so_in_these_words(tmp_path: Path) -> None:
    """nvidia-smi, Megatron with stamps and nccl-tests' report: all times without a zone are told by one phrase."""
    lines = [f"[2026-01-01 00:00:0{n}] {deepspeed_files.timed(n, 1000.0)}" for n in (1, 2)]
    found = [
        smi.read(smi.query(tmp_path / "gpu.csv", *smi.moments())),
        smi.read(smi.text(tmp_path / "gpus.txt")),
        deepspeed.read(deepspeed_files.written(tmp_path / "train.log", lines)),
        nccl.read(nccl_files.reported(tmp_path / "test.json", nccl_files.report())),
    ]
    for profile in found:
        assert profile.capture["t0_unix_ns"].notna().all()
        assert any(ZONELESS in note for note in profile.notes), profile.path.name


def test_a_real_log_of_local_times_has_the_note(tmp_path: Path, profiles: Path) -> None:
    """The query of an H100 under load, beside a timeline of 7 hours before, could be of UTC+7 among its neighbours."""
    path = profiles / "monitor" / "nvidia-smi__nvidia-h100-80gb-hbm3__590.48.01__load__query-gpu.csv"
    log = perfkit.load(path).profiles[0]
    start = int(log.capture["t0_unix_ns"].iloc[0]) - T0 - 7 * HOUR
    (note,) = astray([profile(start, MINUTE, name="run.sqlite", KERNELS=TIMELINE), log])
    assert "UTC+7:00" in note
