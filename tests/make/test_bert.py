"""The simulated runs of the lab's BERT: the report's latencies, and files that hold what their truth says."""

import json
import math
import sqlite3
import statistics
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

import perfkit
from make import bert, bert_kernels, bert_run
from perfkit import hardware, names
from perfkit.analysis import flops, kernels, operators, steps
from perfkit.workloads import Plan, Size
from perfkit.workloads import flops as formulas

Connect = Callable[[Path], sqlite3.Connection]
# what the report's snapshots print, s
GPU_S = {1: 0.0094331693649292, 8: 0.01702481269836426, 16: 0.027854666709899903, 32: 0.04863374710083008}
CPU_S = {1: 0.0645, 8: 0.3734, 16: 0.6388, 32: 1.2615}  # Table 13
DATA = Path(__file__).parents[2] / "data"
LAB, OPTIMISED = DATA / "bert_a100", DATA / "bert_a100_optimised"
TRUTH, OPTIMISED_TRUTH = (json.loads((each / f"{each.name}.truth.json").read_text()) for each in (LAB, OPTIMISED))
PHASES, FASTER = TRUTH["phases"], OPTIMISED_TRUTH["phases"]
TIMINGS = json.loads((LAB / "timings.json").read_text())
LAYERS, STEPS, BATCH, TOKENS = 12, 3, 32, 32 * 128
FEW, OF_THE_BATCH = 2, rf"\b({BATCH}|{BATCH * 12}|{TOKENS})\b"  # batch of a recording, and sizes that grow with it
OF_A_LAYER = 2 * TOKENS * 768 * 768, 2 * TOKENS * 768 * 3072, 2 * 32 * 12 * 128 * 128 * 64  # FLOP of each product


def named(db: sqlite3.Connection) -> list[tuple[int, int, str]]:
    return db.execute("SELECT start, end, text FROM NVTX_EVENTS ORDER BY start, end DESC").fetchall()


def steps_of(db: sqlite3.Connection, phase: str) -> list[tuple[int, int]]:
    """Start and end of the steps inside the range of that name."""
    ((first, last, _),) = [row for row in named(db) if row[2] == phase]
    return [(a, b) for a, b, text in named(db) if text.startswith("step ") and first <= a and b <= last]


@pytest.mark.parametrize("batch", GPU_S)
def test_latencies_are_the_reports(connect: Connect, batch: int) -> None:
    """Mean and median of the steps, as the ranges in the file say them, are what the report prints, to the ns."""
    phase = f"{batch} sequence{'s' * (batch > 1)}"
    lengths = [end - start for start, end in steps_of(connect(LAB / "bert_a100.nsys.sqlite"), phase)]
    expected = round(GPU_S[batch] * 1e9)
    assert (12, expected, expected) == (len(lengths), statistics.mean(lengths), statistics.median(lengths))
    assert lengths == PHASES[phase]["latency_ns"]


@pytest.mark.parametrize(("place", "expected", "kind"), [("", GPU_S, "cuda"), ("cpu", CPU_S, "cpu")])
def test_timings_are_a_workloads(place: str, expected: dict[int, float], kind: str) -> None:
    """Rows have the keys of those under data/cpu_workloads, which were really recorded, and the report's latencies."""
    content = json.loads((LAB / place / "timings.json").read_text())
    real = json.loads((DATA / "cpu_workloads" / "bert_inference" / "timings.json").read_text())
    assert set(real["rows"][0]) == set(content["rows"][0])
    assert ({"simulated"}, {"versions", "loader", "captures"}) == (set(content) - set(real), set(real) - set(content))
    assert ("perfkit workload", kind) == (content["kind"], content["device"]["kind"])
    assert "no GPU ran" in content["simulated"]
    rows = content["rows"]
    assert {b: round(s * 1e9) for b, s in expected.items()} == {r["batch_count"]: r["step_median_ns"] for r in rows}
    assert all(statistics.mean(row["step_ns"]) == row["step_median_ns"] for row in rows)
    assert all(row["flops_per_s"] == row["step_flops"] / (row["step_median_ns"] / 1e9) for row in rows)


