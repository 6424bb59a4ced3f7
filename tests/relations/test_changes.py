"""The changes of recordings, by numbers worked by hand: a change that changes nothing would let every relation hold."""

from pathlib import Path
from typing import Any

import frames
import numpy as np
import pandas as pd
import pytest
from relations import changes
from relations.clock import gaps, inserted, stretched
from relations.recordings import DoesNotApply, Recording, operations, taken

from perfkit.run import Run
from perfkit.tables import DEVICES, OPS

# Four kernels of 10 ns, each launched 5 ns before it starts, with 20 ns of idle time in between; one copy after them.
STARTS = (100, 130, 160, 190)


def run(**further: pd.DataFrame) -> Run:
    kernels = [{"start_ns": s, "dur_ns": 10, "correlation": i} for i, s in enumerate(STARTS)]
    calls = [{"start_ns": s - 5, "dur_ns": 3, "correlation": i} for i, s in enumerate(STARTS)]
    tables = {
        "KERNELS": frames.kernels(*kernels),
        "COPIES": frames.copies({"start_ns": 220, "dur_ns": 10, "stream": 8, "correlation": 4}),
        "API_CALLS": frames.api_calls(
            *calls, {"start_ns": 215, "dur_ns": 20, "name": "cudaMemcpy", "correlation": 4}
        ),
        "RANGES": frames.ranges({"start_ns": 90, "dur_ns": 55, "name": "one"}),
    }
    return Run([frames.profile(dur_ns=300, **{**tables, **further})])


@pytest.fixture
def recording() -> Recording:
    return taken(run())


def spans(recording: Recording, name: str) -> list[tuple[Any, ...]]:
    """Start and duration of the rows that the run made of a recording has."""
    return frames.tuples(recording.run().table(name), "start_ns", "dur_ns")


def test_an_unchanged_recording_makes_the_same_tables(recording: Recording) -> None:
    again = changes.unchanged(recording).run()
    for name in ("KERNELS", "COPIES", "API_CALLS", "RANGES"):
        pd.testing.assert_frame_equal(recording.origin.table(name), again.table(name))


def test_an_operation_is_launched_when_its_call_begins(recording: Recording) -> None:
    assert [95, 125, 155, 185, 215] == operations(recording)["launched_ns"].tolist()


def test_an_operation_without_a_call_is_launched_when_it_starts() -> None:
    alone = taken(run(API_CALLS=frames.api_calls()))
    assert [*STARTS, 220] == operations(alone)["launched_ns"].tolist()


@pytest.mark.parametrize(("which", "kept"), [("first", [130, 160, 190]), ("last", [100, 130, 160])])
def test_a_cut_drops_two_fifths_of_the_kernels_rounded_down(
    recording: Recording, which: str, kept: list[int]
) -> None:
    assert kept == changes.without_kernels(which)(recording).run().kernels["start_ns"].tolist()


def test_a_random_cut_drops_as_many() -> None:
    ten = frames.kernels(*({"start_ns": 10 * i, "dur_ns": 5} for i in range(10)))
    assert 6 == len(changes.without_kernels("random")(taken(run(KERNELS=ten))).run().kernels)


def test_a_cut_of_kernels_keeps_their_calls(recording: Recording) -> None:
    assert 5 == len(changes.without_kernels("first")(recording).run().api_calls)


@pytest.mark.parametrize("name", ["API_CALLS", "RANGES"])
def test_a_cut_of_a_table_leaves_no_row_of_it(recording: Recording, name: str) -> None:
    assert changes.without_table(name)(recording).run().table(name).empty


def test_a_table_without_rows_cannot_be_cut(recording: Recording) -> None:
    with pytest.raises(DoesNotApply, match="no rows of OPS"):
        changes.without_table("OPS")(recording)


def test_half_of_a_table_is_parted_at_the_median_of_its_starts(recording: Recording) -> None:
    every = recording.run().api_calls["start_ns"].tolist()
    halves = [changes.without_half("API_CALLS", which)(recording) for which in ("last", "first")]
    first, last = (half.run().api_calls["start_ns"].tolist() for half in halves)
    assert (3, 2) == (len(first), len(last))
    assert every == [*first, *last]


def test_a_cut_of_a_gpu_leaves_the_others_and_the_devices() -> None:
    kernels = frames.kernels(*({"start_ns": 100, "dur_ns": 10, "gpu": gpu} for gpu in (0, 1, 2)))
    cut = changes.without_gpu(taken(run(KERNELS=kernels, DEVICES=devices(3)))).run()
    assert [0, 1] == sorted(cut.kernels["gpu"])
    assert [0, 1, 2] == cut.devices["gpu"].tolist()


