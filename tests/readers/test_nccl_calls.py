"""Calls and choices in logs of NCCL_DEBUG=INFO: sizes as nccl-tests defines them, ranks, algorithms and protocols."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from readers import nccl_files as files
from readers.nccl_files import call, init, said

import perfkit
from perfkit.profile import Profile
from perfkit.readers import nccl


def read(path: Path, *lines: str) -> Profile:
    """The profile of a log with these lines."""
    return nccl.read(files.written(path / "train.log", lines))


def calls(path: Path, *lines: str) -> pd.DataFrame:
    """The collectives of a log."""
    return read(path, *lines).table("COLLECTIVES")


@pytest.mark.parametrize(
    ("name", "operation", "parts"),
    [
        ("AllReduce", "all_reduce", 1),
        ("Broadcast", "broadcast", 1),
        ("Reduce", "reduce", 1),
        ("Send", "send_recv", 1),
        ("Recv", "send_recv", 1),
        ("AllGather", "all_gather", 4),
        ("ReduceScatter", "reduce_scatter", 4),
        ("AlltoAll", "all_to_all", 4),
        ("Gather", "gather", 4),
        ("Scatter", "scatter", 4),
    ],
)
def test_sizes_of_calls_are_those_of_nccl_tests(name: str, operation: str, parts: int, tmp_path: Path) -> None:
    """1000 bfloat16 are 2000 bytes, times 4 ranks where count is a rank's part; a call has no duration."""
    frame = calls(tmp_path, call(name, 1000, dtype=9, ranks=4))
    row = frame.iloc[0]
    assert (operation, 2000 * parts, "bfloat16", 4, "log") == tuple(
        row[["operation", "bytes", "dtype", "ranks", "source"]]
    )
    assert frame[["start_ns", "dur_ns", "algorithm", "protocol", "placement"]].isna().all(axis=None)


def test_calls_are_counted_in_hexadecimal(tmp_path: Path) -> None:
    """opCount e is the fifteenth call, not a word."""
    lines = [call("AllReduce", 8, number=n) for n in range(20)]
    assert any("opCount e " in line for line in lines)
    assert 20 == len(calls(tmp_path, *lines))


def test_calls_of_rccl_are_read_too(tmp_path: Path) -> None:
    """RCCL adds the accumulator, the task and the rank."""
    line = call("AllReduce", 8).replace(" count", " acc (nil) count") + " task 0 globalrank 0"
    assert [32] == calls(tmp_path, line)["bytes"].tolist()


def test_each_rank_has_its_row(tmp_path: Path) -> None:
    """A log of several ranks has one row per call and rank, numbered as in the largest communicator."""
    lines = [line for rank in (0, 1, 2) for line in init(rank, 3)]
    lines += [said(f"comm 0xbbb rank 0 nranks 1 cudaDev {rank} busId 0 - Init COMPLETE", rank) for rank in (0, 1, 2)]
    lines += [call("AllReduce", 8, ranks=3, rank=rank) for rank in (2, 0, 1)]
    profile = read(tmp_path, *lines)
    assert [0, 1, 2] == profile.table("COLLECTIVES")["rank"].tolist()
    assert profile.rank is None


def test_a_log_of_one_rank_states_it(tmp_path: Path) -> None:
    """NCCL_DEBUG_FILE with %p makes a file per process: the run numbers them as the files say."""
    for rank, name in ((0, "b.log"), (1, "a.log")):
        files.written(tmp_path / name, [*init(rank, 2), call("AllReduce", 8 * (rank + 1), rank=rank)])
    profile = nccl.read(tmp_path / "a.log")
    assert 1 == profile.rank
    assert [0] == profile.table("COLLECTIVES")["rank"].tolist()
    frame = perfkit.load(tmp_path).collectives
    assert {0: 32, 1: 64} == dict(zip(frame["rank"], frame["bytes"], strict=True))


