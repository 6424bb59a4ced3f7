"""Figures and findings of call paths: of the toy program, and of real databases."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from callpaths import call_metrics, calltree, thread_metrics, threads, toy_metrics, toy_tree, trace
from diagnosis.traces import told, values
from frames import profile

import perfkit
from perfkit import diagnosis
from perfkit.analysis.calltree import mpi_calls
from perfkit.diagnosis.finding import Figure
from perfkit.run import Run
from perfkit.tables import CALL_METRICS


def run(wall_ns: int = 0) -> Run:
    """The toy program as a run; with a trace where its length is given."""
    frames = {"CALLTREE": toy_tree(), "CALL_METRICS": toy_metrics()}
    if wall_ns:
        frames |= {
            "THREADS": threads((1, "cpu", "thread 0"), (2, "gpu", "GPU context 1 stream 7")),
            "THREAD_METRICS": thread_metrics((1, "main thread", "CPUTIME", "s", 3.0)),
            "TRACE": trace((1, 0, wall_ns, 4, True), (2, 0, 3_000_000, 6, True)),
        }
    made = profile("hpctoolkit", "toy", 0, wall_ns, **frames)
    return Run([replace(made, capture=made.capture.assign(tool="HPCToolkit"))])


def test_totals_count_every_kernel_once() -> None:
    """Two entry points with 1 ms of kernels in 100 launches each, 1 ms of copies: 2 ms, 200, 10 us, a third copies.

    CPU time is thread time: without a trace there is no wall time to divide by.
    """
    figures = values(run())
    expected = {
        "kernel_ns": 2e6,
        "launch_count": 200,
        "kernel_mean_ns": 1e4,
        "host_ns": 4e9,
        "copy_frac": 1 / 3,
    }
    expected |= {"main_thread_kernel_frac": 0.5}
    assert expected == pytest.approx({name: figures[f"paths_{name}"] for name in expected})
    assert not {"paths_wall_ns", "paths_gpu_busy_frac", "paths_launch_low_frac"} & set(figures)


def test_real_time_is_not_called_cpu_time() -> None:
    """The toy program, whose threads a clock on the wall sampled."""
    metrics = toy_metrics()
    named = metrics["metric"].astype(object).replace("CPUTIME", "REALTIME")
    frames = {
        "CALLTREE": toy_tree(),
        "CALL_METRICS": CALL_METRICS.make(metrics.assign(metric=named)),
    }
    toy = perfkit.select(Run([profile("hpctoolkit", "toy", 0, 0, **frames)]))
    time = diagnosis.figures(toy)["paths_host_ns"]
    assert ("Real time", 4e9) == (time.label, time.value)
    assert "sleeps counts" in time.definition
    texts = [f"{finding.title} {finding.explanation}" for finding in told(toy).values()]
    assert "CPU time" not in " ".join(texts)


def test_gains_are_of_the_wall_time() -> None:
    """3 ms of GPU operations in 1 s on one GPU: 0.3 %, at most 333x; 1 ms of copies gains 0.1 % of the run.

    Kernels take 2 ms: whatever else disappears, at most 500x, where the product of gains has no bound.
    """
    toy = perfkit.select(run(wall_ns=1_000_000_000))
    assert 0.003 == pytest.approx(values(toy)["paths_gpu_busy_frac"])
    found = told(toy)
    idle, copies = found["paths_gpu_idle"], found["paths_copies"]
    assert ("high", pytest.approx(1 / 0.003)) == (idle.severity, idle.gain.high)
    assert ("low", pytest.approx(1 / 0.999)) == (copies.severity, copies.gain.high)
    together = diagnosis.together(diagnosis.findings(toy), diagnosis.figures(toy))
    assert together is not None
    assert 500 == pytest.approx(together.high)


def test_without_a_trace_gains_are_of_the_gpus_time() -> None:
    found = told(run())
    copies, host = found["paths_copies"], found["paths_host"]
    assert (pytest.approx(1.5), None) == (copies.gain.high, copies.gain.share)
    assert "of the GPU's time" in copies.gain.why
    assert (
        diagnosis.together([copies], {"x": Figure("x", "", 0.5, "1", "", "")}) is None
    )  # one needs no row for all
    assert ("100 %" in host.title, "train" in host.title) == (
        True,
        True,
    )  # the only Python function of the thread


ALLGATHER = {
    "MPI_Allgather": 14.676795,
    "MPI_Finalize": 10.00807,
    "MPI_Barrier": 1.342053,
    "MPI_Wtime": 0.005927,
}


@pytest.mark.parametrize(
    ("name", "calls", "total"),
    [("allgather", ALLGATHER, 26.158368), ("cpi", {"MPI_Finalize": 3.998242}, 3.998242)],
)
def test_mpi_calls_of_real_databases(
    name: str, calls: dict[str, float], total: float, profiles: Path
) -> None:
    """CPU time in s by a walk over the databases' own files: experiment.xml, and the doubles of each metric-db."""
    loaded = perfkit.load(profiles / f"hpctoolkit/hpctoolkit-{name}-database")
    found = mpi_calls(loaded.calltree, loaded.call_metrics, metric="CPUTIME").set_index("name")
    assert calls == pytest.approx(found["inclusive"].to_dict())
    assert {call: value / total for call, value in calls.items()} == pytest.approx(
        found["share_frac"].to_dict()
    )


