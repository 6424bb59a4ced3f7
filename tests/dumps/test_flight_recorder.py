"""Flight recorder: which collective hangs, which rank the others wait for, and how far each rank came."""

import json
from pathlib import Path
from typing import Any

import pytest
from dumps.dump_files import MS, as_json, dump, entry, job, pickled

import perfkit
from perfkit import diagnosis, report
from perfkit.diagnosis.finding import Finding
from perfkit.diagnosis.headline import headline
from perfkit.dumps import charts, flight_recorder, hang
from perfkit.errors import ReadError

CASES = ("gpu_error_1st", "gpu_error_2nd", "lock_gil_1st")


def real(profiles: Path, case: str) -> tuple[perfkit.Run, dict[str, Any]]:
    name = f"NVIDIA__nvidia-resiliency-ext__{case}"
    folder = profiles / "flight_recorder" / name
    if not folder.exists():
        pytest.skip(f"PERFKIT_PROFILES has no {name}")
    truth = profiles / "golden" / "flight_recorder" / f"{name}.truth.json"
    return perfkit.load(folder), json.loads(truth.read_text("utf-8"))


def stuck(run: perfkit.Run) -> list[hang.Stuck]:
    return hang.stuck(run.groups, run.enqueued)


def waits(run: perfkit.Run) -> dict[int, set[int]]:
    pairs = hang.pairs(run.groups, run.enqueued, stuck(run))
    return hang.waits(stuck(run), pairs)


def found(run: perfkit.Run) -> dict[str, Finding]:
    return {finding.rule: finding for finding in diagnosis.findings(run)}


def verdict(run: perfkit.Run) -> str:
    view = perfkit.select(run)
    return headline(view, diagnosis.figures(view), diagnosis.findings(view)).verdict


@pytest.mark.parametrize("case", CASES)
def test_groups_with_a_difference_are_those_of_the_truth(case: str, profiles: Path) -> None:
    run, truth = real(profiles, case)
    expected = {
        group["group"]: (group["number"], group["absent"], group["behind_in_completion"])
        for group in truth["groups_with_a_difference"]
    }
    told = {one.group: (one.number, [*one.absent], [*one.behind]) for one in stuck(run)}
    assert expected == told


@pytest.mark.parametrize("case", CASES)
def test_last_collectives_of_each_member_are_those_of_the_truth(case: str, profiles: Path) -> None:
    run, truth = real(profiles, case)
    expected = {
        group["group"]: group["last_enqueued"] for group in truth["groups_with_a_difference"]
    }
    told = {
        one.group: {str(rank): None if last < 0 else last for rank, last in one.last.items()}
        for one in stuck(run)
    }
    assert expected == told


@pytest.mark.parametrize("case", CASES)
def test_suspects_are_the_roots_of_the_truth(case: str, profiles: Path) -> None:
    run, truth = real(profiles, case)
    assert truth["roots_collectives"] == hang.suspects(hang.waits(stuck(run)))


@pytest.mark.parametrize("case", CASES)
def test_waits_with_sends_and_receives_hold_those_of_the_truth(case: str, profiles: Path) -> None:
    """The truth counts a partner only where it gave the rank neither a send nor a receive."""
    run, truth = real(profiles, case)
    targets = [target for waited in waits(run).values() for target in waited]
    for rank, count in truth["waited_for_collectives_and_p2p"].items():
        assert count <= targets.count(int(rank))


@pytest.mark.parametrize("case", CASES)
def test_suspects_with_sends_and_receives_are_the_roots_of_the_truth(
    case: str, profiles: Path
) -> None:
    run, truth = real(profiles, case)
    assert truth["roots_collectives_and_p2p"] == hang.suspects(waits(run))


@pytest.mark.parametrize(
    ("case", "ranks"),
    [("gpu_error_1st", [12, 14]), ("gpu_error_2nd", [9, 14]), ("lock_gil_1st", [])],
)
def test_ranks_behind_are_those_of_the_truth(case: str, ranks: list[int], profiles: Path) -> None:
    assert ranks == hang.behind(stuck(real(profiles, case)[0]))


@pytest.mark.parametrize("case", CASES)
def test_entries_of_each_rank_are_those_of_the_truth(case: str, profiles: Path) -> None:
    run, truth = real(profiles, case)
    table = hang.ranks(run.groups, run.enqueued)
    counts = {
        str(rank): count
        for rank, count in zip(table["rank"], table["operations_count"], strict=True)
    }
    assert truth["entries"] == counts


