"""GPUs that are slower, have more work, come late or do nothing: small runs with known times, and real captures."""

from pathlib import Path
from typing import Any

import pytest
from diagnosis.traces import MS, all_of, told, view
from frames import kernels, ranges

import perfkit
from perfkit import diagnosis
from perfkit.analysis import timeline
from perfkit.diagnosis import gpus, recording
from perfkit.diagnosis.timeline import breakdown


def kernel(gpu: int, start: int, dur: int, name: str = "work", **more: Any) -> dict[str, Any]:
    family = "communication" if name == "nccl" else "other"
    return {
        "gpu": gpu,
        "start_ns": start * MS,
        "dur_ns": dur * MS,
        "name": name,
        "family": family,
        **more,
    }


def meeting(
    *works_ms: int, grids: tuple[int, ...] = (8, 8, 8), by: str = "gpu"
) -> perfkit.Selection:
    """Four steps of 17 ms: each GPU computes for so many ms, then all are in a collective until the step ends."""
    rows = []
    for step in range(4):
        for gpu, (work, grid) in enumerate(zip(works_ms, grids, strict=True)):
            rows.append(kernel(gpu, 17 * step, work, grid_blocks=grid))
            rows.append(kernel(gpu, 17 * step + work, 17 - work, "nccl"))
    return view(kernels=kernels(*({**row, by: row["gpu"]} for row in rows)))


def late() -> perfkit.Selection:
    """After a kernel of 1 ms, three steps of 20 ms: GPU 0 computes at once, GPU 1 is idle before, GPU 0 waits."""
    rows = [kernel(0, 0, 1, "begin"), kernel(1, 0, 1, "begin")]
    for base, wait in ((1, 9), (21, 9), (41, 9)):
        rows += [kernel(0, base, 10), kernel(0, base + 10, 10, "nccl")]
        rows += [kernel(1, base + wait, 10), kernel(1, base + wait + 10, 10 - wait, "nccl")]
    return view(kernels=kernels(*rows))


def beside(other_ms: int) -> perfkit.Selection:
    """GPU 0 works for 100 ms, GPU 1 for the first of them only."""
    return view(kernels=kernels(kernel(0, 0, 100), kernel(1, 0, other_ms)))


@pytest.mark.parametrize(("by", "name"), [("gpu", "GPU 2"), ("rank", "GPU 2 of rank 2")])
def test_a_slower_gpu_is_told_by_its_kernels(by: str, name: str) -> None:
    """Its kernels last 16 ms, not 10: 1.6 times; 4 times 6 ms of 68 ms are lost, and waiting is no communication.

    Of the time 60 of 204 ms are communication. 48 of them are waits for GPU 2, and 12 ms (5.9 %) the transfer.
    """
    found = told(meeting(10, 10, 16, by=by))
    slow = found["slow_gpu"]
    assert (
        slow.title == f"{name} is slower than the others: the same kernels last 1.60 times as long"
    )
    assert ("high", "high") == (slow.severity, slow.confidence)
    assert [1.6, 24 / 68] == pytest.approx([figure.value for figure in slow.evidence])
    assert (1.0, 68 / 44) == pytest.approx((slow.gain.low, slow.gain.high))
    assert not {"ranks", "late_gpu", "exposed_communication"} & set(found)


def test_more_work_and_other_data_are_told_as_such() -> None:
    """The kernels that last 16 ms have twice the blocks: 64 ms over the mean of 48 ms, and 16 of 68 ms above it."""
    found = told(meeting(10, 10, 16, grids=(8, 8, 16)))
    uneven = found["ranks"]
    assert uneven.title == "The slowest GPU computes 33.3 % longer than the average"
    assert 16 / 68 == pytest.approx(uneven.gain.share)
    assert ["gpu_imbalance_frac"] == [figure.id for figure in uneven.evidence]
    assert not {"slow_gpu", "late_gpu", "exposed_communication"} & set(found)
    even = meeting(
        10, 10, 10
    )  # all compute for 10 of 17 ms: 7 of 17 ms are communication, and nobody waits
    found = told(even)
    assert not {"slow_gpu", "ranks", "late_gpu", "gpu_unused"} & set(found)
    assert (pytest.approx(7 / 17), 0) == (
        found["exposed_communication"].gain.share,
        gpus.waiting(even),
    )
    rows = [kernel(gpu, 100 * step, 10, "same") for step in range(3) for gpu in (0, 1)]
    rows += [
        kernel(gpu, 100 * step + 10, 10 + 20 * gpu, "other") for step in range(3) for gpu in (0, 1)
    ]
    rows += [kernel(0, 240, 0, "end")]
    slow = told(view(kernels=kernels(*rows)))["slow_gpu"]
    assert "medium" == slow.confidence
    assert slow.against == (
        "not all kernels take longer there (1.00 to 3.00 times as long): their data may differ",
    )