def test_advice_on_mpi_asks_what_the_calls_are(profiles: Path) -> None:
    """All time of cpi is MPI_Finalize: a longer recording, no overlap. A ping-pong sends and receives: overlap."""
    for name, words, other in (
        ("cpi", "MPI_Init", "MPI_Isend"),
        ("ping-pong", "MPI_Isend", "MPI_Init"),
    ):
        mpi = told(perfkit.load(profiles / f"hpctoolkit/hpctoolkit-{name}-database"))["mpi_time"]
        steps = " ".join(step for texts in mpi.advice.values() for step in texts)
        assert (words in steps, other in steps) == (True, False)
    found = told(perfkit.load(profiles / "hpctoolkit/hpctoolkit-allgather-database"))
    assert {"mpi_time"} == set(found), "the loop around the calls has no time of its own"


def test_real_databases_without_cpu_time_or_launches(profiles: Path) -> None:
    """loops-perf counts perf::task-clock: 3.6e9 ns, 7 of 9 samples of the main thread in the loop of line 1011.

    loops-hip-amd has the time of kernels and no number of launches: no figure, where it once was 0 %.
    """
    database = perfkit.select(
        perfkit.load(profiles / "hpctoolkit/yuninxia__HPCToolkit__loops-perf-database")
    )
    figures = diagnosis.figures(database)
    assert 3.6e9 == figures["paths_host_ns"].value
    (host,) = diagnosis.findings(database)
    assert ("paths_host", True) == (host.rule, "loops.c:1011" in host.title)
    own = dict(zip(["share", "all"], (host.evidence[1].value, host.evidence[2].value), strict=True))
    assert {"share": 1.2 / 3.6, "all": 3.6e9} == pytest.approx(own)
    assert not [r for r in diagnosis.refusals(database) if "CPU time" in r.question]
    database = perfkit.select(
        perfkit.load(profiles / "hpctoolkit/yuninxia__HPCToolkit__loops-hip-amd-t-database")
    )
    assert {"GKER", "GPUOP"} == set(database.run.call_metrics["metric"])
    assert values(database)["paths_kernel_ns"] > 0
    assert [] == [name for name in values(database) if "launch" in name]


def test_a_call_inside_a_call_counts_once() -> None:
    tree = calltree(
        {"node": 1, "name": "main thread"},
        {"node": 2, "parent": 1, "name": "solve.c:7", "kind": "line", "file": "solve.c", "line": 7},
        {"node": 3, "parent": 2, "name": "MPI_Bcast"},
        {"node": 4, "parent": 3, "name": "PMPI_Send"},
        {"node": 5, "parent": 1, "name": "MPIR_Send"},
    )
    values = [(1, 4.0, 0.0), (2, 3.0, 0.0), (3, 3.0, 1.0), (4, 2.0, 2.0), (5, 1.0, 1.0)]
    metrics = call_metrics(*((node, "CPUTIME", "s", inside, own) for node, inside, own in values))
    (row,) = mpi_calls(tree, metrics, metric="CPUTIME").to_dict("records")
    assert ("MPI_Bcast", 3.0, 0.75, "solve.c:7") == (
        row["name"],
        row["inclusive"],
        row["share_frac"],
        row["at"],
    )
    assert "main thread > MPI_Bcast" == row["path"]


def test_allocation_on_a_gpu_of_amd_is_told(profiles: Path) -> None:
    """0.2896 of 1.4024 s of GPU operations are allocations, as truth.json has them: 20.6 %."""
    name = "hpctoolkit/hpctoolkit-leo-amd-database"
    truth = json.loads((profiles / "golden" / f"{name}.truth.json").read_text())[
        "derived_all_threads"
    ]
    finding = told(perfkit.load(profiles / name))["paths_allocation"]
    share = truth["alloc_time_s"] / truth["gpu_op_time_s"]
    expected = [share, truth["alloc_time_s"] * 1e9, truth["gpu_op_time_s"] * 1e9]
    assert expected == pytest.approx([figure.value for figure in finding.evidence])
    assert ("medium", "high", pytest.approx(1 / (1 - share)), None) == (
        *(finding.severity, finding.confidence, finding.gain.high, finding.gain.share),
    )
