"""Who owns idle time, worked by hand: a thread launches at 100 us of a gap that begins at 0."""

from typing import Any

import pandas as pd
import pytest
from analysis.spans import span, us
from frames import api_calls, kernels, lasting, os_calls, python_calls, ranges

from perfkit.analysis.gaps import idle_gaps
from perfkit.analysis.owners import OWNED, elsewhere, in_words, owned, summary
from perfkit.analysis.stacks import functions
from perfkit.errors import SchemaError
from perfkit.tables import (
    API_CALLS,
    COPIES,
    FRAMES,
    KERNELS,
    OVERHEAD,
    SCHEDULE,
    STACKS,
)

US = 1_000
THREAD = {"rank": 0, "process": 1, "thread": 1}
SYSTEM = "/usr/lib/libc.so.6"


def stacks(*rows: dict[str, Any]) -> pd.DataFrame:
    """STACKS of the launching thread; samples unless said otherwise."""
    given = [{**THREAD, "dur_ns": 0, "kind": "sample", "cpu": 0, **row} for row in rows]
    return STACKS.make(pd.DataFrame(given, columns=STACKS.column_names))


def samples(stack: int, *times_us: float, **more: Any) -> list[dict[str, Any]]:
    return [{"start_ns": int(time * US), "stack": stack, **more} for time in times_us]


def frames(**stacks: list[str]) -> pd.DataFrame:
    """FRAMES of the stacks _0, _1, ...: functions as "module:name", innermost first; "?" has no name."""
    rows = []
    for stack, chain in stacks.items():
        for depth, text in enumerate(chain):
            module, _, name = text.rpartition("|")
            row = {
                "rank": 0,
                "stack": int(stack[1:]),
                "depth": depth,
                "module": module or "/home/me/program",
            }
            rows.append({**row, "function": None if name == "?" else name, "resolved": name != "?"})
    return FRAMES.make(pd.DataFrame(rows, columns=FRAMES.column_names))


def schedule(
    *spans_us: tuple[float, float], thread: int = 1, process: int = 1, cpu: int = 3
) -> list[dict[str, Any]]:
    place = {"rank": 0, "process": process, "thread": thread, "cpu": cpu, "stopped": None}
    return [{**span(int(start * US), int(end * US)), **place} for start, end in spans_us]


def scheduled(*rows: dict[str, Any]) -> pd.DataFrame:
    return SCHEDULE.make(pd.DataFrame(rows, columns=SCHEDULE.column_names))


def overhead(*rows: dict[str, Any]) -> pd.DataFrame:
    given = [{**THREAD, "correlation": -1, **row} for row in rows]
    return OVERHEAD.make(pd.DataFrame(given, columns=OVERHEAD.column_names))


def owners(calls: pd.DataFrame | None = None, **more: pd.DataFrame) -> pd.DataFrame:
    """OWNED of one gap from 100 to 210 us, which a launch from 190 to 194 us ends."""
    work = kernels(us(0, 100), us(210, 300, 7))
    api = api_calls(us(190, 194, 7)) if calls is None else calls
    named = {name: more[name] for name in ("ranges", "os_calls") if name in more}
    gaps = idle_gaps(work, COPIES.empty(), api, **named)
    return OWNED.check(owned(gaps, api_calls=api, **more))


def told(owned: pd.DataFrame) -> list[tuple[float, str, str | None]]:
    """Length in us, kind and owner of each stretch."""
    names = owned["owner"].astype(object).where(owned["owner"].notna(), None)
    return list(zip(owned["dur_ns"] / US, owned["owner_kind"].astype(str), names, strict=True))


# 4 us inside the launch call, 16 until the kernel starts.
LAUNCHED = [(4.0, "cuda_call", "cudaLaunchKernel"), (16.0, "cuda_call", "cudaLaunchKernel")]


def test_without_evidence_the_owner_is_unknown() -> None:
    assert [(90.0, "unknown", None), *LAUNCHED] == told(owners())


def test_the_launch_call_owns_its_time_and_what_follows_until_the_kernel_starts() -> None:
    assert ["host_wait", "host_wait", "kernel_wait"] == owners()["cause"].tolist()


