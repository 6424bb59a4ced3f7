"""Roofline points and roofs of real reports, against calculations from the reports' own rows."""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

import pytest

import perfkit
from perfkit.analysis.roofline import bound, ceilings, points

BERT = "leleucas__Actual-Parameter-Collection-for-Machine-Learning-Operators__bert_nsight.csv"


def rows_of(path: Path) -> dict[int, dict[str, float]]:
    """Metric -> value of each kernel of a details page, read without perfkit."""
    found: dict[int, dict[str, float]] = defaultdict(dict)
    with path.open(encoding="utf-8", newline="") as file:
        for row in csv.reader(line for line in file if line.startswith('"')):
            if row[0] != "ID" and row[9] and row[11].replace(",", "").replace(".", "").isdigit():
                found[int(row[0])][row[9]] = float(row[11].replace(",", ""))
    return found


def test_real_points_equal_a_hand_calculation(profiles: Path) -> None:
    """26 kernels of BERT: adds + multiplies + 2 FMA over DRAM bytes and over cycles / clock, from the file's rows."""
    run = perfkit.load(profiles / "ncu" / BERT)
    found = points(run.launches, run.counters).set_index(["launch", "precision"])
    expected = {}
    for kernel, row in rows_of(profiles / "ncu" / BERT).items():
        op = "sm__sass_thread_inst_executed_op_{}{}_pred_on.sum"
        for letter, name, packed in (("f", "fp32", 1), ("h", "fp16", 2), ("d", "fp64", 1)):
            add, mul, fma = (row[op.format(letter, kind)] for kind in ("add", "mul", "fma"))
            flops = packed * (add + mul + 2 * fma)
            # The tensor instructions of this report have no known number of operations.
            if flops:
                seconds = row["sm__cycles_elapsed.avg"] / row["sm__cycles_elapsed.avg.per_second"]
                expected[kernel, name] = (flops / seconds, flops / row["dram__bytes.sum"])
    assert set(expected) == set(found.index[found["flops"] > 0])
    for key, (performance, intensity) in expected.items():
        assert found.loc[key, "flops_per_s"] == pytest.approx(performance, rel=1e-9)
        assert found.loc[key, "dram_intensity"] == pytest.approx(intensity, rel=1e-12)


def test_real_roofs_measured_in_the_report(profiles: Path) -> None:
    """RTX 3070: 2 x 5,888 x 1.5000 GHz = 17.66 TFLOP/s and 64 B x 6.805 GHz = 435.5 GB/s (448 on the data sheet)."""
    run = perfkit.load(profiles / "golden" / "ncu" / "thedavidchu__speedy_scan__profile.raw_base.csv")
    roofs = ceilings(run.launches, run.counters).set_index("roof")
    assert 17.66 == round(roofs.loc["fp32", "flops_per_s"] / 1e12, 2)
    assert 64 * 6_805_170_119.75 == pytest.approx(roofs.loc["dram", "bytes_per_s"], rel=1e-12)
    found = bound(points(run.launches, run.counters), ceilings(run.launches, run.counters)).iloc[0]
    assert 0.5342 == pytest.approx(found["dram_share_frac"], abs=5e-4)  # the vendor's own DRAM throughput
    assert ("latency", 0) == (found["bound"], found["flops"])
