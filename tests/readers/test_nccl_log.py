"""Logs of NCCL_DEBUG=INFO: lines, links, calls and choices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from readers import nccl_files as files
from readers.nccl_files import call, init, said

import perfkit
from perfkit.errors import ReadError
from perfkit.profile import Profile
from perfkit.readers import nccl

Edges = set[tuple[int, int, int]]


def read(path: Path, *lines: str) -> Profile:
    """The profile of a log with these lines."""
    return nccl.read(files.written(path / "train.log", lines))


def edges(path: Path, kind: str, *lines: str) -> Edges:
    """Channel, from and to of the links of a kind."""
    links = read(path, *lines).table("LINKS")
    kept = links[links["kind"] == kind]
    return set(kept[["channel", "from_rank", "to_rank"]].itertuples(index=False, name=None))


def calls(path: Path, *lines: str) -> pd.DataFrame:
    """The collectives of a log."""
    return read(path, *lines).table("COLLECTIVES")


def values(frame: pd.DataFrame, *columns: str) -> list[tuple[Any, ...]]:
    """The rows of some columns; what is missing is None."""
    cells = frame[[*columns]].astype(object)
    return list(cells.where(cells.notna(), None).itertuples(index=False, name=None))


PEERS = said("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM")
PATTERN = "Pattern 4, crossNic 0, nChannels 12, bw 20.0/20.0, type NVL/{}, sameChannels 1"


def test_a_ring_is_closed(tmp_path: Path) -> None:
    """0 1 3 2 are the connections 0-1, 1-3, 3-2 and, around, 2-0, whoever prints them."""
    expected = {(1, 0, 1), (1, 1, 3), (1, 3, 2), (1, 2, 0)}
    assert expected == edges(tmp_path, "ring", said("Channel 01/02 :    0   1   3   2"))
    neighbours = ("Ring 01 : 2 -> 0 -> 1", "Ring 01 : 0 -> 1 -> 3", "Ring 01 : 3 -> 2 -> 0")
    assert expected == edges(tmp_path, "ring", *map(said, neighbours))


def test_trees_point_to_the_root(tmp_path: Path) -> None:
    """Children, the rank and its parent; both ends print an edge, -1 is none."""
    root, leaf = said("Trees [0] 1/2/-1->0->-1 [1] -1/-1/-1->0->3"), said("Trees [0] -1/-1/-1->1->0", 1)
    assert {(0, 1, 0), (0, 2, 0), (1, 0, 3)} == edges(tmp_path, "tree", root, leaf)
    assert {(0, 1, 0), (0, 0, 4)} == edges(tmp_path, "tree", said("Tree 0 : 4 -> 0 -> 1/-1/-1"))


@pytest.mark.parametrize(
    ("text", "transport"),
    [
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", "P2P/CUMEM"),
        ("Channel 00/1 : 0[0] -> 1[1] via P2P/CUMEM/read", "P2P/CUMEM/read"),
        ("Channel 00 : 0[c7000] -> 1[87000] via P2P/IPC", "P2P/IPC"),
        ("Channel 00 : 0[c7000] -> 1[87000] via P2P/direct pointer comm 0x7f1 nRanks 08", "P2P/direct pointer"),
        ("Channel 00 : 0[1a000] -> 1[1c000] via P2P/indirect/2[5e000]/read", "P2P/indirect/2[5e000]/read"),
        ("Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/0(2)/GDRDMA(PCI)/Shared", "NET/IB/0(2)/GDRDMA(PCI)/Shared"),
        ("Channel 00/0 : 0[0] -> 1[0] [receive] via NET/AWS Libfabric/3/GDRDMA", "NET/AWS Libfabric/3/GDRDMA"),
        ("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", "SHM/direct/direct"),
        ("Ring 00 : 0 -> 1 [send] via NET/Socket/0", "NET/Socket/0"),
        ("Channel 00/0 : 0[0] -> 1[0] [receive] via NET/IB/0/GDRDMA/flush=None", "NET/IB/0/GDRDMA/flush=None"),
    ],
)
def test_every_version_names_the_transport(text: str, transport: str, tmp_path: Path) -> None:
    """From 2.4 to 2.31 a connection is told with its channel, both ranks and the transport."""
    links = read(tmp_path, said(text)).table("LINKS")
    expected = [("connection", 0, 0, 1, transport)]
    assert expected == values(links, "kind", "channel", "from_rank", "to_rank", "transport")


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
@pytest.mark.parametrize(
    ("sent", "received", "transport"),
    [
        ("NET/IB/2(4)/GDRDMA", "NET/IB/7/GDRDMA", "NET/IB/2(4)/GDRDMA"),
        ("NET/IB/2/GDRDMA", "NET/IB/7", "NET/IB/7"),  # by way of host memory, whatever the sender prints
    ],
)
def test_a_connection_with_two_ends_is_one(
    sent: str, received: str, transport: str, order: tuple[int, int], tmp_path: Path
) -> None:
    """The receiver prints it too: one row, with the sender's transport, or that of the end without GPUDirect."""
    ends = (
        said(f"Channel 00/0 : 0[0] -> 1[0] [send] via {sent}", 0),
        said(f"Channel 00/0 : 0[0] -> 1[0] [receive] via {received}", 1, host="node1"),
    )
    assert [transport] == read(tmp_path, *(ends[i] for i in order)).table("LINKS")["transport"].tolist()


