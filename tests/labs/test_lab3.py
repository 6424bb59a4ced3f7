"""Lab 3 on captures of other GPUs: what they lack is taken from the sample, with its peaks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from labs.submissions import on, points, read
from labs.test_labs import outcome

from perfkit.report.notebooks import sample

NOTEBOOK = "lab3_resnet18"
GEFORCE = "NVIDIA GeForce RTX 2070 SUPER"


def test_gpu_without_peaks_keeps_to_the_samples(profiles: Path) -> None:
    """A real timeline of a GeForce without metrics and steps: its kernels are read, its arithmetic is not judged."""
    space: dict[str, Any] = {"__name__": "__main__"}
    notebook = on(read(NOTEBOOK), profiles / "nsys" / "MohanadOdema__DLProf__w_Relu_nsys_profile.sqlite")
    assert dict.fromkeys(points(notebook), True) == outcome(notebook, space)
    assert (GEFORCE, "NVIDIA A100 80GB PCIe") == (space["run"].devices["name"].iloc[0], space["gpu"].name)
    assert {"timeline": "yours", "sampled metrics": "sample", "counters": "sample"} == space["origin"]


@pytest.mark.parametrize("known", [False, True])
def test_counters_count_where_their_peak_is_known(known: bool, tmp_path: Path) -> None:
    """Counters of a GPU that is in no table: the sample's in their place, or a CSV file with its peaks."""
    page = (sample("resnet18_a100") / "inference" / "resnet18_a100.inference.ncu.csv").read_text()
    capture, table = tmp_path / "capture.csv", tmp_path / "peaks.csv"
    capture.write_text(page.replace("NVIDIA A100 80GB PCIe", "NVIDIA Unheard Of"))
    table.write_text("name_nvidia_smi,tf32_tflops,mem_bw_gbs\nNVIDIA Unheard Of,80,900\n")
    space: dict[str, Any] = {"__name__": "__main__"}
    notebook = on(read(NOTEBOOK), capture, peaks=table if known else None)
    assert dict.fromkeys(points(notebook), True) == outcome(notebook, space)
    assert known == (space["origin"]["counters"] == "yours")
    assert known == (space["gpu"].name == "NVIDIA Unheard Of")
    assert known or "peaks" in space["origin"]["counters"]
