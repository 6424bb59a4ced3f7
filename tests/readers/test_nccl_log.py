"""Logs of NCCL_DEBUG=INFO: lines, links, calls and choices; real logs against their truth, made without this reader."""

import re
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from readers import nccl_files as files
from readers.nccl_files import call, init, said
from readers.nsys_files import values
from real import truth_of

import perfkit
from perfkit.analysis.communication import bandwidth
from perfkit.errors import ReadError
from perfkit.logs import nccl
from perfkit.profile import Profile
from perfkit.readers import reader


def read(path: Path, *lines: str) -> Profile:
    return nccl.read(files.written(path / "train.log", lines))


def calls(path: Path, *lines: str) -> pd.DataFrame:
    return read(path, *lines).table("COLLECTIVES")


PEERS = said("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM")
PATTERN = "Pattern 4, crossNic 0, nChannels 12, bw 20.0/20.0, type NVL/{}, sameChannels 1"


RING = {
    (1, 0, 1),
    (1, 1, 3),
    (1, 3, 2),
    (1, 2, 0),
}  # 0 1 3 2 are the connections 0-1, 1-3, 3-2 and, around, 2-0


def test_connections(tmp_path: Path) -> None:
    def edges(kind: str, *texts: str) -> set[tuple[int, ...]]:
        links = read(tmp_path, *map(said, texts)).table("LINKS").query(f"kind == {kind!r}")
        return {tuple(row) for row in values(links, "channel", "from_rank", "to_rank")}

    assert RING == edges("ring", "Channel 01/02 :    0   1   3   2")
    assert RING == edges(
        "ring", "Ring 01 : 2 -> 0 -> 1", "Ring 01 : 0 -> 1 -> 3", "Ring 01 : 3 -> 2 -> 0"
    )
    # Children, the rank and its parent; both ends print an edge, -1 is none.
    leaves = edges("tree", "Trees [0] 1/2/-1->0->-1 [1] -1/-1/-1->0->3", "Trees [0] -1/-1/-1->1->0")
    assert {(0, 1, 0), (0, 2, 0), (1, 0, 3)} == leaves
    assert {(0, 1, 0), (0, 0, 4)} == edges("tree", "Tree 0 : 4 -> 0 -> 1/-1/-1")
    # The receiver prints it too: one row.
    for received in ["NET/IB/7/GDRDMA", "NET/IB/7"]:
        sent = "NET/IB/2(4)/GDRDMA"
        receiver = said(f"Channel 00/0 : 0[0] -> 1[0] [receive] via {received}", 1, host="node1")
        ends = said(f"Channel 00/0 : 0[0] -> 1[0] [send] via {sent}", 0), receiver
        # By way of host memory, whatever the sender prints, if the receiver says so.
        expected = sent if "GDRDMA" in received else received
        for order in (ends, ends[::-1]):
            assert [expected] == values(read(tmp_path, *order).table("LINKS"), "transport")
    via = [PEERS, said("Channel 00/0 : 1[1] -> 2[0] [send] via NET/IB/0")]
    links = read(
        tmp_path, said(PATTERN.format("PHB")), *via, said("Channel 00/01 :    0   1   2")
    ).table("LINKS")
    assert ["NVL", "PHB"] == links.loc[links["kind"] == "connection", "path"].tolist()
    assert links.loc[links["kind"] == "ring", "path"].isna().all()
    assert read(tmp_path, *via).table("LINKS")["path"].isna().all()


@pytest.mark.parametrize(
    ("text", "transport"),
    [
        ("Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM/read", "P2P/CUMEM/read"),
        (
            "Channel 00 : 0[c7000] -> 1[87000] via P2P/direct pointer comm 0x7f1 nRanks 08",
            "P2P/direct pointer",
        ),
        (
            "Channel 00 : 0[1a000] -> 1[1c000] via P2P/indirect/2[5e000]/read",
            "P2P/indirect/2[5e000]/read",
        ),
        (
            "Channel 00/0 : 0[0] -> 1[0] [receive] via NET/AWS Libfabric/3/GDRDMA",
            "NET/AWS Libfabric/3/GDRDMA",
        ),
        ("Channel 00 : 0[0] -> 1[1] via SHM/direct/direct", "SHM/direct/direct"),
        ("Ring 00 : 0 -> 1 [send] via NET/Socket/0", "NET/Socket/0"),
    ],
)
def test_every_version_from_2_4_to_2_31_names_the_transport(
    text: str, transport: str, tmp_path: Path
) -> None:
    links = read(tmp_path, said(text)).table("LINKS")
    assert [["connection", 0, 0, 1, transport]] == values(
        links, "kind", "channel", "from_rank", "to_rank", "transport"
    )