def test_shared_memory_is_told(tmp_path: Path) -> None:
    """Shared memory is a remark; peer to peer is none, and the network is left to a finding."""
    fast = [said(f"Channel 0{c}/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA") for c in (0, 1)]
    fast.append(said("Channel 00/0 : 2[2] -> 3[3] via P2P/CUMEM"))
    assert () == read(tmp_path, *fast).notes
    (shared,) = read(tmp_path, *fast, said("Channel 00/0 : 4[2] -> 5[3] via SHM/direct/direct")).notes
    assert shared.startswith("1 connections between GPUs of a node go through host memory (SHM)")


def test_a_connection_has_the_path_that_nccl_found(tmp_path: Path) -> None:
    """NVL inside the node, PHB to the network; of rings and of logs without a pattern it is not known."""
    pattern = said(PATTERN.format("PHB"))
    via = [PEERS, said("Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0")]
    ring = said("Channel 00/01 :    0   1   2")
    links = read(tmp_path, pattern, *via, ring).table("LINKS")
    assert ["NVL", "PHB"] == links.loc[links["kind"] == "connection", "path"].tolist()
    assert links.loc[links["kind"] == "ring", "path"].isna().all()
    assert read(tmp_path, *via).table("LINKS")["path"].isna().all()


def test_the_setup_is_one_note(tmp_path: Path) -> None:
    """Version, ranks, nodes, network and the paths between GPUs."""
    profile = read(
        tmp_path,
        "NCCL version 2.20.5+cuda12.4",
        *init(0, 8, 2),
        *init(1, 8, 2),
        said("Using network AWS Libfabric"),
        said(PATTERN.format("PIX")),
        PEERS,
    )
    paths = "paths NVL between GPUs and PIX to the network"
    setup = f"NCCL 2.20.5+cuda12.4; 8 ranks on 2 nodes (4 per node); network AWS Libfabric; {paths}"
    assert (setup,) == profile.notes
    assert [("NCCL", "2.20.5+cuda12.4")] == values(profile.capture, "tool", "tool_version")


@pytest.mark.parametrize(
    "line", ["NCCL version 2.8.4+cuda11.1", said("NCCL version 2.27.5+cuda12.9"), said("RCCL version : 2.18.3")]
)
def test_the_version_may_have_a_prefix(line: str, tmp_path: Path) -> None:
    """The version is printed with and without a prefix."""
    profile = read(tmp_path, line, PEERS)
    assert line.split("version")[1].strip(" :") == profile.capture["tool_version"].item()


def test_warnings_are_quoted(tmp_path: Path) -> None:
    """Each warning once, the first three of them, printable and not too long."""
    texts = ["Call to connect failed", "Call to connect failed", "evil \x1b[31m red", "x" * 500, "fourth", "fifth"]
    lines = [said(f"misc/socket.cc:42 NCCL WARN {text}").replace("NCCL INFO ", "") for text in texts]
    profile = read(tmp_path, *lines)
    assert (
        "NCCL warned: Call to connect failed",
        "NCCL warned: evil ?[31m red",
        f"NCCL warned: {'x' * 197}...",
        "and 2 more warnings of NCCL",
    ) == profile.notes


