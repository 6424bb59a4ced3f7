"""Every finding there is rests on figures, and says its threshold, what to do by horizon, and what to measure next."""

import re
import zipfile
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import pandas as pd
import pytest
from diagnosis.test_baseline import all_reduce, connected, peaks
from diagnosis.test_framework_rules import CASES
from diagnosis.test_gpus import beside, late, meeting
from diagnosis.test_speed import clocked, few
from diagnosis.traces import MS, leaking, view
from frames import api_calls, copies, kernels
from planted.causes import planted
from planted.test_causes import RULES, run

import perfkit
from perfkit import diagnosis, report, tables
from perfkit.diagnosis import confidence, evidence, replayed, system
from perfkit.diagnosis.finding import CONFIDENCES, HORIZONS, SEVERITIES, SPOKEN, Finding
from perfkit.diagnosis.rules import rules, table
from perfkit.report.notebooks import sample

IDS = sorted(rules())
Found = Callable[[Path, Path], tuple[perfkit.Selection, str]]  # profiles, a folder: what to look at, a file of peaks
UNITS = {"1": "_frac|_ratio|log_check_.*", "bytes/s": "_bytes_per_s|log_check_.*", "1/s": "_per_s"}
# A setting, a function, a command: something that can be looked up or typed.
CONCRETE = re.compile(r"\w+_\w+|\w\(|\w=\w|--\w|[a-z][A-Z]\w|nsys |ncu |perfkit |nvidia-smi|NCCL|torch\.|#pragma")


def real(path: str, *more: str) -> Found:
    return lambda profiles, _: (perfkit.select(perfkit.load([profiles / part for part in (path, *more)])), "")


def made(cause: str) -> Found:
    return lambda *_: (perfkit.select(run(planted(cause))), "")


def measured(name: str) -> Found:
    """A case that ran on an H200, as in test_measured."""

    def seen(_: Path, folder: Path) -> tuple[perfkit.Selection, str]:
        with zipfile.ZipFile(sample("h200_cases.zip")) as archive:
            return perfkit.select(perfkit.load(archive.extract(f"{name}.pt.trace.json", folder))), ""

    return seen


def case(name: str) -> Found:
    return lambda *_: (perfkit.select(CASES[name]()), "")


def idle(*_: Path) -> tuple[perfkit.Selection, str]:
    """Two kernels 80 ms apart, and no calls."""
    return view(kernels=kernels({"start_ns": 0, "dur_ns": MS}, {"start_ns": 81 * MS, "dur_ns": MS})), ""


def queued(*_: Path) -> tuple[perfkit.Selection, str]:
    """Ten kernels of 30 us, launched at once, with 20 us between them."""
    ran = [{"start_ns": 50_000 * (i + 1), "dur_ns": 30_000, "correlation": i} for i in range(10)]
    calls = [{"start_ns": 1000 * i, "dur_ns": 500, "name": "cudaLaunchKernel", "correlation": i} for i in range(10)]
    return view(kernels=kernels(*ran), api_calls=api_calls(*calls)), ""


def between_gpus(*_: Path) -> tuple[perfkit.Selection, str]:
    """A copy from another GPU, beside no kernel for 60 of 100 ms."""
    copied = copies({"start_ns": 0, "dur_ns": 60 * MS, "bytes": 6_000_000, "direction": "P2P", "peer_gpu": 1})
    return view(kernels=kernels({"start_ns": 60 * MS, "dur_ns": 40 * MS}), copies=copied), ""


def logged(**columns: str) -> Found:
    """A log of nvidia-smi with these columns beside the time, for five seconds."""

    def write(_: Path, folder: Path) -> tuple[perfkit.Selection, str]:
        lines = [", ".join(["timestamp", "index", "name", *(name.replace("__", ".") for name in columns)])]
        row = ", ".join(["0", "NVIDIA A100-SXM4-80GB", *columns.values()])
        lines += [f"2026/01/01 00:00:0{second}.000, {row}" for second in range(5)]
        (folder / "gpus.csv").write_text("\n".join([*lines, ""]), encoding="utf-8")
        return perfkit.select(perfkit.load(folder)), ""

    return write


