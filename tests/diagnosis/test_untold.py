"""What recordings show beside idle time: a shared GPU, crowded cores, requests, an allocator, lengths, late ranks."""

from typing import Any

import pandas as pd
import pytest
from diagnosis.test_gpus import kernel
from diagnosis.traces import MS, US, all_of, of_tables, told, view, work
from diagnosis.traces import run as traced
from frames import api_calls, copies, kernels, os_calls, ranges
from ops import op, ops

import perfkit
from perfkit.diagnosis import blocks, gpus, program, slowing, transfers
from perfkit.diagnosis.evidence import commands
from perfkit.diagnosis.rules import allocator, requests, sharing
from perfkit.tables import SCHEDULE

ATEN = "void at::native::vectorized_elementwise_kernel<4>(int)"


def alternating(count: int = 20, *, second: int = 2) -> perfkit.Selection:
    """Two processes have a GPU in turn for 1 ms each."""
    rows = [{"start_ns": i * MS, "dur_ns": MS, "process": (1, second)[i % 2]} for i in range(count)]
    return view(kernels=kernels(*rows))


def test_two_processes_that_take_turns_share_a_gpu() -> None:
    """They meet from 1 to 19 ms, and each has the GPU for 9 of these 18 ms."""
    found = sharing.sharers(alternating())
    assert [(1, 0.5), (2, 0.5)] == [
        *found[["process", "share_frac"]].itertuples(index=False, name=None)
    ]


def test_one_process_shares_nothing() -> None:
    assert sharing.sharers(alternating(second=1)).empty


