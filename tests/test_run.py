"""A run: profiles found by content, brought onto one clock, numbered by rank, nothing counted twice."""

import os
import re
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest
import sampled
from frames import api_calls, copies, kernels, profile
from readers import deepspeed_files, hpctoolkit_files, nccl_files, ncu_files
from readers import nsys_files as nsys
from readers import smi_files as smi
from sampled import SECOND, samples

import perfkit
from perfkit.errors import ReadError
from perfkit.joining import ZONELESS, astray
from perfkit.logs import deepspeed, nccl
from perfkit.profile import Missing, Profile
from perfkit.readers import READERS
from perfkit.run import Run, devices, distinct
from perfkit.tables import SAMPLES, TABLES

LATER = 5000  # ns


def named(*names: str) -> nsys.Tables:
    """A capture with one kernel of each name."""
    return {
        **nsys.session(),
        nsys.KERNEL: [nsys.kernel(10 * i, 10 * i + 5, n) for i, n in enumerate(names)],
    }


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", r"the file is empty \(0 bytes\)"),
        (
            b"hello world",
            r"no reader recognises this file \(11 bytes, starts with b'hello world'\)",
        ),
        (bytes(4096), "no reader recognises this file"),
        (b"version https://git-lfs.github.com/spec/v1\n", "git-LFS pointer.*`git lfs pull`"),
    ],
)
def test_a_foreign_file_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "run.sqlite"
    path.write_bytes(content)
    with pytest.raises(ReadError, match=f"^{re.escape(str(path))}: .*{words}"):
        perfkit.load(path)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("other.sqlite", r"not an Nsight Systems export \(tables: t0, t1, t2, t3, t4 and 2 more\)"),
        *(
            ("gone", "gone: no such file or folder"),
            ("folder", "nothing in this folder is a profile"),
        ),
        *((name, "Check the path") for name in ("x" * 300, "a\0b", "other.sqlite/below")),
    ],
)
def test_what_is_no_profile_is_refused(tmp_path: Path, name: str, words: str) -> None:
    nsys.sqlite(tmp_path / "other.sqlite", {f"t{i}": [{"a": 1}] for i in range(7)})
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "notes.txt").write_text("hello")
    with pytest.raises(ReadError, match=words):
        perfkit.load(tmp_path / name)
    with pytest.raises(ValueError, match="path: an empty list names no profile"):
        perfkit.load([])