def slow_links(_: Path, folder: Path) -> tuple[perfkit.Selection, str]:
    """Eight H100 that reach 100 of 450 GB/s."""
    log = all_reduce(folder, 100.0, 100.0)
    return perfkit.select(perfkit.load(log)), ""


def network(_: Path, folder: Path) -> tuple[perfkit.Selection, str]:
    """NCCL's connections over TCP, and without GPUDirect RDMA."""
    return perfkit.select(perfkit.load(connected(folder, "NET/Socket/0", "NET/IB/0"))), ""


def training(tflops: int) -> Found:
    """A real log of Megatron, 149 TFLOP/s of a GPU with this peak."""

    def seen(profiles: Path, folder: Path) -> tuple[perfkit.Selection, str]:
        own = peaks(folder, f"mine,{tflops},2000")
        return perfkit.select(perfkit.load(profiles / "monitor" / "superbench__megatron_deepspeed.log")), own

    return seen


PRODUCED: dict[str, Found] = {
    **{rule: made(cause) for cause, rule in RULES.items()},
    **{name: case(name) for name in ("small_operators", "attention", "preparation")},
    "layout": measured("transposes-bad"),
    "fusion": measured("elementwise-bad"),
    "computation": real("torch/kineto__before_fix_trace.json"),
    "idle": idle,
    "exposed_copy": between_gpus,
    "copies_bound": real("nsys/Lianhang666__gpu4__report2.sqlite"),
    "ranks": lambda *_: (meeting(10, 10, 16, grids=(8, 8, 16)), ""),
    "late_gpu": lambda *_: (late(), ""),
    "clock_lowered": lambda *_: (clocked(), ""),
    "few_blocks": lambda *_: (few(), ""),
    "unified_memory": real("nsys/NTHU-SC__ISC25-ICON-C__gpu.sqlite"),
    "gpu_unused": lambda *_: (beside(1), ""),
    "idle_memory": real("nsys/extra-p__extrap__profile1.sqlite"),
    "idle_launch": lambda *_: (perfkit.select(perfkit.load(sample("bert_a100_optimised"))), ""),
    "start_up": real("nsys/extra-p__extrap__ex-gpu.s10.sqlite"),
    "idle_cuda_call": real("nsys/PolPuigPuy__OpenACC_Project_PolPuig__report3.sqlite"),
    "idle_mpi": real("nsys/openhackathons-org__gpubootcamp__mpi_report1.sqlite"),
    "idle_system": real("nsys/openhackathons-org__AI-Profiler__baseline.sqlite"),
    "idle_other": real("torch/TraceLens__sglang_decode__sglang_Qwen3-8B_decode.json.gz"),
    "idle_kernel_wait": queued,
    "idle_host_code": real("nsys/NVIDIA__Fuser__report1_2025.1.sqlite"),
    "input": real("torch/kineto__resnet50_autograd_api_num_workers_0__worker0.pt.trace.json.gz"),
    "precision": real("torch/kineto__gpu_metrics_input.json"),
    "compute_bound": real("ncu/AlpriElse__cs599k__rms-norm-pytorch.ncu-rep"),
    "memory_bound": real("ncu/NVIDIA__nsight-training__manual_nvtx.ncu-rep"),
    "log_power": real("monitor/rocm-smi_json__mi100_rocm571.json"),
    "log_utilisation": logged(utilization__gpu="20 %"),
    "log_memory": logged(memory__used="80000 MiB", memory__total="81920 MiB"),
    "memory_growth": lambda *_: (perfkit.select(leaking(100)), ""),
    "paths_gpu_idle": real("hpctoolkit/hpctoolkit-dlrm-gpu-database"),
    "paths_launches": real("hpctoolkit/hpctoolkit-dlrm-gpu-database"),
    "paths_copies": real("hpctoolkit/hpctoolkit-leo-nvidia-database"),
    "paths_stall": real("hpctoolkit/hpctoolkit-leo-nvidia-database"),
    "paths_host": real("hpctoolkit/hpctoolkit-dlrm-cpu-database"),
    "kernel_stall": real("ncu/thedavidchu__speedy_scan__profile.ncu-rep"),
    "paths_allocation": real("hpctoolkit/hpctoolkit-leo-amd-database"),
    "idle_edge": real("nsys/openhackathons-org__gpubootcamp__jacobi_memcpy_sys_report.sqlite"),
    "mpi_time": real("hpctoolkit/hpctoolkit-allgather-database"),
    "bus_bandwidth": slow_links,
    "network_tcp": network,
    "network_by_host": network,
    "training_mfu": training(700),
    "training_mfu_suspicious": training(200),
    "training_optimizer": real("monitor/deepspeed_flops_profiler_megatron_gpt.txt"),
    "compilation": measured("recompile-bad"),
    "recomputation": measured("recompute-bad"),
}
# Gaps whose launch was lost, or waits that no rule about waits tells of; links without a
# peak, of which no recording says how full they are.
NOT_PRODUCED = {"idle_unattributed", "idle_sync", "log_traffic"}