def test_operations_are_those_of_the_workload() -> None:
    """The formula of perfkit.workloads, less its pooler, to 0.1 %: its head judges sequences, this one each token."""
    plan = Plan("bert", mode="inference", size=Size(vocabulary=bert_kernels.VOCABULARY))
    for row in TIMINGS["rows"]:
        pooler = 2 * row["batch_count"] * 768 * 768
        assert math.isclose(row["step_flops"], formulas.step(plan, row["batch_count"]) - pooler, rel_tol=1e-3)


def test_only_fp32_with_short_sequences_fits() -> None:
    """What decides the invented part: at batch 32, 128 tokens are 75 % of the FP32 peak and 384 are 238 % of it."""
    peak = hardware.peaks("NVIDIA A100 80GB PCIe").flops("fp32")
    for sequence, expected in ((128, 0.754), (384, 2.384)):
        work = formulas.step(Plan("bert", mode="inference", size=Size(sequence=sequence)), 32)
        assert math.isclose(work / GPU_S[32] / peak, expected, abs_tol=0.001)
    launched = {name for name in of_kernels(TRUTH) if "gemm" in name}
    assert {"fp32"} == {names.decode(name).precision for name in launched}


def of_kernels(told: dict[str, Any]) -> dict[str, tuple[float, ...]]:
    """Count, total, median, minimum and maximum by full name."""
    columns = ("count", "total_ns", "median_ns", "min_ns", "max_ns")
    return {row["full_name"]: tuple(row[c] for c in columns) for row in told["kernel_rows"]}