def test_a_failure_of_the_program_is_told(tmp_path: Path) -> None:
    """PyTorch's watchdog says which collective hung; names of hosts and processes before that are not quoted."""
    lines = [
        PEERS,
        "[rank3]:[E ProcessGroupNCCL.cpp:5] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)",
        "node9: rank 3 died from signal 6",
    ]
    assert ("the run failed: Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)",) == read(
        tmp_path, *lines
    ).notes


def test_lines_that_run_into_each_other_are_left_out(tmp_path: Path) -> None:
    """What another line interrupts is not half read; the line that interrupts is whole."""
    lines = [
        said("Channel 00/0 : 0[0] -> 1[1] via P2P/CUM") + said("Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM"),
        "EM",
        said("Channel 02/0 : 0[0] -> 1[1] [senepoch 1: loss 3"),
        said("Channel 00/04 :    0   1   1   3"),
        "epoch 1: 50%|####" + said("Channel 03/0 : 0[0] -> 1[1] via P2P/CUMEM"),
        "epoch 1: 99%|####\r" + said("Channel 04/0 : 0[0] -> 1[1] via P2P/CUMEM"),
    ]
    profile = read(tmp_path, *lines)
    assert [1, 3, 4] == profile.table("LINKS")["channel"].tolist()
    assert ("3 lines of NCCL that are not whole are left out",) == profile.notes


@pytest.mark.parametrize(
    "form",
    [
        *("{}", "[0] {}", "[1,0]<stdout>:{}", "[2025-01-31 12:00:00] {}"),
        *("(RayWorker pid=12, ip=10.0.0.1) {}", "\x1b[36m(train)\x1b[0m {}"),
    ],
)
def test_lines_may_have_a_prefix(form: str, tmp_path: Path) -> None:
    """Launchers and NCCL_DEBUG_TIMESTAMP_FORMAT put text before a line."""
    path = files.written(tmp_path / "train.log", [form.format(PEERS)])
    assert nccl.sniff(path)
    assert 1 == len(nccl.read(path).table("LINKS"))


def test_talk_about_nccl_is_no_log(tmp_path: Path) -> None:
    """Without a process, its thread and its GPU a line is not NCCL's."""
    lines = ["NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", "grep 'NCCL WARN ' *.log", "NCCL version 2.20.5"]
    assert not nccl.sniff(files.written(tmp_path / "train.log", lines))


def test_a_log_that_says_nothing_is_an_error(tmp_path: Path) -> None:
    """Versions and settings alone are no table: the error says what to record."""
    with pytest.raises(ReadError, match=r"train\.log: neither results .* NCCL_DEBUG_SUBSYS=INIT,GRAPH,COLL,TUNING"):
        read(tmp_path, "NCCL version 2.20.5", said("cudaDriverVersion 12040"))


def test_zero_bytes_are_an_error(tmp_path: Path) -> None:
    """A log that a crash of the node left behind may hold zero bytes."""
    path = files.written(tmp_path / "train.log", [PEERS, "a\0b"])
    with pytest.raises(ReadError, match=r"train\.log: binary data \(zero bytes\) in line 2"):
        nccl.read(path)


def test_one_file_gives_tables_and_links(tmp_path: Path) -> None:
    """A test that ran with NCCL_DEBUG=INFO has both, and its calls too."""
    table = files.table()
    lines = [*table[:3], *init(0, 2), *table[3:17], call("AllReduce", 2, number=10), *table[17:]]
    profile = read(tmp_path, said("Channel 00/02 :    0   1"), *lines)
    assert {"COLLECTIVES", "LINKS", "DEVICES"} == set(profile.loaders)
    assert {"benchmark": 6, "log": 1} == profile.table("COLLECTIVES")["source"].value_counts().to_dict()
    assert "nccl-tests" == profile.capture["tool"].item()


def test_long_words_take_no_time(tmp_path: Path) -> None:
    """Where a process is looked for is bounded: a line of a megabyte is as quick as its length."""
    line = "a" * 10**6 + " NCCL INFO " + "1:" * 10**5 + " [0] NCCL INFO x"
    assert 1 == len(read(tmp_path, line, PEERS).table("LINKS"))


