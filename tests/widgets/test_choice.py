"""The explorer without a page: what can be chosen, the choice as text, and the last choice of an earlier session."""

import json
import os
import shlex
import stat
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import traitlets
from click.testing import CliRunner
from counted import launches
from frames import kernels, lasting, profile
from readers.smi_files import moments, query
from sampled import samples
from widgets.explored import HOSTILE, MS, changes, run_of, tables

import perfkit
from perfkit.cli import main
from perfkit.names.families import FAMILIES
from perfkit.run import Run, load
from perfkit.widgets import choice
from perfkit.widgets.choice import Explorer, explorer
from perfkit.widgets.parameters import arguments, place, texts

pytestmark = pytest.mark.usefixtures("page_of_tests")
CHOICE: dict[str, Any] = {
    "ranks": [0],
    "gpus": [1],
    "window": [0, 50 * MS],
    "kernels": "gemm",
    "families": ["gemm"],
}
ALL: dict[str, Any] = {"ranks": [], "gpus": [], "window": [], "kernels": "", "families": []}


def test_is_a_selection_where_nobody_watches(run: Run) -> None:
    chosen = perfkit.select(run, gpus=[1])
    assert chosen is explorer(chosen)
    assert perfkit.select(run).description == explorer(run).description
    with pytest.raises(ValueError, match=r"show: 'timelime' is no view. Choose from timeline\."):
        explorer(run, show="timelime")


def test_begins_with_the_selection_it_is_given(run: Run, watched: None) -> None:
    live = explorer(perfkit.select(run, **CHOICE))
    assert isinstance(live, Explorer)
    assert CHOICE == live.parameters
    given = explorer(run, baseline=run.profiles[0].path.parent / "before", peaks="")
    given.view.copy.click()
    lines = given.view.parameters.value.splitlines()
    before = f"{run.profiles[0].path.parent.resolve()}/before"  # what was not given has no line
    assert lines[1].endswith(f" --baseline {before}")
    assert f'baseline = "{before}"' in lines
    assert "peaks" not in given.view.parameters.value
    assert ["sgemm_nt"] == live.selection.kernels["name"].tolist()


SAME = [{"ranks": [1]}, {"gpus": [1], "window": [0, 45 * MS]}, {"kernels": "SGEMM_n?"}]
SAME += [
    {"families": ["softmax", "gemm"], "ranks": [0, 1]},
    {"kernels": "script", "window": [60 * MS, 61 * MS]},
]


@pytest.mark.parametrize("choice", SAME)
def test_parameters_choose_the_same_tables(run: Run, choice: dict[str, Any]) -> None:
    live = Explorer(run)
    live.choose(**choice)
    again = perfkit.select(run, **live.parameters)
    for table in ("kernels", "other_kernels", "copies", "ranges", "devices"):
        pd.testing.assert_frame_equal(getattr(live.selection, table), getattr(again, table))
    assert again.window == live.selection.window


def test_choices_are_kept_as_they_are_meant(run: Run) -> None:
    live = Explorer(run)
    live.window = (1, 99_999_999)  # that no control could show
    assert (1, 99_999_999) == live.window == live.selection.window
    live.window = "1ms:2ms"
    assert (MS, 2 * MS) == live.window
    live.window = (1e6, 2e6)
    assert [int, int] == [type(edge) for edge in live.window]
    live.choose(window=(), kernels=HOSTILE)  # text to look for, nothing more
    assert [HOSTILE] == live.selection.kernels["name"].tolist()
    live.choose(kernels="", families=["softmax", "gemm", "softmax"])
    assert (
        ["gemm", "softmax"] == [one for one in FAMILIES if one in live.families] == [*live.families]
    )


