"""What is judged, and the sentence about what is outside: small runs with known times."""

import pandas as pd
from diagnosis.traces import MS, view
from frames import copies, kernels, ranges

import perfkit
from perfkit import diagnosis
from perfkit.diagnosis.finding import ONCE, Gain
from perfkit.diagnosis.outside import sentences
from perfkit.diagnosis.phases import selection, stops
from perfkit.diagnosis.repeating import phases
from perfkit.tables import KERNELS, RANGES


def looped(*, pause: int = 0, start_up: int = 0) -> perfkit.Selection:
    """Ten repetitions of three kernels, 1 ms each, every 4 ms; copies before and a pause in the middle, ms."""
    begun = [start_up + 4 * n + pause * (n >= 5) for n in range(10)]
    rows = [
        {"start_ns": (at + n) * MS, "dur_ns": MS, "name": "abc"[n]}
        for at in begun
        for n in range(3)
    ]
    first = [{"start_ns": 0, "dur_ns": start_up * MS // 2}] if start_up else []
    return view(kernels=kernels(*rows), copies=copies(*first))


def test_a_recording_of_a_loop_is_judged_whole() -> None:
    found = selection(looped())
    assert (found.window, sentences(found)) == (None, "")


def test_start_up_is_outside() -> None:
    found = selection(perfkit.select(looped(start_up=41).run))
    assert found.window == (41 * MS, 80 * MS)
    begun = "Start-up takes 41.0 of 80.0 ms, once per process."
    assert sentences(found) == f"{begun} Shares and gains are of the other 39.0 ms."


def test_a_pause_parts_what_is_judged() -> None:
    found = selection(perfkit.select(looped(pause=1000).run))
    paused = "One pause takes 96.3 % of the recording. It begins at 19.0 ms and lasts 1.00 s."
    assert sentences(found) == f"{paused} Shares and gains are of the other 38.0 ms."


def test_a_start_up_of_less_than_a_tenth_leaves_the_base_unsaid() -> None:
    found = selection(perfkit.select(looped(start_up=4).run))
    assert sentences(found) == "Start-up takes 4.00 of 43.0 ms, once per process."


def test_a_window_in_the_start_up_is_judged_itself() -> None:
    chosen = perfkit.select(looped(start_up=41).run, window=[MS, 5 * MS])
    found = selection(chosen)
    assert (found.window, sentences(found)) == ((MS, 5 * MS), "")


def test_a_window_cuts_the_phases_and_their_busy_time() -> None:
    chosen = perfkit.select(looped(start_up=41).run, window=[40 * MS, 45 * MS])
    rows = phases(chosen)[["phase", "start_ns", "dur_ns", "busy_ns"]]
    assert rows.to_numpy().tolist() == [
        ["start_up", 40 * MS, MS, 0],
        ["loop", 41 * MS, 4 * MS, 3 * MS],
    ]


def two_phases(prefill_ms: int) -> perfkit.Selection:
    """Work of one kind for a time, then ten repetitions of three other kernels, 1 ms each, every 4 ms."""
    first = [
        {"start_ns": at * MS, "dur_ns": MS, "name": f"prefill {at % 2}"} for at in range(prefill_ms)
    ]
    begun = [prefill_ms + 4 * n for n in range(10)]
    rows = [
        {"start_ns": (at + n) * MS, "dur_ns": MS, "name": "abc"[n]}
        for at in begun
        for n in range(3)
    ]
    steps = [
        {"start_ns": at * MS, "dur_ns": 4 * MS, "name": "step", "kind": "step"} for at in begun
    ]
    return perfkit.select(view(kernels=kernels(*first, *rows), ranges=ranges(*steps)).run)


def test_of_two_phases_the_longer_one_is_judged() -> None:
    chosen = selection(two_phases(20))
    assert chosen.window == (20 * MS, 59 * MS)


def test_the_phase_that_is_not_judged_is_told() -> None:
    outside = sentences(selection(two_phases(20)))
    assert "other kernels take 20.0 of 59.0 ms (prefill" in outside


def test_a_phase_before_the_loop_is_judged_if_it_takes_most_of_the_time() -> None:
    assert selection(two_phases(80)).window == (0, 80 * MS)


def two_rounds() -> perfkit.Selection:
    """Twice: 20 ms of prefill, then ten repetitions of 4 ms; in the second round eleven."""
    once = two_phases(20).run
    again = [
        table.assign(start_ns=table["start_ns"] + 60 * MS) for table in (once.kernels, once.ranges)
    ]
    last = once.kernels.tail(3), once.ranges.tail(1)
    more = [table.assign(start_ns=table["start_ns"] + 64 * MS) for table in last]
    both = [
        pd.concat(tables) for tables in zip((once.kernels, once.ranges), again, more, strict=True)
    ]
    return perfkit.select(view(kernels=KERNELS.make(both[0]), ranges=RANGES.make(both[1])).run)


def test_work_between_two_rounds_is_no_part_of_the_loop() -> None:
    rows = phases(two_rounds())[["kind", "start_ns", "dur_ns"]].astype(object)
    assert [0, 20 * MS, 60 * MS, 80 * MS] == rows["start_ns"].tolist()
    assert ["other kernels", None, "other kernels", None] == rows["kind"].where(
        rows["kind"].notna(), None
    ).tolist()


def test_of_two_rounds_the_longer_loop_is_judged() -> None:
    assert selection(two_rounds()).window == (80 * MS, 123 * MS)


def test_a_window_around_all_operations_chooses_nothing() -> None:
    chosen = perfkit.select(looped(start_up=41).run, window=[0, 80 * MS])
    assert selection(chosen).window == (41 * MS, 80 * MS)


def test_the_share_of_start_up_does_not_count_a_pause() -> None:
    """Start-up takes 41 of 80 ms, beside a pause of ten minutes."""
    assert selection(perfkit.select(looped(start_up=41, pause=600_000).run)).window is not None


def test_what_pauses_cost_is_their_length() -> None:
    """A pause of 1 s in 1,039 ms: the rest takes 38 ms."""
    found = diagnosis.findings(perfkit.select(looped(pause=1000).run))
    gain = {finding.rule: finding.gain for finding in found}["pauses"]
    assert abs(gain.high - 1039 / 38) < 0.01 * gain.high


def test_the_clock_of_a_replay_stands_still_in_a_pause() -> None:
    found = stops(perfkit.select(looped(pause=1000).run))
    assert (found.start.tolist(), found.end.tolist()) == ([19 * MS], [1020 * MS])


def test_ranks_pause_where_all_of_them_pause() -> None:
    one = looped(pause=1000).run
    later = one.kernels.assign(rank=1, start_ns=one.kernels["start_ns"] + 3 * MS).astype(
        {"rank": "int32"}
    )
    both = pd.concat([one.kernels, later], ignore_index=True)
    found = stops(perfkit.select(view(kernels=both).run))
    assert (found.start.tolist(), found.end.tolist()) == ([22 * MS], [1020 * MS])


def test_pauses_of_a_loop_come_again() -> None:
    found = diagnosis.findings(perfkit.select(two_pauses(loop=True)))
    assert {finding.rule: finding.gain.whole for finding in found}["pauses"] == Gain.whole


def test_a_pause_that_is_nearly_all_of_them_is_no_habit() -> None:
    found = diagnosis.findings(perfkit.select(two_pauses(loop=True, longest_ms=60_000)))
    assert {finding.rule: finding.gain.whole for finding in found}["pauses"] == ONCE


def test_pauses_without_a_loop_are_no_habit() -> None:
    found = diagnosis.findings(perfkit.select(two_pauses(loop=False)))
    assert {finding.rule: finding.gain.whole for finding in found}["pauses"] == ONCE


def two_pauses(*, loop: bool, longest_ms: int = 3000) -> perfkit.Run:
    """30 kernels of 1 ms, one every 2 ms, with pauses of 1 s and 3 s between them; alike in a loop."""
    begun = [2 * n + 1000 * (n >= 10) + longest_ms * (n >= 20) for n in range(30)]
    rows = [
        {"start_ns": at * MS, "dur_ns": MS, "name": "a" if loop else f"kernel {n}"}
        for n, at in enumerate(begun)
    ]
    return view(kernels=kernels(*rows)).run


def test_of_a_few_operations_without_a_loop_no_gap_is_a_pause() -> None:
    rows = [{"start_ns": at * MS, "dur_ns": MS, "name": name} for at, name in ((0, "a"), (90, "b"))]
    found = phases(view(kernels=kernels(*rows)))
    assert found[["phase", "dur_ns", "busy_ns"]].to_numpy().tolist() == [["whole", 91 * MS, 2 * MS]]


def two_ranks(*, late: int, more: int = 0, **tables: pd.DataFrame) -> perfkit.Selection:
    """Ten steps of 8 ms from 41 ms on; rank 1 begins each so many ms late, and rank 0 waits for it.

    Rank 0 does `more` steps after that.
    """
    rows = []
    for rank, steps in ((0, 10 + more), (1, 10)):
        for base in range(41, 41 + 8 * steps, 8):
            begun = base + late * rank
            rows += [(rank, begun + n, 1, "abc"[n]) for n in range(3)]
            rows += [(rank, begun + 3, base + 7 - begun - 3, "nccl")]
    names = ["rank", "start_ns", "dur_ns", "name"]
    every = [dict(zip(names, (r, s * MS, d * MS, n), strict=True)) for r, s, d, n in rows]
    families = {"nccl": "communication"}
    return view(
        kernels=kernels(*({**row, "family": families.get(row["name"], "other")} for row in every)),
        **tables,
    )


def test_a_rank_that_is_late_in_each_step_is_judged_from_where_the_others_begin() -> None:
    """Copies show that both ranks were recorded from 0 on: the late one is idle from 41 to 44 ms."""
    started = copies(*({"rank": rank, "start_ns": 0, "dur_ns": 20 * MS} for rank in (0, 1)))
    chosen = selection(perfkit.select(two_ranks(late=3, copies=started).run))
    assert chosen.window == (41 * MS, 120 * MS)


def test_each_rank_has_as_many_steps_in_what_is_judged() -> None:
    """Rank 1 is known from 44 ms on: rank 0 has 9 steps since, rank 1 has 10, the last from 116 ms on."""
    started = copies({"rank": 0, "start_ns": 0, "dur_ns": 20 * MS})
    chosen = selection(perfkit.select(two_ranks(late=3, copies=started).run))
    assert chosen.window == (44 * MS, 116 * MS)


def test_a_rank_that_stops_early_is_named() -> None:
    """Rank 1 ends at 120 ms; rank 0 goes on for five steps until 160 ms."""
    chosen = selection(perfkit.select(two_ranks(late=0, more=5).run))
    assert chosen.window == (41 * MS, 120 * MS)
    said = sentences(chosen)
    assert said.startswith("Rank 1 ends its loop at 120 ms already.")
    assert "Shares and gains are of the 79.0 ms" in said
