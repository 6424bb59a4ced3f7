"""The simulated runs of the lab's BERT: the report's latencies, and files that hold what their truth says."""

from __future__ import annotations

import gzip
import json
import math
import sqlite3
import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from make import SAMPLES, bert_a100, bert_a100_optimised, bert_kernels, bert_run
from perfkit import hardware, names
from perfkit.workloads import Plan, Size, flops

Connect = Callable[[Path], sqlite3.Connection]
DATA = Path(__file__).parents[2] / "data"
# what the report's snapshots print, s
GPU_S = {1: 0.0094331693649292, 8: 0.01702481269836426, 16: 0.027854666709899903, 32: 0.04863374710083008}
CPU_S = {1: 0.0645, 8: 0.3734, 16: 0.6388, 32: 1.2615}  # Table 13
FILES = ["layer.ncu.csv", "nsys.sqlite", "pt.trace.json.gz", "truth.json"]


@pytest.fixture
def lab(bert: Path) -> Path:
    """The folder of the lab's run."""
    return bert


@pytest.fixture(scope="module")
def optimised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the run with one thing changed per phase."""
    return bert_a100_optimised(tmp_path_factory.mktemp("bert") / "bert_a100_optimised")


def of(folder: Path, what: str) -> Path:
    """One of the files that bear the folder's name."""
    return folder / f"{folder.name}.{what}"


def truth(folder: Path) -> dict[str, Any]:
    """What the simulation says is true."""
    return json.loads(of(folder, "truth.json").read_text())


def named(db: sqlite3.Connection) -> list[tuple[int, int, str]]:
    """Start, end and name of all ranges."""
    return db.execute("SELECT start, end, text FROM NVTX_EVENTS ORDER BY start, end DESC").fetchall()


def steps_of(db: sqlite3.Connection, phase: str) -> list[tuple[int, int]]:
    """Start and end of the steps inside the range of that name."""
    ((first, last, _),) = [row for row in named(db) if row[2] == phase]
    return [(a, b) for a, b, text in named(db) if text.startswith("step ") and first <= a and b <= last]


def test_the_commands_find_them() -> None:
    """`python -m make bert_a100` and `bert_a100_optimised` are these functions."""
    assert (bert_a100, bert_a100_optimised) == (SAMPLES["bert_a100"], SAMPLES["bert_a100_optimised"])


@pytest.mark.parametrize("batch", GPU_S)
def test_latencies_are_the_reports(lab: Path, connect: Connect, batch: int) -> None:
    """Mean and median of the steps, as the ranges in the file say them, are what the report prints, to the ns."""
    phase = f"{batch} sequence{'s' * (batch > 1)}"
    lengths = [end - start for start, end in steps_of(connect(of(lab, "nsys.sqlite")), phase)]
    expected = round(GPU_S[batch] * 1e9)
    assert (12, expected, expected) == (len(lengths), statistics.mean(lengths), statistics.median(lengths))
    assert lengths == truth(lab)["phases"][phase]["latency_ns"]


@pytest.mark.parametrize(("place", "expected", "kind"), [("", GPU_S, "cuda"), ("cpu", CPU_S, "cpu")])
def test_timings_are_a_workloads(lab: Path, place: str, expected: dict[int, float], kind: str) -> None:
    """Rows have the columns that perfkit.workloads writes, the report's latencies, and say that they are simulated."""
    content = json.loads((lab / place / "timings.json").read_text())
    assert ("perfkit workload", kind) == (content["kind"], content["device"]["kind"])
    assert "no GPU ran" in content["simulated"]
    rows = content["rows"]
    assert {b: round(s * 1e9) for b, s in expected.items()} == {r["batch_count"]: r["step_median_ns"] for r in rows}
    assert all(statistics.mean(row["step_ns"]) == row["step_median_ns"] for row in rows)
    assert all(row["flops_per_s"] == row["step_flops"] / (row["step_median_ns"] / 1e9) for row in rows)


def test_timings_have_the_form_of_a_real_one(lab: Path, tmp_path: Path) -> None:
    """A workload that is really recorded has these keys, and these columns in a row."""
    pytest.importorskip("torch", reason="PyTorch is not installed (pip install 'perfkit[torch]')")
    from perfkit.workloads import running

    small = Plan("mlp", mode="inference", batches=(1,), steps=2, warm_up=1)
    real = running.record(small, tmp_path / "real")
    ours = json.loads((lab / "timings.json").read_text())
    assert set(real["rows"][0]) == set(ours["rows"][0])
    assert {"simulated"} == set(ours) - set(real)
    assert set(real) - set(ours) == {"versions", "loader", "captures"}