FAST = [said(f"Channel 0{c}/0 : 0[0] -> 1[0] [send] via NET/IB/0/GDRDMA") for c in (0, 1)]
FAST.append(said("Channel 00/0 : 2[2] -> 3[3] via P2P/CUMEM"))
CUT = [
    said("Channel 00/0 : 0[0] -> 1[1] via P2P/CUM")
    + said("Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM"),
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
    # How the GPUs are connected is left to findings.
    assert () == read(tmp_path, *FAST).notes
    shared = said("Channel 00/0 : 4[2] -> 5[3] via SHM/direct/direct")
    assert () == read(tmp_path, *FAST, shared).notes
    setup = [
        "NCCL version 2.20.5+cuda12.4",
        *init(0, 8, 2),
        *init(1, 8, 2),
        said("Using network AWS Libfabric"),
    ]
    (note,) = read(tmp_path, *setup, said(PATTERN.format("PIX")), PEERS).notes
    told = "NCCL 2.20.5+cuda12.4; 8 ranks on 2 nodes (4 per node); network AWS Libfabric; "
    assert told + "paths NVL between GPUs and PIX to the network" == note
    # Each warning once, the first three of them, printable and not too long.
    texts = ["Call to connect failed"] * 2 + ["evil \x1b[31m red", "x" * 500, "fourth", "fifth"]
    warnings = [
        said(f"misc/socket.cc:42 NCCL WARN {text}").replace("NCCL INFO ", "") for text in texts
    ]
    shown = [
        f"NCCL warned: {text}"
        for text in ("Call to connect failed", "evil ?[31m red", f"{'x' * 197}...")
    ]
    assert (*shown, "and 2 more warnings of NCCL") == read(tmp_path, *warnings).notes
    # PyTorch's watchdog says which collective hung; names of hosts and processes before that are not quoted.
    hung = [PEERS, f"[rank3]:[E ProcessGroupNCCL.cpp:5] {HUNG}", "node9: rank 3 died from signal 6"]
    assert (f"the run failed: {HUNG}",) == read(tmp_path, *hung).notes
    profile = read(
        tmp_path, *CUT
    )  # what another line interrupts is not half read; the line that interrupts is whole
    assert [1, 3, 4] == values(profile.table("LINKS"), "channel")
    assert ("3 lines of NCCL that are not whole are left out",) == profile.notes
    profile = read(
        tmp_path, call("AllReduce", 8), call("AllReduce", 16).replace("comm 0x", "comm -5x")
    )
    assert [32] == values(profile.table("COLLECTIVES"), "bytes")
    assert ("1 lines of NCCL that are not whole are left out",) == profile.notes
    profile = read(tmp_path, call("AllReduce", 8), *NO_SIZE)
    assert [32] == values(profile.table("COLLECTIVES"), "bytes")
    assert ("3 calls or choices of unknown message size are left out",) == profile.notes
    for line in [
        "NCCL version 2.8.4+cuda11.1",
        said("NCCL version 2.27.5+cuda12.9"),
        said("RCCL version : 2.18.3"),
    ]:
        profile = read(tmp_path, line, PEERS)
        assert line.split("version")[1].strip(" :") == profile.capture["tool_version"].item()


def test_which_lines_are_read(tmp_path: Path) -> None:
    for form in [
        *("{}", "[0] {}", "[1,0]<stdout>:{}", "[2025-01-31 12:00:00] {}"),
        *("(RayWorker pid=12, ip=10.0.0.1) {}", "\x1b[36m(train)\x1b[0m {}"),
    ]:
        path = files.written(tmp_path / "train.log", [form.format(PEERS)])
        assert nccl.sniff(path)
        assert 1 == len(nccl.read(path).table("LINKS"))
        # Without a process, its thread and its GPU a line is not NCCL's.
        lines = [
            PEERS[PEERS.index("NCCL INFO") :],
            "grep 'NCCL WARN ' *.log",
            "NCCL version 2.20.5",
        ]
        assert not nccl.sniff(files.written(tmp_path / "other.log", lines))
    with pytest.raises(
        ReadError, match=r"train\.log: neither results .* NCCL_DEBUG_SUBSYS=INIT,GRAPH,COLL,TUNING"
    ):
        read(tmp_path, "NCCL version 2.20.5", said("cudaDriverVersion 12040"))
    with pytest.raises(ReadError, match=r"train\.log: binary data \(zero bytes\) in line 2"):
        read(tmp_path, PEERS, "a\0b")  # a crash of the node may leave it behind
    # A test that ran with NCCL_DEBUG=INFO has both, and its calls too.
    table = files.table()
    lines = [*table[:3], *init(0, 2), *table[3:17], call("AllReduce", 2, number=10), *table[17:]]
    profile = read(tmp_path, said("Channel 00/02 :    0   1"), *lines)
    assert {"COLLECTIVES", "LINKS", "DEVICES"} == set(profile.loaders)
    assert {"benchmark": 6, "log": 1} == profile.table("COLLECTIVES")[
        "source"
    ].value_counts().to_dict()
    assert "nccl-tests" == profile.capture["tool"].item()


@pytest.mark.parametrize(
    ("name", "operation", "parts"),
    [
        *(("AllReduce", "all_reduce", 1), ("Broadcast", "broadcast", 1), ("Reduce", "reduce", 1)),
        *(("Send", "send_recv", 1), ("Recv", "send_recv", 1), ("AllGather", "all_gather", 4)),
        *(("ReduceScatter", "reduce_scatter", 4), ("AlltoAll", "all_to_all", 4)),
        *(("Gather", "gather", 4), ("Scatter", "scatter", 4)),
    ],
)
def test_sizes_of_calls_are_those_of_nccl_tests(
    name: str, operation: str, parts: int, tmp_path: Path
) -> None:
    """1000 bfloat16 are 2000 bytes, times 4 ranks where count is a rank's part; a call has no duration.

    RCCL adds the accumulator, the task and the rank; calls are counted in hexadecimal: opCount e is no word.
    """
    line = call(name, 1000, dtype=9, ranks=4, number=14)
    frame = calls(
        tmp_path, line, line.replace(" count", " acc (nil) count") + " task 0 globalrank 0"
    )
    assert "opCount e " in line
    expected = [[operation, 2000 * parts, "bfloat16", 4, "log"]] * 2
    assert expected == values(frame, "operation", "bytes", "dtype", "ranks", "source")
    assert frame[["start_ns", "dur_ns", "algorithm", "protocol", "placement"]].isna().all(axis=None)


def test_ranks_are_those_of_the_largest_communicator_else_of_the_file_else_counted(
    tmp_path: Path,
) -> None:
    lines = [line for rank in (0, 1, 2) for line in init(rank, 3)]
    lines += [
        said(f"comm 0xbbb rank 0 nranks 1 cudaDev {rank} busId 0 - Init COMPLETE", rank)
        for rank in (0, 1, 2)
    ]
    lines += [call("AllReduce", 8, ranks=3, rank=rank) for rank in (2, 0, 1)]
    profile = read(tmp_path, *lines)
    assert ([0, 1, 2], None) == (values(profile.table("COLLECTIVES"), "rank"), profile.rank)
    # NCCL_DEBUG_FILE with %p makes a file per process: the run numbers them as the files say.
    (tmp_path / "run").mkdir()
    for rank, name in ((0, "b.log"), (1, "a.log")):
        files.written(
            tmp_path / "run" / name, [*init(rank, 2), call("AllReduce", 8 * (rank + 1), rank=rank)]
        )
    profile = nccl.read(tmp_path / "run" / "a.log")
    assert ([0], 1) == (values(profile.table("COLLECTIVES"), "rank"), profile.rank)
    assert {0: 32, 1: 64} == dict(
        values(perfkit.load(tmp_path / "run").collectives, "rank", "bytes")
    )
    # With NCCL_DEBUG_SUBSYS=COLL alone, processes are numbered in the order of their first calls.
    frame = calls(tmp_path, *(call("AllReduce", 8 + rank, rank=rank) for rank in (5, 3, 5)))
    assert [[0, 52], [0, 52], [1, 44]] == values(frame, "rank", "bytes")


LO_HI = "channel{Lo..Hi}={0..31}"


def test_choices_are_given_to_calls(tmp_path: Path) -> None:
    for text, expected in [
        # Since 2.24 the size is what count says: of an all-gather of 8 ranks an eighth of the message.
        (
            f"AllReduce: 33554432 Bytes -> Algo NVLS proto SIMPLE {LO_HI}",
            ["all_reduce", 33554432, 8, "nvls", "Simple"],
        ),
        (
            f"AllGather: 1024 Bytes -> Algo RING proto LL {LO_HI} cgaClus 4",
            ["all_gather", 8192, 8, "ring", "LL"],
        ),
        # From 2.20 on a choice is told by numbers, with a time that NCCL's model estimates and nobody measured.
        ("67108864 Bytes -> Algo 1 proto 2 time 123.456", [None, 67108864, 8, "ring", "Simple"]),
        (
            "AllGather: 4096 Bytes -> Algo 5 proto 1 time 9.5",
            ["all_gather", 4096, 8, "nvls_tree", "LL128"],
        ),
        (
            "8 Bytes -> Algo 17 proto 9 time 1.0",
            [None, 8, 8, None, None],
        ),  # an algorithm of versions to come
    ]:
        frame = calls(tmp_path, *init(0, 8), said(text))
        assert [expected] == values(frame, "operation", "bytes", "ranks", "algorithm", "protocol")
        assert frame["dur_ns"].isna().all()
    # A choice is that of calls of its operation and size, if there is only one.
    algorithms = ((8, "TREE"), (4096, "RING"), (4096, "TREE"))
    choices = [f"AllReduce: {n} Bytes -> Algo {a} proto LL {LO_HI}" for n, a in algorithms]
    made = [
        call("AllReduce", 2),
        call("AllReduce", 2, rank=1),
        call("AllReduce", 1024),
        call("AllGather", 8, ranks=2),
    ]
    frame = calls(tmp_path, *made, *map(said, [*choices, "64 Bytes -> Algo 1 proto 0 time 5.0"]))
    expected = [
        ["all_gather", 64, "ring"],
        *[["all_reduce", 8, "tree"]] * 2,
        ["all_reduce", 4096, None],
    ]
    assert sorted(expected, key=str) == sorted(
        values(frame, "operation", "bytes", "algorithm"), key=str
    )


ALCF = "nccl_tests__alcf_polaris_nccl_2_18_"
EVERY = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]
# Each with its collectives, where the log does not name them: this follows from names of files, and from the rows.
TESTS = {
    f"{ALCF}n2.g4.2024-04-29-18-41-24_all_reduce_output.dat.1.txt": ["all_reduce"],
    f"{ALCF}n2.g4.2024-04-29-18-41-24_alltoall_output.dat.1.txt": ["all_to_all"],
    f"{ALCF}n8.g4.2023-10-13-14-07-13_all_reduce_output.dat.1.txt": ["all_reduce"],
    "nccl_tests__alcf_sirius_nccl_2_21_n2.g4.2024-04-29-21-10-30_all_reduce_output.dat.3.txt": [
        "all_reduce"
    ],
    "nccl_tests__cluster00_nccl_N2_G1_cnode2-002_cnode2-008.log": ["all_to_all"],
    "nccl_tests__cluster00_nccl_N2_G4_cnode2-001_cnode2-002.log": ["all_to_all", "send_recv"],
    "nccl_tests__cluster01_nccl_N10_G4.log": EVERY,
    "nccl_tests__cluster01_nccl_N1_G8_cnode3-002.log": EVERY,
    "nccl_tests_aws_p5_mpi_tagged.txt": ["all_reduce"],
    "superbench__nccl_allreduce.log": ["all_reduce"],
    "superbench__nccl_alltoall.log": ["all_to_all"],
    "superbench__nccl_broadcast.log": ["broadcast"],
}
FAILED = f"{ALCF}n128.g4.2024-04-29-18-31-53_all_reduce_output.dat.2.txt"
VAE = "nccl_log__alcf_VAE_results_2025-01-15-16-06-14_with_aws.log"
RESNET = "nccl_log__alcf_resnet50_results_2025-06-26-13-13-06_with_aws.log"
LOGS = ["nccl_debug_info_gh200_issue1291.txt", "nccl_debug_info_h100_issue1453.txt", VAE, RESNET]
# Logs in which no reader is to find anything: a run without NCCL_DEBUG, other benchmarks, a launch that failed.
FOREIGN = [
    VAE.replace("with_aws", "without_aws"),
    "superbench__cuda_memory_d2h_bw.log",
    "superbench__gpu_burn.log",
]
FOREIGN += ["superbench__monitor.jsonl", FAILED]
# Size, and the times among the last eight cells of a row, whatever stands before: time, algbw, busbw, #wrong, twice.
PRINTED = re.compile(
    r"^(?:\[1,0\]<stdout>:)? +(\d+) +\d+ +[a-z].*?"
    + r" +([\d.]+) +[\d.]+ +[\d.]+ +\S+" * 2
    + r"\s*$"
)
SPELLING = {"alltoall": "all_to_all", "sendrecv": "send_recv"}

