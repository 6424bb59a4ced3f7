"""Logs of NCCL_DEBUG=INFO: lines, links, calls and choices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from readers import nccl_files as files
from readers.nccl_files import call, init, said
from readers.nsys_files import values

import perfkit
from perfkit.errors import ReadError
from perfkit.profile import Profile
from perfkit.readers import nccl


def read(path: Path, *lines: str) -> Profile:
    return nccl.read(files.written(path / "train.log", lines))


def calls(path: Path, *lines: str) -> pd.DataFrame:
    return read(path, *lines).table("COLLECTIVES")


PEERS = said("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM")
PATTERN = "Pattern 4, crossNic 0, nChannels 12, bw 20.0/20.0, type NVL/{}, sameChannels 1"


RING = {(1, 0, 1), (1, 1, 3), (1, 3, 2), (1, 2, 0)}  # 0 1 3 2 are the connections 0-1, 1-3, 3-2 and, around, 2-0


def test_rings_and_trees(tmp_path: Path) -> None:
    def edges(kind: str, *texts: str) -> set[tuple[int, ...]]:
        links = read(tmp_path, *map(said, texts)).table("LINKS").query(f"kind == {kind!r}")
        return {tuple(row) for row in values(links, "channel", "from_rank", "to_rank")}

    assert RING == edges("ring", "Channel 01/02 :    0   1   3   2")
    assert RING == edges("ring", "Ring 01 : 2 -> 0 -> 1", "Ring 01 : 0 -> 1 -> 3", "Ring 01 : 3 -> 2 -> 0")
    # Children, the rank and its parent; both ends print an edge, -1 is none.
    leaves = edges("tree", "Trees [0] 1/2/-1->0->-1 [1] -1/-1/-1->0->3", "Trees [0] -1/-1/-1->1->0")
    assert {(0, 1, 0), (0, 2, 0), (1, 0, 3)} == leaves
    assert {(0, 1, 0), (0, 0, 4)} == edges("tree", "Tree 0 : 4 -> 0 -> 1/-1/-1")


@pytest.mark.parametrize(
    ("text", "transport"),
    [
        *((f"Channel 00/{i} : 0[0] -> 1[1] via {via}", via) for i, via in enumerate(("P2P/CUMEM", "P2P/CUMEM/read"))),
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
def test_every_version_from_2_4_to_2_31_names_the_transport(text: str, transport: str, tmp_path: Path) -> None:
    links = read(tmp_path, said(text)).table("LINKS")
    assert [["connection", 0, 0, 1, transport]] == values(links, "kind", "channel", "from_rank", "to_rank", "transport")


@pytest.mark.parametrize("received", ["NET/IB/7/GDRDMA", "NET/IB/7"])
def test_a_connection_with_two_ends_is_one(received: str, tmp_path: Path) -> None:
    sent = "NET/IB/2(4)/GDRDMA"
    ends = (
        said(f"Channel 00/0 : 0[0] -> 1[0] [send] via {sent}", 0),
        said(f"Channel 00/0 : 0[0] -> 1[0] [receive] via {received}", 1, host="node1"),
    )
    # By way of host memory, whatever the sender prints, if the receiver says so.
    expected = sent if "GDRDMA" in received else received
    for order in (ends, ends[::-1]):
        assert [expected] == values(read(tmp_path, *order).table("LINKS"), "transport")


def test_a_connection_has_the_path_that_nccl_found(tmp_path: Path) -> None:
    via = [PEERS, said("Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0")]
    links = read(tmp_path, said(PATTERN.format("PHB")), *via, said("Channel 00/01 :    0   1   2")).table("LINKS")
    assert ["NVL", "PHB"] == links.loc[links["kind"] == "connection", "path"].tolist()
    assert links.loc[links["kind"] == "ring", "path"].isna().all()
    assert read(tmp_path, *via).table("LINKS")["path"].isna().all()


FAST = [said(f"Channel 0{c}/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA") for c in (0, 1)]
FAST.append(said("Channel 00/0 : 2[2] -> 3[3] via P2P/CUMEM"))
CUT = [
    said("Channel 00/0 : 0[0] -> 1[1] via P2P/CUM") + said("Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM"),
    "EM",
    said("Channel 02/0 : 0[0] -> 1[1] [senepoch 1: loss 3"),
    said("Channel 00/04 :    0   1   1   3"),
    "epoch 1: 50%|####" + said("Channel 03/0 : 0[0] -> 1[1] via P2P/CUMEM"),
    "epoch 1: 99%|####\r" + said("Channel 04/0 : 0[0] -> 1[1] via P2P/CUMEM"),
]


HUNG = "Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)"
NO_SIZE = [  # an element type to come, more bytes than there are, a part of an unknown number of ranks
    *(call("AllReduce", 8, dtype=99), call("AllReduce", 10**19)),
    said("AllGather: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}"),
]


def test_notes(tmp_path: Path) -> None:
    # Shared memory is a remark; peer to peer is none, and the network is left to a finding.
    assert () == read(tmp_path, *FAST).notes
    (shared,) = read(tmp_path, *FAST, said("Channel 00/0 : 4[2] -> 5[3] via SHM/direct/direct")).notes
    assert shared.startswith("1 connections between GPUs of a node go through host memory (SHM)")
    setup = ["NCCL version 2.20.5+cuda12.4", *init(0, 8, 2), *init(1, 8, 2), said("Using network AWS Libfabric")]
    (note,) = read(tmp_path, *setup, said(PATTERN.format("PIX")), PEERS).notes
    told = "NCCL 2.20.5+cuda12.4; 8 ranks on 2 nodes (4 per node); network AWS Libfabric; "
    assert told + "paths NVL between GPUs and PIX to the network" == note
    # Each warning once, the first three of them, printable and not too long.
    texts = ["Call to connect failed"] * 2 + ["evil \x1b[31m red", "x" * 500, "fourth", "fifth"]
    warnings = [said(f"misc/socket.cc:42 NCCL WARN {text}").replace("NCCL INFO ", "") for text in texts]
    shown = [f"NCCL warned: {text}" for text in ("Call to connect failed", "evil ?[31m red", f"{'x' * 197}...")]
    assert (*shown, "and 2 more warnings of NCCL") == read(tmp_path, *warnings).notes
    # PyTorch's watchdog says which collective hung; names of hosts and processes before that are not quoted.
    hung = [PEERS, f"[rank3]:[E ProcessGroupNCCL.cpp:5] {HUNG}", "node9: rank 3 died from signal 6"]
    assert (f"the run failed: {HUNG}",) == read(tmp_path, *hung).notes


def test_what_is_not_whole_or_has_no_size_is_left_out_and_counted(tmp_path: Path) -> None:
    profile = read(tmp_path, *CUT)  # what another line interrupts is not half read; the line that interrupts is whole
    assert [1, 3, 4] == values(profile.table("LINKS"), "channel")
    assert ("3 lines of NCCL that are not whole are left out",) == profile.notes
    profile = read(tmp_path, call("AllReduce", 8), call("AllReduce", 16).replace("comm 0x", "comm -5x"))
    assert [32] == values(profile.table("COLLECTIVES"), "bytes")
    assert ("1 lines of NCCL that are not whole are left out",) == profile.notes
    profile = read(tmp_path, call("AllReduce", 8), *NO_SIZE)
    assert [32] == values(profile.table("COLLECTIVES"), "bytes")
    assert ("3 calls or choices of unknown message size are left out",) == profile.notes


@pytest.mark.parametrize(
    "line", ["NCCL version 2.8.4+cuda11.1", said("NCCL version 2.27.5+cuda12.9"), said("RCCL version : 2.18.3")]
)
def test_the_version_may_have_a_prefix(line: str, tmp_path: Path) -> None:
    profile = read(tmp_path, line, PEERS)
    assert line.split("version")[1].strip(" :") == profile.capture["tool_version"].item()


@pytest.mark.parametrize(
    "form",  # launchers and NCCL_DEBUG_TIMESTAMP_FORMAT put text before a line
    [
        *("{}", "[0] {}", "[1,0]<stdout>:{}", "[2025-01-31 12:00:00] {}"),
        *("(RayWorker pid=12, ip=10.0.0.1) {}", "\x1b[36m(train)\x1b[0m {}"),
    ],
)
def test_lines_may_have_a_prefix(form: str, tmp_path: Path) -> None:
    path = files.written(tmp_path / "train.log", [form.format(PEERS)])
    assert nccl.sniff(path)
    assert 1 == len(nccl.read(path).table("LINKS"))
    # Without a process, its thread and its GPU a line is not NCCL's.
    lines = ["NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM", "grep 'NCCL WARN ' *.log", "NCCL version 2.20.5"]
    assert not nccl.sniff(files.written(tmp_path / "other.log", lines))


def test_what_says_nothing_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ReadError, match=r"train\.log: neither results .* NCCL_DEBUG_SUBSYS=INIT,GRAPH,COLL,TUNING"):
        read(tmp_path, "NCCL version 2.20.5", said("cudaDriverVersion 12040"))
    with pytest.raises(ReadError, match=r"train\.log: binary data \(zero bytes\) in line 2"):
        read(tmp_path, PEERS, "a\0b")  # a crash of the node may leave it behind


def test_one_file_gives_tables_and_links(tmp_path: Path) -> None:
    table = files.table()
    lines = [*table[:3], *init(0, 2), *table[3:17], call("AllReduce", 2, number=10), *table[17:]]
    profile = read(tmp_path, said("Channel 00/02 :    0   1"), *lines)
    assert {"COLLECTIVES", "LINKS", "DEVICES"} == set(profile.loaders)
    assert {"benchmark": 6, "log": 1} == profile.table("COLLECTIVES")["source"].value_counts().to_dict()
    assert "nccl-tests" == profile.capture["tool"].item()


def test_long_words_take_no_time(tmp_path: Path) -> None:
    line = "a" * 10**6 + " NCCL INFO " + "1:" * 10**5 + " [0] NCCL INFO x"  # a process is looked for within bounds
    assert 1 == len(read(tmp_path, line, PEERS).table("LINKS"))


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
    frame = calls(tmp_path, line, line.replace(" count", " acc (nil) count") + " task 0 globalrank 0")
    assert "opCount e " in line
    expected = [[operation, 2000 * parts, "bfloat16", 4, "log"]] * 2
    assert expected == values(frame, "operation", "bytes", "dtype", "ranks", "source")
    assert frame[["start_ns", "dur_ns", "algorithm", "protocol", "placement"]].isna().all(axis=None)


def test_ranks_are_those_of_the_largest_communicator_else_of_the_file_else_counted(tmp_path: Path) -> None:
    lines = [line for rank in (0, 1, 2) for line in init(rank, 3)]
    lines += [said(f"comm 0xbbb rank 0 nranks 1 cudaDev {rank} busId 0 - Init COMPLETE", rank) for rank in (0, 1, 2)]
    lines += [call("AllReduce", 8, ranks=3, rank=rank) for rank in (2, 0, 1)]
    profile = read(tmp_path, *lines)
    assert ([0, 1, 2], None) == (values(profile.table("COLLECTIVES"), "rank"), profile.rank)
    # NCCL_DEBUG_FILE with %p makes a file per process: the run numbers them as the files say.
    (tmp_path / "run").mkdir()
    for rank, name in ((0, "b.log"), (1, "a.log")):
        files.written(tmp_path / "run" / name, [*init(rank, 2), call("AllReduce", 8 * (rank + 1), rank=rank)])
    profile = nccl.read(tmp_path / "run" / "a.log")
    assert ([0], 1) == (values(profile.table("COLLECTIVES"), "rank"), profile.rank)
    assert {0: 32, 1: 64} == dict(values(perfkit.load(tmp_path / "run").collectives, "rank", "bytes"))
    # With NCCL_DEBUG_SUBSYS=COLL alone, processes are numbered in the order of their first calls.
    frame = calls(tmp_path, *(call("AllReduce", 8 + rank, rank=rank) for rank in (5, 3, 5)))
    assert [[0, 52], [0, 52], [1, 44]] == values(frame, "rank", "bytes")


CHANNELS = "channel{Lo..Hi}={0..31}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        # Since 2.24 the size is what count says: of an all-gather of 8 ranks an eighth of the message.
        (
            f"AllReduce: 33554432 Bytes -> Algo NVLS proto SIMPLE {CHANNELS}",
            ["all_reduce", 33554432, 8, "nvls", "Simple"],
        ),
        (f"AllGather: 1024 Bytes -> Algo RING proto LL {CHANNELS} cgaClus 4", ["all_gather", 8192, 8, "ring", "LL"]),
        # From 2.20 on a choice is told by numbers, with a time that NCCL's model estimates and nobody measured.
        ("67108864 Bytes -> Algo 1 proto 2 time 123.456", [None, 67108864, 8, "ring", "Simple"]),
        ("AllGather: 4096 Bytes -> Algo 5 proto 1 time 9.5", ["all_gather", 4096, 8, "nvls_tree", "LL128"]),
        # Algorithms of versions to come are missing.
        ("8 Bytes -> Algo 17 proto 9 time 1.0", [None, 8, 8, None, None]),
        ("AllReduce: 4 Bytes -> Algo X proto Y time 1", ["all_reduce", 4, 8, None, None]),
    ],
)
def test_choices_tell_the_operation(text: str, expected: list[Any], tmp_path: Path) -> None:
    frame = calls(tmp_path, *init(0, 8), said(text))
    assert [expected] == values(frame, "operation", "bytes", "ranks", "algorithm", "protocol")
    assert frame["dur_ns"].isna().all()


def test_choices_are_given_to_calls_of_their_operation_and_size_if_there_is_only_one(tmp_path: Path) -> None:
    algorithms = ((8, "TREE"), (4096, "RING"), (4096, "TREE"))
    choices = [f"AllReduce: {n} Bytes -> Algo {a} proto LL {CHANNELS}" for n, a in algorithms]
    made = [call("AllReduce", 2), call("AllReduce", 2, rank=1), call("AllReduce", 1024), call("AllGather", 8, ranks=2)]
    frame = calls(tmp_path, *made, *map(said, [*choices, "64 Bytes -> Algo 1 proto 0 time 5.0"]))
    expected = [["all_gather", 64, "ring"], *[["all_reduce", 8, "tree"]] * 2, ["all_reduce", 4096, None]]
    assert sorted(expected, key=str) == sorted(values(frame, "operation", "bytes", "algorithm"), key=str)
