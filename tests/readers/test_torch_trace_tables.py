"""What the tables of a PyTorch trace hold: times, operators, ranges, kernels, copies and collectives (made files)."""

import random
from decimal import ROUND_HALF_UP, Decimal
from pathlib import Path

import msgspec
import pandas as pd
import pytest
from frames import known as rows
from readers import torch_files as made

from perfkit.readers import torch_trace
from perfkit.readers.torch_trace.events import nanoseconds


def test_times_processes_and_devices_of_a_trace(tmp_path: Path) -> None:
    # Microseconds with decimals become ns since the first event, the Python function at 99.5 us.
    found = torch_trace.read(made.printed(tmp_path / "trace.json", made.sample()))
    expected = {"KERNELS": [11_000, 56_500], "COPIES": [46_500, 50_000], "OPS": [2_500, 3_501]}
    expected["API_CALLS"] = [4_500, 40_500, 50_500]
    assert expected == {name: found.table(name)["start_ns"].tolist() for name in expected}
    assert [20_125, 10_000] == found.table("KERNELS")["dur_ns"].tolist()
    assert [(made.BASE + 99_500, 95_000)] == rows(found.capture, "t0_unix_ns", "dur_ns")
    # GPU events name the device as their process; with several processes it is not known, which a note says.
    launch = made.call("cudaLaunchKernel", 1, 1, 1)
    one = made.read(tmp_path, launch, made.kernel("a", 2, 1, 1))
    assert [10] == one.table("KERNELS")["process"].tolist()
    two = made.read(tmp_path, launch, {**launch, "pid": 77}, made.kernel("a", 2, 1, 1))
    assert [-1] == two.table("KERNELS")["process"].tolist()
    assert any("several processes made CUDA calls" in note for note in two.notes)
    alone = made.read(tmp_path, made.kernel("a", 1, 1, 4))
    assert any("none of the 1 GPU operations has a call" in note for note in alone.notes)
    # Kernels of device 2 of a node that lists one GPU of AMD's: kept, and without a compute capability.
    listed = [{**made.DEVICE, "name": "", "warpSize": 64}]
    found = made.read(tmp_path, made.kernel("a", 1, 1, device=2), deviceProperties=listed)
    assert [2] == found.table("KERNELS")["gpu"].tolist()
    assert [(0, "")] == rows(found.table("DEVICES"), "gpu", "compute_capability")
    assert any("AMD's number of the device (2)" in note for note in found.notes)
    # Without arguments the process is the device and the thread the stream; beyond int32 it is none.
    bare = {**made.event("kernel", "k", 1, 1, 2, 5), "args": None}
    frame = made.read(tmp_path, bare, made.kernel("k", 2, 1, device=2**40)).table("KERNELS")
    assert {(2, 5), (-1, 7)} == set(rows(frame, "gpu", "stream"))


def test_times_and_clocks(tmp_path: Path) -> None:
    # Ten thousand random times are those of Decimal, halves rounded up.
    dice = random.Random(3)
    texts = [str(dice.randrange(10 ** dice.randrange(1, 16))) for _ in range(10_000)]
    texts = [
        t + (f".{dice.randrange(10**n):0{n}}" if (n := dice.randrange(7)) else "") for t in texts
    ]
    expected = [int((Decimal(t) * 1000).to_integral_value(ROUND_HALF_UP)) for t in texts]
    assert expected == nanoseconds([msgspec.Raw(t.encode()) for t in texts]).tolist()
    # Signs, exponents and parts of a nanosecond, alone and among plain times.
    others = {"-12.5": -12_500, "1e3": 1_000_000, "2.5E-1": 250, "0.00049": 0, "0.0005": 1}
    for text, time in others.items():
        assert [time, 7000] == nanoseconds([msgspec.Raw(text.encode()), msgspec.Raw(b"7")]).tolist()
    # Without a base, times of days are the machine's uptime: t0 is missing, and 0 is the first event.
    found = made.read(tmp_path, made.op("a", 4458676416431.397, 1))
    assert pd.isna(found.capture["t0_unix_ns"].iloc[0])
    assert [0] == found.table("OPS")["start_ns"].tolist()
    # Kineto's conversion of clocks has produced events that end before they start.
    found = made.read(tmp_path, made.kernel("a", 1, -0.5), made.kernel("b", 2, 0))
    assert ["b"] == found.table("KERNELS")["full_name"].tolist()
    assert "events that end before they start are left out (1)" in found.notes
    versions = (
        ({"cuda_runtime_version": 12090}, "CUDA 12.9"),
        ({"hip_runtime_version": 60443483}, "HIP 6.4"),
        ({}, ""),
    )
    for header, version in versions:
        capture = made.read(
            tmp_path, made.op("a", 1, 1), **header
        ).capture  # PyTorch's own version is in no trace
        assert [("PyTorch profiler", version)] == rows(capture, "tool", "tool_version")


