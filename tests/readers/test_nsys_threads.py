"""What Nsight Systems recorded beside the GPU: stacks, scheduling, waits, overhead, messages, memory (made files)."""

import random
from pathlib import Path

import pandas as pd
import pytest
from readers import nsys_files as made
from readers.nsys_files import Write, every_form, values

import perfkit
from perfkit.profile import Profile
from perfkit.readers import nsys
from perfkit.tables import TABLES

SAMPLES, CHAINS = "COMPOSITE_EVENTS", "SAMPLING_CALLCHAINS"
MAIN, WRITE, START = ("main", "app"), ("write_file", "app"), ("_start", "app")
LIBC = ("0x7f00", "libc.so.6")


def stacks(profile: Profile) -> list[list[object]]:
    """Functions of the stack of each row of STACKS, innermost first."""
    frames = profile.table("FRAMES")
    named = {stack: values(rows, "function") for stack, rows in frames.groupby("stack")}
    return [named.get(stack, []) for stack in profile.table("STACKS")["stack"]]


@every_form
def test_samples_have_their_thread_core_and_frames(write: Write, tmp_path: Path) -> None:
    tables = {
        SAMPLES: [made.cpu_sample(1, 50, tid=7), made.cpu_sample(2, 20, tid=7, cpu=None)],
        CHAINS: [*made.chain(1, WRITE, MAIN), *made.chain(2, MAIN)],
    }
    profile = made.read(tmp_path, tables, write)
    columns = ("process", "thread", "start_ns", "dur_ns", "kind", "cpu")
    assert [[1, 7, 20, 0, "sample", -1], [1, 7, 50, 0, "sample", 3]] == values(
        profile.table("STACKS"), *columns
    )
    assert [["main"], ["write_file", "main"]] == stacks(profile)


@every_form
def test_equal_stacks_have_one_number(write: Write, tmp_path: Path) -> None:
    frames = [(WRITE, MAIN), (MAIN,), (WRITE, MAIN), (WRITE, MAIN, START), (MAIN, WRITE)]
    tables = {
        SAMPLES: [made.cpu_sample(number, number) for number in range(5)],
        CHAINS: [row for number, some in enumerate(frames) for row in made.chain(number, *some)],
    }
    profile = made.read(tmp_path, tables, write)
    assert [0, 1, 0, 2, 3] == values(profile.table("STACKS"), "stack")
    assert [0, 0, 1, 2, 2, 2, 3, 3] == values(profile.table("FRAMES"), "stack")
    assert [0, 1, 0, 0, 1, 2, 0, 1] == values(profile.table("FRAMES"), "depth")


@every_form
def test_what_has_no_name_is_not_resolved(write: Write, tmp_path: Path) -> None:
    frames = [LIBC, ("_init", "app"), ("", "app"), MAIN, "[Broken backtraces]"]
    tables = {SAMPLES: [made.cpu_sample(1, 5)], CHAINS: made.chain(1, *frames, unresolved=(0, 1))}
    frame = made.read(tmp_path, tables, write).table("FRAMES")
    assert [
        [None, "libc.so.6", False],
        [None, "app", False],
        [None, "app", False],
        ["main", "app", True],
        ["[Broken backtraces]", "[Broken backtraces]", False],
    ] == values(frame, "function", "module", "resolved")


def test_frames_that_differ_in_their_address_alone_are_one_stack(tmp_path: Path) -> None:
    chains = [
        made.chain(number, (f"0x{number}", "libc.so.6"), MAIN, unresolved=(0,)) for number in (1, 2)
    ]
    tables = {
        SAMPLES: [made.cpu_sample(1, 1), made.cpu_sample(2, 2)],
        CHAINS: [*chains[0], *chains[1]],
    }
    profile = made.read(tmp_path, tables)
    assert [0, 0] == values(profile.table("STACKS"), "stack")
    assert 2 == len(profile.table("FRAMES"))


def test_samples_without_chains_have_no_stack(tmp_path: Path) -> None:
    profile = made.read(tmp_path, {SAMPLES: [made.cpu_sample(1, 1)]})
    assert [-1] == values(profile.table("STACKS"), "stack")
    assert "FRAMES" not in profile.loaders


@every_form
def test_long_calls_have_stacks_and_zero_means_none(write: Write, tmp_path: Path) -> None:
    system = [
        {**made.system_call(at, at + 9, "poll"), "callchainId": stack}
        for at, stack in ((10, 1), (30, 0))
    ]
    cuda = [{**made.call(at, at + 5), "callchainId": stack} for at, stack in ((40, 1), (50, None))]
    tables = {
        made.SYSTEM: system,
        "OSRT_CALLCHAINS": made.chain(1, ("poll", "libc.so.6"), MAIN),
        made.RUNTIME: cuda,
        "CUDA_CALLCHAINS": made.chain(1, MAIN),
    }
    profile = made.read(tmp_path, tables, write)
    found = values(profile.table("STACKS"), "start_ns", "dur_ns", "kind", "cpu")
    assert [[10, 9, "os_call", -1], [40, 5, "cuda_call", -1]] == found
    assert [["poll", "main"], ["main"]] == stacks(profile)