def test_operations_are_those_of_the_workload(lab: Path) -> None:
    """The formula of perfkit.workloads, less its pooler, to 0.1 %: its head judges sequences, this one each token."""
    plan = Plan("bert", mode="inference", size=Size(vocabulary=bert_kernels.VOCABULARY))
    for row in json.loads((lab / "timings.json").read_text())["rows"]:
        pooler = 2 * row["batch_count"] * 768 * 768
        assert math.isclose(row["step_flops"], flops.step(plan, row["batch_count"]) - pooler, rel_tol=1e-3)


def test_only_fp32_with_short_sequences_fits(lab: Path) -> None:
    """What decides the invented part: at batch 32, 128 tokens are 75 % of the FP32 peak and 384 are 238 % of it."""
    peak = hardware.peaks("NVIDIA A100 80GB PCIe").flops("fp32")
    for sequence, expected in ((128, 0.754), (384, 2.384)):
        work = flops.step(Plan("bert", mode="inference", size=Size(sequence=sequence)), 32)
        assert math.isclose(work / GPU_S[32] / peak, expected, abs_tol=0.001)
    launched = {name for name in of_kernels(truth(lab)) if "gemm" in name}
    assert {"fp32"} == {names.decode(name).precision for name in launched}


def of_kernels(told: dict[str, Any]) -> dict[str, tuple[float, ...]]:
    """Count, total, median, minimum and maximum by full name."""
    columns = ("count", "total_ns", "median_ns", "min_ns", "max_ns")
    return {row["full_name"]: tuple(row[c] for c in columns) for row in told["kernel_rows"]}


@pytest.mark.parametrize("which", ["lab", "optimised"])
def test_truth_is_what_a_loop_over_the_rows_counts(
    which: str, request: pytest.FixtureRequest, count_rows: Callable[[Path], dict[str, Any]]
) -> None:
    """Counts, sums, busy time, breakdown, calls and queueing in the truth are those of the rows."""
    folder = request.getfixturevalue(which)
    found, told = count_rows(of(folder, "nsys.sqlite")), truth(folder)
    assert found["kernels"] == told["kernels"]
    assert found["kernel_rows"] == of_kernels(told)
    assert found["calls"] == told["calls"]
    assert found["queued_total_ns"] == told["launches"]["queued_total_ns"]
    gpu = told["gpus"]["0"]
    names = ("computation_ns", "exposed_copy_ns", "idle_ns")
    assert {n: found["gpus"]["0"][n] for n in names} == {n: gpu["breakdown"][n] for n in names}
    assert found["gpus"]["0"]["kernel_busy_ns"] == gpu["kernel_busy_ns"]


