"""Logs of NCCL_DEBUG=INFO: rings, trees, connections, calls, choices, and what they say about slow transports."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from readers import nccl_files as files
from readers.nccl_files import call, init, said

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
    ],
)
def test_every_version_names_the_transport(text: str, transport: str, tmp_path: Path) -> None:
    """From 2.4 to 2.30 a connection is told with its channel, both ranks and the transport."""
    links = read(tmp_path, said(text)).table("LINKS")
    assert [("connection", 0, 0, 1, transport)] == list(
        links[["kind", "channel", "from_rank", "to_rank", "transport"]].itertuples(index=False, name=None)
    )


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_connection_with_two_ends_is_one(order: tuple[int, int], tmp_path: Path) -> None:
    """The receiver prints it too: one row, with the sender's transport."""
    ends = (
        said("Channel 00/0 : 0[0] -> 1[0] [send] via NET/IB/2(4)/GDRDMA", 0),
        said("Channel 00/0 : 0[0] -> 1[0] [receive] via NET/IB/7/GDRDMA", 1, host="node1"),
    )
    assert ["NET/IB/2(4)/GDRDMA"] == read(tmp_path, *(ends[i] for i in order)).table("LINKS")["transport"].tolist()


def test_slow_transports_are_told(tmp_path: Path) -> None:
    """No GDRDMA, TCP and shared memory are remarks; what uses RDMA and peer to peer is none."""
    fast = [said(f"Channel 0{c}/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA") for c in (0, 1)]
    fast.append(said("Channel 00/0 : 2[2] -> 3[3] via P2P/CUMEM"))
    assert () == read(tmp_path, *fast).notes
    slow = [
        said("Channel 02/0 : 0[0] -> 1[0] [receive] via NET/IB/0"),
        said("Channel 03/0 : 0[0] -> 1[0] [send] via NET/Socket/1"),
        said("Channel 00/0 : 4[2] -> 5[3] via SHM/direct/direct"),
    ]
    without, tcp, shared = read(tmp_path, *fast, *slow).notes
    assert without.startswith("2 of 4 connections over the network work without GPUDirect RDMA")
    assert "1 of 4 connections over the network are TCP (Socket), not InfiniBand or RoCE" == tcp
    assert shared.startswith("1 connections between GPUs of a node go through host memory (SHM)")


def test_the_setup_is_one_note(tmp_path: Path) -> None:
    """Version, ranks, nodes, network and the paths between GPUs."""
    profile = read(
        tmp_path,
        "NCCL version 2.20.5+cuda12.4",
        *init(0, 8, 2),
        *init(1, 8, 2),
        said("Using network AWS Libfabric"),
        said("Pattern 4, crossNic 0, nChannels 12, bw 20.0/20.0, type NVL/PIX, sameChannels 1"),
        said("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"),
    )
    assert (
        "NCCL 2.20.5+cuda12.4; 8 ranks on 2 nodes (4 per node); network AWS Libfabric; "
        "paths NVL between GPUs and PIX to the network",
    ) == profile.notes
    assert "NCCL" == profile.capture["tool"].item()
    assert "2.20.5+cuda12.4" == profile.capture["tool_version"].item()


@pytest.mark.parametrize(
    "line", ["NCCL version 2.8.4+cuda11.1", said("NCCL version 2.27.5+cuda12.9"), said("RCCL version : 2.18.3")]
)
def test_the_version_may_have_a_prefix(line: str, tmp_path: Path) -> None:
    """The version is printed with and without a prefix."""
    profile = read(tmp_path, line, said("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"))
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
        said("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"),
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
        "{}",
        "[0] {}",
        "[1,0]<stdout>:{}",
        "[2025-01-31 12:00:00] {}",
        "(RayWorker pid=12, ip=10.0.0.1) {}",
        "\x1b[36m(train)\x1b[0m {}",
    ],
)
def test_lines_may_have_a_prefix(form: str, tmp_path: Path) -> None:
    """Launchers and NCCL_DEBUG_TIMESTAMP_FORMAT put text before a line."""
    line = form.format(said("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"))
    path = files.written(tmp_path / "train.log", [line])
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
    path = files.written(tmp_path / "train.log", [said("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"), "a\0b"])
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
    assert 1 == len(read(tmp_path, line, said("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM")).table("LINKS"))


def test_a_call_that_is_not_whole_is_counted(tmp_path: Path) -> None:
    """Two calls, of which one has a damaged communicator: one row, and a note that counts the other."""
    lines = [*init(0, 2), call("AllReduce", 8), call("AllReduce", 16).replace("comm 0x", "comm -5x")]
    profile = read(tmp_path, *lines)
    assert 1 == len(profile.table("COLLECTIVES"))
    assert "1 lines of NCCL that are not whole are left out" in profile.notes
