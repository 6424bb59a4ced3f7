"""The runs under data/cpu_workloads and data/gpu_workloads: what PyTorch recorded of the models, and their timings."""

import csv
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest

import perfkit
from perfkit.analysis import timeline
from perfkit.analysis.flops import operators
from perfkit.report.notebooks import sample
from perfkit.workloads import MODELS, Plan, flops

FOLDER = sample().parent / "cpu_workloads"
WORDS = {"training": "train", "inference": "inference"}
RUNS = {f"{model}_{word}": (model, mode) for word, mode in WORDS.items() for model in MODELS}
GPU = sample().parent / "gpu_workloads"
ON_GPU = {name: what for name, what in RUNS.items() if "cnn" not in name}
STEPS = {
    "resnet18_training": 3,
    "bert_training": 2,
}  # of the traces of the GPU; the others hold five
TRACE, TIMINGS, LOG, COUNTED = (
    "rank-0.pt.trace.json.gz",
    "timings.json",
    "nvidia-smi.csv",
    "mlp.raw.csv",
)
TRACED = 5  # steps of each trace
MOST_BYTES, MOST_BYTES_GPU = 8e6, 4e6
NAMES_A_GPU = re.compile(r"GPU-[0-9a-f]{8}-|\buuid\b|serial", re.IGNORECASE)
ABSOLUTE = re.compile(r"(?<![\w.])/(?:home|root|tmp|usr|work|opt|mnt|srv)/\S*")


def test_folders_hold_these_runs_and_are_small() -> None:
    expected = {Path(name, file) for name in RUNS for file in (TRACE, TIMINGS)}
    of_gpu = {Path(name, file) for name in ON_GPU for file in (TRACE, TIMINGS, LOG)} | {
        Path("mlp_inference", COUNTED)
    }
    for folder, names, most in ((FOLDER, expected, MOST_BYTES), (GPU, of_gpu, MOST_BYTES_GPU)):
        files = {
            path.relative_to(folder): path.stat().st_size
            for path in folder.rglob("*")
            if path.is_file()
        }
        assert names == set(files)
        assert sum(files.values()) < most


@pytest.mark.parametrize("run", RUNS)
def test_run_is_what_its_name_says_and_nothing_tells_of_the_machine(run: str) -> None:
    """Products, counted from the operators' shapes, are those of the five steps at the last batch size by formula.

    Fused attention computes its scores anew in the backward pass: 7 products of which the formula counts 6. What
    data/README.md says of the spread: the upper quartile is at most 1.25 times the lower one.
    """
    model, mode = RUNS[run]
    plan = Plan(model, mode=mode)
    words = (FOLDER / run / TIMINGS).read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(words)
    said = (
        content["model"],
        content["mode"],
        content["precision"],
        content["device"]["kind"],
        content["size"],
    )
    assert (model, mode, "fp32", "cpu", plan.dimensions) == said
    assert 3 == len({row["batch_count"] for row in content["rows"]})
    for row in content["rows"]:
        assert row["steps_count"] == len(row["step_ns"])
        assert flops.step(plan, row["batch_count"]) == row["step_flops"]
        assert row["step_flops"] / row["step_median_ns"] * 1e9 == pytest.approx(
            row["flops_per_s"], rel=1e-12
        )
        assert row["step_p75_ns"] <= 1.25 * row["step_p25_ns"]
    text = gzip.decompress((FOLDER / run / TRACE).read_bytes()).decode()
    assert ["host", "rank-0.pt.trace.json"] == re.findall(
        r'"(?:host_name|traceName)": "([^"]*)"', text
    )
    assert [] == ABSOLUTE.findall(text + words)
    loaded = perfkit.load(FOLDER / run)
    assert TRACED == (loaded.ranges["kind"] == "step").sum()
    assert loaded.devices.empty
    assert TRACED * counted(plan, content["rows"][-1]["batch_count"]) == products(loaded)


def products(run: perfkit.Run) -> int:
    """Operations of all products, from the operators' shapes."""
    work = operators(run.ops)
    return int(
        work.loc[
            work["model"].astype(str).str.contains("gemm|convolution|attention"), "flops"
        ].sum()
    )


