"""Every finding there is rests on figures, and says its threshold, what to do by horizon, and what to measure next."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path

import pandas as pd
import pytest
from diagnosis.test_case_studies import CASES
from diagnosis.test_diagnosis import _view
from diagnosis.test_gpus import beside, late, meeting
from diagnosis.test_speed import clocked, few
from diagnosis.traces import leaking
from frames import api_calls, copies, kernels
from planted.causes import planted
from planted.test_causes import RULES, run
from readers import nccl_files

import perfkit
from perfkit import diagnosis, report, tables
from perfkit.diagnosis import confidence, evidence, replayed, system
from perfkit.diagnosis.finding import CONFIDENCES, HORIZONS, SEVERITIES, SPOKEN, Finding
from perfkit.diagnosis.rules import rules, table
from perfkit.report.notebooks import sample

MS = 1_000_000
IDS = sorted(rules())
Found = Callable[[Path, Path], tuple[perfkit.Selection, str]]  # profiles, a folder: what to look at, a file of peaks
UNITS = {"1": "_frac|_ratio|log_check_.*", "bytes/s": "_bytes_per_s|log_check_.*", "1/s": "_per_s"}
# A setting, a function, a command: something that can be looked up or typed.
CONCRETE = re.compile(r"\w+_\w+|\w\(|\w=\w|--\w|[a-z][A-Z]\w|nsys |ncu |perfkit |nvidia-smi|NCCL|torch\.|#pragma")


def real(path: str, *more: str) -> Found:
    """A real capture, or several as one run."""
    return lambda profiles, _: (perfkit.select(perfkit.load([profiles / part for part in (path, *more)])), "")


def made(cause: str) -> Found:
    """A run with one cause planted."""
    return lambda *_: (perfkit.select(run(planted(cause))), "")


def case(name: str) -> Found:
    """A case study of the course's chapter."""
    return lambda *_: (perfkit.select(CASES[name]()), "")


def idle(*_: Path) -> tuple[perfkit.Selection, str]:
    """Two kernels 80 ms apart, and no calls."""
    return _view(kernels=kernels({"start_ns": 0, "dur_ns": MS}, {"start_ns": 81 * MS, "dur_ns": MS})), ""


def queued(*_: Path) -> tuple[perfkit.Selection, str]:
    """Ten kernels of 30 us, launched at once, with 20 us between them."""
    ran = [{"start_ns": 50_000 * (i + 1), "dur_ns": 30_000, "correlation": i} for i in range(10)]
    calls = [{"start_ns": 1000 * i, "dur_ns": 500, "name": "cudaLaunchKernel", "correlation": i} for i in range(10)]
    return _view(kernels=kernels(*ran), api_calls=api_calls(*calls)), ""


def between_gpus(*_: Path) -> tuple[perfkit.Selection, str]:
    """A copy from another GPU, beside no kernel for 60 of 100 ms."""
    copied = copies({"start_ns": 0, "dur_ns": 60 * MS, "bytes": 6_000_000, "direction": "P2P", "peer_gpu": 1})
    return _view(kernels=kernels({"start_ns": 60 * MS, "dur_ns": 40 * MS}), copies=copied), ""


def logged(**columns: list[str]) -> Found:
    """A log of nvidia-smi with these columns beside the time, a row a second."""

    def write(_: Path, folder: Path) -> tuple[perfkit.Selection, str]:
        names = [name.replace("__", ".") for name in columns]
        lines = [", ".join(["timestamp", "index", "name", *names])]
        for second, row in enumerate(zip(*columns.values(), strict=True)):
            lines.append(f"2026/01/01 00:00:0{second}.000, 0, NVIDIA A100-SXM4-80GB, {', '.join(row)}")
        (folder / "gpus.csv").write_text("\n".join([*lines, ""]), encoding="utf-8")
        return perfkit.select(perfkit.load(folder)), ""

    return write