@pytest.mark.parametrize("category", ["overhead", "Overhead"])
def test_overhead_of_cupti_is_read(category: str, tmp_path: Path) -> None:
    kinds = {
        "Command Buffer Full": "queue_full",
        "Lazy Function Loading": "loading",
        "Resource": "profiler",
    }
    took = [made.event(category, name, 5 + i, 2, pid=-1, tid=0) for i, name in enumerate(kinds)]
    frame = made.read(tmp_path, made.op("a", 5, 20), *took).table("OVERHEAD")
    assert [*kinds.values()] == frame["kind"].tolist()
    assert [(-1, -1, 0, 2000), (-1, -1, 1000, 2000)] == rows(
        frame, "process", "thread", "start_ns", "dur_ns"
    )[:2]


def test_a_trace_begins_with_the_program_and_not_with_cupti(tmp_path: Path) -> None:
    found = made.read(tmp_path, made.op("a", 50, 10), made.event("overhead", "Resource", 20, 90))
    assert [0] == found.table("OPS")["start_ns"].tolist()
    assert [-30_000] == found.table("OVERHEAD")["start_ns"].tolist()
    assert [10_000] == found.capture["dur_ns"].tolist()


def test_what_no_table_holds_or_is_missing(tmp_path: Path) -> None:
    # A communicator's id of 64 bits; a correlation of 64 bits is none.
    found = made.read(
        tmp_path, made.op("a", 1, 1, **{"Comms Id": 2**64 - 9}), made.kernel("k", 1, 1, 2**64 - 1)
    )
    assert 1 == len(found.table("OPS"))
    assert [-1] == found.table("KERNELS")["correlation"].tolist()
    # Counters of CUPTI are left out with a note; the profiler's own spans and waits without one.
    others = (
        "cuda_profiler_range",
        "cuda_profiler_range",
        "mtia_runtime",
        "Trace",
        "gpu_user_annotation",
    )
    found = made.read(tmp_path, made.op("a", 9, 1), *(made.event(cat, "x", 1, 1) for cat in others))
    assert any("left out (2 cuda_profiler_range, 1 mtia_runtime)" in note for note in found.notes)
    assert 1000 == found.capture["dur_ns"].iloc[0]
    found = made.read(tmp_path, made.op("a", 1, 1), deviceProperties=[])
    told = {missing.table: missing.record for missing in found.missing}
    assert {
        "KERNELS",
        "COPIES",
        "API_CALLS",
        "RANGES",
        "PYTHON_CALLS",
        "SAMPLES",
        "DEVICES",
    } == set(told)
    assert "ProfilerActivity.CUDA" in told["KERNELS"]
    options = {told[table].split("(")[-1][:-1] for table in ("PYTHON_CALLS", "SAMPLES")}
    assert {"with_stack=True", "profile_memory=True"} == options
    # A window in which nothing ran has no tables but the devices, and no length.
    found = made.read(tmp_path)
    assert {"DEVICES"} == set(found.loaders)
    assert 0 == found.capture["dur_ns"].iloc[0]