def test_one_selection_per_choice(run: Run) -> None:
    live = Explorer(run)
    seen = changes(live)
    live.gpus = [1]
    live.choose(ranks=[0], window=[0, 50 * MS], kernels="gemm")
    live.gpus = (1,)
    assert [(1,), (1,)] == [one.gpus for one in seen]
    assert seen[-1] is live.selection
    live.reset()
    assert (3, "all GPUs, the whole recording, all kernels") == (
        len(seen),
        live.selection.description,
    )


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        ({"gpus": [7]}, r"gpus: the run does not have 7. Choose from 0, 1\."),
        ({"ranks": [0, 2]}, r"ranks: the run does not have 2. Choose from 0, 1\."),
        ({"gpus": "one"}, r"gpus: 'one' is no list of numbers, for example 0,2\."),
        ({"gpus": [True]}, r"gpus: \[True\] is no list of numbers"),
        (
            {"families": ["gem"]},
            r"families: the run does not have 'gem'. Choose from gemm, softmax, other\.",
        ),
        ({"window": [5]}, r"window: \[5\] is not a start and a later end"),
        ({"window": [5, 5]}, "window: 5 ns to 5 ns does not end after its start"),
        ({"window": [0.5, 5]}, r"window: 0.5 is no whole number of ns"),
        ({"window": [0, float("inf")]}, r"window: inf is no whole number of ns"),
        (
            {"window": [0, 200 * MS]},
            r"window: 0 s to 0.2 s reaches beyond the recording, which spans 0 s to 0.1 s",
        ),
        ({"kernels": 3}, r"The 'kernels' trait .* expected a unicode string"),
    ],
)
def test_what_the_run_does_not_have_is_refused(
    run: Run, choice: dict[str, Any], message: str
) -> None:
    live = Explorer(run)
    seen = changes(live)
    with pytest.raises(traitlets.TraitError, match=message):
        live.choose(ranks=[1], **choice) if "ranks" not in choice else live.choose(**choice)
    assert ([], (), "") == (seen, live.ranks, live.kernels)


@pytest.mark.parametrize(
    ("choice", "sentence"),
    [
        (
            {"kernels": "gemv"},
            "kernels: none of the 4 kernel names contains 'gemv'. Choose for example 'sgemm",
        ),
        (
            {"kernels": "softmax", "window": [0, 10 * MS]},
            "kernels: nothing ran of all GPUs, 0 s to 0.01 s, kernels",
        ),
        (
            {"gpus": [1], "window": [90 * MS, 95 * MS]},
            "window: 0.09 s to 0.095 s holds no recorded data of a GPU",
        ),
        (
            {"kernels": "softmax", "gpus": [0]},
            "kernels: nothing ran of GPU 0, the whole recording, kernels matching",
        ),
        ({"families": ["gemm"], "ranks": [1]}, "kernels: nothing ran of rank 1, all GPUs"),
        (
            {"families": ["gemm"], "kernels": "softmax"},
            "families: no kernel is of gemm and contains 'softmax'",
        ),
        ({"ranks": [0], "gpus": [1], "kernels": "soft"}, "kernels: nothing ran of rank 0, GPU 1"),
    ],
)
def test_a_choice_that_leaves_nothing_is_a_sentence(
    run: Run, choice: dict[str, Any], sentence: str
) -> None:
    live = Explorer(run)
    live.choose(**choice)
    assert live.selection is None
    assert live.problem.startswith(sentence)
    live.reset()
    assert ("", True) == (live.problem, live.selection is not None)


def test_runs_without_a_timeline(tmp_path: Path) -> None:
    empty = Explorer(Run([]))
    assert ((), ()) == (empty.offer.ranks, empty.offer.span)
    log = Explorer(run_of(tmp_path, {"SAMPLES": samples(gpu_busy_frac=[0.5, 0.6])}))
    assert ((0,), (0, 100 * MS)) == (log.offer.gpus, log.offer.span)
    log.window = (0, MS)
    assert (0, MS) == log.selection.window
    counted = Explorer(
        run_of(tmp_path, {"LAUNCHES": launches({"name": "sgemm"}, {"name": "softmax"})})
    )
    assert {"gemm", "softmax"} == {*counted.offer.families}
    counted.families = ["gemm"]
    assert ["sgemm"] == counted.selection.launches["name"].tolist()
    counted.kernels = "softmax"
    assert counted.problem.startswith("families: no kernel is of gemm and contains 'softmax'")
    beside = Explorer(
        run_of(tmp_path, tables() | {"LAUNCHES": launches({"name": "flash_fwd_kernel"})})
    )
    beside.kernels = "flash"  # that only the counters saw
    assert 1 == len(beside.selection.launches)
    beside.window = (0, MS)
    assert beside.selection is None


def test_ranks_are_the_profiles(tmp_path: Path) -> None:
    busy = profile("nsys", "p", None, 100 * MS, {"rank": 0}, KERNELS=tables()["KERNELS"].iloc[:1])
    live = Explorer(Run([busy, profile("nsys", "p", None, 100 * MS, {"rank": 1})]))
    live.ranks = [1]
    assert (1,) == live.selection.ranks
    assert live.on_lanes is None
    assert live.totals.empty
    work = kernels(lasting(0, 5), lasting(0, 5, rank=1, gpu=1))
    live = Explorer(run_of(tmp_path / "absent", {"KERNELS": work}))
    live.choose(ranks=[0], gpus=[0, 1])
    assert (None, "gpus: the run has no activity on GPU 1. Choose from 0.") == (
        live.selection,
        live.problem,
    )