@every_form
def test_a_thread_runs_from_the_core_to_off_the_core(write: Write, tmp_path: Path) -> None:
    rows = [
        made.switch(30, 0),
        made.switch(40, 1, cpu=5),
        made.switch(10, 1),
        made.switch(55, 0, cpu=5),
    ]
    frame = made.read(tmp_path, {"SCHED_EVENTS": rows}, write).table("SCHEDULE")
    assert [[10, 20, 3], [40, 15, 5]] == values(frame, "start_ns", "dur_ns", "cpu")


def test_a_thread_runs_before_its_first_and_after_its_last_event(tmp_path: Path) -> None:
    # Events were recorded from 5 to 90 ns: thread 1 was on a core until 20 ns, thread 2 from 60 ns on.
    rows = [
        made.switch(20, 0, tid=1),
        made.switch(60, 1, tid=2),
        made.switch(5, 1, tid=3),
        made.switch(90, 0, tid=3),
    ]
    frame = made.read(tmp_path, {"SCHED_EVENTS": rows}).table("SCHEDULE")
    assert [[1, 5, 15], [2, 60, 30], [3, 5, 85]] == values(frame, "thread", "start_ns", "dur_ns")


def test_a_thread_that_is_off_and_on_at_one_time_runs_on(tmp_path: Path) -> None:
    rows = [
        made.switch(0, 1),
        made.switch(10, 1, cpu=4),
        made.switch(10, 0),
        made.switch(15, 0, cpu=4),
    ]
    frame = made.read(tmp_path, {"SCHED_EVENTS": rows}).table("SCHEDULE")
    assert [[0, 10, 3], [10, 5, 4]] == values(frame, "start_ns", "dur_ns", "cpu")


def test_why_a_thread_stopped_is_said_where_it_is_recorded(tmp_path: Path) -> None:
    rows = [made.switch(at, 1 - at % 2, state=state) for at, state in enumerate((0, 0, 0, 5, 0, 0))]
    rows[5]["threadBlock"] = 6
    tables = {
        "SCHED_EVENTS": rows,
        "ENUM_SAMPLING_THREAD_STATE": [{"id": 5, "label": "Terminated"}],
        "ENUM_SCHEDULING_THREAD_BLOCK": [{"id": 6, "label": "Mutex"}],
    }
    assert [None, "terminated", "mutex"] == values(
        made.read(tmp_path, tables).table("SCHEDULE"), "stopped"
    )


WAITS = {
    "cudaDeviceSynchronize_v3020": "device",
    "cuCtxSynchronize": "device",
    "cudaStreamSynchronize_v3020": "stream",
    "cudaEventSynchronize_v3020": "event",
    "cudaStreamWaitEvent_v3020": "stream_event",
    "cudaEventQuery_v3020": "query",
    "cudaMemcpy_v3020": "unknown",
}


@every_form
def test_the_name_of_the_call_tells_the_kind_of_a_wait(write: Write, tmp_path: Path) -> None:
    waits = [made.wait(i, i + 5, i) for i in range(len(WAITS) + 1)]
    calls = [made.call(i, i + 9, name, correlationId=i) for i, name in enumerate(WAITS)]
    frame = made.read(tmp_path, {made.WAIT: waits, made.RUNTIME: calls}, write).table("WAITS")
    assert [*WAITS.values(), "unknown"] == values(frame, "kind")  # the last has no call


def test_a_wait_belongs_to_the_call_of_its_own_process(tmp_path: Path) -> None:
    waits = [made.wait(0, 5, 1, pid=7), made.wait(0, 5, 1, pid=8)]
    named = ((7, "cudaEventQuery"), (8, "cudaDeviceSynchronize"))
    calls = [made.call(0, 9, name, pid=pid, correlationId=1) for pid, name in named]
    frame = made.read(tmp_path, {made.WAIT: waits, made.RUNTIME: calls}).table("WAITS")
    assert [[7, "query"], [8, "device"]] == values(frame, "process", "kind")


@every_form
def test_what_a_wait_waits_for_is_minus_one_where_there_is_none(
    write: Write, tmp_path: Path
) -> None:
    rows = [made.wait(0, 5, 1), made.wait(6, 8, 2, streamId=13, eventId=4, eventSyncId=77)]
    frame = made.read(tmp_path, {made.WAIT: rows}, write).table("WAITS")
    assert [[-1, -1, -1, 1], [13, 4, 77, 1]] == values(
        frame, "stream", "event", "record", "context"
    )


