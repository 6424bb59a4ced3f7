"""Ceilings of a machine, and typical operations below them."""

from functools import partial

import numpy as np
import pandas as pd
import pytest
from frames import tuples, types

from perfkit import hardware
from perfkit.analysis import llm_operations
from perfkit.analysis.llm_operations import MACHINE, attainable, ceilings, work
from perfkit.errors import PerfkitError
from perfkit.hardware import Peaks

GPU = Peaks(
    "made up",
    {"bf16_tensor": 100e12, "fp32": 10e12, "int8_tensor": 200e12},
    memory_bytes_per_s=1e12,
)


def sized(**sizes: int) -> pd.DataFrame:
    """The operations of a model of other sizes than its own."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in sizes.items():
            patch.setattr(llm_operations, name.upper(), value)
        return work().set_index("operation")


def intensity(**sizes: int) -> dict[str, float]:
    return sized(**sizes)["intensity"].to_dict()


def test_intensities_of_the_definitions() -> None:
    # 2 x 4096^3 / (6 x 4096^2) = 1365.33; one row: 2 x 4096^2 / (2 (4096^2 + 8192)) = 0.9995.
    found = intensity(batch=1, sequence=4096, heads=32, head_size=128)
    assert found["matrix product, all tokens"] == pytest.approx(1365.33, abs=0.01)
    assert found["matrix product, one token"] == pytest.approx(0.9995, abs=5e-5)
    # 8 elements of 2 B read and written, 32 B: SiLU 32 / 32, softmax 5 / 4, layer norm 56 / (32 + 8 of weights).
    found = intensity(batch=1, sequence=4, heads=1, head_size=2)
    assert [1.0, 1.25, 56 / 40, 0.0] == [
        found[name] for name in ("SiLU", "softmax", "layer norm", "embedding")
    ]
    # Elements of four bytes halve every intensity; rising batches raise the product alone.
    narrow, wide = work(element_bytes=2), work(element_bytes=4)
    assert narrow["operation"].tolist() == wide["operation"].tolist()
    assert (narrow["intensity"] / 2).tolist() == pytest.approx(
        wide["intensity"].tolist(), rel=1e-12
    )
    few, many = intensity(batch=1), intensity(batch=64)
    assert many["matrix product, all tokens"] > few["matrix product, all tokens"]
    assert {name for name in few if many[name] != pytest.approx(few[name], rel=1e-3)} == {
        "matrix product, all tokens"
    }


def test_attention_by_hand() -> None:
    # T = 4, Q = 2, 2 B, one head: 4 x 2 x 16 = 128 FLOP. Fused 4 tensors of 8 elements, 64 B: 2 = T / e. Otherwise 4
    # times 16 scores more. For one query 32 FLOP, keys and values 32 B, query and result 8 B: 2 T / (e (T + 1)).
    rows = sized(batch=1, sequence=4, heads=1, head_size=2)
    rows = rows.loc[[f"attention, {how}" for how in ("fused", "scores in memory", "one new token")]]
    assert [(128, 64, 2.0), (128, 192, 2 / 3), (32, 40, 0.8)] == tuples(
        rows, "flops", "bytes", "intensity"
    )


def test_attainable_is_the_lower_of_two_roofs() -> None:
    found = attainable(work(), peaks=GPU, precision="bf16_tensor").set_index("operation")
    columns = ["attainable_flops_per_s", "peak_frac", "bound"]
    rate, share, bound = found.loc["attention, scores in memory", columns]
    assert (62.06, 0.62, "memory") == (round(rate / 1e12, 2), round(share, 2), bound)
    assert [100e12, 1.0, "compute"] == found.loc["attention, fused", columns].tolist()
    assert 0 == found.loc["embedding", "attainable_flops_per_s"]
    names = ["NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA H200", "Tesla T4"]
    for sheet in filter(None, map(hardware.peaks, names)):
        found = attainable(work(), peaks=sheet, precision="fp16_tensor")
        below = found["intensity"] < sheet.ridge("fp16_tensor")
        assert found["bound"].eq("memory").tolist() == below.tolist()
        assert found["attainable_flops_per_s"].max() <= sheet.flops("fp16_tensor")


def test_ceilings_beside_each_other() -> None:
    own = Peaks("made up", {"fp32": 8e12, "fp16": 15e12}, memory_bytes_per_s=9e11)
    found = ceilings(peaks=GPU, measured=own).set_index("roof")
    assert ["bf16_tensor", "dram", "fp16", "fp32"] == sorted(found.index)
    assert [0.8, 0.9] == pytest.approx(
        found.loc[["fp32", "dram"], "measured_frac"].tolist(), rel=1e-12
    )
    assert (10e12, 8e12, 10.0) == tuple(
        found.loc["fp32", ["flops_per_s", "measured_flops_per_s", "ridge"]]
    )
    assert (1e12, 9e11) == tuple(found.loc["dram", ["bytes_per_s", "measured_bytes_per_s"]])
    assert found.loc["fp16", ["flops_per_s", "measured_frac", "ridge"]].isna().all()
    assert np.isnan(found.loc["dram", "flops_per_s"])


def test_more_than_the_data_sheet_is_refused() -> None:
    above = ceilings(peaks=GPU, measured=Peaks("made up", {"fp32": 10.9e12}))
    assert above["measured_frac"].max() == pytest.approx(1.09, rel=1e-12)
    empty = ceilings(peaks=None)
    assert (0, types(MACHINE.empty())) == (len(empty), types(empty))
    twice, mine = Peaks("made up", {"fp32": 20e12}), Peaks("made up", {"fp32": 1e12})
    for of, given, error, why in (
        (
            ceilings,
            {"peaks": GPU, "measured": twice},
            PerfkitError,
            "fp32: measured is 2 of the data sheet's peak",
        ),
        (work, {"element_bytes": 0}, ValueError, "element_bytes: 0 is not above 0"),
        (
            partial(attainable, work()),
            {"peaks": GPU, "precision": "fp7"},
            ValueError,
            "precision: 'fp7' is not one of",
        ),
        (
            partial(attainable, work()),
            {"peaks": mine, "precision": "fp32"},
            PerfkitError,
            "bandwidth is not known",
        ),
    ):
        with pytest.raises(error, match=why):
            of(**given)