def test_a_late_gpu_is_told_by_who_waits_for_it() -> None:
    found = told(late())
    of = found["late_gpu"]
    assert (
        of.title == "GPU 1 comes late to collectives: another GPU waits for it 44.3 % of the time"
    )
    assert [27 / 61, 27 / 61] == pytest.approx([figure.value for figure in of.evidence])
    assert ("high", "high", ()) == (of.severity, of.confidence, of.against)
    assert 61 / 34 == pytest.approx(of.gain.high)
    assert "exposed_communication" not in found
    rows = [kernel(gpu, 0, 1, "begin") for gpu in (0, 1)]
    rows += [
        kernel(0, 1, 10),
        kernel(0, 11, 20, "nccl"),
        kernel(1, 20, 10),
        kernel(1, 30, 1, "nccl"),
    ]
    rows += [
        kernel(gpu, start, 1, name)
        for gpu in (0, 1)
        for start, name in ((31, "work"), (32, "nccl"))
    ]
    of = told(view(kernels=kernels(*rows)))["late_gpu"]
    assert "medium" == of.confidence
    assert of.against == (
        "100 % of this wait lies in the first collective: the GPUs may have begun apart",
    )
    rows = []
    for start, first in ((0, 0), (9, 1)):
        rows += [kernel(first, start, 1), kernel(first, start + 1, 8, "nccl")]
        rows += [kernel(1 - first, start, 1), kernel(1 - first, start + 7, 2, "nccl")]
    chosen = view(kernels=kernels(*rows))
    waits = gpus.spread(chosen)
    assert waits is not None
    assert 12 / 36 == pytest.approx(waits.mean_frac)
    assert 0 == gpus.waiting(chosen), "no finding tells of it, so it stays with communication"
    found = told(chosen)
    assert "late_gpu" not in found
    assert "exposed_communication" in found


def test_a_gpu_that_does_nothing_is_told() -> None:
    of = told(beside(1))["gpu_unused"]
    assert of.title == "GPU 1 is idle 99.0 % of the time while another GPU works"
    assert [0.99, 1.0] == pytest.approx([figure.value for figure in of.evidence])
    assert 99 / 200 == pytest.approx(of.gain.share)
    assert "gpu_unused" not in told(beside(10))
    # Rank 1 works on GPU 1 and touches GPU 0, on which rank 0 works; nor is GPU 0 of rank 1 one with less work.
    rows = [kernel(0, 0, 100), kernel(1, 0, 100, rank=1), kernel(0, 0, 1, rank=1)]
    assert not {"gpu_unused", "ranks", "slow_gpu"} & set(told(view(kernels=kernels(*rows))))


def test_the_late_rank_of_a_real_run(profiles: Path) -> None:
    """Eight ranks of DLRM, 8 collectives: rank 7 is in them for 1.7 ms, rank 1 for 11.3 ms, mostly in the first.

    By the events of the JSON files (operations of the GPU, cut to the time that all ranks share): the difference is
    0.50706 of rank 1's 18.9 ms. Each collective needs as long as on the rank that comes last, 0.22 ms a rank in all,
    0.01369 of the time. All other exposed communication is waiting.
    """
    chosen = all_of(perfkit.load(profiles / "torch" / "facebookresearch__param__dlrm_kineto"))
    found = told(chosen)
    of = found["late_gpu"]
    assert of.title.startswith("GPU 7 of rank 7 comes late")
    assert ("medium", pytest.approx(0.50706, rel=0.02)) == (of.confidence, of.evidence[0].value)
    exposed = breakdown(chosen)[["exposed_communication_ns", "span_ns"]].sum()
    of_time = exposed["exposed_communication_ns"] / exposed["span_ns"]
    assert of_time - 0.01369 == pytest.approx(
        gpus.waiting(chosen), abs=0.002
    )  # work hides some of the transfers
    assert found["small_operators"].title.startswith("On average over 8 GPUs: ")
    assert not [finding.title for finding in found.values() if finding.title.startswith("The GPU ")]