@pytest.mark.parametrize("case", CASES)
def test_silence_before_the_end_is_that_of_the_truth(case: str, profiles: Path) -> None:
    run, truth = real(profiles, case)
    table = hang.ranks(run.groups, run.enqueued).dropna(subset="silent_ns").set_index("rank")
    expected = {int(rank): ms for rank, ms in truth["last_entry_by_rank_ms_before_last"].items()}
    assert expected == pytest.approx((table["silent_ns"] / MS).to_dict(), abs=0.001)


@pytest.mark.parametrize("case", CASES)
def test_healthy_programs_have_no_mismatch(case: str, profiles: Path) -> None:
    assert [] == hang.mismatches(real(profiles, case)[0].enqueued)


@pytest.mark.parametrize(
    ("case", "begin"),
    [
        ("gpu_error_1st", "Rank 12 did not join"),
        ("gpu_error_2nd", "Ranks 9 and 14 did not join"),
        ("lock_gil_1st", "Ranks 9 and 14 did not join"),
    ],
)
def test_the_verdict_names_the_ranks_of_the_truth(case: str, begin: str, profiles: Path) -> None:
    assert verdict(real(profiles, case)[0]).startswith(begin)


def test_empty_dumps_are_told(profiles: Path) -> None:
    finding = found(real(profiles, "lock_gil_1st")[0])["hang_absent"]
    assert "Ranks 9 and 14 wrote a dump without an operation" in finding.explanation


def hanging(folder: Path) -> perfkit.Run:
    """Rank 1 of three did not call the third all-reduce."""
    calls = [entry(1), entry(2), entry(3)]
    return perfkit.load(job(folder / "job", calls, calls[:2], calls))


def test_an_absent_rank_is_named_with_the_last_line_that_it_reached(tmp_path: Path) -> None:
    finding = found(hanging(tmp_path))["hang_absent"]
    assert "Rank 1 did not join all_reduce 3 of group 0" in finding.title
    assert "/home/me/train.py:31" == finding.place


def test_the_waiting_ranks_are_named(tmp_path: Path) -> None:
    assert "in which ranks 0 and 2 wait" in found(hanging(tmp_path))["hang_absent"].title


def test_a_rank_without_a_dump_is_absent(tmp_path: Path) -> None:
    calls = [entry(1), entry(2)]
    folder = job(tmp_path / "job", calls, calls, calls)
    (folder / "_dump_2").unlink()
    finding = found(perfkit.load(folder))["hang_absent"]
    assert "Rank 2 wrote no dump" in finding.explanation


def test_an_older_collective_that_left_the_ring_was_joined(tmp_path: Path) -> None:
    folder = job(tmp_path / "job", [entry(1), entry(2)], [entry(1)])
    status = {"last_enqueued_collective": 2, "last_completed_collective": 0}
    pickled(folder / "_dump_1", dump([entry(1)], [0, 1], status))
    assert [] == hang.suspects(waits(perfkit.load(folder)))


def test_equal_dumps_have_no_finding(tmp_path: Path) -> None:
    calls = [entry(1), entry(2)]
    assert {} == found(perfkit.load(job(tmp_path / "job", calls, calls)))


@pytest.mark.parametrize(
    "changes",
    [
        {"profiling_name": "nccl:broadcast"},
        {"input_sizes": [[1024, 512]]},
        {"input_dtypes": ["Half"]},
    ],
)
def test_another_call_under_the_same_number_is_a_mismatch(
    changes: dict[str, Any], tmp_path: Path
) -> None:
    run = perfkit.load(job(tmp_path / "job", [entry(1), entry(2)], [entry(1), entry(2, **changes)]))
    (first,) = hang.mismatches(run.enqueued)
    assert (2, (0, 1)) == (first.number, first.ranks)


def test_the_verdict_of_a_mismatch_names_ranks_and_line(tmp_path: Path) -> None:
    other = entry(2, profiling_name="nccl:broadcast")
    run = perfkit.load(job(tmp_path / "job", [entry(1), entry(2)], [entry(1), other]))
    assert "Ranks 0 and 1 call different collectives as number 2" in verdict(run)
    assert "/home/me/train.py:31" in found(run)["hang_mismatch"].explanation


def mismatched(folder: Path, one: list[dict[str, Any]], two: list[dict[str, Any]]) -> Finding:
    return found(perfkit.load(job(folder / "job", one, two)))["hang_mismatch"]