def test_a_folder_of_runs_names_some_of_them(tmp_path: Path) -> None:
    for number in (10, 1, 2, 3, 4, 5, 6):
        (tmp_path / f"run_{number}").mkdir()
        nsys.sqlite(tmp_path / f"run_{number}" / "capture.sqlite", named("work"))
    for name in ("notes", ".hidden", "locked"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.txt").write_text("hello")
    (tmp_path / "locked").chmod(0)
    said = "runs lie one level deeper, in run_1, run_2, run_3, run_4, run_5 and others. Point at one of them."
    with pytest.raises(ReadError, match=re.escape(f"{tmp_path}: {said}")):
        perfkit.load(tmp_path)
    (tmp_path / "locked").chmod(0o700)
    with pytest.raises(ReadError, match="nothing in this folder is a profile"):
        perfkit.load(tmp_path / "notes")


def test_ranks_follow_the_numbers_in_file_names(tmp_path: Path) -> None:
    for name, ranks in (("rank_", [1, 2, 10]), ("part_", [0, 1, 2])):
        folder = tmp_path / name
        folder.mkdir()
        for number in (10, 2, 1):
            nsys.sqlite(folder / f"{name}{number}.sqlite", named(f"kernel_{number}"))
        run = perfkit.load(folder)
        assert [f"{name}1.sqlite", f"{name}2.sqlite", f"{name}10.sqlite"] == [
            p.path.name for p in run.profiles
        ]
        found = dict(zip(run.kernels["rank"], run.kernels["full_name"], strict=True))
        assert dict(zip(ranks, ["kernel_1", "kernel_2", "kernel_10"], strict=True)) == found
        assert ranks == run.capture["rank"].tolist()
    # Characters that are digits to some functions and not to others are no obstacle.
    (tmp_path / "other").mkdir()
    for name in ("1²2", "²", "٣", "1"):
        nsys.sqlite(tmp_path / "other" / f"{name}.sqlite", named(f"work_{name}"))
    assert 4 == len(perfkit.load(tmp_path / "other").kernels)


def test_clocks_are_brought_onto_one_axis(tmp_path: Path) -> None:
    t0 = 1_700_000_000_000_000_000
    first = nsys.sqlite(tmp_path / "a.sqlite", nsys.capture(t0=t0))
    later = nsys.sqlite(tmp_path / "b.sqlite", nsys.capture(t0=t0 + LATER))
    for shifted, paths in ((1, [first, later]), (0, [later, first])):
        run = perfkit.load(paths)
        for table, time in (
            ("kernels", "start_ns"),
            ("ranges", "start_ns"),
            ("samples", "time_ns"),
        ):
            groups = run.table(table.upper()).groupby("rank")
            by_rank = [frame.drop(columns="rank").reset_index(drop=True) for _, frame in groups]
            by_rank[shifted][time] -= LATER
            pd.testing.assert_frame_equal(*by_rank)


def test_a_profile_without_a_clock_starts_with_the_earliest() -> None:
    spans = kernels({"start_ns": 7, "dur_ns": 1})
    run = Run(
        [
            profile(t0=100, KERNELS=spans),
            profile(t0=None, KERNELS=spans),
            profile(t0=150, KERNELS=spans),
        ]
    )
    assert [7, 7, 57] == run.kernels["start_ns"].tolist()
    assert ("nsys.file: no wall clock, taken to start with the earliest profile",) == run.notes
    assert [7, 7] == Run([profile(t0=None, KERNELS=spans)] * 2).kernels["start_ns"].tolist()
    first = profile("nsys", t0=10_000, KERNELS=kernels({"start_ns": 0, "dur_ns": 1}))
    second = profile(
        "torch_trace", t0=10_000 + LATER, KERNELS=kernels({"start_ns": 0, "dur_ns": 1})
    )
    run = Run([first, second])
    assert [0] == run.kernels["start_ns"].tolist()
    assert [LATER] == run.of("torch_trace").kernels["start_ns"].tolist()


def test_one_capture_in_several_forms_counts_once(tmp_path: Path) -> None:
    nsys.sqlite(tmp_path / "mlp.sqlite", named("work"))
    nsys.parquet(tmp_path / "mlp_pqtdir", named("work"))
    nsys.arrow(tmp_path / "mlp_arwdir", named("work"))
    (tmp_path / "mlp.nsys-rep").write_bytes(b"NVIDIA Tegra Profiler Report 1.2")
    nsys.sqlite(tmp_path / "other.sqlite", named("rest"))
    run = perfkit.load(tmp_path)
    assert ["mlp.sqlite", "other.sqlite"] == [p.path.name for p in run.profiles]
    assert [1, 1] == run.kernels.groupby("rank").size().tolist()
    assert {"mlp.nsys-rep", "mlp_pqtdir", "mlp_arwdir"} == {
        name for note in run.notes for name in note.split(":")[0].split(", ")
    }
    assert all("the capture of mlp.sqlite in another form, left out" in note for note in run.notes)
    for name in ("once", "report"):
        (tmp_path / name).mkdir()
    path = nsys.sqlite(tmp_path / "once" / "a.sqlite", named("work"))
    given = [path, str(path), path.parent, path.parent / ".." / "once" / "a.sqlite"]
    assert 1 == len(perfkit.load(given).kernels)
    nsys.parquet(tmp_path / "report" / "mlp_pqtdir", named("work"))
    (tmp_path / "report" / "mlp.nsys-rep").write_bytes(b"NVIDIA Tegra Profiler Report 1.2")
    assert ["mlp_pqtdir"] == [p.path.name for p in perfkit.load(tmp_path / "report").profiles]


@pytest.mark.parametrize("name", ["broken.sqlite", "broken.nsys-rep", "cut.sqlite"])
def test_a_profile_of_a_folder_that_cannot_be_read_is_named(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    good = nsys.sqlite(folder / "good.sqlite", named("work"))
    (folder / name).write_bytes(good.read_bytes()[:6000] if name == "cut.sqlite" else b"")
    run = perfkit.load(folder)
    assert 1 == len(run.kernels)
    (note,) = run.notes
    assert note.startswith(f"{name}: not part of this run, for it cannot be read: ")
    assert str(tmp_path) not in note
    for given in ([good, folder / name], folder):
        if given == folder:
            good.unlink()
        with pytest.raises(ReadError, match=f"{name}: "):
            perfkit.load(given)


@pytest.mark.skipif(sys.platform == "win32", reason="it has no such files")
def test_what_is_neither_file_nor_folder_is_refused_without_opening_it(tmp_path: Path) -> None:
    nsys.sqlite(tmp_path / "good.sqlite", named("work"))
    os.mkfifo(tmp_path / "pipe.sqlite")
    (tmp_path / "link.json").symlink_to("/dev/zero")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "s"))
    for name, kind in (("pipe.sqlite", "a FIFO"), ("link.json", "a device"), ("s", "a socket")):
        with pytest.raises(
            ReadError, match=f"{name}: {kind}, not a file. Write what it delivers to a file"
        ):
            perfkit.load(tmp_path / name)
    notes = perfkit.load(tmp_path).notes
    assert (f"{tmp_path.name}: left out what is no profile (link.json, pipe.sqlite, s)",) == notes