def devices(count: int) -> pd.DataFrame:
    about = {"rank": 0, "name": "GPU", "compute_capability": "9.0", "sm_count": 132}
    about |= {"memory_bytes": 1, "memory_bytes_per_s": 1.0, "clock_hz": 1.0}
    return DEVICES.make(pd.DataFrame([{**about, "gpu": gpu} for gpu in range(count)]))


def test_the_second_half_begins_in_the_middle_of_the_work(recording: Recording) -> None:
    cut = changes.without_second_half(recording)  # the GPU works from 100 to 230 ns
    assert [(100, 10), (130, 10), (160, 10)] == spans(cut, "KERNELS")
    assert [] == spans(cut, "COPIES")


def test_time_is_put_in_before_what_begins_at_a_place(recording: Recording) -> None:
    later = inserted(recording, np.array([130]), np.array([1000]))
    assert [(100, 10), (1130, 10), (1160, 10), (1190, 10)] == spans(later, "KERNELS")


def test_time_is_put_in_into_what_is_under_way(recording: Recording) -> None:
    later = inserted(recording, np.array([130]), np.array([1000]))
    assert [(90, 1055)] == spans(later, "RANGES")


def test_what_ends_where_time_is_put_in_stays_as_long_as_it_is(recording: Recording) -> None:
    later = inserted(recording, np.array([110]), np.array([1000]))
    assert (100, 10) == spans(later, "KERNELS")[0]


def test_the_recording_lasts_as_much_longer(recording: Recording) -> None:
    later = inserted(recording, np.array([130, 190]), np.array([1000, 500]))
    assert 1800 == later.run().capture["dur_ns"].item()


def test_an_operator_that_waits_longer_itself_has_more_time_of_its_own() -> None:
    row = {
        "rank": 0,
        "process": 1,
        "thread": 1,
        "name": "aten::mm",
        "sequence": -1,
        "shapes": None,
        "dtypes": None,
    }
    row |= {"strides": None, "concrete": None}
    outer = {**row, "op": 0, "parent": -1, "start_ns": 0, "dur_ns": 100, "self_ns": 60}
    inner = {**row, "op": 1, "parent": 0, "start_ns": 10, "dur_ns": 40, "self_ns": 40}
    ops = taken(run(OPS=OPS.make(pd.DataFrame([outer, inner]))))
    later = inserted(ops, np.array([20, 80]), np.array([7, 1000]))
    assert [(1107, 1060), (47, 47)] == frames.tuples(later.run().ops, "dur_ns", "self_ns")


def test_stretching_doubles_what_lies_in_a_span_and_moves_what_follows(
    recording: Recording,
) -> None:
    longer = stretched(recording, [(90, 120)])
    assert [(110, 20), (160, 10), (190, 10), (220, 10)] == spans(longer, "KERNELS")
    assert [(90, 85)] == spans(longer, "RANGES")


def test_a_longer_start_up_puts_the_length_of_the_work_after_the_first_operation(
    recording: Recording,
) -> None:
    later = changes.longer_start_up(recording)  # 130 ns of work, before the launch at 125 ns
    assert [(100, 10), (260, 10), (290, 10), (320, 10)] == spans(later, "KERNELS")
    assert (255, 3) == spans(later, "API_CALLS")[1]


def test_a_pause_of_ten_minutes_lies_in_the_shortest_gap_of_the_middle_half() -> None:
    """The GPU works from 100 to 230 ns; of the launches from 132 to 197 ns that at 155 ns ends a gap of 3 ns."""
    lasting = (10, 22, 10, 10)
    rows = [{"start_ns": s, "dur_ns": d} for s, d in zip(STARTS, lasting, strict=True)]
    work = frames.kernels(*({**row, "correlation": i} for i, row in enumerate(rows)))
    paused = changes.long_pause(taken(run(KERNELS=work)))
    assert [100, 130, 600 * 10**9 + 160, 600 * 10**9 + 190] == paused.run().kernels[
        "start_ns"
    ].tolist()


def test_there_is_no_pause_where_all_gaps_are_long(recording: Recording) -> None:
    with pytest.raises(DoesNotApply, match="long"):
        changes.long_pause(recording)


def test_a_start_up_is_not_put_into_the_only_step() -> None:
    step = taken(run(RANGES=frames.ranges({"start_ns": 0, "dur_ns": 299, "kind": "step"})))
    with pytest.raises(DoesNotApply, match="one step"):
        changes.longer_start_up(step)


def test_a_start_up_is_not_put_into_a_wait_for_the_gpu() -> None:
    calls = [{"start_ns": s - 5, "dur_ns": 3, "correlation": i} for i, s in enumerate(STARTS)]
    wait = {"start_ns": 112, "dur_ns": 30, "name": "cudaStreamSynchronize"}
    waiting = taken(run(API_CALLS=frames.api_calls(*calls, wait)))
    assert [155, 185, 220] == changes.unwaited(waiting)


