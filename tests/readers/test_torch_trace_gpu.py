"""Kernels, copies and collectives of PyTorch traces, one quirk a test (made files)."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from readers import torch_files as made

# Kernels


def test_kernels_are_read_with_launch_shape(tmp_path: Path) -> None:
    """2 x 3 x 4 blocks of 32 x 2 x 1 threads, 1040 bytes of shared memory, 40 registers; AMD records none of it."""
    bare = made.event("kernel", "bare", 9, 1, 0, 7, device=0, stream=7)
    frame = made.read(tmp_path, made.kernel("a", 1, 2), bare).table("KERNELS")
    shape = frame[["grid_blocks", "block_threads", "shared_bytes", "registers"]]
    assert (24, 64, 1040, 40) == tuple(shape.iloc[0])
    assert shape.iloc[1].isna().all()


def test_kernels_have_a_short_name_and_a_family(tmp_path: Path) -> None:
    """The full name is kept to the letter, also what a page would have to escape."""
    names = [
        "void cutlass::Kernel<cutlass_80_tensorop_s1688gemm_64x64_nn_align4>(T1::Params)",
        "<script>alert(1)</script>",
    ]
    frame = made.read(tmp_path, *(made.kernel(name, i, 1) for i, name in enumerate(names))).table("KERNELS")
    assert names == frame["full_name"].tolist()
    assert "gemm" == frame["family"][0]


def test_kernels_in_graphs(tmp_path: Path) -> None:
    """By the graph's id, or by sharing the correlation of a graph launch; id 0 is no graph."""
    found = made.read(
        tmp_path,
        made.call("hipGraphLaunch", 1, 1, 5),
        made.call("cudaGraphLaunch", 2, 1, 6),
        *(
            made.kernel("a", 3 + i, 1, c, **{"graph id": g})
            for i, (c, g) in enumerate([(5, 0), (5, None), (7, 3), (8, 0)])
        ),
    )
    assert [True, True, True, False] == found.table("KERNELS")["in_graph"].tolist()
    assert any("1 of 2 graph launches have no kernels in the trace" in note for note in found.notes)
    assert "2 of 4 GPU operations (50.0%) have no call that launched them" in found.notes


def test_a_grid_in_threads_is_made_one_of_blocks(tmp_path: Path) -> None:
    """hipExtModuleLaunchKernel takes threads: 100 x 64 of them in blocks of 32 x 32 are 4 x 2 blocks."""
    shape = {"grid": [100, 64, 1], "block": [32, 32, 1]}
    calls = [made.call("hipExtModuleLaunchKernel", 1, 1, 1), made.call("hipLaunchKernel", 2, 1, 2)]
    frame = made.read(tmp_path, *calls, *(made.kernel("a", 3 + c, 1, c, **shape) for c in (1, 2))).table("KERNELS")
    assert [8, 6400] == frame["grid_blocks"].tolist()


def test_kernels_belong_to_the_process_that_made_calls(tmp_path: Path) -> None:
    """GPU events name the device as their process; with several processes it is not known, which a note says."""
    one = made.read(tmp_path, made.call("cudaLaunchKernel", 1, 1, 1), made.kernel("a", 2, 1, 1))
    assert [10] == one.table("KERNELS")["process"].tolist()
    other = {**made.call("cudaLaunchKernel", 1, 1, 1), "pid": 77}
    two = made.read(tmp_path, made.call("cudaLaunchKernel", 1, 1, 1), other, made.kernel("a", 2, 1, 1))
    assert [-1] == two.table("KERNELS")["process"].tolist()
    assert any("several processes made CUDA calls" in note for note in two.notes)


def test_operations_without_any_call(tmp_path: Path) -> None:
    """A trace without calls of the CPU says so once."""
    found = made.read(tmp_path, made.kernel("a", 1, 1, 4))
    assert any("none of the 1 GPU operations has a call" in note for note in found.notes)


@pytest.mark.parametrize(
    ("name", "kind", "expected"),
    [
        ("Memcpy HtoD (Pinned -> Device)", None, ("H2D", "pinned", "device")),
        ("Memcpy DtoH (Device -> Pageable)", None, ("D2H", "device", "pageable")),
        ("Memcpy HtoA (Pageable -> Array)", None, ("H2D", "pageable", "array")),
        ("Memcpy DtoD (Device -> Device Static)", None, ("D2D", "device", "device static")),
        ("Memcpy HtoH", None, ("H2H", None, None)),
        ("CopyHostToDevice", "HtoD", ("H2D", None, None)),
        ("CopyHostToDevice", None, ("unknown", None, None)),
        ("Memcpy Unknown (Unknown -> Unknown)", None, ("unknown", "unknown", "unknown")),
        ("Memset (Device)", None, ("memset", None, "device")),
        ("Memset", "Device", ("memset", None, "device")),
    ],
)
def test_copies_tell_direction_and_memory_by_their_name(
    name: str, kind: str | None, expected: tuple[str, str | None, str | None], tmp_path: Path
) -> None:
    """Kineto writes the kinds of CUPTI into the name; AMD repeats the direction as kind."""
    row = made.read(tmp_path, made.copy(name, 1, 1, kind=kind)).table("COPIES").iloc[0]
    found = [None if pd.isna(value) else value for value in row[["direction", "src_memory", "dst_memory"]]]
    assert list(expected) == found
    assert (4096, -1) == tuple(row[["bytes", "peer_gpu"]])


