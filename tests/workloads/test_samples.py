"""The runs under data/cpu_workloads and data/gpu_workloads: what PyTorch recorded of the models, and their timings."""

import csv
import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
from analysis.spans import loaded

import perfkit
from perfkit.analysis import timeline
from perfkit.analysis.flops import counted as counted_operators
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
TRACE_NAME = TRACE.removesuffix(".gz")
PACKED = b"\x1f\x8b"  # how a file of gzip begins
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


RECORDED = [*((FOLDER, run) for run in RUNS), *((GPU, run) for run in ON_GPU)]
every_run = pytest.mark.parametrize(
    ("folder", "run"), RECORDED, ids=lambda part: getattr(part, "name", part)
)


def timings(folder: Path, run: str) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / run / TIMINGS).read_text(encoding="utf-8"))
    return content


def planned(run: str) -> Plan:
    model, mode = RUNS[run]
    return Plan(model, mode=mode)


def texts(folder: Path, run: str) -> str:
    """All that the files of a run hold."""
    files = [path.read_bytes() for path in sorted((folder / run).iterdir())]
    unpacked = [gzip.decompress(file) if file.startswith(PACKED) else file for file in files]
    return b"".join(unpacked).decode()


@every_run
def test_a_run_is_what_its_name_says(folder: Path, run: str) -> None:
    content = timings(folder, run)
    said = [content[key] for key in ("model", "mode", "precision", "size")]
    assert [*RUNS[run], "fp32", planned(run).dimensions] == said
    kind = {FOLDER: "cpu", GPU: "cuda"}
    assert kind[folder] == content["device"]["kind"]


@every_run
def test_rates_follow_from_the_formula_and_the_times(folder: Path, run: str) -> None:
    for row in timings(folder, run)["rows"]:
        assert row["steps_count"] == len(row["step_ns"])
        assert flops.step(planned(run), row["batch_count"]) == row["step_flops"]
        rate = row["step_flops"] / row["step_median_ns"] * 1e9
        assert rate == pytest.approx(row["flops_per_s"], rel=1e-12)


@pytest.mark.parametrize("run", RUNS)
def test_steps_on_the_cpu_spread_as_little_as_the_readme_says(run: str) -> None:
    """The upper quartile is at most 1.25 times the lower one, for each of three batch sizes."""
    rows = timings(FOLDER, run)["rows"]
    assert 3 == len({row["batch_count"] for row in rows})
    assert all(row["step_p75_ns"] <= 1.25 * row["step_p25_ns"] for row in rows)


@pytest.mark.parametrize("run", ON_GPU)
def test_shares_of_the_peak_are_those_of_an_h200(run: str) -> None:
    content = timings(GPU, run)
    assert "NVIDIA H200" == content["device"]["name"]
    for row in content["rows"]:
        assert row["flops_per_s"] / 67e12 == pytest.approx(row["peak_frac"], rel=1e-12)


@every_run
def test_nothing_tells_of_the_machine(folder: Path, run: str) -> None:
    text = texts(folder, run)
    named = re.findall(r'"(?:host_name|traceName)": "([^"]*)"', text)
    assert {FOLDER: ["host", TRACE_NAME], GPU: [TRACE_NAME]}[folder] == named
    assert [] == ABSOLUTE.findall(text)


@pytest.mark.parametrize("run", ON_GPU)
def test_nothing_tells_of_the_gpu_or_of_the_moment_of_packing(run: str) -> None:
    assert [] == NAMES_A_GPU.findall(texts(GPU, run))
    assert bytes(4) == (GPU / run / TRACE).read_bytes()[4:8]


@every_run
def test_a_trace_holds_the_products_of_its_steps(folder: Path, run: str) -> None:
    """Products, counted from the operators' shapes, are those of the steps at the last batch size by formula."""
    of_run = loaded(folder / run)
    steps = STEPS.get(run, TRACED) if folder is GPU else TRACED
    assert steps == (of_run.ranges["kind"] == "step").sum()
    batch = timings(folder, run)["rows"][-1]["batch_count"]
    assert steps * counted(planned(run), batch) == products(of_run)
    names = {FOLDER: [], GPU: ["NVIDIA H200"]}
    assert names[folder] == of_run.devices["name"].tolist()


def products(run: perfkit.Run) -> int:
    """Operations of all products, from the operators' shapes."""
    *_, work = counted_operators(run.ops)
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


def events(run: str, *categories: str) -> list[dict[str, Any]]:
    every = json.loads(gzip.decompress((GPU / run / TRACE).read_bytes()))["traceEvents"]
    return [event for event in every if event.get("cat") in categories]


@pytest.mark.parametrize("run", ON_GPU)
def test_kernels_and_copies_are_those_of_the_raw_trace(run: str) -> None:
    of_run = loaded(GPU / run)
    moved = events(run, "gpu_memcpy", "gpu_memset")
    for table, found in ((of_run.kernels, events(run, "kernel")), (of_run.copies, moved)):
        assert len(found) == len(table)
        total_us = sum(event["dur"] for event in found)
        # each is rounded to 1 ns
        assert total_us * 1e3 == pytest.approx(table["dur_ns"].sum(), abs=len(found) + 1)


@pytest.mark.parametrize("run", ON_GPU)
def test_busy_time_is_that_of_the_raw_trace(run: str) -> None:
    of_run, ran = loaded(GPU / run), events(run, "kernel")
    busy, end = 0.0, 0.0
    for event in sorted(ran, key=lambda event: event["ts"]):
        busy += max(event["ts"] + event["dur"] - max(event["ts"], end), 0)
        end = max(end, event["ts"] + event["dur"])
    measured = timeline.busy(of_run.kernels, of_run.copies)["kernel_busy_ns"]
    assert [pytest.approx(busy * 1e3, abs=len(ran) + 1)] == measured.tolist()


@pytest.mark.parametrize("run", ON_GPU)
def test_the_means_of_a_log_are_those_of_its_cells(run: str) -> None:
    with (GPU / run / LOG).open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, skipinitialspace=True))
    means = loaded(GPU / run).samples.groupby("metric", observed=True)["value"].mean()
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
