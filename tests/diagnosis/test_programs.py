"""Which GPUs run another program than the one that is judged: small runs with known kernels."""

import pandas as pd
from diagnosis.traces import MS, told, view
from frames import copies, kernels

import perfkit
from perfkit.diagnosis import judged
from perfkit.diagnosis.outside import sentences
from perfkit.diagnosis.programs import is_chosen, others


def on_gpus(*works: tuple[int, int, str, int]) -> perfkit.Selection:
    """Kernels of 1 ms, one after the other: GPU, process, name and how many."""
    every = [work for work in works for _ in range(work[3])]
    rows = [
        {"start_ns": 2 * MS * n, "dur_ns": MS, "gpu": gpu, "process": process, "name": name}
        for n, (gpu, process, name, _) in enumerate(every)
    ]
    return perfkit.select(view(kernels=kernels(*rows)).run)


TWO_PROGRAMS = (0, 1, "gemm", 30), (1, 2, "other", 20)


def test_a_gpu_with_other_kernels_of_another_process_is_of_another_program() -> None:
    assert others(on_gpus(*TWO_PROGRAMS)) == (1,)


def test_processes_with_a_kernel_in_common_are_one_program() -> None:
    assert others(on_gpus(*TWO_PROGRAMS, (1, 2, "gemm", 1))) == ()


def test_gpus_of_one_process_are_one_program() -> None:
    assert others(on_gpus((0, 1, "gemm", 30), (1, 1, "other", 20))) == ()


def test_gpus_are_one_program_through_a_third() -> None:
    assert others(on_gpus(*TWO_PROGRAMS, (2, 3, "gemm", 5), (2, 3, "other", 5))) == ()


def test_the_program_with_most_kernels_is_judged() -> None:
    assert judged(on_gpus(*TWO_PROGRAMS)).gpus == (0,)


def test_a_chosen_gpu_is_judged_whatever_runs_on_it() -> None:
    chosen = perfkit.select(on_gpus(*TWO_PROGRAMS).run, gpus=[1])
    assert judged(chosen).gpus == (1,)
    assert is_chosen(chosen)


def test_the_gpus_of_one_program_are_no_choice() -> None:
    assert not is_chosen(judged(on_gpus(*TWO_PROGRAMS)))


def test_the_program_that_is_not_judged_is_told() -> None:
    said = sentences(judged(on_gpus(*TWO_PROGRAMS)))
    assert said == "GPU 1 runs another program, which is not judged."


def test_a_gpu_of_the_same_number_on_another_rank_cannot_be_told_apart() -> None:
    first, second = (on_gpus(work).run.kernels for work in TWO_PROGRAMS)
    second = second.assign(rank=1, gpu=0).astype({"rank": "int32", "gpu": "int32"})
    assert others(view(kernels=pd.concat([first, second], ignore_index=True))) == ()


def test_a_gpu_that_only_copies_is_judged_with_the_program() -> None:
    run = view(
        kernels=on_gpus(*TWO_PROGRAMS).run.kernels,
        copies=copies({"start_ns": 0, "dur_ns": MS, "gpu": 2}),
    ).run
    assert judged(perfkit.select(run)).gpus == (0, 2)


def test_gpus_of_other_programs_are_no_unused_ones() -> None:
    assert "gpu_unused" not in told(judged(on_gpus((0, 1, "gemm", 30), (1, 2, "other", 1))))