def test_peer_copies_name_the_other_gpu(tmp_path: Path) -> None:
    """GPU 0 sends to 3; the copy runs on the GPU that it is recorded in."""
    sides = {"device": None, "fromDevice": 0, "toDevice": 3}
    copies = [made.copy("Memcpy PtoP (Device -> Device)", 1 + gpu, 1, **sides, inDevice=gpu) for gpu in (0, 3)]
    frame = made.read(tmp_path, *copies).table("COPIES")
    assert [(0, 3, "P2P"), (3, 0, "P2P")] == list(zip(frame["gpu"], frame["peer_gpu"], frame["direction"], strict=True))


def test_a_copy_without_a_size_is_counted(tmp_path: Path) -> None:
    """ROCm records no size of some copies: their bytes are 0, which a note says."""
    found = made.read(tmp_path, made.copy("Memset (Device)", 1, 1, bytes=None), made.copy("Memset (Device)", 2, 1))
    assert [0, 4096] == found.table("COPIES")["bytes"].tolist()
    assert "1 of 2 copies and memsets carry no size, their bytes are 0" in found.notes


def test_a_device_that_is_no_number_of_a_device_is_unknown(tmp_path: Path) -> None:
    """Without arguments the process is the device and the thread the stream; beyond int32 it is none."""
    bare = {**made.event("kernel", "k", 1, 1, 2, 5), "args": None}
    frame = made.read(tmp_path, bare, made.kernel("k", 2, 1, device=2**40)).table("KERNELS")
    assert {(2, 5), (-1, 7)} == set(zip(frame["gpu"], frame["stream"], strict=True))


# Collectives


@pytest.mark.parametrize(
    ("name", "sent", "received", "operation", "size"),
    [
        ("allreduce", 10, 10, "all_reduce", 40),
        ("_allgather_base", 10, 40, "all_gather", 160),
        ("allgather_into_tensor_coalesced", 10, 40, "all_gather", 160),
        ("_reduce_scatter_base", 40, 10, "reduce_scatter", 160),
        ("broadcast", 10, 10, "broadcast", 40),
        ("_reduce_oop", 10, 10, "reduce", 40),
        ("all_to_allv", 40, 36, "all_to_all", 160),
        ("send", 10, 0, "send_recv", 40),
        ("gather", 10, 0, "gather", 160),
        ("gather", 10, 40, "gather", 160),
        ("scatter", 0, 10, "scatter", 160),
        ("barrier", 1, 1, "barrier", 4),
        ("new_thing", 10, 10, None, 40),
    ],
)
def test_collectives(name: str, sent: int, received: int, operation: str | None, size: int, tmp_path: Path) -> None:
    """Of 4 ranks and float32; the size is the larger buffer's, which of a gather or scatter only the root has."""
    kernel = made.kernel(made.NCCL, 1, 2.5, **made.message(name, sent, received, 4))
    row = made.read(tmp_path, kernel).table("COLLECTIVES").iloc[0]
    assert operation == (None if pd.isna(row["operation"]) else row["operation"])
    assert (size, "float32", 4, 2500.0, "0", "trace") == tuple(
        row[["bytes", "dtype", "ranks", "dur_ns", "group", "source"]]
    )
    assert row[["algorithm", "protocol"]].isna().all()


def test_collectives_without_a_size_are_counted(tmp_path: Path) -> None:
    """An unknown type of element, or none of the arguments: no row, and a note."""
    kernels = [made.kernel(made.NCCL, 1, 1, **{**made.message(), "dtype": "Odd"}), made.kernel(made.NCCL, 2, 1)]
    found = made.read(tmp_path, *kernels, made.kernel(made.NCCL, 3, 1, **made.message()))
    assert 1 == len(found.table("COLLECTIVES"))
    assert any("2 of 3 collective kernels tell no message size" in note for note in found.notes)


def test_amd_numbers_devices_on_its_own(tmp_path: Path) -> None:
    """Kernels of device 2 of a node that lists one GPU: kept, with a note, and without a compute capability."""
    listed = [{**made.DEVICE, "name": "", "warpSize": 64}]
    found = made.read(tmp_path, made.kernel("a", 1, 1, device=2), deviceProperties=listed)
    assert [2] == found.table("KERNELS")["gpu"].tolist()
    assert [(0, "")] == list(found.table("DEVICES")[["gpu", "compute_capability"]].itertuples(index=False, name=None))
    assert any("AMD's number of the device (2)" in note for note in found.notes)