def test_ranks_that_are_not_said_are_counted(tmp_path: Path) -> None:
    """With NCCL_DEBUG_SUBSYS=COLL alone, processes are numbered in the order of their first calls."""
    frame = calls(tmp_path, *(call("AllReduce", 8 + rank, rank=rank) for rank in (5, 3, 5)))
    assert [(0, 52), (0, 52), (1, 44)] == list(zip(frame["rank"], frame["bytes"], strict=True))


def test_choices_of_later_versions_tell_the_operation(tmp_path: Path) -> None:
    """Since 2.24 the size is what count says: of an all-gather of 8 ranks an eighth of the message."""
    lines = [
        *init(0, 8),
        said("AllReduce: 33554432 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..31}"),
        said("AllGather: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0} cgaClusterSize 4"),
    ]
    frame = calls(tmp_path, *lines)
    assert [("all_gather", 8192, 8, "ring", "LL"), ("all_reduce", 33554432, 8, "nvls", "Simple")] == list(
        frame[["operation", "bytes", "ranks", "algorithm", "protocol"]].itertuples(index=False, name=None)
    )
    assert frame["dur_ns"].isna().all()


def test_choices_of_earlier_versions_have_numbers(tmp_path: Path) -> None:
    """From 2.20 on a choice is told by numbers, with a time that NCCL's model estimates and nobody measured."""
    line = said("67108864 Bytes -> Algo 1 proto 2 time 123.456")
    frame = calls(tmp_path, line, said("AllGather: 4096 Bytes -> Algo 5 proto 1 time 9.5"))
    assert [("ring", "Simple", 67108864), ("nvls_tree", "LL128", 4096)] == list(
        frame[["algorithm", "protocol", "bytes"]].itertuples(index=False, name=None)
    )
    assert frame["operation"].isna().tolist() == [True, False]
    assert frame["dur_ns"].isna().all()


def test_an_unknown_number_is_no_algorithm(tmp_path: Path) -> None:
    """Algorithms of versions to come are missing."""
    texts = ("8 Bytes -> Algo 17 proto 9 time 1.0", "AllReduce: 4 Bytes -> Algo X proto Y time 1")
    frame = calls(tmp_path, *map(said, texts))
    assert frame[["algorithm", "protocol"]].isna().all(axis=None)


def test_choices_are_given_to_calls(tmp_path: Path) -> None:
    """With both logged, calls are the rows: each has the choice for its operation and size, if there is only one."""
    lines = [
        call("AllReduce", 2),
        call("AllReduce", 2, rank=1),
        call("AllReduce", 1024),
        call("AllGather", 8, ranks=2),
        said("AllReduce: 8 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0}"),
        said("AllReduce: 4096 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}"),
        said("AllReduce: 4096 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0}"),
        said("64 Bytes -> Algo 1 proto 0 time 5.0"),
    ]
    frame = calls(tmp_path, *lines)
    assert [("all_reduce", 8, "tree"), ("all_reduce", 4096, None), ("all_gather", 64, "ring")] == list(
        frame.drop_duplicates(["operation", "bytes"])
        .sort_values("operation", key=lambda c: c.astype(str), kind="stable", ascending=False)[
            ["operation", "bytes", "algorithm"]
        ]
        .astype(object)
        .where(lambda f: f.notna(), None)
        .itertuples(index=False, name=None)
    )


def test_sizes_that_cannot_be_known_are_left_out(tmp_path: Path) -> None:
    """An element type to come, a part of an unknown number of ranks, and more bytes than there are."""
    lines = [
        call("AllReduce", 8),
        call("AllReduce", 8, dtype=99),
        call("AllReduce", 10**19),
        said("AllGather: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}"),
    ]
    profile = read(tmp_path, *lines)
    assert [32] == profile.table("COLLECTIVES")["bytes"].tolist()
    assert "3 calls or choices of unknown message size are left out" in profile.notes