@pytest.mark.parametrize("folder", [LAB, OPTIMISED], ids=lambda folder: folder.name)
def test_phases_are_what_lies_in_their_steps(folder: Path, connect: Connect) -> None:
    db = connect(folder / f"{folder.name}.nsys.sqlite")
    kernels = db.execute("SELECT start, end FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchall()
    calls = (
        "SELECT start FROM CUPTI_ACTIVITY_KIND_RUNTIME JOIN StringIds ON nameId = id WHERE value GLOB 'cuda*Launch*'"
    )
    launches = [start for (start,) in db.execute(calls)]
    for name, told in (TRUTH if folder == LAB else OPTIMISED_TRUTH)["phases"].items():
        steps = steps_of(db, name)
        own = [end - start for start, end in kernels if any(a <= start < b for a, b in steps)]
        called = sum(any(a <= start < b for a, b in steps) for start in launches)
        assert told["kernel_busy_ns"] == sum(own)
        assert (told["kernels_per_step"], told["launches_per_step"]) == (len(own) / 12, called / 12)


def test_the_host_decides_at_1_and_the_gpu_at_32() -> None:
    shares = {p["batch"]: p["kernel_busy_ns"] / sum(p["latency_ns"]) for p in PHASES.values()}
    assert 0.3 < shares[1] < 0.4
    assert 0.9 < shares[8] < shares[16] < shares[32] < 1


def test_no_product_is_faster_than_the_peak() -> None:
    """The fastest product gets less than 19.5 TFLOP/s in FP32, and less than 156 in TF32."""
    for phases, peak in ((PHASES, 19.5e12), (FASTER, 156e12)):
        for phase in phases.values():
            places = bert_run.passes(phase["batch"])
            cases = [bert_kernels.case(place, phase["batch"], phase["precision"]) for place in places]
            work = 12 * sum(each.flops for each in cases if each.is_product)
            assert work / (phase["product_ns"] / 1e9) < 0.95 * peak


def test_parameters_are_bert_base_cased() -> None:
    """199 tensors of 107,721,218 numbers are copied: those of bert-base-cased with a head for questions, no pooler."""
    vector, square = 768, 768 * 768
    layer = 4 * (square + vector) + 2 * 2 * vector + (4 * square + 4 * vector) + (4 * square + vector)
    expected = (28_996 + 512 + 2 + 2) * vector + 12 * layer + 2 * vector + 2
    assert 107_721_218 == expected == TIMINGS["parameters_count"]
    tokens = 3 * 13 * (1 + 8 + 16 + 32) * 128 * 8
    assert 4 * expected + tokens == TRUTH["copies"]["H2D"]["bytes"]


def test_one_thing_is_changed_per_phase() -> None:
    """The same 216 kernels at batch 1 take one launch in a graph, and at most half the time.

    In TF32 products of batch 32 become at least four times as fast, on tensor cores; the rest stays to 2 %.
    """
    before, after = PHASES["1 sequence"], FASTER["1 sequence in a graph"]
    assert (216, 1) == (after["kernels_per_step"], after["launches_per_step"])
    assert (216, 216) == (before["kernels_per_step"], before["launches_per_step"])
    assert after["mean_ns"] < before["mean_ns"] / 2
    assert math.isclose(after["kernel_busy_ns"], before["kernel_busy_ns"], rel_tol=0.02)
    before, after = PHASES["32 sequences"], FASTER["32 sequences in TF32"]
    assert after["product_ns"] < before["product_ns"] / 4
    assert math.isclose(*(phase["kernel_busy_ns"] - phase["product_ns"] for phase in (before, after)), rel_tol=0.02)
    kinds = {names.decode(name).precision for name in of_kernels(OPTIMISED_TRUTH) if "gemm" in name}
    assert {"fp32", "tf32"} == kinds


@pytest.fixture(scope="module")
def run() -> perfkit.Run:
    return perfkit.load(LAB / "bert_a100.pt.trace.json.gz")


@pytest.fixture(scope="module")
def owner(run: perfkit.Run) -> pd.DataFrame:
    return operators.kernels_of(run.ops, run.kernels, run.api_calls)


def test_operators_and_kernels_are_the_truths(run: perfkit.Run, owner: pd.DataFrame) -> None:
    columns = ["count", "cpu_total_ns", "cpu_self_ns", "gpu_total_ns", "gpu_self_ns", "kernel_count"]
    summary = operators.summary(run.ops, run.kernels, run.api_calls).astype({"name": "string"})
    assert TRUTH["torch"]["operators"] == summary.set_index("name")[columns].to_dict("index")
    summary = kernels.summary(run.kernels, by="full_name").astype({"full_name": "string"}).set_index("full_name")
    counted: Counter[str] = Counter()
    for row in TRUTH["torch"]["gpu"]["kernel_rows"]:
        counted[row["full_name"]] += row["total_ns"]
    assert counted == summary["total_ns"].to_dict()
    assert STEPS * 252 == TRUTH["torch"]["gpu"]["kernels"]["count"] == len(run.kernels)
    assert {"launch"} == set(owner["how"])


def test_steps_are_the_truths(run: perfkit.Run) -> None:
    """Three steps of batch 32, each within 3 % of the report's latency, which profiling hides behind the GPU."""
    found = steps.detect(run.ranges, run.kernels)
    told = pd.DataFrame(TRUTH["torch"]["steps"])
    assert told["dur_ns"].tolist() == found["dur_ns"].tolist()
    assert told["start_ns"].diff().tolist()[1:] == found["start_ns"].diff().tolist()[1:]
    assert all(abs(dur / 48_633_747 - 1) < 0.03 for dur in found["dur_ns"])


def test_flops_by_shape_are_those_of_bert(run: perfkit.Run, owner: pd.DataFrame) -> None:
    spent = flops.GPU_TIME.make(owner[["rank", "op"]].assign(gpu_ns=run.kernels["dur_ns"]))
    points = flops.roofline(run.ops, spent).dropna(subset=["flops"]).astype({"name": "string"})
    found = points.groupby("name")["flops"].sum().to_dict()
    square, wide, attention = OF_A_LAYER
    head = 2 * TOKENS * 768 * 2
    assert STEPS * (LAYERS * (4 * square + 2 * wide) + head) == found["aten::addmm"]
    assert STEPS * LAYERS * 2 * attention == found["aten::bmm"]
    assert STEPS * bert.batch_flops(BATCH) == found["aten::addmm"] + found["aten::bmm"]


def test_operators_are_those_that_pytorch_runs(run: perfkit.Run, tmp_path: Path, torch: Any) -> None:
    """PyTorch, recording such a batch on the CPU, has all operators but those that copy to the GPU and back.

    Name, caller, shapes, types, strides and other arguments are its own.
    """
    first = run.ranges[run.ranges["kind"] == "step"].iloc[0]
    own = run.ops[run.ops["start_ns"] < first["start_ns"] + first["dur_ns"]]
    ours = of_a_batch(own)
    one, two = (of_a_batch(perfkit.load(recorded(tmp_path / f"{layers}.json", layers)).ops) for layers in (1, 2))
    real = one + Counter({op: (LAYERS - 1) * count for op, count in (two - one).items()})
    only_ours = Counter(name for name, *_ in (ours - real).elements())
    moved = {"aten::to": 3, "aten::_to_copy": 5, "aten::empty_strided": 5, "aten::copy_": 5}
    assert moved == only_ours
    cpus_own = {"aten::expand", "aten::as_strided", "aten::copy_", "aten::resolve_conj", "aten::select", "aten::to"}
    cpus_own |= {"aten::_to_copy", "aten::empty_strided"}
    assert {name for name, *_ in (real - ours).elements()} <= cpus_own
    assert 1517 == ours.total()


def of_a_batch(ops: pd.DataFrame) -> Counter[tuple[Any, ...]]:
    named = ops.set_index("op")["name"].astype("string")
    columns = [ops[column].astype("string").fillna("") for column in ("shapes", "dtypes", "strides", "concrete")]
    arguments = (c.str.replace(OF_THE_BATCH, lambda m: str(int(m[0]) // BATCH * FEW), regex=True) for c in columns)
    return Counter(zip(ops["name"].tolist(), ops["parent"].map(named).fillna(""), *arguments, strict=True))


def recorded(path: Path, layers: int) -> Path:
    """Record a batch with PyTorch on the CPU; further layers only repeat what the second one does."""
    import torch
    from bert_eager import Bert

    model = Bert(layers).eval()
    tokens = torch.zeros(FEW, 128, dtype=torch.long)
    mask = torch.ones_like(tokens)
    activities = [torch.profiler.ProfilerActivity.CPU]
    with torch.no_grad(), torch.profiler.profile(activities=activities, record_shapes=True) as profiler:
        start, end = model(tokens, tokens, mask)
        start.cpu(), end.cpu()
    profiler.export_chrome_trace(str(path))
    return path


def test_counters_are_the_truths() -> None:
    columns = ["grid_blocks", "block_threads", "dur_ns", "fp32_flops", "tensor_flops", "dram_bytes"]
    for folder, truth in ((LAB, TRUTH), (OPTIMISED, OPTIMISED_TRUTH)):
        (page,) = folder.glob("*.ncu.csv")
        found, expected = perfkit.load(page).launches, truth["ncu"]["launches"]
        assert [{name: row[name] for name in columns} for row in expected] == found[columns].to_dict("records")
        occupancy = [row["theoretical_occupancy_frac"] for row in expected]
        assert pytest.approx(occupancy, abs=1e-4) == found["theoretical_occupancy_frac"].tolist()


def test_a_layer_does_what_its_formula_says() -> None:
    """Counted products are 24 s h^2 + 4 s^2 h per sequence, all else below 1 %; none is on tensor cores."""
    square, wide, attention = OF_A_LAYER
    products = [row["fp32_flops"] for row in TRUTH["ncu"]["launches"] if "gemm" in row["name"]]
    assert 4 * square + 2 * wide + 2 * attention == sum(products)
    assert BATCH * (24 * 128 * 768**2 + 4 * 128**2 * 768) == sum(products)
    total = TRUTH["ncu"]["totals"]
    assert total["tensor_flops"] == 0
    assert math.isclose(total["fp32_flops"], sum(products), rel_tol=0.01)


def test_counters_run_at_the_base_clock() -> None:
    """Products take 1410/1065 of their time on the timeline, and what moves memory the same time, to 2 %."""
    timeline = perfkit.load(LAB / "bert_a100.nsys.sqlite").kernels
    phase = PHASES["32 sequences"]
    own = timeline[timeline["start_ns"].between(phase["start_ns"], phase["end_ns"])]
    for place, ratio in (("gelu", 1.0), ("fc1", 1410 / 1065)):
        (row,) = [row for row in TRUTH["ncu"]["launches"] if row["place"] == place]
        same = own[(own["full_name"].astype(str) == row["name"]) & (own["grid_blocks"] == row["grid_blocks"])]
        assert math.isclose(row["dur_ns"] / same["dur_ns"].mean(), ratio, rel_tol=0.02)