@pytest.mark.skipif(sys.platform != "linux", reason="other systems' names are text")
def test_a_name_that_is_no_text_can_be_loaded(tmp_path: Path) -> None:
    path = tmp_path / os.fsdecode(b"run\xff.sqlite")
    nsys.sqlite(tmp_path / "run.sqlite", named("work")).rename(path)
    for _ in range(2):
        run = perfkit.load(path)
        assert 1 == len(run.kernels)
        assert [f"{tmp_path}/run\\xff.sqlite"] == run.capture["path"].tolist()


def test_other_files_in_a_folder_are_noted(tmp_path: Path) -> None:
    nsys.sqlite(tmp_path / "good.sqlite", named("work"))
    (tmp_path / "readme.md").write_text("# a run")
    (tmp_path / ".DS_Store").write_bytes(b"\0")
    (tmp_path / "sub").mkdir()
    assert (f"{tmp_path.name}: left out what is no profile (readme.md, sub)",) == perfkit.load(
        tmp_path
    ).notes
    for name in "abc":
        (tmp_path / name).write_text(name)
    (note,) = perfkit.load(tmp_path).notes
    assert note.endswith("(a, b, c and 2 more)")


@pytest.mark.skipif(sys.platform == "win32", reason="links need a privilege there")
def test_a_link_to_nowhere_is_explained(tmp_path: Path) -> None:
    nsys.sqlite(tmp_path / "good.sqlite", named("work"))
    (tmp_path / "old").symlink_to(tmp_path / "gone")
    assert (f"{tmp_path.name}: left out what is no profile (old)",) == perfkit.load(tmp_path).notes
    (tmp_path / "rank_1.sqlite").symlink_to(tmp_path / "gone")
    (note, _) = perfkit.load(tmp_path).notes
    assert (
        "rank_1.sqlite: not part of this run, for it cannot be read: the file cannot be opened (No such file"
        in note
    )


