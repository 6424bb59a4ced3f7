"""One row per kernel: timeline, counters, operators and call paths joined."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from counted import launches, stalls
from frames import kernels
from ops import launch, launched, op, ops, python_calls

from perfkit.analysis import dossier
from perfkit.errors import SchemaError
from perfkit.tables import CALL_METRICS, CALLTREE, DEVICES, KERNELS

TIMELINE = kernels(
    {"start_ns": 0, "dur_ns": 600, "name": "f", "grid_blocks": 8, "correlation": 1},
    {"start_ns": 700, "dur_ns": 200, "name": "f", "grid_blocks": 4, "correlation": 2},
    {"start_ns": 1000, "dur_ns": 200, "name": "g", "grid_blocks": 8, "correlation": 3},
)
EVERYTHING = {"dur_ns": 500.0, "clock_hz": 1.2e9, "fp32_flops": 10.0, "dram_bytes": 5.0, "sm_frac": 0.3}
EVERYTHING |= {"achieved_occupancy_frac": 0.2, "theoretical_occupancy_frac": 0.5, "memory_frac": 0.6}


def gpus(*clock_hz: float) -> pd.DataFrame:
    """DEVICES with these clocks, numbered from 0."""
    rows = [(0, i, "A100", "8.0", 108, 1, 1.0, clock) for i, clock in enumerate(clock_hz)]
    return DEVICES.make(pd.DataFrame(rows, columns=DEVICES.column_names))


def row(name: str, *args: Any, **kwargs: Any) -> pd.Series:
    """The dossier's row of one kernel."""
    return dossier.kernels(TIMELINE, *args, **kwargs).set_index("name").loc[name]


def test_time_is_the_timelines() -> None:
    """f: 600 + 200 of 1000 ns, whatever the counters say; g: 200."""
    found = dossier.kernels(TIMELINE, launches({"name": "f", **EVERYTHING}))
    assert ["f", "g"] == found["name"].tolist()
    assert [(2, 800, 0.8), (1, 200, 0.2)] == list(
        found[["count", "total_ns", "share_frac"]].itertuples(index=False, name=None)
    )


def test_counters_by_hand() -> None:
    """Two launches: flops are the mean of 10 and 30; sm_frac is 0.3 x 500 + 0.7 x 1500 over 2000 = 0.6."""
    f = {"name": "f", **EVERYTHING}
    more = {"grid_blocks": 4, "fp32_flops": 25.0, "tensor_flops": 5.0, "dur_ns": 1500, "sm_frac": 0.7}
    found = row("f", launches(f | {"grid_blocks": 8}, f | more, f | {"grid_blocks": 99, "fp32_flops": 1e9}))
    assert ("full_name", 2, 1.0) == (found["matched_by"], found["measured_count"], found["same_grid_frac"])
    assert (20.0, 5.0, 1000.0) == (found["flops"], found["dram_bytes"], found["dur_ns"])
    assert pytest.approx(0.6, rel=1e-12) == found["sm_frac"]


def test_part_of_the_time_with_measured_grid() -> None:
    """Only the grid of 8 blocks was measured: 600 of f's 800 ns."""
    assert 0.75 == row("f", launches({"name": "f", "grid_blocks": 8}))["same_grid_frac"]
    assert 0.0 == row("f", launches({"name": "f", "grid_blocks": 9}))["same_grid_frac"]


@pytest.mark.parametrize(
    ("clocks", "ratio", "other", "scaled"),
    [
        ((1.5e9,), 0.8, True, 400.0),
        ((1.21e9,), 1.2 / 1.21, False, 500 * 1.2 / 1.21),
        ((1.5e9, 1.2e9), 0.8, True, 400.0),
    ],
)
def test_other_clocks_are_marked(clocks: tuple[float, ...], ratio: float, other: bool, scaled: float) -> None:
    """Counters at 1.2 GHz of a GPU at 1.5: 500 ns are shown as 400, and marked; within 2 % they are not."""
    found = row("f", launches({"name": "f", **EVERYTHING}), devices=gpus(*clocks))
    assert pytest.approx((ratio, scaled), rel=1e-12) == (found["clock_ratio"], found["scaled_dur_ns"])
    assert other == found["other_clock"]
    assert (500.0, 800) == (found["dur_ns"], found["total_ns"])


def test_without_devices_no_ratio() -> None:
    """Where the timeline's clock is not known nothing is scaled or marked."""
    found = row("f", launches({"name": "f", **EVERYTHING}))
    assert np.isnan(found["scaled_dur_ns"])
    assert not found["other_clock"]


def test_main_stall_by_hand() -> None:
    """wait: 0.6 of 500 ns and 0.2 of 1500 are 0.3; drain: 0.1 and 0.7 are 0.55, so drain leads."""
    table = launches({"name": "f", "dur_ns": 500}, {"name": "f", "dur_ns": 1500})
    said = stalls({"selected": 3, "wait": 6, "drain": 1}, {"selected": 1, "wait": 2, "drain": 7})
    found = row("f", table, said)
    assert "drain" == found["main_stall"]
    assert pytest.approx(0.55, rel=1e-12) == found["main_stall_frac"]