@pytest.mark.parametrize(
    ("changes", "title", "advice"),
    [
        ({"profiling_name": "nccl:broadcast"}, "call different collectives as number 2", "branch"),
        (
            {"input_sizes": [[1024, 512]]},
            "pass inputs of different sizes to all_reduce 2",
            "batches",
        ),
        ({"input_dtypes": ["Half"]}, "pass different types to all_reduce 2", "autocast"),
    ],
)
def test_title_and_advice_of_a_mismatch_follow_what_differs(
    changes: dict[str, Any], title: str, advice: str, tmp_path: Path
) -> None:
    told = mismatched(tmp_path, [entry(1), entry(2)], [entry(1), entry(2, **changes)])
    assert f"Ranks 0 and 1 {title} of group 0" == told.title
    first, *_ = next(iter(told.advice.values()))
    assert advice in first


def test_two_calls_that_ranks_exchange_are_in_another_order(tmp_path: Path) -> None:
    """Rank 0 reduces 4 MB and then 2 MB, rank 1 the other way round."""
    small = {"input_sizes": [[1024, 512]]}
    orders = [entry(1), entry(2, **small)], [entry(1, **small), entry(2)]
    told = mismatched(tmp_path, *orders)
    assert "call all_reduce of group 0 in different orders, from number 1 on" in told.title
    assert "in one order" in str(told.advice)
    assert "same sizes" not in str(told.advice)


def test_a_ring_of_groups_is_no_matter_of_sends(tmp_path: Path) -> None:
    """Rank 0 waits in group 0 and rank 1 in group 1, and both are members of both."""
    folder = tmp_path / "job"
    folder.mkdir()
    config = {"desc": "", "ranks": "[0, 1]"}
    for rank in range(2):
        mine = entry(1, process_group=(str(rank), ""), pg_id=rank)
        made = dump([mine], [0, 1])
        made["pg_config"] = {name: {"name": name, **config} for name in ("0", "1")}
        made["pg_status"] = dict.fromkeys(("0", "1"), made["pg_status"]["0"])
        pickled(folder / f"_dump_{rank}", made)
    told = found(perfkit.load(folder))["hang_ring"]
    assert told.title.endswith("in a ring: they use their groups in different orders")
    assert "batch_isend_irecv" not in str(told.advice)


def test_sizes_of_an_all_to_all_may_differ(tmp_path: Path) -> None:
    calls = [entry(1, profiling_name="nccl:all_to_all", input_sizes=[[size]]) for size in (1, 2)]
    run = perfkit.load(job(tmp_path / "job", *([call] for call in calls)))
    assert [] == hang.mismatches(run.enqueued)


def test_a_send_is_no_collective(tmp_path: Path) -> None:
    send = entry(3, profiling_name="nccl:send 0->1", is_p2p=True)
    run = perfkit.load(job(tmp_path / "job", [entry(1), send], [entry(1)]))
    assert [] == stuck(run)


def half(number: int, operation: str, **changes: Any) -> dict[str, Any]:
    """A send or a receive of line `number`, such as "send 0->1"."""
    line = [{"name": "step", "filename": "/home/me/pipe.py", "line": number}]
    own = {"profiling_name": f"nccl:{operation}", "is_p2p": True, "p2p_seq_id": number}
    return entry(number, **{"frames": line, **own, **changes})


def test_a_rank_that_gives_no_receive_is_named_with_the_send_that_waits(tmp_path: Path) -> None:
    run = perfkit.load(job(tmp_path / "job", [half(1, "send 0->1")], [], [half(1, "send 2->0")]))
    told = found(run)["hang_absent"]
    assert told.title.startswith("Rank 1 did not join send 0->1 of group 0, in which rank 0 waits")


def test_the_root_of_a_chain_of_waits_is_the_suspect(tmp_path: Path) -> None:
    """Rank 0 waits for 1, which waits for 2, which gave nothing."""
    ranks = [half(1, "recv 0<-1")], [half(1, "recv 1<-2")], []
    run = perfkit.load(job(tmp_path / "job", *ranks))
    assert [2] == hang.suspects(waits(run))