def test_categories_are_united_over_ranks() -> None:
    run = Run(
        [profile(KERNELS=kernels({"start_ns": 0, "dur_ns": 1, "name": n})) for n in ("b", "a", "b")]
    )
    assert ["b", "a", "b"] == run.kernels["name"].tolist()
    assert ["a", "b"] == run.kernels["name"].cat.categories.tolist()
    assert run.kernels is TABLES["KERNELS"].check(run.kernels)
    nothing = copies({"start_ns": 0, "dur_ns": 1, "direction": "memset", "src_memory": None})
    run = Run([profile(COPIES=nothing), profile(COPIES=copies({"start_ns": 0, "dur_ns": 1}))])
    assert [True, False] == run.copies["src_memory"].isna().tolist()
    assert "pinned" == run.copies["src_memory"].iloc[1]


def test_what_two_tools_recorded_is_counted_once() -> None:
    works = [kernels({"start_ns": 1, "dur_ns": 1, "name": name}) for name in ("nsys", "torch")]
    torch = profile(
        "torch_trace", KERNELS=works[1], API_CALLS=api_calls({"start_ns": 1, "dur_ns": 1})
    )
    run = Run([torch, profile(KERNELS=works[0])])
    assert ["nsys"] == run.kernels["name"].tolist()
    assert ["torch"] == run.profiles[0].table("KERNELS")["name"].tolist()
    assert 1 == len(run.api_calls)
    assert 2 == len(run.capture)
    first, second = READERS[:2]
    both = samples(power_w=[1], clock_hz=[1])
    run = Run([profile(second, SAMPLES=both), profile(first, SAMPLES=samples(power_w=[1]))])
    assert ["clock_hz", "power_w"] == sorted(run.samples["metric"])


def test_tables_are_read_once_and_when_first_asked_for() -> None:
    reads: list[str] = []
    run = Run(
        [replace(profile(), loaders={"KERNELS": lambda: reads.append("KERNELS") or kernels()})]
    )
    assert [] == reads
    assert run.kernels is run.kernels
    assert ["KERNELS"] == reads


def test_attributes_are_the_tables() -> None:
    run = Run([profile()])
    assert 0 == len(run.ops)
    assert run.ops is TABLES["OPS"].check(run.ops)
    with pytest.raises(
        AttributeError, match="run has no table 'kernel'; the tables are capture, devices, kernels"
    ):
        run.kernel  # noqa: B018
    assert not hasattr(run, "KERNELS")
    with pytest.raises(
        ValueError, match="'kernels' is no table; the tables are CAPTURE, DEVICES, KERNELS"
    ):
        run.table("kernels")
    assert {*map(str.lower, TABLES), "profiles", "missing", "notes"} <= set(dir(run))
    assert "<perfkit.Run of 1 profile(s): nsys.file (nsys)>" == repr(run)


def test_missing_is_what_no_profile_has(tmp_path: Path) -> None:
    lacks = (Missing("KERNELS", "no kernels", "do"), Missing("SAMPLES", "no samples", "do that"))
    poor = profile(name="a", about={"missing": lacks, "notes": ("cut down",)})
    run = Run([poor, poor, profile(KERNELS=kernels({"start_ns": 0, "dur_ns": 1}))], ["x: left out"])
    assert (lacks[1],) == run.missing
    assert ("x: left out", "a: cut down") == run.notes
    run = perfkit.load(nsys.sqlite(tmp_path / "a.sqlite", named("work")))
    lacking = ["COPIES", "API_CALLS", "RANGES", "SAMPLES", "DEVICES", "STACKS", "SCHEDULE"]
    assert lacking == [m.table for m in run.missing]
    assert all("nsys" in m.record for m in run.missing)


def test_files_of_one_capture_are_read_as_one(tmp_path: Path) -> None:
    for page, write in (("raw", ncu_files.raw), ("details", ncu_files.details)):
        write(tmp_path / f"a.{page}.csv", ncu_files.full(), ncu_files.full(1))
    run = perfkit.load(tmp_path)
    assert (2, ["a.raw.csv"]) == (len(run.launches), [p.path.name for p in run.profiles])
    database = hpctoolkit_files.sample(tmp_path / "hpctoolkit-app-database")
    (given,) = perfkit.load(database / "meta.db").profiles
    assert database == given.path