def test_what_is_missing_and_how_to_record_it() -> None:
    """Unmeasured kernels, absent counters and complete ones each say so, with options for ncu."""
    table = launches({"name": "f", "dram_bytes": 1.0, "achieved_occupancy_frac": 0.1, "sm_frac": 0.1})
    options = "--section SpeedOfLight_RooflineChart --section WarpStateStats"
    assert f"without flops, main_stall: `ncu {options} -k 'regex:^f$'`" == row("f", table)["missing"]
    assert "not measured: `ncu --set full -k 'regex:^g$'`" == row("g", table)["missing"]
    assert "" == row("f", launches({"name": "f", **EVERYTHING}), stalls({"wait": 1.0}))["missing"]


def test_hostile_names_stay_inside_their_quotes() -> None:
    """A kernel's name cannot end the quoted pattern of the command."""
    table = kernels({"start_ns": 0, "dur_ns": 1, "name": "x'; rm -rf ~; '"})
    (missing,) = dossier.kernels(table)["missing"]
    assert "'regex:^x'\"'\"'; rm -rf ~; '\"'\"'$'" in missing


def test_operators_by_the_launching_call() -> None:
    """f is launched for 600 ns inside mm, which linear calls, and for 200 inside add; g outside of all operators."""
    table, calls = launched(launch(2, 100, 600, "f"), launch(12, 700, 200, "f"), launch(30, 900, 50, "g"))
    operators = ops(op("aten::linear", 0, 10), op("aten::mm", 1, 9), op("aten::add", 11, 20))
    stacks = python_calls(op("train.py(7): step", 0, 40), op("torch/nn/linear.py(9): forward", 0, 10))
    known = {"ops": operators, "api_calls": calls, "python_calls": stacks}
    found = dossier.kernels(table, **known).set_index("name")
    assert "aten::mm" == found["operator"]["f"]
    assert pd.isna(found["operator"]["g"])
    assert ["train.py(7): step"] * 2 == found["python"][["f", "g"]].tolist()


def tree(*rows: tuple[int, int | None, str]) -> pd.DataFrame:
    """CALLTREE of node, parent and name."""
    frame = [(0, node, parent, 0, "main thread", "function", name, None, None, None) for node, parent, name in rows]
    return CALLTREE.make(pd.DataFrame(frame, columns=CALLTREE.column_names))


def test_call_paths_by_name() -> None:
    """Of two paths to f the one with more time is named, from the root down; a caller called g is no launch of g."""
    calls = tree((1, None, "main"), (2, 1, "g"), (3, 2, "f"), (4, 1, "f"))
    times = pd.DataFrame(
        [(0, 3, "gpu", "s", 1.0, 1.0), (0, 4, "gpu", "s", 2.0, 2.0)], columns=CALL_METRICS.column_names
    )
    found = dossier.kernels(TIMELINE, calltree=calls, call_metrics=CALL_METRICS.make(times)).set_index("name")
    assert "main > f" == found["call_path"]["f"]
    assert pd.isna(found["call_path"]["g"])
    assert "main > g > f" == dossier.kernels(TIMELINE, calltree=calls)["call_path"][0]


def test_covered_by_hand() -> None:
    """f was measured and g was not: 800 of 1000 ns; nothing measured: 0; no kernels: not known."""
    assert 0.8 == dossier.covered(dossier.kernels(TIMELINE, launches({"name": "f"})))
    assert 0.0 == dossier.covered(dossier.kernels(TIMELINE))
    assert np.isnan(dossier.covered(dossier.kernels(KERNELS.empty())))


def test_rows_equal_a_loop() -> None:
    """On a random timeline counts, times and the time of measured grids are those of a plain loop."""
    rng = np.random.default_rng(11)
    rows = [(f"k{rng.integers(9)}", int(rng.integers(4)), int(rng.integers(1, 99))) for _ in range(300)]
    table = kernels(
        *({"start_ns": 100 * i, "dur_ns": d, "name": n, "grid_blocks": g} for i, (n, g, d) in enumerate(rows))
    )
    measured = {(f"k{rng.integers(9)}", int(rng.integers(4))) for _ in range(12)}
    found = dossier.kernels(table, launches(*({"name": n, "grid_blocks": g} for n, g in sorted(measured))))
    assert {n for n, _, _ in rows} == set(found["name"])
    for each in found.to_dict("records"):
        own = [(g, d) for n, g, d in rows if n == each["name"]]
        total = sum(d for _, d in own)
        assert (len(own), total) == (each["count"], each["total_ns"])
        part = sum(d for g, d in own if (each["name"], g) in measured)
        assert pytest.approx(part / total, rel=1e-12) == each["same_grid_frac"]


def test_wrong_tables() -> None:
    """Frames that are other tables are refused by name."""
    with pytest.raises(SchemaError, match="CALLTREE"):
        dossier.kernels(TIMELINE, calltree=KERNELS.empty())
    with pytest.raises(ValueError, match="column matched_by is missing"):
        dossier.covered(TIMELINE.assign(total_ns=1))


def test_operators_of_another_execution_are_joined_by_name() -> None:
    """The timeline is one tool's, the trace another's: f is what mm launches there, whatever the ids and times."""
    table, calls = launched(launch(2, 100, 600, "f"))
    known = {"ops": ops(op("aten::mm", 1, 9)), "api_calls": calls, "traced": table}
    found = dossier.kernels(TIMELINE, **known).set_index("name")["operator"]
    assert "aten::mm" == found["f"]
    assert pd.isna(found["g"])