@pytest.mark.parametrize("gives", ["absent", "late"])
def test_a_ring_of_waits_is_named_in_its_order(gives: str, tmp_path: Path) -> None:
    """Each rank receives from the next one; it gives the send to the one before never, or later."""
    ranks = []
    for rank in range(3):
        sends = [half(2, f"send {rank}->{(rank - 1) % 3}")] if gives == "late" else []
        ranks.append([half(1, f"recv {rank}<-{(rank + 1) % 3}"), *sends])
    told = found(perfkit.load(job(tmp_path / "job", *ranks)))["hang_ring"]
    assert "Ranks 0, 1 and 2 wait for each other in a ring" == told.title
    assert "Rank 2 waits for rank 0 in recv 2<-0 of group 0" in told.explanation
    assert "/home/me/pipe.py:1" == told.place


def test_every_role_of_a_rank_has_a_colour(tmp_path: Path) -> None:
    ring = [[half(1, f"recv {rank}<-{(rank + 1) % 3}")] for rank in range(3)]
    run = perfkit.load(job(tmp_path / "job", *ring))
    table = hang.ranks(run.groups, run.enqueued)
    assert {"ring"} == {*table["role"]} <= {*charts.ROLES}
    assert "waits in a ring" in str(charts.ranks(table).to_dict())


def test_sends_and_receives_that_were_given_together_have_no_order(tmp_path: Path) -> None:
    both = [
        [
            half(1, f"recv {rank}<-{1 - rank}", p2p_seq_id=1),
            half(2, f"send {rank}->{1 - rank}", p2p_seq_id=1),
        ]
        for rank in range(2)
    ]
    assert {} == waits(perfkit.load(job(tmp_path / "job", *both)))


@pytest.mark.parametrize(("records", "waiting"), [((1, 2), {0: {1}}), ((7, 8), {})])
def test_completed_halves_count_where_no_dump_lost_one(
    records: tuple[int, int], waiting: dict[int, set[int]], tmp_path: Path
) -> None:
    """Rank 0 received once and waits for a second send; a dump that lost operations tells nothing."""
    done = half(records[0], "recv 0<-1", state="completed")
    sent = half(records[0], "send 1->0", state="completed")
    run = perfkit.load(job(tmp_path / "job", [done, half(records[1], "recv 0<-1")], [sent]))
    assert waiting == waits(run)


def test_collectives_in_another_order_make_a_ring(tmp_path: Path) -> None:
    """Rank 0 is in group 0 and rank 1 in group 1, and each did not come to the other."""
    folder = job(tmp_path / "job", [], [])
    for rank in range(2):
        call = entry(1, process_group=(str(rank), "tp"), pg_id=rank)
        content = dump([call], [0, 1])
        content["pg_config"] = {
            str(group): {"name": str(group), "desc": "tp", "ranks": "[0, 1]"} for group in range(2)
        }
        pickled(folder / f"_dump_{rank}", content)
    told = found(perfkit.load(folder))["hang_ring"]
    assert "Rank 0 waits for rank 1 in all_reduce 1 of group 0 (tp)" in told.explanation


def test_json_reads_like_a_pickle(tmp_path: Path) -> None:
    content = dump([entry(1), entry(2)])
    one = flight_recorder.read(as_json(tmp_path / "dump_0.json", content))
    other = flight_recorder.read(pickled(tmp_path / "dump_0", content))
    assert one.table("ENQUEUED").equals(other.table("ENQUEUED"))


@pytest.mark.parametrize(
    ("name", "rank"), [("_dump_12", 12), ("nccl_trace_rank_3.json", 3), ("dump", None)]
)
def test_the_name_of_a_file_states_its_rank(name: str, rank: int | None, tmp_path: Path) -> None:
    assert rank == flight_recorder.read(pickled(tmp_path / name, dump([entry(1)]))).rank


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"collective_seq_id": "x"}, "wrong value"),
        ({"process_group": ("0",)}, "wrong value"),
        ({"input_sizes": [["x"]]}, "wrong value"),
        ({"time_created_ns": None}, "wrong value"),
    ],
)
def test_an_entry_with_a_wrong_value_is_refused(
    changes: dict[str, Any], what: str, tmp_path: Path
) -> None:
    with pytest.raises(ReadError, match=what):
        flight_recorder.read(pickled(tmp_path / "_dump_0", dump([entry(1, **changes)])))


def test_names_from_a_dump_are_escaped_in_a_report(tmp_path: Path) -> None:
    hostile = entry(2, profiling_name="nccl:<script>alert(1)</script>")
    run = perfkit.load(job(tmp_path / "job", [entry(1), hostile], [entry(1)]))
    html = report.key_findings([*found(run).values()], diagnosis.figures(run)).html
    assert "<script>alert" not in html