def test_operators_and_calls(tmp_path: Path) -> None:
    def parents(frame: pd.DataFrame) -> dict[str, str | None]:
        names = dict(zip(frame["op"], frame["name"], strict=True))
        return {
            name: names.get(parent)
            for name, parent in zip(frame["name"], frame["parent"], strict=True)
        }

    # a holds b and d, b holds c: a's own time is 100 - 40 - 20 us; another thread is apart.
    spans = {"a": (0, 100), "b": (10, 40), "c": (20, 10), "d": (60, 20)}
    ops = [made.op(name, *span) for name, span in reversed(spans.items())]
    frame = made.read(tmp_path, *ops, {**made.op("e", 5, 5), "tid": 99}).table("OPS")
    assert [("a", None), ("b", "a"), ("c", "b"), ("d", "a"), ("e", None)] == [
        *parents(frame).items()
    ]
    assert [40_000, 30_000, 10_000, 20_000, 5_000] == frame["self_ns"].tolist()
    assert set(range(5)) == set(frame["op"])
    # b starts where a ends, d crosses the end of c, and a span without length holds nothing.
    spans = {
        "a": (0, 10),
        "b": (10, 5),
        "c": (20, 10),
        "d": (25, 10),
        "e": (26, 2),
        "x": (40, 0),
        "y": (40, 0),
    }
    frame = made.read(tmp_path, *(made.op(name, *span) for name, span in spans.items())).table(
        "OPS"
    )
    assert {**dict.fromkeys(spans), "e": "d"} == parents(frame)
    args = {
        "Input Dims": [[1, 2], []],
        "Input type": ["long int", ""],
        "Input Strides": [[2, 1], []],
    }
    args["Sequence number"] = 3
    frame = made.read(
        tmp_path, made.op("a", 1, 1, **args), made.op("b", 2, 1, **{"Input Dims": []})
    ).table("OPS")
    recorded = ("[[1,2],[]]", '["long int",""]', "[[2,1],[]]", 3)
    assert [recorded, (None, None, None, -1)] == rows(
        frame, "shapes", "dtypes", "strides", "sequence"
    )
    assert any(
        "record_shapes=True" in note for note in made.read(tmp_path, made.op("b", 2, 1)).notes
    )
    calls = [
        made.call("cudaLaunchKernel_v7000", 1, 1, 1),
        made.event("cuda_driver", "cuLaunchKernelEx_ptsz", 2, 1),
    ]
    frame = made.read(tmp_path, *calls).table("API_CALLS")
    assert [("cudaLaunchKernel", 1), ("cuLaunchKernelEx", -1)] == rows(frame, "name", "correlation")


def test_ranges_threads_and_memory(tmp_path: Path) -> None:
    # inner lies in outer; late crosses the end of outer, so both are start_end and enclose nothing.
    spans = {"ProfilerStep#12": (0, 50), "outer": (1, 20), "inner": (2, 5), "late": (15, 20)}
    spans |= {"alone": (40, 5), "in": (41, 1)}
    frame = made.read(
        tmp_path, *(made.event("user_annotation", n, *s) for n, s in spans.items())
    ).table("RANGES")
    assert [
        *(("ProfilerStep#12", "step", 0), ("outer", "start_end", 0), ("inner", "push_pop", 0)),
        *(("late", "start_end", 0), ("alone", "push_pop", 0), ("in", "push_pop", 1)),
    ] == rows(frame, "name", "kind", "depth")
    assert {""} == set(frame["domain"])
    threads = {
        "25738": 25738,
        "thread 12": 12,
        -549452224: -549452224,
        "Spans": -1,
        None: -1,
        7.0: 7,
    }
    frame = made.read(
        tmp_path, *(made.event("cpu_op", "a", i, 1, "p", t) for i, t in enumerate(threads))
    ).table("OPS")
    assert sorted(threads.values()) == frame["thread"].tolist()
    assert {-1} == set(frame["process"])
    # CUDA's and HIP's allocators by device; the CPU's is gpu -1 and reserves nothing.
    events = [
        made.memory(1, 10),
        made.memory(2, 20, 1, kind=6),
        made.memory(3, 30, -1, kind=0),
        made.memory(4, 0),
    ]
    frame = made.read(tmp_path, *events).table("SAMPLES")
    allocated = frame[frame["metric"] == "memory_allocated_bytes"]
    expected = [(-1, 2000, 30.0), (0, 0, 10.0), (0, 3000, 0.0), (1, 1000, 20.0)]
    assert expected == rows(allocated, "gpu", "time_ns", "value")
    assert [0, 0, 1] == frame.loc[frame["metric"] == "memory_reserved_bytes", "gpu"].tolist()