every_test = pytest.mark.parametrize("name", TESTS)
every_log = pytest.mark.parametrize("name", LOGS)


opened = cache(nccl.read)


@pytest.fixture
def profile(name: str, profiles: Path) -> Profile:
    return opened(profiles / "monitor" / name)


@pytest.fixture
def truth(name: str, profiles: Path) -> dict[str, Any]:
    return truth_of(profiles, "monitor", name)


def by_table(profile: Profile, name: str) -> list[pd.DataFrame]:
    frame = profile.table("COLLECTIVES")
    return [frame[frame["operation"] == operation] for operation in TESTS[name]]


def printed(path: Path) -> list[tuple[int, str, float]]:
    """Size, placement and duration in ns of each half of a row: its time in us, moved by three digits."""
    found = [
        match.groups() for line in path.read_text().splitlines() if (match := PRINTED.match(line))
    ]
    ends = (1, "out_of_place"), (2, "in_place")
    return [(int(row[0]), place, float(f"{row[at]}e3")) for row in found for at, place in ends]


@every_test
def test_tables_are_those_of_the_truth(
    profile: Profile, truth: dict[str, Any], name: str, profiles: Path
) -> None:
    full = [told for told in truth["tables"] if told["rows"]]
    found = by_table(profile, name)
    of_found = [(len(rows), rows["bytes"].min(), rows["bytes"].max()) for rows in found]
    assert [(2 * t["rows"], t["min_size"], t["max_size"]) for t in full] == of_found
    frame = profile.table("COLLECTIVES")
    assert sum(map(len, found)) == len(frame)
    for told, collective in zip(full, TESTS[name], strict=True):
        plain = (told["collective"] or collective).removesuffix("_perf")
        assert SPELLING.get(plain, plain) == collective
    # Every table has its own list of devices: together they have as many lines as the truth counts.
    ranks = frame["ranks"]
    assert 1 == len(set(ranks.fillna(0)))
    assert truth["rank_lines"] == (
        0 if ranks.isna().all() else len(truth["tables"]) * int(ranks.iloc[0])
    )
    assert truth["version"] == [profile.capture["tool_version"].item()][: len(truth["version"])]
    notes = "\n".join(profile.notes)
    assert sorted(set(truth["reduced_max"])) == sorted(
        set(re.findall(r"sizes end below (\d+) bytes", notes))
    )
    assert {0} == {told.get("wrong", 0) for told in truth["tables"]}
    assert "corrupt" not in notes
    # Nothing is lost or made up.
    expected = printed(profiles / "monitor" / name)
    assert sorted(expected) == sorted(
        zip(frame["bytes"], frame["placement"], frame["dur_ns"], strict=True)
    )


