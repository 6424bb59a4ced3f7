"""Ranks of a run: tools of one node are one rank, nodes are several, and what a file states is not overwritten."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import pandas as pd
import pytest
from readers import dcgm_files, nccl_files
from readers import smi_files as smi

import perfkit
from perfkit.profile import Profile
from perfkit.ranks import places
from perfkit.tables import CAPTURE, COLLECTIVES

DATED = ("Date", "Time", *smi.COLUMNS)


def log(ranks: Sequence[int], name: str, reader: str = "nccl", own: int | None = None) -> Profile:
    """A profile whose COLLECTIVES hold these ranks; `own` is the rank that it states."""
    row = {"rank": 0, "tool": "NCCL", "tool_version": "", "path": name, "t0_unix_ns": None, "dur_ns": 0}
    told = {"gpu": -1, "operation": "all_reduce", "bytes": 8, "dtype": "float", "ranks": 16, "dur_ns": float("nan")}
    frame = pd.DataFrame([{"rank": rank, **told} for rank in ranks]).reindex(columns=COLLECTIVES.column_names)
    table = COLLECTIVES.make(frame)
    loaders: dict[str, Callable[[], pd.DataFrame]] = {"COLLECTIVES": lambda: table} if len(ranks) else {}
    return Profile(reader, Path(name), CAPTURE.make(pd.DataFrame([row])), loaders, rank=own)


def counted(*profiles: Profile) -> list[list[int]]:
    """The ranks of each profile in a run."""
    found, _ = places(profiles)
    tables = [profile.table("COLLECTIVES")["rank"] for profile in profiles]
    return [place.ranks("COLLECTIVES", own).tolist() for place, own in zip(found, tables, strict=True)]


def node(folder: Path, name: str, second: int = 0) -> None:
    """The logs of a node as two tools wrote them in the same six seconds, and its inventory."""
    stamps = [("20260101", f"00:00:{second + i // 2:02d}") for i in range(12)]
    rows = [(*stamp, *row) for stamp, row in zip(stamps, smi.ticks(), strict=True)]
    smi.dmon(folder / f"{name}_dmon.log", *rows, columns=DATED)
    smi.query(folder / f"{name}_query.csv", *smi.moments(4))
    smi.text(folder / f"{name}_inventory.txt")


def test_three_tools_on_one_node_are_one_rank(tmp_path: Path) -> None:
    """dmon, --query-gpu and -q of a node tell of its two GPUs, which are two and not six."""
    node(tmp_path, "a")
    run = perfkit.load(tmp_path)
    assert 3 == len(run.profiles)
    assert {(0, 0), (0, 1)} == set(zip(run.samples["rank"], run.samples["gpu"], strict=True))
    assert [(0, 0), (0, 1)] == list(zip(run.devices["rank"], run.devices["gpu"], strict=True))
    assert [0, 0, 0] == run.capture["rank"].tolist()


def test_logs_of_two_nodes_are_two_ranks_whatever_tools_wrote_them(tmp_path: Path) -> None:
    """Two logs of dmon are two nodes; with the queries of both there are still two."""
    node(tmp_path, "a")
    node(tmp_path, "b")
    for files in (sorted(tmp_path.glob("*dmon.log")), [tmp_path]):
        run = perfkit.load(files)
        assert [0, 1] == sorted(run.samples["rank"].unique())
        assert {(0, 0), (0, 1), (1, 0), (1, 1)} == set(zip(run.samples["rank"], run.samples["gpu"], strict=True))
    by_path = dict(zip(run.capture["path"], run.capture["rank"], strict=True))
    assert {"a": {0}, "b": {1}} == {
        name: {rank for path, rank in by_path.items() if Path(path).name.startswith(name)} for name in "ab"
    }


def test_ranks_inside_files_survive_beside_each_other() -> None:
    """The logs of two nodes with ranks 0 to 3 and 4 to 7 are ranks 0 to 7, in any order, and nothing is to be noted."""
    first, second = log(range(4), "a"), log(range(4, 8), "b")
    assert [[0, 1, 2, 3], [4, 5, 6, 7]] == counted(first, second)
    assert [[4, 5, 6, 7], [0, 1, 2, 3]] == counted(second, first)
    assert [] == places([first, second])[1]
    assert [0, 4] == [place.first for place in places([first, second])[0]]


def test_ranks_that_two_files_have_are_counted_on_and_noted() -> None:
    """Two logs of ranks 0 to 3 are of eight ranks, and a note says which were moved."""
    found = [log(range(4), "a"), log(range(4), "b"), log([2, 3], "c")]
    assert [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]] == counted(*found)
    assert [
        "b: its 4 ranks from 0 on are counted from 4 on: another file has some of them",
        "c: its 2 ranks from 2 on are counted from 8 on: another file has some of them",
    ] == places(found)[1]


def test_one_stated_rank_stands_beside_several() -> None:
    """Rank 5 of one log and 0 to 3 of another stay; a file that states none takes the next free one."""
    assert [[5], [0, 1, 2, 3]] == counted(log([0], "a", own=5), log(range(4), "b"))
    assert [[6], [5], [0, 1, 2, 3]] == counted(log([0], "c"), log([0], "a", own=5), log(range(4), "b"))


def test_a_stated_rank_that_is_not_kept_is_noted() -> None:
    """Two files that state rank 3 are ranks 0 and 1, which is said of both; of files that state none nothing is."""
    found = [log([0], "a", own=3), log([0], "b", own=3)]
    assert [[0], [1]] == counted(*found)
    because = "the ranks that the files state are not all different"
    assert [f"a: rank 3 is counted as 0: {because}", f"b: rank 3 is counted as 1: {because}"] == places(found)[1]
    assert [] == places([log([0], "a"), log([0], "b")])[1]


def test_a_file_without_the_table_of_its_ranks_is_of_one() -> None:
    """A log with rings and no calls states no rank: positions count."""
    assert [0, 1] == [place.first for place in places([log([], "a"), log([], "b")])[0]]


def test_no_table_is_read_where_it_cannot_matter() -> None:
    """Ranks of one file, and of tools with one rank a file, are known without reading a table."""
    profile = log(range(4), "a")

    def read() -> pd.DataFrame:
        raise AssertionError("a table was read")

    for reader, count in (("nccl", 1), ("nsys", 2)):
        unread = Profile(reader, profile.path, profile.capture, {"COLLECTIVES": read, "SAMPLES": read})
        assert [0, 1][:count] == [place.first for place in places([unread] * count)[0]]


def test_calls_of_every_rank_of_two_nodes_are_kept(tmp_path: Path) -> None:
    """Logs of NCCL on two nodes of two ranks each: four ranks of calls, though the second file is not the first."""
    for number in (0, 1):
        ranks = (2 * number, 2 * number + 1)
        lines = [line for rank in ranks for line in nccl_files.init(rank, 4, nodes=2)]
        lines += [nccl_files.call("AllReduce", 1024, ranks=4, rank=rank) for rank in ranks]
        nccl_files.written(tmp_path / f"node{number}.log", lines)
    run = perfkit.load(tmp_path)
    assert [0, 1, 2, 3] == run.collectives["rank"].tolist()
    assert [0, 2] == run.capture["rank"].tolist()


def test_hosts_of_two_scrapes_are_told_apart(tmp_path: Path) -> None:
    """Two answers of Prometheus with two hosts of one GPU each are four ranks, and the run says so."""
    for name in ("a", "b"):
        said = [dcgm_files.series("DCGM_FI_DEV_POWER_USAGE", 200, 201, host=f"{name}{host}") for host in (1, 2)]
        dcgm_files.answer(tmp_path / f"{name}.json", *said)
    run = perfkit.load(tmp_path)
    assert [0, 1, 2, 3] == sorted(run.samples["rank"].unique())
    assert "b.json: its 2 ranks from 0 on are counted from 2 on: another file has some of them" in run.notes


@pytest.mark.parametrize("turned", [False, True])
def test_real_logs_of_one_machine_are_one_rank(profiles: Path, turned: bool) -> None:
    """dmon and --query-gpu of an H100 under load, recorded together, are one GPU in either order."""
    name = "nvidia-smi__nvidia-h100-80gb-hbm3__590.48.01__load__{}"
    paths = [profiles / "monitor" / name.format(end) for end in ("dmon.txt", "query-gpu.csv")]
    run = perfkit.load(paths[::-1] if turned else paths)
    assert {(0, 0)} == set(zip(run.samples["rank"], run.samples["gpu"], strict=True))
    alone = [perfkit.load(path).samples for path in paths]
    most = pd.concat([one["metric"].astype(str).value_counts() for one in alone], axis=1).max(axis=1)
    assert most.astype(int).to_dict() == run.samples["metric"].astype(str).value_counts().to_dict()