def test_there_is_no_pause_where_the_gpu_always_has_work() -> None:
    calls = frames.api_calls(
        *({"start_ns": 50 + i, "dur_ns": 1, "correlation": i} for i in range(5))
    )
    with pytest.raises(DoesNotApply, match="all the time"):
        changes.long_pause(taken(run(API_CALLS=calls)))


def test_an_idle_tail_has_calls_after_all_others_and_no_work(recording: Recording) -> None:
    longer = changes.idle_tail(recording).run()  # 130 ns of work; the last call ends at 235 ns
    assert [235 + 13 * i for i in range(1, 11)] == longer.api_calls["start_ns"].tolist()[5:]
    assert 4 == len(longer.kernels)
    assert 430 == longer.capture["dur_ns"].item()


def test_the_loop_twice_doubles_the_kernels_a_period_later(recording: Recording) -> None:
    twice = changes.loop_twice(
        recording
    )  # from the range at 90 ns to the end of the last kernel at 200 ns
    assert [*STARTS, *(s + 110 for s in STARTS)] == twice.run().kernels["start_ns"].tolist()


def test_the_loop_twice_keeps_each_kernel_joined_to_a_launch_of_its_own(
    recording: Recording,
) -> None:
    twice = changes.loop_twice(recording)
    work = operations(twice)
    assert 9 == work["correlation"].nunique()
    assert [5] * 9 == (work["start_ns"] - work["launched_ns"]).tolist()


def test_the_loop_twice_repeats_a_step_that_began_before_its_first_launch(
    recording: Recording,
) -> None:
    assert [(90, 55), (200, 55)] == spans(changes.loop_twice(recording), "RANGES")


def test_the_loop_twice_repeats_a_step_of_the_profiler_around_it() -> None:
    step = taken(run(RANGES=frames.ranges({"start_ns": 0, "dur_ns": 299, "kind": "step"})))
    assert [(0, 299), (299, 299)] == spans(changes.loop_twice(step), "RANGES")


def test_the_loop_twice_does_not_repeat_what_ended_before_it() -> None:
    early = taken(run(RANGES=frames.ranges({"start_ns": 10, "dur_ns": 70})))
    assert [(10, 70)] == spans(changes.loop_twice(early), "RANGES")


def test_the_loop_twice_lengthens_a_range_around_it() -> None:
    around = taken(run(RANGES=frames.ranges({"start_ns": 0, "dur_ns": 299})))
    assert [(0, 404)] == spans(changes.loop_twice(around), "RANGES")


def test_the_second_half_of_marked_steps_is_the_loop() -> None:
    steps = [{"start_ns": s - 10, "dur_ns": 30, "kind": "step"} for s in STARTS]
    assert (150, 235) == changes.loop(taken(run(RANGES=frames.ranges(*steps))))


def test_a_loop_that_a_call_holds_together_with_a_copy_is_not_repeated() -> None:
    """The call waits from 96 to 240 ns; the copy takes 10 ns beside the 40 ns of the kernels."""
    calls = [{"start_ns": s - 5, "dur_ns": 3, "correlation": i} for i, s in enumerate(STARTS)]
    copying = {"start_ns": 96, "dur_ns": 144, "name": "cudaMemcpy", "correlation": 4}
    waiting = taken(run(API_CALLS=frames.api_calls(*calls, copying)))
    with pytest.raises(DoesNotApply, match="nothing parts the loop"):
        changes.loop(waiting)


def test_the_window_around_the_work_lasts_from_its_first_to_its_last_operation(
    recording: Recording,
) -> None:
    assert (100, 230) == changes.around_the_work(recording).window


def test_ranks_change_places() -> None:
    kernels = frames.kernels(
        *({"start_ns": 100 * (1 + r), "dur_ns": 10, "rank": r} for r in range(3))
    )
    other = changes.other_ranks(taken(run(KERNELS=kernels, COPIES=frames.copies()))).run()
    assert [(0, 300), (1, 200), (2, 100)] == frames.tuples(other.kernels, "rank", "start_ns")


def test_gpus_change_places_for_peer_copies_too() -> None:
    copies = frames.copies(
        {"start_ns": 220, "dur_ns": 10, "gpu": 1, "peer_gpu": 0, "direction": "P2P"}
    )
    other = changes.other_gpus(taken(run(COPIES=copies))).run()
    assert [(0, 1)] == frames.tuples(other.copies, "gpu", "peer_gpu")
    assert {1} == set(other.kernels["gpu"])


def test_streams_change_places(recording: Recording) -> None:
    other = changes.other_streams(recording).run()
    assert ({8}, {7}) == (set(other.kernels["stream"]), set(other.copies["stream"]))


