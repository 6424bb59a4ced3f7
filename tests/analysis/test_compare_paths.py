"""Call paths and sampled metrics of two profiles side by side."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from callpaths import MAIN, call_metrics, calltree
from sampled import samples as sampled
from sampled import together

from perfkit.analysis.compare import samples
from perfkit.analysis.compare.pairs import PATHS, paths
from perfkit.errors import SchemaError
from perfkit.tables import CALL_METRICS, CALLTREE, SAMPLES

Profile = tuple[pd.DataFrame, pd.DataFrame]


def profile(*calls: tuple[int, int, str, float, float], first: dict[str, Any] | None = None) -> Profile:
    """A main thread with calls (node, parent, name, inclusive, exclusive) in CPU seconds."""
    rows = [{"node": 1, "name": MAIN}, *({"node": n, "parent": p, "name": name} for n, p, name, *_ in calls)]
    whole = sum(inclusive for _, parent, _, inclusive, _ in calls if parent == 1)
    metrics = [(1, "CPUTIME", "s", whole, 0.0), *((n, "CPUTIME", "s", i, e) for n, _, _, i, e in calls)]
    return calltree(*rows), call_metrics(*metrics)


BEFORE = profile((2, 1, "train", 9.0, 1.0), (3, 2, "load", 5.0, 5.0), (4, 2, "mm<float>(int)", 3.0, 3.0))
AFTER = profile((7, 1, "train", 7.0, 1.0), (9, 7, "mm<half>(long)", 4.0, 4.0), (8, 7, "prefetch", 2.0, 2.0))


def test_worked_by_hand() -> None:
    """load (5 s) is gone, prefetch (2 s) is new, mm takes 1 s more whatever its arguments, train itself 1 s."""
    found = paths(BEFORE, AFTER, metric="CPUTIME").set_index("name")
    assert {"load": "gone", "prefetch": "new", "mm": "changed", "train": "changed", MAIN: "changed"} == found[
        "status"
    ].to_dict()
    assert ["load", "prefetch", "mm"] == found.index[:3].tolist()
    assert [3.0, 4.0, 1.0, 4 / 3] == found.loc["mm", ["before", "after", "difference", "ratio"]].tolist()
    assert [9.0, 7.0] == found.loc["train", ["inclusive_before", "inclusive_after"]].tolist()
    assert f"{MAIN} > train > load" == found.loc["load", "path"]
    assert [2, 1, 0] == found.loc[["load", "train", MAIN], "depth"].tolist()


def test_differences_add_up_to_that_of_the_totals() -> None:
    """9 s before, 7 s after: what moved along all paths sums to -2 s."""
    assert -2.0 == pytest.approx(paths(BEFORE, AFTER, metric="CPUTIME")["difference"].sum())


def test_lines_and_loops_belong_to_their_function() -> None:
    """Time in a line that moved from 12 to 15 is time of the function, which is the same."""
    trees = [
        (
            calltree(
                {"node": 1, "name": MAIN},
                {"node": 2, "parent": 1, "name": "f"},
                {"node": 3, "parent": 2, "name": f"f.py:{line}", "kind": "line"},
                {"node": 4, "parent": 3, "name": "g"},
            ),
            call_metrics(
                *((n, "CPUTIME", "s", i, e) for n, i, e in ((1, 3.0, 0.0), (2, 3.0, 0.0), (3, 3.0, 2.0), (4, 1.0, 1.0)))
            ),
        )
        for line in (12, 15)
    ]
    found = paths(*trees, metric="CPUTIME").set_index("name")
    assert [MAIN, "f", "g"] == sorted(found.index, key=lambda name: found.loc[name, "depth"])
    assert {"same"} == set(found["status"])
    assert [2.0, 3.0] == found.loc["f", ["before", "inclusive_before"]].tolist()


def test_recursion_and_siblings() -> None:
    """Two calls of f from one place are one path; f called by f is another."""
    one = profile((2, 1, "f", 3.0, 1.0), (3, 2, "f", 2.0, 2.0), (4, 1, "f", 5.0, 5.0))
    found = paths(one, one, metric="CPUTIME").set_index("path")
    assert [6.0, 8.0] == found.loc[f"{MAIN} > f", ["before", "inclusive_before"]].tolist()
    assert [2.0, 2.0] == found.loc[f"{MAIN} > f > f", ["before", "inclusive_before"]].tolist()


def test_kernels_keep_what_tells_them_apart() -> None:
    """Below a GPU operation names are short names: two functors are two kernels."""
    functors = "gpu_kernel<Add>(float*)", "gpu_kernel<Mul>(float*)"
    rows = [{"node": 1, "name": MAIN}, {"node": 2, "parent": 1, "name": "<gpu kernel>", "kind": "gpu_operation"}]
    rows += [{"node": 3 + i, "parent": 2, "name": name} for i, name in enumerate(functors)]
    one = calltree(*rows), call_metrics(*((n, "GKER", "s", 1.0, 1.0) for n in (3, 4)))
    assert 2 == paths(one, one, metric="GKER")["name"].nunique()


def test_deep_and_hostile_trees() -> None:
    """A chain of 3,000 calls is told by its innermost 40; a name with markup stays text."""
    deep = profile(*((n, n - 1, f"f{n}", 1.0, float(n == 3001)) for n in range(2, 3002)))
    found = paths(deep, deep, metric="CPUTIME")
    assert 3001 == len(found)
    longest = found.loc[found["depth"].idxmax(), "path"]
    assert ("… > f2962", 41) == (longest[:9], len(longest.split(" > ")))
    odd = profile((2, 1, "<b>\n", 1.0, 1.0))
    assert 2 == len(paths(odd, odd, metric="CPUTIME"))


def test_empty() -> None:
    """Nothing on both sides has no row; on one side all paths are gone."""
    nothing = CALLTREE.empty(), CALL_METRICS.empty()
    pd.testing.assert_frame_equal(PATHS.empty(), paths(nothing, nothing, metric="CPUTIME"))
    assert {"gone"} == set(paths(BEFORE, nothing, metric="CPUTIME")["status"])


def test_wrong_arguments() -> None:
    """A metric that was not recorded, units that differ and foreign tables are refused."""
    with pytest.raises(ValueError, match="metric: 'GPUOP' is not one of"):
        paths(BEFORE, AFTER, metric="GPUOP")
    cycles = AFTER[0], call_metrics((7, "CPUTIME", "cycles", 1.0, 1.0))
    with pytest.raises(ValueError, match="is in cycles and s"):
        paths(BEFORE, cycles, metric="CPUTIME")
    with pytest.raises(SchemaError, match="'CALLTREE' does not match"):
        paths((AFTER[1], AFTER[1]), AFTER, metric="CPUTIME")


def test_samples_by_hand() -> None:
    """Power 100 and 200 W on two GPUs is 150 W, then 300; a metric of one log alone has no other side."""
    before = together(sampled(power_w=[100, 100]), sampled(gpu=1, power_w=[200, 200], temperature_c=[50, 50]))
    found = samples(before, sampled(power_w=[300, 300, 300])).set_index("metric")
    assert [150.0, 300.0, 150.0, 2.0] == found.loc["power_w"].tolist()
    assert 50.0 == found.loc["temperature_c", "before"]
    assert np.isnan(found.loc["temperature_c", "after"])


def test_samples_of_nothing() -> None:
    """No readings, no rows; a foreign table is refused."""
    assert samples(SAMPLES.empty(), SAMPLES.empty()).empty
    with pytest.raises(SchemaError, match="'SAMPLES' does not match"):
        samples(CALLTREE.empty(), SAMPLES.empty())
