"""Kind (c) over all captures: no gain exceeds 1 / (1 - share) without naming the lines that get shorter too."""

import os
from pathlib import Path
from typing import Any

import pytest
from cases.facts import bounds_follow_from_shares
from cases.judging import judged

LARGEST = 5_000_000  # bytes
FOLDERS = ("nsys", "torch", "ncu", "hpctoolkit", "monitor", "reports/*")
QUICK = {
    "nsys/IkerCanut__fire_spread__report1.sqlite",
    "nsys/Qcompiler__MIXQ__src_report1.sqlite",
    "nsys/NTHU-SC__ISC25-ICON-C__gpu.sqlite",
    "nsys/annikola__cuda_bitonic_sort__report1.sqlite",
    "nsys/mamedov__parallel_course_2__report4.sqlite",
    "nsys/extra-p__extrap__profile1.sqlite",
    "torch/marcalph__kernelforge__t4_matmul.pt.trace.json.gz",
    "torch/TraceLens__mi300__gaunernst_bert-small-uncased__1016001.json.gz",
    "torch/HTA__trace_filter__sampled_rank-0.json.gz",
    "ncu/kulnaman__lammps__kripke_output.ncu-rep",
    "hpctoolkit/HPCToolkit__hpcviewer.e4__acc_f3-database",
    "reports/single_process_loader/trace.json.gz",
    "reports/spinning_gpus/gpu.csv",
    "reports/primus_log/primus_log_plain.txt",
}


def size(path: Path) -> int:
    """The bytes of a file or of all files in a folder."""
    files = path.rglob("*") if path.is_dir() else [path]
    return sum(file.stat().st_size for file in files if file.is_file())


def captures() -> list[str]:
    """The paths of all captures up to 5 MB below PERFKIT_PROFILES; the quick ones where it is not set."""
    root = os.environ.get("PERFKIT_PROFILES")
    if not root:
        return sorted(QUICK)
    found = [path for folder in FOLDERS for path in Path(root).glob(f"{folder}/*")]
    return sorted(str(path.relative_to(root)) for path in found if size(path) <= LARGEST)


def parameter(name: str) -> Any:
    """A capture; all except a few are judged with -m matrix only."""
    marks = [] if name in QUICK else [pytest.mark.matrix]
    return pytest.param(name, marks=marks)


@pytest.mark.parametrize("name", [parameter(name) for name in captures()])
def test_no_gain_exceeds_its_share_without_a_reason(name: str, profiles: Path) -> None:
    judgement = judged(profiles / name)
    if judgement.error:
        pytest.skip(judgement.error)
    assert "" == bounds_follow_from_shares(judgement)


@pytest.mark.usefixtures("profiles")
def test_every_quick_capture_is_there() -> None:
    assert set() == QUICK - set(captures())