def test_a_cuda_call_owns_its_time() -> None:
    calls = api_calls(us(120, 150, 3, name="cudaMalloc"), us(190, 194, 7))
    assert [
        (20.0, "unknown", None),
        (30.0, "cuda_call", "cudaMalloc"),
        (40.0, "unknown", None),
        *LAUNCHED,
    ] == told(owners(calls))


def test_a_driver_call_inside_a_runtime_call_owns_nothing() -> None:
    calls = api_calls(
        us(100, 190, 3, name="cudaMalloc"), us(120, 150, 3, name="cuMemAlloc"), us(190, 194, 7)
    )
    assert [(90.0, "cuda_call", "cudaMalloc"), *LAUNCHED] == told(owners(calls))


def test_a_call_of_the_operating_system_owns_its_time() -> None:
    writing = os_calls(us(100, 190, name="pwrite64"))
    assert (90.0, "os_call", "pwrite64") == told(owners(os_calls=writing))[0]


def test_the_stack_of_a_call_names_the_function_through_which_the_program_entered_a_library() -> (
    None
):
    writing = os_calls(us(100, 190, name="pwrite64"))
    of_call = stacks(lasting(100 * US, 90 * US, kind="os_call", stack=0))
    hdf5 = "/opt/libhdf5.so.310"
    chain = frames(
        _0=[f"{SYSTEM}|pwrite", f"{hdf5}|H5FD_write", f"{hdf5}|H5Dwrite", "store", "main"]
    )
    assert "H5Dwrite" == owners(os_calls=writing, stacks=of_call, frames=chain)["caller"].iloc[0]


def test_the_caller_of_a_call_that_the_program_makes_itself_is_the_innermost_function() -> None:
    writing = os_calls(us(100, 190, name="write"))
    of_call = stacks(lasting(100 * US, 90 * US, kind="os_call", stack=0))
    chain = frames(_0=[f"{SYSTEM}|write", "store", "main"])
    assert "store" == owners(os_calls=writing, stacks=of_call, frames=chain)["caller"].iloc[0]


def test_a_short_call_without_a_stack_has_the_caller_of_the_long_ones() -> None:
    writing = os_calls(us(100, 160, name="write"), us(165, 170, name="write"))
    of_call = stacks(lasting(100 * US, 60 * US, kind="os_call", stack=0))
    found = owners(os_calls=writing, stacks=of_call, frames=frames(_0=[f"{SYSTEM}|write", "store"]))
    assert ["store", "store"] == found.loc[found["owner_kind"] == "os_call", "caller"].tolist()


def test_a_range_for_data_loading_owns_its_time() -> None:
    loading = ranges(us(100, 190, name="next batch"))
    assert (90.0, "range", "next batch") == told(owners(ranges=loading))[0]


def test_a_call_of_the_operating_system_in_a_range_is_the_owner() -> None:
    found = owners(
        ranges=ranges(us(100, 190, name="next batch")), os_calls=os_calls(us(100, 190, name="poll"))
    )
    assert (90.0, "os_call", "poll") == told(found)[0]
    assert "data_loading" == found["detail"].iloc[0]


def test_any_other_range_owns_what_nothing_else_does() -> None:
    assert (90.0, "range", "forward") == told(owners(ranges=ranges(us(90, 250, name="forward"))))[0]


def test_calls_of_one_operator_share_a_name() -> None:
    numbered = ranges(us(90, 250, name="aten::addmm, seq = 7, op_id = 12"))
    assert (90.0, "range", "aten::addmm") == told(owners(ranges=numbered))[0]


FIVE = stacks(*samples(0, 110, 120, 130, 140, 150))


def test_the_function_that_samples_name_owns_the_code_of_the_program() -> None:
    found = owners(stacks=FIVE, frames=frames(_0=[f"{SYSTEM}|memset", "compute", "main"]))
    assert (90.0, "function", "compute") == told(found)[0]
    assert [5, 5, True] == found[["samples", "of_samples", "certain"]].iloc[0].tolist()