def test_other_ids_keep_each_kernel_joined_to_its_launch(recording: Recording) -> None:
    other = changes.other_ids(recording)
    assert [95, 125, 155, 185, 215] == operations(other)["launched_ns"].tolist()
    assert 10_000_000 == other.run().kernels["correlation"].min()


def test_shuffling_changes_the_order_of_rows_of_one_time() -> None:
    equal = frames.kernels(*({"start_ns": 5, "dur_ns": 1, "correlation": i} for i in range(9)))
    other = changes.shuffled(taken(run(KERNELS=equal))).run().kernels["correlation"].tolist()
    assert list(range(9)) == sorted(other)
    assert list(range(9)) != other


def test_all_times_move_by_a_constant(recording: Recording) -> None:
    later = changes.moved_times(recording)
    assert [(1_000_000_007 + s, 10) for s in STARTS] == spans(later, "KERNELS")
    assert [(1_000_000_097, 55)] == spans(later, "RANGES")


def test_another_day_moves_the_wall_clock_alone(recording: Recording) -> None:
    other = changes.another_day(recording)
    assert 86_400 * 10**9 == other.run().capture["t0_unix_ns"].item()
    assert [(s, 10) for s in STARTS] == spans(other, "KERNELS")


def test_an_innocent_gpu_works_all_the_time_for_another_process(recording: Recording) -> None:
    kernels = changes.innocent_gpu(recording).run().kernels
    added = kernels[kernels["gpu"] == 1]
    assert [(2, 100, 130)] == frames.tuples(added, "process", "start_ns", "dur_ns")
    assert 4 == (kernels["gpu"] == 0).sum()


def test_the_kernel_of_an_innocent_gpu_has_a_call(recording: Recording) -> None:
    work = operations(changes.innocent_gpu(recording))
    assert 5000 == (work["start_ns"] - work["launched_ns"]).max()


def test_another_process_adds_ranges_and_no_work() -> None:
    long = frames.kernels({"start_ns": 0, "dur_ns": 2000})
    other = changes.other_process(taken(run(KERNELS=long))).run()
    added = other.ranges[other.ranges["process"] == 2]
    assert [10 * i for i in range(200)] == added["start_ns"].tolist()
    assert 1 == len(other.kernels)


def test_another_thread_of_the_process_adds_ranges_and_no_work(recording: Recording) -> None:
    added = changes.other_thread(recording).run().ranges.query("name == 'poll'")
    assert {(1, 2)} == set(frames.tuples(added, "process", "thread"))


def test_the_family_that_takes_longest_takes_twice_as_long_and_the_rest_moves() -> None:
    families = ("gemm", "other", "gemm", "communication")
    rows = [
        {"start_ns": s, "dur_ns": 10, "family": f} for s, f in zip(STARTS, families, strict=True)
    ]
    doubled = changes.family_doubled(taken(run(KERNELS=frames.kernels(*rows))))
    assert [(100, 20), (140, 10), (170, 20), (210, 10)] == spans(doubled, "KERNELS")


def test_a_family_whose_kernels_overlap_is_left_alone() -> None:
    kernels = frames.kernels(
        {"start_ns": 100, "dur_ns": 10}, {"start_ns": 105, "dur_ns": 10, "stream": 9}
    )
    with pytest.raises(DoesNotApply, match="overlap"):
        changes.family_doubled(taken(run(KERNELS=kernels)))


def test_twice_the_idle_time_leaves_the_operations_as_long_as_they_are(
    recording: Recording,
) -> None:
    doubled = changes.idle_doubled(recording)
    assert [20, 20, 20, 20] == [end - begin for begin, end in gaps(recording)]
    assert [40, 40, 40, 40] == [end - begin for begin, end in gaps(doubled)]
    assert {10} == set(doubled.run().kernels["dur_ns"])


def test_only_gaps_in_calls_of_memory_are_doubled() -> None:
    calls = frames.api_calls({"start_ns": 112, "dur_ns": 11, "name": "cudaMalloc"})
    doubled = changes.memory_gaps_doubled(taken(run(API_CALLS=calls)))
    assert [40, 20, 20, 20] == [end - begin for begin, end in gaps(doubled)]


@pytest.mark.parametrize("name", ["nsys/openhackathons-org__gpubootcamp__mpi_report1.sqlite"])
def test_a_real_loop_twice_keeps_all_kernels_joined_to_launches(profiles: Path, name: str) -> None:
    from relations.captures import recording as of_capture

    real = of_capture(name)
    before, after = operations(real), operations(changes.loop_twice(real))
    assert 2 * len(real.table("KERNELS")) == len(changes.loop_twice(real).table("KERNELS"))
    is_joined = [(work["launched_ns"] < work["start_ns"]).sum() for work in (before, after)]
    assert len(after) - len(before) == is_joined[1] - is_joined[0] > 0
