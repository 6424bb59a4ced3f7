"""GPUs that are slower, have more work, come late or do nothing: small runs with known times, and real captures."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from diagnosis.test_diagnosis import _view
from frames import kernels

import perfkit
from perfkit import diagnosis
from perfkit.diagnosis import gpus
from perfkit.diagnosis.finding import Finding
from perfkit.diagnosis.timeline import breakdown
from perfkit.format import percent

MS = 1_000_000
GPU_WORK = {"kernel", "gpu_memcpy", "gpu_memset", "memcpy", "memset"}


def told(view: perfkit.Selection) -> dict[str, Finding]:
    """What is found in a run, by rule."""
    return {finding.rule: finding for finding in diagnosis.findings(view)}


def kernel(gpu: int, start: int, dur: int, name: str = "work", **more: Any) -> dict[str, Any]:
    """A kernel of a GPU, in ms."""
    family = "communication" if name == "nccl" else "other"
    return {"gpu": gpu, "start_ns": start * MS, "dur_ns": dur * MS, "name": name, "family": family, **more}


def meeting(*works_ms: int, grids: tuple[int, ...] = (8, 8, 8), by: str = "gpu") -> perfkit.Selection:
    """Four steps of 17 ms: each GPU computes for so many ms, then all are in a collective until the step ends."""
    rows = []
    for step in range(4):
        for gpu, (work, grid) in enumerate(zip(works_ms, grids, strict=True)):
            rows.append(kernel(gpu, 17 * step, work, grid_blocks=grid))
            rows.append(kernel(gpu, 17 * step + work, 17 - work, "nccl"))
    return _view(kernels=kernels(*({**row, by: row["gpu"]} for row in rows)))


def late(first_wait_ms: int = 9) -> perfkit.Selection:
    """After a kernel of 1 ms, three steps of 20 ms: GPU 0 computes at once, GPU 1 is idle before, GPU 0 waits."""
    rows = [kernel(0, 0, 1, "begin"), kernel(1, 0, 1, "begin")]
    for base, wait in ((1, first_wait_ms), (21, 9), (41, 9)):
        rows += [kernel(0, base, 10), kernel(0, base + 10, 10, "nccl")]
        rows += [kernel(1, base + wait, 10), kernel(1, base + wait + 10, 10 - wait, "nccl")]
    return _view(kernels=kernels(*rows))


def beside(other_ms: int) -> perfkit.Selection:
    """GPU 0 works for 100 ms, GPU 1 for the first of them only."""
    return _view(kernels=kernels(kernel(0, 0, 100), kernel(1, 0, other_ms)))


@pytest.mark.parametrize(("by", "name"), [("gpu", "GPU 2"), ("rank", "GPU 2 of rank 2")])
def test_a_slower_gpu_is_told_by_its_kernels(by: str, name: str) -> None:
    """Its kernels last 16 ms, not 10: 1.6 times; 4 times 6 ms of 68 ms are lost, and waiting is no communication.

    Of the time 60 of 204 ms are communication. 48 of them are waits for GPU 2, and 12 ms (5.9 %) the transfer.
    """
    found = told(meeting(10, 10, 16, by=by))
    slow = found["slow_gpu"]
    assert slow.title == f"{name} is slower than the others: the same kernels last 1.60 times as long"
    assert ("high", "high") == (slow.severity, slow.confidence)
    assert [1.6, 24 / 68] == pytest.approx([figure.value for figure in slow.evidence])
    assert (1.0, 68 / 44) == pytest.approx((slow.gain.low, slow.gain.high))
    assert not {"ranks", "late_gpu", "exposed_communication"} & set(found)


def test_more_work_is_told_as_uneven_work() -> None:
    """The kernels that last 16 ms have twice the blocks: 64 ms over the mean of 48 ms, and 16 of 68 ms above it."""
    found = told(meeting(10, 10, 16, grids=(8, 8, 16)))
    uneven = found["ranks"]
    assert uneven.title == "The slowest GPU computes 33.3 % longer than the average"
    assert 16 / 68 == pytest.approx(uneven.gain.share)
    assert ["gpu_imbalance_frac"] == [figure.id for figure in uneven.evidence]
    assert not {"slow_gpu", "late_gpu", "exposed_communication"} & set(found)


def test_even_gpus_communicate() -> None:
    """All compute for 10 of 17 ms: nobody waits for another one, and 7 of 17 ms are communication."""
    view = meeting(10, 10, 10)
    found = told(view)
    assert not {"slow_gpu", "ranks", "late_gpu", "gpu_unused"} & set(found)
    assert 7 / 17 == pytest.approx(found["exposed_communication"].gain.share)
    assert 0 == gpus.waiting(view)


def test_kernels_that_differ_are_doubted() -> None:
    """One kernel lasts 30 instead of 10 ms on GPU 1, the other 10 ms on both: 40 over 20 ms, but not all kernels."""
    rows = [kernel(gpu, 100 * step, 10, "same") for step in range(3) for gpu in (0, 1)]
    rows += [kernel(gpu, 100 * step + 10, 10 + 20 * gpu, "other") for step in range(3) for gpu in (0, 1)]
    rows += [kernel(0, 240, 0, "end")]
    slow = told(_view(kernels=kernels(*rows)))["slow_gpu"]
    assert "medium" == slow.confidence
    assert slow.against == ("not all kernels take longer there (1.00 to 3.00 times as long): their data may differ",)


def test_a_late_gpu_is_told_by_who_waits_for_it() -> None:
    """GPU 0 communicates for 30 of 61 ms, GPU 1 for 3: it is idle for 27 ms before its kernels."""
    found = told(late())
    of = found["late_gpu"]
    assert of.title == "GPU 1 comes late to collectives: another GPU waits for it 44.3 % of the time"
    assert [27 / 61, 27 / 61] == pytest.approx([figure.value for figure in of.evidence])
    assert ("high", "high", ()) == (of.severity, of.confidence, of.against)
    assert 61 / 34 == pytest.approx(of.gain.high)
    assert "exposed_communication" not in found


def test_a_wait_in_the_first_collective_is_doubted() -> None:
    """GPU 1 is late before the first collective alone: processes that begin apart look like this."""
    rows = [kernel(gpu, 0, 1, "begin") for gpu in (0, 1)]
    rows += [kernel(0, 1, 10), kernel(0, 11, 20, "nccl"), kernel(1, 20, 10), kernel(1, 30, 1, "nccl")]
    rows += [kernel(gpu, start, 1, name) for gpu in (0, 1) for start, name in ((31, "work"), (32, "nccl"))]
    of = told(_view(kernels=kernels(*rows)))["late_gpu"]
    assert "medium" == of.confidence
    assert of.against == ("100 % of this wait lies in the first collective: the GPUs may have begun apart",)


def test_a_gpu_that_does_nothing_is_told() -> None:
    """GPU 1 works for 1 of 100 ms: 99 of 200 ms of both."""
    of = told(beside(1))["gpu_unused"]
    assert of.title == "GPU 1 is idle 99.0 % of the time while another GPU works"
    assert [0.99, 1.0] == pytest.approx([figure.value for figure in of.evidence])
    assert 99 / 200 == pytest.approx(of.gain.share)
    assert "gpu_unused" not in told(beside(10))


def test_a_gpu_that_another_rank_uses_is_not_unused() -> None:
    """Rank 1 works on GPU 1 and touches GPU 0, on which rank 0 works; nor is GPU 0 of rank 1 one with less work."""
    rows = [kernel(0, 0, 100), kernel(1, 0, 100, rank=1), kernel(0, 0, 1, rank=1)]
    assert not {"gpu_unused", "ranks", "slow_gpu"} & set(told(_view(kernels=kernels(*rows))))


@pytest.mark.parametrize(
    "name",
    [
        "GindaChen__nsys-ai__h100_2gpu_1s.sqlite",
        "GindaChen__nsys-ai__mfu_2gpu_before.sqlite",
        "openhackathons-org__gpubootcamp__jacobi_memcpy_nvlink_report.sqlite",
    ],
)
def test_even_gpus_of_real_captures_are_quiet(profiles: Path, name: str) -> None:
    """Two GPUs that compute within 2 % of each other while both are recorded, by `timeline.breakdown`."""
    found = set(told(perfkit.select(perfkit.load(profiles / "nsys" / name))))
    assert not {"slow_gpu", "ranks", "late_gpu", "gpu_unused"} & found


def test_the_late_rank_of_a_real_run(profiles: Path) -> None:
    """Eight ranks of DLRM, 8 collectives: rank 7 is in them for 1.7 ms, rank 1 for 11.3 ms, mostly in the first.

    Rank 1 was recorded for 18.9 ms, and these 9.5 ms are half of that. The eight collectives need 0.22 ms on each
    rank, by the JSON files: 1.4 % of the time are transfers. All other exposed communication is waiting.
    """
    folder = profiles / "torch" / "facebookresearch__param__dlrm_kineto"
    view = perfkit.select(perfkit.load(folder))
    of = told(view)["late_gpu"]
    assert of.title.startswith("GPU 7 of rank 7 comes late")
    assert "medium" == of.confidence
    took, recorded, worked = [], [], []
    for path in sorted(folder.glob("*.json*")):
        every = [e for e in json.loads(path.read_bytes())["traceEvents"] if "dur" in e and e.get("cat") != "Trace"]
        events = [e for e in every if str(e.get("cat", "")).lower() in GPU_WORK]
        for rows, ends in ((every, recorded), (events, worked)):
            ends.append((min(e["ts"] for e in rows), max(e["ts"] + e["dur"] for e in rows)))
        took.append([e["dur"] for e in sorted(events, key=lambda e: e["ts"]) if "nccl" in e["name"]])
    assert (8, {8}) == (len(took), {len(of_rank) for of_rank in took})
    first, last = min(start for start, _ in worked), max(end for _, end in worked)
    spans = [min(end, last) - max(start, first) for start, end in recorded]
    sums = [sum(of_rank) for of_rank in took]
    transfers = 8 * sum(map(min, zip(*took, strict=True))) / sum(spans)
    assert 0.0137 == pytest.approx(transfers, rel=0.02)
    exposed = breakdown(view)[["exposed_communication_ns", "span_ns"]].sum()
    of_time = exposed["exposed_communication_ns"] / exposed["span_ns"]
    assert of_time - transfers == pytest.approx(gpus.waiting(view), abs=0.002)  # work hides some of the transfers
    most = max((total - min(sums)) / span for total, span in zip(sums, spans, strict=True))
    assert most == pytest.approx(of.evidence[0].value, rel=0.02)


def test_gpus_that_come_late_in_turn_wait_as_much() -> None:
    """GPU 0 is late once and GPU 1 once: their totals are equal, but 2 times 6 ms of 2 times 18 ms are waiting."""
    rows = []
    for start, first in ((0, 0), (9, 1)):
        rows += [kernel(first, start, 1), kernel(first, start + 1, 8, "nccl")]
        rows += [kernel(1 - first, start, 1), kernel(1 - first, start + 7, 2, "nccl")]
    view = _view(kernels=kernels(*rows))
    assert 12 / 36 == pytest.approx(gpus.waiting(view))
    assert "late_gpu" not in told(view)


def idle_by_sql(path: Path) -> dict[int, float]:
    """The share of the time between the first and the last operation of any GPU in which a GPU has none, by SQL.

    An operation counts from where no earlier one of its GPU runs any more.
    """
    query = """
        WITH operation AS ({}),
        own AS (
            SELECT device, start, "end", COALESCE(MAX("end") OVER (PARTITION BY device ORDER BY start, "end"
                ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before FROM operation)
        SELECT device, 1.0 - SUM(MAX("end" - MAX(start, before), 0)) * 1.0
            / (SELECT MAX("end") - MIN(start) FROM operation) FROM own GROUP BY device
    """
    with closing(sqlite3.connect(f"file:{path}?mode=ro&immutable=1", uri=True)) as database:
        tables = {name for (name,) in database.execute("SELECT name FROM sqlite_master")}
        operations = [
            f'SELECT deviceId AS device, start, "end" FROM CUPTI_ACTIVITY_KIND_{name}'
            for name in ("KERNEL", "MEMCPY", "MEMSET")
            if f"CUPTI_ACTIVITY_KIND_{name}" in tables
        ]
        return dict(database.execute(query.format(" UNION ALL ".join(operations))).fetchall())


@pytest.mark.parametrize(
    ("name", "gpus_of"),
    [
        ("openhackathons-org__gpubootcamp__jacobi_memcpy_sys_report", {0: 0.069, 7: 0.688}),
        ("GindaChen__nsys-ai__mfu_2gpu_before", {0: 0.087, 1: 0.109}),
        ("GindaChen__nsys-ai__h100_2gpu_1s", {0: 0.0068, 1: 0.0069}),
    ],
)
def test_gpus_of_a_file_are_measured_over_one_span(name: str, gpus_of: dict[int, float], profiles: Path) -> None:
    """GPU 7 of jacobi is idle for 68.8 % of it, not for 7.3 % of its own; figure, chart and table say the same."""
    path = profiles / "nsys" / f"{name}.sqlite"
    shares = idle_by_sql(path)
    assert gpus_of == pytest.approx(shares, abs=0.001)
    view = perfkit.select(perfkit.load(path))
    table = breakdown(view).set_index("gpu")
    assert shares == pytest.approx((table["idle_ns"] / table["span_ns"]).to_dict(), abs=1e-9)
    figure, span = diagnosis.figures(view)["idle_frac"], diagnosis.figures(view)["span_ns"]
    assert sum(shares.values()) / len(shares) == pytest.approx(figure.value, abs=1e-9)
    for gpu in (min(shares, key=lambda gpu: shares[gpu]), max(shares, key=lambda gpu: shares[gpu])):
        assert f"{percent(shares[gpu])} (GPU {gpu})" in figure.definition
    assert table["span_ns"].unique().tolist() == [span.value], "the span of one GPU, not their sum"


def test_several_gpus_are_not_averaged_into_one(profiles: Path) -> None:
    """Of two GPUs one is idle at its edges for 66 %: it is named, with the other one. Of two alike both are told."""
    path = profiles / "nsys" / "openhackathons-org__gpubootcamp__jacobi_memcpy_sys_report.sqlite"
    titles = told(perfkit.select(perfkit.load(path)))
    assert titles["idle_edge"].title.startswith(
        "Start and end of the work keep GPU 7 idle 66.3 % of the time (GPU 0: 0.56 %)"
    )
    assert titles["computation"].title == "2 GPUs compute 30.3 % to 90.9 % of the time"
    assert any("cudaSetDevice" in step for step in titles["idle_edge"].advice["immediate"])


def test_a_mean_over_gpus_says_so(profiles: Path) -> None:
    """A title of the eight ranks of DLRM that speaks of the GPU speaks of their mean."""
    found = told(perfkit.select(perfkit.load(profiles / "torch" / "facebookresearch__param__dlrm_kineto")))
    assert found["small_operators"].title.startswith("On average over 8 GPUs: ")
    assert not [finding.title for finding in found.values() if finding.title.startswith("The GPU ")]