# Logs whose rows other text tears apart, or whose list of devices is not whole: ranks and rows counted by hand in the
# text, the average as the tool's own last line prints it, the best of the busbw columns.
TORN = {
    # Open MPI repeats its tag ``[1,0]<stdout>:`` before each half of a row.
    "KeitaW__p5-nccl-test__nccl-test-output-v2.22.3-1.log": (16, 32, 124.584, 488.14),
    # NCCL's calls stand between a row's start and its halves; its host's name runs into a number (``-1node0``).
    "Timez-zx__nccl-tests__nccl.log": (2, 11, 178.078, 216.61),
    "Timez-zx__nccl-tests__nccl-fault.log": (2, 11, 28.2632, 28.61),
    # Pasted into a page that took the first ``#`` of some lines: rank 0's line has none.
    "lessizzmore__create-a3mega__nccl_test_2node_h100.txt": (16, 31, 70.742, 338.82),
}


@pytest.mark.parametrize("name", TORN)
def test_torn_rows_give_the_average_that_the_tool_printed(name: str, profiles: Path) -> None:
    """The tool averages busbw over all halves of all rows: so do the rows as read, within the rounding of a time."""
    ranks, rows, average, best = TORN[name]
    profile = opened(profiles / "monitor" / name)
    timed = bandwidth(profile.table("COLLECTIVES").query("source == 'benchmark'"))
    rates = timed["bus_bytes_per_s"] / 1e9
    assert (2 * rows, {ranks}) == (len(timed), set(timed["ranks"]))
    assert average == pytest.approx(rates.mean(), rel=5e-4)
    assert best == pytest.approx(rates.max(), rel=5e-4)
    assert f"{ranks} GPUs on " in profile.notes[0]
    assert not [note for note in profile.notes if "not whole" in note or "the run ended" in note]