def test_kernels_graphs_and_grids(tmp_path: Path) -> None:
    # 2 x 3 x 4 blocks of 32 x 2 x 1 threads; AMD records none of it.
    bare = made.event("kernel", "bare", 9, 1, 0, 7, device=0, stream=7)
    frame = made.read(tmp_path, made.kernel("a", 1, 2), bare).table("KERNELS")
    columns = ("grid_blocks", "block_threads", "shared_bytes", "registers")
    assert [(24, 64, 1040, 40), (None,) * 4] == rows(frame, *columns)
    # The full name is kept to the letter, also what a page would have to escape.
    gemm = "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_nn_align4>(T1::Params)"
    names = [gemm, "<script>alert(1)</script>"]
    frame = made.read(tmp_path, *(made.kernel(name, i, 1) for i, name in enumerate(names))).table(
        "KERNELS"
    )
    assert names == frame["full_name"].tolist()
    assert "gemm" == frame["family"][0]
    # By the graph's id, or by sharing the correlation of a graph launch; id 0 is no graph.
    calls = [made.call("hipGraphLaunch", 1, 1, 5), made.call("cudaGraphLaunch", 2, 1, 6)]
    graphs = [(5, 0), (5, None), (7, 3), (8, 0)]
    kernels = [made.kernel("a", 3 + i, 1, c, **{"graph id": g}) for i, (c, g) in enumerate(graphs)]
    found = made.read(tmp_path, *calls, *kernels)
    assert [True, True, True, False] == found.table("KERNELS")["in_graph"].tolist()
    assert any("1 of 2 graph launches have no kernels in the trace" in note for note in found.notes)
    assert "2 of 4 GPU operations (50.0%) have no call that launched them" in found.notes
    # hipExtModuleLaunchKernel takes threads: 100 x 64 of them in blocks of 32 x 32 are 4 x 2 blocks.
    shape = {"grid": [100, 64, 1], "block": [32, 32, 1]}
    calls = [made.call("hipExtModuleLaunchKernel", 1, 1, 1), made.call("hipLaunchKernel", 2, 1, 2)]
    frame = made.read(
        tmp_path, *calls, *(made.kernel("a", 3 + c, 1, c, **shape) for c in (1, 2))
    ).table("KERNELS")
    assert [8, 6400] == frame["grid_blocks"].tolist()


def test_copies_and_their_peers(tmp_path: Path) -> None:
    for name, kind, expected in [
        ("Memcpy HtoD (Pinned -> Device)", None, ("H2D", "pinned", "device")),
        ("Memcpy DtoH (Device -> Pageable)", None, ("D2H", "device", "pageable")),
        ("Memcpy HtoA (Pageable -> Array)", None, ("H2D", "pageable", "array")),
        ("Memcpy DtoD (Device -> Device Static)", None, ("D2D", "device", "device static")),
        ("Memcpy Unknown (Unknown -> Unknown)", None, ("unknown", "unknown", "unknown")),
        ("Memcpy HtoH", None, ("H2H", None, None)),
        ("CopyHostToDevice", "HtoD", ("H2D", None, None)),  # AMD repeats the direction as kind
        ("CopyHostToDevice", None, ("unknown", None, None)),
        *(
            (name, kind, ("memset", None, "device"))
            for name, kind in (("Memset (Device)", None), ("Memset", "Device"))
        ),
    ]:
        frame = made.read(tmp_path, made.copy(name, 1, 1, kind=kind)).table("COPIES")
        columns = ("direction", "src_memory", "dst_memory", "bytes", "peer_gpu")
        assert [(*expected, 4096, -1)] == rows(frame, *columns)
    sides = {
        "device": None,
        "fromDevice": 0,
        "toDevice": 3,
    }  # the copy runs on the GPU that it is recorded in
    copies = [
        made.copy("Memcpy PtoP (Device -> Device)", 1 + gpu, 1, **sides, inDevice=gpu)
        for gpu in (0, 3)
    ]
    frame = made.read(tmp_path, *copies).table("COPIES")
    assert [(0, 3, "P2P"), (3, 0, "P2P")] == rows(frame, "gpu", "peer_gpu", "direction")
    # ROCm records no size of some copies: their bytes are 0, which a note says.
    found = made.read(
        tmp_path, made.copy("Memset (Device)", 1, 1, bytes=None), made.copy("Memset (Device)", 2, 1)
    )
    assert [0, 4096] == found.table("COPIES")["bytes"].tolist()
    assert "1 of 2 copies and memsets carry no size, their bytes are 0" in found.notes