OWN = {
    "CUPTI: Buffer flush": "flush",
    "CUDA profiling data flush on process exit": "flush",
    "CUDA profiling initialization": "profiler",
    "Loading plugins overhead": "profiler",
    "dlopen(libm.so)": "loading",
    "Unknown": "profiler",
}


@every_form
def test_overhead_is_of_the_profiler_or_of_cuda(write: Write, tmp_path: Path) -> None:
    of_cuda = {8: "queue_full", 7: "loading", 6: "loading", 2: "compiling", 12: "other"}
    own = [made.overhead(i, i + 2, name) for i, name in enumerate(OWN)]
    cuda = [
        made.overhead(20 + i, 30, f"t{i}", overheadType=t, correlationId=9)
        for i, t in enumerate(of_cuda)
    ]
    tables = {"PROFILER_OVERHEAD": own, "CUPTI_ACTIVITY_KIND_OVERHEAD": cuda}
    frame = made.read(tmp_path, tables, write).table("OVERHEAD")
    assert [*OWN.values(), *of_cuda.values()] == values(frame, "kind")
    assert [-1] * len(own) + [9] * len(cuda) == values(frame, "correlation")


@every_form
def test_messages_have_their_severity_and_time(write: Write, tmp_path: Path) -> None:
    rows = [
        made.message(5, 3, "lost"),
        made.message(-9, 2, "paranoid", globalPid=1 << 48),
        made.message(7, 1, None),
    ]
    frame = made.read(tmp_path, {"DIAGNOSTIC_EVENT": rows}, write).table("DIAGNOSTICS")
    expected = [[-1, -9, "warning", "paranoid"], [1, 5, "error", "lost"], [1, 7, "info", ""]]
    assert expected == values(frame, "process", "time_ns", "severity", "text")


@every_form
def test_memory_is_allocated_and_released(write: Write, tmp_path: Path) -> None:
    rows = [
        made.allocation(5, 64),
        made.allocation(9, 64, operation=1),
        made.allocation(7, 8, kind=1, address=None),
    ]
    frame = made.read(tmp_path, {"CUDA_GPU_MEMORY_USAGE_EVENTS": rows}, write).table(
        "MEMORY_EVENTS"
    )
    columns = ("time_ns", "operation", "memory", "bytes", "address", "correlation")
    assert [
        [5, "allocation", "device", 64, 4096, -1],
        [7, "allocation", "pinned", 8, None, -1],
        [9, "release", "device", 64, 4096, -1],
    ] == values(frame, *columns)


SAMPLING = {"LINUX_PERF_OPTIONS__COLLECT_IP_BACKTRACE_SAMPLES": "true"}
SWITCHING = {"LINUX_PERF_OPTIONS__COLLECT_CPU_CTXSW_TRACE": "true"}


@every_form
def test_a_capture_says_what_was_asked_for(write: Write, tmp_path: Path) -> None:
    options = {"PROCESS_0__COLLECT_CUDA_TRACE": "false", "DEVICE_TYPE": "Unix", **SAMPLING}
    tables = {
        **made.asked("OSRuntime", "Cuda", "NvtxEvents", **options),
        made.KERNEL: [made.kernel(0, 1)],
    }
    capture = made.read(tmp_path, tables, write).capture
    assert [["cuda,nvtx,osrt", "stacks", "linux"]] == values(
        capture, "traced", "sampled", "platform"
    )


@pytest.mark.parametrize(
    ("system", "platform"),
    [
        (
            {
                "SoftwareReleaseVersion": "6.6.87.2-microsoft-standard-WSL2",
                "SoftwarePlatform": "L4X",
            },
            "wsl",
        ),
        ({"OsDescription": "Ubuntu 22.04", "SoftwarePlatform": "L4X"}, "linux"),
        ({"OsDescription": "Windows 10.0.26200", "SoftwarePlatform": "Windows"}, "windows"),
        ({"Hostname": "node1"}, ""),
    ],
)
def test_the_platform_is_that_of_the_system(
    system: dict[str, str], platform: str, tmp_path: Path
) -> None:
    rows = [{"name": name, "value": value} for name, value in system.items()]
    tables = {"TARGET_INFO_SYSTEM_ENV": rows, made.KERNEL: [made.kernel(0, 1)]}
    assert [platform] == values(made.read(tmp_path, tables).capture, "platform")