CHOICES: list[dict[str, Any]] = [
    ALL,
    {
        "ranks": [0, 8],
        "gpus": [1],
        "window": [1000, 2**53 - 1],
        "kernels": "gemm*",
        "families": ["gemm", "softmax"],
    },
    {"ranks": [], "gpus": [-1], "window": [-5, 10], "kernels": "--out x", "families": []},
    {**ALL, "baseline": "an earlier run.sqlite", "peaks": "p'$x.csv"},
    {
        "ranks": [],
        "gpus": [],
        "window": [],
        "kernels": "a'b\"c\\d\n\u2028\x00\u202e\U000e0001é$(rm)`",
        "families": [],
    },
]


@pytest.mark.parametrize("chosen", CHOICES)
def test_texts_and_command_make_the_choice_again(
    chosen: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert (chosen != ALL) == bool(arguments(chosen))
    place = tmp_path / "a b"
    place.mkdir()
    files = {name: tmp_path / chosen[name] for name in ("baseline", "peaks") if name in chosen}
    for file in files.values():
        file.touch()
    is_carried = chosen is not CHOICES[-1]
    chosen = chosen | {name: str(file) for name, file in files.items()}
    cell = texts(chosen, place).split("\n\n")[1]
    found: dict[str, Any] = {}
    exec(cell, {}, found)
    assert {"profile": str(place), **chosen} == found
    if not is_carried:  # by any command
        return
    read: dict[str, Any] = {}
    monkeypatch.setattr(main.commands["report"], "callback", lambda **options: read.update(options))
    command = texts(chosen, place).splitlines()[1]
    done = CliRunner().invoke(main, shlex.split(command)[1:])
    assert (0, place) == (done.exit_code, read["path"])
    lists = {name for name, value in chosen.items() if isinstance(value, list)}
    assert chosen == {
        name: [*(read[name] or ())] if name in lists else str(read[name]) for name in chosen
    }


def test_the_command_of_papermill_says_what_the_command_of_the_report_says() -> None:
    chosen = CHOICES[1]
    made = shlex.split(texts(chosen, Path("/a b/run")).splitlines()[-1])
    assert ["papermill", "NOTEBOOK", "OUT", "-r", "profile", "/a b/run"] == made[:6]
    assert arguments(chosen) == [
        part
        for name, value in zip(made[7::3], made[8::3], strict=True)
        for part in (f"--{name}", value)
    ]


def test_the_path_that_reads_a_run_again(tmp_path: Path) -> None:
    logs = [query(tmp_path / f"{n}.csv", *moments(n)) for n in (2, 3)]
    assert logs[0] == place(load(logs[0]))
    assert tmp_path == place(load(tmp_path)) == place(load(logs))
    (tmp_path / "letter.sqlite").write_text("Dear reader")  # what cannot be read is left out
    assert tmp_path == place(run := load(tmp_path)) == place(load(logs))
    assert logs == [p.path for p in run.profiles]
    query(tmp_path / "4.csv", *moments(4))
    assert place(load(logs)) is None
    assert place(run_of(tmp_path / "absent", tables())) is None
    assert place(Run([])) is None


posix = pytest.mark.skipif(sys.platform == "win32", reason="files have no such owner and mode")


def file_of(cache: Path) -> Path:
    (file,) = cache.glob("user-*/choices/*")
    return file


def test_the_next_explorer_of_a_run_offers_the_last_choice(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert {} == Explorer(perfkit.select(run, gpus=[0])).last
    Explorer(run).choose(**CHOICE)
    again = Explorer(
        run_of(run.profiles[0].path, tables())
    )  # of another notebook: the parameters hold
    assert (CHOICE, ALL) == (again.last, again.parameters)
    given = Explorer(perfkit.select(run, gpus=[0]))  # to begin with something else is no choice
    assert (CHOICE, ALL | {"gpus": [0]}) == (given.last, given.parameters)
    assert (CHOICE, {}) == (Explorer(run).last, Explorer(perfkit.select(run, **CHOICE)).last)
    (other := tmp_path / "other.sqlite").touch()
    assert {} == Explorer(run_of(other, tables())).last
    live = Explorer(run)
    live.choose(**ALL | {"gpus": [1]})
    live.kernels = "nothing"  # what leaves nothing is not stored
    assert ALL | {"gpus": [1]} == Explorer(run).last
    live.reset()
    assert ({}, ALL) == (Explorer(run).last, Explorer(perfkit.select(run, gpus=[0])).last)
    if sys.platform != "win32":
        monkeypatch.setattr(choice.os, "getuid", lambda: 4711)  # another user of a shared cache
        assert {} == Explorer(perfkit.select(run, gpus=[0])).last


def test_nothing_is_stored_without_cache_or_file(
    run: Run, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Explorer(run_of(cache / "absent", tables())).choose(**CHOICE)
    assert [] == [*cache.iterdir()]
    monkeypatch.setenv("PERFKIT_CACHE", "off")
    Explorer(run).choose(**CHOICE)
    assert {} == Explorer(run).last


WRONG: list[dict[str, Any]] = [{"gpus": wrong} for wrong in (1, [True], ["1"], [7], [1e300], None)]
WRONG += [{"window": wrong} for wrong in ([1], [0, 10**400], [5, 1])] + [
    {"kernels": wrong} for wrong in (5, "nothing")
]
WRONG += [{"families": ["<script>"]}, {"families": [[]]}, {"more": 1}]
CONTENTS = [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"null", b"[]", b"{}"]


def test_damaged_or_foreign_content_is_ignored(run: Run, cache: Path) -> None:
    Explorer(run).choose(**CHOICE)
    for content in CONTENTS + [json.dumps(CHOICE | wrong).encode() for wrong in WRONG]:
        file_of(cache).write_bytes(content)
        live = Explorer(run)
        assert ({}, ALL, "") == (live.last, live.parameters, live.problem), content[:200]
        live.gpus = [1]
        assert [1] == choice.last_choice(run)["gpus"], content[:200]


def test_a_cache_that_cannot_be_written_is_no_error(
    run: Run, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Explorer(run).choose(**CHOICE)
    folder = file_of(cache).parent
    file_of(cache).unlink()
    folder.rmdir()
    folder.touch()
    Explorer(run).choose(**CHOICE)
    folder.unlink()

    def full(*_: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(choice.os, "replace", full)
    Explorer(run).choose(**CHOICE)
    assert [] == [*folder.iterdir()]


@posix
def test_others_cannot_read_what_is_stored(run: Run, cache: Path) -> None:
    before = os.umask(0)
    try:
        Explorer(run).choose(**CHOICE)
    finally:
        os.umask(before)
    file = file_of(cache)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (file, file.parent, file.parents[1])]
    assert [0o600, 0o700, 0o700] == modes


def of_another(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inode, asked, opened = path.stat().st_ino, os.lstat, os.fstat

    def with_owner(found: os.stat_result) -> os.stat_result:
        return (
            os.stat_result((*found[:4], os.getuid() + 1, *found[5:10]))
            if found.st_ino == inode
            else found
        )

    monkeypatch.setattr(choice.os, "fstat", lambda descriptor: with_owner(opened(descriptor)))
    monkeypatch.setattr(choice.Path, "lstat", lambda of: with_owner(asked(of)))


def writable(path: Path, _: pytest.MonkeyPatch) -> None:
    path.chmod(path.stat().st_mode | 0o002)


def linked(path: Path, _: pytest.MonkeyPatch) -> None:
    path.symlink_to(path.rename(path.with_name("elsewhere")))


def piped(path: Path, _: pytest.MonkeyPatch) -> None:
    path.unlink() if path.is_file() else path.rename(path.with_name("elsewhere"))
    os.mkfifo(path)


Plant = Callable[[Path, pytest.MonkeyPatch], None]
PLANTS: list[Plant] = [of_another, writable, linked, piped]


@posix
@pytest.mark.parametrize("plant", PLANTS)
@pytest.mark.parametrize("is_folder", [False, True])
def test_what_another_user_may_have_written_is_not_taken(
    run: Run, cache: Path, monkeypatch: pytest.MonkeyPatch, plant: Plant, is_folder: bool
) -> None:
    Explorer(run, show="").choose(**CHOICE)
    (file,) = cache.glob("user-*/choices/*")
    plant(file.parents[1] if is_folder else file, monkeypatch)
    assert {} == Explorer(run, show="").last


def test_a_row_of_a_table_leads_to_its_time_or_its_kernel(run: Run) -> None:
    explorer = Explorer(run)
    explorer.lead(json.dumps({"start_ns": str(40 * MS), "dur_ns": str(10 * MS), "cause": "x"}))
    assert (35 * MS - 1, 55 * MS + 1) == explorer.window
    explorer.lead(json.dumps({"step": "2", "start_ns": str(40 * MS), "dur_ns": str(20 * MS)}))
    assert (40 * MS, 60 * MS) == explorer.window
    explorer.lead(json.dumps({"name": "&lt;script&gt;alert(1)&lt;/script&gt;", "family": "other"}))
    assert HOSTILE == explorer.kernels
    before = explorer.parameters
    for row in (
        "",
        "[]",
        "{",
        '{"start_ns": "n/a", "dur_ns": "1"}',
        '{"start_ns": "900000000000", "dur_ns": "1"}',
    ):
        explorer.lead(row)
    assert before == explorer.parameters