def test_logs_without_devices_and_other_logs(profiles: Path) -> None:
    rows = bandwidth(
        opened(profiles / "monitor" / "nccl_tests_aws_p5_mpi_tagged.txt").table("COLLECTIVES")
    )
    assert rows["bus_bytes_per_s"].isna().all()
    assert rows["algorithm_bytes_per_s"].notna().all()
    for name in FOREIGN:
        path = profiles / "monitor" / name
        assert [] == [r for r in ("nccl", "deepspeed") if reader(r).sniff(path)], name
    found = r"no reader recognises this file \(72 bytes, starts with b'launch failed on'\)"  # a line of the launcher
    with pytest.raises(ReadError, match=found):
        perfkit.load(profiles / "monitor" / FAILED)
    stopped = opened(
        profiles / "monitor" / "nccl_tests__cluster00_nccl_N2_G1_cnode2-002_cnode2-008.log"
    ).notes
    assert (
        "sendrecv_perf: no rows: the run ended before its first result" in stopped
    )  # the second of two tests
    notes = opened(profiles / "monitor" / RESNET).notes  # PyTorch's watchdog ended the training
    assert any(
        note.startswith("the run failed: Watchdog caught collective operation timeout")
        for note in notes
    )
    assert any("OpType=ALLGATHER" in note for note in notes)


