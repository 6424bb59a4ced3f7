"""NCCL Inspector: the transfer without its wait, and the rank that comes late."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from readers.inspector_files import job, line, process

import perfkit
from perfkit import diagnosis
from perfkit.diagnosis.headline import headline
from perfkit.errors import ReadError
from perfkit.logs import nccl_inspector
from perfkit.logs.nccl_inspector import charts
from perfkit.logs.nccl_inspector.transfers import transfers, waits, whole
from perfkit.logs.text import CUT

CASES = ("h100x8_steady", "h100x8_late_rank")
OPERATIONS = {
    "AllReduce": "all_reduce",
    "AllGather": "all_gather",
    "ReduceScatter": "reduce_scatter",
}


def real(profiles: Path, case: str) -> tuple[perfkit.Run, dict[str, Any]]:
    folder = profiles / "nccl_inspector" / case
    if not folder.exists():
        pytest.skip(f"PERFKIT_PROFILES has no nccl_inspector/{case}")
    truth = profiles / "golden" / "nccl_inspector" / f"{case}.truth.json"
    return perfkit.load(folder), json.loads(truth.read_text("utf-8"))


def verdict(run: perfkit.Run) -> str:
    view = perfkit.select(run)
    return headline(view, diagnosis.figures(view), diagnosis.findings(view)).verdict


@pytest.mark.parametrize("case", CASES)
def test_every_line_is_a_row(case: str, profiles: Path) -> None:
    run, truth = real(profiles, case)
    assert truth["records"] == len(run.inspected)


@pytest.mark.parametrize("case", CASES)
def test_transfers_and_bandwidths_are_those_of_the_truth(case: str, profiles: Path) -> None:
    run, truth = real(profiles, case)
    table = transfers(run.inspected).set_index(["operation", "bytes"])
    for group in truth["groups"]:
        row = table.loc[(OPERATIONS[group["coll"]], group["bytes_of_all_ranks"])]
        assert group["transfer_us_median_of_minimum_over_ranks"] == row["transfer_ns"] / 1000
        assert group["busbw_gbs_from_minimum"] == pytest.approx(
            row["bus_bytes_per_s"] / 1e9, abs=5e-4
        )
    assert len(truth["groups"]) == len(table)


def test_the_late_rank_is_named(profiles: Path) -> None:
    run, truth = real(profiles, "h100x8_late_rank")
    late = transfers(run.inspected).dropna(subset="late_member")
    assert [("all_reduce", 67_108_864, truth["late_rank"])] == [
        *zip(late["operation"], late["bytes"], late["late_member"], strict=True)
    ]
    assert verdict(run) == "Rank 5 comes 2.01 ms late to all_reduce of 67.1 MB."


def test_steady_ranks_have_no_late_one(profiles: Path) -> None:
    run, _ = real(profiles, "h100x8_steady")
    assert [] == diagnosis.findings(run)


@pytest.mark.parametrize(
    ("number", "operation", "size", "rate"),
    [(0, "all_reduce", 17_179_869_184, 277.210914), (1, "reduce_scatter", 2_097_152, 19.065018)],
)
def test_records_of_the_vendor(
    number: int, operation: str, size: int, rate: float, profiles: Path
) -> None:
    """The algorithm bandwidth counts the message of all ranks, in 10^9 bytes per second."""
    path = profiles / "nccl_inspector" / "vendor_examples.jsonl"
    if not path.exists():
        pytest.skip(f"PERFKIT_PROFILES has no {path.name}")
    rows = nccl_inspector.read(path).table("INSPECTED").sort_values("number", ascending=False)
    row = rows.iloc[number]
    assert (operation, size) == (row["operation"], row["bytes"])
    assert rate == pytest.approx(row["bytes"] / row["dur_ns"], abs=1e-5)


def test_the_transfer_is_the_shortest_time(tmp_path: Path) -> None:
    run = perfkit.load(job(tmp_path / "job", [300, 300, 300], [900, 900, 900]))
    (row,) = transfers(run.inspected).to_dict("records")
    assert (300_000, 600_000, 0) == (row["transfer_ns"], row["wait_ns"], row["late_member"])


def test_a_rank_that_is_late_waits_least(tmp_path: Path) -> None:
    run = perfkit.load(job(tmp_path / "job", [300, 300, 300], [900, 900, 900]))
    expected = [[0, 900_000, 0], [1, 900_000, 1_800_000]]
    assert expected == waits(run.inspected).to_numpy().tolist()


def test_the_picture_of_waiting_names_the_least_and_the_most(tmp_path: Path) -> None:
    run = perfkit.load(job(tmp_path / "job", [300], [900]))
    drawn = charts.waiting(waits(run.inspected)).to_dict()
    assert "Ranks wait 0 % to 66.7 % of their time" in str(drawn["title"])


def test_the_picture_of_bandwidth_is_of_transfers_without_the_wait(tmp_path: Path) -> None:
    run = perfkit.load(job(tmp_path / "job", [300], [900]))
    drawn = str(charts.bandwidth(transfers(run.inspected)).to_dict()["title"])
    assert "2 ranks, without the wait" in drawn
    assert "lower bounds" not in drawn


def test_one_collective_proves_no_late_rank(tmp_path: Path) -> None:
    run = perfkit.load(job(tmp_path / "job", [300], [900]))
    assert transfers(run.inspected)["late_member"].isna().all()


def test_a_collective_of_which_a_rank_is_missing_does_not_count(tmp_path: Path) -> None:
    run = perfkit.load(job(tmp_path / "job", [300, 300], [900]))
    assert [1, 1] == whole(run.inspected)["number"].tolist()


def test_a_time_of_the_cpu_does_not_count(tmp_path: Path) -> None:
    folder = job(tmp_path / "job", [300], [900], coll_timing_source="kernel_cpu")
    assert whole(perfkit.load(folder).inspected).empty


def test_a_packed_file_reads_like_the_plain_one(tmp_path: Path) -> None:
    plain = process(tmp_path / "a.log", [line(0, 1, 300)])
    packed = tmp_path / "b.log.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    tables = [nccl_inspector.read(path).table("INSPECTED") for path in (plain, packed)]
    assert tables[0].equals(tables[1])


def test_a_cut_last_line_is_left_out_with_a_note(tmp_path: Path) -> None:
    path = process(tmp_path / "a.log", [line(0, 1, 300), line(0, 2, 300)])
    path.write_bytes(path.read_bytes()[:-20])
    profile = nccl_inspector.read(path)
    assert 1 == len(profile.table("INSPECTED"))
    assert (CUT,) == profile.notes


@pytest.mark.parametrize(
    "change", [{"coll_msg_size_bytes": -1}, {"coll_exec_time_us": "x"}, {"coll_sn": None}]
)
def test_a_wrong_value_is_refused(change: dict[str, Any], tmp_path: Path) -> None:
    path = process(tmp_path / "a.log", [line(0, 1, 300, **change)])
    with pytest.raises(ReadError, match="line 1 holds a wrong value"):
        nccl_inspector.read(path)