def test_a_call_that_is_not_whole_is_counted(tmp_path: Path) -> None:
    """Two calls, of which one has a damaged communicator: one row, and a note that counts the other."""
    lines = [*init(0, 2), call("AllReduce", 8), call("AllReduce", 16).replace("comm 0x", "comm -5x")]
    profile = read(tmp_path, *lines)
    assert 1 == len(profile.table("COLLECTIVES"))
    assert "1 lines of NCCL that are not whole are left out" in profile.notes


@pytest.mark.parametrize(
    ("name", "operation", "parts"),
    [
        *(("AllReduce", "all_reduce", 1), ("Broadcast", "broadcast", 1), ("Reduce", "reduce", 1)),
        *(("Send", "send_recv", 1), ("Recv", "send_recv", 1), ("AllGather", "all_gather", 4)),
        *(("ReduceScatter", "reduce_scatter", 4), ("AlltoAll", "all_to_all", 4)),
        *(("Gather", "gather", 4), ("Scatter", "scatter", 4)),
    ],
)
def test_sizes_of_calls_are_those_of_nccl_tests(name: str, operation: str, parts: int, tmp_path: Path) -> None:
    """1000 bfloat16 are 2000 bytes, times 4 ranks where count is a rank's part; a call has no duration.

    RCCL adds the accumulator, the task and the rank; calls are counted in hexadecimal: opCount e is no word.
    """
    line = call(name, 1000, dtype=9, ranks=4, number=14)
    rccl = line.replace(" count", " acc (nil) count") + " task 0 globalrank 0"
    frame = calls(tmp_path, line, rccl)
    assert "opCount e " in line
    expected = [(operation, 2000 * parts, "bfloat16", 4, "log")] * 2
    assert expected == values(frame, "operation", "bytes", "dtype", "ranks", "source")
    assert frame[["start_ns", "dur_ns", "algorithm", "protocol", "placement"]].isna().all(axis=None)


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


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        # Since 2.24 the size is what count says: of an all-gather of 8 ranks an eighth of the message.
        (
            [
                "AllReduce: 33554432 Bytes -> Algo NVLS proto SIMPLE channel{Lo..Hi}={0..31}",
                "AllGather: 1024 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0} cgaClusterSize 4",
            ],
            [("all_gather", 8192, 8, "ring", "LL"), ("all_reduce", 33554432, 8, "nvls", "Simple")],
        ),
        # From 2.20 on a choice is told by numbers, with a time that NCCL's model estimates and nobody measured.
        (
            ["67108864 Bytes -> Algo 1 proto 2 time 123.456", "AllGather: 4096 Bytes -> Algo 5 proto 1 time 9.5"],
            [(None, 67108864, 8, "ring", "Simple"), ("all_gather", 4096, 8, "nvls_tree", "LL128")],
        ),
        # Algorithms of versions to come are missing.
        (
            ["8 Bytes -> Algo 17 proto 9 time 1.0", "AllReduce: 4 Bytes -> Algo X proto Y time 1"],
            [(None, 8, 8, None, None), ("all_reduce", 4, 8, None, None)],
        ),
    ],
    ids=["since 2.24", "since 2.20", "unknown"],
)
def test_choices_tell_the_operation(texts: list[str], expected: list[tuple[Any, ...]], tmp_path: Path) -> None:
    """A choice has a size, an algorithm and a protocol, and no duration."""
    frame = calls(tmp_path, *init(0, 8), *map(said, texts))
    assert expected == values(frame, "operation", "bytes", "ranks", "algorithm", "protocol")
    assert frame["dur_ns"].isna().all()


def test_choices_are_given_to_calls(tmp_path: Path) -> None:
    """With both logged, calls are the rows: each has the choice for its operation and size, if there is only one."""
    choices = (
        "AllReduce: 8 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0}",
        "AllReduce: 4096 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}",
        "AllReduce: 4096 Bytes -> Algo TREE proto LL channel{Lo..Hi}={0..0}",
        "64 Bytes -> Algo 1 proto 0 time 5.0",
    )
    made = [call("AllReduce", 2), call("AllReduce", 2, rank=1), call("AllReduce", 1024), call("AllGather", 8, ranks=2)]
    frame = calls(tmp_path, *made, *map(said, choices))
    expected = {("all_reduce", 8, "tree"), ("all_reduce", 4096, None), ("all_gather", 64, "ring")}
    assert (4, expected) == (len(frame), set(values(frame, "operation", "bytes", "algorithm")))


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
