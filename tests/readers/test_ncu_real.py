"""Real reports and pages against what NVIDIA's own module and the vendor's pages say."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from perfkit.errors import ReadError
from perfkit.profile import Profile
from perfkit.readers import ncu, recognise

REPORTS = ["AlpriElse__cs599k__rms-norm-pytorch", "NVIDIA__nsight-training__CuVectorAddDrv"]
REPORTS += ["NVIDIA__nsight-training__manual_nvtx", "amitadate__GPU_Power_Model__PS1_10_profile"]
REPORTS += ["extra-p__extrap__ex-gpu.s10", "thedavidchu__speedy_scan__profile"]
FORMS = ["ncu-rep", "raw.csv", "raw_base.csv", "details.csv"]
BERT = "leleucas__Actual-Parameter-Collection-for-Machine-Learning-Operators__bert_nsight.csv"
B200 = "meinie0826__Roofline-Analysis__flashinfer_paged_decode__gqa_bf16_b1_ctx4k_p64.ncu.csv"
FAILED = "meinie0826__Roofline-Analysis__flashinfer_paged_decode__gqa_bf16_b128_ctx8k_p64.ncu.csv"
RTX5070 = "Olajide-Badejo__GPU-Roofline-Profiler__gemm_naive.csv"
TRUE = {  # columns of LAUNCHES: where truth.json has them, and their factor
    "dur_ns": ("duration_ns", 1.0),
    "dram_bytes": ("dram_bytes", 1.0),
    "achieved_occupancy_frac": ("achieved_occupancy_pct", 0.01),
    "theoretical_occupancy_frac": ("theoretical_occupancy_pct", 0.01),
    "sm_frac": ("sm_throughput_pct", 0.01),
    "memory_frac": ("memory_throughput_pct", 0.01),
    "dram_frac": ("dram_throughput_pct", 0.01),
}
LESS_IN_DETAILS = {"fp64_flops", "fp32_flops", "l2_bytes", "l1_bytes", "tensor_frac"}  # in no section's header
every_report = pytest.mark.parametrize("name", REPORTS)


@cache
def opened(profiles: Path, name: str, form: str) -> Profile:
    if form == "ncu-rep":
        pytest.importorskip("ncu_report", reason="needs NVIDIA's module: pip install perfkit[ncu]")
        return ncu.read(profiles / "ncu" / f"{name}.ncu-rep")
    return ncu.read(profiles / "golden" / "ncu" / f"{name}.{form}")


def truth(profiles: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((profiles / "golden" / "ncu" / f"{name}.truth.json").read_text())
    return found


@every_report
@pytest.mark.parametrize("form", FORMS)
def test_launches_equal_the_vendors_module(name: str, form: str, profiles: Path) -> None:
    launches = opened(profiles, name, form).table("LAUNCHES")
    actions = truth(profiles, name)["actions"]
    assert len(actions) == len(launches)
    # Details print two decimals, raw pages in scaled units six: 3.23 us and 0.05 % are the shortest shown.
    loose = {"ncu-rep": 1e-12, "raw_base.csv": 2e-3, "raw.csv": 2e-3, "details.csv": 4e-3}[form]
    only_metrics = name.startswith("extra-p") and form == "details.csv"  # collected with --metrics: no sections
    for column, (key, factor) in TRUE.items():
        expected = [np.nan if only_metrics or a[key] is None else a[key] * factor for a in actions]
        assert expected == pytest.approx(launches[column].tolist(), rel=loose, abs=6e-5, nan_ok=True), column
    for column, key in (("grid_blocks", "grid"), ("block_threads", "block")):
        assert [int(np.prod(a[key])) for a in actions] == launches[column].tolist()


@every_report
@pytest.mark.parametrize("form", FORMS[1:])
def test_launches_are_the_same_in_every_form(name: str, form: str, profiles: Path) -> None:
    report, page = (opened(profiles, name, f).table("LAUNCHES") for f in ("ncu-rep", form))
    numbers = report.select_dtypes("number").columns
    if form == "details.csv":
        numbers = numbers.difference(LESS_IN_DETAILS)
        if name.startswith("extra-p"):
            numbers = numbers.difference(["dur_ns", "theoretical_occupancy_frac"])
    expected, found = report[numbers].astype(float), page[numbers].astype(float)
    pd.testing.assert_frame_equal(expected, found, check_exact=False, rtol=4e-3, atol=6e-5)


@every_report
def test_rules_equal_the_vendors_module_in_report_and_details(name: str, profiles: Path) -> None:
    report, page = (opened(profiles, name, form).table("RULES") for form in ("ncu-rep", "details.csv"))
    given = [(i, r) for i, a in enumerate(truth(profiles, name)["actions"]) for r in a["rules"]]
    assert sorted((i, r["id"]) for i, r in given) == sorted(zip(report["launch"], report["rule"], strict=True))
    pd.testing.assert_frame_equal(report, page, check_exact=False, rtol=0, atol=6e-5, check_categorical=False)
    scopes = {1: "kernel", 2: "workload"}  # type 1 is local, 2 global
    estimates = {(i, r["id"]): r["speedup"] for i, r in given if r["speedup"]}
    expected = {rule: (told["speedup"] / 100, scopes[told["type"]]) for rule, told in estimates.items()}
    told = report[report["speedup_frac"].notna()]
    assert expected == {(r.launch, r.rule): (r.speedup_frac, r.scope) for r in told.itertuples()}


@pytest.mark.parametrize("form", FORMS[:3])
def test_stalls_equal_the_vendors_module(form: str, profiles: Path) -> None:
    """Ratios where measured (RTX 3070, top: barrier 20.5 cycles), else samples (top: drain 3,312 of 5,453)."""
    stalls = opened(profiles, "thedavidchu__speedy_scan__profile", form).table("STALLS")
    stalls = stalls[stalls["reason"] != "selected"].set_index("reason")["value"]
    ratio = truth(profiles, "thedavidchu__speedy_scan__profile")["actions"][0]["stalls"]["ratio"]
    assert ratio["total"] == pytest.approx(stalls.sum(), abs=0.05)  # 17 reasons of two decimals
    assert ratio["top3"] == [[r, pytest.approx(v, abs=0.006)] for r, v in stalls.nlargest(3).items()]
    sampled = opened(profiles, "NVIDIA__nsight-training__manual_nvtx", form).table("STALLS")
    actions = truth(profiles, "NVIDIA__nsight-training__manual_nvtx")["actions"]
    totals = sampled[sampled["reason"] != "selected"].groupby("launch")["value"].sum()
    assert [a["stalls"]["pcsamp"]["total"] for a in actions] == totals.tolist()


@every_report
@pytest.mark.parametrize("form", FORMS[:2])
def test_devices_are_those_of_the_report(name: str, form: str, profiles: Path) -> None:
    devices = opened(profiles, name, form).table("DEVICES")
    action = truth(profiles, name)["actions"][0]
    expected = [[action["device"], "{}.{}".format(*action["cc"])]]
    assert expected == devices[["name", "compute_capability"]].to_numpy().tolist()
    version = opened(profiles, name, form).capture["tool_version"].item()
    assert "2020.3.1.0" == version or form != "ncu-rep" or not name.startswith("extra-p")


def test_bert_has_operations_and_time_from_cycles(profiles: Path) -> None:
    """26 kernels: FP32 and DRAM as summed by hand, time as cycles over rate, packed half twice the 1/1/2 count."""
    profile = ncu.read(profiles / "ncu" / BERT)
    launches = profile.table("LAUNCHES")
    golden = truth(profiles, BERT)
    kernels = golden["per_kernel"]
    assert (golden["kernels"], golden["rule_rows"]) == (len(launches), len(profile.table("RULES")))
    assert [k["duration_from_cycles_ns"] for k in kernels] == pytest.approx(launches["dur_ns"].tolist(), rel=1e-12)
    for column, expected in {
        "fp32_flops": [k["flops"]["fp32"] for k in kernels],
        "fp16_flops": [2 * k["flops"]["fp16"] for k in kernels],
        "fp64_flops": [0.0] * 26,
        "dram_bytes": [k["values"]["dram__bytes.sum [byte]"] for k in kernels],
        "achieved_occupancy_frac": [k["values"]["Achieved Occupancy [%]"] / 100 for k in kernels],
        "full_name": [k["name"] for k in kernels],
    }.items():
        assert expected == launches[column].tolist(), column
    # A page that does not name its chip: instructions of the tensor pipe tell no operations.
    executed = profile.table("COUNTERS").query("metric == 'sm__inst_executed_pipe_tensor.sum'")["value"].tolist()
    assert [k["tensor_instructions"] for k in kernels] == executed
    assert launches["tensor_flops"].isna().all()


def test_pages_of_blackwell(profiles: Path) -> None:
    # 16 launches of two kernels, 475 columns: times, sizes and registers; the tensor pipes did nothing.
    profile = ncu.read(profiles / "ncu" / B200)
    launches = profile.table("LAUNCHES")
    golden = truth(profiles, B200)
    assert [k["duration_ns"] for k in golden["per_kernel"]] == launches["dur_ns"].tolist()
    assert golden["distinct_names"] == launches["full_name"].nunique()
    assert [148, 256] * 8 == launches["grid_blocks"].tolist()
    assert [0.0] * 16 == launches["tensor_frac"].tolist()
    registers = profile.table("COUNTERS").query("metric == 'launch__registers_per_thread'")["value"]
    assert [k["launch__registers_per_thread"] for k in golden["per_kernel"]] == registers.tolist()
    device = profile.table("DEVICES").iloc[0]
    assert ("NVIDIA B200", "10.0", 148) == (device["name"], device["compute_capability"], device["sm_count"])
    # A byte order mark, the program's output, the RTX 50's metric names: 54,207,744 + 26,601,216 bytes.
    row = ncu.read(profiles / "ncu" / RTX5070).table("LAUNCHES").iloc[0]
    columns = ["dur_ns", "dram_bytes", "sm_frac", "achieved_occupancy_frac", "grid_blocks", "block_threads"]
    assert [9_589_248.0, 80_808_960.0, 0.9732, 0.6661, 4096, 1024] == row[columns].tolist()
    assert row["full_name"].startswith("<unnamed>::gemm_naive_kernel(")


def test_a_failed_run_is_quoted(profiles: Path) -> None:
    path = profiles / "ncu" / FAILED
    assert "ncu" == recognise(path)
    with pytest.raises(ReadError, match=r"The application returned an error code \(1\)\."):
        ncu.read(path)


@every_report
def test_a_cut_report_is_an_error(name: str, profiles: Path, tmp_path: Path) -> None:
    content = (profiles / "ncu" / f"{name}.ncu-rep").read_bytes()
    path = tmp_path / "cut.ncu-rep"
    for part in (0.5, 0.9):  # no module is needed to see it
        path.write_bytes(content[: int(len(content) * part)])
        with pytest.raises(ReadError, match=r"cut\.ncu-rep: the report is cut"):
            ncu.read(path)


def test_texts_beside_the_captures_are_not_claimed(profiles: Path) -> None:
    others = [p for p in profiles.glob("*/*") if p.parent.name in ("nsys", "torch", "monitor")]
    assert others
    assert [] == [p.name for p in [*others, *(profiles / "ncu").glob("*.txt")] if ncu.sniff(p)]


def test_a_cell_of_another_column_does_not_change_the_numbers(profiles: Path, tmp_path: Path) -> None:
    """One compute capability of 8,6 once made 84,480 ns of a real page into 8,448,000."""
    page = (profiles / "golden" / "ncu" / "NVIDIA__nsight-training__manual_nvtx.raw.csv").read_text()
    path = tmp_path / "changed.csv"
    path.write_text(page.replace('"8.6"', '"8,6"'))
    assert '"8,6"' in path.read_text()
    assert 84_480.0 in ncu.read(path).table("LAUNCHES")["dur_ns"].tolist()