def test_ranks_are_those_the_files_state() -> None:
    third, first = (profile(about={"rank": rank}, SAMPLES=samples(power_w=[1])) for rank in (3, 1))
    assert [1, 3] == sorted(Run([third, first]).samples["rank"])
    assert [0, 1] == sorted(Run([third, third]).samples["rank"])
    assert [0, 1] == sorted(Run([third, replace(first, rank=None)]).samples["rank"])


def test_a_training_log_with_lines_of_nccl_gives_both(tmp_path: Path) -> None:
    lines = deepspeed_files.training()
    path = nccl_files.sample(tmp_path / "train.log")
    path.write_text(path.read_text() + "\n".join([*lines, ""]))
    for given in (path, tmp_path, [path, tmp_path]):
        for _ in ("read", "from the cache"):
            run = perfkit.load(given)
            assert ["deepspeed", "nccl"] == [p.reader for p in run.profiles]
            assert [1e9, 0.5e9, 0.25e9] == run.samples.loc[
                run.samples["metric"] == "iteration_ns", "value"
            ].tolist()
            assert {"ring", "tree", "connection"} == set(run.links["kind"])
            assert 3 == len(run.collectives)
            assert ["NCCL", "Megatron"] == sorted(run.capture["tool"], reverse=True)
    lines = [nccl_files.said("Bootstrap : Using eth0:10.0.0.1<0>"), *deepspeed_files.training()]
    run = perfkit.load(nccl_files.written(tmp_path / "train.log", lines))
    assert ["deepspeed"] == [p.reader for p in run.profiles]
    assert any("NCCL_DEBUG_SUBSYS=INIT,GRAPH,COLL,TUNING" in note for note in run.notes)
    nccl_files.written(tmp_path / "train.log", lines[:1])
    with pytest.raises(ReadError, match="neither results of nccl-tests nor rings"):
        perfkit.load(tmp_path / "train.log")


def told(frame: pd.DataFrame) -> dict[tuple[int, str], list[float]]:
    """The values of each metric of each GPU."""
    groups = frame.astype({"metric": str}).groupby(["gpu", "metric"])["value"]
    return {key: values.tolist() for key, values in groups}


def test_of_two_tools_at_one_time_that_with_more_readings_is_kept() -> None:
    # Power four times and twice in 4 s: the four; the temperature that only the lesser has stays.
    less = samples(every=2 * SECOND, power_w=[1, 2], temperature_c=[60, 61])
    more = samples(power_w=[3, 4, 5, 6])
    for frames in ([less, more], [more, less]):
        kept, notes = distinct(frames, ["a", "b"])
        assert {(0, "power_w"): [3, 4, 5, 6], (0, "temperature_c"): [60, 61]} == told(
            pd.concat(kept)
        )
        first = frames[0] is less
        assert [
            f"{'ab'[not first]}: power_w left out, {'ba'[not first]} has more readings of the same GPUs"
        ] == notes
        assert all(frame is SAMPLES.check(frame) for frame in kept)
    kept, notes = distinct([samples(power_w=[1, 2]), samples(power_w=[3, 4])], ["a", "b"])
    assert {(0, "power_w"): [1, 2]} == told(pd.concat(kept))
    assert ["b: power_w left out, a has more readings of the same GPUs"] == notes
    # The inventory of an hour before would count for that hour, since a reading holds until the next.
    alone = samples(at=[-3600 * SECOND], power_w=[60], power_limit_w=[700])
    kept, notes = distinct([alone, samples(power_w=[1, 2])], ["gpus.xml", "dmon.log"])
    assert {(0, "power_limit_w"): [700], (0, "power_w"): [1, 2]} == told(pd.concat(kept))
    assert ["gpus.xml: power_w left out, dmon.log has more readings of the same GPUs"] == notes
    names = ["energy_j", "fan_frac", "power_w", "sm_clock_hz", "temperature_c"]
    once, twice = (samples(**{name: [1.0] * count for name in names}) for count in (1, 2))
    frames = [once, twice, SAMPLES.empty()]
    kept, (note,) = distinct(frames, ["a", "b", "c"])
    assert [0, 10, 0] == [len(frame) for frame in kept]
    assert (
        "a: energy_j, fan_frac, power_w and 2 more left out, b has more readings of the same GPUs"
        == note
    )


