"""Real logs of nccl-tests and NCCL against their truth, which was made independently of this reader.

``golden/monitor/*.truth.json`` counts lines; where logs of several ranks run into each other it counts broken ones too.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import perfkit
from perfkit.analysis.communication import bandwidth
from perfkit.errors import ReadError
from perfkit.profile import Profile
from perfkit.readers import READERS, nccl, reader

ALCF = "nccl_tests__alcf_polaris_nccl_2_18_"
EVERY = ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "send_recv"]
# Each with its collectives, where the log does not name them: this follows from names of files, and from the rows.
TESTS = {
    f"{ALCF}n2.g4.2024-04-29-18-41-24_all_reduce_output.dat.1.txt": ["all_reduce"],
    f"{ALCF}n2.g4.2024-04-29-18-41-24_alltoall_output.dat.1.txt": ["all_to_all"],
    f"{ALCF}n8.g4.2023-10-13-14-07-13_all_reduce_output.dat.1.txt": ["all_reduce"],
    "nccl_tests__alcf_sirius_nccl_2_21_n2.g4.2024-04-29-21-10-30_all_reduce_output.dat.3.txt": ["all_reduce"],
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
FOREIGN = [VAE.replace("with_aws", "without_aws"), "superbench__cuda_memory_d2h_bw.log", "superbench__gpu_burn.log"]
FOREIGN += ["superbench__monitor.jsonl", FAILED]
# Size, and the last eight cells of a row, whatever stands before: time, algbw, busbw, #wrong, twice.
PRINTED = re.compile(
    r"^(?:\[1,0\]<stdout>:)? +(\d+) +\d+ +[a-z].*?" + r" +([\d.]+) +([\d.]+) +([\d.]+) +\S+" * 2 + r"\s*$"
)
SPELLING = {"alltoall": "all_to_all", "sendrecv": "send_recv"}

every_test = pytest.mark.parametrize("name", TESTS)
every_log = pytest.mark.parametrize("name", LOGS)


@cache
def read(path: Path) -> Profile:
    return nccl.read(path)


@pytest.fixture
def profile(name: str, profiles: Path) -> Profile:
    return read(profiles / "monitor" / name)


@pytest.fixture
def truth(name: str, profiles: Path) -> dict[str, Any]:
    told: dict[str, Any] = json.loads((profiles / "golden" / "monitor" / f"{name}.truth.json").read_text("utf-8"))
    return told


def by_table(profile: Profile, name: str) -> list[pd.DataFrame]:
    frame = profile.table("COLLECTIVES")
    return [frame[frame["operation"] == operation] for operation in TESTS[name]]


def printed(path: Path) -> pd.DataFrame:
    """Every row of a log by a regular expression of its own: bytes, times and bandwidths as printed."""
    found = [match.groups() for line in path.read_text().splitlines() if (match := PRINTED.match(line))]
    halves = [
        (row[0], *row[at : at + 3], place) for row in found for at, place in ((1, "out_of_place"), (4, "in_place"))
    ]
    return pd.DataFrame(halves, columns=["bytes", "time", "algbw", "busbw", "placement"]).astype({"bytes": "int64"})


def half_a_digit(cells: pd.Series) -> pd.Series:
    """Half of the last digit that was printed."""
    return 0.5 * 10.0 ** -cells.str.partition(".")[2].str.len()


@every_test
def test_tables_are_those_of_the_truth(profile: Profile, truth: dict[str, Any], name: str, profiles: Path) -> None:
    full = [told for told in truth["tables"] if told["rows"]]
    found = by_table(profile, name)
    assert [(2 * t["rows"], t["min_size"], t["max_size"]) for t in full] == [
        (len(rows), rows["bytes"].min(), rows["bytes"].max()) for rows in found
    ]
    frame = profile.table("COLLECTIVES")
    assert sum(map(len, found)) == len(frame)
    for told, collective in zip(full, TESTS[name], strict=True):
        plain = (told["collective"] or collective).removesuffix("_perf")
        assert SPELLING.get(plain, plain) == collective
    # Every table has its own list of devices: together they have as many lines as the truth counts.
    ranks = frame["ranks"]
    assert 1 == len(set(ranks.fillna(0)))
    assert truth["rank_lines"] == (0 if ranks.isna().all() else len(truth["tables"]) * int(ranks.iloc[0]))
    assert truth["version"] == [profile.capture["tool_version"].item()][: len(truth["version"])]
    notes = "\n".join(profile.notes)
    assert sorted(set(truth["reduced_max"])) == sorted(set(re.findall(r"sizes end below (\d+) bytes", notes)))
    assert {0} == {told.get("wrong", 0) for told in truth["tables"]}
    assert "corrupt" not in notes
    # Every time in us, moved by three digits, is the duration in ns; nothing is lost or made up.
    shown = printed(profiles / "monitor" / name)[["bytes", "placement", "time"]]
    expected = [(size, place, float(f"{time}e3")) for size, place, time in shown.itertuples(index=False, name=None)]
    assert sorted(expected) == sorted(zip(frame["bytes"], frame["placement"], frame["dur_ns"], strict=True))


@pytest.mark.parametrize("name", [name for name in TESTS if "aws" not in name])
def test_bus_bandwidths_are_as_printed(profile: Profile, truth: dict[str, Any], name: str, profiles: Path) -> None:
    """Bytes over time, times the factor of the collective, is the column busbw, as far as time and it were printed.

    Both are rounded: with time t +- dt and bandwidth b +- db, bytes * factor lies between (t - dt) (b - db) and
    (t + dt) (b + db). The best of each table is the truth's, to its two digits and the four or more of a time.
    """
    shown = printed(profiles / "monitor" / name)
    computed = bandwidth(pd.concat(by_table(profile, name), ignore_index=True))
    assert shown["bytes"].tolist() == computed["bytes"].tolist()
    assert shown["placement"].tolist() == computed["placement"].tolist()
    time, rate = shown["time"].astype(float), shown["busbw"].astype(float)
    moved = computed["bus_bytes_per_s"] * computed["dur_ns"] * 1e-9
    low = (time - half_a_digit(shown["time"])) * 1e-6 * (rate - half_a_digit(shown["busbw"])) * 1e9
    high = (time + half_a_digit(shown["time"])) * 1e-6 * (rate + half_a_digit(shown["busbw"])) * 1e9
    assert (moved >= low * (1 - 1e-12)).all()
    assert (moved <= high * (1 + 1e-12)).all()
    assert len(shown) == moved.notna().sum()
    full = [told for told in truth["tables"] if told["rows"]]
    for told, rows in zip(full, by_table(profile, name), strict=True):
        best = bandwidth(rows)["bus_bytes_per_s"].max() / 1e9
        assert told["best_busbw"] == pytest.approx(best, abs=0.005 + 5e-5 * best)


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
    profile = read(profiles / "monitor" / name)
    timed = bandwidth(profile.table("COLLECTIVES").query("source == 'benchmark'"))
    rates = timed["bus_bytes_per_s"] / 1e9
    assert (2 * rows, {ranks}) == (len(timed), set(timed["ranks"]))
    assert average == pytest.approx(rates.mean(), rel=5e-4)
    assert best == pytest.approx(rates.max(), rel=5e-4)
    assert f"{ranks} GPUs on " in profile.notes[0]
    assert not [note for note in profile.notes if "not whole" in note or "the run ended" in note]


def test_without_devices_there_is_no_bus_bandwidth(profiles: Path) -> None:
    rows = bandwidth(read(profiles / "monitor" / "nccl_tests_aws_p5_mpi_tagged.txt").table("COLLECTIVES"))
    assert rows["bus_bytes_per_s"].isna().all()
    assert rows["algorithm_bytes_per_s"].notna().all()


def test_other_logs_are_not_claimed(profiles: Path) -> None:
    for name in FOREIGN:
        path = profiles / "monitor" / name
        assert [] == [r for r in READERS if r in ("nccl", "deepspeed") and reader(r).sniff(path)], name
    found = r"no reader recognises this file \(72 bytes, starts with b'launch failed on'\)"  # a line of the launcher
    with pytest.raises(ReadError, match=found):
        perfkit.load(profiles / "monitor" / FAILED)


@pytest.mark.parametrize("name", [LOGS[0], VAE, RESNET])
def test_the_setup_is_that_of_the_truth(profile: Profile, truth: dict[str, Any], name: str) -> None:
    (ranks,), (nodes,), (local,), (network,) = (truth[key] for key in ("nranks", "nnodes", "local_ranks", "network"))
    version = [f"NCCL {version}; " for version in truth["version"]]  # if the excerpt has it
    expected = f"{''.join(version)}{ranks} ranks on {nodes} nodes ({local} per node); network {network}"
    assert expected == profile.notes[0]
    links = profile.table("LINKS")
    assert truth["ranks_seen"] == sorted({*links["from_rank"], *links["to_rank"]})


@every_log
def test_rings_and_trees_are_those_of_the_truth(profile: Profile, truth: dict[str, Any], name: str) -> None:
    """In a ring every rank sends once and receives once; in a tree every rank but one has one parent."""
    links = profile.table("LINKS")
    shown = links[links["kind"] != "tree"]
    assert truth["ring_channels"] == len(shown[["kind", "channel"]].drop_duplicates())  # ``NN/M`` after Channel
    assert (truth["tree_lines"] > 0) == (links["kind"] == "tree").any()
    for (kind, _), edges in links[links["kind"] != "connection"].groupby(["kind", "channel"], observed=True):
        assert edges["from_rank"].is_unique
        assert len({*edges["from_rank"], *edges["to_rank"]}) - (kind == "tree") == len(edges)


@pytest.mark.parametrize(("name", "peers", "ends", "broken"), [(LOGS[1], 0, 1, 0), (VAE, 0, 2, 2), (RESNET, 2, 2, 0)])
def test_connections_are_those_of_the_truth(
    profile: Profile, truth: dict[str, Any], peers: int, ends: int, broken: int, name: str
) -> None:
    """Peer to peer each connection is one line; of resnet's 55, two have lost the beginning to another line.

    Over the network both ends print a line (of one rank's log there is one); in VAE both of one are broken.
    All work with GPUDirect RDMA, so that there is no remark on them.
    """
    transport = profile.table("LINKS")["transport"].dropna()
    expected = sum(count for kind, count in truth["transports"].items() if re.fullmatch(r"P2P/CUMEM(/read)?", kind))
    assert expected - peers == transport.str.startswith("P2P/").sum()
    network = transport[transport.str.startswith("NET/")]
    assert truth["gdrdma_lines"] - broken == ends * len(network)
    assert network.str.contains("/GDRDMA").all()
    assert "GPUDirect" not in "\n".join(profile.notes)
    assert 0 == truth["shm_lines"] + truth["warnings"]


def test_what_ended_a_run_is_told(profiles: Path) -> None:
    stopped = read(profiles / "monitor" / "nccl_tests__cluster00_nccl_N2_G1_cnode2-002_cnode2-008.log").notes
    assert "sendrecv_perf: no rows: the run ended before its first result" in stopped  # the second of two tests
    notes = read(profiles / "monitor" / RESNET).notes  # PyTorch's watchdog ended the training
    assert any(note.startswith("the run failed: Watchdog caught collective operation timeout") for note in notes)
    assert any("OpType=ALLGATHER" in note for note in notes)