def test_four_samples_leave_a_function_uncertain() -> None:
    found = owners(stacks=FIVE.head(4), frames=frames(_0=["compute", "main"]))
    assert not found["certain"].iloc[0]
    assert "perhaps compute" == in_words(found)[0]


def test_a_range_is_surer_than_four_samples() -> None:
    found = owners(
        stacks=FIVE.head(4),
        frames=frames(_0=["compute"]),
        ranges=ranges(us(90, 250, name="forward")),
    )
    assert (90.0, "range", "forward") == told(found)[0]


def test_the_caller_of_many_small_functions_is_the_owner() -> None:
    taken = stacks(*samples(0, 110, 120), *samples(1, 130, 140), *samples(2, 150, 160))
    chains = frames(
        _0=["hash", "store", "main"], _1=["copy", "store", "main"], _2=["pack", "store", "main"]
    )
    assert "store" == owners(stacks=taken, frames=chains)["owner"].iloc[0]


def test_main_is_the_owner_where_the_work_is_its_own() -> None:
    found = owners(stacks=FIVE, frames=frames(_0=["main", f"{SYSTEM}|__libc_start_main"]))
    assert "main" == found["owner"].iloc[0]


@pytest.mark.parametrize(
    "frame",
    [
        "/usr/lib/libcuda.so.525.105.17|cuLaunch",
        "/usr/lib/libcudart.so.12|cudaLaunchKernel",
        "/opt/conda/bin/python3.8|_PyEval_EvalFrameDefault",
        "[kernel.kallsyms]|do_syscall_64",
        "std::__fill_a1(double*)",
        "[Broken backtraces]|[Broken backtraces]",
        "/home/me/program|?",
    ],
)
def test_a_frame_that_says_nothing_of_the_program_is_no_owner(frame: str) -> None:
    assert (90.0, "unknown", None) == told(owners(stacks=FIVE, frames=frames(_0=[frame])))[0]


def test_the_next_item_of_a_loop_is_a_function_of_the_interpreter_that_says_something() -> None:
    chain = frames(_0=["/opt/python3.8|_PyEval_EvalFrameDefault", "/opt/python3.8|enum_next"])
    assert "enum_next" == owners(stacks=FIVE, frames=chain)["owner"].iloc[0]


def test_samples_of_other_threads_name_no_owner() -> None:
    other = stacks(*samples(0, 110, 120, 130, 140, 150, thread=2))
    assert (90.0, "unknown", None) == told(owners(stacks=other, frames=frames(_0=["compute"])))[0]


def test_other_threads_that_ran_in_gaps_are_counted() -> None:
    taken = stacks(
        *samples(0, 110, 120, thread=2), *samples(0, 50, 130, process=9), *samples(0, 140)
    )
    work = kernels(us(0, 100), us(210, 300, 7))
    gaps = idle_gaps(work, COPIES.empty(), api_calls(us(190, 194, 7)))
    assert [[0, 1, 2, 2], [0, 9, 1, 1]] == elsewhere(gaps, taken).to_numpy().tolist()


def test_time_off_the_core_owns_itself() -> None:
    ran = scheduled(*schedule((90, 120), (150, 200)))
    found = told(owners(schedule=ran, stacks=FIVE, frames=frames(_0=["compute"])))
    assert [
        (20.0, "function", "compute"),
        (30.0, "not_running", None),
        (40.0, "function", "compute"),
        *LAUNCHED,
    ] == found


def test_who_ran_on_the_core_instead_is_named() -> None:
    ran = scheduled(*schedule((90, 120), (150, 200)), *schedule((120, 150), process=9, thread=12))
    assert (30.0, "not_running", "process 9") == told(owners(schedule=ran))[1]


def test_a_thread_of_the_program_that_ran_on_the_core_instead_is_named() -> None:
    ran = scheduled(*schedule((90, 120), (150, 200)), *schedule((120, 150), thread=12))
    assert (30.0, "not_running", "thread 12") == told(owners(schedule=ran))[1]


def test_a_call_of_the_operating_system_off_the_core_is_the_owner() -> None:
    ran = scheduled(*schedule((90, 100), (190, 200)))
    assert (90.0, "os_call", "poll") == told(
        owners(schedule=ran, os_calls=os_calls(us(100, 190, name="poll")))
    )[0]