def test_every_finding_is_looked_at_and_shown() -> None:
    assert set(IDS) == {*PRODUCED, *NOT_PRODUCED}
    assert table() in (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    (finding,) = diagnosis.findings(run(planted("small copies")))
    html = report.key_findings([replace(finding, threshold=f"<b>{finding.threshold}")], {}).html
    assert "Threshold: &lt;b&gt;A copy of at most 64 KB is small" in html


@pytest.mark.parametrize("rule", IDS)
def test_words_for_every_finding(rule: str) -> None:
    source = r"convention|guide|chapter|vendor|Nsight Compute|NVML|CUDA Runtime|NVIDIA/|PaLM|published"
    of = rules()[rule]
    assert re.search(source, of.threshold)
    assert all((of.question.endswith("?"), of.needs, of.evidence, of.target, of.next))
    assert set(of.against) <= set(confidence.CHECKS)
    assert not of.change or of.change in replayed.CHANGES
    assert all(hasattr(tables, name) for table in of.needs for name in table.split("|"))
    assert {fact for step in of.advice for fact in (*step.unless, *step.only)} <= set(evidence.FACTS)
    assert [step for step in of.advice if not step.only], "advice for programs of every kind"


@pytest.mark.parametrize("rule", PRODUCED)
def test_every_finding_is_complete(rule: str, profiles: Path, tmp_path: Path) -> None:
    view, peaks = PRODUCED[rule](profiles, tmp_path)
    told = [finding for finding in diagnosis.findings(view, peaks=peaks) if finding.rule == rule]
    assert 1 == len(told)
    _check(told[0], diagnosis.figures(view, peaks=peaks))


def _check(finding: Finding, known: dict[str, diagnosis.Figure]) -> None:
    assert finding.severity in SEVERITIES
    assert finding.confidence in CONFIDENCES
    assert finding.evidence
    assert len(finding.evidence) == len({figure.id for figure in finding.evidence})
    for figure in finding.evidence:
        assert re.fullmatch(r"[a-z][a-z0-9_]*", figure.id)
        assert re.search(f"(?:{UNITS.get(figure.unit, '.*')})(?:_\\d+)?$", figure.id)
        assert figure.unit in SPOKEN
        assert not pd.isna(figure.value)
        assert all((figure.label, figure.definition, figure.source, figure.text))
        assert figure.id not in known or known[figure.id].value == figure.value, "one id, two values"
    assert all((finding.title, finding.explanation, finding.target, finding.gain.reason, finding.next))
    rule = rules()[finding.rule]
    assert finding.threshold == rule.threshold
    assert all(any(fnmatchcase(figure.id, of) for of in rule.evidence) for figure in finding.evidence)
    assert 1.0 <= finding.gain.low <= finding.gain.high
    assert set(finding.advice) <= set(HORIZONS)
    assert all(finding.advice.values())
    steps = [step for texts in finding.advice.values() for step in texts]
    assert not [text for text in (*steps, finding.next) if "{" in text.replace("%q{RANK}", "")]
    assert any(CONCRETE.search(step) for step in steps), "a setting, a function or a command"


def test_what_is_not_replayed_says_so() -> None:
    view = perfkit.select(run(planted("launch overhead")))
    of_code = system._finding("idle_host_code", "", (diagnosis.figures(view)["idle_frac"],), "", 0.5, 0.5)
    assert of_code.gain.reason.endswith("not replayed, since nothing recorded says how much of it could go")
    of_loading = system._finding("idle_data_loading", "", (diagnosis.figures(view)["idle_frac"],), "", 0.5, 0.5)
    assert "not replayed" not in of_loading.gain.reason
