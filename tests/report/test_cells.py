"""Every notebook answers every capture: its cells are run here one by one, without a kernel."""

from __future__ import annotations

import ast
import os
from pathlib import Path
from typing import Any

import nbformat
import pytest

import perfkit
from perfkit.report.notebooks import NOTEBOOKS, answering, folder
from perfkit.report.record import LIVE

# Broken on purpose, closed formats that need the vendor's software, and files that describe others.
LEFT_OUT = (
    *("EMPTY", "TRUNCATED", "PARTIAL", "LFS_POINTER", "dlprof_dldb", "-rep", ".txt", "gemm_naive", "b128_ctx8k"),
    *("published_figures", "cpu_op_map", "truth.json"),
)
KINDS = ("nsys", "ncu", "golden/ncu", "hpctoolkit", "torch")
SUFFIXES = (".sqlite", ".csv", ".json", ".gz")
# Of the logs one of each tool and layout that a notebook could stumble over.
LOGS = (
    "dcgm_exporter_t4_k8s.prom",
    "dcgmi_dmon_h100nvl_dcgm339.txt",
    "deepspeed_flops_profiler_bert_large.txt",
    "dmon_DT_pucet_2021.txt",
    "nccl_debug_info_h100_issue1453.txt",
    "nccl_log__alcf_VAE_results_2025-01-15-16-06-14_with_aws.log",
    "nccl_tests__cluster00_nccl_N2_G1_cnode2-002_cnode2-008.log",
    "nccl_tests__cluster01_nccl_N1_G8_cnode3-002.log",
    "nccl_tests_aws_p5_mpi_tagged.txt",
    "nvidia-smi__nvidia-h100-mig__590.48.01__load__query-gpu.csv",
    "nvidia-smi_xml__rtx-3060-v12.xml",
    "rocm-smi_json__mi100_rocm571.json",
    "superbench__megatron_deepspeed.log",
)


def _captures() -> list[Path]:
    root = os.environ.get("PERFKIT_PROFILES")
    found = [p for kind in KINDS for p in Path(root, kind).iterdir()] if root else []
    readable = (p for p in found if p.is_dir() or p.suffix in SUFFIXES)
    logs = [Path(root, "monitor", name) for name in LOGS] if root else []
    return sorted([*(p for p in readable if not any(part in p.name for part in LEFT_OUT)), *logs])


def _one_of_each_kind() -> list[Path]:
    return list({(capture.parent, capture.name.startswith("nccl")): capture for capture in _captures()}.values())


def shown(name: str, **parameters: Any) -> list[Any]:
    """Run a notebook's cells with these parameters and return what each would show on a page."""
    notebook = nbformat.read(folder() / f"{name}.ipynb", as_version=4)
    space: dict[str, Any] = {}
    results = []
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        *before, last = ast.parse(cell.source).body
        exec(compile(ast.Module(before, []), name, "exec"), space)
        if isinstance(last, ast.Expr):
            result = eval(compile(ast.Expression(last.value), name, "eval"), space)
            results += [] if LIVE in cell.metadata.get("tags", []) else [result]
        else:
            exec(compile(ast.Module([last], []), name, "exec"), space)
        if "parameters" in cell.metadata.get("tags", []):
            space.update(parameters)
    return results


def check(name: str, capture: Path, baseline: Path | str = "") -> None:
    """Run a notebook's cells on a capture: a chart has a description, a table or sentence content."""
    for result in shown(name, profile=str(capture), baseline=str(baseline)):
        for part in getattr(result, "parts", [result]):
            if hasattr(part, "to_dict"):
                assert part.to_dict()["description"]
            elif part is not None:
                assert part.strip() if isinstance(part, str) else part._repr_html_().strip()


@pytest.mark.parametrize("capture", _captures(), ids=lambda p: p.name[:40])
def test_runs_on_every_real_capture(capture: Path) -> None:
    """Captures without kernels, ranges, calls, counters or devices are not errors: each cell shows something."""
    for name in answering(perfkit.load(capture)):
        check(name, capture)


@pytest.mark.parametrize("name", sorted(NOTEBOOKS))
@pytest.mark.parametrize("capture", _one_of_each_kind(), ids=lambda p: p.name[:40])
def test_runs_on_what_it_has_no_answer_to(capture: Path, name: str) -> None:
    """Whoever opens a notebook on another tool's capture reads sentences, not a traceback."""
    check(name, capture)


@pytest.mark.parametrize("capture", _one_of_each_kind(), ids=lambda p: p.name[:40])
def test_compares_whatever_is_recorded(capture: Path) -> None:
    """A capture of each kind stands beside itself and beside one of another kind, of which most share nothing."""
    other = next(one for one in _one_of_each_kind() if one.parent != capture.parent)
    for baseline in (capture, other):
        check("6_compare", capture, baseline)