def counted(plan: Plan, batch: int) -> int:
    """Operations of a step by formula; the backward pass of fused attention computes half of its products anew."""
    attention = [
        layer.flops for layer in flops.layers(plan, batch) if layer.name.endswith(".attention")
    ]
    return flops.step(plan, batch) + (sum(attention) // 2 if plan.mode == "train" else 0)


@pytest.mark.parametrize("run", ON_GPU)
def test_run_of_the_gpu_is_what_its_name_says_and_nothing_tells_of_the_machine(run: str) -> None:
    """Rates follow from the formula and the times; the packed traces hold no moment of packing."""
    model, mode = ON_GPU[run]
    plan, texts = Plan(model, device="cuda", mode=mode), []
    for path in sorted((GPU / run).iterdir()):
        text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        assert path.suffix != ".gz" or bytes(4) == path.read_bytes()[4:8]
        texts.append(text.decode())
    assert ["rank-0.pt.trace.json"] == re.findall(
        r'"(?:host_name|traceName)": "([^"]*)"', "".join(texts)
    )
    assert [] == ABSOLUTE.findall("".join(texts)) + NAMES_A_GPU.findall("".join(texts))
    content: dict[str, Any] = json.loads((GPU / run / TIMINGS).read_text(encoding="utf-8"))
    assert (model, mode, "fp32", plan.dimensions) == tuple(
        content[key] for key in ("model", "mode", "precision", "size")
    )
    assert ("cuda", "NVIDIA H200") == (content["device"]["kind"], content["device"]["name"])
    for row in content["rows"]:
        assert row["steps_count"] == len(row["step_ns"])
        assert flops.step(plan, row["batch_count"]) == row["step_flops"]
        assert row["step_flops"] / row["step_median_ns"] * 1e9 == pytest.approx(
            row["flops_per_s"], rel=1e-12
        )
        assert row["flops_per_s"] / 67e12 == pytest.approx(row["peak_frac"], rel=1e-12)


@pytest.mark.parametrize("run", ON_GPU)
def test_tables_of_the_gpu_are_the_sums_of_its_files(run: str) -> None:
    """Kernels, copies and busy time from the raw JSON, the log's means from its cells; products by formula."""
    model, mode = ON_GPU[run]
    loaded = perfkit.load(GPU / run)
    content: dict[str, Any] = json.loads((GPU / run / TIMINGS).read_text(encoding="utf-8"))
    events = json.loads(gzip.decompress((GPU / run / TRACE).read_bytes()))["traceEvents"]
    of = {
        kind: [e for e in events if e.get("cat") in kind.split()]
        for kind in ("kernel", "gpu_memcpy gpu_memset")
    }
    for table, found in zip((loaded.kernels, loaded.copies), of.values(), strict=True):
        assert len(found) == len(table)
        assert sum(event["dur"] for event in found) * 1e3 == pytest.approx(
            table["dur_ns"].sum(), abs=len(found) + 1
        )
    busy, end = 0.0, 0.0
    for event in sorted(of["kernel"], key=lambda event: event["ts"]):
        busy += max(event["ts"] + event["dur"] - max(event["ts"], end), 0)
        end = max(end, event["ts"] + event["dur"])
    measured = timeline.busy(loaded.kernels, loaded.copies)["kernel_busy_ns"]
    assert [
        pytest.approx(busy * 1e3, abs=len(of["kernel"]) + 1)
    ] == measured.tolist()  # each is rounded to 1 ns
    steps = STEPS.get(run, TRACED)
    assert steps == (loaded.ranges["kind"] == "step").sum()
    assert ["NVIDIA H200"] == loaded.devices["name"].tolist()
    plan = Plan(model, device="cuda", mode=mode)
    assert steps * counted(plan, content["rows"][-1]["batch_count"]) == products(loaded)
    with (GPU / run / LOG).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, skipinitialspace=True))
    means = loaded.samples.groupby("metric", observed=True)["value"].mean()
    for metric, column, scale in (
        ("gpu_busy_frac", "utilization.gpu [%]", 0.01),
        ("power_w", "power.draw [W]", 1),
        ("sm_clock_hz", "clocks.current.sm [MHz]", 1e6),
    ):
        cells = [float(row[column].split()[0]) * scale for row in rows]
        assert means[metric] == pytest.approx(sum(cells) / len(cells), rel=1e-12)


def test_counters_of_the_gpu_are_those_of_the_file() -> None:
    """Nine launches of one pass; times, bytes and operations are the cells of the file, and those fit the formula."""
    with (GPU / "mlp_inference" / COUNTED).open(encoding="utf-8", newline="") as file:
        _, *rows = csv.DictReader(file)  # the first row holds the units

    def total(*names: str) -> float:
        return sum(float(row[name].replace(",", "")) for row in rows for name in names)

    launches = perfkit.load(GPU / "mlp_inference").launches
    op = "smsp__sass_thread_inst_executed_op_{}_pred_on.sum"
    assert 9 == len(rows) == len(launches)
    assert total("gpu__time_duration.sum") == launches["dur_ns"].sum()
    assert total("dram__bytes_read.sum", "dram__bytes_write.sum") == launches["dram_bytes"].sum()
    done = total(*map(op.format, ("fadd", "fmul", "ffma", "ffma")))
    assert done == launches["fp32_flops"].sum()
    assert 1 < done / flops.step(Plan("mlp", mode="inference"), 128) < 1.2