def test_processes_one_after_the_other_share_nothing() -> None:
    rows = [{"start_ns": i * MS, "dur_ns": MS, "process": 1 + i // 10} for i in range(20)]
    assert sharing.sharers(view(kernels=kernels(*rows))).empty


def test_processes_on_gpus_of_their_own_share_nothing() -> None:
    rows = [{"start_ns": i * MS, "dur_ns": MS, "process": i % 2, "gpu": i % 2} for i in range(20)]
    assert sharing.sharers(view(kernels=kernels(*rows))).empty


def test_a_process_alone_gains_what_the_others_take() -> None:
    finding = told(alternating())["gpu_shared"]
    (others,) = finding.evidence
    assert pytest.approx(1 / (1 - others.value)) == finding.gain.high
    assert "each of these processes" == finding.gain.whole
    assert finding.gain.share is None


def launched(
    starts_ms: list[float], *, dur_ms: float = 1, name: str = "work"
) -> dict[str, pd.DataFrame]:
    """Kernels that each start 10 µs after the call of thread 1 that launches them."""
    ran, calls = [], []
    for number, start in enumerate(starts_ms):
        at = int(start * MS)
        ran.append(
            {"start_ns": at, "dur_ns": int(dur_ms * MS), "correlation": number, "name": name}
        )
        calls.append({"start_ns": at - 10_000, "dur_ns": 5_000, "correlation": number})
    return {"kernels": kernels(*ran), "api_calls": api_calls(*calls)}


def on_cores(*rows: tuple[int, int, float, float]) -> pd.DataFrame:
    """SCHEDULE of (thread, cpu, start, end), ms."""
    columns = ["rank", "process", "thread", "cpu", "start_ns", "dur_ns", "stopped"]
    made = [(0, 1, thread, cpu, int(a * MS), int((b - a) * MS), None) for thread, cpu, a, b in rows]
    return SCHEDULE.make(pd.DataFrame(made, columns=columns))


def without_a_core(*others: tuple[int, int, float, float]) -> perfkit.Selection:
    """Ten kernels of 1 ms each 3 ms; the launching thread has no core from the end of one to 100 µs before the next."""
    starts = [3.0 * i + 1 for i in range(10)]
    own = [(1, 0, start - 0.1, start + 1) for start in starts]
    return view(**launched(starts), schedule=on_cores(*own, *others))


def test_threads_on_all_cores_leave_the_launching_thread_none() -> None:
    """One core: another thread has it for 1.9 ms between two kernels, 9 x 1.9 of 28 ms."""
    others = [(2, 0, 3.0 * i + 2, 3.0 * i + 3.9) for i in range(9)]
    assert pytest.approx(9 * 1.9 / 28) == sharing.off_core(without_a_core(*others))


def test_a_thread_that_rests_beside_a_free_core_lacks_none() -> None:
    """The second core is free for all of the time: what the thread waits for is not a core."""
    others = [(2, 0, 3.0 * i + 2, 3.0 * i + 3.9) for i in range(9)]
    assert 0 == sharing.off_core(without_a_core(*others, (3, 1, 0.0, 0.1)))


def served(call: str, kernel: str = "work") -> perfkit.Selection:
    """Ten kernels of 1 ms each 5 ms; in between the launching thread is 3 ms in a call of the operating system."""
    starts = [5.0 * i + 1 for i in range(10)]
    calls = [
        {"start_ns": int((5 * i + 2.5) * MS), "dur_ns": 3 * MS, "name": call} for i in range(9)
    ]
    return view(**launched(starts, name=kernel), os_calls=os_calls(*calls))


@pytest.mark.parametrize(
    ("call", "kernel", "waits"),
    [
        ("epoll_wait", "work", True),
        ("accept4", "work", True),
        ("read", "work", False),
        ("poll", "work", False),
        ("epoll_wait", "gelu_backward_kernel", False),
    ],
)
def test_only_a_server_waits_for_requests(call: str, kernel: str, waits: bool) -> None:
    """Of 46 ms the GPU is idle in the call for 9 x 3."""
    found = served(call, kernel)
    expected = {"system": pytest.approx(27 / 46)} if waits else {}
    assert expected == requests.NO_REQUEST.claims(found)
    assert waits is ("no_request" in told(found))


def test_no_program_serves_requests_faster_than_they_come() -> None:
    found = told(served("epoll_wait"))
    assert 1.0 == found["no_request"].gain.high
    assert "idle_system" not in found


def allocating(frees: int, *, name: str = ATEN) -> perfkit.Selection:
    """200 kernels of 0.1 ms each 0.5 ms, with 120 cudaMalloc of 0.3 ms and so many cudaFree of 1 µs before them."""
    tables = launched([0.5 * i + 1 for i in range(200)], dur_ms=0.1, name=name)
    more = [
        {"start_ns": int((0.5 * i + 0.6) * MS), "dur_ns": int(0.3 * MS), "name": "cudaMalloc"}
        for i in range(120)
    ]
    more += [
        {"start_ns": int((0.5 * i + 0.95) * MS), "dur_ns": 1_000, "name": "cudaFree"}
        for i in range(frees)
    ]
    calls = pd.concat([tables["api_calls"], api_calls(*more)])
    return view(kernels=tables["kernels"], api_calls=perfkit.tables.API_CALLS.make(calls))


@pytest.mark.parametrize(
    ("frees", "name", "ratio"),
    [(120, ATEN, 0.6), (96, ATEN, 0.6), (95, ATEN, 0.0), (120, "void mine(int)", 0.0)],
)
def test_an_allocator_that_is_off_allocates_and_frees_each_tensor(
    frees: int, name: str, ratio: float
) -> None:
    """120 allocations for 200 kernels; below eight tenths of them are freed where something keeps the memory."""
    assert ratio == allocator.per_kernel(allocating(frees, name=name))


def in_turns(*late: int) -> perfkit.Selection:
    """Two GPUs meet every 10 ms in a collective of 1 ms; one of them computes for 9 ms before, the other for 5 ms."""
    rows: list[dict[str, Any]] = []
    for step, last in enumerate(late):
        for gpu in (0, 1):
            work = 9 if gpu == last else 5
            rows.append(kernel(gpu, 10 * step, work))
            rows.append(kernel(gpu, 10 * step + work, 10 - work, "nccl"))
    return view(kernels=kernels(*rows))


def test_gpus_that_are_late_in_turn_wait_for_each_other() -> None:
    """In each of 12 steps one of two GPUs waits for 4 of 10 ms: a fifth of their time."""
    finding = told(in_turns(*(0, 1) * 6))["late_in_turn"]
    wait, most = finding.evidence
    assert pytest.approx(0.2) == wait.value
    assert pytest.approx(0.5) == most.value
    assert pytest.approx(1.25) == finding.gain.high


def test_a_gpu_that_is_always_late_is_not_late_in_turn() -> None:
    assert "late_in_turn" not in told(in_turns(*(0,) * 12))


def test_the_last_gpu_of_each_collective_is_counted() -> None:
    last = gpus.latest(in_turns(0, 1, 1, 1))
    assert [(0, 1, 4 * MS), (1, 3, 12 * MS)] == [
        *last[["gpu", "count", "wait_ns"]].itertuples(index=False, name=None)
    ]


def copied(count: int, *, pause_us: int) -> perfkit.Selection:
    """So many copies of 4 kB in 2 µs each, with a pause after each, and a kernel of 1 ms after each hundred."""
    moves, ran, calls, at = [], [], [], 100_000
    for number in range(count):
        moves.append({"start_ns": at, "dur_ns": 2_000, "bytes": 4_000, "correlation": number})
        calls.append(
            {
                "start_ns": at - 1_500,
                "dur_ns": 1_000,
                "name": "cudaMemcpyAsync",
                "correlation": number,
            }
        )
        at += 2_000 + pause_us * 1_000
        if number % 100 == 99:
            key = count + number
            ran.append({"start_ns": at, "dur_ns": MS, "correlation": key})
            calls.append({"start_ns": at - 1_500, "dur_ns": 1_000, "correlation": key})
            at += MS
    return view(kernels=kernels(*ran), copies=copies(*moves), api_calls=api_calls(*calls))


def test_gaps_between_small_copies_belong_to_them() -> None:
    """Between 100 copies are 99 gaps of 8 µs; those before a kernel are its own."""
    assert 3 * 99 * 8_000 == transfers.small_gaps(copied(300, pause_us=8))["dur_ns"].sum()


def test_a_pause_between_copies_is_not_theirs() -> None:
    assert transfers.small_gaps(copied(300, pause_us=2_000)).empty


def test_few_small_copies_are_not_many() -> None:
    assert transfers.small_gaps(copied(99, pause_us=8)).empty


@pytest.mark.parametrize(
    ("name", "operation"),
    [
        ("ncclDevKernel_AllReduce_Sum_f32_RING_LL(x)", "reduce"),
        ("ncclDevKernel_AllGather_RING_LL(x)", "gather"),
        ("ncclDevKernel_ReduceScatter_Sum_bf16_RING_LL(x)", "gather"),
        ("ncclDevKernel_SendRecv(x)", "send"),
        ("ncclDevKernel_AlltoAll(x)", "all_to_all"),
        ("ncclDevKernel_Generic_1(x)", ""),
    ],
)
def test_collectives_tell_what_a_program_exchanges(name: str, operation: str) -> None:
    of = view(
        kernels=kernels({"start_ns": 0, "dur_ns": MS, "name": name, "family": "communication"})
    )
    assert operation == program.communicates_by(of)


@pytest.mark.parametrize(
    ("names", "operation"),
    [
        (["c10d::alltoall_base_"], "all_to_all"),
        (["c10d::send", "c10d::recv_"], "send"),
        (["c10d::alltoall_base_", "c10d::send"], ""),
    ],
)
def test_nccl_sends_for_what_the_operators_call(names: list[str], operation: str) -> None:
    """A trace without the sizes of messages names no collective, but the operators that call them."""
    sent = {"start_ns": 0, "dur_ns": MS, "name": "ncclKernel_SendRecv", "family": "communication"}
    calling = ops(*(op(name, at, at + 1) for at, name in enumerate(names)))
    of = perfkit.select(of_tables(KERNELS=kernels(sent), OPS=calling))
    assert operation == program.communicates_by(of)


def test_a_report_of_ncu_is_written_to_a_file() -> None:
    of = view(kernels=kernels({"start_ns": 0, "dur_ns": MS}))
    assert "-o report PROGRAM" in commands(of, "{ncu}")


def products(alone_us: list[int], beside_us: list[int]) -> perfkit.Selection:
    """Products of one kind before a collective, and products beside it."""
    rows: list[dict[str, Any]] = []
    at = 0
    for dur_us in (*alone_us, *beside_us):
        named = {"name": "product", "full_name": "product", "family": "gemm", "grid_blocks": 132}
        rows.append({**named, "start_ns": at, "dur_ns": dur_us * 1_000, "stream": 7})
        at += dur_us * 1_000
    first = sum(alone_us) * 1_000
    reduce = {"name": "nccl", "full_name": "nccl", "family": "communication", "stream": 20}
    return view(kernels=kernels(*rows, {**reduce, "start_ns": first, "dur_ns": at - first}))


def test_products_that_always_take_longer_beside_a_collective_are_slowed() -> None:
    slowed = blocks.slowed_beside(products([100] * 12, [150] * 12))
    assert slowed is not None
    assert pytest.approx(1.5) == slowed.ratio


def test_products_that_take_as_long_without_a_collective_now_and_then_are_not_slowed() -> None:
    """Some products without a collective have more data, as all beside it have: of a backward pass."""
    slowed = blocks.slowed_beside(products([100] * 10 + [150] * 3, [150] * 12))
    assert slowed is not None
    assert 1.0 == slowed.ratio


def test_what_is_computed_beside_a_wait_begins_earlier_without_it() -> None:
    """In each of 12 steps one of two GPUs waits for 4 of 10 ms, and computes beside it for 2 of them."""
    rows: list[dict[str, Any]] = []
    for step in range(12):
        for gpu in (0, 1):
            work = 9 if gpu == step % 2 else 5
            rows.append(kernel(gpu, 10 * step, work))
            rows.append(kernel(gpu, 10 * step + work, 10 - work, "nccl", stream=20))
            if work == 5:
                rows.append(kernel(gpu, 10 * step + work, 2))
    gain = told(view(kernels=kernels(*rows)))["late_in_turn"].gain
    assert pytest.approx(0.1) == gain.share
    assert pytest.approx(1.25) == gain.high
    assert ("collective",) == gain.beyond


@pytest.mark.parametrize(
    ("name", "backward", "needed"),
    [
        ("ncclDevKernel_AllReduce", "MulBackward0", False),
        ("ncclDevKernel_AllReduce", "aten::mul", True),
        ("ncclDevKernel_SendRecv", "MulBackward0", True),
    ],
)
def test_the_next_kernels_need_what_is_exchanged_but_gradients(
    name: str, backward: str, needed: bool
) -> None:
    """Two kernels of a collective; the operator shows whether there is a backward pass."""
    rows = [{"start_ns": i * MS, "dur_ns": MS, "family": "communication"} for i in range(2)]
    collectives = kernels(*({**row, "name": name, "full_name": name} for row in rows))
    assert needed == program.exchanges(view(kernels=collectives, ops=ops(op(backward, 0, MS))))


@pytest.mark.parametrize(("operators", "share"), [(1, 0.08), (100, 0.6)])
def test_the_profiler_takes_no_more_than_what_it_stores_in_a_gap(
    operators: int, share: float
) -> None:
    """A gap of 0.3 in 0.5 ms: each operator in it, and the call that ends it, costs 20 µs at most."""
    first = work("aten::mul", 50 * US, 100 * US, 100 * US)
    second = work("aten::mul", 499 * US, 500 * US, 100 * US)
    inside = [op("aten::add", (210 + i) * US, (211 + i) * US) for i in range(operators)]
    recorded = traced(first, second, ops=ops(*inside))
    assert pytest.approx(share) == slowing.by_profiler(all_of(recorded))


def saving_gpu() -> perfkit.Selection:
    """GPU 0 saves for 10 ms after each of four steps of 9 ms; GPU 1 computes for 6 of them in a collective."""
    rows: list[dict[str, Any]] = []
    for at in range(0, 80, 20):
        rows += [kernel(0, at, 9), kernel(0, at + 19, 1, "nccl")]
        rows += [kernel(1, at, 15), kernel(1, at + 9, 11, "nccl", stream=20)]
    state = [{"start_ns": (20 * i + 9) * MS, "dur_ns": 9 * MS, "bytes": 10**8} for i in range(4)]
    copied = copies(*({**row, "direction": "D2H", "dst_memory": "pageable"} for row in state))
    saves = [op("save_checkpoint", (20 * i + 9) * MS, (20 * i + 19) * MS) for i in range(4)]
    return view(kernels=kernels(*rows), copies=copied, ranges=ranges(*saves))


def test_the_gpu_that_saves_holds_up_the_others_of_its_file() -> None:
    """Of 160 ms GPU 0 saves for 40 and GPU 1 only waits for 16; without that all takes half as long."""
    gain = told(saving_gpu())["checkpointing"].gain
    assert pytest.approx(56 / 160) == gain.share
    assert pytest.approx(2) == gain.high
    assert ("collective",) == gain.beyond


def staged(stages: int, parts: int) -> perfkit.Selection:
    """Stages that compute each part for 2 ms, in three rounds; a receive of 0.1 ms or more before each part.

    Stage n receives its first part after n parts, and a receive lasts until the stage before has sent.
    """
    rows: list[dict[str, Any]] = []
    length = 2 * (parts + stages - 1)
    for step in range(3):
        for stage in range(stages):
            begun = step * length
            for part in range(parts):
                start = step * length + 2 * (stage + part)
                rows.append(sent(stage, begun, start + 0.1 - begun))
                rows.append({**kernel(stage, 0, 1), **lasting_ms(start + 0.1, 1.9)})
                begun = start + 2
            if begun < (step + 1) * length:
                rows.append(sent(stage, begun, (step + 1) * length - begun))
    return view(kernels=kernels(*rows))


def sent(gpu: int, start: float, dur: float) -> dict[str, Any]:
    """A kernel of NCCL that sends or receives, ms."""
    named = kernel(gpu, 0, 1, "ncclDevKernel_SendRecv(args)")
    return {**named, "family": "communication", **lasting_ms(start, dur)}


def lasting_ms(start: float, dur: float) -> dict[str, int]:
    return {"start_ns": round(start * MS), "dur_ns": round(dur * MS)}


@pytest.mark.parametrize(("stages", "parts"), [(3, 4), (4, 4), (2, 1)])
def test_stages_of_a_pipeline_wait_for_the_share_that_its_schedule_says(
    stages: int, parts: int
) -> None:
    """A step takes m + p - 1 parts, of which each of p stages computes m."""
    finding = told(staged(stages, parts))["receive_wait"]
    bubble = (stages - 1) / (parts + stages - 1)
    assert finding.gain.share == pytest.approx(bubble, abs=0.03)
    assert finding.gain.high == pytest.approx(1 / (1 - bubble), rel=0.05)


def test_even_exchanges_wait_for_nothing() -> None:
    """Two GPUs compute for 8 ms and exchange for 2 ms: nobody waits, but the exchange is exposed."""
    rows = [
        row
        for step in range(6)
        for gpu in (0, 1)
        for row in (kernel(gpu, 10 * step, 8), sent(gpu, 10 * step + 8, 2))
    ]
    found = told(view(kernels=kernels(*rows)))
    assert "receive_wait" not in found
    assert "exposed_communication" in found