@pytest.mark.parametrize(
    ("name", "shares"),
    [
        (
            "openhackathons-org__gpubootcamp__jacobi_memcpy_sys_report",
            {0: 0.068565545, 7: 0.687598397},
        ),
        ("GindaChen__nsys-ai__mfu_2gpu_before", {0: 0.08689969, 1: 0.108714871}),
        ("GindaChen__nsys-ai__h100_2gpu_1s", {0: 0.006764015, 1: 0.006846064}),
    ],
)
def test_gpus_of_a_file_are_measured_over_one_span(
    name: str, shares: dict[int, float], profiles: Path
) -> None:
    """Shares of the time from the first to the last operation of any GPU in which a GPU has none, by SQL."""
    chosen = all_of(perfkit.load(profiles / "nsys" / f"{name}.sqlite"))
    table = timeline.breakdown(chosen.kernels, chosen.copies, window=chosen.measured).set_index(
        "gpu"
    )
    assert shares == pytest.approx((table["idle_ns"] / table["span_ns"]).to_dict(), abs=1e-8)
    figure, span = diagnosis.figures(chosen)["idle_frac"], diagnosis.figures(chosen)["span_ns"]
    # The figure is a share of the known time: unknown stretches, all of them idle by SQL, are no part of it.
    unknown_ns = int(recording.unknown(chosen)["dur_ns"].sum())
    idle_ns, span_ns = table["idle_ns"].sum() - unknown_ns, table["span_ns"].sum() - unknown_ns
    assert idle_ns / span_ns == pytest.approx(figure.value, abs=1e-8)
    assert table["span_ns"].unique().tolist() == [span.value], "the span of one GPU, not their sum"
    found = told(chosen)
    if 7 in shares:  # one GPU is idle at its edges: it was not chosen
        assert any("cudaSetDevice" in step for step in found["idle_edge"].advice["immediate"])
    else:  # both compute within 2 % of each other
        assert not {"slow_gpu", "ranks", "late_gpu", "gpu_unused"} & set(found)


def two_solves(second_ms: int) -> perfkit.Selection:
    """GPU 0 solves alone for 100 ms, then with GPU 1 for 50 ms, of each 10 ms of which GPU 1 computes `second_ms`."""
    rows = [kernel(0, 10 * step, 10, grid_blocks=8) for step in range(15)]
    rows += [kernel(1, 100 + 10 * step, second_ms, grid_blocks=4) for step in range(5)]
    return perfkit.select(view(kernels=kernels(*rows)).run, window=[0, 150 * MS])


def test_inside_a_window_gpus_are_compared_while_all_of_them_work() -> None:
    assert gpus.common_window(two_solves(10)) == (100 * MS, 150 * MS)


def test_a_gpu_that_joins_in_the_second_solve_is_no_imbalance() -> None:
    assert "ranks" not in told(two_solves(10))


def test_an_imbalance_counts_as_a_share_of_all_that_is_judged() -> None:
    """GPU 0 computes 45 ms while both work, and GPU 1 25 ms: 10 ms above the mean, of 150 ms."""
    assert gpus.excess(all_of(two_solves(5))) == pytest.approx(10 / 150)


def test_gpus_without_collectives_do_not_wait_in_them() -> None:
    rows = [
        kernel(gpu, 10 * step, 10 - 6 * gpu, grid_blocks=8 - gpu)
        for step in range(5)
        for gpu in (0, 1)
    ]
    uneven = told(view(kernels=kernels(*rows)))["ranks"]
    assert "collectives" not in uneven.explanation


@pytest.mark.parametrize("by", ["gpu", "rank"])
def test_a_gpu_that_is_late_in_each_step_does_not_compute_longer(by: str) -> None:
    """Each computes 10 ms in each of three steps of 20 ms; one begins 8 ms late, and the other waits for it.

    From 8 ms on, when both have begun, the late one computes 30 ms and the other 22 ms.
    """
    rows = []
    for step in range(0, 60, 20):
        rows += [kernel(0, step, 10), kernel(0, step + 10, 10, "nccl")]
        rows += [kernel(1, step + 8, 10), kernel(1, step + 18, 2, "nccl")]
    chosen = view(kernels=kernels(*({**row, by: row["gpu"]} for row in rows)))
    assert gpus.common_window(chosen) == (0, 60 * MS)
    assert gpus.compared(chosen)["computation_ns"].tolist() == [30 * MS, 30 * MS]
    found = told(chosen)
    assert "ranks" not in found
    assert found["late_gpu"].gain.share == pytest.approx(24 / 60)


def test_stages_of_a_pipeline_that_begin_and_end_apart_compute_alike() -> None:
    """Each stage computes 6 ms in each of four marked steps of 10 ms, the second one from 3 ms on.

    The first sends 3 times in a step and the second receives once, so their transfers do not match.
    """
    rows = []
    for step in range(0, 40, 10):
        rows += [kernel(0, step + n, 1, rank=0) for n in range(6)]
        rows += [kernel(0, step + 6 + n, 1, "nccl", rank=0) for n in range(3)]
        rows += [kernel(0, step + 3 + n, 1, rank=1) for n in range(6)]
        rows += [kernel(0, step + 9, 1, "nccl", rank=1)]
    marked = [
        {
            "rank": rank,
            "start_ns": step * MS,
            "dur_ns": 10 * MS,
            "name": f"ProfilerStep#{step // 10}",
            "kind": "step",
        }
        for rank in (0, 1)
        for step in range(0, 40, 10)
    ]
    chosen = view(kernels=kernels(*rows), ranges=ranges(*marked))
    assert gpus.compared(chosen)["computation_ns"].tolist() == [24 * MS, 24 * MS]