def test_before_the_first_and_after_the_last_stretch_nothing_is_known_of_the_core() -> None:
    assert [(90.0, "unknown", None), *LAUNCHED] == told(
        owners(schedule=scheduled(*schedule((130, 150))))
    )


def test_the_collector_owns_its_time_on_any_thread_of_the_process() -> None:
    flush = overhead({**us(120, 150), "thread": 5, "kind": "flush", "name": "CUPTI Buffer flush"})
    assert (30.0, "collector", "CUPTI Buffer flush") == told(owners(overhead=flush))[1]


def test_the_collector_of_another_process_owns_nothing() -> None:
    flush = overhead({**us(120, 150), "process": 5, "kind": "flush", "name": "CUPTI Buffer flush"})
    assert [(90.0, "unknown", None), *LAUNCHED] == told(owners(overhead=flush))


def test_a_full_queue_is_no_launch_of_the_program() -> None:
    full = overhead({**us(190, 194), "kind": "queue_full", "name": "Command Buffer Full"})
    assert (4.0, "overhead", "Command Buffer Full") == told(owners(overhead=full))[1]


def test_a_python_function_owns_its_time() -> None:
    step, crop = (
        us(90, 250, name="train.py(3): step"),
        us(100, 170, name="data.py(8): crop", depth=1),
    )
    found = told(owners(python_calls=python_calls(step, crop)))
    assert [
        (70.0, "function", "data.py(8): crop"),
        (20.0, "function", "train.py(3): step"),
        *LAUNCHED,
    ] == found


def test_an_unattributed_gap_belongs_to_the_thread_that_launches_for_the_gpu() -> None:
    work = kernels(us(0, 100), us(210, 300, 7), us(400, 500))
    calls = api_calls(us(190, 194, 7))
    writing = os_calls(us(310, 390, name="write"))
    gaps = idle_gaps(work, COPIES.empty(), calls, os_calls=writing)
    found = owned(gaps, api_calls=calls, os_calls=writing)
    assert [(10.0, "unknown", None), (80.0, "os_call", "write"), (10.0, "unknown", None)] == told(
        found
    )[3:]


def test_stretches_in_a_window_add_up_to_what_lies_in_it() -> None:
    work = kernels(us(0, 100), us(210, 300, 7))
    calls = api_calls(us(190, 194, 7))
    writing = os_calls(us(100, 190, name="write"))
    gaps = idle_gaps(work, COPIES.empty(), calls, os_calls=writing, window=(150 * US, 192 * US))
    assert [(40.0, "os_call", "write"), (2.0, "cuda_call", "cudaLaunchKernel")] == told(
        owned(gaps, api_calls=calls, os_calls=writing)
    )


def test_the_summary_adds_up_to_the_idle_time() -> None:
    table = summary(owners(os_calls=os_calls(us(100, 150, name="write"))))
    assert [("os_call", 50_000), ("unknown", 40_000), ("cuda_call", 20_000)] == list(
        zip(table["owner_kind"], table["total_ns"], strict=True)
    )
    assert pytest.approx(1.0) == table["share_frac"].sum()


def test_no_gap_has_no_owner() -> None:
    assert OWNED.empty().equals(
        owned(idle_gaps(kernels(), COPIES.empty(), API_CALLS.empty()), api_calls=API_CALLS.empty())
    )


def test_another_table_is_refused() -> None:
    gaps = idle_gaps(kernels(us(0, 100), us(200, 210)), COPIES.empty(), API_CALLS.empty())
    with pytest.raises(SchemaError):
        owned(gaps, api_calls=API_CALLS.empty(), os_calls=KERNELS.empty())


def test_functions_count_innermost_and_inclusive() -> None:
    taken = stacks(*samples(0, 1, 2), *samples(1, 3))
    table = functions(taken, frames(_0=["inner", "outer"], _1=["outer"]))
    assert [["outer", 1, 3], ["inner", 2, 2]] == table.to_numpy().tolist()