@pytest.mark.parametrize("name", [LOGS[0], VAE, RESNET])
def test_the_setup_is_that_of_the_truth(profile: Profile, truth: dict[str, Any], name: str) -> None:
    (ranks,), (nodes,), (local,), (network,) = (
        truth[key] for key in ("nranks", "nnodes", "local_ranks", "network")
    )
    version = [f"NCCL {version}; " for version in truth["version"]]  # if the excerpt has it
    expected = (
        f"{''.join(version)}{ranks} ranks on {nodes} nodes ({local} per node); network {network}"
    )
    assert expected == profile.notes[0]
    links = profile.table("LINKS")
    assert truth["ranks_seen"] == sorted({*links["from_rank"], *links["to_rank"]})


@every_log
def test_rings_and_trees_are_those_of_the_truth(
    profile: Profile, truth: dict[str, Any], name: str
) -> None:
    """In a ring every rank sends once and receives once; in a tree every rank but one has one parent."""
    links = profile.table("LINKS")
    shown = links[links["kind"] != "tree"]
    assert truth["ring_channels"] == len(
        shown[["kind", "channel"]].drop_duplicates()
    )  # ``NN/M`` after Channel
    assert (truth["tree_lines"] > 0) == (links["kind"] == "tree").any()
    for (kind, _), edges in links[links["kind"] != "connection"].groupby(
        ["kind", "channel"], observed=True
    ):
        assert edges["from_rank"].is_unique
        assert len({*edges["from_rank"], *edges["to_rank"]}) - (kind == "tree") == len(edges)