@pytest.mark.parametrize("which", ["lab", "optimised"])
def test_phases_are_what_lies_in_their_steps(which: str, request: pytest.FixtureRequest, connect: Connect) -> None:
    """Kernels, launches and kernel time of each phase, from the rows inside its steps."""
    folder = request.getfixturevalue(which)
    db = connect(of(folder, "nsys.sqlite"))
    kernels = db.execute("SELECT start, end FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchall()
    calls = (
        "SELECT start FROM CUPTI_ACTIVITY_KIND_RUNTIME JOIN StringIds ON nameId = id WHERE value GLOB 'cuda*Launch*'"
    )
    launches = [start for (start,) in db.execute(calls)]
    for name, told in truth(folder)["phases"].items():
        steps = steps_of(db, name)
        own = [end - start for start, end in kernels if any(a <= start < b for a, b in steps)]
        called = sum(any(a <= start < b for a, b in steps) for start in launches)
        assert told["kernel_busy_ns"] == sum(own)
        assert (told["kernels_per_step"], told["launches_per_step"]) == (len(own) / 12, called / 12)


def test_the_host_decides_at_1_and_the_gpu_at_32(lab: Path) -> None:
    """Kernels run for a third of the time at batch 1, and nearly always from batch 8 on; never more than all of it."""
    shares = {p["batch"]: p["kernel_busy_ns"] / sum(p["latency_ns"]) for p in truth(lab)["phases"].values()}
    assert 0.3 < shares[1] < 0.4
    assert 0.9 < shares[8] < shares[16] < shares[32] < 1


def test_no_product_is_faster_than_the_peak(lab: Path, optimised: Path) -> None:
    """The fastest product gets less than 19.5 TFLOP/s in FP32, and less than 156 in TF32."""
    for folder, peak in ((lab, 19.5e12), (optimised, 156e12)):
        for phase in truth(folder)["phases"].values():
            places = bert_run.passes(phase["batch"])
            cases = [bert_kernels.case(place, phase["batch"], phase["precision"]) for place in places]
            work = 12 * sum(each.flops for each in cases if each.is_product)
            assert work / (phase["product_ns"] / 1e9) < 0.95 * peak


def test_parameters_are_bert_base_cased(lab: Path) -> None:
    """199 tensors of 107,721,218 numbers are copied: those of bert-base-cased with a head for questions, no pooler."""
    vector, square = 768, 768 * 768
    layer = 4 * (square + vector) + 2 * 2 * vector + (4 * square + 4 * vector) + (4 * square + vector)
    expected = (28_996 + 512 + 2 + 2) * vector + 12 * layer + 2 * vector + 2
    assert 107_721_218 == expected == json.loads((lab / "timings.json").read_text())["parameters_count"]
    tokens = 3 * 13 * (1 + 8 + 16 + 32) * 128 * 8
    assert 4 * expected + tokens == truth(lab)["copies"]["H2D"]["bytes"]


def test_a_graph_is_one_launch(optimised: Path, lab: Path) -> None:
    """The same 216 kernels at batch 1 take one launch, and at most half the time."""
    before, after = truth(lab)["phases"]["1 sequence"], truth(optimised)["phases"]["1 sequence in a graph"]
    assert (216, 1) == (after["kernels_per_step"], after["launches_per_step"])
    assert (216, 216) == (before["kernels_per_step"], before["launches_per_step"])
    assert after["mean_ns"] < before["mean_ns"] / 2
    assert math.isclose(after["kernel_busy_ns"], before["kernel_busy_ns"], rel_tol=0.02)


def test_tf32_changes_products_alone(optimised: Path, lab: Path) -> None:
    """At batch 32 products become at least four times as fast, on tensor cores; the rest stays to 2 %."""
    before, after = truth(lab)["phases"]["32 sequences"], truth(optimised)["phases"]["32 sequences in TF32"]
    assert after["product_ns"] < before["product_ns"] / 4
    rest = [phase["kernel_busy_ns"] - phase["product_ns"] for phase in (before, after)]
    assert math.isclose(*rest, rel_tol=0.02)
    kinds = {names.decode(name).precision for name in of_kernels(truth(optimised)) if "gemm" in name}
    assert {"fp32", "tf32"} == kinds


def test_they_say_that_they_are_simulated(lab: Path, optimised: Path, connect: Connect) -> None:
    """Captures, truths and the trace say that no GPU ran."""
    query = "SELECT value FROM META_DATA_CAPTURE WHERE name = 'SIMULATED'"
    for folder in (lab, optimised):
        (label,) = connect(of(folder, "nsys.sqlite")).execute(query).fetchone()
        assert label == truth(folder)["simulated"]
        assert "no GPU ran" in label
        assert "Simulated" in of(folder, "layer.ncu.csv").read_text().splitlines()[0]
    assert "no GPU ran" in json.loads(gzip.decompress(of(lab, "pt.trace.json.gz").read_bytes()))["SIMULATED"]


def test_same_seed_same_bytes(lab: Path, optimised: Path, tmp_path: Path) -> None:
    """Writing again gives the same bytes; another seed keeps the latencies and nothing else."""
    again, other = bert_a100(tmp_path / "again" / "bert_a100"), bert_a100(tmp_path / "other" / "bert_a100", seed=1)
    wanted = [of(lab, what).name for what in FILES] + ["timings.json", "cpu/timings.json"]
    assert all((lab / name).read_bytes() == (again / name).read_bytes() for name in wanted)
    assert bert_a100_optimised(tmp_path / "two").joinpath("bert_a100_optimised.truth.json").read_bytes() == (
        of(optimised, "truth.json").read_bytes()
    )
    for name, phase in truth(other)["phases"].items():
        assert truth(lab)["phases"][name]["median_ns"] == phase["median_ns"] == phase["mean_ns"]
        assert truth(lab)["phases"][name]["latency_ns"] != phase["latency_ns"]


def test_the_sample_runs_are_these_simulations(lab: Path, optimised: Path, connect: Connect) -> None:
    """The runs under data/ hold what the commands write today, row by row, in less than 6 MB."""
    for folder in (lab, optimised):
        held = DATA / folder.name
        texts = [p.relative_to(folder) for p in folder.rglob("*") if p.suffix in (".json", ".csv")]
        assert all((held / name).read_text() == (folder / name).read_text() for name in texts)
        dumps = [list(connect(of(each, "nsys.sqlite")).iterdump()) for each in (held, folder)]
        assert dumps[0] == dumps[1]
    traces = [gzip.decompress(of(each, "pt.trace.json.gz").read_bytes()) for each in (DATA / "bert_a100", lab)]
    assert traces[0] == traces[1]
    sizes = Counter(
        p.parent.name for folder in (lab, optimised) for p in (DATA / folder.name).rglob("*") if p.is_file()
    )
    assert {"bert_a100": 5, "cpu": 1, "bert_a100_optimised": 3} == sizes
    assert sum(p.stat().st_size for f in (lab, optimised) for p in f.rglob("*") if p.is_file()) < 6_000_000