def test_collectives(tmp_path: Path) -> None:
    for name, sent, received, operation, size in [
        *(("allreduce", 10, 10, "all_reduce", 40), ("_allgather_base", 10, 40, "all_gather", 160)),
        ("allgather_into_tensor_coalesced", 10, 40, "all_gather", 160),
        *(
            ("_reduce_scatter_base", 40, 10, "reduce_scatter", 160),
            ("broadcast", 10, 10, "broadcast", 40),
        ),
        *(("_reduce_oop", 10, 10, "reduce", 40), ("all_to_allv", 40, 36, "all_to_all", 160)),
        # The size is the larger buffer's, which of a gather or scatter only the root has.
        *(
            ("send", 10, 0, "send_recv", 40),
            ("gather", 10, 0, "gather", 160),
            ("gather", 10, 40, "gather", 160),
        ),
        *(
            ("scatter", 0, 10, "scatter", 160),
            ("barrier", 1, 1, "barrier", 4),
            ("new_thing", 10, 10, None, 40),
        ),
    ]:
        kernel = made.kernel(made.NCCL, 1, 2.5, **made.message(name, sent, received, 4))
        frame = made.read(tmp_path, kernel).table("COLLECTIVES")
        columns = (
            "operation",
            "bytes",
            "dtype",
            "ranks",
            "dur_ns",
            "group",
            "source",
            "algorithm",
            "protocol",
        )
        assert [(operation, size, "float32", 4, 2500.0, "0", "trace", None, None)] == rows(
            frame, *columns
        )
    # An unknown type of element, or none of the arguments: no row, and a note.
    kernels = [
        made.kernel(made.NCCL, 1, 1, **{**made.message(), "dtype": "Odd"}),
        made.kernel(made.NCCL, 2, 1),
    ]
    found = made.read(tmp_path, *kernels, made.kernel(made.NCCL, 3, 1, **made.message()))
    assert 1 == len(found.table("COLLECTIVES"))
    assert any("2 of 3 collective kernels tell no message size" in note for note in found.notes)


def test_a_grid_and_a_block_of_zeros_were_not_recorded(tmp_path: Path) -> None:
    """A kernel without blocks or threads cannot run; ROCm's traces write zeros."""
    zeros = {"grid": [0, 0, 0], "block": [0, 0, 0], "registers per thread": 0}
    frame = made.read(tmp_path, made.kernel("a", 1, 1, **zeros)).table("KERNELS")
    assert frame[["grid_blocks", "block_threads", "registers"]].isna().all(axis=None)


def test_registers_of_no_kernel_alone_are_zero(tmp_path: Path) -> None:
    some = [
        made.kernel("a", 1 + i, 1, i, **{"registers per thread": n}) for i, n in enumerate((0, 40))
    ]
    assert [0, 40] == made.read(tmp_path, *some).table("KERNELS")["registers"].tolist()


def test_memory_of_device_type_0_is_the_cpus(tmp_path: Path) -> None:
    events = made.memory(5, 100, device=0, kind=0), made.memory(6, 200, device=0, kind=1)
    samples = made.read(tmp_path, made.kernel("a", 1, 1), *events).table("SAMPLES")
    held = samples[samples["metric"] == "memory_allocated_bytes"]
    assert [(-1, 100.0), (0, 200.0)] == list(zip(held["gpu"], held["value"], strict=True))