def slow_links(_: Path, folder: Path) -> tuple[perfkit.Selection, str]:
    """Eight H100 that reach 100 of 450 GB/s."""
    rows = []
    for size in (2**32, 2**33):
        rows.append(
            nccl_files.start(size, size // 4) + 2 * nccl_files.half((f"{1.75 * size / 1e5:.1f}", "57.14", "100.00", 0))
        )
    return perfkit.select(perfkit.load(nccl_files.written(folder / "slow.log", nccl_files.table(inner=rows)))), ""


def network() -> Found:
    """NCCL's connections over TCP, and without GPUDirect RDMA."""

    def seen(_: Path, folder: Path) -> tuple[perfkit.Selection, str]:
        via = [f"Channel 0{i}/0 : 0[0] -> 1[0] [send] via NET/{kind}/0" for i, kind in enumerate(("Socket", "IB"))]
        log = nccl_files.written(folder / "nccl.log", map(nccl_files.said, via))
        return perfkit.select(perfkit.load(log)), ""

    return seen


def training(tflops: int) -> Found:
    """A real log of Megatron, 149 TFLOP/s of a GPU with this peak."""

    def seen(profiles: Path, folder: Path) -> tuple[perfkit.Selection, str]:
        path = folder / "peaks.csv"
        path.write_text(f"name_nvidia_smi,bf16_tensor_tflops,mem_bw_gbs\nmine,{tflops},2000\n", encoding="utf-8")
        return perfkit.select(perfkit.load(profiles / "monitor" / "superbench__megatron_deepspeed.log")), str(path)

    return seen


PRODUCED: dict[str, Found] = {
    **{rule: made(cause) for cause, rule in RULES.items()},
    **{name: case(name) for name in ("small_operators", "attention", "preparation")},
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
    "log_utilisation": logged(utilization__gpu=["20 %"] * 5),
    "log_memory": logged(memory__used=["80000 MiB"] * 5, memory__total=["81920 MiB"] * 5),
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
    "network_tcp": network(),
    "network_by_host": network(),
    "training_mfu": training(700),
    "training_mfu_suspicious": training(200),
    "training_optimizer": real("monitor/deepspeed_flops_profiler_megatron_gpt.txt"),
}
# Gaps whose launch was lost, or waits that no rule about waits tells of; links without a
# peak, of which no recording says how full they are.
NOT_PRODUCED = {"idle_unattributed", "idle_sync", "log_traffic"}


def test_the_readme_shows_the_rules() -> None:
    """The table of findings in the README is what `perfkit.diagnosis.rules.table()` returns."""
    assert table() in (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")


def test_every_finding_is_looked_at() -> None:
    """Whatever can be told has a run here in which it is, but for three that few recordings show."""
    assert set(IDS) == {*PRODUCED, *NOT_PRODUCED}


def test_every_finding_in_the_source_is_a_rule() -> None:
    """Names of findings, as the source spells them, are those of the rules, and no others."""
    spelled = [pattern for path in Path(diagnosis.__file__).parent.glob("*.py") for pattern in _rules(path)]
    assert [] == [pattern for pattern in spelled if not any(re.fullmatch(pattern, rule) for rule in IDS)]
    assert [] == [rule for rule in IDS if not any(re.fullmatch(pattern, rule) for pattern in spelled)]


def _rules(path: Path) -> list[str]:
    """The first argument of each call that makes a finding, as a pattern; what a variable holds is in the next line."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)]
    first = [call.args[0] for call in calls if call.func.id in ("tell", "_finding") and call.args]  # type: ignore[attr-defined]
    named = {ast.unparse(n.targets[0]): n.value for n in ast.walk(tree) if isinstance(n, ast.Assign)}
    found = []
    for of in first:
        value = named.get(ast.unparse(of), of)
        for part in (value.body, value.orelse) if isinstance(value, ast.IfExp) else (value,):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                found.append(re.escape(part.value))
            elif isinstance(part, ast.JoinedStr):
                texts = [re.escape(v.value) if isinstance(v, ast.Constant) else r"\w+" for v in part.values]  # type: ignore[arg-type]
                found.append("".join(texts))
    return found


@pytest.mark.parametrize("rule", IDS)
def test_words_for_every_finding(rule: str) -> None:
    """A threshold names its source, or says that it is a convention; what to measure next is meant for this finding."""
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
    """In a run that has it: figures with value, unit, definition and source, all words, and something to type."""
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


def test_the_threshold_is_shown() -> None:
    """The report names it with the finding, escaped as all that is shown."""
    (finding,) = diagnosis.findings(run(planted("small copies")))
    html = report.key_findings([replace(finding, threshold=f"<b>{finding.threshold}")], {}).html
    assert "Threshold: &lt;b&gt;A copy of at most 64 KB is small" in html


def test_what_is_not_replayed_says_so() -> None:
    """Host code other than loading is no change that the replay knows: the bound stays, and its reason tells why."""
    view = perfkit.select(run(planted("launch overhead")))
    of_code = system._finding("idle_host_code", "", (diagnosis.figures(view)["idle_frac"],), "", 0.5, 0.5)
    assert of_code.gain.reason.endswith("not replayed, since nothing recorded says how much of it could go")
    of_loading = system._finding("idle_data_loading", "", (diagnosis.figures(view)["idle_frac"],), "", 0.5, 0.5)
    assert "not replayed" not in of_loading.gain.reason