def test_other_times_and_devices_are_kept() -> None:
    frames = [samples(power_w=[1, 2]), samples(at=[5 * SECOND, 6 * SECOND], power_w=[3, 4])]
    kept, notes = distinct(frames, ["a", "b"])
    assert [2, 2] == [len(frame) for frame in kept]
    assert [] == notes
    assert all(frame is one for frame, one in zip(kept, frames, strict=True))
    frames = [
        samples(power_w=[1, 2]),
        samples(gpu=1, power_w=[3]),
        samples(rank=1, power_w=[4]),
        samples(fan_frac=[1]),
    ]
    kept, notes = distinct(frames, ["a", "b", "c", "d"])
    assert [2, 1, 1, 1] == [len(frame) for frame in kept]
    assert [] == notes


def test_a_gpu_that_two_tools_name_is_there_once() -> None:
    memory = pd.array([None, 80, None], dtype="Int64")
    frame = sampled.devices(*["A100"] * 3, rank=[0, 0, 1], gpu=0, memory_bytes=memory)
    assert [80, None] == [None if pd.isna(n) else n for n in devices(frame)["memory_bytes"]]


T0 = 1_767_225_600 * 10**9  # 2026-01-01 00:00:00 UTC
MINUTE = 60 * 10**9
HOUR = 60 * MINUTE
TIMELINE = kernels({"start_ns": 0, "dur_ns": MINUTE})


def capture(
    start_ns: int | None, dur_ns: int, *notes: str, name: str = "gpu.log", **tables: pd.DataFrame
) -> Profile:
    """A profile that began `start_ns` after midnight."""
    t0 = None if start_ns is None else T0 + start_ns
    return profile(
        "nsys" if tables else "nvidia_smi", name, t0, dur_ns, about={"notes": notes}, **tables
    )


CAPTURED = capture(0, MINUTE, name="run.sqlite", KERNELS=TIMELINE)
LOCAL = f"the times are local ones without a zone, {ZONELESS}"


@pytest.mark.parametrize(
    ("start_ns", "dur_ns", "clock"),
    [
        *((2 * HOUR, 5 * MINUTE, "at UTC+2:00"), (-8 * HOUR - MINUTE, 5 * MINUTE, "at UTC-8:00")),
        *((5 * HOUR + 30 * MINUTE, 0, "at UTC+5:30"), (14 * HOUR, MINUTE, "at UTC+14:00")),
        (2 * HOUR - 10 * MINUTE, 40 * MINUTE, "between UTC+2:00 and UTC+2:30"),
    ],
)
def test_a_log_that_is_a_zone_away_from_the_timeline_is_noted(
    start_ns: int, dur_ns: int, clock: str
) -> None:
    # A clock 2 h ahead of UTC began its log at 02:00 of its time when the timeline began at 00:00 UTC.
    (note,) = astray([CAPTURED, capture(start_ns, dur_ns, LOCAL)])
    assert note.startswith(
        f"gpu.log: its times, taken as UTC, miss the timeline; as those of a clock {clock} they"
    )
    assert "record in UTC" in note