def test_what_was_asked_for_and_failed_is_not_asked_for_again(tmp_path: Path) -> None:
    asked = made.asked("Cuda", **SAMPLING, **SWITCHING)
    profile = made.read(tmp_path, {**asked, made.SYSTEM: [made.system_call(0, 1)]})
    assert ["RANGES", "SAMPLES", "DEVICES"] == [one.table for one in profile.missing]


def everything() -> made.Tables:
    """An export with rows in every table, in no order that is that of time."""
    waits = [made.wait(at, at + 3, at) for at in range(5)]
    calls = [made.call(at, at + 4, name, correlationId=at) for at, name in enumerate([*WAITS][:5])]
    numbers = range(6)
    return {
        **made.capture(),
        SAMPLES: [made.cpu_sample(n, 10 * n, tid=n % 2) for n in numbers],
        CHAINS: [row for n in numbers for row in made.chain(n, (f"f{n % 4}", "app"), MAIN)],
        "SCHED_EVENTS": [made.switch(10 * n, 1 - n % 2, tid=n // 2 % 2) for n in range(8)],
        made.WAIT: waits,
        made.RUNTIME: [*calls, made.call(7, 9)],
        "PROFILER_OVERHEAD": [made.overhead(n, n + 2, name) for n, name in enumerate(OWN)],
        "DIAGNOSTIC_EVENT": [made.message(n, 1 + n % 3, f"text {n}") for n in numbers],
        "CUDA_GPU_MEMORY_USAGE_EVENTS": [made.allocation(n, 8 * n) for n in numbers],
        made.KERNEL: [made.kernel(100 * n, 100 * n + 50, f"kernel_{n}") for n in numbers],
        made.MEMCPY: [made.copy(100 * n + 60, 100 * n + 80, bytes=n) for n in numbers],
        made.SYSTEM: [made.system_call(n, n + 1, f"call_{n}") for n in numbers],
        made.NVTX: [made.event(100 * n, 100 * n + 90, f"range {n}") for n in numbers],
    }


@every_form
def test_no_table_depends_on_the_order_of_rows(write: Write, tmp_path: Path) -> None:
    tables = everything()
    for name in ("ordered", "shuffled"):
        (tmp_path / name).mkdir()
    ordered = made.read(tmp_path / "ordered", tables, write)
    draw = random.Random(44)
    shuffled = {name: draw.sample(rows, len(rows)) for name, rows in tables.items()}
    other = made.read(tmp_path / "shuffled", shuffled, write)
    assert set(TABLES) - {"CAPTURE"} & set(ordered.loaders) == set(TABLES) - {"CAPTURE"} & set(
        other.loaders
    )
    for name in ordered.loaders:
        pd.testing.assert_frame_equal(ordered.table(name), other.table(name))


def test_all_forms_give_the_same_tables(tmp_path: Path) -> None:
    expected = nsys.read(made.sqlite(tmp_path / "reference", everything()))
    for write in (made.parquet, made.arrow):
        profile = nsys.read(write(tmp_path / write.__name__, everything()))
        for name in expected.loaders:
            pd.testing.assert_frame_equal(expected.table(name), profile.table(name))


def test_flags_of_parquet_exports_are_true_and_false(tmp_path: Path) -> None:
    rows = [{**made.switch(at, 0), "isSchedIn": at == 1} for at in (1, 4)]
    frame = made.read(tmp_path, {"SCHED_EVENTS": rows}, made.parquet).table("SCHEDULE")
    assert [[1, 3]] == values(frame, "start_ns", "dur_ns")


def test_stacks_of_two_recordings_of_one_rank_keep_their_own_numbers(tmp_path: Path) -> None:
    for step, function in ((10, "first"), (20, "second")):
        recorded = {SAMPLES: [made.cpu_sample(1, 5)], CHAINS: made.chain(1, (function, "app"))}
        clock = made.session(t0=10**18 + step * 10**8)
        made.sqlite(tmp_path / f"work_step_{step}.sqlite", {**recorded, **clock})
    run = perfkit.load(tmp_path)
    assert [0, 1] == sorted(values(run.stacks, "stack"))
    assert [[0, "first"], [1, "second"]] == values(run.frames, "stack", "function")


def test_a_choice_of_ranks_has_their_stacks_and_waits(tmp_path: Path) -> None:
    for rank in (0, 1):  # of other lengths: an equal file would be a copy, and no further rank
        content = {**everything(), **made.session(duration=10**6 + rank)}
        made.sqlite(tmp_path / f"rank{rank}.sqlite", content)
    chosen = perfkit.select(perfkit.load(tmp_path), ranks=[1])
    for name in (
        "stacks",
        "frames",
        "schedule",
        "waits",
        "overhead",
        "diagnostics",
        "memory_events",
    ):
        frame = getattr(chosen, name)
        assert {1} == set(frame["rank"]), name
