"""One row per kernel: timeline, counters, operators and call paths joined."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from callpaths import call_metrics, calltree
from counted import launches, stalls
from frames import kernels, lasting, python_calls, tuples
from ops import launch, launched, op, ops
from sampled import devices

from perfkit.analysis import dossier
from perfkit.tables import KERNELS

TIMELINE = kernels(
    lasting(0, 600, "f", grid_blocks=8, correlation=1),
    lasting(700, 200, "f", grid_blocks=4, correlation=2),
    lasting(1000, 200, "g", grid_blocks=8, correlation=3),
)
EVERYTHING = {
    "dur_ns": 500.0,
    "clock_hz": 1.2e9,
    "fp32_flops": 10.0,
    "dram_bytes": 5.0,
    "sm_frac": 0.3,
}
EVERYTHING |= {
    "achieved_occupancy_frac": 0.2,
    "theoretical_occupancy_frac": 0.5,
    "memory_frac": 0.6,
}


def gpus(*clock_hz: float) -> pd.DataFrame:
    """DEVICES with these clocks, numbered from 0."""
    return devices(*["A100"] * len(clock_hz), sm_count=108, clock_hz=clock_hz)


def row(name: str, *args: Any, **kwargs: Any) -> pd.Series:
    return dossier.kernels(TIMELINE, *args, **kwargs).set_index("name").loc[name]


def test_counters_by_hand() -> None:
    # Times are the timeline's, whatever the counters say. Where only the grid of 8 blocks was measured: 600 of 800 ns.
    f = {"name": "f", **EVERYTHING}
    more = {
        "grid_blocks": 4,
        "fp32_flops": 25.0,
        "tensor_flops": 5.0,
        "dur_ns": 1500,
        "sm_frac": 0.7,
    }
    table = launches(f | {"grid_blocks": 8}, f | more, f | {"grid_blocks": 99, "fp32_flops": 1e9})
    found = dossier.kernels(TIMELINE, table)
    assert [("f", 2, 800, 0.8), ("g", 1, 200, 0.2)] == tuples(
        found, "name", "count", "total_ns", "share_frac"
    )
    measured = ["matched_by", "measured_count", "same_grid_frac", "flops", "dram_bytes", "dur_ns"]
    assert ("full_name", 2, 1.0, 20.0, 5.0, 1000.0) == tuples(found, *measured)[0]
    assert pytest.approx(0.6, rel=1e-12) == found["sm_frac"][0]
    parts = [
        row("f", launches({"name": "f", "grid_blocks": blocks}))["same_grid_frac"]
        for blocks in (8, 9)
    ]
    assert [0.75, 0.0] == parts


def test_other_clocks_are_marked() -> None:
    for clocks, ratio, other, scaled in (
        *(((1.5e9,), 0.8, True, 400.0), ((1.5e9, 1.2e9), 0.8, True, 400.0)),
        ((1.21e9,), 1.2 / 1.21, False, 500 * 1.2 / 1.21),
        ((), np.nan, False, np.nan),  # the timeline's clock is not known
    ):
        known = {"devices": gpus(*clocks)} if clocks else {}
        found = row("f", launches({"name": "f", **EVERYTHING}), **known)
        assert pytest.approx((ratio, scaled), rel=1e-12, nan_ok=True) == (
            found["clock_ratio"],
            found["scaled_dur_ns"],
        )
        assert (other, 500.0, 800) == (found["other_clock"], found["dur_ns"], found["total_ns"])


def test_main_stall_by_hand() -> None:
    table = launches({"name": "f", "dur_ns": 500}, {"name": "f", "dur_ns": 1500})
    said = stalls({"selected": 3, "wait": 6, "drain": 1}, {"selected": 1, "wait": 2, "drain": 7})
    found = row("f", table, said)
    assert "drain" == found["main_stall"]
    assert pytest.approx(0.55, rel=1e-12) == found["main_stall_frac"]


def test_what_is_missing_and_how_to_record_it() -> None:
    # A kernel's name cannot end the quoted pattern of the command.
    table = launches(
        {"name": "f", "dram_bytes": 1.0, "achieved_occupancy_frac": 0.1, "sm_frac": 0.1}
    )
    options = "--section SpeedOfLight_RooflineChart --section WarpStateStats"
    assert (
        f"without flops, main_stall: `ncu {options} -k 'regex:^f$' -o report PROGRAM`"
        == row("f", table)["missing"]
    )
    command = "ncu --set full -k 'regex:^g$' -o report PROGRAM"
    assert f"not measured: `{command}`" == row("g", table)["missing"]
    assert "" == row("f", launches({"name": "f", **EVERYTHING}), stalls({"wait": 1.0}))["missing"]
    (missing,) = dossier.kernels(kernels(lasting(0, 1, "x'; rm -rf ~; '")))["missing"]
    assert "'regex:^x'\"'\"'; rm -rf ~; '\"'\"'$'" in missing


def test_operators_by_the_launching_call() -> None:
    # Where the timeline is one tool's and the trace another's, f is what mm launches there, whatever the ids and times.
    table, calls = launched(
        launch(2, 100, 600, "f"), launch(12, 700, 200, "f"), launch(30, 900, 50, "g")
    )
    operators = ops(op("aten::linear", 0, 10), op("aten::mm", 1, 9), op("aten::add", 11, 20))
    stacks = python_calls(
        op("train.py(7): step", 0, 40), op("torch/nn/linear.py(9): forward", 0, 10)
    )
    found = dossier.kernels(table, ops=operators, api_calls=calls, python_calls=stacks).set_index(
        "name"
    )
    assert ["train.py(7): step"] * 2 == found["python"][["f", "g"]].tolist()
    traced, calls = launched(launch(2, 100, 600, "f"))
    other = dossier.kernels(
        TIMELINE, ops=ops(op("aten::mm", 1, 9)), api_calls=calls, traced=traced
    ).set_index("name")
    for each in (found["operator"], other["operator"]):
        assert "aten::mm" == each["f"]
        assert pd.isna(each["g"])


def test_call_paths_by_name() -> None:
    below = ((2, 1, "g"), (3, 2, "f"), (4, 1, "f"))
    calls = calltree(
        {"node": 1, "name": "main"},
        *({"node": n, "parent": p, "name": name} for n, p, name in below),
    )
    times = call_metrics((3, "gpu", "s", 1.0, 1.0), (4, "gpu", "s", 2.0, 2.0))
    found = dossier.kernels(TIMELINE, calltree=calls, call_metrics=times).set_index("name")
    assert "main > f" == found["call_path"]["f"]
    assert pd.isna(found["call_path"]["g"])
    assert "main > g > f" == dossier.kernels(TIMELINE, calltree=calls)["call_path"][0]


def test_covered_by_hand() -> None:
    assert 0.8 == dossier.covered(dossier.kernels(TIMELINE, launches({"name": "f"})))
    assert 0.0 == dossier.covered(dossier.kernels(TIMELINE))
    assert np.isnan(dossier.covered(dossier.kernels(KERNELS.empty())))