@pytest.mark.parametrize(
    ("start_ns", "dur_ns", "why"),
    [
        (-10 * MINUTE, 30 * MINUTE, "it meets the timeline, and would three quarters later too"),
        (MINUTE, MINUTE, "it begins where the timeline ends"),
        (2 * HOUR + 7 * MINUTE, MINUTE, "no quarter of an hour away"),
        *(
            (20 * HOUR, MINUTE, "there is no such zone"),
            (-13 * HOUR, MINUTE, "there is no such zone"),
        ),
        (None, HOUR, "no wall clock"),
    ],
)
def test_other_logs_are_not_noted(start_ns: int | None, dur_ns: int, why: str) -> None:
    assert [] == astray([CAPTURED, capture(start_ns, dur_ns, LOCAL)]), why


def test_clocks_in_utc_or_beside_any_capture_are_not_noted() -> None:
    assert [] == astray([CAPTURED, capture(2 * HOUR, MINUTE)])
    assert [] == astray([capture(2 * HOUR, MINUTE, LOCAL)])
    assert [] == astray([capture(None, MINUTE, KERNELS=TIMELINE), capture(2 * HOUR, MINUTE, LOCAL)])
    other = capture(2 * HOUR, MINUTE, name="later.sqlite", KERNELS=TIMELINE)
    assert [] == astray([CAPTURED, other, capture(2 * HOUR, MINUTE, LOCAL)])
    # The run keeps the log two hours later, as its stamps say, and notes it once.
    run = Run([CAPTURED, capture(2 * HOUR, MINUTE, LOCAL)])
    assert [T0, T0 + 2 * HOUR] == sorted(run.capture["t0_unix_ns"])
    assert [0] == run.kernels["start_ns"].tolist()
    assert 1 == sum("miss the timeline" in note for note in run.notes)


def test_readers_of_local_times_say_so_in_these_words(tmp_path: Path) -> None:
    lines = [f"[2026-01-01 00:00:0{n}] {deepspeed_files.timed(n, 1000.0)}" for n in (1, 2)]
    found = [
        smi.read(smi.query(tmp_path / "gpu.csv", *smi.moments())),
        smi.read(smi.text(tmp_path / "gpus.txt")),
        deepspeed.read(nccl_files.written(tmp_path / "train.log", lines)),
        nccl.read(nccl_files.reported(tmp_path / "test.json", nccl_files.report())),
    ]
    for each in found:
        assert each.capture["t0_unix_ns"].notna().all()
        assert any(ZONELESS in note for note in each.notes), each.path.name


def test_a_real_log_of_local_times_has_the_note(tmp_path: Path, profiles: Path) -> None:
    # Beside a timeline of 7 hours before it could be of UTC+7 among its neighbours.
    path = (
        profiles / "monitor" / "nvidia-smi__nvidia-h100-80gb-hbm3__590.48.01__load__query-gpu.csv"
    )
    log = perfkit.load(path).profiles[0]
    start = int(log.capture["t0_unix_ns"].iloc[0]) - T0 - 7 * HOUR
    (note,) = astray([capture(start, MINUTE, name="run.sqlite", KERNELS=TIMELINE), log])
    assert "UTC+7:00" in note


@pytest.mark.skipif(
    not hasattr(os, "confstr") or "CS_GNU_LIBC_VERSION" not in os.confstr_names, reason="not glibc"
)
def test_memory_of_large_arrays_is_kept_for_the_next_once_a_table_is_large() -> None:
    """An array of 80 MB lies in the heap, which stays, and not in pages that the system clears anew for each."""
    program = r"""
import re, numpy as np
from pathlib import Path
from frames import kernels, profile
from perfkit import allocator as module

def is_in_heap():
    array = np.ones(10**7)
    found = re.search(r"^(\w+)-(\w+) .*\[heap\]$", Path("/proc/self/maps").read_text(), re.M)
    return int(found[1], 16) <= array.ctypes.data < int(found[2], 16)

module.LARGE = 10
for rows in (9, 10):
    profile(KERNELS=kernels(*[dict(start_ns=n, dur_ns=1) for n in range(rows)])).table("KERNELS")
    print(is_in_heap())
"""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    assert ["False", "True"] == done.stdout.split()
